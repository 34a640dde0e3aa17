"""The rules of arbitration, without gRPC; test_stream.py has them over real streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from p4.v1 import p4runtime_pb2

from switchreduce.sim.p4runtime.arbitration import Arbitration, Controller
from switchreduce.sim.p4runtime.outbox import Outbox
from switchreduce.sim.p4runtime.status import Code, RequestError

DEVICE = 3
MAX_CONTROLLERS = 4
OK, ALREADY_EXISTS, NOT_FOUND = (code.value[0] for code in (Code.OK, Code.ALREADY_EXISTS, Code.NOT_FOUND))


def make_arbitration() -> Arbitration:
    return Arbitration(DEVICE, lambda: None, MAX_CONTROLLERS)


def make_controller() -> Controller:
    return Controller(Outbox(max_packets=1))


def arbitration_message(
    election_id: int | None, device_id: int = DEVICE
) -> p4runtime_pb2.MasterArbitrationUpdate:
    message = p4runtime_pb2.MasterArbitrationUpdate(device_id=device_id)
    if election_id is not None:
        message.election_id.high = election_id >> 64
        message.election_id.low = election_id & (2**64 - 1)
    return message


def notices(controller: Controller) -> list[tuple[int, int]]:
    """What the controller was told since it was last asked: (status code, election id)."""
    controller.outbox.close()
    told = [message.arbitration for message in controller.outbox]
    controller.outbox = Outbox(max_packets=1)
    return [(each.status.code, (each.election_id.high << 64) | each.election_id.low) for each in told]


def test_the_highest_election_id_is_primary_and_everyone_is_told() -> None:
    arbitration, first, second = make_arbitration(), make_controller(), make_controller()
    arbitration.update(first, arbitration_message(5))
    assert notices(first) == [(OK, 5)]
    arbitration.update(second, arbitration_message(4))
    assert (notices(first), notices(second)) == ([], [(ALREADY_EXISTS, 5)])
    arbitration.update(second, arbitration_message(2**100))
    assert (notices(first), notices(second)) == ([(ALREADY_EXISTS, 2**100)], [(OK, 2**100)])
    arbitration.leave(second)
    assert notices(first) == [(NOT_FOUND, 2**100)]
    assert arbitration.primary is None
    # The highest id is remembered: the survivor must name at least that to take over.
    arbitration.update(first, arbitration_message(2**100 - 1))
    assert notices(first) == [(NOT_FOUND, 2**100)]
    arbitration.update(first, arbitration_message(2**100))
    assert notices(first) == [(OK, 2**100)]


def test_an_unset_election_id_is_never_primary_but_zero_may_be() -> None:
    arbitration, standby, zero = make_arbitration(), make_controller(), make_controller()
    arbitration.update(standby, arbitration_message(None))
    assert notices(standby) == [(NOT_FOUND, 0)]
    arbitration.update(zero, arbitration_message(0))
    assert (notices(standby), notices(zero)) == ([(ALREADY_EXISTS, 0)], [(OK, 0)])


def test_a_primary_that_downgrades_itself_leaves_no_primary() -> None:
    arbitration, first, second = make_arbitration(), make_controller(), make_controller()
    arbitration.update(first, arbitration_message(9))
    arbitration.update(second, arbitration_message(1))
    notices(first), notices(second)
    arbitration.update(first, arbitration_message(8))
    assert (notices(first), notices(second)) == ([(NOT_FOUND, 9)], [(NOT_FOUND, 9)])


def test_a_new_primary_is_told_after_the_writes_before_it() -> None:
    order: list[str] = []
    arbitration = Arbitration(DEVICE, lambda: order.append("writes done"), MAX_CONTROLLERS)
    old, new = make_controller(), make_controller()
    arbitration.update(old, arbitration_message(1))
    order.clear()
    old.outbox.put = lambda message: order.append("old primary told")  # type: ignore[method-assign]
    new.outbox.put = lambda message: order.append("new primary told")  # type: ignore[method-assign]
    arbitration.update(new, arbitration_message(2))
    assert order == ["old primary told", "writes done", "new primary told"]


@pytest.mark.parametrize(
    ("change", "first_code", "later_code"),
    [
        ({"device_id": 4}, Code.NOT_FOUND, Code.FAILED_PRECONDITION),
        ({"role": p4runtime_pb2.Role(name="sdn")}, Code.UNIMPLEMENTED, Code.FAILED_PRECONDITION),
        ({"role": p4runtime_pb2.Role(config={})}, Code.INVALID_ARGUMENT, Code.INVALID_ARGUMENT),
        ({"election_id": p4runtime_pb2.Uint128(low=7)}, Code.INVALID_ARGUMENT, Code.INVALID_ARGUMENT),
    ],
)
def test_what_ends_a_stream(change: dict[str, object], first_code: Code, later_code: Code) -> None:
    arbitration, seven, live = make_arbitration(), make_controller(), make_controller()
    arbitration.update(seven, arbitration_message(7))
    arbitration.update(live, arbitration_message(1))
    message = arbitration_message(2)
    message.MergeFrom(p4runtime_pb2.MasterArbitrationUpdate(**change))
    for controller, code in ((make_controller(), first_code), (live, later_code)):
        with pytest.raises(RequestError) as refused:
            arbitration.update(controller, message)
        assert refused.value.code == code


def test_one_controller_too_many() -> None:
    arbitration = make_arbitration()
    for election_id in range(MAX_CONTROLLERS):
        arbitration.update(make_controller(), arbitration_message(election_id))
    with pytest.raises(RequestError) as refused:
        arbitration.update(make_controller(), arbitration_message(100))
    assert refused.value.code == Code.RESOURCE_EXHAUSTED


events = st.lists(
    st.tuples(st.integers(0, MAX_CONTROLLERS - 1), st.one_of(st.none(), st.integers(0, 5), st.just("leave"))),
    max_size=30,
)


@given(events)
def test_there_is_never_a_primary_but_the_live_one_with_the_highest_id(
    steps: list[tuple[int, int | str | None]],
) -> None:
    arbitration = make_arbitration()
    controllers = [make_controller() for _ in range(MAX_CONTROLLERS)]
    live: dict[int, int | None] = {}
    last_told: dict[int, int] = {}
    highest = -1
    for who, what in steps:
        if what == "leave":
            arbitration.leave(controllers[who])
            live.pop(who, None)
        elif what is not None and any(live[other] == what for other in live if other != who):
            with pytest.raises(RequestError):
                arbitration.update(controllers[who], arbitration_message(what))
        else:
            arbitration.update(controllers[who], arbitration_message(what))
            live[who] = what
            highest = max(highest, -1 if what is None else what)
        primary = [each for each, election_id in live.items() if election_id == highest and highest >= 0]
        assert arbitration.primary is (controllers[primary[0]] if primary else None)
        # What each controller heard last is true now.
        for each, controller in enumerate(controllers):
            for code, _ in notices(controller):
                last_told[each] = code
        for each in live:
            expected = OK if each in primary else ALREADY_EXISTS if primary else NOT_FOUND
            assert last_told[each] == expected
