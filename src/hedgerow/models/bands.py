# SPDX-License-Identifier: Apache-2.0
"""What the noise alone could have drawn: the standard deviation of the shapes that a model shows.

The noise is ours, so its size is known, and all here is post-processing of the model file. It is known where features
take turns in an order that the noise cannot change; docs/uncertainty.md has the derivation and how it was checked.

    a leaf      its value is -rate clip(G / (H + ridge)), of noisy sums; H without noise is read off many trees.
    a shape     the sum of its trees, less its mean over the records.
    feedback    a later tree sees scores that earlier noise has moved, and takes a part of it back: the covariance over
                cells is carried from tree to tree. Other features' trees take back a part too, which no release tells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from hedgerow.errors import ModelError
from hedgerow.losses.tables import SCORE_UNIT, STEP_BITS
from hedgerow.methods.boosting.schedule import make_smoothing_rule
from hedgerow.methods.boosting.settings import resolve_boosting
from hedgerow.plan.plan import DEFAULT_ALGORITHM, Plan
from hedgerow.plan.registry import AbsentLoss
from hedgerow.privacy.events import LocalGaussianEvent
from hedgerow.privacy.ledger import Ledger
from hedgerow.training.steps import Run
from hedgerow.trees.ensemble import Ensemble
from hedgerow.trees.importances import Shape, find_leaves, find_tree_features, shape_function
from hedgerow.trees.leaf_sums import LeafSums
from hedgerow.trees.leaves import LeafRule

FloatArray = NDArray[np.float64]

FEEDBACK_SHARE, LEFT_STANDING = 0.8, 0.3
"""The variance of a shape is so much of that with a feature's own feedback, and so much of that without any: chosen on
two data sets (docs/uncertainty.md, "How")."""
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


@dataclass(frozen=True, eq=False)
class ShapeBands:
    """A shape and how far the noise may have moved it.

    Attributes:
        borders: float32 [n_edges], the numbers between the cells; empty for a categorical feature.
        scores: float64 [n_codes, n_outputs], less their mean over the records, in units of the ensemble's scores: per
            cell (or category, then "not listed"), and last for missing values.
        deviations: float64 [n_codes, n_outputs], standard deviations of the same by the noise, >= 0; 0 without noise.
    """

    borders: NDArray[np.float32]
    scores: FloatArray
    deviations: FloatArray

    def band(self, n_deviations: float) -> tuple[FloatArray, FloatArray]:
        """Both edges of the band of so many standard deviations: float64 [n_codes, n_outputs] each.

        Over other noise, the mean shape lies within 1 of them in about 68 % of the cells, within 2 in about 95 %.
        """
        reach = n_deviations * self.deviations
        return self.scores - reach, self.scores + reach


def why_unknown(plan: Plan, ensemble: Ensemble, ledger: Ledger) -> str:
    """Why a model's noise cannot be carried over to its shapes; empty where it can."""
    model = plan.model
    if model.algorithm != DEFAULT_ALGORITHM:
        return f"it was trained by {model.algorithm}"
    if isinstance(plan.loss, AbsentLoss):
        return f"its loss, {plan.loss.name}, is not installed"
    if any(release.is_recalibration for release in ledger):
        return "its level and slope are those of another site's rows"
    if model.weight_update == "averaging":
        return "its trees are averaged"
    settings = resolve_boosting(plan)
    if model.split_method != "totally_random" and (model.split_method == "hist" or settings.features_asked(plan) > 1):
        return "its splits were chosen by noisy sums"
    if settings.start != "none":
        return "its trees began with a private mean, a baseline or a linear model"
    if settings.interaction == "adaptive":
        return "noise had a part in the order of its features"
    if any(feature.monotone for feature in plan.features):
        return "its shapes were held to directions"
    return "its file has no leaf weights" if ensemble.n_trees and ensemble.leaf_weights is None else ""


