# SPDX-License-Identifier: Apache-2.0
"""The logistic loss, for labels of two classes."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hedgerow import elementary
from hedgerow.losses import tables
from hedgerow.losses.kinds import (
    SQUARES,
    ClassLink,
    Floats,
    Ints,
    LevelParts,
    LossKind,
    Objective,
    classification_scores,
    shares,
)
from hedgerow.losses.labels import Classes
from hedgerow.plan.plan import Label, Plan

GOLDEN_RATIO = (1 + math.sqrt(5)) / 2
HESSIAN_SCALE = float(elementary.powers(GOLDEN_RATIO, 2.5))
"""c* = Phi^(5/2) = 3.33, the largest c for which the norm of (g, c h) of the logistic loss never exceeds 1.

With x = |g|, h = x (1 - x) for both labels, and the norm is at most 1 iff c^2 <= f(x) = (1 + x) / (x^2 (1 - x)). f is
infinite at 0 and 1, and the derivative of log f, 2 / (1 - x^2) - 2 / x, is zero at x = 1 / Phi only, where f = Phi^5.
"""


def _build(plan: Plan, joint_clip: float | None, hessian_scale: float | None) -> tables.Loss:
    newton = plan.model.weight_update == "newton"
    c = hessian_scale or (HESSIAN_SCALE if newton else 0.5)
    return _loss(newton, joint_clip, c, plan.model.class_weights)


# Every replica of a run asks for it.
@lru_cache(maxsize=8)
def _loss(newton: bool, joint_clip: float | None, c: float, class_weights: tuple[float, ...]) -> tables.Loss:
    probability = tables.logistic(tables.STEPS + 1, tables.SCORE_UNIT >> tables.STEP_BITS)
    # Read the other class's probability from the same table: 1 - probability would be rounded otherwise.
    other = probability[::-1]
    hessian = probability * other if newton else np.ones(tables.STEPS + 1)
    pairs = np.stack([np.stack([gradient, c * hessian], axis=-1) for gradient in (probability, -other)])
    norms = np.sqrt(pairs[..., 0] ** 2 + pairs[..., 1] ** 2)
    limit = float(norms.max()) if joint_clip is None else joint_clip
    tables.check_units(tables.RECORD_NORM / limit, c * tables.RECORD_NORM / limit)
    pairs *= np.minimum(1, limit / norms)[..., None]
    if class_weights:
        pairs *= (tables.read_class_weights(class_weights) / tables.CLASS_WEIGHT_UNIT)[:, None, None]
    return tables.loss_from_table(pairs, tables.RECORD_NORM / limit, np.array([1.0, c]), n_outputs=1)


class LogOdds(ClassLink):
    """A link of two classes: the score is the log-odds of the last class."""

    name = "logistic"
    level_curve = "logistic"

    def predict_level(self, scores: Ints, kept: Ints, label: Label, baseline: tuple[int, ...]) -> LevelParts:
        chances = tables.find_chances(scores)
        rises = chances * (tables.LEVEL_UNIT - chances) // tables.LEVEL_UNIT
        return LevelParts(kept[None] * tables.LEVEL_UNIT, chances, rises)

    def probabilities(self, scores: Floats) -> Floats:
        positive = 1 / (1 + elementary.exp(-scores[0]))
        return np.stack([1 - positive, positive], axis=1)

    def decision(self, scores: Floats) -> Floats:
        return np.asarray(scores[0])

    def chance(self, places: Floats) -> Floats:
        return np.asarray(1 / (1 + elementary.exp(-places / tables.SCORE_UNIT)))

    def objective(self, label: Label) -> Objective:
        return Objective("binary:logistic", {"reg_loss_param": SQUARES}, base=0.5)

    def axis(self, label: Label) -> str:
        return f"log-odds of {label.name} = {label.classes[-1]}"


class Binary(Classes):
    """The type of labels with two classes."""

    type = "binary"
    hint = '"binary" with two classes'
    n_classes = 2, 2, "exactly 2 classes, the positive one last"
    is_symmetric = True
    position = "score"

    def centre(self, kept: NDArray[np.int32]) -> Ints:
        """Return labels as -1/2 and 1/2, in units of 2**-16: int64 [n]."""
        return (2 * kept.astype(np.int64) - 1) * (tables.SCORE_UNIT // 2)

    def simulate(self, effects: Floats, label: Label, noise: np.random.Generator) -> NDArray[np.int32]:
        chance = 1 / (1 + elementary.exp(-effects[0]))
        return np.asarray(noise.uniform(size=effects.shape[1]) < chance, dtype=np.int32)


LABEL = Binary()
# Under the joint clip a smaller c than HESSIAN_SCALE leaves more of the norm to the gradient.
KIND = LossKind(
    LABEL,
    LogOdds(),
    _build,
    classification_scores,
    clipped_updates=("newton",),
    clipped_hessian_scale=2.0,
    averaging=shares(LABEL),
    cuts_again=True,
    has_class_weights=True,
    predicts_mean=True,
)
