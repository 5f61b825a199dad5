"""What a fit asks, and what stands in its model, follows from declarations and releases: never from one cell."""

from __future__ import annotations

import datetime
import io
import math
import warnings
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import DataConversionWarning

from hedgerow import DPGBDTClassifier, DPGBDTRegressor, DPGBDTSurvival, DPLinearClassifier
from hedgerow.data.arrow import to_arrow
from hedgerow.data.cells import CellsWarning
from hedgerow.data.columns import Place
from hedgerow.data.raw_cells import RawColumn
from hedgerow.data.units import LostRowsWarning, read_feature
from hedgerow.errors import HedgerowError, UsageError
from hedgerow.estimators import base, boosted
from hedgerow.local.survey import SurveyResult
from hedgerow.plan.plan import Feature
from hedgerow.privacy.noise import SeededNoise
from hedgerow.server.release import UNCOUNTED, Releaser
from hedgerow.survey.kinds import ABSENT, DATE, NUMBER, TEXT, TRUTH
from hedgerow.survey.program import survey
from hedgerow.survey.queries import RawSite, SurveyNode
from hedgerow.survey.questions import Questions

N = 60
COLUMNS: dict[str, list[Any]] = {
    "age": [20 + number % 50 for number in range(N)],
    "smoker": [number % 3 == 0 for number in range(N)],
    "ward": [f"ward {number % 4}" for number in range(N)],
    "seen": [datetime.date(2020, 1, 1 + number % 28) for number in range(N)],
    "dose": [number / 8 for number in range(N)],
}
ODD = st.one_of(
    st.sampled_from(
        [
            None, "<18", "", "NA", 1.5, math.nan, math.inf, 2**70, True, "true", "2020-01-31", "7", b"x",
            Decimal("1.50"),
            datetime.date(2021, 1, 1), datetime.datetime(2021, 1, 1, 8), "Huntington disease", (1, 2),
        ]
    ),
    st.text(max_size=4),
)  # fmt: skip


def by_csv(columns: dict[str, list[Any]]) -> Any:
    text = io.StringIO()
    frame = pd.DataFrame({name: pd.Series(own, dtype=object) for name, own in columns.items()})
    frame.to_csv(text, index=False)
    return pd.read_csv(io.StringIO(text.getvalue()))


def by_category(columns: dict[str, list[Any]]) -> Any:
    frame = pd.DataFrame(columns)
    return frame.astype({"ward": "category", "age": "category"})


CONTAINERS: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "pandas": pd.DataFrame,
    "read_csv": by_csv,
    "category": by_category,
    "nullable": lambda columns: pd.DataFrame(columns).convert_dtypes(),
    "polars": lambda columns: pl.DataFrame(columns, strict=False),
    "polars objects": lambda columns: pl.DataFrame([pl.Series(name, own, pl.Object) for name, own in columns.items()]),
    "arrow": lambda columns: pa.Table.from_pandas(by_csv(columns)),
    "object array": lambda columns: np.array([*columns.values()], dtype=object).T,
    "lists": lambda columns: [list(row) for row in zip(*columns.values(), strict=True)],
}


class Taken(Exception):
    """Raised in the place of a training, with its plan."""


class Played:
    """A survey whose releases are those of the first table, whatever the rows of later ones are."""

    def __init__(self) -> None:
        self.sums: list[Any] = []
        self.asked: list[dict[str, Any]] = []

    def __call__(self, questions: Questions, sites: dict[str, RawSite], noise: Any) -> Any:
        program, releaser, is_first = survey(questions), Releaser(SeededNoise(3), UNCOUNTED), not self.sums
        self.asked = []
        query = next(program)
        while True:
            self.asked.append({**vars(query), "kind": type(query).__name__})
            answer = sum(SurveyNode(name, own).answer(query) for name, own in sites.items())
            if is_first:
                self.sums.append(answer)
            try:
                query = program.send(releaser.release(query, self.sums[len(self.asked) - 1]))
            except StopIteration as finished:
                return SurveyResult(finished.value, releaser.ledger)


