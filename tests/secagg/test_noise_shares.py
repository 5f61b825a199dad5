"""Distributed noise: the total is never less than promised, and the bound for sums of discrete Gaussians holds."""

from __future__ import annotations

from fractions import Fraction
from math import exp, pi, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.secagg_lab import seeded_entropy
from hedgerow.errors import PrivacyError
from hedgerow.secagg.guarantees import Wishes, default_colluders, derive
from hedgerow.secagg.integers import (
    draw_shares,
    largest_total_variance,
    share_variance,
    sum_bound_tau,
    sum_privacy,
)
from hedgerow.secagg.messages import VectorSpec
from hedgerow.secagg.roster import NoiseMode
from hedgerow.secagg.session import Drops, EpochSession


@given(st.integers(3, 120), st.booleans(), st.data())
def test_the_honest_shares_of_any_releasable_sum_reach_the_variance(n, has_echo, data):
    """Whatever drops out: the guaranteed honest group's shares alone make up sigma^2, exactly."""
    guarantees = derive(n, Wishes(default_colluders(n), has_echo=has_echo))
    total = Fraction(data.draw(st.integers(1, 10**6)), data.draw(st.integers(1, 100)))
    honest = data.draw(st.integers(guarantees.honest_group, n - guarantees.n_colluders))
    assert share_variance(total, guarantees) * honest >= total
    assert largest_total_variance(total, guarantees, n) >= total


def test_the_price_is_the_documented_one():
    """n = 100, 16 colluders, all present: 100/51 of the variance with an echo, 100/30 without."""
    without, with_echo = derive(100, Wishes(16)), derive(100, Wishes(16, has_echo=True))
    assert largest_total_variance(Fraction(1), without, 100) == Fraction(100, 30)
    assert largest_total_variance(Fraction(1), with_echo, 100) == Fraction(100, 51)


def exact_discrete_gaussian(variance: float, reach: int) -> np.ndarray:
    weights = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) / (2 * variance))
    return weights / weights.sum()


@pytest.mark.parametrize(("variance", "shares"), [(0.3, 2), (0.5, 4), (1.0, 3), (2.25, 8)])
def test_tau_bounds_the_distance_of_the_sum_from_one_gaussian(variance, shares):
    """Convolve the exact pmfs: the greatest log-ratio to the single discrete Gaussian of n sigma^2 is below tau."""
    reach = int(12 * sqrt(variance)) + 3
    pmf = single = exact_discrete_gaussian(variance, reach)
    for _ in range(shares - 1):
        pmf = np.convolve(pmf, single)
    target = exact_discrete_gaussian(variance * shares, (len(pmf) - 1) // 2)
    spread = int(4 * sqrt(variance * shares))
    middle = slice(len(pmf) // 2 - spread, len(pmf) // 2 + spread + 1)
    distance = float(np.abs(np.log(pmf[middle] / target[middle])).max())
    tau = sum_bound_tau(Fraction(variance), shares)
    assert distance <= tau
    assert tau == pytest.approx(10 * sum(exp(-2 * pi**2 * variance * k / (k + 1)) for k in range(1, shares)))


def test_tau_vanishes_at_the_recommended_scale():
    """A share of sigma 3 grid units: below 1e-30, so the accountant may keep it without a loss."""
    assert 0 < sum_bound_tau(Fraction(9), 1000) < 1e-30
    assert sum_bound_tau(Fraction(9), 1) == 0


def test_the_privacy_of_the_sum_is_never_better_than_one_gaussian():
    """rho = D2^2 / (2 n s^2) is the limit; with small shares tau makes it worse, never better."""
    for variance in (Fraction(1, 2), Fraction(4), Fraction(100)):
        found = sum_privacy(variance, 10, length=800, l1_sensitivity=5, l2_sensitivity=3)
        ideal = 9 / (2 * 10 * float(variance))
        assert found.rho >= ideal * (1 - 1e-12)
        if variance >= 4:
            assert found.rho == pytest.approx(ideal, rel=1e-9)


@pytest.mark.parametrize("variance", [Fraction(0), Fraction(-1)])
def test_no_variance_is_no_noise_and_refused(variance):
    """Fail closed: distributed noise of zero variance would be an exact sum under a private name."""
    with pytest.raises(PrivacyError):
        share_variance(variance, derive(5, Wishes(1)))
    with pytest.raises(PrivacyError):
        sum_bound_tau(variance, 3)


def test_shares_travel_through_the_whole_protocol():
    """Every present site's share is in the sum, a dropped site's is not; the sampler is asked for sigma^2 / h."""
    sites = [f"site-{i}" for i in range(5)]
    session = EpochSession(sites, 1, seeded_entropy(1), noise=NoiseMode.DISTRIBUTED)
    vectors = (VectorSpec("v", 6, 32, 10, 10_000),)
    spec = session.spec("p", vectors, variance=Fraction(300))
    asked: list[tuple[Fraction, int]] = []
    generator = np.random.default_rng(1)

    def sampler(variance: Fraction, length: int) -> np.ndarray:
        asked.append((variance, length))
        return np.rint(generator.normal(0, sqrt(variance), length)).astype(np.int64)

    noise = {site: draw_shares(spec, session.view.guarantees, sampler) for site in sites}
    values = {site: {"v": np.full(6, -7, np.int64)} for site in sites}
    release = session.aggregate(spec, values, noise=noise, drops=Drops(vectors=["site-2"]))
    expected = sum(noise[site]["v"] for site in sites if site != "site-2") - 28
    assert (release.sums["v"] == expected).all()
    assert asked == [(Fraction(300, session.view.guarantees.honest_group), 6)] * 5
