# SPDX-License-Identifier: Apache-2.0
"""The losses: one line here makes a loss, and the type of label that it is for, exist."""

from __future__ import annotations

from dataclasses import replace

from hedgerow.losses import logistic, named, poisson, softmax, squared, survival
from hedgerow.losses.kinds import AbsentLink, LossKind
from hedgerow.losses.tables import Loss
from hedgerow.plan.plan import Label, Plan
from hedgerow.plan.registry import AbsentLabel, AbsentLoss, LabelKind, Registry, add_label, add_named_loss

LOSSES: Registry[LossKind] = Registry("loss")


def add_loss(kind: LossKind) -> None:
    """Let plans have labels of its type; UsageError for a type that is taken."""
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
    """The kind of loss that a plan asks for: by its [loss], or by its label and weight update."""
    absent = plan.loss if isinstance(plan.loss, AbsentLoss) else plan.label.kind
    if isinstance(absent, AbsentLoss | AbsentLabel):
        return _kind_of_absent(absent, plan.label)
    if plan.loss is not None:
        named_kind: LossKind = plan.loss.kind(plan.label)
        return named_kind
    kind = LOSSES[plan.label.type]
    return kind.averaging if plan.model.weight_update == "averaging" and kind.averaging else kind


def _kind_of_absent(absent: AbsentLoss | AbsentLabel, label: Label) -> LossKind:
    """What can be said of a model whose loss or type of label is not installed: what its scores mean, if others' do.

    Of a loss the label's usual measures are known as well.
    """
    alike = _find_alike(absent.link, label.n_outputs, label)
    return replace(
        LOSSES.get(label.type) or alike or LOSSES["regression"],
        label=label.kind,
        link=AbsentLink(absent, absent.link) if alike is None else alike.link,
        build=absent.refuse,
        # Whoever made the model has checked its plan.
        starts=("mean", "linear"),
        has_class_weights=True,
        cuts_again=absent.cuts_again,
    )


def _find_alike(link: str, n_outputs: int, label: Label) -> LossKind | None:
    """A kind of loss whose scores mean the same of such a label; None where there is none."""
    kinds = [kind for usual in LOSSES.values() for kind in (usual, usual.averaging) if kind is not None]
    return next((kind for kind in kinds if kind.link.name == link and kind.label.n_outputs(label) == n_outputs), None)


def find_label_alike(link: str, n_outputs: int, label: Label) -> LabelKind:
    """A type of label whose models say the same of theirs, or, where only another package knows what, is written so."""
    if alike := _find_alike(link, n_outputs, label):
        return alike.label
    is_number = label.max is not None
    return LOSSES["regression" if is_number else "survival" if label.intervals else "multiclass"].label


def build_loss(plan: Plan, joint_clip: float | None = None, hessian_scale: float | None = None) -> Loss:
    """The loss of a plan.

    Args:
        plan: a plan; its [loss], or its label and weight update, decide.
        joint_clip: largest L2 norm of (g, c h) of one record, in real units; None leaves the loss's own bound.
        hessian_scale: c; None takes the largest that leaves the sensitivity of g alone (and 1/2 for counts).

    Raises:
        PlanError: when (joint_clip, hessian_scale) leave a statistic no integers, or more than the kernels hold.
    """
    return loss_kind(plan).build(plan, joint_clip, hessian_scale)
