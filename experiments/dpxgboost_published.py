"""DP-XGBoost as published, on one machine and with its leaks: for comparison only, it keeps no promise.

What leaks, in the order of the code below: the best split of each feature is taken without noise before the
exponential mechanism chooses among features (issue 3 of the authors' repository); nodes stop by exact counts; leaves
divide by exact counts, and their noise is scaled by a bound that holds only where the count is public. So no ledger is
kept: "epsilon" is what the paper would say.

Source: Grislain & Gonzalvez 2021, arXiv 2110.12770, sections 4 and 5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets import Table

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Published:
    """The settings of the paper's section 5."""

    epsilon: float
    n_trees: int = 20
    max_depth: int = 6
    learning_rate: float = 0.3
    ridge: float = 0.1
    min_child_weight: int = 50
    sample: float = 0.1
    n_bins: int = 32

    @property
    def tree_epsilon(self) -> float:
        """What a tree may spend on its sample: basic composition over trees, amplified by sampling."""
        return math.log1p(math.expm1(self.epsilon / self.n_trees) / self.sample)


def published_scores(table: Table, train: NDArray[np.bool_], y: Matrix, rule: Published, seed: int) -> Matrix:
    """Scores of all records after training on some; labels y lie in [-1, 1]."""
    random = np.random.default_rng(seed)
    x = _matrix(table)
    scores = np.zeros(len(y))
    rows = np.flatnonzero(train)
    for _ in range(rule.n_trees):
        drawn = random.choice(rows, int(rule.sample * len(rows)), replace=False)
        gradients = scores[drawn] - y[drawn]
        kept = np.abs(gradients) <= 1  # gradient data filtering
        tree = _Tree(x[drawn][kept], gradients[kept], table, rule, random)
        scores += rule.learning_rate * tree.values(x)
    return scores


class _Tree:
    def __init__(
        self, x: Matrix, gradients: Matrix, table: Table, rule: Published, random: np.random.Generator
    ) -> None:
        self._rule, self._random, self._table = rule, random, table
        self._cuts = [self._sketch(x[:, feature], feature) for feature in range(x.shape[1])]
        self._root = self._grow(x, gradients, 0)

    def values(self, x: Matrix) -> Matrix:
        """The leaf value of each row."""
        out = np.zeros(len(x))
        pending: list[tuple[Any, NDArray[Any]]] = [(self._root, np.arange(len(x)))]
        while pending:
            node, rows = pending.pop()
            if isinstance(node, float):
                out[rows] = node
                continue
            feature, cut, left, right = node
            goes = self._goes_left(x[rows, feature], feature, cut)
            pending += [(left, rows[goes]), (right, rows[~goes])]
        return out

    def _goes_left(self, column: Matrix, feature: int, cut: float) -> NDArray[np.bool_]:
        is_category = self._table.features[feature]["type"] == "categorical"
        return np.asarray(column == cut if is_category else column <= cut)

    def _sketch(self, column: Matrix, feature: int) -> list[float]:
        """Quantiles of a histogram of equal bins with Laplace noise."""
        declared = self._table.features[feature]
        if declared["type"] == "categorical":
            return [float(index) for index in range(len(declared["categories"]))]
        edges = np.linspace(declared["min"], declared["max"], 65)
        scale = 3 * len(self._table.features) / self._rule.tree_epsilon
        noisy = np.histogram(column, edges)[0] + self._random.laplace(0, scale, 64)
        shares = np.cumsum(np.maximum(noisy, 0))
        wanted = np.linspace(0, 1, self._rule.n_bins + 1)[1:-1] * shares[-1]
        return sorted(set(edges[1:][np.minimum(np.searchsorted(shares, wanted), 63)].tolist()))

    def _grow(self, x: Matrix, gradients: Matrix, depth: int) -> tuple[int, float, object, object] | float:
        rule = self._rule
        best: list[tuple[float, int, float]] = []
        if depth < rule.max_depth and len(gradients) >= 2 * rule.min_child_weight:
            for feature in range(x.shape[1]):
                best += self._best_of(x[:, feature], gradients, feature)
        if not best:
            return self._leaf(gradients)
        # One candidate per feature is left, found without noise; the mechanism chooses among these.
        gains = np.array([gain for gain, _, _ in best])
        weights = rule.tree_epsilon / (3 * rule.max_depth) * gains / 6
        _, feature, cut = best[int((weights + self._random.gumbel(size=len(weights))).argmax())]
        goes = self._goes_left(x[:, feature], feature, cut)
        left = self._grow(x[goes], gradients[goes], depth + 1)
        return feature, cut, left, self._grow(x[~goes], gradients[~goes], depth + 1)

    def _best_of(self, column: Matrix, gradients: Matrix, feature: int) -> list[tuple[float, int, float]]:
        rule, found = self._rule, []
        total, count = gradients.sum(), len(gradients)
        for cut in self._cuts[feature]:
            goes = self._goes_left(column, feature, cut)
            left, n_left = gradients[goes].sum(), int(goes.sum())
            if min(n_left, count - n_left) >= rule.min_child_weight:
                right = total - left
                gain = left**2 / (n_left + rule.ridge) + right**2 / (count - n_left + rule.ridge)
                found.append((float(gain), feature, cut))
        return [max(found)] if found else []

    def _leaf(self, gradients: Matrix) -> float:
        rule = self._rule
        sensitivity = 2 / (rule.min_child_weight + 1 + rule.ridge)
        value = gradients.sum() / (len(gradients) + rule.ridge)
        noisy = value + self._random.laplace(0, sensitivity * 3 / rule.tree_epsilon)
        return float(-np.clip(noisy, -1, 1))


def _matrix(table: Table) -> Matrix:
    columns = []
    for feature, column in zip(table.features, table.columns, strict=True):
        values = column.astype(np.float64)
        if feature["type"] != "categorical":
            values = np.clip(np.nan_to_num(values, nan=feature["min"]), feature["min"], feature["max"])
        columns.append(values)
    return np.column_stack(columns)
