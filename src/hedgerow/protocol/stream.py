# SPDX-License-Identifier: Apache-2.0
"""The messages on a connection besides those of a run: streams, enrolment and monitors.

They begin and end a stream, wrap messages for gRPC, enrol an invited party, and report to monitors.

A node says its Introduction; the coordinator answers with an Admittance, or with a Farewell that says why not. Then
both send messages of the run, and the side that ends the stream says a Farewell first. The codes are the words in
`Refused.code`, `Left.reason` and `Disconnected.reason`, and those that logs and the monitor show. They stay the same
between versions; `errors.toml` has the sentences for an operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Annotated, Self, TypeVar

from google.protobuf.message import DecodeError

from hedgerow import codec
from hedgerow.protocol import hedgerow_pb2 as pb
from hedgerow.protocol.refusals import WireCode, WireRefusal, read_code

# Messages -------------------------------------------------------------------------------------------------------------

FRAME_HEADROOM = 1 << 16
"""Bytes above the limit up to which gRPC passes a message on, so that it can be refused by name."""
Read = TypeVar("Read", bound=codec.Encoded)


class StreamKind(IntEnum):
    """The kind bytes of messages that are not messages of a run."""

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


_OF_STREAMS = tuple(codec.head(kind) for kind in StreamKind)


@dataclass(frozen=True, slots=True)
class Introduction(codec.Encoded):
    """Node: who it is. The certificate of the TLS session decides; the coordinator compares, and believes nothing.

    Attributes:
        site: its name as in the roster. Not the certificate's: `site-mismatch`.
        roster_digest: SHA-256 of the roster that it pins. Not the coordinator's: `roster-mismatch`.
        plan_digest: SHA-256 of the plan that its owner agreed to, if any. Not the coordinator's: `plan-mismatch`.
        version: of Hedgerow, as `1.2.3`; shown to the operator, decides nothing.
    """

    KIND = StreamKind.INTRODUCTION
    site: codec.Shown
    roster_digest: codec.Hash
    plan_digest: Annotated[bytes, codec.Maybe(codec.Fixed(32), none=b"")] = b""
    version: codec.Shown = ""


@dataclass(frozen=True, slots=True)
class Admittance(codec.Encoded):
    """Coordinator: the node has joined.

    Attributes:
        max_message_bytes: of the largest message that the coordinator takes. A larger one: `oversized`.
        version: of Hedgerow; shown to the operator, decides nothing.
    """

    KIND = StreamKind.ADMITTANCE
    max_message_bytes: Annotated[int, codec.Unsigned(8, least=1)]
    version: codec.Shown = ""


@dataclass(frozen=True, slots=True)
class Farewell(codec.Encoded):
    """Either side: why it ends the stream. It carries no number and no text from a site's data.

    Attributes:
        code: a word of the table in docs/errors.md; a reader that does not know it takes it for `closed`.
        reason: a sentence for the operator.
    """

    KIND = StreamKind.FAREWELL
    code: codec.CodeWord
    reason: codec.Shown

    @classmethod
    def from_refusal(cls, refusal: WireRefusal) -> Self:
        """Build the farewell of a refusal."""
        shown = "".join(letter for letter in refusal.what if letter.isprintable())
        return cls(refusal.code, shown.encode()[: codec.MAX_TEXT_BYTES].decode(errors="ignore"))

    def refusal(self) -> WireRefusal:
        """Return the farewell as an error of this side, with the peer's words beyond the code's own sentence."""
        code = read_code(self.code)
        return WireRefusal(code, self.reason.removeprefix(WireRefusal(code).what).strip())


def translate_fault(fault: codec.CodecFault) -> WireRefusal:
    """Return the refusal of bytes that are no message."""
    is_version = fault.flaw is codec.Flaw.UNKNOWN_VERSION
    return WireRefusal(WireCode.UNKNOWN_VERSION if is_version else WireCode.MALFORMED, fault.what)


def read_as(expected: type[Read], content: bytes) -> Read:
    """Read a message of the expected kind; raise WireRefusal."""
    try:
        return expected.from_bytes(content)
    except codec.CodecFault as fault:
        raise translate_fault(fault) from None


def wrap_message(content: bytes) -> bytes:
    """Wrap a message for gRPC."""
    return pb.Message(content=content).SerializeToString()


def unwrap_message(raw: bytes, most: int) -> bytes:
    """Unwrap a message of gRPC; raise WireRefusal MALFORMED, or OVERSIZED beyond `most` bytes."""
    try:
        content = pb.Message.FromString(raw).content
    except DecodeError:
        raise WireRefusal(WireCode.MALFORMED) from None
    if len(content) > most:
        raise WireRefusal(WireCode.OVERSIZED)
    return content


def read_first(expected: type[Read], content: bytes) -> Read:
    """Read the first message of the other side.

    Raises WireRefusal, which is the other side's own if it says Farewell.
    """
    try:
        kind = codec.kind_in(content)
        if kind == StreamKind.FAREWELL:
            raise read_as(Farewell, content).refusal()
        if kind != expected.KIND:
            raise WireRefusal(WireCode.UNEXPECTED_FRAME, f"The first must be of kind {expected.KIND}.")
    except codec.CodecFault as fault:
        raise translate_fault(fault) from None
    return read_as(expected, content)


def farewell_in(content: bytes) -> Farewell | None:
    """Return the Farewell that a message is; None for a message of a run.

    Raises WireRefusal for a message that only the beginning of a stream may have.
    """
    if not content.startswith(_OF_STREAMS):
        return None
    try:
        return Farewell.from_bytes(content)
    except codec.CodecFault:
        raise WireRefusal(WireCode.UNEXPECTED_FRAME) from None


# Enrolment ------------------------------------------------------------------------------------------------------------
# Messages between an invited party and a study's coordinator before there is a roster. The party asks, and the
# coordinator answers each message with one of its own; `hedgerow.study` explains each one's purpose and whom it keeps
# out. A party may repeat a question after a broken connection, and gets the same answer.

MAX_ENROLMENT_BYTES = 64 << 20
"""Size of the largest message: a model, or a roster of 4,096 sites."""
MAX_CERTIFICATE_BYTES = 4096
NOTHING = bytes(32)

Signature = Annotated[bytes, codec.Fixed(64)]


class AskingStep(IntEnum):
    """A party's progress in its enrolment."""

    WAITS = 1
    HAS_ROSTER = 2
    HAS_NONCES = 3


