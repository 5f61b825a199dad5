# SPDX-License-Identifier: Apache-2.0
"""A node without a socket or a clock, which answers messages with messages; and the loop around it.

`NodeSession` speaks the protocol: greetings, invitations, and the end of a run. `NodeRun` handles the messages within a
run. Everything that must survive a crash is in the store before a message is returned. A fault that ends the node's
part is kept in `failure`, sent to the coordinator as a code word, and shown to the owner in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import isqrt

import numpy as np

from hedgerow.builds import describe_build
from hedgerow.client.budget import ACCEPTED, FINISHED, LEFT, STOPPED, BudgetBook, fold_name
from hedgerow.client.joining import NodeFiles, Offer, close_reserved, join, resume
from hedgerow.client.node import ArrivalsOfRun, Node, cast_vote
from hedgerow.client.setup import Answers, NodeSetup
from hedgerow.client.state import NodeStep, NodeStore, Question, StoredRun
from hedgerow.codec import digest
from hedgerow.errors import AggregationError, HedgerowError, PolicyRefusal, RemoteProtocolError, mark_private
from hedgerow.evaluation.estimates import Evaluation
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import build_checks, digest_model, list_site_queries, read_invitation
from hedgerow.methods.votes import VOTE_UNIT, expect_rows
from hedgerow.plan.plan import Plan
from hedgerow.privacy.calibration import noise_of
from hedgerow.privacy.events import Event
from hedgerow.privacy.signal import can_compare_sites
from hedgerow.protocol.groups import LineUp
from hedgerow.protocol.messages import (
    FROM_COORDINATOR,
    NO_HASH,
    Abandoned,
    Deferred,
    Done,
    EvaluationInvitation,
    Finished,
    Hello,
    Invitation,
    Message,
    MessageKind,
    NodeState,
    Paused,
    Payload,
    Ready,
    Refused,
    RoundRequest,
    Salvaged,
    Stop,
    SurveyInvitation,
    Welcome,
    decode,
    encode,
    message_kind,
    require_expected,
)
from hedgerow.protocol.queries import IntVector, Query, SiteQuery
from hedgerow.protocol.refusals import Salvage, WireRefusal, read_code
from hedgerow.protocol.votes import Tally, Vote, count_least_rows, describe_tally, is_ballot
from hedgerow.rounds import VECTOR_ID, bound_entry, clip, least_entry_bound, most_rows, noise_mode, round_in
from hedgerow.secagg.enrolment import Enrolment
from hedgerow.secagg.guarantees import MAX_ATTEMPTS, origin_members
from hedgerow.secagg.keys import RoundContext
from hedgerow.secagg.masks import MIN_COLLUDERS, draw_shares
from hedgerow.secagg.messages import (
    EpochParameters,
    Header,
    Kind,
    Manifest,
    NoiseMode,
    Roster,
    RoundSpec,
    UnmaskRequest,
    check_signature,
    header_hash,
    read_kept_header,
)
from hedgerow.secagg.participant import NodeContext, Participant
from hedgerow.secagg.transitions import Code, State, Step, refuse
from hedgerow.secagg.view import Cohort, EpochView, most_beside, site_key, split_members
from hedgerow.survey.program import Found
from hedgerow.transport.interface import Connected, Disconnected, Uplink, UplinkEvent
from hedgerow.trees.ensemble import Ensemble
from hedgerow.trees.plausibility import ReleaseChecks, SumFacts

_ENDED = (NodeState.FINISHED, NodeState.STOPPED)
_SECONDS_BETWEEN_LOOKS = 1.0
"""Seconds between two looks at the owner's answers."""
_MIN_WAIT = 1.0
"""Seconds: if the time to give up came while this process did not run, the coordinator's messages are read first."""


