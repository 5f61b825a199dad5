"""Exports: XGBoost itself must predict what we predict, on both sides of every threshold."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.errors import ModelError
from hedgerow.models.exports import ALMOST_ZERO, to_xgboost
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import FittedTrees
from hedgerow.trees.binning import build_grid
from hedgerow.trees.ensemble import Ensemble, Leaf, Node, find_link, prune_tree
from tests.builders import FEATURES, make_plan, plans, train_model, with_values
from tests.models.probes import draw_probes, encode_matrix, export_checked, largest_difference

xgboost = pytest.importorskip("xgboost")

TOLERANCE = 1e-6


def booster_of(model: Model) -> Any:
    """The exported model as XGBoost loads it from JSON bytes."""
    booster = xgboost.Booster()
    booster.load_model(bytearray(json.dumps(model.to_xgboost()).encode()))
    return booster


def matrix_of(booster: Any, values: Any) -> Any:
    """Records with the names and types that the booster asks for."""
    return xgboost.DMatrix(
        values, feature_names=booster.feature_names, feature_types=booster.feature_types, enable_categorical=True
    )


def difference_of(model: Model, seed: int = 0, n: int = 400) -> float:
    """Largest difference between our predictions and XGBoost's on made-up records."""
    booster = booster_of(model)
    values = draw_probes(model.plan, model.ensemble.grid, n, np.random.default_rng(seed))
    return largest_difference(model.plan, model.ensemble, values, booster.predict(matrix_of(booster, values)))


@settings(max_examples=60)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1), depth=st.integers(1, 6))
def test_xgboost_predicts_the_same(data: st.DataObject, seed: int, depth: int) -> None:
    """Trained models of every label, update, candidate method and interaction; values at and one step below edges."""
    drawn = data.draw(plans())
    plan = replace(drawn, model=replace(drawn.model, max_depth=depth))
    model = train_model(plan, seed)
    if not model.ensemble.link.objective(plan.label).name:
        with pytest.raises(ModelError) as caught:
            model.to_xgboost()
        assert caught.value.code == "export-unsupported"
        return
    fitted = model.ensemble.fitted
    if fitted is not None and np.abs(fitted.values.astype(np.int64)).max(axis=1).sum(axis=0).max() >= 2**24:
        # Rates of 9.9 without any ridge, with the noise of an epsilon of 0.05.
        with pytest.raises(ModelError) as caught:
            model.to_xgboost()
        assert caught.value.code == "export-inexact"
        return
    assert difference_of(model, seed) <= TOLERANCE


@settings(max_examples=40)
@given(label=st.sampled_from(["binary", "multiclass", "regression"]), seed=st.integers(0, 2**32 - 1),
       depth=st.integers(1, 6), equal=st.booleans())  # fmt: skip
def test_random_leaf_values_survive(label: str, seed: int, depth: int, equal: bool) -> None:
    """Leaf values that no training would give, with many equal neighbours so that pruning joins leaves."""
    fields = {"n_trees": 5, "max_depth": depth, "interaction": "cyclical", "interaction_size": "all"}
    plan = make_plan(label, fields)
    model = train_model(plan)
    assert model.ensemble.fitted is not None
    random = np.random.default_rng(seed)
    shape = model.ensemble.fitted.values.shape
    values = random.integers(-1, 2, shape) * 2**14 if equal else random.integers(-(2**15), 2**15, shape)
    assert difference_of(with_values(model, values), seed) <= TOLERANCE


def test_two_hundred_trees_do_not_add_up_rounding() -> None:
    """Sums of many leaf values stay exact for log-odds, and within 1e-6 of the range for a label far from zero."""
    binary = train_model(make_plan("binary", {"n_trees": 200, "max_depth": 4}))
    booster = booster_of(binary)
    values = draw_probes(binary.plan, binary.ensemble.grid, 300, np.random.default_rng(1))
    margins = booster.predict(matrix_of(booster, values), output_margin=True)
    assert np.array_equal(margins, binary.decision_scores_codes(encode_matrix(binary.ensemble.grid, values)))
    table = make_plan("regression", {"n_trees": 200, "max_depth": 4}).to_dict()
    table["label"] |= {"min": 1900, "max": 2000}
    assert difference_of(train_model(Plan.from_dict(table))) <= TOLERANCE


