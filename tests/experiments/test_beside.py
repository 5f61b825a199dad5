"""What is computed in place of other systems is what they compute."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import beside
from experiments.beside import RECIPE, Rows


def test_bagging_with_a_single_site_is_boosting() -> None:
    """Flower's clients go on from the common model: with one of them that is XGBoost as it is."""
    xgboost = pytest.importorskip("xgboost")
    random = np.random.default_rng(1)
    x = random.normal(size=(400, 3))
    rows = Rows(x, (x[:, 0] + random.normal(size=400) > 0.5).astype(np.int64), np.arange(400))
    *_, (margins,) = beside._bagged([rows], [[0]] * 4, [rows])
    booster = xgboost.train({**RECIPE, "nthread": 1}, beside._matrix(rows), 4)
    assert margins == pytest.approx(booster.predict(beside._matrix(rows), output_margin=True), abs=1e-5)