class NodeSession:
    """One node. After a restart, a new session continues from the store.

    Raises PolicyRefusal "budget-lost" for a budget book without the runs that the store knows of.

    Attributes:
        state: its position in the script of a run.
        result: the model, or the findings of an evaluation or a survey, once the run has finished.
        failure: the fault for which it has stopped; None if it has not.
        salvaged: the reason and the number of rounds, if the run ended early with a model of a part of its rounds.
        set_aside: the refusal of the run in its store, if its owner's plan, policy or tables no longer allow it.
        is_paused: whether the coordinator has paused the run and not come back.
        question: the question for its owner before it answers an invitation; None if it waits for no answer.
    """

    def __init__(self, setup: NodeSetup, store: NodeStore, book: BudgetBook) -> None:
        self._setup, self._store, self._book = setup, store, book
        self._files = NodeFiles.for_site(store, book, setup.site, setup.policy.data_set)
        self.state = NodeState.OUTSIDE
        self.result: Ensemble | Evaluation | Found | None = None
        self.failure: HedgerowError | None = None
        self.salvaged: Salvage | None = None
        self.plan: Plan | None = setup.plan
        self._run: NodeRun | None = None
        self._unreported_fault: HedgerowError | None = None
        self._greeting: int | None = None
        self.set_aside: PolicyRefusal | None = None
        self.is_paused = False
        self.question: Question | None = None
        self._deferred: Invitation | EvaluationInvitation | SurveyInvitation | None = None
        self._files.reconcile()
        stored = store.load()
        if stored is not None:
            node = resume(self._files, setup, stored)
            if isinstance(node, PolicyRefusal):
                self.set_aside = node
            else:
                run = self._take_up(stored, node, Replica(stored.task, len(setup.roster.sites)))
                # Rebuild scores and the replica after a restart.
                for release in stored.releases:
                    run.feed(release)

    @property
    def run_id(self) -> bytes:
        """The number of its run; empty outside any run."""
        return b"" if self._run is None else self._run.run_id

    @property
    def site(self) -> str:
        """The node's name."""
        return self._setup.site

    @property
    def progress(self) -> tuple[int, int]:
        """Number of releases that it holds, and of the whole run's; zeros outside any run."""
        run = self._run
        return (0, 0) if run is None else (run.replica.n_releases, run.task.schedule.n_rounds)

    def connect(self) -> list[bytes]:
        """Return the messages to send first on a new connection."""
        if self.state in _ENDED:
            return []
        run = self._run
        # A node that waited for its owner is invited again.
        self.question = self._deferred = None
        self._greeting = int.from_bytes(self._setup.entropy(8), "big")
        if run is None:
            return [encode(Hello(self._greeting, build=describe_build()))]
        if run.participant is None:
            # A set-up does not continue over a new connection.
            run.enrolment = None
            self.state = NodeState.OUTSIDE
        epoch = NO_HASH if run.participant is None else run.participant.view.digest
        messages: list[Message] = [
            Hello(self._greeting, run.run_id, epoch, run.replica.n_releases, describe_build())
        ]
        if self._unreported_fault is not None:
            messages.append(Refused(run.replica.n_releases, self._unreported_fault.public_code))
            self._unreported_fault = None
        return [encode(message) for message in messages]

    def receive(self, data: bytes) -> list[bytes]:
        """Handle a message of the coordinator; return the messages to send.

        It does not raise HedgerowError: faults are kept in `failure`.
        """
        if self.state in _ENDED:
            return []
        try:
            message = decode(data, FROM_COORDINATOR)
            if isinstance(message, Welcome) or self._greeting is not None:
                # Messages before the answer to this connection's Hello were meant for an earlier connection.
                is_ours = isinstance(message, Welcome) and message.connection == self._greeting
                self._greeting = None if is_ours else self._greeting
                self.is_paused &= not is_ours
                return []
            require_expected(self.state, message_kind(message))
            return [encode(answer) for answer in self._react(message)]
        except HedgerowError as fault:
            return self._refuse(fault)

    def consider(self) -> list[bytes]:
        """Poll the owner's answers; return the messages to send.

        Call it now and then. Like `receive` it keeps faults in `failure`.

        The desk of the store (`NodeStore.desk`) has the owner's answers.
        """
        if self.state in _ENDED:
            return []
        try:
            if self._store.desk.take_stop():
                for run_id in self._book.list_reserved():
                    close_reserved(self._store, self._book, run_id)
                raise PolicyRefusal("stopped-by-owner")
            held = self._deferred
            if held is None or self.question is None or self._store.desk.find_answer(self.question.id) is None:
                return []
            return [encode(answer) for answer in self._answer_invitation(held)]
        except HedgerowError as fault:
            return self._refuse(fault)

    # What a message does -----------------------------------------------------------------------------------------

    def _react(self, message: Message) -> list[Message]:
        match message:
            case Invitation() | EvaluationInvitation() | SurveyInvitation():
                return self._answer_invitation(message)
            case Payload(MessageKind.ORIGIN, content):
                self._require_run().originate(content)
            case Payload() | RoundRequest():
                run = self._require_run()
                try:
                    self.state, answer = run.take(message)
                except PolicyRefusal as fault:
                    if fault.code == "budget-rolled-back":
                        # Close the run: the charge for the loss may leave no room for it, so it has to be reserved
                        # again.
                        self._files.close(run.run_id, LEFT)
                    raise
                return [] if answer is None else [answer]
            case Finished() | Salvaged():
                return self._accept_result(message)
            case Stop(Code.ROLLED_BACK):
                self._close_rolled_back()
            case Stop(code):
                if self._run is not None:
                    self._close_run(STOPPED)
                raise AggregationError("given-up", code=code)
            case Paused():
                self.is_paused = True
            case Abandoned():
                if self._run is not None and self._run.participant is not None:
                    self.state = NodeState.WAITING
        return []

    def _refuse(self, fault: HedgerowError) -> list[bytes]:
        has_ended = self.state is NodeState.STOPPED
        if self.question is not None:
            self._store.desk.withdraw()
            self.question = self._deferred = None
        self.failure, self.state = fault, NodeState.STOPPED
        if has_ended:
            return []
        return [encode(Refused(0 if self._run is None else self._run.replica.n_releases, fault.public_code))]

    def _close_run(self, status: str) -> None:
        """Close the run in the budget book and in the store: it is never taken up again."""
        run = self._require_run()
        run.leave_epoch()
        self._files.close(run.run_id, status)
        self.state = NodeState.FINISHED if status == FINISHED else NodeState.STOPPED

    def _close_rolled_back(self) -> None:
        """Close a run of which the coordinator has a vector that the node's restored files do not know.

        What else has left is unknown, so the whole reservation stays charged. Nothing more leaves in this run: its keys
        may have been used. A node whose files disagree with each other has noticed this itself, and enrols again.
        """
        run_id = self._require_run().run_id
        if self._store.spent(run_id) is None:
            return
        self._require_run().leave_epoch()
        self._book.settle(run_id, None, STOPPED)
        self._store.close_run(run_id, STOPPED)
        self.state = NodeState.STOPPED
        raise AggregationError("state-rolled-back", run=run_id.hex()[:12])

    def _require_run(self) -> NodeRun:
        if self._run is None:
            raise refuse(Code.OUT_OF_ORDER, "There is no run yet.", "coordinator")
        return self._run

    # Taking part -------------------------------------------------------------------------------------------------

    def _answer_invitation(self, message: Invitation | EvaluationInvitation | SurveyInvitation) -> list[Message]:
        """Answer an invitation, and record the answer in the book for the owner."""
        was_asked, self.question, self._deferred = self.question, None, None
        run = self._run if self.run_id == message.run_id else None
        words, task = read_invitation(message)
        try:
            if isinstance(task, HedgerowError):
                raise task
            current = None if run is None else run.task
            joined = join(
                self._files, self._setup, message.run_id, task, current, Offer(message.behaviour, message.build)
            )
            if isinstance(joined, Question):
                self.question, self._deferred = joined, message
                return [] if joined == was_asked else [Deferred()]
            if joined is not None:
                self._take_up(*joined)
            elif run is not None:
                run.leave_epoch()
        except HedgerowError as fault:
            self._book.note_invitation(words, fault.code)
            raise
        self._book.note_invitation(words, ACCEPTED)
        self.state = NodeState.INVITED
        shows = any(map(self._setup.policy.shows_figures, list_site_queries(task)))
        return [Ready(message.run_id, bytes.fromhex(task.digest), shows)]

    def _take_up(self, stored: StoredRun, node: Answers, replica: Replica) -> NodeRun:
        """Enter a run as it is in the store; its replica has taken no release."""
        self._run = run = NodeRun(self._setup, self._files, stored, node, replica)
        self.plan, self._unreported_fault = stored.task.plan, stored.fault
        if run.participant is not None:
            self.state = _STATES.get(run.participant.state, NodeState.WAITING)
        return run

    # The end ---------------------------------------------------------------------------------------------------------

    def _accept_result(self, message: Finished | Salvaged) -> list[Message]:
        run = self._require_run()
        self.salvaged = run.finish(message)
        self.result = run.replica.result
        if isinstance(self.result, Ensemble) and self._store.has_masked(run.run_id):
            # Keep the model only if the node has sent a vector: else the coordinator may have made all releases up.
            self._store.keep_model(digest_model(self.result))
        self._close_run(FINISHED)
        return [Done(message.result_digest)]

    # From one process to the next ------------------------------------------------------------------------------------

    def pending_state(self) -> bytes:
        """Return the state that the store lacks but the next message may need.

        Engines with a process for every message use it. It holds the secrets of a set-up that is under way, and belongs
        in a private file; it is empty if there are none.
        """
        if self.state in _ENDED:
            # It has said why it refused, or has the result, so it ignores further messages on this connection.
            return self.state.value.encode()
        run = self._run
        if run is not None:
            # Write headers now: the process may end before the epoch does.
            run.keep_headers()
        if self.state not in (NodeState.INVITED, NodeState.ENROLLING) or run is None:
            return b""
        return self.state.value.encode() + b" " + (b"" if run.enrolment is None else run.enrolment.to_bytes())

    def restore_pending(self, content: bytes) -> None:
        """Continue on the same connection from the earlier process's `pending_state`.

        Raises:
            OwnMistake: CORRUPT_STATE if it cannot be read.
        """
        word, _, enrolment = content.partition(b" ")
        run = self._run
        if content in {state.value.encode() for state in _ENDED}:
            self.state = NodeState(content.decode())
            return
        if not content or run is None or run.participant is not None:
            return
        self.state = NodeState(word.decode())
        run.enrolment = Enrolment.latest(enrolment) if enrolment else None


