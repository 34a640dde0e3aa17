"""The admission state machine: its lifecycle by examples, its invariants under any sequence of events."""

import itertools
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from switchreduce.controller import coordinator_pb2 as pb
from switchreduce.controller.entities import Action, MulticastGroup
from switchreduce.controller.entries import Location
from switchreduce.controller.jobs import Jobs, Rules
from switchreduce.controller.model import Answer, Send, State, Step, Timing, Write
from switchreduce.controller.slots import Capacity, Leases

TIMING = Timing(join_timeout=30, hello_timeout=10, heartbeat_timeout=5, explain_timeout=1.5)
CAPACITY = Capacity(slots=40, jobs=4, endpoints=12, slots_least=2)
Cause = pb.Ended


class Bench:
    """A `Jobs` with the outside that it needs: a switch's entries, ranks' ears and a clock."""

    def __init__(self, seed=1):
        self.leases = Leases(CAPACITY)
        rules = Rules(max_ranks=8, lanes=256, data_address=("10.0.0.1", 21330), timing=TIMING)
        self.jobs = Jobs(rules, self.leases, random.Random(seed).getrandbits)
        self.now = 100.0
        self.entries = {}  # what the switch holds, by key
        self.writes = []  # asked for and not carried out
        self.heard = {}  # events by member
        self.answers = {}  # by token
        self.jobs.switch_connected()

    def perform(self):
        for effect in self.jobs.take_effects():
            if isinstance(effect, Send):
                assert not any(e.HasField("ended") for e in self.heard.setdefault(effect.member, []))
                self.heard[effect.member].append(effect.event)
            elif isinstance(effect, Write):
                self.writes.append(effect)
            elif isinstance(effect, Answer):
                assert effect.token not in self.answers
                self.answers[effect.token] = effect.texts

    def carry_out(self, fail_after=None):
        """The switch carries out the oldest write; it refuses all updates after the first `fail_after`."""
        write = self.writes.pop(0)
        tolerant = write.tolerant
        updates = [update for stage in write.stages for update in stage]
        for number, update in enumerate(updates):
            key = update.entity.key()
            if number == fail_after:
                self.jobs.write_failed(write, "table full")
                break
            if update.action is Action.INSERT:
                assert key not in self.entries
                self.entries[key] = update.entity
            elif not (tolerant and key not in self.entries):
                del self.entries[key]
        else:
            self.jobs.written(write, self.now)
        self.perform()

    def settle(self):
        while self.writes:
            self.carry_out()

    def join(self, job, rank, world_size, slots=8, **more):
        who = {"host": f"node{rank}", "pid": rank}
        request = pb.JoinRequest(job=job, rank=rank, world_size=world_size, slots=slots, **who, **more)
        member = self.jobs.join(request, self.now)
        self.perform()
        return member

    def job_of(self, member):
        return next((job for job in self.jobs if member in job.members.values()), None)

    def who(self, member):
        invitation = self.heard[member][0].invitation
        job = self.job_of(member)
        name = job.name if job else "over"
        return pb.Member(
            job=name, rank=member.rank, generation=invitation.generation, ticket=invitation.ticket
        )

    def hello(self, member, ticket=None):
        job = self.job_of(member)
        seen = self.jobs.hello_seen(
            job.lease.job_id,
            job.generation,
            member.rank,
            member.ticket if ticket is None else ticket,
            Location(port=member.rank, mac=member.rank, address=10, udp_port=1000 + member.rank),
        )
        self.perform()
        return seen

    def wait(self, seconds, beating=()):
        for _ in range(round(seconds * 4)):
            self.now += 0.25
            for member in beating:
                self.jobs.heartbeat(self.who(member), self.now)
            self.jobs.tick(self.now)
            self.perform()

    def running(self, job, world_size):
        members = [self.join(job, rank, world_size) for rank in range(world_size)]
        self.settle()
        for member in members:
            assert self.hello(member)
        self.settle()
        return members

    def last(self, member):
        event = self.heard[member][-1]
        return getattr(event, event.WhichOneof("event"))

    def nothing_held(self):
        self.settle()
        return not self.entries and not self.leases.held and not list(self.jobs)


@pytest.fixture
def bench():
    return Bench()


