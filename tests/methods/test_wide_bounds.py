"""Bounds that are far wider than the rows: a run finds where the rows are, and the model loses nothing."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow import DPGBDTClassifier
from hedgerow.client.node import Node
from hedgerow.data.binned import HeldValues, Recoded, SiteData
from hedgerow.errors import DataError, ModelError
from hedgerow.local.training import evaluate_federated, train
from hedgerow.methods.registry import program_for, resolve
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.server.release import UNCOUNTED, Outcome, PlainAggregation, run_program
from hedgerow.trees.binning import FeatureGrid, build_grid
from hedgerow.trees.ensemble import ensemble_from_dict, ensemble_to_dict
from tests.builders import make_plan

ROWS = 6000


def pressures(low: float, high: float, label: str = "binary", **model: Any) -> Plan:
    """Three numbers about 120 as blood pressures, within these bounds."""
    features = [{"name": name, "type": "numeric", "min": low, "max": high} for name in "abc"]
    fields = {"n_trees": 60, "max_depth": 4, "structure_seed": 3, **model}
    return make_plan(label, fields, {"n_records": ROWS}, features)


def columns(seed: int) -> tuple[tuple[NDArray[np.float32], ...], NDArray[np.int32]]:
    """Values, and classes that go with the first two: a cell of wide bounds holds most of what tells them apart."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(3, ROWS))
    chance = 1 / (1 + np.exp(-2 * np.sin(1.5 * x[0]) - x[1]))
    return tuple((120 + 17 * x).astype(np.float32)), (random.random(ROWS) < chance).astype(np.int32)


def rows(plan: Plan, seed: int) -> SiteData:
    values, labels = columns(seed)
    grid = build_grid(plan)
    codes = grid.encode(values)
    return SiteData(codes, labels, grid.places(values, codes) if grid.divisible else None)


def trained(plan: Plan, sites: list[SiteData]) -> Outcome:
    settings = resolve(plan)
    nodes = [Node(f"site {number}", data, plan, settings) for number, data in enumerate(sites)]
    return run_program(
        plan, program_for(plan, settings), PlainAggregation(nodes), SeededNoise(5, exact=False), UNCOUNTED
    )


def auc(outcome: Outcome) -> float:
    metrics = pytest.importorskip("sklearn.metrics")
    values, labels = columns(1)
    return float(metrics.roc_auc_score(labels, outcome.ensemble.scores(outcome.ensemble.grid.encode(values))[0]))


@pytest.fixture(scope="module")
def wide() -> Outcome:
    plan = pressures(-90_000, 90_240)
    return trained(plan, [rows(plan, 0)])


def test_wide_bounds_cost_nothing(wide: Outcome) -> None:
    """A thousand times as wide: as good as sensible bounds, and far better than cells that are never cut anew."""
    sensible_plan = pressures(30, 210)
    sensible = trained(sensible_plan, [rows(sensible_plan, 0)])
    assert len(wide.ensemble.grid.new_edges) == 3
    fixed = pressures(-90_000, 90_240, interaction="cyclical")
    assert not trained(fixed, [rows(fixed, 0)]).ensemble.grid.new_edges
    assert auc(wide) > auc(sensible) - 0.01
    assert auc(wide) > auc(trained(fixed, [rows(fixed, 0)])) + 0.02


def test_partitions_do_not_show(wide: Outcome) -> None:
    """Sites cut their rows anew by themselves, and the model is the same byte for byte; also with no rows at one."""
    data = rows(wide.plan, 0)
    owner = np.random.default_rng(2).integers(0, 3, ROWS)
    again = trained(wide.plan, [data.only(owner == site) for site in range(4)])
    assert ensemble_to_dict(again.ensemble) == ensemble_to_dict(wide.ensemble)
    assert again.ledger.to_json() == wide.ledger.to_json()
    # The owner's rows are as they were.
    assert np.array_equal(data.codes, rows(wide.plan, 0).codes)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.sets(st.integers(0, 2)), min_size=1, max_size=5), st.integers(0, 2**32 - 1))
