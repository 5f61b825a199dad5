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

import numpy as np
from numpy.typing import NDArray

from hedgerow.privacy.calibration import integer_sigma
from hedgerow.protocol.plan import Plan
from hedgerow.protocol.queries import FittedTrees, Histogram, IntVector, LeafSums, Purpose, Query, TreeBatch
from hedgerow.training.candidate_source import CandidateSource
from hedgerow.training.feature_order import FeatureOrder
from hedgerow.training.settings import Settings, resolve
from hedgerow.trees.ensemble import Ensemble, link_of
from hedgerow.trees.grid import Grid, build_grid
from hedgerow.trees.leaves import LeafRule, leaf_values, leaf_weights, read_sums
from hedgerow.trees.losses import SCORE_LIMIT, Loss
from hedgerow.trees.public_random import PublicRandom
from hedgerow.trees.structures import concatenate, random_tree

Program = Generator[Query, IntVector, Ensemble]
"""Yields queries, receives the noisy sum of each, returns the model."""


@dataclass(frozen=True, eq=False)
class _Run:
    """What stays fixed while a program runs."""

    plan: Plan
    settings: Settings
    grid: Grid
    loss: Loss

    def sigma(self, query: Query) -> float:
        """Noise of a release in integer units; 0 without privacy."""
        if query.noise_multiplier == 0:
            return 0.0
        return float(integer_sigma(query.noise_multiplier, query.sensitivity_squared))


def boosted_trees(plan: Plan, settings: Settings | None = None) -> Program:
    """The program of a plan with totally random trees.

    Args:
        plan: the plan.
        settings: its resolved settings, or None to resolve them here.
    """
    settings = settings or resolve(plan)
    run = _Run(plan, settings, build_grid(plan), settings.loss(plan))
    candidates = CandidateSource(plan, run.grid)
    order = FeatureOrder(plan.model.structure_seed, settings, run.grid.n_features)
    ensemble = _empty_ensemble(run)
    update: FittedTrees | None = None
    score_bound, exchange = 0, 0
    while ensemble.n_trees < settings.n_trees:
        first = ensemble.n_trees
        for _ in range(candidates.paid_rounds_before(first, settings.batch_size)):
            candidates.take_histogram((yield _histogram_query(run, candidates, exchange, update, first, score_bound)))
            update, exchange = None, exchange + 1
        n_trees = min(settings.batch_size, settings.n_trees - first)
        subsets = [order.features_of(number) for number in range(first, first + n_trees)]
        trees = _draw_trees(run, candidates, subsets, first)
        query = _leaf_query(run, trees, exchange, update, first, score_bound)
        sums = yield query
        rule = _rule(run, n_trees)
        fitted = FittedTrees(trees, leaf_values(sums, run.sigma(query), run.loss, trees, rule))
        if run.plan.model.weight_update != "averaging":
            leaves = read_sums(sums, run.sigma(query), run.loss, n_trees)
            # The Hessians of K classes carry the noise of K sums.
            n_summed = run.loss.n_statistics - max(1, run.loss.n_outputs)
            hessian_noise = run.sigma(query) * math.sqrt(n_summed)
            candidates.take_leaves(trees, _integer_hessians(run, sums, n_trees), hessian_noise)
            order.take_leaves(trees, leaves, rule.ridge(leaves.gradient_noise), subsets)
        ensemble = ensemble.extended(fitted, leaf_weights(sums, run.loss, n_trees, plan.model.weight_update))
        if run.loss.n_outputs:
            update = fitted
            score_bound = min(SCORE_LIMIT, score_bound + int(np.abs(fitted.values).max(axis=(1, 2)).sum()))
        exchange += 1
    return ensemble


def _empty_ensemble(run: _Run) -> Ensemble:
    return Ensemble(run.grid, None, run.plan.label.n_outputs, link_of(run.plan))


def _draw_trees(run: _Run, candidates: CandidateSource, subsets: list[list[int]], first: int) -> TreeBatch:
    trees = []
    for number, features in enumerate(subsets, start=first):
        randomness = PublicRandom(run.plan.model.structure_seed, f"tree {number}")
        cuts = candidates.cuts(features)
        trees.append(random_tree(randomness, features, cuts, run.grid, run.settings.max_depth))
    return concatenate(trees)


def _leaf_query(
    run: _Run, trees: TreeBatch, exchange: int, update: FittedTrees | None, first: int, score_bound: int
) -> LeafSums:
    rows = run.plan.privacy.max_rows_per_unit
    n_trees = trees.n_trees
    return LeafSums(
        purpose=Purpose(exchange, "LeafSums", f"trees {first}-{first + n_trees - 1}"),
        length=n_trees * trees.n_leaves * run.loss.n_statistics,
        bound=run.loss.bound(),
        sensitivity_squared=run.loss.sensitivity_squared(score_bound) * n_trees * rows * rows,
        noise_multiplier=run.settings.noise_multiplier / math.sqrt(n_trees),
        update=update,
        ensemble_size=first - (update.trees.n_trees if update else 0),
        trees=trees,
        score_bound=score_bound,
    )


def _histogram_query(
    run: _Run, candidates: CandidateSource, exchange: int, update: FittedTrees | None, first: int, score_bound: int
) -> Histogram:
    rows = run.plan.privacy.max_rows_per_unit
    features = tuple(range(run.grid.n_features))
    tables = tuple(candidates.bin_of_code(feature) for feature in features)
    n_bins = tuple(int(table.max()) + 1 for table in tables)
    # One record adds one Hessian to one bin of every feature.
    largest = run.loss.largest_statistic(run.loss.n_statistics - 1)
    return Histogram(
        purpose=Purpose(exchange, "Histogram", f"candidates before tree {first}"),
        length=sum(n_bins),
        bound=largest,
        sensitivity_squared=largest * largest * len(features) * rows * rows,
        noise_multiplier=run.settings.noise_multiplier / math.sqrt(len(features)),
        update=update,
        ensemble_size=first - (update.trees.n_trees if update else 0),
        features=features,
        bin_of_code=tables,
        n_bins=n_bins,
        score_bound=score_bound,
    )


def _rule(run: _Run, n_trees: int) -> LeafRule:
    model = run.plan.model
    averaging = model.weight_update == "averaging"
    return LeafRule(
        weight_update=model.weight_update,
        learning_rate=run.settings.learning_rate,
        leaf_ridge=model.leaf_ridge,
        noise_ridge=run.settings.noise_ridge,
        leaf_clip=model.leaf_clip,
        divisor=run.settings.n_trees if averaging else n_trees,
        smooths=run.settings.interaction == "adaptive",
        largest=(2**31 - 1) // run.settings.n_trees,
    )


def _integer_hessians(run: _Run, sums: IntVector, n_trees: int) -> NDArray[np.int64]:
    """Per tree and leaf the released Hessians, in integer units: int64 [n_trees, n_leaves]."""
    per_leaf = sums.reshape(n_trees, -1, run.loss.n_statistics)
    return np.asarray(per_leaf[:, :, max(1, run.loss.n_outputs) :].sum(axis=2), dtype=np.int64)
