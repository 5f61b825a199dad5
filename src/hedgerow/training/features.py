"""Kernels of the adaptive order of features: whose turn it is, what a turn gained, random subsets to be tried.

Which features each tree may ask for.

    cyclical   tree t takes the next k features of a public random order (CCS'22, section 5.1; k = 1 gives an EBM)
    random     tree t takes k features at random
    adaptive   single features take turns in proportion to what their released sums have shown to be gained by them; in
               the last part of the run every second tree tries k features together, and a subset that gains joins the
               turns. All of it is post-processing of released sums, so it costs no privacy.

The gain of a tree is the sum over leaves of (G**2 - noise**2) / (H + ridge): what the Newton step was worth, with the
share that noise alone would show taken off. docs/defaults.md has the evidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import numba
import numpy as np

from hedgerow.training.settings import Settings
from hedgerow.trees.leaves import NoisyLeaves
from hedgerow.trees.random_trees import PublicRandom, permutation

EVEN_SHARE = 0.1
"""Share of the turns that single features get whatever they gained, so that none is given up for good."""


@numba.njit(cache=True, nogil=True)
def take_turns(turns, first, n_known, gains, even, last_turn):  # type: ignore[no-untyped-def]
    """Give every tree of a batch its subset, the most overdue one where none is given; returns the new `n_known`.

    A subset is the more overdue the larger its share of the turns times the trees since its last one; the first of
    several is taken. What it has earned of the turns goes by the root of its gain.

    Args:
        turns: int64 [B], the number of each tree's subset, -1 where none is given; written. New subsets have the
            numbers `n_known`, `n_known` + 1, ... in the order of their trees.
        first: the number of the batch's first tree.
        n_known: subsets that had a turn before.
        gains: float64 [all subsets], what each has gained; while none has any, all known ones have earned alike.
        even: float64 likewise, what part of the even share is its own.
        last_turn: int64 likewise, the tree of each known subset's last turn; written.
    """
    roots = np.sqrt(np.maximum(gains, 0.0))
    total = exact_sum(roots)
    for i in range(len(turns)):
        tree, most = first + i, -1.0
        if turns[i] < 0:
            turns[i] = 0
            for number in range(n_known):
                part = roots[number] / total if total > 0 else 1 / n_known
                overdue = ((1 - EVEN_SHARE) * part + EVEN_SHARE * even[number]) * (tree - last_turn[number])
                if overdue > most:
                    turns[i], most = number, overdue
        last_turn[turns[i]] = tree
        n_known = max(n_known, turns[i] + 1)
    return n_known


@numba.njit(cache=True, nogil=True)
def take_gains(turns, gradients, hessians, noise_squared, ridge, gains):  # type: ignore[no-untyped-def]
    """Write the gain of each tree of a batch to its subset's place: of several with one subset, the last one's.

    Args:
        turns: int64 [B], the number of each tree's subset.
        gradients, hessians: float64 [B, n_leaves, n_outputs].
        noise_squared: variance of the noise of one gradient sum.
        ridge: as in the leaf rule: without one an empty leaf says nothing.
        gains: float64 [all subsets]; written.
    """
    _, n_leaves, n_outputs = gradients.shape
    parts = np.empty(n_leaves * n_outputs)
    for tree in range(len(turns)):
        for leaf in range(n_leaves):
            for output in range(n_outputs):
                gradient, denominator = gradients[tree, leaf, output], hessians[tree, leaf, output] + ridge
                worth = gradient * gradient - noise_squared
                parts[leaf * n_outputs + output] = worth / denominator if denominator > 0 else 0.0
        gains[turns[tree]] = exact_sum(parts)


@numba.njit(cache=True, nogil=True)
def exact_sum(values):  # type: ignore[no-untyped-def]
    """The sum of finite numbers, rounded once: the same as `math.fsum`, bit for bit.

    Source: Shewchuk 1997; parts that do not overlap hold the sum so far exactly, the smallest of them first.

    Args:
        values: float64 [n].
    """
    parts, n_parts = np.empty(len(values) + 1), 0
    for value in values:
        n_kept = 0
        for i in range(n_parts):
            larger, smaller = (value, parts[i]) if abs(value) >= abs(parts[i]) else (parts[i], value)
            value = larger + smaller
            lost = smaller - (value - larger)
            if lost != 0:
                parts[n_kept] = lost
                n_kept += 1
        parts[n_kept] = value
        n_parts = n_kept + 1
    total, lost = 0.0, 0.0
    while n_parts > 0 and lost == 0:
        n_parts -= 1
        before = total
        total = before + parts[n_parts]
        lost = parts[n_parts] - (total - before)
    # Half way between two numbers, what is left of the parts decides.
    if n_parts > 0 and (lost < 0) == (parts[n_parts - 1] < 0):
        farther = total + 2 * lost
        if farther - total == 2 * lost:
            total = farther
    return total


@numba.njit(cache=True, nogil=True)
def random_subsets(words, n_subsets, n_features, size):  # type: ignore[no-untyped-def]
    """Random subsets of features, by `n_features` - 1 words of public randomness each: int64 [n_subsets, size].

    The features of a subset ascend.
    """
    subsets = np.empty((n_subsets, size), dtype=np.int64)
    order, at = np.empty(n_features, dtype=np.int64), 0
    for row in range(n_subsets):
        at = permutation(words, at, order)
        subsets[row] = np.sort(order[:size])
    return subsets


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
        self._turns = _Turns(n_features, [self._given(tree) for tree in range(settings.n_trees)])

    def features_of(self, tree: int) -> Subset:
        """The features of tree number `tree`; call once per tree, in order."""
        return self.features_of_batch(tree, 1)[0]

    def features_of_batch(self, first: int, n_trees: int) -> list[Subset]:
        """The features of trees `first` to `first` + `n_trees` - 1; call once per tree, in order."""
        if self._kind == "adaptive":
            return self._turns.of_batch(first, n_trees)
        return [self._fixed_subset(tree) for tree in range(first, first + n_trees)]

    def _fixed_subset(self, tree: int) -> Subset:
        n_features = len(self._order)
        if self._size >= n_features:
            return tuple(range(n_features))
        if self._kind == "random":
            return tuple(PublicRandom(self._seed, f"features of tree {tree}").sample(range(n_features), self._size))
        start = tree * self._size
        return tuple([self._order[(start + i) % n_features] for i in range(self._size)])

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

    def take_leaves(self, leaves: NoisyLeaves, ridge: float) -> None:
        """Learn from the release of the latest batch.

        Args:
            leaves: its sums in real units.
            ridge: the ridge of the leaf rule, in units of the Hessian.
        """
        if self._kind == "adaptive":
            self._turns.learn(leaves, ridge)


class _Turns:
    """Subsets of features that take turns, each as often as the square root of its gain asks for.

    Args:
        n_features: features of the plan.
        given: the subset of each tree of the run, None where the most overdue one is to be taken.
    """

    def __init__(self, n_features: int, given: Sequence[Subset | None]) -> None:
        # Numbered in the order of their first turns: at any time those that had one come before all others.
        self._subsets = [subset for subset in dict.fromkeys(given) if subset is not None]
        numbers = {subset: number for number, subset in enumerate(self._subsets)}
        self._given = np.array([-1 if subset is None else numbers[subset] for subset in given], dtype=np.int64)
        self._even = np.array([1 / n_features if len(subset) == 1 else 0.0 for subset in self._subsets])
        self._gains = np.zeros(len(self._subsets))
        self._last_turn = np.zeros(len(self._subsets), dtype=np.int64)
        self._n_known = 0
        self._latest = self._given[:0]

    def of_batch(self, first: int, n_trees: int) -> list[Subset]:
        """The subsets of `n_trees` trees from tree `first` on."""
        self._latest = self._given[first : first + n_trees].copy()
        self._n_known = take_turns(self._latest, first, self._n_known, self._gains, self._even, self._last_turn)
        return [self._subsets[number] for number in self._latest.tolist()]

    def learn(self, leaves: NoisyLeaves, ridge: float) -> None:
        """Note what the latest turn of each subset gained; older turns say what is already in the model."""
        noise_squared = leaves.gradient_noise**2
        take_gains(self._latest, leaves.gradients, leaves.hessians, noise_squared, ridge, self._gains)
