# SPDX-License-Identifier: Apache-2.0
"""Noise bands: the standard deviations that the noise alone gives the shapes of a model.

The noise is ours, so its size is known, and all here is post-processing of the model file. It is known where features
take turns in an order that the noise cannot change: docs/reading-a-model.md has the derivation and how it was checked.

    a leaf      its value is -rate clip(G / (H + ridge)), of noisy sums; H without noise is read off many trees.
    a shape     the sum of its trees, less its mean over the records.

A later tree sees scores that earlier noise has moved, and takes a part of it back: how much, no release tells. Half of
the variance is left standing: too much on most tables, too little where few trees ask features that have nothing to do
with one another (docs/reading-a-model.md, "How often they hold").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow import elementary
from hedgerow.errors import ModelError
from hedgerow.losses.kinds import Floats
from hedgerow.losses.tables import SCORE_UNIT
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

LEFT_STANDING = 0.5
"""Share of the variance of the leaves' own noise: chosen on Credit 1 and Credit 2, where .35 would be exact."""


@dataclass(frozen=True, eq=False)
class ShapeBands:
    """A shape with the standard deviations that the noise gives it.

    Attributes:
        borders: float32 [n_edges], the numbers between the cells; empty for a categorical feature.
        scores: float64 [n_codes, n_outputs], less their mean over the records, in units of the ensemble's scores: per
            cell (or category, then "not listed"), and last for missing values.
        deviations: float64 [n_codes, n_outputs], standard deviations of the same by the noise, >= 0; 0 without noise.
    """

    borders: NDArray[np.float32]
    scores: Floats
    deviations: Floats

    def band(self, n_deviations: float) -> tuple[Floats, Floats]:
        """Return both edges of the band of `n_deviations` standard deviations.

        They are float64 [n_codes, n_outputs] each.

        Over other noise, the mean shape lies within 1 of them in about 68 % of the cells, within 2 in about 95 %.
        """
        reach = n_deviations * self.deviations
        return self.scores - reach, self.scores + reach


def why_unknown(plan: Plan, ensemble: Ensemble, ledger: Ledger) -> str:
    """Return why a model's noise cannot be carried over to its shapes; "" if it can."""
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
    """Return the bands of every feature's shape, in the plan's order.

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
    found = []
    for feature in range(ensemble.grid.n_features):
        shape = shape_function(ensemble, feature)
        variances = np.zeros_like(shape.scores)
        for tree in range(ensemble.n_trees):
            if sigmas[tree] and find_tree_features(ensemble, tree) == {feature}:
                rule = make_smoothing_rule(run, settings, int(n_of_batch[tree]))
                variances += _variances(run, rule, ensemble, shape, tree, sigmas[tree])
        if ensemble.link.is_relative:  # the mean over the outputs is taken off the scores
            n_outputs = variances.shape[1]
            variances = variances * (1 - 2 / n_outputs) + elementary.add_up_rows(variances)[:, None] / n_outputs**2
        found.append(ShapeBands(shape.borders, shape.centre_scores(), np.sqrt(LEFT_STANDING * variances)))
    return tuple(found)


def _variances(run: Run, rule: LeafRule, ensemble: Ensemble, shape: Shape, tree: int, sigma: float) -> Floats:
    """Return the variance that one tree's noise adds to a shape: float64 [n_codes, n_outputs]."""
    loss, fitted, weights = run.loss, ensemble.fitted, ensemble.leaf_weights
    if fitted is None or weights is None:
        raise ValueError("a tree has leaves and weights")
    used, place = np.unique(find_leaves(ensemble, tree)[: len(shape.density)], return_inverse=True)
    released = weights[tree, used] / (loss.scales[-1] * (loss.n_statistics - max(1, loss.n_outputs)))
    noise, of_hessians = float(sigma / loss.scales[0]), float(sigma / loss.scales[-1])
    share = np.bincount(place, weights=shape.density)
    below = np.maximum(share * elementary.add_up(released) + rule.ridge(noise), 1e-9)[:, None]
    rate = rule.learning_rate / rule.divisor
    ratio = fitted.values[tree, used] / SCORE_UNIT / rate
    most = rule.leaf_clip * rule.leaf_clip
    of_leaves = rate * rate * np.minimum((noise * noise + (ratio * of_hessians) ** 2) / below**2, most)
    # A leaf's value less the mean over all records.
    return np.asarray(of_leaves[place] * (1 - 2 * share[place])[:, None] + elementary.times(of_leaves.T, share**2))
