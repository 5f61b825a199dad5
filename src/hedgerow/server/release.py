# SPDX-License-Identifier: Apache-2.0
"""Turn sums into releases: add the noise, charge the ledger, and refuse false sums.

This is the only place where a sum becomes a release. The noise is drawn once per purpose, the ledger refuses a second
release for the same purpose, and a program sees only the release. `run_program` and `run_evaluation` carry out a
program if all sums are taken in this process; `hedgerow.server.coordinator` does it over a network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Protocol

import numpy as np

from hedgerow.errors import PrivacyError, RemoteProtocolError
from hedgerow.evaluation.estimates import Evaluation
from hedgerow.evaluation.program import EvaluationProgram
from hedgerow.methods.registry import resolve
from hedgerow.methods.tasks import EvaluationTask, TrainingTask
from hedgerow.methods.votes import ask_vote
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import compute_account
from hedgerow.privacy.calibration import QueryNoise, noise_of
from hedgerow.privacy.events import Event, UnnoisedEvent
from hedgerow.privacy.ledger import EVALUATION_KINDS, Ledger, Release, read_prepared_ledger
from hedgerow.privacy.noise import NoiseSource
from hedgerow.privacy.report import PrivacyContext, PrivacyReport, build_report
from hedgerow.privacy.rounding import format_up
from hedgerow.protocol.groups import combine, pack
from hedgerow.protocol.queries import Choice, IntVector, NoiseCohort, PureQuery, Query
from hedgerow.protocol.refusals import Salvage
from hedgerow.protocol.votes import Tally, list_vote_rounds
from hedgerow.rounds import least_entry_bound, most_rows, release_bound
from hedgerow.secagg.guarantees import least_groups
from hedgerow.secagg.masks import require_within, wrap
from hedgerow.secagg.transitions import Code, SumAbandoned, refuse
from hedgerow.survey.program import Found
from hedgerow.training.steps import Program, Result, play
from hedgerow.trees.ensemble import Ensemble
from hedgerow.trees.plausibility import ReleaseChecks, SumFacts

Progress = Callable[[Query, Ledger], None]

# Sums ------------------------------------------------------------------------------------------------------------


class Answering(Protocol):
    """A node as `PlainAggregation` needs it."""

    site: str

    def answer(self, query: Query) -> IntVector:
        """Return the site's vector for a query."""


class Aggregation(Protocol):
    """One secure sum: the integer sum of all sites' vectors, and nothing else about them."""

    @property
    def n_nodes(self) -> int:
        """Number of sites that are asked."""

    @property
    def cohort(self) -> NoiseCohort | None:
        """The sites whose noise is in the last sum (before any sum: in the next one); None for exact sums."""

    @property
    def sites(self) -> tuple[str, ...] | None:
        """The sites whose vectors are in the last sum; None if unknown."""

    def sum_answers(self, query: Query) -> IntVector:
        """Ask every site and return the sum: int64 [query.length]."""


class PlainAggregation:
    """Sums in the clear, in this process, for simulations that hold every site's rows anyway."""

    cohort = None

    def __init__(self, nodes: Sequence[Answering]) -> None:
        self._nodes = list(nodes)
        self.n_nodes = len(self._nodes)
        self.sites: tuple[str, ...] | None = tuple(node.site for node in self._nodes)

    def sum_answers(self, query: Query) -> IntVector:
        """Return the sum of the nodes' answers; raise RemoteProtocolError for a wrong shape or type."""
        total = np.zeros(query.length, dtype=np.int64)
        for node in self._nodes:
            total += ask_node(node, query)
        return total


class GroupedAggregation:
    """Sums over disjoint groups of sites."""

    def __init__(self, groups: Sequence[Aggregation]) -> None:
        self.groups = tuple(groups)
        self.n_nodes = sum(group.n_nodes for group in groups)

    @property
    def cohort(self) -> NoiseCohort | None:
        """The cohort of the group with the weakest promise; see `Aggregation.cohort`."""
        cohorts = [group.cohort for group in self.groups]
        return min((each for each in cohorts if each is not None), key=lambda each: each.n_shares, default=None)

    @property
    def sites(self) -> tuple[str, ...] | None:
        """Names of the sites of all groups."""
        return tuple(site for group in self.groups for site in group.sites or ())

    def sum_answers(self, query: Query) -> IntVector:
        """Raise ValueError: there is no single sum over all groups."""
        raise ValueError("groups are summed one by one")


