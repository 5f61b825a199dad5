# SPDX-License-Identifier: Apache-2.0
"""Boosted random oblivious trees: every level of a tree asks one random question of all records.

    [model]
    algorithm = "oblivious"

    [oblivious]
    levels = 3

A tree's structure is public randomness, so it costs nothing. Its leaves are asked for by `LeafSums`, one release a
tree: a record adds its statistics to one leaf, so the squared sensitivity of a release is that of the plan's loss.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from hedgerow.methods.api import (
    AlikeRounds,
    FittedTrees,
    GrowingModel,
    IntVector,
    LeafSums,
    Method,
    Parts,
    Plan,
    Program,
    PublicRandom,
    Query,
    Run,
    Schedule,
    Settings,
    TreeBatch,
    add_method,
    calibrate_noise,
    define_field,
    grow_by,
    grow_score_bound,
    integer,
    leaf_values,
    leaf_weights,
    make_leaf_rule,
    make_trees,
    own_section,
    value_or,
)

__version__ = "0.1"


@dataclass(frozen=True, kw_only=True)
class Oblivious:
    """The section [oblivious].

    Attributes:
        levels: questions on the way to a leaf.
    """

    levels: int = define_field(integer(1, 8), 3)


@dataclass(frozen=True, kw_only=True)
class ObliviousSettings(Settings):
    """Numbers in place of every "auto": those that all methods have, and what is this method's own."""

    learning_rate: float

    def schedule(self, plan: Plan) -> Schedule:
        """One release for each tree. The sensitivity is least at the start, where all scores are 0."""
        loss, rows = self.loss(plan), plan.privacy.rows_per_unit
        alike = AlikeRounds.of(
            LeafSums,
            length=2**self.max_depth * loss.n_statistics,
            bound=loss.bound(),
            sensitivity_squared=loss.norm_squared * rows * rows,
            least_squared=loss.sensitivity_squared(0) * rows * rows,
            noise_multiplier=self.noise_multiplier,
            count=self.n_trees,
        )
        return Schedule((alike,))


def resolve(plan: Plan) -> ObliviousSettings:
    """Decide every "auto" of a plan, and calibrate the noise: each tree takes the same part of the budget."""
    settings = ObliviousSettings(
        n_trees=value_or(plan.model.n_trees, 60),
        max_depth=own_section(Oblivious, plan).levels,
        learning_rate=value_or(plan.model.learning_rate, 0.3),
    )
    if math.isinf(plan.privacy.epsilon):
        return settings
    return replace(settings, noise_multiplier=calibrate_noise(plan, settings, weight=float(settings.n_trees)))


def draw_tree(run: Run, number: int) -> TreeBatch:
    """A tree of one random feature and one random cut for each level, from the plan's public seed."""
    depth, grid = run.settings.max_depth, run.grid
    random, shape = PublicRandom(run.structure_seed, f"oblivious {number}"), (1, 2**depth - 1)
    feature, cut = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    for level in range(depth):
        asked = random.below(grid.n_features)
        nodes = slice(2**level - 1, 2 ** (level + 1) - 1)
        feature[:, nodes] = asked
        cut[:, nodes] = random.below(max(1, grid.features[asked].n_cells - 1))
    return make_trees(grid, feature, cut)


def boost(grown: GrowingModel, settings: ObliviousSettings) -> Generator[Query, IntVector, None]:
    """For each tree: ask for its leaves' sums, and make them values. The next query carries them to the nodes."""
    run, rows = grown.run, grown.run.plan.privacy.rows_per_unit
    rule = make_leaf_rule(run, settings.learning_rate, noise_ridge=1.0)
    update, score_bound = None, 0
    for number in range(settings.n_trees):
        trees = draw_tree(run, number)
        query = LeafSums(
            purpose=LeafSums.purpose_of(number, f"tree {number}"),
            length=trees.n_leaves * run.loss.n_statistics,
            bound=run.loss.bound(),
            sensitivity_squared=run.loss.sensitivity_squared(score_bound) * rows * rows,
            noise_multiplier=settings.noise_multiplier,
            update=update,
            # Trees in the nodes' scores before this update: all but the last.
            ensemble_size=max(0, number - 1),
            trees=trees,
            score_bound=score_bound,
        )
        sums = yield query
        update = FittedTrees(trees, leaf_values(sums, run.sigma(query), run.loss, trees, rule))
        grown.add(update, leaf_weights(sums, run.loss, 1))
        score_bound = grow_score_bound(score_bound, update)


def program(plan: Plan, settings: ObliviousSettings) -> Program:
    """The program of a plan."""
    return grow_by(Run.from_plan(plan, settings), lambda grown: boost(grown, settings))


METHOD = Method(
    section=Oblivious,
    model_fields=frozenset({"n_trees", "learning_rate", "weight_update", "leaf_ridge", "leaf_clip", "structure_seed"}),
    labels=("binary", "regression"),
    reads_loss=True,
    version=__version__,
    parts=lambda: Parts(resolve, program),
)
add_method("oblivious", METHOD)
