"""What the private estimators share: reading X and y, the plan that the parameters make, the run over sites.

`X` is either a matrix of numbers (binned in one pass, without a copy) or a table of named columns. Its schema is
declared, or found by a survey whose releases are noised and charged (`hedgerow.survey`); it is never read off `X`, but
where the caller asks for that. The type of a whole column, as its library has it, is taken to be public.
"""

from __future__ import annotations

import logging
import math
import os
import re
import secrets
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from numbers import Real
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from hedgerow.client.node import has_compiled, threads_of_jobs, use_threads
from hedgerow.data.columns import Place, days, distinct_texts, identifiers, numbers, texts_of_cells
from hedgerow.data.site_data import SiteData
from hedgerow.data.units import RowCount, as_columns, collected, records_from_columns, rows_within_bound
from hedgerow.errors import DataError, PlanError, UsageError
from hedgerow.local.survey import survey_sites
from hedgerow.local.training import SMALLEST_MASKED_COHORT, train
from hedgerow.models.model import Explanation, Model
from hedgerow.models.plots import plot_shapes
from hedgerow.plan.fields import day_of, days_between, iso_of
from hedgerow.plan.plan import DECLARED, FOUND, LARGEST_BOUND, MAX_CATEGORIES, PLAN_VERSION, READ_OFF, TYPED, Plan
from hedgerow.privacy.ledger import Ledger, prepared_tables
from hedgerow.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from hedgerow.privacy.report import PrivacyReport
from hedgerow.server.release import Progress
from hedgerow.survey.program import Findings, Questions, Range
from hedgerow.survey.queries import RawSite
from hedgerow.trees.binning import CodeArray, Grid, PlaceArray, build_grid
from hedgerow.trees.importances import importances

_log = logging.getLogger(__name__)

FROM_DATA = "data"
PRIVATE = "private"
HASH_BUCKETS = 32
"""Of a column of text without declared categories."""
BOOLEANS = ("false", "true")
Columns = Mapping[str, Any]
Table = NDArray[np.floating[Any]] | Columns


@dataclass(frozen=True)
class Declaration:
    """What a caller declares about the columns of `X`.

    Attributes:
        bounds: (min, max) per feature in order, or by name or position, "private" among them for what a survey is to
            find; one (min, max) for all columns of numbers; "private" for all; "data" to read them off `X`; None for
            none.
        categories: by name of a feature, its categories.
        typed: the features whose categories the type of their column lists.
    """

    bounds: Any
    categories: Mapping[str, Sequence[Any]]
    typed: Collection[str] = ()

    @classmethod
    def of(
        cls, bounds: Any, categories: Mapping[Any, Sequence[Any]] | None, table: Table, names: Sequence[str]
    ) -> Self:
        """What the caller says, and beside it what the types of the columns say.

        Args: categories: by name or position.

        Raises:
            UsageError: categories for a feature that does not exist.
        """
        given = _by_name(categories, names, "categories")
        if _is_word(bounds, FROM_DATA):
            return cls(bounds, given)
        of_types = {name: categories_of_type(column(table, name, index)) for index, name in enumerate(names)}
        typed = {name: own for name, own in of_types.items() if own and name not in given}
        return cls(bounds, typed | given, typed)

    @property
    def from_data(self) -> bool:
        return _is_word(self.bounds, FROM_DATA)

    def surveyed(self, table: Table, names: Sequence[str]) -> tuple[str, ...]:
        """The columns of numbers whose bounds are to be found; raises UsageError as `declared_features`."""
        if self.from_data:
            return ()
        bounds = self.bounds_of(table, names)
        return tuple(
            name
            for index, name in enumerate(names)
            if bounds.get(name) == PRIVATE and kind_of_column(column(table, name, index)) in ("number", "date")
        )

    def bounds_of(self, table: Table, names: Sequence[str]) -> dict[str, Any]:
        """By name, of the features without categories: (min, max), or "private"; raises UsageError."""
        categories = self.categories
        if self.bounds is None:
            raise UsageError("bounds-missing")
        if _is_word(self.bounds, PRIVATE):
            return {name: PRIVATE for name in names if name not in categories}
        if is_one_pair(self.bounds):
            return {
                name: _pair(self.bounds, name) if kind_of_column(column(table, name, index)) == "number" else PRIVATE
                for index, name in enumerate(names)
                if name not in categories
            }
        if isinstance(self.bounds, str) or not isinstance(self.bounds, Iterable):
            raise UsageError("bounds-unknown", bounds=self.bounds)
        return _bounds_by_name(self.bounds, names, categories)


