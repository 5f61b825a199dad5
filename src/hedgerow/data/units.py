# SPDX-License-Identifier: Apache-2.0
"""A site's records as the plan reads them, and the bound on the rows of one unit of privacy.

`records_from_columns` turns a table's columns into `Records`: one array per feature, the labels, and the identifiers of
the unit of privacy (a patient, a customer). `rows_within_bound` then chooses the rows that stay.

The noise hides any one unit only if each unit adds at most ``max_rows_per_unit`` rows, so this runs before training.
The choice is made per unit, from the key, the identifier and the order of that unit's own rows only:

- not from the label or a feature, because the choice would then depend on the very values that are to be hidden;
- not from absolute row positions or other units, because one unit's presence would then change which rows of *others*
  stay, and its influence would exceed its own rows;
- not simply the first rows in the file, because tables are often sorted by date, and the model would see early years
only.

A site bounds its own rows. At how many sites one unit may have rows is declared in the plan (``sites_per_unit``). Where
all tables are read in one process, their rows are bounded together as well (`hedgerow.data.site_data.bound_sites`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hedgerow.data import columns as encoders
from hedgerow.data.arrow import as_columns, count_cells
from hedgerow.data.cells import CellCounts, Cells, add_cells, count_column
from hedgerow.data.columns import Place, ReadColumn, missing_columns, quote_cell
from hedgerow.data.hashing import Words, hash_texts, mix_words
from hedgerow.data.lines import LineCounts
from hedgerow.errors import DataError, LostRowsError, warn_owner
from hedgerow.plan.plan import Feature, Label, Plan
from hedgerow.trees.binning import MISSING_CATEGORY, UNKNOWN_CATEGORY

FeatureColumn = NDArray[np.float32] | NDArray[np.int32]
LabelColumn = NDArray[np.int32] | NDArray[np.float64]


RowsLeftOut = dict[str, int]
"""Number of rows that did not fit and were left out, by the code of the error that says why.

Each is an exact count of private rows: for the site's own operator, never for a peer.
"""


def count_left_out(left_out: RowsLeftOut, code: str, n_rows: int = 1) -> None:
    """Add `n_rows` to the count of a cause; do nothing for 0."""
    if n_rows:
        left_out[code] = left_out.get(code, 0) + n_rows


BEYOND_BOUND = "privacy.max_rows_per_unit"
MAX_LEFT_OUT = 0.1
"""Largest share of a table's rows that may be left out without an error, unless the user allows more."""
_TOLD_LEFT_OUT = 0.01
_CAUSES = {
    "data-ragged-row": "another number of fields than the header has",
    "data-encoding": "not in the file's encoding",
    "data-wrong-type": "a cell that is no number, or no date",
    "data-label-missing": "no label",
    "data-label-outside": "a label that the plan does not have",
    "data-unit-missing": "no identifier",
    BEYOND_BOUND: "more rows of a unit than the plan uses",
}


class LostRowsWarning(UserWarning):
    """More than a hundredth of the rows is left out, or no row is used. It has exact counts: for the rows' owner."""


