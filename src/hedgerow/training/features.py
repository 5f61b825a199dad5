# SPDX-License-Identifier: Apache-2.0
"""The features that each tree may ask for.

    cyclical   tree t takes the next k features of a public random order (CCS'22, section 5.1; k = 1 gives an EBM)
    random     tree t takes k features at random
    adaptive   single features are taken in proportion to what their released sums have shown to be gained by them. In
               the last part of the run every second tree tries k features together, and a subset that gains is taken
               like a single feature. All of it is post-processing of released sums, so it costs no privacy.

The gain of a tree is the sum over leaves of (G**2 - noise**2) / (H + ridge): what the Newton step was worth, with the
share that noise alone would show taken off. docs/defaults.md has the evidence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from hedgerow import elementary
from hedgerow.trees.leaves import NoisyLeaves
from hedgerow.trees.random_trees import Groups, PublicRandom, scale_words

EVEN_SHARE = 0.1
"""Share of the trees that single features get whatever they gained, so that none is given up for good."""
DRAWS_FOR_COVERAGE = 16
"""Subsets drawn for each one that is tried: the one whose pairs have been tried least is taken."""
_MAX_WORDS = 1 << 22
"""Words of public randomness that are held in memory at once."""
_SWAPS_AT_ONCE = 32
"""Swaps that are scaled together, for all draws; their words stay in the processor's cache."""

Subset = tuple[int, ...]


class FeatureOrder:
    """The features of each tree of a run.

    Args:
        seed: the plan's structure seed.
        kind: "cyclical", "random" or "adaptive".
        size: features per tree; for "adaptive", of the subsets that it tries besides single features.
        exploring_share: of the trees, at the end of the run, among which "adaptive" tries subsets.
        groups: which features may meet: bool [n_groups, n_features]; None for all. An "adaptive" order tries such
            subsets only; of others no path has more.
    """

    def __init__(
        self,
        seed: int,
        n_features: int,
        n_trees: int,
        kind: str = "cyclical",
        size: int = 1,
        exploring_share: float = 0.0,
        groups: Groups | None = None,
    ) -> None:
        self._seed, self._kind, self._size = seed, kind, min(size, n_features)
        self._order = PublicRandom(seed, "feature order").permutation(n_features)
        own = np.ones((1, n_features), dtype=np.bool_) if groups is None else groups
        self._groups = own[own.sum(axis=1) > 1]
        self._partnered = np.flatnonzero(self._groups.any(axis=0)).tolist()
        explores = self._kind == "adaptive" and self._size > 1 and len(self._partnered) > 0
        first = n_trees - round(exploring_share * n_trees)
        exploring = range(max(first, n_features + (first + n_features) % 2), n_trees, 2) if explores else ()
        self._tried: Counter[Subset] = Counter()
        draws = self._draw_subsets(exploring) if self._groups.all() else map(self._draw_in_groups, exploring)
        # Explored subsets depend on no release, so draw them before the first round.
        self._explored = {tree: self._choose_least_tried(own) for tree, own in zip(exploring, draws, strict=True)}
        self._adaptive = _AdaptiveOrder(n_features, n_features + n_trees)
        self._due: list[int] = []

    def features_of(self, tree: int) -> Subset:
        """Return the features of tree number `tree`; call once per tree, in order."""
        return self.features_of_batch(tree, 1)[0]

    def features_of_batch(self, first: int, n_trees: int) -> list[Subset]:
        """Return the features of `n_trees` trees from `first` on; call once per tree, in order."""
        if self._kind == "adaptive":
            return self._adaptive.of_batch(first, [self._given(tree) for tree in range(first, first + n_trees)])
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
        """Return the subset that an adaptive order gives to a tree; None for the most overdue.

        A due feature is taken off the list.
        """
        if tree < len(self._order):
            return (self._order[tree],)
        if tree in self._explored:
            return self._explored[tree]
        return (self._due.pop(0),) if self._due else None

    def _choose_least_tried(self, draws: Sequence[Subset]) -> Subset:
        """Return the draw whose pairs were together least often, and count its pairs."""
        # A subset is smaller than the others only if its group of features is.
        pairs = [list(combinations(draw, 2)) for draw in draws]
        means = [sum([self._tried[pair] for pair in chosen]) / len(chosen) for chosen in pairs]
        subset = draws[means.index(min(means))]
        self._tried.update(combinations(subset, 2))
        return subset

    def _draw_subsets(self, trees: Sequence[int]) -> Iterator[list[Subset]]:
        """Yield random subsets of all features for each tree: the first ones of a public permutation."""
        n_features = len(self._order)
        n_words, n_at_once = DRAWS_FOR_COVERAGE * (n_features - 1), 1 + _MAX_WORDS // (DRAWS_FOR_COVERAGE * n_features)
        for first in range(0, len(trees), n_at_once):
            names = [f"features of tree {tree}" for tree in trees[first : first + n_at_once]]
            streams = [PublicRandom(self._seed, name) for name in names]
            words = np.stack([stream.first_words(n_words) for stream in streams]).reshape(-1, n_features - 1)
            # The features in the first places, found by going back through the swaps: a row for each place.
            swaps = np.ascontiguousarray(words.T[::-1])
            found = np.tile(np.arange(self._size)[:, None], len(words))
            for start in range(1, n_features, _SWAPS_AT_ONCE):
                limits = np.arange(start, min(start + _SWAPS_AT_ONCE, n_features))[:, None] + 1
                others = scale_words(swaps[start - 1 : start - 1 + len(limits)], limits)
                for last, other in enumerate(others, start):
                    # A later place is among the found ones only after its own swap.
                    was_last = found == last if last < self._size else None
                    np.copyto(found, last, where=found == other)
                    if was_last is not None:
                        np.copyto(found, other, where=was_last)
            for of_tree in np.sort(found.T, axis=1).reshape(len(streams), DRAWS_FOR_COVERAGE, self._size).tolist():
                yield [tuple(draw) for draw in of_tree]

    def _draw_in_groups(self, tree: int) -> list[Subset]:
        """Draw subsets for a tree, each of features of one group only, two at least."""
        randomness = PublicRandom(self._seed, f"features of tree {tree}")
        draws = []
        for _ in range(DRAWS_FOR_COVERAGE):
            first = self._partnered[randomness.below(len(self._partnered))]
            draw, is_left = [first], np.ones(len(self._order), dtype=np.bool_)
            while len(draw) < self._size:
                is_left[draw] = False
                options = np.flatnonzero(self._groups[self._groups[:, draw].all(axis=1)].any(axis=0) & is_left)
                if not len(options):
                    break
                draw.append(int(options[randomness.below(len(options))]))
            draws.append(tuple(sorted(draw)))
        return draws

    def ask_again(self, features: Iterable[int]) -> None:
        """Give the next trees to these features.

        The gains of their last trees do not count for their new cells.
        """
        self._due += [feature for feature in features if feature not in self._due]

    def take_leaves(self, leaves: NoisyLeaves, ridge: float) -> None:
        """Learn from the release of the latest batch.

        Args:
            leaves: its sums in real units.
            ridge: the ridge of the leaf rule, in units of the Hessian.
        """
        if self._kind == "adaptive":
            self._adaptive.learn(leaves, ridge)