@dataclass(frozen=True, slots=True)
class Knock(codec.Encoded):
    """Invited party: a commitment to its keys and its nonces, before it has heard anything of the coordinator's.

    Attributes:
        party: its name, as in its invitation. Not one that was invited: `invitation-unknown`.
        commitment: to what its Opening will say. Another one than before: `invitation-used`.
        tag: HMAC-SHA256 of the invitation and the commitment under its secret. Wrong: `invitation-unknown`.
    """

    KIND = StreamKind.KNOCK
    party: codec.Shown
    commitment: codec.Hash
    tag: codec.Hash


@dataclass(frozen=True, slots=True)
class Challenge(codec.Encoded):
    """Coordinator: a random number, drawn once for an invitation, and only after its party has committed itself.

    Attributes:
        nonce: the number.
    """

    KIND = StreamKind.CHALLENGE
    nonce: codec.Hash


@dataclass(frozen=True, slots=True)
class Opening(codec.Encoded):
    """Invited party: the keys and number behind its commitment. Both ends now know the four words.

    Attributes:
        party: its name.
        identity_key: its Ed25519 key.
        certificate: DER of its TLS certificate.
        proof: the key's signature over its name, role, key and certificate.
        nonce: its random number.
        sealed: the hash of another one, which it shows when it has the roster.
        max_rows: the most rows that it uses, a round public number; 0 where it does not say.
        tag: HMAC-SHA256 of all this and the challenge under the invitation's secret.
        signature: of the tag, by the identity key.
    """

    KIND = StreamKind.OPENING
    party: codec.Shown
    identity_key: codec.Hash
    certificate: Annotated[bytes, codec.Blob(MAX_CERTIFICATE_BYTES)]
    proof: Signature
    nonce: codec.Hash
    sealed: codec.Hash
    max_rows: Annotated[int, codec.Unsigned(8, most=codec.MAX_ROWS)]
    tag: codec.Hash
    signature: Signature


@dataclass(frozen=True, slots=True)
class Asking(codec.Encoded):
    """Invited party, again and again: how far it has come, and what it waits for.

    Attributes:
        party: its name.
        step: 1 it waits for the roster, 2 it has a roster, 3 it has everybody's nonces as well.
        roster: SHA-256 of the roster that it was given; zeros before.
        nonce: what it had sealed, from step 2 on; zeros before.
        signature: of all this and the invitation, by the identity key.
    """

    KIND = StreamKind.ASKING
    party: codec.Shown
    step: Annotated[AskingStep, codec.Member(AskingStep)]
    roster: codec.Hash
    nonce: codec.Hash
    signature: Signature


