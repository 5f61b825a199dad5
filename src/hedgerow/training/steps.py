# SPDX-License-Identifier: Apache-2.0
"""What every program is made of: its fixed parts, what it has so far, and the rule for leaves."""

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
from hedgerow.trees.ensemble import Ensemble, make_empty_ensemble
from hedgerow.trees.leaves import LeafRule, largest_sum
from hedgerow.trees.random_trees import deepen

Program = Generator[Query, IntVector, Ensemble]
"""Yields queries, receives the noisy sum of each, returns the model.

Where `EndedEarly` is thrown into it in place of a release, it returns the model of the releases that it was given.
"""


class EndedEarly(Exception):
    """No further release will come."""


Result = TypeVar("Result")


def play(program: Generator[Query, IntVector, Result], answer: Callable[[Query], IntVector]) -> Result:
    """Carry a program out: give it the answer to each of its queries, and return what it found."""
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
    """What stays fixed while a program runs."""

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
        """How scores go with each feature; None where the plan says nothing."""
        return Directions.from_plan(self.plan, self.grid)

    def make_ordered_sum(self) -> OrderedSum:
        """A sum of trees that keeps these directions, without a tree yet."""
        return OrderedSum(self.directions, self.grid.n_codes)

    @cached_property
    def groups(self) -> NDArray[np.bool_]:
        """Which features may meet on a path: bool [n_groups, n_features]."""
        return build_groups(self.plan)

    def sigma(self, query: Query) -> float:
        """Noise of a release in integer units; 0 without privacy.

        In the local model every record adds as much: what is known of their number is what the plan declares.
        """
        if query.noise_multiplier == 0:
            return 0.0
        one = float(integer_sigma(query.noise_multiplier, query.sensitivity_squared))
        one *= median_noise_factor(self.plan.federation.groups)
        return one * math.sqrt(self.plan.privacy.n_records) if self.plan.privacy.noise == "local" else one

    @classmethod
    def from_plan(cls, plan: Plan, settings: Settings) -> Run:
        """The run of a plan with its settings."""
        return cls(plan, settings, build_grid(plan), settings.loss(plan))


@dataclass(eq=False)
class Carried:
    """What nodes know of a run's trees, and what its next query brings them.

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
        """Trees that the nodes' scores hold before the next query."""
        return self.n_known - (0 if self.update is None else self.update.trees.n_trees)

    def take(self, fitted: FittedTrees) -> None:
        """The next query brings these trees."""
        self.update, self.n_known = fitted, self.n_known + fitted.trees.n_trees
        self.score_bound = grow_score_bound(self.score_bound, fitted)

    def send(self) -> dict[str, Any]:
        """What the next query says of the trees; the one after it brings nothing that this one does."""
        fields = {"update": self.update, "ensemble_size": self.n_held}
        self.update = None
        return fields


def empty_ensemble(run: Run) -> Ensemble:
    """The model before its first tree."""
    return make_empty_ensemble(run.plan, run.grid)


@dataclass(eq=False)
class Grown:
    """What a program has of its model so far: a batch is added when all releases that it needs are there.

    Attributes:
        run: what stays fixed.
        batches, weights: trees with their values, and their leaf weights.
        asking: by feature, the numbers of the batches that may ask it.
        stretch, baseline: see `Ensemble`.
    """

    run: Run
    batches: list[FittedTrees] = field(default_factory=list)
    weights: list[NDArray[np.int64] | None] = field(default_factory=list)
    asking: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    stretch: float = 1.0
    baseline: Baseline = ()

    def add(self, fitted: FittedTrees, weights: NDArray[np.int64] | None) -> None:
        """Add a batch that is complete, and its leaf weights."""
        for feature in set(fitted.trees.feature.ravel().tolist()):
            self.asking[feature].append(len(self.batches))
        self.batches.append(fitted)
        self.weights.append(weights)

    def replace_values(self, values: Sequence[NDArray[np.floating[Any]]]) -> OrderedSum:
        """Give every batch other values, in units of 2**-16; the sum of all trees then.

        What is rounded once more may be out of order by a unit: `OrderedSum` corrects that.
        """
        largest, ordered = largest_value(self.run), self.run.make_ordered_sum()
        for number, (batch, given) in enumerate(zip(self.batches, values, strict=True)):
            units = np.rint(np.clip(given, -largest, largest)).astype(np.int32)
            self.batches[number] = FittedTrees(batch.trees, ordered.add(batch.trees, units))
        return ordered

    def ensemble(self) -> Ensemble:
        """The model of the batches so far, all as deep as the deepest; without a tree where there is none.

        Values need no change where batches are missing: trees that are averaged over all of them are one batch.
        """
        depth = max((batch.trees.depth for batch in self.batches), default=0)
        deep = [deepen(batch, depth) for batch in self.batches]
        whole = empty_ensemble(self.run).extend(deep, [_spread(weights, depth) for weights in self.weights])
        return replace(whole, stretch=self.stretch, baseline=self.baseline or whole.baseline)


def _spread(weights: NDArray[np.int64] | None, depth: int) -> NDArray[np.int64] | None:
    """The leaf weights of trees that `deepen` made."""
    if weights is None:
        return None
    wide = np.zeros((len(weights), 2**depth), dtype=np.int64)
    wide[:, :: 2**depth // weights.shape[1]] = weights
    return wide


def grow_by(run: Run, boost: Callable[[Grown], Generator[Query, IntVector, None]]) -> Program:
    """The program that adds batches by `boost`, until it has all or ends early."""
    grown = Grown(run)
    with suppress(EndedEarly):
        yield from boost(grown)
    return grown.ensemble()


def make_leaf_rule(run: Run, learning_rate: float, noise_ridge: float, n_trees: int = 1) -> LeafRule:
    """How the sums of a batch of `n_trees` become values, as the plan says and without more: see `LeafRule`."""
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
    """Largest magnitude of a leaf's value, in units of 2**-16: with all trees at it, scores fit 32 bits."""
    return (2**31 - 1) // (run.settings.n_trees + run.settings.n_other_trees(run.plan))


def grow_score_bound(score_bound: int, fitted: FittedTrees) -> int:
    """The public bound on every score after a batch, in units of 2**-16."""
    return min(SCORE_LIMIT, score_bound + largest_sum(fitted.values))
