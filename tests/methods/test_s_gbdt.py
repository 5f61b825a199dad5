"""S-GBDT as a whole: what its plan may say, what it asks, what it costs, and that sites do not show."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.client.node import Node, SeededSampling, SystemSampling, seed_samplings
from hedgerow.data.binned import SiteData
from hedgerow.errors import PlanError, PrivacyError, UsageError
from hedgerow.local.training import evaluate_federated, train
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.methods.linear_start import LabelSums
from hedgerow.methods.registry import program_for, resolve
from hedgerow.methods.s_gbdt.trees import SampledLeafSums, accounts
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import get_accountant, mu_of
from hedgerow.privacy.events import FilteredGaussianEvent, SampledGaussianEvent
from hedgerow.privacy.noise import SeededNoise, SystemNoise
from hedgerow.protocol.queries import SAMPLING_STEPS, Query
from hedgerow.training.presets import apply_preset, find_preset
from hedgerow.trees.importances import find_importances
from hedgerow.trees.leaf_sums import LeafSums
from tests.builders import make_data, make_plan, s_gbdt_plan, take
from tests.models.probes import export_checked

N_RECORDS = 60
LABELS = ["binary", "regression"]


def five_trees(
    label: str = "binary", model: dict[str, Any] | None = None, privacy: dict[str, Any] | None = None, **section: Any
) -> Plan:
    """A small plan of S-GBDT; `section` goes to [s_gbdt]."""
    return s_gbdt_plan(label, {"n_trees": 5, "calibration": "none", **(model or {})}, privacy, **section)


def divided(data: SiteData, n_sites: int) -> tuple[dict[str, SiteData], dict[str, Any]]:
    """Rows over sites in turn, and the samplers that know each row by its number."""
    owner = np.arange(data.n_records) % n_sites
    rows = {f"site-{number}": np.flatnonzero(owner == number) for number in range(n_sites)}
    sites = {site: take(data, numbers) for site, numbers in rows.items()}
    return sites, {site: SeededSampling(3, numbers) for site, numbers in rows.items()}


def queries_of(plan: Plan) -> list[Query]:
    """What a plan asks when every answer is zero."""
    program, found = program_for(plan), []
    try:
        query = next(program)
        while True:
            found.append(query)
            query = program.send(np.zeros(query.length, dtype=np.int64))
    except StopIteration:
        return found


# The plan ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "model", "privacy", "section", "field"),
    [
        ("multiclass", {}, {}, {}, "label.type"),
        ("binary", {}, {"unit": "patient", "max_rows_per_unit": 2}, {}, "privacy.max_rows_per_unit"),
        ("binary", {}, {}, {"individual_filter": False, "extra_rounds": 3}, "s_gbdt.extra_rounds"),
        ("binary", {}, {}, {"closing_rounds": 2}, "s_gbdt.closing_rounds"),
        ("binary", {"n_trees": 4}, {}, {"extra_rounds": 9, "closing_rounds": 5}, "s_gbdt.closing_rounds"),
        ("binary", {"weight_update": "gradient"}, {}, {}, "model.weight_update"),
        ("binary", {"joint_clip": 0.5}, {}, {}, "model.joint_clip"),
        ("binary", {"split_candidates": "iterative_hessian"}, {}, {}, "model.split_candidates"),
        ("binary", {}, {}, {"subsampling_ratio": 0}, "s_gbdt.subsampling_ratio"),
        ("binary", {}, {}, {"subsampling_ratio": 1.1}, "s_gbdt.subsampling_ratio"),
        ("binary", {}, {}, {"label_clip": 0}, "s_gbdt.label_clip"),
        ("binary", {}, {}, {"support_share": 1}, "s_gbdt.support_share"),
    ],
)
def test_a_plan_that_would_not_be_done_is_refused(
    label: str, model: dict[str, Any], privacy: dict[str, Any], section: dict[str, Any], field: str
) -> None:
    """What the algorithm cannot promise or does not read is an error that names the field."""
    with pytest.raises(PlanError) as refused:
        five_trees(label, model, privacy, **section)
    assert refused.value.what.startswith(field)


def test_the_section_belongs_to_the_algorithm() -> None:
    """Other algorithms refuse it, and their plans' digests do not know of it."""
    table = make_plan().to_dict()
    assert "s_gbdt" not in table
    with pytest.raises(PlanError):
        Plan.from_dict({**table, "s_gbdt": {"subsampling_ratio": 0.5}})
    plan = five_trees(subsampling_ratio=0.5)
    assert Plan.from_dict(plan.to_dict()) == plan
    assert plan.digest != five_trees(subsampling_ratio=0.4).digest


