"""Tables of other libraries, in memory or still to be computed, as named columns.

Each column keeps the type that its library gives it, and `hedgerow.data.columns` does the rest, so that what a cell
becomes depends on that cell alone. A table that is still to be computed (a lazy one of polars, a relation of DuckDB or
Ibis, and what else narwhals knows) is computed here, and comes as Arrow. A table of pandas is not made one of Arrow as
a whole: one odd cell would change the type of its column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa


def collected(table: Any) -> Any:
    """The table itself, or the Arrow table that it gives once it is computed."""
    if isinstance(table, np.ndarray | list | tuple | Mapping | pa.Table):
        return table
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table])
    try:
        from narwhals.stable import v2 as narwhals
    except ModuleNotFoundError:
        return table
    known = narwhals.from_native(table, pass_through=True)
    return known.collect(backend="pyarrow").to_native() if isinstance(known, narwhals.LazyFrame) else table


def as_columns(table: Any) -> Mapping[str, Any]:
    """A table's columns by their names; a mapping is returned as it is."""
    table = collected(table)
    if isinstance(table, Mapping):
        return table
    if isinstance(table, pa.Table):
        return {name: table.column(index) for index, name in enumerate(table.column_names)}
    return {str(name): table[name] for name in table.columns}
