"""The messages of a run and their bytes; `protocol.script` says who may send which one when.

Numbers are big-endian and of fixed width, with a length before everything of variable size. Every message has exactly
one encoding and the reader accepts no other; lengths are checked against what is there before anything is allocated.

Secure aggregation's own messages travel inside as payloads that this module does not read. What a node refuses, and
why a run ends, travels as a code word only: its sentences stay with the party for whom they were written.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from hedgerow.errors import RemoteProtocolError
from hedgerow.plan.plan import MAX_STRUCTURE_SEED
from hedgerow.protocol.queries import IntVector

MAGIC = b"HRM"
VERSION = 3
"""2: a round's spec names the epoch that drew the trees' seed, and a site is shown that epoch before any other."""
HASH_BYTES = 32
MAX_MESSAGE_BYTES = 1 << 27
"""No message of a run is longer; an engine may cut a peer off that sends more."""
MAX_PLAN_BYTES = 1 << 22
MAX_MODEL_BYTES = 1 << 26
MAX_CODE_BYTES = 64
MAX_ENTRIES = 1 << 22
MAX_RELEASES = 1 << 16


def malformed(what: str) -> RemoteProtocolError:
    """The error for bytes that are no message; `what` names a field, never its content."""
    return RemoteProtocolError(
        f"A message of a run is malformed: {what}.",
        cause="It was cut or altered on its way, or the peer runs another version.",
        remedy="Compare the installed versions of hedgerow.",
        code="malformed-message",
    )


class MessageWriter:
    """Builds one message; every method returns the writer."""

    __slots__ = ("_parts",)

    def __init__(self, kind: int) -> None:
        self._parts: list[bytes] = [MAGIC, bytes((VERSION, kind))]

    def number(self, value: int, size: int) -> MessageWriter:
        """An unsigned number of `size` bytes; raises OverflowError when it does not fit."""
        self._parts.append(value.to_bytes(size, "big"))
        return self

    def real(self, value: float) -> MessageWriter:
        """A double; raises ValueError for a NaN."""
        if math.isnan(value):
            raise ValueError("A NaN has no place in a message.")
        self._parts.append(struct.pack(">d", value))
        return self

    def hash(self, value: bytes) -> MessageWriter:
        """32 bytes; raises ValueError for another length."""
        if len(value) != HASH_BYTES:
            raise ValueError(f"A hash has {HASH_BYTES} bytes, not {len(value)}.")
        self._parts.append(value)
        return self

    def blob(self, value: bytes) -> MessageWriter:
        """Bytes of any length, their length before them."""
        self.number(len(value), 4)
        self._parts.append(value)
        return self

    def word(self, value: str) -> MessageWriter:
        """A code word of at most 64 bytes of ASCII."""
        raw = value.encode("ascii")
        if not 1 <= len(raw) <= MAX_CODE_BYTES:
            raise ValueError(f"A code word has 1 to {MAX_CODE_BYTES} bytes, not {len(raw)}.")
        self.number(len(raw), 1)
        self._parts.append(raw)
        return self

    def vector(self, values: IntVector) -> MessageWriter:
        """Integers: how many, the fewest bytes that hold each of them (1 to 8), then all in two's complement."""
        width = _width_of(values)
        self.number(len(values), 4).number(width, 1)
        octets = np.ascontiguousarray(values, dtype=">i8").view(np.uint8).reshape(len(values), 8)
        self._parts.append(octets[:, 8 - width :].tobytes())
        return self

    def bytes(self) -> bytes:
        """The message."""
        return b"".join(self._parts)


