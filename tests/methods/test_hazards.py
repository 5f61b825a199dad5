"""The linear model that trees of times to an event begin with: its sums, their sensitivities, and what it learns."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hedgerow.client.node import Node
from hedgerow.data.binned import SiteData
from hedgerow.errors import PlanError
from hedgerow.losses.survival import LINEAR_CLIP, Baseline, hazards, linear_hazard_loss, survival_codes
from hedgerow.losses.tables import RECORD_NORM, SCORE_UNIT, STEPS
from hedgerow.methods.boosting.schedule import BoostingSettings
from hedgerow.methods.boosting.start import BASELINE_SHARE
from hedgerow.methods.hazards import ColumnMoments, FateCounts, HazardProducts
from hedgerow.methods.linear import GramMatrix, LinearRows
from hedgerow.methods.registry import program_for, resolve
from hedgerow.plan.plan import Plan
from hedgerow.privacy.calibration import integer_sigma
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.trees.binning import build_grid
from hedgerow.trees.leaf_sums import LeafSums
from tests.builders import coded, make_data, make_plan, train

BASELINES: tuple[Baseline, ...] = ((0, 0, 0, 0), (-700, -300, -1200, 40), (2048, -2048, 5, 0), (-2048,) * 4)
START = [FateCounts, ColumnMoments, GramMatrix, *[HazardProducts] * 3]


def settings_of(plan: Plan) -> BoostingSettings:
    settings = resolve(plan)
    assert isinstance(settings, BoostingSettings)
    return settings


def made_plan(n: int, **changes: Any) -> Plan:
    """Two numbers within [-2, 2] and a category, four intervals, n records; `changes` are of [privacy] and [model]."""
    table = make_plan("survival").to_dict()
    numbers = [{"name": f"x{i}", "type": "numeric", "min": -2, "max": 2} for i in range(2)]
    table["features"] = [*numbers, {"name": "kind", "type": "categorical", "categories": ["a", "b", "c"]}]
    table["label"]["intervals"] = [1.0, 2.0, 3.0, 4.0]
    table["privacy"] |= {"n_records": n, **changes.get("privacy", {})}
    table["model"] = {"n_trees": 3, **changes.get("model", {})}
    return Plan.from_dict(table)


def made_rows(plan: Plan, n: int, seed: int) -> tuple[SiteData, NDArray[np.float64]]:
    """Records of a Cox model in discrete time, and their true scores."""
    rng = np.random.default_rng(seed)
    x, kind = rng.uniform(-2, 2, (n, 2)), rng.integers(0, 3, n)
    scores = 0.8 * x[:, 0] - 0.5 * x[:, 1] + np.array([0.0, 0.6, -0.6])[kind]
    time, seen, is_in = rng.uniform(0, 6, n), np.zeros(n, dtype=bool), np.ones(n, dtype=bool)
    for interval, hazard in enumerate(hazards(scores, (-500, -450, -400, -350)).T):
        had = is_in & (rng.random(n) < hazard) & (time > interval + 1)
        time[had], seen[had], is_in = interval + 0.5, True, is_in & ~had
    columns = [x[:, 0].astype(np.float32), x[:, 1].astype(np.float32), kind.astype(np.int16)]
    return SiteData(build_grid(plan).encode(columns), survival_codes(time, seen, plan.label.intervals)), scores


def asked(plan: Plan, release: Callable[[Query], IntVector]) -> tuple[list[Query], Any]:
    """The queries of a run that is told what `release` makes of them, and its model."""
    program, queries = program_for(plan), []
    query = next(program)
    while True:
        queries.append(query)
        try:
            query = program.send(release(query))
        except StopIteration as finished:
            return queries, finished.value


def row_of(codes: NDArray[Any], rows: LinearRows) -> NDArray[np.float64]:
    """A record's row by the words of `LinearRows`, in integers that are not rounded."""
    row = np.zeros(rows.n_columns)
    row[0] = rows.intercept
    for feature, code in enumerate(codes.tolist()):
        row[rows.column[feature, code]] += rows.entry[feature, code]
    if len(rows.transform):
        row = np.clip(rows.transform @ row / 2**16, -(2**24), 2**24)
    return row * min(1.0, rows.limit / np.linalg.norm(row))


