"""Kernels from released sums to leaf values; every party of a run does this while all others wait.

From a noisy leaf sum to a leaf's value: post-processing, so every choice here is free of privacy cost.

    newton, gradient   value = -learning_rate * clip(G / (H + ridge), leaf_clip)        CCS'22, equations 3 and 4;
                       0 where the noisy H is not positive: the leaf may well be empty  (the authors' code)
    averaging          value = share of the class (or mean label) in the leaf            CCS'22, section 4.4.1

ridge = leaf_ridge + noise_ridge * (known standard deviation of the noise in G): a leaf whose sum is mostly noise says
little. A batch of B trees moves the scores by the average of its trees (CCS'22, section 5.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from hedgerow.losses.tables import SCORE_UNIT, Loss
from hedgerow.protocol.queries import TreeBatch
from hedgerow.trees.smoothing import shapes_of, smoothed_ratios


@numba.njit(cache=True, nogil=True)
def read_leaves(sums, scales, n_gradients):  # type: ignore[no-untyped-def]
    """Gradients and Hessians in real units, and the Hessians of all classes together in integer units.

    Args:
        sums: int64 [B, n_leaves, n_statistics].
        scales: float64 [n_statistics], integer units per 1.0.
        n_gradients: the statistics before the Hessians, of which there is one for each gradient or one for all.

    Returns:
        float64 [B, n_leaves, n_gradients] twice, the Hessians cut off at zero, and int64 [B, n_leaves], not cut off.
    """
    n_trees, n_leaves, n_statistics = sums.shape
    gradients = np.empty((n_trees, n_leaves, n_gradients))
    hessians, totals = np.empty_like(gradients), np.zeros((n_trees, n_leaves), dtype=np.int64)
    for tree in range(n_trees):
        for leaf in range(n_leaves):
            own = sums[tree, leaf]
            for output in range(n_gradients):
                statistic = min(n_gradients + output, n_statistics - 1)
                gradients[tree, leaf, output] = own[output] / scales[output]
                hessians[tree, leaf, output] = max(own[statistic] / scales[statistic], 0.0)
            for statistic in range(n_gradients, n_statistics):
                totals[tree, leaf] += own[statistic]
    return gradients, hessians, totals


@numba.njit(cache=True, nogil=True)
def smoothed_values(  # type: ignore[no-untyped-def]
    gradients, hessians, reachable, is_ordered, noise, ridge, learning_rate, leaf_clip, divisor, largest
):
    """`values_of_ratios` of `smoothed_ratios`, whose arguments come first."""
    ratios = smoothed_ratios(gradients, hessians, reachable, is_ordered, noise, ridge)
    return values_of_ratios(ratios, learning_rate, leaf_clip, divisor, largest)


@numba.njit(cache=True, nogil=True)
def values_of_ratios(ratios, learning_rate, leaf_clip, divisor, largest):  # type: ignore[no-untyped-def]
    """-learning_rate clip(ratio) / divisor in units of 2**-16: int32 [B, n_leaves, n_outputs].

    Args:
        ratios: float64 [B, n_leaves, n_outputs].
        learning_rate, leaf_clip, divisor, largest: as in `hedgerow.trees.leaves.LeafRule`.
    """
    values = np.empty(ratios.shape, dtype=np.int32)
    reach = divisor * largest / SCORE_UNIT
    for place in np.ndindex(ratios.shape):
        value = -learning_rate * min(max(ratios[place], -leaf_clip), leaf_clip)
        values[place] = np.rint(min(max(value, -reach), reach) / divisor * SCORE_UNIT)
    return values


@numba.njit(cache=True, nogil=True)
def largest_sum(values):  # type: ignore[no-untyped-def]
    """The sum over trees of the largest magnitude of any of a tree's values, int32 [B, n_leaves, n_outputs]."""
    total = np.int64(0)
    for tree in range(len(values)):
        largest = np.int64(0)
        for value in values[tree].flat:
            largest = max(largest, abs(np.int64(value)))
        total += largest
    return total


@dataclass(frozen=True)
class LeafRule:
    """How sums become values.

    Attributes:
        weight_update: "newton", "gradient" or "averaging".
        learning_rate: factor on every value, > 0.
        leaf_ridge: lambda, >= 0, in units of the Hessian.
        noise_ridge: further ridge per standard deviation of the gradient's noise, >= 0.
        leaf_clip: largest magnitude of a value before the learning rate, > 0.
        divisor: number of trees whose values are averaged: the batch size, or all trees for "averaging".
        smooths: whether noise is taken out first, see `hedgerow.trees.smoothing`; the papers' rules do not.
        largest: largest magnitude of a value, in units of 2**-16; with all trees at it, scores must fit 32 bits.
    """

    weight_update: str
    learning_rate: float
    leaf_ridge: float
    noise_ridge: float
    leaf_clip: float
    divisor: int
    smooths: bool = False
    largest: int = 2**31 - 1

    def ridge(self, gradient_noise: float) -> float:
        """lambda plus the noise-aware part, for gradient sums with noise of this standard deviation."""
        return self.leaf_ridge + self.noise_ridge * gradient_noise


