"""Kernels over records: route them to leaves, add leaf values to scores, sum statistics per leaf.

Everything is integers, so results do not depend on how records are divided among threads, blocks or sites.

Records are visited in blocks that stay in the first-level cache. Within a block, routing goes bottom-up over the nodes
of a tree rather than top-down over each record: for every node, one comparison per record decides whether the answer of
the left or the right child is kept. That does 2**d - 1 comparisons where a walk does d, but they are branch-free
comparisons of bytes that sit next to each other, which a processor does 16 to 64 at a time:

    reached[node] = reached[right child] + half    where the code of the node's feature goes right
                    reached[left child]            elsewhere;  half = number of leaves below the left child

Statistics are packed two to a 64-bit word while they are summed; see `_unpack` for why nothing can spill over.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hedgerow.trees.drawing_kernels import SMALL_CODES, SMALL_SET

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
