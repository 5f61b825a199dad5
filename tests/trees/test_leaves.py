"""Leaf rules: from a noisy sum to a value that is finite, bounded and what the papers' equations say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.losses.registry import build_loss
from hedgerow.losses.tables import SCORE_UNIT, Loss
from hedgerow.protocol.queries import TreeBatch
from hedgerow.trees import leaves as leaves_module
from hedgerow.trees.leaves import LeafRule, NoisyLeaves, leaf_values, read_sums
from tests.builders import LABELS, contributions, make_plan, separating_tree

SUMS = st.one_of(st.integers(-(2**20), 2**20), st.integers(-(2**62), 2**62), st.just(0))


def loss_of(label: str, update: str) -> Loss:
    return build_loss(make_plan(label, model={"weight_update": update}))


def rule(update: str, **changes: float) -> LeafRule:
    values = {"learning_rate": 0.5, "leaf_ridge": 1.0, "noise_ridge": 2.0, "leaf_clip": 2.0, "divisor": 1, **changes}
    return LeafRule(weight_update=update, **values)  # type: ignore[arg-type]


def values_of(sums: NDArray[np.int64], sigma: float, loss: Loss, how: LeafRule) -> NDArray[np.int32]:
    """The values of one tree on one feature with as many leaves as there are sums."""
    n_leaves = sums.size // loss.n_statistics
    nodes = np.zeros((1, n_leaves - 1), dtype=np.int32)
    trees = TreeBatch(nodes, np.zeros((1, n_leaves - 1, 2), dtype=np.uint8), nodes)
    return leaf_values(sums.reshape(-1), sigma, loss, trees, how)


@settings(max_examples=150)
@given(data=st.data())
def test_values_are_bounded_whatever_is_released(data: st.DataObject) -> None:
    """No release, ridge, rate or clip gives a value beyond its bound, nor one that 32 bits cannot hold."""
    update = data.draw(st.sampled_from(["newton", "gradient", "averaging"]))
    loss = loss_of(data.draw(st.sampled_from(sorted(LABELS))), update)
    sums = np.array(data.draw(st.lists(SUMS, min_size=2 * loss.n_statistics, max_size=2 * loss.n_statistics)))
    pick = st.sampled_from
    changes = {
        "learning_rate": data.draw(pick([0.01, 0.3, 9.9])),
        "leaf_ridge": data.draw(pick([0.0, 1.0, 1e9])),
        "noise_ridge": data.draw(pick([0.0, 2.0])),
        "leaf_clip": data.draw(pick([0.1, 2.0, 1e6])),
        "divisor": data.draw(pick([1, 7])),
        "largest": data.draw(pick([2**31 - 1, 2**20])),
    }
    sigma = data.draw(pick([0.0, 1.0, 1e9]))
    values = values_of(sums, sigma, loss, rule(update, **changes))
    assert values.dtype == np.int32 and values.shape[:2] == (1, 2)
    largest = np.abs(values.astype(np.int64)).max()
    assert largest <= changes["largest"]
    reach = 1.0 if update == "averaging" else changes["learning_rate"] * changes["leaf_clip"]
    assert largest <= reach * SCORE_UNIT / changes["divisor"] + 1


def test_newton_values_equal_the_equation() -> None:
    """-rate G / (H + ridge) with the ridge raised by the noise: CCS'22, equation 4; 0 where noise has taken the H."""
    loss = loss_of("binary", "newton")
    real = np.array([[3.0, 5.0], [-4.0, 2.0], [100.0, 1.0], [1.0, -3.0]])
    sums = np.rint(real * loss.scales).astype(np.int64)
    sigma = 0.25 * float(loss.scales[0])
    values = values_of(sums, sigma, loss, rule("newton"))[0, :, 0] / SCORE_UNIT
    ridge = 1.0 + 2.0 * 0.25
    wanted = [-0.5 * 3 / (5 + ridge), 0.5 * 4 / (2 + ridge), -0.5 * 2.0, 0.0]
    np.testing.assert_allclose(values, wanted, atol=2e-4)


