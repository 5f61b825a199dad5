"""Kernels that turn values into grid codes: one pass, one short search per value."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

BUCKETS = 1024
ROWS_PER_BLOCK = 512


@numba.njit(cache=True, nogil=True)
def _encode(values, edges, low, scale, starts, codes):  # type: ignore[no-untyped-def]
    """Number of edges <= value, for each value; NaN gives the missing code, one past the last cell."""
    missing = np.int64(len(edges) + 1)
    top = np.float32(BUCKETS - 1)
    for i in range(len(values)):
        value = np.float32(values[i])
        position = min(max((value - low) * scale, np.float32(0)), top)
        # A NaN here is a missing value, or infinity times a scale of zero; then bucket 0 holds every edge.
        bucket = np.int64(position) if position == position else np.int64(0)
        left = np.int64(starts[bucket])
        n_left = np.int64(starts[bucket + 1]) - left
        # How many edges are left after each step does not depend on the value, so a processor can foresee the steps.
        while n_left > 1:
            half = n_left >> 1
            left += half * np.int64(edges[left + half - 1] <= value)
            n_left -= half
        if n_left == 1:
            left += np.int64(edges[left] <= value)
        codes[i] = left if value == value else missing


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
    _encode(values, edges, low, scale, starts, codes)


@numba.njit(cache=True, nogil=True)
def bin_rows(
    matrix: NDArray[np.floating[Any]],
    edges: NDArray[np.float32],
    offsets: NDArray[np.int64],
    lows: NDArray[np.float32],
    scales: NDArray[np.float32],
    starts: NDArray[np.int32],
    codes: NDArray[np.unsignedinteger[Any]],
    first_row: int,
    last_row: int,
) -> None:
    """Codes of some rows of a C-ordered matrix, transposed: a block of rows stays in cache for all its features."""
    for begin in range(first_row, last_row, ROWS_PER_BLOCK):
        end = min(begin + ROWS_PER_BLOCK, last_row)
        for feature in range(matrix.shape[1]):
            own_edges = edges[offsets[feature] : offsets[feature + 1]]
            column = matrix[begin:end, feature]
            _encode(column, own_edges, lows[feature], scales[feature], starts[feature], codes[feature, begin:end])
