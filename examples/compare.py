"""Compare the losses that two runs of an example recorded, and draw them.

    torchrun --standalone --nproc-per-node 4 examples/lstm.py --backend gloo --record gloo.json
    torchrun --standalone --nproc-per-node 4 examples/lstm.py --record switch.json
    python examples/compare.py LSTM gloo.json switch.json --svg losses.svg

Several examples at once: NAME FILE FILE NAME FILE FILE ...
"""

import argparse
import json
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("runs", nargs="+", metavar="NAME GLOO.json SWITCHREDUCE.json")
parser.add_argument("--svg", type=Path, help="needs matplotlib")
options = parser.parse_args()
if len(options.runs) % 3:
    parser.error("each name takes two files")

curves = {}
for name, *files in zip(*[iter(options.runs)] * 3, strict=True):
    gloo, switch = (json.loads(Path(file).read_text()) for file in files)
    curves[name] = gloo, switch
    difference = max(abs(a - b) / a for a, b in zip(gloo, switch, strict=True))
    last = abs(gloo[-1] - switch[-1]) / gloo[-1]
    print(
        f"{name}: loss of step {len(gloo)} {gloo[-1]:.6f} with Gloo, {switch[-1]:.6f} with switchreduce; "
        f"relative difference {last:.1e}, at most {difference:.1e} in any step"
    )

if options.svg:
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "switchreduce"  # else every run writes other ids
    figure, axes = plt.subplots(1, len(curves), figsize=(4 * len(curves), 3), layout="constrained")
    for axis, (name, (gloo, switch)) in zip(
        [axes] if len(curves) == 1 else axes, curves.items(), strict=True
    ):
        axis.plot(gloo, label="Gloo", color="tab:orange", linewidth=3, alpha=0.5)
        axis.plot(switch, label="switchreduce", color="tab:blue", linewidth=1)
        axis.set(title=name, xlabel="step", ylabel="loss")
        axis.legend()
    figure.savefig(options.svg, metadata={"Date": None})
