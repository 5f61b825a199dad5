# SPDX-License-Identifier: Apache-2.0
"""Turn a site's records into its node's data: bound the rows of each unit, then bin.

Rows are binned chunk by chunk, so a site's table is never in memory as anything wider than one or two bytes per value.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hedgerow.data.binned import SiteData, check_data
from hedgerow.data.cells import Cells, add_cells
from hedgerow.data.hashing import Part
from hedgerow.data.lines import LineCounts
from hedgerow.data.mapped import ExternalMemory, Stretches
from hedgerow.data.sources import Location, divide_table, open_table, read_records
from hedgerow.data.units import ContributionReport, Records, RowsLeftOut, rows_within_bounds
from hedgerow.errors import DataError
from hedgerow.plan.plan import Plan
from hedgerow.trees.binning import build_grid


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
