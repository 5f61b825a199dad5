"""Exponentials: correct to the last bit, so that every machine builds the same tables."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from hedgerow.losses.tables import exponentials, logistic


def test_exponentials_are_correctly_rounded() -> None:
    """Each entry is the double nearest to the true value: two correct machines cannot differ."""
    with mpmath.workdps(60):
        wanted = [float(mpmath.exp(mpmath.mpf(-k) / 256)) for k in range(4096)]
    assert exponentials(4096, 256).tolist() == wanted


@pytest.mark.parametrize("count", [4096, 4097])
def test_the_logistic_table_is_correctly_rounded_and_symmetric(count: int) -> None:
    """p(x) at the middles of steps, or at their ends, from -8 to 8: nearest doubles on both sides of zero."""
    with mpmath.workdps(60):
        places = [mpmath.mpf(2 * k - (count - 1)) / 512 for k in range(count)]
        wanted = [float(1 / (1 + mpmath.exp(-x))) for x in places]
    table = logistic(count, 256)
    assert table.tolist() == wanted
    np.testing.assert_allclose(table + table[::-1], 1, atol=2e-16)
