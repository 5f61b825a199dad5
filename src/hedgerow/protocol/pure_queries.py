"""Queries whose releases are of pure differential privacy: sums with Laplace noise, choices from exact sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.queries import SAMPLING_STEPS, Histogram, LeafSums, NodeHistograms

LARGEST_SCORE = 2**61
"""Scores of a choice are within this magnitude, whatever the sums are: a choice never fails for an exact sum."""


@dataclass(frozen=True)
class PureNoise:
    """What makes a release epsilon-DP with epsilon = sensitivity / scale, without sampling.

    Attributes:
        scale: of the noise, in integer units; 0 without privacy.
        sensitivity: for sums the L1 norm that one unit adds at most; for a choice the range over which it can move the
            scores.
        sampling_threshold: each record is in the sum with a chance of sampling_threshold / SAMPLING_STEPS, drawn by its
            node in secret, anew for every query.
    """

    scale: int
    sensitivity: int
    sampling_threshold: int = SAMPLING_STEPS

    @property
    def sampling_rate(self) -> float:
        """Each record's chance, exactly."""
        return self.sampling_threshold / SAMPLING_STEPS


@dataclass(frozen=True, kw_only=True, eq=False)
class PureHistogram(Histogram):
    """A histogram with Laplace noise."""

    pure: PureNoise


@dataclass(frozen=True, kw_only=True, eq=False)
class PureLeafSums(LeafSums):
    """Leaf sums with Laplace noise."""

    pure: PureNoise


@dataclass(frozen=True, kw_only=True, eq=False)
class PureNodeHistograms(NodeHistograms):
    """Histograms per node with Laplace noise."""

    pure: PureNoise


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitSelection(NodeHistograms):
    """The sum is as for `NodeHistograms`, of one tree; released is only, per node, which candidate was chosen.

    The coordinator computes each candidate's gain from the exact sums and chooses by the exponential mechanism: int64
    [n_nodes], slot * n_bins + position of the chosen candidate, or -1 where there is none. Candidate (slot, position)
    sends left the bins of the feature `features[0, slot]` up to `position` or, for a categorical one, that bin alone.

    Attributes:
        pure: noise of the choice; its scores are gains in units of 1 / `score_unit`.
        is_candidate: bool [n_nodes, k, n_bins], by the public structure alone.
        is_alive: bool [n_nodes, k, n_bins], the bins that the levels above have left to each node.
        is_categorical: bool [k].
        missing_left: bool [n_nodes], the side of missing values, the last bin of a numeric feature.
        units: integers per 1.0 of the gradient and of the count.
        ridge: lambda, in thousandths.
        score_unit: integers per 1.0 of a gain in which no gradient exceeds 1.
    """

    pure: PureNoise
    is_candidate: NDArray[np.bool_]
    is_alive: NDArray[np.bool_]
    is_categorical: NDArray[np.bool_]
    missing_left: NDArray[np.bool_]
    units: tuple[int, int]
    ridge: int
    score_unit: int

    @property
    def release_length(self) -> int:
        """One choice per node."""
        return len(self.is_candidate)


PureQuery = PureHistogram | PureLeafSums | PureNodeHistograms | SplitSelection
