"""The last release of numbers: what a record adds to it, which line is made of it, and what it keeps a model from."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.client.node import SeededSampling
from hedgerow.data.binned import SiteData
from hedgerow.errors import PlanError
from hedgerow.local.training import train
from hedgerow.methods.line import (
    FIRST_OCTAVE,
    LINE_LENGTH,
    MAX_DOUBLINGS,
    MAX_LINE_SLOPE,
    N_OCTAVES,
    LineSums,
    SpreadSums,
    ask_line,
    fit_line,
)
from hedgerow.methods.registry import resolve
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.training.presets import PRESETS, apply_preset
from tests.builders import make_data, make_plan, take
from tests.methods.test_numbers import node_with
from tests.tiers import all_but, every

UNIT = 2**14
OURS = [name for name, preset in PRESETS.items() if preset.private and name not in ("hedgerow", "ldp")]


def record_sums(query: LineSums, label: int, score: int) -> list[int]:
    """What one record adds, as the definition reads, in exact fractions."""
    distance = score - query.centre
    octave = min(max(abs(distance).bit_length(), FIRST_OCTAVE), FIRST_OCTAVE + N_OCTAVES - 1)
    near = Fraction(label - query.centre, 2**16) * 2**query.doublings
    u = math.trunc(max(Fraction(-1), min(Fraction(1), near)) * UNIT)
    w = math.trunc(max(Fraction(-1), min(Fraction(1), Fraction(distance, 2**octave))) * UNIT)
    found = [UNIT // 2, u, *[0] * (3 * N_OCTAVES)]
    for part, value in enumerate((Fraction(u * w, UNIT), Fraction(w, 2), Fraction(w * w, UNIT))):
        found[2 + part * N_OCTAVES + octave - FIRST_OCTAVE] = math.trunc(value)
    return found


@settings(max_examples=80, deadline=None)
@given(
    data=st.data(), doublings=st.integers(0, MAX_DOUBLINGS), centre=st.integers(-(2**16), 2**16),
    rows=st.integers(1, 3),
)  # fmt: skip
def test_sums_are_those_of_their_definition(data: st.DataObject, doublings: int, centre: int, rows: int) -> None:
    """Integer for integer, and one unit's rows never add more than the bound and the sensitivity that are stated."""
    plan = make_plan("regression", {}, {"unit": "patient", "max_rows_per_unit": rows} if rows > 1 else {})
    edges = st.sampled_from([-(2**16), 2**16, 0, 1, -1, 2**31 - 1, -(2**31), centre])
    labels = data.draw(st.lists(st.integers(-(2**16), 2**16), min_size=1, max_size=6))
    scores = data.draw(st.lists(st.integers(-(2**22), 2**22) | edges, min_size=len(labels), max_size=len(labels)))
    query = ask_line(plan, 0, 1.0, centre, doublings)
    parts = [record_sums(query, label, score) for label, score in zip(labels, scores, strict=True)]
    answer = node_with(plan, labels, scores).answer(query)
    assert answer.tolist() == [sum(column) for column in zip(*parts, strict=True)] and len(answer) == LINE_LENGTH
    for part in parts:
        assert max(abs(number) for number in part) <= query.bound
        assert sum((rows * number) ** 2 for number in part) <= query.sensitivity_squared


