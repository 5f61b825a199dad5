"""From a site's records to what its node holds: bound what one unit adds, then bin.

Rows are binned chunk by chunk, so a site's table is never in memory as anything wider than one or two bytes per value.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hedgerow.data.lines import LineCounts
from hedgerow.data.sources import open_table, read_records
from hedgerow.data.units import ContributionReport, Records, RowsLeftOut, count_beyond, rows_within_bounds
from hedgerow.errors import DataError
from hedgerow.plan.plan import Plan
from hedgerow.trees.binning import CodeArray, FloatArray, Grid, PlaceArray, build_grid


class Recoded(NamedTuple):
    """Rows by the new edges of some features.

    Attributes:
        edges: float32 by feature.
        codes: as those of `SiteData`.
    """

    edges: Mapping[int, FloatArray]
    codes: CodeArray


@dataclass(frozen=True, eq=False)
class HeldValues:
    """Values that are in memory as long as the rows are in use: their places are made when a run asks for them.

    Few runs cut a feature again, and finding the places of all values takes longer than binning them.

    Attributes:
        grid: that the codes are of.
        values: all values of a feature, by its number, as `Grid.encode` takes them; the same ones at every call.
        rows: intp [n], which of them are the rows; None for all.
        made: uint8 [n] by feature, the places that were asked for.
    """

    grid: Grid
    values: Callable[[int], NDArray[np.generic]]
    rows: NDArray[np.intp] | None = None
    made: dict[int, NDArray[np.uint8]] = field(default_factory=dict)

    def only(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> HeldValues:
        """Some of the rows, by their numbers or by bool [n]."""
        numbers = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows.astype(np.intp)
        return HeldValues(self.grid, self.values, numbers if self.rows is None else self.rows[numbers])

    def places(self, feature: int, codes: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.uint8]:
        """The places of a feature's values, of these codes: uint8 [n]."""
        if feature not in self.made:
            values = self.values(feature)
            own = values if self.rows is None else values[self.rows]
            self.made[feature] = self.grid.features[feature].places(own, codes)
        return self.made[feature]


