# SPDX-License-Identifier: Apache-2.0
"""The messages of a run, and which of them may come when.

`hedgerow.codec` defines their encoding. Secure aggregation's own messages travel inside as payloads that this module
does not read. The reason of a refusal, or of the end of a run, travels as a code word only: its sentences stay with the
party for whom they were written.

The script is one table for both parties:

    node                                          coordinator
    OUTSIDE    Hello ->          <- Welcome       any state
    OUTSIDE                      <- Invitation    GATHERING     (join timeout; EvaluationInvitation, SurveyInvitation)
    OUTSIDE    Deferred ->                                      (it asks its owner first; Ready or Refused follow)
    INVITED    Ready ->          <- Origin        SETTING_UP    (from the second epoch on, if sites draw the seed)
    INVITED                      <- Enrol         SETTING_UP    (four collections, round timeout each)
    ENROLLING  SetupAnswer ->    <- Setup
    WAITING                      <- RoundRequest  COLLECTING_VECTORS
    MASKED     Upload ->         <- Unmask        COLLECTING_ECHOES or COLLECTING_ANSWERS
    ECHOED     Echo ->           <- Certificate   COLLECTING_ANSWERS
    WAITING    Answer ->         <- RoundRequest or Finished
    FINISHED   Done ->                            FINISHING, then OVER (Salvaged in place of Finished: an early end)

A node says Hello on every connection. The coordinator says Welcome and sends again what the node may have missed.
Either may end the run, with a code word. A new Enrol, for a later attempt, begins a new epoch of the same run.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Annotated, cast, get_args

from hedgerow import codec
from hedgerow.errors import RemoteProtocolError
from hedgerow.plan.plan import MAX_STRUCTURE_SEED

MAX_MESSAGE_BYTES = 1 << 27
"""Longest message of a run; an engine may disconnect a peer that sends more."""
NO_HASH = bytes(codec.HASH_BYTES)

MAX_RELEASES = 1 << 16
Count = Annotated[int, codec.Unsigned(4, most=MAX_RELEASES)]
"""Number of releases."""
Releases = Annotated[tuple[codec.IntVector, ...], codec.Many(codec.Integers(most=1 << 22), size=4, most=MAX_RELEASES)]
Seed = Annotated[int, codec.Unsigned(8, most=MAX_STRUCTURE_SEED)]
PlanBytes = Annotated[bytes, codec.Blob(most=1 << 22)]
ModelBytes = Annotated[bytes, codec.Blob(most=1 << 26)]
AnyReal = Annotated[float, codec.Real()]


def translate_fault(fault: codec.CodecFault) -> RemoteProtocolError:
    """Return the error for bytes that are no message of a run."""
    is_version = fault.flaw is codec.Flaw.UNKNOWN_VERSION
    return RemoteProtocolError("malformed-message", code="unknown-version" if is_version else None, fault=fault.what)


def _require_at_most(total: int, releases: tuple[codec.IntVector, ...]) -> None:
    if len(releases) > total:
        codec.fail("There are more releases than it says.")


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
    SURVEY = 14
    PAUSED = 15
    # Node to coordinator.
    HELLO = 20
    READY = 21
    SETUP_ANSWER = 22
    UPLOAD = 23
    ECHO = 24
    ANSWER = 25
    REFUSED = 26
    DONE = 27
    DEFERRED = 28


@dataclass(frozen=True, slots=True)
class Hello(codec.Encoded):
    """Node: the first message of every connection. A new node has no run and no epoch (32 zero bytes each).

    Attributes:
        run_id: the run that the node is in.
        epoch: digest of the epoch that it can go on in.
        n_releases: releases of the run that it holds.
        connection: a number of this connection, drawn at random.
        build: which Hedgerow the node is (`hedgerow.builds`); no other site is told.
    """

    KIND = MessageKind.HELLO
    connection: codec.U64
    run_id: codec.Hash = NO_HASH
    epoch: codec.Hash = NO_HASH
    n_releases: Count = 0
    build: codec.Shown = ""


@dataclass(frozen=True, slots=True)
class Welcome(codec.Encoded):
    """Coordinator: the answer to a Hello, with its number.

    Whatever a node receives before it was meant for an earlier connection, and is dropped.
    """

    KIND = MessageKind.WELCOME
    connection: codec.U64


@dataclass(frozen=True, slots=True)
class Invitation(codec.Encoded):
    """Coordinator: take part in this run?

    Attributes:
        run_id: of the run.
        plan: the plan's canonical JSON (UTF-8).
        behaviour: what a rehearsal of the run comes to at the coordinator (`methods.replica.digest_behaviour`); who
            comes to something else takes no part.
        build: which Hedgerow the coordinator is.
    """

    KIND = MessageKind.INVITATION
    run_id: codec.Hash
    plan: PlanBytes
    behaviour: codec.Hash = NO_HASH
    build: codec.Shown = ""


@dataclass(frozen=True, slots=True)
class EvaluationInvitation(codec.Encoded):
    """Coordinator: take part in the evaluation of a model over the rows that you hold out?

    Attributes:
        run_id: of the evaluation.
        plan: of the model, as in `Invitation`.
        model: the ensemble's canonical JSON (ASCII).
        epsilon, delta: what the evaluation may cost by itself.
        first_round: releases on the model's account before this one; it numbers the purposes.
        noise: who adds the noise to this evaluation: "server", "distributed" or "local".
        by: columns of the plan by whose public groups it is evaluated as well, and "site" for single sites.
        sites: whose entries are which, where it is evaluated by site; else none.
        behaviour, build: as in `Invitation`.
    """

    KIND = MessageKind.EVALUATION
    run_id: codec.Hash
    plan: PlanBytes
    model: ModelBytes
    epsilon: AnyReal
    delta: AnyReal
    first_round: codec.U32
    noise: codec.CodeWord
    by: Annotated[tuple[str, ...], codec.Many(codec.Text(), size=1)] = ()
    sites: Annotated[tuple[str, ...], codec.Many(codec.Text())] = ()
    behaviour: codec.Hash = NO_HASH
    build: codec.Shown = ""


@dataclass(frozen=True, slots=True)
class SurveyInvitation(codec.Encoded):
    """Coordinator: take part in a survey of your columns, before there is a plan?

    Attributes:
        run_id: of the survey.
        about: what the survey is about, as a word: "statistics".
        questions: what it is asked for, as canonical JSON (UTF-8).
        behaviour, build: as in `Invitation`.
    """

    KIND = MessageKind.SURVEY
    run_id: codec.Hash
    about: codec.CodeWord
    questions: PlanBytes
    behaviour: codec.Hash = NO_HASH
    build: codec.Shown = ""


@dataclass(frozen=True, slots=True)
class Ready(codec.Encoded):
    """Node: it has checked the plan, its owner's policy and its data, reserved the budget, and will take part.

    Attributes:
        run_id: the run that it was invited to.
        plan_digest: of the plan; of the task, model and cost included, when it is an evaluation or a survey.
        shows_figures: whether its policy lets figures of its own leave it that the task asks for.
    """

    KIND = MessageKind.READY
    run_id: codec.Hash
    plan_digest: codec.Hash
    shows_figures: codec.YesNo = False


@dataclass(frozen=True, slots=True)
class Deferred(codec.Encoded):
    """Node: it asks its owner before it says Ready or Refused; that may take days."""

    KIND = MessageKind.DEFERRED


PAYLOADS = frozenset(
    {
        MessageKind.ENROL, MessageKind.ORIGIN, MessageKind.SETUP, MessageKind.UNMASK, MessageKind.CERTIFICATE,
        MessageKind.SETUP_ANSWER, MessageKind.UPLOAD, MessageKind.ECHO, MessageKind.ANSWER,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Payload(codec.Encoded):
    """A message of secure aggregation inside one of a run, of one of the kinds in `PAYLOADS`."""

    kind: Annotated[MessageKind, codec.Member(MessageKind)]
    content: codec.Bytes

    def check(self) -> None:
        if self.kind not in PAYLOADS:
            codec.fail(f"{self.kind.name} carries no payload.")


@dataclass(frozen=True, slots=True, eq=False)
class RoundRequest(codec.Encoded):
    """Coordinator: answer the query of this round.

    Attributes:
        round: number of the round; also the number of releases before it.
        releases: the last of these releases, as many as the node does not hold yet.
        signed_spec: what the round is for, signed by the coordinator.
        structure_seed: seed of the trees' structure in this run, 0 to 2**63 - 1.
    """

    KIND = MessageKind.ROUND_REQUEST
    round: Count
    releases: Releases
    signed_spec: codec.Bytes
    structure_seed: Seed = 0

    def check(self) -> None:
        _require_at_most(self.round, self.releases)


@dataclass(frozen=True, slots=True)
class Abandoned(codec.Encoded):
    """Coordinator: nothing will be released in this slot; `code` says why."""

    KIND = MessageKind.ABANDONED
    round: codec.U32
    code: codec.CodeWord


@dataclass(frozen=True, slots=True, eq=False)
class Finished(codec.Encoded):
    """Coordinator: the run is over; the last of its `n_releases` releases, and the digest of the model they make.

    After an evaluation or a survey the digest is that of the task and the releases.
    """

    KIND = MessageKind.FINISHED
    n_releases: Count
    releases: Releases
    result_digest: codec.Hash
    structure_seed: Seed = 0

    def check(self) -> None:
        _require_at_most(self.n_releases, self.releases)


@dataclass(frozen=True, slots=True, eq=False)
class Salvaged(codec.Encoded):
    """Coordinator: the run cannot go on, and ends with the model of its `n_releases` releases so far.

    Attributes:
        n_releases: of the run.
        releases: the last of them, as many as the node does not hold yet.
        result_digest: of the model that they make, see `methods.replica.Replica.end_early`.
        structure_seed: as in a RoundRequest.
        code: why the run cannot go on.
    """

    KIND = MessageKind.SALVAGED
    n_releases: Count
    releases: Releases
    result_digest: codec.Hash
    structure_seed: Seed
    code: codec.CodeWord

    def check(self) -> None:
        _require_at_most(self.n_releases, self.releases)


@dataclass(frozen=True, slots=True)
class Stop(codec.Encoded):
    """Coordinator: the run is given up; `code` says why."""

    KIND = MessageKind.STOP
    code: codec.CodeWord


@dataclass(frozen=True, slots=True)
class Paused(codec.Encoded):
    """Coordinator: it ends here, between two rounds, and goes on with the run later; the nodes keep their places."""

    KIND = MessageKind.PAUSED


@dataclass(frozen=True, slots=True)
class Refused(codec.Encoded):
    """Node: it will not do what was asked; `round` is the one that it stands in."""

    KIND = MessageKind.REFUSED
    round: codec.U32
    code: codec.CodeWord


@dataclass(frozen=True, slots=True)
class Done(codec.Encoded):
    """Node: it has the whole result; the digest of what its own replica made."""

    KIND = MessageKind.DONE
    result_digest: codec.Hash


Message = (
    Hello | Welcome | Invitation | EvaluationInvitation | SurveyInvitation | Ready | Deferred | Payload | RoundRequest
    | Abandoned | Finished | Salvaged | Stop | Paused | Refused | Done
)  # fmt: skip

_BY_KIND: dict[int, type[codec.Encoded]] = {
    kind: message for message in get_args(Message) for kind in (PAYLOADS if message is Payload else (message.KIND,))
}


def message_kind(message: Message) -> MessageKind:
    """Return the kind byte of a message."""
    return message.kind if isinstance(message, Payload) else MessageKind(message.KIND)


def encode(message: Message) -> bytes:
    """Return the message's bytes; raise ValueError or OverflowError for one that no peer would accept."""
    return message.to_bytes()


