# SPDX-License-Identifier: Apache-2.0
"""Calibration: the least noise that keeps a promise (epsilon, delta); it rounds towards privacy and checks itself.

It also gives the noise of one query: the accounted noise, the coordinator's, and each node's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from hedgerow.errors import PrivacyError
from hedgerow.privacy.accountants import bisect, check_delta, check_epsilon, get_accountant, mu_of
from hedgerow.privacy.cost import compose_cost
from hedgerow.privacy.events import (
    DiscreteGaussianEvent,
    DiscreteGaussianSumEvent,
    DiscreteLaplaceVectorEvent,
    Event,
    FilteredGaussianEvent,
    GaussianEvent,
    LocalGaussianEvent,
    SampledGaussianEvent,
    SelectionEvent,
    UnnoisedEvent,
    round_multiplier,
)
from hedgerow.protocol.queries import PureQuery, Query, SampledQuery, SiteQuery

ROUNDING = 1e-12
"""Relative error, at most, of the few products and roots between a noise multiplier and its event."""
# Relative precision of the search for the smallest noise multiplier.
_PRECISION = 1e-14
# Relative size of a search's first step: most searches start further than this below the promise.
_LEAP = 0.01


@dataclass(frozen=True)
class NoiseDemand:
    """One or more releases that ask for noise.

    Attributes:
        sensitivity_squared: squared L2 sensitivity in grid units, an integer >= 1.
        length: entries of the released vector, >= 1.
        count: releases of this kind, >= 1.
        weight: the share of mu² each of them takes, relative to the others; > 0. Its noise multiplier is the common one
            divided by sqrt(weight).
    """

    sensitivity_squared: int
    length: int
    count: int = 1
    weight: float = 1.0

    def __post_init__(self) -> None:
        if min(self.sensitivity_squared, self.length, self.count) < 1 or not 0 < self.weight < math.inf:
            raise PrivacyError(
                "out-of-range",
                name="A demand for noise",
                value=self,
                wanted="of a sensitivity, entries and a weight above 0",
            )


def calibrate_noise_multiplier(
    epsilon: float, delta: float, total_weight: float, accountant: str = "gdp", spent: Sequence[Event] = ()
) -> float:
    """Find the smallest noise multiplier, rounded up, that keeps (epsilon, delta).

    The releases are Gaussian with sum of (sensitivity / sd)² = total_weight / noise_multiplier²; k releases of equal
    noise have total_weight = k. For integer noise use `calibrate_sigmas`, which pays for the grid as well.

    Args:
        epsilon: finite, > 0.
        delta: in (0, 1).
        total_weight: finite, > 0.
        accountant: ``gdp`` or ``rdp``.
        spent: releases made before, which count towards the same promise.

    Raises:
        PrivacyError: on an argument out of range, or if the result did not keep the promise when accounted for again.
    """
    check_epsilon(epsilon)
    check_delta(delta)
    if not 0 < total_weight < math.inf:
        raise PrivacyError("out-of-range", name="total_weight", value=total_weight, wanted="a finite number above 0")
    judge = get_accountant(accountant)
    root = math.sqrt(total_weight)

    def keeps(noise_multiplier: float) -> bool:
        return judge.epsilon([*spent, GaussianEvent(noise_multiplier / root)], delta) <= epsilon

    mu = mu_of(epsilon, delta)
    if spent:
        # The mu that earlier releases leave. If they leave nothing, a sliver, which the final accounting refuses.
        mu = math.sqrt(max(mu * mu - compose_cost(spent).gdp_weight, (mu * 1e-9) ** 2))
    exact = root / mu
    # The exact accountant's answer is where every other accountant's search starts: none of them needs less.
    noise_multiplier = smallest(keeps, start=exact, precision=_PRECISION)
    if not keeps(noise_multiplier):
        raise PrivacyError("calibration-failed", epsilon=epsilon, delta=delta, judge=f"the accountant {judge.name!r}")
    return noise_multiplier


def calibrate_sigmas(
    epsilon: float,
    delta: float,
    demands: Sequence[NoiseDemand],
    accountant: str = "gdp",
    spent: Sequence[Event] = (),
) -> tuple[int, ...]:
    """Find integer noise for each demand, in grid units, so that all together keep (epsilon, delta).

    `spent` are releases made before, which count towards the same promise.

    Every sigma is rounded up, and the price of the grid is included; `list_releases` gives the events to record.

    Raises:
        PrivacyError: as `calibrate_noise_multiplier`; also if the grid is too coarse for the promise.
    """
    total_weight = math.fsum(demand.count * demand.weight for demand in demands)
    noise_multiplier = calibrate_noise_multiplier(epsilon, delta, total_weight, accountant, spent)
    judge = get_accountant(accountant)

    def sigmas_of(multiplier: float) -> tuple[int, ...]:
        return tuple(integer_sigma(multiplier, demand.sensitivity_squared, demand.weight) for demand in demands)

    def keeps(multiplier: float) -> bool:
        return judge.epsilon([*spent, *list_releases(sigmas_of(multiplier), demands)], delta) <= epsilon

    # Below this precision the multiplier no longer changes a sigma by more than the grid does.
    noise_multiplier = smallest(keeps, start=noise_multiplier, precision=1e-9)
    if not keeps(noise_multiplier):
        raise PrivacyError("calibration-failed", epsilon=epsilon, delta=delta, judge=f"the accountant {judge.name!r}")
    return sigmas_of(noise_multiplier)


def multipliers_of(sigmas: Sequence[int], demands: Sequence[NoiseDemand]) -> list[float]:
    """Return the noise multipliers that give these sigmas, or slightly larger ones, at each sensitivity."""
    return [
        sigma / math.sqrt(demand.sensitivity_squared) * (1 + 2 * ROUNDING)
        for sigma, demand in zip(sigmas, demands, strict=True)
    ]


def list_releases(sigmas: Sequence[int], demands: Sequence[NoiseDemand]) -> tuple[Event, ...]:
    """Return the events of the demands, answered with discrete Gaussian noise of these sigmas."""
    return tuple(
        DiscreteGaussianEvent.from_integers(sigma, demand.sensitivity_squared, demand.length, demand.count)
        for sigma, demand in zip(sigmas, demands, strict=True)
    )


def integer_sigma(noise_multiplier: float, sensitivity_squared: int, weight: float = 1.0) -> int:
    """Compute the least integer sigma >= 1 with sigma² >= noise_multiplier² sensitivity_squared / weight."""
    top, bottom = noise_multiplier.as_integer_ratio()
    weight_top, weight_bottom = weight.as_integer_ratio()
    # Integers throughout: a float product could round sigma down by one unit.
    quotient = -(-(top * top * sensitivity_squared * weight_bottom) // (bottom * bottom * weight_top))
    root = math.isqrt(quotient)
    return root if root * root == quotient else root + 1


def smallest(keeps: Callable[[float], bool], start: float, precision: float) -> float:
    """Search from `start` upwards for the smallest number that keeps the promise.

    Returns:
        It, rounded up to a relative `precision`.
    """
    if keeps(start):
        return start
    lower = start
    step = precision
    # If a long step falls short, so do all shorter ones; the further steps equal those of a search without the leap.
    leap = precision * 2.0 ** max(0, math.floor(math.log2(_LEAP / precision)))
    if not keeps(start * (1 + leap)):
        lower, step = start * (1 + leap), 2 * leap
    while not keeps(start * (1 + step)):
        lower = start * (1 + step)
        step *= 2
        if step > 1e6:
            return lower
    return bisect(keeps, lower, start * (1 + step), precision)


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
        site_sigma: standard deviation of what each node adds to entries that are its own, as `SiteQuery` says; else 0.
    """

    event: Event
    variance: int
    central_sigma: int
    share_sigma: int
    record_sigma: int = 0
    site_sigma: int = 0

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise on the account."""
        return math.sqrt(self.variance)


def noise_of(query: Query, honest_group: int | None = None, *, is_local: bool = False) -> QueryNoise:
    """Compute the noise of a query's release.

    Args:
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
    if isinstance(query, SiteQuery):
        noise = _gaussian_noise(query.noise_multiplier, squared, query.length, None)
        return replace(noise, central_sigma=0, site_sigma=noise.central_sigma)
    if not isinstance(query, SampledQuery):
        return _gaussian_noise(query.noise_multiplier, squared, query.length, honest_group)
    if honest_group is None:
        sigma = integer_sigma(query.noise_multiplier, squared)
        return QueryNoise(_build_sampled_event(query, sigma, 1), sigma * sigma, sigma, 0)
    share = integer_sigma(query.noise_multiplier, squared, weight=float(honest_group))
    return QueryNoise(_build_sampled_event(query, share, honest_group), honest_group * share * share, 0, share)