@dataclass(frozen=True, eq=False)
class SiteData:
    """A site's rows after binning.

    Attributes:
        codes: uint8 or uint16 [n_features, n], the grid codes.
        labels: int32 [n]: the class index, or a regression's label scaled to [-1, 1] in units of 2**-16.
        places: uint8 [n_divisible, n], where values stand within their cells (`Grid.places`), or the values that they
            are made of; None where the grid has no such features. Without them a run that cuts a feature again fails.
    """

    codes: CodeArray
    labels: NDArray[np.int32]
    places: PlaceArray | HeldValues | None = None

    @property
    def n_records(self) -> int:
        return len(self.labels)

    def only(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> SiteData:
        """Some of the rows, by their numbers or by bool [n]."""
        places = self.places.only(rows) if isinstance(self.places, HeldValues) else self.places
        if isinstance(places, np.ndarray):
            places = np.ascontiguousarray(places[:, rows])
        return SiteData(np.ascontiguousarray(self.codes[:, rows]), self.labels[rows], places)

    def all_places(self) -> PlaceArray | None:
        """The places of all features that have any, also of those that were not asked for: uint8 [n_divisible, n]."""
        if not isinstance(self.places, HeldValues):
            return self.places
        found = [self.places.places(feature, self.codes[feature]) for feature in self.places.grid.divisible]
        return np.array(found) if found else None

    def _find_places(self, feature: int, grid: Grid) -> NDArray[np.uint8]:
        if isinstance(self.places, HeldValues):
            return self.places.places(feature, self.codes[feature])
        if self.places is None:
            raise DataError("data-outside-plan", site="A site", fault="no places of values within their cells")
        return np.asarray(self.places[grid.divisible.index(feature)])

    def codes_in(self, grid: Grid, new_edges: Mapping[int, FloatArray], before: Recoded | None = None) -> CodeArray:
        """The codes by these edges of some features, all others as they are: a new array if any has some.

        Each follows from its value's code and place alone, by a public table.

        Args:
            grid: that the codes are of.
            new_edges: float32 by feature, see `FeatureGrid.cut_again`.
            before: codes by earlier edges; what has the same edges is taken from there, as one or two features are cut
                at a time. A training with 1,000 features takes 17 s of processor time by it, and took 230 s.

        Raises:
            DataError: the rows have no places.
        """
        if not new_edges:
            return self.codes
        codes = self.codes.copy()
        for feature, edges in new_edges.items():
            if before is not None and np.array_equal(before.edges.get(feature, ()), edges):
                codes[feature] = before.codes[feature]
                continue
            first = grid.features[feature]
            table = first.codes_in(first.cut_again(edges)).astype(codes.dtype)
            codes[feature] = table[self.codes[feature], self._find_places(feature, grid)]
        return codes


@dataclass(frozen=True, eq=False)
class SiteRows:
    """All rows of a site's table, before the bound on rows per unit.

    Attributes:
        data: the rows.
        unit: text [n], each row's identifier; None where the plan protects records.
        unfit: rows that were left out because they do not fit the plan, by what is wrong with them.
        beyond: rows whose value of a feature is clamped, or not listed, by the feature's name.
        lines: of its file, if the rows are lines.
    """

    data: SiteData
    unit: NDArray[np.str_] | None
    unfit: RowsLeftOut = field(default_factory=dict)
    beyond: dict[str, int] = field(default_factory=dict)
    lines: LineCounts | None = None


def site_rows_from_records(chunks: Iterable[Records], plan: Plan, left_out: RowsLeftOut | None = None) -> SiteRows:
    """All rows of a site's table; arguments and errors as in `site_data_from_records`."""
    grid = build_grid(plan)
    codes, places = [np.empty((grid.n_features, 0), grid.dtype)], [np.empty((len(grid.divisible), 0), np.uint8)]
    labels, units = [np.empty(0, dtype=np.int32)], [np.empty(0, dtype=np.str_)]
    beyond = dict.fromkeys(plan.feature_names, 0)
    for records in chunks:
        for name, n_cells in count_beyond(records.features, plan):
            beyond[name] += n_cells
        codes.append(grid.encode(records.features))
        places.append(grid.places(records.features, codes[-1]))
        if records.label is None:
            raise DataError("data-label-missing", place="The records")
        labels.append(plan.label.kind.encode(records.label, plan.label))
        if records.unit is not None:
            units.append(records.unit)
    if left_out is None and not sum(map(len, labels)):
        raise DataError("data-empty", source="The site")
    within = np.concatenate(places, axis=1) if grid.divisible else None
    data = SiteData(np.concatenate(codes, axis=1), np.concatenate(labels), within)
    unfit = dict(left_out or {})
    if plan.privacy.unit == "record":
        return SiteRows(data, None, unfit, beyond)
    if sum(map(len, units)) != data.n_records:
        raise DataError("data-unit-missing", place="The records")
    return SiteRows(data, np.concatenate(units), unfit, beyond)


def site_data_from_records(
    chunks: Iterable[Records], plan: Plan, left_out: RowsLeftOut | None = None
) -> tuple[SiteData, ContributionReport]:
    """One site's rows, with at most `plan.privacy.max_rows_per_unit` of each unit of privacy.

    Several tables that one process reads are to be bounded together: see `read_sites_data`.

    Args:
        chunks: the site's records in the order of its table, with labels, and identifiers if the plan has a unit.
        left_out: where the reader counts rows that do not fit. With it, a site without any row takes part with sums of
            zero: if it refused, the others would know of one row whether it is there. None refuses.

    Returns:
        The data for a node, and which rows were left out (for the site's owner only).

    Raises:
        DataError: when there are no records (without `left_out`), or they were read without labels or identifiers.
    """
    return bound_sites({"": site_rows_from_records(chunks, plan, left_out)}, plan)[""]


def bound_sites(sites: Mapping[str, SiteRows], plan: Plan) -> dict[str, tuple[SiteData, ContributionReport]]:
    """Each site's rows for its node: at most `max_rows_per_unit` of a unit at each, `rows_per_unit` at all together.

    Which rows stay follows from nothing but the plan, and the unit's own rows at each site.

    Args:
        sites: all sites of a run, by name.
    """
    units = {name: rows.unit for name, rows in sites.items() if rows.unit is not None}
    kept = rows_within_bounds(units, plan.privacy, bytes.fromhex(plan.digest))
    found = {}
    for name, rows in sites.items():
        n_rows = rows.data.n_records
        stay, report = kept.get(name, (None, ContributionReport(n_rows, n_rows, 0)))
        data = rows.data if stay is None or not report.n_dropped else rows.data.only(stay)
        found[name] = data, replace(report, unfit=rows.unfit, beyond=rows.beyond, lines=rows.lines)
    return found


def read_site_data(
    path: str | os.PathLike[str], plan: Plan, *, strict: bool = False
) -> tuple[SiteData, ContributionReport]:
    """The same from a file or a URL (`hedgerow.data.sources`); rows that do not fit are left out and counted.

    Args:
        strict: refuse the first row that does not fit, and a table without rows. In a federation this tells the others
            something about a single row.

    Raises:
        DataError: the table cannot be read or lacks a column; if strict, also for a row.
    """
    return bound_sites({"": read_site_rows(path, plan, strict=strict)}, plan)[""]


def read_site_rows(path: str | os.PathLike[str], plan: Plan, *, strict: bool = False) -> SiteRows:
    """All rows of a table, for `bound_sites`; arguments and errors as in `read_site_data`."""
    left_out: RowsLeftOut | None = None if strict else {}
    table = open_table(path, plan.privacy.line_breaks)
    rows = site_rows_from_records(read_records(table, plan, left_out=left_out), plan, left_out)
    # Arrow would keep the room of the table for the next one.
    pa.default_memory_pool().release_unused()
    return replace(rows, lines=getattr(table, "lines", None))


def read_sites_data(
    paths: Mapping[str, str | os.PathLike[str]], plan: Plan, *, strict: bool = False
) -> dict[str, SiteData]:
    """The rows of all sites of a run, from a file each, with the rows of one unit bounded over all of them.

    Args:
        paths: each site's file, or URL, by the site's name.
        strict: see `read_site_data`.

    Raises:
        DataError: as `read_site_data`.
    """
    rows = {name: read_site_rows(path, plan, strict=strict) for name, path in paths.items()}
    return {name: data for name, (data, _) in bound_sites(rows, plan).items()}
