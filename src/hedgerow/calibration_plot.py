"""The calibration curve of a federated evaluation as a picture. Needs the extra "plots" (matplotlib).

It shows released numbers only.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hedgerow.plots import CLASS_COLOURS, INK, MUTED, pyplot_module, save_figure, style
from hedgerow.training.evaluation_estimates import CalibrationCurve, Estimate

if TYPE_CHECKING:
    from hedgerow.local_evaluation import FederatedEvaluation

MAX_CURVES = 8
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
            2, 1, figsize=(5.6, 6.6), height_ratios=(4.2, 1), sharex=True, layout="constrained"
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
        _titles(figure, found)
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


def _titles(figure: Any, found: FederatedEvaluation) -> None:
    scores = found.evaluation.scores
    parts = [f"AUC {_short(scores['auc'])}", f"about {max(found.evaluation.n_records.value, 0):,.0f} records"]
    parts.append(f"epsilon {found.cost.epsilon:.3g}" + (" (void)" if found.cost.guarantee == "void" else ""))
    figure.suptitle("Calibration on held-out rows\n ", x=0.02, ha="left", fontsize=13, fontweight="bold", color=INK)
    figure.text(0.02, 1 - 0.42 / 6.6, " · ".join(parts) + " · bars: 95 % of the privacy noise", ha="left", va="center",
                fontsize=8.5, color=MUTED)  # fmt: skip


def _short(estimate: Estimate) -> str:
    if math.isnan(estimate.value):
        return "not measurable"
    return f"{estimate.value:.3f} ± {estimate.noise_error:.3f}"
