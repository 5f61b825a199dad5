"""A unit with rows at several sites: every algorithm's noise is for all of them together, as if at one site."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hedgerow.client.node import EvaluationNode, Node
from hedgerow.errors import PlanError, RemoteProtocolError
from hedgerow.evaluation.program import evaluate_ensemble
from hedgerow.local.training import train
from hedgerow.methods.dp_xgboost.trees import SplitSelection
from hedgerow.methods.registry import program_for, resolve
from hedgerow.methods.tasks import TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.queries import PureQuery, Query
from tests.builders import FEATURES, LABELS, bare_plan, make_data, make_plan, queries_of, take

ALGORITHMS: dict[str, dict[str, Any]] = {
    "boosting": {"model": {"split_candidates": "iterative_hessian"}},
    "greedy": {"model": {"split_method": "hist", "interaction_size": 2}},
    "averaging": {"model": {"weight_update": "averaging"}},
    "adassp": {"model": {"algorithm": "adassp"}},
    "dp-xgboost": {"model": {"algorithm": "dp-xgboost"}},
    "histograms": {"model": {"algorithm": "dp-xgboost"}, "dp_xgboost": {"splits": "histogram"}},
}


def shared_plan(algorithm: str, rows: int, sites: int, **privacy: Any) -> Plan:
    choice = ALGORITHMS[algorithm]
    trees = {} if choice["model"].get("algorithm") == "adassp" else {"n_trees": 3, "max_depth": 2}
    unit = {"unit": "patient", "max_rows_per_unit": rows, "sites_per_unit": sites, "epsilon": 2.0, "delta": 1e-5}
    own = {**choice, "model": {**trees, **choice["model"]}, "privacy": {**unit, **privacy}}
    return bare_plan(LABELS["binary"], FEATURES, **own)


def cost(query: Query) -> tuple[Any, ...]:
    pure = (query.pure.sensitivity, query.pure.scale) if isinstance(query, PureQuery) else ()
    return query.sensitivity_squared, query.noise_multiplier, query.bound, *pure


@pytest.mark.parametrize(
    ("algorithm", "noise"),
    [(name, noise) for name in ALGORITHMS for noise in ("server", "distributed", "local")
     if noise == "server" or name not in ("dp-xgboost", "histograms")],
)  # fmt: skip
def test_two_rows_at_three_sites_cost_what_six_at_one_do(algorithm: str, noise: str) -> None:
    """Every query of every algorithm: the same sensitivity, and so the same noise, wherever a person's rows are."""
    spread, together = (shared_plan(algorithm, *rows, noise=noise) for rows in ((2, 3), (6, 1)))
    found = [[cost(query) for query in queries_of(TrainingTask(plan))[0]] for plan in (spread, together)]
    assert found[0] == found[1]
    alone = shared_plan(algorithm, 2, 1, noise=noise)
    assert found[0] != [cost(query) for query in queries_of(TrainingTask(alone))[0]]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_person_moves_a_sum_over_all_sites_further_than_the_noise_is_for(algorithm: str) -> None:
    """Six rows of one person at three sites, in the worst of places: the sum of the sites' real answers."""
    plan = shared_plan(algorithm, 2, 3)
    settings = resolve(plan)
    worst = 0.0
    for seed in range(4):
        row = make_data(plan, 1, seed)
        pair = take(row, np.zeros(2, dtype=np.intp))
        nodes = [Node(f"s{number}", pair, plan, settings) for number in range(3)]
        program = program_for(plan, settings)
        query = next(program)
        moved = sum(node.answer(query) for node in nodes)
        if isinstance(query, SplitSelection):
            continue
        if isinstance(query, PureQuery):
            size, most = float(np.abs(moved).sum()), float(query.pure.sensitivity)
        else:
            size, most = math.sqrt(int((moved.astype(object) ** 2).sum())), math.sqrt(query.sensitivity_squared)
        assert size <= most
        worst = max(worst, size / most)
    assert worst > 1 / 3 or algorithm == "adassp"


def test_an_evaluation_is_for_all_sites_too() -> None:
    """Held-out rows of one person may be at several sites as well; a node believes no smaller sensitivity."""
    plan = shared_plan("boosting", 2, 3)
    data = make_data(plan, 40, 1)
    model = train(plan, {"a": data}, noise=SeededNoise(1))
    program = evaluate_ensemble(plan, model.ensemble, 1.0, 1e-5, 4)
    query = next(program)
    assert query.sensitivity_squared == 36 * query.unit**2
    EvaluationNode("a", data, plan).answer(query)
    less = evaluate_ensemble(shared_plan("boosting", 2, 1), model.ensemble, 1.0, 1e-5, 4)
    with pytest.raises(RemoteProtocolError):
        EvaluationNode("a", data, plan).answer(next(less))


def test_the_report_says_at_how_many_sites() -> None:
    """Whoever reads the model knows for whom the promise was made."""
    plan = shared_plan("boosting", 2, 3)
    report = train(plan, {"a": make_data(plan, 40, 1)}, noise=SeededNoise(1)).report
    assert (report.max_rows_per_unit, report.sites_per_unit) == (2, 3)


def test_secret_samples_are_of_units_at_one_site() -> None:
    """Rows of one unit would be drawn apart from each other: the amplification would be another one."""
    with pytest.raises(PlanError, match="sites_per_unit"):
        table = make_plan().to_dict()
        privacy = {**table["privacy"], "unit": "patient", "sites_per_unit": 2}
        Plan.from_dict({**table, "model": {"algorithm": "s-gbdt"}, "privacy": privacy})
    with pytest.raises(PlanError, match="subsampling_ratio"):
        Plan.from_dict(
            {
                **table,
                "model": {"algorithm": "dp-xgboost"},
                "dp_xgboost": {"subsampling_ratio": 0.5},
                "privacy": privacy,
            }
        )
