"""The default for a bounded number: its start, its doublings, its last release, and what they may depend on."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.client.node import Node
from hedgerow.data.binned import SiteData
from hedgerow.errors import PlanError
from hedgerow.local.training import train
from hedgerow.losses.tables import MAX_UNIT, double_residuals
from hedgerow.methods.adassp.program import solve_centred
from hedgerow.methods.boosting.schedule import BoostingSettings
from hedgerow.methods.level import LevelSums
from hedgerow.methods.line import MAX_DOUBLINGS, SpreadSums, choose_doublings
from hedgerow.methods.linear_start import LabelSums
from hedgerow.methods.registry import program_for, resolve
from hedgerow.methods.score_bins import ScoreBins
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.queries import Query
from hedgerow.training.steps import EndedEarly
from hedgerow.trees.leaf_sums import LeafSums
from tests.builders import NoNoise, make_data, make_plan

UNIT = 2**14


def settings_of(plan: Plan) -> BoostingSettings:
    own = resolve(plan)
    assert isinstance(own, BoostingSettings)
    return own


def node_with(plan: Plan, labels: list[int], scores: list[int]) -> Node:
    """A node whose records have these labels and scores, in units of 2**-16."""
    codes = np.zeros((len(plan.features), len(labels)), dtype=np.uint8)
    node = Node("site", SiteData(codes, np.array(labels, dtype=np.int32)), plan, resolve(plan))
    node.held.records.scores[0] = scores
    return node


@settings(max_examples=150, deadline=None)
@given(data=st.data(), rows=st.integers(1, 3))
def test_the_spread_about_scores_is_that_of_its_definition(data: st.DataObject, rows: int) -> None:
    """Integer for integer, and one unit's rows never add more than the bound and the sensitivity that are stated."""
    privacy = {"unit": "patient", "max_rows_per_unit": rows} if rows > 1 else {}
    plan = make_plan("regression", {"start": "mean"}, privacy)
    own = settings_of(plan)
    edges = st.sampled_from([-(2**16), 2**16, 0, 2**31 - 1, -(2**31)])
    labels = data.draw(st.lists(st.integers(-(2**16), 2**16), min_size=1, max_size=6))
    scores = data.draw(st.lists(st.integers(-(2**17), 2**17) | edges, min_size=len(labels), max_size=len(labels)))
    _, query = own.start_of(plan).questions()
    distances = (Fraction(label - score, 2**16) for label, score in zip(labels, scores, strict=True))
    parts = [math.trunc(min(Fraction(1), abs(distance)) * UNIT) for distance in distances]
    assert node_with(plan, labels, scores).answer(query).tolist() == [sum(parts)]
    assert max(parts) <= query.bound and (rows * max(parts)) ** 2 <= query.sensitivity_squared


