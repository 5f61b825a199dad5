"""The settings of S-GBDT and its linear start: noise, filter and initial score, from public quantities only.

Every "auto" is decided from the parameters that its authors found best (docs/s-gbdt.md). A run is bounded by one Renyi
account: at every order a, the initial score costs a / (2 z0²) and each regular round the divergence of a sampled
Gaussian. The noise is the least that keeps the promise at the best order; the filter's budget is what the regular
rounds cost there, so extra rounds add nothing (arXiv 2309.12041, algorithms 7 and 8).

The linear start is an extra of ours, in place of the constant initial score: a linear model for the trees to begin
with. Numeric features that go together leave X^T X with a few large eigenvalues and many small ones, and noise that
suits the large ones buries the small. So X^T X is asked for twice, and the second time of rows that the first release
has made round:

    A = X^T X + noise;    z = sqrt(A_00) L^-1 x   with   L L^T = A + lambda I, shortened to norm 1
    B = Z^T Z + noise
    three times:    coefficients += step (B + lambda I)^-1 (Z^T g + noise)

Preconditioning by an earlier private release is due to Kamath, Li, Singhal and Ullman 2019 (arXiv 1805.00216), the
rounds are those of boosted AdaSSP. Every row has norm 1 at most, whatever the releases were, so the sensitivities do
not depend on them. Categories are left to the trees.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from hedgerow.errors import PrivacyError
from hedgerow.losses.tables import RECORD_NORM, Loss
from hedgerow.methods.adassp.linear import CrossProducts, LinearBasis, Matrix, linear_loss, lower_inverse, solve
from hedgerow.methods.adassp.program import (
    cross_question,
    gram_question,
    gram_sigma,
    real_cross,
    real_gram,
    shifted_factor,
)
from hedgerow.methods.adassp.settings import cross_sensitivity_squared, gram_sensitivity_squared
from hedgerow.methods.s_gbdt import SGbdt
from hedgerow.methods.s_gbdt.trees import filter_terms, s_gbdt_loss
from hedgerow.plan.plan import Plan
from hedgerow.privacy.calibration import integer_sigma
from hedgerow.privacy.events import (
    DiscreteGaussianEvent,
    Event,
    FilteredGaussianEvent,
    SampledGaussianEvent,
    UnnoisedEvent,
)
from hedgerow.privacy.rdp import ORDERS, epsilon_of_curve, paper_divergence, sampled_divergence
from hedgerow.protocol.queries import FILTER_UNITS, SAMPLING_STEPS, FilterTerms, FittedTrees, IntVector, Query
from hedgerow.training.settings import Settings, decided
from hedgerow.training.steps import Run, grown_score_bound
from hedgerow.trees.binning import build_grid

DEFAULT_ROUNDS = 100
MARGIN = 1e-7
"""Relative noise beyond what the account asks for: it pays for rounding, and for noise in several shares."""
_ROUNDING = 1e-12
LABEL_NORM = 2**14
ROUNDS = 3
SHARES = (3 / 7, 1 / 7, 1 / 7)
"""Of the start's divergence: for A, for B, and for each of the rounds."""
N_EXCHANGES = 2 + ROUNDS
ROW_NORM = 1.0
FIRST_RIDGE, SECOND_RIDGE = 0.5, 1.5
"""What least eigenvalues are lifted to, in sqrt(p) standard deviations of the noise."""
CLASS_STEP = 2.0
"""The logistic loss has at most a quarter of the curvature that X^T X stands for; half of that is taken back."""

Start = Generator[Query, IntVector, tuple[FittedTrees, FittedTrees]]


@dataclass(frozen=True)
class SGbdtTerms:
    """What S-GBDT's rounds ask for.

    Attributes:
        n_regular_rounds, n_rounds: without and with the extra ones.
        sampling_threshold: see `SampledLeafSums`.
        initial_noise_multiplier: of the initial score's release, or of a linear start as if it were one release; 0
            without one, or without privacy.
        has_initial_score: whether there is one.
        is_linear: whether it is a linear model.
        order, budget: of the filter; 0 without one.
        n_closing_rounds: of the last rounds, in which every record has a place.
    """

    n_regular_rounds: int
    n_rounds: int
    sampling_threshold: int
    initial_noise_multiplier: float
    has_initial_score: bool
    order: int
    budget: float
    is_linear: bool = False
    n_closing_rounds: int = 0

    @property
    def n_start_exchanges(self) -> int:
        """Exchanges before the first round."""
        return N_EXCHANGES if self.is_linear else int(self.has_initial_score)

    @property
    def sampling_rate(self) -> float:
        return self.sampling_threshold / SAMPLING_STEPS


