from hypothesis import given
from hypothesis import strategies as st

from switchreduce.sim.drivers.peers import IDLE_S, PeerTable

ALL_BUT_TWO = set(range(512)) - {7, 8}


def test_new_peers_get_the_lowest_free_port_but_no_reserved_one() -> None:
    peers = PeerTable(reserved={1, 3, 511})
    assert [peers.admit(("10.0.0.1", 1000 + i), now=0) for i in range(3)] == [2, 4, 5]
    assert peers.port_of(("10.0.0.1", 1001), now=1) == 4
    assert peers.port_of(("10.0.0.1", 9), now=1) is None


def test_a_full_table_reuses_the_port_that_was_silent_longest() -> None:
    peers = PeerTable(reserved=ALL_BUT_TWO)
    first, second, third = (("10.0.0.1", port) for port in (1, 2, 3))
    assert (peers.admit(first, now=0), peers.admit(second, now=1)) == (7, 8)
    peers.port_of(first, now=10)
    assert peers.admit(third, now=1 + IDLE_S) is None
    assert peers.admit(third, now=1.1 + IDLE_S) == 8
    assert peers.port_of(second, now=62) is None
    assert peers.addresses == {7: first, 8: third}


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 100)), max_size=60))
def test_ports_and_peers_stay_one_to_one(steps: list[tuple[int, float]]) -> None:
    peers = PeerTable(reserved=ALL_BUT_TWO)
    now = 0.0
    for peer, wait in steps:
        now += wait
        address = ("10.0.0.1", peer)
        port = peers.port_of(address, now) or peers.admit(address, now)
        if port is not None:
            assert peers.addresses[port] == address
            assert port in (7, 8)
        known = [each for each in range(1, 6) if peers.port_of(("10.0.0.1", each), -1e9) is not None]
        assert len(known) == len(peers) <= 2
        for each in known:  # the look above must not count as a sign of life
            peers.port_of(("10.0.0.1", each), now)
