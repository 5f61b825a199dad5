"""A plan can be judged and rehearsed before anyone shows a row, and neither depends on any."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from hedgerow.cli.train import _print, made_records, split_evenly
from hedgerow.data.site_data import site_data_from_records
from hedgerow.local.forecast import MEASURED_SIGNAL, outlook_of
from hedgerow.plan.plan import Plan, parse_plan
from hedgerow.privacy.accountants import mu_of

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def plan(wards: ModuleType) -> Plan:
    """Three features, one of categories, one of whole numbers; two classes."""
    return parse_plan(wards.plan_text(3, categories="abc", classes=["no", "yes"], privacy={"n_records": 1500}))


def test_parts_of_one_seed_follow_one_rule(plan: Plan) -> None:
    """Rows repeat by seed and part; another part has other rows whose label is about as frequent."""
    first, again, other = (made_records(plan, 20_000, 3, part) for part in (0, 0, 1))
    for own, same in zip(first.features, again.features, strict=True):
        assert np.array_equal(own, same)
    assert not np.array_equal(first.features[0], other.features[0])
    assert np.mean(first.label) == pytest.approx(np.mean(other.label), abs=0.02)


def test_made_rows_fit_the_plan(plan: Plan) -> None:
    """Numbers within their bounds, categories that are listed, and all are used."""
    records = made_records(plan, 5_000, 0)
    for feature, column in zip(plan.features, records.features, strict=True):
        if feature.is_categorical:
            assert set(np.unique(column)) == set(range(len(feature.categories)))
        else:
            assert feature.min is not None and feature.max is not None
            assert column.min() >= feature.min and column.max() <= feature.max
    parts = split_evenly(records, 3)
    assert [part.n_records for part in parts.values()] == [1667, 1667, 1666]
    assert sum(site_data_from_records([part], plan)[0].n_records for part in parts.values()) == 5_000


@pytest.mark.parametrize("label", [
    {"type": "regression", "min": -5, "max": 20}, {"type": "count", "min": 0, "max": 9},
    {"type": "multiclass", "classes": ["a", "b", "c", "d"]},
])  # fmt: skip
def test_every_type_of_label_is_made(plan: Plan, label: dict[str, Any]) -> None:
    """Labels are within what the plan declares, and differ."""
    own = Plan.from_dict({**plan.to_dict(), "label": {"name": "y", **label}})
    values = made_records(own, 2_000, 1).label
    assert values is not None and len(np.unique(values)) > 3
    least, most = (0, 3) if own.label.classes else own.label.bounds
    assert values.min() >= least and values.max() <= most
    if label["type"] == "count":
        assert np.array_equal(values, np.rint(values))


def test_outlook_grows_with_epsilon_and_records(plan: Plan) -> None:
    """s is n mu over the rows of a unit, and more signal never leaves less."""
    assert outlook_of(plan).signal == pytest.approx(1500 * mu_of(plan.privacy.epsilon, plan.privacy.delta))
    several = replace(plan, privacy=replace(plan.privacy, unit="patient", max_rows_per_unit=3))
    assert outlook_of(several).signal == pytest.approx(outlook_of(plan).signal / 3)
    medians = [outlook_of(plan, epsilon).median for epsilon in (0.01, 0.1, 1, 10)]
    assert medians == sorted(medians)
    assert [row[0] for row in MEASURED_SIGNAL] == sorted(row[0] for row in MEASURED_SIGNAL)
    assert all(low <= middle <= high for _, low, middle, high in MEASURED_SIGNAL)


def test_privacy_says_whether_it_will_be_any_good(study: Path, tmp_path: Path, hedgerow: Run) -> None:
    """A plan with little signal is warned of, and one with plenty is not."""
    text = (study / "plan.toml").read_text()
    (tmp_path / "plan.toml").write_text(text.replace("n_records = 1500", "n_records = 100"))
    said = hedgerow("privacy", tmp_path / "plan.toml")
    assert "Will it be any good?" in said and "too little signal" in said
    assert "too little signal" not in hedgerow("privacy", study / "plan.toml")
    outlook = hedgerow("privacy", tmp_path / "plan.toml", "--json")["outlook"]
    assert outlook["signal"] < 300 and 0 <= outlook["smallest"] <= outlook["largest"] <= 1


def test_simulate_rehearses_a_plan(study: Path, hedgerow: Run) -> None:
    """Models at several epsilons, without noise last; more epsilon predicts better, to within chance."""
    done = hedgerow("simulate", study / "plan.toml", "--rows", 4000, "--sites", 4, "--json")
    epsilons = [score["epsilon"] for score in done["scores"]]
    assert epsilons == [0.4, 1.2, 4, 12, "infinite"] and done["sites"] == 4
    # At epsilon 0.4 these rows lose .00 to .02, and one training differs from the next by some thousandths.
    assert done["scores"][-1]["auc"] > max(0.7, done["scores"][0]["auc"] - 0.01)
    said = hedgerow("simulate", study / "plan.toml", "--rows", 500, "--sites", 1)
    assert "500 made-up rows over 1 site," in said and "the plan's" in said and "no noise" in said


def test_scores_are_called_as_elsewhere(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    """An abbreviation is written in capitals, a word is not: the same names as `hedgerow evaluate` prints."""
    for name, shown in (("auc", "AUC"), ("concordance", "concordance"), ("r2", "R2")):
        _print(plan, {math.inf: {name: 0.75}}, 1.0, 3)
        assert f"epsilon  {shown}\n" in capsys.readouterr().out
