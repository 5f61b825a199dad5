"""A value's code depends on that value alone: no row that is added to a table changes what another row counts as."""

from __future__ import annotations

import datetime
import math
import sqlite3
import unicodedata
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.client.node import Node
from hedgerow.data.adapted import adapt_column
from hedgerow.data.adapters import adapter, read_adapter
from hedgerow.data.binned import SiteData
from hedgerow.data.columns import (
    Place,
    ReadColumn,
    bucket_indices,
    category_indices,
    days,
    encode_texts,
    identifiers,
    numbers,
    replace_texts,
)
from hedgerow.data.databases import AdbcTable
from hedgerow.data.site_data import site_data_from_records
from hedgerow.data.sources import adapt, read_records
from hedgerow.data.units import Records, concatenate, records_from_columns, rows_within_bound
from hedgerow.errors import DataError
from hedgerow.methods.registry import program_for, resolve
from hedgerow.plan.plan import Plan
from hedgerow.trees.binning import MISSING_CATEGORY, UNKNOWN_CATEGORY
from tests.builders import LABELS, bare_plan
from tests.tiers import all_but

HERE = Place("a table", "a column")
CHUNK = 65_536


def category_plan(categories: Iterable[object] = ("a", "b"), **privacy: Any) -> Plan:
    """One category, one number, two classes."""
    features = [
        {"name": "c", "type": "categorical", "categories": list(categories)},
        {"name": "x", "type": "numeric", "min": 0, "max": 4},
    ]
    small = {"n_trees": 4, "max_depth": 2, "structure_seed": 3}
    return bare_plan(LABELS["binary"], features, model=small, epsilon=0.1, n_records=4000, privacy=privacy)


def moved(plan: Plan, before: SiteData, after: SiteData) -> float:
    """By how much of its sensitivity the vector of the first query differs between two tables of one site."""
    query = next(program_for(plan))
    settings = resolve(plan)
    first, second = (Node("site", rows, plan, settings).answer(query) for rows in (before, after))
    return float(np.linalg.norm((second - first).astype(float)) / math.sqrt(query.sensitivity_squared))


def rows_of(columns: dict[str, Any], plan: Plan) -> SiteData:
    return site_data_from_records([records_from_columns(columns, plan, left_out={})], plan)[0]


ODD_CELLS = ["unknown", 7, 0.5, Decimal("1.25"), None, b"x", (1, 2), datetime.date(2020, 1, 1)]


@pytest.mark.parametrize("one_more", ODD_CELLS)
@pytest.mark.parametrize("categories", [[0, 1], [False, True]])
@pytest.mark.parametrize("kind", [bool, np.bool_, int, float])
def test_one_odd_cell_does_not_recode_a_column_of_true_and_false(
    kind: type, categories: list[object], one_more: object
) -> None:
    """One more person moves a site's vector by at most its sensitivity, whatever stands in that person's cell."""
    plan = category_plan(categories)
    values = [kind(number % 2) for number in range(4000)]
    labels = ["no", "yes"] * 2000
    ages = [number % 5 for number in range(4000)]
    before = rows_of({"c": np.array(values), "x": ages, "y": labels}, plan)
    for column in ([*values, one_more], object_array([*values, one_more])):
        after = rows_of({"c": column, "x": [*ages, 1], "y": [*labels, "no"]}, plan)
        assert moved(plan, before, after) <= 1
        assert (after.codes[:, :4000] == before.codes).all() and after.n_records >= 4000
    assert set(before.codes[0].tolist()) == {0, 1}


def object_array(values: list[Any]) -> NDArray[np.object_]:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def test_one_decimal_with_more_digits_does_not_recode_the_others() -> None:
    """0.5 and 1.5 stay the categories 0.5 and 1.5 when a person with 2.25 comes."""
    plan = category_plan(["0.5", "1.5"])
    values = [Decimal("0.5"), Decimal("1.5")] * 2000
    columns = {"c": values, "x": [1] * 4000, "y": ["no", "yes"] * 2000}
    more = {"c": [*values, Decimal("2.25")], "x": [1] * 4001, "y": [*columns["y"], "no"]}
    before, after = rows_of(columns, plan), rows_of(more, plan)
    assert set(before.codes[0].tolist()) == {0, 1}
    assert moved(plan, before, after) <= 1


SQL = "select c, x, y, person from t order by rowid"


def from_database(folder: Path, rows: list[tuple[Any, ...]], plan: Plan) -> Records:
    """Rows that went through a SQLite table without types."""
    file = folder / "t.db"
    file.unlink(missing_ok=True)
    with sqlite3.connect(file) as connection:
        connection.execute("create table t (c, x, y, person)")
        connection.executemany("insert into t values (?, ?, ?, ?)", rows)
    connection.close()
    return concatenate(read_records(f"sqlite:///{file}#{SQL}", plan, left_out={}))


