"""Databases whose columns have declared types come as Arrow, and as a file of the same rows does."""

from __future__ import annotations

import datetime
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import numpy as np
import pytest

from hedgerow.data.columns import Place, identifiers
from hedgerow.data.databases import AdbcTable
from hedgerow.data.fit import table_fit
from hedgerow.data.raw_cells import read_raw, read_types
from hedgerow.data.site_data import read_site_data, site_data_from_records
from hedgerow.data.sources import column_names, open_table, read_records
from hedgerow.errors import DataError, UsageError
from hedgerow.plan.omop import fill_plan
from hedgerow.plan.plan import Feature, Plan
from tests.builders import make_plan
from tests.plan import test_omop

ROWS = 3000
TABLES = """
create table patients as select
    i % 5 as age, 10.0 * i as income, (array['north', 'south', 'elsewhere', null])[1 + i % 4] as region,
    cast(i / 50.0 - 0.5 as double precision) as change, (array['no', 'yes'])[1 + i % 2] as y, i as key
from generate_series(0, 2999) as series (i);
create type mood as enum ('sad', 'fine');
create table odd (
    small smallint, exact numeric(12, 2), yes boolean, day date, moment timestamptz, feeling mood, person uuid,
    price money, address inet, part interval);
insert into odd values (1, 2.50, true, '2020-01-31', '2020-01-31 10:00+02', 'fine',
    'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 3.50, '10.0.0.1', '1 day');
insert into odd (exact, day) values ('NaN', 'infinity');
"""


def server_programs() -> Path | None:
    """The folder of PostgreSQL's programs, where there is one."""
    found = shutil.which("initdb") or max(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), default=None)
    return None if found is None else Path(found).parent


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a PostgreSQL database of this module's own, on a socket in a folder."""
    driver = pytest.importorskip("adbc_driver_postgresql.dbapi")
    programs = server_programs()
    if programs is None:
        pytest.skip("PostgreSQL's server is not installed (Debian's package `postgresql`)")
    # Not in pytest's folder, which is closed to the user that the server wants in place of root.
    with tempfile.TemporaryDirectory(prefix="hedgerow-") as folder:
        user = "postgres" if os.geteuid() == 0 else None
        if user is not None:
            shutil.chown(folder, user)
        with running_server(programs, folder, user, driver) as url:
            yield url


@contextmanager
def running_server(programs: Path, folder: str, user: str | None, driver: ModuleType) -> Iterator[str]:
    """A server with the tables of this module, and its URL."""

    def run(*command: str) -> None:
        subprocess.run(command, check=True, cwd=folder, user=user, stdout=subprocess.DEVNULL, timeout=900)

    run(f"{programs}/initdb", "-D", "data", "--auth=trust", "--username=hedgerow", "--encoding=UTF8", "--no-sync")
    options = f"-k {folder} -c listen_addresses= -c fsync=off"
    run(f"{programs}/pg_ctl", "-D", "data", "-w", "-t", "600", "-l", "log", "-o", options, "start")
    try:
        url = f"postgresql://hedgerow:canary@/postgres?host={folder}"
        with driver.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
            for statement in TABLES.split(";\n")[:-1]:
                cursor.execute(statement)
        yield url
    finally:
        run(f"{programs}/pg_ctl", "-D", "data", "-m", "immediate", "stop")


def test_postgresql_gives_what_a_file_gives(server: str, tmp_path: Path) -> None:
    """Numbers, categories, missing values and labels, whatever the size of the chunks."""
    plan = make_plan()
    lines = [
        f"{i % 5},{10 * i},{('north', 'south', 'elsewhere', '')[i % 4]},{i / 50 - 0.5},{('no', 'yes')[i % 2]}"
        for i in range(ROWS)
    ]
    (tmp_path / "site.csv").write_text("\n".join(["age,income,region,change,y", *lines]) + "\n")
    from_file, _ = site_data_from_records(read_records(tmp_path / "site.csv", plan), plan)
    for chunk_rows in (7, 100_000):
        records = read_records(f"{server}#select * from patients order by key", plan, chunk_rows=chunk_rows)
        from_query, _ = site_data_from_records(records, plan)
        assert np.array_equal(from_query.codes, from_file.codes)
        assert np.array_equal(from_query.labels, from_file.labels)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["double precision", "numeric"])
