"""Settings: every "auto" is decided by public quantities, and calibration keeps the promise of the finished run."""

from __future__ import annotations

import inspect
import math
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.errors import PlanError
from hedgerow.methods.registry import resolve
from hedgerow.privacy.calibration import calibrate_noise_multiplier


@settings(max_examples=60)
@given(data=st.data())
def test_every_auto_is_decided(factory: ModuleType, data: st.DataObject) -> None:
    """What a plan says outright is kept; what it leaves open becomes a number in the range that plans allow."""
    plan = data.draw(factory.plans())
    chosen = resolve(plan)
    assert chosen.n_trees == plan.model.n_trees and chosen.max_depth == plan.model.max_depth
    assert 1 <= chosen.batch_size <= chosen.n_trees
    assert 1 <= chosen.interaction_size <= len(plan.features)
    assert chosen.interaction in ("cyclical", "random", "adaptive")
    assert chosen.learning_rate > 0 and math.isfinite(chosen.noise_multiplier) and chosen.noise_multiplier > 0
    if plan.model.weight_update == "averaging":
        assert chosen.batch_size == chosen.n_trees


@pytest.mark.parametrize("label", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 30.0, math.inf])
def test_a_plan_of_nothing_but_autos(factory: ModuleType, label: str, epsilon: float) -> None:
    """The plan that a newcomer writes leaves all to the defaults; they must be possible for every label and epsilon."""
    auto = {name: "auto" for name in ("n_trees", "max_depth", "interaction", "learning_rate", "joint_clip")}
    plan = factory.make_plan(label, model=auto, privacy={"epsilon": epsilon})
    chosen = resolve(plan)
    assert chosen.n_trees >= 1 and 1 <= chosen.max_depth <= 8
    assert chosen.loss(plan).norm_squared > 0


def test_the_rule_sees_the_plan_alone() -> None:
    """A default that looked at data would leak it, however slightly."""
    assert list(inspect.signature(resolve).parameters) == ["plan"]


def test_equal_plans_give_equal_settings(factory: ModuleType) -> None:
    """Node and coordinator resolve for themselves and must agree to the last bit of the noise."""
    assert resolve(factory.make_plan()) == resolve(factory.make_plan())


@pytest.mark.parametrize("accountant", ["gdp", "rdp"])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5)])
def test_ordinary_promises_pay_next_to_nothing_for_the_grid(
    factory: ModuleType, accountant: str, epsilon: float, delta: float
) -> None:
    """At epsilons that people use, integer noise costs less than a millionth over the continuous optimum."""
    plan = factory.make_plan(privacy={"epsilon": epsilon, "delta": delta, "accountant": accountant})
    optimum = calibrate_noise_multiplier(epsilon, delta, 4.0, accountant)
    assert 1 <= resolve(plan).noise_multiplier / optimum < 1 + 1e-6


def test_contradictory_scales_are_refused_before_training(factory: ModuleType) -> None:
    """A clip that leaves no integers to count in is an error in the plan, not a model of zeros."""
    plan = factory.make_plan("regression", model={"joint_clip": 1e-6, "hessian_scale": 100.0})
    with pytest.raises(PlanError, match="joint_clip"):
        resolve(plan)
