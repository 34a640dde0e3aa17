"""A rank's membership against a real controller and switch."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from switchreduce.errors import ControllerError, RankLostError
from switchreduce.worker.membership import Membership
from tests.cluster import running_cluster


@pytest.fixture(scope="module")
def addresses():
    """(controller, switch's P4Runtime)"""
    with running_cluster() as cluster:
        yield cluster.controller, cluster.p4runtime


def join(addresses, job, rank, world_size, **more):
    return Membership.join(addresses[0], job=job, rank=rank, world_size=world_size, **more)


def test_an_invitation_says_where_to_send_hellos(addresses):
    with join(addresses, "invited", 0, 2) as zero, join(addresses, "invited", 1, 2) as one:
        invitations = [zero.invitation, one.invitation]
        assert len({i.generation for i in invitations}) == 1
        assert len({i.ticket for i in invitations}) == 2
        assert {i.lanes for i in invitations} == {256}
        assert zero.wait_ready(0) is None


def test_news_make_the_descriptor_readable_until_they_are_checked(addresses):
    zero = join(addresses, "news", 0, 2)
    one = join(addresses, "news", 1, 2)
    zero.check()
    assert not select.select([zero], [], [], 0.05)[0]
    one._channel.close()  # as if the process had died
    assert select.select([zero], [], [], 2)[0]
    with pytest.raises(RankLostError, match=r"rank 1 .* died"):
        zero.check()
    assert not select.select([zero], [], [], 0)[0]
    with pytest.raises(RankLostError, match=r"rank 1 .* died"):
        zero.check()
    zero.close()


def test_ranks_hear_what_the_others_say_of_a_call(addresses):
    members = [join(addresses, "explain", rank, 3) for rank in range(3)]
    with ThreadPoolExecutor(3) as pool:
        said = list(pool.map(lambda m: m.explain(0, f"shape ({m.invitation.ticket},)"), members))
    assert said == [{rank: f"shape ({m.invitation.ticket},)" for rank, m in enumerate(members)}] * 3
    started = time.monotonic()
    assert members[1].explain(1, "alone") == {1: "alone"}
    assert 1 < time.monotonic() - started < 4
    for member in members:
        member.close()


def test_explaining_an_ended_job_says_why_it_ended(addresses):
    zero, one = join(addresses, "ended", 0, 2), join(addresses, "ended", 1, 2)
    one._channel.close()
    time.sleep(0.3)
    with pytest.raises(RankLostError, match=r"rank 1 .* died"):
        zero.explain(0, "text")
    zero.close()
    one.close()


def test_a_rank_number_can_be_taken_once(addresses):
    refused = pytest.raises(ControllerError, match="rank 0 of job 'taken' has joined already")
    with join(addresses, "taken", 0, 2), refused:
        join(addresses, "taken", 0, 2)


def test_no_controller_is_reported_after_the_wait():
    with socket.socket() as bound:  # taken, so nobody answers there
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(ControllerError, match=rf"no controller answers at {address} \(waited 0.3 s\)"):
            Membership.join(address, job="none", rank=0, world_size=1, timeout=0.3)


def test_a_server_that_is_no_controller_is_reported(addresses):
    with pytest.raises(ControllerError, match=r"is not a switchreduce controller"):
        Membership.join(addresses[1], job="wrong", rank=0, world_size=1)


def test_closing_twice_and_leaving_an_ended_job_are_harmless(addresses):
    member = join(addresses, "closed", 0, 1)
    member.leave(0)
    member.close()
    with pytest.raises(Exception, match="left its job"):
        member.check()
    assert join(addresses, "closed", 0, 1).close() is None


def test_a_process_that_ends_without_leaving_does_not_hang(addresses):
    code = (
        "from switchreduce.worker.membership import Membership;"
        f"m = Membership.join({addresses[0]!r}, job='leaves', rank=1, world_size=2)"
    )
    with join(addresses, "leaves", 0, 2) as zero:
        done = subprocess.run([sys.executable, "-c", code], timeout=20, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        with pytest.raises(RankLostError, match=r"rank 1 .* died"):
            zero.wait_ready(2)


def test_no_thread_outlives_a_membership(addresses):
    def ours():
        return [thread for thread in threading.enumerate() if thread.name.startswith("switchreduce-")]

    before = len(ours())
    for _ in range(3):
        join(addresses, "threads", 0, 1).close()
    deadline = time.monotonic() + 3
    while len(ours()) > before:
        assert time.monotonic() < deadline
        time.sleep(0.02)
