"""A node in a run, without a socket or a clock: a message goes in, messages to be sent come out.

The node runs its own replica of the program, so it computes every query itself and masks only what it expects. What
must survive a crash is in the store before a message is returned. A fault that ends the node's part is kept in
`failure`, told to the coordinator as a code word, and told to the owner in full.
"""

from __future__ import annotations

from hedgerow.client.arrivals import expect_arrivals
from hedgerow.client.budget import (
    ACCEPTED,
    CLOSED,
    FINISHED,
    LEFT,
    MOST_UNUSED_DRAWS,
    RESERVED,
    STOPPED,
    BudgetBook,
    closed_run,
)
from hedgerow.client.evaluation_node import EvaluationNode
from hedgerow.client.node import Node
from hedgerow.client.node_run import (
    NodeRun,
    NodeSetup,
    answering_node,
    asked_by,
    check_task,
    require_known_model,
    require_same_plan,
    task_of,
)
from hedgerow.client.store import JOINING, OPEN, NodeStep, NodeStore, StoredRun
from hedgerow.errors import (
    AggregationError,
    DataError,
    HedgerowError,
    PolicyRefusal,
    RemoteProtocolError,
)
from hedgerow.evaluation.estimates import Evaluation
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import Task, digest_of_model
from hedgerow.plan.plan import Plan
from hedgerow.protocol.messages import (
    NO_HASH,
    Abandoned,
    Done,
    EvaluationInvitation,
    Finished,
    Hello,
    Invitation,
    Message,
    MessageKind,
    Payload,
    Ready,
    Refused,
    RoundRequest,
    Salvaged,
    Stop,
    Welcome,
    decode,
    encode,
    kind_of,
)
from hedgerow.protocol.results import Salvage
from hedgerow.protocol.script import NodeState, require_expected
from hedgerow.secagg.encoding import Kind
from hedgerow.secagg.enrolment import Enrolment
from hedgerow.secagg.participant import NodeContext, Participant
from hedgerow.secagg.roster import MAX_ATTEMPTS, EpochParameters, Roster
from hedgerow.secagg.transitions import Code, State, refuse
from hedgerow.secagg.view import Cohort, EpochView
from hedgerow.trees.ensemble import Ensemble


