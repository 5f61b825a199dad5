"""How two classes, or events, lie about the scores of a finished model, and the log-odds that scores then mean.

Arithmetic is elementary, the logistic function is a table, and sums are exact: all parties have the same model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hedgerow.losses.tables import RECORD_NORM, SCORE_UNIT, STEP_BITS, STEPS, logistic
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.trees.leaf_sums import TrainingSite
from hedgerow.trees.plausibility import Reals, ReleaseChecks, SumFacts

ODDS_STEP, ODDS_REACH = SCORE_UNIT // 2, 20
"""The width of a bin, and the bins on either side of the one about 0."""
ODDS_BINS = 2 * ODDS_REACH + 1
ODDS_LENGTH = 2 * ODDS_BINS
ODDS_SENSITIVITY_SQUARED = RECORD_NORM**2 + (RECORD_NORM // 2) ** 2
ODDS_PRIOR = (1 / 2.0**2, 1 / 0.35**2)
"""How sure it is before any release that scores need no shift, and no stretch: 1 / variance of each. Of a rare class
the shift may be large."""
ODDS_SURE = 3.0
"""A bin counts from so many deviations of noise on its records on: else empty ones would add up."""
_ODDS_ROUNDS, _LONGEST_STEP = 40, 1.0
LEAST_STRETCH_OF_ODDS, MOST_STRETCH_OF_ODDS = -0.75, 3.0
_LEAST_SPREAD = 1e-9
"""Of the two parameters, as a share of all that is known of them: one bin alone tells only one of them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OddsCounts(Query):
    """How two classes, or events, lie about finished scores: int64 [2 `ODDS_BINS`], with 2**14 to a record.

    Bins are half a unit wide, about the places from -10 to 10, and the outermost hold all beyond. A score between two
    places is in the outer bin, so negative scores have the mirror images of the bins of positive ones. A record adds
    2**14 to its bin, and to the bin's label half of that, with its sign: negative for the first class, or without the
    event.
    """

    def answer(self, site: TrainingSite) -> IntVector:
        """See `Query.answer`: a record's bin follows from its own score."""
        site.take_in(self.update)
        scores, labels = site.records.scores[0].astype(np.int64), site.records.labels
        places = np.minimum((np.abs(scores) + ODDS_STEP // 2) // ODDS_STEP, ODDS_REACH)
        bins = np.where(scores < 0, -places, places) + ODDS_REACH
        counts = np.bincount(bins, minlength=ODDS_BINS)
        positive = np.bincount(bins[labels % 2 == 1], minlength=ODDS_BINS)
        return np.concatenate([counts * RECORD_NORM, (2 * positive - counts) * (RECORD_NORM // 2)]).astype(np.int64)

    def faults(self, released: Reals, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        reach = facts.reach(1)
        counts, labels = released[:ODDS_BINS], released[ODDS_BINS:]
        if (counts < -reach).any() or (counts > facts.n_rows * RECORD_NORM + reach).any():
            yield "the number of records of a score is out of range"
        if (np.abs(labels) > np.maximum(counts, 0) / 2 + 2 * reach).any():
            yield "the labels of a score are more than its records"


def fit_odds(released: IntVector, sigma: float) -> tuple[float, float]:
    """Shift and stretch, a and b, such that a + (1 + b) f are log-odds where a model's scores are f.

    The likeliest line for the released counts, so that the mean chance is the rate. Where noise outweighs what the
    records say, it gives way to a prior at no change. The score equations are S = sum over bins (1, f) (Y - N p). They
    have the covariance of the noise, V, besides the information H, so that what they say is H (H + V)^-1 S, and counts
    H (H + V)^-1 H beside the prior.

    What is asked of a bin is its label, the records of the last class less half of all, and p less a half. So all steps
    for swapped classes are the same but for signs: their line is -a and b, to the last bit. And they are the same on
    every machine: sums are exact, and the logistic function is a table.

    Args:
        released: int64 [2 `ODDS_BINS`], an answer to `OddsCounts` with its noise.
        sigma: the noise's standard deviation, in integer units.

    Returns:
        a, in units of score, and b, from -0.75 to 3.
    """
    noise, (counts, labels) = sigma / RECORD_NORM, released.reshape(2, ODDS_BINS) / RECORD_NORM
    # Cut off at none and at all, labels would lean towards the middle where there are few records.
    known = np.flatnonzero(counts > ODDS_SURE * noise)
    middles = (known - ODDS_REACH) * (ODDS_STEP / SCORE_UNIT)
    bins = list(zip(middles.tolist(), counts[known].tolist(), labels[known].tolist(), strict=True))
    shift, stretch = 0.0, 0.0
    for _ in range(_ODDS_ROUNDS if bins else 0):
        steps = _odds_step(bins, noise * noise, shift, stretch)
        shift = min(max(shift + min(max(steps[0], -_LONGEST_STEP), _LONGEST_STEP), -8.0), 8.0)
        stretch += min(max(steps[1], -_LONGEST_STEP), _LONGEST_STEP)
        stretch = min(max(stretch, LEAST_STRETCH_OF_ODDS), MOST_STRETCH_OF_ODDS)
    return shift, stretch


def _odds_step(
    bins: list[tuple[float, float, float]], variance: float, shift: float, stretch: float
) -> tuple[float, float]:
    """By how much the equations move the shift and the stretch; a bin is its middle, its records and its label."""
    sums: list[list[float]] = [[] for _ in range(8)]
    for middle, count, label in bins:
        odd = _half_odds(shift + (1 + stretch) * middle)
        rest, weight, spread = label - count * odd, count * (0.25 - odd * odd), variance * (1 + odd * odd)
        terms = (rest, rest * middle, weight, weight * middle, weight * middle * middle)
        for own, term in zip(sums, (*terms, spread, spread * middle, spread * middle * middle), strict=True):
            own.append(term)
    g0, g1, h00, h01, h11, v00, v01, v11 = map(math.fsum, sums)
    least = _LEAST_SPREAD * (h00 + h11 + v00 + v11)
    s00, s01, s11 = h00 + v00 + least, h01 + v01, h11 + v11 + least
    # M = H (H + V)^-1.
    whole = s00 * s11 - s01 * s01
    m00, m01 = (h00 * s11 - h01 * s01) / whole, (h01 * s00 - h00 * s01) / whole
    m10, m11 = (h01 * s11 - h11 * s01) / whole, (h11 * s00 - h01 * s01) / whole
    p0, p1 = ODDS_PRIOR
    r0, r1 = m00 * g0 + m01 * g1 - p0 * shift, m10 * g0 + m11 * g1 - p1 * stretch
    a00, a01 = m00 * h00 + m01 * h01 + p0, m00 * h01 + m01 * h11
    a10, a11 = m10 * h00 + m11 * h01, m10 * h01 + m11 * h11 + p1
    whole = a00 * a11 - a01 * a10
    return (r0 * a11 - r1 * a01) / whole, (r1 * a00 - r0 * a10) / whole


def _half_odds(place: float) -> float:
    """1 / (1 + exp(-place)) less a half, between two entries of a table in proportion: an odd function."""
    table = logistic(2 * STEPS + 1, SCORE_UNIT >> STEP_BITS)
    step = min(abs(place) * (SCORE_UNIT >> STEP_BITS), STEPS - 1.0)
    first = STEPS + math.floor(step)
    below, above = float(table[first]), float(table[first + 1])
    return math.copysign(below + (above - below) * (step % 1.0) - 0.5, place)
