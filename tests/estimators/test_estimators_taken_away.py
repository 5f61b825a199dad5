"""What people do with a fitted estimator: scikit-learn's own tools, and taking the model elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from hedgerow import DPGBDTClassifier, DPGBDTRegressor, DPGBDTSurvival, DPLinearClassifier, DPLinearRegressor
from hedgerow.cli.main import main
from hedgerow.models.model import Model
from hedgerow.privacy.statement import Depth, Topic


@pytest.fixture(scope="module")
def numbers() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """1,000 rows, 3 features in [-1, 1], of which the first decides the class."""
    X = np.random.default_rng(5).uniform(-1, 1, (1000, 3))
    return X, (X[:, 0] > 0).astype(int)


def classifier(kind: Any = DPGBDTClassifier, **more: Any) -> Any:
    """A classifier that is told everything public."""
    return kind(epsilon=20, bounds=[(-1, 1)] * 3, classes=[0, 1], n_records=1000, random_state=1, **more)


@pytest.fixture(scope="module")
def fitted(numbers: tuple[Any, Any]) -> Any:
    """It, trained."""
    return classifier(n_trees=12).fit(*numbers)


def test_importances_find_the_feature_that_decides(numbers: tuple[Any, Any], fitted: Any) -> None:
    """Those from the model alone add up to 1; scikit-learn's, from rows, agree on the first."""
    own = fitted.feature_importances_
    assert own.shape == (3,) and own.sum() == pytest.approx(1) and own.argmax() == 0
    assert permutation_importance(fitted, *numbers, n_repeats=2, random_state=0).importances_mean.argmax() == 0
    assert classifier(DPLinearClassifier, rounds=3).fit(*numbers).feature_importances_.argmax() == 0


def test_scikit_learns_tools_take_the_estimators(numbers: tuple[Any, Any]) -> None:
    """Pipelines, calibration, searches, cross-validation and clones, for trees and linear models."""
    X, y = numbers
    for kind, grid in ((DPGBDTClassifier, {"max_depth": [1, 2]}), (DPLinearClassifier, {"rounds": [1, 2]})):
        model = classifier(kind, **({"n_trees": 5} if kind is DPGBDTClassifier else {}))
        pipeline = make_pipeline(FunctionTransformer(), model).fit(X, y)
        assert pipeline.score(X, y) > 0.7
        name = pipeline.steps[-1][0]
        search = GridSearchCV(pipeline, {f"{name}__{key}": values for key, values in grid.items()}, cv=2).fit(X, y)
        assert search.best_score_ > 0.7
        calibrated = CalibratedClassifierCV(model, cv=2).fit(X, y)
        assert calibrated.predict_proba(X).shape == (1000, 2)
        assert cross_val_score(model, X, y, cv=2).mean() > 0.7
        assert clone(model).get_params() == model.get_params()


def test_a_fitted_estimator_is_taken_elsewhere(numbers: tuple[Any, Any], fitted: Any, tmp_path: Path) -> None:
    """Saved and loaded again; XGBoost's JSON; a picture; explanations; all from the estimator itself."""
    X, _ = numbers
    fitted.save(tmp_path / "model.json")
    saved = fitted.model_.with_account(fitted.privacy_report_.account)
    assert Model.load(tmp_path / "model.json").to_bytes() == saved.to_bytes()
    assert fitted.to_xgboost() == fitted.model_.to_xgboost()
    found = fitted.explain(X[:20])
    assert found.base + found.values.sum(axis=1) == pytest.approx(fitted.decision_function(X[:20]))
    pytest.importorskip("matplotlib")
    fitted.plot(tmp_path / "shapes.png")
    assert (tmp_path / "shapes.png").stat().st_size
    # A notebook shows the features by the size of what they contribute.
    sizes = dict(zip(found.feature_names, np.abs(found.values).mean(axis=0), strict=True))
    shown = re.findall(r"<th>(.*?)</th>", found._repr_html_())
    assert shown == sorted(sizes, key=lambda name: -sizes[name])