def _is_word(value: Any, word: str) -> bool:
    return isinstance(value, str) and value == word


def is_one_pair(bounds: Any) -> bool:
    """Whether bounds are two numbers, for all columns, and not one entry per feature."""
    if isinstance(bounds, str | Mapping) or not hasattr(bounds, "__len__") or len(bounds) != 2:
        return False
    return all(isinstance(bound, Real) and not isinstance(bound, bool | np.bool_) for bound in bounds)


def categories_of_type(values: Any) -> list[Any]:
    """The categories that a column's type lists (pandas' category, polars' Enum), where a plan can list them; or none.

    They are part of the type, not of the cells; what has more of them than a plan can list is text like any other.
    """
    kind = _type_of(values)
    if type(kind).__name__ not in ("CategoricalDtype", "Enum"):
        return []
    listed = [_scalar(value) for value in kind.categories]
    is_plain = all(isinstance(value, str | int | float) for value in listed)
    return listed if is_plain and len(listed) <= MAX_CATEGORIES else []


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
    if isinstance(X, pa.Table):
        return dict(zip(names, as_columns(X).values(), strict=True))
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


def _refuse_what_is_no_table(X: Any, y: Any = None) -> None:
    """Refuse a file's or a column's name, and a dictionary: scikit-learn would count their letters or keys as rows."""
    for parameter, given in (("X", X), ("y", y)):
        # Some of scipy's sparse matrices are dictionaries; scikit-learn says of all of them that they are not taken.
        is_dictionary = isinstance(given, Mapping) and not hasattr(given, "toarray")
        if is_dictionary or isinstance(given, str | bytes | os.PathLike):
            raise UsageError("no-table", parameter=parameter, type=type(given).__name__)


@contextmanager
def _no_text() -> Iterator[None]:
    """Says what helps where scikit-learn cannot make a matrix of numbers, because a cell is text."""
    try:
        yield
    except ValueError as fault:
        if not str(fault).startswith("could not convert string to float"):
            raise
        raise DataError("data-text-in-matrix", said=fault) from None


def _is_beyond(cell: Any) -> bool:
    return isinstance(cell, int) and abs(cell) > sys.float_info.max


def column(table: Table, name: str, index: int) -> Any:
    """One column of a table."""
    return table[name] if isinstance(table, Mapping) else table[:, index]


def declared_features(
    table: Table, names: Sequence[str], declaration: Declaration, found: Mapping[str, Range]
) -> list[dict[str, Any]]:
    """The plan's [[features]] tables.

    Args: found: what a survey found of the columns that it was asked for.

    Raises:
        UsageError: bounds or categories are missing, of another length, or for features that do not exist.
    """
    categories = declaration.categories
    bounds = {} if declaration.from_data else declaration.bounds_of(table, names)
    features = []
    for index, name in enumerate(names):
        if name in categories:
            feature: dict[str, Any] = {"name": name, "type": "categorical", "categories": _plain(categories[name])}
            if name in declaration.typed:
                feature["origin"] = TYPED
        elif declaration.from_data:
            feature = _read_off(column(table, name, index), name) | {"origin": READ_OFF}
        elif bounds[name] == PRIVATE:
            feature = _without_declaration(name, kind_of_column(column(table, name, index)), found)
        else:
            low, high = bounds[name]
            is_date = isinstance(low, str) or kind_of_column(column(table, name, index)) == "date"
            feature = {"name": name, "type": "date" if is_date else "numeric", "min": low, "max": high}
        features.append(feature)
    return features


def _without_declaration(name: str, kind: str, found: Mapping[str, Range]) -> dict[str, Any]:
    """A feature of which nothing is declared: by its type, and by what a survey found of numbers."""
    if kind == "text":
        return {"name": name, "type": "hashed", "buckets": HASH_BUCKETS, "origin": TYPED}
    if kind == "truth":
        return {"name": name, "type": "categorical", "categories": list(BOOLEANS), "origin": TYPED}
    low, high = days_between(*found[name].bounds) if kind == "date" else found[name].bounds
    own = {"name": name, "type": "date" if kind == "date" else "numeric", "min": low, "max": high}
    return {**own, "integer": found[name].is_whole, "origin": FOUND}


def kind_of_column(values: Any) -> str:
    """ "number", "date", "truth" or "text", by a column's type alone. A numpy array of objects has none: it is of
    numbers.
    """
    kind = _type_of(values)
    if isinstance(values, np.ndarray) and values.dtype == object:
        return "number"
    if getattr(kind, "kind", "") == "b" or str(kind) in ("Boolean", "bool"):
        return "truth"
    if _is_date(kind):
        return "date"
    return "number" if _is_numeric(kind) else "text"


