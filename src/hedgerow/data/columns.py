# SPDX-License-Identifier: Apache-2.0
"""Turn one column of a table into one array: numbers, dates, category indices or identifiers.

The result of a cell depends on that cell alone, never on the rest of its column. Otherwise one person's row would
change the values of all others. The noise does not cover that. `hedgerow.data.arrow` turns all columns into Arrow
arrays, or lists of cells. Training, survey and prediction read the same texts from them:

    true and false        "true" and "false"
    a number              its decimal digits, without exponent, without idle zeros: 7, 7.0 and Decimal("7.00") are "7".
                          A float stands for the shortest number that is it alone among float64
    a date, a time        "2020-01-31", "12:30:00.5", "2020-01-31 12:30:00", with a "Z" and in UTC if it has a time
                          zone; a moment at midnight without time zone reads as its date. A period of pandas is the
                          date that it begins on. As a number a time of day is its seconds since midnight
    text, UTF-8 bytes     without spaces around it; "3.0" is "3", "7.50" is "7.5", ".5" is "0.5", "True" is "true";
                          leading zeros, plus signs and exponents stay, for "007" and "1E5" are names. An accent of its
                          own is one with its letter (Unicode's form C), for no one sees which of the two is written;
                          a text with eight or more in a row stays as it is
    None, NaN, NaT, NA    missing, as is text in `MISSING_WORDS`

Work on text is done over its distinct values, so that its cost does not grow with the number of records.

Errors in a table are for the site's own operator. `what` names the file, the data row and the column but holds no
value; an offending value stands in `cause`, never a whole row. None of the three sentences may leave the site: a node
tells its peers only `DataError.public_code`. Data rows are counted from 1, without the header. Most of these errors are
about one row. When a site trains or evaluates with others, such a row is left out and counted under the error's code
(see `units.RowsLeftOut`), unless the site wants it refused.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import re
import unicodedata
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hedgerow.data.arrow import from_numpy, is_moment, is_text, to_arrow
from hedgerow.errors import DataError
from hedgerow.plan.fields import DATE_PARTS, ISO_DATE, parse_day
from hedgerow.survey.kinds import ABSENT, DATE, NUMBER, TEXT, TRUTH
from hedgerow.trees.binning import MISSING_CATEGORY, UNKNOWN_CATEGORY

_SHOWN_CHARACTERS = 40
_SHOWN_NAMES = 12


@dataclass(frozen=True)
class Place:
    """The place of a column: its file (or another source), its name, and the number of its first data row.

    Text such as "3,5" is a number there if `has_decimal_commas` is true.
    """

    source: str
    column: str
    first_row: int = 1
    has_decimal_commas: bool = False

    def at(self, index: int) -> str:
        """Return the words that name one cell in a message."""
        return f"{self.source}, data row {self.first_row + index}, column {self.column!r}"


def quote_cell(value: object) -> str:
    """Return one cell's value, quoted and shortened."""
    try:
        text = repr(value)
    except ValueError:
        # Python does not write out whole numbers of more than 4,300 digits.
        text = f"a value of the type {type(value).__name__}, too long to show"
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def quote_names(names: Sequence[str]) -> str:
    """Return the names of columns, quoted; only the first dozen of many."""
    said = ", ".join(quote_cell(name) for name in names[:_SHOWN_NAMES])
    return said + (f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else "")


def file_error(path: str, error: OSError) -> DataError:
    """Return the error for a file that the operating system refused to open or read."""
    if isinstance(error, FileNotFoundError):
        return DataError("data-file-missing", path=path)
    if isinstance(error, PermissionError):
        return DataError("data-unreadable", code="data-permission", path=path, fault="this user may not read it")
    return DataError("data-unreadable", path=path, fault=error.strerror or type(error).__name__)


def missing_columns(source: str, missing: Sequence[str], present: Sequence[str]) -> DataError:
    """Return the error for a table that lacks columns of the plan."""
    return DataError(
        "data-missing-column",
        source=source,
        missing=quote_names(missing),
        present=quote_names(present),
    )


MISSING_WORDS = ("", "nan", "na", "n/a", "null")
"""Text that means "no value", in any case, unless the plan lists that very text as a category."""

Flags = NDArray[np.bool_]
Fault = tuple[Flags, str, Callable[[int], DataError]]
"""The rows whose cell does not fit (bool [n]), the code that says why, and a function that makes the error of one."""

_INTEGRAL_TEXT = r"^([+-]?[0-9]+)\.0*$"
_IDLE_ZEROS = r"^([+-]?[0-9]+\.[0-9]*[1-9])0+$"
_MANY_MARKS = r"[^\p{L}\p{N}\p{P}\p{S}\p{Z}\p{C}]{8,}"
_NO_ZERO = r"^([+-]?)(\.[0-9]+)$"
_NUMBER_WITHOUT_LEADING_ZEROS = re.compile(
    r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,9})?", re.ASCII
)
_SURE_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_TIME = r"^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?$"
_PERHAPS_THOUSANDS = r"^[+-]?[1-9][0-9]{0,2}\.[0-9]{3}$"
_WITH_DECIMAL_COMMA = r"^([+-]?[0-9]*),([0-9]*(?:[eE][+-]?[0-9]+)?)$"
_PERHAPS_NUMBER = r"[0-9]|[nN][aA][nN]|[iI][nN][fF]"
_TRUTHS = ("false", "true")
_MIDNIGHT = " 00:00:00"
_MAX_EXACT = 2.0**53
_MAX_EXACT_OF = {pa.float16(): 2.0**11, pa.float32(): 2.0**24}
"""Largest number up to which every whole number has a float of its own: float64, and narrower ones."""
_MAX_EXPONENT = 400
_MAX_IDENTIFIER = 64
_BUCKET_DOMAIN = b"hedgerow hashed category 1\0"


