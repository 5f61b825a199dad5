# SPDX-License-Identifier: Apache-2.0
"""Boosted trees."""

from __future__ import annotations

from hedgerow.losses.registry import loss_kind
from hedgerow.methods import Method, Parts
from hedgerow.plan.fields import refuse
from hedgerow.plan.plan import Plan

_ONLY = {
    # Their sums are asked for under the released baseline; other kinds of queries know of none.
    "survival": {
        "split_method": ("totally_random",),
        "weight_update": ("newton",),
        "split_candidates": ("adaptive", "uniform", "log"),
    },
}
"""By the type of the label, what a plan may say of these fields."""


def check(plan: Plan) -> None:
    """Raise PlanError for a plan that contradicts itself."""
    model, starts = plan.model, loss_kind(plan).starts
    if model.shrinkage != "auto" and not _is_smoothed(plan):
        raise refuse("model.shrinkage", model.shrinkage, '"auto" but with interaction = "adaptive"')
    if model.start in ("mean", "linear") and model.start not in starts:
        other = "a regression by gradients" + (", or a time to an event" if model.start == "linear" else "")
        raise refuse("model.start", model.start, f'"none" or "auto" but for {other}')
    if model.start == "linear" and not _is_smoothed(plan):
        others = '"mean", "none"' if "mean" in starts else '"none"'
        raise refuse("model.start", model.start, f'{others} or "auto" but with interaction = "adaptive"')
    for name, only in _ONLY.get(plan.label.type, {}).items():
        if getattr(model, name) not in only:
            expected = " or ".join(f'"{word}"' for word in only)
            raise refuse(f"model.{name}", getattr(model, name), f"{expected} for a time to an event")
    if model.class_weights and not (loss_kind(plan).has_class_weights and model.weight_update == "newton"):
        raise refuse("model.class_weights", list(model.class_weights), 'none but for classes, with "newton" updates')
    if model.class_weights and len(model.class_weights) != len(plan.label.classes):
        expected = f"{len(plan.label.classes)} weights, one for each of label.classes"
        raise refuse("model.class_weights", list(model.class_weights), expected)
    if model.start == "linear" and "mean" in starts and all(feature.is_categorical for feature in plan.features):
        raise refuse("model.start", model.start, '"mean" without numeric features')


def _is_smoothed(plan: Plan) -> bool:
    model = plan.model
    return model.split_method == "totally_random" and model.interaction in ("auto", "adaptive")


def _parts() -> Parts:
    from hedgerow.methods.boosting.program import boosting
    from hedgerow.methods.boosting.settings import resolve_boosting

    return Parts(resolve_boosting, boosting)


METHOD = Method(check=check, parts=_parts, reads_loss=True, is_constrained=True, counts_prepared=True, is_grouped=True)
