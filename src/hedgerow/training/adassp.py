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
from collections.abc import Generator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.linear_queries import CrossProducts, GramMatrix
from hedgerow.protocol.plan import Plan
from hedgerow.protocol.queries import FittedTrees, IntVector, Purpose, Query
from hedgerow.training.adassp_settings import AdasspSettings
from hedgerow.training.linear_steps import (
    cross_question,
    gram_question,
    gram_sigma,
    real_cross,
    real_gram,
    shifted_factor,
)
from hedgerow.training.steps import EndedEarly, Program, Run, empty_ensemble, grown_score_bound
from hedgerow.trees.linear_algebra import Matrix, solve
from hedgerow.trees.linear_basis import LinearBasis


def boosted_adassp(plan: Plan, settings: AdasspSettings) -> Program:
    """The program of a plan with `algorithm = "adassp"`.

    Args:
        plan: the plan.
        settings: its resolved settings.
    """
    own, run = settings, Run.of(plan, settings)
    basis = LinearBasis.of(plan, run.grid, own.row_norm, plan.adassp.scale)
    rounds: list[NDArray[np.int32]] = []
    with suppress(EndedEarly):
        yield from _boost(run, own, basis, rounds)
    if not rounds:
        return empty_ensemble(run)
    total = sum((values.astype(np.int64) for values in rounds), np.zeros_like(rounds[0], dtype=np.int64))
    return empty_ensemble(run).extended([FittedTrees(basis.trees, total.astype(np.int32))], [None])


def _boost(
    run: Run, own: AdasspSettings, basis: LinearBasis, rounds: list[NDArray[np.int32]]
) -> Generator[Query, IntVector, None]:
    """Adds to `rounds` the values that each round gives the trees."""
    query = gram_query(run, basis, own)
    gram = mended((yield query), basis)
    sigma = gram_sigma(run.sigma(query), basis)
    factor = shifted_factor(gram, own.noise_ridge * sigma * math.sqrt(len(gram)), sigma)
    largest = (2**31 - 1) // (len(run.plan.features) * (own.rounds + 1))
    update: FittedTrees | None = None
    score_bound = 0
    for number in range(own.rounds):
        cross = yield cross_query(run, basis, number, update, score_bound)
        values = basis.values(own.learning_rate * solve(factor, real_cross(cross, basis)), largest)
        update = FittedTrees(basis.trees, values)
        score_bound = grown_score_bound(score_bound, update)
        rounds.append(values)


def gram_query(run: Run, basis: LinearBasis, settings: AdasspSettings) -> GramMatrix:
    """The question for X^T X."""
    return gram_question(0, "X^T X", basis, settings.gram_multiplier, run.plan.privacy.rows_per_unit)


def cross_query(
    run: Run, basis: LinearBasis, number: int, update: FittedTrees | None, score_bound: int
) -> CrossProducts:
    """The question for X^T g in a round; `number` counts rounds from 0."""
    purpose = Purpose(1 + number, "CrossProducts", f"X^T g, round {number}")
    noise = run.settings.noise_multiplier, run.plan.privacy.rows_per_unit
    before = max(0, number - 1) * basis.trees.n_trees
    return cross_question(purpose, basis, run.loss, noise, (update, before), score_bound)


def mended(release: IntVector, basis: LinearBasis) -> Matrix:
    """X^T X in real units from its released triangle, with what everybody knows of it put right: float64 [p, p]."""
    gram = real_gram(release, basis)
    for first, size in basis.blocks:
        if size > 1:
            block = slice(first, first + size)
            counts = (gram[0, block] + np.diagonal(gram)[block]) / 2
            gram[block, block] = np.diag(counts)
            gram[0, block] = gram[block, 0] = counts
    return gram
