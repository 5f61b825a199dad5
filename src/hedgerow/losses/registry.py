# SPDX-License-Identifier: Apache-2.0
"""The table of losses; a line here adds a loss with its type of label."""

from __future__ import annotations

from dataclasses import replace

from hedgerow.errors import ModelError
from hedgerow.losses import logistic, named, poisson, softmax, squared, survival
from hedgerow.losses.kinds import LossKind
from hedgerow.losses.tables import Loss
from hedgerow.plan.plan import Label, Plan
from hedgerow.plan.registry import LABEL_ADDERS, AbsentLoss, Registry, add_label, add_named_loss

LOSSES: Registry[LossKind] = Registry("loss", LABEL_ADDERS)


def add_loss(kind: LossKind) -> None:
    """Add a kind of loss, and let plans have labels of its type.

    Raises:
        UsageError: the type is taken.
    """
    LOSSES[kind.label.type] = kind
    add_label(kind.label)


add_loss(logistic.KIND)
add_loss(softmax.KIND)
add_loss(squared.KIND)
add_loss(poisson.KIND)
add_loss(survival.KIND)


for loss in named.NAMED:
    add_named_loss(loss)


def loss_kind(plan: Plan) -> LossKind:
    """Return the kind of loss of a plan, by its [loss], or by its label and weight update."""
    if isinstance(plan.loss, AbsentLoss):
        return _kind_by_link(plan.loss, plan.label)
    if plan.loss is not None:
        named_kind: LossKind = plan.loss.kind(plan.label)
        return named_kind
    kind = LOSSES[plan.label.type]
    return kind.averaging if plan.model.weight_update == "averaging" and kind.averaging else kind


def _kind_by_link(loss: AbsentLoss, label: Label) -> LossKind:
    """Return the kind for a model with an absent loss: the link by name, and the label's measures.

    Raises:
        ModelError: code "method-absent"; no loss for such labels has a link of that name.
    """
    what = f"the loss {loss.name} {loss.version}".strip()
    links = {
        kind.link.name: kind.link
        for kind in LOSSES.values()
        if kind.label.predicts == label.kind.predicts and kind.label.n_outputs(label) == label.n_outputs
    }
    if loss.link not in links:
        raise ModelError("method-absent", what=f"{what}, whose link {loss.link!r} is its own")

    def refuse(*_: object) -> Loss:
        raise ModelError("method-absent", what=what)

    return replace(LOSSES[label.type], link=links[loss.link], build=refuse)


def build_loss(plan: Plan, joint_clip: float | None = None, hessian_scale: float | None = None) -> Loss:
    """Build the loss of a plan.

    Args:
        plan: a plan; its [loss], or its label and weight update, decide.
        joint_clip: largest L2 norm of (g, c h) of one record, in real units; None leaves the loss's own bound.
        hessian_scale: c; None takes the loss's own: of most, the largest that leaves the sensitivity of g alone.

    Raises:
        PlanError: when (joint_clip, hessian_scale) leave a statistic no integers, or more than the kernels hold.
    """
    return loss_kind(plan).build(plan, joint_clip, hessian_scale)
