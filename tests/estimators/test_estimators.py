"""The estimators keep scikit-learn's contract, and ask for what must be public instead of reading it off the data."""

from __future__ import annotations

import math
import pickle
import warnings
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from hedgerow import DPGBDTClassifier, DPGBDTRegressor, DPLinearClassifier
from hedgerow.data.cells import CellsWarning
from hedgerow.errors import DataError, HedgerowError, ModelError, PlanError, UsageError
from hedgerow.estimators import base
from hedgerow.estimators.base import FewRecordsWarning
from hedgerow.estimators.boosted import LabelInFeaturesWarning
from tests.builders import coded

# A large epsilon and few trees: these checks are about the interface, on some 30 to 300 rows.
QUICK: dict[str, Any] = {"bounds": "data", "epsilon": 100, "n_trees": 20, "max_depth": 3}

EXPECTED_FAILURES: dict[str, str] = {}
"""Checks of scikit-learn that the estimators are known not to pass, with the reason. None at present."""


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [DPGBDTClassifier(**QUICK), DPGBDTRegressor(**QUICK)], expected_failed_checks=lambda estimator: EXPECTED_FAILURES
)
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    """What scikit-learn asks of every estimator holds."""
    check(estimator)


@pytest.fixture(scope="module")
def numbers() -> tuple[np.ndarray, np.ndarray]:
    """2,000 rows, 4 features in [-1, 1], of which two decide the class."""
    generator = np.random.default_rng(5)
    X = generator.uniform(-1, 1, (2000, 4))
    return X, (X[:, 0] + X[:, 1] > 0).astype(int)


def declared(**more: Any) -> DPGBDTClassifier:
    """A classifier that is told everything public."""
    return DPGBDTClassifier(bounds=[(-1, 1)] * 4, classes=[0, 1], n_records=2000, n_trees=20, **more)


def test_declared_model_holds_its_guarantee_and_learns(numbers: tuple[np.ndarray, np.ndarray]) -> None:
    """With public bounds and the system's noise the report says that the guarantee holds, at no more than epsilon."""
    X, y = numbers
    model = declared(epsilon=2).fit(X, y, sites=np.arange(len(y)) % 3)
    report = model.privacy_report_
    assert report.guarantee == "holds"
    assert 1.9 < report.epsilon <= 2
    assert report.delta == 1e-6
    assert len(model.ledger_) == 23
    assert model.score(X, y) > 0.75


def test_who_holds_which_row_does_not_matter(numbers: tuple[np.ndarray, np.ndarray]) -> None:
    """One site, three sites and a site per 40 rows give the same model file, byte by byte."""
    X, y = numbers
    partitions = [None, np.arange(len(y)) % 3, np.array([f"ward {i // 40}" for i in range(len(y))])]
    files = [declared(random_state=7).fit(X, y, sites=sites).model_.to_bytes() for sites in partitions]
    assert files[0] == files[1] == files[2]


def test_random_state_seeds_everything_and_is_told(numbers: tuple[np.ndarray, np.ndarray]) -> None:
    """The same integer gives the same model and voids the guarantee; None gives another model each time."""
    X, y = numbers
    first, again = (declared(random_state=3).fit(X, y) for _ in range(2))
    other, fresh = (declared().fit(X, y) for _ in range(2))
    assert first.model_.to_bytes() == again.model_.to_bytes()
    assert "seed" in " ".join(first.privacy_report_.voided_by)
    assert not np.array_equal(other.predict_proba(X), fresh.predict_proba(X))
    assert other.model_.plan.model.structure_seed != fresh.model_.plan.model.structure_seed


def test_bounds_from_data_void_the_guarantee(numbers: tuple[np.ndarray, np.ndarray]) -> None:
    """bounds="data" trains, and the report says why its guarantee is void."""
    X, y = numbers
    report = DPGBDTClassifier(bounds="data", n_trees=5).fit(X, y).privacy_report_
    assert report.guarantee == "void"
    assert any("bounds" in reason for reason in report.voided_by)