def _is_date(kind: Any) -> bool:
    """Whether a column's type is one of dates or moments, of Arrow, numpy, pandas or polars."""
    kind = getattr(kind, "pyarrow_dtype", kind)
    if isinstance(kind, pa.DataType):
        return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))
    return getattr(kind, "kind", "") == "M" or re.match(r"Date(time)?(\(|$)", str(kind)) is not None


def encode_table(table: Table, plan: Plan, grid: Grid) -> CodeArray:
    """Grid codes [n_features, n] of a table: one byte per value, and no other copy of a C-ordered matrix."""
    if not isinstance(table, Mapping) and table.flags.c_contiguous:
        return grid.encode_matrix(table)
    return grid.encode(_columns_of(table, plan))


def encode_rows(table: Table, plan: Plan) -> tuple[CodeArray, PlaceArray | None]:
    """Codes as `encode_table` has them, and the places of values within their cells where a run may ask for them."""
    grid = build_grid(plan)
    codes = encode_table(table, plan, grid)
    return codes, grid.places(_columns_of(table, plan), codes) if grid.divisible else None


def _columns_of(table: Table, plan: Plan) -> tuple[NDArray[Any], ...]:
    if isinstance(table, Mapping):
        place = Place("X", "", 0)
        return records_from_columns(table, plan, with_label=False, with_unit=False, table=place).features
    return tuple(table[:, index] for index in range(table.shape[1]))


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
    if kind_of_column(values) == "date":
        first, last = days_between(*finite_range(days(values, None, Place("X", name, 0))))
        return {"name": name, "type": "date", "min": first, "max": last}
    if _is_numeric(_type_of(values)):
        is_plain = isinstance(values, np.ndarray) and values.dtype.kind == "f"
        low, high = finite_range(values if is_plain else numbers(values, Place("X", name, 0)))
        return {"name": name, "type": "numeric", "min": low, "max": high}
    texts = sorted(distinct_texts(values, Place("X", name, 0)).to_pylist())
    return {"name": name, "type": "categorical", "categories": texts or ["none"]}


def _type_of(values: Any) -> Any:
    """The type of a column's cells, of numpy, Arrow or another library; None without one."""
    return values.type if isinstance(values, pa.Array | pa.ChunkedArray) else getattr(values, "dtype", None)


def _is_numeric(kind: Any) -> bool:
    """Whether a column's type is one of numbers: numpy's and pandas' types have a kind, those of polars are asked."""
    if isinstance(kind, pa.DataType):
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
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


def named_signs(given: Any, names: Sequence[str]) -> dict[str, int]:
    """What is known of features' directions, by name: 1, -1 or 0; UsageError for what says no such thing."""
    if given is None:
        return {}
    values = given if isinstance(given, Mapping) else _plain(given) if hasattr(given, "__len__") else [given]
    if isinstance(values, str | list) and len(values) != len(names):
        raise UsageError("monotonic-cst", found=given, n_names=len(names))
    signs = _by_name(values if isinstance(values, Mapping) else dict(enumerate(values)), names, "monotonic_cst")
    if any(isinstance(sign, str) or sign not in (-1, 0, 1) for sign in signs.values()):
        raise UsageError("monotonic-cst", found=given, n_names=len(names))
    return {name: int(sign) for name, sign in signs.items()}


def named_groups(given: Any, names: Sequence[str]) -> list[list[str]]:
    """Which features may meet, by name; none where all may. UsageError for what says no such thing."""
    if given is None:
        return []
    if given == "no_interactions":
        return [[name] for name in names]
    if given == "pairwise":
        return [list(pair) for pair in combinations(names, 2)]
    is_listed = isinstance(given, list | tuple | set) and all(isinstance(group, list | tuple | set) for group in given)
    if not is_listed:
        raise UsageError("interaction-cst", found=given)
    return [list(_by_name(dict.fromkeys(group), names, "interaction_cst")) for group in given]


def _bounds_by_name(bounds: Any, names: Sequence[str], categories: Mapping[str, Any]) -> dict[str, Any]:
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


def _pair(value: Any, name: str) -> Any:
    """(min, max), or "private" as it is; dates as ISO 8601."""
    if _is_word(value, PRIVATE):
        return PRIVATE
    try:
        low, high = (_bound(bound) for bound in value)
        if isinstance(low, str) != isinstance(high, str):
            raise ValueError(value)
    except (TypeError, ValueError):
        raise UsageError("bounds-of-feature", name=name, value=value) from None
    return low, high


