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

import numpy as np

from hedgerow.methods.boosting.greedy import boost_greedily
from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import FittedTrees, IntVector, Query, TreeBatch
from hedgerow.training.candidates import CandidateSource
from hedgerow.training.features import FeatureOrder
from hedgerow.training.settings import Settings, features_asked
from hedgerow.training.steps import Grown, Program, Run, grown_by, grown_score_bound, histogram_query, leaf_rule
from hedgerow.trees.leaf_sums import LeafSums
from hedgerow.trees.leaves import leaf_values, leaf_weights, read_sums, values_of
from hedgerow.trees.random_trees import random_trees, words_of_trees


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
