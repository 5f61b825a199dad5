"""What the experiment on S-GBDT computes beside scores: the price of tuning, the printed conversion, static noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import sgbdt
from experiments.datasets import make
from experiments.harness import Prepared, ScoreBook, train_and_score
from experiments.sgbdt import (
    DEEP,
    FILTERED,
    FIRST_SEARCH,
    STREAMED,
    Bench,
    Variant,
    plan_of,
    printed_multiplier,
    tuned_epsilon,
)
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import ORDERS, compute_sampled_divergence, epsilon_of_curve

DELTA = 1e-5


def curve(noise_multiplier: float, rate: float = 0.1, n_rounds: int = 50) -> list[float]:
    return [n_rounds * compute_sampled_divergence(order, rate, noise_multiplier) for order in ORDERS]


def test_tuning_costs_more_the_more_is_tried() -> None:
    """Never less than one run by itself, and about log(tries) / (order - 1) more."""
    values = dict(zip(ORDERS, curve(8.0), strict=True))
    one = epsilon_of_curve(ORDERS, list(values.values()), DELTA)[0]
    tuned = [tuned_epsilon(values.__getitem__, ORDERS, DELTA, n) for n in (1.01, 5, 50)]
    assert one <= tuned[0] < tuned[1] < tuned[2] < 4 * one


@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_the_papers_printed_conversion_promises_too_much(epsilon: float) -> None:
    """With the noise that it asks for, the true epsilon is beyond the one that it claims."""
    printed = printed_multiplier(epsilon, DELTA, 0.1, 50)
    assert epsilon_of_curve(ORDERS, curve(printed), DELTA)[0] > 1.5 * epsilon


def test_folds_are_disjoint_and_runs_are_scored() -> None:
    """Every row is in one fold; a sound run at a large epsilon beats chance, and static noise is another run."""
    bench = Bench(Prepared(make("two_features")))
    assert np.bincount(bench.folds).tolist() == [4000] * 5
    model = {"n_trees": 20, "max_depth": 3, "learning_rate": 0.5, "leaf_ridge": 20.0, "leaf_clip": 1e5}
    variant = Variant("v", model, {"individual_filter": False, "gradient_clip": 1.0})
    error = bench.score(variant, 8.0, 0, 1)
    assert error < 35 and bench.n_runs == 1 and math.isfinite(error)
    static = bench.score(Variant("static", model, variant.section, is_static=True), 8.0, 0, 1)
    assert static != error and static < 50
    # The pairs that it releases are beyond what the rows add up to, where lambda is as large as all rows.
    large = Variant("static", {**model, "leaf_ridge": 20_000.0}, variant.section, is_static=True)
    assert bench.score(large, 8.0, 0, 1) < 50


def test_scores_that_were_written_down_are_not_run_again(tmp_path: Path) -> None:
    """A stopped experiment goes on: by key, over processes, and a line that was cut off counts for nothing."""
    path = tmp_path / "scores.csv"
    runs: list[int] = []

    def run() -> float:
        runs.append(1)
        return len(runs) / 3

    book = ScoreBook(path)
    assert [book.score(key, run) for key in (("a", 1), ("a", 2), ("a", 1))] == [1 / 3, 2 / 3, 1 / 3]
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole[:-1], encoding="utf-8")
    again = ScoreBook(path)
    assert again.score(("a", 1), run) == 1 / 3 and len(runs) == 2
    assert again.score(("a", 2), run) == 1.0 and len(runs) == 3
    assert math.isclose(ScoreBook(path).score(("a", 2), run), 1.0)


def test_all_ways_of_the_filter_have_as_many_settings_and_rounds() -> None:
    """None is searched harder; without the filter there are no extra rounds, with it there are in each."""
    sides = {way: sgbdt._settings(way) for way in sgbdt.WAYS}
    drawn = {way: found[-sgbdt.N_DRAWN :] for way, found in sides.items()}
    free = drawn[sgbdt.FREE]
    assert not any(v.section.get("extra_rounds") or v.section["individual_filter"] for v in sides[sgbdt.FREE])
    for way in (sgbdt.PLAIN, sgbdt.CLOSING):
        for kept in sides[way]:
            assert kept.section["individual_filter"] and kept.section["extra_rounds"] > 0
            assert bool(kept.section.get("closing_rounds")) == (way == sgbdt.CLOSING)
        for kept, other in zip(drawn[way], free, strict=True):
            assert kept.model["n_trees"] + kept.section["extra_rounds"] == other.model["n_trees"]
            same = ("max_depth", "learning_rate", "leaf_ridge")
            assert [kept.model[name] for name in same] == [other.model[name] for name in same]


def test_what_is_tuned_on_is_not_what_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """No division and no seed of a rung comes again in a later one or in the report; all ways meet the same ones."""
    asked: dict[str, list[tuple[int, int, int]]] = {way: [] for way in sgbdt.WAYS}
    way = ""

    def noted(bench: Bench, variant: Variant, epsilon: float, fold: int, seed: int) -> float:
        asked[way].append((bench.division, fold, seed))
        return float(np.random.default_rng(seed).normal())

    monkeypatch.setattr(Bench, "score", noted)
    prepared, book = Prepared(make("two_features")), ScoreBook()
    for way in sgbdt.WAYS:
        monkeypatch.setattr(sgbdt, "_settings", lambda _: list(sgbdt.GRID["abalone"][:20]))
        best = sgbdt._last_left(prepared, book, way, 0.54)
        tuned = set(asked[way])
        found = sgbdt._on(prepared, book, (sgbdt.FIRST_DIVISION, 20), sgbdt.FIRST_SEED, best, 1.0)
        fresh = set(asked[way]) - tuned
        assert found.shape == (20, 5) and len(fresh) == 100
        for place in (0, 2):
            assert not {run[place] for run in tuned} & {run[place] for run in fresh}
        assert len({seed for _, _, seed in tuned | fresh}) == len(tuned | fresh) == 100 + 5 * (1 + 2 + 4)
    assert len({frozenset(runs) for runs in asked.values()}) == 1


def test_a_gain_is_named_by_its_error_over_divisions() -> None:
    """Runs of one division share its rows, so they count once; two standard errors decide."""
    one = np.array([[0.02, 0.0, 0.01, 0.01, 0.01], [0.0, 0.02, 0.03, 0.01, -0.01]])
    assert sgbdt._gain(one + 0.0).startswith("+0.0100 ± 0.0000, better")
    assert sgbdt._gain(-one).endswith("worse")
    spread = np.array([[0.03] * 5, [-0.01] * 5])
    assert sgbdt._gain(spread) == "+0.0100 ± 0.0200, no difference shown"


def test_a_run_with_samples_is_the_same_again() -> None:
    """What experiments compare and record is decided by the seed, samples too: the same bits when it is run again."""
    prepared = Prepared(make("two_features"))
    train = np.arange(prepared.table.n_records) % 4 > 0
    plan = plan_of(prepared.table, FILTERED["adult"].with_section("few", extra_rounds=1), 1.0, int(train.sum()), 3)
    plan = Plan.from_dict({**plan.to_dict(), "model": {**plan.to_dict()["model"], "n_trees": 4}})
    fitted = [train_and_score(prepared, plan, train, seed)[1].ensemble.fitted for seed in (1, 1, 2)]
    first, again, other = (found.values.tolist() for found in fitted if found is not None)
    assert first == again != other


@pytest.mark.parametrize("call", [sgbdt.search, sgbdt.streams])
def test_every_fold_has_noise_of_its_own(monkeypatch: pytest.MonkeyPatch, call: Callable[..., object]) -> None:
    """In what is searched, repeated and streamed, no seed serves two folds of one setting."""
    asked: dict[tuple[object, ...], list[int]] = {}

    def noted(bench: Bench, variant: Variant, epsilon: float, fold: int, seed: int, late: Any = None) -> float:
        asked.setdefault((id(variant), epsilon), []).append(seed)
        return 0.5

    monkeypatch.setattr(Bench, "score", noted)
    table = make("two_features")
    features = tuple({**feature, "name": "age"} for feature in table.features[:1])
    call(Bench(Prepared(replace(table, name="adult", features=features)), 3))
    assert asked and all(len(set(seeds)) == len(seeds) and len(seeds) % 5 == 0 for seeds in asked.values())


def test_no_two_runs_of_a_column_share_their_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise follows from the seed: runs of one seed on several folds would be one draw of noise, counted five times."""
    asked: list[tuple[int, int, int]] = []

    def noted(bench: Bench, variant: Variant, epsilon: float, fold: int, seed: int) -> float:
        asked.append((bench.division, fold, seed))
        return 0.5

    monkeypatch.setattr(Bench, "score", noted)
    monkeypatch.setitem(sgbdt.GRID, "adult", sgbdt.GRID["adult"][-1:])
    lines = sgbdt.other_divisions([Prepared(replace(make("two_features"), name="adult"))], ScoreBook())
    per_column = 5 * sgbdt.N_DIVISIONS
    assert len(asked) == 2 * 2 * per_column and sum("0.500 ± 0.000" in line for line in lines) == 2
    for begin in range(0, len(asked), per_column):
        column = asked[begin : begin + per_column]
        assert len({seed for _, _, seed in column}) == per_column
        assert len({division for division, _, _ in column}) == (1 if begin % (2 * per_column) == 0 else 10)