def _bound(value: Any) -> float | str:
    """A number, or the text of a date."""
    if isinstance(value, str):
        return iso_of(day_of(value))
    return str(value.isoformat()) if hasattr(value, "isoformat") else float(value)


def _plain(values: Any) -> list[Any]:
    return list(np.asarray(values).tolist()) if isinstance(values, np.ndarray) else [_scalar(item) for item in values]


def _scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


_DIRECTIONS = {1: "increasing", -1: "decreasing"}

DEFAULT_DELTA = 1e-6
"""A public constant, below one in the number of records of most studies; choose a smaller one for millions of them."""

_MODEL_PARAMETERS = (
    "n_trees", "max_depth", "n_candidates", "split_method", "weight_update", "split_candidates", "interaction",
    "interaction_size", "batch_size", "learning_rate", "joint_clip",
)  # fmt: skip

_AS_MATRIX: dict[str, Any] = {"dtype": [np.float64, np.float32], "ensure_all_finite": False}
"""Numbers in single or double precision as they are, missing ones included; whole numbers in double precision, as if a
fraction stood somewhere among them."""


_TRIAL_LABEL = {"type": "binary", "classes": ["0", "1"]}
FEW_RECORDS = 2000.0
"""Below so many records times epsilon, bounds that are found by noise have cost accuracy (docs/privacy.md)."""


MOST_BEYOND = 0.05
"""A larger share of the label beyond the bounds that were found is worth a warning."""


class FewRecordsWarning(UserWarning):
    """There are few records for what a survey was asked at this epsilon, or it cut much off; say more by hand."""


def warn_of_few_records(
    questions: Questions, findings: Findings, columns: Sequence[str], parameters: Collection[str]
) -> None:
    """Warn by what was released: few records for epsilon, a column of which nothing stood out, a label cut short.

    Args:
        parameters: of the estimator; what is advised is among them.
    """
    unseen = [name for name, own in zip(columns, findings.ranges, strict=True) if not own.is_seen]
    if findings.label is not None and not findings.label.is_seen:
        unseen.insert(0, "the label")  # Its bounds bound all predictions, so it is named however many columns follow.
    reasons = []
    if (questions.surveyed or questions.label) and findings.n_records * questions.epsilon < FEW_RECORDS:
        reasons.append(
            f"About {findings.n_records:,} records at epsilon {questions.epsilon:g} are few for bounds and classes "
            f"found by noisy counts: the product should be {FEW_RECORDS:,.0f} or more."
        )
    if unseen:
        rest = f" and {len(unseen) - 8} more" if len(unseen) > 8 else ""
        named = ", ".join(unseen[:8]) + rest
        reasons.append(f"Nothing stands out of the noise in {named}; the bounds there are a guess.")
    about = zip((*columns, "the label"), (*findings.ranges, findings.label), strict=True)
    reasons += [f"In {name}: {own.doubt}." for name, own in about if own is not None and own.unheld]
    share, deviation = (0.0, 0.0) if findings.label is None else findings.label.share_beyond
    if findings.label is not None and share > max(MOST_BEYOND, deviation):
        low, high = findings.label.bounds
        reasons.append(
            f"About {share:.0%} (± {deviation:.0%}) of the label lies beyond the bounds that were found for it, "
            f"{low:g} to {high:g}, and counts as the bound."
        )
    if reasons:
        of_label = "".join(f" or {name}" for name in ("classes", "label_bounds") if name in parameters)
        remedy = f"Give bounds=[(min, max), ...]{of_label} by hand where you know them."
        warnings.warn(" ".join([*reasons, remedy]), FewRecordsWarning, stacklevel=5)


@dataclass(frozen=True, eq=False)
class Holders:
    """Whose the rows are, as `fit` is told.

    Attributes:
        sites: the name of each row's site [n]; None for one site.
        units: the identifier of whom each row is about [n]; None where each row is one by itself.
    """

    sites: Any = None
    units: Any = None


SECONDS_BEFORE_PROGRESS = 1.0
"""A fit that is shorter says nothing of its progress."""


