"""Losses that a plan names: Huber's, quantiles and expectiles, in integers, in plans, and in what they predict."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.errors import PlanError, UsageError
from hedgerow.estimators.boosted import DPGBDTRegressor
from hedgerow.losses.named import NAMED, Expectile, Huber, Quantile
from hedgerow.losses.registry import build_loss, loss_kind
from hedgerow.losses.tables import RECORD_NORM, SCORE_UNIT, double_residuals
from hedgerow.methods.residuals import N_CELLS, ResidualCounts, fit_shift
from hedgerow.plan.plan import Plan
from hedgerow.testing import check_method
from tests.builders import coded, contributions, make_plan

LOSSES: dict[str, dict[str, Any]] = {
    "huber": {"name": "huber", "delta": 0.2},
    "quantile": {"name": "quantile", "tau": 0.9},
    "expectile": {"name": "expectile", "tau": 0.1},
}


@settings(max_examples=40)
@given(
    loss=st.sampled_from(sorted(LOSSES)),
    clip=st.sampled_from([None, 0.02, 0.3]),
    doublings=st.integers(0, 3),
    labels=st.lists(st.integers(-SCORE_UNIT, SCORE_UNIT), min_size=1, max_size=30),
    reach=st.sampled_from([0, 10, 3000, 2**19]),
)
def test_a_record_adds_its_gradient_and_no_more_than_the_norm(
    loss: str, clip: float | None, doublings: int, labels: list[int], reach: int
) -> None:
    """Whatever the score is: against a slow oracle in fractions, doubled or not, on both sides of a label."""
    plan = make_plan("regression", {"joint_clip": "none" if clip is None else clip}, loss=LOSSES[loss])
    built = double_residuals(build_loss(plan, clip, None), doublings)
    kept = np.array(labels)
    scores = np.random.default_rng(reach).integers(-reach, reach + 1, (1, len(kept)))
    found = contributions(built, kept, scores)
    assert built.sides is not None
    for label, score, own in zip(kept.tolist(), scores[0].tolist(), found.tolist(), strict=True):
        residual = score - label
        unit, most = built.sides[residual < 0]
        size = min(abs(residual) * unit // SCORE_UNIT, most)
        assert own == [size if residual >= 0 else -size, built.constant]
    assert (found**2).sum(axis=1).max() <= built.norm_squared <= RECORD_NORM**2


@pytest.mark.parametrize("loss", [Huber(delta=0.1), Quantile(tau=0.8), Expectile(tau=0.3)], ids=lambda each: each.name)
def test_integers_are_the_gradient_within_the_clip(loss: Any) -> None:
    """Where residuals are not clipped a record adds what the loss's own derivative is, to what rounding takes."""
    plan = make_plan("regression", loss=LOSSES["huber"])
    built = loss.kind(plan.label).build(plan, 2.0, None)
    residuals = np.linspace(-0.05, 0.05, 11)
    added = contributions(built, np.zeros(11, dtype=int), np.rint(residuals * SCORE_UNIT).astype(int)[None, :])[:, 0]
    expected = residuals if loss.name == "quantile" else loss.gradient(residuals)
    assert np.abs(added / built.scales[0] - expected).max() < 2 / built.scales[0] + 2 / SCORE_UNIT


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("model", [{}, {"interaction": "cyclical", "interaction_size": 1}, {"start": "none"}])
def test_what_queries_state_is_not_exceeded(loss: str, model: dict[str, Any]) -> None:
    """The whole run of each loss, its last release as well, over single rows and over 1, 3 and 50 sites."""
    plan = make_plan("regression", model, loss=LOSSES[loss])
    found = check_method(plan)
    assert found.faults == () and found.epsilon <= plan.privacy.epsilon
    assert found.largest["LeafSums"] == found.largest["ResidualCounts"] == 1


def test_a_plan_with_other_constants_is_another_plan() -> None:
    """Parties whose constants differ do not agree on the digest; a plan without [loss] is written as before."""
    plans = [make_plan("regression", loss={"name": "quantile", "tau": tau}) for tau in (0.5, 0.9)]
    usual = make_plan("regression")
    assert len({plan.digest for plan in (*plans, usual)}) == 3
    assert "loss" not in usual.to_dict()
    assert [Plan.from_dict(plan.to_dict()) for plan in plans] == plans
    assert plans[1].to_dict()["loss"] == {"name": "quantile", "tau": 0.9}


@pytest.mark.parametrize(("label", "model", "loss", "field"), [
    ("binary", {}, {"name": "huber"}, "label.type"), ("count", {}, {"name": "quantile"}, "label.type"),
    ("regression", {"algorithm": "adassp"}, {"name": "huber"}, "loss.name"),
    ("regression", {"algorithm": "s-gbdt"}, {"name": "huber"}, "loss.name"),
    ("regression", {"weight_update": "averaging"}, {"name": "huber"}, "model.weight_update"),
    ("regression", {}, {"name": "pinball"}, "loss.name"), ("regression", {}, {"delta": 0.1}, "loss.name"),
    ("regression", {}, {"name": "quantile", "tau": 1.0}, "loss.tau"),
    ("regression", {}, {"name": "huber", "tau": 0.5}, "loss.tau"),
])  # fmt: skip
def test_a_loss_that_would_be_ignored_is_refused(label: str, model: Any, loss: Any, field: str) -> None:
    """Another label, a method with a loss of its own, means instead of gradients, unknown names and values."""
    with pytest.raises(PlanError) as caught:
        make_plan(label, model, loss=loss)
    assert caught.value.what.startswith(field)


