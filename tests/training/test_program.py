"""Programs: what they ask follows from the plan and the releases alone, and never costs more than was promised."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.client.node import Node
from hedgerow.methods.registry import program_for, resolve
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.calibration import noise_of
from hedgerow.privacy.ledger import Ledger
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.queries import Query
from hedgerow.server.release import UNCOUNTED, Releaser
from hedgerow.training.settings import Settings
from hedgerow.trees.ensemble import Ensemble, ensemble_from_dict, ensemble_to_dict
from hedgerow.trees.histograms import Histogram
from hedgerow.trees.leaf_sums import LeafSums
from tests.builders import make_data, make_plan, plans, take

Releases = list[NDArray[np.int64]]


def replay(plan: Plan, seed: int, size: int) -> tuple[list[Query], Ensemble, Ledger]:
    """Run a program on releases that have nothing to do with any data; the ledger holds what they would cost."""
    random = np.random.default_rng(seed)
    releaser, queries = Releaser(_NoNoise(), UNCOUNTED), []
    program = program_for(plan)
    query = next(program)
    while True:
        queries.append(query)
        release = random.integers(-size, size + 1, query.length)
        assert (releaser.release(query, release) == release).all()
        try:
            query = program.send(release)
        except StopIteration as finished:
            return queries, finished.value, releaser.ledger


class _NoNoise:
    """The releases are arbitrary already; what counts here is what the ledger says about them."""

    seeded, approximate = True, False

    def sample(self, sigma: int, length: int, purpose: str) -> NDArray[np.int64]:
        return np.zeros(length, dtype=np.int64)


def content(value: object) -> object:
    """Everything in a query, arrays as bytes, so that two queries can be compared to the last bit."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    if dataclasses.is_dataclass(value):
        return [(field.name, content(getattr(value, field.name))) for field in dataclasses.fields(value)]
    if isinstance(value, tuple | list):
        return [content(item) for item in value]
    if isinstance(value, dict):
        return [(name, content(item)) for name, item in value.items()]
    return value


@settings(max_examples=60)
@given(data=st.data(), seed=st.integers(0, 10**6), size=st.sampled_from([0, 100, 2**20, 2**50]))
def test_queries_follow_from_the_plan_and_the_releases(data: st.DataObject, seed: int, size: int) -> None:
    """Whoever replays the releases gets the same queries and the same model: nothing else can have gone into them."""
    plan = data.draw(plans())
    queries, ensemble, _ = replay(plan, seed, size)
    again, same, _ = replay(plan, seed, size)
    assert content(queries) == content(again)
    assert content(ensemble) == content(same)
    declared = resolve(plan)
    n = len(plan.features)
    begins = {"none": 0, "hazards": 0, "linear hazards": n, "mean": 1, "level": 1, "linear": 1 + n}[declared.start]
    assert ensemble.n_trees == begins + declared.n_trees + (declared.calibration == "odds")


@settings(max_examples=120)
@given(data=st.data(), seed=st.integers(0, 10**6), size=st.sampled_from([0, 2**20]))
def test_a_run_never_costs_more_than_its_plan(data: st.DataObject, seed: int, size: int) -> None:
    """For every combination of method, batch, unit, epsilon, delta, accountant: one event each, within the promise."""
    plan = data.draw(plans(min_epsilon=0.01, max_epsilon=60.0))
    queries, _, ledger = replay(plan, seed, size)
    purposes = [str(query.purpose) for query in queries]
    assert len(set(purposes)) == len(purposes) == len(ledger)
    assert [release.purpose for release in ledger] == purposes
    assert [query.purpose.round for query in queries] == list(range(len(queries)))
    judge = get_accountant(plan.privacy.accountant)
    spent = judge.epsilon(ledger.events(), plan.privacy.delta)
    assert spent <= plan.privacy.epsilon
    # Nothing is wasted either, but for what the integer grid costs when epsilon is large.
    assert spent >= (0.999 if plan.privacy.epsilon < 2 and plan.privacy.delta > 1e-8 else 0.7) * plan.privacy.epsilon
    assert Ledger.from_json(ledger.to_json()) == ledger


@settings(max_examples=60)
@given(data=st.data())
def test_weights_declared_before_cover_the_queries_asked(data: st.DataObject) -> None:
    """The sum of 1 / multiplier² over all queries is what calibration divided by: no query is left out of it."""
    plan = data.draw(plans())
    queries, _, _ = replay(plan, 1, 1000)
    weight = math.fsum(1 / query.noise_multiplier**2 for query in queries)
    declared = resolve(plan)
    pays = plan.model.split_candidates == "iterative_hessian" and plan.model.weight_update != "averaging"
    rounds = sum(isinstance(query, Histogram) for query in queries)
    assert pays or rounds == 0
    assert rounds <= plan.model.candidate_rounds
    whole = (declared.n_trees + rounds * len(plan.features)) / declared.share_of_trees
    wanted = whole / declared.noise_multiplier**2
    assert weight == pytest.approx(wanted, rel=1e-12)


