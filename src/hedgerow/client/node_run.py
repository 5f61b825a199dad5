"""What a node knows of the run that it is in, and how it answers one query of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from fractions import Fraction
from math import isqrt

import numpy as np

from hedgerow.client.arrivals import ArrivalFolder
from hedgerow.client.evaluation_node import EvaluationNode
from hedgerow.client.node import Node
from hedgerow.client.policy import Policy
from hedgerow.client.sampling import SamplingSource
from hedgerow.data.site_data import SiteData
from hedgerow.errors import (
    DataError,
    HedgerowError,
    PlanError,
    PolicyRefusal,
    RemoteProtocolError,
)
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import EvaluationTask, Task, TrainingTask, checks_of
from hedgerow.plan.fields import read_json
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import NoiseSource
from hedgerow.privacy.query_noise import QueryNoise, noise_of
from hedgerow.protocol.messages import EvaluationInvitation, Invitation
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.rounds.specs import (
    HEADROOM,
    VECTOR_ID,
    bound_of_rows,
    clipped,
    expected_round,
    least_entry_bound,
    mode_of,
    rows_of,
)
from hedgerow.secagg._primitives.identity import Identity
from hedgerow.secagg.enrolment import Enrolment
from hedgerow.secagg.guarantees import origin_members
from hedgerow.secagg.integers import LEAST_COLLUDERS, draw_shares
from hedgerow.secagg.messages import RoundSpec
from hedgerow.secagg.participant import NodeContext, Participant
from hedgerow.secagg.roster import EpochParameters, NoiseMode, Roster
from hedgerow.secagg.transitions import Code, Entropy, Step, refuse
from hedgerow.secagg.view import Cohort, EpochView
from hedgerow.training.plausibility import ReleaseChecks, SumFacts
from hedgerow.training.settings import Settings


def no_held_out_rows(_: Plan) -> SiteData:
    """Raises PolicyRefusal: the owner gave no rows to evaluate on."""
    raise PolicyRefusal(
        "The coordinator asks for an evaluation, and this node has no rows that are held out for one.",
        cause="The node was started with rows to train on only; those are never evaluated on.",
        remedy="Start it with --held-out TABLE, if the owner of the data wants to.",
        code="policy-no-held-out",
    )


def no_training_rows(_: Plan) -> SiteData:
    """Raises PolicyRefusal: the owner gave no rows to train on."""
    raise PolicyRefusal(
        "The coordinator asks for training, and this node has rows for evaluations only.",
        cause="The node was started with --held-out and without a table to train on.",
        remedy="Start it with a table to train on as well, if the owner of the data wants to.",
        code="policy-no-training",
    )


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


@dataclass(eq=False)
class NodeRun:
    """The run that a node is in."""

    run_id: bytes
    task: Task
    node: Node | EvaluationNode
    replica: Replica
    n_sites: int
    """Of the roster."""
    attempt: int
    answered: set[int]
    masked: set[tuple[int, Cohort]]
    """Every round in which a masked vector has left, and the epoch."""
    last_masked: int = -1
    """The last round in which a vector may have left in an earlier life of this process."""
    participant: Participant | None = None
    enrolment: Enrolment | None = None
    vector: tuple[int, IntVector] | None = None
    """The answer to a round's query, which changes the node's scores and so is computed once."""
    redrawn: set[int] = field(default_factory=set)
    """Rounds of the local model whose answer may have left with other noise, before a restart."""
    origin: tuple[bytes, int] | None = None
    """Digest of the epoch whose nonces seed the trees, and the seed; this node takes no other in this run."""
    _cohort: Cohort | None = None
    _checks: ReleaseChecks = field(init=False)

    def __post_init__(self) -> None:
        self._checks = checks_of(self.task)

    @property
    def plan(self) -> Plan:
        """The task's, with who adds the noise to this run."""
        return self.task.run_plan

    def require_fitting(self, parameters: EpochParameters) -> None:
        """Raises Refusal PARAMETERS_REFUSED for an epoch that is not of this run and its noise."""
        if parameters.run_id != self.run_id or parameters.noise is not mode_of(self.plan):
            raise refuse(Code.PARAMETERS_REFUSED, "They are for another run or another noise.", "coordinator")
        if parameters.noise is NoiseMode.DISTRIBUTED and parameters.wishes.n_colluders < LEAST_COLLUDERS:
            raise refuse(Code.PARAMETERS_REFUSED, "Another site's own share of noise is counted.", "coordinator")

    def draws_in(self, parameters: EpochParameters) -> bool:
        """Whether the nonces of a set-up draw anything: the trees' seed, where none is drawn yet, or a sparse graph."""
        return (self.plan.has_joint_structure and self.origin is None) or parameters.wishes.is_sparse

    def origin_in(self, view: EpochView) -> tuple[bytes, int] | None:
        """What an epoch says about the seed of the trees, where that is news; `take_origin` when it is on the disk.

        Raises:
            Refusal: COHORT_TOO_SMALL; so few sites are in it that they could have drawn until they liked the seed.
        """
        if not self.plan.has_joint_structure or self.origin is not None:
            return None
        if not view.can_seed_trees:
            there, n_sites = view.guarantees.n_nodes, len(view.roster.sites)
            said = f"{there} of {n_sites} sites drew the seed of the trees; {origin_members(n_sites)} are needed."
            raise refuse(Code.COHORT_TOO_SMALL, said, "coordinator")
        return view.digest, view.public_seed

    def take_origin(self, origin: tuple[bytes, int] | None) -> None:
        """Begin the program with the seed of the trees; nothing for None."""
        if origin is not None:
            self.origin = origin
            self.replica.begin(origin[1], origin[0])

    def require_origin(self, view: EpochView) -> None:
        """Raises RemoteProtocolError (code "structure-seed") for another epoch than the trees of this run are from."""
        if self.origin is not None and self.origin[0] != view.digest:
            raise _other_seed()

    def require_structure(self, told: int) -> None:
        """Raises RemoteProtocolError (code "structure-seed") unless the trees are made from the seed that the
        coordinator names: the plan's, or the one that the sites have drawn as far as this node saw.
        """
        if not self.replica.has_begun_with(told):
            raise _other_seed()

    def feed(self, release: IntVector) -> None:
        """Take a release in: the round's update, unless the round was answered here, then the program's next step.

        Raises:
            RemoteProtocolError: it is no release of this round, or none of sums over records.
        """
        query = self.replica.query
        if query is not None and release.shape == (query.release_length,) and release.dtype == np.int64:
            self._require_plausible(query, release)
        if query is not None and not self._holds_answer():
            self.node.finish(query)
        self.replica.feed(release)
        self.vector = None

    def _require_plausible(self, query: Query, release: IntVector) -> None:
        """Ask what the coordinator has to ask of every release, so that nobody has to believe that it did.

        Whose vectors were in a sum is not known here, nor how many shares of noise: more of it is allowed for, and
        totals of rounds are not compared.
        """
        is_distributed = mode_of(self.plan) is NoiseMode.DISTRIBUTED
        noise = noise_of(query, 1 if is_distributed else None, is_local=mode_of(self.plan) is NoiseMode.LOCAL)
        entry_bound = least_entry_bound(query, self.plan, noise.variance, self.n_sites, is_known=False)
        facts = SumFacts(HEADROOM * rows_of(self.plan), entry_bound, noise, self.n_sites)
        fault = self._checks.fault_in(query, release, facts)
        if fault:
            raise RemoteProtocolError(
                f"The release of round {query.purpose.round} cannot be a sum over records: {fault}.",
                cause="The coordinator has not checked it, or has changed it.",
                remedy="Look into the coordinator's journal before anyone goes on; keep this node's log as evidence.",
                code="release-implausible",
            )

    def take_releases(self, total: int, releases: tuple[IntVector, ...]) -> tuple[tuple[int, IntVector], ...]:
        """Feed the replica what it lacks of `total` releases; returns what was new, by round.

        Raises:
            RemoteProtocolError: code "round-out-of-step"; the coordinator counts otherwise.
        """
        first = total - len(releases)
        if not first <= self.replica.n_releases <= total:
            raise RemoteProtocolError(
                f"The coordinator stands at release {total} and sent {len(releases)}; this node holds "
                f"{self.replica.n_releases}.",
                cause="The coordinator was restored from a backup, or lost count of what this node holds.",
                remedy="Look into the coordinator's journal before anyone goes on.",
                code="round-out-of-step",
            )
        fresh = []
        for number, release in enumerate(releases, start=first):
            if number == self.replica.n_releases:
                self.feed(release)
                fresh.append((number, release))
        return tuple(fresh)

    def mask(
        self, setup: NodeSetup, context: NodeContext, participant: Participant, query: Query, signed_spec: bytes
    ) -> tuple[Step[Participant], QueryNoise]:
        """The step that answers a query under masks, if the signed spec says what this node's own replica says.

        Raises:
            Refusal, OwnMistake: as `Participant.mask`, and PURPOSE_ANSWERED where an earlier epoch's sum of the same
                round could be opened as well.
        """
        cohort, number = self.cohort_of(participant.view), self.replica.n_releases
        if any(earlier == number and not cohort.excludes(other) for earlier, other in self.masked):
            said = "Its vector left in an epoch whose other nodes could still open it."
            raise refuse(Code.PURPOSE_ANSWERED, said, "coordinator")
        is_local = mode_of(self.plan) is NoiseMode.LOCAL
        if is_local and not self._holds_answer() and self._may_have_left(number):
            self.redrawn.add(number)
        guarantees = participant.view.guarantees
        mode = mode_of(self.plan)
        noise = noise_of(query, guarantees.honest_group if mode is NoiseMode.DISTRIBUTED else None, is_local=is_local)
        expected = expected_round(query, self.plan, mode, noise.variance, guarantees.n_nodes, self.replica.context())
        shares = None
        if mode is NoiseMode.DISTRIBUTED:
            names = (expected.purpose, expected.model, expected.vectors, expected.noise)
            spec = RoundSpec(participant.view.digest, 0, *names)
            shares = draw_shares(spec, guarantees, _sampler(setup, query)) if noise.variance else _zeros(query)
        vector = self._answer(query)
        own = bound_of_rows(query, self.plan, noise.variance, setup.max_rows)
        vectors = {VECTOR_ID: clipped(vector, expected, own) if noise.variance else vector}
        step = participant.mask(context, signed_spec, expected, vectors, setup.entropy, shares)
        if number in self.redrawn and step.persist:
            # Not a repetition of what was sent. Masks are no part of the promise in the local model: another draw of
            # the records' noise would be another release of the same sums.
            raise refuse(Code.PURPOSE_ANSWERED, "Its answer may have left already, with other noise.", "coordinator")
        self.masked.add((number, cohort))
        return step, noise

    def cohort_of(self, view: EpochView) -> Cohort:
        """The cohort of the run's epoch; made once, for its digest covers all that a cohort is made of."""
        if self._cohort is None or self._cohort.epoch != view.digest:
            self._cohort = Cohort.of(view)
        return self._cohort

    def _may_have_left(self, number: int) -> bool:
        """Whether a round's vector left; a database that is older than its counter does not know of the last ones."""
        return number <= self.last_masked or any(earlier == number for earlier, _ in self.masked)

    def _holds_answer(self) -> bool:
        return self.vector is not None and self.vector[0] == self.replica.n_releases

    def _answer(self, query: Query) -> IntVector:
        """The site's own sums; computed once for a query, however often its round is repeated."""
        if self.vector is None or not self._holds_answer():
            self.vector = (self.replica.n_releases, self.node.answer(query))
        return self.vector[1]


