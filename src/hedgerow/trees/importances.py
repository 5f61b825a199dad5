# SPDX-License-Identifier: Apache-2.0
"""Importances, shape functions and contributions of features, from the model file alone.

Everything here is post-processing of released numbers: leaf values and, where the model kept them, leaf weights (noisy
sums of Hessians, or counts). It costs no privacy (Dwork and Roth, 2014, proposition 2.1), and it needs no gains, which
totally random trees do not compute.

Trees that ask for a single feature add up to that feature's *shape function*, a step function over the cells of its
grid, as in an explainable boosting machine (Lou, Caruana and Gehrke, KDD 2012). Its importance is its standard
deviation over the records, whose distribution over the cells is estimated from the released leaf weights. Trees of
several features are divided by the law of total variance: every split is credited with the variance between its two
children. Such trees are counted as if they were independent of each other. So features that trees share are measured
more roughly than features that have trees of their own. `Importances.interaction_share` says how much that concerns.

**Contributions**: what each feature adds to a record's score, exact Shapley values of an ensemble.

The game, for one record and one tree: the features of a set S are known, so a record goes where it goes. At a node that
asks for another feature it goes both ways, in the proportion of the released leaf weights below. The value of S is what
the record then reaches on average. A feature's contribution is its Shapley value in this game, summed over the trees;
with no feature known, the ensemble's value is the base. This is the path-dependent TreeSHAP (Lundberg et al., 2020,
Nature Machine Intelligence 2, algorithm 1), which XGBoost calls `pred_contribs`, and categories are as good as numbers.

Only the leaves that a record might reach count, each by itself: a leaf's value times a product over the m features on
its path, of 1 or 0 where the feature is known (does the record go that way?) and of a share of the weights where it is
not. There are 2**m patterns of the former, m is at most the depth of a tree. The Shapley values of all patterns are
one small table per leaf. A tree that asks for one feature needs no such table: it adds to that feature what it says of
its code, less its mean.

Weights that were not released are 1 per leaf. They are noisy, and cut off at 1; the contributions follow from the model
file and cost no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hedgerow import elementary
from hedgerow.losses.kinds import Floats
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.trees.binning import CodeArray, FeatureGrid
from hedgerow.trees.ensemble import Ensemble, Leaf, Node, Split, prune_tree

DENSITY_PASSES = 10
"""Passes of expectation maximisation; later ones would sharpen the noise."""


@dataclass(frozen=True, eq=False)
class Shape:
    """The shape function of a feature: the sum of the trees on it alone.

    Attributes:
        borders: float32 [n_edges], the numbers between the cells; empty for a categorical feature.
        scores: float64 [n_codes, n_outputs]: per cell (or category, then "not listed"), and last for missing values.
        density: float64 [n_codes], estimated share of the records in each cell, adding up to 1.
        n_trees: trees on this feature alone.
        is_weighted: whether the density was estimated from releases; else it is even over the cells.
    """

    borders: NDArray[np.float32]
    scores: NDArray[np.float64]
    density: NDArray[np.float64]
    n_trees: int
    is_weighted: bool

    def centre_scores(self) -> NDArray[np.float64]:
        """Return the scores less their mean over the records."""
        return self.scores - elementary.times(self.scores.T, self.density)

    def deviation(self) -> float:
        """Return the standard deviation of the scores over the records.

        Over several outputs, it is the root of their mean variance.
        """
        return math.sqrt(elementary.mean(elementary.times(self.centre_scores().T ** 2, self.density)))


@dataclass(frozen=True, eq=False)
class Importances:
    """The importance of each feature: how far it moves the scores, in units of the score.

    Attributes:
        values: float64 [n_features], of its shape function and of the splits on it in trees of several features.
        interaction_share: share of the variance that comes from trees of several features, 0 to 1.
        is_weighted: whether released leaf weights were there to weigh with.
    """

    values: NDArray[np.float64]
    interaction_share: float
    is_weighted: bool


def shape_function(ensemble: Ensemble, feature: int) -> Shape:
    """Return the shape function of a feature, the sum of the trees that ask for it alone."""
    grid = ensemble.grid.features[feature]
    scores = np.zeros((grid.n_codes, ensemble.n_outputs))
    mine = [tree for tree in range(ensemble.n_trees) if find_tree_features(ensemble, tree) == {feature}]
    leaves = [find_leaves(ensemble, tree)[: grid.n_codes] for tree in mine]
    if ensemble.fitted is not None:
        for tree, reached in zip(mine, leaves, strict=True):
            scores += ensemble.fitted.values[tree, reached] / SCORE_UNIT
    density = np.full(grid.n_codes, 1 / grid.n_codes)
    is_weighted = ensemble.leaf_weights is not None and bool(mine)
    if ensemble.leaf_weights is not None and mine:
        density = _density(density, leaves, [ensemble.leaf_weights[tree] for tree in mine])
    if ensemble.link.is_relative:
        # Only differences between scores mean anything.
        scores -= (elementary.add_up_rows(scores) / scores.shape[1])[:, None]
    return Shape(grid.edges, scores, density, len(mine), is_weighted)


def find_importances(ensemble: Ensemble) -> Importances:
    """Return the importances of all features; see the module's text for their meaning."""
    n_features = ensemble.grid.n_features
    own = np.array([shape_function(ensemble, feature).deviation() for feature in range(n_features)])
    variances = np.zeros(n_features)
    for tree in range(ensemble.n_trees):
        if len(find_tree_features(ensemble, tree)) > 1:
            for output in range(ensemble.n_outputs):
                variances += _split_variances(prune_tree(ensemble, tree, output), n_features) / ensemble.n_outputs
    total = elementary.dot(own, own) + elementary.add_up(variances)
    interaction_share = elementary.add_up(variances) / total if total > 0 else 0.0
    return Importances(np.sqrt(own**2 + variances), interaction_share, ensemble.leaf_weights is not None)


