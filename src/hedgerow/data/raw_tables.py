"""A table as it stands, for statistics before there is a plan: per column its numbers and its texts.

What a cell counts as depends on that cell and its column's declared type alone, and no cell is ever refused: one
that cannot be read counts as missing. Rows with too few or too many fields are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hedgerow.data import columns as encoders
from hedgerow.data.faults import Place
from hedgerow.data.sources import Location, opened, place_of
from hedgerow.data.tables import require_columns
from hedgerow.data.units import RowsLeftOut, rows_within_bound
from hedgerow.errors import DataError
from hedgerow.survey.open_plans import OpenTable
from hedgerow.survey.queries import TableSite
from hedgerow.survey.statistics import AskedColumn


@dataclass(frozen=True, eq=False)
class RawColumn:
    """One column, decoded when it is first asked for.

    Attributes:
        chunks: its cells, as its table gives them.
        place: where they are.
        type: "number", "text", "date" or "moment" where the table declares one; "" where each cell says what it is.
        layout: how text writes a date; None for ISO 8601.
    """

    chunks: Sequence[Any]
    place: Place
    type: str = ""
    layout: str | None = None

    @property
    def numbers(self) -> NDArray[np.float64]:
        """Float64 [n], NaN where a cell is no number; of dates the days since 1970-01-01."""
        return self._decoded[0]

    @property
    def is_text(self) -> NDArray[np.bool_]:
        """Bool [n], where a cell is there and no number."""
        return self._decoded[1]

    @cached_property
    def texts(self) -> tuple[list[str], NDArray[np.intp]]:
        """The distinct texts, and which of them each cell has: intp [n], -1 for none."""
        numbers_of: dict[str, int] = {}
        codes = [np.empty(0, dtype=np.intp)]
        for chunk in self.chunks:
            distinct, own = encoders.coded_texts(chunk, self.place)
            table = [numbers_of.setdefault(text, len(numbers_of)) for text in distinct]
            codes.append(np.array([*table, -1], dtype=np.intp)[own])
        return list(numbers_of), np.concatenate(codes)

    def identifiers(self) -> tuple[NDArray[np.intp], NDArray[np.str_]]:
        """The rows of which this column says whom they are about, intp [n], and whom: text [n]."""
        parts, fits = [np.empty(0, dtype=np.str_)], [np.empty(0, dtype=np.bool_)]
        for chunk in self.chunks:
            own = np.ones(len(chunk), dtype=np.bool_)

            def unfit(rows: encoders.Flags, code: str, error_at: object, own: encoders.Flags = own) -> None:
                np.logical_and(own, ~rows, out=own)

            parts.append(encoders.identifiers(chunk, self.place, unfit)[own])
            fits.append(own)
        return np.flatnonzero(np.concatenate(fits)), np.concatenate(parts)

    @cached_property
    def _decoded(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        if self.type == "moment":
            codes = self.texts[1]
            return np.full(len(codes), np.nan), codes >= 0
        parts = [_decoded(chunk, self) for chunk in self.chunks]
        numbers = [np.empty(0), *(own for own, _ in parts)]
        return np.concatenate(numbers), np.concatenate([np.empty(0, dtype=np.bool_), *(own for _, own in parts)])


def _decoded(chunk: Any, column: RawColumn) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The numbers of some cells, and where there is something else."""
    unfit_of: dict[str, encoders.Flags] = {}

    def unfit(rows: encoders.Flags, code: str, _error_at: object) -> None:
        unfit_of[code] = rows

    if column.type == "date":
        numbers = encoders.days(chunk, column.layout, column.place, unfit)
    else:
        numbers = encoders.numbers(chunk, column.place, unfit)
    is_text = unfit_of.get("data-wrong-type", np.zeros(len(numbers), dtype=np.bool_))
    return np.where(is_text, np.nan, numbers), is_text


