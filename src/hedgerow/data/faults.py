"""Every way in which a site's table can fail to fit the plan, each with its own stable code.

These errors are for the site's own operator. `what` names the file, the data row and the column but holds no value;
an offending value stands in `cause`, never a whole row. None of the three sentences may leave the site: to its peers a
node tells only `DataError.public_code`.

Data rows are counted from 1; the header is not counted.

Most of these are about one row. Where a site trains or evaluates with others, such a row is left out and counted under
the error's code (see `records.RowsLeftOut`), unless the site wants it refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hedgerow.errors import DataError

FILE_MISSING = "data-file-missing"
PERMISSION = "data-permission"
UNREADABLE = "data-unreadable"
UNKNOWN_FORMAT = "data-unknown-format"
EMPTY = "data-empty"
MISSING_COLUMN = "data-missing-column"
DUPLICATE_COLUMN = "data-duplicate-column"
WRONG_TYPE = "data-wrong-type"
RAGGED_ROW = "data-ragged-row"
LONG_ROW = "data-long-row"
TRUNCATED = "data-truncated"
ENCODING = "data-encoding"
CORRUPT = "data-corrupt"
LABEL_OUTSIDE = "data-label-outside"
LABEL_MISSING = "data-label-missing"
UNIT_MISSING = "data-unit-missing"
LENGTHS = "data-lengths"

_SHOWN_CHARACTERS = 40
_SHOWN_NAMES = 12


@dataclass(frozen=True)
class Place:
    """Where a column's values come from: the file (or another name), the column, the number of its first data row."""

    source: str
    column: str
    first_row: int = 1

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


def _names(names: Sequence[str]) -> str:
    listed = ", ".join(shown(name) for name in names[:_SHOWN_NAMES])
    return listed + (f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else "")


def file_error(path: str, error: OSError) -> DataError:
    """The operating system refused to open or read the file."""
    if isinstance(error, FileNotFoundError):
        return DataError(
            f"{path}: there is no such file.",
            cause="The path may be misspelled, or relative to another folder.",
            remedy="Give the path of a .csv, .csv.gz or .parquet file.",
            code=FILE_MISSING,
        )
    if isinstance(error, PermissionError):
        return DataError(
            f"{path}: this user may not read the file.",
            remedy="Give the account that runs the node permission to read it (chmod, chown).",
            code=PERMISSION,
        )
    return DataError(
        f"{path}: the file cannot be read.",
        cause=f"The system says: {error.strerror or type(error).__name__}.",
        remedy="Check that it is a regular file on a disk that is mounted and healthy.",
        code=UNREADABLE,
    )


def unknown_format(path: str) -> DataError:
    return DataError(
        f"{path}: the ending of its name is none that Hedgerow reads.",
        remedy="Save the table as .csv, .csv.gz or .parquet.",
        code=UNKNOWN_FORMAT,
    )


def empty(source: str) -> DataError:
    return DataError(
        f"{source}: there are no data rows.",
        cause="The file is empty, or holds a header only.",
        remedy="Export the table again; a site without rows should not take part.",
        code=EMPTY,
    )


def missing_columns(source: str, missing: Sequence[str], present: Sequence[str]) -> DataError:
    one = len(missing) == 1
    semicolons = len(present) == 1 and ";" in present[0]
    found = "The header is one field with semicolons in it." if semicolons else f"The columns are: {_names(present)}."
    return DataError(
        f"{source}: the column{'' if one else 's'} {_names(missing)} of the plan {'is' if one else 'are'} missing.",
        cause=found,
        remedy="Export it with commas between the fields." if semicolons else "Rename or add the column, or ask for "
        "another plan; names are matched exactly, in upper and lower case.",
        code=MISSING_COLUMN,
    )


def missing_label(source: str, label: str, present: Sequence[str]) -> DataError:
    """Of a table from which a plan is drafted."""
    fault = missing_columns(source, [label], present)
    fault.what = f"{source}: there is no column {label!r}."
    if ";" not in present[0]:
        fault.remedy = f"Correct --label; the columns are: {_names(present)}. Upper and lower case differ."
        fault.cause = "The name may be misspelled."
    return fault


def duplicate_column(source: str, column: str) -> DataError:
    return DataError(
        f"{source}: two columns are called {column!r}.",
        cause="It would be a guess which of them the plan means.",
        remedy="Rename or remove one of them.",
        code=DUPLICATE_COLUMN,
    )


