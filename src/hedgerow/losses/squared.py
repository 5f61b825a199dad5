# SPDX-License-Identifier: Apache-2.0
"""The squared loss, for a numeric label scaled to [-1, 1]; its Hessian is the same for every record."""

from __future__ import annotations

import math

import numpy as np

from hedgerow.losses.kinds import DEFAULT_CLIP, IdentityLink, LossKind, means, regression_scores
from hedgerow.losses.labels import Numbers
from hedgerow.losses.tables import RECORD_NORM, STEPS, Loss, check_units
from hedgerow.plan.fields import refuse
from hedgerow.plan.plan import Label, Plan, check_bounds

RESIDUAL_LIMIT = 1.0
"""Residuals of a regression are clipped to this, in units in which the label's public range is [-1, 1]."""


def _build(_: Plan, joint_clip: float | None, hessian_scale: float | None) -> Loss:
    clip = RESIDUAL_LIMIT if joint_clip is None else joint_clip
    c = hessian_scale or clip / 2
    scale = RECORD_NORM / math.hypot(clip, c)
    check_units(scale, clip * scale, c * scale)
    gradient_clip, constant = math.floor(clip * scale), math.floor(c * scale)
    empty = np.empty((0, STEPS, 2), dtype=np.int16)
    scales = np.array([float(math.floor(scale)), float(constant)])
    return Loss("squared", 1, 2, scales, empty, gradient_clip**2 + constant**2, gradient_clip, constant)


class Regression(Numbers):
    """The type of labels of numbers within the plan's bounds."""

    type = "regression"
    hint = '"regression" with min and max in place of classes'

    def check(self, label: Label) -> None:
        check_bounds(label.min, label.max, "label")
        if label.classes:
            raise refuse("label.classes", list(label.classes), "no classes on a regression label")


LABEL = Regression()
KIND = LossKind(
    LABEL,
    IdentityLink(),
    _build,
    regression_scores,
    noise_ridge=12.0,
    clipped_updates=("newton", "gradient"),
    clipped_hessian_scale=DEFAULT_CLIP,
    averaging=means(LABEL, regression_scores),
    starts=("mean", "linear"),
    predicts_mean=True,
)
