"""A run's schedule is what its program asks, whatever is released: how often, how long, how large, and at what cost."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.losses.tables import double_residuals
from hedgerow.methods.line import bound_doublings
from hedgerow.methods.tasks import EvaluationTask, SurveyTask, Task, TrainingTask, ensemble_bytes
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.calibration import noise_of
from hedgerow.protocol.queries import Query
from hedgerow.trees.ensemble import Ensemble
from tests.builders import make_plan, plans, queries_of
from tests.survey.test_golden_surveys import GOLDEN as SURVEYS
from tests.test_golden_models import GOLDEN, smallest_plan


def check_schedule(task: Task, queries: list[Query]) -> None:
    """Every query is among those of its kind, which are no smaller and have no more noise; a survey may ask less."""
    rounds, is_survey = task.schedule.rounds, isinstance(task, SurveyTask)
    found = Counter(query.purpose.kind for query in queries)
    planned = Counter({kind: count for kind, (count, _) in task.schedule.kinds.items()})
    assert found <= planned if is_survey else found == planned
    assert sum(query.release_length for query in queries) <= task.schedule.n_released
    for query in queries:
        assert any(
            query.purpose.kind == alike.query.purpose.kind
            and query.length <= alike.query.length <= (alike.grid_length or alike.query.length)
            and query.bound <= alike.query.bound
            and query.sensitivity_squared <= alike.query.sensitivity_squared
            and (is_survey or query.sensitivity_squared >= (alike.least_squared or alike.query.sensitivity_squared))
            and (is_survey or query.noise_multiplier >= alike.query.noise_multiplier)
            for alike in rounds
        ), query.purpose


@pytest.mark.parametrize("name", sorted(GOLDEN))
@pytest.mark.parametrize("most", [0, 30_000])
def test_golden_plans_ask_what_their_schedules_say(name: str, most: int) -> None:
    """Of every method, label, start, calibration and kind of candidates."""
    label, overrides, _ = GOLDEN[name]
    task = TrainingTask(smallest_plan(label, overrides))
    check_schedule(task, queries_of(task, 3, most)[0])


@settings(max_examples=60)
@given(data=st.data(), seed=st.integers(0, 99), most=st.sampled_from([0, 2_000, 10**6]))
def test_no_run_asks_for_more_or_costs_more_than_its_schedule_says(data: st.DataObject, seed: int, most: int) -> None:
    """By the schedule nodes refuse a plan, owners allow it, and a budget is reserved: all before the first query."""
    plan = data.draw(plans())
    task, privacy = TrainingTask(plan), plan.privacy
    queries, _ = queries_of(task, seed, most)
    check_schedule(task, queries)
    judge = get_accountant(privacy.accountant)
    charged = judge.epsilon([noise_of(query).event for query in queries], privacy.delta)
    assert charged <= judge.epsilon(task.schedule.events, privacy.delta) <= privacy.epsilon


@pytest.mark.parametrize("largest", [7.0, 20.0, 300.0, 10_000.0])
@pytest.mark.parametrize("model", [{}, {"joint_clip": 0.05}, {"weight_update": "gradient"}])
def test_no_doubling_has_less_sensitivity_than_the_schedule_says(largest: float, model: dict[str, Any]) -> None:
    """A count's gradient has what its Hessian leaves of the norm, rounded: each doubling has another largest norm."""
    plan = make_plan("count", model=model)
    task = TrainingTask(replace(plan, label=replace(plan.label, max=largest)))
    loss = task.settings.loss(task.plan)
    leaves = [alike for alike in task.schedule.rounds if alike.query.purpose.kind == "LeafSums"]
    possible = range(bound_doublings(loss) + 1)
    least = min(double_residuals(loss, doublings).sensitivity_squared(0) for doublings in possible)
    assert [alike.least_squared for alike in leaves] == [least]


@pytest.mark.parametrize("label", ["binary", "multiclass", "regression", "count", "survival"])
@pytest.mark.parametrize("epsilon", [1.0, math.inf])
def test_evaluations_ask_what_their_schedules_say(label: str, epsilon: float) -> None:
    """An outline, a detail, and that by columns, for each type of label, of any scores."""
    plan = make_plan(label).with_structure_seed(1)
    _, ensemble = queries_of(TrainingTask(plan), 1, 3_000)
    assert isinstance(ensemble, Ensemble)
    for by in ((), ("age", "region"), ("region", "site"))[: 3 if epsilon < math.inf else 2]:
        sites = ("a", "b", "c") if "site" in by else ()
        task = EvaluationTask(plan, ensemble_bytes(ensemble), epsilon, 1e-6, first_round=4, by=by, sites=sites)
        for most in (0, 10**8):
            check_schedule(task, queries_of(task, 2, most)[0])


@pytest.mark.parametrize("name", sorted(SURVEYS))
@pytest.mark.parametrize("most", [0, 10**4, 10**9])
def test_surveys_ask_no_more_than_their_schedules_say(name: str, most: int) -> None:
    """Tables and curves, whatever is found on the way."""
    task = SurveyTask(SURVEYS[name][0])
    check_schedule(task, queries_of(task, 2, most)[0])
