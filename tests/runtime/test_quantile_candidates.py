"""Candidates at exact quantiles: right, for comparison only, and refused wherever sums without noise are."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hedgerow import DPGBDTClassifier
from hedgerow.client.node import Node
from hedgerow.client.policy import Policy
from hedgerow.errors import PlanError, PolicyRefusal, PrivacyError
from hedgerow.local.training import train
from hedgerow.methods.registry import program_for, resolve
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.events import GaussianEvent, UnnoisedEvent
from hedgerow.privacy.ledger import Ledger, Release
from hedgerow.privacy.noise import SeededNoise, SystemNoise
from hedgerow.privacy.report import check_claims
from hedgerow.protocol.queries import Query
from hedgerow.server.release import UNCOUNTED, PlainAggregation, check_report, run_program
from hedgerow.trees.binning import build_grid
from hedgerow.trees.histograms import Histogram
from tests.builders import make_data, make_plan

if TYPE_CHECKING:
    from conftest import Builder

QUANTILE = {"split_candidates": "quantile"}
N_CANDIDATES = 5
RULES: dict[str, Any] = {"version": 1, "data_set": "d", "delta": 1e-5, "noise": ("server",)}


def asked(plan: Plan) -> list[Query]:
    """The queries of a run."""
    settings, queries = resolve(plan), []
    sums = PlainAggregation([Node("a", make_data(plan, 60, 1), plan, settings)])
    run_program(
        plan, program_for(plan, settings), sums, SeededNoise(1), UNCOUNTED, lambda query, _: queries.append(query)
    )
    return queries


@pytest.mark.parametrize("label", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize("update", ["newton", "gradient"])
def test_candidates_are_the_quantiles_of_the_rows(label: str, update: str) -> None:
    """An oracle sorts every feature's codes: each cut has the share of rows to its left nearest to q / (Q+1)."""
    model = {**QUANTILE, "n_candidates": N_CANDIDATES, "weight_update": update, "n_trees": 40}
    # A start has cuts of its own.
    model |= {"start": "none"} if label == "regression" else {}
    plan = make_plan(label, model, {"n_records": 997})
    settings, data, grid = resolve(plan), make_data(plan, 997, 3), build_grid(plan)
    sums = PlainAggregation([Node("a", data, plan, settings)])
    outcome = run_program(plan, program_for(plan, settings), sums, SeededNoise(1), UNCOUNTED)
    trees = outcome.ensemble.fitted.trees
    for index, feature in enumerate(grid.features):
        if feature.is_categorical:
            continue
        codes = np.sort(data.codes[index][data.codes[index] < feature.n_cells])
        left = np.searchsorted(codes, np.arange(feature.n_cells - 1), side="right")
        wanted = [len(codes) * q / (N_CANDIDATES + 1) for q in range(1, N_CANDIDATES + 1)]
        nearest = {mass: np.abs(left - mass).min() for mass in wanted}
        # Where no candidate divides a node, all its values go left.
        everything = list(range(feature.n_cells - 1, grid.n_codes))
        used = set(trees.threshold[trees.feature == index].tolist()).difference([-1, *everything])
        assert used and len(used) <= N_CANDIDATES
        for cut in used:
            assert any(abs(left[cut] - mass) <= nearest[mass] + 0.01 for mass in wanted)


@pytest.mark.parametrize("method", ["totally_random", "hist", "partially_random"])
def test_counts_are_asked_for_once(method: str) -> None:
    """One exchange more, without noise, before everything else; the other releases cost what they did."""
    model = {**QUANTILE, "split_method": method, "batch_size": 2}
    plan = make_plan(model=model)
    queries = asked(plan)
    assert [isinstance(query, Histogram) for query in queries] == [True] + [False] * (len(queries) - 1)
    assert [query.noise_multiplier == 0 for query in queries] == [True] + [False] * (len(queries) - 1)
    assert len(queries) == resolve(plan).schedule(plan).n_rounds
    assert queries[0].length <= resolve(plan).schedule(plan).longest
    uniform = make_plan(model={**model, "split_candidates": "uniform"})
    assert resolve(plan).noise_multiplier == pytest.approx(resolve(uniform).noise_multiplier, rel=1e-5)
    assert get_accountant("gdp").epsilon(resolve(plan).schedule(plan).events, 1e-5) == math.inf


