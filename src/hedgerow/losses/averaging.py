"""Averaging: leaves that hold shares of classes, or means of a numeric label, instead of gradients.

Source: Maddock et al., CCS'22, section 4.4.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from hedgerow.losses.kinds import Floats, Identity, LossKind, Share
from hedgerow.losses.metrics import classification_scores
from hedgerow.losses.tables import RECORD_NORM, STEPS, Loss, check_units, loss_from_table
from hedgerow.plan.plan import Label, Plan
from hedgerow.plan.registry import LabelKind


def _shares(plan: Plan, _: float | None, hessian_scale: float | None) -> Loss:
    if len(plan.label.classes) == 2 and hessian_scale is not None:
        scale = RECORD_NORM / math.hypot(1, hessian_scale)
        check_units(scale, hessian_scale * scale)
        pairs = np.array([[0.0, hessian_scale], [1.0, hessian_scale]])
        table = np.repeat(pairs[:, None, :], STEPS, axis=1)
        return replace(loss_from_table(table, scale, np.array([1.0, hessian_scale])), is_share=True)
    counts = np.repeat(np.eye(len(plan.label.classes))[:, None, :], STEPS, axis=1)
    return loss_from_table(counts, float(RECORD_NORM), np.ones(counts.shape[-1]), n_outputs=0)


def _means(_: Plan, _joint_clip: float | None, _hessian_scale: float | None) -> Loss:
    c = 0.5
    scales = RECORD_NORM / math.hypot(1, c) * np.array([1.0, c])
    units = np.floor(scales).astype(int)
    empty = np.empty((0, STEPS, 2), dtype=np.int16)
    norm_squared = int(units[0] ** 2 + units[1] ** 2)
    return Loss("squared", 0, 2, units.astype(float), empty, norm_squared, int(units[0]), int(units[1]))


def shares(label: LabelKind) -> LossKind:
    """Shares of classes."""
    return LossKind(label, Share(), _shares, classification_scores)


def means(label: LabelKind, scores: Callable[[Any, Floats, Label], dict[str, float]]) -> LossKind:
    """Means of numbers; `scores` as in `LossKind`."""
    return LossKind(label, Identity(), _means, scores, noise_ridge=12.0)
