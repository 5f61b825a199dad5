"""What boosted trees ask for, and what part of a run's noise that takes.

kappa_w and kappa_s are what leaf sums and splits of a whole run cost, in multiples of one release's mu^2 (CCS'22, Table
1). The sums of greedy leaves are those of the sides of the last level's splits, so kappa_w = 0; one record adds to one
bin of each feature on each level, so kappa_s = T k d. Histograms of a single feature (k = 1) are asked for once per
tree, at the root: a node's bins are some of the root's, and kappa_s = T.
"""

from __future__ import annotations

import math

from hedgerow.losses.tables import Loss, double_residuals
from hedgerow.methods.line import bound_doublings
from hedgerow.plan.plan import Plan
from hedgerow.privacy.schedule import AlikeRounds
from hedgerow.protocol.queries import Query
from hedgerow.training.settings import Settings, features_asked, most_bins, n_levels_asked, pays_for_candidates
from hedgerow.trees.binning import build_grid
from hedgerow.trees.histograms import Histogram, NodeHistograms, SplitSums
from hedgerow.trees.leaf_sums import LeafSums


def rounds_of_trees(plan: Plan, settings: Settings) -> list[AlikeRounds]:
    """The histograms that candidates are paid for by, and then all trees, batch by batch and level by level.

    The sensitivity of a batch depends on how far scores have come; it is smallest at the start, however often
    residuals are doubled.
    """
    loss, bins, k = settings.loss(plan), most_bins(plan), features_asked(plan, settings)
    rows, paid_bins, n_levels = plan.privacy.rows_per_unit, _paid_bins(plan), n_levels_asked(plan, settings)
    found = _rounds_of_candidates(plan, settings)
    for n_trees, n_batches in _batches(settings).items():
        for level in range(n_levels):
            # Of a tree: the entries that one record adds its statistics to, and all of them.
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
                least_squared=_bound_least_squared(loss) * per_record * rows * rows,
                noise_multiplier=settings.noise_multiplier / math.sqrt(per_record),
                count=n_batches,
            )
            found.append(alike)
    return found


def _bound_least_squared(loss: Loss) -> int:
    """The smallest squared sensitivity of a tree. A curve's room for gradients is rounded anew by each doubling."""
    possible = range(bound_doublings(loss) + 1) if loss.kind == "curve" else range(1)
    return min(double_residuals(loss, doublings).sensitivity_squared(0) for doublings in possible)


def weight_of_trees(plan: Plan, settings: Settings) -> float:
    """The squared sensitivities of all these releases together, where one tree's noise multiplier is 1 for each."""
    of_trees = settings.n_trees * n_levels_asked(plan, settings) * features_asked(plan, settings)
    return float(of_trees + _paid_histograms(plan, settings) * len(plan.features))


def _batches(settings: Settings) -> dict[int, int]:
    """How many batches there are of each number of trees: all alike, and what is left."""
    n_whole, n_left = divmod(settings.n_trees, settings.batch_size)
    return {**({settings.batch_size: n_whole} if n_whole else {}), **({n_left: 1} if n_left else {})}


def _rounds_of_candidates(plan: Plan, settings: Settings) -> list[AlikeRounds]:
    """Histograms of Hessians; un-noised for candidates at quantiles, where they are counts of every cell."""
    loss, rows, m = settings.loss(plan), plan.privacy.rows_per_unit, len(plan.features)
    n_paid = _paid_histograms(plan, settings)
    if not n_paid and not plan.reads_quantiles:
        return []
    # One record adds one Hessian to one bin of every feature.
    largest = loss.largest_statistic(loss.n_statistics - 1)
    cells = sum(feature.n_codes for feature in build_grid(plan).features)
    alike = AlikeRounds.of(
        Histogram,
        length=cells if plan.reads_quantiles else sum(most_bins(plan)),
        bound=largest,
        grid_length=0 if plan.reads_quantiles else sum(_paid_bins(plan)),
        sensitivity_squared=largest * largest * m * rows * rows,
        noise_multiplier=0.0 if plan.reads_quantiles else settings.noise_multiplier / math.sqrt(m),
        count=max(1, n_paid),
    )
    return [alike]


def _paid_bins(plan: Plan) -> list[int]:
    """Of histograms, how many bins of each feature the grid is paid for in, the fewest first."""
    return sorted(max(len(feature.categories), 2 * plan.model.n_candidates) + 4 for feature in plan.features)


def _paid_histograms(plan: Plan, settings: Settings) -> int:
    # A batch of B trees asks for up to B histograms first; a run of few trees may end before all are asked.
    n_batches = -(-settings.n_trees // settings.batch_size)
    return min(plan.model.candidate_rounds, n_batches * settings.batch_size) if pays_for_candidates(plan) else 0