# The loop ------------------------------------------------------------------------------------------------------------


def handle(session: NodeSession, uplink: Uplink, event: UplinkEvent | None) -> None:
    """Handle one event, or with None poll the owner's answers, and send the answers.

    Raises the node's failure after the coordinator has been told.

    A message that finds the link down is dropped: after a reconnection both sides state their positions.
    """
    if event is None:
        answers = session.consider()
    elif isinstance(event, Connected):
        answers = session.connect()
    elif isinstance(event, Disconnected):
        answers = []
        if event.is_final and session.state is not NodeState.FINISHED:
            raise WireRefusal(read_code(event.reason), event.detail)
    else:
        answers = session.receive(event)
    for answer in answers:
        uplink.send(answer)
    if session.failure is not None:
        raise session.failure


def run_node(
    session: NodeSession,
    uplink: Uplink,
    clock: Callable[[], float],
    patience: float,
    observer: Callable[[Connected | Disconnected], None] | None = None,
    asked: Callable[[Question], None] | None = None,
    looks: Callable[[], None] | None = None,
) -> Ensemble | Evaluation | Found:
    """Take part until the run is over, and return its result.

    Args:
        session: a new session, or one restored from its store.
        uplink: the connection to the coordinator; the caller closes it.
        clock: seconds, from any beginning, that never go back: ``time.monotonic``.
        patience: seconds without any message after which the node gives up; the plan's own idle timeout counts as
            soon as the node has a plan.
        observer: called whenever the connection comes or goes.
        asked: called with the question for the owner, every second while there is no answer; it must not block.
        looks: called at least every second.

    Returns:
        The model, or the findings of the evaluation or the survey, as this node's own replica made them.

    Raises:
        HedgerowError: the fault that it refused, or for which the run ended.
    """
    last = clock()
    while session.state is not NodeState.FINISHED:
        handle(session, uplink, None)
        if looks is not None:
            looks()
        if asked is not None and session.question is not None:
            asked(session.question)
        limit = compute_patience(session, patience)
        wait = min(_SECONDS_BETWEEN_LOOKS, last + limit - clock())
        event = uplink.receive(wait if wait > 0 else _MIN_WAIT)
        if event is None:
            if clock() - last >= limit:
                raise AggregationError("coordinator-silent", limit=limit)
            continue
        if not isinstance(event, Disconnected):
            last = clock()
        if observer is not None and isinstance(event, Connected | Disconnected):
            observer(event)
        handle(session, uplink, event)
    if session.result is None:
        raise AggregationError("no-model")
    return session.result


