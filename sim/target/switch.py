"""The switch: a compiled program with its tables, registers, counters, groups and clone sessions."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence

import numpy as np

from switchreduce.sim.target import cache, ir
from switchreduce.sim.target.codegen import Generated, generate
from switchreduce.sim.target.emit_traffic import (
    BUF,
    GROWTH,
    LONGEST,
    LOOP,
    LOOP_BYTES,
    MEM,
    MOST_PASSES,
    NO_ROOM,
    OUTSIDE,
    PHVS,
    REFUSED,
    RUN_PARAMETERS,
    STATE_WORDS,
)
from switchreduce.sim.target.frames import Frames, address
from switchreduce.sim.target.layout import GROUPS, REPLICAS, SESSIONS, words
from switchreduce.sim.target.tables import Memory, TableState

CPU_PORT = 510
DROP_PORT = 511
_MAX_PORT = 511  # v1model's ports have 9 bits
_LONGEST_FRAME = 1 << 16  # bytes; more where a longer one comes
_RUN = ctypes.CFUNCTYPE(*[ctypes.c_int64] * (1 + len(RUN_PARAMETERS)))


class RegisterState:
    """A register array; for tests, since P4Runtime does not reach registers on BMv2."""

    def __init__(self, register: ir.Register, place: tuple[int, int], mem: Memory, lock: threading.RLock):
        self.size, self.width = register.size, register.width
        self._name, self._place, self._mem, self._lock = register.name, place, mem, lock

    def read(self, index: int) -> int:
        at, n = self._at(index), words(self.width)
        with self._lock:
            value = 0
            for word in self._mem[at : at + n]:
                value = value << 64 | int(word)
            return value

    def write(self, index: int, value: int) -> None:
        at, n = self._at(index), words(self.width)
        if not 0 <= value < 1 << self.width:
            raise ValueError(f"the value for register {self._name} does not fit {self.width} bits")
        with self._lock:
            for k in range(n):
                self._mem[at + k] = (value >> (64 * (n - 1 - k))) & ((1 << 64) - 1)

    def _at(self, index: int) -> int:
        if not 0 <= index < self.size:
            raise ValueError(f"register {self._name} has the cells 0..{self.size - 1}, not {index}")
        return self._place[0] + index * self._place[1]


class CounterState:
    """A counter array of packets and bytes."""

    def __init__(self, counter: ir.CounterArray, at: int, mem: Memory, lock: threading.RLock):
        self.size = counter.size
        self._name, self._at, self._mem, self._lock = counter.name, at, mem, lock

    def read(self, index: int) -> tuple[int, int]:
        at = self._cell(index)
        with self._lock:
            return int(self._mem[at]), int(self._mem[at + 1])

    def write(self, index: int, packets: int, byte_count: int) -> None:
        at = self._cell(index)
        with self._lock:
            self._mem[at : at + 2] = packets, byte_count

    def _cell(self, index: int) -> int:
        if not 0 <= index < self.size:
            raise ValueError(f"counter {self._name} has the cells 0..{self.size - 1}, not {index}")
        return self._at + 2 * index


Replicas = list[tuple[int, int]]


class Switch:
    """Runs one program. Packets may be processed in one thread and everything else changed in others.

    Constructing it compiles the program, or loads what an earlier run compiled; `progress` receives a line
    when that takes time. Raises UnsupportedProgramError for a program whose expressions need what the code
    generator lacks.
    """

    def __init__(
        self,
        program: ir.Program,
        cpu_port: int = CPU_PORT,
        drop_port: int = DROP_PORT,
        progress: Callable[[str], None] | None = None,
    ):
        self.program, self.cpu_port, self.drop_port = program, cpu_port, drop_port
        self._generated: Generated = generate(program)
        self._code = cache.compiled(self._generated.source, program.digest, progress)
        self._run = _RUN(self._code.address("run"))
        layout = self._generated.layout
        self._lock = threading.RLock()
        self._mem: Memory = _aligned(layout.mem_words)
        self._mem[layout.drop_port] = drop_port
        rows = 2 + (MOST_PASSES if self._generated.again else 0)
        self._phvs = _aligned(rows * self._generated.phv_words)
        self._state = np.zeros(STATE_WORDS, dtype=np.int64)
        self._state_place = address(self._state)
        self._state[[MEM, PHVS]] = address(self._mem), address(self._phvs)
        self._state[GROWTH] = self._generated.header_bytes
        self._make_room(_LONGEST_FRAME)
        self._groups: dict[int, Replicas] = {}
        self._sessions: dict[int, tuple[Replicas, int]] = {}
        self._fan_out = 1
        self.tables = {t.name: TableState(t, layout.tables[t], self._mem, self._lock) for t in program.tables}
        self.registers = {
            r.name: RegisterState(r, layout.registers[r], self._mem, self._lock) for r in program.registers
        }
        self.counters = {
            c.name: CounterState(c, layout.counters[c], self._mem, self._lock) for c in program.counters
        }
        self._one_in, self._one_out = Frames.allocate(1, 2048), Frames.allocate(64, 1 << 16)

    @property
    def refused_passes(self) -> int:
        """Packets dropped because clone, resubmit or recirculate took one frame round too often."""
        return int(self._state[REFUSED])

    # ---------------------------------------------------------------------------------- packets

    def process(self, port: int, frame: bytes, now_us: int = 0) -> list[tuple[int, bytes]]:
        """The frames that leave, in order, each with its egress port."""
        with self._lock:
            most = self._most_frames()
            need = most * (len(frame) + self._generated.header_bytes)
            if self._one_in.data.size < len(frame):
                self._one_in = Frames.allocate(1, 2 * len(frame))
            if self._one_out.data.size < need or self._one_out.offset.size < most:
                self._one_out = Frames.allocate(2 * most, 2 * need)
            self._one_in.clear()
            self._one_out.clear()
            self._one_in.append(port, frame)
            self.process_batch(self._one_in, self._one_out, now_us)
            out = self._one_out
            return [(int(out.port[k]), out.frame(k)) for k in range(out.count)]

    def process_batch(self, incoming: Frames, outgoing: Frames, now_us: int = 0) -> int:
        """Processes incoming frames from `incoming.cursor` on and appends what leaves to `outgoing`.

        Stops early when `outgoing` might not hold all that the next frame can become. Returns the number of
        frames consumed. Raises ValueError when an empty `outgoing` is too small for a single frame.
        """
        with self._lock:
            for frames in (incoming, outgoing):
                if not 0 <= frames.cursor <= frames.count <= frames.offset.size:
                    raise ValueError("a batch's cursor or count is beyond its frames")
            most, state = self._most_frames(), self._state
            done = NO_ROOM
            while done == NO_ROOM:
                state[:2] = outgoing.count, outgoing.used
                done = self._run(
                    self._state_place, incoming.place, outgoing.place,
                    incoming.cursor, incoming.count, most, now_us,
                )  # fmt: skip
                if done == NO_ROOM:
                    self._make_room(2 * int(incoming.length[: incoming.count].max()))
            if done == OUTSIDE:
                raise ValueError("an incoming frame lies outside the batch's data")
            if not done and incoming.cursor < incoming.count and outgoing.count == 0:
                raise ValueError(
                    f"the outgoing batch cannot hold what a frame may become ({most} frames): allocate more"
                )
            incoming.cursor += done
            outgoing.count, outgoing.used = state[:2].tolist()
            return done

    def _most_frames(self) -> int:
        return self._fan_out * (1 + MOST_PASSES if self._generated.again else 1)

    def _make_room(self, longest: int) -> None:
        """Lets incoming frames be as long as `longest` bytes; each pass may add all headers to one."""
        passes = 1 + MOST_PASSES if self._generated.again else 0
        grown = longest + passes * self._generated.header_bytes
        self._buffer = np.zeros(self._generated.buffer_bytes + grown, dtype=np.uint8)
        self._loop = np.zeros(passes * grown, dtype=np.uint8)
        self._state[[BUF, LOOP]] = address(self._buffer), address(self._loop)
        self._state[[LOOP_BYTES, LONGEST]] = self._loop.size, longest

    # ---------------------------------------------------------------------------------- groups and sessions

    def set_multicast_group(self, group_id: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Replicas are (port, instance); the instance is what egress sees as egress_rid."""
        if not 0 < group_id < GROUPS:
            raise ValueError(f"a multicast group id is in 1..{GROUPS - 1}, not {group_id}")
        with self._lock:
            self._groups = self._checked(self._groups, group_id, _replicas(replicas), self._sessions)
            self._write_replicas()

    def delete_multicast_group(self, group_id: int) -> None:
        """Raises KeyError for a group that is not there."""
        with self._lock:
            del self._groups[group_id]
            self._write_replicas()

    def multicast_groups(self) -> dict[int, Replicas]:
        with self._lock:
            return {k: list(v) for k, v in self._groups.items()}

    def set_clone_session(
        self, session_id: int, replicas: Sequence[tuple[int, int]], truncate_bytes: int = 0
    ) -> None:
        """`truncate_bytes` cuts the clones to that length; 0 leaves them whole."""
        if not 0 <= session_id < SESSIONS:
            raise ValueError(f"a clone session id is in 0..{SESSIONS - 1}, not {session_id}")
        if not 0 <= truncate_bytes < 1 << 31:
            raise ValueError(f"truncate_bytes is in 0..2^31-1, not {truncate_bytes}")
        with self._lock:
            new = {**self._sessions, session_id: (_replicas(replicas), truncate_bytes)}
            _check_space([*self._groups.values(), *(r for r, _ in new.values())])
            self._sessions = new
            self._write_replicas()

    def delete_clone_session(self, session_id: int) -> None:
        """Raises KeyError for a session that is not there."""
        with self._lock:
            del self._sessions[session_id]
            self._write_replicas()

    def clone_sessions(self) -> dict[int, tuple[Replicas, int]]:
        """Session id -> (replicas, truncate_bytes)."""
        with self._lock:
            return {k: (list(r), t) for k, (r, t) in self._sessions.items()}

    @staticmethod
    def _checked(
        groups: dict[int, Replicas],
        group_id: int,
        replicas: Replicas,
        sessions: dict[int, tuple[Replicas, int]],
    ) -> dict[int, Replicas]:
        new = {**groups, group_id: replicas}
        _check_space([*new.values(), *(r for r, _ in sessions.values())])
        return new

    def _write_replicas(self) -> None:
        """Groups: first replica << 32 | replicas. Sessions: first << 44 | replicas << 32 | limit in bytes."""
        layout, mem, at = self._generated.layout, self._mem, 0
        mem[layout.groups : layout.groups + GROUPS] = 0
        mem[layout.sessions : layout.sessions + SESSIONS] = 0
        for group_id, replicas in self._groups.items():
            mem[layout.groups + group_id] = at << 32 | len(replicas)
            at = self._write_each(replicas, at)
        for session_id, (replicas, limit) in self._sessions.items():
            mem[layout.sessions + session_id] = at << 44 | len(replicas) << 32 | limit
            at = self._write_each(replicas, at)
        sizes = [len(r) for r in self._groups.values()] + [len(r) for r, _ in self._sessions.values()]
        self._fan_out = max([1, *sizes])

    def _write_each(self, replicas: Replicas, at: int) -> int:
        for port, instance in replicas:
            self._mem[self._generated.layout.replicas + at] = port << 32 | instance
            at += 1
        return at


def _aligned(n: int) -> Memory:
    """n zero words from a cache line's start on."""
    space = np.zeros(n + 8, dtype=np.uint64)
    skip = -address(space) % 64 // 8
    return space[skip : skip + n]


def _replicas(replicas: Sequence[tuple[int, int]]) -> Replicas:
    if len(replicas) > 4095:
        raise ValueError(f"a group has at most 4095 replicas, not {len(replicas)}")
    for port, instance in replicas:
        if not 0 <= port <= _MAX_PORT or not 0 <= instance < 1 << 16:
            raise ValueError(
                f"a replica is (port 0..{_MAX_PORT}, instance 0..65535), not ({port}, {instance})"
            )
    return [(int(p), int(i)) for p, i in replicas]


def _check_space(lists: list[Replicas]) -> None:
    if sum(map(len, lists)) > REPLICAS:
        raise ValueError(f"all groups and sessions together have at most {REPLICAS} replicas")
