"""Totally random trees: structures drawn from public randomness and public candidates, before any record is asked.

Source: Maddock et al., CCS'22, section 4.3.2 (totally random splits) and 5.1 (feature interactions). A split is drawn
among the candidates that still divide the node's cells, so no leaf is empty by construction; a node that no candidate
divides sends everything left. Missing values go to a side drawn by coin, independently of the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.queries import FittedTrees, TreeBatch
from hedgerow.trees.drawing_kernels import Words, draw_trees
from hedgerow.trees.grid import Grid
from hedgerow.trees.public_random import PublicRandom, words_of

Cuts = Mapping[int, Sequence[int]]
"""Per feature, the ascending cell numbers c at which a split "cells <= c go left" may be made."""
_AHEAD_BYTES = 1 << 22
"""Enough for some thousand trees; the words of later ones are made when their turn comes."""


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
    """One tree while its nodes are filled in; those that are not send everything left."""

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


class CutTable:
    """The candidates of all features, as the kernel takes them; rows are replaced one by one.

    Attributes:
        cuts: int64 [n_features, most cuts], ascending; each row counts up to its number of cuts.
        n_cuts: int64 [n_features].
    """

    def __init__(self, grid: Grid) -> None:
        self.cuts = np.zeros((grid.n_features, grid.n_codes), dtype=np.int64)
        self.n_cuts = np.zeros(grid.n_features, dtype=np.int64)

    @classmethod
    def of(cls, cuts: Cuts, grid: Grid) -> CutTable:
        """The table of some features' candidates; the others have none."""
        table = cls(grid)
        for feature, row in cuts.items():
            table.put(feature, row)
        return table

    def put(self, feature: int, cuts: Sequence[int]) -> None:
        """Replace the candidates of one feature."""
        self.cuts[feature, : len(cuts)] = cuts
        self.n_cuts[feature] = len(cuts)

    def of_feature(self, feature: int) -> list[int]:
        """The candidates of one feature."""
        cuts: list[int] = self.cuts[feature, : self.n_cuts[feature]].tolist()
        return cuts


class TreeWords:
    """The words that the trees of a run are drawn from, each tree's from the public stream of its number.

    Those of the first trees are made at once: what is drawn from them then keeps nobody waiting between two exchanges.
    """

    def __init__(self, seed: int, n_trees: int, grid: Grid, depth: int, largest: int) -> None:
        """Args: seed: of the run's structures; n_trees: trees of the run; largest: features of a tree at most."""
        self._seed, self._grid, self._depth = seed, grid, depth
        n_words = words_for(grid, depth, largest)
        self._ahead = self._drawn(0, min(n_trees, _AHEAD_BYTES // (8 * n_words)), n_words)

    def of_batch(self, first: int, subsets: Sequence[Sequence[int]]) -> Words:
        """Those of tree `first` and its followers, one for each subset: uint64 [B, as many as they need or more]."""
        if first + len(subsets) <= len(self._ahead):
            return self._ahead[first : first + len(subsets)]
        return self._drawn(first, len(subsets), words_for(self._grid, self._depth, max(map(len, subsets))))

    def _drawn(self, first: int, n_trees: int, n_words: int) -> Words:
        streams = [PublicRandom(self._seed, f"tree {first + number}") for number in range(n_trees)]
        content = b"".join([stream.first_bytes(n_words) for stream in streams])
        return words_of(content).reshape(n_trees, n_words)


def words_for(grid: Grid, depth: int, subset_size: int) -> int:
    """Words that suffice for a tree that may ask for `subset_size` features: the orders of categories, three a node."""
    n_codes, is_categorical = grid.codes_of_features
    orders = sorted((2 * n_codes * is_categorical).tolist())[-subset_size:]
    return int(3 * (2**depth - 1) + sum(orders))


def random_tree(randomness: PublicRandom, features: Sequence[int], cuts: Cuts, grid: Grid, depth: int) -> TreeBatch:
    """One totally random tree, see `random_trees`; a batch of one."""
    words = randomness.first_words(words_for(grid, depth, len(features)))
    return random_trees(words[None], [features], CutTable.of(cuts, grid), grid, depth)


def random_trees(
    randomness: Words, subsets: Sequence[Sequence[int]], cuts: CutTable, grid: Grid, depth: int
) -> TreeBatch:
    """Totally random trees, one for each subset of features.

    Args:
        randomness: uint64 [B, n_words], the public words of each tree, as many as `words_for` says or more.
        subsets: the features that each tree may ask for, at least one.
        cuts: for every numeric feature of these, its candidates; categorical features need none.
        depth: levels of splits, 1 to 8.
    """
    n_codes, is_categorical = grid.codes_of_features
    drawn = draw_trees(
        np.ascontiguousarray(randomness),
        np.array([feature for features in subsets for feature in features], dtype=np.int64),
        np.array([0, *accumulate(map(len, subsets))], dtype=np.int64),
        cuts.cuts,
        cuts.n_cuts,
        n_codes,
        is_categorical,
        2**depth - 1,
        grid.n_codes,
    )
    return TreeBatch(*drawn)


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
