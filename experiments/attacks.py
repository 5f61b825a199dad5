"""What adversaries get out of runs, by epsilon, beside what ledgers allow; and out of unprotected federated trees.

Membership, reconstruction, one unit's signal and attributes (`hedgerow attack`), for the default of each kind of label
and for each method, over made-up rows of which a twentieth lie far out and have a wrong label. Then a whole small table
from releases and from the model file alone, beside XGBoost's trees and histograms as Flower and NVFlare send them
without protection: the setting of TimberStrike (Di Gennaro et al. 2025, arXiv 2506.07605). Then planted faults.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xgboost
from numpy.typing import NDArray
from scipy.stats import binom

from experiments.harness import arguments, picture, table, verdict
from hedgerow.attacks.inference import Products, measure_found, reconstruct
from hedgerow.data.binned import SiteData
from hedgerow.data.site_data import SiteRows, site_rows_from_records
from hedgerow.data.units import Records
from hedgerow.local.attacks import AttackReport, Target, collect_products, run_attacks
from hedgerow.local.simulation import simulate_records
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SystemNoise
from hedgerow.trees.binning import build_grid

Floats = NDArray[np.float64]
EPSILONS = (0.5, 1.0, 3.0, 10.0, math.inf)
LABELS: Mapping[str, Mapping[str, Any]] = {
    "two classes": {"type": "binary", "classes": ["0", "1"]},
    "four classes": {"type": "multiclass", "classes": list("0123")},
    "numbers": {"type": "regression", "min": -6, "max": 6},
    "counts": {"type": "count", "max": 40},
    "times": {"type": "survival", "event": "seen", "intervals": [1, 2, 4, 8, 16]},
}
OTHERS = ("adassp", "s-gbdt", "dp-xgboost")
FEATURES = [{"name": f"x{i}", "type": "numeric", "min": -3, "max": 3} for i in range(4)] + [
    {"name": "c", "type": "categorical", "categories": list("uvw")}
]
OUTLIERS = 0.05
N_MODELS = (32, 12, 6)
TREES = "two classes"
SMALL = (5, 4, 8)
"""Values of the three columns of the table that is reconstructed whole."""
N_SMALL, N_REPEATS, DELTA = 60, 3, 1e-6
TREES_SENT, DEPTH_SENT = 100, 4


def plan_of(epsilon: float, n_records: int, label: Mapping[str, Any], algorithm: str = "boosting") -> Plan:
    """A plan that says nothing of its model but the algorithm."""
    return Plan.from_dict(
        {
            "version": 1,
            "name": "attacked",
            "label": {"name": "y", **label},
            "features": FEATURES,
            "privacy": {"epsilon": epsilon, "delta": DELTA, "n_records": n_records},
            "model": {"algorithm": algorithm, "structure_seed": 7},
        }
    )


def plant(plan: Plan, n: int, random: np.random.Generator) -> tuple[SiteRows, NDArray[np.intp]]:
    """Made-up rows, and which of them were moved far out and given the opposite label."""
    rows = site_rows_from_records([simulate_records(plan, n, seed=1)], plan)
    chosen = np.sort(random.permutation(n)[: round(OUTLIERS * n)])
    codes, labels = rows.data.codes.copy(), rows.data.labels.copy()
    for row, feature in enumerate(build_grid(plan).features):
        if not feature.is_categorical:
            codes[row, chosen] = random.choice([0, feature.n_cells - 1], len(chosen))
    low, high = plan.label.kind.encoded_range(plan.label)
    labels[chosen] = low + high - labels[chosen]
    return SiteRows(SiteData(codes, labels, rows.data.all_places()), None), chosen


@dataclass(frozen=True)
class Case:
    """One line of the first table; those that were made are kept, so that a run that was broken off goes on.

    Attributes:
        areas: of attacks by scores and by releases, each on all rows and on outliers; and their errors.
        allowed, right_allowed: what the ledger allows of areas, and of cells.
        found, by_file: shares of rows that are found again.
        most: the largest share of the claimed mu² that one row spends.
        noise: its variance in units of the ledger's, over all entries.
        right: the share of cells that are told.
    """

    name: str
    epsilon: float
    areas: list[float]
    errors: list[float]
    allowed: float
    found: float
    by_file: float
    most: float
    noise: float
    right: float
    right_allowed: float
    findings: list[str]

    @classmethod
    def of(cls, name: str, epsilon: float, attacked: AttackReport) -> Case:
        """What was found."""
        signal, cells, figures = attacked.signal, attacked.attributes, [one.found.auc for one in attacked.membership]
        shares = {one.source: one.share for one in attacked.reconstruction}
        # Of all entries of all kinds together: an error is one over the root of half their number.
        known = [(kind.noise, kind.noise_error**-2) for kind in signal.kinds if not math.isnan(kind.noise)]
        return cls(
            name, epsilon, [one.value for one in figures], [one.error for one in figures], attacked.bound.auc,
            shares["releases"], shares.get("model file", math.nan), max(signal.largest, signal.planted),
            sum(one * size for one, size in known) / sum(size for _, size in known) if known else math.nan,
            sum(one.right.value * one.n_cells for one in cells) / max(1, sum(one.n_cells for one in cells)),
            attacked.bound.accuracy, list(attacked.findings),
        )  # fmt: skip

    @property
    def best(self) -> float:
        """The area of the better attack on outliers."""
        return max(self.areas[1], self.areas[3])

    @property
    def beyond(self) -> float:
        """By how many errors an area is above what the ledger allows, at most."""
        return max((area - self.allowed) / error for area, error in zip(self.areas, self.errors, strict=True))

    def line(self) -> list[str]:
        """As text."""
        areas = [f"{area:.3f} ± {error:.3f}" for area, error in zip(self.areas, self.errors, strict=True)]
        return [
            self.name, _epsilon(self.epsilon), *areas, f"{self.allowed:.3f}", _two(self.found), _two(self.by_file),
            f"{self.most:.3f}", _two(self.noise), _two(self.right), _two(self.right_allowed),
        ]  # fmt: skip


HEAD = (
    "run", "epsilon", "scores, all", "outliers", "releases, all", "outliers", "allowed", "found", "by file",
    "most of mu²", "noise", "cells", "allowed",
)  # fmt: skip


def _two(share: float) -> str:
    return "-" if math.isnan(share) else f"{share:.2f}"


def _epsilon(epsilon: float) -> str:
    return "no noise" if math.isinf(epsilon) else f"{epsilon:g}"


def _attack(target: Target, random: np.random.Generator, outliers: list[int] | None) -> AttackReport:
    return run_attacks(target, random, outliers=outliers, n_models=N_MODELS)


def attack_all(n_rows: int, methods: Sequence[str], kept: Path) -> Iterator[Case]:
    """Each kind of label by its default, and the other methods on two classes, at each epsilon."""
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    made = {(case.name, case.epsilon): case for case in (Case(**json.loads(line)) for line in lines)}
    runs = [(name, label, "boosting") for name, label in LABELS.items()]
    runs += [(name, LABELS[TREES], name) for name in OTHERS]
    runs = [run for run in runs if run[2] in methods]
    for (name, label, algorithm), epsilon in itertools.product(runs, EPSILONS):
        if (name, epsilon) not in made:
            plan, random = plan_of(epsilon, n_rows, label, algorithm), np.random.default_rng(1)
            rows, outliers = plant(plan, n_rows, random)
            case = Case.of(name, epsilon, _attack(Target(plan, rows), random, outliers.tolist()))
            with kept.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(asdict(case)) + "\n")
            made[name, epsilon] = case
        yield made[name, epsilon]


# A whole table --------------------------------------------------------------------------------------------------------


class SmallTable:
    """Sixty records of 320 kinds."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.kinds = np.array(list(itertools.product(*map(range, SMALL), (0, 1))))
        shares = [random.dirichlet(np.full(size, 1.5)) for size in SMALL]
        chances = math.prod(own[self.kinds[:, column]] for column, own in enumerate(shares))
        label = 0.2 + 0.6 * (self.kinds[:, 0] % 2)
        self._chances = chances * np.where(self.kinds[:, 3] == 1, label, 1 - label)
        self._random = random
        self.truth = self.draw()

    def draw(self) -> NDArray[np.int64]:
        """How many records of each kind such a table has."""
        return self._random.multinomial(N_SMALL, self._chances / self._chances.sum()).astype(np.int64)

    def by_chance(self) -> tuple[float, float]:
        """What who knows the population and nothing else finds: the table that shares most records with others of it.

        A k-th record of a kind is worth the chance that there are so many.
        """
        worth = binom.sf(np.arange(N_SMALL)[:, None], N_SMALL, self._chances / self._chances.sum())
        best = np.argsort(-worth, axis=None)[:N_SMALL] % len(self.kinds)
        return measure_found(np.bincount(best, minlength=len(self.kinds)), self.truth)

    def attacked(self, epsilon: float) -> dict[str, tuple[float, float]]:
        """What is found from all releases of a run and from its model file."""
        letters = ("a", "b"), (list("abcde"), list("wxyz"))
        features: list[dict[str, Any]] = [
            {"name": name, "type": "categorical", "categories": own} for name, own in zip(*letters, strict=True)
        ]
        features.append({"name": "c", "type": "numeric", "min": 0, "max": SMALL[2] - 1, "integer": True})
        table_ = plan_of(epsilon, N_SMALL, LABELS[TREES]).to_dict() | {"features": features}
        plan = Plan.from_dict(table_)
        first, second, third = self.kinds[:, :3].T
        columns = (first.astype(np.int32), second.astype(np.int32), third.astype(np.float32))
        records = Records(columns, self.kinds[:, 3].astype(np.int32), None, len(self.kinds))
        target = Target(plan, site_rows_from_records([records], plan))
        steps, outcome = target.run(np.split(np.repeat(np.arange(len(self.kinds)), self.truth), N_SMALL))
        has_weights = outcome.ensemble.leaf_weights is not None
        sources = collect_products(target, steps, target.select_rows(target.units), has_weights=has_weights)
        return {name: measure_found(reconstruct(own, N_SMALL), self.truth) for name, own in sources.items()}

    def sent_in_the_clear(self) -> dict[str, tuple[float, float]]:
        """What is found from XGBoost's trees, with the weights of their leaves, and from its histograms."""
        labels, cells = self.kinds[:, 3].astype(np.float64), self.kinds[:, :3].astype(np.float64)
        rows = xgboost.DMatrix(cells, label=labels, weight=self.truth.astype(np.float64))
        every = xgboost.DMatrix(cells)
        settings = {"max_depth": DEPTH_SENT, "objective": "binary:logistic", "base_score": 0.5, "nthread": 1}
        booster = xgboost.train(settings, rows, TREES_SENT)
        found = {"trees": Products(len(cells)), "histograms": Products(len(cells))}
        nodes = booster.predict(every, pred_leaf=True).reshape(len(cells), -1).astype(int)
        frame = booster.trees_to_dataframe()
        for tree in range(TREES_SENT):
            margin = (
                booster.predict(every, iteration_range=(0, tree), output_margin=True) if tree else np.zeros(len(cells))
            )
            chance = 1 / (1 + np.exp(-margin.astype(np.float64)))
            gradient, hessian = chance - labels, chance * (1 - chance)
            own = frame[frame.Tree == tree].set_index("Node")
            vectors = np.where(nodes[:, tree, None] == np.array(own.index), hessian[:, None], 0)
            leaves = (own.Feature == "Leaf").to_numpy()
            weights = own.Cover.to_numpy(dtype=np.float64)[leaves]
            found["trees"].add(vectors[:, leaves], weights, _PRINTED)
            # A leaf's value is -eta G / (H + lambda), eta .3 and lambda 1.
            values = own.Gain.to_numpy(dtype=np.float64)[leaves]
            vectors = np.where(nodes[:, tree, None] == np.array(own.index), gradient[:, None], 0)
            found["trees"].add(vectors[:, leaves], -values / 0.3 * (weights + 1), _PRINTED)
            for node in _paths(own, nodes[:, tree]):
                for column, size in enumerate(SMALL):
                    inside = node[:, None] * (cells[:, column, None] == np.arange(size))
                    for statistic in (gradient, hessian):
                        sums = inside * statistic[:, None]
                        found["histograms"].add(sums, self.truth @ sums, _PRINTED)
        return {name: measure_found(reconstruct(own, N_SMALL), self.truth) for name, own in found.items()}


