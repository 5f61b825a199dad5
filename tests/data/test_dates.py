"""Dates count as days since 1970-01-01, whatever brings them: text in a declared format, a typed column."""

from __future__ import annotations

import datetime
import json
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hedgerow import DPGBDTClassifier
from hedgerow.cli.main import main
from hedgerow.data.columns import Place, days
from hedgerow.data.drafts import draft_plan, read_codebook
from hedgerow.data.fit import table_fit
from hedgerow.data.sources import open_table, read_records
from hedgerow.data.units import concatenate, records_from_columns
from hedgerow.errors import DataError, PlanError
from hedgerow.plan.draft import Entry
from hedgerow.plan.fields import days_between, format_day, parse_day
from hedgerow.plan.plan import Plan, parse_plan

WriteFile = Callable[[str, bytes], Path]
SickPlan = Callable[..., Plan]

SEEN = {"name": "seen", "type": "date", "min": "2020-01-01", "max": "2021-12-31"}


# Days ----------------------------------------------------------------------------------------------------------------


@given(st.datetimes())
def test_every_moment_comes_back(moment: datetime.datetime) -> None:
    """To the millisecond, which is what the 53 bits of a float hold at the ends of the calendar."""
    moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    read = datetime.datetime.fromisoformat(format_day(parse_day(moment.isoformat())))
    assert abs(read - moment) < datetime.timedelta(milliseconds=1)


def test_days_are_counted_in_utc() -> None:
    assert parse_day("1970-01-01") == 0
    assert parse_day("1969-12-31") == -1
    assert parse_day("2000-03-01") - parse_day("2000-02-28") == 2
    assert (
        parse_day("2020-01-01T12:00:00") == parse_day("2020-01-01T12:00:00Z") == parse_day("2020-01-01T14:00:00+02:00")
    )
    assert format_day(parse_day("2020-01-01T12:00:00")) == "2020-01-01T12:00:00"


@given(st.datetimes(datetime.datetime(2, 1, 1), datetime.datetime(9998, 1, 1)), st.integers(-23, 23), st.booleans())
def test_a_zone_counts_however_it_is_written(moment: datetime.datetime, hours: int, is_beside: bool) -> None:
    """Databases and libraries write +01, +0100 or +01:00; one cell's moment does not hang on the cells beside it."""
    moment = moment.replace(microsecond=0)
    cells = [f"{moment.isoformat(' ')}{hours:+03d}{minutes}" for minutes in ("", "00", ":00")]
    found = days([*cells, *["2021-02-29T00:00Z"] * is_beside], None, Place("table", "seen")).values
    expected = parse_day((moment - datetime.timedelta(hours=hours)).isoformat())
    assert found[:3].tolist() == [expected] * 3 == [parse_day(cell) for cell in cells]


NO_DATES = ["2021-02-29", "2020-13-01", "20200101", "1.1.2020", "2020-W01-1", "", "2020-01-01T25:00"]


@pytest.mark.parametrize("text", NO_DATES)
def test_other_text_is_no_date(text: str) -> None:
    with pytest.raises(ValueError):
        parse_day(text)


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
def test_bounds_that_were_found_have_a_text(low: float, high: float) -> None:
    """Outwards to whole days, never empty, never beyond the years that a date can have."""
    first, last = days_between(min(low, high), max(low, high))
    assert first < last and parse_day(format_day(first)) == first and parse_day(format_day(last)) == last


# Plans ---------------------------------------------------------------------------------------------------------------


def test_a_plan_has_them_as_text(sick_plan: SickPlan) -> None:
    """Written and read again it is the same plan; in the program its bounds are days."""
    plan = sick_plan(features=[SEEN | {"format": "%d.%m.%Y"}])
    feature = plan.features[0]
    assert (feature.min, feature.max) == (parse_day("2020-01-01"), parse_day("2021-12-31"))
    assert plan.to_dict()["features"][0].items() >= (SEEN | {"format": "%d.%m.%Y"}).items()
    assert Plan.from_dict(plan.to_dict()) == plan


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"min": "1.1.2020"}, "min"), ({"max": "2019-01-01"}, "max: '2019-01-01' .* 2020-01-01"),
        ({"min": True}, "min"), ({"min": 1e12}, "min"),
        ({"format": "%d.%m"}, "format"), ({"format": "%d.%m.%Y %B"}, "format"), ({"format": "%Y-%m-%d-%d"}, "format"),
        ({"format": "%Y%m%d%"}, "format"), ({"categories": ["a"]}, "categories"),
    ],
)  # fmt: skip
def test_plans_that_are_refused(change: dict[str, Any], field: str, sick_plan: SickPlan) -> None:
    with pytest.raises(PlanError, match=rf"features\[0\] \(seen\)\.{field}|features\[0\]\.{field}"):
        sick_plan(features=[SEEN | change])


def test_a_format_is_for_dates(sick_plan: SickPlan) -> None:
    with pytest.raises(PlanError, match="format"):
        sick_plan(features=[{"name": "age", "type": "numeric", "min": 0, "max": 1, "format": "%d.%m.%Y"}])