@lru_cache(maxsize=64, typed=True)
def _gaussian_noise(noise_multiplier: float, squared: int, length: int, honest_group: int | None) -> QueryNoise:
    # Cached: a party asks several times in a round while the sites wait for the answer.
    if honest_group is None:
        sigma = integer_sigma(noise_multiplier, squared)
        return QueryNoise(DiscreteGaussianEvent.from_integers(sigma, squared, length), sigma * sigma, sigma, 0)
    share = integer_sigma(noise_multiplier, squared, weight=float(honest_group))
    event = DiscreteGaussianSumEvent.from_shares(share, honest_group, squared, length)
    return QueryNoise(event, honest_group * share * share, 0, share)


def _local_noise_of(query: Query) -> QueryNoise:
    """Compute noise for the local model: each record's vector gets enough by itself."""
    if isinstance(query, SampledQuery):
        # Anyone who sees a record's own answer sees whether it was drawn: nothing would be gained by the sample.
        raise PrivacyError(
            "noise-mode-unsupported",
            subject="A release over a secret sample",
            noise="local",
            others='"server" or "distributed"',
        )
    sigma = integer_sigma(query.noise_multiplier, query.sensitivity_squared)
    event = LocalGaussianEvent.from_integers(sigma, query.sensitivity_squared, query.length)
    return QueryNoise(event, sigma * sigma, 0, 0, record_sigma=sigma)


