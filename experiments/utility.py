"""Every method on every task in one run: a table per task, average ranks, and what is asked of the default.

Random splits, the same for all methods; delta = 1 / n_train; bounds and categories as `experiments/schemas` declares
them; one setting of each method for all tasks, and nothing is tuned on a cell's data; noise is seeded. DP-XGBoost's
noise is pure, and the LDP baseline's is each record's own, so that the same epsilon promises more. XGBoost sees the
rows without privacy: 100 trees of depth 6 at rate 0.1. Other packages (`experiments.rivals`) are run as they are; one
that is not installed is skipped with a line that says how to get it. Runs are kept in a CSV and taken up again; the
whole takes hours, `--tasks`, `--methods`, `--epsilons` and `--splits` choose a part. The exit code is 1 when something
that is asked of the default is missed.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import d2_tweedie_score, r2_score

from experiments import datasets, harness
from experiments.datasets import BINARY_NAMES, SYNTHETIC, Table, load, make
from experiments.harness import Line, Lines, Prepared, algorithm_plan, error_of, plan_for
from experiments.lumberjack import PRESET, plug_in
from experiments.rivals import RIVALS, by_xgboost
from hedgerow.errors import PlanError
from hedgerow.losses.kinds import roc_auc
from hedgerow.plan.plan import Plan
from hedgerow.server.release import Outcome
from hedgerow.training.presets import PRESETS, Preset, apply_preset

Floats = NDArray[np.float64]
Load = Callable[[str | None], Table]
"""Of the folder with the data sets."""

# Methods --------------------------------------------------------------------------------------------------------------

Predict = Callable[[Prepared, NDArray[np.bool_], float, int], Floats]
"""Predictions of the rows that were not trained on, from the rows, the mask of those to train on, epsilon, and a seed.