@settings(max_examples=50)
@given(data=st.data(), seed=st.integers(0, 10**6))
def test_contributions_keep_to_what_queries_state(data: st.DataObject, seed: int) -> None:
    """One unit's rows, answered by a real node through a whole run, never exceed bound, length or sensitivity."""
    plan = data.draw(plans())
    rows = plan.privacy.max_rows_per_unit
    unit = take(make_data(plan, 1, seed), np.zeros(rows, dtype=int))  # its rows are all alike
    node = Node("unit", unit, plan, resolve(plan))
    random = np.random.default_rng(seed)
    program = program_for(plan)
    query = next(program)
    while True:
        answer = node.answer(query)
        assert answer.shape == (query.length,)
        assert int((answer**2).sum()) <= query.sensitivity_squared
        assert int(np.abs(answer).max()) <= query.bound * rows
        try:
            query = program.send(answer + np.rint(random.normal(0, 2**16, query.length)).astype(np.int64))
        except StopIteration:
            return


@settings(max_examples=40)
@given(data=st.data(), seed=st.integers(0, 10**6))
def test_nodes_and_programs_agree_on_the_ensemble(data: st.DataObject, seed: int) -> None:
    """A node's scores after a run are the model's own predictions but for the last batch, to the last bit."""
    check_agreement(data.draw(plans()), seed)


@pytest.mark.parametrize("label", ["binary", "multiclass", "regression", "count", "survival"])
@pytest.mark.parametrize("batch_size", [1, 2, 3, "all"])
@pytest.mark.parametrize("candidates", ["adaptive", "iterative_hessian", "quantile"])
def test_every_update_arrives_once(label: str, batch_size: int | str, candidates: str) -> None:
    """Also where histograms come between two batches: the first question after a batch carries its trees, no other."""
    model = {"split_candidates": candidates, "candidate_rounds": 5, "batch_size": batch_size, "n_trees": 6}
    check_agreement(make_plan(label, model), 1)


def check_agreement(plan: Plan, seed: int) -> None:
    own = make_data(plan, 30, seed)
    node = Node("site", own, plan, resolve(plan))
    program, query, last = program_for(plan), None, 0
    query = next(program)
    while True:
        last = query.trees.n_trees if isinstance(query, LeafSums) else last
        try:
            query = program.send(node.answer(query))
        except StopIteration as finished:
            ensemble = finished.value
            break
    # Whoever trained it can keep it and read it again.
    again = ensemble_from_dict(json.loads(json.dumps(ensemble_to_dict(ensemble))), plan)
    np.testing.assert_array_equal(again.scores(own.codes), ensemble.scores(own.codes))
    if resolve(plan).calibration in ("odds", "hazards"):
        # The last question is about finished scores; the model is these, stretched, and one value more.
        scores, finished = node.held.records.scores[0] / 2**16, ensemble.scores(own.codes)[0]
        assert np.ptp(finished - ensemble.stretch * scores) <= ensemble.n_trees * 2**-15
        return
    if resolve(plan).calibration in ("line", "means"):
        # The last question is about finished scores; the model is these, shifted and stretched.
        scores, finished = node.held.records.scores[0] / 2**16, ensemble.scores(own.codes)[0]
        line = np.polyfit(scores, finished, 1) if np.ptp(scores) > 0 else (0.0, finished.mean())
        np.testing.assert_allclose(finished, np.polyval(line, scores), atol=max(1, ensemble.n_trees) * 2**-15)
        return
    if resolve(plan).levels:
        # Nothing but the level has changed since.
        moved = ensemble.scores(own.codes) - node.held.records.scores / 2**16
        assert np.ptp(moved, axis=1).max() == 0
        return
    if plan.model.weight_update == "averaging":
        return
    fitted = ensemble.fitted
    kept = ensemble.n_trees - last
    trees = dataclasses.replace(
        fitted.trees, feature=fitted.trees.feature[:kept], goes_left=fitted.trees.goes_left[:kept],
        threshold=fitted.trees.threshold[:kept],
    )  # fmt: skip
    before = dataclasses.replace(ensemble, fitted=dataclasses.replace(fitted, trees=trees, values=fitted.values[:kept]))
    scores = node.held.records.scores / 2**16
    np.testing.assert_array_equal(before.scores(own.codes) if kept else np.zeros_like(scores), scores)


