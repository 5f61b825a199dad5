# SPDX-License-Identifier: Apache-2.0
"""How often somebody guesses right whether one unit was in the data, at most.

They know every other row, see all that was released, and beforehand both answers are as likely. The best guess is right
with the chance (1 + T) / 2, where T is the total variation between what is released with the unit and without it (Dong,
Roth and Su 2019, arXiv 1905.02383, section 2.1). T is at most the delta at epsilon 0. Each bound below holds, so the
least is taken:

- **Points.** (epsilon, delta)-DP allows T <= (e^epsilon - 1 + 2 delta) / (e^epsilon + 1): the two lines of the
  trade-off function cross where both errors are (1 - delta) / (1 + e^epsilon) (Kairouz, Oh and Viswanath 2015, arXiv
  1311.0776). Pure releases have delta 0: (1 + T) / 2 = e^epsilon / (1 + e^epsilon).
- **Gaussian differential privacy**, which pure releases have as well (`hedgerow.privacy.cost`): T <= 2 Phi(mu / 2) - 1.
  The discrete Gaussian is within a distance tau of that, on either of two neighbours: 2 tau more.
- **Renyi divergences.** Pinsker's inequality: T <= sqrt(D / 2) for D the divergence of order 1, which is at most that
  of any larger order.
- **Affinities**, for releases over Poisson samples. B = E_Q[sqrt(P / Q)] gives T <= sqrt(1 - B²); of adaptive releases
  B is at least the product of the least of each. mu-GDP has B >= exp(-mu² / 8). For a sample of rate q, P / Q = 1 + y
  with y >= -q, E_Q[y] = 0 and E_Q[y²] = exp(D_2) - 1; and 1 + y/2 - sqrt(1 + y) = y² / (2 (1 + sqrt(1 + y))²), so that
  1 - B <= (exp(D_2) - 1) / (2 (1 + sqrt(1 - q))²).

A sum of several shares of noise has probabilities within a factor e^r of the discrete Gaussian's: (0, T) of the one is
(2 r, e^r T) of the other, which is a point again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from math import comb

from hedgerow.privacy.accountants import compute_sampled_divergence, epsilon_of_curve, list_divergences, log_ratio_of
from hedgerow.privacy.cost import all_pure, compose_cost, epsilon_pure
from hedgerow.privacy.events import Event, SampledEvent, UnnoisedEvent, is_sample

_ROUND_UP = 1 + 1e-12
"""Roots, exponentials and the normal distribution in double precision are good to 1e-14."""
_LARGEST = 600.0
"""Exponentials of more leave the range of doubles; nothing is known then."""
_DELTAS = [10.0 ** (-step / 4) for step in range(1, 49)]
"""Deltas at which the curve of epsilon is tried; every point of it is a bound."""


def bound_guesses(events: Iterable[Event], epsilon: float = math.inf, delta: float = 0.0) -> float:
    """Bound the chance of a right guess about one unit from these releases, rounded up: 0.5 to 1.

    Args:
        events: all releases, as a ledger has them.
        epsilon, delta: what the report promises; the bound is never above what this alone allows.

    Raises:
        PrivacyError: code "unknown-event".
    """
    counted = list(events)
    if any(type(event) is UnnoisedEvent for event in counted):
        return 1.0
    bounds = [1.0, _allow(epsilon, delta)]
    if all_pure(counted):
        bounds.append(_allow(epsilon_pure(counted), 0.0))
    samples = [event for event in counted if is_sample(event)]
    others = compose_cost(event for event in counted if not is_sample(event))
    log_ratio = others.log_ratio + math.fsum(log_ratio_of(event) for event in samples)
    distances = [_distance_of_affinity(samples, others.gdp_weight) + 2 * others.total_variation]
    if samples:
        orders, curve = list_divergences(samples, others)
        distances.append(math.sqrt(min(curve) / 2))
        for part in _DELTAS:
            bounds.append(_allow(epsilon_of_curve(orders, curve, part)[0] + 2 * log_ratio, part * _grow(log_ratio)))
    else:
        # Of order 1, rho-zCDP has the divergence rho, which is half of the weight.
        distances.append(math.sqrt(others.zcdp_weight) / 2)
        distances.append(math.erf(math.sqrt(others.gdp_weight) / math.sqrt(8)) + 2 * others.total_variation)
    bounds.append(_allow(2 * log_ratio, min(distances) * _ROUND_UP * _grow(log_ratio)))
    return min(1.0, max(0.5, min(bounds) * _ROUND_UP))


def _allow(epsilon: float, delta: float) -> float:
    """Return the chance allowed by (epsilon, delta): (e^epsilon + delta) / (1 + e^epsilon)."""
    if not (epsilon < _LARGEST and delta < 1):
        return 1.0
    return (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon))


def _grow(log_ratio: float) -> float:
    return math.exp(log_ratio) if log_ratio < _LARGEST else math.inf


def _distance_of_affinity(samples: Iterable[SampledEvent], gdp_weight: float) -> float:
    """T by affinities, where a filter counts as if it let everything pass."""
    logarithm = -gdp_weight / 8
    for event in samples:
        divergence = compute_sampled_divergence(2, event.sampling_rate, event.noise_multiplier)
        lost = math.expm1(min(divergence, _LARGEST)) / (2 * (1 + math.sqrt(1 - event.sampling_rate)) ** 2)
        if lost >= 1:
            return 1.0
        logarithm += event.count * math.log1p(-lost)
    return math.sqrt(-math.expm1(2 * logarithm))


def compute_meeting_chance(
    n_sites: int, n_groups: int, n_drawings: int, n_together: int, n_beside: int = 0
) -> Fraction:
    """Compute the exact chance that given sites all stand in one group in at least one drawing.

    Groups are dealt by chance, their sizes differ by one at most, and every drawing is independent of the others.

    Args:
        n_sites, n_groups: 1 <= n_groups <= n_sites.
        n_drawings: >= 1.
        n_together: sites that work together, >= 1.
        n_beside: 1 to ask for one given other site in the same group as well.
    """
    small, n_larger = divmod(n_sites, n_groups)
    size = n_together + n_beside
    ways = n_larger * comb(small + 1, size) + (n_groups - n_larger) * comb(small, size)
    return 1 - (1 - Fraction(ways, comb(n_sites, size))) ** n_drawings
