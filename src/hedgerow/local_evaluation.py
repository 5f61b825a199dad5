"""Evaluate a model over sites that are objects in this process, by the protocol that a network would carry."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hedgerow.client.evaluation_node import EvaluationNode
from hedgerow.local_training import build_aggregation, check_sites
from hedgerow.model import Model
from hedgerow.privacy.gdp import check_delta, check_epsilon
from hedgerow.privacy.noise import NoiseSource
from hedgerow.privacy.report import PrivacyReport, report_of
from hedgerow.server.evaluation import evaluation_context, run_evaluation
from hedgerow.site_data import SiteData
from hedgerow.training.evaluation import N_EXCHANGES, evaluate_ensemble
from hedgerow.training.evaluation_estimates import Evaluation


@dataclass(frozen=True, eq=False)
class FederatedEvaluation:
    """What an evaluation found, what it cost, and the model with that cost on its account.

    Attributes:
        evaluation: the numbers.
        cost: the report on this evaluation alone.
        model: the same trees; its ledger and report now hold the evaluation as well. Keep this one.
    """

    evaluation: Evaluation
    cost: PrivacyReport
    model: Model


def evaluate_federated(
    model: Model,
    sites: Mapping[str, SiteData],
    *,
    epsilon: float,
    noise: NoiseSource,
    delta: float | None = None,
    n_threads: int = 1,
) -> FederatedEvaluation:
    """Measure how well a model predicts the sites' held-out rows, with noise; deterministic but for `noise`.

    Args:
        model: the model.
        sites: each site's held-out rows by the site's name; at most `max_rows_per_unit` of each unit
            (`hedgerow.site_data` sees to it).
        epsilon: what this evaluation may cost, > 0; infinity for no noise, which voids the model's guarantee.
        noise: `SystemNoise(os.urandom)` for a real one.
        delta: None takes the plan's.
        n_threads: threads each node predicts with, >= 1.

    Raises:
        UsageError: fewer sites than the plan asks for.
        PrivacyError: for epsilon or delta out of range, or when the promise cannot be kept.
    """
    plan = model.plan
    delta = plan.privacy.delta if delta is None else delta
    if epsilon != math.inf:
        check_epsilon(epsilon)
    check_delta(delta)
    check_sites(plan, len(sites))
    nodes = [EvaluationNode(name, sites[name], plan, n_threads, noise) for name in sorted(sites)]
    context = evaluation_context(plan, epsilon, delta, noise)
    program = evaluate_ensemble(plan, model.ensemble, epsilon, delta, first_round=len(model.ledger))
    aggregation = build_aggregation(plan, nodes, N_EXCHANGES, noise)
    outcome = run_evaluation(plan, program, aggregation, noise, model.ledger, context)
    report = report_of(outcome.ledger, model.report.with_evaluation(outcome.cost))
    return FederatedEvaluation(outcome.evaluation, outcome.cost, replace(model, ledger=outcome.ledger, report=report))