class _NotAValue:
    """Marker for a cell that is neither a number nor text."""


_UNREADABLE = _NotAValue()


@dataclass(frozen=True, eq=False)
class ReadColumn:
    """The values of a column's cells, and the cells that have none because they do not fit.

    Attributes:
        values: [n]; a cell that does not fit has NaN, a missing category or "".
        faults: why cells do not fit.
    """

    values: NDArray[Any]
    faults: Sequence[Fault] = ()

    @property
    def is_unfit(self) -> Flags:
        """Flags of the cells that do not fit, bool [n]."""
        return self._flag(self.faults)

    @property
    def is_undecodable(self) -> Flags:
        """Flags of the cells that are not in the table's encoding, bool [n]."""
        return self._flag(fault for fault in self.faults if fault[1] == "data-encoding")

    def _flag(self, faults: Iterable[Fault]) -> Flags:
        flags = np.zeros(len(self.values), dtype=np.bool_)
        for rows, _, _ in faults:
            flags |= rows
        return flags

    def require(self) -> NDArray[Any]:
        """Return the values; raise DataError for the first cell that does not fit, fault by fault."""
        for rows, _, error_at in self.faults:
            if rows.any():
                raise error_at(int(np.argmax(rows)))
        return self.values


def numbers(column: Any, place: Place) -> ReadColumn:
    """Read a column as float64 [n], with NaN for missing values; cells that are no number do not fit.

    True is 1 and false is 0, also as text. A time of day without a time zone is its seconds since midnight, also as
    text of the form 12:30:00 or 12:30:00.5.

    Raises:
        DataError: for a column type other than numbers, dates, text and true/false.
    """
    typed = to_arrow(column, place.source, place.column)
    if isinstance(typed, pa.Array) and pa.types.is_time(typed.type):
        unit = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[typed.type.unit]
        return ReadColumn(_as_floats(typed.cast(pa.int32() if pa.types.is_time32(typed.type) else pa.int64())) / unit)
    if isinstance(typed, pa.Array) and is_moment(typed.type):
        # Report each cell, not the column: one cell may have made the column one of dates.
        def refuse_moment(index: int) -> DataError:
            return _not_a_number(place.at(index), _read_value(typed, index))

        fault = _to_flags(typed.is_valid()), "data-wrong-type", refuse_moment
        return ReadColumn(np.full(len(typed), np.nan), [fault])
    if isinstance(typed, pa.Array) and not is_text(typed.type):
        return ReadColumn(_read_typed_numbers(typed, place))
    read = _parse_number_texts if isinstance(typed, pa.Array) else _read_number_objects
    found, undecodable, bad = read(typed, place.has_decimal_commas)

    def error_at(index: int) -> DataError:
        return _refuse_cell(place, index, typed, _not_a_number)

    faults = (undecodable, "data-encoding", error_at), (bad & ~undecodable, "data-wrong-type", error_at)
    return ReadColumn(found, faults)


def days(column: Any, layout: str | None, place: Place) -> ReadColumn:
    """Read a column's dates as days since 1970-01-01 (float64 [n], NaN if missing).

    Cells that are no date do not fit. A moment without a time zone is taken as UTC; days are counted to the
    microsecond.

    Args:
        layout: how text writes a date, such as "%d.%m.%Y"; None for ISO 8601. Columns and cells of a date type ignore
            it.
    """
    typed = to_arrow(column, place.source, place.column)
    if layout is not None and isinstance(typed, list):
        # Convert cell by cell: a database column may mix dates with text.
        typed = [_reformat_date(cell, layout) if isinstance(cell, str | bytes) else cell for cell in typed]
    texts = _read_texts(typed, place)
    distinct, is_absent = texts.distinct, texts.is_missing
    if layout is not None and isinstance(typed, pa.Array) and not is_moment(typed.type):
        distinct = _rewrite_dates(distinct, layout)
    found, is_read = _parse_days(distinct)

    def error_at(index: int) -> DataError:
        wanted = "ISO 8601, such as 2020-01-31" if layout is None else layout
        return DataError(
            "data-not-a-date", place=place.at(index), value=quote_cell(_read_value(typed, index)), wanted=wanted
        )

    others = (~is_read & ~is_absent & ~texts.unreadable)[texts.codes]
    return ReadColumn(found[texts.codes], [_find_unreadable(texts, place), (others, "data-wrong-type", error_at)])


def kinds(column: Any, place: Place) -> NDArray[np.int8]:
    """Return the kind of each cell by itself: int8 [n], `NUMBER` to `ABSENT` of `hedgerow.survey.kinds`.

    Numbers and ISO 8601 dates are recognized as in `numbers` and `days`; a cell that is neither of these nor text is
    `ABSENT`.

    Raises:
        DataError: for a column of a type that Hedgerow does not read.
    """
    typed = to_arrow(column, place.source, place.column)
    if isinstance(typed, pa.Array) and (pa.types.is_integer(typed.type) or pa.types.is_floating(typed.type)):
        return np.where(np.isnan(_as_floats(typed)), ABSENT, NUMBER).astype(np.int8)
    texts = _read_texts(typed, place)
    own = np.where(_parse_days(texts.distinct)[1], DATE, TEXT)
    own[_to_flags(pc.is_in(pc.utf8_lower(texts.distinct), value_set=pa.array(_TRUTHS)))] = TRUTH
    own[texts.is_missing | texts.unreadable] = ABSENT
    found = own.astype(np.int8)[texts.codes]
    is_written = isinstance(typed, pa.Array) and is_text(typed.type)
    values = numbers(texts.distinct if is_written else typed, place).values
    found[~np.isnan(values[texts.codes] if is_written else values) & (found != TRUTH)] = NUMBER
    return found


