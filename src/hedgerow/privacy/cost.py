# SPDX-License-Identifier: Apache-2.0
"""What events cost, and what integer noise costs against the continuous Gaussian, bounded rigorously.

Rounding a continuous Gaussian is post-processing, so the rounded mechanism is exactly mu-GDP. The discrete Gaussian of
variance sigma² is not it, but lies within a tiny total variation distance of the rounded Gaussian of variance
sigma² - 1/12: per entry at most 0.00341 / s⁴ + 0.00381 / s⁵ + 1.001 exp(-2 pi² sigma²), with s² = sigma² - 1/12. At
sigma = 10⁴ grid units that is 3.5e-19. So the price of the grid is a factor on mu² and a distance, both computed here
(docs/proofs/discrete-gaussian.md).

A sum of discrete Gaussians is within a factor e^(+-tau) of the discrete Gaussian of the summed variance, pointwise.

Every accountant starts from what events cost together (`compose_cost`). Costs add up, also when later releases depend
on earlier ones. An event without a known cost is an error.

Releases of pure differential privacy:

**Sum.** Adaptive releases that are e_1-, e_2-, ... DP are (e_1 + e_2 + ...)-DP (Dwork and Roth 2014, theorem 3.16).

**Sampling.** If every unit is among the records of a release with a chance of at most q, independently of all others
and unknown to those who see the release, an e-DP release over the sample is log(1 + q (exp(e) - 1))-DP under
add/remove-one (Balle, Barthe and Gaboardi 2018, arXiv 1807.01647, theorem 8). Each release has a sample of its own
here. That costs less than one sample for several: with x = exp(a) - 1 and y = exp(b) - 1, (1 + q x)(1 + q y) <=
1 + q (x + y + x y).

**Choices.** An exponential mechanism of bounded range e (the log-ratios of its outcomes' probabilities, on two
neighbours, lie within an interval of length e) is e²/8-zCDP, a quarter of what e-DP is (Cesar and Rogers 2021, arXiv
2004.07223). For L the log-ratio and k(s) = log E_Q[exp(s L)], k(0) = k(1) = 0, since both are distributions,
and k''(s) <= e²/4, a variance of something in such an interval. So e²/8 s (s - 1) - k(s) is convex with zeros at 0 and
1, hence >= 0 for s >= 1, and the divergence of order s, k(s) / (s - 1), is at most e²/8 s. Choices in disjoint parts
have ranges that add up to e at most over a unit's rows, and sum of e_i² <= e². A sample of the units costs no more than
all of them, by quasi-convexity of Renyi divergence.

**Vectors.** Laplace noise on a vector is one release per entry, in parallel on the same unit: entry i is |v_i| / b-DP,
so all are sum of v_i² / 2 b²-zCDP, while their epsilons add up to sum of |v_i| / b.

**Full samples.** A release "over a sample" of chance 1 is a plain Gaussian one. An individual filter then keeps every
record's sum of squared norms over the noise's below a bound fixed in advance, whatever was released: that is mu-GDP
with mu² that bound (Koskela, Tobaben and Honkela 2023, arXiv 2209.15596; Smith and Thakurta 2022, arXiv 2210.17520).

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
from dataclasses import dataclass, replace

from scipy.special import ndtri

from hedgerow.errors import PrivacyError
from hedgerow.privacy.events import (
    DiscreteGaussianEvent,
    DiscreteGaussianSumEvent,
    DiscreteLaplaceEvent,
    DiscreteLaplaceVectorEvent,
    Event,
    FilteredGaussianEvent,
    GaussianEvent,
    LocalGaussianEvent,
    PureEvent,
    SampledEvent,
    SampledGaussianEvent,
    SelectionEvent,
    UnnoisedEvent,
)

_FULL = (SampledGaussianEvent, FilteredGaussianEvent)
PURE_EVENTS = (DiscreteLaplaceEvent, DiscreteLaplaceVectorEvent, SelectionEvent)
_PURE_ROUND_UP = 1 + 1e-14
"""Logarithms, exponentials and sums in double precision are off by a few units in the last place."""
_LARGE = 30.0


def amplify_epsilon(epsilon: float, sampling_rate: float) -> float:
    """Compute log(1 + q (exp(epsilon) - 1)), rounded up, for epsilon > 0 and q in (0, 1]."""
    if sampling_rate == 1:
        return epsilon
    if epsilon > _LARGE:
        # exp(epsilon) may overflow; (1 - q) / q exp(-epsilon) does not.
        saved = math.log(sampling_rate) + math.log1p((1 - sampling_rate) / sampling_rate * math.exp(-epsilon))
        return (epsilon + saved) * _PURE_ROUND_UP
    return math.log1p(sampling_rate * math.expm1(epsilon)) * _PURE_ROUND_UP


def mu_of_pure(epsilon: float) -> float:
    """Compute the mu of an epsilon-DP mechanism, rounded up: -2 Phi^-1(1 / (1 + exp(epsilon)))."""
    # ndtri is accurate to 1e-14 relatively, but 1 / (1 + e) near 1/2 loses digits of a small epsilon.
    half = -float(ndtri(1 / (1 + math.exp(min(epsilon, 700.0)))))
    return 2 * (half * (1 + 1e-12) + 1e-15) if epsilon < 700 else math.inf


def zcdp_weight(event: PureEvent) -> float:
    """Return twice the rho of one release of pure differential privacy, rounded up.

    The least of what its (amplified) epsilon says, epsilon²; for a choice epsilon² / 4 of the range without sampling;
    and for a vector its own weight without sampling.
    """
    weight = amplify_epsilon(event.epsilon, event.sampling_rate) ** 2 * _PURE_ROUND_UP
    if type(event) is SelectionEvent:
        return min(weight, event.epsilon**2 / 4 * _PURE_ROUND_UP)
    if type(event) is DiscreteLaplaceVectorEvent:
        return min(weight, event.zcdp_weight)
    return weight


def all_pure(events: Iterable[Event]) -> bool:
    """Return whether there are releases and all are of pure differential privacy."""
    kinds = [type(event) for event in events]
    return bool(kinds) and all(kind in PURE_EVENTS for kind in kinds)


def epsilon_pure(events: Iterable[Event]) -> float:
    """Compute the epsilon of all releases together at delta = 0, rounded up; infinity if one has no noise.

    Raises:
        PrivacyError: code "not-pure", for a release that has a delta.
    """
    costs = []
    for event in events:
        if type(event) is UnnoisedEvent:
            return math.inf
        if not isinstance(event, PureEvent) or type(event) not in PURE_EVENTS:
            raise PrivacyError("not-pure", type=type(event).__name__)
        costs.append(event.count * amplify_epsilon(event.epsilon, event.sampling_rate))
    return math.fsum(costs) * _PURE_ROUND_UP


# The sum over shares adds this many terms exactly, and bounds each further term by the largest of them.
_TERMS = 64

# Sums and quotients here have relative errors of a few units in the last place; this makes them round up.
ROUND_UP = 1 + 4e-15

KNOWN_EVENTS = (
    GaussianEvent,
    DiscreteGaussianEvent,
    DiscreteGaussianSumEvent,
    LocalGaussianEvent,
    SampledGaussianEvent,
    FilteredGaussianEvent,
    *PURE_EVENTS,
    UnnoisedEvent,
)


@dataclass(frozen=True)
class LatticeSlack:
    """The price of the grid for one or more releases.

    Attributes:
        mu_squared_factor: factor >= 1 on mu² (the rounded Gaussian has a variance smaller by 1/12).
        total_variation: distance between the mechanism and its rounded twin, >= 0; costs (1 + e^epsilon) times itself
            of delta (lemma 1).
        log_ratio: largest log-ratio r between the mechanism's probabilities and the discrete Gaussian's, >= 0; it turns
            (epsilon, delta) into (epsilon + 2 r, e^r delta) (lemma 2).
    """

    mu_squared_factor: float = 1.0
    total_variation: float = 0.0
    log_ratio: float = 0.0


def lattice_slack(sigma_squared: int, length: int, count: int = 1) -> LatticeSlack:
    """Compute the extra cost of discrete over continuous Gaussian noise of variance `sigma_squared`.

    Args:
        sigma_squared: variance in squared grid units, >= 1.
        length: entries per release, >= 1.
        count: adaptive releases, >= 1.

    Source: docs/proofs/discrete-gaussian.md, theorem 1.
    """
    rounded_variance = sigma_squared - 1 / 12
    s = math.sqrt(rounded_variance)
    aliasing = 1.001 * math.exp(-2 * math.pi**2 * sigma_squared)
    per_entry = 0.00341 / s**4 + 0.00381 / s**5 + aliasing
    return LatticeSlack(
        mu_squared_factor=(1 + 1 / (12 * rounded_variance)) * (1 + 1e-15),
        total_variation=min(1.0, length * count * per_entry),
    )


def sum_slack(share_sigma: int, n_shares: int, length: int, count: int = 1) -> LatticeSlack:
    """Compute the extra cost of noise that is a sum of `n_shares` draws from N_Z(0, share_sigma²).

    It is for `count` releases of `length` entries.

    tau = 10 sum_{k=1}^{n-1} exp(-2 pi² share_sigma² k / (k + 1)) per entry, then `lattice_slack` of the whole variance.

    Source: Kairouz, Liu & Steinke 2021, arXiv 2102.06387 (this tau); proved again for shares of at least one grid unit
    in docs/proofs/discrete-gaussian.md, theorem 2.
    """
    exponent = 2 * math.pi**2 * share_sigma * share_sigma
    steps = n_shares - 1
    tau = 10 * math.fsum(math.exp(-exponent * k / (k + 1)) for k in range(1, min(steps, _TERMS) + 1))
    if steps > _TERMS:
        tau += 10 * (steps - _TERMS) * math.exp(-exponent * (_TERMS + 1) / (_TERMS + 2))
    whole = lattice_slack(n_shares * share_sigma * share_sigma, length, count)
    return LatticeSlack(whole.mu_squared_factor, whole.total_variation, log_ratio=length * count * tau * (1 + 1e-12))


@dataclass(frozen=True)
class EventCost:
    """Cost of a set of events, rounded up.

    Attributes:
        zcdp_weight: sum of 1 / z²; the mechanism is (zcdp_weight / 2)-zCDP up to `log_ratio`.
        gdp_weight: mu² of the rounded Gaussian twin; zcdp_weight when no event lies on a grid.
        total_variation: distance to that twin.
        log_ratio: log-ratio between sums of discrete Gaussians and discrete Gaussians.
    """

    zcdp_weight: float
    gdp_weight: float
    total_variation: float
    log_ratio: float


def compose_cost(events: Iterable[Event]) -> EventCost:
    """Compute the cost of all events under adaptive composition; infinite weights for an un-noised event.

    Raises:
        PrivacyError: code "unknown-event", for a release over a sample of less than all units too: it has no mu.
    """
    costs: list[EventCost] = []
    filters: dict[tuple[str, int, float], list[EventCost]] = {}
    for event in events:
        if type(event) is FilteredGaussianEvent and event.sampling_rate == 1:
            filters.setdefault((event.scope, event.order, event.budget), []).append(_cost_event(event))
        else:
            costs.append(_cost_event(event))
    costs += [_cap_filter(parts, 2 * budget / order * ROUND_UP) for (_, order, budget), parts in filters.items()]
    return EventCost(
        zcdp_weight=math.fsum(cost.zcdp_weight for cost in costs) * ROUND_UP,
        gdp_weight=math.fsum(cost.gdp_weight for cost in costs) * ROUND_UP,
        total_variation=min(1.0, math.fsum(cost.total_variation for cost in costs) * ROUND_UP),
        log_ratio=math.fsum(cost.log_ratio for cost in costs) * ROUND_UP,
    )


def _cap_filter(parts: list[EventCost], most: float) -> EventCost:
    """Compute the cost of one filter's releases, whose sum of 1 / z² from any one unit is at most `most`."""
    factor = max(part.gdp_weight / part.zcdp_weight for part in parts) * ROUND_UP
    weight = min(math.fsum(part.zcdp_weight for part in parts), most)
    return EventCost(
        zcdp_weight=weight,
        gdp_weight=min(weight * factor, math.fsum(part.gdp_weight for part in parts)),
        total_variation=math.fsum(part.total_variation for part in parts),
        log_ratio=math.fsum(part.log_ratio for part in parts),
    )