class NodeSession:
    """One node; made anew after a restart, when it goes on from what its store holds.

    Raises PolicyRefusal (code "budget-lost") for a budget book without the runs that the store knows of.

    Attributes:
        state: where it stands in the script of a run.
        ensemble: the model, once a run that trains one has finished.
        evaluation: what was found, once an evaluation has finished.
        failure: why it has stopped, if it has.
        salvaged: why the run ended early, and how far it came, if its model is that of a part of its rounds.
        set_aside: what became of the run in its store, if its owner's plan, policy or tables do not allow it any more.
    """

    def __init__(self, setup: NodeSetup, store: NodeStore, book: BudgetBook) -> None:
        _serve(store, book, setup.site)
        self._setup, self._store, self._book = setup, store, book
        self._context = NodeContext(setup.identity, setup.roster, setup.policy.secure_sums)
        self.state = NodeState.OUTSIDE
        self.ensemble: Ensemble | None = None
        self.evaluation: Evaluation | None = None
        self.failure: HedgerowError | None = None
        self.salvaged: Salvage | None = None
        self.plan: Plan | None = setup.plan
        self._run: NodeRun | None = None
        self._lost: HedgerowError | None = None
        self._greeting: int | None = None
        self.set_aside: PolicyRefusal | None = None
        _reconcile(store, book)
        stored = store.load()
        if stored is not None:
            self._take_up(stored)

    def connected(self) -> list[bytes]:
        """What to send first on a new connection."""
        if self.state in (NodeState.FINISHED, NodeState.STOPPED):
            return []
        run = self._run
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
            message = decode(data)
            if isinstance(message, Welcome) or self._greeting is not None:
                # Until the coordinator answers this connection's Hello, what comes was meant for the one before.
                is_ours = isinstance(message, Welcome) and message.connection == self._greeting
                self._greeting = None if is_ours else self._greeting
                return []
            require_expected(self.state, kind_of(message))
            return [encode(answer) for answer in self._react(message)]
        except HedgerowError as fault:
            return self._stop(fault)

    @property
    def is_unsettled(self) -> bool:
        """Whether `settle` has something to do."""
        run = self._run
        return run is not None and run.participant is not None and self._store.is_behind(run.participant)

    def settle(self) -> list[bytes]:
        """What to send when nobody waits for this node: nothing, as long as its store can be brought up to date."""
        try:
            if self.is_unsettled:
                self._store.settle(self._require_run().run_id, self._require_participant())
        except HedgerowError as fault:
            return self._stop(fault)
        return []

    # What a message does -----------------------------------------------------------------------------------------

    def _react(self, message: Message) -> list[Message]:
        match message:
            case Invitation() | EvaluationInvitation():
                return self._asked(message)
            case Payload(MessageKind.ORIGIN, content):
                return self._originate(content)
            case Payload(MessageKind.ENROL, content):
                return self._enrol(content)
            case Payload(MessageKind.SETUP, content):
                return self._set_up(content)
            case RoundRequest():
                return self._answer_round(message)
            case Payload(MessageKind.UNMASK, content):
                return self._unmask(content)
            case Payload(MessageKind.CERTIFICATE, content):
                return self._confirm(content)
            case Finished() | Salvaged():
                return self._finish(message)
            case Stop(code):
                if self._run is not None:
                    self._end(STOPPED)
                raise AggregationError(
                    f"The coordinator has given the run up: {code}.",
                    remedy="Its operator knows more; what this site's rounds have cost is in the budget book.",
                    code=code,
                )
            case Abandoned():
                if self._run is not None and self._run.participant is not None:
                    self.state = NodeState.WAITING
        return []

    def _stop(self, fault: HedgerowError) -> list[bytes]:
        has_ended = self.state is NodeState.STOPPED
        self.failure, self.state = fault, NodeState.STOPPED
        if has_ended:
            return []
        code = fault.public_code if isinstance(fault, DataError) else fault.code
        return [encode(Refused(0 if self._run is None else self._run.replica.n_releases, code))]

    def _end(self, status: str) -> None:
        """Close the run in the budget book and in the store: it is never taken up again."""
        run = self._require_run()
        run.participant = None
        self._book.settle(run.run_id, self._store.spent(run.run_id), status)
        self._store.close_run(run.run_id, status)
        self.state = NodeState.FINISHED if status == FINISHED else NodeState.STOPPED

    def _require_run(self) -> NodeRun:
        if self._run is None:
            raise refuse(Code.OUT_OF_ORDER, "There is no run yet.", "coordinator")
        return self._run

    # Taking part -------------------------------------------------------------------------------------------------

    def _asked(self, message: Invitation | EvaluationInvitation) -> list[Message]:
        """Answer an invitation; whatever the answer is, the owner can read in the book that it was given."""
        try:
            answers = self._invited(message.run_id, task_of(message))
        except HedgerowError as fault:
            self._book.note_invitation(asked_by(message), fault.code)
            raise
        self._book.note_invitation(asked_by(message), ACCEPTED)
        return answers

    def _invited(self, run_id: bytes, task: Task) -> list[Message]:
        run = self._run
        if run is not None and run.run_id == run_id:
            require_same_plan(task, run.task)
            self._require_draws_left(task, is_drawn=task.plan.has_joint_structure and run.origin is None)
            run.enrolment, run.participant = None, None
        else:
            self._join(run_id, task)
        self.state = NodeState.INVITED
        return [Ready(run_id, bytes.fromhex(task.digest))]

    def _join(self, run_id: bytes, task: Task) -> None:
        """Take up a new run, if the plan, the policy, the data and the budget allow it; raises what refuses."""
        status = self._store.status_of(run_id)
        if status in (FINISHED, STOPPED, CLOSED) or (status == LEFT and self._store.has_masked(run_id)):
            raise closed_run(status)
        if status is None and self._book.has(run_id) and not self._store.knows(run_id):
            raise PolicyRefusal(
                "This node was in this run already, but its state is lost.",
                cause="Its folder was removed or replaced, and with it what was answered already.",
                remedy="Take part in the next run; keep the state folder between restarts.",
                code="state-lost",
            )
        check_task(task, self._setup)
        require_known_model(task, self._setup.models | self._store.models())
        is_open = task.plan.has_joint_structure and self._store.origin_of(run_id) is None
        self._require_draws_left(task, is_drawn=is_open)
        if status == OPEN:
            raise closed_run(OPEN)
        replica = Replica(task)
        policy = self._setup.policy
        self._store.note_joining(run_id, task, NO_HASH)
        # Whatever else is reserved for this node will not go on: a node is in one run at a time.
        left = {old: self._store.charge(old) for old in self._book.reserved() if old != run_id}
        room = (policy.max_epsilon, policy.delta), left
        self._book.reserve(run_id, policy.data_set, task.plan, task.planned_releases(), *room)
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
        answered = set(self._store.open_run(run_id, task, data_digest))
        expect_arrivals(node, self._setup.arrivals, (task.plan, self._store.database, run_id, bool(answered)))
        past = self._store.attempt_of(run_id), answered, set[tuple[int, Cohort]]()
        n_sites, last_masked = len(self._setup.roster.sites), self._store.last_masked(run_id)
        self._run = NodeRun(run_id, task, node, replica, n_sites, *past, last_masked)
        self._run.take_origin(self._store.origin_of(run_id))
        self.plan = task.plan

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
                raise DataError(
                    "The rows are not those with which this node began the run.",
                    cause="The table was changed between two starts.",
                    remedy="Give the same table again; or start the node once with --leave: it then leaves this run, "
                    "is charged for what it has answered, and takes part in the next one.",
                    code="data-changed",
                )
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
        self.set_aside = PolicyRefusal(
            f"This node does not go on with the run {run_id.hex()[:12]} ({name}) that its state holds.",
            cause=f"Its owner's plan, policy or tables have changed since: {why.what}",
            remedy=became,
            code="run-set-aside",
        )

    def _resume(self, stored: StoredRun, node: Node | EvaluationNode) -> None:
        """Rebuild scores and state from the store."""
        task, run_id = stored.task, stored.run_id
        replica, facts = Replica(task), (set(stored.answered), set(stored.masked))
        is_lost = stored.fault is not None
        expect_arrivals(node, self._setup.arrivals, (task.plan, self._store.database, run_id, is_lost))
        n_sites, last_masked = len(self._setup.roster.sites), self._store.last_masked(run_id)
        run = NodeRun(run_id, task, node, replica, n_sites, stored.attempt, *facts, last_masked)
        run.take_origin(stored.origin)
        for release in stored.releases:
            run.feed(release)
        run.participant = stored.participant
        self._run, self.plan, self._lost = run, task.plan, stored.fault
        if run.participant is not None:
            self.state = _STATES.get(run.participant.state, NodeState.WAITING)

    def _enrol(self, parameters: bytes) -> list[Message]:
        run = self._require_run()
        proposed = EpochParameters.from_bytes(parameters)
        run.require_fitting(proposed)
        self._require_draws_left(run.task, is_drawn=run.draws_in(proposed))
        step = Enrolment.begin(self._context, parameters, self._setup.entropy, run.attempt)
        self._store.save_attempt(run.run_id, proposed.attempt)
        run.attempt, run.participant, run.enrolment = proposed.attempt, None, step.state
        self.state = NodeState.ENROLLING
        return [_payload(MessageKind.SETUP_ANSWER, step.message)]

    def _set_up(self, content: bytes) -> list[Message]:
        run = self._require_run()
        enrolment = run.enrolment
        if enrolment is None:
            raise refuse(Code.OUT_OF_ORDER, "No set-up is under way.", "coordinator")
        kind = content[4] if len(content) > 4 else 0
        if kind == Kind.READY_LIST:
            ready = enrolment.finish(self._context, content).state
            origin = run.origin_in(ready.view)
            run.participant, run.enrolment = ready, None
            self._store.save(run.run_id, NodeStep(participant=run.participant, origin=origin))
            run.take_origin(origin)
            self.state = NodeState.WAITING
            return []
        if kind == Kind.KEY_LIST:
            step = enrolment.reveal(self._context, content)
            if run.draws_in(enrolment.parameters):
                # Before the nonce leaves: who has it knows what this set-up draws, and may then let the run go.
                self._book.note_draw(run.task.plan.digest, run.run_id, enrolment.parameters.attempt)
        elif kind == Kind.NONCE_LIST:
            step = enrolment.share(self._context, content, self._setup.entropy)
        else:
            step = enrolment.acknowledge(self._context, content)
        run.enrolment = step.state
        return [_payload(MessageKind.SETUP_ANSWER, step.message)]

    def _require_draws_left(self, task: Task, *, is_drawn: bool) -> None:
        """Raises PolicyRefusal (code "seed-drawn-too-often") where this node's nonces have drawn often and for nothing.

        A run that is given up before a vector is masked costs nothing, so a coordinator with colluders could begin
        runs until it likes the seed. Runs in which this node has masked are paid for, and not counted.

        Args: is_drawn: whether nonces draw anything in what this node is asked to take part in.
        """
        digest = task.plan.digest
        if not is_drawn:
            return
        n_unused = sum(not self._store.spent(run_id) for run_id in self._book.draws(digest))
        if n_unused >= MOST_UNUSED_DRAWS:
            raise PolicyRefusal(
                f"In {n_unused} set-ups of the plan {task.plan.name!r} this node has helped to draw a seed, and each "
                "of these runs was given up before any vector of it was masked.",
                cause="The coordinator or its network fails often; or it begins runs until it likes the seed.",
                remedy="Ask the coordinator's operator why. To let the seed be drawn again: "
                f"hedgerow ledger BOOK --allow-draws {digest[:12]}",
                code="seed-drawn-too-often",
            )

    def _originate(self, record: bytes) -> list[Message]:
        """Take note of the seed that others drew before this node came.

        Raises Refusal for what they did not sign, RemoteProtocolError where this node knows of another.
        """
        run, policy = self._require_run(), self._context.policy

        def require(roster: Roster, parameters: EpochParameters) -> None:
            if roster != self._context.roster or parameters.run_id != run.run_id:
                raise refuse(Code.ROSTER_MISMATCH, "The seed was drawn in another run.", "coordinator")
            if not 1 <= parameters.attempt <= MAX_ATTEMPTS:
                raise refuse(Code.STALE_ATTEMPT, f"The seed is of attempt {parameters.attempt}.", "coordinator")
            run.require_fitting(parameters)
            policy.require(parameters, len(roster.sites))

        view = EpochView.from_record(record, require)
        policy.require(view.parameters, view.guarantees.n_nodes)
        run.require_origin(view)
        origin = run.origin_in(view)
        self._store.save(run.run_id, NodeStep(origin=origin))
        run.take_origin(origin)
        return []

    # Rounds ------------------------------------------------------------------------------------------------------

    def _answer_round(self, request: RoundRequest) -> list[Message]:
        run = self._require_run()
        participant = self._require_participant()
        run.require_structure(request.structure_seed)
        fresh = run.take_releases(request.round, request.releases)
        query = run.replica.query
        if query is None:
            raise refuse(Code.PURPOSE_UNEXPECTED, "The program asks nothing any more.", "coordinator")
        if request.round in run.answered:
            raise refuse(Code.PURPOSE_ANSWERED, peer="coordinator")
        self._setup.policy.check_query(query)
        self._require_reserved(run.run_id)
        step, noise = run.mask(self._setup, self._context, participant, query, request.signed_spec)
        if step.persist or fresh:
            spent = (request.round, noise.event)
            cohort = run.cohort_of(participant.view)
            self._store.save(run.run_id, NodeStep(step.state, fresh, spent=spent, masked=cohort))
        run.participant = step.state
        self.state = NodeState.MASKED
        return [_payload(MessageKind.UPLOAD, step.message)]

    def _require_reserved(self, run_id: bytes) -> None:
        """Raises PolicyRefusal (code "run-closed" or "budget-lost") for a run whose line the book has settled.

        A line that is settled is never charged again, so nothing more may leave, however the run was settled.
        """
        self._book.require_runs([run_id])
        status = self._book.status_of(run_id)
        if status is not None and status != RESERVED:
            raise closed_run(status)

    def _unmask(self, content: bytes) -> list[Message]:
        run = self._require_run()
        step = self._require_participant().unmask(self._context, content)
        answered = next((record.digest for record in step.persist if record.fact == "purpose-answered"), None)
        if answered is not None:
            # An answer follows from the step before it; what follows an echo needs the echo's own.
            state = None if step.state.state is State.SHARES_ANSWERED else step.state
            self._store.save(run.run_id, NodeStep(state, answered=(run.replica.n_releases, answered)))
            run.answered.add(run.replica.n_releases)
        elif step.persist:
            self._store.save(run.run_id, NodeStep(step.state))
        run.participant = step.state
        if step.state.state is State.STOPPED:
            raise step.complaints[0]
        if step.state.state is State.MANIFEST_ECHOED:
            self.state = NodeState.ECHOED
            return [_payload(MessageKind.ECHO, step.message)]
        self.state = NodeState.WAITING
        return [_payload(MessageKind.ANSWER, step.message)]

    def _confirm(self, content: bytes) -> list[Message]:
        run = self._require_run()
        step = self._require_participant().confirm(content)
        if step.persist:
            self._store.save(run.run_id, NodeStep(step.state))
        run.participant = step.state
        self.state = NodeState.WAITING
        return [_payload(MessageKind.ANSWER, step.message)]

    def _require_participant(self) -> Participant:
        run = self._require_run()
        if run.participant is None:
            raise refuse(Code.OUT_OF_ORDER, "No epoch is ready.", "coordinator")
        return run.participant

    def _finish(self, message: Finished | Salvaged) -> list[Message]:
        run = self._require_run()
        run.require_structure(message.structure_seed)
        fresh = run.take_releases(message.n_releases, message.releases)
        if isinstance(message, Salvaged):
            if not (run.plan.federation.salvage and run.replica.end_early()):
                raise RemoteProtocolError(
                    "The coordinator ends the run early with a model, and the plan or the releases give none.",
                    cause="The parties run different versions, or the coordinator does not follow the protocol.",
                    remedy="Do not use the coordinator's result; compare the versions.",
                    code="not-salvageable",
                )
            self.salvaged = Salvage(message.code, message.n_releases, run.task.n_exchanges)
        if run.replica.query is not None or run.replica.result_digest() != message.result_digest:
            raise RemoteProtocolError(
                "The coordinator's result is not the one that its releases make.",
                cause="The parties run different versions, or the coordinator does not follow the protocol.",
                remedy="Do not use the coordinator's result; compare the versions.",
                code="model-differs",
            )
        self._store.save(run.run_id, NodeStep(releases=fresh))
        if isinstance(run.replica.result, Evaluation):
            self.evaluation = run.replica.result
        else:
            self.ensemble = run.replica.result
            self._store.keep_model(digest_of_model(run.replica.result))
        self._end(FINISHED)
        return [Done(message.result_digest)]


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
    """Whether all releases of the run that is open are in the store: its program asks nothing more.

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
    return replica.query is None


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


_STATES = {State.VECTOR_MASKED: NodeState.MASKED, State.MANIFEST_ECHOED: NodeState.ECHOED}


def _payload(kind: MessageKind, content: bytes | None) -> Payload:
    return Payload(kind, content or b"")
