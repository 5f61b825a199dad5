"""Boosted AdaSSP: linear models fitted to gradients, as one generator of queries.

    yield GramMatrix            ->  X^T X + noise, once
    lambda = max(0, ridge sigma sqrt(p) - its least eigenvalue);   L L^T = X^T X + noise + lambda I
    for every round:
        yield CrossProducts(the last round's coefficients)   ->  X^T g + noise
        coefficients += learning rate * (L L^T)^-1 (X^T g + noise)

Source: Rho et al. 2022, "Differentially private gradient boosting on linear learners", Algorithm 2, which releases the
least eigenvalue of X^T X with noise of its own. Here it is read off the noisy matrix: that costs nothing, and is off by
the norm of the noise at most (Weyl), which is what lambda is there to cover. Products of two categories of one feature
are zero and a category's square is its product with the constant, which everybody knows: so the first are not believed
but set, and of the second the two releases are averaged. The model has one tree per feature (`LinearBasis`).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.linear_queries import CrossProducts, GramMatrix
from hedgerow.protocol.plan import Plan
from hedgerow.protocol.queries import FittedTrees, IntVector, Purpose
from hedgerow.training.adassp_settings import (
    GRAM_SHIFT,
    AdasspSettings,
    cross_sensitivity_squared,
    gram_sensitivity_squared,
    resolve_adassp,
)
from hedgerow.training.settings import Settings
from hedgerow.training.steps import Program, Run, empty_ensemble, grown_score_bound
from hedgerow.trees.grid import build_grid
from hedgerow.trees.linear_algebra import Matrix, cholesky, least_eigenvalue, solve
from hedgerow.trees.linear_basis import LinearBasis
from hedgerow.trees.losses import RECORD_NORM

CROSS_SHIFT = RECORD_NORM.bit_length() - 1
LEAST_RIDGE = 1.0
"""Added to lambda, in records: without noise, categories that add up to the constant leave X^T X singular."""
SPAN = 8.0
"""Eigenvalues are looked for within so many sigma sqrt(p): the norm of the noise is near 2 sigma sqrt(p) at most."""


def boosted_adassp(plan: Plan, settings: Settings | None = None) -> Program:
    """The program of a plan with `algorithm = "adassp"`.

    Args:
        plan: the plan.
        settings: its resolved settings, or None to resolve them here.
    """
    own = settings if isinstance(settings, AdasspSettings) else resolve_adassp(plan)
    run = Run(plan, own, build_grid(plan), own.loss(plan))
    basis = LinearBasis.of(plan, run.grid, own.row_norm)
    query = gram_query(run, basis, own)
    gram = mended((yield query), basis)
    sigma = run.sigma(query) * 2**GRAM_SHIFT / basis.unit**2
    factor = shifted_factor(gram, own.noise_ridge * sigma * math.sqrt(len(gram)), sigma)
    largest = (2**31 - 1) // (len(plan.features) * (own.rounds + 1))
    total = np.zeros((len(plan.features), basis.trees.n_leaves, 1), dtype=np.int64)
    update: FittedTrees | None = None
    score_bound = 0
    for number in range(own.rounds):
        cross = yield cross_query(run, basis, number, update, score_bound)
        real = cross.astype(np.float64) * (2.0**CROSS_SHIFT / (basis.unit * RECORD_NORM))
        values = basis.values(own.learning_rate * solve(factor, real), largest)
        update = FittedTrees(basis.trees, values)
        score_bound = grown_score_bound(score_bound, update)
        total += values
    fitted = FittedTrees(basis.trees, total.astype(np.int32))
    return empty_ensemble(run).extended([fitted], [None])


def gram_query(run: Run, basis: LinearBasis, settings: AdasspSettings) -> GramMatrix:
    """The question for X^T X."""
    rows = run.plan.privacy.max_rows_per_unit
    p = basis.rows.n_columns
    return GramMatrix(
        purpose=Purpose(0, "GramMatrix", "X^T X"),
        length=p * (p + 1) // 2,
        bound=basis.largest_entry**2 >> GRAM_SHIFT,
        sensitivity_squared=gram_sensitivity_squared(basis, rows),
        noise_multiplier=settings.gram_multiplier,
        rows=basis.rows,
        shift=GRAM_SHIFT,
    )


def cross_query(
    run: Run, basis: LinearBasis, number: int, update: FittedTrees | None, score_bound: int
) -> CrossProducts:
    """The question for X^T g in a round; `number` counts rounds from 0."""
    gradient_squared = run.loss.sensitivity_squared(score_bound)
    m = basis.trees.n_trees
    return CrossProducts(
        purpose=Purpose(1 + number, "CrossProducts", f"X^T g, round {number}"),
        length=basis.rows.n_columns,
        bound=max(1, math.isqrt(gradient_squared) * basis.largest_entry >> CROSS_SHIFT),
        sensitivity_squared=cross_sensitivity_squared(
            basis, gradient_squared, run.plan.privacy.max_rows_per_unit
        ),
        noise_multiplier=run.settings.noise_multiplier,
        update=update,
        ensemble_size=max(0, number - 1) * m,
        rows=basis.rows,
        shift=CROSS_SHIFT,
        score_bound=score_bound,
    )


def mended(release: IntVector, basis: LinearBasis) -> Matrix:
    """X^T X in real units from its released triangle, with what everybody knows of it put right: float64 [p, p]."""
    p = basis.rows.n_columns
    gram: NDArray[np.float64] = np.zeros((p, p))
    gram[np.triu_indices(p)] = release * (2.0**GRAM_SHIFT / basis.unit**2)
    for first, size in basis.blocks:
        if size > 1:
            block = slice(first, first + size)
            counts = (gram[0, block] + np.diagonal(gram)[block]) / 2
            gram[block, block] = np.diag(counts)
            gram[0, block] = counts
    return np.triu(gram) + np.triu(gram, 1).T


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
