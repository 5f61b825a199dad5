"""The coordinator's side of an evaluation: run the program, noise and record its releases, and charge them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hedgerow.errors import PrivacyError
from hedgerow.evaluation.estimates import Evaluation
from hedgerow.evaluation.program import EvaluationProgram
from hedgerow.methods.registry import resolve
from hedgerow.methods.tasks import EvaluationTask
from hedgerow.plan.plan import Plan
from hedgerow.privacy.ledger import Ledger
from hedgerow.privacy.noise import NoiseSource
from hedgerow.privacy.report import PrivacyContext, PrivacyReport, report_of, unread_report_of
from hedgerow.server.aggregation import Aggregation
from hedgerow.server.coordinator import Outcome, Releaser, Summed, check_noise_mode, require_plausible
from hedgerow.training.plausibility import ReleaseChecks


@dataclass(frozen=True, eq=False)
class EvaluationOutcome:
    """What an evaluation found, what it cost by itself, and the model's ledger with it."""

    evaluation: Evaluation
    cost: PrivacyReport
    ledger: Ledger


def run_evaluation(
    plan: Plan,
    program: EvaluationProgram,
    aggregation: Aggregation,
    noise: NoiseSource,
    ledger: Ledger,
    context: PrivacyContext,
) -> EvaluationOutcome:
    """Run an evaluation to its end.

    Args:
        plan: of the model.
        program: a fresh one, whose rounds start where the ledger ends.
        aggregation: where sums come from.
        noise: where noise comes from.
        ledger: the releases so far; the purposes in it cannot be released again.
        context: epsilon and delta of this evaluation, and the rest of the report.

    Raises:
        PrivacyError: when the releases cost more than `context.epsilon_requested`, or when the plan and the
            aggregation disagree about who adds the noise.
        AggregationError: see `require_plausible`; the evaluation's cost counts as spent.
    """
    check_noise_mode(plan, aggregation)
    # A ledger that this evaluation cannot be added to is found before anything is released.
    unread_report_of(ledger, context)
    checks = ReleaseChecks(lambda: resolve(plan).loss(plan))
    releaser = Releaser(noise, is_local=plan.privacy.noise == "local")
    releaser.ledger = ledger
    try:
        query = next(program)
        while True:
            total = aggregation.sum_of(query)
            released = releaser.release(query, total, aggregation.cohort)
            summed = Summed(aggregation.cohort, aggregation.n_nodes, aggregation.sites)
            require_plausible(checks, query, plan, released, summed)
            query = program.send(released)
    except StopIteration as finished:
        evaluation: Evaluation = finished.value
    cost = checked_cost(Ledger(releaser.ledger.releases[len(ledger) :]), context)
    return EvaluationOutcome(evaluation, cost, releaser.ledger)


def checked_cost(own: Ledger, context: PrivacyContext) -> PrivacyReport:
    """The report on an evaluation's own releases; PrivacyError(code="budget-exceeded") beyond what was asked for."""
    cost = report_of(own, context)
    requested = context.epsilon_requested
    if requested is not None and cost.epsilon > requested:
        raise PrivacyError(
            f"The evaluation cost epsilon = {cost.epsilon:.6g}, more than the {requested:.6g} that was asked for.",
            cause="A program released more than it had declared when its noise was calibrated.",
            remedy="Do not publish its results; report the call to the maintainers.",
            code="budget-exceeded",
        )
    return cost


def evaluation_context(plan: Plan, epsilon: float, delta: float, noise: NoiseSource) -> PrivacyContext:
    """What an evaluation's report says beside its releases."""
    context = PrivacyContext.of(plan, seeded=noise.seeded, approximate=noise.approximate)
    # Its own releases read no candidates off the data; the model's report, which they are added to, may say so.
    return replace(context, epsilon_requested=epsilon, delta=delta, candidates_from_data=False)


@dataclass(frozen=True, eq=False)
class EvaluatedModel:
    """What a coordinator gives to a run that evaluates a model.

    Attributes:
        task: what all parties are told.
        ledger, report: the model's account so far.
    """

    task: EvaluationTask
    ledger: Ledger
    report: PrivacyReport

    def outcome(self, own: Ledger, evaluation: Evaluation, noise: NoiseSource) -> Outcome:
        """The model with the evaluation, whose releases are `own`, on its account.

        Raises PrivacyError: as `checked_cost`, or for a purpose that is on the account already.
        """
        task = self.task
        cost = checked_cost(own, evaluation_context(task.run_plan, task.epsilon, task.delta, noise))
        ledger = self.ledger
        for release in own:
            ledger = ledger.append(release)
        # The same units may be in the training rows and in the held-out rows, so the costs add up (sequential
        # composition), and the report reads the ledger of both.
        report = report_of(ledger, self.report.with_evaluation(cost))
        return Outcome(task.plan, task.ensemble, ledger, report, evaluation, cost)
