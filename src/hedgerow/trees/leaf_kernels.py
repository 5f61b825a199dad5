"""The kernel in which most rounds spend their time: scores take in the last trees, the next ones' leaves are summed.

A tree of one feature is a table by code, and so are all the trees of that feature together. So their records are gone
through once for each feature instead of twice for each tree: to update, values are added up by code before; to sum, the
records are summed by code, and codes by leaf after. Both are sums of integers, so no bit depends on it.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hedgerow.trees.kernels import (
    BLOCK,
    REPLICAS,
    SPAN,
    _add_values,
    _route_block,
    _statistics_block,
    _sum_block,
    _unpack,
)


@numba.njit(cache=True, nogil=True)
def _by_feature(single, n_features, is_worth_it):  # type: ignore[no-untyped-def]
    """Trees of one feature by their feature: for each tree the number of its group, and for each group the feature.

    Args: single: int64 [n_trees], the feature, or -1 for a tree of several, which is in no group: -1; is_worth_it:
        otherwise no tree is in any.
    """
    group, group_of_feature = np.full(len(single), -1), np.full(n_features, -1)
    features = np.zeros(len(single), dtype=np.int64)
    n_groups = 0
    for tree in range(len(single)):
        feature = single[tree]
        if feature >= 0 and is_worth_it:
            if group_of_feature[feature] < 0:
                group_of_feature[feature] = n_groups
                features[n_groups] = feature
                n_groups += 1
            group[tree] = group_of_feature[feature]
    return group, features[:n_groups]


@numba.njit(cache=True, nogil=True)
def _values_by_code(group, n_groups, leaf_of_code, values):  # type: ignore[no-untyped-def]
    """What all trees of a feature together add to the score of a record: int32 [n_groups, n_outputs, n_codes]."""
    by_code = np.zeros((n_groups, values.shape[2], leaf_of_code.shape[1]), dtype=np.int32)
    for tree in range(len(group)):
        if group[tree] >= 0:
            for output in range(values.shape[2]):
                for code in range(leaf_of_code.shape[1]):
                    by_code[group[tree], output, code] += values[tree, leaf_of_code[tree, code], output]
    return by_code


@numba.njit(cache=True, nogil=True)
def _add_values_by_code(scores, row, begin, end, by_code):  # type: ignore[no-untyped-def]
    """scores[k, begin:end] += by_code[k, code]."""
    codes = row[begin:end]
    for output in range(scores.shape[0]):
        own, table = scores[output, begin:end], by_code[output]
        for i in range(len(codes)):
            own[i] += table[codes[i]]


@numba.njit(cache=True, nogil=True)
def _sum_by_code(packed, row, begin, end, sums):  # type: ignore[no-untyped-def]
    """Add a block's packed statistics to sums: int64 [n_pairs, REPLICAS, n_codes]."""
    codes = row[begin:end]
    for pair in range(packed.shape[0]):
        words, own = packed[pair], sums[pair]
        for i in range(len(codes)):
            own[i & (REPLICAS - 1), codes[i]] += words[i]


@numba.njit(cache=True, nogil=True)
def _sum_leaves(by_code, leaf_of_code, sums):  # type: ignore[no-untyped-def]
    """Add the packed sums of codes to those of a tree's leaves: int64 [n_leaves, n_statistics]."""
    n_leaves, n_statistics = sums.shape
    words = np.zeros(n_leaves, dtype=np.int64)
    for pair in range(by_code.shape[0]):
        words[:] = 0
        for replica in range(REPLICAS):
            for code in range(len(leaf_of_code)):
                words[leaf_of_code[code]] += by_code[pair, replica, code]
        for leaf in range(n_leaves):
            first, second = _unpack(words[leaf])
            sums[leaf, 2 * pair] += first
            if 2 * pair + 1 < n_statistics:
                sums[leaf, 2 * pair + 1] += second


@numba.njit(cache=True, nogil=True)
def _update_block(codes, scores, begin, end, trees, values, groups, work):  # type: ignore[no-untyped-def]
    """Add the values of trees to a block's scores; groups: of `_by_feature`, and their values by code."""
    feature, start, width, goes_left, single, leaf_of_code = trees
    group, features, by_code = groups
    for number in range(len(features)):
        _add_values_by_code(scores, codes[features[number]], begin, end, by_code[number])
    for tree in range(len(group)):
        if group[tree] < 0:
            _route_block(
                codes, begin, end, feature[tree], start[tree], width[tree], goes_left[tree],
                single[tree], leaf_of_code[tree], work,
            )  # fmt: skip
            _add_values(scores, begin, end, values[tree], work[0])


