# SPDX-License-Identifier: Apache-2.0
"""The ensemble: fitted trees over a public grid, the meaning of their sums, and their form in a file.

In a file each tree is complete: 2**depth - 1 nodes numbered as in a heap (see `TreeBatch`).

    features        the feature that each node asks for
    cuts            c: cells up to c go left; SET: the node splits a set of categories; ALL_LEFT: everything goes left
    thresholds      for a cut, the number it stands for: values below it go left; else null
    missing_left    1 where a missing value goes left
    sets            node number -> the codes that go left (K: not listed, K + 1: missing); of a feature with more than
                    256 codes a bit for each code, the first one lowest, as a hexadecimal text of whole bytes
    values          leaf after leaf, output after output, integers in units of 2**-16 score
    weights         per leaf, its released weight; null when it was not kept

The grid is not stored, since it follows from the plan. The file has the edges of features that were cut again (`edges`,
by the feature's number), and a digest of all edges. A program with another rule for grids refuses the file instead of
misreading its thresholds.

For exports and for looking at a model, `prune_tree` leaves out what no record can reach. A trained tree is complete,
so some of its nodes send everything one way: they are skipped, and splits between equal leaves are joined. Every record
still reaches the same value.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hedgerow.errors import ModelError
from hedgerow.losses.kinds import Link, Share
from hedgerow.losses.registry import loss_kind
from hedgerow.losses.survival import BASELINE_LIMIT, Baseline, survival_curves
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import FittedTrees, TreeBatch
from hedgerow.trees.binning import MAX_BYTE_CODES, CodeArray, FeatureGrid, Grid, build_grid
from hedgerow.trees.constraints import Directions, build_groups, keeps_apart
from hedgerow.trees.leaf_sums import SiteRecords, apply_update
from hedgerow.trees.random_trees import concatenate

MAX_STORED_STRETCH = 4.0
MAX_LEVEL_FACTOR, _Z95 = 1.5, 1.96
"""A level is open if the noise may move it by more than this factor, at 95 %."""
ENSEMBLE_VERSION = 1
SET, ALL_LEFT = -1, -2
MAX_DEPTH = 8
INT32, INT64 = 2**31 - 1, 2**63 - 1


def find_link(plan: Plan) -> Link:
    """Return the link of a plan's model, the meaning of its scores."""
    return loss_kind(plan).link


