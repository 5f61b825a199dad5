# SPDX-License-Identifier: Apache-2.0
"""Turn a site's records into its node's data: bound the rows of each unit, then bin.

Rows are binned chunk by chunk, so a site's table is never in memory as anything wider than one or two bytes per value.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hedgerow.data.cells import Cells, add_cells
from hedgerow.data.lines import LineCounts
from hedgerow.data.mapped import ExternalMemory, Stretches, make_zeros
from hedgerow.data.sources import Location, divide_table, open_table, read_records
from hedgerow.data.units import ContributionReport, Part, Records, RowsLeftOut, rows_within_bounds
from hedgerow.errors import DataError
from hedgerow.plan.plan import Plan
from hedgerow.trees.binning import CodeArray, FloatArray, Grid, PlaceArray, build_grid


class Recoded(NamedTuple):
    """Codes of the rows by new edges of some features.

    Attributes:
        edges: float32 by feature.
        codes: codes as in `SiteData`.
    """

    edges: Mapping[int, FloatArray]
    codes: CodeArray


@dataclass(frozen=True, eq=False)
class HeldValues:
    """Values kept in memory with the rows; their places are computed when a run asks for them.

    Few runs cut a feature again, and finding the places of all values takes longer than binning them.

    Attributes:
        grid: the grid of the codes.
        values: returns all values of a feature, given its number, as `Grid.encode` takes them; the same at every call.
        rows: intp [n], indices of the rows among the values; None for all.
        made: places that were computed already, uint8 [n] by feature.
    """

    grid: Grid
    values: Callable[[int], NDArray[np.generic]]
    rows: NDArray[np.intp] | None = None
    made: dict[int, NDArray[np.uint8]] = field(default_factory=dict)

    def only(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> HeldValues:
        """Return some of the rows, by their numbers or by bool [n]."""
        numbers = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows.astype(np.intp)
        return HeldValues(self.grid, self.values, numbers if self.rows is None else self.rows[numbers])

    def places(self, feature: int, codes: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.uint8]:
        """Return the places of a feature's values within their cells: uint8 [n]."""
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
        places: uint8 [n_divisible, n], positions of values within their cells (`Grid.places`), or the values to compute
            them from; None if the grid has no such features. Without them a run that cuts a feature again fails.
        memory: the folder of external memory for arrays as long as the rows; None for none.
    """

    codes: CodeArray
    labels: NDArray[np.int32]
    places: PlaceArray | HeldValues | None = None
    memory: Path | None = None

    @property
    def n_records(self) -> int:
        return len(self.labels)

    def only(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> SiteData:
        """Return some of the rows, by their numbers or by bool [n]."""
        numbers = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows

        def take(columns: NDArray[Any]) -> NDArray[Any]:
            found = make_zeros(self.memory, (len(columns), len(numbers)), columns.dtype)
            for out, column in zip(found, columns, strict=True):
                np.take(column, numbers, out=out)
            return found

        places = self.places.only(numbers) if isinstance(self.places, HeldValues) else self.places
        within = take(places) if isinstance(places, np.ndarray) else places
        return SiteData(take(self.codes), take(self.labels[None])[0], within, self.memory)

    def list_contents(self) -> list[NDArray[Any]]:
        """Return everything that distinguishes rows, as arrays of numbers of shape [n_records]."""
        places = self.all_places()
        return [*self.codes, self.labels, *(() if places is None else places)]

    def digest(self) -> bytes:
        """Return 32 bytes that differ if the rows differ; they never leave the site."""
        hasher, places = hashlib.sha256(), self.all_places()
        arrays = [self.codes, self.labels] if places is None else [self.codes, self.labels, places]
        own = [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays]
        for part in (memoryview(str(self.codes.shape).encode()), *own):
            hasher.update(len(part).to_bytes(8, "big"))
            hasher.update(part)
        return hasher.digest()

    def all_places(self) -> PlaceArray | None:
        """Return the places of all features that have any, computed or not: uint8 [n_divisible, n]."""
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
        """Return the codes by new edges of some features, in an array of their own.

        Each code follows from its value's code and place alone, by a public table.

        Args:
            new_edges: float32 by feature, see `FeatureGrid.cut_again`.
            before: codes by earlier edges; they are overwritten. Only one or two features are cut at a time, so a copy
                of all would cost a byte and some time per value.

        Raises:
            DataError: the rows have no places.
        """
        if not new_edges:
            return self.codes
        if before is None or np.may_share_memory(before.codes, self.codes):
            before = Recoded({}, make_zeros(self.memory, self.codes.shape, self.codes.dtype))
            before.codes[:] = self.codes
        # Return a view, a new object on the same memory: caches are keyed by the codes object.
        codes = before.codes.view()
        for feature in before.edges.keys() - new_edges.keys():
            codes[feature] = self.codes[feature]
        for feature, edges in new_edges.items():
            known = before.edges.get(feature)
            if known is not edges and (known is None or not np.array_equal(known, edges)):
                first = grid.features[feature]
                table = first.codes_in(first.cut_again(edges)).astype(codes.dtype)
                codes[feature] = table[self.codes[feature], self._find_places(feature, grid)]
        return codes


@dataclass(frozen=True, eq=False)
class SiteRows:
    """All rows of a site's table, before the rows of each unit are bounded.

    Attributes:
        data: the rows.
        unit: text [n], each row's identifier; None if the plan protects records.
        unfit: rows that were left out because they do not fit the plan, by the fault.
        cells: how the plan reads the cells of each column, by its name.
        lines: line counts of its file, if it has lines.
    """

    data: SiteData
    unit: NDArray[np.str_] | None
    unfit: RowsLeftOut = field(default_factory=dict)
    cells: Cells = field(default_factory=dict)
    lines: LineCounts | None = None


def round_bounds(plan: Plan) -> NDArray[np.float32]:
    """Return the features' bounds in single precision, as in binning: [2, n_features], 0 for none."""
    return np.array([[feature.min or 0, feature.max or 0] for feature in plan.features], dtype=np.float32).T


