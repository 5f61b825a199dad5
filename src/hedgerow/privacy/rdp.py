"""Renyi accounting of releases over Poisson samples, and of everything that is released beside them.

A release over a Poisson sample of rate q draws from P = (1 - q) N + q N_v when a unit is there and from N when it is
not; N is the noise, N_v the noise moved by the unit's integer vector v, |v| / sigma = 1 / z. At integer orders

    D_a(P || N) = 1/(a - 1) log sum_l  C(a, l) (1 - q)^(a - l) q^l  exp(l (l - 1) / (2 z²))

(Mironov, Talwar and Zhang 2019, arXiv 1908.10530, section 3.3), and D_a(N || P) is never larger (their theorem 5, whose
mapping x -> v - x exists on the integers too). For the discrete Gaussian the formula is the same to the letter: l v is
an integer vector, so the moved noise sums to the same constant (docs/proofs/sampled-gaussian.md).

An individual filter at a node leaves a record out of every further sum once its own divergences at one order would pass
a budget (Feldman and Zrnic 2020, arXiv 2008.11193, theorem 4.5); all releases under it together then cost the budget at
that order, however many they are, and at every order no more than each at its worst.

Without samples the curve is a line: `epsilon_rdp` is the second opinion beside the exact accountant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from hedgerow.errors import PrivacyError
from hedgerow.privacy.cost import ROUND_UP, cost_of, sum_slack
from hedgerow.privacy.events import Event, FilteredGaussianEvent, SampledEvent, UnnoisedEvent, is_sample
from hedgerow.privacy.gdp import check_delta

FloatArray = NDArray[np.float64]

_RELATIVE_ERROR = 1e-9
"""Covers the logarithms of factorials (arguments to 10^4, good to 10^-15 each) and the sums in double precision."""


def _orders() -> tuple[int, ...]:
    found, order = list(range(2, 65)), 64.0
    while order < 8192:
        order *= 1.06
        found.append(round(order))
    return tuple(found)


ORDERS = _orders()
"""The orders that are tried: all small ones, then steps of 6 %, which costs less than 0.2 % of epsilon."""


_SEARCHED = 8.0
"""How far from its first guess the best order is looked for, in natural logarithms of order - 1."""
_SEARCH_STEPS = 80
"""Halvings, about, of that range: 1e-16 of it is left."""


# Remembered: a ledger has hundreds of equal events.
@lru_cache(maxsize=1 << 16)
def sampled_divergence(order: int, rate: float, noise_multiplier: float) -> float:
    """Renyi divergence of one release over a Poisson sample, rounded up, in both directions.

    Args:
        order: >= 2.
        rate: chance of a unit to be in the sample, in (0, 1].
        noise_multiplier: standard deviation of the noise over the norm of the unit's vector, > 0.
    """
    return _divergence(order, rate, noise_multiplier, is_general=False)


def paper_divergence(order: int, rate: float, noise_multiplier: float) -> float:
    """The bound for any mechanism, which S-GBDT's accountant uses: the terms from l = 3 on count thrice.

    Arguments as `sampled_divergence`, which is never larger.

    Source: Zhu and Wang 2019, theorem 6; arXiv 2309.12041, theorem 9.
    """
    return _divergence(order, rate, noise_multiplier, is_general=True)


def _divergence(order: int, rate: float, noise_multiplier: float, *, is_general: bool) -> float:
    _check(order, rate, noise_multiplier)
    if rate == 1:
        return order / (2 * noise_multiplier**2) * (1 + _RELATIVE_ERROR)
    # Logarithms of the binomial weights, and the exponents, for l = 2 .. order.
    number = np.arange(2, order + 1, dtype=np.float64)
    log_weights = _log_binomials(order) + (order - number) * math.log1p(-rate) + number * math.log(rate)
    exponents = number * (number - 1) / (2 * noise_multiplier**2)
    # The weights add up to one, so one less of each exponential is the excess over one: no digit is lost.
    excess = log_weights + exponents + np.log(-np.expm1(-exponents))
    if is_general:
        excess = np.concatenate([excess, (log_weights + exponents)[1:] + math.log(2)])
    return _from_excess(excess, order)


def epsilon_of_divergence(order: float, divergence: float, delta: float) -> float:
    """The epsilon at delta of a mechanism of this Renyi divergence at one order, rounded up, at least 0.

    Source: Canonne, Kamath and Steinke 2020, arXiv 2004.00010, proposition 12.
    """
    if divergence == math.inf:
        return math.inf
    epsilon = _converted(order, divergence, delta)
    return max(0.0, epsilon + (abs(epsilon) + abs(math.log(delta))) * 4e-15)


def _converted(order: float, divergence: float, delta: float) -> float:
    return divergence + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def epsilon_of_curve(orders: Sequence[int], divergences: Sequence[float], delta: float) -> tuple[float, int]:
    """The least epsilon over some orders, and the order that gives it."""
    pairs = zip(orders, divergences, strict=True)
    return min((epsilon_of_divergence(order, value, delta), order) for order, value in pairs)


def has_samples(events: Iterable[Event]) -> bool:
    """Whether a release over a sample of less than all units is among the events: such a release has no mu."""
    return any(is_sample(event) for event in events)


def epsilon_renyi(events: Iterable[Event], delta: float) -> float:
    """The epsilon of all events together at delta, rounded up; infinity for an un-noised event.

    Raises:
        PrivacyError: code "unknown-event", as `hedgerow.privacy.cost.cost_of`.
    """
    counted = list(events)
    if any(type(event) is UnnoisedEvent for event in counted):
        return math.inf
    samples = [event for event in counted if is_sample(event)]
    others = cost_of(event for event in counted if not is_sample(event))
    log_ratio = others.log_ratio + math.fsum(log_ratio_of(event) for event in samples)
    twin_delta = delta * math.exp(-log_ratio) if log_ratio < math.inf else 0.0
    if twin_delta <= 0 or others.zcdp_weight == math.inf:
        return math.inf
    orders = sorted({*ORDERS, *(event.order for event in samples if isinstance(event, FilteredGaussianEvent))})
    curve = [others.zcdp_weight / 2 * order + _divergence_of(samples, order) for order in orders]
    return epsilon_of_curve(orders, curve, twin_delta)[0] + 2 * log_ratio


def _divergence_of(samples: Sequence[SampledEvent], order: int) -> float:
    """All releases over samples, each filter's releases bounded by its budget at its order."""
    free: list[float] = []
    filtered: dict[tuple[str, int, float], list[float]] = {}
    for event in samples:
        cost = event.count * sampled_divergence(order, event.sampling_rate, event.noise_multiplier)
        if isinstance(event, FilteredGaussianEvent) and event.order == order:
            filtered.setdefault((event.scope, event.order, event.budget), []).append(cost)
        else:
            free.append(cost)
    capped = [min(math.fsum(costs), budget) for (_, _, budget), costs in filtered.items()]
    return math.fsum(free + capped) * ROUND_UP