def test_a_stream_is_tuned_in_each_way_with_other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways try the same settings; the best of each by the search's seeds is run for the report, with others."""
    asked: dict[str, dict[int, list[int]]] = {}

    def noted(bench: Bench, variant: Variant, epsilon: float, fold: int, seed: int, late: Any = None) -> float:
        n_before = int(variant.model["n_trees"]) // (1 if variant.section["individual_filter"] else 2)
        asked.setdefault(variant.name, {}).setdefault(n_before, []).append(seed)
        return 1.0 if n_before == 189 else 0.0

    monkeypatch.setattr(Bench, "score", noted)
    table = make("two_features")
    features = tuple({**feature, "name": "Whole_weight"} for feature in table.features[:1])
    lines = sgbdt.streams(Bench(Prepared(replace(table, name="abalone", features=features)), 4))
    assert sum("189 rounds before and after" in line for line in lines) == 2
    for tried in asked.values():
        assert len(tried) == len(STREAMED["abalone"])
        for n_before, seeds in tried.items():
            reported = [seed for seed in seeds if seed < FIRST_SEARCH]
            assert len(seeds) - len(reported) == 15 and len(reported) == (20 if n_before == 189 else 0)


def test_the_other_sampling_rate_has_lambda_for_as_many_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """lambda counts records of a sample: what is compared differs in the samples only, from either side."""
    seen: dict[str, Variant] = {}

    def noted(bench: Bench, variant: Variant, epsilon: float, *rest: object) -> np.ndarray[Any, np.dtype[np.float64]]:
        seen[variant.name] = variant
        return np.zeros(5)

    monkeypatch.setattr(sgbdt, "repeated", noted)
    for base, name in ((DEEP[0], "the same, samples of 0.1"), (DEEP[2], "the same, no subsampling")):
        seen.clear()
        sgbdt.ablations(Bench(Prepared(replace(make("two_features"), name="abalone"))), base)
        per_sample = [v.model["leaf_ridge"] / v.section["subsampling_ratio"] for v in (base, seen[name])]
        assert math.isclose(*per_sample)
        assert seen[name].section["subsampling_ratio"] != base.section["subsampling_ratio"]
        bound = [v for v in seen.values() if v.section.get("bound") == "general"]
        assert [v.section["subsampling_ratio"] for v in bound] == [0.1]


def test_a_drawn_setting_may_be_any_that_was_found_good() -> None:
    """The distribution has many deep trees with a large lambda and a small clip, and few shallow ones as well."""
    random = np.random.default_rng(0)
    drawn = [sgbdt._drawn(random, sgbdt.FREE) for _ in range(400)]
    assert {v.model["max_depth"] for v in drawn} == set(range(3, 9))
    for known in DEEP:
        for field in ("n_trees", "learning_rate"):
            values = [v.model[field] for v in drawn]
            assert min(values) < known.model[field] < max(values)
        ridges = [v.model["leaf_ridge"] / v.section["subsampling_ratio"] for v in drawn]
        assert min(ridges) < known.model["leaf_ridge"] / known.section["subsampling_ratio"] < max(ridges)
        clips = [v.section["gradient_clip"] for v in drawn]
        assert min(clips) < known.section["gradient_clip"] < max(clips)
