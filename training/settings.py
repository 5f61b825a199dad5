"""The settings of a run: a plan whose every "auto" has been decided, by a rule on public quantities only.

The rule and the evidence for it are in docs/defaults.md. It may look at epsilon, delta, the declared number of records
and the schema; it never looks at data or at a released number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hedgerow.privacy.calibration import calibrate_noise_multiplier
from hedgerow.privacy.gdp import mu_of
from hedgerow.protocol.plan import Plan
from hedgerow.training.grid_price import demands_of, pay_for_the_grid
from hedgerow.trees.losses import Loss, build_loss

MIN_TREES, MAX_TREES = 50, 200
CALIBRATION_MARGIN = 1e-7
"""Relative extra noise that pays for rounding and for the integer grid; see docs/proofs/discrete-gaussian.md."""


@dataclass(frozen=True)
class Settings:
    """Numbers in place of every "auto".

    Attributes:
        n_trees, max_depth, batch_size, learning_rate: as in the plan.
        interaction: "cyclical", "random" or "adaptive".
        interaction_size: features per tree.
        joint_clip: largest norm of (g, c h) of a record; None for the loss's own.
        hessian_scale: c; None for the loss's own.
        noise_multiplier: per tree; 0 when epsilon is infinite.
    """

    n_trees: int
    max_depth: int
    batch_size: int
    learning_rate: float
    interaction: str
    interaction_size: int
    joint_clip: float | None
    hessian_scale: float | None
    noise_multiplier: float

    def loss(self, plan: Plan) -> Loss:
        """The loss with these settings."""
        return build_loss(plan, self.joint_clip, self.hessian_scale)


def resolve(plan: Plan) -> Settings:
    """Decide every "auto" of a plan and calibrate its noise.

    Raises:
        PrivacyError: when no noise keeps the promise.
    """
    model, privacy = plan.model, plan.privacy
    m = len(plan.features)
    unlimited = math.isinf(privacy.epsilon)
    mu = math.inf if unlimited else mu_of(privacy.epsilon, privacy.delta)
    n_trees = _number(model.n_trees, MAX_TREES if unlimited else _default_trees(mu, privacy.n_records, m))
    size = {"auto": 1, "all": m}.get(str(model.interaction_size), model.interaction_size)
    averaging = model.weight_update == "averaging"
    batch_size = n_trees if model.batch_size == "all" or averaging else int(model.batch_size)
    settings = Settings(
        n_trees=n_trees,
        max_depth=_number(model.max_depth, 4),
        batch_size=min(batch_size, n_trees),
        learning_rate=0.3 if isinstance(model.learning_rate, str) else model.learning_rate,
        interaction="cyclical" if model.interaction == "auto" else model.interaction,
        interaction_size=int(size),
        joint_clip=_joint_clip(plan),
        hessian_scale=None if isinstance(model.hessian_scale, str) else model.hessian_scale,
        noise_multiplier=0.0 if unlimited else _noise_multiplier(plan, n_trees),
    )
    if unlimited:
        return settings
    demands = demands_of(plan, settings.loss(plan), n_trees, settings.max_depth, settings.batch_size)
    return replace(settings, noise_multiplier=pay_for_the_grid(plan, demands, settings.noise_multiplier))


def _number(value: int | str, default: int) -> int:
    return default if isinstance(value, str) else value


def _default_trees(mu: float, n_records: int, n_features: int) -> int:
    return 100


def _joint_clip(plan: Plan) -> float | None:
    choice = plan.model.joint_clip
    if choice == "none":
        return None
    if not isinstance(choice, str):
        return choice
    if plan.label.type == "binary" and plan.model.weight_update == "newton":
        return 0.25
    return None


def _noise_multiplier(plan: Plan, n_trees: int) -> float:
    """Noise per unit of sensitivity of one tree, such that all releases of the run together keep the promise."""
    weight = float(n_trees)
    if plan.model.split_candidates == "iterative_hessian" and plan.model.weight_update != "averaging":
        weight += plan.model.candidate_rounds * len(plan.features)
    privacy = plan.privacy
    exact = calibrate_noise_multiplier(privacy.epsilon, privacy.delta, weight, privacy.accountant)
    return exact * (1 + CALIBRATION_MARGIN)
