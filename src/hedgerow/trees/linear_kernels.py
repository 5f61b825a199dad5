"""Kernels of linear models: products of a record's row, summed over records; integers only."""

from __future__ import annotations

import math

import numba
import numpy as np

TRANSFORM_BITS = 16
ENTRY_LIMIT = 2**24
"""Largest entry of a transformed row before it is shortened."""
MAX_TRANSFORMED = 2**14
"""Most entries of a transformed row: the squares of so many largest ones add up to 2**62. A sum beyond 64 bits would be
negative, and the row would stay as long as it is."""


@numba.njit(cache=True, nogil=True)
def _towards_zero(product, shift):  # type: ignore[no-untyped-def]
    magnitude = abs(product) >> np.int64(shift)
    return magnitude if product >= 0 else -magnitude


@numba.njit(cache=True, nogil=True)
def _shorten(values, limit):  # type: ignore[no-untyped-def]
    norm_squared = np.int64(0)
    for value in values:
        norm_squared += value * value
    if norm_squared <= limit * limit:
        return
    norm = np.int64(math.sqrt(np.float64(norm_squared)))
    # A root in floating point may be off by one; the norm must be rounded up for the row not to stay too long.
    while norm * norm < norm_squared:
        norm += 1
    while (norm - 1) * (norm - 1) >= norm_squared:
        norm -= 1
    for index in range(len(values)):
        shortened = abs(values[index]) * limit // norm
        values[index] = shortened if values[index] >= 0 else -shortened


@numba.njit(cache=True, nogil=True)
def _fill_row(codes, record, rows, places, values):  # type: ignore[no-untyped-def]
    """The row of one record, in `places` and `values`: int64 [1 + n_features], shortened to the limit."""
    column, entry, intercept = rows[:3]
    places[0], values[0] = 0, intercept
    for feature in range(codes.shape[0]):
        code = codes[feature, record]
        places[feature + 1], values[feature + 1] = column[feature, code], entry[feature, code]
    _shorten(values, np.int64(rows[3]))


@numba.njit(cache=True, nogil=True)
def _fill_transformed(codes, record, rows, values):  # type: ignore[no-untyped-def]
    """The transformed row of one record: int64 [p], shortened to the limit."""
    column, entry, intercept, limit, transform = rows
    for index in range(len(values)):
        total = transform[index, 0] * np.int64(intercept)
        for feature in range(codes.shape[0]):
            code = codes[feature, record]
            total += transform[index, column[feature, code]] * np.int64(entry[feature, code])
        values[index] = min(max(_towards_zero(total, TRANSFORM_BITS), -ENTRY_LIMIT), ENTRY_LIMIT)
    _shorten(values, np.int64(limit))


@numba.njit(cache=True, nogil=True)
def gram_sums(codes, rows, n_columns, shift, begin, end):  # type: ignore[no-untyped-def]
    """Upper triangle of the sum of r r^T over records begin..end-1: int64 [p, p], zero below the diagonal."""
    sums = np.zeros((n_columns, n_columns), dtype=np.int64)
    is_transformed = len(rows[4]) > 0
    n_entries = n_columns if is_transformed else codes.shape[0] + 1
    places, values = np.arange(n_entries), np.empty(n_entries, dtype=np.int64)
    for record in range(begin, end):
        if is_transformed:
            _fill_transformed(codes, record, rows, values)
        else:
            _fill_row(codes, record, rows, places, values)
        for first in range(n_entries):
            row, factor = sums[places[first]], values[first]
            for second in range(first, n_entries):
                row[places[second]] += _towards_zero(factor * values[second], shift)
    return sums


@numba.njit(cache=True, nogil=True)
def negative_gradient(label, score, table, clip, unit):  # type: ignore[no-untyped-def]
    """-dL/ds of one record, an integer: from the table over (class, score), or a clipped residual without one."""
    if table.shape[0] > 0:
        half = np.int32(table.shape[1] // 2)
        step = min(max((score >> np.int32(STEP_BITS)) + half, np.int32(0)), np.int32(table.shape[1] - 1))
        return np.int64(table[label, step])
    residual = np.int64(label) - np.int64(score)
    magnitude = min((abs(residual) * np.int64(unit)) >> np.int64(16), np.int64(clip))
    return magnitude if residual >= 0 else -magnitude


@numba.njit(cache=True, nogil=True)
def cross_sums(  # type: ignore[no-untyped-def]
    codes, labels, scores, gradients, rows, n_columns, shift, begin, end
):
    """The sum of g r over records begin..end-1: int64 [p]; `gradients` is (table, clip, unit)."""
    table, clip, unit = gradients
    sums = np.zeros(n_columns, dtype=np.int64)
    is_transformed = len(rows[4]) > 0
    n_entries = n_columns if is_transformed else codes.shape[0] + 1
    places, values = np.arange(n_entries), np.empty(n_entries, dtype=np.int64)
    for record in range(begin, end):
        gradient = negative_gradient(labels[record], scores[record], table, clip, unit)
        if gradient == 0:
            continue
        if is_transformed:
            _fill_transformed(codes, record, rows, values)
        else:
            _fill_row(codes, record, rows, places, values)
        for index in range(n_entries):
            sums[places[index]] += _towards_zero(gradient * values[index], shift)
    return sums
