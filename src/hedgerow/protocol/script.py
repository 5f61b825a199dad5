"""The script of a run: which message may come when, as one table for both parties.

    node                                          coordinator
    OUTSIDE    Hello ->          <- Welcome       any state
    OUTSIDE                      <- Invitation    GATHERING     (join timeout; EvaluationInvitation for a model)
    INVITED    Ready ->          <- Origin        SETTING_UP    (from the second epoch on, if sites draw the seed)
    INVITED                      <- Enrol         SETTING_UP    (four collections, round timeout each)
    ENROLLING  SetupAnswer ->    <- Setup
    WAITING                      <- RoundRequest  COLLECTING_VECTORS
    MASKED     Upload ->         <- Unmask        COLLECTING_ECHOES or COLLECTING_ANSWERS
    ECHOED     Echo ->           <- Certificate   COLLECTING_ANSWERS
    WAITING    Answer ->         <- RoundRequest or Finished
    FINISHED   Done ->                            FINISHING, then OVER (Salvaged in place of Finished: an early end)

A node says Hello on every connection; the coordinator says Welcome and sends again what the node may have missed.
Either may end the run, with a code word. A new Enrol, for a later attempt, begins a new epoch of the same run.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hedgerow.errors import RemoteProtocolError
from hedgerow.protocol.messages import MessageKind


class NodeState(StrEnum):
    """What a node knows or waits for."""

    OUTSIDE = "outside"
    INVITED = "invited"
    ENROLLING = "enrolling"
    WAITING = "waiting"
    MASKED = "masked"
    ECHOED = "echoed"
    FINISHED = "finished"
    STOPPED = "stopped"


class RunState(StrEnum):
    """What the coordinator collects."""

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
    # What a node may receive. Duplicates of what it has answered are answered alike.
    _cue({_N.OUTSIDE, _N.INVITED, _N.ENROLLING, *_IN_EPOCH}, _K.INVITATION, {_N.INVITED}),
    _cue({_N.OUTSIDE, _N.INVITED, _N.ENROLLING, *_IN_EPOCH}, _K.EVALUATION, {_N.INVITED}),
    _cue({_N.INVITED, _N.ENROLLING, *_IN_EPOCH}, _K.ORIGIN, set()),
    _cue({_N.INVITED, _N.ENROLLING, *_IN_EPOCH}, _K.ENROL, {_N.ENROLLING}),
    _cue({_N.ENROLLING}, _K.SETUP, {_N.ENROLLING, _N.WAITING}),
    _cue(_IN_EPOCH, _K.ROUND_REQUEST, {_N.MASKED}),
    _cue(_IN_EPOCH, _K.UNMASK, {_N.WAITING, _N.ECHOED}),
    _cue({_N.ECHOED, _N.WAITING}, _K.CERTIFICATE, {_N.WAITING}),
    _cue(_ALIVE, _K.WELCOME, set()),
    _cue(_ALIVE, _K.ABANDONED, {_N.WAITING}),
    _cue({_N.INVITED, *_IN_EPOCH}, _K.FINISHED, {_N.FINISHED}),
    # Wherever a set-up or a round has stopped.
    _cue({_N.INVITED, _N.ENROLLING, *_IN_EPOCH}, _K.SALVAGED, {_N.FINISHED}),
    _cue(_ALIVE, _K.STOP, {_N.STOPPED}),
    # What the coordinator may receive.
    _cue(_RUNNING, _K.HELLO, set()),
    _cue(_RUNNING, _K.READY, set()),
    _cue({_R.SETTING_UP}, _K.SETUP_ANSWER, set()),
    _cue({_R.COLLECTING_VECTORS}, _K.UPLOAD, set()),
    _cue({_R.COLLECTING_ECHOES}, _K.ECHO, set()),
    _cue({_R.COLLECTING_ANSWERS}, _K.ANSWER, set()),
    _cue(_RUNNING, _K.REFUSED, set()),
    _cue({_R.FINISHING}, _K.DONE, set()),
)

FROM_COORDINATOR = frozenset(cue.kind for cue in SCRIPT if cue.states <= set(NodeState))
"""What a node may be sent."""
FROM_NODES = frozenset(cue.kind for cue in SCRIPT if cue.states <= set(RunState))
"""What the coordinator may be sent: none of it holds vectors that it would have to read."""
_EXPECTED = {(state, cue.kind) for cue in SCRIPT for state in cue.states}


def is_expected(state: NodeState | RunState, kind: MessageKind) -> bool:
    """Whether the script has this message in this state."""
    return (state, kind) in _EXPECTED


def require_expected(state: NodeState | RunState, kind: MessageKind) -> None:
    """Raises RemoteProtocolError (code "out-of-order") unless the script has this message in this state."""
    if not is_expected(state, kind):
        raise RemoteProtocolError("out-of-order", kind=kind.name, state=state.value)
