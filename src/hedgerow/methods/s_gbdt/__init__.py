# SPDX-License-Identifier: Apache-2.0
"""S-GBDT: the section [s_gbdt] of a plan, and the method's parts."""

from __future__ import annotations

from dataclasses import dataclass

from hedgerow.errors import PlanError
from hedgerow.methods import Method, Parts
from hedgerow.plan.fields import boolean, define_field, integer, number, one_of, refuse
from hedgerow.plan.plan import BY_HISTOGRAMS, Plan
from hedgerow.plan.registry import own_section

MIN_START_SHARE = 1e-6


@dataclass(frozen=True, kw_only=True)
class SGbdt:
    """The parameters of S-GBDT.

    Attributes:
        subsampling_ratio: gamma, each record's chance to be in a round's sum.
        gradient_clip: g*, in units in which a regression's public range is [-1, 1], or of log-loss gradients.
        support_share: r1; the sum of gradients has r2 = 1 - r1.
        individual_filter: whether each node keeps the individual Renyi filter.
        extra_rounds: rounds after the regular ones, for the records that the filter has left; need the filter.
        closing_rounds: the number of last rounds for which the filter keeps every record's share back, so that all
            records are in them (an extra of ours); at most n_trees, and 0 without extra rounds.
        initial_score: "constant" begins with the mean label (the paper); "linear" with a linear model of the numeric
            features (an extra of ours).
        initial_score_share: share of the budget for the private initial score, at least 1e-6; 0 begins at zero. For
            numbers half of it (a tenth, beside a linear model) is for a last release, which takes noise out of
            finished scores (an extra of ours); [model] calibration = "none" leaves that out, as zero does.
        linear_scale: the value of a numeric feature in a linear start: the number of its grid cell, half linear and
            half logarithmic ("grid"), or the cell's middle ("linear"); as scale in [adassp].
        label_clip: m*, the clip on labels for the initial score, in units of gradient_clip.
        numeric_weight: r, the weight of a numeric feature against 1 of a categorical one in random splits.
        splits: "uniform" draws feature and value at random (the paper); "cyclical" gives each tree one feature in
            turn, cut at candidates that divide the node and that follow what was released (an extra of ours).
        leaf_rule: "paper" is sum / max(lambda, support); "shrunk" is sum / (support + lambda + noise_ridge * noise),
            smoothed where leaves have an order (an extra of ours). "static", one noise for all finished values, is
            refused: those are quotients of exact sums (docs/s-gbdt.md).
        bound: "tight" accounts for the Gaussian exactly; "general" by the bound for any mechanism (theorem 9).
    """

    subsampling_ratio: float = define_field(number(1e-6, 1), 0.1)
    gradient_clip: float = define_field(number(0, 10, exclusive=True), 0.3)
    support_share: float = define_field(number(0, 1, exclusive=True), 0.1)
    individual_filter: bool = define_field(boolean, True)
    extra_rounds: int = define_field(integer(0, 100_000), 0)
    closing_rounds: int = define_field(integer(0, 100_000), 0)
    initial_score: str = define_field(one_of("constant", "linear"), "constant")
    initial_score_share: float = define_field(number(0, 0.9), 0.1)
    linear_scale: str = define_field(one_of("grid", "linear"), "grid")
    label_clip: float = define_field(number(1e-6, 1), 1.0)
    numeric_weight: float = define_field(number(0, 1e6, exclusive=True), 1.0)
    splits: str = define_field(one_of("uniform", "cyclical"), "uniform")
    leaf_rule: str = define_field(one_of("paper", "shrunk", "static"), "paper")
    bound: str = define_field(one_of("tight", "general"), "tight")

    @classmethod
    def of(cls, plan: Plan) -> SGbdt:
        """Return the section of a plan of this method; ValueError for another method's plan."""
        return own_section(cls, plan)


def check(plan: Plan) -> None:
    """Raise PlanError for a plan that contradicts itself."""
    section = SGbdt.of(plan)
    if plan.privacy.noise == "local":
        # Anyone who sees a record's own answer sees whether it was drawn.
        raise refuse("privacy.noise", "local", '"server" or "distributed" with "s-gbdt", which draws secret samples')
    if plan.privacy.max_rows_per_unit != 1:
        # Rows of one unit would be drawn one by one, and the amplification of a group is another one.
        raise refuse("privacy.max_rows_per_unit", plan.privacy.max_rows_per_unit, '1 with model.algorithm = "s-gbdt"')
    if plan.privacy.sites_per_unit != 1:
        raise refuse("privacy.sites_per_unit", plan.privacy.sites_per_unit, '1 with model.algorithm = "s-gbdt"')
    if section.leaf_rule == "static":
        raise PlanError("static-leaf-noise")
    if section.extra_rounds and not section.individual_filter:
        raise refuse("s_gbdt.extra_rounds", section.extra_rounds, "0 without s_gbdt.individual_filter")
    if section.closing_rounds and not section.extra_rounds:
        raise refuse("s_gbdt.closing_rounds", section.closing_rounds, "0 without s_gbdt.extra_rounds")
    if not isinstance(plan.model.n_trees, str) and section.closing_rounds > plan.model.n_trees:
        raise refuse("s_gbdt.closing_rounds", section.closing_rounds, f"at most model.n_trees = {plan.model.n_trees}")
    if 0 < section.initial_score_share < MIN_START_SHARE:
        # The noise grows without bound as the share falls, and must fit the words that sums are made of.
        raise refuse("s_gbdt.initial_score_share", section.initial_score_share, f"0, or {MIN_START_SHARE:g} to 0.9")
    if section.initial_score == "linear" and (
        not section.initial_score_share or all(feature.is_categorical for feature in plan.features)
    ):
        raise refuse("s_gbdt.initial_score", "linear", '"constant" without a share or without numeric features')
    if section.initial_score != "linear" and section.linear_scale != "grid":
        raise refuse("s_gbdt.linear_scale", section.linear_scale, '"grid" (its default) without a linear start')
    if plan.model.split_candidates in (*BY_HISTOGRAMS, "quantile"):
        expected = '"adaptive", "uniform" or "log" with "s-gbdt"'
        raise refuse("model.split_candidates", plan.model.split_candidates, expected)


def choose_accountant(plan: Plan) -> str:
    """Return "pld" if rounds are over samples and no filter can leave a record out, else "gdp".

    Renyi's bound is 10 % above that of "pld".
    """
    section = SGbdt.of(plan)
    is_composed = section.subsampling_ratio < 1 and not section.extra_rounds and section.bound == "tight"
    return "pld" if is_composed else "gdp"


def _parts() -> Parts:
    from hedgerow.methods.s_gbdt.program import s_gbdt
    from hedgerow.methods.s_gbdt.settings import resolve_s_gbdt
    from hedgerow.privacy.events import FilteredGaussianEvent, SampledGaussianEvent

    return Parts(resolve_s_gbdt, s_gbdt, (SampledGaussianEvent, FilteredGaussianEvent))


METHOD = Method(
    section=SGbdt,
    model_fields=frozenset(
        {
            "n_trees", "max_depth", "n_candidates", "learning_rate", "leaf_ridge", "noise_ridge", "leaf_clip",
            "split_candidates", "calibration", "structure_seed",
        }
    ),
    labels=("binary", "regression"),
    check=check,
    parts=_parts,
    is_constrained=True,
    choose_accountant=choose_accountant,
    keeps_accounts=True,
)  # fmt: skip