@dataclass(frozen=True, slots=True)
class Standing(codec.Encoded):
    """Coordinator: the state of the enrolment, and the roster once there is one.

    Attributes:
        roster: the roster's file; empty until all parties are confirmed.
        sealed: everybody's `sealed`, the sites' and then the monitors', each in the roster's order.
        nonces: what they sealed, in the same order; empty until all have shown it.
    """

    KIND = StreamKind.STANDING
    roster: Annotated[bytes, codec.Blob(MAX_ENROLMENT_BYTES)] = b""
    sealed: Annotated[tuple[bytes, ...], codec.Many(codec.Fixed(32))] = ()
    nonces: Annotated[tuple[bytes, ...], codec.Many(codec.Fixed(32))] = ()


@dataclass(frozen=True, slots=True)
class Wanted(codec.Encoded):
    """Party of the roster, over mutual TLS: after a run, it asks for the newest model's file.

    Attributes:
        party: its name.
    """

    KIND = StreamKind.WANTED
    party: codec.Shown


@dataclass(frozen=True, slots=True)
class Current(codec.Encoded):
    """Party of an earlier roster, over mutual TLS while a run goes on: it asks for the one that the run has.

    The answer is a Standing with the roster alone. What the party makes of it is for its owner to say.

    Attributes:
        party: its name.
    """

    KIND = StreamKind.CURRENT
    party: codec.Shown


@dataclass(frozen=True, slots=True)
class Result(codec.Encoded):
    """Coordinator: the file. Who takes it compares its trees with those that its own replica has made.

    Attributes:
        model: the content of a model file, with its ledger and report.
    """

    KIND = StreamKind.RESULT
    model: Annotated[bytes, codec.Blob(MAX_ENROLMENT_BYTES)]


# Monitors and reports -------------------------------------------------------------------------------------------------
# What a monitor sees of a run: only what every party knows, or anyone who watches the network; nothing from rows.
# A monitor sends one request and receives reports; both are checked before they are believed.

Amount = Annotated[float, codec.Real(least=0.0)]
Seconds = Annotated[float, codec.Real(least=0.0, most=1e15)]
MaybeWord = Annotated[str, codec.Word(least=0)]


class SiteState(StrEnum):
    """A site's state, as reports show it."""

    ABSENT = "absent"
    CONNECTED = "connected"
    ASKING = "asking"
    READY = "ready"
    REFUSED = "refused"
    SILENT = "silent"
    LEFT = "left"
    DONE = "done"


OVER = "over"
"""The phase of a run that has ended, with a model or, when `RunReport.failure` is set, without."""
WAITING = "waiting-for-sites"
"""The phase of a run in which too few sites are there."""


_MAX_SECONDS = 1e9
"""Largest time left that is shown (about 30 years); a longer one is invented or infinite."""
TRAINING, EVALUATION, SURVEY = "training", "evaluation", "survey"
"""Tasks of a run."""


@dataclass(frozen=True, slots=True)
class SiteReport(codec.Record):
    """One site.

    Attributes:
        name: as in the roster.
        state: a word of `SiteState`.
        code: why it is so, a stable code, or "".
        rounds: releases whose sum it is in.
        dropouts: times that its connection was lost or it did not answer in time.
        refusals: times that it refused, or sent what could not be used.
        version: of Hedgerow, as its node has said; "" where it has not.
    """

    name: codec.Shown
    state: codec.CodeWord = SiteState.ABSENT
    code: MaybeWord = ""
    rounds: codec.U32 = 0
    dropouts: codec.U32 = 0
    refusals: codec.U32 = 0
    version: codec.Shown = ""


@dataclass(frozen=True, slots=True)
class EventReport(codec.Record):
    """One event of a run; rounds and phases are not events: the reports themselves say them.

    Attributes:
        number: counts the events of one process of the coordinator: 1, 2, 3 ...
        seconds: since that process began.
        kind: a word of `server.coordinator.RunEventKind`.
        round: releases made before it.
        site: that it is about; of a false sum all sites in it, as far as they fit; or "".
        code: why, a stable code, or "".
    """

    number: codec.U64
    seconds: Seconds
    kind: codec.CodeWord
    round: codec.U32
    site: codec.Shown = ""
    code: MaybeWord = ""


