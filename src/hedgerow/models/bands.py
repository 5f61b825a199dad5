"""What the noise alone could have drawn: the standard deviation of every shape that a model shows.

The noise is ours, so its size is known, and everything here is post-processing of the model file: plan, ledger, trees
and released leaf weights. Nothing is added to the file and nothing is paid for. docs/uncertainty.md has the derivation
and how it was checked by training again with other noise.

    a leaf      its value is -rate clip(G / (H + ridge)), G and H with known Gaussian noise. What H is without it
                follows from the density of the records over cells, which many trees have measured together. Where H
                may be near zero the ratio is no linear function: its variance is an integral over the noise of H.
    by spread   values that were expected by a spread (`trees.leaves.ValueSpread`) answer to all sums of their tree at
                once. Which spread it was is not in the file: it is taken to be the one by which neighbouring values
                would lie as far apart as they do.
    a shape     the sum of its trees, less its mean over the records.
    feedback    a later tree sees scores that earlier noise has moved, and takes a part of it back. Where trees take
                features in an order that the noise cannot change, the covariance over cells is carried from tree to
                tree. Other features' trees take back a part too, which no release tells: `LEFT_STANDING`.
    order       an adaptive order gives a feature more trees or fewer, and other cuts, by what the noise shows it. Other
                cuts show other parts of the shape, and of what is only in these records: shares of the mean squared
                shape per tree (`ORDER_SPREAD`) and of the records' own spread (`SAMPLE_SPREAD`) are added to the
                trees' own noise, which is counted without feedback.

The constants were chosen on two public sets on which no figure of docs/uncertainty.md is measured.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from hedgerow.errors import ModelError
from hedgerow.losses.tables import SCORE_UNIT, STEP_BITS
from hedgerow.methods.boosting.settings import filters_classes
from hedgerow.methods.registry import resolve
from hedgerow.plan.plan import DEFAULT_ALGORITHM, Plan
from hedgerow.privacy.events import LocalGaussianEvent
from hedgerow.privacy.ledger import Ledger
from hedgerow.protocol.queries import TreeBatch
from hedgerow.training.settings import Settings, features_asked
from hedgerow.training.steps import Run, leaf_rule
from hedgerow.trees.ensemble import Ensemble
from hedgerow.trees.importances import Shape, features_of_tree, leaf_of_code, shape_function
from hedgerow.trees.leaf_sums import LeafSums
from hedgerow.trees.leaves import LEVEL_OF_CHAIN, SPREADS, LeafRule
from hedgerow.trees.random_trees import shapes_of

FloatArray = NDArray[np.float64]

FEEDBACK_SHARE, LEFT_STANDING = 0.8, 0.3
"""A fixed order: the variance is so much of that with a feature's own feedback, and so much of that without any."""
ORDER_SPREAD, SAMPLE_SPREAD = 0.12, 0.1
"""An adaptive order: further variance, in units of the mean squared shape per tree, and of that of a fresh sample."""
CHOICE_OF_SPREAD = 1.75
"""Of values expected by a spread: variance in units of the noise of their own sums, as noise chose the spread."""
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


def why_unknown(plan: Plan, ensemble: Ensemble) -> str:
    """Why a model's noise cannot be carried over to its shapes; empty where it can."""
    model = plan.model
    if model.algorithm != DEFAULT_ALGORITHM:
        return f"it was trained by {model.algorithm}"
    if model.weight_update == "averaging":
        return "its trees are averaged"
    if model.split_method != "totally_random" and (
        model.split_method == "hist" or features_asked(plan, resolve(plan)) > 1
    ):
        return "its splits were chosen by noisy sums"
    if plan.label.is_survival:
        return "its trees began with the baseline of all records"
    if getattr(resolve(plan), "start", "none") != "none":
        return "its trees began with a private mean or a linear model"
    if any(feature.monotone for feature in plan.features):
        return "its shapes were held to directions"
    if filters_classes(plan, resolve(plan)):
        return "the sums of its classes were filtered together (`shrinkage = 0` turns that off)"
    if ensemble.n_trees and ensemble.leaf_weights is None:
        return "its file has no leaf weights"
    return ""


