# SPDX-License-Identifier: Apache-2.0
"""Losses of a number by name in a plan's [loss], with parameters: Huber's, quantiles, expectiles.

A prediction f of a label y, both scaled from the label's range to [-1, 1], has the residual r = f - y. The gradient has
two sides, each with a slope and a clip of its own, and the Hessian is 1 for every record:

    huber       clip(r, -delta, delta)
    quantile    clip(r, -2 tau k, 2 (1 - tau) k)                   k is the joint clip: pinball loss, smoothed within it
    expectile   2 (1 - tau) clip(r, k)  where r > 0, and  2 tau clip(r, k)  below

In integers it is (g, c), rounded towards zero, with the larger side's clip for both. The norm is
sqrt(max(clip)**2 + c**2), whatever the label and the score are. So the sensitivity does not depend on the rows, and of
one side it is an upper bound.

Boosted trees double residuals where labels fill little of their range, except with Huber's loss, whose delta is the
plan's. A last release finds the shift by which scores fit best (`hedgerow.methods.residuals`): exactly by the loss,
neither smoothed nor clipped.

Sources: Huber, Ann. Math. Statist. 35 (1964); Koenker and Bassett, Econometrica 46 (1978); Newey and Powell,
Econometrica 55 (1987).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from hedgerow import elementary
from hedgerow.losses.kinds import DEFAULT_CLIP, Deviance, Floats, IdentityLink, LossKind, regression_scores
from hedgerow.losses.squared import LABEL, RESIDUAL_LIMIT
from hedgerow.losses.tables import RECORD_NORM, STEPS, Loss, check_units
from hedgerow.plan.fields import define_field, number
from hedgerow.plan.plan import Label, Plan
from hedgerow.plan.registry import NamedLoss

Side = tuple[float, float]
"""A gradient's slope on one side of the label, and its largest magnitude there."""
QUANTILE_CLIP = 0.1
"""The clip of doubled residuals: the pinball loss is smoothed within this part of the label's spread."""
_TAU = number(0.001, 0.999)


@lru_cache(maxsize=8)
def build_two_sided_loss(above: Side, below: Side, c: float) -> Loss:
    """Build a loss of residuals with a slope and a clip on each side of the label.

    Args:
        above: slope and clip for predictions above the label.
        below: slope and clip for predictions below it.
        c: the Hessian's weight beside the gradient.

    Raises:
        PlanError: when they leave a statistic no integers, or more than the kernels hold.
    """
    scale = RECORD_NORM / math.hypot(max(above[1], below[1]), c)
    check_units(scale, min(above[1], below[1]) * scale, c * scale)
    sides = [(math.floor(slope * scale), math.floor(clip * scale)) for slope, clip in (above, below)]
    clip, constant = max(side[1] for side in sides), math.floor(c * scale)
    scales = np.array([float(math.floor(scale)), float(constant)])
    empty = np.empty((0, STEPS, 2), dtype=np.int16)
    norm_squared = clip**2 + constant**2
    return Loss("squared", 1, 2, scales, empty, norm_squared, clip, constant, sides=(sides[0], sides[1]))