@dataclass(frozen=True, slots=True)
class RunReport(codec.Record):
    """A run at one moment.

    Attributes:
        process: 8 random bytes of the coordinator's process; others after it was started again.
        run_id: the run's number; the same after the coordinator was started again.
        plan_digest: SHA-256 of the plan.
        version: of Hedgerow.
        phase: what the coordinator collects, a word of `RunState`, or `waiting-for-sites`.
        failure: why the run was given up, a stable code; or "".
        rounds_done: releases made.
        rounds_planned: releases that the whole run makes.
        seconds: since the coordinator's process began, or until the run was over.
        rounds_per_second: lately; 0 when not known.
        epsilon_spent: what all releases so far cost at the delta of the promise, by the plan's accountant.
        epsilon_limit: what the plan, or the evaluation, promises; infinite when it promises none.
        delta: of that promise.
        bytes_sent: to all nodes since the coordinator's process began.
        bytes_received: from all nodes, likewise.
        rounds_abandoned: rounds that were begun again since the coordinator's process began.
        sites: all of the roster, in its order.
        streams_refused: how many streams were refused before they joined, by reason.
        task: what the run is for: `training`, `evaluation` of a model of the plan, or `survey`.
    """

    process: Annotated[bytes, codec.Fixed(8)]
    run_id: codec.Hash
    plan_digest: codec.Hash
    version: codec.Shown
    phase: codec.CodeWord
    failure: MaybeWord = ""
    rounds_done: codec.U32 = 0
    rounds_planned: codec.U32 = 0
    seconds: Seconds = 0.0
    rounds_per_second: Seconds = 0.0
    epsilon_spent: Amount = 0.0
    epsilon_limit: Amount = 0.0
    delta: Amount = 0.0
    bytes_sent: codec.U64 = 0
    bytes_received: codec.U64 = 0
    rounds_abandoned: codec.U32 = 0
    sites: Annotated[tuple[SiteReport, ...], codec.Many(codec.Nested(SiteReport), most=4096)] = ()
    streams_refused: Annotated[Mapping[str, int], codec.Dictionary(codec.Word(), codec.Unsigned(4))] = field(
        default_factory=dict
    )
    task: codec.CodeWord = TRAINING

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.phase == OVER

    @property
    def seconds_left(self) -> float | None:
        """The time that the run still takes at its present pace; None if unknown or absurd."""
        if self.is_over or self.phase == WAITING or self.rounds_per_second <= 0:
            return None
        left = max(0, self.rounds_planned - self.rounds_done) / self.rounds_per_second
        return left if left <= _MAX_SECONDS else None


# What is said ---------------------------------------------------------------------------------------------------------

MAX_REQUEST_BYTES = 1024
MAX_REPORT_BYTES = 4 << 20
"""Largest report: 4096 sites with the longest names and codes, and all events."""
MAX_EVENTS = 256
MIN_INTERVAL, MAX_INTERVAL = 0.2, 60.0
"""Seconds between two reports."""


@dataclass(frozen=True, slots=True)
class WatchRequest(codec.Encoded):
    """Monitor: tell me of the run. It is all that a monitor ever says.

    Attributes:
        roster_digest: SHA-256 of the roster that it pins. Not the coordinator's: `roster-mismatch`.
        interval: least seconds between two reports; the coordinator takes it as 0.2 to 60.
    """

    KIND = StreamKind.WATCH_REQUEST
    roster_digest: codec.Hash
    interval: Annotated[float, codec.Real(least=0.0)] = 0.5

    @property
    def seconds(self) -> float:
        """The interval, within its bounds."""
        return min(max(self.interval, MIN_INTERVAL), MAX_INTERVAL)


@dataclass(frozen=True, slots=True)
class Update(codec.Encoded):
    """Coordinator: how the run is, and what happened since it last told this monitor.

    Attributes:
        report: how the run is.
        events: oldest first; the first message of a stream has the last ones of the process.
        missed: events that are left out because they were too many.
    """

    KIND = StreamKind.TOLD
    report: RunReport
    events: Annotated[tuple[EventReport, ...], codec.Many(codec.Nested(EventReport), most=MAX_EVENTS)] = ()
    missed: codec.U64 = 0


def report_bytes(report: RunReport) -> bytes:
    """Return the part of an `Update` that all monitors share; `event_bytes` is appended to it."""
    parts = [codec.head(StreamKind.TOLD)]
    report.write_fields(parts)
    return b"".join(parts)


def event_bytes(events: Sequence[EventReport], missed: int) -> bytes:
    """Return the rest of the message: events and the number of missed ones."""
    parts: list[bytes] = []
    (_, of_events), (_, of_missed) = codec.layout(Update)[1:]
    of_events.write(events, parts)
    of_missed.write(missed, parts)
    return b"".join(parts)
