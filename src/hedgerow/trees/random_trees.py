# SPDX-License-Identifier: Apache-2.0
"""Totally random trees: structures from public randomness and candidates, drawn before any query.

The randomness is a stream that anyone can expand again from the plan's seed, so a node can check that the coordinator
did not pick the trees. It is SHAKE-256 of the seed and a label, read as 64-bit words: the same on every machine and in
every version, which numpy's generators do not promise. It must never be used for noise, masks or subsampling.

Source: Maddock et al., CCS'22, section 4.3.2 (totally random splits) and 5.1 (feature interactions). A split is drawn
among the candidates that still divide the node's cells, so no leaf is empty by construction. A node that no candidate
divides sends everything left. Missing values go to a side drawn by coin, independently of the data.

`intervals` and `find_shapes` say what the finished structure of any batch of trees means for routing and for its
leaves.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.plan.plan import MANY_CATEGORIES
from hedgerow.protocol.queries import FittedTrees, TreeBatch
from hedgerow.trees.binning import Grid

Item = TypeVar("Item")
Cuts = Mapping[int, Sequence[int]]
"""Per feature, the ascending cell numbers c at which a split "cells <= c go left" may be made."""

Groups = NDArray[np.bool_]
"""Groups of features that may meet on a path: [n_groups, n_features]; see `hedgerow.trees.constraints`."""

WORDS_PER_REFILL, _FIRST_WORDS = 512, 64
ANY_SET, SMALL_SET = -1, -2
"""In place of the length of a node's interval, see `intervals`."""
SMALL_CODES = 64
"""The number of codes with a bit in a word."""
MANY_CODES = MANY_CATEGORIES + 2
"""With more, a categorical feature is divided in the order of its list by every second draw: codes of diagnoses or
places that begin alike stand together, and a few large leaves say what they have in common."""


class PublicRandom:
    """A deterministic public stream of integers.

    Args:
        seed: the plan's structure seed, a non-negative integer.
        label: separates the streams of one seed, e.g. "tree 17".
    """

    def __init__(self, seed: int, label: str) -> None:
        self._key = f"hedgerow public randomness v1|{seed}|{label}".encode()
        self._end = 0
        # The words before `_end` that are left, last one first.
        self._words: list[int] = []

    def _block(self, number: int, n_words: int) -> bytes:
        return hashlib.shake_256(self._key + b"|%d" % number).digest(8 * n_words)

    def _word(self) -> int:
        if not self._words:
            # Most streams are used for a few words only, so a block is read in two goes.
            number, start = divmod(self._end, WORDS_PER_REFILL)
            size = WORDS_PER_REFILL if start else _FIRST_WORDS
            self._words = list(struct.unpack(f"<{size - start}Q", self._block(number, size)[8 * start :]))[::-1]
            self._end += size - start
        return self._words.pop()

    def first_words(self, count: int) -> NDArray[np.uint64]:
        """Return the first `count` words of the stream: uint64 [count].

        They are the same whatever was drawn before.
        """
        sizes = [min(WORDS_PER_REFILL, count - start) for start in range(0, count, WORDS_PER_REFILL)]
        content = b"".join([self._block(number, size) for number, size in enumerate(sizes)])
        return np.frombuffer(content, dtype="<u8").astype(np.uint64)

    def below(self, limit: int) -> int:
        """Draw an integer in [0, limit), for 1 <= limit <= 2**32; its bias is below 2**-32."""
        return (self._word() * limit) >> 64

    def coin(self) -> bool:
        """Draw true or false, evenly."""
        return bool(self._word() & 1)

    def permutation(self, size: int) -> list[int]:
        """Draw a random order of 0 .. size-1 (Fisher and Yates)."""
        order = list(range(size))
        for last in range(size - 1, 0, -1):
            other = self.below(last + 1)
            order[last], order[other] = order[other], order[last]
        return order

    def sample(self, items: Sequence[Item], size: int) -> list[Item]:
        """Draw `size` distinct items, in random order."""
        return [items[index] for index in self.permutation(len(items))[:size]]

    def draw_weighted(self, weights: Sequence[int]) -> int:
        """Draw an index in proportion to non-negative integer weights, not all zero."""
        target = self.below_big(sum(weights))
        for index, weight in enumerate(weights):
            target -= weight
            if target < 0:
                return index
        raise ValueError("weights must not all be zero")

    def below_big(self, limit: int) -> int:
        """Draw an integer in [0, limit) for limits up to 2**96; its bias is below 2**-32."""
        return (((self._word() << 64) | self._word()) * limit) >> 128


