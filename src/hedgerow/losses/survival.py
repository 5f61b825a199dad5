# SPDX-License-Identifier: Apache-2.0
"""The loss of a time to an event, in discrete time: the event's chance in each of K intervals.

A plan says `label.type = "survival"`, `label.event` and the ends of the intervals, t_1 < ... < t_K; the first begins at
0. The chance h_j that a record which has come to interval j has the event in it, its hazard, is

    h_j(F) = 1 / (1 + exp(-(b_j + F)))          S(t_j) = (1 - h_1) ... (1 - h_j)

with one score F for a record, its risk, and a baseline b_j for each interval, which all records share: proportional
odds of the hazards. A score for each interval would carry the noise of K sums, where one carries that of one: with the
same trees over the same 6,000 made records at epsilon 0.5 / 1 / 3 it ranked by .748 / .758 / .767 where one score
ranked by .764 / .770 / .773 (Harrell's concordance, means of three), and by .02 less where an effect changed its sign
with time.

What is known of a record is for how many intervals it was at risk, m, and whether the event ended the last of them:

    an event at t in (t_j-1, t_j]       at risk in intervals 1 .. j, the event in the last of them
    censored at t                       at risk in those intervals that it has come to the end of: t_j <= t
    an event after t_K                  as censored at t_K

So a record counts as at risk in an interval only if its fate there is known, and a record that was followed to the end
of an interval exactly was at risk in it. The likelihood of both is that of m independent draws, of which the last may
be the event. So the loss of a record and its derivatives are sums over its own intervals:

    g = h_1 + ... + h_m - event             h = h_1 (1 - h_1) + ... + h_m (1 - h_m)

(g, c h) is shortened to the joint clip after it was summed, so that a record weighs no more for having been followed
longer. It depends on the record's code, the score and the baseline alone, and the baseline is released before the first
tree: a table of 2K + 1 codes, as two classes have one of two.

Under the joint clip of 1/4 c = 1 served best of 1/2, 1 and 2, and clips of 1/2 and 1 ranked no better (6,000 and 10,000
made records, and two clinical sets). What the clip biases is corrected at the end: `hedgerow.methods.hazards`.

Source: Cox (1972), section 8, for discrete time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hedgerow import elementary
from hedgerow.errors import DataError, ModelError
from hedgerow.losses.censored import concordance, integrated_brier_score, read_times
from hedgerow.losses.kinds import SQUARES, Floats, Ints, LevelParts, LossKind, NumberLink, Objective
from hedgerow.losses.labels import negative, no_probabilities
from hedgerow.losses.tables import (
    LEVEL_UNIT,
    RECORD_NORM,
    SCORE_UNIT,
    STEP_BITS,
    STEPS,
    Loss,
    check_units,
    find_chances,
    logistic,
)
from hedgerow.plan.fields import refuse
from hedgerow.plan.plan import Label, Plan
from hedgerow.plan.registry import LabelColumn, LabelKind

MAX_INTERVALS = 64
EVENT_CODES = ("0", "1", "no", "yes", "No", "Yes")
"""Words of an event's column besides false and true, where a plan lists none: by turns, it was not seen, or it was."""
SHARE_ON_ONE_SIDE, MIN_TIMES = 0.8, 20
"""With at least this many records, a larger share beyond the last interval or in the first looks like another unit."""
LATEST = 3e38
"""No follow-up ends later."""
_LOST = 0.25
"""The share of made-up records that are lost before the end of the follow-up, unless they have the event earlier."""
HESSIAN_SCALE = 1.0
LINEAR_CLIP = 0.8
"""Largest gradient of a record in a linear model: of 0.4 to 1 the best on 24 clinical sets."""
BASELINE_LIMIT = STEPS // 2
"""A baseline is within +-8, in steps of 1/256."""

Baseline = tuple[int, ...]
"""Per interval the log-odds of the event for a record of score 0, in steps of 1/256."""


