"""What the experiment on S-GBDT computes beside scores: the price of tuning, the printed conversion, static noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hedgerow.experiments import sgbdt
from hedgerow.experiments.datasets import make
from hedgerow.experiments.harness import Prepared
from hedgerow.experiments.sgbdt import printed_multiplier
from hedgerow.experiments.sgbdt_runs import Bench, Variant, tuned_epsilon
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
