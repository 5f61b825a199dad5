# SPDX-License-Identifier: Apache-2.0
"""The loss of DP-XGBoost, its kinds of query, and the gains of its split candidates.

The loss is the squared one, on labels in [-1, 1], with gradients of at most 1. Gains come from exact sums, in integers,
so that their sensitivity is a theorem about integers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hedgerow.losses.tables import SCORE_UNIT, STEP_BITS, STEPS, Loss
from hedgerow.methods.line import SpreadSums
from hedgerow.protocol.queries import MAX_SCORE, SAMPLING_STEPS, Choice, IntVector, PureQuery
from hedgerow.trees.greedy_trees import pad_histograms
from hedgerow.trees.histograms import Histogram, NodeHistograms
from hedgerow.trees.leaf_sums import LeafSums, TrainingSite

GRADIENT_UNIT = 2**10
SCORE_UNIT_OF_GAIN = 1024
RIDGE_UNIT = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class _OfSample(PureQuery):
    """Sums over a sample of the records, after the query's update."""

    def answer(self, site: TrainingSite) -> IntVector:
        site.take_in(self.update)
        threshold = self.pure.sampling_threshold
        drawn = site if threshold == SAMPLING_STEPS else site.only(site.draw_sample(threshold, self))
        answer: IntVector = super(_OfSample, replace(self, update=None)).answer(drawn)
        return answer


@dataclass(frozen=True, kw_only=True, eq=False)
class PureHistogram(_OfSample, Histogram):
    """A histogram with Laplace noise."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PureSpreadSums(_OfSample, SpreadSums):
    """The sum of distances of labels from the mean, with Laplace noise."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PureLeafSums(_OfSample, LeafSums):
    """Leaf sums with Laplace noise."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PureNodeHistograms(_OfSample, NodeHistograms):
    """Histograms per node with Laplace noise."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitSelection(_OfSample, Choice, NodeHistograms):
    """The split of each node, drawn from sums that are not released; better ones are likelier.

    The sum is as for `NodeHistograms`, of one tree; released is only, per node, which candidate was chosen. The
    coordinator computes each candidate's gain from the exact sums and chooses by the exponential mechanism: int64
    [n_nodes], slot * n_bins + position of the chosen candidate, or -1 where there is none. Candidate (slot, position)
    sends left the bins of the feature `features[0, slot]` up to `position` or, for a categorical one, that bin alone.

    Attributes:
        pure: noise of the choice, whose scores are gains in units of 1 / `score_unit`.
        is_candidate: bool [n_nodes, k, n_bins], by the public structure alone.
        is_alive: bool [n_nodes, k, n_bins], the bins that the levels above have left to each node.
        is_categorical: bool [k].
        missing_left: bool [n_nodes], the side of missing values, the last bin of a numeric feature.
        units: integers per 1.0 of the gradient and of the count.
        ridge: lambda, in thousandths.
        score_unit: integers per 1.0 of a gain in which no gradient exceeds 1.
    """

    is_candidate: NDArray[np.bool_]
    is_alive: NDArray[np.bool_]
    is_categorical: NDArray[np.bool_]
    missing_left: NDArray[np.bool_]
    units: tuple[int, int]
    ridge: int
    score_unit: int

    @property
    def release_length(self) -> int:
        """The number of nodes, since the release has one choice for each."""
        return len(self.is_candidate)

    def candidates(self, total: IntVector) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        return candidate_scores(self, total)


