"""The first and the last messages of a stream between a node and the coordinator, why it ends, and gRPC's wrapping.

A node says its Introduction; the coordinator answers with an Admittance, or with a Farewell that says why not. After
that both send messages of the run, and the side that ends the stream says a Farewell first. The words of the codes are
what `Refused.code` carries, what `Left.reason` and `Disconnected.reason` hold, and what logs and the monitor show. They
stay the same between versions; `errors.toml` has the sentences for an operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Annotated, Self, TypeVar

from google.protobuf.message import DecodeError

from hedgerow.codec import (
    MAX_TEXT_BYTES,
    CodecFault,
    CodeWord,
    Encoded,
    Fixed,
    Flaw,
    Hash,
    Maybe,
    Shown,
    Unsigned,
    head,
    kind_in,
)
from hedgerow.errors import RemoteProtocolError
from hedgerow.protocol import hedgerow_pb2 as pb


class WireCode(StrEnum):
    """The reasons by their stable words."""

    MALFORMED = "malformed"
    UNKNOWN_VERSION = "unknown-version"
    OVERSIZED = "oversized"
    UNEXPECTED_FRAME = "unexpected-frame"
    HELLO_TIMEOUT = "hello-timeout"
    VERSION_MISMATCH = "version-mismatch"
    UNPINNED = "unpinned"
    SITE_MISMATCH = "site-mismatch"
    ROSTER_MISMATCH = "roster-mismatch"
    PLAN_MISMATCH = "plan-mismatch"
    DUPLICATE_NODE = "duplicate-node"
    SILENT = "silent"
    SLOW_PEER = "slow-peer"
    CONNECTION_LOST = "connection-lost"
    UNREACHABLE = "unreachable"
    TLS_REFUSED = "tls-refused"
    WRONG_COORDINATOR = "wrong-coordinator"
    TOO_MANY_MONITORS = "too-many-monitors"
    INVITATION_UNKNOWN = "invitation-unknown"
    INVITATION_USED = "invitation-used"
    CLOSED = "closed"


FINAL = frozenset(
    {
        WireCode.VERSION_MISMATCH,
        WireCode.UNPINNED,
        WireCode.SITE_MISMATCH,
        WireCode.ROSTER_MISMATCH,
        WireCode.PLAN_MISMATCH,
        WireCode.DUPLICATE_NODE,
        WireCode.INVITATION_UNKNOWN,
        WireCode.INVITATION_USED,
    }
)
"""After these a node stops; after all others it tries again with back-off."""


class WireRefusal(RemoteProtocolError):
    """A stream was ended, or must be; `detail` is a sentence beside those of the code."""

    def __init__(self, wire_code: WireCode, detail: str = "") -> None:
        super().__init__(wire_code.value)
        self.what = f"{self.what} {detail}".strip()
        self.wire_code = wire_code

    @property
    def is_final(self) -> bool:
        """Whether a node does not try again."""
        return self.wire_code in FINAL


def known(code: str) -> WireCode:
    """The code of a word that a peer sent; CLOSED for a word of a later version."""
    try:
        return WireCode(code)
    except ValueError:
        return WireCode.CLOSED


# Messages -------------------------------------------------------------------------------------------------------------

HEADROOM = 1 << 16
"""A message so much larger than the limit is let through, to be refused by name."""
Read = TypeVar("Read", bound=Encoded)


class StreamKind(IntEnum):
    """The kind bytes of what a stream, a monitor and a party that enrols say besides messages of a run."""

    INTRODUCTION = 64
    ADMITTANCE = 65
    FAREWELL = 66
    WATCH_REQUEST = 67
    TOLD = 68
    KNOCK = 69
    CHALLENGE = 70
    OPENING = 71
    ASKING = 72
    STANDING = 73
    WANTED = 74
    RESULT = 75
    CURRENT = 76


_OF_STREAMS = tuple(head(kind) for kind in StreamKind)


@dataclass(frozen=True, slots=True)
class Introduction(Encoded):
    """Node: who it is. The certificate of the TLS session decides; the coordinator compares, and believes nothing.

    Attributes:
        site: its name as in the roster. Not the certificate's: `site-mismatch`.
        roster_digest: SHA-256 of the roster that it pins. Not the coordinator's: `roster-mismatch`.
        plan_digest: SHA-256 of the plan that its owner agreed to, if any. Not the coordinator's: `plan-mismatch`.
        release: of Hedgerow, as `1.2.3`; shown to the operator, decides nothing.
    """

    KIND = StreamKind.INTRODUCTION
    site: Shown
    roster_digest: Hash
    plan_digest: Annotated[bytes, Maybe(Fixed(32), none=b"")] = b""
    release: Shown = ""


@dataclass(frozen=True, slots=True)
class Admittance(Encoded):
    """Coordinator: the node has joined.

    Attributes:
        max_message_bytes: of the largest message that the coordinator takes. A larger one: `oversized`.
        release: of Hedgerow; shown to the operator, decides nothing.
    """

    KIND = StreamKind.ADMITTANCE
    max_message_bytes: Annotated[int, Unsigned(8, least=1)]
    release: Shown = ""


@dataclass(frozen=True, slots=True)
class Farewell(Encoded):
    """Either side: why it ends the stream. It carries no number and no text from a site's data.

    Attributes:
        code: a word of the table in docs/errors.md; a reader that does not know it takes it for `closed`.
        reason: a sentence for the operator.
    """

    KIND = StreamKind.FAREWELL
    code: CodeWord
    reason: Shown

    @classmethod
    def of(cls, refusal: WireRefusal) -> Self:
        """What is said of a refusal."""
        shown = "".join(letter for letter in refusal.what if letter.isprintable())
        return cls(refusal.code, shown.encode()[:MAX_TEXT_BYTES].decode(errors="ignore"))

    def refusal(self) -> WireRefusal:
        """The same as an error of this side, with what the peer said beyond the code's own sentence."""
        code = known(self.code)
        return WireRefusal(code, self.reason.removeprefix(WireRefusal(code).what).strip())


