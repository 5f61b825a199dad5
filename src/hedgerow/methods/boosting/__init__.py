# SPDX-License-Identifier: Apache-2.0
"""Boosted trees."""

from __future__ import annotations

from hedgerow.losses.registry import loss_kind
from hedgerow.methods import Method, Parts
from hedgerow.plan.fields import refuse
from hedgerow.plan.plan import Plan

_OF_TIMES = {
    "split_method": ("totally_random",),
    "weight_update": ("newton",),
    "split_candidates": ("adaptive", "uniform", "log"),
}
"""The values that a plan may have for times: other queries than `LeafSums` do not know the released baseline."""


def check(plan: Plan) -> None:
    """Raise PlanError for a plan that contradicts itself."""
    model, starts = plan.model, {"auto", "none", *loss_kind(plan).starts}
    is_smoothed = model.split_method == "totally_random" and model.interaction in ("auto", "adaptive")
    if model.shrinkage != "auto" and not is_smoothed:
        raise refuse("model.shrinkage", model.shrinkage, '"auto" but with interaction = "adaptive"')
    if not is_smoothed or ("mean" in starts and all(feature.is_categorical for feature in plan.features)):
        starts -= {"linear"}
    if model.start not in starts:
        expected = f"one of {', '.join(sorted(starts))} with this label, these features and this interaction"
        raise refuse("model.start", model.start, expected)
    for name, only in _OF_TIMES.items() if plan.label.type == "survival" else ():
        if getattr(model, name) not in only:
            expected = " or ".join(f'"{word}"' for word in only)
            raise refuse(f"model.{name}", getattr(model, name), f"{expected} for a time to an event")
    if model.class_weights and not (loss_kind(plan).has_class_weights and model.weight_update == "newton"):
        raise refuse("model.class_weights", list(model.class_weights), 'none but for classes, with "newton" updates')
    if model.class_weights and len(model.class_weights) != len(plan.label.classes):
        expected = f"{len(plan.label.classes)} weights, one for each of label.classes"
        raise refuse("model.class_weights", list(model.class_weights), expected)


def _parts() -> Parts:
    from hedgerow.methods.boosting.program import boosting
    from hedgerow.methods.boosting.settings import resolve_boosting

    return Parts(resolve_boosting, boosting)


METHOD = Method(check=check, parts=_parts, reads_loss=True, is_constrained=True, counts_prepared=True, is_grouped=True)