def category_indices(column: Any, categories: Sequence[str], place: Place) -> ReadColumn:
    """Return the index of each value in `categories`: int32 [n], UNKNOWN_CATEGORY or MISSING_CATEGORY.

    Values match by `as_text`: 3, 3.0 and "3.0" all match "3". If the plan lists no "true" or "false", these match "1"
    and "0", and vice versa.
    """
    texts = _read_texts(column, place)
    table = _match_categories(texts.distinct, categories)
    return ReadColumn(table[texts.codes], [_find_unreadable(texts, place)])


def list_texts(categories: Sequence[str]) -> list[str]:
    """List the texts that `category_indices` accepts for categories: as listed, and other forms.

    Forms with further trailing zeros or surrounding spaces are not among them: there is no end of these.
    """
    listed = pc.utf8_trim_whitespace(pa.array(categories, type=pa.string()))
    known = [*categories, *_with_other_forms(_write_canonically(listed).to_pylist())]
    return [form for text in known for form in (text, f"{text}.0", unicodedata.normalize("NFD", text))]


def bucket_indices(column: Any, n_buckets: int, place: Place) -> ReadColumn:
    """Return the hash bucket of each value's canonical text: int32 [n], or MISSING_CATEGORY.

    A value's bucket depends only on that value and the number of buckets, so no list has to be read off the data.
    """
    texts = _read_texts(column, place)
    canonical = _write_canonically(texts.distinct).to_pylist()
    buckets = [
        MISSING_CATEGORY if absent or text is None else hash_to_bucket(text, n_buckets)
        for text, absent in zip(canonical, texts.is_missing.tolist(), strict=True)
    ]
    values = np.array(buckets or [MISSING_CATEGORY], dtype=np.int32)[texts.codes]
    return ReadColumn(values, [_find_unreadable(texts, place)])


def hash_to_bucket(text: str, n_buckets: int) -> int:
    """Return a text's bucket (0 to n_buckets - 1): the first 8 bytes of its SHA-256 modulo `n_buckets`."""
    return int.from_bytes(hashlib.sha256(_BUCKET_DOMAIN + text.encode()).digest()[:8], "big") % n_buckets


def identifiers(column: Any, place: Place) -> ReadColumn:
    """Return each identifier as text [n], in one canonical form for text, integer and float cells.

    One unit must have one text: a table that is read in chunks may contain 7, then 7.0, then "7". A cell without an
    identifier does not fit. Nor does a float of 2^53 or more (2^24 in single precision, 2^11 in half), which stands
    for several whole numbers: it could merge the rows of two persons. Text beyond 64 characters is replaced by its
    SHA-256, so that the memory of a row does not depend on the longest text.
    """
    texts = _read_texts(column, place)

    def error_at(index: int) -> DataError:
        if texts.ambiguous[texts.codes[index]]:
            value = quote_cell(_read_value(texts.typed, index))
            return DataError("data-unit-ambiguous", place=place.at(index), value=value)
        return DataError("data-unit-missing", place=place.at(index))

    others = ((texts.is_missing | texts.ambiguous) & ~texts.unreadable)[texts.codes]
    faults = _find_unreadable(texts, place), (others, "data-unit-missing", error_at)
    distinct = [
        hashlib.sha256(text.encode()).hexdigest() if text is not None and len(text) > _MAX_IDENTIFIER else text or ""
        for text in _write_canonically(texts.distinct).to_pylist()
    ]
    values = np.array(distinct or [""], dtype=np.str_)[texts.codes] if len(texts.codes) else np.empty(0, dtype=np.str_)
    return ReadColumn(values, faults)


def read_texts(column: Any, place: Place) -> list[str | None]:
    """Return each cell's text (see the head of this file), trimmed; None if a value is missing.

    Text stays as it is written: "3.0" is not "3" here. A cell that is neither a number, text nor a moment gives its
    `str`.

    Raises:
        DataError: for a column of a type that Hedgerow does not read.
    """
    texts = _read_texts(column, place)
    found: list[str | None] = texts.distinct.take(pa.array(texts.codes)).to_pylist()
    for index in np.flatnonzero(texts.unreadable[texts.codes]).tolist():
        found[index] = str(_read_value(texts.typed, index))
    return found


def encode_texts(column: Any, place: Place) -> tuple[list[str], NDArray[np.intp]]:
    """Return a column's distinct canonical texts, and each cell's index among them (intp [n], -1: none).

    A missing cell, and one that is neither a number nor text, has none. No cell is refused.

    Raises:
        DataError: for a column of a type that Hedgerow does not read.
    """
    texts = _read_texts(column, place)
    has_none = texts.is_missing | texts.unreadable
    canonical = _write_canonically(texts.distinct).to_pylist()
    numbers_of: dict[str, int] = {}
    table = [
        -1 if absent or text is None else numbers_of.setdefault(text, len(numbers_of))
        for text, absent in zip(canonical, has_none.tolist(), strict=True)
    ]
    return list(numbers_of), np.array(table or [-1], dtype=np.intp)[texts.codes]


