"""Totally random trees: structures drawn from public randomness and public candidates, before any record is asked.

The randomness is a stream that anyone can expand again from the plan's seed, so a node can check that the coordinator
did not pick the trees. It is SHAKE-256 of the seed and a label, read as 64-bit words: the same on every machine and in
every release, which numpy's generators do not promise. It must never be used for noise, masks or subsampling.

Source: Maddock et al., CCS'22, section 4.3.2 (totally random splits) and 5.1 (feature interactions). A split is drawn
among the candidates that still divide the node's cells, so no leaf is empty by construction; a node that no candidate
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
from itertools import accumulate
from typing import TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from hedgerow.plan.plan import MANY_CATEGORIES
from hedgerow.protocol.queries import FittedTrees, TreeBatch
from hedgerow.trees.binning import Grid

Item = TypeVar("Item")
Words = NDArray[np.uint64]
Cuts = Mapping[int, Sequence[int]]
"""Per feature, the ascending cell numbers c at which a split "cells <= c go left" may be made."""

Groups = NDArray[np.bool_]
"""Which features may meet on a path of a tree: [n_groups, n_features]; see `hedgerow.trees.constraints`."""

WORDS_PER_REFILL = 512
ANY_SET, SMALL_SET = -1, -2
"""In place of the length of a node's interval, see `intervals`."""
SMALL_CODES = 64
"""How many codes have a bit in a word."""
MANY_CODES = MANY_CATEGORIES + 2
"""With more, a categorical feature is divided in the order of its list by every second draw: codes of diagnoses or
places that begin alike stand together, and a few large leaves say what they have in common."""


class PublicRandom:
    """A deterministic stream of integers.

    Args:
        seed: the plan's structure seed, a non-negative integer.
        label: separates the streams of one seed, e.g. "tree 17".
    """

    def __init__(self, seed: int, label: str) -> None:
        self._key = f"hedgerow public randomness v1|{seed}|{label}".encode()
        self._refills = 0
        # The words that are left of the last block, last one first.
        self._words: list[int] = []

    def _block(self, number: int, n_words: int) -> bytes:
        """The first words of one block of the stream."""
        return hashlib.shake_256(self._key + b"|%d" % number).digest(8 * n_words)

    def _word(self) -> int:
        if not self._words:
            block = self._block(self._refills, WORDS_PER_REFILL)
            self._words = list(struct.unpack(f"<{WORDS_PER_REFILL}Q", block))[::-1]
            self._refills += 1
        return self._words.pop()

    def first_words(self, count: int) -> Words:
        """The first `count` words of the stream, whatever was taken of it: uint64 [count]."""
        sizes = [min(WORDS_PER_REFILL, count - start) for start in range(0, count, WORDS_PER_REFILL)]
        content = b"".join([self._block(number, size) for number, size in enumerate(sizes)])
        return np.frombuffer(content, dtype="<u8").astype(np.uint64)

    def below(self, limit: int) -> int:
        """An integer in [0, limit), for 1 <= limit <= 2**32; its bias is below 2**-32."""
        return (self._word() * limit) >> 64

    def coin(self) -> bool:
        """True or false, evenly."""
        return bool(self._word() & 1)

    def permutation(self, size: int) -> list[int]:
        """0 .. size-1 in random order (Fisher and Yates)."""
        order = list(range(size))
        for last in range(size - 1, 0, -1):
            other = self.below(last + 1)
            order[last], order[other] = order[other], order[last]
        return order

    def sample(self, items: Sequence[Item], size: int) -> list[Item]:
        """`size` distinct items, in random order."""
        return [items[index] for index in self.permutation(len(items))[:size]]

    def draw_weighted(self, weights: Sequence[int]) -> int:
        """An index, drawn in proportion to non-negative integer weights, not all zero."""
        target = self.below_big(sum(weights))
        for index, weight in enumerate(weights):
            target -= weight
            if target < 0:
                return index
        raise ValueError("weights must not all be zero")

    def below_big(self, limit: int) -> int:
        """An integer in [0, limit) for limits up to 2**96; its bias is below 2**-32."""
        return (((self._word() << 64) | self._word()) * limit) >> 128


