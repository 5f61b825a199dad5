"""The linear estimators behind scikit-learn's interface."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from hedgerow import DPLinearClassifier, DPLinearRegressor
from hedgerow.errors import UsageError

QUICK: dict[str, Any] = {"bounds": "data", "epsilon": 100, "scale": "linear"}


@parametrize_with_checks([DPLinearClassifier(**QUICK), DPLinearRegressor(**QUICK)])  # type: ignore[untyped-decorator]
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    """What scikit-learn asks of every estimator holds."""
    check(estimator)


def rows(n: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(2)
    X = generator.uniform(-1, 1, (n, 5))
    return X, (X @ [2.0, -1.0, 0.5, 0.0, 0.0] + 0.3 * generator.normal(size=n) > 0).astype(int)


@pytest.mark.parametrize("loss", ["logistic", "squared", "hinge"])
def test_a_linear_rule_is_found_over_several_sites(loss: str) -> None:
    """F1 and AUROC near those without privacy; the report is the one that trees have, and it holds."""
    X, y = rows()
    sites = np.arange(len(y)) % 4
    model = DPLinearClassifier(
        epsilon=1.0, loss=loss, scale="linear", bounds=[(-1, 1)] * 5, classes=[0, 1], n_records=20_000
    ).fit(X, y, sites=sites)
    assert f1_score(y, model.predict(X)) > 0.9 and roc_auc_score(y, model.decision_function(X)) > 0.97
    assert model.privacy_report_.guarantee == "holds" and model.privacy_report_.epsilon <= 1.0
    assert model.ledger_.releases[0].kind == "GramMatrix"


def test_probabilities_of_the_logistic_loss_are_calibrated() -> None:
    """Among records of predicted probability near p, about p are positive."""
    X, y = rows()
    y = (np.random.default_rng(0).random(len(y)) < 1 / (1 + np.exp(-X @ [2.0, -1.0, 0.5, 0.0, 0.0]))).astype(int)
    model = DPLinearClassifier(
        epsilon=5.0, rounds=10, scale="linear", bounds=[(-1, 1)] * 5, classes=[0, 1], n_records=20_000, random_state=1
    ).fit(X, y)
    chance = model.predict_proba(X)[:, 1]
    for low in (0.2, 0.4, 0.6):
        chosen = (chance >= low) & (chance < low + 0.2)
        assert y[chosen].mean() == pytest.approx(chance[chosen].mean(), abs=0.06)


def test_three_classes_are_refused() -> None:
    """With a word on what to use instead."""
    X, _ = rows(30)
    with pytest.raises(UsageError) as caught:
        DPLinearClassifier(bounds=[(-1, 1)] * 5, classes=[0, 1, 2], n_records=30).fit(X, np.arange(30) % 3)
    assert "DPGBDTClassifier" in caught.value.remedy


def test_a_regression() -> None:
    """R2 near that of the rule, predictions within the label's bounds."""
    X, _ = rows()
    y = X @ [2.0, -1.0, 0.5, 0.0, 0.0]
    model = DPLinearRegressor(epsilon=2.0, scale="linear", bounds=[(-1, 1)] * 5, label_bounds=(-4, 4), n_records=20_000)
    model.fit(X, y)
    assert model.score(X, y) > 0.9
    assert np.abs(model.predict(X)).max() <= 4


def test_columns_that_hardly_vary_do_not_blow_a_regression_up() -> None:
    """With a ridge of 0.5, which lets a second round overshoot, the mean R2 is -.27, and that of the worst one -5.6."""
    scores = []
    for seed in range(24):
        generator = np.random.default_rng(seed)
        narrow = generator.beta(6, 2, 6500), np.clip(generator.normal(0.45, 0.08, 6500), 0, 1)
        X = np.column_stack([generator.uniform(0, 1, 6500), *narrow])
        y = np.clip(4.8 + 2.5 * X[:, 1] - 5 * X[:, 2] + 0.5 * generator.normal(size=6500), -1, 7)
        model = DPLinearRegressor(
            epsilon=0.17, bounds=[(0, 1)] * 3, label_bounds=(-1, 7), n_records=6500, random_state=seed
        )
        scores.append(model.fit(X, y).score(X, y))
    assert np.mean(scores) > -0.05 and min(scores) > -1
