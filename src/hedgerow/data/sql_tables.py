"""Databases, by any URL that SQLAlchemy knows, each asked with one SELECT.

What a database says of a failure may quote rows, or the password in the URL, so only the kind of the failure is passed
on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from hedgerow.data.tables import require_columns
from hedgerow.data.units import RowsLeftOut
from hedgerow.errors import DataError, EnvironmentFault, UsageError, missing_extra


def url_and_query(location: str) -> tuple[str, str]:
    """A database's URL, and the query behind "#"; UsageError, code "query-without-url", without one."""
    # A "#" may stand in a file's name, and in a query.
    place = re.search(r"#\s*(?:select|with)\b", location, re.IGNORECASE) or re.search("#", location)
    if place is None:
        raise UsageError("query-without-url")
    return location[: place.start()], location[place.start() + 1 :]


class SqlTable:
    """What a query gives; see `Table`. The database is asked when rows are read, and not before.

    Args:
        location: a URL as SQLAlchemy takes it, "#", and one SELECT whose columns are named as in the plan; others are
            ignored. Order it by a key: which rows of a unit are used must not depend on the order in which the database
            happens to give them.

    Raises:
        UsageError: code "query-without-url", without a query.
    """

    source = "The query's result"
    first_row = 1

    def __init__(self, location: str) -> None:
        self._url, self._query = url_and_query(location)

    def types(self) -> dict[str, Any]:
        """See `Table.types`: text, for a query's columns have no types before its rows."""
        return {name: pa.string() for name in self.names()}

    def names(self) -> list[str]:
        """See `Table.names`; the database is asked, and no row taken."""
        with self._asked() as result:
            return [str(name).strip() for name in result.keys()]

    def batches(
        self, names: Sequence[str], chunk_rows: int, left_out: RowsLeftOut | None
    ) -> Iterator[tuple[Any, ...]]:
        """See `Table.batches`: lists of what the driver gives.

        Raises:
            DataError: code "data-sql" when the database refuses.
            EnvironmentFault: code "missing-extra" when SQLAlchemy, or the database's own driver, is not installed.
        """
        with self._asked() as result:
            present = [str(name) for name in result.keys()]
            require_columns(self.source, names, present)
            at = [present.index(name) for name in names]
            for rows in result.partitions(chunk_rows):
                yield tuple([row[place] for row in rows] for place in at)

    @contextmanager
    def _asked(self) -> Iterator[Any]:
        """The query's result, while the database is connected."""
        try:
            import sqlalchemy
            from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError
        except ModuleNotFoundError:
            raise missing_extra("sqlalchemy", "Reading from a database") from None
        try:
            engine = sqlalchemy.create_engine(self._url)
            if engine.dialect.name == "sqlite":
                sqlalchemy.event.listen(engine, "connect", _keep_odd_bytes)
            with engine.connect().execution_options(stream_results=True) as connection:
                yield connection.execute(sqlalchemy.text(self._query))
        except (NoSuchModuleError, ModuleNotFoundError) as absent:
            raise _missing_driver(getattr(absent, "name", None)) from None
        except SQLAlchemyError as fault:
            raise DataError("data-sql", fault=type(fault).__name__) from None


def _keep_odd_bytes(connection: Any, _: object) -> None:
    """Text that is not UTF-8 stays bytes: SQLite's driver would give the whole query up because of one cell."""

    def decoded(content: bytes) -> str | bytes:
        try:
            return content.decode()
        except UnicodeDecodeError:
            return content

    connection.text_factory = decoded


def _missing_driver(module: str | None) -> EnvironmentFault:
    """Without a module's name it is the URL's own beginning that SQLAlchemy does not know."""
    return EnvironmentFault("database-driver", module=module) if module else EnvironmentFault("database-driver-unknown")
