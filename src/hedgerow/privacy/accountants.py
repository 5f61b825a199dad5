"""Accountants: they read events and answer with epsilon at a delta; all fail closed.

An event without a known cost is an error (`hedgerow.privacy.cost`), an un-noised one is epsilon = infinity. Kinds of
events are not mixed by adding up epsilons: `gdp`, `rdp` and `pld` take releases of pure differential privacy in by a
bound that is proved there; `pure` refuses everything else.

`pld` composes privacy loss distributions by dp_accounting, an extra. A pure release is dominated by randomised response
of its (amplified) epsilon (Kairouz, Oh and Viswanath 2015, theorem 3.1: every e-DP mechanism is post-processing of it),
Gaussian releases by one Gaussian of their total mu, and a Gaussian release over a Poisson sample by that of its worst
unit: a smaller shift is post-processing of a larger one, and dominating pairs compose adaptively (Zhu, Dong and Wang
2022, arXiv 2106.08567, theorem 10). A filter that cannot act changes nothing of that: one whose releases, each at its
worst, stay within its budget. The library composes these on a grid and rounds losses up, so that what it says is a
bound.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hedgerow.errors import EnvironmentFault, PrivacyError, missing_extra
from hedgerow.privacy.cost import (
    KNOWN_EVENTS,
    PURE_EVENTS,
    ROUND_UP,
    all_pure,
    amplified_epsilon,
    cost_of,
    epsilon_pure,
    sum_slack,
)
from hedgerow.privacy.events import (
    Event,
    FilteredGaussianEvent,
    PureEvent,
    SampledEvent,
    UnnoisedEvent,
    is_sample,
)
from hedgerow.privacy.gdp import check_delta, epsilon_of_mu
from hedgerow.privacy.rdp import (
    epsilon_of_rho,
    epsilon_rdp,
    epsilon_renyi,
    has_samples,
    log_ratio_of,
    sampled_divergence,
)

CELLS = 2**17
"""Losses are rounded up to multiples of the largest possible loss divided by this."""
SAMPLED_CELLS = 2**15
"""The same where samples are among the releases: a fifth of the time, for 1e-5 of epsilon."""
DEVIATIONS = 10
"""A Gaussian's loss beyond so many standard deviations is for the tail that the library cuts off and adds to delta."""
_HALVINGS = 60
_PLD_ROUND_UP = 1 + 1e-9
_TAIL = 1e-15
"""Mass that the library may cut off; it adds it to delta."""