def test_a_job_runs_when_every_rank_has_shown_where_it_is(bench):
    members = [bench.join("train", rank, 3, slots=16) for rank in (2, 0, 1)]
    assert not bench.heard  # not before the switch lets hellos through
    bench.settle()
    invitations = [bench.last(member) for member in members]
    assert len({i.generation for i in invitations}) == 1
    assert len({i.ticket for i in invitations}) == 3
    assert {(i.data_host, i.data_port, i.lanes, i.job_id) for i in invitations} == {
        ("10.0.0.1", 21330, 256, 1)
    }
    assert bench.hello(members[0])
    assert bench.hello(members[1])
    bench.settle()
    assert [len(bench.heard[member]) for member in members] == [1, 1, 1]
    assert bench.hello(members[2])
    bench.settle()
    assert [bench.last(member).slots for member in members] == [16, 16, 16]
    names = sorted(key[0] for key in bench.entries)
    assert names == ["SwitchEgress.endpoints"] * 3 + ["SwitchIngress.admission.members"] * 3 + [
        "multicast group"
    ]


def test_entries_come_and_go_in_the_order_that_loses_and_leaks_nothing(bench):
    members = bench.running("train", 2)
    for member in members:
        bench.jobs.leave(bench.who(member), 0, bench.now)
    bench.perform()
    (closing,) = bench.writes
    kinds = [
        {"group" if isinstance(u.entity, MulticastGroup) else u.entity.table for u in stage}
        for stage in closing.stages
    ]
    assert kinds == [{"SwitchIngress.admission.members"}, {"group"}, {"SwitchEgress.endpoints"}]
    lease = closing.job.lease
    assert lease in bench.leases.held  # until the switch has removed them
    bench.settle()
    assert bench.nothing_held()


def test_admission_entries_say_what_each_rank_may_do(bench):
    bench.running("other", 1)
    bench.running("train", 3)
    job = next(job for job in bench.jobs if job.name == "train")
    admitted = [e for e in bench.entries.values() if getattr(e, "match", {}).get("job") == job.lease.job_id]
    assert sorted(e.params["rank_bit"] for e in admitted) == [1, 2, 4]
    assert {e.params["full_mask"] for e in admitted} == {7}
    group = bench.entries["multicast group", job.lease.group]
    for entry in admitted:
        rank = entry.match["rank"]
        endpoint = bench.entries["SwitchEgress.endpoints", (("endpoint", entry.params["endpoint"]),)]
        assert endpoint.params["rank"] == rank
        assert endpoint.params["udp_port"] == entry.match["source_port"] == 1000 + rank
        assert {r.instance: r.port for r in group.replicas}[entry.params["endpoint"]] == entry.params["port"]


def test_differing_world_sizes_end_the_job_for_all(bench):
    first = bench.join("train", 0, 4)
    bench.settle()
    second = bench.join("train", 1, 5)
    for member in (first, second):
        ended = bench.last(member)
        assert ended.cause == Cause.MISMATCH
        assert "rank 0 (node0, pid 0) says 4; rank 1 (node1, pid 1) says 5" in ended.message
    assert bench.nothing_held()


@pytest.mark.parametrize(
    ("rank", "world_size", "text"),
    [
        (1, 2, "has joined already, from node1, pid 1"),
        (2, 2, "out of range"),
        (0, 9, "1 to 8"),
        (0, 0, "1 to 8"),
    ],
)
def test_a_bad_joiner_alone_is_refused(bench, rank, world_size, text):
    first = bench.join("train", 1, 2)
    refused = bench.join("train", rank, world_size)
    ended = bench.last(refused)
    assert (ended.cause, list(ended.ranks)) == (Cause.REFUSED, [rank])
    assert text in ended.message
    bench.join("train", 0, 2)
    bench.settle()
    assert bench.last(first).ticket == first.ticket


def test_a_running_job_takes_no_one_in(bench):
    members = bench.running("train", 2)
    late = bench.join("train", 1, 2)
    assert bench.last(late).cause == Cause.REFUSED
    assert "is running with rank 0 (node0, pid 0), rank 1" in bench.last(late).message
    assert bench.last(members[0]).slots


def test_a_rank_that_left_may_come_back_for_the_next_incarnation(bench):
    zero, one = bench.running("train", 2)
    old = bench.job_of(zero)
    bench.jobs.leave(bench.who(zero), 3, bench.now)
    again = bench.join("train", 0, 2)
    bench.settle()
    departed = bench.last(one)
    assert (departed.rank, departed.calls) == (0, 3)
    new = bench.job_of(again)
    assert new is not old
    assert new.generation != old.generation
    assert not set(new.lease.slots) & set(old.lease.slots)
    bench.jobs.leave(bench.who(one), 3, bench.now)
    bench.perform()
    one_again = bench.join("train", 1, 2)
    bench.settle()
    assert bench.job_of(one_again) is new
    assert bench.last(one).cause == Cause.FINISHED
    assert list(bench.jobs) == [new]