@dataclass(frozen=True, eq=False)
class Start:
    """What is known before training.

    Attributes:
        structure_seed: of the trees.
        noise: where noise comes from, for the survey and for the training.
        rows: of each site whose rows are summed by themselves.
        findings: what a survey found; of little meaning where none was needed.
        ledger: the survey's releases.
        found: by name, the ranges of the columns that were asked for.
        n_records: as declared or found.
        has_units: whether rows of one unit are protected together.
        is_masked: whether sums over sites are taken under masks.
    """

    structure_seed: int
    noise: NoiseSource
    rows: Rows
    findings: Findings
    ledger: Ledger
    found: Mapping[str, Range]
    n_records: Any = 1
    has_units: bool = False
    is_masked: bool = False


@dataclass(frozen=True, eq=False)
class Ready:
    """What a training needs.

    Attributes:
        table: the validated table.
        y: the labels, one per row.
        label: the plan's [label], but for its name.
        start: what is known before training.
    """

    table: Table
    y: Any
    label: Mapping[str, Any]
    start: Start


def _raw_columns(table: Table, names: Sequence[str], wanted: Sequence[str]) -> list[NDArray[Any]]:
    """The columns that a survey reads: views of a matrix, else numbers as a plan's features become them."""
    cells = [(name, column(table, name, index)) for index, name in enumerate(names) if name in set(wanted)]
    if not isinstance(table, Mapping):
        return [own for _, own in cells]
    return [
        days(own, None, Place("X", name, 0)) if kind_of_column(own) == "date" else numbers(own, Place("X", name, 0))
        for name, own in cells
    ]


