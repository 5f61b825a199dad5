# SPDX-License-Identifier: Apache-2.0
"""Losses as integer arithmetic: the exact contribution of a record, and its largest norm.

Scores are integers in units of 2**-16, so sums over trees are exact and their order does not matter. A record's
statistics are integers too, rounded towards zero; one unit of L2 sensitivity is `RECORD_NORM` = 2**14 of them. For
labels of two classes the statistics are a finite table over (label, score), and the sensitivity is the largest norm in
that table: a maximum over numbers that exist, not a bound on a formula. The kernels read the same table.

    weight update   binary                 multiclass (K classes)              regression (label scaled to [-1, 1])
    newton          (g, c h)               (g_1..g_K, c h_1..c h_K)            (clip(g), c)
    gradient        (g, c)                 (g_1..g_K, c)                       (clip(g), c)
    averaging       (1{y=0}, 1{y=1})       (1{y=1}..1{y=K})                    (y, c)
                    (1{y=1}, c) where the plan gives c: CCS'22, section 4.4.1, with more noise than the class counts

Source: Maddock et al., CCS'22, section 4.4; the scaling c of the Hessian and the joint clipping of (g, c h) are
explained in docs/proofs/queries.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from hedgerow.errors import PlanError

SCORE_UNIT = 2**16
"""Scores are integers in units of 1 / SCORE_UNIT."""
STEP_BITS = 8
"""The table holds one entry per 2**8 score units, that is per 1/256 of score."""
STEPS = 4096
"""Entries per class: scores from -8 to 8; beyond them the derivative of the logistic loss is constant to 0.0004.

