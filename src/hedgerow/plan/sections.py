"""The plan's sections for methods other than boosted trees: each is read only where `model.algorithm` says so.

A method reads some fields of [model] as well (`_SHARED_FIELDS`); the others would be ignored, so they are refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hedgerow.errors import PlanError
from hedgerow.plan.fields import boolean, checked, integer, number, one_of, refuse

if TYPE_CHECKING:
    from hedgerow.plan.plan import Plan



LEAST_SHARE = 1e-6


@dataclass(frozen=True, kw_only=True)
class SGbdt:
    """How S-GBDT trains.

    Attributes:
        subsampling_ratio: gamma, each record's chance to be in a round's sum.
        gradient_clip: g*, in units in which a regression's public range is [-1, 1], or of log-loss gradients.
        support_share: r1; the sum of gradients has r2 = 1 - r1.
        individual_filter: whether each node keeps the individual Renyi filter.
        extra_rounds: rounds after the regular ones, for the records that the filter has left; need the filter.
        closing_rounds: of all rounds the last so many, for which the filter keeps every record's share back, so that
            all records are in them (an extra of ours); at most n_trees, and 0 without extra rounds.
        initial_score: "constant" begins with the mean label (the paper); "linear" with a linear model of the numeric
            features (an extra of ours).
        initial_score_share: share of the budget for the private initial score, at least 1e-6; 0 begins at zero.
        linear_scale: what a numeric feature's value is to a linear start: the number of its grid cell, half linear and
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

    subsampling_ratio: float = checked(number(1e-6, 1), 0.1)
    gradient_clip: float = checked(number(0, 10, exclusive=True), 0.3)
    support_share: float = checked(number(0, 1, exclusive=True), 0.1)
    individual_filter: bool = checked(boolean, True)
    extra_rounds: int = checked(integer(0, 100_000), 0)
    closing_rounds: int = checked(integer(0, 100_000), 0)
    initial_score: str = checked(one_of("constant", "linear"), "constant")
    initial_score_share: float = checked(number(0, 0.9), 0.1)
    linear_scale: str = checked(one_of("grid", "linear"), "grid")
    label_clip: float = checked(number(1e-6, 1), 1.0)
    numeric_weight: float = checked(number(0, 1e6, exclusive=True), 1.0)
    splits: str = checked(one_of("uniform", "cyclical"), "uniform")
    leaf_rule: str = checked(one_of("paper", "shrunk", "static"), "paper")
    bound: str = checked(one_of("tight", "general"), "tight")


def check_s_gbdt(plan: Plan) -> None:
    """Check the section against the rest of a plan.

    Raises:
        PlanError: naming the field to change.
    """
    section = plan.s_gbdt
    if plan.model.algorithm != "s-gbdt":
        return
    if plan.privacy.noise == "local":
        # Whoever sees a record's own answer sees whether it was drawn.
        raise refuse("privacy.noise", "local", '"server" or "distributed" with "s-gbdt", which draws secret samples')
    if plan.privacy.max_rows_per_unit != 1:
        # Rows of one unit would be drawn one by one, and the amplification of a group is another one.
        raise refuse("privacy.max_rows_per_unit", plan.privacy.max_rows_per_unit, '1 with model.algorithm = "s-gbdt"')
    if plan.privacy.sites_per_unit != 1:
        raise refuse("privacy.sites_per_unit", plan.privacy.sites_per_unit, '1 with model.algorithm = "s-gbdt"')
    if section.leaf_rule == "static":
        raise PlanError(
            "s_gbdt.leaf_rule: static leaf noise is not federated.",
            cause="It is noise on finished leaf values, quotients of exact sums, which at most a trusted coordinator "
            "has; and a record moves a quotient by what the others' sum says, so no filter could charge it less.",
            remedy='Use "paper", dynamic leaf noise; `experiments sgbdt` compares both in one place.',
            code="static-leaf-noise",
        )
    if section.extra_rounds and not section.individual_filter:
        raise refuse("s_gbdt.extra_rounds", section.extra_rounds, "0 without s_gbdt.individual_filter")
    if section.closing_rounds and not section.extra_rounds:
        raise refuse("s_gbdt.closing_rounds", section.closing_rounds, "0 without s_gbdt.extra_rounds")
    if not isinstance(plan.model.n_trees, str) and section.closing_rounds > plan.model.n_trees:
        raise refuse("s_gbdt.closing_rounds", section.closing_rounds, f"at most model.n_trees = {plan.model.n_trees}")
    if 0 < section.initial_score_share < LEAST_SHARE:
        # The noise grows without bound as the share falls, and must fit the words that sums are made of.
        raise refuse("s_gbdt.initial_score_share", section.initial_score_share, f"0, or {LEAST_SHARE:g} to 0.9")
    if section.initial_score == "linear" and (
        not section.initial_score_share or all(feature.is_categorical for feature in plan.features)
    ):
        raise refuse("s_gbdt.initial_score", "linear", '"constant" without a share or without numeric features')
    if section.initial_score != "linear" and section.linear_scale != "grid":
        raise refuse("s_gbdt.linear_scale", section.linear_scale, '"grid" (its default) without a linear start')
    if plan.model.split_candidates in ("iterative_hessian", "quantile"):
        expected = '"adaptive", "uniform" or "log" with "s-gbdt"'
        raise refuse("model.split_candidates", plan.model.split_candidates, expected)