def test_a_plan_says_where_each_of_its_columns_is_from() -> None:
    """Declared by the caller, found by releases on the account as all that is not declared is, or read off the rows."""
    frame = pd.DataFrame({"x": np.linspace(0, 1, 3000), "z": np.linspace(0, 1, 3000), "word": ["a", "b"] * 1500})
    y = [0, 1] * 1500
    found = DPGBDTClassifier(bounds={"x": (0, 1)}, n_trees=2).fit(frame, y)
    assert [own.origin for own in found.model_.plan.features] == ["declared", "found", "found"]
    assert found.columns_ == {"x": ("numeric", "declared"), "z": ("numeric", "found"), "word": ("hashed", "found")}
    assert found.model_.plan.label.origin == "found"
    declared = DPGBDTClassifier(bounds=(0, 1), classes=[0, 1], n_records=3000, n_trees=2).fit(frame[["x", "z"]], y)
    assert {declared.model_.plan.label.origin, *(own.origin for own in declared.model_.plan.features)} == {"declared"}
    read_off = DPGBDTClassifier(bounds="data", n_trees=2).fit(frame, y).model_.plan
    assert {read_off.label.origin, *(own.origin for own in read_off.features)} == {"data"}


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"bounds": None}, "bounds"),
        ({"bounds": 5}, "bounds"),
        ({"bounds": "date"}, "bounds"),
        ({"bounds": [(-1, 1)] * 3}, "bounds"),
        ({"bounds": [(-1, 1)] * 3 + [None]}, "bounds"),
        ({"bounds": [(-1, 1)] * 3 + [5]}, "bounds"),
        ({"bounds": {"x0": None}}, "bounds"),
        ({"bounds": {9: (-1, 1)}}, "bounds"),
        ({"categories": {"colour": ["red"]}}, "categories"),
        ({"classes": [1, 2], "epsilon": math.inf}, "data-label-outside"),
        ({"classes": [1]}, "data-one-class"),
        ({"epsilon": 0}, "plan-field"),
        ({"delta": 1.0}, "plan-field"),
        ({"n_trees": 0}, "plan-field"),
        ({"bounds": [(1, 1)] * 4}, "plan-field"),
    ],
)
def test_what_is_missing_or_wrong_is_named(
    numbers: tuple[np.ndarray, np.ndarray], parameters: dict[str, Any], code: str
) -> None:
    """Every public input that is missing or out of range gives one clear error, a ValueError as scikit-learn has it."""
    X, y = numbers
    model = declared().set_params(**parameters)
    with pytest.raises(ValueError) as caught:
        model.fit(X, y)
    assert isinstance(caught.value, UsageError | DataError | PlanError)
    assert caught.value.code == code
    assert caught.value.remedy


