# SPDX-License-Identifier: Apache-2.0
"""Boosted trees: the framework of Maddock et al., CCS'22, as one generator of queries.

    for every batch of B trees:
        totally random     draw B structures from public randomness and the candidates so far
                           yield LeafSums(structures, the last batch's values)  ->  noisy sums per leaf
        else, for every level of B trees, each with k features:
            hist               yield NodeHistograms(levels so far)          ->  noisy sums per node, feature and bin
            partially random   draw a split per node and feature
                               yield SplitSums(levels so far, the draws)    ->  noisy sums of both sides of each
            split every node where it scores best
        values = rule(noisy sums);   candidates, order of features = what the sums say

Candidates by iterative Hessians read the root's histograms. What all of it costs is in
`hedgerow.methods.boosting.schedule`.

Everything after a release is post-processing. The generator is deterministic: any party with the plan and the releases
computes the same queries and the same model. So a node can check each query against the plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.losses.tables import Loss, double_residuals
from hedgerow.methods.boosting.schedule import BoostingSettings, make_smoothing_rule
from hedgerow.methods.boosting.start import StartResult, Weighed
from hedgerow.methods.line import ScoreLine
from hedgerow.plan.plan import Plan
from hedgerow.privacy.schedule import Schedule
from hedgerow.protocol.queries import FittedTrees, IntVector, Query, TreeBatch
from hedgerow.training.candidates import CandidateSource
from hedgerow.training.features import FeatureOrder
from hedgerow.training.steps import GrowingModel, NodeTrees, Program, Run, grow_by
from hedgerow.trees.constraints import OrderedSum
from hedgerow.trees.greedy_trees import GrowingTrees, SplitRule, best_cuts, choose_drawn, pad_histograms, sum_sides
from hedgerow.trees.histograms import Histogram, NodeHistograms, SplitSums
from hedgerow.trees.leaf_sums import LeafSums
from hedgerow.trees.leaves import ClassCovariance, ValueSpread, compute_values, leaf_values, leaf_weights, read_sums
from hedgerow.trees.plausibility import PartitionSums
from hedgerow.trees.random_trees import PublicRandom, find_cuts, find_shapes, random_trees, with_edges

IntArray = NDArray[np.int64]
Growth = Generator[Query, IntVector, Weighed]
"""Asks for a batch's sums; returns its trees and the weights of their leaves."""
Sums = TypeVar("Sums", bound=PartitionSums)


def boosting(plan: Plan, settings: BoostingSettings) -> Program:
    """Return the program of a plan for boosted trees.

    Trees are greedy where splits are chosen, and totally random where there is nothing to choose.

    Partially random splits of a single feature leave nothing to choose.
    """
    grow: Callable[[_Position, int], Growth] = _at_random
    if plan.model.split_method == "hist":
        grow = _by_histograms
    elif plan.model.split_method == "partially_random" and settings.features_asked(plan) > 1:
        grow = _by_draws
    return grow_by(Run.from_plan(plan, settings), lambda grown: _boost(grown, settings, grow))