@dataclass(frozen=True)
class ResidualLoss(NamedLoss):
    """A loss of residuals, predictions less labels, both scaled from the label's range to [-1, 1].

    A subclass states its gradient twice. A last release shifts scores by the exact one (`gradient`). Trees ask for a
    simpler one (`sides`): linear on either side of the label, up to a clip.
    """

    labels: ClassVar[tuple[str, ...]] = ("regression",)
    doubles: ClassVar[bool] = True
    """True if boosted trees may double residuals where labels fill little of their range."""

    @abstractmethod
    def gradient(self, residuals: Floats) -> Floats:
        """Return the derivative of the loss, not descending: float64 [n], of residuals [n]."""

    @abstractmethod
    def sides(self, clip: float) -> tuple[Side, Side]:
        """Return the gradient's slope and largest magnitude above the label, and those below it."""

    def largest_residual(self, joint_clip: float | None) -> float:
        """Return the clip of `sides` for the plan's joint clip, or for None."""
        return RESIDUAL_LIMIT if joint_clip is None else joint_clip

    @property
    def usual_clip(self) -> float:
        """The joint clip if the plan leaves it open."""
        return DEFAULT_CLIP

    @property
    def pace(self) -> float:
        """The factor on the usual learning rate."""
        return 1.0

    @property
    def deviance(self) -> Deviance | None:
        """The deviance that an evaluation with noise asks besides squares; None for no such deviance."""
        return None

    def scores(self, labels: Floats, predicted: Floats, label: Label) -> dict[str, float]:
        """Return measures of how well predictions fit labels, by name, in the label's units."""
        return regression_scores(labels, predicted)

    def kind(self, label: Label) -> LossKind:
        def build(_: Plan, joint_clip: float | None, hessian_scale: float | None) -> Loss:
            clip = self.largest_residual(joint_clip)
            return build_two_sided_loss(*self.sides(clip), hessian_scale or clip / 2)

        return LossKind(
            LABEL, IdentityLink(), build, self.scores, noise_ridge=12.0, clipped_updates=("newton", "gradient"),
            clip=self.usual_clip, clipped_hessian_scale=self.usual_clip / 3, deviance=self.deviance,
            starts=("mean", "linear"), doubles=self.doubles,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Huber(ResidualLoss):
    """Huber's loss: squares up to a bound and magnitudes beyond, so that labels far off count little.

    Attributes:
        delta: the bound, in parts of half the label's range.
    """

    name: ClassVar[str] = "huber"
    doubles: ClassVar[bool] = False
    delta: float = define_field(number(0.001, 2), 0.1)

    def gradient(self, residuals: Floats) -> Floats:
        return np.clip(residuals, -self.delta, self.delta)

    def sides(self, clip: float) -> tuple[Side, Side]:
        return (1.0, clip), (1.0, clip)

    def largest_residual(self, joint_clip: float | None) -> float:
        return self.delta if joint_clip is None else min(self.delta, joint_clip)

    @property
    def usual_clip(self) -> float:
        return self.delta


@dataclass(frozen=True, kw_only=True)
class Quantile(ResidualLoss):
    """The quantile loss, for the value that a share of labels is at or below.

    Attributes:
        tau: the share of labels at or below the predicted value.
    """

    name: ClassVar[str] = "quantile"
    tau: float = define_field(_TAU, 0.5)

    def gradient(self, residuals: Floats) -> Floats:
        return np.where(residuals >= 0, 2 * (1 - self.tau), -2 * self.tau)

    def sides(self, clip: float) -> tuple[Side, Side]:
        return (1.0, 2 * (1 - self.tau) * clip), (1.0, 2 * self.tau * clip)

    def largest_residual(self, joint_clip: float | None) -> float:
        return QUANTILE_CLIP if joint_clip is None else joint_clip

    @property
    def usual_clip(self) -> float:
        return QUANTILE_CLIP

    @property
    def pace(self) -> float:
        """The factor on the usual learning rate, above 1 because a clipped gradient is a short step."""
        return 1.5

    @property
    def deviance(self) -> Deviance:
        return Deviance("pinball_loss", self.pinball, per_error=max(self.tau, 1 - self.tau))

    def pinball(self, labels: Floats, predicted: Floats, _: object = None) -> Floats:
        """Return max(tau (y - f), (1 - tau) (f - y)), in units of the label: float64 [n]."""
        beyond = labels - predicted
        return np.asarray(np.maximum(self.tau * beyond, (self.tau - 1) * beyond))

    def scores(self, labels: Floats, predicted: Floats, label: Label) -> dict[str, float]:
        """Return the pinball loss and the coverage, the share of labels at or below predictions."""
        pinball = elementary.mean(self.pinball(labels, predicted))
        return {"pinball_loss": pinball, "coverage": elementary.mean(labels <= predicted)}


@dataclass(frozen=True, kw_only=True)
class Expectile(ResidualLoss):
    """The expectile loss, for a mean with other weights of labels above it than below; 0.5 is the mean.

    Attributes:
        tau: the weight of labels above the predicted value; those below have the weight 1 - tau.
    """

    name: ClassVar[str] = "expectile"
    tau: float = define_field(_TAU, 0.5)

    def gradient(self, residuals: Floats) -> Floats:
        return np.where(residuals >= 0, 2 * (1 - self.tau), 2 * self.tau) * residuals

    def sides(self, clip: float) -> tuple[Side, Side]:
        above, below = 2 * (1 - self.tau), 2 * self.tau
        return (above, above * clip), (below, below * clip)

    @property
    def pace(self) -> float:
        """The factor on the usual learning rate, at most 1 so that the steeper side is not stepped over."""
        return 0.5 / max(self.tau, 1 - self.tau)


NAMED: tuple[type[ResidualLoss], ...] = (Huber, Quantile, Expectile)
