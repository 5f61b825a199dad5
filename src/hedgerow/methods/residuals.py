# SPDX-License-Identifier: Apache-2.0
"""A shift of finished scores of numbers to the best fit by a named loss: one more noisy sum.

Gradients are clipped, or smoothed, and trees stop before the end, so that a quantile's scores cover more or less than
they should. How far labels lie from their scores is asked in cells that are as wide as they are far, on either side:
near 0, where a model's own shift lies, they are narrow, whatever the spread of the labels is. Every record is in one
cell, so a release has the sensitivity of a count. What scores are shifted by follows from the loss itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.losses.named import ResidualLoss
from hedgerow.losses.tables import RECORD_NORM, SCORE_UNIT
from hedgerow.plan.fields import refuse
from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import IntVector
from hedgerow.trees.leaf_sums import RecordCounts, TrainingSite

NEAREST, FURTHEST = 5, 17
"""The cells next to 0 end at 2**5 units of 2**-16, and those beyond 2**16, which is 1.0, at 2**17."""
N_SIDE = FURTHEST - NEAREST + 1
N_CELLS = 2 * N_SIDE
MIN_DEVIATIONS = 2.0
"""A cell with less than this many deviations of its noise counts as empty."""
_PARTS = 16
"""Places within a cell at which labels are taken to lie, along a line between its neighbours."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ResidualCounts(RecordCounts):
    """Numbers of records by distance of labels from scores: int64 [`N_CELLS`], 2**14 to a record.

    The first half is of labels below their scores, the nearest first, and the second of the others.
    """

    def answer(self, site: TrainingSite) -> IntVector:
        """Take in the update, then count records by distance; each record is in one entry."""
        site.take_in(self.update)
        beyond = site.records.labels.astype(np.int64) - site.records.scores[0]
        # The exponent of a double is the length of a whole number below 2**53, exactly.
        octaves = np.clip(np.frexp(np.abs(beyond).astype(np.float64))[1], NEAREST, FURTHEST) - NEAREST
        return self.count(octaves + N_SIDE * (beyond >= 0))


def require_residual_loss(plan: Plan) -> ResidualLoss:
    """Return the loss that a plan names; PlanError unless it is a loss of residuals."""
    if not isinstance(plan.loss, ResidualLoss):
        raise refuse("loss.name", getattr(plan.loss, "name", None), "a loss of residuals (ResidualLoss)")
    return plan.loss


def fit_shift(
    released: IntVector, sigma: float, gradient: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> float:
    """Return the shift of all scores at which the gradients of a loss add up to 0, within +-2.

    It is 0 if no cell stands out of the noise.

    Args:
        released: int64 [`N_CELLS`], with its noise.
        sigma: the noise's standard deviation, in integer units.
        gradient: of residuals, prediction less label, scaled to [-1, 1].
    """
    counts = np.where(released > MIN_DEVIATIONS * sigma, released / RECORD_NORM, 0.0)
    if not counts.any():
        return 0.0
    ends = 2.0 ** np.arange(NEAREST, FURTHEST + 1)
    edges = np.concatenate([-ends[::-1], [0.0], ends]) / SCORE_UNIT
    widths, inside = np.diff(edges), (np.arange(_PARTS) + 0.5) / _PARTS
    # From the lowest cell to the highest.
    ordered = np.concatenate([counts[:N_SIDE][::-1], counts[N_SIDE:]])
    rises = np.diff(np.concatenate([[0.0], ordered / widths, [0.0]]))
    slopes = np.where(rises[:-1] * rises[1:] > 0, np.sign(rises[1:]) * np.minimum(*np.abs([rises[:-1], rises[1:]])), 0)
    places = (edges[:-1, None] + widths[:, None] * inside).ravel()
    weights = ((ordered[:, None] + (slopes * widths)[:, None] * (inside - 0.5)) / _PARTS).ravel()
    low, high = -2 * SCORE_UNIT, 2 * SCORE_UNIT
    while low < high:
        middle = (low + high) // 2
        if math.fsum((weights * gradient(middle / SCORE_UNIT - places)).tolist()) < 0:
            low = middle + 1
        else:
            high = middle
    return low / SCORE_UNIT
