"""Distributed noise: the total is never less than promised, and the bound for sums of discrete Gaussians holds."""

from __future__ import annotations

from fractions import Fraction
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.errors import PrivacyError
from hedgerow.secagg.guarantees import Wishes, default_colluders, derive
from hedgerow.secagg.masks import draw_shares, share_variance
from hedgerow.secagg.messages import NoiseMode, VectorSpec
from hedgerow.secagg.session import Drops, EpochSession
from tests.secagg.lab import seeded_entropy


@given(st.integers(3, 120), st.booleans(), st.data())
def test_the_honest_shares_of_any_releasable_sum_reach_the_variance(n, has_echo, data):
    """Whatever drops out: the guaranteed honest group's shares alone make up sigma^2, exactly."""
    guarantees = derive(n, Wishes(default_colluders(n), has_echo=has_echo))
    total = Fraction(data.draw(st.integers(1, 10**6)), data.draw(st.integers(1, 100)))
    honest = data.draw(st.integers(guarantees.honest_group, n - guarantees.n_colluders))
    assert share_variance(total, guarantees) * honest >= total


def test_the_price_is_the_documented_one():
    """n = 100, 16 colluders, all present: 100/51 of the variance with an echo, 100/30 without."""
    without, with_echo = derive(100, Wishes(16)), derive(100, Wishes(16, has_echo=True))
    assert 100 * share_variance(Fraction(1), without) == Fraction(100, 30)
    assert 100 * share_variance(Fraction(1), with_echo) == Fraction(100, 51)


@pytest.mark.parametrize("variance", [Fraction(0), Fraction(-1)])
def test_no_variance_is_no_noise_and_refused(variance):
    """Fail closed: distributed noise of zero variance would be an exact sum under a private name."""
    with pytest.raises(PrivacyError):
        share_variance(variance, derive(5, Wishes(1)))


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
