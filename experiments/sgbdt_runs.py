"""Seeded runs of S-GBDT for the experiments: settings, folds, static noise, streams, the price of tuning.

What is searched stands in `settings/s_gbdt.toml`, what its paper reports (arXiv 2309.12041v1, section VIII) in
`published/others.csv`.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import r2_score

from experiments.datasets import Table
from experiments.harness import HERE, Prepared, ScoreBook, algorithm_plan, progress, rows_of
from hedgerow.client.node import Node, SeededSampling
from hedgerow.data.site_data import SiteData
from hedgerow.local.training import ArrivingNode
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.methods.registry import program_for, resolve
from hedgerow.methods.s_gbdt.plan import SGbdt
from hedgerow.methods.s_gbdt.settings import resolve_s_gbdt
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.privacy.rdp import ORDERS, paper_divergence
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.server.release import Outcome, PlainAggregation, run_program
from hedgerow.trees.leaf_sums import LeafSums

N_FOLDS = 5
EPSILONS = {"abalone": (0.17, 0.54, 2.0, 10.0), "adult": (0.15, 0.54, 2.0)}
PAPER_EPSILONS = {"abalone": (0.17, 0.54), "adult": (0.15, 0.54)}
DPBOOST_EPSILONS = {"abalone": (0.1, 0.54, 2.0, 10.0), "adult": (0.12,)}
DPBOOST_WAYS = {
    "abalone": ((True, True), (False, True), (True, False), (False, False)),
    "adult": ((True, True), (False, True)),
}
"""Gradient filtering, and geometric leaf clipping."""
DPBOOST_SIZES = tuple(product(((1, 1.0), (5, 0.3), (20, 0.1), (50, 0.1)), ((2, 5.0), (4, 5.0), (4, 100.0)), (0.1, 0.5)))
"""Trees with their learning rate; depth with lambda; the initial score's share of epsilon. Geometric leaf clipping
lowers the noise only where 2 (1 - eta)^t is below 1 / (1 + lambda): in the later of 50 trees."""
N_SEARCHES = {"abalone": 3, "adult": 1}
"""Runs of each setting on each fold that the search looks at."""
FIRST_SEARCH = 10_000
"""Seeds of a search; the chosen setting is run again with others."""


@dataclass(frozen=True)
class Variant:
    """One setting of S-GBDT.

    Attributes:
        name: for tables.
        model, section: fields of [model] and [s_gbdt].
        is_static: static leaf noise in place of dynamic; it needs exact quotients, so it exists centrally only.
    """

    name: str
    model: Mapping[str, Any]
    section: Mapping[str, Any]
    is_static: bool = False

    def with_section(self, name: str, **section: Any) -> Variant:
        """The same with other fields of [s_gbdt]."""
        return Variant(name, self.model, {**self.section, **section}, self.is_static)


def as_paper(n_trees: int, depth: int, rate: float, ridge: float, **section: Any) -> Variant:
    """The paper's method: trees, depth, learning rate, lambda, and fields of [s_gbdt]."""
    model = {"n_trees": n_trees, "max_depth": depth, "learning_rate": rate, "leaf_ridge": ridge}
    model |= {"leaf_clip": 1e5, "noise_ridge": 0.0}
    return Variant("s-gbdt", model, {"individual_filter": True, "subsampling_ratio": 0.1, **section})


def _of_role(name: str, role: str) -> tuple[Variant, ...]:
    chosen = (number for number, entry in enumerate(_SETTINGS[name]) if entry.get("role") == role)
    return tuple(GRID[name][number] for number in chosen)