def test_no_size_of_a_number_makes_an_omop_query_fail(server: str, kind: str) -> None:
    """PostgreSQL ends a query for a product, or a cast, that is too large or too small for a double: none is asked."""
    driver = pytest.importorskip("adbc_driver_postgresql.dbapi")
    sizes = (*test_omop.SIZES, *(["1e-400", "1e400"] if kind == "numeric" else []))
    with driver.connect(server, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in ("drop schema if exists sizes cascade", "create schema sizes", "set search_path to sizes"):
            cursor.execute(statement)
        for statement in test_omop.SCHEMA.replace("DOUBLE PRECISION", kind).split(";\n")[:-1]:
            cursor.execute(statement)
        assert test_omop.read_sizes(cursor, "postgresql", sizes) == test_omop.expect_sizes(sizes)


@pytest.mark.slow
@pytest.mark.parametrize("definition", [test_omop.make_definition(), test_omop.SURVIVAL], ids=["binary", "survival"])
def test_an_omop_database_gives_what_duckdb_gives(server: str, definition: Any, tmp_path: Path) -> None:
    """One definition makes the same rows of the same records in both databases that run it.

    A person whose observation has no end, or no beginning, ends neither query.
    """
    random, plan = np.random.default_rng(4), Plan.from_dict(fill_plan(definition))
    persons: list[dict[str, Any]] = [
        {"sex": int(random.choice([8507, 8532, 0])), "written": "F", "born": 1950 + number, "entries": [400],
         "periods": [(0, int(random.integers(400, 700)))], "conditions": [(2, 400)], "drugs": [(10, 390)],
         "visits": [(30, int(at)) for at in random.integers(300, 600, 3)], "deaths": [450] * (number % 2),
         "values": [(390, float(number), 8753), (380, 100.0, 8840)]}
        for number in range(20)
    ]  # fmt: skip
    driver = pytest.importorskip("adbc_driver_postgresql.dbapi")
    with driver.connect(server, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in ("drop schema if exists omop cascade", "create schema omop", "set search_path to omop"):
            cursor.execute(statement)
        for statement in test_omop.SCHEMA.split(";\n")[:-1]:
            cursor.execute(statement)
        test_omop.fill(cursor, list(enumerate(persons)))
        places = [f"{server}&options=-csearch_path%3Domop", test_omop.make_file(tmp_path / "omop.duckdb", persons)]
        with duckdb.connect(str(tmp_path / "omop.duckdb")) as other:
            for whose, change in enumerate(("end_date = 'infinity'", "start_date = '-infinity'")):
                for place in (cursor, other):
                    place.execute(
                        f"UPDATE observation_period SET observation_period_{change} WHERE person_id = {whose}"
                    )
    found = [read_site_data(place, plan)[0] for place in places]
    assert found[0].n_records > 5
    assert np.array_equal(found[0].codes, found[1].codes) and np.array_equal(found[0].labels, found[1].labels)
    assert table_fit(places[0], plan).about == table_fit(places[1], plan).about


def test_postgresqls_own_types(server: str) -> None:
    """What Arrow has no type for is text if the driver makes text of it, and else refused by name, never misread."""
    location = f"{server}#select * from odd"
    names = ["small", "exact", "yes", "day", "moment", "feeling", "person"]
    assert list(read_types(location).values())[:6] == ["number", "number", "text", "date", "date", "text"]
    assert {"address", "part"}.isdisjoint(read_types(location))
    batch = next(iter(open_table(location).batches(names, 1000, None)))
    assert [column[0].as_py() for column in batch] == [
        1, "2.50", True, datetime.date(2020, 1, 31), datetime.datetime(2020, 1, 31, 8, tzinfo=datetime.UTC), "fine",
        uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ]  # fmt: skip
    person = identifiers(batch[6][:1], Place("a table", "person")).require()
    assert person.tolist() == ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]
    surveyed = read_raw(location, [Feature(name="exact", type=""), Feature(name="day", type="")])
    assert np.isnan(surveyed.columns[0].numbers).tolist() == [False, True]
    # "infinity" is a day that there is not: its own cell is missing, and no other.
    assert surveyed.columns[1].numbers[0] == 18292 and np.isnan(surveyed.columns[1].numbers[1])
    for name, kind in (("price", "money"), ("address", "inet")):
        with pytest.raises(DataError, match=kind) as caught:
            list(open_table(location).batches([name], 1000, None))
        assert caught.value.code == "data-wrong-type"


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("select age from nowhere", "data-sql"),
        ("no sql at all", "data-sql"),
        ("select 1 / (key - 2999) as age from patients", "data-sql"),
        ("select 1 as age where 1 = 0", "data-empty"),
        ("select 1 as age, 2 as age", "data-duplicate-column"),
        ("drop table patients", "data-missing-column"),
    ],
)
def test_what_postgresql_refuses_quotes_nothing(server: str, query: str, code: str) -> None:
    """Neither the query nor a value of a row, and nothing that a query changes is kept."""
    with pytest.raises(DataError) as caught:
        list(open_table(f"{server}#{query}").batches(["age"], 1000, None))
    assert caught.value.code == code and "canary" not in str(caught.value) and "division" not in str(caught.value)
    assert "age" in column_names(f"{server}#select * from patients")


def test_no_server_and_no_query(tmp_path: Path) -> None:
    """Both are said without the password that stands in the URL."""
    pytest.importorskip("adbc_driver_postgresql")
    with pytest.raises(UsageError):
        column_names("postgres://user:canary@/db")
    with pytest.raises(DataError) as caught:
        open_table(f"postgresql://user:canary@/db?host={tmp_path}#select 1").types()
    assert caught.value.code == "data-sql" and "canary" not in str(caught.value)


def test_the_door_with_another_driver(tmp_path: Path) -> None:
    """DuckDB has a driver for ADBC too: names, types, cells and blocks come by the same code as PostgreSQL's."""
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("adbc_driver_manager")
    file = tmp_path / "a.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute("create table t as select range n, range / 4 as \" x \", 'é' s from range(100000)")
        connection.execute("insert into t values (null, null, null)")

    def table(query: str) -> AdbcTable:
        return AdbcTable(f"{file}#{query}", "adbc_driver_duckdb")

    assert table("select * from t").names() == list(table("select * from t").types()) == ["n", "x", "s"]
    batches = list(table("select * from t").batches(["x", "n"], 999, None))
    assert max(len(batch[0]) for batch in batches) == 999
    assert [value for batch in batches for value in batch[1].to_pylist()] == [*range(100_000), None]
    assert batches[0][0][1].as_py() in (0.25, Decimal("0.25"))
    with pytest.raises(DataError) as caught:
        list(table("select error('canary') as n from t").batches(["n"], 999, None))
    assert caught.value.code == "data-sql" and "canary" not in str(caught.value)