def shape_bands(plan: Plan, ensemble: Ensemble, ledger: Ledger) -> tuple[ShapeBands, ...]:
    """The bands of every feature's shape, in the plan's order.

    Raises:
        ModelError: code "bands-unknown".
    """
    reason = why_unknown(plan, ensemble, ledger)
    if reason:
        raise ModelError("bands-unknown", reason=reason)
    settings, first = resolve_boosting(plan), 0
    run = Run.from_plan(plan, settings)
    sigmas, n_of_batch = np.zeros(ensemble.n_trees), np.ones(ensemble.n_trees, np.int64)
    for release in ledger.releases[len(plan.prepared) :]:
        if release.kind == LeafSums.__name__ and first < ensemble.n_trees:
            last = min(first + settings.batch_size, settings.n_trees)
            of_every_record = isinstance(release.event, LocalGaussianEvent)
            sigmas[first:last] = release.sigma * (math.sqrt(plan.privacy.n_records) if of_every_record else 1)
            n_of_batch[first:last] = last - first
            first = last
    shapes = [shape_function(ensemble, feature) for feature in range(ensemble.grid.n_features)]
    found = []
    for feature, shape in enumerate(shapes):
        trees = [tree for tree in range(ensemble.n_trees) if find_tree_features(ensemble, tree) == {feature}]
        deviations = np.zeros_like(shape.scores)
        if trees and sigmas[trees].any():
            rules = {tree: make_smoothing_rule(run, settings, int(n_of_batch[tree])) for tree in trees}
            leaves = [_leaves(run, rules[tree], ensemble, shape, tree, sigmas[tree]) for tree in trees]
            deviations = _deviations(leaves, shape.density, _answers(run, shapes, shape), ensemble.link.is_relative)
        found.append(ShapeBands(shape.borders, shape.centre_scores(), deviations))
    return tuple(found)


def _leaves(
    run: Run, rule: LeafRule, ensemble: Ensemble, shape: Shape, tree: int, sigma: float
) -> tuple[NDArray[np.intp], FloatArray, FloatArray, float]:
    """The used leaves of a tree on one feature: which of them each code reaches, int [n_codes]; how values answer to
    gradients, and vary by the noise, float64 [n_leaves, n_outputs]; and all Hessians as released, in real units."""
    loss, fitted, weights = run.loss, ensemble.fitted, ensemble.leaf_weights
    if fitted is None or weights is None:
        raise ValueError("a tree has leaves and weights")
    used, place = np.unique(find_leaves(ensemble, tree)[: len(shape.density)], return_inverse=True)
    released = weights[tree, used] / (loss.scales[-1] * (loss.n_statistics - max(1, loss.n_outputs)))
    gradient_noise = float(sigma / loss.scales[0])
    ridge, rate, clip = rule.ridge(gradient_noise), rule.learning_rate / rule.divisor, rule.leaf_clip
    sums = -fitted.values[tree, used] / SCORE_UNIT / rate * (released + ridge)[:, None]
    # What a sum says beyond its noise.
    is_above = np.abs(sums) > gradient_noise
    signal = np.where(is_above, sums - gradient_noise**2 / np.where(is_above, sums, 1.0), 0.0)[:, :, None]
    # Mean, mean square and mean derivative of clip(G / (H + ridge)), 0 where H <= 0, over the noise of G and of H.
    measured = np.bincount(place, weights=shape.density) * released.sum()
    hessians = measured[:, None, None] + float(sigma / loss.scales[-1]) * _NODES
    is_known = hessians > 0
    below = np.maximum(np.where(is_known, hessians + ridge, 1.0), 1e-9)
    middle, spread = signal / below, gradient_noise / below
    low, high = (-clip - middle) / spread, (clip - middle) / spread
    left, right = ndtr(low), ndtr(high)
    at_low, at_high = (np.exp(-edge * edge / 2) / math.sqrt(2 * math.pi) for edge in (low, high))
    inside = right - left
    means = clip * (1 - right - left) + middle * inside - spread * (at_high - at_low)
    squares = (
        clip**2 * (1 - right + left) + (middle**2 + spread**2) * inside
        - 2 * middle * spread * (at_high - at_low) - spread**2 * (high * at_high - low * at_low)
    )  # fmt: skip
    mean, square = np.where(is_known, means, 0) @ _WEIGHTS, np.where(is_known, squares, 0) @ _WEIGHTS
    gains = np.where(is_known, inside / below, 0) @ _WEIGHTS
    return place, rate * gains, rate**2 * np.maximum(square - mean**2, 0), float(released.sum())