def test_a_preset_replaces_the_algorithm() -> None:
    """A named method takes nothing over from a plan of S-GBDT, and does not stumble over its options."""
    plan = apply_preset(find_preset("dp-tr-newton"), five_trees(subsampling_ratio=0.5))
    assert plan.model.algorithm == "boosting" and "s_gbdt" not in plan.to_dict()


# The promise ---------------------------------------------------------------------------------------------------------


@settings(max_examples=12)
@given(
    epsilon=st.sampled_from([0.1, 1.0, 8.0]),
    delta=st.sampled_from([1e-3, 1e-6]),
    ratio=st.sampled_from([0.05, 0.5, 1.0]),
    share=st.sampled_from([0.0, 0.2]),
    kept=st.booleans(),
    label=st.sampled_from(["binary", "regression"]),
)
def test_a_run_keeps_the_promise_and_wastes_little(
    epsilon: float, delta: float, ratio: float, share: float, kept: bool, label: str
) -> None:
    """The ledger of a real run costs no more than the plan says, and nearly that; so does what was planned."""
    privacy = {"epsilon": epsilon, "delta": delta, "n_records": N_RECORDS}
    section = {"subsampling_ratio": ratio, "initial_score_share": share, "individual_filter": kept}
    plan = five_trees(label, None, privacy, **section)
    data = make_data(plan, N_RECORDS, 1)
    report = train(plan, {"one": data}, noise=SeededNoise(1, exact=False)).report
    assert 0.995 * epsilon < report.epsilon_gdp <= epsilon
    # Without samples the account is exact, and Renyi's is the second opinion.
    assert (report.epsilon_rdp > report.epsilon_gdp) if ratio == 1 else (report.epsilon_rdp == report.epsilon_gdp)
    planned = get_accountant("gdp").epsilon(resolve(plan).schedule(plan).events, delta)
    assert report.epsilon_gdp * (1 - 1e-9) <= planned <= epsilon
    kind = FilteredGaussianEvent if kept else SampledGaussianEvent
    assert sum(type(event) is kind for event in resolve(plan).schedule(plan).events) == 1


def test_the_report_names_the_account() -> None:
    """No line of it calls the Renyi bound of a sampled run exact."""
    plan = five_trees()
    text = train(plan, {"one": make_data(plan, 30, 1)}, noise=SystemNoise(os.urandom)).report.text()
    assert "HOLDS" in text and "Renyi" in text and "exact accounting" not in text


@pytest.mark.parametrize("ratio", [0.1, 1.0])
@pytest.mark.parametrize("closing", [0, 3])
def test_extra_rounds_cost_nothing_under_a_filter(closing: int, ratio: float) -> None:
    """The same noise and the same epsilon for three times the rounds: the filter pays, record by record."""
    few = five_trees(subsampling_ratio=ratio)
    many = five_trees(extra_rounds=10, closing_rounds=closing, subsampling_ratio=ratio)
    decided = [resolve(plan) for plan in (few, many)]
    assert decided[0].noise_multiplier == decided[1].noise_multiplier
    costs = [
        get_accountant("gdp").epsilon(chosen.schedule(plan).events, plan.privacy.delta)
        for plan, chosen in zip((few, many), decided, strict=True)
    ]
    # Regular rounds are calibrated with a margin of 1e-7 that the budget does not use.
    assert costs[0] == pytest.approx(costs[1], rel=1e-6) and max(costs) <= few.privacy.epsilon
    assert decided[1].schedule(many).n_rounds == decided[0].schedule(few).n_rounds + 10 == 16


