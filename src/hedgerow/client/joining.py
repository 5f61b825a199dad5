# SPDX-License-Identifier: Apache-2.0
"""Decide which runs a node takes part in, join them, and settle them.

A node has its state, with the counter beside it, and its budget book. One of them may be lost, older than the others,
or changed by a crash in between. `NodeFiles` reads them together: a run's `RunStanding` is read once, and only
`require_joinable` decides, by the standing and by the owner's rules (`require_allowed`). `join` then writes, always in
this order:

1. the state records that the run is about to be joined; 2. the book reserves its whole cost, and settles the runs that
the node leaves for it in the same write; 3. the rows are read; nothing before this step depends on them; 4. the
counter, and then the state, open the run.

`NodeFiles.reconcile` repairs a crash between any two steps at the next start.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from hedgerow.builds import describe_build
from hedgerow.client.budget import CLOSED, FINISHED, LEFT, MAX_UNUSED_DRAWS, RESERVED, STOPPED, BudgetBook, Charge
from hedgerow.client.setup import Answers, NodeSetup, build_answers, no_held_out_rows, no_training_rows
from hedgerow.client.state import JOINING, OPEN, NodeStore, Question, StoredRun
from hedgerow.codec import format_spoken
from hedgerow.errors import DataError, HedgerowError, PolicyRefusal, mark_private
from hedgerow.methods.registry import find_method
from hedgerow.methods.replica import Replica, digest_behaviour
from hedgerow.methods.tasks import EvaluationTask, SurveyTask, Task, TrainingTask, find_visibility
from hedgerow.plan.plan import Plan
from hedgerow.protocol.messages import NO_HASH

_KINDS = {TrainingTask: "training", EvaluationTask: "evaluation", SurveyTask: "survey"}
_OTHER_ROWS = (
    "The rows are not those with which this node has answered in the run that is open: its next answers are of the "
    "rows as they are now. If this is the wrong table, stop the node and give it the right one; --leave leaves the "
    "run, which all others see"
)


@dataclass(frozen=True)
class RunStanding:
    """The status of a run at this node, by all of its files.

    Attributes:
        in_state: its status in the state; None if the state does not know it.
        in_book: the status of this node's line in the budget book; None if there is none.
        is_counted: whether the counter names it, even if the database was lost.
        has_masked: whether a masked vector of it may have left the node.
        has_origin: whether the node knows which epoch's nonces seed its trees.
    """

    in_state: str | None
    in_book: str | None
    is_counted: bool
    has_masked: bool
    has_origin: bool

    @property
    def is_over(self) -> bool:
        """Whether it has ended here. A run that was left before any vector of it was sent may be joined again."""
        return self.in_state in (FINISHED, STOPPED, CLOSED) or (self.in_state == LEFT and self.has_masked)

    @property
    def is_lost(self) -> bool:
        """Whether only the budget book knows of this node's part in it: the state was lost."""
        return self.in_state is None and self.in_book is not None and not self.is_counted