def _other_seed() -> RemoteProtocolError:
    return RemoteProtocolError(
        "The coordinator names a seed for the trees that the sites, as far as this node saw, have not drawn.",
        cause="It runs another version, has lost its journal, or wants to pick the trees.",
        remedy="Look into the coordinator's journal before anyone goes on.",
        code="structure-seed",
    )


def _sampler(setup: NodeSetup, query: Query) -> Callable[[Fraction, int], IntVector]:
    label = f"{query.purpose}/share of {setup.site}"
    return lambda variance, length: setup.noise.sample(isqrt(int(variance)), length, label)


def _zeros(query: Query) -> dict[str, IntVector]:
    return {VECTOR_ID: np.zeros(query.length, dtype=np.int64)}


def digest_of(data: SiteData) -> bytes:
    """32 bytes that tell whether a site's rows are the same as before; they never leave the site."""
    told = hashlib.sha256()
    for part in (str(data.codes.shape).encode(), data.codes.tobytes(), data.labels.tobytes()):
        told.update(len(part).to_bytes(8, "big"))
        told.update(part)
    return told.digest()


def task_of(message: Invitation | EvaluationInvitation) -> Task:
    """What an invitation is for; raises RemoteProtocolError for a plan that is none, PrivacyError for a bad cost."""
    plan = read_plan(message.plan)
    if isinstance(message, Invitation):
        return TrainingTask(plan)
    return EvaluationTask(plan, message.model, message.epsilon, message.delta, message.first_round, message.noise)