class MessageReader:
    """Reads one message; raises RemoteProtocolError for anything that no writer wrote."""

    __slots__ = ("_at", "_data", "kind")

    def __init__(self, data: bytes) -> None:
        if len(data) < 5 or data[:3] != MAGIC:
            raise malformed("it is too short or of a foreign format")
        if len(data) > MAX_MESSAGE_BYTES:
            raise malformed("it is too long")
        if data[3] != VERSION:
            raise RemoteProtocolError(
                f"A message is of version {data[3]} of the protocol; this side speaks version {VERSION}.",
                cause="The parties run different versions of hedgerow.",
                remedy="Install the same version on both sides.",
                code="unknown-version",
            )
        self._data, self._at, self.kind = data, 5, data[4]

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise malformed("it ends too early")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def number(self, size: int, most: int | None = None) -> int:
        """An unsigned number of `size` bytes, at most `most`."""
        value = int.from_bytes(self._take(size), "big")
        if most is not None and value > most:
            raise malformed("a number is out of its range")
        return value

    def real(self) -> float:
        """A double that is no NaN."""
        (value,) = struct.unpack(">d", self._take(8))
        if math.isnan(value):
            raise malformed("a number is none")
        return float(value)

    def hash(self) -> bytes:
        """32 bytes."""
        return self._take(HASH_BYTES)

    def blob(self, most: int = MAX_MESSAGE_BYTES) -> bytes:
        """Bytes with their length before them, at most `most`."""
        return self._take(self.number(4, most))

    def word(self) -> str:
        """A code word: lower-case letters, digits and hyphens only, for it is shown to people and put into logs."""
        raw = self._take(self.number(1, MAX_CODE_BYTES))
        if not raw or any(byte not in b"abcdefghijklmnopqrstuvwxyz0123456789-" for byte in raw):
            raise malformed("a code word is none")
        return raw.decode("ascii")

    def vector(self) -> IntVector:
        """Integers: int64 [n]."""
        count, width = self.number(4, MAX_ENTRIES), self.number(1, 8)
        if width < 1:
            raise malformed("integers have no width")
        octets = np.frombuffer(self._take(count * width), dtype=np.uint8).reshape(count, width)
        # At the top of a word first, and then down to where they belong: the shift brings the sign along.
        wide = np.zeros((count, 8), dtype=np.uint8)
        wide[:, :width] = octets
        values = wide.view(">i8").reshape(count).astype(np.int64)
        values >>= 8 * (8 - width)
        if _width_of(values) != width:
            raise malformed("integers are wider than they need to be")
        return values

    def end(self) -> None:
        """Raises RemoteProtocolError unless everything was read."""
        if self._at != len(self._data):
            raise malformed("bytes follow its end")


