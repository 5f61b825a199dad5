"""Other papers' trees over raw rows in one place: DPBoost, and DP-XGBoost as published, with its leaks.

Both are for comparison only, and simulations in floating point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets import Table

FloatArray = NDArray[np.float64]
Rows = NDArray[np.intp]


@dataclass
class _Node:
    feature: int = -1
    threshold: float = 0.0
    is_category: bool = False
    sides: tuple[_Node, ...] = ()
    value: float = 0.0

    def sends_left(self, data: Central, rows: Rows) -> NDArray[np.bool_]:
        column = data.columns[self.feature][rows]
        return np.asarray(column == self.threshold if self.is_category else column <= self.threshold)


class Central:
    """A table in one place, its labels scaled as plans scale them."""

    def __init__(self, table: Table) -> None:
        self.is_regression = table.is_regression
        self.features = table.features
        self.columns: tuple[FloatArray, ...] = tuple(
            np.clip(column.astype(float), feature.get("min", -np.inf), feature.get("max", np.inf))
            for column, feature in zip(table.columns, table.features, strict=True)
        )
        low, high = table.label_section.get("min", 0.0), table.label_section.get("max", 1.0)
        self.labels: FloatArray = table.label.astype(float)
        if self.is_regression:
            self.labels = np.clip((self.labels - low) / (high - low) * 2 - 1, -1, 1)

    def gradients(self, rows: Rows, scores: FloatArray) -> FloatArray:
        """Of squared or logistic loss."""
        if self.is_regression:
            return np.asarray(scores[rows] - self.labels[rows])
        return np.asarray(1 / (1 + np.exp(-scores[rows])) - self.labels[rows])

    def values(self, tree: _Node) -> FloatArray:
        """The value of the leaf that every row of the table reaches: float64 [n]."""
        values = np.empty(len(self.labels))
        pending = [(tree, np.arange(len(values)))]
        while pending:
            node, rows = pending.pop()
            if not node.sides:
                values[rows] = node.value
                continue
            goes_left = node.sends_left(self, rows)
            pending += [(node.sides[0], rows[goes_left]), (node.sides[1], rows[~goes_left])]
        return values


def _gain(sums: NDArray[Any], counts: NDArray[Any], total: float, n: int, ridge: float) -> FloatArray:
    return np.asarray(sums**2 / (counts + ridge) + (total - sums) ** 2 / (n - counts + ridge))


# DPBoost --------------------------------------------------------------------------------------------------------------
#
# The baseline of S-GBDT's paper, with pure epsilon: Li et al. 2020 (AAAI 34) with what arXiv 2309.12041 adds (section
# V). Each ensemble trains its trees on disjoint parts of the data; splits by the exponential mechanism, here without a
# grid (algorithm 2); leaves with Laplace noise; geometric leaf clipping; gradient-based data filtering or plain
# clipping; and a private initial score. A record's tree is drawn for it alone, with chances that follow the learning
# rate, so that no other record's presence moves it.
# Cost: the initial score, plus one tree's epsilon per ensemble (parallel composition within one). A tree spends half of
# its epsilon on its levels of splits and half on its leaves.


@dataclass(frozen=True)
class DPBoost:
    """Settings.

    Attributes:
        learning_rate, ridge: eta and lambda.
        clip: g*, in units in which a regression's public range is [-1, 1], or of log-loss gradients.
        filters_gradients: whether a record with a gradient beyond the clip waits for a later tree (GDF), or is clipped.
        initial_share: share of epsilon for the initial score.
        clips_leaves: geometric leaf clipping: the bound on a leaf falls with (1 - eta) to the number of the tree.
    """

    n_ensembles: int = 1
    trees_per_ensemble: int = 5
    depth: int = 3
    learning_rate: float = 0.3
    ridge: float = 5.0
    clip: float = 0.5
    initial_share: float = 0.1
    filters_gradients: bool = True
    clips_leaves: bool = True


def train_dpboost(
    data: Central, rows: Rows, settings: DPBoost, epsilon: float, random: np.random.Generator
) -> FloatArray:
    """Scores of all rows of a table under a model that was trained on some: float64 [n]; pure epsilon-DP for those."""
    scores = np.full(len(data.labels), _initial_score(data, rows, epsilon * settings.initial_share, random))
    tree_epsilon = epsilon * (1 - settings.initial_share) / settings.n_ensembles
    for _ in range(settings.n_ensembles):
        weights = (1 - settings.learning_rate) ** np.arange(settings.trees_per_ensemble)
        tree_of = random.choice(settings.trees_per_ensemble, len(rows), p=weights / weights.sum())
        waiting: Rows = np.empty(0, dtype=np.intp)
        for number in range(settings.trees_per_ensemble):
            due = np.concatenate([rows[tree_of == number], waiting])
            gradients = data.gradients(due, scores)
            used = np.ones(len(due), dtype=bool)
            if settings.filters_gradients:
                used = np.abs(gradients) <= settings.clip
            waiting = due[~used]
            clipped = np.clip(gradients[used], -settings.clip, settings.clip)
            tree = _grown(data, due[used], clipped, settings, (tree_epsilon, number), random)
            scores += settings.learning_rate * data.values(tree)
    return scores


def _initial_score(data: Central, rows: Rows, epsilon: float, random: np.random.Generator) -> float:
    """The noisy sum of labels over the noisy count, half of epsilon each: the exact count is private."""
    total = data.labels[rows].sum() + random.laplace(0, 2 / epsilon)
    count = max(1.0, len(rows) + random.laplace(0, 2 / epsilon))
    if data.is_regression:
        return float(np.clip(total / count, -1, 1))
    share = np.clip(total / count, 0.02, 0.98)
    return float(np.log(share / (1 - share)))


def _grown(
    data: Central, rows: Rows, gradients: FloatArray, settings: DPBoost, place: tuple[float, int],
    random: np.random.Generator,
) -> _Node:  # fmt: skip
    """One tree; `place` is its epsilon and its number in the ensemble."""
    epsilon, number = place
    split_epsilon, leaf_epsilon = epsilon / 2 / settings.depth, epsilon / 2

    def grow(inside: Rows, own: FloatArray, ranges: list[tuple[float, float]], level: int) -> _Node:
        if level == settings.depth:
            value, sensitivity = leaf(own, settings, number)
            return _Node(value=value + random.laplace(0, sensitivity / leaf_epsilon))
        node = _split(data, inside, own, ranges, (settings, split_epsilon), random)
        goes_left = node.sends_left(data, inside)
        below = [list(ranges), list(ranges)]
        if not node.is_category:
            low, high = ranges[node.feature]
            below[0][node.feature], below[1][node.feature] = (low, node.threshold), (node.threshold, high)
        parts = zip((goes_left, ~goes_left), below, strict=True)
        node.sides = tuple(grow(inside[part], own[part], within, level + 1) for part, within in parts)
        return node

    ranges = [(float(feature.get("min", 0)), float(feature.get("max", 0))) for feature in data.features]
    return grow(rows, gradients, ranges, 0)


def leaf(gradients: FloatArray, settings: DPBoost, number: int) -> tuple[float, float]:
    """A leaf's exact value in tree `number`, and by how much one record can move it, added or removed.

    Without leaf clipping that is g* / (1 + lambda): |g (n + lambda) - S| / ((n + 1 + lambda) (n + lambda)) with |S| at
    most n g* is largest for n = 0 and 1. A value within +-g* (1 - eta)^t moves by twice that at most (Li et al. 2020).
    """
    value, sensitivity = -gradients.sum() / (len(gradients) + settings.ridge), settings.clip / (1 + settings.ridge)
    if not settings.clips_leaves:
        return float(value), sensitivity
    limit = settings.clip * (1 - settings.learning_rate) ** number
    return float(np.clip(value, -limit, limit)), min(sensitivity, 2 * limit)


def _split(
    data: Central, rows: Rows, gradients: FloatArray, ranges: Sequence[tuple[float, float]],
    how: tuple[DPBoost, float], random: np.random.Generator,
) -> _Node:  # fmt: skip
    """The grid-less exponential mechanism (arXiv 2309.12041, algorithm 2), in log space, over all features at once."""
    settings, epsilon = how
    total, n, ridge = float(gradients.sum()), len(gradients), settings.ridge
    factor = epsilon / (2 * 3 * settings.clip**2)
    weights: list[FloatArray] = []
    edges_of: list[FloatArray | None] = []
    for number, feature in enumerate(data.features):
        column = data.columns[number][rows]
        if feature["type"] == "categorical":
            n_categories, codes = len(feature["categories"]), column.astype(np.int64)
            known = (codes >= 0) & (codes < n_categories)
            sums = np.bincount(codes[known], gradients[known], n_categories)
            counts = np.bincount(codes[known], minlength=n_categories)
            weights.append(factor * _gain(sums, counts, total, n, ridge))
            edges_of.append(None)
            continue
        low, high = ranges[number]
        order = np.argsort(column)
        edges = np.concatenate([[low], np.clip(column[order], low, high), [high]])
        # Between two neighbouring values every threshold has one gain; the bucket's width is its measure.
        sums = np.concatenate([[0.0], np.cumsum(gradients[order])])
        with np.errstate(divide="ignore"):
            measure = np.log(np.diff(edges) / (float(feature["max"]) - float(feature["min"])))
        weights.append(measure + factor * _gain(sums, np.arange(n + 1), total, n, ridge))
        edges_of.append(edges)
    joined = np.concatenate(weights)
    # The largest of the log-weights plus Gumbel noise is a draw in proportion to the weights.
    picked = int(np.argmax(joined + random.gumbel(size=len(joined))))
    ends = np.cumsum([len(own) for own in weights])
    number = int(np.searchsorted(ends, picked, side="right"))
    picked -= int(ends[number]) - len(weights[number])
    within = edges_of[number]
    if within is None:
        return _Node(number, float(picked), is_category=True)
    return _Node(number, float(random.uniform(within[picked], within[picked + 1])))


# DP-XGBoost as published ----------------------------------------------------------------------------------------------
#
# With its leaks it keeps no promise. What leaks, in the order of the code: the best split of each feature is taken
# without noise before the exponential mechanism chooses among features (issue 3 of the authors' repository); nodes stop
# by exact counts; leaves divide by exact counts, and their noise is scaled by a bound that holds only where the count
# is public. So no ledger is kept: "epsilon" is what the paper would say.
# Source: Grislain & Gonzalvez 2021, arXiv 2110.12770, sections 4 and 5.


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


def published_scores(data: Central, train: NDArray[np.bool_], y: FloatArray, rule: Published, seed: int) -> FloatArray:
    """Scores of all records after training on some; labels y lie in [-1, 1]."""
    random = np.random.default_rng(seed)
    scores = np.zeros(len(y))
    rows = np.flatnonzero(train)
    for _ in range(rule.n_trees):
        drawn = random.choice(rows, int(rule.sample * len(rows)), replace=False)
        gradients = scores[drawn] - y[drawn]
        kept = np.abs(gradients) <= 1  # gradient data filtering
        scores += rule.learning_rate * data.values(_Greedy(data, rule, random).grown(drawn[kept], gradients[kept]))
    return scores


@dataclass
class _Greedy:
    data: Central
    rule: Published
    random: np.random.Generator

    def grown(self, rows: Rows, gradients: FloatArray) -> _Node:
        self.cuts = [self._sketch(feature, rows) for feature in range(len(self.data.features))]
        return self._grow(rows, gradients, 0)

    def _sketch(self, feature: int, rows: Rows) -> list[float]:
        """Quantiles of a histogram of equal bins with Laplace noise."""
        declared = self.data.features[feature]
        if declared["type"] == "categorical":
            return [float(index) for index in range(len(declared["categories"]))]
        edges = np.linspace(declared["min"], declared["max"], 65)
        scale = 3 * len(self.data.features) / self.rule.tree_epsilon
        noisy = np.histogram(self.data.columns[feature][rows], edges)[0] + self.random.laplace(0, scale, 64)
        shares = np.cumsum(np.maximum(noisy, 0))
        wanted = np.linspace(0, 1, self.rule.n_bins + 1)[1:-1] * shares[-1]
        return sorted(set(edges[1:][np.minimum(np.searchsorted(shares, wanted), 63)].tolist()))

    def _grow(self, rows: Rows, gradients: FloatArray, depth: int) -> _Node:
        rule, best = self.rule, list[tuple[float, int, float]]()
        if depth < rule.max_depth and len(gradients) >= 2 * rule.min_child_weight:
            for feature in range(len(self.cuts)):
                best += self._best_of(feature, rows, gradients)
        if not best:
            return self._leaf(gradients)
        # One candidate per feature is left, found without noise; the mechanism chooses among these.
        gains = np.array([gain for gain, _, _ in best])
        weights = rule.tree_epsilon / (3 * rule.max_depth) * gains / 6
        _, feature, cut = best[int((weights + self.random.gumbel(size=len(weights))).argmax())]
        node = self._node(feature, cut)
        goes = node.sends_left(self.data, rows)
        node.sides = tuple(self._grow(rows[part], gradients[part], depth + 1) for part in (goes, ~goes))
        return node

    def _node(self, feature: int, cut: float) -> _Node:
        return _Node(feature, cut, is_category=self.data.features[feature]["type"] == "categorical")

    def _best_of(self, feature: int, rows: Rows, gradients: FloatArray) -> list[tuple[float, int, float]]:
        rule, found = self.rule, []
        total, count = gradients.sum(), len(gradients)
        for cut in self.cuts[feature]:
            goes = self._node(feature, cut).sends_left(self.data, rows)
            left, n_left = gradients[goes].sum(), int(goes.sum())
            if min(n_left, count - n_left) >= rule.min_child_weight:
                found.append((float(_gain(left, np.array(n_left), total, count, rule.ridge)), feature, cut))
        return [max(found)] if found else []

    def _leaf(self, gradients: FloatArray) -> _Node:
        rule = self.rule
        sensitivity = 2 / (rule.min_child_weight + 1 + rule.ridge)
        value = gradients.sum() / (len(gradients) + rule.ridge)
        noisy = value + self.random.laplace(0, sensitivity * 3 / rule.tree_epsilon)
        return _Node(value=float(-np.clip(noisy, -1, 1)))