@dataclass(frozen=True, eq=False)
class NoisyLeaves:
    """Released sums in real units.

    Attributes:
        gradients: float64 [B, n_leaves, n_outputs].
        hessians: float64 [B, n_leaves, n_outputs], negative noise cut off at zero.
        gradient_noise: standard deviation of the noise of one gradient sum, in real units.
        hessian_noise: of one Hessian sum.
        integer_hessians: int64 [B, n_leaves], the Hessians added over the classes, in integer units as released.
    """

    gradients: NDArray[np.float64]
    hessians: NDArray[np.float64]
    gradient_noise: float
    hessian_noise: float
    integer_hessians: NDArray[np.int64]


def read_sums(sums: NDArray[np.int64], sigma: float, loss: Loss, n_trees: int) -> NoisyLeaves:
    """A release, int64 [n_trees * n_leaves * n_statistics] with noise `sigma` in integer units, in real units."""
    scales = loss.scales
    gradients, hessians, integers = read_leaves(
        sums.reshape(n_trees, -1, loss.n_statistics), scales, max(1, loss.n_outputs)
    )
    return NoisyLeaves(gradients, hessians, sigma / float(scales[0]), sigma / float(scales[-1]), integers)


def leaf_values(
    sums: NDArray[np.int64], sigma: float, loss: Loss, trees: TreeBatch, rule: LeafRule
) -> NDArray[np.int32]:
    """Values of a batch's leaves: int32 [n_trees, n_leaves, n_outputs of the model], in units of 2**-16."""
    n_trees = trees.n_trees
    if rule.weight_update == "averaging":
        return _to_units(_averages(sums, loss, n_trees) / rule.divisor)
    return values_of(read_sums(sums, sigma, loss, n_trees), trees, rule)


def values_of(leaves: NoisyLeaves, trees: TreeBatch, rule: LeafRule) -> NDArray[np.int32]:
    """`leaf_values` of sums that were read already; not for "averaging"."""
    gradients, hessians, noise = leaves.gradients, leaves.hessians, leaves.gradient_noise
    ridge, how = rule.ridge(noise), (rule.learning_rate, rule.leaf_clip, rule.divisor, rule.largest)
    if rule.smooths:
        shapes = shapes_of(trees)
        values = smoothed_values(gradients, hessians, shapes.reachable, shapes.is_ordered, noise, ridge, *how)
    else:
        # What little is known of a leaf whose Hessian is lost in the noise is mostly that it is nearly empty.
        ratios = np.where(hessians > 0, _quotient(gradients, hessians + ridge), 0)
        values = values_of_ratios(ratios, *how)
    return np.asarray(values)


def _quotient(numerator: NDArray[np.float64], denominator: NDArray[np.float64]) -> NDArray[np.float64]:
    """Their quotient, 0 where the denominator is 0: without a ridge an empty leaf says nothing."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def leaf_weights(sums: NDArray[np.int64], loss: Loss, n_trees: int, weight_update: str) -> NDArray[np.int64]:
    """How much of the data lies in each leaf, as released: int64 [n_trees, n_leaves], >= 0, in integer units.

    The noisy Hessians (counts, for "averaging"), added over the classes; negative noise is cut off at zero.
    """
    per_tree = sums.reshape(n_trees, -1, loss.n_statistics)
    only_counts = weight_update == "averaging" and loss.kind == "table" and not loss.is_share
    first = 0 if only_counts else max(1, loss.n_outputs)
    return np.asarray(np.maximum(per_tree[:, :, first:].sum(axis=2), 0))


def _averages(sums: NDArray[np.int64], loss: Loss, n_trees: int) -> NDArray[np.float64]:
    real = sums.reshape(n_trees, -1, loss.n_statistics) / loss.scales
    if loss.is_share:
        share = np.divide(real[..., :1], real[..., 1:], out=np.full_like(real[..., :1], 0.5), where=real[..., 1:] > 0)
        return np.clip(share, 0, 1)
    if loss.kind == "squared":
        count = np.maximum(real[:, :, 1:], 1.0)
        return np.clip(-real[:, :, :1] / count, -1, 1)
    counts = np.maximum(real, 0)
    total = counts.sum(axis=2, keepdims=True)
    even = np.full_like(counts, 1 / counts.shape[2])
    shares = np.divide(counts, total, out=even, where=total > 0)
    return np.asarray(shares[:, :, 1:] if counts.shape[2] == 2 else shares)


def _to_units(values: NDArray[np.float64]) -> NDArray[np.int32]:
    return np.rint(values * SCORE_UNIT).astype(np.int32)