def ask_node(node: Answering, query: Query) -> IntVector:
    """Return a node's answer; raise RemoteProtocolError unless it is int64 [query.length]."""
    vector = node.answer(query)
    # A shorter vector would be stretched by numpy instead of being refused.
    if vector.shape != (query.length,) or vector.dtype != np.int64:
        raise RemoteProtocolError(
            "answer-shape",
            site=node.site,
            purpose=query.purpose,
            dtype=vector.dtype,
            shape=vector.shape,
            length=query.length,
        )
    return vector


# Releases --------------------------------------------------------------------------------------------------------


class RunCharges(Protocol):
    """The account to which a run's releases are charged; see `hedgerow.local.accounts.RunAccount`."""

    def charge(self, event: Event) -> None:
        """Charge a release before its noise is drawn; an error prevents the release."""


@dataclass(frozen=True)
class CountedElsewhere:
    """The account of a run that others charge, or that needs no charge.

    Attributes:
        where: the place of the charges: "the books of its nodes", or "nowhere: made-up rows".
    """

    where: str

    def charge(self, event: Event) -> None:
        """Do nothing: the cost is charged elsewhere."""


BY_NODES = CountedElsewhere("the books of its nodes")
"""The account of a coordinator: each node reserves the whole run in its owner's book before it answers."""
UNCOUNTED = CountedElsewhere("nowhere: rows that nobody has to be protected for")
"""The account of made-up and public rows, in tests and experiments."""


class Releaser:
    """Turns sums into releases and keeps the ledger.

    Args:
        account: the account that each release is charged to before its noise is drawn.
        is_local: whether every record's noise is in the sums already.
        ledger: the releases so far; their purposes cannot be released again.
        width: bits of the words in which the sums were taken, and in which releases wrap.
    """

    def __init__(
        self,
        noise: NoiseSource,
        account: RunCharges,
        *,
        is_local: bool = False,
        ledger: Ledger | None = None,
        width: int = 64,
    ) -> None:
        self._noise, self._account, self._width = noise, account, width
        self._is_local = is_local
        self.ledger = Ledger() if ledger is None else ledger

    def release(self, query: Query, total: IntVector, cohort: NoiseCohort | None = None) -> IntVector:
        """Charge a release, add its noise and return it: int64 [query.release_length].

        It is a noisy sum or the chosen candidates, and one event in the ledger.

        Args:
            cohort: None when the noise is added here; else the sites whose noise is in the sum already.

        Raises:
            PrivacyError: when this purpose was released before.
        """
        return self.release_groups(query, {0: total}, 0, cohort)[0]

    def release_groups(
        self, query: Query, totals: Mapping[int, IntVector], n_groups: int, cohort: NoiseCohort | None = None
    ) -> dict[int, IntVector]:
        """Charge one release and return the noisy sums of disjoint groups, each with its whole noise.

        A record is in one group, so only one group's sum depends on it (parallel composition). The ledger has one
        event. With `n_groups` = 0 the only sum is that over all sites, as group 0.

        Args and raises: as `release`.
        """
        noise, purpose = self._enter(query, cohort), str(query.purpose)
        released = {
            group: self._add_noise(query, total, noise, f"{purpose}/group {group}" if n_groups else purpose)
            for group, total in totals.items()
        }
        *before, entry = self.ledger.releases
        # Identify an evaluation by the figures that all parties see. Exclude figures by site: they differ between a
        # network and one process if some sites show none, and the evaluation's first releases identify it anyway.
        if entry.kind in EVALUATION_KINDS and not entry.is_by_site:
            hasher = sha256(b"".join(figures.astype("<i8").tobytes() for figures in released.values()))
            self.ledger = Ledger((*before, replace(entry, figures=hasher.hexdigest())))
        return released

    def _enter(self, query: Query, cohort: NoiseCohort | None) -> QueryNoise:
        """Charge a release, and return its noise."""
        purpose = str(query.purpose)
        noise = noise_of(query, None if cohort is None else cohort.n_shares, is_local=self._is_local)
        pure = query.pure if isinstance(query, PureQuery) else None
        entry = Release(
            purpose=purpose,
            round=query.purpose.round,
            kind=query.purpose.kind,
            event=noise.event,
            length=query.release_length,
            sensitivity=math.sqrt(query.sensitivity_squared) if pure is None else float(pure.sensitivity),
            sigma=noise.sigma if pure is None else float(noise.central_sigma),
            cohort=cohort if noise.share_sigma else None,
            seeded=self._noise.seeded,
            approximate=self._noise.approximate,
        )
        # The ledger goes first, then the account: if either refuses, no noise is drawn and nothing is released.
        longer = self.ledger.append(entry)
        self._account.charge(entry.event)
        self.ledger = longer
        return noise

    def enter_votes(self, query: Query) -> Release:
        """Charge the votes of a round, whose noise the sites add; raises as `release`."""
        self._enter(query, None)
        return self.ledger.releases[-1]

    def _add_noise(self, query: Query, total: IntVector, noise: QueryNoise, purpose: str) -> IntVector:
        if isinstance(query, Choice):
            return self._choose(query, total, purpose)
        if noise.central_sigma == 0:
            return total
        draw = self._noise.laplace if isinstance(query, PureQuery) else self._noise.sample
        return wrap(total + draw(noise.central_sigma, query.length, purpose), self._width)

    def _choose(self, query: Choice, total: IntVector, purpose: str) -> IntVector:
        """Choose one candidate per choice, by the exponential mechanism over scores from the exact sums."""
        places, scores = zip(*query.candidates(total), strict=True)
        if query.pure.scale:
            chosen = self._noise.select(scores, query.pure.scale, purpose)
        else:
            chosen = np.array([int(values.argmax()) if len(values) else -1 for values in scores], dtype=np.int64)
        picked = [held[index] if index >= 0 else -1 for held, index in zip(places, chosen.tolist(), strict=True)]
        return np.array(picked, dtype=np.int64)