def test_leaving_while_the_job_forms_frees_the_place(bench):
    zero, one = bench.join("train", 0, 2), bench.join("train", 1, 2)
    bench.settle()
    bench.hello(one)
    assert bench.jobs.leave(bench.who(one), 0, bench.now)
    bench.perform()
    assert bench.last(one).cause == Cause.FINISHED
    again = bench.join("train", 1, 2)
    bench.hello(zero)
    bench.settle()
    assert bench.job_of(zero).state is State.FORMING
    bench.hello(again)
    bench.settle()
    assert bench.job_of(zero).state is State.RUNNING


def test_ranks_that_never_join_are_named(bench):
    here = [bench.join("train", rank, 4, join_timeout=wish) for rank, wish in ((1, 20), (3, 3))]
    bench.settle()
    bench.wait(2.75, beating=here)
    assert bench.last(here[0]).ticket
    bench.wait(0.5, beating=here)
    for member in here:
        ended = bench.last(member)
        assert (ended.cause, list(ended.ranks)) == (Cause.NEVER_JOINED, [0, 2])
        assert "rank 0, 2 of job 'train' never joined" in ended.message
    assert bench.nothing_held()


def test_ranks_whose_hello_does_not_come_through_are_named(bench):
    members = [bench.join("train", rank, 3) for rank in range(3)]
    bench.settle()
    bench.hello(members[1])
    bench.wait(TIMING.hello_timeout + 0.5, beating=members)
    ended = bench.last(members[1])
    assert (ended.cause, list(ended.ranks)) == (Cause.UNREACHABLE, [0, 2])
    assert "10.0.0.1:21330" in ended.message
    assert "MTU" in ended.message
    assert bench.nothing_held()


def test_only_the_right_ticket_teaches_where_a_rank_is(bench):
    member = bench.join("train", 0, 1)
    bench.settle()
    assert not bench.hello(member, ticket=member.ticket ^ 1)
    assert not bench.jobs.hello_seen(1, 12345, 0, member.ticket, Location(1, 1, 1, 1))
    assert member.location is None
    assert bench.hello(member)


@pytest.mark.parametrize("forming", [True, False])
def test_a_broken_stream_loses_the_rank(bench, forming):
    if forming:
        members = [bench.join("train", rank, 3) for rank in range(2)]
        bench.settle()
    else:
        members = bench.running("train", 3)
    bench.jobs.stream_broken(members[1])
    bench.perform()
    assert not any(e.HasField("ended") for e in bench.heard[members[1]])
    for member in members[:1] + members[2:]:
        ended = bench.last(member)
        assert (ended.cause, list(ended.ranks)) == (Cause.RANK_LOST, [1])
        assert "rank 1 (node1, pid 1) of job 'train' died" in ended.message
    assert bench.nothing_held()


def test_silence_loses_the_rank(bench):
    members = bench.running("train", 2)
    bench.wait(TIMING.heartbeat_timeout + 0.5, beating=members[:1])
    for member in members:
        assert "rank 1 (node1, pid 1) of job 'train' fell silent" in bench.last(member).message
    assert bench.nothing_held()


def test_time_in_which_the_controller_did_not_run_is_nobodys_silence(bench):
    members = bench.running("train", 2)
    bench.wait(1, beating=members)
    bench.now += 60
    bench.jobs.tick(bench.now)
    bench.perform()
    assert bench.job_of(members[0]).state is State.RUNNING
    bench.wait(TIMING.heartbeat_timeout + 0.5)
    assert bench.nothing_held()


def test_a_job_that_leaves_in_good_order_disturbs_nobody(bench):
    zero, one = bench.running("train", 2)
    before = dict(bench.entries)
    bench.jobs.leave(bench.who(zero), 7, bench.now)
    bench.perform()
    bench.jobs.stream_broken(zero)
    bench.perform()
    assert bench.entries == before
    assert not bench.writes
    assert bench.last(one).calls == 7
    assert "rank 0 (node0, pid 0) left job 'train' after 7 calls" in bench.last(one).message
    bench.wait(TIMING.heartbeat_timeout + 1, beating=[one])
    assert bench.job_of(one).state is State.RUNNING


def test_no_room_is_refused_with_who_holds_it(bench):
    bench.join("big", 0, 1, slots=40)
    refused = bench.join("late", 0, 1)
    assert bench.last(refused).cause == Cause.REFUSED
    assert "'big' holds 40" in bench.last(refused).message
    assert [job.name for job in bench.jobs] == ["big"]