def shape_bands(plan: Plan, ensemble: Ensemble, ledger: Ledger) -> tuple[ShapeBands, ...]:
    """The bands of every feature's shape, in the plan's order.

    Raises:
        ModelError: code "bands-unknown".
    """
    reason = why_unknown(plan, ensemble)
    if reason:
        raise ModelError("bands-unknown", reason=reason)
    stretch, fitted = ensemble.stretch, ensemble.fitted
    if stretch == 1 or fitted is None:
        return _Source.of(plan, ensemble, ledger).all_bands()
    # As the trees were before the last release stretched them all; how far that one is off is not in the bands.
    values = np.rint(fitted.values / stretch).astype(np.int32)
    before = replace(ensemble, fitted=replace(fitted, values=values), stretch=1.0)
    bands = _Source.of(plan, before, ledger).all_bands()
    return tuple(
        replace(band, scores=shape_function(ensemble, feature).centred(), deviations=band.deviations * stretch)
        for feature, band in enumerate(bands)
    )


def known_deviations(plan: Plan, ensemble: Ensemble, ledger: Ledger) -> list[FloatArray] | None:
    """Standard deviations of every feature's shape, float64 [n_codes, n_outputs] each; None where not known."""
    if why_unknown(plan, ensemble):
        return None
    return [band.deviations for band in shape_bands(plan, ensemble, ledger)]


@dataclass(frozen=True, eq=False)
class _Leaves:
    """The used leaves of one tree on one feature.

    Attributes:
        place: int [n_codes], which of them each code reaches.
        values: float64 [n_leaves, n_outputs], in units of the score.
        released: float64 [n_leaves], Hessians with their noise, in real units, as the mean over the outputs.
        measured: float64 [n_leaves], the same by the density that all trees have measured.
        pooling: float64 [n_leaves, n_leaves], the weights with which their sums were added.
        is_expected: whether the values were expected by a spread.
        gradient_noise, hessian_noise: standard deviations, in real units.
        rule: how the sums became values.
    """

    place: NDArray[np.intp]
    values: FloatArray
    released: FloatArray
    measured: FloatArray
    pooling: FloatArray
    is_expected: bool
    gradient_noise: float
    hessian_noise: float
    rule: LeafRule

    @property
    def rate(self) -> float:
        return (self.rule.shape_rate if self.is_expected else self.rule.learning_rate) / self.rule.divisor

    @property
    def ridge(self) -> float:
        return self.rule.ridge(self.gradient_noise)

    def response(self, output: int) -> tuple[FloatArray, FloatArray]:
        """How values answer: [n_leaves, n_leaves] to gradients, and the covariance that the noise gives them."""
        ratios = -self.values[:, output] / self.rate
        if not (self.is_expected or self.rule.smooths):
            sums = ratios * (self.released + self.ridge)
            # What a sum says beyond its noise.
            is_above = np.abs(sums) > self.gradient_noise
            signal = np.where(is_above, sums - self.gradient_noise**2 / np.where(is_above, sums, 1.0), 0.0)
            variances, gains = _of_ratios(signal, self)
            return self.rate * np.diag(gains), self.rate**2 * np.diag(variances)
        if self.is_expected:
            gain = self._gain_by_spread(ratios)
            by_hessian = gain * ratios
        else:
            below = (self.pooling @ self.measured + self.ridge)[:, None]
            gain, by_hessian = self._shrunk() / below * self.pooling, ratios[:, None] / below * self.pooling
        noise = self.gradient_noise**2 * gain @ gain.T + self.hessian_noise**2 * by_hessian @ by_hessian.T
        return self.rate * gain, self.rate**2 * noise

    def _gain_by_spread(self, ratios: FloatArray) -> FloatArray:
        """How expected values answer to gradients: float64 [n_leaves, n_leaves].

        By the spread with which neighbours would lie as far apart as these do: the chosen one is not in the file.

        Args:
            ratios: float64 [n_leaves], the values before the rate.
        """
        apart = float((np.diff(ratios) ** 2).sum())
        best, closest = np.zeros((len(ratios), len(ratios))), math.inf
        for spread in SPREADS[1:].tolist():
            gain, covariance = chain_gain(self.measured, spread, self.gradient_noise, self.hessian_noise)
            steps = np.diff(gain, axis=0)
            likely = float(np.trace(steps @ covariance @ steps.T))
            if likely > 0 and apart > 0 and abs(math.log(likely / apart)) < closest:
                best, closest = gain, abs(math.log(likely / apart))
        return best

    def _shrunk(self) -> float:
        """The factor that the whole tree was scaled by, found from its values; see `trees.leaves._shrinkage`."""
        n_sums = self.values.size
        if n_sums <= 2:
            return 1.0
        pooled = -self.values / self.rate * (self.pooling @ self.released + self.ridge)[:, None]
        scaled = np.linalg.lstsq(self.pooling, pooled, rcond=1e-6)[0]
        energy = float((scaled**2).sum())
        if energy <= 0:
            return 0.0
        # f = 1 - taken f**2, for the sums were scaled by f before their energy is read here.
        taken = self.rule.shrinkage * (n_sums - 2) * self.gradient_noise**2 / energy
        return (math.sqrt(1 + 4 * taken) - 1) / (2 * taken) if taken > 1e-9 else 1.0


