"""The coordinator: runs a program, adds noise to each sum, and writes every release into the ledger.

It is the only place where a sum becomes a release: the noise is drawn once per purpose, the ledger refuses a second
release for the same purpose, and the program sees nothing but the release.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hedgerow.errors import PrivacyError
from hedgerow.evaluation.estimates import Evaluation
from hedgerow.methods.dp_xgboost.trees import candidate_scores
from hedgerow.methods.registry import resolve
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import account_of
from hedgerow.privacy.events import Event, UnnoisedEvent
from hedgerow.privacy.ledger import Ledger, Release
from hedgerow.privacy.noise import NoiseSource
from hedgerow.privacy.query_noise import QueryNoise, noise_of
from hedgerow.privacy.report import PrivacyContext, PrivacyReport, report_of
from hedgerow.protocol.queries import IntVector, NoiseCohort, PureQuery, Query, SplitSelection
from hedgerow.protocol.results import Salvage
from hedgerow.rounds.specs import HEADROOM, least_entry_bound, release_bound, rows_of
from hedgerow.secagg.integers import require_within
from hedgerow.secagg.transitions import Code, refuse
from hedgerow.server.aggregation import Aggregation
from hedgerow.training.plausibility import ReleaseChecks, SumFacts
from hedgerow.training.steps import Program
from hedgerow.trees.ensemble import Ensemble

Progress = Callable[[Query, Ledger], None]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run produced: the plan as it was run, the model, the ledger of its releases, and the report.

    Attributes:
        evaluation: when the run evaluated the model: what was found.
        cost: the report on that evaluation alone; `ledger` and `report` hold it beside the model's training.
        salvaged: when the training could not go on: why, and how far it came.
    """

    plan: Plan
    ensemble: Ensemble
    ledger: Ledger
    report: PrivacyReport
    evaluation: Evaluation | None = None
    cost: PrivacyReport | None = None
    salvaged: Salvage | None = None


class Releaser:
    """Turns sums into releases and keeps the ledger.

    Args:
        noise: where noise comes from.
        is_local: whether every record's noise is in the sums already.
    """

    def __init__(self, noise: NoiseSource, *, is_local: bool = False) -> None:
        self._noise = noise
        self._is_local = is_local
        self.ledger = Ledger()

    def release(self, query: Query, total: IntVector, cohort: NoiseCohort | None = None) -> IntVector:
        """What is released, int64 [query.release_length]: the noisy sum, or choices; one event in the ledger.

        Args: cohort: None when the noise is added here; else the sites whose noise is in the sum already.

        Raises:
            PrivacyError: when this purpose was released before.
        """
        purpose = str(query.purpose)
        entry, noise = entry_of(query, cohort, self._noise, is_local=self._is_local)
        # The ledger goes first: if it refuses, no noise is drawn and nothing is released.
        self.ledger = self.ledger.append(entry)
        if isinstance(query, SplitSelection):
            return self._chosen(query, total, purpose)
        if noise.central_sigma == 0:
            return total
        if isinstance(query, PureQuery):
            return total + self._noise.laplace(noise.central_sigma, query.length, purpose)
        return total + self._noise.sample(noise.central_sigma, query.length, purpose)

    def _chosen(self, query: SplitSelection, total: IntVector, purpose: str) -> IntVector:
        """One candidate per node, by the exponential mechanism over gains from the exact sums."""
        places, scores = zip(*candidate_scores(query, total), strict=True)
        if query.pure.scale:
            chosen = self._noise.select(scores, query.pure.scale, purpose)
        else:
            chosen = np.array([int(values.argmax()) if len(values) else -1 for values in scores], dtype=np.int64)
        picked = [own[index] if index >= 0 else -1 for own, index in zip(places, chosen.tolist(), strict=True)]
        return np.array(picked, dtype=np.int64)


def require_in_range(
    query: Query, plan: Plan, released: IntVector, cohort: NoiseCohort | None, n_nodes: int
) -> None:
    """Ask of a release whether it is garbage: a sum that wrapped, or one over many more rows than the plan declares.

    It is asked of the release and of nothing else, and the release stands in the ledger by then. So that a run ends
    here is post-processing, and paid for. A choice is always one of those that the plan allows.

    Args: released, cohort: as in `Releaser.release`; n_nodes: sites that were asked.

    Raises:
        Abandoned: SUM_OUT_OF_RANGE.
    """
    if isinstance(query, SplitSelection):
        return
    noise = noise_of(query, None if cohort is None else cohort.n_shares, is_local=plan.privacy.noise == "local")
    require_within(released, release_bound(query, plan, noise.variance, n_nodes))


@dataclass(frozen=True)
class Summed:
    """What a release is a sum over.

    Attributes:
        cohort: as in `Releaser.release`.
        n_nodes: sites that were asked.
        sites: those whose vectors are in the sum; None where that is not known.
    """

    cohort: NoiseCohort | None
    n_nodes: int
    sites: tuple[str, ...] | None


