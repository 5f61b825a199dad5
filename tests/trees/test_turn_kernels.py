"""What a turn gained: sums that are rounded once, as the definition's are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.training.features import exact_sum, take_gains

ANY_SIZE = st.floats(-1e100, 1e100)
POWERS = st.builds(lambda sign, power: sign * 2.0**power, st.sampled_from([-1.0, 1.0]), st.integers(-160, 160))
NEXT_TO_EACH_OTHER = st.builds(lambda sign, power: sign * 2.0**power, st.sampled_from([-1.0, 1.0]), st.integers(-3, 56))


@settings(max_examples=400, deadline=None)
@given(values=st.lists(ANY_SIZE | st.floats(-4, 4), max_size=60) | st.lists(POWERS) | st.lists(NEXT_TO_EACH_OTHER))
def test_a_sum_is_rounded_once(values: list[float]) -> None:
    """Whatever cancels out and however sizes differ, and where the sum lies half way between two numbers."""
    assert exact_sum(np.array(values)) == math.fsum(values)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("rest", [0.0, 2.0**-120, -(2.0**-120)])
@pytest.mark.parametrize("odd", [0.0, 2.0**-52])
def test_half_way_the_rest_decides(sign: int, rest: float, odd: float) -> None:
    """1 + 2**-53 and the number after it: to the even one, unless something smaller is on one side."""
    values = [sign * (1 + odd), sign * 2.0**-53, sign * rest]
    assert exact_sum(np.array(values)) == math.fsum(values)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), n_outputs=st.integers(1, 3), ridge=st.sampled_from([0.0, 2.5]), seed=st.integers(0, 2**32))
def test_gains_are_those_of_the_definition(data: st.DataObject, n_outputs: int, ridge: float, seed: int) -> None:
    """The sum over leaves of (G**2 - noise**2) / (H + ridge), 0 for an empty leaf; the last turn of a subset counts."""
    random = np.random.default_rng(seed)
    turns = np.array(data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=6)))
    gradients = random.normal(0, 30, (len(turns), 4, n_outputs))
    hessians = random.uniform(0, 9, gradients.shape) * random.integers(0, 2, gradients.shape)
    found = np.full(5, -7.0)
    take_gains(turns, gradients, hessians, 2.25, ridge, found)
    wanted = [-7.0] * 5
    for turn, own_gradients, own_hessians in zip(turns.tolist(), gradients, hessians, strict=True):
        pairs = zip(own_gradients.ravel().tolist(), own_hessians.ravel().tolist(), strict=True)
        wanted[turn] = math.fsum((g * g - 2.25) / (h + ridge) for g, h in pairs if h + ridge > 0)
    assert found.tolist() == wanted
