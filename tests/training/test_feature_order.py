"""Which features each tree may ask for: from the public seed and released sums, and no feature is forgotten."""

from __future__ import annotations

import dataclasses
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.training.feature_order import FeatureOrder
from hedgerow.training.settings import Settings, resolve
from hedgerow.trees.leaves import NoisyLeaves

N_FEATURES = 7


def settings_of(factory: ModuleType, interaction: str, size: int, n_trees: int = 60) -> Settings:
    return dataclasses.replace(
        resolve(factory.make_plan()), interaction=interaction, interaction_size=size, n_trees=n_trees
    )


def leaves_of(gradient: float, noise: float = 1.0) -> NoisyLeaves:
    """A release of one tree with four leaves."""
    gradients, hessians = np.full((1, 4, 1), gradient), np.full((1, 4, 1), 10.0)
    return NoisyLeaves(gradients, hessians, noise, noise)


@settings(max_examples=60)
@given(data=st.data(), seed=st.integers(0, 2**63 - 1))
def test_subsets_are_features_of_the_plan(factory: ModuleType, data: st.DataObject, seed: int) -> None:
    """Distinct features, at least one, never more than were asked for, whatever is released in between."""
    kind = data.draw(st.sampled_from(["cyclical", "random", "adaptive"]))
    size = data.draw(st.integers(1, N_FEATURES + 2))
    orders = [FeatureOrder(seed, settings_of(factory, kind, size), N_FEATURES) for _ in range(2)]
    random = np.random.default_rng(seed)
    trees = factory.random_trees(random, 1, 2, [4] * N_FEATURES)
    for tree in range(60):
        subset, same = (order.features_of(tree) for order in orders)
        assert subset == same
        assert 1 <= len(subset) <= min(size, N_FEATURES) and len(set(subset)) == len(subset)
        assert set(subset) <= set(range(N_FEATURES))
        leaves, ridge = leaves_of(float(random.choice([0.0, 1.0, -1e6, 1e12]))), float(random.integers(0, 2))
        for order in orders:
            order.take_leaves(trees, leaves, ridge, [subset])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_cyclical_turns_are_even(factory: ModuleType, size: int) -> None:
    """After m trees of k features each feature had k turns: CCS'22, section 5.1."""
    order = FeatureOrder(3, settings_of(factory, "cyclical", size), N_FEATURES)
    turns = np.bincount([f for tree in range(2 * N_FEATURES) for f in order.features_of(tree)], minlength=N_FEATURES)
    assert (turns == 2 * size).all()


@pytest.mark.parametrize("kind", ["cyclical", "adaptive"])
def test_no_feature_is_forgotten(factory: ModuleType, kind: str) -> None:
    """Every feature gets a turn at once, and again later, even if its first release showed nothing but noise."""
    order = FeatureOrder(5, settings_of(factory, kind, 1, n_trees=400), N_FEATURES)
    trees = factory.random_trees(np.random.default_rng(0), 1, 2, [4] * N_FEATURES)
    turns = []
    for tree in range(400):
        subset = order.features_of(tree)
        turns += subset
        order.take_leaves(trees, leaves_of(100.0 if subset == [0] else 0.0), 1.0, [subset])
    assert sorted(turns[:N_FEATURES]) == list(range(N_FEATURES))
    later = np.bincount(turns[N_FEATURES:], minlength=N_FEATURES)
    assert (later > 0).all()
    if kind == "adaptive":
        assert later[0] > later[1:].sum()


def test_without_gains_turns_are_even(factory: ModuleType) -> None:
    """As long as releases show nothing, adaptive turns are as even as cyclical ones."""
    order = FeatureOrder(5, settings_of(factory, "adaptive", 1), N_FEATURES)
    turns = np.bincount([order.features_of(tree)[0] for tree in range(5 * N_FEATURES)], minlength=N_FEATURES)
    assert turns.max() - turns.min() <= 1


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), gain=st.sampled_from([0.0, 1.0, 1e6]))
def test_shares_are_the_same_when_they_are_worked_out_anew(factory: ModuleType, seed: int, gain: float) -> None:
    """A subset that joins leaves the others' shares as they are: working all out for every tree changes no turn."""
    random = np.random.default_rng(seed)
    trees = factory.random_trees(random, 1, 2, [4] * N_FEATURES)
    kept, forgetful = (FeatureOrder(seed, settings_of(factory, "adaptive", 3, 80), N_FEATURES) for _ in range(2))
    for tree in range(80):
        forgetful._turns._shares = None
        subset = kept.features_of(tree)
        assert subset == forgetful.features_of(tree)
        if random.integers(0, 3) == 0:
            leaves = leaves_of(float(random.normal() * gain))
            for order in (kept, forgetful):
                order.take_leaves(trees, leaves, 1.0, [subset])