class Level(NamedTuple):
    """The released level of an output's predictions, in the label's units: of classes a chance, of times events.

    Attributes:
        mean: roughly the mean label of the records that the model was trained on; its own noise is larger.
        noise: the standard deviation of the noise by which the mean prediction there is off.
    """

    mean: float
    noise: float

    @property
    def reach(self) -> float:
        """The most by which the mean prediction is off, at 95 % of the noise."""
        return _Z95 * self.noise

    def is_open(self, least: float = 0.0) -> bool:
        """Return whether the noise may move the mean by more than a factor of 1.5 above the least possible label."""
        return self.mean - self.reach - least < (self.mean - least) / MAX_LEVEL_FACTOR


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Trees whose values add up.

    Attributes:
        grid: the cells that thresholds refer to.
        fitted: all trees with their values, in training order; None before the first.
        n_outputs: scores per record: 1, or one per class.
        link: the meaning of a sum of values.
        leaf_weights: int64 [n_trees, n_leaves], the released (noisy) leaf Hessians or counts, cut off at zero, in the
            integer units of their release; None when they were not kept. Only proportions within a tree mean anything;
            scores do not depend on them.
        stretch: the factor that all values were multiplied by after the last tree, > 0; scores do not depend on it.
        baseline: the released value of each interval of a time to an event; else empty.
        levels: of each output, the level that a last release gave its predictions; empty without one.
    """

    grid: Grid
    fitted: FittedTrees | None
    n_outputs: int
    link: Link
    leaf_weights: NDArray[np.int64] | None = None
    stretch: float = 1.0
    baseline: Baseline = ()
    levels: tuple[Level, ...] = ()

    @property
    def n_trees(self) -> int:
        return 0 if self.fitted is None else self.fitted.trees.n_trees

    def extend(self, batches: Sequence[FittedTrees], weights: Sequence[NDArray[np.int64] | None]) -> Ensemble:
        """Return this ensemble with further batches at its end.

        Leaf weights are kept only if all trees have them.

        Args:
            batches: fitted batches of equal depth, in training order.
            weights: the leaf weights of each batch, or None.
        """
        if not batches:
            return self
        parts = [self.fitted, *batches] if self.fitted is not None else list(batches)
        joined = FittedTrees(
            trees=concatenate([part.trees for part in parts]),
            values=np.concatenate([part.values for part in parts]),
        )
        all_weights = [self.leaf_weights, *weights] if self.fitted is not None else list(weights)
        known = [part for part in all_weights if part is not None]
        kept = np.concatenate(known) if len(known) == len(all_weights) else None
        return replace(self, fitted=joined, leaf_weights=kept)

    def scores(self, codes: CodeArray) -> NDArray[np.float64]:
        """Return the score of each record: float64 [n_outputs, n], exact, in steps of 2**-16."""
        n = codes.shape[1]
        # A part of a table is copied into the memory order that the kernels are compiled for.
        codes = np.ascontiguousarray(codes)
        records = SiteRecords(codes, np.zeros(n, dtype=np.int32), np.zeros((self.n_outputs, n), dtype=np.int32))
        if self.fitted is not None:
            trees, values = self.fitted.trees, self.fitted.values
            if not all(array.flags.writeable for array in (trees.feature, trees.goes_left, trees.threshold, values)):
                # Copy: numba would compile all kernels once more for the read-only arrays of a mapped model file.
                trees = TreeBatch(trees.feature.copy(), trees.goes_left.copy(), trees.threshold.copy())
                values = values.copy()
            apply_update(records, FittedTrees(trees, values))
        return records.scores / SCORE_UNIT

    def probabilities(self, codes: CodeArray) -> NDArray[np.float64]:
        """Return class probabilities: float64 [n, n_classes], rows summing to 1.

        Raises:
            ValueError: the ensemble is for a regression.
        """
        return self.link.probabilities(self.scores(codes))

    def staged_probabilities(self, codes: CodeArray) -> Iterator[NDArray[np.float64]]:
        """Yield the probabilities of the first tree, of the first two, and so on.

        If trees are averaged, they are those of the mean of the trees so far.
        """
        scores, is_mean = np.zeros((self.n_outputs, codes.shape[1])), isinstance(self.link, Share)
        for count in range(1, self.n_trees + 1):
            if self.fitted is not None:
                own, trees = slice(count - 1, count), self.fitted.trees
                one = TreeBatch(trees.feature[own], trees.goes_left[own], trees.threshold[own])
                scores += replace(self, fitted=FittedTrees(one, self.fitted.values[own])).scores(codes)
            yield self.link.probabilities(scores * (self.n_trees / count if is_mean else 1.0))

    def survival(self, codes: CodeArray) -> NDArray[np.float64]:
        """Return chances to be without the event at the end of each interval: float64 [n, K].

        Only a model of a time to an event has them.
        """
        return survival_curves(self.scores(codes)[0], self.baseline)


def ensemble_to_dict(ensemble: Ensemble) -> dict[str, Any]:
    """Return the ensemble as JSON values; equal ensembles give equal values."""
    fitted = ensemble.fitted
    new_edges = {str(number): list(map(single_as_decimal, edges)) for number, edges in ensemble.grid.new_edges.items()}
    return {
        "version": ENSEMBLE_VERSION,
        "link": ensemble.link.name,
        "n_outputs": ensemble.n_outputs,
        "depth": 0 if fitted is None else fitted.trees.depth,
        "grid_digest": grid_digest(ensemble.grid),
        **({"edges": new_edges} if new_edges else {}),
        "trees": [] if fitted is None else _trees_to_dicts(ensemble.grid, fitted, ensemble.leaf_weights),
        # Left out where it is 1, so that models without a stretch keep their bytes.
        **({} if ensemble.stretch == 1 else {"stretch": ensemble.stretch}),
        **({"baseline": list(ensemble.baseline)} if ensemble.baseline else {}),
        **({"levels": [list(level) for level in ensemble.levels]} if ensemble.levels else {}),
    }


def make_empty_ensemble(plan: Plan, grid: Grid) -> Ensemble:
    """Return a plan's ensemble before its first tree."""
    baseline = (0,) * len(plan.label.intervals)
    return Ensemble(grid, None, plan.label.n_outputs, find_link(plan), baseline=baseline)


