"""Totally random trees: structures drawn from public randomness and public candidates, before any record is asked.

Source: Maddock et al., CCS'22, section 4.3.2 (totally random splits) and 5.1 (feature interactions). A split is drawn
among the candidates that still divide the node's cells, so no leaf is empty by construction; a node that no candidate
divides sends everything left. Missing values go to a side drawn by coin, independently of the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.queries import FittedTrees, TreeBatch
from hedgerow.trees.grid import FeatureGrid, Grid
from hedgerow.trees.public_random import PublicRandom

Cuts = Mapping[int, Sequence[int]]
"""Per feature, the ascending cell numbers c at which a split "cells <= c go left" may be made."""


class Draft:
    """One tree while its nodes are filled in."""

    def __init__(self, depth: int, n_codes: int) -> None:
        n_nodes = 2**depth - 1
        self.feature = np.zeros(n_nodes, dtype=np.int32)
        self.goes_left = np.ones((n_nodes, n_codes), dtype=np.uint8)
        self.threshold = np.full(n_nodes, n_codes - 1, dtype=np.int32)

    def fill_ordered(self, node: int, feature: int, grid: FeatureGrid, cut: int, missing_left: bool) -> None:
        """Cells up to `cut` go left."""
        self.feature[node] = feature
        self.goes_left[node, cut + 1 :] = 0
        # Codes beyond the feature's own never occur; they follow the missing one, so that one interval goes right.
        self.goes_left[node, grid.missing_code :] = missing_left
        self.threshold[node] = cut

    def fill_set(self, node: int, feature: int, left: NDArray[np.bool_]) -> None:
        """The codes marked in `left` go left."""
        self.feature[node] = feature
        self.goes_left[node, : len(left)] = left
        self.goes_left[node, len(left) :] = 0
        self.threshold[node] = -1


def random_tree(
    randomness: PublicRandom, features: Sequence[int], cuts: Cuts, grid: Grid, depth: int
) -> TreeBatch:
    """One totally random tree.

    Args:
        randomness: the public stream of this tree.
        features: the features it may ask for, at least one.
        cuts: for every numeric feature of these, its candidates; categorical features need none.
        depth: levels of splits, 1 to 8.

    Returns:
        A batch of one.
    """
    draft = Draft(depth, grid.n_codes)
    if len(features) == 1 and grid.features[features[0]].is_categorical:
        _fill_by_category(draft, randomness, features[0], grid.features[features[0]], depth)
    else:
        _fill_randomly(draft, randomness, features, cuts, grid, depth)
    return TreeBatch(draft.feature[None], draft.goes_left[None], draft.threshold[None])


def deepened(fitted: FittedTrees, depth: int) -> FittedTrees:
    """The same trees with further levels, which send everything left; `depth` is at least theirs."""
    trees, extra = fitted.trees, depth - fitted.trees.depth
    if extra == 0:
        return fitted
    n_trees, n_nodes, n_codes = trees.goes_left.shape
    below = 2**depth - 1 - n_nodes
    deeper = TreeBatch(
        feature=np.concatenate([trees.feature, np.zeros((n_trees, below), dtype=np.int32)], axis=1),
        goes_left=np.concatenate([trees.goes_left, np.ones((n_trees, below, n_codes), dtype=np.uint8)], axis=1),
        threshold=np.concatenate([trees.threshold, np.full((n_trees, below), n_codes - 1, dtype=np.int32)], axis=1),
    )
    values = np.zeros((n_trees, 2**depth, fitted.values.shape[2]), dtype=np.int32)
    values[:, :: 2**extra] = fitted.values
    return FittedTrees(deeper, values)


def concatenate(batches: Sequence[TreeBatch]) -> TreeBatch:
    """Batches of equal depth as one."""
    return TreeBatch(
        feature=np.concatenate([batch.feature for batch in batches]),
        goes_left=np.concatenate([batch.goes_left for batch in batches]),
        threshold=np.concatenate([batch.threshold for batch in batches]),
    )


def _fill_by_category(
    draft: Draft, randomness: PublicRandom, feature: int, grid: FeatureGrid, depth: int
) -> None:
    """Every category a leaf of its own when there are enough; else neighbours in a random order share one."""
    n_leaves, n_codes = 2**depth, grid.n_codes
    order = randomness.permutation(n_codes)
    if n_codes <= n_leaves:
        borders = list(range(1, n_codes))
    else:
        borders = sorted(randomness.sample(range(1, n_codes), n_leaves - 1))
    leaf_of_code = np.searchsorted(borders, np.array(order), side="right")
    for node in range(n_leaves - 1):
        level = (node + 1).bit_length() - 1
        span = n_leaves >> level
        middle = (node + 1 - 2**level) * span + span // 2
        draft.fill_set(node, feature, leaf_of_code < middle)


def _fill_randomly(
    draft: Draft, randomness: PublicRandom, features: Sequence[int], cuts: Cuts, grid: Grid, depth: int
) -> None:
    """Split node after node, from the root: feature and candidate uniformly among those that divide the node."""
    orders = {f: randomness.permutation(grid.features[f].n_codes) for f in features if grid.features[f].is_categorical}
    choices = {f: list(range(grid.features[f].n_codes - 1)) if f in orders else list(cuts[f]) for f in features}
    pending = [(0, choices)]
    while pending:
        node, open_cuts = pending.pop()
        usable = [feature for feature in features if open_cuts[feature]]
        below_left, below_right = open_cuts, open_cuts
        if usable:
            feature = usable[randomness.below(len(usable))]
            position = randomness.below(len(open_cuts[feature]))
            cut = open_cuts[feature][position]
            if feature in orders:
                draft.fill_set(node, feature, np.array(orders[feature]) <= cut)
            else:
                draft.fill_ordered(node, feature, grid.features[feature], cut, randomness.coin())
            below_left = {**open_cuts, feature: open_cuts[feature][:position]}
            below_right = {**open_cuts, feature: open_cuts[feature][position + 1 :]}
        else:
            draft.feature[node] = features[0]
        if 2 * node + 1 < 2**depth - 1:
            pending.append((2 * node + 2, below_right))
            pending.append((2 * node + 1, below_left))