def find_tree_features(ensemble: Ensemble, tree: int) -> set[int]:
    """Return the features that decide where a record ends in a tree.

    Nodes that send everything left do not count.
    """
    if ensemble.fitted is None:
        raise ValueError("an ensemble without trees has no features of trees")
    batch = ensemble.fitted.trees
    divides = ~batch.goes_left[tree].astype(bool).all(axis=1)
    return {int(feature) for feature in batch.feature[tree][divides]}


def find_leaves(ensemble: Ensemble, tree: int) -> NDArray[np.int64]:
    """Return the leaf of each code in a tree on a single feature: int64 [n_codes of the grid]."""
    if ensemble.fitted is None:
        raise ValueError("an ensemble without trees has no leaves")
    batch = ensemble.fitted.trees
    codes = np.arange(batch.goes_left.shape[2])
    node = np.zeros(len(codes), dtype=np.int64)
    for _ in range(batch.depth):
        node = 2 * node + 2 - batch.goes_left[tree, node, codes]
    return node - (batch.n_leaves - 1)


def _density(
    start: NDArray[np.float64], leaves: list[NDArray[np.int64]], weights: list[NDArray[np.int64]]
) -> NDArray[np.float64]:
    """Estimate the distribution over cells from many coarse histograms with different cuts.

    Every tree's leaves are one histogram. Each pass spreads each leaf's share over its cells in proportion to the
    density so far and takes the mean over the trees: expectation maximisation for a mixture of binned samples.
    """
    density = start
    for _ in range(DENSITY_PASSES):
        explained = np.zeros_like(density)
        n_used = 0
        for reached_by, leaf_weights in zip(leaves, weights, strict=True):
            inside = np.bincount(reached_by, weights=density, minlength=len(leaf_weights))
            reached = np.where(inside > 0, leaf_weights, 0).astype(np.float64)
            if reached.any():
                shares = reached / elementary.add_up(reached)
                explained += density * (shares / np.where(inside > 0, inside, 1))[reached_by]
                n_used += 1
        if n_used == 0:
            return density
        density = explained / elementary.add_up(explained)
    return density


def _split_variances(root: Node, n_features: int) -> NDArray[np.float64]:
    """Return the variance between the children of one tree's splits, per feature.

    The variances add up to the tree's variance.
    """
    credits = np.zeros(n_features)

    def mean_of(node: Node) -> float:
        if isinstance(node, Leaf):
            return node.units / SCORE_UNIT
        left, right = mean_of(node.left), mean_of(node.right)
        share = node.left.weight / node.weight
        credits[node.feature] += node.weight / root.weight * share * (1 - share) * elementary.square(left - right)
        return share * left + (1 - share) * right

    mean_of(root)
    return credits


@dataclass(frozen=True, eq=False)
class Contributions:
    """The scores of records as sums of contributions of features.

    Attributes:
        base: float64 [n_outputs], the score if no feature is known.
        values: float64 [n_outputs, n, n_features]; with the base they add up to the scores.
    """

    base: Floats
    values: Floats


