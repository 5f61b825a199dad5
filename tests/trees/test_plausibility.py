"""What every release is asked: honest sites never fail it, whatever their rows; what no records can add up to does."""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hedgerow
from hedgerow.client.node import Node
from hedgerow.data.binned import SiteData
from hedgerow.local.training import evaluate_federated, train
from hedgerow.losses.tables import SCORE_LIMIT, bound_statistics
from hedgerow.methods.dp_xgboost.trees import SplitSelection
from hedgerow.methods.level import LevelSums
from hedgerow.methods.registry import resolve
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import TrainingTask, build_checks
from hedgerow.plan.plan import Plan
from hedgerow.privacy.calibration import noise_of
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.queries import IntVector, PureQuery, Query
from hedgerow.rounds import HEADROOM, count_possible_rows, least_entry_bound
from hedgerow.trees.leaf_sums import LeafSums
from hedgerow.trees.plausibility import DEVIATIONS, SumFacts
from tests.builders import LABELS, contributions, make_data, make_plan, take

N_RECORDS = 40
ALGORITHMS = ["random", "hist", "partially_random", "s-gbdt", "adassp", "dp-xgboost"]


def plan_of_kind(algorithm: str, label: str = "binary", update: str = "newton", **privacy: Any) -> Plan:
    """A small plan of every kind of query."""
    own = {"n_records": N_RECORDS, **privacy}
    if algorithm in ("random", "hist", "partially_random"):
        method = "totally_random" if algorithm == "random" else algorithm
        model = {"split_method": method, "weight_update": update, "batch_size": 2, "n_candidates": 5}
        if label == "survival":
            model["weight_update"] = "newton"
        elif algorithm == "random":
            model["split_candidates"] = "iterative_hessian"
        else:
            model["interaction_size"] = 2
        return make_plan(label, model, own)
    if algorithm == "dp-xgboost":
        section = {"splits": "exponential" if update == "newton" else "histogram", "sketch_rounds": 1}
        trees = {"algorithm": algorithm, "n_trees": 2, "n_candidates": 5}
        plan = make_plan(label, trees, {**own, "accountant": "pure"}, dp_xgboost=section)
    else:
        plan = make_plan(label, {"algorithm": algorithm}, own)
    return plan


def parts_of(data: SiteData, owner: Any, n_sites: int) -> dict[str, SiteData]:
    return {f"s{site}": take(data, np.flatnonzero(owner == site)) for site in range(n_sites)}


@st.composite
def honest(draw: st.DrawFn) -> tuple[Plan, dict[str, SiteData], int]:
    """Any plan, up to four times its rows, at one to six sites, all alike or not, spread or all at one."""
    pick = st.sampled_from
    algorithm = draw(pick(ALGORITHMS))
    labels = ["binary", "regression"] if algorithm in ("s-gbdt", "adassp", "dp-xgboost") else list(LABELS)
    if algorithm in ("hist", "partially_random"):
        labels.remove("survival")
    noises = ["server", "distributed", "local"]
    noises = {"dp-xgboost": noises[:1], "s-gbdt": noises[:2]}.get(algorithm, noises)
    n_sites = draw(st.integers(1, 6))
    noise = draw(pick(noises)) if n_sites >= 3 else "server"
    epsilon = draw(pick([0.1, 2.0, 30.0, math.inf] if noise == "server" else [0.1, 2.0, 30.0]))
    update = draw(pick(["newton", "gradient", "averaging"]))
    plan = plan_of_kind(algorithm, draw(pick(labels)), update, epsilon=epsilon, noise=noise)
    table = plan.to_dict()
    plan = Plan.from_dict({**table, "federation": {**table["federation"], "min_sites": 1}})
    n_rows, seed = draw(st.integers(0, HEADROOM * N_RECORDS)), draw(st.integers(0, 1000))
    data = make_data(plan, n_rows, seed)
    if draw(st.booleans()) and n_rows:
        data = take(data, np.zeros(n_rows, dtype=np.int64))
    owner = np.arange(n_rows) % n_sites if draw(st.booleans()) else np.zeros(n_rows, dtype=np.int64)
    return plan, parts_of(data, owner, n_sites), seed


