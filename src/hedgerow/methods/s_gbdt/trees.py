# SPDX-License-Identifier: Apache-2.0
"""The parts of S-GBDT beyond boosting: loss, kind of query, individual Renyi filter, random trees.

The loss: the paper adds noise of variance sigma² / (2 r1) to the support and sigma² / (2 r2) to the sum of gradients
(arXiv 2309.12041, algorithm 4). Noise of one variance on (g, c), c = sqrt(r1 / r2), is the same after dividing by c.
The gradient alone is clipped to +-g*, so a record of small gradient has a smaller norm: that is what the filter counts
on.

The filter: every round charges each record the Renyi divergence, at one order, of the round's release with and without
it. A record whose next charge would pass the budget adds zero to the round and pays nothing for it. It may come back
later when its gradient is smaller (Feldman and Zrnic 2020, arXiv 2008.11193, algorithm 3). The charge is for being a
candidate: it already counts on the sample being secret, so it is due whether or not the record is drawn. Who is active
is private. A round may stop short of the budget and keep the rest back for the last rounds
(docs/proofs/sampled-gaussian.md). The gradient is read by the code that makes the sums, in the integers that are
summed; charges are integers, rounded up.

The trees: every split is a random feature and a random value, whatever the splits above (arXiv 2309.12041, section
VI-C). Categorical features weigh 1 and numeric ones r; a value is drawn uniformly from the feature's public range, or
from its categories, of which one then goes left. The public grid rounds a value up to its next edge.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numba
import numpy as np
from numpy.typing import NDArray

from hedgerow.losses.kernels import pack_loss, unpack, words_for_block, write_block_statistics
from hedgerow.losses.tables import RECORD_NORM, SCORE_UNIT, STEP_BITS, STEPS, Loss, check_units, logistic
from hedgerow.methods.linear_start import make_constant_tree
from hedgerow.methods.s_gbdt import SGbdt
from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import FILTER_UNITS, FilterTerms, IntVector, SampledQuery, TreeBatch
from hedgerow.trees.binning import Grid
from hedgerow.trees.leaf_sums import BLOCK, LeafSums, SiteRecords, TrainingSite, leaf_sums
from hedgerow.trees.random_trees import Groups, PublicRandom

_WEIGHT_UNIT = 1000
_STEPS = 2**32
LEVEL_BITS = 6
"""One level of charges for every 2**6 magnitudes of the gradient statistic, which is at most 2**14."""

Divergence = Callable[[float], float]
"""The divergence of a release, rounded up, from the noise per unit of the record's norm."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledLeafSums(SampledQuery, LeafSums):
    """`LeafSums` of a sample of the records, drawn in secret."""

    @property
    def furthest_score(self) -> int:
        """The end of the tables.

        The filter stands for all scores, and the query states no bound on them.
        """
        return STEPS << STEP_BITS

    def answer(self, site: TrainingSite) -> IntVector:
        """Return the sums over the records that the filter lets through and the sample holds.

        Takes in the update, and charges the records' accounts if there is a filter.
        """
        site.take_in(self.update)
        chosen = site.draw_sample(self.sampling_threshold, self)
        if self.filter is not None:
            chosen = chosen & charge(site.records, site.loss, self.filter, accounts(site))
        return leaf_sums(site.records.only(chosen), replace(self, update=None), site.loss, site.n_threads)

    def miss(self, site: TrainingSite) -> None:
        """Take in the update, and charge records as if they had been in the sum.

        Whether a missed round's vector reached the sum is not known after a restart, and to charge too much is safe.
        """
        site.take_in(self.update)
        if self.filter is not None:
            charge(site.records, site.loss, self.filter, accounts(site))


def accounts(site: TrainingSite) -> NDArray[np.int64]:
    """Return the spending of each record, int64 [n], as the site keeps it.

    Records that have come since the last round have spent nothing.
    """
    if site.kept is None:
        raise ValueError("a sample of records has no accounts")
    spent = site.kept.get("accounts", np.zeros(0, dtype=np.int64))
    late = np.zeros(site.records.n_records - len(spent), dtype=np.int64)
    site.kept["accounts"] = np.concatenate([spent, late]) if len(late) else spent
    return site.kept["accounts"]  # type: ignore[no-any-return]


@lru_cache(maxsize=32)
def s_gbdt_loss(plan: Plan) -> Loss:
    """Build the loss of a plan: statistics (clip(g), c), gradients of squared or logistic loss.

    Raises:
        PlanError: when the clip and the share leave a statistic no integers.
    """
    section = SGbdt.of(plan)
    c = math.sqrt(section.support_share / (1 - section.support_share))
    is_binary = not plan.label.kind.is_number
    clip = min(section.gradient_clip, 1.0 if is_binary else 2.0)
    # A hair below the norm, so that no rounding of a product lifts a statistic over it.
    scale = RECORD_NORM / math.hypot(clip, c) * (1 - 1e-12)
    check_units(scale, clip * scale, c * scale)
    largest, constant = math.floor(clip * scale), math.floor(c * scale)
    norm_squared = largest**2 + constant**2
    if not is_binary:
        empty = np.empty((0, STEPS, 2), dtype=np.int16)
        scales = np.array([float(math.floor(scale)), float(constant)])
        return Loss("squared", 1, 2, scales, empty, norm_squared, largest, constant)
    probability = logistic(STEPS + 1, SCORE_UNIT >> STEP_BITS)
    gradients = np.stack([probability, -probability[::-1]])
    table = np.full((2, STEPS + 1, 2), constant, dtype=np.int16)
    table[:, :, 0] = np.clip(np.trunc(gradients * scale), -largest, largest)
    return Loss("table", 1, 2, np.array([scale, float(constant)]), table, norm_squared)


