"""DuckDB databases, asked with one SELECT; their columns come as Arrow, block by block, and not row by row.

A database's columns have types, so what a cell becomes depends on that cell alone. A CSV or JSON file that a query
itself names has none: DuckDB guesses them from the rows, and one row could turn what all others count as. So a query
may read its database, and nothing beside it; name such a file to Hedgerow instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from hedgerow.data.sql_tables import TypedQuery
from hedgerow.data.tables import existing_file
from hedgerow.errors import DataError, missing_extra

_ALONE: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "python_enable_replacements": False,
}
"""A query reads neither files, nor variables of this program."""


class DuckDbTable(TypedQuery):
    """What a query gives; see `Table`. The database is opened for reading only, when rows are read and not before.

    Args:
        location: "duckdb:///" and the file, "#", and one SELECT whose columns are named as in the plan.

    Raises:
        UsageError: code "query-without-url", without a query.
    """

    @contextmanager
    def _asked(self, block_rows: int) -> Iterator[Any]:
        """A reader of the query's result, while the database is open."""
        try:
            import duckdb
        except ModuleNotFoundError:
            raise missing_extra("duckdb", "Reading from a DuckDB database") from None
        file = self._url.partition("://")[2].removeprefix("/")
        existing_file(file)
        try:
            with duckdb.connect(file, read_only=True, config=_ALONE) as connection:
                result = connection.sql(self._query)
                if result is None:
                    raise DataError("data-sql", fault="NoRows")
                # Older versions have the older name alone.
                is_new = hasattr(result, "to_arrow_reader")
                yield result.to_arrow_reader(block_rows) if is_new else result.fetch_arrow_reader(block_rows)
        except (duckdb.Error, pa.ArrowException, OSError) as fault:
            # What a database says of a failure may quote rows; in the middle of them, Arrow says it.
            raise DataError("data-sql", fault=type(fault).__name__) from None