def chain_gain(
    hessians: FloatArray, spread: float, gradient_noise: float, hessian_noise: float
) -> tuple[FloatArray, FloatArray]:
    """How the values along a numeric feature answer to all sums of gradients: float64 [n_leaves, n_leaves].

    The normal prior of `hedgerow.trees.leaves.expected_values` with dense matrices. Passes from leaf to leaf give the
    values and the variance of each, and exactly so on every machine; here all answers are asked for, once for a model.

    Args:
        hessians: float64 [n_leaves], at least 0.
        spread: above 0.
        gradient_noise, hessian_noise: standard deviations, the first above 0.

    Returns:
        The answers, and the covariance that released sums have by that prior, of the same shape.
    """
    steps = np.full(len(hessians), spread**2)
    steps[0] *= LEVEL_OF_CHAIN
    walked = np.cumsum(steps)
    before = np.minimum.outer(walked, walked)
    known = gradient_noise**2 + (spread * hessian_noise) ** 2
    covariance = hessians[:, None] * before * hessians + known * np.eye(len(hessians))
    return before * hessians @ np.linalg.inv(covariance), covariance


def _of_ratios(signal: FloatArray, leaves: _Leaves) -> tuple[FloatArray, FloatArray]:
    """Variance of clip(G / (H + ridge)), 0 where H <= 0, and its mean derivative by G: float64 [n_leaves] each."""
    noise = leaves.gradient_noise
    hessians = leaves.measured[:, None] + leaves.hessian_noise * _NODES
    is_known = hessians > 0
    below = np.maximum(np.where(is_known, hessians + leaves.ridge, 1.0), 1e-9)
    middle, spread, clip = signal[:, None] / below, noise / below, leaves.rule.leaf_clip
    low, high = (-clip - middle) / spread, (clip - middle) / spread
    left, right = ndtr(low), ndtr(high)
    at_low, at_high = (np.exp(-edge * edge / 2) / math.sqrt(2 * math.pi) for edge in (low, high))
    inside = right - left
    means = clip * (1 - right - left) + middle * inside - spread * (at_high - at_low)
    squares = (
        clip**2 * (1 - right + left) + (middle**2 + spread**2) * inside
        - 2 * middle * spread * (at_high - at_low) - spread**2 * (high * at_high - low * at_low)
    )  # fmt: skip
    mean = np.where(is_known, means, 0) @ _WEIGHTS
    square = np.where(is_known, squares, 0) @ _WEIGHTS
    return np.maximum(square - mean**2, 0), np.where(is_known, inside / below, 0) @ _WEIGHTS


