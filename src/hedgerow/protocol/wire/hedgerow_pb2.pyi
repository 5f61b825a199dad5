from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Envelope(_message.Message):
    __slots__ = ("version", "sequence", "hello", "welcome", "refused", "ping", "chunk")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    version: int
    sequence: int
    hello: Hello
    welcome: Welcome
    refused: Refused
    ping: Ping
    chunk: Chunk
    def __init__(self, version: _Optional[int] = ..., sequence: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("versions", "hedgerow_version", "site", "roster_digest", "plan_digest")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    HEDGEROW_VERSION_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    ROSTER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PLAN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedScalarFieldContainer[int]
    hedgerow_version: str
    site: str
    roster_digest: bytes
    plan_digest: bytes
    def __init__(self, versions: _Optional[_Iterable[int]] = ..., hedgerow_version: _Optional[str] = ..., site: _Optional[str] = ..., roster_digest: _Optional[bytes] = ..., plan_digest: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("version", "hedgerow_version", "max_message_bytes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HEDGEROW_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    version: int
    hedgerow_version: str
    max_message_bytes: int
    def __init__(self, version: _Optional[int] = ..., hedgerow_version: _Optional[str] = ..., max_message_bytes: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("code", "reason")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    code: str
    reason: str
    def __init__(self, code: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("token", "is_answer")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    IS_ANSWER_FIELD_NUMBER: _ClassVar[int]
    token: int
    is_answer: bool
    def __init__(self, token: _Optional[int] = ..., is_answer: bool = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("message_bytes", "offset", "data")
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    message_bytes: int
    offset: int
    data: bytes
    def __init__(self, message_bytes: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("versions", "roster_digest", "interval_ms")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    ROSTER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedScalarFieldContainer[int]
    roster_digest: bytes
    interval_ms: int
    def __init__(self, versions: _Optional[_Iterable[int]] = ..., roster_digest: _Optional[bytes] = ..., interval_ms: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("version", "process", "run_id", "plan_digest", "hedgerow_version", "phase", "failure", "rounds_done", "rounds_planned", "seconds", "rounds_per_second", "epsilon_spent", "epsilon_limit", "delta", "bytes_sent", "bytes_received", "rounds_abandoned", "sites", "streams_refused", "events", "events_missed", "task")
    class StreamsRefusedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PLAN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    HEDGEROW_VERSION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_DONE_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_PLANNED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    EPSILON_SPENT_FIELD_NUMBER: _ClassVar[int]
    EPSILON_LIMIT_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_ABANDONED_FIELD_NUMBER: _ClassVar[int]
    SITES_FIELD_NUMBER: _ClassVar[int]
    STREAMS_REFUSED_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_MISSED_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    version: int
    process: bytes
    run_id: bytes
    plan_digest: bytes
    hedgerow_version: str
    phase: str
    failure: str
    rounds_done: int
    rounds_planned: int
    seconds: float
    rounds_per_second: float
    epsilon_spent: float
    epsilon_limit: float
    delta: float
    bytes_sent: int
    bytes_received: int
    rounds_abandoned: int
    sites: _containers.RepeatedCompositeFieldContainer[SiteReport]
    streams_refused: _containers.ScalarMap[str, int]
    events: _containers.RepeatedCompositeFieldContainer[EventReport]
    events_missed: int
    task: str
    def __init__(self, version: _Optional[int] = ..., process: _Optional[bytes] = ..., run_id: _Optional[bytes] = ..., plan_digest: _Optional[bytes] = ..., hedgerow_version: _Optional[str] = ..., phase: _Optional[str] = ..., failure: _Optional[str] = ..., rounds_done: _Optional[int] = ..., rounds_planned: _Optional[int] = ..., seconds: _Optional[float] = ..., rounds_per_second: _Optional[float] = ..., epsilon_spent: _Optional[float] = ..., epsilon_limit: _Optional[float] = ..., delta: _Optional[float] = ..., bytes_sent: _Optional[int] = ..., bytes_received: _Optional[int] = ..., rounds_abandoned: _Optional[int] = ..., sites: _Optional[_Iterable[_Union[SiteReport, _Mapping]]] = ..., streams_refused: _Optional[_Mapping[str, int]] = ..., events: _Optional[_Iterable[_Union[EventReport, _Mapping]]] = ..., events_missed: _Optional[int] = ..., task: _Optional[str] = ...) -> None: ...

class SiteReport(_message.Message):
    __slots__ = ("name", "state", "code", "rounds", "dropouts", "refusals")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    DROPOUTS_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    code: str
    rounds: int
    dropouts: int
    refusals: int
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., code: _Optional[str] = ..., rounds: _Optional[int] = ..., dropouts: _Optional[int] = ..., refusals: _Optional[int] = ...) -> None: ...

class EventReport(_message.Message):
    __slots__ = ("number", "seconds", "kind", "round", "site", "code")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    number: int
    seconds: float
    kind: str
    round: int
    site: str
    code: str
    def __init__(self, number: _Optional[int] = ..., seconds: _Optional[float] = ..., kind: _Optional[str] = ..., round: _Optional[int] = ..., site: _Optional[str] = ..., code: _Optional[str] = ...) -> None: ...