@pytest.mark.parametrize("tau", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("scale", [0.01, 0.4])
def test_the_last_release_shifts_to_the_quantile(tau: float, scale: float) -> None:
    """Of residuals of any spread, with and without noise: the share below the shift is tau."""
    residuals = np.random.default_rng(3).normal(0.2 * scale, scale, 20_000)
    kept = np.rint(residuals * SCORE_UNIT)
    counts = np.zeros(N_CELLS, dtype=np.int64)
    octaves = np.clip(np.frexp(np.abs(kept))[1], 5, 17) - 5
    np.add.at(counts, octaves + N_CELLS // 2 * (kept >= 0), RECORD_NORM)
    for sigma in (0.0, 100.0 * RECORD_NORM):
        noise = np.rint(np.random.default_rng(4).normal(0, sigma, N_CELLS)).astype(np.int64)
        shift = fit_shift(counts + noise, sigma, Quantile(tau=tau).gradient)
        assert abs(float(np.mean(residuals <= shift)) - tau) < (0.03 if sigma else 0.02)
    assert fit_shift(np.zeros(N_CELLS, dtype=np.int64), 5.0, Huber().gradient) == 0


def test_an_estimator_takes_a_quantile() -> None:
    """Labels that scatter more with x: the upper and the lower quantile move apart, and cover what they say."""
    random = np.random.default_rng(5)
    x = random.random(6_000)
    y = 10 + random.normal(0, 0.5 + 2 * x)
    usual: dict[str, Any] = {"epsilon": 3, "bounds": [(0, 1)], "label_bounds": (0, 20), "n_records": 6_000}
    models = {
        tau: DPGBDTRegressor(loss="quantile", quantile=tau, random_state=1, **usual).fit(x[:, None], y)
        for tau in (0.1, 0.9)
    }
    for tau, model in models.items():
        assert model.model_.plan.loss == Quantile(tau=tau)
        assert abs(float(np.mean(y <= model.predict(x[:, None]))) - tau) < 0.02
    ends = {tau: model.predict(np.array([[0.05], [0.95]])) for tau, model in models.items()}
    widths = ends[0.9] - ends[0.1]
    assert widths[1] > 2 * widths[0]


def test_an_estimator_takes_a_loss_with_its_parameters() -> None:
    """As a plan's [loss] has them; a quantile that no loss reads is refused."""
    x, y = np.random.default_rng(1).random((2, 300))
    usual: dict[str, Any] = {"bounds": [(0, 1)], "label_bounds": (0, 1), "n_records": 300, "n_trees": 2}
    model = DPGBDTRegressor(loss={"name": "huber", "delta": 0.3}, **usual).fit(x[:, None], y)
    assert model.model_.plan.loss == Huber(delta=0.3)
    for wrong in ("absolute_error", "squared_error", "poisson"):
        with pytest.raises(UsageError, check=coded("loss")):
            DPGBDTRegressor(loss=wrong, quantile=0.5, **usual).fit(x[:, None], y)


def test_labels_that_are_far_off_count_little_to_huber() -> None:
    """One label in ten is spoiled: Huber's predictions stay at the others, the usual ones follow the mean."""
    random = np.random.default_rng(7)
    x = random.random(5_000)
    y = 10 + 5 * x + random.normal(0, 0.3, 5_000)
    spoiled = np.where(random.random(5_000) < 0.1, 100.0, y)
    usual: dict[str, Any] = {"epsilon": 5, "bounds": [(0, 1)], "label_bounds": (0, 100), "n_records": 5_000}
    errors = {}
    for name, loss in (("usual", "squared_error"), ("huber", {"name": "huber", "delta": 0.02})):
        model = DPGBDTRegressor(loss=loss, random_state=1, **usual).fit(x[:, None], spoiled)
        errors[name] = float(np.sqrt(np.mean((model.predict(x[:, None]) - y) ** 2)))
    assert errors["huber"] < 0.4 * errors["usual"]


def test_half_of_an_expectile_is_the_mean() -> None:
    """tau = 1/2 weighs both sides alike, and the shift of counts then is their mean."""
    counts = np.zeros(N_CELLS, dtype=np.int64)
    counts[[8, N_CELLS // 2 + 10]] = 30 * RECORD_NORM, 10 * RECORD_NORM
    low, high = (-1.5 * 2.0**12, 1.5 * 2.0**14)
    # Alone among empty cells a count lies evenly in its own.
    mean = (30 * low + 10 * high) / 40 / SCORE_UNIT
    assert math.isclose(fit_shift(counts, 0.0, Expectile(tau=0.5).gradient), mean, abs_tol=2 / SCORE_UNIT)


def test_an_evaluation_of_a_quantile_is_by_its_own_loss() -> None:
    """Pinball loss and coverage, in units of the label."""
    plan = make_plan("regression", loss={"name": "quantile", "tau": 0.8})
    found = loss_kind(plan).scores(np.array([0.0, 1.0, 2.0, 4.0]), np.array([1.0, 1.0, 1.0, 1.0]), plan.label)
    assert found == {"pinball_loss": pytest.approx((0.2 + 0 + 0.8 + 2.4) / 4), "coverage": 0.5}
    assert {loss.name for loss in NAMED} == set(LOSSES)
    assert ResidualCounts.purpose_of(0, "x").kind == "ResidualCounts"
    assert replace(plan, loss=None).digest == make_plan("regression").digest
