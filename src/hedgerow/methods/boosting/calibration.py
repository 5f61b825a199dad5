# SPDX-License-Identifier: Apache-2.0
"""The last release of boosted trees, which calibrates finished scores; each kind has one class.

A class has the question, its sensitivity, and the use of the answer; the charge follows from the question itself.
`hedgerow.methods.boosting.settings` chooses the kind for a plan, by its name in `CALIBRATIONS`, and its part of mu^2.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Any, ClassVar

import numpy as np

from hedgerow.losses.tables import RECORD_NORM, SCORE_UNIT
from hedgerow.methods import score_bins
from hedgerow.methods.boosting.start import StartResult
from hedgerow.methods.hazards import fit_hazards
from hedgerow.methods.line import (
    LINE_LENGTH,
    LINE_SENSITIVITY_SQUARED,
    MAX_DOUBLED,
    LineSums,
    ScoreLine,
    calibrate_by_line,
    reduce_for_line,
)
from hedgerow.methods.linear_start import make_constant_trees
from hedgerow.methods.residuals import N_CELLS, ResidualCounts, fit_shift, require_residual_loss
from hedgerow.plan.plan import Plan
from hedgerow.privacy.schedule import AlikeRounds
from hedgerow.protocol.queries import FittedTrees, IntVector, Query
from hedgerow.training.steps import GrowingModel, largest_value
from hedgerow.trees.constraints import OrderedSum

Steps = Generator[Query, IntVector, ScoreLine]
"""Asks, and returns how the finished scores follow from the nodes' scores."""


