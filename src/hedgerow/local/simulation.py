"""Made-up rows for a plan, so that it can be rehearsed before anyone shows a table.

The rows follow from the plan and a seed alone. Features are independent and even over their bounds or categories; a
third of them, two at least, move the label, each by a straight line, a step or a bump, and one product of two does. How
strongly is fixed: trees without noise reach an AUC of about .85 for two classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hedgerow.data.units import FeatureColumn, LabelColumn, Records
from hedgerow.plan.plan import Feature, Label, Plan

Floats = NDArray[np.float64]

STRENGTH = 2.0
"""Standard deviation of the log-odds; of a number's mean in standard deviations of what is left."""
_LOST = 0.25
"""Of made-up records, those that are lost before the end of the follow-up, if they have not had the event by then."""
_SHAPES: tuple[Callable[[Floats], Floats], ...] = (
    lambda x: 2 * x - 1,
    lambda x: np.sign(x - 0.4),
    lambda x: 1 - 4 * (2 * x - 1) ** 2 / 3,
)
"""Of a feature's place between its bounds, 0 to 1: a straight line, a step, a bump."""


def made_records(plan: Plan, n_records: int, seed: int, part: int = 0) -> Records:
    """Rows that are like no one's.

    Args:
        plan: what their columns are.
        n_records: how many, >= 1; each is a unit of its own.
        seed: >= 0; what moves the label follows from it.
        part: >= 0; parts of one seed hold other rows, whose label follows the same rule.
    """
    places = np.random.default_rng([seed, 1, part]).random((len(plan.features), n_records))
    rule = np.random.default_rng([seed, 0])
    noise = np.random.default_rng([seed, 2, part])
    effects = np.stack([_effect(places, rule) for _ in range(plan.label.n_outputs)])
    columns = tuple(_column(feature, place) for feature, place in zip(plan.features, places, strict=True))
    is_record = plan.privacy.unit == "record"
    unit = None if is_record else np.char.add(f"{part}-", np.arange(n_records).astype(np.str_))
    return Records(columns, _labels(effects, plan.label, noise), unit, n_records)


def split_evenly(records: Records, n_sites: int) -> dict[str, Records]:
    """The rows over sites of the same size, to within one row."""
    parts: Sequence[NDArray[np.intp]] = np.array_split(np.arange(records.n_records), n_sites)
    return {f"site-{number}": records.take(rows) for number, rows in enumerate(parts, start=1)}


def _effect(places: Floats, rule: np.random.Generator) -> Floats:
    """What moves one output: float64 [n], of mean 0 and standard deviation `STRENGTH` over many rows."""
    n_features = len(places)
    chosen = rule.permutation(n_features)[: max(2, n_features // 3)]
    weights = rule.uniform(0.5, 1.5, size=len(chosen))
    shapes = rule.integers(len(_SHAPES), size=len(chosen))

    def total(places: Floats) -> Floats:
        product = (2 * places[chosen[0]] - 1) * (2 * places[chosen[-1]] - 1)
        found: Floats = 1.5 * product
        for feature, weight, shape in zip(chosen, weights, shapes, strict=True):
            found += weight * _SHAPES[shape](places[feature])
        return found

    # Measured on rows that follow from the rule alone: all parts are to have one scale.
    reference = total(rule.random((n_features, 4_000)))
    effect: Floats = (total(places) - reference.mean()) / reference.std() * STRENGTH
    return effect


def _column(feature: Feature, places: Floats) -> FeatureColumn:
    if feature.is_categorical:
        return np.asarray(places * len(feature.categories), dtype=np.int16)
    low, high = feature.min, feature.max
    assert low is not None and high is not None
    values = low + places * (high - low)
    return np.asarray(np.rint(values) if feature.integer else values, dtype=np.float32)


def _labels(effects: Floats, label: Label, noise: np.random.Generator) -> LabelColumn:
    if label.is_numeric:
        low, high = label.bounds
        score = (effects[0] + noise.normal(size=effects.shape[1])) / (2 * STRENGTH)
        values: Floats = low + (high - low) / (1 + np.exp(-score))
        return np.rint(values) if label.type == "count" else values
    if label.is_survival:
        # The event is as likely in one interval as in another, and a quarter of the records is lost on the way.
        n_intervals, n = len(label.intervals), effects.shape[1]
        hazard = 1 / (1 + np.exp(-(effects[0] - np.log(2 * n_intervals - 1))))
        survived = noise.geometric(hazard) - 1
        lost = np.where(noise.random(n) < _LOST, noise.integers(0, n_intervals, n), n_intervals)
        return np.where(survived < lost, 2 * survived + 1, 2 * lost).astype(np.int32)
    if len(effects) == 1:
        chance = 1 / (1 + np.exp(-effects[0]))
        return np.asarray(noise.random(effects.shape[1]) < chance, dtype=np.int32)
    return np.asarray(np.argmax(effects + noise.gumbel(size=effects.shape), axis=0), dtype=np.int32)
