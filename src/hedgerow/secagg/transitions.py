# SPDX-License-Identifier: Apache-2.0
"""The legal moves of both parties as one table, every reason to refuse one, and what a step returns.

Nothing else decides what may happen when: the state machines ask `advance` and raise the codes of the row they are
in. `docs/wire.md` has diagrams of this table. State names say what the party knows or waits for.

No text here takes a value that was secret, or bytes that a peer sent. A peer is named by its number and a field by
its name, never by its content.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from hedgerow.errors import AggregationError, ProtocolError, RemoteProtocolError


class Code(StrEnum):
    """Why something was refused or abandoned; `errors.toml` has the sentences for each."""

    # What any message can get wrong.
    MALFORMED = "malformed-message"
    UNKNOWN_VERSION = "unknown-version"
    OUT_OF_ORDER = "out-of-order"
    UNKNOWN_NODE = "unknown-node"
    REPEATED_NODE = "repeated-node"
    BAD_SIGNATURE = "bad-signature"
    # Set-up, refused by a node.
    ROSTER_MISMATCH = "roster-mismatch"
    PARAMETERS_REFUSED = "parameters-refused"
    STALE_ATTEMPT = "stale-attempt"
    COHORT_TOO_SMALL = "cohort-too-small"
    OWN_BUNDLE_ALTERED = "own-bundle-altered"
    REPEATED_KEY = "repeated-key"
    LOW_ORDER_KEY = "low-order-key"
    NONCE_MISMATCH = "nonce-mismatch"
    REVEAL_MISSING = "reveal-missing"
    DIFFERENT_VIEW = "different-view"
    SLOT_KEYS_ALTERED = "slot-keys-altered"
    SHARE_UNREADABLE = "share-unreadable"
    NOT_ACKNOWLEDGED = "not-acknowledged"
    NOT_READY = "not-ready"
    # An aggregation, refused by a node.
    OTHER_EPOCH = "other-epoch"
    SLOT_REUSED = "slot-reused"
    SLOT_OUT_OF_RANGE = "slot-out-of-range"
    PURPOSE_UNEXPECTED = "purpose-unexpected"
    PURPOSE_ANSWERED = "purpose-answered"
    WIDTH_TOO_NARROW = "width-too-narrow"
    SPEC_UNACCEPTABLE = "spec-unacceptable"
    NOISE_MISMATCH = "noise-mismatch"
    OTHER_SPEC = "other-spec"
    HEADER_ALTERED = "header-altered"
    SELF_OMITTED = "self-omitted"
    TOO_FEW_SURVIVORS = "too-few-survivors"
    SECOND_MANIFEST = "second-manifest"
    TOO_FEW_ECHOES = "too-few-echoes"
    STOPPED = "stopped"
    # Refused by the aggregator.
    CONTENT_MISMATCH = "content-mismatch"
    LATE_UPLOAD = "late-upload"
    NOT_A_SURVIVOR = "not-a-survivor"
    OTHER_MANIFEST = "other-manifest"
    CONTRADICTION = "contradiction"
    # A node's own state.
    CORRUPT_STATE = "corrupt-state"
    ROLLED_BACK = "rolled-back"
    # This side's own mistake.
    VECTOR_UNFIT = "vector-unfit"
    # Abandoned by the aggregator; nothing was released, except for the last two.
    TOO_FEW_READY = "too-few-ready"
    TOO_FEW_UPLOADS = "too-few-uploads"
    TOO_FEW_ANSWERS = "too-few-answers"
    SECRET_UNRECOVERABLE = "secret-unrecoverable"
    SUM_OUT_OF_RANGE = "sum-out-of-range"
    RELEASE_IMPLAUSIBLE = "release-implausible"


class Party(StrEnum):
    NODE = "node"
    AGGREGATOR = "aggregator"


class State(StrEnum):
    """What a party knows or waits for."""

    # Node, set-up.
    UNENROLLED = "unenrolled"
    KEYS_ADVERTISED = "keys-advertised"
    NONCE_REVEALED = "nonce-revealed"
    SHARES_SENT = "shares-sent"
    SHARES_ACKNOWLEDGED = "shares-acknowledged"
    # Node, aggregations.
    READY = "ready"
    VECTOR_MASKED = "vector-masked"
    MANIFEST_ECHOED = "manifest-echoed"
    SHARES_ANSWERED = "shares-answered"
    STOPPED = "stopped"
    # Aggregator, set-up.
    COLLECTING_KEYS = "collecting-keys"
    COLLECTING_NONCES = "collecting-nonces"
    COLLECTING_SHARES = "collecting-shares"
    COLLECTING_ACKNOWLEDGEMENTS = "collecting-acknowledgements"
    EPOCH_READY = "epoch-ready"
    # Aggregator, one aggregation.
    COLLECTING_VECTORS = "collecting-vectors"
    COLLECTING_ECHOES = "collecting-echoes"
    COLLECTING_ANSWERS = "collecting-answers"
    RELEASED = "released"
    ABANDONED = "abandoned"


class Event(StrEnum):
    """What can happen to a party: a message arrives, or (aggregator) it closes a collection."""

    PARAMETERS = "epoch parameters"
    KEY_LIST = "list of key bundles"
    NONCE_LIST = "list of nonces and slot keys"
    SHARE_DELIVERY = "delivered shares"
    READY_LIST = "ready list"
    ROUND_SPEC = "round spec"
    SAME_SPEC = "the same spec again"
    MANIFEST = "manifest"
    SAME_MANIFEST = "the same manifest again"
    OTHER_MANIFEST = "a second, different manifest"
    ECHO_CERTIFICATE = "echo certificate"
    KEY_BUNDLE = "key bundle and slot keys"
    NONCE = "nonce"
    SHARES = "encrypted shares"
    ACKNOWLEDGEMENT = "acknowledgement"
    VECTOR = "masked vector"
    ECHO = "echo"
    ANSWER = "unmasking shares"
    CLOSE = "close"
    CLOSE_FOR_ECHO = "close, echo wanted"
    RELEASE = "release"
    ABANDON = "abandon"


@dataclass(frozen=True, slots=True)
class Move:
    """One row: in `state`, `party` meets `event`, sends `sends` ("" for nothing) and is in `then`."""

    party: Party
    state: State
    event: Event
    then: State
    sends: str
    refuses: tuple[Code, ...] = ()


_ANY = (Code.MALFORMED, Code.UNKNOWN_VERSION, Code.OUT_OF_ORDER)
_LISTED = (*_ANY, Code.UNKNOWN_NODE, Code.REPEATED_NODE, Code.BAD_SIGNATURE)
_SPEC = (
    *_ANY, Code.BAD_SIGNATURE, Code.ROSTER_MISMATCH, Code.OTHER_EPOCH, Code.SLOT_REUSED, Code.SLOT_OUT_OF_RANGE,
    Code.PURPOSE_UNEXPECTED, Code.PURPOSE_ANSWERED, Code.WIDTH_TOO_NARROW,
    Code.SPEC_UNACCEPTABLE, Code.NOISE_MISMATCH, Code.VECTOR_UNFIT,
)  # fmt: skip
_MANIFEST = (
    *_LISTED, Code.ROSTER_MISMATCH, Code.OTHER_EPOCH, Code.OTHER_SPEC, Code.HEADER_ALTERED, Code.SELF_OMITTED,
    Code.TOO_FEW_SURVIVORS, Code.SHARE_UNREADABLE,
)  # fmt: skip
_N, _A, _S, _E = Party.NODE, Party.AGGREGATOR, State, Event

TRANSITIONS: tuple[Move, ...] = (
    # The node enrols.
    Move(_N, _S.UNENROLLED, _E.PARAMETERS, _S.KEYS_ADVERTISED, "key bundle and slot keys",
         (*_ANY, Code.ROSTER_MISMATCH, Code.PARAMETERS_REFUSED, Code.STALE_ATTEMPT, Code.UNKNOWN_NODE)),
    Move(_N, _S.KEYS_ADVERTISED, _E.KEY_LIST, _S.NONCE_REVEALED, "nonce",
         (*_LISTED, Code.COHORT_TOO_SMALL, Code.PARAMETERS_REFUSED, Code.OWN_BUNDLE_ALTERED, Code.REPEATED_KEY,
          Code.LOW_ORDER_KEY, Code.DIFFERENT_VIEW)),
    Move(_N, _S.NONCE_REVEALED, _E.NONCE_LIST, _S.SHARES_SENT, "encrypted shares",
         (*_LISTED, Code.REVEAL_MISSING, Code.NONCE_MISMATCH, Code.DIFFERENT_VIEW, Code.SLOT_KEYS_ALTERED,
          Code.REPEATED_KEY, Code.LOW_ORDER_KEY)),
    Move(_N, _S.SHARES_SENT, _E.SHARE_DELIVERY, _S.SHARES_ACKNOWLEDGED, "acknowledgement",
         (*_ANY, Code.UNKNOWN_NODE, Code.REPEATED_NODE, Code.SHARE_UNREADABLE, Code.DIFFERENT_VIEW)),
    Move(_N, _S.SHARES_ACKNOWLEDGED, _E.READY_LIST, _S.READY, "",
         (*_LISTED, Code.NOT_READY, Code.NOT_ACKNOWLEDGED, Code.COHORT_TOO_SMALL, Code.DIFFERENT_VIEW)),
    # The node answers aggregations. An unanswered slot is burned by a later one.
    *(Move(_N, state, _E.ROUND_SPEC, _S.VECTOR_MASKED, "masked vector", _SPEC)
      for state in (_S.READY, _S.VECTOR_MASKED, _S.MANIFEST_ECHOED, _S.SHARES_ANSWERED)),
    Move(_N, _S.VECTOR_MASKED, _E.SAME_SPEC, _S.VECTOR_MASKED, "the same masked vector", (Code.SLOT_REUSED,)),
    Move(_N, _S.VECTOR_MASKED, _E.MANIFEST, _S.SHARES_ANSWERED, "unmasking shares", _MANIFEST),
    Move(_N, _S.VECTOR_MASKED, _E.MANIFEST, _S.MANIFEST_ECHOED, "echo", _MANIFEST),
    Move(_N, _S.MANIFEST_ECHOED, _E.SAME_MANIFEST, _S.MANIFEST_ECHOED, "the same echo"),
    Move(_N, _S.MANIFEST_ECHOED, _E.ECHO_CERTIFICATE, _S.SHARES_ANSWERED, "unmasking shares",
         (*_LISTED, Code.TOO_FEW_ECHOES, Code.OTHER_MANIFEST)),
    Move(_N, _S.SHARES_ANSWERED, _E.SAME_MANIFEST, _S.SHARES_ANSWERED, "the same shares"),
    Move(_N, _S.SHARES_ANSWERED, _E.ECHO_CERTIFICATE, _S.SHARES_ANSWERED, "the same shares", (Code.OTHER_MANIFEST,)),
    *(Move(_N, state, _E.OTHER_MANIFEST, _S.STOPPED, "", (Code.SECOND_MANIFEST, Code.STOPPED))
      for state in (_S.MANIFEST_ECHOED, _S.SHARES_ANSWERED)),
    # The aggregator sets an epoch up.
    Move(_A, _S.COLLECTING_KEYS, _E.KEY_BUNDLE, _S.COLLECTING_KEYS, "",
         (*_LISTED, Code.CONTRADICTION, Code.DIFFERENT_VIEW, Code.SLOT_KEYS_ALTERED, Code.REPEATED_KEY,
          Code.LOW_ORDER_KEY)),
    Move(_A, _S.COLLECTING_KEYS, _E.CLOSE, _S.COLLECTING_NONCES, "list of key bundles", (Code.TOO_FEW_READY,)),
    Move(_A, _S.COLLECTING_NONCES, _E.NONCE, _S.COLLECTING_NONCES, "",
         (*_LISTED, Code.CONTRADICTION, Code.DIFFERENT_VIEW, Code.NONCE_MISMATCH)),
    Move(_A, _S.COLLECTING_NONCES, _E.CLOSE, _S.COLLECTING_SHARES, "list of nonces and slot keys",
         (Code.REVEAL_MISSING,)),
    Move(_A, _S.COLLECTING_SHARES, _E.SHARES, _S.COLLECTING_SHARES, "",
         (*_LISTED, Code.CONTRADICTION, Code.DIFFERENT_VIEW)),
    Move(_A, _S.COLLECTING_SHARES, _E.CLOSE, _S.COLLECTING_ACKNOWLEDGEMENTS, "delivered shares",
         (Code.TOO_FEW_READY,)),
    Move(_A, _S.COLLECTING_ACKNOWLEDGEMENTS, _E.ACKNOWLEDGEMENT, _S.COLLECTING_ACKNOWLEDGEMENTS, "",
         (*_LISTED, Code.CONTRADICTION, Code.DIFFERENT_VIEW)),
    Move(_A, _S.COLLECTING_ACKNOWLEDGEMENTS, _E.CLOSE, _S.EPOCH_READY, "ready list", (Code.TOO_FEW_READY,)),
    # The aggregator sums one purpose.
    Move(_A, _S.COLLECTING_VECTORS, _E.VECTOR, _S.COLLECTING_VECTORS, "",
         (*_LISTED, Code.OTHER_SPEC, Code.CONTENT_MISMATCH, Code.CONTRADICTION)),
    Move(_A, _S.COLLECTING_VECTORS, _E.CLOSE, _S.COLLECTING_ANSWERS, "manifest"),
    Move(_A, _S.COLLECTING_VECTORS, _E.CLOSE_FOR_ECHO, _S.COLLECTING_ECHOES, "manifest"),
    Move(_A, _S.COLLECTING_VECTORS, _E.ABANDON, _S.ABANDONED, "", (Code.TOO_FEW_UPLOADS,)),
    Move(_A, _S.COLLECTING_ECHOES, _E.ECHO, _S.COLLECTING_ECHOES, "",
         (*_LISTED, Code.OTHER_MANIFEST, Code.NOT_A_SURVIVOR)),
    Move(_A, _S.COLLECTING_ECHOES, _E.CLOSE, _S.COLLECTING_ANSWERS, "echo certificate", (Code.TOO_FEW_ANSWERS,)),
    Move(_A, _S.COLLECTING_ECHOES, _E.ABANDON, _S.ABANDONED, ""),
    Move(_A, _S.COLLECTING_ANSWERS, _E.ANSWER, _S.COLLECTING_ANSWERS, "",
         (*_LISTED, Code.OTHER_MANIFEST, Code.NOT_A_SURVIVOR, Code.CONTRADICTION, Code.CONTENT_MISMATCH)),
    Move(_A, _S.COLLECTING_ANSWERS, _E.RELEASE, _S.RELEASED, "the sum", (Code.TOO_FEW_ANSWERS,)),
    Move(_A, _S.COLLECTING_ANSWERS, _E.ABANDON, _S.ABANDONED, "",
         (Code.SECRET_UNRECOVERABLE,)),
)  # fmt: skip

_NEXT: dict[tuple[Party, State, Event], tuple[State, ...]] = {}
for _move in TRANSITIONS:
    _key = (_move.party, _move.state, _move.event)
    _NEXT[_key] = (*_NEXT.get(_key, ()), _move.then)


def next_states(party: Party, state: State, event: Event) -> tuple[State, ...]:
    """Return the states that may follow; none if the event is not legal in this state."""
    return _NEXT.get((party, state, event), ())


class Refusal(RemoteProtocolError):
    """A peer's message was refused; `reason` is the code, `peer` the node's number or "coordinator"."""

    reason: Code
    peer: int | str | None


class OwnMistake(ProtocolError):
    """This side's own input or state cannot be used; `reason` is the code."""

    reason: Code
    peer: int | str | None


