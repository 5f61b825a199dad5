# SPDX-License-Identifier: Apache-2.0
"""The level of predictions: one more noisy sum puts the mean prediction where the mean label is.

Clips, ridges and noise bias what is learned, and a level that is read off bins of scores has the noise of all bins. So
at the end each record adds its label less the finished prediction, which all parties compute. The sum, R, is by how
much all predictions together fall short. Beside it stand, with less weight, how much all predictions rise with a shift
of all scores, H, and all predictions above an origin, P. A shift d of the scores moves the sum of predictions by

    H d                                          numbers
    H (exp(d) - 1)                               counts
    H (exp(d) - 1) / (1 + q (exp(d) - 1))        chances; q = 1 - H / P is the chance of those who are in doubt

and d is where this is R, as far as noise tells: the most likely d, with a normal prior about 0. Several classes are
taken as if all records in doubt had the same chances q_k: n q_k (1 - q_k) = H_k, and class k is weighted by
1 + R_k / (n q_k). All of it is post-processing of the sums.

The labels of numbers, counts and times may fill little of their range. So distances are doubled, k times, and cut off
at the range, as often as it takes until the noise is `MAX_NOISE` of what labels usually are, and no further than
that their tail needs. Without noise nothing is cut off.

Arithmetic is elementary, and sums are exact: all parties have the same model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hedgerow import elementary
from hedgerow.losses.kinds import Floats, LossKind
from hedgerow.losses.registry import loss_kind
from hedgerow.losses.survival import BASELINE_LIMIT, Baseline
from hedgerow.losses.tables import LEVEL_UNIT, RECORD_NORM, SCORE_UNIT, STEP_BITS
from hedgerow.methods.line import ScoreLine
from hedgerow.plan.plan import Label, Plan
from hedgerow.privacy.schedule import AlikeRounds
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.training.steps import GrowingModel, largest_value
from hedgerow.trees.ensemble import Level
from hedgerow.trees.leaf_sums import ScoredSite, sum_in_threads
from hedgerow.trees.plausibility import Reals, ReleaseChecks, SumFacts

RISES, OTHER_PART = {1: 3, 2: 2}, 4
"""Rises of chances count three times of two classes, and twice of several, which costs nothing; those of others, and
all predictions, a quarter."""
SHIFT_DOUBT = 1.0
"""Standard deviation of the shift before anything is known: of log-odds and logarithms; of numbers it is how far labels
usually are from their mean, as trees of skewed numbers, whose residuals are clipped, may miss a third of that."""
MAX_LEVEL_SHIFT = 4.0
"""The largest shift: of log-odds and logarithms, and of numbers in ranges."""
PARTS = (0.25, 0.75)
"""Parts of the share for two questions: the first comes near, and a small rest is told well by H with its noise."""
EXPECTED_DOUBT = 0.3
"""By what share the mean count that a start has released may be off the mean prediction."""
_MIN_DOUBT = 0.01
"""The second question may always correct this share of what the first could, however little noise that had."""
MAX_NOISE = 0.03
"""Distances are doubled no more once the noise on the mean is this share of the usual label."""
_HALVINGS = 40
_LEAST = 1e-60
_BLOCK = 1 << 16


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelSums(Query):
    """Labels less the finished predictions, rises and predictions of each output: int64, 2**14 to the label's range.

    There are three entries for each output, and of two classes one more, the prediction of the first.

    Of classes it is y - p, c p (1 - p) and p / 4 for each class, of two classes the first two for the last alone, with
    c of `RISES`. If q is the distance of p from y, (y - p, c p (1 - p)) has the squared norm phi(q) = q**2 +
    c**2 q**2 (1 - q)**2. Of two classes it is 1 at most for c up to 3.33. Of several it is q at most for c up to 2, and
    the q of the wrong classes add up to the true one's at most, apart from rounding, half a unit for each of K classes.
    So the squared norm is at most 1 + 1/16 of two classes and 2 + 1/16 + K / 2**14 of several, in units of 2**28.

    Of others it is the distance from the label, doubled `doublings` times and cut off at +-1; the rise and the
    prediction's distance from `origin`, doubled and cut off likewise, have a quarter of that: 1 + 1/8 at most.

    Attributes:
        slope, shifts: an output's finished scores are `slope` / 2**16 times the node's, plus its shift, in such units.
        baseline: of times to an event; else empty.
        doublings: how often distances are doubled before they are cut off.
        origin: that predictions are counted from, in units of the range / 2**17.
    """

    slope: int
    shifts: tuple[int, ...]
    baseline: Baseline = ()
    doublings: int = 0
    origin: int = 0

    def answer(self, site: ScoredSite) -> IntVector:
        """Take in the update, then add up the parts; a record's part follows from it alone."""
        site.take_in(self.update)
        label, records, link = site.plan.label, site.records, loss_kind(site.plan).link
        shifts = np.array(self.shifts, dtype=np.int64)[:, None]
        part, is_binary = _find_part(site.plan), _is_binary(label)
        # Numbers may fill little of their range: rounded towards zero, entries would lose much.
        is_rounded = not label.classes
        half = OTHER_PART // 2 * is_rounded

        def sums_of(begin: int, end: int) -> IntVector:
            sums = np.zeros(self.length, dtype=np.int64)
            # Block by block: a large table has no room for its rows as wide integers.
            for first in range(begin, end, _BLOCK):
                rows = slice(first, min(first + _BLOCK, end))
                scores = records.scores[:, rows].astype(np.int64)
                scores = np.sign(scores) * (np.abs(scores) * self.slope // SCORE_UNIT) + shifts
                parts = link.predict_level(scores, records.labels[rows].astype(np.int64), label, self.baseline)
                beyond = self._cut(parts.labels - parts.predictions, is_rounded)
                rises = (self._cut(parts.rises, is_rounded) * part + half) // OTHER_PART
                placed = parts.predictions - self.origin
                if is_binary:
                    placed = np.concatenate([placed, LEVEL_UNIT - placed])
                placed = (self._cut(placed, is_rounded) + half) // OTHER_PART
                sums += np.concatenate([entries.sum(axis=1) for entries in (beyond, rises, placed)])
            return sums

        return sum_in_threads(records.n_records, site.n_threads, sums_of)

    def _cut(self, distances: IntVector, is_rounded: bool) -> IntVector:
        """Double distances and cut them off at +-1.0: in units of 2**-14, rounded to the nearest or towards zero."""
        doubled = (np.abs(distances) << self.doublings) + LEVEL_UNIT // RECORD_NORM // 2 * is_rounded
        sizes = np.minimum(doubled * RECORD_NORM // LEVEL_UNIT, RECORD_NORM)
        return np.asarray(np.where(distances < 0, -sizes, sizes))

    def faults(self, released: Reals, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        reach, most = facts.reach(1), facts.n_rows * RECORD_NORM
        beyond, rises, placed = _divide(released, len(self.shifts))
        if (np.abs(beyond) > most + reach).any() or (np.abs(placed) > most / OTHER_PART + reach).any():
            yield "the level of predictions is out of range"
        if (rises < -reach).any() or (rises > most + reach).any():
            yield "predictions rise with the score by more than their records allow"


def bound_level_squared(n_outputs: int, is_class: bool) -> int:
    """Return the squared sensitivity of one record's part of `LevelSums`, in integer units."""
    if not is_class:
        return RECORD_NORM**2 * 9 // 8
    if n_outputs == 1:
        return RECORD_NORM**2 * 17 // 16
    return RECORD_NORM**2 * 33 // 16 + n_outputs * RECORD_NORM


def _is_binary(label: Label) -> bool:
    return bool(label.classes) and label.n_outputs == 1


def _divide(sums: NDArray[Any], n_outputs: int) -> list[NDArray[Any]]:
    """Return the sums of distances, of rises, and of predictions, of two classes for either."""
    return np.split(sums, [n_outputs, 2 * n_outputs])


def _find_part(plan: Plan) -> int:
    """Return how often rises count, in quarters."""
    return OTHER_PART * RISES[min(2, plan.label.n_outputs)] if plan.label.classes else 1


def releases_level(kind: LossKind) -> bool:
    """Return whether the predictions of a kind of loss are means, whose level is released."""
    return kind.predicts_mean and bool(kind.link.level_curve)


@dataclass(frozen=True)
class LabelSize:
    """What is known of labels before the level is asked for, in shares of their range.

    Attributes:
        usual: how large they usually are, or how far they spread; 0 if nothing is known.
        doublings: the most doublings that leave room for their tail.
        origin: about their mean, of numbers.
    """

    usual: float = 0.0
    doublings: int = 0
    origin: float = 0.0


@dataclass(frozen=True)
class LevelRelease:
    """The releases of the level, one after the other, and what follows from them.

    Attributes:
        plan: the plan.
        noise_multiplier: of all of them as if they were one release; 0 without privacy.
    """

    plan: Plan
    noise_multiplier: float

    @property
    def rounds(self) -> tuple[AlikeRounds, ...]:
        """The rounds of these releases."""
        asked = (self.ask(number, 0, LabelSize(), ScoreLine(), ()) for number in range(len(PARTS)))
        return tuple(map(AlikeRounds, asked))

    def ask(
        self, number: int, first_round: int, size: LabelSize, line: ScoreLine, baseline: Baseline, **details: Any
    ) -> LevelSums:
        """Return a question.

        Args:
            number: which of the questions about the level it is, from 0.
            first_round: the round of the first.
            size: of labels.
            line: of the finished scores.
            baseline: of times to an event.
            details: fields about the ensemble.
        """
        plan, label = self.plan, self.plan.label
        squared = bound_level_squared(label.n_outputs, bool(label.classes)) * plan.privacy.rows_per_unit**2
        multiplier = self.noise_multiplier / math.sqrt(PARTS[number])
        noise = self.noise_multiplier * math.sqrt(squared) / RECORD_NORM
        if plan.privacy.noise == "local":
            noise *= math.sqrt(plan.privacy.n_records)
        return LevelSums(
            purpose=LevelSums.purpose_of(first_round + number, f"level {number}"),
            length=3 * label.n_outputs + _is_binary(label),
            bound=RECORD_NORM,
            sensitivity_squared=squared,
            noise_multiplier=multiplier,
            slope=round(line.slope * SCORE_UNIT),
            shifts=tuple(round(line.shift - place) for place in _find_class_shifts(plan)),
            baseline=baseline,
            doublings=_choose_doublings(size, noise / plan.privacy.n_records),
            origin=round(size.origin * LEVEL_UNIT),
            **details,
        )

    def calibrate(
        self,
        grown: GrowingModel,
        first_round: int,
        size: LabelSize,
        line: ScoreLine,
        describe: Callable[[], dict[str, Any]],
    ) -> Generator[Query, IntVector, None]:
        """Ask, and shift the scores of the model, or its baseline, to the released level.

        Args:
            grown: the finished model.
            first_round, size, line: as in `ask`.
            describe: returns the next question's fields about the ensemble.
        """
        link = loss_kind(self.plan).link
        part = OTHER_PART / _find_part(self.plan)
        is_known = link.level_curve == "straight" and size.usual > 0
        usual = size.usual if is_known else SHIFT_DOUBT
        units = np.zeros(self.plan.label.n_outputs, dtype=np.int64)
        doubts, shifted = np.full(len(units), usual), units.copy()
        for number in range(len(PARTS)):
            query = self.ask(number, first_round, size, line, grown.baseline, **describe())
            query = replace(query, shifts=tuple((np.array(query.shifts) + shifted).tolist()))
            unit = RECORD_NORM * 2**query.doublings
            released, noise = _divide((yield query) / unit, len(units)), grown.run.sigma(query) / unit
            # Of two classes the last is taken for the rarer, so that it does not matter which comes first.
            is_turned = _is_binary(self.plan.label) and bool(released[2][0] > released[2][1])
            if is_turned:
                released = [-released[0], released[1], released[2][::-1]]
            sums = _Sums.read(released, noise, link.level_curve, part, size.usual * self.plan.privacy.n_records)
            if link.level_curve == "straight":
                # The rises of numbers are 1 or 0, however often distances were doubled.
                sums = replace(sums, rises=sums.rises * 2**query.doublings)
            found = _find_shifts(sums, link.level_curve, doubts)
            doubts = found.doubts
            units = np.rint(found.shifts * (link.level_step * SCORE_UNIT)).astype(np.int64) * (-1 if is_turned else 1)
            if grown.baseline:
                step = round(int(units[0]) / 2**STEP_BITS)
                moved = (min(max(place + step, -BASELINE_LIMIT), BASELINE_LIMIT) for place in grown.baseline)
                grown.baseline = tuple(moved)
            else:
                shifted += units
                _shift_first_tree(grown, units)
            grown.levels = self._describe(sums, found.moved, query, is_turned, size)

    def _describe(
        self, sums: _Sums, moved: Floats, query: LevelSums, is_turned: bool, size: LabelSize
    ) -> tuple[Level, ...]:
        """Return roughly the mean label of each output, and the noise by which the mean prediction is off."""
        label, n = self.plan.label, self.plan.privacy.n_records
        low, high = label.bounds if label.kind.is_number else (0.0, 1.0)
        width = (high - low) * 2 ** loss_kind(self.plan).link.level_halvings
        means = (sums.predictions + moved) / n + query.origin / LEVEL_UNIT
        means = 1 - means if is_turned else means
        # Labels lie above their least value by half of their usual distance from the mean, at least.
        means = np.maximum(means, size.usual / 2)
        return tuple(Level(low + width * mean, width * sums.noise / n) for mean in means.tolist())


def _find_class_shifts(plan: Plan) -> list[float]:
    """Return by how much class weights move each output's scores, in units of 2**-16.

    A class weight moves the scores of its class, and labels are counted without weights.
    """
    logs = elementary.log(np.array(plan.model.class_weights or (1.0,) * max(2, len(plan.label.classes)))) * SCORE_UNIT
    return logs.tolist() if plan.label.n_outputs > 1 else [float(logs[-1] - logs[0])]


def _choose_doublings(size: LabelSize, noise: float) -> int:
    """Return the fewest doublings that leave little noise on the mean, or all that the tail leaves room for.

    Args:
        noise: of the mean without doublings, in ranges.
    """
    enough = MAX_NOISE * size.usual
    return next((k for k in range(size.doublings) if noise / 2**k <= enough), size.doublings)


@dataclass(frozen=True)
class _Sums:
    """The released sums of each output, float64 [n_outputs], in ranges.

    Attributes:
        missing: R, labels less predictions.
        rises: H, raised by its noise.
        predictions: P, above the origin; of chances H at least, as far as noise tells.
        doubtful: q, of chances; else 0.
        noise, noise_of_rises: standard deviations of `missing` and `rises`.
    """

    missing: Floats
    rises: Floats
    predictions: Floats
    doubtful: Floats
    noise: float
    noise_of_rises: float

    @classmethod
    def read(cls, released: Sequence[Reals], noise: float, curve: str, part: float, expected: float) -> _Sums:
        """Read the sums, see `_divide`; of two classes the last is the rarer.

        Of chances, P - H counts for as much as stands out of its noise: of rare events H tells more of P than P itself.
        Of counts, H and P are the same sum.

        Args:
            part: 1.0 of H, per unit that was summed.
            expected: of counts, all predictions by the start; 0 if nothing is known.
        """
        missing, rises, predictions = released[0], released[1] * part, released[2][: len(released[0])] * OTHER_PART
        noise_of_rises = noise * part
        if curve == "exponential":
            rises, noise_of_rises = (rises + predictions) / 2, noise_of_rises / math.sqrt(2)
            if expected:
                # The start has told about as much as all predictions are.
                own, before = elementary.square(noise_of_rises), elementary.square(EXPECTED_DOUBT * expected)
                rises = (rises * before + expected * own) / (own + before)
                noise_of_rises = math.sqrt(own * before / (own + before))
            predictions = rises
        # Noise on H makes R / H too large in the mean: the more of it, the less it moves.
        rises = np.maximum(rises, max(noise_of_rises, _LEAST))
        rises = rises + elementary.square(noise_of_rises) / rises
        if curve != "logistic":
            return cls(missing, rises, predictions, np.zeros(len(rises)), noise, noise_of_rises)
        gap = np.maximum(predictions - rises, 0.0)
        doubt = elementary.square(noise * OTHER_PART)
        gap = gap * gap * gap / np.maximum(gap * gap + doubt, _LEAST)
        whole = np.maximum(rises + gap, _LEAST)
        return cls(missing, rises, whole, gap / whole, noise, noise_of_rises)


class _Shifts(NamedTuple):
    """The likely shift of each output's scores, in steps of the curve: float64 [n_outputs] each.

    Attributes:
        shifts: the shifts.
        moved: by how much each sum of predictions rises with them.
        doubts: standard deviations of the shifts that are still missing.
    """

    shifts: Floats
    moved: Floats
    doubts: Floats


def _find_shifts(sums: _Sums, curve: str, doubts: Floats) -> _Shifts:
    """Return the most likely shifts, with normal priors about 0 of these standard deviations."""
    rises, n_outputs = sums.rises, len(sums.rises)
    doubtful = sums.doubtful if n_outputs == 1 else _find_shares(rises)
    low, high = np.full(n_outputs, -MAX_LEVEL_SHIFT), np.full(n_outputs, MAX_LEVEL_SHIFT)
    weights = elementary.square(sums.noise) / (doubts * doubts)
    for _ in range(_HALVINGS):
        shifts = (low + high) / 2
        moved, slopes = rises * shifts, rises
        if curve != "straight":
            factors = elementary.exp(shifts)
            below = 1 + doubtful * (factors - 1)
            moved, slopes = rises * (factors - 1) / below, rises * factors / (below * below)
        is_beyond = (moved - sums.missing) * slopes + shifts * weights > 0
        low, high = np.where(is_beyond, low, shifts), np.where(is_beyond, shifts, high)
    # What the noise leaves open, and what is moved too far because H has noise.
    slopes = np.maximum(slopes, _LEAST)
    wrong = moved * sums.noise_of_rises / (rises * slopes) if curve != "straight" else np.zeros(n_outputs)
    left = 1 / np.maximum(1 / (doubts * doubts) + slopes * slopes / max(elementary.square(sums.noise), _LEAST), _LEAST)
    doubts = np.sqrt(left + wrong * wrong) + _MIN_DOUBT * doubts
    if n_outputs > 1:
        # All records in doubt have the chances `doubtful`: class k becomes as much likelier.
        shifts = elementary.log(np.maximum(1 + moved * (1 - doubtful) / rises, 1e-6))
        shifts = shifts - elementary.mean(shifts)
    return _Shifts(shifts, moved, doubts)


def _find_shares(rises: Floats) -> Floats:
    """Return chances q_k with q_k (1 - q_k) in proportion to `rises`, that add up to 1: float64 [K]."""
    largest, others = int(np.argmax(rises)), np.arange(len(rises)) != np.argmax(rises)
    # Of any chances no q (1 - q) is above the sum of the others'; of noisy sums it may be.
    parts = rises[others] / max(min(float(rises[largest]), math.fsum(rises[others].tolist())), _LEAST)

    def divide(chance: float) -> Floats:
        """Return the other classes' chances beside this one of the largest."""
        squares = np.maximum(1 - 4 * np.minimum(parts, 1.0) * (chance * (1 - chance)), 0.0)
        return np.asarray((1 - np.sqrt(squares)) / 2)

    is_below_half = 0.5 + math.fsum(divide(0.5).tolist()) >= 1
    low, high = (0.0, 0.5) if is_below_half else (0.5, 1.0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_beyond = middle + math.fsum(divide(middle).tolist()) > 1
        low, high = (low, middle) if is_beyond else (middle, high)
    shares = np.empty(len(rises))
    shares[largest], shares[others] = low, divide(low)
    return shares


def _shift_first_tree(grown: GrowingModel, units: IntVector) -> None:
    """Add to every leaf of the first tree, of which each record is in one; the order of leaves stays."""
    first, largest = grown.batches[0], largest_value(grown.run)
    values = first.values.astype(np.int64)
    values[0] = np.clip(values[0] + units, -largest, largest)
    grown.replace_batch(0, values.astype(np.int32))
