# SPDX-License-Identifier: Apache-2.0
"""The starts of boosted trees: each start has one class.

A start asks before the first tree that asks for sums. It has its questions in order, with their sensitivity; charges
and lengths follow from the questions themselves. Then it has the use of the answers.
`hedgerow.methods.boosting.settings` chooses the start of a plan, by its name in `STARTS`, and its part of mu^2. The
release after the last tree is in `hedgerow.methods.boosting.calibration`.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.losses.poisson import compute_score
from hedgerow.losses.registry import loss_kind
from hedgerow.losses.survival import Baseline
from hedgerow.losses.tables import RECORD_NORM, SCORE_LIMIT, SCORE_UNIT
from hedgerow.methods.hazards import FateCounts, HazardStart, LifeTable
from hedgerow.methods.level import LabelSize
from hedgerow.methods.line import ask_spread, choose_doublings, reduce_for_line
from hedgerow.methods.linear_start import (
    CountOctaves,
    LinearStart,
    ask_labels,
    count_octaves,
    label_statistics,
    make_constant_trees,
    read_level,
    read_mean,
)
from hedgerow.plan.plan import Plan
from hedgerow.privacy.schedule import AlikeRounds
from hedgerow.protocol.queries import FittedTrees, IntVector, Query
from hedgerow.training.steps import GrowingModel, NodeTrees, Run, largest_value

Weighed = tuple[FittedTrees, NDArray[np.int64]]
"""Trees and the weights of their leaves."""
Beginning = Generator[Query, IntVector, "StartResult"]

MEAN_STATISTICS = label_statistics(1.0)
MEAN_PART, SPREAD_PART, LINEAR_PART = 0.1, 0.05, 0.85
"""Parts of a start of numbers: for the mean, for the spread about it, and for a linear model."""
START_CLIP = 0.25
"""The clip of the linear model's gradients, in units in which the label's public range is [-1, 1]."""
BASELINE_SHARE = 0.05
"""Share of mu^2 for the baseline of a time to an event."""
MIN_CLIP_OF_COUNTS = 0.7
"""Residuals of counts are doubled while the clip is at least this many of their deviations, and of one count."""


# Starts of trees -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StartResult:
    """The result of a start, for the trees after it and for the last release.

    Attributes:
        trees: trees for the model.
        carried: the nodes' knowledge of its trees.
        doublings: of the residuals, see `hedgerow.losses.tables.double_residuals`.
        life_table: of a time to an event, as released.
        size: of labels, for the release of their level.
    """

    trees: tuple[Weighed, ...] = ()
    carried: NodeTrees = field(default_factory=NodeTrees)
    doublings: int = 0
    life_table: LifeTable | None = None
    size: LabelSize = field(default_factory=LabelSize)

    @property
    def baseline(self) -> Baseline:
        """The life table's baseline; empty for other labels."""
        return () if self.life_table is None else self.life_table.baseline


@dataclass(frozen=True)
class Start:
    """A start of trees, before their first sums; here none.

    Attributes:
        plan: the plan.
        share: of mu^2, for all that it releases; 0 without privacy.
        noise_multiplier: of all that as if it were one release; 0 without privacy.
        is_calibrated: whether a last release follows the trees.
        parts: of `share`, for each question, and for the linear model.
        n_constants: trees of one value.
    """

    plan: Plan
    share: float
    noise_multiplier: float
    is_calibrated: bool

    parts: ClassVar[tuple[float, ...]] = (1.0,)
    n_constants: ClassVar[int] = 0

    @property
    def multipliers(self) -> tuple[float, ...]:
        """Noise multipliers of `parts`; the linear model's releases count as one part."""
        return tuple(self.noise_multiplier / math.sqrt(part) for part in self.parts)

    def questions(self) -> tuple[Query, ...]:
        """Return the first questions, in order; an update that depends on answers is left open."""
        return ()

    @cached_property
    def model(self) -> LinearStart | HazardStart | None:
        """The linear model that follows `questions`; None without one."""
        return None

    def begin(self, grown: GrowingModel) -> Beginning:
        """Ask the start's questions, add its trees to the model, and return the result; here nothing is asked."""
        yield from ()
        return StartResult()

    @property
    def n_trees(self) -> int:
        """Number of the start's trees (constants and linear model), which nodes add to their scores."""
        return self.n_constants + (self.model.n_trees if self.model else 0)

    @property
    def rounds(self) -> tuple[AlikeRounds, ...]:
        """The rounds of the start, in order."""
        linear = self.model.rounds(self.multipliers[-1]) if self.model else []
        return *map(AlikeRounds, self.questions()), *linear


