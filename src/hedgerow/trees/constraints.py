"""What a plan says people know already: how scores go with a feature, and which features may meet.

**Directions.** A tree keeps an order when every two of its leaves a, b that some record enters before and after a value
of a feature marked "increasing" was raised have value(a) <= value(b). A leaf is a box: per feature the codes that
reach it. So a comes before b when their codes of the feature are apart, those of a first, and their boxes meet in all
other features. A missing value has no place in a feature's order. These pairs, all features together, are a partial
order, and a sum of trees that all keep it keeps it as well.

What has to keep it is the sum. So a tree on one feature alone may take back what earlier trees on that feature, and a
linear start, have added: where their sum rises by d between two neighbouring leaves, the second may lie up to d below
the first. Else steps in the right direction could never be corrected, and the noise in them would add up.

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

    def bind(self, trees: TreeBatch) -> Mask:
        """Which trees ask for one feature alone, of which something is said: bool [B]."""
        single = (trees.feature == trees.feature[:, :1]).all(axis=1)
        return np.asarray(single & (self.signs[trees.feature[:, 0]] != 0))

    def kept_by(self, trees: TreeBatch, values: NDArray[np.int32]) -> bool:
        """Whether the sum of the trees on each feature alone, and every other tree, keep the order."""
        whole = OrderedSum(self, trees.goes_left.shape[2])
        # What is in order is what projecting leaves as it is, but for trees on one feature, of which the sum counts.
        is_alone = self.bind(trees)
        others = TreeBatch(trees.feature[~is_alone], trees.goes_left[~is_alone], trees.threshold[~is_alone])
        if (whole.add(others, values[~is_alone]) != values[~is_alone]).any():
            return False
        for tree in np.flatnonzero(is_alone).tolist():
            _count(values[tree], trees.feature[tree], trees.goes_left[tree], whole.shapes)
        for sign, n_codes, shape in zip(self.signs, self.n_codes, whole.shapes, strict=True):
            if (sign * np.diff(shape[: n_codes - 1], axis=0) < 0).any():
                return False
        return True


def keeps_apart(trees: TreeBatch, groups: Mask) -> bool:
    """Whether the features on each path of each tree are all in one group: bool [n_groups, n_features]."""
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
    """A sum of trees that keeps the order, while it grows.

    Args:
        directions: None where nothing is said: then all values are as they were.
        n_codes: width of a node's table of codes.

    Attributes:
        shapes: int64 [n_features, n_codes, 1], what the trees on each feature alone have added to the score of a
            code; only of features with a direction, whose models have one output.
    """

    def __init__(self, directions: Directions | None, n_codes: int) -> None:
        self._directions = directions
        self.shapes = np.zeros((0 if directions is None else len(directions.signs), n_codes, 1), dtype=np.int64)

    def add(
        self, trees: TreeBatch, values: NDArray[np.int32], weights: NDArray[np.float64] | None = None
    ) -> NDArray[np.int32]:
        """The values, projected so that the sum keeps the order with them; they are counted: int32 [B, n_leaves, 1].

        Args:
            trees: structures.
            values: int32 [B, n_leaves, 1].
            weights: float64, of a shape that fits the values, finite and at least 0; None for equal ones.
        """
        if self._directions is None:
            return values
        # What has no weight at all still has a place in the order.
        known = np.ones(1) if weights is None else np.maximum(weights, LEAST_WEIGHT)
        own = np.ascontiguousarray(np.broadcast_to(known, values.shape))
        schema = self._directions.signs, self._directions.n_codes
        return np.asarray(_project(values, own, trees.feature, trees.goes_left, schema, self.shapes))


def groups_of(plan: Plan) -> Mask:
    """Which features may meet: bool [n_groups, n_features]; one group of all where nothing keeps any apart."""
    names, groups = plan.feature_names, plan.model.interaction_constraints
    rows = np.array([[name in group for name in names] for group in map(set, groups)], dtype=np.bool_)
    if not groups or rows.all(axis=1).any():
        return np.ones((1, len(names)), dtype=np.bool_)
    others = np.asarray(~rows.any(axis=0))[None]
    return np.concatenate([rows, others]) if others.any() else rows


@numba.njit(cache=True, nogil=True)
def _project(values, weights, feature, goes_left, schema, shapes):  # type: ignore[no-untyped-def]
    """See `OrderedSum.add`; schema: per feature its direction and its number of codes. Writes `shapes`."""
    signs, n_codes = schema
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
            rises = np.zeros(n_leaves, dtype=np.int64)
            if len(asked) == 1:
                shape = shapes[asked[0], : n_codes[asked[0]] - 1, output]
                _rises(goes_left[tree], order, signs[asked[0]], shape, rises)
            _pool(values[tree, :, output], weights[tree, :, output], order, before, rises, result[tree, :, output])
        if len(asked) == 1:
            _count(result[tree], feature[tree], goes_left[tree], shapes)
    return result


@numba.njit(cache=True, nogil=True)
def _leaf_of(goes_left, code):  # type: ignore[no-untyped-def]
    """The leaf that a code of a tree's only feature reaches."""
    node = 0
    while node < len(goes_left):
        node = 2 * node + 2 - goes_left[node, code]
    return node - len(goes_left)


