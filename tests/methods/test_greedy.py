"""Greedy trees: what they ask equals a slow count over records, and costs what Table 1 of CCS'22 says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.client.node import Node
from hedgerow.data.binned import SiteData
from hedgerow.errors import PlanError
from hedgerow.losses.tables import Loss
from hedgerow.methods.registry import program_for, resolve
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.queries import Query
from hedgerow.server.release import UNCOUNTED, PlainAggregation, run_program
from hedgerow.trees.ensemble import ensemble_to_dict
from hedgerow.trees.histograms import Histogram, NodeHistograms, SplitSums
from hedgerow.trees.leaf_sums import LeafSums
from tests.builders import contributions, make_data, make_plan, take, train

METHODS = ["hist", "partially_random"]


def greedy_plan(method: str, label: str = "binary", **model: Any) -> Plan:
    own: dict[str, Any] = {"split_method": method, "n_trees": 4, "max_depth": 3, "interaction_size": "all"}
    return make_plan(label, {**own, **model})


@st.composite
def greedy_plans(draw: st.DrawFn) -> Plan:
    pick = st.sampled_from
    model = {
        "weight_update": draw(pick(["newton", "gradient", "averaging"])),
        "split_candidates": draw(pick(["adaptive", "uniform", "log", "iterative_hessian"])),
        "n_candidates": draw(st.integers(1, 12)),
        "interaction": draw(pick(["auto", "cyclical", "random"])),
        "interaction_size": draw(pick([1, 2, 3, "all", "auto"])),
        "batch_size": draw(pick([1, 2, 3, "all"])),
        "max_depth": draw(st.integers(1, 4)),
        "leaf_ridge": draw(pick([0.0, 1.0])),
        "noise_ridge": draw(pick([0.0, 2.0])),
        "structure_seed": draw(st.integers(0, 1000)),
    }
    plan: Plan = greedy_plan(draw(pick(METHODS)), draw(pick(["binary", "multiclass", "regression"])), **model)
    return plan


def dialogue(plan: Plan, data: SiteData, seed: int, noise: float) -> list[tuple[Query, NDArray[np.int64], Node]]:
    """A run with one node and Gaussian noise; the node's answers with the node as it stands after each."""
    random, node = np.random.default_rng(seed), Node("one", data, plan, resolve(plan))
    program, heard = program_for(plan), []
    query = next(program)
    while True:
        answer = node.answer(query)
        heard.append((query, answer, node))
        check_answer(query, answer, node, data)
        try:
            query = program.send(answer + np.rint(random.normal(0, noise, query.length)).astype(np.int64))
        except StopIteration:
            return heard


def check_answer(query: Query, answer: NDArray[np.int64], node: Node, data: SiteData) -> None:
    """Record after record, walked from the root through Python's integers."""
    if not isinstance(query, NodeHistograms | SplitSums):
        return
    loss: Loss = node.held.loss
    n_trees, n_slots = query.features.shape
    expected: dict[tuple[int, int, int, int], NDArray[np.int64]] = {}
    for record, statistics in enumerate(statistics_of(node, data)):
        for tree in range(n_trees):
            place = 0
            for _ in range(query.trees.depth):
                code = int(data.codes[query.trees.feature[tree, place], record])
                place = 2 * place + 2 - int(query.trees.goes_left[tree, place, code])
            place -= query.trees.n_leaves - 1
            for slot in range(n_slots):
                feature = int(query.features[tree, slot])
                entry = int(query.bin_of_code[feature, data.codes[feature, record]])
                if isinstance(query, SplitSums):
                    entry = 1 - int(query.goes_left[tree, place, slot, entry])
                key = (tree, place, slot, entry)
                expected[key] = expected.get(key, np.zeros(loss.n_statistics, dtype=np.int64)) + statistics
    position, parts = 0, answer.reshape(-1, loss.n_statistics)
    for tree in range(n_trees):
        for place in range(query.trees.n_leaves):
            for slot in range(n_slots):
                is_sums = isinstance(query, SplitSums)
                n_entries = 2 if is_sums else int(query.n_bins[query.features[tree, slot]])  # type: ignore[union-attr]
                for entry in range(n_entries):
                    wanted = expected.pop((tree, place, slot, entry), 0 * parts[0])
                    assert (parts[position] == wanted).all()
                    position += 1
    assert position == len(parts) and not expected


def statistics_of(node: Node, data: SiteData) -> NDArray[np.int64]:
    """Each record's statistics at the node's scores: int64 [n, n_statistics], by the kernel's own route."""
    return contributions(node.held.loss, data.labels, node.held.records.scores)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), seed=st.integers(0, 10**6), noise=st.sampled_from([0, 2**14]))
def test_answers_equal_a_slow_walk(data: st.DataObject, seed: int, noise: float) -> None:
    """Histograms and sums of sides, at every level, batch and loss, are what a walk over single records adds up to."""
    plan = data.draw(greedy_plans())
    assert dialogue(plan, make_data(plan, 12, seed), seed, noise)