@dataclass(frozen=True, eq=False)
class RawTable:
    """A table's columns, and the rows that were left out because they have another number of fields.

    The counts are exact and of private rows: for the table's own operator.

    Attributes:
        unit: the rows that say whom they are about, intp [n], and whom, text [n]; None where that was not read.
    """

    columns: tuple[RawColumn, ...]
    n_rows: int
    left_out: RowsLeftOut = field(default_factory=dict)
    unit: tuple[NDArray[np.intp], NDArray[np.str_]] | None = None


def read_raw(location: Location, columns: Sequence[AskedColumn], unit: str = "record") -> RawTable:
    """The named columns of a table.

    Args:
        columns: of which names, and what is declared of dates, count.
        unit: the column that says whom a row is about; "record" for none.

    Raises:
        DataError: the table cannot be read, or lacks a column; never because of what stands in a cell.
    """
    table, types = opened(location), types_of(location)
    layouts = {column.name: column.layout for column in columns if column.is_date}
    own = [column.name for column in columns]
    names = own if unit == "record" else [*own, unit]
    require_columns(table.source, names, table.names())
    left_out: RowsLeftOut = {}
    batches, place = list(table.batches(names, 65536, left_out)), place_of(table)
    # A date that another table's schema declares may be text here.
    types |= {name: "date" for name in layouts}
    raw = [
        RawColumn([batch[index] for batch in batches], replace(place, column=name), types.get(name, ""), layout)
        for index, (name, layout) in enumerate((name, layouts.get(name)) for name in names)
    ]
    found = None if unit == "record" else raw.pop().identifiers()
    return RawTable(tuple(raw), sum(len(batch[0]) for batch in batches), left_out, found)


def bounded_tables(tables: Mapping[str, RawTable], asked: OpenTable) -> dict[str, TableSite]:
    """Tables as sites: at most `max_rows_per_unit` rows of a unit at each, `rows_per_unit` at all together.

    Which rows stay follows from nothing but what is asked and the unit's own rows at each site. Rows that do not say
    whom they are about are left out.
    """
    privacy, key = asked.carrier.privacy, bytes.fromhex(asked.carrier.digest)
    units = {name: tables[name].unit for name in sorted(tables)}
    kept: dict[str, tuple[NDArray[np.intp], NDArray[np.str_]]] = {}
    for name, unit in units.items():
        if unit is not None:
            stay, _ = rows_within_bound(unit[1], privacy.max_rows_per_unit, key)
            kept[name] = unit[0][stay], unit[1][stay]
    if len(kept) > 1:
        together, _ = rows_within_bound(np.concatenate([own for _, own in kept.values()]), privacy.rows_per_unit, key)
        ends = np.cumsum([len(rows) for rows, _ in kept.values()])
        for (name, (rows, own)), end in zip(list(kept.items()), ends, strict=True):
            stay = together[(together >= end - len(rows)) & (together < end)] - (end - len(rows))
            kept[name] = rows[stay], own[stay]
    return {
        name: TableSite((), None, kept[name][0] if name in kept else None, table.n_rows, cells=table.columns)
        for name, table in tables.items()
    }


def types_of(location: Location) -> dict[str, str]:
    """By column, "number", "text", "date" or "moment" (a time of day) as the table declares it, "" where its cells say.

    In the header's order.

    A column of a type that Hedgerow does not read is left out.

    Raises:
        DataError: the table cannot be opened, or two of its columns have one name.
    """
    table = opened(location)
    names, types = table.names(), table.types()
    for name in names:
        if name and names.count(name) > 1:
            raise DataError("data-duplicate-column", source=table.source, column=name)
    if not getattr(table, "is_typed", False):
        return {name: "" for name in names if name}
    found = {name: _type_of(types[name]) for name in names if name}
    return {name: kind for name, kind in found.items() if kind is not None}


def _type_of(kind: Any) -> str | None:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_boolean(kind) or encoders.is_text(kind):
        return "text"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "date"
    return "moment" if encoders.is_moment(kind) else None