class MeanStart(Start):
    """The start of numbers: their mean, and the spread about it, by which residuals are doubled."""

    parts: ClassVar[tuple[float, ...]] = (
        MEAN_PART / (MEAN_PART + SPREAD_PART),
        SPREAD_PART / (MEAN_PART + SPREAD_PART),
    )
    n_constants = 1

    def questions(self) -> tuple[Query, ...]:
        mean = ask_labels(MEAN_STATISTICS, self.multipliers[0], self.plan.privacy.rows_per_unit)
        return mean, ask_spread(self.plan, 1, self.multipliers[1])

    def begin(self, grown: GrowingModel) -> Beginning:
        run, (about_mean, about_spread) = grown.run, self.questions()
        released = yield about_mean
        mean = min(max(read_mean(released, MEAN_STATISTICS), -1.0), 1.0)
        first = make_constant_trees(run.grid, 1, mean, largest_value(run))
        carried = NodeTrees()
        carried.take(first)
        spread = yield replace(about_spread, **carried.send())
        carried.score_bound = SCORE_LIMIT
        n_records = max(1.0, float(released[1]) / MEAN_STATISTICS[2])
        # Add one standard deviation: a spread that is lost in the noise must not be taken for a small one.
        usual = (float(spread[0]) + run.sigma(about_spread)) / RECORD_NORM / n_records
        doublings = choose_doublings(usual, run.loss) * loss_kind(self.plan).doubles
        # A score of 1 is half the range.
        size = LabelSize(max(usual, 0.0) / 2, reduce_for_line(doublings), (mean + 1) / 2)
        weights = np.array([[max(1, int(released[1])), 0]])
        return StartResult(((first, weights),), carried, doublings, size=size)


class LinearAfterMean(MeanStart):
    """The start of numbers by mean and spread, then by a linear model of the numeric features."""

    parts = MEAN_PART, SPREAD_PART, LINEAR_PART

    @cached_property
    def model(self) -> LinearStart:
        return LinearStart(self.plan, START_CLIP)

    def begin(self, grown: GrowingModel) -> Beginning:
        begun = yield from super().begin(grown)
        whole, largest = self.multipliers[-1], largest_value(grown.run)
        trees = yield from self.model.ask(grown.run, whole, largest, 2, begun.carried, begun.doublings)
        return _add_trees(begun, trees)


class LevelStart(Start):
    """The start of counts: their mean, by sizes.

    Residuals are doubled where a last release corrects what that cuts.
    """

    n_constants = 1

    def questions(self) -> tuple[Query, ...]:
        return (_make_first_query(self.plan, CountOctaves, "level", count_octaves(self.plan), self.multipliers[0]),)

    def begin(self, grown: GrowingModel) -> Beginning:
        run, label, (question,) = grown.run, self.plan.label, self.questions()
        found = read_level((yield question), run.sigma(question), label.bounds[1])
        doublings, score, size = 0, 0, LabelSize()
        if found is not None:
            size = _size_of_counts(*found, label.bounds[1])
            # From the middle of their range, by factors, to their mean.
            score = compute_score(found[0], label)
            doublings = _choose_count_doublings(*found, run) if self.is_calibrated else 0
        first = make_constant_trees(run.grid, 1, score / SCORE_UNIT, largest_value(run))
        weights = np.array([[self.plan.privacy.n_records, 0]])
        carried = NodeTrees()
        carried.take(first)
        return StartResult(((first, weights),), carried, doublings, size=size)


