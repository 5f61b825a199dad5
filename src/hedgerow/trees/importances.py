# SPDX-License-Identifier: Apache-2.0
"""Importances and shape functions of features, from the model file alone (`contributions` has those to one record).

Everything here is post-processing of released numbers: leaf values and, where the model kept them, leaf weights (noisy
sums of Hessians, or counts). It costs no privacy (Dwork and Roth, 2014, proposition 2.1), and it needs no gains, which
totally random trees do not compute.

Trees that ask for a single feature add up to that feature's *shape function*, a step function over the cells of its
grid, as in an explainable boosting machine (Lou, Caruana and Gehrke, KDD 2012). Its importance is its standard
deviation over the records, whose distribution over the cells is estimated from the released leaf weights. Trees of
several features are divided by the law of total variance: every split is credited with the variance between its two
children. Such trees are counted as if they were independent of each other. So features that trees share are measured
more roughly than features that have trees of their own. `Importances.interaction_share` says how much that concerns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow import elementary
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.trees.ensemble import Ensemble, Leaf, Node, prune_tree

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
