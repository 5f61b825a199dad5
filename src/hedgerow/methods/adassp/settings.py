# SPDX-License-Identifier: Apache-2.0
"""The settings of boosted AdaSSP: every "auto" decided, and the noise of its two statistics."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from hedgerow.losses.tables import Loss
from hedgerow.methods.adassp import Adassp
from hedgerow.methods.line import asks_for_line, choose_line_share, divide_line_share, list_line_rounds
from hedgerow.methods.linear import CrossProducts, LinearBasis, ask_gram, linear_loss, list_cross_rounds
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import mu_of
from hedgerow.privacy.calibration import calibrate_sigmas, multipliers_of
from hedgerow.privacy.ledger import read_prepared_events
from hedgerow.privacy.schedule import AlikeRounds, Schedule
from hedgerow.training.settings import Settings, value_or
from hedgerow.trees.binning import build_grid

MAX_ROUNDS, MAX_ROUNDS_OF_NUMBERS = 10, 2
SIGNAL_PER_ROUND = 16.0


@dataclass(frozen=True, kw_only=True)
class AdasspSettings(Settings):
    """Numbers in place of every "auto"; the model has one tree per feature.

    Attributes:
        learning_rate: on the step of each round.
        noise_ridge: what the least eigenvalue of X^T X is lifted to, per standard deviation of its noise.
        loss_kind: "squared", "logistic" or "hinge".
        rounds: T.
        row_norm: largest norm of a row.
        gram_multiplier: noise multiplier of X^T X; 0 when epsilon is infinite.
        noise_multiplier: of X^T g in each round.
        shrinkage: see [adassp].
        calibration_share: of mu², for the last release of numbers; 0 without one.
        line_multipliers: the noise multipliers of its two parts.
    """

    learning_rate: float
    noise_ridge: float
    loss_kind: str
    rounds: int
    row_norm: float
    gram_multiplier: float
    shrinkage: float
    calibration_share: float = 0.0
    line_multipliers: tuple[float, float] = (0.0, 0.0)

    shown: ClassVar[tuple[str, ...]] = ("loss_kind", "rounds", "row_norm", "gram_multiplier", "learning_rate")
    step: ClassVar[str] = "round"

    def loss(self, plan: Plan) -> Loss:
        """Return the loss of one statistic, the negative gradient."""
        return linear_loss(self.loss_kind, plan.label.kind.is_number, Adassp.of(plan).gradient_clip)

    @property
    def has_line(self) -> bool:
        """True if a last release calibrates the scores of numbers (`hedgerow.methods.line`)."""
        return self.calibration_share > 0

    def schedule(self, plan: Plan) -> Schedule:
        return Schedule(tuple(_alike_rounds(plan, self)))


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
        learning_rate=own.learning_rate,
        noise_ridge=(1.5 if shrinkage else 0.5) if own.ridge is None else own.ridge,
        loss_kind=loss_kind,
        rounds=value_or(own.rounds, rounds),
        row_norm=min(value_or(own.row_norm, math.inf), math.sqrt(m + 1)),
        gram_multiplier=0.0,
        shrinkage=shrinkage,
    )
    if unlimited:
        return settings
    if asks_for_line(plan):
        share = choose_line_share(privacy.n_records * mu_of(privacy.epsilon, privacy.delta))
        settings = replace(settings, calibration_share=share)
    return _calibrate(plan, settings)


def _calibrate(plan: Plan, settings: AdasspSettings) -> AdasspSettings:
    privacy, left = plan.privacy, 1 - settings.calibration_share
    share = Adassp.of(plan).gram_share * left
    weights = (
        share,
        (left - share) / settings.rounds,
        *(divide_line_share(settings.calibration_share) if settings.has_line else ()),
    )
    demands = [alike.demand(weight) for alike, weight in zip(_alike_rounds(plan, settings), weights, strict=True)]
    spent = read_prepared_events(plan)
    sigmas = calibrate_sigmas(privacy.epsilon, privacy.delta, demands, privacy.accountant, spent)
    gram, cross, *line = multipliers_of(sigmas, demands)
    last = (line[0], line[1]) if line else (0.0, 0.0)
    return replace(settings, gram_multiplier=gram, noise_multiplier=cross, line_multipliers=last)


def _alike_rounds(plan: Plan, settings: AdasspSettings) -> list[AlikeRounds]:
    """Return the rounds: X^T X once, X^T g in every round, and the last release."""
    basis = LinearBasis.of(plan, build_grid(plan), settings.row_norm, Adassp.of(plan).scale)
    rows = plan.privacy.rows_per_unit
    return [
        AlikeRounds(ask_gram(0, "any", basis, settings.gram_multiplier, rows)),
        list_cross_rounds(CrossProducts, basis, settings.loss(plan), settings.noise_multiplier, rows, settings.rounds),
        *(list_line_rounds(plan, settings.line_multipliers) if settings.has_line else []),
    ]
