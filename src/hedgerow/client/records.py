"""A site's records as the plan sees them: one array per feature, the labels, the identifiers of the privacy unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.client import columns as encoders
from hedgerow.client import data_errors
from hedgerow.client.data_errors import Place
from hedgerow.protocol.errors import DataError
from hedgerow.protocol.plan import Feature, Label, Plan

FeatureColumn = NDArray[np.float32] | NDArray[np.int16]
LabelColumn = NDArray[np.int32] | NDArray[np.float64]


RowsLeftOut = dict[str, int]
"""How many rows did not fit and were left out, by the code of `data_errors` that says why.

Each is an exact count of private rows: for the site's own operator, never for a peer.
"""


def count_left_out(left_out: RowsLeftOut, code: str, n_rows: int = 1) -> None:
    """Add rows to the count of a cause."""
    if n_rows:
        left_out[code] = left_out.get(code, 0) + n_rows


@dataclass(frozen=True, eq=False)
class Records:
    """Records of one site, column by column, in the order of the file.

    Attributes:
        features: in the plan's order. Numeric: float32 [n], NaN where missing, infinite values kept (binning clamps
            them). Categorical: int16 [n], the index in `Feature.categories`, -1 for a value that is not listed, -2
            where missing.
        label: binary and multiclass: int32 [n], the index in `Label.classes`; regression: float64 [n], clamped to the
            label's public bounds; None when it was not asked for.
        unit: text [n], the identifier whose rows the plan protects together; None when that is the record itself.
        n_records: n.
    """

    features: tuple[FeatureColumn, ...]
    label: LabelColumn | None
    unit: NDArray[np.str_] | None
    n_records: int

    def take(self, indices: NDArray[np.intp]) -> Records:
        """The records at `indices`, in that order."""
        return Records(
            features=tuple(column[indices] for column in self.features),
            label=None if self.label is None else self.label[indices],
            unit=None if self.unit is None else self.unit[indices],
            n_records=len(indices),
        )


def needed_columns(plan: Plan, *, with_label: bool = True, with_unit: bool | None = None) -> tuple[str, ...]:
    """The columns that must be there: the features, then the label and the identifier when asked for.

    `with_unit` None means: as `with_label`, because a prediction needs neither.
    """
    names = list(plan.feature_names)
    if with_label:
        names.append(plan.label.name)
    if plan.privacy.unit != "record" and (with_label if with_unit is None else with_unit):
        names.append(plan.privacy.unit)
    return tuple(names)


def records_from_columns(
    columns: Mapping[str, Any],
    plan: Plan,
    *,
    with_label: bool = True,
    with_unit: bool | None = None,
    source: str = "the table",
    first_row: int = 1,
    left_out: RowsLeftOut | None = None,
) -> Records:
    """Encode columns (numpy arrays, lists, Arrow or pandas columns) as the plan says.

    Columns that the plan does not name are ignored: a site's table may hold more than a study may use.

    Args:
        source: what messages call the table, such as its file.
        first_row: the number of the first record among the data rows of `source`, for messages.
        left_out: where rows that do not fit are counted; they are left out whole, and no other row changes. None
            refuses the first of them.

    Raises:
        DataError: a column is missing, columns differ in length, a column's type is none that Hedgerow reads; without
            `left_out` also for a cell that is no number, a label that is missing or outside the plan, a missing
            identifier, text that is not UTF-8.
    """
    names = needed_columns(plan, with_label=with_label, with_unit=with_unit)
    missing = [name for name in names if name not in columns]
    if missing:
        raise data_errors.missing_columns(source, missing, [str(name) for name in columns])
    lengths = {len(columns[name]) for name in names}
    if len(lengths) != 1:
        raise data_errors.different_lengths(source)

    def place(name: str) -> Place:
        return Place(source, name, first_row)

    n_records = lengths.pop()
    fit = _Fit(n_records, left_out)
    records = Records(
        features=tuple(_feature(columns[item.name], item, place(item.name), fit.unfit) for item in plan.features),
        label=_label(columns[plan.label.name], plan.label, place(plan.label.name), fit.unfit) if with_label else None,
        unit=(
            encoders.identifiers(columns[plan.privacy.unit], place(plan.privacy.unit), fit.unfit)
            if plan.privacy.unit in names
            else None
        ),
        n_records=n_records,
    )
    return records if fit.all_fit else records.take(np.flatnonzero(fit.fits))


class _Fit:
    """Which records fit; the others are counted by the first reason, or the first of them is refused."""

    def __init__(self, n_records: int, left_out: RowsLeftOut | None) -> None:
        self.fits = np.ones(n_records, dtype=np.bool_)
        self._left_out = left_out

    @property
    def all_fit(self) -> bool:
        return bool(self.fits.all())

    def unfit(self, rows: NDArray[np.bool_], code: str, error_at: Callable[[int], DataError]) -> None:
        """See `columns.Unfit`."""
        if self._left_out is None:
            encoders.refuse(rows, code, error_at)
        elif rows.any():
            count_left_out(self._left_out, code, int(np.count_nonzero(rows & self.fits)))
            self.fits &= ~rows


def concatenate(records: Iterable[Records]) -> Records:
    """One `Records` of several of the same plan, in their order.

    Raises:
        DataError: there are none.
    """
    parts = list(records)
    if not parts:
        raise data_errors.empty("the site's data")
    if len(parts) == 1:
        return parts[0]
    labels: list[NDArray[Any]] = [part.label for part in parts if part.label is not None]
    units = [part.unit for part in parts if part.unit is not None]
    return Records(
        features=tuple(np.concatenate(column) for column in zip(*(part.features for part in parts), strict=True)),
        label=np.concatenate(labels) if labels else None,
        unit=np.concatenate(units) if units else None,
        n_records=sum(part.n_records for part in parts),
    )


def _feature(column: Any, feature: Feature, place: Place, unfit: encoders.Unfit) -> FeatureColumn:
    if feature.is_categorical:
        return encoders.category_indices(column, feature.categories, place, unfit)
    # A number beyond float32 becomes infinite, and an infinite number is clamped to the bounds like any other.
    with np.errstate(over="ignore"):
        return encoders.numbers(column, place, unfit).astype(np.float32)


def _label(column: Any, label: Label, place: Place, unfit: encoders.Unfit) -> LabelColumn:
    if label.type == "regression":
        values = encoders.numbers(column, place, unfit)
        unfit(np.isnan(values), data_errors.LABEL_MISSING, lambda index: data_errors.label_missing(place, index))
        return np.clip(values, label.min, label.max)
    indices = encoders.category_indices(column, label.classes, place, unfit).astype(np.int32)

    def outside(index: int) -> DataError:
        return data_errors.label_outside(place, index, encoders.value_at(column, index))

    is_missing = indices == encoders.MISSING
    unfit(is_missing, data_errors.LABEL_MISSING, lambda index: data_errors.label_missing(place, index))
    unfit(indices == encoders.UNKNOWN, data_errors.LABEL_OUTSIDE, outside)
    return indices
