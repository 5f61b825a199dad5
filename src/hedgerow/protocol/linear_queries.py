"""The queries of linear models: sums of products of a record's row, whose entries are a table over its codes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.queries import Query


@dataclass(frozen=True, eq=False)
class LinearRows:
    """How a record's codes become its row of integers: a constant, then one entry per feature.

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


@dataclass(frozen=True, kw_only=True, eq=False)
class GramMatrix(Query):
    """The sums of r_i r_j / 2**shift, rounded towards zero, for i <= j: int64 [p (p + 1) / 2], row by row.

    The squared norm of one record's contribution is at most (|r|⁴ + sum of r_i⁴) / 2 / 4**shift: off the diagonal each
    product is there once, and all products together have the norm |r|².

    Attributes:
        rows: how codes become rows.
        shift: bits that products are shortened by.
    """

    rows: LinearRows
    shift: int


@dataclass(frozen=True, kw_only=True, eq=False)
class CrossProducts(Query):
    """The sums of g r_i / 2**shift, rounded towards zero: int64 [p]; g is the record's negative gradient, an integer.

    The squared norm of one record's contribution is at most g² |r|² / 4**shift.

    Attributes:
        rows, shift: as in `GramMatrix`.
        score_bound: a public bound on the magnitude of every score, in units of 2**-16.
    """

    rows: LinearRows
    shift: int
    score_bound: int