def test_the_first_fit_says_once_why_it_is_slow(
    numbers: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Half a minute of silence looks like a fault; once the inner loops are compiled, a fit says nothing."""
    X, y = numbers
    for is_compiled, n_lines in ((False, 1), (True, 0)):
        monkeypatch.setattr(base, "has_compiled", lambda is_compiled=is_compiled: is_compiled)
        base.note_first_fit.cache_clear()
        caplog.clear()
        for _ in range(2):
            declared().fit(X, y)
        assert [record.levelname for record in caplog.records] == ["WARNING"] * n_lines


def test_errors_of_plans_name_parameters(numbers: tuple[np.ndarray, np.ndarray]) -> None:
    """Who wrote `max_depth` is not told about `model.max_depth`, of a plan that was never seen."""
    X, y = numbers

    def said(estimator: Any, labels: np.ndarray) -> str:
        with pytest.raises(PlanError) as caught:
            estimator.fit(X, labels)
        return str(caught.value)

    beginnings = {
        "max_depth": 99, "epsilon": -1.0, "bounds of features[0] (x0)": [(1, 1)] * 4, "label_bounds": (3, 1),
        "batch_size": 30,
    }  # fmt: skip
    for beginning, value in beginnings.items():
        name = beginning.split()[0]
        own = DPGBDTRegressor(bounds=[(0, 1)] * 4, n_records=400, n_trees=20, label_bounds=(0, 1))
        text = said(own.set_params(**{name: value}), X[:, 0])
        assert text.startswith(f"{beginning}: ") and f"Change {beginning} " in text
        assert "model." not in text and "privacy." not in text and "label." not in text
    linear = DPLinearClassifier(bounds=[(0, 1)] * 4, n_records=400, classes=[0, 1], rounds=0)
    assert said(linear, y).startswith("rounds: 0")


@pytest.mark.parametrize("left_out", ["classes", "n_records"])
def test_what_is_left_out_is_found_and_paid_for(numbers: tuple[np.ndarray, np.ndarray], left_out: str) -> None:
    """Each public input that is not declared is a release more on the account, out of the same epsilon."""
    X, y = numbers
    model = declared(epsilon=5).set_params(**{left_out: None}).fit(X, y)
    # By chance noise looks like another class, and classes are asked for once more in full.
    paid = [release.purpose for release in model.ledger_.releases if "survey" in release.purpose]
    assert len(paid) in ((1, 3) if left_out == "classes" else (1,)) and len(model.ledger_) == 23 + len(paid)
    assert model.privacy_report_.guarantee == "holds" and model.privacy_report_.epsilon <= 5
    assert model.classes_.tolist() == [0, 1]


def test_regressor_keeps_within_the_labels_bounds(numbers: tuple[np.ndarray, np.ndarray]) -> None:
    """The range of the label is public, declared or found; predictions stay within it."""
    X, _ = numbers
    y = 3 * X[:, 0] + 10
    found = DPGBDTRegressor(bounds=[(-1, 1)] * 4, epsilon=20, n_trees=40).fit(X, y)
    low, high = found.model_.plan.label.bounds
    assert 0 <= low <= 7 and 13 <= high <= 128
    assert found.privacy_report_.guarantee == "holds" and found.privacy_report_.epsilon <= 20
    model = DPGBDTRegressor(bounds=[(-1, 1)] * 4, label_bounds=(7, 13), n_records=2000, epsilon=5, n_trees=40).fit(X, y)
    assert model.score(X, y) > 0.5
    assert model.predict(X).min() >= 7 and model.predict(X).max() <= 13
    assert model.privacy_report_.guarantee == "holds"


def test_data_frames_with_categories() -> None:
    """Named columns of several types; unknown and missing values predict; a missing column is refused."""
    generator = np.random.default_rng(2)
    n = 1500
    colour = generator.choice(["red", "green", "blue"], n)
    frame = pd.DataFrame(
        {
            "colour": pd.Categorical(colour),
            "size": generator.normal(size=n),
            "open": generator.random(n) < 0.5,
            "grade": pd.array(generator.integers(1, 4, n), dtype="Int64"),
        }
    )
    y = np.where(colour == "red", "yes", "no")
    model = DPGBDTClassifier(
        n_records=n,
        bounds={"size": (-3, 3)},
        categories={"colour": ["red", "green", "blue"], "open": [False, True], 3: [1, 2, 3]},
        classes=["no", "yes"],
        epsilon=5,
        n_trees=40,
    ).fit(frame, y)
    assert model.score(frame, y) > 0.9
    assert list(model.feature_names_in_) == ["colour", "size", "open", "grade"]
    odd = pd.DataFrame(
        {
            "colour": ["violet", None],
            "size": [np.nan, 99.0],
            "open": [True, False],
            "grade": pd.array([None, 7], "Int64"),
        }
    )
    assert np.isfinite(model.predict_proba(odd)).all()
    with pytest.raises(ValueError, match="feature"):
        model.predict(frame.drop(columns="size"))


def test_categories_are_read_off_only_with_bounds_from_data() -> None:
    """bounds="data" covers text columns: every value becomes a category, and the report says so."""
    frame = pd.DataFrame({"word": ["b", "a", None, "b"] * 20, "x": [0.5, np.inf, np.nan, 2.0] * 20})
    model = DPGBDTClassifier(bounds="data", n_trees=4).fit(frame, [0, 1, 1, 0] * 20)
    word, x = model.model_.plan.features
    assert word.categories == ("a", "b")
    assert (x.min, x.max) == (0.5, 2.0)
    assert model.privacy_report_.guarantee == "void"


def test_fortran_order_and_float32_give_the_same_model(numbers: tuple[np.ndarray, np.ndarray]) -> None:
    """How a matrix lies in memory does not matter, and neither does a precision that its values do not need."""
    X, y = numbers
    X = X.astype(np.float32)
    layouts = [X, np.asfortranarray(X), X.astype(np.float64), pd.DataFrame(X).to_numpy()]
    files = {declared(random_state=1).fit(layout, y).model_.to_bytes() for layout in layouts}
    assert len(files) == 1


def test_multiclass_and_averaging_agree_between_scores_and_classes() -> None:
    """predict is the largest of predict_proba and of decision_function, whatever the link."""
    generator = np.random.default_rng(8)
    X = generator.uniform(-1, 1, (900, 3))
    y = np.array(["low", "mid", "top"])[np.digitize(X[:, 0], [-0.3, 0.3])]
    for parameters in ({}, {"weight_update": "averaging"}, {"weight_update": "gradient", "batch_size": 5}):
        model = DPGBDTClassifier(
            bounds=[(-1, 1)] * 3, classes=["top", "mid", "low"], n_records=900, epsilon=20, n_trees=20
        )
        model.set_params(**parameters).fit(X, y)
        assert list(model.classes_) == ["low", "mid", "top"]
        assert np.array_equal(model.predict(X), model.classes_[model.predict_proba(X).argmax(axis=1)])
        assert np.array_equal(model.predict(X), model.classes_[model.decision_function(X).argmax(axis=1)])
        assert model.score(X, y) > 0.5


def test_clone_pickle_and_search(numbers: tuple[np.ndarray, np.ndarray]) -> None:
    """Estimators work where scikit-learn copies them, also with numpy's own numbers as parameters."""
    X, y = numbers
    search = GridSearchCV(
        declared(random_state=0), {"max_depth": np.array([1, 2]), "epsilon": np.array([0.5, 4.0])}, cv=2
    )
    search.fit(X, y)
    best = pickle.loads(pickle.dumps(search.best_estimator_))
    assert np.array_equal(best.predict(X), search.predict(X))
    assert clone(best).get_params()["bounds"] == [(-1, 1)] * 4


def test_sites_must_name_every_row(numbers: tuple[np.ndarray, np.ndarray]) -> None:
    """A list of sites of another length is refused, not broadcast."""
    X, y = numbers
    with pytest.raises(DataError, check=coded("data-lengths")):
        declared().fit(X, y, sites=["north", "south"])


def test_a_list_of_mixed_rows_is_read_cell_by_cell() -> None:
    """numpy would make text of a list with one text in it: None would be the word "None", and 1.0 another category."""
    rows = [[number % 5, ("a", 1.0, None, True)[number % 4]] for number in range(200)]
    labels = [int(row[0] > 2) for row in rows]
    frame = pd.DataFrame({"x0": [row[0] for row in rows], "x1": pd.Series([row[1] for row in rows], dtype=object)})
    parameters: dict[str, Any] = {"categories": {1: ["a", 1]}, "classes": [0, 1], "n_records": 200, "random_state": 1}
    found = DPGBDTClassifier(bounds={0: (0, 4)}, **parameters).fit(rows, labels).predict_proba(rows)
    named = DPGBDTClassifier(bounds={0: (0, 4)}, **parameters).fit(frame, labels).predict_proba(frame)
    assert (found == named).all()
    alone = DPGBDTClassifier(bounds={0: (0, 4)}, **parameters).fit(rows, labels).predict_proba(rows[1:2])
    assert (alone[0] == found[1]).all()


def test_whole_numbers_are_read_as_they_are_among_fractions() -> None:
    """One fraction makes numpy's whole numbers double precision; rounded to single at once they could differ."""
    whole = np.array([[2**60 + 2**36 + 1], [0]])
    estimator = DPGBDTClassifier()
    alone = estimator._read_table(whole, [0, 1])
    among = estimator._read_table(np.vstack([whole.astype(np.float64), [[0.5]]]), [0, 1, 0])
    assert isinstance(alone, np.ndarray) and isinstance(among, np.ndarray)
    assert alone.astype(np.float32)[0, 0] == among.astype(np.float32)[0, 0]


NAN = float("nan")
LABELS: dict[str, Any] = {
    "texts": ["a", "b"] * 3,
    "texts and NaN": np.array(["a", "b", "a", "b", NAN, "a"], dtype=object),
    "texts and None": ["a", "b", "a", "b", None, "a"],
    "numbers": [0, 1] * 3,
    "numbers and NaN": np.array([0.0, 1.0, 0.0, 1.0, NAN, 0.0]),
    "numbers as objects": np.array([0, 1] * 3, dtype=object),
    "truths": np.array([True, False] * 3),
    "both": np.array(["a", 1] * 3, dtype=object),
    "a list of both": ["a", 1] * 3,
    "bytes": np.array([b"a", b"b"] * 3),
    "dates": np.array(["2020-01-01", "2021-01-01"] * 3, dtype="datetime64[D]"),
    "dates and none": np.array(["2020-01-01", "NaT"] * 3, dtype="datetime64[D]"),
    "decimals": np.array([Decimal(1), Decimal(0)] * 3, dtype=object),
    "imaginary": np.array([1j, 0] * 3),
    "sets": [{"a"}, {"b"}] * 3,
    "a table of texts": pd.Series(["a", "b"] * 3, dtype="category"),
    "a table of texts and NA": pd.Series(["a", "b", pd.NA] * 2, dtype="string"),
    "a table of numbers and NA": pd.Series([0, 1, pd.NA] * 2, dtype="Int64"),
    "ragged": [[1], [1, 2]] * 3,
}
CLASSES: dict[str, Any] = {
    "none": None, "texts": ["a", "b"], "numbers": [0, 1], "truths": [False, True], "both": ["a", 1],
    "digits": ["0", "1"], "a text and NaN": ["a", NAN], "a number and NaN": [0.0, NAN], "a text and None": ["a", None],
    "a text": "ab", "a set": {"a", "b"}, "nested": [["a"], ["b"]], "a number": 3, "empty": [], "NA": [pd.NA, "a"],
    "large": [2**70, 1], "sets": [{"a"}, {"b"}], "objects": [object(), object()], "bytes": [b"a", b"b"],
    "decimals": [Decimal(0), Decimal(1)],
    "dates": np.array(["2020-01-01", "2021-01-01"], dtype="datetime64[D]"),
}  # fmt: skip


@pytest.mark.parametrize(("n_records", "n_warnings"), [(200, 1), (20_000, 0)])
def test_a_fit_warns_once_of_too_little_signal(n_records: int, n_warnings: int) -> None:
    """Where everything is declared there is no survey that could warn of it; and the report says it as well."""
    X = np.random.default_rng(0).random((n_records, 2))
    private = DPGBDTClassifier(epsilon=1.0, bounds=[(0, 1)] * 2, classes=[0, 1], n_records=n_records, n_trees=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        private.fit(X, (X[:, 0] > 0.5).astype(int))
    assert [own.category for own in caught] == [FewRecordsWarning] * n_warnings
    assert all(own.filename == __file__ for own in caught)
    assert [f"! Warning: {own.message}" for own in caught] == [
        line for line in private.privacy_report_.outlook if line.startswith("! Warning")
    ]


@pytest.mark.filterwarnings("ignore::hedgerow.estimators.base.FewRecordsWarning")
@pytest.mark.filterwarnings("ignore::hedgerow.data.units.LostRowsWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.DataConversionWarning")
@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("kind", [DPGBDTClassifier, DPLinearClassifier])
@pytest.mark.parametrize("as_table", [False, True])
def test_labels_and_classes_of_any_types_fit_or_are_refused_by_name(labels: str, kind: Any, as_table: bool) -> None:
    """Whatever somebody takes for labels or classes: a model, or an error that says what to change; never one from the
    inside of a library.
    """
    X: Any = np.random.default_rng(0).random((6, 2))
    if as_table:
        X = pd.DataFrame({"x": X[:, 0], "c": ["u", "v"] * 3})
    settings = {"n_trees": 1, "max_depth": 1} if kind is DPGBDTClassifier else {}
    for name, classes in CLASSES.items():
        for bounds in ("data", {"x": (0, 1)} if as_table else [(0, 1)] * 2):
            model = kind(
                epsilon=1.0, bounds=bounds, classes=classes, n_records=6, random_state=1,
                categories={"c": ["u", "v"]} if as_table else None, **settings,
            )  # fmt: skip
            try:
                model.fit(X, LABELS[labels])
            except HedgerowError as refused:
                assert isinstance(refused, ValueError) and refused.remedy, (labels, name)
            except ValueError as refused:
                # scikit-learn's own sentences on what has no shape or type of labels.
                assert str(refused).startswith(("Unknown label type", "y should be a 1d array")), (labels, name)
            else:
                assert set(model.predict(X)) <= set(model.classes_)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cell", [[1], [], (1, 2), np.array([1]), [[1]], {1: 2}, 1j], ids=repr)
@pytest.mark.parametrize("as_list", [False, True])
def test_no_label_decides_whether_there_is_a_model(cell: Any, as_list: bool) -> None:
    """A cell that is no label is left out wherever it stands, the first row too: an error would tell of one row."""
    X = np.random.default_rng(0).random((8, 2))
    for kind, more in ((DPGBDTClassifier, {"classes": [0, 1]}), (DPGBDTRegressor, {"label_bounds": (0, 1)})):
        for places in ([0], [5], range(8)):
            y = np.array([0, 1] * 4, dtype=object)
            for place in places:
                y[place] = cell
            model: Any = kind(epsilon=1.0, bounds=[(0, 1)] * 2, n_records=8, n_trees=1, max_depth=1, **more)
            assert len(model.fit(X, list(y) if as_list else y).predict(X)) == 8


def test_what_is_wrong_with_labels_is_said(numbers: tuple[np.ndarray, np.ndarray]) -> None:
    """Each with its own code: a missing label, labels of two types, classes of another type than the labels."""
    X, _ = numbers
    X = X[:6]
    declared: dict[str, Any] = {"bounds": [(-3, 3)] * X.shape[1], "n_records": 6, "random_state": 1}
    # Where nothing is promised: else such a row is left out, and an error would tell of it.
    declared["epsilon"] = math.inf
    with pytest.raises(DataError, check=coded("data-label-missing")) as missing:
        DPGBDTClassifier(classes=["a", "b"], **declared).fit(X, np.array(["a", "b", NAN] * 2, dtype=object))
    assert missing.value.code == "data-label-missing"
    with pytest.raises(DataError, match="int, str") as mixed:
        DPGBDTClassifier(classes=["a", "b"], **declared).fit(X, ["a", 1] * 3)
    assert mixed.value.code == "data-label-type"
    with pytest.raises(UsageError) as other:
        DPGBDTClassifier(classes=[0, 1], **declared).fit(X, ["0", "1"] * 3)
    assert other.value.code == "classes"
    for label in (["a", "b"] * 3, pd.Series([1.0, 2.0, pd.NA] * 2, dtype="Float64")):
        with pytest.raises(DataError) as refused:
            DPGBDTRegressor(label_bounds=(0, 1), **declared).fit(X, label)
        assert refused.value.code in ("data-label-type", "data-label-missing")
    with pytest.raises(DataError) as nowhere:
        DPGBDTClassifier(classes=["a", "b"], **declared).fit(X, ["a", "b"] * 3, sites=["north", None] * 3)
    assert nowhere.value.code == "data-site-missing"


def test_usual_slips_are_named(numbers: tuple[np.ndarray, np.ndarray]) -> None:
    """What an analyst mistypes is said in words of the estimator, and with what helps; not in those of a library."""
    X, y = numbers[0][:60], numbers[1][:60]
    told: dict[str, Any] = {"bounds": (-1, 1), "n_records": 60, "random_state": 1, "n_trees": 2}
    slips: list[tuple[Any, Any, Any, str]] = [
        (DPGBDTRegressor(label_bounds="0,1", **told), X, y, "label_bounds is '0,1'"),
        (DPGBDTRegressor(label_bounds=5, **told), X, y, "label_bounds is 5"),
        (DPGBDTRegressor(label_bounds=(0, 1), loss="possion", **told), X, y, "loss is 'possion'"),
        (DPGBDTClassifier(epsilon=math.inf), pd.DataFrame({"ward": ["a"]})[:0], y[:0], "X: there are no data rows"),
        (DPGBDTClassifier(), {"a": X[:, 0]}, y, "X is of type dict.*DataFrame"),
        (DPGBDTClassifier(), "table.csv", y, "X is of type str.*read_csv"),
        (DPGBDTClassifier(), pd.DataFrame(X), "outcome", "y is of type str"),
        (DPGBDTClassifier(bounds={0: (0, 1), 1: None}), X, y, 'or "private" to find'),
    ]
    for model, table, labels, said in slips:
        with pytest.raises((UsageError, DataError), match=said):
            model.fit(table, labels)
    for texts in (np.array([["a", 1.0]] * 60, dtype=object), [["a", 1.0]] * 60):
        with pytest.warns(CellsWarning, match="50% .* pandas"):
            DPGBDTClassifier(classes=[0, 1], **told).fit(texts, y)
    with pytest.raises(DataError, check=coded("data-range")):
        DPGBDTRegressor(loss="poisson", **told).fit(X, np.zeros(60))


@pytest.mark.parametrize("library", ["numpy", "pandas", "polars", "lazy polars", "arrow"])
def test_a_table_of_one_column_is_a_label(numbers: tuple[np.ndarray, np.ndarray], library: str) -> None:
    """As for scikit-learn: `table[["outcome"]]` gives the model of `table["outcome"]`, and a warning."""
    X, y = numbers[0][:60], numbers[1][:60]
    made: dict[str, Any] = {
        "numpy": y[:, None], "pandas": pd.DataFrame({"outcome": y}), "polars": pl.DataFrame({"outcome": y}),
        "lazy polars": pl.LazyFrame({"outcome": y}), "arrow": pa.table({"outcome": y}),
    }  # fmt: skip
    told: dict[str, Any] = {"bounds": (-1, 1), "n_records": 60, "random_state": 1, "n_trees": 2}
    for kind in (DPGBDTClassifier(classes=[0, 1], **told), DPGBDTRegressor(label_bounds=(0, 1), **told)):
        with pytest.warns(DataConversionWarning, match="one column"):
            model = kind.fit(X, made[library]).model_
        assert model.to_bytes() == kind.fit(X, y).model_.to_bytes()


@pytest.mark.parametrize("library", [pd, pl])
def test_a_label_or_identifier_among_features_is_told(numbers: tuple[np.ndarray, np.ndarray], library: Any) -> None:
    """By the columns' names: a model that predicts the label from itself looks perfect until it is used.

    A warning names the line that called, not one of the package's own.
    """
    table = library.DataFrame({"age": numbers[0][:60, 0], "outcome": numbers[1][:60]})
    model = DPGBDTClassifier(bounds=(-1, 1), classes=[0, 1], n_records=60, n_trees=2)
    with pytest.warns(LabelInFeaturesWarning, match=r"X\.drop\(columns=\['outcome'\]\)") as warned:
        model.fit(table, table["outcome"])
    assert {each.filename for each in warned} == {__file__}
    model.fit(table[["age"]], table["outcome"])
    table = library.DataFrame({"age": numbers[0][:60, 0], "patient_id": np.arange(60)})
    with pytest.warns(UserWarning, match=r"X\.drop\(columns=\['patient_id'\]\)"):
        model.set_params(bounds=[(-1, 1), (0, 60)]).fit(table, numbers[1][:60])


class Taken(Exception):
    """Raised in the place of a training, with the sites' rows."""


@pytest.fixture
def rows_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `fit` would train on: each site's codes and labels."""

    def take(plan: Any, site_data: Any, **_: Any) -> None:
        raise Taken(site_data)

    monkeypatch.setattr("hedgerow.estimators.base.train", take)

    def fit(X: Any, y: Any, sites: Any = None, kind: Any = DPGBDTClassifier, **parameters: Any) -> dict[str, Any]:
        # Without masks, the rows of all sites are summed as one.
        settings = {"n_records": 100, "random_state": 1, "bounds": [(0, 10)] * 2, "secure_sums": True, **parameters}
        with pytest.raises(Taken) as taken:
            kind(**settings).fit(X, y, sites=sites)
        found: dict[str, Any] = taken.value.args[0]
        return found

    return fit


BIG = 2**53
PLAIN = [[1, 2], [3, 4]] * 20


@pytest.mark.parametrize("one_more", [float(BIG), np.float32(BIG), np.int64(BIG)])
@pytest.mark.parametrize("make", [list, lambda values: np.array(values, dtype=object)], ids=["list", "array"])
def test_one_label_does_not_change_another(rows_of: Any, make: Any, one_more: Any) -> None:
    """numpy makes floats of a list with one float in it, and 2^53 + 1 the class 2^53; each label is read by itself."""
    labels = [BIG, BIG + 1] * 20
    before = rows_of(PLAIN, make(labels), classes=[BIG, BIG + 1])["site"].labels
    after = rows_of([*PLAIN, [1, 1]], make([*labels, one_more]), classes=[BIG, BIG + 1])["site"].labels
    assert before.tolist() == [0, 1] * 20 == after[:-1].tolist() and after[-1] == 0


@pytest.mark.parametrize(
    ("classes", "labels"),
    [
        ([0, 1], [False, True]),
        ([False, True], [0, 1]),
        ([1, 2], [np.float16(1), 2.0]),
        (np.array(["2020-01-01", "2021-01-01"], "datetime64[ns]"), np.array(["2020-01-01", "2021-01-01"], "M8[D]")),
        (["NA", "nan"], ["NA", "nan"]),
        (["1", "1.0"], ["1", "1.0"]),
        (["True", "true"], ["True", "true"]),
        ([1, 0], pd.Series([0, 1], dtype="Int64")),
        (["b", "a"], pd.Series(["a", "b"], dtype="category")),
    ],
)
def test_labels_match_classes_of_other_types(rows_of: Any, classes: Any, labels: Any) -> None:
    """Numbers match numbers, dates match dates, texts are the texts that they are."""
    assert rows_of([[1, 2], [3, 4]], labels, classes=classes)["site"].labels.tolist() == [0, 1]


@pytest.mark.parametrize("one_more", ["x", None, 2.5, float(BIG), Decimal("1.50"), b"y", ("a", 1)])
def test_one_sites_name_does_not_change_another(rows_of: Any, one_more: Any) -> None:
    """1 and 1.0 are one site, also when another row's site is a text; a row without a site is refused
    where nothing is promised.
    """
    sites = [1, 1.0, "1", np.int8(1), BIG, BIG + 1, " north", "NA", True, ("a", 1)] * 4
    expected = {"1": 16, str(BIG): 4, str(BIG + 1): 4, "north": 4, "NA": 4, "true": 4, "('a', 1)": 4}
    found = rows_of(PLAIN, [0, 1] * 20, sites, classes=[0, 1])
    assert {name: rows.n_records for name, rows in found.items()} == expected
    if one_more is None:
        with pytest.raises(DataError) as refused:
            DPGBDTClassifier(epsilon=math.inf, n_records=100, bounds=[(0, 10)] * 2, classes=[0, 1]).fit(
                [*PLAIN, [1, 1]], [0, 1] * 20 + [0], sites=[*sites, one_more]
            )
        assert refused.value.code == "data-site-missing"
        return
    found = rows_of([*PLAIN, [1, 1]], [0, 1] * 20 + [0], [*sites, one_more], classes=[0, 1])
    others = {name: rows.n_records for name, rows in found.items()}
    assert sum(others.values()) == 41 and all(others[name] - number in (0, 1) for name, number in expected.items())


@pytest.mark.parametrize("kind", ["Int64", "UInt64", "int64[pyarrow]", "category"])
def test_one_missing_value_in_a_data_frame_changes_no_other_category(rows_of: Any, kind: str) -> None:
    """pandas' own conversion makes floats of a column of whole numbers as soon as one is missing."""
    values = [BIG, BIG + 1] * 20
    names = {"b": [str(BIG), str(BIG + 1)]}

    def codes(column: list[Any]) -> Any:
        frame = pd.DataFrame({"a": [1.0] * len(column), "b": pd.Series(column, dtype=kind)})
        labels = ([0, 1] * 21)[: len(column)]
        return rows_of(frame, labels, classes=[0, 1], bounds={"a": (0, 1)}, categories=names)["site"].codes

    assert (codes([*values, None])[:, :-1] == codes(values)).all()
    assert len(set(codes(values)[1].tolist())) == 2


def test_bounds_are_read_off_a_column_with_gaps(rows_of: Any) -> None:
    """With bounds="data", numbers that may be missing are numbers."""
    frame = pd.DataFrame({"a": pd.Series([1, 5, None, 3], dtype="Int64"), "b": ["u", "v", "u", None]})
    found = rows_of(frame, [0, 1, 0, 1], bounds="data", n_records=None)["site"].codes
    assert len(set(found[0].tolist())) == 4


@pytest.mark.parametrize("far", [10**400, -(10**400)], ids=["+", "-"])
def test_a_number_beyond_all_floats_is_clamped(rows_of: Any, far: int) -> None:
    """As any other number beyond the bounds; as a regression's label it is refused by name."""
    near = 10 if far > 0 else 0
    for table in (lambda cell: [*PLAIN, [cell, 1]], lambda cell: np.array([*PLAIN, [cell, 1]], dtype=object)):
        found, expected = (
            rows_of(table(cell), [0, 1] * 20 + [0], classes=[0, 1])["site"].codes for cell in (far, near)
        )
        assert (found == expected).all()
    frame = pd.DataFrame({"a": pd.Series([1, far], dtype=object), "b": [1.0, 2.0]})
    assert rows_of(frame, [0, 1], classes=[0, 1])["site"].n_records == 2
    with pytest.raises(DataError) as refused:
        told: dict[str, Any] = {"epsilon": math.inf, "n_records": 100, "bounds": [(0, 10)] * 2, "label_bounds": (0, 1)}
        DPGBDTRegressor(**told).fit([[1, 2], [3, 4]], [0.5, far])
    assert refused.value.code == "data-label-missing"


def test_a_regressor_is_calibrated_on_held_out_rows(numbers: tuple[np.ndarray, np.ndarray]) -> None:
    """Intervals come after `calibrate`, which is charged; sites change nothing; units are asked for where needed."""
    X, _ = numbers
    y = X[:, 0] + np.random.default_rng(2).normal(0, 0.3, len(X))
    told: dict[str, Any] = {"bounds": (-1, 1), "label_bounds": (-2, 2), "n_records": 1000, "n_trees": 20, "epsilon": 4}
    model = DPGBDTRegressor(**told, random_state=1).fit(X[:1000], y[:1000])
    before = model.privacy_report_.epsilon
    with pytest.raises(ModelError) as early:
        model.predict_interval(X)
    assert early.value.code == "no-interval"
    files = []
    for sites in (None, np.arange(1000) % 3):
        again = model.fit(X[:1000], y[:1000]).calibrate(X[1000:], y[1000:], 2.0, sites=sites)
        files.append(again.model_.to_bytes())
    assert files[0] == files[1]
    assert model.privacy_report_.epsilon > before and len(model.ledger_) == model.privacy_report_.n_releases
    ends = model.predict_interval(X[1000:], coverage=0.8)
    assert ends.shape == (1000, 2) and ends.min() >= -2 and ends.max() <= 2
    assert 0.77 < ((ends[:, 0] <= y[1000:]) & (y[1000:] <= ends[:, 1])).mean() < 0.87
    with pytest.raises(ValueError, match="samples"):
        model.calibrate(X[1000:], y[1100:], 1.0)
    units = np.arange(1000) // 2
    model = DPGBDTRegressor(**told, max_rows_per_unit=2).fit(X[:1000], y[:1000], units=units)
    with pytest.raises(UsageError) as unknown:
        model.calibrate(X[1000:], y[1000:], 1.0)
    assert unknown.value.code == "units-missing"
    assert model.calibrate(X[1000:], y[1000:], 1.0, units=units).model_.errors is not None