def site_rows_from_records(
    chunks: Iterable[Records],
    plan: Plan,
    left_out: RowsLeftOut | None = None,
    folder: Path | None = None,
    part: Part | None = None,
) -> SiteRows:
    """Bin all rows of a site's table.

    Arguments and errors are those of `site_data_from_records`.

    Args:
        folder: that `ExternalMemory.begin` gave for their arrays; None without.
        part: the part that rows must belong to, by their content; None for all rows.
    """
    grid = build_grid(plan)
    units = [np.empty(0, dtype=np.str_)]
    cells = list[Cells]()
    with (
        Stretches(grid.n_features, grid.dtype, folder) as codes,
        Stretches(len(grid.divisible), np.uint8, folder) as places,
        Stretches(1, np.int32, folder) as labels,
    ):
        for records in chunks:
            if records.label is None:
                raise DataError("data-label-missing", place="The records")
            cells.append(records.cells)
            if part is not None and records.unit is not None:
                records = records.take(np.flatnonzero(part.holds_units(records.unit)))
            own = grid.encode(records.features)
            within = grid.places(records.features, own)
            label = plan.label.kind.encode(records.label, plan.label)
            if part is not None and records.unit is None:
                held = part.holds_rows([*own, label, *within], len(label))
                own, within, label = own[:, held], within[:, held], label[held]
            codes.add(own)
            places.add(within)
            labels.add(label[None])
            if records.unit is not None:
                units.append(records.unit)
        joined = places.join("places.npy") if grid.divisible else None
        memory = None if folder is None else folder.parent
        data = SiteData(codes.join("codes.npy"), labels.join("labels.npy")[0], joined, memory)
    if left_out is None and not data.n_records:
        raise DataError("data-empty", source="The site")
    unfit = dict(left_out or {})
    if plan.privacy.unit == "record":
        return SiteRows(data, None, unfit, add_cells(cells))
    if sum(map(len, units)) != data.n_records:
        raise DataError("data-unit-missing", place="The records")
    return SiteRows(data, np.concatenate(units), unfit, add_cells(cells))


def site_data_from_records(
    chunks: Iterable[Records], plan: Plan, left_out: RowsLeftOut | None = None
) -> tuple[SiteData, ContributionReport]:
    """Bin one site's rows, with at most `plan.privacy.max_rows_per_unit` of each unit.

    If one process reads several tables, bound them together: see `read_sites_data`.

    Args:
        chunks: the site's records in the order of its table, with labels, and identifiers if the plan has a unit.
        left_out: counts of rows that do not fit, filled by the reader. With it, a site without rows takes part with
            sums of zero; a refusal would reveal to the others whether a single row is there. None raises instead.

    Returns:
        The data for a node, and which rows were left out (for the site's owner only).

    Raises:
        DataError: when there are no records (without `left_out`), or they were read without labels or identifiers.
    """
    return bound_sites({"": site_rows_from_records(chunks, plan, left_out)}, plan)[""]


def bound_sites(sites: Mapping[str, SiteRows], plan: Plan) -> dict[str, tuple[SiteData, ContributionReport]]:
    """Bound the rows of each unit: `max_rows_per_unit` at each site, `rows_per_unit` at all together.

    The choice depends only on the plan and on the unit's own rows at each site.
    """
    units = {name: rows.unit for name, rows in sites.items() if rows.unit is not None}
    kept = rows_within_bounds(units, plan)
    found = {}
    for name, rows in sites.items():
        n_rows = rows.data.n_records
        stay, report = kept.get(name, (None, ContributionReport(n_rows, n_rows, 0)))
        data = rows.data if stay is None or not report.n_dropped else rows.data.only(stay)
        found[name] = data, replace(report, unfit=rows.unfit, cells=rows.cells, lines=rows.lines)
    return found


