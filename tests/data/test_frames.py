"""Tables of every library that people bring, computed or not, train and predict as the same columns do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from hedgerow import DPGBDTClassifier, DPGBDTRegressor, DPLinearClassifier, DPLinearRegressor
from hedgerow.data.arrow import as_columns
from hedgerow.data.columns import Place, kinds
from hedgerow.data.sources import read_records
from hedgerow.data.units import records_from_columns
from hedgerow.errors import DataError, UsageError
from hedgerow.survey.kinds import NUMBER, TEXT, TRUTH

LIBRARIES = ["arrow", "record batch", "pandas", "polars", "polars lazy", "duckdb"]


def table_of(library: str, columns: dict[str, Any]) -> Any:
    """The columns as a table of a library."""
    table = pa.table(columns)
    if library == "arrow":
        return table
    if library == "record batch":
        return table.combine_chunks().to_batches()[0]
    if library == "pandas":
        return pytest.importorskip("pandas").DataFrame(columns)
    if library == "duckdb":
        return pytest.importorskip("duckdb").from_arrow(table)
    frame = pytest.importorskip("polars").from_arrow(table)
    return frame.lazy() if library == "polars lazy" else frame


def columns(n: int) -> tuple[dict[str, Any], Any]:
    """Whole numbers with gaps, fractions, texts; and labels."""
    generator = np.random.default_rng(1)
    age = generator.integers(0, 100, n)
    holes = generator.random(n) < 0.1
    ward = generator.choice(["a", "b", "c"], n)
    return {
        "age": pa.array(age, mask=holes), "dose": pa.array(generator.random(n)), "ward": pa.array(ward)
    }, (age + 20 * (ward == "c") > 60).astype(int)  # fmt: skip


def fitted(X: Any, y: Any) -> DPGBDTClassifier:
    return DPGBDTClassifier(
        epsilon=3, bounds={"age": (0, 100), "dose": (0, 1)}, categories={"ward": ["a", "b", "c"]}, classes=[0, 1],
        n_records=300, n_trees=3, max_depth=2, random_state=3,
    ).fit(X, y)  # fmt: skip


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_library_does_not_matter(library: str) -> None:
    """Model and predictions are those of the columns themselves, to the last bit."""
    own, y = columns(300)
    X = table_of(library, own)
    reference = fitted(table_of("arrow", own), y)
    model = fitted(X, y)
    expected = reference.model_.predict_proba(own)
    np.testing.assert_array_equal(model.predict_proba(X), expected)
    np.testing.assert_array_equal(reference.predict_proba(X), expected)
    np.testing.assert_array_equal(model.model_.predict_proba(X), expected)
    assert model.feature_names_in_.tolist() == ["age", "dose", "ward"]
    assert sorted(as_columns(X)) == sorted(own)


@pytest.mark.parametrize("library", LIBRARIES)
def test_numbers_alone_count_as_their_matrix(library: str) -> None:
    """Without categories, a table gives what the matrix of its numbers gives."""
    own, y = columns(300)
    del own["ward"]
    matrix = np.column_stack([np.array(own["age"].to_pylist(), dtype=float), own["dose"].to_numpy()])

    def trained(X: Any) -> Any:
        model = DPGBDTClassifier(
            epsilon=3, bounds=[(0, 100), (0, 1)], classes=[0, 1], n_records=300, n_trees=3, max_depth=2, random_state=3
        )
        return model.fit(X, y).predict_proba(X)

    np.testing.assert_array_equal(trained(table_of(library, own)), trained(matrix))


@pytest.mark.parametrize("estimator", [DPGBDTClassifier, DPGBDTRegressor, DPLinearClassifier, DPLinearRegressor])
def test_weights_are_refused_by_name(estimator: Any) -> None:
    """A weight would multiply what a row adds to a sum, and the noise would no longer hide it; None is no weight."""
    X, y = np.zeros((4, 1)), np.array([0, 1, 0, 1])
    model = estimator(bounds="data")
    with pytest.raises(UsageError) as caught:
        model.fit(X, y, sample_weight=np.ones(4))
    assert caught.value.code == "sample-weight"
    with pytest.raises(TypeError, match="weights"):
        model.fit(X, y, weights=np.ones(4))
    model.fit(X, y, sample_weight=None)


def test_weights_in_the_third_place_are_no_sites() -> None:
    """Where other estimators take weights, sites' names would be read of them, and nothing be weighed."""
    with pytest.raises(TypeError):
        DPGBDTClassifier(bounds="data").fit(np.zeros((4, 1)), [0, 1, 0, 1], [1.0, 5.0, 1.0, 5.0])  # type: ignore[misc]


