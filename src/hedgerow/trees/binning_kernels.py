"""Kernels that turn values into grid codes: one pass, one short search per value."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

LOWEST_OCTAVE = 32
STEPS_PER_OCTAVE = 128
BUCKETS = LOWEST_OCTAVE * STEPS_PER_OCTAVE + 1
"""Of the position in a feature's range, 0 to 1: equal steps within each of its last halvings, so that edges which crowd
around zero are told apart as well as those further up."""
TOP_BITS = 0x3F800000 >> 16
"""The sign, the exponent and the first seven bits of the single-precision number 1."""
ROWS_PER_BLOCK = 512


@numba.njit(cache=True, nogil=True)
def _encode(values, edges, low, scale, starts, codes):  # type: ignore[no-untyped-def]
    """Number of edges <= value, for each value; NaN gives the missing code, one past the last cell."""
    missing = np.int64(len(edges) + 1)
    for i in range(len(values)):
        value = np.float32(values[i])
        position = np.float32((value - low) * scale)
        # The leading bits of positive numbers stand in the numbers' order.
        bucket = (np.int64(position.view(np.int32)) >> np.int64(16)) - np.int64(TOP_BITS - BUCKETS + 1)
        # A NaN here is a missing value, or infinity times a scale of zero; then bucket 0 holds every edge.
        bucket = min(max(bucket, np.int64(0)), np.int64(BUCKETS - 1)) if position > 0 else np.int64(0)
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
