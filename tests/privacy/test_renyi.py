"""Renyi accounting of sampled releases, held against sums over the lattice, mpmath and an independent library."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import dp_accounting
import mpmath
import pytest
from dp_accounting.rdp import RdpAccountant as TheirAccountant
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.client.budget import FINISHED, BudgetBook
from hedgerow.errors import PolicyRefusal, PrivacyError
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import (
    ORDERS,
    compute_sampled_divergence,
    epsilon_of_mu,
    epsilon_renyi,
    get_accountant,
    paper_divergence,
)
from hedgerow.privacy.events import (
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    Event,
    FilteredGaussianEvent,
    GaussianEvent,
    SampledGaussianEvent,
    UnnoisedEvent,
    scope_events,
)

DELTA = 1e-5
rates = st.floats(1e-3, 1.0)
multipliers = st.floats(0.5, 200.0)


def on_the_lattice(order: int, rate: float, sigma: int, shift: int) -> tuple[float, float]:
    """Both directions of the divergence of a sampled discrete Gaussian, summed over the integers with 40 digits."""
    with mpmath.workdps(40):
        reach = 60 * sigma + order * shift
        two = mpmath.mpf(2) * sigma**2
        points = range(-reach, reach + 1)
        noise = {x: mpmath.exp(-(mpmath.mpf(x) ** 2) / two) for x in range(-reach - shift, reach + 1)}
        total = mpmath.fsum(noise[x] for x in points)
        q = mpmath.mpf(rate)
        absent = [noise[x] / total for x in points]
        present = [((1 - q) * noise[x] + q * noise[x - shift]) / total for x in points]
        forward = mpmath.fsum(p**order / n ** (order - 1) for p, n in zip(present, absent, strict=True))
        backward = mpmath.fsum(n**order / p ** (order - 1) for p, n in zip(present, absent, strict=True))
        return tuple(float(mpmath.log(value) / (order - 1)) for value in (forward, backward))  # type: ignore[return-value]


@pytest.mark.parametrize(("sigma", "shift"), [(1, 1), (2, 1), (3, 2), (5, 7)])
@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("order", [2, 3, 8])
def test_the_formula_is_the_sum_over_the_integers(sigma: int, shift: int, rate: float, order: int) -> None:
    """For integer noise and an integer vector the Gaussian's formula holds exactly, and bounds the other direction."""
    forward, backward = on_the_lattice(order, rate, sigma, shift)
    bound = compute_sampled_divergence(order, rate, sigma / shift)
    assert bound == pytest.approx(forward, rel=1e-8) and bound >= forward * (1 - 1e-15)
    assert backward <= bound


@given(order=st.sampled_from(ORDERS[:90]), rate=rates, multiplier=multipliers)
def test_it_equals_an_independent_accountant(order: int, rate: float, multiplier: float) -> None:
    """dp_accounting, order by order, never more than ours."""
    theirs = TheirAccountant([order])
    theirs.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier)))
    expected = float(theirs._rdp[0])
    assert compute_sampled_divergence(order, rate, multiplier) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("order", [2, 5, 64, 1000])
def test_small_divergences_keep_their_digits(order: int) -> None:
    """Beside 1 the excess is 1e-12 here; a logarithm of the sum would keep four digits of it."""
    rate, multiplier = 1e-4, 100.0
    with mpmath.workdps(60):
        q, z = mpmath.mpf(rate), mpmath.mpf(multiplier)
        terms = (
            mpmath.binomial(order, k) * (1 - q) ** (order - k) * q**k * mpmath.exp(k * (k - 1) / (2 * z**2))
            for k in range(order + 1)
        )
        exact = mpmath.log(mpmath.fsum(terms)) / (order - 1)
        ours = mpmath.mpf(compute_sampled_divergence(order, rate, multiplier))
        assert 0 <= ours / exact - 1 < 1e-8


@given(order=st.sampled_from(ORDERS[:80]), rate=rates, multiplier=multipliers)
def test_sampling_helps_and_the_general_bound_is_above_the_tight_one(
    order: int, rate: float, multiplier: float
) -> None:
    """Never more than without sampling; and what holds for every mechanism holds for this one."""
    tight = compute_sampled_divergence(order, rate, multiplier)
    assert tight <= order / (2 * multiplier**2) * (1 + 1e-8)
    assert paper_divergence(order, rate, multiplier) >= tight * (1 - 1e-12)


