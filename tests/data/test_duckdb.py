"""DuckDB databases are read as files of the same rows are, for reading only, and nothing beside them."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from hedgerow.data.raw_cells import read_raw, read_types
from hedgerow.data.sources import column_names, open_table
from hedgerow.errors import DataError, UsageError
from hedgerow.plan.plan import Feature
from hedgerow.survey.kinds import TEXT

duckdb = pytest.importorskip("duckdb")


@pytest.fixture
def database(tmp_path: Path) -> str:
    """A URL without a query."""
    file = tmp_path / "a.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute("create table t (n integer, x decimal(12, 2), d date, s varchar)")
        connection.execute("insert into t values (1, 2.50, '2020-01-31', 'é'), (null, null, null, null)")
        connection.execute("insert into t select range, range, null, 'a' from range(100000)")
    return f"duckdb:///{file}"


def test_columns_come_typed_and_in_order(database: str) -> None:
    """Names, types and cells are those of the table; blocks are no longer than asked for."""
    location = f"{database}#select * from t"
    assert column_names(location) == list(open_table(location).types()) == ["n", "x", "d", "s"]
    batches = list(open_table(location).batches(["s", "x", "n", "d"], 1000, None))
    assert [column[0].as_py() for column in batches[0]] == ["é", Decimal("2.50"), 1, datetime.date(2020, 1, 31)]
    assert [column[1].as_py() for column in batches[0]] == [None] * 4
    assert max(len(batch[0]) for batch in batches) == 1000
    numbers = [value for batch in batches for value in batch[2].to_pylist()]
    assert numbers == [1, None, *range(100_000)]


def test_a_survey_takes_columns_by_their_types(database: str) -> None:
    """A survey of a table with dates ended; each column is what the database says of it."""
    location = f"{database}#select *, [n] as listed from t"
    assert read_types(location) == {"n": "number", "x": "number", "d": "date", "s": "text"}
    day, text = read_raw(location, [Feature(name="d", type=""), Feature(name="s", type="")]).columns
    assert day.numbers[0] == (datetime.date(2020, 1, 31) - datetime.date(1970, 1, 1)).days
    assert np.isnan(day.numbers[1:]).all() and TEXT not in day.kinds
    assert text.texts[0] == ["é", "a"] and (text.kinds == TEXT).sum() == 100_001


@pytest.mark.parametrize(
    "query",
    [
        "select * from nothing", "select error('row 7') from t", "drop table t", "select * from read_csv('{csv}')",
        "select case when n = 99999 then error('row 7') else n end as a from t", "select * from file",
    ],
)  # fmt: skip
def test_what_is_refused_quotes_nothing(query: str, database: str, tmp_path: Path) -> None:
    """A query may not change the database, nor read a file whose types DuckDB would guess from its rows."""
    file = tmp_path / "b.csv"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(DataError) as caught:
        list(open_table(f"{database}#{query.format(csv=file)}").batches(["a"], 1000, None))
    assert caught.value.code == "data-sql" and "row 7" not in str(caught.value)


def test_no_query_and_no_file(database: str) -> None:
    """Both are said before anything is read."""
    with pytest.raises(UsageError):
        column_names("duckdb:///t.duckdb")
    with pytest.raises(DataError) as caught:
        column_names("duckdb:///not-there.duckdb#select 1")
    assert caught.value.code == "data-file-missing"
