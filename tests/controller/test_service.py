"""The controller process against the real switch process: P4Runtime, gRPC and UDP between them."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from switchreduce.controller import coordinator_pb2 as pb
from switchreduce.controller import coordinator_pb2_grpc
from switchreduce.errors import ControllerError, MismatchError, RankLostError, SwitchError
from switchreduce.p4.builds import constants
from switchreduce.sim.processes import Process
from tests.controller.plane import BUILD, Plane, running_plane, start_controller, start_switch
from tests.waiting import eventually

LANES = np.arange(BUILD.lanes, dtype=np.uint32)


@contextlib.contextmanager
def joined_process(
    plane: Plane, job: str, rank: int, world_size: int
) -> Iterator[subprocess.Popen[str]]:  # fmt: skip
    """A rank in a process of its own; it has joined, and does nothing else. Killed at the end."""
    code = (
        "import time; from switchreduce.worker.membership import Membership;"
        f"m = Membership.join({plane.address!r}, job={job!r}, rank={rank}, world_size={world_size});"
        "print('joined', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "joined\n"
            yield process
        finally:
            process.kill()


def test_ranks_join_show_where_they_are_and_get_sums(plane):
    ranks = plane.running("sum", 3, slots=16)
    assert ranks[0].membership.wait_ready(0) == 16
    for rank in ranks:
        rank.contribute(LANES * (rank.rank + 1), chunk=1)
    for rank in ranks:
        result = rank.result()
        assert result["kind"] == constants.KIND_RESULT
        assert result["rank"] == rank.rank
        np.testing.assert_array_equal(result["lanes"], LANES * 6)
    job = plane.job("sum")
    assert (job.state, job.world_size, job.slots) == ("running", 3, 16)
    assert [rank.packets for rank in job.ranks] == [1, 1, 1]
    assert len({rank.switch_port for rank in job.ranks}) == 3
    ports = [f"127.0.0.1:{rank.socket.getsockname()[1]}" for rank in ranks]
    assert [rank.data_address for rank in job.ranks] == ports
    for rank in ranks:
        rank.membership.leave(1)
    eventually(lambda: plane.job("sum") is None)
    before = plane.status()
    assert before.slots_free == before.slots_total == constants.SLOTS
    ranks[0].contribute(LANES, chunk=2)
    eventually(lambda: plane.status().drops["unadmitted"] == before.drops["unadmitted"] + 1)


def test_a_job_does_not_see_the_registers_of_one_before(plane):
    for start in (5, 9):
        ranks = plane.running("again", 2)
        for rank in ranks:
            rank.contribute(LANES + start, chunk=1)
        for rank in ranks:
            np.testing.assert_array_equal(rank.result()["lanes"], 2 * (LANES + start))
            rank.close()


def test_one_rank_may_fetch_its_last_result_after_others_left(plane):
    zero, one = plane.running("late", 2)
    zero.contribute(LANES, chunk=1)
    one.contribute(LANES, chunk=1)
    np.testing.assert_array_equal(zero.result()["lanes"], 2 * LANES)
    zero.membership.leave(1)
    one.result()
    one.contribute(LANES, chunk=1)  # as if that had been lost
    np.testing.assert_array_equal(one.result()["lanes"], 2 * LANES)
    one.membership.check(call=0)
    with pytest.raises(RankLostError, match=r"rank 0 .* left job 'late' after 1 calls; this is call 2"):
        eventually(lambda: one.membership.check(call=1))
    one.close()


def test_a_hello_without_the_ticket_teaches_nothing(plane):
    rank = plane.join("ticket", 0, 1)
    for _ in range(5):
        assert not rank.say_hello(ticket=rank.membership.invitation.ticket ^ 1)
    assert plane.job("ticket").ranks[0].data_address == ""
    eventually(rank.say_hello)
    rank.close()


def test_two_jobs_get_slots_of_their_own(plane):
    jobs = [plane.running(name, 2, slots=8) for name in ("left", "right")]
    for number, ranks in enumerate(jobs):
        for rank in ranks:
            rank.contribute(LANES + number, chunk=1)
    for number, ranks in enumerate(jobs):
        for rank in ranks:
            np.testing.assert_array_equal(rank.result()["lanes"], 2 * (LANES + number))
            rank.close()


def test_differing_world_sizes_are_told_to_all_in_time(plane):
    first = plane.join("mismatch", 0, 2)
    started = time.monotonic()
    with pytest.raises(MismatchError, match=r"rank 0 .* says 2; rank 1 .* says 3"):
        plane.join("mismatch", 1, 3)
    with pytest.raises(MismatchError, match=r"rank 0 .* says 2; rank 1 .* says 3"):
        first.membership.wait_ready(2)
    assert time.monotonic() - started < 2
    first.close()


def test_a_rank_that_never_joins_is_named(plane):
    rank = plane.join("never", 1, 3, timeout=0.5)
    with pytest.raises(RankLostError, match="rank 0, 2 of job 'never' never joined"):
        rank.membership.wait_ready(5)
    rank.close()


def test_a_killed_rank_is_named_and_its_slots_come_back(plane):
    zero = plane.join("killed", 0, 2)
    with joined_process(plane, "killed", 1, 2) as process:
        process.kill()
    started = time.monotonic()
    with pytest.raises(RankLostError, match=rf"rank 1 \(.*, pid {process.pid}\) of job 'killed' died"):
        zero.membership.wait_ready(5)
    assert time.monotonic() - started < 2
    eventually(lambda: plane.job("killed") is None)
    assert plane.status().slots_free == constants.SLOTS
    zero.close()


def test_many_open_streams_do_not_starve_other_calls(plane):
    with grpc.insecure_channel(plane.address) as channel:
        stub = coordinator_pb2_grpc.CoordinatorStub(channel)
        streams = [
            stub.Join(pb.JoinRequest(job=f"many{job}", rank=rank, world_size=64, slots=2))
            for job in range(4)
            for rank in range(63)
        ]
        members = []
        for number, stream in enumerate(streams):
            invitation = next(stream).invitation
            members.append(
                pb.Member(
                    job=f"many{number // 63}",
                    rank=number % 63,
                    generation=invitation.generation,
                    ticket=invitation.ticket,
                )
            )
        for member in members:
            stub.Heartbeat(member, timeout=2)
        assert sum(len(job.ranks) for job in plane.status().jobs) == 252
        for member in members:
            stub.Leave(pb.LeaveRequest(member=member), timeout=2)
        for stream in streams:
            assert [event.ended.cause for event in stream] == [pb.Ended.FINISHED]
    eventually(lambda: not plane.status().jobs)


def test_ranks_that_cannot_be_reached_are_named_and_silent_ones_are_lost():
    with running_plane("--hello-timeout", "1", "--heartbeat-timeout", "2") as plane:
        deaf = plane.join("deaf", 0, 1)
        idle = plane.running("idle", 2)
        with joined_process(plane, "silent", 1, 3) as process:
            silent = plane.join("silent", 0, 3)
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(RankLostError, match=rf"rank 1 .*, pid {process.pid}\) .* fell silent"):
                silent.membership.wait_ready(8)
        with pytest.raises(SwitchError, match=r"no packet of rank 0 .* came through the switch.*MTU"):
            deaf.membership.wait_ready(0)
        for rank in idle:  # heartbeats keep those alive that do nothing
            rank.membership.check()
        for rank in (deaf, *idle, silent):
            rank.close()


def test_a_lost_switch_ends_jobs_and_is_taken_back_when_it_returns():
    with running_plane() as plane:
        rank = plane.running("lost", 1)[0]
        plane.switch.kill()
        with pytest.raises(SwitchError, match=r"the switch at .* is gone"):
            eventually(lambda: rank.membership.check())
        with pytest.raises(SwitchError, match=r"the switch at .* is gone"):
            plane.join("lost", 0, 1)
        rank.close()
        ports = [int(address.rpartition(":")[2]) for address in (plane.p4runtime, plane.data)]
        switch, _, _ = start_switch(*ports)
        with switch:
            eventually(lambda: plane.status().switch_connected)
            again = plane.running("lost", 1)[0]
            again.contribute(LANES, chunk=1)
            np.testing.assert_array_equal(again.result()["lanes"], LANES)
            again.close()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_controller_ends_jobs_and_its_successor_starts_afresh(how):
    with running_plane() as plane:
        rank = plane.running("stopped", 1)[0]
        started = time.monotonic()
        plane.controller.send_signal(how)
        with pytest.raises(ControllerError, match="stopped" if how == signal.SIGTERM else "gone"):
            eventually(lambda: rank.membership.check())
        assert time.monotonic() - started < 2
        assert plane.controller.wait(5) == (0 if how == signal.SIGTERM else -signal.SIGKILL)
        controller, plane.address = start_controller(plane.p4runtime, plane.data)
        with controller:
            rank.contribute(LANES, chunk=1)
            eventually(lambda: plane.status().drops["unadmitted"] == 1)
            rank.close()
            plane.running("stopped", 1)[0].close()


def test_a_newer_controller_takes_the_switch_over():
    with running_plane() as plane:
        rank = plane.running("old", 1)[0]
        newer, _ = start_controller(plane.p4runtime, plane.data)
        with newer:
            assert plane.controller.wait(5) == 1
            assert "error: another controller has taken over the switch" in plane.controller.last_line
            with pytest.raises(SwitchError, match="another controller has taken over"):
                eventually(lambda: rank.membership.check())
        rank.close()


def failing_controller(*arguments: str) -> str:
    """The one line that a controller that cannot start leaves behind."""
    controller = Process("controller", "controller", *arguments)
    assert controller.wait(20) == 1
    assert controller.output.count("\n") == 0
    return controller.output


def test_a_controller_without_a_switch_says_so():
    line = failing_controller("--switch", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--wait", "0.3")
    assert "error: no switch answers at 127.0.0.1:1 (waited 0.3 s): start one with" in line


def test_a_taken_port_is_named(plane: Plane):
    line = failing_controller("--switch", plane.p4runtime, "--listen", plane.address)
    assert f"error: cannot listen at {plane.address}: Address already in use" in line


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--aggregation-address", "10.0.0"], "10.0.0"),
        (["--switch-mac", "02:53"], "'02:53' is not a MAC address"),
        (["--host", "10.0.0.7"], "'10.0.0.7' is not ADDRESS=PORT,MAC"),
        (["--data-address", "here"], "'here' is not HOST:PORT"),
        (["--wait", "-1"], "--wait is a time in seconds above 0"),
    ],
)
def test_arguments_that_are_not_usable_are_named(arguments, text):
    assert text in failing_controller(*arguments)
