"""Constraints: what people know holds for every value that a record can have, and takes no more than it must."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression

from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import TreeBatch
from hedgerow.trees.binning import Grid, build_grid
from hedgerow.trees.constraints import Directions, OrderedSum, build_groups
from hedgerow.trees.random_trees import PublicRandom, concatenate, random_tree
from tests import builders
from tests.builders import make_plan

FEATURES: list[dict[str, Any]] = [
    {"name": "age", "type": "numeric", "min": 0, "max": 4, "integer": True, "monotone": "increasing"},
    {"name": "stage", "type": "numeric", "min": 1, "max": 5, "integer": True, "monotone": "decreasing"},
    {"name": "sex", "type": "categorical", "categories": ["f", "m"]},
    {"name": "visits", "type": "numeric", "min": 0, "max": 3, "integer": True},
]

SIGNS = [1, -1, 0, 0]


def tree_of(plan: Plan, grid: Grid, features: list[int], depth: int, seed: int) -> TreeBatch:
    cuts = {index: list(range(grid.features[index].n_cells - 1)) for index in features}
    return random_tree(PublicRandom(seed, "tree"), features, cuts, grid, depth, build_groups(plan))


def all_records(grid: Grid) -> NDArray[np.int64]:
    """Every record that there can be: int64 [n, n_features]."""
    return np.array(list(itertools.product(*[range(feature.n_codes) for feature in grid.features])))


def leaves_of(trees: TreeBatch, records: NDArray[np.int64]) -> NDArray[np.int64]:
    """The leaf that each record reaches in the first tree, node by node: int64 [n]."""
    node = np.zeros(len(records), dtype=np.int64)
    for _ in range(trees.depth):
        feature = trees.feature[0, node]
        goes_left = trees.goes_left[0, node, records[np.arange(len(records)), feature]]
        node = 2 * node + 2 - goes_left
    return node - (2**trees.depth - 1)


def broken_pairs(scores: NDArray[Any], grid: Grid, signs: list[int]) -> int:
    """How often a score goes against a direction when one value of a record is raised by one: the slow oracle."""
    table = np.asarray(scores).reshape([feature.n_codes for feature in grid.features])
    broken = 0
    for axis, sign in enumerate(signs):
        # The last code is of missing values, which have no order.
        values = np.take(table, range(table.shape[axis] - 1), axis=axis)
        broken += int((sign * np.diff(values, axis=axis) < 0).sum())
    return broken


def ordered(plan: Plan) -> tuple[Grid, Directions, OrderedSum]:
    """The grid of a plan, its directions, and a sum without a tree."""
    grid = build_grid(plan)
    directions = Directions.from_plan(plan, grid)
    assert directions is not None
    return grid, directions, OrderedSum(directions, grid.n_codes)


@given(st.data())
@settings(max_examples=150)
def test_no_raised_value_goes_against_what_is_known(data: st.DataObject) -> None:
    """Whatever trees, values and weights: after each tree every record's score follows the directions, and a tree
    that takes back too much is found out."""
    plan = make_plan(features=FEATURES)
    grid, directions, whole = ordered(plan)
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    records, scores, kept = all_records(grid), 0, []
    depth, n_trees = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    for _ in range(n_trees):
        size = data.draw(st.sampled_from([1, 1, 2, 4]))
        features = data.draw(st.permutations(range(4)))[:size]
        trees = tree_of(plan, grid, list(features), depth, data.draw(st.integers(0, 2**32)))
        values = random.integers(-(2**20), 2**20, (1, trees.n_leaves, 1)).astype(np.int32)
        weights = random.exponential(1.0, values.shape) * (random.random(values.shape) < 0.8)
        taken_back = whole.rises.max()
        found = whole.add(trees, values, weights)
        # Nothing is pushed beyond what was there and what may be taken back of the trees before.
        assert values.min() - taken_back <= found.min() and found.max() <= values.max() + taken_back
        scores = scores + found[0, leaves_of(trees, records), 0].astype(np.int64)
        assert broken_pairs(scores, grid, SIGNS) == 0
        kept.append((trees, found))
    together = concatenate([trees for trees, _ in kept])
    values = np.concatenate([found for _, found in kept])
    assert directions.are_kept_by(together, values)
    reached = leaves_of(kept[0][0], records)
    spoilt = random.integers(-(2**20), 2**20, values[:1].shape).astype(np.int32)
    in_order = broken_pairs(spoilt[0, reached, 0], grid, SIGNS) == 0
    assert directions.are_kept_by(kept[0][0], spoilt) == in_order


def test_a_sum_may_take_back_what_it_rose_by_and_no_more() -> None:
    """Steps that went too far can be corrected: else their noise would add up, and a steep start would stay."""
    plan = make_plan(features=FEATURES)
    grid, _, whole = ordered(plan)
    trees = tree_of(plan, grid, [0], 3, 5)
    rising, falling = (np.sort(np.arange(8) * 100)[::step].reshape(1, 8, 1).astype(np.int32) for step in (1, -1))
    np.testing.assert_array_equal(whole.add(trees, rising), rising)
    # As much as it rose by, to the last unit.
    np.testing.assert_array_equal(whole.add(trees, falling), falling)
    leaves = np.unique(leaves_of(trees, all_records(grid)))
    assert len(leaves) > 4
    assert len(set(whole.add(trees, falling)[0, leaves, 0].tolist())) == 1


def test_trees_of_several_features_take_back_what_holds_for_all_records() -> None:
    """What one feature's own tree has added for sure, a tree that asks for others as well may take back for some."""
    plan = make_plan(features=FEATURES)
    grid, _, whole = ordered(plan)
    own, mixed = tree_of(plan, grid, [0], 2, 1), tree_of(plan, grid, [0, 2], 3, 3)
    falls = -1000 * np.arange(8).reshape(1, 8, 1).astype(np.int32)
    flat = OrderedSum(Directions.from_plan(plan, grid), grid.n_codes).add(mixed, falls)
    rising = 100_000 * np.arange(4).reshape(1, 4, 1).astype(np.int32)
    whole.add(own, rising)
    found = whole.add(mixed, falls)
    # Where the first tree rises, the second one falls, by itself against the direction.
    assert (found != flat).any()
    records = all_records(grid)
    alone = found[0, leaves_of(mixed, records), 0]
    together = alone + rising[0, leaves_of(own, records), 0]
    assert broken_pairs(alone, grid, SIGNS) > 0 and broken_pairs(together, grid, SIGNS) == 0


