"""The noise that one query asks for: what is accounted, what the coordinator adds, what each node adds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hedgerow.privacy.calibration import integer_sigma
from hedgerow.privacy.events import (
    DiscreteGaussianEvent,
    DiscreteGaussianSumEvent,
    DiscreteLaplaceEvent,
    Event,
    FilteredGaussianEvent,
    SampledGaussianEvent,
    SelectionEvent,
    UnnoisedEvent,
    multiplier_of_integers,
)
from hedgerow.protocol.errors import PrivacyError
from hedgerow.protocol.pure_queries import PureQuery, SplitSelection
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
    if isinstance(query, PureQuery):
        return _pure_noise_of(query, honest_group)
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


def _pure_noise_of(query: PureQuery, honest_group: int | None) -> QueryNoise:
    """The noise of a release of pure differential privacy: `central_sigma` is its scale, `variance` a Laplace's."""
    if honest_group is not None:
        raise PrivacyError(
            "Laplace noise and choices cannot be made of the sites' shares.",
            cause="A sum of Laplace draws is no Laplace draw, and a choice needs the exact sum.",
            remedy='Set privacy.noise to "server".',
            code="noise-mode-unsupported",
        )
    pure = query.pure
    if pure.scale == 0:
        return QueryNoise(UnnoisedEvent(), 0, 0, 0)
    kind = SelectionEvent if isinstance(query, SplitSelection) else DiscreteLaplaceEvent
    event = kind(epsilon_of(pure.sensitivity, pure.scale), pure.sampling_rate)
    return QueryNoise(event, 2 * pure.scale * pure.scale, pure.scale, 0)


def epsilon_of(sensitivity: int, scale: int) -> float:
    """sensitivity / scale, rounded up."""
    return math.nextafter(sensitivity / scale, math.inf)


def _sampled_event(query: SampledLeafSums, share_sigma: int, n_shares: int) -> Event:
    multiplier = multiplier_of_integers(n_shares * share_sigma * share_sigma, query.sensitivity_squared)
    noise = (multiplier, query.sampling_rate, share_sigma, n_shares, query.length)
    if query.filter is None:
        return SampledGaussianEvent(*noise)
    return FilteredGaussianEvent(*noise, order=query.filter.order, budget=query.filter.budget)