def ensemble_from_dict(table: Mapping[str, Any], plan: Plan) -> Ensemble:
    """Check and return an ensemble of `plan` that `ensemble_to_dict` has written.

    Raises:
        ModelError: code "model-newer-version", "model-grid-changed", "model-leaf-range" or
            "model-invalid".
    """
    grid = build_grid(plan)
    if not isinstance(table, Mapping):
        raise ModelError("model-invalid", fault="the ensemble is not a table of fields")
    version = _integer(table, "version", 1, INT32)
    if version > ENSEMBLE_VERSION:
        raise ModelError("model-newer-version", part="ensemble", found=version, newest=ENSEMBLE_VERSION)
    if table.get("link") != find_link(plan).name or table.get("n_outputs") != plan.label.n_outputs:
        raise ModelError("model-invalid", fault="the ensemble's kind of scores is not that of the plan's label")
    if "edges" in table:
        grid = _cut_again(grid, table["edges"])
    if table.get("grid_digest") != grid_digest(grid):
        raise ModelError("model-grid-changed")
    depth = _integer(table, "depth", 0, MAX_DEPTH)
    trees = table.get("trees")
    if not isinstance(trees, list) or bool(trees) != bool(depth):
        raise ModelError("model-invalid", fault="the ensemble has no list of trees that fits its depth")
    baseline, n_intervals = table.get("baseline", []), len(plan.label.intervals)
    if not isinstance(baseline, list) or len(baseline) != n_intervals or not all(type(one) is int for one in baseline):
        raise ModelError("model-invalid", fault=f"the ensemble's baseline is not a list of {n_intervals} integers")
    if any(abs(one) > BASELINE_LIMIT for one in baseline):
        raise ModelError("model-invalid", fault=f"a baseline of the ensemble is beyond {BASELINE_LIMIT}")
    ensemble = replace(make_empty_ensemble(plan, grid), baseline=tuple(baseline))
    if not trees:
        return ensemble
    read = [_TreeReader(grid, depth, plan.label.n_outputs, number, tree) for number, tree in enumerate(trees)]
    batches = concatenate([reader.structure() for reader in read])
    values = np.stack([reader.values() for reader in read])
    directions = Directions.from_plan(plan, grid)
    if directions is not None and not directions.are_kept_by(batches, values):
        raise ModelError("model-invalid", fault="its scores go against a direction that its plan gives a feature")
    if not keeps_apart(batches, build_groups(plan)):
        raise ModelError("model-invalid", fault="a tree brings features together that its plan keeps apart")
    stretch = table.get("stretch", 1.0)
    if type(stretch) is not float or not 0 < stretch <= MAX_STORED_STRETCH:
        raise ModelError("model-invalid", fault=f"stretch of the ensemble is not a number up to {MAX_STORED_STRETCH:g}")
    levels = _read_levels(table.get("levels", []), plan.label.n_outputs)
    return replace(ensemble.extend([FittedTrees(batches, values)], [_weights(read)]), stretch=stretch, levels=levels)


def _read_levels(levels: object, n_outputs: int) -> tuple[Level, ...]:
    """Check a file's levels of predictions, of which it has none or one for each output."""
    if not isinstance(levels, list) or len(levels) not in (0, n_outputs) or not all(map(_is_level, levels)):
        raise ModelError("model-invalid", fault=f"levels of the ensemble are not {n_outputs} pairs of numbers")
    return tuple(Level(*pair) for pair in levels)


def _is_level(pair: object) -> bool:
    if not isinstance(pair, list) or len(pair) != 2 or not all(type(one) is float for one in pair):
        return False
    return math.isfinite(pair[0]) and math.isfinite(pair[1]) and pair[1] >= 0


def _cut_again(grid: Grid, table: object) -> Grid:
    """Check a file's new edges of some features, and return the grid with them."""
    if not isinstance(table, Mapping) or not table or not set(table) <= set(map(str, grid.divisible)):
        raise ModelError("model-invalid", fault="new edges of the ensemble are not of features that may have some")
    edges = {}
    for name, numbers in table.items():
        if not isinstance(numbers, list) or not all(type(number) is float for number in numbers):
            raise ModelError("model-invalid", fault=f"the edges of feature {name} are no list of numbers")
        with np.errstate(over="ignore"):
            edges[int(name)] = np.array(numbers, dtype=np.float32)
    try:
        return grid.cut_again(edges)
    except ValueError as fault:
        raise ModelError("model-invalid", fault=f"its edges do not fit its plan: {fault}") from fault


def grid_digest(grid: Grid) -> str:
    """Return the SHA-256 of all edges and numbers of categories, in hexadecimal.

    It is the same on every machine.
    """
    digest = hashlib.sha256(b"hedgerow grid v1")
    for feature in grid.features:
        digest.update(f"|{feature.n_categories},{len(feature.edges)}|".encode())
        digest.update(feature.edges.astype("<f4").tobytes())
    return digest.hexdigest()


def single_as_decimal(value: np.float32) -> float:
    """Return the shortest decimal that single precision reads back as `value`.

    It is readable, and exact for a float32 parser.
    """
    return float(str(np.float32(value)))


