"""What the private estimators share: reading X and y, the plan that the parameters make, the run over sites.

`X` is either a matrix of numbers (binned in one pass, without a copy) or a table of named columns. Its schema is
declared, never read off it, but where the caller asks for that.
"""

from __future__ import annotations

import math
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from hedgerow.data.columns import distinct_texts, numbers, texts_of_cells
from hedgerow.data.faults import Place
from hedgerow.data.site_data import SiteData
from hedgerow.data.units import records_from_columns
from hedgerow.errors import DataError, UsageError
from hedgerow.local.training import train
from hedgerow.models.model import Model
from hedgerow.plan.plan import PLAN_VERSION, Plan
from hedgerow.privacy.ledger import Ledger
from hedgerow.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from hedgerow.privacy.report import PrivacyReport
from hedgerow.threads import threads_of_jobs, use_threads
from hedgerow.trees.binning import CodeArray, Grid, build_grid

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
        raise UsageError("bounds-missing")
    if isinstance(declaration.bounds, str) and not declaration.from_data:
        raise UsageError("bounds-unknown", bounds=declaration.bounds)
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
        records = records_from_columns(table, plan, with_label=False, with_unit=False, table=Place("X", "", 0))
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
        raise UsageError("feature-values-type", parameter=parameter, type=type(given).__name__)
    found = {}
    for key, value in given.items():
        position = isinstance(key, int | np.integer) and not isinstance(key, bool) and 0 <= key < len(names)
        name = names[int(key)] if position and key not in names else key
        if name not in names:
            features = ", ".join([*map(str, names[:12]), *(["..."] if len(names) > 12 else [])])
            raise UsageError("feature-values-unknown", parameter=parameter, feature=key, features=features)
        found[str(name)] = value
    return found