def test_an_empty_leaf_says_nothing() -> None:
    """Without any ridge and without records the value is zero, not a division by zero."""
    for label in LABELS:
        loss = loss_of(label, "newton")
        values = values_of(np.zeros(2 * loss.n_statistics, dtype=np.int64), 0.0, loss, rule("newton", leaf_ridge=0.0))
        assert not values.any()


def test_averages_are_shares_of_the_classes() -> None:
    """A leaf's value is the share of each class, even when noise made a count negative or a leaf empty."""
    loss = loss_of("multiclass", "averaging")
    unit = int(loss.scales[0])
    sums = np.array([[3, 1, 0, 0], [2, 2, -5, 4], [0, 0, 0, 0], [-1, -1, -1, -1]]) * unit
    shares = values_of(sums, 1.0, loss, rule("averaging"))[0] / SCORE_UNIT
    np.testing.assert_allclose(shares, [[0.75, 0.25, 0, 0], [0.25, 0.25, 0, 0.5], [0.25] * 4, [0.25] * 4], atol=1e-4)


@pytest.mark.parametrize("smooths", [False, True])
def test_an_empty_leaf_adds_nothing_without_a_ridge_of_its_noise(smooths: bool) -> None:
    """Its gradients are noise; `leaf_ridge` alone would make of them the longest step of all."""
    hessians = np.where(np.arange(256) % 3, 40.0, 0.0)[None, :, None]
    leaves = NoisyLeaves(np.full((1, 256, 1), 30.0), hessians, 5.0, 5.0, np.zeros((1, 256), dtype=np.int64))
    how = replace(rule("newton", noise_ridge=0.0), smooths=smooths)
    found = leaves_module.compute_values(leaves, separating_tree(), how)
    assert ((found != 0) == (hessians > 0)).all()


def test_a_share_is_the_ratio_of_its_two_sums() -> None:
    """With a Hessian scale, averaging sums (1{y=1}, c) as in CCS'22, section 4.4.1; noise cannot leave [0, 1]."""
    plan = make_plan("binary", model={"weight_update": "averaging"})
    loss = build_loss(plan, hessian_scale=1.0)
    np.testing.assert_allclose(loss.norm_squared, 2**28, rtol=1e-3)
    assert loss.table[0, 0].tolist() == [0, loss.table[1, 0, 1]] and loss.table[1, 0, 0] == loss.table[1, 0, 1]
    sums = np.rint(np.array([[30.0, 40.0], [5.0, 4.0], [-1.0, 4.0], [2.0, -1.0]]) * loss.scales).astype(np.int64)
    shares = values_of(sums, 1.0, loss, rule("averaging"))[0, :, 0] / SCORE_UNIT
    np.testing.assert_allclose(shares, [0.75, 1.0, 0.0, 0.5], atol=1e-4)


def test_regression_averages_are_the_mean_label() -> None:
    """Averaged labels come back in the scale in which they went in."""
    loss = loss_of("regression", "averaging")
    labels = np.array([SCORE_UNIT // 2, SCORE_UNIT // 4, -SCORE_UNIT // 8])
    sums = contributions(loss, labels, np.zeros((0, 3), dtype=np.int64)).sum(axis=0)
    value = values_of(np.concatenate([sums, sums]), 0.0, loss, rule("averaging"))[0, 0, 0] / SCORE_UNIT
    assert value == pytest.approx((0.5 + 0.25 - 0.125) / 3, abs=1e-3)


def test_negative_hessians_are_cut_off() -> None:
    """Noise can make a Hessian negative; no Hessian is, and a negative denominator would turn a value round."""
    loss = loss_of("binary", "newton")
    leaves = read_sums(np.array([1000, -(10**9), 1000, 10**6]), 50.0, loss, 1)
    assert leaves.hessians.min() == 0 and leaves.gradients.shape == (1, 2, 1)
    assert leaves.gradient_noise == pytest.approx(50.0 / loss.scales[0])
