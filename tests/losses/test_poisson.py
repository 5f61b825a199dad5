"""Counts: what a record adds and how large that can be, predictions, exports, evaluations, and what is learned."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow import DPGBDTRegressor
from hedgerow.client.node import Node
from hedgerow.data.binned import SiteData
from hedgerow.data.drafts import draft_plan
from hedgerow.data.units import records_from_columns
from hedgerow.errors import DataError, PlanError, UsageError
from hedgerow.local.training import evaluate_federated, train
from hedgerow.losses.poisson import MAX_COUNT, LogMean, compute_score
from hedgerow.losses.registry import build_loss, loss_kind
from hedgerow.losses.tables import MAX_UNIT, RECORD_NORM, SCORE_LIMIT, SCORE_UNIT, STEP_BITS, STEPS, double_residuals
from hedgerow.methods.boosting.schedule import BoostingSettings
from hedgerow.methods.linear_start import read_level
from hedgerow.methods.registry import resolve
from hedgerow.models.model import Model
from hedgerow.plan.plan import Label, Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.trees.binning import build_grid
from tests.builders import bare_plan, coded, contributions, numbers
from tests.models.probes import export_checked

LARGEST = st.sampled_from([1, 2, 12, 365, MAX_COUNT])
CLIPS = st.sampled_from(["none", 0.05, 0.5, 3.0])
UPDATES = st.sampled_from(["newton", "gradient"])


def counts_plan(largest: float = 20, epsilon: float = math.inf, **model: Any) -> Plan:
    label = {"name": "y", "type": "count", "max": largest}
    return bare_plan(label, numbers(6), epsilon=epsilon, n_records=20_000, model=model)


def made(n: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Records whose mean count is a crooked function of their features."""
    random = np.random.default_rng(seed)
    x = random.uniform(0, 1, (n, 6)).astype(np.float32)
    mean = np.exp(0.3 + 1.2 * np.sin(5 * x[:, 0]) + 1.5 * (x[:, 1] > 0.5) * x[:, 2] - x[:, 3] ** 2)
    return x, random.poisson(mean)


def site_of(plan: Plan, x: NDArray[np.float32], y: NDArray[np.int64]) -> SiteData:
    return SiteData(build_grid(plan).encode(tuple(np.ascontiguousarray(x.T))), plan.label.kind.encode(y, plan.label))


def deviance(y: NDArray[Any], mean: NDArray[Any]) -> float:
    """By scikit-learn, which is no part of the loss."""
    metrics = pytest.importorskip("sklearn.metrics")
    return float(metrics.mean_poisson_deviance(y, mean))


@pytest.fixture(scope="module")
def trained() -> tuple[Model, NDArray[np.float32], NDArray[np.int64]]:
    plan = counts_plan(20)
    x, y = made(20_000, 0)
    return train(plan, {"a": site_of(plan, x, y)}, noise=SeededNoise(1)), *made(20_000, 1)


@given(largest=LARGEST, clip=CLIPS, update=UPDATES)
def test_statistics_are_the_gradient_and_the_curvature_of_the_deviance(largest: int, clip: Any, update: str) -> None:
    """g = mean - y and h = mean in units of M / 2, up to the steps of score, the clip, and the rounding of integers."""
    plan = counts_plan(largest, weight_update=update, joint_clip=clip)
    loss = build_loss(plan, None if clip == "none" else clip)
    scores = np.arange(-SCORE_LIMIT, SCORE_LIMIT, 1 << STEP_BITS) + (1 << STEP_BITS) // 2
    steps = (scores >> STEP_BITS) + STEPS // 2
    mean = LogMean().values(scores / SCORE_UNIT, plan.label)
    assert np.abs((loss.curve[0, steps] / SCORE_UNIT + 1) * largest / 2 - mean).max() <= 1e-5 * largest
    if update == "newton":
        unit = largest / 2 / loss.scales[1]
        most = math.inf if clip == "none" else RECORD_NORM / math.sqrt(2) * unit
        assert np.abs(loss.curve[1, steps] * unit - np.minimum(mean, most)).max() <= unit + 1e-9
    else:
        assert len(set(loss.curve[1].tolist())) == 1
    assert (np.diff(loss.curve[0]) >= 0).all() and (np.diff(loss.curve[1]) >= 0).all()