def outcome(model: Any, X: Any, y: Any, played: Played) -> tuple[Any, ...]:
    """What was asked, and the plan that the model file will hold; the classes beside it."""
    with warnings.catch_warnings(), pytest.raises(Taken) as taken:
        warnings.simplefilter("ignore")
        model.fit(X, y)
    classes = getattr(model, "classes_", np.empty(0))
    return played.asked, taken.value.args[0].to_dict(), classes.dtype, classes.tolist()


@pytest.mark.parametrize("container", CONTAINERS)
@settings(max_examples=8, deadline=None)
@given(at=st.integers(0, N - 1), column=st.sampled_from([*COLUMNS, "y"]), cell=ODD, how=st.sampled_from("+-="))
def test_one_row_changes_neither_what_is_asked_nor_what_the_plan_says(
    container: str, at: int, column: str, cell: Any, how: str
) -> None:
    """One row is added, dropped or changed: with the same releases, questions, plan and classes are the same."""
    names = [*COLUMNS, "y"]
    table = {**COLUMNS, "y": [number % 2 for number in range(N)]}
    row = {name: cell if name == column else table[name][at] for name in names}
    start, rest = (at, at) if how == "+" else (at, at + 1)
    other = {name: [*table[name][:start], *([row[name]] if how != "-" else []), *table[name][rest:]] for name in names}
    played = Played()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "survey_sites", played)
        patch.setattr(base, "train", lambda plan, *_, **__: (_ for _ in ()).throw(Taken(plan)))
        found = []
        for own in (table, other):
            labels = own["y"] if container in ("object array", "lists") else pd.Series(own["y"])
            columns = {name: own[name] for name in COLUMNS}
            try:
                X = CONTAINERS[container](columns)
            except Exception:
                return  # The library has no such table.
            found.append(outcome(DPGBDTClassifier(epsilon=50.0, random_state=1), X, labels, played))
    assert found[0] == found[1]
    kinds = [asked["kind"] for asked in found[0][0]]
    # Columns of a matrix are numbers by declaration; the usual pair of classes is found before the label's kinds.
    of_columns = [] if container in ("object array", "lists") else ["KindCounts"]
    assert kinds[: 3 + len(of_columns)] == ["RecordCount", "CellCounts", *of_columns, "OctaveCounts"]


@given(cells=st.lists(st.one_of(ODD, st.integers(), st.floats(), st.booleans(), st.dates()), max_size=6), cell=ODD)
@settings(max_examples=150, deadline=None)
def test_one_cell_has_one_code_for_survey_and_training(cells: list[Any], cell: Any) -> None:
    """By itself or among others, in a list, an array or a column of pandas, and for whoever reads it."""
    place = Place("a table", "a column")
    number = Feature(name="a column", type="numeric", min=0, max=1)
    day = Feature(name="a column", type="date", min=0, max=1)
    objects = np.empty(len(cells) + 1, dtype=object)
    objects[:] = [*cells, cell]
    for column in ([*cells, cell], objects, pd.Series(objects, dtype=object)):
        both, alone = (RawColumn([to_arrow(own, "a table", "a column")], place) for own in (column, column[-1:]))
        assert both.kinds[-1] == alone.kinds[0]
        for feature, among, by_itself in ((number, both.numbers, alone.numbers), (day, both.days, alone.days)):
            with np.errstate(over="ignore"):
                expected = np.float32(by_itself[0])
                np.testing.assert_equal(np.float32(among[-1]), expected)
            np.testing.assert_equal(read_feature(column, feature, place).values[-1], expected)
        assert both.kinds[-1] != NUMBER or not np.isnan(both.numbers[-1])
        assert both.kinds[-1] != DATE or not np.isnan(both.days[-1])