def compute_patience(session: NodeSession, patience: float) -> float:
    """Return the seconds without a message after which a node gives up.

    They are the plan's, or `patience` if the node has no plan yet, waits for its owner, or was told that the run is
    paused.
    """
    if session.plan is None or session.question is not None or session.is_paused:
        return patience
    return session.plan.federation.idle_timeout


# A run ----------------------------------------------------------------------------------------------------------------
# A run at the node: setting up an epoch, answering a round, and opening the round's sum.
#
# The node runs its own replica of the program, so it computes every query itself and masks only what it expects. A
# message that needs an answer goes through one method here, from the checks to the write in the store; the answer is
# returned after the write. `NodeSession` decides which message comes here.

Reply = tuple[NodeState, Message | None]
"""The node's state after a message, and the message that it sends."""
_NOTHING = NodeStep()
_UNSEEN = 255
"""Entry of a node whose vote this node has not seen, among votes."""
WORSE_TREES = 10
"""Trees in a row that must predict a site's rows worse than a constant before its owner is told."""
_STATES = {State.VECTOR_MASKED: NodeState.MASKED, State.MANIFEST_ECHOED: NodeState.ECHOED}
"""State of a node that has just come back to a ready epoch."""


class NodeRun:
    """The run that a node is in.

    Args:
        files: the node's files, in which the run is open.
        stored: the run as the store has it; its participant is None if the store's was lost.
        node: the node that answers the queries over the site's rows.

    Attributes:
        replica: the node's own run of the program.
        participant: the node's state in the ready epoch; None while there is none.
        enrolment: the node's state in the epoch that is being set up.
        origin: digest of the epoch whose nonces seed the trees, and the seed; the run accepts no other.
    """

    def __init__(self, setup: NodeSetup, files: NodeFiles, stored: StoredRun, node: Answers, replica: Replica) -> None:
        self._setup, self._files, self.node = setup, files, node
        self._store, self._book = files.store, files.book
        charged_to = fold_name(self._book.find_data_set(stored.run_id))
        self._context = NodeContext(setup.identity, setup.roster, setup.policy.secure_sums, charged_to)
        self.run_id, self.task = stored.run_id, stored.task
        self.replica, self._checks = replica, dict[int, ReleaseChecks]()
        self.participant = stored.participant
        self.enrolment: Enrolment | None = None
        self.origin: tuple[bytes, int] | None = None
        self._answered, self._masked = set(stored.answered), set(stored.masked)
        # What this node has said of the model so far, by round, and what it saw of all nodes (`NodeStep.seen`).
        self._votes, self._seen_votes = dict(stored.votes), dict(stored.seen)
        # The last round in which a vector may have left in an earlier life of this process.
        self._last_masked = self._store.last_masked(stored.run_id)
        # The answer to a round's query, with the round's number. It is computed once, because it changes the node's
        # scores.
        self._vector: tuple[int, IntVector] | None = None
        self._has_told, self._grouped_by = False, set[bytes]()
        # Last headers that neighbours signed, by their keys, as far as the peer book lacks them.
        self._headers, self._seen_in = dict[bytes, bytes](), b""
        self._lineup = LineUp(len(setup.roster.sites), self.replica.n_groups, self.replica.n_rounds)
        # Rounds whose answer may have left before a restart, with other noise drawn here.
        self._redrawn = set[int]()
        if setup.arrivals is not None and isinstance(node, Node):
            # After a state was lost or rolled back, it is not known which files have been in rounds already.
            is_closed = self._store.spent(self.run_id) is None
            node.expect(
                ArrivalsOfRun(setup.arrivals, self.task.plan, self._store.database, self.run_id, is_closed=is_closed)
            )
        self._take_origin(stored.origin)

    @property
    def plan(self) -> Plan:
        """The task's plan, with the noise mode of this run."""
        return self.task.run_plan

    def leave_epoch(self) -> None:
        """Leave the epoch: the node is invited again, or the run is over.

        Headers of neighbours are written to the peer book.
        """
        self.enrolment, self.participant = None, None
        self.keep_headers()

    def take(self, message: Payload | RoundRequest) -> Reply:
        """Answer one message; everything that must survive a crash is in the store when this returns."""
        match message:
            case RoundRequest():
                return NodeState.MASKED, Payload(MessageKind.UPLOAD, self._answer_round(message))
            case Payload(MessageKind.ENROL, content):
                return NodeState.ENROLLING, Payload(MessageKind.SETUP_ANSWER, self._enrol(content))
            case Payload(MessageKind.SETUP, content):
                return self._set_up(content)
            case Payload(MessageKind.UNMASK, content):
                return self._unmask(content)
            case Payload(MessageKind.CERTIFICATE, content):
                step = self._require_participant().confirm(content)
                return NodeState.WAITING, Payload(MessageKind.ANSWER, self._record_step(step))
        raise refuse(Code.OUT_OF_ORDER, peer="coordinator")

    # Setting an epoch up ---------------------------------------------------------------------------------------------

    def _enrol(self, content: bytes) -> bytes:
        parameters = EpochParameters.from_bytes(content)
        self._require_fitting(parameters)
        if self._draws_in(parameters):
            self._files.require_draws_left(self.task.plan)
        last = self._store.find_attempt(self.run_id)
        step = Enrolment.begin(self._context, content, self._setup.entropy, last)
        self._store.save_attempt(self.run_id, parameters.attempt)
        self.participant, self.enrolment = None, step.state
        return step.message or b""

    def _set_up(self, content: bytes) -> Reply:
        enrolment = self.enrolment
        if enrolment is None:
            raise refuse(Code.OUT_OF_ORDER, "No set-up is under way.", "coordinator")
        kind = content[4] if len(content) > 4 else 0
        if kind == Kind.READY_LIST:
            ready = enrolment.finish(self._context, content).state
            origin = self._find_origin(ready.view)
            self._book.note_epoch(self.run_id, ready.view.digest)
            self.participant, self.enrolment = ready, None
            self._store.save(self.run_id, NodeStep(participant=self.participant, origin=origin))
            self._take_origin(origin)
            return NodeState.WAITING, None
        if kind == Kind.KEY_LIST:
            step = enrolment.reveal(self._context, content)
            if self._draws_in(enrolment.parameters):
                # Record it before the nonce leaves: its receiver knows what this set-up draws, and may then abandon the
                # run.
                self._book.note_draw(self.task.plan.digest, self.run_id, enrolment.parameters.attempt)
        elif kind == Kind.NONCE_DELIVERY:
            kept = self._book.peers.headers(self._setup.identity.public)
            step = enrolment.share(self._context, content, self._setup.entropy, kept)
        else:
            step = enrolment.acknowledge(self._context, content)
            self._require_counted(step.state.handed_back)
        self.enrolment = step.state
        return NodeState.ENROLLING, Payload(MessageKind.SETUP_ANSWER, step.message or b"")

    def _require_counted(self, slots: Iterable[RoundContext]) -> None:
        """Raise PolicyRefusal "budget-rolled-back" if the book does not count a vector that peers saw."""
        shown = [(slot.epoch, slot.slot) for slot in slots]
        reserved = self._book.require_counted(shown)
        for epoch, slot in shown:
            run_id = reserved.get(epoch)
            if run_id is not None and self._store.find_last_slots(run_id).get(epoch, -1) < slot:
                # Only the state is too old, or lost: mark its spending as lost.
                self._store.lose_spending(run_id)

    def originate(self, record: bytes) -> None:
        """Take the trees' seed that other sites drew before this node came.

        Raises:
            Refusal: the record is not what those sites signed.
            RemoteProtocolError: code "structure-seed"; this node knows another seed.
        """
        policy = self._context.policy

        def require(roster: Roster, parameters: EpochParameters) -> None:
            if roster != self._context.roster or parameters.run_id != self.run_id:
                raise refuse(Code.ROSTER_MISMATCH, "The seed was drawn in another run.", "coordinator")
            if not 1 <= parameters.attempt <= MAX_ATTEMPTS:
                raise refuse(Code.STALE_ATTEMPT, f"The seed is of attempt {parameters.attempt}.", "coordinator")
            self._require_fitting(parameters)
            policy.require(parameters, most_beside(roster, parameters, roster.find_node(self._setup.identity.public)))

        view = EpochView.from_record(record, require)
        policy.require(view.parameters, min(of.n_nodes for of in view.by_node.values()))
        if self.origin is not None and self.origin[0] != view.digest:
            raise RemoteProtocolError("structure-seed")
        origin = self._find_origin(view)
        self._store.save(self.run_id, NodeStep(origin=origin))
        self._take_origin(origin)

    def _require_fitting(self, parameters: EpochParameters) -> None:
        """Raise Refusal PARAMETERS_REFUSED for an epoch of another run, or against the plan."""
        if parameters.run_id != self.run_id or parameters.noise is not noise_mode(self.plan):
            raise refuse(Code.PARAMETERS_REFUSED, "They are for another run or another noise.", "coordinator")
        if parameters.noise is NoiseMode.DISTRIBUTED and parameters.wishes.n_colluders < MIN_COLLUDERS:
            raise refuse(Code.PARAMETERS_REFUSED, "Another site's own share of noise is counted.", "coordinator")
        if parameters.wishes.n_groups != self.plan.federation.groups:
            raise refuse(Code.PARAMETERS_REFUSED, "They have other groups of sites than the plan.", "coordinator")
        least = self.plan.federation.min_sites
        if parameters.wishes.min_survivors < least:
            said = f"A sum may be over fewer sites than the {least} that the plan asks for."
            raise refuse(Code.PARAMETERS_REFUSED, said, "coordinator")
        if self.plan.federation.echo and not parameters.wishes.has_echo:
            raise refuse(Code.PARAMETERS_REFUSED, "The plan asks for the echo exchange.", "coordinator")

    def _draws_in(self, parameters: EpochParameters) -> bool:
        """Return whether a set-up's nonces draw anything: a missing seed of the trees, or a sparse graph."""
        return (self.plan.has_joint_structure and self.origin is None) or parameters.wishes.is_sparse

    def _find_origin(self, view: EpochView) -> tuple[bytes, int] | None:
        """Return the origin of the trees' seed that an epoch brings; None if there is none or it is known.

        Pass it to `_take_origin` once it is on the disk.

        Raises:
            Refusal: COHORT_TOO_SMALL; its sites are so few that they could have drawn until they liked the seed.
        """
        if not self.plan.has_joint_structure or self.origin is not None:
            return None
        there, n_sites = len(view.bundles), len(view.roster.sites)
        if there < origin_members(n_sites):
            said = f"{there} of {n_sites} sites drew the seed of the trees; {origin_members(n_sites)} are needed."
            raise refuse(Code.COHORT_TOO_SMALL, said, "coordinator")
        return view.digest, view.public_seed

    def _take_origin(self, origin: tuple[bytes, int] | None) -> None:
        """Begin the program with the trees' seed; do nothing for None."""
        if origin is not None:
            self.origin = origin
            self.replica.begin(origin[1], origin[0])

    # Rounds ----------------------------------------------------------------------------------------------------------

    def _answer_round(self, request: RoundRequest) -> bytes:
        """Return the masked vector of a round; its cost is in the store when this returns."""
        participant = self._require_participant()
        self._require_structure(request.structure_seed)
        fresh = self._take_releases(request.round, request.releases)
        query = self.replica.query
        if query is None:
            raise refuse(Code.PURPOSE_UNEXPECTED, "The program asks nothing any more.", "coordinator")
        if request.round in self._answered:
            raise refuse(Code.PURPOSE_ANSWERED, peer="coordinator")
        self._setup.policy.check_query(query)
        self._book.require_reserved(self.run_id)
        self._require_group(participant.view)
        cohort = Cohort.from_view(participant.view, participant.node)
        step, cost, vote = self._mask(participant, cohort, query, request.signed_spec)
        if fresh and not step.persist:
            # The repeated vector belongs to an earlier round than the one that these releases lead to.
            raise refuse(Code.SLOT_REUSED, "Its spec was answered, and comes with new releases.", "coordinator")
        return self._record_step(step, NodeStep(releases=fresh, spent=(request.round, cost), masked=cohort, vote=vote))

    def _divide_roster(self) -> tuple[tuple[int, ...], ...]:
        """Return the nodes of the roster by their groups in the next round."""
        roster = self._setup.roster
        return split_members(roster, range(len(roster.sites)), self.replica.n_groups, self.replica.drawing)

    def _require_group(self, view: EpochView) -> None:
        """Check that the next round is summed over its own groups, and record the group in the book.

        With noise of the sites a group is kept for the rounds of its drawing; if the coordinator sees exact sums, for
        the data set.

        Raises:
            Refusal: PARAMETERS_REFUSED; the epoch has other groups.
            PolicyRefusal: code "group-changed"; the rows were summed in another group before.
        """
        drawing, roster = self.replica.drawing, self._setup.roster
        if view.parameters.drawing != drawing:
            raise refuse(Code.PARAMETERS_REFUSED, "Its groups are not those of this round.", "coordinator")
        if not self.replica.n_groups or drawing in self._grouped_by:
            return
        own = roster.find_node(self._setup.identity.public)
        part = next(part for part in self._divide_roster() if own in part)
        members = digest("group-members", *sorted(roster.sites[node].key for node in part))
        is_exact = noise_mode(self.plan) is NoiseMode.SERVER
        # Use the drawing's number: after its state was lost a node may be told another seed, which would draw other
        # groups.
        about = f"data {self._setup.policy.data_set}" if is_exact else f"{self.run_id.hex()} {self.replica.n_drawings}"
        self._book.require_group(about, members)
        self._grouped_by.add(drawing)

    def _mask(
        self, participant: Participant, cohort: Cohort, query: Query, signed_spec: bytes
    ) -> tuple[Step[Participant], Event, tuple[int, int, Event] | None]:
        """Answer a query under masks, if the signed spec agrees with this node's own replica.

        Returns:
            The step, the event that the round's release costs, and the vote that leaves with it (`NodeStep.vote`).

        Raises:
            Refusal, OwnMistake: as `Participant.mask`, and PURPOSE_ANSWERED if an earlier epoch's sum of the same round
                could be opened as well.
        """
        number = self.replica.n_releases
        if any(earlier == number and not cohort.excludes(other) for earlier, other in self._masked):
            said = "Its vector left in an epoch whose other nodes could still open it."
            raise refuse(Code.PURPOSE_ANSWERED, said, "coordinator")
        mode, guarantees = noise_mode(self.plan), participant.view.guarantees
        is_drawn_here = mode is NoiseMode.LOCAL or isinstance(query, SiteQuery)
        # A database that is older than its counter does not know the last vectors that have left.
        may_have_left = number <= self._last_masked or any(earlier == number for earlier, _ in self._masked)
        if is_drawn_here and not self._holds_answer() and may_have_left:
            self._redrawn.add(number)
        noise, expected = round_in(query, self.plan, guarantees, self.replica.context())
        shares = None
        if mode is NoiseMode.DISTRIBUTED and noise.share_sigma:
            names = (expected.purpose, expected.model, expected.vectors, expected.noise)
            spec = RoundSpec(participant.view.digest, 0, *names)
            label, source = f"{query.purpose}/share of {self._setup.site}", self._setup.noise
            shares = draw_shares(spec, guarantees, lambda v, length: source.sample(isqrt(int(v)), length, label))
        elif mode is NoiseMode.DISTRIBUTED:
            shares = {VECTOR_ID: np.zeros(query.length, dtype=np.int64)}
        # The same sums with other noise would be another release of them: send no figures of this site then.
        is_left_out = isinstance(query, SiteQuery) and number in self._redrawn
        vector = np.zeros(query.length, dtype=np.int64) if is_left_out else self._answer(query)
        own = bound_entry(query, self.plan, noise.variance, self._setup.max_rows)
        vectors = {VECTOR_ID: clip(vector, expected, own) if noise.variance else vector}
        vote = self._vote(may_have_left)
        said_vote = 0 if vote is None else vote[1]
        step = participant.mask(self._context, signed_spec, expected, vectors, self._setup.entropy, shares, said_vote)
        if mode is NoiseMode.LOCAL and number in self._redrawn and step.persist:
            # This would not repeat the bytes that were sent. The local model's promise does not rely on masks: another
            # draw of the records' noise would be another release of the same sums.
            raise refuse(Code.PURPOSE_ANSWERED, "Its answer may have left already, with other noise.", "coordinator")
        self._masked.add((number, cohort))
        return step, noise.event, vote

    def _vote(self, may_have_left: bool) -> tuple[int, int, Event] | None:
        """Return this node's vote with the present round's vector, as `NodeStep.vote`; None in most rounds.

        The vote is drawn once for a round. The node abstains if the vote may have been drawn before a restart that the
        store does not know of, and if the rows that all parties expect it to have are too few to show anything.
        """
        asked, number = self.replica.vote, self.replica.n_releases
        if asked is None:
            return None
        noise = noise_of(asked)
        if number not in self._votes:
            rows = expect_rows(self.plan, self._setup.max_rows, len(self._setup.roster.sites))
            is_lost = may_have_left or self._store.spent(self.run_id) is None
            if is_lost or rows < count_least_rows(noise.sigma / VOTE_UNIT):
                self._votes[number] = Vote.ABSTAINS
            else:
                total = self.node.sum_rows(asked)
                self._votes[number] = cast_vote(asked, total, self._setup.site, self._setup.noise)
        return number, self._votes[number], noise.event

    def _holds_answer(self) -> bool:
        return self._vector is not None and self._vector[0] == self.replica.n_releases

    def _answer(self, query: Query) -> IntVector:
        """Return the site's own sums; computed once for a query, however often its round is repeated."""
        if self._vector is None or not self._holds_answer():
            self._vector = (self.replica.n_releases, self.node.answer(query))
        return self._vector[1]

    def _unmask(self, content: bytes) -> Reply:
        """Return the shares that open a round's sum, or first the echo if the epoch wants one."""
        step = self._require_participant().unmask(self._context, content)
        number, seen = self.replica.n_releases, self._note_votes(content)
        answers = any(record.fact == "purpose-answered" for record in step.persist)
        message = self._record_step(step, NodeStep(answered=number if answers else None, seen=seen))
        if answers:
            self._answered.add(number)
            self._note_headers(content)
        if step.state.state is State.STOPPED:
            raise step.complaints[0]
        if step.state.state is State.MANIFEST_ECHOED:
            return NodeState.ECHOED, Payload(MessageKind.ECHO, message)
        return NodeState.WAITING, Payload(MessageKind.ANSWER, message)

    def _note_votes(self, request: bytes) -> tuple[int, bytes] | None:
        """Note what the neighbours' headers say in a round with votes, and that nodes outside the sum say nothing.

        Return it as `NodeStep.seen`; None in most rounds.

        Raises Refusal BAD_SIGNATURE: else the coordinator could vote for a node that does not come back.
        """
        if self.replica.vote is None:
            return None
        view, asked = self._require_participant().view, UnmaskRequest.from_bytes(request)
        manifest = Manifest.from_signed(asked.manifest)
        listed = dict(zip(manifest.survivors, manifest.headers, strict=True))
        seen = bytearray(_UNSEEN if node in listed else Vote.ABSTAINS for node in range(len(view.roster.sites)))
        for signed in asked.headers:
            header = Header.from_signed(signed)
            if listed.get(header.node) != header_hash(signed):
                raise refuse(Code.HEADER_ALTERED, peer="coordinator")
            check_signature(site_key(view.roster, header.node), Kind.HEADER, signed, header.node)
            seen[header.node] = header.vote
        number = self.replica.n_releases
        self._seen_votes[number] = bytes(seen)
        return number, bytes(seen)

    def _require_votes(self, release: IntVector) -> None:
        """Raise RemoteProtocolError (code "vote-changed") for a release whose votes are not those that were cast.

        A node knows its own, and what its neighbours signed where it helped to open the sum. Where it did not, its
        vector may have come too late: then its entry may say nothing. All nodes of a group that sits out say nothing:
        its sum may have failed after they saw its votes.
        """
        if self.replica.vote is None or not self.replica.is_fit(release):
            return
        (sums, votes), number = self.replica.split(release), self.replica.n_releases
        own = self._setup.roster.find_node(self._setup.identity.public)
        expected = np.frombuffer(self._seen_votes.get(number, bytes([_UNSEEN] * len(votes))), dtype=np.uint8).copy()
        for part, weight in zip(self._divide_roster(), sums.reshape(self.replica.n_groups, -1)[:, 0], strict=True):
            expected[list(part) if weight == 0 else []] = Vote.ABSTAINS
        is_known = number in self._votes or number > self._last_masked
        may_be = {self._votes.get(number, 0), 0}
        differs = ((expected != _UNSEEN) & (expected != votes)).any()
        if not is_ballot(votes) or differs or (is_known and int(votes[own]) not in may_be):
            raise RemoteProtocolError("vote-changed", round=number)

    def _note_headers(self, request: bytes) -> None:
        """Keep the headers that neighbours signed in a round, and write the first ones of an epoch at once."""
        view = self._require_participant().view
        asked = UnmaskRequest.from_bytes(request)
        for signed in asked.headers:
            key = view.roster.sites[Header.from_signed(signed).node].key
            self._headers |= {} if key == self._setup.identity.public else {key: signed}
        if self._seen_in != view.digest:
            self._seen_in = view.digest
            self.keep_headers()

    def keep_headers(self) -> None:
        """Write the headers that neighbours have signed since the last time into the peer book."""
        # A sum may be opened over headers with invalid signatures; these must not replace valid ones.
        signed = {key: header for key, header in self._headers.items() if read_kept_header(header, key)}
        self._book.peers.keep(self._setup.identity.public, self.run_id, signed)
        self._headers = {}

    def _record_step(self, step: Step[Participant], beside: NodeStep = _NOTHING) -> bytes:
        """Store a step, with other changes in the same write, and return its message."""
        if step.persist:
            self._store.save(self.run_id, replace(beside, participant=step.state))
        self.participant = step.state
        return step.message or b""

    def _require_participant(self) -> Participant:
        if self.participant is None:
            raise refuse(Code.OUT_OF_ORDER, "No epoch is ready.", "coordinator")
        return self.participant

    # Releases --------------------------------------------------------------------------------------------------------

    def finish(self, message: Finished | Salvaged) -> Salvage | None:
        """Take the last releases; afterwards `replica.result` is the run's result.

        Returns:
            The reason and the number of rounds if the run ends early; else None.

        Raises:
            RemoteProtocolError: "not-salvageable", or "model-differs" for another result than this node's own.
        """
        self._require_structure(message.structure_seed)
        fresh = self._take_releases(message.n_releases, message.releases)
        salvaged = None
        if isinstance(message, Salvaged):
            if not (self.plan.federation.salvage and self.replica.end_early()):
                raise RemoteProtocolError("model-differs", code="not-salvageable", early=", so early as it ends")
            salvaged = Salvage(message.code, message.n_releases, self.task.schedule.n_rounds)
        if self.replica.query is not None or self.replica.result_digest() != message.result_digest:
            raise RemoteProtocolError("model-differs", early="")
        self._store.save(self.run_id, NodeStep(releases=fresh, is_salvaged=salvaged is not None))
        return salvaged

    def _require_structure(self, seed: int) -> None:
        """Raise RemoteProtocolError "structure-seed" unless the coordinator names the trees' seed.

        The seed is the plan's, or the one that the sites have drawn as far as this node saw.
        """
        if self.replica.plan.model.structure_seed != seed:
            raise RemoteProtocolError("structure-seed")

    def _take_releases(self, total: int, releases: tuple[IntVector, ...]) -> tuple[tuple[int, IntVector], ...]:
        """Feed the replica the releases that it lacks of `total`; return the new ones, by round.

        Raises:
            RemoteProtocolError: code "round-out-of-step"; the coordinator counts differently.
        """
        first = total - len(releases)
        if not first <= self.replica.n_releases <= total:
            raise RemoteProtocolError(
                "round-out-of-step", total=total, n_sent=len(releases), n_held=self.replica.n_releases
            )
        fresh = []
        for number, release in enumerate(releases, start=first):
            if number == self.replica.n_releases:
                self.feed(release)
                fresh.append((number, release))
        return tuple(fresh)

    def feed(self, release: IntVector) -> None:
        """Take a release: apply the round's update, unless it was answered here, and go to the next query.

        Raises:
            RemoteProtocolError: it cannot be a release of this round, or of sums over records.
        """
        query = self.replica.query
        if query is not None and self.replica.is_fit(release):
            self._require_plausible(query, release)
        self._require_votes(release)
        if query is not None and not self._holds_answer():
            self.node.finish(query)
        self._look()
        parts, (sums, votes) = self._divide_roster(), self.replica.split(release)
        self.replica.feed(release)
        self._vector = None
        for found in self._lineup.take(sums, parts):
            self._setup.tell(found.describe([site.name for site in self._setup.roster.sites]))
        tally = Tally.count(votes)
        if tally.is_against(self.replica.n_groups):
            self._setup.tell(describe_tally(tally))

    def _look(self) -> None:
        """Tell the owner, and nobody else, if the model predicts the site's own rows badly.

        Others can see no consequence: the owner is told, and the node goes on. With little signal nothing is told,
        because models of honest sites fail there too.
        """
        n_worse = self.node.n_worse
        if n_worse >= WORSE_TREES and not self._has_told and can_compare_sites(self.plan):
            said = (
                f"For {n_worse} trees in a row the model so far has predicted this site's rows worse than a constant. "
                "Common causes: this site's patients or columns differ from the others', or it has few rows; rarely, "
                "a site is faulty or dishonest. Only you hear of it. Call the other sites first. You may end this "
                "node's part (`hedgerow approve FOLDER --stop`): what others see then follows from your rows, outside "
                "the guarantee"
            )
            self._setup.tell(mark_private(said, "model-disagrees"))
        self._has_told = n_worse >= WORSE_TREES

    def _require_plausible(self, query: Query, release: IntVector) -> None:
        """Check a release as the coordinator has to; this node does not rely on that.

        The node does not know whose vectors and how many shares of noise are in a sum. It allows for more noise, and
        does not compare totals of rounds.
        """
        groups, mode = self._divide_roster(), noise_mode(self.plan)
        noise = noise_of(query, 1 if mode is NoiseMode.DISTRIBUTED else None, is_local=mode is NoiseMode.LOCAL)
        for number, row in enumerate(self.replica.read_sums(release)):
            if len(groups) > 1 and not row.any():
                continue  # A group that sat out.
            declared = [self._setup.roster.sites[node].max_rows for node in groups[number]]
            entry_bound = least_entry_bound(query, self.plan, noise.variance, len(declared), is_known=False)
            facts = SumFacts(most_rows(self.plan, declared), entry_bound, noise, len(declared))
            checks = self._checks.setdefault(number, build_checks(self.task))
            if fault := checks.fault_in(query, row, facts):
                raise RemoteProtocolError("release-implausible", round=query.purpose.round, fault=fault)