@dataclass(frozen=True)
class SumOrigin:
    """The origin of a sum: the sites that were asked, and those whose vectors are in it.

    Attributes:
        cohort: as in `Releaser.release`.
        n_nodes: number of sites that were asked.
        sites: sites whose vectors are in the sum; None if unknown.
        declared: the most rows of each of them, 0 if the roster does not say; empty if unknown.
    """

    cohort: NoiseCohort | None
    n_nodes: int
    sites: tuple[str, ...] | None
    declared: tuple[int, ...] = ()


def weigh_groups(summed: Mapping[int, SumOrigin]) -> dict[int, int]:
    """Return the groups' weights: declared rows, or numbers of sites if any site declares no rows."""
    if all(one.declared and all(one.declared) for one in summed.values()):
        return {group: sum(one.declared) for group, one in summed.items()}
    return {group: len(one.sites or ()) or one.n_nodes for group, one in summed.items()}


class RunChecks:
    """The checks of a run's releases.

    Each group's sums are compared with earlier ones of that group; a sum over all sites is group 0.

    Args:
        checks: makes the checks of one group; None where nobody else has added anything, so that range is all.
    """

    def __init__(self, checks: Callable[[], ReleaseChecks] | None) -> None:
        self._make = checks
        self._by_group: dict[int, ReleaseChecks | None] = {}

    def check(
        self, query: Query, plan: Plan, sums: Mapping[int, IntVector], summed: Mapping[int, SumOrigin]
    ) -> tuple[IntVector, dict[int, SumAbandoned]]:
        """Return the release made of these noisy sums, and the faults of groups that sit it out.

        A group sits out if no records can add up to its sum.

        Raises:
            SumAbandoned: as `require_plausible`, for a sum over all sites, or if too few groups are left.
        """
        faults: dict[int, SumAbandoned] = {}
        # Forget a group that is not in this round: its totals would miss this round's change.
        self._by_group = {group: checks for group, checks in self._by_group.items() if group in sums}
        for group, released in sums.items():
            checks = self._by_group.setdefault(group, self._make and self._make())
            try:
                require_plausible(checks, query, plan, released, summed[group])
            except SumAbandoned as fault:
                faults[group] = fault
        good = {group: released for group, released in sums.items() if group not in faults}
        n_groups = plan.federation.groups
        if len(good) < least_groups(n_groups):
            ended = next(iter(faults.values()), refuse(Code.TOO_FEW_UPLOADS, f"{len(good)} groups of {n_groups}."))
            if faults and n_groups:
                # Name all of them alike: the first group that was checked is no more to blame than the others.
                named = "; ".join(", ".join(summed[group].sites or ()) for group in sorted(faults))
                ended.what += f" So it is in {len(faults)} of {len(sums)} groups, whose sites are: {named}."
            raise ended
        return pack(good, weigh_groups(summed), query.length, n_groups, faults), faults


