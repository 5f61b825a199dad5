"""DP-XGBoost (Grislain & Gonzalvez 2021): its table on Adult and Abalone, leaks closed and as published.

Mean over random 70/30 splits, seeded noise; epsilon is pure (delta = 0) but in the row that says so. Published figures
are those of the paper's Figure 4. "as published" is our simulation of the published algorithm with its leaks, which
keeps no promise. The exit code is 1 when Adult's error exceeds the paper's.

With --leaf-clip instead: the preset dp-boost as it is and without its geometric leaf clipping, split by split with the
same noise, and the mean difference with its standard error over splits, which share rows, so it is somewhat too small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments import harness
from experiments.central import Central, Published, published_scores
from experiments.datasets import Table, generated_classes, load
from experiments.harness import Prepared, ScoreBook, labels_of, stratified_split, table
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.plan.plan import Plan
from hedgerow.training.presets import apply_preset, preset_named

EPSILONS = (1.0, 2.0, 4.0, 8.0)
VARIANTS: dict[str, Mapping[str, Any]] = {
    "leaks closed": {},
    "no choice from exact sums (noisy histograms)": {"splits": "histogram", "split_share": 0.7},
    "a tenth of the records per release": {"subsampling_ratio": 0.1},
    "gradients filtered, as published": {"gradient": "filter"},
    "a count weighs as much as a gradient": {"count_weight": 1.0},
    "no sketch": {"sketch_rounds": 0, "sketch_share": 0.0},
    "15 trees of rate 0.5, 55 % for splits": {"model": {"n_trees": 15, "learning_rate": 0.5}, "split_share": 0.55},
}
SETS = ("adult", "abalone", "generated")
CLIP_EPSILONS = (0.5, 1.0, 2.0)
WITH_DELTA = "leaks closed, delta = 1e-5"
AS_PUBLISHED = "as published (leaks, no promise)"
Row = list[float]
Matrix = NDArray[np.float64]


def main(argv: list[str]) -> int:
    """Print the tables, write the figure; the exit code is 1 when Adult's error exceeds the paper's."""
    parser = harness.arguments(
        "dpxgboost", __doc__, out="figures, report and single runs",
        splits=(3, "random splits per cell"), first_split=(0, "number of the first split"),
    )  # fmt: skip
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--leaf-clip", action="store_true", help="only geometric leaf clipping, in dp-boost")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    book = ScoreBook(options.out / "dpxgboost_scores.csv", ("dpxgboost.py", "central.py"))
    seeds = range(options.first_split, options.first_split + options.splits)
    tables = [generated_classes(20_000) if name == "generated" else load(name, options.data) for name in options.sets]
    if options.leaf_clip:
        print("\n".join([_clipping(Prepared(table), seeds, book) for table in tables]))
        return 0
    parts, rows = [], {}
    for one in tables:
        rows[one.name] = _rows(Prepared(one), seeds, book)
        parts.append(_shown(one, rows[one.name]))
        print(parts[-1], flush=True)
    (options.out / "dpxgboost.md").write_text("\n".join(parts) + "\n", encoding="utf-8")
    _draw(rows, options.out / "dpxgboost.png")
    if "adult" not in rows:
        return 0
    is_good = all(own <= paper for own, paper in zip(rows["adult"]["leaks closed"], _paper("adult"), strict=True))
    print(f"Adult's error is at most the paper's at epsilon {', '.join(f'{e:g}' for e in EPSILONS)}: {is_good}")
    return 0 if is_good else 1


def _paper(name: str) -> Row:
    """Test error in percent, or RMSE, by epsilon; empty for made-up data, for the paper's are others."""
    return [value for value, _ in harness.published("dp-xgboost").get(name, {}).values()]


def _rows(prepared: Prepared, seeds: range, book: ScoreBook) -> dict[str, Row]:
    """Mean errors by variant and epsilon; ablations on Adult only."""
    is_adult = prepared.table.name == "adult"
    variants: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
    variants |= {name: (VARIANTS[name], {}) for name in list(VARIANTS)[: None if is_adult else 2]}
    if is_adult:
        variants[WITH_DELTA] = {}, {"accountant": "gdp", "delta": 1e-5}
    found = {
        name: [float(_errors(prepared, epsilon, own, seeds, book, **promise).mean()) for epsilon in EPSILONS]
        for name, (own, promise) in variants.items()
    }
    return {**found, AS_PUBLISHED: [_published(prepared.table, epsilon, seeds, book) for epsilon in EPSILONS]}