@pytest.mark.parametrize("kept", [True, False])
def test_without_samples_the_noise_is_what_exact_accounting_asks_for(kept: bool) -> None:
    """sum of 1 / z² = mu², the filter's budget is that of mu², and Renyi accounting would ask for a tenth more."""
    section = {"subsampling_ratio": 1.0, "individual_filter": kept}
    plan = five_trees("binary", None, {"epsilon": 0.3, "delta": 1e-5}, **section)
    decided = resolve(plan)
    weight = decided.s_gbdt.n_regular_rounds / decided.noise_multiplier**2 + decided.s_gbdt.initial_noise_multiplier**-2
    assert weight == pytest.approx(mu_of(0.3, 1e-5) ** 2, rel=1e-5)
    if kept:
        share = decided.s_gbdt.n_regular_rounds / decided.noise_multiplier**2
        assert 2 * decided.s_gbdt.budget / decided.s_gbdt.order == pytest.approx(share, rel=1e-5)
    by_renyi = five_trees("binary", None, {"epsilon": 0.3, "delta": 1e-5, "accountant": "rdp"}, **section)
    assert resolve(by_renyi).noise_multiplier > 1.08 * decided.noise_multiplier
    assert train(plan, {"one": make_data(plan, 40, 1)}, noise=SeededNoise(1)).report.epsilon_gdp <= 0.3


@pytest.mark.slow
def test_samples_are_composed_exactly_on_request_where_the_filter_cannot_act() -> None:
    """By "pld" with 5 to 12 % less noise; extra rounds let the filter act, which has a bound at one order only."""
    privacy = {"epsilon": 0.5, "delta": 1e-5}
    renyi, exact, acting = (
        resolve(five_trees("binary", {"n_trees": 40}, {**privacy, "accountant": by}, extra_rounds=more))
        for by, more in (("gdp", 0), ("pld", 0), ("pld", 5))
    )
    assert 0.88 < exact.noise_multiplier / renyi.noise_multiplier < 0.95
    assert acting.noise_multiplier == renyi.noise_multiplier
    plan = five_trees("binary", {"n_trees": 40}, {**privacy, "accountant": "pld"})
    assert 0.49 < get_accountant("pld").epsilon(exact.schedule(plan).events, 1e-5) <= 0.5


def test_the_general_bound_needs_more_noise() -> None:
    """The paper's amplification theorem is for any mechanism; what is exact for the Gaussian needs less."""
    privacy = {"epsilon": 8.0}
    tight, general = (
        resolve(five_trees("binary", None, privacy, bound=bound)).noise_multiplier for bound in ("tight", "general")
    )
    assert general > 1.05 * tight
    # Its tail does not fall with the noise: below some epsilon it has no answer, and says so.
    with pytest.raises(PrivacyError) as refused:
        resolve(five_trees("binary", {"n_trees": 500}, {"epsilon": 0.05}, bound="general"))
    assert refused.value.code == "calibration-failed"


def test_a_plan_without_privacy_runs_without_noise_or_filter() -> None:
    """Epsilon = infinity: the report says that nothing is promised."""
    plan = five_trees("regression", None, {"epsilon": math.inf})
    assert all(query.noise_multiplier == 0 for query in queries_of(plan))
    report = train(plan, {"one": make_data(plan, 50, 1)}, noise=SeededNoise(1)).report
    assert report.epsilon == math.inf and report.guarantee == "void"


# What is asked -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("label", "splits"), list(itertools.product(LABELS, ["uniform", "cyclical"])))
def test_the_queries_say_what_is_done(label: str, splits: str) -> None:
    """One question for the initial score, one per tree; each tree adds the last one's values; the chance is rounded
    down to what the sampler can do."""
    plan = five_trees(label, None, None, splits=splits, subsampling_ratio=0.3)
    first, *rounds = queries_of(plan)
    assert isinstance(first, LabelSums) and first.length == 2
    assert len(rounds) == 5
    for number, query in enumerate(rounds):
        assert isinstance(query, SampledLeafSums) and query.ensemble_size == number
        assert query.update is not None and query.update.trees.n_trees == 1 and query.trees.n_trees == 1
        assert query.sampling_threshold == math.floor(0.3 * SAMPLING_STEPS) and query.sampling_rate <= 0.3
        assert query.filter is not None and query.filter.costs[-1] > 0
    assert not isinstance(queries_of(five_trees(label, None, None, initial_score_share=0.0))[0], LabelSums)