@numba.njit(cache=True, nogil=True)
def _count(values, feature, goes_left, shapes):  # type: ignore[no-untyped-def]
    """Adds a tree on one feature to its shape; values: int32 [n_leaves, n_outputs]."""
    for code in range(goes_left.shape[1]):
        leaf = _leaf_of(goes_left, code)
        for output in range(values.shape[1]):
            shapes[feature[0], code, output] += values[leaf, output]


@numba.njit(cache=True, nogil=True)
def _rises(goes_left, order, sign, shape, rises):  # type: ignore[no-untyped-def]
    """Writes by how much a shape, int64 [n_cells], has risen up to each leaf of a tree on its feature, at its borders.

    Within a leaf nothing can be taken back. `rises` is by places in `order`; leaves without a cell have no part in it.
    """
    by_leaf, total = np.zeros(len(order), dtype=np.int64), np.int64(0)
    last, last_leaf = -1, -1
    for step in range(len(shape)):
        code = step if sign > 0 else len(shape) - 1 - step
        leaf = _leaf_of(goes_left, code)
        if last >= 0 and leaf != last_leaf:
            total += shape[code] - shape[last]
        by_leaf[leaf] = total
        last, last_leaf = code, leaf
    for place in range(len(order)):
        rises[place] = by_leaf[order[place]]


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
        pending[n_pending], pending[n_pending + 1] = (
            2 * node + 1 if falls else 2 * node + 2,
            (2 * node + 2 if falls else 2 * node + 1),
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
def _pool(values, weights, order, before, rises, result):  # type: ignore[no-untyped-def]
    """Projects the values of one tree, int32 [n_leaves], into `result`, with what has risen before added to them."""
    n = len(order)
    block = np.arange(n)
    mean, weight = np.empty(n), np.empty(n)
    for place in range(n):
        mean[place], weight[place] = np.float64(values[order[place]] + rises[place]), weights[order[place]]
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
    whole = np.empty(n, dtype=np.int64)
    for place in range(n):
        whole[place] = np.int64(np.rint(mean[block[place]]))
        # A mean may be rounded by a hair to the wrong side of another: no value falls below one before it.
        for first in range(place):
            if before[first, place]:
                whole[place] = max(whole[place], whole[first])
        result[order[place]] = np.int32(whole[place] - rises[place])


@numba.njit(cache=True, nogil=True)
def _reaches(before, block, first, place):  # type: ignore[no-untyped-def]
    """Whether a leaf may lie no higher than some leaf of the block of the leaf at `place`."""
    for member in range(first + 1, place + 1):
        if block[member] == place and before[first, member]:
            return True
    return False
