# SPDX-License-Identifier: Apache-2.0
"""DP-XGBoost: greedy trees under pure differential privacy, as one generator of queries.

    of a regression, once:   yield PureLeafSums       ->  the mean label, from which scores begin
                             yield PureSpreadSums     ->  how far labels are from it: residuals are doubled
    for every tree:
        in the first trees:  yield PureHistogram      ->  noisy counts per bin place candidates (the quantile sketch)
        for every level:
            exponential      yield SplitSelection     ->  per node the candidate that the exponential mechanism chose
            histogram        yield PureNodeHistograms ->  noisy histograms, from which each node takes its best split
        yield PureLeafSums                            ->  noisy sums of gradients and counts per leaf

Source: Grislain & Gonzalvez 2021, arXiv 2110.12770. Its leaks are closed: the best split of *all* features is chosen in
one draw (the published code first takes the exact best of each feature), a leaf's count is released with noise in the
same vector as its sum (Algorithm 1 divides by the exact count), no node stops by an exact count (a leaf whose *noisy*
count is below `min_child_weight` has the value 0), and candidates and bounds come from the plan and from released
histograms. Every release has a sample of its own where the paper has one per tree, which costs less; missing values go
to a side drawn by coin.

With "exponential" the exact sums are known to the coordinator, who is trusted to choose by the mechanism and to keep
them to itself. "histogram" asks for no such choice, and everything that is computed is computed from noisy releases.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.losses.tables import RECORD_NORM
from hedgerow.methods.dp_xgboost import DpXgboost
from hedgerow.methods.dp_xgboost.settings import DpXgboostSettings, Sensitivity, sampling_threshold, sensitivities
from hedgerow.methods.dp_xgboost.trees import (
    GRADIENT_UNIT,
    RIDGE_UNIT,
    SCORE_UNIT_OF_GAIN,
    PureHistogram,
    PureLeafSums,
    PureNodeHistograms,
    PureSpreadSums,
    SplitSelection,
)
from hedgerow.methods.line import choose_doublings
from hedgerow.methods.linear_start import make_constant_tree, make_constant_trees
from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import FittedTrees, IntVector, Query
from hedgerow.training.candidates import CandidateSource
from hedgerow.training.steps import GrowingModel, NodeTrees, Program, Run, grow_by, largest_value, make_leaf_rule
from hedgerow.trees.greedy_trees import GrowingTrees, SplitRule, Splits, best_cuts, pad_histograms
from hedgerow.trees.leaves import LeafRule, leaf_values, leaf_weights
from hedgerow.trees.random_trees import PublicRandom

Growth = Generator[Query, IntVector, GrowingTrees]
GRADIENT_LIMIT = 1.0
"""g*, of squared loss as of logistic; a leaf of exact sums has no larger value."""


def dp_xgboost(plan: Plan, settings: DpXgboostSettings) -> Program:
    """Return the program of a plan with `algorithm = "dp-xgboost"`."""
    asking = _Asking(Run.from_plan(plan, settings), settings)
    return grow_by(asking.run, lambda grown: _boost(asking, grown))


def _boost(asking: _Asking, grown: GrowingModel) -> Generator[Query, IntVector, None]:
    run, plan = asking.run, asking.run.plan
    candidates, ordered = CandidateSource(plan, run.grid), run.make_ordered_sum()
    if run.settings.n_other_trees(plan):
        mean, count = ((yield asking.mean())[:2] / run.loss.scales).tolist()
        start = make_constant_trees(run.grid, run.settings.max_depth, -mean / max(1.0, count), largest_value(run))
        grown.add(start, None)
        asking.carried.take(start)
        # The noise is added on top: where the spread is lost in it, it is not taken for a small one.
        spread = float((yield asking.spread())[0]) + laplace_noise(asking.settings.spread_scale)
        asking.doublings = choose_doublings(spread / RECORD_NORM / max(1.0, count), run.loss)
    for number in range(run.settings.n_trees):
        if number < DpXgboost.of(plan).sketch_rounds:
            _take_sketch(asking, candidates, (yield asking.sketch(candidates)))
        growing = yield from _grow(asking, candidates)
        sums = yield asking.leaves(growing)
        trees = growing.trees
        values = leaf_values(sums, laplace_noise(asking.settings.leaf_scale), run.loss, trees, _rule(asking))
        found = leaf_weights(sums, run.loss, 1)
        values[found < DpXgboost.of(plan).min_child_weight * run.loss.scales[1]] = 0
        weights = found[..., None] / run.loss.scales[1] + plan.model.leaf_ridge
        fitted = FittedTrees(trees, ordered.add(trees, values, weights))
        grown.add(fitted, found)
        asking.fitted(fitted)


class _Asking:
    """The queries of one run, in their order.

    Attributes:
        number: trees fitted so far, without a start.
        doublings: of residuals, see `hedgerow.losses.tables.double_residuals`.
    """

    def __init__(self, run: Run, settings: DpXgboostSettings) -> None:
        self.run, self.settings = run, settings
        self.number = self.doublings = 0
        self.carried, self._round = NodeTrees(), 0
        self._threshold = sampling_threshold(run.plan)
        _, self._spread, self._sketch, self._split, self._leaf = sensitivities(run.plan, run.loss)

    def fitted(self, fitted: FittedTrees) -> None:
        """Count a complete tree, and let the next query bring it."""
        self.number += 1
        self.carried.take(fitted)

    def mean(self) -> PureLeafSums:
        """Return the query for the sum of gradients at a score of 0, and the count of records.

        These gradients are the labels with the other sign.
        """
        trees = make_constant_tree(self.run.grid, self.run.settings.max_depth)
        noise = self._leaf, self.settings.start_scale
        return PureLeafSums(**self._common(PureLeafSums, "mean", 2 * trees.n_leaves, *noise), trees=trees)

    def spread(self) -> PureSpreadSums:
        """Return the query for the distances of labels from the mean."""
        noise = self._spread, self.settings.spread_scale
        common = self._common(PureSpreadSums, "spread", 1, *noise)
        del common["score_bound"]
        return PureSpreadSums(**{**common, "bound": RECORD_NORM})

    def sketch(self, candidates: CandidateSource) -> PureHistogram:
        """Return the query for counts of all features' bins."""
        tables, count = candidates.bin_tables(), self.run.loss.largest_statistic(1)
        noise = self._sketch, self.settings.sketch_scale
        common = self._common(PureHistogram, "candidates", sum(tables["n_bins"]), *noise)
        return PureHistogram(**{**common, **tables, "bound": count})

    def selection(self, growing: GrowingTrees, is_candidate: NDArray[np.bool_], coins: NDArray[np.bool_]) -> Query:
        """Return the query for one split per node of the level that is to be added."""
        return SplitSelection(
            **self._level(SplitSelection, growing),
            is_candidate=is_candidate,
            is_alive=growing.alive[0],
            is_categorical=growing.bins.is_categorical,
            missing_left=coins,
            units=(GRADIENT_UNIT, int(self.run.loss.scales[1])),
            ridge=round(self.run.plan.model.leaf_ridge * RIDGE_UNIT),
            score_unit=SCORE_UNIT_OF_GAIN,
        )

    def histograms(self, growing: GrowingTrees) -> Query:
        """Return the query for noisy histograms of every node of the level that is to be added."""
        return PureNodeHistograms(**self._level(PureNodeHistograms, growing))

    def leaves(self, growing: GrowingTrees) -> PureLeafSums:
        """Return the query for sums of gradients and counts per leaf."""
        trees = growing.trees
        noise = self._leaf, self.settings.leaf_scale
        common = self._common(PureLeafSums, "leaves", 2 * trees.n_leaves, *noise)
        return PureLeafSums(**common, trees=trees, doublings=self.doublings)

    def _level(self, kind: type[Query], growing: GrowingTrees) -> dict[str, Any]:
        trees, bins = growing.trees, growing.bins
        length = 2 * 2**trees.depth * int(bins.n_bins.sum())
        common = self._common(kind, f"level {trees.depth}", length, self._split, self.settings.split_scale)
        common |= {
            "doublings": self.doublings,
            "trees": trees,
            "features": growing.features,
            "bin_of_code": bins.of_code,
            "n_bins": bins.n_bins,
        }
        return common

    def _common(self, kind: type[Query], subject: str, length: int, changed: Sensitivity, scale: int) -> dict[str, Any]:
        """Return the fields that all these queries share, and count the round."""
        pure = changed.noise(scale, self._threshold)
        self._round += 1
        return {
            "purpose": kind.purpose_of(self._round - 1, f"tree {self.number}, {subject}"),
            "length": length,
            "bound": self.run.loss.bound(),
            "sensitivity_squared": changed.squared,
            "noise_multiplier": pure.scale / pure.sensitivity,
            **self.carried.send(),
            "score_bound": self.carried.score_bound,
            "pure": pure,
        }


