# SPDX-License-Identifier: Apache-2.0
"""Labels by bin of finished scores, and the line on which scores mean what they should.

Clips and ridges bias what is learned. So after its last tree a run asks, by bin of the finished score f, how many
records there are and what their labels add up to. Of f, less a centre, the line a + (1 + b) f is then fitted by which
records are expected to have these labels.

Arithmetic is elementary, curves are tables, and sums are exact: all parties have the same model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hedgerow import elementary
from hedgerow.losses.kinds import Floats
from hedgerow.losses.registry import loss_kind
from hedgerow.losses.tables import RECORD_NORM, SCORE_UNIT, STEP_BITS, STEPS, logistic
from hedgerow.methods.line import shorten
from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.trees.leaf_sums import ScoredSite, sum_in_threads
from hedgerow.trees.plausibility import Reals, ReleaseChecks, SumFacts

BINS_BESIDE = 20
"""The bins on either side of the one about the centre."""
N_BINS = 2 * BINS_BESIDE + 1
BINS_LENGTH = 2 * N_BINS
BINS_SENSITIVITY_SQUARED = (RECORD_NORM // 2) ** 2 + RECORD_NORM**2
LOGIT_STEP, BINS_PER_UNIT = SCORE_UNIT // 2, 8
"""The width of a bin of log-odds and of logarithms of means, and the number of bins for 1.0 of a number's score."""
MIN_KNOWN = 3.0
"""A bin with fewer deviations of noise on its records does not count: else empty bins would add up."""
MIN_STRETCH, MAX_STRETCH, MAX_SHIFT = -0.75, 3.0, 8.0
_MAX_ROUNDS, _MAX_STEP = 40, 1.0
_BLOCK = 1 << 16
_MIN_SPREAD = 1e-9
"""Least variance of a label, and least share of each parameter in all that is known: one bin tells only one of them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreBins(Query):
    """Numbers of records and sums of labels by bin of the finished score: int64 [2 `N_BINS`].

    Bins are `step` wide, about the places up to 20 steps from `centre`, and the outermost hold all beyond. A score
    between two places is in the outer bin, so scores below the centre have the mirror images of the bins above. Of
    classes a label is 1/2, negative for the first class, or without the event; it has 2**14 to 1.0, and so has a
    record. For numbers and counts it is how far the label is above the prediction, as a share of its range, doubled
    `doublings` times and cut off at +-1/2; it has 2**15 to 1.0, and a record 2**13. So no record's vector is longer
    than sqrt(5 / 4) times 2**14.

    Attributes:
        step, centre: of the bins, in units of 2**-16 of a score.
        doublings: how often distances are doubled before they are cut off.
        is_number: whether labels are numbers or counts.
    """

    step: int = LOGIT_STEP
    centre: int = 0
    doublings: int = 0
    is_number: bool = False

    def answer(self, site: ScoredSite) -> IntVector:
        """Take in the update, then add up records and labels; a record's part follows from it alone."""
        site.take_in(self.update)
        label, records = site.plan.label, site.records
        record = RECORD_NORM // 2 if label.kind.is_number else RECORD_NORM

        def sums_of(begin: int, end: int) -> IntVector:
            sums = np.zeros((2, N_BINS), dtype=np.int64)
            # Block by block: a large table has no room for its rows as wide integers.
            for first in range(begin, end, _BLOCK):
                rows = slice(first, min(first + _BLOCK, end))
                scores, labels = records.scores[0, rows].astype(np.int64), records.labels[rows]
                distances = scores - self.centre
                places = np.minimum((np.abs(distances) + self.step // 2) // self.step, BINS_BESIDE)
                bins = np.where(distances < 0, -places, places) + BINS_BESIDE
                if label.kind.is_number:
                    beyond = labels.astype(np.int64) - loss_kind(site.plan).link.units(scores, label)
                    above = shorten(beyond, self.doublings)
                else:
                    above = np.where(labels % 2 == 1, RECORD_NORM // 2, -RECORD_NORM // 2)
                np.add.at(sums[0], bins, record)
                np.add.at(sums[1], bins, above)
            return sums.reshape(-1)

        return sum_in_threads(records.n_records, site.n_threads, sums_of)

    def faults(self, released: Reals, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        reach = facts.reach(1)
        counts, labels = released[:N_BINS], released[N_BINS:]
        if (counts < -reach).any() or (counts > facts.n_rows * RECORD_NORM + reach).any():
            yield "the number of records of a score is out of range"
        most = 2.0 if self.is_number else 0.5
        if (np.abs(labels) > most * np.maximum(counts, 0) + (1 + most) * reach).any():
            yield "the labels of a score are more than its records"


class Bin(NamedTuple):
    """The release of a bin: its place less the centre, in units of score, records, and sum of labels."""

    place: float
    n_records: float
    label: float


@dataclass(frozen=True)
class KnownBins:
    """The bins whose records stand out of the noise, with the noise of records and labels."""

    bins: tuple[Bin, ...]
    noise_of_records: float
    noise_of_labels: float

    @classmethod
    def of(cls, query: ScoreBins, released: IntVector, sigma: float) -> KnownBins:
        """Read an answer to a question, and keep the bins that stand out of the noise.

        Labels are not cut off at what their bins can hold: they would lean towards the middle where records are few.

        Args:
            released: int64 [`BINS_LENGTH`], its answer with noise.
            sigma: the noise's standard deviation, in integer units.
        """
        counts, labels = released.reshape(2, N_BINS) / RECORD_NORM
        noise, unit = sigma / RECORD_NORM, 2 if query.is_number else 1
        known = np.flatnonzero(counts > MIN_KNOWN * noise)
        places = (known - BINS_BESIDE) * (query.step / SCORE_UNIT)
        bins = map(Bin, places.tolist(), (counts[known] * unit).tolist(), (labels[known] / unit).tolist())
        return cls(tuple(bins), noise * unit, noise / unit)


@dataclass(frozen=True)
class LinePrior:
    """The line before any release: no shift, a stretch, and one standard deviation of either."""

    shift_doubt: float
    stretch: float
    stretch_doubt: float


ODDS_PRIOR, ODDS_BEFORE_LEVEL = LinePrior(2.0, 0.0, 0.35), LinePrior(0.5, 0.0, 0.35)
"""The prior of classes, and of counts at another site: for another site the shift may be large. In a training the level
is released after this: here a small shift keeps the bins' noise out."""
NUMBERS_PRIOR, NUMBERS_ELSEWHERE_PRIOR, MAX_VARIANCE = LinePrior(0.02, 0.0, 0.1), LinePrior(0.5, 0.0, 0.35), 0.25
"""For numbers, whose score of 1 is half the range: at the sites of the training the shift's doubt is of distances as
doubled in trees."""
WHOLE_RESIDUALS, CUT_RESIDUALS = LinePrior(0.05, 0.0, 0.1), LinePrior(0.25, 0.3, 0.35)
"""The priors of counts with hardly any clipped residual, and of counts with doubled residuals."""

Curve = Callable[[Floats], tuple[Floats, Floats, Floats]]
"""The labels that are expected of records at some places, by how much they rise there, and their variance; [n] each."""


def fit_score_line(known: KnownBins, curve: Curve, prior: LinePrior) -> tuple[float, float]:
    """Fit shift a and stretch b such that records at f have the labels expected at a + (1 + b) f.

    The equations are S = sum over bins (1, f) (Y - N y(f)), and H is how they change with a and b. With the covariance
    V that labels and noise give S, what they say is H V^-1 S, and counts H V^-1 H beside the prior.

    Args:
        known: of an answer to `ScoreBins`.
        curve: of labels as those are.

    Returns:
        a, in units of score, and b, from -0.75 to 3; 0 and 0 where no bin is known.
    """
    if not known.bins:
        return 0.0, 0.0
    shift, stretch = 0.0, 0.0
    places, n_records, labels = np.array(known.bins).T
    for _ in range(_MAX_ROUNDS):
        expected, rises, variances = curve(shift + (1 + stretch) * places)
        rests, weights = labels - n_records * expected, n_records * rises
        noises = elementary.square(known.noise_of_labels) + elementary.square(known.noise_of_records * expected)
        spreads = n_records * np.maximum(variances, _MIN_SPREAD) + noises
        powers = 1.0, places, places * places
        sums = (rests, rests * places, *(factor * each for factor in (weights, spreads) for each in powers))
        g0, g1, *rest = [math.fsum(terms.tolist()) for terms in sums]
        steps = _step_of_line((g0, g1), rest[:3], rest[3:], prior, (shift, stretch))
        shift = min(max(shift + min(max(steps[0], -_MAX_STEP), _MAX_STEP), -MAX_SHIFT), MAX_SHIFT)
        stretch += min(max(steps[1], -_MAX_STEP), _MAX_STEP)
        stretch = min(max(stretch, MIN_STRETCH), MAX_STRETCH)
    return shift, stretch


def _step_of_line(
    score: tuple[float, float],
    change: list[float],
    covariance: list[float],
    prior: LinePrior,
    line: tuple[float, float],
) -> tuple[float, float]:
    """Return the next step of shift and stretch; symmetric matrices are given by three entries."""
    (g0, g1), (h00, h01, h11), (v00, v01, v11) = score, change, covariance
    least = _MIN_SPREAD * (v00 + v11)
    v00, v11 = v00 + least, v11 + least
    # M = H V^-1.
    whole = v00 * v11 - v01 * v01
    m00, m01 = (h00 * v11 - h01 * v01) / whole, (h01 * v00 - h00 * v01) / whole
    m10, m11 = (h01 * v11 - h11 * v01) / whole, (h11 * v00 - h01 * v01) / whole
    p0, p1 = 1 / elementary.square(prior.shift_doubt), 1 / elementary.square(prior.stretch_doubt)
    r0, r1 = m00 * g0 + m01 * g1 - p0 * line[0], m10 * g0 + m11 * g1 - p1 * (line[1] - prior.stretch)
    a00, a01 = m00 * h00 + m01 * h01 + p0, m00 * h01 + m01 * h11
    a10, a11 = m10 * h00 + m11 * h01, m10 * h01 + m11 * h11 + p1
    whole = a00 * a11 - a01 * a10
    return (r0 * a11 - r1 * a01) / whole, (r1 * a00 - r0 * a10) / whole


def expect_class(places: Floats) -> tuple[Floats, Floats, Floats]:
    """Return expected label, slope and variance for two classes coded -1/2 and 1/2: a `Curve`.

    It is an odd function, so that swapped classes have -a and b. Between two entries of the logistic function's table
    it is a straight line.
    """
    table = logistic(2 * STEPS + 1, SCORE_UNIT >> STEP_BITS)
    steps = np.minimum(np.abs(places) * (SCORE_UNIT >> STEP_BITS), STEPS - 1.0)
    first = STEPS + np.floor(steps).astype(np.int64)
    odds = np.copysign(table[first] + (table[first + 1] - table[first]) * (steps % 1.0) - 0.5, places)
    variances = 0.25 - odds * odds
    return odds, variances, variances


def expect_share(plan: Plan, centre: int, places: Floats) -> Floats:
    """Return the predicted means at scores less `centre`, as shares of the label's range."""
    units = loss_kind(plan).link.units(np.rint(places * SCORE_UNIT).astype(np.int64) + centre, plan.label)
    return np.asarray((units + SCORE_UNIT) / (2 * SCORE_UNIT))


def expect_mean(
    shares: Callable[[Floats], Floats], places: Floats, doublings: int, *, is_count: bool, spread: float = 1.0
) -> Curve:
    """Return a `Curve` of numbers or counts: the expected label less the prediction at `places` now.

    Args:
        shares: what is predicted, as `expect_share`.
        places: of the bins, float64 [n].
        spread: of numbers so doubled, as a share of the most that may be.
    """
    before, unit = shares(places), 2.0**doublings

    def curve(at: Floats) -> tuple[Floats, Floats, Floats]:
        means = shares(at)
        # A count rises as its mean does, which is more than its variance where it is a share of its range.
        rises = means * unit if is_count else np.full(len(at), unit / 2)
        return (means - before) * unit, rises, rises if is_count else np.full(len(at), MAX_VARIANCE * spread * spread)

    return curve