def replace_texts(column: Any, targets: Mapping[str, str | None], place: Place) -> Any:
    """Replace the cells whose text is a key of `targets`; keep all others as they are.

    A cell is matched by its text as written, then by its canonical text (see the head of this file); a cell without
    text has "".

    Args:
        targets: the new texts; None for no value.

    Raises:
        DataError: for a column of a type that Hedgerow does not read.
    """
    texts = _read_texts(column, place)
    typed: Any = texts.typed
    written, keys = pc.fill_null(texts.distinct, ""), pc.utf8_trim_whitespace(pa.array(targets, pa.string()))
    exact = pc.index_in(written, value_set=keys)
    otherwise = pc.index_in(_write_canonically(written), value_set=_write_canonically(keys))
    found = np.array([*pc.fill_null(pc.coalesce(exact, otherwise), -1).to_pylist(), -1], dtype=np.intp)
    found[:-1][texts.unreadable] = -1
    at, values = found[texts.codes], [*targets.values(), None]
    if isinstance(typed, pa.Array) and not isinstance(column, list | tuple):
        # The choice depends on the column's type and the declaration, not on the cells.
        if is_text(typed.type):
            typed = typed if pa.types.is_binary(typed.type) else typed.cast(pa.large_binary())
            new = pa.array([None if value is None else value.encode() for value in values], typed.type)
            return pc.if_else(pa.array(at >= 0), new.take(pa.array(at % len(values))), typed)
        if all(value is None for value in values):
            return pc.if_else(pa.array(at >= 0), pa.scalar(None, typed.type), typed)
    cells = _list_cells(column, typed)
    return [cell if index < 0 else values[index] for cell, index in zip(cells, at.tolist(), strict=True)]


def parse_dates(column: Any, layout: str, place: Place) -> Any:
    """Replace text that is a date in a format by that date; a column of a date type stays as it is.

    Text in any other format is not read as a date.

    Args:
        layout: a format as in `days`.

    Raises:
        DataError: for a column of a type that Hedgerow does not read.
    """
    typed = to_arrow(column, place.source, place.column)
    if isinstance(typed, pa.Array) and is_moment(typed.type):
        return column
    texts = _read_texts(typed, place)
    missing, iso = texts.is_missing, _rewrite_dates(texts.distinct, layout)
    is_date = _parse_days(iso)[1]
    table = [
        None if absent else datetime.datetime.fromisoformat(own) if is_read else f"{text} (not {layout})"
        for text, own, absent, is_read in zip(
            texts.distinct.to_pylist(), iso.to_pylist(), missing.tolist(), is_date.tolist(), strict=True
        )
    ]
    cells = _list_cells(column, typed)
    is_kept = [
        is_bad or isinstance(cell, datetime.date)
        for cell, is_bad in zip(cells, texts.unreadable[texts.codes].tolist(), strict=True)
    ]
    return [
        cell if kept else table[code] for cell, kept, code in zip(cells, is_kept, texts.codes.tolist(), strict=True)
    ]


def scale_numbers(column: Any, factor: float, offset: float, place: Place) -> Any:
    """Multiply a column's numbers by a factor and add an offset; keep all other cells as they are.

    Raises:
        DataError: for a column type other than numbers, text and true/false.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        read = numbers(column, place)
        found, bad = read.values * factor + offset, read.is_unfit
    if not bad.any():
        return pa.array(found, from_pandas=True)
    cells = _list_cells(column, to_arrow(column, place.source, place.column))
    return [cell if is_bad else own for cell, is_bad, own in zip(cells, bad.tolist(), found.tolist(), strict=True)]


def _list_cells(column: Any, typed: Any) -> Sequence[Any]:
    """Return each cell's plain value, or its text if it is a date or time that Python cannot hold.

    Args:
        typed: the column from `to_arrow`, which is a list for some Arrow types too (unions, UUIDs).
    """
    if isinstance(column, list | tuple):
        return column
    if not isinstance(typed, pa.Array):
        plain: list[Any] = typed
        return plain
    if is_text(typed.type):
        return list(typed.cast(pa.large_binary()).to_pylist())
    try:
        return list(typed.to_pylist())
    except (OverflowError, ValueError):
        return [_read_cell(typed, index) for index in range(len(typed))]


def _read_cell(typed: Any, index: int) -> object:
    try:
        return typed[index].as_py()
    except (OverflowError, ValueError):
        return _read_value(typed, index)


def value_at(column: Any, index: int) -> object:
    """Return one cell's plain value, for an error message."""
    return _read_value(to_arrow(column, "", ""), index)


def _find_unreadable(texts: _Texts, place: Place) -> Fault:
    code = "data-encoding" if isinstance(texts.typed, pa.Array) else "data-wrong-type"
    rows = texts.unreadable[texts.codes]
    return rows, code, lambda index: _refuse_cell(place, index, texts.typed, _not_a_kind)


# Cells --------------------------------------------------------------------------------------------------------------


def _read_value(typed: Any, index: int) -> object:
    if not isinstance(typed, pa.Array):
        value: object = typed[index]
        return value
    if is_text(typed.type):
        # Cast to bytes, because they may not be valid text.
        content = typed.slice(index, 1).cast(pa.large_binary())[0].as_py()
        return None if content is None else content.decode("utf-8", errors="backslashreplace")
    if is_moment(typed.type):
        return _format_moments(typed.slice(index, 1))[0].as_py()
    value = typed[index].as_py()
    return value


def _refuse_cell(place: Place, index: int, typed: Any, otherwise: Callable[[str, object], DataError]) -> DataError:
    """Return the error for one cell: bytes that are not UTF-8, else the error that `otherwise` makes."""
    value = typed[index]
    if isinstance(typed, pa.Array):
        value = typed.slice(index, 1).cast(pa.large_binary())[0].as_py()
    if isinstance(value, bytes) and _decode_cell(value) is _UNREADABLE:
        return DataError("data-encoding", source=place.source, where=f"data row {place.first_row + index}")
    return otherwise(place.at(index), _read_value(typed, index))


