"""PostgreSQL, and other databases with a driver for ADBC whose columns have declared types, as Arrow, block by block.

A driver that infers a column's type from its first rows, as that of SQLite does, is not for here: one row could turn
what all others count as.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa

from hedgerow.data.sql_tables import TypedQuery
from hedgerow.errors import DataError, missing_extra


class AdbcTable(TypedQuery):
    """What a query gives; see `Table`. Nothing is committed.

    Args:
        location: a URL as the driver takes it, "#", and one SELECT whose columns are named as in the plan.
        driver: the module of the driver, a key of `errors.OPTIONAL`.

    Raises:
        UsageError: code "query-without-url", without a query.
    """

    def __init__(self, location: str, driver: str = "adbc_driver_postgresql") -> None:
        super().__init__(location)
        self._driver = driver

    def _type(self, field: Any) -> Any:
        """See `TypedQuery._type`."""
        # It comes as text, digit by digit.
        return pa.decimal128(38) if _own_type(field) == "numeric" else field.type

    def _require_meant(self, field: Any) -> None:
        """See `TypedQuery._require_meant`: the driver gives a type unknown to it as the server's bytes."""
        own = _own_type(field)
        if own not in ("", "numeric"):
            raise DataError("data-column-type", source=self.source, column=field.name, found=own)

    @contextmanager
    def _asked(self, block_rows: int) -> Iterator[Any]:
        """See `TypedQuery._asked`; the driver decides on the blocks."""
        try:
            driver = importlib.import_module(f"{self._driver}.dbapi")
        except ModuleNotFoundError:
            raise missing_extra(self._driver, "Reading from this database") from None
        try:
            with closing(driver.connect(self._url)) as connection, closing(connection.cursor()) as cursor:
                cursor.execute(self._query)
                with cursor.fetch_record_batch() as reader:
                    yield reader
        except (driver.Error, pa.ArrowException, OSError) as fault:
            raise DataError("data-sql", fault=type(fault).__name__) from None


def _own_type(field: Any) -> str:
    """The name of a type of the server's for which Arrow has none; "" for others."""
    known = field.metadata or {}
    # Money comes as a plain number, of cents.
    is_money = known.get(b"POSTGRESQL:type") == b"money"
    return "money" if is_money else str(known.get(b"ADBC:postgresql:typname", b"").decode())