class PrivateTrees(BaseEstimator):
    """What classifier and regressor share: the plan, the sites, the run."""

    model_: Model
    privacy_report_: PrivacyReport
    ledger_: Ledger
    tuning_: tuple[Any, ...]
    _y_is_numeric = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = False
        return tags

    def _ready(self, X: Any, y: Any, holders: Holders) -> Ready:
        """Read `X` and `y`, and find what is not declared; arguments and errors as in `fit`."""
        raise NotImplementedError

    def _encoded(self, y: NDArray[Any], plan: Plan) -> NDArray[np.int32]:
        """The labels as a node holds them."""
        raise NotImplementedError

    # Reading X and y -----------------------------------------------------------------------------------------------

    def _table_and_label(self, X: Any, y: Any) -> tuple[Table, NDArray[Any]]:
        """What `fit` is given: the validated table, and y as a 1-d array."""
        _refuse_what_is_no_table(X, y)
        X = collected(X)
        if not self._reads_columns(X, reset=True):
            X = within_floats(X)
            with _no_text():
                matrix, values = validate_data(self, X, y, y_numeric=self._y_is_numeric, reset=True, **_AS_MATRIX)
            return matrix, values
        validate_data(self, X, y, skip_check_array=True, reset=True)
        check_consistent_length(X, y)
        if not len(y):
            raise DataError("data-no-rows")
        return columns_of(X, self._feature_names()), column_or_1d(y, warn=True)

    def _table(self, X: Any) -> Table:
        """What a prediction is given: the validated table."""
        _refuse_what_is_no_table(X)
        X = collected(X)
        if not self._reads_columns(X, reset=False):
            X = within_floats(X)
            with _no_text():
                matrix: NDArray[Any] = validate_data(self, X, reset=False, **_AS_MATRIX)
            return matrix
        validate_data(self, X, skip_check_array=True, reset=False)
        return columns_of(X, self._feature_names())

    def _reads_columns(self, X: Any, reset: bool) -> bool:
        """Whether `X` is a table of columns of several types; else scikit-learn makes it a matrix of numbers."""
        if isinstance(X, pa.Table):
            return True
        if not reset:
            return any(feature.is_categorical or feature.is_date for feature in self.model_.plan.features)
        return bool(self.categories) or (is_dataframe(X) and not has_only_numbers(X))

    def _feature_names(self) -> list[str]:
        names = getattr(self, "feature_names_in_", None)
        if names is not None:
            return [str(name) for name in names]
        return [f"x{index}" for index in range(self.n_features_in_)]

    # Training ------------------------------------------------------------------------------------------------------

    def _begin(self, table: Table, y: NDArray[Any], asked: str, holders: Holders) -> Start:
        """Find by a survey what is not declared. Everything that can be refused without it, is refused before it.

        Args:
            y: the labels.
            asked: what to find of them, as `Questions.label`; texts are as `texts_of_cells` gives them.
            holders: whose the rows are.
        """
        names, n_rows = self._feature_names(), len(y)
        structure_seed, noise = self._randomness()
        if self.max_rows_per_unit != 1 and holders.units is None:
            raise UsageError("units-missing", max_rows_per_unit=self.max_rows_per_unit)
        by_site = rows_of_sites(holders.sites, n_rows)
        is_masked = bool(self.secure_sums) and len(by_site) >= SMALLEST_MASKED_COHORT
        columns = self._declaration(table, names).surveyed(table, names)
        start = Start(
            structure_seed, noise, by_site if is_masked else {"site": None}, Findings(1), Ledger(),
            dict.fromkeys(columns, Range(0.0, 1.0)), has_units=holders.units is not None, is_masked=is_masked,
        )  # fmt: skip
        label = {"name": free_name("label", names), **_TRIAL_LABEL}
        trial = self._plan(table, names, label, replace(start, n_records=self._declared_n_records(n_rows) or 1))
        if holders.units is not None:
            kept = self._within_bound(holders.units, n_rows, trial)
            start, n_rows = replace(start, rows=only_rows(start.rows, kept)), int(np.count_nonzero(kept))
        questions = Questions(
            epsilon=trial.privacy.epsilon,
            delta=trial.privacy.delta,
            accountant=trial.privacy.accountant,
            n_columns=len(columns),
            n_records=self._declared_n_records(n_rows),
            label=asked,
            rows_per_unit=trial.privacy.rows_per_unit,
        )
        if questions.is_empty:
            return replace(start, n_records=questions.n_records)
        raw = _raw_columns(table, names, columns) + ([] if asked in ("", "texts") else [y])
        texts = y if asked == "texts" else None
        raw_sites = {name: RawSite(raw, texts, own, len(y)) for name, own in start.rows.items()}
        tell_of_first_fit()
        surveyed = survey_sites(questions, raw_sites, noise)
        findings = surveyed.findings
        warn_of_few_records(questions, findings, columns, self.get_params())
        found = dict(zip(columns, findings.ranges, strict=True))
        return replace(start, findings=findings, ledger=surveyed.ledger, found=found, n_records=findings.n_records)

    def _within_bound(self, units: Any, n_rows: int, trial: Plan) -> NDArray[np.bool_]:
        """Which rows stay, bool [n]: of each unit at most `max_rows_per_unit`, over all sites together.

        It is decided before anything is found, so that survey and training see the same rows, and by nothing but the
        unit's own rows and the plan as far as it is known by then.
        """
        shape = getattr(units, "shape", (len(units),))
        if shape != (n_rows,):
            raise DataError("data-units-shape", shape=shape, n_labels=n_rows)
        names = identifiers(units, Place("units", "units", 0))
        rows, _ = rows_within_bound(names, trial.privacy.rows_per_unit, bytes.fromhex(trial.digest))
        kept = np.zeros(n_rows, dtype=np.bool_)
        kept[rows] = True
        return kept

    def _train(self, ready: Ready) -> None:
        names, table, start = self._feature_names(), ready.table, ready.start
        plan = self._plan(table, names, {"name": free_name("label", names), **ready.label}, start)
        threads = use_threads(threads_of_jobs(self.n_jobs))
        with _in_parameters(self), threads as n_threads, self._shown(plan, len(start.rows)) as progress:
            site_data = self._site_data(plan, table, ready.y, start.rows)
            tell_of_first_fit()
            self.model_ = train(plan, site_data, noise=start.noise, n_threads=n_threads, progress=progress)
        self.privacy_report_ = self.model_.report
        self.ledger_ = self.model_.ledger

    def _site_data(self, plan: Plan, table: Table, y: NDArray[Any], rows: Rows) -> dict[str, SiteData]:
        """Each site's rows as its node holds them, without those that are of no class that was found."""
        labels = self._encoded(y, plan)
        kept = self._kept(labels)
        n_used = len(labels) if kept is None else int(np.count_nonzero(kept))
        RowCount(n_used, {"data-label-outside": len(labels) - n_used}).warn(stacklevel=5)
        return split_sites(encode_rows(table, plan), labels, rows, kept)

    def _shown(self, plan: Plan, n_sites: int) -> AbstractContextManager[Progress | None]:
        """What shows how far a training is, where that is asked for."""
        if not self.verbose:
            return nullcontext()
        from hedgerow.cli.progress import TrainingProgress

        return TrainingProgress(plan, n_sites, patience=SECONDS_BEFORE_PROGRESS)

    def _kept(self, labels: NDArray[np.int32]) -> NDArray[np.bool_] | None:
        """Which rows are trained on; None for all."""
        return None

    def _plan(self, table: Table, names: Sequence[str], label: Mapping[str, Any], start: Start) -> Plan:
        declaration = self._declaration(table, names)
        unit: dict[str, Any] = {}
        if start.has_units:
            name = free_name("unit", [*names, label["name"]])
            unit = {"unit": name, "max_rows_per_unit": plain(self.max_rows_per_unit)}
        sections = self._model_sections(start.structure_seed)
        groups = named_groups(getattr(self, "interaction_cst", None), names)
        if groups:
            sections["model"]["interaction_constraints"] = groups
        signs = named_signs(self.monotonic_cst, names)
        features = [
            {**feature, **({"monotone": _DIRECTIONS[signs[feature["name"]]]} if signs.get(feature["name"]) else {})}
            for feature in declared_features(table, names, declaration, start.found)
        ]
        if not start.ledger.releases:
            # Before the survey, nothing is found yet.
            features = [{**own, "origin": None} if own.get("origin") == FOUND else own for own in features]
        content = {
            "version": PLAN_VERSION,
            "name": type(self).__name__,
            **sections,
            "privacy": {
                "epsilon": plain(self.epsilon),
                "delta": self._delta,
                "accountant": self.accountant,
                "n_records": start.n_records,
                "bounds_from_data": declaration.from_data,
                **unit,
            },
            "federation": {"secure_aggregation": start.is_masked},
            "label": label,
            "features": features,
            "prepared": prepared_tables(start.ledger, unit.get("unit", "record"), unit.get("max_rows_per_unit", 1)),
        }
        with _in_parameters(self):
            return Plan.from_dict(content)

    def _model_sections(self, structure_seed: int) -> dict[str, dict[str, Any]]:
        """The plan's [model], and the section of its algorithm."""
        model = {name: plain(getattr(self, name)) for name in _MODEL_PARAMETERS if hasattr(self, name)}
        return {"model": {**model, "structure_seed": structure_seed}}

    def _declared_n_records(self, n_rows: int) -> Any:
        """As it is declared, or read off the data where the caller asks for that; None to find it."""
        if self.n_records is not None:
            return plain(self.n_records)
        return n_rows if self._reads_data else None

    @property
    def _delta(self) -> Any:
        return DEFAULT_DELTA if self.delta is None else plain(self.delta)

    @property
    def _reads_data(self) -> bool:
        """Whether what is not declared is read off the data, which voids the guarantee."""
        return _is_word(self.bounds, FROM_DATA)

    def _origin_of_label(self, declared: Any) -> str:
        """Where the label's classes or bounds are from, which the caller may have declared."""
        return DECLARED if declared is not None else READ_OFF if self._reads_data else FOUND

    def _declaration(self, table: Table, names: Sequence[str]) -> Declaration:
        return Declaration.of(self.bounds, self.categories, table, names)

    def _randomness(self) -> tuple[int, NoiseSource]:
        """The seed of the structure, and the noise: the operating system's, unless `random_state` is given."""
        if self.random_state is None:
            return secrets.randbits(63), SystemNoise(os.urandom)
        if isinstance(self.random_state, int | np.integer) and self.random_state >= 0:
            seed = int(self.random_state)
        else:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return seed, SeededNoise(seed)

    # What is taken away ---------------------------------------------------------------------------------------------

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """Each feature's share of the importances, float64 [n_features]: from the model alone, so it costs no privacy.

        They add up to 1, or are all 0 where no feature moves a prediction; see `hedgerow.trees.importances`.
        """
        values = importances(self._fitted().ensemble).values
        total = values.sum()
        return np.asarray(values / total if total > 0 else values)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model file, which `Model.load` and the command `hedgerow` read; see `Model.save`."""
        self._fitted().save(os.fspath(path))

    def to_xgboost(self) -> dict[str, Any]:
        """The model as XGBoost's JSON; see `Model.to_xgboost`."""
        return self._fitted().to_xgboost()

    def to_onnx(self) -> Any:
        """The model as an `onnx.ModelProto`, with labels as in `classes_` where they are whole numbers or text."""
        model = self._fitted()
        classes = getattr(self, "classes_", None)
        if classes is None or classes.dtype.kind not in "iu":
            return model.to_onnx()
        return model.to_onnx([int(value) for value in classes])

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw what each feature adds to the score into a file; see `hedgerow.models.plots.plot_shapes`."""
        plot_shapes(self._fitted(), os.fspath(path))

    def _fitted(self) -> Model:
        check_is_fitted(self, "model_")
        return self.model_

    # Predicting ----------------------------------------------------------------------------------------------------

    def explain(self, X: Any) -> Explanation:
        """What each feature adds to each prediction: exact Shapley values; see `Model.explain`."""
        return self._fitted().explain_codes(self._codes(X))

    def _codes(self, X: Any) -> CodeArray:
        check_is_fitted(self, "model_")
        codes = encode_table(self._table(X), self.model_.plan, self.model_.ensemble.grid)
        self.model_.warn_of_missing(codes)
        return codes


Rows = Mapping[str, NDArray[np.intp] | None]
"""By a site's name, which rows it has: intp [n]; None for all of them."""


