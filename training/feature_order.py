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
from itertools import combinations

import numpy as np

from hedgerow.protocol.queries import TreeBatch
from hedgerow.training.settings import Settings
from hedgerow.trees.leaves import NoisyLeaves
from hedgerow.trees.public_random import PublicRandom

EVEN_SHARE = 0.1
"""Share of the turns that single features get whatever they gained, so that none is given up for good."""
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
        self._turns = _Turns(n_features)
        self._tried: Counter[tuple[int, ...]] = Counter()
        explores = self._kind == "adaptive" and self._size > 1
        share = settings.interaction_share if explores else 0.0
        first = settings.n_trees - round(share * settings.n_trees)
        # What is tried does not depend on any release, so it is drawn before the first exchange.
        exploring = range(max(first, n_features + (first + n_features) % 2), settings.n_trees, 2) if explores else ()
        self._explored = {tree: self._least_tried_subset(tree) for tree in exploring}

    def features_of(self, tree: int) -> list[int]:
        """The features of tree number `tree`; call once per tree, in order."""
        n_features = len(self._order)
        if self._kind == "adaptive":
            return list(self._adaptive_subset(tree))
        if self._size >= n_features:
            return list(range(n_features))
        if self._kind == "random":
            return PublicRandom(self._seed, f"features of tree {tree}").sample(range(n_features), self._size)
        start = tree * self._size
        return [self._order[(start + i) % n_features] for i in range(self._size)]

    def _adaptive_subset(self, tree: int) -> Subset:
        if tree < len(self._order):
            subset: Subset = (self._order[tree],)
        elif tree in self._explored:
            subset = self._explored[tree]
        else:
            subset = self._turns.most_overdue(tree)
        self._turns.take(subset, tree)
        return subset

    def _least_tried_subset(self, tree: int) -> Subset:
        """Of some random subsets, the one whose pairs of features have been together least often so far."""
        randomness = PublicRandom(self._seed, f"features of tree {tree}")
        features = range(len(self._order))
        draws = [tuple(sorted(randomness.sample(features, self._size))) for _ in range(DRAWS_FOR_COVERAGE)]
        subset = min(draws, key=lambda draw: sum(self._tried[pair] for pair in combinations(draw, 2)))
        self._tried.update(combinations(subset, 2))
        return subset

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
        for tree in range(trees.n_trees):
            self._turns.learn(tuple(subsets[tree]), math.fsum(gains[tree].ravel().tolist()))


class _Turns:
    """Subsets of features that take turns, each as often as the square root of its gain asks for."""

    def __init__(self, n_features: int) -> None:
        self._n_features = n_features
        self._last_turn: dict[Subset, int] = {}
        self._gain: dict[Subset, float] = {}
        self._shares: dict[Subset, float] | None = None
        """What each subset has earned of the turns; None after news."""

    def take(self, subset: Subset, tree: int) -> None:
        """Note that `tree` is this subset's turn."""
        is_new = subset not in self._last_turn
        self._last_turn[subset] = tree
        if is_new and self._shares is not None:
            # It has gained nothing yet: where others have, their shares stay what they are.
            if any(gain > 0 for gain in self._gain.values()):
                self._shares[subset] = self._share(subset, 0.0)
            else:
                self._shares = None

    def learn(self, subset: Subset, gain: float) -> None:
        """Note what a subset's latest turn gained; older turns say what is already in the model."""
        self._gain[subset] = gain
        self._shares = None

    def most_overdue(self, tree: int) -> Subset:
        """The subset whose share of the turns, times the trees since its last one, is largest."""
        if self._shares is None:
            self._shares = self._earned()
        shares = self._shares
        return max(shares, key=lambda subset: shares[subset] * (tree - self._last_turn[subset]))

    def _earned(self) -> dict[Subset, float]:
        roots = {subset: math.sqrt(max(0.0, self._gain.get(subset, 0.0))) for subset in self._last_turn}
        total = math.fsum(roots.values())
        return {
            subset: self._share(subset, root / total if total > 0 else 1 / len(roots)) for subset, root in roots.items()
        }

    def _share(self, subset: Subset, earned: float) -> float:
        even = 1 / self._n_features if len(subset) == 1 else 0.0
        return (1 - EVEN_SHARE) * earned + EVEN_SHARE * even
