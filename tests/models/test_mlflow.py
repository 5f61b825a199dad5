"""What MLflow is given of a model: the fields of its report, its file, and nothing else."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hedgerow.models.model import Model
from tests.builders import make_plan, train_model

FLAVOUR = "hedgerow.models.mlflow"


def test_a_run_has_the_fields_of_the_report_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever shares a run shares what the report says, each field once, and no score of private rows."""
    logged: dict[str, Any] = {}

    class Recorder:
        def __getattr__(self, name: str) -> Any:
            return lambda values: logged.setdefault(name, {}).update(values)

    monkeypatch.setitem(sys.modules, "mlflow", Recorder())
    # Imported with the recorder, and forgotten afterwards.
    monkeypatch.setitem(sys.modules, FLAVOUR, None)
    del sys.modules[FLAVOUR]
    flavour = importlib.import_module(FLAVOUR)
    model = train_model(make_plan())
    flavour.log_report(model)
    assert set(logged) == {"log_metrics", "log_params"}
    names = [name for values in logged.values() for name in values]
    assert sorted(names) == sorted(model.report.to_dict())
    assert logged["log_metrics"]["epsilon"] == model.report.to_dict()["epsilon"]
    # A fitted estimator is logged by its model.
    keep = SimpleNamespace(Model=SimpleNamespace(log=lambda **facts: facts["model"]))
    monkeypatch.setitem(sys.modules, "mlflow.models", keep)
    assert flavour.log_model(model) is flavour.log_model(SimpleNamespace(model_=model)) is model


@pytest.mark.filterwarnings("ignore")  # MLflow's own.
def test_a_model_comes_back_as_it_was(tmp_path: Path) -> None:
    """The flavour keeps the model's file byte for byte, and MLflow's own loader predicts by it."""
    mlflow = pytest.importorskip("mlflow")
    pandas = pytest.importorskip("pandas")
    flavour = importlib.import_module(FLAVOUR)
    model: Model = train_model(make_plan())
    flavour.save_model(model, tmp_path / "saved")
    assert flavour.load_model(str(tmp_path / "saved")).to_bytes() == model.to_bytes()
    rows = {feature.name: ["1", "2"] for feature in model.plan.features}
    found = mlflow.pyfunc.load_model(str(tmp_path / "saved")).predict(pandas.DataFrame(rows))
    assert found.tolist() == model.predict(rows).tolist()