class CutTable:
    """The candidates of all features, as the kernel takes them; rows are replaced one by one.

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
        """The table of some features' candidates; the others have none."""
        table = cls(grid)
        for feature, row in cuts.items():
            table.put(feature, row)
        return table

    def put(self, feature: int, cuts: Sequence[int], counts: Sequence[int] | None = None) -> None:
        """Replace the candidates of one feature.

        Args:
            counts: as how many cuts each counts where a node is divided by the middle half of them; by default as one.
        """
        self.cuts[feature, : len(cuts)] = cuts
        self.n_cuts[feature] = len(cuts)
        own = np.ones(len(cuts), dtype=np.int64) if counts is None else counts
        self.below[feature, 1 : len(cuts) + 1] = np.cumsum(own)

    def of_feature(self, feature: int) -> list[int]:
        """The candidates of one feature."""
        cuts: list[int] = self.cuts[feature, : self.n_cuts[feature]].tolist()
        return cuts


def draw_words(seed: int, first: int, subsets: Sequence[Sequence[int]], grid: Grid, depth: int) -> Words:
    """The words that a batch is drawn from, each tree's from the public stream of its number: uint64 [B, n_words].

    Args:
        seed: of the run's structures.
        first: the number of the batch's first tree.
        subsets: the features that each tree may ask for.
    """
    n_words = words_for(grid, depth, max(map(len, subsets)))
    return np.stack([PublicRandom(seed, f"tree {first + i}").first_words(n_words) for i in range(len(subsets))])


def words_for(grid: Grid, depth: int, subset_size: int) -> int:
    """Words that suffice for a tree that may ask for `subset_size` features: the orders of categories, three a node."""
    n_codes, is_categorical = grid.codes_of_features
    orders = sorted((2 * n_codes * is_categorical).tolist())[-subset_size:]
    return int(3 * (2**depth - 1) + sum(orders))


def random_tree(
    randomness: PublicRandom, features: Sequence[int], cuts: Cuts, grid: Grid, depth: int, groups: Groups | None = None
) -> TreeBatch:
    """One totally random tree, see `random_trees`; a batch of one."""
    words = randomness.first_words(words_for(grid, depth, len(features)))
    return random_trees(words[None], [features], CutTable.from_cuts(cuts, grid), grid, depth, groups)


def random_trees(
    randomness: Words,
    subsets: Sequence[Sequence[int]],
    cuts: CutTable,
    grid: Grid,
    depth: int,
    groups: Groups | None = None,
    is_central: bool = False,
) -> TreeBatch:
    """Totally random trees, one for each subset of features.

    Args:
        randomness: uint64 [B, n_words], the public words of each tree, as many as `words_for` says or more.
        subsets: the features that each tree may ask for, at least one.
        cuts: for every numeric feature of these, its candidates; categorical features need none.
        depth: levels of splits, 1 to 8.
        groups: which features may meet on a path: bool [n_groups, n_features]; None for all.
        is_central: whether nodes of trees on several features are divided by the middle half of the candidates that
            divide them, as the table counts these, not by any: few levels tell more of how features meet where both
            sides hold many records.
    """
    n_codes, is_categorical = grid.codes_of_features
    drawn = draw_trees(
        np.ascontiguousarray(randomness),
        np.array([feature for features in subsets for feature in features], dtype=np.int64),
        np.array([0, *accumulate(map(len, subsets))], dtype=np.int64),
        cuts.cuts,
        cuts.n_cuts,
        cuts.below,
        n_codes,
        is_categorical,
        2**depth - 1,
        grid.n_codes,
        np.ones((1, grid.n_features), dtype=np.bool_) if groups is None else groups,
        is_central,
    )
    return TreeBatch(*drawn)


