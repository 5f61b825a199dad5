"""Cells of the papers' tables and figures: runs that are written down one by one, so that any can be taken up again.

A line of the CSV is one run: what ran, on which data set, how it was prepared, at which epsilon, with which seed; its
test AUC, and what it took. The digest of the plan is part of a line's key: a run is repeated when its settings have
changed, and only then. A digest of the code that decides results stands in each line as well; lines of other code are
used, and the report says how many there are, unless `--fresh` asks for new ones.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import multiprocessing
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.datasets import AUTHORS, data_folder, load
from experiments.harness import Prepared, plan_for, progress, stratified_split, train_and_score
from hedgerow.plan.plan import Plan

FIELDS = (
    "method", "data", "preparation", "epsilon", "seed", "plan", "code", "auc", "seconds", "cpu_seconds", "exchanges",
    "numbers_per_node",
)  # fmt: skip
SPLITS = 5
"""Different 70/30 splits; further runs repeat them with other trees and other noise (section 6.1)."""
CODE = ("trees", "training", "privacy", "client/node.py", "experiments/datasets.py", "experiments/harness.py")
"""What decides a result."""

Line = dict[str, str]


@dataclass(frozen=True, eq=False)
class Method:
    """A row of a table, or a line of a figure.

    Attributes:
        name: as the report has it; with the settings of `model` it identifies a run.
        model: the plan's [model].
        privacy: fields of the plan's [privacy]; the accountant is "rdp", as in the paper, if it does not say.
        trees_per_feature: if not 0, so many trees for each feature.
    """

    name: str
    model: Mapping[str, Any]
    privacy: Mapping[str, Any] = field(default_factory=dict)
    trees_per_feature: int = 0


@dataclass(frozen=True, eq=False)
class Cell:
    """One method on one data set at one epsilon.

    Attributes:
        x: where it stands on a figure's axis; the key of a row otherwise unused.
        part: of the figure, where the same method stands at the same place of two axes.
    """

    method: Method
    data: str
    epsilon: float
    preparation: str = AUTHORS
    x: float = 0.0
    part: str = ""

    @property
    def key(self) -> tuple[str, str, float, float]:
        return self.method.name + self.part, self.data, self.epsilon, self.x


@dataclass(frozen=True)
class Store:
    """Where results are kept.

    Attributes:
        path: the CSV file.
        folder: the folder with the data sets, or None for the default.
        jobs: processes.
        fresh: whether runs of other code are repeated.
    """

    path: Path
    folder: str | None = None
    jobs: int = 1
    fresh: bool = False


Key = tuple[str, str, float, float]
Results = dict[Key, list[Line]]


def run_cells(cells: Iterable[Cell], repeats: int, store: Store, title: str) -> Results:
    """Run what the CSV does not hold yet; the lines of every cell, by its key.

    Raises:
        DataError: a data set is not there.
    """
    known = _read(store)
    tasks = [(cell, seed, store.folder) for cell in cells for seed in range(repeats)]
    # Runs of one data set follow each other, so that a process seldom loads another one.
    tasks.sort(key=lambda task: (task[0].data, task[0].preparation, task[1]))
    digests = {id(task): _identity(task[0], task[1], _prepared(task[0].data, task[0].preparation, store.folder))
               for task in tasks}  # fmt: skip
    missing = [task for task in tasks if digests[id(task)] not in known]
    steps = iter(progress(len(missing), title))
    for line in _run_all(missing, store.jobs):
        known[line["method"], line["plan"], int(line["seed"])] = line
        _append(store.path, line)
        next(steps, None)
    results: Results = {}
    for task in tasks:
        results.setdefault(task[0].key, []).append(known[digests[id(task)]])
    return results


Task = tuple[Cell, int, str | None]


def _run_all(tasks: list[Task], jobs: int) -> Iterator[Line]:
    if jobs == 1:
        yield from map(_run, tasks)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(_run, tasks, chunksize=4)


@functools.lru_cache(maxsize=2)
def _prepared(data: str, preparation: str, folder: str | None) -> Prepared:
    return Prepared(load(data, data_folder(folder), preparation))


def plan_of(cell: Cell, seed: int, prepared: Prepared) -> tuple[Plan, np.ndarray[Any, np.dtype[np.bool_]]]:
    """The plan of one run, and True for the rows that it trains on."""
    train = stratified_split(prepared.table.label, seed % SPLITS)
    model = {**cell.method.model, "structure_seed": seed}
    if cell.method.trees_per_feature:
        model["n_trees"] = cell.method.trees_per_feature * len(prepared.table.features)
    privacy = {"accountant": "rdp", **cell.method.privacy}
    return plan_for(prepared.table, cell.epsilon, int(train.sum()), model, **privacy), train


def _identity(cell: Cell, seed: int, prepared: Prepared) -> tuple[str, str, int]:
    return cell.method.name, plan_of(cell, seed, prepared)[0].digest, seed


def _run(task: Task) -> Line:
    cell, seed, folder = task
    prepared = _prepared(cell.data, cell.preparation, folder)
    plan, train = plan_of(cell, seed, prepared)
    prepared.codes_for(plan)
    start, cpu_start = time.perf_counter(), time.process_time()
    auc, outcome = train_and_score(prepared, plan, train, seed)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    releases = list(outcome.ledger)
    values = (
        cell.method.name, cell.data, cell.preparation, f"{cell.epsilon:g}", str(seed), plan.digest, code_digest(),
        f"{auc:.6f}", f"{seconds:.3f}", f"{cpu_seconds:.3f}", str(len(releases)),
        str(sum(release.length for release in releases)),
    )  # fmt: skip
    return dict(zip(FIELDS, values, strict=True))


@functools.cache
def code_digest() -> str:
    """Twelve hexadecimal digits over the code that decides results."""
    root = Path(__file__).resolve().parent.parent
    files = [file for part in CODE for file in ([root / part] if part.endswith(".py") else (root / part).glob("*.py"))]
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def _read(store: Store) -> dict[tuple[str, str, int], Line]:
    if not store.path.exists():
        return {}
    with store.path.open(newline="", encoding="utf-8") as stream:
        # A run that was interrupted while writing leaves a line without all of its fields.
        lines = [line for line in csv.DictReader(stream) if all(line.get(field) for field in FIELDS)]
    if store.fresh:
        lines = [line for line in lines if line["code"] == code_digest()]
    return {(line["method"], line["plan"], int(line["seed"])): line for line in lines}


def _append(results: Path, line: Line) -> None:
    results.parent.mkdir(parents=True, exist_ok=True)
    is_new = not results.exists()
    with results.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, FIELDS)
        if is_new:
            writer.writeheader()
        writer.writerow(line)


def aucs(lines: list[Line]) -> list[float]:
    """The test AUCs of a cell."""
    return [float(line["auc"]) for line in lines]


def average_ranks(results: Results, methods: list[str], epsilon: float) -> dict[str, float]:
    """Rank of each method by its mean AUC, 1 for the highest, averaged over the data sets; ties share their ranks."""
    data = sorted({name for _, name, at, _ in results if at == epsilon})
    total = dict.fromkeys(methods, 0.0)
    for name in data:
        means = {method: float(np.mean(aucs(results[method, name, epsilon, 0.0]))) for method in methods}
        for method, mean in means.items():
            above = sum(other > mean for other in means.values())
            equal = sum(other == mean for other in means.values())
            total[method] += above + (equal + 1) / 2
    return {method: total[method] / len(data) for method in methods}


def mean_and_deviation(values: list[float]) -> str:
    """For a table: the mean, and the standard deviation over runs."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return f"{np.mean(values):.4f} ± {deviation:.4f}"