@given(order=st.sampled_from(ORDERS[:80]), rate=st.floats(1e-3, 0.9), multiplier=multipliers)
def test_more_rate_less_noise_or_a_higher_order_cost_more(order: int, rate: float, multiplier: float) -> None:
    """The filter rounds charges up by norm and rate: that is safe only if the divergence is monotone."""
    here = compute_sampled_divergence(order, rate, multiplier)
    slack = 1 + 1e-8
    assert compute_sampled_divergence(order, rate * 1.1, multiplier) * slack >= here
    assert compute_sampled_divergence(order, rate, multiplier * 0.9) * slack >= here
    assert compute_sampled_divergence(order + 1, rate, multiplier) * slack >= here


@pytest.mark.parametrize("bad", [(1, 0.5, 1.0), (2, 0.0, 1.0), (2, 1.5, 1.0), (2, 0.5, 0.0), (2, 0.5, math.inf)])
def test_what_is_no_release_is_refused(bad: tuple[int, float, float]) -> None:
    """An order, a rate or a noise beyond the theorem has no number."""
    with pytest.raises(PrivacyError) as refused:
        compute_sampled_divergence(*bad)
    assert refused.value.code == "out-of-range"


def sampled(multiplier: float = 5.0, rate: float = 0.1, count: int = 1) -> SampledGaussianEvent:
    return SampledGaussianEvent(multiplier, rate, 10_000, 1, 8, count)


def filtered(count: int = 1, budget: float = 0.02, scope: str = "", multiplier: float = 5.0) -> FilteredGaussianEvent:
    return FilteredGaussianEvent(multiplier, 0.1, 10_000, 1, 8, count, order=20, budget=budget, scope=scope)


@pytest.mark.parametrize(("rate", "multiplier", "count"), [(0.1, 5.0, 100), (0.01, 1.0, 1000), (0.5, 30.0, 40)])
def test_a_mixed_ledger_equals_an_independent_account(rate: float, multiplier: float, count: int) -> None:
    """Samples and full releases in one ledger: both accountants give the one Renyi bound of all of it."""
    events: list[Event] = [sampled(multiplier, rate, count), GaussianEvent(8.0, 2)]
    theirs = TheirAccountant(list(ORDERS))
    inner = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
    theirs.compose(inner, count).compose(dp_accounting.GaussianDpEvent(8.0), 2)
    expected = theirs.get_epsilon(DELTA)
    for name in ("gdp", "rdp"):
        found = get_accountant(name).epsilon(events, DELTA)
        assert found == pytest.approx(expected, rel=1e-7) and found >= expected * (1 - 1e-12)


def test_a_mixture_costs_more_than_its_parts() -> None:
    """Nothing in a mixed ledger is free: leaving out any event lowers epsilon."""
    events: list[Event] = [sampled(count=50), DiscreteGaussianEvent.from_integers(80_000, 10_000**2, 4), filtered(10)]
    whole = epsilon_renyi(events, DELTA)
    for size in (1, 2):
        assert all(epsilon_renyi(part, DELTA) < whole for part in itertools.combinations(events, size))


def test_fails_closed_on_what_is_un_noised_or_unknown() -> None:
    """Beside samples as well: infinity for the un-noised, an error for an event that only looks like a known one."""

    @dataclasses.dataclass(frozen=True)
    class Subsampled(SampledGaussianEvent):
        pass

    for name in ("gdp", "rdp"):
        judge = get_accountant(name)
        assert judge.epsilon([sampled(), UnnoisedEvent()], DELTA) == math.inf
        assert not judge.supports(Subsampled(5.0, 0.1, 10, 1, 8)) and judge.supports(sampled())
        for events in ([Subsampled(5.0, 0.1, 10, 1, 8)], [sampled(), Subsampled(5.0, 0.1, 10, 1, 8)]):
            with pytest.raises(PrivacyError) as refused:
                judge.epsilon(events, DELTA)
            assert refused.value.code == "unknown-event"


