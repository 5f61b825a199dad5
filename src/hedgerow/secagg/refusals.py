"""The errors of secure aggregation: one sentence of fact, cause and remedy for every code of the table.

No text here takes a value that was secret, or bytes that a peer sent: a peer is named by its number and a field by
its name, never by its content.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hedgerow.errors import AggregationError, ProtocolError, RemoteProtocolError
from hedgerow.secagg.transitions import Code, Event, Party, State, allowed


class Blame(Enum):
    """Whose doing it is, which decides the class of the error."""

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


_CLASSES: dict[Blame, type[Refusal] | type[OwnMistake] | type[Abandoned]] = {
    Blame.PEER: Refusal,
    Blame.SELF: OwnMistake,
    Blame.NOBODY: Abandoned,
}


def untraced(fault: Refusal | OwnMistake | Abandoned) -> Refusal | OwnMistake | Abandoned:
    """Returns a fault that is not raised any further, without its traceback.

    The frames there hold the state that a node was in, keys and all, and whole messages; and as one of them holds the
    list that the fault is kept in, they would live until the collector comes.
    """
    fault.__cause__ = fault.__context__ = None
    fault.__traceback__ = None
    return fault


def refuse(code: Code, detail: str = "", peer: int | str | None = None) -> Refusal | OwnMistake | Abandoned:
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