def _not_a_number(place: str, value: object) -> DataError:
    has_comma = isinstance(value, str) and "," in value
    return DataError("data-decimal-comma" if has_comma else "data-wrong-type", place=place, value=quote_cell(value))


def _not_a_kind(place: str, value: object) -> DataError:
    return DataError("data-cell-type", place=place, value=quote_cell(value), type=type(value).__name__)


def _to_flags(array: Any) -> Flags:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.bool_)


# Numbers ------------------------------------------------------------------------------------------------------------


def _read_typed_numbers(column: Any, place: Place) -> NDArray[np.float64]:
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), np.nan)
    if pa.types.is_boolean(kind):
        column = pc.cast(column, pa.int8())
    elif pa.types.is_decimal(kind):
        # Convert through text: Arrow's own conversion rounds differently for different scales.
        column = pc.cast(column, pa.string())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise DataError("data-column-type", source=place.source, column=place.column, found=kind)
    return _as_floats(column)


def _as_floats(column: Any) -> NDArray[np.float64]:
    floats = pc.cast(column, pa.float64(), safe=False)
    return np.asarray(floats.to_numpy(zero_copy_only=False), dtype=np.float64)


def _parse_number_texts(column: Any, has_decimal_commas: bool) -> tuple[NDArray[np.float64], Flags, Flags]:
    """Return the numbers (float64 [n]), the flags of undecodable bytes, and those of non-numbers."""
    texts, undecodable = _decode_bytes(column)
    texts = pc.utf8_trim_whitespace(texts)
    if has_decimal_commas:
        # With decimal commas, 1.045 may mean a thousand, so it is no number; with decimal=point it is one.
        texts = pc.replace_substring_regex(texts, pattern=_PERHAPS_THOUSANDS, replacement="?")
        texts = pc.replace_substring_regex(texts, pattern=_WITH_DECIMAL_COMMA, replacement=r"\1.\2")
    texts = pc.if_else(_is_missing(texts), pa.scalar(None, pa.string()), texts)
    try:
        return _as_floats(texts), undecodable, undecodable
    except pa.ArrowInvalid:
        encoded = texts.dictionary_encode(null_encoding="encode")
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        found, is_bad = _parse_numbers(encoded.dictionary)
        return found[codes], undecodable, is_bad[codes]


def _parse_numbers(distinct: Any) -> tuple[NDArray[np.float64], Flags]:
    """Parse each text as Arrow reads it by itself, whatever the other texts are."""
    is_sure = pc.fill_null(pc.match_substring_regex(distinct, _SURE_NUMBER), True)
    found = _as_floats(pc.if_else(is_sure, distinct, pa.scalar(None, pa.string())))
    # Read true and false as a typed column does: one other cell makes pandas turn such a column into text.
    truth = pc.fill_null(pc.index_in(pc.utf8_lower(distinct), value_set=pa.array(_TRUTHS), skip_nulls=True), -1)
    found = np.where(_to_flags(pc.greater_equal(truth, 0)), truth.to_numpy(), found)
    is_time = _to_flags(pc.fill_null(pc.match_substring_regex(distinct, _TIME), False))
    at = np.flatnonzero(is_time)
    found[at] = [_count_seconds(text) for text in distinct.take(pa.array(at)).to_pylist()]
    bad = ~(_to_flags(pc.or_(is_sure, pc.greater_equal(truth, 0))) | is_time)
    perhaps = bad & _to_flags(pc.fill_null(pc.match_substring_regex(distinct, _PERHAPS_NUMBER), False))
    for index in np.flatnonzero(perhaps).tolist():
        try:
            found[index] = _as_floats(distinct.slice(index, 1))[0]
            bad[index] = False
        except pa.ArrowInvalid:
            continue
    return found, bad


def _count_seconds(time: str) -> float:
    """Return the seconds since midnight of a `_TIME` text; digits beyond the nanosecond are cut off."""
    whole, _, part = time.partition(".")
    hours, minutes, seconds = map(int, whole.split(":"))
    # Whole nanoseconds are exact in double precision, so every source of a time gives the same number.
    return (((hours * 60 + minutes) * 60 + seconds) * 10**9 + int(part[:9].ljust(9, "0"))) / 1e9


def _read_number_objects(values: list[Any], has_decimal_commas: bool) -> tuple[NDArray[np.float64], Flags, Flags]:
    read = [_read_number(value) for value in values]
    found = np.array([value if isinstance(value, float) else math.nan for value in read], dtype=np.float64)
    bad = np.array([value is _UNREADABLE for value in read], dtype=np.bool_)
    at = [index for index, value in enumerate(read) if isinstance(value, str)]
    texts = [text if _is_encodable(text) else "no number" for text in read if isinstance(text, str)]
    found[at], _, bad[at] = _parse_number_texts(pa.array(texts, pa.string()), has_decimal_commas)
    return found, np.zeros(len(values), dtype=np.bool_), bad


def _read_number(value: Any) -> Any:
    """Return a float or the text of one; `_UNREADABLE` for anything else."""
    if isinstance(value, np.generic):
        value = value.item() if value.dtype.kind in "biuf" and value.dtype.itemsize <= 8 else _unbox_numpy(value)
    if isinstance(value, int | float | Decimal):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
        except ValueError:  # a Decimal that is a signaling NaN
            return math.nan
    if isinstance(value, str | bytes | bytearray | memoryview):
        return _write_raw(value)
    if isinstance(value, datetime.time) and value.tzinfo is None:
        return _count_seconds(value.isoformat("auto"))
    return math.nan if _is_absent(value) else _UNREADABLE


