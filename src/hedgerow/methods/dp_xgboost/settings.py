"""The settings of DP-XGBoost: every "auto" decided from public numbers, and how epsilon is divided among releases."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from hedgerow.errors import PrivacyError
from hedgerow.losses.tables import Loss
from hedgerow.methods.dp_xgboost import DpXgboost
from hedgerow.methods.dp_xgboost.trees import SCORE_UNIT_OF_GAIN, dp_xgboost_loss, l1_sensitivity, score_range
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.calibration import epsilon_of
from hedgerow.privacy.cost import amplified_epsilon
from hedgerow.privacy.events import DiscreteLaplaceEvent, Event, SelectionEvent, UnnoisedEvent
from hedgerow.protocol.queries import SAMPLING_STEPS
from hedgerow.training.settings import Settings, decided, most_bins

DEFAULT_TREES, DEFAULT_DEPTH, DEFAULT_LEARNING_RATE, DEFAULT_NOISE_RIDGE = 20, 4, 0.3, 1.0
_HALVINGS = 60
_PRECISION = 1e-6
"""Of the sum of epsilons; integer scales are coarser."""
_LARGEST_SCALE = 2**53


@dataclass(frozen=True, kw_only=True)
class DpXgboostSettings(Settings):
    """Numbers in place of every "auto".

    Attributes:
        sketch_scale, split_scale, leaf_scale: of each kind of release's noise, in integer units; 0 without privacy.
        noise_multiplier: `leaf_scale` per unit of sensitivity.
    """

    sketch_scale: int
    split_scale: int
    leaf_scale: int

    shown: ClassVar[tuple[str, ...]] = (
        "n_trees", "max_depth", "learning_rate", "sketch_scale", "split_scale", "leaf_scale",
    )  # fmt: skip
    step: ClassVar[str] = "tree's leaves"

    def loss(self, plan: Plan) -> Loss:
        """See `Settings.loss`: (gradient, count)."""
        own = DpXgboost.of(plan)
        return dp_xgboost_loss(plan.label.is_numeric, own.gradient == "filter", own.count_weight)

    def largest_length(self, plan: Plan) -> int:
        """See `Settings.largest_length`: the histograms of the last level's nodes, with all bins there can be."""
        bins = [max(len(feature.categories), plan.model.n_candidates) + 2 for feature in plan.features]
        length: int = 2 * max(sum(bins) * 2 ** (self.max_depth - 1), 2**self.max_depth)
        return length

    def n_exchanges(self, plan: Plan) -> int:
        return self.n_trees * (self.max_depth + 1) + min(DpXgboost.of(plan).sketch_rounds, self.n_trees)

    def n_released(self, plan: Plan) -> int:
        """See `Settings.n_released`: a choice per node, or the bins of each, then two statistics a leaf."""
        n_bins = sum(most_bins(plan))
        n_leaves: int = 2**self.max_depth
        per_node = 1 if DpXgboost.of(plan).splits == "exponential" else 2 * n_bins
        n_sketches, _, n_trees = _counts(plan, self)
        return n_sketches * n_bins + n_trees * ((n_leaves - 1) * per_node + 2 * n_leaves)

    def planned_releases(self, plan: Plan) -> list[Event]:
        """See `Settings.planned_releases`; exactly what is released."""
        if self.noise_multiplier == 0:
            return [UnnoisedEvent()]
        return _events(plan, self, (self.sketch_scale, self.split_scale, self.leaf_scale))


def sampling_threshold(plan: Plan) -> int:
    """The plan's chance of a record, in steps of the sampler, rounded up."""
    return min(SAMPLING_STEPS, math.ceil(DpXgboost.of(plan).subsampling_ratio * SAMPLING_STEPS))


def sensitivities(plan: Plan, loss: Loss) -> tuple[int, int, int]:
    """Of the sketch (L1), of a level's splits (range of the scores, or L1 of the histograms), of the leaves (L1)."""
    rows, m = plan.privacy.rows_per_unit, len(plan.features)
    leaves = l1_sensitivity(loss) * rows
    splits = score_range(SCORE_UNIT_OF_GAIN, rows) if DpXgboost.of(plan).splits == "exponential" else leaves * m
    # One record adds one count to one bin of every feature.
    return m * loss.largest_statistic(1) * rows, splits, leaves


