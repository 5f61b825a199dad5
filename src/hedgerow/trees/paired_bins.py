"""Histograms of features two by two: half the additions of one by one, and the same sums to the last unit.

A record adds its statistics to one cell of every pair of features, a bin of the one by a bin of the other; the sums of
the cells' rows and columns are the sums of the two features' bins. Which cells a record is in does not depend on the
tree: they are found once, and kept, in as much memory as codes of a byte, while bins and features stay what they are.
Every record is still in one bin of each feature, so what leaves the node and its sensitivity are unchanged.

Nothing is kept of a query's answer. (Subtracting a child's sums from its parent's would save as much, but would carry
sums from one query to the next, and the time of an answer would tell how many records are in the smaller child.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.queries import NodeHistograms
from hedgerow.trees.grid import CodeArray
from hedgerow.trees.paired_kernels import find_cells

MOST_CELLS = 2**16
"""Of all pairs together, so that 16 bits number them."""
MOST_SUMS = 2**17
"""Of all cells of a tree's nodes: a megabyte, which stays in the second-level cache."""
MOST_STATISTICS = 2**25
"""Of all cells of all trees in all threads, two to a word: 128 MB, for a batch may be of thousands of trees."""


@dataclass(frozen=True, eq=False)
class PairedBins:
    """The cells of a site's records.

    Attributes:
        codes: the records' codes, uint8 or uint16 [n_features, n].
        features: int64 [k], the features in pairs; an odd last one is by itself.
        bin_of_code: uint16 [n_features, n_codes].
        n_bins: int64 [k].
        n_cells: of all pairs.
        cells: uint16 [n, (k + 1) // 2], the cells of each record, numbered through all pairs.
    """

    codes: CodeArray
    features: NDArray[np.int64]
    bin_of_code: NDArray[np.uint16]
    n_bins: NDArray[np.int64]
    n_cells: int
    cells: NDArray[np.uint16]


class PairedBinsCache:
    """The last cells that were found; to lose them costs time and changes nothing."""

    def __init__(self) -> None:
        self._last: PairedBins | None = None

    def bins_for(self, codes: CodeArray, query: NodeHistograms, n_threads: int) -> PairedBins | None:
        """The cells of these records for a query's histograms, or None where pairs of features do not pay."""
        features = query.features[0]
        if not (query.features == features).all():
            return None
        n_bins = query.n_bins[features]
        n_cells = _n_cells(n_bins)
        n_sums = n_cells << query.trees.depth
        n_pairs = (len(features) + 1) // 2
        if n_cells > MOST_CELLS or n_sums > MOST_SUMS or codes.shape[1] * n_pairs < n_sums * n_threads:
            return None
        if query.length * n_cells * n_threads > MOST_STATISTICS * int(n_bins.sum()):
            return None
        last = self._last
        if (
            last is None
            or last.codes is not codes
            or not np.array_equal(last.features, features)
            or not np.array_equal(last.bin_of_code, query.bin_of_code)
        ):
            cells = np.empty((codes.shape[1], n_pairs), dtype=np.uint16)
            find_cells(codes, features, query.bin_of_code, n_bins, cells)
            last = PairedBins(codes, features.copy(), query.bin_of_code.copy(), n_bins, n_cells, cells)
            self._last = last
        return last


def _n_cells(n_bins: NDArray[np.int64]) -> int:
    """Cells of all pairs; a feature by itself has one for each bin."""
    second = np.append(n_bins, 1)[1::2]
    return int((n_bins[::2] * second[: len(n_bins[::2])]).sum())