@given(st.integers(0, 2**32), st.sampled_from([0, 1]))
@settings(max_examples=50)
def test_trees_of_one_feature_are_projected_by_least_squares(seed: int, feature: int) -> None:
    """Where the order is a line, the projection is the weighted isotonic regression, as scikit-learn finds it."""
    plan = make_plan(features=FEATURES)
    grid, _, whole = ordered(plan)
    trees = tree_of(plan, grid, [feature], 3, seed)
    random = np.random.default_rng(seed)
    values = random.integers(-(2**20), 2**20, (1, 8, 1)).astype(np.int32)
    weights = random.exponential(1.0, values.shape)
    cells = np.zeros((grid.features[feature].n_cells, len(FEATURES)), dtype=np.int64)
    cells[:, feature] = np.arange(len(cells))
    leaves = np.unique(leaves_of(trees, cells))
    places = np.arange(len(leaves))
    regression = IsotonicRegression(increasing=feature == 0)
    expected = regression.fit(places, values[0, leaves, 0], weights[0, leaves, 0]).predict(places)
    np.testing.assert_allclose(whole.add(trees, values, weights)[0, leaves, 0], expected, atol=0.51)


@given(st.integers(0, 2**32), st.integers(2, 4))
@settings(max_examples=30)
def test_other_trees_are_close_to_the_best_projection(seed: int, depth: int) -> None:
    """Over several features, it moves values hardly further than a projection by thousands of small steps does."""
    plan = make_plan(features=FEATURES)
    grid, _, whole = ordered(plan)
    trees = tree_of(plan, grid, [0, 1, 3], depth, seed)
    random = np.random.default_rng(seed)
    values = random.integers(-(2**20), 2**20, (1, trees.n_leaves, 1)).astype(np.int32)
    weights = random.uniform(0.5, 2.0, values.shape)
    found = whole.add(trees, values, weights)[0, :, 0]
    best = nearest(values[0, :, 0].astype(float), weights[0, :, 0], pairs_of(trees, grid))
    own, least = ((weights[0, :, 0] * (each - values[0, :, 0]) ** 2).sum() for each in (found, best))
    assert own <= 1.35 * least + 2.0**24


