"""The six sites of `hedgerow demo` beside what they could do else: each alone, other federations, and pooled rows.

Every seed draws who is tested on, three in ten people, and all noise and trees anew; all methods test on the same rows.

- Each site alone, and pooled: XGBoost with depth, rate and rounds chosen on a fifth of the people, then trained on all.
- Flower's quickstart for XGBoost (`examples/quickstart-xgboost`): in three rounds two sites each add one tree of depth
  8 at a rate of .1 to a common model, whose base is the first site's. Computed here by XGBoost from the margins of the
  common model, so the trees are those of the example. "All sites" has all six in each round, and the rounds chosen as
  above: what the same protocol can do.
- NVFlare's histogram recipe (`examples/advanced/xgboost/fedxgb/job.py`): XGBoost's histograms summed over sites, so
  trees are those of pooled rows with the recipe's settings: depth 8, rate .1, 100 rounds, stopped after two without
  gain on a fifth of the people. Computed on pooled rows, at whose quantiles it cuts; XGBoost merges sites' sketches.
- DP-EBM (interpret) on pooled rows, with the bounds of the plan. It promises for rows: for a person with two rows it
  has half the mu, on two rows of each person. It takes no missing value: the one column that has any keeps them below
  its bounds, which are an eighth wider for it.

Only Hedgerow and DP-EBM are private.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments import harness
from experiments.datasets import Table
from experiments.demo_units import protecting
from experiments.harness import ScoreBook, mean_and_error
from experiments.rivals import dp_ebm
from hedgerow.app.evaluation import evaluate
from hedgerow.data.datasets import split_by_unit, write_rand_hie
from hedgerow.data.sources import read_records
from hedgerow.local.training import train, without_secure_aggregation
from hedgerow.losses.kinds import roc_auc
from hedgerow.plan.plan import Plan, parse_plan
from hedgerow.privacy.accountants import epsilon_of_mu, mu_of
from hedgerow.privacy.noise import SeededNoise

Floats = NDArray[np.float64]
EPSILONS = (0.5, 1.0, 3.0)
ROWS_OF_PERSON = 2
"""Of one person that are used, as the plan of the demonstration has it."""
DEPTHS, RATES, MAX_ROUNDS, PATIENCE = (2, 3, 4, 6), (0.05, 0.1), 300, 20
RECIPE: dict[str, Any] = {"max_depth": 8, "eta": 0.1, "objective": "binary:logistic", "tree_method": "hist"}
FLOWER_ROUNDS, FLOWER_SITES, FLOWER_MOST_ROUNDS = 3, 2, 60
NVFLARE_ROUNDS, NVFLARE_PATIENCE = 100, 2


@dataclass(frozen=True, eq=False)
class Rows:
    """What methods that are not ours see.

    Attributes:
        x: float64 [n, m], categories as numbers.
        y: int64 [n], 0 and 1.
        person: [n].
    """

    x: Floats
    y: NDArray[np.int64]
    person: NDArray[Any]

    def only(self, chosen: NDArray[np.bool_]) -> Rows:
        return Rows(self.x[chosen], self.y[chosen], self.person[chosen])

    def halves(self, seed: int) -> tuple[Rows, Rows]:
        """Four fifths of the people to train on, and a fifth to choose by."""
        chosen = split_by_unit(self.person, test_fraction=0.2, seed=1000 + seed)
        return self.only(~chosen), self.only(chosen)


@dataclass(frozen=True, eq=False)
class Demo:
    """The six sites of one seed.

    Attributes:
        plan: of the demonstration.
        paths: each site's file.
        test_path: the file of the rows that are tested on.
        sites, test: the same as `Rows`.
        table: training rows of all sites, then the tested ones.
    """

    plan: Plan
    paths: Mapping[str, Path]
    test_path: Path
    sites: Mapping[str, Rows]
    test: Rows
    table: Table

    @property
    def pooled(self) -> Rows:
        own = list(self.sites.values())
        return Rows(*(np.concatenate([getattr(rows, name) for rows in own]) for name in ("x", "y", "person")))


def main(argv: list[str]) -> int:
    """Print the mean test AUC of each, with its standard error over the seeds."""
    counts = {"seeds": (10, "seeds")}
    options = harness.arguments("beside", __doc__, data="unused", out="single scores", **counts).parse_args(argv)
    book = ScoreBook(options.out / "beside.csv", ("beside.py", "rivals.py"))
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seeds):

            @functools.cache
            def demo(seed: int = seed) -> Demo:
                return _demo(Path(folder) / str(seed), seed)

            for name, method in METHODS.items():
                score = book.score((name, seed), functools.partial(_score, method, demo, seed))
                found.setdefault(name, []).append(score)
    rows = [[name, mean_and_error(scores)] for name, scores in found.items()]
    print(f"Test AUC on the people who were left out, mean and standard error of {options.seeds} seeds, delta 1e-5\n")
    print("\n".join(harness.table(["", "AUC"], rows)))
    return 0


def _score(method: Callable[[Demo, int], Floats | float], demo: Callable[[], Demo], seed: int) -> float:
    found = method(demo(), seed)
    return found if isinstance(found, float) else roc_auc(demo().test.y, found)


def _demo(folder: Path, seed: int) -> Demo:
    files = write_rand_hie(folder, seed=seed)
    plan = parse_plan(files.plan.read_text(encoding="utf-8"))
    names = [feature.name for feature in plan.features]

    def rows_of(path: Path) -> Rows:
        frame = pd.read_csv(path)
        return Rows(frame[names].to_numpy(float), frame["visited"].to_numpy(np.int64), frame["zper"].to_numpy())

    sites, test = {name: rows_of(path) for name, path in files.train.items()}, rows_of(files.test)
    every = np.concatenate([*(rows.x for rows in sites.values()), test.x])
    features = tuple(plan.to_dict()["features"])
    columns = []
    for feature, column in zip(features, every.T, strict=True):
        if feature["type"] == "categorical":
            places = {float(word): place for place, word in enumerate(feature["categories"])}
            columns.append(np.array([places.get(value, -1) for value in column], dtype=np.int16))
        else:
            columns.append(np.clip(column, feature["min"], feature["max"]).astype(np.float32))
    label = np.concatenate([*(rows.y for rows in sites.values()), test.y])
    section = {"name": "visited", "type": "binary", "classes": ["0", "1"]}
    return Demo(plan, files.train, files.test, sites, test, Table("demo", features, tuple(columns), label, section))


# XGBoost --------------------------------------------------------------------------------------------------------------


def _tuned(rows: Rows, test: Rows, seed: int) -> Floats:
    """XGBoost with depth, rate and rounds chosen on a fifth of the people, then trained on all of them."""
    import xgboost

    fitted, chosen = rows.halves(seed)
    best: tuple[float, dict[str, Any], int] = (-1.0, {}, 0)
    for depth in DEPTHS:
        for rate in RATES:
            own = {**RECIPE, "max_depth": depth, "eta": rate, "eval_metric": "auc", "seed": seed, "nthread": 1}
            booster = xgboost.train(
                own, _matrix(fitted), MAX_ROUNDS, evals=[(_matrix(chosen), "chosen")], verbose_eval=False,
                early_stopping_rounds=PATIENCE,
            )  # fmt: skip
            best = max(best, (booster.best_score, own, booster.best_iteration + 1), key=lambda one: one[0])
    return _predicted(xgboost.train(best[1], _matrix(rows), best[2]), test)


def _matrix(rows: Rows, **more: Any) -> Any:
    import xgboost

    return xgboost.DMatrix(rows.x, rows.y, **more)


def _predicted(booster: Any, rows: Rows) -> Floats:
    return np.asarray(booster.predict(_matrix(rows)), dtype=np.float64)


def _alone(site: str, demo: Demo, seed: int) -> Floats:
    return _tuned(demo.sites[site], demo.test, seed)


def _pooled(demo: Demo, seed: int) -> Floats:
    return _tuned(demo.pooled, demo.test, seed)


def _nvflare(demo: Demo, seed: int) -> Floats:
    import xgboost

    fitted, chosen = demo.pooled.halves(seed)
    own = {**RECIPE, "eval_metric": "auc", "nthread": 1}
    booster = xgboost.train(
        own, _matrix(fitted), NVFLARE_ROUNDS, evals=[(_matrix(chosen), "chosen")], verbose_eval=False,
        early_stopping_rounds=NVFLARE_PATIENCE,
    )  # fmt: skip
    # As the recipe has it, what is saved has the rounds that were waited for as well.
    return _predicted(booster, demo.test)


def _bagged(sites: list[Rows], taken: Iterable[list[int]], tested: list[Rows]) -> Iterable[list[Floats]]:
    """Margins of the rows that are tested on, after each round of Flower's bagging."""
    import xgboost

    base: float | None = None
    margins = [np.zeros(len(rows.y)) for rows in sites]
    found = [np.zeros(len(rows.y)) for rows in tested]
    for chosen in taken:
        trees = []
        for number in chosen:
            own = float(np.log(sites[number].y.mean() / (1 - sites[number].y.mean())))
            # In the first round each site boosts from its own base; the common model keeps that of the first.
            start = np.full(len(sites[number].y), own) if base is None else base + margins[number]
            matrix = _matrix(sites[number], base_margin=start)
            trees.append((xgboost.train({**RECIPE, "nthread": 1}, matrix, 1), own))
        base = trees[0][1] if base is None else base
        for tree, _ in trees:
            for rows, margin in (*zip(sites, margins, strict=True), *zip(tested, found, strict=True)):
                margin += tree.predict(_matrix(rows, base_margin=np.zeros(len(rows.y))), output_margin=True)
        yield [base + margin for margin in found]


