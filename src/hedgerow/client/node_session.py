"""A node, without a socket or a clock: a message goes in, messages to be sent come out; and the loop around it.

`NodeSession` speaks the protocol: greetings, invitations, and the end of a run. What a run's own messages do is in
`NodeRun`. What must survive a crash is in the store before a message is returned. A fault that ends the node's part is
kept in `failure`, sent to the coordinator as a code word, and shown to the owner in full.
"""

from __future__ import annotations

from collections.abc import Callable

from hedgerow.client.budget import ACCEPTED, CLOSED, FINISHED, LEFT, RESERVED, STOPPED, BudgetBook
from hedgerow.client.node_run import NodeRun
from hedgerow.client.owner import Question
from hedgerow.client.policy import (
    Answers,
    NodeSetup,
    answering_node,
    asked_by,
    check_task,
    require_draws_left,
    require_known_model,
    require_same_plan,
    task_of,
)
from hedgerow.client.state import JOINING, OPEN, NodeStore, StoredRun
from hedgerow.errors import AggregationError, DataError, HedgerowError, PolicyRefusal
from hedgerow.evaluation.estimates import Evaluation
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import EvaluationTask, SurveyTask, Task, TrainingTask, digest_of_model
from hedgerow.plan.plan import Plan
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
    kind_of,
    require_expected,
)
from hedgerow.protocol.reports import Salvage
from hedgerow.protocol.stream import WireRefusal, known
from hedgerow.secagg.enrolment import Enrolment
from hedgerow.secagg.transitions import Code, refuse
from hedgerow.survey.open_tables import Found
from hedgerow.transport.interface import Connected, Disconnected, Uplink, UplinkEvent
from hedgerow.trees.ensemble import Ensemble

_KINDS = {TrainingTask: "training", EvaluationTask: "evaluation", SurveyTask: "survey"}
_SECONDS_BETWEEN_LOOKS = 1.0
"""At what the owner says."""
_LEAST_WAIT = 1.0
"""If the time to give up came while this process did not run, what the coordinator sent meanwhile is read first."""


