"""From a site's records to what its node holds: bound what one unit adds, then bin.

Rows are binned chunk by chunk, so a site's table is never in memory as anything wider than one or two bytes per value.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.client import data_errors
from hedgerow.client.contribution import ContributionReport, rows_within_bound
from hedgerow.client.node import SiteData
from hedgerow.client.reading import read_records
from hedgerow.client.records import Records, RowsLeftOut
from hedgerow.protocol.errors import DataError
from hedgerow.protocol.plan import Label, Plan
from hedgerow.trees.grid import Grid, build_grid
from hedgerow.trees.losses import SCORE_UNIT


def scaled_label(values: NDArray[Any], label: Label) -> NDArray[np.int32]:
    """A regression's labels, scaled from the label's public [min, max] to [-1, 1], in units of 2**-16, rounded.

    Args:
        values: float [n]; values outside the bounds are clamped.

    Returns:
        int32 [n], from -2**16 to 2**16.
    """
    if label.min is None or label.max is None:  # a validated plan has both
        raise ValueError(f"the label {label.name} has no bounds")
    middle, half = (label.max + label.min) / 2, (label.max - label.min) / 2
    clamped = np.clip(np.asarray(values, dtype=np.float64), label.min, label.max)
    return np.rint((clamped - middle) / half * SCORE_UNIT).astype(np.int32)


def encode_labels(records: Records, plan: Plan) -> NDArray[np.int32]:
    """The labels as a node holds them: the class index, or `scaled_label`.

    Raises:
        DataError: when the records were read without labels.
    """
    if records.label is None:
        raise DataError(
            "The records carry no label.",
            remedy="Read them with their label's column; only predictions do without.",
            code="data-label-missing",
        )
    if plan.label.type == "regression":
        return scaled_label(records.label, plan.label)
    return records.label.astype(np.int32)


def site_data_from_records(
    chunks: Iterable[Records], plan: Plan, grid: Grid | None = None, left_out: RowsLeftOut | None = None
) -> tuple[SiteData, ContributionReport]:
    """One site's rows, with at most `plan.privacy.max_rows_per_unit` of each unit of privacy.

    Args:
        chunks: the site's records in the order of its table, with labels, and identifiers if the plan has a unit.
        grid: the plan's grid, if it is at hand.
        left_out: where the reader counts rows that do not fit. With it, a site without any row takes part with sums of
            zero: if it refused, the others would know of one row whether it is there. None refuses.

    Returns:
        The data for a node, and which rows were left out (for the site's owner only).

    Raises:
        DataError: when there are no records (without `left_out`), or they were read without labels or identifiers.
    """
    grid = grid or build_grid(plan)
    codes, labels, units = [], [], []
    for records in chunks:
        codes.append(grid.encode(records.features))
        labels.append(encode_labels(records, plan))
        if records.unit is not None:
            units.append(records.unit)
    if left_out is None and not sum(map(len, labels)):
        raise data_errors.empty("The site")
    if not codes:
        codes, labels = [np.empty((grid.n_features, 0), dtype=grid.dtype)], [np.empty(0, dtype=np.int32)]
        units = [np.empty(0, dtype=np.str_)]
    data = SiteData(np.concatenate(codes, axis=1), np.concatenate(labels))
    data, report = _bounded(data, np.concatenate(units) if units else None, plan)
    return data, replace(report, unfit=dict(left_out or {}))


def _bounded(data: SiteData, unit: NDArray[np.str_] | None, plan: Plan) -> tuple[SiteData, ContributionReport]:
    n_rows = data.n_records
    if plan.privacy.unit == "record":
        return data, ContributionReport(n_rows, 0, n_rows, 0)
    if unit is None or len(unit) != n_rows:
        raise DataError(
            "The records carry no identifier, so rows per unit cannot be bounded.",
            cause=f"The plan protects all rows of one {plan.privacy.unit!r} together.",
            remedy="Read them with the column that privacy.unit names.",
            code="data-unit-missing",
        )
    kept, report = rows_within_bound(unit, plan.privacy.max_rows_per_unit, bytes.fromhex(plan.digest))
    if not report.n_dropped:
        return data, report
    return SiteData(data.codes[:, kept], data.labels[kept]), report


def read_site_data(
    path: str | os.PathLike[str], plan: Plan, grid: Grid | None = None, *, strict: bool = False
) -> tuple[SiteData, ContributionReport]:
    """The same from a .csv, .csv.gz or .parquet file; rows that do not fit are left out and counted in the report.

    Args:
        strict: refuse the first row that does not fit, and a table without rows. In a federation this tells the others
            something about a single row.

    Raises:
        DataError: the table cannot be read or lacks a column; if strict, also for a row.
    """
    left_out: RowsLeftOut | None = None if strict else {}
    return site_data_from_records(read_records(path, plan, left_out=left_out), plan, grid, left_out)
