"""A linear model for S-GBDT to begin with: an extra of ours, in place of the constant initial score.

Numeric features that go together leave X^T X with a few large eigenvalues and many small ones, and noise that suits the
large ones buries the small. So X^T X is asked for twice, and the second time of rows that the first release has made
round:

    A = X^T X + noise;    z = sqrt(A_00) L^-1 x   with   L L^T = A + lambda I, shortened to norm 1
    B = Z^T Z + noise
    three times:    coefficients += step (B + lambda I)^-1 (Z^T g + noise)

Preconditioning by an earlier private release is due to Kamath, Li, Singhal and Ullman 2019 (arXiv 1805.00216), the
rounds are those of boosted AdaSSP. Every row has norm 1 at most, whatever the releases were, so the sensitivities do
not depend on them. Categories are left to the trees.
"""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np

from hedgerow.privacy.events import DiscreteGaussianEvent, Event
from hedgerow.protocol.plan import Plan
from hedgerow.protocol.queries import FittedTrees, IntVector, Purpose, Query
from hedgerow.training.adassp_settings import cross_sensitivity_squared, gram_sensitivity_squared
from hedgerow.training.linear_steps import (
    cross_question,
    gram_question,
    gram_sigma,
    real_cross,
    real_gram,
    shifted_factor,
)
from hedgerow.training.steps import Run, grown_score_bound
from hedgerow.trees.grid import build_grid
from hedgerow.trees.linear_algebra import Matrix, lower_inverse, solve
from hedgerow.trees.linear_basis import LinearBasis
from hedgerow.trees.linear_sums import linear_loss
from hedgerow.trees.losses import RECORD_NORM, Loss

ROUNDS = 3
SHARES = (3 / 7, 1 / 7, 1 / 7)
"""Of the start's divergence: for A, for B, and for each of the rounds."""
N_EXCHANGES = 2 + ROUNDS
ROW_NORM = 1.0
FIRST_RIDGE, SECOND_RIDGE = 0.5, 1.5
"""What least eigenvalues are lifted to, in sqrt(p) standard deviations of the noise."""
CLASS_STEP = 2.0
"""The logistic loss has at most a quarter of the curvature that X^T X stands for; half of that is taken back."""

Start = Generator[Query, IntVector, tuple[FittedTrees, FittedTrees]]


def numeric_features(plan: Plan) -> int:
    """How many features the linear start has."""
    return sum(not feature.is_categorical for feature in plan.features)


def n_start_trees(plan: Plan) -> int:
    """What nodes add to their scores: one tree per feature and round."""
    return ROUNDS * len(plan.features)


def start_loss(plan: Plan) -> Loss:
    """The loss of the linear start: the logistic one, or squares with gradients clipped to g*, one integer at least."""
    clip = min(max(plan.s_gbdt.gradient_clip, 1 / RECORD_NORM), 1.0)
    return linear_loss("logistic", plan.label.type == "regression", clip)


def start_multipliers(whole: float) -> tuple[float, float, float]:
    """Noise multipliers of A, B and each round, when all together cost as much as one release at `whole`."""
    first, second, each = (whole / math.sqrt(share) for share in SHARES)
    return first, second, each


def start_length(plan: Plan) -> int:
    """The longest vector of the start."""
    p = 1 + numeric_features(plan)
    return p * (p + 1) // 2


def start_releases(plan: Plan, whole: float, rounding: float) -> list[Event]:
    """What the start releases at its smallest sensitivities."""
    basis, rows = _basis(plan), plan.privacy.rows_per_unit
    round_rows = basis.transformed(np.eye(basis.rows.n_columns))
    smallest = cross_sensitivity_squared(round_rows, start_loss(plan).sensitivity_squared(0), rows)
    planned = (
        (gram_sensitivity_squared(basis, rows), start_length(plan), 1),
        (gram_sensitivity_squared(round_rows, rows), start_length(plan), 1),
        (smallest, basis.rows.n_columns, ROUNDS),
    )
    return [
        DiscreteGaussianEvent(z * (1 - rounding), max(1, math.floor(z * math.sqrt(squared))), length, count)
        for z, (squared, length, count) in zip(start_multipliers(whole), planned, strict=True)
    ]


def linear_start(run: Run, whole: float, largest: int) -> Start:
    """The start as a part of a program.

    Args:
        run: of S-GBDT.
        whole: the start's noise multiplier.
        largest: the largest magnitude of a tree's value.

    Returns:
        All its trees in one batch, one per feature; and the last update, which nodes have not taken in yet.
    """
    loss, rows = start_loss(run.plan), run.plan.privacy.rows_per_unit
    noises = start_multipliers(whole) if whole else (0.0, 0.0, 0.0)
    basis = _basis(run.plan)
    p = basis.rows.n_columns
    query = gram_question(0, "linear start, X^T X", basis, noises[0], rows)
    gram = real_gram((yield query), basis)
    sigma = gram_sigma(run.sigma(query), basis)
    factor = shifted_factor(gram, FIRST_RIDGE * sigma * math.sqrt(p), sigma)
    basis = basis.transformed(_rounding_matrix(gram, factor))
    query = gram_question(1, "linear start, Z^T Z", basis, noises[1], rows)
    gram = real_gram((yield query), basis)
    sigma = gram_sigma(run.sigma(query), basis)
    factor = shifted_factor(gram, SECOND_RIDGE * sigma * math.sqrt(p), sigma)
    step = 1.0 if run.plan.label.type == "regression" else CLASS_STEP
    total = np.zeros((len(run.plan.features), basis.trees.n_leaves, 1), dtype=np.int64)
    update: FittedTrees | None = None
    score_bound = 0
    for number in range(ROUNDS):
        purpose = Purpose(2 + number, "CrossProducts", f"linear start, Z^T g, round {number}")
        before = max(0, number - 1) * basis.trees.n_trees
        release = yield cross_question(purpose, basis, loss, (noises[2], rows), (update, before), score_bound)
        values = basis.values(step * solve(factor, real_cross(release, basis)), largest)
        update = FittedTrees(basis.trees, values)
        score_bound = grown_score_bound(score_bound, update)
        total += values
    if update is None:
        raise ValueError("a linear start has rounds")
    return FittedTrees(basis.trees, total.astype(np.int32)), update


def _rounding_matrix(gram: Matrix, factor: Matrix) -> Matrix:
    """What makes rows round, and their mean squared norm about 1: sqrt(A_00 / d) L^-1, d as in the module's text."""
    inverse = lower_inverse(factor)
    ridge = float(factor[0, 0]) ** 2 - float(gram[0, 0])
    resolved = len(gram) - ridge * math.fsum((inverse * inverse).reshape(-1).tolist())
    return math.sqrt(max(1.0, float(gram[0, 0])) / max(1.0, resolved)) * inverse


def _basis(plan: Plan) -> LinearBasis:
    return LinearBasis.of(plan, build_grid(plan), ROW_NORM, plan.s_gbdt.linear_scale, numeric_only=True)
