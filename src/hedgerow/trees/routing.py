"""Between the protocol's tree structures and the kernels: packing, and the few calls that a node makes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.queries import FittedTrees, Histogram, IntVector, LeafSums, TreeBatch
from hedgerow.trees.drawing_kernels import intervals
from hedgerow.trees.exponentials import exponentials
from hedgerow.trees.grid import CodeArray
from hedgerow.trees.kernels import EXP_BITS, EXP_STEPS, KIND_NUMBER, STEP_BITS, hessian_histogram
from hedgerow.trees.leaf_kernels import update_and_sum
from hedgerow.trees.losses import RECORD_NORM, SCORE_UNIT, Loss
from hedgerow.trees.smoothing import shapes_of

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
