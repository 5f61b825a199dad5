"""The accountants: one contract for all of them, and exact accounting against two independent oracles."""

from __future__ import annotations

import math
import warnings

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.errors import PrivacyError
from hedgerow.privacy.accountants import delta_of_mu, epsilon_of_mu, epsilon_of_rho, epsilon_rdp, get_accountant, mu_of
from hedgerow.privacy.cost import compose_cost
from hedgerow.privacy.events import DiscreteGaussianEvent, DiscreteGaussianSumEvent, Event, GaussianEvent, UnnoisedEvent
from tests.builders import coded

multipliers = st.floats(0.05, 1e4)
counts = st.integers(1, 1000)
deltas = st.floats(-15 * math.log(10), math.log(0.5)).map(math.exp)
gaussian_events = st.builds(GaussianEvent, multipliers, counts)
discrete_events = st.builds(
    lambda sigma, sensitivity, length, count: DiscreteGaussianEvent.from_integers(sigma, sensitivity**2, length, count),
    st.integers(5_000, 10**9),
    st.integers(1, 5_000),
    st.integers(1, 100_000),
    st.integers(1, 200),
)
sum_events = st.builds(
    lambda sigma, n_shares, sensitivity, length: DiscreteGaussianSumEvent.from_shares(
        sigma, n_shares, sensitivity**2, length
    ),
    st.integers(5_000, 10**9),
    st.integers(1, 200),
    st.integers(1, 5_000),
    st.integers(1, 100_000),
)
events = st.one_of(gaussian_events, discrete_events, sum_events)


def test_every_accountant_has_tests() -> None:
    """Those of Gaussian releases are here, the others in test_pure_accounting.py."""
    with pytest.raises(PrivacyError, check=coded("unknown-name")):
        get_accountant("exact")


