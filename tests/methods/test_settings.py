"""Settings: every "auto" is decided by public quantities, and calibration keeps the promise of the finished run."""

from __future__ import annotations

import inspect
import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.errors import PlanError
from hedgerow.methods.registry import resolve
from hedgerow.methods.tasks import TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.privacy.calibration import calibrate_noise_multiplier
from tests.builders import make_data, make_plan, plans, queries_of, train


@settings(max_examples=60)
@given(data=st.data())
def test_every_auto_is_decided(data: st.DataObject) -> None:
    """What a plan says outright is kept; what it leaves open becomes a number in the range that plans allow."""
    plan = data.draw(plans())
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
def test_a_plan_of_nothing_but_autos(label: str, epsilon: float) -> None:
    """The plan that a newcomer writes leaves all to the defaults; they must be possible for every label and epsilon."""
    auto = {name: "auto" for name in ("n_trees", "max_depth", "interaction", "learning_rate", "joint_clip")}
    plan = make_plan(label, model=auto, privacy={"epsilon": epsilon})
    chosen = resolve(plan)
    assert chosen.n_trees >= 1 and 1 <= chosen.max_depth <= 8
    assert chosen.loss(plan).norm_squared > 0


def of_size(n_records: int, label: str = "binary", n_features: int = 7, **model: Any) -> Any:
    """The settings of a plan that leaves the rest open, for so many records: each is worth a signal of .041."""
    auto = {name: "auto" for name in ("n_trees", "max_depth")}
    privacy = {"epsilon": 0.1, "delta": 1e-4, "n_records": n_records}
    return resolve(make_plan(label, {**auto, **model}, privacy, MANY_FEATURES[:n_features]))


MANY_FEATURES = [{"name": f"x{number}", "type": "numeric", "min": 0, "max": 1} for number in range(7)]


def coarse(chosen: Any) -> tuple[Any, ...]:
    """What two classes with little signal have of their own."""
    return chosen.max_depth, chosen.noise_ridge, chosen.interaction_size, chosen.interaction_share


def test_two_classes_with_little_signal_have_small_trees_and_short_steps() -> None:
    """From a signal of 500 on nothing is other than it was; below 200 no interactions; steps between are small."""
    assert coarse(of_size(20_000)) == (4, 1.5, 3, 0.5)
    few = of_size(1_000)
    assert coarse(few)[:3] == (2, 4.0, 1)
    assert coarse(of_size(1_000, n_features=3)) == (4, 4.0, 3, 0.5)
    assert coarse(of_size(1_000, n_features=5)) == (3, 4.0, 3, 0.25)
    between = [coarse(of_size(n_records)) for n_records in range(1_000, 20_000, 200)]
    assert between == sorted(between, key=lambda own: (own[0], -own[1], own[2], own[3]))
    assert max(abs(after[1] - before[1]) for before, after in pairwise(between)) < 0.1


def test_little_signal_leaves_what_a_plan_says_and_other_labels() -> None:
    """Whoever names a size of subsets wants interactions tried, at any signal."""
    said: dict[str, Any] = {"max_depth": 4, "noise_ridge": 1.5, "interaction_size": 3}
    assert coarse(of_size(1_000, **said)) == (4, 1.5, 3, 0.5)
    assert coarse(of_size(1_000, "multiclass")) == coarse(of_size(20_000, "multiclass"))
    own: dict[str, Any] = {"interaction": "cyclical"}
    assert coarse(of_size(1_000, **own)) == coarse(of_size(20_000, **own))


def test_values_are_expected_where_there_is_signal_and_the_plan_leaves_them_open() -> None:
    """From the borders in docs/defaults.md on; a plan that names a rate, a ridge or a shrinkage keeps its rule."""
    for label, rate in (("binary", 0.3), ("regression", 0.5), ("count", 0.5)):
        assert of_size(12_000, label).shape_rate == 0
        assert of_size(12_500, label).shape_rate == of_size(100_000, label).shape_rate == rate
    for n_records, levels, rate in ((120_000, 4, 0.0), (125_000, 5, 0.4)):
        assert (of_size(n_records).deepest, of_size(n_records).subset_rate) == (levels, rate)
    assert (of_size(125_000, max_depth=4).deepest, of_size(125_000, "count").deepest) == (4, 4)
    own: list[dict[str, Any]] = [
        {"learning_rate": 0.25}, {"noise_ridge": 1.5}, {"shrinkage": 0.4}, {"interaction": "cyclical"},
        {"weight_update": "gradient"}, {"split_method": "hist"},
    ]  # fmt: skip
    for model in own:
        assert of_size(10**6, "regression", **model).shape_rate == of_size(10**6, **model).subset_rate == 0, model
    for label in ("multiclass", "survival"):
        assert of_size(10**6, label).shape_rate == 0
    # Sums with noise of the sites hold more of it than is known, and several rows of a person need as much more.
    others: list[dict[str, Any]] = [
        {}, {"noise": "distributed"}, {"noise": "local"}, {"unit": "patient", "max_rows_per_unit": 9},
    ]  # fmt: skip
    for privacy in others:
        plan = make_plan("regression", {"max_depth": "auto"}, {"epsilon": 1.0, "n_records": 10_000, **privacy})
        assert (resolve(plan).shape_rate > 0) == (not privacy), privacy


