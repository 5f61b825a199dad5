"""ONNX: onnxruntime must predict what we predict, for every label, category, missing value and threshold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import FittedTrees
from tests.builders import FEATURES, make_plan, plans, train_model, with_values
from tests.models.probes import draw_probes, encode_matrix

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

TOLERANCE = 1e-6


def session_of(model: Model, **options: Any) -> Any:
    """The exported model in onnxruntime, on one thread."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    data = model.to_onnx(**options).SerializeToString()
    return onnxruntime.InferenceSession(data, settings, providers=["CPUExecutionProvider"])


def inputs_of(plan: Plan, matrix: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Records of `draw_probes` as the graph takes them."""
    if not any(feature.is_categorical for feature in plan.features):
        return {"X": matrix}
    given = {}
    for feature, column in zip(plan.features, matrix.T, strict=True):
        if feature.is_categorical:
            names = [*feature.categories, "something else", ""]
            places = np.where(np.isnan(column), len(names) - 1, column).astype(int)
            given[feature.name] = np.array(names, dtype=object)[places][:, None]
        else:
            given[feature.name] = np.ascontiguousarray(column[:, None])
    return given


def check(model: Model, seed: int = 0, n: int = 300) -> None:
    """Labels are equal, probabilities and values to 1e-6."""
    matrix = draw_probes(model.plan, model.ensemble.grid, n, np.random.default_rng(seed))
    # Far beyond the bounds as well, and as far as floats go.
    for place, feature in enumerate(model.plan.features):
        if not feature.is_categorical:
            matrix[:4, place] = [np.inf, -np.inf, 3e38, -3e38]
    codes = encode_matrix(model.ensemble.grid, matrix)
    found = session_of(model).run(None, inputs_of(model.plan, matrix))
    label = model.plan.label
    if label.kind.predicts != "probabilities":
        low, high = label.bounds if label.kind.is_number else (-1.0, 1.0)
        (values,) = found
        assert values.shape == (n, 1)
        assert np.abs(values[:, 0] - model.predict_codes(codes)).max() <= 1e-12 * max(abs(low), abs(high))
        return
    names, probabilities = found
    assert names.tolist() == model.predict_codes(codes).tolist()
    assert np.abs(probabilities - model.predict_proba_codes(codes)).max() <= TOLERANCE


@settings(max_examples=40)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1), depth=st.integers(1, 6))
def test_onnxruntime_predicts_the_same(data: st.DataObject, seed: int, depth: int) -> None:
    """Trained models of every label, update, candidate method and interaction; values at and one step below edges."""
    drawn = data.draw(plans())
    check(train_model(replace(drawn, model=replace(drawn.model, max_depth=depth)), seed), seed)


@settings(max_examples=20)
@given(label=st.sampled_from(["binary", "multiclass", "regression", "count", "survival"]),
       seed=st.integers(0, 2**32 - 1), depth=st.integers(1, 6), equal=st.booleans())  # fmt: skip
def test_random_leaf_values_survive(label: str, seed: int, depth: int, equal: bool) -> None:
    """Leaf values that no training would give, some of them beyond what single precision adds up exactly."""
    fields = {"n_trees": 5, "max_depth": depth, "interaction": "cyclical", "interaction_size": "all"}
    model = train_model(make_plan(label, fields))
    random = np.random.default_rng(seed)
    shape = model.ensemble.fitted.values.shape
    values = random.integers(-1, 2, shape) * 2**14 if equal else random.integers(-(2**20), 2**20, shape)
    if seed % 4 == 0:
        # Exact only in double precision: large values that cancel each other.
        values[-2:] = np.array([2**30, -(2**30)])[:, None, None]
    check(with_values(model, values), seed)


@pytest.mark.parametrize("label", ["binary", "multiclass", "regression", "count", "survival"])
@pytest.mark.parametrize("value", [0, 2**15])
def test_trees_that_ask_nothing(label: str, value: int) -> None:
    """Where all leaves of all trees are equal, there is no node left, and each record still has a prediction."""
    model = train_model(make_plan(label))
    check(with_values(model, np.full(model.ensemble.fitted.values.shape, value)))


def test_scores_on_the_border_between_classes() -> None:
    """A score of exactly 0, or classes with equal scores: the first class, as `Model.predict` has it."""
    for label, update in (("binary", "newton"), ("binary", "averaging"), ("multiclass", "newton")):
        model = train_model(make_plan(label, {"n_trees": 2, "weight_update": update}))
        shape = model.ensemble.fitted.values.shape
        check(with_values(model, np.random.default_rng(0).integers(-1, 2, shape) * 2**14))


def test_a_node_that_only_missing_values_leave() -> None:
    """A list of members may not be empty; a split of missing from all categories must work, to either side."""
    feature = {"name": "c", "type": "categorical", "categories": ["a", "b"]}
    plan = make_plan("binary", {"n_trees": 1, "max_depth": 1}, features=[feature])
    for missing_left in (0, 1):
        model = train_model(plan)
        fitted = model.ensemble.fitted
        goes_left = np.full_like(fitted.trees.goes_left, 1 - missing_left)
        goes_left[0, 0, model.ensemble.grid.features[0].missing_code] = missing_left
        trees = replace(fitted.trees, goes_left=goes_left, threshold=np.full_like(fitted.trees.threshold, -1))
        changed = FittedTrees(trees, np.array([[[30_000], [-20_000]]], dtype=np.int32))
        check(replace(model, ensemble=replace(model.ensemble, fitted=changed)))


def test_many_categories() -> None:
    """Sets of up to 250 categories, as many as a plan may have, beside each other and below each other."""
    features = [
        {"name": name, "type": "categorical", "categories": [f"{name}{number}" for number in range(size)]}
        for name, size in (("small", 33), ("large", 250))
    ]
    fields = {"n_trees": 20, "max_depth": 5, "interaction_size": "all", "interaction": "cyclical"}
    model = train_model(make_plan("binary", fields, features=features), n=500)
    values = np.random.default_rng(3).integers(-(2**15), 2**15, model.ensemble.fitted.values.shape)
    check(with_values(model, values), n=1500)


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"algorithm": "adassp"}, "adassp": {"rounds": 3}},
        {"model": {"algorithm": "s-gbdt", "n_trees": 8, "max_depth": 3}},
        {"model": {"algorithm": "dp-xgboost", "n_trees": 3, "max_depth": 2}},
    ],
    ids=["adassp", "s-gbdt", "dp-xgboost"],
)
def test_other_methods_export_as_well(sections: dict[str, Any]) -> None:
    """Linear models are trees of one feature each, so all methods have a graph."""
    table = make_plan("binary").to_dict()
    table = {key: table[key] for key in ("version", "name", "features", "label", "privacy")} | sections
    check(train_model(Plan.from_dict(table), n=200))


def test_texts_are_read_as_in_a_table() -> None:
    """Categories that are numbers or flags, in the forms that a table may have them in, and words for "missing"."""
    features = [
        {"name": "code", "type": "categorical", "categories": ["1", "2", "007", "NA"]},
        {"name": "flag", "type": "categorical", "categories": ["true", "false"]},
        {"name": "label", "type": "numeric", "min": 0, "max": 1},
    ]
    fields = {"n_trees": 12, "max_depth": 3, "interaction_size": "all", "interaction": "cyclical"}
    model = train_model(make_plan("binary", fields, features=features))
    values = np.random.default_rng(0).integers(-(2**15), 2**15, model.ensemble.fitted.values.shape)
    model = with_values(model, values)
    codes = ["1", "1.0", "2", "2.0", "007", "7", "NA", "na", "nan", "NaN", "null", "NULL", "", "3", "x"]
    flags = ["true", "True", "TRUE", "false", "False", "1", "0", "1.0", "", "yes", "NA", "null", "NaN", "nan", "2"]
    columns = {
        "code": np.array(codes, dtype=object),
        "flag": np.array(flags, dtype=object),
        "label": np.linspace(0, 1, len(codes), dtype=np.float32),
    }
    session = session_of(model)
    # An input is called "label" here, so the output is not.
    assert [output.name for output in session.get_outputs()] == ["label_", "probabilities"]
    _, found = session.run(None, {name: column[:, None] for name, column in columns.items()})
    assert np.abs(found - model.predict_proba(columns)).max() <= TOLERANCE
    assert len(set(found[:, 0].tolist())) > 4


def test_a_category_has_all_its_writings() -> None:
    """However a category is listed, a graph takes each writing of it that a table takes, for the same category."""
    listed = ["2.0", "7.50", ".5", "1e-05", "e\u0301", "a", "1"]
    features = [
        {"name": "code", "type": "categorical", "categories": listed},
        {"name": "other", "type": "numeric", "min": 0, "max": 1},
    ]
    model = train_model(make_plan("binary", {"n_trees": 12, "max_depth": 3}, features=features))
    random = np.random.default_rng(0)
    model = with_values(model, random.integers(-(2**15), 2**15, model.ensemble.fitted.values.shape))
    texts = ["2", "2.0", "7.5", "7.50", ".5", "0.5", "1e-05", "0.00001", "\u00e9", "e\u0301", "a", "true", "1.0"]
    columns = {"code": np.array(texts, dtype=object), "other": np.full(len(texts), 0.3, dtype=np.float32)}
    _, found = session_of(model).run(None, {name: column[:, None] for name, column in columns.items()})
    assert np.abs(found - model.predict_proba(columns)).max() <= TOLERANCE
    unlisted = model.predict_proba({"code": ["?"], "other": [0.3]})
    assert (np.abs(model.predict_proba(columns) - unlisted).max(axis=1) > TOLERANCE).all()


def test_classes_may_be_whole_numbers() -> None:
    """What an estimator was given as numbers, its graph gives back as numbers."""
    model = train_model(make_plan("multiclass", features=FEATURES[:2]))
    matrix = draw_probes(model.plan, model.ensemble.grid, 100, np.random.default_rng(0))
    labels, _ = session_of(model, classes=[3, 5, 7, 9]).run(None, {"X": matrix})
    expected = model.predict_codes(encode_matrix(model.ensemble.grid, matrix))
    assert labels.dtype == np.int64
    assert labels.tolist() == [{"a": 3, "b": 5, "c": 7, "d": 9}[name] for name in expected.tolist()]


def test_hashed_columns_are_refused_by_name() -> None:
    """No graph knows the hash: every text would count as unlisted, and predictions would be silently wrong."""
    from hedgerow.errors import ModelError
    from hedgerow.estimators.boosted import DPGBDTClassifier

    pandas = pytest.importorskip("pandas")
    random = np.random.default_rng(0)
    table = pandas.DataFrame({"town": random.choice(["a", "b", "c"], 400), "age": random.uniform(0, 90, 400)})
    fitted = DPGBDTClassifier(
        epsilon=30,
        bounds={"age": (0, 90), "town": "private"},
        classes=[0, 1],
        n_records=400,
        n_trees=5,
        interaction_size=1,
        random_state=0,
    )
    model = fitted.fit(table, random.integers(0, 2, 400)).model_
    for export in (model.to_onnx, model.to_ebm):
        with pytest.raises(ModelError) as refused:
            export()
        assert refused.value.code == "export-unsupported" and "'town'" in refused.value.what
