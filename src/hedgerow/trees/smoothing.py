"""Taking noise out of released leaf sums before they become values: post-processing, so free of privacy cost.

Two steps, both known to help on average and neither looking at anything but the release and the public structure:

    pooling     neighbouring leaves of a tree on one numeric feature, closer in Hessian mass than the noise can tell
                apart, share their sums
    shrinkage   the whole tree is scaled by the positive-part James-Stein factor: one that released little but noise,
                such as a tree over features that do not interact, adds little

All arithmetic is elementary, one operation after the other in a fixed order, so every party computes the same values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numba
import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.queries import TreeBatch
from hedgerow.trees.random_trees import shapes_of_trees

JAMES_STEIN_SHARE = 0.4
"""Share of the James-Stein correction that is applied; all of it takes too much from trees that carry signal."""


@dataclass(frozen=True, eq=False)
class Shapes:
    """What the public structure of a batch says about its leaves.

    Attributes:
        single: int64 [B], the feature of a tree that asks for one only, -1 for others.
        is_ordered: bool [B], trees whose leaves are stretches of one numeric feature, in the order of its values.
        leaf_of_code: uint8 [B, n_codes], the leaf of each code of a tree on a single feature; 0 for others.
        reachable: bool [B, n_leaves], leaves that a record can reach; the others hold only noise.
    """

    single: NDArray[np.int64]
    is_ordered: NDArray[np.bool_]
    leaf_of_code: NDArray[np.uint8]
    reachable: NDArray[np.bool_]


@lru_cache(maxsize=2)
def shapes_of(trees: TreeBatch) -> Shapes:
    """The shapes of a batch; kept, since its sums, its values and its update all ask for them."""
    return Shapes(*shapes_of_trees(trees.feature, trees.goes_left, trees.threshold))


@numba.njit(cache=True, nogil=True)
def smoothed_ratios(gradients, hessians, reachable, is_ordered, noise, ridge):  # type: ignore[no-untyped-def]
    """G / (H + ridge) of every leaf after pooling and shrinkage: float64 [B, n_leaves, n_outputs].

    Args:
        gradients, hessians: float64 [B, n_leaves, n_outputs].
        reachable: bool [B, n_leaves]; the other leaves hold only noise, and get 0.
        is_ordered: bool [B], trees whose leaves are stretches of one numeric feature, in the order of its values.
        noise: standard deviation of the noise of one gradient sum.
        ridge: at least 0; where H + ridge is 0 the ratio is 0, as an empty leaf says nothing without a ridge.
    """
    n_trees, n_leaves, n_outputs = gradients.shape
    ratios = np.zeros((n_trees, n_leaves, n_outputs))
    leaves, middle = np.empty(n_leaves, dtype=np.int64), np.empty(n_leaves)
    for tree in range(n_trees):
        n_used = 0
        for leaf in range(n_leaves):
            if reachable[tree, leaf]:
                leaves[n_used] = leaf
                n_used += 1
        used = leaves[:n_used]
        pools = is_ordered[tree] and n_used > 2 and noise > 0
        if pools:
            _middles(hessians[tree], used, middle)
        factor = _shrinkage(gradients[tree], used, noise)
        for i in range(n_used):
            for output in range(n_outputs):
                g, h = gradients[tree, used[i], output], hessians[tree, used[i], output]
                if pools:
                    g, h = _pooled(gradients[tree, :, output], hessians[tree, :, output], used, middle, i, noise)
                if h + ridge > 0:
                    ratios[tree, used[i], output] = g / (h + ridge) * factor
    return ratios


@numba.njit(cache=True, nogil=True)
def _middles(hessians, used, middle):  # type: ignore[no-untyped-def]
    """The Hessian mass below each leaf's middle."""
    below = 0.0
    for i in range(len(used)):
        mass = 0.0
        for output in range(hessians.shape[1]):
            mass += hessians[used[i], output]
        mass /= hessians.shape[1]
        middle[i] = below + mass / 2
        below += mass


@numba.njit(cache=True, nogil=True)
def _pooled(gradients, hessians, used, middle, at, noise):  # type: ignore[no-untyped-def]
    """One leaf's sums with its neighbours', the less the further away they are.

    The distance of two leaves is the Hessian mass between their middles, in standard deviations of the noise; the
    weight falls as 1 / (1 + t + t**2 / 2), which follows exp(-t) closely and needs no library's exponential.
    """
    g, h = 0.0, 0.0
    for i in range(len(used)):
        steps = abs(middle[at] - middle[i]) / noise
        weight = 1 / (1 + steps + steps * steps / 2)
        g += weight * gradients[used[i]]
        h += weight * hessians[used[i]]
    return g, h


@numba.njit(cache=True, nogil=True)
def _shrinkage(gradients, used, noise):  # type: ignore[no-untyped-def]
    """The factor in [0, 1] for one tree's values.

    Source: James & Stein 1961, with the positive part of Baranchik 1964, for gradient sums of known noise.
    """
    energy, n_sums = 0.0, len(used) * gradients.shape[1]
    for i in range(len(used)):
        for output in range(gradients.shape[1]):
            energy += gradients[used[i], output] ** 2
    if n_sums <= 2 or energy <= 0:
        return 1.0
    return max(0.0, 1 - JAMES_STEIN_SHARE * (n_sums - 2) * noise * noise / energy)
