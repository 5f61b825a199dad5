# SPDX-License-Identifier: Apache-2.0
"""What the private estimators share: reading X and y, the plan that the parameters make, the run over sites.

`X` is a matrix, which is a table of numbers (binned in one pass, without a copy), or a table of named columns. What a
column of a table is, its bounds and its categories are declared, or found by a survey whose releases are noised and
charged (`hedgerow.survey`). They are never read off `X`, nor off the types that a library gave it, but where the caller
asks for that. A cell that is not of its column's kind is missing.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import combinations
from numbers import Real
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from hedgerow.client.node import count_threads, has_compiled, use_threads
from hedgerow.codec import MAX_TEXT_BYTES
from hedgerow.data.arrow import as_columns, collect, count_cells, list_categories, require_distinct_names, to_arrow
from hedgerow.data.binned import HeldValues, SiteData
from hedgerow.data.cells import (
    MANY,
    CellCounts,
    Cells,
    CellsWarning,
    TextColumnsWarning,
    describe_cells,
    describe_text_columns,
)
from hedgerow.data.columns import Place, ReadColumn, identifiers, numbers, read_texts
from hedgerow.data.raw_cells import RawColumn
from hedgerow.data.site_data import round_bounds
from hedgerow.data.units import RowCount, count_feature, count_label, read_feature, rows_within_bound
from hedgerow.errors import DataError, PlanError, UsageError, warn_caller, warn_owner
from hedgerow.local.accounts import (
    RunAccount,
    RunFacts,
    enter_run,
    has_told,
    process_account,
    receive_budgets,
    send_budgets,
)
from hedgerow.local.survey import survey_sites
from hedgerow.local.training import MIN_MASKED_COHORT, train
from hedgerow.models.model import Explanation, Model
from hedgerow.models.plots import plot_shapes
from hedgerow.plan.fields import days_between, format_day, parse_day
from hedgerow.plan.plan import (
    DECLARED,
    FOUND,
    MAX_CATEGORIES,
    MAX_FEATURE_BOUND,
    PLAN_VERSION,
    READ_OFF,
    TYPED,
    Feature,
    Plan,
)
from hedgerow.privacy.accountants import compute_account
from hedgerow.privacy.accounts import MEMORY
from hedgerow.privacy.ledger import Ledger, write_prepared_tables
from hedgerow.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from hedgerow.privacy.outlook import MIN_BUCKETS, doubt_of, with_buckets
from hedgerow.privacy.report import PrivacyReport
from hedgerow.privacy.statement import PROCESS
from hedgerow.server.release import Progress
from hedgerow.survey.bounds import BOOLEANS, Findings, Range, classify_counts
from hedgerow.survey.kinds import DATE, N_KINDS, NUMBER, TRUTH
from hedgerow.survey.queries import RawSite
from hedgerow.survey.questions import Questions
from hedgerow.trees.binning import CodeArray, Grid, build_grid
from hedgerow.trees.importances import find_importances

_log = logging.getLogger(__name__)

FROM_DATA = "data"
FROM_TYPE = "from type"
PRIVATE = "private"


class Columns(dict[str, Any]):
    """Columns by name, as `to_arrow` makes them.

    Attributes:
        listed: by name, the categories that their types list, where that is asked for.
        is_matrix: whether all that are not declared are of numbers.
    """

    listed: Mapping[str, list[Any]] = {}
    is_matrix: bool = False


Table = NDArray[np.floating[Any]] | Columns


@dataclass(frozen=True)
class Declaration:
    """A caller's declarations about the columns of `X`.

    Attributes:
        bounds: by name of a number or date, (min, max).
        categories: by name of a feature, its categories.
        typed: the features whose categories the caller lets their type list.
        private: all others: what they are, in a table, and their bounds are to be found.
        from_data: whether these are read off `X` instead.
    """

    bounds: Mapping[str, Any]
    categories: Mapping[str, Sequence[Any]]
    typed: Collection[str]
    private: tuple[str, ...]
    from_data: bool

    @classmethod
    def of(cls, bounds: Any, categories: Any, table: Table, names: Sequence[str]) -> Self:
        """Read the parameters `bounds` and `categories`.

        Raises:
            UsageError: bounds or categories are missing, of another length, or for features that do not exist.
        """
        listed = table.listed if isinstance(table, Columns) else {}
        if _is_word(categories, FROM_TYPE):
            typed, given = {name: words for name, words in listed.items() if words}, {}
        else:
            given = _by_name(categories, names, "categories")
            typed = {name: listed.get(name, []) for name, words in given.items() if _is_word(words, FROM_TYPE)}
        known = {**given, **typed}
        from_data = _is_word(bounds, FROM_DATA)
        by_name = {} if from_data else _read_bounds(bounds, [name for name in names if name not in known], names)
        declared = {name: pair for name, pair in by_name.items() if pair != PRIVATE}
        private = tuple(name for name in names if name not in known and name not in declared)
        return cls(declared, known, typed, private, from_data)


def _is_word(value: Any, word: str) -> bool:
    return isinstance(value, str) and value == word


def is_one_pair(bounds: Any) -> bool:
    """Return whether bounds are two numbers for all columns, and not one entry per feature."""
    if isinstance(bounds, str | Mapping) or not hasattr(bounds, "__len__") or len(bounds) != 2:
        return False
    return all(isinstance(bound, Real) and not isinstance(bound, bool | np.bool_) for bound in bounds)


_BOUNDS = '(min, max) for each feature, None for a categorical one, or "private" to find them by noisy counts'


def _read_bounds(bounds: Any, wanted: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """Return (min, max) or "private" by name for the wanted features; raise UsageError for other bounds."""
    if bounds is None:
        raise UsageError("argument", code="bounds", name="bounds", value=None, expected=_BOUNDS)
    if _is_word(bounds, PRIVATE):
        return dict.fromkeys(wanted, PRIVATE)
    if is_one_pair(bounds):
        return {name: _read_pair(bounds, name) for name in wanted}
    if isinstance(bounds, str) or not isinstance(bounds, Iterable):
        raise UsageError("argument", code="bounds", name="bounds", value=bounds, expected=_BOUNDS)
    if isinstance(bounds, Mapping):
        by_name = dict.fromkeys(names, PRIVATE) | _by_name(bounds, names, "bounds")
    else:
        pairs = list(bounds)
        if len(pairs) != len(names):
            raise UsageError(
                "argument", code="bounds", name="The number of bounds", value=len(pairs),
                expected=f"{_BOUNDS}; X has {len(names)} features",
            )  # fmt: skip
        by_name = dict(zip(names, pairs, strict=True))
    absent = [name for name in wanted if by_name.get(name) is None]
    if absent:
        lacking = ", ".join(map(repr, absent[:8])) + (" and others" if len(absent) > 8 else "")
        raise UsageError("bounds-absent", lacking=lacking)
    return {name: _read_pair(by_name[name], name) for name in wanted}


def is_dataframe(X: Any) -> bool:
    """Return whether `X` has named columns, as pandas' and polars' tables have."""
    # Check the shape first: a lazy table of polars has none, and warns when its columns are read.
    return hasattr(X, "shape") and hasattr(X, "__getitem__") and hasattr(X, "columns")


def read_table(X: Any, names: Sequence[str], *, with_lists: bool = False) -> Columns:
    """Read the columns of `X` by name, in order.

    Raises:
        DataError: a type that cannot be read, by the column's name.

    Args:
        with_lists: whether the categories that their types list are wanted, where a plan can list them.
    """
    if isinstance(X, np.ndarray | list | tuple):
        # An array of objects, because numpy would turn all numbers of a list into text for one text among them.
        matrix = X if isinstance(X, np.ndarray) else np.array(X, dtype=object)
        given: dict[str, Any] = {name: matrix[:, index] for index, name in enumerate(names)}
    else:
        given = dict(zip(names, as_columns(X).values(), strict=True))
    columns = Columns({name: to_arrow(cells, "X", name) for name, cells in given.items()})
    columns.is_matrix = isinstance(X, np.ndarray | list | tuple)
    if with_lists:
        listed = {name: list_categories(cells) for name, cells in given.items()}
        columns.listed = {
            name: words
            for name, words in listed.items()
            if len(words) <= MAX_CATEGORIES and all(isinstance(value, str | int | float) for value in words)
        }
    return columns


def unmask(values: Any) -> Any:
    """Convert a masked array to a plain one, with None or NaN for masked cells; return others unchanged.

    Any other conversion to a plain array would show the values beneath the mask.
    """
    if not isinstance(values, np.ma.MaskedArray):
        return values
    is_single, is_number = values.dtype == np.float32, values.dtype.kind in "iuf"
    plain = np.asarray(values).astype(np.float32 if is_single else np.float64 if is_number else object)
    plain[np.ma.getmaskarray(values)] = np.nan if is_number else None
    return plain


def as_matrix(X: Any) -> Any:
    """Read a list, or an array of objects or texts, as a matrix of numbers; NaN for a cell without one.

    What has another shape is returned as it is, for scikit-learn to refuse.
    """
    try:
        cells = np.array(X, dtype=object) if isinstance(X, list | tuple) else unmask(X)
    except ValueError:
        return X
    if not isinstance(cells, np.ndarray) or cells.ndim != 2:
        return X
    if cells.dtype.kind in "biufc":
        return cells
    read = numbers(cells.ravel(), Place("X", "", 0))
    if (n_unfit := np.count_nonzero(read.is_unfit)) > MANY * cells.size:
        warn_owner(_OTHERS_IN_MATRIX.format(share=n_unfit / cells.size), CellsWarning)
    return read.values.reshape(cells.shape)


_OTHERS_IN_MATRIX = (
    "{share:.0%} of the cells of X are no numbers, and count as missing: all columns of an array or a list are taken "
    "to be of numbers. Give a table of pandas, polars or Arrow, or name the columns of text: categories={{position: "
    "[...]}}."
)


def column(table: Table, names: Sequence[str], name: str) -> Any:
    """Return one column of a table for a survey: a matrix's numbers, or cells to read one by one."""
    if isinstance(table, Columns):
        return RawColumn([table[name]], Place("X", name, 0))
    return table[:, names.index(name)]