def _bounds_by_name(bounds: Any, names: Sequence[str], categories: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    if isinstance(bounds, Mapping):
        by_name = _by_name(bounds, names, "bounds")
    else:
        pairs = list(bounds)
        if len(pairs) != len(names):
            raise UsageError("bounds-number", n_pairs=len(pairs), n_names=len(names))
        by_name = dict(zip(names, pairs, strict=True))
    absent = [name for name in names if name not in categories and by_name.get(name) is None]
    if absent:
        lacking = ", ".join(map(repr, absent[:8])) + (" and others" if len(absent) > 8 else "")
        raise UsageError("bounds-absent", lacking=lacking)
    return {name: _pair(by_name[name], name) for name in names if name not in categories}


def _pair(value: Any, name: str) -> tuple[float, float]:
    try:
        low, high = (float(bound) for bound in value)
    except (TypeError, ValueError):
        raise UsageError("bounds-of-feature", name=name, value=value) from None
    return low, high


def _plain(values: Any) -> list[Any]:
    return list(np.asarray(values).tolist()) if isinstance(values, np.ndarray) else [_scalar(item) for item in values]


def _scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


DEFAULT_DELTA = 1e-6
"""A public constant, below one in the number of records of most studies; choose a smaller one for millions of them."""

_MODEL_PARAMETERS = (
    "n_trees", "max_depth", "n_candidates", "split_method", "weight_update", "split_candidates", "interaction",
    "interaction_size", "batch_size", "learning_rate", "joint_clip",
)  # fmt: skip

_AS_MATRIX: dict[str, Any] = {"dtype": [np.float64, np.float32], "ensure_all_finite": False}
"""Numbers in single or double precision as they are, missing ones included; whole numbers in double precision, as if a
fraction stood somewhere among them."""


class PrivateTrees(BaseEstimator):
    """What classifier and regressor share: the plan, the sites, the run."""

    model_: Model
    privacy_report_: PrivacyReport
    ledger_: Ledger
    _y_is_numeric = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = False
        return tags

    def _encoded(self, y: NDArray[Any], plan: Plan) -> NDArray[np.int32]:
        """The labels as a node holds them."""
        raise NotImplementedError

    # Reading X and y -----------------------------------------------------------------------------------------------

    def _table_and_label(self, X: Any, y: Any) -> tuple[Table, NDArray[Any]]:
        """What `fit` is given: the validated table, and y as a 1-d array."""
        if not self._reads_columns(X, reset=True):
            X = within_floats(X)
            matrix, values = validate_data(self, X, y, y_numeric=self._y_is_numeric, reset=True, **_AS_MATRIX)
            return matrix, values
        validate_data(self, X, y, skip_check_array=True, reset=True)
        check_consistent_length(X, y)
        return columns_of(X, self._feature_names()), column_or_1d(y, warn=True)

    def _table(self, X: Any) -> Table:
        """What a prediction is given: the validated table."""
        if not self._reads_columns(X, reset=False):
            X = within_floats(X)
            matrix: NDArray[Any] = validate_data(self, X, reset=False, **_AS_MATRIX)
            return matrix
        validate_data(self, X, skip_check_array=True, reset=False)
        return columns_of(X, self._feature_names())

    def _reads_columns(self, X: Any, reset: bool) -> bool:
        """Whether `X` is a table of columns of several types; else scikit-learn makes it a matrix of numbers."""
        if not reset:
            return any(feature.is_categorical for feature in self.model_.plan.features)
        return bool(self.categories) or (is_dataframe(X) and not has_only_numbers(X))

    def _feature_names(self) -> list[str]:
        names = getattr(self, "feature_names_in_", None)
        if names is not None:
            return [str(name) for name in names]
        return [f"x{index}" for index in range(self.n_features_in_)]

    # Training ------------------------------------------------------------------------------------------------------

    def _train(self, table: Table, y: NDArray[Any], label: Mapping[str, Any], sites: Any) -> None:
        names = self._feature_names()
        structure_seed, noise = self._randomness()
        plan = self._plan(table, names, {"name": _free_name("label", names), **label}, len(y), structure_seed)
        labels = self._encoded(y, plan)
        with use_threads(threads_of_jobs(self.n_jobs)) as n_threads:
            site_data = split_sites(encode_table(table, plan, build_grid(plan)), labels, sites)
            self.model_ = train(plan, site_data, noise=noise, n_threads=n_threads)
        self.privacy_report_ = self.model_.report
        self.ledger_ = self.model_.ledger

    def _plan(
        self, table: Table, names: Sequence[str], label: Mapping[str, Any], n_rows: int, structure_seed: int
    ) -> Plan:
        declaration = Declaration(self.bounds, self.categories)
        return Plan.from_dict(
            {
                "version": PLAN_VERSION,
                "name": type(self).__name__,
                **self._model_sections(structure_seed),
                "privacy": {
                    "epsilon": plain(self.epsilon),
                    "delta": DEFAULT_DELTA if self.delta is None else plain(self.delta),
                    "accountant": self.accountant,
                    "n_records": self._declared_n_records(n_rows),
                    "bounds_from_data": declaration.from_data,
                },
                "label": label,
                "features": declared_features(table, names, declaration),
            }
        )

    def _model_sections(self, structure_seed: int) -> dict[str, dict[str, Any]]:
        """The plan's [model], and the section of its algorithm."""
        model = {name: plain(getattr(self, name)) for name in _MODEL_PARAMETERS}
        return {"model": {**model, "structure_seed": structure_seed}}

    def _declared_n_records(self, n_rows: int) -> Any:
        if self.n_records is not None:
            return plain(self.n_records)
        if isinstance(self.bounds, str) and self.bounds == FROM_DATA:
            return n_rows
        raise UsageError("n-records")

    def _randomness(self) -> tuple[int, NoiseSource]:
        """The seed of the structure, and the noise: the operating system's, unless `random_state` is given."""
        if self.random_state is None:
            return secrets.randbits(63), SystemNoise(os.urandom)
        if isinstance(self.random_state, int | np.integer) and self.random_state >= 0:
            seed = int(self.random_state)
        else:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return seed, SeededNoise(seed)

    # Predicting ----------------------------------------------------------------------------------------------------

    def _codes(self, X: Any) -> CodeArray:
        check_is_fitted(self, "model_")
        return encode_table(self._table(X), self.model_.plan, self.model_.ensemble.grid)


def split_sites(codes: CodeArray, labels: NDArray[np.int32], sites: Any) -> dict[str, SiteData]:
    """Each site's rows, by the site's name.

    Args:
        codes: [n_features, n].
        labels: int32 [n].
        sites: the name of each row's site [n]; None for one site that holds all rows. 1 and 1.0 name one site.

    Raises:
        DataError: when `sites` has another length, or a row's site is missing.
    """
    if sites is None:
        return {"site": SiteData(codes, labels)}
    shape = getattr(sites, "shape", (len(sites),))
    if shape != (len(labels),):
        raise DataError("data-sites-shape", shape=shape, n_labels=len(labels))
    # Each name by itself: beside one text, numpy would make two sites of 1 and 1.0.
    names = texts_of_cells(sites, Place("sites", "sites", 0))
    if None in names:
        raise DataError("data-site-missing")
    distinct, number = np.unique(np.array(names, dtype=object), return_inverse=True)
    rows = [np.flatnonzero(number == index) for index in range(len(distinct))]
    return {str(name): SiteData(codes[:, own], labels[own]) for name, own in zip(distinct, rows, strict=True)}


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or the like of a table's library."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):
        # pandas' NA equals nothing, not even "nothing"; what else has no answer is told by its type.
        return type(value).__name__ == "NAType"


def _free_name(wanted: str, taken: Sequence[str]) -> str:
    while wanted in taken:
        wanted += "_"
    return wanted


def keep_parameters(estimator: BaseEstimator, arguments: Mapping[str, Any]) -> None:
    """Set every parameter of an `__init__` under its own name, as scikit-learn wants it: `arguments` are its locals."""
    for name in arguments:
        if name not in ("self", "__class__"):
            setattr(estimator, name, arguments[name])


def plain(value: Any) -> Any:
    """numpy's numbers, as grid searches give them, as Python's."""
    return value.item() if isinstance(value, np.generic) else value
