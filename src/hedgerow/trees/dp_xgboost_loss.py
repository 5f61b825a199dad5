"""The loss of DP-XGBoost: squared, on labels in [-1, 1], with gradients of at most 1."""

from __future__ import annotations

import numpy as np

from hedgerow.trees.losses import SCORE_UNIT, STEP_BITS, STEPS, Loss

GRADIENT_UNIT = 2**10


def dp_xgboost_loss(is_regression: bool, filters: bool, count_weight: float) -> Loss:
    """Two statistics, (gradient, count): `GRADIENT_UNIT` and count_weight * GRADIENT_UNIT integers to 1.

    Args:
        is_regression: whether labels are numbers in [-1, 1]; classes count as -1 and 1.
        filters: leave out records whose gradient exceeds 1 (gradient data filtering) instead of clipping it.
        count_weight: how much a count weighs beside a gradient of 1 in the sensitivity.

    Source: Grislain & Gonzalvez 2021 (arXiv 2110.12770), section 4; Li et al. 2020 for the filter.
    """
    unit, count = GRADIENT_UNIT, max(1, int(GRADIENT_UNIT * count_weight))
    scales = np.array([float(unit), float(count)])
    norm_squared = unit * unit + count * count
    if is_regression:
        empty = np.empty((0, STEPS, 2), dtype=np.int16)
        return Loss("squared", 1, 2, scales, empty, norm_squared, unit, count)
    score = (np.arange(STEPS) - STEPS // 2 + 0.5) / (SCORE_UNIT >> STEP_BITS)
    gradient = np.stack([score + 1, score - 1])
    statistics = np.stack([np.trunc(np.clip(gradient, -1, 1) * unit), np.full(gradient.shape, float(count))], axis=-1)
    if filters:
        # A step of the table beside 1 is let through: a record at the score 0 has a gradient of 1 exactly.
        statistics[np.abs(gradient) > 1 + 2.0**-STEP_BITS] = 0
    return Loss("table", 1, 2, scales, statistics.astype(np.int16), norm_squared)


def l1_sensitivity(loss: Loss) -> int:
    """The largest L1 norm of one record's statistics, in integer units."""
    if loss.kind == "table":
        return int(np.abs(loss.table.astype(np.int64)).sum(axis=-1).max())
    return loss.clip + loss.constant
