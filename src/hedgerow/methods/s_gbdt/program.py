# SPDX-License-Identifier: Apache-2.0
"""S-GBDT (Kirschte, Peinemann et al., arXiv 2309.12041v1) as one generator of queries.

    yield LabelSums                    ->  noisy sum of the labels, noisy number of records: the initial score
                                           (then, or for classes instead, a linear start: methods/linear_start.py)
    for every round, regular or extra:
        draw a tree from public randomness
        yield SampledLeafSums(tree)    ->  per leaf the noisy sum of clipped gradients and the noisy support, over a
                                           Poisson sample of the records that their nodes' filters let through
        value = - learning_rate * sum / max(lambda, support)
    yield SpreadSums, LineSums         ->  of numbers, the line that finished scores are put on (methods/line.py)

This is algorithm 9, the distributed one, over sums: where the paper's users each send finished leaf values, whose mean
weighs a site of ten records like one of a million, here the sums are added under masks and divided once. So the model
does not depend on who holds which record, and there is noise for one data set instead of one per site. The initial
score divides by a noisy count; the paper's divides by the exact one, which "add or remove" does not leave public.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hedgerow.losses.tables import SCORE_UNIT, STEP_BITS, STEPS, logistic
from hedgerow.methods.line import calibrate_by_spread, divide_line_noise
from hedgerow.methods.linear_start import ask_labels, make_constant_trees, read_mean
from hedgerow.methods.s_gbdt import SGbdt
from hedgerow.methods.s_gbdt.settings import (
    SGbdtSettings,
    build_start,
    list_start_rounds,
    round_filter,
    start_statistics,
)
from hedgerow.methods.s_gbdt.trees import SampledLeafSums, uniform_tree
from hedgerow.plan.plan import Plan
from hedgerow.privacy.schedule import Schedule
from hedgerow.protocol.queries import FittedTrees, IntVector, Query, TreeBatch
from hedgerow.training.candidates import CandidateSource
from hedgerow.training.features import FeatureOrder
from hedgerow.training.steps import (
    EndedEarly,
    GrowingModel,
    NodeTrees,
    Program,
    Run,
    empty_ensemble,
    largest_value,
    make_leaf_rule,
)
from hedgerow.trees.leaves import leaf_values
from hedgerow.trees.random_trees import PublicRandom, random_tree

INITIAL_REACH = 4.0
"""Largest initial log-odds: beyond, a noisy share of a class says nothing."""


def s_gbdt(plan: Plan, settings: SGbdtSettings) -> Program:
    """Run the program of a plan with `model.algorithm = "s-gbdt"`."""
    grown = GrowingModel(Run.from_plan(plan, settings))
    with suppress(EndedEarly):
        yield from _boost(grown, settings)
    if len(grown.batches) == 1 and settings.s_gbdt.has_mean:
        # The initial score alone says the same of every record: that is not a model.
        return empty_ensemble(grown.run)
    return grown.ensemble()


def _boost(grown: GrowingModel, settings: SGbdtSettings) -> Generator[Query, IntVector, None]:
    run, plan = grown.run, grown.run.plan
    terms = settings.s_gbdt
    source, ordered = _Structures(run), run.make_ordered_sum()
    carried = NodeTrees()
    mean_noise, linear_noise, line_noise = terms.multipliers
    n_before = Schedule(tuple(list_start_rounds(plan, terms))).n_rounds
    if terms.has_mean:
        released = yield ask_labels(start_statistics(plan), mean_noise, 1)
        mean = _initial_score(run, released)
        support = np.zeros((1, mean.trees.n_leaves), dtype=np.int64)
        support[0, 0] = max(0, int(released[1]))
        grown.add(mean, support)
        carried.take(mean)
    if terms.is_linear:
        first = int(terms.has_mean)
        start = yield from build_start(plan).ask(run, linear_noise, largest_value(run), first, carried)
        grown.add(start, None)
        ordered.add(start.trees, start.values)
    for number in range(terms.n_rounds):
        trees = source.draw(number)
        query = SampledLeafSums(
            purpose=SampledLeafSums.purpose_of(n_before + number, f"tree {number}"),
            length=2 * trees.n_leaves,
            bound=run.loss.bound(),
            # Use the loss's largest norm, not that of the scores so far: the filter's budget assumes one ratio of
            # noise to norm.
            sensitivity_squared=run.loss.norm_squared,
            noise_multiplier=settings.noise_multiplier,
            **carried.send(),
            trees=trees,
            score_bound=0,
            sampling_threshold=terms.sampling_threshold,
            filter=round_filter(plan, terms, settings.noise_multiplier, number),
        )
        sums = yield query
        support = np.maximum(sums.reshape(1, -1, 2)[:, :, 1:], 0)
        weights = support / run.loss.scales[1] + plan.model.leaf_ridge
        fitted = FittedTrees(trees, ordered.add(trees, _values(run, settings, sums, run.sigma(query), trees), weights))
        source.take(number, trees, sums, run.sigma(query))
        grown.add(fitted, support[:, :, 0])
        carried.take(fitted)
    if terms.has_line:
        round_number, centre = n_before + terms.n_rounds, int(grown.batches[0].values[0, 0, 0])
        yield from calibrate_by_spread(grown, round_number, centre, divide_line_noise(line_noise), carried)


class _Structures:
    """The source of the trees' structures."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._is_cyclical = SGbdt.of(run.plan).splits == "cyclical"
        if self._is_cyclical:
            self._candidates = CandidateSource(run.plan, run.grid)
            self._order = FeatureOrder(run.structure_seed, run.grid.n_features, run.settings.n_trees)

    def draw(self, number: int) -> TreeBatch:
        """Draw the structure of one tree, from public randomness and earlier releases."""
        run = self._run
        randomness = PublicRandom(run.structure_seed, f"tree {number}")
        if not self._is_cyclical:
            return uniform_tree(randomness, run.plan, run.grid, run.settings.max_depth, run.groups)
        features, depth = self._order.features_of(number), run.settings.max_depth
        return random_tree(randomness, features, self._candidates.cuts(features), run.grid, depth, run.groups)

    def take(self, number: int, trees: TreeBatch, sums: IntVector, sigma: float) -> None:
        """Let the candidates follow the released supports."""
        if self._is_cyclical:
            self._candidates.take_leaves(trees, sums.reshape(1, -1, 2)[:, :, 1], sigma)