Of two classes any numbers that rank rows, [n]; of several their chances, [n, n_classes]; of a number or a count what is
expected, in its own unit, [n]. A PlanError says that the method is not for such labels."""
DEFAULT, XGBOOST = "Hedgerow's default", "XGBoost, not private"


def _preset(preset: Preset, table: Table, epsilon: float, n_train: int, seed: int) -> Plan:
    if preset is PRESET:
        plug_in()
    return apply_preset(preset, plan_for(table, epsilon, n_train, {"structure_seed": seed}))


def _dp_xgboost(table: Table, epsilon: float, n_train: int, seed: int) -> Plan:
    own = {"model": {"structure_seed": seed}}
    return algorithm_plan(table, epsilon, n_train, "dp-xgboost", own, accountant="pure")


def _trained(
    make: Callable[..., Plan], prepared: Prepared, train: NDArray[np.bool_], epsilon: float, seed: int,
    by: Callable[[Prepared, Plan, NDArray[np.bool_], int], Outcome] = harness.trained,
) -> Floats:  # fmt: skip
    plan = make(prepared.table, epsilon, int(train.sum()), seed)
    outcome = by(prepared, plan, train, seed)
    ensemble, scores = outcome.ensemble, harness.scores_of(outcome, harness.rows_of(prepared, plan, ~train))
    if plan.label.kind.is_number:
        return ensemble.link.values(scores[0], plan.label)
    return scores[0] if len(scores) == 1 else ensemble.link.probabilities(scores)


def _rival(name: str, prepared: Prepared, train: NDArray[np.bool_], epsilon: float, seed: int) -> Floats:
    if prepared.table.kind not in RIVALS[name].labels:
        raise PlanError(f"{name} is not for labels of type {prepared.table.kind}.")
    return RIVALS[name].predict(prepared.table, train, epsilon, 1 / int(train.sum()), seed)


def _xgboost(prepared: Prepared, train: NDArray[np.bool_], _: float, seed: int) -> Floats:
    table = prepared.table
    return by_xgboost(table, table.matrix[train], table.label[train], table.matrix[~train], random_state=seed)


OURS: Mapping[str, Predict] = {
    DEFAULT: partial(_trained, partial(_preset, PRESETS["hedgerow"])),
    **{
        preset.title: partial(_trained, partial(_preset, preset))
        for preset in (*PRESETS.values(), PRESET)
        if preset.private and preset.name != "hedgerow"
    },
    "DP-XGBoost, our parameters": partial(_trained, _dp_xgboost),
}
METHODS: dict[str, Predict] = {**OURS, **{name: partial(_rival, name) for name in RIVALS}, XGBOOST: _xgboost}

KEYS: dict[str, str] = {}
"""Of methods from outside, what their scores are kept under: they are scores of that plan and that code alone."""

# Tasks ----------------------------------------------------------------------------------------------------------------

RARE = 100
"""Classes of fewer records: their AUC on a few test records is chance, yet counts as much as any in the mean."""


class Kind(NamedTuple):
    """What tasks of one kind have in common.

    Attributes:
        epsilons: of its tables.
        share: of the rows that is trained on.
        measures: what is measured. The first is what methods are ranked by; larger is better.
        scores: of the table, the mask of its test rows, and their predictions: a number for each measure.
    """

    epsilons: tuple[float, ...]
    share: float
    measures: str
    scores: Callable[[Table, NDArray[np.bool_], Floats], list[float]]


def _of_classes(table: Table, test: NDArray[np.bool_], chances: Floats) -> list[float]:
    areas = np.array([roc_auc(table.label[test] == number, own) for number, own in enumerate(chances.T)])
    return [float(np.nanmean(areas)), float(np.nanmean(areas[np.bincount(table.label) >= RARE]))]


KINDS = {
    "binary": Kind((0.1, 0.5, 1.0), 0.7, "AUC", lambda table, test, found: [roc_auc(table.label[test], found)]),
    "multiclass": Kind((0.5, 1.0, 3.0), 0.7, f"mean AUC of a class against the rest (of classes of {RARE} records)",
                       _of_classes),
    "regression": Kind((0.17, 0.54, 1.0, 3.0), 0.8, "R2",
                       lambda table, test, found: [float(r2_score(table.label[test], found))]),
    "count": Kind((0.17, 0.54, 1.0, 3.0), 0.8, "share of the Poisson deviance that is explained",
                  lambda table, test, found: [float(d2_tweedie_score(table.label[test], found, power=1))]),
}  # fmt: skip


def _labelled(name: str, label: str, *without: str) -> Load:
    return lambda folder: datasets.with_label(load(name, folder), f"{name}, {label}", label, without)


def _made(maker: Callable[..., Table], *settings: Any) -> Load:
    return lambda _: maker(*settings)


def _few(load_it: Load, n_records: int = 2_000) -> Load:
    return lambda folder: datasets.few(load_it(folder), n_records)


def _counted(load_it: Load, largest: int) -> Load:
    def loaded(folder: str | None) -> Table:
        table = load_it(folder)
        return replace(table, label_section={"name": table.label_section["name"], "type": "count", "max": largest})

    return loaded


GROUPS: Mapping[str, Mapping[str, Load]] = {
    "two-classes": {name: partial(load, name) for name in BINARY_NAMES},
    "numbers": {
        **{name: partial(load, name) for name in ("abalone", "bike", "diamonds")},
        "age": _labelled("adult", "age"),
        "hours": _labelled("adult", "hours-per-week"),
        "limit": _labelled("credit2", "LIMIT_BAL"),
        "balance": _labelled("bank", "balance"),
    },
    "several-classes": {
        "marital": _labelled("adult", "marital-status", "relationship"),
        "occupation": _labelled("adult", "occupation"),
        "education": _labelled("adult", "education", "education-num"),
        "bank-marital": _labelled("bank", "marital"),
        "bank-education": _labelled("bank", "education"),
        "job": _labelled("bank", "job"),
        **{f"made-{number}-classes": _made(datasets.make_classes, number) for number in (3, 14, 26)},
    },
    "counts": {
        "rentals": _counted(partial(load, "bike"), 977),
        "rings": _counted(partial(load, "abalone"), 30),
        "calls": _counted(_labelled("bank", "campaign"), 60),
        "visits": _counted(partial(load, "visits"), 121),
    },
    "two-classes-made": {name: _made(make, name) for name in SYNTHETIC},
    "two-classes-small": {
        **{f"{name}-small": _few(partial(load, name)) for name in BINARY_NAMES},
        **{f"{name}-small": _few(_made(make, name)) for name in ("two_features", "product", "fifty_features", "mixed")},
    },
    "numbers-made": {
        **{f"{name}-number": _made(datasets.make_numbers, name) for name in SYNTHETIC},
        "fares": _made(datasets.skewed_numbers),
    },
}  # fmt: skip
TASKS = {name: load_it for group in GROUPS.values() for name, load_it in group.items()}


@functools.lru_cache(maxsize=2)
def _prepared(task: str, folder: str | None) -> Prepared:
    return Prepared(TASKS[task](folder))


# What is asked of the default -----------------------------------------------------------------------------------------

FLOORS = harness.settings_of("floors")
"""By task and epsilon, what the default's mean has to reach, but for one standard error."""
MAX_BEHIND, MIN_R2 = 0.01, -0.05
"""Of numbers: how far the default may be below another private method; what no method of the package may fall below."""

