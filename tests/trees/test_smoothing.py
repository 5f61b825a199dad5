"""Pooling and shrinkage of released leaves, beside a slow and exactly rounded computation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.trees.leaves import JAMES_STEIN_SHARE, smoothed_ratios

SUMS = st.floats(-1e6, 1e6, allow_subnormal=False)


def slow_ratios(gradients, hessians, reachable, is_ordered, noise, ridge):
    """One tree's leaves, by the definition; every sum is rounded once."""
    used = [leaf for leaf in range(len(reachable)) if reachable[leaf]]
    mass = [math.fsum(hessians[leaf]) / len(hessians[leaf]) for leaf in used]
    middle = [math.fsum(mass[:i]) + mass[i] / 2 for i in range(len(used))]
    energy = math.fsum(float(g) ** 2 for leaf in used for g in gradients[leaf])
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
@given(data=st.data(), depth=st.integers(1, 5), n_outputs=st.integers(1, 3), is_ordered=st.booleans())
def test_the_kernel_computes_what_the_definition_says(data, depth, n_outputs, is_ordered):
    """Any sums, any unreachable leaves, with and without noise and ridge: equal but for the rounding of sums."""
    shape = (2**depth, n_outputs)
    n_sums = shape[0] * n_outputs
    gradients = np.array(data.draw(st.lists(SUMS, min_size=n_sums, max_size=n_sums))).reshape(shape)
    hessians = np.abs(np.array(data.draw(st.lists(SUMS, min_size=n_sums, max_size=n_sums)))).reshape(shape)
    reachable = np.array(data.draw(st.lists(st.booleans(), min_size=shape[0], max_size=shape[0])))
    noise, ridge = data.draw(st.sampled_from([0.0, 0.5, 100.0])), data.draw(st.sampled_from([1.0, 50.0]))
    batch = gradients[None], hessians[None], reachable[None], np.array([is_ordered])
    fast = smoothed_ratios(*batch, noise, ridge, np.array([JAMES_STEIN_SHARE]))[0]
    slow = slow_ratios(gradients, hessians, reachable, is_ordered, noise, ridge)
    scale = np.abs(gradients).max() / ridge
    np.testing.assert_allclose(fast, slow, rtol=1e-9, atol=1e-9 * scale)


def test_trees_of_a_batch_do_not_touch_each_other():
    """What one tree released must not move another's values."""
    rng = np.random.default_rng(1)
    gradients, hessians = rng.normal(0, 9, (5, 8, 1)), rng.uniform(1, 50, (5, 8, 1))
    reachable, is_ordered = rng.random((5, 8)) < 0.7, np.array([True, False, True, True, False])
    together = smoothed_ratios(gradients, hessians, reachable, is_ordered, 3.0, 2.0, np.ones(len(gradients)))
    for tree in range(5):
        one = slice(tree, tree + 1)
        alone = smoothed_ratios(gradients[one], hessians[one], reachable[one], is_ordered[one], 3.0, 2.0, np.ones(1))
        assert alone.tobytes() == together[one].tobytes()


@pytest.mark.parametrize("noise", [1.0, 30.0])
def test_smoothing_brings_values_nearer_to_the_truth(noise):
    """It must be worth its code: with noisy sums of a smooth truth, the mean squared error of the leaves falls."""
    rng = np.random.default_rng(2)
    truth = np.sin(np.linspace(0, 3, 16)) * 40
    gradients = (truth + rng.normal(0, noise, (400, 16)))[..., None]
    hessians = np.full((400, 16, 1), 25.0)
    everywhere, ordered = np.ones((400, 16), dtype=bool), np.ones(400, dtype=bool)
    shares = np.full(400, JAMES_STEIN_SHARE)
    smooth = smoothed_ratios(gradients, hessians, everywhere, ordered, noise, 1e-9, shares)[..., 0]
    plain = gradients[..., 0] / 25
    assert ((smooth - truth / 25) ** 2).mean() < ((plain - truth / 25) ** 2).mean() * (1.05 if noise == 1.0 else 0.8)


def test_without_a_ridge_an_empty_leaf_says_nothing():
    """0 / 0 must not become a value of the model."""
    nothing = np.zeros((1, 4, 1))
    found = smoothed_ratios(nothing, nothing, np.ones((1, 4), dtype=bool), np.array([True]), 0.0, 0.0, np.ones(1))
    assert not found.any()
