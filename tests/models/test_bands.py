"""What the noise alone could have drawn: the bands hold, and say so where they cannot be known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.data.binned import SiteData
from hedgerow.errors import ModelError, UsageError
from hedgerow.models.bands import shape_bands
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from tests.builders import coded, make_data, make_plan, train

FIXED = {
    "n_trees": 40, "max_depth": 3, "interaction_size": 1, "structure_seed": 5, "interaction": "cyclical",
    "split_candidates": "uniform",
}  # fmt: skip
N_RECORDS = 3000


def _plan(label: str = "binary", epsilon: float = 2.0, **model: Any) -> Plan:
    return make_plan(label, model or FIXED, {"epsilon": epsilon, "n_records": N_RECORDS})


def _rows(plan: Plan) -> SiteData:
    rows: SiteData = make_data(plan, N_RECORDS, 3)
    if plan.label.kind.is_number:
        return rows
    # Labels that the features have something to say of.
    score = rows.codes[0] / rows.codes[0].max() + 0.5 * (rows.codes[2] == 1)
    chance = np.random.default_rng(4).random(N_RECORDS)
    return SiteData(rows.codes, (chance < score / 1.5).astype(np.int32))


def _trained(plan: Plan, seed: int) -> Model:
    rows = _rows(plan)
    outcome = train(plan, [rows], SeededNoise(seed, exact=False))
    return Model(plan, outcome.ensemble, outcome.ledger, outcome.report)


def _coverage(model: dict[str, Any], n_seeds: int = 24) -> list[float]:
    """Shares of the cells whose mean shape over other noise lies within one and two deviations of a model's."""
    plan = _plan(**model)
    bands = []
    for seed in range(n_seeds):
        trained = _trained(plan, seed)
        bands.append(shape_bands(plan, trained.ensemble, trained.ledger))
    held = []
    for feature in range(len(plan.features)):
        mean = np.mean([band[feature].scores for band in bands], axis=0)
        for band in bands:
            away = np.abs(band[feature].scores - mean) * math.sqrt(n_seeds / (n_seeds - 1))
            held.append([(away <= count * band[feature].deviations).mean() for count in (1, 2)])
    return [float(share) for share in np.mean(held, axis=0)]


@pytest.mark.slow
@pytest.mark.parametrize("clip", ["auto", "none"])
def test_bands_hold_what_other_noise_draws(clip: str) -> None:
    """Over 24 trainings with other noise the bands hold about as many cells as they say, although few trees of
    independent features take little back of what earlier ones got wrong."""
    one, two = _coverage({**FIXED, "joint_clip": clip})
    assert 0.683 - 0.07 < one < 0.683 + 0.12
    assert two > 0.954 - 0.06


@pytest.mark.parametrize("label", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize("update", ["newton", "gradient"])
def test_bands_widen_as_epsilon_falls(label: str, update: str) -> None:
    """Less privacy loss is more noise: every feature's band is wider, on average over its cells.

    Regressions begin with a mean unless a plan says otherwise, and then no bands are known.
    """
    fixed = {**FIXED, "weight_update": update, "start": "none" if label == "regression" else "auto"}
    widths = []
    for epsilon in (8.0, 2.0, 0.5):
        model = _trained(_plan(label, epsilon, **fixed), 1)
        found = [model.shape_bands(name).deviations.mean() for name in model.plan.feature_names]
        assert np.isfinite(found).all() and min(found) > 0
        widths.append(found)
    assert (np.diff(np.array(widths), axis=0) > 0).all()


def test_without_noise_there_is_no_band() -> None:
    """A plan without privacy draws what the data say: its bands have no width."""
    trained = _trained(_plan(epsilon=math.inf), 1)
    for name in trained.plan.feature_names:
        found = trained.shape_bands(name)
        low, high = found.band(2)
        assert np.array_equal(low, found.scores) and np.array_equal(high, found.scores)


def test_bands_follow_from_the_file(tmp_path: Path) -> None:
    """Whoever has the model file has the bands: nothing else is needed, and nothing private."""
    model = _trained(_plan(), 1)
    model.save(tmp_path / "model.json")
    read = Model.load(tmp_path / "model.json")
    for name in model.plan.feature_names:
        assert np.array_equal(read.shape_bands(name).deviations, model.shape_bands(name).deviations)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"weight_update": "averaging", "batch_size": "all"}, "averaged"),
        ({"split_method": "hist", "interaction_size": 1}, "chosen by noisy sums"),
        ({"algorithm": "adassp"}, "adassp"),
        ({"algorithm": "dp-xgboost", "n_trees": 2}, "dp-xgboost"),
        ({}, "order of its features"),
    ],
)
def test_models_whose_noise_is_not_carried_over_say_so(fields: dict[str, Any], reason: str) -> None:
    """No band is better than a wrong one: the reason is named."""
    label = "regression" if fields.get("algorithm") == "adassp" else "binary"
    table = make_plan(label).to_dict()
    table["model"] = {"n_trees": 4, "max_depth": 2, **fields}
    if "algorithm" in fields:
        table["model"] = {key: value for key, value in fields.items() if key != "n_trees"}
    plan = Plan.from_dict(table)
    outcome = train(plan, [make_data(plan, 100, 0)])
    with pytest.raises(ModelError, match=reason) as caught:
        shape_bands(plan, outcome.ensemble, outcome.ledger)
    assert caught.value.code == "bands-unknown"


def test_a_file_without_leaf_weights_has_no_bands() -> None:
    """Old models kept no leaf weights: they are drawn without bands, and asking for them names what is missing."""
    model = _trained(_plan(), 1)
    old = replace(model, ensemble=replace(model.ensemble, leaf_weights=None))
    with pytest.raises(ModelError, check=coded("bands-unknown")):
        old.shape_bands("age")


def test_an_unknown_feature_is_named() -> None:
    """A typing error is answered with the names that there are."""
    with pytest.raises(UsageError, match="age") as caught:
        _trained(_plan(), 1).shape_bands("agee")
    assert caught.value.code == "unknown-feature"


def test_exported_machines_carry_the_deviations() -> None:
    """An explainable boosting machine shows error bars: ours are those of the noise."""
    model = _trained(_plan(), 1)
    term = model.to_ebm()["ebm"]["terms"][0]
    bands = model.shape_bands(model.plan.feature_names[0])
    # Missing comes first there, and last here.
    assert np.allclose(term["standard_deviations"][0], bands.deviations[-1, 0])
    assert min(term["standard_deviations"]) >= 0 and max(term["standard_deviations"]) > 0