@pytest.mark.parametrize("odd", [[1, 2, 3], [1, 0, 2], [("a", 0), ("a", 1), ("b", 0)]])
def test_names_that_are_no_texts_are_refused_unless_they_are_places(odd: list[Any]) -> None:
    """Columns without texts for names are told by their places: a column that was taken out, or moved, moves others."""
    pandas = pytest.importorskip("pandas")
    own, y = columns(300)
    frame = pandas.DataFrame({place: own[name].to_pylist() for place, name in enumerate(own)})
    declared = {"bounds": {0: (0, 100), 1: (0, 1)}, "categories": {2: ["a", "b", "c"]}, "classes": [0, 1]}
    model = DPGBDTClassifier(**declared, n_records=300, n_trees=3, max_depth=2).fit(frame, y)
    for ask in (DPGBDTClassifier(**declared).fit, lambda X, _: model.predict(X)):
        with pytest.raises(UsageError) as caught:
            ask(frame.set_axis(odd, axis=1), y)
        assert caught.value.code == "column-names"
    named = frame.set_axis([str(name) for name in odd], axis=1)
    assert DPGBDTClassifier(**declared).fit(named, y).feature_names_in_.tolist() == list(named.columns)


def test_other_columns_are_refused() -> None:
    """A table with the features in another order, or others, is not taken for the one of the fit."""
    own, y = columns(300)
    model = fitted(pa.table(own), y)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(pa.table({name: own[name] for name in ("ward", "age", "dose")}))


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_a_cell_is_does_not_follow_from_the_library(library: str) -> None:
    """Whatever type a library gives a column, each cell is of the same kind by itself."""
    own, _ = columns(10)
    own["ill"] = pa.array([True, False] * 5)
    found = as_columns(table_of(library, own))
    most = [np.bincount(kinds(column, Place("a table", name))).argmax() for name, column in found.items()]
    assert most == [NUMBER, NUMBER, TEXT, TRUTH]


@pytest.mark.parametrize("no_column", [7.5, "aa", {0: 1, 1: 2}, {"a", "b"}])
def test_what_is_no_column_is_refused(no_column: Any) -> None:
    """Letters and keys are not taken for cells: units by them would protect rows that are nobody's."""
    model = DPGBDTClassifier(bounds=(0, 1), classes=[0, 1], n_records=2)
    table = {"age": no_column, "dose": [1, 2], "ward": ["a", "b"]}
    own, y = columns(300)
    plan = fitted(table_of("arrow", own), y).model_.plan
    asks = [lambda: records_from_columns(table, plan, with_label=False)]
    asks += [lambda name=name: model.fit([[1], [2]], [0, 1], **{name: no_column}) for name in ("sites", "units")]
    for ask in asks:
        with pytest.raises(DataError) as caught:
            ask()
        assert caught.value.code == "data-wrong-type"


@pytest.mark.parametrize("rows", [np.zeros((3, 3)), [[1, 2, 3]], "t.csv", [{"age": 1, "dose": 1, "ward": "a"}]])
def test_a_model_asks_for_columns_by_name(rows: Any) -> None:
    """Who saved an estimator and loads its model is told how a matrix is given to it."""
    own, y = columns(300)
    model = fitted(table_of("arrow", own), y).model_
    with pytest.raises(UsageError) as caught:
        model.predict(rows)
    assert caught.value.code == "table-type"
    matrix = np.array([[1.0, 1.0, "a"]], dtype=object)
    assert model.predict(dict(zip(model.plan.feature_names, matrix.T, strict=True))).shape == (1,)


@pytest.mark.parametrize("library", LIBRARIES)
def test_errors_are_measured_on_any_table(library: str) -> None:
    """Whatever library a table is of, `calibrate` takes what `fit` takes."""
    own, _ = columns(300)
    told = {"bounds": {"age": (0, 100), "dose": (0, 1)}, "categories": {"ward": ["a", "b", "c"]}}
    X, y = table_of(library, own), own["dose"].to_numpy()
    model = DPGBDTRegressor(epsilon=30, **told, label_bounds=(0, 1), n_records=300, n_trees=2, random_state=1).fit(X, y)
    assert model.calibrate(X, y, 30.0).predict_interval(X).shape == (300, 2)


@pytest.mark.parametrize("name", [" age", "age ", "\u00a0age", " age of a person  "])
def test_a_name_with_spaces_around_is_found_in_files(name: str, tmp_path: Path) -> None:
    """Of "sex, age" some readers make " age": a model of such a table predicts from files as from the table itself."""
    table = pa.table({name: np.arange(300) % 100, "ward": ["a", "b"] * 150})
    model = DPGBDTClassifier(
        epsilon=30, bounds={0: (0, 100)}, categories={"ward": ["a", "b"]}, classes=[0, 1], n_records=300, n_trees=3
    ).fit(table, np.arange(300) % 100 > 50)  # fmt: skip
    csv.write_csv(table, tmp_path / "t.csv")
    parquet.write_table(table, tmp_path / "t.parquet")
    for file in ("t.csv", "t.parquet"):
        records = read_records(tmp_path / file, model.model_.plan, with_label=False)
        codes = [model.model_.ensemble.grid.encode(each.features) for each in records]
        np.testing.assert_array_equal(np.hstack(codes), model.model_.encode(table))


def test_bounds_may_be_read_off_a_table() -> None:
    """With bounds="data", columns of numbers are numeric and texts categorical, as in a table of pandas."""
    own, y = columns(300)
    with_data = DPGBDTClassifier(bounds="data", n_trees=2, max_depth=1, random_state=1).fit(pa.table(own), y)
    kinds = [feature.type for feature in with_data.model_.plan.features]
    assert kinds == ["numeric", "numeric", "categorical"]