def _trees_to_dicts(grid: Grid, fitted: FittedTrees, weights: NDArray[np.int64] | None) -> list[dict[str, Any]]:
    """Return the fields of every tree.

    All numbers become Python's at once, which is many times faster than one by one.
    """
    batch, n_trees = fitted.trees, fitted.trees.n_trees
    n_cells = np.array([feature.n_cells for feature in grid.features])[batch.feature]
    cuts = np.where(batch.threshold >= n_cells - 1, ALL_LEFT, batch.threshold)
    # The number that a cut stands for, by feature and cut; -1 and None where there is no cut.
    keys = np.where(cuts >= 0, batch.feature * np.int64(grid.n_codes) + cuts, -1)
    decimals: dict[int, float | None] = {-1: None}
    for key in set(keys.ravel().tolist()) - {-1}:
        number, cut = divmod(key, grid.n_codes)
        decimals[key] = single_as_decimal(grid.features[number].edges[cut])
    # The code of a missing value follows those of the cells.
    missing_left = np.take_along_axis(batch.goes_left, n_cells[:, :, None], axis=2)[:, :, 0]
    columns = {
        "features": batch.feature.tolist(),
        "cuts": cuts.tolist(),
        "thresholds": [[decimals[key] for key in row] for row in keys.tolist()],
        "missing_left": missing_left.tolist(),
        "sets": _sets(batch, cuts == SET, n_cells + 1),
        "values": fitted.values.reshape(n_trees, -1).tolist(),
        "weights": [None] * n_trees if weights is None else weights.tolist(),
    }
    return [dict(zip(columns, fields, strict=True)) for fields in zip(*columns.values(), strict=True)]


def _sets(batch: TreeBatch, is_set: NDArray[np.bool_], n_codes: NDArray[np.int64]) -> list[dict[str, list[int] | str]]:
    """Return, per tree and categorical node, the codes that go left.

    Args:
        is_set: bool [B, n_nodes], nodes that split a set of categories.
        n_codes: int64 [B, n_nodes], codes of each node's feature.
    """
    sets: list[dict[str, list[int] | str]] = [{} for _ in range(batch.n_trees)]
    is_long = is_set & (n_codes > MAX_BYTE_CODES)
    for tree, node in np.argwhere(is_long).tolist():
        own = batch.goes_left[tree, node, : n_codes[tree, node]]
        sets[tree][str(node)] = np.packbits(own, bitorder="little").tobytes().hex()
    is_set = is_set & ~is_long
    is_own = np.arange(n_codes[is_set].max(initial=0)) < n_codes[is_set][:, None]
    goes_left = is_own & (batch.goes_left[is_set, : is_own.shape[1]] != 0)
    ends = goes_left.sum(axis=1).cumsum()
    listed, start = (np.flatnonzero(goes_left) % max(1, is_own.shape[1])).tolist(), 0
    for (tree, node), end in zip(np.argwhere(is_set).tolist(), ends.tolist(), strict=True):
        sets[tree][str(node)] = listed[start:end]
        start = end
    return sets


def _weights(read: list[_TreeReader]) -> NDArray[np.int64] | None:
    parts = [reader.weights() for reader in read]
    present = [part for part in parts if part is not None]
    if present and len(present) != len(parts):
        raise ModelError("model-invalid", fault="some trees have leaf weights and some have none")
    return np.stack(present) if present else None


