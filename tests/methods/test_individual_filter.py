"""The individual filter against a slow account in 40 digits: nobody spends more than the budget, nobody is robbed."""

from __future__ import annotations

from dataclasses import replace

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.losses.tables import SCORE_UNIT, Loss
from hedgerow.methods.registry import resolve
from hedgerow.methods.s_gbdt.settings import round_filter
from hedgerow.methods.s_gbdt.trees import LEVEL_BITS, charge, filter_terms, s_gbdt_loss
from hedgerow.privacy.accountants import compute_sampled_divergence
from hedgerow.protocol.queries import FILTER_UNITS
from hedgerow.trees.leaf_sums import SiteRecords
from tests.builders import contributions, s_gbdt_plan

SIX_TREES = {"n_trees": 6}


def records_of(labels: NDArray[np.int64], scores: NDArray[np.int64]) -> SiteRecords:
    codes = np.zeros((1, len(labels)), dtype=np.uint8)
    return SiteRecords(codes, labels.astype(np.int32), scores.astype(np.int32)[None, :])


def exact_divergence(loss: Loss, gradient: int, sigma: float, order: int, rate: float) -> mpmath.mpf:
    """Of one record's release, from its own integer norm, with 40 digits; no code of ours."""
    with mpmath.workdps(40):
        constant = loss.largest_statistic(1)
        x = mpmath.mpf(gradient**2 + constant**2) / (2 * mpmath.mpf(sigma) ** 2)
        q = mpmath.mpf(rate)
        terms = [
            mpmath.binomial(order, k) * (1 - q) ** (order - k) * q**k * mpmath.exp(k * (k - 1) * x)
            for k in range(order + 1)
        ]
        return mpmath.log(mpmath.fsum(terms)) / (order - 1)


@settings(max_examples=8)
@given(
    label=st.sampled_from(["binary", "regression"]),
    share=st.sampled_from([0.01, 0.3]),
    seed=st.integers(0, 10**6),
    rounds=st.sampled_from([(0, 0), (5, 0), (20, 0), (5, 1), (20, 3), (20, 6)]),
)
def test_nobody_spends_more_than_the_budget(label: str, share: float, seed: int, rounds: tuple[int, int]) -> None:
    """Over any path of scores, the exact divergences of the rounds a record was active in stay within the budget."""
    extra, closing = rounds
    section = {"support_share": share, "extra_rounds": extra, "closing_rounds": closing, "subsampling_ratio": 0.2}
    plan = s_gbdt_plan(label, SIX_TREES, **section)
    decided, loss = resolve(plan), s_gbdt_loss(plan)
    terms = decided.s_gbdt
    assert terms is not None
    random = np.random.default_rng(seed)
    n = 6
    labels = random.integers(0, 2, n) if label == "binary" else random.integers(-SCORE_UNIT, SCORE_UNIT + 1, n)
    spent, exact = np.zeros(n, dtype=np.int64), [mpmath.mpf(0)] * n
    sigma = decided.noise_multiplier * np.sqrt(loss.norm_squared)
    cache: dict[int, mpmath.mpf] = {}
    for number in range(terms.n_rounds):
        kept = round_filter(plan, terms, decided.noise_multiplier, number)
        assert kept is not None
        scores = random.integers(-4 * SCORE_UNIT, 4 * SCORE_UNIT + 1, n) * random.integers(0, 2)
        active = charge(records_of(labels, scores), loss, kept, spent)
        gradients = np.abs(contributions(loss, labels, scores[None, :])[:, 0])
        for i in np.flatnonzero(active).tolist():
            gradient = int(gradients[i])
            if gradient not in cache:
                cache[gradient] = exact_divergence(loss, gradient, sigma, terms.order, terms.sampling_rate)
            exact[i] += cache[gradient]
        # Who stays out could not have paid: its exact charge, and one level of rounding, do not fit.
        for i in np.flatnonzero(~active).tolist():
            level = int(gradients[i]) >> LEVEL_BITS
            assert spent[i] + kept.costs[level] > kept.limit
        if number >= terms.n_rounds - closing:
            assert active.all()
    assert max(exact) <= terms.budget


@pytest.mark.parametrize("label", ["binary", "regression"])
@pytest.mark.parametrize("closing", [0, 1, 4, 6])
def test_the_dearest_record_is_in_as_many_rounds_as_are_regular(label: str, closing: int) -> None:
    """Whoever has the largest gradient in all rounds is in the first and the closing ones, as many as it can pay."""
    plan = s_gbdt_plan(label, SIX_TREES, extra_rounds=20, closing_rounds=closing)
    decided, loss = resolve(plan), s_gbdt_loss(plan)
    assert decided.s_gbdt is not None
    far = records_of(np.array([1]), np.array([-7 * SCORE_UNIT]))
    spent = np.zeros(1, dtype=np.int64)
    rounds = []
    for number in range(26):
        kept = round_filter(plan, decided.s_gbdt, decided.noise_multiplier, number)
        assert kept is not None
        rounds.append(bool(charge(far, loss, kept, spent)[0]))
    assert rounds == [True] * (6 - closing) + [False] * 20 + [True] * closing


