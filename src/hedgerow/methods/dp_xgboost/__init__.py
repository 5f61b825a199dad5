# SPDX-License-Identifier: Apache-2.0
"""DP-XGBoost: the section [dp_xgboost] of a plan, and the method's parts."""

from __future__ import annotations

from dataclasses import dataclass

from hedgerow.methods import Method, Parts
from hedgerow.plan.fields import boolean, define_field, integer, number, one_of, refuse
from hedgerow.plan.plan import Plan
from hedgerow.plan.registry import own_section


@dataclass(frozen=True, kw_only=True)
class DpXgboost:
    """DP-XGBoost (Grislain & Gonzalvez 2021), with its leaks closed.

    Shared fields of [model] are read as well.

    Attributes:
        splits: "exponential": the coordinator, who sees the exact sums, chooses by the exponential mechanism; or
            "histogram": everything is chosen from noisy histograms.
        subsampling_ratio: chance of a record to be in a release, drawn by its node for each by itself.
        sketch_rounds: trees before which noisy histograms of all features place the candidates.
        start: "mean": the model begins with the mean label, not with the middle of the label's bounds, which a rate
            below 1 leaves slowly; and residuals are doubled before they are clipped, as long as the released spread
            about the mean stays within 0.3 of half the range. Or "none", as in the paper. Left out, "mean" for a
            regression.
        start_share, sketch_share, split_share: part of the sum of (amplified) epsilons if the accountant is "pure",
            else of the sum of rho; the leaves have the rest. A plan without a start has no part for it.
        gradient: the treatment of records with a gradient beyond 1: "clip" it, or "filter" them out, as in the paper.
        count_weight: the weight of a count beside a gradient in a leaf's sensitivity.
        shrinkage: share of the James-Stein correction by which a tree is scaled whose leaves released little but noise;
            0 for the paper's values. Left out, 1 for a regression and 0 for classes.
        min_child_weight: the noisy count below which a leaf has the value 0.
        geometric_leaf_clip: whether the bound on a leaf's value, before the learning rate, falls by 1 - learning_rate
            with every tree, as DPBoost's does; of the noisy value, so it costs nothing and lowers no noise.
    """

    splits: str = define_field(one_of("exponential", "histogram"), "exponential")
    subsampling_ratio: float = define_field(number(1e-6, 1), 1.0)
    sketch_rounds: int = define_field(integer(0, 6), 1)
    start: str | None = define_field(one_of("mean", "none"), None)
    start_share: float = define_field(number(0.01, 0.9), 0.2)
    sketch_share: float = define_field(number(0, 0.9), 0.05)
    split_share: float = define_field(number(0.01, 0.95), 0.45)
    gradient: str = define_field(one_of("clip", "filter"), "clip")
    count_weight: float = define_field(number(0.01, 4), 0.25)
    shrinkage: float | None = define_field(number(0, 1), None)
    min_child_weight: float = define_field(number(0, 1e9), 0.0)
    geometric_leaf_clip: bool = define_field(boolean, False)

    @classmethod
    def of(cls, plan: Plan) -> DpXgboost:
        """Return the section of a plan of this method; ValueError for another method's plan."""
        return own_section(cls, plan)

    def starts_with_mean(self, plan: Plan) -> bool:
        """Return whether the mean is released first."""
        return self.start == "mean" or (self.start is None and plan.label.kind.is_number)


def check(plan: Plan) -> None:
    """Raise PlanError for a plan that releases of pure differential privacy cannot serve."""
    privacy, own = plan.privacy, DpXgboost.of(plan)
    if privacy.noise != "server":
        raise refuse("privacy.noise", privacy.noise, '"server" with "dp-xgboost", whose noise has no shares')
    if own.subsampling_ratio < 1 and privacy.rows_per_unit > 1:
        # A unit of several rows is in a sample more often than one row is.
        raise refuse("dp_xgboost.subsampling_ratio", own.subsampling_ratio, "1 with several rows per unit")
    if own.start == "mean" and not plan.label.kind.is_number:
        raise refuse("dp_xgboost.start", own.start, '"none" for classes, whose scores begin at 0')
    if own.sketch_share + own.split_share + own.starts_with_mean(plan) * own.start_share >= 1:
        raise refuse("dp_xgboost.split_share", own.split_share, "a share that leaves some for the leaves")
    rate = plan.model.learning_rate
    if own.geometric_leaf_clip and not isinstance(rate, str) and rate >= 1:
        # The second tree's leaves would have no room at all.
        raise refuse("model.learning_rate", rate, "below 1 with dp_xgboost.geometric_leaf_clip")
    if (own.sketch_rounds == 0) != (own.sketch_share == 0):
        raise refuse("dp_xgboost.sketch_share", own.sketch_share, "above 0 with sketch_rounds above 0, else 0")


def _parts() -> Parts:
    from hedgerow.methods.dp_xgboost.program import dp_xgboost
    from hedgerow.methods.dp_xgboost.settings import resolve_dp_xgboost
    from hedgerow.privacy.events import PureEvent

    return Parts(resolve_dp_xgboost, dp_xgboost, (PureEvent,))


METHOD = Method(
    section=DpXgboost,
    model_fields=frozenset(
        {"n_trees", "max_depth", "n_candidates", "learning_rate", "leaf_ridge", "noise_ridge", "structure_seed"}
    ),
    labels=("binary", "regression"),
    is_pure=True,
    check=check,
    parts=_parts,
    is_constrained=True,
)