class NodeSession:
    """One node. After a restart, a new session goes on from what the store holds.

    Raises PolicyRefusal (code "budget-lost") for a budget book without the runs that the store knows of.

    Attributes:
        state: where it stands in the script of a run.
        ensemble: the model, once a run that trains one has finished.
        evaluation: what was found, once an evaluation has finished.
        findings: what was found, once a survey has finished.
        failure: why it has stopped, if it has.
        salvaged: why the run ended early, and how far it came, if its model is that of a part of its rounds.
        set_aside: what became of the run in its store, if its owner's plan, policy or tables do not allow it any more.
        is_paused: whether the coordinator has said that it goes on later, and has not come back.
        question: what its owner is asked before it answers an invitation; None where it waits for no one.
    """

    def __init__(self, setup: NodeSetup, store: NodeStore, book: BudgetBook) -> None:
        _serve(store, book, setup.site)
        self._setup, self._store, self._book = setup, store, book
        self.state = NodeState.OUTSIDE
        self.ensemble: Ensemble | None = None
        self.evaluation: Evaluation | None = None
        self.findings: Found | None = None
        self.failure: HedgerowError | None = None
        self.salvaged: Salvage | None = None
        self.plan: Plan | None = setup.plan
        self._run: NodeRun | None = None
        self._lost: HedgerowError | None = None
        self._greeting: int | None = None
        self.set_aside: PolicyRefusal | None = None
        self.is_paused = False
        self.question: Question | None = None
        self._held: Invitation | EvaluationInvitation | SurveyInvitation | None = None
        _reconcile(store, book)
        stored = store.load()
        if stored is not None:
            self._take_up(stored)

    @property
    def run_id(self) -> bytes:
        """The number of the run that it is in, empty outside any."""
        return b"" if self._run is None else self._run.run_id

    @property
    def site(self) -> str:
        """The node's name."""
        return self._setup.site

    @property
    def progress(self) -> tuple[int, int]:
        """How many releases of its run it holds, and how many the whole run has; nothing of either outside any."""
        run = self._run
        return (0, 0) if run is None else (run.replica.n_releases, run.task.n_exchanges)

    def connected(self) -> list[bytes]:
        """What to send first on a new connection."""
        if self.state in (NodeState.FINISHED, NodeState.STOPPED):
            return []
        run = self._run
        # Who waited for its owner is invited again.
        self.question = self._held = None
        self._greeting = int.from_bytes(self._setup.entropy(8), "big")
        if run is None:
            return [encode(Hello(self._greeting))]
        if run.participant is None:
            # A set-up does not go on over a new connection.
            run.enrolment = None
            self.state = NodeState.OUTSIDE
        epoch = NO_HASH if run.participant is None else run.participant.view.digest
        messages: list[Message] = [Hello(self._greeting, run.run_id, epoch, run.replica.n_releases)]
        if self._lost is not None:
            messages.append(Refused(run.replica.n_releases, self._lost.code))
            self._lost = None
        return [encode(message) for message in messages]

    def receive(self, data: bytes) -> list[bytes]:
        """What to send after a message of the coordinator; never raises what can be told: see `failure`."""
        if self.state in (NodeState.FINISHED, NodeState.STOPPED):
            return []
        try:
            message = decode(data, FROM_COORDINATOR)
            if isinstance(message, Welcome) or self._greeting is not None:
                # Until the coordinator answers this connection's Hello, what comes was meant for the one before.
                is_ours = isinstance(message, Welcome) and message.connection == self._greeting
                self._greeting = None if is_ours else self._greeting
                self.is_paused &= not is_ours
                return []
            require_expected(self.state, kind_of(message))
            return [encode(answer) for answer in self._react(message)]
        except HedgerowError as fault:
            return self._stop(fault)

    def consider(self) -> list[bytes]:
        """What to send after the owner may have said something; to be called now and then. Never raises, as `receive`.

        The desk of the store (`NodeStore.desk`) has what the owner says.
        """
        if self.state in (NodeState.FINISHED, NodeState.STOPPED):
            return []
        try:
            if self._store.desk.take_stop():
                for run_id in self._book.reserved():
                    close_reserved(self._store, self._book, run_id)
                raise PolicyRefusal("stopped-by-owner")
            held = self._held
            if held is None or self.question is None or self._store.desk.said(self.question.id) is None:
                return []
            return [encode(answer) for answer in self._asked(held)]
        except HedgerowError as fault:
            return self._stop(fault)

    # What a message does -----------------------------------------------------------------------------------------

    def _react(self, message: Message) -> list[Message]:
        match message:
            case Invitation() | EvaluationInvitation() | SurveyInvitation():
                return self._asked(message)
            case Payload(MessageKind.ORIGIN, content):
                self._require_run().originate(content)
            case Payload() | RoundRequest():
                self.state, answer = self._require_run().take(message)
                return [] if answer is None else [answer]
            case Finished() | Salvaged():
                return self._finish(message)
            case Stop(code):
                if self._run is not None:
                    self._end(STOPPED)
                raise AggregationError("given-up", code=code)
            case Paused():
                self.is_paused = True
            case Abandoned():
                if self._run is not None and self._run.participant is not None:
                    self.state = NodeState.WAITING
        return []

    def _stop(self, fault: HedgerowError) -> list[bytes]:
        has_ended = self.state is NodeState.STOPPED
        if self.question is not None:
            self._store.desk.withdraw()
            self.question = self._held = None
        self.failure, self.state = fault, NodeState.STOPPED
        if has_ended:
            return []
        code = fault.public_code if isinstance(fault, DataError) else fault.code
        return [encode(Refused(0 if self._run is None else self._run.replica.n_releases, code))]

    def _end(self, status: str) -> None:
        """Close the run in the budget book and in the store: it is never taken up again."""
        run = self._require_run()
        run.leave_epoch()
        self._book.settle(run.run_id, self._store.spent(run.run_id), status)
        self._store.close_run(run.run_id, status)
        self.state = NodeState.FINISHED if status == FINISHED else NodeState.STOPPED

    def _require_run(self) -> NodeRun:
        if self._run is None:
            raise refuse(Code.OUT_OF_ORDER, "There is no run yet.", "coordinator")
        return self._run

    # Taking part -------------------------------------------------------------------------------------------------

    def _asked(self, message: Invitation | EvaluationInvitation | SurveyInvitation) -> list[Message]:
        """Answer an invitation; whatever the answer is, the owner can read in the book that it was given."""
        was_asked, self.question, self._held = self.question, None, None
        try:
            answers = self._invited(message.run_id, task_of(message))
        except HedgerowError as fault:
            self._book.note_invitation(asked_by(message), fault.code)
            raise
        if self.question is not None:
            self._held = message
            return [] if self.question == was_asked else [Deferred()]
        self._book.note_invitation(asked_by(message), ACCEPTED)
        return answers

    def _invited(self, run_id: bytes, task: Task) -> list[Message]:
        """What to answer; nothing where the owner has to be asked first, which `question` says then."""
        run = self._run
        if run is not None and run.run_id == run_id:
            require_same_plan(task, run.task)
            if task.plan.has_joint_structure and run.origin is None:
                require_draws_left(self._store, self._book, task.plan)
            run.leave_epoch()
        elif not self._join(run_id, task):
            return []
        self.state = NodeState.INVITED
        return [Ready(run_id, bytes.fromhex(task.digest))]

    def _join(self, run_id: bytes, task: Task) -> bool:
        """Take up a new run, if the plan, the policy, the data and the budget allow it; raises what refuses.

        Returns False where its owner has to be asked first.
        """
        status = self._store.status_of(run_id)
        if status in (FINISHED, STOPPED, CLOSED) or (status == LEFT and self._store.has_masked(run_id)):
            raise PolicyRefusal("run-closed", status=status)
        if status is None and self._book.has(run_id) and not self._store.knows(run_id):
            raise PolicyRefusal("state-lost")
        check_task(task, self._setup)
        require_known_model(task, self._setup.models | self._store.models())
        if task.plan.has_joint_structure and self._store.origin_of(run_id) is None:
            require_draws_left(self._store, self._book, task.plan)
        if status == OPEN:
            raise PolicyRefusal("run-closed", status=OPEN)
        Replica(task)  # Raises what a plan is refused for that cannot be run, before anything is reserved.
        policy = self._setup.policy
        # Whatever else is reserved for this node will not go on: a node is in one run at a time.
        left = {old: self._store.charge(old) for old in self._book.reserved() if old != run_id}
        limit = (policy.max_epsilon, policy.delta)
        wanted = (run_id, policy.data_set, task.plan, task.planned_releases(), limit, left)
        if policy.asks and not self._is_approved(run_id, task, self._book.total_with(*wanted)):
            return False
        self._store.note_joining(run_id, task, NO_HASH)
        self._book.reserve(*wanted)
        for old in {*left, *self._store.run_ids(OPEN)}:
            if self._store.status_of(old) in (OPEN, JOINING):
                self._store.close_run(old, LEFT)
        self._run = None
        # Nothing until here depends on a row: the cost is reserved before the table is looked at.
        try:
            node, data_digest = answering_node(task, self._setup)
        except HedgerowError:
            # Nothing, unless the node was in this run before and has lost its database.
            self._book.settle(run_id, self._store.charge(run_id), LEFT)
            self._store.close_run(run_id, LEFT)
            raise
        self._store.open_run(run_id, task, data_digest)
        stored = self._store.load()
        if stored is not None:
            self._resume(stored, node)
        return True

    def _is_approved(self, run_id: bytes, task: Task, total: float) -> bool:
        """Whether the owner has approved this run of this task; asks where they were not asked.

        Args: total: what the data set would then have cost. Raises PolicyRefusal (code "policy-denied").
        """
        policy, name = self._setup.policy, task.plan.name
        question = Question(
            run_id.hex(), _KINDS[type(task)], name, task.digest, task.plan.digest, *task.promise, policy.data_set,
            total, policy.max_epsilon, policy.delta,
        )  # fmt: skip
        said = self._store.desk.ask(question)
        if said is None:
            self.question = self._store.desk.pending()
        elif not said:
            raise PolicyRefusal("policy-denied", name=name, run=question.run_id[:12])
        return bool(said)

    def _take_up(self, stored: StoredRun) -> None:
        """Go on with the run in the store, or set it aside when its owner has decided otherwise; raises DataError."""
        try:
            check_task(stored.task, self._setup)
            node, data_digest = answering_node(stored.task, self._setup)
        except PolicyRefusal as why:
            self._set_aside(stored, why)
            return
        if data_digest != stored.data_digest:
            if self._store.has_masked(stored.run_id):
                raise DataError("data-changed")
            self._store.renew_rows(stored.run_id, data_digest)
        self._resume(stored, node)

    def _set_aside(self, stored: StoredRun, why: PolicyRefusal) -> None:
        """Do not go on with a run: it is left at once where it has cost nothing, else when another run is joined.

        Until then an owner who took the wrong file can go back.
        """
        run_id, name = stored.run_id, stored.task.plan.name
        if self._store.has_masked(run_id):
            became = "It is kept until this node joins another run, and then charged for what it has answered; --leave "
            became += "does so at once."
        else:
            leave(self._store, self._book, self._setup.site)
            became = "It is left: this node has answered nothing in it, so it costs nothing."
        self.set_aside = PolicyRefusal("run-set-aside", run=run_id.hex()[:12], name=name, why=why.what, remedy=became)

    def _resume(self, stored: StoredRun, node: Answers) -> None:
        """Rebuild scores and state from the store."""
        self._run = NodeRun(self._setup, (self._store, self._book), stored, node)
        self.plan, self._lost = stored.task.plan, stored.fault
        if self._run.participant is not None:
            self.state = self._run.state

    # The end ---------------------------------------------------------------------------------------------------------

    def _finish(self, message: Finished | Salvaged) -> list[Message]:
        run = self._require_run()
        self.salvaged = run.finish(message)
        if isinstance(run.replica.result, Evaluation):
            self.evaluation = run.replica.result
        elif isinstance(run.replica.result, Found):
            self.findings = run.replica.result
        else:
            self.ensemble = run.replica.result
            if self._store.has_masked(run.run_id):
                # Where no vector of this node is in any release, the coordinator may have made them all up.
                self._store.keep_model(digest_of_model(run.replica.result))
        self._end(FINISHED)
        return [Done(message.result_digest)]

    # From one process to the next ------------------------------------------------------------------------------------

    def kept(self) -> bytes:
        """What the store does not hold and the next message may need, for engines with a process for every message.

        It holds the secrets of a set-up that is under way, and belongs in a private file; empty when there are none.
        """
        if self.state is NodeState.STOPPED:
            # It has refused and said why; what the coordinator still sends on this connection is not for it.
            return self.state.value.encode()
        run = self._run
        if self.state not in (NodeState.INVITED, NodeState.ENROLLING) or run is None:
            return b""
        return self.state.value.encode() + b" " + (b"" if run.enrolment is None else run.enrolment.to_bytes())

    def take_up(self, content: bytes) -> None:
        """Go on where the process before this one was, on the same connection: what `kept` gave there.

        Raises:
            OwnMistake: CORRUPT_STATE when it cannot be read.
        """
        word, _, enrolment = content.partition(b" ")
        run = self._run
        if content == NodeState.STOPPED.value.encode():
            self.state = NodeState.STOPPED
            return
        if not content or run is None or run.participant is not None:
            return
        self.state = NodeState(word.decode())
        run.enrolment = Enrolment.latest(enrolment) if enrolment else None


