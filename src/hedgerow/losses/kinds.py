# SPDX-License-Identifier: Apache-2.0
"""The parts of a kind of loss; each kind has a file and a line in `hedgerow.losses.registry`.

Parts that several kinds share stand here as well: the links of plain numbers and shares, averaging, and the measures of
how well predictions fit labels.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hedgerow import elementary
from hedgerow.losses.tables import LEVEL_UNIT, RECORD_NORM, SCORE_UNIT, STEPS, Loss, check_units, loss_from_table
from hedgerow.plan.plan import Label, Plan
from hedgerow.plan.registry import LabelKind

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DEFAULT_CLIP = 0.25
"""The joint clip of most losses that are clipped without being asked."""
_MIN_SHARE = 1e-12


@dataclass(frozen=True)
class LevelParts:
    """Labels and predictions of some records, from which follows how far the level of predictions is off.

    Attributes:
        labels, predictions: int64 [n_outputs, n], in units of the range / LEVEL_UNIT, above its lower end.
        rises: how much predictions rise with the score, per `Link.level_step`, in the same units.

    Chances are whole multiples of 2**3, units of 1 / RECORD_NORM.
    """

    labels: Ints
    predictions: Ints
    rises: Ints


@dataclass(frozen=True)
class Objective:
    """The objective of XGBoost for a model's sums.

    Attributes:
        name, parameters: the objective and its own part of XGBoost's JSON; no name where none predicts the same.
        half, middle: XGBoost's margin is middle + half * score.
        base: the `base_score` that XGBoost adds nothing for.
        base_is_margin: whether another `base_score` is added as it is, so that it may hold the middle.
        clip: bounds of a prediction that XGBoost does not keep to.
    """

    name: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    half: float = 1.0
    middle: float = 0.0
    base: float = 0.0
    base_is_margin: bool = False
    clip: tuple[float, float] | None = None


class Link(ABC):
    """The meaning of a score, the sum of a model's values.

    A link of classes is a `ClassLink`, one of numbers a `NumberLink`.
    """

    name: ClassVar[str]
    is_relative: ClassVar[bool] = False
    """True if only differences between a record's scores mean anything."""

    level_curve: ClassVar[str] = ""
    """How predictions rise as all scores do: "straight", "exponential", or "logistic"; "" where they are no means."""
    level_step: ClassVar[int] = 1
    """The score by which a straight curve rises by all of the range."""
    level_halvings: ClassVar[int] = 0
    """The range that `predict_level` counts in is 2 to the power of this times the label's unit, for times: events."""

    def predict_level(self, scores: Ints, kept: Ints, label: Label, baseline: tuple[int, ...]) -> LevelParts:
        """Return labels and predictions of records, in integers.

        Args:
            scores: int64 [n_outputs, n], in units of 2**-16.
            kept: int64 [n], labels as nodes keep them.
            baseline: of times to an event, in steps of 1/256.

        Raises:
            ValueError: predictions of such scores are no means.
        """
        raise ValueError("predictions are no means")

    # Links of classes

    def probabilities(self, scores: Floats) -> Floats:
        """Return class probabilities, float64 [n, n_classes], of scores [n_outputs, n].

        Raises:
            ValueError: the scores are of a number.
        """
        raise ValueError("a number has no class probabilities")

    def decision(self, scores: Floats) -> Floats:
        """Return log-odds of the last of two classes, float64 [n], or log-weights of several [n, K]."""
        logs = elementary.log(np.clip(self.probabilities(scores), _MIN_SHARE, 1))
        return np.asarray(logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs)

    threshold: ClassVar[int] = 0
    """The largest score for which the first of two classes is predicted, in units of 2**-16."""

    def chance(self, places: Floats) -> Floats:
        """Return the probability of the last of two classes, for scores in units of 2**-16."""
        raise ValueError("these are no scores of two classes")

    def weights(self, scores: Ints) -> Ints:
        """Return whole numbers in proportion to several classes' probabilities: int64 [n_classes, n]."""
        raise ValueError("these are no scores of several classes")

    def choose(self, scores: Ints) -> Ints:
        """Return the index of the predicted class, of several classes: int64 [n]."""
        return np.asarray(self.weights(scores).argmax(axis=0))

    # Links of numbers

    def values(self, scores: Floats, label: Label) -> Floats:
        """Return predictions within the label's bounds: float64 [n], of scores [n]."""
        raise ValueError("classes have no value")

    def units(self, scores: Ints, label: Label) -> Ints:
        """Return predictions scaled to [-1, 1] as integers in units of 2**-16, from scores in such units.

        Labels are kept in the same scale.
        """
        raise ValueError("classes have no value")

    # Links of either

    @abstractmethod
    def predict(self, scores: Floats, label: Label) -> NDArray[Any]:
        """Return predicted classes by name, or values: [n], of scores [n_outputs, n]."""

    def compare(self, scores: Ints, kept: Ints, label: Label) -> tuple[Floats, Floats] | None:
        """Return predictions and their targets, or None where squared errors mean nothing.

        Both are float64 [n, m], of scores [n_outputs, n] and labels as kept.
        """
        return None

    @abstractmethod
    def objective(self, label: Label) -> Objective:
        """Return the XGBoost objective for the scores, with the rule from a score to a margin."""

    @abstractmethod
    def axis(self, label: Label) -> str:
        """Return the words for scores at the axis of a plot."""

    def axis_scale(self, label: Label) -> float:
        """Return the units of `axis` for a score of 1."""
        return 1.0