@pytest.mark.parametrize("name", ["gdp", "rdp"])
class TestContract:
    """What every accountant of Gaussian releases must do."""

    @settings(deadline=None, max_examples=60)
    @given(sequence=st.lists(events, min_size=1, max_size=4), extra=events, delta=deltas)
    def test_more_releases_cost_more(self, name: str, sequence: list[Event], extra: Event, delta: float) -> None:
        """Protects composition: one more release never makes a run cheaper, and no run is negative."""
        accountant = get_accountant(name)
        before = accountant.epsilon(sequence, delta)
        after = accountant.epsilon([*sequence, extra], delta)
        assert 0 <= before <= after * (1 + 1e-10)

    @settings(deadline=None, max_examples=60)
    @given(sequence=st.lists(events, min_size=1, max_size=4), delta=deltas, factor=st.floats(1.001, 100))
    def test_larger_delta_or_more_noise_cost_less(
        self, name: str, sequence: list[Event], delta: float, factor: float
    ) -> None:
        """Protects the direction of delta and of the noise multiplier."""
        accountant = get_accountant(name)
        epsilon = accountant.epsilon(sequence, delta)
        assert accountant.epsilon(sequence, min(delta * factor, 0.9)) <= epsilon * (1 + 1e-10)
        plain = [event for event in sequence if isinstance(event, GaussianEvent)]
        noisier = [GaussianEvent(event.noise_multiplier * factor, event.count) for event in plain]
        assert accountant.epsilon(noisier, delta) <= accountant.epsilon(plain, delta) * (1 + 1e-10)

    @settings(deadline=None, max_examples=40)
    @given(multiplier=st.floats(0.5, 1000), count=st.integers(2, 1000), delta=deltas)
    def test_count_is_repetition(self, name: str, multiplier: float, count: int, delta: float) -> None:
        """Protects `count` and the square-root law: k releases equal one with the multiplier divided by sqrt(k)."""
        accountant = get_accountant(name)
        counted = accountant.epsilon([GaussianEvent(multiplier, count)], delta)
        assert counted == pytest.approx(accountant.epsilon([GaussianEvent(multiplier)] * count, delta), rel=1e-9)
        joint = accountant.epsilon([GaussianEvent(multiplier / math.sqrt(count))], delta)
        assert counted == pytest.approx(joint, rel=1e-9)

    def test_nothing_costs_nothing(self, name: str) -> None:
        """Protects the empty ledger."""
        assert get_accountant(name).epsilon([], 1e-6) == 0

    def test_unnoised_is_infinite(self, name: str) -> None:
        """Protects promise 2: one un-noised release makes the run infinite, whatever else was noised."""
        accountant = get_accountant(name)
        assert accountant.supports(UnnoisedEvent())
        assert accountant.epsilon([GaussianEvent(1e6), UnnoisedEvent()], 1e-6) == math.inf

    @pytest.mark.parametrize("stranger", ["a string", None, type("Subclass", (GaussianEvent,), {})(1.0)])
    def test_unknown_events_are_refused(self, name: str, stranger: object) -> None:
        """Protects failing closed: what is not known, a subclass included, is an error and not free."""
        accountant = get_accountant(name)
        assert not accountant.supports(stranger)
        with pytest.raises(PrivacyError) as caught:
            accountant.epsilon([GaussianEvent(1.0), stranger], 1e-6)  # type: ignore[list-item]
        assert caught.value.code == "unknown-event"

    @pytest.mark.parametrize("delta", [0.0, 1.0, -1e-6, 2.0, math.nan, math.inf])
    def test_delta_out_of_range_is_refused(self, name: str, delta: float) -> None:
        """Protects the promise from a meaningless delta."""
        with pytest.raises(PrivacyError) as caught:
            get_accountant(name).epsilon([GaussianEvent(1.0)], delta)
        assert caught.value.code == "delta-out-of-range"

    @settings(deadline=None, max_examples=40)
    @given(event=discrete_events, delta=deltas)
    def test_the_grid_never_comes_for_free(self, name: str, event: DiscreteGaussianEvent, delta: float) -> None:
        """Protects the lattice slack: integer noise is never accounted below continuous noise of the same size."""
        accountant = get_accountant(name)
        continuous = accountant.epsilon([GaussianEvent(event.noise_multiplier, event.count)], delta)
        # At an epsilon of 1e-5 and below, both sides are rounded up by up to 1e-10 of themselves.
        assert accountant.epsilon([event], delta) >= continuous * (1 - 1e-9)

    @pytest.mark.parametrize("n_shares", [2, 10, 1000])
    def test_small_shares_are_charged(self, name: str, n_shares: int) -> None:
        """Protects the sum of discrete Gaussians: shares of one grid unit cost visibly more, shares of 1000 do not."""
        accountant = get_accountant(name)
        for share_sigma, dear in ((1, True), (1000, False)):
            whole = n_shares * share_sigma**2
            event = DiscreteGaussianSumEvent.from_shares(share_sigma, n_shares, max(1, whole // 10_000), 1_000)
            single = GaussianEvent(event.noise_multiplier)
            ratio = accountant.epsilon([event], 1e-6) / accountant.epsilon([single], 1e-6)
            assert ratio > 1.001 if dear else ratio == pytest.approx(1, rel=1e-4)


def test_an_accountant_of_another_name_is_refused() -> None:
    """Protects plans with a misspelled accountant from the default."""
    with pytest.raises(PrivacyError) as caught:
        get_accountant("moments")
    assert caught.value.code == "unknown-name"
    assert "gdp" in str(caught.value)


def _delta_by_mpmath(mu: float, epsilon: float) -> mpmath.mpf:
    """delta(epsilon) by its defining difference, with 400 digits: an oracle that shares no step with ours."""
    with mpmath.workdps(400):
        mu_, epsilon_ = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(mu_ / 2 - epsilon_ / mu_) - mpmath.exp(epsilon_) * mpmath.ncdf(-mu_ / 2 - epsilon_ / mu_)


@settings(deadline=None, max_examples=150)
@given(log_mu=st.floats(-3, 2), log_epsilon=st.floats(-4, 2.9))
def test_delta_agrees_with_mpmath_and_is_rounded_up(log_mu: float, log_epsilon: float) -> None:
    """Protects the closed form where naive formulas lose all digits or overflow: never below the truth, and near it."""
    mu, epsilon = 10**log_mu, 10**log_epsilon
    truth = _delta_by_mpmath(mu, epsilon)
    ours = delta_of_mu(mu, epsilon)
    assert ours >= truth
    if truth > 1e-30:
        assert ours <= float(truth) * (1 + 1e-8)


@settings(deadline=None, max_examples=60)
@given(log_epsilon=st.floats(-3, 2), log_delta=st.floats(-15, -0.5))
def test_mu_and_epsilon_are_inverse_and_safe(log_epsilon: float, log_delta: float) -> None:
    """Protects both roots: round trip to 1e-9, and by mpmath mu keeps the promise while a larger mu breaks it."""
    epsilon, delta = 10**log_epsilon, 10**log_delta
    mu = mu_of(epsilon, delta)
    assert epsilon_of_mu(mu, delta) == pytest.approx(epsilon, rel=1e-9, abs=1e-12)
    assert _delta_by_mpmath(mu, epsilon) <= delta
    assert _delta_by_mpmath(mu * (1 + 1e-6), epsilon) > delta


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 8.0, 30.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-8, 1e-12])
def test_mu_agrees_with_dp_accounting(epsilon: float, delta: float) -> None:
    """Protects exactness by Google's calibration of the Gaussian mechanism."""
    gaussian_mechanism = pytest.importorskip("dp_accounting.gaussian_mechanism")
    theirs = gaussian_mechanism.get_sigma_gaussian(epsilon, delta)
    assert 1 / mu_of(epsilon, delta) == pytest.approx(theirs, rel=1e-8)