def asked_by(message: Invitation | EvaluationInvitation) -> tuple[str, str, str, float]:
    """What an invitation asks for, in the words of the list of invitations; see `BudgetBook.note_invitation`."""
    kind = "training" if isinstance(message, Invitation) else "evaluation"
    epsilon = message.epsilon if isinstance(message, EvaluationInvitation) else None
    try:
        plan = read_plan(message.plan)
    except HedgerowError:
        return kind, hashlib.sha256(message.plan).hexdigest(), "(cannot be read)", math.inf
    return kind, plan.digest, plan.name, TrainingTask(plan).promise[0] if epsilon is None else epsilon


def check_task(task: Task, setup: NodeSetup) -> None:
    """Whether the owner allows it, whatever the rows are; raises PolicyRefusal, RemoteProtocolError or UsageError."""
    require_pinned(task, setup)
    if isinstance(task, TrainingTask):
        if setup.plan is None and rows_are_counted(task.plan, setup.max_rows):
            raise _pure_without_plan()
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
        raise _no_pinned_plan()
    # A model's plan says which seed the sites had drawn, where the owner's leaves it to them.
    is_model = isinstance(task, EvaluationTask)
    if setup.plan is not None and not task.plan.is_run_of(setup.plan, is_model=is_model):
        require_same_plan(task.plan, setup.plan)
    if setup.policy.plans:
        _require_listed(task.plan, setup.policy.plans, is_model=is_model)


