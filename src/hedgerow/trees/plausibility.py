# SPDX-License-Identifier: Apache-2.0
"""Checks that a release can be a sum over records; they cost no privacy.

A sum under masks is garbage as soon as one site's vector is. What honest sites send is bounded by more than the size of
its entries: each tree's leaves hold the same records, counts and Hessians are not negative, gradients are no larger
than what their records allow. The checks read the release, its noise included, and nothing else, so they are
post-processing; every party that holds the releases can repeat them. A failed check says that some site in the sum
lied, or has far more rows than declared. Which one cannot be known: the masks hide it.

A lie within these limits passes. docs/poisoning.md says how much that is.

Noise is allowed for up to `DEVIATIONS` standard deviations: discrete Gaussian noise goes beyond with a chance below
2 exp(-DEVIATIONS**2 / 2) < 2**-86 (it is subgaussian: Canonne, Kamath & Steinke 2020), and a check is asked at most
2**40 times in a run (2**22 entries, 2**12 releases, 2**6 questions each), so honest sites are stopped by it in fewer
than one run of 10**13.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hedgerow.losses.tables import Loss, Statistics, bound_statistics
from hedgerow.protocol.queries import IntVector, Query, TreeBatch
from hedgerow.trees.leaves import largest_sum

DEVIATIONS = 11
_TAIL = DEVIATIONS**2 / 2
FLOAT_TOLERANCE = 1 + 1e-9
"""Sums of integers are compared in floating point, which rounds."""
Reals = NDArray[np.float64]


class Sigmas(Protocol):
    """The parts of a release's noise used here: those of `hedgerow.privacy.calibration.QueryNoise`."""

    @property
    def central_sigma(self) -> int: ...

    @property
    def share_sigma(self) -> int: ...

    @property
    def record_sigma(self) -> int: ...

    @property
    def site_sigma(self) -> int: ...


@dataclass(frozen=True)
class SumFacts:
    """The public facts about a sum.

    Attributes:
        n_rows: the most rows that honest sites hold together: several times what the plan declares.
        entry_bound: the least bound that honest nodes clip their own entries to; None if they do not clip.
        noise: the noise that the query asks for.
        n_nodes: sites that may have added noise.
        sites: the sites of the sum; None if they are not known, and then totals of rounds are not compared.
    """

    n_rows: int
    entry_bound: int | None
    noise: Sigmas
    n_nodes: int
    sites: tuple[str, ...] | None = None

    def bound_clipping(self, query: Query, largest: float = math.inf) -> int:
        """Return the most that honest nodes' clipping takes from all entries of one tree together.

        It is 0 if no node clipped.

        Args:
            largest: a bound on every node's own entries, from what is released.
        """
        if self.entry_bound is None or largest < self.entry_bound:
            return 0
        return max(0, query.bound * self.n_rows - self.entry_bound)

    def reach(self, n_entries: int, *, is_laplace: bool = False) -> float:
        """Return a bound on the noise in a sum of n_entries entries, in integer units.

        Laplace noise L of scale b has E exp(x L) <= exp(2 (x b)**2) for x b <= 0.7, on the integers too; Chernoff's
        bound with the best such x gives the number here. Each entry may be rounded by one unit.
        """
        noise = self.noise
        if is_laplace:
            return n_entries + noise.central_sigma * max(math.sqrt(8 * n_entries * _TAIL), _TAIL / 0.35)
        # The noise of a site's records is rounded up once.
        rounded = self.n_nodes if noise.record_sigma else 0
        of_records = noise.record_sigma * math.sqrt(self.n_rows + self.n_nodes) + rounded
        shares = noise.share_sigma * math.sqrt(self.n_nodes)
        one = math.hypot(noise.central_sigma, shares, of_records, noise.site_sigma)
        return (n_entries if one else 0) + DEVIATIONS * one * math.sqrt(n_entries)


