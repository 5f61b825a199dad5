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
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.queries import TreeBatch

JAMES_STEIN_SHARE = 0.4
"""Share of the James-Stein correction that is applied; all of it takes too much from trees that carry signal."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Shapes:
    """What the public structure of a batch says about its leaves.

    Attributes:
        is_single: bool [B], whether a tree asks for one feature only.
        leaf_of_code: int64 [B, n_codes], the leaf of each code; meaningful for trees on a single feature.
        reachable: bool [B, n_leaves], leaves that a record can reach; the others hold only noise.
    """

    is_single: NDArray[np.bool_]
    leaf_of_code: NDArray[np.int64]
    reachable: NDArray[np.bool_]


@lru_cache(maxsize=2)
def shapes_of(trees: TreeBatch) -> Shapes:
    """The shapes of a batch; kept, since its sums, its values and its update all ask for them."""
    n_codes, n_inner = trees.goes_left.shape[2], trees.n_leaves - 1
    every, codes = np.arange(trees.n_trees)[:, None], np.arange(n_codes)[None, :]
    node = np.zeros((trees.n_trees, n_codes), dtype=np.int64)
    for _ in range(trees.depth):
        node = 2 * node + 2 - trees.goes_left[every, node, codes]
    leaf_of_code = node - n_inner
    is_single = (trees.feature == trees.feature[:, :1]).all(axis=1)
    by_code = np.zeros((trees.n_trees, trees.n_leaves), dtype=bool)
    by_code[every, leaf_of_code] = True
    has_right = (trees.goes_left == 0).any(axis=2)
    alive = np.ones((trees.n_trees, 2 * trees.n_leaves - 1), dtype=bool)
    for inner in range(n_inner):
        alive[:, 2 * inner + 1] = alive[:, inner]
        alive[:, 2 * inner + 2] = alive[:, inner] & has_right[:, inner]
    return Shapes(is_single, leaf_of_code, np.where(is_single[:, None], by_code, alive[:, n_inner:]))


def pooled(gradients: FloatArray, hessians: FloatArray, noise: float) -> tuple[FloatArray, FloatArray]:
    """Sums in which each leaf also counts its neighbours, the less the further away they are.

    The distance of two leaves is the Hessian mass between their middles, in standard deviations of the noise; the
    weight falls as 1 / (1 + t + t**2 / 2), which follows exp(-t) closely and needs no library's exponential.

    Args:
        gradients, hessians: float64 [n_leaves, n_outputs], leaves in the order of the feature's values.
        noise: standard deviation of the noise of one gradient sum, > 0.
    """
    masses = hessians.mean(axis=1).tolist()
    middle = np.array([math.fsum(masses[:leaf]) + mass / 2 for leaf, mass in enumerate(masses)])
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