@pytest.mark.parametrize("odd", ["unknown", 0.25, b"\xff", None])
def test_one_text_in_an_untyped_database_column_does_not_recode_the_others(tmp_path: Path, odd: object) -> None:
    """SQLite keeps a type for each cell; the cells of one chunk have nothing to do with each other."""
    plan = category_plan(["0.00001", "3"])
    rows = [((1e-05, 3.0)[number % 2], number % 5, ("no", "yes")[number % 2], number) for number in range(400)]
    before = from_database(tmp_path, rows, plan)
    assert before.features[0].tolist() == [0, 1] * 200
    after = from_database(tmp_path, [*rows, (odd, 1, "no", 400)], plan)
    assert after.features[0][:400].tolist() == before.features[0].tolist()
    assert after.features[1][:400].tolist() == before.features[1].tolist()


def test_an_identifier_is_the_same_in_every_chunk() -> None:
    """A person whose number is written 7.5 in one chunk and 7.50 in another is one person, at the border of chunks."""
    plan = category_plan(unit="person", max_rows_per_unit=1)
    same = [Decimal("7.5"), 7.5, "7.5", " 7.50 ", Decimal("7.5000"), np.float32(7.5), b"7.50"]
    padding = [Decimal(number) for number in range(100, 100 + CHUNK - 3)]
    people = [*same[:3], *padding, *same[3:], Decimal("0.125")]
    chunks = [people[start : start + CHUNK] for start in range(0, len(people), CHUNK)]
    assert len(chunks) == 2
    records = [
        records_from_columns({"c": ["a"] * len(own), "x": [1] * len(own), "y": ["no"] * len(own), "person": own}, plan)
        for own in chunks
    ]
    _, report = site_data_from_records(records, plan)
    assert (report.n_units, report.n_dropped) == (1 + len(padding) + 1, len(same) - 1)


@given(st.text(st.characters(max_codepoint=0x1FFF, exclude_categories=["C"]), min_size=1))
@example("Jos\N{LATIN SMALL LETTER E WITH ACUTE}")
@example("Nguy\N{LATIN SMALL LETTER E WITH CIRCUMFLEX AND TILDE}n")
def test_an_accent_is_one_with_its_letter_or_beside_it(text: str) -> None:
    """Nobody sees which: so a person is one unit, and a category one, whichever of the two a site's system writes."""
    forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD")]
    assume(sum(unicodedata.category(sign).startswith("M") for sign in forms[1]) < 8)
    assert len({*category_indices(forms, forms[:1], HERE).require().tolist()}) == 1
    assert len({*category_indices(forms, forms[1:], HERE).require().tolist()}) == 1
    assert len({*bucket_indices(forms, 65_000, HERE).require().tolist()}) == 1
    assert len({*identifiers([*forms, "x"], HERE).values[:2].tolist()}) == 1
    assert len({*replace_texts(forms, {forms[0]: "x"}, HERE)}) == 1 or not text.strip()


@given(st.decimals(-1, 1, places=3))
def test_a_fraction_is_one_with_its_zero_or_without(number: Decimal) -> None:
    """Stata, SAS and SPSS write .5 into text, where their own files, and everybody else, have 0.5."""
    texts = [str(number), str(number).replace("0.", ".", 1)]
    for cells in ([*texts, number], [float(number), *texts]):
        assert len({*category_indices(cells, texts[:1], HERE).require().tolist()}) == 1
        assert len({*category_indices(cells, texts[1:], HERE).require().tolist()}) == 1
        assert len({*bucket_indices(cells, 65_000, HERE).require().tolist()}) == 1
        assert len({*identifiers(cells, HERE).require().tolist()}) == 1


def test_more_accents_than_a_letter_has_are_left_in_their_order() -> None:
    """To sort them takes the square of their number: one cell, of one row, would have a node stand still for hours."""
    many = "a" + "\N{COMBINING ACUTE ACCENT}\N{COMBINING GRAVE ACCENT BELOW}" * 100_000
    texts, _ = encode_texts([many, "e\N{COMBINING ACUTE ACCENT}"], HERE)
    assert texts == [many, "\N{LATIN SMALL LETTER E WITH ACUTE}"]


def test_numbers_of_decimals_do_not_depend_on_the_digits_of_others() -> None:
    """The float64 of a Decimal is the nearest one, whatever other Decimals stand beside it."""
    values = [Decimal(number).scaleb(-7) for number in range(1, 3000, 7)]
    alone = [float(value) for value in values]
    together = [*values, Decimal("1E-25"), Decimal("123456789012345678.5")]
    assert numbers(together, HERE).require().tolist()[: len(values)] == alone
    typed = pa.array(values, pa.decimal128(38, 25))
    assert numbers(typed, HERE).require().tolist() == alone


def test_an_identifier_as_long_as_a_book_costs_its_own_row_only() -> None:
    """Identifiers are kept in bounded room: one of a megabyte does not make every other person's as wide."""
    found = identifiers([*(str(number) for number in range(1000)), "x" * 1_000_000, "x" * 1_000_001], HERE).require()
    assert found.dtype.itemsize < 1000
    assert len(set(found.tolist())) == 1002