def plan_features(
    table: Table, names: Sequence[str], declaration: Declaration, found: Mapping[str, tuple[int, Range | None]]
) -> list[dict[str, Any]]:
    """Build the plan's [[features]] tables.

    Args:
        found: by name of a feature that is not declared, its kind, and the range of numbers and dates.
    """
    features, own = list[dict[str, Any]](), dict[str, Any]()
    for name in names:
        if name in declaration.categories:
            own = {"type": "categorical", "categories": _to_plain(declaration.categories[name])}
            own["origin"] = TYPED if name in declaration.typed else DECLARED
        elif name in declaration.bounds:
            low, high = declaration.bounds[name]
            own = {"type": "date" if isinstance(low, str) else "numeric", "min": low, "max": high}
        elif declaration.from_data:
            own = {**_find_bounds_in_data(column(table, names, name), table), "origin": READ_OFF}
        else:
            kind, seen = found[name]
            if seen is not None:
                low, high = days_between(*seen.bounds) if kind == DATE else seen.bounds
                own = {"type": "date" if kind == DATE else "numeric", "min": low, "max": high, "integer": seen.is_whole}
            elif kind == TRUTH:
                own = {"type": "categorical", "categories": list(BOOLEANS)}
            else:
                own = {"type": "hashed", "buckets": MIN_BUCKETS}
            own["origin"] = FOUND
        features.append({"name": name, **own})
    return features


def _find_bounds_in_data(cells: Any, table: Table) -> dict[str, Any]:
    """Describe a feature by exact counts of its rows."""
    if not isinstance(table, Columns):
        low, high = finite_range(cells)
        return {"type": "numeric", "min": low, "max": high}
    kind = classify_counts(np.bincount(cells.kinds, minlength=N_KINDS).astype(np.float64), 0.0)
    if kind in (NUMBER, DATE):
        low, high = finite_range(cells.numbers if kind == NUMBER else cells.days)
        if kind == NUMBER:
            return {"type": "numeric", "min": low, "max": high}
        first, last = days_between(low, high)
        return {"type": "date", "min": first, "max": last}
    return {"type": "categorical", "categories": sorted(cells.texts[0]) or ["none"]}