# Dates --------------------------------------------------------------------------------------------------------------


def _parse_days(distinct: Any) -> tuple[NDArray[np.float64], Flags]:
    """Return the days (float64 [n], NaN for none), and flags of texts that are valid ISO 8601 dates."""
    is_shaped = _to_flags(pc.fill_null(pc.match_substring_regex(distinct, ISO_DATE), False))
    # Arrow accepts the year 0, `parse_day` does not. Exclude it, or its result would depend on the other cells.
    is_shaped &= ~_to_flags(pc.fill_null(pc.starts_with(distinct, "0000-"), False))
    found = np.full(len(distinct), np.nan)
    if not is_shaped.any():
        return found, is_shaped
    # Cut off digits beyond the microsecond, as `parse_day` does.
    short = pc.replace_substring_regex(distinct, pattern=r"([.][0-9]{6})[0-9]+", replacement=r"\1")
    has_zone = _to_flags(pc.fill_null(pc.match_substring_regex(distinct, "[T ].*[Z+-]"), False))
    for is_own, zone in ((is_shaped & ~has_zone, None), (is_shaped & has_zone, "UTC")):
        at = np.flatnonzero(is_own)
        try:
            moments = pc.cast(short.take(pa.array(at)), pa.timestamp("us", zone))
            found[at] = moments.cast(pa.int64()).to_numpy() / (86_400 * 10**6)
        except pa.ArrowInvalid:
            # One text is no date, such as 2020-02-31: leave out this one only.
            found[at] = [_read_day(text) for text in short.take(pa.array(at)).to_pylist()]
    return found, ~np.isnan(found)


def _read_day(text: str) -> float:
    try:
        return parse_day(text)
    except (OverflowError, ValueError):
        return math.nan


def _rewrite_dates(texts: Any, layout: str) -> Any:
    """Rewrite texts from a format to ISO 8601; a text that does not match becomes "-".

    The pattern has to match the whole text.
    """
    parts = re.findall("%(.)", layout)
    places = {part: rf"\{count}" for count, part in enumerate(parts, start=1)}
    pieces = [piece if index % 2 == 0 else DATE_PARTS[piece] for index, piece in enumerate(re.split("%(.)", layout))]
    pattern = "".join(re.escape(piece) if index % 2 == 0 else piece for index, piece in enumerate(pieces))
    iso = f"{places['Y']}-0{places['m']}-0{places['d']}"
    if set(parts) & set("HMS"):
        iso += " " + ":".join("0" + places.get(part, "0") for part in "HMS")
    fits = pc.match_substring_regex(texts, rf"^{pattern}$")
    read = pc.replace_substring_regex(texts, pattern=rf"^{pattern}$", replacement=iso)
    read = pc.replace_substring_regex(read, pattern="([-: ])0([0-9]{2})", replacement=r"\1\2")
    return pc.if_else(pc.fill_null(fits, False), read, pa.scalar("-"))


def _reformat_date(cell: str | bytes, layout: str) -> Any:
    """Rewrite one cell's text as ISO 8601; a missing cell stays as it is."""
    raw = _write_raw(cell)
    text = raw.strip() if isinstance(raw, str) and _is_encodable(raw) else ""
    if text.lower() in MISSING_WORDS:
        return cell
    return _rewrite_dates(pa.array([text]), layout)[0].as_py()


# Texts --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Texts:
    """The distinct texts of a column.

    Attributes:
        typed: the column, as `to_arrow` has it.
        distinct: Arrow text without spaces around it; null for a missing value.
        codes: intp [n], each cell's index in `distinct`.
        unreadable: bool [n_distinct], entries of cells that are neither a number nor text.
        ambiguous: bool [n_distinct], entries of floats that stand for several whole numbers.
    """

    typed: Any
    distinct: Any
    codes: NDArray[np.intp]
    unreadable: Flags
    ambiguous: Flags

    @property
    def is_missing(self) -> Flags:
        """Flags of the missing texts, bool [n_distinct]."""
        return _to_flags(_is_missing(self.distinct))


def _read_texts(column: Any, place: Place) -> _Texts:
    """Read the texts of a column; raise DataError for a type that Hedgerow does not read."""
    own = typed = to_arrow(column, place.source, place.column)
    if not isinstance(typed, pa.Array):
        return _format_objects(typed)
    kind = typed.type
    if pa.types.is_null(kind):
        typed = typed.cast(pa.string())
    known = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    if not (is_text(typed.type) or is_moment(kind) or any(is_kind(kind) for is_kind in known)):
        raise DataError("data-column-type", source=place.source, column=place.column, found=kind)
    unreadable = np.zeros(len(typed), dtype=np.bool_)
    if is_text(typed.type):
        typed, unreadable = _decode_bytes(typed)
    elif pa.types.is_float16(kind):
        typed = typed.cast(pa.float32())
    elif is_moment(kind):
        typed = _format_moments(typed)
    encoded = typed.dictionary_encode(null_encoding="encode")
    codes = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.intp)
    distinct, ambiguous = _format_distinct(encoded.dictionary, _MAX_EXACT_OF.get(kind, _MAX_EXACT))
    if unreadable.any():
        codes[unreadable] = len(distinct)
        distinct = pa.concat_arrays([distinct, pa.array([""])])
        ambiguous = np.append(ambiguous, False)
    marks = np.zeros(len(distinct), dtype=np.bool_)
    marks[codes[unreadable]] = True
    return _Texts(own, pc.utf8_trim_whitespace(distinct), codes, marks, ambiguous)


