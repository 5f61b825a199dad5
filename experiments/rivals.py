"""Rivals in a comparison that are no plans of ours: the same rows, epsilon, delta and declared bounds.

    scores = RIVALS[name].predict(table, train, epsilon, delta, seed)

Nothing is tuned: each package has its own defaults. A rival whose package is not there says how to get it
(`Rival.absence`), and is left out. Noise is seeded where a package lets it be.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments import harness
from experiments.datasets import Table
from experiments.harness import Prepared
from experiments.lumberjack import PRESET, plug_in
from experiments.lumberjack.forest import places
from experiments.lumberjack.program import leaf_noise, leaf_values, searched
from experiments.lumberjack.settings import resolve_lumberjack
from hedgerow.client.node import Node
from hedgerow.privacy.calibration import noise_of
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.server.release import PlainAggregation
from hedgerow.training.presets import apply_preset
from hedgerow.training.steps import Run

Scores = NDArray[np.float64]
Predict = Callable[[Table, NDArray[np.bool_], float, float, int], Scores]
"""Of a table, which rows train (bool [n]), epsilon, delta and a seed: what the other rows are predicted to be.

The chance of the second of two classes, float64 [n_test]; of several classes all chances [n_test, K]; or numbers.
"""
XGBOOST: dict[str, Any] = {
    "n_estimators": 100, "max_depth": 6, "learning_rate": 0.1, "n_jobs": 1, "tree_method": "hist",
}  # fmt: skip
LABEL = "label"
INTERPRETER = "HEDGEROW_DPMM"


@dataclass(frozen=True)
class Rival:
    """A method that is no plan of ours.

    Attributes:
        absence: how to get what it needs and is not there; "" where nothing is missing.
        labels: types of labels that it is for.
        is_own: whether our library decides what it predicts.
    """

    predict: Predict
    absence: Callable[[], str]
    labels: tuple[str, ...]
    is_own: bool = False


# DP-EBM ---------------------------------------------------------------------------------------------------------------


def _no_interpret() -> str:
    if importlib.util.find_spec("interpret"):
        return ""
    return "pip install 'hedgerow[experiments]'"


def dp_ebm(table: Table, train: NDArray[np.bool_], epsilon: float, delta: float, seed: int) -> Scores:
    """DP-EBM (Nori et al., ICML'21) of the package interpret, with its Gaussian account; see `Predict`."""
    from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

    is_number = [feature["type"] == "numeric" for feature in table.features]
    # As text, so that the package tells categories from numbers; -1 is a category that is not listed.
    columns = zip(is_number, table.columns, strict=True)
    x = np.stack([column.astype(object if number else str).astype(object) for number, column in columns], axis=1)
    bounds = {place: (own["min"], own["max"]) for place, own in enumerate(table.features) if is_number[place]}
    options: dict[str, Any] = {
        "epsilon": epsilon, "delta": delta, "random_state": seed, "n_jobs": 1, "privacy_bounds": bounds,
        "feature_types": ["continuous" if number else "nominal" for number in is_number],
    }  # fmt: skip
    with warnings.catch_warnings():
        # That seeded noise protects nobody.
        warnings.simplefilter("ignore", UserWarning)
        if table.is_regression:
            low, high = table.label_section["min"], table.label_section["max"]
            model = DPExplainableBoostingRegressor(**options, privacy_target_min=low, privacy_target_max=high)
            return np.asarray(model.fit(x[train], table.label[train]).predict(x[~train]), dtype=np.float64)
        model = DPExplainableBoostingClassifier(**options).fit(x[train], table.label[train])
        return np.asarray(model.predict_proba(x[~train])[:, 1], dtype=np.float64)


# Synthetic rows -------------------------------------------------------------------------------------------------------


def _no_dpmm() -> str:
    if Path(os.environ.get(INTERPRETER, "")).is_file():
        return ""
    return f"python -m venv DIR; DIR/bin/pip install dpmm==0.1.9; and {INTERPRETER}=DIR/bin/python in the environment"


def synthetic_rows(
    model: str, table: Table, train: NDArray[np.bool_], epsilon: float, delta: float, seed: int
) -> tuple[Scores, Scores]:
    """Rows of a model of marginals by dpmm, as many as train: float64 [n_train, m], and their labels.

    The model is "mst" (McKenna, Miklau & Sheldon 2021) or "aim" (McKenna et al. 2022); all else as for `Predict`. Where
    dpmm fails, a RuntimeError has its last line.
    """
    columns, section = {feature["name"]: _domain(feature, -1) for feature in table.features}, table.label_section
    columns[LABEL] = _domain({"categories": section.get("classes"), **section}, 0)
    rows: dict[str, Any] = {LABEL: table.label[train]}
    rows |= {feature["name"]: column[train] for feature, column in zip(table.features, table.columns, strict=True)}
    task = {"columns": columns, "model": model, "epsilon": epsilon, "delta": delta, "seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "task.json").write_text(json.dumps(task), encoding="utf-8")
        np.savez(Path(folder) / "rows.npz", **rows)
        command = [os.environ[INTERPRETER], "-P", str(harness.HERE / "_marginals.py"), folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"dpmm: {(done.stderr.strip() or 'no output').splitlines()[-1]}")
        made = np.load(Path(folder) / "synthetic.npz")
        return np.stack([made[feature["name"]] for feature in table.features], axis=1), made[LABEL]


def _domain(feature: Mapping[str, Any], first: int) -> dict[str, Any]:
    if "max" in feature:
        return {"lower": feature["min"], "upper": feature["max"]}
    return {"categories": list(range(first, len(feature["categories"])))}


def then_xgboost(model: str, table: Table, train: NDArray[np.bool_], epsilon: float, delta: float, seed: int) -> Scores:
    """XGBoost trained on synthetic rows, tested on real ones; see `Predict` and `synthetic_rows`."""
    return by_xgboost(table, *synthetic_rows(model, table, train, epsilon, delta, seed), table.matrix[~train])


def by_xgboost(table: Table, x: Scores, label: NDArray[Any], test: Scores, **settings: Any) -> Scores:
    """What XGBoost predicts of rows after training on others, [n, m] both; see `Predict`."""
    import xgboost

    if table.kind in ("regression", "count"):
        settings["objective"] = "count:poisson" if table.kind == "count" else "reg:squarederror"
        numbers = xgboost.XGBRegressor(**XGBOOST, **settings).fit(x, label)
        return np.asarray(numbers.predict(test), dtype=np.float64)
    # A class that no synthetic row has must not move the others' numbers.
    known, classes = np.unique(label.astype(np.int64), return_inverse=True)
    chances = np.zeros((len(test), len(table.label_section["classes"])))
    if len(known) == 1:
        chances[:, known[0]] = 1
    else:
        chances[:, known] = xgboost.XGBClassifier(**XGBOOST, **settings).fit(x, classes).predict_proba(test)
    return chances[:, 1] if chances.shape[1] == 2 else chances


# Lumberjack -----------------------------------------------------------------------------------------------------------


def lumberjack_forest(table: Table, train: NDArray[np.bool_], epsilon: float, delta: float, seed: int) -> Scores:
    """Lumberjack's deep forest itself, from what the method `lumberjack` releases; see `Predict`.

    A model of ours holds it in trees of 8 levels, which costs some of it (`experiments.lumberjack`).
    """
    plug_in()
    plan = harness.plan_for(table, epsilon, int(train.sum()), {"structure_seed": seed}, delta=delta)
    plan = apply_preset(PRESET, plan)
    prepared, settings = Prepared(table), resolve_lumberjack(plan)
    noise, data = SeededNoise(seed, exact=False), harness.rows_of(prepared, plan, train)
    sums = PlainAggregation([Node("one", data, plan, settings)])

    def release(query: Query) -> IntVector:
        return sums.sum_answers(query) + noise.sample(noise_of(query).central_sigma, query.length, str(query.purpose))

    run = Run.from_plan(plan, settings)
    forest, leaves, found, _ = harness.carried_out(searched(run, settings), release)
    values = np.zeros((len(leaves), 1 if table.is_regression else found.shape[1]))
    for root in forest.routes.roots:
        own, spread = forest.tree[leaves] == root, leaf_noise(run, settings)
        values[own] = leaf_values(found[own], found[own].sum(axis=0), spread, table.is_regression)
    place, routes = places(leaves, len(forest.parent)), forest.routes
    codes = harness.rows_of(prepared, plan, ~train).codes.astype(np.int64)
    scores = np.zeros((codes.shape[1], values.shape[1]))
    for root in routes.roots:
        node = np.full(codes.shape[1], root)
        while len(rows := np.flatnonzero(place[node] < 0)):
            here = node[rows]
            code, cut = codes[routes.feature[here], rows], routes.cut[here]
            is_left = np.where(routes.is_category[here] == 1, code == cut, code <= cut)
            is_missing = (routes.is_category[here] == 0) & (code >= routes.missing[routes.feature[here]])
            is_left = np.where(is_missing, routes.missing_left[here] == 1, is_left)
            node[rows] = routes.child[here] + np.where(is_left, 0, 1)
        scores += values[place[node]] / len(routes.roots)
    if table.is_regression:
        low, high = table.label_section["min"], table.label_section["max"]
        scores = (low + high) / 2 + (high - low) / 2 * scores
    return scores[:, -1] if scores.shape[1] <= 2 else scores


_ALL = ("binary", "multiclass", "regression")
RIVALS: Mapping[str, Rival] = {
    "Lumberjack, its deep forest": Rival(lumberjack_forest, lambda: "", _ALL, is_own=True),
    "DP-EBM (interpret)": Rival(dp_ebm, _no_interpret, ("binary", "regression")),
    "MST, then XGBoost (dpmm)": Rival(partial(then_xgboost, "mst"), _no_dpmm, _ALL),
    "AIM, then XGBoost (dpmm)": Rival(partial(then_xgboost, "aim"), _no_dpmm, _ALL),
}