@dataclass(frozen=True, kw_only=True)
class Adassp:
    """Boosted linear models by AdaSSP (Rho et al. 2022, Algorithm 2). "auto" is decided from public numbers only.

    Attributes:
        loss: whose gradients are fitted; a regression has the squared loss only ("auto").
        rounds: T, how often X^T g is asked for.
        scale: what a numeric feature's value is: the number of its grid cell, half linear and half logarithmic, or the
            cell's middle.
        row_norm: largest norm of a record's row, whose entries lie in [-1, 1]; longer rows are shortened. "auto" is the
            largest norm that the schema allows, so that no row is.
        gradient_clip: largest |g| of the squared loss.
        gram_share: share of mu² that X^T X takes.
        ridge: lambda per sqrt(p) standard deviations of the noise on X^T X, before what its least eigenvalue saves.
        learning_rate: what each round's coefficients are multiplied by.
    """

    loss: str = checked(one_of("auto", "squared", "logistic", "hinge"), "auto")
    rounds: int | str = checked(integer(1, 10_000, "auto"), "auto")
    scale: str = checked(one_of("grid", "linear"), "grid")
    row_norm: float | str = checked(number(0.1, 1000, "auto"), "auto")
    gradient_clip: float = checked(number(0.01, 1), 1.0)
    gram_share: float = checked(number(0, 1, exclusive=True), 0.6)
    ridge: float = checked(number(0, 100), 0.5)
    learning_rate: float = checked(number(0, 10, exclusive=True), 1.0)


@dataclass(frozen=True, kw_only=True)
class DpXgboost:
    """DP-XGBoost (Grislain & Gonzalvez 2021), with its leaks closed; shared fields of [model] are read as well.

    Attributes:
        splits: "exponential": the coordinator, who sees the exact sums, chooses by the exponential mechanism; or
            "histogram": nobody chooses from anything but noisy histograms.
        subsampling_ratio: chance of a record to be in a release, drawn by its node anew for each.
        sketch_rounds: trees before which noisy histograms of all features place the candidates.
        sketch_share, split_share: of (amplified) epsilon; the leaves have the rest.
        gradient: what happens to records whose gradient exceeds 1: "clip" or "filter" (left out, as in the paper).
        count_weight: how much a count weighs beside a gradient in a leaf's sensitivity.
        min_child_weight: a leaf whose noisy count is below it has the value 0.
        geometric_leaf_clip: whether the bound on a leaf's value, before the learning rate, falls by 1 - learning_rate
            with every tree, as DPBoost's does; of the noisy value, so it costs nothing and lowers no noise.
    """

    splits: str = checked(one_of("exponential", "histogram"), "exponential")
    subsampling_ratio: float = checked(number(1e-6, 1), 1.0)
    sketch_rounds: int = checked(integer(0, 6), 1)
    sketch_share: float = checked(number(0, 0.9), 0.05)
    split_share: float = checked(number(0.01, 0.95), 0.45)
    gradient: str = checked(one_of("clip", "filter"), "clip")
    count_weight: float = checked(number(0.01, 4), 0.25)
    min_child_weight: float = checked(number(0, 1e9), 0.0)
    geometric_leaf_clip: bool = checked(boolean, False)