def _format_distinct(values: Any, max_exact: float) -> tuple[Any, Flags]:
    """Return the text of each value, and which values are floats too large for one exact text (>= max_exact)."""
    kind = values.type
    ambiguous = np.zeros(len(values), dtype=np.bool_)
    if is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return pc.cast(values, pa.string()), ambiguous
    if pa.types.is_floating(kind):
        floats = _as_floats(values)
        ambiguous = np.abs(floats) >= max_exact
        whole = (np.floor(floats) == floats) & (np.abs(floats) < _MAX_EXACT)
        whole_texts = pc.cast(pa.array(np.where(whole, floats, 0).astype(np.int64)), pa.string())
        others = [None if own else _write_raw(value) for value, own in zip(floats.tolist(), whole, strict=True)]
        return pc.if_else(pa.array(whole), whole_texts, pa.array(others, pa.string())), ambiguous
    return pa.array([_write_raw(value) for value in values.to_pylist()], pa.string()), ambiguous


def _format_moments(column: Any) -> Any:
    """Format dates and times as text.

    Python's datetime is not used, because it knows neither nanoseconds nor all years.
    """
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    texts = pc.cast(column, pa.string())
    texts = pc.replace_substring_regex(texts, pattern=r"\.([0-9]*[1-9])?0*(Z?)$", replacement=r".\1\2")
    texts = pc.replace_substring_regex(texts, pattern=r"\.(Z?)$", replacement=r"\1")
    return pc.replace_substring_regex(texts, pattern=f"{_MIDNIGHT}$", replacement="")


def _format_objects(values: list[Any]) -> _Texts:
    n = len(values)
    unreadable, ambiguous = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    texts = [_write_raw(value) for value in values]
    for index, value in enumerate(values):
        if isinstance(value, float | np.floating):
            kind = pa.from_numpy_dtype(value.dtype) if isinstance(value, np.float16 | np.float32) else pa.float64()
            ambiguous[index] = abs(float(value)) >= _MAX_EXACT_OF.get(kind, _MAX_EXACT)
    column = _make_text_array(texts)
    if column is None:
        for index, text in enumerate(texts):
            unreadable[index] = text is _UNREADABLE or (isinstance(text, str) and not _is_encodable(text))
        column = _make_text_array([None if is_bad else text for text, is_bad in zip(texts, unreadable, strict=True)])
    encoded = column.dictionary_encode(null_encoding="encode")
    distinct, codes = encoded.dictionary, np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.intp)
    # Marked cells get an entry of their own: 2.0**53 and 2**53 are the same category, but not the same unit.
    n_distinct = len(distinct)
    marks = unreadable.astype(np.intp) + 2 * ambiguous
    distinct = pa.concat_arrays([distinct] * 3)
    of_entry = np.repeat(np.arange(3), n_distinct)
    distinct = pc.utf8_trim_whitespace(distinct)
    return _Texts(values, distinct, codes + marks * n_distinct, of_entry == 1, of_entry == 2)


def _make_text_array(texts: list[Any]) -> Any:
    """Return an Arrow array of text; None if a value is not text or cannot be written in UTF-8."""
    try:
        return pa.array(texts, pa.string())
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError):
        return None


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _decode_bytes(column: Any) -> tuple[Any, Flags]:
    """Decode text or bytes as UTF-8; return Arrow text (null if undecodable), and flags of these cells."""
    bad = np.zeros(len(column), dtype=np.bool_)
    if pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    try:
        texts = pc.cast(column, pa.string())
        texts.validate(full=True)
    except pa.ArrowInvalid:
        cells = [_decode_cell(cell) for cell in column.cast(pa.large_binary()).to_pylist()]
        bad[:] = [cell is _UNREADABLE for cell in cells]
        texts = pa.array([None if cell is _UNREADABLE else cell for cell in cells], pa.string())
    return texts, bad


def _decode_cell(content: bytes | None) -> str | _NotAValue | None:
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return _UNREADABLE