def wrong_type(place: Place, index: int, value: object) -> DataError:
    comma = isinstance(value, str) and "," in value
    return DataError(
        f"{place.at(index)}: the plan says numeric, and this is not a number.",
        cause=f"The value is {shown(value)}{' (a decimal comma?)' if comma else ''}.",
        remedy="Write numbers with a point; leave a missing value empty; or make the feature categorical in the plan.",
        code=WRONG_TYPE,
    )


def wrong_column_type(place: Place, found: str) -> DataError:
    return DataError(
        f"{place.source}, column {place.column!r}: the plan does not fit a column of type {found}.",
        cause="Hedgerow reads numbers, text and true/false.",
        remedy="Turn the column into a number (such as days since a date) or into text.",
        code=WRONG_TYPE,
    )


def unreadable(place: Place, index: int, value: object) -> DataError:
    return DataError(
        f"{place.at(index)}: this is neither a number nor text.",
        cause=f"The value is {shown(value)}, of type {type(value).__name__}.",
        remedy="Write a number, text, or true or false; leave a missing value empty.",
        code=WRONG_TYPE,
    )


def ragged_row(source: str, row: int, expected: int, found: int) -> DataError:
    return DataError(
        f"{source}, data row {row}: it has {found} fields where the header has {expected}.",
        cause="A field may hold a comma or an opening quotation mark without being quoted, or the export broke off.",
        remedy="Quote such fields, or export the table again.",
        code=RAGGED_ROW,
    )


def long_row(source: str, megabytes: int) -> DataError:
    return DataError(
        f"{source}: one row is longer than {megabytes} MB.",
        cause="A quotation mark that is never closed makes one field of all that follows.",
        remedy="Close or remove the quotation mark, or save the table as .parquet.",
        code=LONG_ROW,
    )


def truncated(source: str) -> DataError:
    return DataError(
        f"{source}: the compressed file ends too early.",
        cause="A copy or a download broke off.",
        remedy="Copy it again and check it with `gzip -t`.",
        code=TRUNCATED,
    )


def encoding(source: str, row: int | None) -> DataError:
    where = "the header" if row == 0 else "a row" if row is None else f"data row {row}"
    return DataError(
        f"{source}, {where}: the text is not UTF-8.",
        cause="Spreadsheets often save in a national encoding such as Windows-1252, or in UTF-16.",
        remedy='Save it as "CSV UTF-8", or convert it: iconv -f WINDOWS-1252 -t UTF-8.',
        code=ENCODING,
    )


def corrupt(source: str, kind: str) -> DataError:
    return DataError(
        f"{source}: the file is not valid {kind}.",
        cause=f"It was damaged, or its name says {kind} and its content is something else.",
        remedy="Export or copy it again.",
        code=CORRUPT,
    )


def label_outside(place: Place, index: int, value: object) -> DataError:
    return DataError(
        f"{place.at(index)}: the label is none of the plan's classes.",
        cause=f"The value is {shown(value)}.",
        remedy="Remove or correct such rows, or ask for a plan whose label.classes lists this class.",
        code=LABEL_OUTSIDE,
    )


def label_missing(place: Place, index: int) -> DataError:
    return DataError(
        f"{place.at(index)}: the label is missing.",
        remedy="Remove rows without a label: nothing can be learned from them.",
        code=LABEL_MISSING,
    )


def unit_missing(place: Place, index: int) -> DataError:
    return DataError(
        f"{place.at(index)}: the identifier is missing.",
        cause="The plan protects all rows of one identifier together (privacy.unit), so each row needs one.",
        remedy="Fill it in, or give each such row an identifier of its own if it is nobody else's.",
        code=UNIT_MISSING,
    )


def unit_ambiguous(place: Place, index: int, value: object) -> DataError:
    return DataError(
        f"{place.at(index)}: the identifier is a floating-point number that stands for several whole numbers.",
        cause=f"The value is {shown(value)}; from 2^53 on such numbers have gaps, and two people may share one.",
        remedy="Store identifiers as whole numbers or as text. A column of whole numbers becomes one of floating-point "
        "numbers in some programs when a value is missing.",
        code=UNIT_MISSING,
    )


def different_lengths(source: str) -> DataError:
    return DataError(
        f"{source}: its columns differ in length.",
        remedy="Give every column one value per record.",
        code=LENGTHS,
    )
