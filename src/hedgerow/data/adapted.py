# SPDX-License-Identifier: Apache-2.0
"""A table as the plan's other sites would write it, by its site's `Adapter`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from hedgerow.data import columns as encoders
from hedgerow.data.adapters import EVERY_COLUMN, Adapter
from hedgerow.data.columns import Place
from hedgerow.data.declarations import DECIMALS, without_declaration
from hedgerow.data.lines import LineCounts
from hedgerow.data.tables import Table
from hedgerow.data.units import RowsLeftOut


def adapt_column(own: Adapter, column: Any, place: Place) -> Any:
    """Return a column's cells as the plan's other sites would write them (Arrow array or list).

    Args:
        place: place of the column; `place.column` is the plan's name.
    """
    name, missing = place.column, dict(own.missing)
    words = (*missing.get(EVERY_COLUMN, ()), *missing.get(name, ()))
    targets = dict.fromkeys(words) | dict(dict(own.recode).get(name, ()))
    if targets:
        column = encoders.replace_texts(column, targets, place)
    if (layout := dict(own.date).get(name)) is not None:
        return encoders.parse_dates(column, layout, place)
    scale = dict(own.scale).get(name)
    return column if scale is None else encoders.scale_numbers(column, *scale, place)


def declare(own: Adapter, location: str) -> str:
    """Append this declaration to a CSV file's name; parts that the name declares itself stay."""
    place, said = without_declaration(location)
    named = {part.partition("=")[0] for part in said.split(",")}
    parts = {name: getattr(own, name) for name in ("separator", "decimal", "encoding", "skip", "repeated")}
    added = [f"{name}={word}" for name, word in parts.items() if word and name not in named]
    return f"{place}#{','.join([*filter(None, [said]), *added])}" if added else location


class AdaptedTable:
    """A table as the plan's other sites would write it; see `Table`."""

    def __init__(self, table: Table, own: Adapter) -> None:
        self._table, self._adapter = table, own
        self._own_names = {new: old for old, new in own.rename}
        self.source, self.first_row = table.source, table.first_row
        self.is_typed = getattr(table, "is_typed", False)

    @property
    def lines(self) -> LineCounts | None:
        """Counts of the CSV table's lines; None for a table without lines."""
        return getattr(self._table, "lines", None)

    @property
    def has_decimal_commas(self) -> bool:
        """Whether text such as 3,5 is a number."""
        own = self._adapter.decimal
        return DECIMALS[own] if own else getattr(self._table, "has_decimal_commas", False)

    def types(self) -> dict[str, Any]:
        """Return the columns' types under the plan's names."""
        own = self._adapter
        kinds: dict[str, Any] = dict.fromkeys((name for name, _ in own.recode), pa.string())
        kinds |= dict.fromkeys((name for name, _ in own.scale), pa.float64())
        kinds |= dict.fromkeys((name for name, _ in own.date), pa.timestamp("us"))
        named = zip(self._rename(self._table.types()), self._table.types().values(), strict=True)
        return {name: kinds.get(name, kind) for name, kind in named if name is not None}

    def names(self) -> list[str]:
        """Return the columns' names after renaming; a column is hidden if another takes its name."""
        return [name for name in self._rename(self._table.names()) if name is not None]

    def batches(
        self, names: Sequence[str], chunk_rows: int, left_out: RowsLeftOut | None
    ) -> Iterator[tuple[Sequence[Any], ...]]:
        """Yield the named columns in chunks of rows, with their cells as the adapter rewrites them."""
        own = self._table.batches([self._own_names.get(name, name) for name in names], chunk_rows, left_out)
        places = [Place(self.source, name, self.first_row, self.has_decimal_commas) for name in names]
        adapt = partial(adapt_column, self._adapter)
        return (tuple(map(adapt, batch, places)) for batch in own)

    def _rename(self, names: Any) -> list[str | None]:
        """Return the plan's name of each column; None for a hidden column."""
        new_names = dict(self._adapter.rename)
        return [new_names.get(name, None if name in self._own_names else name) for name in names]
