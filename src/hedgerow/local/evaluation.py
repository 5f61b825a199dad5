"""Evaluate a model over sites that are objects in this process, by the protocol that a network would carry.

The calibration curve of an evaluation over sites can be drawn, with the extra "plots" (matplotlib): released numbers
only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow.client.node import EvaluationNode
from hedgerow.data.site_data import SiteData
from hedgerow.evaluation.estimates import CalibrationCurve, Evaluation
from hedgerow.evaluation.program import N_EXCHANGES, evaluate_ensemble
from hedgerow.local.training import build_aggregation, check_sites
from hedgerow.models.model import Model
from hedgerow.models.plots import CLASS_COLOURS, MUTED, add_titles, pyplot_module, save_figure, style
from hedgerow.privacy.gdp import check_delta, check_epsilon
from hedgerow.privacy.ledger import Ledger
from hedgerow.privacy.noise import NoiseSource
from hedgerow.privacy.report import PrivacyReport, report_of
from hedgerow.server.release import evaluation_context, run_evaluation


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
            (`hedgerow.data.site_data` sees to it).
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
    program = evaluate_ensemble(plan, model.ensemble, epsilon, delta, first_round=model.next_round)
    aggregation = build_aggregation(plan, nodes, N_EXCHANGES, noise)
    outcome = run_evaluation(plan, program, aggregation, noise, model.ledger, context)
    report = report_of(outcome.ledger, model.report.with_evaluation(outcome.cost))
    return FederatedEvaluation(
        outcome.evaluation, outcome.cost, evaluated(model, outcome.evaluation, outcome.ledger, report)
    )


def evaluated(model: Model, evaluation: Evaluation, ledger: Ledger, report: PrivacyReport) -> Model:
    """The model with an evaluation on its account, and what that found of its errors."""
    return replace(model, ledger=ledger, report=report, errors=evaluation.errors or model.errors)


MAX_CURVES = 8
HEIGHT = 6.6
"""Inches of the picture of a calibration."""
BAND = 1.96
"""Standard deviations of the noise that a bar covers: 95 %."""


def plot_calibration(found: FederatedEvaluation, path: str | Path) -> None:
    """Draw what was predicted against what happened, with the noise's 95 % bars, and where the records are.

    Raises:
        EnvironmentFault: matplotlib is missing, or the file cannot be written.
    """
    pyplot = pyplot_module()
    curves = found.evaluation.curves[:MAX_CURVES]
    with pyplot.rc_context(style()):
        figure, (axis, lower) = pyplot.subplots(
            2, 1, figsize=(5.6, HEIGHT), height_ratios=(4.2, 1), sharex=True, layout="constrained"
        )
        axis.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        if len(curves) == 1:
            axis.annotate("perfectly calibrated", (0.03, 0.055), rotation=45, rotation_mode="anchor", color=MUTED,
                          transform_rotates_text=True, fontsize=7.5)  # fmt: skip
        for number, curve in enumerate(curves):
            _draw(axis, lower, curve, CLASS_COLOURS[number % len(CLASS_COLOURS)], alone=len(curves) == 1)
        axis.set_xlim(-0.01, 1.01)
        axis.set_ylim(-0.02, 1.02)
        axis.set_ylabel(_vertical_label(found), color=MUTED)
        lower.set_ylabel("of all records", color=MUTED)
        lower.set_ylim(bottom=0)
        lower.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        lower.locator_params(axis="y", nbins=3)
        lower.set_xlabel("predicted probability", color=MUTED)
        if len(curves) > 1:
            axis.legend(frameon=False, loc="upper left")
        subtitle = f"{_subtitle(found)} · bars: 95 % of the privacy noise"
        add_titles(figure, "Calibration on held-out rows", subtitle, HEIGHT)
        save_figure(pyplot, figure, path)


def _draw(axis: Any, lower: Any, curve: CalibrationCurve, colour: str, *, alone: bool) -> None:
    shown = np.isfinite(curve.noise_error)
    errors = BAND * curve.noise_error[shown]
    low = np.minimum(errors, curve.observed[shown])
    high = np.minimum(errors, 1 - curve.observed[shown])
    axis.errorbar(
        curve.predicted[shown], curve.observed[shown], yerr=(low, high), color=colour, ecolor=colour, elinewidth=1,
        marker="o", markersize=4, linewidth=1.5, zorder=3, label=None if alone else curve.label_class,
    )  # fmt: skip
    # One thin bar per bin: bins differ in width, and areas would mislead.
    lower.vlines(curve.predicted, 0, curve.share, color=colour, linewidth=4 if alone else 2, alpha=0.6)


def _vertical_label(found: FederatedEvaluation) -> str:
    name, curves = found.model.plan.label.name, found.evaluation.curves
    return f"share of records with {name} = {curves[0].label_class if len(curves) == 1 else 'the class'}"


def _subtitle(found: FederatedEvaluation) -> str:
    area = found.evaluation.scores["auc"]
    text = "not measurable" if math.isnan(area.value) else f"{area.value:.3f} ± {area.noise_error:.3f}"
    n_records = f"about {max(found.evaluation.n_records.value, 0):,.0f} records"
    void = " (void)" if found.cost.guarantee == "void" else ""
    return f"AUC {text} · {n_records} · epsilon {found.cost.epsilon:.3g}{void}"
