"""Small programs that together exercise the supported subset, on BMv2 and on the embedded switch."""

from __future__ import annotations

from random import Random

import pytest

from .pair import Pair
from .programs import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bmv2_and_the_embedded_switch_agree(case: Case, packet_count: int, seed: int) -> None:
    rng = Random(seed)
    pair = Pair(case.build)
    try:
        pair.insert(*case.entries(pair.schema, rng))
        packets = [case.packet(rng) for _ in range(packet_count)]
        pair.exchange(packets, case.marker, case.at_once, case.any_order)
        cells = pair.compare_counters()
    finally:
        pair.close()
    print(f"{case.name}: {pair.packets} packets in, {pair.frames} out, {cells} counter cells alike")


def test_packet_outs_leave_alike(packet_count: int, seed: int) -> None:
    rng = Random(seed)
    case = next(case for case in CASES if case.name == "kitchen")
    pair = Pair(case.build)
    try:
        pair.insert(*case.entries(pair.schema, rng))
        pair.exchange([case.packet(rng)], case.marker)  # from then on BMv2's ports are open
        for _ in range(packet_count // 4):
            fields = {"egress_port": rng.choice([0, 1, 7, 300, 509]), "unused": rng.getrandbits(7)}
            pair.exchange_packet_out(fields, case.packet(rng)[1])
        pair.compare_counters()
    finally:
        pair.close()
    print(f"packet-outs: {pair.packets} packets in, {pair.frames} out")
