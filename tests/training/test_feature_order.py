"""Which features each tree may ask for: from the public seed and released sums, and no feature is forgotten."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.methods.boosting.schedule import INTERACTION_SHARE
from hedgerow.training.features import DRAWS_FOR_COVERAGE, EVEN_SHARE, FeatureOrder
from hedgerow.trees.leaves import NoisyLeaves
from hedgerow.trees.random_trees import PublicRandom

N_FEATURES = 7


def make_order(seed: int, kind: str, size: int, n_trees: int = 60) -> FeatureOrder:
    return FeatureOrder(seed, N_FEATURES, n_trees, kind, size, INTERACTION_SHARE)


def leaves_of(gradient: float, noise: float = 1.0) -> NoisyLeaves:
    """A release of one tree with four leaves."""
    gradients, hessians = np.full((1, 4, 1), gradient), np.full((1, 4, 1), 10.0)
    return NoisyLeaves(gradients, hessians, noise, noise, np.zeros((1, 4), dtype=np.int64))


@settings(max_examples=60)
@given(data=st.data(), seed=st.integers(0, 2**63 - 1))
def test_subsets_are_features_of_the_plan(data: st.DataObject, seed: int) -> None:
    """Distinct features, at least one, never more than were asked for, whatever is released in between."""
    kind = data.draw(st.sampled_from(["cyclical", "random", "adaptive"]))
    size = data.draw(st.integers(1, N_FEATURES + 2))
    orders = [make_order(seed, kind, size) for _ in range(2)]
    random = np.random.default_rng(seed)
    for tree in range(60):
        subset, same = (order.features_of(tree) for order in orders)
        assert subset == same
        assert 1 <= len(subset) <= min(size, N_FEATURES) and len(set(subset)) == len(subset)
        assert set(subset) <= set(range(N_FEATURES))
        leaves, ridge = leaves_of(float(random.choice([0.0, 1.0, -1e6, 1e12]))), float(random.integers(0, 2))
        for order in orders:
            order.take_leaves(leaves, ridge)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_cyclical_turns_are_even(size: int) -> None:
    """After m trees of k features each feature had k turns: CCS'22, section 5.1."""
    order = make_order(3, "cyclical", size)
    turns = np.bincount([f for tree in range(2 * N_FEATURES) for f in order.features_of(tree)], minlength=N_FEATURES)
    assert (turns == 2 * size).all()


@pytest.mark.parametrize("kind", ["cyclical", "adaptive"])
def test_no_feature_is_forgotten(kind: str) -> None:
    """Every feature gets a turn at once, and again later, even if its first release showed nothing but noise."""
    order = make_order(5, kind, 1, n_trees=400)
    turns: list[int] = []
    for tree in range(400):
        subset = order.features_of(tree)
        turns += subset
        order.take_leaves(leaves_of(100.0 if subset == (0,) else 0.0), 1.0)
    assert sorted(turns[:N_FEATURES]) == list(range(N_FEATURES))
    later = np.bincount(turns[N_FEATURES:], minlength=N_FEATURES)
    assert (later > 0).all()
    if kind == "adaptive":
        assert later[0] > later[1:].sum()


def test_without_gains_turns_are_even() -> None:
    """As long as releases show nothing, adaptive turns are as even as cyclical ones."""
    order = make_order(5, "adaptive", 1)
    turns = np.bincount([order.features_of(tree)[0] for tree in range(5 * N_FEATURES)], minlength=N_FEATURES)
    assert turns.max() - turns.min() <= 1


class SlowOrder:
    """The adaptive order as its definition reads: one tree after the other, every share worked out again for each."""

    def __init__(self, seed: int, n_trees: int, size: int, share: float) -> None:
        self.order = PublicRandom(seed, "feature order").permutation(N_FEATURES)
        self.last_turn: dict[tuple[int, ...], int] = {}
        self.gain: dict[tuple[int, ...], float] = {}
        self.explored: dict[int, tuple[int, ...]] = {}
        first = n_trees - round(share * n_trees) if size > 1 else n_trees
        tried: Counter[tuple[int, ...]] = Counter()
        for tree in range(max(first, N_FEATURES + (first + N_FEATURES) % 2), n_trees, 2):
            randomness = PublicRandom(seed, f"features of tree {tree}")
            draws = [tuple(sorted(randomness.sample(range(N_FEATURES), size))) for _ in range(DRAWS_FOR_COVERAGE)]
            self.explored[tree] = min(draws, key=lambda draw: sum(tried[pair] for pair in combinations(draw, 2)))
            tried.update(combinations(self.explored[tree], 2))

    def features_of(self, tree: int) -> tuple[int, ...]:
        if tree < N_FEATURES:
            subset: tuple[int, ...] = (self.order[tree],)
        elif tree in self.explored:
            subset = self.explored[tree]
        else:
            subset = max(self.last_turn, key=lambda known: self._share(known) * (tree - self.last_turn[known]))
        self.last_turn[subset] = tree
        return subset

    def _share(self, subset: tuple[int, ...]) -> float:
        roots = {known: math.sqrt(max(0.0, self.gain.get(known, 0.0))) for known in self.last_turn}
        total = math.fsum(roots.values())
        earned = roots[subset] / total if total > 0 else 1 / len(roots)
        return (1 - EVEN_SHARE) * earned + EVEN_SHARE * (1 / N_FEATURES if len(subset) == 1 else 0.0)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), n_features=st.integers(2, 80), size=st.integers(2, 5))
def test_subsets_of_many_features_are_the_first_of_permutations(seed: int, n_features: int, size: int) -> None:
    """What a wide table's draws are found by, all at once, gives the subsets that the public randomness defines."""
    size = min(size, n_features)
    order = FeatureOrder(seed, n_features, 0, "adaptive", size)
    for tree, draws in zip((3, 8), order._draw_subsets((3, 8)), strict=True):
        randomness = PublicRandom(seed, f"features of tree {tree}")
        expected = [tuple(sorted(randomness.sample(range(n_features), size))) for _ in range(DRAWS_FOR_COVERAGE)]
        assert draws == expected


@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32), size=st.integers(1, N_FEATURES), gain=st.sampled_from([0, 1, 1e6]))
def test_turns_are_those_of_the_definition(data: st.DataObject, seed: int, size: int, gain: float) -> None:
    """Batches of any sizes, with news after any of them or none: the same turns as one by one, worked out slowly."""
    random = np.random.default_rng(seed)
    fast, slow = make_order(seed, "adaptive", size, 80), SlowOrder(seed, 80, size, INTERACTION_SHARE)
    tree = 0
    while tree < 80:
        n_trees = min(80 - tree, data.draw(st.integers(1, 30)))
        subsets = fast.features_of_batch(tree, n_trees)
        assert subsets == [slow.features_of(tree + i) for i in range(n_trees)]
        tree += n_trees
        if random.integers(0, 3):
            gradients = random.normal(0, 2, (n_trees, 4, 2)) * gain
            # An empty leaf says nothing where there is no ridge.
            hessians = random.uniform(0, 9, gradients.shape) * random.integers(0, 2, gradients.shape)
            ridge = float(random.choice([0.0, 2.5]))
            leaves = NoisyLeaves(gradients, hessians, 1.5, 1.5, np.zeros((n_trees, 4), dtype=np.int64))
            fast.take_leaves(leaves, ridge)
            for subset, own, mass in zip(subsets, gradients, hessians, strict=True):
                pairs = zip(own.ravel().tolist(), mass.ravel().tolist(), strict=True)
                slow.gain[subset] = math.fsum((g * g - 2.25) / (h + ridge) for g, h in pairs if h + ridge > 0)
