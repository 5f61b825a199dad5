"""What the experiment on S-GBDT computes beside scores: the price of tuning, the printed conversion, static noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.experiments import sgbdt, sgbdt_ablations, sgbdt_filter
from hedgerow.experiments.datasets import make
from hedgerow.experiments.harness import Prepared
from hedgerow.experiments.score_book import ScoreBook
from hedgerow.experiments.sgbdt_runs import Bench, Variant, printed_multiplier, tuned_epsilon
from hedgerow.privacy.renyi import ORDERS, epsilon_of_curve, sampled_divergence

DELTA = 1e-5


def curve(noise_multiplier: float, rate: float = 0.1, n_rounds: int = 50) -> list[float]:
    return [n_rounds * sampled_divergence(order, rate, noise_multiplier) for order in ORDERS]


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


def test_both_sides_of_the_filter_have_as_many_settings_and_rounds() -> None:
    """Neither side is searched harder; without the filter there are no extra rounds, with it there are in each."""
    sides = {filtered: sgbdt_filter._Side(filtered, 0.54).settings() for filtered in (True, False)}
    drawn = {filtered: found[-sgbdt_filter.N_DRAWN :] for filtered, found in sides.items()}
    assert all(v.section["extra_rounds"] > 0 for v in sides[True])
    assert not any(v.section.get("extra_rounds") or v.section["individual_filter"] for v in sides[False])
    for kept, free in zip(drawn[True], drawn[False], strict=True):
        assert kept.model["n_trees"] + kept.section["extra_rounds"] == free.model["n_trees"]
        same = ("max_depth", "learning_rate", "leaf_ridge")
        assert [kept.model[name] for name in same] == [free.model[name] for name in same]


@pytest.mark.parametrize("call", [sgbdt._searched, sgbdt_ablations.streams])
def test_every_fold_has_noise_of_its_own(monkeypatch: pytest.MonkeyPatch, call: Callable[..., object]) -> None:
    """In what is searched, repeated and streamed, no seed serves two folds of one setting."""
    asked: dict[tuple[object, ...], list[int]] = {}

    def noted(bench: Bench, variant: Variant, epsilon: float, *rest: Any) -> float:
        asked.setdefault((id(variant), epsilon), []).append(rest[-1])
        return 0.5

    monkeypatch.setattr(Bench, "score", noted)
    monkeypatch.setattr(Bench, "stream_score", noted)
    table = make("two_features")
    table = replace(table, features=tuple({**feature, "name": "age"} for feature in table.features[:1]))
    call(Bench(Prepared(table)), "adult", 3, [])
    assert asked and all(len(set(seeds)) == len(seeds) and len(seeds) % 5 == 0 for seeds in asked.values())


def test_no_two_runs_of_a_column_share_their_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise follows from the seed: runs of one seed on several folds would be one draw of noise, counted five times."""
    asked: list[tuple[int, int, int]] = []

    def noted(bench: Bench, variant: Variant, epsilon: float, fold: int, seed: int) -> float:
        asked.append((bench.division, fold, seed))
        return 0.5

    monkeypatch.setattr(Bench, "score", noted)
    monkeypatch.setitem(sgbdt.GRID, "adult", sgbdt.GRID["adult"][-1:])
    lines: list[str] = []
    sgbdt._other_divisions(Bench(Prepared(make("two_features"))), "adult", lines)
    per_column = 5 * sgbdt.N_DIVISIONS
    assert len(asked) == 2 * 2 * per_column and sum("0.500 ± 0.000" in line for line in lines) == 2
    for begin in range(0, len(asked), per_column):
        column = asked[begin : begin + per_column]
        assert len({seed for _, _, seed in column}) == per_column
        assert len({division for division, _, _ in column}) == (1 if begin % (2 * per_column) == 0 else 10)