def encode_rows(
    table: Table, plan: Plan, grid: Grid, *, is_training: bool = False, n_threads: int = 1
) -> tuple[CodeArray, HeldValues | None]:
    """Grid codes [n_features, n] of a table, one byte per value, and no other copy of a matrix.

    Args:
        is_training: whether the values are wanted as well, where a run may ask for their places within their cells, and
            the caller is told of columns of which much lies beyond the plan.
    """

    def read(index: int) -> ReadColumn:
        own = plan.features[index]
        if isinstance(table, Columns):
            return read_feature(table[own.name], own, Place("X", own.name, 0))
        return ReadColumn(table[:, index])

    if isinstance(table, np.ndarray):
        codes, counts = grid.encode_and_count(table, round_bounds(plan), n_threads)
        missing = [np.count_nonzero(own == each.missing_code) for own, each in zip(codes, grid.features, strict=True)]
        cells = {
            name: CellCounts(codes.shape[1], int(n_missing), n_above=n_beyond)
            for name, n_missing, n_beyond in zip(plan.feature_names, missing, counts.tolist(), strict=True)
        }
    else:
        columns = [*map(read, range(grid.n_features))]
        codes = grid.encode(tuple(column.values for column in columns))
        cells = {own.name: count_feature(column, own) for own, column in zip(plan.features, columns, strict=True)}
    if not plan.privacy.bounds_from_data or not is_training:
        warn_about_cells(cells, plan)
    if not is_training:
        return codes, None
    # Converted columns are larger than the table, so only a few are cached; sites ask one after another.
    held = HeldValues(grid, lru_cache(maxsize=4)(lambda index: read(index).values)) if grid.divisible else None
    texts = [feature.name for feature in plan.features if feature.is_hashed and feature.origin == FOUND]
    shares = {name: column(table, plan.feature_names, name).share_with_digits for name in texts}
    if said := describe_text_columns(shares):
        warn_owner(said, TextColumnsWarning)
    return codes, held


def warn_about_cells(cells: Cells, plan: Plan) -> None:
    """Tell the caller, as the owner of the rows, of odd columns: CellsWarning."""
    if said := describe_cells(cells, plan):
        warn_owner(said, CellsWarning)


def finite_range(values: NDArray[np.floating[Any]]) -> tuple[float, float]:
    """Return the smallest and the largest finite value, widened to a range; (0, 1) if there is none."""
    low, high = float(np.fmin.reduce(values)), float(np.fmax.reduce(values))
    if not (math.isfinite(low) and math.isfinite(high)):
        finite = values[np.isfinite(values)]
        if not finite.size:
            return 0.0, 1.0
        low, high = float(finite.min()), float(finite.max())
    low, high = max(low, -MAX_FEATURE_BOUND), min(high, MAX_FEATURE_BOUND)
    if low < high:
        return low, high
    width = max(1.0, abs(low) * 1e-3)
    return (low - width, low) if low > 0 else (low, low + width)


def _by_name(given: Mapping[Any, Any] | None, names: Sequence[str], parameter: str) -> dict[str, Any]:
    """Convert keys that are names or positions of features to names."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise UsageError(
            "argument", code=parameter, name=f"The type of {parameter}", value=type(given).__name__,
            expected="a dictionary from a feature's name or position to its value",
        )  # fmt: skip
    found = {}
    for key, value in given.items():
        position = isinstance(key, int | np.integer) and not isinstance(key, bool) and 0 <= key < len(names)
        name = names[int(key)] if position and key not in names else key
        if name not in names:
            features = ", ".join([*map(str, names[:12]), *(["..."] if len(names) > 12 else [])])
            raise UsageError("unknown-name", code=parameter, kind=f"feature of {parameter}", name=key, known=features)
        found[str(name)] = value
    return found


def _not_signs(given: Any, names: Sequence[str]) -> UsageError:
    expected = f"one of 1, 0 and -1 for each of the {len(names)} features of X, in order or by name or position"
    return UsageError("argument", code="monotonic-cst", name="monotonic_cst", value=given, expected=expected)


def signs_by_name(given: Any, names: Sequence[str]) -> dict[str, int]:
    """Return features' declared directions by name: 1, -1 or 0; UsageError for anything else."""
    if given is None:
        return {}
    values = given if isinstance(given, Mapping) else _to_plain(given) if hasattr(given, "__len__") else [given]
    if isinstance(values, str | list) and len(values) != len(names):
        raise _not_signs(given, names)
    signs = _by_name(values if isinstance(values, Mapping) else dict(enumerate(values)), names, "monotonic_cst")
    if any(isinstance(sign, str) or sign not in (-1, 0, 1) for sign in signs.values()):
        raise _not_signs(given, names)
    return {name: int(sign) for name, sign in signs.items()}


def groups_by_name(given: Any, names: Sequence[str]) -> list[list[str]]:
    """Return the groups of features that may meet, by name; none if all may. UsageError for anything else."""
    if given is None:
        return []
    if given == "no_interactions":
        return [[name] for name in names]
    if given == "pairwise":
        return [list(pair) for pair in combinations(names, 2)]
    is_listed = isinstance(given, list | tuple | set) and all(isinstance(group, list | tuple | set) for group in given)
    if not is_listed:
        expected = 'groups of features, such as [["age", "bmi"], ["sex"]], or "pairwise" or "no_interactions"'
        raise UsageError("argument", code="interaction-cst", name="interaction_cst", value=given, expected=expected)
    return [list(_by_name(dict.fromkeys(group), names, "interaction_cst")) for group in given]


def _read_pair(value: Any, name: str) -> Any:
    """(min, max), or "private" as it is; dates as ISO 8601."""
    if _is_word(value, PRIVATE):
        return PRIVATE
    try:
        low, high = (_bound(bound) for bound in value)
        if isinstance(low, str) != isinstance(high, str):
            raise ValueError(value)
    except (TypeError, ValueError):
        raise UsageError(
            "argument", code="bounds", name=f"The bounds of {name!r}", value=value, expected="two numbers, (min, max)"
        ) from None
    return low, high


