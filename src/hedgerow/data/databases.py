# SPDX-License-Identifier: Apache-2.0
"""Read databases with one SELECT each: those of SQLAlchemy, and those that return Arrow.

A database whose columns have types returns Arrow, block by block and not row by row (`TypedQuery`): DuckDB, and
PostgreSQL and others with an ADBC driver. The result of a cell depends on that cell alone. So Hedgerow uses nothing
that guesses a type from rows, because one row could then change the values of all others: neither a driver that infers
a column's type from its first rows, as that of ADBC for SQLite does, nor a CSV or JSON file that a query of DuckDB
names. A query may therefore read its database and nothing else; name such a file to Hedgerow instead.

Other databases return rows of cells; SQLite has a type for each cell. A database's error message may quote rows, or the
password in the URL. So only the kind of the failure is passed on, and which table or column does not exist.
"""

from __future__ import annotations

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from hedgerow.data.tables import existing_file, rechunk, require_columns
from hedgerow.data.units import RowsLeftOut
from hedgerow.errors import DataError, EnvironmentFault, HedgerowError, UsageError, missing_extra
from hedgerow.plan.fields import escape_for_terminal

_ROWS_PER_FETCH = 256
"""Rows per fetch: with more than 700 new objects at once, Python runs its garbage collector again and again."""


_QUERY = re.compile(r"#\s*(?:select|with)\b", re.IGNORECASE)
"""Beginning of a query. A "#" alone is not enough: it may stand in a file's name, and in a query."""


def find_database_file(location: str) -> str | None:
    """Return the file of a DuckDB or SQLite database at a URL; None for any other database."""
    place = _find_query(location)
    url = location if place is None else location[: place.start()]
    kind = url.partition("://")[0].lower().partition("+")[0]
    if kind == "duckdb":
        return _find_duckdb_file(url)
    if kind != "sqlite":
        return None
    try:
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError
    except ModuleNotFoundError:
        # Without SQLAlchemy no row can be read either.
        return None
    try:
        parsed = make_url(url)
    except ArgumentError:
        return None
    file = parsed.database or ""
    if file.startswith("file:") and "uri" in parsed.query:
        file = unquote(urlsplit(file).path)
    return None if file in ("", ":memory:") else file


def _find_duckdb_file(url: str) -> str | None:
    # The path follows an empty host and "/".
    file = url.partition("://")[2].removeprefix("/")
    return None if file in ("", ":memory:") else file


def _find_query(location: str) -> re.Match[str] | None:
    return _QUERY.search(location) or re.search("#", location)


class _Query:
    """The result of a query; see `Table`. The database is asked only when rows are read.

    Args:
        location: a URL, "#", and one SELECT whose columns are named as in the plan; other columns are ignored. Order it
            by a key: the choice of a unit's rows must not depend on the order in which the database happens to return
            them.

    Raises:
        UsageError: code "query-without-url", without a query.
    """

    source = "The query's result"
    first_row = 1

    def __init__(self, location: str) -> None:
        place = _find_query(location)
        if place is None:
            raise UsageError("query-without-url")
        self._url, self._query = location[: place.start()], location[place.start() + 1 :]

    def _locate(self, names: Sequence[str], present: Sequence[str]) -> list[int]:
        """Return the positions of the wanted columns; raise DataError unless each is there once."""
        require_columns(self.source, names, present)
        return [present.index(name) for name in names]


