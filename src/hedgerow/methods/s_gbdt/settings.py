# SPDX-License-Identifier: Apache-2.0
"""The settings of S-GBDT and its linear start: noise, filter and initial score.

Every "auto" is decided from the parameters that its authors found best (docs/s-gbdt.md). A run over samples is bounded
by one Renyi account: at every order a, the initial score costs a / (2 z0²) and each regular round the divergence of a
sampled Gaussian. The noise is the least that keeps the promise at the best order. The filter's budget is what the
regular rounds cost there, so extra rounds add nothing (arXiv 2309.12041, algorithms 7 and 8).

Without samples divergences are a / 2 times squared norms at every order a, so the filter bounds mu² as well, and the
account is exact: .90 to .94 of the noise (docs/proofs/queries.md, section 4). With the accountant "pld" and without
extra rounds, whose filter cannot act, rounds over samples are composed exactly too: .91 to .93 of the noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from hedgerow.errors import PrivacyError
from hedgerow.losses.tables import Loss
from hedgerow.methods.line import asks_for_line, divide_line_noise, list_line_rounds
from hedgerow.methods.linear_start import LinearStart, ask_labels, label_statistics
from hedgerow.methods.s_gbdt import SGbdt
from hedgerow.methods.s_gbdt.trees import SampledLeafSums, filter_terms, s_gbdt_loss
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import (
    ORDERS,
    bisect,
    compute_sampled_divergence,
    epsilon_of_curve,
    get_accountant,
    paper_divergence,
)
from hedgerow.privacy.calibration import smallest
from hedgerow.privacy.events import GaussianEvent, SampledGaussianEvent
from hedgerow.privacy.schedule import AlikeRounds, Schedule
from hedgerow.protocol.queries import FILTER_UNITS, SAMPLING_STEPS, FilterTerms, SampledQuery
from hedgerow.training.settings import Settings, value_or

DEFAULT_ROUNDS = 100
MEAN_SHARE = 0.1
"""Share of a linear start's budget for the mean of numeric labels, which clipped steps may not reach if it is far."""
LINE_SHARE, LINE_SHARE_OF_LINEAR = 0.5, 0.1
"""Shares of the initial score's budget for the last release of numbers: beside a mean, and beside a linear model."""
MARGIN = 1e-7
"""Relative noise beyond that of the account: it pays for rounding, and for noise in several shares."""
_FINE_SIGMA = 2**40
"""A grid that costs nothing; the cost of the real grid is added afterwards."""


@dataclass(frozen=True)
class SGbdtTerms:
    """The terms of S-GBDT's rounds.

    Attributes:
        n_regular_rounds, n_rounds: without and with the extra ones.
        sampling_threshold: see `SampledLeafSums`.
        initial_noise_multiplier: of the initial score and the last release as if they were one release; 0 without, or
            without privacy.
        has_mean: whether the mean label is asked for: as the initial score, or before a linear model of numbers.
        is_linear: whether the initial score is a linear model.
        order, budget: of the filter; 0 without one.
        n_closing_rounds: of the last rounds, in which every record has a place.
        is_exact: whether the noise is by an exact account, and not by Renyi's.
        has_line: whether a last release calibrates the scores (`hedgerow.methods.line`).
    """

    n_regular_rounds: int
    n_rounds: int
    sampling_threshold: int
    initial_noise_multiplier: float
    has_mean: bool
    order: int
    budget: float
    is_linear: bool = False
    n_closing_rounds: int = 0
    is_exact: bool = False
    has_line: bool = False

    @property
    def multipliers(self) -> tuple[float, float, float]:
        """Noise multipliers of the mean, of the linear model, and of the last release.

        That of the linear model is as if it were one release.

        0 without privacy. Entries of parts that the run does not have mean nothing.
        """
        line = (LINE_SHARE_OF_LINEAR if self.is_linear else LINE_SHARE) if self.has_line else 0.0
        mean = (MEAN_SHARE if self.has_mean else 0.0) if self.is_linear else 1 - line
        whole = self.initial_noise_multiplier
        shares = mean, 1 - mean - line, line
        found = [whole / math.sqrt(share) if share > 0 else whole for share in shares]
        return found[0], found[1], found[2]

    @property
    def sampling_rate(self) -> float:
        return self.sampling_threshold / SAMPLING_STEPS


