"""The last release, of labels by score: what a record adds to it, what is made of it, and what the model keeps."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from hedgerow.client.node import Node
from hedgerow.data.binned import SiteData
from hedgerow.local.training import recalibrate_model, train
from hedgerow.losses.registry import loss_kind
from hedgerow.losses.tables import RECORD_NORM
from hedgerow.methods import score_bins
from hedgerow.methods.boosting.schedule import BoostingSettings, weigh_trees
from hedgerow.methods.registry import resolve
from hedgerow.methods.score_bins import (
    BINS_LENGTH,
    BINS_SENSITIVITY_SQUARED,
    CUT_RESIDUALS,
    MAX_SHIFT,
    MAX_STRETCH,
    MIN_STRETCH,
    N_BINS,
    NUMBERS_PRIOR,
    ODDS_PRIOR,
    WHOLE_RESIDUALS,
    Curve,
    KnownBins,
    LinePrior,
    ScoreBins,
    expect_class,
    expect_mean,
    expect_share,
    fit_score_line,
)
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from tests.builders import make_data, make_plan

PLACES = np.arange(-10, 10.25, 0.5)


ASKED = {
    is_number: ScoreBins(
        purpose=ScoreBins.purpose_of(0, "calibration"), length=BINS_LENGTH, bound=RECORD_NORM,
        sensitivity_squared=BINS_SENSITIVITY_SQUARED, noise_multiplier=1.0, is_number=is_number,
    )
    for is_number in (False, True)
}  # fmt: skip


def bins_of(scores: np.ndarray) -> np.ndarray:
    """The nearest place of each score, the one further from 0 between two: in exact fractions of a half."""
    nearest = np.floor(np.abs(scores) * 2 + 0.5) * np.sign(scores)
    return (np.clip(nearest, -20, 20) + 20).astype(int)


def odds_settings(plan: Plan) -> BoostingSettings:
    own = resolve(plan)
    assert isinstance(own, BoostingSettings) and own.calibration == "odds"
    return own


def question(plan: Plan) -> ScoreBins:
    asked = odds_settings(plan).calibration_of(plan).question(0)
    assert isinstance(asked, ScoreBins)
    return asked


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_no_record_is_lost_or_counted_twice_between_threads(n_threads: int) -> None:
    """Many rows, of which each thread has a stretch and goes through it block by block."""
    plan, draws, n = make_plan("binary", {"calibration": "auto"}), np.random.default_rng(n_threads), 140_001
    labels, scores = draws.integers(0, 2, n), draws.integers(-(2**20), 2**20, n)
    rows = SiteData(np.zeros((len(plan.features), n), np.uint8), labels.astype(np.int32))
    node = Node("site", rows, plan, resolve(plan), n_threads)
    node.held.records.scores[0] = scores
    counts, above = node.sum_rows(question(plan)).reshape(2, -1)
    bins = bins_of(scores / 2**16)
    assert counts.tolist() == (np.bincount(bins, minlength=N_BINS) * RECORD_NORM).tolist()
    assert above.tolist() == (np.bincount(bins, labels - 0.5, minlength=N_BINS) * RECORD_NORM).tolist()


@settings(max_examples=100, deadline=None)
@given(records=st.lists(st.tuples(st.booleans(), st.integers(-(2**24), 2**24)), min_size=1, max_size=6))
def test_a_record_counts_once_in_the_bin_of_its_own_score(records: list[tuple[bool, int]]) -> None:
    """As the definition reads; the squared norm of one record is the stated sensitivity, whatever its score."""
    plan = make_plan("binary", {"calibration": "auto"})
    labels, scores = [int(label) for label, _ in records], [score for _, score in records]
    node = Node("site", SiteData(np.zeros((len(plan.features), len(records)), np.uint8), np.array(labels, np.int32)),
                plan, resolve(plan))  # fmt: skip
    node.held.records.scores[0] = scores
    expected = np.zeros((2, N_BINS), dtype=np.int64)
    for label, score in zip(labels, scores, strict=True):
        own = int(bins_of(np.array(score / 2**16)))
        expected[:, own] += [RECORD_NORM, RECORD_NORM // 2 if label else -RECORD_NORM // 2]
    found = node.answer(question(plan))
    assert np.array_equal(found, expected.ravel())
    if len(records) == 1:
        assert int((found**2).sum()) == BINS_SENSITIVITY_SQUARED and len(found) == BINS_LENGTH


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(["regression", "count"]), step=st.sampled_from([2**9, 2**13, 2**15]),
    records=st.lists(
        st.tuples(st.integers(0, 60), st.integers(-(2**20), 2**20) | st.sampled_from([-(2**31), 2**31 - 1])),
        min_size=1, max_size=5,
    ),
    centre=st.integers(-(2**18), 2**18), doublings=st.integers(0, 8),
)  # fmt: skip
def test_a_number_counts_by_how_far_it_is_above_its_prediction(
    kind: str, step: int, records: list[tuple[int, int]], centre: int, doublings: int
) -> None:
    """In exact fractions of what is predicted; cut off at a half, doubled, no record adds more than it is charged."""
    plan = make_plan(kind, {"calibration": "auto"})
    labels, scores = np.array([label for label, _ in records]), np.array([score for _, score in records])
    kept = plan.label.kind.encode(np.minimum(labels, plan.label.bounds[1]), plan.label)
    node = Node("site", SiteData(np.zeros((len(plan.features), len(records)), np.uint8), kept), plan, resolve(plan))
    node.held.records.scores[0] = scores
    own = resolve(plan)
    assert isinstance(own, BoostingSettings) and own.calibration == "means"
    asked = own.calibration_of(plan).question(0, step=step, centre=centre, doublings=doublings, is_number=True)
    expected = np.zeros((2, N_BINS), dtype=np.int64)
    predicted = loss_kind(plan).link.units(scores, plan.label)
    for label, mean, score in zip(kept.tolist(), predicted.tolist(), scores.tolist(), strict=True):
        place = math.floor(Fraction(abs(score - centre), step) + Fraction(1, 2)) * (-1 if score < centre else 1)
        above = max(-1, min(Fraction((label - mean) * 2**doublings, 2**16), 1))
        expected[:, 20 + max(-20, min(place, 20))] += [RECORD_NORM // 2, math.trunc(above * RECORD_NORM)]
    found = node.answer(asked)
    assert np.array_equal(found, expected.ravel())
    if len(records) == 1:
        assert int((found**2).sum()) <= BINS_SENSITIVITY_SQUARED


def exact_sums(shift: float, stretch: float, n: int, seed: int) -> np.ndarray:
    """An answer without noise over scores whose log-odds are shift + (1 + stretch) f."""
    random = np.random.default_rng(seed)
    scores = random.normal(-1, 1.2, n)
    labels = random.random(n) < 1 / (1 + np.exp(-(shift + (1 + stretch) * scores)))
    bins = bins_of(scores)
    counts = np.bincount(bins, minlength=N_BINS)
    positive = np.bincount(bins[labels], minlength=N_BINS)
    return np.concatenate([counts * RECORD_NORM, (2 * positive - counts) * (RECORD_NORM // 2)]).astype(np.int64)


def fit_odds(released: np.ndarray, sigma: float) -> tuple[float, float]:
    return fit_score_line(KnownBins.of(ASKED[False], released, sigma), expect_class, ODDS_PRIOR)


@pytest.mark.parametrize(("shift", "stretch"), [(0.0, 0.0), (0.6, 0.0), (-0.8, 0.7), (0.3, -0.4)])
def test_it_finds_the_likeliest_line(shift: float, stretch: float) -> None:
    """Many records, no noise: the maximum of the likelihood by a general optimiser, and near the truth."""
    sums = exact_sums(shift, stretch, 200_000, 1)
    counts = sums[:N_BINS] / RECORD_NORM
    positive = sums[N_BINS:] / RECORD_NORM + counts / 2

    def loss(line: np.ndarray) -> float:
        log_odds = line[0] + (1 + line[1]) * PLACES
        prior = ((line[0] / ODDS_PRIOR.shift_doubt) ** 2 + (line[1] / ODDS_PRIOR.stretch_doubt) ** 2) / 2
        return float((counts * np.logaddexp(0, log_odds) - positive * log_odds).sum() + prior)

    best = minimize(loss, np.zeros(2)).x
    found = fit_odds(sums, 0.0)
    assert found == pytest.approx(best, abs=5e-3)
    assert found == pytest.approx((shift, stretch), abs=0.08)


def test_swapped_classes_have_the_mirror_image_of_the_line() -> None:
    """To the last bit, whatever was released: else a model would depend on which of its classes comes first."""
    random = np.random.default_rng(5)
    for sigma in (0.0, 10.0, 100.0):
        noise = random.normal(size=BINS_LENGTH) * sigma * RECORD_NORM
        released = np.rint(exact_sums(-2.0, 0.5, 20_000, 6) + noise).astype(np.int64)
        counts, labels = released.reshape(2, -1)[:, ::-1]
        shift, stretch = fit_odds(released, sigma * RECORD_NORM)
        assert fit_odds(np.concatenate([counts, -labels]), sigma * RECORD_NORM) == (-shift, stretch)


@pytest.mark.parametrize("place", [-20, 0, 7])
def test_one_bin_alone_tells_the_level(place: int) -> None:
    """All scores alike, as where no feature says anything: the mean chance is the rate, however rare."""
    counts, labels = np.zeros(N_BINS), np.zeros(N_BINS)
    counts[place + 20], labels[place + 20] = 50_000, 500 - 25_000
    sums = np.concatenate([counts, labels]) * RECORD_NORM
    shift, stretch = fit_odds(sums.astype(np.int64), 30.0 * RECORD_NORM)
    chance = 1 / (1 + np.exp(-(shift + (1 + stretch) * place / 2)))
    assert chance == pytest.approx(0.01, rel=0.3)


def test_noise_alone_changes_little_and_more_noise_less() -> None:
    """The prior takes over: with noise beyond all records, scores stay as they are, about."""
    sums = exact_sums(0.6, 0.5, 2_000, 2)
    random = np.random.default_rng(3)
    errors = []
    for sigma in (0.0, 10.0, 10_000.0):
        drawn = [
            np.rint(sums + random.normal(size=sums.size) * sigma * RECORD_NORM).astype(np.int64) for _ in range(30)
        ]
        found = np.array([fit_odds(one, sigma * RECORD_NORM) for one in drawn])
        assert np.isfinite(found).all() and (found[:, 1] >= -0.75).all() and (found[:, 1] <= 3).all()
        errors.append(np.abs(found).mean(axis=0))
    assert errors[0] == pytest.approx([0.6, 0.5], abs=0.25)
    assert errors[2][0] < 0.1 and errors[2][1] < 0.1


def expect_numbers(at: np.ndarray) -> Curve:
    """What is expected of numbers whose residuals are not doubled, of bins that are at these places."""
    return expect_mean(lambda places: (places + 1) / 2, at, 0, is_count=False)


@pytest.mark.parametrize("kind", ["count", "regression"])
def test_training_and_another_site_fit_one_line_of_means(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is mended in the expectation of a mean is mended in a training's last release and in a recalibration."""
    plan, fitted = make_plan(kind, {"calibration": "auto"}), list[Curve]()

    def spy(known: KnownBins, curve: Curve, prior: LinePrior) -> tuple[float, float]:
        fitted.append(curve)
        return fit_score_line(known, curve, prior)

    monkeypatch.setattr(score_bins, "fit_score_line", spy)
    rows = make_data(plan, 400, 1)
    model = train(plan, {"a": rows}, noise=SeededNoise(1))
    recalibrate_model(model, rows, epsilon=5.0, noise=SeededNoise(2))
    assert [curve.__qualname__ for curve in fitted] == ["expect_mean.<locals>.curve"] * 2


