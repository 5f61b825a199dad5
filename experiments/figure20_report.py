"""The report and the picture of figure 20."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.figure20_runs import (
    DEPTH,
    LINES,
    N_CANDIDATES,
    N_FEATURES,
    RECORDS,
    Formula,
    Measured,
    Measurement,
    Points,
    formula_of,
)
from experiments.harness import mean_and_deviation
from hedgerow.methods.registry import resolve
from hedgerow.training.presets import PRESETS

WORD = 4
"""Bytes of a number, where the formulas' numbers are shown as bytes: what a sum of single precision would take."""


def formula_for(line: Measured) -> Formula:
    """Appendix B for a measured run."""
    plan = Measurement(line.method, line.clients, line.trees, line.rows).plan()
    return formula_of(plan, resolve(plan))


def report_of(lines: Sequence[Measured], points: Points) -> tuple[str, bool]:
    """The report in Markdown, and whether all runs had the rounds of Appendix B, of two exchanges each."""
    holds = all(line.rounds == formula_for(line).rounds and line.exchanges == 2 * line.rounds for line in lines)
    text = [
        "# Figure 20: communication, computation, number of clients",
        "",
        f"Measured over the engine `grpc` on loopback, with TLS and masks: depth {DEPTH}, {N_FEATURES} made-up numeric "
        f"features, Q = {N_CANDIDATES}, {lines[0].rows:,} rows a client, epsilon 1. Bytes are those of frames that the "
        "coordinator's hub counted, from the first round on, for one client; a round is two exchanges, the vector and "
        "the shares that unmask it, while the paper reckons with three. Appendix B is given with the constants that "
        f"its O() leaves out (two sums a leaf or bin, one where only Hessians are asked for) and {WORD} bytes each. "
        "What is beyond them: a bin for missing values, wider numbers where sums need them, and what every message "
        "takes for keys, signatures and shares, which weighs where messages are short.",
        "",
        f"Rounds are {'' if holds else '**not** '}those of Appendix B in every run, and exchanges twice as many.",
    ]
    fewest = min(line.clients for line in lines)
    for trees in sorted({line.trees for line in lines if line.clients == fewest}):
        text += ["", f"## T = {trees}, {fewest} clients", "", *_table(lines, trees, fewest)]
    text += ["", "## By the number of clients", "", *_by_clients(lines)]
    text += ["", "## Accuracy by the number of clients, one record each (figure 20b)", "", *_accuracy(points)]
    return "\n".join([*text, "", "![Figure 20](figure20.png)"]) + "\n", holds


def _table(lines: Sequence[Measured], trees: int, clients: int) -> list[str]:
    head = (
        "method", "rounds: ours", "App. B", "numbers: ours", "App. B", "sent kB", "App. B kB", "ratio", "received kB",
        "set-up kB", "client CPU s", "server CPU s",
    )  # fmt: skip
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for line in lines:
        if (line.trees, line.clients) != (trees, clients):
            continue
        formula = formula_for(line)
        expected = formula.numbers * WORD
        ratio = f"{line.sent / expected:.2f}"
        cells = (
            PRESETS[line.method].title, f"{line.rounds:,}", f"{formula.rounds:,}", f"{line.numbers:,}",
            f"{formula.numbers:,}", f"{line.sent / 1000:,.0f}", f"{expected / 1000:,.0f}", ratio,
            f"{line.received / 1000:,.0f}", f"{(line.set_up_sent + line.set_up_received) / 1000:,.0f}",
            f"{line.cpu_client:.2f}", f"{line.cpu_server:.2f}",
        )  # fmt: skip
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def _by_clients(lines: Sequence[Measured]) -> list[str]:
    trees = min(line.trees for line in lines)
    counts = sorted({line.clients for line in lines})
    found = {(line.method, line.clients): line for line in lines if line.trees == trees}
    text = [f"T = {trees}. kB that one client sends, kB that it receives, its processor seconds, the server's.", ""]
    text.append("| method | " + " | ".join(f"{count} clients" for count in counts) + " |")
    text.append("|---" * (1 + len(counts)) + "|")
    for method in dict.fromkeys(line.method for line in lines):
        cells = []
        for count in counts:
            line = found[method, count]
            both = f"{line.sent / 1000:,.0f}, {line.received / 1000:,.0f}"
            cells.append(f"{both}, {line.cpu_client:.2f}, {line.cpu_server:.2f}")
        text.append(f"| {PRESETS[method].title} | " + " | ".join(cells) + " |")
    return text


