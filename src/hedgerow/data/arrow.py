# SPDX-License-Identifier: Apache-2.0
"""The door for foreign columns: numpy, pandas, polars, Arrow, DuckDB, lists, Decimals, dates.

Each column becomes an Arrow array or a list of its cells, once; `hedgerow.data.columns` then reads all alike. The
result of a cell depends on that cell alone. A typed column (numpy, Arrow) is converted as a whole, where its type gives
each cell the same result as by itself. A column of objects, such as a database returns, is converted cell by cell. A
column of another library is converted through Arrow if the library offers that, else cell by cell. It is never
converted through the library's numpy form, which turns whole numbers into floats as soon as one is missing. If a
program has made such floats before Hedgerow sees the column, the whole numbers beyond 2^53 are lost.

A column's type tells only how its cells are written. One cell may have decided it (pandas makes text of a column of
numbers with one "<18"). So it does not tell what a column *is*, except if it is a database's schema.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hedgerow.errors import DataError, UsageError

_PLAINEST: dict[type, Any] = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
_MAX_FAULT = 120
_READ = (str, bytes, bool, int, float, Decimal, datetime.date, datetime.time, UUID, np.generic)
"""Types that the values of a declared type may have. pandas' Period is also read, as the date that it begins on."""


def collect(table: Any) -> Any:
    """Return the table itself, or the Arrow table that a lazy table gives once it is computed.

    Raises:
        DataError: two columns have one name, or the library refuses.
    """
    if isinstance(table, np.ndarray | list | tuple | Mapping | pa.Table):
        return table
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table])
    try:
        from narwhals.stable import v2 as narwhals
    except ModuleNotFoundError:
        return table
    try:
        known = narwhals.from_native(table, pass_through=True)
        return known.collect(backend="pyarrow").to_native() if isinstance(known, narwhals.LazyFrame) else table
    except Exception as fault:  # whatever a library raises
        require_distinct_names(list(getattr(table, "columns", ())))
        raise _refuse_column("the table", "", fault) from fault


def as_columns(table: Any) -> Mapping[str, Any]:
    """Return a table's columns by their names; a mapping is returned as it is.

    Raises:
        DataError: as `collect`.
        UsageError: code "table-type"; the table has no named columns, such as a matrix.
    """
    table = collect(table)
    if isinstance(table, Mapping):
        return table
    if not hasattr(table, "columns"):
        raise UsageError("no-names", type=type(table).__name__)
    if isinstance(table, pa.Table):
        require_distinct_names(table.column_names)
        return {name: table.column(index) for index, name in enumerate(table.column_names)}
    require_distinct_names(list(table.columns))
    return {str(name): table[name] for name in table.columns}


def count_cells(column: Any, source: str, name: str) -> int:
    """Return the number of a column's cells.

    Raises DataError for a value that is no column: a single value, or a dictionary, whose keys are no cells.
    """
    if isinstance(column, str | bytes | Mapping | Set) or not hasattr(column, "__len__"):
        raise DataError("data-column-type", source=source, column=name, found=type(column).__name__)
    return len(column)


def require_distinct_names(names: Sequence[Any]) -> None:
    """Raise DataError if two columns have the same name."""
    name, count = next(iter(Counter(map(str, names)).most_common(1)), ("", 0))
    if count > 1:
        raise DataError("data-duplicate-column", source="the table", column=name)


def to_arrow(column: Any, source: str, name: str) -> Any:
    """Convert a typed column to an Arrow array, and a column of objects to a list if types are mixed.

    Raises:
        DataError: the column has a type that cannot be read; the error names the column.
    """
    try:
        return _plain(column)
    except Exception as fault:  # whatever a library raises
        raise _refuse_column(source, name, fault, getattr(column, "dtype", None)) from fault


def _refuse_column(source: str, name: str, fault: Exception, kind: Any = None) -> DataError:
    said = str(fault) if kind is None else f"{kind}: {fault}"
    return DataError("data-column-type", source=source, column=name, found=" ".join(said.split())[:_MAX_FAULT])


def list_categories(column: Any) -> list[Any]:
    """Return the categories that a column's type lists; none if it lists none.

    Such types are pandas' category, polars' Enum and Arrow's dictionary.

    Raises:
        DataError: as `to_arrow`.
    """
    kind = column.type if isinstance(column, pa.Array | pa.ChunkedArray) else getattr(column, "dtype", None)
    if isinstance(kind, pa.DictionaryType):
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return list(dict.fromkeys(value for chunk in chunks for value in chunk.dictionary.to_pylist()))
    listed: Any = getattr(kind, "categories", None) if type(kind).__name__ in ("CategoricalDtype", "Enum") else None
    return [value.item() if isinstance(value, np.generic) else value for value in ([] if listed is None else listed)]


