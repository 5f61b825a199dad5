"""The price of integers: noise on a grid costs a little more than the Gaussian noise that calibration starts from.

At usual settings the difference is far below the margin that every run pays. It matters when sigma is few grid units,
as with a large epsilon and few trees; then the noise is raised until the accountant agrees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.calibration import NoiseDemand, calibrate_sigmas, integer_sigma, releases_of
from hedgerow.protocol.plan import Plan
from hedgerow.trees.losses import Loss


def demands_of(plan: Plan, loss: Loss, n_trees: int, max_depth: int, batch_size: int) -> list[NoiseDemand]:
    """What the releases of a run ask for, each at the smallest sensitivity that it can have.

    The fewer grid units sigma has, the dearer the grid; and sigma is in proportion to the sensitivity, which for labels
    of two classes is smallest before the first tree.
    """
    rows = plan.privacy.max_rows_per_unit
    smallest = loss.sensitivity_squared(0) * rows * rows
    demands = []
    for size, count in ((batch_size, n_trees // batch_size), (n_trees % batch_size, 1)):
        if size and count:
            length = size * 2**max_depth * loss.n_statistics
            demands.append(NoiseDemand(smallest * size, length, count, weight=float(size)))
    if plan.model.split_candidates == "iterative_hessian" and plan.model.weight_update != "averaging":
        n_features = len(plan.features)
        largest = loss.largest_statistic(loss.n_statistics - 1)
        length = sum(max(plan.model.n_candidates, len(feature.categories)) + 2 for feature in plan.features)
        squared = largest * largest * n_features * rows * rows
        demands.append(NoiseDemand(squared, length, plan.model.candidate_rounds, weight=float(n_features)))
    return demands


def pay_for_the_grid(plan: Plan, demands: Sequence[NoiseDemand], noise_multiplier: float) -> float:
    """The noise multiplier of one tree with which integer noise keeps the plan's promise: the given one, or a larger.

    Raises:
        PrivacyError: when the grid is too coarse for the promise.
    """
    privacy = plan.privacy
    sigmas = [integer_sigma(noise_multiplier, demand.sensitivity_squared, demand.weight) for demand in demands]
    spent = get_accountant(privacy.accountant).epsilon(releases_of(sigmas, demands), privacy.delta)
    if spent <= privacy.epsilon:
        return noise_multiplier
    enough = calibrate_sigmas(privacy.epsilon, privacy.delta, demands, privacy.accountant)
    per_tree = [
        sigma * math.sqrt(demand.weight / demand.sensitivity_squared)
        for sigma, demand in zip(enough, demands, strict=True)
    ]
    # A float that rounds down would lose a unit of sigma; the next one above does not.
    return max(noise_multiplier, math.nextafter(max(per_tree), math.inf))
