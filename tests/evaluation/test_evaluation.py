"""Federated evaluation: right numbers from exact sums, honest errors from noisy ones, and a complete account."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chi2

from hedgerow.client.node import EvaluationNode, Node
from hedgerow.client.policy import parse_policy
from hedgerow.data.binned import SiteData
from hedgerow.errors import ModelError, PrivacyError, RemoteProtocolError, UsageError
from hedgerow.evaluation.estimates import (
    ErrorHistogram,
    auc,
    concordance,
    estimate_mean,
    integrated_brier,
    ratio,
    regression_estimates,
)
from hedgerow.evaluation.program import UNIT, EvaluationProgram, evaluate_ensemble, schedule_of_evaluation
from hedgerow.evaluation.sums import (
    ERROR_EDGES,
    MAX_ERROR,
    ErrorMoments,
    EvaluationQuery,
    GroupedSums,
    ScoreHistogram,
    count_groups,
    list_groups,
    positions,
)
from hedgerow.local.training import FederatedEvaluation, evaluate_federated, train
from hedgerow.losses import censored as measures
from hedgerow.losses.censored import read_times
from hedgerow.losses.kinds import accuracy, log_loss
from hedgerow.losses.survival import survival_codes
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.methods.registry import program_for, resolve
from hedgerow.methods.tasks import EvaluationTask
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.privacy.calibration import noise_of
from hedgerow.privacy.cost import compose_cost
from hedgerow.privacy.events import DiscreteGaussianEvent, UnnoisedEvent
from hedgerow.privacy.noise import NoiseSource, SeededNoise
from hedgerow.privacy.report import build_report
from hedgerow.protocol.queries import IntVector, Query, SiteQuery
from hedgerow.rounds import expect_round
from hedgerow.secagg.messages import NoiseMode
from hedgerow.trees.binning import build_grid
from hedgerow.trees.ensemble import find_link
from hedgerow.trees.leaf_sums import ScoredSite, SiteRecords, apply_update
from tests.builders import NoNoise, coded, make_data, make_plan, take
from tests.tiers import every

LABELS = ("binary", "multiclass", "regression", "survival")


def rows(label: str, n: int, seed: int, update: str = "newton") -> tuple[Model, SiteData]:
    """A model, and held-out rows whose labels depend on the features."""
    model_fields = {"n_trees": 24, "max_depth": 3, "weight_update": update}
    plan = make_plan(label, model=model_fields, privacy={"epsilon": 8.0, "n_records": n})
    both = make_data(plan, 2 * n, seed)
    signal = both.codes[3] / max(1, both.codes[3].max()) + np.random.default_rng(seed).normal(0, 0.25, 2 * n)
    if label == "regression":
        labels = np.rint(np.clip(signal - 0.5, -1, 1) * SCORE_UNIT)
    elif label == "survival":
        # The higher the signal the sooner the event; a third is lost on the way.
        times = np.random.default_rng(seed + 1).exponential(4 * np.exp(-2 * signal))
        lost = np.random.default_rng(seed + 2).uniform(0, 14, 2 * n)
        labels = survival_codes(np.minimum(times, lost), times <= lost, plan.label.intervals)
    else:
        k = len(plan.label.classes)
        labels = np.clip(np.floor(signal * k), 0, k - 1)
    data = SiteData(both.codes, labels.astype(np.int32))
    model = train(plan, {"a": take(data, np.arange(n))}, noise=SeededNoise(seed))
    return model, take(data, np.arange(n, 2 * n))


@pytest.fixture(scope="module")
def cases() -> dict[str, tuple[Model, SiteData]]:
    """One model per kind of label, with 3,000 held-out rows."""
    return {label: rows(label, 3000, seed=5) for label in LABELS}


def asked(model: Model, data: SiteData, epsilon: float, by: Sequence[str] = ()) -> list[tuple[Query, IntVector]]:
    """The queries of an evaluation with their exact answers, as a node without noise gives them."""
    program: EvaluationProgram = evaluate_ensemble(model.plan, model.ensemble, epsilon, 1e-5, by=by)
    node = EvaluationNode("a", data, model.plan)
    found: list[tuple[Query, IntVector]] = []
    try:
        query = next(program)
        while True:
            answer = node.answer(query)
            found.append((query, answer))
            query = program.send(answer)
    except StopIteration:
        return found


def places_of(model: Model, data: SiteData, position: str) -> NDArray[np.int64]:
    scores = np.zeros((model.ensemble.n_outputs, data.n_records), dtype=np.int32)
    records = SiteRecords(data.codes, data.labels, scores)
    assert model.ensemble.fitted is not None
    apply_update(records, model.ensemble.fitted)
    return positions(records, position, find_link(model.plan), model.plan.label)


@pytest.mark.parametrize("update", ["newton", "averaging"])
@pytest.mark.parametrize("label", ["binary", "multiclass"])
def test_exact_counts_give_the_textbook_numbers(label: str, update: str) -> None:
    """Without noise: scikit-learn's AUC of the binned scores, the model's own accuracy, nearly its log-loss."""
    metrics = pytest.importorskip("sklearn.metrics")
    model, data = rows(label, 2000, seed=7, update=update)
    found = evaluate_federated(model, {"a": data}, epsilon=math.inf, noise=SeededNoise(1)).evaluation
    detail = asked(model, data, math.inf)[1][0]
    assert isinstance(detail, ScoreHistogram)
    places = places_of(model, data, detail.position)
    areas = []
    for curve, edges in enumerate(detail.edges):
        binned = np.array([sum(place > edge for edge in edges) for place in places[curve]])
        areas.append(metrics.roc_auc_score(data.labels == (1 if label == "binary" else curve), binned))
    assert found.scores["auc"].value == pytest.approx(np.mean(areas), abs=1e-12)
    chances = model.predict_proba_codes(data.codes)
    assert found.scores["accuracy"].value == pytest.approx(accuracy(data.labels, chances.argmax(axis=1)), abs=1e-12)
    assert found.scores["log_loss"].value == pytest.approx(log_loss(data.labels, chances), rel=0.02)
    assert found.n_records.value == data.n_records
    assert all(estimate.noise_error == 0 for estimate in found.scores.values())


@pytest.mark.parametrize("update", ["newton", "averaging"])
def test_exact_moments_give_the_textbook_numbers(update: str) -> None:
    """Without noise the clip lies beyond every error, and RMSE and R² are the model's own."""
    model, data = rows("regression", 2000, seed=7, update=update)
    found = evaluate_federated(model, {"a": data}, epsilon=math.inf, noise=SeededNoise(1)).evaluation
    truth = 1 + 4 * data.labels / SCORE_UNIT  # the label's bounds are -3 and 5
    errors = model.predict_codes(data.codes) - truth
    assert found.error_clip is not None and found.error_clip >= np.abs(errors).max()
    assert found.scores["rmse"].value == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-3)
    assert found.scores["r2"].value == pytest.approx(1 - np.mean(errors**2) / np.var(truth), abs=2e-3)


