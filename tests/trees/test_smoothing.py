"""Pooling and shrinkage of released leaves, beside a slow and exactly rounded computation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.protocol.queries import TreeBatch
from hedgerow.trees.constraints import Directions
from hedgerow.trees.leaves import (
    CLASSES_PER_TREE,
    JAMES_STEIN_SHARE,
    LEAVES_OF_ALL,
    LEVEL_OF_CHAIN,
    MEMORY,
    OWN_MEMORY,
    SPREADS,
    ClassCovariance,
    LeafRule,
    NoisyLeaves,
    ValueSpread,
    compute_expected_values,
    compute_values,
    smooth_ratios,
    wiener_filter,
)

AS_RELEASED = np.empty((0, 0, 0))
SUMS = st.floats(-1e6, 1e6, allow_subnormal=False)


def slow_ratios(gradients, hessians, reachable, is_ordered, noise, ridge, mixing):
    """One tree's leaves, by the definition; every sum is rounded once."""
    released = gradients
    if len(mixing):
        columns = mixing.T.tolist()
        gradients = np.array([[math.fsum(own * column) for column in columns] for own in released])
    used = [leaf for leaf in range(len(reachable)) if reachable[leaf]]
    mass = [math.fsum(hessians[leaf]) / len(hessians[leaf]) for leaf in used]
    middle = [math.fsum(mass[:i]) + mass[i] / 2 for i in range(len(used))]
    energy = math.fsum(float(g) ** 2 for leaf in used for g in released[leaf])
    n_sums = len(used) * gradients.shape[1]
    factor = 1.0
    if n_sums > 2 and energy > 0:
        factor = max(0.0, 1 - JAMES_STEIN_SHARE * (n_sums - 2) * noise**2 / energy)
    ratios = np.zeros(gradients.shape)
    for i, leaf in enumerate(used):
        weights = [float(other == i) for other in range(len(used))]
        if is_ordered and len(used) > 2 and noise > 0:
            steps = [abs(middle[i] - place) / noise for place in middle]
            weights = [1 / (1 + step + step**2 / 2) for step in steps]
        for output in range(gradients.shape[1]):
            g = math.fsum(w * gradients[other, output] for w, other in zip(weights, used, strict=True))
            h = math.fsum(w * hessians[other, output] for w, other in zip(weights, used, strict=True))
            ratios[leaf, output] = g / (h + ridge) * factor if h + ridge > 0 else 0.0
    return ratios


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    depth=st.integers(1, 5),
    n_outputs=st.integers(1, 3),
    is_ordered=st.booleans(),
    is_mixed=st.booleans(),
)
def test_the_kernel_computes_what_the_definition_says(data, depth, n_outputs, is_ordered, is_mixed):
    """Any sums, any unreachable leaves, with and without noise and ridge: equal but for the rounding of sums."""
    shape = (2**depth, n_outputs)
    n_sums = shape[0] * n_outputs
    gradients = np.array(data.draw(st.lists(SUMS, min_size=n_sums, max_size=n_sums))).reshape(shape)
    hessians = np.abs(np.array(data.draw(st.lists(SUMS, min_size=n_sums, max_size=n_sums)))).reshape(shape)
    reachable = np.array(data.draw(st.lists(st.booleans(), min_size=shape[0], max_size=shape[0])))
    noise, ridge = data.draw(st.sampled_from([0.0, 0.5, 100.0])), data.draw(st.sampled_from([1.0, 50.0]))
    batch = gradients[None], hessians[None], reachable[None], np.array([is_ordered])
    mixing = np.random.default_rng(depth).normal(size=(1, n_outputs, n_outputs)) if is_mixed else AS_RELEASED
    fast = smooth_ratios(*batch, noise, ridge, np.array([JAMES_STEIN_SHARE]), mixing)[0]
    own = mixing[0] if is_mixed else mixing
    slow = slow_ratios(gradients, hessians, reachable, is_ordered, noise, ridge, own)
    scale = np.abs(gradients).max() / ridge * (10 if is_mixed else 1)
    np.testing.assert_allclose(fast, slow, rtol=1e-9, atol=1e-9 * scale)


def test_trees_of_a_batch_do_not_touch_each_other():
    """What one tree released must not move another's values."""
    rng = np.random.default_rng(1)
    gradients, hessians = rng.normal(0, 9, (5, 8, 1)), rng.uniform(1, 50, (5, 8, 1))
    reachable, is_ordered = rng.random((5, 8)) < 0.7, np.array([True, False, True, True, False])
    how = 3.0, 2.0, np.ones(5), AS_RELEASED
    together = smooth_ratios(gradients, hessians, reachable, is_ordered, *how)
    for tree in range(5):
        one = slice(tree, tree + 1)
        alone = smooth_ratios(gradients[one], hessians[one], reachable[one], is_ordered[one], *how)
        assert alone.tobytes() == together[one].tobytes()


