# SPDX-License-Identifier: Apache-2.0
"""The parts of every program: what is fixed, what it has so far, and the rule for leaves."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.losses.survival import Baseline
from hedgerow.losses.tables import SCORE_LIMIT, Loss
from hedgerow.plan.plan import Plan
from hedgerow.privacy.calibration import integer_sigma
from hedgerow.protocol.groups import median_noise_factor
from hedgerow.protocol.queries import FittedTrees, IntVector, Query
from hedgerow.training.settings import Settings
from hedgerow.trees.binning import Grid, build_grid
from hedgerow.trees.constraints import Directions, OrderedSum, build_groups
from hedgerow.trees.ensemble import Ensemble, Level, make_empty_ensemble
from hedgerow.trees.leaves import LeafRule, largest_sum
from hedgerow.trees.random_trees import deepen

Program = Generator[Query, IntVector, Ensemble]
"""Yields queries, receives the noisy sum of each, returns the model.

Where `EndedEarly` is thrown into it in place of a release, it returns the model of the releases that it was given.
"""


class EndedEarly(Exception):
    """Thrown into a program when no further release will come."""


Result = TypeVar("Result")


def play(program: Generator[Query, IntVector, Result], answer: Callable[[Query], IntVector]) -> Result:
    """Run a program: give it the answer to each of its queries, and return its result."""
    released: Any = None
    while True:
        try:
            query = program.send(released)
        except StopIteration as finished:
            result: Result = finished.value
            return result
        released = answer(query)


@dataclass(frozen=True, eq=False)
class Run:
    """The fixed parts of a run while its program runs."""

    plan: Plan
    settings: Settings
    grid: Grid
    loss: Loss

    @property
    def structure_seed(self) -> int:
        """The seed of the trees' structure; ValueError when the sites have not drawn it yet."""
        seed = self.plan.model.structure_seed
        if isinstance(seed, str):
            raise ValueError("a program needs the seed that the sites have drawn: see Plan.with_structure_seed")
        return seed

    @cached_property
    def directions(self) -> Directions | None:
        """The direction of scores with each feature; None if the plan gives no direction."""
        return Directions.from_plan(self.plan, self.grid)

    def make_ordered_sum(self) -> OrderedSum:
        """Return a sum of trees that keeps these directions, without a tree yet."""
        return OrderedSum(self.directions, self.grid.n_codes)

    @cached_property
    def groups(self) -> NDArray[np.bool_]:
        """The groups of features that may meet on a path: bool [n_groups, n_features]."""
        return build_groups(self.plan)

    def sigma(self, query: Query) -> float:
        """Return the standard deviation of a release's noise in integer units; 0 without privacy.

        In the local model every record adds as much noise, and the plan's declared number stands for that of the
        records.
        """
        if query.noise_multiplier == 0:
            return 0.0
        one = float(integer_sigma(query.noise_multiplier, query.sensitivity_squared))
        one *= median_noise_factor(self.plan.federation.groups)
        return one * math.sqrt(self.plan.privacy.n_records) if self.plan.privacy.noise == "local" else one

    @classmethod
    def from_plan(cls, plan: Plan, settings: Settings) -> Run:
        """Return the run of a plan with its settings."""
        return cls(plan, settings, build_grid(plan), settings.loss(plan))


@dataclass(eq=False)
class NodeTrees:
    """The trees that nodes hold in a run, and the update that the next query brings them.

    Attributes:
        n_known: trees that the nodes' scores hold, or will with `update`.
        score_bound: a public bound on the magnitude of every score, in units of 2**-16.
        update: trees that the nodes' scores do not hold yet; None for none.
    """

    n_known: int = 0
    score_bound: int = 0
    update: FittedTrees | None = None

    @property
    def n_held(self) -> int:
        """The number of trees in the nodes' scores before the next query."""
        return self.n_known - (0 if self.update is None else self.update.trees.n_trees)

    def take(self, fitted: FittedTrees) -> None:
        """Let the next query bring these trees, and grow the score bound by them."""
        self.update, self.n_known = fitted, self.n_known + fitted.trees.n_trees
        self.score_bound = grow_score_bound(self.score_bound, fitted)

    def send(self) -> dict[str, Any]:
        """Return the next query's fields about the trees, and clear the update."""
        fields = {"update": self.update, "ensemble_size": self.n_held}
        self.update = None
        return fields