@pytest.mark.parametrize("baseline", BASELINES)
def test_gradients_are_what_the_formula_says_and_have_one_norm(baseline: Baseline) -> None:
    loss = linear_hazard_loss(baseline)
    assert loss.sensitivity_squared(0) == loss.sensitivity_squared(2**30) == math.floor(LINEAR_CLIP * RECORD_NORM) ** 2
    assert (loss.table.astype(np.int64) ** 2).max() <= loss.norm_squared
    for code in range(9):
        for step in range(0, STEPS, 31):
            score = (step - STEPS // 2 + 0.5) / 256
            chances = [1 / (1 + math.exp(-(own / 256 + score))) for own in baseline[: (code + 1) // 2]]
            wanted = min(max(code % 2 - sum(chances), -LINEAR_CLIP), LINEAR_CLIP)
            assert abs(loss.table[code, step, 0] / RECORD_NORM - wanted) < 1.01 / RECORD_NORM


def test_sums_of_the_start_are_those_of_its_words() -> None:
    """Every release of the start against sums over records one by one, in floating point."""
    plan = made_plan(300)
    data, _ = made_rows(plan, 300, 1)
    node, seen = Node("site", data, plan, resolve(plan)), []

    def answer(query: Query) -> IntVector:
        found = node.answer(query)
        if isinstance(query, ColumnMoments):
            rows = np.array([row_of(own, query.rows) for own in data.codes.T])
            seen.append(1)
            assert found.tolist()[:-2] == rows.sum(axis=0).tolist()
            squares = (rows[:, 1:3] ** 2 / query.unit).sum(axis=0)
            assert np.abs(found[-2:] - squares).max() <= 300
            assert found[0] == 300 * query.unit
        if isinstance(query, HazardProducts):
            rows = np.array([row_of(own, query.rows) for own in data.codes.T])
            scores = node.held.records.scores[0] / SCORE_UNIT
            chances = np.cumsum(hazards(np.floor(scores * 256 + 0.5) / 256, query.baseline), axis=1)
            chances = np.concatenate([np.zeros((300, 1)), chances], axis=1)
            gradients = data.labels % 2 - chances[np.arange(300), (data.labels + 1) // 2]
            wanted = np.clip(gradients, -LINEAR_CLIP, LINEAR_CLIP) @ rows
            seen.append(2)
            assert np.abs(found - wanted).max() < 0.01 * np.abs(rows).sum(axis=0).max()
        return found

    queries, _ = asked(plan, answer)
    assert [type(query) for query in queries[:6]] == START and seen == [1, 2, 2, 2]
    assert all(isinstance(query, LeafSums) for query in queries[6:9]) and len(queries) == 12


@pytest.mark.parametrize("size", [0, 2**14, 2**24, 2**45])
def test_no_record_adds_more_than_promised_whatever_was_released(size: int) -> None:
    """By brute force: every record alone, at every corner of the grid and elsewhere, after whatever releases."""
    plan, rng = made_plan(100), np.random.default_rng(size % 97)
    sizes = [cells.n_codes for cells in build_grid(plan).features]
    corners = np.array(np.meshgrid([0, sizes[0] - 2, sizes[0] - 1], [0, sizes[1] - 2], range(sizes[2]))).reshape(3, -1)
    codes = np.concatenate([corners, [rng.integers(0, own, 60) for own in sizes]], axis=1)
    codes = codes.astype(build_grid(plan).dtype)
    labels = np.arange(codes.shape[1], dtype=np.int32) % 9
    settings, largest = resolve(plan), dict.fromkeys(START, 0.0)
    nodes = [Node("one", SiteData(codes[:, [i]], labels[[i]]), plan, settings) for i in range(len(labels))]

    def release(query: Query) -> IntVector:
        for node in nodes:
            own = node.answer(query)
            squared = int((own.astype(object) ** 2).sum())
            assert squared <= query.sensitivity_squared and np.abs(own).max() <= query.bound
            if type(query) in largest:
                largest[type(query)] = max(largest[type(query)], squared / query.sensitivity_squared)
        return rng.integers(-size, size + 1, query.length)

    asked(plan, release)
    # What is promised is nearly what the worst record adds.
    assert largest[ColumnMoments] > 0.99 and largest[FateCounts] == 1


def test_without_noise_a_linear_model_is_found() -> None:
    """Three rounds come near to what made the records; the clip shortens it, which the last release mends."""
    plan = made_plan(6000, privacy={"epsilon": math.inf})
    data, truth = made_rows(plan, 6000, 2)
    node, found = Node("site", data, plan, resolve(plan)), []

    def release(query: Query) -> IntVector:
        answer = node.answer(query)
        if isinstance(query, LeafSums):
            found.append(node.held.records.scores[0] / SCORE_UNIT)
        return answer

    asked(plan, release)
    assert np.corrcoef(found[0], truth)[0, 1] > 0.95
    assert 0.4 < np.polyfit(truth, found[0], 1)[0] < 1.2


def test_half_the_start_is_nothing_where_noise_covers_all() -> None:
    """A run at a tiny epsilon: what its gradients show beyond their noise is nothing for about every other seed."""
    plan = made_plan(200, privacy={"epsilon": 0.01})
    data, _ = made_rows(plan, 200, 4)
    spreads = []
    for seed in range(12):
        node, rng = Node("site", data, plan, resolve(plan)), np.random.default_rng(seed)

        def release(query: Query, node: Node = node, rng: np.random.Generator = rng) -> IntVector:
            sigma = integer_sigma(query.noise_multiplier, query.sensitivity_squared)
            return node.answer(query) + np.rint(rng.normal(0, sigma, query.length)).astype(np.int64)

        _, ensemble = asked(plan, release)
        spreads.append(float(np.ptp(ensemble.fitted.values[: len(plan.features)])) / SCORE_UNIT)
    assert sum(spread == 0 for spread in spreads) >= 3
    assert np.median(spreads) < 4


def test_slopes_keep_to_directions() -> None:
    """A feature that speaks for the event, and is said to speak against it, has no slope of the wrong sign."""
    table = made_plan(2000, privacy={"epsilon": math.inf}).to_dict()
    table["features"][0]["monotone"] = "decreasing"
    plan = Plan.from_dict(table)
    data, _ = made_rows(plan, 2000, 5)
    _, ensemble = asked(plan, Node("site", data, plan, resolve(plan)).answer)
    codes = np.repeat(data.codes[:, :1], 200, axis=1)
    codes[0] = np.arange(200)
    assert (np.diff(ensemble.scores(codes)[0]) <= 0).all()


def test_shares_add_up_and_a_plan_can_do_without() -> None:
    few, many = (settings_of(made_plan(n, model={"n_trees": "auto"})) for n in (500, 500_000))
    assert few.start == many.start == "linear hazards"
    assert few.start_share > many.start_share > BASELINE_SHARE and few.n_trees < many.n_trees
    assert few.start_share + few.calibration_share < 1 and few.shrinkage == 1
    without = settings_of(made_plan(500, model={"start": "none", "n_trees": "auto"}))
    assert (without.start, without.start_share, without.n_trees) == ("hazards", BASELINE_SHARE, 100)
    assert without.schedule(made_plan(500)).n_rounds == 1 + 100 + 1 + 2
    assert settings_of(made_plan(500, model={"start": "linear"})) == settings_of(made_plan(500))
    with pytest.raises(PlanError, match="start"):
        made_plan(500, model={"start": "mean"})


def test_a_refused_linear_start_is_told_what_times_may_begin_with() -> None:
    """Times to an event have no mean: where leaves are not smoothed, they begin with the baseline."""
    with pytest.raises(PlanError, check=coded("plan-field")):
        made_plan(100, model={"start": "linear", "interaction": "cyclical"})


def test_categories_that_have_no_columns_begin_with_the_baseline_alone() -> None:
    """Too many categories for columns of their own, and no number: rows hold a constant, and nodes could not add up."""
    table = made_plan(200, model={"n_trees": "auto"}).to_dict()
    names = [f"k{i}" for i in range(130)]
    table["features"] = [{"name": f"c{i}", "type": "categorical", "categories": names} for i in range(2)]
    plan = Plan.from_dict(table)
    settings = settings_of(plan)
    assert settings == settings_of(Plan.from_dict({**table, "model": {**table["model"], "start": "none"}}))
    assert (settings.start, settings.start_share) == ("hazards", BASELINE_SHARE)
    sites = [make_data(plan, 60, seed) for seed in (1, 2)]
    assert train(plan, sites).ensemble.n_trees == settings.n_trees
    # With a number beside them there is a linear model, of the number.
    wide = {**table, "features": [*table["features"], {"name": "x", "type": "numeric", "min": -2, "max": 2}]}
    assert settings_of(Plan.from_dict(wide)).start == "linear hazards"
