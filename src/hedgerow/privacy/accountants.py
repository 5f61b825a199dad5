# SPDX-License-Identifier: Apache-2.0
"""Accountants: they read events and answer with epsilon at a delta; all fail closed.

An event without a known cost is an error (`hedgerow.privacy.cost`), an un-noised one is epsilon = infinity. Kinds of
events are not mixed by adding up epsilons: `gdp`, `rdp` and `pld` take releases of pure differential privacy in by a
bound that is proved there. `pure` refuses everything else.

**gdp**, the exact accountant of Gaussian releases: Gaussian differential privacy (mu-GDP).

Adaptive composition of Gaussian releases with noise multipliers z_i is exactly mu-GDP with mu² = sum 1 / z_i², and

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

(Balle & Wang 2018, arXiv 1805.06530, Theorem 8; Dong, Roth & Su 2019, arXiv 1905.02383, Corollaries 2.13 and 3.3).

The difference loses all digits for small delta, and e^epsilon overflows. With u = epsilon/mu - mu/2 and v = u + mu it
is e^epsilon phi(v) = phi(u), so that delta = phi(u) [R(u) - R(v)] with Mills' ratio R(x) = Phi(-x) / phi(x), which
needs neither. All answers are rounded towards privacy: delta and epsilon up, mu down.

**rdp**, Renyi accounting of releases over Poisson samples, and of everything that is released beside them.

A release over a Poisson sample of rate q draws from P = (1 - q) N + q N_v when a unit is there and from N when it is
not; N is the noise, N_v the noise moved by the unit's integer vector v, |v| / sigma = 1 / z. At integer orders

    D_a(P || N) = 1/(a - 1) log sum_l  C(a, l) (1 - q)^(a - l) q^l  exp(l (l - 1) / (2 z²))

(Mironov, Talwar and Zhang 2019, arXiv 1908.10530, section 3.3), and D_a(N || P) is never larger (their theorem 5, whose
mapping x -> v - x exists on the integers too). For the discrete Gaussian the formula is the same to the letter: l v is
an integer vector, so the moved noise sums to the same constant (docs/proofs/sampled-gaussian.md).

An individual filter at a node leaves a record out of every further sum once its own divergences at one order would pass
a budget (Feldman and Zrnic 2020, arXiv 2008.11193, theorem 4.5). All releases under it together then cost the budget at
that order, however many they are, and at every order no more than each at its worst.

Without samples the curve is a line: `epsilon_rdp` is the second opinion beside the exact accountant.

**pld** composes privacy loss distributions by dp_accounting, an extra.

A pure release is dominated by randomised response of its (amplified) epsilon (Kairouz, Oh and Viswanath 2015, theorem
3.1: every e-DP mechanism is post-processing of it), Gaussian releases by one Gaussian of their total mu, and a Gaussian
release over a Poisson sample by that of its worst unit. A smaller shift is post-processing of a larger one, and
dominating pairs compose adaptively (Zhu, Dong and Wang 2022, arXiv 2106.08567, theorem 10). A filter that cannot act
changes nothing of that: one whose releases, each at its worst, stay within its budget. The library composes these on a
grid and rounds losses up, so that what it says is a bound.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, gammaln, ndtr, ndtri

from hedgerow.errors import EnvironmentFault, PrivacyError, missing_extra
from hedgerow.plan.registry import Registry
from hedgerow.privacy.cost import (
    KNOWN_EVENTS,
    PURE_EVENTS,
    ROUND_UP,
    EventCost,
    all_pure,
    amplify_epsilon,
    compose_cost,
    epsilon_pure,
    for_rows,
    sum_slack,
)
from hedgerow.privacy.events import Event, FilteredGaussianEvent, PureEvent, SampledEvent, UnnoisedEvent, is_sample

_SQRT_2 = math.sqrt(2.0)
_SQRT_PI_OVER_2 = math.sqrt(math.pi / 2)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)

# erfcx and ndtr are good to a few units in the last place; a relative error e of u changes phi(u) by u² e.
_RELATIVE_ERROR = 2e-15
# Cache sizes: all parties in one process, and the coordinator after every release, ask for the same answers.
_KEPT = 1024


def delta_of_mu(mu: float, epsilon: float) -> float:
    """Compute the delta of a mu-GDP mechanism at epsilon, rounded up; mu >= 0 or infinity, epsilon >= 0."""
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


@lru_cache(maxsize=_KEPT)
def epsilon_of_mu(mu: float, delta: float, total_variation: float = 0.0) -> float:
    """Compute the smallest epsilon >= 0 of a mu-GDP mechanism at delta, rounded up.

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
    return bisect(lambda epsilon: spent(epsilon) <= delta, false_at=0.0, true_at=upper)