class TypedQuery(_Query, ABC):
    """A query to a database whose columns have types; it returns Arrow; see `Table`."""

    is_typed = True
    rows_per_block = 65536

    def keep_remainder(self, column: str, number: int, n_parts: int) -> None:
        """Restrict the query to rows whose whole number leaves this remainder by `n_parts`.

        Rows without a number belong to the remainder 0.
        """
        name = '"' + column.replace('"', '""') + '"'
        # SQL's remainder of a negative number is negative.
        inside = f"mod({name}, {n_parts}) in ({number}, {number - n_parts})" + f" or {name} is null" * (number == 0)
        self._query = f"select * from ({self._query.rstrip().rstrip(';')}\n) as whole_table where {inside}"

    def types(self) -> dict[str, Any]:
        """Ask the database for the types of the query's columns; read no row."""
        with self._execute(1) as reader:
            return {field.name.strip(): self._read_type(field) for field in reader.schema}

    def names(self) -> list[str]:
        """Ask the database for the names of the query's columns; read no row."""
        with self._execute(1) as reader:
            return [name.strip() for name in reader.schema.names]

    def batches(self, names: Sequence[str], chunk_rows: int, left_out: RowsLeftOut | None) -> Iterator[tuple[Any, ...]]:
        """Yield the named columns in chunks of rows.

        Raises:
            DataError: code "data-sql" when the database refuses.
            EnvironmentFault: code "missing-extra" when the database's driver is not installed.
        """
        return rechunk(self._read_columns(names), chunk_rows, None if left_out is not None else self.source)

    def _read_columns(self, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        with self._execute(self.rows_per_block) as reader:
            at = self._locate(names, [name.strip() for name in reader.schema.names])
            for place in at:
                self._require_meant(reader.schema.field(place))
            for batch in reader:
                yield tuple(batch.column(place) for place in at)

    def _read_type(self, field: Any) -> Any:
        """Return the Arrow type that a column counts as."""
        return field.type

    def _require_meant(self, field: Any) -> None:
        """Raise DataError "data-column-type" if a column's cells are not of the type that it declares."""

    @abstractmethod
    def _execute(self, block_rows: int) -> AbstractContextManager[Any]:
        """Yield an Arrow reader of the query's result while the database is open.

        The database's own errors become "data-sql".
        """


class SqlTable(_Query):
    """The result of a query, row by row, from any URL that SQLAlchemy knows; see `Table`."""

    def types(self) -> dict[str, Any]:
        """Return text as the type of each column: the query gives no types before its rows."""
        return {name: pa.string() for name in self.names()}

    def names(self) -> list[str]:
        """Ask the database for the names of the query's columns; read no row."""
        with self._execute() as result:
            return [str(name).strip() for name in result.keys()]

    def batches(self, names: Sequence[str], chunk_rows: int, left_out: RowsLeftOut | None) -> Iterator[tuple[Any, ...]]:
        """Yield the named columns in chunks of rows, as lists of the driver's values.

        Raises:
            DataError: code "data-sql" when the database refuses.
            EnvironmentFault: code "missing-extra" when SQLAlchemy, or the database's own driver, is not installed.
        """
        with self._execute() as result:
            at = self._locate(names, [str(name).strip() for name in result.keys()])
            yield from _in_columns(result.fetchmany, at, chunk_rows)

    @contextmanager
    def _execute(self) -> Iterator[Any]:
        """Yield the query's result while the database is connected."""
        try:
            import sqlalchemy
            from sqlalchemy.exc import NoSuchModuleError
        except ModuleNotFoundError:
            raise missing_extra("sqlalchemy", "Reading from a database") from None
        with _refuse_faults():
            try:
                engine = sqlalchemy.create_engine(self._url)
                if engine.dialect.name == "sqlite":
                    sqlalchemy.event.listen(engine, "connect", _keep_odd_bytes)
                with engine.connect().execution_options(stream_results=True) as connection:
                    yield connection.execute(sqlalchemy.text(self._query))
            except (NoSuchModuleError, ModuleNotFoundError) as absent:
                # Without a module's name, SQLAlchemy does not know the beginning of the URL.
                module = getattr(absent, "name", None) or "the one that the URL names"
                raise EnvironmentFault("database-driver", module=module) from None


def _in_columns(
    fetch: Callable[[int], Sequence[Sequence[Any]]], at: Sequence[int], chunk_rows: int
) -> Iterator[tuple[list[Any], ...]]:
    """Yield the cells of the columns at some positions, as lists of at most `chunk_rows`."""
    while True:
        columns: tuple[list[Any], ...] = tuple([] for _ in at)
        n_rows = 0
        while n_rows < chunk_rows and (rows := fetch(min(_ROWS_PER_FETCH, chunk_rows - n_rows))):
            n_rows += len(rows)
            for column, place in zip(columns, at, strict=True):
                column.extend([row[place] for row in rows])
        if not n_rows:
            return
        yield columns


def _keep_odd_bytes(connection: Any, _: object) -> None:
    """Keep text that is not UTF-8 as bytes.

    SQLite's driver would otherwise fail the whole query because of one cell.
    """

    def decode(content: bytes) -> str | bytes:
        try:
            return content.decode()
        except UnicodeDecodeError:
            return content

    connection.text_factory = decode


_ALONE: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "python_enable_replacements": False,
}
"""DuckDB settings by which a query can read neither files nor variables of this program."""


