"""What a source of tables is: it opens a place and gives a table, whose columns are read in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from hedgerow.data.faults import file_error, missing_columns
from hedgerow.data.units import RowsLeftOut
from hedgerow.errors import DataError


class Table(Protocol):
    """A table that was opened; no row of it is read yet.

    Attributes:
        source: what messages call it.
        first_row: what its first row is called there.
        has_decimal_commas: whether text such as "3,5" is a number; a table that does not say has none.

    A table whose columns have types of their own, whatever their cells are, has `is_typed = True` as well.
    """

    source: str
    first_row: int

    def types(self) -> dict[str, Any]:
        """The Arrow types of its columns by their names, without spaces around them, in its order."""

    def names(self) -> list[str]:
        """The names alone, of which some may be there twice."""

    def batches(
        self, names: Sequence[str], chunk_rows: int, left_out: RowsLeftOut | None
    ) -> Iterator[tuple[Sequence[Any], ...]]:
        """The named columns, as tuples of Arrow arrays, or lists, of at most `chunk_rows` values.

        Args: left_out: where rows that do not fit are counted; None refuses the first, and a table without rows.

        Raises:
            DataError: the table is damaged, or lacks a column: see `require_columns`.
        """


def existing_file(location: str) -> Path:
    """The path; DataError when it cannot be opened, or has no bytes."""
    file = Path(location)
    try:
        with open(file, "rb") as stream:
            first = stream.read(1)
    except OSError as error:
        raise file_error(str(file), error) from None
    if not first:
        raise DataError("data-empty", source=file)
    return file


def require_columns(source: str, wanted: Sequence[str], present: Sequence[str]) -> None:
    """Raise DataError unless each column that is wanted is there once."""
    for name in wanted:
        if present.count(name) > 1:
            raise DataError("data-duplicate-column", source=source, column=name)
    missing = [name for name in wanted if name not in present]
    if missing:
        raise missing_columns(source, missing, present)


def rechunked(batches: Iterator[tuple[Any, ...]], chunk_rows: int, source: str | None) -> Iterator[tuple[Any, ...]]:
    """Batches cut to at most `chunk_rows`, without empty ones; refused when there are none, if `source` is named."""
    seen = 0
    for batch in batches:
        n_rows = len(batch[0])
        seen += n_rows
        for start in range(0, n_rows, chunk_rows):
            yield tuple(column.slice(start, chunk_rows) for column in batch)
    if not seen and source is not None:
        raise DataError("data-empty", source=source)