def laplace_noise(scale: int) -> float:
    """Return the standard deviation of Laplace noise of this scale."""
    return math.sqrt(2) * scale


def _take_sketch(asking: _Asking, candidates: CandidateSource, counts: IntVector) -> None:
    """Cut every numeric feature's candidates again at the quantiles of its noisy histogram."""
    position = 0
    for feature in range(asking.run.grid.n_features):
        n_bins = int(candidates.bin_of_code(feature).max()) + 1
        # The last bin of a numeric feature holds its missing values.
        values = counts[position : position + n_bins - 1]
        position += n_bins
        candidates.take_bins(feature, values, laplace_noise(asking.settings.sketch_scale))


def _grow(asking: _Asking, candidates: CandidateSource) -> Growth:
    run = asking.run
    features = np.arange(run.grid.n_features, dtype=np.int64)[None]
    growing = GrowingTrees(features, candidates.bins(), run.grid.n_codes, run.groups)
    randomness = PublicRandom(run.structure_seed, f"tree {asking.number}")
    for _ in range(run.settings.max_depth):
        coins = np.array([randomness.coin() for _ in range(growing.alive.shape[1])])
        if DpXgboost.of(run.plan).splits == "exponential":
            is_candidate = find_candidates(growing)
            chosen = yield asking.selection(growing, is_candidate, coins)
            splits = read_splits(growing, is_candidate, coins, chosen)
        else:
            released = yield asking.histograms(growing)
            histograms = pad_histograms(released, growing.bins.n_bins[None], len(coins), growing.bins.width)
            splits = best_cuts(growing, histograms, coins[None], _split_rule(asking))
        growing.add_level(splits)
    return growing