@dataclass(frozen=True, eq=False)
class _Source:
    """A model as its bands are read off it.

    Attributes:
        sigmas: float64 [n_trees], the noise of each tree's sums in integer units.
        batch_sizes: int [n_trees], of the batch that each tree belongs to.
        trees_of: per feature, the trees on it alone.
    """

    run: Run
    settings: Settings
    ensemble: Ensemble
    sigmas: FloatArray
    batch_sizes: NDArray[np.int64]
    trees_of: dict[int, list[int]]

    @classmethod
    def of(cls, plan: Plan, ensemble: Ensemble, ledger: Ledger) -> _Source:
        settings = resolve(plan)
        if not isinstance(settings, Settings):
            raise ValueError("boosted trees have settings of their own")
        kind, n_trees = LeafSums.__name__, ensemble.n_trees
        sigmas, sizes = np.zeros(n_trees), np.ones(n_trees, dtype=np.int64)
        first = 0
        for release in ledger.releases[len(plan.prepared) :]:
            if release.kind != kind or first >= n_trees:
                continue
            last = min(first + settings.batch_size, settings.n_trees)
            every_record = isinstance(release.event, LocalGaussianEvent)
            sigmas[first:last] = release.sigma * (math.sqrt(plan.privacy.n_records) if every_record else 1)
            sizes[first:last] = last - first
            first = last
        trees_of: dict[int, list[int]] = defaultdict(list)
        for tree in range(n_trees):
            asked = features_of_tree(ensemble, tree)
            if len(asked) == 1:
                trees_of[asked.pop()].append(tree)
        return cls(Run.of(plan, settings), settings, ensemble, sigmas, sizes, trees_of)

    def all_bands(self) -> tuple[ShapeBands, ...]:
        """One per feature."""
        return tuple(
            ShapeBands(shape.borders, shape.centred(), self._deviations(feature, shape))
            for feature, shape in enumerate(self.shapes)
        )

    @cached_property
    def shapes(self) -> Sequence[Shape]:
        return [shape_function(self.ensemble, feature) for feature in range(self.ensemble.grid.n_features)]

    @cached_property
    def _is_ordered(self) -> NDArray[np.bool_]:
        """Which trees are on one numeric feature: of the levels alone that every tree was trained with, bool [n_trees].

        Trees on several features may be a level deeper. In a model all trees are as deep as the deepest, and the nodes
        that the others get ask for the first feature.
        """
        if self.ensemble.fitted is None:
            return np.zeros(0, dtype=np.bool_)
        trees, n_nodes = self.ensemble.fitted.trees, 2**self.settings.max_depth - 1
        own = TreeBatch(trees.feature[:, :n_nodes], trees.goes_left[:, :n_nodes], trees.threshold[:, :n_nodes])
        return np.asarray(shapes_of(own).is_ordered)

    def _deviations(self, feature: int, shape: Shape) -> FloatArray:
        trees, n_outputs = self.trees_of.get(feature, []), self.ensemble.n_outputs
        if not trees or not self.sigmas[trees].any():
            return np.zeros_like(shape.scores)
        every = [self._leaves(tree, shape) for tree in trees]
        # Cells that no tree tells apart vary as one: of thousands, as halving has, few pieces are left.
        places, of_code = np.unique(np.stack([own.place for own in every]), axis=1, return_inverse=True)
        piece = of_code.reshape(-1)
        leaves = [replace(own, place=place) for own, place in zip(every, places, strict=True)]
        density = np.bincount(piece, weights=shape.density).astype(np.float64)
        if self.settings.interaction == "adaptive":
            own = np.stack([_carried(leaves, density, None, out) for out in range(n_outputs)], axis=1)
            sample = np.stack([_sampled(leaves, density, out) for out in range(n_outputs)], axis=1)
            order = shape.density @ shape.centred() ** 2 / len(trees)
            own *= CHOICE_OF_SPREAD if any(tree.is_expected for tree in leaves) else 1.0
            return np.sqrt(self._comparable(own + SAMPLE_SPREAD * sample) + ORDER_SPREAD * order)[piece]
        answer = np.bincount(piece, weights=shape.density * self._answers(shape)).astype(np.float64)
        parts = [
            FEEDBACK_SHARE * _carried(leaves, density, answer, output)
            + LEFT_STANDING * _carried(leaves, density, None, output)
            for output in range(n_outputs)
        ]
        return np.sqrt(self._comparable(np.stack(parts, axis=1)))[piece]

    def _comparable(self, variances: FloatArray) -> FloatArray:
        """Variances [n_codes, n_outputs] of scores whose mean over the outputs is taken off where that is done."""
        if not self.ensemble.link.is_relative:
            return variances
        n_outputs = variances.shape[1]
        return np.asarray(variances * (1 - 2 / n_outputs) + variances.sum(axis=1, keepdims=True) / n_outputs**2)

    def _leaves(self, tree: int, shape: Shape) -> _Leaves:
        loss, fitted, weights = self.run.loss, self.ensemble.fitted, self.ensemble.leaf_weights
        if fitted is None or weights is None:
            raise ValueError("a tree has leaves and weights")
        used, place = np.unique(leaf_of_code(self.ensemble, tree)[: len(shape.density)], return_inverse=True)
        n_summed = loss.n_statistics - max(1, loss.n_outputs)
        released = weights[tree, used] / (loss.scales[-1] * n_summed)
        gradient_noise = float(self.sigmas[tree] / loss.scales[0])
        rule = leaf_rule(self.run, int(self.batch_sizes[tree]))
        pooling, is_ordered = np.eye(len(used)), bool(self._is_ordered[tree])
        if rule.smooths and gradient_noise > 0 and len(used) > 2 and is_ordered:
            middles = np.cumsum(released) - released / 2
            steps = np.abs(middles[:, None] - middles) / gradient_noise
            # As `trees.leaves._pooled` has it.
            pooling = 1 / (1 + steps + steps * steps / 2)
        return _Leaves(
            place=place,
            values=fitted.values[tree, used] / SCORE_UNIT,
            released=released,
            measured=np.bincount(place, weights=shape.density) * released.sum(),
            pooling=pooling,
            is_expected=rule.shape_rate > 0 and is_ordered,
            gradient_noise=gradient_noise,
            hessian_noise=float(self.sigmas[tree] / loss.scales[-1]),
            rule=rule,
        )

    def _answers(self, shape: Shape) -> FloatArray:
        """How a cell's gradients answer a score, in units of its Hessians: float64 [n_codes].

        1 where the Hessian is the gradient's derivative. Joint clipping and constant Hessians make it less: for losses
        that are tables it is averaged over the scores of the cell's records, taken to be normal, with labels as the
        model predicts them. For what is left, none is assumed, which makes the band wider.
        """
        loss = self.run.loss
        if loss.kind != "table":
            exact = self.run.plan.model.weight_update == "newton" or loss.kind == "squared"
            return np.full(len(shape.density), 1.0 if exact else 0.0)
        table = loss.table / loss.scales
        scores = (np.arange(table.shape[1]) - (table.shape[1] - 1) / 2) * 2**STEP_BITS / SCORE_UNIT
        chance = 1 / (1 + np.exp(-scores))
        slope = np.gradient(table[:, :, 0], 2**STEP_BITS / SCORE_UNIT, axis=1)
        slopes = (1 - chance) * slope[0] + chance * slope[1]
        hessians = (1 - chance) * table[0, :, 1] + chance * table[1, :, 1]
        middle = sum(float((each.density @ each.scores)[0]) for each in self.shapes)
        others = sum(each.deviation() ** 2 for each in self.shapes) - shape.deviation() ** 2
        own, of_code = np.unique(shape.centred()[:, 0], return_inverse=True)
        distance = scores - (middle + own[:, None])
        weights = np.exp(-(distance**2) / (2 * max(others, 1e-4)))
        return np.asarray((weights @ slopes) / (weights @ hessians))[of_code]


