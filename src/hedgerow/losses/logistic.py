"""The logistic loss, for labels of two classes."""

from __future__ import annotations

import math

import numpy as np

from hedgerow.losses.kinds import LOGISTIC, LossKind
from hedgerow.losses.tables import (
    RECORD_NORM,
    SCORE_UNIT,
    STEP_BITS,
    STEPS,
    Loss,
    check_units,
    logistic,
    loss_from_table,
)
from hedgerow.plan.plan import Plan

GOLDEN_RATIO = (1 + math.sqrt(5)) / 2
HESSIAN_SCALE = GOLDEN_RATIO**2.5
"""Largest c for which the norm of (g, c h) of the logistic loss never exceeds 1; see docs/privacy.md for the proof."""


def _build(plan: Plan, joint_clip: float | None, hessian_scale: float | None) -> Loss:
    newton = plan.model.weight_update == "newton"
    c = hessian_scale or (HESSIAN_SCALE if newton else 0.5)
    probability = logistic(STEPS, SCORE_UNIT >> STEP_BITS)
    hessian = probability * (1 - probability) if newton else np.ones(STEPS)
    pairs = np.stack([np.stack([probability - label, c * hessian], axis=-1) for label in (0, 1)])
    norms = np.sqrt(pairs[..., 0] ** 2 + pairs[..., 1] ** 2)
    limit = float(norms.max()) if joint_clip is None else joint_clip
    check_units(RECORD_NORM / limit, c * RECORD_NORM / limit)
    pairs *= np.minimum(1, limit / norms)[..., None]
    return loss_from_table(pairs, RECORD_NORM / limit, np.array([1.0, c]), n_outputs=1)


# Under the joint clip a smaller c than HESSIAN_SCALE leaves more of the norm to the gradient.
KIND = LossKind(LOGISTIC, _build, clipped_updates=("newton",), clipped_hessian_scale=2.0)
