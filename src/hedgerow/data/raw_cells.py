# SPDX-License-Identifier: Apache-2.0
"""Tables for surveys, before there is a plan: raw cells, as numbers and texts per column.

The value of a cell depends on that cell and its column's declared type alone. A cell that does not fit (no number in a
column of numbers, text that is not UTF-8) counts as missing. No other cell changes, and nothing is refused because of a
row. Rows with too few or too many fields are left out. The rows of one unit are bounded; then every row is kept.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hedgerow.data import columns as encoders
from hedgerow.data.arrow import classify_type
from hedgerow.data.cells import CellCounts, describe_notes, note_column
from hedgerow.data.columns import Place
from hedgerow.data.hashing import Part
from hedgerow.data.lines import LineCounts
from hedgerow.data.sources import Location, divide_table, find_place, open_table
from hedgerow.data.tables import require_columns
from hedgerow.data.units import RowCount, RowsLeftOut, count_feature, count_left_out, rows_within_bounds
from hedgerow.plan.plan import Feature
from hedgerow.survey.kinds import DATE, TEXT
from hedgerow.survey.queries import RawSite
from hedgerow.survey.requests import OpenTable


@dataclass(frozen=True, eq=False)
class RawColumn:
    """One column, read on first use by the same functions as for training.

    Attributes:
        chunks: its cells in chunks, as its table returned them.
        place: the place of the cells.
        is_date: whether it is declared to be of dates.
        layout: how text writes a date; None for ISO 8601.
    """

    chunks: Sequence[Any]
    place: Place
    is_date: bool = False
    layout: str | None = None

    @cached_property
    def kinds(self) -> NDArray[np.int8]:
        """The kind of each cell: int8 [n], `NUMBER` to `ABSENT`; `DATE` in declared dates if in their format."""
        found = self._read(encoders.kinds, np.int8)
        if not self.is_date:
            return found
        return np.where(np.isnan(self.days), np.where(found == DATE, TEXT, found), DATE).astype(np.int8)

    @cached_property
    def numbers(self) -> NDArray[np.floating]:
        """The column as float64 [n], NaN if a cell is no number; days for declared dates."""
        if self.is_date:
            return self.days
        return self._read(lambda chunk, place: encoders.numbers(chunk, place).values, np.float64)

    @cached_property
    def days(self) -> NDArray[np.float64]:
        """Days since 1970-01-01, float64 [n], NaN where a cell is not a date."""
        return self._read(lambda chunk, place: encoders.days(chunk, self.layout, place).values, np.float64)

    @cached_property
    def texts(self) -> tuple[list[str], NDArray[np.intp]]:
        """The distinct texts, and each cell's index among them: intp [n], -1 for none."""
        numbers_of: dict[str, int] = {}

        def read(chunk: Any, place: Place) -> NDArray[np.intp]:
            distinct, own = encoders.encode_texts(chunk, place)
            table = [numbers_of.setdefault(text, len(numbers_of)) for text in distinct]
            return np.array([*table, -1], dtype=np.intp)[own]

        codes = self._read(read, np.intp)
        return list(numbers_of), codes

    def count_cells(self, asked: Feature) -> CellCounts:
        """Count the cells by the column's declaration: exact and private."""
        counts, (low, high) = CellCounts(), asked.bounds or (-math.inf, math.inf)
        is_number = self.is_date or asked.type in ("numeric", "date")
        kind = "date" if self.is_date else "numeric" if is_number else "categorical"
        item = Feature(name=self.place.column, type=kind, categories=asked.listed, min=low, max=high)
        for chunk in self.chunks:
            if not is_number:
                read = encoders.category_indices(chunk, asked.listed, self.place)
            elif self.is_date:
                read = encoders.days(chunk, self.layout, self.place)
            else:
                read = encoders.numbers(chunk, self.place)
            counts = counts.plus(count_feature(read, item))
        return counts if asked.listed else replace(counts, n_unlisted=0)

    @property
    def share_with_digits(self) -> float:
        """The share of non-missing cells whose text begins with a digit: exact and private."""
        texts, codes = self.texts
        there = codes[codes >= 0]
        begins = np.array([text[:1].isdecimal() for text in texts], dtype=np.bool_)
        return float(np.count_nonzero(begins[there]) / max(len(there), 1)) if len(texts) else 0.0

    def identifiers(self) -> tuple[NDArray[np.intp], NDArray[np.str_]]:
        """Return the rows that have an identifier (intp [n]), and their identifiers (text [n])."""
        fits: list[encoders.Flags] = [np.empty(0, dtype=np.bool_)]

        def read(chunk: Any, place: Place) -> NDArray[np.str_]:
            found = encoders.identifiers(chunk, place)
            fits.append(~found.is_unfit)
            return found.values[fits[-1]]

        found = self._read(read, np.str_)
        return np.flatnonzero(np.concatenate(fits)), found

    def _read(self, read: Callable[[Any, Place], NDArray[Any]], kind: Any) -> NDArray[Any]:
        return np.concatenate([np.empty(0, dtype=kind), *(read(chunk, self.place) for chunk in self.chunks)])


