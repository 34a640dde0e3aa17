"""The smallest whole program: every rank sums one array.

Start a switch and a controller, then a rank in each of two terminals, in any order:

    switchreduce switch --no-p4 --cpu-port 510 --udp 127.0.0.1:21330
    switchreduce controller
    python examples/allreduce.py --rank 0
    python examples/allreduce.py --rank 1
"""

import argparse

import numpy as np

from switchreduce import Communicator

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--controller", default="127.0.0.1:9560")
parser.add_argument("--rank", type=int, required=True)
parser.add_argument("--world-size", type=int, default=2)
options = parser.parse_args()

rng = np.random.default_rng(options.rank)
gradient = np.where(rng.random(1_000_000) < 0.05, rng.standard_normal(1_000_000), 0).astype(np.float32)

with Communicator.connect(
    options.controller, job="example", rank=options.rank, world_size=options.world_size
) as communicator:
    for step in range(3):
        total = gradient.copy()
        report = communicator.allreduce(total, op="mean")
        print(
            f"step {step}: {report.bytes_sent:,} of {gradient.nbytes:,} bytes sent in "
            f"{report.seconds * 1e3:.1f} ms, sum of the mean {total.sum(dtype=np.float64):+.6f}"
        )
