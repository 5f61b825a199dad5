"""Plans of other algorithms than boosted trees: their own sections, and nothing that would silently be ignored."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from hedgerow.errors import PlanError
from hedgerow.plan.plan import Plan

LABELS: dict[str, dict[str, Any]] = {
    "binary": {"name": "y", "type": "binary", "classes": ["0", "1"]},
    "multiclass": {"name": "y", "type": "multiclass", "classes": ["0", "1", "2"]},
    "regression": {"name": "y", "type": "regression", "min": 0, "max": 1},
}
TABLE: dict[str, Any] = {
    "version": 1,
    "features": [{"name": "x", "type": "numeric", "min": 0, "max": 1}],
    "label": LABELS["binary"],
    "privacy": {"epsilon": 1.0, "delta": 1e-6, "n_records": 1000},
}


def table(label: str = "binary", **sections: Any) -> dict[str, Any]:
    return {**copy.deepcopy(TABLE), "label": LABELS[label], **sections}


def refused(given: dict[str, Any]) -> PlanError:
    with pytest.raises(PlanError) as caught:
        Plan.from_dict(given)
    assert caught.value.remedy
    return caught.value


def test_a_plan_of_boosted_trees_is_written_as_before_there_were_other_algorithms() -> None:
    """Its digest, which rosters, journals and model files hold, does not change with the version."""
    plan = Plan.from_dict(table())
    assert "algorithm" not in plan.to_dict()["model"] and "adassp" not in plan.to_dict()
    assert Plan.from_dict(table(model={"algorithm": "boosting"})).digest == plan.digest


def test_an_algorithms_plan_is_read_back_equal() -> None:
    """Model and section survive; two different sections are two plans."""
    plan = Plan.from_dict(table(model={"algorithm": "adassp"}, adassp={"rounds": 3, "loss": "hinge"}))
    assert Plan.from_dict(plan.to_dict()) == plan
    assert plan.own.rounds == 3
    other = Plan.from_dict(table(model={"algorithm": "adassp"}, adassp={"rounds": 4, "loss": "hinge"}))
    assert other.digest != plan.digest


def test_a_section_of_another_algorithm_is_refused() -> None:
    """Settings that nobody reads would be believed to be in force."""
    assert "adassp" in refused(table(adassp={"rounds": 3})).what + refused(table(adassp={"rounds": 3})).remedy


def test_a_field_of_trees_is_refused_where_there_are_none_to_make() -> None:
    """The message names the field."""
    error = refused(table(model={"algorithm": "adassp", "n_trees": 50}))
    assert error.what.startswith("model.n_trees") and error.code == "plan-field"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("loss", "absolute"), ("rounds", 0), ("rounds", 2.5), ("scale", "rank"), ("row_norm", 0), ("row_norm", "all"),
        ("gradient_clip", 0), ("gradient_clip", 3), ("gram_share", 0), ("gram_share", 1), ("ridge", -1),
        ("learning_rate", 0), ("learning_rate", True),
    ],
)  # fmt: skip
def test_a_bad_value_of_adassp_is_refused_by_the_name_of_its_field(field: str, value: Any) -> None:
    """As in every other section."""
    error = refused(table(model={"algorithm": "adassp"}, adassp={field: value}))
    assert error.what.startswith(f"adassp.{field}") and error.code == "plan-field"


def test_labels_that_an_algorithm_has_no_loss_for_are_refused() -> None:
    """Several classes; classes' losses for a number."""
    assert refused(table("multiclass", model={"algorithm": "adassp"})).what.startswith("label.type")
    assert refused(table("regression", model={"algorithm": "adassp"}, adassp={"loss": "hinge"})).what.startswith(
        "adassp.loss"
    )