def _answers(run: Run, shapes: list[Shape], shape: Shape) -> FloatArray:
    """How a cell's gradients answer a score, in units of its Hessians: float64 [n_codes].

    1 where the Hessian is the gradient's derivative. Of losses that are tables it is averaged over the scores of the
    cell's records, taken to be normal, with labels as predicted. Else none is assumed, which makes the band wider.
    """
    loss = run.loss
    if not len(loss.table):
        exact = run.plan.model.weight_update == "newton" or loss.is_quadratic
        return np.full(len(shape.density), 1.0 if exact else 0.0)
    table = loss.table / loss.scales
    scores = (np.arange(table.shape[1]) - (table.shape[1] - 1) / 2) * 2**STEP_BITS / SCORE_UNIT
    chance = 1 / (1 + np.exp(-scores))
    slope = np.gradient(table[:, :, 0], 2**STEP_BITS / SCORE_UNIT, axis=1)
    slopes = (1 - chance) * slope[0] + chance * slope[1]
    hessians = (1 - chance) * table[0, :, 1] + chance * table[1, :, 1]
    middle = sum(float((each.density @ each.scores)[0]) for each in shapes)
    others = sum(each.deviation() ** 2 for each in shapes) - shape.deviation() ** 2
    own, of_code = np.unique(shape.centre_scores()[:, 0], return_inverse=True)
    distance = scores - (middle + own[:, None])
    weights = np.exp(-(distance**2) / (2 * max(others, 1e-4)))
    return np.asarray((weights @ slopes) / (weights @ hessians))[of_code]


def _deviations(
    trees: list[tuple[NDArray[np.intp], FloatArray, FloatArray, float]],
    density: FloatArray,
    answers: FloatArray,
    is_relative: bool,
) -> FloatArray:
    """Standard deviations of the sum of trees, in training order, less its mean: float64 [n_codes, n_outputs]."""
    # Cells that no tree tells apart vary as one: of thousands, as halving has, few pieces are left.
    places, of_code = np.unique(np.stack([tree[0] for tree in trees]), axis=1, return_inverse=True)
    piece = of_code.reshape(-1)
    within, answer = np.bincount(piece, weights=density), np.bincount(piece, weights=density * answers)
    variances = np.zeros((len(within), trees[0][1].shape[1]))
    for share, taken_back in ((FEEDBACK_SHARE, answer), (LEFT_STANDING, np.zeros(len(within)))):
        for output in range(variances.shape[1]):
            covariance = np.zeros((len(within), len(within)))
            for (_, gains, noise, total), place in zip(trees, places, strict=True):
                taken = np.zeros((len(gains), len(within)))
                taken[place, np.arange(len(within))] = gains[place, output] * taken_back * total
                back = taken @ covariance
                covariance -= back[place] + back[place].T
                covariance += (np.diag(noise[:, output]) + back @ taken.T)[np.ix_(place, place)]
            shared = covariance @ within
            variances[:, output] += share * np.maximum(np.diag(covariance) - 2 * shared + within @ shared, 0)
    if is_relative:  # the mean over the outputs is taken off the scores
        n_outputs = variances.shape[1]
        variances = variances * (1 - 2 / n_outputs) + variances.sum(axis=1, keepdims=True) / n_outputs**2
    return np.asarray(np.sqrt(variances))[piece]
