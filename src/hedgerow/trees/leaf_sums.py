"""Kernels over records: route them to leaves, add leaf values to scores, sum statistics per leaf.

Everything is integers, so results do not depend on how records are divided among threads, blocks or sites.

Records are visited in blocks that stay in the first-level cache. Within a block, routing goes bottom-up over the nodes
of a tree rather than top-down over each record: for every node, one comparison per record decides whether the answer of
the left or the right child is kept. That does 2**d - 1 comparisons where a walk does d, but they are branch-free
comparisons of bytes that sit next to each other, which a processor does 16 to 64 at a time:

    reached[node] = reached[right child] + half    where the code of the node's feature goes right
                    reached[left child]            elsewhere;  half = number of leaves below the left child

Statistics are packed two to a 64-bit word while they are summed; see `_unpack` for why nothing can spill over.

The kernel in which most rounds spend their time: scores take in the last trees, the next ones' leaves are summed.

A tree of one feature is a table by code, and so are all the trees of that feature together. So their records are gone
through once for each feature instead of twice for each tree: to update, values are added up by code before; to sum, the
records are summed by code, and codes by leaf after. Both are sums of integers, so no bit depends on it.

Between the protocol's tree structures and the kernels: packing, and the few calls that a node makes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hedgerow.losses.tables import RECORD_NORM, SCORE_UNIT, Loss, exponentials
from hedgerow.protocol.queries import FittedTrees, Histogram, IntVector, LeafSums, TreeBatch
from hedgerow.trees.binning import CodeArray
from hedgerow.trees.random_trees import SMALL_CODES, SMALL_SET, intervals, shapes_of

BLOCK = 2048
"""Records per block: routing a tree of depth 4 then needs 32 kB."""
REPLICAS = 4
"""Copies of sums: consecutive records of one leaf, or of one bin, then do not wait for each other."""
SPAN = 32 * BLOCK
"""Most records whose packed statistics are added up before they are unpacked; see `_unpack`."""

TABLE, SOFTMAX, SQUARED = 0, 1, 2
"""Kinds of loss, in the order of `KIND_NUMBER`."""
KIND_NUMBER = {"table": TABLE, "softmax": SOFTMAX, "squared": SQUARED}

STEP_BITS = 8
EXP_STEPS = 4096
EXP_BITS = 30


@numba.njit(cache=True, nogil=True)
def _select(codes, start, width, half, left, right, reached):  # type: ignore[no-untyped-def]
    """reached = right + half where start <= code < start + width (modulo the code's type), else left."""
    for i in range(len(codes)):
        inside = codes.dtype.type(codes[i] - start) < width
        reached[i] = right[i] + half if inside else left[i]


@numba.njit(cache=True, nogil=True)
def _split(codes, start, width, reached):  # type: ignore[no-untyped-def]
    """The same for a node whose children are leaves 0 and 1 of its subtree."""
    for i in range(len(codes)):
        reached[i] = codes.dtype.type(codes[i] - start) < width


@numba.njit(cache=True, nogil=True)
def _is_in(bits, code):  # type: ignore[no-untyped-def]
    """1 for a code whose bit is set, and for one that has none."""
    last = np.uint64(SMALL_CODES - 1)
    return (bits >> (code & last)) & np.uint64(1) | np.uint64(code > last)


@numba.njit(cache=True, nogil=True)
def _select_set(codes, bits, half, left, right, reached):  # type: ignore[no-untyped-def]
    """reached = right + half where the code is in a small set, else left: a fifth of the time of looking it up."""
    for i in range(len(codes)):
        reached[i] = right[i] + half if _is_in(bits, np.uint64(codes[i])) else left[i]


@numba.njit(cache=True, nogil=True)
def _split_set(codes, bits, reached):  # type: ignore[no-untyped-def]
    """The same for a node whose children are leaves 0 and 1 of its subtree."""
    for i in range(len(codes)):
        reached[i] = _is_in(bits, np.uint64(codes[i]))


@numba.njit(cache=True, nogil=True)
def _route_block(  # type: ignore[no-untyped-def]
    codes, begin, end, feature, start, width, goes_left, single, leaf_of_code, work
):
    """Leaf of each record of a block, in work[0, :end - begin].

    Args:
        codes: uint8 or uint16 [n_features, n].
        feature: int32 [n_nodes]; start, width: of the codes that go right, int64 [n_nodes]; width SMALL_SET: their bits
            are in start; ANY_SET: ask `goes_left`.
        goes_left: uint8 [n_nodes, n_codes].
        single: the feature that the whole tree asks for, or -1; `leaf_of_code` uint8 [n_codes] is its table.
        work: uint8 [n_nodes, BLOCK], overwritten.
    """
    count = end - begin
    if single >= 0:
        row = codes[single, begin:end]
        leaves = work[0]
        for i in range(count):
            leaves[i] = leaf_of_code[row[i]]
        return
    n_nodes = len(feature)
    code_type = codes.dtype.type
    for node in range(n_nodes - 1, -1, -1):
        row = codes[feature[node], begin:end]
        reached = work[node]
        first_child = 2 * node + 1
        is_last_level = first_child >= n_nodes
        half = np.uint8(1)
        child = first_child
        while child < n_nodes:
            half = np.uint8(half * 2)
            child = 2 * child + 1
        if width[node] == SMALL_SET:
            if is_last_level:
                _split_set(row, np.uint64(start[node]), reached)
            else:
                left, right = work[first_child], work[first_child + 1]
                _select_set(row, np.uint64(start[node]), half, left, right, reached)
        elif width[node] < 0:
            table = goes_left[node]
            if is_last_level:
                for i in range(count):
                    reached[i] = 1 - table[row[i]]
            else:
                left, right = work[first_child], work[first_child + 1]
                for i in range(count):
                    reached[i] = left[i] if table[row[i]] else right[i] + half
        elif is_last_level:
            _split(row, code_type(start[node]), code_type(width[node]), reached)
        else:
            left, right = work[first_child], work[first_child + 1]
            _select(row, code_type(start[node]), code_type(width[node]), half, left, right, reached)


@numba.njit(cache=True, nogil=True)
def _add_values(scores, begin, end, values, leaves):  # type: ignore[no-untyped-def]
    """scores[k, begin:end] += values[leaf, k]."""
    for output in range(scores.shape[0]):
        row = scores[output, begin:end]
        for i in range(end - begin):
            row[i] += values[leaves[i], output]


@numba.njit(cache=True, nogil=True)
def _pack(first, second):  # type: ignore[no-untyped-def]
    return (np.int64(first) << np.int64(32)) + np.int64(second)


@numba.njit(cache=True, nogil=True)
def _unpack(word):  # type: ignore[no-untyped-def]
    """The two sums of a packed word: a statistic is below 2**15 and a span has 2**16 records, so both fit 31 bits."""
    second = np.int64(np.int32(word & np.int64(0xFFFFFFFF)))
    return (word - second) >> np.int64(32), second


@numba.njit(cache=True, nogil=True)
def _table_statistics(labels, scores, begin, end, table, packed):  # type: ignore[no-untyped-def]
    """Statistics that depend on the class and one score: one read of the packed table per pair and record."""
    n_steps = table.shape[2]
    half = np.int32(n_steps // 2)
    last = np.int32(n_steps - 1)
    classes = labels[begin:end]
    for pair in range(packed.shape[0]):
        words = table[pair].ravel()
        row = packed[pair]
        if scores.shape[0] > 0:
            values = scores[0, begin:end]
            for i in range(len(classes)):
                step = min(max((values[i] >> np.int32(STEP_BITS)) + half, np.int32(0)), last)
                # A place without a sign needs no test for counting from the end.
                row[i] = words[np.uint32(classes[i]) * np.uint32(n_steps) + np.uint32(step)]
        else:
            for i in range(len(classes)):
                row[i] = words[classes[i] * n_steps]


@numba.njit(cache=True, nogil=True)
def _squared_statistics(labels, scores, begin, end, unit, clip, constant, packed):  # type: ignore[no-untyped-def]
    """(clipped residual, constant); the product of a residual and its unit is rounded towards zero."""
    for i in range(end - begin):
        residual = -np.int64(labels[begin + i])
        if scores.shape[0] > 0:
            residual += scores[0, begin + i]
        magnitude = min((abs(residual) * unit) >> 16, np.int64(clip))
        packed[0, i] = _pack(magnitude if residual >= 0 else -magnitude, constant)


@numba.njit(cache=True, nogil=True)
def _softmax_statistics(  # type: ignore[no-untyped-def]
    labels, scores, begin, end, exp_table, units, statistics, packed
):
    """Softmax gradients and diagonal Hessians in integers, each record shrunk to the norm that was promised.

    Args:
        exp_table: int64 [EXP_STEPS], 2**30 exp(-step / 256).
        units: int64 [4]: units of 1.0 of a gradient, units of 1.0 of a Hessian (0: release `constant` instead), the
            promised norm, and the constant.
        statistics: int64 work space [2 K].
    """
    n_classes = scores.shape[0]
    unit, hessian_unit, norm, constant = units[0], units[1], units[2], units[3]
    n_statistics = 2 * n_classes if hessian_unit > 0 else n_classes + 1
    for i in range(end - begin):
        top = scores[0, begin + i]
        for k in range(1, n_classes):
            top = max(top, scores[k, begin + i])
        total = np.int64(0)
        for k in range(n_classes):
            step = min((np.int64(top) - scores[k, begin + i]) >> STEP_BITS, np.int64(EXP_STEPS - 1))
            statistics[k] = exp_table[step]
            total += statistics[k]
        others = np.int64(0)
        for k in range(n_classes):
            share = statistics[k] * unit // total
            if hessian_unit > 0:
                statistics[n_classes + k] = (share * (unit - share) // unit) * hessian_unit // unit
            statistics[k] = share
            others += share if k != labels[begin + i] else np.int64(0)
        statistics[labels[begin + i]] = -others
        if hessian_unit == 0:
            statistics[n_classes] = constant
        _shrink(statistics, n_statistics, norm)
        for pair in range(packed.shape[0]):
            second = statistics[2 * pair + 1] if 2 * pair + 1 < n_statistics else np.int64(0)
            packed[pair, i] = _pack(statistics[2 * pair], second)


@numba.njit(cache=True, nogil=True)
def _shrink(statistics, count, norm):  # type: ignore[no-untyped-def]
    """Scale one record's statistics towards zero until their norm is at most `norm`; the check is in integers."""
    squared = np.int64(0)
    for k in range(count):
        squared += statistics[k] * statistics[k]
    allowed = norm * norm
    factor = 1.0
    while squared > allowed:
        factor = min(factor, np.sqrt(allowed / squared)) * (1.0 - 1e-9)
        squared = np.int64(0)
        for k in range(count):
            statistics[k] = np.int64(np.trunc(statistics[k] * factor))
            squared += statistics[k] * statistics[k]


@numba.njit(cache=True, nogil=True)
def _statistics_block(  # type: ignore[no-untyped-def]
    kind, labels, scores, begin, end, table, clip, constant, exp_table, units, statistics, packed
):
    if kind == TABLE:
        _table_statistics(labels, scores, begin, end, table, packed)
    elif kind == SQUARED:
        _squared_statistics(labels, scores, begin, end, units[0], clip, constant, packed)
    else:
        _softmax_statistics(labels, scores, begin, end, exp_table, units, statistics, packed)


@numba.njit(cache=True, nogil=True)
def _sum_block(packed, leaves, count, block_sums, sums):  # type: ignore[no-untyped-def]
    """Add a block's packed statistics to sums: int64 [n_leaves, n_statistics]."""
    n_leaves, n_statistics = sums.shape
    for pair in range(packed.shape[0]):
        block_sums[:, :] = 0
        row = packed[pair]
        for i in range(count):
            block_sums[i & (REPLICAS - 1), leaves[i]] += row[i]
        for leaf in range(n_leaves):
            for replica in range(REPLICAS):
                first, second = _unpack(block_sums[replica, leaf])
                sums[leaf, 2 * pair] += first
                if 2 * pair + 1 < n_statistics:
                    sums[leaf, 2 * pair + 1] += second


@numba.njit(cache=True, nogil=True)
def hessian_histogram(
    codes: NDArray[np.unsignedinteger[Any]],
    labels: NDArray[np.int32],
    scores: NDArray[np.int32],
    loss: tuple,  # type: ignore[type-arg]
    n_statistics: int,
    statistic: int,
    features: NDArray[np.int64],
    bin_of_code: NDArray[np.int64],
    n_bins: int,
) -> NDArray[np.int64]:
    """Sums of one statistic per bin, over several features at once: int64 [n_bins].

    Args:
        features: int64 [k], the features.
        bin_of_code: int64 [k, n_codes], the position in the result of each code of each feature.
        statistic: which of a record's statistics to sum.
    """
    kind, table, clip, constant, exp_table, units = loss
    n = codes.shape[1]
    sums = np.zeros(REPLICAS * n_bins, dtype=np.int64)
    values = np.empty(BLOCK, dtype=np.int64)
    packed = np.zeros(((n_statistics + 1) // 2, BLOCK), dtype=np.int64)
    statistics = np.zeros(n_statistics + 1, dtype=np.int64)
    for begin in range(0, n, BLOCK):
        end = min(begin + BLOCK, n)
        _statistics_block(kind, labels, scores, begin, end, table, clip, constant, exp_table, units, statistics, packed)
        for i in range(end - begin):
            first, second = _unpack(packed[statistic // 2, i])
            values[i] = second if statistic % 2 else first
        for k in range(len(features)):
            row, own = codes[features[k], begin:end], bin_of_code[k]
            for i in range(end - begin):
                sums[np.uint64(i & (REPLICAS - 1)) * np.uint64(n_bins) + np.uint64(own[row[i]])] += values[i]
    result = np.zeros(n_bins, dtype=np.int64)
    for replica in range(REPLICAS):
        result += sums[replica * n_bins : (replica + 1) * n_bins]
    return result


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


Packed = tuple[Any, ...]
MIN_RECORDS_PER_THREAD = 20_000
"""Below this, starting a thread takes longer than the work."""


@dataclass(frozen=True, eq=False)
class SiteRecords:
    """One site's rows as the kernels see them.

    Attributes:
        codes: uint8 or uint16 [n_features, n].
        labels: int32 [n]: the class index, or a regression's label scaled to [-1, 1] in units of 2**-16.
        scores: int32 [n_outputs, n]; the kernels update it in place.
    """

    codes: CodeArray
    labels: NDArray[np.int32]
    scores: NDArray[np.int32]

    @property
    def n_records(self) -> int:
        return int(self.codes.shape[1])


@lru_cache(maxsize=2)
def packed(trees: TreeBatch) -> Packed:
    """The arrays that the kernels take: per node the interval of codes that go right, per tree its leaf table.

    They are kept for the next round, whose update is of this round's trees.

    A node that splits ordered codes sends right the codes after its threshold, up to the missing code or one short of
    it: one interval, so one comparison. Everything else is looked up in `goes_left`.
    """
    start, width = intervals(trees.goes_left, trees.threshold)
    shapes = shapes_of(trees)
    return trees.feature, start, width, trees.goes_left, shapes.single, shapes.leaf_of_code


def no_trees(n_codes: int) -> TreeBatch:
    """A batch of no trees."""
    return TreeBatch(
        feature=np.empty((0, 1), dtype=np.int32),
        goes_left=np.empty((0, 1, n_codes), dtype=np.uint8),
        threshold=np.empty((0, 1), dtype=np.int32),
    )


@lru_cache(maxsize=64)
def packed_loss(loss: Loss) -> Packed:
    """The loss as the kernels take it; made once for a loss, since every query asks for it; each site has its own."""
    exp_table = np.rint(2**EXP_BITS * exponentials(EXP_STEPS, SCORE_UNIT >> STEP_BITS)).astype(np.int64)
    unit = int(loss.scales[0])
    hessian_unit = int(loss.scales[-1]) if loss.kind == "softmax" and loss.constant == 0 else 0
    units = np.array([unit, hessian_unit, RECORD_NORM, loss.constant], dtype=np.int64)
    return KIND_NUMBER[loss.kind], _packed_table(loss), loss.clip, loss.constant, exp_table, units


def _packed_table(loss: Loss) -> NDArray[np.int64]:
    """The loss's table with two statistics to a word: int64 [n_pairs, n_classes, STEPS]."""
    n_classes, n_steps, n_statistics = loss.table.shape
    even = np.zeros((n_classes, n_steps, n_statistics + n_statistics % 2), dtype=np.int64)
    even[:, :, :n_statistics] = loss.table
    return np.ascontiguousarray(((even[:, :, 0::2] << 32) + even[:, :, 1::2]).transpose(2, 0, 1))


def leaf_sums(records: SiteRecords, query: LeafSums, loss: Loss, n_threads: int = 1) -> IntVector:
    """Answer a `LeafSums` query: apply its update to the scores, then sum per leaf; int64 [query.length]."""
    old, values = _update(query.update, query.trees, records)
    return _in_threads(records, n_threads, old, values, packed(query.trees), packed_loss(loss), loss.n_statistics)


def apply_update(records: SiteRecords, update: FittedTrees, n_threads: int = 1) -> None:
    """Add fitted trees to the scores, in place."""
    empty = packed(no_trees(update.trees.goes_left.shape[2]))
    nothing = (0, np.zeros((1, 1, 1), np.int64), 0, 0, np.zeros(1, np.int64), np.zeros(4, np.int64))
    _in_threads(records, n_threads, packed(update.trees), update.values, empty, nothing, 1)


def _in_threads(
    records: SiteRecords,
    n_threads: int,
    old: Packed,
    old_values: NDArray[np.int32],
    new: Packed,
    loss: Packed,
    n_statistics: int,
) -> IntVector:
    """Divide the records among threads; the kernels release the interpreter's lock, and sums do not depend on how."""
    if records.n_records < MIN_RECORDS_PER_THREAD * n_threads:
        n_threads = 1

    def part(number: int) -> IntVector:
        first = records.n_records * number // n_threads
        last = records.n_records * (number + 1) // n_threads
        arrays = (records.codes, records.labels, records.scores)
        sums = update_and_sum(*arrays, old, old_values, new, loss, n_statistics, first, last)
        return np.asarray(sums).reshape(-1)

    if n_threads == 1:
        return part(0)
    with ThreadPoolExecutor(n_threads) as threads:
        return np.asarray(np.sum(list(threads.map(part, range(n_threads))), axis=0, dtype=np.int64))


def histogram(records: SiteRecords, query: Histogram, loss: Loss, n_threads: int = 1) -> IntVector:
    """Answer a `Histogram` query: sums of the (scaled) Hessians per feature and bin; int64 [query.length]."""
    if query.update is not None:
        apply_update(records, query.update, n_threads)
    offsets = np.concatenate([[0], np.cumsum(query.n_bins)])
    width = max(len(bins) for bins in query.bin_of_code)
    bins = np.zeros((len(query.features), width), dtype=np.int64)
    for row, bin_of_code in enumerate(query.bin_of_code):
        bins[row, : len(bin_of_code)] = bin_of_code + offsets[row]
    features = np.array(query.features, dtype=np.int64)
    result = hessian_histogram(
        records.codes, records.labels, records.scores, packed_loss(loss), loss.n_statistics, loss.n_statistics - 1,
        features, bins, int(offsets[-1]),
    )  # fmt: skip
    return np.asarray(result)


def _update(update: FittedTrees | None, trees: TreeBatch, records: SiteRecords) -> tuple[Packed, NDArray[np.int32]]:
    if update is None:
        nothing = np.empty((0, 1, max(1, records.scores.shape[0])), dtype=np.int32)
        return packed(no_trees(trees.goes_left.shape[2])), nothing
    return packed(update.trees), update.values