def _bound(value: Any) -> float | str:
    """Return a bound as a number, or a date as text."""
    if isinstance(value, str):
        return format_day(parse_day(value))
    return str(value.isoformat()) if hasattr(value, "isoformat") else float(value)


_NOTHING = object()


def _to_plain(values: Any) -> list[Any]:
    if isinstance(values, np.ndarray):
        return list(np.asarray(values).tolist())
    return [value.item() if isinstance(value, np.generic) else value for value in values]


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


_TRIAL_LABEL: dict[str, Any] = {"type": "binary", "classes": ["0", "1"]}
FEW_RECORDS = 2000.0
"""Records times epsilon below which bounds found by noisy counts have cost accuracy (docs/numbers.md)."""


class FewRecordsWarning(UserWarning):
    """There are few records at this epsilon, for a model or for a survey's questions."""


def warn_about_few_records(
    questions: Questions, findings: Findings, found: Mapping[str, tuple[int, Range | None]], parameters: Collection[str]
) -> None:
    """Warn, from released counts alone, of few records for epsilon or of columns hidden by noise.

    Args:
        found: kinds and ranges of the surveyed columns, by name.
        parameters: of the estimator; the advice names only these.
    """
    ranges = {name: span for name, (_, span) in found.items() if span is not None}
    unseen = [name for name, span in ranges.items() if not span.is_seen]
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
    reasons += [f"In {name}: {span.doubt}." for name, span in ranges.items() if span.unheld]
    if reasons:
        of_label = "".join(f" or {name}" for name in ("classes", "label_bounds") if name in parameters)
        named = next((name for name in unseen if name in ranges), "NAME")
        remedy = f"Give bounds={{{named!r}: (min, max), ...}}{of_label} by hand where you know them."
        warn_caller(" ".join([*reasons, remedy]), FewRecordsWarning)


class SeveralRunsWarning(UserWarning):
    """Several fits over the rows of one account add up, where each report speaks of one."""


def find_place_in_search() -> str:
    """Return the fit's part in a search of scikit-learn: "candidate", "refit" of the best, or "" for none.

    A candidate does not report the sum of costs, which is complete only with the refit.
    """
    is_candidate, frame = False, sys._getframe(1)
    while frame is not None:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module == "sklearn.model_selection._validation":
            if name == "cross_validate":
                return ""
            is_candidate |= name == "_fit_and_score"
        elif module == "sklearn.model_selection._search" and name == "fit":
            if not is_candidate:
                return "refit"
            return "candidate" if getattr(frame.f_locals.get("self"), "refit", False) else ""
        frame = frame.f_back  # type: ignore[assignment]
    # A candidate without the search's frame runs in a worker process of the search.
    return "candidate" if is_candidate else ""


SECONDS_BEFORE_PROGRESS = 1.0
"""A fit that is shorter says nothing of its progress."""


@dataclass(frozen=True, eq=False)
class FitInputs:
    """Knowledge of a fit before its training.

    Attributes:
        structure_seed: of the trees.
        noise: where noise comes from, for the survey and for the training.
        rows: of each site whose rows are summed by themselves.
        findings: what a survey found; of little meaning where none was needed.
        ledger: the survey's releases.
        declaration: what the caller says of the columns.
        found: by name of the columns that were asked for, their kinds and ranges.
        n_records: as declared or found.
        has_units: whether rows of one unit are protected together.
    """

    structure_seed: int
    noise: NoiseSource
    rows: Rows
    findings: Findings
    ledger: Ledger
    declaration: Declaration
    found: Mapping[str, tuple[int, Range | None]]
    n_records: Any = 1
    has_units: bool = False


@dataclass(frozen=True, eq=False)
class TrainingInputs:
    """Inputs of a training.

    Attributes:
        table: the validated table.
        y: the labels, one per row.
        label: the plan's [label] without its name.
        start: what is known before training.
    """

    table: Table
    y: Any
    label: Mapping[str, Any]
    start: FitInputs


_DATA_SET = "the name of the data set whose account is charged, or None for all rows of the process"