def test_exact_counts_of_times_give_the_textbook_numbers() -> None:
    """Without noise: the concordance of the binned risks, and nearly the integrated Brier score of the curves; the bins
    reach as far as the scores, which takes importances that are not 0.
    """
    model, data = rows("survival", 2000, seed=7)
    found = evaluate_federated(model, {"a": data}, epsilon=math.inf, noise=SeededNoise(1)).evaluation
    detail = asked(model, data, math.inf)[1][0]
    assert isinstance(detail, ScoreHistogram) and detail.shape[1] == 9
    binned = np.searchsorted(detail.edges[0], places_of(model, data, "risk")[0], side="left")
    ends = np.array(model.plan.label.intervals)
    times, events = read_times(data.labels, ends)
    assert found.scores["concordance"].value == pytest.approx(measures.concordance(times, events, binned), abs=1e-12)
    assert found.scores["concordance"].value > 0.6
    survival = model.predict_survival_codes(data.codes)
    expected = measures.integrated_brier_score(times, events, survival, ends)
    assert found.scores["integrated_brier"].value == pytest.approx(expected, abs=2e-3)
    assert found.n_records.value == data.n_records
    ends_of_outline = asked(model, data, math.inf)[0][1][[0, -1]]
    assert ends_of_outline.sum() < 0.05 * UNIT * data.n_records


@settings(max_examples=60, deadline=None)
@given(
    cells=st.lists(st.lists(st.integers(0, 4), min_size=4, max_size=4), min_size=7, max_size=7), seed=st.integers(0, 99)
)
def test_measures_of_times_from_counts_are_those_of_the_records(cells: list[list[int]], seed: int) -> None:
    """Counts by code and bin give the numbers that the records by themselves give, and slopes that are derivatives."""
    table, ends = np.array(cells, dtype=np.float64), np.array([1.0, 2.0, 5.0])
    survival = np.sort(np.random.default_rng(seed).random((4, 3)), axis=1)[:, ::-1]
    weights = np.array([measures.mean_over_time(own, ends) for own in np.eye(3)])
    codes, bins = (np.repeat(own.ravel(), table.ravel().astype(int)) for own in np.indices((7, 4)))
    times, events = read_times(codes, ends)
    found = concordance(table, 0.0)
    assert found.value == pytest.approx(measures.concordance(times, events, bins), abs=1e-12, nan_ok=True)
    brier = integrated_brier(table, 0.0, survival, weights)
    if not math.isnan(brier.value):
        assert brier.value == pytest.approx(
            measures.integrated_brier_score(times, events, survival[bins], ends), abs=1e-12
        )
    # Some of every kind, so that all derivatives are there; the norm of them is what the error says.
    full = table + 1.0
    for measure in (lambda own: concordance(own, 1e-3), lambda own: integrated_brier(own, 1e-3, survival, weights)):
        steps = np.eye(28).reshape(28, 7, 4) * 1e-4
        slopes = [(measure(full + step).value - measure(full - step).value) / 2e-4 for step in steps]
        assert 1e-3 * np.linalg.norm(slopes) == pytest.approx(measure(full).noise_error, rel=1e-4)


@settings(max_examples=60)
@given(cells=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=8))
def test_the_area_counts_pairs(cells: list[tuple[int, int]]) -> None:
    """The AUC is the share of pairs in the right order, ties half; without one of the classes there is none."""
    table = np.array(cells, dtype=np.float64).T
    pairs = [(i, j, others * ours) for i, (others, _) in enumerate(cells) for j, (_, ours) in enumerate(cells)]
    total = sum(weight for _, _, weight in pairs)
    found = auc(table, 0.0)
    if total == 0:
        assert math.isnan(found.value)
        return
    won = sum(weight * (1.0 if j > i else 0.5 if j == i else 0.0) for i, j, weight in pairs)
    assert found.value == pytest.approx(won / total)


def test_the_sampling_errors_of_times_are_those_of_samples() -> None:
    """Over fresh records the concordance and the Brier score spread as their sampling errors say."""
    random, ends = np.random.default_rng(3), np.array([1.0, 2.0, 5.0])
    survival = np.exp(-np.outer([0.1, 0.2, 0.4, 0.8], ends))
    weights = np.array([measures.mean_over_time(own, ends) for own in np.eye(3)])
    found = []
    for _ in range(800):
        bins = random.integers(0, 4, 500)
        times, lost = random.exponential(1 / np.array([0.1, 0.2, 0.4, 0.8])[bins]), random.uniform(0, 9, 500)
        codes = survival_codes(np.minimum(times, lost), times <= lost, ends)
        cells = np.bincount(codes * 4 + bins, minlength=28).reshape(7, 4).astype(np.float64)
        found.append([concordance(cells, 0.0), integrated_brier(cells, 0.0, survival, weights)])
    for which in (0, 1):
        spread = np.std([own[which].value for own in found])
        assert np.mean([own[which].sampling_error for own in found]) == pytest.approx(spread, rel=0.08)


def test_errors_of_the_estimators_are_those_of_the_noise() -> None:
    """Noise added to fixed counts moves every estimate by as much as it says, and in no direction."""
    random = np.random.default_rng(0)
    cells = np.array([[300, 250, 200, 120, 60, 30], [20, 60, 100, 150, 160, 120]], dtype=np.float64)
    moments = np.array([2000, 300, 400, 250], dtype=np.float64)
    noise = 12.0
    losses = random.uniform(0.1, 2, 12)
    estimators = {
        "auc": lambda shift: auc(cells + shift.reshape(2, 6), noise),
        "mean": lambda shift: estimate_mean(losses, cells.ravel() + shift, noise),
        "ratio": lambda shift: ratio(losses, np.repeat([0.0, 1.0], 6), cells.ravel() + shift, noise),
        "rmse": lambda shift: regression_estimates(moments + shift[:4], noise, 0.5, 4.0)["rmse"],
        "r2": lambda shift: regression_estimates(moments + shift[:4], noise, 0.5, 4.0)["r2"],
    }
    shifts = random.normal(0, noise, (4000, 12))
    for name, estimator in estimators.items():
        exact = estimator(np.zeros(12))
        values = np.array([estimator(shift).value for shift in shifts])
        assert np.std(values) == pytest.approx(exact.noise_error, rel=0.08), name
        assert abs(values.mean() - exact.value) < 0.12 * exact.noise_error, name


def test_the_sampling_error_is_that_of_samples() -> None:
    """DeLong's error agrees with the spread over fresh samples from one distribution over bins."""
    random = np.random.default_rng(1)
    chances = np.array([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]])
    samples = [np.array([random.multinomial(400, row) for row in chances], dtype=np.float64) for _ in range(1500)]
    found = [auc(sample, 0.0) for sample in samples]
    spread = np.std([estimate.value for estimate in found])
    assert np.mean([estimate.sampling_error for estimate in found]) == pytest.approx(spread, rel=0.08)


@pytest.mark.parametrize("label", every(3, LABELS))
def test_error_bars_cover_the_truth(cases: dict[str, tuple[Model, SiteData]], label: str) -> None:
    """Over seeds, whole evaluations stay within their error bars as often as normal errors do, or nearly so."""
    model, data = cases[label]
    truth = evaluate_federated(model, {"a": data}, epsilon=math.inf, noise=SeededNoise(1)).evaluation
    runs = [
        evaluate_federated(model, {"a": data}, epsilon=2.0, noise=SeededNoise(seed, exact=False)).evaluation
        for seed in range(80)
    ]
    for name, exact in truth.scores.items():
        off = np.array([(run.scores[name].value - exact.value) / run.scores[name].noise_error for run in runs])
        # 95 % within two; the bins' borders are noisy too, so that a little more is allowed.
        assert np.mean(np.abs(off) < 2) >= 0.85, (name, off)
        assert np.mean(np.abs(off) < 0.1) < 0.4, name  # bars that cover everything would say nothing


@pytest.mark.parametrize("label", LABELS)
def test_who_holds_which_row_does_not_matter(cases: dict[str, tuple[Model, SiteData]], label: str) -> None:
    """One site, three or forty: the same numbers and the same model file."""
    model, data = cases[label]

    def run(n_sites: int) -> FederatedEvaluation:
        order = np.random.default_rng(n_sites).permutation(data.n_records)
        held = [order[site::n_sites] for site in range(n_sites)]
        parts = {
            str(i): SiteData(np.ascontiguousarray(data.codes[:, own]), data.labels[own]) for i, own in enumerate(held)
        }
        return evaluate_federated(model, parts, epsilon=0.5, noise=SeededNoise(9))

    first, *others = [run(n_sites) for n_sites in (1, 3, 40)]
    for other in others:
        assert repr(other.evaluation.to_dict()) == repr(first.evaluation.to_dict())
        assert other.model.to_bytes() == first.model.to_bytes()


@pytest.mark.parametrize("rows_per_unit", [1, 3])
@pytest.mark.parametrize("label", LABELS)
def test_no_unit_adds_more_than_the_sensitivity(label: str, rows_per_unit: int) -> None:
    """Brute force: rows of every extreme label and score, as often as a unit may have them, in both queries."""
    privacy = {"unit": "patient", "max_rows_per_unit": rows_per_unit} if rows_per_unit > 1 else {}
    plan = make_plan(label, model={"n_trees": 12}, privacy={"epsilon": 50.0, **privacy})
    data = make_data(plan, 400, 3)
    if label == "regression":
        data.labels[:3] = (-SCORE_UNIT, 0, SCORE_UNIT)
    model = train(plan, {"a": data}, noise=SeededNoise(2))
    queries = [query for query, _ in asked(model, data, 1.0)]
    largest = [0, 0]
    for record in range(data.n_records):
        unit = take(data, np.full(rows_per_unit, record))
        node = EvaluationNode("a", unit, plan)
        for stage, query in enumerate(queries):
            added = node.answer(query)
            norm_squared = sum(int(entry) ** 2 for entry in added)
            largest[stage] = max(largest[stage], norm_squared)
            assert norm_squared <= query.sensitivity_squared
            assert max(abs(int(entry)) for entry in added) <= query.bound * rows_per_unit
    # Histograms reach their sensitivity with every record; the moments only where all four are at their largest.
    assert largest[0] == queries[0].sensitivity_squared
    if label != "regression":
        assert largest[1] == queries[1].sensitivity_squared


def test_the_worst_record_of_the_moments_is_the_bound(cases: dict[str, tuple[Model, SiteData]]) -> None:
    """A label at its bound with an error beyond the clip reaches the sensitivity, and nothing exceeds it."""
    model, data = cases["regression"]
    query = asked(model, data, 1.0)[1][0]
    assert isinstance(query, ErrorMoments)
    worst = SiteData(data.codes[:, :2], np.array([-SCORE_UNIT, SCORE_UNIT], dtype=np.int32))
    query = replace(query, error_clip=1, update=model.ensemble.fitted, ensemble_size=0)
    for record in range(2):
        one = SiteData(np.ascontiguousarray(worst.codes[:, [record]]), worst.labels[[record]])
        added = EvaluationNode("a", one, model.plan).answer(query)
        assert sum(int(entry) ** 2 for entry in added) == query.sensitivity_squared


@pytest.mark.parametrize("label", LABELS)
def test_an_evaluation_is_charged(cases: dict[str, tuple[Model, SiteData]], label: str) -> None:
    """Two releases join the ledger, cost what was asked for and nearly all of it, and add up with the rest."""
    model, data = cases[label]
    first = evaluate_federated(model, {"a": data}, epsilon=0.5, noise=SeededNoise(1))
    assert 0.499 < first.cost.epsilon <= 0.5
    assert len(first.model.ledger) == len(model.ledger) + 2 == first.model.report.n_releases
    assert first.model.report.epsilon > model.report.epsilon
    second = evaluate_federated(first.model, {"a": data}, epsilon=0.5, noise=SeededNoise(1))
    assert len(second.model.ledger) == len(model.ledger) + 4
    added = list(second.model.ledger.events())[len(model.ledger) :]
    expected = compose_cost(model.ledger.events()).gdp_weight + compose_cost(added).gdp_weight
    assert compose_cost(second.model.ledger.events()).gdp_weight == pytest.approx(expected)
    assert second.model.report.epsilon > first.model.report.epsilon
    # Equal noise twice would cancel out; another round is another purpose and has other noise.
    assert repr(first.evaluation.to_dict()) != repr(second.evaluation.to_dict())


def test_exact_answers_void_the_guarantee(cases: dict[str, tuple[Model, SiteData]]) -> None:
    """An evaluation without noise is possible and leaves an account that says so."""
    model, data = cases["binary"]
    found = evaluate_federated(model, {"a": data}, epsilon=math.inf, noise=SeededNoise(1)).model
    assert isinstance(list(found.ledger.events())[-1], UnnoisedEvent)
    assert found.report.epsilon == math.inf and found.report.guarantee == "void"


class Weak:
    """A source that adds a fraction of the noise that it is asked for."""

    seeded, approximate = True, True

    def __init__(self, seed: int, factor: float) -> None:
        self._random, self._factor = np.random.default_rng(seed), factor

    def sample(self, sigma: int, length: int, purpose: str) -> NDArray[np.int64]:
        return np.rint(self._random.normal(0, sigma * self._factor, length)).astype(np.int64)


@pytest.mark.parametrize(("factor", "passes"), [(1.0, True), (0.5, False)])
def test_an_audit_sees_halved_noise(cases: dict[str, tuple[Model, SiteData]], factor: float, passes: bool) -> None:
    """The spread of the released number of records over runs is what the ledger claims; half the noise is found out."""
    model, data = cases["multiclass"]
    off = []
    for seed in range(120):
        found = evaluate_federated(model, {"a": data}, epsilon=1.0, noise=Weak(seed, factor)).evaluation
        off.append((found.n_records.value - data.n_records) / found.n_records.noise_error)
    # 120 squares of unit normals: within 0.66 and 1.42 of their mean but for a chance of 1 in 1,000.
    assert (0.66 < float(np.mean(np.square(off))) < 1.42) == passes


def test_too_few_records_are_not_measured(cases: dict[str, tuple[Model, SiteData]]) -> None:
    """Where the noise drowns a class, no number is given instead of a random one."""
    model, data = cases["binary"]
    few = take(data, np.arange(60))
    found = evaluate_federated(model, {"a": few}, epsilon=0.1, noise=SeededNoise(1)).evaluation
    assert math.isnan(found.scores["auc"].value) and found.scores["auc"].noise_error == math.inf


def test_a_node_checks_what_it_is_asked(cases: dict[str, tuple[Model, SiteData]]) -> None:
    """A query that understates its sensitivity would be answered with too little noise; the node refuses it."""
    model, data = cases["binary"]
    query = asked(model, data, 1.0)[0][0]
    assert isinstance(query, ScoreHistogram)
    training = next(program_for(model.plan, resolve(model.plan)))
    for wrong in (
        replace(query, sensitivity_squared=query.sensitivity_squared - 1),
        replace(query, bound=query.bound - 1),
        replace(query, unit=2 * query.unit),
        replace(query, position="residual"),
        replace(query, edges=query.edges[:, ::-1]),
        replace(query, length=query.length + 1),
        replace(query, ensemble_size=1),
        training,
    ):
        with pytest.raises(RemoteProtocolError):
            EvaluationNode("a", data, model.plan).answer(wrong)
    with pytest.raises(RemoteProtocolError):
        Node("a", data, model.plan, resolve(model.plan)).answer(query)


def test_impossible_requests_are_refused(cases: dict[str, tuple[Model, SiteData]]) -> None:
    """No epsilon of zero, no delta of one, no fewer sites than agreed, no noise of a kind that is not there."""
    model, data = cases["binary"]
    for epsilon, delta in ((0.0, 1e-5), (-1.0, 1e-5), (math.nan, 1e-5), (1.0, 1.0), (1.0, 0.0)):
        with pytest.raises(PrivacyError):
            evaluate_federated(model, {"a": data}, epsilon=epsilon, delta=delta, noise=SeededNoise(1))
    crowd = replace(model.plan, federation=replace(model.plan.federation, min_sites=2))
    with pytest.raises(UsageError):
        evaluate_federated(replace(model, plan=crowd), {"a": data}, epsilon=1.0, noise=SeededNoise(1))
    shared = replace(model.plan, privacy=replace(model.plan.privacy, noise="distributed"))
    with pytest.raises(UsageError, check=coded("too-few-sites")):
        evaluate_federated(replace(model, plan=shared), {"a": data}, epsilon=1.0, noise=SeededNoise(1))


def test_sites_can_add_the_noise_of_an_evaluation(cases: dict[str, tuple[Model, SiteData]]) -> None:
    """With noise from the sites an evaluation keeps its promise, and its cost says whose noise it was."""
    model, data = cases["binary"]
    shared = replace(model.plan, privacy=replace(model.plan.privacy, noise="distributed"))
    sites = {name: data for name in ("a", "b", "c")}
    found = evaluate_federated(train(shared, sites, noise=SeededNoise(1)), sites, epsilon=1.0, noise=SeededNoise(1))
    assert found.cost.noise_mode == "distributed" and sum(found.cost.cohorts.values()) == 2
    assert 0.9 < found.cost.epsilon <= 1.0
    later = evaluate_federated(replace(model, plan=shared), sites, epsilon=1.0, noise=SeededNoise(1))
    assert later.cost.noise_mode == "distributed"
    assert later.model.report.noise_mode == model.report.noise_mode == "server"
    assert later.model.report.epsilon > model.report.epsilon


# By group -------------------------------------------------------------------------------------------------------------

BY = ("region", "age", "change")


@pytest.mark.parametrize("label", [*LABELS, "count"])
def test_a_group_is_measured_as_its_rows_by_themselves_are(label: str) -> None:
    """Without noise a group's sums are those of its records in the same bins, and each record is in one group."""
    model, data = rows(label, 600, seed=7)
    found = evaluate_federated(model, {"a": data}, epsilon=math.inf, noise=SeededNoise(1), by=BY).evaluation
    queries = asked(model, data, math.inf, BY)
    (detail, _), groups = queries[1], queries[2:]
    for column, (query, answer) in zip(BY, groups, strict=True):
        assert isinstance(query, GroupedSums)
        feature, codes = model.plan.feature_names.index(column), data.codes[model.plan.feature_names.index(column)]
        names, group_of = list_groups(model.plan.features[feature], model.ensemble.grid.features[feature])
        node = EvaluationNode("a", data, model.plan)
        node.answer(queries[0][0])
        assert list(found.groups[column]) == list(names) and query.feature == feature
        for group, (name, part) in enumerate(zip(names, answer.reshape(len(names), -1), strict=True)):
            only = take(data, np.flatnonzero(group_of[codes] == group))
            alone = EvaluationNode("a", only, model.plan)
            alone.answer(queries[0][0])
            assert (alone.answer(detail) == part).all()
            assert found.groups[column][name].n_records.value == only.n_records
            assert found.groups[column][name].errors is None
        assert (answer.reshape(len(names), -1).sum(axis=0) == queries[1][1]).all()


@settings(max_examples=25, deadline=None)
@given(record=st.integers(0, 59), label=st.sampled_from([*LABELS, "count"]), column=st.sampled_from(BY))
def test_a_record_moves_groups_no_further_than_the_noise_is_made_for(record: int, label: str, column: str) -> None:
    """Whoever is added or removed, whatever their group, the exact sums move by at most the sensitivity."""
    model, data = small_case(label)
    (outline, _), (detail, _), (query, whole) = asked(model, data, 1.0, (column,))
    node = EvaluationNode("a", take(data, np.delete(np.arange(60), record)), model.plan)
    node.answer(outline)
    moved = (whole - node.answer(query)).astype(object)
    assert 0 < (moved * moved).sum() <= query.sensitivity_squared == detail.sensitivity_squared
    assert np.abs(moved).max() <= query.bound


@cache
def small_case(label: str) -> tuple[Model, SiteData]:
    """A model with 60 held-out rows."""
    model, data = rows(label, 300, seed=9)
    return model, take(data, np.arange(60))


def test_groups_cost_no_more_and_are_on_the_account(cases: dict[str, tuple[Model, SiteData]]) -> None:
    """All releases together keep the evaluation's epsilon, and each column is one release more in the ledger."""
    model, data = cases["binary"]
    plain = evaluate_federated(model, {"a": data}, epsilon=1.0, noise=SeededNoise(1))
    found = evaluate_federated(model, {"a": data}, epsilon=1.0, noise=SeededNoise(1), by=BY)
    assert 0.99 < found.cost.epsilon <= 1.0
    assert len(found.model.ledger) == len(plain.model.ledger) + len(BY)
    last = found.model.ledger.releases[-1]
    assert (last.kind, last.purpose.split("/")[2]) == ("GroupedSums", "evaluation, by change")
    alone = {name: own.scores["auc"] for name, own in found.evaluation.groups["region"].items()}
    assert all(own.noise_error > found.evaluation.scores["auc"].noise_error for own in alone.values())


def test_only_public_groups_are_measured(cases: dict[str, tuple[Model, SiteData]]) -> None:
    """What the plan does not list is no group, and there are no sites that nobody names."""
    model, data = cases["binary"]
    with pytest.raises(PrivacyError, check=coded("unknown-name")):
        EvaluationTask(model.plan, b"", 1.0, 1e-5, 1, "distributed", ("site",))
    for column in ("y", "patient"):
        with pytest.raises(PrivacyError, check=coded("unknown-name")):
            evaluate_federated(model, {"a": data}, epsilon=1.0, noise=SeededNoise(1), by=[column])
        with pytest.raises(PrivacyError, check=coded("unknown-name")):
            EvaluationTask(model.plan, b"", 1.0, 1e-5, 1, "distributed", (column,))


@pytest.mark.parametrize(
    ("feature", "names"),
    [
        ({"min": 0, "max": 1, "integer": True}, ("0", "1", "missing")),
        ({"min": 3, "max": 10, "integer": True}, (*map(str, range(3, 11)), "missing")),
        ({"min": 0, "max": 99, "integer": True}, ("0 to 24", "25 to 49", "50 to 74", "75 to 99", "missing")),
        ({"min": 0, "max": 8}, ("0 to 2", "2 to 4", "4 to 6", "6 to 8", "missing")),
    ],
)
def test_a_number_has_groups_by_its_bounds(feature: dict[str, Any], names: tuple[str, ...]) -> None:
    """Few whole numbers have a group each, others quarters of the range; each value is in the group of its name."""
    plan = make_plan(features=[{"name": "a", "type": "numeric", **feature}], model={"n_candidates": 64})
    grid = build_grid(plan).features[0]
    found, group_of = list_groups(plan.features[0], grid)
    assert count_groups(plan, "a") == len(found) and len(group_of) == grid.n_codes
    low, high = feature["min"], feature["max"]
    if feature.get("integer"):
        assert found == names
        for value in range(low, high + 1):
            ends = found[group_of[grid.encode(np.array([value], np.float32))[0]]].split(" to ")
            assert int(ends[0]) <= value <= int(ends[-1])
    else:
        ends = [float(end) for name in found[:-1] for end in name.split(" to ")]
        assert ends == pytest.approx([float(end) for name in names[:-1] for end in name.split(" to ")], abs=0.2)
    assert found[group_of[grid.encode(np.array([np.nan], np.float32))[0]]] == "missing"
    assert high > low


# Prediction intervals ------------------------------------------------------------------------------------------------

SHAPES = ("normal", "laplace", "student")


def drawn_errors(random: np.random.Generator, shape: str, spread: float, n: int) -> NDArray[np.float64]:
    """Sizes of errors, in units of 2**-16 of the scaled label, none beyond the largest that there is."""
    draws = {"normal": random.normal(size=n), "laplace": random.laplace(size=n), "student": random.standard_t(3, n)}
    return np.minimum(np.abs(draws[shape]) * spread * SCORE_UNIT, MAX_ERROR)


def histogram_of(errors: NDArray[np.float64], noise: float, random: np.random.Generator) -> ErrorHistogram:
    """The released histogram of some errors, in the program's bins."""
    uppers = np.append(ERROR_EDGES, MAX_ERROR)
    counts = np.bincount(np.searchsorted(ERROR_EDGES, errors), minlength=len(uppers))
    noisy = counts + random.normal(0, noise, len(uppers))
    return ErrorHistogram(tuple(map(float, uppers)), tuple(noisy.tolist()), noise)


@pytest.mark.parametrize("coverage", every(3, [0.8, 0.9, 0.95]))
@pytest.mark.parametrize("shape", SHAPES)
def test_intervals_cover_what_they_say(shape: str, coverage: float) -> None:
    """Epsilon 1 and 4,000 held-out rows, 300 seeds, wherever the bins lie: within 1.5 points, never far below."""
    plan = make_plan("regression", privacy={"epsilon": 1.0, "n_records": 4000})
    event = schedule_of_evaluation(plan, 1.0, 1e-6).events[0]
    assert isinstance(event, DiscreteGaussianEvent)
    random = np.random.default_rng(7)
    found = []
    for _ in range(300):
        spread = 0.14 * 2 ** random.uniform(-0.5, 0.5)
        histogram = histogram_of(drawn_errors(random, shape, spread, 4000), event.noise_multiplier, random)
        half = histogram.half_width(coverage)
        found.append(float((drawn_errors(random, shape, spread, 20_000) <= half).mean()))
    assert coverage < np.mean(found) < coverage + 0.015
    assert min(found) > coverage - 0.03


def test_without_noise_an_interval_is_split_conformal_within_a_bin() -> None:
    """It ends in the bin that holds the error of the conformal rank, for every rank; beyond the last, nowhere."""
    random = np.random.default_rng(3)
    errors = np.sort(drawn_errors(random, "normal", 0.1, 300))
    histogram = histogram_of(errors, 0.0, random)
    uppers = np.array(histogram.uppers)
    for rank in range(1, 301):
        # The rank is ceil(coverage (n + 1)).
        half = histogram.half_width((rank - 0.5) / 301)
        place = int(np.searchsorted(uppers, errors[rank - 1]))
        assert (uppers[place - 1] if place else 0) < half <= uppers[place]
    assert histogram.half_width(300.5 / 301) == math.inf


def test_more_noise_makes_intervals_wider_and_too_much_the_whole_range() -> None:
    """The margin grows with the noise, and few records under much noise promise nothing."""
    random = np.random.default_rng(1)
    histogram = histogram_of(drawn_errors(random, "normal", 0.1, 4000), 0.0, random)
    widths = [replace(histogram, noise=noise).half_width(0.9) for noise in (0.0, 5.0, 20.0, 80.0, 1000.0)]
    assert widths == sorted(widths) and widths[0] < widths[1] and widths[-1] == math.inf
    assert histogram.half_width(0.8) < histogram.half_width(0.9) < histogram.half_width(0.95)


def test_an_evaluated_model_has_intervals(cases: dict[str, tuple[Model, SiteData]], tmp_path: Path) -> None:
    """They cover, lie within the label's bounds, survive the file, and cost nothing beside the evaluation."""
    model, data = cases["regression"]
    with pytest.raises(ModelError) as caught:
        model.predict_interval_codes(data.codes)
    assert caught.value.code == "no-interval"
    found = evaluate_federated(model, {"a": data}, epsilon=1.0, noise=SeededNoise(4))
    assert len(found.model.ledger) == len(model.ledger) + 2
    found.model.save(tmp_path / "model.json")
    read = Model.load(tmp_path / "model.json")
    assert read.to_bytes() == found.model.to_bytes() and read.errors == found.evaluation.errors
    low, high = model.plan.label.bounds
    labels = low + (high - low) / 2 * (1 + data.labels / SCORE_UNIT)
    for coverage, half in found.evaluation.half_widths.items():
        ends = read.predict_interval_codes(data.codes, coverage)
        assert coverage - 0.02 < ((ends[:, 0] <= labels) & (labels <= ends[:, 1])).mean() < coverage + 0.035
        assert half == read.half_width(coverage) and ends.min() >= low and ends.max() <= high
    for coverage in (0.0, 1.0, math.nan):
        with pytest.raises(UsageError) as refused:
            read.half_width(coverage)
        assert refused.value.code == "interval-coverage"
    other, rows = cases["binary"]
    with pytest.raises(ModelError, match="classes"):
        other.predict_interval_codes(rows.codes)


@pytest.mark.parametrize(
    "change",
    [
        {"noise": -1.0},
        {"noise": "5"},
        {"counts": [1.0]},
        {"uppers": [2.0, 1.0], "counts": [1.0, 1.0]},
        {"uppers": 3.0},
        {"more": 1},
    ],
)
def test_errors_that_do_not_fit_are_not_read(change: dict[str, object]) -> None:
    """Whatever a file says of an evaluation's errors, it is a histogram or it is refused."""
    content = {"uppers": [1.0, 2.0], "counts": [3.5, -1.0], "noise": 2.0}
    assert ErrorHistogram.from_dict(content).to_dict() == content
    with pytest.raises(ValueError, match="errors"):
        ErrorHistogram.from_dict({**content, **change})


def test_errors_without_an_evaluation_in_the_ledger_are_refused(
    cases: dict[str, tuple[Model, SiteData]], tmp_path: Path
) -> None:
    """A file cannot name errors that nothing was paid for."""
    model, _ = cases["regression"]
    replace(model, errors=ErrorHistogram((1.0, 2.0), (3.0, 1.0), 1.0)).save(tmp_path / "model.json")
    with pytest.raises(ModelError) as caught:
        Model.load(tmp_path / "model.json")
    assert caught.value.code == "model-invalid"


# By site --------------------------------------------------------------------------------------------------------------


def answer_by_site(
    model: Model, data: SiteData, epsilon: float = 1.0, site: str = "b", noise: NoiseSource | None = None,
    *, is_allowed: bool = True,
) -> tuple[list[tuple[Query, IntVector]], NDArray[np.int64]]:  # fmt: skip
    """The queries of an evaluation by site with a node's answers, and the last one by site."""
    program = evaluate_ensemble(model.plan, model.ensemble, epsilon, 1e-5, by=("site",), sites=("a", "b", "c"))
    node = EvaluationNode(site, data, model.plan, 1, noise, shows=lambda query: is_allowed)
    found, query = [], next(program)
    for _ in range(3):
        answer = node.answer(query)
        found.append((query, answer))
        if len(found) < 3:
            query = program.send(answer)
    return found, found[-1][1].reshape(3, -1)


@settings(max_examples=25, deadline=None)
@given(record=st.integers(0, 59), label=st.sampled_from([*LABELS, "count"]))
def test_a_record_moves_a_sites_figures_no_further_than_its_own_noise_is_made_for(record: int, label: str) -> None:
    """Under the noise a site's block is what it adds to the detail, and one record moves it by the sensitivity at most.

    The noise is that of the accountants for this sensitivity, on each block whole: no other site is counted on.
    """
    model, data = small_case(label)
    queries, blocks = answer_by_site(model, data, noise=NoNoise(0))
    (outline, _), (detail, whole), (query, _) = queries
    assert (blocks[1] == whole).all() and not blocks[[0, 2]].any()
    others = take(data, np.delete(np.arange(60), record))
    node = EvaluationNode("b", others, model.plan, 1, NoNoise(0), shows=lambda query: True)
    node.answer(outline)
    moved = (blocks.ravel() - node.answer(query)).astype(object)
    assert 0 < (moved * moved).sum() <= query.sensitivity_squared == detail.sensitivity_squared
    assert np.abs(moved).max() <= query.bound
    for n_shares in (None, 1, 7):
        noise, squared = noise_of(query, n_shares), query.sensitivity_squared
        assert noise.event == DiscreteGaussianEvent.from_integers(noise.site_sigma, squared, query.length)
        assert (noise.central_sigma, noise.share_sigma, noise.variance) == (0, 0, noise.site_sigma**2)


@pytest.mark.parametrize("label", every(2, [*LABELS, "count"]))
def test_a_sites_figures_leave_with_its_whole_noise(label: str) -> None:
    """What stands in its block is its sums with fresh noise of the ledger's size; other blocks are empty."""
    model, data = small_case(label)
    exact, residues = answer_by_site(model, data, noise=NoNoise(0))[1][1], []
    for _ in range(12):
        queries, blocks = answer_by_site(model, data)
        # Bins depend on the outline, which has no noise here: nobody has added any.
        residues.append(blocks[1] - exact)
        assert not blocks[[0, 2]].any()
    squares = np.square(np.array(residues, dtype=np.float64)) / noise_of(queries[2][0]).site_sigma ** 2
    low, high = chi2.ppf([1e-6, 1 - 1e-6], squares.size)
    assert low < squares.sum() < high


def test_a_site_that_does_not_allow_it_leaves_its_block_empty() -> None:
    """As does one that is not among the sites asked, whatever its rows are; and there are no figures without noise."""
    model, data = small_case("binary")
    assert not answer_by_site(model, data, is_allowed=False)[1].any()
    assert not answer_by_site(model, data, site="d")[1].any()
    with pytest.raises(PrivacyError, check=coded("out-of-range")):
        answer_by_site(model, data, math.inf)
    queries = answer_by_site(model, data)[0]
    for changed in ({"noise_multiplier": 0.0}, {"sites": ("a", "b", "b")}, {"sensitivity_squared": 1}):
        node = EvaluationNode("b", data, model.plan, shows=lambda query: True)
        node.answer(queries[0][0])
        with pytest.raises(RemoteProtocolError, check=coded("query-refused")):
            node.answer(replace(queries[2][0], **changed))


@dataclass(frozen=True, kw_only=True, eq=False)
class WardCounts(SiteQuery, EvaluationQuery):
    """How many rows a site has, as another package might ask for them."""

    def answer_alone(self, site: ScoredSite) -> IntVector:
        return np.array([site.records.n_records * UNIT])

    def norm_squared(self) -> int:
        return 1

    def fits(self, plan: Plan) -> bool:
        return self.length == len(self.sites)


def test_all_know_another_question_by_site() -> None:
    """It has the site's noise before it leaves, none in the sum, and nothing of a site whose owner allows none."""
    model, data = small_case("binary")
    query = WardCounts(
        purpose=WardCounts.purpose_of(3, "wards"), length=2, bound=UNIT, sensitivity_squared=UNIT**2,
        noise_multiplier=2.0, sites=("a", "b"), unit=UNIT,
    )  # fmt: skip
    noise = noise_of(query, 2)
    assert (noise.share_sigma, noise.central_sigma, noise.site_sigma) == (0, 0, 2 * UNIT)
    expected = expect_round(query, model.plan, NoiseMode.DISTRIBUTED, noise.variance, 3, bytes(32))
    assert expected.noise.variance == 0 < noise.variance
    other = replace(query, purpose=ScoreHistogram.purpose_of(3, "wards"))
    policy = parse_policy('version = 1\ndata_set = "d"\nmax_epsilon = 9\ndelta = 1e-5\nquery_kinds = ["WardCounts"]')
    open_policy = replace(policy, site_figures=True)
    for own in (policy, open_policy):
        own.check_query(other)
    shown = [own.shows_figures(each) for own in (policy, open_policy) for each in (query, other)]
    assert shown == [False, False, True, False]
    for own, source, found in ((policy, SeededNoise(1), 0), (open_policy, NoNoise(0), data.n_records * UNIT)):
        node = EvaluationNode("b", data, model.plan, 1, source, shows=own.shows_figures)
        assert node.answer(query).tolist() == [0, found]
    node = EvaluationNode("b", data, model.plan, 1, SeededNoise(1), shows=open_policy.shows_figures)
    assert node.answer(query)[0] == 0 != node.answer(query)[1] - data.n_records * UNIT


@pytest.mark.parametrize("noise", ["server", "distributed"])
def test_figures_by_site_are_one_release_and_keep_the_promise(noise: str) -> None:
    """Whoever adds the noise to other releases; the report says whose noise it is, and intervals count it."""
    plan = make_plan("regression", model={"n_trees": 1}, privacy={"noise": noise})
    sites = {name: make_data(plan, 20, seed) for seed, name in enumerate("abc")}
    model = train(plan, sites, noise=SeededNoise(1))
    found = evaluate_federated(model, sites, epsilon=5.0, noise=SeededNoise(1), by=("site",))
    last, noised = found.model.ledger.releases[-1], found.evaluation.groups["site"]
    assert (last.kind, last.cohort, found.evaluation.left_out) == ("SiteSums", None, ())
    assert 0.99 * 5 < found.cost.epsilon <= 5.0
    assert "own site" in found.model.report.trust and found.model.report.guarantee == "void"
    assert {own.n_records.noise_error for own in noised.values()} == {last.sigma / UNIT}
    assert build_report(found.model.ledger, found.model.report) == found.model.report


def test_a_model_of_the_local_model_has_no_figures_by_site() -> None:
    """Its promise is of each record by itself, and how many rows a site has would be needed to read them."""
    plan = make_plan(privacy={"noise": "local"}).with_structure_seed(1)
    with pytest.raises(PrivacyError, check=coded("noise-mode-unsupported")):
        EvaluationTask(plan, b"", 1.0, 1e-5, 1, "local", ("site",), ("a", "b"))


def test_a_column_that_is_called_site_is_a_column() -> None:
    """Where a plan has such a column, its groups are asked for, as of any other."""
    feature = {"name": "site", "type": "categorical", "categories": ["a", "b"]}
    for features, kind in (([feature], "GroupedSums"), ([{**feature, "name": "ward"}], "SiteSums")):
        plan = make_plan(features=features).with_structure_seed(1)
        task = EvaluationTask(plan, b"", 1.0, 1e-5, 1, "distributed", ("site",), ("north", "south"))
        assert set(task.schedule.kinds) == {"ScoreHistogram", kind}