def test_noise_in_shares_costs_no_less() -> None:
    """A sum of discrete Gaussians of few grid units is farther from one; on a fine grid the difference vanishes."""
    whole = epsilon_renyi([SampledGaussianEvent(2.0, 0.1, 40, 1, 8, 20)], DELTA)
    coarse = epsilon_renyi([SampledGaussianEvent(2.0, 0.1, 1, 4, 8, 20)], DELTA)
    fine = epsilon_renyi([SampledGaussianEvent(2.0, 0.1, 1000, 4, 8, 20)], DELTA)
    assert coarse > whole and fine == whole


# The filter ----------------------------------------------------------------------------------------------------------


def test_a_filters_releases_cost_its_budget_however_many_they_are() -> None:
    """The first ones cost what they cost; from the budget on, further ones are free."""
    costs = [epsilon_renyi([filtered(count)], DELTA) for count in (1, 5, 1000, 10**6)]
    free = [epsilon_renyi([sampled(count=count)], DELTA) for count in (1, 5, 1000)]
    assert costs[0] == free[0] and costs[1] == pytest.approx(free[1])
    assert costs[1] < costs[2] == costs[3] < free[2]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(0, 5))
def test_a_release_is_never_free_by_itself(counts: list[int], left_out: int) -> None:
    """Whatever part of a run a site was in, first rounds or last, that part alone has a cost, and more cost no less."""
    events = [filtered(count) for count in counts]
    part = [event for number, event in enumerate(events) if number != left_out] or events
    assert 0 < epsilon_renyi(part, DELTA) <= epsilon_renyi(events, DELTA)


@pytest.mark.parametrize("kind", [SampledGaussianEvent, FilteredGaussianEvent])
def test_a_sample_of_everyone_is_a_gaussian_release(kind: type[Event]) -> None:
    """The same number as the plain event, by every accountant; a filter caps mu² at 2 budget / order at any delta."""
    rounds = (5.0, 1.0, 10**6, 1, 8, 30)
    plain = DiscreteGaussianEvent(5.0, 10**6, 8, 30)
    event = (
        SampledGaussianEvent(*rounds) if kind is SampledGaussianEvent else FilteredGaussianEvent(*rounds, budget=9.0)
    )
    for name in ("gdp", "rdp", "pld"):
        judge = get_accountant(name)
        assert judge.epsilon([event, GaussianEvent(9.0)], DELTA) == pytest.approx(
            judge.epsilon([plain, GaussianEvent(9.0)], DELTA), rel=1e-9
        )
    if kind is FilteredGaussianEvent:
        capped = FilteredGaussianEvent(*rounds, order=6, budget=1.5)
        for delta in (1e-3, 1e-9):
            assert epsilon_of_mu(math.sqrt(0.5), delta) == pytest.approx(
                get_accountant("gdp").epsilon([capped, dataclasses.replace(capped, count=7)], delta), rel=1e-6
            )
        apart = [dataclasses.replace(capped, scope=name) for name in ("a", "b")]
        assert get_accountant("gdp").epsilon(apart, DELTA) == pytest.approx(epsilon_of_mu(1.0, DELTA), rel=1e-6)


def sampled_delta(epsilon: float, rate: float, z: float) -> float:
    """delta(epsilon) of one release over a sample, the larger of both directions, by the normal distribution."""
    with mpmath.workdps(40):
        q, e = mpmath.mpf(rate), mpmath.exp(mpmath.mpf(epsilon))

        def above(at: Any, mean: float) -> Any:
            return mpmath.ncdf((mean - at) / z)

        # Where (1 - q) + q exp((2 x - 1) / 2z²) = e, and = 1 / e: the loss grows with x.
        up = mpmath.mpf(z) ** 2 * mpmath.log((e - 1 + q) / q) + 0.5
        forward = (1 - q) * above(up, 0) + q * above(up, 1) - e * above(up, 0)
        backward = mpmath.mpf(0)
        if 1 / e > 1 - q:
            down = mpmath.mpf(z) ** 2 * mpmath.log((1 / e - 1 + q) / q) + 0.5
            backward = (1 - above(down, 0)) - e * ((1 - q) * (1 - above(down, 0)) + q * (1 - above(down, 1)))
        return float(max(forward, backward))


@pytest.mark.parametrize(("rate", "multiplier"), [(0.1, 1.0), (0.5, 3.0), (0.9, 0.7)])
def test_loss_distributions_of_one_sample_are_the_normal_distribution(rate: float, multiplier: float) -> None:
    """From above, and no more than the library's grid above it."""
    event = SampledGaussianEvent(multiplier, rate, 10**6, 1, 8)
    found = get_accountant("pld").epsilon([event], DELTA)
    assert sampled_delta(found, rate, multiplier) <= DELTA < sampled_delta(found * 0.998, rate, multiplier)


