"""From a site's records to what its node holds: bound what one unit adds, then bin.

Rows are binned chunk by chunk, so a site's table is never in memory as anything wider than one or two bytes per value.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.client import data_errors
from hedgerow.client.contribution import ContributionReport, rows_within_bound
from hedgerow.client.node import SiteData
from hedgerow.client.reading import read_records
from hedgerow.client.records import Records
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
    chunks: Iterable[Records], plan: Plan, grid: Grid | None = None
) -> tuple[SiteData, ContributionReport]:
    """One site's rows, with at most `plan.privacy.max_rows_per_unit` of each unit of privacy.

    Args:
        chunks: the site's records in the order of its table, with labels, and identifiers if the plan has a unit.
        grid: the plan's grid, if it is at hand.

    Returns:
        The data for a node, and what the bound on rows per unit left out (for the site's owner only).

    Raises:
        DataError: when there are no records, or labels or identifiers are missing.
    """
    grid = grid or build_grid(plan)
    codes, labels, units = [], [], []
    for records in chunks:
        codes.append(grid.encode(records.features))
        labels.append(encode_labels(records, plan))
        if records.unit is not None:
            units.append(records.unit)
    if not codes or not sum(map(len, labels)):
        raise data_errors.empty("The site")
    data = SiteData(np.concatenate(codes, axis=1), np.concatenate(labels))
    return _bounded(data, np.concatenate(units) if units else None, plan)


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
    path: str | os.PathLike[str], plan: Plan, grid: Grid | None = None
) -> tuple[SiteData, ContributionReport]:
    """The same from a .csv, .csv.gz or .parquet file; raises DataError when it does not fit the plan."""
    return site_data_from_records(read_records(path, plan), plan, grid)
