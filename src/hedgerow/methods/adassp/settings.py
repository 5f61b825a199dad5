"""The settings of boosted AdaSSP: every "auto" decided from public numbers, and the noise of its two statistics."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from hedgerow.losses.tables import RECORD_NORM, Loss
from hedgerow.methods.adassp import Adassp
from hedgerow.methods.adassp.linear import LinearBasis, linear_loss
from hedgerow.methods.line import LINE_LENGTH, asks_for_line, line_demands, line_share
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import mu_of
from hedgerow.privacy.calibration import NoiseDemand, calibrate_sigmas
from hedgerow.privacy.events import DiscreteGaussianEvent, Event, UnnoisedEvent
from hedgerow.privacy.ledger import read_prepared_events
from hedgerow.training.settings import ROUNDING, Settings, decided
from hedgerow.trees.binning import build_grid

GRAM_SHIFT = 7
"""Products of two entries keep 2**7 times the precision of their sum's noise at a multiplier of 1 and more."""
MAX_ROUNDS, MAX_ROUNDS_OF_NUMBERS = 10, 2
SIGNAL_PER_ROUND = 16.0


@dataclass(frozen=True, kw_only=True)
class AdasspSettings(Settings):
    """Numbers in place of every "auto"; the model has one tree per feature, `batch_size` of them per round.

    Attributes:
        loss_kind: "squared", "logistic" or "hinge".
        rounds: T.
        row_norm: largest norm of a row.
        gram_multiplier: noise multiplier of X^T X; 0 when epsilon is infinite.
        noise_multiplier: of X^T g in each round.
        shrinkage: see [adassp].
        line_share: of mu², for the last release of numbers; 0 without one.
        line_multipliers: the noise multipliers of its two parts.
    """

    loss_kind: str
    rounds: int
    row_norm: float
    gram_multiplier: float
    shrinkage: float
    line_share: float = 0.0
    line_multipliers: tuple[float, float] = (0.0, 0.0)

    shown: ClassVar[tuple[str, ...]] = ("loss_kind", "rounds", "row_norm", "gram_multiplier", "learning_rate")
    step: ClassVar[str] = "round"

    def loss(self, plan: Plan) -> Loss:
        """See `Settings.loss`: one statistic, the negative gradient."""
        return linear_loss(self.loss_kind, plan.label.kind.is_number, Adassp.of(plan).gradient_clip)

    @property
    def has_line(self) -> bool:
        """Whether a last release calibrates the scores of numbers (`hedgerow.methods.line`)."""
        return self.line_share > 0

    def largest_length(self, plan: Plan) -> int:
        """See `Settings.largest_length`: X^T X."""
        return max(self.gram_length(plan), LINE_LENGTH if self.has_line else 0)

    def gram_length(self, plan: Plan) -> int:
        """Entries of X^T X's upper triangle."""
        p = n_columns(plan)
        return p * (p + 1) // 2

    def n_exchanges(self, plan: Plan) -> int:
        return 1 + self.rounds + 2 * self.has_line

    def n_released(self, plan: Plan) -> int:
        """See `Settings.n_released`: X^T X, X^T g of every round, and the last release."""
        last = 1 + LINE_LENGTH if self.has_line else 0
        return self.gram_length(plan) + self.rounds * n_columns(plan) + last

    def planned_releases(self, plan: Plan) -> list[Event]:
        if self.noise_multiplier == 0:
            return [UnnoisedEvent()]
        releases: list[Event] = []
        multipliers = self.gram_multiplier, self.noise_multiplier, *(self.line_multipliers if self.has_line else ())
        for multiplier, demand in zip(multipliers, _demands(plan, self), strict=True):
            sigma = math.floor(multiplier * math.sqrt(demand.sensitivity_squared))
            event = DiscreteGaussianEvent(multiplier * (1 - ROUNDING), sigma, demand.length, demand.count)
            releases.append(event)
        return releases


def n_columns(plan: Plan) -> int:
    """p: the constant, one column per numeric feature, and one per category and for all else of a categorical one."""
    return 1 + sum(len(feature.categories) + 1 if feature.is_categorical else 1 for feature in plan.features)


