"""Calibration: the published noise multipliers, and a promise that is never broken."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.errors import PrivacyError
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.calibration import (
    NoiseDemand,
    calibrate_noise_multiplier,
    calibrate_sigmas,
    integer_sigma,
    list_releases,
    smallest,
)
from hedgerow.privacy.events import GaussianEvent

RELEASES = (5, 25, 100, 105, 150, 300)

# Noise multipliers per number of releases by autodp 0.2.3.1 (RDP), dp_accounting 0.6.0 (RDP) and exact composition; the
# last column was confirmed by dp_accounting's privacy loss distributions to 2e-7.
TABLE = {
    (0.1, 1e-5): (
        (75.99, 169.9, 339.8, 348.2, 416.2, 588.6),
        (76.00, 170.0, 339.9, 348.3, 416.3, 588.7),
        (68.76, 153.7, 307.5, 315.1, 376.6, 532.6),
    ),
    (0.5, 1e-5): (
        (17.14, 38.34, 76.67, 78.56, 93.90, 132.8),
        (17.14, 38.34, 76.67, 78.57, 93.91, 132.8),
        (15.72, 35.16, 70.32, 72.05, 86.12, 121.8),
    ),
    (1.0, 1e-5): (
        (9.045, 20.23, 40.45, 41.45, 49.54, 70.06),
        (9.046, 20.23, 40.45, 41.45, 49.55, 70.07),
        (8.342, 18.65, 37.31, 38.23, 45.69, 64.62),
    ),
    (1.0, 1 / 84_000): (
        (8.959, 20.03, 40.06, 41.05, 49.07, 69.39),
        (8.963, 20.04, 40.08, 41.07, 49.09, 69.42),
        (8.254, 18.46, 36.91, 37.82, 45.21, 63.94),
    ),
}


@pytest.mark.parametrize(("epsilon", "delta"), TABLE)
def test_noise_multipliers_agree_with_the_published_table(epsilon: float, delta: float) -> None:
    """Protects the size of all noise: four digits of the exact column, 1e-3 of both Renyi columns."""
    autodp, dp_accounting, exact = TABLE[epsilon, delta]
    for index, k in enumerate(RELEASES):
        ours = calibrate_noise_multiplier(epsilon, delta, k)
        assert float(f"{ours:.4g}") == pytest.approx(exact[index], rel=1e-9)
        renyi = calibrate_noise_multiplier(epsilon, delta, k, accountant="rdp")
        assert renyi == pytest.approx(autodp[index], rel=1e-3)
        assert renyi == pytest.approx(dp_accounting[index], rel=1e-3)


@pytest.mark.parametrize("accountant", ["gdp", "rdp"])
@settings(deadline=None, max_examples=60)
@given(
    log_epsilon=st.floats(-3, 2.5),
    log_delta=st.floats(-15, -0.31),
    log_weight=st.floats(-3, 6),
)
def test_the_promise_is_kept_and_nothing_wasted(
    accountant: str, log_epsilon: float, log_delta: float, log_weight: float
) -> None:
    """Protects the promise at extremes too: never above epsilon, and a little less noise would break it."""
    epsilon, delta, weight = 10**log_epsilon, 10**log_delta, 10**log_weight
    judge = get_accountant(accountant)
    multiplier = calibrate_noise_multiplier(epsilon, delta, weight, accountant)
    assert judge.epsilon([GaussianEvent(multiplier / math.sqrt(weight))], delta) <= epsilon
    smaller = GaussianEvent(multiplier * (1 - 1e-6) / math.sqrt(weight))
    assert judge.epsilon([smaller], delta) > epsilon


demands = st.lists(
    st.builds(
        NoiseDemand,
        sensitivity_squared=st.integers(2**12, 2**44),
        length=st.integers(1, 50_000),
        count=st.integers(1, 300),
        weight=st.floats(0.01, 10),
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize("accountant", ["gdp", "rdp"])
@settings(deadline=None, max_examples=40)
@given(parts=demands, log_epsilon=st.floats(-2, 1.5), log_delta=st.floats(-12, -2))
def test_integer_noise_keeps_the_promise(
    accountant: str, parts: list[NoiseDemand], log_epsilon: float, log_delta: float
) -> None:
    """Protects whole plans: with integer sigmas and the price of the grid, epsilon is never exceeded."""
    epsilon, delta = 10**log_epsilon, 10**log_delta
    sigmas = calibrate_sigmas(epsilon, delta, parts, accountant)
    assert get_accountant(accountant).epsilon(list_releases(sigmas, parts), delta) <= epsilon


def test_the_price_of_a_usual_grid_is_negligible() -> None:
    """Protects utility: at a sensitivity of 2^10 grid units, integer noise is less than 0.01 % above the continuous."""
    parts = [NoiseDemand(sensitivity_squared=2**20, length=32, count=100)]
    (sigma,) = calibrate_sigmas(1.0, 1e-6, parts)
    ideal = calibrate_noise_multiplier(1.0, 1e-6, 100)
    assert ideal <= sigma / 2**10 < ideal * 1.0001


def test_weights_split_mu_squared() -> None:
    """Protects budget splits: a weight of 1/4 gives twice the noise of a weight of 1, for the same sensitivity."""
    parts = [NoiseDemand(2**40, 10, 10), NoiseDemand(2**40, 10, 10, weight=0.25)]
    full, quarter = calibrate_sigmas(1.0, 1e-6, parts)
    assert quarter == pytest.approx(2 * full, rel=1e-9)
    assert full == pytest.approx(calibrate_noise_multiplier(1.0, 1e-6, 12.5) * 2**20, rel=1e-6)


@given(st.floats(1e-3, 1e6), st.integers(1, 2**80), st.sampled_from([1.0, 0.1, 0.37, 3.0]))
def test_integer_sigma_is_the_least_that_suffices(multiplier: float, sensitivity_squared: int, weight: float) -> None:
    """Protects rounding up: exact in rationals, and one unit less would be too little."""
    sigma = integer_sigma(multiplier, sensitivity_squared, weight)
    top, bottom = multiplier.as_integer_ratio()
    weight_top, weight_bottom = weight.as_integer_ratio()
    needed = top * top * sensitivity_squared * weight_bottom
    assert sigma >= 1
    assert sigma * sigma * bottom * bottom * weight_top >= needed
    assert sigma == 1 or (sigma - 1) ** 2 * bottom * bottom * weight_top < needed


@pytest.mark.parametrize(
    ("epsilon", "delta", "weight", "code"),
    [
        (0.0, 1e-5, 1.0, "epsilon-out-of-range"),
        (-1.0, 1e-5, 1.0, "epsilon-out-of-range"),
        (math.nan, 1e-5, 1.0, "epsilon-out-of-range"),
        (math.inf, 1e-5, 1.0, "epsilon-out-of-range"),
        (1.0, 0.0, 1.0, "delta-out-of-range"),
        (1.0, 1.0, 1.0, "delta-out-of-range"),
        (1.0, math.nan, 1.0, "delta-out-of-range"),
        (1.0, 1e-5, 0.0, "out-of-range"),
        (1.0, 1e-5, math.inf, "out-of-range"),
    ],
)
def test_arguments_out_of_range_are_refused(epsilon: float, delta: float, weight: float, code: str) -> None:
    """Protects people from a promise that means nothing; the message names the value and the way out."""
    with pytest.raises(PrivacyError) as caught:
        calibrate_noise_multiplier(epsilon, delta, weight)
    assert caught.value.code == code
    assert caught.value.cause
    assert caught.value.remedy


@pytest.mark.parametrize("wrong", [{"sensitivity_squared": 0}, {"length": 0}, {"count": 0}, {"weight": 0.0}])
def test_a_demand_out_of_range_is_refused(wrong: dict[str, float]) -> None:
    """Protects calibration from a query without sensitivity, entries or weight."""
    with pytest.raises(PrivacyError) as caught:
        NoiseDemand(**{"sensitivity_squared": 1, "length": 1, **wrong})  # type: ignore[arg-type]
    assert caught.value.code == "out-of-range"


def plain_search(needed: float, start: float, precision: float) -> float:
    """Doubling steps from the first on, then halving: every comparison made."""
    if start >= needed:
        return start
    lower, step = start, precision
    while start * (1 + step) < needed:
        lower, step = start * (1 + step), 2 * step
        if step > 1e6:
            return lower
    upper = start * (1 + step)
    while upper - lower > precision * upper:
        middle = lower + (upper - lower) / 2
        lower, upper = (lower, middle) if middle >= needed else (middle, upper)
    return upper


@settings(max_examples=300)
@given(
    size=st.floats(-16, 8), start=st.floats(1e-3, 1e6), precision=st.sampled_from([1e-14, 1e-9, 0.3]),
)  # fmt: skip
def test_a_leap_finds_what_a_search_from_the_first_step_finds(size: float, start: float, precision: float) -> None:
    """Noise is the same to the last bit, however far above the start it lies: below, at or beyond the leap."""
    needed = start * (1 + 10.0**size)
    assert smallest(lambda noise: noise >= needed, start, precision) == plain_search(needed, start, precision)
