"""The settings of a run: a plan whose every "auto" has been decided, by a rule on public quantities only.

The rule and the evidence for it are in docs/defaults.md. It may look at epsilon, delta, the declared number of records
and the schema; it never looks at data or at a released number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from hedgerow.losses.registry import build_loss, loss_kind
from hedgerow.losses.tables import Loss
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.calibration import calibrate_noise_multiplier, integer_sigma
from hedgerow.privacy.events import DiscreteGaussianEvent, Event, UnnoisedEvent
from hedgerow.privacy.gdp import mu_of
from hedgerow.privacy.prepared import prepared_events
from hedgerow.trees.binning import build_grid

Number = TypeVar("Number", int, float, float | None)

MIN_TREES, MAX_TREES = 100, 300
GREEDY_TREES = 25
"""Where splits are paid for, more trees mean more noise: CCS'22, section 6.2, finds the best results at 25 to 50."""
ADAPTIVE_SUBSET = 3
INTERACTION_SHARE = 0.5
"""Of the trees, at the end of the run, among which "adaptive" tries subsets of features."""
CALIBRATION_MARGIN = 1e-7
"""Least relative extra noise, to pay for rounding and for the integer grid; see docs/proofs/discrete-gaussian.md."""

ROUNDING = 1e-12
"""Relative error, at most, of the few products and roots between a noise multiplier and its event."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Numbers in place of every "auto".

    Attributes:
        n_trees, max_depth, batch_size, learning_rate: as in the plan.
        interaction: "cyclical", "random" or "adaptive".
        interaction_size: features per tree; for "adaptive", of the subsets that it tries besides single features.
        noise_ridge: leaf ridge per standard deviation of the gradient's noise.
        joint_clip: largest norm of (g, c h) of a record; None for the loss's own.
        hessian_scale: c; None for the loss's own.
        noise_multiplier: per tree; 0 when epsilon is infinite.
    """

    n_trees: int
    max_depth: int
    batch_size: int = 1
    learning_rate: float
    interaction: str = "cyclical"
    interaction_size: int = 1
    noise_ridge: float
    joint_clip: float | None = None
    hessian_scale: float | None = None
    noise_multiplier: float = 0.0

    shown: ClassVar[tuple[str, ...]] = (
        "n_trees", "max_depth", "batch_size", "learning_rate", "interaction", "interaction_size", "joint_clip",
    )  # fmt: skip
    """What a person is shown of them, in this order."""
    step: ClassVar[str] = "tree"
    """What the noise multiplier is for one of."""

    @property
    def bounded_by(self) -> str:
        """What bounds all releases together, for a person, where that is not mu of Gaussian differential privacy."""
        return ""

    def loss(self, plan: Plan) -> Loss:
        """The loss with these settings."""
        return build_loss(plan, self.joint_clip, self.hessian_scale)

    def linear_loss(self, plan: Plan) -> Loss:
        """The loss whose gradients `CrossProducts` asks for, of one statistic; a program that never asks has none."""
        return self.loss(plan)

    def largest_length(self, plan: Plan) -> int:
        """The longest vector that a program asks for before it has seen a release."""
        length: int = self.batch_size * 2**self.max_depth * self.loss(plan).n_statistics
        counts = sum(feature.n_codes for feature in build_grid(plan).features) if plan.reads_quantiles else 0
        return max(length, counts)

    def n_exchanges(self, plan: Plan) -> int:
        """How often a run asks every node for a vector, at most."""
        n_batches = -(-self.n_trees // self.batch_size)
        return n_batches * n_levels_asked(plan, self) + _paid_histograms(plan, self) + plan.reads_quantiles

    def n_released(self, plan: Plan) -> int:
        """Numbers in all releases of a run together, at most."""
        loss, bins, k = self.loss(plan), most_bins(plan), features_asked(plan, self)
        per_tree = 2**self.max_depth
        if plan.model.split_method == "hist":
            per_tree = (2 ** n_levels_asked(plan, self) - 1) * sum(bins[-k:])
        elif k > 1:
            per_tree = (2**self.max_depth - 1) * k * 2
        counts = sum(feature.n_codes for feature in build_grid(plan).features) if plan.reads_quantiles else 0
        return int(self.n_trees * per_tree * loss.n_statistics + _paid_histograms(plan, self) * sum(bins) + counts)

    def planned_releases(self, plan: Plan) -> list[Event]:
        """What a whole run releases, at its most expensive; the un-noised event for a plan without privacy."""
        if self.noise_multiplier == 0:
            return [UnnoisedEvent()]
        unnoised: list[Event] = [UnnoisedEvent()] if plan.reads_quantiles else []
        return unnoised + _most_expensive_releases(plan, self, self.noise_multiplier)


def resolve_boosting(plan: Plan) -> Settings:
    """Decide every "auto" of a plan for boosted trees and calibrate its noise.

    Raises:
        PrivacyError: when no noise keeps the promise.
    """
    model, privacy = plan.model, plan.privacy
    m = len(plan.features)
    unlimited = math.isinf(privacy.epsilon)
    mu = math.inf if unlimited else mu_of(privacy.epsilon, privacy.delta)
    greedy = model.split_method != "totally_random"
    default_interaction = "cyclical" if greedy else "adaptive"
    interaction = default_interaction if model.interaction == "auto" else model.interaction
    default_size = min(m, ADAPTIVE_SUBSET) if interaction == "adaptive" else 1
    size = {"auto": default_size, "all": m}.get(str(model.interaction_size), model.interaction_size)
    default_trees = MAX_TREES if unlimited else _default_trees(mu, privacy.n_records, m)
    n_trees = decided(model.n_trees, GREEDY_TREES if greedy and size != 1 and not unlimited else default_trees)
    averaging = model.weight_update == "averaging"
    batch_size = n_trees if model.batch_size == "all" or averaging else int(model.batch_size)
    settings = Settings(
        n_trees=n_trees,
        max_depth=decided(model.max_depth, 4),
        batch_size=min(batch_size, n_trees),
        learning_rate=decided(model.learning_rate, 0.25),
        interaction=interaction,
        interaction_size=int(size),
        noise_ridge=decided(model.noise_ridge, loss_kind(plan).noise_ridge),
        joint_clip=_joint_clip(plan),
        hessian_scale=_hessian_scale(plan),
    )
    return settings if unlimited else replace(settings, noise_multiplier=_noise_multiplier(plan, settings))


def n_levels_asked(plan: Plan, settings: Settings) -> int:
    """Exchanges per batch of trees: one per level of greedy splits.

    A single one does for totally random trees, and for histograms of a single feature, which every level can read.
    """
    return settings.max_depth if features_asked(plan, settings) > 1 else 1


def features_asked(plan: Plan, settings: Settings) -> int:
    """The features whose sums a tree's exchanges ask for: k for greedy splits; 1 for totally random trees."""
    greedy = plan.model.split_method != "totally_random"
    return min(settings.interaction_size, len(plan.features)) if greedy else 1


def pays_for_candidates(plan: Plan) -> bool:
    """Whether a run asks for histograms of Hessians only to find candidates; trees by histograms have them anyway."""
    model = plan.model
    asks = model.split_candidates == "iterative_hessian" and model.weight_update != "averaging"
    return asks and model.split_method != "hist"


def decided(value: Number | str, default: Number) -> Number:
    """What a plan says, or the default for its "auto"."""
    return default if isinstance(value, str) else value


def _default_trees(mu: float, n_records: int, n_features: int) -> int:
    """More trees where there is more signal: 100 (n mu / 1000)**(1/4) within [100, 300], and two turns per feature."""
    trees = int(100 * math.sqrt(math.sqrt(n_records * mu / 1000)))
    return max(2 * n_features, MIN_TREES, min(MAX_TREES, trees))


def _joint_clip(plan: Plan) -> float | None:
    choice, kind = plan.model.joint_clip, loss_kind(plan)
    if choice == "none":
        return None
    return decided(choice, kind.clip if plan.model.weight_update in kind.clipped_updates else None)


def _hessian_scale(plan: Plan) -> float | None:
    is_clipped = plan.model.joint_clip == "auto" and _joint_clip(plan) is not None
    return decided(plan.model.hessian_scale, loss_kind(plan).clipped_hessian_scale if is_clipped else None)


def _noise_multiplier(plan: Plan, settings: Settings) -> float:
    """Noise per unit of sensitivity of one tree, such that all releases of the run together keep the promise.

    Raises:
        PrivacyError: when no noise keeps it.
    """
    privacy = plan.privacy
    weight = _tree_weight(plan, settings) + _paid_histograms(plan, settings) * len(plan.features)
    spent = prepared_events(plan)
    exact = calibrate_noise_multiplier(privacy.epsilon, privacy.delta, float(weight), privacy.accountant, spent)
    judge = get_accountant(privacy.accountant)

    def keeps(margin: float) -> bool:
        releases = _most_expensive_releases(plan, settings, exact * (1 + margin))
        return judge.epsilon([*spent, *releases], privacy.delta) <= privacy.epsilon

    # A large epsilon or a small delta leaves so little noise that the grid costs more than the least margin.
    low, margin = 0.0, CALIBRATION_MARGIN
    while not keeps(margin):
        low, margin = margin, 2 * margin
    while low > 0 and margin - low > 0.01 * low:
        middle = (low + margin) / 2
        low, margin = (low, middle) if keeps(middle) else (middle, margin)
    return exact * (1 + margin)


def _tree_weight(plan: Plan, settings: Settings) -> int:
    """kappa_s + kappa_w of CCS'22, Table 1: T k d for greedy splits, T when k = 1 and for totally random trees."""
    return settings.n_trees * n_levels_asked(plan, settings) * features_asked(plan, settings)


def _paid_histograms(plan: Plan, settings: Settings) -> int:
    # A batch of B trees asks for up to B histograms first; a run of few trees may end before all are asked.
    n_batches = -(-settings.n_trees // settings.batch_size)
    return min(plan.model.candidate_rounds, n_batches * settings.batch_size) if pays_for_candidates(plan) else 0


def most_bins(plan: Plan) -> list[int]:
    """How many bins a histogram of each feature has at most, the fewest first."""
    # A round of halving leaves at most two bins for each one that is wanted.
    wanted = plan.model.n_candidates * (2 if plan.model.split_candidates == "iterative_hessian" else 1)
    features = build_grid(plan).features
    return sorted(cells.n_codes if cells.is_categorical else min(cells.n_codes, wanted + 4) for cells in features)


def _most_expensive_releases(plan: Plan, settings: Settings, noise_multiplier: float) -> list[Event]:
    """The most expensive releases of a run with this noise: with the smallest sensitivity, so the coarsest grid.

    The sensitivity of a round depends on how far the scores have come; it is smallest at the start.
    """
    loss, rows, m = settings.loss(plan), plan.privacy.rows_per_unit, len(plan.features)
    multiplier = noise_multiplier * (1 - ROUNDING)
    smallest = loss.sensitivity_squared(0) * rows * rows
    # A round of halving leaves at most two bins for each one that is wanted.
    bins = sorted(max(len(feature.categories), 2 * plan.model.n_candidates) + 4 for feature in plan.features)
    n_levels, k = n_levels_asked(plan, settings), features_asked(plan, settings)
    length = 2**settings.max_depth
    if plan.model.split_method == "hist":
        length = 2 ** (n_levels - 1) * sum(bins[m - k :])
    elif k > 1:
        length *= k
    sigma = integer_sigma(multiplier, smallest)
    count = settings.n_trees * n_levels
    releases: list[Event] = [DiscreteGaussianEvent(multiplier / math.sqrt(k), sigma, length * loss.n_statistics, count)]
    n_histograms = _paid_histograms(plan, settings)
    if n_histograms:
        hessian = loss.largest_statistic(loss.n_statistics - 1)
        sigma = integer_sigma(multiplier, hessian * hessian * rows * rows)
        releases.append(DiscreteGaussianEvent(multiplier / math.sqrt(m), sigma, sum(bins), n_histograms))
    return releases