def test_trees_on_several_features_split_centrally_where_there_is_signal() -> None:
    """From the border in docs/defaults.md on, where features take turns by what they gain; never for other labels.

    From there on trees of numbers are a level deeper, and from the border of subsets on two.
    """
    for label in ("binary", "regression", "count"):
        assert [of_size(n, label).central_subsets for n in (49_000, 51_000)] == [False, True]
    for label in ("multiclass", "survival"):
        assert not of_size(10**6, label).central_subsets
    levels = [of_size(n, "regression").max_depth for n in (49_000, 51_000, 120_000, 125_000)]
    assert levels == [4, 5, 5, 6]
    models: list[dict[str, Any]] = [{"interaction": "cyclical"}, {"split_method": "hist"}]
    for model in models:
        assert not of_size(10**6, **model).central_subsets
    unlimited = make_plan("binary", {}, {"epsilon": float("inf"), "n_records": 10**6})
    assert not resolve(unlimited).central_subsets


@pytest.mark.parametrize(("epsilon", "is_expected"), [(10.0, True), (20.0, False), (50.0, False)])
def test_of_two_classes_values_are_not_expected_where_there_is_hardly_any_noise(
    epsilon: float, is_expected: bool
) -> None:
    """Of noise alone a spread knows: with hardly any, what is left of a leaf's sum is the chance of its records."""
    privacy = {"epsilon": epsilon, "delta": 1e-5, "n_records": 4_000}
    chosen = resolve(make_plan("binary", {"n_trees": "auto", "max_depth": "auto"}, privacy))
    assert (chosen.shape_rate > 0) == (chosen.subset_rate > 0) == is_expected
    assert chosen.deepest == 4 + is_expected


def test_a_schedule_counts_trees_on_several_features_as_deep_as_they_are() -> None:
    """Releases decide how many of them there are; a run sends no more numbers than was said before it."""
    privacy = {"epsilon": 10.0, "delta": 1e-5, "n_records": 4_000}
    plan = make_plan("binary", {"n_trees": 40, "max_depth": "auto"}, privacy).with_structure_seed(7)
    outcome = train(plan, [make_data(plan, 500, 3)])
    sent = sum(release.length for release in outcome.ledger)
    assert sent > 40 * 2 * 2**4
    assert sent <= TrainingTask(plan).schedule.n_released


def test_the_rule_sees_the_plan_alone() -> None:
    """A default that looked at data would leak it, however slightly."""
    assert list(inspect.signature(resolve).parameters) == ["plan"]


def test_equal_plans_give_equal_settings() -> None:
    """Node and coordinator resolve for themselves and must agree to the last bit of the noise."""
    assert resolve(make_plan()) == resolve(make_plan())


@pytest.mark.parametrize("accountant", ["gdp", "rdp"])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5)])
def test_ordinary_promises_pay_next_to_nothing_for_the_grid(accountant: str, epsilon: float, delta: float) -> None:
    """At epsilons that people use, integer noise costs less than a millionth over the continuous optimum."""
    plan = make_plan(privacy={"epsilon": epsilon, "delta": delta, "accountant": accountant})
    optimum = calibrate_noise_multiplier(epsilon, delta, 4.0, accountant)
    assert 1 <= resolve(plan).noise_multiplier / optimum < 1 + 1e-6


def test_contradictory_scales_are_refused_before_training() -> None:
    """A clip that leaves no integers to count in is an error in the plan, not a model of zeros."""
    plan = make_plan("regression", model={"joint_clip": 1e-6, "hessian_scale": 100.0})
    with pytest.raises(PlanError, match="joint_clip"):
        resolve(plan)


TREES = {"n_trees": 4, "max_depth": 3}
METHODS: list[dict[str, Any]] = [
    {"model": {**TREES, "split_candidates": "quantile"}},
    {"model": {**TREES, "split_candidates": "iterative_hessian", "candidate_rounds": 3, "batch_size": 2}},
    {"model": {**TREES, "split_method": "hist", "interaction_size": "all"}},
    {"model": {**TREES, "split_method": "partially_random", "interaction_size": 2}},
    {"model": {"algorithm": "adassp"}},
    {"model": {**TREES, "algorithm": "s-gbdt"}},
    {"model": {**TREES, "algorithm": "s-gbdt"}, "s_gbdt": {"initial_score": "linear", "initial_score_share": 0.5}},
    {"model": {**TREES, "algorithm": "dp-xgboost"}},
    {"model": {**TREES, "algorithm": "dp-xgboost"}, "dp_xgboost": {"splits": "histogram"}},
]


@pytest.mark.parametrize("parts", METHODS)
def test_what_a_method_says_of_its_releases_is_near_the_truth(parts: dict[str, Any]) -> None:
    """A bound far above them would refuse plans that can be run."""
    plan = Plan.from_dict({**make_plan().to_dict(), **parts})
    task = TrainingTask(plan)
    queries, _ = queries_of(task, 1, 2_000)
    found = sum(query.release_length for query in queries)
    assert found <= task.schedule.n_released <= 2 * found
    longest = max(query.length for query in queries)
    assert longest <= task.schedule.longest <= 2 * longest
