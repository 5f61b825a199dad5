# SPDX-License-Identifier: Apache-2.0
"""The settings of DP-XGBoost: every "auto" decided, and epsilon divided among releases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from hedgerow.errors import PrivacyError
from hedgerow.losses.tables import RECORD_NORM, Loss
from hedgerow.methods.dp_xgboost import DpXgboost, trees
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import bisect, get_accountant
from hedgerow.privacy.cost import amplify_epsilon
from hedgerow.privacy.schedule import AlikeRounds, Schedule
from hedgerow.protocol.queries import SAMPLING_STEPS, Choice, PureNoise, PureQuery
from hedgerow.training.settings import Settings, bound_bins, value_or

DEFAULT_TREES, DEFAULT_DEPTH, DEFAULT_LEARNING_RATE = 20, 4, 0.3
NOISE_RIDGE, NOISE_RIDGE_OF_NUMBERS = 1.0, 12.0
"""An empty leaf gets its noise over a ridge of as much: too long a step for a number, whose scores have no link."""
SPREAD_SHARE_OF_START = 0.2
"""Part of the start's share for the spread of labels about their mean."""
_PRECISION = 1e-6
"""Precision of the sum of epsilons; integer scales are coarser."""
_MAX_SCALE = 2**53


@dataclass(frozen=True, kw_only=True)
class DpXgboostSettings(Settings):
    """Numbers in place of every "auto".

    Attributes:
        learning_rate: as in the plan.
        noise_ridge: leaf ridge per standard deviation of the gradient's noise.
        shrinkage: share of the James-Stein correction that trees are scaled by.
        start_scale, spread_scale, sketch_scale, split_scale, leaf_scale: of each kind of release's noise, in integer
            units; 0 without privacy.
        noise_multiplier: `leaf_scale` per unit of sensitivity.
    """

    learning_rate: float
    noise_ridge: float
    shrinkage: float
    start_scale: int
    spread_scale: int
    sketch_scale: int
    split_scale: int
    leaf_scale: int

    shown: ClassVar[tuple[str, ...]] = (
        "n_trees", "max_depth", "learning_rate", "sketch_scale", "split_scale", "leaf_scale",
    )  # fmt: skip
    step: ClassVar[str] = "tree's leaves"

    @property
    def scales(self) -> tuple[int, ...]:
        """Noise scales of the mean, the spread about it, a sketch, a split, and leaves."""
        return self.start_scale, self.spread_scale, self.sketch_scale, self.split_scale, self.leaf_scale

    def loss(self, plan: Plan) -> Loss:
        """Return the loss of the statistics (gradient, count)."""
        own = DpXgboost.of(plan)
        return trees.dp_xgboost_loss(plan.label.kind.is_number, own.gradient == "filter", own.count_weight)

    def schedule(self, plan: Plan) -> Schedule:
        return Schedule(_alike_rounds(plan, self, self.scales))

    def n_other_trees(self, plan: Plan) -> int:
        """Return 1 if the model has a tree for the mean, else 0."""
        return int(DpXgboost.of(plan).starts_with_mean(plan))


@dataclass(frozen=True)
class Sensitivity:
    """The most that one unit changes a release.

    Attributes:
        size: the L1 norm of a vector, in integer units, or the range of a choice's scores.
        squared: the squared L2 norm of the vector that is summed, in integer units.
        is_choice: whether a choice by scores is released, and not the sum.
    """

    size: int
    squared: int
    is_choice: bool = False

    def noise(self, scale: int, threshold: int) -> PureNoise:
        """Return noise of this scale on a release over such samples."""
        return PureNoise(scale, self.size, threshold)

    def least_scale(self, weight: float, rate: float, *, is_pure: bool) -> int:
        """Return the least noise scale at which a release costs at most `weight` (> 0).

        `weight` is its epsilon, sampling included, where the account is pure, and else twice its rho (see
        `hedgerow.privacy.cost.zcdp_weight`).
        """
        scale = self.size / undo_amplification(weight if is_pure else math.sqrt(weight), rate)
        if not is_pure:
            direct = self.size / 2 if self.is_choice else math.sqrt(self.squared)
            scale = min(scale, direct / math.sqrt(weight))
        return min(_MAX_SCALE, math.ceil(scale))