@dataclass(frozen=True)
class _Promise:
    """What decides the noise."""

    epsilon: float
    delta: float
    rate: float
    n_rounds: int
    initial_share: float
    is_general: bool

    def divergence(self, order: int, noise_multiplier: float) -> float:
        return (paper_divergence if self.is_general else sampled_divergence)(order, self.rate, noise_multiplier)

    def initial(self, noise_multiplier: float) -> float:
        """The initial score's noise multiplier: its share of the divergence, as if sampled noise were z / q."""
        if not self.initial_share:
            return 0.0
        rest = (1 - self.initial_share) / self.initial_share
        return noise_multiplier / self.rate * math.sqrt(rest / self.n_rounds)

    def spent(self, noise_multiplier: float) -> tuple[float, int]:
        """Epsilon of the initial score and the regular rounds, and the order that gives it."""
        initial = self.initial(noise_multiplier)
        fixed = 1 / (2 * initial**2) if initial else 0.0
        curve = [order * fixed + self.n_rounds * self.divergence(order, noise_multiplier) for order in ORDERS]
        return epsilon_of_curve(ORDERS, curve, self.delta)


def s_gbdt_terms(plan: Plan) -> tuple[SGbdtTerms, float]:
    """The terms of a plan, and the noise multiplier of its rounds (0 without privacy).

    Raises:
        PrivacyError: when no noise keeps the promise.
    """
    section, privacy = SGbdt.of(plan), plan.privacy
    n_regular = decided(plan.model.n_trees, DEFAULT_ROUNDS)
    threshold = max(1, math.floor(section.subsampling_ratio * SAMPLING_STEPS))
    share = section.initial_score_share
    n_rounds = n_regular + section.extra_rounds
    is_linear = section.initial_score == "linear"
    if math.isinf(privacy.epsilon):
        return SGbdtTerms(n_regular, n_rounds, threshold, 0.0, share > 0, 0, 0.0, is_linear), 0.0
    is_general = section.bound == "general"
    promise = _Promise(privacy.epsilon, privacy.delta, threshold / SAMPLING_STEPS, n_regular, share, is_general)
    noise_multiplier, order = _calibrated(promise)
    budget = n_regular * promise.divergence(order, noise_multiplier)
    final = noise_multiplier * (1 + MARGIN)
    kept = (order, budget) if section.individual_filter else (0, 0.0)
    closing = min(section.closing_rounds, n_regular)
    initial = promise.initial(final)
    return SGbdtTerms(n_regular, n_rounds, threshold, initial, share > 0, *kept, is_linear, closing), final


@lru_cache(maxsize=256)
def _calibrated(promise: _Promise) -> tuple[float, int]:
    """The least noise multiplier that keeps a promise, to a relative 1e-6 from above, and its best order."""
    low, high = 0.0, 1.0
    while promise.spent(high)[0] > promise.epsilon:
        low, high = high, 2 * high
        if high > 1e9:
            raise PrivacyError(
                "calibration-failed-rounds", epsilon=promise.epsilon, delta=promise.delta, n_rounds=promise.n_rounds
            )
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if promise.spent(middle)[0] <= promise.epsilon else (middle, high)
    return high, promise.spent(high)[1]


