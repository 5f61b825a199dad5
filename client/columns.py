"""One column of a table, made into one array: numbers, category indices or identifiers.

All work is done on Arrow arrays; text is first reduced to its distinct values, so that the cost of matching categories
does not grow with the number of records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hedgerow.client import data_errors
from hedgerow.client.data_errors import Place
from hedgerow.protocol.plan_fields import as_text

UNKNOWN = -1
"""The index of a category that the plan does not list."""
MISSING = -2
"""The index of a missing value."""
MISSING_WORDS = ("", "nan", "na", "null")
"""Text that means "no value", in any case, unless the plan lists that very text as a category."""

_INTEGRAL_TEXT = r"^([+-]?[0-9]+)\.0*$"
_LARGEST_EXACT = 2.0**53
_LARGEST_INT64 = math.nextafter(2.0**63, 0)


def to_arrow(column: Any) -> Any:
    """An Arrow array of a numpy array, a sequence or an Arrow column; NaN and None become null.

    An object array of mixed types becomes text, value by value, as a plan writes its categories.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not isinstance(column, pa.Array):
        try:
            column = pa.array(column, from_pandas=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            texts = [None if value is None else _text_of(value) for value in np.asarray(column, dtype=object).tolist()]
            column = pa.array(texts, type=pa.string())
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column


def numbers(column: Any, place: Place) -> NDArray[np.float64]:
    """The column as float64 [n], NaN where a value is missing.

    Raises:
        DataError: naming the first cell that is no number.
    """
    column = to_arrow(column)
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), np.nan)
    if pa.types.is_boolean(kind):
        column = pc.cast(column, pa.int8())
    elif _is_text(kind):
        column = _present_text(column, place)
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise data_errors.wrong_column_type(place, str(kind))
    try:
        floats = pc.cast(column, pa.float64(), safe=False)
    except pa.ArrowInvalid:
        index = _first_that_is_no_number(column)
        raise data_errors.wrong_type(place, index, column[index].as_py()) from None
    return np.asarray(floats.to_numpy(zero_copy_only=False), dtype=np.float64)


def category_indices(column: Any, categories: Sequence[str], place: Place) -> NDArray[np.int16]:
    """The column as int16 [n]: the index of each value in `categories`, `UNKNOWN` or `MISSING`.

    Values match as the plan writes them (`as_text`): 3, 3.0 and "3.0" all match "3". Spaces around them do not count.
    """
    column = to_arrow(column)
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), MISSING, dtype=np.int16)
    encoded = pc.dictionary_encode(column)
    distinct = _texts(encoded.dictionary, place)
    listed = [category.strip() for category in categories]
    if pa.types.is_boolean(kind) and not {"true", "false"} & set(listed):
        distinct = pc.if_else(pc.equal(distinct, "true"), "1", "0")
    table = _indices_of_distinct(distinct, listed)
    if pa.types.is_floating(kind):
        table = _matched_as_floats(encoded.dictionary, listed, table)
    codes = pc.fill_null(encoded.indices, len(table)).to_numpy(zero_copy_only=False)
    indices: NDArray[np.int16] = np.append(table, np.int16(MISSING))[codes]
    return indices


def identifiers(column: Any, place: Place) -> NDArray[np.str_]:
    """The column as text [n], in the same canonical form for text, integer, decimal and float columns.

    One unit must have one text: a table that is read in chunks may give 7, then 7.0, then "7".

    Raises:
        DataError: naming the first cell without an identifier.
    """
    column = to_arrow(column)
    if pa.types.is_null(column.type):
        raise data_errors.unit_missing(place, 0)
    texts = _canonical(_texts(column, place, _LARGEST_INT64 if pa.types.is_float64(column.type) else _LARGEST_EXACT))
    missing = _is_missing(texts).to_numpy(zero_copy_only=False)
    if missing.any():
        raise data_errors.unit_missing(place, int(np.argmax(missing)))
    return np.asarray(texts.to_numpy(zero_copy_only=False), dtype=np.str_)


def distinct_texts(column: Any, place: Place) -> Any:
    """The distinct values that are not missing, as canonical text, in an Arrow array."""
    distinct = pc.unique(to_arrow(column))
    if pa.types.is_null(distinct.type):
        return pa.array([], type=pa.string())
    texts = _canonical(_texts(distinct, place))
    return pc.unique(texts.filter(pc.invert(_is_missing(texts))))