def check_data(site: str, data: SiteData, plan: Plan) -> None:
    """Raise DataError for codes or labels outside the plan; `site` is for the message."""
    grid, places = build_grid(plan), data.places
    low, high = plan.label.kind.encoded_range(plan.label)
    fault = ""
    if data.codes.shape != (grid.n_features, data.n_records) or data.codes.dtype != grid.dtype:
        fault = f"{data.codes.dtype} codes of shape {data.codes.shape} for {data.n_records} labels"
    elif data.n_records and not low <= int(data.labels.min()) <= int(data.labels.max()) <= high:
        fault = f"a label beyond {low} to {high}"
    elif isinstance(places, np.ndarray) and (
        places.dtype != np.uint8 or places.shape != (len(grid.divisible), data.n_records)
    ):
        fault = f"{places.dtype} places of shape {places.shape}"
    elif data.n_records:
        beyond = [
            feature.name
            for feature, cells, row in zip(plan.features, grid.features, data.codes, strict=True)
            if int(row.max()) >= cells.n_codes
        ]
        fault = f"a code beyond the grid in {beyond[0]}" if beyond else ""
    if fault:
        raise DataError("data-outside-plan", site=site, fault=fault)


def find_kept(memory: ExternalMemory, plan: Plan) -> dict[str, tuple[SiteData, ContributionReport]] | None:
    """Return the data that `read_bounded` kept of these tables; None if one has changed or is damaged."""
    found = {}
    for name in memory.tables:
        if (kept := memory.find(name)) is None:
            return None
        arrays, report = kept
        data = SiteData(arrays["codes"], arrays["labels"][0], arrays.get("places"), memory.folder)
        try:
            check_data(name, data, plan)
        except DataError:
            return None
        found[name] = data, report
    return found


def read_bounded(
    tables: Mapping[str, Location],
    plan: Plan,
    *,
    memory: ExternalMemory | None = None,
    part: Part | None = None,
) -> dict[str, tuple[SiteData, ContributionReport]]:
    """Read the rows of sites in one process, and bound units over all of them.

    Errors are those of `read_site_data`.

    Args:
        tables: each site's, by the site's name.
        memory: external memory for their codes; None for none.
    """
    rows = {}
    for name, place in tables.items():
        folder = None if memory is None else memory.begin(name)
        rows[name] = read_site_rows(place, plan, folder=folder, part=part)
    bounded = bound_sites(rows, plan)
    if memory is not None:
        for name, (data, report) in bounded.items():
            arrays = {"codes": data.codes, "labels": data.labels[None], "places": data.places}
            changed = {} if data is rows[name].data else arrays
            kept = {each: array for each, array in changed.items() if isinstance(array, np.ndarray)}
            memory.keep(name, kept, report)
    return bounded


def read_part(location: Location, plan: Plan, part: Part, *, memory: Path | None = None, name: str = "") -> SiteData:
    """Read a part of a site's table, and bound its units.

    All rows of a unit are in one part, so each part is bounded by itself. Errors are those of `read_site_data`.

    Args:
        memory, name: the folder of external memory (None for none) and the table's name there, see `ExternalMemory`.
    """
    tables = {f"{name}-{part.number + 1}-of-{part.n_parts}": location}
    arrays = None if memory is None else ExternalMemory.open(memory, plan.with_joint_structure(), tables)
    kept = None if arrays is None else find_kept(arrays, plan)
    return (kept or read_bounded(tables, plan, memory=arrays, part=part))[next(iter(tables))][0]


def read_site_data(path: str | os.PathLike[str], plan: Plan) -> tuple[SiteData, ContributionReport]:
    """Read one site's rows from a file or a URL, and bound the rows of each unit.

    Rows that do not fit are left out and counted.

    Raises:
        DataError: the table cannot be read or lacks a column.
    """
    return read_bounded({"": path}, plan)[""]


def read_site_rows(
    path: str | os.PathLike[str],
    plan: Plan,
    *,
    folder: Path | None = None,
    part: Part | None = None,
) -> SiteRows:
    """Read all rows of a table, or of a part of it, for `bound_sites`.

    Errors are those of `read_site_data`.

    Args:
        folder: that `ExternalMemory.begin` gave for their arrays; None without.
    """
    left_out: RowsLeftOut = {}
    table = open_table(path, plan)
    left = divide_table(table, part, plan.privacy.unit)
    rows = site_rows_from_records(read_records(table, plan, left_out=left_out), plan, left_out, folder, left)
    # Arrow would otherwise keep the table's memory for its next use.
    pa.default_memory_pool().release_unused()
    return replace(rows, lines=getattr(table, "lines", None))


def read_sites_data(paths: Mapping[str, str | os.PathLike[str]], plan: Plan) -> dict[str, SiteData]:
    """Read the rows of all sites of a run, and bound units over all of them.

    Args:
        paths: each site's file, or URL, by the site's name.

    Raises:
        DataError: as `read_site_data`.
    """
    return {name: data for name, (data, _) in read_bounded(paths, plan).items()}
