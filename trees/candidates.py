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

from hedgerow.trees.candidate_kernels import DENSITY_BITS, nearest_cuts, refined_density
from hedgerow.trees.grid import FeatureGrid

DENSITY_TOTAL = 2**DENSITY_BITS
"""Densities over the cells of a feature sum to about this."""
MAX_REFINEMENTS = 6
"""Later releases would move the candidates by noise more than by knowledge."""


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
        # A kernel is compiled for the layout of its arrays: a copy always has the same.
        leaves, sums = np.array(leaf_of_cell, dtype=np.int64), np.array(hessians)
        density = refined_density(self.density, leaves, sums, 2 * noise)
        return AdaptiveCandidates(density, self.refinements + 1)


def initial_candidates(grid: FeatureGrid) -> AdaptiveCandidates:
    """Every cell equally likely: the grid itself is already denser where values usually are."""
    return AdaptiveCandidates(np.full(grid.n_cells, DENSITY_TOTAL // grid.n_cells, dtype=np.int64))


def quantile_cuts(density: NDArray[np.int64], n_bins: int) -> list[int]:
    """The cuts nearest to the quantiles 1/n_bins, 2/n_bins, ... of a density over cells; distinct and ascending."""
    cuts: list[int] = nearest_cuts(density, n_bins).tolist()
    return cuts
