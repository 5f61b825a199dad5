"""The owner of the rows hears the same of the same cells, whichever command or call reads them."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hedgerow import DPGBDTClassifier
from hedgerow.app import evaluation
from hedgerow.app.statistics import Sheet, print_sheet
from hedgerow.cli.main import main
from hedgerow.data.cells import (
    MANY,
    MIN_CELLS,
    MOST,
    CellCounts,
    CellsWarning,
    describe_cells,
    describe_text_columns,
    list_notes,
)
from hedgerow.data.columns import Place, category_indices, days, encode_texts, kinds, numbers
from hedgerow.data.fit import table_fit
from hedgerow.data.units import records_from_columns
from hedgerow.errors import DataError
from hedgerow.estimators import base
from hedgerow.models.model import Model
from hedgerow.plan.toml import plan_toml
from hedgerow.survey.kinds import DATE, NUMBER
from hedgerow.trees.binning import build_grid
from tests.builders import LABELS, bare_plan

FEATURES: list[dict[str, Any]] = [
    {"name": "age", "type": "numeric", "min": 0, "max": 110},
    {"name": "ward", "type": "categorical", "categories": ["north", "south"]},
    {"name": "day", "type": "date", "min": "2000-01-01", "max": "2020-12-31"},
]
PLAN = bare_plan(LABELS["binary"], FEATURES, model={"n_trees": 2, "max_depth": 1}, epsilon=5, n_records=100)
HERE = Place("a table", "a column")


def rows_of(n: int = 40, **others: list[Any]) -> dict[str, list[Any]]:
    """Rows within the plan, but for the columns that are given."""
    own: dict[str, list[Any]] = {
        "age": [20 + at for at in range(n)], "ward": ["north", "south"] * (n // 2),
        "day": [f"20{at % 20 + 1:02d}-05-06" for at in range(n)], "y": ["no", "yes"] * (n // 2),
    }  # fmt: skip
    return own | others


AGES = st.sampled_from(["30", "", "NA", "-1", "9999", "old", "12 kg", "1e400"])
WARDS = st.sampled_from(["north", "", "NORTH", "1", "elsewhere"])
DAYS = st.sampled_from(["2001-02-03", "", "1990-01-01", "2031-01-01", "3.2.2001"])


@given(rows=st.lists(st.tuples(AGES, WARDS, DAYS), min_size=1, max_size=30))
def test_every_reader_counts_the_same_cells(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    """Training, prediction, `check` and the estimators count alike: no reader has a list of its own."""
    age, ward, day = map(list, zip(*rows, strict=True))
    table = rows_of(len(rows), age=age, ward=ward, day=day, y=["no"] * len(rows))
    trained = records_from_columns(table, PLAN, left_out={}).cells
    assert records_from_columns(table, PLAN, with_label=False, left_out={}).cells == trained
    said: list[Any] = []
    columns = base.Columns({name: pa.array(table[name]) for name in ("age", "ward", "day")})
    with patch.object(base, "warn_about_cells", lambda cells, plan: said.append(cells)):
        base.encode_rows(columns, PLAN, build_grid(PLAN))
    assert said == [trained]
    path = tmp_path_factory.mktemp("cells") / "a.csv"
    path.write_text("\n".join(["age,ward,day,y", *(",".join([*row, "no"]) for row in rows)]) + "\n")
    assert {own.name: own.counts for own in table_fit(path, PLAN).columns if own.role == "feature"} == trained
    for name, counts in trained.items():
        parts = counts.n_missing, counts.n_below, counts.n_above, counts.n_unlisted, counts.n_unread
        assert counts.n_cells == len(rows) and sum(parts) <= len(rows), name


@given(counts=st.tuples(*[st.integers(0, 40)] * 6).filter(lambda counts: 0 < sum(counts)), more=st.integers(0, 60))
def test_what_is_most_of_a_column_is_never_passed_over(counts: tuple[int, ...], more: int) -> None:
    """Each kind of odd cell is told with its column and its number once it is more than its limit."""
    n_cells = sum(counts) + more
    own = CellCounts(n_cells, *counts)
    kinds_of = {note.kind: note.n for note in list_notes({"age": own}, PLAN)}
    n_missing, n_below, n_above, n_unlisted, n_unread, n_undecodable = counts
    wanted = {
        "missing": (n_missing, MOST), "unlisted": (n_unlisted, MANY), "unread": (n_unread, 0),
        "undecodable": (n_undecodable, 0),
    }  # fmt: skip
    for kind, (n, limit) in wanted.items():
        assert kinds_of.get(kind) == (n if n_cells >= MIN_CELLS and n > limit * n_cells else None)
    clamped = n_below + n_above
    found = [kinds_of[kind] for kind in ("clamped", "mostly clamped") if kind in kinds_of]
    assert found == [clamped] * (n_cells >= MIN_CELLS and clamped > MANY * n_cells)
    said = describe_cells({"age": own}, PLAN)
    assert all(f"{n:,} of {n_cells:,} cells of 'age'" in said for n in kinds_of.values())
    assert bool(said) == bool(kinds_of)


@given(
    odd=st.dictionaries(st.integers(0, 39), st.sampled_from(["IV", "anaplastic; Grade IV", "-", "old"]), max_size=4),
    column=st.sampled_from(["age", "day"]),
)
def test_a_level_of_text_among_numbers_is_a_note_on_cells(
    tmp_path_factory: pytest.TempPathFactory, odd: dict[int, str], column: str
) -> None:
    """It takes its own rows out of an exact evaluation, empties their predictions, and is named; nothing ends."""
    table = rows_of()
    table[column] = [odd.get(at, cell) for at, cell in enumerate(table[column])]
    path, said = write_table(tmp_path_factory.mktemp("rows") / "a.csv", table), list[str]()
    with patch.object(evaluation, "warn", said.append), patch.object(evaluation, "note"):
        (evaluated,) = evaluation.read_own(path, PLAN, None)
        (predicted,) = evaluation.read_own(path, PLAN, None, with_label=False)
    assert evaluated.n_records == predicted.n_records == 40 - len(odd)
    fits = np.ones(40, dtype=np.bool_) if predicted.fits is None else predicted.fits
    assert np.flatnonzero(~fits).tolist() == sorted(odd)
    assert len(said) == 2 * bool(odd) and all(f"{len(odd):,} of 40 cells of {column!r}" in text for text in said)


def write_table(path: Path, table: dict[str, list[Any]], encoding: str = "utf-8") -> str:
    rows = [",".join(map(str, row)) for row in zip(*table.values(), strict=True)]
    path.write_bytes("\n".join([",".join(table), *rows, ""]).encode(encoding))
    return str(path)


@pytest.mark.parametrize(
    ("column", "cells", "word"),
    [
        ("age", [365 * (20 + at) for at in range(40)], "unit"), ("ward", ["NORD", "SUD"] * 20, "coding"),
        ("age", [""] * 30 + [30] * 10, "recorded"),
    ],
)  # fmt: skip
def test_every_command_names_an_odd_column(
    column: str, cells: list[Any], word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A column in another unit or coding is named wherever it is read, before any advice about chances."""
    plan, model = tmp_path / "plan.toml", str(tmp_path / "model.json")
    plan.write_text(plan_toml(PLAN))
    good = write_table(tmp_path / "good.csv", rows_of())
    odd_rows = rows_of(**{column: cells})
    odd = write_table(tmp_path / "odd.csv", odd_rows)
    assert main(["train", str(plan), "--site", good, "--out", model, "--seed", "1"]) == 0
    assert "cells of" not in capsys.readouterr().err
    for words in (
        ["train", str(plan), "--site", odd, "--out", str(tmp_path / "other.json"), "--seed", "1"],
        ["predict", model, odd, "--out", str(tmp_path / "p.csv")],
        ["evaluate", model, odd],
        ["evaluate", model, odd, "--epsilon", "1", "--seed", "1", "--out", str(tmp_path / "e.json")],
        ["recalibrate", model, odd, "--epsilon", "1", "--seed", "1", "--out", str(tmp_path / "r.json")],
        ["check", str(plan), odd],
    ):
        assert main(words) == 0, words
        said = " ".join("".join(capsys.readouterr()).split())
        assert "40 cells" in said and column in said and word in said, words
        assert words[0] != "evaluate" or "`hedgerow recalibrate`" not in said
    with pytest.warns(CellsWarning, match=f"40 cells of '{column}'"):
        Model.load(model).predict(odd_rows)


