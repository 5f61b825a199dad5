"""How long a million rows of five columns take from each source: the cells alone, and until they are codes of a plan.

Made-up rows: two numbers that are not whole, one that is, four regions, two classes. Seconds of processor time of this
process (a server's own are not in it) and, behind the stroke, of the clock; the least of several readings.
"""

from __future__ import annotations

import functools
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as arrow_parquet

from experiments import harness
from hedgerow.data.sources import opened, place_of
from hedgerow.data.tables import Table
from hedgerow.data.units import needed_columns, records_from_columns
from hedgerow.plan.plan import Plan

REGIONS = ("north", "south", "east", "west")
CLASSES = ("no", "yes")
PLAN = Plan.from_dict({
    "version": 1,
    "privacy": {"epsilon": 1, "delta": 1e-6, "n_records": 10**6},
    "label": {"name": "y", "type": "binary", "classes": list(CLASSES)},
    "features": [
        {"name": "age", "type": "numeric", "min": 0, "max": 100},
        {"name": "income", "type": "numeric", "min": 0, "max": 50000},
        {"name": "change", "type": "numeric", "min": -3, "max": 3},
        {"name": "region", "type": "categorical", "categories": list(REGIONS)},
    ],
})  # fmt: skip
QUERY = "#select * from hedgerow_sources"


def main(argv: list[str]) -> int:
    """Print seconds by source."""
    parser = harness.arguments("sources", __doc__, rows=(10**6, "rows"), readings=(3, "readings of each source"))
    parser.add_argument("--postgresql", help="a database's URL; the table hedgerow_sources is made there and dropped")
    options = parser.parse_args(argv)
    rows = made_up(options.rows)
    print(f"{'source':<28} {'cells':>13} {'codes':>13}   (s of processor / s)")
    with tempfile.TemporaryDirectory() as folder:
        for name, open_table in _in_files(rows, Path(folder)):
            _print(name, open_table, options.readings)
    if options.postgresql:
        _in_postgresql(rows, options.postgresql, options.readings)
    return 0


def made_up(n: int) -> pa.Table:
    """Five columns of so many rows."""
    draws = np.random.default_rng(1)
    columns = {
        "age": draws.normal(50, 10, n).round(1),
        "income": draws.integers(0, 50_000, n),
        "change": draws.normal(size=n),
        "region": pa.array(np.array(REGIONS)[draws.integers(0, 4, n)]),
        "y": pa.array(np.array(CLASSES)[draws.integers(0, 2, n)]),
    }
    return pa.table(columns)


def _in_files(rows: pa.Table, folder: Path) -> Iterator[tuple[str, Callable[[], Table]]]:
    """Each source whose table is a file, and how it is opened."""
    import duckdb

    arrow_csv.write_csv(rows, folder / "t.csv")
    yield "CSV", lambda: opened(folder / "t.csv")
    arrow_parquet.write_table(rows, folder / "t.parquet")
    yield "Parquet", lambda: opened(folder / "t.parquet")
    with duckdb.connect(str(folder / "t.duckdb")) as connection:
        connection.register("given", rows)
        connection.execute("create table hedgerow_sources as select * from given")
    yield "DuckDB", lambda: opened(f"duckdb:///{folder}/t.duckdb{QUERY}")
    with sqlite3.connect(folder / "t.db") as database:
        database.execute("create table hedgerow_sources (age real, income integer, change real, region text, y text)")
        columns = [column.to_pylist() for column in rows.columns]
        database.executemany("insert into hedgerow_sources values (?, ?, ?, ?, ?)", zip(*columns, strict=True))
    database.close()
    yield "SQLite", lambda: opened(f"sqlite:///{folder}/t.db{QUERY}")


def _in_postgresql(rows: pa.Table, url: str, readings: int) -> None:
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.adbc_ingest("hedgerow_sources", rows, mode="create")
        try:
            _print("PostgreSQL by ADBC", lambda: opened(f"{url}{QUERY}"), readings)
            by_rows = url.replace("://", "+psycopg2://", 1)
            _print("PostgreSQL by SQLAlchemy", lambda: opened(f"{by_rows}{QUERY}"), readings)
        finally:
            cursor.execute("drop table hedgerow_sources")


def _print(name: str, open_table: Callable[[], Table], readings: int) -> None:
    cells = _seconds(functools.partial(_cells, open_table), readings)
    codes = _seconds(functools.partial(_codes, open_table), readings)
    print(f"{name:<28} {cells:>13} {codes:>13}", flush=True)


def _cells(open_table: Callable[[], Table]) -> Iterator[Any]:
    return open_table().batches(needed_columns(PLAN, with_label=True, with_unit=None), 65536, None)


def _codes(open_table: Callable[[], Table]) -> Iterator[Any]:
    names, place = needed_columns(PLAN, with_label=True, with_unit=None), place_of(open_table())
    for batch in _cells(open_table):
        yield records_from_columns(dict(zip(names, batch, strict=True)), PLAN, table=place)


def _seconds(read: Callable[[], Iterator[Any]], readings: int) -> str:
    took = []
    for _ in range(readings):
        processor, clock = time.process_time(), time.perf_counter()
        for _block in read():
            pass
        took.append((time.process_time() - processor, time.perf_counter() - clock))
    return " / ".join(f"{seconds:.2f}" for seconds in map(min, zip(*took, strict=True)))