class PrivateTrees(BaseEstimator, ABC):
    """Base of all estimators: the plan, the sites and the run."""

    model_: Model
    privacy_report_: PrivacyReport
    ledger_: Ledger
    tuning_: tuple[Any, ...]
    columns_: dict[str, tuple[str, str]]
    _y_is_numeric = False

    def __new__(cls, **parameters: Any) -> Self:
        """Refuse parameters of other boosted trees that no signature here has."""
        refuse_validation_parameters(parameters)
        made: Self = super().__new__(cls)
        return made

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        # A matrix's text that is not a number counts as missing, and a table may hold any text.
        tags.input_tags.string = True
        return tags

    def fit(self, X: Any, y: Any, *, sites: Any = None, units: Any = None, **others: Any) -> Self:
        """Train over the sites and store the model; the survey, the noisy sums and their cost are charged.

        Args:
            X: matrix or table [n, n_features], of pandas, polars (lazy as well), Arrow or DuckDB; NaN is missing.
            y: labels [n].
            sites: the name of each row's site [n]; None for one site.
            units: the identifier of whom each row is about [n], where a person may have several rows. The guarantee
                is then for a person, of whom `max_rows_per_unit` rows are used. None protects single rows.
            others: nothing; `sample_weight`, `eval_set` and `early_stopping_rounds` are refused with their reasons.

        Raises:
            UsageError: bounds, categories or classes are missing or do not fit X, or classes are of another type
                than y; code "classes", for three classes or more in a linear model.
            DataError: y is of another type than the labels; nothing stands out of the noise. Where nothing is
                promised, also for a row that does not fit.
            PlanError: a parameter is out of its range.

        A row that does not fit (a label that is missing, not listed or no number, a missing unit or site) is left out,
        and a warning that is marked as private counts such rows: whether `fit` raises follows from shapes, types and
        releases, never from one row. Where nothing is promised (epsilon is infinite, or bounds="data") it raises
        DataError for the first such row. After an error the estimator is as it was before; what a survey has released
        by then is spent.
        """
        refuse_weights(others)
        before = self.__dict__.copy()
        try:
            with self._open_run(units) as run:
                self._train(self._prepare(X, y, sites, units))
            self._note_account(run)
        except BaseException:
            # Restore the estimator: the survey's findings do not belong to the earlier model. The account keeps the
            # cost.
            self.__dict__ = before
            raise
        return self

    @contextmanager
    def _open_run(self, units: Any, epsilon: Any = None, delta: Any = None) -> Iterator[RunAccount]:
        """Reserve the full cost of a fit, or of another call, as one run; its releases are parts of the run."""
        whole = (self.epsilon if epsilon is None else epsilon, self._delta if delta is None else delta)
        try:
            # The plan refuses other values before anything is released.
            is_promise = float(whole[0]) > 0 and 0 < float(whole[1]) < 1
        except (TypeError, ValueError):
            is_promise = False
        facts = RunFacts(
            type(self).__name__,
            unit="record" if units is None else "unit",
            is_void=self.random_state is not None or self._reads_data,
        )
        account = process_account(self._read_data_set())
        with (
            account.open_run(facts, whole=(float(whole[0]), float(whole[1])) if is_promise else None) as run,
            enter_run(run),
        ):
            yield run

    def _read_data_set(self) -> str:
        name = getattr(self, "data_set", None)
        if name is None:
            return ""
        if not isinstance(name, str):
            raise UsageError("argument", code="usage", name="data_set", value=name, expected=_DATA_SET)
        return name

    def _note_account(self, run: RunAccount) -> None:
        """Store a report with the cost of all runs of the account, and warn once if there are several."""
        # `model_` keeps its own report, so that its bytes follow from the fit alone; `save` writes this one into the
        # file.
        place = find_place_in_search()
        # A search's fits may have run in other processes. The report still says that the model was chosen.
        account = replace(run.read_state(self.model_.plan.privacy.delta), is_chosen=place == "refit")
        self.privacy_report_ = self.model_.report.with_account(account)
        if place == "refit" or (place != "candidate" and account.n_runs > 1 and not has_told(run)):
            others = " Fits in other processes are not counted." if account.place == MEMORY else ""
            warn_caller(
                f"{account.n_runs} run{'s' * (account.n_runs > 1)} of this account cost {account.describe_total()} "
                f"together, and each of their reports speaks of one.{others} To choose among them by exact scores of "
                "held-out rows is outside the guarantee; hedgerow.tune chooses within one budget.",
                SeveralRunsWarning,
            )

    def __getstate__(self) -> Any:
        state = super().__getstate__()
        sent = {} if "model_" in state else send_budgets()
        return {**state, "_budgets": sent} if sent else state

    def __setstate__(self, state: Any) -> None:
        state = dict(state)
        receive_budgets(state.pop("_budgets", {}))
        super().__setstate__(state)

    @abstractmethod
    def _prepare(self, X: Any, y: Any, sites: Any, units: Any) -> TrainingInputs:
        """Read `X` and `y`, and survey undeclared parts; arguments and errors as in `fit`."""

    def _encode(self, y: NDArray[Any], plan: Plan) -> NDArray[np.int32]:
        """Encode labels as a node holds them: int32 [n]."""
        # Rows without a label get a placeholder here; they are left out before anything is counted.
        values = np.where(np.isnan(y), plan.label.bounds[0], y) if y.dtype.kind == "f" else y
        kept: NDArray[np.int32] = plan.label.kind.encode(values, plan.label)
        return kept

    # Reading X and y -----------------------------------------------------------------------------------------------

    def _read_table(self, X: Any, y: Any = _NOTHING) -> Table:
        """Validate the table of a fit, or of a prediction, which has no labels."""
        is_fit = y is not _NOTHING
        for parameter, given in (("X", X), ("y", y if is_fit else None)):
            # scikit-learn would count the letters of a file's or a column's name, or a dictionary's keys, as rows. Some
            # of scipy's sparse matrices are dictionaries; of all of them it says itself that they are not taken.
            is_dictionary = isinstance(given, Mapping) and not hasattr(given, "toarray")
            if is_dictionary or isinstance(given, str | bytes | os.PathLike):
                raise UsageError("no-table", parameter=parameter, type=type(given).__name__)
        X = [unmask(row) for row in X] if isinstance(X, list | tuple) else collect(X)
        labels = {"y": None} if y is None else {}
        if not self._reads_columns(X, is_fit):
            # An empty table is accepted, because an error would reveal whether there is a row.
            least = 0 if is_fit and self._leaves_out else 1
            options = {**_AS_MATRIX, "ensure_min_samples": least}
            matrix: NDArray[Any] = validate_data(self, as_matrix(X), reset=is_fit, **labels, **options)
        else:
            given = list(getattr(X, "column_names", getattr(X, "columns", ())))
            require_distinct_names(given)
            validate_data(self, X, skip_check_array=True, reset=is_fit, **labels)
            if given != list(range(len(given))) and not all(isinstance(name, str) for name in given):
                # Columns with other names than texts are identified by position, which these names would silently
                # contradict.
                expected = "texts, or 0, 1, 2 and so on in this order: X.columns = [str(name) for name in X.columns]"
                raise UsageError("argument", code="column-names", name="X.columns", value=given[:6], expected=expected)
        if is_fit:
            check_consistent_length(X, y)
            if not len(y) and not self._leaves_out:
                raise DataError("data-empty", source="X")
        if not self._reads_columns(X, is_fit):
            return matrix
        said = self.categories.values() if isinstance(self.categories, Mapping) else [self.categories]
        return read_table(X, self._list_features(), with_lists=any(_is_word(word, FROM_TYPE) for word in said))

    def _reads_columns(self, X: Any, is_fit: bool) -> bool:
        """Return whether to read `X` by columns: a table, or a matrix with columns that are not numbers."""
        if isinstance(X, pa.Table) or is_dataframe(X):
            return True
        if is_fit:
            return bool(self.categories)
        return any(feature.is_categorical or feature.is_date for feature in self.model_.plan.features)

    def _list_features(self) -> list[str]:
        names = getattr(self, "feature_names_in_", None)
        if names is not None:
            return [str(name) for name in names]
        return [f"x{index}" for index in range(self.n_features_in_)]

    # Training ------------------------------------------------------------------------------------------------------

    def _begin(
        self,
        table: Table,
        n_rows: int,
        sites: Any,
        units: Any,
        asked: Feature | None = None,
        label: Any = None,
        fits: NDArray[np.bool_] | None = None,
    ) -> FitInputs:
        """Find undeclared parts by a survey, after refusing everything that can be refused without it.

        Args:
            n_rows: rows of the table.
            sites, units: as in `fit`.
            asked: the label's column if its bounds or classes are to be found, as in `Questions`.
            label: the labels, cell by cell, or as numbers.
            fits: bool [n], which rows have a label; None for all.
        """
        names = self._list_features()
        structure_seed, noise = self._randomness()
        if self.max_rows_per_unit != 1 and units is None:
            raise UsageError("units-missing", caller="fit")
        rows: Rows = {"site": None}
        if self.secure_sums:
            # Masks depend on the caller's setting alone, never on the names in `sites`.
            rows = rows_by_site(sites, n_rows, may_be_missing=self._leaves_out)
            for count in range(len(rows), MIN_MASKED_COHORT):
                rows = {**rows, unused_name(f"no rows {count}", list(rows)): np.empty(0, dtype=np.intp)}
        else:
            rows_by_site(sites, n_rows, may_be_missing=self._leaves_out)
        declaration = Declaration.of(self.bounds, self.categories, table, names)
        private = () if declaration.from_data else declaration.private
        start = FitInputs(
            structure_seed, noise, rows, Findings(1), Ledger(), declaration,
            dict.fromkeys(private, (NUMBER, Range(0.0, 1.0))), has_units=units is not None,
        )  # fmt: skip
        trial_label = {"name": unused_name("label", names), **_TRIAL_LABEL}
        if weights := getattr(self, "class_weight", None):
            trial_label["class_weights"] = [to_python(end(weights.values())) for end in (min, max)]
        trial = self._make_plan(table, names, trial_label, replace(start, n_records=self._read_n_records(n_rows) or 1))
        n_all = n_rows
        if units is not None:
            fits = self._choose_within_bound(units, n_rows, trial, fits)
        if fits is not None and (units is not None or not fits.all()):
            start, n_rows = replace(start, rows=only_rows(start.rows, fits)), int(np.count_nonzero(fits))
        is_table = isinstance(table, Columns) and not table.is_matrix
        open_type = "" if is_table else "numeric"
        questions = Questions(
            columns=(*(Feature(name=name, type=open_type) for name in private), *([asked] if asked else [])),
            epsilon=trial.privacy.epsilon,
            delta=trial.privacy.delta,
            accountant=trial.privacy.accountant,
            n_records=self._read_n_records(n_rows),
            label=len(private) if asked else None,
            rows_per_unit=trial.privacy.rows_per_unit,
        )
        if not questions.columns and questions.n_records is not None:
            return replace(start, n_records=questions.n_records)
        raw = [column(table, names, name) for name in private] + ([label] if asked else [])
        note_first_fit()
        sites = {name: RawSite(raw, numbers, n_all) for name, numbers in start.rows.items()}
        surveyed = survey_sites(questions, sites, noise)
        findings = surveyed.findings
        found = dict(zip(private, findings.columns, strict=True))
        if asked and findings.lacks_label and findings.label_kind != DATE:
            account = compute_account(questions.accountant, surveyed.ledger.events(), questions.delta)
            findings.require_label(account.epsilon)
        warn_about_few_records(questions, findings, found, self.get_params())
        return replace(start, findings=findings, ledger=surveyed.ledger, found=found, n_records=findings.n_records)

    def _choose_within_bound(
        self, units: Any, n_rows: int, trial: Plan, fits: NDArray[np.bool_] | None = None
    ) -> NDArray[np.bool_]:
        """Choose the rows to use, bool [n]: at most `max_rows_per_unit` of each unit, over all sites together.

        The choice comes before the survey, so that survey and training see the same rows. It depends only on the unit's
        own rows and on the plan as known by then.

        Args:
            fits: bool [n], which rows have a label; None for all.
        """
        require_a_cell_per_row(units, n_rows, "units")
        names, has_unit = read_units(units, may_be_missing=self._leaves_out)
        warn_about_left_out(has_unit, "data-unit-missing")
        own = np.flatnonzero(has_unit if fits is None else has_unit & fits)
        rows, _ = rows_within_bound(names[own], trial.privacy.rows_per_unit, bytes.fromhex(trial.digest))
        kept = np.zeros(n_rows, dtype=np.bool_)
        kept[own[rows]] = True
        return kept

    def _train(self, ready: TrainingInputs) -> None:
        names, table, start = self._list_features(), ready.table, ready.start
        plan = self._make_plan(table, names, {"name": unused_name("label", names), **ready.label}, start)
        if doubt := doubt_of(plan):
            warn_caller(f"{doubt}.", FewRecordsWarning)
        threads = use_threads(count_threads(self.n_jobs))
        shown: AbstractContextManager[Progress | None] = nullcontext()
        if self.verbose:
            from hedgerow.local.progress import TrainingProgress

            shown = TrainingProgress(plan, len(start.rows), patience=SECONDS_BEFORE_PROGRESS)
        with _in_parameters(self), threads as n_threads, shown as progress:
            site_data = self._make_site_data(plan, table, ready.y, start.rows, n_threads)
            note_first_fit()
            noise, is_own = start.noise, len(site_data) == 1
            model = train(plan, site_data, noise=noise, n_threads=n_threads, progress=progress, is_own=is_own)
        if model.has_open_level and not doubt:
            said = "The order of predictions is known better than their level"
            warn_caller(f"{said}: {model.level_text}.", FewRecordsWarning)
        self.model_ = model.made(PROCESS, len(site_data))
        self.columns_ = {feature.name: (feature.type, feature.origin) for feature in plan.features}
        self.privacy_report_ = self.model_.report
        self.ledger_ = self.model_.ledger

    def _make_site_data(
        self, plan: Plan, table: Table, y: NDArray[Any], rows: Rows, n_threads: int = 1
    ) -> dict[str, SiteData]:
        """Encode each site's rows as its node holds them, without rows of a class that was not found."""
        labels = self._encode(y, plan)
        kept = self._choose_kept(labels)
        n_used = len(labels) if kept is None else int(np.count_nonzero(kept))
        RowCount(n_used, {"data-label-outside": len(labels) - n_used}).warn()
        if plan.label.origin == DECLARED:
            counts = count_label(y, plan.label)
            warn_about_cells({"y": counts[plan.label.name]} if counts else {}, plan)
        encoded = encode_rows(table, plan, build_grid(plan), is_training=True, n_threads=n_threads)
        data = SiteData(encoded[0], labels, encoded[1])
        own_rows = rows if kept is None or n_used == len(labels) else only_rows(rows, kept)
        return {name: data if numbers is None else data.only(numbers) for name, numbers in own_rows.items()}

    def _choose_kept(self, labels: NDArray[np.int32]) -> NDArray[np.bool_] | None:
        """Choose the rows to train on, bool [n]; None for all."""
        return None

    def _make_plan(self, table: Table, names: Sequence[str], label: Mapping[str, Any], start: FitInputs) -> Plan:
        declaration = start.declaration
        unit: dict[str, Any] = {}
        if start.has_units:
            name = unused_name("unit", [*names, label["name"]])
            unit = {"unit": name, "max_rows_per_unit": to_python(self.max_rows_per_unit)}
        sections = self._write_model_sections(start.structure_seed)
        label = dict(label)
        sections["model"]["class_weights"] = label.pop("class_weights", [])
        if label["type"] == _TRIAL_LABEL["type"]:
            # The trial label before the survey does not fit a loss of numbers.
            sections.pop("loss", None)
        groups = groups_by_name(getattr(self, "interaction_cst", None), names)
        if groups:
            sections["model"]["interaction_constraints"] = groups
        signs = signs_by_name(self.monotonic_cst, names)
        features = [
            {**feature, **({"monotone": _DIRECTIONS[signs[feature["name"]]]} if signs.get(feature["name"]) else {})}
            for feature in plan_features(table, names, declaration, start.found)
        ]
        if not start.ledger.releases:
            # Before the survey there are no releases of it.
            features = [{**each, "origin": None} if each.get("origin") == FOUND else each for each in features]
        content = {
            "version": PLAN_VERSION,
            "name": type(self).__name__,
            **sections,
            "privacy": {
                "epsilon": to_python(self.epsilon),
                "delta": self._delta,
                "accountant": self.accountant,
                "n_records": start.n_records,
                "bounds_from_data": declaration.from_data,
                **unit,
            },
            "federation": {"secure_aggregation": bool(self.secure_sums)},
            "label": label,
            "features": features,
            "prepared": write_prepared_tables(
                start.ledger, unit.get("unit", "record"), unit.get("max_rows_per_unit", 1)
            ),
        }
        with _in_parameters(self):
            return with_buckets(Plan.from_dict(content))

    def _write_model_sections(self, structure_seed: int) -> dict[str, dict[str, Any]]:
        """Return the plan's [model], and the section of its algorithm."""
        model = {name: to_python(getattr(self, name)) for name in _MODEL_PARAMETERS if hasattr(self, name)}
        return {"model": {**model, "structure_seed": structure_seed}}

    def _read_n_records(self, n_rows: int) -> Any:
        """Return the declared number of records, or `n_rows` if the caller reads off the data; else None."""
        if self.n_records is not None:
            return to_python(self.n_records)
        return n_rows if self._reads_data else None

    @property
    def _delta(self) -> Any:
        return DEFAULT_DELTA if self.delta is None else to_python(self.delta)

    @property
    def _reads_data(self) -> bool:
        """True if undeclared parts are read off the data, which voids the guarantee."""
        return _is_word(self.bounds, FROM_DATA)

    @property
    def _leaves_out(self) -> bool:
        """True if rows that do not fit are left out, because an error would reveal them.

        False without a guarantee.
        """
        return not self._reads_data and not (isinstance(self.epsilon, Real) and math.isinf(self.epsilon))

    def _find_origin_of_label(self, declared: Any) -> str:
        """Return the origin of the label's classes or bounds: declared, read off the data, or found."""
        return DECLARED if declared is not None else READ_OFF if self._reads_data else FOUND

    def _randomness(self) -> tuple[int, NoiseSource]:
        """Return the seed of the structure, and the noise: the system's, unless `random_state` is given."""
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
        """The share of the importances of each feature, float64 [n_features].

        They come from the model alone, so they cost no privacy.

        They add up to 1, or are all 0 where no feature moves a prediction; see `hedgerow.trees.importances`.
        """
        values = find_importances(self._require_model().ensemble).values
        total = values.sum()
        return np.asarray(values / total if total > 0 else values)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model file for `Model.load` and the command `hedgerow`; see `Model.save`."""
        replace(self._require_model(), report=self.privacy_report_).save(os.fspath(path))

    def to_xgboost(self) -> dict[str, Any]:
        """Convert the model to XGBoost's JSON; see `Model.to_xgboost`."""
        return self._require_model().to_xgboost()

    def to_onnx(self) -> Any:
        """Convert the model to an `onnx.ModelProto`; labels as in `classes_` if these are integers or text."""
        model = self._require_model()
        classes = getattr(self, "classes_", None)
        if classes is None or classes.dtype.kind not in "iu":
            return model.to_onnx()
        return model.to_onnx([int(value) for value in classes])

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw each feature's contribution to the score into a file; see `hedgerow.models.plots.plot_shapes`."""
        plot_shapes(self._require_model(), os.fspath(path))

    def _require_model(self) -> Model:
        check_is_fitted(self, "model_")
        return self.model_

    # Predicting ----------------------------------------------------------------------------------------------------

    def explain(self, X: Any) -> Explanation:
        """Compute each feature's contribution to each prediction: exact Shapley values; see `Model.explain`."""
        return self._require_model().explain_codes(self._read_codes(X))

    def _read_codes(self, X: Any) -> CodeArray:
        check_is_fitted(self, "model_")
        codes, _ = encode_rows(self._read_table(X), self.model_.plan, self.model_.ensemble.grid)
        return codes