def round_filter(plan: Plan, terms: SGbdtTerms, noise_multiplier: float, number: int) -> FilterTerms | None:
    """What the filter charges in round `number`, from 0 on, and what it keeps back then; None without a filter.

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
    bound = paper_divergence if SGbdt.of(plan).bound == "general" else sampled_divergence

    def divergence(multiplier: float) -> float:
        return bound(terms.order, terms.sampling_rate, multiplier)

    return filter_terms(s_gbdt_loss(plan), noise_multiplier, terms.order, terms.budget, divergence)


def label_statistics(plan: Plan) -> tuple[int, int, int]:
    """Unit, clip and support of the initial score's release, in integers of which a record's norm is below 2**14."""
    clip = SGbdt.of(plan).label_clip if plan.label.is_numeric else 0.5
    unit = math.floor(LABEL_NORM / math.hypot(clip, clip / 2))
    return unit, math.floor(clip * unit), math.floor(clip / 2 * unit)


def s_gbdt_releases(plan: Plan, terms: SGbdtTerms, noise_multiplier: float, depth: int) -> list[Event]:
    """What a whole run releases."""
    multiplier = noise_multiplier * (1 - _ROUNDING)
    sigma = integer_sigma(multiplier, s_gbdt_loss(plan).norm_squared)
    noise = (multiplier, terms.sampling_rate, sigma, 1, 2 * 2**depth, terms.n_rounds)
    rounds: Event = SampledGaussianEvent(*noise)
    if terms.order:
        rounds = FilteredGaussianEvent(*noise, order=terms.order, budget=terms.budget)
    if not terms.has_initial_score:
        return [rounds]
    if terms.is_linear:
        return [*start_releases(plan, terms.initial_noise_multiplier, _ROUNDING), rounds]
    _, clip, support = label_statistics(plan)
    sigma = integer_sigma(terms.initial_noise_multiplier, clip**2 + support**2)
    return [DiscreteGaussianEvent(terms.initial_noise_multiplier * (1 - _ROUNDING), sigma, 2), rounds]


def numeric_features(plan: Plan) -> int:
    """How many features the linear start has."""
    return sum(not feature.is_categorical for feature in plan.features)


def n_start_trees(plan: Plan) -> int:
    """What nodes add to their scores: one tree per feature and round."""
    return ROUNDS * len(plan.features)


def start_loss(plan: Plan) -> Loss:
    """The loss of the linear start: the logistic one, or squares with gradients clipped to g*, one integer at least."""
    clip = min(max(SGbdt.of(plan).gradient_clip, 1 / RECORD_NORM), 1.0)
    return linear_loss("logistic", plan.label.is_numeric, clip)


def start_multipliers(whole: float) -> tuple[float, float, float]:
    """Noise multipliers of A, B and each round, when all together cost as much as one release at `whole`."""
    first, second, each = (whole / math.sqrt(share) for share in SHARES)
    return first, second, each


def start_length(plan: Plan) -> int:
    """The longest vector of the start."""
    p = 1 + numeric_features(plan)
    return p * (p + 1) // 2


def start_releases(plan: Plan, whole: float, rounding: float) -> list[Event]:
    """What the start releases at its smallest sensitivities."""
    basis, rows = _basis(plan), plan.privacy.rows_per_unit
    round_rows = basis.transformed(np.eye(basis.rows.n_columns))
    smallest = cross_sensitivity_squared(round_rows, start_loss(plan).sensitivity_squared(0), rows)
    planned = (
        (gram_sensitivity_squared(basis, rows), start_length(plan), 1),
        (gram_sensitivity_squared(round_rows, rows), start_length(plan), 1),
        (smallest, basis.rows.n_columns, ROUNDS),
    )
    return [
        DiscreteGaussianEvent(z * (1 - rounding), max(1, math.floor(z * math.sqrt(squared))), length, count)
        for z, (squared, length, count) in zip(start_multipliers(whole), planned, strict=True)
    ]


def linear_start(run: Run, whole: float, largest: int) -> Start:
    """The start as a part of a program.

    Args:
        run: of S-GBDT.
        whole: the start's noise multiplier.
        largest: the largest magnitude of a tree's value.

    Returns:
        All its trees in one batch, one per feature; and the last update, which nodes have not taken in yet.
    """
    loss, rows = start_loss(run.plan), run.plan.privacy.rows_per_unit
    noises = start_multipliers(whole) if whole else (0.0, 0.0, 0.0)
    basis = _basis(run.plan)
    p = basis.rows.n_columns
    query = gram_question(0, "linear start, X^T X", basis, noises[0], rows)
    gram = real_gram((yield query), basis)
    sigma = gram_sigma(run.sigma(query), basis)
    factor = shifted_factor(gram, FIRST_RIDGE * sigma * math.sqrt(p), sigma)
    basis = basis.transformed(_rounding_matrix(gram, factor))
    query = gram_question(1, "linear start, Z^T Z", basis, noises[1], rows)
    gram = real_gram((yield query), basis)
    sigma = gram_sigma(run.sigma(query), basis)
    factor = shifted_factor(gram, SECOND_RIDGE * sigma * math.sqrt(p), sigma)
    step = 1.0 if run.plan.label.is_numeric else CLASS_STEP
    total = np.zeros((len(run.plan.features), basis.trees.n_leaves, 1), dtype=np.int64)
    update: FittedTrees | None = None
    score_bound = 0
    for number in range(ROUNDS):
        purpose = CrossProducts.purpose_of(2 + number, f"linear start, Z^T g, round {number}")
        before = max(0, number - 1) * basis.trees.n_trees
        release = yield cross_question(purpose, basis, loss, (noises[2], rows), (update, before), score_bound)
        values = basis.values(step * solve(factor, real_cross(release, basis)), largest)
        update = FittedTrees(basis.trees, values)
        score_bound = grown_score_bound(score_bound, update)
        total += values
    if update is None:
        raise ValueError("a linear start has rounds")
    return FittedTrees(basis.trees, total.astype(np.int32)), update


def _rounding_matrix(gram: Matrix, factor: Matrix) -> Matrix:
    """What makes rows round, and their mean squared norm about 1: sqrt(A_00 / d) L^-1, d as in the module's text."""
    inverse = lower_inverse(factor)
    ridge = float(factor[0, 0]) ** 2 - float(gram[0, 0])
    resolved = len(gram) - ridge * math.fsum((inverse * inverse).reshape(-1).tolist())
    return math.sqrt(max(1.0, float(gram[0, 0])) / max(1.0, resolved)) * inverse


