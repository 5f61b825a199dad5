# SPDX-License-Identifier: Apache-2.0
"""What each feature adds to a record's score: exact Shapley values of an ensemble, from the model file alone.

The game, for one record and one tree: the features of a set S are known, so a record goes where it goes. At a node that
asks for another feature it goes both ways, in the proportion of the released leaf weights below. The value of S is what
the record then reaches on average. A feature's contribution is its Shapley value in this game, summed over the trees;
with no feature known, the ensemble's value is the base. This is the path-dependent TreeSHAP (Lundberg et al., 2020,
Nature Machine Intelligence 2, algorithm 1), which XGBoost calls `pred_contribs`, and categories are as good as numbers.

Only the leaves that a record might reach count, each by itself: a leaf's value times a product over the m features on
its path, of 1 or 0 where the feature is known (does the record go that way?) and of a share of the weights where it is
not. There are 2**m patterns of the former, m is at most the depth of a tree. The Shapley values of all patterns are
one small table per leaf. A tree that asks for one feature needs no such table: it adds to that feature what it says of
its code, less its mean.

Weights that were not released are 1 per leaf. They are noisy, and cut off at 1; the contributions follow from the model
file and cost no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hedgerow import elementary
from hedgerow.losses.kinds import Floats
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.trees.binning import CodeArray, FeatureGrid
from hedgerow.trees.ensemble import Ensemble, Leaf, Node, Split, prune_tree


@dataclass(frozen=True, eq=False)
class Contributions:
    """The scores of records as sums of contributions of features.

    Attributes:
        base: float64 [n_outputs], the score if no feature is known.
        values: float64 [n_outputs, n, n_features]; with the base they add up to the scores.
    """

    base: Floats
    values: Floats


@dataclass
class _Path:
    """The way to a leaf.

    Attributes:
        value: of the leaf.
        shares: per feature on the way, the part of the weights that goes this way where it is not known.
        allowed: per feature on the way, bool [n_codes], the codes that go this way.
    """

    value: float
    shares: dict[int, float] = field(default_factory=dict)
    allowed: dict[int, NDArray[np.bool_]] = field(default_factory=dict)


def contributions(ensemble: Ensemble, codes: CodeArray) -> Contributions:
    """Return the contributions of all features to the scores of records.

    Args:
        codes: [n_features, n], grid codes.
    """
    n_features, n = codes.shape
    base = np.zeros(ensemble.n_outputs)
    # Features in rows here: each leaf adds to few of them, for all records.
    by_feature = np.zeros((ensemble.n_outputs, n_features, n))
    for output in range(ensemble.n_outputs):
        # Trees on one feature are added up by code, so one look-up serves all of them.
        tables = {feature: np.zeros(grid.n_codes) for feature, grid in enumerate(ensemble.grid.features)}
        values = by_feature[output]
        for tree in range(ensemble.n_trees):
            paths = list(_paths(ensemble, prune_tree(ensemble, tree, output)))
            mean = math.fsum(path.value * math.prod(path.shares.values()) for path in paths)
            base[output] += mean
            asked = {feature for path in paths for feature in path.shares}
            if len(asked) == 1:
                (feature,) = asked
                for path in paths:
                    tables[feature][path.allowed[feature]] += path.value
                tables[feature] -= mean
            else:
                for path in paths:
                    _add_path(values, path, codes)
        for feature, table in tables.items():
            values[feature] += table[codes[feature]]
    return Contributions(base, by_feature.transpose(0, 2, 1))


def _paths(ensemble: Ensemble, root: Node) -> Iterator[_Path]:
    """Yield the paths to all leaves of a tree; a tree without splits has one, the empty path."""

    def walk(node: Node, path: _Path) -> Iterator[_Path]:
        if isinstance(node, Leaf):
            yield _Path(node.units / SCORE_UNIT, path.shares, path.allowed)
            return
        goes_left = _goes_left(node, ensemble.grid.features[node.feature])
        for child, goes in ((node.left, goes_left), (node.right, ~goes_left)):
            share = path.shares.get(node.feature, 1.0) * child.weight / node.weight
            allowed = path.allowed[node.feature] & goes if node.feature in path.allowed else goes
            shares_on = {**path.shares, node.feature: share}
            yield from walk(child, _Path(0.0, shares_on, {**path.allowed, node.feature: allowed}))

    return walk(root, _Path(0.0))


def _goes_left(node: Split, grid: FeatureGrid) -> NDArray[np.bool_]:
    """Return which codes of the node's feature go left: bool [n_codes]."""
    goes = np.empty(grid.n_codes, dtype=np.bool_)
    if node.right_categories is None:
        # Code c stands for the values from edge c - 1 on.
        goes[0] = True
        goes[1:-1] = grid.edges < np.float32(node.condition)
    else:
        goes[:] = True
        goes[list(node.right_categories)] = False
    goes[grid.missing_code] = node.missing_left
    return goes


def _add_path(values: Floats, path: _Path, codes: CodeArray) -> None:
    """Add the contributions of one leaf of a tree on several features to `values`."""
    features = list(path.shares)
    pattern = np.zeros(codes.shape[1], dtype=np.int64)
    for place, feature in enumerate(features):
        pattern += path.allowed[feature].astype(np.int64).take(codes[feature]) << place
    table = path.value * _shapley_values(tuple(path.shares.values()))
    for place, feature in enumerate(features):
        values[feature] += table[place].take(pattern)


def _shapley_values(shares: tuple[float, ...]) -> Floats:
    """Return Shapley values of a product of m factors, by pattern of known ones: float64 [m, 2**m].

    Factor j is bit j of the pattern where j is known, and shares[j] where it is not. A feature's value is the mean,
    over all sizes of a set of others, of the mean over the sets of this size of what knowing it changes.
    """
    m = len(shares)
    bits = (np.arange(2**m) >> np.arange(m)[:, None] & 1).astype(np.float64)
    found = np.empty((m, 2**m))
    for factor in range(m):
        # The sums, by size, of all products of the others with `size` of them known.
        sums = np.zeros((m, 2**m))
        sums[0] = 1.0
        for other in range(m):
            if other != factor:
                sums[1:] = sums[1:] * shares[other] + sums[:-1] * bits[other]
                sums[0] *= shares[other]
        weights = np.array([1 / (m * math.comb(m - 1, size)) for size in range(m)])
        found[factor] = (bits[factor] - shares[factor]) * elementary.times(sums.T, weights)
    return found