# Runs -----------------------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """One method on one split of a task; epsilon is infinite for a method that is not private."""

    task: str
    method: str
    epsilon: float
    split: int


Found = Mapping[tuple[str, str, float], NDArray[np.float64]]
"""By task, method and epsilon: float64 [splits, measures]; not there where a method is not for the task."""


def _run(run: Run, folder: str | None, codes: Mapping[str, str]) -> Line:
    prepared = _prepared(run.task, folder)
    table, kind = prepared.table, KINDS[prepared.table.kind]
    train = harness.stratified_split(table.label, run.split, kind.share)
    try:
        found = METHODS[run.method](prepared, train, run.epsilon, run.split)
        scores = " ".join(map(repr, kind.scores(table, ~train, found)))
    except PlanError:
        scores = "none"
    return {**{name: str(value) for name, value in run._asdict().items()}, "code": codes[run.method], "scores": scores}


def main(argv: list[str], *, asks: bool = True) -> int:
    """Run what is not in the CSV, print the tables, the ranks, and what is asked; 1 when some of it is missed.

    Args:
        asks: whether something is asked of the default.
    """
    parser = harness.arguments(
        "utility", __doc__, out="the scores of single runs", splits=(5, "random splits per cell"),
        first_split=(60, "number of the first split"), jobs=(1, "processes"),
    )  # fmt: skip
    parser.add_argument("--tasks", nargs="+", default=list(GROUPS), choices=[*GROUPS, *TASKS], metavar="TASK",
                        help=f"tasks, or all of {', '.join(GROUPS)}")  # fmt: skip
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS), metavar="METHOD")
    parser.add_argument("--epsilons", nargs="+", type=float, help="in place of each kind's own")
    options = parser.parse_args(argv)
    tasks = list(dict.fromkeys(task for name in options.tasks for task in GROUPS.get(name, [name])))
    splits = range(options.first_split, options.first_split + options.splits)
    absent = {name for name, rival in RIVALS.items() if rival.absence()}
    for name in absent.intersection(options.methods):
        print(f"skipped: {name}: {RIVALS[name].absence()}\n")
    # A change of ours does not change what another package predicts.
    others = harness.code_digest("rivals.py", "_marginals.py", own=False)
    own = harness.code_digest("utility.py", "rivals.py")
    is_own = {*OURS, *(name for name, rival in RIVALS.items() if rival.is_own)}
    codes = {method: own if method in is_own else others for method in METHODS}
    codes |= {method: own + key for method, key in KEYS.items()}
    fields = {name: partial(lambda name, run: str(getattr(run, name)), name) for name in Run._fields}
    book = Lines(options.out / "utility_scores.csv")
    found: dict[tuple[str, str, float], Floats] = {}
    for task in tasks:
        table = _prepared(task, options.data).table
        epsilons = options.epsilons or KINDS[table.kind].epsilons
        wanted = [
            Run(task, method, epsilon, split)
            for method in options.methods
            if method not in absent
            for epsilon in ([math.inf] if method == XGBOOST else epsilons)
            for split in splits
        ]
        lines = book.fill(wanted, fields, partial(_run, folder=options.data, codes=codes), task, jobs=options.jobs,
                          accepts=lambda line: line["code"] == codes.get(line["method"]))  # fmt: skip
        scores = defaultdict(list)
        for run, line in zip(wanted, lines, strict=True):
            for epsilon in epsilons if run.method == XGBOOST else [run.epsilon]:
                if line["scores"] != "none":
                    scores[task, run.method, epsilon].append([float(score) for score in line["scores"].split()])
        found |= {cell: np.array(own) for cell, own in scores.items()}
        print("\n".join(_table(table, task, epsilons, found, options.splits)), flush=True)
    ranks = _ranks(found)
    print("# Average rank among the private methods, by the mean of a cell\n")
    rows = sorted((float(np.mean(own)), method, len(own)) for method, own in ranks.items())
    print("\n".join(harness.table(["method", "rank", "cells"], ([m, f"{r:.2f}", str(n)] for r, m, n in rows))))
    print(f"\n{len(splits)} splits a cell from {splits[0]} on\n")
    return harness.verdict(_gates(found, ranks)) if asks else 0


