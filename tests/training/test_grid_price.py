"""No plan spends more than it promises, also where the integer grid is coarse for the noise."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.local.forecast import forecast
from hedgerow.methods.registry import resolve
from hedgerow.methods.tasks import TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.privacy.calibration import calibrate_noise_multiplier
from hedgerow.training.settings import CALIBRATION_MARGIN
from tests.builders import bare_plan, numbers

LABELS: dict[str, dict[str, Any]] = {
    "binary": {"classes": [0, 1]},
    "multiclass": {"classes": [0, 1, 2]},
    "regression": {"min": 0, "max": 1},
}


def priced_plan(epsilon: float, delta: float, label: str = "binary", **model: Any) -> Plan:
    own = {"name": "y", "type": label, **LABELS[label]}
    return bare_plan(own, numbers(3), epsilon=epsilon, delta=delta, n_records=10_000, model=model)


@given(
    epsilon=st.floats(0.05, 60),
    delta=st.sampled_from([1e-3, 1e-6, 1e-10]),
    label=st.sampled_from(sorted(LABELS)),
    update=st.sampled_from(["newton", "gradient", "averaging"]),
    candidates=st.sampled_from(["adaptive", "uniform", "iterative_hessian"]),
    n_trees=st.integers(1, 40),
    batch=st.sampled_from([1, 3, "all"]),
)
@settings(max_examples=30, deadline=None)
def test_no_plan_spends_more_than_it_promises(
    epsilon: float, delta: float, label: str, update: str, candidates: str, n_trees: int, batch: int | str
) -> None:
    """Whatever the settings, all releases together cost at most epsilon, not much less, and are as many as counted."""
    if isinstance(batch, int):
        batch = min(batch, n_trees)
    plan = priced_plan(
        epsilon, delta, label, n_trees=n_trees, weight_update=update, split_candidates=candidates, batch_size=batch
    )
    expected = forecast(plan)
    assert 0.9 * epsilon < expected.epsilon_gdp <= epsilon
    assert expected.n_rounds == TrainingTask(plan).schedule.n_rounds


def test_large_epsilon_with_few_trees_raises_the_noise() -> None:
    """At epsilon 20 and one tree the noise of continuous calibration would overspend; it is raised, and only there."""
    for epsilon, n_trees, is_raised in ((20, 1, True), (1, 100, False)):
        continuous = calibrate_noise_multiplier(epsilon, 1e-9, n_trees) * (1 + CALIBRATION_MARGIN)
        multiplier = resolve(priced_plan(epsilon, 1e-9, n_trees=n_trees, calibration="none")).noise_multiplier
        if is_raised:
            assert multiplier > continuous * 1.001
        else:
            assert multiplier == pytest.approx(continuous, rel=1e-12)


def test_infinite_epsilon_has_no_noise() -> None:
    """A plan without privacy is not calibrated at all."""
    assert resolve(priced_plan(math.inf, 1e-6)).noise_multiplier == 0