@dataclass(frozen=True)
class RowCount:
    """The number of a table's rows that are used: exact and private, for its owner's screen and log only.

    Attributes:
        n_used: rows that fit the plan, within the bound of their unit if that was counted.
        left_out: other rows, by the code that says why.
        lines: line counts of the file, if it has lines.
    """

    n_used: int
    left_out: Mapping[str, int] = field(default_factory=dict)
    lines: LineCounts | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows of the table, used or left out."""
        return self.n_used + sum(self.left_out.values())

    @property
    def share_left_out(self) -> float:
        """The share of all rows that do not fit; 1 if no row is used or there is none."""
        n_unfit = sum(self.left_out.values()) - self.left_out.get(BEYOND_BOUND, 0)
        return n_unfit / self.n_rows if self.n_used else 1.0

    @property
    def has_gaps(self) -> bool:
        """Whether a row is left out, or a line is not a row."""
        return bool(self.left_out) or (self.lines is not None and self.lines.n_lines != self.n_rows)

    def bound(self, n_used: int) -> RowCount:
        """Return this count with only `n_used` rows used.

        The other rows that fit exceed the bound of their unit.
        """
        left_out = dict(self.left_out)
        count_left_out(left_out, BEYOND_BOUND, self.n_used - n_used)
        return replace(self, n_used=n_used, left_out=left_out)

    def text(self) -> str:
        """Describe in words how many rows are used, and why the others are not."""
        found = sorted(self.left_out.items())
        causes = [f"{n_rows:,} {code} ({_CAUSES.get(code, 'see docs/errors.md')})" for code, n_rows in found]
        said = f" Left out: {'; '.join(causes)}." if causes else ""
        if self.lines is not None:
            odd = ((self.lines.n_blank, "blank"), (self.lines.n_joined, "of a cell that goes on"))
            also = [f"{count:,} {what}" for count, what in odd if count]
            said += f" Lines: {self.lines.n_lines:,}{', of which ' * bool(also)}{', '.join(also)}."
        return f"{self.n_used:,} of {self.n_rows:,} rows used.{said}"

    def require(self, source: object, allowed: float = MAX_LEFT_OUT) -> None:
        """Raise LostRowsError if no row is used, or a larger share than `allowed` is left out."""
        if self.share_left_out <= allowed and self.n_used:
            return
        most = math.ceil(self.share_left_out * 100) / 100
        way = f" If these rows are to be left out, allow that share: --allow-loss {most:g}." if self.n_used else ""
        raise LostRowsError("rows-left-out", source=source, rows=self.text(), allowed=way)

    def warn(self) -> None:
        """Warn the Python caller with LostRowsWarning if more than one row in a hundred is lost."""
        if self.share_left_out > _TOLD_LEFT_OUT:
            warn_owner(self.text(), LostRowsWarning)


@dataclass(frozen=True, eq=False)
class Records:
    """Records of one site, column by column, in the order of the file.

    Attributes:
        features: in the plan's order. Numeric: float32 [n], NaN where missing, infinite values kept (binning clamps
            them). Categorical: int32 [n], the index in `Feature.categories`, -1 for a value that is not listed, -2
            where missing.
        label: values from `LabelKind.values`: int32 [n], the index in `Label.classes` or the code of a time to an
            event; float64 [n] of numbers, also beyond the label's bounds; None if it was not asked for.
        unit: text [n], the identifier whose rows the plan protects together; None if the unit is the record.
        n_records: n.
        fits: bool [n_read], flags of these records among the rows that were read; None for all.
        cells: how the plan reads the cells of all rows that were read, by column: for the rows' owner.
    """

    features: tuple[FeatureColumn, ...]
    label: LabelColumn | None
    unit: NDArray[np.str_] | None
    n_records: int
    fits: NDArray[np.bool_] | None = None
    cells: Cells = field(default_factory=dict)

    def take(self, indices: NDArray[np.intp]) -> Records:
        """Return the records at `indices`, in that order."""
        return Records(
            features=tuple(column[indices] for column in self.features),
            label=None if self.label is None else self.label[indices],
            unit=None if self.unit is None else self.unit[indices],
            n_records=len(indices),
        )


def list_needed_columns(plan: Plan, *, with_label: bool = True) -> tuple[str, ...]:
    """List the columns that a table must have: features, and unless it predicts, label and identifier.

    Labels never come without identifiers: whatever is computed from them is bounded by unit.
    """
    names = list(plan.feature_names)
    if with_label:
        names += plan.label.columns
    if plan.privacy.unit != "record" and with_label:
        names.append(plan.privacy.unit)
    return tuple(names)


_ANY_TABLE = Place("the table", "")


def records_from_columns(
    columns: Any,
    plan: Plan,
    *,
    with_label: bool = True,
    table: Place = _ANY_TABLE,
    left_out: RowsLeftOut | None = None,
) -> Records:
    """Encode a table's columns as the plan says.

    Columns come by name (numpy arrays, lists, Arrow or pandas columns), or as a table of pandas, polars, Arrow, DuckDB
    and the like, computed or lazy. Columns that the plan does not name are ignored: a site's table may hold more than a
    study may use.

    Args:
        table: the place of the table, without a column.
        left_out: counts of rows that do not fit; they are left out whole, and no other row changes. None raises for the
            first.

    Raises:
        DataError: a column is missing, columns differ in length, a column has a type that Hedgerow does not read;
            without `left_out` also for a cell that is not a number, a label that is missing or outside the plan, a
            missing identifier, text that is not UTF-8.
    """
    columns = as_columns(columns)
    names = list_needed_columns(plan, with_label=with_label)
    missing = [name for name in names if name not in columns]
    if missing:
        raise missing_columns(table.source, missing, [str(name) for name in columns])
    lengths = {count_cells(columns[name], table.source, name) for name in names}
    if len(lengths) != 1:
        raise DataError("data-lengths", source=f"{table.source}: a column", found=min(lengths), n_rows=max(lengths))

    def place(name: str) -> Place:
        return replace(table, column=name)

    n_records = lengths.pop()
    fits, cells, features = np.ones(n_records, dtype=np.bool_), dict[str, CellCounts](), list[FeatureColumn]()

    def take(read: ReadColumn) -> NDArray[Any]:
        """Return the values; count rows that do not fit by their first reason, or raise for the first of them."""
        if left_out is None:
            return read.require()
        for rows, code, _ in read.faults:
            if rows.any():
                count_left_out(left_out, code, int(np.count_nonzero(rows & fits)))
                np.logical_and(fits, ~rows, out=fits)
        return read.values

    for item in plan.features:
        read = read_feature(columns[item.name], item, place(item.name))
        features.append(take(read))
        cells[item.name] = count_feature(read, item)
    label = take(_read_label(columns, plan.label, table)) if with_label else None
    if label is not None:
        cells |= count_label(label, plan.label)
    records = Records(
        features=tuple(features),
        label=label,
        unit=(
            take(encoders.identifiers(columns[plan.privacy.unit], place(plan.privacy.unit)))
            if plan.privacy.unit in names
            else None
        ),
        n_records=n_records,
        cells=cells,
    )
    return records if fits.all() else replace(records.take(np.flatnonzero(fits)), fits=fits, cells=cells)


def count_feature(read: ReadColumn, item: Feature) -> CellCounts:
    """Count the cells of a feature's column by how the plan reads them."""
    n_unfit, n_undecodable = map(int, map(np.count_nonzero, (read.is_unfit, read.is_undecodable)))
    return count_column(read.values, item, n_unread=n_unfit - n_undecodable, n_undecodable=n_undecodable)


