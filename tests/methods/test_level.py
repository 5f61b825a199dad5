"""The level of predictions: what a record adds to its release, and where the release puts the mean prediction."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.data.site_data import SiteData
from hedgerow.local.training import recalibrate_model, train
from hedgerow.losses.registry import LOSSES, loss_kind
from hedgerow.losses.survival import hazards
from hedgerow.losses.tables import LEVEL_UNIT, RECORD_NORM, SCORE_UNIT
from hedgerow.methods.level import LevelSums, _find_shares, bound_level_squared, releases_level
from hedgerow.methods.registry import resolve
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.noise import SeededNoise
from hedgerow.trees.binning import build_grid
from hedgerow.trees.leaf_sums import ScoredSite, SiteRecords
from tests.builders import LABELS, bare_plan, make_data, make_plan, numbers, take

N = 4_000
WITH_LEVEL = sorted(label for label, kind in LOSSES.items() if releases_level(kind))


def make_skewed_rows(plan: Plan, seed: int) -> SiteData:
    """Rows of two features in [0, 1], of which the first decides a label that is rare, or mostly small."""
    random = np.random.default_rng(seed)
    values = tuple(random.uniform(size=(2, N)).astype(np.float32))
    effect = 4 * (values[0] - 0.5) + random.logistic(size=N)
    label, grid = plan.label, build_grid(plan)
    if label.type == "survival":
        event = effect > 2.5
        kept = np.where(event, 2 * random.integers(0, 4, N) + 1, 2 * random.integers(1, 5, N))
    elif label.classes:
        kept = np.where(effect > 3, len(label.classes) - 1, random.integers(0, len(label.classes) - 1, N))
    else:
        low, high = label.bounds
        size = np.minimum(np.exp(effect) * 0.01, 1) * (high - low)
        kept = label.kind.encode(low + (np.floor(size) if label.type == "count" else size), label)
    codes = grid.encode(values)
    return SiteData(codes, kept.astype(np.int32), grid.places(values, codes))


def compare_means(model: Model, rows: SiteData) -> tuple[NDArray[Any], NDArray[Any]]:
    """The mean prediction and the mean label above its least value: of each class, number, or events of a record."""
    plan, ensemble = model.plan, model.ensemble
    scores = ensemble.scores(rows.codes)
    if plan.label.type == "survival":
        at_risk = (rows.labels + 1)[:, None] // 2 > np.arange(len(ensemble.baseline))
        expected = (hazards(scores[0], ensemble.baseline) * at_risk).sum(axis=1)
        return np.array([expected.mean()]), np.array([(rows.labels % 2).mean()])
    if plan.label.classes:
        found = ensemble.probabilities(rows.codes).mean(axis=0)
        return found, np.bincount(rows.labels, minlength=len(found)) / N
    low, high = plan.label.bounds
    labels = (rows.labels / SCORE_UNIT + 1) / 2 * (high - low)
    return np.array([(loss_kind(plan).link.values(scores[0], plan.label) - low).mean()]), np.array([labels.mean()])


def test_every_kind_of_label_with_a_mean_has_a_level() -> None:
    """No registered loss is left out: who adds one says whether its predictions are means."""
    assert set(WITH_LEVEL) == set(LABELS)


@pytest.mark.parametrize("update", ["newton", "gradient"])
@pytest.mark.parametrize("label", WITH_LEVEL)
def test_without_noise_the_mean_prediction_is_the_mean_label(label: str, update: str) -> None:
    """Risks, counts and costs that somebody acts on add up to what happened, however rare or skewed that is."""
    own = {} if label == "survival" else {"weight_update": update}
    plan = bare_plan(LABELS[label], numbers(2), epsilon=math.inf, n_records=N, n_trees=40, **own)
    rows = make_skewed_rows(plan, 3)
    model = train(plan, {"site": rows}, noise=SeededNoise(1))
    found, expected = compare_means(model, rows)
    assert found == pytest.approx(expected, rel=0.02)
    assert all(level.noise == 0 for level in model.ensemble.levels)


@pytest.mark.slow
@pytest.mark.parametrize("label", WITH_LEVEL)
def test_with_noise_the_mean_prediction_is_off_by_the_noise_that_is_stated(label: str) -> None:
    """The interval that a report prints is true: the level misses by its noise, and on no side in the mean."""
    plan = bare_plan(LABELS[label], numbers(2), epsilon=4.0, n_records=N, n_trees=20)
    beyond = []
    for seed in range(20):
        rows = make_skewed_rows(plan, seed)
        model = train(plan, {"site": rows}, noise=SeededNoise(seed))
        found, expected = compare_means(model, rows)
        beyond.append(abs(found[-1] - expected[-1]) / model.ensemble.levels[-1].noise)
    # Of counts and numbers a tail beyond the cut is missing as well.
    assert np.mean(np.square(beyond)) < 2.5


LINES = st.tuples(st.floats(0.25, 4.0), st.integers(-SCORE_UNIT, SCORE_UNIT))


@settings(max_examples=60)
@given(label=st.sampled_from(WITH_LEVEL), line=LINES, doublings=st.integers(0, 8), seed=st.integers(0, 10**6))
def test_a_record_adds_no_more_than_the_release_is_noised_for(
    label: str, line: tuple[float, int], doublings: int, seed: int
) -> None:
    """Every record of every label and score, at the ends of both: its own part alone is what a neighbour changes."""
    plan, random = make_plan(label), np.random.default_rng(seed)
    n_outputs, low_and_high = plan.label.n_outputs, plan.label.kind.encoded_range(plan.label)
    scores = random.integers(-10 * SCORE_UNIT, 10 * SCORE_UNIT + 1, (n_outputs, 60)).astype(np.int32)
    scores[:, :20] = random.choice([-(2**24), -SCORE_UNIT, -1, 0, 1, SCORE_UNIT, 2**24], (n_outputs, 20))
    labels = random.integers(low_and_high[0], low_and_high[1] + 1, 60).astype(np.int32)
    labels[:20] = random.choice(low_and_high, 20)
    is_class = bool(plan.label.classes)
    baseline = tuple(random.integers(-2048, 2049, len(plan.label.intervals)).tolist())
    bound = bound_level_squared(n_outputs, is_class)
    query = LevelSums(
        purpose=LevelSums.purpose_of(0, "level"), length=3 * n_outputs + (label == "binary"), bound=RECORD_NORM,
        sensitivity_squared=bound, noise_multiplier=1.0, slope=round(line[0] * SCORE_UNIT),
        shifts=(line[1],) * n_outputs, baseline=baseline, doublings=0 if is_class else doublings,
        origin=0 if is_class or label == "survival" else int(random.integers(0, LEVEL_UNIT + 1)),
    )  # fmt: skip

    def answer(rows: NDArray[np.intp]) -> NDArray[np.int64]:
        codes = np.zeros((len(plan.features), len(rows)), dtype=np.uint8)
        return query.answer(ScoredSite(plan, SiteRecords(codes, labels[rows], scores[:, rows].copy())))

    every, parts = np.arange(60), []
    whole = answer(every)
    for row in range(60):
        part = answer(every[row : row + 1])
        assert int((part * part).sum()) <= bound and np.abs(part).max() <= RECORD_NORM
        assert (whole - answer(np.delete(every, row)) == part).all()
        parts.append(int((part * part).sum()))
    if is_class:
        # A confident wrong prediction reaches the bound but for its last part.
        assert max(parts) > 0.9 * RECORD_NORM**2


@pytest.mark.parametrize("label", WITH_LEVEL)
@pytest.mark.parametrize("rows", [1, 3])
def test_the_release_is_an_event_of_its_own_for_all_rows_of_a_unit(label: str, rows: int) -> None:
    """Schedule and ledger charge the level by itself, and its noise is for all rows that a unit may have."""
    unit = {"unit": "patient", "max_rows_per_unit": rows} if rows > 1 else {}
    plan = make_plan(label, {"calibration": "auto"}, {"n_records": 400, **unit})
    planned = [alike for alike in resolve(plan).schedule(plan).rounds if alike.query.purpose.kind == "LevelSums"]
    model = train(plan, {"site": make_data(plan, 400, 5)}, noise=SeededNoise(1))
    released = [release for release in model.ledger.releases if release.kind == "LevelSums"]
    bound = bound_level_squared(plan.label.n_outputs, bool(plan.label.classes))
    assert len(planned) == len(released) == 2
    for alike, release in zip(planned, released, strict=True):
        assert alike.query.sensitivity_squared == bound * rows * rows
        assert release.sensitivity == pytest.approx(math.sqrt(bound) * rows)
        found, most = (get_accountant("gdp").epsilon([event], 1e-5) for event in (release.event, alike.event))
        assert found <= most


def test_what_says_no_means_or_is_a_papers_method_has_no_level() -> None:
    """A quantile stays one, and a preset of a paper asks for what the paper says."""
    own = {"loss": {"name": "quantile", "tau": 0.9}}
    plans = [
        make_plan("regression", {"calibration": "auto"}, **own),
        make_plan("binary", {"calibration": "none"}),
        make_plan("binary", {"calibration": "auto", "interaction": "cyclical"}),
        make_plan("binary", {"calibration": "auto", "weight_update": "averaging"}),
        make_plan("regression", {"algorithm": "s-gbdt"}),
    ]
    assert not any("LevelSums" in resolve(plan).schedule(plan).kinds for plan in plans)


@given(weights=st.lists(st.floats(1e-6, 1.0), min_size=3, max_size=12))
def test_chances_of_those_in_doubt_are_chances(weights: list[float]) -> None:
    """Several classes are shifted as if all in doubt had chances with these rises."""
    chances = np.array(weights) / sum(weights)
    found = _find_shares(chances * (1 - chances) * 50)
    assert found == pytest.approx(chances, abs=1e-6)


def test_a_model_keeps_its_level_and_loses_it_with_another_sites(tmp_path: Path) -> None:
    """The interval is of the rows of the training: a recalibrated model does not print it."""
    plan = make_plan("binary", {"calibration": "auto"}, {"epsilon": 8.0, "n_records": 400})
    rows = make_data(plan, 400, 5)
    model = train(plan, {"site": rows}, noise=SeededNoise(1))
    model.save(tmp_path / "model.json")
    again = Model.load(tmp_path / "model.json")
    assert len(model.ensemble.levels) == 1 and again.ensemble.levels == model.ensemble.levels
    moved, *_ = recalibrate_model(model, take(rows, slice(0, 200)), epsilon=8.0, noise=SeededNoise(2))
    assert moved.ensemble.levels == ()


def test_counts_far_below_their_bound_are_right_in_the_mean() -> None:
    """A bound is declared with room to spare, or found: entries that are small parts of it lose nothing by rounding."""
    plan = make_wide_counts()
    rows = make_skewed_rows(plan, 3)
    rows = replace(rows, labels=plan.label.kind.encode(np.random.default_rng(5).poisson(0.4, N), plan.label))
    found, expected = compare_means(train(plan, {"site": rows}, noise=SeededNoise(1)), rows)
    assert found == pytest.approx(expected, rel=0.02)


def make_wide_counts() -> Plan:
    """A plan without noise for counts up to 1,024."""
    table = bare_plan(LABELS["count"], numbers(2), epsilon=math.inf, n_records=N, n_trees=10).to_dict()
    return Plan.from_dict({**table, "label": {**table["label"], "max": 1024}})
