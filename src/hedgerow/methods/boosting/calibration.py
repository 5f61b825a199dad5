"""The last release of boosted trees, by which finished scores are calibrated: each says all about itself in one place.

It says what it asks, with which sensitivity, and what it makes of the answer; what is charged follows from the question
itself. `hedgerow.methods.boosting.settings` decides which plan has which, by the names in `CALIBRATIONS`, and what part
of mu^2 it has.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hedgerow.losses.tables import RECORD_NORM, SCORE_UNIT
from hedgerow.methods.boosting.start import StartResult
from hedgerow.methods.hazards import fit_hazards
from hedgerow.methods.line import (
    CUT_RESIDUALS,
    LINE_LENGTH,
    LINE_SENSITIVITY_SQUARED,
    ODDS_LENGTH,
    ODDS_SENSITIVITY_SQUARED,
    RATE_LENGTH,
    RATE_SENSITIVITY_SQUARED,
    WHOLE_RESIDUALS,
    CalibrationSums,
    LineSums,
    OddsCounts,
    RateSums,
    calibrate_by_line,
    fit_odds,
    fit_rates,
    reduce_for_line,
)
from hedgerow.methods.linear_start import (
    constant_trees,
)
from hedgerow.plan.plan import Plan
from hedgerow.privacy.schedule import AlikeRounds
from hedgerow.protocol.queries import FittedTrees, IntVector, Query
from hedgerow.training.steps import Grown, largest_value

Steps = Generator[Query, IntVector, None]
"""Asks, and needs nothing but the answer."""
MIN_SQUARES_IN_NOISE, MOST_STRETCH_OF_LINE = 4.0, 0.5
"""Scores are not stretched when their squares are below so many deviations of noise, and by no more than half."""


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
