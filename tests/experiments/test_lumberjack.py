"""Lumberjack, a method from outside the package: its search against all nodes one by one, what a record can change,
what it costs, and its models."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm

from experiments.lumberjack import PRESET, plug_in
from experiments.lumberjack import forest as grown
from experiments.lumberjack.forest import Forest, Kept, Pieces, Search, leaves_of, look, rounds_of
from experiments.lumberjack.program import lumberjack
from experiments.lumberjack.settings import resolve_lumberjack
from hedgerow.client.node import Node
from hedgerow.data.binned import SiteData
from hedgerow.errors import PlanError
from hedgerow.local.forecast import expect_singles
from hedgerow.local.training import train
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.methods.registry import METHODS, resolve
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.plan.registry import rules_by_method
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.calibration import noise_of
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.queries import FittedTrees, IntVector, Query, TreeBatch
from hedgerow.training.presets import apply_preset
from hedgerow.training.steps import EndedEarly
from hedgerow.trees.binning import build_grid
from hedgerow.trees.ensemble import ensemble_to_dict
from hedgerow.trees.leaf_sums import SiteRecords, apply_update
from hedgerow.trees.plausibility import ReleaseChecks, SumFacts
from tests import builders
from tests.builders import digest_of, make_data, make_plan, take
from tests.server.audit import attack_on, audit, small_plan

pytestmark = pytest.mark.slow

Codes = NDArray[Any]
LABELS = ["binary", "multiclass", "regression"]
GOLDEN = {
    "binary": "3bf68a8bced09ef39e6ea773",
    "multiclass": "c0c285ecfc9832974d3a5e45",
    "regression": "c30fd4588fb3e29c4690876b",
}


@pytest.fixture(autouse=True)
def plugged() -> Iterator[None]:
    """The method, for one test: others count the methods of the package."""
    plug_in()
    yield
    del METHODS["lumberjack"], rules_by_method()["lumberjack"]


def jack_plan(label: str = "binary", own: dict[str, Any] | None = None, n_trees: int = 3, **privacy: Any) -> Plan:
    model = {"algorithm": "lumberjack", "weight_update": "averaging", "n_trees": n_trees, "structure_seed": 5}
    return make_plan(label, model, privacy, lumberjack=own or {})


def goes_left(forest: Forest, node: int, code: int) -> bool:
    """One record at one node, read off the table."""
    routes = forest.routes
    if routes.is_category[node]:
        return bool(code == routes.cut[node])
    if code >= routes.missing[routes.feature[node]]:
        return bool(routes.missing_left[node])
    return bool(code <= routes.cut[node])


def reached(forest: Forest, codes: Codes) -> NDArray[np.bool_]:
    """Which records are in which nodes, record by record from the roots on: bool [n_nodes, n]."""
    inside = np.zeros((len(forest.parent), codes.shape[1]), dtype=bool)
    for record in range(codes.shape[1]):
        for root in forest.routes.roots:
            node = int(root)
            inside[node, record] = True
            while forest.routes.child[node] >= 0:
                is_left = goes_left(forest, node, int(codes[forest.routes.feature[node], record]))
                node = int(forest.routes.child[node]) + (0 if is_left else 1)
                inside[node, record] = True
    return inside


def depth_of(forest: Forest, node: int) -> int:
    return len(above(forest, node))


def above(forest: Forest, node: int) -> list[int]:
    parent = int(forest.parent[node])
    return [] if parent < 0 else [parent, *above(forest, parent)]


@settings(max_examples=40, deadline=None)
@given(height=st.integers(1, 26), least=st.integers(1, 30), seed=st.integers(0, 10**6))
def test_the_search_finds_every_heavy_node_and_asks_once_a_path(height: int, least: int, seed: int) -> None:
    """Against counting node by node: marks, leaves, rounds, and that no round asks for two nodes of one path."""
    plan = jack_plan()
    rows = make_data(plan, 80, seed)
    forest = Forest(plan, build_grid(plan), seed, 2)
    search, n_rounds = Search(forest, height), 0
    while len(asked := search.asked()):
        n_rounds += 1
        known = set(asked.tolist())
        assert len(known) == len(asked)
        assert all(known.isdisjoint(above(forest, int(node))) for node in asked)
        search.take(asked, reached(forest, rows.codes)[asked].sum(axis=1) >= least)
    assert n_rounds <= rounds_of(height)
    inside = reached(forest, rows.codes)
    for node in np.flatnonzero(forest.mark == grown.HEAVY):
        assert depth_of(forest, int(node)) < height and inside[node].sum() >= least
    leaves = leaves_of(forest)
    for leaf in leaves:
        assert inside[leaf].sum() < least or depth_of(forest, int(leaf)) == height
    assert (inside[leaves].sum(axis=0) == 2).all()


def test_rounds_grow_with_the_logarithm_of_the_height() -> None:
    """A binary search of up to 21 layers, in steps of one round per doubling; 24 layers take five."""
    for height in range(1, 12):
        assert rounds_of(height, False) == 1 + math.floor(math.log2(height))
    assert [rounds_of(height) for height in (1, 3, 7, 15, 21, 24)] == [1, 2, 3, 4, 5, 5]
    assert look(64, is_first=True) == grown.FIRST_LOOK and look(64) == grown.LATER_LOOK


def adaptive_run(
    plan: Plan, sites: list[SiteData], release: Any
) -> tuple[list[Query], list[list[IntVector]], FittedTrees]:
    """One program; its queries are answered over each collection of rows, and `release` says what it is told."""
    own = resolve_lumberjack(plan)
    nodes = [Node(f"{number}", rows, plan, own) for number, rows in enumerate(sites)]
    program, queries, answers = lumberjack(plan, own), [], []
    try:
        query = next(program)
        while True:
            queries.append(query)
            answers.append([node.answer(query) for node in nodes])
            query = program.send(release(query, answers[-1]))
    except StopIteration as finished:
        return queries, answers, finished.value.fitted


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 10**6))
def test_a_unit_changes_every_release_within_its_sensitivity(data: st.DataObject, seed: int) -> None:
    """All neighbours of a small collection, whatever was released before: no vector moves further, some as far."""
    label, rows = data.draw(st.sampled_from(LABELS)), data.draw(st.integers(1, 3))
    own = {"height": data.draw(st.integers(1, 9)), "threshold": 0.0, "least_records": 1}
    unit = {"unit": "record" if rows == 1 else "patient", "max_rows_per_unit": rows}
    plan = jack_plan(label, own, epsilon=data.draw(st.sampled_from([0.1, 3.0, 50.0])), **unit)
    all_rows = make_data(plan, 12, seed)
    # The unit's rows are one row several times: nothing moves a vector further.
    all_rows = take(all_rows, np.arange(12) % 4)
    gone = [np.flatnonzero(np.arange(12) % 4 == number)[:rows] for number in range(4)]
    neighbours = [take(all_rows, np.setdiff1d(np.arange(12), unit_rows)) for unit_rows in gone]
    random = np.random.default_rng(seed)

    def release(query: Query, answers: list[IntVector]) -> IntVector:
        noise = random.normal(0, 2 * grown.UNIT, query.length).astype(np.int64)
        return answers[0] + noise

    queries, answers, _ = adaptive_run(plan, [all_rows, *neighbours], release)
    for query, (whole, *less) in zip(queries, answers, strict=True):
        moved = [int(((whole - other) ** 2).sum()) for other in less]
        assert max(moved) <= query.sensitivity_squared
        assert max(int(np.abs(whole - other).max()) for other in less) <= query.bound * rows
    if label != "regression":
        # Leaves hold every record once per tree, so there is no slack.
        assert max(moved) == queries[-1].sensitivity_squared == 3 * (grown.UNIT * rows) ** 2


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 6.0])
def test_the_account_by_hand(label: str, epsilon: float) -> None:
    """mu² adds up T records' worth of every round and of the leaves, and the last releases of numbers.

    Epsilon by Balle and Wang's formula.
    """
    plan = jack_plan(label, epsilon=epsilon, accountant="gdp", n_records=400)
    own, rows = resolve_lumberjack(plan), make_data(plan, 300, 3)
    outcome = builders.train(plan, [rows])
    search = own.search_multiplier * math.sqrt(3)
    # Of numbers a record adds a label and a count.
    leaf_norm = math.sqrt(3 * (2 if label == "regression" else 1))
    leaves = own.noise_multiplier * leaf_norm
    last = math.fsum(1 / multiplier**2 for multiplier in own.line_multipliers if multiplier)
    mu = math.sqrt(rounds_of(24) * 3 / search**2 + leaf_norm**2 / leaves**2 + last)

    def delta(at: float) -> float:
        return float(norm.cdf(mu / 2 - at / mu) - math.exp(at) * norm.cdf(-mu / 2 - at / mu))

    # Sigmas are whole numbers, rounded up.
    assert 0.9 * plan.privacy.delta < delta(epsilon) <= plan.privacy.delta * (1 + 1e-6)
    assert rounds_of(24) * 3 / search**2 == pytest.approx(0.75 * (1 - own.calibration_share) * mu**2, rel=1e-2)
    assert outcome.report.epsilon <= epsilon


@settings(max_examples=8, deadline=None)
@given(data=st.data(), seed=st.integers(0, 10**6))
def test_any_plan_keeps_its_promise_over_any_sites(data: st.DataObject, seed: int) -> None:
    """Spent at most what was asked and planned, and the same bytes from one site and from five."""
    rows = data.draw(st.integers(1, 3))
    own = {
        "height": data.draw(st.integers(1, 24)),
        "search_share": data.draw(st.sampled_from([0.1, 0.75])),
        "threshold": 4.0,
        "least_records": data.draw(st.integers(5, 40)),
    }
    privacy = {
        "epsilon": data.draw(st.sampled_from([0.05, 0.5, 5.0, 50.0])),
        "accountant": data.draw(st.sampled_from(["gdp", "rdp"])),
        "unit": "record" if rows == 1 else "patient",
        "max_rows_per_unit": rows,
    }
    plan = jack_plan(data.draw(st.sampled_from(LABELS)), own, data.draw(st.integers(1, 6)), **privacy)
    records = make_data(plan, 60, seed)
    owner = np.random.default_rng(seed).integers(0, 5, 60)
    alone = builders.train(plan, [records])
    together = builders.train(plan, [take(records, np.flatnonzero(owner == site)) for site in range(5)])
    assert alone.ensemble.fitted.values.tobytes() == together.ensemble.fitted.values.tobytes()
    assert alone.ledger.to_json() == together.ledger.to_json()
    assert len(alone.ledger) <= resolve(plan).schedule(plan).n_rounds
    judge, planned = get_accountant(plan.privacy.accountant), resolve(plan).schedule(plan).events
    assert judge.epsilon(planned, plan.privacy.delta) <= plan.privacy.epsilon * (1 + 1e-9)
    assert alone.report.epsilon <= plan.privacy.epsilon


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), depth=st.sampled_from([8, 9, 14]))
def test_trees_of_few_levels_add_up_to_a_deep_one(seed: int, depth: int) -> None:
    """Every record's score is the value of the leaf that it reaches in the deep tree, missing values included."""
    plan = jack_plan()
    grid, random = build_grid(plan), np.random.default_rng(seed)
    forest, values = Forest(plan, grid, seed, 1), iter(range(1, 10**6))

    def grow(node: int, levels: int) -> Kept:
        if levels == 0 or random.random() < 0.2:
            return Kept(np.array([float(next(values))]))
        left, right = (int(child) for child in forest.children_of(np.array([node])))
        # Narrow, so that it is deep and not large.
        both = [levels - 1, min(levels - 1, 1)] if random.random() < 0.5 else [min(levels - 1, 1), levels - 1]
        return Kept(np.zeros(1), node, (grow(left, both[0]), grow(right, both[1])))

    tree = grow(0, depth)
    rows = make_data(plan, 300, seed)
    pieces = Pieces(forest, grid, min(8, max(1, tree.depth)))
    pieces.add(tree, lambda sums: sums.astype(np.int32))
    parts = [np.stack(part) for part in zip(*pieces.trees, strict=True)]
    records = SiteRecords(rows.codes, rows.labels, np.zeros((1, 300), dtype=np.int32))
    apply_update(records, FittedTrees(TreeBatch(parts[0], parts[1], parts[2]), parts[3]))
    for record in range(300):
        here = tree
        while here.sides:
            code = int(rows.codes[forest.routes.feature[here.split], record])
            here = here.sides[0 if goes_left(forest, here.split, code) else 1]
        assert records.scores[0, record] == here.sums[0]