def dp_xgboost_loss(is_regression: bool, filters: bool, count_weight: float) -> Loss:
    """Build the loss of two statistics, (gradient, count).

    They have `GRADIENT_UNIT` and count_weight * `GRADIENT_UNIT` integers to 1.

    Args:
        is_regression: whether labels are numbers in [-1, 1]; classes count as -1 and 1.
        filters: leave out records whose gradient exceeds 1 (gradient data filtering) instead of clipping it.
        count_weight: how much a count weighs beside a gradient of 1 in the sensitivity.

    Source: Grislain & Gonzalvez 2021 (arXiv 2110.12770), section 4; Li et al. 2020 for the filter.
    """
    unit, count = GRADIENT_UNIT, max(1, int(GRADIENT_UNIT * count_weight))
    scales = np.array([float(unit), float(count)])
    norm_squared = unit * unit + count * count
    if is_regression:
        empty = np.empty((0, STEPS, 2), dtype=np.int16)
        return Loss("squared", 1, 2, scales, empty, norm_squared, unit, count)
    score = (np.arange(STEPS + 1) - STEPS // 2) / (SCORE_UNIT >> STEP_BITS)
    gradient = np.stack([score + 1, score - 1])
    statistics = np.stack([np.trunc(np.clip(gradient, -1, 1) * unit), np.full(gradient.shape, float(count))], axis=-1)
    if filters:
        # A step of the table beside 1 is let through: a record at the score 0 has a gradient of 1 exactly.
        statistics[np.abs(gradient) > 1 + 2.0**-STEP_BITS] = 0
    return Loss("table", 1, 2, scales, statistics.astype(np.int16), norm_squared)


def l1_sensitivity(loss: Loss) -> int:
    """Return the largest L1 norm of one record's statistics, in integer units."""
    if len(loss.table):
        return int(np.abs(loss.table.astype(np.int64)).sum(axis=-1).max())
    return loss.clip + loss.constant


def score_range(score_unit: int, rows_per_unit: int) -> int:
    """Return the range over which a unit of `rows_per_unit` records moves `candidate_scores`.

    Let f(S, n) = S² / (n + lambda) for n records whose gradients g, |g| <= 1, have the sum S. A record more changes the
    gain f(left) + f(right) in one of the two terms only. There |S| <= n, and

        f(S + g, n + 1) - f(S, n) = (2 S g (n + lambda) + g² (n + lambda) - S²) / ((n + lambda) (n + 1 + lambda)).

    It increases in S g as long as S <= n, so it is largest at S = n, g = 1, where it is
    (n² + 2 n lambda + n + lambda) / (n² + 2 n lambda + n + lambda² + lambda) <= 1, or at lambda = 0, n = 0, where it is
    1; and it is smallest at S g = -n, where the numerator -(3 n² + 2 n lambda - n - lambda) is above -3 times the
    denominator. So a record moves every candidate's gain by something in (-3, 1]: a range of 4, while the bound that
    DPBoost and DP-XGBoost use, |change| <= 3, stands for a range of 6. With P(c) proportional to exp(gain / scale) the
    odds of any choice change by at most exp(range / scale): the factor is exp(change / scale) over a mean of such
    exponentials. Rounding each of the two terms down to a unit adds one unit at either end.

    All of this needs |S| <= n, and sums that do not wrap. Sums over whole records have both. Where a site lies,
    `_worth` sees to it that the range is 6 instead of 4 at most: S is cut off to [-n, n], so it still moves by 1 at
    most when a record comes, for the interval grows by 1 at either end; and n beyond the middle of the positive words
    counts downwards, to 0 where words wrap. There a record comes as if one went: its change is in [-1, 3). That S
    wraps changes nothing, as only its magnitude counts, and is n on either side.
    """
    return rows_per_unit * (4 * score_unit + 2)


def candidate_scores(query: SplitSelection, total: IntVector) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return each node's candidates (slot * n_bins + position) and their scores: int64 [n] each."""
    n_nodes, n_slots, width = query.is_candidate.shape
    sums = pad_histograms(total, query.n_bins[query.features], n_nodes, width)[0]
    found = []
    for node in range(n_nodes):
        places, scores = [], []
        for slot in range(n_slots):
            candidates = np.flatnonzero(query.is_candidate[node, slot])
            if len(candidates):
                places.append(slot * width + candidates)
                own = _score_splits(query, sums[node, slot], node, slot)
                scores.append([own[candidate] for candidate in candidates.tolist()])
        empty: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        found.append((np.concatenate(places) if places else empty, _in_words([*itertools.chain(*scores)])))
    return found


def _in_words(scores: Sequence[int]) -> NDArray[np.int64]:
    """Return scores (>= 0) as int64, lowered alike if the best is too large.

    Only lying sites make scores that large, and a choice depends on differences alone. A score more than `MAX_SCORE`
    units below the best is drawn as if it were just that. The best moves as all scores do, so the range of their
    changes stays what it was.
    """
    beyond = max(0, max(scores, default=0) - MAX_SCORE)
    return np.array([max(0, score - beyond) for score in scores], dtype=np.int64)


def _score_splits(query: SplitSelection, sums: NDArray[np.int64], node: int, slot: int) -> list[int]:
    """Return the score of a split at each position, from one node's exact sums, int64 [n_bins, 2]."""
    is_alive = query.is_alive[node, slot]
    # Sums modulo 2^64, as the words that they come from.
    alive = np.where(is_alive[:, None], sums, 0)
    total = alive.sum(axis=0)
    if query.is_categorical[slot]:
        left = alive
    else:
        last = int(query.n_bins[query.features[0, slot]]) - 1
        missing = alive[last].copy()
        values = alive.copy()
        values[last] = 0
        left = np.cumsum(values, axis=0) + (missing if query.missing_left[node] else 0)
    right = total - left
    return [one + other for one, other in zip(_worth(query, left), _worth(query, right), strict=True)]


def _worth(query: SplitSelection, side: NDArray[np.int64]) -> list[int]:
    """Return floor(score_unit * S² / (n + lambda)) of each side.

    It is 0 for an empty side without lambda.

    What no records can add up to is cut off, see `score_range`; without lies nothing is.
    """
    gradient_unit, count_unit = query.units
    most = 2 * (2**62 // count_unit)
    values = []
    # Python's integers: products of squares leave 64 bits where there are many records.
    for gradient, count in side.tolist():
        n_records = max(0, min(count // count_unit, most - count // count_unit))
        within = min(abs(gradient), gradient_unit * n_records)
        below = gradient_unit**2 * (RIDGE_UNIT * n_records + query.ridge)
        values.append(query.score_unit * RIDGE_UNIT * within**2 // below if below else 0)
    return values
