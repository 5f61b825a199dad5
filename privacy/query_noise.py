"""The noise that one query asks for: what is accounted, what the coordinator adds, what each node adds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hedgerow.privacy.calibration import integer_sigma
from hedgerow.privacy.events import DiscreteGaussianEvent, DiscreteGaussianSumEvent, Event, UnnoisedEvent
from hedgerow.protocol.queries import Query


@dataclass(frozen=True)
class QueryNoise:
    """The noise of one release, in grid units.

    Attributes:
        event: what the accountants charge.
        variance: of the noise that is accounted for; 0 without privacy.
        central_sigma: standard deviation of what the coordinator adds to the sum; 0 when the nodes add the noise.
        share_sigma: standard deviation of what every node adds to its vector; 0 when the coordinator adds the noise.
    """

    event: Event
    variance: int
    central_sigma: int
    share_sigma: int

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise that is accounted for."""
        return math.sqrt(self.variance)


def noise_of(query: Query, honest_group: int | None = None) -> QueryNoise:
    """The noise of a query's release.

    Args:
        query: the query; its noise multiplier and sensitivity decide.
        honest_group: None when the coordinator adds the noise; else the number of shares of noise (>= 1) that are
            guaranteed to be in any sum and unknown to whoever colludes: each node adds enough for that many to do.
    """
    if query.noise_multiplier == 0:
        return QueryNoise(UnnoisedEvent(), 0, 0, 0)
    squared = query.sensitivity_squared
    if honest_group is None:
        sigma = integer_sigma(query.noise_multiplier, squared)
        return QueryNoise(DiscreteGaussianEvent.of(sigma, squared, query.length), sigma * sigma, sigma, 0)
    share = integer_sigma(query.noise_multiplier, squared, weight=float(honest_group))
    event = DiscreteGaussianSumEvent.of(share, honest_group, squared, query.length)
    return QueryNoise(event, honest_group * share * share, 0, share)