@dataclass(frozen=True)
class _Promise:
    """The facts that decide the noise."""

    epsilon: float
    delta: float
    rate: float
    n_rounds: int
    initial_share: float
    is_general: bool
    accountant: str
    has_extra_rounds: bool

    def divergence(self, order: int, noise_multiplier: float) -> float:
        return (paper_divergence if self.is_general else compute_sampled_divergence)(order, self.rate, noise_multiplier)

    def initial(self, noise_multiplier: float) -> float:
        """Return the initial score's noise multiplier.

        It has the initial share of the divergence, as if sampled noise were z / q.
        """
        if not self.initial_share:
            return 0.0
        rest = (1 - self.initial_share) / self.initial_share
        return noise_multiplier / self.rate * math.sqrt(rest / self.n_rounds)

    def spent(self, noise_multiplier: float) -> tuple[float, int]:
        """Return the epsilon of the initial score and the regular rounds by Renyi accounting.

        Also return the order that gives it.
        """
        initial = self.initial(noise_multiplier)
        fixed = 1 / (2 * initial * initial) if initial else 0.0
        curve = [order * fixed + self.n_rounds * self.divergence(order, noise_multiplier) for order in ORDERS]
        return epsilon_of_curve(ORDERS, curve, self.delta)

    @property
    def is_exact(self) -> bool:
        """True if the rounds are composed without Renyi's loss."""
        if self.is_general or self.accountant == "rdp":
            return False
        return self.rate == 1 or (self.accountant == "pld" and not self.has_extra_rounds)

    def exactly_spent(self, noise_multiplier: float) -> float:
        """Return the epsilon of the initial score and the regular rounds by the plan's accountant."""
        rounds = SampledGaussianEvent(noise_multiplier, self.rate, _FINE_SIGMA, 1, 1, self.n_rounds)
        initial = self.initial(noise_multiplier)
        return get_accountant(self.accountant).epsilon(
            [rounds, *([GaussianEvent(initial)] if initial else [])], self.delta
        )


def s_gbdt_terms(plan: Plan) -> tuple[SGbdtTerms, float]:
    """Return the terms of a plan, and the noise multiplier of its rounds (0 without privacy).

    Raises:
        PrivacyError: when no noise keeps the promise.
    """
    section, privacy = SGbdt.of(plan), plan.privacy
    n_regular = value_or(plan.model.n_trees, DEFAULT_ROUNDS)
    threshold = max(1, math.floor(section.subsampling_ratio * SAMPLING_STEPS))
    share = section.initial_score_share
    n_rounds = n_regular + section.extra_rounds
    is_linear = section.initial_score == "linear"
    has_mean = share > 0 and (plan.label.kind.is_number or not is_linear)
    has_line = has_mean and asks_for_line(plan)
    if math.isinf(privacy.epsilon):
        return SGbdtTerms(n_regular, n_rounds, threshold, 0.0, has_mean, 0, 0.0, is_linear, has_line=has_line), 0.0
    is_general = section.bound == "general"
    rate = threshold / SAMPLING_STEPS
    promise = _Promise(
        privacy.epsilon, privacy.delta, rate, n_regular, share, is_general, privacy.accountant, section.extra_rounds > 0
    )
    noise_multiplier, order = _calibrate(promise)
    closing = min(section.closing_rounds, n_regular)

    def terms_of_noise(final: float) -> SGbdtTerms:
        initial, exact = promise.initial(final), promise.is_exact
        # Compute the budget without the margin, so that the regular rounds stay within it.
        budget = n_regular * promise.divergence(order, final / (1 + MARGIN) if exact else noise_multiplier)
        kept = (order, budget) if section.individual_filter else (0, 0.0)
        return SGbdtTerms(n_regular, n_rounds, threshold, initial, has_mean, *kept, is_linear, closing, exact, has_line)

    final = noise_multiplier * (1 + MARGIN)
    if promise.is_exact:
        # The price of the grid, which Renyi accounting does not have.
        judge, depth = get_accountant(privacy.accountant), _depth(plan)

        def keeps(final: float) -> bool:
            events = build_s_gbdt_schedule(plan, terms_of_noise(final), final, depth).events
            return judge.epsilon(events, privacy.delta) <= privacy.epsilon

        final = smallest(keeps, start=final, precision=MARGIN)
        if not keeps(final):
            raise PrivacyError(
                "calibration-failed", epsilon=privacy.epsilon, delta=privacy.delta, judge="the final rounding"
            )
    return terms_of_noise(final), final


def _depth(plan: Plan) -> int:
    return value_or(plan.model.max_depth, 2 if plan.label.kind.is_number else 4)


@lru_cache(maxsize=256)
def _calibrate(promise: _Promise) -> tuple[float, int]:
    """Return the least noise multiplier that keeps a promise, and the best order of the Renyi account.

    The multiplier is found from above, to a relative 1e-6 by Renyi accounting, and from there to 2e-4 by an exact
    accountant, which never needs more.
    """
    low, high = 0.0, 1.0
    while promise.spent(high)[0] > promise.epsilon:
        low, high = high, 2 * high
        if high > 1e9:
            raise PrivacyError(
                "calibration-failed", epsilon=promise.epsilon, delta=promise.delta,
                judge=f"the account of {promise.n_rounds} rounds of samples",
            )  # fmt: skip
    high = bisect(lambda noise: promise.spent(noise)[0] <= promise.epsilon, low, high, 1e-6)
    if promise.is_exact:
        # Renyi accounting asks for far less than twice the noise; if not, this still keeps the promise.
        precision = 1e-9 if promise.rate == 1 else 2e-4
        high = bisect(lambda noise: promise.exactly_spent(noise) <= promise.epsilon, high / 2, high, precision)
    return high, promise.spent(high)[1]