Rows = Mapping[str, NDArray[np.intp] | None]
"""Row numbers by site, intp [n]; None for all rows."""


def require_a_cell_per_row(column: Any, n_rows: int, name: str) -> None:
    """Raise DataError unless `column` is one column of `n_rows` cells.

    The keys of a dictionary, for example, would name no row.
    """
    shape = column.shape if hasattr(column, "shape") else (count_cells(column, "the call", name),)
    if shape != (n_rows,):
        raise DataError("data-lengths", source=name, found=shape, n_rows=n_rows)


def read_units(units: Any, *, may_be_missing: bool) -> tuple[NDArray[np.str_], NDArray[np.bool_]]:
    """Return each row's unit [n], and the rows that have one, bool [n].

    Raises:
        DataError: a row has none, unless `may_be_missing`.
    """
    read = identifiers(units, Place("units", "units", 0))
    return read.values if may_be_missing else read.require(), ~read.is_unfit


def warn_about_left_out(fits: NDArray[np.bool_], code: str) -> None:
    """Warn the owner where many rows do not fit, bool [n], for the reason of a code."""
    RowCount(int(np.count_nonzero(fits)), {code: int(np.count_nonzero(~fits))}).warn()


def rows_by_site(sites: Any, n_rows: int, *, may_be_missing: bool = False) -> dict[str, NDArray[np.intp] | None]:
    """Return each site's row numbers by the site's name; None for all rows.

    Args:
        sites: the name of each row's site [n]; None for one site that holds all rows. 1 and 1.0 name one site.
        may_be_missing: whether a row without a site is of none, and no error.

    Raises:
        DataError: when `sites` has another length, or a row's site is missing.
    """
    if sites is None:
        return {"site": None}
    require_a_cell_per_row(sites, n_rows, "sites")
    # Convert each name by itself: beside a text, numpy would make two sites of 1 and 1.0.
    # A text that no message can carry names no site: otherwise one odd cell would end the fit.
    texts = read_texts(sites, Place("sites", "sites", 0))
    names = [None if name is None or _count_bytes(name) > MAX_TEXT_BYTES else name for name in texts]
    if None in names and not may_be_missing:
        raise DataError("data-site-missing")
    found: dict[str, list[int]] = {name: [] for name in sorted({name for name in names if name is not None})}
    for row, name in enumerate(names):
        if name is not None:
            found[name].append(row)
    return {name: np.array(own, dtype=np.intp) for name, own in found.items()}