def test_bounds_far_from_zero_agree_to_single_precision(tmp_path: Path) -> None:
    """XGBoost's numbers near 2000 are 1e-4 apart: what is lost there is no difference between the models."""
    table = make_plan("regression", {"n_trees": 20, "max_depth": 4}).to_dict()
    table["label"] |= {"min": 2000, "max": 2010}
    export_checked(train_model(Plan.from_dict(table)), tmp_path / "model.json")


def test_a_node_that_only_missing_values_leave() -> None:
    """XGBoost reads no empty category list; a split of missing from all categories must work, to either side."""
    feature = {"name": "c", "type": "categorical", "categories": ["a", "b"]}
    plan = make_plan("binary", {"n_trees": 1, "max_depth": 1}, features=[feature])
    for missing_left in (0, 1):
        model = train_model(plan)
        fitted = model.ensemble.fitted
        assert fitted is not None
        goes_left = np.full_like(fitted.trees.goes_left, 1 - missing_left)
        goes_left[0, 0, model.ensemble.grid.features[0].missing_code] = missing_left
        trees = replace(fitted.trees, goes_left=goes_left, threshold=np.full_like(fitted.trees.threshold, -1))
        changed = FittedTrees(trees, np.array([[[30_000], [-20_000]]], dtype=np.int32))
        odd = replace(model, ensemble=replace(model.ensemble, fitted=changed))
        assert len(odd.to_xgboost()["learner"]["gradient_booster"]["model"]["trees"][0]["left_children"]) == 3
        assert difference_of(odd) <= TOLERANCE


def test_pandas_categories_arrive_as_documented() -> None:
    """A pandas column with the plan's categories and one more for the rest gives our own predictions."""
    pandas = pytest.importorskip("pandas")
    categories = ["north", "south", "west"]
    plan = make_plan(
        "binary", {"n_trees": 8, "max_depth": 2},
        features=[{"name": "region", "type": "categorical", "categories": categories}],
    )  # fmt: skip
    model = train_model(plan)
    text = np.array(["west", "north", "elsewhere", "", "south"], dtype=object)
    other = [name if name in categories or not name else "anything else" for name in text]
    column = pandas.Categorical([name or None for name in other], categories=[*categories, "anything else"])
    booster = booster_of(model)
    theirs = booster.predict(xgboost.DMatrix(pandas.DataFrame({"region": column}), enable_categorical=True))
    assert np.abs(theirs - model.predict_proba({"region": text})[:, 1]).max() <= TOLERANCE


def test_pruning_leaves_no_node_that_decides_nothing() -> None:
    """After pruning, no split has two equal leaves, and the weights add up to those of the leaves in reach."""
    features = FEATURES[:1] + FEATURES[2:3]
    fields = {"n_trees": 10, "max_depth": 6, "interaction": "cyclical", "interaction_size": "all"}
    plan = make_plan("binary", fields, features=features)
    model = train_model(plan)

    def check(node: Node) -> tuple[int, float]:
        if isinstance(node, Leaf):
            return 1, node.weight
        if isinstance(node.left, Leaf) and isinstance(node.right, Leaf):
            assert node.left.units != node.right.units
        left, right = check(node.left), check(node.right)
        assert node.weight == left[1] + right[1]
        return left[0] + right[0], node.weight

    sizes = [check(prune_tree(model.ensemble, tree, 0))[0] for tree in range(10)]
    # Five ages and missing, three regions, others and missing: no more leaves than pairs of them.
    assert max(sizes) <= 30