@pytest.mark.parametrize("candidates", ["uniform", "log"])
@pytest.mark.parametrize("interaction", ["cyclical", "random"])
def test_fixed_structures_do_not_react_to_releases(candidates: str, interaction: str) -> None:
    """With fixed candidates and orders the trees are known before training: whatever is released, they are the same."""
    model = {"split_candidates": candidates, "interaction": interaction, "interaction_size": 2, "n_trees": 6}
    plan = make_plan(model=model)
    first, second = replay(plan, 1, 10)[0], replay(plan, 2, 2**40)[0]
    for one, other in zip(first, second, strict=True):
        assert isinstance(one, LeafSums) and isinstance(other, LeafSums)
        assert content(one.trees) == content(other.trees)


def test_adaptive_structures_do_react() -> None:
    """Without this the test above would also pass for a program that ignores its releases."""
    plan = make_plan(model={"split_candidates": "adaptive", "interaction": "adaptive", "n_trees": 12})
    first, second = replay(plan, 1, 2**10)[0], replay(plan, 2, 2**40)[0]
    trees = [[content(query.trees) for query in run if isinstance(query, LeafSums)] for run in (first, second)]
    assert trees[0][:4] == trees[1][:4] and trees[0] != trees[1]


def test_a_program_sees_nothing_but_plan_and_releases() -> None:
    """The generator takes a plan and its settings; there is no way in for a record, a clock or a source of noise."""
    assert set(inspect.signature(program_for).parameters) == {"plan", "settings"}


def test_settings_of_all_methods_are_no_method_s_own() -> None:
    """Whoever writes a method inherits no number of another one, and says what its runs ask for."""
    assert {field.name for field in dataclasses.fields(Settings)} == {"n_trees", "max_depth", "noise_multiplier"}
    assert Settings.__abstractmethods__ == {"schedule"}


def test_the_seed_of_the_plan_changes_the_trees() -> None:
    """Two plans that differ in their structure seed have other trees; two equal plans the same."""
    trees = [content(replay(make_plan(model={"structure_seed": s}), 0, 9)[0][0].trees) for s in (1, 2, 1)]  # type: ignore[attr-defined]
    assert trees[0] == trees[2] != trees[1]


@pytest.mark.parametrize("method", ["adaptive", "iterative_hessian"])
def test_without_a_bound_on_epsilon_nothing_is_noised_and_the_ledger_says_so(method: str) -> None:
    """epsilon = inf is a comparison, not a guarantee: every event is un-noised and costs infinity."""
    plan = make_plan(privacy={"epsilon": math.inf}, model={"split_candidates": method})
    queries, _, ledger = replay(plan, 1, 100)
    assert all(query.noise_multiplier == 0 for query in queries)
    assert get_accountant("gdp").epsilon(ledger.events(), 1e-5) == math.inf


def test_a_ledger_names_kinds_as_policies_do() -> None:
    """The kind in a query's purpose, which ledgers keep and policies allow, is the name of its class."""
    plan = make_plan(model={"split_candidates": "iterative_hessian"})
    for query in replay(plan, 1, 100)[0]:
        assert query.purpose.kind == type(query).__name__


def test_paid_histograms_come_first_and_no_more_than_declared() -> None:
    """Algorithm 2 pays for `candidate_rounds` histograms, before the first trees, whatever the batch size."""
    for batch_size, n_trees in ((1, 6), (3, 6), ("all", 2), (4, 5)):
        model = {"split_candidates": "iterative_hessian", "candidate_rounds": 3}
        model |= {"batch_size": batch_size, "n_trees": n_trees}
        kinds = [isinstance(query, Histogram) for query in replay(make_plan(model=model), 1, 100)[0]]
        assert kinds[0] and sum(kinds) == (2 if n_trees == 2 else 3)


@pytest.mark.parametrize("rows", [1, 7, 10**6])
def test_more_rows_per_unit_cost_more_noise(rows: int) -> None:
    """A patient with r rows can move a sum r times as far; the noise grows by r, up to the largest r of any plan."""
    unit = "record" if rows == 1 else "patient"
    plan = make_plan(privacy={"unit": unit, "max_rows_per_unit": rows})
    query = replay(plan, 0, 0)[0][0]
    single = replay(make_plan(), 0, 0)[0][0]
    assert query.sensitivity_squared == rows**2 * single.sensitivity_squared
    assert noise_of(query).central_sigma == pytest.approx(rows * noise_of(single).central_sigma, rel=1e-4)
    noise = SeededNoise(0, exact=False).sample(noise_of(query).central_sigma, 4000, "test")
    assert float(noise.std()) == pytest.approx(noise_of(query).central_sigma, rel=0.06)
