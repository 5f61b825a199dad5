"""Losses of a number that a plan names in [loss], with their parameters: Huber's, quantiles, expectiles.

A prediction f of a label y, both scaled from the label's range to [-1, 1], has the residual r = f - y. The gradient has
two sides, each with a slope and a clip of its own, and the Hessian is 1 for every record:

    huber       clip(r, -delta, delta)
    quantile    clip(r, -2 tau k, 2 (1 - tau) k)                   k is the joint clip: pinball loss, smoothed within it
    expectile   2 (1 - tau) clip(r, k)  where r > 0, and  2 tau clip(r, k)  below

In integers it is (g, c), rounded towards zero, with the larger side's clip for both: the norm is
sqrt(max(clip)**2 + c**2), whatever the label and the score are. So the sensitivity does not depend on the rows, and of
one side it is an upper bound.

Boosted trees double residuals where labels fill little of their range, but for Huber's, whose delta is the plan's; and
a last release finds the shift by which scores fit best (`hedgerow.methods.residuals`): exactly by the loss,
neither smoothed nor clipped.

Sources: Huber, Ann. Math. Statist. 35 (1964); Koenker and Bassett, Econometrica 46 (1978); Newey and Powell,
Econometrica 55 (1987).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from hedgerow.losses.kinds import Deviance, Floats, IdentityLink, LossKind, regression_scores
from hedgerow.losses.squared import LABEL, RESIDUAL_LIMIT
from hedgerow.losses.tables import RECORD_NORM, STEPS, Loss, check_units
from hedgerow.plan.fields import define_field, number
from hedgerow.plan.plan import Label, Plan
from hedgerow.plan.registry import NamedLoss

NUMBERS = ("regression",)
QUANTILE_CLIP = 0.1
"""Of doubled residuals: the pinball loss is smoothed within so much of the label's spread."""
_TAU = number(0.001, 0.999)


@lru_cache(maxsize=8)
def build_two_sided_loss(above: tuple[float, float], below: tuple[float, float], c: float) -> Loss:
    """A loss of residuals with a slope and a clip for predictions above the label, and others below it.

    Args:
        above, below: the gradient's slope, and its largest magnitude.
        c: the Hessian's weight beside it.

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
    """A loss of residuals: its gradient says where predictions fit best."""

    labels: ClassVar[tuple[str, ...]] = NUMBERS

    @property
    def pace(self) -> float:
        """What the usual learning rate is multiplied by."""
        return 1.0

    def gradient(self, residuals: Floats) -> Floats:
        """The derivative of the loss, not descending, of predictions less labels, scaled to [-1, 1]: float64 [n]."""
        raise NotImplementedError


def _kind(
    build: Callable[[Plan, float | None, float | None], Loss],
    clip: float,
    measure: Deviance | None = None,
    share: Callable[[Floats, Floats], float] | None = None,
) -> LossKind:
    """A kind of loss of numbers; `share` is the share of labels that is at or below predictions."""

    def scores(labels: Floats, predicted: Floats, label: Label) -> dict[str, float]:
        if measure is None or share is None:
            return regression_scores(labels, predicted)
        return {measure.name: float(measure.of(labels, predicted, label).mean()), "coverage": share(labels, predicted)}

    both = ("newton", "gradient")
    return LossKind(
        LABEL, IdentityLink(), build, scores, noise_ridge=12.0, clipped_updates=both, clip=clip,
        clipped_hessian_scale=clip / 3, deviance=measure, starts=("mean", "linear"),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Huber(ResidualLoss):
    """Squares up to a bound and magnitudes beyond it, so that a few labels that are far off count little.

    Attributes:
        delta: the bound, in parts of half the label's range.
    """

    name: ClassVar[str] = "huber"
    delta: float = define_field(number(0.001, 2), 0.1)

    def gradient(self, residuals: Floats) -> Floats:
        return np.clip(residuals, -self.delta, self.delta)

    def kind(self, label: Label) -> LossKind:
        def build(_: Plan, joint_clip: float | None, hessian_scale: float | None) -> Loss:
            side = 1.0, min(self.delta, self.delta if joint_clip is None else joint_clip)
            return build_two_sided_loss(side, side, hessian_scale or side[1] / 2)

        return replace(_kind(build, self.delta), doubles=False)


@dataclass(frozen=True, kw_only=True)
class Quantile(ResidualLoss):
    """The value that a share of labels is at or below.

    Attributes:
        tau: that share.
    """

    name: ClassVar[str] = "quantile"
    tau: float = define_field(_TAU, 0.5)

    @property
    def pace(self) -> float:
        """See `ResidualLoss.pace`: a clipped gradient is a short step."""
        return 1.5

    def gradient(self, residuals: Floats) -> Floats:
        return np.where(residuals >= 0, 2 * (1 - self.tau), -2 * self.tau)

    def pinball(self, labels: Floats, predicted: Floats, _: object = None) -> Floats:
        """max(tau (y - f), (1 - tau) (f - y)), in units of the label: float64 [n]."""
        beyond = labels - predicted
        return np.asarray(np.maximum(self.tau * beyond, (self.tau - 1) * beyond))

    def kind(self, label: Label) -> LossKind:
        def build(_: Plan, joint_clip: float | None, hessian_scale: float | None) -> Loss:
            clip = QUANTILE_CLIP if joint_clip is None else joint_clip
            return build_two_sided_loss(
                (1.0, 2 * (1 - self.tau) * clip), (1.0, 2 * self.tau * clip), hessian_scale or clip / 2
            )

        measure = Deviance("pinball_loss", self.pinball, per_error=max(self.tau, 1 - self.tau))
        return _kind(build, QUANTILE_CLIP, measure, lambda labels, predicted: float(np.mean(labels <= predicted)))


@dataclass(frozen=True, kw_only=True)
class Expectile(ResidualLoss):
    """The mean where labels above it count otherwise than those below it; with 0.5 the mean.

    Attributes:
        tau: the weight of labels above, and 1 - tau of those below.
    """

    name: ClassVar[str] = "expectile"
    tau: float = define_field(_TAU, 0.5)

    @property
    def pace(self) -> float:
        """See `ResidualLoss.pace`: the steeper side is not stepped over."""
        return 0.5 / max(self.tau, 1 - self.tau)

    def gradient(self, residuals: Floats) -> Floats:
        return np.where(residuals >= 0, 2 * (1 - self.tau), 2 * self.tau) * residuals

    def kind(self, label: Label) -> LossKind:
        def build(_: Plan, joint_clip: float | None, hessian_scale: float | None) -> Loss:
            clip = RESIDUAL_LIMIT if joint_clip is None else joint_clip
            above, below = 2 * (1 - self.tau), 2 * self.tau
            return build_two_sided_loss((above, above * clip), (below, below * clip), hessian_scale or clip / 2)

        return _kind(build, 0.25)


NAMED: tuple[type[ResidualLoss], ...] = (Huber, Quantile, Expectile)
