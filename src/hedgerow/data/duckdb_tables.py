"""DuckDB databases, asked with one SELECT; their columns come as Arrow, block by block, and not row by row.

A database's columns have types, so what a cell becomes depends on that cell alone. A CSV or JSON file that a query
itself names has none: DuckDB guesses them from the rows, and one row could turn what all others count as. So a query
may read its database, and nothing beside it; name such a file to Hedgerow instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from hedgerow.data.sql_tables import url_and_query
from hedgerow.data.tables import existing_file, rechunked, require_columns
from hedgerow.data.units import RowsLeftOut
from hedgerow.errors import DataError, missing_extra

_SCHEME = "duckdb:///"
_ALONE: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "python_enable_replacements": False,
}
"""A query reads neither files, nor variables of this program."""
_ROWS_PER_BLOCK = 65536


class DuckDbTable:
    """What a query gives; see `Table`. The database is opened for reading only, when rows are read and not before.

    Args:
        location: "duckdb:///" and the file, "#", and one SELECT whose columns are named as in the plan; see `SqlTable`.

    Raises:
        UsageError: code "query-without-url", without a query.
    """

    source = "The query's result"
    first_row = 1

    def __init__(self, location: str) -> None:
        url, self._query = url_and_query(location)
        self._file = url[len(_SCHEME) :] if url.lower().startswith(_SCHEME) else url.partition("://")[2]

    def types(self) -> dict[str, Any]:
        """See `Table.types`."""
        with self._asked(1) as reader:
            return {field.name.strip(): field.type for field in reader.schema}

    def names(self) -> list[str]:
        """See `Table.names`."""
        with self._asked(1) as reader:
            return [name.strip() for name in reader.schema.names]

    def batches(
        self, names: Sequence[str], chunk_rows: int, left_out: RowsLeftOut | None
    ) -> Iterator[tuple[Any, ...]]:
        """See `Table.batches`.

        Raises:
            DataError: code "data-sql" when the database refuses.
            EnvironmentFault: code "missing-extra" when DuckDB is not installed.
        """
        return rechunked(self._columns(names), chunk_rows, None if left_out is not None else self.source)

    def _columns(self, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        with self._asked(_ROWS_PER_BLOCK) as reader:
            present = [name.strip() for name in reader.schema.names]
            require_columns(self.source, names, present)
            at = [present.index(name) for name in names]
            for batch in reader:
                yield tuple(batch.column(place) for place in at)

    @contextmanager
    def _asked(self, block_rows: int) -> Iterator[Any]:
        """A reader of the query's result, while the database is open."""
        try:
            import duckdb
        except ModuleNotFoundError:
            raise missing_extra("duckdb", "Reading from a DuckDB database") from None
        existing_file(self._file)
        try:
            with duckdb.connect(self._file, read_only=True, config=_ALONE) as connection:
                result = connection.sql(self._query)
                if result is None:
                    raise DataError("data-sql", fault="NoRows")
                # Older versions have the older name alone.
                is_new = hasattr(result, "to_arrow_reader")
                yield result.to_arrow_reader(block_rows) if is_new else result.fetch_arrow_reader(block_rows)
        except (duckdb.Error, pa.ArrowException, OSError) as fault:
            # What a database says of a failure may quote rows; in the middle of them, Arrow says it.
            raise DataError("data-sql", fault=type(fault).__name__) from None
