"""The settings of a run: a plan whose every "auto" has been decided, and what follows from them for a run's releases.

Each method has its own rule, on public quantities only; that of boosted trees is in `hedgerow.methods.boosting`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from hedgerow.losses.registry import build_loss
from hedgerow.losses.tables import Loss
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.calibration import calibrate_noise_multiplier, integer_sigma
from hedgerow.privacy.events import DiscreteGaussianEvent, Event, UnnoisedEvent
from hedgerow.privacy.ledger import read_prepared_events
from hedgerow.trees.binning import build_grid
from hedgerow.trees.leaves import JAMES_STEIN_SHARE

Number = TypeVar("Number", int, float, float | None)

INTERACTION_SHARE = 0.5
"""Of the trees, at the end of the run, among which "adaptive" tries subsets of features."""
CALIBRATION_MARGIN = 1e-7
"""Least relative extra noise, to pay for rounding and for the integer grid; see docs/proofs/discrete-gaussian.md."""

ROUNDING = 1e-12
"""Relative error, at most, of the few products and roots between a noise multiplier and its event."""


def planned_event(noise_multiplier: float, sensitivity_squared: int, length: int, count: int = 1) -> Event:
    """What so many releases with this noise cost at most.

    Args:
        noise_multiplier: above 0.
        sensitivity_squared: in integer units.
        length: entries of each.
        count: releases.
    """
    sigma = integer_sigma(noise_multiplier, sensitivity_squared)
    return DiscreteGaussianEvent(noise_multiplier * (1 - ROUNDING), sigma, length, count)


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
        shrinkage: share of the James-Stein correction that trees are scaled by, where they are smoothed.
        interaction_share: of the trees, at the end of the run, among which "adaptive" tries subsets of features.
        central_subsets: whether nodes of random trees on several features are divided by the middle half of the cuts
            that divide them.
        shape_rate: see `hedgerow.trees.leaves.LeafRule`.
        filters_by_features: whether several classes are filtered by what each feature has shown of them.
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
    shrinkage: float = JAMES_STEIN_SHARE
    interaction_share: float = INTERACTION_SHARE
    central_subsets: bool = False
    shape_rate: float = 0.0
    filters_by_features: bool = False
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

    @property
    def leaves_of_tree(self) -> int:
        """Into how many parts of a tree a release divides the records, at most: of several releases, the first."""
        n_leaves: int = 2**self.max_depth
        return n_leaves

    def largest_length(self, plan: Plan) -> int:
        """The longest vector that a run asks for, at most."""
        bins, k = most_bins(plan), features_asked(plan, self)
        per_tree: int = 2**self.max_depth
        if plan.model.split_method == "hist":
            per_tree = 2 ** (n_levels_asked(plan, self) - 1) * sum(bins[-k:])
        elif k > 1:
            per_tree = 2**self.max_depth * k
        counts = sum(feature.n_codes for feature in build_grid(plan).features) if plan.reads_quantiles else 0
        histogram = sum(bins) if _paid_histograms(plan, self) else 0
        return max(self.batch_size * per_tree * self.loss(plan).n_statistics, histogram, counts)

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
        return unnoised + self.releases_at(plan, self.noise_multiplier)

    def weight(self, plan: Plan) -> float:
        """The squared sensitivities of all releases together, where one tree's noise multiplier is 1 for each."""
        # kappa_s + kappa_w of CCS'22, Table 1: T k d for greedy splits, T when k = 1 and for totally random trees.
        of_trees = self.n_trees * n_levels_asked(plan, self) * features_asked(plan, self)
        return float(of_trees + _paid_histograms(plan, self) * len(plan.features))

    def releases_at(self, plan: Plan, noise_multiplier: float) -> list[Event]:
        """What a whole run releases with this noise, at its most expensive."""
        return _most_expensive_releases(plan, self, noise_multiplier)

    def n_start_trees(self, plan: Plan) -> int:
        """Trees that nodes add to their scores before the first of `n_trees`."""
        return 0


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


def calibrate_noise(plan: Plan, settings: Settings) -> float:
    """Noise per unit of sensitivity of one tree, such that all releases of the run together keep the promise.

    Raises:
        PrivacyError: when no noise keeps it.
    """
    privacy = plan.privacy
    spent, weight = read_prepared_events(plan), settings.weight(plan)
    exact = calibrate_noise_multiplier(privacy.epsilon, privacy.delta, weight, privacy.accountant, spent)
    judge = get_accountant(privacy.accountant)

    def keeps(margin: float) -> bool:
        releases = settings.releases_at(plan, exact * (1 + margin))
        return judge.epsilon([*spent, *releases], privacy.delta) <= privacy.epsilon

    # A large epsilon or a small delta leaves so little noise that the grid costs more than the least margin.
    low, margin = 0.0, CALIBRATION_MARGIN
    while not keeps(margin):
        low, margin = margin, 2 * margin
    while low > 0 and margin - low > 0.01 * low:
        middle = (low + margin) / 2
        low, margin = (low, middle) if keeps(middle) else (middle, margin)
    return exact * (1 + margin)


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
