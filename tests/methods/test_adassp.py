"""Boosted AdaSSP: the program against the paper's formula, what it costs, and what it promises to everybody."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.data.binned import SiteData
from hedgerow.losses.tables import RECORD_NORM, SCORE_UNIT
from hedgerow.methods.adassp.program import boost_adassp, correct_gram
from hedgerow.methods.adassp.settings import AdasspSettings, resolve_adassp
from hedgerow.methods.linear import GRAM_SHIFT, MIN_RIDGE, LinearBasis
from hedgerow.methods.registry import resolve
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.events import UnnoisedEvent
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.trees.binning import build_grid
from tests.builders import make_data, make_plan, take, train
from tests.models.probes import export_checked

LOSSES = ["squared", "logistic", "hinge"]


def linear_plan(label: str = "binary", own: dict[str, Any] | None = None, **privacy: Any) -> Plan:
    return make_plan(label, {"algorithm": "adassp"}, privacy, adassp=own or {})


@st.composite
def linear_plans(draw: st.DrawFn) -> Plan:
    label = draw(st.sampled_from(["binary", "regression"]))
    rows = draw(st.integers(1, 3))
    own = {
        "loss": draw(st.sampled_from(LOSSES)) if label == "binary" else "auto",
        "rounds": draw(st.one_of(st.just("auto"), st.integers(1, 6))),
        "row_norm": draw(st.sampled_from(["auto", 0.5, 1.5])),
        "gram_share": draw(st.sampled_from([0.05, 0.6, 0.95])),
        "learning_rate": draw(st.sampled_from([0.1, 1.0, 9.0])),
    }
    privacy = {
        "epsilon": draw(st.sampled_from([0.05, 0.3, 2.0, 15.0])),
        "delta": draw(st.sampled_from([1e-3, 1e-6, 1e-12])),
        "accountant": draw(st.sampled_from(["gdp", "rdp"])),
        "unit": "record" if rows == 1 else "patient",
        "max_rows_per_unit": rows,
    }
    return linear_plan(label, own, **privacy)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), seed=st.integers(0, 10**6))
def test_any_plan_keeps_its_promise_over_any_sites(data: st.DataObject, seed: int) -> None:
    """Spent at most what was asked and planned, and the same bytes from one site and from five."""
    plan = data.draw(linear_plans())
    rows = make_data(plan, 60, seed)
    owner = np.random.default_rng(seed).integers(0, 5, 60)
    alone = train(plan, [rows])
    parts = [take(rows, np.flatnonzero(owner == site)) for site in range(5)]
    together = train(plan, parts)
    for outcome in (alone, together):
        assert outcome.report.epsilon <= plan.privacy.epsilon
        assert outcome.report.epsilon > 0.99 * plan.privacy.epsilon
    assert alone.ensemble.fitted.values.tobytes() == together.ensemble.fitted.values.tobytes()
    assert alone.ledger.to_json() == together.ledger.to_json()
    own = resolve(plan)
    assert len(alone.ledger) == own.schedule(plan).n_rounds
    judge = get_accountant(plan.privacy.accountant)
    planned = judge.epsilon(own.schedule(plan).events, plan.privacy.delta)
    assert alone.report.epsilon <= planned * (1 + 1e-9) and planned <= plan.privacy.epsilon * (1 + 1e-9)


class Recorder:
    """Keeps what was released, so that the model can be computed again from it by another way."""

    def __init__(self, plan: Plan, data: SiteData) -> None:
        from hedgerow.client.node import Node

        self.queries: list[Query] = []
        self.releases: list[IntVector] = []
        own = resolve(plan)
        node, program, noise = Node("one", data, plan, own), boost_adassp(plan, own), SeededNoise(4)
        query = next(program)
        while True:
            sigma = math.ceil(query.noise_multiplier * math.sqrt(query.sensitivity_squared))
            released = node.answer(query)
            if sigma:
                released = released + noise.sample(sigma, query.length, str(query.purpose))
            self.queries.append(query)
            self.releases.append(released)
            try:
                query = program.send(released)
            except StopIteration as finished:
                self.ensemble = finished.value
                return


@pytest.mark.parametrize("epsilon", [0.5, 5.0, math.inf])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_model_is_the_papers_formula(loss: str, epsilon: float) -> None:
    """Equation 6 by numpy's own eigenvalues and solver: theta = (X^T X + lambda I)^-1 sum of X^T g, noise in all."""
    plan = linear_plan(own={"loss": loss, "rounds": 3}, epsilon=epsilon)
    data = make_data(plan, 100, 9)
    run = Recorder(plan, data)
    own = resolve_adassp(plan)
    basis = LinearBasis.of(plan, build_grid(plan), own.row_norm, plan.own.scale)
    gram = correct_gram(run.releases[0], basis)
    gram_query = run.queries[0]
    sigma = math.ceil(own.gram_multiplier * math.sqrt(gram_query.sensitivity_squared)) * 2**GRAM_SHIFT / basis.unit**2
    wanted = own.noise_ridge * sigma * math.sqrt(len(gram))
    ridge = max(0.0, wanted - float(np.linalg.eigvalsh(gram)[0])) + MIN_RIDGE
    total = np.sum(run.releases[1:], axis=0) * RECORD_NORM / basis.unit / RECORD_NORM
    theta = np.linalg.solve(gram + ridge * np.eye(len(gram)), total)
    expected = np.zeros(100)
    for feature in range(4):
        codes = data.codes[feature]
        expected += theta[basis.rows.column[feature, codes]] * basis.rows.entry[feature, codes] / basis.unit
    expected += theta[0]
    scores = run.ensemble.scores(data.codes)[0]
    # The least eigenvalue is searched for in twelve halvings, and leaf values are rounded to 2**-16.
    tolerance = 0.01 * float(np.abs(expected).max()) + 20 * 2.0**-16
    np.testing.assert_allclose(scores, expected, atol=tolerance)