# The loop ------------------------------------------------------------------------------------------------------------


def handle(session: NodeSession, uplink: Uplink, event: UplinkEvent | None) -> None:
    """Take one event in, or with None what the owner may have said, and send what it calls for.

    Raises the node's failure after it was told to the coordinator.

    A message that finds the link down is not kept: after a reconnection both sides say where they stand.
    """
    if event is None:
        answers = session.consider()
    elif isinstance(event, Connected):
        answers = session.connected()
    elif isinstance(event, Disconnected):
        answers = []
        if event.is_final and session.state is not NodeState.FINISHED:
            raise WireRefusal(known(event.reason))
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
) -> Ensemble | Evaluation | Found:
    """Take part until the run is over.

    Args:
        session: a new session, or one that its store brought back.
        uplink: to the coordinator; the caller closes it.
        clock: seconds, from any beginning, that never go back: ``time.monotonic``.
        patience: seconds without any message after which the node gives up; the plan's own idle timeout counts as
            soon as the node has a plan.
        observer: is told whenever the connection comes or goes.
        asked: is told what the owner is asked, every second while there is no answer; it may wait for none.

    Returns:
        The model, or what the evaluation or the survey found, as this node's own replica made it.

    Raises:
        HedgerowError: what it refused, or why the run ended.
    """
    last = clock()
    while session.state is not NodeState.FINISHED:
        handle(session, uplink, None)
        if asked is not None and session.question is not None:
            asked(session.question)
        limit = patience_of(session, patience)
        wait = min(_SECONDS_BETWEEN_LOOKS, last + limit - clock())
        event = uplink.receive(wait if wait > 0 else _LEAST_WAIT)
        if event is None:
            if clock() - last >= limit:
                raise AggregationError("coordinator-silent", limit=limit)
            continue
        if not isinstance(event, Disconnected):
            last = clock()
        if observer is not None and isinstance(event, Connected | Disconnected):
            observer(event)
        handle(session, uplink, event)
    result = session.ensemble or session.evaluation or session.findings
    if result is None:
        raise AggregationError("no-model")
    return result


