"""The last release of boosted trees, by which finished scores are calibrated: each says all about itself in one place.

It says what it asks, with which sensitivity, and what it makes of the answer; what is charged follows from the question
itself. `hedgerow.methods.boosting.settings` decides which plan has which, by the names in `CALIBRATIONS`, and what part
of mu^2 it has.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.losses.poisson import logarithm
from hedgerow.losses.registry import loss_kind
from hedgerow.losses.tables import RECORD_NORM, SCORE_UNIT
from hedgerow.methods.boosting.start import StartResult
from hedgerow.methods.hazards import fit_hazards
from hedgerow.methods.line import (
    LINE_LENGTH,
    LINE_SENSITIVITY_SQUARED,
    LineSums,
    calibrate_by_line,
    reduce_for_line,
    shorten,
)
from hedgerow.methods.linear_start import constant_trees
from hedgerow.methods.odds import ODDS_LENGTH, ODDS_SENSITIVITY_SQUARED, OddsCounts, fit_odds
from hedgerow.plan.plan import Plan
from hedgerow.privacy.schedule import AlikeRounds
from hedgerow.protocol.queries import FittedTrees, IntVector, Query
from hedgerow.training.steps import Grown, largest_value
from hedgerow.trees.leaf_sums import TrainingSite
from hedgerow.trees.plausibility import Reals, ReleaseChecks, SumFacts

Steps = Generator[Query, IntVector, None]
"""Asks, and needs nothing but the answer."""
MIN_SQUARES_IN_NOISE, MOST_STRETCH_OF_LINE = 4.0, 0.5
"""Scores are not stretched when their squares are below so many deviations of noise, and by no more than half."""
RATE_LENGTH, RATE_SENSITIVITY_SQUARED = 5, RECORD_NORM**2 * 11 // 4
WHOLE_RESIDUALS, CUT_RESIDUALS = (0.05, 0.0, 0.1), (0.25, 0.3, 0.35)
"""Before any release: one standard deviation of the shift, what the stretch is about, and its deviation; of residuals
that are hardly ever clipped, and of those that are doubled."""
LEAST_STRETCH_OF_RATES, MOST_STRETCH_OF_RATES = -0.75, 1.5


@dataclass(frozen=True)
class Calibration:
    """A last release, by which finished scores are calibrated; here none.

    What is changed is the finished model: nodes have no more use for scores.

    Attributes:
        plan: the plan.
        noise_multiplier: of the release; 0 without privacy.
        kind, length: of its question.
        record_squared: the squared sensitivity of one record.
        n_trees: trees that it adds to the model.
    """

    plan: Plan
    noise_multiplier: float

    kind: ClassVar[type[Query]] = Query
    length: ClassVar[int] = 0
    record_squared: ClassVar[int] = 0
    n_trees: ClassVar[int] = 0

    @property
    def rounds(self) -> tuple[AlikeRounds, ...]:
        """What it asks, if anything."""
        return (AlikeRounds.of(self.kind, **self._numbers),) if self.length else ()

    @property
    def _numbers(self) -> dict[str, Any]:
        return {
            "length": self.length,
            "bound": RECORD_NORM,
            "sensitivity_squared": self.record_squared * self.plan.privacy.rows_per_unit**2,
            "noise_multiplier": self.noise_multiplier,
        }

    def question(self, round_number: int, **details: Any) -> Any:
        """The question, of `kind`, in the round of that number; `details` are of scores and of the ensemble."""
        return self.kind(purpose=self.kind.purpose_of(round_number, "calibration"), **self._numbers, **details)

    def calibrate(self, grown: Grown, begun: StartResult, asked: Mapping[str, Any]) -> Steps:
        """Ask, and give the model what the answer tells.

        Args:
            grown: the model with all its trees.
            begun: what its start found.
            asked: the number of the round, and what its question says of the ensemble.
        """
        yield from ()


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


class LineCalibration(Calibration):
    """Of numbers: all scores are shifted, and stretched beyond the mean, as far as that stands out of the noise.

    Residuals are clipped, so the means of skewed labels are off, and many short steps do not go all the way.
    """

    kind, length, record_squared = CalibrationSums, 3, 3 * RECORD_NORM**2

    def calibrate(self, grown: Grown, begun: StartResult, asked: Mapping[str, Any]) -> Steps:
        query = self.question(**asked, centre=_centre(grown), doublings=begun.doublings)
        residuals, products, squares = ((yield query) / RECORD_NORM).tolist()
        noise = grown.run.sigma(query) / RECORD_NORM
        shift = _beyond(residuals, noise) / begun.n_records * 2.0**-begun.doublings
        stretch = 0.0
        if squares > MIN_SQUARES_IN_NOISE * noise:
            stretch = min(max(_beyond(products, noise) / squares, -MOST_STRETCH_OF_LINE), MOST_STRETCH_OF_LINE)
        _move(grown, shift, stretch)


class SlopeCalibration(Calibration):
    """Of numbers where leaves are not smoothed, so that scores may be of no use: see `hedgerow.methods.line`."""

    kind, length, record_squared = LineSums, LINE_LENGTH, LINE_SENSITIVITY_SQUARED

    def calibrate(self, grown: Grown, begun: StartResult, asked: Mapping[str, Any]) -> Steps:
        doublings = reduce_for_line(begun.doublings)
        yield from calibrate_by_line(grown, self.question(**asked, centre=_centre(grown), doublings=doublings))


class OddsCalibration(Calibration):
    """Of two classes: scores become log-odds, by a tree of one value more, and all others stretched.

    Joint clipping biases what little is learned, and ridges shorten it; a ranking does not feel that, a probability
    does.
    """

    kind, length, record_squared = OddsCounts, ODDS_LENGTH, ODDS_SENSITIVITY_SQUARED
    n_trees = 1

    def calibrate(self, grown: Grown, begun: StartResult, asked: Mapping[str, Any]) -> Steps:
        run, query = grown.run, self.question(**asked)
        shift, stretch = fit_odds((yield query), run.sigma(query))
        ordered = grown.replace_values([batch.values * (1 + stretch) for batch in grown.batches])
        last = constant_trees(run.grid, 1, shift, largest_value(run))
        grown.add(FittedTrees(last.trees, ordered.add(last.trees, last.values)), np.array([[1, 0]]))
        grown.stretch = 1 + stretch


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


class RatesCalibration(Calibration):
    """Of counts: scores are shifted and stretched, see `fit_rates`: clipped residuals pull them down."""

    kind, length, record_squared = RateSums, RATE_LENGTH, RATE_SENSITIVITY_SQUARED

    def calibrate(self, grown: Grown, begun: StartResult, asked: Mapping[str, Any]) -> Steps:
        query = self.question(**asked, centre=_centre(grown), doublings=reduce_for_line(begun.doublings))
        prior = CUT_RESIDUALS if begun.doublings else WHOLE_RESIDUALS
        _move(grown, *fit_rates((yield query), grown.run.sigma(query), prior))


class HazardsCalibration(Calibration):
    """Of times to an event: hazards of the scores, by another baseline, and all values stretched."""

    kind, length, record_squared = OddsCounts, ODDS_LENGTH, ODDS_SENSITIVITY_SQUARED

    def calibrate(self, grown: Grown, begun: StartResult, asked: Mapping[str, Any]) -> Steps:
        if begun.life_table is None:
            raise ValueError("a time to an event has a life table")
        query = self.question(**asked)
        grown.baseline, grown.stretch = fit_hazards(begun.life_table, (yield query), grown.run.sigma(query))
        grown.replace_values([batch.values * grown.stretch for batch in grown.batches])


def _centre(grown: Grown) -> int:
    """The mean that a run began with, or that of averaged trees, in units of 2**-16."""
    values, weights = grown.batches[0].values[:, :, 0].astype(np.float64), grown.weights[0]
    if weights is None:
        raise ValueError("a batch of boosted trees has weights")
    means = [
        math.fsum((own * known).tolist()) / max(1, int(known.sum())) for own, known in zip(values, weights, strict=True)
    ]
    return round(math.fsum(means))


def _beyond(total: float, noise: float) -> float:
    """A sum, shrunk by its noise: one within two standard deviations is taken for noise alone."""
    return total * max(0.0, 1 - 4 * noise * noise / (total * total)) if total else 0.0


def _move(grown: Grown, shift: float, stretch: float) -> None:
    """Add a shift, in units of score, to what a run began with, and stretch what its trees say beyond that."""
    start, *others = [batch.values for batch in grown.batches]
    shifts = np.zeros(start.shape)
    shifts[0, 0, 0] = shift * SCORE_UNIT
    grown.replace_values([start + shifts, *(values * (1 + stretch) for values in others)])


CALIBRATIONS: Mapping[str, type[Calibration]] = {
    "none": Calibration,
    "line": LineCalibration,
    "slope": SlopeCalibration,
    "odds": OddsCalibration,
    "rates": RatesCalibration,
    "hazards": HazardsCalibration,
}
"""By the `calibration` of settings."""
