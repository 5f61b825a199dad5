"""Split candidates: which cells of the public grid a random tree may cut between.

A candidate is a cell number c of a feature: cells up to c go left. ``uniform`` and ``log`` fix them in the plan.
``iterative_hessian`` (Maddock et al., CCS'22, Algorithm 2) refines them by Hessian histograms that it pays for.
``adaptive`` refines them by the leaf Hessians that training releases anyway, so it costs nothing: each released leaf
says how much Hessian lies in its cells; the density over cells is updated, and the candidates are its quantiles.
``quantile`` cuts at quantiles of exact counts, for comparison with methods that read the data; it has no guarantee.

Densities are integers, so that every party that recomputes them gets the same candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hedgerow.trees.candidate_kernels import DENSITY_BITS, nearest_cuts, refine_features
from hedgerow.trees.grid import FeatureGrid

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
