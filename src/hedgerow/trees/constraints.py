"""What a plan says people know already: how scores go with a feature, and which features may meet.

**Directions.** A tree never falls with a feature that is marked "increasing" when every two of its leaves a, b that
some record enters before and after that value was raised have value(a) <= value(b). A leaf is a box: per feature the
codes that reach it. So a comes before b when their codes of the feature are apart, those of a first, and their boxes
meet in all other features. A missing value has no place in a feature's order. These pairs, all features together, are
a partial order, and a sum of trees that all keep it keeps it as well, whatever came before.

Leaf values are projected onto that order: each value counts with a weight, the released Hessian of its leaf and the
ridge, so that the projected values minimise the same noisy second-order loss as the values did. Leaves are taken up in
their order; one that lies below a leaf before it is pooled with it, weighted, and so on until nothing is out of order
(generalised pool-adjacent-violators: Burdakov, Grimvall, Sysoev 2006). On a tree of one numeric feature, that is the
exact weighted least-squares projection; on others it keeps the order as exactly and is close to it. All of it is
post-processing of what was released, so it costs no privacy, and no split depends on it.

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
LEAST_WEIGHT = 1e-9
"""Of a leaf whose released Hessian is lost in the noise, where no ridge counts for it."""
_SIGNS = {None: 0, "increasing": 1, "decreasing": -1}


@dataclass(frozen=True, eq=False)
class Directions:
    """How scores go with each feature.

    Attributes:
        signs: int64 [n_features], 1 where they rise with it, -1 where they fall, 0 where nothing is said.
        n_codes: int64 [n_features], the codes of each feature; the last one of a numeric feature is of missing values.
    """

    signs: NDArray[np.int64]
    n_codes: NDArray[np.int64]

    @classmethod
    def of(cls, plan: Plan, grid: Grid) -> Directions | None:
        """Those of a plan; None where it says nothing."""
        signs = [_SIGNS[feature.monotone] for feature in plan.features]
        return cls(np.array(signs, dtype=np.int64), grid.codes_of_features[0]) if any(signs) else None

    def projected(
        self, values: NDArray[np.int32], trees: TreeBatch, weights: NDArray[np.float64] | None = None
    ) -> NDArray[np.int32]:
        """Values that keep the order of every tree's leaves: int32, of the shape of `values`.

        Args:
            values: int32 [B, n_leaves, n_outputs].
            trees: their structures.
            weights: float64, of a shape that fits the values, finite and at least 0; None for equal ones.
        """
        # What has no weight at all still has a place in the order.
        known = np.ones(1) if weights is None else np.maximum(weights, LEAST_WEIGHT)
        own = np.ascontiguousarray(np.broadcast_to(known, values.shape))
        return np.asarray(_project(values, own, trees.feature, trees.goes_left, self.signs, self.n_codes))

    def step(self, total: NDArray[np.int64], values: NDArray[np.int32], trees: TreeBatch) -> NDArray[np.int32]:
        """What is to be added to a total that keeps the order, in place of `values`, so that the sum keeps it too."""
        return (self.projected((total + values).astype(np.int32), trees) - total).astype(np.int32)

    def kept_by(self, values: NDArray[np.int32], trees: TreeBatch) -> Mask:
        """Which trees keep the order: bool [B]. A tree that does is one that projecting leaves as it is."""
        return np.asarray((self.projected(values, trees) == values).all(axis=(1, 2)))


def groups_of(plan: Plan) -> Mask:
    """Which features may meet: bool [n_groups, n_features]; one group of all where nothing keeps any apart."""
    names, groups = plan.feature_names, plan.model.interaction_constraints
    rows = np.array([[name in group for name in names] for group in map(set, groups)], dtype=np.bool_)
    if not groups or rows.all(axis=1).any():
        return np.ones((1, len(names)), dtype=np.bool_)
    others = np.asarray(~rows.any(axis=0))[None]
    return np.concatenate([rows, others]) if others.any() else rows


@numba.njit(cache=True, nogil=True)
def _project(values, weights, feature, goes_left, signs, n_codes):  # type: ignore[no-untyped-def]
    """See `Directions.projected`; weights: float64 [B, n_leaves, n_outputs], above 0."""
    n_trees, n_leaves, n_outputs = values.shape
    result = values.copy()
    for tree in range(n_trees):
        asked = _asked(feature[tree], len(signs))
        is_bound = False
        for place in range(len(asked)):
            is_bound |= signs[asked[place]] != 0
        if not is_bound:
            continue
        boxes = _boxes(feature[tree], goes_left[tree], asked, n_codes)
        order = _leaf_order(feature[tree], signs)
        before = _before(boxes, order, feature[tree], (asked, signs, n_codes))
        for output in range(n_outputs):
            _pool(values[tree, :, output], weights[tree, :, output], order, before, result[tree, :, output])
    return result


@numba.njit(cache=True, nogil=True)
def _asked(feature, n_features):  # type: ignore[no-untyped-def]
    """The features that a tree asks for, ascending: int64 [k]."""
    is_asked = np.zeros(n_features, dtype=np.bool_)
    for node in range(len(feature)):
        is_asked[feature[node]] = True
    return np.flatnonzero(is_asked)


@numba.njit(cache=True, nogil=True)
def _boxes(feature, goes_left, asked, n_codes):  # type: ignore[no-untyped-def]
    """The codes of each feature that reach each node, 64 to a word: uint64 [n_nodes + n_leaves, k, n_words]."""
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
    """Leaves so that none comes before one that it must not lie below: int64 [n_leaves].

    Of two leaves, only the node where their paths part can set them apart in a feature they are compared by.
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
        pending[n_pending], pending[n_pending + 1] = 2 * node + 1 if falls else 2 * node + 2, (
            2 * node + 2 if falls else 2 * node + 1
        )
        n_pending += 2
    return order