@numba.njit(cache=True, nogil=True)
def _sum_over_block(codes, packed, begin, end, trees, groups, work, block_sums, sums):  # type: ignore[no-untyped-def]
    """Add a block's packed statistics to sums over leaves, or to those by code; groups: with the sums by code."""
    feature, start, width, goes_left, single, leaf_of_code = trees
    group, features, by_code = groups
    for number in range(len(features)):
        _sum_by_code(packed, codes[features[number]], begin, end, by_code[number])
    for tree in range(len(group)):
        if group[tree] < 0:
            _route_block(
                codes, begin, end, feature[tree], start[tree], width[tree], goes_left[tree],
                single[tree], leaf_of_code[tree], work,
            )  # fmt: skip
            _sum_block(packed, work[0], end - begin, block_sums, sums[tree])


@numba.njit(cache=True, nogil=True)
def update_and_sum(
    codes: NDArray[np.unsignedinteger[Any]],
    labels: NDArray[np.int32],
    scores: NDArray[np.int32],
    old: tuple,  # type: ignore[type-arg]
    old_values: NDArray[np.int32],
    new: tuple,  # type: ignore[type-arg]
    loss: tuple,  # type: ignore[type-arg]
    n_statistics: int,
    first: int,
    last: int,
) -> NDArray[np.int64]:
    """Add the old trees to the scores, then sum the statistics over the leaves of the new trees, in one pass.

    Args:
        codes: uint8 or uint16 [n_features, n].
        labels: int32 [n]: the class, or the scaled label of a regression in score units.
        scores: int32 [n_outputs, n], updated in place.
        old, new: packed structures (`trees.routing.packed`), possibly of no trees.
        old_values: int32 [n_old, n_leaves, n_outputs].
        loss: packed loss (`trees.routing.packed_loss`).
        n_statistics: integers per record and leaf.
        first, last: the records to visit, last excluded. (A slice of the arrays would no longer be contiguous to the
            compiler, which then does without wide instructions.)

    Returns:
        int64 [n_new, n_leaves, n_statistics].
    """
    kind, table, clip, constant, exp_table, units = loss
    n_trees, n_leaves, n_codes = new[0].shape[0], new[0].shape[1] + 1, new[5].shape[1]
    sums = np.zeros((n_trees, n_leaves, n_statistics), dtype=np.int64)
    work = np.empty((max(n_leaves - 1, old[0].shape[1], 1), BLOCK), dtype=np.uint8)
    packed = np.zeros(((n_statistics + 1) // 2, BLOCK), dtype=np.int64)
    block_sums = np.zeros((REPLICAS, n_leaves), dtype=np.int64)
    statistics = np.zeros(n_statistics + 1, dtype=np.int64)
    # Where records are few, tables of all codes would be more work.
    is_worth_it = n_codes <= last - first
    old_group, old_features = _by_feature(old[4], codes.shape[0], is_worth_it)
    old_groups = (old_group, old_features, _values_by_code(old_group, len(old_features), old[5], old_values))
    group, features = _by_feature(new[4], codes.shape[0], is_worth_it)
    by_code = np.zeros((len(features), packed.shape[0], REPLICAS, n_codes), dtype=np.int64)
    for span in range(first, last, SPAN):
        by_code[:] = 0
        span_end = min(span + SPAN, last)
        for begin in range(span, span_end, BLOCK):
            end = min(begin + BLOCK, span_end)
            _update_block(codes, scores, begin, end, old, old_values, old_groups, work)
            if n_trees == 0:
                continue
            _statistics_block(
                kind, labels, scores, begin, end, table, clip, constant, exp_table, units, statistics, packed
            )
            groups = (group, features, by_code)
            _sum_over_block(codes, packed, begin, end, new, groups, work, block_sums, sums)
        for tree in range(n_trees):
            if group[tree] >= 0:
                _sum_leaves(by_code[group[tree]], new[5][tree], sums[tree])
    return sums