def test_truth_values_are_the_same_numbers_however_a_reader_left_them() -> None:
    """One cell of text makes text of all in a CSV by pandas and in numpy's arrays: where numbers are declared, true is
    1 and false is 0 either way, so no cell decides what others count as."""
    place, number = Place("a table", "a column"), Feature(name="a column", type="numeric", min=0, max=1)
    plain, mixed = (pd.read_csv(io.StringIO(f"a\nTrue\nFalse\n{other}\n"))["a"] for other in ("True", "unknown"))
    assert plain.dtype == bool != mixed.dtype
    for column in (
        plain,
        mixed,
        pa.array([True, False, None]),
        [True, False, "-"],
        np.array(["true", "FALSE", ""]),
    ):
        assert read_feature(column, number, place).values[:2].tolist() == [1, 0]
        assert RawColumn([to_arrow(column, "a table", "a column")], place).kinds[:2].tolist() == [TRUTH, TRUTH]
    matrix = np.array([[1.5, True], [2.5, False], *([[1, True]] * 20), ["<3", True]])
    assert base.as_matrix(matrix)[:2].tolist() == [[1.5, 1], [2.5, 0]]


@pytest.mark.parametrize(
    "cells", [["007", "1E5"], ["7", "2.5"], ["True", "False"], ["2020-01-31", "2020-02-01 00:00:00"]]
)
def test_a_csv_that_pandas_reads_as_text_is_read_cell_by_cell(cells: list[str]) -> None:
    """What the documents advise against types that a reader infers: no cell decides what others are."""
    place = Place("a table", "a column")
    found = []
    for other in (cells[0], "unknown", ""):
        text = io.StringIO("\n".join(["a,b", *(f"{cell},1" for cell in [*cells, other])]))
        raw = RawColumn([to_arrow(pd.read_csv(text, dtype=str)["a"], "a table", "a column")], place)
        texts, codes = raw.texts
        found.append((raw.kinds[:2].tolist(), raw.numbers[:2].tolist(), [texts[code] for code in codes[:2]]))
    np.testing.assert_equal(found[1:], [found[0]] * 2)
    assert TEXT not in found[0][0]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.DataConversionWarning")
def test_labels_that_are_found_as_numbers_are_compared_as_numbers() -> None:
    """A reader makes 1 of 01 and of 1e0 unless one label is text: each label has its class either way."""
    for cells in (["01", "02"], ["1e0", "2"], ["1.0", "2.0"]):
        classes = []
        for last in (cells[0], "unknown"):
            labels = pd.read_csv(io.StringIO("\n".join(["y", *cells * 200, last])))["y"]
            model = DPGBDTClassifier(epsilon=50, n_trees=1, random_state=0)
            model.fit(pd.DataFrame({"a": np.arange(401)}), labels)
            classes.append((model.classes_.tolist(), model._encode(labels, model.model_.plan)[:400].tolist()))
        assert classes == [([1, 2], [0, 1] * 200)] * 2


@pytest.mark.parametrize(
    "make",
    [
        pa.array,
        lambda cells: pa.chunked_array([cells]),
        lambda cells: pl.Series("", cells),
        lambda cells: pd.Series(cells, dtype="Int64"),
        lambda cells: pd.Series(cells, dtype="int64[pyarrow]"),
    ],
)
def test_a_missing_label_rounds_no_other(make: Callable[[list[int | None]], Any]) -> None:
    """Numpy would make floats of whole numbers of which one is missing, and change what all others count as."""
    whole, found = [2**53 + 1, 1, 0], []
    for last in (1, None):
        labels = RawColumn([to_arrow(boosted._read_values(make([*whole, last])), "y", "y")], Place("y", "y", 0))
        texts, codes = labels.texts
        found.append([texts[code] for code in codes[:3]])
    assert found == [[str(own) for own in whole]] * 2


