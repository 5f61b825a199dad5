"""Totally random trees: structures drawn from public randomness and public candidates, before any record is asked.

Source: Maddock et al., CCS'22, section 4.3.2 (totally random splits) and 5.1 (feature interactions). A split is drawn
among the candidates that still divide the node's cells, so no leaf is empty by construction; a node that no candidate
divides sends everything left. Missing values go to a side drawn by coin, independently of the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.queries import TreeBatch
from hedgerow.trees.grid import FeatureGrid, Grid
from hedgerow.trees.public_random import PublicRandom

Cuts = Mapping[int, Sequence[int]]
"""Per feature, the ascending cell numbers c at which a split "cells <= c go left" may be made."""


@dataclass(frozen=True)
class OrderedSplits:
    """Splits of numeric features, one of each list for a split, to be filled in together."""

    nodes: list[int] = field(default_factory=list)
    features: list[int] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    missing_codes: list[int] = field(default_factory=list)
    missing_left: list[bool] = field(default_factory=list)

    def add(self, node: int, feature: int, cut: int, missing_code: int, missing_left: bool) -> None:
        """Note one split."""
        self.nodes.append(node)
        self.features.append(feature)
        self.cuts.append(cut)
        self.missing_codes.append(missing_code)
        self.missing_left.append(missing_left)


class Draft:
    """One tree while its nodes are filled in."""

    def __init__(self, depth: int, n_codes: int) -> None:
        n_nodes = 2**depth - 1
        self.feature = np.zeros(n_nodes, dtype=np.int32)
        self.goes_left = np.ones((n_nodes, n_codes), dtype=np.uint8)
        self.threshold = np.full(n_nodes, n_codes - 1, dtype=np.int32)

    def fill_ordered(self, splits: OrderedSplits) -> None:
        """Cells up to a split's cut go left."""
        if not splits.nodes:
            return
        self.feature[splits.nodes] = splits.features
        self.threshold[splits.nodes] = splits.cuts
        codes = np.arange(self.goes_left.shape[1])
        cuts, missing = np.array(splits.cuts)[:, None], np.array(splits.missing_codes)[:, None]
        # Codes beyond the feature's own never occur; they follow the missing one, so that one interval goes right.
        follows = np.array(splits.missing_left)[:, None]
        self.goes_left[splits.nodes] = np.where(codes >= missing, follows, codes <= cuts)

    def fill_set(self, node: int, feature: int, left: NDArray[np.bool_]) -> None:
        """The codes marked in `left` go left."""
        self.feature[node] = feature
        self.goes_left[node, : len(left)] = left
        self.goes_left[node, len(left) :] = 0
        self.threshold[node] = -1

    def fill_sets(self, feature: int, left: NDArray[np.bool_]) -> None:
        """Every node asks for one feature and sends left the codes that its row of `left` marks."""
        self.feature[:] = feature
        self.goes_left[:, : left.shape[1]] = left
        self.goes_left[:, left.shape[1] :] = 0
        self.threshold[:] = -1


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
    middles = []
    for node in range(n_leaves - 1):
        level = (node + 1).bit_length() - 1
        span = n_leaves >> level
        middles.append((node + 1 - 2**level) * span + span // 2)
    draft.fill_sets(feature, leaf_of_code < np.array(middles)[:, None])


def _fill_randomly(
    draft: Draft, randomness: PublicRandom, features: Sequence[int], cuts: Cuts, grid: Grid, depth: int
) -> None:
    """Split node after node, from the root: feature and candidate uniformly among those that divide the node."""
    categorical = [f for f in features if grid.features[f].is_categorical]
    orders = {f: np.array(randomness.permutation(grid.features[f].n_codes)) for f in categorical}
    choices = [range(grid.features[f].n_codes - 1) if f in orders else cuts[f] for f in features]
    # What is still open of each feature's choices: a stretch of them, as its first and its end.
    pending = [(0, [(0, len(choice)) for choice in choices])]
    ordered = OrderedSplits()
    while pending:
        node, open_choices = pending.pop()
        usable = [position for position, (first, end) in enumerate(open_choices) if first < end]
        below_left, below_right = open_choices, open_choices
        if usable:
            chosen = usable[randomness.below(len(usable))]
            first, end = open_choices[chosen]
            position = first + randomness.below(end - first)
            feature, cut = features[chosen], choices[chosen][position]
            if feature in orders:
                draft.fill_set(node, feature, orders[feature] <= cut)
            else:
                ordered.add(node, feature, cut, grid.features[feature].missing_code, randomness.coin())
            below_left, below_right = open_choices.copy(), open_choices.copy()
            below_left[chosen], below_right[chosen] = (first, position), (position + 1, end)
        else:
            draft.feature[node] = features[0]
        if 2 * node + 1 < 2**depth - 1:
            pending.append((2 * node + 2, below_right))
            pending.append((2 * node + 1, below_left))
    draft.fill_ordered(ordered)