def test_more_than_one_block_of_records() -> None:
    """Packed words are emptied between blocks: 5000 records span three."""
    for method in METHODS:
        plan = greedy_plan(method, n_trees=1, max_depth=2)
        dialogue(plan, make_data(plan, 5000, 3), 3, 0)


@pytest.mark.parametrize("n_features", [3, 4, 6, 9])
def test_features_are_summed_in_fours_and_what_is_left_alone(n_features: int) -> None:
    """The kernel takes four features at a time: no feature is left out or taken twice, whatever their number."""
    features = [{"name": f"x{i}", "type": "numeric", "min": -1, "max": 1 + i} for i in range(n_features)]
    model = {"split_method": "hist", "n_trees": 2, "max_depth": 2, "interaction_size": "all", "n_candidates": 6}
    plan = make_plan(model=model, features=features)
    assert dialogue(plan, make_data(plan, 300, n_features), 5, 2.0**14)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 10**6))
def test_a_record_stays_within_what_queries_state(data: st.DataObject, seed: int) -> None:
    """One record, all through a noisy run, exceeds neither bound nor sensitivity; at its worst it is at the latter."""
    plan = data.draw(greedy_plans())
    for query, answer, _ in dialogue(plan, make_data(plan, 1, seed), seed, 2**16):
        assert int((answer**2).sum()) <= query.sensitivity_squared
        assert int(np.abs(answer).max()) <= query.bound


# CCS'22, Table 1, with T = 4, d = 3, m = 4: method, k, candidates, kappa_s + kappa_w, kappa_c.
TABLE_1 = [
    ("hist", 4, "uniform", 4 * 4 * 3, 0),
    ("hist", 2, "log", 4 * 2 * 3, 0),
    ("hist", 1, "uniform", 4, 0),
    ("hist", 4, "iterative_hessian", 4 * 4 * 3, 0),
    ("hist", 1, "iterative_hessian", 4, 0),
    ("partially_random", 4, "uniform", 4 * 4 * 3, 0),
    ("partially_random", 2, "uniform", 4 * 2 * 3, 0),
    ("partially_random", 1, "uniform", 4, 0),
    ("partially_random", 4, "iterative_hessian", 4 * 4 * 3, 2 * 4),
    ("totally_random", 4, "uniform", 4, 0),
    ("totally_random", 4, "iterative_hessian", 4, 2 * 4),
]


@pytest.mark.parametrize("batch_size", [1, 3, "all"])
@pytest.mark.parametrize("update", ["newton", "gradient", "averaging"])
@pytest.mark.parametrize(("method", "k", "candidates", "kappa", "kappa_c"), TABLE_1)
def test_the_ledger_holds_the_counts_of_table_1(
    method: str, k: int, candidates: str, kappa: int, kappa_c: int, update: str,
    batch_size: int | str,
) -> None:  # fmt: skip
    """In units of one query's cost: the sum over events of (calibrated / own noise multiplier)**2 is the paper's count.

    Averaging asks for no Hessians, so kappa_c = 0 there.
    """
    plan = greedy_plan(
        method, interaction="cyclical", interaction_size=k, split_candidates=candidates, candidate_rounds=2,
        weight_update=update, batch_size=batch_size,
    )  # fmt: skip
    declared = resolve(plan)
    nodes = [Node("one", make_data(plan, 40, 0), plan, declared)]
    queries: list[Query] = []
    outcome = run_program(
        plan,
        program_for(plan),
        PlainAggregation(nodes),
        SeededNoise(1),
        UNCOUNTED,
        lambda query, _: queries.append(query),
    )
    counts = [(declared.noise_multiplier / release.event.noise_multiplier) ** 2 for release in outcome.ledger]  # type: ignore[union-attr]
    paid = math.fsum(count for count, query in zip(counts, queries, strict=True) if isinstance(query, Histogram))
    assert paid == pytest.approx(0 if update == "averaging" else kappa_c, rel=1e-3)
    assert math.fsum(counts) - paid == pytest.approx(kappa, rel=1e-3)
    # kappa_w = 0 for greedy splits of several features and all histograms: no query is about leaves.
    asks_leaves = any(isinstance(query, LeafSums) for query in queries)
    assert asks_leaves == (method == "totally_random" or (method == "partially_random" and k == 1))
    assert len(queries) == declared.schedule(plan).n_rounds


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 10**6), accountant=st.sampled_from(["gdp", "rdp"]))
def test_the_promise_is_kept_and_used(data: st.DataObject, seed: int, accountant: str) -> None:
    """epsilon spent <= epsilon announced before <= epsilon promised, and nearly all of it is used."""
    plan = data.draw(greedy_plans())
    table = plan.to_dict()
    table["privacy"]["accountant"] = accountant
    plan = Plan.from_dict(table)
    outcome = train(plan, [make_data(plan, 30, seed)])
    judge, delta = get_accountant(accountant), plan.privacy.delta
    spent = judge.epsilon(outcome.ledger.events(), delta)
    announced = judge.epsilon(resolve(plan).schedule(plan).events, delta)
    assert 0.99 * plan.privacy.epsilon <= spent <= announced * (1 + 1e-9)
    assert announced <= plan.privacy.epsilon
    purposes = [release.purpose for release in outcome.ledger]
    assert len(set(purposes)) == len(purposes)


