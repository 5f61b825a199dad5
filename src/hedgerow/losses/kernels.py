# SPDX-License-Identifier: Apache-2.0
"""Kernels for the statistics of blocks of records; they read the same integers as `Loss`.

Statistics are packed two to a 64-bit word while they are summed, see `unpack`. They are computed twice: with kernels,
and for few records without one (`find_statistics`), so that these need no compiling. `tests/trees/test_kernels.py`
holds both to a slow walk.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from hedgerow.losses.tables import CLASS_WEIGHT_BITS, RECORD_NORM, SCORE_UNIT, STEP_BITS, Loss, exponentials

TABLE, SOFTMAX, SQUARED, CURVE = 0, 1, 2, 3
"""Kinds of loss, in the order of `KIND_NUMBER`."""
KIND_NUMBER = {"table": TABLE, "hazard": TABLE, "softmax": SOFTMAX, "squared": SQUARED, "curve": CURVE}
EXP_STEPS = 4096
EXP_BITS = 30


class PackedLoss(NamedTuple):
    """A loss as the kernels take it.

    Attributes:
        kind: TABLE, SOFTMAX, SQUARED or CURVE.
        table: int64 [n_pairs, n_classes, steps], two statistics to a word.
        exp_table: int64 [EXP_STEPS], 2**30 exp(-step / 256).
        unit: integer units of 1.0 of a gradient.
        hessian_unit: softmax: units of 1.0 of a Hessian, 0 to release `constant` instead.
        norm: softmax: the norm that was promised of each record.
        clip, constant, n_statistics, curve, class_weights: as in `Loss`.
        unit_below, clip_below: squared: of predictions below the label; `unit` and `clip` are of those above it.
    """

    kind: int
    table: NDArray[np.int64]
    exp_table: NDArray[np.int64]
    unit: int
    hessian_unit: int
    norm: int
    clip: int
    constant: int
    n_statistics: int
    curve: NDArray[np.int64]
    class_weights: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    unit_below: int = 0
    clip_below: int = 0


@lru_cache(maxsize=64)
def pack_loss(loss: Loss) -> PackedLoss:
    """Return a loss as the kernels take it.

    The result is kept, since every query asks for it; each site has a loss of its own.
    """
    n_classes, n_steps, n_statistics = loss.table.shape
    even = np.zeros((n_classes, n_steps, n_statistics + n_statistics % 2), dtype=np.int64)
    even[:, :, :n_statistics] = loss.table
    exp_table = np.rint(2**EXP_BITS * exponentials(EXP_STEPS, SCORE_UNIT >> STEP_BITS)).astype(np.int64)
    one = int(loss.scales[0]), loss.clip
    (unit, clip), (unit_below, clip_below) = loss.sides or (one, one)
    return PackedLoss(
        kind=KIND_NUMBER[loss.kind],
        table=np.ascontiguousarray(((even[:, :, 0::2] << 32) + even[:, :, 1::2]).transpose(2, 0, 1)),
        exp_table=exp_table,
        unit=unit,
        hessian_unit=int(loss.scales[-1]) if loss.kind == "softmax" and loss.constant == 0 else 0,
        norm=RECORD_NORM,
        clip=clip,
        constant=loss.constant,
        n_statistics=loss.n_statistics,
        curve=np.ascontiguousarray(loss.curve),
        class_weights=np.ascontiguousarray(loss.class_weights),
        unit_below=unit_below,
        clip_below=clip_below,
    )


def find_statistics(loss: PackedLoss, labels: NDArray[np.int32], scores: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the integers of `write_block_statistics` for few records, without a kernel: [S, n]."""
    own = scores.astype(np.int64)
    if loss.kind == TABLE:
        n_steps = loss.table.shape[2]
        step = np.zeros(len(labels), dtype=np.int64)
        if len(own):
            is_centred = n_steps % 2
            below = own[0] + (is_centred << (STEP_BITS - 1)) - (own[0] < 0) * is_centred
            step = np.clip((below >> STEP_BITS) + n_steps // 2, 0, n_steps - 1)
        words = loss.table[:, labels, step]
        second = words.astype(np.int32).astype(np.int64)
        pairs = np.stack([(words - second) >> 32, second], axis=1)
        return pairs.reshape(2 * len(words), len(labels))[: loss.n_statistics]
    if loss.kind == SQUARED:
        residual = (own[0] if len(own) else 0) - labels.astype(np.int64)
        is_above = residual >= 0
        units = np.where(is_above, loss.unit, loss.unit_below)
        clipped = _clip_residual(residual, units, np.where(is_above, loss.clip, loss.clip_below))
        return np.stack([clipped, np.full_like(residual, loss.constant)])
    if loss.kind == CURVE:
        predictions, last, largest = loss.curve[:3]
        half = len(predictions) // 2
        step = np.clip((own[0] >> STEP_BITS) + half, 0, 2 * half - 1)
        return np.stack([_clip_residual(predictions[step] - labels, loss.unit, largest[step]), last[step]])
    steps = np.minimum((own.max(axis=0) - own) >> STEP_BITS, EXP_STEPS - 1)
    weights = loss.exp_table[steps]
    shares = weights * loss.unit // weights.sum(axis=0)
    gradients, record = shares.copy(), np.arange(len(labels))
    gradients[labels, record] -= shares.sum(axis=0)
    if loss.hessian_unit:
        others = (shares * (loss.unit - shares) // loss.unit) * loss.hessian_unit // loss.unit
    else:
        others = np.full((1, len(labels)), loss.constant)
    # Each record's statistics are scaled towards zero until their norm is within the bound: as `_shrink`.
    shrunk, factor = np.concatenate([gradients, others]), np.ones(len(labels))
    while (is_beyond := (squared := (shrunk**2).sum(axis=0)) > loss.norm**2).any():
        factor[is_beyond] = np.minimum(factor, np.sqrt(loss.norm**2 / np.maximum(squared, 1)))[is_beyond] * (1.0 - 1e-9)
        shrunk[:, is_beyond] = np.trunc(shrunk * factor)[:, is_beyond]
    if len(loss.class_weights):
        shrunk = np.sign(shrunk) * ((np.abs(shrunk) * loss.class_weights[labels]) >> CLASS_WEIGHT_BITS)
    return shrunk


def _clip_residual(
    residual: NDArray[np.int64], unit: NDArray[np.int64] | int, largest: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return residuals in units of a gradient, rounded towards zero and clipped."""
    scaled: NDArray[np.int64] = np.abs(residual) * np.asarray(unit)
    magnitude = np.minimum(scaled >> 16, largest)
    return np.asarray(np.where(residual >= 0, magnitude, -magnitude))


@numba.njit(cache=True, nogil=True)
def words_for_block(loss, block):  # type: ignore[no-untyped-def]
    """Return space for a block's packed statistics, int64 [n_pairs, block], and one record's, [S + 1]."""
    n_pairs = (loss.n_statistics + 1) // 2
    return np.zeros((n_pairs, block), dtype=np.int64), np.zeros(loss.n_statistics + 1, dtype=np.int64)


@numba.njit(cache=True, nogil=True)
def write_block_statistics(loss, labels, scores, begin, end, packed, own):  # type: ignore[no-untyped-def]
    """Write the statistics of records begin..end-1 to packed[:, : end - begin].

    `own` is work space for one record.
    """
    if loss.kind == TABLE:
        _table_statistics(labels, scores, begin, end, loss.table, packed)
    elif loss.kind == SQUARED:
        _write_squared_statistics(labels, scores, begin, end, loss, packed)
    elif loss.kind == CURVE:
        _curve_statistics(labels, scores, begin, end, loss.curve, loss.unit, packed)
    else:
        _softmax_statistics(labels, scores, begin, end, loss, own, packed)


@numba.njit(cache=True, nogil=True)
def _table_statistics(labels, scores, begin, end, table, packed):  # type: ignore[no-untyped-def]
    """Write statistics of a table by class and one score, with one read per pair and record.

    Of an odd number of steps the nearest to the score is read, and of two the further one from 0. The mirror image of a
    score has the mirror image of its step.
    """
    n_steps = table.shape[2]
    half = np.int32(n_steps // 2)
    last = np.int32(n_steps - 1)
    is_centred = np.int32(n_steps % 2)
    middle = is_centred << np.int32(STEP_BITS - 1)
    classes = labels[begin:end]
    for pair in range(packed.shape[0]):
        words = table[pair].ravel()
        row = packed[pair]
        if scores.shape[0] > 0:
            values = scores[0, begin:end]
            for i in range(len(classes)):
                below = values[i] + middle + (values[i] >> np.int32(31)) * is_centred
                step = min(max((below >> np.int32(STEP_BITS)) + half, np.int32(0)), last)
                # A place without a sign needs no test for counting from the end.
                row[i] = words[np.uint32(classes[i]) * np.uint32(n_steps) + np.uint32(step)]
        else:
            for i in range(len(classes)):
                row[i] = words[classes[i] * n_steps]


@numba.njit(cache=True, nogil=True)
def _write_squared_statistics(labels, scores, begin, end, loss, packed):  # type: ignore[no-untyped-def]
    """Write (clipped residual, constant); a residual in units is rounded towards zero."""
    unit, clip, unit_below, clip_below = loss.unit, loss.clip, loss.unit_below, loss.clip_below
    for i in range(end - begin):
        residual = -np.int64(labels[begin + i])
        if scores.shape[0] > 0:
            residual += scores[0, begin + i]
        above = min((abs(residual) * unit) >> 16, np.int64(clip))
        below = min((abs(residual) * unit_below) >> 16, np.int64(clip_below))
        packed[0, i] = _pack(above if residual >= 0 else -below, loss.constant)


@numba.njit(cache=True, nogil=True)
def _curve_statistics(labels, scores, begin, end, curve, unit, packed):  # type: ignore[no-untyped-def]
    """Write (clipped residual, last statistic of the curve); a residual is rounded towards zero."""
    predictions, last, largest = curve[0], curve[1], curve[2]
    half = np.int64(len(predictions) // 2)
    for i in range(end - begin):
        step = min(max((np.int64(scores[0, begin + i]) >> STEP_BITS) + half, np.int64(0)), 2 * half - 1)
        residual = predictions[step] - labels[begin + i]
        magnitude = min((abs(residual) * unit) >> 16, largest[step])
        packed[0, i] = _pack(magnitude if residual >= 0 else -magnitude, last[step])


@numba.njit(cache=True, nogil=True)
def _softmax_statistics(labels, scores, begin, end, loss, statistics, packed):  # type: ignore[no-untyped-def]
    """Write softmax gradients and diagonal Hessians in integers, each record shrunk to its norm."""
    n_classes = scores.shape[0]
    exp_table, unit, hessian_unit = loss.exp_table, np.int64(loss.unit), np.int64(loss.hessian_unit)
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
            statistics[n_classes] = loss.constant
        _shrink(statistics, n_statistics, np.int64(loss.norm))
        if len(loss.class_weights) > 0:
            # Weigh after the shrinking, so that a record has its class's share of the heaviest class's norm.
            weight = loss.class_weights[labels[begin + i]]
            for k in range(n_statistics):
                size = (abs(statistics[k]) * weight) >> CLASS_WEIGHT_BITS
                statistics[k] = size if statistics[k] >= 0 else -size
        for pair in range(packed.shape[0]):
            second = statistics[2 * pair + 1] if 2 * pair + 1 < n_statistics else np.int64(0)
            packed[pair, i] = _pack(statistics[2 * pair], second)


@numba.njit(cache=True, nogil=True)
def _shrink(statistics, count, norm):  # type: ignore[no-untyped-def]
    """Scale one record's statistics towards zero until their norm is at most `norm`.

    The check is in integers.
    """
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
def _pack(first, second):  # type: ignore[no-untyped-def]
    """Return two statistics in one word."""
    return (np.int64(first) << np.int64(32)) + np.int64(second)


@numba.njit(cache=True, nogil=True)
def unpack(word):  # type: ignore[no-untyped-def]
    """Return the two sums of a packed word.

    A statistic is below 2**15 and a span has 2**16 records, so both fit 31 bits.
    """
    second = np.int64(np.int32(word & np.int64(0xFFFFFFFF)))
    return (word - second) >> np.int64(32), second