def _sampled(leaves: Sequence[_Leaves], density: FloatArray, output: int) -> FloatArray:
    """As `_carried` without feedback, for the spread of the records in place of the noise: float64 [n_pieces].

    A sum of gradients over a fresh sample varies by about its sum of Hessians.
    """
    covariance = np.zeros((len(density), len(density)))
    for tree in leaves:
        gain, _ = tree.response(output)
        covariance += ((gain * np.maximum(tree.measured, 0)) @ gain.T)[np.ix_(tree.place, tree.place)]
    return _centred(covariance, density)


def _carried(leaves: Sequence[_Leaves], density: FloatArray, answer: FloatArray | None, output: int) -> FloatArray:
    """Variance of one output of the sum of trees, less its mean over the records: float64 [n_pieces].

    Args:
        leaves: of each tree, in training order; their places are of pieces, that is of cells that no tree tells apart.
        density: float64 [n_pieces].
        answer: density times answer (`_Source._answers`), float64 [n_pieces]; None for trees that do not answer what
            earlier ones have moved.
    """
    n_pieces = len(density)
    covariance = np.zeros((n_pieces, n_pieces))
    for tree in leaves:
        gain, noise = tree.response(output)
        if answer is not None:
            taken = np.zeros((len(gain), n_pieces))
            taken[tree.place, np.arange(n_pieces)] = answer * tree.released.sum()
            taken = gain @ taken
            back = taken @ covariance
            covariance -= back[tree.place] + back[tree.place].T
            noise = noise + back @ taken.T
        covariance += noise[np.ix_(tree.place, tree.place)]
    return _centred(covariance, density)


def _centred(covariance: FloatArray, density: FloatArray) -> FloatArray:
    """Variances of the pieces' scores, less their mean over the records."""
    shared = covariance @ density
    return np.maximum(np.diag(covariance) - 2 * shared + density @ shared, 0)