def test_loss_distributions_of_many_samples_are_between_the_library_and_renyi() -> None:
    """No less than dp_accounting says for the events themselves, a tenth below Renyi; an acting filter none."""
    rate, multiplier, count = 0.1, 8.0, 60
    event = SampledGaussianEvent(multiplier, rate, 10_000, 1, 8, count)
    theirs = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4)
    inner = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
    theirs.compose(inner, count)
    found, renyi = (get_accountant(name).epsilon([event], DELTA) for name in ("pld", "gdp"))
    assert theirs.get_epsilon(DELTA) * (1 - 2e-3) <= found < 0.93 * renyi
    budget = count * compute_sampled_divergence(20, rate, multiplier)
    idle, acting = (
        FilteredGaussianEvent(multiplier, rate, 10_000, 1, 8, count, order=20, budget=budget * factor)
        for factor in (1.001, 0.999)
    )
    assert get_accountant("pld").epsilon([idle], DELTA) == found
    assert get_accountant("pld").epsilon([acting], DELTA) == get_accountant("gdp").epsilon([acting], DELTA)


@pytest.mark.parametrize("multiplier", [1e-100, 1e-3, 0.03, 0.1, 1e9])
@pytest.mark.parametrize("rate", [1e-6, 0.5, 1.0])
def test_any_noise_has_an_answer_of_every_accountant(multiplier: float, rate: float) -> None:
    """Next to no noise is a large epsilon or infinity, and never a fault of arithmetic."""
    events = [
        SampledGaussianEvent(multiplier, rate, 2**40, 1, 8, 3),
        FilteredGaussianEvent(multiplier, rate, 2**40, 1, 8, 3, order=2**16, budget=1e9),
        DiscreteLaplaceEvent(1 / multiplier, rate),
    ]
    for event in events:
        for name in ("gdp", "rdp", "pld"):
            found = get_accountant(name).epsilon([event], DELTA)
            assert found > 100 if multiplier <= 1e-3 and rate > 1e-6 else found >= 0
    for bad in ({"noise_multiplier": 1e200}, {"noise_multiplier": 1e-200}, {"order": 2**16 + 1}):
        with pytest.raises(PrivacyError) as caught:
            dataclasses.replace(events[1], **bad)
        assert caught.value.code == "malformed-event"


def test_two_runs_have_two_filters() -> None:
    """Two runs of one plan write equal events; their budgets add up, which the scopes of a budget book see to."""
    run = [filtered(500)]
    together = epsilon_renyi([*scope_events(run, "a"), *scope_events(run, "b")], DELTA)
    wide = epsilon_renyi([filtered(10**6, budget=0.04)], DELTA)
    assert together == pytest.approx(wide) and together > epsilon_renyi(run, DELTA)


def test_the_budget_book_tells_runs_apart(tmp_path: Path) -> None:
    """What two runs cost a data set is more than one filter's budget, after a restart too, and a third is refused."""
    plan = Plan.from_dict(
        {
            "version": 1,
            "features": [{"name": "a", "type": "numeric", "min": 0, "max": 1}],
            "label": {"name": "y", "type": "binary", "classes": ["0", "1"]},
            "privacy": {"epsilon": 1.0, "delta": DELTA, "n_records": 100},
        }
    )
    book = BudgetBook(tmp_path / "book.db")
    one, two = (epsilon_renyi([filtered(500, scope=str(i)) for i in range(n)], DELTA) for n in (1, 2))
    assert two > one
    for number in (1, 2):
        book.reserve(bytes([number]), "wards", plan, [filtered(500)], (two * 1.001, DELTA))
        book.settle(bytes([number]), ([filtered(300), filtered(200)], {}), FINISHED)
    book.close()
    book = BudgetBook(tmp_path / "book.db")
    assert book.spent("wards", DELTA) == two
    with pytest.raises(PolicyRefusal) as refused:
        book.reserve(b"\3", "wards", plan, [filtered(500)], (two * 1.001, DELTA))
    assert refused.value.code == "policy-over-budget"
    book.close()