def value_at(column: Any, index: int) -> object:
    """One cell's plain value, for the message of an error."""
    return to_arrow(column)[index].as_py()


def _is_text(kind: Any) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind) or pa.types.is_string_view(kind)
    )  # fmt: skip


def _text_of(value: object) -> str:
    """As `as_text`, and a decimal number without an exponent."""
    return format(value, "f") if isinstance(value, Decimal) else as_text(value)


def _texts(values: Any, place: Place, largest: float = _LARGEST_EXACT) -> Any:
    """Arrow values as trimmed text; integral floats up to `largest` without a decimal point."""
    kind = values.type
    if pa.types.is_floating(kind):
        floats = pc.cast(values, pa.float64())
        whole = pc.and_(pc.equal(pc.floor(floats), floats), pc.less_equal(pc.abs(floats), largest))
        as_integers = pc.cast(pc.if_else(whole, floats, None), pa.int64())
        # The shortest text is that of the column's own type: a float32 of 0.1 reads "0.1".
        return pc.coalesce(pc.cast(as_integers, pa.string()), pc.cast(values, pa.string()))
    try:
        texts = pc.cast(values, pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if "UTF8" in str(error):
            raise data_errors.encoding(f"{place.source}, column {place.column!r}", None) from None
        raise data_errors.wrong_column_type(place, str(kind)) from None
    return pc.utf8_trim_whitespace(texts)


def _is_missing(texts: Any) -> Any:
    words = pa.array(MISSING_WORDS)
    return pc.or_(pc.is_null(texts), pc.is_in(pc.utf8_lower(texts), value_set=words))


def _present_text(column: Any, place: Place) -> Any:
    texts = _texts(column, place)
    return pc.if_else(_is_missing(texts), pa.scalar(None, pa.string()), texts)


def _canonical(texts: Any) -> Any:
    """The text that `as_text` gives for the value that the text writes: "3.0" is "3", "True" is "true"."""
    plain = pc.replace_substring_regex(texts, pattern=_INTEGRAL_TEXT, replacement=r"\1")
    plain = pc.if_else(pc.equal(plain, "-0"), "0", plain)
    lower = pc.utf8_lower(plain)
    return pc.if_else(pc.is_in(lower, value_set=pa.array(["true", "false"])), lower, plain)


def _indices_of_distinct(distinct: Any, listed: Sequence[str]) -> NDArray[np.int16]:
    """int16 [n_distinct]: first the text as it stands, then the words for missing, then the canonical text."""
    exact = pc.index_in(distinct, value_set=pa.array(listed, type=pa.string()))
    canonical_listed = _canonical(pa.array(listed, type=pa.string())).to_pylist()
    first_index = {text: index for index, text in reversed(list(enumerate(canonical_listed)))}
    found = pc.index_in(_canonical(distinct), value_set=pa.array(list(first_index), type=pa.string()))
    canonical = pc.take(pa.array(list(first_index.values()), type=pa.int32()), found)
    otherwise = pc.if_else(_is_missing(distinct), pa.scalar(MISSING, pa.int32()), canonical)
    indices = pc.fill_null(pc.coalesce(exact, otherwise), UNKNOWN)
    return np.asarray(indices.to_numpy(zero_copy_only=False), dtype=np.int16)


def _matched_as_floats(values: Any, listed: Sequence[str], table: NDArray[np.int16]) -> NDArray[np.int16]:
    """Where text found no category, the one that is the same float: 0.00001 and 1e-05 are two texts of one number."""
    candidates = [(float(text), index) for index, text in enumerate(listed) if _is_finite_number(text)]
    if not candidates:
        return table
    # In the column's own type, because the float32 nearest to 0.1 is not the float64 nearest to it.
    wanted = pc.cast(pa.array([value for value, _ in candidates], pa.float64()), values.type, safe=False)
    found = pc.fill_null(pc.index_in(values, value_set=wanted), -1).to_numpy(zero_copy_only=False)
    indices = np.array([index for _, index in candidates], dtype=np.int16)
    return np.where((table == UNKNOWN) & (found >= 0), indices[found], table).astype(np.int16)


def _is_finite_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _first_that_is_no_number(texts: Any) -> int:
    """The index of the first text that Arrow cannot read as a number, by bisection."""
    start, stop = 0, len(texts)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            pc.cast(texts.slice(start, middle - start), pa.float64())
            start = middle
        except pa.ArrowInvalid:
            stop = middle
    return start
