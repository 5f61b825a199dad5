"""A linear model over a public grid: its design matrix as a table over codes, and its coefficients as trees.

A record's value of a feature is one of at most 256 codes, so whatever a linear model makes of a feature is a table from
code to number, and such a table is a tree of depth 8 or less that asks for that feature alone. A linear model is
therefore an ensemble with one tree per feature: model files, exports, evaluation and nodes need nothing new.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.linear_queries import LinearRows
from hedgerow.protocol.plan import Feature, Plan
from hedgerow.protocol.queries import TreeBatch
from hedgerow.trees.grid import FeatureGrid, Grid
from hedgerow.trees.linear_kernels import MAX_TRANSFORMED, TRANSFORM_BITS
from hedgerow.trees.losses import RECORD_NORM, SCORE_UNIT

_TRANSFORM_REACH = 10


@dataclass(frozen=True, eq=False)
class LinearBasis:
    """The design of a linear model.

    Attributes:
        rows: a record's row, in integers; a real row's entries lie in [-1, 1], the constant's and those of categories
            are 1.
        unit: integers per 1.0.
        blocks: per feature its first column and its number of columns; one for a numeric feature, one per category and
            one for all else for a categorical one, none for one that is left out.
        trees: one tree per feature, a leaf per code.
        leaf_of_code: int64 [n_features, n_codes]; -1 for codes that a feature does not have.
    """

    rows: LinearRows
    unit: int
    blocks: tuple[tuple[int, int], ...]
    trees: TreeBatch
    leaf_of_code: NDArray[np.int64]

    @classmethod
    def of(cls, plan: Plan, grid: Grid, row_norm: float, scale: str, numeric_only: bool = False) -> LinearBasis:
        """The basis of a plan.

        Args:
            plan: its features.
            grid: its grid.
            row_norm: the largest norm of a record's row, in real units.
            scale: what a numeric feature's value is: "grid" or "linear", as in [adassp].
            numeric_only: whether categorical features are left out.
        """
        unit = math.floor(RECORD_NORM / row_norm)
        shape = (grid.n_features, grid.n_codes)
        column, entry = np.ones(shape, dtype=np.int32), np.zeros(shape, dtype=np.int32)
        blocks, next_column = [], 1
        for index, (feature, cells) in enumerate(zip(plan.features, grid.features, strict=True)):
            if cells.is_categorical and numeric_only:
                blocks.append((next_column, 0))
                column[index] = max(1, next_column - 1)
                continue
            n_columns = cells.n_cells if cells.is_categorical else 1
            column[index] = next_column
            if cells.is_categorical:
                # What is missing shares the column of what is not listed.
                column[index, : cells.n_codes] += np.minimum(np.arange(cells.n_codes), cells.n_cells - 1)
                entry[index, : cells.n_codes] = unit
            else:
                value = _positions(feature, cells, scale)
                entry[index, : cells.n_cells] = np.trunc(value * unit)
                entry[index, cells.missing_code] = entry[index, cells.n_cells // 2]
            blocks.append((next_column, n_columns))
            next_column += n_columns
        rows = LinearRows(column, entry, unit, RECORD_NORM, next_column)
        trees, leaf_of_code = _table_trees(grid)
        return cls(rows, unit, tuple(blocks), trees, leaf_of_code)

    def transformed(self, matrix: NDArray[np.float64]) -> LinearBasis:
        """The basis whose rows are `matrix` times these rows, to 2**-16: float64 [p, p], a function of releases.

        Entries are cut off at +-2**10, and what is no number counts as 0; ValueError for more than 2**14 columns.
        """
        if len(matrix) > MAX_TRANSFORMED:
            raise ValueError(f"rows of {len(matrix)} entries are too long to be transformed")
        reach = 2.0**_TRANSFORM_REACH
        # Machines make different integers of what is no number.
        numbers = np.nan_to_num(matrix, nan=0.0, posinf=reach, neginf=-reach)
        transform = np.rint(np.clip(numbers, -reach, reach) * 2.0**TRANSFORM_BITS).astype(np.int64)
        return replace(self, rows=replace(self.rows, transform=transform))

    @property
    def norm_squared(self) -> int:
        """The largest squared norm of any row."""
        if len(self.rows.transform):
            return self.rows.limit**2
        largest = (self.rows.entry.astype(np.int64) ** 2).max(axis=1)
        return min(self.rows.limit**2, self.rows.intercept**2 + int(largest.sum()))

    @property
    def largest_entry(self) -> int:
        """The largest magnitude of one entry of any row."""
        if len(self.rows.transform):
            return self.rows.limit
        return min(self.rows.limit, max(self.rows.intercept, int(np.abs(self.rows.entry).max())))

    def values(self, coefficients: NDArray[np.float64], largest: int) -> NDArray[np.int32]:
        """What each leaf adds to a score: int32 [n_features, n_leaves, 1], in units of 2**-16, at most `largest`.

        Args:
            coefficients: float64 [p] for real rows.
            largest: the largest magnitude of a value.
        """
        if len(self.rows.transform):
            matrix = self.rows.transform * 2.0**-TRANSFORM_BITS
            whole = np.zeros(len(matrix))
            # One row after the other: a product of matrices may add up in another order on another machine.
            for row, coefficient in zip(matrix, coefficients, strict=True):
                whole += coefficient * row
            coefficients = whole
        table = coefficients[self.rows.column] * (self.rows.entry / self.unit)
        # The constant is in the first feature's tree.
        table[0] += coefficients[0]
        units = np.clip(np.rint(table * SCORE_UNIT), -largest, largest).astype(np.int32)
        values = np.zeros((len(units), self.trees.n_leaves, 1), dtype=np.int32)
        for feature, leaves in enumerate(self.leaf_of_code):
            # A missing value is in the leaf of the value that it counts as, and has the same entry.
            own = leaves >= 0
            values[feature, leaves[own], 0] = units[feature, own]
        return values


def _positions(feature: Feature, cells: FeatureGrid, scale: str) -> NDArray[np.float64]:
    """The value of each cell in [-1, 1]: float64 [n_cells]."""
    n_cells = cells.n_cells
    if n_cells == 1:
        return np.zeros(1)
    if scale == "grid":
        return np.asarray(2 * np.arange(n_cells) / (n_cells - 1) - 1)
    if feature.min is None or feature.max is None:  # a validated plan has both
        raise ValueError(f"feature {feature.name} has no bounds")
    borders = np.concatenate([[feature.min], cells.edges.astype(np.float64), [feature.max]])
    middles = borders[:-1] + (borders[1:] - borders[:-1]) / 2
    return np.asarray(np.clip(2 * (middles - feature.min) / (feature.max - feature.min) - 1, -1, 1))


def _table_trees(grid: Grid) -> tuple[TreeBatch, NDArray[np.int64]]:
    """One tree per feature with a leaf per code, in the order of the codes; and the leaf of each code."""
    leaf_of_code = np.full((grid.n_features, grid.n_codes), -1, dtype=np.int64)
    for index, cells in enumerate(grid.features):
        leaf_of_code[index, : cells.n_codes] = np.arange(cells.n_codes)
        if not cells.is_categorical:
            leaf_of_code[index, cells.missing_code] = cells.n_cells // 2
    depth = max(1, int(leaf_of_code.max()).bit_length())
    n_nodes = 2**depth - 1
    goes_left = np.zeros((grid.n_features, n_nodes, grid.n_codes), dtype=np.uint8)
    threshold = np.zeros((grid.n_features, n_nodes), dtype=np.int32)
    for node in range(n_nodes):
        level = (node + 1).bit_length() - 1
        span = 2 ** (depth - level)
        middle = (node + 1 - 2**level) * span + span // 2
        goes_left[:, node] = leaf_of_code < middle
        for index, cells in enumerate(grid.features):
            last = cells.n_codes - 1 if cells.is_categorical else cells.n_cells - 1
            # A node whose right side has no code sends everything left.
            if middle > last:
                goes_left[index, node], threshold[index, node] = 1, grid.n_codes - 1
            elif cells.is_categorical:
                goes_left[index, node, cells.n_codes :], threshold[index, node] = 0, -1
            else:
                goes_left[index, node, cells.missing_code :] = leaf_of_code[index, cells.missing_code] < middle
                threshold[index, node] = middle - 1
    feature = np.repeat(np.arange(grid.n_features, dtype=np.int32)[:, None], n_nodes, axis=1)
    return TreeBatch(feature, goes_left, threshold), leaf_of_code