def test_fewer_slots_than_wanted_are_granted(bench):
    bench.join("big", 0, 1, slots=35)
    member = bench.join("small", 0, 1, slots=16)
    bench.settle()
    bench.hello(member)
    bench.settle()
    assert bench.last(member).slots == 5


def test_a_lost_switch_ends_every_job_and_later_joins_hear_why(bench):
    running, forming = bench.running("train", 1)[0], bench.join("other", 0, 2)
    bench.jobs.switch_lost("the switch is gone")
    bench.perform()
    bench.entries.clear()
    bench.writes.clear()
    late = bench.join("late", 0, 1)
    for member in (running, forming, late):
        assert bench.last(member).cause == Cause.SWITCH_LOST
        assert bench.last(member).message == "the switch is gone"
    assert not bench.leases.held
    bench.jobs.switch_connected()
    assert bench.running("late", 1)


def test_shut_down_tells_everyone_and_clears_the_switch(bench):
    members = [*bench.running("train", 2), bench.join("other", 0, 2)]
    bench.jobs.shut_down("the controller was stopped")
    bench.perform()
    assert {bench.last(member).cause for member in members} == {Cause.SHUTDOWN}
    assert bench.nothing_held()


@pytest.mark.parametrize("fail_after", range(6))
def test_a_refused_write_ends_the_job_and_leaves_nothing_behind(bench, fail_after):
    members = [bench.join("train", rank, 2) for rank in range(2)]
    bench.settle()
    for member in members:
        bench.hello(member)
    bench.carry_out(fail_after)
    for member in members:
        assert bench.last(member).cause == Cause.SWITCH_LOST
        assert "table full" in bench.last(member).message
    assert bench.nothing_held()


def test_a_write_that_fails_after_its_job_ended_leaves_nothing_behind(bench):
    members = [bench.join("train", rank, 2) for rank in range(2)]
    bench.settle()
    for member in members:
        bench.hello(member)
    bench.jobs.stream_broken(members[0])
    bench.perform()
    assert [write.step for write in bench.writes] == [Step.ADMIT, Step.CLOSE]
    bench.carry_out(fail_after=2)
    assert bench.nothing_held()


def test_reports_are_answered_when_all_have_spoken(bench):
    zero, one = bench.running("train", 2)
    assert bench.jobs.report(bench.who(zero), 4, "shape (3,)", "a", bench.now)
    bench.perform()
    assert not bench.answers
    bench.jobs.report(bench.who(one), 4, "shape (4,)", "b", bench.now)
    bench.perform()
    assert bench.answers == {token: {0: "shape (3,)", 1: "shape (4,)"} for token in "ab"}


def test_reports_are_answered_in_time_without_the_silent(bench):
    zero, one = bench.running("train", 2)
    bench.jobs.report(bench.who(zero), 4, "here", "a", bench.now)
    bench.wait(2, beating=[zero, one])
    assert bench.answers == {"a": {0: "here"}}
    bench.jobs.report(bench.who(one), 4, "late", "b", bench.now)
    bench.perform()
    assert bench.answers["b"] == {0: "here", 1: "late"}


def test_reports_do_not_wait_for_those_who_left_or_for_an_ended_job(bench):
    zero, one, two = bench.running("train", 3)
    bench.jobs.report(bench.who(zero), 1, "here", "a", bench.now)
    bench.jobs.report(bench.who(one), 1, "too", "b", bench.now)
    bench.jobs.leave(bench.who(two), 1, bench.now)
    bench.perform()
    assert bench.answers == {token: {0: "here", 1: "too"} for token in "ab"}
    bench.jobs.report(bench.who(zero), 2, "x" * 10_000, "c", bench.now)
    bench.jobs.stream_broken(one)
    bench.perform()
    assert len(bench.answers["c"][0]) == 4000
    assert not bench.jobs.report(pb.Member(job="train", rank=0), 2, "", "d", bench.now)