@pytest.mark.slow
@given(st.data())
@settings(max_examples=70)
def test_honest_sites_are_never_stopped(data: st.DataObject) -> None:
    """A run of honest sites ends with a model and can be evaluated: every loss, algorithm and kind of noise."""
    plan, sites, seed = data.draw(honest())
    model = train(plan, sites, noise=SeededNoise(seed))
    if plan.privacy.noise != "distributed":
        evaluate_federated(model, sites, epsilon=1.0, noise=SeededNoise(seed))


def test_what_honest_nodes_clip_is_allowed_for() -> None:
    """All rows of four times the declared number at one site, in one leaf of one tree and in two of the other: its node
    clips the one sum and not the others, and the run goes on.
    """
    plan = make_plan(
        model={"n_trees": 12, "max_depth": 1, "weight_update": "averaging", "interaction_size": 1},
        privacy={"n_records": 30_000},
    )
    one = make_data(plan, 2, 3)
    one.codes[1:] = one.codes[1:, :1]
    one.codes[0] = [0, 4]
    rows = np.arange(120_000) % 2
    data = SiteData(np.ascontiguousarray(one.codes[:, rows]), np.ones(len(rows), dtype=np.int32))
    train(plan, parts_of(data, np.zeros(len(rows)), 4), noise=SeededNoise(1))


# What no records add up to ---------------------------------------------------------------------------------------


def dialogue(plan: Plan, data: SiteData, lie: Callable[[Query, IntVector], IntVector]) -> list[tuple[Query, str]]:
    """What the checks say of each release of a run whose only lie is made of the true sum."""
    task = TrainingTask(plan.with_structure_seed(5) if plan.has_joint_structure else plan)
    replica, checks, node = Replica(task), build_checks(task), Node("one", data, task.plan, task.settings)
    noise, said = SeededNoise(3), []
    while (query := replica.query) is not None:
        exact, own = node.answer(query), noise_of(query)
        if isinstance(query, SplitSelection):
            replica.feed(np.zeros(query.release_length, dtype=np.int64))
            continue
        draw = noise.laplace if isinstance(query, PureQuery) else noise.sample
        drawn = draw(own.central_sigma, query.length, str(query.purpose)) if own.central_sigma else 0
        facts = SumFacts(
            HEADROOM * count_possible_rows(plan), least_entry_bound(query, plan, own.variance, 6), own, 6, ("a", "b")
        )
        said.append((query, checks.fault_in(query, lie(query, exact) + drawn, facts)))
        replica.feed(exact + drawn)
    return said


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("label", ["binary", "regression"])
@pytest.mark.parametrize("update", ["newton", "gradient"])
def test_a_sum_with_the_wrong_sign_is_no_sum_over_records(algorithm: str, label: str, update: str) -> None:
    """Fewer than no records: every kind of release in which records are counted is stopped, at its first."""
    plan = plan_of_kind(algorithm, label, update, epsilon=30.0, n_records=20_000)
    data = make_data(plan, 20_000, 1)
    if algorithm == "s-gbdt":
        # A small sample is lost in the noise; the initial score is not.
        assert dialogue(plan, data, lambda _, exact: -exact)[0][1]
        return
    for query, fault in dialogue(plan, data, lambda _, exact: -exact):
        # It counts no records: its sums may have either sign, or be lost in the noise.
        assert fault or type(query).__name__ == "CrossProducts"
    assert not any(fault for _, fault in dialogue(plan, data, lambda _, exact: exact))


def with_narrow_clips(plan: Plan) -> Plan:
    """A regression in which gradients are as short as Hessians: by default they are longer, and so may be what a node
    has to clip off a sum.
    """
    table = plan.to_dict()
    return Plan.from_dict(
        {**table, "model": {**table["model"], "start": "none", "joint_clip": 0.25, "hessian_scale": 0.25}}
    )


