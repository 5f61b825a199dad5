# SPDX-License-Identifier: Apache-2.0
"""Attacks as arithmetic on releases and scores: who was in the data? No randomness, no models.

A release is a sum over records under noise, and what a record of any kind adds to it is public. Its scores follow from
its own cells and from earlier releases. So with v_i what candidate i adds to all releases, in standard deviations of
their noise, and c_i how often it is in the data,

    released = c_1 v_1 + ... + c_n v_n + noise,      noise ~ N(0, 1) in each entry.

All that an adversary can do with it follows from the products <v_i, v_j> and <v_i, released>. That v_i depends on
earlier releases changes nothing: given these, each release is such a sum.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular
from scipy.optimize import nnls

from hedgerow.attacks.measures import Bools, Floats

SPREAD = 4.0
"""One over the variance of a candidate's presence in the data, with a chance of one half."""


class Products:
    """The products of candidates' contributions to releases, collected release by release.

    Attributes:
        gram: [n, n], <v_i, v_j>.
        matches: [n], <v_i, released>.
    """

    def __init__(self, n_candidates: int) -> None:
        self.gram: Floats = np.zeros((n_candidates, n_candidates))
        self.matches: Floats = np.zeros(n_candidates)

    def add(self, vectors: Floats, released: Floats, sigma: float, rate: float = 1.0) -> None:
        """Add a release to the products.

        Args:
            vectors: [n, length], what each candidate adds.
            released: [length].
            sigma: standard deviation of the noise, > 0.
            rate: a candidate's chance to be in the sum, if it is in the data.
        """
        # If half of all candidates are drawn by chance, the draw is noise as well.
        spread = np.sqrt(sigma**2 + rate * (1 - rate) / 2 * (vectors**2).sum(axis=0))
        own = vectors * rate / spread
        self.gram += own @ own.T
        self.matches += own @ (released / spread)


def infer_from_sums(products: Products) -> tuple[Floats, Floats]:
    """Return for each candidate the log-likelihood ratio of being in the data, and mu² of the test.

    The attacker knows all candidates, and that a coin decided about each. The sum of the others is taken for a Gaussian
    of their mean and covariance. Then the log-likelihood ratio is <S^-1 v_i, released - mean - v_i / 2>, with S the
    covariance of the noise and the others; by the formulas of Woodbury and of Sherman and Morrison it is (H t)_i / H_ii
    with H = (G + 4)^-1 and t = <v, released> - G 1 / 2. It is most powerful among linear statistics. The attack of
    Homer et al. 2008, as Dwork et al. 2015 (FOCS) analyse it, in these sums.

    Returns: the ratios [n], and mu² of the test [n]: H_ii^-1 - 4, at most |v_i|².
    """
    n = len(products.gram)
    factor = cho_factor(products.gram + SPREAD * np.eye(n), lower=True)
    centred = products.matches - products.gram.sum(axis=1) / 2
    diagonal = np.diag(cho_solve(factor, np.eye(n)))
    return cho_solve(factor, centred) / diagonal, np.maximum(1 / diagonal - SPREAD, 0.0)


def infer_from_scores(shadows: Floats, members: Bools, targets: Floats) -> Floats:
    """Return log-ratios of each row being in each target's data, by shadow models (LiRA).

    The log-ratio of two Gaussians of one covariance, fitted to the shadows with and without the row (Carlini et al.
    2022, S&P, arXiv 2112.03570, section IV: their online attack). A row that is in all or in none of the shadows says
    nothing. Targets are not used as each other's shadows: each target would pull the means of the others, and members
    would seem less like members than they are.

    Args:
        shadows: [n_shadows, n, n_signals], their scores of rows.
        members: [n_shadows, n], whether each row was in a shadow's data.
        targets: [n_targets, n, n_signals].

    Returns: [n_targets, n].
    """
    inside = members[..., None]
    n_inside, n_outside = inside.sum(axis=0), (~inside).sum(axis=0)
    within = np.where(inside, shadows, 0).sum(axis=0) / np.maximum(n_inside, 1)
    without = np.where(inside, 0, shadows).sum(axis=0) / np.maximum(n_outside, 1)
    variance = ((shadows - np.where(inside, within, without)) ** 2).sum(axis=0) / max(1, len(shadows) - 2)
    gains = ((targets - without) ** 2 - (targets - within) ** 2) / (2 * np.maximum(variance, 1e-12))
    return np.asarray(np.where((n_inside > 0) & (n_outside > 0), gains, 0.0).sum(axis=2))


def reconstruct(products: Products, n_records: int) -> NDArray[np.int64]:
    """Return the table that explains the releases best: int64 [n], how often each candidate is in it.

    The candidates hold all of its records. Least squares over counts that are not negative, as Dinur and Nissim 2003
    (PODS) reconstruct from sums; then the largest, until there are as many as records.
    """
    n = len(products.gram)
    # Candidates that add the same cannot be told apart; the ridge shares out what they add, and hardly more.
    factor = cholesky(products.gram + np.eye(n), lower=True)
    target = solve_triangular(factor, products.matches, lower=True)
    counts, _ = nnls(factor.T, target, maxiter=30 * n)
    guess, left = np.zeros(n, dtype=np.int64), n_records
    for candidate in np.argsort(-counts, kind="stable"):
        guess[candidate] = min(left, max(1, round(counts[candidate])))
        left -= int(guess[candidate])
        if not left:
            break
    return guess


def measure_found(guess: NDArray[np.int64], truth: NDArray[np.int64]) -> tuple[float, float]:
    """Return the share of all records that are guessed, and that of unique records.

    The latter are of a kind that is there once; nan if there is none.
    """
    unique, found = truth == 1, np.minimum(guess, truth)
    of_unique = float((guess[unique] >= 1).mean()) if unique.any() else math.nan
    return float(found.sum() / max(1, truth.sum())), of_unique