class DuckDbTable(TypedQuery):
    """The result of a query to a DuckDB file; see `Table`.

    The database is opened for reading only, and only when rows are read.

    Args:
        location: "duckdb:///" and the file, "#", and one SELECT whose columns are named as in the plan.

    Raises:
        UsageError: code "query-without-url", without a query.
    """

    @contextmanager
    def _execute(self, block_rows: int) -> Iterator[Any]:
        """Yield a reader of the query's result while the database is open."""
        try:
            import duckdb
        except ModuleNotFoundError:
            raise missing_extra("duckdb", "Reading from a DuckDB database") from None
        file = self._url.partition("://")[2].removeprefix("/")
        existing_file(file)
        with _refuse_faults(), duckdb.connect(file, read_only=True, config=_ALONE) as connection:
            result = connection.sql(self._query)
            if result is None:
                raise DataError("data-sql", fault="NoRows")
            # Older versions of DuckDB only have the older name.
            is_new = hasattr(result, "to_arrow_reader")
            yield result.to_arrow_reader(block_rows) if is_new else result.fetch_arrow_reader(block_rows)


class AdbcTable(TypedQuery):
    """The result of a query through an ADBC driver; see `Table`. Nothing is committed.

    Args:
        location: a URL as the driver takes it, "#", and one SELECT whose columns are named as in the plan.
        driver: the module of the driver, a key of `errors.OPTIONAL`.

    Raises:
        UsageError: code "query-without-url", without a query.
    """

    def __init__(self, location: str, driver: str = "adbc_driver_postgresql") -> None:
        super().__init__(location)
        self._driver = driver

    def _read_type(self, field: Any) -> Any:
        # The driver returns a numeric as text, digit by digit.
        return pa.decimal128(38) if _own_type(field) == "numeric" else field.type

    def _require_meant(self, field: Any) -> None:
        """Refuse a column whose type the driver does not know and returns as the server's bytes."""
        own = _own_type(field)
        if own not in ("", "numeric"):
            raise DataError("data-column-type", source=self.source, column=field.name, found=own)

    @contextmanager
    def _execute(self, block_rows: int) -> Iterator[Any]:
        """Run the query and yield a reader of its rows; the driver chooses the size of blocks."""
        try:
            driver = importlib.import_module(f"{self._driver}.dbapi")
        except ModuleNotFoundError:
            raise missing_extra(self._driver, "Reading from this database") from None
        with (
            _refuse_faults(),
            closing(driver.connect(self._url)) as connection,
            closing(connection.cursor()) as cursor,
        ):
            cursor.execute(self._query)
            with cursor.fetch_record_batch() as reader:
                yield reader


@contextmanager
def _refuse_faults() -> Iterator[None]:
    """Turn whatever a driver raises, even for one cell, into the error "data-sql".

    The error has the kind of the fault, and which table or column does not exist. Other words of the fault may quote
    rows.
    """
    try:
        yield
    except HedgerowError:
        raise
    except Exception as fault:
        kind, missing = type(fault).__name__, ("42P01", "42703", "42501")
        if kind in ("CatalogException", "BinderException") or getattr(fault, "sqlstate", "") in missing:
            kind += escape_for_terminal(": " + re.sub(r".*(?:Error|ERROR): *", "", str(fault).partition("\n")[0]))
        raise DataError("data-sql", fault=kind) from None


def _own_type(field: Any) -> str:
    """Return the server's name of a type that Arrow does not have; "" for others."""
    known = field.metadata or {}
    # The driver returns money as a plain number of cents.
    is_money = known.get(b"POSTGRESQL:type") == b"money"
    return "money" if is_money else str(known.get(b"ADBC:postgresql:typname", b"").decode())
