# SPDX-License-Identifier: Apache-2.0
"""Boosted linear models by AdaSSP: the section [adassp] of a plan, and the method's parts."""

from __future__ import annotations

from dataclasses import dataclass

from hedgerow.methods import Method, Parts
from hedgerow.plan.fields import define_field, integer, number, one_of, refuse
from hedgerow.plan.plan import MANY_CATEGORIES, Plan
from hedgerow.plan.registry import own_section


@dataclass(frozen=True, kw_only=True)
class Adassp:
    """Boosted linear models by AdaSSP (Rho et al. 2022, Algorithm 2).

    "auto" is decided from public numbers only.

    Attributes:
        loss: the loss whose gradients are fitted; a regression has the squared loss only ("auto").
        rounds: T, the number of rounds that ask for X^T g.
        scale: the value of a numeric feature: the number of its grid cell, half linear and half logarithmic ("grid"),
            or the cell's middle ("linear").
        row_norm: largest norm of a record's row, whose entries lie in [-1, 1]; longer rows are shortened. "auto" is the
            largest norm that the schema allows, so that no row is.
        gradient_clip: largest |g| of the squared loss.
        gram_share: share of mu² that X^T X takes.
        ridge: lambda per sqrt(p) standard deviations of the noise on X^T X, before its least eigenvalue is subtracted.
            Left out, 1.5 where slopes are shrunk, and else 0.5: with that little, the second of a regression's two
            rounds can overshoot where columns hardly vary.
        learning_rate: the factor on each round's coefficients.
        shrinkage: share of the noise's expected part that slopes are shrunk by, after the constant was taken out; 0
            for the paper's step. Left out, 1 for a regression and 0 for classes.
    """

    loss: str = define_field(one_of("auto", "squared", "logistic", "hinge"), "auto")
    rounds: int | str = define_field(integer(1, 10_000, "auto"), "auto")
    scale: str = define_field(one_of("grid", "linear"), "grid")
    row_norm: float | str = define_field(number(0.1, 1000, "auto"), "auto")
    gradient_clip: float = define_field(number(0.01, 1), 1.0)
    gram_share: float = define_field(number(0, 1, exclusive=True), 0.6)
    ridge: float | None = define_field(number(0, 100), None)
    learning_rate: float = define_field(number(0, 10, exclusive=True), 1.0)
    shrinkage: float | None = define_field(number(0, 1), None)

    @classmethod
    def of(cls, plan: Plan) -> Adassp:
        """Return the section of a plan of this method; ValueError for another method's plan."""
        return own_section(cls, plan)


def check(plan: Plan) -> None:
    """Raise PlanError for a plan that contradicts itself."""
    if plan.label.kind.is_number and Adassp.of(plan).loss not in ("auto", "squared"):
        raise refuse("adassp.loss", Adassp.of(plan).loss, '"squared" for a regression')
    for index, feature in enumerate(plan.features):
        # Each is a column of X^T X.
        if len(feature.categories) > MANY_CATEGORIES:
            n_most = f"at most {MANY_CATEGORIES} categories with adassp"
            raise refuse(f"features[{index}].categories", len(feature.categories), n_most)


def _parts() -> Parts:
    from hedgerow.methods.adassp.program import boost_adassp
    from hedgerow.methods.adassp.settings import resolve_adassp

    return Parts(resolve_adassp, boost_adassp)


METHOD = Method(
    section=Adassp,
    model_fields=frozenset({"calibration", "structure_seed"}),
    labels=("binary", "regression"),
    check=check,
    parts=_parts,
    is_constrained=True,
    has_leaves=False,
    counts_prepared=True,
)