def _cost_event(event: Event) -> EventCost:
    if type(event) is UnnoisedEvent:
        return EventCost(math.inf, math.inf, 0.0, 0.0)
    if type(event) is GaussianEvent:
        slack = LatticeSlack()
    elif type(event) is DiscreteGaussianEvent or type(event) is LocalGaussianEvent:
        slack = lattice_slack(event.sigma * event.sigma, event.length, event.count)
    elif type(event) is DiscreteGaussianSumEvent:
        slack = sum_slack(event.share_sigma, event.n_shares, event.length, event.count)
    elif isinstance(event, SampledEvent) and type(event) in _FULL and event.sampling_rate == 1:
        slack = sum_slack(event.share_sigma, event.n_shares, event.length, event.count)
    elif isinstance(event, PureEvent) and type(event) in PURE_EVENTS:
        # epsilon-DP is epsilon²/2-zCDP and mu-GDP (`hedgerow.privacy.cost`): a bound that composes with the others.
        epsilon = amplify_epsilon(event.epsilon, event.sampling_rate)
        return EventCost(event.count * zcdp_weight(event), event.count * mu_of_pure(epsilon) ** 2, 0.0, 0.0)
    else:
        # A subclass is refused as well: it may mean something else than its parent.
        raise PrivacyError("unknown-event", type=type(event).__name__)
    weight = event.count / event.noise_multiplier / event.noise_multiplier
    return EventCost(weight, weight * slack.mu_squared_factor, slack.total_variation, slack.log_ratio)


