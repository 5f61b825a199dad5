"""Which features each tree may ask for.

    cyclical   tree t takes the next k features of a public random order (CCS'22, section 5.1; k = 1 gives an EBM)
    random     tree t takes k features at random
    adaptive   single features take turns in proportion to what their released sums have shown to be gained by them; in
               the last part of the run every second tree tries k features together, and a subset that gains joins the
               turns. All of it is post-processing of released sums, so it costs no privacy.

The gain of a tree is the sum over leaves of (G**2 - noise**2) / (H + ridge): what the Newton step was worth, with the
share that noise alone would show taken off. docs/defaults.md has the evidence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from hedgerow.protocol.queries import TreeBatch
from hedgerow.training.settings import Settings
from hedgerow.trees.leaves import NoisyLeaves
from hedgerow.trees.public_random import PublicRandom
from hedgerow.trees.turn_kernels import random_subsets, take_turns

DRAWS_FOR_COVERAGE = 16
"""Subsets drawn for each one that is tried: the one whose pairs have been tried least is taken."""

Subset = tuple[int, ...]


class FeatureOrder:
    """The features of each tree of a run.

    Args:
        seed: the plan's structure seed.
        settings: n_trees, interaction, interaction_size and interaction_share.
        n_features: features of the plan.
    """

    def __init__(self, seed: int, settings: Settings, n_features: int) -> None:
        self._seed = seed
        self._kind = settings.interaction
        self._size = min(settings.interaction_size, n_features)
        self._order = PublicRandom(seed, "feature order").permutation(n_features)
        explores = self._kind == "adaptive" and self._size > 1
        share = settings.interaction_share if explores else 0.0
        first = settings.n_trees - round(share * settings.n_trees)
        # What is tried does not depend on any release, so it is drawn before the first exchange.
        exploring = range(max(first, n_features + (first + n_features) % 2), settings.n_trees, 2) if explores else ()
        self._tried: Counter[Subset] = Counter()
        self._explored = {tree: self._least_tried_subset(tree) for tree in exploring}
        self._turns = _Turns(n_features, n_features + len(self._explored))

    @property
    def largest(self) -> int:
        """Features that a tree may ask for at most."""
        return self._size

    def features_of(self, tree: int) -> list[int]:
        """The features of tree number `tree`; call once per tree, in order."""
        return self.features_of_batch(tree, 1)[0]

    def features_of_batch(self, first: int, n_trees: int) -> list[list[int]]:
        """The features of trees `first` to `first` + `n_trees` - 1; call once per tree, in order."""
        trees = range(first, first + n_trees)
        if self._kind == "adaptive":
            return [list(subset) for subset in self._turns.of_batch(first, [self._given(tree) for tree in trees])]
        return [self._fixed_subset(tree) for tree in trees]

    def _fixed_subset(self, tree: int) -> list[int]:
        n_features = len(self._order)
        if self._size >= n_features:
            return list(range(n_features))
        if self._kind == "random":
            return PublicRandom(self._seed, f"features of tree {tree}").sample(range(n_features), self._size)
        start = tree * self._size
        return [self._order[(start + i) % n_features] for i in range(self._size)]

    def _given(self, tree: int) -> Subset | None:
        """The subset that an adaptive order gives to a tree, whatever has been gained; None for the most overdue."""
        return (self._order[tree],) if tree < len(self._order) else self._explored.get(tree)

    def _least_tried_subset(self, tree: int) -> Subset:
        """Of some random subsets, the one whose pairs of features have been together least often so far."""
        n_features, n_draws = len(self._order), DRAWS_FOR_COVERAGE
        words = PublicRandom(self._seed, f"features of tree {tree}").first_words(n_draws * (n_features - 1))
        draws = random_subsets(words, n_draws, n_features, self._size).tolist()
        subset = min(draws, key=lambda draw: sum([self._tried[pair] for pair in combinations(draw, 2)]))
        self._tried.update(combinations(subset, 2))
        return tuple(subset)

    def take_leaves(self, trees: TreeBatch, leaves: NoisyLeaves, ridge: float, subsets: list[list[int]]) -> None:
        """Learn from a release.

        Args:
            trees: the released batch.
            leaves: its sums in real units.
            ridge: the ridge of the leaf rule, in units of the Hessian.
            subsets: the features that each tree was allowed.
        """
        if self._kind != "adaptive":
            return
        worth = leaves.gradients**2 - leaves.gradient_noise**2
        denominator = leaves.hessians + ridge
        # As in the leaf rule: without a ridge an empty leaf says nothing.
        gains = np.divide(worth, denominator, out=np.zeros_like(worth), where=denominator > 0)
        self._turns.learn(subsets, [math.fsum(gain) for gain in gains.reshape(trees.n_trees, -1).tolist()])


class _Turns:
    """Subsets of features that take turns, each as often as the square root of its gain asks for.

    Args:
        n_features: features of the plan.
        most: subsets that may ever take part.
    """

    def __init__(self, n_features: int, most: int) -> None:
        self._even_share = 1 / n_features
        self._subsets: list[Subset] = []
        self._numbers: dict[Subset, int] = {}
        self._gains = np.zeros(most)
        self._even = np.zeros(most)
        self._last_turn = np.zeros(most, dtype=np.int64)
        self._earned = np.zeros(most)
        self._has_gains = False
        self._has_news = True

    def of_batch(self, first: int, given: Sequence[Subset | None]) -> list[Subset]:
        """The subsets of tree `first` and those after it: the ones given, for None the most overdue one by then."""
        n_known = len(self._subsets)
        if self._has_news:
            self._earn()
        turns = np.array([-1 if subset is None else self._number(subset) for subset in given], dtype=np.int64)
        take_turns(turns, first, n_known, self._has_gains, self._earned, self._even, self._last_turn)
        return [self._subsets[number] for number in turns.tolist()]

    def _number(self, subset: Subset) -> int:
        """The subset's number; a new one gets the next, and has gained nothing yet."""
        number = self._numbers.setdefault(subset, len(self._subsets))
        if number == len(self._subsets):
            self._subsets.append(subset)
            self._even[number] = self._even_share if len(subset) == 1 else 0.0
        return number

    def learn(self, subsets: Sequence[Sequence[int]], gains: Sequence[float]) -> None:
        """Note what the latest turn of each subset gained; older turns say what is already in the model."""
        latest = {self._numbers[tuple(subset)]: gain for subset, gain in zip(subsets, gains, strict=True)}
        self._gains[list(latest)] = list(latest.values())
        self._has_news = True

    def _earn(self) -> None:
        """Work out what each subset has earned of the turns."""
        roots = np.sqrt(np.fmax(self._gains, 0.0))
        total = math.fsum(roots.tolist())
        self._has_gains = total > 0
        self._earned = roots / total if self._has_gains else np.zeros_like(roots)
        self._has_news = False