# Any table and any one row more -------------------------------------------------------------------------------------

TEXT_CELLS = st.one_of(
    st.sampled_from(["", "NA", "1", "1.0", " 1", "0", "true", "False", "7.5", "7.50", "unknown", "1e-05", "0.1"]),
    st.sampled_from(["2020-02-29", "2021-02-29", "31.12.2020", "1.2.2020", "2020-01-01T10:30:00+02:00"]),
    st.text(max_size=4),
)
CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(),
    st.floats(width=32).map(np.float32),
    st.integers(-3, 3).map(np.int8),
    st.booleans().map(np.bool_),
    st.decimals(),
    st.sampled_from([Decimal("7.5"), Decimal("7.50"), Decimal("1E+2"), Decimal("0.1")]),
    TEXT_CELLS,
    st.binary(max_size=3),
    st.dates(),
    st.datetimes(),
    st.uuids(),
    st.sampled_from([pd.NA, pd.NaT, pd.Timestamp("2020-01-01"), np.datetime64("2020-01-01", "ns"), (1, 2), [3], {}]),
)
CATEGORIES = st.sampled_from(
    [[0, 1], [True, False], ["a", "7.5", 0.1], ["true", "1", "2020-01-01"], [1e-05, "unknown"]]
)


def encoded(column: Any, categories: list[str]) -> tuple[list[Any], ...]:
    """What each cell becomes: category, unit, number, date in two formats; a cell that does not fit is marked."""

    def marked(read: ReadColumn, mark: Any) -> list[Any]:
        for rows, code, error_at in read.faults:
            for row in np.flatnonzero(rows).tolist():
                assert error_at(row).code == code or code == "data-wrong-type"
        return mark_unfit(read, mark)

    return (
        marked(category_indices(column, categories, HERE), -9),
        marked(identifiers(column, HERE), "\0"),
        [repr(value) for value in marked(numbers(column, HERE), "bad")],
        [repr(value) for value in marked(days(column, None, HERE), "bad")],
        [repr(value) for value in marked(days(column, "%d.%m.%Y", HERE), "bad")],
    )


def mark_unfit(read: ReadColumn, mark: Any) -> list[Any]:
    return [mark if bad else value for value, bad in zip(read.values.tolist(), read.is_unfit.tolist(), strict=True)]


def listed(values: list[object]) -> list[str]:
    return list(category_plan(values).features[0].categories)


@given(st.lists(CELLS, min_size=1, max_size=8), CELLS, CATEGORIES)
@example([True, False], "unknown", [0, 1])
@example([Decimal("0.5")], Decimal("2.25"), [0, 1])
def test_no_cell_changes_what_another_one_counts_as(cells: list[Any], more: Any, categories: list[object]) -> None:
    """Lists, object arrays and pandas' object columns: each cell by itself is what it is among others."""
    names = listed(categories)
    alone = [encoded([cell], names) for cell in cells]
    expected = tuple([part for one in alone for part in one[kind]] for kind in range(5))
    for column in ([*cells, more], object_array([*cells, more]), pd.Series(object_array([*cells, more]), dtype=object)):
        found = encoded(column, names)
        assert tuple(part[:-1] for part in found) == expected


SAME_TYPE = st.sampled_from(
    [
        (st.booleans(), np.bool_),
        (st.integers(-200, 200), np.int64),
        (st.integers(0, 200), np.uint8),
        (st.floats(width=32), np.float32),
        (st.floats(), np.float64),
        (st.floats(width=16), np.float16),
    ]
)


@given(st.data(), CATEGORIES)
def test_a_typed_column_counts_as_its_cells_do(data: st.DataObject, categories: list[object]) -> None:
    """The fast path over a numpy or Arrow array gives what the slow one gives for each value, also wider types."""
    cells, kind = data.draw(SAME_TYPE)
    values = np.array(data.draw(st.lists(cells, min_size=1, max_size=20)), dtype=kind)
    names = listed(categories)
    # Python's floats are of double precision: a large one is one person's identifier where a narrow one is none.
    is_narrow = kind in (np.float32, np.float16)
    expected = encoded(list(values) if is_narrow else values.tolist(), names)
    assert encoded(values, names) == expected
    assert encoded(pa.array(values), names) == expected
    assert encoded(pd.Series(values), names) == expected
    if kind is not np.bool_:
        wide = values if is_narrow else values.astype(np.float64)
        with_gap = np.append(wide, np.array([np.nan], dtype=wide.dtype))
        assert tuple(part[:-1] for part in encoded(with_gap, names)) == expected


