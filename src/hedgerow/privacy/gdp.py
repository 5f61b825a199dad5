"""Exact accounting of Gaussian releases: Gaussian differential privacy (mu-GDP).

Adaptive composition of Gaussian releases with noise multipliers z_i is exactly mu-GDP with mu² = sum 1 / z_i², and

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

(Balle & Wang 2018, arXiv 1805.06530, Theorem 8; Dong, Roth & Su 2019, arXiv 1905.02383, Corollaries 2.13 and 3.3).

The difference loses all digits for small delta, and e^epsilon overflows. With u = epsilon/mu - mu/2 and v = u + mu it
is e^epsilon phi(v) = phi(u), so that delta = phi(u) [R(u) - R(v)] with Mills' ratio R(x) = Phi(-x) / phi(x), which
needs neither. All answers are rounded towards privacy: delta and epsilon up, mu down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from scipy.special import erfcx, ndtr, ndtri

from hedgerow.errors import PrivacyError
from hedgerow.privacy.cost import ROUND_UP, cost_of
from hedgerow.privacy.events import Event

_SQRT_2 = math.sqrt(2.0)
_SQRT_PI_OVER_2 = math.sqrt(math.pi / 2)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)

# erfcx and ndtr are good to a few units in the last place; a relative error e of u changes phi(u) by u² e.
_RELATIVE_ERROR = 2e-15


def delta_of_mu(mu: float, epsilon: float) -> float:
    """The delta of a mu-GDP mechanism at epsilon, rounded up; mu >= 0 (infinity allowed), epsilon >= 0."""
    _check_non_negative("mu", mu)
    _check_non_negative("epsilon", epsilon)
    if mu == 0 or epsilon == math.inf:
        return 0.0 if mu < math.inf else 1.0
    if mu == math.inf:
        return 1.0
    u = epsilon / mu - mu / 2
    if u == math.inf:
        return 0.0
    density = math.exp(-u * u / 2 - _LOG_SQRT_2PI)
    # v is positive: v >= u, and v = -u + 2 epsilon / mu.
    subtrahend = density * _mills(epsilon / mu + mu / 2)
    minuend = density * _mills(u) if u > 0 else float(ndtr(-u))
    error = _RELATIVE_ERROR * (minuend * (1 + u * u) + subtrahend * (1 + u * u))
    return min(1.0, max(minuend - subtrahend, 0.0) + error + math.ulp(0.0))


def epsilon_of_mu(mu: float, delta: float, total_variation: float = 0.0) -> float:
    """The smallest epsilon >= 0 at which a mu-GDP mechanism has at most this delta, rounded up.

    `total_variation` is the distance between the mechanism in use and the mu-GDP one, on either of two neighbours; it
    costs (1 + e^epsilon) total_variation of delta (docs/proofs/discrete-gaussian.md, lemma 1). The answer is infinity
    if no epsilon is enough.
    """
    _check_non_negative("mu", mu)
    check_delta(delta)
    _check_non_negative("total_variation", total_variation)

    def spent(epsilon: float) -> float:
        slack = (1 + math.exp(epsilon)) * total_variation if total_variation > 0 else 0.0
        return (delta_of_mu(mu, epsilon) + slack) * (1 + 1e-15)

    if mu == math.inf:
        return math.inf
    if spent(0.0) <= delta:
        return 0.0
    upper = _upper_epsilon(mu, total_variation, delta)
    if upper <= 0 or spent(upper) > delta:
        return math.inf
    return _bisect(lambda epsilon: spent(epsilon) <= delta, false_at=0.0, true_at=upper)


def mu_of(epsilon: float, delta: float) -> float:
    """The largest mu such that mu-GDP implies (epsilon, delta)-DP, rounded down; epsilon > 0, 0 < delta < 1."""
    check_epsilon(epsilon)
    check_delta(delta)
    upper = 1.0
    while delta_of_mu(upper, epsilon) <= delta:
        upper *= 2
    lower = upper / 2
    while delta_of_mu(lower, epsilon) > delta:
        lower /= 2
    return _bisect(lambda mu: delta_of_mu(mu, epsilon) <= delta, false_at=upper, true_at=lower)


def total_mu(events: Iterable[Event]) -> float:
    """The mu of the events' Gaussian twin, rounded up; infinity for an un-noised event, 0 for no event."""
    return math.sqrt(cost_of(events).gdp_weight) * ROUND_UP


def check_epsilon(epsilon: float) -> None:
    """Raises PrivacyError unless epsilon is a finite number above 0."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise PrivacyError("epsilon-out-of-range", epsilon=epsilon)


def check_delta(delta: float) -> None:
    """Raises PrivacyError unless 0 < delta < 1."""
    if not 0 < delta < 1:
        raise PrivacyError("delta-out-of-range", delta=delta)


def _upper_epsilon(mu: float, total_variation: float, delta: float) -> float:
    """An epsilon where the delta spent is at most `delta` if it is so anywhere: it falls, then rises with the slack."""
    if total_variation > 0:
        # d/d epsilon [delta_mu + (1 + e^epsilon) tau] = e^epsilon (tau - Phi(-epsilon/mu - mu/2)), zero at the minimum.
        turning = -mu * (float(ndtri(min(total_variation, 1.0))) + mu / 2)
        if not math.isfinite(turning) or turning > 700:
            turning = 700.0
        return turning
    upper = max(mu, 1e-300)
    while delta_of_mu(mu, upper) * (1 + 1e-15) > delta:
        upper *= 2
    return upper


def _mills(x: float) -> float:
    """Mills' ratio Phi(-x) / phi(x) for x >= 0."""
    return _SQRT_PI_OVER_2 * float(erfcx(x / _SQRT_2))


def _bisect(holds: Callable[[float], bool], false_at: float, true_at: float) -> float:
    """A point next to the boundary at which `holds` is known to be true, to the last bits of a float."""
    while abs(true_at - false_at) > 4e-16 * max(abs(true_at), abs(false_at)):
        middle = false_at + (true_at - false_at) / 2
        if middle in (false_at, true_at):
            break
        if holds(middle):
            true_at = middle
        else:
            false_at = middle
    return true_at


def _check_non_negative(name: str, value: float) -> None:
    if math.isnan(value) or value < 0:
        raise PrivacyError("privacy-loss-out-of-range", name=name, value=value)
