"""The JSON form of an ensemble: it says everything, and everything in it is checked."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.errors import ModelError
from hedgerow.trees.binning import build_grid
from hedgerow.trees.ensemble import (
    ALL_LEFT,
    SET,
    Ensemble,
    ensemble_from_dict,
    ensemble_to_dict,
    find_link,
    grid_digest,
    single_as_decimal,
)
from tests.builders import make_data, make_plan, plans, train

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def small() -> tuple[Any, dict[str, Any]]:
    """A plan and the JSON form of its model, with cuts, sets and nodes that send everything left."""
    fields = {"n_trees": 6, "max_depth": 4, "interaction": "cyclical", "interaction_size": 2}
    plan = make_plan("multiclass", fields)
    table = ensemble_to_dict(train(plan, [make_data(plan, 60, 0)]).ensemble)
    kinds = {min(cut, 0) for tree in table["trees"] for cut in tree["cuts"]}
    assert kinds == {0, SET, ALL_LEFT}
    return plan, table


@settings(max_examples=40)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_an_ensemble_survives_json(data: st.DataObject, seed: int) -> None:
    """Reading back what was written gives the same arrays bit by bit, and writing those gives the same JSON."""
    plan = data.draw(plans())
    ensemble = train(plan, [make_data(plan, 30, seed)]).ensemble
    text = json.dumps(ensemble_to_dict(ensemble))
    again = ensemble_from_dict(json.loads(text), plan)
    ours, theirs = ensemble.fitted, again.fitted
    assert ours is not None and theirs is not None
    for name in ("feature", "threshold", "goes_left"):
        before, after = getattr(ours.trees, name), getattr(theirs.trees, name)
        assert before.dtype == after.dtype and np.array_equal(before, after), name
    assert ours.values.dtype == theirs.values.dtype and np.array_equal(ours.values, theirs.values)
    assert ensemble.leaf_weights is not None and again.leaf_weights is not None
    assert np.array_equal(ensemble.leaf_weights, again.leaf_weights)
    assert (again.link, again.n_outputs) == (ensemble.link, ensemble.n_outputs)
    assert json.dumps(ensemble_to_dict(again)) == text


@settings(max_examples=15)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_the_fields_are_those_of_each_node(data: st.DataObject, seed: int) -> None:
    """Every number is the one that is found by looking at its node alone, and is one of Python's own."""
    plan = data.draw(plans())
    ensemble = train(plan, [make_data(plan, 30, seed)]).ensemble
    fitted, grid = ensemble.fitted, ensemble.grid
    assert fitted is not None and ensemble.leaf_weights is not None
    for tree, table in enumerate(ensemble_to_dict(ensemble)["trees"]):
        assert json.loads(json.dumps(table)) == table
        sets = {}
        for node, number in enumerate(fitted.trees.feature[tree]):
            feature, left = grid.features[number], fitted.trees.goes_left[tree, node]
            cut, threshold = int(fitted.trees.threshold[tree, node]), None
            if cut == SET:
                sets[str(node)] = [code for code in range(feature.n_codes) if left[code]]
            elif cut >= feature.n_cells - 1:
                cut = ALL_LEFT
            else:
                threshold = single_as_decimal(feature.edges[cut])
            found = [table[name][node] for name in ("features", "cuts", "thresholds", "missing_left")]
            assert found == [number, cut, threshold, left[feature.missing_code]]
        assert table["sets"] == sets
        assert table["values"] == [int(value) for leaf in fitted.values[tree] for value in leaf]
        assert table["weights"] == [int(weight) for weight in ensemble.leaf_weights[tree]]


def test_an_ensemble_without_trees_survives() -> None:
    """A run that was stopped before its first tree still has a model, which says nothing."""
    plan = make_plan()
    empty = Ensemble(build_grid(plan), None, 1, find_link(plan))
    assert ensemble_from_dict(ensemble_to_dict(empty), plan).fitted is None


def test_thresholds_are_the_edges_people_would_write() -> None:
    """Thresholds are shortest decimals that single precision reads back as the very edge."""
    plan = make_plan(features=[{"name": "x", "type": "numeric", "min": 0, "max": 1}])
    ensemble = train(plan, [make_data(plan, 60, 0)]).ensemble
    edges = ensemble.grid.features[0].edges
    for tree in ensemble_to_dict(ensemble)["trees"]:
        for cut, threshold in zip(tree["cuts"], tree["thresholds"], strict=True):
            if cut >= 0:
                assert np.float32(threshold) == edges[cut]
                assert len(repr(threshold)) <= 16