def _flower(demo: Demo, seed: int) -> Floats:
    random, sites = np.random.default_rng(seed), list(demo.sites.values())
    taken = [random.permutation(len(sites))[:FLOWER_SITES].tolist() for _ in range(FLOWER_ROUNDS)]
    *_, (margins,) = _bagged(sites, taken, [demo.test])
    return margins


def _flower_at_best(demo: Demo, seed: int) -> Floats:
    parts = [rows.halves(seed) for rows in demo.sites.values()]
    every = list(range(len(parts)))
    fitted, chosen = [own for own, _ in parts], [own for _, own in parts]
    labels = np.concatenate([rows.y for rows in chosen])
    best: tuple[float, Floats] = (-1.0, np.zeros(0))
    for *others, margins in _bagged(fitted, [every] * FLOWER_MOST_ROUNDS, [*chosen, demo.test]):
        area = roc_auc(labels, np.concatenate(others))
        best = max(best, (area, margins), key=lambda one: one[0])
    return best[1]


# With privacy ---------------------------------------------------------------------------------------------------------


def _hedgerow(epsilon: float, rows: int, demo: Demo, seed: int) -> float:
    own, sites = protecting(demo.plan, rows, demo.paths)
    own = replace(own, privacy=replace(own.privacy, epsilon=epsilon)).with_joint_structure().with_structure_seed(seed)
    # Masks change no tree, and take most of the time.
    plan = without_secure_aggregation(own)
    model = train(plan, sites, noise=SeededNoise(seed, exact=False))
    test = list(read_records(demo.test_path, demo.plan))
    return float(evaluate(model, test)["auc"])


