"""Trees without what no record can reach: for export and for looking at them.

A trained tree is complete, so some of its nodes send everything one way and some of its leaves are out of reach. Here
such nodes are skipped, and splits between equal leaves are joined; every record still reaches the same value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.trees.ensemble import Ensemble
from hedgerow.trees.ensemble_json import single_as_decimal


@dataclass(frozen=True)
class Leaf:
    """A value in units of 2**-16, and the released weight of the leaf (at least 1; 1 when none was kept)."""

    units: int
    weight: float


@dataclass(frozen=True)
class Split:
    """A node with two children.

    Attributes:
        feature: the feature it asks for.
        condition: numeric: values below it (in single precision) go left; 0 for a categorical feature.
        missing_left: whether missing values go left.
        right_categories: categorical: the codes that go right, K for a category that is not listed; else None.
        left, right: the children.
        weight: the sum of their weights.
    """

    feature: int
    condition: float
    missing_left: bool
    right_categories: tuple[int, ...] | None
    left: Node
    right: Node
    weight: float


Node = Leaf | Split
_Reachable = dict[int, NDArray[np.bool_]]
"""Per feature of a tree, which of its codes can reach a node."""


def pruned_tree(ensemble: Ensemble, tree: int, output: int) -> Node:
    """One output of one tree of the ensemble."""
    return _Pruner(ensemble, tree, output).root()


class _Pruner:
    """One output of one complete tree while it is pruned."""

    def __init__(self, ensemble: Ensemble, tree: int, output: int) -> None:
        if ensemble.fitted is None:
            raise ValueError("an ensemble without trees has none to prune")
        batch = ensemble.fitted.trees
        self._grid = ensemble.grid
        self._feature = batch.feature[tree].tolist()
        self._goes_left = batch.goes_left[tree].astype(bool)
        self._threshold = batch.threshold[tree].tolist()
        self._values = ensemble.fitted.values[tree, :, output].tolist()
        self._weights = None if ensemble.leaf_weights is None else ensemble.leaf_weights[tree].tolist()

    def root(self) -> Node:
        """The pruned tree."""
        codes = {feature: np.ones(self._grid.features[feature].n_codes, dtype=bool) for feature in set(self._feature)}
        return self._node(0, codes)

    def _node(self, node: int, reachable: _Reachable) -> Node:
        if node >= len(self._feature):
            leaf = node - len(self._feature)
            # No weight may be 0: explainers divide by it.
            return Leaf(self._values[leaf], 1.0 if self._weights is None else float(max(1, self._weights[leaf])))
        feature = self._feature[node]
        codes = reachable[feature]
        goes_left = self._goes_left[node, : len(codes)]
        left_codes, right_codes = codes & goes_left, codes & ~goes_left
        if not right_codes.any():
            return self._node(2 * node + 1, reachable)
        if not left_codes.any():
            return self._node(2 * node + 2, reachable)
        left = self._node(2 * node + 1, {**reachable, feature: left_codes})
        right = self._node(2 * node + 2, {**reachable, feature: right_codes})
        if isinstance(left, Leaf) and isinstance(right, Leaf) and left.units == right.units:
            return Leaf(left.units, left.weight + right.weight)
        return self._split(node, left, right)

    def _split(self, node: int, left: Node, right: Node) -> Split:
        feature = self._feature[node]
        grid = self._grid.features[feature]
        condition, right_categories = 0.0, None
        if grid.is_categorical:
            right_categories = tuple(np.flatnonzero(~self._goes_left[node, : grid.n_cells]).tolist())
        else:
            condition = single_as_decimal(grid.edges[self._threshold[node]])
        missing_left = bool(self._goes_left[node, grid.missing_code])
        return Split(feature, condition, missing_left, right_categories, left, right, left.weight + right.weight)
