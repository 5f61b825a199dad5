"""An attack on S-GBDT: the secret sample and the filter hide a record as well as the account says, or it is found."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from tests.server.audit import FAULTS, ROWS, attack_on, audit, epsilon_lower_bound, main_sgbdt_audit
from tests.tiers import all_but, every

SOUND = {name: plan for name, (plan, fault) in ROWS["sgbdt_audit"].items() if not fault}
FAULTY = {fault: plan for plan, fault in ROWS["sgbdt_audit"].values() if fault}
N_RUNS = {"weakened filter": 110, "rows that are not shortened": 80, "skipped clip": 200, "un-amplified sampler": 110}


@pytest.mark.parametrize(
    "name",
    every(3, ["binary, samples of 0.3, filter", "regression, samples, filter", "binary, filter, closing rounds"]),
)
def test_sampled_and_filtered_runs_keep_the_promise(name: str) -> None:
    """The best attack there is stays below the accounted epsilon."""
    found = audit(attack_on(SOUND[name]), 60)
    assert found.passed and 1.9 < found.epsilon_accounted <= 2


@pytest.mark.parametrize("fault", all_but(set(FAULTY) - {"rows that are not shortened"}, FAULTY))
def test_planted_faults_are_found(fault: str) -> None:
    """A filter that lets all through, a skipped clip, a sampler that takes all."""
    assert not audit(attack_on(FAULTY[fault], **FAULTS[fault]), N_RUNS[fault]).passed


@pytest.mark.slow
def test_what_the_faults_change_is_all_that_fails() -> None:
    """The plans on which faults are planted keep the promise without them, so it is the fault that is found."""
    assert all(audit(attack_on(plan), 30).passed for plan in FAULTY.values())


def test_the_bound_holds_with_the_confidence_that_is_claimed() -> None:
    """For randomised response of known epsilon the bound exceeds it in at most one of a thousand audits: exactly."""
    n, epsilon = 60, 1.0
    error = 1 / (1 + np.exp(epsilon))
    counts = np.arange(n + 1)
    weights = binom.pmf(counts, n, error)
    too_high = sum(
        weights[a] * weights[b]
        for a in counts
        for b in counts
        if weights[a] * weights[b] > 1e-12 and epsilon_lower_bound((int(a), n), (int(b), n), 0.0, 0.999) > epsilon
    )
    assert too_high <= 0.001


def test_the_experiment_says_when_it_is_not_as_expected(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With too few trainings no fault can be shown, and the command fails."""
    rows = {"one": (next(iter(SOUND.values())), ""), "fault": (FAULTY["skipped clip"], "skipped clip")}
    monkeypatch.setitem(ROWS, "sgbdt_audit", rows)
    assert main_sgbdt_audit(["--runs", "4"]) == 1
    assert "went unseen" in capsys.readouterr().err
