"""A finished model at another site: level and slope by one release, on the account of the model that has them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from hedgerow.data.binned import SiteData
from hedgerow.data.site_data import site_data_from_records
from hedgerow.data.units import records_from_columns
from hedgerow.errors import ModelError
from hedgerow.local.training import recalibrate_model, train
from hedgerow.methods.recalibration import Recalibration
from hedgerow.models.bands import why_unknown
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from tests.builders import bare_plan, coded, make_data, make_plan, numbers, train_model

LABELS: dict[str, dict[str, Any]] = {
    "binary": {"name": "y", "type": "binary", "classes": ["0", "1"]},
    "count": {"name": "y", "type": "count", "max": 20},
    "regression": {"name": "y", "type": "regression", "min": -5, "max": 5},
    "survival": {"name": "y", "type": "survival", "event": "e", "intervals": [1, 2, 3, 4]},
}


def make_rows(plan: Plan, n: int, shift: float, seed: int) -> tuple[SiteData, dict[str, Any]]:
    """Rows whose label follows x0 and x1; `shift` moves its log-odds, logarithm or value."""
    random = np.random.default_rng(seed)
    columns: dict[str, Any] = {f"x{i}": random.normal(size=n).clip(-3, 3) for i in range(3)}
    score = columns["x0"] + 0.5 * columns["x1"] - 1 + shift
    if plan.label.type == "binary":
        columns["y"] = np.where(random.random(n) < 1 / (1 + np.exp(-score)), "1", "0")
    elif plan.label.type == "count":
        columns["y"] = random.poisson(np.exp(score / 2 + 1)).clip(0, 20)
    elif plan.label.type == "regression":
        columns["y"] = score + random.normal(size=n)
    else:
        time = random.exponential(np.exp(-score))
        columns |= {"y": np.minimum(time, 9), "e": np.where(time < 9, "1", "0")}
    return site_data_from_records([records_from_columns(columns, plan, with_label=True)], plan)[0], columns


@cache
def trained(label: str, **fields: Any) -> Model:
    """A model of rows of an unmoved label, nearly without noise."""
    few = {"n_trees": 12} if "algorithm" not in fields else {}
    plan = bare_plan(LABELS[label], numbers(3, -3, 3), epsilon=50.0, n_records=2000, **few, **fields)
    return train(plan, {"a": make_rows(plan, 2000, 0.0, 1)[0]}, noise=SeededNoise(1))


def means(model: Model, columns: dict[str, Any]) -> tuple[float, float]:
    """What is predicted and seen in the mean; of times the chance to be without the event after two."""
    if model.plan.label.type == "binary":
        weights = model.plan.model.class_weights or (1.0, 1.0)
        weighed = model.predict_proba(columns) / weights
        return float((weighed[:, 1] / weighed.sum(axis=1)).mean()), float((columns["y"] == "1").mean())
    if model.plan.label.type == "survival":
        return float(model.predict_survival(columns)[:, 1].mean()), float((columns["y"] > 2).mean())
    return float(model.predict(columns).mean()), float(np.mean(columns["y"]))


@pytest.mark.parametrize(
    ("label", "fields"),
    [
        *((each, {}) for each in LABELS),
        ("binary", {"class_weights": (1.0, 5.0)}),
        ("regression", {"algorithm": "adassp"}),
    ],
    ids=str,
)
def test_a_model_says_what_happens_at_another_site(label: str, fields: dict[str, Any]) -> None:
    """Where labels are moved, the means of a recalibrated model are those of the site; its order of rows stays."""
    before = trained(label, **fields)
    rows, columns = make_rows(before.plan, 2000, -1.2, 2)
    after, found, _ = recalibrate_model(before, rows, epsilon=50.0, noise=SeededNoise(3))
    off, seen = means(before, columns)
    now, _ = means(after, columns)
    spread = 1.0 if label == "regression" else max(seen, 0.1)
    assert abs(off - seen) > 0.2 * spread and abs(now - seen) < 0.05 * spread
    assert abs(found.seen - found.after) <= 0.05 * max(abs(found.seen), 0.5)
    assert found.n_records == pytest.approx(2000, rel=0.02)
    scores = [model.decision_scores(columns) for model in (before, after)]
    assert np.corrcoef(scores[0], scores[1])[0, 1] > 0.9999


@pytest.mark.slow
def test_at_epsilon_1_chances_fit_a_site_of_a_third_of_the_rate() -> None:
    """2,000 rows at epsilon 1: the mean chance is .9 to 1.1 of the rate at nine in ten sites, and right in the mean."""
    before = trained("binary")
    ratios, first = [], []
    for seed in range(40):
        rows, columns = make_rows(before.plan, 2000, -1.65, 100 + seed)
        after, _, _ = recalibrate_model(before, rows, epsilon=1.0, noise=SeededNoise(seed))
        predicted, seen = means(after, columns)
        ratios.append(predicted / seen)
        first.append(means(before, columns)[0] / seen)
    assert 2.7 < np.mean(first) < 3.5
    assert np.mean([0.9 < each < 1.1 for each in ratios]) >= 0.9 and abs(np.mean(ratios) - 1) < 0.02


@pytest.mark.parametrize("noise", ["server", "distributed", "local"])
def test_both_ledgers_are_one(noise: str) -> None:
    """What the release costs is within epsilon, is on the account beside the training's, and the file says both."""
    plan = make_plan("survival", privacy={"noise": noise})
    before = train(plan, {name: make_data(plan, 40, seed) for seed, name in enumerate("abc")}, noise=SeededNoise(1))
    after, _, cost = recalibrate_model(before, make_data(plan, 200, 9), epsilon=0.5, noise=SeededNoise(2))
    assert cost.epsilon <= 0.5 and cost.noise_mode == "server" and len(cost.ledger) == 2
    assert after.ledger.releases[: len(before.ledger)] == before.ledger.releases
    assert after.report.epsilon > max(before.report.epsilon, cost.epsilon)
    assert [each.is_recalibration for each in after.ledger] == [False] * len(before.ledger) + [True, True]
    assert after.report.n_recalibrations == 2 and "recalibrated" in dict(after.report.facts())
    assert not before.holds(after) and not after.holds(before)


