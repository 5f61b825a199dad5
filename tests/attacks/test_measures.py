"""What attacks are measured by: areas, rates and bounds, against independent oracles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import norm

from hedgerow.attacks.inference import Products, infer_from_scores, infer_from_sums, measure_found, reconstruct
from hedgerow.attacks.measures import Bound, find_auc, find_rate, separate
from hedgerow.privacy.events import DiscreteGaussianEvent, UnnoisedEvent

GAUSSIAN = Bound(1.0, math.inf, 0.0)


@given(seed=st.integers(0, 2**32), n=st.integers(2, 30))
def test_an_area_counts_pairs(seed: int, n: int) -> None:
    """The area under the curve is the chance that a member stands above another, counted pair by pair."""
    random = np.random.default_rng(seed)
    scores, present = random.integers(0, 5, n).astype(float), np.arange(n) % 2 == 0
    pairs = [(a > b) + (a == b) / 2 for a in scores[present] for b in scores[~present]]
    assert find_auc(scores[None], present[None]) == pytest.approx(np.mean(pairs))


@given(seed=st.integers(0, 2**32), at=st.floats(0.01, 0.9))
def test_a_rate_keeps_to_its_false_alarms(seed: int, at: float) -> None:
    """No more of the others than allowed stand above the threshold whose true positives are reported."""
    random = np.random.default_rng(seed)
    scores, present = random.integers(0, 40, 300).astype(float), random.random(300) < 0.5
    found, absent = find_rate(scores, present, at), scores[~present]
    if math.isnan(found):
        assert at * len(absent) < 1
        return
    thresholds = [t for t in np.unique(scores) if (absent > t).mean() <= at]
    assert found == pytest.approx(max((scores[present] > t).mean() for t in thresholds))


@given(mu=st.floats(0.01, 4), epsilon=st.floats(0.01, 5), delta=st.floats(0, 0.1))
def test_the_bound_of_an_area_is_the_area_of_its_rates(mu: float, epsilon: float, delta: float) -> None:
    """The figure beside an AUC is what the rates beside the true positive rates add up to."""
    for bound in (Bound(mu, math.inf, 0.0), Bound(math.inf, epsilon, delta)):
        assert bound.auc == pytest.approx(quad(bound.rate, 0, 1, limit=200)[0], abs=2e-4)
    both = Bound(mu, epsilon, delta)
    assert both.auc <= min(ndtr(mu / math.sqrt(2)), Bound(math.inf, epsilon, delta).auc)


def test_a_ledger_bounds_what_it_charges_and_nothing_where_it_promises_nothing() -> None:
    """Releases of known mu give its trade-off; one exact sum allows everything."""
    one = DiscreteGaussianEvent.from_integers(1000, 500**2, 4)
    bound = Bound.of_ledger([one] * 4, math.inf, 1e-6)
    assert bound.mu == pytest.approx(1.0, rel=1e-6)
    assert bound.rate(0.01) == pytest.approx(norm.sf(norm.isf(0.01) - 1), rel=1e-6)
    assert bound.accuracy == pytest.approx(norm.cdf(1), rel=1e-6)
    open_bound = Bound.of_ledger([one, UnnoisedEvent()], math.inf, 1e-6)
    assert (open_bound.auc, open_bound.rate(0.001), open_bound.accuracy) == (1.0, 1.0, 1.0)


def test_an_attack_of_known_strength_is_measured_within_its_errors() -> None:
    """Members whose scores are one standard deviation higher have the area, and the rates, of mu = 1."""
    random = np.random.default_rng(1)
    present = random.random((12, 2000)) < 0.5
    found = separate(random.standard_normal(present.shape) + present, present, GAUSSIAN)
    assert abs(found.auc.value - ndtr(1 / math.sqrt(2))) < 4 * found.auc.error < 0.03
    for at, rate in found.rates.items():
        assert abs(rate.value - GAUSSIAN.rate(at)) < 4 * rate.error
    assert not found.is_above(5)
    assert separate(random.standard_normal(present.shape) + 1.5 * present, present, GAUSSIAN).is_above(5)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), n=st.integers(2, 12), length=st.integers(1, 30))
def test_the_test_by_sums_is_the_likelihood_ratio(seed: int, n: int, length: int) -> None:
    """The short formula says what the ratio of the two densities, written out, says of every candidate."""
    random = np.random.default_rng(seed)
    vectors, released = random.normal(0, 1, (n, length)), random.normal(0, 2, length)
    products = Products(n)
    half = length // 2
    products.add(vectors[:, :half] * 3, released[:half] * 3, 3.0)
    products.add(vectors[:, half:], released[half:], 1.0)
    ratios, power = infer_from_sums(products)
    for one in range(n):
        others = np.delete(vectors, one, axis=0)
        covariance = np.eye(length) + others.T @ others / 4
        weights = np.linalg.solve(covariance, vectors[one])
        assert ratios[one] == pytest.approx(weights @ (released - others.sum(axis=0) / 2 - vectors[one] / 2), abs=1e-8)
        assert power[one] == pytest.approx(weights @ vectors[one], abs=1e-8)


@pytest.mark.parametrize(("n", "noise", "least", "most"), [(60, 1.0, -0.01, 0.01), (16, 0.5, 0.015, 0.1)])
def test_who_weighs_draws_tells_no_more_where_others_are_drawn_too(
    n: int, noise: float, least: float, most: float
) -> None:
    """Samples of a tenth: taking who was drawn for noise loses nothing, unless hardly any other is in the same leaf.

    The other test weighs for each sum whether the candidate was drawn: log(1 - q + q exp(l)), with l the log-likelihood
    ratio of being in the sum, and the others as Gaussian noise of their own variance.
    """
    random, rate, n_leaves = np.random.default_rng(4), 0.1, 8
    share = rate / 2
    present = random.random((40, n)) < 0.5
    taken, weighed = np.zeros(present.shape), np.zeros(present.shape)
    for run, members in enumerate(present):
        products = Products(n)
        for _ in range(20):
            vectors = np.eye(n_leaves)[random.integers(0, n_leaves, n)] * random.uniform(0.5, 1, (n, 1))
            released = (members & (random.random(n) < rate)) @ vectors + random.normal(0, noise, n_leaves)
            products.add(vectors, released, noise, rate)
            variance = noise**2 + share * (1 - share) * ((vectors**2).sum(axis=0) - vectors**2)
            rest = released - share * (vectors.sum(axis=0) - vectors)
            inside = (vectors * (rest - vectors / 2) / variance).sum(axis=1)
            weighed[run] += np.logaddexp(math.log1p(-rate), math.log(rate) + inside)
        taken[run] = infer_from_sums(products)[0]
    assert least <= find_auc(weighed, present) - find_auc(taken, present) <= most


def test_scores_tell_members_from_shadow_models() -> None:
    """A row that moves its own score is told by shadow models' scores; one that does not is told by chance alone."""
    random = np.random.default_rng(2)
    present = random.random((60, 200)) < 0.5
    signals = random.standard_normal((60, 200, 2))
    found = infer_from_scores(signals[:40], present[:40], signals[40:])
    assert abs(find_auc(found, present[40:]) - 0.5) < 0.03
    signals[..., 1] += 2 * present
    found = infer_from_scores(signals[:40], present[:40], signals[40:])
    assert find_auc(found, present[40:]) > 0.85


