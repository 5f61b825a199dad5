# SPDX-License-Identifier: Apache-2.0
"""Split candidates: the cells of the public grid that trees may cut between, and their refinement.

A candidate is a cell number c of a feature: cells up to c go left. ``uniform`` and ``log`` fix them in the plan.
``iterative_hessian`` (Maddock et al., CCS'22, Algorithm 2) refines them by Hessian histograms that it pays for, by the
rule of the published code; ``iterative_hessian_printed`` by the rule that the paper prints.
``adaptive`` refines them by the leaf Hessians that training releases anyway, so it costs nothing: each released leaf
says how much Hessian lies in its cells. The density over cells is updated, and the candidates are its quantiles.
``quantile`` cuts at quantiles of exact counts, for comparison with methods that read the data; it has no guarantee.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.plan.plan import BY_HISTOGRAMS, PRINTED, Plan
from hedgerow.protocol.queries import IntVector, TreeBatch
from hedgerow.training.settings import pays_for_candidates
from hedgerow.trees.binning import FeatureGrid, FloatArray, Grid
from hedgerow.trees.greedy_trees import Bins
from hedgerow.trees.random_trees import Cuts, CutTable, find_shapes

DENSITY_TOTAL = 2**40
"""Densities over the cells of a feature sum to about this."""
FLOOR_SHARE = 50
"""One part in 50 of the density stays uniform, so that no region is lost for good to one noisy leaf."""
MAX_REFINEMENTS = 6
"""Later releases would move the candidates by noise more than by knowledge."""
PARTS_OF_SHARE = 3
"""A cell with more than a third of a candidate's share is heavy. The limit is so low that the first release shows
a feature whose rows all lie in one wide leaf, over whose cells its density is spread evenly."""
CROWDED = 20
"""A feature is crowded when its heavy cells hold all of it except one part in this many: 95 %. With 32 candidates these
are at most 96 of its 253 cells."""
MIN_FREE = 2
"""A feature is cut again while trees use so few of its edges that this many times the candidates are free."""


class CandidateSource:
    """The candidates of every feature at every moment of a run.

    Args:
        plan: its `split_candidates`, `n_candidates` and `candidate_rounds` decide.
    """

    def __init__(self, plan: Plan, grid: Grid) -> None:
        self._method = plan.model.split_candidates
        self._n_candidates = plan.model.n_candidates
        self._grid = grid
        self._rounds_left = plan.model.candidate_rounds if pays_for_candidates(plan) else int(plan.reads_quantiles)
        self._free_rounds_left = [plan.model.candidate_rounds] * grid.n_features
        self._lowest = [0.0 if feature.min is None else feature.min for feature in plan.features]
        self._highest = [0.0 if feature.max is None else feature.max for feature in plan.features]
        self._adaptive = AdaptiveCandidates(grid.features)
        self._first = grid
        self._table = CutTable.from_cuts({index: self._initial_cuts(index) for index in range(grid.n_features)}, grid)
        self._bins: tuple[Cuts, Bins] | None = None

    def _initial_cuts(self, index: int) -> list[int]:
        feature = self._grid.features[index]
        if feature.is_categorical:
            return []
        if self._method == "adaptive":
            return self._adaptive.cuts(index, self._n_candidates)
        if self._method in BY_HISTOGRAMS:
            low, high = self._lowest[index], self._highest[index]
            uniform = low + (high - low) * np.arange(self._n_candidates) / self._n_candidates
            cuts = np.unique(np.searchsorted(feature.edges, uniform.astype(np.float32)))
            return [int(cut) for cut in cuts if cut < len(feature.edges)]
        return list(range(feature.n_cells - 1))

    def cuts(self, features: Sequence[int]) -> dict[int, list[int]]:
        """Return the candidates of some features: cell numbers after which a split may be made."""
        return {feature: self._table.of_feature(feature) for feature in features}

    @property
    def cut_table(self) -> CutTable:
        """The candidates of all features at this moment."""
        return self._table

    def count_paid_rounds(self, tree: int, batch_size: int) -> int:
        """Return the number of histograms to ask for before the batch that starts with `tree`.

        There is one per tree of the batch, while any are left.
        """
        return min(self._rounds_left, batch_size)

    def bin_of_code(self, feature: int) -> NDArray[np.uint16]:
        """Return the histogram bin of each code of a feature: uint16 [n_codes].

        The bins of a number lie between candidates, then comes one for missing values.
        """
        grid = self._grid.features[feature]
        if grid.is_categorical:
            return np.arange(grid.n_codes, dtype=np.uint16)
        cuts = self._table.of_feature(feature)
        bins = np.searchsorted(cuts, np.arange(grid.n_codes)).astype(np.uint16)
        bins[grid.missing_code] = len(cuts) + 1
        return bins

    def bin_tables(self) -> dict[str, Any]:
        """Return the bins of all features at this moment, as a `Histogram` names them."""
        tables = tuple(self.bin_of_code(feature) for feature in range(self._grid.n_features))
        n_bins = tuple(int(table.max()) + 1 for table in tables)
        return {"features": tuple(range(len(tables))), "bin_of_code": tables, "n_bins": n_bins}

    @property
    def reads_splits(self) -> bool:
        """True if histograms that were released for splits change any candidates (`take_bins`)."""
        return self._method in (*BY_HISTOGRAMS, "adaptive")

    def bins(self) -> Bins:
        """Return the bins of all features at this moment.

        It is the same object as long as no candidate has moved.
        """
        cuts = self.cuts(range(self._grid.n_features))
        if self._bins is None or self._bins[0] != cuts:
            self._bins = cuts, self._build_bins(cuts)
        return self._bins[1]

    def _build_bins(self, cuts: Cuts) -> Bins:
        grids = self._grid.features
        tables = [self.bin_of_code(index) for index in range(len(grids))]
        n_bins = np.array([int(table.max()) + 1 for table in tables], dtype=np.int64)
        of_code = np.repeat((n_bins - 1).astype(np.uint16)[:, None], self._grid.n_codes, axis=1)
        last_code = np.zeros((len(grids), int(n_bins.max())), dtype=np.int64)
        for index, (grid, table) in enumerate(zip(grids, tables, strict=True)):
            of_code[index, : len(table)] = table
            last_code[index, : len(cuts[index])] = cuts[index]
            last_code[index, len(cuts[index])] = grid.n_cells - 1
        return Bins(of_code, n_bins, last_code, np.array([grid.is_categorical for grid in grids]))

    def take_bins(self, feature: int, hessians: IntVector, sigma: float) -> None:
        """Refine one feature by a histogram that was released for splits (CCS'22, section 4.5.2: no cost).

        Iterative Hessian splitting takes `candidate_rounds` of them for each feature; adaptive candidates take theirs.

        Args:
            feature: its index; nothing happens for a categorical one.
            hessians: int64 [bins of values], in integer units, without the bin of missing values.
            sigma: standard deviation of their noise, in integer units.
        """
        if self._grid.features[feature].is_categorical:
            return
        if self._method in BY_HISTOGRAMS and self._free_rounds_left[feature] > 0:
            self._free_rounds_left[feature] -= 1
            self._refine(feature, hessians, float(hessians.sum()))
        elif self._method == "adaptive":
            self._refine_density(feature, self.bin_of_code(feature), hessians, sigma)

    def take_histogram(self, sums: IntVector) -> None:
        """Refine all features by a noisy Hessian histogram, or cut at the quantiles of exact counts.

        The former is Algorithm 2 of CCS'22. Either counts as one of the rounds.
        """
        self._rounds_left -= 1
        # Every feature's bins hold all records, so the mean of their totals is the best guess at it.
        total = float(sums.sum()) / self._grid.n_features
        position = 0
        for index, grid in enumerate(self._grid.features):
            n_bins = grid.n_codes if grid.is_categorical else len(self._table.of_feature(index)) + 2
            if self._method == "quantile" and not grid.is_categorical:
                counts = sums[position : position + n_bins - 1].copy()
                # Q + 1 bins have Q quantiles between them: as many candidates as other methods have.
                self._table.put(index, quantile_cuts(counts, self._n_candidates + 1))
            elif not grid.is_categorical:
                self._refine(index, sums[position : position + n_bins - 1], total)
            position += n_bins

    def _refine(self, index: int, hessians: IntVector, total: float) -> None:
        """Run one round of iterative Hessian splitting for one feature.

        Candidates are moved to the nearest edge of the grid.
        """
        edges = self._grid.features[index].edges.astype(np.float64)
        candidates = [float(edges[cut]) for cut in self._table.of_feature(index)]
        if not candidates:
            return
        as_printed = self._method == PRINTED
        wanted = np.array(iterative_hessian(candidates, hessians, total, self._n_candidates, as_printed))
        after = np.minimum(np.searchsorted(edges, wanted), len(edges) - 1)
        before = np.maximum(after - 1, 0)
        nearer = np.where(wanted - edges[before] < edges[after] - wanted, before, after)
        self._table.put(index, [int(cut) for cut in np.unique(nearer)])

    def take_leaves(self, trees: TreeBatch, hessians: NDArray[np.int64], sigma: float) -> None:
        """Refine by the released leaf Hessians of trees on a single feature.

        Args:
            hessians: int64 [B, n_leaves], in integer units.
            sigma: standard deviation of their noise, in integer units.
        """
        if self._method != "adaptive":
            return
        shapes = find_shapes(trees)
        for feature, leaf_of_code, leaves in zip(shapes.single.tolist(), shapes.leaf_of_code, hessians, strict=True):
            if feature >= 0:
                self._refine_density(feature, leaf_of_code, leaves, sigma)

    @property
    def grid(self) -> Grid:
        """The grid at this moment."""
        return self._grid

    def find_crowded(self) -> list[int]:
        """Return divisible features that the latest releases found in a few cells.

        Only features refined since the last call are looked at.
        """
        latest, self._adaptive.latest = self._adaptive.latest, set()
        divisible = [feature for feature in sorted(latest) if self._first.features[feature].within is not None]
        densities = {feature: self._adaptive.density[feature] for feature in divisible}
        # Heavy cells hold nearly all of a crowded feature.
        return [
            feature
            for feature, density in densities.items()
            if CROWDED * int(density[_is_heavy(density, self._n_candidates)].sum()) > (CROWDED - 1) * int(density.sum())
        ]

    def cut_again(self, used: Mapping[int, set[int]]) -> dict[int, FloatArray]:
        """Give new edges to crowded features with divisible cells, and return them: float32 by feature.

        Args:
            used: of each of them, the cuts of all trees so far, which stay edges.
        """
        found = {}
        for feature, cuts in used.items():
            now, inner = self._grid.features[feature], self._first.features[feature].inner_edges
            new = self._adaptive.cut_again(feature, now, inner, cuts, self._n_candidates)
            if new is not None:
                found[feature] = new
        if found:
            self._grid = self._first.cut_again(found, self._grid)
            for feature in found:
                self._table.put(feature, *self._adaptive.quantiles(feature, self._n_candidates))
        return found

    def _refine_density(
        self, feature: int, leaf_of_cell: NDArray[np.integer], hessians: NDArray[np.int64], sigma: float
    ) -> None:
        if self._adaptive.refine(feature, leaf_of_cell, hessians, int(sigma)):
            self._table.put(feature, *self._adaptive.quantiles(feature, self._n_candidates))


class AdaptiveCandidates:
    """The distribution of records over the cells of every numeric feature, by the releases so far.

    Densities are integers, so that every party that recomputes them gets the same candidates.

    Attributes:
        density: per feature int64 [n_cells], the relative Hessian of each cell; empty for a categorical feature.
        refinements: per feature, the releases that went into it.
        latest: features that were refined since somebody last looked.
    """

    def __init__(self, grids: Sequence[FeatureGrid]) -> None:
        """Begin with equally likely cells: the grid itself is already denser where values usually are."""
        sizes = [0 if grid.is_categorical else grid.n_cells for grid in grids]
        self.density = [np.full(size, DENSITY_TOTAL // max(1, size), dtype=np.int64) for size in sizes]
        self.refinements = [0] * len(sizes)
        self.latest: set[int] = set()

    def cuts(self, feature: int, n_candidates: int) -> list[int]:
        """Return at most `n_candidates - 1` ascending cuts of a feature, at the quantiles of its density."""
        return quantile_cuts(self.density[feature], n_candidates)

    def quantiles(self, feature: int, n_candidates: int) -> tuple[list[int], list[int]]:
        """Return the cuts at the quantiles of a feature's density, and the number of quantiles on each."""
        return count_quantiles(self.density[feature], n_candidates)

    def refine(self, feature: int, leaf_of_cell: NDArray[np.integer], hessians: NDArray[np.int64], noise: int) -> bool:
        """Learn from a release of one tree on a single feature, and return whether it counted.

        Args:
            leaf_of_cell: integers [at least the feature's cells], the leaf of each cell.
            hessians: int64 [n_leaves], noisy leaf Hessians in integer units.
            noise: their noise's standard deviation, in the same units; leaves within two of zero count as empty.
        """
        density = self.density[feature]
        if len(density) == 0 or self.refinements[feature] >= MAX_REFINEMENTS:
            return False
        self.refinements[feature] += 1
        kept = [hessian if hessian > 2 * noise else 0 for hessian in hessians.tolist()]
        if any(kept):
            self.density[feature] = _share_mass(density, leaf_of_cell[: len(density)], kept)
            self.latest.add(feature)
        return True

    def cut_again(
        self, feature: int, grid: FeatureGrid, inner: FloatArray, used: set[int], n_candidates: int
    ) -> FloatArray | None:
        """Return as many new edges, with heavy cells divided, or None where nothing can be divided.

        The edges are at quantiles of the density, which then refers to the new cells.

        Args:
            grid: of the feature, as it is now.
            inner: all edges within the cells of its first grid, with infinities.
            used: cuts that stay.
            n_candidates: of which heavy cells hold a part of a share.
        """
        density, edges = self.density[feature], grid.edges
        n_free = len(edges) - len(used)
        finer = inner[np.isfinite(inner)]
        cell = np.searchsorted(edges, finer, side="right")
        finer = finer[_is_heavy(density, n_candidates)[cell] & ((cell == 0) | (edges[cell - 1] != finer))]
        if not len(finer) or n_free < MIN_FREE * n_candidates:
            return None
        union = np.union1d(edges, finer)
        cell = np.searchsorted(edges, np.append(np.float32(-np.inf), union), side="right")
        shares = density[cell] // np.bincount(cell, minlength=len(density))[cell]
        kept = np.isin(union, edges[sorted(used)])
        kept[quantile_cuts(shares, n_free + 1)] = True
        # Where quantiles fall together, fill up with edges from before, spread over the whole range.
        left = np.flatnonzero(~kept & np.isin(union, edges))
        n_left = len(edges) - int(kept.sum())
        kept[left[np.arange(n_left) * len(left) // max(1, n_left)]] = True
        new = union[kept]
        place = np.searchsorted(new, np.append(np.float32(-np.inf), union), side="right")
        self.density[feature] = np.bincount(place, weights=shares, minlength=len(density)).astype(np.int64)
        # Refine again: releases so far told which cells hold the rows, but not their places within these.
        self.refinements[feature] = 0
        return new


def _is_heavy(density: NDArray[np.int64], n_candidates: int) -> NDArray[np.bool_]:
    """Return which cells hold more than a part of a candidate's share: bool [n_cells]."""
    return np.asarray(density * (n_candidates * PARTS_OF_SHARE) > int(density.sum()))


def _share_mass(density: NDArray[np.int64], leaf_of_cell: NDArray[np.integer], mass: list[int]) -> NDArray[np.int64]:
    """Return the density with each leaf's mass shared out among its cells.

    Within a leaf the old density keeps its shape.
    """
    # Sums below 2**53, so floats hold them exactly.
    inside = np.bincount(leaf_of_cell, weights=density, minlength=len(mass)).tolist()
    # Use Python's integers: the products are beyond 64 bits, and other rounding would draw other trees.
    factors = np.array([DENSITY_TOTAL * of_leaf for of_leaf in mass], dtype=object)
    divisors = np.array([sum(mass) * max(1, int(of_leaf)) for of_leaf in inside], dtype=object)
    shares = (factors[leaf_of_cell] * density // divisors[leaf_of_cell]).astype(np.int64)
    even = DENSITY_TOTAL // FLOOR_SHARE // len(density)
    return np.asarray(shares - shares // FLOOR_SHARE + even)


def quantile_cuts(density: NDArray[np.int64], n_bins: int) -> list[int]:
    """Return the cuts nearest to the quantiles 1/n_bins, 2/n_bins, ... of a density over cells.

    They are distinct and ascending.

    Args:
        density: int64 [n_cells], at least 0; n_bins times their sum fits 64 bits.
        n_bins: at least 1.
    """
    return count_quantiles(density, n_bins)[0]


def count_quantiles(density: NDArray[np.int64], n_bins: int) -> tuple[list[int], list[int]]:
    """Return `quantile_cuts`, and the number of quantiles nearest to each cut.

    It is more than one where a cell holds much.
    """
    below = np.cumsum(density)
    n_cuts = len(below) - 1
    if n_cuts < 1 or below[-1] <= 0:
        return [], []
    targets = below[-1] * np.arange(1, n_bins) // n_bins
    after = np.minimum(np.searchsorted(below[:-1], targets), n_cuts - 1)
    before = np.maximum(after - 1, 0)
    nearest = np.where(np.abs(below[before] - targets) < np.abs(below[after] - targets), before, after)
    cuts, counts = np.unique(nearest, return_counts=True)
    return cuts.tolist(), counts.tolist()


def iterative_hessian(
    candidates: list[float], hessians: IntVector, total: float, n_candidates: int, as_printed: bool = False
) -> list[float]:
    """Run a round of Algorithm 2 of CCS'22: merge light bins, keep heavy ones, divide evenly to fill up.

    A bin is heavy when it holds, with the light ones that were merged into it, more than its share. The last candidate
    always stays. The published code keeps a heavy bin's upper end, and joins its midpoint with the next candidate while
    there is room for both. The printed rule keeps both ends; the midpoint between them joins while there is room, for
    else noise could double the candidates in every round.

    Args:
        candidates: ascending; bin i holds the values up to candidates[i] and above the one before.
        hessians: int64 [len(candidates) + 1], the noisy Hessian of each bin, the last one of all values above.
        total: of all bins, as best known; a bin's share is total / n_candidates.
        n_candidates: Q, the number of candidates wanted.
        as_printed: whether the printed rule decides.

    Returns:
        The new candidates, ascending: at most twice as many as wanted.
    """
    last = len(candidates) - 1
    has_room = len(candidates) < n_candidates
    kept: list[float] = []
    carried = 0
    for index, hessian in enumerate(hessians[:-1].tolist()):
        carried += max(0, hessian)
        if index == last:
            kept.append(candidates[index])
        elif carried > total / n_candidates:
            carried = 0
            end, other = candidates[index], candidates[max(0, index - 1) if as_printed else index + 1]
            kept += [other, end] if as_printed else [end]
            if has_room and (as_printed or len(kept) < n_candidates):
                kept.append((end + other) / 2)
    kept = sorted(set(kept))
    pieces = -(-n_candidates // len(kept))
    filled = {low + (high - low) * piece / pieces for low, high in pairwise(kept) for piece in range(pieces)}
    return sorted({*filled, kept[-1]})
