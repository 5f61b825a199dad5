"""Where a run's split candidates come from, and how releases change them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import IntVector, TreeBatch
from hedgerow.training.settings import pays_for_candidates
from hedgerow.trees.binning import Grid
from hedgerow.trees.candidates import AdaptiveCandidates, quantile_cuts
from hedgerow.trees.greedy_trees import Bins
from hedgerow.trees.random_trees import Cuts, CutTable, shapes_of


class CandidateSource:
    """The candidates of every feature at every moment of a run.

    Args:
        plan: its `split_candidates`, `n_candidates` and `candidate_rounds` decide.
        grid: the grid that the plan fixes.
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
        self._table = CutTable.of({index: self._initial_cuts(index) for index in range(grid.n_features)}, grid)
        self._bins: tuple[Cuts, Bins] | None = None

    def _initial_cuts(self, index: int) -> list[int]:
        feature = self._grid.features[index]
        if feature.is_categorical:
            return []
        if self._method == "adaptive":
            return self._adaptive.cuts(index, self._n_candidates)
        if self._method == "iterative_hessian":
            low, high = self._lowest[index], self._highest[index]
            uniform = low + (high - low) * np.arange(self._n_candidates) / self._n_candidates
            cuts = np.unique(np.searchsorted(feature.edges, uniform.astype(np.float32)))
            return [int(cut) for cut in cuts if cut < len(feature.edges)]
        return list(range(feature.n_cells - 1))

    def cuts(self, features: Sequence[int]) -> dict[int, list[int]]:
        """The candidates of some features: cell numbers after which a split may be made."""
        return {feature: self._table.of_feature(feature) for feature in features}

    @property
    def cut_table(self) -> CutTable:
        """The candidates of all features at this moment."""
        return self._table

    def paid_rounds_before(self, tree: int, batch_size: int) -> int:
        """Histograms to ask for before the batch that starts with `tree`: one per tree of it, while any are left."""
        return min(self._rounds_left, batch_size)

    def bin_of_code(self, feature: int) -> NDArray[np.uint16]:
        """The histogram bin of each code of a feature: the bins between candidates, then one for missing values."""
        grid = self._grid.features[feature]
        if grid.is_categorical:
            return np.arange(grid.n_codes, dtype=np.uint16)
        cuts = self._table.of_feature(feature)
        bins = np.searchsorted(cuts, np.arange(grid.n_codes)).astype(np.uint16)
        bins[grid.missing_code] = len(cuts) + 1
        return bins

    @property
    def reads_splits(self) -> bool:
        """Whether histograms that were released for splits change any candidates (`take_bins`)."""
        return self._method in ("iterative_hessian", "adaptive")

    def bins(self) -> Bins:
        """The bins of all features at this moment: the same object as long as no candidate has moved."""
        cuts = self.cuts(range(self._grid.n_features))
        if self._bins is None or self._bins[0] != cuts:
            self._bins = cuts, self._bins_of(cuts)
        return self._bins[1]

    def _bins_of(self, cuts: Cuts) -> Bins:
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
        """Refine one feature by a histogram that was released for splits anyway (CCS'22, section 4.5.2: no cost).

        Iterative Hessian splitting takes `candidate_rounds` of them for each feature; adaptive candidates take theirs.

        Args:
            feature: its index; nothing happens for a categorical one.
            hessians: int64 [bins of values], in integer units, without the bin of missing values.
            sigma: standard deviation of their noise, in integer units.
        """
        if self._grid.features[feature].is_categorical:
            return
        if self._method == "iterative_hessian" and self._free_rounds_left[feature] > 0:
            self._free_rounds_left[feature] -= 1
            self._refine(feature, hessians, float(hessians.sum()))
        elif self._method == "adaptive":
            bins = self.bin_of_code(feature).astype(np.int64)[None]
            self._take_trees(np.array([feature]), bins, np.ascontiguousarray(hessians)[None], sigma)

    def take_histogram(self, sums: IntVector) -> None:
        """Refine by one noisy Hessian histogram (CCS'22, Algorithm 2), or cut at the quantiles of an exact one."""
        self._rounds_left -= 1
        # Every feature's bins hold all records, so the mean of their totals is the best guess at it.
        total = float(sums.sum()) / self._grid.n_features
        position = 0
        for index, grid in enumerate(self._grid.features):
            n_bins = grid.n_codes if grid.is_categorical else len(self._table.of_feature(index)) + 2
            if self._method == "quantile" and not grid.is_categorical:
                counts = sums[position : position + n_bins - 1].copy()
                # One cut more than the quantiles between as many bins: Q candidates, as other methods have.
                self._table.put(index, quantile_cuts(counts, self._n_candidates + 1))
            elif not grid.is_categorical:
                self._refine(index, sums[position : position + n_bins - 1], total)
            position += n_bins

    def _refine(self, index: int, hessians: IntVector, total: float) -> None:
        """One round of iterative Hessian splitting; candidates are moved to the nearest edge of the grid."""
        edges = self._grid.features[index].edges.astype(np.float64)
        candidates = [float(edges[cut]) for cut in self._table.of_feature(index)]
        if not candidates:
            return
        wanted = np.array(iterative_hessian(candidates, hessians, total, self._n_candidates))
        after = np.minimum(np.searchsorted(edges, wanted), len(edges) - 1)
        before = np.maximum(after - 1, 0)
        nearer = np.where(wanted - edges[before] < edges[after] - wanted, before, after)
        self._table.put(index, [int(cut) for cut in np.unique(nearer)])

    def take_leaves(self, trees: TreeBatch, hessians: NDArray[np.int64], sigma: float) -> None:
        """Refine by the released leaf Hessians of trees on a single feature.

        Args:
            trees: the released batch.
            hessians: int64 [B, n_leaves], in integer units.
            sigma: standard deviation of their noise, in integer units.
        """
        if self._method != "adaptive":
            return
        shapes = shapes_of(trees)
        self._take_trees(shapes.single, shapes.leaf_of_code, hessians, sigma)

    def _take_trees(
        self,
        features: NDArray[np.int64],
        leaf_of_cell: NDArray[np.uint8] | NDArray[np.int64],
        hessians: NDArray[np.int64],
        sigma: float,
    ) -> None:
        table = self._table.cuts, self._table.n_cuts, self._n_candidates
        self._adaptive.refine(features, leaf_of_cell, hessians, int(sigma), table)


def iterative_hessian(candidates: list[float], hessians: IntVector, total: float, n_candidates: int) -> list[float]:
    """One round of Algorithm 2 of CCS'22: merge light bins, halve heavy ones, fill up by dividing evenly.

    A bin is heavy when it holds, with the light ones that were merged into it, more than its share. Both its ends stay,
    and the last candidate always. Its midpoint joins where there is room, as in the published code: else noise could
    double the candidates in every round.

    Args:
        candidates: ascending; bin i holds the values up to candidates[i] and above the one before.
        hessians: int64 [len(candidates) + 1], the noisy Hessian of each bin, the last one of all values above.
        total: of all bins, as best known; a bin's share is total / n_candidates.
        n_candidates: Q, the number of candidates wanted.

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
            below = candidates[max(0, index - 1)]
            kept += [below, candidates[index]]
            carried = 0
            if has_room:
                kept.append((below + candidates[index]) / 2)
    kept = sorted(set(kept))
    pieces = -(-n_candidates // len(kept))
    filled = {low + (high - low) * piece / pieces for low, high in pairwise(kept) for piece in range(pieces)}
    return sorted({*filled, kept[-1]})