def rows_of_sites(sites: Any, n_rows: int) -> dict[str, NDArray[np.intp] | None]:
    """Each site's rows, by the site's name.

    Args: sites: the name of each row's site [n]; None for one site that holds all rows. 1 and 1.0 name one site.

    Raises:
        DataError: when `sites` has another length, or a row's site is missing.
    """
    if sites is None:
        return {"site": None}
    shape = getattr(sites, "shape", (len(sites),))
    if shape != (n_rows,):
        raise DataError("data-sites-shape", shape=shape, n_labels=n_rows)
    # Each name by itself: beside one text, numpy would make two sites of 1 and 1.0.
    names = texts_of_cells(sites, Place("sites", "sites", 0))
    if None in names:
        raise DataError("data-site-missing")
    distinct, number = np.unique(np.array(names, dtype=object), return_inverse=True)
    return {str(name): np.flatnonzero(number == index) for index, name in enumerate(distinct)}


def only_rows(rows: Rows, kept: NDArray[np.bool_]) -> Rows:
    """Each site's rows, of those that are kept: bool [n]."""
    return {name: np.flatnonzero(kept) if own is None else own[kept[own]] for name, own in rows.items()}


def split_sites(
    encoded: tuple[CodeArray, PlaceArray | None],
    labels: NDArray[np.int32],
    rows: Rows,
    kept: NDArray[np.bool_] | None = None,
) -> dict[str, SiteData]:
    """Each site's rows, by the site's name.

    Args:
        encoded: of all rows, see `encode_rows`.
        labels: int32 [n].
        rows: of each site, see `rows_of_sites`.
        kept: bool [n], the rows that are used; None for all.
    """
    data = SiteData(encoded[0], labels, encoded[1])
    own_rows = rows if kept is None else only_rows(rows, kept)
    return {name: data if own is None else data.only(own) for name, own in own_rows.items()}