def refused(fault: CodecFault) -> WireRefusal:
    """The refusal of bytes that are no message."""
    is_version = fault.flaw is Flaw.UNKNOWN_VERSION
    return WireRefusal(WireCode.UNKNOWN_VERSION if is_version else WireCode.MALFORMED, fault.what)


def read_as(expected: type[Read], content: bytes) -> Read:
    """The message of a kind; raises WireRefusal."""
    try:
        return expected.from_bytes(content)
    except CodecFault as fault:
        raise refused(fault) from None


def wrapped(content: bytes) -> bytes:
    """What gRPC carries for a message."""
    return pb.Message(content=content).SerializeToString()


def unwrapped(raw: bytes, most: int) -> bytes:
    """The message that gRPC has carried; raises WireRefusal MALFORMED, or OVERSIZED beyond `most` bytes."""
    try:
        content = pb.Message.FromString(raw).content
    except DecodeError:
        raise WireRefusal(WireCode.MALFORMED) from None
    if len(content) > most:
        raise WireRefusal(WireCode.OVERSIZED)
    return content


def first_of(expected: type[Read], content: bytes) -> Read:
    """The first message of the other side; raises WireRefusal, which is the other side's own if it says Farewell."""
    try:
        kind = kind_in(content)
        if kind == StreamKind.FAREWELL:
            raise read_as(Farewell, content).refusal()
        if kind != expected.KIND:
            raise WireRefusal(WireCode.UNEXPECTED_FRAME, f"The first must be of kind {expected.KIND}.")
    except CodecFault as fault:
        raise refused(fault) from None
    return read_as(expected, content)


def farewell_in(content: bytes) -> Farewell | None:
    """The Farewell that a message is, if it is one; raises WireRefusal for what only a stream's beginning may say."""
    if not content.startswith(_OF_STREAMS):
        return None
    try:
        return Farewell.from_bytes(content)
    except CodecFault:
        raise WireRefusal(WireCode.UNEXPECTED_FRAME) from None
