"""A source of tables from outside the package: files that end in .toy, and toy:// with a table of this process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from hedgerow.data.tables import require_columns
from hedgerow.data.units import RowsLeftOut

TABLES: dict[str, dict[str, list[Any]]] = {}


class ToyTable:
    """A JSON object of columns; see `hedgerow.data.tables.Table`."""

    first_row = 1

    def __init__(self, location: str) -> None:
        scheme, mark, name = location.partition("://")
        self.source = name if mark else location
        self._columns = TABLES[name] if mark else json.loads(Path(scheme).read_text(encoding="utf-8"))

    def names(self) -> list[str]:
        return list(self._columns)

    def types(self) -> dict[str, Any]:
        return {name: pa.array(values).type for name, values in self._columns.items()}

    def batches(self, names: Sequence[str], chunk_rows: int, left_out: RowsLeftOut | None) -> Iterator[tuple[Any, ...]]:
        require_columns(self.source, names, self.names())
        n_rows = len(next(iter(self._columns.values())))
        for start in range(0, n_rows, chunk_rows):
            yield tuple(self._columns[name][start : start + chunk_rows] for name in names)
