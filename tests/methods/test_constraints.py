"""Whole models of plans that say what people know: every method keeps to it, and files that do not are refused."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.errors import ModelError, PlanError
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.training.presets import PRESETS, apply_preset
from hedgerow.trees.ensemble import Ensemble, ensemble_from_dict, ensemble_to_dict
from tests import builders
from tests.builders import coded, make_data, make_plan, take, train

FEATURES: list[dict[str, Any]] = [
    {"name": "age", "type": "numeric", "min": 0, "max": 6, "integer": True, "monotone": "increasing"},
    {"name": "stage", "type": "numeric", "min": 1, "max": 5, "integer": True, "monotone": "decreasing"},
    {"name": "sex", "type": "categorical", "categories": ["f", "m"]},
    {"name": "visits", "type": "numeric", "min": 0, "max": 3, "integer": True},
]
UNDIRECTED = [{name: value for name, value in feature.items() if name != "monotone"} for feature in FEATURES]
GROUPS = [["age", "sex"], ["sex", "visits"]]
PRIVATE_PRESETS = sorted(name for name, preset in PRESETS.items() if preset.private)


def grouped_plan(label: str, model: dict[str, Any], **privacy: Any) -> Plan:
    return make_plan(label, {"interaction_constraints": GROUPS, **model}, privacy, FEATURES)


def broken_pairs(ensemble: Ensemble) -> int:
    """How often the score of any record there can be goes against a direction, when a value is raised by one."""
    sizes = [feature.n_codes for feature in ensemble.grid.features]
    codes = np.array(list(itertools.product(*map(range, sizes))), dtype=ensemble.grid.dtype).T
    table = ensemble.scores(np.ascontiguousarray(codes))[0].reshape(sizes)
    broken = 0
    for axis, sign in ((0, 1), (1, -1)):
        values = np.take(table, range(sizes[axis] - 1), axis=axis)
        broken += int((sign * np.diff(values, axis=axis) < 0).sum())
    return broken


def paths(ensemble: Ensemble) -> set[frozenset[str]]:
    """The features on every path of every tree, of nodes that do not send everything left."""
    assert ensemble.fitted is not None
    trees, found = ensemble.fitted.trees, set()
    for tree, leaf in itertools.product(range(trees.n_trees), range(trees.n_leaves)):
        node, path = leaf + trees.n_leaves - 1, set()
        while node:
            node = (node - 1) // 2
            if not trees.goes_left[tree, node].all():
                path.add(str(FEATURES[trees.feature[tree, node]]["name"]))
        found.add(frozenset(path))
    return found


def assert_known(ensemble: Ensemble) -> None:
    assert broken_pairs(ensemble) == 0
    assert all(any(path <= {*group} for group in (*GROUPS, ["stage"])) for path in paths(ensemble))


@pytest.mark.parametrize("preset", PRIVATE_PRESETS)
@pytest.mark.parametrize("label", ["binary", "regression", "count"])
def test_every_method_keeps_to_what_is_known(preset: str, label: str) -> None:
    """Each named method, trained on rows that say the opposite and on much noise: no prediction goes against it."""
    plan = grouped_plan(label, {"n_trees": 3}, epsilon=3.0, n_records=400)
    if label == "count" and PRESETS[preset].section_name:
        pytest.skip("boosting alone is for counts")
    table = apply_preset(PRESETS[preset], plan).to_dict()
    if preset != "adassp":
        table["model"] |= {"n_trees": 25, "max_depth": 3}
        table.get("s_gbdt", {}).pop("extra_rounds", None)
    plan = Plan.from_dict(table)
    data = make_data(plan, 400, 5)
    low, high = (0, 1) if label == "binary" else (-(2**16), 2**16)
    data.labels[:] = np.where(data.codes[0].astype(int) > data.codes[1], low, high)
    assert_known(train(plan, [data]).ensemble)


@given(st.data())
@settings(max_examples=60)
def test_boosted_trees_of_any_setting_keep_to_it(data: st.DataObject) -> None:
    """Whatever splits, update, order, batches, epsilon and labels: the oracle over all records finds no pair broken."""
    pick = st.sampled_from
    label = data.draw(pick(["binary", "regression", "count"]))
    method = data.draw(pick(["totally_random", "hist", "partially_random"]))
    n_trees = data.draw(st.integers(1, 12))
    model = {
        "n_trees": n_trees,
        "max_depth": data.draw(st.integers(1, 4)),
        "split_method": method,
        "n_candidates": data.draw(st.integers(2, 20)),
        "weight_update": data.draw(pick(["newton", "gradient", "averaging"])),
        "interaction": data.draw(pick(["cyclical", "random", *(["adaptive"] if method == "totally_random" else [])])),
        "interaction_size": data.draw(pick([1, 2, 3, "all"])),
        "batch_size": data.draw(st.one_of(st.integers(1, n_trees), st.just("all"))),
        "learning_rate": data.draw(pick(["auto", 0.3, 9.9])),
        "structure_seed": data.draw(st.integers(0, 2**32)),
    }
    plan = grouped_plan(label, model, epsilon=data.draw(pick([0.1, 2.0, 50.0, np.inf])), n_records=60)
    site = make_data(plan, 60, data.draw(st.integers(0, 99)))
    found = train(plan, [site], SeededNoise(data.draw(st.integers(0, 2**32)))).ensemble
    assert_known(found)
    assert ensemble_to_dict(ensemble_from_dict(ensemble_to_dict(found), plan)) == ensemble_to_dict(found)


def test_constraints_do_not_depend_on_who_holds_which_row() -> None:
    """One site or three: the same model, byte for byte."""
    plan = grouped_plan("binary", {"n_trees": 20, "max_depth": 3})
    rows = make_data(plan, 90, 2)
    parts = [take(rows, np.arange(start, 90, 3)) for start in range(3)]
    one, three = (train(plan, sites).ensemble for sites in ([rows], parts))
    assert ensemble_to_dict(one) == ensemble_to_dict(three)


@pytest.fixture(scope="module")
def trained() -> tuple[Plan, Ensemble]:
    plan = grouped_plan("binary", {"n_trees": 30, "max_depth": 3}, epsilon=20.0)
    return plan, train(plan, [make_data(plan, 200, 3)]).ensemble


def test_a_file_that_breaks_its_plan_is_refused(trained: tuple[Plan, Ensemble]) -> None:
    """Whoever changes a value or a feature of a tree by hand cannot pass it off as a model of the plan."""
    plan, ensemble = trained
    content = json.loads(json.dumps(ensemble_to_dict(ensemble)))
    on_age = next(tree for tree in content["trees"] if set(tree["features"]) == {0})
    on_age["values"] = [10**6 - value for value in np.arange(8).tolist()]
    with pytest.raises(ModelError, check=coded("model-invalid")):
        ensemble_from_dict(content, plan)
    ensemble_from_dict(content, Plan.from_dict({**plan.to_dict(), "features": UNDIRECTED}))
    together = [["age", "visits"], ["sex", "stage"]]
    other = {**plan.to_dict(), "model": {**plan.to_dict()["model"], "interaction_constraints": together}}
    with pytest.raises(ModelError, match="keeps apart"):
        ensemble_from_dict(ensemble_to_dict(ensemble), Plan.from_dict(other))


def test_trees_that_meet_are_still_learnt(trained: tuple[Plan, Ensemble]) -> None:
    """Groups keep features apart, and no more: those of one group do meet."""
    assert frozenset({"age", "sex"}) in paths(trained[1]) or frozenset({"sex", "visits"}) in paths(trained[1])


@pytest.mark.parametrize(
    ("feature", "label", "expected"),
    [
        ({"name": "sex", "type": "categorical", "categories": ["f", "m"]}, "binary", "no order"),
        ({"name": "ward", "type": "hashed", "buckets": 4}, "binary", "no order"),
        ({"name": "age", "type": "numeric", "min": 0, "max": 9}, "multiclass", "three classes"),
    ],
)
def test_directions_without_a_meaning_are_refused(feature: dict[str, Any], label: str, expected: str) -> None:
    """Categories have no order, and the chances of several classes cannot all rise: the plan says so by name."""
    with pytest.raises(PlanError, match=expected):
        make_plan(label, features=[{**feature, "monotone": "increasing"}, *builders.FEATURES[1:2]])


@pytest.mark.parametrize(
    ("groups", "expected"),
    [("all", "list of groups"), ([["age"], []], "one feature at least"), ([["age", "weight"]], "name of a feature")],
)
def test_groups_without_a_meaning_are_refused(groups: Any, expected: str) -> None:
    """A group of nothing, or of a column that is no feature, would keep nobody's promise."""
    with pytest.raises(PlanError, match=expected):
        make_plan(model={"interaction_constraints": groups})


def test_plans_that_say_nothing_keep_their_digests() -> None:
    """Sites compare plans by digests: fields that are not used must not change them, and those that are must."""
    plain = make_plan(features=UNDIRECTED)
    assert "monotone" not in json.dumps(plain.to_dict()) and "constraints" not in json.dumps(plain.to_dict())
    known = make_plan(features=FEATURES)
    apart = grouped_plan("binary", {})
    assert len({plain.digest, known.digest, apart.digest}) == 3
    assert Plan.from_dict(json.loads(json.dumps(apart.to_dict()))) == apart
    assert plain.known == () and apart.known == (
        "never falls with age", "never rises with stage", "only these meet: (age, sex), (sex, visits), (stage)",
    )  # fmt: skip