def round_filter(plan: Plan, terms: SGbdtTerms, noise_multiplier: float, number: int) -> FilterTerms | None:
    """Return the filter's charges and limit in round `number`, from 0 on; None without a filter.

    Before the closing rounds it keeps back what the largest gradient costs in all of them. So a record that has spent
    the rest has a place in every one of them: the regular rounds pay for as many, at that price.
    """
    if not terms.order:
        return None
    charges = _charges(plan, terms, noise_multiplier)
    if number >= terms.n_rounds - terms.n_closing_rounds:
        return charges
    return replace(charges, limit=max(0, FILTER_UNITS - terms.n_closing_rounds * int(charges.costs[-1])))


@lru_cache(maxsize=64)
def _charges(plan: Plan, terms: SGbdtTerms, noise_multiplier: float) -> FilterTerms:
    bound = paper_divergence if SGbdt.of(plan).bound == "general" else compute_sampled_divergence

    def divergence(multiplier: float) -> float:
        return bound(terms.order, terms.sampling_rate, multiplier)

    return filter_terms(s_gbdt_loss(plan), noise_multiplier, terms.order, terms.budget, divergence)


def start_statistics(plan: Plan) -> tuple[int, int, int]:
    """Return unit, clip and support of the initial score's release."""
    return label_statistics(SGbdt.of(plan).label_clip if plan.label.kind.is_number else 0.5)


def list_start_rounds(plan: Plan, terms: SGbdtTerms) -> list[AlikeRounds]:
    """Return the rounds before the first tree's."""
    mean, linear, _ = terms.multipliers
    first = [AlikeRounds(ask_labels(start_statistics(plan), mean, 1))] if terms.has_mean else []
    return first + (build_start(plan).rounds(linear) if terms.is_linear else [])


def build_s_gbdt_schedule(plan: Plan, terms: SGbdtTerms, noise_multiplier: float, depth: int) -> Schedule:
    """Return the rounds of a whole run."""
    loss, n_leaves = s_gbdt_loss(plan), 2**depth
    # The number of a round decides its charges to records, but not what all rounds may cost.
    no_costs = np.zeros(0, dtype=np.int64)
    of_round = SampledQuery(
        purpose=SampledLeafSums.purpose_of(0, "any"),
        length=2 * n_leaves,
        bound=loss.bound(),
        sensitivity_squared=loss.norm_squared,
        noise_multiplier=noise_multiplier,
        sampling_threshold=terms.sampling_threshold,
        filter=FilterTerms(terms.order, terms.budget, no_costs, 0) if terms.order else None,
    )
    last = list_line_rounds(plan, divide_line_noise(terms.multipliers[2])) if terms.has_line else []
    return Schedule((*list_start_rounds(plan, terms), AlikeRounds(of_round, terms.n_rounds), *last))


def build_start(plan: Plan) -> LinearStart:
    """Return the linear start of a plan."""
    section = SGbdt.of(plan)
    return LinearStart(plan, section.gradient_clip, section.linear_scale)


@dataclass(frozen=True, kw_only=True)
class SGbdtSettings(Settings):
    """Numbers in place of every "auto"; one tree a round.

    `n_trees` counts the trees of the initial score as well.

    Attributes:
        learning_rate: as in the plan.
        noise_ridge: leaf ridge per standard deviation of the gradient's noise, where leaves are shrunk.
        s_gbdt: rounds, samples, the filter and the initial score.
    """

    learning_rate: float
    noise_ridge: float
    s_gbdt: SGbdtTerms

    shown: ClassVar[tuple[str, ...]] = ("n_trees", "max_depth", "learning_rate")

    @property
    def bounded_by(self) -> str:
        terms = self.s_gbdt
        if terms.is_exact:
            return "" if terms.sampling_rate == 1 else f"samples of {terms.sampling_rate:.3g}, composed exactly"
        return f"samples of {terms.sampling_rate:.3g}, bounded as a whole by Renyi accounting"

    @property
    def n_grown_trees(self) -> int:
        return self.s_gbdt.n_rounds

    def loss(self, plan: Plan) -> Loss:
        """Return the loss of a leaf's support and its sum of clipped gradients."""
        return s_gbdt_loss(plan)

    def linear_loss(self, plan: Plan) -> Loss:
        return build_start(plan).loss

    def schedule(self, plan: Plan) -> Schedule:
        return build_s_gbdt_schedule(plan, self.s_gbdt, self.noise_multiplier, self.max_depth)


def resolve_s_gbdt(plan: Plan) -> SGbdtSettings:
    """Decide every "auto" of a plan and calibrate the noise.

    Raises:
        PrivacyError: when no noise keeps the promise.
    """
    model = plan.model
    terms, noise_multiplier = s_gbdt_terms(plan)
    return SGbdtSettings(
        n_trees=terms.n_rounds + (build_start(plan).n_trees if terms.is_linear else 0) + int(terms.has_mean),
        max_depth=_depth(plan),
        learning_rate=value_or(model.learning_rate, 0.1),
        noise_ridge=value_or(model.noise_ridge, 1.0),
        noise_multiplier=noise_multiplier,
        s_gbdt=terms,
    )
