"""What the estimators make of `X`: the schema that is declared for it, and its grid codes.

`X` is either a matrix of numbers (binned in one pass, without a copy) or a table of named columns.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.client.columns import distinct_texts, numbers
from hedgerow.client.data_errors import Place
from hedgerow.client.records import records_from_columns
from hedgerow.protocol.errors import UsageError
from hedgerow.protocol.plan import Plan
from hedgerow.trees.grid import CodeArray, Grid

FROM_DATA = "data"
LARGEST_BOUND = 3e38
"""Single precision ends a little above; a plan allows no bounds beyond."""

Columns = Mapping[str, Any]
Table = NDArray[np.floating[Any]] | Columns


@dataclass(frozen=True)
class Declaration:
    """What a caller declares about the columns of `X`.

    Attributes:
        bounds: (min, max) per feature in order, or by name or position; "data" to read them off `X`; None for none.
        categories: by name or position of a feature, its categories.
    """

    bounds: Any
    categories: Mapping[Any, Sequence[Any]] | None

    @property
    def from_data(self) -> bool:
        return isinstance(self.bounds, str) and self.bounds == FROM_DATA


def is_dataframe(X: Any) -> bool:
    """Whether `X` has named columns, as pandas' and polars' tables do."""
    return hasattr(X, "columns") and hasattr(X, "__getitem__") and hasattr(X, "shape")


def has_only_numbers(X: Any) -> bool:
    """Whether every column of `X` is of a numeric (or Boolean) type."""
    if is_dataframe(X):
        return all(getattr(kind, "kind", "O") in "biuf" for kind in getattr(X, "dtypes", []))
    return np.asarray(X).dtype.kind in "biuf"


def columns_of(X: Any, names: Sequence[str]) -> Columns:
    """The columns of `X` by name, in order, each with the type that it has."""
    if is_dataframe(X):
        # Not as numpy arrays: of whole numbers, one of them missing, pandas makes floats.
        return {name: X[own] for name, own in zip(names, X.columns, strict=True)}
    # Not an array of numpy's choice: one text among a list's numbers would make text of all of them.
    matrix = X if isinstance(X, np.ndarray) else np.array(X, dtype=object)
    return {name: matrix[:, index] for index, name in enumerate(names)}


def within_floats(values: Any) -> Any:
    """A matrix or labels, with infinity for each whole number beyond all floats, which numpy cannot convert.

    Args:
        values: arrays of objects and lists are looked through; anything else is returned as it is.
    """
    try:
        cells = np.asarray(values) if isinstance(values, list | tuple) else values
    except ValueError:
        return values
    if not isinstance(cells, np.ndarray) or cells.dtype != object:
        return values
    flat = [numbers([cell], Place("X", "", 0))[0] if _is_beyond(cell) else cell for cell in cells.ravel().tolist()]
    found = np.empty(len(flat), dtype=object)
    found[:] = flat
    return found.reshape(cells.shape)


def _is_beyond(cell: Any) -> bool:
    return isinstance(cell, int) and abs(cell) > sys.float_info.max


def column(table: Table, name: str, index: int) -> Any:
    """One column of a table."""
    return table[name] if isinstance(table, Mapping) else table[:, index]


def declared_features(table: Table, names: Sequence[str], declaration: Declaration) -> list[dict[str, Any]]:
    """The plan's [[features]] tables.

    Raises:
        UsageError: bounds or categories are missing, of another length, or for features that do not exist.
    """
    categories = _by_name(declaration.categories, names, "categories")
    if declaration.bounds is None:
        raise _bounds_missing()
    if isinstance(declaration.bounds, str) and not declaration.from_data:
        raise UsageError(
            f"bounds={declaration.bounds!r} is not known.",
            remedy='Give (min, max) per feature, or bounds="data" for a model without a guarantee.',
            code="bounds",
        )
    bounds = {} if declaration.from_data else _bounds_by_name(declaration.bounds, names, categories)
    features = []
    for index, name in enumerate(names):
        if name in categories:
            feature: dict[str, Any] = {"name": name, "type": "categorical", "categories": _plain(categories[name])}
        elif declaration.from_data:
            feature = _read_off(column(table, name, index), name)
        else:
            low, high = bounds[name]
            feature = {"name": name, "type": "numeric", "min": low, "max": high}
        features.append(feature)
    return features


def encode_table(table: Table, plan: Plan, grid: Grid) -> CodeArray:
    """Grid codes [n_features, n] of a table: one byte per value, and no other copy of a C-ordered matrix."""
    if isinstance(table, Mapping):
        records = records_from_columns(table, plan, with_label=False, with_unit=False, source="X", first_row=0)
        return grid.encode(records.features)
    if table.flags.c_contiguous:
        return grid.encode_matrix(table)
    return grid.encode(tuple(table[:, index] for index in range(table.shape[1])))


def finite_range(values: NDArray[np.floating[Any]]) -> tuple[float, float]:
    """The smallest and the largest finite value, widened to a range; (0, 1) when there is none."""
    low, high = float(np.fmin.reduce(values)), float(np.fmax.reduce(values))
    if not (math.isfinite(low) and math.isfinite(high)):
        finite = values[np.isfinite(values)]
        if not finite.size:
            return 0.0, 1.0
        low, high = float(finite.min()), float(finite.max())
    low, high = max(low, -LARGEST_BOUND), min(high, LARGEST_BOUND)
    if low < high:
        return low, high
    width = max(1.0, abs(low) * 1e-3)
    return (low - width, low) if low > 0 else (low, low + width)


def _read_off(values: Any, name: str) -> dict[str, Any]:
    if _is_numeric(getattr(values, "dtype", None)):
        is_plain = isinstance(values, np.ndarray) and values.dtype.kind == "f"
        low, high = finite_range(values if is_plain else numbers(values, Place("X", name, 0)))
        return {"name": name, "type": "numeric", "min": low, "max": high}
    texts = sorted(distinct_texts(values, Place("X", name, 0)).to_pylist())
    return {"name": name, "type": "categorical", "categories": texts or ["none"]}


def _is_numeric(kind: Any) -> bool:
    """Whether a column's type is one of numbers: numpy's and pandas' types have a kind, those of polars are asked."""
    if hasattr(kind, "kind"):
        return kind.kind in "iuf"
    ask = getattr(kind, "is_numeric", None)
    return bool(callable(ask) and ask())