@dataclass
class _Path:
    """The way to a leaf.

    Attributes:
        value: of the leaf.
        shares: per feature on the way, the part of the weights that goes this way where it is not known.
        allowed: per feature on the way, bool [n_codes], the codes that go this way.
    """

    value: float
    shares: dict[int, float] = field(default_factory=dict)
    allowed: dict[int, NDArray[np.bool_]] = field(default_factory=dict)


def contributions(ensemble: Ensemble, codes: CodeArray) -> Contributions:
    """Return the contributions of all features to the scores of records.

    Args:
        codes: [n_features, n], grid codes.
    """
    n_features, n = codes.shape
    base = np.zeros(ensemble.n_outputs)
    # Features in rows here: each leaf adds to few of them, for all records.
    by_feature = np.zeros((ensemble.n_outputs, n_features, n))
    for output in range(ensemble.n_outputs):
        # Trees on one feature are added up by code, so one look-up serves all of them.
        tables = {feature: np.zeros(grid.n_codes) for feature, grid in enumerate(ensemble.grid.features)}
        values = by_feature[output]
        for tree in range(ensemble.n_trees):
            paths = list(_paths(ensemble, prune_tree(ensemble, tree, output)))
            mean = math.fsum(path.value * math.prod(path.shares.values()) for path in paths)
            base[output] += mean
            asked = {feature for path in paths for feature in path.shares}
            if len(asked) == 1:
                (feature,) = asked
                for path in paths:
                    tables[feature][path.allowed[feature]] += path.value
                tables[feature] -= mean
            else:
                for path in paths:
                    _add_path(values, path, codes)
        for feature, table in tables.items():
            values[feature] += table[codes[feature]]
    return Contributions(base, by_feature.transpose(0, 2, 1))


def _paths(ensemble: Ensemble, root: Node) -> Iterator[_Path]:
    """Yield the paths to all leaves of a tree; a tree without splits has one, the empty path."""

    def walk(node: Node, path: _Path) -> Iterator[_Path]:
        if isinstance(node, Leaf):
            yield _Path(node.units / SCORE_UNIT, path.shares, path.allowed)
            return
        goes_left = _goes_left(node, ensemble.grid.features[node.feature])
        for child, goes in ((node.left, goes_left), (node.right, ~goes_left)):
            share = path.shares.get(node.feature, 1.0) * child.weight / node.weight
            allowed = path.allowed[node.feature] & goes if node.feature in path.allowed else goes
            shares_on = {**path.shares, node.feature: share}
            yield from walk(child, _Path(0.0, shares_on, {**path.allowed, node.feature: allowed}))

    return walk(root, _Path(0.0))


def _goes_left(node: Split, grid: FeatureGrid) -> NDArray[np.bool_]:
    """Return which codes of the node's feature go left: bool [n_codes]."""
    goes = np.empty(grid.n_codes, dtype=np.bool_)
    if node.right_categories is None:
        # Code c stands for the values from edge c - 1 on.
        goes[0] = True
        goes[1:-1] = grid.edges < np.float32(node.condition)
    else:
        goes[:] = True
        goes[list(node.right_categories)] = False
    goes[grid.missing_code] = node.missing_left
    return goes


def _add_path(values: Floats, path: _Path, codes: CodeArray) -> None:
    """Add the contributions of one leaf of a tree on several features to `values`."""
    features = list(path.shares)
    pattern = np.zeros(codes.shape[1], dtype=np.int64)
    for place, feature in enumerate(features):
        pattern += path.allowed[feature].astype(np.int64).take(codes[feature]) << place
    table = path.value * _shapley_values(tuple(path.shares.values()))
    for place, feature in enumerate(features):
        values[feature] += table[place].take(pattern)


def _shapley_values(shares: tuple[float, ...]) -> Floats:
    """Return Shapley values of a product of m factors, by pattern of known ones: float64 [m, 2**m].

    Factor j is bit j of the pattern where j is known, and shares[j] where it is not. A feature's value is the mean,
    over all sizes of a set of others, of the mean over the sets of this size of what knowing it changes.
    """
    m = len(shares)
    bits = (np.arange(2**m) >> np.arange(m)[:, None] & 1).astype(np.float64)
    found = np.empty((m, 2**m))
    for factor in range(m):
        # The sums, by size, of all products of the others with `size` of them known.
        sums = np.zeros((m, 2**m))
        sums[0] = 1.0
        for other in range(m):
            if other != factor:
                sums[1:] = sums[1:] * shares[other] + sums[:-1] * bits[other]
                sums[0] *= shares[other]
        weights = np.array([1 / (m * math.comb(m - 1, size)) for size in range(m)])
        found[factor] = (bits[factor] - shares[factor]) * elementary.times(sums.T, weights)
    return found