def resolve_dp_xgboost(plan: Plan) -> DpXgboostSettings:
    """Decide every "auto" of a plan with `algorithm = "dp-xgboost"` and divide its epsilon.

    Raises:
        PrivacyError: when no noise keeps the promise.
    """
    model = plan.model
    settings = DpXgboostSettings(
        n_trees=decided(model.n_trees, DEFAULT_TREES),
        max_depth=decided(model.max_depth, DEFAULT_DEPTH),
        learning_rate=decided(model.learning_rate, DEFAULT_LEARNING_RATE),
        interaction_size=len(plan.features),
        noise_ridge=decided(model.noise_ridge, DEFAULT_NOISE_RIDGE),
        sketch_scale=0,
        split_scale=0,
        leaf_scale=0,
    )
    if math.isinf(plan.privacy.epsilon):
        return settings
    sketch, split, leaf = _scales(plan, settings)
    sensitivity = sensitivities(plan, settings.loss(plan))[2]
    return replace(
        settings, noise_multiplier=leaf / sensitivity, sketch_scale=sketch, split_scale=split, leaf_scale=leaf
    )


def _counts(plan: Plan, settings: DpXgboostSettings) -> tuple[int, int, int]:
    n_trees = settings.n_trees
    return min(DpXgboost.of(plan).sketch_rounds, n_trees), n_trees * settings.max_depth, n_trees


def _events(plan: Plan, settings: DpXgboostSettings, scales: tuple[int, int, int]) -> list[Event]:
    rate = sampling_threshold(plan) / SAMPLING_STEPS
    splits = SelectionEvent if DpXgboost.of(plan).splits == "exponential" else DiscreteLaplaceEvent
    kinds = (DiscreteLaplaceEvent, splits, DiscreteLaplaceEvent)
    parts = zip(kinds, sensitivities(plan, settings.loss(plan)), scales, _counts(plan, settings), strict=True)
    return [kind(epsilon_of(sensitivity, scale), rate, count) for kind, sensitivity, scale, count in parts if count]


def _scales(plan: Plan, settings: DpXgboostSettings) -> tuple[int, int, int]:
    """The smallest noise, each kind of release having its share of the sum of amplified epsilons, by bisection."""
    privacy, own = plan.privacy, DpXgboost.of(plan)
    judge = get_accountant(privacy.accountant)
    shares = (own.sketch_share, own.split_share, 1 - own.sketch_share - own.split_share)
    rate = sampling_threshold(plan) / SAMPLING_STEPS
    sensitivity, counts = sensitivities(plan, settings.loss(plan)), _counts(plan, settings)

    def scales_of(total: float) -> tuple[int, int, int]:
        found = []
        for share, size, count in zip(shares, sensitivity, counts, strict=True):
            each = total * share / max(1, count)
            found.append(min(_LARGEST_SCALE, math.ceil(size / unamplified(each, rate))) if each > 0 else 1)
        return found[0], found[1], found[2]

    def keeps(total: float) -> bool:
        return judge.epsilon(_events(plan, settings, scales_of(total)), privacy.delta) <= privacy.epsilon

    low, high = privacy.epsilon * 1e-6, privacy.epsilon
    if not keeps(low):
        raise PrivacyError("calibration-failed-grid", epsilon=privacy.epsilon)
    # Accountants that use delta may allow a far larger sum.
    while high < 1e6 and keeps(high):
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
        if high - low <= _PRECISION * high:
            break
    return scales_of(low)


def unamplified(epsilon: float, rate: float) -> float:
    """The epsilon that sampling at this rate amplifies to the one given (or a little below it)."""
    exact = math.log1p(math.expm1(epsilon) / rate) if epsilon < 500 else epsilon - math.log(rate)
    while amplified_epsilon(exact, rate) > epsilon:
        exact *= 1 - 1e-15
    return exact
