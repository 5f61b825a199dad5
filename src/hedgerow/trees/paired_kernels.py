"""Kernels that sum over cells of two features: find the cells, add records up in them, and read off the bins' sums."""

from __future__ import annotations

import numba
import numpy as np

from hedgerow.trees.kernels import BLOCK, SPAN, _route_block, _statistics_block, _unpack


@numba.njit(cache=True, nogil=True)
def find_cells(codes, features, bin_of_code, n_bins, cells):  # type: ignore[no-untyped-def]
    """Write each record's cell of every pair; see `hedgerow.trees.paired_bins.PairedBins` for the arguments."""
    n_slots = len(features)
    for begin in range(0, codes.shape[1], BLOCK):
        end = min(begin + BLOCK, codes.shape[1])
        start = 0
        for pair in range(cells.shape[1]):
            slot = 2 * pair
            has_second = slot + 1 < n_slots
            n_second = n_bins[slot + 1] if has_second else 1
            first = (bin_of_code[features[slot]] * n_second + start).astype(np.uint16)
            row = codes[features[slot], begin:end]
            if has_second:
                second = bin_of_code[features[slot + 1]]
                other = codes[features[slot + 1], begin:end]
                for i in range(end - begin):
                    cells[begin + i, pair] = first[row[i]] + second[other[i]]
            else:
                for i in range(end - begin):
                    cells[begin + i, pair] = first[row[i]]
            start += n_bins[slot] * n_second


@numba.njit(cache=True, nogil=True)
def _add_cells(words, leaves, cells, n_cells, sums):  # type: ignore[no-untyped-def]
    """Add a block's packed words to sums: int64 [n_nodes * n_cells]."""
    # Places without a sign need no test for counting from the end.
    for i in range(len(cells)):
        node = np.uint64(leaves[i]) * np.uint64(n_cells)
        word = words[i]
        for pair in range(cells.shape[1]):
            sums[node + np.uint64(cells[i, pair])] += word


@numba.njit(cache=True, nogil=True)
def _sums_of_bins(cells, n_bins, sums):  # type: ignore[no-untyped-def]
    """The bins of one node, int64 [n_bins.sum()], all 0 before, from its cells, int64 [n_cells]."""
    at, out = 0, 0
    n_paired = len(n_bins) - len(n_bins) % 2
    for slot in range(0, n_paired, 2):
        n_first, n_second = n_bins[slot], n_bins[slot + 1]
        second = sums[out + n_first : out + n_first + n_second]
        for one in range(n_first):
            row = cells[at : at + n_second]
            total = np.int64(0)
            for other in range(n_second):
                total += row[other]
                second[other] += row[other]
            sums[out + one] = total
            at += n_second
        out += n_first + n_second
    for slot in range(n_paired, len(n_bins)):
        sums[out : out + n_bins[slot]] = cells[at : at + n_bins[slot]]


@numba.njit(cache=True, nogil=True)
def paired_sums(  # type: ignore[no-untyped-def]
    codes, labels, scores, level, trees, n_trees, cells, n_cells, n_bins, loss, n_statistics, first, last
):
    """The records from `first` to `last` (excluded) of a level: int64 [n_trees * n_nodes * bins, n_statistics]."""
    feature, start, width, table_left, single, leaf_of_code = trees
    kind, table, clip, constant, exp_table, units = loss
    n_nodes, stride = 1 << level, n_bins.sum()
    result = np.zeros((n_trees * n_nodes * stride, n_statistics), dtype=np.int64)
    words = np.zeros(((n_statistics + 1) // 2, BLOCK), dtype=np.int64)
    sums = np.zeros((words.shape[0], n_trees, n_nodes * n_cells), dtype=np.int64)
    work = np.zeros((n_nodes, BLOCK), dtype=np.uint8)
    statistics = np.zeros(n_statistics + 1, dtype=np.int64)
    of_bins = np.zeros(stride, dtype=np.int64)
    for span in range(first, last, SPAN):
        span_end = min(span + SPAN, last)
        sums[:] = 0
        for begin in range(span, span_end, BLOCK):
            end = min(begin + BLOCK, span_end)
            _statistics_block(
                kind, labels, scores, begin, end, table, clip, constant, exp_table, units, statistics, words
            )
            for tree in range(n_trees):
                if level > 0:
                    _route_block(
                        codes, begin, end, feature[tree], start[tree], width[tree], table_left[tree],
                        single[tree], leaf_of_code[tree], work,
                    )  # fmt: skip
                for pair in range(words.shape[0]):
                    _add_cells(words[pair], work[0], cells[begin:end], n_cells, sums[pair, tree])
        for pair in range(words.shape[0]):
            for place in range(n_trees * n_nodes):
                tree, node = place // n_nodes, place % n_nodes
                of_bins[:] = 0
                _sums_of_bins(sums[pair, tree, node * n_cells : (node + 1) * n_cells], n_bins, of_bins)
                for entry in range(stride):
                    one, two = _unpack(of_bins[entry])
                    result[place * stride + entry, 2 * pair] += one
                    if 2 * pair + 1 < n_statistics:
                        result[place * stride + entry, 2 * pair + 1] += two
    return result