def test_uniform_splits_are_drawn_by_their_weights_over_the_whole_range() -> None:
    """Numeric features weigh r against 1, values follow the public range, and missing values go either way."""
    plan = five_trees("binary", {"n_trees": 300, "max_depth": 3}, None, numeric_weight=3.0)
    trees = [query.trees for query in queries_of(plan) if isinstance(query, LeafSums)]
    features = np.concatenate([batch.feature.ravel() for batch in trees])
    shares = np.bincount(features, minlength=4) / len(features)
    assert shares == pytest.approx(np.array([3, 3, 1, 3]) / 10, abs=0.035)
    # "change" has the range [-1, 1]: its thresholds lie on both sides of the middle equally often.
    thresholds = np.concatenate([batch.threshold.ravel() for batch in trees])[features == 3]
    assert abs(np.mean(thresholds > np.median(np.arange(254))) - 0.5) < 0.06
    missing = np.concatenate([batch.goes_left[:, :, 254].ravel() for batch in trees])[features == 3]
    assert 0.4 < missing.mean() < 0.6


def test_the_initial_score_is_the_mean_label() -> None:
    """With hardly any noise every score begins at the mean of the labels, or at the log-odds of the class."""
    for label in ("regression", "binary"):
        privacy = {"epsilon": 1e5, "n_records": 4000}
        plan = five_trees(label, {"n_trees": 1, "leaf_clip": 1e-6}, privacy, initial_score_share=0.5)
        data = make_data(plan, 4000, 5)
        if label == "binary":
            data = SiteData(data.codes, (np.arange(4000) % 5 == 0).astype(np.int32))
        scores = train(plan, {"one": data}, noise=SeededNoise(2)).ensemble.scores(data.codes)[0]
        expected = data.labels.mean() / SCORE_UNIT if label == "regression" else math.log(0.2 / 0.8)
        assert scores.std() < 1e-4 and scores.mean() == pytest.approx(expected, abs=0.01)


def test_leaf_values_are_sums_over_supports() -> None:
    """Algorithm 4, line by line, from the releases that the program was given."""
    plan = five_trees("regression", {"n_trees": 1, "leaf_ridge": 7.0, "leaf_clip": 1e5}, None)
    program = program_for(plan)
    next(program)
    query = program.send(np.zeros(2, dtype=np.int64))
    loss = resolve(plan).loss(plan)
    supports = np.array([100.0, 3.0, -50.0, 7.5])
    gradients = np.array([20.0, 1.0, 2.0, -3.0])
    released = np.rint(np.stack([gradients, supports], axis=1) * loss.scales).astype(np.int64).ravel()
    assert query.length == 8
    with pytest.raises(StopIteration) as finished:
        program.send(released)
    values = finished.value.value.fitted.values[1, :, 0] / SCORE_UNIT
    assert values == pytest.approx(-0.1 * gradients / np.maximum(supports, 7.0), abs=1e-4)


# Samples -------------------------------------------------------------------------------------------------------------