@settings(max_examples=100, deadline=None)
@given(
    places=st.lists(st.integers(-20, 20).map(lambda place: place / 8), min_size=1, max_size=5, unique=True),
    line=st.tuples(st.floats(-1, 1), st.floats(-0.5, 1)), doublings=st.integers(0, 5), is_count=st.booleans(),
)  # fmt: skip
def test_a_mean_is_expected_as_far_above_its_prediction_as_records_count_it(
    places: list[float], line: tuple[float, float], doublings: int, is_count: bool
) -> None:
    """By the definition of `ScoreBins`: distances as shares of the range, doubled; none at the predictions so far."""
    plan = make_plan("count" if is_count else "regression")
    at, low, high = np.array(places), *plan.label.bounds
    predicted = partial(loss_kind(plan).link.values, label=plan.label)
    curve = expect_mean(partial(expect_share, plan, 0), at, doublings, is_count=is_count)
    moved = line[0] + (1 + line[1]) * at
    above, rises, _ = curve(moved)
    expected = (predicted(moved) - predicted(at)) / (high - low) * 2**doublings
    assert above == pytest.approx(expected, abs=2**doublings * 1e-3)
    assert curve(at)[0].tolist() == [0.0] * len(at)
    slopes = (predicted(moved) - low) / (high - low) if is_count else np.full(len(at), 0.5)
    assert rises == pytest.approx(slopes * 2**doublings, abs=2**doublings * 1e-3)