def _dp_ebm(epsilon: float, rows: int, demo: Demo, seed: int) -> Floats:
    delta, n_test = demo.plan.privacy.delta, len(demo.test.y)
    used = np.ones(len(demo.table.label), dtype=bool)
    if rows:
        # Group privacy of Gaussian differential privacy: so many rows of a person have so many times the mu of one.
        epsilon = epsilon_of_mu(mu_of(epsilon, delta) / rows, delta)
        person = demo.pooled.person
        order = np.random.default_rng(seed).permutation(len(person))
        before = pd.Series(person[order]).groupby(person[order]).cumcount().to_numpy()
        used[order[before >= rows]] = False
    features, columns = list(demo.table.features), list(demo.table.columns)
    for place, column in enumerate(columns):
        is_missing = np.isnan(column)
        if is_missing.any():
            own = features[place]
            below = own["min"] - (own["max"] - own["min"]) / 8
            features[place], columns[place] = {**own, "min": below}, np.where(is_missing, below, column)
    table = replace(
        demo.table,
        features=tuple(features),
        columns=tuple(column[used] for column in columns),
        label=demo.table.label[used],
    )
    training = np.arange(len(table.label)) < len(table.label) - n_test
    return dp_ebm(table, training, epsilon, delta, seed)


METHODS: Mapping[str, Callable[[Demo, int], Floats | float]] = {
    **{f"site {number} alone, XGBoost": functools.partial(_alone, f"site-{number}") for number in range(1, 7)},
    "Flower's quickstart for XGBoost": _flower,
    "Flower's bagging, all sites, best round": _flower_at_best,
    "NVFlare's histogram recipe": _nvflare,
    "XGBoost on pooled rows": _pooled,
    **{
        f"{name}, {unit}, epsilon {epsilon:g}": functools.partial(method, epsilon, rows)
        for unit, rows in (("for a person", ROWS_OF_PERSON), ("for a row", 0))
        for name, method in (("Hedgerow", _hedgerow), ("DP-EBM on pooled rows", _dp_ebm))
        for epsilon in EPSILONS
    },
    "Hedgerow, without noise": functools.partial(_hedgerow, math.inf, ROWS_OF_PERSON),
}  # fmt: skip