def require_plausible(
    checks: ReleaseChecks | None, query: Query, plan: Plan, released: IntVector, summed: SumOrigin
) -> None:
    """Refuse a release that cannot be a noisy sum over as many records as the plan declares.

    The check reads only the release, which is in the ledger by then, so the refusal is post-processing and costs
    nothing more. A choice of splits is always one that the plan allows.

    Raises:
        SumAbandoned: SUM_OUT_OF_RANGE for a sum that wrapped or is too large; RELEASE_IMPLAUSIBLE. It names all sites
            of the sum, because the release does not show whose vector was wrong.
    """
    noise = noise_of(
        query, None if summed.cohort is None else summed.cohort.n_shares, is_local=plan.privacy.noise == "local"
    )
    if not query.is_choice:
        require_within(released, release_bound(query, plan, noise.variance, summed.n_nodes))
    if checks is None:
        return
    entry_bound = least_entry_bound(query, plan, noise.variance, summed.n_nodes)
    facts = SumFacts(most_rows(plan, summed.declared), entry_bound, noise, summed.n_nodes, summed.sites)
    fault = checks.fault_in(query, released, facts)
    if fault:
        sites = "" if summed.sites is None else f"; in the sum: {', '.join(summed.sites)}"
        raise refuse(Code.RELEASE_IMPLAUSIBLE, f"Round {query.purpose.round}: {fault}{sites}.")


# Programs over sums of this process --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Outcome:
    """The products of a run.

    Attributes:
        plan: the plan as it was run.
        ensemble: the model.
        ledger, report: the ledger and report of its releases.
        evaluation: the evaluation, if the run evaluated the model.
        cost: the report on that evaluation alone; `ledger` and `report` include it and the model's training.
        salvaged: the reason and the number of rounds, if the training could not go on.
        findings: the findings, if the run was a survey; the ensemble then has no trees, and `plan` only tells how the
            sums were made.
        tallies: of the votes on the model so far, in order.
    """

    plan: Plan
    ensemble: Ensemble
    ledger: Ledger
    report: PrivacyReport
    evaluation: Evaluation | None = None
    cost: PrivacyReport | None = None
    salvaged: Salvage | None = None
    findings: Found | None = None
    tallies: tuple[Tally, ...] = ()


Ballot = Callable[[Query, Query], Sequence[int]]
"""Has all sites vote: of a round's query, which they have answered, and of their vote's."""


def run_program(
    plan: Plan,
    program: Program,
    aggregation: Aggregation,
    noise: NoiseSource,
    account: RunCharges,
    progress: Progress | None = None,
    ballot: Ballot | None = None,
    *,
    is_own: bool = False,
) -> Outcome:
    """Run a program to its end.

    Args:
        program: a fresh generator of queries.
        account: the account that its releases are charged to.
        ballot: casts the votes of a plan that has any; None for no votes.
        is_own: all rows are of the caller, whose own sums are tested for their range alone.

    Raises:
        PrivacyError: when the releases cost more than the plan allows; then there is no model. Also when the plan and
            the aggregation disagree about who adds the noise.
        AggregationError: see `require_plausible`; there is no model either.
    """
    _check_noise_mode(plan, aggregation)
    releaser = Releaser(noise, account, is_local=plan.privacy.noise == "local", ledger=read_prepared_ledger(plan))
    votes, tallies = TrainingTask(plan).schedule if ballot is not None else None, list[Tally]()

    def vote(query: Query) -> None:
        if votes is None or votes.votes is None or ballot is None:
            return
        if query.purpose.round in list_vote_rounds(votes.n_rounds):
            asked = ask_vote(votes.votes, query)
            releaser.enter_votes(asked)
            tallies.append(Tally.count(ballot(query, asked)))

    ensemble = _carry_out(plan, program, aggregation, releaser, progress, vote, is_own=is_own)
    report = check_report(plan, releaser.ledger, noise)
    return Outcome(plan, ensemble, releaser.ledger, report, tallies=tuple(tallies))


def run_evaluation(
    plan: Plan,
    program: EvaluationProgram,
    aggregation: Aggregation,
    noise: NoiseSource,
    account: RunCharges,
    ledger: Ledger,
    context: PrivacyContext,
) -> tuple[Evaluation, PrivacyReport, Ledger]:
    """Run an evaluation to its end.

    Return its estimates, the report on it alone, and the model's ledger with its releases added.

    Args:
        program: a fresh program whose rounds start where the ledger ends.
        account: the account that its releases are charged to.
        ledger: the releases so far; the purposes in it cannot be released again.
        context: epsilon and delta of this evaluation, and the rest of the report.

    Raises:
        PrivacyError: when the releases cost more than `context.epsilon_requested`, or when the plan and the
            aggregation disagree about who adds the noise.
        AggregationError: see `require_plausible`; the evaluation's cost counts as spent.
    """
    _check_noise_mode(plan, aggregation)
    releaser = Releaser(noise, account, is_local=plan.privacy.noise == "local", ledger=ledger)
    evaluation = _carry_out(plan, program, aggregation, releaser)
    cost = check_cost(Ledger(releaser.ledger.releases[len(ledger) :]), context)
    return evaluation, cost, releaser.ledger


