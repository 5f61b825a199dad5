"""Privacy loss distributions by dp_accounting: an optional accountant, the tightest one for many pure releases.

A pure release is dominated by randomised response of its (amplified) epsilon (Kairouz, Oh and Viswanath 2015, theorem
3.1: every e-DP mechanism is post-processing of it), Gaussian releases by one Gaussian of their total mu. The library
composes those distributions on a grid and rounds losses up, so that what it says is a bound.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from hedgerow.errors import missing_extra
from hedgerow.privacy.cost import cost_of
from hedgerow.privacy.events import Event, PureEvent
from hedgerow.privacy.gdp import check_delta, epsilon_of_mu
from hedgerow.privacy.pure import PURE_EVENTS, amplified_epsilon

CELLS = 2**17
"""Losses are rounded up to multiples of the largest possible loss divided by this."""
DEVIATIONS = 10
"""A Gaussian's loss beyond so many standard deviations is for the tail that the library cuts off and adds to delta."""
_HALVINGS = 60
_ROUND_UP = 1 + 1e-9
_TAIL = 1e-15
"""Mass that the library may cut off; it adds it to delta."""


def epsilon_pld(events: Iterable[Event], delta: float) -> float:
    """The epsilon of all events together at delta, rounded up; infinity for an un-noised event.

    Raises:
        PrivacyError: code "unknown-event".
        EnvironmentFault: code "missing-extra": dp_accounting is not installed.
    """
    check_delta(delta)
    counted = list(events)
    pure: Counter[float] = Counter()
    for event in counted:
        if isinstance(event, PureEvent) and type(event) in PURE_EVENTS:
            pure[amplified_epsilon(event.epsilon, event.sampling_rate)] += event.count
    cost = cost_of(event for event in counted if type(event) not in PURE_EVENTS)
    if cost.gdp_weight == math.inf or cost.log_ratio == math.inf:
        return math.inf
    twin_delta = delta * math.exp(-cost.log_ratio)
    if not counted:
        return 0.0
    if twin_delta <= 0:
        return math.inf
    loss = _composed(pure, math.sqrt(cost.gdp_weight))
    return _epsilon_of(loss, twin_delta, cost.total_variation) * _ROUND_UP + 2 * cost.log_ratio


def least_epsilon_pld(events: Iterable[Event], delta: float) -> float:
    """A number that `epsilon_pld` is never below: the exact cost of the Gaussian releases alone.

    It needs no extra and no time, so that a figure read from a file can be told to be too small at once.

    Raises:
        PrivacyError: code "unknown-event".
    """
    check_delta(delta)
    cost = cost_of(event for event in events if type(event) not in PURE_EVENTS)
    if cost.zcdp_weight in (0.0, math.inf):
        return cost.zcdp_weight
    return epsilon_of_mu(math.sqrt(cost.zcdp_weight), delta) / _ROUND_UP


def _composed(pure: Counter[float], mu: float) -> Any:
    try:
        from dp_accounting.pld import common, privacy_loss_distribution
    except ModuleNotFoundError as absent:
        raise missing_extra("dp_accounting", 'The accountant "pld"') from absent
    largest = math.fsum(epsilon * count for epsilon, count in pure.items()) + mu * (mu / 2 + DEVIATIONS)
    grid = largest / CELLS
    parts = [
        privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(epsilon, 0.0), value_discretization_interval=grid
        ).self_compose(count)
        for epsilon, count in sorted(pure.items())
    ]
    if mu > 0:
        parts.append(
            privacy_loss_distribution.from_gaussian_mechanism(
                1 / mu, value_discretization_interval=grid, log_mass_truncation_bound=math.log(_TAIL)
            )
        )
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.compose(part)
    return whole


def _epsilon_of(loss: Any, delta: float, total_variation: float) -> float:
    """The least epsilon with delta(epsilon) + (1 + e^epsilon) total_variation <= delta, from above."""
    if total_variation == 0:
        return float(loss.get_epsilon_for_delta(delta))

    def keeps(epsilon: float) -> bool:
        return bool(loss.get_delta_for_epsilon(epsilon) + (1 + math.exp(epsilon)) * total_variation <= delta)

    if keeps(0.0):
        return 0.0
    # The distance counts for more the larger epsilon is, so not every epsilon above a sufficient one is sufficient.
    high = next((2.0**power for power in range(-12, 9) if keeps(2.0**power)), math.inf)
    if high == math.inf:
        return math.inf
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high
