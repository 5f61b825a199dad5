"""What a policy allows is read off what is asked, whatever the columns are called."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.client.policy import Policy
from hedgerow.crypto import Identity
from hedgerow.errors import PolicyRefusal
from hedgerow.methods.tasks import SurveyTask, TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.secagg.messages import Roster, Site
from hedgerow.survey.requests import OpenTable
from tests.builders import coded, make_plan

PUBLIC = [Identity(hashlib.sha256(bytes([number])).digest()).public for number in range(5)]
ROSTER = Roster(PUBLIC[4], tuple(Site(f"s{number}", PUBLIC[number]) for number in range(4)))
NAMES = st.sampled_from(["a", "b", "(no label)", ""])


def policy(*labels: str) -> Policy:
    """One that allows surveys, and predictions of these columns."""
    return Policy(version=1, data_set="d", max_epsilon=9, delta=1e-5, surveys=True, labels=labels)


@given(labels=st.sets(NAMES.filter(bool)), label=NAMES, others=st.sets(NAMES.filter(bool), min_size=1))
def test_a_survey_is_refused_exactly_for_a_label_that_is_not_allowed(
    labels: set[str], label: str, others: set[str]
) -> None:
    """One that asks about no label asks for no prediction; a column that is called as if it was none is a column."""
    privacy = {"epsilon": 0.3, "delta": 1e-6, "noise": "distributed"}
    # A plan that carries a survey without a label has no column called as if it had none.
    others = others if label else others - {"(no label)"} | {"a"}
    columns = [{"name": name} for name in sorted(others | {label} - {""})]
    if {label} == others:
        columns.append({"name": "more"})
    task = SurveyTask(OpenTable({"privacy": privacy, "label": label, "columns": columns}))
    is_allowed = not labels or not label or label in labels
    try:
        policy(*labels).check_task(task, ROSTER)
    except PolicyRefusal as refused:
        assert refused.code == "policy-label" and not is_allowed
    else:
        assert is_allowed


def test_a_plan_that_predicts_a_column_of_that_name_is_refused() -> None:
    """What stands for no label in a survey is any table's right to call a column."""
    table = make_plan(noise="distributed").to_dict()
    table["label"]["name"] = "(no label)"
    with pytest.raises(PolicyRefusal, check=coded("policy-label")):
        policy("a").check_task(TrainingTask(Plan.from_dict(table)), ROSTER)