@lru_cache(maxsize=_KEPT)
def mu_of(epsilon: float, delta: float) -> float:
    """Compute the largest mu for which mu-GDP implies (epsilon, delta)-DP, rounded down.

    epsilon > 0 and 0 < delta < 1.
    """
    check_epsilon(epsilon)
    check_delta(delta)
    upper = 1.0
    while delta_of_mu(upper, epsilon) <= delta:
        upper *= 2
    lower = upper / 2
    while delta_of_mu(lower, epsilon) > delta:
        lower /= 2
    return bisect(lambda mu: delta_of_mu(mu, epsilon) <= delta, false_at=upper, true_at=lower)


def check_epsilon(epsilon: float) -> None:
    """Raise PrivacyError unless epsilon is a finite number above 0."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        wanted = "a finite number above 0, such as 1"
        raise PrivacyError("out-of-range", code="epsilon-out-of-range", name="epsilon", value=epsilon, wanted=wanted)


def check_delta(delta: float) -> None:
    """Raise PrivacyError unless 0 < delta < 1."""
    if not 0 < delta < 1:
        wanted = "between 0 and 1, well below 1 / (number of units), such as 1e-6"
        raise PrivacyError("out-of-range", code="delta-out-of-range", name="delta", value=delta, wanted=wanted)


def _upper_epsilon(mu: float, total_variation: float, delta: float) -> float:
    """Return an epsilon at which the delta spent is at most `delta`, if there is one.

    The delta spent first falls with epsilon, and then rises with the slack.
    """
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


def bisect(holds: Callable[[float], bool], false_at: float, true_at: float, precision: float = 4e-16) -> float:
    """Return a point next to the boundary at which `holds` is known to be true.

    Args:
        false_at, true_at: on either side of the boundary.
        precision: how near, relative to the larger of the two; to the last bits of a float where it is not given.
    """
    while abs(true_at - false_at) > precision * max(abs(true_at), abs(false_at)):
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
        raise PrivacyError("out-of-range", name=name, value=value, wanted="at least 0")


FloatArray = NDArray[np.float64]

_RENYI_ERROR = 1e-9
"""Covers the logarithms of factorials (arguments to 10^4, good to 10^-15 each) and the sums in double precision."""


def _orders() -> tuple[int, ...]:
    found, order = list(range(2, 65)), 64.0
    while order < 8192:
        order *= 1.06
        found.append(round(order))
    return tuple(found)


ORDERS = _orders()
"""The orders that are tried: all small ones, then steps of 6 %, which costs less than 0.2 % of epsilon."""


_SEARCHED = 8.0
"""Half width of the search for the best order around its first guess, in natural logarithms of order - 1."""
_SEARCH_STEPS = 80
"""Halvings, about, of that range: 1e-16 of it is left."""


# Remembered: a ledger has hundreds of equal events.
@lru_cache(maxsize=1 << 16)
def compute_sampled_divergence(order: int, rate: float, noise_multiplier: float) -> float:
    """Return the Renyi divergence of one release over a Poisson sample, the larger of both directions, rounded up.

    Args:
        order: >= 2.
        rate: chance of a unit to be in the sample, in (0, 1].
        noise_multiplier: standard deviation of the noise over the norm of the unit's vector, > 0.
    """
    return _divergence(order, rate, noise_multiplier, is_general=False)


def paper_divergence(order: int, rate: float, noise_multiplier: float) -> float:
    """Compute the divergence bound of S-GBDT's accountant, which holds for any mechanism.

    The terms from l = 3 on count three times. Arguments as for `compute_sampled_divergence`, which is never larger.

    Source: Zhu and Wang 2019, theorem 6; arXiv 2309.12041, theorem 9.
    """
    return _divergence(order, rate, noise_multiplier, is_general=True)


def _divergence(order: int, rate: float, noise_multiplier: float, *, is_general: bool) -> float:
    _check(order, rate, noise_multiplier)
    if rate == 1:
        return order / (2 * noise_multiplier**2) * (1 + _RENYI_ERROR)
    # Logarithms of the binomial weights, and the exponents, for l = 2 .. order.
    number = np.arange(2, order + 1, dtype=np.float64)
    log_weights = _log_binomials(order) + (order - number) * math.log1p(-rate) + number * math.log(rate)
    exponents = number * (number - 1) / (2 * noise_multiplier**2)
    # The weights add up to one, so one less of each exponential is the excess over one: no digit is lost.
    excess = log_weights + exponents + np.log(-np.expm1(-exponents))
    if is_general:
        excess = np.concatenate([excess, (log_weights + exponents)[1:] + math.log(2)])
    # log(1 + sum of the excess) / (order - 1), rounded up.
    top = float(excess.max())
    total = top + math.log(float(np.exp(excess - top).sum()))
    value = math.log1p(math.exp(total)) if total < 700 else total + math.exp(-total)
    return value / (order - 1) * (1 + _RENYI_ERROR)


def epsilon_of_divergence(order: float, divergence: float, delta: float) -> float:
    """Compute the epsilon at delta of a mechanism of this Renyi divergence at one order, rounded up, >= 0.

    Source: Canonne, Kamath and Steinke 2020, arXiv 2004.00010, proposition 12.
    """
    if divergence == math.inf:
        return math.inf
    epsilon = _convert(order, divergence, delta)
    return max(0.0, epsilon + (abs(epsilon) + abs(math.log(delta))) * 4e-15)


def _convert(order: float, divergence: float, delta: float) -> float:
    return divergence + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def epsilon_of_curve(orders: Sequence[int], divergences: Sequence[float], delta: float) -> tuple[float, int]:
    """Return the smallest epsilon over some orders, and the order at which it is reached."""
    pairs = zip(orders, divergences, strict=True)
    return min((epsilon_of_divergence(order, value, delta), order) for order, value in pairs)


def has_samples(events: Iterable[Event]) -> bool:
    """Return whether any event is a release over a sample of some units: such a release has no mu."""
    return any(is_sample(event) for event in events)


def epsilon_renyi(events: Iterable[Event], delta: float) -> float:
    """Compute the epsilon of all events together at delta, rounded up; infinity for an un-noised event.

    Raises:
        PrivacyError: code "unknown-event", as `hedgerow.privacy.cost.compose_cost`.
    """
    counted = list(events)
    if any(type(event) is UnnoisedEvent for event in counted):
        return math.inf
    samples = [event for event in counted if is_sample(event)]
    others = compose_cost(event for event in counted if not is_sample(event))
    log_ratio = others.log_ratio + math.fsum(log_ratio_of(event) for event in samples)
    twin_delta = delta * math.exp(-log_ratio) if log_ratio < math.inf else 0.0
    if twin_delta <= 0 or others.zcdp_weight == math.inf:
        return math.inf
    orders, curve = list_divergences(samples, others)
    return epsilon_of_curve(orders, curve, twin_delta)[0] + 2 * log_ratio


def list_divergences(samples: Sequence[SampledEvent], others: EventCost) -> tuple[list[int], list[float]]:
    """Return orders and, for each, the Renyi divergence of all releases together."""
    orders = sorted({*ORDERS, *(event.order for event in samples if isinstance(event, FilteredGaussianEvent))})
    return orders, [others.zcdp_weight / 2 * order + _divergence_of(samples, order) for order in orders]


def _divergence_of(samples: Sequence[SampledEvent], order: int) -> float:
    """Add up the divergences of releases over samples; a filter's releases count at most its budget."""
    free: list[float] = []
    filtered: dict[tuple[str, int, float], list[float]] = {}
    for event in samples:
        cost = event.count * compute_sampled_divergence(order, event.sampling_rate, event.noise_multiplier)
        if isinstance(event, FilteredGaussianEvent) and event.order == order:
            filtered.setdefault((event.scope, event.order, event.budget), []).append(cost)
        else:
            free.append(cost)
    capped = [min(math.fsum(costs), budget) for (_, _, budget), costs in filtered.items()]
    return math.fsum(free + capped) * ROUND_UP