def test_an_estimator_names_a_column_in_another_unit() -> None:
    """A matrix and a table, with declared bounds and with found ones: a whole column beyond them is no accident."""
    rng = np.random.default_rng(0)
    ages = rng.integers(20, 90, 2000)
    y = (ages > 50).astype(int)
    for told in ({"bounds": (0, 110), "n_records": 2000}, {}):
        for X in (ages[:, None].astype(float), pd.DataFrame({"age": ages})):
            model = DPGBDTClassifier(epsilon=50.0, classes=[0, 1], n_trees=2, **told).fit(X, y)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                model.predict(X)
            with pytest.warns(CellsWarning, match="2,000 of 2,000 cells"):
                model.predict(X * 365)


def test_a_survey_names_cells_in_another_encoding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are no missing cells: the file's encoding has to be named."""
    table = {"town": ["Köln", "Bonn", "Trier"] * 100, "age": list(range(20, 50)) * 10}
    path = write_table(tmp_path / "a.csv", table, "cp1252")
    assert main(["survey", path, "--epsilon", "5", "--seed", "1"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "100 of 300 cells of 'town'" in said and "#encoding=cp1252" in said
    assert main(["survey", f"{path}#encoding=cp1252", "--epsilon", "5", "--seed", "1"]) == 0
    assert "cells of 'town'" not in capsys.readouterr().err


def test_labels_that_are_missing_are_told_on_both_paths() -> None:
    """Classes that are declared, and classes that are found: the rows are left out, and the owner hears how many."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=1000)
    y = np.where(np.arange(1000) % 25 == 0, np.nan, (x > 0).astype(float))
    for told in ({"classes": [0, 1]}, {}):
        with pytest.warns(UserWarning, match="960 of 1,000 rows used.*Private"):
            DPGBDTClassifier(epsilon=50.0, n_trees=1, bounds=(-4, 4), n_records=960, **told).fit(x[:, None], y)


# Types ----------------------------------------------------------------------------------------------------------------


def test_a_declared_type_without_a_reading_is_refused_by_name() -> None:
    """The type is public: nothing is spent on a column of which no cell can be read."""
    values = np.arange(60.0)
    tables: list[Callable[[], Any]] = [
        lambda: pd.DataFrame({"band": pd.cut(values, 4)}),
        lambda: pd.DataFrame({"band": pd.arrays.IntervalArray.from_breaks(range(61))}),
        lambda: pd.DataFrame({"band": pd.to_timedelta(values, "D")}),
        lambda: pl.DataFrame({"band": [{"a": 1}] * 60}),
        lambda: pl.DataFrame({"band": [[1]] * 60}),
    ]
    for table in tables:
        for categories in (None, "from type"):
            with pytest.raises(DataError, match="band"):
                DPGBDTClassifier(epsilon=50.0, classes=[0, 1], categories=categories).fit(table(), np.arange(60) % 2)


def test_an_object_without_a_reading_is_unread_by_itself() -> None:
    """Its row decides nothing about the column; the owner hears how many there are."""
    ages = [*range(20, 50), pd.Interval(0, 1), [1], {"a": 1}, 1j]
    found = kinds(ages, HERE)
    assert found.tolist()[:30] == [NUMBER] * 30 and NUMBER not in found.tolist()[30:]
    table = rows_of(34, age=ages, ward=["north"] * 34, day=["2001-01-01"] * 34, y=["no"] * 34)
    cells = records_from_columns(table, PLAN, left_out={}).cells["age"]
    assert (cells.n_unread, cells.n_missing) == (4, 0)
    assert "4 of 34 cells of 'age'" in describe_cells({"age": cells}, PLAN)


@given(st.lists(st.one_of(st.none(), st.times()), min_size=1, max_size=8))
def test_a_time_of_day_is_one_number_from_every_source(times: list[datetime.time | None]) -> None:
    """Objects, typed columns and texts of a time give the same seconds, in order; its text stays what it was."""
    seconds = [
        np.nan if each is None else (each.hour * 3600 + each.minute * 60 + each.second) + each.microsecond / 1e6
        for each in times
    ]
    texts = [None if each is None else each.isoformat() for each in times]
    columns = [
        list(times), pd.Series(times, dtype=object), pa.array(times, pa.time64("us")), pa.array(texts, pa.string()),
        pl.Series(times, dtype=pl.Time), [*texts],
    ]  # fmt: skip
    found = [numbers(column, HERE).require() for column in columns]
    np.testing.assert_allclose(found[0], seconds, rtol=1e-12)
    for other, column in zip(found, columns, strict=True):
        np.testing.assert_array_equal(other, found[0])
        if not isinstance(column, list | pa.StringArray):
            # Digits that are idle stay in a text, for it may be a name.
            assert encode_texts(column, HERE)[0] == encode_texts(columns[0], HERE)[0]
        assert (kinds(column, HERE)[[each is not None for each in times]] == NUMBER).all()


@pytest.mark.parametrize("text", ["1:40", "1:80", "24:00:00", "12:60:00", "14:30", "12:30:00 pm", "-12:30:00"])
def test_titres_and_ratios_are_no_times(text: str) -> None:
    """1:40 is a dilution as often as a time: the form with seconds alone is read, which typed columns have."""
    with pytest.raises(DataError):
        numbers([text], HERE).require()


@given(
    categories=st.lists(
        st.sampled_from(["1.1", "1.10", "1.100", "1", "1.0", "01", "+1", "1e0", "true", "True", "NA", "a", "A", "7.5"]),
        min_size=1,
        unique=True,
    )
)
def test_declared_categories_are_compared_as_written(categories: list[str]) -> None:
    """Codes that look like one number, or words in other letters, are each their own category where both are listed."""
    found = category_indices(pa.array([f" {text}" for text in categories]), categories, HERE).require()
    assert found.tolist() == list(range(len(categories)))


def test_periods_are_the_dates_that_they_begin_on() -> None:
    """A typed column and objects alike."""
    periods = pd.PeriodIndex(["2020-05", "2021-01", None], freq="M")
    for column in (pd.Series(periods), periods.astype(object), list(periods)):
        np.testing.assert_array_equal(
            days(column, None, HERE).require(), days(["2020-05-01", "2021-01-01", None], None, HERE).require()
        )
        assert kinds(column, HERE).tolist()[:2] == [DATE, DATE]


# What is printed ------------------------------------------------------------------------------------------------------


@given(
    names=st.lists(st.text("abcdefgh_", min_size=1, max_size=30), min_size=1, max_size=4),
    cells=st.lists(st.text("▁▂▃░ab ", max_size=300), min_size=3, max_size=3),
    picture=st.sampled_from(["histogram", "by bin"]),
)
def test_a_printed_table_keeps_the_names_of_its_rows(names: list[str], cells: list[str], picture: str) -> None:
    """At 80 columns, however wide its other cells are: a line without its column's name says nothing."""
    console = Console(width=80, record=True, file=open("/dev/null", "w"))
    rows = tuple((name, *cells) for name in names)
    print_sheet(console, Sheet("Share of y = 1", ("column", "lowest", "highest", picture), rows))
    console.file.close()
    lines = console.export_text().splitlines()
    first = "".join(line[:18].strip().split(" ")[0] for line in lines[3:])
    assert all(name in first or name[:8] in first for name in names)
    assert max(map(len, lines)) <= 80


@given(st.dictionaries(st.sampled_from(["ward", "weight", "day", "code"]), st.sampled_from([0.0, 1e-9, 0.3, 1.0])))
def test_every_text_column_is_told_with_its_share_of_digits(shares: dict[str, float]) -> None:
    """No writing of dates or numbers is hashed in silence; one cell is not none, however long the column."""
    said = describe_text_columns(shares)
    assert {name for name in shares if repr(name) in said} == set(shares)
    assert said.count("(0%") == sum(share == 0 for share in shares.values())
