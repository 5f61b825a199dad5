"""``hedgerow evaluate``: how well a model predicts."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from hedgerow.cli.output import number, print_facts, print_json
from hedgerow.cli.progress import status
from hedgerow.data.sources import read_records
from hedgerow.data.units import Records
from hedgerow.errors import UsageError
from hedgerow.models.metrics import classification_scores, regression_scores
from hedgerow.models.model import Model

_TITLES = {"auc": "AUC", "log_loss": "log-loss", "accuracy": "accuracy", "rmse": "RMSE", "r2": "R²"}


def run(arguments: argparse.Namespace) -> None:
    """Print the scores."""
    if arguments.federated:
        from hedgerow.cli.evaluate_sites import run as run_over_sites

        run_over_sites(arguments)
        return
    _check_plain(arguments)
    model = Model.load(arguments.model)
    with status(f"Predicting {Path(arguments.data).name}", quiet=arguments.json):
        scores = evaluate(model, read_records(arguments.data, model.plan, with_unit=False))
    if arguments.json:
        print_json({"model": arguments.model, "data": arguments.data, **scores})
        return
    print_facts(score_facts(scores, model))


def _check_plain(arguments: argparse.Namespace) -> None:
    options = ("sites", "epsilon", "delta", "out", "plot", "seed", "roster", "identity", "journal", "metrics")
    only_federated = [name for name in options if getattr(arguments, name) is not None]
    if only_federated:
        raise UsageError(
            f"--{'site' if only_federated[0] == 'sites' else only_federated[0]} has no meaning without --federated.",
            remedy="Add --federated, or give one table to read in the clear: hedgerow evaluate MODEL DATA.",
            code="usage",
        )
    if arguments.data is None:
        raise UsageError("DATA is missing.", remedy="See `hedgerow evaluate --help`.", code="usage")


def evaluate(model: Model, chunks: Iterable[Records]) -> dict[str, float]:
    """The number of records and the scores of a model's predictions for them."""
    labels, outputs = [], []
    is_regression = model.plan.label.type == "regression"
    for records in chunks:
        codes = model.ensemble.grid.encode(records.features)
        outputs.append(model.predict_codes(codes) if is_regression else model.predict_proba_codes(codes))
        labels.append(records.label)
    truth, output = np.concatenate([label for label in labels if label is not None]), np.concatenate(outputs)
    scores = regression_scores(truth, output) if is_regression else classification_scores(truth, output)
    return {"n_records": len(truth), **scores}


def score_facts(scores: dict[str, float], model: Model) -> list[tuple[str, str]]:
    """The scores for a person."""
    facts = [("records", f"{scores['n_records']:,}")]
    for name, title in _TITLES.items():
        if name in scores:
            facts.append((title, number(scores[name]) + _remark(name, scores[name], model)))
    return facts


def _remark(name: str, value: float, model: Model) -> str:
    if name != "auc":
        return ""
    if np.isnan(value):
        return " (one class only)"
    return " (chance 0.5)" if len(model.plan.label.classes) == 2 else " (mean of each class against the rest)"
