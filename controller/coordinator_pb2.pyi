from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Departed(_message.Message):
    __slots__ = ["calls", "message", "rank"]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    calls: int
    message: str
    rank: int
    def __init__(self, rank: _Optional[int] = ..., calls: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ["cause", "message", "ranks"]
    class Cause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    FINISHED: Ended.Cause
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MISMATCH: Ended.Cause
    NEVER_JOINED: Ended.Cause
    RANKS_FIELD_NUMBER: _ClassVar[int]
    RANK_LOST: Ended.Cause
    REFUSED: Ended.Cause
    SHUTDOWN: Ended.Cause
    SWITCH_LOST: Ended.Cause
    UNREACHABLE: Ended.Cause
    UNSPECIFIED: Ended.Cause
    cause: Ended.Cause
    message: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, cause: _Optional[_Union[Ended.Cause, str]] = ..., ranks: _Optional[_Iterable[int]] = ..., message: _Optional[str] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ["departed", "ended", "invitation", "ready"]
    DEPARTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    INVITATION_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    departed: Departed
    ended: Ended
    invitation: Invitation
    ready: Ready
    def __init__(self, invitation: _Optional[_Union[Invitation, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., departed: _Optional[_Union[Departed, _Mapping]] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class Invitation(_message.Message):
    __slots__ = ["data_host", "data_port", "generation", "heartbeat_interval", "job_id", "lanes", "ticket"]
    DATA_HOST_FIELD_NUMBER: _ClassVar[int]
    DATA_PORT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    data_host: str
    data_port: int
    generation: int
    heartbeat_interval: float
    job_id: int
    lanes: int
    ticket: int
    def __init__(self, job_id: _Optional[int] = ..., generation: _Optional[int] = ..., ticket: _Optional[int] = ..., data_host: _Optional[str] = ..., data_port: _Optional[int] = ..., lanes: _Optional[int] = ..., heartbeat_interval: _Optional[float] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ["host", "job", "join_timeout", "pid", "rank", "slots", "world_size"]
    HOST_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    JOIN_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    host: str
    job: str
    join_timeout: float
    pid: int
    rank: int
    slots: int
    world_size: int
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., slots: _Optional[int] = ..., join_timeout: _Optional[float] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ["calls", "member"]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    calls: int
    member: Member
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., calls: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ["generation", "job", "rank", "ticket"]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    generation: int
    job: str
    rank: int
    ticket: int
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., generation: _Optional[int] = ..., ticket: _Optional[int] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ["slots"]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    slots: int
    def __init__(self, slots: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ["call", "member", "text"]
    CALL_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    call: int
    member: Member
    text: str
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., call: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class Reports(_message.Message):
    __slots__ = ["by_rank"]
    class ByRankEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    BY_RANK_FIELD_NUMBER: _ClassVar[int]
    by_rank: _containers.ScalarMap[int, str]
    def __init__(self, by_rank: _Optional[_Mapping[int, str]] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ["build", "drops", "jobs", "slots_free", "slots_total", "switch_connected"]
    class DropsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class Job(_message.Message):
        __slots__ = ["generation", "job_id", "name", "ranks", "slot_base", "slots", "state", "world_size"]
        GENERATION_FIELD_NUMBER: _ClassVar[int]
        JOB_ID_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        RANKS_FIELD_NUMBER: _ClassVar[int]
        SLOTS_FIELD_NUMBER: _ClassVar[int]
        SLOT_BASE_FIELD_NUMBER: _ClassVar[int]
        STATE_FIELD_NUMBER: _ClassVar[int]
        WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
        generation: int
        job_id: int
        name: str
        ranks: _containers.RepeatedCompositeFieldContainer[StatusReply.Rank]
        slot_base: int
        slots: int
        state: str
        world_size: int
        def __init__(self, name: _Optional[str] = ..., job_id: _Optional[int] = ..., generation: _Optional[int] = ..., world_size: _Optional[int] = ..., state: _Optional[str] = ..., slot_base: _Optional[int] = ..., slots: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[StatusReply.Rank, _Mapping]]] = ...) -> None: ...
    class Rank(_message.Message):
        __slots__ = ["data_address", "host", "packets", "pid", "rank", "silent", "switch_port"]
        DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
        HOST_FIELD_NUMBER: _ClassVar[int]
        PACKETS_FIELD_NUMBER: _ClassVar[int]
        PID_FIELD_NUMBER: _ClassVar[int]
        RANK_FIELD_NUMBER: _ClassVar[int]
        SILENT_FIELD_NUMBER: _ClassVar[int]
        SWITCH_PORT_FIELD_NUMBER: _ClassVar[int]
        data_address: str
        host: str
        packets: int
        pid: int
        rank: int
        silent: float
        switch_port: int
        def __init__(self, rank: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., data_address: _Optional[str] = ..., switch_port: _Optional[int] = ..., packets: _Optional[int] = ..., silent: _Optional[float] = ...) -> None: ...
    BUILD_FIELD_NUMBER: _ClassVar[int]
    DROPS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FREE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SWITCH_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    build: str
    drops: _containers.ScalarMap[str, int]
    jobs: _containers.RepeatedCompositeFieldContainer[StatusReply.Job]
    slots_free: int
    slots_total: int
    switch_connected: bool
    def __init__(self, jobs: _Optional[_Iterable[_Union[StatusReply.Job, _Mapping]]] = ..., slots_total: _Optional[int] = ..., slots_free: _Optional[int] = ..., drops: _Optional[_Mapping[str, int]] = ..., switch_connected: bool = ..., build: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...
