"""Kernels of the adaptive candidates: a density over cells refined by one release, and the cuts at its quantiles.

Every party of a run takes in each release while all others wait, so a feature is one call, not a dozen of numpy's.

Split candidates: which cells of the public grid a random tree may cut between.

A candidate is a cell number c of a feature: cells up to c go left. ``uniform`` and ``log`` fix them in the plan.
``iterative_hessian`` (Maddock et al., CCS'22, Algorithm 2) refines them by Hessian histograms that it pays for.
``adaptive`` refines them by the leaf Hessians that training releases anyway, so it costs nothing: each released leaf
says how much Hessian lies in its cells; the density over cells is updated, and the candidates are its quantiles.
``quantile`` cuts at quantiles of exact counts, for comparison with methods that read the data; it has no guarantee.

Densities are integers, so that every party that recomputes them gets the same candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
from numpy.typing import NDArray

from hedgerow.trees.binning import FeatureGrid

DENSITY_BITS = 40
"""Densities over the cells of a feature sum to about 2**40."""
FLOOR_SHARE = 50
"""One part in 50 of the density stays uniform, so that no region is lost for good to one noisy leaf."""
_SHIFT, _WORD = np.uint64(DENSITY_BITS), np.uint64(64)
_HALF, _LOW_HALF = np.uint64(32), np.uint64(2**32 - 1)
_TOO_NEAR = 2.0**-9


@numba.njit(cache=True, nogil=True)
def refine_features(  # type: ignore[no-untyped-def]
    features, leaf_of_cell, hessians, least, most, n_bins, density, n_cells, refinements, cuts, n_cuts
):
    """Refine features by the leaves of a batch of trees, tree after tree, and cut at the quantiles of what comes out.

    Args:
        features: int64 [B], the feature that each tree asks for, negative for a tree that tells nothing of one.
        leaf_of_cell: uint8 or int64 [B, at least the feature's cells].
        hessians: int64 [B, n_leaves].
        least: leaves up to this count as empty.
        most: a feature is refined so many times.
        n_bins: one more than the cuts that are wanted.
        density: int64 [n_features, most cells]; written.
        n_cells: int64 [n_features], 0 for features that are not refined.
        refinements: int64 [n_features]; written.
        cuts, n_cuts: int64 [n_features, at least n_cells - 1] and [n_features], of features that were refined; written.
    """
    for tree in range(len(features)):
        own = features[tree]
        if own < 0 or n_cells[own] == 0 or refinements[own] >= most:
            continue
        refined = refined_density(density[own, : n_cells[own]].copy(), leaf_of_cell[tree], hessians[tree], least)
        density[own, : n_cells[own]] = refined
        refinements[own] += 1
        found = nearest_cuts(refined, n_bins)
        cuts[own, : len(found)] = found
        n_cuts[own] = len(found)


@numba.njit(cache=True, nogil=True)
def refined_density(density, leaf_of_cell, hessians, least):  # type: ignore[no-untyped-def]
    """A feature's density after one release: int64 [n_cells]; what it was where no leaf holds more than `least`.

    Args:
        density: int64 [n_cells], at least 0, which sum to less than 2**42.
        leaf_of_cell: uint8 or int64, of these cells and perhaps of codes behind them.
        hessians: int64 [n_leaves], at most 256 of them; those up to `least` count as empty.
        least: at least 0.
    """
    kept = np.where(hessians > least, hessians, 0)
    if not kept.any():
        return density
    # Within a leaf the old density keeps its shape.
    cells = _shared_out(kept, leaf_of_cell, density)
    for cell in range(len(cells)):
        cells[cell] += 2**DENSITY_BITS // FLOOR_SHARE // len(cells) - cells[cell] // FLOOR_SHARE
    return cells


@numba.njit(cache=True, nogil=True)
def _shared_out(mass, leaf_of_cell, density):  # type: ignore[no-untyped-def]
    """2**40 (mass of the leaf / mass of all) (density of the cell / that of its leaf), rounded down: int64 [n_cells].

    The products are beyond 64 bits, and a party that rounded otherwise would draw other trees. A quotient of floats is
    off by less than 2**-50 of itself, so by less than 2**-10: where it is as near as that to an integer, products of
    128 bits decide.

    Args:
        mass: int64 [n_leaves], at most 256 of them, at least 0 and not all 0.
        leaf_of_cell: uint8 or int64 [n_cells].
        density: int64 [n_cells], at least 0, which sum to less than 2**42.
    """
    inside = np.zeros(len(mass), dtype=np.int64)
    for cell in range(len(density)):
        inside[leaf_of_cell[cell]] += density[cell]
    total = (np.uint64(0), np.uint64(0))
    for leaf in range(len(mass)):
        low = total[1] + np.uint64(mass[leaf])
        total = (total[0] + np.uint64(low < total[1]), low)
    all_mass = np.float64(total[0]) * 2.0**64 + np.float64(total[1])
    cells = np.zeros(len(density), dtype=np.int64)
    for cell in range(len(density)):
        leaf = leaf_of_cell[cell]
        if mass[leaf] == 0 or density[cell] == 0:
            continue
        quotient = 2.0**DENSITY_BITS * ((mass[leaf] / all_mass) * (density[cell] / inside[leaf]))
        nearest = np.rint(quotient)
        if abs(quotient - nearest) >= _TOO_NEAR:
            cells[cell] = np.int64(quotient)
        else:
            parts = _product(np.uint64(0), np.uint64(mass[leaf]), np.uint64(density[cell]))
            wanted = (parts[0] << _SHIFT) | (parts[1] >> (_WORD - _SHIFT)), parts[1] << _SHIFT
            unit = _product(total[0], total[1], np.uint64(inside[leaf]))
            cells[cell] = np.int64(nearest) - _is_below(wanted, _product(unit[0], unit[1], np.uint64(nearest)))
    return cells


@numba.njit(cache=True, nogil=True)
def _product(high, low, factor):  # type: ignore[no-untyped-def]
    """(2**64 high + low) * factor modulo 2**128, as two words of 64 bits."""
    first, second = low & _LOW_HALF, low >> _HALF
    third, fourth = factor & _LOW_HALF, factor >> _HALF
    bottom, left, right = first * third, second * third, first * fourth
    middle = (bottom >> _HALF) + (left & _LOW_HALF) + (right & _LOW_HALF)
    top = second * fourth + (left >> _HALF) + (right >> _HALF) + (middle >> _HALF)
    return top + high * factor, (middle << _HALF) | (bottom & _LOW_HALF)


@numba.njit(cache=True, nogil=True)
def _is_below(one, other):  # type: ignore[no-untyped-def]
    """1 if one < other, else 0, for numbers modulo 2**128 that are less than 2**127 apart."""
    borrow = np.uint64(one[1] < other[1])
    return np.int64((one[0] - other[0] - borrow) >> np.uint64(63))


@numba.njit(cache=True, nogil=True)
def nearest_cuts(density, n_bins):  # type: ignore[no-untyped-def]
    """The cuts nearest to the quantiles 1/n_bins, 2/n_bins, ... of a density: int64, distinct and ascending.

    Args:
        density: int64 [n_cells], at least 0; n_bins times their sum fits 64 bits.
        n_bins: at least 1.
    """
    cumulative = np.cumsum(density)
    n_cuts, total, at = len(cumulative) - 1, cumulative[-1], 0
    cuts = np.empty(n_bins, dtype=np.int64)
    if n_cuts < 1 or total <= 0:
        return cuts[:0]
    n_found = 0
    for quantile in range(1, n_bins):
        target = total * quantile // n_bins
        # Targets ascend, so the search goes on from where it was.
        while at < n_cuts and cumulative[at] < target:
            at += 1
        after = min(at, n_cuts - 1)
        before = max(after - 1, 0)
        cut = before if abs(cumulative[before] - target) < abs(cumulative[after] - target) else after
        if n_found == 0 or cuts[n_found - 1] < cut:
            cuts[n_found] = cut
            n_found += 1
    return cuts[:n_found]


DENSITY_TOTAL = 2**DENSITY_BITS
"""Densities over the cells of a feature sum to about this."""
MAX_REFINEMENTS = 6
"""Later releases would move the candidates by noise more than by knowledge."""


class AdaptiveCandidates:
    """What the releases so far say about where the records lie, for every numeric feature.

    Attributes:
        density: int64 [n_features, most cells], relative Hessian per cell; a row counts up to its number of cells.
        n_cells: int64 [n_features], 0 for a categorical feature.
        refinements: int64 [n_features], releases that went into each.
    """

    def __init__(self, grids: Sequence[FeatureGrid]) -> None:
        """Every cell is equally likely: the grid itself is already denser where values usually are."""
        sizes = [0 if grid.is_categorical else grid.n_cells for grid in grids]
        self.n_cells = np.array(sizes, dtype=np.int64)
        self.refinements = np.zeros(len(sizes), dtype=np.int64)
        self.density = np.zeros((len(sizes), max(sizes, default=0)), dtype=np.int64)
        for row, size in zip(self.density, sizes, strict=True):
            row[:size] = DENSITY_TOTAL // max(1, size)

    def cuts(self, feature: int, n_candidates: int) -> list[int]:
        """At most `n_candidates - 1` ascending cuts of a feature, at the quantiles of its density."""
        return quantile_cuts(self.density[feature, : self.n_cells[feature]], n_candidates)

    def refine(
        self,
        features: NDArray[np.int64],
        leaf_of_cell: NDArray[np.uint8] | NDArray[np.int64],
        hessians: NDArray[np.int64],
        noise: int,
        table: tuple[NDArray[np.int64], NDArray[np.int64], int],
    ) -> None:
        """Take in a release of one or more trees, each on a single feature.

        Args:
            features: int64 [B], negative for a tree that asks for several.
            leaf_of_cell: uint8 or int64 [B, at least the feature's cells], the leaf of each cell.
            hessians: int64 [B, n_leaves], noisy leaf Hessians in integer units.
            noise: their noise's standard deviation, in the same units; leaves within two of zero count as empty.
            table: cuts and their numbers, int64 [n_features, most] and [n_features], of which the rows of refined
                features are written; and `n_candidates`, as for `cuts`.
        """
        cuts, n_cuts, n_candidates = table
        refine_features(
            features, leaf_of_cell, hessians, 2 * noise, MAX_REFINEMENTS, n_candidates,
            self.density, self.n_cells, self.refinements, cuts, n_cuts,
        )  # fmt: skip


def quantile_cuts(density: NDArray[np.int64], n_bins: int) -> list[int]:
    """The cuts nearest to the quantiles 1/n_bins, 2/n_bins, ... of a density over cells; distinct and ascending."""
    cuts: list[int] = nearest_cuts(density, n_bins).tolist()
    return cuts
