"""The coordinator's side of an evaluation: run the program, noise and record its releases, and charge them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.ledger import Ledger
from hedgerow.privacy.noise import NoiseSource
from hedgerow.privacy.report import PrivacyContext, PrivacyReport, report_of
from hedgerow.protocol.errors import PrivacyError
from hedgerow.protocol.plan import Plan
from hedgerow.server.coordinator import Outcome, Releaser, check_noise_mode
from hedgerow.training.evaluation import EvaluationProgram
from hedgerow.training.evaluation_estimates import Evaluation
from hedgerow.training.tasks import EvaluationTask
from hedgerow.transport.local import Aggregation


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
    """
    check_noise_mode(plan, aggregation)
    releaser = Releaser(noise, aggregation.honest_group, is_local=plan.privacy.noise == "local")
    releaser.ledger = ledger
    try:
        query = next(program)
        while True:
            query = program.send(releaser.release(query, aggregation.sum_of(query)))
    except StopIteration as finished:
        evaluation: Evaluation = finished.value
    own = Ledger(releaser.ledger.releases[len(ledger) :])
    cost = checked_cost(own, replace(context, honest_sites=aggregation.honest_group))
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
    return PrivacyContext(
        delta=delta,
        epsilon_requested=epsilon,
        accountant=plan.privacy.accountant,
        unit=plan.privacy.unit,
        max_rows_per_unit=plan.privacy.max_rows_per_unit,
        noise_mode=plan.privacy.noise,
        seeded=noise.seeded,
        approximate_noise=noise.approximate,
        bounds_from_data=plan.privacy.bounds_from_data,
    )


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

    def outcome(self, own: Ledger, evaluation: Evaluation, noise: NoiseSource, honest_group: int | None) -> Outcome:
        """The model with the evaluation on its account.

        Args: own: the evaluation's releases; honest_group: fewest shares of noise in them, None for central noise.
        Raises PrivacyError: as `checked_cost`, or for a purpose that is on the account already.
        """
        task = self.task
        context = evaluation_context(task.plan, task.epsilon, task.delta, noise)
        cost = checked_cost(own, replace(context, honest_sites=honest_group))
        ledger = self.ledger
        for release in own:
            ledger = ledger.append(release)
        return Outcome(task.plan, task.ensemble, ledger, joint_report(self.report, cost, ledger), evaluation, cost)


def joint_report(model: PrivacyReport, cost: PrivacyReport, ledger: Ledger) -> PrivacyReport:
    """The model's report after an evaluation: all releases together, at the model's delta.

    The same units may be in the training rows and in the held-out rows, so the costs add up (sequential composition).
    """
    events = list(ledger.events())
    requested = None
    if model.epsilon_requested is not None and cost.epsilon_requested is not None:
        requested = model.epsilon_requested + cost.epsilon_requested
    return replace(
        model,
        epsilon_requested=requested,
        epsilon_gdp=get_accountant("gdp").epsilon(events, model.delta),
        epsilon_rdp=get_accountant("rdp").epsilon(events, model.delta),
        n_releases=len(ledger),
        seeded=model.seeded or cost.seeded,
        approximate_noise=model.approximate_noise or cost.approximate_noise,
        bounds_from_data=model.bounds_from_data or cost.bounds_from_data,
    )