@numba.njit(cache=True, nogil=True)
def _below(word, limit):  # type: ignore[no-untyped-def]
    """word * limit >> 64 for limit <= 2**32: the product has 96 bits, so it is made of two halves."""
    size = np.uint64(limit)
    low = (word & np.uint64(0xFFFFFFFF)) * size
    high = (word >> np.uint64(32)) * size
    return np.int64((high + (low >> np.uint64(32))) >> np.uint64(32))


@numba.njit(cache=True, nogil=True)
def permutation(words, at, order):  # type: ignore[no-untyped-def]
    """Write 0 .. len(order)-1 in random order (Fisher and Yates); returns the next word's position."""
    for i in range(len(order)):
        order[i] = i
    for last in range(len(order) - 1, 0, -1):
        other = _below(words[at], last + 1)
        at += 1
        order[last], order[other] = order[other], order[last]
    return at


@numba.njit(cache=True, nogil=True)
def _order_codes(words, at, order):  # type: ignore[no-untyped-def]
    """Writes the codes of a categorical feature in random order, or, of very many, by a coin in that of the list."""
    if len(order) > MANY_CODES:
        at += 1
        if words[at - 1] & np.uint64(1):
            order[:] = np.arange(len(order))
            return at
    return permutation(words, at, order)


@numba.njit(cache=True, nogil=True)
def draw_trees(  # type: ignore[no-untyped-def]
    words, features, starts, cuts, n_cuts, below, n_codes, is_categorical, n_nodes, n_grid_codes, groups, is_central
):
    """Draw a batch of trees; a categorical feature by itself is divided by its categories.

    Args:
        words: uint64 [B, n_words]; at least 2 * n_codes for each categorical feature of a tree and 3 for each of its
            nodes.
        features: int64, the features that each tree may ask for, those of one tree after those of another.
        starts: int64 [B + 1], where the features of each tree begin.
        cuts, n_cuts: int64 [n_features, most cuts] and [n_features], the ascending cuts of each numeric feature.
        below: int64 [n_features, most cuts + 1], see `CutTable`.
        n_codes, is_categorical: int64 and bool [n_features].
        n_nodes, n_grid_codes: of every tree, and of the grid.
        groups: bool [n_groups, n_features], which features may meet on a path.
        is_central: whether, in trees on several features, the first and the last quarter of a node's open cuts are
            left out.

    Returns:
        What `hedgerow.protocol.queries.TreeBatch` holds, in its order.
    """
    n_trees = len(starts) - 1
    feature = np.zeros((n_trees, n_nodes), dtype=np.int32)
    goes_left = np.empty((n_trees, n_nodes, n_grid_codes), dtype=np.uint8)
    threshold = np.full((n_trees, n_nodes), n_grid_codes - 1, dtype=np.int32)
    for tree in range(n_trees):
        own, stream = features[starts[tree] : starts[tree + 1]], words[tree]
        # Nodes that nothing divides send everything left.
        goes_left[tree] = 1
        if len(own) == 1 and is_categorical[own[0]]:
            feature[tree], threshold[tree] = own[0], -1
            _draw_by_category(stream, n_codes[own[0]], goes_left[tree])
        else:
            _draw_randomly(
                stream, own, cuts, n_cuts, below, n_codes, is_categorical, groups, is_central and len(own) > 1,
                feature[tree], goes_left[tree], threshold[tree],
            )  # fmt: skip
    return feature, goes_left, threshold


