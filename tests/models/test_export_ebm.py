"""InterpretML's own reader must predict what an additive model predicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.errors import ModelError
from hedgerow.models.exports import _cut
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan

pytest.importorskip("interpret")
from interpret.glassbox import ExplainableBoostingClassifier, ExplainableBoostingRegressor

from tests.builders import make_plan, train_model
from tests.models.probes import draw_probes, encode_matrix

pytestmark = [
    pytest.mark.filterwarnings("ignore:JSON formats are in beta"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:interpret.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning:interpret.*"),
]
ADDITIVE = {"n_trees": 30, "max_depth": 3, "interaction": "cyclical", "interaction_size": 1}


def machine_of(model: Model, folder: Path) -> Any:
    """The exported model, as InterpretML reads the file."""
    path = folder / "model.ebm.json"
    model.export(path, "ebm")
    machine = ExplainableBoostingRegressor() if model.plan.label.kind.is_number else ExplainableBoostingClassifier()
    machine._from_json(str(path))
    return machine


def rows_of(plan: Plan, matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Records of `draw_probes` as InterpretML takes them: an array of objects."""
    rows = matrix.astype(object)
    for place, feature in enumerate(plan.features):
        if feature.is_categorical:
            names = [*feature.categories, "something else", None]
            column = matrix[:, place]
            rows[:, place] = [names[-1 if np.isnan(code) else int(code)] for code in column]
    return rows


@pytest.mark.parametrize(
    ("method", "label"),
    [("boosting", "binary"), ("boosting", "multiclass"), ("boosting", "regression"), ("boosting", "count"),
     ("adassp", "binary"), ("adassp", "regression")],
)  # fmt: skip
def test_interpret_predicts_the_same(tmp_path: Path, label: str, method: str) -> None:
    """Categories, missing and unlisted ones, values on edges and beyond bounds; a linear model is additive, too."""
    plan = make_plan(label, ADDITIVE)
    if method == "adassp":
        kept = {key: plan.to_dict()[key] for key in ("version", "name", "features", "label", "privacy")}
        plan = Plan.from_dict({**kept, "model": {"algorithm": "adassp"}, "adassp": {"rounds": 3}})
    model = train_model(plan, n=300)
    machine = machine_of(model, tmp_path)
    matrix = draw_probes(plan, model.ensemble.grid, 400, np.random.default_rng(2))
    codes = encode_matrix(model.ensemble.grid, matrix)
    rows = rows_of(plan, matrix)
    if plan.label.kind.is_number:
        low, high = plan.label.bounds
        smallest = 0.0 if label == "count" else low
        found = np.clip(machine.predict(rows), smallest, high)
        assert np.abs(found - model.predict_codes(codes)).max() <= 1e-6 * (high - low)
        return
    assert np.abs(machine.predict_proba(rows) - model.predict_proba_codes(codes)).max() <= 1e-6
    assert machine.predict(rows).tolist() == model.predict_codes(codes).tolist()


def test_its_explanations_are_read(tmp_path: Path) -> None:
    """What the file is for: the machine's own pictures of terms, and its local explanations, which are ours."""
    model = train_model(make_plan("binary", ADDITIVE))
    machine = machine_of(model, tmp_path)
    assert machine.term_importances().shape == (4,)
    matrix = draw_probes(model.plan, model.ensemble.grid, 20, np.random.default_rng(2))
    found = machine.eval_terms(rows_of(model.plan, matrix))
    ours = model.explain_codes(encode_matrix(model.ensemble.grid, matrix)).values
    assert np.abs(found - ours).max() <= 1e-6
    assert len(machine.explain_global().data(0)["scores"]) > 1


def test_doubles_fall_into_our_cells() -> None:
    """A cut is the least double that single precision takes for the edge or more."""
    for edge in np.array([0.1, -0.1, 1.0, 2.5, 3e7, -1e-30, 1e30], dtype=np.float32):
        cut = _cut(edge)
        assert np.float32(cut) >= edge and np.float32(np.nextafter(cut, -np.inf)) < edge


def test_models_that_are_not_additive_are_refused() -> None:
    """Trees of several features, and averaged shares of classes, are no tables per feature."""
    model = train_model(make_plan("binary", {**ADDITIVE, "interaction_size": "all"}))
    values = np.random.default_rng(0).integers(-(2**15), 2**15, model.ensemble.fitted.values.shape).astype(np.int32)
    model = replace(model, ensemble=replace(model.ensemble, fitted=replace(model.ensemble.fitted, values=values)))
    averaging = train_model(make_plan("binary", {**ADDITIVE, "weight_update": "averaging"}))
    for refused in (model, averaging):
        with pytest.raises(ModelError) as caught:
            refused.to_ebm()
        assert caught.value.code == "export-unsupported"
