"""Random trees as S-GBDT draws them: every split a random feature and a random value, whatever the splits above.

Source: arXiv 2309.12041, section VI-C: categorical features weigh 1 and numeric ones r; a value is drawn uniformly from
the feature's public range, or from its categories, of which one then goes left. The public grid rounds a value up to
its next edge.
"""

from __future__ import annotations

import numpy as np

from hedgerow.protocol.plan import Plan
from hedgerow.protocol.queries import TreeBatch
from hedgerow.trees.grid import Grid
from hedgerow.trees.public_random import PublicRandom
from hedgerow.trees.structures import Draft, OrderedSplits

_WEIGHT_UNIT = 1000
_STEPS = 2**32


def uniform_tree(randomness: PublicRandom, plan: Plan, grid: Grid, depth: int) -> TreeBatch:
    """One complete tree of random splits: a batch of one.

    Args:
        randomness: the public stream of this tree.
        plan: ranges of the features, and the weight of numeric ones.
        grid: the plan's grid.
        depth: levels of splits, 1 to 8.
    """
    draft = Draft(depth, grid.n_codes)
    numeric = max(1, round(plan.s_gbdt.numeric_weight * _WEIGHT_UNIT))
    weights = [_WEIGHT_UNIT if feature.is_categorical else numeric for feature in plan.features]
    ordered = OrderedSplits()
    for node in range(2**depth - 1):
        number = randomness.weighted(weights)
        feature, cells = plan.features[number], grid.features[number]
        if feature.min is None or feature.max is None:
            left = np.arange(grid.n_codes) == randomness.below(len(feature.categories))
            draft.fill_set(node, number, left)
            continue
        value = feature.min + (feature.max - feature.min) * (randomness.below(_STEPS) / _STEPS)
        cut = min(int(np.searchsorted(cells.edges, np.float32(value))), max(0, len(cells.edges) - 1))
        ordered.add(node, number, cut, cells.missing_code, randomness.coin())
    draft.fill_ordered(ordered)
    return TreeBatch(draft.feature[None], draft.goes_left[None], draft.threshold[None])


def constant_tree(grid: Grid, depth: int) -> TreeBatch:
    """A tree that sends every record to its first leaf: a batch of one, which carries an initial score."""
    draft = Draft(depth, grid.n_codes)
    return TreeBatch(draft.feature[None], draft.goes_left[None], draft.threshold[None])
