# SPDX-License-Identifier: Apache-2.0
"""Greedy splits from noisy sums: the best split of each node, and the bins left to be split.

Trees grow level by level over the bins between candidates. What a node can still hold follows from the structure alone.
`GrowingTrees.alive` marks, per node and feature, the bins that the splits above it have left, so that the noise in the
others is never added to anything. Missing values of a numeric feature go to a side drawn by coin.

All of it is post-processing of released integers. Every result is made of one chain of IEEE additions, multiplications,
divisions and square roots in the order that is written here: no party's compiler may change it, so that every party
grows the same trees.

Source: Maddock et al., CCS'22, sections 2.1 (equation 5) and 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from hedgerow.losses.tables import Loss
from hedgerow.protocol.queries import IntVector, TreeBatch

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Bins(NamedTuple):
    """The bins of every feature at one moment of a run.

    Attributes:
        of_code: uint16 [n_features, n_codes]; codes beyond a feature's own are in the bin of its missing values.
        n_bins: int64 [n_features]; the last bin holds the missing values.
        last_code: int64 [n_features, width], the last grid code of each bin of a numeric feature.
        is_categorical: bool [n_features].
    """

    of_code: NDArray[np.uint16]
    n_bins: IntArray
    last_code: IntArray
    is_categorical: Mask

    @property
    def width(self) -> int:
        """The largest number of bins of a feature."""
        return int(self.n_bins.max())


class PackedRule(NamedTuple):
    """A `SplitRule` as the kernels take it; `noise_ridge` is per root of the number of released sums."""

    scales: FloatArray
    counts_classes: bool
    n_outputs: int
    leaf_ridge: float
    noise_ridge: float
    leaf_clip: float


@dataclass(frozen=True, eq=False)
class SplitRule:
    """The rule for scoring splits by their sums.

    Attributes:
        loss: scales and order of the statistics.
        leaf_ridge: lambda, in units of the Hessian.
        noise_ridge: further ridge per standard deviation of a gradient sum's noise.
        leaf_clip: largest magnitude of a leaf's value; a split is worth what its clipped leaves are.
        gradient_noise: standard deviation of the noise of one released gradient sum, in real units.
    """

    loss: Loss
    leaf_ridge: float
    noise_ridge: float
    leaf_clip: float
    gradient_noise: float

    def gain(self, sums: IntArray, n_releases: NDArray[np.integer]) -> FloatArray:
        """Return the gain of a leaf with these sums: float64 [...].

        With w = -G / (H + ridge), cut off at leaf_clip, the sum over the outputs of -(2 G w + (H + ridge) w**2), that
        is G**2 / (H + ridge) where nothing is clipped (equation 5; with the clip as XGBoost has it, src/tree/param.h).
        Without the clip a side with hardly any Hessian would win by its noise alone; one whose noisy Hessian is below
        zero is worth less than nothing. For "averaging" of class counts, (class counts)**2 / count.

        Args:
            sums: int64 [..., n_statistics].
            n_releases: integers [...], how many released numbers each sum is made of.
        """
        shape = sums.shape[:-1]
        flat = np.ascontiguousarray(sums).reshape(-1, sums.shape[-1])
        n_flat = np.broadcast_to(n_releases, shape).astype(np.int64).reshape(-1)
        return np.asarray(_gains(flat, n_flat, self.packed)).reshape(shape)

    @property
    def packed(self) -> PackedRule:
        """The rule as the kernels take it."""
        return PackedRule(
            scales=np.asarray(self.loss.scales, dtype=np.float64),
            counts_classes=self.loss.counts_classes,
            n_outputs=max(1, self.loss.n_outputs),
            leaf_ridge=float(self.leaf_ridge),
            noise_ridge=float(self.noise_ridge * self.gradient_noise),
            leaf_clip=float(self.leaf_clip),
        )


@numba.njit(cache=True, nogil=True)
def _gains(sums, n_releases, rule):  # type: ignore[no-untyped-def]
    """Return `SplitRule.gain` of many sums: float64 [n] from int64 [n, n_statistics] and int64 [n]."""
    result = np.empty(len(sums))
    for place in range(len(sums)):
        result[place] = _gain(sums[place], n_releases[place], rule)
    return result


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _gain(sums, n_releases, rule):  # type: ignore[no-untyped-def]
    """Return `SplitRule.gain` of one leaf's sums, int64 [n_statistics]."""
    scales, counts_classes, n_outputs, leaf_ridge, noise_ridge, leaf_clip = rule
    ridge = leaf_ridge + noise_ridge * np.sqrt(np.float64(n_releases))
    last = len(sums) - 1
    if counts_classes:
        n_outputs = last + 1
        for column in range(last + 1):
            ridge = ridge + max(sums[column] / scales[column], 0.0)
    result = 0.0
    for column in range(n_outputs):
        size = sums[column] / scales[column]
        if counts_classes:
            size, denominator = max(size, 0.0), ridge
        else:
            below = min(n_outputs + column, last)
            size, denominator = abs(size), sums[below] / scales[below] + ridge
        value = size / denominator if denominator != 0 else 0.0
        if not counts_classes:
            value = min(max(value, -leaf_clip), leaf_clip)
        result += value * (2 * size - denominator * value)
    return result