@given(
    largest=LARGEST, clip=st.one_of(st.none(), st.floats(1e-3, 5)), scale=st.one_of(st.none(), st.floats(1e-2, 10)),
    size=st.integers(0, 2**21), update=UPDATES, doublings=st.integers(0, 8), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_no_record_exceeds_the_sensitivity(
    largest: int, clip: float | None, scale: float | None, size: int, update: str, doublings: int,
    seed: int,
) -> None:  # fmt: skip
    """Whatever its label and score, a record's integers stay within the norm that noise is calibrated by."""
    plan = counts_plan(largest, weight_update=update)
    try:
        loss = build_loss(plan, clip, scale)
    except PlanError as error:
        assert "joint_clip" in error.what
        return
    if update == "newton" and loss.scales[0] * 2**doublings <= MAX_UNIT:
        loss = double_residuals(loss, doublings)
    random = np.random.default_rng(seed)
    labels = random.choice([-SCORE_UNIT, SCORE_UNIT, 0, 777], 256)
    scores = random.choice([-size, size, 0, size // 2], (1, 256))
    own = contributions(loss, labels.astype(np.int32), scores)
    squared = (own.astype(np.int64) ** 2).sum(axis=-1).max()
    assert squared <= loss.sensitivity_squared(size) <= loss.norm_squared <= RECORD_NORM**2
    assert np.abs(own).max() <= loss.bound()
    assert np.abs(own[..., 0]).max() <= loss.largest_statistic(0) and own[..., 1].max() <= loss.largest_statistic(1)


@given(largest=LARGEST, doublings=st.integers(0, 8), seed=st.integers(0, 2**32 - 1))
def test_statistics_are_cut_off_as_one_vector(largest: int, doublings: int, seed: int) -> None:
    """h = min(2^z mean, N / (c sqrt(2))) and |g| = |2^z (mean - y)| up to sqrt(N^2 - (c h)^2) in units of M / 2,
    computed apart from the kernel's integers; a record with a large residual has all of the norm that noise is for.
    """
    plan = counts_plan(largest)
    clip = c = 0.5
    loss = build_loss(plan, clip)
    units = loss.scales
    loss = double_residuals(loss, doublings)
    random = np.random.default_rng(seed)
    counts, scores = random.integers(0, largest + 1, 200), random.integers(-(2**19), 2**19, (1, 200))
    own = contributions(loss, plan.label.kind.encode(counts, plan.label), scores)
    middles = ((scores[0] >> STEP_BITS) << STEP_BITS) + (1 << STEP_BITS) // 2
    mean = LogMean().values(middles / SCORE_UNIT, plan.label) * 2 / largest
    hessian = np.minimum(mean * 2**doublings, clip / c / math.sqrt(2))
    room = np.sqrt(clip**2 - (c * hessian) ** 2)
    residual = (mean - counts * 2 / largest) * 2**doublings
    error = 2**doublings * 2**-15 + 2**-12
    assert np.abs(own[..., 0].ravel() / units[0] - np.clip(residual, -room, room)).max() <= error
    assert np.abs(own[..., 1].ravel() / units[1] - hessian).max() <= error
    norms = np.hypot(own[..., 0], own[..., 1]).ravel()[np.abs(residual) > room + error]
    assert (norms > RECORD_NORM - 3).all() and np.sqrt(loss.sensitivity_squared(SCORE_LIMIT)) <= RECORD_NORM


@given(largest=LARGEST, score=st.integers(-(2**20), 2**20))
def test_predictions_in_integers_are_the_predictions(largest: int, score: int) -> None:
    """What evaluations count, exp by two tables, is what predictions say, to one unit of a label and within bounds."""
    label = Label(name="y", type="count", max=float(largest))
    units = LogMean().units(np.array([score]), label)[0]
    value = LogMean().values(np.array([score / SCORE_UNIT]), label)[0]
    assert -SCORE_UNIT <= units <= SCORE_UNIT and 0 < value <= largest
    assert abs((units / SCORE_UNIT + 1) * largest / 2 - value) <= largest / 2 / SCORE_UNIT


@pytest.mark.parametrize(
    ("label", "field"),
    [
        ({}, "label.max"),
        ({"max": 0}, "label.max"),
        ({"max": 2.5}, "label.max"),
        ({"max": MAX_COUNT + 1}, "label.max"),
        ({"max": 9, "min": 1}, "label.min"),
        ({"max": 9, "classes": ["0", "1"]}, "label.classes"),
    ],
)
def test_labels_that_are_no_counts_are_refused(label: dict[str, Any], field: str) -> None:
    """A count needs a public maximum, a whole one, and has no other bound and no classes."""
    table = counts_plan().to_dict()
    table["label"] = {"name": "y", "type": "count", **label}
    with pytest.raises(PlanError) as caught:
        Plan.from_dict(table)
    assert caught.value.what.startswith(field)


def test_other_methods_refuse_counts() -> None:
    """They have no such loss."""
    table = counts_plan().to_dict()
    for method in ("adassp", "s-gbdt", "dp-xgboost"):
        with pytest.raises(PlanError, match=r"label\.type"):
            Plan.from_dict({**table, "model": {"algorithm": method}})


def test_without_noise_it_learns_about_as_much_as_xgboost(trained: tuple[Model, Any, Any]) -> None:
    """The deviance of new records is within a fiftieth of the constant mean's of what XGBoost's trees have."""
    xgboost = pytest.importorskip("xgboost")
    model, x, y = trained
    seen = made(20_000, 0)
    theirs = xgboost.train(
        {"objective": "count:poisson", "max_depth": 4, "eta": 0.1}, xgboost.DMatrix(*seen), num_boost_round=200
    )
    codes = site_of(model.plan, x, y).codes
    ours = deviance(y, model.predict_codes(codes))
    constant = deviance(y, np.full(len(y), y.mean()))
    assert ours < deviance(y, theirs.predict(xgboost.DMatrix(x))) + 0.02 * constant
    assert model.predict_codes(codes).mean() == pytest.approx(y.mean(), rel=0.02)


def test_at_epsilon_one_it_learns_far_more_than_the_mean() -> None:
    """At (1, 1e-6) over 20,000 records, less than half of the constant mean's deviance is left."""
    plan = counts_plan(20, epsilon=1.0)
    x, y = made(20_000, 0)
    model = train(plan, {"a": site_of(plan, x, y)}, noise=SeededNoise(1))
    x, y = made(20_000, 1)
    assert deviance(y, model.predict_codes(site_of(plan, x, y).codes)) < 0.5 * deviance(y, np.full(len(y), y.mean()))
    assert model.report.epsilon <= 1


def test_model_file_and_export(trained: tuple[Model, Any, Any], tmp_path: Path) -> None:
    """The file reads back to equal bytes; XGBoost itself predicts the same counts from the exported model."""
    xgboost = pytest.importorskip("xgboost")
    model, x, y = trained
    model.save(tmp_path / "model.json")
    assert Model.load(tmp_path / "model.json").to_bytes() == model.to_bytes()
    export_checked(model, tmp_path / "xgb.json")
    booster = xgboost.Booster(model_file=tmp_path / "xgb.json")
    assert "count:poisson" in booster.save_config()
    data = xgboost.DMatrix(x, feature_names=booster.feature_names, feature_types=booster.feature_types)
    theirs = np.minimum(booster.predict(data), 20)
    np.testing.assert_allclose(theirs, model.predict_codes(site_of(model.plan, x, y).codes), rtol=2e-6)


def test_evaluations_have_the_deviance_and_the_mean_error(trained: tuple[Model, Any, Any]) -> None:
    """Exactly over one's own table; from sums over sites without noise, nearly, for the largest errors are cut off."""
    model, x, y = trained
    data = site_of(model.plan, x, y)
    mean = model.predict_codes(data.codes)
    exact = loss_kind(model.plan).scores(y.astype(np.float64), mean, model.plan.label)
    assert exact == {
        "poisson_deviance": pytest.approx(deviance(y, mean)), "mae": pytest.approx(np.abs(y - mean).mean())
    }  # fmt: skip
    found = evaluate_federated(model, {"a": data}, epsilon=math.inf, noise=SeededNoise(1)).evaluation
    assert found.scores["mae"].value == pytest.approx(exact["mae"], rel=0.01)
    assert found.scores["poisson_deviance"].value == pytest.approx(exact["poisson_deviance"], rel=0.01)
    noisy = evaluate_federated(model, {"a": data}, epsilon=1.0, noise=SeededNoise(1)).evaluation
    for name, estimate in noisy.scores.items():
        assert abs(estimate.value - exact[name]) < 5 * estimate.noise_error + 0.05 * exact[name]


def test_the_estimator_takes_the_loss_as_scikit_learns_does() -> None:
    """loss="poisson", with label_bounds=(0, max); bounds from the data void the guarantee, as ever."""
    x, y = made(3000, 0)
    declared: dict[str, Any] = {"bounds": [(0, 1)] * 6, "label_bounds": (0, 20), "n_records": 3000}
    given = DPGBDTRegressor(loss="poisson", epsilon=10, n_trees=40, random_state=1, **declared).fit(x, y)
    assert given.model_.plan.label.type == "count"
    assert deviance(y, given.predict(x)) < 0.7 * deviance(y, np.full(len(y), y.mean()))
    read = DPGBDTRegressor(loss="poisson", epsilon=10, bounds="data", n_trees=2, random_state=1).fit(x, y)
    assert read.model_.plan.label.bounds == (0.0, float(y.max()))
    with pytest.raises(UsageError, check=coded("loss")):
        DPGBDTRegressor(loss="absolute_error", bounds="data").fit(x, y)


def test_what_is_below_zero_is_no_count() -> None:
    """It is a row that is left out and counted, or an error where nothing is promised; never a count of 0."""
    x, y = made(300, 0)
    y[7] = -1
    for label_bounds in (None, (0, 20)):
        told = {"loss": "poisson", "bounds": [(0, 1)] * 6, "label_bounds": label_bounds, "epsilon": math.inf}
        if label_bounds is None:
            told["bounds"] = "data"
        with pytest.raises(DataError, check=coded("data-label-outside")):
            DPGBDTRegressor(**told).fit(x, y)
    DPGBDTRegressor(bounds=[(0, 1)] * 6, label_bounds=(-1, 20), n_records=300, n_trees=2, epsilon=100).fit(x, y)
    columns = dict(zip(counts_plan(20, 1.0).feature_names, x.T, strict=True)) | {counts_plan(20, 1.0).label.name: y}
    left_out: dict[str, int] = {}
    found = records_from_columns(columns, counts_plan(20, 1.0), left_out=left_out).label
    assert found is not None and len(found) == 299 and left_out == {"data-label-outside": 1}


def test_a_draft_says_that_there_are_counts(tmp_path: Path) -> None:
    """Whole numbers may be classes, quantities or counts: the person who knows is told of all three."""
    table = tmp_path / "table.csv"
    table.write_text("a,y\n" + "".join(f"{i / 100},{i % 40}\n" for i in range(200)), encoding="utf-8")
    assert '"count" with max' in re.sub(r"\n# ", " ", draft_plan(table, "y"))


@pytest.mark.parametrize("largest", [1, 2, 12, 365, MAX_COUNT])
def test_sizes_of_counts_are_told_exactly(largest: int) -> None:
    """Every count is in the octave of its own number of binary digits, although labels are kept as shares of M."""
    plan = counts_plan(largest, 1.0)
    settings = resolve(plan)
    assert isinstance(settings, BoostingSettings)
    (question,) = settings.start_of(plan).questions()
    for counts in (np.arange(largest + 1), np.array([largest])):
        node = Node("site", site_of(plan, np.zeros((len(counts), 6), dtype=np.float32), counts), plan, settings)
        expected = np.bincount([int(count).bit_length() for count in counts], minlength=question.length)
        np.testing.assert_array_equal(node.answer(question), expected * RECORD_NORM)
    assert question.sensitivity_squared == question.bound**2 == RECORD_NORM**2


def test_the_mean_of_counts_is_found_and_noise_is_not_taken_for_large_ones() -> None:
    """Far below the bound: of 14 sizes those of thousands stay empty, and where all is noise nothing is said."""
    random, true = np.random.default_rng(0), np.random.default_rng(1).poisson(0.5, 4000)
    octaves = np.bincount([int(count).bit_length() for count in true], minlength=15) * RECORD_NORM
    sigma = 40.0 * RECORD_NORM
    found = [read_level(octaves + np.rint(random.normal(0, sigma, 15)), sigma, 10_000) for _ in range(200)]
    assert all(level is not None and 0.2 < level[0] < 0.8 for level in found)
    exact = read_level(octaves, 0.0, 10_000)
    assert exact is not None and exact[0] == pytest.approx(true.mean(), rel=0.15)
    hidden = [read_level(np.rint(random.normal(0, sigma, 15)), sigma, 10_000) for _ in range(200)]
    assert sum(level is not None for level in hidden) <= 4


def test_scores_of_means_are_those_that_the_link_gives_back() -> None:
    label = counts_plan(1000).label
    for mean in (0.02, 0.3, 1.0, 31.6, 40.0, 1000.0):
        score = compute_score(mean, label)
        assert LogMean().values(np.array([score / SCORE_UNIT]), label)[0] == pytest.approx(mean, rel=1e-4)
    assert compute_score(1e-9, label) == -SCORE_LIMIT


def test_rare_events_under_wide_bounds_are_not_worse_than_their_mean() -> None:
    """Few records, counts of 0.3 on average up to 1,000: trees from the middle of the range would predict far more."""
    plan = Plan.from_dict(
        {**counts_plan(1000, 0.5).to_dict(), "privacy": {"epsilon": 0.5, "delta": 1e-4, "n_records": 2000}}
    )
    random = np.random.default_rng(0)
    x = random.uniform(0, 1, (4000, 6)).astype(np.float32)
    y = random.poisson(0.3 * np.exp(x[:, 0]))
    model = train(plan, {"one": site_of(plan, x[:2000], y[:2000])}, noise=SeededNoise(0))
    predicted = model.predict_codes(site_of(plan, x[2000:], y[2000:]).codes)
    assert 0.2 < predicted.mean() / y[2000:].mean() < 2.5