def test_inexact_models_are_refused() -> None:
    """When sums could leave the range in which single precision is exact, there is no export."""
    model = train_model(make_plan("binary", {"n_trees": 2, "max_depth": 1}))
    huge = with_values(model, np.full(model.ensemble.fitted.values.shape, 2**23))
    with pytest.raises(ModelError) as caught:
        huge.to_xgboost()
    assert caught.value.code == "export-inexact"


def test_subnormal_thresholds_are_refused() -> None:
    """XGBoost may flush the tiniest numbers to zero, so a grid that has them is refused."""
    plan = make_plan(
        "binary", {"split_candidates": "uniform"}, features=[{"name": "x", "type": "numeric", "min": 0, "max": 1e-40}]
    )
    with pytest.raises(ModelError) as caught:
        to_xgboost(plan, Ensemble(build_grid(plan), None, 1, find_link(plan)))
    assert caught.value.code == "export-unsupported"


@pytest.mark.parametrize("with_weights", [True, False])
@pytest.mark.parametrize("label", ["binary", "multiclass"])
def test_converters_do_not_take_classes_for_a_number(label: str, with_weights: bool) -> None:
    """onnxmltools takes a booster whose covers are all whole for a regression, and forgets the sigmoid."""
    model = train_model(make_plan(label))
    if not with_weights:
        model = replace(model, ensemble=replace(model.ensemble, leaf_weights=None))
    covers: list[float] = []

    def read(node: Any) -> None:
        covers.append(node["cover"])
        for child in node.get("children", ()):
            read(child)

    for tree in booster_of(model).get_dump(dump_format="json", with_stats=True):
        read(json.loads(tree))
    assert not all(cover == int(cover) for cover in covers)


def test_a_first_tree_of_one_leaf_changes_nothing() -> None:
    """onnxmltools adds base_score to the log-odds of a booster that begins with a leaf of 0, so ours never does."""
    model = train_model(make_plan("binary"))
    values = model.ensemble.fitted.values.copy()
    values[0] = 0
    model = with_values(model, values)
    booster = booster_of(model)
    assert json.loads(booster.get_dump(dump_format="json")[0])["leaf"] != 0
    records = draw_probes(model.plan, model.ensemble.grid, 300, np.random.default_rng(1))
    margins = booster.predict(matrix_of(booster, records), output_margin=True)
    expected = model.decision_scores_codes(encode_matrix(model.ensemble.grid, records))
    assert np.abs(margins - expected).max() <= ALMOST_ZERO


def test_what_is_known_goes_with_the_file() -> None:
    """Directions and groups stand in the booster as its own parameters are written, and it predicts the same."""
    features = [{**FEATURES[0], "monotone": "decreasing"}, *FEATURES[1:]]
    model = {"n_trees": 20, "interaction_constraints": [["age", "region"]]}
    trained = train_model(make_plan("binary", model, features=features))
    booster = booster_of(trained)
    assert booster.attr("monotone_constraints") == "(-1,0,0,0)"
    assert booster.attr("interaction_constraints") == "[[0, 2], [1, 3]]"
    assert difference_of(trained) <= TOLERANCE
    assert booster_of(train_model(make_plan())).attr("monotone_constraints") is None


def test_the_versions_that_are_named_are_those_that_may_be_installed() -> None:
    """What reads our files is said in the documents, as the extra allows it."""
    root = Path(__file__).parent.parent.parent
    allowed = re.findall(r'"xgboost>=([\d.]+),<3\.(\d+)"', (root / "pyproject.toml").read_text(encoding="utf-8"))
    ((oldest, beyond),) = allowed
    text = f"{oldest} to 3.{int(beyond) - 1}"
    for file in ("docs/models.md", "src/hedgerow/models/exports.py"):
        assert text in (root / file).read_text(encoding="utf-8")
    assert (2, 1) <= tuple(map(int, xgboost.__version__.split(".")[:2])) < (3, int(beyond))
