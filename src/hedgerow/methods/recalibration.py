# SPDX-License-Identifier: Apache-2.0
"""A finished model at another site: its level and slope, fitted to the answers of that site's rows.

Sites differ in how often an event happens more than in who is at risk. So the trees stay as they are, and of scores f
the line a + (1 + b) f is fitted: log-odds of two classes, logarithms of mean counts, numbers, and of times to an event
log-odds of hazards, whose level is a baseline of its own in each interval. What is asked is what a training asks after
its last tree, `ScoreBins`; of times to an event also `FateCounts`, within the same epsilon.

Source of the line: Steyerberg, Clinical Prediction Models (2nd ed., 2019), chapter 20, "recalibration" of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np

from hedgerow import elementary
from hedgerow.errors import ModelError
from hedgerow.evaluation.sums import centre_and_spread
from hedgerow.losses.kinds import Floats
from hedgerow.losses.tables import RECORD_NORM, SCORE_UNIT
from hedgerow.methods import score_bins
from hedgerow.methods.hazards import FateCounts, LifeTable, count_expected, fit_hazards
from hedgerow.methods.score_bins import BINS_LENGTH, BINS_SENSITIVITY_SQUARED, KnownBins, ScoreBins
from hedgerow.plan.plan import Plan
from hedgerow.privacy.calibration import NoiseDemand, calibrate_sigmas
from hedgerow.privacy.ledger import RECALIBRATION
from hedgerow.protocol.queries import FittedTrees, IntVector, Query
from hedgerow.trees.constraints import Directions, OrderedSum
from hedgerow.trees.ensemble import MAX_STORED_STRETCH, Ensemble

STEP = SCORE_UNIT
"""Bins twice as wide as in a training: there are fewer rows, and fewer bins hold less noise."""
_WITHIN = np.array([-3, -1, 1, 3]) / 8
"""The places of a bin's records, in widths from its middle."""
FATES_SHARE = 0.4
"""Share of mu squared for the hazards of intervals; the rest is for the slope."""


@dataclass(frozen=True, eq=False)
class Recalibration:
    """A model's trees with another level and slope, and public facts about the rows there.

    Attributes:
        ensemble: the trees.
        shift: a, in units of score; of times to an event 0, for each interval has a level of its own.
        slope: 1 + b.
        n_records, noise: the noisy number of rows, and its standard deviation by the noise.
        before: the mean of the old predictions there: the last class's chance, a label's value, or events a record.
        after: the mean of the new predictions.
        seen: the mean of the labels.
        here, usual: mean and spread of scores there, and by the model's own releases.
    """

    ensemble: Ensemble
    shift: float
    slope: float
    n_records: float
    noise: float
    before: float
    after: float
    seen: float
    here: tuple[float, float]
    usual: tuple[float, float]


_Program = Generator[Query, IntVector, Recalibration]


def find_obstacle(plan: Plan, ensemble: Ensemble) -> str:
    """Return why scores have no level and slope to be fitted, or "" if they have."""
    if plan.label.kind.position == "probability":
        return "it has three classes or more"
    if plan.loss is not None:
        return f"its predictions are no means, by the loss {plan.loss.name}"
    if plan.model.weight_update == "averaging":
        return "its trees are averaged"
    return "" if ensemble.fitted is not None else "it has no trees"


def require_line(plan: Plan, ensemble: Ensemble) -> None:
    """Raise ModelError, code "no-recalibration", if `find_obstacle` finds an obstacle."""
    if reason := find_obstacle(plan, ensemble):
        raise ModelError("no-recalibration", reason=reason)


def recalibrate_ensemble(plan: Plan, ensemble: Ensemble, epsilon: float, delta: float, first_round: int) -> _Program:
    """Run the program for one site: yield a query or two, and receive their noisy answers.

    Args:
        epsilon, delta: the cost that all answers together may have.
        first_round: releases on the model's account so far.

    Raises:
        ModelError: see `require_line`.
        PrivacyError: no noise keeps the promise.
    """
    require_line(plan, ensemble)
    recalibrate = _recalibrate_hazards if plan.label.kind.position == "risk" else _recalibrate_line
    return (yield from recalibrate(plan, ensemble, _Questions(plan, ensemble, epsilon, delta, first_round)))