class _AdaptiveOrder:
    """Subsets of features, each taken as often as the square root of its gain asks for.

    Args:
        most: subsets, at most.
    """

    def __init__(self, n_features: int, most: int) -> None:
        # Numbered in the order of their first trees: at any time those that had one come before all others.
        self._subsets: list[Subset] = []
        self._numbers: dict[Subset, int] = {}
        self._n_features = n_features
        self._even = np.zeros(most)
        # The root of each subset's gain, and their exact sum in units of 2**-1074. Every float is a whole number of
        # them, and thousands of roots are not to be summed again for every tree.
        self._roots, self._total = np.zeros(most), 0
        self._last_tree = np.zeros(most, dtype=np.int64)
        self._latest: list[int] = []

    def of_batch(self, first: int, given: Sequence[Subset | None]) -> list[Subset]:
        """Return the subsets of the trees from tree `first` on.

        Where none is given, it is the most overdue one.
        """
        # Each subset's share of the trees, by the root of its gain; None while nothing has been gained.
        total = self._total / _WHOLE
        earned, self._latest = self._roots / total if total > 0 else None, []
        for tree, subset in enumerate(given, start=first):
            if subset is None:
                number = self._most_overdue(tree, earned)
            elif (number := self._numbers.setdefault(subset, len(self._subsets))) == len(self._subsets):
                self._even[number] = 1 / self._n_features if len(subset) == 1 else 0.0
                self._subsets.append(subset)
            self._last_tree[number] = tree
            self._latest.append(number)
        return [self._subsets[number] for number in self._latest]

    def _most_overdue(self, tree: int, earned: NDArray[np.float64] | None) -> int:
        """Return the number of the most overdue subset.

        Its share of the trees times the trees since its last one is the largest; of several it is the first.
        """
        n_known = len(self._subsets)
        share = 1 / n_known if earned is None else earned[:n_known]
        waited = tree - self._last_tree[:n_known]
        return int((((1 - EVEN_SHARE) * share + EVEN_SHARE * self._even[:n_known]) * waited).argmax())

    def learn(self, leaves: NoisyLeaves, ridge: float) -> None:
        """Note the gains of the latest trees; older trees say what is already in the model."""
        worth, below = leaves.gradients**2 - elementary.square(leaves.gradient_noise), leaves.hessians + ridge
        # Without a ridge an empty leaf says nothing.
        parts = np.divide(worth, below, out=np.zeros_like(worth), where=below > 0)
        # A ridge of next to nothing makes them infinite.
        parts = parts.clip(-_MOST_GAIN, _MOST_GAIN)
        for number, gains in zip(self._latest, parts.reshape(len(parts), -1).tolist(), strict=True):
            self._note_root(number, math.sqrt(max(0.0, math.fsum(gains))))

    def _note_root(self, number: int, root: float) -> None:
        self._total += _count_units(root) - _count_units(float(self._roots[number]))
        self._roots[number] = root


_MOST_GAIN = 1e300
_WHOLE = 2**1074


def _count_units(value: float) -> int:
    """Return the number of units of 2**-1074 in a float."""
    numerator, denominator = value.as_integer_ratio()
    return numerator * (_WHOLE // denominator)