def test_what_cells_are() -> None:
    """Each of one kind, whatever type of Python writes it; what is none of them is missing."""
    cells = [1, 0.5, "7", " 1e3 ", Decimal("2"), True, "False", "2020-01-31", datetime.date(2020, 1, 1), "<18", "07:30"]
    nothing = [None, math.nan, "NA", "", (1, 2), 1j, b"\xff", pd.NA, pd.NaT]
    expected = [NUMBER] * 5 + [TRUTH] * 2 + [DATE] * 2 + [TEXT] * 2 + [ABSENT] * len(nothing)
    assert RawColumn([[*cells, *nothing]], Place("a table", "a column")).kinds.tolist() == expected


ROWS = 3000
NUMBERS = np.random.default_rng(0).integers(18, 90, ROWS)


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([Decimal(int(own)) for own in NUMBERS]), pd.Series(NUMBERS.astype(str)),
        pd.Series(["<18", *NUMBERS[1:]]),
        pd.Series([None, *NUMBERS[1:]]), pd.Series([None, *NUMBERS[1:]], dtype=object),
        pd.Series(NUMBERS).astype("category"), pd.Series(NUMBERS, dtype="Int64"),
        pd.Series(NUMBERS, dtype="int64[pyarrow]"),
        pd.Series(NUMBERS, dtype=pd.SparseDtype(int)), pd.Series(NUMBERS.astype("uint64")),
    ],
    ids=["Decimal", "texts", "one text", "a blank", "an object", "category", "Int64", "arrow", "sparse", "uint64"],
)  # fmt: skip
def test_a_column_of_numbers_is_one_however_it_is_written(column: Any) -> None:
    """In training and in prediction; so is the label's, and no type of a library decides."""
    y = (NUMBERS > 50).astype(int)
    table = pd.DataFrame({"age": column})
    model = DPGBDTClassifier(epsilon=20, n_trees=20, max_depth=2, classes=[0, 1]).fit(table, y)
    assert model.columns_ == {"age": ("numeric", "found")}
    assert model.score(pd.DataFrame({"age": NUMBERS.astype(str)}), y) > 0.9


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.DataConversionWarning")
@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([0, 1], [0, 1]), ([0.0, 1.0], [0, 1]), (["0", "1"], [0, 1]), ([Decimal(0), Decimal(1)], [0, 1]),
        ([False, True], [False, True]), (["False", "true"], [False, True]), (["no", "yes"], ["no", "yes"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("odd", [None, "?", 0.5, True])
def test_one_odd_label_changes_no_class(labels: list[Any], classes: list[Any], odd: Any) -> None:
    """What labels are is found like what a column is; a row of no class is left out."""
    X = np.arange(ROWS, dtype=float)[:, None]
    y: list[Any] = [labels[int(row >= ROWS // 2)] for row in range(ROWS - 1)]
    model = DPGBDTClassifier(epsilon=30, bounds=(0, ROWS), n_trees=3, max_depth=2).fit(X, [*y, odd])
    assert model.classes_.tolist() == classes
    assert model.model_.plan.label.origin == "found"


def test_what_no_library_reads_names_its_column() -> None:
    """Two columns of one name, complex numbers, durations: an error of Hedgerow's, never one from inside a library."""
    age, y = np.arange(40), np.arange(40) % 2
    tables: dict[str, Any] = {
        "age": pd.DataFrame(np.c_[age, age], columns=["age", "age"]),
        "wave": pd.DataFrame({"age": age, "wave": age * 1j}),
        "since": pd.DataFrame({"age": age, "since": pd.to_timedelta(age, "D")}),
        "nested": pa.table({"age": age, "nested": [{"a": 1}] * 40}),
    }
    for name, table in tables.items():
        with pytest.raises(HedgerowError, match=name):
            DPGBDTClassifier(epsilon=50).fit(table, y)


def test_a_column_without_a_listed_cell_is_told() -> None:
    """Codes whose leading zeros a reader took away are categories that the model does not know."""
    codes = np.array(["001", "002"] * 30)
    y, told = np.arange(60) % 2, {"n_records": 60, "n_trees": 2, "classes": [0, 1]}
    model = DPLinearClassifier(categories={"code": ["001", "002"]}, classes=[0, 1], n_records=60)
    model.fit(pd.DataFrame({"code": codes}), y)
    with pytest.warns(CellsWarning, match="'code'"):
        model.predict(pd.DataFrame({"code": codes.astype(int)}))
    numbers = DPGBDTClassifier(bounds={"age": (0, 60)}, **told).fit(pd.DataFrame({"age": np.arange(60)}), y)
    with pytest.warns(CellsWarning, match="'age'"):
        numbers.predict(pd.DataFrame({"age": ["<18"] * 60}))
    assert numbers.predict(pd.DataFrame({"age": ["<18", *range(59)]})).shape == (60,)


def test_regressions_take_columns_as_they_are_found() -> None:
    """Dates that a reader left as text are dates, and truth values with a blank are categories."""
    days = pd.date_range("2020-01-01", periods=ROWS, freq="D")
    table = pd.DataFrame({"day": days.strftime("%Y-%m-%d"), "ill": pd.Series([None, *([True, False] * ROWS)][:ROWS])})
    model = DPGBDTRegressor(epsilon=30, n_trees=5, label_bounds=(0, ROWS)).fit(table, np.arange(ROWS))
    assert model.columns_ == {"day": ("date", "found"), "ill": ("categorical", "found")}


def test_texts_that_look_like_numbers_are_told() -> None:
    """Units, marks of thousands and days first make texts, of which a model has hashes: the caller hears of it."""
    rng = np.random.default_rng(0)
    numbers = rng.integers(20, 90, 600)
    kinds = {"kg": [f"{n} kg" for n in numbers], "day": [f"{n % 28 + 1:02d}.02.19{n}" for n in numbers]}
    table = pd.DataFrame({**kinds, "ward": [f"ward {n}" for n in numbers], "age": numbers})
    with pytest.warns(CellsWarning, match="'day' \\(100% .*'kg' \\(100% ") as told:
        model = DPGBDTClassifier(epsilon=20.0, classes=[0, 1], n_records=600, n_trees=1).fit(table, numbers > 50)
    assert "'ward' (0% " in str(told[0].message)
    assert [own[0] for own in model.columns_.values()] == ["hashed", "hashed", "hashed", "numeric"]


def test_many_cells_of_another_kind_are_told_at_predict() -> None:
    """A table that is written otherwise than that of the training is not predicted from in silence, in part neither."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"age": rng.integers(20, 90, 600), "pulse": rng.integers(50, 99, 600)})
    told = {"classes": [0, 1], "bounds": [(0, 100), (0, 200)], "n_records": 600, "n_trees": 1}
    model = DPGBDTClassifier(epsilon=20.0, **told).fit(X, (X["age"] > 50).to_numpy())
    model.predict(X.astype(str))
    with pytest.warns(CellsWarning, match="200 of 600 cells of 'age'"):
        model.predict(X.assign(age=np.where(np.arange(600) % 3 == 0, "<20", X["age"].astype(str))))


AGES = np.random.default_rng(0).integers(20, 90, 600)
OLD, DECLARED = (AGES > 50).astype(int), {"bounds": (0, 100), "classes": [0, 1], "n_records": 600}
TOLD: dict[str, tuple[bool, Callable[[], Any]]] = {
    "others in a matrix": (True, lambda: DPGBDTClassifier(**DECLARED).fit([["old"]] * 300 + [[1]] * 300, OLD)),
    "beyond bounds": (True, lambda: DPGBDTClassifier(**{**DECLARED, "bounds": (0, 40)}).fit(AGES[:, None], OLD)),
    "texts": (True, lambda: DPGBDTClassifier(epsilon=20).fit(pa.table({"a": [f"{n} kg" for n in AGES]}), OLD)),
    "classes": (True, lambda: DPGBDTClassifier(epsilon=20).fit(AGES[:, None], [f"{label} " for label in OLD])),
    "rows left out": (True, lambda: DPGBDTClassifier(epsilon=20).fit(AGES[:, None], [*OLD[:500], *["x"] * 100])),
    "times": (True, lambda: DPGBDTSurvival(bounds=(0, 100), intervals=[1, 2], n_records=600).fit(
        AGES[:, None], np.c_[OLD, AGES])),
    "labels beyond bounds": (True, lambda: DPGBDTRegressor(bounds=(0, 100), label_bounds=(0, 40), n_records=600).fit(
        AGES[:, None], AGES)),
    "no values": (True, lambda: DPGBDTClassifier(**DECLARED).fit(AGES[:, None], OLD).predict([["?"]] * 600)),
    "few records": (False, lambda: DPGBDTClassifier(epsilon=0.1, **DECLARED).fit(AGES[:, None], OLD)),
    "one column": (False, lambda: DPGBDTClassifier(**DECLARED).fit(AGES[:, None], OLD[:, None])),
    "names": (False, lambda: DPGBDTClassifier(**DECLARED).fit(pd.DataFrame({"patient_id": AGES}), OLD)),
}  # fmt: skip


@pytest.mark.parametrize("case", TOLD)
def test_what_a_warning_has_from_rows_is_said_to_be_private(case: str) -> None:
    """A notebook keeps warnings: exact shares and counts are for the owner of the rows, and say so."""
    is_private, fit = TOLD[case]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fit()
    marks = ["(Private: " in str(warning.message) for warning in told]
    assert marks and any(marks) == is_private


@pytest.mark.filterwarnings("ignore::hedgerow.estimators.base.FewRecordsWarning")
@pytest.mark.filterwarnings("ignore::hedgerow.data.units.LostRowsWarning")
def test_masked_labels_are_missing() -> None:
    """What a masked array hides is no label: neither trained on nor taken for one."""
    X, y = np.arange(600.0).reshape(-1, 1) % 50, np.arange(600) % 50
    with pytest.warns(LostRowsWarning, match="480 of 600 rows used"):
        DPGBDTRegressor(epsilon=5.0).fit(X, np.ma.masked_array(y, mask=y < 10))
    hidden = np.ma.masked_array(np.where(y < 3, 7, y > 20), mask=y < 3)
    assert DPGBDTClassifier(epsilon=20.0, n_trees=1).fit(X, hidden).classes_.tolist() == [0, 1]
    words = np.ma.masked_array(np.where(y > 20, "high", "low").astype(object), mask=y < 4)
    assert DPGBDTClassifier(epsilon=20.0, n_trees=1).fit(X, words).classes_.tolist() == ["high", "low"]
    times = np.ma.masked_array(np.c_[y > 20, y], mask=np.c_[y < 0, y < 3])
    pairs = np.ma.zeros(600, dtype=[("seen", bool), ("time", float)])
    pairs["seen"], pairs["time"] = y > 20, times[:, 1]
    for fates in (times, pairs):
        with pytest.raises(UsageError, match="missing"):
            DPGBDTSurvival(epsilon=math.inf, bounds=(0, 50), n_records=600, intervals=[10, 40]).fit(X, fates)


@pytest.mark.parametrize("categories", [None, {0: list(range(90))}])
@pytest.mark.parametrize("make", [lambda matrix: matrix, list, lambda matrix: [list(row) for row in matrix]])
@pytest.mark.parametrize("masked", ["int64", "float32", "float64", "object", "<U8"])
def test_masked_cells_are_missing(masked: str, make: Callable[[Any], Any], categories: Any) -> None:
    """What a masked matrix hides is no value: neither trained on nor predicted from."""
    rng = np.random.default_rng(0)
    X, hidden = rng.integers(0, 90, (600, 2)).astype(np.float64), rng.random((600, 2)) < 0.2
    told = {"classes": [0, 1], "bounds": (0, 90), "n_records": 600, "n_trees": 3, "random_state": 0}
    told["categories"] = categories
    y, bare = (X[:, 0] > 50).astype(int), np.where(hidden, np.nan, X)
    own = make(np.ma.masked_array(np.where(hidden, 89, X).astype(masked), mask=hidden))
    expected, model = (DPGBDTClassifier(epsilon=20.0, **told).fit(table, y) for table in (bare, own))
    assert model.model_.to_bytes() == expected.model_.to_bytes()
    np.testing.assert_array_equal(model.predict_proba(own), expected.predict_proba(bare))


SPELLINGS = {
    "spaces": [" <=50K", " >50K"], "one space": ["no", "yes "], "truth": ["False", "TRUE"], "numbers": ["0", "1"],
    "zeros": ["01", "02"], "points": ["1.0", "2.0"], "bytes": [b"no", b"yes"], "mixed": [0, "1"],
    "texts": ["no", "yes"], "integers": [1, 2], "floats": [0.0, 1.0], "booleans": [False, True],
    "decimals": [Decimal(0), Decimal("1.0")], "single": [np.float32(0), np.float32(1)],
}  # fmt: skip


@pytest.mark.parametrize("make", [list, lambda cells: np.array([*cells, None])[:-1], np.array, pd.Series])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_predictions_are_labels_or_it_is_told(spelling: str, make: Callable[[list[Any]], Any]) -> None:
    """Who compares predictions with the labels that were given finds them equal, or was told that they are not."""
    X, values = np.arange(600.0).reshape(-1, 1) % 50, SPELLINGS[spelling]
    y = make([values[int(x > 20)] for x in X[:, 0]])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = DPGBDTClassifier(epsilon=20.0, n_trees=1, max_depth=1).fit(X, y)
    is_told = any(each.category is DataConversionWarning for each in told)
    assert is_told == (not set(model.classes_.tolist()) <= set(y))


@pytest.mark.parametrize(("values", "classes"), [
    (["no", "yes "], ["no", "yes"]), (["False", "True"], ["0", "1"]), (["0 ", "1 "], ["0", "1"]),
    (["0", "1"], ["0", "1", "2"]), (["0", "1 "], ["0", "1 "]), (["False", "True"], ["False", "True"]),
])  # fmt: skip
def test_labels_that_are_declared_otherwise_are_told(values: list[str], classes: list[str]) -> None:
    """As those that are found: they are of the declared classes, and no prediction is equal to them."""
    X = np.arange(200.0).reshape(-1, 1) % 50
    model = DPGBDTClassifier(epsilon=20.0, n_trees=1, bounds=(0, 50), n_records=200, classes=classes)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.fit(X, [values[int(x > 20)] for x in X[:, 0]])
    is_told = any(each.category is DataConversionWarning for each in told)
    assert is_told == (not set(values) <= set(classes))


def test_a_weight_of_a_class_that_is_not_found_is_told() -> None:
    """What was found is known only after the survey is paid for: the other weights hold, and nothing is silent."""
    X = np.arange(600.0).reshape(-1, 1) % 50
    y = (X[:, 0] > 20).astype(int)
    fit = partial(DPGBDTClassifier, epsilon=20.0, n_trees=1, max_depth=1, bounds=(0, 50), n_records=600)
    fit(class_weight={0: 1, 1: 9}).fit(X, y)
    for weights in ({1: 9, 5: 3}, {"0": 1, "1": 9}):
        with pytest.warns(UserWarning, match="class_weight") as told:
            fit(class_weight=weights).fit(X, y)
        # It says nothing that is not released.
        assert not any("Private" in str(each.message) for each in told)