@dataclass(frozen=True)
class Calibration:
    """A last release that calibrates finished scores; here none.

    It changes the finished model only: nodes have no more use for scores.

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
        """The rounds of this release, if any."""
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
        """Return the question, of `kind`, in the round of that number.

        Args:
            details: fields about scores and the ensemble.
        """
        return self.kind(purpose=self.kind.purpose_of(round_number, "calibration"), **self._numbers, **details)

    def calibrate(self, grown: GrowingModel, begun: StartResult, asked: Mapping[str, Any]) -> Steps:
        """Ask, and calibrate the model by the answer.

        Args:
            grown: the model with all its trees.
            begun: the result of its start.
            asked: the number of the round, and the question's fields about the ensemble.
        """
        yield from ()
        return ScoreLine()


class LineCalibration(Calibration):
    """The calibration of numbers by a line, where leaves are not smoothed.

    Scores may be of no use there: see `hedgerow.methods.line`.
    """

    kind, length, record_squared = LineSums, LINE_LENGTH, LINE_SENSITIVITY_SQUARED

    def calibrate(self, grown: GrowingModel, begun: StartResult, asked: Mapping[str, Any]) -> Steps:
        doublings = reduce_for_line(begun.doublings)
        query = self.question(**asked, centre=_centre(grown), doublings=doublings)
        return (yield from calibrate_by_line(grown, query))


class BinnedCalibration(Calibration):
    """A calibration by sums of labels by bin of the finished score."""

    kind, length, record_squared = score_bins.ScoreBins, score_bins.BINS_LENGTH, score_bins.BINS_SENSITIVITY_SQUARED


class MeansCalibration(BinnedCalibration):
    """The calibration of numbers and counts: scores are shifted, and stretched beyond the mean.

    Residuals are clipped, so the means of skewed labels are off, and many short steps do not go all the way.
    """

    def calibrate(self, grown: GrowingModel, begun: StartResult, asked: Mapping[str, Any]) -> Steps:
        is_count, centre, doublings = self.plan.label.type == "count", _centre(grown), begun.doublings
        if is_count:
            prior = score_bins.CUT_RESIDUALS if doublings else score_bins.WHOLE_RESIDUALS
            step = score_bins.LOGIT_STEP
            # Cut-off counts are above the mean; two doublings less cut off fewer.
            doublings = max(0, doublings - 2)
        else:
            step = SCORE_UNIT // score_bins.BINS_PER_UNIT >> doublings
            doublings = reduce_for_line(doublings)
            prior = score_bins.NUMBERS_PRIOR
            prior = replace(prior, shift_doubt=prior.shift_doubt / 2**begun.doublings)
        query = self.question(**asked, step=step, centre=centre, doublings=doublings, is_number=True)
        known = score_bins.KnownBins.of(query, (yield query), grown.run.sigma(query))
        places = np.array([score_bin.place for score_bin in known.bins])
        shares = partial(score_bins.expect_share, self.plan, centre)
        # Doubled as in trees, distances have a spread of at most `MAX_DOUBLED`; here they are doubled less often.
        spread = MAX_DOUBLED / 2 ** (begun.doublings - doublings) if begun.doublings else 1.0
        curve = score_bins.expect_mean(shares, places, doublings, is_count=is_count, spread=spread)
        shift, stretch = score_bins.fit_score_line(known, curve, prior)
        start, *others = [batch.values for batch in grown.batches]
        shifts = np.zeros(start.shape)
        shifts[0, 0, 0] = shift * SCORE_UNIT
        grown.replace_values([start + shifts, *(values * (1 + stretch) for values in others)])
        return ScoreLine(1 + stretch, shift * SCORE_UNIT - stretch * float(start[0, 0, 0]))


class ResidualCalibration(Calibration):
    """The calibration of numbers by a named loss: the best shift, in a tree of one value."""

    kind, length, record_squared = ResidualCounts, N_CELLS, RECORD_NORM**2
    n_trees = 1

    def calibrate(self, grown: GrowingModel, begun: StartResult, asked: Mapping[str, Any]) -> Steps:
        run, query = grown.run, self.question(**asked)
        shift = fit_shift((yield query), run.sigma(query), require_residual_loss(self.plan).gradient)
        _add_constant(grown, grown.replace_values([batch.values.astype(float) for batch in grown.batches]), shift)
        return ScoreLine(1.0, shift * SCORE_UNIT)


class OddsCalibration(BinnedCalibration):
    """The calibration of two classes to log-odds, by a tree of one value and a stretch of all others.

    Joint clipping biases what little is learned, and ridges shorten it; a ranking does not feel that, a probability
    does.
    """

    n_trees = 1

    def calibrate(self, grown: GrowingModel, begun: StartResult, asked: Mapping[str, Any]) -> Steps:
        run, query = grown.run, self.question(**asked)
        known = score_bins.KnownBins.of(query, (yield query), run.sigma(query))
        # The release counts records without class weights, and class weights move all scores by this much.
        logs = [Decimal(weight).ln() for weight in self.plan.model.class_weights or (1, 1)]
        above = float(logs[1] - logs[0])
        bins = tuple(score_bin._replace(place=score_bin.place - above) for score_bin in known.bins)
        known = replace(known, bins=bins)
        shift, stretch = score_bins.fit_score_line(known, score_bins.expect_class, score_bins.ODDS_BEFORE_LEVEL)
        shift -= stretch * above
        ordered = grown.replace_values([batch.values * (1 + stretch) for batch in grown.batches])
        _add_constant(grown, ordered, shift)
        grown.stretch = 1 + stretch
        return ScoreLine(1 + stretch, shift * SCORE_UNIT)


class HazardsCalibration(BinnedCalibration):
    """The calibration of times to an event: another baseline, and all values stretched."""

    def calibrate(self, grown: GrowingModel, begun: StartResult, asked: Mapping[str, Any]) -> Steps:
        if begun.life_table is None:
            raise ValueError("a time to an event has a life table")
        query = self.question(**asked)
        known = score_bins.KnownBins.of(query, (yield query), grown.run.sigma(query))
        grown.baseline, grown.stretch = fit_hazards(begun.life_table, known)
        grown.replace_values([batch.values * grown.stretch for batch in grown.batches])
        return ScoreLine(grown.stretch)


def _add_constant(grown: GrowingModel, ordered: OrderedSum, value: float) -> None:
    """Add a last tree of one value, in units of score, to a model whose trees are in `ordered`."""
    last = make_constant_trees(grown.run.grid, 1, value, largest_value(grown.run))
    grown.add(FittedTrees(last.trees, ordered.add(last.trees, last.values)), np.array([[1, 0]]))


def _centre(grown: GrowingModel) -> int:
    """Return the mean that a run began with, or that of averaged trees, in units of 2**-16."""
    values, weights = grown.batches[0].values[:, :, 0].astype(np.float64), grown.weights[0]
    if weights is None:
        raise ValueError("a batch of boosted trees has weights")
    means = [
        math.fsum((units * known).tolist()) / max(1, int(known.sum()))
        for units, known in zip(values, weights, strict=True)
    ]
    return round(math.fsum(means))


CALIBRATIONS: Mapping[str, type[Calibration]] = {
    "none": Calibration,
    "means": MeansCalibration,
    "line": LineCalibration,
    "residuals": ResidualCalibration,
    "odds": OddsCalibration,
    "hazards": HazardsCalibration,
}
"""The classes by the `calibration` of settings."""