def test_few_rows_that_say_nothing_are_told_by_chance() -> None:
    """No target is fitted to another one: of one row in many targets the area is one half, neither less nor more."""
    random = np.random.default_rng(3)
    areas = []
    for _ in range(200):
        present, signals = random.random((60, 1)) < 0.5, random.standard_normal((60, 1, 1))
        areas.append(find_auc(infer_from_scores(signals[:20], present[:20], signals[20:]), present[20:]))
    assert abs(np.mean(areas) - 0.5) < 0.03


@pytest.mark.parametrize(("noise", "least", "most"), [(0.0, 1.0, 1.0), (200.0, 0.0, 0.6)])
def test_a_table_is_found_from_exact_sums_and_not_from_noise(noise: float, least: float, most: float) -> None:
    """More exact sums than kinds of records are the table; the same sums under much noise are not."""
    random = np.random.default_rng(3)
    vectors, truth = random.integers(0, 100, (40, 80)).astype(float), random.binomial(2, 0.15, 40)
    products = Products(40)
    products.add(vectors, truth @ vectors + noise * random.standard_normal(80) * 30, max(noise * 30, 1e-3))
    share, unique = measure_found(reconstruct(products, int(truth.sum())), truth)
    assert least <= share <= most
    assert least <= unique <= most