def _width_of(values: IntVector) -> int:
    """The fewest bytes, 1 to 8, that hold every value in two's complement."""
    if not len(values):
        return 1
    largest, least = int(values.max()), int(values.min())
    bits = 1 + max(largest.bit_length() if largest >= 0 else 0, (~least).bit_length() if least < 0 else 0)
    return max(1, -(-bits // 8))


NO_HASH = bytes(HASH_BYTES)


class MessageKind(IntEnum):
    """The kind byte; a number, once given, is never given to another message."""

    # Coordinator to node.
    INVITATION = 1
    ENROL = 2
    SETUP = 3
    ROUND_REQUEST = 4
    UNMASK = 5
    CERTIFICATE = 6
    ABANDONED = 7
    FINISHED = 8
    STOP = 9
    WELCOME = 10
    ORIGIN = 11
    EVALUATION = 12
    SALVAGED = 13
    # Node to coordinator.
    HELLO = 20
    READY = 21
    SETUP_ANSWER = 22
    UPLOAD = 23
    ECHO = 24
    ANSWER = 25
    REFUSED = 26
    DONE = 27


@dataclass(frozen=True, slots=True)
class Hello:
    """Node: the first message of every connection. A new node has no run and no epoch (32 zero bytes each).

    Attributes:
        run_id: the run that the node is in.
        epoch: digest of the epoch that it can go on in.
        n_releases: releases of the run that it holds.
        connection: a number of this connection, drawn at random.
    """

    connection: int
    run_id: bytes = NO_HASH
    epoch: bytes = NO_HASH
    n_releases: int = 0


@dataclass(frozen=True, slots=True)
class Welcome:
    """Coordinator: the answer to a Hello, with its number.

    Whatever a node receives before it was meant for an earlier connection, and is dropped.
    """

    connection: int


@dataclass(frozen=True, slots=True)
class Invitation:
    """Coordinator: take part in this run? `plan` is the plan's canonical JSON (UTF-8)."""

    run_id: bytes
    plan: bytes


@dataclass(frozen=True, slots=True)
class EvaluationInvitation:
    """Coordinator: take part in the evaluation of a model over the rows that you hold out?

    Attributes:
        plan: of the model, as in `Invitation`.
        model: the ensemble's canonical JSON (ASCII).
        epsilon, delta: what the evaluation may cost by itself.
        first_round: releases on the model's account before this one; it numbers the purposes.
        noise: who adds the noise to this evaluation: "server", "distributed" or "local".
    """

    run_id: bytes
    plan: bytes
    model: bytes
    epsilon: float
    delta: float
    first_round: int
    noise: str


@dataclass(frozen=True, slots=True)
class Ready:
    """Node: it has checked the plan, its owner's policy and its data, reserved the budget, and will take part.

    Attributes:
        plan_digest: of the plan; of the task, model and cost included, when it is an evaluation.
    """

    run_id: bytes
    plan_digest: bytes


@dataclass(frozen=True, slots=True)
class Payload:
    """A message of secure aggregation inside one of a run, of one of the kinds in `PAYLOADS`."""

    kind: MessageKind
    content: bytes


@dataclass(frozen=True, slots=True, eq=False)
class RoundRequest:
    """Coordinator: answer the query of this round.

    Attributes:
        round: number of the exchange; also the number of releases before it.
        releases: the last of these releases, as many as the node does not hold yet.
        signed_spec: what the round is for, signed by the coordinator.
        structure_seed: seed of the trees' structure in this run, 0 to 2**63 - 1.
    """

    round: int
    releases: tuple[IntVector, ...]
    signed_spec: bytes
    structure_seed: int = 0


@dataclass(frozen=True, slots=True)
class Abandoned:
    """Coordinator: nothing will be released in this slot; `code` says why."""

    round: int
    code: str


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """Coordinator: the run is over; the last of its `n_releases` releases, and the digest of the model they make.

    After an evaluation the digest is that of the task and the releases.
    """

    n_releases: int
    releases: tuple[IntVector, ...]
    result_digest: bytes
    structure_seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Salvaged:
    """Coordinator: the run cannot go on, and ends with the model of its `n_releases` releases so far.

    Attributes:
        releases: the last of these releases, as many as the node does not hold yet.
        result_digest: of the model that they make, see `training.replica.Replica.end_early`.
        code: why the run cannot go on.
    """

    n_releases: int
    releases: tuple[IntVector, ...]
    result_digest: bytes
    structure_seed: int
    code: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Coordinator: the run is given up; `code` says why."""

    code: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Node: it will not do what was asked; `round` is the exchange it stands in."""

    round: int
    code: str


@dataclass(frozen=True, slots=True)
class Done:
    """Node: it has the whole result; the digest of what its own replica made."""

    result_digest: bytes


Message = (
    Hello | Welcome | Invitation | EvaluationInvitation | Ready | Payload | RoundRequest | Abandoned | Finished
    | Salvaged | Stop | Refused | Done
)  # fmt: skip

PAYLOADS = frozenset(
    {
        MessageKind.ENROL, MessageKind.ORIGIN, MessageKind.SETUP, MessageKind.UNMASK, MessageKind.CERTIFICATE,
        MessageKind.SETUP_ANSWER, MessageKind.UPLOAD, MessageKind.ECHO, MessageKind.ANSWER,
    }
)  # fmt: skip

_KINDS: dict[type, MessageKind] = {
    Hello: MessageKind.HELLO,
    Welcome: MessageKind.WELCOME,
    Invitation: MessageKind.INVITATION,
    EvaluationInvitation: MessageKind.EVALUATION,
    Ready: MessageKind.READY,
    RoundRequest: MessageKind.ROUND_REQUEST,
    Abandoned: MessageKind.ABANDONED,
    Finished: MessageKind.FINISHED,
    Salvaged: MessageKind.SALVAGED,
    Stop: MessageKind.STOP,
    Refused: MessageKind.REFUSED,
    Done: MessageKind.DONE,
}


def kind_of(message: Message) -> MessageKind:
    """The kind byte of a message."""
    return message.kind if isinstance(message, Payload) else _KINDS[type(message)]


def encode(message: Message) -> bytes:
    """The message's bytes; raises ValueError or OverflowError for one that no peer would accept."""
    writer = MessageWriter(kind_of(message))
    match message:
        case Hello():
            writer.number(message.connection, 8).hash(message.run_id).hash(message.epoch)
            writer.number(message.n_releases, 4)
        case Welcome():
            writer.number(message.connection, 8)
        case Invitation():
            writer.hash(message.run_id).blob(message.plan)
        case EvaluationInvitation():
            writer.hash(message.run_id).blob(message.plan).blob(message.model)
            writer.real(message.epsilon).real(message.delta).number(message.first_round, 4).word(message.noise)
        case Ready():
            writer.hash(message.run_id).hash(message.plan_digest)
        case Payload():
            if message.kind not in PAYLOADS:
                raise ValueError(f"{message.kind.name} carries no payload.")
            writer.blob(message.content)
        case RoundRequest():
            _write_releases(writer.number(message.round, 4), message.releases)
            writer.blob(message.signed_spec).number(message.structure_seed, 8)
        case Finished():
            _write_releases(writer.number(message.n_releases, 4), message.releases)
            writer.hash(message.result_digest).number(message.structure_seed, 8)
        case Salvaged():
            _write_releases(writer.number(message.n_releases, 4), message.releases)
            writer.hash(message.result_digest).number(message.structure_seed, 8).word(message.code)
        case Abandoned() | Refused():
            writer.number(message.round, 4).word(message.code)
        case Stop():
            writer.word(message.code)
        case Done():
            writer.hash(message.result_digest)
    return writer.bytes()


def decode(data: bytes) -> Message:
    """The message in `data`; raises RemoteProtocolError (code "malformed-message" or "unknown-version")."""
    reader = MessageReader(data)
    try:
        kind = MessageKind(reader.kind)
    except ValueError:
        raise malformed("it is of an unknown kind") from None
    message: Message = Payload(kind, reader.blob()) if kind in PAYLOADS else _READERS[kind](reader)
    reader.end()
    return message


def _write_releases(writer: MessageWriter, releases: tuple[IntVector, ...]) -> None:
    writer.number(len(releases), 4)
    for release in releases:
        writer.vector(release)


def _read_releases(reader: MessageReader) -> tuple[int, tuple[IntVector, ...]]:
    """How many releases there are, and the last of them."""
    total = reader.number(4, MAX_RELEASES)
    count = reader.number(4, total)
    return total, tuple(reader.vector() for _ in range(count))


_READERS: dict[MessageKind, Callable[[MessageReader], Message]] = {
    MessageKind.HELLO: lambda r: Hello(r.number(8), r.hash(), r.hash(), r.number(4, MAX_RELEASES)),
    MessageKind.WELCOME: lambda r: Welcome(r.number(8)),
    MessageKind.INVITATION: lambda r: Invitation(r.hash(), r.blob(MAX_PLAN_BYTES)),
    MessageKind.EVALUATION: lambda r: EvaluationInvitation(
        r.hash(), r.blob(MAX_PLAN_BYTES), r.blob(MAX_MODEL_BYTES), r.real(), r.real(), r.number(4), r.word()
    ),
    MessageKind.READY: lambda r: Ready(r.hash(), r.hash()),
    MessageKind.ROUND_REQUEST: lambda r: RoundRequest(*_read_releases(r), r.blob(), r.number(8, MAX_STRUCTURE_SEED)),
    MessageKind.ABANDONED: lambda r: Abandoned(r.number(4), r.word()),
    MessageKind.FINISHED: lambda r: Finished(*_read_releases(r), r.hash(), r.number(8, MAX_STRUCTURE_SEED)),
    MessageKind.SALVAGED: lambda r: Salvaged(*_read_releases(r), r.hash(), r.number(8, MAX_STRUCTURE_SEED), r.word()),
    MessageKind.STOP: lambda r: Stop(r.word()),
    MessageKind.REFUSED: lambda r: Refused(r.number(4), r.word()),
    MessageKind.DONE: lambda r: Done(r.hash()),
}