ARROW = st.sampled_from(
    [
        (st.decimals(-(10**6), 10**6, places=4), pa.decimal128(20, 4)),
        (st.decimals(-(10**6), 10**6, places=2), pa.decimal256(60, 9)),
        (TEXT_CELLS, pa.string()),
        (TEXT_CELLS, pa.large_string()),
        (TEXT_CELLS, pa.string_view()),
        (st.binary(max_size=4), pa.binary()),
        (st.binary(max_size=4), pa.large_binary()),
        (TEXT_CELLS, pa.dictionary(pa.int8(), pa.string())),
        (st.integers(-(2**63), 2**63 - 1), pa.int64()),
        (st.integers(0, 2**64 - 1), pa.uint64()),
        (st.dates(), pa.date32()),
        (st.datetimes(), pa.timestamp("us")),
        (st.datetimes(timezones=st.just(datetime.UTC)), pa.timestamp("us", "UTC")),
        (st.times(), pa.time64("us")),
        (st.uuids(), pa.uuid()),
    ]
)


@given(st.data(), CATEGORIES)
def test_an_arrow_column_counts_as_its_cells_do(data: st.DataObject, categories: list[object]) -> None:
    """Every Arrow type that is read, whole, sliced or in pieces: the same as its values one by one."""
    cells, kind = data.draw(ARROW)
    values = data.draw(st.lists(st.one_of(st.none(), cells), min_size=1, max_size=12))
    names = listed(categories)
    array = pa.array(values, kind)
    expected = encoded(array.to_pylist(), names)[:2]
    cut = len(values) // 2
    forms = (array, pa.chunked_array([array[:cut], array[cut:]], kind))
    for form in forms:
        assert (
            category_by_cell(form, names),
            units_by_cell(form),
        ) == expected


WIDE = st.one_of(st.integers(2**53 - 2, 2**53 + 9), st.integers(-(2**63), 2**63 - 1), st.integers(-3, 8))
MOMENTS = st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1))
PANDAS = st.sampled_from(
    [
        (WIDE, "Int64"),
        (st.one_of(WIDE.map(abs), st.integers(0, 2**64 - 1)), "UInt64"),
        (st.integers(-(2**31), 2**31 - 1), "Int32"),
        (st.integers(-128, 127), "Int8"),
        (st.integers(0, 255), "UInt8"),
        (st.floats(), "Float64"),
        (st.floats(width=32), "Float32"),
        (st.booleans(), "boolean"),
        (TEXT_CELLS, "string[python]"),
        (TEXT_CELLS, "string[pyarrow]"),
        (TEXT_CELLS, "str"),
        (MOMENTS.map(lambda moment: pd.Timestamp(moment, tz="UTC")), "datetime64[us, Europe/Berlin]"),
        (WIDE, pd.ArrowDtype(pa.int64())),
        (st.integers(0, 2**64 - 1), pd.ArrowDtype(pa.uint64())),
        (st.floats(width=32), pd.ArrowDtype(pa.float32())),
        (st.booleans(), pd.ArrowDtype(pa.bool_())),
        (TEXT_CELLS, pd.ArrowDtype(pa.string())),
        (st.decimals(-(10**6), 10**6, places=4), pd.ArrowDtype(pa.decimal128(38, 4))),
        (WIDE, pd.ArrowDtype(pa.dictionary(pa.int8(), pa.int64()))),
        (st.dates(), pd.ArrowDtype(pa.date32())),
        (MOMENTS, pd.ArrowDtype(pa.timestamp("us"))),
        (WIDE, "category"),
        (st.one_of(WIDE, TEXT_CELLS), "category"),
        (st.integers(-128, 127).map(np.int8), "category"),
        (st.floats(allow_nan=False), "category"),
        (st.booleans(), "category"),
        (st.decimals(-(10**6), 10**6, places=4), "category"),
        (TEXT_CELLS, "category"),
        (st.dates(), "category"),
        (MOMENTS.map(lambda moment: pd.Timestamp(moment, tz="UTC")), "category"),
        (WIDE.map(lambda number: min(abs(number), 2**63 - 1)), "Sparse[int64]"),
        (st.floats(), "Sparse[float64]"),
    ]
)


@given(st.data(), st.sampled_from([[2**53, 2**53 + 1, 7], [0, 1], [True, False], ["a", "7.5", 0.1]]))
def test_a_pandas_column_with_a_gap_counts_as_its_cells_do(data: st.DataObject, categories: list[object]) -> None:
    """One missing value changes no other one, whatever pandas itself would make of the column: ids stay whole."""
    cells, kind = data.draw(PANDAS)
    values = data.draw(st.lists(cells, min_size=1, max_size=12))
    names = listed(categories)
    expected = (category_by_cell(values, names), units_by_cell(values))
    gap = 0 if str(kind).startswith("Sparse[int") else None
    for more in ([], [gap]):
        column = pd.Series([*values, *more], dtype=kind)
        for form in (column, column.array, pd.Index(column)):
            found = (category_by_cell(form, names), units_by_cell(form))
            assert tuple(part[: len(values)] for part in found) == expected
    if isinstance(values[0], int | float):
        alone = [repr(value) for value in numbers(values, HERE).require().tolist()] if kind != "category" else None
        for more in ([], [gap]):
            found_numbers = numbers_by_cell(pd.Series([*values, *more], dtype=kind))
            assert alone is None or found_numbers[: len(values)] == alone