def _values(run: Run, settings: SGbdtSettings, sums: IntVector, sigma: float, trees: TreeBatch) -> NDArray[np.int32]:
    """Return leaf values: int32 [1, n_leaves, 1]; everything here is post-processing."""
    model = run.plan.model
    if SGbdt.of(run.plan).leaf_rule == "shrunk":
        rule = make_leaf_rule(run, settings.learning_rate, settings.noise_ridge)
        rule = replace(rule, weight_update="gradient", smooths=True)
        return leaf_values(sums, sigma, run.loss, trees, rule)
    real = sums.reshape(1, -1, 2) / run.loss.scales
    # lambda = 0 leaves no bound on a quotient; half a record is the least that a leaf can hold of one.
    support = np.maximum(real[:, :, 1:], max(model.leaf_ridge, 0.5))
    steps = np.clip(real[:, :, :1] / support, -model.leaf_clip, model.leaf_clip)
    reach = largest_value(run) / SCORE_UNIT
    values = np.clip(-settings.learning_rate * steps, -reach, reach)
    return np.rint(values * SCORE_UNIT).astype(np.int32)


def _initial_score(run: Run, released: IntVector) -> FittedTrees:
    """Return the mean label, or the log-odds of its class, as a tree of one value."""
    mean = read_mean(released, start_statistics(run.plan))
    if run.plan.label.kind.is_number:
        value = min(max(mean, -1.0), 1.0)
    else:
        # From even chances on, the first score whose probability reaches the share.
        upper = logistic(STEPS + 1, SCORE_UNIT >> STEP_BITS)[STEPS // 2 :]
        steps = int(np.searchsorted(upper, abs(mean) + 0.5))
        value = math.copysign(min(steps / (SCORE_UNIT >> STEP_BITS), INITIAL_REACH), mean)
    return make_constant_trees(run.grid, run.settings.max_depth, value, largest_value(run))