def test_samples_are_poisson_and_secret() -> None:
    """Each record with the chance asked for, anew for each call, from the bytes given and nothing else."""
    source = SystemSampling(os.urandom)
    threshold = SAMPLING_STEPS // 10
    drawn = np.array([source.draw(threshold, 2000, "p") for _ in range(50)])
    assert abs(drawn.mean() - 0.1) < 0.006 and not source.seeded
    assert len({row.tobytes() for row in drawn}) == 50
    # Independent: the variance of a sample's size is that of a binomial.
    assert 60 < drawn.sum(axis=1).var() < 420
    assert source.draw(SAMPLING_STEPS, 10, "p").all()
    fixed = SystemSampling(lambda n: b"\x00\x00\x00\x80" * (n // 4))
    assert not fixed.draw(2**31, 5, "p").any() and fixed.draw(2**31 + 1, 5, "p").all()


def test_seeded_samples_follow_the_records_number() -> None:
    """Whoever holds a record draws it alike; other purposes and seeds draw others."""
    whole = SeededSampling(1, np.arange(500)).draw(SAMPLING_STEPS // 3, 500, "p")
    parts = seed_samplings(1, {"a": 200, "b": 300})
    halves = np.concatenate([parts[site].draw(SAMPLING_STEPS // 3, n, "p") for site, n in (("a", 200), ("b", 300))])
    assert (whole == halves).all() and 0.25 < whole.mean() < 0.42
    others = [SeededSampling(1, np.arange(500)).draw(SAMPLING_STEPS // 3, 500, "q")]
    others.append(SeededSampling(2, np.arange(500)).draw(SAMPLING_STEPS // 3, 500, "p"))
    assert all(0.3 < (whole == other).mean() < 0.8 for other in others)


def test_two_runs_draw_other_samples_unless_they_are_seeded() -> None:
    """With the same noise, a node that draws from the system answers differently; a seeded one does not."""
    plan = five_trees("binary", None, None, subsampling_ratio=0.5)
    data = make_data(plan, 200, 1)

    def model(sampling: Any) -> bytes:
        return train(plan, {"one": data}, noise=SeededNoise(1), sampling=sampling).to_bytes()

    assert model(None) != model(None)
    assert model(seed_samplings(1, {"one": 200})) == model(seed_samplings(1, {"one": 200}))


def test_seeded_samples_under_real_noise_are_refused() -> None:
    """The report would promise amplification that a known seed does not give."""
    plan = five_trees()
    data = make_data(plan, 20, 1)
    with pytest.raises(UsageError) as refused:
        train(plan, {"one": data}, noise=SystemNoise(os.urandom), sampling=seed_samplings(1, {"one": 20}))
    assert refused.value.code == "sampling-seeded"


# Sites and streams ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["binary", "regression"])
@pytest.mark.parametrize("section", [{}, {"splits": "cyclical", "leaf_rule": "shrunk"}, {"individual_filter": False}])
def test_sites_do_not_show(label: str, section: dict[str, Any]) -> None:
    """The model file of one site, of three under masks, and of seven, byte for byte."""
    plan = five_trees(label, None, None, **section, subsampling_ratio=0.4)
    data = make_data(plan, N_RECORDS, 7)
    models: list[Model] = []
    for n_sites in (1, 3, 7):
        sites, sampling = divided(data, n_sites)
        models.append(train(plan, sites, noise=SeededNoise(3), sampling=sampling))
    assert models[0].to_bytes() == models[1].to_bytes() == models[2].to_bytes()


def test_sites_can_add_the_noise() -> None:
    """Algorithm 9 without a trusted coordinator: the events name the shares, and the promise holds."""
    plan = five_trees("binary", None, {"noise": "distributed"}, extra_rounds=3)
    data = make_data(plan, N_RECORDS, 7)
    sites, sampling = divided(data, 4)
    model = train(plan, sites, noise=SeededNoise(3), sampling=sampling)
    events = [event for event in model.ledger.events() if isinstance(event, FilteredGaussianEvent)]
    assert len(events) == 8 and all(event.n_shares >= 2 for event in events)
    assert model.report.epsilon <= plan.privacy.epsilon


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("splits", ["uniform", "cyclical"])
def test_the_model_is_like_any_other(tmp_path: Path, label: str, splits: str) -> None:
    """Saved and loaded, explained, exported to XGBoost: nothing downstream sees which algorithm made it."""
    plan = five_trees(label, {"max_depth": 3}, {"epsilon": 50.0}, splits=splits)
    data = make_data(plan, 300, 2)
    model = train(plan, {"one": data}, noise=SeededNoise(1))
    model.save(tmp_path / "model.json")
    assert Model.load(tmp_path / "model.json").to_bytes() == model.to_bytes()
    assert np.isfinite(np.array(find_importances(model.ensemble).values)).all()
    export_checked(model, tmp_path / "booster.json")


def test_an_evaluation_is_charged_to_the_model() -> None:
    """Full releases after sampled ones: the joint report is the Renyi bound of both, beyond either."""
    plan = five_trees("binary", None, {"epsilon": 1.0})
    data = make_data(plan, 80, 2)
    model = train(plan, {"one": data}, noise=SeededNoise(1))
    found = evaluate_federated(model, {"one": data}, epsilon=0.5, noise=SeededNoise(2))
    report = found.model.report
    assert max(model.report.epsilon, 0.5) < report.epsilon_gdp < 1.5 and report.epsilon_gdp == report.epsilon_rdp
    assert len(found.model.ledger) > len(model.ledger)


def test_trees_may_come_from_the_sites_nonces() -> None:
    """With a joint seed no party picks the trees; the model holds the seed that was drawn."""
    plan = five_trees("binary", {"structure_seed": "joint"})
    sites, _ = divided(make_data(plan, 60, 1), 3)
    models = [train(plan, sites, noise=SeededNoise(1)) for _ in range(2)]
    seeds = [model.plan.model.structure_seed for model in models]
    assert all(isinstance(seed, int) for seed in seeds) and seeds[0] != seeds[1]


def test_the_filter_leaves_records_out() -> None:
    """With noise next to none in the way, supports fall once the dearest records have spent their budget."""
    privacy = {"epsilon": 1e4, "n_records": 500}
    plan = five_trees("regression", None, privacy, extra_rounds=15, subsampling_ratio=1.0)
    data = make_data(plan, 500, 3)
    totals = []

    def watch(query: Query, _: Any) -> None:
        totals.append(query.purpose.round)

    model = train(plan, {"one": data}, noise=SeededNoise(1), progress=watch)
    weights = model.ensemble.leaf_weights
    assert weights is not None and len(totals) == 21
    sums = weights.sum(axis=1)[1:] / resolve(plan).loss(plan).scales[1]
    assert sums[:5] == pytest.approx(500, rel=0.05) and sums[6] < 470 and sums[-1] < 300


def test_a_missed_round_is_charged() -> None:
    """A node that was away charges its records all the same, and holds the scores that the others hold."""
    plan = five_trees("regression", None, None, subsampling_ratio=0.5)
    data = make_data(plan, 50, 3)
    decided = resolve(plan)
    there, away = (Node(name, data, plan, decided, 1, SeededSampling(1, np.arange(50))) for name in "ab")
    for query in queries_of(plan):
        there.answer(query)
        away.finish(query)
    assert (accounts(there.held) == accounts(away.held)).all() and accounts(there.held).min() > 0
    assert (there.held.records.scores == away.held.records.scores).all()


def test_charges_do_not_depend_on_the_sample() -> None:
    """The charge counts on the secret draw already: to charge only whom was drawn would give the discount twice."""
    plan = five_trees("regression", None, None, subsampling_ratio=0.3, extra_rounds=5)
    data = make_data(plan, 80, 3)
    decided = resolve(plan)
    nodes = [Node("a", data, plan, decided, 1, SeededSampling(seed, np.arange(80))) for seed in (1, 2)]
    answers = [[node.answer(query) for node in nodes] for query in queries_of(plan)]
    assert any((one != other).any() for one, other in answers)
    assert (accounts(nodes[0].held) == accounts(nodes[1].held)).all() and accounts(nodes[0].held).min() > 0


def test_a_stream_has_one_ledger_and_late_rows_a_whole_budget() -> None:
    """Rows that come later know the model so far, have spent nothing, and leave the account as it was."""
    plan = five_trees("regression", None, {"epsilon": 50.0}, extra_rounds=10, subsampling_ratio=1.0)
    data = make_data(plan, 120, 3)
    early, late = take(data, np.arange(80)), take(data, np.arange(80, 120))
    noise = SeededNoise(1)
    stream = train(plan, {"one": early}, noise=noise, arrivals={7: {"one": late}})
    assert len(stream.ledger) == 16 and stream.report.epsilon <= plan.privacy.epsilon
    before = train(plan, {"one": early}, noise=noise)
    assert stream.ensemble.fitted is not None and before.ensemble.fitted is not None
    same = (stream.ensemble.fitted.values == before.ensemble.fitted.values).all(axis=(1, 2))
    assert same[:7].all() and not same[7:].all()
    assert list(stream.ledger.events()) == list(before.ledger.events())


def test_late_rows_score_as_if_they_had_been_there() -> None:
    """A node that is given rows in the middle of a run holds the scores of one that had them from the start."""
    plan = five_trees("binary", None, None, individual_filter=False)
    data = make_data(plan, 90, 3)
    decided = resolve(plan)
    whole = Node("a", data, plan, decided)
    grown = Node("b", take(data, np.arange(50)), plan, decided)
    for number, query in enumerate(queries_of(plan)):
        if number == 3:
            grown.arrive(take(data, np.arange(50, 90)))
        values = query.update and dataclasses.replace(query.update, values=query.update.values + 1000 * number)
        asked = dataclasses.replace(query, update=values)
        whole.answer(asked)
        grown.answer(asked)
    assert (whole.held.records.scores == grown.held.records.scores).all() and grown.n_records == 90


def test_other_algorithms_take_no_stream() -> None:
    """Nothing else keeps an account per record, so rows in the middle of a run are refused."""
    plan = make_plan()
    data = make_data(plan, 30, 1)
    with pytest.raises(UsageError) as refused:
        train(plan, {"one": data}, noise=SeededNoise(1), arrivals={1: {"one": data}})
    assert refused.value.code == "stream-unsupported"
