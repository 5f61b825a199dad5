"""The linear start of S-GBDT: what it asks, what it costs, what it finds, and that sites do not show."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.client.node import Node, SeededSampling
from hedgerow.data.binned import SiteData
from hedgerow.errors import PlanError
from hedgerow.local.training import train
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.methods.linear import CrossProducts, GramMatrix, LinearBasis, divide_noise
from hedgerow.methods.linear_start import START_ROUNDS, START_SHARES, LabelSums
from hedgerow.methods.registry import program_for, resolve
from hedgerow.methods.s_gbdt.trees import SampledLeafSums, uniform_tree
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.queries import FittedTrees, Query
from hedgerow.trees.binning import build_grid
from hedgerow.trees.ensemble import Ensemble
from hedgerow.trees.random_trees import PublicRandom, deepen
from tests.builders import make_data, s_gbdt_plan, take
from tests.models.probes import export_checked

LABELS = ["binary", "regression"]


def linear_start(label: str, privacy: dict[str, Any] | None = None, **section: Any) -> Plan:
    """A small plan of S-GBDT with a linear start."""
    own = {"initial_score": "linear", "initial_score_share": 0.5, "subsampling_ratio": 0.4, **section}
    return s_gbdt_plan(label, {"calibration": "none"}, privacy, **own)


def asked(plan: Plan, node: Node) -> tuple[list[Query], Ensemble]:
    """What a plan asks of one node whose answers get no noise, and the model."""
    program, found = program_for(plan), []
    query = next(program)
    while True:
        found.append(query)
        try:
            query = program.send(node.answer(query))
        except StopIteration as finished:
            return found, finished.value


def slope(plan: Plan, n: int, seed: int) -> SiteData:
    """Rows whose label is a straight line in two numeric features that hardly differ, without any other pattern."""
    random, grid = np.random.default_rng(seed), build_grid(plan)
    codes = np.zeros((grid.n_features, n), dtype=grid.dtype)
    numeric = [index for index, cells in enumerate(grid.features) if cells.n_cells > 200]
    common = random.uniform(20, 230, n)
    codes[numeric] = np.clip(common + random.normal(0, 8, (len(numeric), n)), 0, 253)
    value = (codes[numeric[0]].astype(float) - codes[numeric[1]]) / 60
    labels = np.rint(np.clip(value, -1, 1) * SCORE_UNIT).astype(np.int32)
    return SiteData(codes, labels if plan.label.type == "regression" else (value > 0).astype(np.int32))


@pytest.mark.parametrize("label", LABELS)
def test_it_asks_for_two_matrices_and_three_steps(label: str) -> None:
    """In this order, each known to the plan beforehand, numbers after their mean; the second matrix of rows that the
    first has changed; and a round of trees knows all that came before."""
    plan = linear_start(label)
    decided = resolve(plan)
    queries, model = asked(plan, Node("one", make_data(plan, 50, 1), plan, decided))
    kinds = [type(query) for query in queries]
    mean = int(label == "regression")
    assert kinds == [LabelSums] * mean + [GramMatrix] * 2 + [CrossProducts] * START_ROUNDS + [SampledLeafSums] * 4
    assert len(queries) == decided.schedule(plan).n_rounds == mean + 2 + START_ROUNDS + 4
    assert [query.purpose.round for query in queries] == list(range(len(queries)))
    assert max(query.length for query in queries) <= decided.schedule(plan).longest
    m = len(plan.features)
    held = [0, mean, mean + m, mean + 2 * m, mean + 3 * m, mean + 3 * m + 1, mean + 3 * m + 2]
    assert [query.ensemble_size for query in queries[mean + 2 :]] == held
    assert [query.update is not None for query in queries[: mean + 3]] == [False] * (mean + 2) + [mean == 1]
    first, second = queries[mean], queries[mean + 1]
    assert isinstance(first, GramMatrix) and isinstance(second, GramMatrix)
    assert first.rows.transform.size == 0 and second.rows.transform.shape == (4, 4)
    assert model.n_trees == mean + m + 4


@settings(max_examples=10, deadline=None)
@given(
    epsilon=st.sampled_from([0.1, 1.0, 8.0]),
    ratio=st.sampled_from([0.1, 1.0]),
    share=st.sampled_from([0.1, 0.9]),
    kept=st.booleans(),
    noise=st.sampled_from(["server", "distributed"]),
    label=st.sampled_from(LABELS),
)
def test_a_run_keeps_the_promise(
    epsilon: float, ratio: float, share: float, kept: bool, noise: str, label: str
) -> None:
    """The ledger of a real run costs no more than what was planned, that no more than the plan says, and nearly it."""
    privacy = {"epsilon": epsilon, "noise": noise}
    section = {"subsampling_ratio": ratio, "initial_score_share": share, "individual_filter": kept}
    plan = linear_start(label, privacy, **section)
    sites = {site: make_data(plan, 20, seed) for seed, site in enumerate("abcd")}
    report = train(plan, sites, noise=SeededNoise(1, exact=False)).report
    assert report.epsilon <= epsilon and report.epsilon > 0.97 * epsilon
    planned = get_accountant("gdp").epsilon(resolve(plan).schedule(plan).events, plan.privacy.delta)
    assert report.epsilon * (1 - 1e-9) <= planned <= epsilon


def test_the_start_costs_its_share() -> None:
    """A, B and the rounds together cost one release at the noise that was set aside for them, no more and no less."""
    first, second, each = divide_noise(7.0, START_SHARES)
    assert 1 / first**2 + 1 / second**2 + START_ROUNDS / each**2 == pytest.approx(1 / 49, rel=1e-12)
    assert START_SHARES[0] + START_SHARES[1] + START_ROUNDS * START_SHARES[2] == pytest.approx(1)


@pytest.mark.parametrize("label", LABELS)
def test_sites_do_not_show(label: str) -> None:
    """The model file of one site and of five, under masks, byte for byte."""
    plan = linear_start(label, extra_rounds=2)
    data = make_data(plan, 60, 7)
    models = []
    for n_sites in (1, 5):
        rows = {f"site-{number}": np.flatnonzero(np.arange(60) % n_sites == number) for number in range(n_sites)}
        sampling = {site: SeededSampling(3, numbers) for site, numbers in rows.items()}
        sites = {site: take(data, numbers) for site, numbers in rows.items()}
        models.append(train(plan, sites, noise=SeededNoise(3), sampling=sampling).to_bytes())
    assert models[0] == models[1]


@pytest.mark.parametrize("label", LABELS)
def test_it_tells_features_apart_that_go_together(label: str) -> None:
    """A difference of two features that are nearly the same: random trees find little of it, the start nearly all;
    without noise, so that nothing but the steps is at work, and with some."""
    for epsilon, least in ((math.inf, 0.97), (20.0, 0.9)):
        privacy = {"epsilon": epsilon, "n_records": 3000}
        plan = linear_start(label, privacy, gradient_clip=0.5)
        data = slope(plan, 3000, 5)
        found = {}
        for initial in ("linear", "constant"):
            own = Plan.from_dict({**plan.to_dict(), "s_gbdt": {**plan.to_dict()["s_gbdt"], "initial_score": initial}})
            scores = train(own, {"one": data}, noise=SeededNoise(2)).ensemble.scores(data.codes)[0]
            wanted = data.labels / SCORE_UNIT if label == "regression" else 2.0 * data.labels - 1
            found[initial] = float(np.corrcoef(scores, wanted)[0, 1])
        # Classes by a straight line are not linear in it: 0.8 is the correlation of a sign with its normal variable.
        assert found["linear"] > (least if label == "regression" else 0.75)
        assert found["constant"] < 0.5 * found["linear"]


@pytest.mark.parametrize("label", LABELS)
def test_the_model_is_like_any_other(tmp_path: Path, label: str) -> None:
    """Saved, loaded and exported; its scores are those that the nodes have kept while it was trained."""
    plan = linear_start(label, {"epsilon": 50.0})
    data = make_data(plan, 300, 2)
    model = train(plan, {"one": data}, noise=SeededNoise(1))
    model.save(tmp_path / "model.json")
    assert Model.load(tmp_path / "model.json").to_bytes() == model.to_bytes()
    export_checked(model, tmp_path / "booster.json")
    node = Node("one", data, plan, resolve(plan))
    queries, ensemble = asked(plan, node)
    known = (node.held.records.scores / SCORE_UNIT)[0]
    last = queries[-1]
    assert ensemble.fitted is not None and isinstance(last, SampledLeafSums)
    one = Ensemble(ensemble.grid, _last_tree(ensemble.fitted), 1, ensemble.link)
    assert np.array_equal(ensemble.scores(data.codes)[0], known + one.scores(data.codes)[0])


def _last_tree(fitted: FittedTrees) -> FittedTrees:
    trees = fitted.trees
    last = type(trees)(trees.feature[-1:], trees.goes_left[-1:], trees.threshold[-1:])
    return FittedTrees(last, fitted.values[-1:])


def test_a_plan_without_numeric_features_is_refused() -> None:
    """There is nothing to draw a line through; nor is there a start without a share of the budget."""
    table = linear_start("binary").to_dict()
    with pytest.raises(PlanError) as refused:
        Plan.from_dict({**table, "features": [f for f in table["features"] if "categories" in f]})
    assert refused.value.what.startswith("s_gbdt.initial_score")
    with pytest.raises(PlanError):
        linear_start("binary", initial_score_share=0.0)


def test_its_scale_is_its_own_field() -> None:
    """What a numeric feature is to the start stands in the plan; a plan in which it would say nothing is refused, and
    so is a section of another algorithm that might be taken for it."""
    rows = {}
    for scale in ("grid", "linear"):
        plan = linear_start("regression", linear_scale=scale)
        first = asked(plan, Node("one", make_data(plan, 50, 1), plan, resolve(plan)))[0][1]
        assert isinstance(first, GramMatrix)
        rows[scale] = first.rows.entry
        expected = LinearBasis.of(plan, build_grid(plan), 1.0, scale, numeric_only=True).rows.entry
        assert np.array_equal(rows[scale], expected)
    assert not np.array_equal(rows["grid"], rows["linear"])
    with pytest.raises(PlanError) as refused:
        linear_start("regression", linear_scale="linear", initial_score="constant")
    assert refused.value.what.startswith("s_gbdt.linear_scale")
    with pytest.raises(PlanError) as refused:
        Plan.from_dict({**linear_start("regression").to_dict(), "adassp": {"scale": "linear"}})
    assert refused.value.what.startswith("model.algorithm")


@pytest.mark.parametrize("initial", ["linear", "constant"])
def test_the_least_share_still_fits(initial: str) -> None:
    """A share that is nearly nothing asks for noise beyond any word and is refused; the least one runs."""
    for share in (5e-324, 1e-30, 9e-7):
        with pytest.raises(PlanError) as refused:
            linear_start("binary", initial_score_share=share, initial_score=initial)
        assert refused.value.what.startswith("s_gbdt.initial_score_share")
    privacy = {"epsilon": 0.05, "noise": "distributed"}
    plan = linear_start("binary", privacy, initial_score_share=1e-6, initial_score=initial, subsampling_ratio=1e-3)
    sites = {site: make_data(plan, 20, seed) for seed, site in enumerate("abcd")}
    assert train(plan, sites, noise=SeededNoise(1, exact=False)).report.epsilon <= 0.05


@pytest.mark.parametrize("depth", [3, 6, 8])
def test_deeper_trees_say_the_same(depth: int) -> None:
    """Levels that send everything left change no score."""
    plan = linear_start("binary")
    grid, data = build_grid(plan), make_data(plan, 400, 3)
    trees = uniform_tree(PublicRandom(5, "a tree"), plan, grid, 3)
    values = np.arange(8, dtype=np.int32).reshape(1, 8, 1) * 1000 - 3000
    fitted = FittedTrees(trees, values)
    deeper = deepen(fitted, depth)
    assert deeper.trees.depth == depth
    scores = [Ensemble(grid, one, 1, "logistic").scores(data.codes) for one in (fitted, deeper)]
    assert np.array_equal(*scores) and len(np.unique(scores[0])) > 4