def _count_bytes(name: str) -> int:
    try:
        return len(name.encode())
    except UnicodeEncodeError:
        return MAX_TEXT_BYTES + 1


def only_rows(rows: Rows, kept: NDArray[np.bool_]) -> Rows:
    """Restrict each site's rows to the kept ones; `kept` is bool [n]."""
    return {name: np.flatnonzero(kept) if numbers is None else numbers[kept[numbers]] for name, numbers in rows.items()}


@cache
def note_first_fit() -> None:
    """Log once per process, on stderr, why the first fit of an installation takes long.

    It is not one of Python's warnings: nothing is wrong, and a program may turn warnings into errors.
    """
    if not has_compiled():
        _log.warning("This is the first fit here: inner loops are compiled, which takes some seconds, once.")


@contextmanager
def _in_parameters(estimator: BaseEstimator) -> Iterator[None]:
    """Name an estimator's parameter, `max_depth`, in the error about a plan's field, `model.max_depth`."""
    try:
        yield
    except PlanError as fault:
        own = _name_parameter(fault.path, estimator.get_params(deep=False))
        if own != fault.path:
            for part in ("what", "cause", "remedy"):
                setattr(fault, part, getattr(fault, part).replace(fault.path, own))
        fault.path = own
        raise


def _name_parameter(path: str, names: Collection[str]) -> str:
    """Return what a caller wrote for the field of this path; the path itself where no parameter is meant."""
    section, _, field = path.rpartition(".")
    if section.startswith("features["):
        word = {"min": "bounds", "max": "bounds", "categories": "categories"}.get(field)
        return path if word is None else f"{word} of {section}"
    if section == "label" and field in ("min", "max"):
        return "label_bounds"
    return field if section in ("model", "privacy", "label", "adassp") and field in names else path


