"""The legal moves of both parties as one table, every reason to refuse one, and what a step returns.

Nothing else decides what may happen when: the state machines ask `advance` and raise the codes of the row they are
in. `docs/secure-aggregation.md` draws its diagram from this table (``python -m experiments secagg_diagram``).
State names say what the party knows or waits for.

No text here takes a value that was secret, or bytes that a peer sent: a peer is named by its number and a field by
its name, never by its content.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Generic, TypeVar

from hedgerow.errors import AggregationError, ProtocolError, RemoteProtocolError


class Code(StrEnum):
    """Why something was refused or abandoned; `REASONS` has the sentences for each."""

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
    TOO_FEW_NEIGHBOURS = "too-few-neighbours"
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
    # Abandoned by the aggregator; but for the last two, nothing was released.
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
    NONCE_LIST = "list of nonces"
    SHARE_DELIVERY = "delivered shares"
    READY_LIST = "ready list"
    ROUND_SPEC = "round spec"
    SAME_SPEC = "the same spec again"
    MANIFEST = "manifest"
    SAME_MANIFEST = "the same manifest again"
    OTHER_MANIFEST = "a second, different manifest"
    ECHO_CERTIFICATE = "echo certificate"
    KEY_BUNDLE = "key bundle"
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
    Code.TOO_FEW_SURVIVORS,
    Code.TOO_FEW_NEIGHBOURS, Code.SHARE_UNREADABLE,
)  # fmt: skip
_N, _A, _S, _E = Party.NODE, Party.AGGREGATOR, State, Event

TRANSITIONS: tuple[Move, ...] = (
    # The node enrols.
    Move(_N, _S.UNENROLLED, _E.PARAMETERS, _S.KEYS_ADVERTISED, "key bundle",
         (*_ANY, Code.ROSTER_MISMATCH, Code.PARAMETERS_REFUSED, Code.STALE_ATTEMPT, Code.UNKNOWN_NODE)),
    Move(_N, _S.KEYS_ADVERTISED, _E.KEY_LIST, _S.NONCE_REVEALED, "nonce",
         (*_LISTED, Code.COHORT_TOO_SMALL, Code.PARAMETERS_REFUSED, Code.OWN_BUNDLE_ALTERED, Code.REPEATED_KEY,
          Code.LOW_ORDER_KEY, Code.DIFFERENT_VIEW)),
    Move(_N, _S.NONCE_REVEALED, _E.NONCE_LIST, _S.SHARES_SENT, "encrypted shares",
         (*_LISTED, Code.REVEAL_MISSING, Code.NONCE_MISMATCH, Code.DIFFERENT_VIEW)),
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
         (*_LISTED, Code.CONTRADICTION, Code.DIFFERENT_VIEW)),
    Move(_A, _S.COLLECTING_KEYS, _E.CLOSE, _S.COLLECTING_NONCES, "list of key bundles", (Code.TOO_FEW_READY,)),
    Move(_A, _S.COLLECTING_NONCES, _E.NONCE, _S.COLLECTING_NONCES, "",
         (*_LISTED, Code.CONTRADICTION, Code.DIFFERENT_VIEW, Code.NONCE_MISMATCH)),
    Move(_A, _S.COLLECTING_NONCES, _E.CLOSE, _S.COLLECTING_SHARES, "list of nonces", (Code.REVEAL_MISSING,)),
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

# Codes that belong to no single row: a message for a closed collection, a state that is not loaded at all, and a sum
# that is found to be too large, or no sum over records, when it has its noise.
ANYWHERE: tuple[Code, ...] = (
    Code.LATE_UPLOAD, Code.STOPPED, Code.CORRUPT_STATE, Code.ROLLED_BACK, Code.SUM_OUT_OF_RANGE,
    Code.RELEASE_IMPLAUSIBLE,
)  # fmt: skip

_NEXT: dict[tuple[Party, State, Event], tuple[State, ...]] = {}
for _move in TRANSITIONS:
    _key = (_move.party, _move.state, _move.event)
    _NEXT[_key] = (*_NEXT.get(_key, ()), _move.then)


def allowed(party: Party, state: State, event: Event) -> tuple[State, ...]:
    """Returns the states that may follow; empty when the event is not legal in this state."""
    return _NEXT.get((party, state, event), ())


class Blame(Enum):
    """The party at fault, which decides the class of the error."""

    PEER = "peer"
    SELF = "self"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Reason:
    """The three sentences of one code, and who is to blame."""

    what: str
    cause: str
    remedy: str
    blame: Blame = Blame.PEER


_NEW_EPOCH = "Start a new epoch."
_ASK = "Ask the coordinator's operator; keep the journal as evidence."
_VERSIONS = "Compare the installed versions of hedgerow."
_LYING = "The coordinator is faulty or lies."
_PEER = "A node is faulty or lies, or its message was altered on the way."

REASONS: dict[Code, Reason] = {
    Code.MALFORMED: Reason("A message is not in canonical form.", _PEER, _VERSIONS),
    Code.UNKNOWN_VERSION: Reason("A message is of another version.", "The peers run different releases.", _VERSIONS),
    Code.OUT_OF_ORDER: Reason("A message came that this state does not expect.", _LYING, _ASK),
    Code.UNKNOWN_NODE: Reason("A node is named that does not belong here.", _LYING, "Compare the pinned rosters."),
    Code.REPEATED_NODE: Reason("Nodes are named twice or out of order.", _LYING, _ASK),
    Code.BAD_SIGNATURE: Reason("A signature does not verify.", _PEER, "Compare the pinned rosters."),
    Code.ROSTER_MISMATCH: Reason(
        "The epoch is for another roster than the pinned one.", "A roster was changed on one side.",
        "Pin the same roster at every site."),
    Code.PARAMETERS_REFUSED: Reason(
        "The epoch's parameters give weaker guarantees than this node's policy asks for.",
        "The plan and the policy disagree.", "Raise the plan's thresholds or, knowingly, relax the policy."),
    Code.STALE_ATTEMPT: Reason(
        "The epoch's attempt number is not newer than the last one, or there were too many.",
        "The coordinator replays a set-up, or redraws the graph too often.", "Start a new run."),
    Code.COHORT_TOO_SMALL: Reason("Too few nodes take part.", "Sites are offline or left out.",
                                  "Wait for more sites, or agree on a smaller cohort."),
    Code.OWN_BUNDLE_ALTERED: Reason("This node's own keys are not as it sent them.", _LYING, _ASK),
    Code.REPEATED_KEY: Reason("A public key occurs twice.", "A node copied another's keys.", _ASK),
    Code.LOW_ORDER_KEY: Reason("A public key is a point of low order.", _PEER, _ASK),
    Code.NONCE_MISMATCH: Reason("A revealed nonce is not the one committed to.", _PEER, _NEW_EPOCH),
    Code.REVEAL_MISSING: Reason("A node did not reveal its nonce.", "It went offline during set-up.",
                                "Start a new epoch without it."),
    Code.DIFFERENT_VIEW: Reason("A peer signed another view of the set-up than ours.", _LYING, _ASK),
    Code.SHARE_UNREADABLE: Reason("An encrypted share does not open.", _PEER, "Its holder withholds that one share."),
    Code.NOT_ACKNOWLEDGED: Reason("A node is called ready whose shares were not acknowledged.", _LYING, _ASK),
    Code.NOT_READY: Reason("This node is not among the ready ones.", "Some of its shares did not arrive.",
                           "Wait for the next epoch."),
    Code.OTHER_EPOCH: Reason("A message is for another epoch.", "A peer missed a change of epoch.", _NEW_EPOCH),
    Code.SLOT_REUSED: Reason("The slot was used before.", "The coordinator was restored, or replays a round.",
                             "Use the next slot."),
    Code.SLOT_OUT_OF_RANGE: Reason("The epoch has no such slot.", "All one-slot keys are used up.", _NEW_EPOCH),
    Code.PURPOSE_UNEXPECTED: Reason(
        "The round's purpose, model or vectors are not those this node's own training state expects.",
        "The coordinator asks for another step, or another model.", _ASK),
    Code.PURPOSE_ANSWERED: Reason("This purpose was answered before.", "A sum is being taken twice.", _ASK),
    Code.WIDTH_TOO_NARROW: Reason("The width does not hold the bound on the sum.", "The plan was altered.",
                                  "Recompute the width from the plan's bound."),
    Code.SPEC_UNACCEPTABLE: Reason("A round's vectors are empty, too long, repeated or without a bound.",
                                   "The plan was altered.", _ASK),
    Code.NOISE_MISMATCH: Reason("The round's noise is not the epoch's.", _LYING, _ASK),
    Code.OTHER_SPEC: Reason("A header or manifest is about another round spec than ours.", _LYING, _ASK),
    Code.HEADER_ALTERED: Reason("A signed header is not the one the manifest lists.", _LYING, _ASK),
    Code.SELF_OMITTED: Reason("The manifest leaves this node out, or lists another vector for it.",
                              "The upload came too late, or the coordinator lies.", "Take part in the next slot."),
    Code.TOO_FEW_SURVIVORS: Reason("The manifest lists fewer survivors than guaranteed.", _LYING, _ASK),
    Code.TOO_FEW_NEIGHBOURS: Reason("Too few of this node's neighbours survived.", "Many sites dropped out.",
                                    "Retry the purpose in a new slot."),
    Code.SECOND_MANIFEST: Reason("A second, different signed manifest came for one slot.", _LYING,
                                 "This node has stopped. Keep both manifests as evidence."),
    Code.TOO_FEW_ECHOES: Reason("Too few nodes confirmed the manifest.", "Sites dropped out, or saw another one.",
                                "Repeat the same manifest, then abandon the purpose."),
    Code.STOPPED: Reason("This node has stopped in this epoch.", "It holds evidence of a lying coordinator.", _ASK),
    Code.CONTENT_MISMATCH: Reason("A message's content is not what its signed header says.", _PEER,
                                  "Leave the node out of this slot."),
    Code.LATE_UPLOAD: Reason("A masked vector came after the manifest.", "The node was slow.",
                             "It is discarded unopened; the node takes part in the next slot."),
    Code.NOT_A_SURVIVOR: Reason("A node answered that is not in the manifest.", _PEER, "Ignore its answer."),
    Code.OTHER_MANIFEST: Reason("An answer is about another manifest.", _PEER, "Ignore it."),
    Code.CONTRADICTION: Reason("A node sent two different messages where one is allowed.",
                               "It was restored from a backup, or lies.", "Re-enrol it in a new epoch."),
    Code.CORRUPT_STATE: Reason("The stored state cannot be read.", "The file is damaged or of another version.",
                               "Re-enrol in a new epoch.", Blame.SELF),
    Code.ROLLED_BACK: Reason("The stored state is older than the last one written.",
                             "A backup was restored, or the last write was lost.",
                             "Re-enrol in a new epoch; never resume from a backup.", Blame.SELF),
    Code.VECTOR_UNFIT: Reason("This node's own vector does not fit the round's spec.",
                              "A record is outside the plan's bounds, or the query was computed wrongly.",
                              "Check the data against the plan.", Blame.SELF),
    Code.TOO_FEW_READY: Reason("Too few nodes finished the set-up.", "Sites are offline.",
                               "Wait for them and start a new epoch.", Blame.NOBODY),
    Code.TOO_FEW_UPLOADS: Reason("Too few masked vectors arrived.", "Sites dropped out.",
                                 "The slot is burned; retry the purpose in a new one.", Blame.NOBODY),
    Code.TOO_FEW_ANSWERS: Reason("Too few nodes returned their shares.", "Sites dropped out after the manifest.",
                                 "Repeat the same manifest as they return.", Blame.NOBODY),
    Code.SECRET_UNRECOVERABLE: Reason("No set of the shares gives a secret that fits its commitment.",
                                      "A node dealt, or too many nodes returned, wrong shares.",
                                      "Abandon the purpose and inspect the named nodes.", Blame.NOBODY),
    Code.SUM_OUT_OF_RANGE: Reason("A sum with its noise is outside the plan's bound.",
                                  "Many more rows are there than the plan declares, or a site sent garbage.",
                                  "What was released stays charged; inspect the sites, or declare more records.",
                                  Blame.NOBODY),
    Code.RELEASE_IMPLAUSIBLE: Reason("A release cannot be a sum over records.",
                                     "A site in the sum sent something else than its sums, or has many more rows than "
                                     "the plan declares; which one, masks hide.",
                                     "What was released stays charged; ask the named sites for their logs, and leave "
                                     "sites out until a run goes through.",
                                     Blame.NOBODY),
}  # fmt: skip


class Refusal(RemoteProtocolError):
    """A peer's message was refused; `reason` is the code, `peer` the node's number or "coordinator"."""

    reason: Code
    peer: int | str | None


class OwnMistake(ProtocolError):
    """This side's own input or state cannot be used; `reason` is the code."""

    reason: Code
    peer: int | str | None