def _by_name(given: Mapping[Any, Any] | None, names: Sequence[str], parameter: str) -> dict[str, Any]:
    """Keys that are names or positions of features, made into names."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise UsageError(
            f"{parameter} is of type {type(given).__name__}.",
            remedy=f"Give {parameter} as a dictionary from a feature's name or position to its value.",
            code=parameter,
        )
    found = {}
    for key, value in given.items():
        position = isinstance(key, int | np.integer) and not isinstance(key, bool) and 0 <= key < len(names)
        name = names[int(key)] if position and key not in names else key
        if name not in names:
            raise UsageError(
                f"{parameter} names the feature {key!r}, which X does not have.",
                cause=f"The features are: {', '.join(map(str, names[:12]))}{', ...' if len(names) > 12 else ''}.",
                remedy=f"Correct or remove it in {parameter}.",
                code=parameter,
            )
        found[str(name)] = value
    return found


def _bounds_by_name(bounds: Any, names: Sequence[str], categories: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    if isinstance(bounds, Mapping):
        by_name = _by_name(bounds, names, "bounds")
    else:
        pairs = list(bounds)
        if len(pairs) != len(names):
            raise UsageError(
                f"bounds has {len(pairs)} entries, but X has {len(names)} features.",
                remedy="Give one (min, max) per feature, None for a categorical one.",
                code="bounds",
            )
        by_name = dict(zip(names, pairs, strict=True))
    absent = [name for name in names if name not in categories and by_name.get(name) is None]
    if absent:
        raise UsageError(
            f"bounds lacks {', '.join(map(repr, absent[:8]))}{' and others' if len(absent) > 8 else ''}.",
            cause="Bounds are public inputs: reading them off private data would leak it.",
            remedy="Give (min, max) for each numeric feature, and categories={feature: [...]} for the others.",
            code="bounds",
        )
    return {name: _pair(by_name[name], name) for name in names if name not in categories}


def _pair(value: Any, name: str) -> tuple[float, float]:
    try:
        low, high = (float(bound) for bound in value)
    except (TypeError, ValueError):
        raise UsageError(
            f"bounds of {name!r} are {value!r}.", remedy="Give two numbers, (min, max).", code="bounds"
        ) from None
    return low, high


def _plain(values: Any) -> list[Any]:
    return list(np.asarray(values).tolist()) if isinstance(values, np.ndarray) else [_scalar(item) for item in values]


def _scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _bounds_missing() -> UsageError:
    return UsageError(
        "bounds is not given.",
        cause="Trees split within public bounds; reading them off private data would leak it.",
        remedy='Give bounds=[(min, max), ...] from a code book, or bounds="data" for a model without a guarantee.',
        code="bounds",
    )