def sampling_threshold(plan: Plan) -> int:
    """Return the plan's chance of a record, in steps of the sampler, rounded up."""
    return min(SAMPLING_STEPS, math.ceil(DpXgboost.of(plan).subsampling_ratio * SAMPLING_STEPS))


def sensitivities(plan: Plan, loss: Loss) -> tuple[Sensitivity, Sensitivity, Sensitivity, Sensitivity, Sensitivity]:
    """Return the sensitivities of the start, the spread, the sketch, a level's splits, and leaves.

    Splits are choices or noisy histograms.
    """
    rows, m = plan.privacy.rows_per_unit, len(plan.features)
    count = loss.largest_statistic(1)
    leaves = Sensitivity(trees.l1_sensitivity(loss) * rows, loss.norm_squared * rows * rows)
    # One record adds one count, or its statistics, to one bin of every feature.
    sketch = Sensitivity(m * count * rows, m * (count * rows) ** 2)
    splits = Sensitivity(leaves.size * m, leaves.squared * m)
    if DpXgboost.of(plan).splits == "exponential":
        splits = Sensitivity(trees.score_range(trees.SCORE_UNIT_OF_GAIN, rows), splits.squared, is_choice=True)
    # The start is the leaves of a tree that sends every record to the first.
    return leaves, Sensitivity(RECORD_NORM * rows, (RECORD_NORM * rows) ** 2), sketch, splits, leaves


def resolve_dp_xgboost(plan: Plan) -> DpXgboostSettings:
    """Decide every "auto" of a plan with `algorithm = "dp-xgboost"` and divide its epsilon.

    Raises:
        PrivacyError: when no noise keeps the promise.
    """
    model, own = plan.model, DpXgboost.of(plan)
    settings = DpXgboostSettings(
        n_trees=value_or(model.n_trees, DEFAULT_TREES),
        max_depth=value_or(model.max_depth, DEFAULT_DEPTH),
        learning_rate=value_or(model.learning_rate, DEFAULT_LEARNING_RATE),
        noise_ridge=value_or(model.noise_ridge, NOISE_RIDGE_OF_NUMBERS if plan.label.kind.is_number else NOISE_RIDGE),
        shrinkage=float(plan.label.kind.is_number) if own.shrinkage is None else own.shrinkage,
        start_scale=0,
        spread_scale=0,
        sketch_scale=0,
        split_scale=0,
        leaf_scale=0,
    )
    if math.isinf(plan.privacy.epsilon):
        return settings
    start, spread, sketch, split, leaf = _scales(plan, settings)
    sensitivity = sensitivities(plan, settings.loss(plan))[-1].size
    return replace(
        settings,
        noise_multiplier=leaf / sensitivity,
        start_scale=start,
        spread_scale=spread,
        sketch_scale=sketch,
        split_scale=split,
        leaf_scale=leaf,
    )


