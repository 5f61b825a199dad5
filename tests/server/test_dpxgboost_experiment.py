"""What the experiment on DP-XGBoost reports beside its tables: dp-boost with and without geometric leaf clipping."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from experiments import harness, methods
from experiments.datasets import make
from experiments.harness import Prepared, ScoreBook, plan_for
from hedgerow.plan.plan import Plan
from hedgerow.training.presets import apply_preset, find_preset


def test_the_preset_is_compared_with_itself_but_for_the_clipping(monkeypatch: pytest.MonkeyPatch) -> None:
    """One side is the preset to the letter, the other differs in one field; same rows and seeds; errors are paired."""
    prepared = Prepared(make("two_features"))
    asked: list[tuple[Plan, int]] = []

    def scored(
        prepared: Prepared, plan: Plan, train: NDArray[np.bool_], seed: int, tested: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], None]:
        asked.append((plan, seed))
        # Wrong for seed + 1 rows of a hundred, for one more with clipping: the difference is 1 % in every split.
        scores = np.ones(100)
        scores[: seed + 1 + plan.own.geometric_leaf_clip] = -1
        return np.ones(100), scores, None

    monkeypatch.setattr(harness, "held_out_scores", scored)
    lines = methods.clipping(prepared, range(3), ScoreBook()).splitlines()
    assert lines[-3:] == [
        f"| {epsilon} | 3.000 ± 1.000 | 2.000 ± 1.000 | +1.000 ± 0.000 |" for epsilon in ("0.5", "1", "2")
    ]
    assert len(asked) == 18
    n_train = asked[0][0].privacy.n_records
    assert n_train is not None
    preset = apply_preset(find_preset("dp-boost"), plan_for(prepared.table, 0.5, n_train, {}))
    (clipped, _), (free, _) = asked[0], asked[3]
    assert clipped == preset and preset.own.geometric_leaf_clip
    assert clipped != free and [seed for _, seed in asked[:6]] == [0, 1, 2, 0, 1, 2]
    table = free.to_dict()
    table["dp_xgboost"]["geometric_leaf_clip"] = True
    assert Plan.from_dict(table) == clipped