class AnyOrder(RuleBasedStateMachine):
    """Ranks, the switch and the clock do anything in any order."""

    def __init__(self):
        super().__init__()
        self.bench = Bench(seed=7)
        self.members = []
        self.streams = set()
        self.tokens = itertools.count()

    def any_member(self, data, invited=True):
        members = [m for m in self.members if m.invited or not invited]
        return data.draw(st.sampled_from(members)) if members else None

    @rule(
        job=st.sampled_from("ab"),
        rank=st.integers(0, 3),
        world_size=st.sampled_from([1, 2, 2, 2, 3, 3]),
        slots=st.sampled_from([0, 1, 3, 20]),
    )
    def join(self, job, rank, world_size, slots):
        member = self.bench.join(job, rank, world_size, slots=slots, join_timeout=8)
        self.members.append(member)
        self.streams.add(member)

    @rule(job=st.sampled_from("ab"), world_size=st.integers(1, 3))
    def join_all(self, job, world_size):
        for rank in range(world_size):
            self.join(job, rank, world_size, 4)

    @rule(data=st.data(), wrong=st.booleans())
    def hello(self, data, wrong):
        member = self.any_member(data)
        if member and self.bench.job_of(member):
            seen = self.bench.hello(member, ticket=1 if wrong else None)
            assert not (seen and wrong)

    @rule()
    def all_hellos(self):
        for member in self.members:
            if member.invited and self.bench.job_of(member):
                self.bench.hello(member)

    @rule(data=st.data())
    def leave(self, data):
        if member := self.any_member(data):
            left = self.bench.jobs.leave(self.bench.who(member), 2, self.bench.now)
            assert not (left and self.bench.job_of(member) is None and not member.ended)
            self.bench.perform()

    @rule(data=st.data())
    def break_stream(self, data):
        member = self.any_member(data, invited=False)
        if member in self.streams:
            self.streams.discard(member)
            self.bench.jobs.stream_broken(member)
            self.bench.perform()

    @rule(data=st.data())
    def report(self, data):
        if member := self.any_member(data):
            self.bench.jobs.report(self.bench.who(member), 1, "text", next(self.tokens), self.bench.now)
            self.bench.perform()

    @rule(seconds=st.sampled_from([0.25, 1, 6, 12]), beating=st.booleans())
    def wait(self, seconds, beating):
        invited = [m for m in self.members if m.invited and m in self.streams]
        self.bench.wait(seconds, beating=invited if beating else ())

    @precondition(lambda self: self.bench.writes)
    @rule()
    def carry_out(self):
        self.bench.carry_out()

    @rule()
    def settle(self):
        self.bench.settle()

    @precondition(lambda self: self.bench.writes and self.bench.writes[0].step is not Step.CLOSE)
    @rule(fail_after=st.integers(0, 3))
    def refuse_write(self, fail_after):
        self.bench.carry_out(fail_after)

    @rule()
    def lose_switch(self):
        self.bench.jobs.switch_lost("the switch is gone")
        self.bench.perform()
        self.bench.entries.clear()
        self.bench.writes.clear()
        assert not self.bench.leases.held
        self.bench.jobs.switch_connected()

    @invariant()
    def jobs_share_nothing(self):
        jobs = list(self.bench.jobs)
        leases = [job.lease for job in jobs]
        assert set(leases) == set(self.bench.leases.held)
        for ids in (
            [job.generation for job in jobs],
            [lease.job_id for lease in leases],
            [lease.group for lease in leases],
            [endpoint for lease in leases for endpoint in lease.endpoints],
            [slot for lease in leases for slot in lease.slots],
        ):
            assert len(ids) == len(set(ids))
        assert 0 not in [job.generation for job in jobs]

    @invariant()
    def a_name_has_one_open_incarnation(self):
        names = [job.name for job in self.bench.jobs if job.state is State.FORMING]
        assert len(names) == len(set(names))

    @invariant()
    def running_jobs_have_all_their_entries(self):
        for job in self.bench.jobs:
            admitted = [e for k, e in self.bench.entries.items() if k[0] == "SwitchIngress.admission.members"]
            mine = [e for e in admitted if e.match["generation"] == job.generation]
            if job.state is State.RUNNING:
                assert len(mine) == job.world_size
            if job.state is State.FORMING:
                assert not mine

    @invariant()
    def events_come_in_order(self):
        for member, events in self.bench.heard.items():
            kinds = [event.WhichOneof("event") for event in events]
            assert kinds.count("ended") <= 1
            if "ready" in kinds:
                assert kinds[0] == "invitation"
                assert kinds.index("ready") > 0
            assert ("ended" in kinds) == (
                member.ended and member in self.streams
            ) or member not in self.streams

    def teardown(self):
        self.bench.jobs.shut_down("over")
        self.bench.perform()
        assert self.bench.nothing_held()
        assert self.bench.leases.slots.free == CAPACITY.slots
        for member in self.streams:
            assert [e.HasField("ended") for e in self.bench.heard[member]].count(True) == 1


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase
