"""Every documented value of an option of [model] learns what is easy to learn, for every type of label."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hedgerow.client.node import Node
from hedgerow.data.binned import SiteData
from hedgerow.errors import PlanError
from hedgerow.losses.censored import concordance
from hedgerow.losses.kinds import mean_auc
from hedgerow.losses.survival import survival_codes
from hedgerow.methods.registry import program_for, resolve
from hedgerow.plan.plan import ModelSection, Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.server.release import UNCOUNTED, PlainAggregation, run_program
from hedgerow.trees.binning import build_grid
from hedgerow.trees.ensemble import ensemble_from_dict, ensemble_to_dict
from tests.builders import bare_plan

pytestmark = pytest.mark.slow

N_RECORDS = 1500
CATEGORIES = ["a", "b", "c", "d", "e"]
FEATURES: list[dict[str, Any]] = [
    {"name": "x", "type": "numeric", "min": -4, "max": 4},
    {"name": "whole", "type": "numeric", "min": 0, "max": 9, "integer": True},
    {"name": "word", "type": "categorical", "categories": CATEGORIES},
    {"name": "gaps", "type": "numeric", "min": 0, "max": 1},
]
LABELS: dict[str, dict[str, Any]] = {
    "binary": {"type": "binary", "classes": ["no", "yes"]},
    "multiclass": {"type": "multiclass", "classes": ["low", "middle", "high"]},
    "regression": {"type": "regression", "min": -10, "max": 10},
    "count": {"type": "count", "max": 20},
    "survival": {"type": "survival", "event": "seen", "intervals": [0.5, 1, 2, 4, 8]},
}
WORDS = ("split_method", "weight_update", "split_candidates", "interaction", "start", "calibration")
NUMBERS: dict[str, tuple[Any, ...]] = {
    "n_trees": (20,),
    "max_depth": (1, 8),
    "n_candidates": (4, 250),
    "interaction_size": (1, 2, "all"),
    "batch_size": (2,),
    "learning_rate": (0.1, 1.0),
    "leaf_ridge": (0, 20),
    "noise_ridge": (0, 100),
    "leaf_clip": (0.5, 9e5),
    "joint_clip": ("none", 0.1, 4),
    "hessian_scale": (0.1, 2),
    "shrinkage": (0, 1),
}


def words_of(option: str) -> list[str]:
    """The values of an option that is a word, as its own refusal lists them."""
    with pytest.raises(PlanError) as refused:
        easy_plan("binary", {option: "no such word"})
    return re.findall(r'"(\w+)"', str(refused.value.remedy))


def easy_plan(label: str, model: dict[str, Any]) -> Plan:
    trees, own = {"n_trees": 40, **model}, {"name": "y", **LABELS[label]}
    return bare_plan(own, FEATURES, model=trees, epsilon=20.0, delta=1e-5, n_records=N_RECORDS)


@lru_cache(maxsize=16)
def rows_of(label: str, seed: int) -> tuple[list[NDArray[Any]], NDArray[Any], NDArray[np.bool_]]:
    """Columns, labels, and whether an event was seen; labels follow from the columns, all but a little."""
    rng, n = np.random.default_rng(seed), N_RECORDS
    x, whole, word = rng.normal(0, 1.2, n), rng.integers(0, 10, n), rng.integers(0, 5, n)
    gaps = np.where(rng.random(n) < 0.2, np.nan, rng.random(n))
    signal = 1.2 * x + 0.25 * (whole - 4.5) + 0.7 * (word - 2) + np.where(np.isnan(gaps), -0.8, 0.2)
    columns = [x.astype(np.float32), whole.astype(np.float32), word.astype(np.int16), gaps.astype(np.float32)]
    seen = np.ones(n, dtype=np.bool_)
    if label == "binary":
        return columns, (signal + rng.logistic(0, 0.5, n) > 0).astype(np.int32), seen
    if label == "multiclass":
        return columns, np.digitize(signal + rng.normal(0, 0.3, n), [-1, 1]).astype(np.int32), seen
    if label == "regression":
        return columns, np.clip(2 * signal + rng.normal(0, 1, n), -10, 10), seen
    if label == "count":
        return columns, np.minimum(rng.poisson(np.exp(0.4 * signal + 0.3)), 20), seen
    times, ends = 2 * rng.exponential(np.exp(-0.7 * signal)), rng.exponential(6, n)
    return columns, np.minimum(times, ends), times <= ends


@lru_cache(maxsize=64)
def score_of(plan: Plan) -> float:
    """How well a model predicts records that it has not seen: 1 is best, 0 is what says nothing."""
    label, parts = plan.label, []
    for seed in (1, 2):
        columns, y, seen = rows_of(label.type, seed)
        codes = build_grid(plan).encode(tuple(columns))
        values = survival_codes(y, seen, label.intervals) if label.intervals else y
        parts.append(SiteData(codes, label.kind.encode(values, label)))
    settings = resolve(plan)
    node = Node("site", parts[0], plan, settings)
    outcome = run_program(
        plan, program_for(plan, settings), PlainAggregation([node]), SeededNoise(1, exact=False), UNCOUNTED
    )
    assert outcome.report.epsilon <= plan.privacy.epsilon or plan.reads_quantiles
    ensemble = ensemble_from_dict(json.loads(json.dumps(ensemble_to_dict(outcome.ensemble))), plan)
    _, y, seen = rows_of(label.type, 2)
    scores = ensemble.scores(parts[1].codes)
    if label.intervals:
        return 2 * concordance(y, seen, scores[0]) - 1
    if label.kind.is_number:
        return 1 - float(np.mean((ensemble.link.values(scores[0], label) - y) ** 2) / np.var(y))
    return 2 * mean_auc(y, ensemble.link.probabilities(scores)) - 1


def usual_score(label: str) -> float:
    return score_of(easy_plan(label, {}))


def check_learns(label: str, model: dict[str, Any], share: float) -> None:
    """At least so much of what the default learns; a plan that is refused promises nothing."""
    try:
        plan = easy_plan(label, model)
    except PlanError:
        return
    assert score_of(plan) >= share * usual_score(label), (label, model)


@pytest.mark.parametrize("label", LABELS)
def test_the_default_learns(label: str) -> None:
    """Else the tests below would compare with nothing."""
    assert usual_score(label) > {"survival": 0.5, "count": 0.4}.get(label, 0.85)


@pytest.mark.parametrize("label", LABELS)
def test_every_value_of_an_option_learns(label: str) -> None:
    """One option at a time. Means over trees shrink numbers, which a line stretches by half at most."""
    words = {option: tuple(words_of(option)) for option in WORDS}
    assert {field.name for field in dataclasses.fields(ModelSection)} >= words.keys() | NUMBERS.keys()
    for option, values in {**words, **NUMBERS}.items():
        for value in values:
            check_learns(label, {option: value}, 0.4 if value == "averaging" else 0.55)


def test_methods_of_trees_learn_in_all_combinations() -> None:
    """Splits, updates and candidates, whatever the others are: of numbers, whose trees begin and end with most."""
    options = ("split_method", "weight_update", "split_candidates")
    for values in itertools.product(*map(words_of, options)):
        check_learns("regression", dict(zip(options, values, strict=True)), 0.4 if "averaging" in values else 0.55)
