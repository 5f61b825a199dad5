"""Importances and shape functions: they are the model, taken apart."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.data.binned import SiteData
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.trees.binning import build_grid
from hedgerow.trees.ensemble import Ensemble, Leaf, Node, find_link, prune_tree
from hedgerow.trees.importances import find_importances, find_tree_features, shape_function
from tests.builders import make_data, make_plan, train


@settings(max_examples=20)
@given(label=st.sampled_from(["binary", "regression", "multiclass"]), seed=st.integers(0, 2**32 - 1))
def test_shapes_add_up_to_the_scores(label: str, seed: int) -> None:
    """With one feature per tree, a record's scores are the sum of its features' shapes: of several classes up to a
    constant, of numbers up to the mean that they begin with.
    """
    plan = make_plan(label, {"n_trees": 9, "max_depth": 3, "interaction_size": 1})
    rows = make_data(plan, 50, seed)
    ensemble = train(plan, [rows]).ensemble
    total = np.zeros((50, ensemble.n_outputs))
    for feature in range(ensemble.grid.n_features):
        total += shape_function(ensemble, feature).scores[rows.codes[feature]]
    scores = ensemble.scores(rows.codes).T
    if label == "multiclass":
        scores = scores - scores.mean(axis=1, keepdims=True)
    start = total[:1] - scores[:1] if label == "regression" else 0.0
    assert np.abs(total - scores - start).max() < 1e-9


def test_the_density_is_found_again() -> None:
    """The released leaf weights of many random trees tell where the records are, within a few per cent."""
    plan = make_plan(
        "regression", {"n_trees": 40, "max_depth": 3, "split_candidates": "uniform", "n_candidates": 9},
        {"epsilon": 1000.0, "n_records": 4000}, [{"name": "x", "type": "numeric", "min": 0, "max": 1}],
    )  # fmt: skip
    shares = np.array([4, 0, 1, 1, 8, 2, 0, 2, 2, 0]) / 20
    grid = build_grid(plan).features[0]
    assert grid.n_codes == len(shares)
    codes = np.repeat(np.arange(grid.n_codes), (shares * 4000).astype(int)).astype(np.uint8)[None, :]
    ensemble = train(plan, [SiteData(codes, np.zeros(codes.shape[1], dtype=np.int32))]).ensemble
    shape = shape_function(ensemble, 0)
    assert shape.is_weighted and np.isclose(shape.density.sum(), 1)
    assert np.abs(shape.density - shares).max() < 0.05


def test_the_feature_that_decides_comes_first() -> None:
    """A label that one feature decides makes that feature the most important, alone or in common trees."""
    for size in (1, "all"):
        fields = {"n_trees": 24, "max_depth": 3, "interaction": "cyclical", "interaction_size": size}
        plan = make_plan("binary", fields, {"epsilon": 50.0, "n_records": 2000})
        rows = make_data(plan, 2000, 3)
        labels = (rows.codes[2] == 1).astype(np.int32)
        found = find_importances(train(plan, [SiteData(rows.codes, labels)]).ensemble)
        assert int(found.values.argmax()) == 2 and found.is_weighted
        assert found.interaction_share > 0.9 if size == "all" else found.interaction_share == 0


def test_a_model_without_trees_or_weights() -> None:
    """No trees: nothing is important. No weights kept: importances still exist, and say that they are unweighted."""
    plan = make_plan(privacy={"n_records": 200})
    assert find_importances(Ensemble(build_grid(plan), None, 1, find_link(plan))).values.tolist() == [0.0] * 4
    trained = train(plan, [make_data(plan, 200, 0)]).ensemble
    bare = find_importances(Ensemble(trained.grid, trained.fitted, 1, trained.link))
    assert not bare.is_weighted and bare.values.max() > 0


def test_credits_add_up_to_the_variance_of_the_trees() -> None:
    """What the splits of common trees are credited with is all of their leaves' variance, no more and no less."""
    fields = {"n_trees": 12, "max_depth": 4, "interaction": "cyclical", "interaction_size": "all"}
    plan = make_plan("binary", fields, {"n_records": 500})
    ensemble = train(plan, [make_data(plan, 500, 1)]).ensemble
    expected = 0.0
    for tree in range(ensemble.n_trees):
        if len(find_tree_features(ensemble, tree)) > 1:
            values, weights = np.array(list(leaves_below(prune_tree(ensemble, tree, 0)))).T
            expected += float(np.cov(values / SCORE_UNIT, aweights=weights, ddof=0))
    assert expected > 0
    own = [shape_function(ensemble, feature).deviation() for feature in range(ensemble.grid.n_features)]
    assert np.isclose((find_importances(ensemble).values ** 2).sum() - (np.array(own) ** 2).sum(), expected)


def leaves_below(node: Node) -> Iterator[tuple[float, float]]:
    """Value and weight of every leaf of a pruned tree."""
    if isinstance(node, Leaf):
        yield node.units, node.weight
    else:
        yield from leaves_below(node.left)
        yield from leaves_below(node.right)