def _require_listed(plan: Plan, digests: Collection[str], *, is_model: bool = False) -> None:
    names = {plan.digest, plan.with_joint_structure().digest} if is_model else {plan.digest}
    if names.isdisjoint(digests):
        raise PolicyRefusal(
            f"The plan {plan.name!r} ({plan.digest[:12]}) is none of those that the policy names.",
            cause="The coordinator proposes a plan that this site's owner has not agreed to, or it was changed since.",
            remedy="Read the plan; if the owner of the data agrees, add the digest that `hedgerow privacy PLAN` prints "
            "to `plans` in the policy.",
            code="policy-plan",
        )


def _no_pinned_plan() -> PolicyRefusal:
    return PolicyRefusal(
        "This node was not told in which plan it may take part.",
        cause="Neither a plan file nor the line `plans` of the policy names one, and a node does not take part in "
        "whatever a coordinator proposes: with plans of its own making it could find out single rows.",
        remedy='Give the plan that its owner has agreed to: --plan PLAN (over Flower: plan = "PLAN" in site.toml). Or '
        'write plans = ["DIGEST"] into the policy; `hedgerow privacy PLAN` prints the digest.',
        code="no-pinned-plan",
    )


def check_own_plan(setup: NodeSetup) -> None:
    """Whether there is a plan, and the owner's own rules allow it, before anyone is dialled; raises PolicyRefusal.

    What an evaluation of the plan's model may cost is in its invitation, and is checked then.
    """
    setup.policy.check_roster(setup.roster)
    if setup.plan is None:
        if not setup.policy.plans:
            raise _no_pinned_plan()
        if setup.policy.is_strict:
            raise _strict_without_plan()
        return
    if setup.policy.plans:
        _require_listed(setup.plan, setup.policy.plans)
    if setup.load_held_out is no_held_out_rows:
        check_task(TrainingTask(setup.plan), setup)
    else:
        # Where there are rows for evaluations only, it does not matter who added the noise to the training.
        is_for_both = setup.load is not no_training_rows
        setup.policy.check_plan(setup.plan, 0.0, None if is_for_both else setup.policy.noise_of_evaluations[0])