def pairs_of(trees: TreeBatch, grid: Grid) -> list[tuple[int, int]]:
    """Pairs of leaves, the lower one first, by all records and all raised values."""
    sizes = [feature.n_codes for feature in grid.features]
    table = leaves_of(trees, all_records(grid)).reshape(sizes)
    pairs = set()
    for axis, sign in ((0, 1), (1, -1)):
        values = np.moveaxis(np.take(table, range(sizes[axis] - 1), axis=axis), axis, 0)[::sign]
        for low, high in itertools.combinations(range(len(values)), 2):
            pairs |= set(zip(values[low].ravel().tolist(), values[high].ravel().tolist(), strict=True))
    return [(low, high) for low, high in pairs if low != high]


def nearest(values: NDArray[Any], weights: NDArray[Any], pairs: list[tuple[int, int]]) -> NDArray[Any]:
    """The weighted least-squares projection, by Dykstra's alternating projections onto one pair after another."""
    found, moved = values.copy(), np.zeros((len(pairs), 2))
    for _ in range(400):
        for number, (low, high) in enumerate(pairs):
            one, other = found[low] - moved[number, 0], found[high] - moved[number, 1]
            middle = (weights[low] * one + weights[high] * other) / (weights[low] + weights[high])
            found[low], found[high] = (middle, middle) if one > other else (one, other)
            moved[number] = found[low] - one, found[high] - other
    return found


@given(st.data())
@settings(max_examples=100)
def test_features_of_one_path_are_in_one_group(data: st.DataObject) -> None:
    """No path of a drawn tree brings together what the plan keeps apart; features in no group may meet each other."""
    names = [feature["name"] for feature in builders.FEATURES]
    group = st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)
    groups = data.draw(st.lists(group, min_size=1, max_size=3))
    plan = make_plan(model={"interaction_constraints": groups})
    grid, depth = build_grid(plan), data.draw(st.integers(2, 5))
    trees = tree_of(plan, grid, [0, 1, 2, 3], depth, data.draw(st.integers(0, 2**32)))
    allowed = [set(group) for group in groups] + [set(names) - set().union(*groups)]
    for leaf in range(trees.n_leaves):
        node, path = leaf + 2**depth - 1, set()
        while node:
            node = (node - 1) // 2
            # A node that sends everything left asks nothing.
            if not trees.goes_left[0, node].all():
                path.add(names[trees.feature[0, node]])
        assert any(path <= group for group in allowed)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([], [[1, 1, 1, 1]]),
        ([["age", "income"], ["income", "change"]], [[1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 1, 0]]),
        ([["age"], ["income"], ["region"], ["change"]], np.eye(4)),
        ([["age"], ["age", "income", "region", "change"]], [[1, 1, 1, 1]]),
    ],
)
def test_groups_are_read_as_they_are_written(groups: list[list[str]], expected: Any) -> None:
    """Features in no group are one more; a group of all features keeps nothing apart."""
    plan = make_plan(model={"interaction_constraints": groups})
    np.testing.assert_array_equal(build_groups(plan), expected)