SECTIONS: dict[str, type[Any]] = {"adassp": Adassp, "s-gbdt": SGbdt, "dp-xgboost": DpXgboost}
"""The section of each algorithm but "boosting"."""
_SHARED_FIELDS: dict[str, frozenset[str]] = {
    "adassp": frozenset({"algorithm", "structure_seed"}),
    "s-gbdt": frozenset(
        {
            "algorithm", "n_trees", "max_depth", "n_candidates", "learning_rate", "leaf_ridge", "noise_ridge",
            "leaf_clip", "split_candidates", "structure_seed",
        }
    ),
    "dp-xgboost": frozenset(
        {
            "algorithm", "n_trees", "max_depth", "n_candidates", "learning_rate", "leaf_ridge", "noise_ridge",
            "structure_seed",
        }
    ),
}
"""The fields of [model] that each algorithm reads; the others would be ignored, so they are refused."""


def section_of(algorithm: str) -> str:
    """The name of an algorithm's section."""
    return algorithm.replace("-", "_")


def check_algorithm(table: Mapping[str, Any], model: Any) -> None:
    """Raise PlanError for a section of another algorithm, or a field of [model] that the algorithm would not read."""
    for word in SECTIONS:
        section = section_of(word)
        if word != model.algorithm and section in table:
            raise refuse("model.algorithm", model.algorithm, f'"{word}" in a plan with the section [{section}]')
    if model.algorithm == "boosting":
        return
    for field in dataclasses.fields(model):
        value = getattr(model, field.name)
        if field.name not in _SHARED_FIELDS[model.algorithm] and value != field.default:
            shown = f'"{field.default}"' if isinstance(field.default, str) else str(field.default)
            raise refuse(f"model.{field.name}", value, f'{shown} (its default) with "{model.algorithm}"')


def check_pure(plan: Any) -> None:
    """Raise PlanError for what releases of pure differential privacy cannot do."""
    privacy, own = plan.privacy, plan.dp_xgboost
    is_pure = plan.model.algorithm == "dp-xgboost"
    if privacy.accountant == "pure" and not is_pure:
        raise refuse("privacy.accountant", "pure", '"gdp" or "rdp" with an algorithm whose noise is Gaussian')
    if not is_pure:
        return
    if privacy.noise != "server":
        raise refuse("privacy.noise", privacy.noise, '"server" with "dp-xgboost", whose noise has no shares')
    if own.subsampling_ratio < 1 and privacy.rows_per_unit > 1:
        # A unit of several rows is in a sample more often than one row is.
        raise refuse("dp_xgboost.subsampling_ratio", own.subsampling_ratio, "1 with several rows per unit")
    if own.sketch_share + own.split_share >= 1:
        raise refuse("dp_xgboost.split_share", own.split_share, "a share that leaves some for the leaves")
    rate = plan.model.learning_rate
    if own.geometric_leaf_clip and not isinstance(rate, str) and rate >= 1:
        # The second tree's leaves would have no room at all.
        raise refuse("model.learning_rate", rate, "below 1 with dp_xgboost.geometric_leaf_clip")
    if (own.sketch_rounds == 0) != (own.sketch_share == 0):
        raise refuse("dp_xgboost.sketch_share", own.sketch_share, "above 0 with sketch_rounds above 0, else 0")