def _strict_without_plan() -> PolicyRefusal:
    return PolicyRefusal(
        'The policy says rows_that_do_not_fit = "refuse", and there is no plan file to read the rows by.',
        cause="The rows would be read when the coordinator proposes the plan, and a refusal would tell it of a row.",
        remedy="Give the plan itself (--plan PLAN): its rows are then read before anyone is dialled.",
        code="strict-without-plan",
    )


def rows_are_counted(plan: Plan, max_rows: int) -> bool:
    """Whether a node refuses to train on more rows than it declares, rather than to clip its sums.

    A refusal tells that there are more, so it has to come before a coordinator asks. `max_rows`: 0 for none declared.
    """
    return max_rows > 0 and plan.privacy.accountant == "pure"


def _pure_without_plan() -> PolicyRefusal:
    return PolicyRefusal(
        "The plan has the accountant pure, the roster says how many rows this site has at most, and there is no plan "
        "file to read the rows by.",
        cause="Its sums may not be clipped, so a node with more rows refuses. The rows would be read when the "
        "coordinator proposes the plan, and a refusal would tell it that there are more.",
        remedy="Give the plan itself (--plan PLAN): its rows are then counted before anyone is dialled.",
        code="pure-without-plan",
    )


def require_known_model(task: Task, known: Collection[bytes]) -> None:
    """Raises PolicyRefusal (code "policy-model") for the evaluation of a model that nobody here vouches for.

    Whoever chooses the trees chooses which records share a bin; a "model" could be made to single one record out.
    """
    if isinstance(task, EvaluationTask) and task.model_digest not in known:
        raise PolicyRefusal(
            f"The coordinator asks for the evaluation of a model that this node does not know "
            f"({task.model_digest.hex()[:12]}).",
            cause="This node did not take part in making it, its state folder is another, or it is not the model.",
            remedy="Look at the model; if the owner of the data agrees, start the node with --model MODEL.",
            code="policy-model",
        )


def require_declared_rows(setup: NodeSetup, data: SiteData) -> SiteData:
    """The rows, if they are no more than the roster says; raises DataError (code "data-too-many-rows").

    The owner hears it before anyone is dialled. What an invited node would do with more rows: its sums are clipped to
    what the declared ones can add up to, which tells nobody anything; and where sums may not be clipped it refuses
    (`rows_are_counted`).
    """
    if setup.max_rows and data.n_records > setup.max_rows:
        raise DataError(
            f"This site has {data.n_records:,} rows; the roster says that it has at most {setup.max_rows:,}.",
            cause="The table has grown since the roster was built, or another table was given.",
            remedy="Give fewer rows, or agree on a roster with a larger max_rows (`hedgerow roster build --max-rows`).",
            code="data-too-many-rows",
        )
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


def read_plan(content: bytes) -> Plan:
    """The plan in an invitation; raises RemoteProtocolError."""
    try:
        return Plan.from_dict(read_json(content))
    except (ValueError, AttributeError) as fault:
        why = f" {fault.what}" if isinstance(fault, PlanError) else ""
        raise RemoteProtocolError(
            "The coordinator's plan cannot be read.",
            cause=f"It is of another version, or no plan.{why}",
            remedy="Let all check the plan, with one version of Hedgerow on all sides.",
            code="plan-unreadable",
        ) from fault


def require_moderate(plan: Plan, settings: Settings, max_length: int) -> None:
    """Raises PolicyRefusal (code "plan-too-large") when one round would ask for more entries than a node holds.

    Asked before the program begins: the trees of one batch alone could fill the machine's memory.
    """
    length = settings.largest_length(plan)
    if length > max_length:
        raise PolicyRefusal(
            f"A round of the plan asks for {length:,} numbers; a node sends {max_length:,} at most.",
            cause="Its batches are too large for their depth and number of classes.",
            remedy="Agree on a plan with a smaller model.batch_size or model.max_depth.",
            code="plan-too-large",
        )


def require_same_plan(offered: Plan | Task, own: Plan | Task) -> None:
    """Raises PolicyRefusal (code "plan-changed") unless the two are one plan."""
    if offered.digest != own.digest:
        raise PolicyRefusal(
            f"The coordinator's plan ({offered.digest[:12]}) is not the one that this node has ({own.digest[:12]}).",
            cause="The plan was changed on one side after all had agreed on it.",
            remedy="Compare the plan files; agree on one.",
            code="plan-changed",
        )
