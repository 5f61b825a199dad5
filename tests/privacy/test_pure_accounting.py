"""Accounting for pure releases: the sum, sampling, the bounds beside Gaussian noise, privacy loss distributions."""

from __future__ import annotations

import builtins
import itertools
import math
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.errors import EnvironmentFault, PrivacyError
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.cost import amplify_epsilon, epsilon_pure, mu_of_pure, zcdp_weight
from hedgerow.privacy.events import (
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    DiscreteLaplaceVectorEvent,
    Event,
    GaussianEvent,
    SelectionEvent,
    UnnoisedEvent,
    event_from_dict,
)
from hedgerow.privacy.ledger import Ledger, Release
from hedgerow.privacy.report import PrivacyContext, build_report, check_claims

epsilons = st.floats(1e-6, 40.0)
rates = st.floats(1e-6, 1.0)
pure_events = st.one_of(
    st.builds(DiscreteLaplaceEvent, st.floats(1e-3, 3.0), rates, st.integers(1, 30)),
    st.builds(SelectionEvent, st.floats(1e-3, 3.0), rates, st.integers(1, 30)),
)


@given(epsilon=epsilons, rate=rates)
def test_sampling_is_the_theorem_in_forty_digits(epsilon: float, rate: float) -> None:
    """log(1 + q (e^epsilon - 1)), never below and hardly above it."""
    with mpmath.workdps(40):
        exact = mpmath.log(1 + mpmath.mpf(rate) * mpmath.expm1(mpmath.mpf(epsilon)))
        found = amplify_epsilon(epsilon, rate)
        assert exact <= found <= exact * (1 + mpmath.mpf(1e-12))


@given(first=st.floats(1e-4, 5.0), second=st.floats(1e-4, 5.0), rate=rates)
def test_a_sample_for_each_release_costs_no_more_than_one_for_both(first: float, second: float, rate: float) -> None:
    """Why releases are amplified one by one: their samples are drawn anew."""
    apart = amplify_epsilon(first, rate) + amplify_epsilon(second, rate)
    assert apart <= amplify_epsilon(first + second, rate) * (1 + 1e-12)


@given(epsilon=st.floats(1e-8, 600.0))
def test_mu_of_a_pure_release(epsilon: float) -> None:
    """Phi(-mu / 2) <= 1 / (1 + e^epsilon), tightly: the corner of the pure trade-off function is not below."""
    with mpmath.workdps(300):
        corner = 1 / (1 + mpmath.exp(mpmath.mpf(epsilon)))
        own = mpmath.ncdf(-mpmath.mpf(mu_of_pure(epsilon)) / 2)
        assert own <= corner
        looser = mpmath.ncdf(-mpmath.mpf(mu_of_pure(epsilon) * (1 - 1e-9) - 1e-14) / 2)
        assert looser > corner


@given(epsilon=st.floats(0.01, 6.0))
def test_the_gaussian_trade_off_lies_below_the_pure_one(epsilon: float) -> None:
    """mu-GDP with that mu allows at least what epsilon-DP allows, at every error rate."""
    mu = mu_of_pure(epsilon)
    for alpha in np.linspace(1e-6, 1 - 1e-6, 21).tolist():
        pure = max(0.0, 1 - math.exp(epsilon) * alpha, math.exp(-epsilon) * (1 - alpha))
        gaussian = float(mpmath.ncdf(-mpmath.sqrt(2) * mpmath.erfinv(2 * alpha - 1) - mu))
        assert gaussian <= pure + 1e-12


@settings(deadline=None, max_examples=15)
@given(sequence=st.lists(pure_events, min_size=1, max_size=3), extra=pure_events, delta=st.sampled_from([1e-9, 1e-5]))
@pytest.mark.parametrize("name", ["pure", "pld", "gdp", "rdp"])
def test_more_releases_cost_more(name: str, sequence: list[Event], extra: Event, delta: float) -> None:
    """One more release never makes a run cheaper; none is free."""
    judge = get_accountant(name)
    before, after = judge.epsilon(sequence, delta), judge.epsilon([*sequence, extra], delta)
    # The library rounds losses up to a grid.
    assert 0 <= before <= after * (1.01 if name == "pld" else 1 + 1e-9)


@settings(deadline=None, max_examples=15)
@given(sequence=st.lists(pure_events, min_size=1, max_size=3))
def test_no_accountant_exceeds_the_sum_but_the_loose_one(sequence: list[Event]) -> None:
    """`gdp` and `pld` know that pure releases add up; with a delta they may say less, never more."""
    total = epsilon_pure(sequence)
    assert get_accountant("pure").epsilon(sequence, 1e-6) == total
    assert get_accountant("gdp").epsilon(sequence, 1e-6) <= total
    assert get_accountant("pld").epsilon(sequence, 1e-6) <= total * 1.01