@pytest.mark.parametrize(("shift", "stretch"), [(0.0, 0.0), (0.4, 0.0), (-0.3, 0.2)])
def test_it_finds_the_line_of_numbers_and_noise_alone_none(shift: float, stretch: float) -> None:
    """What labels are above predictions tells by how much these are to be moved; lost in noise, the prior is left."""
    counts = np.full(N_BINS, 1000.0)
    labels = counts * (shift + stretch * PLACES) / 2
    sums = np.rint(np.concatenate([counts / 2, 2 * labels]) * RECORD_NORM).astype(np.int64)
    known, prior = KnownBins.of(ASKED[True], sums, 0.0), LinePrior(0.25, 0.3, 0.35)
    assert fit_score_line(known, expect_numbers(PLACES), prior) == pytest.approx((shift, stretch), abs=0.02)
    lost = dataclasses.replace(known, noise_of_labels=1e6)
    assert fit_score_line(lost, expect_numbers(PLACES), prior) == pytest.approx((0, 0.3), abs=0.05)
    assert fit_score_line(dataclasses.replace(known, bins=()), expect_numbers(PLACES), prior) == (0, 0)


@settings(max_examples=200, deadline=None)
@given(
    released=st.lists(st.integers(-(2**62), 2**62), min_size=BINS_LENGTH, max_size=BINS_LENGTH),
    sigma=st.sampled_from([0.0, 1.0, 1e6, 1e15]),
    prior=st.sampled_from([ODDS_PRIOR, NUMBERS_PRIOR, WHOLE_RESIDUALS, CUT_RESIDUALS]),
)
def test_any_release_gives_a_line_that_keeps_the_order(released: list[int], sigma: float, prior: LinePrior) -> None:
    """Nothing overflows, and no stretch turns scores around: a ranking stays as it was."""
    for is_number in (False, True):
        known = KnownBins.of(ASKED[is_number], np.array(released, dtype=np.int64), sigma)
        at = np.array([own.place for own in known.bins])
        for curve in (expect_class, expect_numbers(at)):
            shift, stretch = fit_score_line(known, curve, prior)
            assert abs(shift) <= MAX_SHIFT and MIN_STRETCH <= stretch <= MAX_STRETCH