def decode(data: bytes, kinds: Collection[MessageKind] = frozenset(MessageKind)) -> Message:
    """Read the message in `data`.

    Args:
        data: its bytes.
        kinds: kinds that the peer may send (`FROM_COORDINATOR`, `FROM_NODES`); no other kind is read.

    Raises:
        RemoteProtocolError: "malformed-message" or "unknown-version".
    """
    try:
        kind = codec.kind_in(data)
        if kind not in kinds or len(data) > MAX_MESSAGE_BYTES:
            codec.fail("It is too long, or of a kind that its sender may not send.")
        message = _BY_KIND[kind]
        return cast(Message, message.from_bytes(data))
    except codec.CodecFault as fault:
        raise translate_fault(fault) from None


# The script -----------------------------------------------------------------------------------------------------------


class NodeState(StrEnum):
    """A node's position in a run: what it knows or waits for."""

    OUTSIDE = "outside"
    INVITED = "invited"
    ENROLLING = "enrolling"
    WAITING = "waiting"
    MASKED = "masked"
    ECHOED = "echoed"
    FINISHED = "finished"
    STOPPED = "stopped"


class RunState(StrEnum):
    """A coordinator's position in a run: what it collects."""

    GATHERING = "gathering"
    SETTING_UP = "setting-up"
    COLLECTING_VECTORS = "collecting-vectors"
    COLLECTING_ECHOES = "collecting-echoes"
    COLLECTING_ANSWERS = "collecting-answers"
    FINISHING = "finishing"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Cue:
    """One row: in these states this message is expected; any other message there is refused as out of order."""

    states: frozenset[StrEnum]
    kind: MessageKind
    then: frozenset[StrEnum]