def survival_codes(time: ArrayLike, event: ArrayLike, intervals: ArrayLike) -> NDArray[np.int32]:
    """Return the codes of times and events: int32 [n], 2m if censored, 2j - 1 for an event.

    A censored record was at risk in m intervals, and an event is in interval j, from 1. So a record was at risk in the
    first (code + 1) // 2 intervals, and code % 2 says whether the event was seen.

    Args:
        time: float [n], from 0 on; infinity is beyond the last interval.
        event: bool [n], or 0 and 1: whether the event was seen then.
        intervals: float [K], the ends of the intervals, ascending.

    Raises:
        ValueError: a time is negative or missing.
    """
    times, seen = np.asarray(time, dtype=np.float64), np.asarray(event).astype(np.bool_)
    ends = np.asarray(intervals, dtype=np.float64)
    if not (times >= 0).all():
        raise ValueError("a time is negative, or no number")
    has_event = seen & (times <= ends[-1])
    ended = np.searchsorted(ends, times, side="left")
    survived = np.searchsorted(ends, times, side="right")
    return np.where(has_event, 2 * ended + 1, 2 * survived).astype(np.int32)


def doubt_times(counts: ArrayLike, intervals: ArrayLike, name: str) -> str:
    """Return a hint if nearly all times are beyond the last interval or within the first; else "".

    Args:
        counts: float [2K + 1], records by their code, exact or noisy; below `MIN_TIMES` together they say nothing.
        name: of the column of times.
    """
    found, ends = np.asarray(counts, dtype=np.float64), np.asarray(intervals, dtype=np.float64)
    total = float(found.sum())
    within, beyond = float(found[:2].sum()), float(found[-1])
    if total < MIN_TIMES or max(within, beyond) < SHARE_ON_ONE_SIDE * total:
        return ""
    share, is_late = min(max(within, beyond) / total, 1.0), beyond > within
    where = f"beyond the last interval, {ends[-1]:g}" if is_late else f"within the first interval, to {ends[0]:g}"
    way = '"days to years"' if is_late else "365.25, where they are years and the intervals days"
    return (
        f"{share:.0%} of the times lie {where}. Are they in another unit than the intervals, as days are beside years? "
        f"If so, give other intervals, or for a table in a [data] table scale.{name} = {way}, or another factor"
    )


def hazards(scores: Floats, baseline: Baseline) -> Floats:
    """Return the chance of the event in each interval for those at risk: float64 [n, K], of scores [n]."""
    places = scores[:, None] + np.array(baseline, dtype=np.float64) / (SCORE_UNIT >> STEP_BITS)
    return np.asarray(1 / (1 + elementary.exp(-places)))


def survival_curves(scores: Floats, baseline: Baseline) -> Floats:
    """Return chances to be without the event at each interval's end: float64 [n, K], not ascending."""
    return np.asarray(np.cumprod(1 - hazards(scores, baseline), axis=1))


def with_baseline(loss: Loss, baseline: Baseline) -> Loss:
    """Return a loss of times under another baseline, with the same largest norm."""
    return _hazard_loss(float(loss.scales[0]), float(loss.scales[1]), baseline)