def test_a_record_comes_back_when_its_gradient_is_smaller() -> None:
    """A charge that does not fit keeps a record out of that round only, and costs it nothing."""
    plan = s_gbdt_plan("regression", SIX_TREES, support_share=0.01)
    decided, loss = resolve(plan), s_gbdt_loss(plan)
    assert decided.s_gbdt is not None
    kept = round_filter(plan, decided.s_gbdt, decided.noise_multiplier, 0)
    assert kept is not None
    far, near = (records_of(np.array([0]), np.array([score])) for score in (SCORE_UNIT, SCORE_UNIT // 100))
    spent = np.array([FILTER_UNITS - int(kept.costs[-1]) + 1])
    before = spent.copy()
    assert not charge(far, loss, kept, spent)[0] and spent[0] == before[0]
    assert charge(near, loss, kept, spent)[0] and spent[0] > before[0]


def test_no_limit_lies_beyond_the_budget() -> None:
    """Whatever limit a query names, a node lets nobody spend more than the budget."""
    plan = s_gbdt_plan("regression", SIX_TREES)
    decided, loss = resolve(plan), s_gbdt_loss(plan)
    assert decided.s_gbdt is not None
    kept = round_filter(plan, decided.s_gbdt, decided.noise_multiplier, 0)
    assert kept is not None
    far, spent = records_of(np.array([0]), np.array([SCORE_UNIT])), np.zeros(1, dtype=np.int64)
    loose = replace(kept, limit=4 * FILTER_UNITS)
    assert sum(bool(charge(far, loss, loose, spent)[0]) for _ in range(30)) == 6 and spent[0] <= FILTER_UNITS


def test_every_record_has_an_account() -> None:
    """Too few accounts are refused before anything is charged: the kernel would write beyond them."""
    loss = s_gbdt_loss(s_gbdt_plan("regression", SIX_TREES))
    terms = filter_terms(loss, 5.0, 12, 0.5, lambda multiplier: compute_sampled_divergence(12, 0.1, multiplier))
    records = records_of(np.array([SCORE_UNIT, 0]), np.array([0, 0]))
    for n_accounts in (0, 1, 3):
        spent = np.zeros(n_accounts, dtype=np.int64)
        with pytest.raises(ValueError, match="accounts for 2 records"):
            charge(records, loss, terms, spent)
        assert not spent.any()


def test_charges_are_rounded_up_and_ascend() -> None:
    """Every level costs at least what its largest gradient costs, so no gradient of it is charged too little."""
    loss = s_gbdt_loss(s_gbdt_plan("regression", SIX_TREES))
    sigma = 5.0 * np.sqrt(loss.norm_squared)
    terms = filter_terms(loss, 5.0, 12, 0.5, lambda multiplier: compute_sampled_divergence(12, 0.1, multiplier))
    assert (np.diff(terms.costs) >= 0).all() and len(terms.costs) == (loss.clip >> LEVEL_BITS) + 1
    for level in (0, 1, 100, len(terms.costs) - 1):
        largest = min(((level + 1) << LEVEL_BITS) - 1, loss.clip)
        exact = exact_divergence(loss, largest, sigma, 12, 0.1)
        assert exact <= mpmath.mpf(int(terms.costs[level])) / FILTER_UNITS * 0.5 <= exact * (1 + 1e-6)


@settings(max_examples=40)
@given(label=st.sampled_from(["binary", "regression"]), clip=st.floats(0.01, 3.0), share=st.floats(0.001, 0.9))
def test_a_records_statistics_are_its_clipped_gradient_and_a_constant(label: str, clip: float, share: float) -> None:
    """Rounded towards zero, clipped alone, never beyond the norm; and the two noises stand as r1 to r2."""
    plan = s_gbdt_plan(label, SIX_TREES, gradient_clip=clip, support_share=share)
    loss = s_gbdt_loss(plan)
    labels = np.array([0, 1, 0, 1, 1]) if label == "binary" else np.array([-1, 1, 0, 1, -1]) * SCORE_UNIT
    scores = np.array([0, 0, 5, -5, 2]) * SCORE_UNIT
    found = contributions(loss, labels, scores[None, :])
    if label == "binary":
        gradients = 1 / (1 + np.exp(-scores / SCORE_UNIT)) - labels
        clip = min(clip, 1.0)
    else:
        gradients = (scores - labels) / SCORE_UNIT
        clip = min(clip, 2.0)
    expected = np.clip(gradients, -clip, clip) * loss.scales[0]
    # The clip itself is rounded apart from the unit, so it may be beyond their product by the clip's part of one unit.
    assert (np.abs(found[:, 0]) <= np.abs(expected) + max(1, clip) + 1e-6 * loss.scales[0]).all()
    assert np.abs(found[:, 0] - expected).max() <= 2 + 1e-6 * loss.scales[0]
    assert (found[:, 1] == loss.largest_statistic(1)).all()
    assert ((found.astype(np.int64) ** 2).sum(axis=1) <= loss.norm_squared).all()
    # Noise of one sigma on both: per unit of support against per unit of gradient it is sqrt(r2 / r1).
    assert loss.scales[0] / loss.scales[1] == pytest.approx(np.sqrt((1 - share) / share), rel=0.02)
