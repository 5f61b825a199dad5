"""Exponentials that are the same on every machine.

Libraries' exponentials may differ in the last bit between processors, and a loss's table that differs by one integer
between two nodes would break the promise that a model does not depend on who holds which row. These are powers of one
decimal constant, computed with 50 digits and rounded to a double once.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Context, Decimal
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_CONTEXT = Context(prec=50)


@lru_cache(maxsize=8)
def _decimals(count: int, steps_per_unit: int, twice_offset: int) -> tuple[Decimal, ...]:
    """exp(-(k + twice_offset / 2) / steps_per_unit) for k < count, to nearly 50 digits."""
    ratio = _CONTEXT.exp(_CONTEXT.divide(Decimal(-1), Decimal(steps_per_unit)))
    value = _CONTEXT.exp(_CONTEXT.divide(Decimal(-twice_offset), Decimal(2 * steps_per_unit)))
    values = []
    for _ in range(count):
        values.append(value)
        value = _CONTEXT.multiply(value, ratio)
    return tuple(values)


@lru_cache(maxsize=8)
def exponentials(count: int, steps_per_unit: int) -> NDArray[np.float64]:
    """exp(-k / steps_per_unit) for k = 0 .. count - 1: float64 [count], read-only."""
    return _fixed(_decimals(count, steps_per_unit, 0))


@lru_cache(maxsize=8)
def logistic(count: int, steps_per_unit: int) -> NDArray[np.float64]:
    """1 / (1 + exp(-x)) at the middles x = (k + 1/2) / steps_per_unit, k in -count / 2 .. count / 2 - 1, read-only."""
    one = Decimal(1)
    upper = [_CONTEXT.divide(one, _CONTEXT.add(one, value)) for value in _decimals(count // 2, steps_per_unit, 1)]
    lower = [_CONTEXT.subtract(one, value) for value in reversed(upper)]
    return _fixed(lower + upper)


def _fixed(values: Iterable[Decimal]) -> NDArray[np.float64]:
    """The doubles next to the values, which nobody can change."""
    table = np.array([float(value) for value in values])
    table.flags.writeable = False
    return table
