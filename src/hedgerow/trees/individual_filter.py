"""The individual Renyi filter: what each record has spent, and which records may still be in a sum.

Every round charges each record the Renyi divergence, at one order, of the round's release with and without it. A record
whose next charge would pass the budget adds zero to the round and pays nothing for it; it may come back later when its
gradient is smaller (Feldman and Zrnic 2020, arXiv 2008.11193, algorithm 3). The charge is for being a candidate:
it already counts on the sample being secret, so it is due whether or not the record is drawn. Who is active is private.
A round may stop short of the budget and keep the rest back for the last rounds (docs/proofs/sampled-gaussian.md).

The gradient is read by the code that makes the sums, in the integers that are summed; charges are integers, rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numba
import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.queries import FILTER_UNITS, FilterTerms
from hedgerow.trees.kernels import BLOCK, _statistics_block, _unpack
from hedgerow.trees.losses import Loss
from hedgerow.trees.routing import SiteRecords, packed_loss

LEVEL_BITS = 6
"""One level of charges for every 2**6 magnitudes of the gradient statistic, which is at most 2**14."""

Divergence = Callable[[float], float]
"""The divergence of a release, rounded up, from the noise per unit of the record's norm."""


def filter_terms(loss: Loss, noise_multiplier: float, order: int, budget: float, divergence: Divergence) -> FilterTerms:
    """The charges of a round whose noise is `noise_multiplier` times the loss's norm.

    Args:
        loss: of two statistics, a gradient and a constant.
        noise_multiplier: of the round, > 0.
        order: of the divergences.
        budget: of one record over all rounds, > 0.
        divergence: of one round, by noise multiplier, at that order.
    """
    largest = loss.clip if loss.kind == "squared" else loss.largest_statistic(0)
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
    """Charge every record for a round, in place, and say which records may be in it: bool [n].

    Args:
        records: the site's records; their scores decide their gradients.
        loss: as for `filter_terms`.
        terms: the round's charges.
        spent: int64 [n], what each record has spent, in units of budget / FILTER_UNITS.

    Raises:
        ValueError: for another number of accounts than records; the kernel would write beyond them.
    """
    if spent.shape != (records.n_records,):
        raise ValueError(f"{spent.shape} accounts for {records.n_records} records")
    active: NDArray[np.bool_] = np.zeros(records.n_records, dtype=np.bool_)
    # The whole budget is the last word, whatever a query says that somebody else has made.
    price = terms.costs, min(terms.limit, FILTER_UNITS)
    _charge(records.labels, records.scores, packed_loss(loss), loss.n_statistics, price, spent, active)
    return active


@numba.njit(cache=True, nogil=True)
def _charge(
    labels: NDArray[np.int32],
    scores: NDArray[np.int32],
    loss: tuple,  # type: ignore[type-arg]
    n_statistics: int,
    price: tuple[NDArray[np.int64], int],
    spent: NDArray[np.int64],
    active: NDArray[np.bool_],
) -> None:
    kind, table, clip, constant, exp_table, units = loss
    costs, limit = price
    packed = np.zeros(((n_statistics + 1) // 2, BLOCK), dtype=np.int64)
    statistics = np.zeros(n_statistics + 1, dtype=np.int64)
    n = len(labels)
    for begin in range(0, n, BLOCK):
        end = min(begin + BLOCK, n)
        _statistics_block(kind, labels, scores, begin, end, table, clip, constant, exp_table, units, statistics, packed)
        for i in range(end - begin):
            gradient, _ = _unpack(packed[0, i])
            level = abs(gradient) >> LEVEL_BITS
            # Beyond the last level lies no gradient that was clipped; whatever it is, it stays out.
            if level < len(costs) and spent[begin + i] + costs[level] <= limit:
                spent[begin + i] += costs[level]
                active[begin + i] = True
