# SPDX-License-Identifier: Apache-2.0
"""Calibrates the scores of a finished model with one more noisy sum.

Of scores that may be noise a method asks `LineSums`. Labels may fill a narrow part of their public bounds, and trees
that release little but noise then add far more than labels vary. So after the last tree a run asks how labels y go with
finished scores f, both less a centre c:

    y - c is about  shift + slope (f - c)

All values are multiplied by the slope. Where scores are noise it is 0, and the mean label is left.

How far scores reach is not known before the release. So a record adds to the entries of its own octave, that is of the
power of two above |f - c|, and what it adds is f - c as a share of that power: a sum over octaves has hardly more noise
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
from hedgerow.training.steps import Carried, Grown
from hedgerow.trees.leaf_sums import TrainingSite
from hedgerow.trees.plausibility import Reals, ReleaseChecks, SumFacts

MAX_DOUBLINGS, MAX_DOUBLED = 8, 0.3
"""Residuals are doubled so many times, as long as their spread about the mean is not beyond this."""
FIRST_OCTAVE, N_OCTAVES = 8, 14
"""The first holds all scores within 2**8 units of 2**-16 of the centre, the last those beyond 2**20, which is 16."""
LINE_LENGTH = 2 + 3 * N_OCTAVES
LINE_SENSITIVITY_SQUARED = RECORD_NORM**2 * 7 // 2
MIN_LINE_DEVIATIONS = 3.0
"""An octave counts from so many deviations of the noise on its squares on."""
PRIOR_SLOPE_MEAN, PRIOR_SLOPE_SD = 1.0, 0.4
"""The slope of scores that are of use, before anything is known, and one standard deviation."""
PRIOR_ODDS_USEFUL = 10.0
"""How much likelier it is that scores are of use than that they are noise, before anything is known."""
MAX_LINE_SLOPE = 1.5
MIN_SHARE, MAX_SHARE = 0.05, 0.15
SPREAD_SHARE = 0.1
"""Of it, for the spread of labels about the centre."""
_STEPS_PER_UNIT, _MAX_STEPS = 64, 64 * 40


@dataclass(frozen=True, kw_only=True, eq=False)
class SpreadSums(Query):
    """The sum of how far labels are from their scores, or from a centre, each at most 1.0: int64 [1], 2**14 to 1.0.

    Attributes:
        centre: in units of 2**-16; None for each record's own score.
    """

    centre: int | None = None

    def answer(self, site: TrainingSite) -> IntVector:
        """See `Query.answer`: distances are clipped and rounded towards zero one by one."""
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
    """How labels go with finished scores: int64 [2 + 3 `N_OCTAVES`], with 2**14 to 1.0.

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
    """How many times residuals are doubled so that their spread stays within `widest`; kernels hold no more."""
    most = MAX_DOUBLINGS if loss is None else bound_doublings(loss)
    return sum(spread * 2**doublings <= widest for doublings in range(1, most + 1))


def bound_doublings(loss: Loss) -> int:
    """How many times residuals of a loss are doubled at most."""
    most: int = math.floor(MAX_UNIT / loss.scales[0]).bit_length() - 1
    return max(0, min(MAX_DOUBLINGS, most))


def shorten(distances: IntVector, doublings: int) -> IntVector:
    """Distances in units of 2**-16, doubled `doublings` times, in units of 2**-14, cut off at +-1.0: int64 [n]."""
    sizes = np.minimum((np.abs(distances) << doublings) * RECORD_NORM // SCORE_UNIT, RECORD_NORM)
    return np.asarray(np.where(distances < 0, -sizes, sizes))


def asks_for_line(plan: Plan) -> bool:
    """Whether a run of a method that has no last release of its own ends with this one."""
    return plan.label.kind.is_number and plan.model.calibration != "none" and not math.isinf(plan.privacy.epsilon)


def choose_line_share(signal: float) -> float:
    """Of mu^2, for this release: more where n mu is small, so that the mean and the slope are known at all."""
    return min(max(MIN_SHARE, 60 / signal), MAX_SHARE)


def ask_spread(plan: Plan, round_number: int, noise_multiplier: float) -> SpreadSums:
    """The question for the spread of labels about the scores that nodes have."""
    return SpreadSums(
        purpose=SpreadSums.purpose_of(round_number, "spread"),
        length=1,
        bound=RECORD_NORM,
        sensitivity_squared=(RECORD_NORM * plan.privacy.rows_per_unit) ** 2,
        noise_multiplier=noise_multiplier,
    )


def ask_line(plan: Plan, round_number: int, noise_multiplier: float, centre: int, doublings: int = 0) -> LineSums:
    """The last question of a run; what it says of the ensemble is to be added."""
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
    """What `calibrate_by_spread` asks."""
    return [
        AlikeRounds(ask_spread(plan, 0, multipliers[0])),
        AlikeRounds(ask_line(plan, 1, multipliers[1], centre=0)),
    ]


def divide_line_share(share: float) -> tuple[float, float]:
    """The parts of these two in a share of mu^2."""
    return SPREAD_SHARE * share, (1 - SPREAD_SHARE) * share


def divide_line_noise(whole: float) -> tuple[float, float]:
    """Noise multipliers of the two releases, when both together cost as much as one at `whole`."""
    return whole / math.sqrt(SPREAD_SHARE), whole / math.sqrt(1 - SPREAD_SHARE)


def calibrate_by_spread(
    grown: Grown,
    round_number: int,
    centre: int,
    multipliers: tuple[float, float],
    carried: Carried,
) -> Generator[Query, IntVector, None]:
    """Ask how far labels spread about the centre, and then for the line, see `calibrate_by_line`.

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
    """A doubling less than for residuals that trees are fitted to: what is cut off of labels moves their mean."""
    return max(0, doublings - 1)


def calibrate_by_line(grown: Grown, query: LineSums) -> Generator[Query, IntVector, None]:
    """Ask, and put the finished scores of `grown` on the line that the answer tells; nodes need no scores after it."""
    released = yield query
    constant, slope = fit_line(released, grown.run.sigma(query), query.doublings)
    first, *others = [batch.values * slope for batch in grown.batches]
    # f becomes slope f + the rest, which the first tree adds to all records alike.
    first[0] += constant * SCORE_UNIT + query.centre * (1 - slope)
    grown.replace_values([first, *others])


def fit_line(released: IntVector, sigma: float, doublings: int) -> tuple[float, float]:
    """The constant a and the slope b of the line a + b f, of labels less the centre, and scores f less the centre.

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
    # Of each octave, what its products are for a slope of 1, and what they are; both without the constant's part.
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
    """What a slope is taken for that was released with this noise."""
    wide = doubt * doubt + PRIOR_SLOPE_SD * PRIOR_SLOPE_SD
    distance = slope - PRIOR_SLOPE_MEAN
    slab = PRIOR_ODDS_USEFUL * doubt / math.sqrt(wide) * _exponential(distance * distance / (2 * wide))
    spike = _exponential(slope * slope / (2 * doubt * doubt)) if doubt else 0.0
    guess = PRIOR_SLOPE_MEAN + distance * PRIOR_SLOPE_SD * PRIOR_SLOPE_SD / wide
    return guess * slab / (slab + spike) if slab + spike > 0 else guess


def _exponential(distance: float) -> float:
    """exp(-distance), from a table."""
    return float(exponentials(_MAX_STEPS, _STEPS_PER_UNIT)[int(min(distance * _STEPS_PER_UNIT, _MAX_STEPS - 1))])
