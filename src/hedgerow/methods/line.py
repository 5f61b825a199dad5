"""Calibrates the scores of a finished model with one more noisy sum.

A method that knows nothing of a label's bounds asks `LineSums`. Labels may fill a narrow part of their public bounds,
and trees that release little but noise then add far more than labels vary. So after the last tree a run asks how labels
y go with finished scores f, both less a centre c:

    y - c is about  shift + slope (f - c)

All values are multiplied by the slope. Where scores are noise it is 0, and the mean label is left.

How far scores reach is not known before the release. So a record adds to the entries of its own octave, that is of the
power of two above |f - c|, and what it adds is f - c as a share of that power: a sum over octaves has hardly more noise
than one whose scale was known. The slope is a mean of two guesses, weighed by how likely each makes what was released:
that scores are useless, and that they are about as large as they should be (a spike and a slab).

Of scores known to be of use less is asked: `CalibrationSums` of numbers, `RateSums` of counts, and `OddsCounts`
of two classes and of times to an event. `hedgerow.methods.boosting.calibration` asks them.

Arithmetic is elementary, exponentials are a table, and sums are exact: all parties have the same model.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hedgerow.losses.poisson import logarithm
from hedgerow.losses.registry import loss_kind
from hedgerow.losses.tables import LARGEST_UNIT, RECORD_NORM, SCORE_UNIT, STEP_BITS, STEPS, Loss, exponentials, logistic
from hedgerow.plan.plan import Plan
from hedgerow.privacy.schedule import AlikeRounds
from hedgerow.protocol.queries import FittedTrees, IntVector, Query
from hedgerow.training.steps import Grown
from hedgerow.trees.leaf_sums import TrainingSite
from hedgerow.trees.plausibility import Reals, ReleaseChecks, SumFacts

MOST_DOUBLINGS, WIDEST_DOUBLED = 8, 0.3
"""Residuals are doubled so many times, as long as their spread about the mean is not beyond this."""
FIRST_OCTAVE, N_OCTAVES = 8, 14
"""The first holds all scores within 2**8 units of 2**-16 of the centre, the last those beyond 2**20, which is 16."""
LINE_LENGTH = 2 + 3 * N_OCTAVES
LINE_SENSITIVITY_SQUARED = RECORD_NORM**2 * 7 // 2
MIN_DEVIATIONS = 3.0
"""An octave counts from so many deviations of the noise on its squares on."""
PRIOR_SLOPE_MEAN, PRIOR_SLOPE_SD = 1.0, 0.4
"""The slope of scores that are of use, before anything is known, and one standard deviation."""
PRIOR_ODDS_USEFUL = 10.0
"""How much likelier it is that scores are of use than that they are noise, before anything is known."""
LARGEST_SLOPE = 1.5
LEAST_SHARE, MOST_SHARE = 0.05, 0.15
SPREAD_SHARE = 0.1
"""Of it, for the spread of labels about the centre."""
_STEPS_PER_UNIT, _MOST_STEPS = 64, 64 * 40


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
        """See `Query.answer`."""
        site.take_in(self.update)
        distances = site.records.scores[0].astype(np.int64) - self.centre
        # The exponent of a double is the length of a whole number below 2**53, exactly.
        octaves = np.clip(np.frexp(np.abs(distances).astype(np.float64))[1], FIRST_OCTAVE, FIRST_OCTAVE + N_OCTAVES - 1)
        sizes = np.minimum((np.abs(distances) * RECORD_NORM) >> octaves, RECORD_NORM)
        labels = shorten(site.records.labels.astype(np.int64) - self.centre, self.doublings)
        signs = np.where(distances < 0, -1, 1)
        products = signs * np.sign(labels) * (np.abs(labels) * sizes // RECORD_NORM)
        sums = np.zeros((3, N_OCTAVES), dtype=np.int64)
        for own, parts in zip(sums, (products, signs * (sizes // 2), sizes * sizes // RECORD_NORM), strict=True):
            np.add.at(own, octaves - FIRST_OCTAVE, parts)
        whole = [RECORD_NORM // 2 * len(labels), int(labels.sum())]
        return np.concatenate([np.array(whole, dtype=np.int64), sums.reshape(-1)])

    def faults(self, released: Reals, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        reach, most = facts.reach(1), facts.n_rows * RECORD_NORM
        if not -reach <= released[0] <= most / 2 + reach:
            yield "the number of records is out of range"
        if (np.abs(released) > most + reach).any() or (released[-N_OCTAVES:] < -reach).any():
            yield "a sum of the last release is out of range"


def choose_doublings(spread: float, loss: Loss | None = None, widest: float = WIDEST_DOUBLED) -> int:
    """How many times residuals are doubled so that their spread stays within `widest`; kernels hold no more."""
    most = MOST_DOUBLINGS if loss is None else bound_doublings(loss)
    return sum(spread * 2**doublings <= widest for doublings in range(1, most + 1))


def bound_doublings(loss: Loss) -> int:
    """How many times residuals of a loss are doubled at most."""
    most: int = math.floor(LARGEST_UNIT / loss.scales[0]).bit_length() - 1
    return max(0, min(MOST_DOUBLINGS, most))


def shorten(distances: IntVector, doublings: int) -> IntVector:
    """Distances in units of 2**-16, doubled `doublings` times, in units of 2**-14, cut off at +-1.0: int64 [n]."""
    sizes = np.minimum((np.abs(distances) << doublings) * RECORD_NORM // SCORE_UNIT, RECORD_NORM)
    return np.asarray(np.where(distances < 0, -sizes, sizes))


def asks_for_line(plan: Plan) -> bool:
    """Whether a run of a method that has no last release of its own ends with this one."""
    return plan.label.kind.is_number and plan.model.calibration != "none" and not math.isinf(plan.privacy.epsilon)


def line_share(signal: float) -> float:
    """Of mu^2, for this release: more where n mu is small, so that the mean and the slope are known at all."""
    return min(max(LEAST_SHARE, 60 / signal), MOST_SHARE)


def spread_question(plan: Plan, round_number: int, noise_multiplier: float, update: FittedTrees | None) -> SpreadSums:
    """The question for the spread of labels about the scores that nodes have with `update`."""
    return SpreadSums(
        purpose=SpreadSums.purpose_of(round_number, "spread"),
        length=1,
        bound=RECORD_NORM,
        sensitivity_squared=(RECORD_NORM * plan.privacy.rows_per_unit) ** 2,
        noise_multiplier=noise_multiplier,
        update=update,
    )


def line_question(plan: Plan, round_number: int, noise_multiplier: float, centre: int, doublings: int = 0) -> LineSums:
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


def line_rounds(plan: Plan, multipliers: tuple[float, float]) -> list[AlikeRounds]:
    """What `calibrate_by_spread` asks."""
    return [
        AlikeRounds(spread_question(plan, 0, multipliers[0], None)),
        AlikeRounds(line_question(plan, 1, multipliers[1], centre=0)),
    ]


def line_weights(share: float) -> tuple[float, float]:
    """The parts of these two in a share of mu^2."""
    return SPREAD_SHARE * share, (1 - SPREAD_SHARE) * share


def line_multipliers(whole: float) -> tuple[float, float]:
    """Noise multipliers of the two releases, when both together cost as much as one at `whole`."""
    return whole / math.sqrt(SPREAD_SHARE), whole / math.sqrt(1 - SPREAD_SHARE)


def calibrate_by_spread(
    grown: Grown,
    round_number: int,
    centre: int,
    multipliers: tuple[float, float],
    update: FittedTrees | None,
    known: int = 0,
) -> Generator[Query, IntVector, None]:
    """Ask how far labels spread about the centre, and then for the line, see `calibrate_by_line`.

    Args:
        grown: all of the model.
        round_number: number of the first of the two questions.
        centre: about the mean label, in units of 2**-16.
        multipliers: see `line_multipliers`.
        update, known: trees that nodes have not added to their scores, and how many they have.
    """
    plan = grown.run.plan
    question = replace(spread_question(plan, round_number, multipliers[0], update), ensemble_size=known, centre=centre)
    spread = float((yield question)[0]) + grown.run.sigma(question)
    known += 0 if update is None else update.trees.n_trees
    doublings = reduce_for_line(choose_doublings(spread / RECORD_NORM / plan.privacy.n_records))
    query = line_question(plan, round_number + 1, multipliers[1], centre, doublings)
    yield from calibrate_by_line(grown, replace(query, ensemble_size=known))


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
    known = [number for number, square in enumerate(squares) if square > MIN_DEVIATIONS * noise]
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
    slope = min(max(_likely(slope, noise * unit / math.sqrt(weight)), 0.0), LARGEST_SLOPE)
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
    return float(exponentials(_MOST_STEPS, _STEPS_PER_UNIT)[int(min(distance * _STEPS_PER_UNIT, _MOST_STEPS - 1))])


# Lines of scores that are of use --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class CalibrationSums(Query):
    """How far finished predictions are off, on average and by their size: int64 [3], with 2**14 to 1.0.

    They are the sums of r, r f and f f. For a record, r is its label less its score, and f its score less `centre`,
    both doubled `doublings` times, then cut off at +-1.0; all are rounded towards zero. So no record's vector is longer
    than sqrt(3) times 2**14.

    Attributes:
        centre: in units of 2**-16.
        doublings: how often distances are doubled before they are cut off.
    """

    centre: int
    doublings: int

    def answer(self, site: TrainingSite) -> IntVector:
        """See `Query.answer`."""
        site.take_in(self.update)
        scores = site.records.scores[0].astype(np.int64)
        residuals = shorten(site.records.labels - scores, self.doublings)
        places = shorten(scores - self.centre, self.doublings)
        squares = places * places // RECORD_NORM
        products = np.sign(residuals * places) * (np.abs(residuals * places) // RECORD_NORM)
        return np.array([int(residuals.sum()), int(products.sum()), int(squares.sum())], dtype=np.int64)

    def faults(self, released: Reals, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        limit = facts.n_rows * RECORD_NORM + facts.reach(1)
        if (np.abs(released) > limit).any() or released[2] < -facts.reach(1):
            yield "a sum of calibration is out of range"


@dataclass(frozen=True, kw_only=True, eq=False)
class RateSums(Query):
    """How far finished predictions of counts are off, on average and by their size: int64 [5].

    They are the sums of r, r w, m / 2, m w / 2 and m w w / 2. For a record, m is the model's mean and y the count,
    both in units of the largest count / 2**`doublings`, cut off at 1; r is y - m; and w is its score less `centre`,
    cut off at +-1. There are 2**14 to 1.0, and all are rounded towards zero. So no record's vector is longer
    than sqrt(11 / 4) times 2**14.

    Attributes:
        centre: in units of 2**-16.
        doublings: how often distances are doubled before they are cut off.
    """

    centre: int
    doublings: int

    def answer(self, site: TrainingSite) -> IntVector:
        """See `Query.answer`: a record's sums follow from its own score and count."""
        site.take_in(self.update)
        scores, label = site.records.scores[0].astype(np.int64), site.plan.label
        means = self._shares(loss_kind(site.plan).link.units(scores, label))
        residuals = self._shares(site.records.labels.astype(np.int64)) - means
        distances = scores - self.centre
        places = np.minimum(np.abs(distances) * RECORD_NORM // SCORE_UNIT, RECORD_NORM)
        halves, signs = means // 2, np.where(distances < 0, -1, 1)
        products = np.sign(residuals) * signs * (np.abs(residuals) * places // RECORD_NORM)
        weighed = halves * places // RECORD_NORM
        parts = (residuals, products, halves, signs * weighed, weighed * places // RECORD_NORM)
        return np.array([int(part.sum()) for part in parts], dtype=np.int64)

    def _shares(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """Counts in units as labels are kept, from -2**16 to 2**16, as shares of the cut."""
        shares = ((units + SCORE_UNIT) << self.doublings) * RECORD_NORM // (2 * SCORE_UNIT)
        return np.asarray(np.minimum(shares, RECORD_NORM))

    def faults(self, released: Reals, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        reach = facts.reach(1)
        if (np.abs(released) > facts.n_rows * RECORD_NORM + reach).any() or (released[[2, 4]] < -reach).any():
            yield "a sum of rates is out of range"


RATE_LENGTH, RATE_SENSITIVITY_SQUARED = 5, RECORD_NORM**2 * 11 // 4
WHOLE_RESIDUALS, CUT_RESIDUALS = (0.05, 0.0, 0.1), (0.25, 0.3, 0.35)
"""Before any release: one standard deviation of the shift, what the stretch is about, and its deviation; of residuals
that are hardly ever clipped, and of those that are doubled."""
LEAST_STRETCH_OF_RATES, MOST_STRETCH_OF_RATES = -0.75, 1.5


def fit_rates(released: IntVector, sigma: float, prior: tuple[float, float, float]) -> tuple[float, float]:
    """Shift and stretch, a and b, such that a + (1 + b) (f - centre) is about the log of the mean over `centre`'s.

    Weighed by their means, records have a mean place and a spread about it, which the release tells. Two points with
    half of the weight each have the same. At both it is known by which factor counts are above the means, and the line
    goes through the two logarithms. Either number is drawn to a prior as far as the noise leaves it open.

    Args:
        released: int64 [5], an answer to `RateSums` with its noise.
        sigma: the noise's standard deviation, in integer units.
        prior: `WHOLE_RESIDUALS` or `CUT_RESIDUALS`.

    Returns:
        a, in units of score, and b.
    """
    noise = sigma / RECORD_NORM
    rest, product, *halves = (released / RECORD_NORM).tolist()
    mass, weighed, squares = (2 * half for half in halves)
    if mass <= noise:
        return 0.0, 0.0
    deviation, usual, doubt = prior
    belief = _belief(noise / mass, deviation)
    place = min(max(weighed / mass, -1.0), 1.0)
    variance = squares / mass - place * place
    if variance <= noise / mass:
        return _log_ratio(rest / mass) * belief, 0.0
    spread = math.sqrt(variance)
    above = (product - rest * (place - spread)) / (2 * spread)
    logs = _log_ratio(2 * (rest - above) / mass), _log_ratio(2 * above / mass)
    slope = (logs[1] - logs[0]) / (2 * spread)
    error = noise * math.sqrt(1 + place * place) / (variance * mass)
    stretch = usual + (slope - usual) * _belief(error, doubt)
    stretch = min(max(stretch, LEAST_STRETCH_OF_RATES), MOST_STRETCH_OF_RATES)
    return (logs[0] + logs[1]) / 2 * belief - stretch * place, stretch


def _log_ratio(excess: float) -> float:
    """log(1 + excess), of a ratio from 1/8 to 8."""
    return logarithm(min(max(1 + excess, 1 / 8), 8.0)) / SCORE_UNIT


def _belief(error: float, deviation: float) -> float:
    """What an estimate with this error counts beside a normal prior."""
    return deviation * deviation / (deviation * deviation + error * error)


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
