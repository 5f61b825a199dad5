# SPDX-License-Identifier: Apache-2.0
"""Exponentials, logarithms, powers and sums that end in the same bit on every processor.

Libraries do not fix the last bit of an exponential. NumPy runs another program on a processor with AVX-512 than on one
without, the C library runs another one on a processor with fused multiplication, and BLAS adds up in another order. The
package therefore computes here what it releases, compares or stores, and what decides structure. This module adds,
multiplies, divides and takes roots, which IEEE 754 rounds in one way only, and uses `math.fsum` and decimals, which
round once. `tests/test_last_bits.py` holds the package to it.

Results are within one unit in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

_Floats = NDArray[np.float64]
_Number = TypeVar("_Number", float, NDArray[np.float64])

_CONTEXT = Context(prec=40, rounding=ROUND_HALF_EVEN)
_N_STEPS = 64
"""Tabulated powers of two between 1 and 2."""
_N_PARTS = 128
"""Tabulated logarithms for one unit."""
_LARGEST_EXPONENT, _SMALLEST_EXPONENT = 710.0, -746.0
"""Beyond these an exponential is infinity, or zero."""


def exp(values: ArrayLike) -> _Floats:
    """Compute e to the power of each value, float64 of the same shape."""
    powers, rests, step = _exp_tables()
    given = np.asarray(values, dtype=np.float64)
    bounded = np.clip(given, _SMALLEST_EXPONENT, _LARGEST_EXPONENT)
    n_steps = np.rint(np.nan_to_num(bounded) * (1 / step[0]))
    # The first part of a step has so few digits that its multiple is exact.
    left = (bounded - n_steps * step[0]) - n_steps * step[1]
    series = left + left * left * (1 / 2 + left * (1 / 6 + left * (1 / 24 + left * (1 / 120 + left / 720))))
    exponent, place = np.divmod(n_steps.astype(np.int64), _N_STEPS)
    found = powers[place] + (rests[place] + powers[place] * series)
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.ldexp(found, exponent.astype(np.int32)))


def log(values: ArrayLike) -> _Floats:
    """Compute the natural logarithm of each value, float64 of the same shape: -inf of 0, NaN below."""
    logs, rests, doubling = _log_tables()
    given = np.asarray(values, dtype=np.float64)
    is_usual = (given > 0) & (given < math.inf)
    fraction, exponent = np.frexp(np.where(is_usual, given, 1.0))
    is_low = fraction < 0.7
    fraction, exponent = np.where(is_low, 2 * fraction, fraction), exponent - is_low
    part = np.rint(fraction * _N_PARTS)
    # The difference is exact, and 0.0056 at most: of the series nothing is missing.
    left = (fraction * _N_PARTS - part) / part
    series = left * left * (-1 / 2 + left * (1 / 3 + left * (-1 / 4 + left * (1 / 5 + left * (-1 / 6 + left / 7)))))
    place = part.astype(np.int64)
    large, small = exponent * doubling[0], logs[place]
    total = large + small
    # The rounding error of that sum.
    carried = total - large
    lost = (large - (total - carried)) + (small - carried)
    found = total + (left + (series + (lost + (exponent * doubling[1] + rests[place]))))
    odd = np.where(given == 0, -math.inf, np.where(given == math.inf, math.inf, math.nan))
    return np.asarray(np.where(is_usual, found, odd))


def powers(base: float, exponents: ArrayLike) -> _Floats:
    """Compute a number above 0 to the power of each of a few numbers, float64 of the same shape; slow."""
    logarithm = _CONTEXT.ln(Decimal(base))
    return _compute_each(exponents, lambda exponent: _CONTEXT.exp(_CONTEXT.multiply(logarithm, exponent)))


def expm1(values: ArrayLike) -> _Floats:
    """Compute exp(x) - 1 of a few numbers, float64 of the same shape; slow."""
    return _compute_each(values, lambda value: _CONTEXT.subtract(_CONTEXT.exp(value), 1))


def log1p(values: ArrayLike) -> _Floats:
    """Compute log(1 + x) of a few numbers, float64 of the same shape; slow."""
    return _compute_each(values, lambda value: _CONTEXT.ln(_CONTEXT.add(1, value)))


def _compute_each(values: ArrayLike, compute: Callable[[Decimal], Decimal]) -> _Floats:
    given = np.asarray(values, dtype=np.float64)
    found = [float(compute(Decimal(value))) for value in given.ravel().tolist()]
    return np.array(found, dtype=np.float64).reshape(given.shape)


def square(value: _Number) -> _Number:
    """Multiply a number by itself: Python leaves the power of a float to the C library."""
    return value * value


def add_up(values: ArrayLike) -> float:
    """Add up all values, rounded once."""
    return math.fsum(np.asarray(values, dtype=np.float64).ravel().tolist())


def add_up_rows(values: ArrayLike) -> _Floats:
    """Add up each row, rounded once: float64 [n], of [n, m]."""
    return np.array([add_up(row) for row in np.asarray(values)], dtype=np.float64)


def dot(first: ArrayLike, second: ArrayLike) -> float:
    """Add up the products of two arrays of one shape; each product is rounded, and their sum once."""
    return add_up(np.multiply(first, second, dtype=np.float64))


def times(matrix: ArrayLike, vector: ArrayLike) -> _Floats:
    """Multiply a matrix by a vector, see `dot`: float64 [n], of [n, m] and [m]."""
    return np.array([dot(row, vector) for row in np.asarray(matrix)], dtype=np.float64)


def norm(values: ArrayLike) -> float:
    """Compute the Euclidean length of all values."""
    return math.sqrt(dot(values, values))


def mean(values: ArrayLike) -> float:
    """Compute the mean of all values, of which there is at least one."""
    return add_up(values) / np.size(values)


def interpolate(values: ArrayLike, places: _Floats, heights: _Floats) -> _Floats:
    """Read a line from point to point at each value, float64; beyond its ends it is level.

    Args:
        places: float64 [n], ascending; n >= 2.
        heights: float64 [n].
    """
    given = np.asarray(values, dtype=np.float64)
    point = np.clip(np.searchsorted(places, given, side="right") - 1, 0, len(places) - 2)
    widths = places[point + 1] - places[point]
    slopes = (heights[point + 1] - heights[point]) / np.where(widths > 0, widths, 1.0)
    found = slopes * (given - places[point]) + heights[point]
    return np.asarray(np.where(given >= places[-1], heights[-1], np.where(given < places[0], heights[0], found)))


@lru_cache(maxsize=1)
def _exp_tables() -> tuple[_Floats, _Floats, tuple[float, float]]:
    """Return 2**(k / 64), in two doubles each, and log(2) / 64, in two."""
    step = _CONTEXT.divide(_CONTEXT.ln(Decimal(2)), Decimal(_N_STEPS))
    values = [_CONTEXT.exp(_CONTEXT.multiply(step, Decimal(place))) for place in range(_N_STEPS)]
    return *_in_two(values), _split(step, 34)


@lru_cache(maxsize=1)
def _log_tables() -> tuple[_Floats, _Floats, tuple[float, float]]:
    """Return log(k / 128), in two doubles each, and log(2), in two."""
    values = [_CONTEXT.ln(Decimal(max(place, 1)) / _N_PARTS) for place in range(2 * _N_PARTS)]
    return *_in_two(values), _split(_CONTEXT.ln(Decimal(2)), 40)


def _in_two(values: list[Decimal]) -> tuple[_Floats, _Floats]:
    """Return the doubles next to the values, and the doubles next to the remainders."""
    first = [float(value) for value in values]
    rests = [float(_CONTEXT.subtract(value, Decimal(near))) for value, near in zip(values, first, strict=True)]
    return np.array(first), np.array(rests)


def _split(value: Decimal, n_bits: int) -> tuple[float, float]:
    """Return a double with `n_bits` bits next to a value from 2**-8 to 1, and the remainder."""
    unit = 2.0 ** (n_bits - math.frexp(float(value))[1])
    first = round(float(value) * unit) / unit
    return first, float(_CONTEXT.subtract(value, Decimal(first)))