def find_candidates(growing: GrowingTrees) -> NDArray[np.bool_]:
    """Return which splits of each node are possible: bool [n_nodes, k, width].

    A numeric feature can be split after each of its alive bins except the last, and a categorical one by each alive
    category alone, if there are two at least.
    """
    values = growing.values[0]
    last = (
        np.arange(values.shape[-1])
        == np.where(values.any(axis=2), values.shape[-1] - 1 - values[:, :, ::-1].argmax(axis=2), -1)[..., None]
    )
    several = values.sum(axis=2) > 1
    categorical = growing.bins.is_categorical[None, :, None]
    return np.asarray(values & several[..., None] & (categorical | ~last))


def read_splits(
    growing: GrowingTrees, is_candidate: NDArray[np.bool_], coins: NDArray[np.bool_], chosen: IntVector
) -> Splits:
    """Return the chosen splits; a node whose choice is no candidate of its own stays whole.

    Args:
        is_candidate: bool [n_nodes, k, width].
        coins: bool [n_nodes], the side of missing values.
        chosen: int64 [n_nodes], slot * width + position.
    """
    n_nodes, n_slots, width = is_candidate.shape
    within = (chosen >= 0) & (chosen < n_slots * width)
    place = np.where(within, chosen, 0)
    slot, position = place // width, place % width
    nodes = np.arange(n_nodes)
    exists = within & is_candidate[nodes, slot, position]
    slot = np.where(exists, slot, 0)
    bins = np.arange(width)
    one, up_to = bins == position[:, None], bins <= position[:, None]
    left = np.where(growing.bins.is_categorical[slot][:, None], one, up_to)
    is_missing = growing.missing[0][nodes, slot]
    left = np.where(is_missing, coins[:, None], left) | ~exists[:, None]
    return Splits(slot[None], left[None], exists[None])


def _split_rule(asking: _Asking) -> SplitRule:
    run = asking.run
    return SplitRule(
        loss=run.loss,
        leaf_ridge=run.plan.model.leaf_ridge,
        noise_ridge=asking.settings.noise_ridge,
        leaf_clip=GRADIENT_LIMIT,
        gradient_noise=laplace_noise(asking.settings.split_scale) / GRADIENT_UNIT,
    )


def _rule(asking: _Asking) -> LeafRule:
    run, own = asking.run, asking.settings
    # A leaf's value is bounded, before the learning rate, by g*, or by g* (1 - eta)^t in tree t, from 0 on.
    # Source: Li et al. 2020 (AAAI 34), geometric leaf clipping. Theirs bounds the exact value before noise is added to
    # it. In a federation that value is unknown to all: here it is the quotient of noisy sums, so this is
    # post-processing.
    limit = GRADIENT_LIMIT
    if DpXgboost.of(run.plan).geometric_leaf_clip:
        # One factor after the other: machines need not agree on the last bit of a power.
        for _ in range(asking.number):
            limit *= 1 - own.learning_rate
    return replace(
        make_leaf_rule(run, own.learning_rate / 2**asking.doublings, own.noise_ridge),
        weight_update="gradient",
        leaf_clip=limit,
        smooths=own.shrinkage > 0,
        shrinkage=own.shrinkage,
    )
