"""What integer noise costs against the continuous Gaussian, bounded rigorously (docs/proofs/discrete-gaussian.md).

Rounding a continuous Gaussian is post-processing, so the rounded mechanism is exactly mu-GDP. The discrete Gaussian of
variance sigma² is not it, but lies within a tiny total variation distance of the rounded Gaussian of variance
sigma² - 1/12: per entry at most 0.00341 / s⁴ + 0.00381 / s⁵ + 1.001 exp(-2 pi² sigma²), with s² = sigma² - 1/12. At
sigma = 10⁴ grid units that is 3.5e-19. So the price of the grid is a factor on mu² and a distance, both computed here.

A sum of discrete Gaussians is within a factor e^(+-tau) of the discrete Gaussian of the summed variance, pointwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# After so many terms of the sum over shares the rest is bounded by its largest term.
_TERMS = 64


@dataclass(frozen=True)
class LatticeSlack:
    """The price of the grid for one or more releases.

    Args:
        mu_squared_factor: factor >= 1 on mu² (the rounded Gaussian has a variance smaller by 1/12).
        total_variation: distance between the mechanism and its rounded twin, >= 0; costs (1 + e^epsilon) times itself
            of delta (lemma 1).
        log_ratio: largest log-ratio r between the mechanism's probabilities and the discrete Gaussian's, >= 0; it turns
            (epsilon, delta) into (epsilon + 2 r, e^r delta) (lemma 2).
    """

    mu_squared_factor: float = 1.0
    total_variation: float = 0.0
    log_ratio: float = 0.0


def lattice_slack(sigma_squared: int, length: int, count: int = 1) -> LatticeSlack:
    """The price of `count` releases of `length` entries with discrete Gaussian noise of variance `sigma_squared`.

    Args:
        sigma_squared: variance in squared grid units, >= 1.
        length: entries per release, >= 1.
        count: adaptive releases, >= 1.

    Source: docs/proofs/discrete-gaussian.md, theorem 1.
    """
    rounded_variance = sigma_squared - 1 / 12
    s = math.sqrt(rounded_variance)
    aliasing = 1.001 * math.exp(-2 * math.pi**2 * sigma_squared)
    per_entry = 0.00341 / s**4 + 0.00381 / s**5 + aliasing
    return LatticeSlack(
        mu_squared_factor=(1 + 1 / (12 * rounded_variance)) * (1 + 1e-15),
        total_variation=min(1.0, length * count * per_entry),
    )


def sum_slack(share_sigma: int, n_shares: int, length: int, count: int = 1) -> LatticeSlack:
    """The price of `count` releases whose noise is a sum of `n_shares` discrete Gaussians of N_Z(0, share_sigma²).

    tau = 10 sum_{k=1}^{n-1} exp(-2 pi² share_sigma² k / (k + 1)) per entry, then `lattice_slack` of the whole variance.

    Source: Kairouz, Liu & Steinke 2021, arXiv 2102.06387 (this tau); proved again for shares of at least one grid unit
    in docs/proofs/discrete-gaussian.md, theorem 2.
    """
    exponent = 2 * math.pi**2 * share_sigma * share_sigma
    steps = n_shares - 1
    tau = 10 * math.fsum(math.exp(-exponent * k / (k + 1)) for k in range(1, min(steps, _TERMS) + 1))
    if steps > _TERMS:
        tau += 10 * (steps - _TERMS) * math.exp(-exponent * (_TERMS + 1) / (_TERMS + 2))
    whole = lattice_slack(n_shares * share_sigma * share_sigma, length, count)
    return LatticeSlack(whole.mu_squared_factor, whole.total_variation, log_ratio=length * count * tau * (1 + 1e-12))
