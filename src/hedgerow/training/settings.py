# SPDX-License-Identifier: Apache-2.0
"""The settings of a run: every "auto" of its plan decided, and what follows for its releases.

Each method has its own rule, on public quantities only; that of boosted trees is in `hedgerow.methods.boosting`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from hedgerow.losses.registry import build_loss
from hedgerow.losses.tables import Loss
from hedgerow.plan.plan import BY_HISTOGRAMS, Plan
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.calibration import calibrate_noise_multiplier
from hedgerow.privacy.events import UnnoisedEvent
from hedgerow.privacy.ledger import read_prepared_events
from hedgerow.privacy.schedule import Schedule
from hedgerow.trees.binning import build_grid

Number = TypeVar("Number", int, float, float | None)

CALIBRATION_MARGIN = 1e-7
"""Least relative extra noise, to pay for rounding and for the integer grid; see docs/proofs/discrete-gaussian.md."""


@dataclass(frozen=True, kw_only=True)
class Settings(ABC):
    """Numbers in place of every "auto" of a plan; each method adds its own in a subclass.

    Attributes:
        n_trees: trees of the model, without `n_other_trees`.
        max_depth: levels of splits, at most.
        noise_multiplier: of each `step`; 0 when epsilon is infinite.
    """

    n_trees: int
    max_depth: int
    noise_multiplier: float = 0.0

    shown: ClassVar[tuple[str, ...]] = ("n_trees", "max_depth")
    """The settings that a person is shown, in this order."""
    step: ClassVar[str] = "tree"
    """The unit that the noise multiplier is for."""

    @abstractmethod
    def schedule(self, plan: Plan) -> Schedule:
        """Return the most that a run asks for, with its cost at this noise."""

    def loss(self, plan: Plan) -> Loss:
        """Return the loss with these settings: the plan's, unless the method has its own."""
        return build_loss(plan)

    def linear_loss(self, plan: Plan) -> Loss:
        """Return the loss of one statistic for `CrossProducts`; programs that never ask need none."""
        return self.loss(plan)

    def n_other_trees(self, plan: Plan) -> int:
        """Return the number of trees besides `n_trees`: of a start, and of a last release."""
        return 0

    @property
    def n_grown_trees(self) -> int:
        """The number of trees whose leaves are asked for."""
        return self.n_trees

    @property
    def leaves_of_tree(self) -> int:
        """The most parts that a release divides records into for a tree; of several releases, the first."""
        n_leaves: int = 2**self.max_depth
        return n_leaves

    @property
    def bounded_by(self) -> str:
        """Words for the bound on all releases together; empty for mu of Gaussian differential privacy."""
        return ""

    def show(self, name: str) -> object:
        """Return a setting for a person: its value, or a text where that says more."""
        return getattr(self, name)


def pays_for_candidates(plan: Plan) -> bool:
    """Return whether a run asks for histograms of Hessians only to find candidates.

    Trees by histograms have them anyway.
    """
    model = plan.model
    asks = model.split_candidates in BY_HISTOGRAMS and model.weight_update != "averaging"
    return asks and model.split_method != "hist"


def value_or(value: Number | str, default: Number) -> Number:
    """Return a plan's value, or the default for "auto"."""
    return default if isinstance(value, str) else value


def calibrate_noise(plan: Plan, settings: Settings, weight: float) -> float:
    """Return the noise per unit of sensitivity of one tree that keeps the promise for all releases.

    Args:
        weight: the squared sensitivities of all releases together, where one tree's noise multiplier is 1 for each.

    Raises:
        PrivacyError: when no noise keeps it.
    """
    privacy, spent = plan.privacy, read_prepared_events(plan)
    exact = calibrate_noise_multiplier(privacy.epsilon, privacy.delta, weight, privacy.accountant, spent)
    judge = get_accountant(privacy.accountant)

    def keeps(margin: float) -> bool:
        releases = replace(settings, noise_multiplier=exact * (1 + margin)).schedule(plan).events
        # Exact counts, for candidates at quantiles, have no noise to calibrate.
        noisy = [event for event in releases if not isinstance(event, UnnoisedEvent)]
        return judge.epsilon([*spent, *noisy], privacy.delta) <= privacy.epsilon

    # A large epsilon or a small delta leaves so little noise that the grid costs more than the least margin.
    low, margin = 0.0, CALIBRATION_MARGIN
    while not keeps(margin):
        low, margin = margin, 2 * margin
    while low > 0 and margin - low > 0.01 * low:
        middle = (low + margin) / 2
        low, margin = (low, middle) if keeps(middle) else (middle, margin)
    return exact * (1 + margin)


def bound_bins(plan: Plan) -> list[int]:
    """Return the most bins that each feature's histogram has, the fewest first."""
    # A round of halving leaves at most two bins for each one that is wanted.
    wanted = plan.model.n_candidates * (2 if plan.model.split_candidates in BY_HISTOGRAMS else 1)
    features = build_grid(plan).features
    return sorted(cells.n_codes if cells.is_categorical else min(cells.n_codes, wanted + 4) for cells in features)