def require_plausible(checks: ReleaseChecks, query: Query, plan: Plan, released: IntVector, summed: Summed) -> None:
    """Ask of a release, once, whether it can be a sum over records; like `require_in_range`, of nothing else.

    Raises:
        Abandoned: SUM_OUT_OF_RANGE, RELEASE_IMPLAUSIBLE. It names all sites of the sum, for nobody knows which it was.
    """
    require_in_range(query, plan, released, summed.cohort, summed.n_nodes)
    n_shares = None if summed.cohort is None else summed.cohort.n_shares
    noise = noise_of(query, n_shares, is_local=plan.privacy.noise == "local")
    entry_bound = least_entry_bound(query, plan, noise.variance, summed.n_nodes)
    fault = checks.fault_in(
        query, released, SumFacts(HEADROOM * rows_of(plan), entry_bound, noise, summed.n_nodes, summed.sites)
    )
    if fault:
        sites = "" if summed.sites is None else f"; in the sum: {', '.join(summed.sites)}"
        raise refuse(Code.RELEASE_IMPLAUSIBLE, f"Round {query.purpose.round}: {fault}{sites}.")


def entry_of(
    query: Query, cohort: NoiseCohort | None, source: NoiseSource, *, is_local: bool
) -> tuple[Release, QueryNoise]:
    """What the ledger says of a query's release, and the noise that the release needs; `cohort` as in `release`."""
    noise = noise_of(query, None if cohort is None else cohort.n_shares, is_local=is_local)
    entry = Release(
        purpose=str(query.purpose),
        round=query.purpose.round,
        kind=query.purpose.kind,
        event=noise.event,
        length=query.release_length,
        sensitivity=_sensitivity(query),
        sigma=float(noise.central_sigma) if isinstance(query, PureQuery) else noise.sigma,
        cohort=cohort if noise.share_sigma else None,
        seeded=source.seeded,
        approximate=source.approximate,
    )
    return entry, noise


def _sensitivity(query: Query) -> float:
    return float(query.pure.sensitivity) if isinstance(query, PureQuery) else math.sqrt(query.sensitivity_squared)


def event_of(query: Query) -> tuple[Event, int]:
    """What a query's release costs when the coordinator adds the noise, and that noise's standard deviation."""
    noise = noise_of(query)
    return noise.event, noise.central_sigma


def run_program(
    plan: Plan, program: Program, aggregation: Aggregation, noise: NoiseSource, progress: Progress | None = None
) -> Outcome:
    """Run a program to its end.

    Args:
        plan: the plan, for the report.
        program: a fresh generator of queries.
        aggregation: where sums come from.
        noise: where noise comes from.
        progress: called after every release.

    Raises:
        PrivacyError: when the releases cost more than the plan allows; then there is no model. Also when the plan and
            the aggregation disagree about who adds the noise.
        AggregationError: see `require_plausible`; there is no model either.
    """
    check_noise_mode(plan, aggregation)
    checks = ReleaseChecks(lambda: resolve(plan).loss(plan))
    releaser = Releaser(noise, is_local=plan.privacy.noise == "local")
    try:
        query = next(program)
        while True:
            total = aggregation.sum_of(query)
            released = releaser.release(query, total, aggregation.cohort)
            summed = Summed(aggregation.cohort, aggregation.n_nodes, aggregation.sites)
            require_plausible(checks, query, plan, released, summed)
            if progress is not None:
                progress(query, releaser.ledger)
            query = program.send(released)
    except StopIteration as finished:
        ensemble: Ensemble = finished.value
    report = checked_report(plan, releaser.ledger, noise)
    return Outcome(plan, ensemble, releaser.ledger, report)


def check_noise_mode(plan: Plan, aggregation: Aggregation) -> None:
    """Raise PrivacyError when the plan and the aggregation disagree about who adds the noise."""
    if (plan.privacy.noise == "distributed") != (aggregation.cohort is not None):
        raise PrivacyError(
            f"The plan asks for {plan.privacy.noise} noise, but the sums come with the other kind.",
            cause="Noise from the sites needs nodes that add their shares before the secure sum.",
            remedy='Use secure aggregation, or set privacy.noise to "server".',
            code="noise-mode-unsupported",
        )


def checked_report(plan: Plan, ledger: Ledger, noise: NoiseSource) -> PrivacyReport:
    """The report on a finished run; raises PrivacyError(code='budget-exceeded') when it cost more than promised.

    A plan whose candidates are read off the data promises nothing; its epsilon then bounds what is noised.
    """
    privacy = plan.privacy
    report = report_of(ledger, PrivacyContext.of(plan, seeded=noise.seeded, approximate=noise.approximate))
    spent = report.epsilon
    if plan.reads_quantiles:
        noised = [event for event in ledger.events() if not isinstance(event, UnnoisedEvent)]
        spent = account_of(privacy.accountant, noised, privacy.delta).epsilon
    if spent > privacy.epsilon:
        raise PrivacyError(
            f"The run cost epsilon = {spent:.6g}, more than the {privacy.epsilon:.6g} of the plan.",
            cause="A program released more than it had declared when its noise was calibrated.",
            remedy="Do not publish the model; report the plan to the maintainers.",
            code="budget-exceeded",
        )
    return report