class Library:
    """A column of another library: an Arrow array inside, and a to_numpy that makes floats of whole numbers."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values
        self.dtype = "Int64"

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def to_numpy(self) -> NDArray[np.float64]:
        return np.array([math.nan if value is None else value for value in self.values], dtype=np.float64)

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return object_array(self.values) if dtype is not None else self.to_numpy()


class WithArrow(Library):
    """As polars has it."""

    def to_arrow(self) -> Any:
        return pa.array(self.values)


class WithProtocol(Library):
    """As pyarrow asks for it."""

    def __arrow_array__(self, type: Any = None) -> Any:
        return pa.array(self.values, type)


class WithCapsule(Library):
    """As data frames are handed from one library to another."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return pa.array(self.values).__arrow_c_array__(requested_schema)


class WithBrokenArrow(Library):
    """A column that Arrow cannot hold as a whole."""

    def to_arrow(self) -> Any:
        raise pa.ArrowNotImplementedError("no such type")


class WithArrayAlone:
    """No type and no cells to go through, but an array."""

    def __init__(self, values: list[Any]) -> None:
        self.inside = Library(values)

    def __len__(self) -> int:
        return len(self.inside)

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return self.inside.__array__(dtype, copy)


@pytest.mark.parametrize(
    "library",
    [Library, WithArrow, WithProtocol, WithCapsule, WithBrokenArrow, WithArrayAlone],
    ids=lambda kind: kind.__name__,
)
def test_no_library_makes_floats_of_whole_numbers(library: Callable[[list[Any]], Any]) -> None:
    """A column of any library with one gap: identifiers and categories above 2^53 stay apart."""
    ids = [2**53, 2**53 + 1, 2**53 + 3]
    names = [str(number) for number in ids]
    for more in ([], [None]):
        assert category_by_cell(library([*ids, *more]), names)[:3] == [0, 1, 2]
        assert units_by_cell(library([*ids, *more]))[:3] == names


@pytest.mark.parametrize("far", [10**400, -(10**400), 10**5000, Decimal("1e400"), Decimal("-1e999999")], ids=range(5))
def test_a_number_beyond_all_floats_is_clamped_like_any_large_one(far: Any) -> None:
    """A whole number of 400 digits is larger than any bound, and no reason to stop; its text is a text."""
    for column in ([1, far], [1.5, far], object_array([1, far]), pd.Series([1, far], dtype=object)):
        assert numbers(column, HERE).require()[1] == (math.inf if far > 0 else -math.inf)
        assert category_indices(column, ["1", "1.5"], HERE).require().tolist() in (
            [0, UNKNOWN_CATEGORY],
            [1, UNKNOWN_CATEGORY],
        )
        assert len(set(identifiers(column, HERE).require().tolist())) == 2
    plan = category_plan()
    left_out: dict[str, int] = {}
    records = records_from_columns({"c": [far, "a"], "x": [far, 1], "y": ["no", "yes"]}, plan, left_out=left_out)
    assert records.n_records == 2 and not left_out
    with pytest.raises(DataError) as caught:
        records_from_columns({"c": ["a"], "x": [1], "y": [far]}, plan)
    assert caught.value.code == "data-label-outside"


def numbers_by_cell(column: Any) -> list[str]:
    return [repr(value) for value in numbers(column, HERE).values.tolist()]


def category_by_cell(column: Any, names: list[str]) -> list[int]:
    return mark_unfit(category_indices(column, names, HERE), -9)


def units_by_cell(column: Any) -> list[str]:
    return mark_unfit(identifiers(column, HERE), "\0")


def canonical(value: Any) -> str | None:
    """An independent oracle for numbers: the exact decimal expansion of the shortest text, without idle zeros."""
    if isinstance(value, float | np.floating):
        value = Decimal(repr(float(value)))
    text = format(Decimal(value), "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


@given(st.one_of(st.integers(-(2**52), 2**52), st.floats(-(2.0**52), 2.0**52), st.decimals(-(10**9), 10**9, places=5)))
def test_a_number_has_one_text(value: Any) -> None:
    """Integers, floats, Decimals and text of one number are one unit and one category."""
    text = canonical(value)
    assert text is not None
    assert identifiers([value], HERE).require().tolist() == identifiers([text], HERE).require().tolist()
    assert len(text) > 64 or identifiers([value], HERE).require().tolist() == [text]
    assert category_indices([value, text], [text], HERE).require().tolist() == [0, 0]


DIALECTS = {"csv": (",", "utf-8", ""), "semicolons": (";", "utf-8", ""), "cp1252": ("\t", "cp1252", "#encoding=cp1252")}


def from_csv(
    folder: Path, rows: list[tuple[Any, ...]], plan: Plan, separator: str, encoding: str, declaration: str
) -> Records:
    def cell(value: Any) -> str:
        text = "" if value is None else str(value).replace('"', '""')
        return f'"{text}"'

    lines = [separator.join(map(cell, row)) for row in [("c", "x", "y", "person"), *rows]]
    text = "\n".join(lines) + "\n"
    path = folder / "t.csv"
    path.write_bytes(text.encode(encoding, errors="surrogatepass" if encoding == "utf-8" else "replace"))
    return concatenate(read_records(f"{path}{declaration}", plan, left_out={}))


SAFE_CELLS = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(), TEXT_CELLS.filter(str.isprintable))