@pytest.mark.parametrize("noise", [1.0, 30.0])
def test_smoothing_brings_values_nearer_to_the_truth(noise):
    """It must be worth its code: with noisy sums of a smooth truth, the mean squared error of the leaves falls."""
    rng = np.random.default_rng(2)
    truth = np.sin(np.linspace(0, 3, 16)) * 40
    gradients = (truth + rng.normal(0, noise, (400, 16)))[..., None]
    hessians = np.full((400, 16, 1), 25.0)
    everywhere, ordered = np.ones((400, 16), dtype=bool), np.ones(400, dtype=bool)
    how = noise, 1e-9, np.full(400, JAMES_STEIN_SHARE), AS_RELEASED
    smooth = smooth_ratios(gradients, hessians, everywhere, ordered, *how)[..., 0]
    plain = gradients[..., 0] / 25
    assert ((smooth - truth / 25) ** 2).mean() < ((plain - truth / 25) ** 2).mean() * (1.05 if noise == 1.0 else 0.8)


def test_without_a_ridge_an_empty_leaf_says_nothing():
    """0 / 0 must not become a value of the model."""
    nothing = np.zeros((1, 4, 1))
    how = 0.0, 0.0, np.ones(1), AS_RELEASED
    found = smooth_ratios(nothing, nothing, np.ones((1, 4), dtype=bool), np.array([True]), *how)
    assert not found.any()


