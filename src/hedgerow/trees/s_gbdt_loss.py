"""What one record adds under S-GBDT: its gradient, clipped to +-g*, and its support, a constant.

The paper adds noise of variance sigma² / (2 r1) to the support and sigma² / (2 r2) to the sum of gradients
(arXiv 2309.12041, algorithm 4). Noise of one variance on (g, c), c = sqrt(r1 / r2), is the same after dividing by c.
The gradient alone is clipped, so a record of small gradient has a smaller norm: that is what the filter counts on.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from hedgerow.protocol.plan import Plan
from hedgerow.trees.exponentials import logistic
from hedgerow.trees.losses import RECORD_NORM, SCORE_UNIT, STEP_BITS, STEPS, Loss, check_units


@lru_cache(maxsize=32)
def s_gbdt_loss(plan: Plan) -> Loss:
    """The loss of an S-GBDT plan: statistics (clip(g), c), gradients of squared or logistic loss.

    Raises:
        PlanError: when the clip and the share leave a statistic no integers.
    """
    section = plan.s_gbdt
    c = math.sqrt(section.support_share / (1 - section.support_share))
    is_binary = plan.label.type == "binary"
    clip = min(section.gradient_clip, 1.0 if is_binary else 2.0)
    # A hair below the norm, so that no rounding of a product lifts a statistic over it.
    scale = RECORD_NORM / math.hypot(clip, c) * (1 - 1e-12)
    check_units(scale, clip * scale, c * scale)
    largest, constant = math.floor(clip * scale), math.floor(c * scale)
    norm_squared = largest**2 + constant**2
    if not is_binary:
        empty = np.empty((0, STEPS, 2), dtype=np.int16)
        scales = np.array([float(math.floor(scale)), float(constant)])
        return Loss("squared", 1, 2, scales, empty, norm_squared, largest, constant)
    probability = logistic(STEPS, SCORE_UNIT >> STEP_BITS)
    gradients = np.stack([probability, probability - 1])
    table = np.full((2, STEPS, 2), constant, dtype=np.int16)
    table[:, :, 0] = np.clip(np.trunc(gradients * scale), -largest, largest)
    return Loss("table", 1, 2, np.array([scale, float(constant)]), table, norm_squared)