def for_rows(event: Event, n_rows: int) -> Event:
    """Return an event that bounds a release's cost for an owner of `n_rows` rows; one row costs `event`.

    A release is a sum over rows, so its sensitivity to so many is at most so many times that to one: exact where all of
    them pull alike. Over a sample, each of them is drawn by itself. Renyi divergences, those of hockey sticks and pure
    privacy are quasi-convex. So the loss is at most that of all rows whenever one of them is drawn, which happens with
    the chance 1 - (1 - q)^n. In the local model each row has noise of its own. A filter keeps the costs of one row
    below its budget: at the rate 1, by Cauchy's inequality, those of n rows below n² times as much; over samples
    nothing is known of them, so they count as if there was no filter.

    Args:
        n_rows: >= 1.

    Raises:
        PrivacyError: code "unknown-event", for a type whose meaning is not known here.
    """
    kind, down, up = type(event), 1 - 1e-15, 1 + 1e-15
    if kind not in KNOWN_EVENTS:
        # A subclass is refused as well: it may mean something else than its parent.
        raise PrivacyError("unknown-event", type=kind.__name__)
    if n_rows == 1 or isinstance(event, UnnoisedEvent):
        return event
    if isinstance(event, LocalGaussianEvent):
        less = event.noise_multiplier / math.sqrt(n_rows) * down
        return replace(event, noise_multiplier=less, length=event.length * n_rows)
    if isinstance(event, SelectionEvent):
        drawn = _compute_chance_of_any(event.sampling_rate, n_rows)
        return replace(event, epsilon=event.epsilon * n_rows * up, sampling_rate=drawn)
    if isinstance(event, PureEvent):
        # Under pure privacy n rows cost n times one row, n times a sample's amplified epsilon is a bound.
        epsilon = amplify_epsilon(event.epsilon, event.sampling_rate) * n_rows * up
        if isinstance(event, DiscreteLaplaceVectorEvent):
            event = replace(event, zcdp_weight=event.zcdp_weight * n_rows**2 * up)
        return replace(event, epsilon=epsilon, sampling_rate=1.0)
    less = event.noise_multiplier / n_rows * down
    if not isinstance(event, SampledEvent):
        return replace(event, noise_multiplier=less)
    if isinstance(event, FilteredGaussianEvent) and event.sampling_rate == 1:
        return replace(event, noise_multiplier=less, budget=event.budget * n_rows**2 * up)
    drawn = _compute_chance_of_any(event.sampling_rate, n_rows)
    return SampledGaussianEvent(less, drawn, event.share_sigma, event.n_shares, event.length, event.count)


def _compute_chance_of_any(rate: float, n_rows: int) -> float:
    """Compute the chance that at least one of n_rows rows is drawn, rounded up."""
    return rate if rate == 1 else min(1.0, -math.expm1(n_rows * math.log1p(-rate)) * (1 + 1e-14))