class SumAbandoned(AggregationError):
    """A set-up or a sum was given up and nothing was released; `reason` is the code."""

    reason: Code
    peer: int | str | None


Fault = Refusal | OwnMistake | SumAbandoned
Complaints = list[Fault]

_OWN = frozenset({Code.CORRUPT_STATE, Code.ROLLED_BACK, Code.VECTOR_UNFIT})
# Sites are gone or a sum came out wrong: no single peer can be blamed.
_NO_PARTYS = frozenset(
    {
        Code.TOO_FEW_READY, Code.TOO_FEW_UPLOADS, Code.TOO_FEW_ANSWERS, Code.SECRET_UNRECOVERABLE,
        Code.SUM_OUT_OF_RANGE, Code.RELEASE_IMPLAUSIBLE,
    }
)  # fmt: skip


def drop_traceback(fault: Fault) -> Fault:
    """Remove the traceback of a fault that is not raised any further, and return the fault.

    The frames of the traceback hold the node's state, keys included, and whole messages. One of them also holds the
    list that keeps the fault, so they would live until the garbage collector runs.
    """
    fault.__cause__ = fault.__context__ = None
    fault.__traceback__ = None
    return fault


def refuse(code: Code, detail: str = "", peer: int | str | None = None) -> Fault:
    """Return the error of `code`, for the caller to raise.

    `detail` names a field or a number, never a value that was secret.
    """
    error: Fault = (OwnMistake if code in _OWN else SumAbandoned if code in _NO_PARTYS else Refusal)(code.value)
    named = "" if peer is None else f" (peer: {peer})"
    error.what += named + (f" {detail}" if detail else "")
    error.reason = code
    error.peer = peer
    return error


def advance(party: Party, state: State, event: Event, then: State | None = None) -> State:
    """Return the next state by the table of transitions; `then` chooses if a row allows two.

    Raises Refusal OUT_OF_ORDER when the event is not legal in this state.
    """
    following = next_states(party, state, event)
    if not following or (then is not None and then not in following):
        raise refuse(Code.OUT_OF_ORDER, f"The {party} is {state} and met: {event}.")
    return following[0] if then is None else then


S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A fact to be written, with the state's bytes, before the step's message is sent.

    `sequence` counts a node's persisted steps. It is kept apart from the state, so that a restored backup is noticed.
    """

    fact: str
    sequence: int
    slot: int = -1
    purpose: str = ""
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class Step(Generic[S]):
    """The outcome of one step.

    Attributes:
        state: the next state.
        message: bytes to send, or None.
        persist: facts that must reach the disk, together with ``state.to_bytes()``, before `message` leaves (empty if
            the disk already holds enough).
        complaints: refusals of parts of the message.
    """

    state: S
    message: bytes | None
    persist: tuple[StepRecord, ...] = ()
    complaints: tuple[Fault, ...] = ()