def test_rows_cut_again_and_again_are_rows_cut_once(cuts: list[set[int]], seed: int) -> None:
    """Whatever was cut before: the codes are those of the new edges, and what is held of the rows stays as it was."""
    plan, random = pressures(-90_000, 90_240), np.random.default_rng(seed)
    data, grid, before, known = rows(plan, 0), build_grid(plan), None, dict[int, Any]()
    first, made = data.codes.copy(), list[Any]()
    for features in cuts:
        for number in features:
            of = grid.features[number]
            union = np.union1d(of.edges, of.inner_edges[of.inner_edges < np.inf])
            known[number] = np.sort(random.choice(union, len(of.edges), replace=False))
        edges = {number: own for number, own in known.items() if number in features or random.integers(2)}
        codes = data.codes_in(grid, edges, before)
        assert np.array_equal(codes, grid.cut_again(edges).encode(columns(0)[0]))
        assert np.array_equal(data.codes, first)
        # What was made of other codes is not taken for that of these.
        assert not edges or all(codes is not own for own in made)
        before, made = Recoded(edges, codes), [*made, codes]


@pytest.mark.slow
@pytest.mark.parametrize("declared", [{"bounds": (-6, 6)}, {}])
def test_a_fit_holds_two_bytes_for_each_value(declared: dict[str, Any]) -> None:
    """Beyond its input, as the allocator counts it: one byte of code, and little more than another of all else."""
    values = np.random.default_rng(0).normal(size=(150_000, 28)).astype(np.float32)
    labels = (values[:, 0] + values[:, 1] * values[:, 2] > 0).astype(np.int32)
    most = list[int]()
    for n_rows in (50_000, len(labels)):
        known = {**declared, "classes": [0, 1], "n_records": n_rows} if declared else {}
        model = DPGBDTClassifier(n_trees=20, max_depth=4, **known)
        model.fit(values[:n_rows], labels[:n_rows])
        tracemalloc.start()
        model.fit(values[:n_rows], labels[:n_rows])
        most.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # Tables of the features' cells are no longer for more rows.
    assert most[1] - most[0] < 2.2 * (values.size - values[:50_000].size)


def test_scores_of_nodes_are_those_of_the_model() -> None:
    """What nodes hold at the end of a run, update after update in changing cells, is what the model gives the rows."""
    plan = pressures(-90_000, 90_240, calibration="none")
    settings, data = resolve(plan), rows(plan, 0)
    node = Node("site", data, plan, settings)
    outcome = run_program(
        plan, program_for(plan, settings), PlainAggregation([node]), SeededNoise(5, exact=False), UNCOUNTED
    )
    fitted, ensemble = outcome.ensemble.fitted, outcome.ensemble
    assert fitted is not None and len(ensemble.grid.new_edges) == 3
    codes = ensemble.grid.encode(columns(0)[0])
    assert np.array_equal(node.held.records.codes, codes)
    assert np.array_equal(data.codes_in(build_grid(plan), ensemble.grid.new_edges), codes)
    last = replace(
        ensemble,
        fitted=replace(
            fitted, trees=type(fitted.trees)(*(part[:-1] for part in (
                fitted.trees.feature, fitted.trees.goes_left, fitted.trees.threshold))), values=fitted.values[:-1],
        ),
        leaf_weights=None,
    )  # fmt: skip
    assert np.array_equal(node.held.records.scores / 2**16, last.scores(codes))


def test_a_model_file_has_the_new_edges(wide: Outcome) -> None:
    """They come back bit by bit; files with others are refused, and models without any have no such field."""
    table = json.loads(json.dumps(ensemble_to_dict(wide.ensemble)))
    again = ensemble_from_dict(table, wide.plan)
    assert ensemble_to_dict(again) == ensemble_to_dict(wide.ensemble)
    for feature, edges in wide.ensemble.grid.new_edges.items():
        assert np.array_equal(again.grid.features[feature].edges, edges)
    off = table["edges"]["0"]
    broken = [
        {}, [], {"7": off}, {"0": off[:-1]}, {"0": [*off[:-1], off[-1] + 1e4]}, {"0": off[::-1]}, {"0": [1, *off[1:]]},
    ]  # fmt: skip
    for edges in broken:
        with pytest.raises(ModelError):
            ensemble_from_dict({**table, "edges": edges}, wide.plan)
    plan = pressures(30, 210, interaction="cyclical")
    assert "edges" not in ensemble_to_dict(trained(plan, [rows(plan, 0)]).ensemble)


def test_sites_evaluate_such_a_model(wide: Outcome) -> None:
    """Nodes bin held-out rows by the plan, and are told the model's edges with its trees."""
    model = Model(wide.plan, wide.ensemble, wide.ledger, wide.report)
    held_out = rows(wide.plan, 1)
    found = evaluate_federated(model, {"a": held_out.only(np.arange(2000)), "b": held_out.only(np.arange(2000, ROWS))},
                               epsilon=float("inf"), noise=SeededNoise(1)).evaluation  # fmt: skip
    assert found.scores["auc"].value == pytest.approx(auc(wide), abs=0.01)


