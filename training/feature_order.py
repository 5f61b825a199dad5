"""Which features each tree may ask for.

    cyclical   tree t takes the next k features of a public random order (CCS'22, section 5.1; k = 1 gives an EBM)
    random     tree t takes k features at random
    adaptive   the next feature is the one whose turn is most overdue, when features take turns in proportion to the
               square root of the gain that their released sums showed, noise subtracted; free, as post-processing
"""

from __future__ import annotations

import math

from hedgerow.protocol.queries import TreeBatch
from hedgerow.training.settings import Settings
from hedgerow.trees.leaves import NoisyLeaves
from hedgerow.trees.public_random import PublicRandom

EVEN_SHARE = 0.1
"""Share of the turns that are given out evenly, so that no feature is given up for good."""
MEMORY = 0.5
"""Weight of a feature's past gain against its newest."""


class FeatureOrder:
    """The features of each tree of a run.

    Args:
        seed: the plan's structure seed.
        settings: interaction and interaction_size.
        n_features: features of the plan.
    """

    def __init__(self, seed: int, settings: Settings, n_features: int) -> None:
        self._seed = seed
        self._kind = settings.interaction
        self._size = settings.interaction_size
        self._order = PublicRandom(seed, "feature order").permutation(n_features)
        self._gain = [0.0] * n_features
        self._visits = [0] * n_features
        self._last_turn = [-1] * n_features

    def features_of(self, tree: int) -> list[int]:
        """The features of tree number `tree`; call once per tree, in order."""
        n_features = len(self._order)
        if self._size >= n_features:
            return list(range(n_features))
        randomness = PublicRandom(self._seed, f"features of tree {tree}")
        if self._kind == "random":
            return randomness.sample(range(n_features), self._size)
        if self._kind == "cyclical" or min(self._visits) == 0:
            first = self._first_unvisited(tree)
        else:
            first = self._most_overdue(tree)
        self._visits[first] += 1
        self._last_turn[first] = tree
        if self._kind == "cyclical":
            start = tree * self._size
            return [self._order[(start + i) % n_features] for i in range(self._size)]
        others = [feature for feature in range(n_features) if feature != first]
        return [first, *randomness.sample(others, self._size - 1)]

    def _first_unvisited(self, tree: int) -> int:
        return next((f for f in self._order if self._visits[f] == 0), self._order[tree % len(self._order)])

    def _most_overdue(self, tree: int) -> int:
        roots = [math.sqrt(max(0.0, gain)) for gain in self._gain]
        total = math.fsum(roots)
        even = 1 / len(roots)
        shares = [EVEN_SHARE * even + (1 - EVEN_SHARE) * (root / total if total > 0 else even) for root in roots]
        overdue = [share * (tree - last) for share, last in zip(shares, self._last_turn, strict=True)]
        return max(range(len(overdue)), key=lambda feature: (overdue[feature], -feature))

    def take_leaves(self, trees: TreeBatch, leaves: NoisyLeaves) -> None:
        """Learn from a release: the gain of a tree is the sum over leaves of (G² - noise²) / (H + ridge)."""
        if self._kind != "adaptive":
            return
        noise = leaves.gradient_noise
        ridge = 1 + 2 * noise
        gains = (leaves.gradients**2 - noise**2) / (leaves.hessians + ridge)
        for tree in range(trees.n_trees):
            feature = int(trees.feature[tree, 0])
            if (trees.feature[tree] != feature).any():
                continue
            gain = math.fsum(gains[tree].ravel().tolist())
            old = self._gain[feature]
            first = self._visits[feature] <= 1
            self._gain[feature] = gain if first else MEMORY * old + (1 - MEMORY) * gain
