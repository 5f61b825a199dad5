"""The two questions of linear models, and the step from their answers: shared by every program that fits one."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.linear_queries import CrossProducts, GramMatrix
from hedgerow.protocol.queries import FittedTrees, IntVector, Purpose
from hedgerow.training.adassp_settings import GRAM_SHIFT, cross_sensitivity_squared, gram_sensitivity_squared
from hedgerow.trees.linear_algebra import Matrix, cholesky, least_eigenvalue
from hedgerow.trees.linear_basis import LinearBasis
from hedgerow.trees.losses import RECORD_NORM, Loss

CROSS_SHIFT = RECORD_NORM.bit_length() - 1
LEAST_RIDGE = 1.0
"""Added to lambda, in records: without noise, categories that add up to the constant leave X^T X singular."""
SPAN = 8.0
"""Eigenvalues are looked for within so many sigma sqrt(p): the norm of the noise is near 2 sigma sqrt(p) at most."""


def gram_question(round_number: int, what: str, basis: LinearBasis, noise_multiplier: float, rows: int) -> GramMatrix:
    """The question for X^T X; `rows` is the largest number of rows of one unit."""
    p = basis.rows.n_columns
    return GramMatrix(
        purpose=Purpose(round_number, "GramMatrix", what),
        length=p * (p + 1) // 2,
        bound=basis.largest_entry**2 >> GRAM_SHIFT,
        sensitivity_squared=gram_sensitivity_squared(basis, rows),
        noise_multiplier=noise_multiplier,
        rows=basis.rows,
        shift=GRAM_SHIFT,
    )


def cross_question(
    purpose: Purpose,
    basis: LinearBasis,
    loss: Loss,
    noise: tuple[float, int],
    update: tuple[FittedTrees | None, int],
    score_bound: int,
) -> CrossProducts:
    """The question for X^T g.

    Args:
        purpose: of the release.
        basis: the rows X.
        loss: whose negative gradients are g.
        noise: the noise multiplier, and the largest number of rows of one unit.
        update: trees that scores do not know yet, and how many they know.
        score_bound: a public bound on every score, in units of 2**-16.
    """
    gradient_squared = loss.sensitivity_squared(score_bound)
    return CrossProducts(
        purpose=purpose,
        length=basis.rows.n_columns,
        bound=max(1, math.isqrt(gradient_squared) * basis.largest_entry >> CROSS_SHIFT),
        sensitivity_squared=cross_sensitivity_squared(basis, gradient_squared, noise[1]),
        noise_multiplier=noise[0],
        update=update[0],
        ensemble_size=update[1],
        rows=basis.rows,
        shift=CROSS_SHIFT,
        score_bound=score_bound,
    )


def real_gram(release: IntVector, basis: LinearBasis) -> Matrix:
    """X^T X in real units from its released triangle: float64 [p, p]."""
    p = basis.rows.n_columns
    gram: NDArray[np.float64] = np.zeros((p, p))
    gram[np.triu_indices(p)] = release * (2.0**GRAM_SHIFT / basis.unit**2)
    return gram + np.triu(gram, 1).T


def real_cross(release: IntVector, basis: LinearBasis) -> NDArray[np.float64]:
    """X^T g in real units: float64 [p]."""
    return release.astype(np.float64) * (2.0**CROSS_SHIFT / (basis.unit * RECORD_NORM))


def gram_sigma(sigma: float, basis: LinearBasis) -> float:
    """The noise on one entry of X^T X in real units, from the one of the release."""
    return sigma * 2.0**GRAM_SHIFT / basis.unit**2


def shifted_factor(gram: Matrix, wanted: float, sigma: float) -> Matrix:
    """The Cholesky factor of gram + lambda I with lambda = max(0, wanted - least eigenvalue) + `LEAST_RIDGE`.

    Args:
        gram: the noisy X^T X, float64 [p, p].
        wanted: what the least eigenvalue shall at least be.
        sigma: standard deviation of the noise on one entry.
    """
    size = len(gram)
    span = SPAN * sigma * math.sqrt(size)
    ridge = max(0.0, wanted - least_eigenvalue(gram, span)) + LEAST_RIDGE
    identity = np.eye(size)
    while True:
        factor = cholesky(gram + ridge * identity)
        if factor is not None:
            return factor
        # Noise beyond the span has a chance below 10^-9; without noise, rounding may leave a zero below zero.
        ridge = 2 * ridge + span