def _carry_out(
    plan: Plan,
    program: Generator[Query, IntVector, Result],
    aggregation: Aggregation,
    releaser: Releaser,
    progress: Progress | None = None,
    vote: Callable[[Query], None] = lambda query: None,
    *,
    is_own: bool = False,
) -> Result:
    """Answer each of the program's queries with a release, and return its result; `vote` is called in between."""
    parts = dict(enumerate(aggregation.groups if isinstance(aggregation, GroupedAggregation) else [aggregation]))
    n_groups = plan.federation.groups
    checks = RunChecks(None if is_own else lambda: ReleaseChecks(lambda: resolve(plan).loss(plan)))

    def release(query: Query) -> IntVector:
        totals = {group: part.sum_answers(query) for group, part in parts.items()}
        noisy = releaser.release_groups(query, totals, n_groups, aggregation.cohort)
        summed = {group: SumOrigin(part.cohort, part.n_nodes, part.sites) for group, part in parts.items()}
        released, _ = checks.check(query, plan, noisy, summed)
        vote(query)
        if progress is not None:
            progress(query, releaser.ledger)
        return combine(released, n_groups)

    return play(program, release)


def _check_noise_mode(plan: Plan, aggregation: Aggregation) -> None:
    sites_add_it = aggregation.cohort is not None
    if (plan.privacy.noise == "distributed") != sites_add_it:
        subject = f"A sum {'with' if sites_add_it else 'without'} shares of the sites"
        others = '"distributed"' if sites_add_it else '"server"'
        raise PrivacyError("noise-mode-unsupported", subject=subject, noise=plan.privacy.noise, others=others)


# What the releases cost --------------------------------------------------------------------------------------------


def check_report(plan: Plan, ledger: Ledger, noise: NoiseSource) -> PrivacyReport:
    """Return the report on a finished run.

    Raises PrivacyError "budget-exceeded" if the run cost more than promised. If a plan's candidates are read off the
    data, it promises nothing; its epsilon then bounds the noised releases.
    """
    privacy = plan.privacy
    context = PrivacyContext.from_plan(plan, seeded=noise.seeded, approximate=noise.approximate, ledger=ledger)
    report = build_report(ledger, context)
    spent = report.epsilon
    if plan.reads_quantiles:
        noised = [event for event in ledger.events() if not isinstance(event, UnnoisedEvent)]
        spent = compute_account(privacy.accountant, noised, privacy.delta).epsilon
    if spent > privacy.epsilon:
        raise PrivacyError("budget-exceeded", what="The run", spent=format_up(spent), epsilon=privacy.epsilon)
    return report


def check_cost(own: Ledger, context: PrivacyContext) -> PrivacyReport:
    """Return the report on an evaluation's own releases.

    Raises PrivacyError "budget-exceeded" if they cost more than requested.
    """
    cost = build_report(own, context)
    requested = context.epsilon_requested
    if requested is not None and cost.epsilon > requested:
        raise PrivacyError("budget-exceeded", what="The evaluation", spent=format_up(cost.epsilon), epsilon=requested)
    return cost


def evaluation_context(plan: Plan, epsilon: float, delta: float, noise: NoiseSource) -> PrivacyContext:
    """Return the context of an evaluation's report."""
    context = PrivacyContext.from_plan(plan, seeded=noise.seeded, approximate=noise.approximate)
    # An evaluation reads no candidates off the data. The report of its model, to which it is added, may say that the
    # training did.
    return replace(
        context, epsilon_requested=epsilon, delta=delta, candidates_from_data=False, n_prepared=0, outlook=()
    )


@dataclass(frozen=True, eq=False)
class EvaluatedModel:
    """The model that a coordinator gives to a run for evaluation.

    Attributes:
        task: the task as all parties receive it.
        ledger, report: the model's account so far.
    """

    task: EvaluationTask
    ledger: Ledger
    report: PrivacyReport

    def outcome(self, own: Ledger, evaluation: Evaluation, noise: NoiseSource) -> Outcome:
        """Return the outcome: the model with the evaluation's releases (`own`) added to its ledger.

        Raises:
            PrivacyError: as `check_cost`, or for a purpose that is on the account already.
        """
        task = self.task
        cost = check_cost(own, evaluation_context(task.run_plan, task.epsilon, task.delta, noise))
        ledger = self.ledger
        for release in own:
            ledger = ledger.append(release)
        # The same units may be in the training rows and in the held-out rows. So the costs add up (sequential
        # composition). The report reads the ledger of both.
        report = build_report(ledger, self.report.with_evaluation(cost))
        return Outcome(task.plan, task.ensemble, ledger, report, evaluation, cost)
