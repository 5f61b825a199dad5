"""The command line's measures against scikit-learn's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from hedgerow.losses.kinds import classification_scores, mean_auc, regression_scores, roc_auc


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=2, max_size=40).filter(
        lambda pairs: len({positive for positive, _ in pairs}) == 2
    )
)
@settings(deadline=None)
def test_auc_with_ties(pairs: list[tuple[bool, int]]) -> None:
    """AUC equals scikit-learn's, also with many tied scores."""
    positive, scores = (np.array(values) for values in zip(*pairs, strict=True))
    assert roc_auc(positive, scores) == pytest.approx(reference.roc_auc_score(positive, scores), abs=1e-12)


def test_auc_of_one_class_is_undefined() -> None:
    """Without a positive or a negative record there is nothing to compare."""
    assert math.isnan(roc_auc(np.array([True, True]), np.array([0.1, 0.2])))
    assert math.isnan(mean_auc(np.array([0, 0]), np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])))


def test_classification_scores() -> None:
    """Log-loss, accuracy and the one-against-the-rest AUC agree with scikit-learn on three classes."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 200).astype(np.int32)
    probabilities = generator.dirichlet(np.ones(3), 200)
    scores = classification_scores(labels, probabilities)
    assert scores["log_loss"] == pytest.approx(reference.log_loss(labels, probabilities))
    assert scores["accuracy"] == pytest.approx(reference.accuracy_score(labels, probabilities.argmax(axis=1)))
    assert scores["auc"] == pytest.approx(reference.roc_auc_score(labels, probabilities, multi_class="ovr"))


def test_regression_scores() -> None:
    """RMSE and R² agree with scikit-learn; labels without variance have no R²."""
    generator = np.random.default_rng(1)
    labels, predicted = generator.normal(size=50), generator.normal(size=50)
    scores = regression_scores(labels, predicted)
    assert scores["rmse"] == pytest.approx(reference.root_mean_squared_error(labels, predicted))
    assert scores["r2"] == pytest.approx(reference.r2_score(labels, predicted))
    assert math.isnan(regression_scores(np.ones(3), np.zeros(3))["r2"])