class _TreeReader:
    """Checks and reads one tree of a file.

    Args:
        depth: of every tree of the file.
        table: what the file says.
    """

    def __init__(self, grid: Grid, depth: int, n_outputs: int, number: int, table: object) -> None:
        if not isinstance(table, Mapping):
            raise ModelError("model-invalid", fault=f"tree {number} is not a table of fields")
        self._grid, self._depth, self._n_outputs = grid, depth, n_outputs
        self._name, self._table = f"tree {number}", table
        self._n_nodes = 2**depth - 1

    def structure(self) -> TreeBatch:
        """Return the tree as a batch of one."""
        features = self._features()
        cuts = self._integers("cuts", self._n_nodes, ALL_LEFT, INT32)
        missing_left = self._integers("missing_left", self._n_nodes, 0, 1)
        thresholds, sets = self._table.get("thresholds"), self._table.get("sets")
        if not isinstance(thresholds, list) or len(thresholds) != self._n_nodes or not isinstance(sets, Mapping):
            raise ModelError("model-invalid", fault=f"{self._name} has no thresholds or no sets")
        if set(sets) != {str(node) for node, cut in enumerate(cuts) if cut == SET}:
            raise ModelError("model-invalid", fault=f"the sets of {self._name} are not those of its nodes")
        width = self._grid.n_codes
        goes_left = np.zeros((self._n_nodes, width), dtype=np.uint8)
        threshold = np.array(cuts, dtype=np.int32)
        for node, cut in enumerate(cuts):
            feature = self._grid.features[features[node]]
            if cut == ALL_LEFT:
                goes_left[node], threshold[node] = 1, width - 1
                consistent = missing_left[node] == 1 and thresholds[node] is None
            elif cut == SET:
                codes = self._codes(sets[str(node)], feature)
                goes_left[node, codes] = 1
                consistent = missing_left[node] == goes_left[node, feature.missing_code] and thresholds[node] is None
            else:
                consistent = cut < len(feature.edges) and thresholds[node] == single_as_decimal(feature.edges[cut])
                goes_left[node, : cut + 1] = 1
                goes_left[node, feature.missing_code :] = missing_left[node]
            if not consistent:
                raise ModelError(
                    "model-invalid", fault=f"node {node} of {self._name} contradicts itself or its feature's grid"
                )
        return TreeBatch(np.array([features], dtype=np.int32), goes_left[None], threshold[None])

    def values(self) -> NDArray[np.int32]:
        """Return the leaf values: int32 [n_leaves, n_outputs]."""
        length = (self._n_nodes + 1) * self._n_outputs
        flat = self._integers("values", length, -INT32 - 1, INT32, code="model-leaf-range")
        return np.array(flat, dtype=np.int32).reshape(-1, self._n_outputs)

    def weights(self) -> NDArray[np.int64] | None:
        """Return the leaf weights, int64 [n_leaves], or None if the file has none."""
        if "weights" in self._table and self._table["weights"] is None:
            return None
        return np.array(self._integers("weights", self._n_nodes + 1, 0, INT64), dtype=np.int64)

    def _features(self) -> list[int]:
        features = self._integers("features", self._n_nodes, -INT32, INT32)
        unknown = [feature for feature in features if not 0 <= feature < self._grid.n_features]
        if unknown:
            last = self._grid.n_features - 1
            raise ModelError("model-invalid", fault=f"{self._name} asks for feature {unknown[0]} of 0 to {last}")
        return features

    def _codes(self, codes: object, feature: FeatureGrid) -> list[int]:
        wrong = f"a set of {self._name} is not a list of ascending codes of a categorical feature"
        if feature.n_codes > MAX_BYTE_CODES:
            # Long sets are written as bits.
            is_bits = isinstance(codes, str) and not len(codes) % 2 and set(codes) <= set("0123456789abcdef")
            bits = np.frombuffer(bytes.fromhex(str(codes)) if is_bits else b"", dtype=np.uint8)
            codes = np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist() if is_bits else None
        if not isinstance(codes, list) or not all(type(code) is int for code in codes):
            raise ModelError("model-invalid", fault=wrong)
        in_range = all(0 <= code < feature.n_codes for code in codes)
        if not feature.is_categorical or not in_range or codes != sorted(set(codes)):
            raise ModelError("model-invalid", fault=wrong)
        return codes

    def _integers(self, field: str, length: int, low: int, high: int, code: str = "model-invalid") -> list[int]:
        """Return a list of `length` integers in [low, high]; JSON's true, false and 1.0 are refused."""
        numbers = self._table.get(field)
        if not isinstance(numbers, list) or len(numbers) != length or not all(type(item) is int for item in numbers):
            raise ModelError("model-invalid", fault=f"{field} of {self._name} is not a list of {length} integers")
        if numbers and not low <= min(numbers) <= max(numbers) <= high:
            fault = f"{field} of {self._name} has a number outside {low} to {high}"
            raise ModelError("model-invalid", code=code, fault=fault)
        return numbers


def _integer(table: Mapping[str, Any], field: str, low: int, high: int) -> int:
    value = table.get(field)
    if type(value) is not int or not low <= value <= high:
        raise ModelError("model-invalid", fault=f"{field} of the ensemble is not an integer from {low} to {high}")
    return value


@dataclass(frozen=True)
class Leaf:
    """A leaf: its value in units of 2**-16, and its released weight, at least 1 (1 if none was kept)."""

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


def prune_tree(ensemble: Ensemble, tree: int, output: int) -> Node:
    """Return one output of one tree without the nodes that no record can reach."""
    return _Pruner(ensemble, tree, output).root()


class _Pruner:
    """Prunes one output of one complete tree."""

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
        """Return the pruned tree."""
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