@settings(max_examples=40, deadline=None)
@given(labels=st.lists(st.integers(-(2**16), 2**16), min_size=1, max_size=5), centre=st.integers(-(2**16), 2**16))
def test_a_spread_about_a_centre_looks_at_no_score(labels: list[int], centre: int) -> None:
    """At most 1.0 from each record."""
    plan = make_plan("regression")
    query = SpreadSums(
        purpose=SpreadSums.purpose_of(0, "spread"), length=1, bound=UNIT, sensitivity_squared=UNIT**2,
        noise_multiplier=1.0, centre=centre,
    )  # fmt: skip
    expected = sum(min(abs(label - centre) * UNIT // 2**16, UNIT) for label in labels)
    for scores in ([0] * len(labels), [2**20] * len(labels)):
        assert node_with(plan, labels, scores).answer(query).tolist() == [expected]


def exact_answer(label: Any, score: Any, doublings: int = 0) -> Any:
    """An answer without noise over labels and scores about a centre of 0."""
    u = np.clip(label * 2**doublings, -1, 1)
    units = np.abs(np.rint(score * 2**16)).astype(np.int64)
    octave = np.clip(np.frexp(units.astype(float))[1], FIRST_OCTAVE, FIRST_OCTAVE + N_OCTAVES - 1)
    w = np.clip(np.sign(score) * units / 2.0**octave, -1, 1)
    parts = [np.bincount(octave - FIRST_OCTAVE, part, N_OCTAVES) for part in (u * w, w / 2, w * w)]
    whole = np.array([len(label) / 2, u.sum()])
    return np.rint(np.concatenate([whole, *parts]) * UNIT).astype(np.int64)


@pytest.mark.parametrize("size", [0.003, 0.05, 0.4, 6.0])
@pytest.mark.parametrize("slope", [0.0, 0.15, 0.8, 1.3])
def test_without_noise_it_is_the_line_through_the_records(size: float, slope: float) -> None:
    """Of scores of any size, small and large ones alike, and off the centre."""
    random = np.random.default_rng(3)
    score = random.normal(size / 3, size, 20_000)
    doublings = 0 if slope * size > 0.05 else 3
    label = np.clip(0.02 + slope * score, -1 / 2**doublings, 1 / 2**doublings)
    inside = np.abs(label) < 1 / 2**doublings
    constant, found = fit_line(exact_answer(label[inside], score[inside], doublings), 0.0, doublings)
    assert found == pytest.approx(slope, abs=2e-3 * max(1, 0.05 / size))
    assert constant == pytest.approx(0.02, abs=2e-3)


@settings(max_examples=200, deadline=None)
@given(
    released=st.lists(st.integers(-(2**62), 2**62), min_size=LINE_LENGTH, max_size=LINE_LENGTH),
    sigma=st.sampled_from([0.0, 1.0, 1e6, 1e15]),
    doublings=st.integers(0, MAX_DOUBLINGS),
)
def test_any_release_gives_a_line(released: list[int], sigma: float, doublings: int) -> None:
    """Nothing overflows, and no slope turns scores around."""
    constant, slope = fit_line(np.array(released, dtype=np.int64), sigma, doublings)
    assert math.isfinite(constant) and 0 <= slope <= MAX_LINE_SLOPE


def test_noise_is_taken_out_and_signal_is_left() -> None:
    """Scores that are noise, far larger than labels, leave hardly anything; scores of use stay about as they are."""
    random = np.random.default_rng(5)
    sigma, lost, kept = 100 * UNIT, [], []
    for _ in range(40):
        label = random.normal(0, 0.2, 10_000)
        for score, found in ((random.normal(0, 1.0, 10_000), lost), (label + random.normal(0, 0.2, 10_000), kept)):
            released = exact_answer(label, score) + np.rint(random.normal(0, sigma, LINE_LENGTH)).astype(np.int64)
            constant, slope = fit_line(released, sigma, 0)
            found.append(1 - np.mean((label - constant - slope * score) ** 2) / label.var())
    assert np.mean(lost) > -0.02 and min(lost) > -0.15
    assert np.mean(kept) > 0.45


def narrow(plan: Plan, n: int, seed: int) -> SiteData:
    """Labels near one of their bounds, whose spread is a twentieth of the range's half."""
    rows = make_data(plan, n, seed)
    label = np.random.default_rng(seed).normal(-0.8, 0.05, n) + 0.0002 * rows.codes[1]
    return SiteData(rows.codes, np.rint(np.clip(label, -1, 1) * 2**16).astype(np.int32))


@pytest.mark.parametrize("name", every(4, OURS))
def test_no_method_is_far_below_the_mean(name: str) -> None:
    """Each was, by tens of the label's variance, but for those that begin with means; and each keeps its promise."""
    n = 3000
    plan = apply_preset(PRESETS[name], make_plan("regression", None, {"epsilon": 3.0, "n_records": n}))
    scores = []
    for seed in range(2):
        rows = narrow(plan, n, seed)
        sampling = {"one": SeededSampling(seed, np.arange(n))}
        model = train(plan, {"one": rows}, noise=SeededNoise(seed, exact=False), sampling=sampling)
        assert model.report.epsilon <= 3.0
        label = rows.labels / 2**16
        found = np.clip(model.ensemble.scores(rows.codes)[0], -1, 1)
        scores.append(1 - np.mean((label - found) ** 2) / label.var())
    assert np.mean(scores) > -0.15


@pytest.mark.parametrize("name", all_but(["s-gbdt-samples"], OURS))
def test_whoever_holds_the_rows_the_model_is_the_same(name: str) -> None:
    """One site or three, to the byte; and as many releases as the plan says."""
    table = apply_preset(PRESETS[name], make_plan("regression", None, {"n_records": 300})).to_dict()
    batch = table["model"]["batch_size"]
    fewer = {} if name == "adassp" else {"n_trees": 4, "batch_size": min(batch, 2) if isinstance(batch, int) else batch}
    plan = Plan.from_dict({**table, "model": {**table["model"], **fewer}})
    rows = make_data(plan, 300, 4)
    files = []
    for parts in ([np.arange(300)], [np.arange(first, 300, 3) for first in range(3)]):
        sites = {f"site-{number}": take(rows, part) for number, part in enumerate(parts)}
        sampling = {f"site-{number}": SeededSampling(3, part) for number, part in enumerate(parts)}
        model = train(plan, sites, noise=SeededNoise(1, exact=False), sampling=sampling)
        settings_of = resolve(plan)
        assert len(model.ledger) == settings_of.schedule(plan).n_rounds
        fitted = model.ensemble.fitted
        assert fitted is not None
        files.append((fitted.values.tobytes(), [release.to_dict() for release in model.ledger.releases]))
    assert files[0] == files[1]


@pytest.mark.parametrize("name", ["dp-ebm-newton", "dp-rf", "s-gbdt", "s-gbdt-linear", "adassp"])
def test_a_plan_may_do_without(name: str) -> None:
    """With calibration = "none" nothing is asked after the last tree."""
    plan = apply_preset(PRESETS[name], make_plan("regression"))
    table = plan.to_dict()
    without = Plan.from_dict({**table, "model": {**table["model"], "calibration": "none"}})
    for each, n_lines in ((plan, 1), (without, 0)):
        model = train(each, {"one": make_data(each, 60, 1)}, noise=SeededNoise(1, exact=False))
        assert [release.kind for release in model.ledger.releases].count("LineSums") == n_lines


def test_a_published_start_is_within_reach() -> None:
    """start = "none" begins at the middle of the bounds, with no release but those of trees."""
    table = apply_preset(PRESETS["dp-tr-newton"], make_plan("regression")).to_dict()
    plan = Plan.from_dict({**table, "model": {**table["model"], "start": "none", "n_trees": 3}})
    model = train(plan, {"one": make_data(plan, 60, 1)}, noise=SeededNoise(1, exact=False))
    assert {release.kind for release in model.ledger.releases} == {"LeafSums"}
    with pytest.raises(PlanError, match="start"):
        Plan.from_dict({**table, "model": {**table["model"], "start": "linear"}})


@pytest.mark.parametrize("label", ["regression", "count"])
@pytest.mark.parametrize("interaction", ["auto", "adaptive", "cyclical", "random"])
def test_averaged_numbers_end_with_a_line_in_any_order(label: str, interaction: str) -> None:
    """Means over trees say far too little, whatever order features have; `calibration = "none"` leaves them so."""
    for calibration, expected in (("auto", "line"), ("none", "none")):
        model = {"weight_update": "averaging", "interaction": interaction, "calibration": calibration}
        assert getattr(resolve(make_plan(label, model)), "calibration", "") == expected