def filter_terms(loss: Loss, noise_multiplier: float, order: int, budget: float, divergence: Divergence) -> FilterTerms:
    """Return the charges of a round whose noise is `noise_multiplier` times the loss's norm.

    Args:
        loss: of two statistics, a gradient and a constant.
        noise_multiplier: of the round, > 0.
        budget: of one record over all rounds, > 0.
        divergence: of one round, by noise multiplier, at that order.
    """
    largest = loss.clip or loss.largest_statistic(0)
    constant = loss.largest_statistic(1)
    sigma = noise_multiplier * math.sqrt(loss.norm_squared)
    costs = []
    for level in range((largest >> LEVEL_BITS) + 1):
        magnitude = min(((level + 1) << LEVEL_BITS) - 1, largest)
        charge = divergence(sigma / math.sqrt(magnitude**2 + constant**2) * (1 - 1e-15))
        # A charge beyond the budget is as good as any other such charge.
        costs.append(min(math.ceil(charge / budget * FILTER_UNITS * (1 + 1e-15)), 2 * FILTER_UNITS))
    return FilterTerms(order, budget, np.array(costs, dtype=np.int64), FILTER_UNITS)


def charge(records: SiteRecords, loss: Loss, terms: FilterTerms, spent: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Charge every record for a round, in place, and return which records may be in it: bool [n].

    Args:
        records: the site's records; their scores decide their gradients.
        loss: as for `filter_terms`.
        spent: int64 [n], what each record has spent, in units of budget / FILTER_UNITS.

    Raises:
        ValueError: for another number of accounts than records; the kernel would write beyond them.
    """
    if spent.shape != (records.n_records,):
        raise ValueError(f"{spent.shape} accounts for {records.n_records} records")
    active: NDArray[np.bool_] = np.zeros(records.n_records, dtype=np.bool_)
    # Never charge beyond the whole budget, whatever limit the coordinator's query claims.
    _charge(records, pack_loss(loss), terms.costs, min(terms.limit, FILTER_UNITS), spent, active)
    return active


@numba.njit(cache=True, nogil=True)
def _charge(records, loss, costs, limit, spent, active):  # type: ignore[no-untyped-def]
    words, own = words_for_block(loss, BLOCK)
    n = len(records.labels)
    for begin in range(0, n, BLOCK):
        end = min(begin + BLOCK, n)
        write_block_statistics(loss, records.labels, records.scores, begin, end, words, own)
        for i in range(end - begin):
            gradient, _ = unpack(words[0, i])
            level = abs(gradient) >> LEVEL_BITS
            # A clipped gradient never lies beyond the last level; leave out a record that does.
            if level < len(costs) and spent[begin + i] + costs[level] <= limit:
                spent[begin + i] += costs[level]
                active[begin + i] = True


def uniform_tree(
    randomness: PublicRandom, plan: Plan, grid: Grid, depth: int, groups: Groups | None = None
) -> TreeBatch:
    """Draw one complete tree of random splits: a batch of one.

    Args:
        randomness: the public stream of this tree.
        plan: ranges of the features, and the weight of numeric ones.
        depth: levels of splits, 1 to 8.
        groups: which features may meet on a path: bool [n_groups, n_features]; None for all.
    """
    trees, codes = make_constant_tree(grid, depth), np.arange(grid.n_codes)
    numeric = max(1, round(SGbdt.of(plan).numeric_weight * _WEIGHT_UNIT))
    weights = [_WEIGHT_UNIT if feature.is_categorical else numeric for feature in plan.features]
    # Per node, the groups that hold all features above it.
    is_open = [np.ones(1 if groups is None else len(groups), dtype=np.bool_)] * (2 ** (depth + 1) - 1)
    for node in range(2**depth - 1):
        own = weights
        if groups is not None:
            own = np.where(groups[is_open[node]].any(axis=0), weights, 0).tolist()
        number = randomness.draw_weighted(own)
        if groups is not None:
            is_open[2 * node + 1] = is_open[2 * node + 2] = is_open[node] & groups[:, number]
        feature, cells = plan.features[number], grid.features[number]
        trees.feature[0, node] = number
        if feature.min is None or feature.max is None:
            trees.goes_left[0, node] = codes == randomness.below(len(feature.categories))
            trees.threshold[0, node] = -1
            continue
        value = feature.min + (feature.max - feature.min) * (randomness.below(_STEPS) / _STEPS)
        cut = min(int(np.searchsorted(cells.edges, np.float32(value))), max(0, len(cells.edges) - 1))
        # Codes beyond the feature's own never occur; they follow the missing one, so that one interval goes right.
        trees.goes_left[0, node] = np.where(codes >= cells.missing_code, randomness.coin(), codes <= cut)
        trees.threshold[0, node] = cut
    return trees
