"""How well predictions fit labels: the few measures that the command line prints."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_SMALLEST_PROBABILITY = 1e-15


def roc_auc(is_positive: NDArray[Any], scores: NDArray[Any]) -> float:
    """The area under the ROC curve: the chance that a positive record scores above a negative one, ties half.

    Args:
        is_positive: bool [n].
        scores: float [n].

    Returns:
        From 0 to 1; NaN when either class is absent.

    Source: Mann and Whitney (1947), by average ranks.
    """
    positive = np.asarray(is_positive, dtype=bool)
    n_positive = int(positive.sum())
    n_negative = len(positive) - n_positive
    if n_positive == 0 or n_negative == 0:
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    # The average rank of tied records is the middle of the ranks that they take up together.
    ranks = np.cumsum(counts) - (counts - 1) / 2
    rank_sum = float(ranks[inverse][positive].sum())
    return (rank_sum - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative)


def mean_auc(labels: NDArray[Any], probabilities: Floats) -> float:
    """The mean over the classes that occur of the AUC of each against all others; float64 [n, n_classes]."""
    areas = [roc_auc(labels == index, probabilities[:, index]) for index in range(probabilities.shape[1])]
    known = [area for area in areas if not np.isnan(area)]
    return float(np.mean(known)) if known else float("nan")


def log_loss(labels: NDArray[Any], probabilities: Floats) -> float:
    """The mean negative log-probability of the true class, in nats.

    Args:
        labels: int [n], class indices.
        probabilities: float64 [n, n_classes].
    """
    chosen = probabilities[np.arange(len(labels)), labels]
    return float(-np.log(np.clip(chosen, _SMALLEST_PROBABILITY, 1)).mean())


def accuracy(labels: NDArray[Any], predicted: NDArray[Any]) -> float:
    """The share of records whose class is predicted."""
    return float(np.mean(np.asarray(labels) == np.asarray(predicted)))


def classification_scores(labels: NDArray[Any], probabilities: Floats, _: object = None) -> dict[str, float]:
    """AUC (the mean of one against the rest for three classes or more), log-loss and accuracy."""
    if probabilities.shape[1] == 2:
        area = roc_auc(labels == 1, probabilities[:, 1])
    else:
        area = mean_auc(labels, probabilities)
    return {
        "auc": area,
        "log_loss": log_loss(labels, probabilities),
        "accuracy": accuracy(labels, probabilities.argmax(axis=1)),
    }


def regression_scores(labels: Floats, predicted: Floats, _: object = None) -> dict[str, float]:
    """Root mean squared error, and R²: the share of the labels' variance that is explained (NaN without variance)."""
    residuals = labels - predicted
    variance = float(np.var(labels))
    mean_square = float(np.mean(residuals**2))
    return {"rmse": mean_square**0.5, "r2": 1 - mean_square / variance if variance > 0 else float("nan")}