class Splits(NamedTuple):
    """The splits of one level.

    Attributes:
        slot: int64 [B, n_nodes], which of its tree's features each node asks for.
        left: bool [B, n_nodes, width], the bins that go left; all of them where a node is not split.
        exists: bool [B, n_nodes], whether the node is split.
    """

    slot: IntArray
    left: Mask
    exists: Mask


class GrowingTrees:
    """A batch of trees that grows level by level.

    Args:
        features: int64 [B, k], the features that each tree considers.
        bins: their bins, fixed while these trees grow.
        n_codes: width of a node's table of codes.
        groups: which features may meet on a path: bool [n_groups, n_features]; None for all.

    Attributes:
        alive: bool [B, n_nodes, k, width], the bins that the splits above have left to each node of the last level.
        allowed: bool [B, n_nodes, k], the features that a node may be split by.
    """

    def __init__(self, features: IntArray, bins: Bins, n_codes: int, groups: Mask | None = None) -> None:
        self.features = features
        self.bins = bins
        self._groups: Mask = np.ones((1, len(bins.n_bins)), dtype=np.bool_) if groups is None else groups
        self._open: Mask = np.ones((len(features), 1, len(self._groups)), dtype=np.bool_)
        self.allowed: Mask = np.ones((len(features), 1, features.shape[1]), dtype=np.bool_)
        self.alive: Mask = (np.arange(bins.width) < bins.n_bins[features][..., None])[:, None]
        n_trees = len(features)
        self._levels = [
            (
                np.zeros((n_trees, 0), dtype=np.int32),
                np.ones((n_trees, 0, n_codes), dtype=np.uint8),
                np.zeros((n_trees, 0), dtype=np.int32),
            )
        ]

    @property
    def trees(self) -> TreeBatch:
        """The trees with their levels so far."""
        feature, goes_left, threshold = (np.concatenate(parts, axis=1) for parts in zip(*self._levels, strict=True))
        return TreeBatch(feature, goes_left, threshold)

    @property
    def values(self) -> Mask:
        """Alive bins that a split may divide: bool [B, n_nodes, k, width].

        They are without the missing values of numeric features.
        """
        return self.alive & ~self._is_missing & self.allowed[..., None]

    @property
    def missing(self) -> Mask:
        """Alive bins of the missing values of numeric features: bool [B, n_nodes, k, width]."""
        return self.alive & self._is_missing

    @property
    def _is_missing(self) -> Mask:
        last = self.bins.n_bins[self.features][..., None] - 1
        numeric = ~self.bins.is_categorical[self.features][..., None]
        return np.asarray(((np.arange(self.bins.width) == last) & numeric)[:, None])

    def order(self, keys: FloatArray) -> IntArray:
        """Return bins per node and feature, dividable ones first, by key: int64 [B, n_nodes, k, width].

        Bins of a numeric feature are in the order of its values.

        Args:
            keys: float64, of a shape that fits [B, n_nodes, k, width]; only those of categorical features are used.
        """
        categorical = self.bins.is_categorical[self.features][:, None, :, None]
        ordered = np.where(categorical, keys, np.arange(self.bins.width, dtype=np.float64))
        return np.argsort(np.where(self.values, ordered, np.inf), axis=-1, kind="stable")

    def add_level(self, splits: Splits) -> None:
        """Split the nodes of the last level, and add the level of their children."""
        feature, goes_left, threshold, self.alive = _next_level(self.alive, self.features, self.bins, splits)
        self._levels.append((feature, goes_left, threshold))
        is_open = self._open & (self._groups.T[feature] | ~splits.exists[..., None])
        self._open = np.repeat(is_open, 2, axis=1)
        # A product of integers is true where any group is open and holds the feature.
        meets = is_open.astype(np.int64) @ self._groups[:, self.features].transpose(1, 0, 2).astype(np.int64)
        self.allowed = np.repeat(meets > 0, 2, axis=1)