def test_without_noise_it_is_ridge_regression() -> None:
    """One round of the squared loss with no noise: least squares with a ridge of one record, to the grid's rounding."""
    plan = linear_plan("regression", {"rounds": 1}, epsilon=math.inf, n_records=3000)
    data = make_data(plan, 3000, 3)
    outcome = train(plan, [data])
    own = resolve_adassp(plan)
    basis = LinearBasis.of(plan, build_grid(plan), own.row_norm, plan.own.scale)
    design = np.zeros((3000, basis.rows.n_columns))
    design[:, 0] = 1
    for feature in range(4):
        codes = data.codes[feature]
        design[np.arange(3000), basis.rows.column[feature, codes]] = basis.rows.entry[feature, codes] / basis.unit
    y = data.labels / SCORE_UNIT
    theta = np.linalg.solve(design.T @ design + np.eye(design.shape[1]), design.T @ y)
    np.testing.assert_allclose(outcome.ensemble.scores(data.codes)[0], design @ theta, atol=2e-3)
    assert any(isinstance(event, UnnoisedEvent) for event in outcome.ledger.events())
    assert outcome.report.guarantee == "void"


@pytest.mark.parametrize("loss", LOSSES)
def test_it_learns(loss: str) -> None:
    """A linear rule over thousands of records is found at a moderate epsilon, by every loss."""
    plan = linear_plan(own={"loss": loss, "rounds": 5}, epsilon=2.0, n_records=20_000)
    data = make_data(plan, 20_000, 1)
    rule = data.codes[1].astype(int) - 127 + 120 * (data.codes[2] == 1)
    labelled = SiteData(data.codes, (rule > 0).astype(np.int32))
    outcome = train(plan, [labelled])
    right = (outcome.ensemble.scores(labelled.codes)[0] > 0) == labelled.labels
    assert right.mean() > 0.9


def test_a_release_that_makes_no_sense_ends_in_a_model_all_the_same() -> None:
    """A matrix far from definite, as extreme noise or a lying coordinator makes it, leads to a larger lambda."""
    plan = linear_plan()
    program = boost_adassp(plan, resolve_adassp(plan))
    query = next(program)
    try:
        while True:
            wild = np.random.default_rng(1).integers(-(2**50), 2**50, query.length)
            query = program.send(wild)
    except StopIteration as finished:
        values = finished.value.fitted.values
    assert np.isfinite(values).all() and np.abs(values.astype(np.int64)).max() < 2**31


def test_more_signal_makes_more_rounds() -> None:
    """The rule for "auto" looks at public numbers only, and never asks for less than a round or more than ten."""
    rounds = []
    for epsilon in (0.01, 0.3, 3.0, math.inf):
        own = resolve(linear_plan(epsilon=epsilon, n_records=20_000))
        assert isinstance(own, AdasspSettings)
        rounds.append(own.rounds)
    assert rounds == sorted(rounds) and rounds[0] == 1 and rounds[-1] == 10


def test_the_model_file_holds_it(tmp_path: Any) -> None:
    """A linear model is saved, read back and exported as any ensemble; values that are missing or unlisted included."""
    plan = linear_plan()
    data = make_data(plan, 300, 8)
    outcome = train(plan, [data])
    model = Model(plan, outcome.ensemble, outcome.ledger, outcome.report)
    model.save(tmp_path / "model.json")
    again = Model.load(tmp_path / "model.json")
    assert again.to_bytes() == model.to_bytes()
    assert np.array_equal(again.decision_scores_codes(data.codes), model.decision_scores_codes(data.codes))
    export_checked(model, tmp_path / "xgboost.json")
