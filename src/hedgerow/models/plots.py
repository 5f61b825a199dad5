# SPDX-License-Identifier: Apache-2.0
"""Pictures of a model: shapes of features, and calibration. Needs the extra "plots" (matplotlib).

A picture shows the model file's content only, so it may be published wherever the model may.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hedgerow.errors import missing_extra
from hedgerow.evaluation.estimates import CalibrationCurve
from hedgerow.models.bands import shape_bands, why_unknown
from hedgerow.models.model import write_atomically
from hedgerow.plan.fields import FIRST_DAY, LAST_DAY, format_day
from hedgerow.plan.plan import Feature
from hedgerow.privacy.rounding import format_up
from hedgerow.survey.statistics import BAND
from hedgerow.trees.importances import Importances, Shape, find_importances, shape_function

if TYPE_CHECKING:
    from hedgerow.models.model import Model

MAX_PANELS = 48
MAX_BARS = 10
PANELS_PER_ROW = 4
CENTRAL_SHARE = 0.99
"""A panel shows the range that holds this share of the records, by the released weights."""
SKEWED = 0.08
"""A range whose released median lies lower than this share of it gets a logarithmic axis."""
INK, MUTED, GRID, FILL = "#1f2a24", "#6b756f", "#e6eae7", "#cfe3d6"
BAND_SHADES = ((2, 0.13), (1, 0.17))
"""Standard deviations of the noise that a band reaches to, and its opacity; the widest first."""
_ARROWS = {"increasing": "\N{NORTH EAST ARROW}", "decreasing": "\N{SOUTH EAST ARROW}"}
"""Beside features whose direction the plan has fixed."""
CLASS_COLOURS = ("#2e7d4f", "#c8781e", "#3c6fb0", "#a8436b", "#7a6cb5", "#8a7a2b", "#2a8c8c", "#8c8c8c")


def plot_shapes(model: Model, path: str | Path | BinaryIO) -> None:
    """Draw every feature's shape function into one file, the most important first.

    The file is PNG, SVG or PDF, by its ending, and PNG if it is an open file.

    All panels share one vertical scale, so heights can be compared. A shape is what the trees on that feature alone
    add to the score, less its mean. Trees of several features are not in it. The subtitle says how much they are.
    If the effect of the noise is known, two pale bands show one and two standard deviations of it
    (`hedgerow.models.bands`). The line at the bottom says so, or why there are no bands.

    Raises:
        EnvironmentFault: matplotlib is missing, or the file cannot be written.
    """
    pyplot = pyplot_module()
    found = find_importances(model.ensemble)
    order = np.argsort(-found.values, kind="stable")[:MAX_PANELS]
    shapes = [shape_function(model.ensemble, int(feature)) for feature in order]
    scale = model.ensemble.link.axis_scale(model.plan.label)
    scores = [shape.centre_scores() * scale for shape in shapes]
    deviations = [np.zeros_like(curve) for curve in scores]
    if not why_unknown(model.plan, model.ensemble, model.ledger):
        bands = shape_bands(model.plan, model.ensemble, model.ledger)
        deviations = [bands[int(index)].deviations * scale for index in order]
    # Show all of the shapes, and the bands as far as the shapes keep two thirds of the height.
    highest = max(float(np.abs(curve).max()) for curve in scores)
    banded = max(float((np.abs(curve) + 2 * noise).max()) for curve, noise in zip(scores, deviations, strict=True))
    reach = max(1.12 * highest, min(1.03 * banded, 1.5 * highest)) or 1.0
    n_columns = min(PANELS_PER_ROW, len(order))
    n_rows = math.ceil(len(order) / n_columns)
    height = 2.45 * n_rows + 1.0
    with pyplot.rc_context(style()):
        figure, axes = pyplot.subplots(
            n_rows, n_columns, figsize=(3.4 * n_columns + 0.4, height), squeeze=False, layout="constrained"
        )
        for position, axis in enumerate(axes.ravel()):
            if position >= len(order):
                axis.set_axis_off()
                continue
            feature = model.plan.features[order[position]]
            axis.set_ylim(-reach, reach)
            axis.axhline(0, color=MUTED, linewidth=0.8, zorder=1)
            if shapes[position].n_trees == 0:
                axis.set_xticks([])
                said = "no tree on this feature alone"
                axis.text(0.5, 0.56, said, transform=axis.transAxes, ha="center", color=MUTED)
            else:
                panel = _categories_panel if feature.is_categorical else _numbers_panel
                panel(axis, feature, shapes[position], scores[position], deviations[position])
            total = found.values.sum()
            share = f"{found.values[order[position]] / total:.0%}" if total > 0 else "0%"
            share = share if feature.monotone is None else f"{_ARROWS[feature.monotone]} {share}"
            name = _shorten(feature.name, 26)
            axis.set_title(name, loc="left", fontsize=9.5, fontweight="bold", color=INK, pad=5)
            axis.set_title(share, loc="right", fontsize=8, color=MUTED, pad=5)
            if position % n_columns == 0:
                axis.set_ylabel(model.ensemble.link.axis(model.plan.label), color=MUTED)
            else:
                axis.tick_params(labelleft=False)
        add_titles(figure, "What each feature adds to the score", _subtitle(model, found, len(order)), height)
        _class_legend(figure, model)
        figure.supxlabel(_caption(model, found), x=0.012, ha="left", fontsize=8, color=MUTED)
        save_figure(pyplot, figure, path)


def _caption(model: Model, found: Importances) -> str:
    reason = why_unknown(model.plan, model.ensemble, model.ledger)
    parts = ["Pale bars: where the records are, estimated from released sums."] if found.is_weighted else []
    parts.append("Ring at the right edge: missing values. Percentages: shares of the importances.")
    if any(feature.monotone for feature in model.plan.features):
        parts.append("\nArrows: directions that the plan has fixed.")
    if reason:
        parts.append(f"\nNo bands of what the noise could have drawn: {reason}.")
    elif math.isfinite(model.plan.privacy.epsilon):
        effect = "Bands: effect of the privacy noise, one and two standard deviations."
        parts.append(f"\n{effect} Not a confidence interval, and not an effect of treatment.")
    return " ".join(parts).replace(" \n", "\n")


def pyplot_module() -> ModuleType:
    """Return matplotlib.pyplot, for files; EnvironmentFault if it is not installed."""
    try:
        import matplotlib
    except ImportError as fault:
        raise missing_extra("matplotlib", "Drawing") from fault
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def style() -> dict[str, Any]:
    """Return the look of all pictures, for `pyplot.rc_context`."""
    return {
        "font.size": 8.5,
        "text.color": INK,
        # A "$" in a name is a sign like any other.
        "text.parse_math": False,
        "axes.edgecolor": GRID,
        "axes.labelcolor": MUTED,
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "grid.color": GRID,
        "grid.linewidth": 0.7,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "xtick.minor.size": 0,
        "savefig.dpi": 160,
    }


Reals = NDArray[np.float64]


def _numbers_panel(axis: Any, feature: Feature, shape: Shape, scores: Reals, deviations: Reals) -> None:
    if feature.min is None or feature.max is None:  # a validated plan has both
        raise ValueError(f"feature {feature.name} has no bounds")
    borders = np.concatenate([[feature.min], np.clip(shape.borders, feature.min, feature.max), [feature.max]])
    density = shape.density[:-1]
    low, high = _find_central_range(borders, density, shape.is_weighted)
    is_known = shape.is_weighted and density.sum() > 0
    cumulative = np.cumsum(density) / density.sum() if is_known else np.ones(len(density))
    median = borders[1 + int(np.searchsorted(cumulative, 0.5))]
    is_log = not feature.is_date and is_known and low >= 0 and bool((median - low) / (high - low) < SKEWED)
    if is_log:
        # Below the lowest twentieth of the records, a logarithmic axis would only stretch emptiness.
        lowest = borders[1 + min(int(np.searchsorted(cumulative, 0.05)), len(density) - 1)]
        start = max(float(lowest), high / 1000)
        axis.set_xscale("symlog", linthresh=start, linscale=0.4)
        axis.xaxis.minorticks_off()
        decades = 10.0 ** np.arange(math.ceil(math.log10(start * 1.5)), math.floor(math.log10(high)) + 1)
        axis.set_xticks([0.0, *decades] if low == 0 else decades)
    if shape.is_weighted:
        _density_strip(axis, axis.get_xaxis().get_transform(), borders, density, axis.get_ylim()[1])
    for output in range(scores.shape[1]):
        colour = CLASS_COLOURS[output % len(CLASS_COLOURS)]
        _bands(axis, borders, scores[:, output], deviations[:, output], colour)
        axis.stairs(scores[:-1, output], borders, baseline=None, color=colour, linewidth=1.6, zorder=3)
        axis.plot([1.045], [scores[-1, output]], "o", markeredgecolor=colour, markerfacecolor="white", markersize=4.5,
                  markeredgewidth=1.4, clip_on=False, zorder=4, transform=axis.get_yaxis_transform())  # fmt: skip
    axis.set_xlim(low, high)
    if not is_log:
        axis.locator_params(axis="x", nbins=3 if feature.is_date else 4)

    def format_days(days: float, _: object) -> str:
        return format_day(round(min(max(days, FIRST_DAY), LAST_DAY)))

    axis.xaxis.set_major_formatter(format_days if feature.is_date else _short_number)


def _bands(
    axis: Any, borders: NDArray[Any], scores: NDArray[np.float64], deviations: NDArray[np.float64], colour: str
) -> None:
    """Draw both bands around a curve, and around its ring for missing values."""
    if not deviations.any():
        return
    for count, opacity in BAND_SHADES:
        low, high = scores - count * deviations, scores + count * deviations
        axis.stairs(
            high[:-1], borders, baseline=low[:-1], fill=True, color=colour, alpha=opacity, linewidth=0, zorder=2
        )
        axis.plot([1.045] * 2, [low[-1], high[-1]], color=colour, alpha=opacity * 1.5, linewidth=4.5, clip_on=False,
                  solid_capstyle="butt", zorder=2, transform=axis.get_yaxis_transform())  # fmt: skip


def _density_strip(axis: Any, transform: Any, borders: NDArray[Any], density: NDArray[Any], reach: float) -> None:
    """Draw the density of the records: a strip of bars along the bottom.

    Equal areas, as drawn on the axis, are equal shares of the records.
    """
    places = transform.transform(borders)
    middles = np.linspace(places[0], places[-1], 61)
    cumulative = np.concatenate([[0.0], np.cumsum(density)])
    shares = np.diff(np.interp(middles, places, cumulative))
    heights = shares / shares.max() * reach * 0.3 if shares.max() > 0 else shares
    edges = np.interp(middles, places, borders)
    axis.stairs(heights - reach, edges, baseline=-reach, fill=True, color=FILL, linewidth=0, zorder=1.5)


def _categories_panel(axis: Any, feature: Feature, shape: Shape, scores: Reals, deviations: Reals) -> None:
    names = [*feature.categories, "not listed", "missing"]
    # The categories with the most records, then from the lowest score to the highest.
    kept = np.argsort(-shape.density, kind="stable")[:MAX_BARS]
    kept = kept[np.argsort(scores[kept].mean(axis=1) if scores.shape[1] > 1 else scores[kept, 0], kind="stable")]
    n_outputs = scores.shape[1]
    width = 0.72 / n_outputs
    for output in range(n_outputs):
        places = np.arange(len(kept)) + (output - (n_outputs - 1) / 2) * width
        axis.bar(places, scores[kept, output], width * 0.94, color=CLASS_COLOURS[output % len(CLASS_COLOURS)], zorder=3)
        for (count, _), thickness in zip(BAND_SHADES, (1.2, 3.2), strict=True):
            spread = count * deviations[kept, output]
            # Pale on the bar would be lost; the wider band is the thinner line.
            axis.vlines(places, scores[kept, output] - spread, scores[kept, output] + spread, color=INK, alpha=0.42,
                        linewidth=thickness, zorder=4)  # fmt: skip
    if shape.is_weighted:
        heights = shape.density[kept] / shape.density[kept].max() * axis.get_ylim()[1] * 0.3
        axis.bar(np.arange(len(kept)), heights, 0.9, bottom=axis.get_ylim()[0], color=FILL, zorder=1.5)
    axis.grid(axis="x", visible=False)
    shown = [_shorten(names[code], 10 if len(kept) > 4 else 12) for code in kept]
    tilted = any(len(one) + len(other) > 80 / len(kept) for one, other in pairwise(shown))
    axis.set_xticks(range(len(kept)), shown, rotation=40 if tilted else 0, ha="right" if tilted else "center",
                    rotation_mode="anchor", fontsize=7.5)  # fmt: skip
    axis.set_xlim(-0.7, max(len(kept), 3) - 0.3)


def _find_central_range(borders: NDArray[Any], density: NDArray[Any], is_weighted: bool) -> tuple[float, float]:
    """Return the range that holds the central share of the records.

    It is everything if their distribution is not known, or if little would be cut off.
    """
    if not is_weighted or density.sum() <= 0:
        return float(borders[0]), float(borders[-1])
    cumulative = np.cumsum(density) / density.sum()
    tail = (1 - CENTRAL_SHARE) / 2
    first, last = int(np.searchsorted(cumulative, tail)), int(np.searchsorted(cumulative, 1 - tail))
    last = min(last, len(density) - 1)
    # Less than a third of the public range cut off is not worth hiding any.
    low, high = float(borders[first]), float(borders[last + 1])
    whole = float(borders[-1] - borders[0])
    return (low, high) if high - low < whole / 1.5 else (float(borders[0]), float(borders[-1]))


def _subtitle(model: Model, found: Importances, n_shown: int) -> str:
    report = model.report
    parts = [f"label {model.plan.label.name}", f"{model.ensemble.n_trees} trees"]
    void = " (guarantee void)" if report.guarantee == "void" else ""
    parts.append(f"epsilon {format_up(report.epsilon, 3)}{void}")
    if found.interaction_share > 0:
        parts.append(f"{found.interaction_share:.0%} of the variance from trees of several features")
    if n_shown < len(model.plan.features):
        parts.append(f"{n_shown} of {len(model.plan.features)} features")
    return " · ".join(parts)


def add_titles(figure: Any, title: str, subtitle: str, height: float) -> None:
    """Write title and subtitle above a figure of this height in inches."""
    # Constrained layout makes room for the suptitle; the blank line below it is the subtitle's place.
    figure.suptitle(title + "\n ", x=0.012, ha="left", fontsize=13, fontweight="bold", color=INK)
    figure.text(0.012, 1 - 0.42 / height, subtitle, ha="left", va="center", fontsize=8.5, color=MUTED)


def _class_legend(figure: Any, model: Model) -> None:
    if model.ensemble.n_outputs < 2:
        return
    from matplotlib.lines import Line2D

    shown = model.plan.label.classes[: len(CLASS_COLOURS)]
    lines = [Line2D([], [], color=CLASS_COLOURS[place], linewidth=2, label=name) for place, name in enumerate(shown)]
    figure.legend(handles=lines, loc="upper right", ncols=len(lines), frameon=False)


def _short_number(value: float, _position: int | None = None) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 10 or (letter != "k" and abs(value) >= size):
            return f"{value / size:.3g}{letter}"
    return f"{value:.4g}"


def _shorten(name: str, length: int) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"


def save_figure(pyplot: ModuleType, figure: Any, path: str | Path | BinaryIO) -> None:
    """Write and close a figure; afterwards the file holds all of it, or its old content.

    Raises:
        EnvironmentFault: code "disk-full" or "file-not-written".
    """
    try:
        if not isinstance(path, str | Path):
            figure.savefig(path, facecolor="white")
            return
        file = Path(path) if Path(path).suffix else Path(f"{path}.png")
        drawn = BytesIO()
        figure.savefig(drawn, facecolor="white", format=file.suffix[1:])
    finally:
        pyplot.close(figure)
    write_atomically(file, drawn.getvalue())


MAX_CURVES = 8
CALIBRATION_HEIGHT = 6.6
"""Inches of the picture of a calibration."""


def draw_calibration(
    curves: Sequence[CalibrationCurve], label: str, subtitle: str, path: str | Path | BinaryIO
) -> None:
    """Draw predicted against observed chances, with 95 % bars of the noise, and the records' shares.

    Args:
        label: its name.
        path: a file by its ending, or an open one, which gets a PNG.

    Raises:
        EnvironmentFault: matplotlib is missing, or the file cannot be written.
    """
    pyplot = pyplot_module()
    curves = curves[:MAX_CURVES]
    with pyplot.rc_context(style()):
        figure, (axis, lower) = pyplot.subplots(
            2, 1, figsize=(5.6, CALIBRATION_HEIGHT), height_ratios=(4.2, 1), sharex=True, layout="constrained"
        )
        axis.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        if len(curves) == 1:
            axis.annotate("perfectly calibrated", (0.03, 0.055), rotation=45, rotation_mode="anchor", color=MUTED,
                          transform_rotates_text=True, fontsize=7.5)  # fmt: skip
        for number, curve in enumerate(curves):
            _draw_curve(axis, lower, curve, CLASS_COLOURS[number % len(CLASS_COLOURS)], alone=len(curves) == 1)
        axis.set_xlim(-0.01, 1.01)
        axis.set_ylim(-0.02, 1.02)
        said = curves[0].label_class if len(curves) == 1 else "the class"
        axis.set_ylabel(f"share of records with {label} = {said}", color=MUTED)
        lower.set_ylabel("of all records", color=MUTED)
        lower.set_ylim(bottom=0)
        lower.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        lower.locator_params(axis="y", nbins=3)
        lower.set_xlabel("predicted probability", color=MUTED)
        if len(curves) > 1:
            axis.legend(frameon=False, loc="upper left")
        add_titles(figure, "Calibration", subtitle, CALIBRATION_HEIGHT)
        save_figure(pyplot, figure, path)


def _draw_curve(axis: Any, lower: Any, curve: CalibrationCurve, colour: str, *, alone: bool) -> None:
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
