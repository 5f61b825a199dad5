"""Contributions are Shapley values: of a brute-force game, and as XGBoost has them."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.trees.contributions import contributions
from hedgerow.trees.ensemble import Ensemble, Leaf, Node, prune_tree
from tests.builders import make_data, make_plan, plans, train_model
from tests.models.probes import draw_probes, encode_matrix

INTERACTING = {"interaction": "cyclical", "interaction_size": "all"}


def average(node: Node, codes: np.ndarray[Any, Any], known: frozenset[int], ensemble: Ensemble) -> float:
    """What a record reaches when some features are known, straight from the definition."""
    if isinstance(node, Leaf):
        return node.units / 2**16
    left = average(node.left, codes, known, ensemble)
    right = average(node.right, codes, known, ensemble)
    if node.feature not in known:
        return (node.left.weight * left + node.right.weight * right) / node.weight
    grid, code = ensemble.grid.features[node.feature], int(codes[node.feature])
    if code == grid.missing_code:
        return left if node.missing_left else right
    if node.right_categories is not None:
        return right if code in node.right_categories else left
    return left if code == 0 or grid.edges[code - 1] < np.float32(node.condition) else right


def by_brute_force(ensemble: Ensemble, codes: np.ndarray[Any, Any], output: int) -> np.ndarray[Any, Any]:
    """Shapley values over all orders of the features, for one record."""
    n_features = len(codes)
    found = np.zeros(n_features)
    for tree in range(ensemble.n_trees):
        root = prune_tree(ensemble, tree, output)
        for order in itertools.permutations(range(n_features)):
            known: frozenset[int] = frozenset()
            before = average(root, codes, known, ensemble)
            for feature in order:
                known |= {feature}
                after = average(root, codes, known, ensemble)
                found[feature] += (after - before) / math.factorial(n_features)
                before = after
    return found


@settings(max_examples=15)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1), depth=st.integers(1, 5), weighted=st.booleans())
def test_they_are_the_shapley_values_of_the_game(data: st.DataObject, seed: int, depth: int, weighted: bool) -> None:
    """Every label, update and interaction, categories and missing values; and with the base they make the score."""
    drawn = data.draw(plans())
    ensemble = train_model(replace(drawn, model=replace(drawn.model, max_depth=depth)), seed).ensemble
    if not weighted:
        ensemble = replace(ensemble, leaf_weights=None)
    codes = make_data(drawn, 6, seed).codes
    found = contributions(ensemble, codes)
    total = found.base[:, None] + found.values.sum(axis=2)
    assert np.abs(total - ensemble.scores(codes)).max() <= 1e-9
    for output, record in itertools.product(range(ensemble.n_outputs), range(3)):
        expected = by_brute_force(ensemble, codes[:, record], output)
        assert np.abs(found.values[output, record] - expected).max() <= 1e-9


@pytest.mark.parametrize("label", ["binary", "multiclass", "regression", "count", "survival"])
@pytest.mark.parametrize("fields", [{}, INTERACTING], ids=["own", "interacting"])
def test_they_are_those_of_xgboost(label: str, fields: dict[str, Any]) -> None:
    """`pred_contribs` of the exported model, the base included, to what single precision leaves of it."""
    xgboost = pytest.importorskip("xgboost")
    model = train_model(make_plan(label, {"n_trees": 12, "max_depth": 4, **fields}), n=300)
    matrix = draw_probes(model.plan, model.ensemble.grid, 200, np.random.default_rng(3))
    booster = xgboost.Booster()
    booster.load_model(bytearray(json.dumps(model.to_xgboost()).encode()))
    records = xgboost.DMatrix(
        matrix, feature_names=booster.feature_names, feature_types=booster.feature_types, enable_categorical=True
    )
    theirs = booster.predict(records, pred_contribs=True)
    ours = model.explain_codes(encode_matrix(model.ensemble.grid, matrix))
    values, base = (ours.values[..., None], [ours.base]) if ours.values.ndim == 2 else (ours.values, ours.base)
    theirs = theirs.reshape(len(matrix), -1, len(model.plan.features) + 1)
    for output in range(values.shape[2]):
        scale = max(1.0, float(np.abs(theirs).max()))
        assert np.abs(values[:, :, output] - theirs[:, output, :-1]).max() <= 1e-5 * scale
        assert np.abs(base[output] - theirs[:, output, -1]).max() <= 1e-5 * scale


def test_an_explanation_adds_up_to_the_prediction() -> None:
    """In units of the label for numbers; log-odds for two classes; the logarithm of the mean for counts."""
    columns: dict[str, Any] = {
        "age": np.array([0.0, 3.0, np.nan]),
        "income": np.array([10.0, 1e5, 1e6]),
        "region": np.array(["north", "elsewhere", None], dtype=object),
        "change": np.array([-0.5, 0.0, 0.5]),
    }
    models = {label: train_model(make_plan(label, INTERACTING)) for label in ("binary", "regression", "count")}
    margins = {label: found.explain(columns) for label, found in models.items()}
    totals = {label: found.base + found.values.sum(axis=1) for label, found in margins.items()}
    assert margins["binary"].feature_names == ("age", "income", "region", "change")
    assert np.allclose(totals["binary"], models["binary"].decision_scores(columns))
    assert np.allclose(np.clip(totals["regression"], -3, 5), models["regression"].predict(columns))
    assert np.allclose(np.minimum(np.exp(totals["count"]), 12), models["count"].predict(columns))
    several = train_model(make_plan("multiclass", INTERACTING)).explain(columns)
    assert several.values.shape == (3, 4, 4) and several.base.shape == (4,)


def test_a_model_without_splits_explains_nothing() -> None:
    """Contributions of zero, and the score as the base."""
    model = train_model(make_plan("binary"))
    fitted = model.ensemble.fitted
    constant = replace(fitted, values=np.full_like(fitted.values, 2**15))
    found = contributions(replace(model.ensemble, fitted=constant), make_data(model.plan, 5, 0).codes)
    assert not found.values.any() and found.base.tolist() == [0.5 * model.ensemble.n_trees]