def gram_sensitivity_squared(basis: LinearBasis, rows_per_unit: int) -> int:
    """Squared sensitivity of X^T X's upper triangle, rounded up: see `GramMatrix`."""
    largest = basis.norm_squared * (basis.norm_squared + basis.largest_entry**2)
    return -(-largest * rows_per_unit**2 // (2 << 2 * GRAM_SHIFT))


def cross_sensitivity_squared(basis: LinearBasis, gradient_squared: int, rows_per_unit: int) -> int:
    """Squared sensitivity of X^T g, rounded up: see `CrossProducts`; products are shortened by the bits of a norm."""
    return -(-basis.norm_squared * gradient_squared * rows_per_unit**2 // RECORD_NORM**2)


def resolve_adassp(plan: Plan) -> AdasspSettings:
    """Decide every "auto" of a plan with `algorithm = "adassp"` and calibrate its noise.

    Raises:
        PrivacyError: when no noise keeps the promise.
    """
    own, privacy, m = Adassp.of(plan), plan.privacy, len(plan.features)
    regression = plan.label.kind.is_number
    default_loss = "squared" if regression else "logistic"
    loss_kind = default_loss if own.loss == "auto" else own.loss
    unlimited = math.isinf(privacy.epsilon)
    # More rounds where there is more signal; with the squared loss there is little to gain from a third one.
    rounds = MAX_ROUNDS
    if not unlimited:
        signal = privacy.n_records * mu_of(privacy.epsilon, privacy.delta) / (SIGNAL_PER_ROUND * (m + 1))
        rounds = max(1, min(MAX_ROUNDS_OF_NUMBERS if regression else MAX_ROUNDS, int(signal)))
    shrinkage = float(regression) if own.shrinkage is None else own.shrinkage
    settings = AdasspSettings(
        n_trees=m,
        max_depth=8,
        batch_size=m,
        learning_rate=own.learning_rate,
        noise_ridge=(1.5 if shrinkage else 0.5) if own.ridge is None else own.ridge,
        loss_kind=loss_kind,
        rounds=decided(own.rounds, rounds),
        row_norm=min(decided(own.row_norm, math.inf), math.sqrt(m + 1)),
        gram_multiplier=0.0,
        shrinkage=shrinkage,
    )
    if unlimited:
        return settings
    if asks_for_line(plan):
        share = line_share(privacy.n_records * mu_of(privacy.epsilon, privacy.delta))
        settings = replace(settings, line_share=share)
    return _calibrate(plan, settings)


def _calibrate(plan: Plan, settings: AdasspSettings) -> AdasspSettings:
    demands = _demands(plan, settings)
    privacy = plan.privacy
    spent = read_prepared_events(plan)
    sigmas = calibrate_sigmas(privacy.epsilon, privacy.delta, demands, privacy.accountant, spent)
    gram, cross, *line = (
        sigma / math.sqrt(demand.sensitivity_squared) * (1 + 2 * ROUNDING)
        for sigma, demand in zip(sigmas, demands, strict=True)
    )
    last = (line[0], line[1]) if line else (0.0, 0.0)
    return replace(settings, gram_multiplier=gram, noise_multiplier=cross, line_multipliers=last)


def _demands(plan: Plan, settings: AdasspSettings) -> tuple[NoiseDemand, ...]:
    """X^T X once and X^T g in every round, each at its smallest sensitivity, so on its coarsest grid; the last one."""
    basis = LinearBasis.of(plan, build_grid(plan), settings.row_norm, Adassp.of(plan).scale)
    rows, left = plan.privacy.rows_per_unit, 1 - settings.line_share
    share = Adassp.of(plan).gram_share * left
    smallest = settings.loss(plan).sensitivity_squared(0)
    return (
        NoiseDemand(gram_sensitivity_squared(basis, rows), settings.gram_length(plan), weight=share),
        NoiseDemand(
            cross_sensitivity_squared(basis, smallest, rows),
            basis.rows.n_columns,
            count=settings.rounds,
            weight=(left - share) / settings.rounds,
        ),
        *(line_demands(plan, settings.line_share) if settings.has_line else []),
    )