class _Questions:
    """The questions of one promise, with their noise; arguments and errors as in `recalibrate_ensemble`."""

    def __init__(self, plan: Plan, ensemble: Ensemble, epsilon: float, delta: float, first_round: int) -> None:
        rows, share = plan.privacy.rows_per_unit, FATES_SHARE / (1 - FATES_SHARE)
        bins = NoiseDemand(BINS_SENSITIVITY_SQUARED * rows**2, BINS_LENGTH)
        self._demands: dict[type[Query], NoiseDemand] = {ScoreBins: bins}
        if plan.label.kind.position == "risk":
            fates = NoiseDemand(RECORD_NORM**2 * rows**2, plan.label.n_codes, weight=share)
            self._demands = {FateCounts: fates, ScoreBins: bins}
        accountant = "gdp" if plan.privacy.accountant == "pure" else plan.privacy.accountant
        sigmas = calibrate_sigmas(epsilon, delta, list(self._demands.values()), accountant)
        self.sigmas = dict(zip(self._demands, sigmas, strict=True))
        self._ensemble, self._first_round = ensemble, first_round

    def ask(self, kind: type[Query], **details: Any) -> Any:
        """Return the question of this kind."""
        number, demand = list(self._demands).index(kind), self._demands[kind]
        # The first one brings the whole model.
        model = {"ensemble_size": self._ensemble.n_trees} if number else {"update": self._ensemble.fitted}
        return kind(
            purpose=kind.purpose_of(self._first_round + number, RECALIBRATION),
            length=demand.length,
            bound=RECORD_NORM,
            sensitivity_squared=demand.sensitivity_squared,
            noise_multiplier=self.sigmas[kind] / math.sqrt(demand.sensitivity_squared),
            **model,
            **details,
        )


def _recalibrate_hazards(plan: Plan, ensemble: Ensemble, questions: _Questions) -> _Program:
    """Run the program for times to an event, which have a baseline in each interval for a level."""
    table = LifeTable.of((yield questions.ask(FateCounts)), questions.sigmas[FateCounts])
    query = questions.ask(ScoreBins)
    known = KnownBins.of(query, (yield query), questions.sigmas[ScoreBins])
    baseline, slope = fit_hazards(table, known, usual_slope=1.0)
    moved = replace(move_scores(plan, ensemble, 0.0, slope), baseline=baseline)
    sums = [count_expected(table, known.bins, *line) for line in ((ensemble.baseline, 1.0), (baseline, slope))]
    sums.append(math.fsum(score_bin.label + score_bin.n_records / 2 for score_bin in known.bins))
    return _make_recalibration(moved, (0.0, slope), known, sums, 0.0, centre_and_spread(ensemble))


@dataclass(frozen=True, eq=False)
class _WideBins:
    """Bins so wide that an expectation is a mean over the bin; its records lie as neighbours tell.

    Attributes:
        shares: what is expected at a place.
        offsets: where records of a bin are taken to be, from its middle.
        weights: float64 [n_bins, n_offsets], the share of each bin's records there.
    """

    shares: Callable[[Floats], Floats]
    offsets: Floats
    weights: Floats

    @classmethod
    def of(cls, shares: Callable[[Floats], Floats], query: ScoreBins, known: KnownBins) -> _WideBins:
        """Return the bins with the weights of places within each bin, larger towards its fuller neighbour."""
        width, beside = query.step / SCORE_UNIT, {score_bin.place: score_bin.n_records for score_bin in known.bins}
        leans = [(beside.get(at + width, 0.0) - beside.get(at - width, 0.0)) / (2 * n) for at, n in beside.items()]
        weights = (1 + np.clip(leans, -2, 2)[:, None] * _WITHIN) / len(_WITHIN)
        return cls(shares, _WITHIN * width, weights)

    def expect_share(self, places: Floats) -> Floats:
        """Return the expected label of each bin centred at places, as a share of its range.

        The result is float64 [n_bins].
        """
        within = [self.shares(places + offset) for offset in self.offsets]
        return np.asarray((self.weights * np.array(within).T).sum(axis=1))

    def expect_class(self, places: Floats) -> tuple[Floats, Floats, Floats]:
        """Return expected label, slope and variance per bin, for classes coded -1/2 and 1/2."""
        chances = self.expect_share(places)
        return chances - 0.5, chances * (1 - chances), chances * (1 - chances)


