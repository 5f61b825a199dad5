# SPDX-License-Identifier: Apache-2.0
"""The softmax loss with diagonal Hessians, for labels of three classes or more."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from hedgerow import elementary
from hedgerow.losses.kinds import (
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
from hedgerow.losses.tables import (
    LEVEL_UNIT,
    RECORD_NORM,
    STEPS,
    Loss,
    check_units,
    exponentials,
    read_class_weights,
    round_chances,
)
from hedgerow.plan.plan import Label, Plan

MAX_CLASSES = 250
"""One score for each, which all records carry."""
HESSIAN_SCALE = 2.0
"""Largest c for which the norm of a record never exceeds that of its gradient alone, which reaches sqrt(2).

A class whose probability is off by q has |g| = q and h = q (1 - q), so the squared norm is the sum of
phi(q) = q^2 + 4 q^2 (1 - q)^2 over the classes: q = s for the true one, and q_k for the wrong ones, which sum to s. On
[0, 1] phi(q) / q = q (1 + 4 (1 - q)^2) has its maxima at 1/2 and 1, both 1. So the squared norm is at most s + s <= 2,
and two even wrong classes with s = 1 reach it.
"""

CLIP = 1.0
"""The default joint clip of Newton updates.

A gradient has norm sqrt(2) only where the true class has no chance and one wrong class has every chance, and such
records would set the noise for all. Without any knowledge of K even classes it is sqrt(1 - 1/K), and less where more
is known.
"""


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
    loss = Loss("softmax", n_classes, n_statistics, scale * weights, empty, RECORD_NORM**2, 0, constant)
    given = plan.model.class_weights
    return replace(loss, class_weights=read_class_weights(given)) if given else loss


WEIGHT_UNIT = 2**30
_EXP_STEP_BITS = 6
_EXP_STEPS = 22 << (16 - _EXP_STEP_BITS)
"""Steps of 2**-10 of score; after 22 an exponential is below 2**-30."""


class LogWeights(ClassLink):
    """A link of several classes: each score is the logarithm of its class's weight."""

    name = "softmax"
    is_relative = True
    level_curve = "logistic"

    def predict_level(self, scores: Ints, kept: Ints, label: Label, baseline: tuple[int, ...]) -> LevelParts:
        weights = self.weights(scores)
        chances = round_chances(weights * LEVEL_UNIT // weights.sum(axis=0))
        labels = np.where(np.arange(len(scores))[:, None] == kept, LEVEL_UNIT, 0)
        return LevelParts(labels, chances, chances * (LEVEL_UNIT - chances) // LEVEL_UNIT)

    def probabilities(self, scores: Floats) -> Floats:
        weights = elementary.exp(scores - scores.max(axis=0))
        return np.asarray((weights / np.cumsum(weights, axis=0)[-1]).T)

    def decision(self, scores: Floats) -> Floats:
        return np.asarray(scores.T)

    def weights(self, scores: Ints) -> Ints:
        """Return exp of scores less each record's largest, in steps of 2**-10: int64 [n_classes, n]."""
        below = (scores.max(axis=0) - scores) >> _EXP_STEP_BITS
        table = np.rint(WEIGHT_UNIT * exponentials(_EXP_STEPS, 2**10)).astype(np.int64)
        return np.asarray(table[np.minimum(below, _EXP_STEPS - 1)], dtype=np.int64)

    def choose(self, scores: Ints) -> Ints:
        return np.asarray(scores.argmax(axis=0))

    def objective(self, label: Label) -> Objective:
        return Objective("multi:softprob", {"softmax_multiclass_param": {"num_class": str(label.n_outputs)}})

    def axis(self, label: Label) -> str:
        return "log-weight"


class Multiclass(Classes):
    """The type of labels with three classes or more, each with a score of its own."""

    type = "multiclass"
    hint = '"multiclass" with three classes or more'
    n_classes = 3, MAX_CLASSES, f"3 to {MAX_CLASSES} classes"
    position = "probability"

    def n_outputs(self, label: Label) -> int:
        return len(label.classes)


LABEL = Multiclass()
KIND = LossKind(
    LABEL,
    LogWeights(),
    _build,
    classification_scores,
    clipped_updates=("newton",),
    clip=CLIP,
    clipped_hessian_scale=HESSIAN_SCALE,
    averaging=shares(LABEL),
    cuts_again=True,
    has_class_weights=True,
    predicts_mean=True,
)