@lru_cache(maxsize=8)
def _hazard_loss(unit: float, hessian_unit: float, baseline: Baseline) -> Loss:
    """Build the loss of times with these integer units per 1.0 of its statistics.

    All sites of one process share it. It has one norm for all baselines, so that what a run will release is known
    before the first of its releases.
    """
    # Both scores and baselines move by whole steps, so hazards are places of one table.
    every = logistic(2 * STEPS, SCORE_UNIT >> STEP_BITS)
    first = STEPS // 2
    chances = np.stack([every[first + shift : first + shift + STEPS] for shift in baseline])
    at_risk = np.zeros((2, len(baseline) + 1, STEPS))
    at_risk[0, 1:] = np.cumsum(chances, axis=0)
    at_risk[1, 1:] = np.cumsum(chances * (1 - chances), axis=0)
    codes = np.arange(2 * len(baseline) + 1)
    sums, hessians = at_risk[:, (codes + 1) // 2]
    pairs = np.stack([sums - (codes % 2)[:, None], hessian_unit / unit * hessians], axis=-1)
    limit, norms = RECORD_NORM / unit, np.sqrt(pairs[..., 0] ** 2 + pairs[..., 1] ** 2)
    pairs *= np.minimum(1, limit / np.maximum(norms, limit))[..., None]
    table = np.trunc(pairs * unit * (1 - 1e-12)).astype(np.int16)
    return Loss("hazard", 1, 2, np.array([unit, hessian_unit]), table, RECORD_NORM**2)


@lru_cache(maxsize=8)
def linear_hazard_loss(baseline: Baseline) -> Loss:
    """Return the loss of a linear model: the negative gradient, cut off at +-`LINEAR_CLIP`.

    It has `RECORD_NORM` units to 1.0. A gradient is cut off by itself, so the largest is the same under all baselines.
    """
    every = logistic(2 * STEPS, SCORE_UNIT >> STEP_BITS)
    first = STEPS // 2
    sums = np.zeros((len(baseline) + 1, STEPS))
    sums[1:] = np.cumsum(np.stack([every[first + shift : first + shift + STEPS] for shift in baseline]), axis=0)
    codes = np.arange(2 * len(baseline) + 1)
    gradients = np.clip((codes % 2)[:, None] - sums[(codes + 1) // 2], -LINEAR_CLIP, LINEAR_CLIP)
    table = np.trunc(gradients * RECORD_NORM).astype(np.int16)[:, :, None]
    limit = math.floor(LINEAR_CLIP * RECORD_NORM)
    return Loss("hazard", 1, 1, np.array([float(RECORD_NORM)]), table, limit * limit)


def _build(plan: Plan, joint_clip: float | None, hessian_scale: float | None) -> Loss:
    n_intervals = len(plan.label.intervals)
    c = hessian_scale or HESSIAN_SCALE
    # No h_j is above 1, and no h_j (1 - h_j) above 1/4.
    limit = math.hypot(n_intervals, c * n_intervals / 4) if joint_clip is None else joint_clip
    unit = RECORD_NORM / limit
    check_units(unit, c * unit)
    return _hazard_loss(unit, c * unit, (0,) * n_intervals)


class LogHazard(NumberLink):
    """A link of times to an event: the score adds to the log-odds of the event in every interval."""

    name = "hazard"
    level_curve = "logistic"
    level_halvings = 2

    def predict_level(self, scores: Ints, kept: Ints, label: Label, baseline: tuple[int, ...]) -> LevelParts:
        """Return events, and expected events in the intervals that a record was at risk in, of four at most."""
        at_risk = (kept + 1) // 2
        expected, rises = np.zeros_like(scores), np.zeros_like(scores)
        for interval, place in enumerate(baseline):
            chances = np.where(at_risk > interval, find_chances(scores + (place << STEP_BITS)), 0)
            expected += chances
            rises += chances * (LEVEL_UNIT - chances) // LEVEL_UNIT
        most = LEVEL_UNIT << self.level_halvings
        events = kept[None] % 2 * LEVEL_UNIT
        parts = (np.minimum(part, most) >> self.level_halvings for part in (events, expected, rises))
        return LevelParts(*parts)

    def values(self, scores: Floats, label: Label) -> Floats:
        """Return risks, which are the scores themselves.

        Survival follows from them with the baseline, see `Ensemble.survival`.
        """
        return scores

    def compare(self, scores: Ints, kept: Ints, label: Label) -> None:
        return None

    def objective(self, label: Label) -> Objective:
        return Objective("reg:squarederror", {"reg_loss_param": SQUARES}, base_is_margin=True)

    def axis(self, label: Label) -> str:
        return f"log-odds of {label.event} in every interval"


def survival_scores(codes: NDArray[Any], survival: Floats, label: Label) -> dict[str, float]:
    """Return Harrell's concordance in the plan's intervals, and the integrated Brier score.

    Args:
        codes: int [n], see `survival_codes`.
        survival: float64 [n, K], see `survival_curves`: who has less of it at one end has less at all of them.
    """
    ends = np.array(label.intervals)
    times, events = read_times(codes, ends)
    return {
        "concordance": concordance(times, events, -survival[:, 0]),
        "integrated_brier": integrated_brier_score(times, events, survival, ends),
    }


class Survival(LabelKind):
    """The type of labels of times to an event."""

    type = "survival"
    hint = '"survival" with event and intervals, for a time to an event'
    own_fields = ("event", "event_codes", "intervals")
    predicts = "survival"
    refusals: ClassVar[Mapping[str, Callable[[], Exception]]] = {
        "probabilities": lambda: no_probabilities("time to an event"),
        "probability columns": lambda: no_probabilities("time to an event"),
        "interval": lambda: ModelError("no-interval-classes"),
    }
    position = "risk"

    def check(self, label: Label) -> None:
        if label.event is None:
            raise refuse("label.event", None, "the column that says whether the event was seen (1) or not (0)")
        if label.event == label.name:
            raise refuse("label.event", label.event, "another column than that of the times")
        if len(label.event_codes) not in (0, 2):
            expected = "two codes: of a record that was lost from sight, and of one whose event was seen, such as "
            expected += "[1, 2]"
            raise refuse("label.event_codes", list(label.event_codes), expected)
        if not 2 <= len(label.intervals) <= MAX_INTERVALS:
            found = f"{len(label.intervals)} ends"
            raise refuse("label.intervals", found, f"the ends of 2 to {MAX_INTERVALS} intervals; 8 to 16 suit most")
        if label.intervals[0] <= 0:
            raise refuse("label.intervals[0]", label.intervals[0], "a number above 0, where the first interval begins")
        if label.classes:
            raise refuse("label.classes", list(label.classes), "no classes on a time to an event")
        if label.min is not None or label.max is not None:
            expected = "no bounds on a time to an event: intervals begin at 0, and say its end"
            raise refuse("label.min", label.min, expected)

    def n_codes(self, label: Label) -> int:
        return 2 * len(label.intervals) + 1

    def columns(self, label: Label) -> tuple[LabelColumn, ...]:
        words = label.event_codes or EVENT_CODES
        lost, seen = (", ".join(words[first::2]) for first in (0, 1))

        def outside(place: str, value: str) -> DataError:
            return DataError("data-event-outside", place=place, value=value, lost=lost, seen=seen)

        times = LabelColumn(label.name, (), (0.0, LATEST), 0.0, negative)
        return times, LabelColumn(str(label.event), words, outside=outside)

    def values(self, cells: Sequence[NDArray[Any]], label: Label) -> NDArray[np.int32]:
        """Return the codes of times and events, see `survival_codes`.

        Rows without a time from 0 on are left out after this.
        """
        times, events = cells
        return survival_codes(np.where(times >= 0, times, 0.0), events % 2 == 1, label.intervals)

    def has_one_outcome(self, kept: NDArray[np.int32]) -> bool:
        return len(np.unique(kept % 2)) < 2

    def doubt(self, counts: ArrayLike, label: Label) -> str:
        return doubt_times(counts, label.intervals, label.name)

    def simulate(self, effects: Floats, label: Label, noise: np.random.Generator) -> NDArray[np.int32]:
        """Return made-up codes: int32 [n].

        An event is as likely in one interval as in another, and a quarter of the records is lost before.
        """
        n_intervals, n = len(label.intervals), effects.shape[1]
        hazard = 1 / (1 + elementary.exp(-(effects[0] - elementary.log(2 * n_intervals - 1))))
        survived = noise.geometric(hazard) - 1
        lost = np.where(noise.uniform(size=n) < _LOST, noise.integers(0, n_intervals, n), n_intervals)
        return np.asarray(np.where(survived < lost, 2 * survived + 1, 2 * lost), dtype=np.int32)

    def describe(self, label: Label) -> str:
        return f"event {label.event}, {len(label.intervals)} intervals to {label.intervals[-1]:g}"

    def header(self, label: Label) -> list[str]:
        return [f"risk_{label.name}", *(f"survival_{end:g}" for end in label.intervals)]


LABEL = Survival()
KIND = LossKind(
    LABEL,
    LogHazard(),
    _build,
    survival_scores,
    clipped_updates=("newton",),
    clipped_hessian_scale=HESSIAN_SCALE,
    starts=("linear",),
    predicts_mean=True,
)