@dataclass(eq=False)
class _Position:
    """The progress of a run.

    Attributes:
        run, settings: the fixed parts of the run, and its settings.
        candidates: the candidates for cuts of features.
        order: the order of features for the next trees.
        n_fitted: trees so far, without those of a start.
        round: number of the next query.
        carried: the nodes' knowledge of the trees.
        begun: the result of the start, before the first tree.
        classes: the covariance of several classes so far; None if it is not used.
        spread: the spread of values so far; None if it is not used.
        new_edges: edges of features that were cut again, which nodes do not know yet.
        ordered: the sum of all trees so far.
    """

    run: Run
    settings: BoostingSettings
    candidates: CandidateSource
    order: FeatureOrder
    ordered: OrderedSum
    n_fitted: int = 0
    round: int = 0
    carried: NodeTrees = field(default_factory=NodeTrees)
    begun: StartResult = field(default_factory=StartResult)
    classes: ClassCovariance | None = None
    spread: ValueSpread | None = None
    new_edges: dict[int, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def loss(self) -> Loss:
        """The run's loss, of residuals as often doubled as the start says."""
        return double_residuals(self.run.loss, self.begun.doublings)

    def ask(self, kind: type[Sums], n_trees: int, level: str, n_entries: int, per_record: int, **details: Any) -> Sums:
        """Return a query about the next `n_trees` trees; it counts as a round.

        Args:
            n_entries: per statistic in the answer.
            per_record: entries that one record adds its statistics to.
        """
        run, first = self.run, self.n_fitted
        rows = run.plan.privacy.rows_per_unit
        return kind(
            **self._common(kind, f"trees {first}-{first + n_trees - 1}{level}"),
            length=n_entries * run.loss.n_statistics,
            bound=run.loss.bound(),
            sensitivity_squared=self.loss.sensitivity_squared(self.carried.score_bound) * per_record * rows * rows,
            noise_multiplier=self.settings.noise_multiplier / math.sqrt(per_record),
            **details,
        )

    def histogram(self) -> Histogram:
        """Return a query for candidates that is paid for: the Hessians of all features.

        See CCS'22, Algorithm 2. It counts as a round.

        Before the first tree all Hessians are equal: un-noised for candidates at quantiles, these are counts.
        """
        run, k = self.run, self.run.grid.n_features
        rows, tables = run.plan.privacy.rows_per_unit, self.candidates.bin_tables()
        # One record adds one Hessian to one bin of every feature.
        largest = run.loss.largest_statistic(run.loss.n_statistics - 1)
        return Histogram(
            **self._common(Histogram, f"candidates before tree {self.n_fitted}"),
            **tables,
            length=sum(tables["n_bins"]),
            bound=largest,
            sensitivity_squared=largest * largest * k * rows * rows,
            noise_multiplier=0.0 if run.plan.reads_quantiles else self.settings.noise_multiplier / math.sqrt(k),
        )

    def _common(self, kind: type[Query], subject: str) -> dict[str, Any]:
        """Return the fields that all queries share, and count the round."""
        self.round += 1
        return {
            "purpose": kind.purpose_of(self.round - 1, subject),
            **self.describe_ensemble(),
            "score_bound": self.carried.score_bound,
        }

    def describe_ensemble(self) -> dict[str, Any]:
        """Return the next query's fields about the ensemble, which are sent once.

        They are the trees that it brings, how many are known, and new edges.
        """
        new_edges, self.new_edges = self.new_edges, {}
        return {**self.carried.send(), "new_edges": new_edges}


def _boost(
    grown: GrowingModel, settings: BoostingSettings, grow: Callable[[_Position, int], Growth]
) -> Generator[Query, IntVector, None]:
    run = grown.run
    candidates = CandidateSource(run.plan, run.grid)
    kind, size, share = settings.interaction, settings.interaction_size, settings.interaction_share
    order = FeatureOrder(run.structure_seed, run.grid.n_features, settings.n_trees, kind, size, share, run.groups)
    at = _Position(run, settings, candidates, order, run.make_ordered_sum())
    if run.loss.n_outputs > 1 and kind == "adaptive" and settings.shrinkage > 0:
        # Filter by feature only if the plan says "auto": a plan that names its shrinkage keeps the model that it had
        # before there were such filters.
        at.classes = ClassCovariance(run.loss.n_outputs, run.plan.model.shrinkage == "auto")
    if settings.shape_rate or settings.subset_rate:
        at.spread = ValueSpread()
    start = settings.start_of(run.plan)
    at.begun = yield from start.begin(grown)
    at.carried, at.round = at.begun.carried, Schedule(start.rounds).n_rounds
    for fitted, _ in at.begun.trees:
        at.ordered.add(fitted.trees, fitted.values)
    waiting = at.begun.trees
    while at.n_fitted < settings.n_trees:
        for _ in range(candidates.count_paid_rounds(at.n_fitted, settings.batch_size)):
            candidates.take_histogram((yield at.histogram()))
        fitted, weights = yield from grow(at, min(settings.batch_size, settings.n_trees - at.n_fitted))
        # A mean that no tree follows is not a model.
        for part in (*waiting, (fitted, weights)):
            grown.add(*part)
        waiting = ()
        at.n_fitted += fitted.trees.n_trees
        if run.loss.n_outputs:
            at.carried.take(fitted)
        _cut_again(grown, at)
    calibration, level = settings.calibration_of(run.plan), settings.level_of(run.plan)
    line = ScoreLine()
    if calibration.rounds:
        asked = {"round_number": at.round, **at.describe_ensemble()}
        line = yield from calibration.calibrate(grown, at.begun, asked)
        at.round += Schedule(calibration.rounds).n_rounds
    if level is not None:
        yield from level.calibrate(grown, at.round, at.begun.size, line, at.describe_ensemble)


def _cut_again(grown: GrowingModel, at: _Position) -> None:
    """Cut crowded features again, and write all trees in the new cells.

    The last release found the rows of these features in a few cells.
    """
    used = {
        feature: {cut for number in grown.asking[feature] for cut in find_cuts(grown.batches[number].trees, feature)}
        for feature in at.candidates.find_crowded()
    }
    edges = at.candidates.cut_again(used)
    if not edges:
        return
    before = at.run.grid
    for number in {number for feature in edges for number in grown.asking[feature]}:
        grown.batches[number] = with_edges(grown.batches[number], before, edges)
    if at.carried.update is not None:
        at.carried.update = grown.batches[-1]
    for feature, new in edges.items():
        at.ordered.cut_again(feature, before.features[feature].edges, new)
    at.run = grown.run = replace(at.run, grid=at.candidates.grid)
    at.new_edges = at.run.grid.new_edges
    at.order.ask_again(edges)


def _at_random(at: _Position, n_trees: int) -> Growth:
    run, settings, depth, first = at.run, at.settings, at.settings.max_depth, at.n_fitted
    subsets = at.order.features_of_batch(first, n_trees)
    if max(map(len, subsets)) > 1:
        depth = settings.deepest
    streams = [PublicRandom(run.structure_seed, f"tree {number}") for number in range(first, first + n_trees)]
    cuts, is_central = at.candidates.cut_table, settings.central_subsets
    trees = random_trees(streams, subsets, cuts, run.grid, depth, run.groups, is_central)
    under = {"doublings": at.begun.doublings, "baseline": at.begun.baseline}
    query = at.ask(LeafSums, n_trees, "", n_trees * trees.n_leaves, n_trees, trees=trees, **under)
    sums = yield query
    if run.plan.model.weight_update == "averaging":
        return _fit_leaves(at, trees, sums, run.sigma(query))
    rule = make_smoothing_rule(run, settings, n_trees, at.begun.doublings if run.loss.is_quadratic else 0)
    sigma = run.sigma(query)
    leaves = read_sums(sums, sigma, run.loss, n_trees)
    # The Hessians of K classes carry the noise of K sums.
    n_summed = run.loss.n_statistics - max(1, run.loss.n_outputs)
    at.candidates.take_leaves(trees, leaves.integer_hessians, sigma * math.sqrt(n_summed))
    at.order.take_leaves(leaves, rule.ridge(leaves.gradient_noise))
    mixing = None if at.classes is None else at.classes.update_and_filter(leaves, find_shapes(trees).reachable, subsets)
    weights = leaves.hessians + rule.ridge(leaves.gradient_noise)
    values = at.ordered.add(trees, compute_values(leaves, trees, rule, mixing, at.spread), weights)
    return FittedTrees(trees, values), np.maximum(leaves.integer_hessians, 0)


def _fit_leaves(at: _Position, trees: TreeBatch, sums: IntArray, sigma: float) -> tuple[FittedTrees, IntArray]:
    """Return a batch and its leaf weights by the sums of its leaves.

    Args:
        sums: int64 [B, n_leaves, n_statistics] or flattened, with noise `sigma` in each.
    """
    run, rule = at.run, make_smoothing_rule(at.run, at.settings, trees.n_trees)
    values = leaf_values(sums, sigma, run.loss, trees, rule)
    weights = leaf_weights(sums, run.loss, trees.n_trees)
    # A leaf's weight is its count for class counts, and its Hessian with its ridge for gradients.
    known = weights[..., None] / run.loss.scales[-1] + rule.ridge(sigma / float(run.loss.scales[0]))
    return FittedTrees(trees, at.ordered.add(trees, values, known)), weights


class _Batch:
    """A batch of greedy trees while it grows."""

    def __init__(self, at: _Position, n_trees: int) -> None:
        self.at, self.run = at, at.run
        seed, first = self.run.structure_seed, at.n_fitted
        features = np.array(at.order.features_of_batch(first, n_trees), dtype=np.int64)
        self.randomness = [PublicRandom(seed, f"tree {number}") for number in range(first, first + n_trees)]
        self.growing = GrowingTrees(features, at.candidates.bins(), self.run.grid.n_codes, self.run.groups)

    def ask(self, kind: type[Sums], n_entries: int, **details: Any) -> Sums:
        """Return a query of the next level; `n_entries` is per statistic in the answer."""
        growing, trees = self.growing, self.growing.trees
        return self.at.ask(
            kind,
            trees.n_trees,
            f", level {trees.depth}",
            n_entries,
            # In every tree one record adds its statistics once for each feature.
            per_record=growing.features.size,
            trees=trees,
            features=growing.features,
            bin_of_code=growing.bins.of_code,
            **details,
        )

    def rule(self, query: Query) -> SplitRule:
        """Return the rule for scoring a release's sums."""
        model, run = self.run.plan.model, self.run
        return SplitRule(
            loss=run.loss,
            leaf_ridge=model.leaf_ridge,
            noise_ridge=self.at.settings.noise_ridge,
            leaf_clip=model.leaf_clip,
            gradient_noise=run.sigma(query) / float(run.loss.scales[0]),
        )

    def coins(self, n_nodes: int) -> NDArray[np.bool_]:
        """Draw a public coin per node: bool [B, n_nodes]."""
        return np.array([[randomness.coin() for _ in range(n_nodes)] for randomness in self.randomness])


def _by_histograms(at: _Position, n_trees: int) -> Growth:
    batch = _Batch(at, n_trees)
    run, growing, depth = at.run, batch.growing, at.settings.max_depth
    n_bins, n_levels = growing.bins.n_bins[growing.features], at.settings.n_levels_asked(run.plan)
    for level in range(depth):
        if level < n_levels:
            query = batch.ask(NodeHistograms, 2**level * int(n_bins.sum()), n_bins=growing.bins.n_bins)
            histograms = pad_histograms((yield query), n_bins, 2**level, growing.bins.width)
            sigma, rule = run.sigma(query), batch.rule(query)
            if level == 0:
                _offer_candidates(batch, histograms[:, 0], sigma)
        splits = best_cuts(growing, histograms, batch.coins(2**level), rule)
        if level == depth - 1:
            leaf_sums, n_summed = sum_sides(growing, splits, histograms)
        growing.add_level(splits)
    # A leaf adds up several bins, each with its own noise.
    noise = sigma * math.sqrt(max(1.0, float(n_summed.sum()) / n_summed.size))
    return _fit_leaves(at, growing.trees, leaf_sums, noise)


def _offer_candidates(batch: _Batch, roots: IntArray, sigma: float) -> None:
    """Refine the candidates of the next batch by the Hessians of the roots' histograms.

    Args:
        roots: int64 [B, k, width, S].
    """
    if batch.run.plan.model.weight_update == "averaging" or not batch.at.candidates.reads_splits:
        return
    first = max(1, batch.run.loss.n_outputs)
    hessians = roots[..., first:].sum(axis=3)
    n_summed = roots.shape[3] - first
    features = batch.growing.features
    for feature in sorted(set(features.ravel().tolist())):
        # The trees of a batch have the same records in their roots: their histograms add up.
        tree, slot = np.nonzero(features == feature)
        n_values = int(batch.growing.bins.n_bins[feature]) - 1
        added = hessians[tree, slot, :n_values].sum(axis=0)
        batch.at.candidates.take_bins(feature, added, sigma * math.sqrt(n_summed * len(tree)))


def _by_draws(at: _Position, n_trees: int) -> Growth:
    batch = _Batch(at, n_trees)
    run, growing = at.run, batch.growing
    features, bins, n_features = growing.features, growing.bins, growing.features.shape[1]
    # Per tree and feature an order of its categories: float64 [B, 1, k, width]; numeric features need none.
    keys = np.zeros((n_trees, 1, n_features, bins.width))
    for tree, slot in np.argwhere(bins.is_categorical[features]).tolist():
        n_bins = int(bins.n_bins[features[tree, slot]])
        keys[tree, 0, slot, :n_bins] = batch.randomness[tree].permutation(n_bins)
    for level in range(at.settings.max_depth):
        drawn = _draw(batch, keys)
        query = batch.ask(SplitSums, n_trees * 2**level * n_features * 2, goes_left=drawn.astype(np.uint8))
        sums = (yield query).reshape(n_trees, 2**level, n_features, 2, run.loss.n_statistics)
        splits, leaf_sums = choose_drawn(growing, drawn, sums, batch.rule(query))
        growing.add_level(splits)
    return _fit_leaves(at, growing.trees, leaf_sums, run.sigma(query))


def _draw(batch: _Batch, keys: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Draw a split per node and feature among those that divide it: bool [B, n_nodes, k, width]."""
    growing = batch.growing
    n_values = growing.values.sum(axis=3)
    cuts = np.zeros(n_values.shape, dtype=np.int64)
    for tree, node, slot in np.argwhere(n_values > 1).tolist():
        cuts[tree, node, slot] = batch.randomness[tree].below(int(n_values[tree, node, slot]) - 1)
    drawn: NDArray[np.bool_] = np.zeros(growing.alive.shape, dtype=bool)
    goes = np.arange(growing.bins.width) <= cuts[..., None]
    np.put_along_axis(drawn, growing.order(keys), goes, axis=3)
    coins = batch.coins(2**growing.trees.depth)
    drawn = np.where(growing.missing, coins[:, :, None, None], drawn)
    return np.asarray(drawn | (n_values <= 1)[..., None])
