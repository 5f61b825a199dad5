"""What privacy costs in the demonstration: the same trees without noise, and XGBoost on pooled data if installed.

Neither model is written anywhere, and neither is private.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.cli.evaluate import evaluate
from hedgerow.cli.progress import status
from hedgerow.cli.training import Sites, train_with_progress
from hedgerow.data.datasets import SiteFiles
from hedgerow.data.sources import read_records
from hedgerow.data.units import Records, concatenate
from hedgerow.models.metrics import roc_auc
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SystemNoise


def compare(plan: Plan, sites: Sites, data: SiteFiles, arguments: argparse.Namespace) -> dict[str, float]:
    """Test AUC of models without privacy, by what they are."""
    open_plan = replace(plan, privacy=replace(plan.privacy, epsilon=float("inf")))
    model = train_with_progress(
        open_plan, sites, SystemNoise(os.urandom),
        n_threads=arguments.threads, quiet=arguments.json, title="Without privacy",
    )  # fmt: skip
    scores = evaluate(model, read_records(data.test, plan, with_unit=False))
    areas = {"the same trees without privacy": scores["auc"]}
    try:
        import xgboost
    except ImportError:
        return areas
    with status("Training XGBoost on pooled data", quiet=arguments.json):
        areas["XGBoost, pooled, without privacy"] = _xgboost_auc(xgboost, plan, data)
    return areas


def _xgboost_auc(xgboost: Any, plan: Plan, data: SiteFiles) -> float:
    train = concatenate(chunk for path in data.train.values() for chunk in read_records(path, plan, with_unit=False))
    test = concatenate(read_records(data.test, plan, with_unit=False))
    booster = xgboost.train(
        {"objective": "binary:logistic", "max_depth": 4, "eta": 0.1, "tree_method": "hist", "verbosity": 0},
        xgboost.DMatrix(_matrix(train), label=train.label),
        num_boost_round=100,
    )
    return roc_auc(_labels(test) == 1, booster.predict(xgboost.DMatrix(_matrix(test))))


def _matrix(records: Records) -> NDArray[np.float32]:
    """Features as numbers; categories by their index, missing ones as NaN."""
    columns = [np.where(column == -2, np.nan, column) if column.dtype.kind == "i" else column
               for column in records.features]  # fmt: skip
    return np.stack(columns, axis=1).astype(np.float32)


def _labels(records: Records) -> NDArray[Any]:
    return np.asarray(records.label)