def from_duckdb(folder: Path, table: pa.Table, plan: Plan, *, by_adbc: bool) -> Records:
    """Rows that went through a DuckDB database, read as such or by the door that PostgreSQL's come through."""
    duckdb = pytest.importorskip("duckdb")
    file = folder / "t.duckdb"
    file.unlink(missing_ok=True)
    with duckdb.connect(str(file)) as connection:
        connection.register("given", table)
        connection.execute("create table t as select * from given")
    query = f"{file}#select * from t order by rowid"
    if by_adbc:
        pytest.importorskip("adbc_driver_manager")
        batches = AdbcTable(query, "adbc_driver_duckdb").batches(table.column_names, 3, {})
        named = (dict(zip(table.column_names, batch, strict=True)) for batch in batches)
        return concatenate(records_from_columns(columns, plan, left_out={}) for columns in named)
    return concatenate(read_records(f"duckdb:///{query}", plan, left_out={}))


def in_memory(source: str, table: pa.Table) -> Any:
    """The table as another library has it, computed or still to be."""
    if source == "arrow":
        return table
    if source == "pandas":
        return table.to_pandas()
    if source == "duckdb":
        return pytest.importorskip("duckdb").from_arrow(table)
    frame = pytest.importorskip("polars").from_arrow(table)
    return frame.lazy() if source == "polars lazy" else frame


TYPED = ["parquet", "duckdb file", "adbc", "arrow", "pandas", "polars", "polars lazy", "duckdb"]
SLOWER = ("duckdb file", "adbc", "semicolons", "cp1252", "polars lazy")


