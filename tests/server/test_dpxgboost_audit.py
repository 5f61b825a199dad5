"""An attack on DP-XGBoost: choices, Laplace sums and samples hide a record as well as the account says."""

from __future__ import annotations

import numpy as np
import pytest

from hedgerow.client.node import Node
from hedgerow.methods.dp_xgboost.trees import SplitSelection
from hedgerow.methods.registry import program_for, resolve
from tests.server.audit import FAULTS, ROWS, attack_on, audit, log_chances, main_dpxgboost_audit
from tests.tiers import every

SOUND = {name: plan for name, (plan, fault) in ROWS["dpxgboost_audit"].items() if not fault}
FAULTY = {name: row for name, row in ROWS["dpxgboost_audit"].items() if row[1]}


@pytest.mark.parametrize("name", every(len(SOUND), SOUND))
def test_runs_keep_the_promise(name: str) -> None:
    """The best attack there is stays below the accounted epsilon, which is the plan's."""
    found = audit(attack_on(SOUND[name]), 60)
    assert found.passed and 1.95 < found.epsilon_accounted <= 2


@pytest.mark.parametrize("name", every(len(FAULTY), FAULTY))
def test_planted_faults_are_found(name: str) -> None:
    """A skipped clip, too little noise, a choice that is none, a sampler that takes all; with a delta too."""
    plan, fault = FAULTY[name]
    assert not audit(attack_on(plan, **FAULTS[fault]), 240).passed


@pytest.mark.slow
def test_what_the_faults_change_is_all_that_fails() -> None:
    """The plans on which faults are planted keep the promise without them, and every fault has a plan."""
    assert {fault for rows in ROWS.values() for _, fault in rows.values()} == set(FAULTS)
    assert all(audit(attack_on(plan), 100).passed for plan, _ in FAULTY.values())


def test_the_chances_of_all_choices_add_up_to_one() -> None:
    """The adversary's likelihood is that of the exponential mechanism: per node the chances are a distribution."""
    plan = SOUND["binary, choices"]
    program = program_for(plan, resolve(plan))
    query = next(program)
    node = Node("one", attack_on(plan).records, plan, resolve(plan))
    while not isinstance(query, SplitSelection):
        query = program.send(node.answer(query))
    total = node.answer(query)
    places = [np.flatnonzero(part) for part in query.is_candidate.reshape(len(query.is_candidate), -1)]
    assert len(places) == 1 and len(places[0]) > 1
    chances = [np.exp(log_chances(query, total, np.array([place]))) for place in places[0]]
    assert sum(chances) == pytest.approx(1, abs=1e-12) and len(chances) > 1


def test_the_experiment_says_when_it_is_not_as_expected(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With too few trainings no fault can be shown, and the command fails."""
    monkeypatch.setitem(ROWS, "dpxgboost_audit", {"one": FAULTY["fault: skipped clip"]})
    assert main_dpxgboost_audit(["--runs", "4"]) == 1
    assert "went unseen" in capsys.readouterr().err