def skewed(plan: Plan, n: int) -> SiteData:
    """The first feature says all there is; one record in eight is positive."""
    codes = make_data(plan, n, 4).codes
    place = codes[0] / max(1, codes[0].max())
    chance = 1 / (1 + np.exp(3.2 - 2.4 * place))
    return SiteData(codes, (np.random.default_rng(4).random(n) < chance).astype(np.int32))


def test_probabilities_are_calibrated_and_ranks_stay(tmp_path: Path) -> None:
    """Mean probability near the rate, where without the release it is off; the same trees but for their scale."""
    table = make_plan("binary", {"calibration": "auto"}).to_dict()
    table["privacy"] |= {"epsilon": 3.0, "n_records": 8000}
    plan = Plan.from_dict({**table, "model": {"n_trees": 100, "structure_seed": 5}})
    data = skewed(plan, 8000)
    model = train(plan, {"one": data}, noise=SeededNoise(1))
    ensemble = model.ensemble
    assert ensemble.n_trees == 101 and ensemble.stretch != 1
    mended = ensemble.scores(data.codes)[0]
    assert ensemble.fitted is not None
    before = dataclasses.replace(
        ensemble.fitted, values=np.rint(ensemble.fitted.values / ensemble.stretch).astype("i4")
    )
    before.values[-1] = 0
    raw = dataclasses.replace(ensemble, fitted=before).scores(data.codes)[0]

    def off(scores: np.ndarray) -> float:
        return abs(float((1 / (1 + np.exp(-scores))).mean() - data.labels.mean()))

    assert off(mended) < 0.01 < off(raw)
    assert np.corrcoef(mended, raw)[0, 1] > 0.9999
    model.save(tmp_path / "model.json")
    again = Model.load(tmp_path / "model.json")
    again.save(tmp_path / "again.json")
    assert again.ensemble.stretch == ensemble.stretch
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "model.json").read_bytes()


