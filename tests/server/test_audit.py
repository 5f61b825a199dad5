"""An attack on real runs: nobody who sees the releases learns more about a record than was accounted for.

The audit can only disprove; so that its silence means something, it is also run on planted faults, which it must find.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, norm

from hedgerow.client.node import Node
from hedgerow.losses.registry import build_loss
from hedgerow.losses.tables import RECORD_NORM, Loss
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.training.presets import PRESETS
from tests.server import audit as audit_module
from tests.server.audit import (
    ALONE,
    FAULTS,
    OPEN,
    ROWS,
    attack_on,
    audit,
    mu_lower_bound,
    preset_plans,
    seeded_noise,
    small_plan,
)
from tests.tiers import with_long

pytestmark = pytest.mark.slow

N_RUNS = 1000
N_FAULTY = 400
"""Trainings in which a planted fault is found: fewer bound it less closely, but each of them is far off."""
DEFAULT = "binary, newton, adaptive"
LONG = ("fault: a record twice in its group", "count, most for the last release", "count, most for the level")
PLANS = {name: plan for name, (plan, fault) in ROWS["audit"].items() if not fault}


def with_loss(fault: Any) -> type[Node]:
    """A node whose loss is not the one that the coordinator computed sensitivities from."""

    class FaultyNode(Node):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.held.loss = fault(self.held.loss)

    return FaultyNode


def test_a_thousand_trainings_keep_the_promise() -> None:
    """The default method under the best attack there is: the bound stays below the accounted mu, and comes near it."""
    found = audit(attack_on(PLANS[DEFAULT]), N_RUNS)
    assert found.passed
    # A canary that hardly moved the sums would pass any audit.
    assert found.mu_estimate > 0.85 * found.mu_accounted


@pytest.mark.parametrize("name", [name for name in PLANS if name != DEFAULT])
def test_other_methods_keep_the_promise(name: str) -> None:
    """Every loss and update, paid candidates, batches, several rows of one person."""
    found = audit(attack_on(PLANS[name]), 400)
    assert found.passed and found.mu_estimate > 0.6 * found.mu_accounted


@pytest.mark.parametrize("name", with_long(["private bounds alone"], OPEN))
def test_bounds_that_are_found_privately_keep_the_promise(name: str) -> None:
    """A survey and the training by what it found, in one account; a row that the survey reads twice is seen."""
    attack, fault = OPEN[name]
    found = audit(attack, 200 if attack.trains else 600)
    assert found.passed == (not fault) and found.mu_estimate > 0.6 * found.mu_accounted


@pytest.mark.parametrize("name", with_long(LONG, ALONE))
def test_questions_that_have_little_of_a_run_keep_the_promise(name: str) -> None:
    """The last release with nearly all of mu^2, and evaluations by groups and by site; a fault of any is seen."""
    attack, fault = ALONE[name]
    found = audit(attack, 1000 if fault in ("twice", "half of one") else 400)
    assert found.passed == (not fault) and found.mu_estimate > 0.6 * found.mu_accounted


def test_rows_that_are_not_shortened_are_found() -> None:
    """A linear model's nodes that skip the clip of the row's norm, under a coordinator that noises for it."""
    plan = PLANS["adassp, hinge, short rows"]
    assert not audit(attack_on(plan, **FAULTS["rows that are not shortened"]), N_FAULTY).passed


@pytest.mark.parametrize("name", ["adassp, logistic", "adassp, regression"])
def test_too_little_noise_of_a_linear_model_is_found(name: str) -> None:
    """Half of the noise that the ledger claims, in both statistics."""
    assert not audit(attack_on(PLANS[name], noise=seeded_noise(0.5)), N_FAULTY).passed


def test_every_private_preset_is_audited_as_it_is() -> None:
    """`audit --presets` leaves none of boosted trees out, and audits its own split method, candidates, update, noise
    and accountant; every other algorithm has plans in an audit of its own."""
    plans = preset_plans()
    others = {name: preset.model["algorithm"] for name, preset in PRESETS.items() if "algorithm" in preset.model}
    assert set(plans) == {name for name, preset in PRESETS.items() if preset.private} - set(others)
    audited = [plan for rows in ROWS.values() for plan, fault in rows.values() if not fault]
    assert set(others.values()) <= {plan.model.algorithm for plan in audited}
    for name, plan in plans.items():
        smaller = {"n_trees", "max_depth", "batch_size"}
        for field, value in PRESETS[name].model.items():
            assert field in smaller or getattr(plan.model, field) == value
        assert plan.privacy.accountant == PRESETS[name].accountant
        assert plan.privacy.noise == PRESETS[name].privacy.get("noise", "server")


@pytest.mark.long
@pytest.mark.parametrize("name", ["ldp", "dp-gbm"])
def test_half_the_noise_of_a_preset_is_found(name: str) -> None:
    """One record's noise by itself in the local model; and the preset whose records move its sums least."""
    plan = preset_plans()[name]
    assert audit(attack_on(plan), 300).passed
    assert not audit(attack_on(plan, noise=seeded_noise(0.5)), 600).passed