_N, _R, _K = NodeState, RunState, MessageKind
_IN_EPOCH = {_N.WAITING, _N.MASKED, _N.ECHOED}
_ALIVE = set(NodeState) - {_N.FINISHED, _N.STOPPED}
_RUNNING = set(RunState) - {_R.OVER}


def _cue(states: set[NodeState] | set[RunState], kind: MessageKind, then: set[NodeState] | set[RunState]) -> Cue:
    return Cue(frozenset(states), kind, frozenset(then))


SCRIPT: tuple[Cue, ...] = (
    # What a node may receive. A duplicate of an answered message gets the same answer.
    _cue({_N.OUTSIDE, _N.INVITED, _N.ENROLLING, *_IN_EPOCH}, _K.INVITATION, {_N.INVITED}),
    _cue({_N.OUTSIDE, _N.INVITED, _N.ENROLLING, *_IN_EPOCH}, _K.EVALUATION, {_N.INVITED}),
    _cue({_N.OUTSIDE, _N.INVITED, _N.ENROLLING, *_IN_EPOCH}, _K.SURVEY, {_N.INVITED}),
    _cue({_N.INVITED, _N.ENROLLING, *_IN_EPOCH}, _K.ORIGIN, set()),
    _cue({_N.INVITED, _N.ENROLLING, *_IN_EPOCH}, _K.ENROL, {_N.ENROLLING}),
    _cue({_N.ENROLLING}, _K.SETUP, {_N.ENROLLING, _N.WAITING}),
    _cue(_IN_EPOCH, _K.ROUND_REQUEST, {_N.MASKED}),
    _cue(_IN_EPOCH, _K.UNMASK, {_N.WAITING, _N.ECHOED}),
    _cue({_N.ECHOED, _N.WAITING}, _K.CERTIFICATE, {_N.WAITING}),
    _cue(_ALIVE, _K.WELCOME, set()),
    _cue(_ALIVE, _K.ABANDONED, {_N.WAITING}),
    _cue({_N.INVITED, *_IN_EPOCH}, _K.FINISHED, {_N.FINISHED}),
    # A salvaged result may come wherever a set-up or a round has stopped.
    _cue({_N.INVITED, _N.ENROLLING, *_IN_EPOCH}, _K.SALVAGED, {_N.FINISHED}),
    _cue(_ALIVE, _K.STOP, {_N.STOPPED}),
    _cue(_ALIVE, _K.PAUSED, set()),
    # What the coordinator may receive.
    _cue(_RUNNING, _K.HELLO, set()),
    _cue(_RUNNING, _K.READY, set()),
    _cue(_RUNNING, _K.DEFERRED, set()),
    _cue({_R.SETTING_UP}, _K.SETUP_ANSWER, set()),
    _cue({_R.COLLECTING_VECTORS}, _K.UPLOAD, set()),
    _cue({_R.COLLECTING_ECHOES}, _K.ECHO, set()),
    _cue({_R.COLLECTING_ANSWERS}, _K.ANSWER, set()),
    _cue(_RUNNING, _K.REFUSED, set()),
    _cue({_R.FINISHING}, _K.DONE, set()),
)

FROM_COORDINATOR = frozenset(cue.kind for cue in SCRIPT if cue.states <= set(NodeState))
"""Kinds of messages for nodes."""
FROM_NODES = frozenset(cue.kind for cue in SCRIPT if cue.states <= set(RunState))
"""Kinds of messages for the coordinator: none has vectors that the coordinator would have to read."""
_EXPECTED = {(state, cue.kind) for cue in SCRIPT for state in cue.states}


def is_expected(state: NodeState | RunState, kind: MessageKind) -> bool:
    """Return whether the script has this message in this state."""
    return (state, kind) in _EXPECTED


def require_expected(state: NodeState | RunState, kind: MessageKind) -> None:
    """Raise RemoteProtocolError (code "out-of-order") unless the script has this message in this state."""
    if not is_expected(state, kind):
        raise RemoteProtocolError("out-of-order", kind=kind.name, state=state.value)
