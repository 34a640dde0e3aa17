"""What losses cost in virtual time: chunks a round trip and packets sent again.

python -m tests.worker.transport.bench_losses
"""

from __future__ import annotations

import random
from statistics import median

import numpy as np

from switchreduce.p4.builds import load_build
from switchreduce.sim.network import Direction, Fate, VirtualNetwork
from switchreduce.sim.target import Switch, load_program
from tests.worker.transport.simulated import SWITCH_ADDRESS, Op, SimulatedJob, queue_all, slow_queue

BUILD = load_build("wide256")
RANKS = 4
CHUNKS = 600
LEG = 1e-4  # s
VIRTUAL_LIMIT = 600.0  # s
SEEDS = range(5)


def random_loss(loss: float, seed: int) -> Fate:
    luck = random.Random(seed)

    def fate(direction: Direction, port: int, now: float) -> list[float]:
        return [LEG] if luck.random() >= loss else []

    return fate


def measure(switch: Switch, fate: Fate, slots: int, chunks: int) -> tuple[float, float]:
    """(virtual seconds, share of packets sent again) of one job."""
    network = VirtualNetwork(switch, BUILD, SWITCH_ADDRESS, fate)
    job = SimulatedJob(switch, BUILD, network, RANKS, slots, rows=chunks)
    try:
        queue_all(job, Op.SUM, np.ones((RANKS, chunks, BUILD.lanes), np.uint32))
        network.run(lambda: all(e.idle for e in job.engines), VIRTUAL_LIMIT)
    finally:
        job.close()
    stats = [engine.stats for engine in job.engines]
    return network.now, sum(s.retransmits for s in stats) / sum(s.sent for s in stats)


def main() -> None:
    switch = Switch(load_program(BUILD.json_path), cpu_port=510)
    print(f"{RANKS} ranks, {CHUNKS} chunks, {LEG * 1e3:g} ms a leg, 64 slots; medians of {len(SEEDS)} seeds")
    for loss in (0.0, 0.001, 0.01, 0.05, 0.2):
        runs = [measure(switch, random_loss(loss, seed), 64, CHUNKS) for seed in SEEDS]
        seconds, again = (median(column) for column in zip(*runs, strict=True))
        print(
            f"{loss:6.1%} lost on each leg: {CHUNKS * 2 * LEG / seconds:5.1f} chunks a round trip, "
            f"{again:.1%} sent again"
        )
    chunks = 2000
    for capacity in (32, 128):
        for slots in (64, 128, 512):
            service = 5e-5
            seconds, again = measure(switch, slow_queue(capacity, service, LEG), slots, chunks)
            print(
                f"a queue of {capacity} packets, {service * 1e6:g} us each, {slots} slots: "
                f"{RANKS * chunks * service / seconds:.0%} of what it takes, {again:.1%} sent again"
            )


if __name__ == "__main__":
    main()