def patience_of(session: NodeSession, patience: float) -> float:
    """Seconds without a message after which a node gives up: the plan's, or these where it has no plan yet, waits for
    its owner, or was told that the run is paused.
    """
    if session.plan is None or session.question is not None or session.is_paused:
        return patience
    return session.plan.federation.idle_timeout


# The store and the budget book together --------------------------------------------------------------------------


def leave(store: NodeStore, book: BudgetBook, site: str) -> bytes | None:
    """Leave the run that the store of a site's node holds, if any: settled at what it has cost, never gone on with.

    One in which the node has answered nothing costs nothing, and may be joined again. Returns the run that was left.

    Raises PolicyRefusal (code "budget-lost") for a book without the runs that the store knows of.
    """
    _serve(store, book, site)
    _reconcile(store, book)
    stored = store.load()
    if stored is None:
        return None
    book.settle(stored.run_id, store.charge(stored.run_id), LEFT)
    store.close_run(stored.run_id, LEFT)
    return stored.run_id


def close_reserved(store: NodeStore | None, book: BudgetBook, run_id: bytes) -> bool:
    """Close a run that is reserved, as its owner wants: it is never gone on with, nor joined again.

    Args:
        store: of the node for which it is reserved, opened by the caller, so that the node cannot run; None when its
            folder is gone.
        book: serves that node (`BudgetBook.serve`).

    Returns:
        Whether it is known what has left the node, and only that is charged; else all that was reserved is.
    """
    charge = None
    if store is not None:
        store.load()
        charge = store.charge(run_id)
    # The book goes first: a node that finds its run closed there goes on with it no more.
    book.settle(run_id, charge, CLOSED)
    if store is not None and store.status_of(run_id) in (OPEN, JOINING, LEFT):
        store.close_run(run_id, CLOSED)
    return charge is not None


