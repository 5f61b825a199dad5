"""Kernels that turn values into grid codes: one pass, one short search per value."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

BUCKETS = 1024
ROWS_PER_BLOCK = 512


@numba.njit(cache=True, inline="always")
def _code(value, edges, first, last, low, scale, starts):  # type: ignore[no-untyped-def]
    """Number of edges that are <= value; `first` and `last` delimit the feature's edges; NaN gives the missing code."""
    if np.isnan(value):
        return last - first + 1
    position = (value - low) * scale
    # The comparisons also send a NaN from inf * 0 to bucket 0, whose search range is then everything.
    bucket = 0
    if position >= BUCKETS - 1:
        bucket = BUCKETS - 1
    elif position > 0:
        bucket = int(position)
    left = first + starts[bucket]
    right = first + starts[bucket + 1]
    while left < right:
        middle = (left + right) >> 1
        if edges[middle] <= value:
            left = middle + 1
        else:
            right = middle
    return left - first


@numba.njit(cache=True, nogil=True)
def bin_column(
    values: NDArray[np.float32],
    edges: NDArray[np.float32],
    low: np.float32,
    scale: np.float32,
    starts: NDArray[np.int32],
    codes: NDArray[np.uint16],
) -> None:
    """Write the code of each value; see `FeatureGrid.acceleration` for the arguments."""
    last = len(edges)
    for i in range(len(values)):
        codes[i] = _code(values[i], edges, 0, last, low, scale, starts)


@numba.njit(cache=True, nogil=True, parallel=True)
def bin_rows(
    matrix: NDArray[np.floating[Any]],
    edges: NDArray[np.float32],
    offsets: NDArray[np.int64],
    lows: NDArray[np.float32],
    scales: NDArray[np.float32],
    starts: NDArray[np.int32],
    codes: NDArray[np.unsignedinteger[Any]],
) -> None:
    """Codes of a C-ordered matrix, transposed: blocks of rows stay in cache while their features are visited."""
    n_rows, n_features = matrix.shape
    n_blocks = (n_rows + ROWS_PER_BLOCK - 1) // ROWS_PER_BLOCK
    for block in numba.prange(n_blocks):
        begin = block * ROWS_PER_BLOCK
        end = min(begin + ROWS_PER_BLOCK, n_rows)
        for feature in range(n_features):
            first = offsets[feature]
            last = offsets[feature + 1]
            low = lows[feature]
            scale = scales[feature]
            table = starts[feature]
            for row in range(begin, end):
                value = np.float32(matrix[row, feature])
                codes[feature, row] = _code(value, edges, first, last, low, scale, table)