_PRINTED = 1e-4
"""What a sum in single precision is known to."""


def _paths(own: Any, leaves: NDArray[np.int_]) -> list[NDArray[np.bool_]]:
    """Which kinds are in each node that is split."""
    ids = {name: node for node, name in own.ID.items()}
    parents = {ids[child]: node for node, row in own.iterrows() for child in (row.Yes, row.No) if child in ids}
    inside: dict[int, set[int]] = {}
    for leaf in set(leaves.tolist()):
        node = leaf
        while node in parents:
            node = parents[node]
            inside.setdefault(node, set()).add(leaf)
    return [np.isin(leaves, list(below)) for below in inside.values()]


# Planted faults -------------------------------------------------------------------------------------------------------


class HalfNoise(SystemNoise):
    """Noise of half the size."""

    def sample(self, sigma: int, length: int, purpose: str) -> NDArray[np.int64]:
        return super().sample(max(1, sigma // 2), length, purpose)


class CountsFirstTwice(Target):
    """The first record of a site is counted twice."""

    def hold(self, rows: SiteData) -> SiteData:
        return rows.only(np.append(np.arange(rows.n_records), 0))


def plant_faults(n_rows: int) -> dict[str, AttackReport]:
    """What the attacks say of runs with a fault."""
    plan = plan_of(1.0, n_rows, LABELS[TREES])
    rows = plant(plan, n_rows, np.random.default_rng(1))[0]
    faults = {
        "half the noise": Target(plan, rows, lambda: HalfNoise(os.urandom)),
        "one record counted twice": CountsFirstTwice(plan, rows),
    }
    return {name: _attack(target, np.random.default_rng(1), None) for name, target in faults.items()}


def draw(cases: Sequence[Case], shares: Mapping[tuple[str, float], tuple[float, float]], path: Path) -> None:
    """Areas of the attack by releases on all rows, and shares of a small table, by epsilon."""
    with picture(path, 1, 2, (9.5, 3.8), layout="constrained") as (_, axes):
        left, right = axes[0]
        places = range(len(EPSILONS))
        for name in dict.fromkeys(case.name for case in cases):
            own = [case for case in cases if case.name == name]
            areas, errors = [case.areas[2] for case in own], [case.errors[2] for case in own]
            left.errorbar(places, areas, yerr=errors, marker="o", markersize=3, linewidth=1, label=name)
        allowed = [case.allowed for case in cases if case.name == TREES]
        left.plot(places, allowed, color="black", linestyle="--", label="allowed (mu)")
        left.set_title("Who was in the data, by all releases (AUC ± standard error)", fontsize=9)
        for source in ("releases", "model file"):
            right.plot(places, [shares[source, epsilon][0] for epsilon in EPSILONS], marker="o", label=source)
        right.axhline(shares["population", 0.0][0], color="black", linestyle="--", label="population only")
        right.set_title(f"Share of {N_SMALL} records of {math.prod(SMALL) * 2} kinds found again", fontsize=9)
        for axis in (left, right):
            axis.set_xticks(places, [_epsilon(epsilon) for epsilon in EPSILONS])
            axis.set_xlabel("epsilon")
            axis.legend(fontsize=7)


def main(argv: list[str]) -> int:
    """What adversaries get out of runs of each kind, by epsilon, beside what ledgers allow."""
    parser = arguments(
        "attacks",
        __doc__,
        data="unused: rows are made here",
        out="the picture, and what was made so far",
        rows=(240, "of each table"),
    )
    every = ("boosting", *OTHERS)
    parser.add_argument("--methods", nargs="+", choices=every, default=every, help="only these (all)")
    options = parser.parse_args(argv)
    began = time.monotonic()
    print(f"{options.rows:,} rows; of these each is in a model's data by a coin. ± are standard errors.\n", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    cases = []
    for case in attack_all(options.rows, options.methods, options.out / f"attacks-{options.rows}.jsonl"):
        cases.append(case)
        print(" | ".join(case.line()), *(f"! {finding}" for finding in case.findings), flush=True)
    print("", *table(HEAD, (case.line() for case in cases)), sep="\n")

    tables = [SmallTable(seed) for seed in range(N_REPEATS)]
    shares: dict[tuple[str, float], tuple[float, float]] = {}

    def keep(name: str, epsilon: float, found: Sequence[tuple[float, float]]) -> None:
        shares[name, epsilon] = tuple(np.nanmean(found, axis=0))

    for epsilon in EPSILONS:
        found = [own.attacked(epsilon) for own in tables]
        for source in found[0]:
            keep(source, epsilon, [one[source] for one in found])
    clear = [own.sent_in_the_clear() for own in tables]
    for source in clear[0]:
        keep(source, math.inf, [one[source] for one in clear])
    keep("population", 0.0, [own.by_chance() for own in tables])
    names = {
        "releases": "Hedgerow, all releases (a site)", "model file": "Hedgerow, the model file alone",
        "trees": "XGBoost's trees and weights (Flower's bagging)", "histograms": "XGBoost's histograms (NVFlare)",
        "population": "who knows the population only",
    }  # fmt: skip
    print(f"\nA whole table: {N_SMALL} records of {math.prod(SMALL) * 2} kinds, means of {N_REPEATS} tables\n")
    lines = [
        [names[source], "-" if source == "population" else _epsilon(epsilon), f"{share:.2f}", f"{unique:.2f}"]
        for (source, epsilon), (share, unique) in shares.items()
    ]
    print(*table(("from", "epsilon", "records", "unique ones"), lines), sep="\n")

    print("\nPlanted faults\n")
    faults = plant_faults(options.rows)
    for name, one in faults.items():
        print(f"{name}: {'; '.join(one.findings) or 'not found'}")

    draw(cases, shares, options.out / "attacks.png")
    print(f"\n{time.monotonic() - began:.0f} s; picture in {options.out / 'attacks.png'}\n")
    return verdict(_gates(cases, shares, faults))


def _gates(
    cases: Sequence[Case], shares: Mapping[tuple[str, float], tuple[float, float]], faults: Mapping[str, AttackReport]
) -> dict[str, bool]:
    """What must hold, with what was found."""
    exact = next(case for case in cases if case.name == TREES and math.isinf(case.epsilon))
    least = min(shares[source, math.inf][0] for source in ("releases", "model file"))
    ones = [case for case in cases if case.epsilon == 1]
    beyond, where = max((case.beyond, case.name) for case in ones)
    furthest, which = max((max(case.areas), case.name) for case in ones)
    most = max(case.most for case in cases)
    return {
        f"without noise outliers are told: AUC {exact.best:.3f}, above .9": exact.best > 0.9,
        f"without noise a table is found from releases and from the file: {least:.2f}, at least .95": least >= 0.95,
        f"at epsilon 1 no AUC is above the bound by three errors: by {beyond:+.1f} at most ({where})": beyond <= 3,
        f"at epsilon 1 the furthest AUC from chance is {furthest:.3f} ({which})": furthest < 1,
        f"no unit spends more than the claimed mu²: at most {most:.4f} of it": most <= 1 + 1e-9,
        "nothing else contradicts a ledger": not any(case.findings for case in cases),
        **{f"found: {name}": bool(one.findings) for name, one in faults.items()},
    }  # fmt: skip