def classify_type(kind: pa.DataType) -> str | None:
    """Return the kind of a column by its database type: "number" (a time of day too), "text", "date" or None."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    types = pa.types
    if any(is_kind(kind) for is_kind in (types.is_integer, types.is_floating, types.is_decimal, types.is_time)):
        return "number"
    if pa.types.is_boolean(kind) or is_text(kind):
        return "text"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "date"
    return None


def _plain(column: Any) -> Any:
    if not isinstance(column, np.ndarray | pa.Array | pa.ChunkedArray | list | tuple):
        column = _unwrap(column)
    if isinstance(column, np.ndarray):
        return from_numpy(column)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        column = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    if not isinstance(column, pa.Array):
        return _unify(list(column))
    if isinstance(column, pa.ExtensionArray):
        if column.type.extension_name == "arrow.uuid":
            # Its storage is sixteen bytes, which are no text.
            return column.to_pylist()
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    return column.to_pylist() if pa.types.is_union(column.type) else column


def _unwrap(column: Any) -> Any:
    """Convert another library's column to a numpy or Arrow array, or to a list; see the head of this file."""
    kind: Any = getattr(column, "dtype", None)
    if isinstance(kind, np.dtype):
        return np.asarray(column)
    coded = getattr(column, "cat", column)
    if hasattr(kind, "categories") and hasattr(coded, "codes"):
        # pandas has one code per cell; -1 is a missing cell.
        _require_reading(getattr(kind.categories, "dtype", None))
        categories, codes = _plain(kind.categories), np.asarray(coded.codes)
        if isinstance(categories, pa.Array):
            return categories.take(pa.array(codes, pa.int64(), mask=codes < 0))
        return [None if code < 0 else categories[code] for code in codes.tolist()]
    found = _by_arrow(column)
    if found is not None:
        return found
    _require_reading(kind)
    return list(column) if hasattr(column, "__iter__") else np.asarray(column, dtype=object)


def _require_reading(kind: Any) -> None:
    """Raise TypeError for a declared type without readable values, such as pandas' Interval."""
    scalar = getattr(kind, "type", None)
    is_known = not isinstance(scalar, type) or issubclass(scalar, _READ) or scalar.__name__ == "Period"
    if not is_known:
        raise TypeError("its values are no numbers, texts, dates or times; convert the column")


def _by_arrow(column: Any) -> Any:
    """Return the Arrow array of a library's column; None if there is none of a plain Arrow type."""
    try:
        if str(getattr(column, "dtype", "")) == "Object":
            # polars hands over the addresses of its objects.
            return None
        if hasattr(column, "to_arrow"):
            found = column.to_arrow()
        elif hasattr(column, "__arrow_c_stream__"):
            found = pa.chunked_array(column)
        elif hasattr(column, "__arrow_array__") or hasattr(column, "__arrow_c_array__"):
            found = pa.array(column)
        else:
            return None
    except Exception:  # whatever a library raises: its cells can be gone through one by one
        return None
    is_plain = isinstance(found, pa.Array | pa.ChunkedArray) and not isinstance(found.type, pa.BaseExtensionType)
    return found if is_plain else None


def _unify(values: list[Any]) -> Any:
    """Return an Arrow array if all objects are of one plain type, or missing; else the list as it is.

    This is for speed only: of these types, what a cell becomes is the same in both.
    """
    kinds = set(map(type, values)) - {type(None)}
    if len(kinds) == 1 and (kind := _PLAINEST.get(kinds.pop())) is not None:
        try:
            return pa.array(values, kind)
        except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
            return values
    return values


def from_numpy(column: NDArray[Any]) -> Any:
    """Convert a numpy array to an Arrow array, or to a list of cells if they are objects."""
    kind = column.dtype.kind
    if isinstance(column, np.ma.MaskedArray) or kind == "O" or (kind == "f" and column.dtype.itemsize > 8):
        return _unify((column.astype(np.float64) if kind == "f" else column).tolist())
    if kind in "TUS":
        return _unify(column.tolist())
    if kind == "M" and np.datetime_data(column.dtype)[0] not in ("D", "s", "ms", "us", "ns"):
        column = column.astype("datetime64[s]")
    return pa.array(column.astype(column.dtype.newbyteorder("=")), from_pandas=True)


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type holds text, or bytes that may be text."""
    return any(
        is_kind(kind)
        for is_kind in (
            pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view,
            pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary,
        )
    )  # fmt: skip


def is_moment(kind: Any) -> bool:
    """Return whether an Arrow type holds dates or times."""
    return bool(pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_timestamp(kind))
