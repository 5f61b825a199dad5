"""Exports: each runtime must find the user's own columns by the names that they have in it."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hedgerow.cli.main import main
from hedgerow.models.exports import xgboost_names
from hedgerow.models.model import Model, RenamedWarning
from hedgerow.plan.plan import Plan
from tests.builders import make_data, make_plan, train
from tests.models.probes import draw_probes, encode_matrix

TOLERANCE = 1e-6
ADDITIVE = {"n_trees": 12, "max_depth": 3, "interaction": "cyclical", "interaction_size": 1}

# A plan has no characters that control or separate text in a name, and no space alone.
_PARTS = st.one_of(
    st.sampled_from(
        ["[", "]", "<", "(", ")", "﹤", "_", '"', "\\", "\\u00f6", "ö", "o\u0308", "🙂", " ", "/", "hedgerow/", "&",
         "X", "label", "probabilities", "hedgerow/constant_1", "hedgerow/TreeEnsemble_2", "x" * 3000,
         "'", ",", "{", "%s"]
    ),
    st.text(st.characters(codec="utf-8", exclude_categories=("C", "Zl", "Zp")), max_size=4),
)  # fmt: skip
_NAMES = st.lists(_PARTS, min_size=1, max_size=4).map("".join).filter(lambda name: name.strip() and name != "y")
ODD_NAMES = st.lists(_NAMES, min_size=4, max_size=4, unique=True)
"""Names of the four features of `make_plan`."""


@pytest.fixture(scope="module")
def trained() -> Model:
    """An additive model of four features, a category among them."""
    plan = make_plan("binary", ADDITIVE)
    outcome = train(plan, [make_data(plan, 200, 0)])
    return Model(plan, outcome.ensemble, outcome.ledger, outcome.report)


def renamed(model: Model, names: list[str]) -> Model:
    """The same trees, of a plan that names its features so."""
    table = model.plan.to_dict()
    features = [{**feature, "name": name} for feature, name in zip(table["features"], names, strict=True)]
    return replace(model, plan=Plan.from_dict({**table, "features": features}))


def rows_of(model: Model, seed: int, n: int = 60) -> tuple[pd.DataFrame, np.ndarray[Any, Any]]:
    """A table with the plan's own names, columns in another order, and our chances for it."""
    matrix = draw_probes(model.plan, model.ensemble.grid, n, np.random.default_rng(seed))
    columns: dict[str, Any] = {}
    for feature, column in zip(model.plan.features, matrix.T, strict=True):
        if feature.is_categorical:
            kinds = [*feature.categories, "anything else"]
            texts = [None if np.isnan(code) else kinds[int(code)] for code in column]
            columns[feature.name] = pd.Categorical(texts, categories=kinds)
        else:
            columns[feature.name] = column
    ours = model.predict_proba_codes(encode_matrix(model.ensemble.grid, matrix))[:, 1]
    return pd.DataFrame(dict(reversed(columns.items()))), ours


@settings(max_examples=40, deadline=None)
@given(names=ODD_NAMES, seed=st.integers(0, 2**16))
def test_xgboost_finds_the_columns(tmp_path_factory: Any, trained: Model, names: list[str], seed: int) -> None:
    """XGBoost predicts the user's own table; only names that it forbids differ, and the file says how."""
    xgboost = pytest.importorskip("xgboost")
    model, path = renamed(trained, names), tmp_path_factory.mktemp("export") / "model.json"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.export(path, "xgboost")
    booster = xgboost.Booster()
    booster.load_model(path)
    table, ours = rows_of(model, seed)
    changed = json.loads(booster.attr("renamed") or "{}")
    assert set(changed) == {name for name in names if set(name) & set("[]<")}
    assert [each.category for each in told] == ([RenamedWarning] if changed else [])
    assert len(set(booster.feature_names)) == len(names)
    # As the columns stand in the user's table: XGBoost itself must put up with each name, or find it amiss.
    table = table.rename(columns=changed)[booster.feature_names]
    assert np.abs(booster.predict(xgboost.DMatrix(table, enable_categorical=True)) - ours).max() <= TOLERANCE


@settings(max_examples=30, deadline=None)
@given(names=ODD_NAMES, seed=st.integers(0, 2**16))
@example(names=["hedgerow/LabelEncoder_1", "hedgerow/Concat_2", "label", "hedgerow/Cast_3"], seed=0)
def test_onnxruntime_finds_the_columns(trained: Model, names: list[str], seed: int) -> None:
    """Inputs have the plan's own names, even those that the graph would have used within."""
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    model = renamed(trained, names)
    session = onnxruntime.InferenceSession(model.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    table, ours = rows_of(model, seed)
    assert [each.name for each in session.get_inputs()] == names
    columns = {
        name: np.array(table[name].astype(object).where(table[name].notna(), ""), dtype=object)[:, None]
        if isinstance(table[name].dtype, pd.CategoricalDtype)
        else table[name].to_numpy(np.float32)[:, None]
        for name in names
    }
    _, chances = session.run(None, columns)
    assert np.abs(chances[:, 1] - ours).max() <= TOLERANCE


@pytest.mark.filterwarnings("ignore:JSON formats are in beta")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:interpret.*")
@pytest.mark.filterwarnings("ignore::FutureWarning:interpret.*")
@settings(max_examples=20, deadline=None)
@given(names=ODD_NAMES, seed=st.integers(0, 2**16))
def test_interpret_finds_the_columns(tmp_path_factory: Any, trained: Model, names: list[str], seed: int) -> None:
    """An explainable boosting machine predicts the user's own table, by its names, in any order of columns."""
    pytest.importorskip("interpret")
    from interpret.glassbox import ExplainableBoostingClassifier

    model, path = renamed(trained, names), tmp_path_factory.mktemp("export") / "model.json"
    model.export(path, "ebm")
    machine = ExplainableBoostingClassifier()
    machine._from_json(str(path))
    table, ours = rows_of(model, seed)
    for name in table.select_dtypes("category"):
        table[name] = table[name].astype(object).where(table[name].notna(), None)
    assert np.abs(machine.predict_proba(table)[:, 1] - ours).max() <= TOLERANCE


@settings(max_examples=200)
@given(names=st.lists(_NAMES, min_size=1, max_size=12, unique=True))
def test_no_column_is_taken_for_one_that_was_renamed(names: list[str]) -> None:
    """A name that XGBoost allows is kept, so the user's own "(kg)" never gets what the plan has of "[kg]"."""
    features = [{"name": name, "type": "numeric", "min": 0, "max": 1} for name in names]
    found = xgboost_names(make_plan(features=features))
    assert list(found) == names
    assert len(set(found.values())) == len(names)
    assert all(found[name] == name for name in names if not set(name) & set("[]<"))


def test_the_command_says_what_it_renamed(trained: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody has to find out by an error of XGBoost's; formats that keep all names say nothing."""
    renamed(trained, ["weight [kg]", "(kg)", "Größe", "a<b"]).save(tmp_path / "model.json")
    assert main(["export", str(tmp_path / "model.json"), "--to", "xgboost"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    changed = ("'weight [kg]'", "'weight (kg)'", "'a<b'", "'a﹤b'")
    assert [name in said for name in (*changed, "'(kg)'")] == [True, True, True, True, False]
    assert main(["export", str(tmp_path / "model.json"), "--to", "ebm"]) == 0
    assert "'weight [kg]'" not in capsys.readouterr().err