@dataclass(frozen=True)
class NodeFiles:
    """A node's state and its budget book, which serves this node."""

    store: NodeStore
    book: BudgetBook

    @classmethod
    def for_site(cls, store: NodeStore, book: BudgetBook, site: str, data_set: str = "") -> NodeFiles:
        """Return the files of a site's node, and let the book serve this node from now on (`BudgetBook.serve`)."""
        store.note_site(site)
        book.serve(site, store.folder, data_set)
        return cls(store, book)

    def standing(self, run_id: bytes) -> RunStanding:
        """Return the standing of a run."""
        store = self.store
        origin, in_book = store.find_origin(run_id), self.book.find_status(run_id)
        return RunStanding(
            store.find_status(run_id), in_book, store.knows(run_id), store.has_masked(run_id), origin is not None
        )

    def charge(self, run_id: bytes) -> Charge:
        """Return the charge at which a run is settled."""
        used = self.store.charge(run_id)
        return None if used is None else (used, self.store.find_last_slots(run_id))

    def close(self, run_id: bytes, status: str) -> None:
        """End a run at its cost so far, in the book and in the state; it never goes on."""
        charge = self.charge(run_id)
        self.book.settle(run_id, charge, status)
        self.store.close_run(run_id, status)

    def reconcile(self) -> None:
        """Complete writes that a crash between the files has interrupted.

        Raises as `BudgetBook.require_runs`.

        Afterwards a run is reserved here only if this node can go on with it, or if its database was lost and the
        counter is left. In the second case the run may be joined again, at its whole cost.
        """
        store, book = self.store, self.book
        known = store.run_ids()
        book.claim(known + store.run_ids(JOINING))
        book.require_runs([*known, *store.list_counted_runs()])
        for run_id in store.run_ids(OPEN) + store.run_ids(JOINING):
            here = self.standing(run_id)
            if here.in_book is None and here.in_state == JOINING:
                store.forget_joining(run_id)
            elif here.in_book not in (None, RESERVED) and not (here.in_book == FINISHED and self._is_complete(run_id)):
                # Close it: further answers would not be charged.
                store.close_run(run_id, here.in_book or LEFT)
            elif here.in_state == JOINING and not here.has_masked:
                # A run opens in the state before the book notes its first epoch: such a state is an older copy.
                book.settle(run_id, None if book.has_epoch(run_id) else ([], {}), LEFT)
                store.close_run(run_id, LEFT)
        for run_id in book.list_reserved():
            here = self.standing(run_id)
            if here.in_state is None and not here.is_counted:
                # The folder was emptied. Settle the run, so that another invitation to it is refused.
                book.settle(run_id, None, LEFT)
            elif here.in_state not in (None, OPEN, JOINING):
                # The run had just ended, or the node was about to rejoin it.
                book.settle(run_id, self.charge(run_id), here.in_state or LEFT)

    def _is_complete(self, run_id: bytes) -> bool:
        """Return whether the store has all releases of the open run (or of its salvaged part).

        Then nothing more can leave the node in this run, and its end may be told again.
        """
        stored = self.store.load()
        if stored is None or stored.run_id != run_id:
            return False
        replica = Replica(stored.task)
        if stored.origin is not None:
            replica.begin(stored.origin[1], stored.origin[0])
        for release in stored.releases:
            replica.feed(release)
        return replica.end_early() if stored.is_salvaged else replica.query is None

    def require_draws_left(self, plan: Plan) -> None:
        """Raise PolicyRefusal "seed-drawn-too-often" if this node's nonces have drawn too often for nothing.

        A run that is given up before a vector is masked costs nothing, so a coordinator with colluders could begin runs
        until it likes the seed. Runs in which this node has masked are paid for, and not counted. Call this only if
        nonces draw anything.
        """
        # Ask the book: it also knows runs whose state was lost with the node's folder.
        runs = self.book.draws(plan.digest)
        charged = self.book.list_charged()
        n_unused = sum(run_id not in charged and not self.store.has_masked(run_id) for run_id in runs)
        if n_unused >= MAX_UNUSED_DRAWS:
            raise PolicyRefusal("seed-drawn-too-often", n_unused=n_unused, name=plan.name, digest=plan.digest[:12])


# What the owner allows -----------------------------------------------------------------------------------------------


def check_own_plan(setup: NodeSetup) -> None:
    """Check the owner's plan against the owner's rules, before the node dials; raise PolicyRefusal.

    The cost of an evaluation of the plan's model is in its invitation, and is checked then.
    """
    setup.policy.check_roster(setup.roster)
    if setup.plan is None:
        if setup.policy.surveys and not setup.policy.plans:
            return
        if not setup.policy.plans:
            raise PolicyRefusal("no-pinned-plan")
        return
    if setup.policy.plans:
        _require_listed(setup.plan, setup.policy.plans)
    if setup.load_held_out is no_held_out_rows:
        require_allowed(TrainingTask(setup.plan), setup)
    else:
        # If there are rows for evaluations only, it does not matter who added the noise to the training.
        is_for_both = setup.load is not no_training_rows
        setup.policy.check_plan(setup.plan, 0.0, None if is_for_both else setup.policy.noise_of_evaluations[0])


def require_allowed(task: Task, setup: NodeSetup) -> None:
    """Check that the owner's rules allow a task, whatever the rows are.

    Raises PolicyRefusal, RemoteProtocolError or UsageError.
    """
    require_plan_named(task, setup)
    if isinstance(task, TrainingTask) and setup.arrivals is not None:
        setup.arrivals.check(task.plan)
    setup.policy.check_task(task, setup.roster)