def _serve(store: NodeStore, book: BudgetBook, site: str) -> None:
    store.note_site(site)
    book.serve(site, store.folder)


def _is_complete(store: NodeStore, run_id: bytes) -> bool:
    """Whether all releases of the run that is open are in the store, those of a part of it where it was salvaged.

    Then nothing can leave the node in it, and its end may be told again.
    """
    stored = store.load()
    if stored is None or stored.run_id != run_id:
        return False
    replica = Replica(stored.task)
    if stored.origin is not None:
        replica.begin(stored.origin[1], stored.origin[0])
    for release in stored.releases:
        replica.feed(release)
    return replica.end_early() if stored.is_salvaged else replica.query is None


def _reconcile(store: NodeStore, book: BudgetBook) -> None:
    """Finish what a crash between the node's store and its budget book has interrupted; raises as `require_runs`.

    Afterwards a run is reserved here only if this node can go on with it, or its database was lost and the counter is
    left: then it may be joined again, at its whole cost.
    """
    known = store.run_ids()
    book.claim(known + store.run_ids(JOINING))
    book.require_runs(known)
    for run_id in store.run_ids(OPEN) + store.run_ids(JOINING):
        status, is_joining = book.status_of(run_id), store.status_of(run_id) == JOINING
        if status is None and is_joining:
            store.forget_joining(run_id)
        elif status not in (None, RESERVED) and not (status == FINISHED and _is_complete(store, run_id)):
            # What is answered from here on would not be charged.
            store.close_run(run_id, status)
        elif is_joining and not store.has_masked(run_id):
            book.settle(run_id, [], LEFT)
            store.close_run(run_id, LEFT)
    for run_id in book.reserved():
        status = store.status_of(run_id)
        if status is None and not store.knows(run_id):
            # The folder was emptied: who invites to this run again is refused.
            book.settle(run_id, None, LEFT)
        elif status not in (None, OPEN, JOINING):
            # It was about to be joined again, or had just ended.
            book.settle(run_id, store.charge(run_id), status or LEFT)
