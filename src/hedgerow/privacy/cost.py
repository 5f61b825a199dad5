"""What events cost: the reduction that every accountant starts from; an event without a known cost is an error.

Costs add up, also when later releases depend on earlier ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from hedgerow.privacy.events import (
    DiscreteGaussianEvent,
    DiscreteGaussianSumEvent,
    Event,
    GaussianEvent,
    LocalGaussianEvent,
    PureEvent,
    UnnoisedEvent,
)
from hedgerow.privacy.lattice import LatticeSlack, lattice_slack, sum_slack
from hedgerow.privacy.pure import PURE_EVENTS, amplified_epsilon, mu_of_pure
from hedgerow.protocol.errors import PrivacyError

# Sums and quotients here have relative errors of a few units in the last place; this makes them round up.
ROUND_UP = 1 + 4e-15

KNOWN_EVENTS = (
    GaussianEvent,
    DiscreteGaussianEvent,
    DiscreteGaussianSumEvent,
    LocalGaussianEvent,
    *PURE_EVENTS,
    UnnoisedEvent,
)


@dataclass(frozen=True)
class EventCost:
    """What a set of events costs, rounded up.

    Args:
        zcdp_weight: sum of 1 / z²; the mechanism is (zcdp_weight / 2)-zCDP up to `log_ratio`.
        gdp_weight: mu² of the rounded Gaussian twin; zcdp_weight when no event lies on a grid.
        total_variation: distance to that twin.
        log_ratio: log-ratio between sums of discrete Gaussians and discrete Gaussians.
    """

    zcdp_weight: float
    gdp_weight: float
    total_variation: float
    log_ratio: float


def cost_of(events: Iterable[Event]) -> EventCost:
    """The cost of all events together, adaptive composition included; infinite weights for an un-noised event."""
    costs = [_cost_of_one(event) for event in events]
    return EventCost(
        zcdp_weight=math.fsum(cost.zcdp_weight for cost in costs) * ROUND_UP,
        gdp_weight=math.fsum(cost.gdp_weight for cost in costs) * ROUND_UP,
        total_variation=min(1.0, math.fsum(cost.total_variation for cost in costs) * ROUND_UP),
        log_ratio=math.fsum(cost.log_ratio for cost in costs) * ROUND_UP,
    )


def _cost_of_one(event: Event) -> EventCost:
    if type(event) is UnnoisedEvent:
        return EventCost(math.inf, math.inf, 0.0, 0.0)
    if type(event) is GaussianEvent:
        slack = LatticeSlack()
    elif type(event) is DiscreteGaussianEvent or type(event) is LocalGaussianEvent:
        slack = lattice_slack(event.sigma * event.sigma, event.length, event.count)
    elif type(event) is DiscreteGaussianSumEvent:
        slack = sum_slack(event.share_sigma, event.n_shares, event.length, event.count)
    elif isinstance(event, PureEvent) and type(event) in PURE_EVENTS:
        # epsilon-DP is epsilon²/2-zCDP and mu-GDP (`hedgerow.privacy.pure`): a bound that composes with the others.
        epsilon = amplified_epsilon(event.epsilon, event.sampling_rate)
        return EventCost(event.count * epsilon**2, event.count * mu_of_pure(epsilon) ** 2, 0.0, 0.0)
    else:
        # A subclass is refused as well: it may mean something else than its parent.
        raise PrivacyError(
            f"An event of type {type(event).__name__} cannot be accounted for.",
            cause="A release was made by a mechanism that this version does not know.",
            remedy="Add its cost to hedgerow.privacy.cost before any such release is made.",
            code="unknown-event",
        )
    weight = event.count / event.noise_multiplier / event.noise_multiplier
    return EventCost(weight, weight * slack.mu_squared_factor, slack.total_variation, slack.log_ratio)
