"""Tables as they stand, for surveys and for statistics before there is a plan: raw cells, per column numbers and texts.

What a cell counts as depends on that cell and its column's declared type alone. One that does not fit (no number where
one is asked for, text that is not UTF-8) counts as missing, by itself: no other cell changes, and nothing is refused
for what stands in a row. Rows with too few or too many fields are left out. What one unit adds is bounded, then every
row is kept.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hedgerow.data import columns as encoders
from hedgerow.data.columns import Place
from hedgerow.data.lines import LineCounts
from hedgerow.data.sources import Location, opened, place_of
from hedgerow.data.tables import require_columns
from hedgerow.data.units import RowCount, RowsLeftOut, count_left_out, rows_within_bound
from hedgerow.errors import DataError
from hedgerow.plan.plan import Feature
from hedgerow.survey.queries import RawSite, TableSite
from hedgerow.survey.requests import Asked, OpenPlan, OpenTable
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
        """Float64 [n], NaN where a cell is not a number; of dates the days since 1970-01-01."""
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
    lines: LineCounts | None = None

    @property
    def rows(self) -> RowCount:
        """How many rows are used: not those that do not say whom they are about."""
        n_used, left_out = self.n_rows if self.unit is None else len(self.unit[0]), dict(self.left_out)
        count_left_out(left_out, "data-unit-missing", self.n_rows - n_used)
        return RowCount(n_used, left_out, self.lines)


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
    return RawTable(tuple(raw), sum(len(batch[0]) for batch in batches), left_out, found, getattr(table, "lines", None))


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

    A column of a type that Hedgerow does not read is left out, and so are columns of one name.

    Raises:
        DataError: the table cannot be opened.
    """
    table = opened(location)
    names, types = table.names(), table.types()
    names = [name for name in names if names.count(name) == 1]
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


_CHUNK_ROWS = 65536


def read_raw_site(location: str | os.PathLike[str], asked: Asked) -> RawSite:
    """A site's raw rows for a survey, with at most `max_rows_per_unit` of each unit.

    Rows that cannot be read at all, and such without an identifier of their unit, are left out.

    Raises:
        DataError: the table cannot be read, lacks a column, or has a column of a type that Hedgerow does not read.
    """
    if isinstance(asked, OpenTable):
        table = read_raw(location, asked.columns, asked.carrier.privacy.unit)
        return bounded_tables({"": table}, asked)[""]
    return _read_plan_site(location, asked)


def _read_plan_site(location: str | os.PathLike[str], asked: OpenPlan) -> RawSite:
    names, left_out = asked.read_columns, RowsLeftOut()
    table = opened(location)
    place = place_of(table)
    unit = asked.carrier.privacy.unit
    # Where nothing but the number of records is asked for, any column tells how many rows there are.
    wanted = names or asked.carrier.feature_names[:1]
    parts: list[dict[str, Any]] = []
    for batch in table.batches(wanted, _CHUNK_ROWS, left_out):
        cells = dict(zip(wanted, batch, strict=True))
        parts.append(_read(cells, asked, unit, place))
        place = replace(place, first_row=place.first_row + len(batch[0]))
    return _joined(parts, asked, unit)


def digest_of_raw(rows: RawSite) -> bytes:
    """32 bytes that tell whether a site's raw rows are the same as before; they never leave the site."""
    hasher = hashlib.sha256(rows.n_all.to_bytes(8, "big"))
    texts = [] if rows.texts is None else [repr(rows.texts.tolist()).encode()]
    kept = b"" if rows.rows is None else rows.rows.tobytes()
    columns: list[NDArray[Any]] = list(rows.columns)
    for column in rows.cells if isinstance(rows, TableSite) else ():
        columns += [column.numbers, column.is_text]
        if column.is_text.any():
            names, codes = column.texts
            columns.append(codes)
            texts.append(repr(names).encode())
    for part in (*(np.asarray(own, dtype=np.float64).tobytes() for own in columns), *texts, kept):
        hasher.update(len(part).to_bytes(8, "big"))
        hasher.update(part)
    return hasher.digest()


def _read(cells: dict[str, Any], asked: OpenPlan, unit: str, table: Place) -> dict[str, Any]:
    label, n_rows = asked.trial.label.name, len(next(iter(cells.values())))
    found: dict[str, Any] = {"": n_rows}
    features = {feature.name: feature for feature in asked.trial.features}
    for name in (*asked.columns, *([label] if asked.label_asked in ("bounds", "values") else [])):
        found[name] = _numbers(cells[name], features.get(name), replace(table, column=name))
    if asked.label_asked == "texts":
        texts, codes = encoders.coded_texts(cells[label], replace(table, column=label))
        # The last is for the code -1: no text.
        found[label] = np.array([*texts, None], dtype=object)[codes]
    if unit != "record":
        fits = np.ones(n_rows, dtype=np.bool_)

        def unfit(rows: NDArray[np.bool_], code: str, error_at: Callable[[int], DataError]) -> None:
            np.logical_and(fits, ~rows, out=fits)

        identifiers = encoders.identifiers(cells[unit], replace(table, column=unit), unfit)[fits]
        found = {name: own[fits] for name, own in found.items() if name} | {"": int(fits.sum()), unit: identifiers}
    return found


def _numbers(column: Any, feature: Feature | None, place: Place) -> NDArray[np.float64]:
    """The column as numbers, dates as days; NaN where a cell is neither."""
    bad: list[NDArray[np.bool_]] = []

    def unfit(rows: NDArray[np.bool_], code: str, error_at: Callable[[int], DataError]) -> None:
        bad.append(rows)

    if feature is not None and feature.is_date:
        found = encoders.days(column, feature.format, place, unfit)
    else:
        found = encoders.numbers(column, place, unfit)
    return np.where(np.logical_or.reduce(bad), np.nan, found) if bad else found


def _joined(parts: list[dict[str, Any]], asked: OpenPlan, unit: str) -> RawSite:
    label = asked.trial.label.name

    def column(name: str, kind: Any) -> NDArray[Any]:
        return np.concatenate([np.empty(0, dtype=kind), *(part[name] for part in parts)])

    numeric = (*asked.columns, *([label] if asked.label_asked in ("bounds", "values") else []))
    texts = column(label, object) if asked.label_asked == "texts" else None
    n_all = sum(part[""] for part in parts)
    kept = None
    if unit != "record":
        identifiers = column(unit, "U1")
        privacy = asked.carrier.privacy
        kept, _ = rows_within_bound(identifiers, privacy.max_rows_per_unit, bytes.fromhex(asked.carrier.digest))
    return RawSite([column(name, np.float64) for name in numeric], texts, kept, n_all)