def _table(table: Table, task: str, epsilons: Sequence[float], found: Found, n_splits: int) -> list[str]:
    kind, rows = KINDS[table.kind], []
    for method in METHODS:
        cells = [_cell(found.get((task, method, epsilon))) for epsilon in epsilons]
        if any(cells):
            rows.append([method, *cells])
    title = f"# {task}: {table.name}, {table.n_records:,} records, {len(table.features)} features"
    about = f"{kind.measures}, mean ± standard error of {n_splits} splits"
    return [title, "", about, "", *harness.table(["epsilon", *(f"{epsilon:g}" for epsilon in epsilons)], rows), ""]


def _cell(scores: Floats | None) -> str:
    if scores is None:
        return ""
    first, *others = scores.mean(axis=0)
    return " ".join([f"{first:.4f} ± {error_of(scores[:, 0]):.4f}", *(f"({other:.4f})" for other in others)])


def _ranks(found: Found) -> dict[str, list[int]]:
    """By method, how many private methods are better by 1 at most in a cell, for all its cells."""
    cells: dict[tuple[str, float], dict[str, float]] = defaultdict(dict)
    ranks: dict[str, list[int]] = defaultdict(list)
    for (task, method, epsilon), scores in found.items():
        if method != XGBOOST:
            cells[task, epsilon][method] = float(scores[:, 0].mean())
    for means in cells.values():
        for method, mean in means.items():
            ranks[method].append(1 + sum(other > mean for other in means.values()))
    return ranks


def _gates(found: Found, ranks: Mapping[str, Sequence[int]]) -> dict[str, bool]:
    """What is asked of the default, as far as it was run."""
    gates, behind = {}, []
    numbers = {*GROUPS["numbers"], *GROUPS["numbers-made"]}
    low: dict[str, float] = {}
    for (task, method, epsilon), scores in found.items():
        mean, error, floor = scores[:, 0].mean(), error_of(scores[:, 0]), FLOORS.get(task, {}).get(f"{epsilon:g}")
        if method == DEFAULT and floor is not None:
            reached = bool(mean + error >= floor)
            gates[f"{task} at epsilon {epsilon:g}: {mean:.4f} ± {error:.4f}, asked {floor:g}"] = reached
        if task in numbers:
            own = found.get((task, DEFAULT, epsilon))
            if method != XGBOOST and own is not None and own[:, 0].mean() < mean - MAX_BEHIND:
                behind.append(f"{task} at {epsilon:g} below {method} by {mean - own[:, 0].mean():.4f}")
            if method in OURS and mean < MIN_R2:
                low[method] = min(float(mean), low.get(method, 0.0))
    least = [f"{method} {mean:.2f}" for method, mean in low.items()]
    if numbers.intersection(task for task, _, _ in found):
        gates["; ".join([f"of numbers no private method is ahead by more than {MAX_BEHIND}", *behind])] = not behind
        gates["; ".join([f"no method of the package has an R2 below {MIN_R2}", *least])] = not low
    if DEFAULT in ranks:
        n_cells, first = len(ranks[DEFAULT]), ranks[DEFAULT].count(1)
        average = f"{np.mean(ranks[DEFAULT]):.2f}, first in {first} of {n_cells} cells"
        gates[f"the default's average rank is 1: {average}"] = first == n_cells
    return gates