@settings(max_examples=15, deadline=None)
@given(data=st.data(), seed=st.integers(0, 10**6))
def test_sites_do_not_matter(data: st.DataObject, seed: int) -> None:
    """One pile of records, or three sites, one of them empty: the same noise gives the same model to the last bit."""
    plan = data.draw(greedy_plans())
    rows = make_data(plan, 30, seed)
    order = np.random.default_rng(seed).permutation(30)
    sites = [take(rows, part) for part in (order[:7], order[7:], order[:0])]
    one, three = train(plan, [rows]), train(plan, sites)
    assert ensemble_to_dict(one.ensemble) == ensemble_to_dict(three.ensemble)


def _facts(query: Query) -> tuple[object, ...]:
    """What two replicas' queries have to share."""
    return str(query.purpose), query.length, query.bound, query.sensitivity_squared, query.noise_multiplier


@settings(max_examples=20, deadline=None)
@given(data=st.data(), seed=st.integers(0, 10**6), size=st.sampled_from([0, 2**14, 2**50]))
def test_replicas_agree(data: st.DataObject, seed: int, size: int) -> None:
    """Whoever holds the plan and the releases, whatever these are, has the same queries and the same model."""
    plan = data.draw(greedy_plans())
    random, one, other = np.random.default_rng(seed), Replica(TrainingTask(plan)), Replica(TrainingTask(plan))
    while one.query is not None and other.query is not None:
        assert _facts(one.query) == _facts(other.query)
        if isinstance(one.query, NodeHistograms | SplitSums):
            assert isinstance(other.query, type(one.query))
            assert (one.query.trees.goes_left == other.query.trees.goes_left).all()
            assert (one.query.bin_of_code == other.query.bin_of_code).all()
        largest = min(size, one.query.bound * plan.privacy.n_records)
        release = random.integers(-largest, largest + 1, one.query.length)
        one.feed(release)
        other.feed(release)
    assert one.result_digest() == other.result_digest() and one.history == other.history


@pytest.mark.parametrize("method", METHODS)
def test_without_noise_the_best_split_is_found(method: str) -> None:
    """A label that is one feature's threshold is learned exactly; with all noise gone, one greedy tree suffices."""
    features = [{"name": f"x{i}", "type": "numeric", "min": 0, "max": 8, "integer": True} for i in range(3)]
    model = {
        "split_method": method, "n_trees": 12, "max_depth": 3, "interaction_size": "all",
        "split_candidates": "adaptive", "joint_clip": "none", "learning_rate": 1.0,
    }  # fmt: skip
    plan = make_plan(model=model, features=features, privacy={"epsilon": math.inf, "n_records": 600})
    codes = np.random.default_rng(0).integers(0, 9, (3, 600)).astype(np.uint8)
    data = SiteData(codes, (codes[1] > 4).astype(np.int32))
    ensemble = train(plan, [data]).ensemble
    assert ((ensemble.scores(codes)[0] > 0) == (codes[1] > 4)).all()
    if method == "hist":
        assert ensemble.fitted is not None
        trees = ensemble.fitted.trees
        assert (trees.feature[0, 0], trees.threshold[0, 0]) == (1, 4)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_matter(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """Records divided among threads add up to the same integers."""
    monkeypatch.setattr("hedgerow.trees.binning.MIN_RECORDS_PER_THREAD", 1)
    for method in METHODS:
        plan = greedy_plan(method)
        data = make_data(plan, 101, 1)
        one, several = (Node("one", data, plan, resolve(plan), n_threads=n) for n in (1, threads))
        program = program_for(plan)
        query = next(program)
        for _ in range(5):
            answer = one.answer(query)
            assert (answer == several.answer(query)).all()
            query = program.send(answer)


@pytest.mark.parametrize("method", METHODS)
def test_adaptive_turns_are_for_random_trees(method: str) -> None:
    """Turns by gain read leaf sums of single features, which greedy trees do not have: refused by name."""
    with pytest.raises(PlanError, match=r"model\.interaction"):
        greedy_plan(method, interaction="adaptive")


def test_histograms_refine_candidates_for_free() -> None:
    """Iterative Hessians with histograms: later trees have other bins, and nothing was asked for them."""
    plan = greedy_plan("hist", split_candidates="iterative_hessian", n_candidates=8, interaction_size=1)
    uniform = greedy_plan("hist", split_candidates="uniform", n_candidates=8, interaction_size=1)
    longer = greedy_plan("hist", split_candidates="iterative_hessian", n_candidates=8, n_trees=8, interaction_size=1)
    heard = [query for query, _, _ in dialogue(longer, make_data(longer, 40, 5), 0, 0)]
    tables = [query.bin_of_code for query in heard if isinstance(query, NodeHistograms)]
    assert len(heard) == len(tables) == 8
    assert any((table != tables[0]).any() for table in tables[1:])
    assert resolve(plan).noise_multiplier == pytest.approx(resolve(uniform).noise_multiplier, rel=1e-4)
