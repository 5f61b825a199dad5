"""Reading sums and finishing values, beside the definitions in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.losses.tables import SCORE_UNIT, Loss
from hedgerow.trees.leaves import LeafRule, largest_sum, read_sums, scale_ratios


@pytest.mark.parametrize(("n_gradients", "n_statistics"), [(1, 2), (3, 6), (3, 4), (5, 10)])
@pytest.mark.parametrize("size", [10, 2**20, 2**62])
def test_sums_are_read_as_the_loss_orders_them(n_gradients: int, n_statistics: int, size: int) -> None:
    """Gradients first; a Hessian for each or one for all, never negative, and all of them together as released."""
    random = np.random.default_rng(n_statistics)
    sums = random.integers(-size, size, (3, 4, n_statistics)) // n_statistics
    scales = random.uniform(1, 1e5, n_statistics)
    loss = Loss("softmax", n_gradients, n_statistics, scales, np.empty((0, 0, 0), dtype=np.int16), 1)
    leaves = read_sums(sums, 7.0, loss, 3)
    gradients, hessians, totals = leaves.gradients, leaves.hessians, leaves.integer_hessians
    assert (leaves.gradient_noise, leaves.hessian_noise) == (7.0 / scales[0], 7.0 / scales[-1])
    for tree, leaf in np.ndindex(3, 4):
        own = sums[tree, leaf].tolist()
        real = [number / scale for number, scale in zip(own, scales.tolist(), strict=True)]
        own_hessians = [max(hessian, 0.0) for hessian in real[n_gradients:]]
        assert gradients[tree, leaf].tolist() == real[:n_gradients]
        assert hessians[tree, leaf].tolist() == own_hessians * (n_gradients // len(own_hessians))
        assert totals[tree, leaf] == sum(own[n_gradients:])


def slow_value(ratio: float, learning_rate: float, leaf_clip: float, divisor: int, largest: int) -> int:
    """One leaf's value; Python's `round` takes the even number half way between two."""
    reach = divisor * largest / SCORE_UNIT
    value = -learning_rate * sorted([-leaf_clip, ratio, leaf_clip])[1]
    return round(sorted([-reach, value, reach])[1] / divisor * SCORE_UNIT)


@settings(max_examples=150, deadline=None)
@given(
    ratios=st.lists(st.floats(-1e9, 1e9) | st.integers(-9, 9).map(lambda odd: odd / 2 / SCORE_UNIT), min_size=1),
    learning_rate=st.sampled_from([0.01, 0.3, 1.0, 9.9]),
    leaf_clip=st.sampled_from([0.1, 2.0, 1e6]),
    divisor=st.sampled_from([1, 7, 25]),
    largest=st.sampled_from([2**31 - 1, 2**31 // 100, 3]),
)
def test_values_are_finished_as_the_rule_says(
    ratios: list[float], learning_rate: float, leaf_clip: float, divisor: int, largest: int
) -> None:
    """Clipped, scaled, averaged and rounded to the nearest unit, bit for bit, and within 32 bits."""
    how = (learning_rate, leaf_clip, divisor, largest)
    rule = LeafRule("newton", learning_rate, 1.0, 0.0, leaf_clip, divisor, largest=largest)
    values = scale_ratios(np.array(ratios).reshape(1, -1, 1), rule)
    assert values.dtype == np.int32
    assert values[0, :, 0].tolist() == [slow_value(ratio, *how) for ratio in ratios]


@pytest.mark.parametrize(("n_trees", "size"), [(1, 10), (7, 2**31 - 1), (25, 2**20)])
def test_scores_grow_by_the_largest_value_of_each_tree(n_trees: int, size: int) -> None:
    """Of either sign, over all leaves and outputs, without a sum that leaves 32 bits."""
    values = np.random.default_rng(n_trees).integers(-size, size, (n_trees, 4, 3), endpoint=True).astype(np.int32)
    values[0, 2, 1] = -size
    assert largest_sum(values) == sum(max(map(abs, tree.ravel().tolist())) for tree in values)