def log_ratio_of(event: SampledEvent) -> float:
    """Compute the log-ratio of a sum of several discrete Gaussians against one.

    Sampling mixes both alike, so the log-ratio is the same as without a sample.
    """
    if event.n_shares == 1:
        return 0.0
    return sum_slack(event.share_sigma, event.n_shares, event.length, event.count).log_ratio


@lru_cache(maxsize=512)
def _log_binomials(order: int) -> FloatArray:
    number = np.arange(2, order + 1, dtype=np.float64)
    return np.asarray(gammaln(order + 1) - gammaln(number + 1) - gammaln(order - number + 1))


def _check(order: int, rate: float, noise_multiplier: float) -> None:
    if order >= 2 and 0 < rate <= 1 and 0 < noise_multiplier < math.inf:
        return
    raise PrivacyError(
        "out-of-range", name="A sample's order, rate and noise multiplier", value=(order, rate, noise_multiplier),
        wanted="from 2 on, in (0, 1] and above 0",
    )  # fmt: skip


def epsilon_rdp(events: Iterable[Event], delta: float) -> float:
    """Compute the epsilon of the events at delta by RDP, rounded up; PrivacyError for an unknown event.

    RDP of a Gaussian release is alpha / (2 z²), and so is the bound of the discrete Gaussian (Canonne, Kamath & Steinke
    2020, arXiv 2004.00010; docs/proofs/discrete-gaussian.md, theorem 3); RDP adds up, so that any events together cost
    what one release with 1 / z² = sum of 1 / z_i² costs.
    """
    check_delta(delta)
    cost = compose_cost(events)
    twin_delta = delta * math.exp(-cost.log_ratio)
    if cost.zcdp_weight == math.inf or twin_delta <= 0:
        return math.inf
    return epsilon_of_rho(cost.zcdp_weight / 2, twin_delta) + 2 * cost.log_ratio


