"""Linear equations, solved alike on every machine: whole-array additions, products, quotients and roots, no BLAS.

IEEE 754 rounds each of these correctly, and numpy does one of them at a time, so that no multiply-add can be fused and
no sum reordered. A matrix of a few hundred columns takes milliseconds.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def cholesky(matrix: Matrix) -> Matrix | None:
    """The lower triangular L with L L^T = matrix, float64 [p, p]; None when it is not positive definite.

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
    """x with L L^T x = right, for the L of `cholesky`: float64 [p]."""
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
    """The inverse of a lower triangular matrix: float64 [p, p], lower triangular."""
    inverse = np.eye(len(lower))
    for step in range(len(lower)):
        inverse[step] = inverse[step] / lower[step, step]
        inverse[step + 1 :] -= lower[step + 1 :, step, None] * inverse[step]
    return inverse


def least_eigenvalue(matrix: Matrix, span: float, steps: int = 12) -> float:
    """The least eigenvalue of a symmetric matrix within [-span, span], from below, to span / 2**(steps - 1).

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