@numba.njit(cache=True, nogil=True)
def _next_level(alive, features, bins, splits):  # type: ignore[no-untyped-def]
    """Return the nodes of a level with these splits, and the bins left to their children.

    Args:
        alive: bool [B, n_nodes, k, width].
        features: int64 [B, k].
        bins: a `Bins`.
        splits: a `Splits`.

    Returns:
        Of the nodes: feature int32 [B, n_nodes], goes_left uint8 [B, n_nodes, n_codes], threshold int32 [B, n_nodes];
        of their children: alive, bool [B, 2 * n_nodes, k, width].
    """
    of_code, n_bins, last_code, is_categorical = bins
    slots, lefts, exists = splits
    n_trees, n_nodes, n_slots, width = alive.shape
    n_codes = of_code.shape[1]
    asked = np.empty((n_trees, n_nodes), dtype=np.int32)
    goes_left = np.ones((n_trees, n_nodes, n_codes), dtype=np.uint8)
    thresholds = np.full((n_trees, n_nodes), n_codes - 1, dtype=np.int32)
    children = np.zeros((n_trees, 2 * n_nodes, n_slots, width), dtype=np.bool_)
    for tree in range(n_trees):
        for node in range(n_nodes):
            slot, left = slots[tree, node], lefts[tree, node]
            feature = features[tree, slot]
            asked[tree, node] = feature
            _copy(alive[tree, node], children[tree, 2 * node])
            if not exists[tree, node]:
                continue
            _copy(alive[tree, node], children[tree, 2 * node + 1])
            for one in range(width):
                children[tree, 2 * node, slot, one] &= left[one]
                children[tree, 2 * node + 1, slot, one] &= not left[one]
            # Bins left of the node's own never reach it, so their side does not matter. One interval is faster to route
            # by than a table, so a numeric split sends left every code up to its cut.
            is_ordered, n_values = not is_categorical[feature], n_bins[feature] - 1
            threshold = _threshold(alive[tree, node, slot], left, last_code[feature], n_values) if is_ordered else -1
            thresholds[tree, node] = threshold
            for code in range(n_codes):
                one = of_code[feature, code]
                is_value = is_ordered and one < n_values
                goes_left[tree, node, code] = code <= threshold if is_value else left[one]
    return asked, goes_left, thresholds, children


@numba.njit(cache=True, nogil=True)
def _copy(bins, into):  # type: ignore[no-untyped-def]
    """Copy bins, bool [k, width], into `into`.

    For an assignment, numba would compile its message about shapes for a second.
    """
    for slot in range(bins.shape[0]):
        for one in range(bins.shape[1]):
            into[slot, one] = bins[slot, one]


@numba.njit(cache=True, nogil=True)
def _threshold(alive, left, last_code, n_values):  # type: ignore[no-untyped-def]
    """Return the last code of the last alive bin of values on the left.

    All values up to this code go left.
    """
    last = 0
    for one in range(n_values):
        if alive[one] and left[one]:
            last = one
    return last_code[last]


def pad_histograms(released: IntVector, n_bins: IntArray, n_nodes: int, width: int) -> IntArray:
    """Pad histograms with zeros to equal bins: int64 [B, n_nodes, k, width, n_statistics].

    Args:
        released: int64, as `NodeHistograms` orders it.
        n_bins: int64 [B, k].
        n_nodes: of each tree's last level.
        width: the largest number of bins.
    """
    shape = (len(n_bins), n_nodes, n_bins.shape[1], width)
    is_bin = np.broadcast_to((np.arange(width) < n_bins[..., None])[:, None], shape)
    sums = released.reshape(n_nodes * int(n_bins.sum()), -1)
    filled = np.zeros((*shape, sums.shape[1]), dtype=np.int64)
    filled[is_bin] = sums
    return filled


