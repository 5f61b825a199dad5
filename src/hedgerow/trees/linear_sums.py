"""What a node makes of the queries of linear models, and the losses whose gradients they ask for."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.linear_queries import CrossProducts, GramMatrix, LinearRows
from hedgerow.protocol.queries import IntVector
from hedgerow.trees.exponentials import logistic
from hedgerow.trees.linear_kernels import cross_sums, gram_sums
from hedgerow.trees.losses import RECORD_NORM, SCORE_UNIT, STEP_BITS, STEPS, Loss
from hedgerow.trees.routing import MIN_RECORDS_PER_THREAD, SiteRecords, apply_update


def linear_loss(kind: str, is_regression: bool, clip: float) -> Loss:
    """The loss of a linear model: one statistic, its negative gradient, `RECORD_NORM` units to 1.0.

    Args:
        kind: "squared", "logistic" or "hinge".
        is_regression: whether labels are numbers in [-1, 1]; then the loss is the squared one.
        clip: largest gradient of the squared loss, in real units.

    Source: Rho et al. 2022, Table 1; classes count as -1 and 1, for the logistic loss as 0 and 1.
    """
    limit = math.floor(clip * RECORD_NORM)
    scales = np.array([float(RECORD_NORM)])
    if is_regression:
        empty = np.empty((0, STEPS, 1), dtype=np.int16)
        return Loss("squared", 1, 1, scales, empty, limit * limit, limit)
    # The middles of the table's steps of score; a score beyond them counts as the last one.
    score = (np.arange(STEPS) - STEPS // 2 + 0.5) / (SCORE_UNIT >> STEP_BITS)
    if kind == "logistic":
        probability = logistic(STEPS, SCORE_UNIT >> STEP_BITS)
        gradient = np.stack([-probability, 1 - probability])
    elif kind == "hinge":
        gradient = np.stack([-(score > -1.0).astype(np.float64), (score < 1.0).astype(np.float64)])
    else:
        gradient = np.clip(np.stack([-1 - score, 1 - score]), -clip, clip)
    table = np.trunc(gradient * RECORD_NORM).astype(np.int16)[:, :, None]
    return Loss("table", 1, 1, scales, table, int((table.astype(np.int64) ** 2).max()))


def gram_matrix(records: SiteRecords, query: GramMatrix, n_threads: int = 1) -> IntVector:
    """Answer a `GramMatrix` query: int64 [query.length]."""
    shape = (_packed(query.rows), query.rows.n_columns, query.shift)
    sums = _in_threads(records.n_records, n_threads, lambda begin, end: gram_sums(records.codes, *shape, begin, end))
    return np.ascontiguousarray(sums[np.triu_indices(query.rows.n_columns)])


def cross_products(records: SiteRecords, query: CrossProducts, loss: Loss, n_threads: int = 1) -> IntVector:
    """Answer a `CrossProducts` query: apply its update to the scores, then sum; int64 [query.length]."""
    if query.update is not None:
        apply_update(records, query.update, n_threads)
    gradients = (np.ascontiguousarray(loss.table[:, :, 0]), loss.clip, int(loss.scales[0]))
    own = (records.codes, records.labels, records.scores[0], gradients)
    shape = (_packed(query.rows), query.rows.n_columns, query.shift)
    return _in_threads(records.n_records, n_threads, lambda begin, end: cross_sums(*own, *shape, begin, end))


def _packed(rows: LinearRows) -> tuple[NDArray[np.int32], NDArray[np.int32], int, int, NDArray[np.int64]]:
    """The rows as the kernels take them."""
    return rows.column, rows.entry, rows.intercept, rows.limit, rows.transform


def _in_threads(
    n_records: int, n_threads: int, sums_of: Callable[[int, int], NDArray[np.int64]]
) -> NDArray[np.int64]:
    if n_records < MIN_RECORDS_PER_THREAD * n_threads or n_threads == 1:
        return np.asarray(sums_of(0, n_records))
    borders = [n_records * part // n_threads for part in range(n_threads + 1)]
    with ThreadPoolExecutor(n_threads) as threads:
        parts = list(threads.map(sums_of, borders[:-1], borders[1:]))
    return np.asarray(np.sum(parts, axis=0, dtype=np.int64))