@pytest.mark.parametrize("algorithm", ["random", "hist", "partially_random"])
@pytest.mark.parametrize("label", ["binary", "multiclass", "regression"])
def test_trees_over_the_same_rows_have_the_same_totals(algorithm: str, label: str) -> None:
    """A vector that is not made of records, such as a large number in one place, shows in the totals of the others."""
    # With several classes it is not known that nodes do not clip, unless their words have room for all.
    n_rows = 5000 if label == "multiclass" else 20_000
    plan = plan_of_kind(algorithm, label, "gradient", epsilon=30.0, n_records=n_rows)
    plan = with_narrow_clips(plan) if label == "regression" else plan

    def lie(query: Query, exact: IntVector) -> IntVector:
        worse = exact.copy()
        worse[-1] += n_rows * query.bound // 3
        return worse

    told = dialogue(plan, make_data(plan, n_rows, 1), lie)
    faults = [fault for query, fault in told if not isinstance(query, LevelSums)]
    assert faults and all("differ" in fault for fault in faults)


@pytest.mark.parametrize("label", ["binary", "regression"])
def test_rows_do_not_come_or_go_between_two_rounds(label: str) -> None:
    """A site that begins to lie in the middle of a run moves the number of records, which no score can move."""
    plan = plan_of_kind("random", label, "gradient", epsilon=30.0, n_records=20_000)
    plan = with_narrow_clips(plan) if label == "regression" else plan
    data = make_data(plan, 20_000, 1)
    # Half as much again: a leaf that may have been clipped off at its word would allow for the rest.
    said = dialogue(plan, data, lambda query, exact: exact + exact // 2 * (query.purpose.round > 3))
    leaves = [(query.purpose.round, fault) for query, fault in said if isinstance(query, LeafSums)]
    assert leaves and any(number > 3 for number, _ in leaves)
    first = next(fault for number, fault in leaves if number > 3)
    assert "moved further" in first
    assert not any(fault for number, fault in leaves if number <= 3)


@pytest.mark.parametrize("update", ["newton", "gradient", "averaging"])
def test_a_record_is_within_what_is_said_of_it(update: str) -> None:
    """The limits are of records that exist: no label and no score within the bound goes beyond them."""
    plan = make_plan(model={"weight_update": update})
    settings = resolve(plan)
    loss, random = settings.loss(plan), np.random.default_rng(1)
    for bound in (0, 5000, SCORE_LIMIT):
        allowed = bound_statistics(loss, bound)
        scores = random.integers(-bound, bound + 1, (loss.n_outputs, 4000)).astype(np.int32)
        labels = random.integers(0, 2, 4000)
        found = contributions(loss, labels, scores)
        assert (found >= allowed.low).all() and (found <= allowed.high).all()
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(found == 0, 0, np.abs(found) / found[:, -1:])
        assert (ratio <= allowed.ratio * (1 + 1e-12)).all()
        for moved in (1, 300, 40_000):
            later = np.clip(scores + random.integers(-moved, moved + 1, scores.shape), -bound, bound).astype(np.int32)
            assert (np.abs(contributions(loss, labels, later) - found) <= allowed.moves(moved)).all()


def test_the_chance_of_a_false_alarm_is_what_is_said() -> None:
    """2**40 questions, each beyond `DEVIATIONS` standard deviations: below 10**-12 in a run."""
    assert 2**40 * 2 * math.exp(-(DEVIATIONS**2) / 2) < 1e-12


def test_each_kind_of_query_of_the_package_has_checks_of_its_own() -> None:
    """A new kind of question does not slip through unasked; another package's is asked for its largest entry."""
    for path in pkgutil.walk_packages(hedgerow.__path__, "hedgerow."):
        if path.name.split(".")[1] in ("evaluation", "methods", "protocol", "survey", "trees"):
            importlib.import_module(path.name)
    kinds, waiting = set[type[Query]](), [Query]
    while waiting:
        found = [kind for kind in waiting.pop().__subclasses__() if kind.__module__.startswith("hedgerow.")]
        waiting += found
        kinds |= set(found)
    without = {kind.__name__ for kind in kinds if kind.faults is Query.faults}
    assert len(kinds) > 40
    assert without == {"Choice", "EvaluationQuery", "PureQuery", "SampledQuery", "SiteQuery", "_OfSample"}, "bases"
