"""What a kind of loss is made of: each has a file of its own, and a line in `hedgerow.losses.registry`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hedgerow.losses.tables import Loss
from hedgerow.plan.plan import Plan

LOGISTIC, SOFTMAX, IDENTITY, PROBABILITY = "logistic", "softmax", "identity", "probability"
"""Links, see `LossKind`."""
DEFAULT_CLIP = 0.25
"""The joint clip of a loss that is clipped without being asked."""


@dataclass(frozen=True)
class LossKind:
    """A loss, and the defaults that suit it.

    Attributes:
        link: what a sum of a model's values means: "logistic" (log-odds), "softmax" (one log-weight per class),
            "identity" (the label scaled to [-1, 1]) or "probability" (averaged class shares).
        build: the loss of a plan from its joint clip and its Hessian scale c, None for the loss's own; PlanError when
            they leave a statistic no integers, or more than the kernels hold.
        noise_ridge: the default leaf ridge per standard deviation of the gradient's noise.
        clipped_updates: weight updates whose records are clipped to `DEFAULT_CLIP` where the plan leaves it open.
        clipped_hessian_scale: the default c under that clip.
    """

    link: str
    build: Callable[[Plan, float | None, float | None], Loss]
    noise_ridge: float = 1.5
    clipped_updates: tuple[str, ...] = ()
    clipped_hessian_scale: float | None = None
