# SPDX-License-Identifier: Apache-2.0
"""The settings of boosted trees, the rounds that they ask for, and the cost of these rounds.

How they are decided is in `hedgerow.methods.boosting.settings`.

kappa_w and kappa_s are what leaf sums and splits of a whole run cost, in multiples of one release's mu^2 (CCS'22, Table
1). The sums of greedy leaves are those of the sides of the last level's splits, so kappa_w = 0; one record adds to one
bin of each feature on each level, so kappa_s = T k d. Histograms of a single feature (k = 1) are asked for once per
tree, at the root: a node's bins are some of the root's, and kappa_s = T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from hedgerow.losses.registry import build_loss
from hedgerow.losses.tables import Loss, double_residuals
from hedgerow.methods.boosting.calibration import CALIBRATIONS, Calibration
from hedgerow.methods.boosting.start import STARTS, Start
from hedgerow.methods.level import LevelRelease
from hedgerow.methods.line import bound_doublings
from hedgerow.methods.linear_start import LinearStart
from hedgerow.methods.votes import plan_votes
from hedgerow.plan.plan import Plan
from hedgerow.privacy.schedule import AlikeRounds, Schedule
from hedgerow.protocol.queries import Query
from hedgerow.protocol.votes import list_vote_rounds
from hedgerow.training.settings import Settings, bound_bins, pays_for_candidates
from hedgerow.training.steps import Run, make_leaf_rule
from hedgerow.trees.binning import build_grid
from hedgerow.trees.histograms import Histogram, NodeHistograms, SplitSums
from hedgerow.trees.leaf_sums import LeafSums
from hedgerow.trees.leaves import JAMES_STEIN_SHARE, LeafRule

INTERACTION_SHARE = 0.5
"""Share of the trees, at the end of the run, among which "adaptive" tries subsets of features."""


@dataclass(frozen=True, kw_only=True)
class BoostingSettings(Settings):
    """Numbers in place of every "auto".

    Attributes:
        batch_size, learning_rate: as in the plan.
        interaction: "cyclical", "random" or "adaptive".
        interaction_size: features per tree; for "adaptive", of the subsets that it tries besides single features.
        noise_ridge: leaf ridge per standard deviation of the gradient's noise.
        joint_clip: largest norm of (g, c h) of a record; None for the loss's own.
        hessian_scale: c; None for the loss's own.
        shrinkage: share of the James-Stein correction that trees are scaled by, where they are smoothed.
        interaction_share: of the trees, at the end of the run, among which "adaptive" tries subsets of features.
        central_subsets: whether nodes of random trees on several features are divided by the middle half of the cuts
            that divide them.
        subset_levels: levels that trees on several features have more than `max_depth`.
        shape_rate, subset_rate: see `hedgerow.trees.leaves.LeafRule`.
        start: what the trees begin with: "none", "mean", or "linear", a linear model of the numeric features after it;
            of counts "level", their mean; of times to an event "hazards", the baseline, or "linear hazards", a linear
            model of all features after it.
        start_share, calibration_share: of mu^2, for the start, and for the last release.
        vote_share: of mu^2, for all votes of a site.
        calibration: what that release calibrates: "none", the "means" of numbers and counts, the "line" of numbers
            where leaves are not smoothed (`hedgerow.methods.line`), the "residuals" of numbers by a loss that the plan
            names, the "odds" of two classes, or the "hazards" of times to an event.
        levels: whether the level of predictions is released after it (`hedgerow.methods.level`).
        level_share: of mu^2, for that.
    """

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
    subset_levels: int = 0
    shape_rate: float = 0.0
    subset_rate: float = 0.0
    start: str = "none"
    calibration: str = "none"
    start_share: float = 0.0
    calibration_share: float = 0.0
    vote_share: float = 0.0
    levels: bool = False
    level_share: float = 0.0

    shown: ClassVar[tuple[str, ...]] = (
        "n_trees", "max_depth", "batch_size", "learning_rate", "interaction", "interaction_size", "joint_clip",
    )  # fmt: skip

    def start_of(self, plan: Plan) -> Start:
        """Return the start of the trees."""
        return STARTS[self.start](
            plan, self.start_share, self._multiplier(plan, self.start_share), self.calibration != "none"
        )

    def calibration_of(self, plan: Plan) -> Calibration:
        """Return the last release."""
        return CALIBRATIONS[self.calibration](plan, self._multiplier(plan, self.calibration_share))

    def level_of(self, plan: Plan) -> LevelRelease | None:
        """Return the release of the level of predictions; None without one."""
        return LevelRelease(plan, self._multiplier(plan, self.level_share)) if self.levels else None

    @property
    def share_of_trees(self) -> float:
        """The share of mu^2 that is left for trees."""
        return 1 - self.start_share - self.calibration_share - self.vote_share - self.level_share

    def _multiplier(self, plan: Plan, share: float) -> float:
        """Return the noise multiplier of releases with this share of mu^2; 0 without privacy."""
        if not self.noise_multiplier or not share:
            return 0.0
        left = self.share_of_trees
        return self.noise_multiplier * math.sqrt(left / (share * weigh_trees(plan, self)))

    def loss(self, plan: Plan) -> Loss:
        return build_loss(plan, self.joint_clip, self.hessian_scale)

    def linear_loss(self, plan: Plan) -> Loss:
        model = self.start_of(plan).model
        return model.loss if isinstance(model, LinearStart) else super().linear_loss(plan)

    def schedule(self, plan: Plan) -> Schedule:
        start, calibration = self.start_of(plan).rounds, self.calibration_of(plan).rounds
        level = self.level_of(plan)
        rounds = (*start, *list_tree_rounds(plan, self), *calibration, *(level.rounds if level else ()))
        n_votes = len(list_vote_rounds(sum(alike.count for alike in rounds)))
        if not self.vote_share or not n_votes:
            return Schedule(rounds)
        return Schedule(rounds, votes=plan_votes(plan, self._multiplier(plan, self.vote_share / n_votes), n_votes))

    def n_other_trees(self, plan: Plan) -> int:
        return self.start_of(plan).n_trees + self.calibration_of(plan).n_trees

    def features_asked(self, plan: Plan) -> int:
        """Return the number of features whose sums a tree's rounds ask for.

        It is k for greedy splits, and 1 for totally random trees.
        """
        greedy = plan.model.split_method != "totally_random"
        return min(self.interaction_size, len(plan.features)) if greedy else 1

    def n_levels_asked(self, plan: Plan) -> int:
        """Return the number of rounds per batch of trees: one per level of greedy splits.

        A single one does for totally random trees, and for histograms of a single feature, which every level can read.
        """
        return self.max_depth if self.features_asked(plan) > 1 else 1

    @property
    def deepest(self) -> int:
        """The most levels of splits of any tree."""
        return self.max_depth + self.subset_levels

    @property
    def leaves_of_tree(self) -> int:
        n_leaves: int = 2**self.deepest
        return n_leaves

    def show(self, name: str) -> object:
        if name == "max_depth" and self.subset_levels:
            return f"{self.max_depth}, {self.deepest} in trees on several features"
        if name == "learning_rate" and self.shape_rate:
            several = f", {self.subset_rate:g} on several" if self.subset_rate else ""
            expected = f"{self.shape_rate:g} of expected values in trees on one numeric feature{several}"
            return f"{expected}; {self.learning_rate:g} in others"
        return super().show(name)


@lru_cache(maxsize=4)
def make_smoothing_rule(run: Run, settings: BoostingSettings, n_trees: int, doublings: int = 0) -> LeafRule:
    """Return the rule for the leaf values of a batch of `n_trees`.

    It is kept, since all batches of a run except the last are alike.
    """
    return replace(
        make_leaf_rule(run, settings.learning_rate / 2**doublings, settings.noise_ridge, n_trees),
        smooths=settings.interaction == "adaptive",
        shrinkage=settings.shrinkage,
        shape_rate=settings.shape_rate / 2**doublings,
        subset_rate=settings.subset_rate / 2**doublings,
    )


def list_tree_rounds(plan: Plan, settings: BoostingSettings) -> list[AlikeRounds]:
    """Return the rounds of paid candidates, and of all trees, batch by batch and level by level.

    The sensitivity of a batch depends on how far scores have come; it is smallest at the start, however often
    residuals are doubled.
    """
    loss, bins, k = settings.loss(plan), bound_bins(plan), settings.features_asked(plan)
    rows, paid_bins, n_levels = plan.privacy.rows_per_unit, _paid_bins(plan), settings.n_levels_asked(plan)
    # Each doubling rounds a curve's room for gradients again.
    possible = range(bound_doublings(loss) + 1) if loss.kind == "curve" else range(1)
    least_squared = [double_residuals(loss, doublings).sensitivity_squared(0) for doublings in possible]
    found = _rounds_of_candidates(plan, settings)
    n_whole, n_left = divmod(settings.n_trees, settings.batch_size)
    for n_trees, n_batches in ((settings.batch_size, n_whole), (n_left, 1)):
        if not n_trees * n_batches:
            continue
        for level in range(n_levels):
            # Entries of a tree that one record adds to, all entries, and those that the grid is paid for.
            kind: type[Query] = LeafSums
            per_record, n_entries, n_paid = 1, 2**settings.deepest, 2**settings.deepest
            if plan.model.split_method == "hist":
                kind, per_record, n_entries = NodeHistograms, k, 2**level * sum(bins[-k:])
                n_paid = 2 ** (n_levels - 1) * sum(paid_bins[-k:])
            elif k > 1:
                kind, per_record, n_entries, n_paid = SplitSums, k, 2**level * k * 2, 2**settings.max_depth * k
            per_record *= n_trees
            alike = AlikeRounds.of(
                kind,
                length=n_trees * n_entries * loss.n_statistics,
                grid_length=n_trees * n_paid * loss.n_statistics,
                bound=loss.bound(),
                sensitivity_squared=loss.norm_squared * per_record * rows * rows,
                least_squared=min(least_squared) * per_record * rows * rows,
                noise_multiplier=settings.noise_multiplier / math.sqrt(per_record),
                count=n_batches,
            )
            found.append(alike)
    return found


def weigh_trees(plan: Plan, settings: BoostingSettings) -> float:
    """Return the squared sensitivities of all these releases together.

    They are in units such that one tree's noise multiplier is 1 for each release.
    """
    of_trees = settings.n_trees * settings.n_levels_asked(plan) * settings.features_asked(plan)
    return float(of_trees + _paid_histograms(plan, settings) * len(plan.features))


def _rounds_of_candidates(plan: Plan, settings: BoostingSettings) -> list[AlikeRounds]:
    """Return the rounds of histograms of Hessians for candidates.

    For candidates at quantiles they are un-noised counts of every cell.
    """
    loss, rows, m = settings.loss(plan), plan.privacy.rows_per_unit, len(plan.features)
    n_paid = _paid_histograms(plan, settings)
    if not n_paid and not plan.reads_quantiles:
        return []
    # One record adds one Hessian to one bin of every feature.
    largest = loss.largest_statistic(loss.n_statistics - 1)
    cells = sum(feature.n_codes for feature in build_grid(plan).features)
    alike = AlikeRounds.of(
        Histogram,
        length=cells if plan.reads_quantiles else sum(bound_bins(plan)),
        bound=largest,
        grid_length=0 if plan.reads_quantiles else sum(_paid_bins(plan)),
        sensitivity_squared=largest * largest * m * rows * rows,
        noise_multiplier=0.0 if plan.reads_quantiles else settings.noise_multiplier / math.sqrt(m),
        count=max(1, n_paid),
    )
    return [alike]


def _paid_bins(plan: Plan) -> list[int]:
    """Return the bins of each feature's histogram that the grid is paid for, the fewest first."""
    return sorted(max(len(feature.categories), 2 * plan.model.n_candidates) + 4 for feature in plan.features)


def _paid_histograms(plan: Plan, settings: BoostingSettings) -> int:
    # A batch of B trees asks for up to B histograms first; a run of few trees may end before all are asked.
    n_batches = -(-settings.n_trees // settings.batch_size)
    return min(plan.model.candidate_rounds, n_batches * settings.batch_size) if pays_for_candidates(plan) else 0