def test_graphs_give_the_classes_that_were_given(numbers: tuple[Any, Any], fitted: Any) -> None:
    """Whole numbers for whole numbers, text for text."""
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    X, y = numbers
    words = np.array(["no", "yes"])[y]
    named = clone(fitted).set_params(classes=["no", "yes"]).fit(X, words)
    single = X.astype(np.float32)
    for model in (fitted, named):
        session = onnxruntime.InferenceSession(model.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
        labels, _ = session.run(None, {"X": single})
        assert labels.tolist() == model.predict(single).tolist()


def test_what_is_not_fitted_says_so() -> None:
    """As scikit-learn's own estimators do."""
    from sklearn.exceptions import NotFittedError

    for name in ("save", "to_xgboost", "to_onnx", "plot", "explain"):
        with pytest.raises(NotFittedError):
            getattr(classifier(), name)(*(["x"] if name in ("save", "plot", "explain") else []))
    with pytest.raises(NotFittedError):
        _ = classifier().feature_importances_
    for kind in (DPGBDTClassifier, DPGBDTRegressor, DPGBDTSurvival, DPLinearClassifier, DPLinearRegressor):
        asks = [name for name in dir(kind) if "predict" in name and not name.startswith(("_", "set_"))]
        for name in (*asks, "explain"):
            with pytest.raises(NotFittedError):
                getattr(kind(), name)([[0.5]])


@pytest.mark.parametrize("is_fitted", [False, True])
@pytest.mark.filterwarnings("ignore::hedgerow.estimators.base.FewRecordsWarning")
def test_a_fit_that_ends_early_takes_what_it_found_with_it(
    numbers: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, is_fitted: bool
) -> None:
    """Classes that a survey has found stand on no account then, and are not those of an earlier fit's model."""
    X, y = numbers
    model = DPGBDTClassifier(epsilon=20, n_trees=2)
    if is_fitted:
        model.fit(X, y)
    before, seen = vars(model).copy(), list[Any]()

    def end(*_: Any, **__: Any) -> None:
        seen.extend(model.classes_.tolist())
        raise KeyboardInterrupt

    monkeypatch.setattr("hedgerow.estimators.base.train", end)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[:, :2], np.where(y, "ill", "well"))
    assert seen == ["ill", "well"]
    assert vars(model).keys() == before.keys() and all(vars(model)[name] is own for name, own in before.items())


def test_a_model_is_shown_in_a_few_lines(numbers: tuple[Any, Any], fitted: Any) -> None:
    """At a prompt and in a notebook: what it predicts, its size, its privacy; nothing that would be read as HTML."""
    X, _ = numbers
    text = repr(fitted.model_)
    assert len(text.splitlines()) == 5 and len(text) < 700
    assert "trees     13" in text and "VOID" in text
    told = {each.topic for each in fitted.model_.report.statement.sentences if each.depth is Depth.PERSON}
    assert fitted.model_._repr_html_().count("<tr>") == 4 + len(told) and Topic.TRUST in told
    regressor = DPGBDTRegressor(bounds=[(-1, 1)] * 3, label_bounds=(-1, 1), n_records=1000, n_trees=2)
    assert "regression, -1 to 1" in repr(regressor.fit(X, X[:, 0]).model_)


def test_a_model_of_numbers_says_where_its_predictions_end(
    numbers: tuple[Any, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Labels beyond the bounds counted as these, whether the bounds were declared or found."""
    X, _ = numbers
    settings: dict[str, Any] = {"bounds": [(-1, 1)] * 3, "n_records": 1000, "n_trees": 2, "epsilon": 100.0}
    for more in ({"label_bounds": (-1, 1)}, {}):
        model = DPGBDTRegressor(**settings, **more).fit(X, X[:, 0])
        model.save(tmp_path / "model.json")
        assert main(["report", str(tmp_path / "model.json")]) == 0
        for text in (repr(model.model_), capsys.readouterr().out):
            assert "labels beyond" in " ".join(text.split())


@pytest.mark.parametrize(("to", "ending"), [("xgboost", "xgboost.json"), ("onnx", "onnx"), ("ebm", "ebm.json")])
def test_the_command_exports_all_formats(
    numbers: tuple[Any, Any], fitted: Any, tmp_path: Path, to: str, ending: str, capsys: Any
) -> None:
    """Each into a file with a name of its own."""
    if to == "onnx":
        pytest.importorskip("onnx")
    additive = clone(fitted).set_params(interaction="cyclical", interaction_size=1, n_trees=3).fit(*numbers)
    additive.save(tmp_path / "model.json")
    assert main(["export", str(tmp_path / "model.json"), "--to", to, "--json"]) == 0
    out = tmp_path / f"model.{ending}"
    assert json.loads(capsys.readouterr().out)["out"] == str(out)
    assert out.stat().st_size
