"""Boosted totally random trees: the framework of Maddock et al., CCS'22, as one generator of queries.

    for every batch of B trees:
        draw B structures from public randomness and the candidates so far
        yield LeafSums(structures, the last batch's values)  ->  noisy sums per leaf
        values = rule(noisy sums);   candidates, order of features = what the sums say

Everything after a release is post-processing. The generator is deterministic: any party that holds the plan and the
releases computes the same queries and the same model, so a node can check that it is asked what the plan says.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import FittedTrees, IntVector, Query, TreeBatch
from hedgerow.training.candidates import CandidateSource
from hedgerow.training.features import FeatureOrder
from hedgerow.training.settings import Settings, features_asked, n_levels_asked
from hedgerow.training.steps import Grown, Program, Run, grown_by, grown_score_bound, histogram_query, leaf_rule
from hedgerow.trees.greedy_trees import (
    GrowingTrees,
    SplitRule,
    best_cuts,
    best_of_drawn,
    padded,
    sums_of_sides,
)
from hedgerow.trees.histograms import NodeHistograms, SplitSums
from hedgerow.trees.leaf_sums import LeafSums
from hedgerow.trees.leaves import leaf_values, leaf_weights, read_sums, values_of
from hedgerow.trees.random_trees import PublicRandom, random_trees, words_of_trees


def boosting(plan: Plan, settings: Settings) -> Program:
    """Boosted trees: greedy ones where splits are chosen, totally random ones where there is nothing to choose.

    Partially random splits of a single feature leave nothing to choose.
    """
    method = plan.model.split_method
    is_greedy = method == "hist" or (method == "partially_random" and features_asked(plan, settings) > 1)
    return grown_by(Run.of(plan, settings), boost_greedily if is_greedy else _boost)


def _boost(grown: Grown) -> Generator[Query, IntVector, None]:
    run, settings = grown.run, grown.run.settings
    candidates = CandidateSource(run.plan, run.grid)
    order = FeatureOrder(run.structure_seed, settings, run.grid.n_features)
    n_fitted = 0
    update: FittedTrees | None = None
    score_bound, exchange = 0, 0
    while n_fitted < settings.n_trees:
        first = n_fitted
        for _ in range(candidates.paid_rounds_before(first, settings.batch_size)):
            candidates.take_histogram((yield histogram_query(run, candidates, exchange, update, first, score_bound)))
            update, exchange = None, exchange + 1
        n_trees = min(settings.batch_size, settings.n_trees - first)
        subsets = order.features_of_batch(first, n_trees)
        words = words_of_trees(run.structure_seed, first, subsets, run.grid, settings.max_depth)
        trees = random_trees(words, subsets, candidates.cut_table, run.grid, settings.max_depth)
        query = _leaf_query(run, trees, exchange, update, first, score_bound)
        sums = yield query
        rule = leaf_rule(run, n_trees)
        sigma = run.sigma(query)
        if run.plan.model.weight_update == "averaging":
            fitted = FittedTrees(trees, leaf_values(sums, sigma, run.loss, trees, rule))
            grown.add(fitted, leaf_weights(sums, run.loss, n_trees, "averaging"))
        else:
            leaves = read_sums(sums, sigma, run.loss, n_trees)
            fitted = FittedTrees(trees, values_of(leaves, trees, rule))
            # The Hessians of K classes carry the noise of K sums.
            n_summed = run.loss.n_statistics - max(1, run.loss.n_outputs)
            hessian_noise = sigma * math.sqrt(n_summed)
            candidates.take_leaves(trees, leaves.integer_hessians, hessian_noise)
            order.take_leaves(leaves, rule.ridge(leaves.gradient_noise))
            grown.add(fitted, np.maximum(leaves.integer_hessians, 0))
        n_fitted += n_trees
        if run.loss.n_outputs:
            update = fitted
            score_bound = grown_score_bound(score_bound, fitted)
        exchange += 1


def _leaf_query(
    run: Run, trees: TreeBatch, exchange: int, update: FittedTrees | None, first: int, score_bound: int
) -> LeafSums:
    rows = run.plan.privacy.rows_per_unit
    n_trees = trees.n_trees
    return LeafSums(
        purpose=LeafSums.purpose_of(exchange, f"trees {first}-{first + n_trees - 1}"),
        length=n_trees * trees.n_leaves * run.loss.n_statistics,
        bound=run.loss.bound(),
        sensitivity_squared=run.loss.sensitivity_squared(score_bound) * n_trees * rows * rows,
        noise_multiplier=run.settings.noise_multiplier / math.sqrt(n_trees),
        update=update,
        ensemble_size=first - (update.trees.n_trees if update else 0),
        trees=trees,
        score_bound=score_bound,
    )


# Greedy trees

IntArray = NDArray[np.int64]
Growth = Generator[Query, IntVector, "_Grown"]


@dataclass(eq=False)
class _Position:
    """How far a run has come."""

    n_fitted: int = 0
    exchange: int = 0
    score_bound: int = 0
    update: FittedTrees | None = None

    def asked(self) -> None:
        """A query has been answered: the next one carries nothing that this one did."""
        self.update = None
        self.exchange += 1


@dataclass(frozen=True, eq=False)
class _Grown:
    """A batch whose levels are complete: int64 [B, n_leaves, n_statistics] and the noise of one of these sums."""

    growing: GrowingTrees
    leaf_sums: IntArray
    sigma: float


@dataclass(frozen=True, eq=False)
class _Batch:
    """What stays fixed while a batch grows."""

    run: Run
    candidates: CandidateSource
    growing: GrowingTrees
    randomness: list[PublicRandom]
    position: _Position

    def ask(self, kind: type[NodeHistograms] | type[SplitSums], n_entries: int, **details: Any) -> Query:
        """A query of the next level; `n_entries` per statistic in the answer."""
        position, run = self.position, self.run
        n_trees, n_features = self.growing.features.shape
        rows = run.plan.privacy.rows_per_unit
        first, trees = position.n_fitted, self.growing.trees
        per_record = n_trees * n_features
        subject = f"trees {first}-{first + n_trees - 1}, level {trees.depth}"
        return kind(
            purpose=kind.purpose_of(position.exchange, subject),
            length=n_entries * run.loss.n_statistics,
            bound=run.loss.bound(),
            # In every tree one record adds its statistics once for each feature.
            sensitivity_squared=run.loss.sensitivity_squared(position.score_bound) * per_record * rows * rows,
            noise_multiplier=run.settings.noise_multiplier / math.sqrt(per_record),
            update=position.update,
            ensemble_size=first - (position.update.trees.n_trees if position.update else 0),
            trees=trees,
            features=self.growing.features,
            bin_of_code=self.growing.bins.of_code,
            score_bound=position.score_bound,
            **details,
        )

    def rule(self, query: Query) -> SplitRule:
        """How a release's sums are scored."""
        model, run = self.run.plan.model, self.run
        return SplitRule(
            loss=run.loss,
            is_averaging=model.weight_update == "averaging",
            leaf_ridge=model.leaf_ridge,
            noise_ridge=run.settings.noise_ridge,
            leaf_clip=model.leaf_clip,
            gradient_noise=run.sigma(query) / float(run.loss.scales[0]),
        )

    def coins(self, n_nodes: int) -> NDArray[np.bool_]:
        """A public coin per node: bool [B, n_nodes]."""
        return np.array([[randomness.coin() for _ in range(n_nodes)] for randomness in self.randomness])


