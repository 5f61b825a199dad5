"""The attacks on real runs: what they find where nothing protects, and that planted faults do not pass."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.app.attack import explain_attack, list_attack_facts
from hedgerow.client.node import Node
from hedgerow.data.binned import SiteData
from hedgerow.data.site_data import SiteRows, site_rows_from_records
from hedgerow.local.attacks import AttackReport, SampleAll, Target, run_attacks
from hedgerow.local.simulation import simulate_records
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import NoiseSource, SystemNoise
from tests.builders import FEATURES, LABELS, bare_plan, make_data, plans


def plan_of(label: str = "binary", **fields: Any) -> Plan:
    return bare_plan(LABELS[label], FEATURES, structure_seed=5, **{"n_records": 60, "n_trees": 8, **fields})


def made(plan: Plan) -> SiteRows:
    return site_rows_from_records([simulate_records(plan, 60, seed=1)], plan)


def found_in(target: Target) -> AttackReport:
    return run_attacks(target, np.random.default_rng(1), n_models=(6, 3, 3), n_corners=6, n_altered=4)


def test_an_attack_says_that_it_is_on_one_sum_where_a_plan_has_groups() -> None:
    """Whoever reads the figures of a plan with groups knows that no run of it has made such a sum."""
    grouped = plan_of(groups=3, min_sites=9)
    for plan, n_groups in ((grouped, 3), (plan_of(), 0)):
        target = Target(plan, made(plan))
        assert target.n_groups == n_groups and target.plan.federation.groups == 0
        bound = {"epsilon": 1.0, "delta": 1e-6, "mu": 0.2}
        found = {"bound": bound, "rows_per_unit": 1, "n_units": 60, "n_groups": target.n_groups}
        assert ("attacked" in dict(list_attack_facts(found))) == bool(n_groups)
        assert (f"{n_groups} groups" in explain_attack(found)) == bool(n_groups)
        # Figures of an earlier version do not say it.
        del found["n_groups"]
        assert "attacked" not in dict(list_attack_facts(found))


class HalfNoise(SystemNoise):
    """A fault: noise of half the size."""

    def sample(self, sigma: int, length: int, purpose: str) -> NDArray[np.int64]:
        return super().sample(max(1, sigma // 2), length, purpose)


def half_noise() -> NoiseSource:
    return HalfNoise(os.urandom)


class CountsFirstTwice(Target):
    """A fault: the first record of a site is counted twice."""

    def hold(self, rows: SiteData) -> SiteData:
        return rows.only(np.append(np.arange(rows.n_records), 0))


@pytest.mark.parametrize("label", sorted(LABELS))
def test_a_sound_run_passes(label: str) -> None:
    """Every kind of label: sums are what single rows add, none adds more than its sensitivity, and noise is whole."""
    found = found_in(Target(plan := plan_of(label), made(plan)))
    assert found.findings == ()
    assert found.signal.is_additive
    assert 0 < found.signal.mean <= found.signal.largest <= 1
    assert found.signal.planted <= 1


def test_half_the_noise_is_found() -> None:
    """Noise of half the size is a quarter of its variance."""
    found = found_in(Target(plan := plan_of(n_trees=30), made(plan), half_noise))
    assert any("variance" in finding for finding in found.findings)
    assert found.signal.kinds[0].noise == pytest.approx(0.25, abs=0.08)


def test_a_record_that_counts_twice_is_found() -> None:
    """A record that is in a sum twice adds four times the squared sensitivity."""
    found = found_in(CountsFirstTwice(plan := plan_of(), made(plan)))
    assert found.signal.is_additive is False
    assert found.signal.excess > 3.9
    assert len(found.findings) >= 3


def test_without_noise_the_attacks_find_members_and_the_table() -> None:
    """The attacks have power: where nothing protects, releases and the model file alone show who was there."""
    found = found_in(Target(plan := plan_of(epsilon=np.inf, n_trees=60), made(plan)))
    told = {(one.attack, one.targets): one.found.auc.value for one in found.membership}
    assert told["releases", "all"] > 0.95
    assert {one.source: one.share > 0.95 for one in found.reconstruction} == {"releases": True, "model file": True}
    assert all(one.chance < 0.6 for one in found.reconstruction)
    assert found.bound.auc == 1


def test_rows_of_one_person_are_attacked_together() -> None:
    """Where a plan protects persons, a target is a person with as many rows as the plan uses, and no more."""
    plan = plan_of(unit="person", max_rows_per_unit=2)
    rows = made(plan)
    rows = replace(rows, unit=np.array([f"p{row // 3}" for row in range(60)]))
    target = Target(plan, rows)
    assert len(target.units) == 20
    assert {len(unit) for unit in target.units} == {2}
    found = found_in(target)
    assert found.findings == ()
    # Two rows of one person that pull alike spend what is charged; single rows would spend a quarter of it.
    assert found.signal.planted > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields", [{"algorithm": "adassp"}, {"algorithm": "s-gbdt"}, {"algorithm": "dp-xgboost"}, {"noise": "local"}]
)
def test_other_methods_and_noise_are_attacked_as_well(fields: dict[str, Any]) -> None:
    """Samples, choices, Laplace noise, matrices and noise of each record: what can be looked at is, and fits."""
    plan = bare_plan(LABELS["binary"], FEATURES, structure_seed=5, n_records=60, **fields)
    found = found_in(Target(plan, made(plan)))
    assert found.findings == ()
    assert 0.5 <= found.bound.auc < 0.8


def draw_target(plan: Plan, n: int, seed: int) -> Target:
    """Rows of any plan, two of each unit that is not a record."""
    unit = None if plan.privacy.unit == "record" else np.array([f"p{row // 2}" for row in range(n)])
    return Target(plan, SiteRows(make_data(plan, n, seed), unit))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(plan=plans(), seed=st.integers(0, 2**32))
def test_a_unit_adds_what_its_node_alone_would_answer(plan: Plan, seed: int) -> None:
    """Candidates are replayed together for speed: each is still given its own sums, of whatever kind of release."""
    target = draw_target(plan, 6, seed)
    steps, _ = target.run(target.units)
    rows = target.select_rows(target.units)
    nodes = [Node("alone", own, target.plan, target.settings, 1, SampleAll()) for own in rows]
    replayed = {step.query.purpose: vectors for step, vectors in target.replay(steps, rows)}
    for step in steps:
        if step.query.is_choice:
            for node in nodes:
                node.finish(step.query)
        else:
            alone = np.array([node.sum_rows(step.query) for node in nodes])
            assert np.array_equal(replayed[step.query.purpose], alone)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(plan=plans(), seed=st.integers(0, 2**32))
def test_what_units_add_is_the_sum_and_no_more_than_charged(plan: Plan, seed: int) -> None:
    """Of any plan: the exact sums are what single units add, and none adds more than the ledger charges for."""
    target = draw_target(plan, 12, seed)
    steps, _ = target.run(target.units)
    for step, vectors in target.replay(steps, target.select_rows(target.units)):
        assert (vectors.sum(axis=0) == step.exact).all()
        assert step.measure_spending(vectors).max() <= step.claimed * (1 + 1e-9)