@numba.njit(cache=True, nogil=True)
def _draw_by_category(words, n_codes, goes_left):  # type: ignore[no-untyped-def]
    """Every category a leaf of its own when there are enough; else neighbours in an order of them share one.

    Args:
        words: uint64, at least 2 * n_codes.
        n_codes: codes of the feature.
        goes_left: uint8 [n_nodes, at least n_codes]; written.
    """
    n_nodes = len(goes_left)
    n_leaves = n_nodes + 1
    order = np.empty(n_codes, dtype=np.int64)
    at = _order_codes(words, np.int64(0), order)
    starts_leaf = np.zeros(n_codes + 1, dtype=np.int64)
    if n_codes <= n_leaves:
        starts_leaf[1:n_codes] = 1
    else:
        borders = np.empty(n_codes - 1, dtype=np.int64)
        permutation(words, at, borders)
        for i in range(n_leaves - 1):
            starts_leaf[borders[i] + 1] = 1
    leaf = np.cumsum(starts_leaf)[order]
    goes_left[:, n_codes:] = 0
    level_start, span = 0, n_leaves
    for node in range(n_nodes):
        if node > 2 * level_start:
            level_start, span = node, span // 2
        middle = (node - level_start) * span + span // 2
        for code in range(n_codes):
            goes_left[node, code] = leaf[code] < middle


@numba.njit(cache=True, nogil=True)
def _choice(words, at, first, end, features, below, is_categorical, is_central):  # type: ignore[no-untyped-def]
    """One feature among those with a cut left, -1 if there is none; one of its cuts; the next word's position."""
    n_usable = 0
    for i in range(len(first)):
        n_usable += first[i] < end[i]
    if n_usable == 0:
        return -1, np.int64(0), at
    chosen, skipped = -1, _below(words[at], n_usable)
    while skipped >= 0:
        chosen += 1
        skipped -= first[chosen] < end[chosen]
    start, n_cuts, own = first[chosen], end[chosen] - first[chosen], features[chosen]
    if not is_central or is_categorical[own]:
        left_out = n_cuts // 4 if is_central else 0
        return chosen, start + left_out + _below(words[at + 1], n_cuts - 2 * left_out), at + 2
    # The middle half of what the cuts count: a cut beside a cell of many records stands in for many of them.
    weight = below[own, end[chosen]] - below[own, start]
    place = below[own, start] + weight // 4 + _below(words[at + 1], weight - 2 * (weight // 4))
    position = start
    while below[own, position + 1] <= place:
        position += 1
    return chosen, position, at + 2


@numba.njit(cache=True, nogil=True)
def _draw_randomly(  # type: ignore[no-untyped-def]
    words, features, cuts, n_cuts, below, n_codes, is_categorical, groups, is_central, feature, goes_left, threshold
):
    """Split node after node, from the root: a feature uniformly, and a candidate of those of it that divide the node.

    The candidate is any of them, or of their middle half where `is_central`, uniformly.

    The arguments are those of `draw_trees` for one tree, and its arrays, which are written; the cuts of a categorical
    feature count its codes in an order of them.
    """
    n_nodes, k = len(feature), len(features)
    orders = np.empty((k, n_codes.max()), dtype=np.int64)
    # What is still open of each feature's cuts, node by node: a stretch of them, as its first and its end.
    first, end = np.zeros((n_nodes, k), dtype=np.int64), np.empty((n_nodes, k), dtype=np.int64)
    # The groups that hold all features above a node.
    is_open = np.ones((n_nodes, len(groups)), dtype=np.bool_)
    at = np.int64(0)
    for i in range(k):
        own = features[i]
        end[0, i] = n_codes[own] - 1 if is_categorical[own] else n_cuts[own]
        if is_categorical[own]:
            at = _order_codes(words, at, orders[i, : n_codes[own]])
    pending, n_pending = np.zeros(n_nodes, dtype=np.int64), 1
    while n_pending:
        n_pending -= 1
        node = pending[n_pending]
        chosen, position, at = _choice(words, at, first[node], end[node], features, below, is_categorical, is_central)
        feature[node] = features[max(chosen, 0)]
        if chosen >= 0 and is_categorical[feature[node]]:
            threshold[node] = -1
            _send_set(goes_left[node], orders[chosen, : n_codes[feature[node]]], position)
        elif chosen >= 0:
            threshold[node] = cuts[feature[node], position]
            missing_left = words[at] & np.uint64(1)
            at += 1
            # Codes beyond the feature's own never occur; they follow the missing one: one interval goes right.
            missing = n_codes[feature[node]] - 1
            goes_left[node, threshold[node] + 1 : missing] = 0
            goes_left[node, missing:] = missing_left
        for child in range(2 * node + 2, 2 * node, -1):
            if child < n_nodes:
                for i in range(k):
                    first[child, i], end[child, i] = first[node, i], end[node, i]
                if chosen >= 0 and child == 2 * node + 1:
                    end[child, chosen] = position
                elif chosen >= 0:
                    first[child, chosen] = position + 1
                if len(groups) > 1:
                    for group in range(len(groups)):
                        is_open[child, group] = is_open[node, group]
                        if chosen >= 0:
                            is_open[child, group] &= groups[group, features[chosen]]
                    if chosen >= 0:
                        _close(groups, is_open[child], features, first[child], end[child])
                pending[n_pending] = child
                n_pending += 1


