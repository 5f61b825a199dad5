"""How trees are drawn and followed, beside slow ways that read as the definitions do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.protocol.queries import TreeBatch
from hedgerow.trees.binning import Grid, build_grid
from hedgerow.trees.random_trees import (
    ANY_SET,
    SMALL_SET,
    WORDS_PER_REFILL,
    CutTable,
    PublicRandom,
    find_shapes,
    intervals,
    random_tree,
    random_trees,
)
from tests.builders import FEATURES, make_plan


def slow_tree(
    stream: PublicRandom,
    features: Sequence[int],
    cuts: Mapping[int, Sequence[int]],
    grid: Grid,
    depth: int,
    is_central: bool = False,
    counts: Mapping[int, Sequence[int]] | None = None,
) -> tuple[list[int], list[list[int]], list[int]]:
    """Feature, codes that go left, and threshold of every node, drawn one word after the other."""
    if len(features) == 1 and grid.features[features[0]].is_categorical:
        return slow_tree_by_category(stream, features[0], grid, depth)
    orders = {f: stream.permutation(grid.features[f].n_codes) for f in features if grid.features[f].is_categorical}
    n_nodes = 2**depth - 1
    asked, left, threshold = [features[0]] * n_nodes, [[1] * grid.n_codes for _ in range(n_nodes)], [0] * n_nodes
    threshold = [grid.n_codes - 1] * n_nodes

    def fill(node: int, still_open: dict[int, list[int]]) -> None:
        if node >= n_nodes:
            return
        usable = [feature for feature in features if still_open[feature]]
        below_left = below_right = still_open
        if usable:
            feature = usable[stream.below(len(usable))]
            drawn_from = still_open[feature]
            if is_central and len(features) > 1:
                known = dict(zip(cuts[feature], (counts or {})[feature], strict=True)) if feature in cuts else {}
                drawn_from = [cut for cut in drawn_from for _ in range(known.get(cut, 1))]
                drawn_from = drawn_from[len(drawn_from) // 4 : len(drawn_from) - len(drawn_from) // 4]
            cut = drawn_from[stream.below(len(drawn_from))]
            n_codes = grid.features[feature].n_codes
            asked[node], threshold[node] = feature, cut
            if feature in orders:
                threshold[node] = -1
                left[node] = [int(code < n_codes and orders[feature][code] <= cut) for code in range(grid.n_codes)]
            else:
                missing = int(stream.coin())
                left[node] = [missing if code >= n_codes - 1 else int(code <= cut) for code in range(grid.n_codes)]
            below_left = {**still_open, feature: [other for other in still_open[feature] if other < cut]}
            below_right = {**still_open, feature: [other for other in still_open[feature] if other > cut]}
        fill(2 * node + 1, below_left)
        fill(2 * node + 2, below_right)

    fill(0, {f: list(range(grid.features[f].n_codes - 1)) if f in orders else list(cuts[f]) for f in features})
    return asked, left, threshold


def slow_tree_by_category(
    stream: PublicRandom, feature: int, grid: Grid, depth: int
) -> tuple[list[int], list[list[int]], list[int]]:
    """Neighbours in a random order share a leaf; where there are enough leaves nobody shares."""
    n_codes, n_leaves = grid.features[feature].n_codes, 2**depth
    order = stream.permutation(n_codes)
    borders = list(range(1, n_codes))
    if n_codes > n_leaves:
        borders = sorted(stream.sample(range(1, n_codes), n_leaves - 1))
    leaf = [sum(border <= rank for border in borders) for rank in order]
    left = []
    for level in range(depth):
        span = n_leaves >> level
        for start in range(0, n_leaves, span):
            row = [int(place < start + span // 2) for place in leaf]
            left.append(row + [0] * (grid.n_codes - n_codes))
    return [feature] * (n_leaves - 1), left, [-1] * (n_leaves - 1)


@settings(max_examples=120, deadline=None)
@given(data=st.data(), depth=st.integers(1, 6), seed=st.integers(0, 2**40), is_central=st.booleans())
def test_what_is_drawn_is_what_the_definition_says(data: st.DataObject, depth: int, seed: int, is_central: bool):
    """Any feature set, any candidates: the same node features, sides and thresholds, word for word of the stream."""
    many = {"name": "town", "type": "categorical", "categories": [str(i) for i in range(70)]}
    grid = build_grid(make_plan(features=[*FEATURES, many]))
    features = data.draw(st.permutations(range(grid.n_features)).flatmap(
        lambda order: st.integers(1, len(order)).map(lambda size: order[:size])
    ))  # fmt: skip
    cuts = {
        f: sorted(data.draw(st.sets(st.integers(0, max(0, grid.features[f].n_cells - 2)), max_size=40)))
        for f in features
        if not grid.features[f].is_categorical
    }
    counts = {f: [data.draw(st.integers(1, 9)) for _ in own] for f, own in cuts.items()}
    table = CutTable.from_cuts(cuts, grid)
    for feature, own in cuts.items():
        table.put(feature, own, counts[feature])
    fast = random_trees([PublicRandom(seed, "tree 0")], [features], table, grid, depth, is_central=is_central)
    asked, left, threshold = slow_tree(PublicRandom(seed, "tree 0"), features, cuts, grid, depth, is_central, counts)
    assert fast.feature[0].tolist() == asked
    assert fast.goes_left[0].tolist() == left
    assert fast.threshold[0].tolist() == threshold


@pytest.mark.parametrize("n_categories", [2, 15, 40, 250])
@pytest.mark.parametrize("depth", [1, 4, 8])
def test_a_tree_of_one_category_feature_is_the_definitions(n_categories: int, depth: int):
    """More codes than leaves, fewer, and as many."""
    categories = [str(i) for i in range(n_categories)]
    grid = build_grid(make_plan(features=[{"name": "c", "type": "categorical", "categories": categories}]))
    fast = random_tree(PublicRandom(5, "tree"), [0], {}, grid, depth)
    asked, left, threshold = slow_tree(PublicRandom(5, "tree"), [0], {}, grid, depth)
    assert (fast.feature[0].tolist(), fast.goes_left[0].tolist()) == (asked, left)
    assert fast.threshold[0].tolist() == threshold


def test_words_at_once_are_the_streams():
    """What is taken at once is the stream that everything else reads, across its blocks, however it is cut."""
    for count in (1, 63, 64, 65, WORDS_PER_REFILL, WORDS_PER_REFILL + 1, 1300):
        stream = PublicRandom(3, "x")
        one_by_one = [(stream.below(2**32) << 32) for _ in range(count)]
        assert [(int(word) >> 32) << 32 for word in PublicRandom(3, "x").first_words(count)] == one_by_one


@settings(max_examples=100, deadline=None)
@given(data=st.data(), depth=st.integers(1, 4), n_codes=st.sampled_from([9, 64, 67]))
def test_the_interval_of_a_node_is_what_it_sends_right(data: st.DataObject, depth: int, n_codes: int):
    """Any table of sides: one comparison may stand for it only where the codes that go right are one stretch.

    The bits of a word may stand for a set only where all codes go right that have none in it.
    """
    shape = (2, 2**depth - 1, n_codes)
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    goes_left = random.integers(0, 2, shape).astype(np.uint8)
    for tree, node in np.ndindex(shape[:2]):
        kind, begin, end = random.integers(0, 3), *random.integers(0, n_codes + 1, 2)
        if kind == 0:
            goes_left[tree, node] = [not begin <= code < end for code in range(n_codes)]
        elif kind == 1:
            goes_left[tree, node, begin:] = 0
    threshold = random.integers(-2, n_codes, shape[:2]).clip(-1).astype(np.int32)
    start, width = intervals(goes_left, threshold)
    for tree, node in np.ndindex(shape[:2]):
        right = np.flatnonzero(goes_left[tree, node] == 0).tolist()
        first = int(threshold[tree, node]) + 1
        is_stretch = first > 0 and right == list(range(first, first + len(right)))
        is_small = first == 0 and set(range(64, n_codes)) <= set(right)
        assert width[tree, node] == (len(right) if is_stretch else SMALL_SET if is_small else ANY_SET)
        assert not is_stretch or start[tree, node] == first
        assert not is_small or int(start[tree, node]) % 2**64 == sum(1 << code for code in right if code < 64)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), depth=st.integers(1, 4))
def test_shapes_are_found_by_walking(data: st.DataObject, depth: int):
    """Any table of sides: a code of a lone feature ends where the walk does; else a side is open if any code takes it.

    Codes of several features are not told apart, and left is always open. Leaves have an order where all splits do.
    """
    n_nodes = 2**depth - 1
    sides = st.lists(st.integers(0, 1), min_size=6, max_size=6) | st.just([1] * 6) | st.just([0] * 6)
    goes_left = np.array([data.draw(sides) for _ in range(3 * n_nodes)], dtype=np.uint8).reshape(3, n_nodes, 6)
    numbers = st.lists(st.integers(0, 1), min_size=3 * n_nodes, max_size=3 * n_nodes)
    feature = np.array(data.draw(numbers), dtype=np.int32).reshape(3, n_nodes)
    feature[0] = feature[0, 0]
    thresholds = st.lists(st.sampled_from([0, 3]) | st.integers(-1, 5), min_size=n_nodes, max_size=n_nodes)
    threshold = np.array([data.draw(thresholds) for _ in range(3)], dtype=np.int32)
    shapes = find_shapes(TreeBatch(feature, goes_left, threshold))
    single, is_ordered = shapes.single, shapes.is_ordered
    leaf_of_code, reachable = shapes.leaf_of_code, shapes.reachable
    for tree in range(3):
        is_single = len(set(feature[tree].tolist())) == 1
        assert single[tree] == (feature[tree, 0] if is_single else -1)
        assert is_ordered[tree] == (is_single and min(threshold[tree].tolist()) >= 0)
        leaves = []
        for code in range(6):
            node = 0
            for _ in range(depth):
                node = 2 * node + (1 if goes_left[tree, node, code] else 2)
            leaves.append(node - n_nodes)
        if is_single:
            assert leaf_of_code[tree].tolist() == leaves
            open_leaves = set(leaves)
        else:
            assert not leaf_of_code[tree].any()
            has_right = ~goes_left[tree].all(axis=1)
            open_leaves = {leaf for leaf in range(n_nodes + 1) if has_right[_rights(leaf, depth)].all()}
        assert set(np.flatnonzero(reachable[tree]).tolist()) == open_leaves


def _rights(leaf: int, depth: int) -> list[int]:
    """The nodes at which one goes right on the way to a leaf."""
    node, nodes = 0, []
    for level in reversed(range(depth)):
        bit = leaf >> level & 1
        if bit:
            nodes.append(node)
        node = 2 * node + 1 + bit
    return nodes


@pytest.mark.parametrize("depth", range(1, 9))
def test_codes_are_followed_at_every_depth_that_a_plan_may_have(depth: int):
    """Up to the 256 leaves of depth 8, where a code ends is where the walk does."""
    n_nodes, n_codes = 2**depth - 1, 300
    goes_left = np.random.default_rng(depth).integers(0, 2, (2, n_nodes, n_codes)).astype(np.uint8)
    goes_left[:, :, :2] = 0, 1
    nodes = np.zeros((2, n_nodes), dtype=np.int32)
    shapes = find_shapes(TreeBatch(nodes, goes_left, nodes))
    leaf_of_code, reachable = shapes.leaf_of_code, shapes.reachable
    for tree, code in np.ndindex(2, n_codes):
        node = 0
        for _ in range(depth):
            node = 2 * node + (1 if goes_left[tree, node, code] else 2)
        assert leaf_of_code[tree, code] == node - n_nodes
        assert reachable[tree, node - n_nodes]
    assert leaf_of_code[0, :2].tolist() == [n_nodes, 0]
    assert [len(set(row.tolist())) for row in leaf_of_code] == reachable.sum(axis=1).tolist()