class ClassLink(Link):
    """A link of classes."""

    def predict(self, scores: Floats, label: Label) -> NDArray[Any]:
        return np.asarray(np.array(label.classes)[self.probabilities(scores).argmax(axis=1)])

    def compare(self, scores: Ints, kept: Ints, label: Label) -> tuple[Floats, Floats]:
        is_class = (np.arange(len(label.classes))[:, None] == kept).T
        return self.probabilities(scores / SCORE_UNIT), is_class.astype(np.float64)


class NumberLink(Link):
    """A link of numbers."""

    def predict(self, scores: Floats, label: Label) -> NDArray[Any]:
        return self.values(scores[0], label)

    def compare(self, scores: Ints, kept: Ints, label: Label) -> tuple[Floats, Floats] | None:
        return self.units(scores, label).T / SCORE_UNIT, kept[:, None] / SCORE_UNIT

    def predict_level(self, scores: Ints, kept: Ints, label: Label, baseline: tuple[int, ...]) -> LevelParts:
        labels, predictions = (kept[None] + SCORE_UNIT, self.units(scores, label) + SCORE_UNIT)
        if self.level_curve == "straight":
            return LevelParts(labels, predictions, np.where(np.abs(scores) < SCORE_UNIT, LEVEL_UNIT, 0))
        return LevelParts(labels, predictions, predictions)


SQUARES = {"scale_pos_weight": "1"}
_SQUARED_ERROR = {"reg_loss_param": SQUARES}


class IdentityLink(NumberLink):
    """A link of numbers: the score is the number, scaled from its bounds to [-1, 1]."""

    name = "identity"
    level_curve = "straight"
    level_step = 2

    def values(self, scores: Floats, label: Label) -> Floats:
        low, high = label.bounds
        return np.asarray(np.clip((low + high) / 2 + (high - low) / 2 * scores, low, high))

    def units(self, scores: Ints, label: Label) -> Ints:
        return np.clip(scores, -SCORE_UNIT, SCORE_UNIT)

    def objective(self, label: Label) -> Objective:
        low, high = label.bounds
        half, middle = (high - low) / 2, (low + high) / 2
        return Objective("reg:squarederror", _SQUARED_ERROR, half, middle, base_is_margin=True, clip=(low, high))

    def axis(self, label: Label) -> str:
        return f"units of {label.name}"

    def axis_scale(self, label: Label) -> float:
        low, high = label.bounds
        return (high - low) / 2


class Share(ClassLink):
    """A link of averaged shares: of the last of two classes, or of each of several."""

    name = "probability"
    threshold = SCORE_UNIT // 2

    def probabilities(self, scores: Floats) -> Floats:
        if len(scores) == 1:
            positive = np.clip(scores[0], 0, 1)
            return np.stack([1 - positive, positive], axis=1)
        shares = np.clip(scores, _MIN_SHARE, 1)
        return np.asarray((shares / shares.sum(axis=0)).T)

    def chance(self, places: Floats) -> Floats:
        return places / SCORE_UNIT

    def weights(self, scores: Ints) -> Ints:
        return np.clip(scores, 0, SCORE_UNIT)

    def objective(self, label: Label) -> Objective:
        """Return a squared error for two classes; no objective divides shares of several by their sum."""
        if label.n_outputs > 1:
            return Objective()
        return Objective("reg:squarederror", _SQUARED_ERROR, base_is_margin=True, clip=(0.0, 1.0))

    def axis(self, label: Label) -> str:
        return "probability" if label.n_outputs > 1 else f"probability of {label.name} = {label.classes[-1]}"


@dataclass(frozen=True)
class Deviance:
    """A distance of predictions from labels, for a loss other than squares of residuals.

    Attributes:
        name: the name of its mean among the scores of an evaluation.
        of: the deviance of labels and predictions within their bounds, float64 [n] each, at least 0.
        per_error: the most that a record counts, per 1.0 of the largest error that counts, where noise is added.
    """

    name: str
    of: Callable[[Floats, Floats, Label], Floats]
    per_error: float