@numba.njit(cache=True, nogil=True)
def _close(groups, is_open, features, first, end):  # type: ignore[no-untyped-def]
    """Leaves no cuts open of features that are in no open group."""
    for i in range(len(features)):
        is_closed = True
        for group in range(len(groups)):
            is_closed &= not (is_open[group] and groups[group, features[i]])
        if is_closed:
            first[i] = end[i]


@numba.njit(cache=True, nogil=True)
def _send_set(goes_left, order, last):  # type: ignore[no-untyped-def]
    """Sends left the codes up to place `last` of an order; `order` has the place of each code."""
    for code in range(len(order)):
        goes_left[code] = order[code] <= last
    goes_left[len(order) :] = 0


def deepen(fitted: FittedTrees, depth: int) -> FittedTrees:
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


def find_cuts(trees: TreeBatch, feature: int) -> set[int]:
    """The cells after which any node of the trees cuts a numeric feature."""
    found = set(trees.threshold[trees.feature == feature].tolist())
    return {cut for cut in found if cut < trees.goes_left.shape[2] - 1}


def with_edges(fitted: FittedTrees, grid: Grid, edges: Mapping[int, NDArray[np.float32]]) -> FittedTrees:
    """The same trees over a grid of which some features were cut again.

    Args:
        grid: before.
        edges: new ones by feature, as many as before; every cut of the trees is among them.
    """
    trees = fitted.trees
    goes_left, threshold = trees.goes_left.copy(), trees.threshold.copy()
    for feature, new in edges.items():
        old = grid.features[feature].edges
        tree, node = np.nonzero(trees.feature == feature)
        # A new cell lies within an old one, or in several that no cut parts: its lower end says which.
        lower = np.append(np.float32(-np.inf), new)
        codes = np.arange(goes_left.shape[2])
        codes[: len(lower)] = np.searchsorted(old, lower, side="right")
        goes_left[tree, node] = trees.goes_left[tree, node][:, codes]
        cuts = trees.threshold[tree, node]
        is_cut = cuts < goes_left.shape[2] - 1
        threshold[tree[is_cut], node[is_cut]] = np.searchsorted(new, old[cuts[is_cut]])
    return FittedTrees(TreeBatch(trees.feature, goes_left, threshold), fitted.values)


def concatenate(batches: Sequence[TreeBatch]) -> TreeBatch:
    """Batches of equal depth as one."""
    return TreeBatch(
        feature=np.concatenate([batch.feature for batch in batches]),
        goes_left=np.concatenate([batch.goes_left for batch in batches]),
        threshold=np.concatenate([batch.threshold for batch in batches]),
    )