@numba.njit(cache=True, nogil=True)
def _before(boxes, order, feature, schema):  # type: ignore[no-untyped-def]
    """Which leaves may lie no higher than which: bool [n_leaves, n_leaves], by their places in `order`.

    Args: schema: the features that the tree asks for, and per feature its direction and its number of codes.
    """
    asked, signs, n_codes = schema
    n_nodes, n_leaves = len(feature), len(order)
    before = np.zeros((n_leaves, n_leaves), dtype=np.bool_)
    for second in range(n_leaves):
        for first in range(second):
            one, other = n_nodes + order[first], n_nodes + order[second]
            parted = _parting(one, other)
            if signs[feature[parted]] != 0:
                place = np.searchsorted(asked, feature[parted])
                missing = n_codes[feature[parted]] - 1
                before[first, second] = _meet_elsewhere(boxes[one], boxes[other], place, missing)
    return before


@numba.njit(cache=True, nogil=True)
def _parting(one, other):  # type: ignore[no-untyped-def]
    """The node where the paths to two nodes part."""
    while one != other:
        if one > other:
            one = (one - 1) // 2
        else:
            other = (other - 1) // 2
    return one


@numba.njit(cache=True, nogil=True)
def _meet_elsewhere(one, other, apart, missing):  # type: ignore[no-untyped-def]
    """Whether both boxes hold a value of the feature in place `apart`, and meet in all other features."""
    for place in range(len(one)):
        meets, has_value, other_has_value = False, False, False
        for word in range(one.shape[1]):
            values = ~np.uint64(0)
            if word == missing >> 6:
                values = ~(np.uint64(1) << np.uint64(missing & 63))
            meets |= (one[place, word] & other[place, word]) != 0
            has_value |= (one[place, word] & values) != 0
            other_has_value |= (other[place, word] & values) != 0
        if place == apart and not (has_value and other_has_value):
            return False
        if place != apart and not meets:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def _pool(values, weights, order, before, result):  # type: ignore[no-untyped-def]
    """Projects the values of one tree, int32 [n_leaves], into `result`."""
    n = len(order)
    block = np.arange(n)
    mean, weight = np.empty(n), np.empty(n)
    for place in range(n):
        mean[place], weight[place] = np.float64(values[order[place]]), weights[order[place]]
        while True:
            worst = -1
            for first in range(place):
                if block[first] != place and mean[block[first]] > mean[place]:
                    if worst < 0 or mean[block[first]] > mean[worst]:
                        if _reaches(before, block, first, place):
                            worst = block[first]
            if worst < 0:
                break
            total = weight[place] + weight[worst]
            mean[place] = (mean[place] * weight[place] + mean[worst] * weight[worst]) / total
            weight[place] = total
            for first in range(place):
                if block[first] == worst:
                    block[first] = place
    for place in range(n):
        own = np.int32(np.rint(mean[block[place]]))
        # A mean may be rounded by a hair to the wrong side of another: no value falls below one before it.
        for first in range(place):
            if before[first, place]:
                own = max(own, result[order[first]])
        result[order[place]] = own


@numba.njit(cache=True, nogil=True)
def _reaches(before, block, first, place):  # type: ignore[no-untyped-def]
    """Whether a leaf may lie no higher than some leaf of the block of the leaf at `place`."""
    for member in range(first + 1, place + 1):
        if block[member] == place and before[first, member]:
            return True
    return False