@given(st.lists(st.tuples(multipliers, counts), min_size=1, max_size=6))
def test_mu_squared_adds_up(parts: list[tuple[float, int]]) -> None:
    """Protects heterogeneous composition: mu² is the sum over all releases, in any order."""
    sequence = [GaussianEvent(multiplier, count) for multiplier, count in parts]
    total = math.fsum(count / multiplier**2 for multiplier, count in parts)
    assert compose_cost(sequence).gdp_weight == pytest.approx(total, rel=1e-12)
    assert compose_cost(sequence[::-1]).gdp_weight == compose_cost(sequence).gdp_weight


@pytest.mark.parametrize(("mu", "epsilon", "delta"), [(0.0, 1.0, 0.0), (math.inf, 1.0, 1.0), (1.0, math.inf, 0.0)])
def test_limits_of_delta(mu: float, epsilon: float, delta: float) -> None:
    """Protects the edges: no release costs nothing, an un-noised one everything."""
    assert delta_of_mu(mu, epsilon) == delta


@settings(deadline=None, max_examples=100)
@given(st.lists(gaussian_events, min_size=1, max_size=4), deltas)
def test_exact_accounting_is_never_looser_than_renyi(sequence: list[Event], delta: float) -> None:
    """Protects both accountants by each other: Renyi is an upper bound of the exact answer."""
    exact = get_accountant("gdp").epsilon(sequence, delta)
    renyi = get_accountant("rdp").epsilon(sequence, delta)
    assert exact <= renyi * (1 + 1e-9) or renyi == exact == 0


@pytest.mark.parametrize("multiplier", [0.7, 3.0, 40.0])
def test_renyi_agrees_with_autodp_composition(multiplier: float) -> None:
    """Protects the shortcut of one joint Gaussian: autodp's own composition of different mechanisms agrees."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from autodp.mechanism_zoo import GaussianMechanism
        from autodp.transformer_zoo import Composition

        parts = [
            GaussianMechanism(sigma, RDP_off=False, approxDP_off=True, phi_off=True)
            for sigma in (multiplier, 2 * multiplier)
        ]
        theirs = float(Composition()(parts, [5, 20]).get_approxDP(1e-6))
    ours = epsilon_rdp([GaussianEvent(multiplier, 5), GaussianEvent(2 * multiplier, 20)], 1e-6)
    assert ours == pytest.approx(theirs, rel=1e-8)


@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-3, 0.3])
@pytest.mark.parametrize("rho", [1e-6, 1e-3, 0.1, 1.0, 50.0, 1e5])
def test_renyi_conversion_is_autodps(rho: float, delta: float) -> None:
    """Budgets by `rdp` can be compared with published ones, which autodp converted."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        from autodp.mechanism_zoo import GaussianMechanism

        theirs = float(GaussianMechanism(1 / math.sqrt(2 * rho), approxDP_off=True, phi_off=True).get_approxDP(delta))
    assert epsilon_of_rho(rho, delta) == pytest.approx(theirs, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("rho", [1e-6, 1e-3, 0.1, 1.0, 50.0])
def test_renyi_conversion_agrees_with_dp_accounting(rho: float) -> None:
    """Another library's conversion agrees within its coarser orders."""
    accounting = pytest.importorskip("dp_accounting.rdp.rdp_privacy_accountant")
    orders = [1 + step / 1000 for step in range(1, 20_000)] + [1 + 1.01**step for step in range(280, 2000)]
    theirs, _ = accounting.compute_epsilon(orders, [rho * order for order in orders], 1e-6)
    assert epsilon_of_rho(rho, 1e-6) <= theirs * (1 + 1e-9)
    assert epsilon_of_rho(rho, 1e-6) >= theirs * (1 - 1e-3)


def test_a_distance_that_is_too_large_has_no_epsilon() -> None:
    """Protects the slack: if the distance to the Gaussian twin alone exceeds delta, the exact route gives up."""
    assert epsilon_of_mu(1.0, 1e-6, total_variation=1e-6) == math.inf
    slackened = epsilon_of_mu(1.0, 1e-6, total_variation=1e-9)
    assert epsilon_of_mu(1.0, 1e-6) < slackened < math.inf
    spent = delta_of_mu(1.0, slackened) + (1 + math.exp(slackened)) * 1e-9
    assert 1e-6 * (1 - 1e-9) < spent <= 1e-6