@dataclass(frozen=True)
class LossKind:
    """A loss, and the defaults that suit it.

    Attributes:
        label: the type of labels that it is for.
        link: the meaning of a score.
        build: the loss of a plan from its joint clip and its Hessian scale c, None for the loss's own; PlanError when
            they leave a statistic no integers, or more than the kernels hold.
        scores: how well predictions fit labels, by the name of each measure: classes by index and the probabilities of
            all, float64 [n, n_classes], or numbers and predicted numbers; and the plan's label.
        noise_ridge: the default leaf ridge per standard deviation of the gradient's noise.
        clipped_updates: weight updates whose records are clipped where the plan leaves it open.
        clip: the joint clip there.
        clipped_hessian_scale: the default c under that clip.
        averaging: the kind of loss for `weight_update = "averaging"`; None without one.
        starts: the starts of boosted trees that a plan may ask for: "mean", "linear".
        has_class_weights: whether `build` weighs records by class if a plan asks for it.
        cuts_again: whether boosted trees cut features again by default, see `hedgerow.trees.binning.cuts_again`.
        deviance: the measure of numbers in evaluations besides their errors; None for squares.
        doubles: whether boosted trees may double residuals where labels fill little of their range.
        predicts_mean: whether predictions are means of labels, whose level a last release may put right.
    """

    label: LabelKind
    link: Link
    build: Callable[[Plan, float | None, float | None], Loss]
    scores: Callable[[Any, Floats, Label], dict[str, float]]
    noise_ridge: float = 1.5
    clipped_updates: tuple[str, ...] = ()
    clip: float = DEFAULT_CLIP
    clipped_hessian_scale: float | None = None
    averaging: LossKind | None = field(default=None, repr=False)
    deviance: Deviance | None = None
    starts: tuple[str, ...] = ()
    cuts_again: bool = False
    has_class_weights: bool = False
    doubles: bool = True
    predicts_mean: bool = False


# Averaging: leaves hold shares of classes, or means of a numeric label, instead of gradients (CCS'22, section 4.4.1)


def _shares(plan: Plan, _: float | None, hessian_scale: float | None) -> Loss:
    if len(plan.label.classes) == 2 and hessian_scale is not None:
        scale = RECORD_NORM / math.hypot(1, hessian_scale)
        check_units(scale, hessian_scale * scale)
        pairs = np.array([[0.0, hessian_scale], [1.0, hessian_scale]])
        table = np.repeat(pairs[:, None, :], STEPS, axis=1)
        return replace(loss_from_table(table, scale, np.array([1.0, hessian_scale])), is_share=True)
    counts = np.repeat(np.eye(len(plan.label.classes))[:, None, :], STEPS, axis=1)
    return loss_from_table(counts, float(RECORD_NORM), np.ones(counts.shape[-1]), n_outputs=0)


def _means(_: Plan, _joint_clip: float | None, _hessian_scale: float | None) -> Loss:
    c = 0.5
    scales = RECORD_NORM / math.hypot(1, c) * np.array([1.0, c])
    units = np.floor(scales).astype(int)
    empty = np.empty((0, STEPS, 2), dtype=np.int16)
    norm_squared = int(units[0] ** 2 + units[1] ** 2)
    # The one score stays 0 until all trees are there.
    return Loss("squared", 1, 2, units.astype(float), empty, norm_squared, int(units[0]), int(units[1]))


def shares(label: LabelKind) -> LossKind:
    """Return the kind of loss that averages shares of classes."""
    return LossKind(label, Share(), _shares, classification_scores)


def means(label: LabelKind, scores: Callable[[Any, Floats, Label], dict[str, float]]) -> LossKind:
    """Return the kind of loss that averages numbers; `scores` as in `LossKind`."""
    return LossKind(label, IdentityLink(), _means, scores, noise_ridge=12.0)


# Measures

_MIN_PROBABILITY = 1e-15


def roc_auc(is_positive: NDArray[Any], scores: NDArray[Any]) -> float:
    """Return the area under the ROC curve.

    It is the chance that a positive record scores above a negative one; ties count half.

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
    """Return the mean AUC of each class against all others, over the classes that occur.

    Args:
        labels: int [n], class indices.
        probabilities: float64 [n, n_classes].
    """
    areas = [roc_auc(labels == index, probabilities[:, index]) for index in range(probabilities.shape[1])]
    known = [area for area in areas if not np.isnan(area)]
    return elementary.mean(known) if known else float("nan")


def log_loss(labels: NDArray[Any], probabilities: Floats) -> float:
    """Return the mean negative log-probability of the true class, in nats.

    Args:
        labels: int [n], class indices.
        probabilities: float64 [n, n_classes].
    """
    chosen = probabilities[np.arange(len(labels)), labels]
    return -elementary.mean(elementary.log(np.clip(chosen, _MIN_PROBABILITY, 1)))


def accuracy(labels: NDArray[Any], predicted: NDArray[Any]) -> float:
    """Return the share of records whose class is predicted."""
    return elementary.mean(np.asarray(labels) == np.asarray(predicted))


def classification_scores(labels: NDArray[Any], probabilities: Floats, _: object = None) -> dict[str, float]:
    """Return AUC, log-loss and accuracy.

    For three classes or more the AUC is the mean of one against the rest.
    """
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
    """Return the root mean squared error and R².

    R² is the share of the labels' variance that is explained, NaN without variance.
    """
    residuals = labels - predicted
    variance = elementary.mean((labels - elementary.mean(labels)) ** 2)
    mean_square = elementary.mean(residuals**2)
    return {"rmse": math.sqrt(mean_square), "r2": 1 - mean_square / variance if variance > 0 else float("nan")}