def count_label(values: LabelColumn, label: Label) -> dict[str, CellCounts]:
    """Count the cells of a numeric label, by its name.

    Rows of other labels that do not fit are counted as rows, so the result is {} then.
    """
    if not label.kind.is_number:
        return {}
    low, high = label.bounds
    n_below, n_above = int(np.count_nonzero(values < low)), int(np.count_nonzero(values > high))
    return {label.name: CellCounts(len(values), n_below=n_below, n_above=n_above)}


def concatenate(records: Iterable[Records]) -> Records:
    """Join the records of one plan in their order.

    Raises:
        DataError: there are none.
    """
    parts = list(records)
    if not parts:
        raise DataError("data-empty", source="the site's data")
    if len(parts) == 1:
        return parts[0]
    labels: list[NDArray[Any]] = [part.label for part in parts if part.label is not None]
    units = [part.unit for part in parts if part.unit is not None]
    return Records(
        features=tuple(np.concatenate(column) for column in zip(*(part.features for part in parts), strict=True)),
        label=np.concatenate(labels) if labels else None,
        unit=np.concatenate(units) if units else None,
        n_records=sum(part.n_records for part in parts),
        cells=add_cells([part.cells for part in parts]),
    )


def read_feature(column: Any, feature: Feature, place: Place) -> ReadColumn:
    """Read a feature's column as in `Records`.

    Raises DataError for a column type that Hedgerow does not read.
    """
    if feature.is_hashed and feature.buckets is not None:
        return encoders.bucket_indices(column, feature.buckets, place)
    if feature.is_categorical:
        return encoders.category_indices(column, feature.categories, place)
    read = encoders.days(column, feature.format, place) if feature.is_date else encoders.numbers(column, place)
    # A number beyond float32 becomes infinite, and is then clamped to the bounds like any other.
    with np.errstate(over="ignore"):
        return replace(read, values=read.values.astype(np.float32))


def _read_label(columns: Mapping[str, Any], label: Label, table: Place) -> ReadColumn:
    """Read the labels of a table, as in `Records`."""
    own = label.kind.columns(label)
    places = [replace(table, column=each.name) for each in own]

    def explain(number: int, make: Callable[[str, str], Any]) -> Callable[[int], DataError]:
        column, at = columns[own[number].name], places[number].at
        return lambda index: make(at(index), quote_cell(encoders.value_at(column, index)))

    def missing(at: str, _: str) -> DataError:
        return DataError("data-label-missing", place=at)

    read = [
        encoders.category_indices(columns[each.name], each.words, place)
        if each.words
        else encoders.numbers(columns[each.name], place)
        for each, place in zip(own, places, strict=True)
    ]
    cells, faults = [each.values for each in read], [fault for each in read for fault in each.faults]
    for number, (each, found) in enumerate(zip(own, cells, strict=True)):
        is_missing = found == MISSING_CATEGORY if each.words else np.isnan(found)
        faults.append((is_missing, "data-label-missing", explain(number, missing)))
    for number, (each, found) in enumerate(zip(own, cells, strict=True)):
        if each.outside is not None:
            is_outside = found == UNKNOWN_CATEGORY if each.words else found < (each.least or 0.0)
            faults.append((is_outside, "data-label-outside", explain(number, each.outside)))
    return ReadColumn(label.kind.values(cells, label), faults)


