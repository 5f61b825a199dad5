# SPDX-License-Identifier: Apache-2.0
"""Calibration of the scores of a finished model by one more noisy sum.

Of scores that may be noise a method asks `LineSums`. Labels may fill a narrow part of their public bounds, and trees
that release little but noise then add far more than labels vary. So after the last tree a run asks how labels y go with
finished scores f, both less a centre c:

    y - c is about  shift + slope (f - c)

All values are multiplied by the slope. Where scores are noise it is 0, and the mean label is left.

How far scores reach is not known before the release. So a record adds to the entries of its own octave, the power of
two above |f - c|, and it adds f - c as a share of that power: a sum over octaves has hardly more noise
than one whose scale was known. The slope is a mean of two guesses, weighed by how likely each makes what was released:
that scores are useless, and that they are about as large as they should be (a spike and a slab).

Scores known to be of use are calibrated by `hedgerow.methods.score_bins`.

Arithmetic is elementary, exponentials are a table, and sums are exact: all parties have the same model.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

import numpy as np

from hedgerow.losses.tables import MAX_UNIT, RECORD_NORM, SCORE_UNIT, Loss, exponentials
from hedgerow.plan.plan import Plan
from hedgerow.privacy.schedule import AlikeRounds
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.training.steps import GrowingModel, NodeTrees
from hedgerow.trees.leaf_sums import TrainingSite
from hedgerow.trees.plausibility import Reals, ReleaseChecks, SumFacts

MAX_DOUBLINGS, MAX_DOUBLED = 8, 0.3
"""The most doublings of residuals, and the largest spread about the mean of doubled residuals."""
FIRST_OCTAVE, N_OCTAVES = 8, 14
"""The first holds all scores within 2**8 units of 2**-16 of the centre, the last those beyond 2**20, which is 16."""
LINE_LENGTH = 2 + 3 * N_OCTAVES
LINE_SENSITIVITY_SQUARED = RECORD_NORM**2 * 7 // 2
MIN_LINE_DEVIATIONS = 3.0
"""An octave with fewer deviations of the noise on its squares does not count."""
PRIOR_SLOPE_MEAN, PRIOR_SLOPE_SD = 1.0, 0.4
"""The slope of scores that are of use, before anything is known, and one standard deviation."""
PRIOR_ODDS_USEFUL = 10.0
"""Prior odds that scores are of use rather than noise."""
MAX_LINE_SLOPE = 1.5
MIN_SHARE, MAX_SHARE = 0.05, 0.15
SPREAD_SHARE = 0.1
"""Part of that share for the spread of labels about the centre."""
_STEPS_PER_UNIT, _MAX_STEPS = 64, 64 * 40


@dataclass(frozen=True)
class ScoreLine:
    """How a finished model's scores follow from the nodes' scores: `slope` times those, and `shift`.

    Attributes:
        slope: the factor.
        shift: in units of 2**-16.
    """

    slope: float = 1.0
    shift: float = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class SpreadSums(Query):
    """The sum of distances of labels from scores, or from a centre, each at most 1.0: int64 [1].

    It has 2**14 to 1.0.

    Attributes:
        centre: in units of 2**-16; None for each record's own score.
    """

    centre: int | None = None

    def answer(self, site: TrainingSite) -> IntVector:
        """Take in the update, then add up distances, clipped and rounded towards zero one by one."""
        site.take_in(self.update)
        places = site.records.scores[0] if self.centre is None else self.centre
        distances = np.abs(site.records.labels.astype(np.int64) - places)
        return np.array([int(np.minimum(distances * RECORD_NORM // SCORE_UNIT, RECORD_NORM).sum())], dtype=np.int64)

    def faults(self, released: Reals, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        reach = facts.reach(1)
        if not -reach <= released[0] <= facts.n_rows * RECORD_NORM + reach:
            yield "the sum of distances is out of range"


@dataclass(frozen=True, kw_only=True, eq=False)
class LineSums(Query):
    """Sums that relate labels to finished scores: int64 [2 + 3 `N_OCTAVES`], with 2**14 to 1.0.

    For a record, u is its label less `centre`, doubled `doublings` times and cut off at +-1.0; and w is its score less
    `centre`, as a share of its octave's upper end, so |w| < 1. It adds 1/2 and u to the first two entries and, in its
    octave, u w, w / 2 and w w; all are rounded towards zero. So no record's vector is longer than
    sqrt(3.5) times 2**14.

    Attributes:
        centre: in units of 2**-16.
        doublings: how often distances are doubled before they are cut off.
    """

    centre: int
    doublings: int

    def answer(self, site: TrainingSite) -> IntVector:
        site.take_in(self.update)
        distances = site.records.scores[0].astype(np.int64) - self.centre
        # The exponent of a double is the length of a whole number below 2**53, exactly.
        octaves = np.clip(np.frexp(np.abs(distances).astype(np.float64))[1], FIRST_OCTAVE, FIRST_OCTAVE + N_OCTAVES - 1)
        sizes = np.minimum((np.abs(distances) * RECORD_NORM) >> octaves, RECORD_NORM)
        labels = shorten(site.records.labels.astype(np.int64) - self.centre, self.doublings)
        signs = np.where(distances < 0, -1, 1)
        products = signs * np.sign(labels) * (np.abs(labels) * sizes // RECORD_NORM)
        sums = np.zeros((3, N_OCTAVES), dtype=np.int64)
        for total, parts in zip(sums, (products, signs * (sizes // 2), sizes * sizes // RECORD_NORM), strict=True):
            np.add.at(total, octaves - FIRST_OCTAVE, parts)
        whole = [RECORD_NORM // 2 * len(labels), int(labels.sum())]
        return np.concatenate([np.array(whole, dtype=np.int64), sums.reshape(-1)])

    def faults(self, released: Reals, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        reach, most = facts.reach(1), facts.n_rows * RECORD_NORM
        if not -reach <= released[0] <= most / 2 + reach:
            yield "the number of records is out of range"
        if (np.abs(released) > most + reach).any() or (released[-N_OCTAVES:] < -reach).any():
            yield "a sum of the last release is out of range"


def choose_doublings(spread: float, loss: Loss | None = None, widest: float = MAX_DOUBLED) -> int:
    """Return the most doublings of residuals that keep their spread within `widest`.

    Kernels hold no more than `bound_doublings`.
    """
    most = MAX_DOUBLINGS if loss is None else bound_doublings(loss)
    return sum(spread * 2**doublings <= widest for doublings in range(1, most + 1))


def bound_doublings(loss: Loss) -> int:
    """Return the most times that residuals of a loss are doubled."""
    most: int = math.floor(MAX_UNIT / loss.scales[0]).bit_length() - 1
    return max(0, min(MAX_DOUBLINGS, most))


def shorten(distances: IntVector, doublings: int) -> IntVector:
    """Double distances `doublings` times, and cut them off at +-1.0: int64 [n], in units of 2**-14.

    Args:
        distances: int64 [n], in units of 2**-16.
    """
    sizes = np.minimum((np.abs(distances) << doublings) * RECORD_NORM // SCORE_UNIT, RECORD_NORM)
    return np.asarray(np.where(distances < 0, -sizes, sizes))


def asks_for_line(plan: Plan) -> bool:
    """Return whether a run of a method without a last release of its own ends with this one."""
    return plan.label.kind.is_number and plan.model.calibration != "none" and not math.isinf(plan.privacy.epsilon)


def choose_line_share(signal: float) -> float:
    """Return the share of mu^2 for this release.

    It is larger where n mu is small, so that the mean and the slope are known at all.
    """
    return min(max(MIN_SHARE, 60 / signal), MAX_SHARE)


def ask_spread(plan: Plan, round_number: int, noise_multiplier: float) -> SpreadSums:
    """Return the question for the spread of labels about the scores that nodes have."""
    return SpreadSums(
        purpose=SpreadSums.purpose_of(round_number, "spread"),
        length=1,
        bound=RECORD_NORM,
        sensitivity_squared=(RECORD_NORM * plan.privacy.rows_per_unit) ** 2,
        noise_multiplier=noise_multiplier,
    )


def ask_line(plan: Plan, round_number: int, noise_multiplier: float, centre: int, doublings: int = 0) -> LineSums:
    """Return the last question of a run; the caller adds its fields about the ensemble."""
    return LineSums(
        purpose=LineSums.purpose_of(round_number, "calibration"),
        length=LINE_LENGTH,
        bound=RECORD_NORM,
        sensitivity_squared=LINE_SENSITIVITY_SQUARED * plan.privacy.rows_per_unit**2,
        noise_multiplier=noise_multiplier,
        centre=centre,
        doublings=doublings,
    )


def list_line_rounds(plan: Plan, multipliers: tuple[float, float]) -> list[AlikeRounds]:
    """Return the rounds that `calibrate_by_spread` asks for."""
    return [
        AlikeRounds(ask_spread(plan, 0, multipliers[0])),
        AlikeRounds(ask_line(plan, 1, multipliers[1], centre=0)),
    ]


def divide_line_share(share: float) -> tuple[float, float]:
    """Return the parts of the two releases in a share of mu^2."""
    return SPREAD_SHARE * share, (1 - SPREAD_SHARE) * share


def divide_line_noise(whole: float) -> tuple[float, float]:
    """Return noise multipliers of the two releases that together cost as much as one at `whole`."""
    return whole / math.sqrt(SPREAD_SHARE), whole / math.sqrt(1 - SPREAD_SHARE)


def calibrate_by_spread(
    grown: GrowingModel,
    round_number: int,
    centre: int,
    multipliers: tuple[float, float],
    carried: NodeTrees,
) -> Generator[Query, IntVector, None]:
    """Ask for the spread of labels about the centre, then calibrate the model by `calibrate_by_line`.

    Args:
        grown: all of the model.
        round_number: number of the first of the two questions.
        centre: about the mean label, in units of 2**-16.
        multipliers: see `divide_line_noise`.
        carried: what nodes know of the trees.
    """
    plan = grown.run.plan
    question = replace(ask_spread(plan, round_number, multipliers[0]), **carried.send(), centre=centre)
    spread = float((yield question)[0]) + grown.run.sigma(question)
    doublings = reduce_for_line(choose_doublings(spread / RECORD_NORM / plan.privacy.n_records))
    query = ask_line(plan, round_number + 1, multipliers[1], centre, doublings)
    yield from calibrate_by_line(grown, replace(query, **carried.send()))


def reduce_for_line(doublings: int) -> int:
    """Return a doubling less than for residuals that trees are fitted to, at least 0.

    Cutting off labels moves their mean.
    """
    return max(0, doublings - 1)


def calibrate_by_line(grown: GrowingModel, query: LineSums) -> Generator[Query, IntVector, ScoreLine]:
    """Ask for the line, put the finished scores of `grown` on it, and return it."""
    released = yield query
    constant, slope = fit_line(released, grown.run.sigma(query), query.doublings)
    first, *others = [batch.values * slope for batch in grown.batches]
    # f becomes slope f + the rest, which the first tree adds to all records alike.
    first[0] += constant * SCORE_UNIT + query.centre * (1 - slope)
    grown.replace_values([first, *others])
    return ScoreLine(slope, constant * SCORE_UNIT + query.centre * (1 - slope))


def fit_line(released: IntVector, sigma: float, doublings: int) -> tuple[float, float]:
    """Fit the line a + b f of labels by scores f, both less the centre, and return a and b.

    Args:
        released: int64 [`LINE_LENGTH`], an answer to `LineSums` with its noise.
        sigma: the noise's standard deviation, in integer units.
        doublings: the question's.
    """
    noise, unit = sigma / RECORD_NORM, 2.0**-doublings
    n_records = max(1.0, 2 * float(released[0]) / RECORD_NORM)
    total = float(released[1]) / RECORD_NORM
    products, places, squares = (released[2:].reshape(3, N_OCTAVES) / RECORD_NORM).tolist()
    level = total * unit / n_records
    mean = level * max(0.0, 1 - noise * noise / (total * total)) if total else 0.0
    known = [number for number, square in enumerate(squares) if square > MIN_LINE_DEVIATIONS * noise]
    ends = [2.0 ** (FIRST_OCTAVE + number) / SCORE_UNIT for number in known]
    place = 2 * math.fsum(places[number] * end for number, end in zip(known, ends, strict=True)) / n_records
    # For each octave, the products expected at a slope of 1, and the released ones; both without the constant's part.
    parts = [
        (squares[number] * end - 2 * places[number] * place, products[number] * unit - 2 * places[number] * level)
        for number, end in zip(known, ends, strict=True)
    ]
    weight = math.fsum(expected * expected for expected, _ in parts)
    if weight <= 0:
        return mean, PRIOR_SLOPE_MEAN * PRIOR_ODDS_USEFUL / (1 + PRIOR_ODDS_USEFUL) if noise else PRIOR_SLOPE_MEAN
    slope = math.fsum(expected * product for expected, product in parts) / weight
    slope = min(max(_likely(slope, noise * unit / math.sqrt(weight)), 0.0), MAX_LINE_SLOPE)
    return mean - slope * place, slope


def _likely(slope: float, doubt: float) -> float:
    """Return the likely slope behind one that was released with noise."""
    wide = doubt * doubt + PRIOR_SLOPE_SD * PRIOR_SLOPE_SD
    distance = slope - PRIOR_SLOPE_MEAN
    slab = PRIOR_ODDS_USEFUL * doubt / math.sqrt(wide) * _exponential(distance * distance / (2 * wide))
    spike = _exponential(slope * slope / (2 * doubt * doubt)) if doubt else 0.0
    guess = PRIOR_SLOPE_MEAN + distance * PRIOR_SLOPE_SD * PRIOR_SLOPE_SD / wide
    return guess * slab / (slab + spike) if slab + spike > 0 else guess


def _exponential(distance: float) -> float:
    """Return exp(-distance), from a table."""
    return float(exponentials(_MAX_STEPS, _STEPS_PER_UNIT)[int(min(distance * _STEPS_PER_UNIT, _MAX_STEPS - 1))])