def require_plan_named(task: Task, setup: NodeSetup) -> None:
    """Raise PolicyRefusal unless the owner has named the task's plan.

    The code is "no-pinned-plan" if the owner has named no plan at all. A coordinator that made plans up could choose
    bounds, classes and units such that a model, or even a node's taking part, reveals single rows.

    A survey has no such plan, and no row makes a node refuse one: the owner agrees to surveys as such, by the policy's
    line ``surveys``. The coordinator chooses the ends and groups of its curves. If it added the noise itself it would
    see the exact count of any of them, so the policy's `noise` decides, which is "distributed" by default.
    """
    if isinstance(task, SurveyTask):
        if not setup.policy.surveys:
            raise PolicyRefusal("policy-survey")
        return
    if setup.plan is None and not setup.policy.plans:
        raise PolicyRefusal("no-pinned-plan")
    # A model's plan contains the seed that the sites have drawn; the owner's plan may leave it to them.
    is_model = isinstance(task, EvaluationTask)
    if setup.plan is not None and not task.plan.is_run_of(setup.plan, is_model=is_model):
        require_same_plan(task.plan, setup.plan)
    if setup.policy.plans:
        _require_listed(task.plan, setup.policy.plans, is_model=is_model)


def _require_listed(plan: Plan, digests: Collection[str], *, is_model: bool = False) -> None:
    names = {plan.digest, plan.with_joint_structure().digest} if is_model else {plan.digest}
    if names.isdisjoint(digests):
        raise PolicyRefusal("policy-plan", name=plan.name, digest=plan.digest[:12])


def require_same_plan(offered: Plan | Task, own: Plan | Task) -> None:
    """Raise PolicyRefusal "plan-changed" unless both are the same plan."""
    if offered.digest != own.digest:
        raise PolicyRefusal(
            "plan-changed",
            offered=format_spoken(bytes.fromhex(offered.digest)),
            own=format_spoken(bytes.fromhex(own.digest)),
        )


# Joining -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Offer:
    """The coordinator's program: the digest of its rehearsal of the task, and its build."""

    behaviour: bytes
    build: str


def require_joinable(
    files: NodeFiles, setup: NodeSetup, run_id: bytes, task: Task, current: Task | None, offer: Offer
) -> Replica | None:
    """Check that this node may take up a run, apart from its rows and its budget.

    Args:
        current: the run's task if the node is in the run already; it may go on with that task only.
        offer: the coordinator's program, which has to behave like this node's.

    Returns:
        The run's replica; None if the node is in the run already.
    """
    here, replica = files.standing(run_id), None
    if current is not None:
        require_same_plan(task, current)
    else:
        if here.is_over:
            raise PolicyRefusal("run-closed", status=here.in_state)
        if here.is_lost:
            raise PolicyRefusal("state-lost")
        require_allowed(task, setup)
        # Trees determine which records share a bin, so a made-up "model" could single out a record.
        if isinstance(task, EvaluationTask) and task.model_digest not in setup.models | files.store.models():
            raise PolicyRefusal("policy-model", digest=task.model_digest.hex()[:12])
        if here.in_state == OPEN:
            raise PolicyRefusal("run-closed", status=OPEN)
        # Raise the error of a plan that cannot be run before anything is reserved.
        replica = Replica(task, len(setup.roster.sites))
    # Rehearse only allowed tasks. Check again in a running run, because the node's build may have been exchanged.
    if digest_behaviour(task) != offer.behaviour:
        raise PolicyRefusal("program-differs", theirs=offer.build or "one that does not say", own=describe_build())
    if task.plan.has_joint_structure and not here.has_origin:
        files.require_draws_left(task.plan)
    return replica