def exact_delta_of_responses(epsilon: float, count: int, total: float) -> float:
    """delta at `total` of `count` randomised responses of `epsilon`, by the binomial sum, in 50 digits."""
    with mpmath.workdps(50):
        p = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        terms = []
        for lies in range(count + 1):
            loss = epsilon * (count - 2 * lies)
            if loss > total:
                weight = mpmath.binomial(count, lies) * p ** (count - lies) * (1 - p) ** lies
                terms.append(weight * (1 - mpmath.exp(mpmath.mpf(total) - loss)))
        return float(mpmath.fsum(terms))


@pytest.mark.parametrize(("epsilon", "count"), [(0.05, 40), (0.3, 10), (1.0, 5), (2.0, 1)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_pld_of_pure_releases_is_the_binomial_closed_form(epsilon: float, count: int, delta: float) -> None:
    """The least epsilon of so many randomised responses (Kairouz, Oh and Viswanath 2015), from above."""
    found = get_accountant("pld").epsilon([DiscreteLaplaceEvent(epsilon, 1.0, count)], delta)
    assert exact_delta_of_responses(epsilon, count, found) <= delta
    if found > 0.02:
        assert exact_delta_of_responses(epsilon, count, found - 0.02) > delta


@pytest.mark.parametrize("multiplier", [0.5, 2.0, 30.0])
def test_pld_of_gaussian_releases_is_the_closed_form(multiplier: float) -> None:
    """The same number as exact accounting, from above, to the library's grid."""
    sequence = [GaussianEvent(multiplier, 3), DiscreteGaussianEvent(multiplier, 10**6, 10, 4)]
    exact = get_accountant("gdp").epsilon(sequence, 1e-6)
    found = get_accountant("pld").epsilon(sequence, 1e-6)
    assert exact * (1 - 1e-6) <= found <= exact * 1.002 + 1e-3


def test_a_mixed_run_is_bounded_by_every_accountant_that_takes_it() -> None:
    """Pure and Gaussian releases in one run: three bounds, above the exact answer by numerical integration."""
    epsilon, mu, delta = 0.8, 1.0, 1e-4
    mixed: list[Event] = [DiscreteLaplaceEvent(epsilon), GaussianEvent(1 / mu)]
    bounds = {name: get_accountant(name).epsilon(mixed, delta) for name in ("gdp", "rdp", "pld")}

    def delta_at(total: float) -> float:
        # One randomised response beside one Gaussian: the loss is +-epsilon plus N(mu²/2, mu²).
        p = 1 / (1 + math.exp(-epsilon))
        parts = []
        for weight, other, shift in ((p, 1 - p, epsilon), (1 - p, p, -epsilon)):
            left = total - shift
            parts.append(
                weight * float(mpmath.ncdf(mu / 2 - left / mu))
                - math.exp(total) * other * float(mpmath.ncdf(-mu / 2 - left / mu))
            )
        return sum(parts)

    for name, bound in bounds.items():
        assert delta_at(bound) <= delta, name
    assert bounds["pld"] < bounds["gdp"] <= bounds["rdp"] * (1 + 1e-9)
    assert delta_at(bounds["pld"] * 0.99) > delta


def renyi(one: list[Any], other: list[Any], order: float) -> float:
    """Renyi divergence of two distributions on the same points, in 60 digits."""
    with mpmath.workdps(60):
        total = mpmath.fsum(p**order * q ** (1 - order) for p, q in zip(one, other, strict=True))
        return float(mpmath.log(total) / (order - 1))


@settings(max_examples=60, deadline=None)
@given(
    scores=st.lists(st.floats(-5, 5), min_size=2, max_size=8),
    moves=st.lists(st.floats(0, 1), min_size=8, max_size=8),
    width=st.floats(0.01, 6.0),
    order=st.sampled_from([1.01, 1.5, 2.0, 7.0, 40.0]),
    rate=st.sampled_from([0.05, 0.5, 1.0]),
)
def test_a_choice_of_a_bounded_range_costs_an_eighth_of_its_square(
    scores: list[float], moves: list[float], width: float, order: float, rate: float
) -> None:
    """Any scores, moved by anything within the range, in both directions, over samples too; and the half is reached."""
    moved = [score + width * move for score, move in zip(scores, moves, strict=False)]

    def choice(values: list[float]) -> list[Any]:
        with mpmath.workdps(60):
            weights = [mpmath.exp(value) for value in values]
            return [weight / mpmath.fsum(weights) for weight in weights]

    without, there = choice(scores), choice(moved)
    with mpmath.workdps(60):
        present = [(1 - mpmath.mpf(rate)) * q + mpmath.mpf(rate) * p for p, q in zip(there, without, strict=True)]
    bound = order * zcdp_weight(SelectionEvent(width, rate)) / 2
    assert max(renyi(present, without, order), renyi(without, present, order)) <= bound + 1e-12
    if rate == 1:
        assert zcdp_weight(SelectionEvent(width, rate)) == pytest.approx(width**2 / 4)
        evenly = renyi(choice([0.0, width / 2]), choice([width / 2, 0.0]), 1.0 + 1e-6)
        small = choice([0.0, 1e-4]), choice([1e-4, 0.0])
        assert evenly <= width**2 / 8 * (1 + 2e-6)
        assert renyi(*small, order) == pytest.approx(order * 2e-4**2 / 8, rel=1e-3)


@pytest.mark.parametrize("order", [1.5, 2.0, 9.0])
@pytest.mark.parametrize(("scale", "moves"), [(3, [1, 1, 1]), (20, [7, 2, 0]), (5, [9])])
def test_a_vectors_laplace_noise_costs_its_squared_norm(scale: int, moves: list[int], order: float) -> None:
    """The divergence of every entry, summed over the integers: together no more than order / 2 of their squares."""
    with mpmath.workdps(60):
        reach = range(-200 * scale, 200 * scale)
        weights = {x: mpmath.exp(-abs(mpmath.mpf(x)) / scale) for x in range(-210 * scale, 210 * scale)}
        whole = mpmath.fsum(weights.values())
        law = {x: weight / whole for x, weight in weights.items()}
    found = sum(renyi([law[x - move] for x in reach], [law[x] for x in reach], order) for move in moves)
    event = DiscreteLaplaceVectorEvent(sum(moves) / scale, zcdp_weight=sum(move**2 for move in moves) / scale**2)
    assert 0 < found <= order * zcdp_weight(event) / 2 <= order * (sum(moves) / scale) ** 2 / 2 * (1 + 1e-9)


def test_many_vectors_are_bounded_by_their_squares_and_never_by_more_than_their_epsilons() -> None:
    """14 entries of 1 / b: a fourteenth of the rho; and the account of one alone is still its epsilon."""
    vector = DiscreteLaplaceVectorEvent(1.4, 1.0, 20, zcdp_weight=14 * 0.01)
    plain = DiscreteLaplaceEvent(1.4, 1.0, 20)
    for name in ("gdp", "rdp", "pld"):
        judge = get_accountant(name)
        assert judge.epsilon([vector], 1e-5) < 0.35 * judge.epsilon([plain], 1e-5)
    one = DiscreteLaplaceVectorEvent(0.1, zcdp_weight=0.01)
    assert get_accountant("gdp").epsilon([one], 1e-9) <= 0.1 * (1 + 1e-9)
    assert get_accountant("pure").epsilon([vector], 1e-5) == get_accountant("pure").epsilon([plain], 1e-5)
    assert event_from_dict(vector.to_dict()) == vector


@pytest.mark.parametrize("other", [GaussianEvent(1.0), DiscreteGaussianEvent(1.0, 1000, 5)])
def test_the_sum_of_epsilons_refuses_what_has_a_delta(other: Event) -> None:
    """Kinds are never mixed by adding up epsilons."""
    with pytest.raises(PrivacyError) as caught:
        get_accountant("pure").epsilon([DiscreteLaplaceEvent(0.1), other], 1e-6)
    assert caught.value.code == "not-pure"


@pytest.mark.parametrize("name", ["pure", "pld"])
def test_a_release_without_noise_costs_infinitely_much(name: str) -> None:
    """As for every accountant; and a delta out of range is refused."""
    judge = get_accountant(name)
    assert judge.epsilon([DiscreteLaplaceEvent(0.1), UnnoisedEvent()], 1e-6) == math.inf
    assert judge.epsilon([], 1e-6) == 0
    assert judge.supports(SelectionEvent(0.1)) and judge.supports(UnnoisedEvent())
    for delta in (0.0, 1.0, float("nan")):
        with pytest.raises(PrivacyError):
            judge.epsilon([DiscreteLaplaceEvent(0.1)], delta)


@pytest.mark.parametrize("name", ["pure", "pld", "gdp", "rdp"])
def test_an_unknown_event_is_an_error(name: str) -> None:
    """A subclass may mean something else than its parent."""

    class Other(DiscreteLaplaceEvent):
        pass

    with pytest.raises(PrivacyError):
        get_accountant(name).epsilon([Other(0.1)], 1e-6)
    assert not get_accountant(name).supports(Other(0.1))


def test_without_the_extra_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pld` is optional; everything else works without it."""
    real = builtins.__import__

    def missing(name: str, *arguments: Any, **more: Any) -> Any:
        if name.startswith("dp_accounting"):
            raise ModuleNotFoundError("No module named 'dp_accounting'", name="dp_accounting")
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(EnvironmentFault) as caught:
        get_accountant("pld").epsilon([DiscreteLaplaceEvent(0.1)], 1e-6)
    assert caught.value.code == "missing-extra" and "[pld]" in caught.value.remedy


@pytest.mark.parametrize("kind", [DiscreteLaplaceEvent, SelectionEvent])
@pytest.mark.parametrize(
    "values",
    [
        *({"epsilon": bad} for bad in (0.0, 1e-200, 1e200, math.inf)),
        *({"sampling_rate": bad} for bad in (0.0, 1.5)),
        {"count": 0},
    ],
)
def test_an_event_out_of_range_is_refused(kind: type[Any], values: dict[str, Any]) -> None:
    """And a sound one survives being written."""
    with pytest.raises(PrivacyError):
        kind(**{"epsilon": 1.0, **values})
    assert event_from_dict(kind(0.5, 0.25, 3).to_dict()) == kind(0.5, 0.25, 3)


def release(event: Event, sensitivity: float, scale: float) -> Release:
    return Release("p", 0, "PureLeafSums", event, 4, sensitivity, scale)


def test_a_ledger_refuses_a_release_that_claims_too_small_an_epsilon() -> None:
    """epsilon is at least sensitivity / scale, whatever the sample."""
    assert release(DiscreteLaplaceEvent(0.5, 0.1), 100.0, 200.0).event.count == 1
    with pytest.raises(PrivacyError):
        release(DiscreteLaplaceEvent(0.4, 0.1), 100.0, 200.0)
    with pytest.raises(PrivacyError):
        release(SelectionEvent(0.5), 100.0, 0.0)
    # Four entries with an L1 norm of 100 have a squared L2 norm of 2,500 at least.
    assert release(DiscreteLaplaceVectorEvent(0.5, zcdp_weight=2500 / 200**2), 100.0, 200.0).event.count == 1
    with pytest.raises(PrivacyError):
        release(DiscreteLaplaceVectorEvent(0.5, zcdp_weight=2400 / 200**2), 100.0, 200.0)


@pytest.mark.parametrize("accountant", ["pure", "pld"])
def test_a_report_is_by_the_plans_accountant(accountant: str) -> None:
    """It says which, survives being written, and reads reports that were written before there were others."""
    ledger = Ledger().append(release(DiscreteLaplaceEvent(0.5), 100.0, 200.0))
    report = build_report(ledger, PrivacyContext(delta=1e-6, epsilon_requested=0.5, accountant=accountant))
    assert report.epsilon == pytest.approx(0.5, rel=1e-3)
    check_claims(report.to_dict(), report)
    assert f"({accountant})" in report.text()
    old = build_report(ledger, PrivacyContext(delta=1e-6))
    assert "epsilon_own" not in old.to_dict()


def test_a_report_says_who_chooses_from_exact_sums() -> None:
    """The trust that the exponential mechanism of a coordinator needs, in words and in numbers."""
    ledger = Ledger().append(release(SelectionEvent(0.5), 100.0, 200.0))
    report = build_report(ledger, PrivacyContext(delta=1e-6, accountant="pure"))
    assert report.n_choices == 1 and "exponential mechanism" in report.trust and "1 choice from" in report.text()
    check_claims(report.to_dict(), report)
    plain = build_report(Ledger().append(release(DiscreteLaplaceEvent(0.5), 100.0, 200.0)), PrivacyContext(delta=1e-6))
    assert "n_choices" not in plain.to_dict() and "exponential mechanism" not in plain.trust


def test_amplification_is_not_claimed_without_a_sample() -> None:
    """An un-amplified sampler is charged in full: the rate counts, and nothing else does."""
    full, sampled = DiscreteLaplaceEvent(1.0, 1.0), DiscreteLaplaceEvent(1.0, 0.1)
    for first, second in itertools.pairwise(["pure", "gdp"]):
        assert get_accountant(first).epsilon([full], 1e-6) > 5 * get_accountant(second).epsilon([sampled], 1e-6)
