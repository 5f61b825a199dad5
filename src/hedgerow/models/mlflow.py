# SPDX-License-Identifier: Apache-2.0
"""Logging of models into runs of MLflow: the report as parameters and metrics, and the file.

    from hedgerow.models.mlflow import log_model
    with mlflow.start_run():
        log_model(result.model)

Nothing else is logged: no row, no score of private rows, no seed. What MLflow logs by itself (who ran it, where, the
commit) it logs as of every run. The extra `mlflow` brings MLflow.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hedgerow.data.arrow import as_columns
from hedgerow.errors import missing_extra
from hedgerow.models.model import Model
from hedgerow.version import __version__

try:
    import mlflow
except ImportError as absent:
    raise missing_extra("mlflow", "Logging to MLflow") from absent

FLAVOUR, _FILE = "hedgerow", "model.json"
_LONGEST = 500
"""Characters of a parameter, which are as many as all stores take."""


def log_report(model: Model) -> None:
    """Log a model's report in the active run: numbers as metrics, all else as parameters."""
    content = model.report.to_dict()
    numbers = {
        name: float(value) for name, value in content.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }  # fmt: skip
    mlflow.log_metrics(numbers)
    mlflow.log_params({name: str(value)[:_LONGEST] for name, value in content.items() if name not in numbers})


def log_model(model: Any, name: str = "model") -> Any:
    """Log the report, and the model under this name for `load_model` and `mlflow.pyfunc.load_model`.

    Returns where the model is, as `mlflow.models.Model.log` does.

    Args:
        model: a `Model`, or a fitted estimator, whose `model_` is logged.
    """
    from mlflow.models import Model as Logged

    from hedgerow.models import mlflow as flavour

    model = getattr(model, "model_", model)
    log_report(model)
    return Logged.log(artifact_path=None, name=name, flavor=flavour, model=model)


def save_model(model: Model, path: str | Path, mlflow_model: Any = None, **others: Any) -> None:
    """Write a folder of MLflow's: the model's file, and MLmodel, which says how it is read."""
    from mlflow import pyfunc
    from mlflow.models import Model as Logged

    folder, described = Path(path), mlflow_model or Logged()
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder / _FILE)
    described.add_flavor(FLAVOUR, data=_FILE, version=__version__)
    pyfunc.add_to_model(described, loader_module=__name__, data=_FILE)
    described.save(folder / "MLmodel")


def load_model(uri: str) -> Model:
    """Load the model of a run, by its address (`models:/...`, `runs:/...`) or folder."""
    from mlflow.artifacts import download_artifacts

    with tempfile.TemporaryDirectory() as folder:
        return Model.load(Path(download_artifacts(uri, dst_path=folder)) / _FILE)


class _Predicting:
    """A model as `mlflow.pyfunc` asks it for predictions."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def predict(self, data: Any, params: Mapping[str, Any] | None = None) -> Any:
        """Return predictions [n] for a table of named columns."""
        return self._model.predict(as_columns(data))


def _load_pyfunc(path: str) -> _Predicting:
    return _Predicting(Model.load(path))
