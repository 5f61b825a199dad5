# SPDX-License-Identifier: Apache-2.0
"""The Poisson loss, for counts from 0 to a public maximum; the score is the logarithm of the mean.

A plan says `label.type = "count"` and `label.max`, M; a larger count counts as M, and predictions end there:

    mean(s) = min(M, B exp(s)),    s cut off at +-8;    B is sqrt(M), rounded to a whole number of score units

Scores begin at 0, so a model begins at B: midway, by factors, between a mean of one and the largest. M is at most
10,000, for which means reach down to 0.03.

Labels are kept as any number's are, scaled from [0, M] to [-1, 1] in units of 2**-16 (a count is then exact to 1/25 at
the largest M, and to 1/2,500 at M = 100), and so are predictions. In such units, of M / 2 counts, a record has

    g = (mean(s) - y) / (M / 2)        newton: h = mean(s) / (M / 2), from 0 to 2;    gradient: h = 1

and adds (g, c h), rounded towards zero and no longer than N as a vector. Predictions, c h and the room that it leaves
to g are looked up by steps of 1/256 of score:

    c h is cut off at N / sqrt(2), and then |g| at sqrt(N**2 - (c h)**2)        so g**2 + (c h)**2 <= N**2

whatever the label and the score are. In integers the room is the whole root of what the integer c h leaves of N**2.
The sensitivity is the largest g**2 + (c h)**2 over the steps that scores can have (`Loss.sensitivity_squared`): a
maximum over numbers that exist.

N is `model.joint_clip`, by default 1/2, that is M / 4 counts, and .7 counts at least; without a clip no residual is
beyond 2. No vector beyond hypot(2, 2 c). Counts above the mean lie further from it than those below, so a clip that
many of them reach pulls all predictions down: at 1/4, by a tenth where the mean was a twentieth of M; at 1/2, by a
thirtieth. Where h is cut off much, the steps of a leaf, sums of g over sums of h, are longer than Newton's where means
are large; so it may have as much of the norm as g. c is `model.hessian_scale`, by default N.

Where counts are far below M, the default multiplies g and h by a power of two before they are cut off, N and c staying
as they are (`hedgerow.losses.tables.double_residuals`). Clipped residuals pull predictions down, which a last release
puts right (`hedgerow.methods.boosting.calibration.ScoreBins`).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from hedgerow import elementary
from hedgerow.losses.kinds import Deviance, Floats, Ints, LossKind, NumberLink, Objective, means
from hedgerow.losses.labels import Numbers, negative
from hedgerow.losses.tables import (
    RECORD_NORM,
    SCORE_LIMIT,
    SCORE_UNIT,
    STEP_BITS,
    STEPS,
    Loss,
    check_units,
    exponentials,
    joint_curve,
)
from hedgerow.plan.fields import refuse
from hedgerow.plan.plan import Label, Plan
from hedgerow.plan.registry import LabelColumn

MAX_COUNT = 10_000
MAX_RESIDUAL = 2.0
"""The largest residual, in units of M / 2 counts."""
MAX_OF_HESSIAN = math.sqrt(0.5)
"""The largest share of c h in a record's norm: the gradient has as much room beside it."""
_STEPS_PER_UNIT = SCORE_UNIT >> STEP_BITS
_COARSE_BITS, _FINE_BITS = 24, 20
"""Bits of the two factors of an exponential in `LogMean.units`."""


def _exp(units: int) -> float:
    """Return exp(units of score), for units >= 0, from two tabulated factors.

    The double is the same on every machine.
    """
    coarse = exponentials((units >> STEP_BITS) + 1, _STEPS_PER_UNIT)[-1]
    return 1 / float(coarse * exponentials(1 << STEP_BITS, SCORE_UNIT)[units & ((1 << STEP_BITS) - 1)])


def _middle(label: Label) -> int:
    """Return log B, in units of score."""
    return round(float(elementary.log(label.bounds[1])) / 2 * SCORE_UNIT)


def compute_score(mean: float, label: Label) -> int:
    """Return the score of a mean count > 0, in units of 2**-16, within +-8, alike on every machine."""
    return logarithm(mean, _middle(label))


def logarithm(value: float, less: int = 0) -> int:
    """Return the logarithm of a number > 0, less `less`, in units of 2**-16, within +-8.

    The result is the same on every machine.
    """
    low, high = -SCORE_LIMIT, SCORE_LIMIT
    while low < high:
        middle = (low + high) // 2
        units = less + middle
        if (_exp(units) if units >= 0 else 1 / _exp(-units)) < value:
            low = middle + 1
        else:
            high = middle
    return low


def _build(plan: Plan, joint_clip: float | None, hessian_scale: float | None) -> Loss:
    return _loss(plan.model.weight_update == "newton", plan.label, joint_clip, hessian_scale)


