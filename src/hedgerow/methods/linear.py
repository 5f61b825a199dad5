# SPDX-License-Identifier: Apache-2.0
"""Linear models over a public grid: equations, design matrix, and the sums that a node makes.

A record's value of a feature is one of at most 256 codes. So whatever a linear model makes of a feature is a table from
code to number. Such a table is a tree of depth 8 or less that asks for that feature alone. (Of the finer grids of
``iterative_hessian`` and ``quantile``, neighbouring cells share a leaf and its number.) A linear model is therefore an
ensemble with one tree per feature: model files, exports, evaluation and nodes need nothing new.

Sums over records are of integers only. Equations are solved alike on every machine: by whole-array additions, products,
quotients and roots, no BLAS. IEEE 754 rounds each of these correctly, and numpy does one of them at a time, so that no
multiply-add can be fused and no sum reordered. A matrix of a few hundred columns takes milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numba
import numpy as np
from numpy.typing import NDArray

from hedgerow.losses.tables import (
    RECORD_NORM,
    SCORE_LIMIT,
    SCORE_UNIT,
    STEP_BITS,
    STEPS,
    Loss,
    double_residuals,
    logistic,
)
from hedgerow.plan.plan import Feature, Plan
from hedgerow.privacy.schedule import AlikeRounds
from hedgerow.protocol.queries import FittedTrees, IntVector, Purpose, Query, TreeBatch
from hedgerow.training.steps import NodeTrees, Run
from hedgerow.trees.binning import MAX_BYTE_CODES, FeatureGrid, Grid
from hedgerow.trees.constraints import Directions
from hedgerow.trees.leaf_sums import SiteRecords, TrainingSite, apply_update, sum_in_threads
from hedgerow.trees.plausibility import FLOAT_TOLERANCE, Reals, ReleaseChecks, SumFacts

Matrix = NDArray[np.float64]

_TRANSFORM_REACH = 10
TRANSFORM_BITS = 16
ENTRY_LIMIT = 2**24
"""Largest entry of a transformed row before it is shortened."""
MAX_TRANSFORMED = 2**14
"""Most entries of a transformed row: the squares of this many largest ones add up to 2**62. A sum beyond 64 bits would
be negative, and the row would stay as long as it is."""

GRAM_SHIFT = 7
"""Products of two entries keep 2**7 times the precision of their sum's noise at a multiplier of 1 and more."""
CROSS_SHIFT = RECORD_NORM.bit_length() - 1

MIN_RIDGE = 1.0
"""Added to lambda, in records: without noise, categories that add up to the constant leave X^T X singular."""
SEARCH_SPAN = 8.0
"""Eigenvalues are searched within this many sigma sqrt(p): the norm of the noise is near 2 sigma sqrt(p) at most."""


@dataclass(frozen=True, eq=False)
class LinearRows:
    """The rule from a record's codes to its row of integers: a constant, then one entry per feature.

    A record's row r has the entry `intercept` in column 0 and, for each feature f with code c, `entry[f, c]` in column
    `column[f, c]`; all others are zero. A row longer than `limit` is shortened: every entry is multiplied by limit over
    the norm, rounded up, and then rounded towards zero.

    With a transform, the row is T r / 2**16, rounded towards zero, each entry cut off at +-2**24, and only then
    shortened.

    Attributes:
        column: int32 [n_features, n_codes], not descending over the features, at least 1.
        entry: int32 [n_features, n_codes].
        intercept: the constant.
        limit: largest norm of a row.
        n_columns: p.
        transform: T, int64 [p, p], magnitudes of at most 2**26 (2**10 in real units); of shape [0, 0] for none.
    """

    column: NDArray[np.int32]
    entry: NDArray[np.int32]
    intercept: int
    limit: int
    n_columns: int
    transform: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))

    def left_open(self) -> bytes:
        """Return the bytes of the transform, which is made in floating point.

        Its operations are rounded alike on every machine.
        """
        return self.transform.astype("<i8").tobytes()