def test_several_classes() -> None:
    """The same mechanism, one tree for all classes."""
    plan = pressures(-90_000, 90_240, "multiclass")
    assert trained(plan, [rows(plan, 0)]).ensemble.grid.new_edges


def test_directions_are_kept() -> None:
    """A feature that has to rise does so in its new cells as well: the file's own check says so."""
    plan = pressures(-90_000, 90_240)
    content = plan.to_dict()
    content["features"][1]["monotone"] = "increasing"
    plan = Plan.from_dict(content)
    ensemble = trained(plan, [rows(plan, 0)]).ensemble
    assert 1 in ensemble.grid.new_edges
    assert ensemble_from_dict(ensemble_to_dict(ensemble), plan).n_trees == ensemble.n_trees


@given(st.lists(st.lists(st.integers(0, 19), max_size=30), max_size=3), st.booleans())
def test_values_that_are_held_have_the_places_that_binning_finds(choices: list[list[int]], is_mask: bool) -> None:
    """Whatever rows are chosen, and however often: each value's place is its own, made early or late."""
    plan = pressures(-90_000, 90_240)
    grid, values = build_grid(plan), tuple(column[:20] for column in columns(0)[0])
    codes = grid.encode(values)
    early = SiteData(codes, np.zeros(20, dtype=np.int32), grid.places(values, codes))
    late = replace(early, places=HeldValues(grid, values.__getitem__))
    for choice in choices:
        if early.n_records:
            rows = np.array(choice, dtype=np.intp) % early.n_records
            if is_mask:
                rows = np.isin(np.arange(early.n_records), rows)
            early, late = early.only(rows), late.only(rows)
    for _ in range(2):
        assert np.array_equal(late.all_places(), early.all_places())
    assert late.digest() == early.digest()
    plain = build_grid(pressures(30, 210, interaction="cyclical"))
    none = SiteData(codes, np.zeros(20, dtype=np.int32))
    assert replace(none, places=HeldValues(plain, values.__getitem__)).digest() == none.digest()


@pytest.mark.parametrize("kind", ["rows", "columns", "frame"])
def test_fit_makes_places_of_features_that_are_cut_again_and_of_no_others(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """They take longer than all the rest of a fit. The model is that of a run which has had them from the start."""
    found: list[FeatureGrid] = []
    places = FeatureGrid.places

    def counted(grid: FeatureGrid, *values: NDArray[np.generic]) -> NDArray[np.uint8]:
        found.append(grid)
        return places(grid, *values)

    monkeypatch.setattr(FeatureGrid, "places", counted)
    values, labels = columns(0)
    X = {
        "rows": lambda: np.column_stack(values),
        "columns": lambda: np.asfortranarray(np.column_stack(values)),
        "frame": lambda: pytest.importorskip("pandas").DataFrame(dict(zip("abc", values, strict=True))),
    }[kind]()
    declared = {"classes": [0, 1], "n_records": ROWS, "epsilon": 2.0, "n_trees": 30, "random_state": 3}
    owner = np.arange(ROWS) % 3
    DPGBDTClassifier(bounds=(30, 210), interaction="cyclical", **declared).fit(X, labels, sites=owner)
    assert not found
    wide = DPGBDTClassifier(bounds=[(-90_000, 90_240), (30, 210), (30, 210)], **declared)
    model = wide.fit(X, labels, sites=owner).model_
    assert 0 < len(found) == len(model.ensemble.grid.new_edges) < 3
    grid = build_grid(model.plan)
    codes = grid.encode(values)
    early = SiteData(codes, labels, grid.places(values, codes))
    again = train(model.plan, {"site": early}, noise=SeededNoise(3))
    assert ensemble_to_dict(again.ensemble) == ensemble_to_dict(model.ensemble)


def test_rows_without_places_are_refused_when_they_are_needed(wide: Outcome) -> None:
    """A value's place in its cell cannot be made up."""
    data = replace(rows(wide.plan, 0), places=None)
    with pytest.raises(DataError, match="places"):
        trained(wide.plan, [data])


def test_places_of_another_type_are_refused() -> None:
    """Places are looked up in a table of 256 without asking: one beyond would take a code that is not its value's."""
    plan = pressures(-90_000, 90_240)
    data = rows(plan, 0)
    assert data.places is not None
    odd = SiteData(data.codes, data.labels, data.places.astype(np.int64) + 256)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="int64 places"):
        Node("site", odd, plan, resolve(plan))