def log_ratio_of(event: SampledEvent) -> float:
    """What a sum of several discrete Gaussians costs against one; sampling mixes both alike, so it is the same."""
    if event.n_shares == 1:
        return 0.0
    return sum_slack(event.share_sigma, event.n_shares, event.length, event.count).log_ratio


@lru_cache(maxsize=512)
def _log_binomials(order: int) -> FloatArray:
    number = np.arange(2, order + 1, dtype=np.float64)
    return np.asarray(gammaln(order + 1) - gammaln(number + 1) - gammaln(order - number + 1))


def _from_excess(log_terms: FloatArray, order: int) -> float:
    """log(1 + sum of the terms) / (order - 1), rounded up."""
    top = float(log_terms.max())
    total = top + math.log(float(np.exp(log_terms - top).sum()))
    value = math.log1p(math.exp(total)) if total < 700 else total + math.exp(-total)
    return value / (order - 1) * (1 + _RELATIVE_ERROR)


def _check(order: int, rate: float, noise_multiplier: float) -> None:
    if order >= 2 and 0 < rate <= 1 and 0 < noise_multiplier < math.inf:
        return
    raise PrivacyError("sample-out-of-range", order=order, rate=rate, noise_multiplier=noise_multiplier)


def epsilon_rdp(events: Iterable[Event], delta: float) -> float:
    """The epsilon of the events at delta by RDP, rounded up; PrivacyError for an unknown event.

    RDP of a Gaussian release is alpha / (2 z²), and so is the bound of the discrete Gaussian (Canonne, Kamath & Steinke
    2020, arXiv 2004.00010; docs/proofs/discrete-gaussian.md, theorem 3); RDP adds up, so that any events together cost
    what one release with 1 / z² = sum of 1 / z_i² costs.
    """
    check_delta(delta)
    cost = cost_of(events)
    twin_delta = delta * math.exp(-cost.log_ratio)
    if cost.zcdp_weight == math.inf or twin_delta <= 0:
        return math.inf
    return epsilon_of_rho(cost.zcdp_weight / 2, twin_delta) + 2 * cost.log_ratio


def epsilon_of_rho(rho: float, delta: float) -> float:
    """The epsilon at delta of a mechanism whose RDP is rho alpha at every order alpha (rho-zCDP), rounded up.

    Args:
        rho: >= 0, infinity allowed.
        delta: in (0, 1).

    Every order gives a bound that holds, so the search for the best one cannot make the answer too small.

    Source: the conversion of Canonne, Kamath & Steinke 2020 (proposition 12), as `epsilon_of_divergence`; it is the one
    of Balle et al. 2020 (arXiv 1905.09982, theorem 21) that autodp and dp-accounting have.
    """
    check_delta(delta)
    if rho == 0:
        return 0.0
    if rho == math.inf:
        return math.inf

    def unrounded(log_excess: float) -> float:
        order = 1 + math.exp(log_excess)
        return _converted(order, rho * order, delta)

    # Where log(1 / delta) outweighs the other terms the best order is this one.
    # No closer to 1 than where doubles still tell orders apart.
    middle = max(math.log(-math.log(delta) / rho) / 2, -20.0)
    low, high = middle - _SEARCHED, middle + _SEARCHED
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(_SEARCH_STEPS):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if unrounded(left) <= unrounded(right) else (left, high)
    order = 1 + math.exp((low + high) / 2)
    return epsilon_of_divergence(order, rho * order, delta)