def noise_of_records(record_sigma: int, n_records: int) -> int:
    """Return sqrt(n) record_sigma, rounded up: the total noise of n >= 0 records, at least one record's."""
    return math.isqrt(record_sigma * record_sigma * max(1, n_records) - 1) + 1 if record_sigma else 0


def _pure_noise_of(query: PureQuery, *, is_central: bool) -> QueryNoise:
    """Compute noise of pure differential privacy: `central_sigma` is the scale, `variance` a Laplace's."""
    if not is_central:
        # A sum of Laplace draws is no Laplace draw, and a choice needs the exact sum.
        subject = "A release of Laplace noise, or a choice,"
        raise PrivacyError("noise-mode-unsupported", subject=subject, noise="distributed", others='"server"')
    pure = query.pure
    if pure.scale == 0:
        return QueryNoise(UnnoisedEvent(), 0, 0, 0)
    epsilon = math.nextafter(pure.sensitivity / pure.scale, math.inf)
    event: Event = SelectionEvent(epsilon, pure.sampling_rate, 1)
    if not query.is_choice:
        weight = math.nextafter(query.sensitivity_squared / pure.scale**2, math.inf)
        event = DiscreteLaplaceVectorEvent(epsilon, pure.sampling_rate, 1, zcdp_weight=weight)
    return QueryNoise(event, 2 * pure.scale * pure.scale, pure.scale, 0)


def _build_sampled_event(query: SampledQuery, share_sigma: int, n_shares: int) -> Event:
    multiplier = round_multiplier(n_shares * share_sigma * share_sigma, query.sensitivity_squared)
    noise = (multiplier, query.sampling_rate, share_sigma, n_shares, query.length)
    if query.filter is None:
        return SampledGaussianEvent(*noise)
    return FilteredGaussianEvent(*noise, order=query.filter.order, budget=query.filter.budget)