def _alike_rounds(plan: Plan, settings: DpXgboostSettings, scales: Sequence[int]) -> tuple[AlikeRounds, ...]:
    """Return all rounds with these noise scales.

    They are the mean and the spread about it, sketches, every tree's levels of splits, and its leaves.
    """
    loss, bins, n_trees = settings.loss(plan), sum(bound_bins(plan)), settings.n_trees
    chooses, levels = DpXgboost.of(plan).splits == "exponential", range(settings.max_depth)
    of_start, of_spread, of_sketch, of_splits, of_leaves = zip(sensitivities(plan, loss), scales, strict=True)
    n_starts, n_sketches = settings.n_other_trees(plan), min(DpXgboost.of(plan).sketch_rounds, n_trees)
    n_leaves: int = 2**settings.max_depth

    def alike(
        kind: type[PureQuery], length: int, bound: int, of: tuple[Sensitivity, int], count: int, n_choices: int = 0
    ) -> AlikeRounds:
        changed, scale = of
        query = (Choice if changed.is_choice else PureQuery)(
            purpose=kind.purpose_of(0, "any"),
            length=length,
            bound=bound,
            sensitivity_squared=changed.squared,
            noise_multiplier=scale / changed.size,
            pure=changed.noise(scale, sampling_threshold(plan)),
        )
        return AlikeRounds(query, count, n_choices=n_choices)

    found = [
        alike(trees.PureLeafSums, 2 * n_leaves, loss.bound(), of_start, n_starts),
        alike(trees.PureSpreadSums, 1, RECORD_NORM, of_spread, n_starts),
        alike(trees.PureHistogram, bins, loss.largest_statistic(1), of_sketch, n_sketches),
    ]
    for level in levels:
        kind, n_choices = (trees.SplitSelection, 2**level) if chooses else (trees.PureNodeHistograms, 0)
        found.append(alike(kind, 2 * 2**level * bins, loss.bound(), of_splits, n_trees, n_choices))
    found.append(alike(trees.PureLeafSums, 2 * n_leaves, loss.bound(), of_leaves, n_trees))
    return tuple(alike for alike in found if alike.count)


def _scales(plan: Plan, settings: DpXgboostSettings) -> Sequence[int]:
    """Return the smallest noise scales that keep the promise, by bisection.

    Each kind of release has its share of the sum of epsilons or of rho.
    """
    privacy, own = plan.privacy, DpXgboost.of(plan)
    judge, is_pure = get_accountant(privacy.accountant), privacy.accountant == "pure"
    start_share = own.start_share if settings.n_other_trees(plan) else 0.0
    start_shares = (1 - SPREAD_SHARE_OF_START) * start_share, SPREAD_SHARE_OF_START * start_share
    shares = *start_shares, own.sketch_share, own.split_share, 1 - own.sketch_share - own.split_share - start_share
    rate = sampling_threshold(plan) / SAMPLING_STEPS
    n_starts, n_trees = settings.n_other_trees(plan), settings.n_trees
    counts = n_starts, n_starts, min(own.sketch_rounds, n_trees), n_trees * settings.max_depth, n_trees
    sensitivity = sensitivities(plan, settings.loss(plan))

    def scales_of(total: float) -> list[int]:
        found = []
        for share, changed, count in zip(shares, sensitivity, counts, strict=True):
            each = total * share / max(1, count)
            found.append(changed.least_scale(each, rate, is_pure=is_pure) if each > 0 else 1)
        return found

    def keeps(total: float) -> bool:
        events = Schedule(_alike_rounds(plan, settings, scales_of(total))).events
        return judge.epsilon(events, privacy.delta) <= privacy.epsilon

    low, high = privacy.epsilon * 1e-6, privacy.epsilon
    if not is_pure:
        # Far below any epsilon's rho: rho = epsilon² / 4 log(1 / delta), about.
        low, high = min(low, low * low), 1.0
    if not keeps(low):
        raise PrivacyError(
            "calibration-failed", epsilon=privacy.epsilon, delta=privacy.delta, judge="the final rounding"
        )
    # Accountants that use delta may allow a far larger sum.
    while high < 1e6 and keeps(high):
        low, high = high, 2 * high
    return scales_of(bisect(keeps, high, low, _PRECISION))


def undo_amplification(epsilon: float, rate: float) -> float:
    """Return the epsilon that sampling at this rate amplifies to the given one, or a little below it."""
    exact = math.log1p(math.expm1(epsilon) / rate) if epsilon < 500 else epsilon - math.log(rate)
    while amplify_epsilon(exact, rate) > epsilon:
        exact *= 1 - 1e-15
    return exact