# Tables --------------------------------------------------------------------------------------------------------------

DAYS = ["2020-01-01", "2020-02-29", "2021-12-31"]
TEXTS: dict[str | None, list[str]] = {
    None: DAYS,
    "%d.%m.%Y": ["01.01.2020", "29.2.2020", "31.12.2021"],
    "%m/%d/%Y": ["1/1/2020", "2/29/2020", "12/31/2021"],
    "%Y%m%d": ["20200101", "20200229", "20211231"],
    "%d.%m.%Y %H:%M": ["1.1.2020 00:00", "29.2.2020 0:00", "31.12.2021 00:00"],
}


def seen_of(source: str, plan: Plan, **options: Any) -> list[float]:
    """The values of the column `seen`, as the trees see them."""
    return [float(value) for value in concatenate(read_records(source, plan, **options)).features[0]]


@pytest.mark.parametrize("layout", TEXTS)
def test_text_in_a_format(layout: str | None, write_file: WriteFile, sick_plan: SickPlan) -> None:
    rows = "".join(f"{text},yes\n" for text in [*TEXTS[layout], ""])
    plan = sick_plan(features=[SEEN | ({} if layout is None else {"format": layout})])
    found = seen_of(str(write_file("a.csv", f"seen,sick\n{rows}".encode())), plan)
    assert found[:3] == [parse_day(text) for text in DAYS] and np.isnan(found[3])


def test_what_is_no_date_is_left_out_by_itself(write_file: WriteFile, sick_plan: SickPlan) -> None:
    """A day that there is not, another format, a number: each is a row that does not fit, or refused with its place."""
    cells = ["2020-01-01", "2021-02-29", "1.2.2020", "18262", "2020-01-01 ", "soon"]
    path = str(write_file("a.csv", ("seen,sick\n" + "".join(f"{cell},yes\n" for cell in cells)).encode()))
    left_out: dict[str, int] = {}
    assert seen_of(path, sick_plan(features=[SEEN]), left_out=left_out) == [parse_day("2020-01-01")] * 2
    assert left_out == {"data-wrong-type": 4}
    with pytest.raises(DataError) as caught:
        seen_of(path, sick_plan(features=[SEEN | {"format": "%d/%m/%Y"}]))
    assert (
        caught.value.code == "data-wrong-type" and "%d/%m/%Y" in str(caught.value) and "data row 1" in str(caught.value)
    )


def test_the_year_0_is_none_whatever_stands_beside_it() -> None:
    """One record's date does not turn another's: Arrow reads a year 0, and what reads dates one by one does not."""
    cells = ["0000-01-01", "0000-12-31T23:59-12:00", "0001-01-01"]
    for beside in ([], ["2021-02-29"], ["2021-02-29T00:00Z"]):
        read = days([*cells, *beside], None, Place("table", "seen"))
        assert read.is_unfit[:3].tolist() == [True, True, False] and read.values[2] == parse_day("0001-01-01")


def test_every_source_gives_the_same_days(tmp_path: Path, sick_plan: SickPlan) -> None:
    """Typed columns of Parquet and DuckDB need no format, beside one that the plan has for other sites' text."""
    pytest.importorskip("sqlalchemy")
    plan = sick_plan(features=[SEEN | {"format": "%d.%m.%Y"}])
    dates = [datetime.date.fromisoformat(day) for day in DAYS]
    table = pa.table({"seen": pa.array(dates), "sick": ["yes"] * 3})
    parquet.write_table(table, tmp_path / "a.parquet")
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("create table visits (seen, sick)")
        connection.executemany("insert into visits values (?, 'yes')", [(text,) for text in TEXTS["%d.%m.%Y"]])
    connection.close()
    with pytest.importorskip("duckdb").connect(str(tmp_path / "a.duckdb")) as database:
        database.register("days", table)
        database.execute("create table visits as select * from days")
    query = "#select * from visits order by rowid"
    sources = ["a.parquet", f"sqlite:///{tmp_path / 'a.db'}{query}", f"duckdb:///{tmp_path / 'a.duckdb'}{query}"]
    for source in sources:
        assert seen_of(source if ":" in source else str(tmp_path / source), plan) == [parse_day(day) for day in DAYS]
    for column in (
        dates,
        np.array(DAYS, "datetime64[ns]"),
        pa.array(DAYS).cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC")),
    ):
        records = records_from_columns({"seen": column, "sick": ["yes"] * 3}, plan)
        assert records.features[0].tolist() == [parse_day(day) for day in DAYS]