# Every replica and every node of a run asks for it.
@lru_cache(maxsize=8)
def _loss(newton: bool, label: Label, joint_clip: float | None, hessian_scale: float | None) -> Loss:
    largest = label.bounds[1]
    clip = MAX_RESIDUAL if joint_clip is None else min(joint_clip, MAX_RESIDUAL)
    c = hessian_scale or (clip / 2 if joint_clip is None or not newton else clip)
    # exp at the middles of the steps, the lowest first.
    rising = _exp(SCORE_LIMIT) * exponentials(2 * STEPS, 2 * _STEPS_PER_UNIT)[1::2][::-1]
    residual = np.minimum(2 * _exp(_middle(label)) / largest * rising, MAX_RESIDUAL)
    hessian = residual if newton else np.ones(STEPS)
    norm, most = clip, MAX_OF_HESSIAN
    if joint_clip is None:
        norm, most = math.hypot(clip, c * float(hessian.max())), 1.0
    # A hair below the norm, so that no rounding of a product lifts a statistic over it.
    scale = RECORD_NORM / norm * (1 - 1e-12)
    check_units(scale, clip * scale, c * scale)
    last = np.trunc(np.minimum(hessian * c * scale, most * RECORD_NORM)).astype(np.int64)
    gradient = math.floor(clip * scale)
    curve = joint_curve(np.rint((residual - 1) * SCORE_UNIT).astype(np.int64), last, gradient, RECORD_NORM**2)
    scales = np.array([float(math.floor(scale)), c * scale])
    empty = np.empty((0, STEPS, 2), dtype=np.int16)
    return Loss("curve", 1, 2, scales, empty, RECORD_NORM**2, gradient, curve=curve)


class LogMean(NumberLink):
    """A link of counts: the score is the logarithm of the mean, less that of B."""

    name = "log"
    level_curve = "exponential"

    def values(self, scores: Floats, label: Label) -> Floats:
        reach = SCORE_LIMIT / SCORE_UNIT
        means = elementary.exp(np.clip(scores, -reach, reach) + _middle(label) / SCORE_UNIT)
        return np.asarray(np.minimum(means, label.bounds[1]))

    def units(self, scores: Ints, label: Label) -> Ints:
        """Return predictions as integers in units of 2**-16, with exp(s) from two tables.

        The rounding is part of an evaluation's sums, so it has to be alike on every machine.
        """
        largest = 2 * _exp(_middle(label)) * _exp(SCORE_LIMIT) / label.bounds[1]
        below = SCORE_LIMIT - np.clip(scores, -SCORE_LIMIT, SCORE_LIMIT)
        coarse = np.minimum(largest * exponentials(STEPS + 1, _STEPS_PER_UNIT), 2 * MAX_RESIDUAL)
        coarse = np.rint(coarse * SCORE_UNIT * 2**_COARSE_BITS).astype(np.int64)
        fine = np.rint(exponentials(1 << STEP_BITS, SCORE_UNIT) * 2**_FINE_BITS).astype(np.int64)
        product = coarse[below >> STEP_BITS] * fine[below & ((1 << STEP_BITS) - 1)]
        shift = _COARSE_BITS + _FINE_BITS
        found = (product + (1 << (shift - 1))) >> shift
        return np.asarray(np.minimum(found, int(MAX_RESIDUAL) * SCORE_UNIT) - SCORE_UNIT)

    def objective(self, label: Label) -> Objective:
        clip = (float(self.values(np.array([-math.inf]), label)[0]), label.bounds[1])
        parameters = {"poisson_regression_param": {"max_delta_step": "0.7"}}
        return Objective("count:poisson", parameters, middle=_middle(label) / SCORE_UNIT, base=1.0, clip=clip)

    def axis(self, label: Label) -> str:
        return f"log of the mean {label.name}"


def _deviance(labels: Floats, predicted: Floats, label: Label) -> Floats:
    """Return 2 (y log(y / mean) - y + mean), at least 0: float64 [n].

    Means are raised to the least one that a score can stand for.
    """
    least = LogMean().values(np.array([-math.inf]), label)[0]
    mean = np.maximum(predicted, least)
    logs = elementary.log(np.where(labels > 0, labels, 1.0) / mean)
    return np.asarray(np.maximum(2 * (labels * logs - labels + mean), 0.0))


def count_scores(labels: Floats, predicted: Floats, label: Label) -> dict[str, float]:
    """Return the mean Poisson deviance and the mean absolute error."""
    return {
        "poisson_deviance": elementary.mean(_deviance(labels, predicted, label)),
        "mae": elementary.mean(np.abs(labels - predicted)),
    }


class Count(Numbers):
    """The type of labels of counts: a whole number from 0 to the plan's largest."""

    type = "count"
    hint = '"count" with max, for how often something happened, in place of classes'

    def check(self, label: Label) -> None:
        most = label.max
        if label.classes:
            raise refuse("label.classes", list(label.classes), "no classes on a count")
        if label.min not in (None, 0.0):
            raise refuse("label.min", label.min, "0, or nothing, for a count")
        if most is None or not 1 <= most <= MAX_COUNT or not most.is_integer():
            expected = f"a whole number from 1 to {MAX_COUNT}, the largest count that may occur"
            raise refuse("label.max", most, expected)

    def columns(self, label: Label) -> tuple[LabelColumn, ...]:
        return (LabelColumn(label.name, bounds=label.bounds, least=0.0, outside=negative),)

    def simulate(self, effects: Floats, label: Label, noise: np.random.Generator) -> Floats:
        return np.asarray(np.rint(super().simulate(effects, label, noise)))


LABEL = Count()
KIND = LossKind(
    LABEL,
    LogMean(),
    _build,
    count_scores,
    noise_ridge=8.0,
    clipped_updates=("newton", "gradient"),
    clip=0.5,
    averaging=means(LABEL, count_scores),
    # A record whose count is 0 has a deviance of two errors; 4 leaves room for unforeseen counts.
    deviance=Deviance("poisson_deviance", _deviance, per_error=4.0),
    predicts_mean=True,
)