@pytest.mark.parametrize("source", all_but(SLOWER, ["list", "sql", "csv", "semicolons", "cp1252", *TYPED]))
@settings(max_examples=20)
@given(data=st.data())
def test_no_row_changes_another_row(source: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Add one row of anything to any table: the others' codes, units and the choice among the others' rows stay."""
    folder = tmp_path_factory.getbasetemp()
    plan = category_plan(data.draw(CATEGORIES), unit="person", max_rows_per_unit=1)
    good = st.tuples(SAFE_CELLS, st.integers(0, 4), st.sampled_from(["no", "yes"]), st.sampled_from(["p", 1, 1.0, "1"]))
    rows = data.draw(st.lists(good, min_size=1, max_size=6))
    if source in TYPED:
        more: tuple[Any, ...] = data.draw(st.sampled_from([("a", 1.0, "no", "q"), (None, math.nan, "yes", "1")]))
        rows = [(None if row[0] is None else str(row[0]), float(row[1]), row[2], str(row[3])) for row in rows]
    else:
        cells = SAFE_CELLS if source != "list" else CELLS
        more = (data.draw(cells), 2, "no", data.draw(st.sampled_from(["q", 2, 0.5, "1"])))

    def read(table: list[tuple[Any, ...]]) -> Records:
        if source == "sql":
            return from_database(folder, table, plan)
        if source in DIALECTS:
            return from_csv(folder, table, plan, *DIALECTS[source])
        columns = dict(zip(("c", "x", "y", "person"), map(list, zip(*table, strict=True)), strict=True))
        if source == "parquet":
            pq.write_table(pa.table(columns), folder / "t.parquet")
            return concatenate(read_records(folder / "t.parquet", plan))
        if source in ("duckdb file", "adbc"):
            return from_duckdb(folder, pa.table(columns), plan, by_adbc=source == "adbc")
        if source in TYPED:
            read_in_memory: Records = records_from_columns(in_memory(source, pa.table(columns)), plan, left_out={})
            return read_in_memory
        found: Records = records_from_columns(columns, plan, left_out={})
        return found

    before, after = read(rows), read([*rows, more])
    n = before.n_records
    for old, new in zip(before.features, after.features, strict=True):
        np.testing.assert_array_equal(new[:n], old)
    assert before.unit is not None and after.unit is not None
    assert after.unit[:n].tolist() == before.unit.tolist()
    if after.n_records > n:
        kept_before, _ = rows_within_bound(before.unit, 1, b"key")
        kept_after, _ = rows_within_bound(after.unit, 1, b"key")
        others = [row for row in kept_before.tolist() if before.unit[row] != after.unit[n]]
        assert [row for row in kept_after.tolist() if after.unit[row] != after.unit[n]] == others


def test_names_that_look_like_exponents_are_names() -> None:
    """ "E11" is diabetes and "1E5" a ward; neither is a number, nor an error."""
    names = ["E11", ".", "1e999999999999", "-", "+.e5", "1E5", "٣"]
    assert category_indices(names, names, HERE).require().tolist() == list(range(len(names)))
    assert category_indices([11, 3], names, HERE).require().tolist() == [UNKNOWN_CATEGORY] * 2


def test_a_moment_beyond_pythons_years_costs_its_own_row_at_most() -> None:
    """A date of the year 12020, or one that nanoseconds cannot hold, does not end the program."""
    far = pa.array([0, 3_670_000], pa.date32())
    assert category_indices(far, ["1970-01-01"], HERE).require().tolist() == [0, UNKNOWN_CATEGORY]
    assert len(set(identifiers(far, HERE).require().tolist())) == 2
    odd = [np.datetime64("12020-01-01"), np.datetime64("2020-01-01", "us"), np.clongdouble(1), np.longdouble(2), 1j]
    read = category_indices([*odd, "a"], ["2020-01-01", "2", "a"], HERE)
    good = read.values[~read.is_unfit].tolist()
    assert good == [UNKNOWN_CATEGORY, 0, 1, 2]


def test_an_unlisted_value_is_unknown_and_not_refused() -> None:
    """What is neither number nor text in a category is a value that the plan does not list."""
    assert category_indices(["a", "b", "c"], ["a"], HERE).require().tolist() == [0, UNKNOWN_CATEGORY, UNKNOWN_CATEGORY]


def dated_plan(**privacy: Any) -> Plan:
    """The same with a date, whose text other sites write in a format of the plan."""
    given = category_plan(("male", "female"), **privacy).to_dict()
    born = {"name": "born", "type": "date", "min": "1900-01-01", "max": "2020-01-01", "format": "%m/%d/%Y"}
    return Plan.from_dict({**given, "features": [*given["features"], born]})


ADAPTER = """
[data]
decimal = "comma"
missing = [".", -999]
rename = {sex = "c", weeks = "x"}
recode.c = {M = "male", 2 = "female", "" = "male", n = ""}
date.born = "%d.%m.%Y"
scale.x = 0.5
"""
ADAPTED = ("sex", "weeks", "y", "person", "born")
SITE_CELLS = st.sampled_from(["M", " M ", "m", "male", 2, 2.0, "2.0", "", None, "n", ".", "-999.0", 7, "x", "7,5"])
SITE_NUMBERS = st.sampled_from(["1,5", "1.5", 4, 2, ".", -999, "-999", None, "7,5e0", "unknown", "old", "1 5", "x"])
SITE_DATES = st.sampled_from(["31.12.1999", "1.2.2003", "12/31/1999", "31.02.1999", ".", None, "n/a", "01/02/2003"])


def adapted_reader(source: str, folder: Path, plan: Plan) -> Callable[[list[tuple[Any, ...]]], Records]:
    """Reads rows of a source through `ADAPTER`; of a typed source, its own types."""
    file = folder / "site.toml"
    file.write_text(ADAPTER)
    own = read_adapter(str(file))

    def read(rows: list[tuple[Any, ...]]) -> Records:
        columns = dict(zip(ADAPTED, map(list, zip(*rows, strict=True)), strict=True))
        if source == "sql":
            (folder / "a.db").unlink(missing_ok=True)
            with sqlite3.connect(folder / "a.db") as connection:
                connection.execute(f"create table t ({', '.join(ADAPTED)})")
                connection.executemany("insert into t values (?, ?, ?, ?, ?)", rows)
            connection.close()
            place = f"sqlite:///{folder / 'a.db'}#select * from t order by rowid"
        elif source == "csv":
            texts = [["" if cell is None else str(cell) for cell in row] for row in [ADAPTED, *rows]]
            (folder / "a.csv").write_text("".join('"' + '";"'.join(row) + '"\n' for row in texts))
            place = str(folder / "a.csv")
        elif source == "parquet":
            pq.write_table(pa.table(columns), folder / "a.parquet")
            place = str(folder / "a.parquet")
        else:
            duckdb = pytest.importorskip("duckdb")
            (folder / "a.duckdb").unlink(missing_ok=True)
            with duckdb.connect(str(folder / "a.duckdb")) as connection:
                connection.register("given", pa.table(columns))
                connection.execute("create table t as select * from given")
            place = f"duckdb:///{folder / 'a.duckdb'}#select * from t order by rowid"
        return concatenate(read_records(adapt(place, own), plan, left_out={}))

    return read


@pytest.mark.parametrize("source", all_but(SLOWER, ["csv", "sql", "parquet", "duckdb file"]))
@settings(max_examples=20)
@given(data=st.data())
def test_no_row_changes_another_row_through_an_adapter(
    source: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Add one row of anything to a table that a site writes in its own way: the codes of all others stay."""
    folder = tmp_path_factory.getbasetemp()
    plan = dated_plan(unit="person", max_rows_per_unit=1)
    people, kinds = st.sampled_from(["p", "q", 1]), data.draw(st.sampled_from(["texts", "numbers", "days"]))
    row = st.tuples(SITE_CELLS, SITE_NUMBERS, st.sampled_from(["no", "yes"]), people, SITE_DATES)
    more, rows = data.draw(row), data.draw(st.lists(row, min_size=1, max_size=6))
    # Rows that fit are there whatever is drawn; what does not fit is left out, and cannot show a change.
    rows += [("2", 4, "no", "p", "31.12.1999"), (2, 2, "yes", "q", "1.2.2003")]
    if source in TYPED:
        # A column of such a source has one type, whatever one more row is.
        def typed(sex: Any, weeks: Any, label: Any, person: Any, born: Any) -> tuple[Any, ...]:
            texts = [None if cell is None else str(cell) for cell in (sex, weeks, person, born)]
            if kinds == "texts":
                return texts[0], texts[1], label, texts[2], texts[3]
            number = float(weeks) if isinstance(weeks, int) else -999.0 if weeks == "-999" else None
            at = datetime.date(2000 + (int(number or 0) % 9), 1, 31) if kinds == "days" and born != "." else None
            return (2.0 if sex == 2 else number), number, label, texts[2], at if kinds == "days" else texts[3]

        rows, more = [typed(*own) for own in rows], typed(*more)
    read = adapted_reader(source, folder, plan)
    whole = [("M", "1", "no", "p", "31.12.1999")] if kinds == "texts" or source not in TYPED else []
    before, after = read([*whole, *rows]), read([*whole, *rows, more])
    n = before.n_records
    assert after.unit is not None and before.unit is not None and after.unit[:n].tolist() == before.unit.tolist()
    for old, new in zip(before.features, after.features, strict=True):
        np.testing.assert_array_equal(new[:n], old)


@pytest.mark.parametrize("source", all_but(SLOWER, ["csv", "sql", "parquet", "duckdb file"]))
def test_no_odd_cell_takes_others_out_of_an_adapters_hands(source: str, tmp_path: Path) -> None:
    """In a chunk where one cell is no number, no date, no listed text or missing, all others are changed as ever."""
    rows = [("M", "1,5", "no", "p", "31.12.1999"), ("2", "4", "yes", "q", "1.2.2003"), ("male", "2", "no", "p", ".")]
    read = adapted_reader(source, tmp_path, dated_plan())
    before = read(rows)
    odd = {0: ["zzz", "n", None], 1: ["unknown", ".", None], 4: ["31.02.1999", "2020-01-01", None]}
    for column, cells in odd.items():
        for cell in cells:
            after = read([*rows, tuple(cell if place == column else own for place, own in enumerate(rows[0]))])
            for old, new in zip(before.features, after.features, strict=True):
                np.testing.assert_array_equal(new[: len(rows)], old)


@pytest.mark.parametrize("lines", [{"missing": ["."]}, {"scale": {"unit": 2}}, {"date": {"unit": "%d.%m.%Y"}}])
def test_columns_that_arrow_gives_cell_by_cell_go_through_an_adapter(lines: dict[str, Any]) -> None:
    """UUIDs and unions are read as a list of the same cells; `missing` for all columns left all of their rows out."""
    own, place = adapter(lines, "data"), replace(HERE, column="unit")
    people = [uuid.UUID(int=1), uuid.UUID(int=2)]
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["x", "31.12.1999"])])
    for typed, cells in (pa.array([one.bytes for one in people], pa.uuid()), people), (union, union.to_pylist()):
        found, expected = adapt_column(own, typed, place), adapt_column(own, cells, place)
        assert identifiers(found, place).require().tolist() == identifiers(expected, place).require().tolist()


