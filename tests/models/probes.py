"""Exports beside the model: made-up records that try every side of every threshold, and how far predictions differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hedgerow.models.model import Model
from hedgerow.plan.plan import Feature, Plan
from hedgerow.trees.binning import CodeArray, FeatureGrid, Grid
from hedgerow.trees.ensemble import Ensemble

TOLERANCE = 1e-6
"""Of a probability, or of a number beside its label's range."""


def draw_probes(plan: Plan, grid: Grid, n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Records as XGBoost takes them: float32 [n, n_features]."""
    columns = [
        rng.integers(0, part.n_categories + 1, n) if feature.is_categorical else _draw_numbers(feature, part, n, rng)
        for feature, part in zip(plan.features, grid.features, strict=True)
    ]
    matrix = np.column_stack(columns).astype(np.float32)
    matrix[rng.random(matrix.shape) < 0.1] = np.nan
    return matrix


def _draw_numbers(feature: Feature, grid: FeatureGrid, n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    low, high = feature.min or 0.0, feature.max or 0.0
    between = rng.uniform(low - 0.05 * (high - low), high + 0.05 * (high - low), n).astype(np.float32)
    at = rng.choice(grid.edges, n)
    return np.choose(rng.integers(0, 3, n), [between, at, np.nextafter(at, np.float32(-np.inf))])


def encode_matrix(grid: Grid, matrix: NDArray[np.float32]) -> CodeArray:
    """Grid codes [n_features, n] of records in the form that XGBoost takes."""
    columns: list[NDArray[np.generic]] = []
    for feature, column in zip(grid.features, matrix.T, strict=True):
        if not feature.is_categorical:
            columns.append(np.ascontiguousarray(column))
            continue
        indices = np.where(np.isnan(column), -2, column).astype(np.int32)
        columns.append(np.where(indices == feature.n_categories, -1, indices))
    return grid.encode(tuple(columns))


def largest_difference(
    plan: Plan, ensemble: Ensemble, matrix: NDArray[np.float32], theirs: NDArray[np.float32]
) -> float:
    """In probability, or in value beside the label's range, after clipping theirs; of times in score."""
    scores, label, link = ensemble.scores(encode_matrix(ensemble.grid, matrix)), plan.label, ensemble.link
    found = theirs.astype(np.float64)
    if label.kind.position == "risk":
        return float(np.abs(scores[0] - found).max() / max(1.0, np.abs(scores[0]).max()))
    if label.kind.is_number:
        low, high = label.bounds
        kept = np.clip(found, *(link.objective(label).clip or (low, high)))
        return float(np.abs(link.values(scores[0], label) - kept).max() / (high - low))
    ours = link.probabilities(scores)
    return float(np.abs(np.clip(found, 0, 1) - ours[:, 1] if ours.shape[1] == 2 else found - ours).max())


def export_checked(model: Model, path: Path) -> None:
    """Write a model as XGBoost's JSON; what XGBoost predicts by the file is what the model predicts."""
    xgboost = pytest.importorskip("xgboost")
    model.export(path, "xgboost")
    matrix = draw_probes(model.plan, model.ensemble.grid, 2000, np.random.default_rng(0))
    booster = xgboost.Booster()
    booster.load_model(path)
    data = xgboost.DMatrix(
        matrix, feature_names=booster.feature_names, feature_types=booster.feature_types, enable_categorical=True
    )
    low, high = model.plan.label.bounds if model.plan.label.kind.is_number else (0.0, 1.0)
    # Where bounds are far from zero, XGBoost's single precision has larger steps.
    step = float(np.spacing(np.float32(max(abs(low), abs(high))))) / (high - low)
    found = largest_difference(model.plan, model.ensemble, matrix, booster.predict(data))
    assert found <= (max(TOLERANCE, 2 * step) if model.plan.label.kind.is_number else TOLERANCE)