def test_the_report_says_what_happened() -> None:
    """Real noise does not save it: epsilon is infinite, void, and the reason is in the file."""
    plan = make_plan(model=QUANTILE)
    model = train(plan, {"a": make_data(plan, 60, 1)}, noise=SystemNoise(os.urandom))
    report = model.report
    assert report.epsilon == math.inf and report.guarantee == "void" and report.candidates_from_data
    assert any("exact quantiles" in reason for reason in report.voided_by)
    assert isinstance(next(iter(model.ledger)).event, UnnoisedEvent)
    check_claims(json.loads(json.dumps(report.to_dict())), report)
    noised = [event for event in model.ledger.events() if not isinstance(event, UnnoisedEvent)]
    assert 0.99 * plan.privacy.epsilon <= get_accountant("gdp").epsilon(noised, 1e-5) <= plan.privacy.epsilon


def test_what_is_noised_still_keeps_to_epsilon() -> None:
    """A void guarantee is no excuse for a program that releases more than it declared."""
    plan = make_plan(model=QUANTILE)
    ledger = Ledger().append(Release("0/Histogram/x", 0, "Histogram", UnnoisedEvent(), 3, 1.0, 0.0))
    check_report(plan, ledger, SeededNoise(1))
    ledger = ledger.append(Release("1/LeafSums/x", 1, "LeafSums", GaussianEvent(0.1), 3, 1.0, 0.1))
    with pytest.raises(PrivacyError) as caught:
        check_report(plan, ledger, SeededNoise(1))
    assert caught.value.code == "budget-exceeded"


def test_a_policy_refuses_them_unless_sums_without_noise_are_allowed() -> None:
    """The plan, and the query by itself; the evaluation of such a model reads no quantiles."""
    plan = make_plan(model=QUANTILE)
    query = next(program_for(plan))
    strict, open_policy = Policy(**RULES, max_epsilon=9.0), Policy(**RULES, max_epsilon=math.inf)
    for check in (lambda: strict.check_plan(plan), lambda: strict.check_query(query)):
        with pytest.raises(PolicyRefusal) as caught:
            check()
        assert caught.value.code == "policy-unnoised"
    strict.check_plan(plan, 1.0)
    open_policy.check_plan(plan)
    open_policy.check_query(query)


def test_a_federation_refuses_them_or_makes_the_local_engines_model(federate: Builder) -> None:
    """Over the protocol: every node refuses by its policy; where all owners allow it, the model is the same."""
    plan = make_plan(model=QUANTILE)
    names = [f"site-{number}" for number in range(4)]
    allowed = federate(4, plan, policies={name: Policy(**RULES, max_epsilon=math.inf) for name in names})
    outcome = allowed.run()
    assert outcome.report.guarantee == "void"
    assert allowed.model_bytes(outcome) == train(plan, allowed.data, noise=SeededNoise(1)).to_bytes()
    refused = federate(4, dataclasses.replace(plan, name="other"), name="refused")
    with pytest.raises(Exception, match=r".") as caught:
        refused.run()
    assert not isinstance(caught.value, AssertionError)
    assert {fault.code for party in refused.parties.values() for fault in party.failures} == {"policy-unnoised"}


def test_an_estimator_says_so() -> None:
    """By its parameter, with its report."""
    random = np.random.default_rng(1)
    x = random.normal(size=(200, 2))
    model = DPGBDTClassifier(
        bounds=[(-3, 3)] * 2, classes=[0, 1], n_records=200, n_trees=4, split_candidates="quantile", random_state=1
    )
    model.fit(x, (x[:, 0] > 0).astype(int))
    assert model.privacy_report_.epsilon == math.inf and model.privacy_report_.candidates_from_data


@pytest.mark.parametrize("other", [{"algorithm": "s-gbdt"}, {"weight_update": "averaging"}])
def test_where_there_are_none(other: dict[str, str]) -> None:
    """S-GBDT's candidates come from its own releases, and sums of averages hold no weight of a record."""
    with pytest.raises(PlanError, match="split_candidates"):
        make_plan(model={**QUANTILE, **other})