def refuse_weights(others: Mapping[str, Any]) -> None:
    """Refuse unknown arguments of `fit`: some by name with a reason, others as Python does.

    Weights are no parameter of `fit`, because scikit-learn would then assume that they work.
    """
    refuse_validation_parameters(others)
    if others.get("sample_weight") is not None:
        raise UsageError("sample-weight")
    unknown = [name for name in others if name not in {"sample_weight", *_LOOKS}]
    if unknown:
        raise TypeError(f"fit() got an unexpected keyword argument {unknown[0]!r}")


_LOOKS = ("eval_set", "early_stopping_rounds", "early_stopping", "warm_start")
"""Parameters of other boosted trees that ask the rows again."""


def refuse_validation_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise UsageError for an argument of `_LOOKS` with a true value."""
    for name in _LOOKS:
        if parameters.get(name):
            raise UsageError("every-look-costs", name=name)


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, or a table library's missing value."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):
        # Comparing pandas' NA gives no truth value, so it is recognised by its type.
        return type(value).__name__ == "NAType"


def unused_name(wanted: str, taken: Sequence[str]) -> str:
    """Return `wanted`, lengthened by underscores until it is not taken."""
    while wanted in taken:
        wanted += "_"
    return wanted


def store_parameters(estimator: BaseEstimator, arguments: Mapping[str, Any]) -> None:
    """Set each parameter of an `__init__` as an attribute, as scikit-learn asks.

    `arguments` are the locals of the `__init__`.
    """
    for name in arguments:
        if name not in ("self", "__class__"):
            setattr(estimator, name, arguments[name])


def to_python(value: Any) -> Any:
    """Convert a NumPy number, as grid searches give it, to Python's; return other values unchanged."""
    return value.item() if isinstance(value, np.generic) else value
