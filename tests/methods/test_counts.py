"""Counts far below their bound, and rare ones: what they begin and end with, and what the finished model gains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hedgerow.data.binned import SiteData
from hedgerow.local.training import train
from hedgerow.losses.tables import RECORD_NORM
from hedgerow.methods.linear_start import read_level
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.trees.binning import build_grid
from tests.builders import bare_plan, numbers
from tests.methods.test_numbers import settings_of


def counts_plan(largest: int = 100, epsilon: float = 1.0, n_records: int = 4000, **model: Any) -> Plan:
    label, trees = {"name": "y", "type": "count", "max": largest}, {"structure_seed": 3, **model}
    return bare_plan(label, numbers(6), epsilon=epsilon, delta=1e-5, n_records=n_records, model=trees)


def test_a_plan_that_leaves_it_out_trains_as_before() -> None:
    """`calibration = "none"` or `start = "none"`: residuals are not doubled, and the settings are the old ones."""
    own = settings_of(counts_plan())
    assert (own.calibration, own.learning_rate, own.noise_ridge) == ("means", 0.5, 16.0)
    for left_out in ({"calibration": "none"}, {"start": "none"}, {"weight_update": "gradient"}):
        own = settings_of(counts_plan(**left_out))
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
