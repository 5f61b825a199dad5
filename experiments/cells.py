"""Cells of the papers' tables: runs that are written down one by one, so that a table can be taken up again.

A line of the CSV is one run: what ran, on which data set, at which epsilon, with which seed, its test AUC, and what it
took (seconds, exchanges, numbers per node as the nodes answered them). The digest of the plan is part of a line's key:
a run is repeated when its settings have changed, and only then.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow.experiments.datasets import data_folder, load
from hedgerow.experiments.harness import Prepared, plan_for, progress, stratified_split, train_and_score

FIELDS = ("method", "data", "epsilon", "seed", "plan", "auc", "seconds", "exchanges", "numbers_per_node")
SPLITS = 5
"""Different 70/30 splits; further runs repeat them with other trees and other noise (section 6.1)."""


@dataclass(frozen=True)
class Method:
    """A column of a table.

    Attributes:
        name: as the papers have it.
        model: the plan's [model].
        accountant: the plan's accountant.
        trees_per_feature: if not 0, so many trees for each feature.
    """

    name: str
    model: Mapping[str, Any]
    accountant: str = "rdp"
    trees_per_feature: int = 0


@dataclass(frozen=True)
class Cell:
    """One method on one data set at one epsilon."""

    method: Method
    data: str
    epsilon: float


Scores = dict[tuple[str, str, float], list[float]]


def run_cells(cells: Iterable[Cell], repeats: int, results: Path, folder: str | None, title: str) -> Scores:
    """Run what the CSV does not hold yet; the AUCs of every cell by (method, data set, epsilon).

    Raises:
        DataError: a data set is not there.
    """
    known = _read(results)
    tasks = sorted(((cell, seed) for cell in cells for seed in range(repeats)), key=lambda task: task[0].data)
    steps = iter(progress(len(tasks), title))
    scores: Scores = {}
    prepared: Prepared | None = None
    for cell, seed in tasks:
        if prepared is None or prepared.table.name != cell.data:
            prepared = Prepared(load(cell.data, data_folder(folder)))
        line = _run(cell, seed, prepared, known, results)
        scores.setdefault((cell.method.name, cell.data, cell.epsilon), []).append(float(line["auc"]))
        next(steps, None)
    return scores


def _run(
    cell: Cell, seed: int, prepared: Prepared, known: dict[tuple[str, str, int], dict[str, str]], results: Path
) -> dict[str, str]:
    train = stratified_split(prepared.table.label, seed % SPLITS)
    model = {**cell.method.model, "structure_seed": seed}
    if cell.method.trees_per_feature:
        model["n_trees"] = cell.method.trees_per_feature * len(prepared.table.features)
    plan = plan_for(prepared.table, cell.epsilon, int(train.sum()), model, accountant=cell.method.accountant)
    key = (cell.method.name, plan.digest, seed)
    if key in known:
        return known[key]
    start = time.perf_counter()
    auc, outcome = train_and_score(prepared, plan, train, seed)
    releases = list(outcome.ledger)
    values = (
        cell.method.name, cell.data, f"{cell.epsilon:g}", str(seed), plan.digest, f"{auc:.6f}",
        f"{time.perf_counter() - start:.3f}", str(len(releases)), str(sum(release.length for release in releases)),
    )  # fmt: skip
    line = dict(zip(FIELDS, values, strict=True))
    known[key] = line
    _append(results, line)
    return line


def _read(results: Path) -> dict[tuple[str, str, int], dict[str, str]]:
    if not results.exists():
        return {}
    with results.open(newline="", encoding="utf-8") as stream:
        # A run that was interrupted while writing leaves a line without all of its fields.
        lines = [line for line in csv.DictReader(stream) if all(line.get(field) for field in FIELDS)]
    return {(line["method"], line["plan"], int(line["seed"])): line for line in lines}


def _append(results: Path, line: Mapping[str, str]) -> None:
    results.parent.mkdir(parents=True, exist_ok=True)
    is_new = not results.exists()
    with results.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, FIELDS)
        if is_new:
            writer.writeheader()
        writer.writerow(line)


def average_ranks(scores: Scores, methods: list[str], epsilon: float) -> dict[str, float]:
    """Rank of each method by its mean AUC, 1 for the highest, averaged over the data sets; ties share their ranks."""
    data = sorted({name for _, name, at in scores if at == epsilon})
    total = dict.fromkeys(methods, 0.0)
    for name in data:
        means = {method: float(np.mean(scores[method, name, epsilon])) for method in methods}
        for method, mean in means.items():
            above = sum(other > mean for other in means.values())
            equal = sum(other == mean for other in means.values())
            total[method] += above + (equal + 1) / 2
    return {method: total[method] / len(data) for method in methods}


def mean_and_deviation(values: list[float]) -> str:
    """For a table: the mean, and the standard deviation over runs."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return f"{np.mean(values):.4f} ± {deviation:.4f}"
