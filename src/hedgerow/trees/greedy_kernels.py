"""Kernels of greedy growth: the worth of a leaf, the best cut of every node, and the level that follows.

All of it is post-processing of released integers. Every result is made of one chain of IEEE additions, multiplications,
divisions and square roots in the order that is written here: no party's compiler may change it, so that every party
grows the same trees.
"""

from __future__ import annotations

import numba
import numpy as np

# Of a rule: scales float64 [n_statistics], counts_classes, n_outputs >= 1, leaf_ridge, noise_ridge, leaf_clip.


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _gain(sums, n_releases, rule):  # type: ignore[no-untyped-def]
    """See `SplitRule.gain`; sums: int64 [n_statistics]."""
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


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _ratio(sums, rule):  # type: ignore[no-untyped-def]
    """What categories are ordered by: the value that a leaf of each would have, up to a factor."""
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


@numba.njit(cache=True, nogil=True)
def gains(sums, n_releases, rule):  # type: ignore[no-untyped-def]
    """`SplitRule.gain` of many: float64 [n] from int64 [n, n_statistics] and int64 [n]."""
    result = np.empty(len(sums))
    for place in range(len(sums)):
        result[place] = _gain(sums[place], n_releases[place], rule)
    return result


@numba.njit(cache=True, nogil=True)
def _ordered(sums, alive, missing, is_categorical, rule, order):  # type: ignore[no-untyped-def]
    """Write the bins that a split of one feature can divide in their order; their number."""
    n_values = 0
    for one in range(len(alive)):
        if alive[one] and one != missing:
            order[n_values] = one
            n_values += 1
    if is_categorical:
        keys = np.empty(n_values)
        for place in range(n_values):
            keys[place] = _ratio(sums[order[place]], rule)
        # A sort that keeps the order of what is equal: no two machines may differ.
        order[:n_values] = order[np.argsort(keys, kind="mergesort")]
    return n_values


@numba.njit(cache=True, nogil=True)
def _best_cut(sums, alive, missing, is_categorical, missing_left, rule, work, left):  # type: ignore[no-untyped-def]
    """The best cut of one feature at one node: its score (-inf: none), and the bins that go left, in `left`.

    Args:
        sums: int64 [width, n_statistics]; alive, left: bool [width].
        missing: the bin of missing values, or -1.
        work: (order int64 [width], total, side and other, int64 [n_statistics]), overwritten.
    """
    order, total, side, other = work
    n_values = _ordered(sums, alive, missing, is_categorical, rule, order)
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
def best_of_all_cuts(sums, alive, features, n_bins, is_categorical, missing_left, rule):  # type: ignore[no-untyped-def]
    """See `hedgerow.trees.greedy_splits.best_cuts`: slot int64 [B, n_nodes], left bool [B, n_nodes, width], exists.

    Args:
        sums: int64 [B, n_nodes or 1, k, width, n_statistics].
        alive: bool [B, n_nodes, k, width].
        features: int64 [B, k]; n_bins, is_categorical: of all features, [n_features].
        missing_left: bool [B, n_nodes].
        rule: as above.
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
                missing = -1 if is_categorical[feature] else n_bins[feature] - 1
                score = _best_cut(
                    own[slot], alive[tree, node, slot], missing, is_categorical[feature], missing_left[tree, node],
                    rule, work, left,
                )  # fmt: skip
                if score > best:
                    best = score
                    slots[tree, node], exists[tree, node] = slot, True
                    lefts[tree, node] = left
    return slots, lefts, exists


@numba.njit(cache=True, nogil=True)
def _threshold(alive, left, last_code, n_values):  # type: ignore[no-untyped-def]
    """The last code of the last bin of values that goes left; the numeric bins to its left all do."""
    last = 0
    for one in range(n_values):
        if alive[one] and left[one]:
            last = one
    return last_code[last]


@numba.njit(cache=True, nogil=True)
def next_level(alive, features, bins, slots, lefts, exists):  # type: ignore[no-untyped-def]
    """What a level of splits makes of its nodes.

    Args:
        alive: bool [B, n_nodes, k, width].
        features: int64 [B, k].
        bins: (of_code, n_bins, last_code, is_categorical) of `hedgerow.trees.greedy_splits.Bins`.
        slots, lefts, exists: of its `Splits`.

    Returns:
        Of the nodes: feature int32 [B, n_nodes], goes_left uint8 [B, n_nodes, n_codes], threshold int32 [B, n_nodes];
        of their children: alive, bool [B, 2 * n_nodes, k, width].
    """
    of_code, n_bins, last_code, is_categorical = bins
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
            children[tree, 2 * node] = alive[tree, node]
            if not exists[tree, node]:
                continue
            children[tree, 2 * node + 1] = alive[tree, node]
            for one in range(width):
                children[tree, 2 * node, slot, one] &= left[one]
                children[tree, 2 * node + 1, slot, one] &= not left[one]
            # Bins left of the node's own never reach it: which side they are on does not matter, but one interval is
            # faster to route by than a table, so a numeric split sends left every code up to its cut.
            is_ordered, n_values = not is_categorical[feature], n_bins[feature] - 1
            threshold = _threshold(alive[tree, node, slot], left, last_code[feature], n_values) if is_ordered else -1
            thresholds[tree, node] = threshold
            for code in range(n_codes):
                one = of_code[feature, code]
                is_value = is_ordered and one < n_values
                goes_left[tree, node, code] = code <= threshold if is_value else left[one]
    return asked, goes_left, thresholds, children