def boost_greedily(whole: Grown) -> Generator[Query, IntVector, None]:
    """Add trees by histograms or partially random splits."""
    run, plan = whole.run, whole.run.plan
    candidates = CandidateSource(plan, run.grid)
    order = FeatureOrder(run.structure_seed, run.settings, run.grid.n_features)
    position = _Position()
    grow = _by_histograms if plan.model.split_method == "hist" else _by_draws
    while position.n_fitted < run.settings.n_trees:
        for _ in range(candidates.paid_rounds_before(position.n_fitted, run.settings.batch_size)):
            candidates.take_histogram((yield _candidate_query(run, candidates, position)))
            position.asked()
        n_trees = min(run.settings.batch_size, run.settings.n_trees - position.n_fitted)
        grown = yield from grow(_next_batch(run, candidates, order, position, n_trees))
        sums = grown.leaf_sums.reshape(-1)
        trees = grown.growing.trees
        fitted = FittedTrees(trees, leaf_values(sums, grown.sigma, run.loss, trees, leaf_rule(run, n_trees)))
        whole.add(fitted, leaf_weights(sums, run.loss, n_trees, plan.model.weight_update))
        position.n_fitted += n_trees
        if run.loss.n_outputs:
            position.update = fitted
            position.score_bound = grown_score_bound(position.score_bound, fitted)