def empty_ensemble(run: Run) -> Ensemble:
    """Return the model before its first tree."""
    return make_empty_ensemble(run.plan, run.grid)


@dataclass(eq=False)
class GrowingModel:
    """A program's model so far; a batch is added when all releases that it needs are there.

    Attributes:
        run: what stays fixed.
        batches, weights: trees with their values, and their leaf weights.
        asking: by feature, the numbers of the batches that may ask for it.
        stretch, baseline, levels: see `Ensemble`.
    """

    run: Run
    batches: list[FittedTrees] = field(default_factory=list)
    weights: list[NDArray[np.int64] | None] = field(default_factory=list)
    asking: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    stretch: float = 1.0
    baseline: Baseline = ()
    levels: tuple[Level, ...] = ()

    def add(self, fitted: FittedTrees, weights: NDArray[np.int64] | None) -> None:
        """Add a complete batch and its leaf weights."""
        for feature in set(fitted.trees.feature.ravel().tolist()):
            self.asking[feature].append(len(self.batches))
        self.batches.append(fitted)
        self.weights.append(weights)

    def replace_values(self, values: Sequence[NDArray[np.floating[Any]]]) -> OrderedSum:
        """Replace the values of every batch, in units of 2**-16, and return the sum of all trees.

        Rounding may put values out of order by a unit: `OrderedSum` corrects that.
        """
        largest, ordered = largest_value(self.run), self.run.make_ordered_sum()
        for number, (batch, given) in enumerate(zip(self.batches, values, strict=True)):
            units = np.rint(np.clip(given, -largest, largest)).astype(np.int32)
            self.batches[number] = FittedTrees(batch.trees, ordered.add(batch.trees, units))
        return ordered

    def replace_batch(self, number: int, values: NDArray[np.int32]) -> None:
        """Replace the values of one batch, in units of 2**-16."""
        self.batches[number] = replace(self.batches[number], values=values)

    def ensemble(self) -> Ensemble:
        """Return the model of the batches so far, all as deep as the deepest.

        Values need no change where batches are missing: trees that are averaged over all of them are one batch.
        """
        depth = max((batch.trees.depth for batch in self.batches), default=0)
        deep = [deepen(batch, depth) for batch in self.batches]
        whole = empty_ensemble(self.run).extend(deep, [_spread(weights, depth) for weights in self.weights])
        return replace(whole, stretch=self.stretch, baseline=self.baseline or whole.baseline, levels=self.levels)


Carried, Grown = NodeTrees, GrowingModel
"""The names of these classes in version 0.1, for methods of other packages."""


def _spread(weights: NDArray[np.int64] | None, depth: int) -> NDArray[np.int64] | None:
    """Return the leaf weights of trees that `deepen` made."""
    if weights is None:
        return None
    wide = np.zeros((len(weights), 2**depth), dtype=np.int64)
    wide[:, :: 2**depth // weights.shape[1]] = weights
    return wide


def grow_by(run: Run, boost: Callable[[GrowingModel], Generator[Query, IntVector, None]]) -> Program:
    """Run a program that adds batches by `boost` until it has all or ends early; return the model."""
    grown = GrowingModel(run)
    with suppress(EndedEarly):
        yield from boost(grown)
    return grown.ensemble()


def make_leaf_rule(run: Run, learning_rate: float, noise_ridge: float, n_trees: int = 1) -> LeafRule:
    """Return the plan's rule for leaf values of batches of `n_trees`, without more: see `LeafRule`."""
    model = run.plan.model
    return LeafRule(
        weight_update=model.weight_update,
        learning_rate=learning_rate,
        leaf_ridge=model.leaf_ridge,
        noise_ridge=noise_ridge,
        leaf_clip=model.leaf_clip,
        divisor=run.settings.n_trees if model.weight_update == "averaging" else n_trees,
        largest=largest_value(run),
        directions=run.directions,
    )


def largest_value(run: Run) -> int:
    """Return the largest magnitude of a leaf's value, in units of 2**-16.

    With all trees at it, scores fit 32 bits.
    """
    return (2**31 - 1) // (run.settings.n_trees + run.settings.n_other_trees(run.plan))


def grow_score_bound(score_bound: int, fitted: FittedTrees) -> int:
    """Return the public bound on every score after a batch, in units of 2**-16."""
    return min(SCORE_LIMIT, score_bound + largest_sum(fitted.values))
