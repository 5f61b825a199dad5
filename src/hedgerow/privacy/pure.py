"""Releases of pure differential privacy: their sum, what sampling saves, and what they cost beside Gaussian releases.

**Sum.** Adaptive releases that are e_1-, e_2-, ... DP are (e_1 + e_2 + ...)-DP (Dwork and Roth 2014, theorem 3.16).

**Sampling.** If every unit is among the records of a release with a chance of at most q, independently of all others
and unknown to those who see the release, an e-DP release over the sample is log(1 + q (exp(e) - 1))-DP under
add/remove-one (Balle, Barthe and Gaboardi 2018, arXiv 1807.01647, theorem 8). Each release has a sample of its own
here; that costs less than one sample for several: with x = exp(a) - 1 and y = exp(b) - 1, (1 + q x)(1 + q y) <=
1 + q (x + y + x y).

**Beside Gaussian releases.** An e-DP release is e²/2-zCDP (Bun and Steinke 2016, arXiv 1605.02065, proposition 3.3). It
is also mu-GDP with mu = -2 Phi^-1(1 / (1 + exp(e))): its trade-off function lies on or above the two chords from (0, 1)
over (a, a) to (1, 0), a = 1 / (1 + exp(e)) (Dong, Roth and Su 2019, proposition 2.4); that of mu-GDP,
T(x) = Phi(Phi^-1(1 - x) - mu), is convex, has the same ends, and T(a) = a, since Phi^-1(1 - a) - mu = -mu/2 =
Phi^-1(a); and a convex function lies on or below its chords. Both kinds of bounds compose adaptively with those of
Gaussian releases, so a run that mixes kinds is bounded by the sum of zCDP's rho or of mu², never by adding up epsilons
of two kinds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from scipy.special import ndtri

from hedgerow.errors import PrivacyError
from hedgerow.privacy.events import DiscreteLaplaceEvent, Event, PureEvent, SelectionEvent, UnnoisedEvent

PURE_EVENTS = (DiscreteLaplaceEvent, SelectionEvent)
_ROUND_UP = 1 + 1e-14
"""Logarithms, exponentials and sums in double precision are off by a few units in the last place."""
_LARGE = 30.0


def amplified_epsilon(epsilon: float, sampling_rate: float) -> float:
    """log(1 + q (exp(epsilon) - 1)), rounded up, for epsilon > 0 and q in (0, 1]."""
    if sampling_rate == 1:
        return epsilon
    if epsilon > _LARGE:
        # exp(epsilon) may leave the range of doubles; (1 - q) / q exp(-epsilon) is what is left.
        saved = math.log(sampling_rate) + math.log1p((1 - sampling_rate) / sampling_rate * math.exp(-epsilon))
        return (epsilon + saved) * _ROUND_UP
    return math.log1p(sampling_rate * math.expm1(epsilon)) * _ROUND_UP


def mu_of_pure(epsilon: float) -> float:
    """The mu of a mechanism that is epsilon-DP, rounded up: -2 Phi^-1(1 / (1 + exp(epsilon)))."""
    # Its inverse normal is good to 1e-14 of itself, but 1 / (1 + e) near 1/2 loses digits of a small epsilon.
    half = -float(ndtri(1 / (1 + math.exp(min(epsilon, 700.0)))))
    return 2 * (half * (1 + 1e-12) + 1e-15) if epsilon < 700 else math.inf


def all_pure(events: Iterable[Event]) -> bool:
    """Whether every release is of pure differential privacy, and there is one."""
    kinds = [type(event) for event in events]
    return bool(kinds) and all(kind in PURE_EVENTS for kind in kinds)


def epsilon_pure(events: Iterable[Event]) -> float:
    """The epsilon of all releases together at delta = 0, rounded up; infinity for an un-noised one.

    Raises:
        PrivacyError: code "not-pure", for a release that has a delta.
    """
    costs = []
    for event in events:
        if type(event) is UnnoisedEvent:
            return math.inf
        if not isinstance(event, PureEvent) or type(event) not in PURE_EVENTS:
            raise PrivacyError("not-pure", type=type(event).__name__)
        costs.append(event.count * amplified_epsilon(event.epsilon, event.sampling_rate))
    return math.fsum(costs) * _ROUND_UP
