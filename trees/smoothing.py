"""Taking noise out of released leaf sums before they become values: post-processing, so free of privacy cost.

Two steps, both known to help on average and neither looking at anything but the release and the public structure:

    pooling     neighbouring leaves of a tree on one numeric feature, closer in Hessian mass than the noise can tell
                apart, share their sums
    shrinkage   the whole tree is scaled by the positive-part James-Stein factor: one that released little but noise,
                such as a tree over features that do not interact, adds little

All arithmetic is elementary or correctly rounded (`math.fsum`), so every party computes the same values.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.queries import TreeBatch

JAMES_STEIN_SHARE = 0.4
"""Share of the James-Stein correction that is applied; all of it takes too much from trees that carry signal."""

FloatArray = NDArray[np.float64]


def leaves_of_codes(trees: TreeBatch, tree: int) -> NDArray[np.int64]:
    """For a tree on a single feature, the leaf of each code: int64 [n_codes]."""
    codes = np.arange(trees.goes_left.shape[2])
    node = np.zeros(len(codes), dtype=np.int64)
    for _ in range(trees.depth):
        node = 2 * node + 2 - trees.goes_left[tree, node, codes]
    return node - (trees.n_leaves - 1)


def is_single(trees: TreeBatch, tree: int) -> bool:
    """Whether a tree asks for one feature only."""
    return bool((trees.feature[tree] == trees.feature[tree, 0]).all())


def reachable_leaves(trees: TreeBatch, tree: int) -> NDArray[np.bool_]:
    """Leaves that a record can reach by the public structure alone: bool [n_leaves]. The others hold only noise."""
    if is_single(trees, tree):
        reached = np.zeros(trees.n_leaves, dtype=bool)
        reached[leaves_of_codes(trees, tree)] = True
        return reached
    alive = np.ones(2 * trees.n_leaves - 1, dtype=bool)
    for node in range(trees.n_leaves - 1):
        alive[2 * node + 1] = alive[node]
        alive[2 * node + 2] = alive[node] and not trees.goes_left[tree, node].all()
    return alive[trees.n_leaves - 1 :]


def pooled(gradients: FloatArray, hessians: FloatArray, noise: float) -> tuple[FloatArray, FloatArray]:
    """Sums in which each leaf also counts its neighbours, the less the further away they are.

    The distance of two leaves is the Hessian mass between their middles, in standard deviations of the noise; the
    weight falls as 1 / (1 + t + t**2 / 2), which follows exp(-t) closely and needs no library's exponential.

    Args:
        gradients, hessians: float64 [n_leaves, n_outputs], leaves in the order of the feature's values.
        noise: standard deviation of the noise of one gradient sum, > 0.
    """
    mass = hessians.mean(axis=1)
    middle = np.array([math.fsum(mass[:leaf].tolist()) + mass[leaf] / 2 for leaf in range(len(mass))])
    steps = np.abs(middle[:, None] - middle[None, :]) / noise
    weights = 1 / (1 + steps + steps * steps / 2)
    return _weighted(weights, gradients), _weighted(weights, hessians)


def shrinkage(gradients: FloatArray, reachable: NDArray[np.bool_], noise: float) -> float:
    """The factor in [0, 1] for one tree's values.

    Source: James & Stein 1961, with the positive part of Baranchik 1964, for gradient sums of known noise.
    """
    sums = gradients[reachable].ravel()
    energy = math.fsum((sums * sums).tolist())
    if len(sums) <= 2 or energy <= 0:
        return 1.0
    return max(0.0, 1 - JAMES_STEIN_SHARE * (len(sums) - 2) * noise * noise / energy)


def _weighted(weights: FloatArray, sums: FloatArray) -> FloatArray:
    products = weights[:, :, None] * sums[None, :, :]
    flat = [math.fsum(column) for column in products.transpose(0, 2, 1).reshape(-1, len(sums)).tolist()]
    return np.array(flat).reshape(sums.shape)
