"""Pictures of the tables and figures of the catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from experiments.catalogue import DATA, RANKED, Experiment, Panel
from experiments.cells import Results, aucs
from experiments.paper_report import EPSILONS, agreement
from hedgerow.training.presets import PRESETS

MARKERS = "osD^v<>PX*ph"
CROWD = 6
"""More lines than this are drawn twice, the second time magnified."""
ZOOM = 0.07
"""Of AUC, what the magnified part shows."""


def draw(experiment: Experiment, results: Results, path: Path) -> None:
    """Write the PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    if experiment.name == "table6":
        figure = _ranked(plt, results)
    elif experiment.published is not None:
        figure = _beside_the_paper(plt, experiment, results)
    else:
        figure = _lines(plt, experiment, results)
    figure.savefig(path, dpi=90, bbox_inches="tight")
    plt.close(figure)


def _beside_the_paper(plt: Any, experiment: Experiment, results: Results) -> Any:
    """For each data set, a row per method: the paper's mean with two standard deviations, and ours with as many."""
    names = list(dict.fromkeys(cell.method.name for cell, *_ in agreement(experiment, results)))
    figure, axes = plt.subplots(1, len(DATA), figsize=(13, 0.42 * len(names) + 1.6), sharey=True)
    found = {(cell.method.name, cell.data): (cell, mean, sd) for cell, mean, sd, _ in agreement(experiment, results)}
    for axis, data in zip(axes, DATA, strict=True):
        for row, name in enumerate(names):
            cell, mean, deviation = found[name, data]
            ours = aucs(results[cell.key])
            own = np.std(ours, ddof=1) if len(ours) > 1 else 0.0
            axis.errorbar(mean, row - 0.13, xerr=2 * deviation, fmt="s", color="0.45", capsize=3, markersize=4)
            axis.errorbar(np.mean(ours), row + 0.13, xerr=2 * own, fmt="o", color="C0", capsize=3, markersize=4)
        axis.set_title(data)
        axis.set_xlabel("test AUC")
        axis.grid(axis="x", alpha=0.3)
        axis.locator_params(axis="x", nbins=4)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    figure.suptitle(f"{experiment.title}\ngrey squares: the paper, blue circles: ours; bars: two standard deviations")
    figure.tight_layout()
    return figure


def _ranked(plt: Any, results: Results) -> Any:
    """For each epsilon the AUC of every method on every data set, ours in colour."""
    figure, axes = plt.subplots(1, len(EPSILONS), figsize=(13, 4.6), sharey=True)
    for axis, epsilon in zip(axes, EPSILONS, strict=True):
        for index, name in enumerate(RANKED):
            means = [float(np.mean(aucs(results[name, data, epsilon, 0.0]))) for data in DATA]
            style = {"color": "C3", "markersize": 10, "zorder": 3} if name == "hedgerow" else {"alpha": 0.8}
            title = PRESETS[name].title
            axis.plot(range(len(DATA)), means, MARKERS[index], linestyle="none", label=title, **style)
        axis.set_xticks(range(len(DATA)), DATA)
        axis.set_title(f"epsilon {epsilon:g}")
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_ylabel("test AUC")
    axes[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5))
    figure.suptitle("All methods, T = 100")
    return figure


def _lines(plt: Any, experiment: Experiment, results: Results) -> Any:
    panels = list(experiment.panels)
    crowded = len({cell.method.name for cell in panels[0].cells}) > CROWD
    if crowded:  # once more, from near the top
        panels.append(panels[0])
    count = len(panels)
    figure, axes = plt.subplots(1, count, figsize=(5.2 * count + 1.5, 4.2), squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        _draw_panel(axis, panel, results)
    if crowded:
        top = max(float(np.mean(aucs(results[cell.key]))) for cell in panels[0].cells)
        axes[0][-1].set_ylim(top - ZOOM, top + ZOOM / 8)
        axes[0][0].get_legend().remove()
        axes[0][-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5))
    axes[0][0].set_ylabel("test AUC")
    figure.suptitle(experiment.title)
    figure.tight_layout()
    return figure


def _draw_panel(axis: Any, panel: Panel, results: Results) -> None:
    names = list(dict.fromkeys(cell.method.name for cell in panel.cells))
    for index, name in enumerate(names):
        cells = sorted((cell for cell in panel.cells if cell.method.name == name), key=lambda cell: cell.x)
        values = [aucs(results[cell.key]) for cell in cells]
        xs, means = [cell.x for cell in cells], np.array([np.mean(value) for value in values])
        deviations = np.array([np.std(value, ddof=1) if len(value) > 1 else 0.0 for value in values])
        marker = MARKERS[index % len(MARKERS)]
        line = axis.plot(xs, means, marker=marker, markersize=4, label=name, color=f"C{index % 10}",
                         linestyle="-" if index < 10 else "--")[0]  # fmt: skip
        axis.fill_between(xs, means - deviations, means + deviations, color=line.get_color(), alpha=0.12, linewidth=0)
    axis.set_title(panel.title)
    axis.set_xlabel(panel.x_label)
    if panel.log_x:
        axis.set_xscale("log", base=2)
        places = sorted({cell.x for cell in panel.cells})
        axis.set_xticks(places, [f"{place:g}" for place in places])
        axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)