@dataclass(frozen=True)
class ContributionReport:
    """The rows that a site left out.

    These are counts of private rows: for the site's owner, never for a peer.

    Attributes:
        n_units: different identifiers.
        n_rows: rows that fit the plan.
        n_dropped: of these, rows left out because their unit had more rows than the bound.
        unfit: rows left out because they do not fit the plan, by the code of the error that says why.
        cells: how the plan reads the cells of each column, by its name.
        lines: line counts as in `RowCount`.
    """

    n_units: int
    n_rows: int
    n_dropped: int
    unfit: Mapping[str, int] = field(default_factory=dict)
    cells: Cells = field(default_factory=dict)
    lines: LineCounts | None = None

    @property
    def rows(self) -> RowCount:
        """The number of rows used, and of those left out by reason."""
        return RowCount(self.n_rows, self.unfit, self.lines).bound(self.n_rows - self.n_dropped)


def rows_within_bound(
    unit: NDArray[np.str_], max_rows_per_unit: int, key: bytes
) -> tuple[NDArray[np.intp], ContributionReport]:
    """Choose at most `max_rows_per_unit` rows of each unit, uniformly by a keyed hash.

    Args:
        unit: text [n], one identifier per row.
        max_rows_per_unit: at least 1.
        key: any bytes that do not depend on data, the same at every site, such as the plan's digest.

    Returns:
        intp [n_kept], ascending row indices, and the report.
    """
    if max_rows_per_unit < 1:
        raise ValueError(f"max_rows_per_unit is {max_rows_per_unit}; expected at least 1")
    n_rows = len(unit)
    codes = np.asarray(pc.dictionary_encode(pa.array(unit, type=pa.string())).indices, dtype=np.int64)
    counts = np.bincount(codes) if n_rows else np.zeros(0, dtype=np.int64)
    report = ContributionReport(
        n_units=len(counts),
        n_rows=n_rows,
        n_dropped=int(np.maximum(counts - max_rows_per_unit, 0).sum()),
    )
    if not report.n_dropped:
        return np.arange(n_rows, dtype=np.intp), report
    tickets = _hash_tickets(unit, _rank_within_group(np.argsort(codes, kind="stable"), codes, counts), key)
    by_ticket = np.lexsort((tickets, codes))
    rank = _rank_within_group(by_ticket, codes, counts)
    return np.flatnonzero(rank < max_rows_per_unit), report


def rows_within_bounds(
    units: Mapping[str, NDArray[np.str_]], plan: Plan
) -> dict[str, tuple[NDArray[np.intp], ContributionReport]]:
    """Choose rows of each unit: `max_rows_per_unit` at each site, `rows_per_unit` at all together.

    Args:
        units: text [n], one identifier per row, by the site's name.
        plan: has the bounds, and its digest is the key.

    Returns:
        The result of `rows_within_bound`, by the site's name.
    """
    privacy, key = plan.privacy, bytes.fromhex(plan.digest)
    kept = {name: rows_within_bound(units[name], privacy.max_rows_per_unit, key) for name in sorted(units)}
    if len(kept) > 1:
        staying = np.concatenate([units[name][rows] for name, (rows, _) in kept.items()])
        together, _ = rows_within_bound(staying, privacy.rows_per_unit, key)
        first = 0
        for name, (rows, report) in kept.items():
            own = together[(together >= first) & (together < first + len(rows))] - first
            kept[name] = rows[own], replace(report, n_dropped=report.n_rows - len(own))
            first += len(rows)
    return kept


def bound_records(records: Iterable[Records], plan: Plan) -> Records:
    """Return a table's records with labels, as a training would use them.

    At most `max_rows_per_unit` of each unit stay.

    Raises:
        DataError: there are none.
    """
    whole = concatenate(records)
    return whole if whole.unit is None else whole.take(rows_within_bounds({"": whole.unit}, plan)[""][0])


def _rank_within_group(
    order: NDArray[np.intp], codes: NDArray[np.int64], counts: NDArray[np.intp]
) -> NDArray[np.int64]:
    """Return int64 [n]: each row's position among the rows of its group, in `order`.

    `order` is sorted by group.
    """
    first = np.cumsum(counts) - counts
    rank = np.empty(len(codes), dtype=np.int64)
    rank[order] = np.arange(len(codes)) - first[codes[order]]
    return rank


def _hash_tickets(unit: NDArray[np.str_], occurrence: NDArray[np.int64], key: bytes) -> Words:
    """Return uint64 [n]: a keyed hash of each row's identifier and its occurrence number.

    The hash only spreads the choice; nothing secret depends on it, so a fast mixing function suffices (splitmix64,
    Steele et al. 2014).
    """
    seed = np.uint64(int.from_bytes(hashlib.sha256(key).digest()[:8], "little"))
    return mix_words(hash_texts(unit, seed) ^ mix_words(occurrence.astype(np.uint64) + seed))
