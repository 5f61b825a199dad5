"""Estimators that are told whose the rows are, how to add up, and what columns hold, keep it and report it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from hedgerow import DPGBDTClassifier, DPGBDTRegressor, DPLinearClassifier, DPLinearRegressor
from hedgerow.data.cells import CellsWarning
from hedgerow.errors import DataError, UsageError
from hedgerow.estimators.base import SECONDS_BEFORE_PROGRESS
from hedgerow.models.model import Model

N = 3000
DECLARED: dict[str, Any] = {"bounds": (-1, 1), "classes": [0, 1], "n_records": N, "n_trees": 10, "max_depth": 2}


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Rows with 3 features in [-1, 1], of which two decide the class."""
    X = np.random.default_rng(7).uniform(-1, 1, (N, 3))
    return X, (X[:, 0] + X[:, 1] > 0).astype(int)


@pytest.fixture
def trained_on(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The rows of every training from here on, by site."""
    from hedgerow.estimators import base

    seen: list[Any] = []
    real = base.train

    def watch(plan: Any, sites: Any, **others: Any) -> Model:
        seen.append(sites)
        return real(plan, sites, **others)

    monkeypatch.setattr("hedgerow.estimators.base.train", watch)
    return seen


# Units ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 3])
def test_a_person_adds_no_more_rows_than_the_report_says(rows: Any, trained_on: list[Any], most: int) -> None:
    """One person with half of all rows adds max_rows_per_unit of them, wherever they are; plan and report say so."""
    X, y = rows
    persons = [f"person {index}" if index % 2 else "the same" for index in range(N)]
    model = DPGBDTClassifier(**DECLARED, max_rows_per_unit=most).fit(X, y, sites=np.arange(N) % 5, units=persons)
    assert sum(site.n_records for site in trained_on[0].values()) == N // 2 + most
    privacy, report = model.model_.plan.privacy, model.privacy_report_
    assert (privacy.unit, privacy.max_rows_per_unit, privacy.rows_per_unit) == ("unit", most, most)
    assert (report.unit, report.max_rows_per_unit, report.guarantee) == ("unit", most, "holds")
    assert report.epsilon <= 1


def test_noise_grows_with_the_rows_of_a_unit(rows: Any) -> None:
    """Every sum's sensitivity is multiplied by the rows of one unit, in the survey as in the training."""
    X, y = rows
    units = np.arange(N) // 4

    def releases(most: int) -> Any:
        model = DPGBDTClassifier(epsilon=20, n_trees=3, max_depth=2, max_rows_per_unit=most, random_state=1)
        return model.fit(X, y, units=units).ledger_.releases

    one, four = releases(1), releases(4)
    survey = [release for release in one if release.kind in ("RecordCount", "CellCounts", "OctaveCounts")]
    assert len(survey) == 3
    for first, other in zip(one[:2], four[:2], strict=True):
        assert other.kind == first.kind
        assert other.sensitivity == pytest.approx(4 * first.sensitivity)
        assert other.sigma == pytest.approx(4 * first.sigma, rel=1e-4)


def test_a_survey_sees_only_the_rows_that_are_kept(rows: Any) -> None:
    """The count of records is of those that stay, not of the table."""
    X, y = rows
    model = DPGBDTClassifier(epsilon=50, n_trees=3).fit(X, y, units=np.arange(N) // 4)
    assert model.model_.plan.privacy.n_records == pytest.approx(N / 4, rel=0.05)


def test_one_persons_rows_do_not_change_which_rows_of_others_stay(rows: Any, trained_on: list[Any]) -> None:
    """With one person more, all that changes is that person's own rows."""
    X, y = rows
    units = np.arange(N) % 1000
    model = DPGBDTClassifier(**DECLARED, random_state=1)
    model.fit(X, y, units=units)
    more = np.full((50, 3), 0.5)
    model.fit(np.vstack([more, X]), np.r_[np.ones(50, int), y], units=np.r_[np.full(50, 5000), units])
    before, after = (seen["site"].codes for seen in trained_on)
    assert np.array_equal(after[:, 1:], before)


def test_who_holds_which_row_does_not_matter_to_units(rows: Any) -> None:
    """The rows of a unit are bounded over all sites together, so sites change nothing in the model file."""
    X, y = rows
    units = np.arange(N) // 3
    model = DPGBDTClassifier(**DECLARED, random_state=3, max_rows_per_unit=2)
    dealt = (None, np.arange(N) % 3, np.arange(N) % 20)
    files = {model.fit(X, y, sites=sites, units=units).model_.to_bytes() for sites in dealt}
    assert len(files) == 1


def test_what_is_wrong_with_units_is_said(rows: Any) -> None:
    """A bound without units, units of another length, a missing identifier: each is refused by name."""
    X, y = rows
    with pytest.raises(UsageError) as unknown:
        DPGBDTClassifier(**DECLARED, max_rows_per_unit=3).fit(X, y)
    assert unknown.value.code == "units-missing"
    with pytest.raises(DataError) as short:
        DPGBDTClassifier(**DECLARED).fit(X, y, units=[1, 2])
    assert short.value.code == "data-lengths"
    with pytest.raises(DataError) as missing:
        DPGBDTClassifier(**{**DECLARED, "epsilon": math.inf}).fit(X, y, units=[None, *range(N - 1)])
    assert missing.value.code == "data-unit-missing"


def test_regressions_and_linear_models_have_units(rows: Any) -> None:
    """All estimators take them, and the report says for whom it holds."""
    X, y = rows
    units = np.arange(N) // 3
    number = DPGBDTRegressor(bounds=(-1, 1), n_trees=3, epsilon=30).fit(X, X[:, 0], units=units)
    linear = DPLinearClassifier(bounds=(-1, 1), classes=[0, 1], n_records=1000).fit(X, y, units=units)
    assert {number.privacy_report_.unit, linear.privacy_report_.unit} == {"unit"}


# Sums ----------------------------------------------------------------------------------------------------------------


def test_sums_under_masks_give_the_same_trees(rows: Any) -> None:
    """secure_sums changes how sums are taken and what is said of it, and no number."""
    X, y = rows
    model = DPGBDTClassifier(**DECLARED, random_state=3)
    clear = model.fit(X, y, sites=np.arange(N) % 4)
    proba, report = clear.predict_proba(X), clear.privacy_report_.to_dict()
    masked = model.set_params(secure_sums=True).fit(X, y, sites=np.arange(N) % 4)
    assert np.array_equal(proba, masked.predict_proba(X))
    assert report["sums_in_clear"]
    assert "in the clear" not in masked.privacy_report_.text()
    assert "sums_in_clear" not in masked.privacy_report_.to_dict()
    assert masked.model_.plan.federation.secure_aggregation


def test_whether_there_are_masks_does_not_follow_from_the_names_of_sites(rows: Any) -> None:
    """One row at a third site changes neither plan nor report: sites without rows make up the three that masks want."""
    X, y = rows
    for secure in (False, True):
        model = DPGBDTClassifier(**DECLARED, secure_sums=secure)
        two, third = np.arange(N) % 2, np.where(np.arange(N) == 7, 2, np.arange(N) % 2)
        fits = [model.fit(X, y, sites=sites).model_ for sites in (None, two, third)]
        assert {fit.plan.federation.secure_aggregation for fit in fits} == {secure}
        assert {fit.report.sums_in_clear for fit in fits} == {not secure}


# Columns -------------------------------------------------------------------------------------------------------------


def test_one_pair_of_bounds_is_for_all_columns_without_categories() -> None:
    """It declares them to be of numbers, whatever types they have, and for as many columns as the pair has entries."""
    frame = pd.DataFrame({"a": [0.1, 0.9] * 50, "b": ["1", "0"] * 50, "c": ["u", "v"] * 50, "d": [True, False] * 50})
    y = [0, 1] * 50
    for bounds in ((0, 1), [0.0, 1], np.array([0, 1])):
        told = {"categories": {"c": ["u", "v"]}, "classes": [0, 1], "n_records": 100, "n_trees": 2}
        model = DPGBDTClassifier(bounds=bounds, **told).fit(frame, y)
        a, b, c, d = model.model_.plan.features
        assert {(own.min, own.max) for own in (a, b, d)} == {(0, 1)} and c.categories == ("u", "v")
        two = DPGBDTClassifier(bounds=bounds, classes=[0, 1], n_records=100, n_trees=2).fit(frame[["a", "b"]], y)
        assert [(own.min, own.max) for own in two.model_.plan.features] == [(0, 1)] * 2
    assert len(model.ledger_) == 5


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_categories_of_a_columns_type_are_declared(library: str) -> None:
    """Where the caller says so: those of pandas' category and polars' Enum, also those that no row has."""
    colours = ["red", "green", "blue", "never seen"]
    cells = ["red", "green", "blue"] * 100
    if library == "pandas":
        frame: Any = pd.DataFrame({"colour": pd.Categorical(cells, categories=colours), "x": [0.5] * 300})
    else:
        frame = pl.DataFrame({"colour": pl.Series(cells, dtype=pl.Enum(colours)), "x": [0.5] * 300})
    y = [int(cell == "red") for cell in cells]
    told: dict[str, Any] = {"bounds": {"x": (0, 1)}, "classes": [0, 1], "n_records": 300, "epsilon": 20, "n_trees": 20}
    model = DPGBDTClassifier(categories="from type", **told).fit(frame, y)
    named = DPGBDTClassifier(categories={"colour": "from type"}, **told).fit(frame, y)
    assert model.columns_ == named.columns_ == {"colour": ("categorical", "type"), "x": ("numeric", "declared")}
    assert model.model_.plan.features[0].categories == tuple(colours)
    assert model.score(frame, y) > 0.9
    assert model.privacy_report_.guarantee == "holds"
    asked = DPGBDTClassifier(**told, categories={"colour": ["red", "blue"]})
    with pytest.warns(CellsWarning, match="100 of 300 cells of 'colour'"):
        assert asked.fit(frame, y).model_.plan.features[0].categories == ("red", "blue")


def test_types_with_more_categories_than_a_plan_lists_are_hashed() -> None:
    """As any other column of which noisy counts say that it is of text."""
    frame = pd.DataFrame({"word": pd.Categorical(["w1", "w2"] * 50, categories=[f"w{i}" for i in range(65_001)])})
    told: dict[str, Any] = {"categories": "from type", "classes": [0, 1], "n_records": 100, "n_trees": 2}
    model = DPGBDTClassifier(epsilon=30, **told).fit(frame, [0, 1] * 50)
    assert model.model_.plan.features[0].is_hashed


def test_names_survive_transformers() -> None:
    """Behind a ColumnTransformer in a Pipeline that gives tables, plan and bounds know columns by name."""
    frame = pd.DataFrame({"age": [20.0, 60.0] * 100, "dose": [1.0, 3.0] * 100, "note": ["a", "b"] * 100})
    columns = make_column_transformer(
        (FunctionTransformer(feature_names_out="one-to-one"), ["age", "dose"]),
        remainder="passthrough",
        verbose_feature_names_out=False,
    )
    bounds = {"age": (0, 110), "dose": (0, 10), "note": "private"}
    classifier = DPGBDTClassifier(epsilon=20, bounds=bounds, classes=[0, 1], n_records=200, n_trees=4)
    pipeline = make_pipeline(columns, classifier).set_output(transform="pandas")
    pipeline.fit(frame, [0, 1] * 100)
    assert classifier.model_.plan.feature_names == ("age", "dose", "note")
    assert list(classifier.feature_names_in_) == ["age", "dose", "note"]
    assert len(pipeline.predict(frame)) == 200


# What people know ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [[1, 0, -1], np.array([1, 0, -1]), {"b": 0, "c": -1, 0: 1}])
@pytest.mark.parametrize("kind", [DPGBDTClassifier, DPGBDTRegressor, DPLinearClassifier, DPLinearRegressor])
def test_predictions_go_with_features_as_declared(kind: Any, known: Any) -> None:
    """In order, as an array, by name or by position; though the rows and the noise say otherwise."""
    random = np.random.default_rng(3)
    frame = pd.DataFrame(random.uniform(-1, 1, (400, 3)), columns=["a", "b", "c"])
    score = frame["b"] - frame["a"] + frame["c"]
    own = {"classes": [0, 1]} if issubclass(kind, DPGBDTClassifier) else {"label_bounds": (-3, 3)}
    y = (score > 0).astype(int) if "classes" in own else score
    model = kind(bounds=(-1, 1), n_records=400, epsilon=2, monotonic_cst=known, random_state=1, **own).fit(frame, y)
    assert [feature.monotone for feature in model.model_.plan.features] == ["increasing", None, "decreasing"]
    predict = model.decision_function if "classes" in own else model.predict
    for name, sign in (("a", 1), ("c", -1)):
        for _, row in frame.head(20).iterrows():
            sweep = pd.DataFrame([{**row, name: value} for value in np.linspace(-1.2, 1.2, 60)])
            assert (sign * np.diff(predict(sweep)) >= 0).all()


@pytest.mark.parametrize(
    ("known", "groups"),
    [
        ([["a", "b"], [2]], (("a", "b"), ("c",))),
        ("no_interactions", (("a",), ("b",), ("c",))),
        ("pairwise", (("a", "b"), ("a", "c"), ("b", "c"))),
        (None, ()),
    ],
)
def test_groups_of_features_are_those_of_scikit_learn(rows: Any, known: Any, groups: Any) -> None:
    """Names or positions, or one of its two words."""
    frame = pd.DataFrame(rows[0], columns=["a", "b", "c"])
    model = DPGBDTClassifier(**DECLARED, interaction_cst=known).fit(frame, rows[1])
    assert model.model_.plan.model.interaction_constraints == groups


@pytest.mark.parametrize(
    ("parameter", "value", "said"),
    [
        ("monotonic_cst", [1, 0], "3 features"),
        ("monotonic_cst", [1, 0, 2], "3 features"),
        ("monotonic_cst", {"x0": "increasing"}, "3 features"),
        ("monotonic_cst", {"weight": 1}, "weight"),
        ("monotonic_cst", 1, "3 features"),
        ("interaction_cst", "all", "all"),
        ("interaction_cst", ["x0", "x1"], "x0"),
        ("interaction_cst", [[0, 7]], "7"),
    ],
)
def test_constraints_that_say_nothing_are_refused(rows: Any, parameter: str, value: Any, said: str) -> None:
    """By the parameter's name, before anything is trained."""
    X, y = rows
    with pytest.raises(UsageError, match=said) as fault:
        DPGBDTClassifier(**DECLARED, **{parameter: value}).fit(X, y)
    assert fault.value.code == parameter.replace("_", "-") or fault.value.code == parameter


# Progress ------------------------------------------------------------------------------------------------------------


def test_progress_is_shown_of_long_fits_only(rows: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing without verbose, nothing for a short fit, a line with epsilon for a longer one."""
    X, y = rows
    # No clock decides this test: any fit is shorter than a thousand seconds, and longer than next to none.
    for verbose, seconds, is_shown in ((0, 1e-9, False), (1, 1000.0, False), (1, 1e-9, True)):
        monkeypatch.setattr("hedgerow.estimators.base.SECONDS_BEFORE_PROGRESS", seconds)
        DPGBDTClassifier(**DECLARED, verbose=verbose).fit(X, y)
        shown = capsys.readouterr()
        assert not shown.out
        assert ("Training: 1/13 rounds, epsilon" in shown.err) == is_shown == bool(shown.err)
    assert SECONDS_BEFORE_PROGRESS == 1


def test_ones_own_sums_are_tested_for_their_range_alone() -> None:
    """Nobody else adds to them: ten times the declared rows are trained on, where their sums fit beside the noise."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (5000, 2))
    told = {"bounds": (0, 1), "classes": [0, 1], "n_records": 500}
    model = DPGBDTClassifier(epsilon=1.0, **told).fit(X, (X[:, 0] > 0.5).astype(int))
    assert model.privacy_report_.epsilon <= 1.0