def epsilon_pld(events: Iterable[Event], delta: float) -> float:
    """The epsilon of all events together at delta, rounded up.

    Infinity for an un-noised event, where losses are so large that their exponentials leave the range of doubles, and
    where a filter may act: its releases have a bound at one order only.

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
    samples = [event for event in counted if is_sample(event)]
    cost = cost_of(event for event in counted if type(event) not in PURE_EVENTS and not is_sample(event))
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
        loss = _composed(pure, sampled, math.sqrt(cost.gdp_weight))
        return _epsilon_of(loss, twin_delta, total_variation) * _PLD_ROUND_UP + 2 * log_ratio
    except OverflowError:
        # With next to no noise e^loss leaves the range of doubles.
        return math.inf


def least_epsilon_pld(events: Iterable[Event], delta: float) -> float:
    """A number that `epsilon_pld` is never below: the exact cost of the Gaussian releases alone.

    It needs no extra and no time, so that a figure read from a file can be told to be too small at once.

    Raises:
        PrivacyError: code "unknown-event".
    """
    check_delta(delta)
    cost = cost_of(event for event in events if type(event) not in PURE_EVENTS and not is_sample(event))
    if cost.zcdp_weight in (0.0, math.inf):
        return cost.zcdp_weight
    return epsilon_of_mu(math.sqrt(cost.zcdp_weight), delta) / _PLD_ROUND_UP


def can_act(samples: Sequence[SampledEvent]) -> bool:
    """Whether a filter may leave a unit out of one of these releases: at its worst, they cost more than the budget."""
    worst: dict[tuple[str, int, float], float] = {}
    for event in samples:
        if isinstance(event, FilteredGaussianEvent):
            cost = event.count * sampled_divergence(event.order, event.sampling_rate, event.noise_multiplier)
            key = event.scope, event.order, event.budget
            worst[key] = worst.get(key, 0.0) + cost
    return any(cost > budget for (_, _, budget), cost in worst.items())


def _composed(pure: Counter[float], sampled: Counter[tuple[float, float]], mu: float) -> Any:
    try:
        from dp_accounting.pld import common, privacy_loss_distribution
    except ModuleNotFoundError as absent:
        raise missing_extra("dp_accounting", 'The accountant "pld"') from absent
    largest = math.fsum(epsilon * count for epsilon, count in pure.items()) + mu * (mu / 2 + DEVIATIONS)
    # About their spread when composed: a sampled release moves the loss by q / z in the middle.
    spread = math.sqrt(math.fsum(count * math.expm1(1 / z**2) * rate**2 for (rate, z), count in sampled.items()))
    largest += spread * (spread / 2 + DEVIATIONS)
    grid = largest / (SAMPLED_CELLS if sampled else CELLS)
    parts = [
        privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(epsilon, 0.0), value_discretization_interval=grid
        ).self_compose(count)
        for epsilon, count in sorted(pure.items())
    ]
    parts += [
        privacy_loss_distribution.from_gaussian_mechanism(
            z,
            sampling_prob=rate,
            value_discretization_interval=grid,
            log_mass_truncation_bound=math.log(_TAIL),
        ).self_compose(count)
        for (rate, z), count in sorted(sampled.items())
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


@dataclass(frozen=True)
class Accountant:
    """Answers how much privacy a set of events costs.

    Args:
        name: the name by which `get_accountant` finds it.
        known: the types of the events that it can account for.
        account: the epsilon of all events together at a delta in (0, 1).
    """

    name: str
    known: tuple[type, ...]
    account: Callable[[Sequence[Event], float], float]

    def supports(self, event: object) -> bool:
        """Whether `epsilon` can account for this event."""
        return type(event) in self.known

    def epsilon(self, events: Iterable[Event], delta: float) -> float:
        """The epsilon of all events together at delta in (0, 1), rounded up; infinity for an un-noised event.

        Raises PrivacyError(code='unknown-event') for an event that is not supported; by `pld` also EnvironmentFault
        (code 'missing-extra') without dp_accounting.
        """
        check_delta(delta)
        return self.account(list(events), delta)


def _gdp(events: Sequence[Event], delta: float) -> float:
    """Exact for Gaussian releases; integer noise pays the slack of its grid; a bound for pure releases.

    A ledger with a release over a sample of less than all is bounded as a whole by Renyi accounting
    (`hedgerow.privacy.rdp`): such releases have no exact mu, and adding up epsilons of two kinds would be a guess.
    """
    if has_samples(events):
        return epsilon_renyi(events, delta)
    cost = cost_of(events)
    if cost.gdp_weight == math.inf or cost.log_ratio == math.inf:
        return math.inf
    twin_delta = delta * math.exp(-cost.log_ratio)
    if twin_delta <= 0:
        return math.inf
    epsilon = epsilon_of_mu(math.sqrt(cost.gdp_weight) * ROUND_UP, twin_delta, cost.total_variation)
    if cost.total_variation > 0 or any(type(event) in PURE_EVENTS for event in events):
        # zCDP holds for the discrete Gaussian without any slack, so the better of the two bounds is a bound: on a
        # coarse grid, or at a large epsilon, where (1 + e^epsilon) times the distance is too large. It is also what
        # many small pure releases are best bounded by.
        epsilon = min(epsilon, epsilon_of_rho(cost.zcdp_weight / 2, twin_delta))
    epsilon += 2 * cost.log_ratio
    return min(epsilon, epsilon_pure(events)) if all_pure(events) else epsilon


def _rdp(events: Sequence[Event], delta: float) -> float:
    """Renyi differential privacy; looser by 8 to 10 % of noise, and independent of the first."""
    return epsilon_renyi(events, delta) if has_samples(events) else epsilon_rdp(events, delta)


def _pure(events: Sequence[Event], delta: float) -> float:
    """Sums of epsilons of releases of pure differential privacy, amplified by sampling; holds at delta = 0."""
    return epsilon_pure(events)


def _pld(events: Sequence[Event], delta: float) -> float:
    """Privacy loss distributions by dp_accounting, an extra: the tightest for pure releases and for samples."""
    # Both are bounds; on a coarse grid of noise, or at a large epsilon, the other one is smaller.
    return min(epsilon_pld(events, delta), _gdp(events, delta))


_ACCOUNTANTS = {
    accountant.name: accountant
    for accountant in (
        Accountant("gdp", KNOWN_EVENTS, _gdp),
        Accountant("rdp", KNOWN_EVENTS, _rdp),
        Accountant("pure", (*PURE_EVENTS, UnnoisedEvent), _pure),
        Accountant("pld", KNOWN_EVENTS, _pld),
    )
}


def get_accountant(name: str) -> Accountant:
    """The accountant of that name, ``gdp`` (the default everywhere), ``rdp``, ``pure``, ``pld``; PrivacyError else."""
    if name not in _ACCOUNTANTS:
        raise PrivacyError("unknown-accountant", name=name, accountants=", ".join(sorted(_ACCOUNTANTS)))
    return _ACCOUNTANTS[name]


@dataclass(frozen=True)
class Account:
    """What events cost: `epsilon`, the accountant that found it, and why it is another one than was asked."""

    epsilon: float
    by: str
    why: str = ""


def account_of(name: str, events: Iterable[Event], delta: float) -> Account:
    """What events cost by an accountant, or by `gdp` where that one cannot tell: always a true bound.

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