@lru_cache(maxsize=_KEPT)
def epsilon_of_rho(rho: float, delta: float) -> float:
    """Compute the epsilon at delta of a rho-zCDP mechanism, rounded up.

    Its RDP is rho alpha at every order alpha.

    Args:
        rho: >= 0, infinity allowed.
        delta: in (0, 1).

    Every order gives a bound that holds, so the search for the best one cannot make the answer too small.

    Source: the conversion of Canonne, Kamath & Steinke 2020 (proposition 12), as `epsilon_of_divergence`; it is the one
    of Balle et al. 2020 (arXiv 1905.09982, theorem 21) that autodp and dp-accounting have.
    """
    check_delta(delta)
    if rho == 0:
        return 0.0
    if rho == math.inf:
        return math.inf

    def convert(log_excess: float) -> float:
        order = 1 + math.exp(log_excess)
        return _convert(order, rho * order, delta)

    # Where log(1 / delta) outweighs the other terms the best order is this one.
    # No closer to 1 than where doubles still tell orders apart.
    middle = max(math.log(-math.log(delta) / rho) / 2, -20.0)
    low, high = middle - _SEARCHED, middle + _SEARCHED
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(_SEARCH_STEPS):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if convert(left) <= convert(right) else (left, high)
    order = 1 + math.exp((low + high) / 2)
    return epsilon_of_divergence(order, rho * order, delta)


