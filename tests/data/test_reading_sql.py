"""A site's table from a database is the same as from a file; what a database says of a failure stays unsaid."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from hedgerow.app.rows import make_loader
from hedgerow.data.site_data import read_site_data, site_data_from_records
from hedgerow.data.sources import read_records
from hedgerow.errors import DataError, EnvironmentFault, UsageError
from tests.builders import make_plan

pytest.importorskip("sqlalchemy")

REGIONS = ("north", "south", "elsewhere", None)
ROWS = [(i % 5, 10.0 * i, REGIONS[i % 4], -0.5 + i / 50, ("no", "yes")[i % 2]) for i in range(50)]
COLUMNS = ("age", "income", "region", "change", "y")


@pytest.fixture
def database(tmp_path: Path) -> str:
    """The URL of a database with one table."""
    file = tmp_path / "site.db"
    with sqlite3.connect(file) as connection:
        connection.execute(f"create table patients ({', '.join(COLUMNS)}, secret)")
        connection.executemany("insert into patients values (?, ?, ?, ?, ?, 'canary')", ROWS)
    connection.close()
    return f"sqlite:///{file}"


def test_a_query_gives_what_a_file_gives(database: str, tmp_path: Path) -> None:
    """Numbers, categories, missing values and labels, whatever the size of the chunks."""
    plan = make_plan()
    lines = [",".join("" if value is None else str(value) for value in row) for row in ROWS]
    (tmp_path / "site.csv").write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    from_file, _ = read_site_data(tmp_path / "site.csv", plan)
    for chunk_rows in (7, 50, 1000):
        records = read_records(f"{database}#" + "select * from patients order by rowid", plan, chunk_rows=chunk_rows)
        from_query, _ = site_data_from_records(records, plan)
        assert np.array_equal(from_query.codes, from_file.codes)
        assert np.array_equal(from_query.labels, from_file.labels)
    assert np.array_equal(make_loader(f"{database}#select * from patients order by rowid")(plan).codes, from_file.codes)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("select age from patients", "data-missing-column"),
        ("select *, age from patients", "data-duplicate-column"),
        ("select canary from nowhere", "data-sql"),
        ("no sql at all", "data-sql"),
        ("select * from patients where 1 = 0", "data-empty"),
    ],
)
def test_a_query_that_does_not_serve_is_refused(database: str, query: str, code: str) -> None:
    """The errors are those of files where they can be; a database's own message is not passed on."""
    plan = make_plan()
    with pytest.raises(DataError) as caught:
        site_data_from_records(read_records(f"{database}#" + query, plan), plan)
    assert caught.value.code == code
    assert "canary" not in str(caught.value) and "sqlite" not in str(caught.value)


def test_a_driver_that_stumbles_over_one_cell_is_refused(tmp_path: Path) -> None:
    """Drivers raise plain exceptions too, which quote the cell and would end a node that waits for runs."""

    def stumble(cell: bytes) -> str:
        raise ValueError(cell)

    sqlite3.register_converter("stumbling", stumble)
    file = tmp_path / "site.db"
    with sqlite3.connect(file) as connection:
        connection.execute("create table patients (age, income, region stumbling, change, y)")
        connection.execute("insert into patients values (1, 1.0, 'canary', 0.0, 'no')")
    connection.close()
    location = f"sqlite:///{file}?detect_types={sqlite3.PARSE_DECLTYPES}#select * from patients"
    with pytest.raises(DataError, check=lambda fault: fault.code == "data-sql" and "canary" not in str(fault)):
        list(read_records(location, make_plan()))


def test_a_password_in_a_url_is_never_repeated() -> None:
    """An error goes into logs, and the URL holds the database's password."""
    plan = make_plan()
    urls = ("nowhere://user:canary@host/db", "sqlite:////nonexistent/canary/folder/x.db", "canary://")
    for url in (*urls, "postgresql://user:canary@localhost:1/db", "postgresql+psycopg2://user:canary@localhost:1/db"):
        with pytest.raises((DataError, EnvironmentFault)) as caught:
            list(read_records(f"{url}#" + "select 1", plan))
        assert "canary" not in str(caught.value)


def test_a_url_without_a_query_is_refused() -> None:
    """It is a mistake of the command line, found before anything is dialled."""
    with pytest.raises(UsageError):
        make_loader("sqlite:///x.db")


def test_one_text_that_is_not_utf8_leaves_out_its_own_row(database: str) -> None:
    """SQLite's driver gives a whole query up because of one such cell; the site would refuse because of one record."""
    plan, query = make_plan(), "select * from patients order by rowid"
    before, _ = site_data_from_records(read_records(f"{database}#" + query, plan), plan)
    with sqlite3.connect(database.removeprefix("sqlite:///")) as connection:
        connection.execute("insert into patients values (1, 1.0, cast(x'ff61' as text), 0.0, 'no', '')")
    connection.close()
    left_out: dict[str, int] = {}
    records = read_records(f"{database}#" + query, plan, left_out=left_out)
    after, report = site_data_from_records(records, plan, left_out=left_out)
    assert np.array_equal(after.codes, before.codes) and np.array_equal(after.labels, before.labels)
    assert dict(report.unfit) == {"data-wrong-type": 1}
    told: list[str] = []
    assert make_loader(f"{database}#{query}", tell=told.append)(plan).n_records == len(ROWS)
    assert len(told) == 1 and "50 of 51 rows used. Left out: 1 data-wrong-type" in told[0] and "private" in told[0]
    with pytest.raises(DataError, match="data row 51"):
        list(read_records(f"{database}#{query}", plan))
