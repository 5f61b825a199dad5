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