@settings(max_examples=60, deadline=None)
@given(
    label=st.integers(-(2**16), 2**16), score=st.integers(-(2**31), 2**31 - 1),
    doublings=st.integers(0, MAX_DOUBLINGS),
)  # fmt: skip
def test_a_doubled_residual_is_clipped_as_any_other(label: int, score: int, doublings: int) -> None:
    """Doubled before it is clipped, so the largest norm, and with it the noise, is the same however often."""
    plan = make_plan("regression")
    loss, queries = resolve(plan).loss(plan), queries_of(plan)
    query = next(each for each in queries if isinstance(each, LeafSums))
    query = dataclasses.replace(query, doublings=doublings, update=None)
    node = node_with(plan, [label], [score])
    node._ensemble_size = query.ensemble_size
    answer = node.answer(query).reshape(-1, 2).sum(axis=0).tolist()
    residual = (score - label) * 2**doublings
    size = min(abs(residual) * int(loss.scales[0]) // 2**16, loss.clip)
    assert answer == [size if residual >= 0 else -size, loss.constant]
    assert answer[0] ** 2 + answer[1] ** 2 <= query.sensitivity_squared == loss.norm_squared
    assert double_residuals(loss, doublings).norm_squared == loss.norm_squared


def queries_of(plan: Plan, seed: int = 0, data: SiteData | None = None) -> list[Query]:
    """Every query of a run over some rows, with no noise added."""
    data = data or make_data(plan, 50, seed)
    node, program, queries = Node("site", data, plan, resolve(plan)), program_for(plan), []
    query = next(program)
    while True:
        queries.append(query)
        try:
            query = program.send(node.answer(query))
        except StopIteration:
            return queries


def test_a_run_begins_with_a_start_and_ends_with_a_calibration() -> None:
    """The mean, the spread, five releases of a linear model, the trees, bins and level: all in the plan's sum."""
    plan = make_plan("regression")
    kinds = [type(query).__name__ for query in queries_of(plan)]
    start = ["LabelSums", "SpreadSums", "GramMatrix", "GramMatrix", *["CrossProducts"] * 3]
    assert kinds == [*start, *["LeafSums"] * 4, "ScoreBins", "LevelSums", "LevelSums"]
    assert len(kinds) == resolve(plan).schedule(plan).n_rounds
    without = make_plan("regression", {"start": "none"})
    assert {type(query) for query in queries_of(without)} == {LeafSums, LevelSums}


def test_noise_that_hides_the_spread_is_not_taken_for_a_small_one() -> None:
    """A spread below its noise doubles no further than the noise allows, and no unit leaves what kernels hold."""
    loss = resolve(make_plan("regression")).loss(make_plan("regression"))
    found = [choose_doublings(spread, loss) for spread in (1.0, 0.2, 0.15, 0.08, 0.07, 0.0)]
    assert found == [0, 0, 1, 1, 2, MAX_DOUBLINGS]
    wide = dataclasses.replace(loss, scales=np.array([MAX_UNIT / 3, 1.0]))
    assert choose_doublings(0.0, wide) == 1


@pytest.mark.parametrize("epsilon", [0.1, 1.0, math.inf])
def test_no_prediction_leaves_the_bounds(epsilon: float) -> None:
    """However little is known, and for labels at the bounds."""
    plan = make_plan("regression", {"n_trees": 30}, {"epsilon": epsilon})
    data = make_data(plan, 200, 3)
    extreme = SiteData(data.codes, np.where(np.arange(200) % 3 == 0, 2**16, -(2**16)).astype(np.int32))
    model = train(plan, {"one": extreme}, noise=SeededNoise(1))
    predicted = model.predict_codes(data.codes)
    low, high = plan.label.bounds
    assert np.isfinite(predicted).all() and low <= predicted.min() <= predicted.max() <= high


def test_a_run_that_ends_in_its_start_is_no_model() -> None:
    """The mean alone says the same of every record; after the first tree the start is part of the model."""
    plan = make_plan("regression")
    for n_answered, n_trees in ((3, 0), (7, 0), (8, 1 + len(plan.features) + 1)):
        node, program = Node("site", make_data(plan, 50, 1), plan, resolve(plan)), program_for(plan)
        query = next(program)
        for _ in range(n_answered):
            query = program.send(node.answer(query))
        with pytest.raises(StopIteration) as ended:
            program.throw(EndedEarly())
        assert ended.value.value.n_trees == n_trees


@pytest.mark.parametrize(
    ("label", "model"),
    [
        ("binary", {"start": "mean"}),
        ("count", {"start": "linear"}),
        ("regression", {"start": "linear", "interaction": "cyclical"}),
        ("regression", {"shrinkage": 0.5, "interaction": "random"}),
        ("regression", {"start": "mean", "weight_update": "averaging"}),
    ],
)
def test_a_start_that_would_be_ignored_is_refused(label: str, model: dict[str, Any]) -> None:
    """Whoever asks for one gets it, or hears why not."""
    with pytest.raises(PlanError, match=r"start|shrinkage"):
        make_plan(label, model)


def test_a_linear_start_needs_a_numeric_feature() -> None:
    """Without one the default is the mean, and a linear model is refused."""
    words = [{"name": "word", "type": "categorical", "categories": ["a", "b", "c"]}]
    assert settings_of(make_plan("regression", features=words)).start == "mean"
    with pytest.raises(PlanError, match="start"):
        make_plan("regression", {"start": "linear"}, features=words)


def test_the_rule_sees_public_numbers_only() -> None:
    """More records, or a larger epsilon, at the same signal n mu: the same settings but for the noise."""
    few, many = (
        settings_of(make_plan("regression", {"n_trees": "auto", "max_depth": "auto"}, {"n_records": n}))
        for n in (1000, 100_000)
    )
    assert few.n_trees < many.n_trees and few.max_depth < many.max_depth
    assert few.learning_rate > many.learning_rate and few.start_share > many.start_share
    assert many.noise_multiplier > few.noise_multiplier


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0, math.inf])
def test_steps_are_no_longer_than_a_ridge_allows(epsilon: float) -> None:
    """A plan that names a ridge and no rate has steps in proportion: the default's, of 2 and more, would overshoot."""
    usual = settings_of(make_plan("regression", privacy={"epsilon": epsilon}))
    for ridge in (0, 1.5, 10, 45, 90, 100):
        own = settings_of(make_plan("regression", {"noise_ridge": ridge}, {"epsilon": epsilon}))
        expected = max(0.25, usual.learning_rate * min(1, ridge / usual.noise_ridge))
        assert own.learning_rate == pytest.approx(expected)