@pytest.mark.parametrize("label", LABELS)
def test_it_learns_and_its_model_reads_back(tmp_path: Path, label: str) -> None:
    """Without noise a label that a feature decides is found; the file holds the same model."""
    plan = jack_plan(label, {"least_records": 40}, 4, epsilon=math.inf, n_records=600)
    rows = make_data(plan, 600, 1)
    first = rows.codes[0].astype(np.int64)
    edge = np.median(first)
    if plan.label.kind.is_number:
        labels = np.where(first > edge, SCORE_UNIT // 2, -SCORE_UNIT // 2)
    else:
        labels = (first > edge).astype(int) * (len(plan.label.classes) - 1)
    outcome = builders.train(plan, [SiteData(rows.codes, labels.astype(np.int32))])
    scores = outcome.ensemble.scores(rows.codes)
    last = scores[-1]
    assert last[first > edge].mean() > last[first <= edge].mean() + 0.4
    if label == "multiclass":
        assert np.allclose(scores.sum(axis=0), 1, atol=1e-3)
    model = Model(outcome.plan, outcome.ensemble, outcome.ledger, outcome.report)
    model.save(tmp_path / "model.json")
    assert Model.load(tmp_path / "model.json").to_bytes() == model.to_bytes()


def test_a_lie_is_noticed() -> None:
    """More records in a tree than there are rows, fewer than none, and labels beyond their records."""
    plan = jack_plan("regression", epsilon=1.0)
    rows = make_data(plan, 80, 2)
    queries, answers, _ = adaptive_run(plan, [rows], lambda query, answers: answers[0])
    for query, (honest,) in zip(queries, answers, strict=True):
        facts = SumFacts(100, None, noise_of(query), 1)
        assert not list(query.faults(honest.astype(float), facts, ReleaseChecks(lambda: None)))
        for lie in (honest + 10**7, honest - 10**7):
            assert list(query.faults(lie.astype(float), facts, ReleaseChecks(lambda: None)))


def test_a_run_that_ends_early_has_no_model() -> None:
    """Before the leaves are released there is nothing that a model could be made of."""
    plan = jack_plan()
    program = lumberjack(plan, resolve_lumberjack(plan))
    next(program)
    with pytest.raises(StopIteration) as finished:
        program.throw(EndedEarly())
    assert finished.value.value.n_trees == 0


def test_plans_that_contradict_themselves_are_refused() -> None:
    """Leaves hold shares, so the model averages; more trees than a first look may ask for; fields of other methods."""
    table = jack_plan().to_dict()
    for model in ({"weight_update": "newton"}, {"n_trees": 257}, {"max_depth": 3}):
        with pytest.raises(PlanError):
            Plan.from_dict({**table, "model": {**table["model"], **model}})
    preset = apply_preset(PRESET, make_plan())
    assert preset.own == dataclasses.replace(preset.own) and resolve(preset).n_trees == 25


def test_a_search_never_asks_for_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """With everything heavy the search stops at its limit, and what is left are leaves that hold all records once."""
    monkeypatch.setattr(grown, "MAX_ASKED", 2**12)
    plan = jack_plan()
    forest = Forest(plan, build_grid(plan), 1, 3)
    search, n_asked = Search(forest, 24), 0
    while len(asked := search.asked()):
        n_asked += len(asked)
        search.take(asked, np.ones(len(asked), dtype=bool))
    assert n_asked <= 2**12
    rows = make_data(plan, 40, 1)
    assert (reached(forest, rows.codes)[leaves_of(forest)].sum(axis=0) == 3).all()


@pytest.mark.parametrize(("label", "n_trees"), [("binary", 25), ("binary", 256), ("multiclass", 25)])
def test_releases_are_no_longer_than_planned_whatever_they_say(label: str, n_trees: int) -> None:
    """A site that lies until every node is heavy makes no vector longer than the account, or a node, reckons with."""
    plan = jack_plan(label, n_trees=n_trees)
    own = resolve_lumberjack(plan)
    program, planned, lengths = lumberjack(plan, own), own.schedule(plan).events, []
    query = next(program)
    while not isinstance(query, grown.LeafCounts):
        lengths.append(query.length)
        assert query.length <= planned[0].length
        query = program.send(np.full(query.length, 2**40, dtype=np.int64))
    assert query.length <= planned[1].length
    assert max(*lengths, query.length) <= own.schedule(plan).longest <= 2**22
    assert sum(lengths) + query.length <= own.schedule(plan).n_released


def test_noise_is_drawn_as_planned() -> None:
    """Every release of a run has the integer noise that was planned for it, on the sensitivity that is charged."""
    plan = jack_plan(epsilon=0.5)
    own = resolve_lumberjack(plan)
    search, leaves = own.schedule(plan).events
    queries, _, _ = adaptive_run(
        plan, [make_data(plan, 80, 2)],
        lambda query, answers: answers[0] + SeededNoise(1).sample(noise_of(query).central_sigma, query.length, "x"),
    )  # fmt: skip
    for query in queries[:-1]:
        assert noise_of(query).event.sigma >= search.sigma and query.length <= search.length
    assert noise_of(queries[-1]).event.sigma >= leaves.sigma and len(queries) <= own.schedule(plan).n_rounds


@pytest.mark.parametrize("label", GOLDEN)
def test_a_model_stays_the_same_byte_for_byte(label: str) -> None:
    """Whoever repeats a published run gets the published model, from the same releases, over sites and under masks."""
    own = {"height": 4, **({"threshold": 0.5} if label == "multiclass" else {})}
    privacy = {"epsilon": 2.0, "delta": 1e-5, "n_records": 400}
    table = jack_plan(label, own, 4, **privacy).to_dict()
    plan = Plan.from_dict({**table, "model": {**table["model"], "structure_seed": 7}})
    data = make_data(plan, 400, 5)
    sites = {f"site-{number}": take(data, np.arange(number, 400, 3)) for number in range(3)}
    model = train(plan, sites, noise=SeededNoise(1))
    releases = [release.to_dict() for release in model.ledger.releases]
    assert digest_of([ensemble_to_dict(model.ensemble), releases]) == GOLDEN[label]


@pytest.mark.parametrize("n_lines", [0, 1])
def test_a_line_follows_unless_the_plan_says_none(n_lines: int) -> None:
    """With calibration = "none" nothing is asked after the leaves, and a search may end before its last round."""
    table = jack_plan("regression").to_dict()
    plan = Plan.from_dict({**table, "model": {**table["model"], "calibration": "auto" if n_lines else "none"}})
    model = train(plan, {"one": make_data(plan, 60, 1)}, noise=SeededNoise(1, exact=False))
    assert [release.kind for release in model.ledger.releases].count("LineSums") == n_lines
    assert len(model.ledger) <= resolve(plan).schedule(plan).n_rounds


def test_a_search_shows_single_records_before_there_are_leaves() -> None:
    """Lumberjack first asks for a thousand nodes of each tree: their exact sums are what a coordinator sees."""
    plan = jack_plan(n_trees=25, n_records=5000)
    even, crowded = expect_singles(plan, resolve(plan))  # type: ignore[misc]
    draws = np.random.default_rng(1).multinomial(5000, np.full(1024, 1 / 1024), size=400)
    assert even == pytest.approx(25 * (draws == 1).sum(axis=1).mean(), rel=0.05)
    assert even <= crowded <= 25 * 1024


@pytest.mark.parametrize("label", ["binary", "regression"])
def test_the_best_attack_finds_no_more_than_is_accounted(label: str) -> None:
    """The canary audit that the package's methods pass: the bound stays below the accounted mu, and comes near it."""
    model = {"algorithm": "lumberjack", "weight_update": "averaging", "n_trees": 3}
    found = audit(attack_on(small_plan(label, model=model, lumberjack={"height": 4})), 400)
    assert found.passed and found.mu_estimate > 0.6 * found.mu_accounted