def best_cuts(growing: GrowingTrees, sums: IntArray, missing_left: Mask, rule: SplitRule) -> Splits:
    """Return the best split of every node by its histograms; none where no split scores above 0.

    Args:
        sums: int64 [B, n_nodes, k, width, n_statistics], noisy; also [B, 1, ...], one histogram for all nodes.
        missing_left: bool [B, n_nodes], the side of missing values.
    """
    alive = growing.alive & growing.allowed[..., None]
    return Splits(*_search_all_cuts(sums, alive, growing.features, growing.bins, missing_left, rule.packed))


@numba.njit(cache=True, nogil=True)
def _search_all_cuts(sums, alive, features, bins, missing_left, rule):  # type: ignore[no-untyped-def]
    """Return the best split of every node; see `best_cuts`.

    The result is slot int64 [B, n_nodes], left bool [B, n_nodes, width], exists bool [B, n_nodes].

    Args:
        sums: int64 [B, n_nodes or 1, k, width, n_statistics].
        alive: bool [B, n_nodes, k, width].
        features: int64 [B, k].
        bins: a `Bins`.
        missing_left: bool [B, n_nodes].
        rule: a `PackedRule`.
    """
    n_trees, n_nodes, n_slots, width = alive.shape
    slots = np.zeros((n_trees, n_nodes), dtype=np.int64)
    lefts = np.ones((n_trees, n_nodes, width), dtype=np.bool_)
    exists = np.zeros((n_trees, n_nodes), dtype=np.bool_)
    left = np.empty(width, dtype=np.bool_)
    total = np.empty(sums.shape[4], dtype=np.int64)
    work = (np.empty(width, dtype=np.int64), total, np.empty_like(total), np.empty_like(total))
    for tree in range(n_trees):
        for node in range(n_nodes):
            own = sums[tree, node if sums.shape[1] > 1 else 0]
            best = 0.0
            for slot in range(n_slots):
                feature = features[tree, slot]
                is_categorical = bins.is_categorical[feature]
                missing = -1 if is_categorical else bins.n_bins[feature] - 1
                score = _best_cut(
                    own[slot], alive[tree, node, slot], missing, is_categorical, missing_left[tree, node],
                    rule, work, left,
                )  # fmt: skip
                if score > best:
                    best = score
                    slots[tree, node], exists[tree, node] = slot, True
                    lefts[tree, node] = left
    return slots, lefts, exists


@numba.njit(cache=True, nogil=True)
def _best_cut(sums, alive, missing, is_categorical, missing_left, rule, work, left):  # type: ignore[no-untyped-def]
    """Write the left bins of one feature's best cut at one node to `left`, and return its score.

    The score is -inf if there is no cut.

    Args:
        sums: int64 [width, n_statistics]; alive, left: bool [width].
        missing: the bin of missing values, or -1.
        work: (order int64 [width], total, side and other, int64 [n_statistics]), overwritten.
    """
    order, total, side, other = work
    n_values = _order_bins(sums, alive, missing, is_categorical, rule, order)
    has_missing = missing >= 0 and alive[missing]
    for column in range(len(total)):
        side[column] = sums[missing, column] if has_missing and missing_left else 0
        total[column] = sums[missing, column] if has_missing else 0
        for place in range(n_values):
            total[column] += sums[order[place], column]
    n_all = n_values + (1 if has_missing else 0)
    n_before = 1 if has_missing and missing_left else 0
    best, cut = -np.inf, -1
    whole = _gain(total, n_all, rule)
    for place in range(n_values - 1):
        for column in range(len(total)):
            side[column] += sums[order[place], column]
            other[column] = total[column] - side[column]
        n_left = place + 1 + n_before
        score = _gain(side, n_left, rule) + _gain(other, n_all - n_left, rule) - whole
        if score > best:
            best, cut = score, place
    left[:] = False
    for place in range(cut + 1):
        left[order[place]] = True
    if has_missing:
        left[missing] = missing_left
    return best