@settings(max_examples=60, deadline=None)
@given(
    n_classes=st.integers(3, 30),
    rank=st.integers(1, 40),
    noise=st.sampled_from([0.0, 0.1, 1.0, 40.0]),
    size=st.sampled_from([0.0, 1.0, 1e3]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_filter_is_that_of_the_eigenvalues(n_classes, rank, noise, size, seed):
    """Beside a library's eigenvectors: 1 - noise**2 / v of every direction, nothing of one that the noise explains."""
    sums = np.random.default_rng(seed).normal(0, size, (n_classes, rank))
    covariance = sums @ sums.T / rank
    found = wiener_filter(covariance, noise**2)
    values, vectors = np.linalg.eigh(covariance)
    kept = np.where(values > noise**2, 1 - noise**2 / np.maximum(values, 1e-300), 0.0)
    # A direction without any signal may be kept or not where there is no noise: its sums are 0.
    on = sums if noise == 0 else np.eye(n_classes)
    expected = (vectors * kept) @ vectors.T @ on
    np.testing.assert_allclose(found @ on, expected, atol=1e-6 * max(1.0, size if noise == 0 else 1.0))


def _released(gradients, noise):
    shape = gradients.shape
    return NoisyLeaves(gradients, np.ones(shape), noise, noise, np.ones(shape[:2], dtype=np.int64))


def test_the_covariance_is_that_of_the_leaves_so_far():
    """Reachable leaves only, less what is the same for all classes, older trees for less, its own features for more."""
    rng, noise = np.random.default_rng(4), 2.0
    gradients, reachable = rng.normal(0, 5, (7, 8, 4)), rng.random((7, 8)) < 0.7
    subsets = [(0,), (1,), (0,), (0, 1), (1,), (0,), (0, 1)]
    filters, products, count = ClassCovariance(4), np.zeros((4, 4)), 0.0
    own = {subset: [np.zeros((4, 4)), 0.0] for subset in subsets}
    for tree, subset in enumerate(subsets):
        centred = gradients[tree][reachable[tree]]
        centred = centred - centred.mean(axis=1, keepdims=True)
        products = MEMORY * products + centred.T @ centred
        count = MEMORY * count + len(centred)
        its = own[subset]
        its[0], its[1] = OWN_MEMORY * its[0] + centred.T @ centred, OWN_MEMORY * its[1] + len(centred)
        covariance = (its[0] + LEAVES_OF_ALL * products / count) / (its[1] + LEAVES_OF_ALL)
        one = slice(tree, tree + 1)
        found = filters.update_and_filter(_released(gradients[one], noise), reachable[one], [subset])
        np.testing.assert_allclose(found[0], wiener_filter(covariance, noise**2), atol=1e-9)


def test_a_batch_has_a_filter_for_each_of_its_trees():
    """All of its trees are known before the first filter; the same features share theirs in the order of the trees."""
    rng, noise = np.random.default_rng(8), 2.0
    released, everywhere = _released(rng.normal(0, 5, (3, 8, 4)), noise), np.ones((3, 8), dtype=bool)
    found = ClassCovariance(4).update_and_filter(released, everywhere, [(0,), (1,), (0,)])
    assert len({mixing.tobytes() for mixing in found}) == 3
    other = ClassCovariance(4).update_and_filter(released, everywhere, [(2,), (1,), (0,)])
    assert found[:2].tobytes() == other[:2].tobytes()


def test_classes_that_go_together_are_told_apart_from_noise():
    """It must be worth its code: of signal in 2 of 12 directions, less than half the noise is left."""
    rng, noise = np.random.default_rng(5), 30.0
    ways = rng.normal(size=(2, 12))
    ways -= ways.mean(axis=1, keepdims=True)
    filters, worse, better = ClassCovariance(12), 0.0, 0.0
    for _ in range(40):
        truth = rng.normal(0, 60, (16, 2)) @ ways
        released = truth + rng.normal(0, noise, truth.shape)
        mixing = filters.update_and_filter(_released(released[None], noise), np.ones((1, 16), dtype=bool), [(0,)])[0]
        worse += ((released - truth) ** 2).sum()
        better += ((released @ mixing - truth) ** 2).sum()
    assert better < 0.5 * worse


def test_features_that_tell_other_classes_apart_have_filters_of_their_own():
    """It must be worth its code: one feature in four says something, and only of it is more than a trace kept."""
    rng, noise, way = np.random.default_rng(9), 30.0, np.array([1.0, -1.0, 0.0, 0.0])
    filters, everywhere, errors = ClassCovariance(4), np.ones((1, 16), dtype=bool), {"own": 0.0, "all": 0.0}
    together = ClassCovariance(4, by_features=False)
    for tree in range(80):
        truth = rng.normal(0, 60 if tree % 4 == 0 else 0, (16, 1)) * way
        released = truth + rng.normal(0, noise, truth.shape)
        for name, known in (("own", filters), ("all", together)):
            mixing = known.update_and_filter(_released(released[None], noise), everywhere, [(tree % 4,)])[0]
            errors[name] += ((released @ mixing - truth) ** 2).sum()
    assert errors["own"] < 0.9 * errors["all"]


def test_many_classes_keep_a_filter_for_some_trees():
    """The filter costs the cube of the classes, and is not computed anew for every tree of very many."""
    rng, n_classes = np.random.default_rng(6), 2 * CLASSES_PER_TREE
    filters, everywhere = ClassCovariance(n_classes), np.ones((1, 4), dtype=bool)
    releases = [_released(rng.normal(size=(1, 4, n_classes)), 0.1) for _ in range(7)]
    made = [filters.update_and_filter(released, everywhere, [(0,)]) for released in releases]
    assert len({mixing.tobytes() for mixing in made}) == 3


def slow_expected(gradients, hessians, reachable, is_chain, spread, noise, hessian_noise):
    """Values and risk for one spread: a normal prior, conditioned on all sums at once."""
    n_leaves, used = len(gradients), np.flatnonzero(reachable)
    if is_chain:
        place = np.cumsum(reachable) - 1
        before = spread**2 * (LEVEL_OF_CHAIN + np.minimum.outer(place, place))
    else:
        before = np.full((n_leaves, n_leaves), spread**2)
        for level in range(1, int(math.log2(n_leaves)) + 1):
            part = np.arange(n_leaves) // (n_leaves >> level)
            parts_of_parent = [reachable.reshape(2 ** (level - 1), 2, -1).any(axis=2).all(axis=1)[k // 2] for k in part]
            before += spread**2 * np.equal.outer(part, part) * np.array(parts_of_parent)
    seen = np.diag(hessians)[used]
    known = noise**2 + (spread * hessian_noise) ** 2
    gain = before @ seen.T @ np.linalg.inv(seen @ before @ seen.T + known * np.eye(len(used)))
    values = gain @ gradients[used]
    left = gradients - hessians * values
    risk = (left[used] ** 2).sum() / noise**2 + 2 * np.trace(seen @ gain)
    return values, risk


@settings(max_examples=150, deadline=None)
@given(data=st.data(), depth=st.integers(1, 4), is_chain=st.booleans())
def test_expected_values_are_those_of_a_normal_prior(data: st.DataObject, depth: int, is_chain: bool) -> None:
    """Two passes give what conditioning on all sums together gives, for values and for Stein's estimate of the risk."""
    n_leaves = 2**depth
    reachable = np.array(data.draw(st.lists(st.booleans(), min_size=n_leaves, max_size=n_leaves)))
    reachable[data.draw(st.integers(0, n_leaves - 1))] = True
    gradients = np.array(data.draw(st.lists(st.floats(-300, 300), min_size=n_leaves, max_size=n_leaves)))
    hessians = np.array(data.draw(st.lists(st.floats(0, 900), min_size=n_leaves, max_size=n_leaves)))
    noise, hessian_noise = data.draw(st.floats(0.5, 40)), data.draw(st.floats(0, 80))
    values, risks = compute_expected_values(gradients, hessians, reachable, is_chain, SPREADS, noise, hessian_noise)
    assert not values[0].any()
    for number, spread in enumerate(SPREADS[1:], start=1):
        slow, risk = slow_expected(gradients, hessians, reachable, is_chain, spread, noise, hessian_noise)
        assert values[number][reachable] == pytest.approx(slow[reachable], rel=1e-6, abs=1e-7)
        assert risks[number] == pytest.approx(risk, rel=1e-6, abs=1e-6)


def _leaves_of(random: np.random.Generator, steps: np.ndarray, noise: float) -> NoisyLeaves:
    """What a tree of even leaves releases whose values are `steps`."""
    hessians = np.full(len(steps), 200.0)
    gradients = hessians * steps + noise * random.standard_normal(len(steps))
    return NoisyLeaves(
        gradients[None, :, None], hessians[None, :, None], noise, noise / 2, hessians[None].astype(np.int64)
    )


def _tree_on_one_feature(depth: int) -> TreeBatch:
    """A tree that cuts 2**depth cells apart."""
    n_leaves = 2**depth
    threshold = [(2 * place + 1) * (n_leaves >> (level + 1)) - 1 for level in range(depth) for place in range(2**level)]
    codes = np.arange(n_leaves + 1)
    goes_left = np.array([[codes <= cut for cut in threshold]], dtype=np.uint8)
    return TreeBatch(np.zeros((1, n_leaves - 1), dtype=np.int32), goes_left, np.array([threshold], dtype=np.int32))


RULE = LeafRule("newton", 0.25, 1.0, 1.5, 2.0, 1, smooths=True, shape_rate=0.5, subset_rate=0.4)


@pytest.mark.parametrize(("size", "noise"), [(0.0, 10.0), (0.3, 1.0), (0.05, 10.0)])
def test_a_spread_follows_what_releases_show(size: float, noise: float) -> None:
    """Noise alone moves next to nothing, a clear signal is taken nearly as it is, and one in between beats both."""
    random, tree, spread = np.random.default_rng(5), _tree_on_one_feature(4), ValueSpread()
    true = size * np.sin(np.arange(16) / 2)
    errors, plain = [], []
    for _ in range(30):
        leaves = _leaves_of(random, true, noise)
        expected, rates = spread.update_and_smooth(leaves, tree, RULE)
        assert rates.tolist() == [[[RULE.shape_rate]]]
        errors.append(((expected[0, :, 0] - true) ** 2).mean())
        plain.append(((leaves.gradients / leaves.hessians)[0, :, 0] - true) ** 2)
    nothing, everything = (true**2).mean(), np.mean(plain)
    assert np.mean(errors) < 1.05 * min(everything, nothing) + 0.1 * everything
    if 0 < size < 0.1:
        assert np.mean(errors) < 0.7 * min(everything, nothing)


def test_a_leaf_of_few_records_is_not_believed() -> None:
    """The noise of its Hessian may make a leaf look full: its value keeps to that of its neighbours."""
    leaves = _leaves_of(np.random.default_rng(1), np.full(16, 0.2), 10.0)
    leaves.hessians[0, 7], leaves.gradients[0, 7] = 3.0, -60.0
    loud = NoisyLeaves(leaves.gradients, leaves.hessians, 10.0, 150.0, leaves.integer_hessians)
    expected, _ = ValueSpread().update_and_smooth(loud, _tree_on_one_feature(4), RULE)
    assert 0.1 < expected[0, 7, 0] < 0.3


def test_only_trees_that_the_rule_names_have_expected_values() -> None:
    """Without a rate, and on features with a direction, leaves follow the ridge."""
    leaves, tree = _leaves_of(np.random.default_rng(1), np.full(16, 0.2), 10.0), _tree_on_one_feature(4)
    none = replace(RULE, shape_rate=0.0)
    held = replace(RULE, directions=Directions(np.array([1]), np.array([17])))
    for rule in (none, held):
        values = compute_values(leaves, tree, rule, spread=ValueSpread())
        assert values.tolist() == compute_values(leaves, tree, rule).tolist()
    assert (
        compute_values(leaves, tree, RULE, spread=ValueSpread()).tolist() != compute_values(leaves, tree, RULE).tolist()
    )