@cache
def tell_of_first_fit() -> None:
    """Say on stderr, once a process, why the first fit of an installation takes long; a program may handle the log.

    It is no warning of Python's: nothing is wrong, and a program that makes errors of those goes on.
    """
    if not has_compiled():
        _log.warning("This is the first fit here: inner loops are compiled, which takes about a minute, once.")


_PARAMETERS_OF_FIELDS = (
    (re.compile(r"(features\[\d+\](?: \([^)]*\))?)\.(?:min|max)\b"), r"bounds of \1"),
    (re.compile(r"(features\[\d+\](?: \([^)]*\))?)\.categories\b"), r"categories of \1"),
    (re.compile(r"\blabel\.(?:min|max)\b"), "label_bounds"),
)
"""Fields of a plan that no parameter has the name of, as errors name them, and what a caller wrote."""


@contextmanager
def _in_parameters(estimator: BaseEstimator) -> Iterator[None]:
    """Errors of plans name parameters of an estimator, `max_depth`, where a plan has `model.max_depth`."""
    names = "|".join(sorted(estimator.get_params(deep=False), key=len, reverse=True))
    own_names = re.compile(rf"\b(?:model|privacy|label|adassp)\.({names})\b")
    try:
        yield
    except PlanError as fault:
        for part in ("what", "cause", "remedy"):
            text = own_names.sub(r"\1", getattr(fault, part))
            for field, parameter in _PARAMETERS_OF_FIELDS:
                text = field.sub(parameter, text)
            setattr(fault, part, text)
        raise


def refuse_weights(others: Mapping[str, Any]) -> None:
    """What `fit` does with arguments that it does not know: weights are refused by name, others as Python does.

    Weights are no parameter of `fit`, for scikit-learn would then take it that they work.
    """
    if others.get("sample_weight") is not None:
        raise UsageError("sample-weight")
    unknown = [name for name in others if name != "sample_weight"]
    if unknown:
        raise TypeError(f"fit() got an unexpected keyword argument {unknown[0]!r}")


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or the like of a table's library."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):
        # pandas' NA equals nothing, not even "nothing"; what else has no answer is told by its type.
        return type(value).__name__ == "NAType"


def free_name(wanted: str, taken: Sequence[str]) -> str:
    """A name for a column that has none."""
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
