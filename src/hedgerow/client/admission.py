"""What a node's owner gives it, and which runs the node takes part in.

The first part is `NodeSetup`: keys, policy, and where the rows come from. The second is what is asked of a task before
the node joins it, in this order: `task_of` reads the invitation, `check_task` asks the owner's plan and policy,
`require_known_model` and `require_draws_left` look at what the node has done before. Only then, with the cost reserved,
does `answering_node` read the rows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from hedgerow.client.arrivals import ArrivalFolder
from hedgerow.client.budget import MOST_UNUSED_DRAWS, BudgetBook
from hedgerow.client.node import EvaluationNode, Node, SamplingSource
from hedgerow.client.policy import Policy
from hedgerow.client.state import NodeStore
from hedgerow.crypto.identity import Identity
from hedgerow.data.site_data import SiteData
from hedgerow.errors import DataError, HedgerowError, PlanError, PolicyRefusal, RemoteProtocolError
from hedgerow.methods.tasks import EvaluationTask, Task, TrainingTask
from hedgerow.plan.fields import MOST_VALUES, read_json
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import NoiseSource
from hedgerow.protocol.messages import EvaluationInvitation, Invitation
from hedgerow.secagg.roster import Roster
from hedgerow.secagg.transitions import Entropy
from hedgerow.training.settings import Settings


def no_held_out_rows(_: Plan) -> SiteData:
    """Raises PolicyRefusal: the owner gave no rows to evaluate on."""
    raise PolicyRefusal("policy-no-held-out")


def no_training_rows(_: Plan) -> SiteData:
    """Raises PolicyRefusal: the owner gave no rows to train on."""
    raise PolicyRefusal("policy-no-training")


@dataclass(frozen=True)
class NodeSetup:
    """What a node's owner gives it.

    Attributes:
        site: its name in the roster.
        identity: its signing key.
        roster: the roster that it pinned.
        policy: the owner's rules.
        entropy: the source of keys and masks: ``os.urandom`` but in tests.
        noise: the source of its shares of noise.
        load: reads the site's rows for a plan; DataError when they do not fit.
        plan: the only plan that it takes part in; None for those whose digests the policy names.
        n_threads: threads to sum with.
        load_held_out: reads the rows on which models are evaluated; by default there are none.
        models: digests of models that the owner lets be evaluated, besides those that this node helped to make.
        sampling: where samples come from, for plans that draw any; None for the operating system.
        arrivals: where rows come from while a run goes on; None for nowhere.
    """

    site: str
    identity: Identity
    roster: Roster
    policy: Policy
    entropy: Entropy
    noise: NoiseSource
    load: Callable[[Plan], SiteData]
    plan: Plan | None = None
    n_threads: int = 1
    load_held_out: Callable[[Plan], SiteData] = no_held_out_rows
    models: frozenset[bytes] = frozenset()
    sampling: SamplingSource | None = None
    arrivals: ArrivalFolder | None = None

    @property
    def max_rows(self) -> int:
        """The most rows that the roster says this site has; 0 where it does not say."""
        return self.roster.max_rows_of(self.site)


# Reading an invitation -----------------------------------------------------------------------------------------


def task_of(message: Invitation | EvaluationInvitation) -> Task:
    """What an invitation is for; raises RemoteProtocolError for what is not a plan, PrivacyError for a bad cost."""
    plan = read_plan(message.plan)
    if isinstance(message, Invitation):
        return TrainingTask(plan)
    return EvaluationTask(plan, message.model, message.epsilon, message.delta, message.first_round, message.noise)


def read_plan(content: bytes) -> Plan:
    """The plan in an invitation; raises RemoteProtocolError."""
    try:
        return Plan.from_dict(read_json(content, MOST_VALUES))
    except (ValueError, AttributeError) as fault:
        why = f" {fault.what}" if isinstance(fault, PlanError) else ""
        raise RemoteProtocolError("plan-unreadable", why=why) from fault


def asked_by(message: Invitation | EvaluationInvitation) -> tuple[str, str, str, float]:
    """What an invitation asks for, in the words of the list of invitations; see `BudgetBook.note_invitation`."""
    kind = "training" if isinstance(message, Invitation) else "evaluation"
    epsilon = message.epsilon if isinstance(message, EvaluationInvitation) else None
    try:
        plan = read_plan(message.plan)
    except HedgerowError:
        return kind, hashlib.sha256(message.plan).hexdigest(), "(cannot be read)", math.inf
    return kind, plan.digest, plan.name, TrainingTask(plan).promise[0] if epsilon is None else epsilon


# What the owner allows -----------------------------------------------------------------------------------------


def check_own_plan(setup: NodeSetup) -> None:
    """Whether there is a plan, and the owner's own rules allow it, before anyone is dialled; raises PolicyRefusal.

    What an evaluation of the plan's model may cost is in its invitation, and is checked then.
    """
    setup.policy.check_roster(setup.roster)
    if setup.plan is None:
        if not setup.policy.plans:
            raise PolicyRefusal("no-pinned-plan")
        if setup.policy.is_strict:
            raise PolicyRefusal("strict-without-plan")
        return
    if setup.policy.plans:
        _require_listed(setup.plan, setup.policy.plans)
    if setup.load_held_out is no_held_out_rows:
        check_task(TrainingTask(setup.plan), setup)
    else:
        # Where there are rows for evaluations only, it does not matter who added the noise to the training.
        is_for_both = setup.load is not no_training_rows
        setup.policy.check_plan(setup.plan, 0.0, None if is_for_both else setup.policy.noise_of_evaluations[0])


def check_task(task: Task, setup: NodeSetup) -> None:
    """Whether the owner allows it, whatever the rows are; raises PolicyRefusal, RemoteProtocolError or UsageError."""
    require_pinned(task, setup)
    if isinstance(task, TrainingTask):
        if setup.plan is None and rows_are_counted(task.plan, setup.max_rows):
            raise PolicyRefusal("pure-without-plan")
        if setup.arrivals is not None:
            setup.arrivals.check(task.plan)
    setup.policy.check_roster(setup.roster)
    evaluation_noise = task.noise if isinstance(task, EvaluationTask) else None
    setup.policy.check_plan(task.plan, task.promise[0], evaluation_noise)
    if isinstance(task, TrainingTask):
        require_moderate(task.plan, task.settings, setup.policy.secure_sums.max_length)


def require_pinned(task: Task, setup: NodeSetup) -> None:
    """Raises PolicyRefusal unless the owner has named the task's plan: "no-pinned-plan" where none is named at all.

    A coordinator that could make plans up would choose bounds, classes and units by which a model, or no more than
    whether a node takes part, tells of single rows.
    """
    if setup.plan is None and not setup.policy.plans:
        raise PolicyRefusal("no-pinned-plan")
    # A model's plan says which seed the sites had drawn, where the owner's leaves it to them.
    is_model = isinstance(task, EvaluationTask)
    if setup.plan is not None and not task.plan.is_run_of(setup.plan, is_model=is_model):
        require_same_plan(task.plan, setup.plan)
    if setup.policy.plans:
        _require_listed(task.plan, setup.policy.plans, is_model=is_model)


def _require_listed(plan: Plan, digests: Collection[str], *, is_model: bool = False) -> None:
    names = {plan.digest, plan.with_joint_structure().digest} if is_model else {plan.digest}
    if names.isdisjoint(digests):
        raise PolicyRefusal("policy-plan", name=plan.name, digest=plan.digest[:12])


def rows_are_counted(plan: Plan, max_rows: int) -> bool:
    """Whether a node refuses to train on more rows than it declares, rather than to clip its sums.

    A refusal tells that there are more, so it has to come before a coordinator asks. `max_rows`: 0 for none declared.
    """
    return max_rows > 0 and plan.privacy.accountant == "pure"


def require_moderate(plan: Plan, settings: Settings, max_length: int) -> None:
    """Raises PolicyRefusal (code "plan-too-large") when one round would ask for more entries than a node holds.

    Asked before the program begins: the trees of one batch alone could fill the machine's memory.
    """
    length = settings.largest_length(plan)
    if length > max_length:
        raise PolicyRefusal("plan-too-large", length=length, max_length=max_length)


def require_same_plan(offered: Plan | Task, own: Plan | Task) -> None:
    """Raises PolicyRefusal (code "plan-changed") unless the two are one plan."""
    if offered.digest != own.digest:
        raise PolicyRefusal("plan-changed", offered=offered.digest[:12], own=own.digest[:12])


def require_known_model(task: Task, known: Collection[bytes]) -> None:
    """Raises PolicyRefusal (code "policy-model") for the evaluation of a model that no one here vouches for.

    The one who chooses the trees chooses which records share a bin; a "model" could be made to single one record out.
    """
    if isinstance(task, EvaluationTask) and task.model_digest not in known:
        raise PolicyRefusal("policy-model", digest=task.model_digest.hex()[:12])


def require_draws_left(store: NodeStore, book: BudgetBook, plan: Plan) -> None:
    """Raises PolicyRefusal (code "seed-drawn-too-often") where this node's nonces have drawn often and for nothing.

    A run that is given up before a vector is masked costs nothing, so a coordinator with colluders could begin runs
    until it likes the seed. Runs in which this node has masked are paid for, and not counted. Asked only where nonces
    draw anything.
    """
    # The book knows of runs whose state was lost with the folder that it is kept apart from.
    runs = book.draws(plan.digest)
    paid = {run_id for run_id in set(runs) if store.has_masked(run_id) or book.is_charged(run_id)}
    n_unused = sum(run_id not in paid for run_id in runs)
    if n_unused >= MOST_UNUSED_DRAWS:
        raise PolicyRefusal("seed-drawn-too-often", n_unused=n_unused, name=plan.name, digest=plan.digest[:12])


# The rows --------------------------------------------------------------------------------------------------------


def require_declared_rows(setup: NodeSetup, data: SiteData) -> SiteData:
    """The rows, if they are no more than the roster says; raises DataError (code "data-too-many-rows").

    The owner hears it before anyone is dialled. What an invited node would do with more rows: its sums are clipped to
    what the declared ones can add up to, which tells no one anything; and where sums may not be clipped it refuses
    (`rows_are_counted`).
    """
    if setup.max_rows and data.n_records > setup.max_rows:
        raise DataError("data-too-many-rows", n_rows=data.n_records, max_rows=setup.max_rows)
    return data


def answering_node(task: Task, setup: NodeSetup) -> tuple[Node | EvaluationNode, bytes]:
    """What answers the task's queries over the rows for it, and the digest of these rows; raises DataError."""
    if isinstance(task, EvaluationTask):
        held_out = setup.load_held_out(task.plan)
        return EvaluationNode(setup.site, held_out, task.run_plan, setup.n_threads, setup.noise), digest_of(held_out)
    data = setup.load(task.plan)
    if rows_are_counted(task.plan, setup.max_rows):
        require_declared_rows(setup, data)
    node = Node(setup.site, data, task.plan, task.settings, setup.n_threads, setup.sampling, setup.noise)
    return node, digest_of(data)


def digest_of(data: SiteData) -> bytes:
    """32 bytes that tell whether a site's rows are the same as before; they never leave the site."""
    hasher = hashlib.sha256()
    for part in (str(data.codes.shape).encode(), data.codes.tobytes(), data.labels.tobytes()):
        hasher.update(len(part).to_bytes(8, "big"))
        hasher.update(part)
    return hasher.digest()


def read_early(load: Callable[[Plan], SiteData], plan: Plan | None) -> Callable[[Plan], SiteData]:
    """`load`, with the rows of `plan` read already; raises DataError when they do not fit.

    A table that cannot be used is for the owner alone to hear of, and at once: the node does not dial then.
    """
    if plan is None:
        return load
    rows = load(plan)
    return lambda offered: rows if offered.is_run_of(plan) else load(offered)