def test_a_centred_step_is_least_squares_without_noise() -> None:
    """Of the same equations, by numpy's own solver; and with nothing but noise, the mean alone."""
    random = np.random.default_rng(5)
    rows = np.column_stack([np.ones(4000), random.uniform(-1, 1, (4000, 3))])
    label = -0.9 + 0.02 * rows[:, 1] - 0.03 * rows[:, 3] + 0.01 * random.normal(size=4000)
    gram, cross = rows.T @ rows, rows.T @ label
    exact = np.linalg.lstsq(rows, label, rcond=None)[0]
    np.testing.assert_allclose(solve_centred(gram, cross, (0.0, 0.0), 0.0, 1.0), exact, atol=1e-4)
    buried = solve_centred(gram, cross, (0.0, 200.0), 0.0, 1.0)
    assert not buried[1:].any() and buried[0] == pytest.approx(label.mean(), abs=1e-9)


def test_a_linear_model_of_a_narrow_label_does_not_blow_up() -> None:
    """Wide bounds, a mean far from their middle and little spread: at the least it predicts about the mean."""
    random = np.random.default_rng(8)
    n, n_features = 6000, 6
    features = [{"name": f"x{i}", "type": "numeric", "min": 0, "max": 1} for i in range(n_features)]
    plan = Plan.from_dict(
        {
            **make_plan("regression", features=features).to_dict(),
            "model": {"algorithm": "adassp"},
            "privacy": {"epsilon": 0.5, "delta": 1 / n, "n_records": n},
        }
    )
    codes = random.integers(0, 250, (n_features, n)).astype(np.uint8)
    label = -0.8 + 0.0001 * codes[0] + 0.1 * random.normal(size=n)
    data = SiteData(codes, np.rint(np.clip(label, -1, 1) * 2**16).astype(np.int32))
    for seed in range(4):
        model = train(plan, {"one": data}, noise=SeededNoise(seed))
        scores = np.clip(model.ensemble.scores(codes)[0], -1, 1)
        assert 1 - np.mean((label - scores) ** 2) / label.var() > -0.05


def test_labels_and_spread_are_asked_for_a_unit_s_rows() -> None:
    """Three rows of one person add three times as much: the mean's question counts them as well."""
    one, three = (
        queries_of(make_plan("regression", None, privacy))
        for privacy in ({}, {"unit": "patient", "max_rows_per_unit": 3})
    )
    for kind in (LabelSums, SpreadSums, ScoreBins):
        single, several = (next(query for query in queries if isinstance(query, kind)) for queries in (one, three))
        assert several.sensitivity_squared == 9 * single.sensitivity_squared


