"""What a release must look like if it is a sum over records, wherever they are: checks that cost no privacy.

A sum under masks is garbage as soon as one site's vector is. What honest sites send is bounded by more than the size of
its entries: each tree's leaves hold the same records, counts and Hessians are not negative, gradients are no larger
than what their records allow. All of it is asked of the release, its noise included, and of nothing else, so it is
post-processing; every party that holds the releases can ask the same. A failed check says that some site in the sum
lied, or has far more rows than declared. Which one cannot be known: the masks hide it.

A lie within these limits passes. docs/poisoning.md says how much that is.

Noise is allowed for up to `DEVIATIONS` standard deviations: discrete Gaussian noise goes beyond with a chance below
2 exp(-DEVIATIONS**2 / 2) < 2**-86 (it is subgaussian: Canonne, Kamath & Steinke 2020), and a check is asked at most
2**40 times in a run (2**22 entries, 2**12 releases, 2**6 questions each), so honest sites are stopped by it in fewer
than one run of 10**13.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hedgerow.losses.tables import STEP_BITS, STEPS, Loss
from hedgerow.privacy.query_noise import QueryNoise
from hedgerow.protocol.queries import (
    SAMPLING_STEPS,
    CrossProducts,
    ErrorMoments,
    GramMatrix,
    Histogram,
    IntVector,
    LabelSums,
    LeafSums,
    NodeHistograms,
    PureQuery,
    Query,
    SampledLeafSums,
    ScoreHistogram,
    SplitSelection,
    SplitSums,
)
from hedgerow.trees.leaves import largest_sum

DEVIATIONS = 11
_TAIL = DEVIATIONS**2 / 2
_HAIR = 1 + 1e-9
"""Sums are compared in floating point."""
Reals = NDArray[np.float64]
Partitions = LeafSums | NodeHistograms | SplitSums


@dataclass(frozen=True)
class SumFacts:
    """What is public about a sum.

    Attributes:
        n_rows: the most rows that honest sites hold together: several times what the plan declares.
        entry_bound: what honest nodes clip their own entries to, at the least; None where they do not.
        noise: what the query asks for.
        n_nodes: sites that may have added noise.
        sites: whose vectors are in the sum; None where that is not known, and totals of rounds are not compared.
    """

    n_rows: int
    entry_bound: int | None
    noise: QueryNoise
    n_nodes: int
    sites: tuple[str, ...] | None = None

    def clipped(self, query: Query, largest: float = math.inf) -> int:
        """The most that honest nodes' clipping takes from all entries of one tree together: 0 if there was none.

        Args: largest: a bound on every node's own entries, from what is released.
        """
        if self.entry_bound is None or largest < self.entry_bound:
            return 0
        return max(0, query.bound * self.n_rows - self.entry_bound)

    def reach(self, n_entries: int, *, is_laplace: bool = False) -> float:
        """What the noise in a sum of so many entries does not exceed, in integer units.

        Laplace noise L of scale b has E exp(x L) <= exp(2 (x b)**2) for x b <= 0.7, on the integers too; Chernoff's
        bound with the best such x gives the number here. Each entry may be rounded by one unit.
        """
        noise = self.noise
        if is_laplace:
            return n_entries + noise.central_sigma * max(math.sqrt(8 * n_entries * _TAIL), _TAIL / 0.35)
        # The noise of a site's records is rounded up once.
        rounded = self.n_nodes if noise.record_sigma else 0
        of_records = noise.record_sigma * math.sqrt(self.n_rows + self.n_nodes) + rounded
        one = math.hypot(noise.central_sigma, noise.share_sigma * math.sqrt(self.n_nodes), of_records)
        return (n_entries if one else 0) + DEVIATIONS * one * math.sqrt(n_entries)


@dataclass(frozen=True, eq=False)
class Statistics:
    """What one record may add, per statistic of a loss, in integer units.

    Attributes:
        low, high: int64 [S], its range.
        ratio: float64 [S], the largest magnitude of each beside the record's last statistic (Hessian or count);
            infinity where the last may be zero while this one is not.
        step: int64 [S], the furthest it moves when the record's score moves by one step of the loss's table; 0 where
            no score moves it, and its whole range where nothing better is known.
    """

    low: NDArray[np.int64]
    high: NDArray[np.int64]
    ratio: Reals
    step: NDArray[np.int64]

    def moves(self, moved: int) -> NDArray[np.int64]:
        """The furthest each moves for scores that move by at most `moved`, in units of 2**-16."""
        return np.asarray(np.minimum(self.high - self.low, self.step * ((moved >> STEP_BITS) + 1)))


@lru_cache(maxsize=8)
def statistics_of(loss: Loss, score_bound: int) -> Statistics:
    """What one record may add whose scores are within +-`score_bound` (units of 2**-16).

    A table is read off, so its numbers are exact. For the squared loss they are the clip and the constant; for softmax
    the bounds of `Loss.largest_statistic`, and no ratio: each record's statistics are shrunk and rounded one by one.
    """
    if loss.kind == "table":
        reach = min(STEPS // 2, (score_bound >> STEP_BITS) + 1)
        table = loss.table[:, STEPS // 2 - reach : STEPS // 2 + reach].astype(np.int64)
        low, high = table.min(axis=(0, 1)), table.max(axis=(0, 1))
        step = np.abs(np.diff(table, axis=1)).max(axis=(0, 1), initial=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(table == 0, 0.0, np.abs(table) / table[..., -1:]).max(axis=(0, 1))
        return Statistics(low, high, ratio, step)
    if loss.kind == "squared":
        low, high = np.array([-loss.clip, loss.constant]), np.array([loss.clip, loss.constant])
        return Statistics(low, high, np.array([loss.clip / loss.constant, 1.0]), high - low)
    high = np.array([loss.largest_statistic(index) for index in range(loss.n_statistics)], dtype=np.int64)
    low = np.where(np.arange(len(high)) < loss.n_outputs, -high, 0)
    return Statistics(low, high, np.full(len(high), math.inf), high - low)


class ReleaseChecks:
    """The checks of one run; it remembers the last totals, to compare the next ones with.

    Args: loss: of the run's leaf sums and histograms; called once, and not for an evaluation.
    """

    def __init__(self, loss: Callable[[], Loss]) -> None:
        self._ask_loss = loss
        self._loss: Loss | None = None
        self._before: tuple[Reals, float, tuple[str, ...]] | None = None
        self._moved = 0

    def fault_in(self, query: Query, released: IntVector, facts: SumFacts) -> str:
        """Why a release cannot be a sum over records, or "" when it can be; to be asked once for every release.

        Args: released: int64 [query.release_length], its noise included.

        Raises:
            ValueError: a kind of query that has no checks.
        """
        if query.update is not None:
            self._moved += largest_sum(query.update.values)
        if isinstance(query, SplitSelection):
            return ""
        largest = query.bound * facts.n_rows + facts.reach(1, is_laplace=isinstance(query, PureQuery))
        if int(released.max()) > largest or int(released.min()) < -largest:
            return "an entry is larger than the rows allow"
        return next(self._faults(query, released.astype(np.float64), facts), "")

    def _faults(self, query: Query, released: Reals, facts: SumFacts) -> Iterator[str]:
        if isinstance(query, Partitions):
            yield from self._of_partitions(query, released, facts)
        elif isinstance(query, Histogram):
            yield from _of_histogram(query, released, facts)
        elif isinstance(query, LabelSums):
            yield from _of_labels(query, released, facts)
        elif isinstance(query, GramMatrix):
            yield from _of_gram(query, released, facts)
        elif isinstance(query, ScoreHistogram):
            yield from _of_scores(query, released, facts)
        elif isinstance(query, ErrorMoments):
            yield from _of_moments(query, released, facts)
        elif not isinstance(query, CrossProducts):
            # Products of gradients with a row have both signs, and nothing to be compared with.
            raise ValueError(f"there are no checks for {type(query).__name__}")

    def _of_partitions(self, query: Partitions, released: Reals, facts: SumFacts) -> Iterator[str]:
        """Sums of a loss's statistics over the leaves, bins or sides of several trees and features.

        All records of the sum are in each tree, and in each of its features: so all totals are those of one sum.
        """
        loss = self._loss = self._loss or self._ask_loss()
        # The filter of S-GBDT stands for all scores, and its queries state no bound on them.
        is_sampled = isinstance(query, SampledLeafSums)
        allowed = statistics_of(loss, STEPS << STEP_BITS if is_sampled else query.score_bound)
        is_laplace = isinstance(query, PureQuery)
        entries = released.reshape(-1, loss.n_statistics)
        totals, counts = _totals(query, entries)
        reach = np.array([facts.reach(int(count), is_laplace=is_laplace) for count in counts])[:, None]
        one = facts.reach(1, is_laplace=is_laplace)
        clipped = facts.clipped(query, _largest_own(entries, allowed, one))
        yield from _of_entries(entries, allowed, clipped, one)
        if (totals > facts.n_rows * np.maximum(allowed.high, 0) + reach).any():
            yield "a total is larger than the rows allow"
        if (totals < facts.n_rows * np.minimum(allowed.low, 0) - reach).any():
            yield "a total is smaller than the rows allow"
        # Two totals differ by the noise of both, and by what nodes have clipped off either.
        if (np.ptp(totals, axis=0) > 2 * reach.max() + 2 * clipped).any():
            yield "the totals of trees over the same rows differ"
        if is_sampled or (isinstance(query, PureQuery) and query.pure.sampling_threshold < SAMPLING_STEPS):
            # Every release has a sample of its own: its totals say nothing about another's.
            self._before = None
            return
        room = facts.reach(len(entries), is_laplace=is_laplace) / len(totals) + clipped
        yield from self._jumps(totals.mean(axis=0), room, allowed, facts)

    def _jumps(self, mean: Reals, room: float, allowed: Statistics, facts: SumFacts) -> Iterator[str]:
        """Totals of two rounds over the same sites: the same records, whose scores have moved by a public bound.

        A count does not move at all. A Hessian or a gradient moves by at most (rows) (steps of score) (largest step of
        the loss's table). For losses without a table only the range is known: there this says no more than the range.
        """
        before, moved, self._moved = self._before, self._moved, 0
        self._before = None if facts.sites is None else (mean, room, facts.sites)
        if before is None or before[2] != facts.sites:
            return
        limit = facts.n_rows * allowed.moves(moved) + room + before[1]
        if (np.abs(mean - before[0]) > _HAIR * limit + 1).any():
            yield "a total has moved further than the scores of its rows can have moved it"


def _totals(query: Partitions, entries: Reals) -> tuple[Reals, NDArray[np.int64]]:
    """Totals over each tree (and feature), float64 [P, S], and how many entries each adds up, int64 [P]."""
    n_statistics = entries.shape[1]
    if isinstance(query, LeafSums):
        n_trees = query.trees.n_trees
        totals = entries.reshape(n_trees, -1, n_statistics).sum(axis=1)
        return totals, np.full(n_trees, len(entries) // n_trees)
    n_trees, n_slots = query.features.shape
    n_nodes = 2**query.trees.depth
    if isinstance(query, SplitSums):
        totals = entries.reshape(n_trees, n_nodes, n_slots, 2, n_statistics).sum(axis=(1, 3))
        return totals.reshape(-1, n_statistics), np.full(n_trees * n_slots, 2 * n_nodes)
    n_bins = query.n_bins[query.features]
    every = np.repeat(n_bins[:, None], n_nodes, axis=1).reshape(-1)
    per_node = np.add.reduceat(entries, np.cumsum(every) - every, axis=0)
    totals = per_node.reshape(n_trees, n_nodes, n_slots, n_statistics).sum(axis=1)
    return totals.reshape(-1, n_statistics), (n_bins * n_nodes).reshape(-1)


def _largest_own(entries: Reals, allowed: Statistics, reach: float) -> float:
    """A bound on the entries of every honest node's own sums, if it has clipped none: else it is beyond the clip.

    What is never negative is no larger at one node than in the sum (but for local noise: the node's own and the
    others'). A gradient is at most its ratio times that.
    """
    if (allowed.low >= 0).all():
        return float(entries.max()) + 2 * reach
    return max(1.0, float(allowed.ratio.max())) * (float(entries[:, -1].max()) + 2 * reach)


def _of_entries(entries: Reals, allowed: Statistics, clipped: int, reach: float) -> Iterator[str]:
    """Each leaf is a sum over records as well: of what is never negative, and of gradients within their ratio."""
    if (entries[:, allowed.low >= 0] < -reach).any():
        yield "a count or a Hessian is below zero"
    bounded = np.isfinite(allowed.ratio)
    last = np.maximum(entries[:, -1:] + reach + clipped, 0)
    if (np.abs(entries[:, bounded]) > _HAIR * allowed.ratio[bounded] * last + reach + 1).any():
        yield "a gradient is larger than its records allow"


def _of_histogram(query: Histogram, released: Reals, facts: SumFacts) -> Iterator[str]:
    """Hessians or counts per bin: each feature's bins hold all records."""
    is_laplace = isinstance(query, PureQuery)
    sizes = np.array(query.n_bins)
    totals = np.add.reduceat(released, np.cumsum(sizes) - sizes)
    reach = facts.reach(int(sizes.max()), is_laplace=is_laplace)
    if released.min() < -facts.reach(1, is_laplace=is_laplace):
        yield "a count or a Hessian is below zero"
    if totals.max() > facts.n_rows * query.bound + reach:
        yield "a total is larger than the rows allow"
    if np.ptp(totals) > 2 * reach + 2 * facts.clipped(query, float(released.max()) + 2 * reach):
        yield "the totals of features over the same rows differ"


def _of_labels(query: LabelSums, released: Reals, facts: SumFacts) -> Iterator[str]:
    """The sum of the labels, and the number of records."""
    reach = facts.reach(1)
    if not -reach <= released[1] <= facts.n_rows * query.support + reach:
        yield "the number of records is out of range"
    records = max(0.0, released[1] + reach + facts.clipped(query)) / query.support
    if abs(released[0]) > _HAIR * query.clip * records + reach + 1:
        yield "the sum of the labels is larger than its records allow"


def _of_gram(query: GramMatrix, released: Reals, facts: SumFacts) -> Iterator[str]:
    """X^T X: squares are not negative, and 2 |x y| <= x**2 + y**2; rounding takes less than one unit from a product."""
    reach = facts.reach(1)
    first, second = np.triu_indices(query.rows.n_columns)
    squares = released[first == second]
    if squares.min() < -reach:
        yield "a sum of squares is below zero"
    limit = (squares[first] + squares[second]) / 2 + facts.n_rows + facts.clipped(query) + 2 * reach
    if (np.abs(released) > _HAIR * limit + 1).any():
        yield "a sum of products is larger than its squares allow"


def _of_scores(query: ScoreHistogram, released: Reals, facts: SumFacts) -> Iterator[str]:
    """Counts of an evaluation: each curve, and the hits, hold all records."""
    n_curves, n_rows, n_bins = query.shape
    n_cells = n_curves * n_rows * n_bins
    totals = released[:n_cells].reshape(n_curves, -1).sum(axis=1)
    if query.with_hits:
        totals = np.append(totals, released[n_cells:].sum())
    reach = facts.reach(max(2, n_rows * n_bins))
    if released.min() < -facts.reach(1):
        yield "a count is below zero"
    if totals.max() > facts.n_rows * query.unit + reach:
        yield "a total is larger than the rows allow"
    if np.ptp(totals) > 2 * reach + 2 * facts.clipped(query, float(released.max()) + 2 * reach):
        yield "the totals of curves over the same rows differ"


def _of_moments(query: ErrorMoments, released: Reals, facts: SumFacts) -> Iterator[str]:
    """The number of records, and sums of what is at most one for each of them."""
    reach = facts.reach(1)
    if released[[0, 2, 3]].min() < -reach:
        yield "a count or a sum of squares is below zero"
    if np.abs(released[1:]).max() > released[0] + 2 * reach + facts.clipped(query) + 1:
        yield "a sum is larger than its records allow"