def _clipping(prepared: Prepared, seeds: range, book: ScoreBook) -> str:
    """The table of dp-boost with and without geometric leaf clipping on one set."""
    preset = apply_preset(preset_named("dp-boost"), harness.plan_for(prepared.table, 1.0, 1000, {})).to_dict()
    own, rows = {**preset["dp_xgboost"], "model": preset["model"]}, []
    for epsilon in CLIP_EPSILONS:
        with_it, without = (
            _errors(prepared, epsilon, {**own, "geometric_leaf_clip": is_clipped}, seeds, book)
            for is_clipped in (True, False)
        )
        differences = with_it - without
        error = differences.std(ddof=1) / math.sqrt(len(seeds))
        cells = [f"{found.mean():.3f} ± {found.std(ddof=1):.3f}" for found in (with_it, without)]
        rows.append([f"{epsilon:g}", *cells, f"{differences.mean():+.3f} ± {error:.3f}"])
    measure = f"{_measure_of(prepared.table)}, {len(seeds)} splits, mean ± standard deviation"
    head = ("epsilon", "geometric leaf clipping", "without", "with - without ± its standard error")
    return "\n".join([f"# dp-boost on {prepared.table.name}: {measure}", "", *table(head, rows), ""])


def _errors(
    prepared: Prepared, epsilon: float, own: Mapping[str, Any], seeds: range, book: ScoreBook, **privacy: Any
) -> Matrix:
    """Errors in percent by split; RMSE in units of the label for a regression."""

    def plan(table: Table, n_train: int, _: int) -> Plan:
        promise = {"accountant": "pure", **privacy}
        return harness.algorithm_plan(table, epsilon, n_train, "dp-xgboost", own, **promise)

    return harness.over_splits(prepared, plan, seeds, _measure, book)


def _published(table: Table, epsilon: float, seeds: range, book: ScoreBook) -> float:
    labels = labels_of(table) / SCORE_UNIT if table.is_regression else labels_of(table)
    y = np.asarray(labels if table.is_regression else 2.0 * labels - 1, dtype=np.float64)
    data, errors = Central(table), []
    for seed in seeds:
        train = stratified_split(table.label, seed)

        def made(train: NDArray[np.bool_] = train, seed: int = seed) -> float:
            scores = published_scores(data, train, y, Published(epsilon), seed)
            return _measure(table, labels[~train], scores[~train])

        errors.append(book.score((table.name, AS_PUBLISHED, epsilon, seed), made))
    return float(np.mean(errors))


def _measure(table: Table, labels: NDArray[Any], scores: Matrix) -> float:
    if table.is_regression:
        half = (table.label_section["max"] - table.label_section["min"]) / 2
        return float(np.sqrt(np.mean((np.clip(scores, -1, 1) - labels) ** 2)) * half)
    return float(100 * np.mean((scores > 0) != (labels > 0)))


def _measure_of(table: Table) -> str:
    return "test RMSE" if table.is_regression else "test error, %"


def _shown(one: Table, rows: Mapping[str, Row]) -> str:
    lines = [["the paper", *(f"{value:g}" for value in _paper(one.name))]] if _paper(one.name) else []
    lines += [[name, *(f"{value:.2f}" for value in values)] for name, values in rows.items()]
    title = f"# DP-XGBoost on {one.name}: {_measure_of(one)}"
    return "\n".join([title, "", *table(["epsilon", *(f"{epsilon:g}" for epsilon in EPSILONS)], lines), ""])


def _draw(rows: Mapping[str, Mapping[str, Row]], path: Path) -> None:
    known = (*list(VARIANTS)[:2], WITH_DELTA, AS_PUBLISHED)
    with harness.picture(path, 1, len(rows), (5 * len(rows), 4.8), constrained_layout=True) as (figure, axes):
        for axis, (name, variants) in zip(axes[0], rows.items(), strict=True):
            if _paper(name):
                axis.plot(EPSILONS, _paper(name), marker="s", color="black", linestyle="--", label="the paper")
            for number, label in enumerate(known):
                if label in variants:
                    axis.plot(EPSILONS, variants[label], marker="o", color=f"C{number}", label=label)
            measure = "RMSE" if name == "abalone" else "test error, %"
            axis.set(title=name, xlabel="epsilon", ylabel=measure, xscale="log")
            axis.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
            axis.minorticks_off()
            axis.grid(alpha=0.3)
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