def _candidate_query(run: Run, candidates: CandidateSource, position: _Position) -> Query:
    return histogram_query(run, candidates, position.exchange, position.update, position.n_fitted, position.score_bound)


def _next_batch(
    run: Run, candidates: CandidateSource, order: FeatureOrder, position: _Position, n_trees: int
) -> _Batch:
    numbers = range(position.n_fitted, position.n_fitted + n_trees)
    features = np.array([order.features_of(number) for number in numbers], dtype=np.int64)
    randomness = [PublicRandom(run.structure_seed, f"tree {number}") for number in numbers]
    growing = GrowingTrees(features, candidates.bins(), run.grid.n_codes)
    return _Batch(run, candidates, growing, randomness, position)


def _by_histograms(batch: _Batch) -> Growth:
    run, growing = batch.run, batch.growing
    n_levels = n_levels_asked(run.plan, run.settings)
    histograms, sigma, rule, sides = np.zeros(0, dtype=np.int64), 0.0, None, None
    for level in range(run.settings.max_depth):
        if level < n_levels:
            n_entries = 2**level * int(growing.bins.n_bins[growing.features].sum())
            query = batch.ask(NodeHistograms, n_entries, n_bins=growing.bins.n_bins)
            released = yield query
            batch.position.asked()
            n_bins = growing.bins.n_bins[growing.features]
            histograms = padded(released, n_bins, 2**level, growing.bins.width)
            sigma, rule = run.sigma(query), batch.rule(query)
            if level == 0:
                _offer_candidates(batch, histograms[:, 0], sigma)
        if rule is None:  # the first level always asks
            raise ValueError("no histogram was asked for")
        splits = best_cuts(growing, histograms, batch.coins(2**level), rule)
        if level == run.settings.max_depth - 1:
            sides = sums_of_sides(growing, splits, histograms)
        growing.add_level(splits)
    if sides is None:  # a tree has a level at least
        raise ValueError("a tree of no levels has no leaves")
    leaf_sums, n_bins = sides
    # A leaf adds up several bins, each with its own noise.
    return _Grown(growing, leaf_sums, sigma * math.sqrt(max(1.0, float(n_bins.sum()) / n_bins.size)))


def _offer_candidates(batch: _Batch, roots: IntArray, sigma: float) -> None:
    """The Hessians of the roots' histograms refine the candidates of the next batch; int64 [B, k, width, S]."""
    if batch.run.plan.model.weight_update == "averaging" or not batch.candidates.reads_splits:
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
        batch.candidates.take_bins(feature, added, sigma * math.sqrt(n_summed * len(tree)))


def _by_draws(batch: _Batch) -> Growth:
    run, growing = batch.run, batch.growing
    n_trees, n_features = growing.features.shape
    keys = _category_orders(batch)
    leaf_sums, sigma = np.zeros(0, dtype=np.int64), 0.0
    for level in range(run.settings.max_depth):
        drawn = _draw(batch, keys)
        n_entries = n_trees * 2**level * n_features * 2
        query = batch.ask(SplitSums, n_entries, goes_left=drawn.astype(np.uint8))
        released = yield query
        batch.position.asked()
        sums = released.reshape(n_trees, 2**level, n_features, 2, run.loss.n_statistics)
        splits, leaf_sums = best_of_drawn(growing, drawn, sums, batch.rule(query))
        growing.add_level(splits)
        sigma = run.sigma(query)
    return _Grown(growing, leaf_sums, sigma)


def _category_orders(batch: _Batch) -> NDArray[np.float64]:
    """Per tree and feature an order of its categories: float64 [B, 1, k, width]; numeric features need none."""
    features, bins = batch.growing.features, batch.growing.bins
    keys = np.zeros((*features.shape, bins.width))
    for tree, slot in np.argwhere(bins.is_categorical[features]).tolist():
        n_bins = int(bins.n_bins[features[tree, slot]])
        keys[tree, slot, :n_bins] = batch.randomness[tree].permutation(n_bins)
    return keys[:, None]


def _draw(batch: _Batch, keys: NDArray[np.float64]) -> NDArray[np.bool_]:
    """One split per node and feature, uniformly among those that divide it: bool [B, n_nodes, k, width]."""
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