def scale_words(words: NDArray[np.uint64], limit: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the integers that `PublicRandom.below` makes of the stream's words: int64.

    Args:
        limit: up to 2**32.
    """
    # The product has 96 bits, so it is made of two halves.
    bound, half = np.asarray(limit, dtype=np.uint64), np.uint64(32)
    low = (words & np.uint64(0xFFFFFFFF)) * bound >> half
    return ((words >> half) * bound + low >> half).astype(np.int64)


class CutTable:
    """A table of the candidate cuts of all features; rows are replaced one by one.

    Attributes:
        cuts: int64 [n_features, most cuts], ascending; each row counts up to its number of cuts.
        n_cuts: int64 [n_features].
        below: int64 [n_features, most cuts + 1], how much the cuts before each place count together, see `put`.
    """

    def __init__(self, grid: Grid) -> None:
        most = max((len(feature.edges) for feature in grid.features), default=0)
        self.cuts = np.zeros((grid.n_features, most), dtype=np.int64)
        self.n_cuts = np.zeros(grid.n_features, dtype=np.int64)
        self.below = np.zeros((grid.n_features, most + 1), dtype=np.int64)

    @classmethod
    def from_cuts(cls, cuts: Cuts, grid: Grid) -> CutTable:
        """Return the table of some features' candidates; the others have none."""
        table = cls(grid)
        for feature, row in cuts.items():
            table.put(feature, row)
        return table

    def put(self, feature: int, cuts: Sequence[int], counts: Sequence[int] | None = None) -> None:
        """Replace the candidates of one feature.

        Args:
            counts: weight of each cut when a node is divided by the middle half of its cuts; 1 each by default.
        """
        self.cuts[feature, : len(cuts)] = cuts
        self.n_cuts[feature] = len(cuts)
        own = np.ones(len(cuts), dtype=np.int64) if counts is None else counts
        self.below[feature, 1 : len(cuts) + 1] = np.cumsum(own)

    def of_feature(self, feature: int) -> list[int]:
        """Return the candidates of one feature."""
        cuts: list[int] = self.cuts[feature, : self.n_cuts[feature]].tolist()
        return cuts


def random_tree(
    randomness: PublicRandom, features: Sequence[int], cuts: Cuts, grid: Grid, depth: int, groups: Groups | None = None
) -> TreeBatch:
    """Draw one totally random tree, see `random_trees`; return a batch of one."""
    return random_trees([randomness], [features], CutTable.from_cuts(cuts, grid), grid, depth, groups)


def random_trees(
    randomness: Sequence[PublicRandom],
    subsets: Sequence[Sequence[int]],
    cuts: CutTable,
    grid: Grid,
    depth: int,
    groups: Groups | None = None,
    is_central: bool = False,
) -> TreeBatch:
    """Draw totally random trees, one for each subset of features.

    Args:
        randomness: the public stream of each tree, from the plan's seed and the tree's number.
        subsets: the features that each tree may ask for, at least one.
        cuts: for every numeric feature of these, its candidates; categorical features need none.
        depth: levels of splits, 1 to 8.
        groups: which features may meet on a path: bool [n_groups, n_features]; None for all.
        is_central: whether nodes of trees on several features are divided by the middle half of the candidates that
            divide them, as the table counts these, not by any: few levels tell more of how features meet where both
            sides hold many records.
    """
    n_trees, n_nodes = len(subsets), 2**depth - 1
    trees = TreeBatch(
        feature=np.zeros((n_trees, n_nodes), dtype=np.int32),
        goes_left=np.ones((n_trees, n_nodes, grid.n_codes), dtype=np.uint8),
        # Nodes that nothing divides send everything left.
        threshold=np.full((n_trees, n_nodes), grid.n_codes - 1, dtype=np.int32),
    )
    for tree, features in enumerate(subsets):
        first = grid.features[features[0]]
        trees.feature[tree] = features[0]
        if len(features) == 1 and first.is_categorical:
            trees.threshold[tree] = -1
            _draw_by_category(randomness[tree], first.n_codes, trees.goes_left[tree])
        else:
            drawer = _Drawer(randomness[tree], features, cuts, grid, groups, is_central and len(features) > 1)
            drawer.draw(trees.feature[tree], trees.goes_left[tree], trees.threshold[tree])
    return trees


def _order_codes(randomness: PublicRandom, n_codes: int) -> NDArray[np.int64]:
    """Return a random order of a categorical feature's codes.

    If it has very many, a coin decides between that and the order of its list.
    """
    if n_codes > MANY_CODES and randomness.coin():
        return np.arange(n_codes)
    return np.array(randomness.permutation(n_codes), dtype=np.int64)


def _draw_by_category(randomness: PublicRandom, n_codes: int, goes_left: NDArray[np.uint8]) -> None:
    """Write a tree with a leaf for every category, if there are enough leaves.

    Otherwise neighbours in an order of the categories share a leaf.

    Args:
        n_codes: codes of the feature.
        goes_left: uint8 [n_nodes, at least n_codes]; written.
    """
    n_nodes = len(goes_left)
    n_leaves = n_nodes + 1
    leaf = _order_codes(randomness, n_codes)
    if n_codes > n_leaves:
        starts_leaf = np.zeros(n_codes, dtype=np.int64)
        starts_leaf[np.array(randomness.permutation(n_codes - 1)[: n_leaves - 1]) + 1] = 1
        leaf = np.cumsum(starts_leaf)[leaf]
    goes_left[:, n_codes:] = 0
    level_start, span = 0, n_leaves
    for node in range(n_nodes):
        if node > 2 * level_start:
            level_start, span = node, span // 2
        goes_left[node, :n_codes] = leaf < (node - level_start) * span + span // 2


class _Drawer:
    """Draws one tree; arguments as of `random_trees`."""

    def __init__(
        self,
        randomness: PublicRandom,
        features: Sequence[int],
        cuts: CutTable,
        grid: Grid,
        groups: Groups | None,
        is_central: bool,
    ) -> None:
        self._randomness, self._features, self._cuts, self._grid = randomness, features, cuts, grid
        self._groups, self._is_central = groups, is_central
        # The cuts of a categorical feature count its codes in an order of them.
        grids = [grid.features[feature] for feature in features]
        self._orders = [_order_codes(randomness, part.n_codes) if part.is_categorical else None for part in grids]

    def draw(self, feature: NDArray[np.int32], goes_left: NDArray[np.uint8], threshold: NDArray[np.int32]) -> None:
        """Draw and write the splits of one tree, node after node, from the root.

        At each node the feature is drawn uniformly, then a candidate among those that divide the node. The arrays are
        those of a `TreeBatch` for one tree; written where a node is divided.
        """
        # Pending nodes, each with the open stretch of every feature's cuts, as its first and its end, and with the
        # groups that hold all features above the node.
        ends = [
            int(self._cuts.n_cuts[number]) if order is None else len(order) - 1
            for number, order in zip(self._features, self._orders, strict=True)
        ]
        pending = [(0, [(0, end) for end in ends], self._groups)]
        while pending:
            node, stretches, groups = pending.pop()
            usable = [slot for slot, (first, end) in enumerate(stretches) if first < end]
            if not usable:
                continue
            slot = usable[self._randomness.below(len(usable))]
            (first, end), own, order = stretches[slot], self._features[slot], self._orders[slot]
            position = self._choose_cut(own, first, end, is_ordered=order is None)
            feature[node] = own
            if order is None:
                # Codes beyond the feature's own never occur; they follow the missing one: one interval goes right.
                missing = self._grid.features[own].missing_code
                threshold[node] = self._cuts.cuts[own, position]
                goes_left[node, threshold[node] + 1 : missing] = 0
                goes_left[node, missing:] = self._randomness.coin()
            else:
                threshold[node] = -1
                goes_left[node, : len(order)] = order <= position
                goes_left[node, len(order) :] = 0
            if 2 * node + 2 < len(feature):
                left, right = list(stretches), list(stretches)
                left[slot], right[slot] = (first, position), (position + 1, end)
                if groups is not None:
                    groups = groups[groups[:, own]]
                    closed = [other for other, asked in enumerate(self._features) if not groups[:, asked].any()]
                    for other in closed:
                        left[other] = right[other] = (0, 0)
                pending += [(2 * node + 2, right, groups), (2 * node + 1, left, groups)]

    def _choose_cut(self, feature: int, first: int, end: int, *, is_ordered: bool) -> int:
        """Draw one of a feature's cuts first..end-1, or of their middle half."""
        if not (self._is_central and is_ordered):
            left_out = (end - first) // 4 if self._is_central else 0
            return first + left_out + self._randomness.below(end - first - 2 * left_out)
        # The middle half of what the cuts count: a cut beside a cell of many records stands in for many of them.
        below = self._cuts.below[feature]
        weight = int(below[end] - below[first])
        place = int(below[first]) + weight // 4 + self._randomness.below(weight - 2 * (weight // 4))
        return first + int(np.searchsorted(below[first + 1 : end + 1], place, side="right"))


def deepen(fitted: FittedTrees, depth: int) -> FittedTrees:
    """Return the trees with added levels that send everything left.

    Args:
        depth: levels of the result, at least those of the trees.
    """
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


def find_cuts(trees: TreeBatch, feature: int) -> set[int]:
    """Return the cells after which any node of the trees cuts a numeric feature."""
    found = set(trees.threshold[trees.feature == feature].tolist())
    return {cut for cut in found if cut < trees.goes_left.shape[2] - 1}


def with_edges(fitted: FittedTrees, grid: Grid, edges: Mapping[int, NDArray[np.float32]]) -> FittedTrees:
    """Return the same trees over a grid with new edges of some features.

    Args:
        edges: new ones by feature, as many as before; every cut of the trees is among them.
    """
    trees = fitted.trees
    goes_left, threshold = trees.goes_left.copy(), trees.threshold.copy()
    for feature, new in edges.items():
        tree, node = np.nonzero(trees.feature == feature)
        if not len(tree):
            continue
        old = grid.features[feature].edges
        # A new cell lies within an old one, or in several that no cut parts: its lower end says which.
        lower = np.append(np.float32(-np.inf), new)
        codes = np.arange(goes_left.shape[2])
        codes[: len(lower)] = np.searchsorted(old, lower, side="right")
        goes_left[tree, node] = trees.goes_left[tree, node][:, codes]
        cuts = trees.threshold[tree, node]
        is_cut = cuts < goes_left.shape[2] - 1
        threshold[tree[is_cut], node[is_cut]] = np.searchsorted(new, old[cuts[is_cut]])
    return FittedTrees(TreeBatch(trees.feature, goes_left, threshold), fitted.values)


def make_trees(grid: Grid, feature: NDArray[np.integer[Any]], cut: NDArray[np.integer[Any]]) -> TreeBatch:
    """Return complete trees from the feature and the cut of each node.

    A node sends the codes of its feature up to the cut to the left; those of a categorical feature are a set.

    Args:
        feature, cut: int [B, 2**depth - 1], of each node, numbered as in a heap.
    """
    is_set = np.array([column.is_categorical for column in grid.features])[feature]
    goes_left = np.arange(grid.n_codes) <= cut[:, :, None]
    return TreeBatch(feature.astype(np.int32), goes_left.astype(np.uint8), np.where(is_set, -1, cut).astype(np.int32))


def concatenate(batches: Sequence[TreeBatch]) -> TreeBatch:
    """Join batches of equal depth into one."""
    return TreeBatch(
        feature=np.concatenate([batch.feature for batch in batches]),
        goes_left=np.concatenate([batch.goes_left for batch in batches]),
        threshold=np.concatenate([batch.threshold for batch in batches]),
    )


def intervals(
    goes_left: NDArray[np.uint8], threshold: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first code that goes right and the length of its stretch, for each node.

    Both are int64 [B, n_nodes].

    Where the codes that go right are not one stretch that begins after the threshold, the length is SMALL_SET, and the
    first number has a bit for each of 64 codes, set for those that go right as all later codes do; or it is ANY_SET.

    Args:
        goes_left: uint8 [B, n_nodes, n_codes].
        threshold: int32 [B, n_nodes], negative for a node that does not split ordered codes.
    """
    goes_right = goes_left == 0
    n_right, first = goes_right.sum(axis=2), threshold.astype(np.int64) + 1
    codes = np.arange(goes_left.shape[2])
    # A stretch of n_right codes has to hold exactly the codes that go right.
    is_within = (codes >= first[..., None]) & (codes < (first + n_right)[..., None])
    is_stretch = (is_within == goes_right).all(axis=2) & (threshold >= 0)
    bits = (goes_right[..., :SMALL_CODES] << codes[:SMALL_CODES].astype(np.uint64)).sum(axis=2, dtype=np.uint64)
    is_small = goes_right[..., SMALL_CODES:].all(axis=2) & (threshold < 0)
    width = np.where(is_stretch, n_right, np.where(is_small, SMALL_SET, ANY_SET))
    return np.where(threshold >= 0, first, np.where(is_small, bits.view(np.int64), 0)), width


@dataclass(frozen=True, eq=False)
class Shapes:
    """Facts about a batch's leaves that follow from its public structure.

    Attributes:
        single: int64 [B], the feature of a tree that asks for one only, -1 for others.
        is_ordered: bool [B], trees whose leaves are stretches of one numeric feature, in the order of its values.
        leaf_of_code: uint8 [B, n_codes], the leaf of each code of a tree on a single feature; 0 for others.
        reachable: bool [B, n_leaves], leaves that a record can reach; the others hold only noise.
    """

    single: NDArray[np.int64]
    is_ordered: NDArray[np.bool_]
    leaf_of_code: NDArray[np.uint8]
    reachable: NDArray[np.bool_]


@lru_cache(maxsize=2)
def find_shapes(trees: TreeBatch) -> Shapes:
    """Return the shapes of a batch.

    They are kept, since its sums, its values and its update all ask for them.
    """
    n_trees, n_nodes, n_codes = trees.goes_left.shape
    is_single = (trees.feature == trees.feature[:, :1]).all(axis=1)
    # Follow each code through trees on one feature. For other trees find only the leaves that any code can reach.
    node = np.zeros((n_trees, n_codes), dtype=np.int64)
    is_alive = np.ones((n_trees, 1), dtype=np.bool_)
    has_right: NDArray[np.bool_] = (trees.goes_left == 0).any(axis=2)
    for level in range(trees.depth):
        node = 2 * node + 2 - np.take_along_axis(trees.goes_left, node[:, None], axis=1)[:, 0]
        own = has_right[:, 2**level - 1 : 2 ** (level + 1) - 1]
        is_alive = np.stack([is_alive, is_alive & own], axis=2).reshape(n_trees, 2 << level)
    leaf_of_code = np.where(is_single[:, None], node - n_nodes, 0).astype(np.uint8)
    is_reached = np.zeros((n_trees, n_nodes + 1), dtype=np.bool_)
    np.put_along_axis(is_reached, leaf_of_code.astype(np.intp), True, axis=1)
    return Shapes(
        single=np.where(is_single, trees.feature[:, 0], -1).astype(np.int64),
        is_ordered=is_single & (trees.threshold >= 0).all(axis=1),
        leaf_of_code=leaf_of_code,
        reachable=np.where(is_single[:, None], is_reached, is_alive),
    )