def test_the_exact_sampler_keeps_the_promise() -> None:
    """The sampler of real runs, driven by seeds, in fewer trainings: it is slower."""
    found = audit(attack_on(PLANS[DEFAULT], noise=lambda run: SeededNoise(run)), 200)
    assert found.passed and found.mu_estimate > 0.6 * found.mu_accounted


def test_too_little_noise_is_found() -> None:
    """Half of the noise that the ledger claims."""
    assert not audit(attack_on(PLANS[DEFAULT], noise=seeded_noise(0.5)), N_FAULTY).passed


def test_a_record_that_counts_twice_is_found() -> None:
    """A row that was read twice, or a unit with more rows than the plan allows."""
    assert not audit(attack_on(PLANS[DEFAULT], **FAULTS["contributions counted twice"]), N_FAULTY).passed


def test_a_doubled_table_is_found() -> None:
    """A loss whose statistics are twice what the sensitivity was computed for."""

    def doubled(loss: Loss) -> Loss:
        assert np.abs(loss.table.astype(np.int64)).max() < 2**14 + 1
        return dataclasses.replace(loss, table=np.minimum(2 * loss.table.astype(np.int64), 2**15 - 1).astype(np.int16))

    assert not audit(attack_on(PLANS[DEFAULT], kind=with_loss(doubled)), N_FAULTY).passed


def test_a_skipped_clip_is_found() -> None:
    """Nodes that do not clip, under a coordinator that noises for the clip."""
    clip = 0.55
    plan: Plan = small_plan("binary", 6.0, {"joint_clip": clip})
    free = build_loss(plan)
    scale = RECORD_NORM / clip / free.scales[0]
    unclipped = np.trunc(free.table * scale)
    assert np.abs(unclipped).max() < 2**15
    unclips = with_loss(lambda loss: dataclasses.replace(loss, table=unclipped.astype(np.int16)))
    assert not audit(attack_on(plan, kind=unclips), N_FAULTY).passed
    assert audit(attack_on(plan), N_FAULTY).passed


def test_the_bound_holds_with_the_confidence_that_is_claimed() -> None:
    """For a mechanism of known mu the bound exceeds it in at most one of a thousand audits: summed exactly."""
    n, mu = 60, 1.0
    error_rate = float(norm.cdf(-mu / 2))
    counts = np.arange(n + 1)
    weights = binom.pmf(counts, n, error_rate)
    too_high = sum(
        weights[a] * weights[b]
        for a in counts
        for b in counts
        if weights[a] * weights[b] > 0 and mu_lower_bound(int(a), n, int(b), n, 0.999) > mu
    )
    assert too_high <= 0.001


def test_the_bound_of_extreme_counts_is_a_number() -> None:
    """No error at all, or nothing but errors, still gives a bound; more trainings give a better one."""
    assert mu_lower_bound(500, 500, 500, 500, 0.999) == 0
    assert mu_lower_bound(250, 500, 250, 500, 0.999) == 0
    bounds = [mu_lower_bound(0, n, 0, n, 0.999) for n in (1, 10, 100, 1000)]
    assert bounds == sorted(bounds) and np.isfinite(bounds).all() and bounds[-1] > 4


def test_the_canary_is_the_only_difference() -> None:
    """The audit compares neighbouring data: the same records, and one unit more."""
    attack = attack_on(PLANS["binary, 3 rows per patient"])
    assert attack.records.n_records == 40 and attack.canary.n_records == 3


@pytest.mark.long
def test_the_experiment_prints_its_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m experiments audit` exits with 1 when a planted fault goes unseen, as in too few trainings."""
    # Each plan and each fault has a test above; here are one of either, and a survey's.
    (fault, *_) = (name for name, row in ROWS["audit"].items() if row[1])
    monkeypatch.setitem(ROWS, "audit", {name: ROWS["audit"][name] for name in (DEFAULT, fault)})
    monkeypatch.setattr(audit_module, "OPEN", {name: attack for name, attack in OPEN.items() if attack[1]})
    monkeypatch.setattr(audit_module, "ALONE", {})
    assert audit_module.main(["--runs", "600"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("BROKEN") == 2 and printed.count("within the promise") == 1
    assert audit_module.main(["--runs", "6"]) == 1