@dataclass(frozen=True, eq=False)
class RawTable:
    """A table's columns, and the rows that were left out because they have another number of fields.

    The counts are exact and of private rows: for the table's own operator.

    Attributes:
        columns: the table's columns.
        n_rows: rows that were read.
        left_out: rows that were not read, by reason.
        unit: rows with an identifier, intp [n], and their identifiers, text [n]; None if identifiers were not read.
        lines: counts of a CSV's lines; None for another source.
    """

    columns: tuple[RawColumn, ...]
    n_rows: int
    left_out: RowsLeftOut = field(default_factory=dict)
    unit: tuple[NDArray[np.intp], NDArray[np.str_]] | None = None
    lines: LineCounts | None = None

    def note_cells(self, asked: Sequence[Feature]) -> str:
        """Return the note for the owner about odd cells (`hedgerow.data.cells`); "" for none."""
        pairs = zip(self.columns, asked, strict=True)
        return describe_notes([note for own, each in pairs for note in note_column(each.name, own.count_cells(each))])

    @property
    def rows(self) -> RowCount:
        """The number of rows used, without rows that have no identifier."""
        n_used, left_out = self.n_rows if self.unit is None else len(self.unit[0]), dict(self.left_out)
        count_left_out(left_out, "data-unit-missing", self.n_rows - n_used)
        return RowCount(n_used, left_out, self.lines)


def read_raw(
    location: Location,
    columns: Sequence[Feature],
    unit: str = "record",
    line_breaks: int = 0,
    part: Part | None = None,
) -> RawTable:
    """Read the named columns of a table.

    Args:
        columns: only their names and the declarations of dates count.
        unit: the column of the unit's identifiers; "record" for none.
        line_breaks: see `Privacy`.
        part: the part of the table to read; None for the whole.

    Raises:
        DataError: the table cannot be read, or lacks a column; never because of what stands in a cell.
    """
    table = open_table(location, line_breaks=line_breaks)
    layouts = {column.name: column.format for column in columns if column.is_date}
    # A date that another table's schema declares may be text here.
    dates = {*layouts, *(name for name, kind in read_types(location).items() if kind == "date")}
    names = [column.name for column in columns]
    names += [] if unit == "record" else [unit]
    require_columns(table.source, names, table.names())
    left_out: RowsLeftOut = {}
    place = find_place(table)
    part = divide_table(table, part, unit)

    def read(batches: Sequence[Sequence[Any]]) -> list[RawColumn]:
        return [
            RawColumn([each[index] for each in batches], replace(place, column=name), name in dates, layouts.get(name))
            for index, name in enumerate(names)
        ]

    batches: list[tuple[Any, ...]] = []
    for batch in map(tuple[Any, ...], table.batches(names, 65536, left_out)):
        batches.append(batch if part is None else _take_part(part, batch, read([batch]), unit))
    raw = read(batches)
    found = None if unit == "record" else raw.pop().identifiers()
    return RawTable(tuple(raw), sum(len(batch[0]) for batch in batches), left_out, found, getattr(table, "lines", None))


def _take_part(part: Part, batch: tuple[Any, ...], columns: Sequence[RawColumn], unit: str) -> tuple[Any, ...]:
    """Take the rows of a batch that are in a part; with a unit, the last column is its identifiers."""
    if unit == "record":
        contents = RawSite(columns, None, len(batch[0])).list_contents()
        rows = np.flatnonzero(part.holds_rows(contents, len(batch[0])))
    else:
        named, whom = columns[-1].identifiers()
        rows = named[part.holds_units(whom)]
    return tuple(
        [column[row] for row in rows] if isinstance(column, list) else column.take(pa.array(rows)) for column in batch
    )


def bound_tables(tables: Mapping[str, RawTable], asked: OpenTable) -> dict[str, RawSite]:
    """Bound the rows of each unit: `max_rows_per_unit` at each site, `rows_per_unit` at all together.

    The choice depends only on the survey and on the unit's own rows at each site. Rows without an identifier are left
    out.
    """
    units = {name: table.unit[1] for name, table in tables.items() if table.unit is not None}
    kept = rows_within_bounds(units, asked.schema_plan)
    return {
        name: RawSite(table.columns, table.unit[0][kept[name][0]] if table.unit is not None else None, table.n_rows)
        for name, table in tables.items()
    }


def read_types(location: Location) -> dict[str, str]:
    """Return the kind of each column that the table declares: "number", "text", "date", or "".

    A time of day is a number. A kind is "" if the cells decide it. Columns come in the header's order, without columns
    that share a name, and without those whose declared type Hedgerow does not read.

    Raises:
        DataError: the table cannot be opened.
    """
    table = open_table(location)
    names, types = table.names(), table.types()
    names = [name for name in names if names.count(name) == 1]
    if not getattr(table, "is_typed", False):
        # The types in a file may follow from a single cell, so they are ignored.
        return {name: "" for name in names if name}
    found = {name: "" if pa.types.is_null(types[name]) else classify_type(types[name]) for name in names if name}
    return {name: kind for name, kind in found.items() if kind is not None}


def read_raw_site(
    location: str | os.PathLike[str],
    asked: OpenTable,
    part: Part | None = None,
    tell: Callable[[RowCount, str], object] = lambda rows, odd: None,
) -> RawSite:
    """Read a site's raw rows for a survey, with at most `max_rows_per_unit` of each unit.

    Rows that cannot be read at all, and rows without an identifier, are left out.

    Args:
        tell: called with the number of rows used and with odd findings about the cells, for the site's owner.

    Raises:
        DataError: the table cannot be read, lacks a column, or has a column of a type that Hedgerow does not read.
    """
    privacy = asked.schema_plan.privacy
    table = read_raw(location, asked.columns, privacy.unit, privacy.line_breaks, part)
    site = bound_tables({"": table}, asked)[""]
    tell(table.rows if site.rows is None else table.rows.bound(len(site.rows)), table.note_cells(asked.columns))
    return site