@numba.njit(cache=True, nogil=True)
def intervals(goes_left, threshold):  # type: ignore[no-untyped-def]
    """Per node the first code that goes right and the length of that one stretch: two of int64 [B, n_nodes].

    Where the codes that go right are not one stretch that begins after the threshold, the length is SMALL_SET, and the
    first number has a bit for each of 64 codes, set for those that go right as all later codes do; or it is ANY_SET.

    Args:
        goes_left: uint8 [B, n_nodes, n_codes].
        threshold: int32 [B, n_nodes], negative for a node that does not split ordered codes.
    """
    n_trees, n_nodes, n_codes = goes_left.shape
    start = np.zeros((n_trees, n_nodes), dtype=np.int64)
    width = np.full((n_trees, n_nodes), ANY_SET, dtype=np.int64)
    for tree in range(n_trees):
        for node in range(n_nodes):
            if threshold[tree, node] < 0:
                if _n_left(goes_left[tree, node, SMALL_CODES:]) == 0:
                    width[tree, node] = SMALL_SET
                    for code in range(min(n_codes, SMALL_CODES)):
                        start[tree, node] |= np.int64(1 - goes_left[tree, node, code]) << np.int64(code)
                continue
            # As many go right as are not left, and they are one stretch if none in a stretch of that length goes left.
            first, n_right = np.int64(threshold[tree, node]) + 1, n_codes - _n_left(goes_left[tree, node])
            start[tree, node] = first
            if first + n_right <= n_codes and _n_left(goes_left[tree, node, first : first + n_right]) == 0:
                width[tree, node] = n_right
    return start, width


@numba.njit(cache=True, nogil=True)
def _n_left(goes_left):  # type: ignore[no-untyped-def]
    """How many codes go left."""
    n_left = np.int64(0)
    for code in range(len(goes_left)):
        n_left += np.int64(goes_left[code])
    return n_left


@dataclass(frozen=True, eq=False)
class Shapes:
    """What the public structure of a batch says about its leaves.

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
    """The shapes of a batch; kept, since its sums, its values and its update all ask for them."""
    return Shapes(*compute_shapes(trees.feature, trees.goes_left, trees.threshold))


@numba.njit(cache=True, nogil=True)
def compute_shapes(feature, goes_left, threshold):  # type: ignore[no-untyped-def]
    """What `Shapes` holds, in its order.

    Args:
        feature, threshold: int32 [B, n_nodes].
        goes_left: uint8 [B, n_nodes, n_codes], 0 or 1.
    """
    n_trees, n_nodes, n_codes = goes_left.shape
    single, is_ordered = np.empty(n_trees, dtype=np.int64), np.empty(n_trees, dtype=np.bool_)
    leaf_of_code = np.zeros((n_trees, n_codes), dtype=np.uint8)
    reachable = np.zeros((n_trees, n_nodes + 1), dtype=np.bool_)
    for tree in range(n_trees):
        is_single, has_order = True, True
        for node in range(n_nodes):
            is_single &= feature[tree, node] == feature[tree, 0]
            has_order &= threshold[tree, node] >= 0
        single[tree], is_ordered[tree] = feature[tree, 0] if is_single else -1, is_single and has_order
        if is_single:
            _follow_codes(goes_left[tree], leaf_of_code[tree], reachable[tree])
        else:
            _follow_sides(goes_left[tree], reachable[tree])
    return single, is_ordered, leaf_of_code, reachable


@numba.njit(cache=True, nogil=True)
def _follow_codes(goes_left, leaf_of_code, reachable):  # type: ignore[no-untyped-def]
    """Write the leaf that each code ends in, and marks it."""
    n_nodes, n_codes = goes_left.shape
    for code in range(n_codes):
        node = 0
        while node < n_nodes:
            node = 2 * node + 2 - goes_left[node, code]
        leaf_of_code[code] = node - n_nodes
        reachable[node - n_nodes] = True


@numba.njit(cache=True, nogil=True)
def _follow_sides(goes_left, reachable):  # type: ignore[no-untyped-def]
    """Marks the leaves below nodes that send any code to their side; something always goes left."""
    n_nodes = len(goes_left)
    is_alive = np.zeros(2 * n_nodes + 1, dtype=np.bool_)
    is_alive[0] = True
    for node in range(n_nodes):
        is_alive[2 * node + 1] = is_alive[node]
        is_alive[2 * node + 2] = is_alive[node] and _n_left(goes_left[node]) < goes_left.shape[1]
    for leaf in range(n_nodes + 1):
        reachable[leaf] = is_alive[n_nodes + leaf]
