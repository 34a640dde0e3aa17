"""Prints what a packet of 256 lanes costs on one core: parse, work on registers, deparse, one out per one in.

    PYTHONPATH=. python -m tests.sim.target.bench_lanes

The reference is NumPy's bare addition of the same lanes, measured in the same run in turns; both are CPU time
of the best turn, since other processes may share the core.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from switchreduce.sim.target import Frames, Switch, load_program

OPS = ["sum", "or", "maximum", "store", "fetch", "2048-bit addition"]
LANES, PACKETS, CELLS, TURNS = 256, 200, 32, 40


def seconds(work: Callable[[], object], times: int) -> float:
    start = time.thread_time()
    for _ in range(times):
        work()
    return (time.thread_time() - start) / times


def main() -> None:
    switch = Switch(load_program(Path(__file__).parent / "programs" / "lanes_wide.json"), progress=print)
    rng = np.random.default_rng(1)
    lanes = rng.integers(0, 2**32, (PACKETS, LANES), dtype=np.uint32)
    other, total = lanes[:32].copy(), lanes[:32].copy()
    outgoing = Frames.allocate(PACKETS, PACKETS * 1100)
    for number, op in enumerate(OPS):
        incoming = Frames.allocate(PACKETS, PACKETS * 1100)
        for k in range(PACKETS):
            incoming.append(1, bytes([number, k % CELLS, 0, 0]) + lanes[k].astype(">u4").tobytes())

        def batch(incoming: Frames = incoming) -> None:
            incoming.cursor = 0
            outgoing.clear()
            switch.process_batch(incoming, outgoing)

        def bare_add() -> None:
            np.add(lanes[:32], other, out=total)

        ours, reference = [], []
        for _ in range(TURNS):
            ours.append(seconds(batch, 20) / PACKETS)
            reference.append(seconds(bare_add, 200) / 32)
        packet, add = min(ours), min(reference)
        print(
            f"{op:18} {packet * 1e9:5.0f} ns a packet, {1e-6 / packet:4.2f} million a second; "
            f"NumPy's bare add {add * 1e9:3.0f} ns, {add / packet:4.2f} of a packet"
        )


if __name__ == "__main__":
    main()