_SETTINGS = tomllib.loads((HERE / "settings" / "s_gbdt.toml").read_text(encoding="utf-8"))
GRID: dict[str, tuple[Variant, ...]] = {
    name: tuple(Variant(entry["name"], entry["model"], entry["section"]) for entry in entries)
    for name, entries in _SETTINGS.items()
}
FILTERED = {name: _of_role(name, "filtered")[0] for name in GRID}
DEEP = _of_role("abalone", "deep")
(LARGEST_RIDGE,) = _of_role("abalone", "largest-ridge")
STREAMED = {
    "abalone": (
        FILTERED["abalone"],
        *(replace(v, model={**v.model, "n_trees": int(v.model["n_trees"]) // 2}) for v in DEEP),
    ),
    "adult": (FILTERED["adult"],),
}
"""Settings of a stream, with the number of rounds before the later rows come; there are as many after."""


@dataclass
class Bench:
    """A data set divided into folds; `division` is the number of the division, `book` keeps the scores."""

    prepared: Prepared
    n_runs: int = 0
    division: int = 7
    book: ScoreBook = field(default_factory=ScoreBook)
    folds: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        order = np.random.default_rng(self.division).permutation(self.prepared.table.n_records)
        self.folds = np.empty(len(order), dtype=np.int64)
        self.folds[order] = np.arange(len(order)) % N_FOLDS

    def score(self, variant: Variant, epsilon: float, fold: int, seed: int) -> float:
        """Test R2 of a regression, or test error in per cent, of one seeded run."""
        train = self.folds != fold
        plan = plan_of(self.prepared.table, variant, epsilon, int(train.sum()), seed)

        def run() -> float:
            rows = rows_of(self.prepared, plan, train)
            return self._measure(plan, _run(plan, rows, seed, {}, variant.is_static), ~train)

        return self.noted((plan.digest, fold, seed, variant.is_static), run)

    def noted(self, key: tuple[object, ...], run: Callable[[], float]) -> float:
        """The score of a run on this division, from the book if it is there."""
        self.n_runs += 1
        return self.book.score((self.prepared.table.name, self.division, *key), run)

    def stream_score(self, variant: Variant, epsilon: float, late: NDArray[np.bool_], fold: int, seed: int) -> float:
        """The same when the rows in `late` come after the regular rounds, under one filter and one ledger."""
        train = self.folds != fold
        plan = plan_of(self.prepared.table, variant, epsilon, int(train.sum()), seed)
        terms = resolve_s_gbdt(plan).s_gbdt
        first = terms.n_regular_rounds + terms.n_start_exchanges
        if not variant.section["individual_filter"]:
            # Without a filter all rounds are regular ones; the rows come after the same number of them.
            first = int(variant.section.get("arrival", first))
        data = {when: rows_of(self.prepared, plan, train & (late if when else ~late)) for when in (0, first)}

        def run() -> float:
            return self._measure(plan, _run(plan, data[0], seed, {first: {"one": data[first]}}, False), ~train)

        return self.noted((plan.digest, fold, seed, first, hashlib.sha256(late.tobytes()).hexdigest()), run)

    def _measure(self, plan: Plan, outcome: Outcome, test: NDArray[np.bool_]) -> float:
        rows = rows_of(self.prepared, plan, test)
        scores = outcome.ensemble.scores(rows.codes)[0]
        if plan.label.type == "regression":
            return float(r2_score(rows.labels / SCORE_UNIT, np.clip(scores, -1, 1)))
        return float(100 * np.mean((scores > 0) != (rows.labels == 1)))


def repeated(bench: Bench, variant: Variant, epsilon: float, repeats: int, first: int = 1) -> NDArray[np.float64]:
    """Scores of so many runs on each fold, each with noise and samples of its own: float64 [repeats * N_FOLDS].

    Args:
        first: the first seed; seeds from 1 on are the reports', those of a search lie far above.
    """
    n_runs = repeats * N_FOLDS
    return np.array([bench.score(variant, epsilon, i % N_FOLDS, first + i) for i in progress(n_runs, variant.name)])


def sign_of(name: str) -> float:
    """Larger is better after this sign."""
    return -1.0 if name == "adult" else 1.0


def plan_of(table: Table, variant: Variant, epsilon: float, n_train: int, seed: int) -> Plan:
    """A variant as a plan; delta = 1 / n_train, as in the other experiments (the paper names none)."""
    model = {"structure_seed": seed, **variant.model}
    own = {name: value for name, value in variant.section.items() if name != "arrival"}
    return algorithm_plan(table, epsilon, n_train, "s-gbdt", {**own, "model": model})


def _run(plan: Plan, data: SiteData, seed: int, arrivals: Any, is_static: bool) -> Outcome:
    settings = resolve(plan)
    n_later = sum(rows["one"].n_records for rows in arrivals.values())
    sampling = SeededSampling(seed, np.arange(data.n_records + n_later))
    node = ArrivingNode(Node("one", data, plan, settings, 1, sampling), arrivals)
    noise = SeededNoise(seed, exact=False)
    if not is_static:
        return run_program(plan, program_for(plan, settings), PlainAggregation([node]), noise)
    aggregation = _StaticNoise(plan, node, np.random.default_rng(seed))
    return run_program(plan, program_for(plan, settings), aggregation, _Silent(seed, exact=False))


class _Silent(SeededNoise):
    """No further noise: what it is added to is noisy already. The runs that use it promise nothing."""

    def sample(self, sigma: int, length: int, purpose: str) -> NDArray[np.int64]:
        return np.zeros(length, dtype=np.int64) if length > 2 else super().sample(sigma, length, purpose)


class _StaticNoise:
    """Leaf values with noise of one size for all leaves, as before dynamic scaling (arXiv 2309.12041, section VIII-D).

    A leaf's value is sum / (support + lambda), which one record moves by at most g* / (1 + lambda) (Li et al. 2020,
    lemma 2). The noise is the same multiple of that sensitivity as dynamic scaling has of its own. The release is
    written as the pair of sums whose quotient is the noisy value.
    """

    cohort = None
    n_nodes = 1
    sites = None

    def __init__(self, plan: Plan, node: ArrivingNode, random: np.random.Generator) -> None:
        self._plan, self._node, self._random = plan, node, random
        self._loss = resolve(plan).loss(plan)

    def sum_of(self, query: Query) -> IntVector:
        """See `Aggregation.sum_of`."""
        exact = self._node.answer(query)
        if not isinstance(query, LeafSums):
            return exact
        ridge = self._plan.model.leaf_ridge
        sums, supports = (exact.reshape(-1, 2) / self._loss.scales).T
        spread = query.noise_multiplier * SGbdt.of(self._plan).gradient_clip / (1 + ridge)
        values = sums / np.maximum(supports + ridge, 1e-9) + self._random.normal(0, spread, len(sums))
        # Twice lambda, so that the quotient is this value whatever the rule does below lambda.
        support = max(2 * ridge, 2.0)
        pairs = np.stack([values * support, np.full(len(values), support)], axis=1)
        return np.asarray(np.rint(pairs * self._loss.scales), dtype=np.int64).reshape(-1)


def tuned_epsilon(divergence: Callable[[int], float], orders: Sequence[int], delta: float, n_tried: float) -> float:
    """The epsilon of choosing the best of a random number of runs, `n_tried` on average, when the score is private too.

    Source: Papernot and Steinke 2022 (arXiv 2110.03620), theorem 2, with eta = 0: the number of runs is logarithmic.
    """
    low, high = 1e-12, 1.0 - 1e-12
    for _ in range(200):
        gamma = math.sqrt(low * high)
        mean = (1 / gamma - 1) / math.log(1 / gamma)
        low, high = (gamma, high) if mean > n_tried else (low, gamma)
    curve = [(order, divergence(order)) for order in orders]
    extra = min((1 - 1 / order) * value + math.log(1 / gamma) / order for order, value in curve)
    return min(
        value + extra + math.log(n_tried) / (order - 1)
        + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        for order, value in curve
    )  # fmt: skip


def printed_multiplier(epsilon: float, delta: float, rate: float, n_rounds: int) -> float:
    """The noise that the paper's algorithm 7 gives as printed: exp(rho - alpha epsilon) = delta, orders to 2000."""

    def spent(noise_multiplier: float) -> float:
        return min(
            (n_rounds * paper_divergence(order, rate, noise_multiplier) - math.log(delta)) / order
            for order in ORDERS
            if order <= 2000
        )

    low, high = 1e-3, 1e3
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return high