@pytest.mark.parametrize("rare", [0, 1])
@pytest.mark.parametrize("level", [3.5, 5.5])
def test_chances_of_rare_events_are_right_in_the_mean(rare: int, level: float) -> None:
    """Of an event that 1 % or 6 % have, coded as either class: within a tenth of its rate, mean of three runs."""
    n, features = 20_000, [{"name": name, "type": "numeric", "min": 0, "max": 1} for name in ("age", "income")]
    table = make_plan("binary", {"calibration": "auto"}, features=features).to_dict()
    table["privacy"] |= {"epsilon": 10.0, "n_records": n}
    ratios = []
    for seed in range(3):
        plan = Plan.from_dict({**table, "model": {"n_trees": 60, "structure_seed": seed}})
        random = np.random.default_rng(seed)
        codes = make_data(plan, n, seed).codes
        event = random.random(n) < 1 / (1 + np.exp(level - 4 * codes[0] / codes[0].max()))
        labels = np.where(event, rare, 1 - rare).astype(np.int32)
        model = train(plan, {"one": SiteData(codes, labels)}, noise=SeededNoise(seed))
        chances = 1 / (1 + np.exp(-model.ensemble.scores(codes)[0]))
        ratios.append((chances if rare else 1 - chances).mean() / event.mean())
    assert np.mean(ratios) == pytest.approx(1, abs=0.1)


def test_who_has_it_and_what_it_costs() -> None:
    """The default of two classes, and no published method, number or count; 1.5 % of mu², and up to 8 % for levels."""
    plan = make_plan("binary", {"calibration": "auto"})
    own = odds_settings(plan)
    assert own.calibration_share == 0.015
    # The level of predictions has two rounds more.
    assert own.schedule(plan).n_rounds == own.n_trees + 3 and own.n_other_trees(plan) == 1
    last = own.schedule(plan).events[-3]
    whole = weigh_trees(plan, own) / own.share_of_trees / own.noise_multiplier**2
    assert 1 / last.noise_multiplier**2 / whole == pytest.approx(0.015, rel=1e-6)  # type: ignore[union-attr]
    mended = {"calibration": "auto"}
    others = [make_plan("binary", {**mended, "interaction": "cyclical"}), make_plan("multiclass")]
    others += [make_plan("regression"), make_plan("binary", {**mended, "weight_update": "averaging"})]
    assert not any(getattr(resolve(other), "calibration", "") == "odds" for other in others)
    without = resolve(make_plan("binary"))
    assert 1 < own.noise_multiplier / without.noise_multiplier < 1.06
    numbers = resolve(make_plan("regression", {"calibration": "none"}))
    assert numbers.calibration == "none" and numbers.calibration_share == 0 and numbers.start == "linear"