Tables of two classes have one more, so that one is at score 0: they give a score and a class the statistics of the
negative score and the other class, except for the gradient's sign. Only then is a model the same whichever of its
classes comes first."""
SCORE_LIMIT = STEPS // 2 << STEP_BITS
RECORD_NORM = 2**14
CLASS_WEIGHT_BITS = 16
LEVEL_UNIT = 2**17
"""Predictions and labels of `Link.predict_level` are integers in units of their range / LEVEL_UNIT."""
CLASS_WEIGHT_UNIT = 2**CLASS_WEIGHT_BITS
"""The unit of class weights, that of the heaviest class."""
MAX_UNIT = 2**28
"""Integer units per 1.0 of a statistic: beyond this, products and squares in the kernels would leave 64 bits."""
_CONTEXT = Context(prec=50)


@dataclass(frozen=True, eq=False)
class Loss:
    """The rule from a record's label and scores to its integer statistics.

    Attributes:
        kind: "table" (statistics depend on the class and at most one score), "hazard" (the same, but of codes of times
            to an event, and under a baseline that a run releases), "softmax", "squared", or "curve" (of a number whose
            prediction, and the last statistic with it, is a function of one score).
        n_outputs: scores per record.
        n_statistics: integers per record and leaf.
        scales: float64 [n_statistics], integer units per 1.0 of each statistic (the Hessian's includes c).
        table: int16 [n_classes, STEPS or STEPS + 1, n_statistics]; for kinds "table" and "hazard", else of length 0.
            A score's entry is the one whose step holds it, or of an odd number the nearest, and of two the further one
            from 0; a score beyond them has the last.
        norm_squared: largest squared L2 norm of any record's statistics, in integer units.
        clip: largest gradient magnitude, in integer units (kinds "squared" and "curve").
        constant: the last statistic when it is the same for every record (squared; softmax with gradient updates).
        is_share: whether a value of a tree is the share of a class, by averaging.
        curve: int64 [3, STEPS], kind "curve": for each step of score the prediction, as labels are kept, and the last
            statistic, both not descending and the latter at least 0; and the largest gradient beside it.
        class_weights: int64 [n_classes], kind "softmax": by what part of `CLASS_WEIGHT_UNIT` the statistics of a record
            of each class are multiplied, rounded towards zero; empty where all count alike. A table holds them itself.
        sides: of kind "squared", where the gradient is not symmetric: for predictions above the label, and then below
            it, integer units per 1.0 of the residual, and the largest magnitude, of which `clip` is the larger.
    """

    kind: str
    n_outputs: int
    n_statistics: int
    scales: NDArray[np.float64]
    table: NDArray[np.int16]
    norm_squared: int
    clip: int = 0
    constant: int = 0
    is_share: bool = False
    curve: NDArray[np.int64] = field(default_factory=lambda: np.zeros((3, 0), dtype=np.int64))
    class_weights: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    sides: tuple[tuple[int, int], tuple[int, int]] | None = None

    @property
    def counts_classes(self) -> bool:
        """True if statistics are counts of classes, rather than the two parts of a leaf's value."""
        return self.n_outputs == 0 and not self.is_share

    @property
    def is_quadratic(self) -> bool:
        """True if the Hessian is the gradient's derivative, and the same for all records."""
        return self.kind == "squared"

    def sensitivity_squared(self, score_bound: int) -> int:
        """Return a record's largest squared norm for scores within +-`score_bound` units of 2**-16."""
        if self.kind not in ("table", "curve"):
            return self.norm_squared
        within = self.steps_within(score_bound)
        if self.kind == "curve":
            return int((self.curve[1:, within] ** 2).sum(axis=0).max())
        return int(self._norms_within[within.stop - 1 - STEPS // 2])

    def steps_within(self, score_bound: int) -> slice:
        """Return the entries of the table or curve for scores within +-`score_bound` units of 2**-16."""
        half, is_centred = STEPS // 2, self.table.shape[1] % 2
        reach = (score_bound + (1 << STEP_BITS >> 1) >> STEP_BITS) if is_centred else (score_bound >> STEP_BITS) + 1
        reach = min(half, reach)
        return slice(half - reach, half + reach + is_centred)

    @cached_property
    def _norms_within(self) -> NDArray[np.int64]:
        """Largest squared norms up to each entry from the middle on, on either side.

        Kept, because a run asks before every tree.
        """
        norms = (self.table.astype(np.int64) ** 2).sum(axis=-1).max(axis=0)
        either_side = np.maximum(norms[::-1][STEPS // 2 :], norms[STEPS // 2 :])
        return np.asarray(np.maximum.accumulate(either_side))

    def largest_statistic(self, index: int) -> int:
        """Return the largest magnitude of one of a record's statistics, in integer units."""
        if self.kind == "table":
            return int(np.abs(self.table[:, :, index].astype(np.int64)).max())
        if self.kind == "curve":
            return int(self.curve[1, -1]) if index else self.clip
        if self.constant and index == self.n_statistics - 1:
            return min(self.constant, self.bound())
        if self.kind == "softmax" and index >= self.n_outputs:
            # c p (1 - p) is at most c / 4, and every rounding is towards zero.
            return min(int(self.scales[index]) // 4, self.bound())
        return self.bound()

    def bound(self) -> int:
        """Return the largest magnitude of any statistic of a record, in integer units."""
        return math.isqrt(self.norm_squared)


@dataclass(frozen=True, eq=False)
class Statistics:
    """The range of a record's statistics, per statistic of a loss, in integer units.

    Attributes:
        low, high: int64 [S], its range.
        ratio: float64 [S], the largest magnitude of each beside the record's last statistic (Hessian or count);
            infinity where the last may be zero while this one is not.
        step: int64 [S], the furthest it moves when the record's score moves by one step of the loss's table; 0 where
            no score moves it, and its whole range where nothing better is known.
    """

    low: NDArray[np.int64]
    high: NDArray[np.int64]
    ratio: NDArray[np.float64]
    step: NDArray[np.int64]

    def moves(self, moved: int) -> NDArray[np.int64]:
        """Return the furthest each statistic moves for scores that move by `moved` units of 2**-16."""
        return np.asarray(np.minimum(self.high - self.low, self.step * ((moved >> STEP_BITS) + 1)))


@lru_cache(maxsize=8)
def bound_statistics(loss: Loss, score_bound: int) -> Statistics:
    """Return the range of a record's statistics for scores within +-`score_bound` units of 2**-16.

    A table is read off, so its numbers are exact. For the squared loss they are the clip and the constant; for softmax
    the bounds of `Loss.largest_statistic`, and no ratio. Each record's statistics are shrunk and rounded one by one.
    """
    if loss.kind in ("table", "hazard"):
        table = loss.table[:, loss.steps_within(score_bound)].astype(np.int64)
        low, high = table.min(axis=(0, 1)), table.max(axis=(0, 1))
        step = np.abs(np.diff(table, axis=1)).max(axis=(0, 1), initial=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(table == 0, 0.0, np.abs(table) / table[..., -1:]).max(axis=(0, 1))
        return Statistics(low, high, ratio, step)
    if loss.kind == "curve":
        last, gradient = loss.curve[1:, loss.steps_within(score_bound)]
        low, high = np.array([-gradient[0], last[0]]), np.array([gradient[0], last[-1]])
        # Where the last statistic is larger, the gradient has less room.
        ratio = int(gradient[0]) / int(last[0]) if last[0] else math.inf
        return Statistics(low, high, np.array([ratio, 1.0]), high - low)
    if loss.kind == "squared":
        above, below = (loss.clip, loss.clip) if loss.sides is None else (clip for _, clip in loss.sides)
        low, high = np.array([-below, loss.constant]), np.array([above, loss.constant])
        return Statistics(low, high, np.array([loss.clip / loss.constant, 1.0]), high - low)
    high = np.array([loss.largest_statistic(index) for index in range(loss.n_statistics)], dtype=np.int64)
    low = np.where(np.arange(len(high)) < loss.n_outputs, -high, 0)
    return Statistics(low, high, np.full(len(high), math.inf), high - low)


@lru_cache(maxsize=8)
def double_residuals(loss: Loss, doublings: int) -> Loss:
    """Return the loss of residuals multiplied by 2**doublings before the clip, with the same norm.

    Of a curve, the last statistic is what the prediction is: it is multiplied as well, and cut off at its largest.
    """
    if doublings == 0:
        return loss
    scales = loss.scales.copy()
    if loss.is_quadratic:
        scales[0] *= 2**doublings
        sides = loss.sides
        if sides is not None:
            (unit, clip), (unit_below, clip_below) = sides
            sides = (unit << doublings, clip), (unit_below << doublings, clip_below)
        return replace(loss, scales=scales, sides=sides)
    if loss.kind != "curve":
        raise ValueError("only residuals of a number are clipped")
    scales *= 2**doublings
    last = np.trunc((loss.curve[0] + SCORE_UNIT) / SCORE_UNIT * scales[1]).astype(np.int64)
    curve = joint_curve(loss.curve[0], np.minimum(last, loss.curve[1, -1]), loss.clip, loss.norm_squared)
    return replace(loss, scales=scales, curve=curve)


def joint_curve(
    prediction: NDArray[np.int64], last: NDArray[np.int64], clip: int, norm_squared: int
) -> NDArray[np.int64]:
    """Return the curve of these two with the largest gradient beside each: int64 [3, STEPS].

    It is at most the whole root of what the last statistic leaves of the squared norm: no record has a longer vector.

    Args:
        prediction, last: int64 [STEPS], see `Loss.curve`; the latter at most the norm.
        clip: the largest gradient beside a last statistic of 0, in integer units.
        norm_squared: of a record's statistics, in integer units.
    """
    rooms = [min(clip, math.isqrt(norm_squared - value * value)) for value in last.tolist()]
    return np.stack([prediction, last, np.array(rooms, dtype=np.int64)])


def loss_from_table(
    values: NDArray[np.float64], scale: float, weights: NDArray[np.float64], n_outputs: int = 0
) -> Loss:
    """Build a loss from a table of real statistics, float64 [n_classes, steps, n_statistics].

    Entries are rounded towards zero, so that no entry's norm grows; the norm is then read off the integers.
    """
    table = np.trunc(values * scale * (1 - 1e-12)).astype(np.int16)
    if n_outputs == 0 and scale == RECORD_NORM:
        table = np.rint(values * scale).astype(np.int16)
    norm_squared = int((table.astype(np.int64) ** 2).sum(axis=-1).max())
    return Loss("table", n_outputs, values.shape[-1], scale * weights, table, norm_squared)


def read_class_weights(weights: Sequence[float]) -> NDArray[np.int64]:
    """Return class weights as parts of `CLASS_WEIGHT_UNIT`, rounded down: int64 [n_classes].

    So no record counts more than one of the heaviest class.
    """
    return np.array([int(weight / max(weights) * CLASS_WEIGHT_UNIT) for weight in weights], dtype=np.int64)


def check_units(*units: float) -> None:
    """Raise PlanError unless the integer units per 1.0 of all statistics are from 1 to `MAX_UNIT`."""
    if min(units) >= 1 and max(units) <= MAX_UNIT:
        return
    found = f"with model.hessian_scale, {min(units):.3g} to {max(units):.3g} integer units for 1.0 of a statistic"
    expected = f'1 to {MAX_UNIT}: both "auto", or a clip of 0.01 to 2 and a scale of 0.1 to 10'
    raise PlanError("plan-field", path="model.joint_clip", found=found, expected=expected)


@lru_cache(maxsize=8)
def exponentials(count: int, steps_per_unit: int) -> NDArray[np.float64]:
    """Return exp(-k / steps_per_unit) for k = 0 .. count - 1: float64 [count], read-only."""
    return _freeze(_decimals(count, steps_per_unit, 0))


@lru_cache(maxsize=8)
def logistic(count: int, steps_per_unit: int) -> NDArray[np.float64]:
    """Return the logistic function at count even places about 0, read-only: float64 [count].

    That is 1 / (1 + exp(-x)) at x = (k - (count - 1) / 2) / steps_per_unit for k = 0 .. count - 1.

    So an odd count has 0 among its places, and an even one has it between two of them.
    """
    one, is_odd = Decimal(1), count % 2
    values = _decimals((count + 1) // 2, steps_per_unit, 1 - is_odd)
    upper = [_CONTEXT.divide(one, _CONTEXT.add(one, value)) for value in values]
    lower = [_CONTEXT.subtract(one, value) for value in reversed(upper[is_odd:])]
    return _freeze(lower + upper)


def find_chances(scores: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return chances of log-odds in units of 2**-16, as integers in units of 1 / LEVEL_UNIT; beyond 16 they stay."""
    # Read the chances of positive scores, so that a negative score has exactly what is missing to 1.
    places = np.minimum(np.abs(scores), (STEPS << STEP_BITS) - 1)
    step, within, width = places >> STEP_BITS, places & ((1 << STEP_BITS) - 1), 1 << STEP_BITS
    table = _chances_by_step()
    upper = round_chances((table[step] * (width - within) + table[step + 1] * within) >> (2 * STEP_BITS))
    return np.asarray(np.where(scores < 0, LEVEL_UNIT - upper, upper))


def round_chances(chances: NDArray[np.int64]) -> NDArray[np.int64]:
    """Round chances in units of 1 / LEVEL_UNIT to whole units of 1 / RECORD_NORM."""
    grid = LEVEL_UNIT // RECORD_NORM
    return np.asarray((chances + grid // 2) // grid * grid)


@lru_cache(maxsize=1)
def _chances_by_step() -> NDArray[np.int64]:
    """Return the logistic function at the ends of steps from 0 to 16, in units of 2**-8 / LEVEL_UNIT."""
    upper = logistic(2 * STEPS + 1, SCORE_UNIT >> STEP_BITS)[STEPS:]
    table = np.rint(upper * (LEVEL_UNIT << STEP_BITS)).astype(np.int64)
    table.flags.writeable = False
    return table


@lru_cache(maxsize=8)
def _decimals(count: int, steps_per_unit: int, twice_offset: int) -> tuple[Decimal, ...]:
    """Return exp(-(k + twice_offset / 2) / steps_per_unit) for k < count, to nearly 50 digits.

    Libraries' exponentials may differ in the last bit between processors, and a table that differs by one integer
    between two nodes would break the promise that a model does not depend on who holds which row. These are powers of
    one decimal constant, rounded to a double once.
    """
    ratio = _CONTEXT.exp(_CONTEXT.divide(Decimal(-1), Decimal(steps_per_unit)))
    value = _CONTEXT.exp(_CONTEXT.divide(Decimal(-twice_offset), Decimal(2 * steps_per_unit)))
    values = []
    for _ in range(count):
        values.append(value)
        value = _CONTEXT.multiply(value, ratio)
    return tuple(values)


def _freeze(values: Iterable[Decimal]) -> NDArray[np.float64]:
    table = np.array([float(value) for value in values])
    table.flags.writeable = False
    return table
