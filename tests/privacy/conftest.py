"""Shared helpers of the privacy tests: the exact mass function and a chi-square test against it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

ChiSquare = Callable[[npt.NDArray[np.int64], int], float]


def discrete_gaussian_pmf(sigma: float, values: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Probabilities of N_Z(0, sigma²) at the values, normalised by direct summation over 40 sigma."""
    reach = int(40 * sigma) + 1
    support = np.arange(-reach, reach + 1, dtype=np.float64)
    normaliser = np.exp(-(support**2) / (2 * sigma**2)).sum()
    return np.exp(-(values.astype(np.float64) ** 2) / (2 * sigma**2)) / normaliser


@pytest.fixture
def chi_square_p_value() -> ChiSquare:
    """The p-value of draws against N_Z(0, sigma²): one cell per integer where at least 10 draws are expected."""

    def p_value(draws: npt.NDArray[np.int64], sigma: int) -> float:
        reach = int(8 * sigma)
        cells = np.arange(-reach, reach + 1)
        expected = discrete_gaussian_pmf(sigma, cells) * draws.size
        inner = cells[expected >= 10]
        low, high = inner[0], inner[-1]
        counts = np.bincount(np.clip(draws, low - 1, high + 1) - (low - 1), minlength=high - low + 3)
        kept = expected[(cells >= low) & (cells <= high)]
        tail = (draws.size - kept.sum()) / 2
        frequencies = np.concatenate([[tail], kept, [tail]])
        if tail < 10:
            # Tails with few draws join their neighbour, or the chi-square law would not hold.
            frequencies = np.concatenate([[tail + kept[0]], kept[1:-1], [tail + kept[-1]]])
            counts = np.concatenate([[counts[0] + counts[1]], counts[2:-2], [counts[-2] + counts[-1]]])
        return float(stats.chisquare(counts, frequencies).pvalue)

    return p_value
