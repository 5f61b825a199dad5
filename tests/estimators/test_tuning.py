"""Choosing among settings keeps one promise, and the report counts everything that was tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow import DPGBDTClassifier, DPGBDTRegressor, Model, tune
from hedgerow.errors import UsageError
from hedgerow.privacy.ledger import EVALUATION_KINDS

N = 4000
SETTINGS = [{"max_depth": 1}, {"max_depth": 2}, {"n_trees": 6}]
DECLARED: dict[str, Any] = {"bounds": (-1, 1), "classes": [0, 1], "n_records": N, "n_trees": 4, "max_depth": 2}


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Rows with 3 features in [-1, 1], of which one decides the class."""
    X = np.random.default_rng(3).uniform(-1, 1, (N, 3))
    return X, (X[:, 0] > 0).astype(int)


@pytest.mark.parametrize("accountant", ["gdp", "rdp"])
@pytest.mark.parametrize("epsilon", [0.3, 3.0, 18.0])
def test_all_fits_and_measurements_are_on_one_account(rows: Any, accountant: str, epsilon: float) -> None:
    """Every release of every setting is in the ledger, and together they cost no more than was asked, nor much less."""
    X, y = rows
    tuned = tune(DPGBDTClassifier(**DECLARED, epsilon=epsilon, accountant=accountant), SETTINGS, X, y)
    ledger, report = tuned.ledger_, tuned.privacy_report_
    evaluations = [release for release in ledger if release.kind in EVALUATION_KINDS]
    assert len(ledger) == 7 + 7 + 9 + 2 * len(SETTINGS)
    assert len(evaluations) == 2 * len(SETTINGS)
    assert 0.98 * epsilon < report.epsilon <= epsilon
    assert report.guarantee == "holds"
    assert report == tuned.model_.report and ledger is tuned.model_.ledger
    assert [own.setting for own in tuned.tuning_] == SETTINGS
    assert tuned.epsilon == epsilon


@pytest.mark.parametrize("settings", [[{"max_depth": 1}, {}], [{"max_depth": 8}]])
def test_one_tree_at_a_large_epsilon_keeps_the_promise(rows: Any, settings: list[dict[str, Any]]) -> None:
    """Little noise lies on a coarse grid, whose cost of every fit is on one account: it broke the promise by a hair."""
    tuned = tune(DPGBDTClassifier(**{**DECLARED, "n_trees": 1}, epsilon=20.0), settings, *rows)
    assert 17.5 < tuned.privacy_report_.epsilon <= 18.0


def test_what_is_found_is_found_and_paid_for_once(rows: Any) -> None:
    """A survey is shared by all settings; the account has it once, and the whole stays within epsilon."""
    X, y = rows
    tuned = tune(DPGBDTClassifier(epsilon=5, n_trees=40, max_depth=2), SETTINGS[:2], X, y, sites=np.arange(N) % 3)
    kinds = [release.kind for release in tuned.ledger_]
    assert kinds.count("RecordCount") == kinds.count("OctaveCounts") == kinds.count("CellCounts") == 1
    assert 4.9 < tuned.privacy_report_.epsilon <= 5
    assert tuned.score(X, y) > 0.7


def test_the_better_setting_is_chosen(rows: Any) -> None:
    """With little noise the choice is the one that anybody would make, for classes and for numbers."""
    X, y = rows
    settings = [{"learning_rate": 0.001}, {"learning_rate": 0.5}]
    model: Any = tune(DPGBDTClassifier(**{**DECLARED, "n_trees": 20}, epsilon=50), [{"max_depth": 1}, {}], X, y)
    # Of so large a promise no more than this is used: beyond, what the grid of the noise costs would tip it over.
    assert 17 < model.privacy_report_.epsilon <= 18
    assert {own.measure for own in model.tuning_} == {"auc"}
    regressor = DPGBDTRegressor(bounds=(-1, 1), label_bounds=(-1, 1), n_trees=60, epsilon=50)
    number: Any = tune(regressor, settings, X, X[:, 0])
    assert {own.measure for own in number.tuning_} == {"rmse"}
    assert number.learning_rate == 0.5


def test_a_tuned_model_is_a_model_file(rows: Any, tmp_path: Path) -> None:
    """It is written and read with all of its account, and goes on predicting the same."""
    X, y = rows
    tuned = tune(DPGBDTClassifier(**DECLARED), SETTINGS[:2], X, y)
    tuned.save(tmp_path / "model.json")
    loaded = Model.load(tmp_path / "model.json")
    assert loaded.report.epsilon == tuned.privacy_report_.epsilon
    assert len(loaded.ledger) == len(tuned.ledger_)
    assert loaded.to_bytes() == tuned.model_.with_account(tuned.privacy_report_.account).to_bytes()


def test_units_are_bounded_and_divided_whole(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No person is in the rows that are fitted and in those that are measured on, and none has more than the bound."""
    from hedgerow.estimators import tuning

    X, y = rows
    units = np.arange(N) // 4
    seen: list[Any] = []
    real = tuning._draw_held_out
    monkeypatch.setattr(tuning, "_draw_held_out", lambda *given: seen.append(real(*given)) or seen[-1])
    tuned = tune(DPGBDTClassifier(**DECLARED, max_rows_per_unit=2), [{}], X, y, units=units)
    assert (seen[0].reshape(-1, 4).min(axis=1) == seen[0].reshape(-1, 4).max(axis=1)).all()
    assert (tuned.privacy_report_.unit, tuned.privacy_report_.max_rows_per_unit) == ("unit", 2)


def test_a_seed_repeats_it_and_voids_it(rows: Any) -> None:
    """As in a fit; and the noise of one setting is not that of another."""
    X, y = rows
    first, again = (tune(DPGBDTClassifier(**DECLARED, random_state=1), [{}, {}], X, y) for _ in range(2))
    assert first.model_.to_bytes() == again.model_.to_bytes()
    assert first.privacy_report_.guarantee == "void"
    one, other = first.tuning_
    # Values end at 1, where both may be.
    assert one.score != other.score


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        ([], {}),
        ("auto", {}),
        ([3], {}),
        ([{"epsilon": 2}], {}),
        ([{"bounds": (0, 1)}], {}),
        ([{}], {"held_out": 1.0}),
        ([{}], {"accountant": "pure"}),
    ],
)
def test_what_cannot_be_compared_is_refused(rows: Any, settings: Any, more: dict[str, Any]) -> None:
    """Before anything is released."""
    X, y = rows
    held_out = more.get("held_out", 0.2)
    with pytest.raises(UsageError) as refused:
        tune(DPGBDTClassifier(accountant=more.get("accountant", "gdp")), settings, X, y, held_out=held_out)
    assert refused.value.code == "tune-settings" and refused.value.remedy