@dataclass(frozen=True, kw_only=True, eq=False)
class GramMatrix(Query):
    """Sums of products of every two columns over all records: int64 [p (p + 1) / 2], row by row.

    Of a record's row r it is the sum of r_i r_j / 2**shift, rounded towards zero, for i <= j. The squared
    norm of one record's contribution is at most (|r|⁴ + sum of r_i⁴) / 2 / 4**shift: off the diagonal each product is
    there once, and all products together have the norm |r|².

    Attributes:
        rows: how codes become rows.
        shift: bits that products are shortened by.
    """

    rows: LinearRows
    shift: int

    def answer(self, site: TrainingSite) -> IntVector:
        site.take_in(self.update)
        return gram_matrix(site.records, self, site.n_threads)

    def left_open(self) -> bytes:
        return self.rows.left_open()

    def faults(self, released: Reals, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        """Yield a fault if a square is negative, or a product is beyond 2 |x y| <= x**2 + y**2.

        Rounding takes less than a unit.
        """
        reach = facts.reach(1)
        first, second = np.triu_indices(self.rows.n_columns)
        squares = released[first == second]
        if squares.min() < -reach:
            yield "a sum of squares is below zero"
        limit = (squares[first] + squares[second]) / 2 + facts.n_rows + facts.bound_clipping(self) + 2 * reach
        if (np.abs(released) > FLOAT_TOLERANCE * limit + 1).any():
            yield "a sum of products is larger than its squares allow"


@dataclass(frozen=True, kw_only=True, eq=False)
class CrossProducts(Query):
    """Sums of products of each column with the model's errors: int64 [p].

    It is the sum of g r_i / 2**shift, rounded towards zero; g is the record's negative gradient, an integer. The
    squared norm of one record's contribution is at most g² |r|² / 4**shift.

    Attributes:
        rows, shift: as in `GramMatrix`.
        score_bound: a public bound on the magnitude of every score, in units of 2**-16.
        doublings: of the gradients, see `hedgerow.losses.tables.double_residuals`.
    """

    rows: LinearRows
    shift: int
    score_bound: int
    doublings: int = 0

    def answer(self, site: TrainingSite) -> IntVector:
        return cross_products(site.records, self, double_residuals(site.linear_loss, self.doublings), site.n_threads)

    def left_open(self) -> bytes:
        return self.rows.left_open()

    def faults(self, released: Reals, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        """Yield nothing.

        Products of gradients with a row have both signs, and nothing to be compared with.
        """
        return iter(())


def cholesky(matrix: Matrix) -> Matrix | None:
    """Return the lower triangular L with L L^T = matrix: float64 [p, p]; None if not positive definite.

    Source: the outer-product form, Golub & Van Loan, Matrix Computations (4th ed.), section 4.2.5.
    """
    rest = np.array(matrix, dtype=np.float64)
    size = len(rest)
    lower = np.zeros((size, size))
    for step in range(size):
        pivot = float(rest[step, step])
        if not pivot > 0 or not math.isfinite(pivot):
            return None
        column = rest[step:, step] / math.sqrt(pivot)
        lower[step:, step] = column
        tail = column[1:]
        rest[step + 1 :, step + 1 :] -= tail[:, None] * tail[None, :]
    return lower


def solve(lower: Matrix, right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return x with L L^T x = right, for the L of `cholesky`: float64 [p]."""
    size = len(lower)
    x = np.array(right, dtype=np.float64)
    for step in range(size):
        x[step] = x[step] / lower[step, step]
        x[step + 1 :] -= lower[step + 1 :, step] * x[step]
    for step in range(size - 1, -1, -1):
        x[step] = x[step] / lower[step, step]
        x[:step] -= lower[step, :step] * x[step]
    return x


def lower_inverse(lower: Matrix) -> Matrix:
    """Return the inverse of a lower triangular matrix: float64 [p, p], lower triangular."""
    inverse = np.eye(len(lower))
    for step in range(len(lower)):
        inverse[step] = inverse[step] / lower[step, step]
        inverse[step + 1 :] -= lower[step + 1 :, step, None] * inverse[step]
    return inverse


def least_eigenvalue(matrix: Matrix, span: float, steps: int = 12) -> float:
    """Return the least eigenvalue of a symmetric matrix within [-span, span], from below.

    It is exact to span / 2**(steps - 1).

    matrix - t I has a Cholesky factor iff t is below the least eigenvalue, so halving an interval finds it. Below -span
    and above span the nearest end is the answer.
    """
    low, high = -span, span
    identity = np.eye(len(matrix))
    for _ in range(steps):
        middle = (low + high) / 2
        if cholesky(matrix - middle * identity) is None:
            high = middle
        else:
            low = middle
    return low


@dataclass(frozen=True, eq=False)
class LinearBasis:
    """The design of a linear model.

    Attributes:
        rows: a record's row, in integers; a real row's entries lie in [-1, 1], the constant's and those of categories
            are 1.
        unit: integers per 1.0.
        blocks: per feature its first column and its number of columns; one for a numeric feature, one per category and
            one for all else for a categorical one, none for one that is left out.
        trees: one tree per feature, a leaf per code or, of more than 256 cells, per few neighbouring ones.
        leaf_of_code: int64 [n_features, n_codes]; -1 for codes that a feature does not have.
    """

    rows: LinearRows
    unit: int
    blocks: tuple[tuple[int, int], ...]
    trees: TreeBatch
    leaf_of_code: NDArray[np.int64]

    @classmethod
    def of(cls, plan: Plan, grid: Grid, row_norm: float, scale: str, numeric_only: bool = False) -> LinearBasis:
        """Build the basis of a plan.

        Args:
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
                # Missing values share the column of values that are not listed.
                column[index, : cells.n_codes] += np.minimum(np.arange(cells.n_codes), cells.n_cells - 1)
                entry[index, : cells.n_codes] = unit
            else:
                # Cells of one leaf have the entry of the one in their middle.
                value = _positions(feature, cells, scale)[_middles(_find_cell_leaves(cells))]
                entry[index, : cells.n_cells] = np.trunc(value * unit)
                entry[index, cells.missing_code] = entry[index, cells.n_cells // 2]
            blocks.append((next_column, n_columns))
            next_column += n_columns
        rows = LinearRows(column, entry, unit, RECORD_NORM, next_column)
        trees, leaf_of_code = _table_trees(grid)
        return cls(rows, unit, tuple(blocks), trees, leaf_of_code)

    def transform(self, matrix: NDArray[np.float64]) -> LinearBasis:
        """Return the basis whose rows are `matrix` times these rows, to 2**-16.

        Entries are cut off at +-2**10, and those that are not a number count as 0.

        Args:
            matrix: float64 [p, p], a function of releases.

        Raises:
            ValueError: more than 2**14 columns.
        """
        if len(matrix) > MAX_TRANSFORMED:
            raise ValueError(f"rows of {len(matrix)} entries are too long to be transformed")
        reach = 2.0**_TRANSFORM_REACH
        # Machines convert NaN and infinities to different integers.
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
        """Return the value that each leaf adds to a score: int32 [n_features, n_leaves, 1].

        Values are in units of 2**-16, at most `largest`.

        Args:
            coefficients: float64 [p] for real rows.
            largest: the largest magnitude of a value.
        """
        slopes = self._undo_transform(coefficients)
        table = slopes[self.rows.column] * (self.rows.entry / self.unit)
        # The constant is in the first feature's tree.
        table[0] += slopes[0]
        units = np.clip(np.rint(table * SCORE_UNIT), -largest, largest).astype(np.int32)
        values = np.zeros((len(units), self.trees.n_leaves, 1), dtype=np.int32)
        for feature, leaves in enumerate(self.leaf_of_code):
            # A missing value is in the leaf of the value that it counts as, and has the same entry.
            own = leaves >= 0
            values[feature, leaves[own], 0] = units[feature, own]
        return values

    def held(self, coefficients: NDArray[np.float64], factor: Matrix, directions: Directions) -> NDArray[np.float64]:
        """Return coefficients near those given whose slopes have no wrong sign: float64 [p].

        Set slopes of the wrong sign to 0, and move all others to the minimum of the quadratic form L L^T; repeat until
        no slope is wrong. Correlated features thus stand in for one another.

        Args:
            coefficients: float64 [p].
            factor: L, float64 [p, p].
            directions: of the features.
        """
        p = len(coefficients)
        has_transform = len(self.rows.transform) > 0
        matrix = np.asarray(self.rows.transform * 2.0**-TRANSFORM_BITS if has_transform else np.eye(p), np.float64)
        signs = {block[0]: int(sign) for block, sign in zip(self.blocks, directions.signs, strict=True) if sign}
        zeroed: dict[int, NDArray[np.float64]] = {}
        held = coefficients
        while True:
            slopes = self._undo_transform(held)
            wrong = [column for column, sign in signs.items() if column not in zeroed and sign * slopes[column] < 0]
            if not wrong:
                return held
            zeroed |= {column: solve(factor, matrix[:, column]) for column in wrong}
            answers = [self._undo_transform(direction) for direction in zeroed.values()]
            lower = cholesky(np.array([[answer[column] for column in zeroed] for answer in answers]))
            if lower is None:
                # Rounding has made one of them a sum of others: their tables are put in order later all the same.
                return held
            shares = solve(lower, self._undo_transform(coefficients)[list(zeroed)])
            held = coefficients.copy()
            for share, direction in zip(shares, zeroed.values(), strict=True):
                held -= share * direction

    def _undo_transform(self, coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the coefficients for rows before the transform: float64 [p]."""
        if not len(self.rows.transform):
            return coefficients
        matrix = self.rows.transform * 2.0**-TRANSFORM_BITS
        whole = np.zeros(len(matrix))
        # One row after the other: a product of matrices may add up in another order on another machine.
        for row, coefficient in zip(matrix, coefficients, strict=True):
            whole += coefficient * row
        return whole


@dataclass(eq=False)
class LinearFit:
    """A linear model that rounds of gradients move; nodes add its trees, one per feature, to their scores.

    Attributes:
        run, basis: the run, and its rows.
        largest: the largest magnitude of a tree's value, in units of 2**-16.
        carried: the trees that nodes know; each move of the coefficients is added.
        factor: as `LinearBasis.held` needs it for features with a direction.
    """

    run: Run
    basis: LinearBasis
    largest: int
    carried: NodeTrees
    factor: Matrix | None

    def __post_init__(self) -> None:
        self._reached = np.zeros(self.basis.rows.n_columns)
        self._total = np.zeros((self.basis.trees.n_trees, self.basis.trees.n_leaves, 1), dtype=np.int64)

    @property
    def trees(self) -> FittedTrees:
        """The trees of all rounds so far, as one batch."""
        return FittedTrees(self.basis.trees, self._total.astype(np.int32))

    def add(self, move: NDArray[np.float64]) -> None:
        """Add to the coefficients. Without directions each move is rounded by itself."""
        if self.run.directions is None:
            self._take(self.basis.values(move, self.largest))
        else:
            self.move_to(self._reached + move)

    def move_to(self, coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        """Replace the coefficients; return them with slopes held to the directions of the features."""
        directions = self.run.directions
        if directions is not None and self.factor is not None:
            self._reached = coefficients = self.basis.held(coefficients, self.factor, directions)
        values = self.basis.values(coefficients, self.largest)
        if directions is not None:
            values = self.run.make_ordered_sum().add(self.basis.trees, values)
        self._take(values - self._total.astype(np.int32))
        return coefficients

    def _take(self, values: NDArray[np.int32]) -> None:
        self.carried.take(FittedTrees(self.basis.trees, values))
        self._total += values


def _positions(feature: Feature, cells: FeatureGrid, scale: str) -> NDArray[np.float64]:
    """Return the value of each cell in [-1, 1]: float64 [n_cells]."""
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


def _find_cell_leaves(cells: FeatureGrid) -> NDArray[np.int64]:
    """Return the leaf of each cell of a numeric feature: int64 [n_cells], ascending.

    It is at most 255, as leaves are bytes.
    """
    n_leaves = min(cells.n_cells, MAX_BYTE_CODES)
    return np.asarray(np.arange(cells.n_cells) * n_leaves // cells.n_cells)


def _middles(leaves: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each cell, the cell in the middle of those of its leaf: int64 [n_cells]."""
    first, last = np.searchsorted(leaves, leaves, "left"), np.searchsorted(leaves, leaves, "right") - 1
    return np.asarray((first + last) // 2)


def _table_trees(grid: Grid) -> tuple[TreeBatch, NDArray[np.int64]]:
    """Return one tree per feature with leaves in the order of the codes, and the leaf of each code."""
    leaf_of_code = np.full((grid.n_features, grid.n_codes), -1, dtype=np.int64)
    for index, cells in enumerate(grid.features):
        if cells.is_categorical:
            # Very many have no column, see `hedgerow.methods.adassp.check`, and no leaf.
            n_own = cells.n_codes
            leaf_of_code[index, :n_own] = np.arange(n_own) if n_own <= MAX_BYTE_CODES else 0
        else:
            leaf_of_code[index, : cells.n_cells] = _find_cell_leaves(cells)
            leaf_of_code[index, cells.missing_code] = leaf_of_code[index, cells.n_cells // 2]
    depth = max(1, int(leaf_of_code.max()).bit_length())
    n_nodes = 2**depth - 1
    goes_left = np.zeros((grid.n_features, n_nodes, grid.n_codes), dtype=np.uint8)
    threshold = np.zeros((grid.n_features, n_nodes), dtype=np.int32)
    # A level's nodes divide the leaves into equal stretches; each node's right side begins in the middle of its own.
    spans = [2 ** (depth - level) for level in range(depth)]
    middles = np.concatenate([np.arange(2**level) * span + span // 2 for level, span in enumerate(spans)])
    for index, cells in enumerate(grid.features):
        leaves = leaf_of_code[index]
        left = leaves < middles[:, None]
        if cells.is_categorical:
            left[:, cells.n_codes :], threshold[index] = False, -1
        else:
            left[:, cells.missing_code :] = (leaves[cells.missing_code] < middles)[:, None]
            threshold[index] = np.searchsorted(leaves[: cells.n_cells], middles) - 1
        # A node whose right side has no code sends everything left.
        is_all = middles > leaves.max()
        left[is_all], threshold[index, is_all] = True, grid.n_codes - 1
        goes_left[index] = left
    feature = np.repeat(np.arange(grid.n_features, dtype=np.int32)[:, None], n_nodes, axis=1)
    return TreeBatch(feature, goes_left, threshold), leaf_of_code


@numba.njit(cache=True, nogil=True)
def _towards_zero(product, shift):  # type: ignore[no-untyped-def]
    magnitude = abs(product) >> np.int64(shift)
    return magnitude if product >= 0 else -magnitude


@numba.njit(cache=True, nogil=True)
def _shorten(values, limit):  # type: ignore[no-untyped-def]
    norm_squared = np.int64(0)
    for value in values:
        norm_squared += value * value
    if norm_squared <= limit * limit:
        return
    norm = np.int64(math.sqrt(np.float64(norm_squared)))
    # A root in floating point may be off by one; the norm must be rounded up for the row not to stay too long.
    while norm * norm < norm_squared:
        norm += 1
    while (norm - 1) * (norm - 1) >= norm_squared:
        norm -= 1
    for index in range(len(values)):
        shortened = abs(values[index]) * limit // norm
        values[index] = shortened if values[index] >= 0 else -shortened


@numba.njit(cache=True, nogil=True)
def _fill_row(codes, record, rows, places, values):  # type: ignore[no-untyped-def]
    """Write the row of one record, shortened to the limit, to `places` and `values`.

    Both are int64 [1 + n_features].
    """
    column, entry, intercept = rows[:3]
    places[0], values[0] = 0, intercept
    for feature in range(codes.shape[0]):
        code = codes[feature, record]
        places[feature + 1], values[feature + 1] = column[feature, code], entry[feature, code]
    _shorten(values, np.int64(rows[3]))


@numba.njit(cache=True, nogil=True)
def _fill_transformed(codes, record, rows, values):  # type: ignore[no-untyped-def]
    """Write the transformed row of one record, int64 [p], shortened to the limit, to `values`."""
    column, entry, intercept, limit, transform = rows
    for index in range(len(values)):
        total = transform[index, 0] * np.int64(intercept)
        for feature in range(codes.shape[0]):
            code = codes[feature, record]
            total += transform[index, column[feature, code]] * np.int64(entry[feature, code])
        values[index] = min(max(_towards_zero(total, TRANSFORM_BITS), -ENTRY_LIMIT), ENTRY_LIMIT)
    _shorten(values, np.int64(limit))


@numba.njit(cache=True, nogil=True)
def gram_sums(codes, rows, n_columns, shift, begin, end):  # type: ignore[no-untyped-def]
    """Return the upper triangle of the sum of r r^T over records begin..end-1.

    It is int64 [p, p], zero below the diagonal.
    """
    sums = np.zeros((n_columns, n_columns), dtype=np.int64)
    is_transformed = len(rows[4]) > 0
    n_entries = n_columns if is_transformed else codes.shape[0] + 1
    places, values = np.arange(n_entries), np.empty(n_entries, dtype=np.int64)
    for record in range(begin, end):
        if is_transformed:
            _fill_transformed(codes, record, rows, values)
        else:
            _fill_row(codes, record, rows, places, values)
        for first in range(n_entries):
            row, factor = sums[places[first]], values[first]
            for second in range(first, n_entries):
                row[places[second]] += _towards_zero(factor * values[second], shift)
    return sums


@numba.njit(cache=True, nogil=True)
def negative_gradient(label, score, table, clip, unit):  # type: ignore[no-untyped-def]
    """Return -dL/ds of one record, an integer.

    It is from the table over (class, score), or a clipped residual without one.
    """
    if table.shape[0] > 0:
        half = np.int32(table.shape[1] // 2)
        step = min(max((score >> np.int32(STEP_BITS)) + half, np.int32(0)), np.int32(table.shape[1] - 1))
        return np.int64(table[label, step])
    residual = np.int64(label) - np.int64(score)
    magnitude = min((abs(residual) * np.int64(unit)) >> np.int64(16), np.int64(clip))
    return magnitude if residual >= 0 else -magnitude


@numba.njit(cache=True, nogil=True)
def cross_sums(  # type: ignore[no-untyped-def]
    codes, labels, scores, gradients, rows, n_columns, shift, begin, end
):
    """Return the sum of g r over records begin..end-1: int64 [p]; `gradients` is (table, clip, unit)."""
    table, clip, unit = gradients
    sums = np.zeros(n_columns, dtype=np.int64)
    is_transformed = len(rows[4]) > 0
    n_entries = n_columns if is_transformed else codes.shape[0] + 1
    places, values = np.arange(n_entries), np.empty(n_entries, dtype=np.int64)
    for record in range(begin, end):
        gradient = negative_gradient(labels[record], scores[record], table, clip, unit)
        if gradient == 0:
            continue
        if is_transformed:
            _fill_transformed(codes, record, rows, values)
        else:
            _fill_row(codes, record, rows, places, values)
        for index in range(n_entries):
            sums[places[index]] += _towards_zero(gradient * values[index], shift)
    return sums


def divide_noise(whole: float, shares: Sequence[float]) -> tuple[float, ...]:
    """Return the noise multipliers of releases that together cost as much as one at `whole`."""
    return tuple(whole / math.sqrt(share) for share in shares)


def read_gram(release: IntVector, basis: LinearBasis) -> Matrix:
    """Return X^T X in real units from its released triangle: float64 [p, p]."""
    p = basis.rows.n_columns
    gram: NDArray[np.float64] = np.zeros((p, p))
    gram[np.triu_indices(p)] = release * (2.0**GRAM_SHIFT / basis.unit**2)
    return gram + np.triu(gram, 1).T


def read_cross(release: IntVector, basis: LinearBasis) -> NDArray[np.float64]:
    """Return X^T g in real units: float64 [p]."""
    return release.astype(np.float64) * (2.0**CROSS_SHIFT / (basis.unit * RECORD_NORM))


def gram_sigma(sigma: float, basis: LinearBasis) -> float:
    """Return the noise on one entry of X^T X in real units, from that of the release."""
    return sigma * 2.0**GRAM_SHIFT / basis.unit**2


def factor_gram(release: IntVector, basis: LinearBasis, sigma: float, ridge: float) -> tuple[Matrix, Matrix]:
    """Return a released X^T X, and its `factor_shifted` for a least eigenvalue of `ridge` sqrt(p) deviations."""
    gram, noise = read_gram(release, basis), gram_sigma(sigma, basis)
    return gram, factor_shifted(gram, ridge * noise * math.sqrt(len(gram)), noise)


def factor_shifted(gram: Matrix, wanted: float, sigma: float) -> Matrix:
    """Return the Cholesky factor of gram + lambda I.

    lambda is max(0, wanted - least eigenvalue) + `MIN_RIDGE`, and larger if there is no such factor.

    Args:
        gram: the noisy X^T X, float64 [p, p].
        wanted: the least eigenvalue that the sum shall have.
        sigma: standard deviation of the noise on one entry.
    """
    size = len(gram)
    span = SEARCH_SPAN * sigma * math.sqrt(size)
    ridge = max(0.0, wanted - least_eigenvalue(gram, span)) + MIN_RIDGE
    identity = np.eye(size)
    while True:
        factor = cholesky(gram + ridge * identity)
        if factor is not None:
            return factor
        # Noise beyond the span has a chance below 10^-9; without noise, rounding may leave a zero below zero.
        ridge = 2 * ridge + span


def ask_gram(
    round_number: int, what: str, basis: LinearBasis, noise_multiplier: float, rows: int, known: int = 0
) -> GramMatrix:
    """Return the question for X^T X.

    Args:
        rows: the largest number of rows of one unit.
        known: the trees that nodes hold.
    """
    p, largest = basis.rows.n_columns, basis.norm_squared * (basis.norm_squared + basis.largest_entry**2)
    return GramMatrix(
        purpose=GramMatrix.purpose_of(round_number, what),
        length=p * (p + 1) // 2,
        bound=basis.largest_entry**2 >> GRAM_SHIFT,
        # Rounded up, see `GramMatrix`.
        sensitivity_squared=-(-largest * rows**2 // (2 << 2 * GRAM_SHIFT)),
        noise_multiplier=noise_multiplier,
        ensemble_size=known,
        rows=basis.rows,
        shift=GRAM_SHIFT,
    )


def ask_cross(
    purpose: Purpose,
    basis: LinearBasis,
    loss: Loss,
    noise_multiplier: float,
    rows: int,
    carried: NodeTrees,
    doublings: int = 0,
) -> CrossProducts:
    """Return the question for X^T g, with the update that nodes need.

    Args:
        basis: the rows X.
        loss: whose negative gradients are g.
        rows: the largest number of rows of one unit.
        carried: the trees in the scores; the question brings the rest.
        doublings: of the gradients, see `hedgerow.losses.tables.double_residuals`.
    """
    gradient_squared = loss.sensitivity_squared(carried.score_bound)
    return CrossProducts(
        purpose=purpose,
        length=basis.rows.n_columns,
        bound=max(1, math.isqrt(gradient_squared) * basis.largest_entry >> CROSS_SHIFT),
        # Rounded up, see `CrossProducts`; products are shortened by the bits of a norm.
        sensitivity_squared=-(-basis.norm_squared * gradient_squared * rows**2 // RECORD_NORM**2),
        noise_multiplier=noise_multiplier,
        **carried.send(),
        rows=basis.rows,
        shift=CROSS_SHIFT,
        score_bound=carried.score_bound,
        doublings=doublings,
    )


def list_cross_rounds(
    kind: type[Query], basis: LinearBasis, loss: Loss, noise_multiplier: float, rows: int, count: int
) -> AlikeRounds:
    """Return all rounds that ask for X^T g by queries of this kind; other arguments as of `ask_cross`."""
    purpose = kind.purpose_of(0, "any")
    most, least = (
        ask_cross(purpose, basis, loss, noise_multiplier, rows, NodeTrees(score_bound=bound))
        for bound in (SCORE_LIMIT, 0)
    )
    return AlikeRounds(most, count, least.sensitivity_squared)


def linear_loss(kind: str, is_regression: bool, clip: float) -> Loss:
    """Build the loss of a linear model: one statistic, its negative gradient.

    It has `RECORD_NORM` units to 1.0.

    Args:
        kind: "squared", "logistic" or "hinge".
        is_regression: whether labels are numbers in [-1, 1]; then the loss is the squared one.
        clip: largest gradient of the squared loss, in real units.

    Source: Rho et al. 2022, Table 1; classes count as -1 and 1, for the logistic loss as 0 and 1.
    """
    limit = math.floor(clip * RECORD_NORM)
    scales = np.array([float(RECORD_NORM)])
    if is_regression:
        empty = np.empty((0, STEPS, 1), dtype=np.int16)
        return Loss("squared", 1, 1, scales, empty, limit * limit, limit)
    # The middles of the table's steps of score; a score beyond them counts as the last one.
    score = (np.arange(STEPS) - STEPS // 2 + 0.5) / (SCORE_UNIT >> STEP_BITS)
    if kind == "logistic":
        probability = logistic(STEPS, SCORE_UNIT >> STEP_BITS)
        gradient = np.stack([-probability, 1 - probability])
    elif kind == "hinge":
        gradient = np.stack([-(score > -1.0).astype(np.float64), (score < 1.0).astype(np.float64)])
    else:
        gradient = np.clip(np.stack([-1 - score, 1 - score]), -clip, clip)
    table = np.trunc(gradient * RECORD_NORM).astype(np.int16)[:, :, None]
    return Loss("table", 1, 1, scales, table, int((table.astype(np.int64) ** 2).max()))


def gram_matrix(records: SiteRecords, query: GramMatrix, n_threads: int = 1) -> IntVector:
    """Return the answer to a `GramMatrix` query: int64 [query.length]."""
    shape = (_pack_rows(query.rows), query.rows.n_columns, query.shift)
    sums = sum_in_threads(records.n_records, n_threads, lambda begin, end: gram_sums(records.codes, *shape, begin, end))
    return np.ascontiguousarray(sums[np.triu_indices(query.rows.n_columns)])


def cross_products(records: SiteRecords, query: CrossProducts, loss: Loss, n_threads: int = 1) -> IntVector:
    """Apply a `CrossProducts` query's update to the scores, then return its sums: int64 [query.length]."""
    if query.update is not None:
        apply_update(records, query.update, n_threads)
    gradients = (np.ascontiguousarray(loss.table[:, :, 0]), loss.clip, int(loss.scales[0]))
    own = (records.codes, records.labels, records.scores[0], gradients)
    shape = (_pack_rows(query.rows), query.rows.n_columns, query.shift)
    return sum_in_threads(records.n_records, n_threads, lambda begin, end: cross_sums(*own, *shape, begin, end))


def _pack_rows(rows: LinearRows) -> tuple[NDArray[np.int32], NDArray[np.int32], int, int, NDArray[np.int64]]:
    return rows.column, rows.entry, rows.intercept, rows.limit, rows.transform