CELLS = 2**17
"""Losses are rounded up to multiples of the largest possible loss divided by this."""
SAMPLED_CELLS = 2**15
"""Cells where samples are among the releases: a fifth of the time, for 1e-5 of epsilon."""
MEAN_DEVIATIONS = 10
"""Standard deviations of a Gaussian's loss on the grid; the library cuts off the tail beyond and adds it to delta."""
_HALVINGS = 60
_PLD_ROUND_UP = 1 + 1e-9
_TAIL = 1e-15
"""Mass that the library may cut off; it adds it to delta."""


def epsilon_pld(events: Iterable[Event], delta: float) -> float:
    """Compute the epsilon of all events together at delta by privacy loss distributions, rounded up.

    The result is infinite for an event without noise, if the exponentials of the losses leave the range of doubles, and
    if a filter may act, because releases under a filter have a bound at one order only.

    Raises:
        PrivacyError: code "unknown-event".
        EnvironmentFault: code "missing-extra": dp_accounting is not installed.
    """
    check_delta(delta)
    counted = list(events)
    pure: Counter[float] = Counter()
    for event in counted:
        if isinstance(event, PureEvent) and type(event) in PURE_EVENTS:
            pure[amplify_epsilon(event.epsilon, event.sampling_rate)] += event.count
    samples = [event for event in counted if is_sample(event)]
    cost = compose_cost(event for event in counted if type(event) not in PURE_EVENTS and not is_sample(event))
    log_ratio = cost.log_ratio + math.fsum(log_ratio_of(event) for event in samples)
    if cost.gdp_weight == math.inf or log_ratio == math.inf or can_act(samples):
        return math.inf
    twin_delta = delta * math.exp(-log_ratio)
    if not counted:
        return 0.0
    if twin_delta <= 0:
        return math.inf
    sampled: Counter[tuple[float, float]] = Counter()
    total_variation = cost.total_variation
    for sample in samples:
        # As without a sample: the rounded Gaussian of a slightly smaller variance, and the distance to it.
        slack = sum_slack(sample.share_sigma, sample.n_shares, sample.length, sample.count)
        sampled[sample.sampling_rate, sample.noise_multiplier / math.sqrt(slack.mu_squared_factor)] += sample.count
        total_variation += slack.total_variation
    try:
        import dp_accounting.pld  # noqa: F401
    except ModuleNotFoundError as absent:
        raise missing_extra("dp_accounting", 'The accountant "pld"') from absent
    try:
        loss = _compose(tuple(sorted(pure.items())), tuple(sorted(sampled.items())), math.sqrt(cost.gdp_weight))
        return _epsilon_of(loss, twin_delta, total_variation) * _PLD_ROUND_UP + 2 * log_ratio
    except OverflowError:
        # With next to no noise e^loss leaves the range of doubles.
        return math.inf


def least_epsilon_pld(events: Iterable[Event], delta: float) -> float:
    """Compute a lower bound of `epsilon_pld`: the exact cost of the Gaussian releases alone.

    It needs no extra and no time, so that a figure read from a file can be told to be too small at once.

    Raises:
        PrivacyError: code "unknown-event".
    """
    check_delta(delta)
    cost = compose_cost(event for event in events if type(event) not in PURE_EVENTS and not is_sample(event))
    if cost.zcdp_weight in (0.0, math.inf):
        return cost.zcdp_weight
    return epsilon_of_mu(math.sqrt(cost.zcdp_weight), delta) / _PLD_ROUND_UP


def can_act(samples: Sequence[SampledEvent]) -> bool:
    """Return whether a filter may leave a unit out of one of these releases.

    It may if the worst cost of its releases exceeds its budget.
    """
    worst: dict[tuple[str, int, float], float] = {}
    for event in samples:
        if isinstance(event, FilteredGaussianEvent):
            cost = event.count * compute_sampled_divergence(event.order, event.sampling_rate, event.noise_multiplier)
            key = event.scope, event.order, event.budget
            worst[key] = worst.get(key, 0.0) + cost
    return any(cost > budget for (_, _, budget), cost in worst.items())


