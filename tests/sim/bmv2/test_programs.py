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
