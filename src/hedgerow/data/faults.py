"""The words for a place in a site's table, and the faults of a table that take a decision to name.

Errors in a table are for the site's own operator. `what` names the file, the data row and the column but holds no
value; an offending value stands in `cause`, never a whole row. None of the three sentences may leave the site: to its
peers a node tells only `DataError.public_code`.

Data rows are counted from 1; the header is not counted.

Most of these errors are about one row. Where a site trains or evaluates with others, such a row is left out and counted
under the error's code (see `records.RowsLeftOut`), unless the site wants it refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hedgerow.errors import DataError

_SHOWN_CHARACTERS = 40
_SHOWN_NAMES = 12


@dataclass(frozen=True)
class Place:
    """Where a column's values come from: the file (or another name), the column, the number of its first data row.

    Text such as "3,5" is a number there if it has decimal commas.
    """

    source: str
    column: str
    first_row: int = 1
    has_decimal_commas: bool = False

    def at(self, index: int) -> str:
        """The words for one cell."""
        return f"{self.source}, data row {self.first_row + index}, column {self.column!r}"


def shown(value: object) -> str:
    """One cell's value, quoted and shortened."""
    try:
        text = repr(value)
    except ValueError:
        # Python does not write out whole numbers of more than 4,300 digits.
        text = f"a value of the type {type(value).__name__}, too long to show"
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def listed(names: Sequence[str]) -> str:
    """The names of columns, quoted; the first dozen of many."""
    said = ", ".join(shown(name) for name in names[:_SHOWN_NAMES])
    return said + (f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else "")


def file_error(path: str, error: OSError) -> DataError:
    """The operating system refused to open or read the file."""
    if isinstance(error, FileNotFoundError):
        return DataError("data-file-missing", path=path)
    if isinstance(error, PermissionError):
        return DataError("data-permission", path=path)
    return DataError("data-unreadable", path=path, fault=error.strerror or type(error).__name__)


def missing_columns(source: str, missing: Sequence[str], present: Sequence[str]) -> DataError:
    """The table has not all columns that the plan names."""
    return DataError(
        "data-missing-column" if len(missing) == 1 else "data-missing-columns",
        source=source,
        missing=listed(missing),
        present=listed(present),
    )