def _accuracy(points: Points) -> list[str]:
    text = ["Test AUC, mean ± standard deviation; 30 features, depth 4, epsilon 1.", ""]
    text += ["| clients | " + " | ".join(LINES) + " |", "|---" * (1 + len(LINES)) + "|"]
    for records in RECORDS:
        cells = [mean_and_deviation(points[line, records]) for line in LINES]
        text.append(f"| {records:,} | " + " | ".join(cells) + " |")
    return text


def draw(lines: Sequence[Measured], points: Points, path: Path) -> None:
    """Write the PNG: five panels."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(17, 9.5))
    fewest, least = min(line.clients for line in lines), min(line.trees for line in lines)
    by_trees = [line for line in lines if line.clients == fewest]
    by_clients = [line for line in lines if line.trees == least]
    _panel(axes[0][0], by_trees, "trees", lambda line: line.sent / 1000, "kB sent by a client")
    _dashed(axes[0][0], by_trees)
    _panel(axes[0][1], by_clients, "clients", lambda line: line.sent / 1000, "kB sent by a client")
    _panel(axes[0][2], by_trees, "trees", lambda line: line.rounds, "rounds")
    _panel(axes[1][0], by_trees, "trees", lambda line: line.cpu_client, "processor seconds of a client")
    _panel(axes[1][1], by_trees, "trees", lambda line: line.cpu_server, "processor seconds of the server")
    for index, line in enumerate(LINES):
        means = [np.mean(points[line, records]) for records in RECORDS]
        axes[1][2].semilogx(RECORDS, means, marker="osD^v<>P"[index], markersize=4, label=line)
    axes[1][2].set_xlabel("clients of one record each")
    axes[1][2].set_ylabel("test AUC")
    axes[1][2].legend(fontsize=7)
    axes[0][0].set_title("communication (dashed: Appendix B)")
    handles, labels = axes[0][2].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=5, fontsize=8)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(path, dpi=80)
    plt.close(figure)


def _panel(axis: Any, lines: Sequence[Measured], x: str, value: Any, label: str) -> None:
    for index, method in enumerate(dict.fromkeys(line.method for line in lines)):
        own = [line for line in lines if line.method == method]
        axis.loglog(
            [getattr(line, x) for line in own], [value(line) for line in own], color=_colour(index), markersize=4,
            marker="osD^v<>PX*phd"[index], linewidth=1, label=PRESETS[method].title,
        )  # fmt: skip
    places = sorted({getattr(line, x) for line in lines})
    axis.set_xticks(places, [str(place) for place in places])
    axis.set_xticks([], minor=True)
    axis.set_xlabel(x)
    axis.set_ylabel(label)
    axis.grid(alpha=0.3)


def _colour(index: int) -> tuple[float, float, float, float]:
    import matplotlib

    # Pairs of a dark and a light shade: the dark ones first.
    red, green, blue, alpha = matplotlib.colormaps["tab20"]((2 * index) % 20 + (index >= 10))
    return red, green, blue, alpha


def _dashed(axis: Any, lines: Sequence[Measured]) -> None:
    for index, method in enumerate(dict.fromkeys(line.method for line in lines)):
        own = [line for line in lines if line.method == method]
        numbers = [formula_for(line).numbers * WORD / 1000 for line in own]
        axis.plot([line.trees for line in own], numbers, color=_colour(index), linestyle="--", linewidth=0.8)
