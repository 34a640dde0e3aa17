"""The aggregation program's builds on BMv2 and on the embedded switch."""

from __future__ import annotations

from random import Random

from switchreduce.p4.builds import Build, constants

from .aggregation import MARKER, Traffic, stages
from .pair import Pair


def test_bmv2_and_the_embedded_switch_agree(any_build: Build, packet_count: int, seed: int) -> None:
    traffic = Traffic(any_build, Random(seed))
    pair = Pair(any_build)
    try:
        for connection in pair.connections:
            connection.write_stages(stages())
        pair.exchange([traffic.packet() for _ in range(packet_count)], MARKER)
        cells = pair.compare_counters()
        drops = pair.connections[0].read_counter("SwitchIngress.drops")
    finally:
        pair.close()
    print(f"{any_build.name}: {pair.packets} packets in, {pair.frames} out, {cells} counter cells alike")
    print(f"dropped by reason: {drops}")
    if packet_count >= 2000:
        assert all(drops[reason] for reason in range(constants.DROP_REASONS)), drops