def _recalibrate_line(plan: Plan, ensemble: Ensemble, questions: _Questions) -> _Program:
    label, is_number, is_count = plan.label, plan.label.kind.is_number, plan.label.type == "count"
    low, high = label.bounds if is_number else (0.0, 1.0)
    usual = centre_and_spread(ensemble)
    # Class weights move scores above their log-odds, and the release counts records without weights.
    logs = [float(Decimal(weight).ln()) for weight in plan.model.class_weights or (1, 1)]
    centre = round((usual[0] if is_number else logs[1] - logs[0]) * SCORE_UNIT)

    def expect_share(places: Floats) -> Floats:
        """Return expected labels at scores less the centre, as shares of their range, or chances."""
        return score_bins.expect_share(plan, centre, places) if is_number else score_bins.expect_class(places)[0] + 0.5

    origin, doublings = centre / SCORE_UNIT, 0
    if is_count:
        # Cut off distances that hardly any count of the usual mean has.
        mean = float(expect_share(np.zeros(1))[0]) * (high - low)
        doublings = max(0, math.frexp((high - low) / max(3.0, mean + 3 * math.sqrt(mean)))[1] - 2)
    step = STEP if is_count or not is_number else SCORE_UNIT // score_bins.BINS_PER_UNIT
    query = questions.ask(ScoreBins, step=step, centre=centre, doublings=doublings, is_number=is_number)
    known = KnownBins.of(query, (yield query), questions.sigmas[ScoreBins])
    places, n_records, labels = np.array(known.bins).reshape(-1, 3).T
    bins = _WideBins.of(expect_share, query, known)
    before, prior = bins.expect_share(places), score_bins.ODDS_PRIOR
    curve: score_bins.Curve = bins.expect_class
    if is_number:
        curve = score_bins.expect_mean(bins.expect_share, places, doublings, is_count=is_count)
        prior = prior if is_count else score_bins.NUMBERS_ELSEWHERE_PRIOR
    shift, stretch = score_bins.fit_score_line(known, curve, prior)
    moved = move_scores(plan, ensemble, shift - stretch * origin, 1 + stretch)
    seen = labels / 2.0**doublings + n_records * (before if is_number else 0.5)
    parts = (n_records * before, n_records * bins.expect_share(shift + (1 + stretch) * places), seen)
    sums = [low * math.fsum(n_records.tolist()) + (high - low) * math.fsum(part.tolist()) for part in parts]
    return _make_recalibration(moved, (shift, 1 + stretch), known, sums, origin, usual)


def move_scores(plan: Plan, ensemble: Ensemble, shift: float, stretch: float) -> Ensemble:
    """Return the model with each score moved to `shift` + `stretch` times itself, up to rounding."""
    fitted = ensemble.fitted
    if fitted is None:
        raise ValueError("a model without trees has no scores")
    moved, largest = fitted.values * stretch, (2**31 - 1) // fitted.trees.n_trees
    # Each record is in one leaf of the first tree.
    moved[0] += shift * SCORE_UNIT
    values = np.rint(np.clip(moved, -largest, largest)).astype(np.int32)
    # Rounding may put values out of order by a unit.
    ordered = OrderedSum(Directions.from_plan(plan, ensemble.grid), ensemble.grid.n_codes).add(fitted.trees, values)
    whole = min(ensemble.stretch * stretch, MAX_STORED_STRETCH)
    return replace(ensemble, fitted=FittedTrees(fitted.trees, ordered), stretch=whole, levels=())


def _make_recalibration(
    ensemble: Ensemble,
    line: tuple[float, float],
    known: KnownBins,
    sums: Sequence[float],
    origin: float,
    usual: tuple[float, float],
) -> Recalibration:
    """Build the result; `sums` are of the predictions before, the predictions now, and the labels."""
    places, n_records, _ = np.array(known.bins).reshape(-1, 3).T
    n = max(1.0, float(n_records.sum()))
    mean = elementary.dot(places, n_records) / n
    spread = math.sqrt(max(0.0, elementary.dot(places**2, n_records) / n - mean * mean))
    noise = known.noise_of_records * math.sqrt(len(known.bins))
    before, after, seen = (total / n for total in sums)
    return Recalibration(ensemble, *line, n, noise, before, after, seen, (mean + origin, spread), usual)
