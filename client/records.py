"""A site's records as the plan sees them: one array per feature, the labels, the identifiers of the privacy unit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.client import columns as encoders
from hedgerow.client import data_errors
from hedgerow.client.data_errors import Place
from hedgerow.protocol.plan import Feature, Label, Plan

FeatureColumn = NDArray[np.float32] | NDArray[np.int16]
LabelColumn = NDArray[np.int32] | NDArray[np.float64]


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
) -> Records:
    """Encode columns (numpy arrays of numbers, text or objects; Arrow arrays) as the plan says.

    Columns that the plan does not name are ignored: a site's table may hold more than a study may use.

    Args:
        source: what messages call the table, such as its file.
        first_row: the number of the first record among the data rows of `source`, for messages.

    Raises:
        DataError: a column is missing, columns differ in length, a value has the wrong type, a label is missing or
            outside the plan, an identifier is missing.
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

    return Records(
        features=tuple(_feature(columns[item.name], item, place(item.name)) for item in plan.features),
        label=_label(columns[plan.label.name], plan.label, place(plan.label.name)) if with_label else None,
        unit=(
            encoders.identifiers(columns[plan.privacy.unit], place(plan.privacy.unit))
            if plan.privacy.unit in names
            else None
        ),
        n_records=lengths.pop(),
    )


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


def _feature(column: Any, feature: Feature, place: Place) -> FeatureColumn:
    if feature.is_categorical:
        return encoders.category_indices(column, feature.categories, place)
    # A number beyond float32 becomes infinite, and an infinite number is clamped to the bounds like any other.
    with np.errstate(over="ignore"):
        return encoders.numbers(column, place).astype(np.float32)


def _label(column: Any, label: Label, place: Place) -> LabelColumn:
    if label.type == "regression":
        values = encoders.numbers(column, place)
        absent = np.isnan(values)
        if absent.any():
            raise data_errors.label_missing(place, int(np.argmax(absent)))
        return np.clip(values, label.min, label.max)
    indices = encoders.category_indices(column, label.classes, place).astype(np.int32)
    refused = indices < 0
    if refused.any():
        first = int(np.argmax(refused))
        if indices[first] == encoders.MISSING:
            raise data_errors.label_missing(place, first)
        raise data_errors.label_outside(place, first, encoders.value_at(column, first))
    return indices