def test_it_is_a_model_like_others(tmp_path: Any) -> None:
    """Its file is read back with every check, directions of features among them, and can be recalibrated again."""
    features = [{**each, "monotone": "increasing"} for each in numbers(3, -3, 3)]
    plan = bare_plan(LABELS["binary"], features, epsilon=5.0, n_records=500, n_trees=6)
    model = train(plan, {"a": make_rows(plan, 500, 0.0, 1)[0]}, noise=SeededNoise(1))
    for number in range(2):
        model, _, _ = recalibrate_model(model, make_rows(plan, 300, 1.0, 2)[0], epsilon=1.0, noise=SeededNoise(number))
        model.save(tmp_path / "model.json")
        assert Model.load(tmp_path / "model.json", exact=True).to_bytes() == model.to_bytes()
    assert why_unknown(plan, model.ensemble, model.ledger)


@pytest.mark.parametrize(("label", "model"), [("multiclass", {}), ("binary", {"weight_update": "averaging"})])
def test_scores_without_a_line_are_refused_before_any_release(label: str, model: dict[str, Any]) -> None:
    """Several classes and averaged trees have no level and slope: nothing is asked, and nothing charged."""
    plan = make_plan(label, model)
    with pytest.raises(ModelError, check=coded("no-recalibration")):
        recalibrate_model(train_model(plan), make_data(plan, 30, 2), epsilon=1.0, noise=SeededNoise(1))


def test_what_is_found_is_public() -> None:
    """All that a recalibration says is one number or a pair: none is by row."""
    model, noise = trained("count"), SeededNoise(1)
    found = recalibrate_model(model, make_rows(model.plan, 100, 0.0, 1)[0], epsilon=1.0, noise=noise)[1]
    assert isinstance(found, Recalibration)
    assert all(isinstance(value, float) or len(value) == 2 for name, value in vars(found).items() if name != "ensemble")