@numba.njit(cache=True, nogil=True)
def _order_bins(sums, alive, missing, is_categorical, rule, order):  # type: ignore[no-untyped-def]
    """Write the bins that a split of one feature can divide to `order`, and return their number."""
    n_values = 0
    for one in range(len(alive)):
        if alive[one] and one != missing:
            order[n_values] = one
            n_values += 1
    if is_categorical:
        keys = np.empty(n_values)
        for place in range(n_values):
            keys[place] = _ratio(sums[order[place]], rule)
        # A stable sort: no two machines may order equal keys differently.
        sorted_ = order[np.argsort(keys, kind="mergesort")]
        for place in range(n_values):
            order[place] = sorted_[place]
    return n_values


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _ratio(sums, rule):  # type: ignore[no-untyped-def]
    """Return the sort key of a category: the value that its leaf would have, up to a factor."""
    scales, counts_classes, n_outputs, leaf_ridge, noise_ridge, _ = rule
    last = len(sums) - 1
    if counts_classes:
        top = max(sums[last] / scales[last], 0.0)
        below = max(sums[0] / scales[0], 0.0)
        for column in range(1, last + 1):
            below = below + max(sums[column] / scales[column], 0.0)
    else:
        top, below = sums[0] / scales[0], max(sums[n_outputs] / scales[n_outputs], 0.0)
    below = below + (leaf_ridge + noise_ridge)
    return top / below if below > 0 else 0.0


def sum_sides(growing: GrowingTrees, splits: Splits, sums: IntArray) -> tuple[IntArray, IntArray]:
    """Return the sums of both sides of every split, from histograms, and the number of bins in each.

    Args:
        growing: the trees before the splits.
        sums: as for `best_cuts`.

    Returns:
        int64 [B, 2 * n_nodes, n_statistics] and int64 [B, 2 * n_nodes].
    """
    where = splits.slot[:, :, None, None]
    alive = np.take_along_axis(growing.alive, where, axis=2)[:, :, 0]
    sums = np.broadcast_to(sums, (*growing.alive.shape, sums.shape[-1]))
    own = np.take_along_axis(sums, where[..., None], axis=2)[:, :, 0]
    sides = np.stack([alive & splits.left, alive & ~splits.left], axis=2)
    n_trees, n_nodes = splits.slot.shape
    added = np.where(sides[..., None], own[:, :, None], 0).sum(axis=3)
    return added.reshape(n_trees, 2 * n_nodes, -1), sides.sum(axis=3).reshape(n_trees, 2 * n_nodes)


def choose_drawn(growing: GrowingTrees, drawn: Mask, sums: IntArray, rule: SplitRule) -> tuple[Splits, IntArray]:
    """Choose the best drawn split of every node, and return it with the sums of its sides.

    One split is drawn per node and feature.

    Args:
        drawn: bool [B, n_nodes, k, width], the bins that each goes left with; all where nothing can be divided.
        sums: int64 [B, n_nodes, k, 2, n_statistics], noisy sums of the sides.

    Returns:
        The splits, and int64 [B, 2 * n_nodes, n_statistics].
    """
    divides = (growing.values & ~drawn).any(axis=3)
    one = np.ones(divides.shape, dtype=np.int64)
    total = sums.sum(axis=3)
    scores = rule.gain(sums[..., 0, :], one) + rule.gain(sums[..., 1, :], one) - rule.gain(total, 2 * one)
    scores = np.where(divides, scores, -np.inf)
    slot = scores.argmax(axis=2)
    exists = np.take_along_axis(scores, slot[..., None], axis=2)[..., 0] > 0
    slot = np.where(exists, slot, 0)
    left = np.take_along_axis(drawn, slot[:, :, None, None], axis=2)[:, :, 0] | ~exists[..., None]
    sides = np.take_along_axis(sums, slot[:, :, None, None, None], axis=2)[:, :, 0]
    # A node without a split keeps its records on the left.
    undivided = np.stack([sides.sum(axis=2), np.zeros_like(sides[:, :, 0])], axis=2)
    sides = np.where(exists[..., None, None], sides, undivided)
    n_trees, n_nodes = slot.shape
    return Splits(slot, left, exists), sides.reshape(n_trees, 2 * n_nodes, -1)