class Abandoned(AggregationError):
    """A set-up or a sum was given up and nothing was released; `reason` is the code."""

    reason: Code
    peer: int | str | None


Fault = Refusal | OwnMistake | Abandoned
Complaints = list[Fault]

_CLASSES: dict[Blame, type[Refusal] | type[OwnMistake] | type[Abandoned]] = {
    Blame.PEER: Refusal,
    Blame.SELF: OwnMistake,
    Blame.NOBODY: Abandoned,
}


def untraced(fault: Fault) -> Fault:
    """Returns a fault that is not raised any further, without its traceback.

    The frames there hold the state that a node was in, keys and all, and whole messages; and as one of them holds the
    list that the fault is kept in, they would live until the collector comes.
    """
    fault.__cause__ = fault.__context__ = None
    fault.__traceback__ = None
    return fault


def refuse(code: Code, detail: str = "", peer: int | str | None = None) -> Fault:
    """Returns the error of `code`, to be raised; `detail` names a field or a number, never a value that was secret."""
    reason = REASONS[code]
    named = "" if peer is None else f" (peer: {peer})"
    error = _CLASSES[reason.blame](
        f"{reason.what}{named}{' ' + detail if detail else ''}",
        cause=reason.cause,
        remedy=reason.remedy,
        code=code.value,
    )
    error.reason = code
    error.peer = peer
    return error


def advance(party: Party, state: State, event: Event, then: State | None = None) -> State:
    """Returns the next state by the table of transitions; `then` chooses where a row allows two.

    Raises Refusal OUT_OF_ORDER when the event is not legal in this state.
    """
    following = allowed(party, state, event)
    if not following or (then is not None and then not in following):
        raise refuse(Code.OUT_OF_ORDER, f"The {party} is {state} and met: {event}.")
    return following[0] if then is None else then


Entropy = Callable[[int], bytes]
"""Returns that many fresh bytes of the operating system's generator; injected, never global."""

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Record:
    """A fact to be written, with the state's bytes, before the step's message is sent.

    `sequence` counts a node's persisted steps: kept apart from the state, it unmasks a restored backup.
    """

    fact: str
    sequence: int
    slot: int = -1
    purpose: str = ""
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class Step(Generic[S]):
    """The outcome of one step.

    Args: state: the next state; message: bytes to send, or None; persist: facts that must reach the disk, together
        with ``state.to_bytes()``, before `message` leaves (empty when nothing changed); complaints: refusals that
        concern a part of the message only.
    """

    state: S
    message: bytes | None
    persist: tuple[Record, ...] = ()
    complaints: tuple[Fault, ...] = ()
