"""The plan's sections for algorithms other than boosted trees: each is read only where `model.algorithm` says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hedgerow.protocol.plan_fields import checked, integer, number, one_of, refuse


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


SECTIONS: dict[str, type[Any]] = {"adassp": Adassp}
"""The section of each algorithm but "boosting"."""
_SHARED_FIELDS: dict[str, frozenset[str]] = {
    "adassp": frozenset({"algorithm"}),
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
