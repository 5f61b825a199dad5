"""Split candidates: which cells of the public grid a random tree may cut between.

A candidate is a cell number c of a feature: cells up to c go left. ``uniform`` and ``log`` fix them in the plan.
``iterative_hessian`` (Maddock et al., CCS'22, Algorithm 2) refines them by Hessian histograms that it pays for.
``adaptive`` refines them by the leaf Hessians that training releases anyway, so it costs nothing: each released leaf
says how much Hessian lies in its cells; the density over cells is updated, and the candidates are its quantiles.
``quantile`` cuts at quantiles of exact counts, for comparison with methods that read the data; it has no guarantee.

Densities are integers, so that every party that recomputes them gets the same candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.trees.grid import FeatureGrid

DENSITY_TOTAL = 2**40
"""Densities over the cells of a feature sum to about this."""
FLOOR_SHARE = 50
"""One part in 50 of the density stays uniform, so that no region is lost for good to one noisy leaf."""
MAX_REFINEMENTS = 6
"""Later releases would move the candidates by noise more than by knowledge."""
_TOO_NEAR = 2.0**-9


@dataclass(frozen=True, eq=False)
class AdaptiveCandidates:
    """What the releases so far say about where a feature's records lie.

    Attributes:
        density: int64 [n_cells], relative Hessian per cell.
        refinements: releases that went into it.
    """

    density: NDArray[np.int64]
    refinements: int = 0

    def cuts(self, n_candidates: int) -> list[int]:
        """At most `n_candidates - 1` ascending cuts, at the quantiles of the density."""
        return quantile_cuts(self.density, n_candidates)

    def refined(self, leaf_of_cell: NDArray[np.integer], hessians: NDArray[np.int64], noise: int) -> AdaptiveCandidates:
        """Take in one release.

        Args:
            leaf_of_cell: integers [n_cells], the leaf of each cell of the feature.
            hessians: int64 [n_leaves], noisy leaf Hessians in integer units.
            noise: their noise's standard deviation, in the same units; leaves within two of zero count as empty.
        """
        if self.refinements >= MAX_REFINEMENTS:
            return self
        n_leaves = len(hessians)
        kept = np.where(hessians > 2 * noise, hessians, 0)
        if not kept.any():
            return AdaptiveCandidates(self.density, self.refinements + 1)
        inside = np.zeros(n_leaves, dtype=np.int64)
        np.add.at(inside, leaf_of_cell, self.density)
        # Within a leaf the old density keeps its shape.
        cells = _shared_out(kept, leaf_of_cell, self.density, np.maximum(inside, 1))
        mixed = cells - cells // FLOOR_SHARE + DENSITY_TOTAL // FLOOR_SHARE // len(cells)
        return AdaptiveCandidates(mixed, self.refinements + 1)


def _shared_out(
    mass: NDArray[np.int64], leaf_of_cell: NDArray[np.integer], density: NDArray[np.int64], inside: NDArray[np.int64]
) -> NDArray[np.int64]:
    """DENSITY_TOTAL * (mass of the leaf / mass of all) * (density of the cell / inside of the leaf), rounded down.

    The products are beyond 64 bits, and a party that rounded otherwise would draw other trees. A quotient of floats is
    off by less than 2**-50 of itself, so by less than 2**-10: where it is as near as that to an integer, Python's
    integers decide.
    """
    total = sum(mass.tolist())
    quotient = DENSITY_TOTAL * ((mass / float(total))[leaf_of_cell] * (density / inside[leaf_of_cell]))
    cells: NDArray[np.int64] = quotient.astype(np.int64)
    is_near = np.abs(quotient - np.rint(quotient)) < _TOO_NEAR
    for cell in np.flatnonzero(is_near & (quotient > 0)).tolist():
        leaf = leaf_of_cell[cell]
        cells[cell] = DENSITY_TOTAL * int(mass[leaf]) * int(density[cell]) // (total * int(inside[leaf]))
    return cells


def initial_candidates(grid: FeatureGrid) -> AdaptiveCandidates:
    """Every cell equally likely: the grid itself is already denser where values usually are."""
    return AdaptiveCandidates(np.full(grid.n_cells, DENSITY_TOTAL // grid.n_cells, dtype=np.int64))


def quantile_cuts(density: NDArray[np.int64], n_bins: int) -> list[int]:
    """The cuts nearest to the quantiles 1/n_bins, 2/n_bins, ... of a density over cells; distinct and ascending."""
    cumulative = np.cumsum(density)
    total = int(cumulative[-1])
    if len(density) < 2 or total <= 0:
        return []
    targets = np.array([total * q // n_bins for q in range(1, n_bins)], dtype=np.int64)
    after = np.searchsorted(cumulative[:-1], targets)
    after = np.minimum(after, len(density) - 2)
    before = np.maximum(after - 1, 0)
    nearer = np.where(np.abs(cumulative[before] - targets) < np.abs(cumulative[after] - targets), before, after)
    return sorted(set(nearer.tolist()))
