"""Checks an exported file by loading it with XGBoost and comparing predictions on made-up records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.errors import ModelError, missing_extra
from hedgerow.protocol.plan import Feature, Plan
from hedgerow.trees.grid import FeatureGrid, Grid

if TYPE_CHECKING:
    from hedgerow.model import Model

TOLERANCE = 1e-6
"""Largest difference of a probability, or of a value relative to the label's range."""
N_RECORDS = 2000


def check_xgboost_file(model: Model, path: Path, seed: int = 0) -> float:
    """The largest difference between our predictions and those of XGBoost for the file at `path`.

    The records are made up from the plan alone: values between, at and just below thresholds, missing values, unlisted
    categories.

    Raises:
        ModelError: code "export-differs", when it is above `TOLERANCE`.
        EnvironmentFault: code "missing-extra", when XGBoost is not installed.
    """
    try:
        import xgboost
    except ImportError as fault:
        raise missing_extra("xgboost", "Checking an export") from fault
    matrix = made_up_records(model.plan, model.ensemble.grid, N_RECORDS, np.random.default_rng(seed))
    booster = xgboost.Booster()
    booster.load_model(path)
    data = xgboost.DMatrix(
        matrix, feature_names=booster.feature_names, feature_types=booster.feature_types, enable_categorical=True
    )
    difference = largest_difference(model, matrix, booster.predict(data))
    if not difference <= TOLERANCE:
        raise ModelError(
            f"XGBoost {xgboost.__version__} predicts otherwise than this model, by {difference:.3g}.",
            cause="This version of XGBoost reads the file in another way.",
            remedy="Use XGBoost 2.1 to 3.3, and report this to the maintainers.",
            code="export-differs",
        )
    return difference


def made_up_records(plan: Plan, grid: Grid, n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Records as XGBoost takes them, float32 [n, n_features], that try every side of every threshold."""
    columns = [
        _categories(feature_grid, n, rng) if feature.is_categorical else _numbers(feature, feature_grid, n, rng)
        for feature, feature_grid in zip(plan.features, grid.features, strict=True)
    ]
    matrix = np.column_stack(columns).astype(np.float32)
    matrix[rng.random(matrix.shape) < 0.1] = np.nan
    return matrix


def codes_of_matrix(grid: Grid, matrix: NDArray[np.float32]) -> NDArray[np.unsignedinteger]:
    """Grid codes [n_features, n] of records in the form that XGBoost takes."""
    columns: list[NDArray[np.generic]] = []
    for feature, column in zip(grid.features, matrix.T, strict=True):
        if not feature.is_categorical:
            columns.append(np.ascontiguousarray(column))
            continue
        indices = np.where(np.isnan(column), -2, column).astype(np.int16)
        columns.append(np.where(indices == feature.n_categories, -1, indices))
    return grid.encode(tuple(columns))


def largest_difference(model: Model, matrix: NDArray[np.float32], theirs: NDArray[np.float32]) -> float:
    """Largest difference in probability, or in value relative to the label's range, after clipping theirs."""
    codes = codes_of_matrix(model.ensemble.grid, matrix)
    label = model.plan.label
    if label.min is not None and label.max is not None:
        clipped = np.clip(theirs.astype(np.float64), label.min, label.max)
        return float(np.abs(model.predict_codes(codes) - clipped).max() / (label.max - label.min))
    ours = model.predict_proba_codes(codes)
    if ours.shape[1] == 2:
        return float(np.abs(ours[:, 1] - np.clip(theirs.astype(np.float64), 0, 1)).max())
    return float(np.abs(ours - theirs).max())


def _numbers(feature: Feature, grid: FeatureGrid, n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    low, high = feature.min or 0.0, feature.max or 0.0
    between = rng.uniform(low - 0.05 * (high - low), high + 0.05 * (high - low), n).astype(np.float32)
    at = rng.choice(grid.edges, n)
    below = np.nextafter(at, np.float32(-np.inf))
    return np.choose(rng.integers(0, 3, n), [between, at, below])


def _categories(grid: FeatureGrid, n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    return rng.integers(0, grid.n_categories + 1, n).astype(np.float32)