@pytest.mark.parametrize("change", [{"max": 2.0}, {"min": -1.0}, {"spacing": "log"}])
def test_the_digest_notices_another_grid(change: dict[str, Any]) -> None:
    """Any change of a feature's cells changes the digest."""
    feature = {"name": "x", "type": "numeric", "min": 0, "max": 1}
    digests = {grid_digest(build_grid(make_plan(features=[each]))) for each in (feature, {**feature, **change})}
    assert len(digests) == 2


def _tree(number: int, field: str, value: object) -> Change:
    return lambda table: table["trees"][number].__setitem__(field, value)


def _first(field: str, value: object) -> Change:
    return lambda table: table["trees"][0][field].__setitem__(0, value)


def _first_set(codes: object) -> Change:
    def change(table: dict[str, Any]) -> None:
        sets = next(tree["sets"] for tree in table["trees"] if tree["sets"])
        sets[next(iter(sets))] = codes

    return change


def _root(field: str, value: object) -> Change:
    return lambda table: table.__setitem__(field, value)


DAMAGES: list[tuple[str, Change]] = [
    ("model-newer-version", _root("version", 2)),
    ("model-invalid", _root("version", "1")),
    ("model-invalid", _root("version", True)),
    ("model-invalid", _root("link", "logistic")),
    ("model-invalid", _root("n_outputs", 1)),
    ("model-invalid", _root("depth", 3)),
    ("model-invalid", _root("depth", 9)),
    ("model-invalid", _root("trees", None)),
    ("model-invalid", _root("trees", [])),
    ("model-invalid", _root("trees", [1])),
    ("model-grid-changed", _root("grid_digest", "0" * 64)),
    ("model-invalid", _first("features", 4)),
    ("model-invalid", _first("features", -1)),
    ("model-invalid", _first("features", 1.0)),
    ("model-invalid", _tree(0, "features", [0])),
    ("model-invalid", _first("cuts", 10_000)),
    ("model-invalid", _first("cuts", -3)),
    ("model-invalid", _first("thresholds", 1e30)),
    ("model-invalid", _tree(0, "thresholds", None)),
    ("model-invalid", _first("missing_left", 2)),
    ("model-invalid", _first("missing_left", False)),
    ("model-invalid", _tree(0, "sets", {"99": [0]})),
    ("model-invalid", _tree(0, "sets", [])),
    ("model-invalid", _first_set([5])),
    ("model-invalid", _first_set([1, 0])),
    ("model-invalid", _first_set("0")),
    ("model-leaf-range", _first("values", 2**31)),
    ("model-leaf-range", _first("values", -(2**31) - 1)),
    ("model-invalid", _first("values", 0.5)),
    ("model-invalid", _tree(0, "values", [])),
    ("model-invalid", _first("weights", -1)),
    ("model-invalid", _first("weights", 2**63)),
    ("model-invalid", _tree(0, "weights", None)),
    ("model-invalid", lambda table: table["trees"][0].pop("weights")),
]


@pytest.mark.parametrize(("code", "damage"), DAMAGES)
def test_damage_is_named(small: tuple[Any, dict[str, Any]], code: str, damage: Change) -> None:
    """Every wrong shape, type, number or reference is refused with its code, never read as something else."""
    plan, table = small
    damaged = copy.deepcopy(table)
    damage(damaged)
    assert damaged != table or code == "model-invalid"
    with pytest.raises(ModelError) as caught:
        ensemble_from_dict(damaged, plan)
    assert caught.value.code == code
    assert caught.value.remedy


TREE_FIELDS = ["features", "cuts", "thresholds", "missing_left", "sets", "values", "weights"]

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=150)
@given(field=st.sampled_from(TREE_FIELDS), value=junk, place=st.none() | st.integers(0, 6))
def test_junk_never_ends_in_another_error(
    small: tuple[Any, dict[str, Any]], field: str, value: object, place: int | None
) -> None:
    """Whatever stands in a field, reading either works or ends in a ModelError."""
    plan, table = small
    damaged = copy.deepcopy(table)
    tree = damaged["trees"][1]
    if place is None or field == "sets":
        tree[field] = value
    else:
        tree[field][place] = value
    try:
        ensemble_from_dict(damaged, plan)
    except ModelError as refused:
        assert refused.code.startswith("model-")
