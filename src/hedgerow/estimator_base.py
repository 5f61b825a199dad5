"""What the private estimators share: reading X and y, the plan that the parameters make, the run over sites."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from hedgerow.client.columns import texts_of_cells
from hedgerow.client.data_errors import Place
from hedgerow.estimator_tables import (
    FROM_DATA,
    Declaration,
    Table,
    columns_of,
    declared_features,
    encode_table,
    has_only_numbers,
    is_dataframe,
    within_floats,
)
from hedgerow.local_training import train
from hedgerow.model import Model
from hedgerow.privacy.ledger import Ledger
from hedgerow.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from hedgerow.privacy.report import PrivacyReport
from hedgerow.protocol.errors import DataError, UsageError
from hedgerow.protocol.plan import PLAN_VERSION, Plan
from hedgerow.site_data import SiteData
from hedgerow.threads import threads_of_jobs, use_threads
from hedgerow.trees.grid import CodeArray, build_grid

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
        raise UsageError(
            "n_records is not given.",
            cause="The model file holds it, and an exact count tells whether one more record was there.",
            remedy="Give a public or round number, n_records=10_000; it decides how many trees are made by default.",
            code="n-records",
        )

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
        raise DataError(
            f"sites has the shape {shape}, but there are {len(labels)} rows.",
            remedy="Give one site's name per row.",
            code="data-lengths",
        )
    # Each name by itself: beside one text, numpy would make two sites of 1 and 1.0.
    names = texts_of_cells(sites, Place("sites", "sites", 0))
    if None in names:
        raise DataError(
            "sites has a row without a site's name.",
            remedy="Give one site's name per row, or leave such rows out.",
            code="data-site-missing",
        )
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
