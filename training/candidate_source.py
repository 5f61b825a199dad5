"""Where a run's split candidates come from, and how releases change them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.plan import Plan
from hedgerow.protocol.queries import IntVector, TreeBatch
from hedgerow.trees.candidates import AdaptiveCandidates, initial_candidates
from hedgerow.trees.grid import Grid


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
        pays = self._method == "iterative_hessian" and plan.model.weight_update != "averaging"
        self._rounds_left = plan.model.candidate_rounds if pays else 0
        self._adaptive: list[AdaptiveCandidates] = [initial_candidates(feature) for feature in grid.features]
        self._cuts: list[list[int]] = [self._initial_cuts(index) for index in range(grid.n_features)]

    def _initial_cuts(self, index: int) -> list[int]:
        feature = self._grid.features[index]
        if feature.is_categorical:
            return []
        if self._method == "adaptive":
            return self._adaptive[index].cuts(self._n_candidates)
        if self._method == "iterative_hessian":
            step = max(1, feature.n_cells // self._n_candidates)
            return list(range(step - 1, feature.n_cells - 1, step))
        return list(range(feature.n_cells - 1))

    def cuts(self, features: Sequence[int]) -> dict[int, list[int]]:
        """The candidates of some features: cell numbers after which a split may be made."""
        return {feature: self._cuts[feature] for feature in features}

    def paid_rounds_before(self, tree: int, batch_size: int) -> int:
        """Histograms to ask for before the batch that starts with `tree`: one per tree of it, while any are left."""
        return min(self._rounds_left, batch_size)

    def bin_of_code(self, feature: int) -> NDArray[np.uint16]:
        """The histogram bin of each code of a feature: the bins between candidates, then one for missing values."""
        grid = self._grid.features[feature]
        if grid.is_categorical:
            return np.arange(grid.n_codes, dtype=np.uint16)
        bins = np.searchsorted(self._cuts[feature], np.arange(grid.n_codes)).astype(np.uint16)
        bins[grid.missing_code] = len(self._cuts[feature]) + 1
        return bins

    def take_histogram(self, sums: IntVector) -> None:
        """Refine by one noisy Hessian histogram (CCS'22, Algorithm 2)."""
        self._rounds_left -= 1
        position = 0
        for index, grid in enumerate(self._grid.features):
            n_bins = grid.n_codes if grid.is_categorical else len(self._cuts[index]) + 2
            if not grid.is_categorical:
                hessians = sums[position : position + n_bins - 1]
                self._cuts[index] = iterative_hessian(self._cuts[index], hessians, grid.n_cells, self._n_candidates)
            position += n_bins

    def take_leaves(self, trees: TreeBatch, hessians: NDArray[np.int64], sigma: float) -> None:
        """Refine by the released leaf Hessians of trees on a single feature.

        Args:
            trees: the released batch.
            hessians: int64 [B, n_leaves], in integer units.
            sigma: standard deviation of their noise, in integer units.
        """
        if self._method != "adaptive":
            return
        for tree in range(trees.n_trees):
            feature = int(trees.feature[tree, 0])
            if self._grid.features[feature].is_categorical or (trees.feature[tree] != feature).any():
                continue
            leaf_of_cell = leaves_of_codes(trees, tree)[: self._grid.features[feature].n_cells]
            refined = self._adaptive[feature].refined(leaf_of_cell, hessians[tree], int(sigma))
            self._adaptive[feature] = refined
            self._cuts[feature] = refined.cuts(self._n_candidates)


def leaves_of_codes(trees: TreeBatch, tree: int) -> NDArray[np.int64]:
    """For a tree on a single feature, the leaf of each code: int64 [n_codes]."""
    codes = np.arange(trees.goes_left.shape[2])
    node = np.zeros(len(codes), dtype=np.int64)
    for _ in range(trees.depth):
        node = 2 * node + 2 - trees.goes_left[tree, node, codes]
    return node - (trees.n_leaves - 1)


def iterative_hessian(cuts: list[int], hessians: IntVector, n_cells: int, n_candidates: int) -> list[int]:
    """One round of Algorithm 2 of CCS'22: merge light bins, halve heavy ones, fill up by splitting evenly.

    Args:
        cuts: the candidates so far.
        hessians: int64 [len(cuts) + 1], the noisy Hessian of each bin.
        n_cells: cells of the feature.
        n_candidates: Q, the number of bins wanted.

    Returns:
        The new candidates, at most Q - 1.
    """
    target = max(1, int(hessians.sum())) / n_candidates
    borders = [0, *(cut + 1 for cut in cuts), n_cells]
    kept = [0]
    halved: set[int] = set()
    carried = 0
    for (low, high), hessian in zip(pairwise(borders), hessians.tolist(), strict=True):
        carried += max(0, hessian)
        if carried < target and high < n_cells:
            continue
        begin = kept[-1]
        # Only the bin that is heavy is halved; light ones before it were merged into it.
        middle = (max(begin, low) + high) // 2
        if carried >= target and max(begin, low) < middle < high:
            halved.add(middle)
        kept.append(high)
        carried = 0
    if kept[-1] != n_cells:
        kept.append(n_cells)
    filled = sorted({*kept, *halved})
    while len(filled) - 1 < n_candidates:
        widest = max(pairwise(filled), key=lambda bin_: bin_[1] - bin_[0])
        if widest[1] - widest[0] < 2:
            break
        filled = sorted({*filled, (widest[0] + widest[1]) // 2})
    cuts_wanted = [border - 1 for border in filled[1:-1]]
    if len(cuts_wanted) < n_candidates:
        return cuts_wanted
    # More bins than wanted: keep those that the target size asks for, evenly through the list.
    picks = np.linspace(0, len(cuts_wanted) - 1, n_candidates - 1).round().astype(int)
    return [cuts_wanted[pick] for pick in dict.fromkeys(picks.tolist())]