def _basis(plan: Plan) -> LinearBasis:
    return LinearBasis.of(plan, build_grid(plan), ROW_NORM, SGbdt.of(plan).linear_scale, numeric_only=True)


@dataclass(frozen=True, kw_only=True)
class SGbdtSettings(Settings):
    """Numbers in place of every "auto"; one tree a round.

    Attributes:
        s_gbdt: rounds, samples, the filter and the initial score.
    """

    s_gbdt: SGbdtTerms

    @property
    def bounded_by(self) -> str:
        return f"samples of {self.s_gbdt.sampling_rate:.3g}, bounded as a whole by Renyi accounting"

    def loss(self, plan: Plan) -> Loss:
        """See `Settings.loss`: a leaf's support and its sum of clipped gradients."""
        return s_gbdt_loss(plan)

    def n_exchanges(self, plan: Plan) -> int:
        return self.s_gbdt.n_start_exchanges + self.s_gbdt.n_rounds

    def linear_loss(self, plan: Plan) -> Loss:
        return start_loss(plan)

    def largest_length(self, plan: Plan) -> int:
        """See `Settings.largest_length`: of a leaf, two statistics, or of a linear start's X^T X."""
        length: int = 2 * 2**self.max_depth
        return max(length, start_length(plan) if self.s_gbdt.is_linear else 0)

    def n_released(self, plan: Plan) -> int:
        """See `Settings.n_released`: the start, then two statistics of every leaf."""
        start = self.s_gbdt.n_start_exchanges * (start_length(plan) if self.s_gbdt.is_linear else 2)
        n_leaves: int = 2**self.max_depth
        return start + self.s_gbdt.n_rounds * 2 * n_leaves

    def planned_releases(self, plan: Plan) -> list[Event]:
        if self.noise_multiplier == 0:
            return [UnnoisedEvent()]
        return s_gbdt_releases(plan, self.s_gbdt, self.noise_multiplier, self.max_depth)


def resolve_s_gbdt(plan: Plan) -> SGbdtSettings:
    """Decide every "auto" and calibrate the noise; PrivacyError when no noise keeps the promise."""
    model = plan.model
    terms, noise_multiplier = s_gbdt_terms(plan)
    return SGbdtSettings(
        n_trees=terms.n_rounds + (n_start_trees(plan) if terms.is_linear else int(terms.has_initial_score)),
        max_depth=decided(model.max_depth, 2 if plan.label.is_numeric else 4),
        learning_rate=decided(model.learning_rate, 0.1),
        noise_ridge=decided(model.noise_ridge, 1.0),
        noise_multiplier=noise_multiplier,
        s_gbdt=terms,
    )