def _write_raw(value: Any) -> Any:
    """Return one value's text; None if missing, `_UNREADABLE` if it is neither a number nor text."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, np.generic):
        return _write_raw(_unbox_numpy(value))
    if isinstance(value, int):
        return _format_decimal(Decimal(int(value)))
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return _format_decimal(Decimal(repr(float(value)))) if math.isfinite(value) else str(float(value))
    if isinstance(value, Decimal):
        return None if value.is_nan() else _format_decimal(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _decode_cell(bytes(value))
    if _is_absent(value):
        return None
    if type(value).__name__ == "Period":
        # Use the date or moment that the period begins on. pandas cannot write that of every period.
        with suppress(ValueError, OverflowError, AttributeError):
            return _format_moment(value.start_time)
        return _UNREADABLE
    return _format_moment(value)


def _format_moment(value: Any) -> str | _NotAValue:
    if isinstance(value, datetime.datetime):
        try:
            utc = value if value.tzinfo is None else value.astimezone(datetime.UTC).replace(tzinfo=None)
        except (OverflowError, ValueError):
            return _UNREADABLE
        text = _without_idle_digits(utc.isoformat(" "))
        return text + "Z" if value.tzinfo is not None else text.removesuffix(_MIDNIGHT)
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, datetime.time) and value.tzinfo is None:
        return _without_idle_digits(value.isoformat("auto"))
    return str(value) if isinstance(value, uuid.UUID) else _UNREADABLE


def _unbox_numpy(value: Any) -> Any:
    """Convert a numpy scalar to Python's.

    Moments become text, because numpy would turn them into bare numbers of nanoseconds.
    """
    if value.dtype.kind == "f":
        return float(value)
    if value.dtype.kind == "M" and not np.isnat(value):
        return _format_moments(from_numpy(np.array([value])))[0].as_py()
    if value.dtype.kind in "Mm":
        return None if np.isnat(value) else _UNREADABLE
    item = value.item()
    return _UNREADABLE if isinstance(item, np.generic) else item


def _is_absent(value: Any) -> bool:
    """Return whether a value is None, pandas' NaT or NA, or numpy's mask.

    Comparing these with themselves does not work.
    """
    return value is None or value is np.ma.masked or type(value).__name__ in ("NaTType", "NAType")


def _format_decimal(value: Decimal) -> str:
    if value.is_infinite():
        return "inf" if value > 0 else "-inf"
    if value.is_zero():
        return "0"
    if abs(value.adjusted()) > _MAX_EXPONENT:
        # Such a number would fill the memory if it were written out.
        sign, digits, exponent = value.as_tuple()
        kept = "".join(map(str, digits)).rstrip("0")
        return f"{'-' if sign else ''}{kept}e{int(exponent) + len(digits) - len(kept)}"
    return _without_idle_digits(format(value, "f"))


def _without_idle_digits(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def _is_missing(texts: Any) -> Any:
    # Name the type: without it Arrow searches every package folder for dateutil on each call.
    words = pa.array(MISSING_WORDS, pa.string())
    return pc.or_(pc.is_null(texts), pc.is_in(pc.utf8_lower(texts), value_set=words))


def _write_canonically(texts: Any) -> Any:
    """Return the canonical text of each value: "3.0" is "3", ".50" is "0.5", "True" is "true"."""
    plain = texts
    # ASCII is in normal form as it stands, and this pattern takes milliseconds to compile.
    if not pc.all(pc.string_is_ascii(texts), min_count=0).as_py():
        # Sorting n accents of one letter takes n * n steps, so a hostile cell could take a day. No language has many.
        is_odd = pc.match_substring_regex(texts, _MANY_MARKS)
        plain = pc.if_else(is_odd, texts, pc.utf8_normalize(pc.if_else(is_odd, "", texts), form="NFC"))
    plain = pc.replace_substring_regex(plain, pattern=_NO_ZERO, replacement=r"\10\2")
    plain = pc.replace_substring_regex(plain, pattern=_INTEGRAL_TEXT, replacement=r"\1")
    plain = pc.replace_substring_regex(plain, pattern=_IDLE_ZEROS, replacement=r"\1")
    plain = pc.if_else(pc.equal(plain, "-0"), "0", plain)
    lower = pc.utf8_lower(plain)
    return pc.if_else(pc.is_in(lower, value_set=pa.array(_TRUTHS, pa.string())), lower, plain)


# Categories ---------------------------------------------------------------------------------------------------------


def _match_categories(distinct: Any, categories: Sequence[str]) -> NDArray[np.int32]:
    """Return each text's category (int32 [n_distinct]).

    A text is matched as it stands, then with the words for missing values, then in canonical form.
    """
    listed = pc.utf8_trim_whitespace(pa.array(categories, type=pa.string()))
    exact = pc.index_in(distinct, value_set=listed, skip_nulls=True)
    first_index = _with_other_forms(_write_canonically(listed).to_pylist())
    found = pc.index_in(_write_canonically(distinct), value_set=pa.array(list(first_index), type=pa.string()))
    canonical = pc.take(pa.array(list(first_index.values()), type=pa.int32()), found)
    otherwise = pc.if_else(_is_missing(distinct), pa.scalar(MISSING_CATEGORY, pa.int32()), canonical)
    indices = pc.fill_null(pc.coalesce(exact, otherwise), UNKNOWN_CATEGORY)
    return np.asarray(indices.to_numpy(zero_copy_only=False), dtype=np.int32)


def _with_other_forms(canonical: Sequence[str]) -> dict[str, int]:
    """Map every text that stands for a category to the category's index: its own text, and other forms.

    The forms follow from the plan only: 1e-05 and 0.00001 are one number, the single-precision 0.1 differs from the
    double-precision 0.1, and true and false may be listed as 1 and 0.
    """
    index_of = {text: index for index, text in reversed(list(enumerate(canonical)))}
    forms = [(form, index) for index, text in enumerate(canonical) for form in _spell_number(text)]
    for words, others in ((("true", "false"), ("1", "0")), (("1", "0"), ("true", "false"))):
        if not set(words) & set(index_of):
            forms += [(word, index_of[other]) for word, other in zip(words, others, strict=True) if other in index_of]
    for form, index in forms:
        index_of.setdefault(form, index)
    return index_of


def _spell_number(text: str) -> list[str]:
    """Return other canonical texts of the number that a category writes; none for names such as "03"."""
    if not _NUMBER_WITHOUT_LEADING_ZEROS.fullmatch(text):
        return []
    exact = Decimal(text)
    if abs(exact.adjusted()) > _MAX_EXPONENT:
        return [_format_decimal(exact)]
    forms = [exact, Decimal(repr(float(exact)))] if math.isfinite(float(exact)) else [exact]
    if exact != exact.to_integral_value():
        with np.errstate(over="ignore"):
            narrow = [float(np.float32(float(exact))), float(np.float16(float(exact)))]
        forms += [Decimal(repr(number)) for number in narrow if math.isfinite(number) and number != 0]
    return [_format_decimal(form) for form in forms if form != 0 or exact == 0]
