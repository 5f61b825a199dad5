"""Kernels from released sums to leaf values; every party of a run does this while all others wait."""

from __future__ import annotations

import numba
import numpy as np

from hedgerow.trees.losses import SCORE_UNIT
from hedgerow.trees.smoothing import smoothed_ratios


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
