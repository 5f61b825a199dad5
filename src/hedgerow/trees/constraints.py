# SPDX-License-Identifier: Apache-2.0
"""Constraints from the plan: directions of scores with features, and groups of features.

**Directions.** A feature's codes are steps, from one value to the next. A missing value is on none of them. By how much
a sum of trees rises on a step differs with the rest of the record. The sum never falls on it if the least that each
tree rises there, over all other features, adds up to 0 or more. That is what is kept, for every step of every feature
with a direction. So a tree may take back what earlier trees, or a linear start, have added for sure. Else steps in the
right direction could never be corrected. The noise in them would add up.

For a new tree this orders pairs of its leaves: those whose boxes (per feature the codes that reach them) meet in all
features but one, where one ends at a step and the other begins. The second may lie below the first by no more than
the sum of all trees before rises on that step for sure.

Leaf values are projected onto that order. Each value counts with a weight, the released Hessian of its leaf and the
ridge, so that the projected values minimise the same noisy second-order loss as the values did. Leaves are taken up in
their order. One that lies too low for a leaf before it is pooled with it, weighted, and so on until nothing is out of
order (generalised pool-adjacent-violators: Burdakov, Grimvall, Sysoev 2006). On a tree of one numeric feature, that is
the exact weighted least-squares projection. On others it is close to it, and a last pass keeps the order exactly. All
of it is post-processing of what was released, so it costs no privacy, and no split depends on it.

**Groups.** The features on one path of a tree are all in one group. Features that are in no group are one more group.
Structures are drawn or chosen under that rule, by public things and released sums alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import TreeBatch
from hedgerow.trees.binning import Grid

Mask = NDArray[np.bool_]
NEVER = 2**62
MIN_WEIGHT = 1e-9
"""The weight of a leaf whose released Hessian is lost in the noise, if no ridge adds to it."""
_SIGNS = {None: 0, "increasing": 1, "decreasing": -1}


@dataclass(frozen=True, eq=False)
class Directions:
    """The direction of the score with each feature.

    Attributes:
        signs: int64 [n_features], 1 where scores rise with it, -1 where they fall, 0 without a direction.
        n_codes: int64 [n_features], the codes of each feature; the last one of a numeric feature is of missing values.
        of_two_classes: whether the projection treats both classes alike: negated values under opposite directions give
            negated results, to a unit.
    """

    signs: NDArray[np.int64]
    n_codes: NDArray[np.int64]
    of_two_classes: bool = False

    @classmethod
    def from_plan(cls, plan: Plan, grid: Grid) -> Directions | None:
        """Return the directions of a plan, or None if it gives no feature a direction."""
        signs = [_SIGNS[feature.monotone] for feature in plan.features]
        is_odd = plan.label.kind.is_symmetric
        return cls(np.array(signs, dtype=np.int64), grid.codes_of_features[0], is_odd) if any(signs) else None

    def bind(self, trees: TreeBatch) -> Mask:
        """Return which trees ask for a single feature, and one with a direction: bool [B]."""
        single = (trees.feature == trees.feature[:, :1]).all(axis=1)
        return np.asarray(single & (self.signs[trees.feature[:, 0]] != 0))

    def are_kept_by(self, trees: TreeBatch, values: NDArray[np.int32]) -> bool:
        """Return whether a sum of trees keeps all directions.

        It does if the least rises of all trees add up to 0 or more on every step.
        """
        whole = OrderedSum(self, trees.goes_left.shape[2])
        whole.add(trees, values, as_they_are=True)
        return bool((whole.rises >= 0).all())


def build_groups(plan: Plan) -> Mask:
    """Return the groups of features that may meet on a path: bool [n_groups, n_features].

    Features in no group are one more group. If the plan keeps no features apart, there is one group of all.
    """
    names, groups = plan.feature_names, plan.model.interaction_constraints
    rows = np.array([[name in group for name in names] for group in map(set, groups)], dtype=np.bool_)
    if not groups or rows.all(axis=1).any():
        return np.ones((1, len(names)), dtype=np.bool_)
    others = np.asarray(~rows.any(axis=0))[None]
    return np.concatenate([rows, others]) if others.any() else rows


def keeps_apart(trees: TreeBatch, groups: Mask) -> bool:
    """Return whether the features on each path of each tree are all in one group.

    Args:
        groups: bool [n_groups, n_features].
    """
    if groups.all(axis=1).any():
        return True
    splits = (trees.goes_left == 0).any(axis=2)
    for feature, is_split in zip(trees.feature, splits, strict=True):
        is_open = np.ones((1, len(groups)), dtype=np.bool_)
        for level in range(trees.depth):
            nodes = slice(2**level - 1, 2 ** (level + 1) - 1)
            is_open = np.repeat(is_open & (groups.T[feature[nodes]] | ~is_split[nodes, None]), 2, axis=0)
        if not is_open.any(axis=1).all():
            return False
    return True


class OrderedSum:
    """A growing sum of trees that keeps directions.

    Args:
        directions: None if there are none; then values are returned unchanged.
        n_codes: width of a node's table of codes.

    Attributes:
        rises: int64 [n_features, n_codes], the least that the sum rises in its direction from each code to the next.
    """

    def __init__(self, directions: Directions | None, n_codes: int) -> None:
        self._directions = directions
        self.rises = np.zeros((0 if directions is None else len(directions.signs), n_codes), dtype=np.int64)

    def cut_again(self, feature: int, before: NDArray[np.float32], edges: NDArray[np.float32]) -> None:
        """Move a feature's rises to its new edges: an edge from before keeps its rise, a new one has 0.

        Every cut of a tree is an edge before and after.

        Args:
            before, edges: old and new edges, equally many.
        """
        if self._directions is not None:
            old = self.rises[feature].copy()
            place = np.minimum(np.searchsorted(before, edges), len(before) - 1)
            self.rises[feature, : len(edges)] = np.where(before[place] == edges, old[place], 0)

    def add(
        self,
        trees: TreeBatch,
        values: NDArray[np.int32],
        weights: NDArray[np.float64] | None = None,
        *,
        as_they_are: bool = False,
    ) -> NDArray[np.int32]:
        """Project values so that the sum keeps the order, count them, and return them: int32 [B, n_leaves, 1].

        Args:
            trees: structures.
            values: int32 [B, n_leaves, 1].
            weights: float64, of a shape that fits the values, finite and at least 0; None for equal ones.
            as_they_are: count the values without projecting them.
        """
        if self._directions is None:
            return values
        # A leaf without weight still has a place in the order.
        known = np.ones(1) if weights is None else np.maximum(weights, MIN_WEIGHT)
        # Copy: numba would compile a second version of the kernel for a read-only array.
        own = np.array(np.broadcast_to(known, values.shape)[:, :, 0], order="C")
        schema = self._directions.signs, self._directions.n_codes
        flat = np.ascontiguousarray(values[:, :, 0])
        structure = trees.feature, trees.goes_left, trees.threshold
        passes = 0 if as_they_are else 1 + self._directions.of_two_classes
        return np.asarray(_project(flat, own, structure, schema, self.rises, passes))[:, :, None]


@numba.njit(cache=True, nogil=True)
def _project(values, weights, structure, schema, rises, passes):  # type: ignore[no-untyped-def]
    """Project the values of trees, int32 [B, n_leaves], and add their least rises to `rises`.

    See `OrderedSum.add`.

    Args:
        structure: feature, goes_left and threshold, as a `TreeBatch` has them.
        schema: per feature its direction and its number of codes.
        passes: 0 to leave the values as they are, 1 to project them, 2 to project them as those of either class.
    """
    features, goes_left, thresholds = structure
    signs, n_codes = schema
    result = values.copy()
    for tree in range(len(values)):
        feature, threshold = features[tree], thresholds[tree]
        asked = _find_asked(feature, len(signs))
        is_bound = False
        for place in range(len(asked)):
            is_bound |= signs[asked[place]] != 0
        if not is_bound:
            continue
        boxes = _boxes(feature, goes_left[tree], asked, n_codes)
        order = _leaf_order(feature, signs)
        parting = _neighbours(boxes, order, feature, threshold, (asked, signs, n_codes))
        if passes > 0:
            slack = _slack(parting, feature, threshold, rises)
            _pool(values[tree], weights[tree], order, slack, result[tree])
        if passes > 1:
            # The result depends on which leaf is taken first, so average the results of both orders. Half a unit is
            # rounded down for either class: values that are rounded away from 0 could be out of order.
            turned, other = _leaf_order(feature, -signs), np.empty_like(values[tree])
            apart = _neighbours(boxes, turned, feature, threshold, (asked, signs, n_codes))
            slack = _slack(apart, feature, threshold, rises)
            _pool(-values[tree], weights[tree], turned, slack, other)
            for leaf in range(len(other)):
                result[tree, leaf] = (np.int64(result[tree, leaf]) - other[leaf]) // 2
        least = np.full((len(asked), rises.shape[1]), NEVER, dtype=np.int64)
        _note_flat_steps(boxes[len(feature) :], asked, (signs, n_codes), least)
        for first, second in np.argwhere(parting >= 0):
            node = parting[first, second]
            place, step = np.searchsorted(asked, feature[node]), threshold[node]
            rise = np.int64(result[tree, order[second]]) - np.int64(result[tree, order[first]])
            least[place, step] = min(least[place, step], rise)
        for place in range(len(asked)):
            for step in range(rises.shape[1]):
                if least[place, step] != NEVER:
                    rises[asked[place], step] += least[place, step]
    return result


@numba.njit(cache=True, nogil=True)
def _note_flat_steps(leaves, asked, schema, least):  # type: ignore[no-untyped-def]
    """Note in `least` that a tree does not rise on the steps within a leaf that a record can reach."""
    signs, n_codes = schema
    for leaf in range(len(leaves)):
        is_reached = True
        for place in range(len(asked)):
            is_reached &= (leaves[leaf, place] != 0).any()
        if not is_reached:
            continue
        for place in range(len(asked)):
            if signs[asked[place]] != 0:
                for code in range(n_codes[asked[place]] - 2):
                    if _has(leaves[leaf, place], code) and _has(leaves[leaf, place], code + 1):
                        least[place, code] = min(least[place, code], 0)


@numba.njit(cache=True, nogil=True)
def _has(words, code):  # type: ignore[no-untyped-def]
    """Return whether a code is in a set of codes, 64 to a word."""
    return ((words[code >> 6] >> np.uint64(code & 63)) & np.uint64(1)) != 0


@numba.njit(cache=True, nogil=True)
def _find_asked(feature, n_features):  # type: ignore[no-untyped-def]
    """Return the features that a tree asks for, ascending: int64 [k]."""
    is_asked = np.zeros(n_features, dtype=np.bool_)
    for node in range(len(feature)):
        is_asked[feature[node]] = True
    return np.flatnonzero(is_asked)


@numba.njit(cache=True, nogil=True)
def _boxes(feature, goes_left, asked, n_codes):  # type: ignore[no-untyped-def]
    """Return the codes of each feature that reach each node: uint64 [n_nodes + n_leaves, k, n_words].

    Each word holds 64 codes.
    """
    n_nodes, width = goes_left.shape
    n_words = (width + 63) // 64
    boxes = np.zeros((2 * n_nodes + 1, len(asked), n_words), dtype=np.uint64)
    for place in range(len(asked)):
        for code in range(n_codes[asked[place]]):
            boxes[0, place, code >> 6] |= np.uint64(1) << np.uint64(code & 63)
    left = np.empty(n_words, dtype=np.uint64)
    for node in range(n_nodes):
        left[:] = 0
        for code in range(width):
            left[code >> 6] |= np.uint64(goes_left[node, code]) << np.uint64(code & 63)
        place = np.searchsorted(asked, feature[node])
        boxes[2 * node + 1], boxes[2 * node + 2] = boxes[node], boxes[node]
        for word in range(n_words):
            boxes[2 * node + 1, place, word] &= left[word]
            boxes[2 * node + 2, place, word] &= ~left[word]
    return boxes


@numba.njit(cache=True, nogil=True)
def _leaf_order(feature, signs):  # type: ignore[no-untyped-def]
    """Return leaves in order, each after those that it must not lie below: int64 [n_leaves].

    Two leaves can be set apart in a feature they are compared by only at the node where their paths part.
    """
    n_nodes = len(feature)
    order, n_placed = np.empty(n_nodes + 1, dtype=np.int64), 0
    pending, n_pending = np.empty(n_nodes + 2, dtype=np.int64), 1
    pending[0] = 0
    while n_pending:
        n_pending -= 1
        node = pending[n_pending]
        if node >= n_nodes:
            order[n_placed] = node - n_nodes
            n_placed += 1
            continue
        falls = signs[feature[node]] < 0
        pending[n_pending], pending[n_pending + 1] = (
            2 * node + 1 if falls else 2 * node + 2,
            (2 * node + 2 if falls else 2 * node + 1),
        )
        n_pending += 2
    return order


@numba.njit(cache=True, nogil=True)
def _neighbours(boxes, order, feature, threshold, schema):  # type: ignore[no-untyped-def]
    """Return the node where the paths of two neighbouring leaves part, or -1 for other pairs.

    Leaves are neighbours if one step of a feature with a direction lies between them. The result is int64 [n_leaves,
    n_leaves], by their places in `order`.

    Args:
        schema: the features that the tree asks for, and per feature its direction and its number of codes.
    """
    asked, signs, n_codes = schema
    n_nodes, n_leaves = len(feature), len(order)
    found = np.full((n_leaves, n_leaves), -1, dtype=np.int64)
    for second in range(n_leaves):
        for first in range(second):
            # Leaves are numbered from left to right.
            low, high = n_nodes + min(order[first], order[second]), n_nodes + max(order[first], order[second])
            node = _parting(low, high)
            # The step after the last value leads to missing ones, so it does not count.
            if signs[feature[node]] != 0 and threshold[node] < n_codes[feature[node]] - 2:
                place = np.searchsorted(asked, feature[node])
                meets = _has(boxes[low, place], threshold[node]) and _has(boxes[high, place], threshold[node] + 1)
                if meets and _meet_elsewhere(boxes[low], boxes[high], place):
                    found[first, second] = node
    return found


@numba.njit(cache=True, nogil=True)
def _parting(one, other):  # type: ignore[no-untyped-def]
    """Return the node where the paths to two nodes part."""
    while one != other:
        if one > other:
            one = (one - 1) // 2
        else:
            other = (other - 1) // 2
    return one


@numba.njit(cache=True, nogil=True)
def _meet_elsewhere(one, other, apart):  # type: ignore[no-untyped-def]
    """Return whether two boxes share codes of every feature except the one in place `apart`."""
    for place in range(len(one)):
        meets = place == apart
        for word in range(one.shape[1]):
            meets |= (one[place, word] & other[place, word]) != 0
        if not meets:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def _slack(parting, feature, threshold, rises):  # type: ignore[no-untyped-def]
    """Return how far the second of two leaves may lie below the first; -1 for pairs without an order.

    The result is int64, shaped as that of `_neighbours`.
    """
    slack = np.full(parting.shape, -1, dtype=np.int64)
    for first, second in np.argwhere(parting >= 0):
        node = parting[first, second]
        slack[first, second] = rises[feature[node], threshold[node]]
    return slack


@numba.njit(cache=True, nogil=True)
def _pool(values, weights, order, slack, result):  # type: ignore[no-untyped-def]
    """Project the values of one tree, int32 [n_leaves], and write them to `result`.

    Leaves of one block move together: each lies by its own offset above the block's level.

    Args:
        slack: int64 [n_leaves, n_leaves], by places in `order`: by how much the second may lie below the first; -1 for
            pairs without an order.
    """
    n = len(order)
    block, offset = np.arange(n), np.zeros(n)
    level, weight = np.empty(n), np.empty(n)
    for place in range(n):
        level[place], weight[place] = np.float64(values[order[place]]), weights[order[place]]
        while True:
            most, worst = 0.0, -1
            for second in range(place + 1):
                if block[second] == place:
                    for first in range(second):
                        if slack[first, second] >= 0 and block[first] != place:
                            above = level[block[first]] + offset[first] - slack[first, second]
                            above -= level[place] + offset[second]
                            if above > most:
                                most, worst = above, block[first]
            if worst < 0:
                break
            # Pooled leaves keep their distance, reduced by the violation.
            shift = level[worst] - most - level[place]
            total = weight[place] + weight[worst]
            level[place] = (level[place] * weight[place] + (level[worst] - shift) * weight[worst]) / total
            weight[place] = total
            for first in range(place):
                if block[first] == worst:
                    block[first] = place
                    offset[first] += shift
    for place in range(n):
        own = np.int64(np.rint(level[block[place]] + offset[place]))
        # Rounding and pooling may leave pairs out of order: raise every value that is too low.
        for first in range(place):
            if slack[first, place] >= 0:
                own = max(own, np.int64(result[order[first]]) - slack[first, place])
        result[order[place]] = np.int32(own)
