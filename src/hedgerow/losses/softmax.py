"""The softmax loss with diagonal Hessians, for labels of three classes or more."""

from __future__ import annotations

import math

import numpy as np

from hedgerow.losses.kinds import SOFTMAX, LossKind
from hedgerow.losses.tables import RECORD_NORM, STEPS, Loss, check_units
from hedgerow.plan.plan import Plan

HESSIAN_SCALE = 2.0
"""Largest c for which the norm of a record never exceeds that of its gradient alone, which reaches sqrt(2)."""


def _build(plan: Plan, joint_clip: float | None, hessian_scale: float | None) -> Loss:
    n_classes, newton = plan.label.n_outputs, plan.model.weight_update == "newton"
    c = hessian_scale or (HESSIAN_SCALE if newton else 0.5)
    # Above c*, diagonal Hessians add at most c**2 / 8 (two even classes); c**2 / 4 is on the safe side.
    extra = 0.0 if newton and c <= HESSIAN_SCALE else (c / 2 if newton else c)
    own = math.hypot(math.sqrt(2), extra)
    limit = own if joint_clip is None else min(own, joint_clip)
    scale = RECORD_NORM / limit
    check_units(scale, c * scale)
    n_statistics = 2 * n_classes if newton else n_classes + 1
    weights = np.concatenate([np.ones(n_classes), np.full(n_statistics - n_classes, c)])
    empty = np.empty((0, STEPS, n_statistics), dtype=np.int16)
    constant = 0 if newton else math.floor(c * scale)
    return Loss("softmax", n_classes, n_statistics, scale * weights, empty, RECORD_NORM**2, 0, constant)


KIND = LossKind(SOFTMAX, _build)