def join(
    files: NodeFiles, setup: NodeSetup, run_id: bytes, task: Task, current: Task | None, offer: Offer
) -> tuple[StoredRun, Answers, Replica] | Question | None:
    """Take up a run, if plan, policy and budget allow it, and leave all other runs.

    Returns:
        The run, the node that answers its queries, and its replica. Or the question for the owner, and then nothing is
        written. Or None if the node is in the run already.

    Raises:
        HedgerowError: a rule refuses the run; DataError for the rows, which are read only after the run is reserved.
    """
    replica = require_joinable(files, setup, run_id, task, current, offer)
    if replica is None:
        return None
    store, book, policy = files.store, files.book, setup.policy
    # A node is in one run at a time: leave all other runs that are reserved for it.
    left = {old: files.charge(old) for old in book.list_reserved() if old != run_id}
    epsilon, delta = task.promise
    question = Question(
        run_id=run_id.hex(),
        kind=_KINDS[type(task)],
        name=task.plan.name,
        digest=task.digest,
        plan_digest=task.plan.digest,
        epsilon=epsilon,
        delta=delta,
        data_set=policy.data_set,
        total=0.0,  # Replaced by what the book says, below.
        most=policy.max_epsilon,
        total_delta=policy.delta,
        noise=find_visibility(task, policy.shows_figures),
    )
    is_approved = not policy.asks or store.desk.find_answer(question.id) is True
    if is_approved:
        store.note_joining(run_id, task, NO_HASH)
    limit, events = (policy.max_epsilon, policy.delta), task.schedule.events
    total = book.reserve(run_id, policy.data_set, task.plan, events, limit, left, is_kept=is_approved)
    if not is_approved:
        question = replace(question, total=total)
        if store.desk.ask(question) is False:
            raise PolicyRefusal("policy-denied", name=question.name, run=question.run_id[:12])
        return store.desk.pending() or question
    for old in {*left, *store.run_ids(OPEN)}:
        if store.find_status(old) in (OPEN, JOINING):
            store.close_run(old, LEFT)
    store.forget_rows()
    try:
        node, data_digest = build_answers(task, setup)
    except HedgerowError:
        # The charge is zero, unless the node was in this run before and has lost its database.
        files.close(run_id, LEFT)
        raise
    return store.open_run(run_id, task, data_digest), node, replica


def resume(files: NodeFiles, setup: NodeSetup, stored: StoredRun) -> Answers | PolicyRefusal:
    """Return the node that answers the stored run's queries, or why its owner does not go on with it.

    If the owner does not go on with the run, the node leaves it at once if it has cost nothing, else when it joins
    another run. Until then an owner who took the wrong file can go back. Raises DataError.

    A node whose rows have changed goes on all the same. If it left the run, all would see it, and a coordinator, which
    can make a node start again by being silent for long, would learn whether one row was added. Each round's sum has
    its whole noise, so a row may be in some rounds and not in others. Only a method with an account for each record
    (S-GBDT) needs rows that stay.
    """
    run_id = stored.run_id
    try:
        require_allowed(stored.task, setup)
        files.book.require_data_set(run_id, setup.policy.data_set)
        node, data_digest = build_answers(stored.task, setup)
    except PolicyRefusal as why:
        if files.store.has_masked(run_id):
            became = "It is kept until this node joins another run, and then charged for what it has answered; --leave "
            became += "does so at once."
        else:
            files.close(run_id, LEFT)
            became = "It is left: this node has answered nothing in it, so it costs nothing."
        name = stored.task.plan.name
        return PolicyRefusal("run-set-aside", run=run_id.hex()[:12], name=name, why=why.what, remedy=became)
    if data_digest != stored.data_digest:
        if files.store.has_masked(run_id):
            if isinstance(stored.task, TrainingTask) and find_method(stored.task.plan).keeps_accounts:
                raise DataError("data-changed")
            setup.tell(mark_private(_OTHER_ROWS, "rows-changed"))
        files.store.renew_rows(run_id, data_digest)
    return node


# Leaving -------------------------------------------------------------------------------------------------------------


def leave(store: NodeStore, book: BudgetBook, site: str) -> bytes | None:
    """Leave the run that the store of a site's node holds, if any; return its number.

    The run is settled at its cost so far, and never goes on. A run in which the node has answered nothing costs
    nothing, and may be joined again.
    """
    files = NodeFiles.for_site(store, book, site)
    files.reconcile()
    stored = store.load()
    if stored is None:
        return None
    files.close(stored.run_id, LEFT)
    return stored.run_id


def close_reserved(store: NodeStore | None, book: BudgetBook, run_id: bytes) -> bool:
    """Close a reserved run for its owner: it never goes on, and is never joined again.

    Args:
        store: the store of the node for which it is reserved, opened by the caller, so that the node cannot run; None
            if its folder is gone.
        book: the book, which must serve that node (`BudgetBook.serve`).

    Returns:
        Whether the node's answers are known, so that only they are charged; else the whole reservation is charged.
    """
    charge = None
    if store is not None:
        store.load()
        charge = NodeFiles(store, book).charge(run_id)
    # Write the book first: a node that finds its run closed there stops it.
    book.settle(run_id, charge, CLOSED)
    if store is not None and store.find_status(run_id) in (OPEN, JOINING, LEFT):
        store.close_run(run_id, CLOSED)
    return charge is not None
