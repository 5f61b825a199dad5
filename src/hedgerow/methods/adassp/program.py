# SPDX-License-Identifier: Apache-2.0
"""Boosted AdaSSP: linear models fitted to gradients, as one generator of queries.

    yield GramMatrix            ->  X^T X + noise, once
    lambda = max(0, ridge sigma sqrt(p) - its least eigenvalue);   L L^T = X^T X + noise + lambda I
    for every round:
        yield CrossProducts(the last round's coefficients)   ->  X^T g + noise
        coefficients += learning rate * (L L^T)^-1 (X^T g + noise)
    yield SpreadSums, LineSums  ->  of numbers, the line that finished scores are put on (methods/line.py)

Source: Rho et al. 2022, "Differentially private gradient boosting on linear learners", Algorithm 2, which releases the
least eigenvalue of X^T X with noise of its own. Here it is read off the noisy matrix. That costs nothing, and its error
is at most the norm of the noise (Weyl), which lambda covers. Products of two categories of one feature are zero and a
category's square is its product with the constant, which is public: so the first are not believed but set, and of the
second the two releases are averaged. The model has one tree per feature (`LinearBasis`).
"""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from hedgerow import elementary
from hedgerow.losses.tables import RECORD_NORM, SCORE_UNIT
from hedgerow.methods import linear
from hedgerow.methods.adassp import Adassp
from hedgerow.methods.adassp.settings import AdasspSettings
from hedgerow.methods.line import calibrate_by_spread
from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.training.steps import GrowingModel, NodeTrees, Program, Run, grow_by

CHANCE_DEVIATIONS = 1.0
"""Slopes are shrunk by the expected energy of the noise, and by this many of its standard deviations."""


def boost_adassp(plan: Plan, settings: AdasspSettings) -> Program:
    """Return the program of a plan with `algorithm = "adassp"`."""
    run = Run.from_plan(plan, settings)
    basis = linear.LinearBasis.of(plan, run.grid, settings.row_norm, Adassp.of(plan).scale)
    return grow_by(run, lambda grown: _boost(grown, settings, basis))


def _boost(grown: GrowingModel, own: AdasspSettings, basis: linear.LinearBasis) -> Generator[Query, IntVector, None]:
    """Add all trees at once; each round changes their values."""
    run = grown.run
    first = gram_query(run, basis, own)
    gram = correct_gram((yield first), basis)
    sigma = linear.gram_sigma(run.sigma(first), basis)
    wanted = own.noise_ridge * sigma * math.sqrt(len(gram))
    needs_factor = own.shrinkage == 0 or run.directions is not None
    factor = linear.factor_shifted(gram, wanted, sigma) if needs_factor else None
    largest = (2**31 - 1) // (len(run.plan.features) * (own.rounds + 1))
    carried, mean = NodeTrees(), 0.0
    fit = linear.LinearFit(run, basis, largest, carried, factor)
    for number in range(own.rounds):
        query = cross_query(run, basis, number, carried)
        cross = linear.read_cross((yield query), basis)
        if number == 0:
            # Scores are 0 before the first round, so the constant's product is the sum of the labels.
            mean = min(max(float(cross[0]) / max(1.0, float(gram[0, 0])), -1.0), 1.0)
        if own.shrinkage or factor is None:
            noises = sigma, run.sigma(query) * 2.0**linear.CROSS_SHIFT / (basis.unit * RECORD_NORM)
            step = solve_centred(gram, cross, noises, wanted, own.shrinkage)
        else:
            step = linear.solve(factor, cross)
        fit.add(own.learning_rate * step)
        grown.batches[:], grown.weights[:] = [fit.trees], [None]
    if own.has_line:
        yield from calibrate_by_spread(grown, 1 + own.rounds, round(mean * SCORE_UNIT), own.line_multipliers, carried)


def solve_centred(
    gram: linear.Matrix, cross: NDArray[np.float64], noises: tuple[float, float], wanted: float, shrinkage: float
) -> NDArray[np.float64]:
    """Return coefficients with slopes shrunk by the expected part of the noise: float64 [p].

    A label whose mean is far from the middle of its bounds, with little spread about it, would be buried in the noise
    of X^T X, times that mean. So slopes are fitted to rows less their mean, with the noise of both releases counted.

    Args:
        gram, cross: X^T X and X^T g, float64 [p, p] and [p]; column 0 is the constant.
        noises: standard deviations of an entry of each.
        wanted: the least eigenvalue of the slopes' matrix after the lift.
        shrinkage: share of the correction that is applied.
    """
    count = max(1.0, float(gram[0, 0]))
    means, mean = gram[1:, 0] / count, min(max(float(cross[0]) / count, -1.0), 1.0)
    factor = linear.factor_shifted(gram[1:, 1:] - count * (means[:, None] * means[None, :]), wanted, noises[0])
    centred = cross[1:] - means * float(cross[0])
    slopes = linear.solve(factor, centred)
    inverse = linear.lower_inverse(factor)
    moved = elementary.times(inverse, means)
    trace, along = (math.fsum((part * part).reshape(-1).tolist()) for part in (inverse, moved))
    of_cross = elementary.square(noises[1])
    chance = (of_cross + elementary.square(mean * noises[0])) * trace + of_cross * along
    energy = math.fsum((centred * slopes).tolist())
    beyond = 1 + CHANCE_DEVIATIONS * math.sqrt(2 / len(slopes))
    slopes = slopes * (max(0.0, 1 - shrinkage * beyond * chance / energy) if energy > 0 else 0.0)
    return np.concatenate([[mean - math.fsum((means * slopes).tolist())], slopes])


def gram_query(run: Run, basis: linear.LinearBasis, settings: AdasspSettings) -> linear.GramMatrix:
    """Return the question for X^T X."""
    return linear.ask_gram(0, "X^T X", basis, settings.gram_multiplier, run.plan.privacy.rows_per_unit)


def cross_query(run: Run, basis: linear.LinearBasis, number: int, carried: NodeTrees) -> linear.CrossProducts:
    """Return the question for X^T g in a round; `number` counts rounds from 0."""
    purpose = linear.CrossProducts.purpose_of(1 + number, f"X^T g, round {number}")
    rows = run.plan.privacy.rows_per_unit
    return linear.ask_cross(purpose, basis, run.loss, run.settings.noise_multiplier, rows, carried)


def correct_gram(release: IntVector, basis: linear.LinearBasis) -> linear.Matrix:
    """Return X^T X in real units from its released triangle: float64 [p, p].

    Entries that are publicly known are corrected: see the module's text.
    """
    gram = linear.read_gram(release, basis)
    for first, size in basis.blocks:
        if size > 1:
            block = slice(first, first + size)
            counts = (gram[0, block] + np.diagonal(gram)[block]) / 2
            gram[block, block] = np.diag(counts)
            gram[0, block] = gram[block, 0] = counts
    return gram