TAIL_OF_COUNTS = 7.0
"""Counts beyond this many of their deviations above their mean are few."""


def _spread_of_counts(mean: float, spread: float) -> float:
    """Return the deviation of counts, of which chance alone makes up sqrt(mean), and which is one count at least."""
    return max(1.0, math.sqrt(mean + mean * mean), spread)


def _size_of_counts(mean: float, spread: float, largest: float) -> LabelSize:
    """Return the size of counts, in shares of the largest that may be."""
    tail = TAIL_OF_COUNTS * _spread_of_counts(mean, spread)
    return LabelSize(mean / largest, max(0, math.frexp(largest / tail)[1] - 1))


def _choose_count_doublings(mean: float, spread: float, run: Run) -> int:
    """Return how often residuals of counts are doubled before they are clipped.

    The most doublings are taken that keep the clip above a share of the residuals' spread.

    Counts scatter by sqrt(mean) by chance alone, and by about their mean if records differ much. A few large counts
    among zeros scatter further, as far as the release of their sizes shows. A rare event is one count away from zero,
    however small the spread: a clip far below 1 would remove nearly all that says where it happens.
    """
    spread = _spread_of_counts(mean, spread)
    widest = run.loss.clip / float(run.loss.scales[0]) / MIN_CLIP_OF_COUNTS
    return choose_doublings(spread * 2 / run.plan.label.bounds[1], run.loss, widest)


class BaselineStart(Start):
    """The start of times to an event: the baseline that all records share."""

    def questions(self) -> tuple[Query, ...]:
        return (_make_first_query(self.plan, FateCounts, "baseline", self.plan.label.n_codes, self.multipliers[0]),)

    def begin(self, grown: GrowingModel) -> Beginning:
        (question,) = self.questions()
        table = LifeTable.of((yield question), grown.run.sigma(question))
        grown.baseline = table.baseline
        halvings = loss_kind(self.plan).link.level_halvings
        return StartResult(life_table=table, size=LabelSize(table.share_of_events / 2**halvings, halvings))


class LinearAfterBaseline(BaselineStart):
    """The start of times to an event by the baseline, then by a linear model of all features."""

    @property
    def multipliers(self) -> tuple[float, ...]:
        # Without privacy there is no share to divide, and no noise.
        part = BASELINE_SHARE / (self.share or 1.0)
        return self.noise_multiplier / math.sqrt(part), self.noise_multiplier / math.sqrt(1 - part)

    @cached_property
    def model(self) -> HazardStart:
        return HazardStart(self.plan)

    def begin(self, grown: GrowingModel) -> Beginning:
        begun = yield from super().begin(grown)
        whole, largest = self.multipliers[-1], largest_value(grown.run)
        trees = yield from self.model.ask(grown.run, whole, largest, 1, begun.carried, begun.baseline)
        return _add_trees(begun, trees)


def _make_first_query(plan: Plan, kind: type[Query], subject: str, length: int, noise_multiplier: float) -> Query:
    """Return a first question in which every record counts in one entry."""
    return kind(
        purpose=kind.purpose_of(0, subject),
        length=length,
        bound=RECORD_NORM,
        sensitivity_squared=(RECORD_NORM * plan.privacy.rows_per_unit) ** 2,
        noise_multiplier=noise_multiplier,
    )


def _add_trees(begun: StartResult, trees: FittedTrees) -> StartResult:
    """Return a result with the trees of a linear model, whose scores have no closer bound.

    No release has counted their records.
    """
    weights = np.zeros(trees.values.shape[:2], dtype=np.int64)
    begun.carried.score_bound = SCORE_LIMIT
    return replace(begun, trees=(*begun.trees, (trees, weights)))


STARTS: Mapping[str, type[Start]] = {
    "none": Start,
    "mean": MeanStart,
    "linear": LinearAfterMean,
    "level": LevelStart,
    "hazards": BaselineStart,
    "linear hazards": LinearAfterBaseline,
}
"""The classes by the `start` of settings."""
