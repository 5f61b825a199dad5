"""The noise that one query asks for: what is accounted, what the coordinator adds, what each node adds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hedgerow.privacy.calibration import integer_sigma
from hedgerow.privacy.events import (
    DiscreteGaussianEvent,
    DiscreteGaussianSumEvent,
    Event,
    FilteredGaussianEvent,
    SampledGaussianEvent,
    UnnoisedEvent,
    multiplier_of_integers,
)
from hedgerow.protocol.queries import Query, SampledLeafSums


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
        if isinstance(query, SampledLeafSums):
            return QueryNoise(_sampled_event(query, sigma, 1), sigma * sigma, sigma, 0)
        return QueryNoise(DiscreteGaussianEvent.of(sigma, squared, query.length), sigma * sigma, sigma, 0)
    share = integer_sigma(query.noise_multiplier, squared, weight=float(honest_group))
    if isinstance(query, SampledLeafSums):
        return QueryNoise(_sampled_event(query, share, honest_group), honest_group * share * share, 0, share)
    event = DiscreteGaussianSumEvent.of(share, honest_group, squared, query.length)
    return QueryNoise(event, honest_group * share * share, 0, share)


def _sampled_event(query: SampledLeafSums, share_sigma: int, n_shares: int) -> Event:
    multiplier = multiplier_of_integers(n_shares * share_sigma * share_sigma, query.sensitivity_squared)
    noise = (multiplier, query.sampling_rate, share_sigma, n_shares, query.length)
    if query.filter is None:
        return SampledGaussianEvent(*noise)
    return FilteredGaussianEvent(*noise, order=query.filter.order, budget=query.filter.budget)
