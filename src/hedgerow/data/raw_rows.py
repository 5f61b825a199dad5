"""From a table to the raw cells that a survey reads: bound what one unit adds, then keep every row.

A cell that does not fit (no number where one is asked for, text that is not UTF-8) counts as missing, by itself: no
other cell changes, and nothing is refused for what stands in a row.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.data import columns as encoders
from hedgerow.data.faults import Place
from hedgerow.data.raw_tables import bounded_tables, read_raw
from hedgerow.data.sources import opened, place_of
from hedgerow.data.units import RowsLeftOut, rows_within_bound
from hedgerow.errors import DataError
from hedgerow.plan.plan import Feature
from hedgerow.survey.open_plans import Asked, OpenPlan, OpenTable
from hedgerow.survey.queries import RawSite, TableSite

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