@given(st.lists(st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)), min_size=1))
@example([datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)])
def test_parquet_has_no_end_of_time(moments: list[datetime.datetime]) -> None:
    """In 96 bits, as Spark and Impala write them, moments are those of text, and not what is left of them in 64."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.parquet"
        table = pa.table({"seen": pa.array(moments, pa.timestamp("us"))})
        parquet.write_table(table, file, use_deprecated_int96_timestamps=True)
        [(column,)] = open_table(file).batches(["seen"], 1000, None)
    here = Place("table", "seen")
    assert (
        days(column, None, here).require().tolist()
        == days([str(moment) for moment in moments], None, here).require().tolist()
    )


def test_what_a_site_sees_of_them(write_file: WriteFile, sick_plan: SickPlan) -> None:
    """Days before and after the bounds are clamped, and counted for the owner of the rows."""
    cells = ["2019-01-01", "2022-01-01", "2020-05-05", "", "soon"]
    path = str(write_file("a.csv", ("seen,sick\n" + "".join(f"{cell},yes\n" for cell in cells)).encode()))
    seen = table_fit(path, sick_plan(features=[SEEN])).columns[0]
    assert (seen.kind, seen.n_below, seen.n_above, seen.n_missing, seen.n_unreadable) == ("date", 1, 1, 1, 1)


# Before there is a plan ----------------------------------------------------------------------------------------------


def test_a_book_and_a_draft(write_file: WriteFile) -> None:
    """A code book's bounds are taken as they are; without one, nothing says that a column is of dates."""
    book = read_codebook(str(write_file("book.csv", b"name,type,min,max\nseen,date,2020-01-01,2021-12-31\n")))
    assert book == {"seen": Entry("date", False, parse_day("2020-01-01"), parse_day("2021-12-31"))}
    path = write_file("a.csv", b"seen,sick\n2020-03-04,yes\n,no\n2020-03-05,no\n")
    confirmed = draft_plan(path, "sick", codebook=book)
    assert 'type = "date"\n' in confirmed and 'min = "2020-01-01"\nmax = "2021-12-31"' in confirmed
    assert "%d.%m.%Y" in confirmed
    assert 'type = "date"' not in draft_plan(path, "sick")


def test_a_survey_speaks_of_dates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a declared format to noisy quantiles, a page and a plan whose bounds are dates, and which trains."""
    generator = np.random.default_rng(4)
    days = [datetime.date(2015, 1, 1) + datetime.timedelta(int(day)) for day in generator.integers(0, 2000, 3000)]
    rows = [f"{day:%d.%m.%Y},{'yes' if day.year > 2017 else 'no'}\n" for day in days]
    (tmp_path / "a.csv").write_text("seen,sick\n" + "".join(rows))
    (tmp_path / "known.toml").write_text('[[features]]\nname = "seen"\ntype = "date"\nformat = "%d.%m.%Y"\n')
    asked = ["survey", str(tmp_path / "a.csv"), "--schema", str(tmp_path / "known.toml"), "--label", "sick"]
    assert main([*asked, "--epsilon", "5", "--seed", "2", "--out", str(tmp_path / "found")]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.lstrip().startswith("seen"))
    assert "2017-" in line and "2020-" in line and len(line.rstrip()) <= 80
    assert "2017-" in (tmp_path / "found" / "report.html").read_text()
    column = json.loads((tmp_path / "found" / "survey.json").read_text())["columns"][0]
    assert column["days_since"] == "1970-01-01"
    assert {round(own["share"], 2): own["value"] for own in column["quantiles"]}[0.5] == pytest.approx(
        parse_day(sorted(days)[1500].isoformat()), abs=60
    )
    feature = parse_plan((tmp_path / "found" / "plan.toml").read_text()).features[0]
    assert feature.is_date and feature.format == "%d.%m.%Y"
    assert parse_day("2012-01-01") < feature.min < parse_day("2015-06-01") < parse_day("2020-01-01") < feature.max
    trained = ["train", str(tmp_path / "found" / "plan.toml"), "--site", str(tmp_path / "a.csv")]
    assert main([*trained, "--out", str(tmp_path / "model.json"), "--seed", "2"]) == 0


# Estimators ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["arrow", "pandas", "polars", "duckdb"])
@pytest.mark.parametrize("bounds", [("2014-12-31", "2021-01-01"), "private"])
def test_estimators_take_columns_of_dates(library: str, bounds: Any) -> None:
    """By the column's type; stored and loaded, the model has the same dates."""
    generator = np.random.default_rng(4)
    days = np.datetime64("2015-01-01") + generator.integers(0, 2000, 3000).astype("timedelta64[D]")
    y = (days > np.datetime64("2017-12-31")).astype(int)
    table = pa.table({"seen": pa.array(days), "dose": generator.random(3000)})
    X: Any = table
    if library == "pandas":
        X = pytest.importorskip("pandas").DataFrame({name: table[name].to_numpy() for name in ("seen", "dose")})
    elif library == "polars":
        X = pytest.importorskip("polars").from_arrow(table)
    elif library == "duckdb":
        X = pytest.importorskip("duckdb").from_arrow(table)
    options = {"bounds": {"seen": bounds, "dose": (0, 1)}} if bounds != "private" else {}
    model = DPGBDTClassifier(epsilon=8, n_trees=20, random_state=1, **options).fit(X, y)
    seen = model.model_.plan.features[0]
    assert seen.is_date and seen.min < parse_day("2015-06-01") < parse_day("2020-01-01") < seen.max
    assert model.score(X, y) > 0.8