@pytest.mark.parametrize("source", all_but(SLOWER, ["csv", "sql", "parquet", "duckdb file"]))
def test_an_adapter_makes_the_same_of_every_source(source: str, tmp_path: Path) -> None:
    """Renames, recodes, missing codes, decimal commas, factors and dates: each cell as the plan's other sites write it.

    A date in the plan's format, but not in the site's, is none: 1/2/2003 would be read as another day.
    """
    rows = [
        ("M", "1,5", "no", "p", "31.12.1999"),
        ("2.0", "4", "no", "p", "1.2.2003"),
        ("female", "-999", "yes", "p", "."),
        ("n", ".", "yes", "p", None),
        (None, "7", "yes", "p", "n/a"),
        ("m", "0", "yes", "p", "1.1.2000"),
        ("male", "0", "yes", "p", "01/02/2003"),
        ("male", "old", "yes", "p", "1.1.2000"),
    ]
    found = adapted_reader(source, tmp_path, dated_plan())(rows)
    sex, weeks, born = (column.tolist() for column in found.features)
    assert sex == [0, 1, 1, MISSING_CATEGORY, 0, UNKNOWN_CATEGORY]
    assert [None if math.isnan(value) else value for value in weeks] == [0.75, 2.0, None, None, 3.5, 0.0]
    day = [(datetime.date(*at) - datetime.date(1970, 1, 1)).days for at in ((1999, 12, 31), (2003, 2, 1), (2000, 1, 1))]
    assert [None if math.isnan(value) else value for value in born] == [day[0], day[1], None, None, None, day[2]]