class ReleaseChecks:
    """The checks of one run; it remembers the last totals, to compare the next ones with.

    Args:
        loss: of the run's leaf sums and histograms; called once, and not for an evaluation.
    """

    def __init__(self, loss: Callable[[], Loss]) -> None:
        self._ask_loss = loss
        self._loss: Loss | None = None
        self.before: tuple[Reals, float, tuple[str, ...]] | None = None
        self._moved = 0

    def fault_in(self, query: Query, released: IntVector, facts: SumFacts) -> str:
        """Return why a release cannot be a sum over records, or "" if it can.

        To be called once for every release: it remembers totals and movements of scores.

        Args:
            released: int64 [query.release_length], its noise included.
        """
        if query.update is not None:
            self._moved += largest_sum(query.update.values)
        if query.is_choice:
            return ""
        largest = query.bound * facts.n_rows + facts.reach(1, is_laplace=query.is_pure)
        if int(released.max()) > largest or int(released.min()) < -largest:
            return "an entry is larger than the rows allow"
        return next(query.faults(released.astype(np.float64), facts, self), "")

    @property
    def loss(self) -> Loss:
        """The loss of the run's sums."""
        self._loss = self._loss or self._ask_loss()
        return self._loss

    def jumps(self, mean: Reals, room: float, allowed: Statistics, facts: SumFacts) -> Iterator[str]:
        """Yield a fault if totals over the same sites moved further than scores can have moved them.

        Also remembers these totals for the next round. The records are the same, and their scores have moved by a
        public bound.

        A count does not move at all. A Hessian or a gradient moves by at most (rows) (steps of score) (largest step of
        the loss's table). For losses without a table only the range is known: there this says no more than the range.
        """
        before, moved, self._moved = self.before, self._moved, 0
        self.before = None if facts.sites is None else (mean, room, facts.sites)
        if before is None or before[2] != facts.sites:
            return
        limit = facts.n_rows * allowed.moves(moved) + room + before[1]
        if (np.abs(mean - before[0]) > FLOAT_TOLERANCE * limit + 1).any():
            yield "a total has moved further than the scores of its rows can have moved it"


@dataclass(frozen=True, kw_only=True, eq=False)
class PartitionSums(Query, ABC):
    """Sums of a loss's statistics over the leaves, bins or sides of several trees and features.

    Attributes:
        trees: the batch, or its levels that stand already.
        score_bound: a public bound on the magnitude of every score, in units of 2**-16.
    """

    trees: TreeBatch
    score_bound: int

    @property
    def furthest_score(self) -> int:
        """A bound on the magnitude of every score, in units of 2**-16."""
        return self.score_bound

    def loss_of(self, loss: Loss) -> Loss:
        """Return the loss of the summed statistics, from the loss of the run."""
        return loss

    @abstractmethod
    def totals(self, entries: Reals) -> tuple[Reals, NDArray[np.int64]]:
        """Return totals over each tree (and feature), and the number of entries in each.

        Args:
            entries: float64 [n, n_statistics], the release.

        Returns:
            float64 [P, n_statistics] and int64 [P].
        """

    def faults(self, released: Reals, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        """Yield why the release cannot be sums over the same records.

        All records of the sum are in each tree, and in each of its features: so all totals are those of one sum.
        """
        loss, is_laplace = self.loss_of(checks.loss), self.is_pure
        allowed = bound_statistics(loss, self.furthest_score)
        entries = released.reshape(-1, loss.n_statistics)
        totals, counts = self.totals(entries)
        reach = np.array([facts.reach(int(count), is_laplace=is_laplace) for count in counts])[:, None]
        one = facts.reach(1, is_laplace=is_laplace)
        clipped = facts.bound_clipping(self, _largest_own(entries, allowed, one))
        # Each leaf is a sum over records as well, so counts are not negative and gradients are within their ratio.
        if (entries[:, allowed.low >= 0] < -one).any():
            yield "a count or a Hessian is below zero"
        bounded = np.isfinite(allowed.ratio)
        last = np.maximum(entries[:, -1:] + one + clipped, 0)
        if (np.abs(entries[:, bounded]) > FLOAT_TOLERANCE * allowed.ratio[bounded] * last + one + 1).any():
            yield "a gradient is larger than its records allow"
        if (totals > facts.n_rows * np.maximum(allowed.high, 0) + reach).any():
            yield "a total is larger than the rows allow"
        if (totals < facts.n_rows * np.minimum(allowed.low, 0) - reach).any():
            yield "a total is smaller than the rows allow"
        # Two totals differ by the noise of both, and by what nodes have clipped off either.
        if (np.ptp(totals, axis=0) > 2 * reach.max() + 2 * clipped).any():
            yield "the totals of trees over the same rows differ"
        if self.is_sampled:
            # Every release has a sample of its own: its totals say nothing about another's.
            checks.before = None
            return
        room = facts.reach(len(entries), is_laplace=is_laplace) / len(totals) + clipped
        yield from checks.jumps(totals.sum(axis=0) / len(totals), room, allowed, facts)


def _largest_own(entries: Reals, allowed: Statistics, reach: float) -> float:
    """Return a bound on the entries of every honest node's own sums, if no node has clipped.

    If a node has clipped an entry, the bound is beyond the clip. An entry that is never negative is no larger at one
    node than in the sum (except for local noise: the node's own and the others'). A gradient is at most its ratio times
    that.
    """
    if (allowed.low >= 0).all():
        return float(entries.max()) + 2 * reach
    return max(1.0, float(allowed.ratio.max())) * (float(entries[:, -1].max()) + 2 * reach)