@pytest.mark.parametrize(
    "n_features, n_records, trees, start",
    [(50, 100, 100, "linear"), (60, 100, 83, "linear"), (200, 100, 25, "linear"), (200, 10**6, 400, "linear"),
     (1001, 100, 12, "mean")],
)  # fmt: skip
def test_many_features_and_little_signal_have_few_trees(
    n_features: int, n_records: int, trees: int, start: str
) -> None:
    """Each tree adds noise, so two turns for each feature cost more than they find; and solving takes p^3."""
    features = [{"name": f"x{number}", "type": "numeric", "min": 0, "max": 1} for number in range(n_features)]
    plan = make_plan("regression", {"n_trees": "auto"}, {"n_records": n_records}, features)
    own = settings_of(plan)
    assert (own.start, own.n_trees) == (start, trees)


def test_predictions_from_many_useless_features_stay_near_the_mean() -> None:
    """Far more columns than the signal can tell of: noise is not added up to something worse than the mean label."""
    random = np.random.default_rng(0)
    features = [{"name": f"x{number}", "type": "numeric", "min": -1, "max": 1} for number in range(200)]
    plan = make_plan("regression", {"n_trees": "auto"}, {"epsilon": 0.17, "n_records": 2000}, features)
    rows = make_data(plan, 2000, 1)
    labels = np.clip(random.normal(0, 0.15, 2000), -1, 1)
    data = dataclasses.replace(rows, labels=np.rint(labels * 2**16).astype(np.int32))
    ensemble = train(plan, {"one": data}, noise=SeededNoise(0)).ensemble
    assert np.mean((ensemble.scores(rows.codes)[0] - labels) ** 2) < 1.15 * np.var(labels)


def test_the_last_release_cuts_off_less_than_trees_do() -> None:
    """What is cut off of a long tail is off the mean, which this release is there to mend."""
    plan = make_plan("regression", privacy={"epsilon": 20.0, "n_records": 50})
    alike = dataclasses.replace(make_data(plan, 50, 0), labels=np.zeros(50, dtype=np.int32))
    queries = queries_of(plan, 0, alike)
    (last,) = (query for query in queries if isinstance(query, ScoreBins))
    of_trees = {query.doublings for query in queries if isinstance(query, LeafSums)}
    assert of_trees == {last.doublings + 1}


def test_the_mean_of_a_long_tail_is_met() -> None:
    """Trees cut the tail off; the last release knows well enough what that takes from the mean to give it back."""
    plan = make_plan("regression", {"n_trees": 30}, {"epsilon": 3.0, "n_records": 20_000})
    rows = make_data(plan, 20_000, 0)
    labels = np.random.default_rng(1).lognormal(-4, 1.0, 20_000).clip(0, 2) - 1
    data = dataclasses.replace(rows, labels=np.rint(labels * 2**16).astype(np.int32))
    ensemble = train(plan, {"one": data}, noise=SeededNoise(0)).ensemble
    assert np.mean(ensemble.scores(rows.codes)[0] + 1) / np.mean(labels + 1) == pytest.approx(1, abs=0.03)


def test_half_as_wide_a_label_has_half_as_wide_a_model() -> None:
    """Doubled once more, it is the same to trees, and to all that the last release believes before it has an answer."""
    plan = make_plan("regression", {"n_trees": 10}, {"n_records": 2000})
    rows, random = make_data(plan, 2000, 0), np.random.default_rng(2)
    # A tail that trees cut off, so that the shift is far from nothing.
    labels, found = np.where(random.random(2000) < 0.05, 12, 0) + random.choice([-1, 1], 2000), []
    for width in (2**11, 2**10):
        data = dataclasses.replace(rows, labels=(width * labels).astype(np.int32))
        found.append(train(plan, {"one": data}, noise=NoNoise(0)).ensemble.scores(rows.codes)[0] * 2**16 / width)
    assert found[0] == pytest.approx(found[1], abs=0.01)
