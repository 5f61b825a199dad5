"""The noise that one query asks for: what is accounted, what the coordinator adds, what each node adds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from hedgerow.errors import PrivacyError
from hedgerow.privacy.calibration import integer_sigma
from hedgerow.privacy.events import (
    DiscreteGaussianEvent,
    DiscreteGaussianSumEvent,
    DiscreteLaplaceEvent,
    Event,
    FilteredGaussianEvent,
    LocalGaussianEvent,
    SampledGaussianEvent,
    SelectionEvent,
    UnnoisedEvent,
    multiplier_of_integers,
)
from hedgerow.protocol.queries import PureQuery, Query, SampledQuery


@dataclass(frozen=True)
class QueryNoise:
    """The noise of one release, in grid units.

    Attributes:
        event: what the accountants charge.
        variance: of the noise that is accounted for; 0 without privacy.
        central_sigma: standard deviation of what the coordinator adds to the sum; 0 when the nodes add the noise.
        share_sigma: standard deviation of what every node adds to its vector; 0 when the coordinator adds the noise.
        record_sigma: standard deviation of what every node adds for *each of its records*; 0 but in the local model,
            where `variance` is that of one record's noise and nothing else is accounted for.
    """

    event: Event
    variance: int
    central_sigma: int
    share_sigma: int
    record_sigma: int = 0

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise that is accounted for."""
        return math.sqrt(self.variance)


def noise_of(query: Query, honest_group: int | None = None, *, is_local: bool = False) -> QueryNoise:
    """The noise of a query's release.

    Args:
        query: the query; its noise multiplier and sensitivity decide.
        honest_group: None when the coordinator adds the noise; else the number of shares of noise (>= 1) that are
            guaranteed to be in any sum and unknown to those who collude: each node adds enough for that many to do.
        is_local: whether the run is of the local model: each record's noise alone keeps the promise, and no one else
            adds any; `honest_group` is None.

    Raises:
        PrivacyError: code "noise-mode-unsupported", for noise that this query cannot have.
    """
    if isinstance(query, PureQuery):
        return _pure_noise_of(query, is_central=honest_group is None and not is_local)
    if query.noise_multiplier == 0:
        return QueryNoise(UnnoisedEvent(), 0, 0, 0)
    squared = query.sensitivity_squared
    if is_local:
        return _local_noise_of(query)
    if not isinstance(query, SampledQuery):
        return _gaussian_noise(query.noise_multiplier, squared, query.length, honest_group)
    if honest_group is None:
        sigma = integer_sigma(query.noise_multiplier, squared)
        return QueryNoise(_sampled_event(query, sigma, 1), sigma * sigma, sigma, 0)
    share = integer_sigma(query.noise_multiplier, squared, weight=float(honest_group))
    return QueryNoise(_sampled_event(query, share, honest_group), honest_group * share * share, 0, share)


@lru_cache(maxsize=64, typed=True)
def _gaussian_noise(noise_multiplier: float, squared: int, length: int, honest_group: int | None) -> QueryNoise:
    """See `noise_of`; remembered, for a party asks several times in a round, and the sites wait for the answer."""
    if honest_group is None:
        sigma = integer_sigma(noise_multiplier, squared)
        return QueryNoise(DiscreteGaussianEvent.of(sigma, squared, length), sigma * sigma, sigma, 0)
    share = integer_sigma(noise_multiplier, squared, weight=float(honest_group))
    event = DiscreteGaussianSumEvent.of(share, honest_group, squared, length)
    return QueryNoise(event, honest_group * share * share, 0, share)


def _local_noise_of(query: Query) -> QueryNoise:
    """The noise of a release of the local model: enough on every record's vector by itself."""
    if isinstance(query, SampledQuery):
        raise PrivacyError("noise-local-samples")
    sigma = integer_sigma(query.noise_multiplier, query.sensitivity_squared)
    event = LocalGaussianEvent.of(sigma, query.sensitivity_squared, query.length)
    return QueryNoise(event, sigma * sigma, 0, 0, record_sigma=sigma)


def noise_of_records(record_sigma: int, n_records: int) -> int:
    """sqrt(n) record_sigma, rounded up to an integer: what the noises of n >= 0 records add up to, at least one's."""
    return math.isqrt(record_sigma * record_sigma * max(1, n_records) - 1) + 1 if record_sigma else 0


def _pure_noise_of(query: PureQuery, *, is_central: bool) -> QueryNoise:
    """The noise of a release of pure differential privacy: `central_sigma` is its scale, `variance` a Laplace's."""
    if not is_central:
        raise PrivacyError("noise-shares")
    pure = query.pure
    if pure.scale == 0:
        return QueryNoise(UnnoisedEvent(), 0, 0, 0)
    kind = SelectionEvent if query.is_choice else DiscreteLaplaceEvent
    event = kind(epsilon_of(pure.sensitivity, pure.scale), pure.sampling_rate)
    return QueryNoise(event, 2 * pure.scale * pure.scale, pure.scale, 0)


def epsilon_of(sensitivity: int, scale: int) -> float:
    """sensitivity / scale, rounded up."""
    return math.nextafter(sensitivity / scale, math.inf)


def _sampled_event(query: SampledQuery, share_sigma: int, n_shares: int) -> Event:
    multiplier = multiplier_of_integers(n_shares * share_sigma * share_sigma, query.sensitivity_squared)
    noise = (multiplier, query.sampling_rate, share_sigma, n_shares, query.length)
    if query.filter is None:
        return SampledGaussianEvent(*noise)
    return FilteredGaussianEvent(*noise, order=query.filter.order, budget=query.filter.budget)
