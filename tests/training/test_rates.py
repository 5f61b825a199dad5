"""The last release of counts: what a record adds to it, what is made of it, and what the finished model gains."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.client.node import Node
from hedgerow.data.site_data import SiteData
from hedgerow.local.training import train
from hedgerow.losses.poisson import LogMean
from hedgerow.losses.tables import RECORD_NORM
from hedgerow.methods.boosting.calibration import (
    CUT_RESIDUALS,
    LEAST_STRETCH_OF_RATES,
    MOST_STRETCH_OF_RATES,
    RATE_LENGTH,
    RATE_SENSITIVITY_SQUARED,
    WHOLE_RESIDUALS,
    RateSums,
    fit_rates,
)
from hedgerow.methods.boosting.settings import RATE_OF_COUNTS, RIDGE_OF_COUNTS, BoostingSettings
from hedgerow.methods.linear_start import read_level
from hedgerow.methods.registry import resolve
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.trees.binning import build_grid
from tests.builders import bare_plan, numbers


def counts_plan(largest: int = 100, epsilon: float = 1.0, n_records: int = 4000, **model: Any) -> Plan:
    label, trees = {"name": "y", "type": "count", "max": largest}, {"structure_seed": 3, **model}
    return bare_plan(label, numbers(6), epsilon=epsilon, delta=1e-5, n_records=n_records, model=trees)


def own_settings(plan: Plan) -> BoostingSettings:
    own = resolve(plan)
    assert isinstance(own, BoostingSettings)
    return own


def question(plan: Plan, centre: int = 0, doublings: int = 0) -> RateSums:
    asked = own_settings(plan).calibration_of(plan).question(0, centre=centre, doublings=doublings)
    assert isinstance(asked, RateSums)
    return asked


@settings(max_examples=100, deadline=None)
@given(
    records=st.lists(st.tuples(st.integers(0, 100), st.integers(-(2**20), 2**20)), min_size=1, max_size=5),
    centre=st.integers(-(2**18), 2**18), doublings=st.integers(0, 7),
)  # fmt: skip
def test_a_record_adds_what_its_definition_says(records: list[tuple[int, int]], centre: int, doublings: int) -> None:
    """Each number apart from the node's arithmetic; no record's vector is longer than what noise is calibrated by."""
    plan = counts_plan()
    counts, scores = np.array([count for count, _ in records]), np.array([score for _, score in records])
    data = SiteData(np.zeros((6, len(records)), np.uint8), plan.label.kind.encode(counts, plan.label))
    node = Node("site", data, plan, resolve(plan))
    node.held.records.scores[0] = scores
    found = node.answer(question(plan, centre, doublings))
    y = np.minimum(counts / 100 * 2**doublings, 1)
    m = np.minimum(LogMean().values(scores / 2**16, plan.label) / 100 * 2**doublings, 1)
    w = np.clip((scores - centre) / 2**16, -1, 1)
    expected = [(part).sum() for part in (y - m, (y - m) * w, m / 2, m * w / 2, m * w * w / 2)]
    np.testing.assert_allclose(found / RECORD_NORM, expected, atol=len(records) * (2**doublings * 2**-15 + 2**-12))
    assert len(found) == RATE_LENGTH
    if len(records) == 1:
        assert int((found**2).sum()) <= RATE_SENSITIVITY_SQUARED


def sums_of(scores: NDArray[np.float64], counts: NDArray[np.float64]) -> NDArray[np.int64]:
    """An answer without noise about a centre of 0, at whose score the mean is 1/8 of the cut."""
    means = np.exp(scores) / 8
    w, r = np.clip(scores, -1, 1), counts / 8 - means
    parts = (r, r * w, means / 2, means * w / 2, means * w * w / 2)
    return np.array([round(float(part.sum()) * RECORD_NORM) for part in parts])


@pytest.mark.parametrize(("shift", "stretch"), [(0.0, 0.0), (0.4, 0.0), (-0.3, 0.5), (0.2, -0.4)])
def test_it_finds_the_line(shift: float, stretch: float) -> None:
    """Without noise: a mean that is a shifted and stretched score is told, whatever places records have."""
    scores = np.random.default_rng(1).normal(-0.1, 0.4, 50_000).clip(-1, 1)
    found = fit_rates(sums_of(scores, np.exp(shift + (1 + stretch) * scores)), 0.0, CUT_RESIDUALS)
    assert found == pytest.approx((shift, stretch), abs=0.02)


def test_noise_alone_changes_little() -> None:
    """With noise beyond all records the shift is nothing, and the stretch at most what is usual."""
    sums = sums_of(np.random.default_rng(2).normal(0, 0.4, 2_000), np.full(2_000, 3.0))
    random = np.random.default_rng(3)
    for sigma in (3_000.0, 1e6):
        drawn = [np.rint(sums + random.normal(size=RATE_LENGTH) * sigma * RECORD_NORM) for _ in range(50)]
        found = np.array([fit_rates(one, sigma * RECORD_NORM, CUT_RESIDUALS) for one in drawn])
        assert np.abs(found).mean(axis=0).max() < 0.2


@settings(max_examples=200, deadline=None)
@given(
    released=st.lists(st.integers(-(2**62), 2**62), min_size=RATE_LENGTH, max_size=RATE_LENGTH),
    sigma=st.sampled_from([0.0, 1.0, 1e6, 1e15]), prior=st.sampled_from([WHOLE_RESIDUALS, CUT_RESIDUALS]),
)  # fmt: skip
def test_any_release_gives_a_line_that_keeps_the_order(
    released: list[int], sigma: float, prior: tuple[float, float, float]
) -> None:
    """Nothing overflows, and no stretch turns scores around."""
    shift, stretch = fit_rates(np.array(released, dtype=np.int64), sigma, prior)
    assert math.isfinite(shift) and abs(shift) <= 4 and LEAST_STRETCH_OF_RATES <= stretch <= MOST_STRETCH_OF_RATES


def test_a_plan_that_leaves_it_out_trains_as_before() -> None:
    """`calibration = "none"` or `start = "none"`: residuals are not doubled, and the settings are the old ones."""
    own = own_settings(counts_plan())
    assert (own.calibration, own.learning_rate, own.noise_ridge) == ("rates", RATE_OF_COUNTS, RIDGE_OF_COUNTS)
    for left_out in ({"calibration": "none"}, {"start": "none"}, {"weight_update": "gradient"}):
        own = own_settings(counts_plan(**left_out))
        assert (own.calibration, own.learning_rate, own.noise_ridge) == ("none", 0.25, 8.0)


@pytest.mark.parametrize(("zero_share", "gain"), [(0.0, 0.03), (0.6, 0.03)])
def test_counts_far_below_their_bound_are_learned(zero_share: float, gain: float) -> None:
    """A mean of 2 under a bound of 100, 4,000 records, epsilon 1: residuals that fill the clip say far more.

    The predictions add up to what is counted, though most of the large residuals were clipped.
    """
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(0)
    x = random.uniform(0, 1, (8000, 6)).astype(np.float32)
    mean = np.exp(0.2 + 2 * (x[:, 0] - 0.5) + (x[:, 1] > 0.5))
    counts = random.poisson(mean * random.gamma(2, 0.5, 8000)) * (random.random(8000) >= zero_share)
    explained = []
    for model in ({"calibration": "none"}, {}):
        plan = counts_plan(**model)
        codes = build_grid(plan).encode(tuple(np.ascontiguousarray(x.T)))
        rows = [SiteData(np.ascontiguousarray(codes[:, part]), plan.label.kind.encode(counts[part], plan.label))
                for part in (slice(0, 4000), slice(4000, 8000))]  # fmt: skip
        trained = train(plan, {"one": rows[0]}, noise=SeededNoise(1))
        predicted = trained.predict_codes(rows[1].codes)
        explained.append(float(metrics.d2_tweedie_score(counts[4000:], predicted, power=1)))
    assert explained[1] > explained[0] + gain
    assert predicted.mean() == pytest.approx(counts[4000:].mean(), rel=0.25)


def test_the_released_sizes_tell_how_far_counts_are_spread() -> None:
    """Within what rounding to sizes leaves open; a size that may be noise is none, and where all are, there is none."""
    counts = np.where(np.arange(4000) % 20 == 0, 200, np.arange(4000) % 2)
    sums = np.bincount([int(count).bit_length() for count in counts], minlength=15) * RECORD_NORM
    exact, noisy = (read_level(sums, noise * RECORD_NORM, 10_000) for noise in (0.0, 100.0))
    assert exact is not None and exact[1] == pytest.approx(counts.std(), rel=0.15)
    assert noisy is not None and noisy[1] < 1
    assert read_level(np.zeros(15, dtype=np.int64), RECORD_NORM, 10_000) is None


def predicted_and_counted(
    plan: Plan, x: NDArray[np.float32], counts: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """A model of the first half of the records, and the second half."""
    half = plan.privacy.n_records
    codes = build_grid(plan).encode(tuple(np.ascontiguousarray(x.T)))
    rows = SiteData(np.ascontiguousarray(codes[:, :half]), plan.label.kind.encode(counts[:half], plan.label))
    trained = train(plan, {"one": rows}, noise=SeededNoise(1, exact=False))
    return trained.predict_codes(np.ascontiguousarray(codes[:, half:])), counts[half:]


@pytest.mark.parametrize(("largest", "mean"), [(1, 0.05), (4, 0.05), (30, 0.1)])
def test_rare_counts_are_not_clipped_away(largest: int, mean: float) -> None:
    """What is rare lies one count from zero: a clip far below it left a third of all counts, and less than a mean."""
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(0)
    x = random.uniform(0, 1, (8000, 6)).astype(np.float32)
    counts = np.minimum(random.poisson(mean * 2 * x[:, 0] * (0.5 + (x[:, 1] > 0.5))), largest)
    predicted, counted = predicted_and_counted(counts_plan(largest), x, counts)
    assert metrics.d2_tweedie_score(counted, predicted, power=1) > -0.02
    assert 0.6 < predicted.mean() / counted.mean() < 1.4


def test_a_few_counts_far_above_the_others_are_not_clipped_away() -> None:
    """Nine tenths zeros: what is left lies further from the mean than the mean says."""
    random = np.random.default_rng(0)
    x = random.uniform(0, 1, (40_000, 6)).astype(np.float32)
    counts = random.poisson(np.exp(2 * x[:, 0]) * random.gamma(0.1, 10, 40_000))
    predicted, counted = predicted_and_counted(counts_plan(1000, epsilon=4.0, n_records=20_000), x, counts)
    assert predicted.mean() == pytest.approx(counted.mean(), rel=0.15)
