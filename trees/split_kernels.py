"""Sums per node, feature and bin for trees that grow level by level: the kernel, and the calls that a node makes.

As in `hedgerow.trees.kernels`, everything is integers, records are visited in blocks, and two statistics share a word
while a block is summed.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.queries import IntVector, NodeHistograms, SplitSums
from hedgerow.trees.kernels import BLOCK, _route_block, _statistics_block, _unpack
from hedgerow.trees.losses import Loss
from hedgerow.trees.routing import (
    MIN_RECORDS_PER_THREAD,
    SiteRecords,
    apply_update,
    no_trees,
    packed,
    packed_loss,
)


@dataclass(frozen=True, eq=False)
class _Layout:
    """Where each sum stands: an answer is [tree][node][feature][bin or side][statistic], flattened.

    Attributes:
        features: int64 [B, k].
        offsets: int64 [B, k], of each feature among the entries of one node.
        strides: int64 [B], entries of one node.
        bins: uint16 [n_features, n_codes].
        goes_left: uint8 [B, n_nodes, k, n_bins]; of no trees for histograms.
    """

    features: NDArray[np.int64]
    offsets: NDArray[np.int64]
    strides: NDArray[np.int64]
    bins: NDArray[np.uint16]
    goes_left: NDArray[np.uint8]


@numba.njit(cache=True, nogil=True)
def _add_words(  # type: ignore[no-untyped-def]
    words, leaves, codes, begin, end, tree, features, offsets, stride, bins, goes_left, sums
):
    """Add a block's packed words to sums: int64 [n_nodes * stride]."""
    if goes_left.shape[0] > 0:
        for slot in range(features.shape[1]):
            row = codes[features[tree, slot], begin:end]
            bin_of_code = bins[features[tree, slot]]
            for i in range(end - begin):
                side = 1 - goes_left[tree, leaves[i], slot, bin_of_code[row[i]]]
                sums[leaves[i] * stride + offsets[tree, slot] + side] += words[i]
        return
    n_slots = features.shape[1]
    n_together = n_slots - n_slots % 4
    # An addition waits for the one before it when both go to one entry, as in the fullest bin of a skewed feature;
    # those of four features in turn never do.
    for slot in range(0, n_together, 4):
        row0, row1 = codes[features[tree, slot], begin:end], codes[features[tree, slot + 1], begin:end]
        row2, row3 = codes[features[tree, slot + 2], begin:end], codes[features[tree, slot + 3], begin:end]
        bin0, bin1 = bins[features[tree, slot]], bins[features[tree, slot + 1]]
        bin2, bin3 = bins[features[tree, slot + 2]], bins[features[tree, slot + 3]]
        at0, at1 = offsets[tree, slot], offsets[tree, slot + 1]
        at2, at3 = offsets[tree, slot + 2], offsets[tree, slot + 3]
        for i in range(end - begin):
            node = leaves[i] * stride
            word = words[i]
            sums[node + at0 + bin0[row0[i]]] += word
            sums[node + at1 + bin1[row1[i]]] += word
            sums[node + at2 + bin2[row2[i]]] += word
            sums[node + at3 + bin3[row3[i]]] += word
    for slot in range(n_together, n_slots):
        row = codes[features[tree, slot], begin:end]
        bin_of_code = bins[features[tree, slot]]
        for i in range(end - begin):
            sums[leaves[i] * stride + offsets[tree, slot] + bin_of_code[row[i]]] += words[i]


@numba.njit(cache=True, nogil=True)
def _sums_per_node(  # type: ignore[no-untyped-def]
    codes, labels, scores, level, trees, features, offsets, strides, bins, goes_left, loss, n_statistics, first, last
):
    """The records from `first` to `last` (excluded) of a level: int64 [sum of n_nodes * strides, n_statistics]."""
    feature, start, width, table_left, single, leaf_of_code = trees
    kind, table, clip, constant, exp_table, units = loss
    n_nodes = 1 << level
    result = np.zeros((n_nodes * strides.sum(), n_statistics), dtype=np.int64)
    sums = np.zeros(n_nodes * strides.max(), dtype=np.int64)
    work = np.zeros((n_nodes, BLOCK), dtype=np.uint8)
    words = np.zeros(((n_statistics + 1) // 2, BLOCK), dtype=np.int64)
    statistics = np.zeros(n_statistics + 1, dtype=np.int64)
    for begin in range(first, last, BLOCK):
        end = min(begin + BLOCK, last)
        _statistics_block(kind, labels, scores, begin, end, table, clip, constant, exp_table, units, statistics, words)
        base = 0
        for tree in range(len(strides)):
            if level > 0:
                _route_block(
                    codes, begin, end, feature[tree], start[tree], width[tree], table_left[tree],
                    single[tree], leaf_of_code[tree], work,
                )  # fmt: skip
            size = n_nodes * strides[tree]
            for pair in range(words.shape[0]):
                sums[:size] = 0
                _add_words(
                    words[pair], work[0], codes, begin, end, tree, features, offsets, strides[tree], bins,
                    goes_left, sums,
                )  # fmt: skip
                for entry in range(size):
                    one, two = _unpack(sums[entry])
                    result[base + entry, 2 * pair] += one
                    if 2 * pair + 1 < n_statistics:
                        result[base + entry, 2 * pair + 1] += two
            base += size
    return result


def node_histograms(records: SiteRecords, query: NodeHistograms, loss: Loss, n_threads: int = 1) -> IntVector:
    """Answer a `NodeHistograms` query, its update applied first: int64 [query.length]."""
    counts = query.n_bins[query.features]
    offsets = np.cumsum(counts, axis=1) - counts
    none = np.zeros((0, 1, 1, 1), dtype=np.uint8)
    return _answer(
        records, query, _Layout(query.features, offsets, counts.sum(axis=1), query.bin_of_code, none), loss, n_threads
    )


def split_sums(records: SiteRecords, query: SplitSums, loss: Loss, n_threads: int = 1) -> IntVector:
    """Answer a `SplitSums` query, its update applied first: int64 [query.length]."""
    n_trees, n_slots = query.features.shape
    offsets = np.broadcast_to(2 * np.arange(n_slots), (n_trees, n_slots)).astype(np.int64)
    strides = np.full(n_trees, 2 * n_slots, dtype=np.int64)
    layout = _Layout(query.features, offsets, strides, query.bin_of_code, query.goes_left)
    return _answer(records, query, layout, loss, n_threads)


def _answer(
    records: SiteRecords, query: NodeHistograms | SplitSums, layout: _Layout, loss: Loss, n_threads: int
) -> IntVector:
    if query.update is not None:
        apply_update(records, query.update, n_threads)
    level = query.trees.depth
    trees: tuple[Any, ...] = packed(query.trees if level else no_trees(query.trees.goes_left.shape[2]))
    how = packed_loss(loss)

    def part(number: int) -> IntVector:
        sums = _sums_per_node(
            records.codes, records.labels, records.scores, level, trees, layout.features, layout.offsets,
            layout.strides, layout.bins, layout.goes_left, how, loss.n_statistics,
            records.n_records * number // n_threads, records.n_records * (number + 1) // n_threads,
        )  # fmt: skip
        return np.asarray(sums).reshape(-1)

    if records.n_records < MIN_RECORDS_PER_THREAD * n_threads:
        n_threads = 1
    if n_threads == 1:
        return part(0)
    with ThreadPoolExecutor(n_threads) as threads:
        return np.asarray(np.sum(list(threads.map(part, range(n_threads))), axis=0, dtype=np.int64))