@lru_cache(maxsize=32)  # It takes seconds with samples, and a run asks for the same releases at each resolution.
def _compose(
    pure: tuple[tuple[float, int], ...], sampled: tuple[tuple[tuple[float, float], int], ...], mu: float
) -> Any:
    from dp_accounting.pld import common, privacy_loss_distribution

    largest = math.fsum(epsilon * count for epsilon, count in pure) + mu * (mu / 2 + MEAN_DEVIATIONS)
    # About their spread when composed: a sampled release moves the loss by q / z in the middle.
    spread = math.sqrt(math.fsum(count * math.expm1(1 / z**2) * rate**2 for (rate, z), count in sampled))
    largest += spread * (spread / 2 + MEAN_DEVIATIONS)
    grid = largest / (SAMPLED_CELLS if sampled else CELLS)
    parts = [
        privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(epsilon, 0.0), value_discretization_interval=grid
        ).self_compose(count)
        for epsilon, count in pure
    ]
    parts += [
        privacy_loss_distribution.from_gaussian_mechanism(
            z,
            sampling_prob=rate,
            value_discretization_interval=grid,
            log_mass_truncation_bound=math.log(_TAIL),
        ).self_compose(count)
        for (rate, z), count in sampled
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
    """Return the least epsilon with delta(epsilon) + (1 + e^epsilon) total_variation <= delta, rounded up."""
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


@dataclass(frozen=True)
class Accountant:
    """Answers how much privacy a set of events costs.

    Attributes:
        name: the name by which `get_accountant` finds it.
        known: the types of the events that it can account for.
        account: the epsilon of all events together at a delta in (0, 1).
    """

    name: str
    known: tuple[type, ...]
    account: Callable[[Sequence[Event], float], float]

    def supports(self, event: object) -> bool:
        """Return whether `epsilon` can account for this event."""
        return type(event) in self.known

    def epsilon(self, events: Iterable[Event], delta: float) -> float:
        """Compute the epsilon of all events together at delta in (0, 1), rounded up; infinity without noise.

        Raises PrivacyError(code='unknown-event') for an event that is not supported; by `pld` also EnvironmentFault
        (code 'missing-extra') without dp_accounting.
        """
        check_delta(delta)
        return self.account(list(events), delta)


def _gdp(events: Sequence[Event], delta: float) -> float:
    """Exact for Gaussian releases; integer noise pays the slack of its grid; a bound for pure releases.

    A ledger with a release over a sample of less than all is bounded as a whole by Renyi accounting. Such releases have
    no exact mu, and adding up epsilons of two kinds would be a guess.
    """
    if has_samples(events):
        return epsilon_renyi(events, delta)
    cost = compose_cost(events)
    if cost.gdp_weight == math.inf or cost.log_ratio == math.inf:
        return math.inf
    twin_delta = delta * math.exp(-cost.log_ratio)
    if twin_delta <= 0:
        return math.inf
    epsilon = epsilon_of_mu(math.sqrt(cost.gdp_weight) * ROUND_UP, twin_delta, cost.total_variation)
    if cost.total_variation > 0 or any(type(event) in PURE_EVENTS for event in events):
        # zCDP holds for the discrete Gaussian without any slack, so the better of the two bounds is a bound. On a
        # coarse grid, or at a large epsilon, where (1 + e^epsilon) times the distance is too large. It is also what
        # many small pure releases are best bounded by.
        epsilon = min(epsilon, epsilon_of_rho(cost.zcdp_weight / 2, twin_delta))
    epsilon += 2 * cost.log_ratio
    return min(epsilon, epsilon_pure(events)) if all_pure(events) else epsilon


def _rdp(events: Sequence[Event], delta: float) -> float:
    """Renyi differential privacy; looser by 8 to 10 % of noise, and independent of the first."""
    return epsilon_renyi(events, delta) if has_samples(events) else epsilon_rdp(events, delta)


def _pld(events: Sequence[Event], delta: float) -> float:
    """Account by privacy loss distributions, or by `gdp` where that is tighter.

    Loss distributions come from dp_accounting, an extra; they are the tightest for pure releases and for samples.
    """
    # Both are bounds; on a coarse grid of noise, or at a large epsilon, the other one is smaller.
    return min(epsilon_pld(events, delta), _gdp(events, delta))


_ACCOUNTANTS: Registry[Accountant] = Registry("accountant")
for _each in (
    Accountant("gdp", KNOWN_EVENTS, _gdp),
    Accountant("rdp", KNOWN_EVENTS, _rdp),
    Accountant("pure", (*PURE_EVENTS, UnnoisedEvent), lambda events, _: epsilon_pure(events)),
    Accountant("pld", KNOWN_EVENTS, _pld),
):
    _ACCOUNTANTS[_each.name] = _each


def get_accountant(name: str) -> Accountant:
    """Return the accountant named `name`: ``gdp`` (the default), ``rdp``, ``pure`` or ``pld``.

    Raises:
        PrivacyError: code "unknown-name".
    """
    if name not in _ACCOUNTANTS:
        raise PrivacyError("unknown-name", kind="accountant", name=name, known=", ".join(sorted(_ACCOUNTANTS)))
    return _ACCOUNTANTS[name]


_GROUP_STEPS = 60
_MAX_EXPONENT = 600.0
"""Exponentials of more leave the range of doubles."""


@dataclass(frozen=True)
class Account:
    """Cost of some events: `epsilon`, the accountant that computed it, and why the requested one did not."""

    epsilon: float
    by: str
    why: str = ""


def compute_account(name: str, events: Iterable[Event], delta: float) -> Account:
    """Compute the cost of events by an accountant, or by `gdp` if that one cannot account for them.

    Either result is a true bound.

    A run whose plan is accounted for by `pure` may be followed by an evaluation, whose noise is Gaussian; and a model
    of a plan with `pld` may be read where dp_accounting is not installed.

    Raises PrivacyError as `get_accountant` and `Accountant.epsilon` of `gdp` do.
    """
    events, judge, fallback = list(events), get_accountant(name), get_accountant("gdp")
    if not all(judge.supports(event) for event in events):
        return Account(fallback.epsilon(events, delta), "gdp", f'"{name}" cannot account for releases of these kinds')
    try:
        return Account(judge.epsilon(events, delta), name)
    except EnvironmentFault as absent:
        if absent.code != "missing-extra":
            raise
        why = f'"{name}" needs the extra hedgerow[{name}], which is not installed here'
        return Account(fallback.epsilon(events, delta), "gdp", why)


def epsilon_of_rows(name: str, events: Iterable[Event], delta: float, n_rows: int) -> float:
    """Bound the epsilon at delta for a person with `n_rows` rows, from events stated for one row.

    The result is rounded up.

    Exact for Gaussian releases, mu of n rows being n times that of one; else a bound (`for_rows`). Over samples that
    one is often large, and the general one for groups is taken where it is less: what is (e, d)-DP for a row is
    (n e, d (exp(n e) - 1) / (exp(e) - 1))-DP for n rows (Vadhan 2017, Complexity of Differential Privacy, lemma 2.2).

    Args:
        name: of the accountant; in place of privacy loss distributions, which take seconds, `gdp` bounds several rows.
        n_rows: >= 2.

    Raises PrivacyError as `compute_account`.
    """
    events, name = list(events), "gdp" if name == "pld" else name
    found = compute_account(name, [for_rows(event, n_rows) for event in events], delta).epsilon
    return min(found, _epsilon_of_group(name, events, delta, n_rows)) if has_samples(events) else found


def _epsilon_of_group(name: str, events: list[Event], delta: float, n_rows: int) -> float:
    part = delta
    for _ in range(_GROUP_STEPS):
        epsilon = compute_account(name, events, part).epsilon
        if not 0 < n_rows * epsilon < _MAX_EXPONENT:
            break
        factor = math.expm1(n_rows * epsilon) / math.expm1(epsilon) * ROUND_UP
        if part * factor <= delta:
            return n_rows * epsilon * ROUND_UP
        # Slightly below the boundary, where epsilon is larger, so that rounding cannot make the bound too small.
        part = 0.999 * delta / factor
    return math.inf
