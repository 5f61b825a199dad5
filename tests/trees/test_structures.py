"""Structures: drawn from public randomness alone, the same for ever, and never a split that divides nothing."""

from __future__ import annotations

import hashlib
import inspect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.protocol.queries import TreeBatch
from hedgerow.trees import random_trees as structures
from hedgerow.trees.binning import Grid, build_grid
from hedgerow.trees.random_trees import CutTable, PublicRandom, concatenate, random_tree, random_trees
from tests.builders import make_plan


def draw_tree(grid: Grid, features: list[int], cuts: dict[int, list[int]], depth: int, seed: int) -> TreeBatch:
    return random_tree(PublicRandom(seed, "tree 0"), features, cuts, grid, depth)


@st.composite
def requests(draw: st.DrawFn, grid: Grid) -> tuple[list[int], dict[int, list[int]], int, int]:
    """Features, candidates, a depth and a seed."""
    features = draw(st.lists(st.integers(0, grid.n_features - 1), min_size=1, unique=True))
    cuts = {}
    for feature in features:
        n_cuts = grid.features[feature].n_cells - 1
        chosen = draw(st.sets(st.integers(0, n_cuts - 1), max_size=20)) if n_cuts else set()
        cuts[feature] = [] if grid.features[feature].is_categorical else sorted(chosen)
    return features, cuts, draw(st.integers(1, 6)), draw(st.integers(0, 2**63 - 1))


def test_the_public_stream_never_changes() -> None:
    """A release that drew another stream would call every earlier model's trees forged; nodes would refuse to train."""
    words = PublicRandom(2024, "tree 17")
    drawn = [words.below(2**32) for _ in range(1500)]  # past two refills
    drawn += [words.below_big(10**20) for _ in range(5)] + words.permutation(20) + words.sample(range(50), 7)
    drawn += [words.draw_weighted([1, 0, 10**20, 5]), *(int(words.coin()) for _ in range(64))]
    digest = hashlib.sha256(",".join(map(str, drawn)).encode()).hexdigest()
    assert drawn[:3] == [1360374875, 2544724736, 794252892]
    assert digest == "f131bbf03e71eeb16d531f0f641fea7bf4a3d3754cc1d297eaf1b20d10d8c1c3"


@pytest.mark.parametrize("depth", [1, 4])
def test_central_splits_leave_out_the_outer_quarters_of_what_is_open(depth: int) -> None:
    """Every node's cut lies in the middle half of its path's open cuts, anywhere in it; of few cuts none is lost."""
    numeric = [{"name": name, "type": "numeric", "min": 0.0, "max": 1.0} for name in "ab"]
    grid, cuts = build_grid(make_plan(features=numeric)), list(range(3, 3 * 32, 3))
    seen: dict[tuple[int, int], set[int]] = {}
    table = CutTable.from_cuts({0: cuts, 1: []}, grid)
    for seed in range(300):
        tree = random_trees([PublicRandom(seed, "tree")], [[0, 1]], table, grid, depth, is_central=True)
        alone, usual = (
            random_trees([PublicRandom(seed, "tree")], [[0]], table, grid, depth, is_central=on) for on in (True, False)
        )
        np.testing.assert_array_equal(alone.threshold, usual.threshold)
        stretches = {0: (0, len(cuts))}
        for node in range(2**depth - 1):
            first, end = stretches[node]
            if first == end:
                continue
            place = cuts.index(int(tree.threshold[0, node]))
            assert first + (end - first) // 4 <= place < end - (end - first) // 4
            seen.setdefault((first, end), set()).add(place)
            stretches[2 * node + 1], stretches[2 * node + 2] = (first, place), (place + 1, end)
    assert seen[0, 31] == set(range(7, 24))
    of_few: dict[int, set[int]] = {1: set(), 2: set()}
    for (first, end), places in seen.items():
        of_few.get(end - first, set()).update(place - first for place in places)
    assert of_few == ({1: {0}, 2: {0, 1}} if depth > 1 else {1: set(), 2: set()})


def test_the_stream_is_the_one_that_is_documented() -> None:
    """SHAKE-256 of seed and label, read as little-endian words: what another implementation would write."""
    block = hashlib.shake_256(b"hedgerow public randomness v1|5|x|0").digest(16)
    stream = PublicRandom(5, "x")
    for i in range(2):
        assert stream.below(1000) == int.from_bytes(block[8 * i : 8 * i + 8], "little") * 1000 >> 64


@given(seed=st.integers(0, 2**63 - 1), limit=st.integers(1, 2**32), size=st.integers(0, 60))
def test_draws_stay_in_range(seed: int, limit: int, size: int) -> None:
    """An index beyond its list would crash every party; one short of it would leave a feature out for ever."""
    stream = PublicRandom(seed, "test")
    assert all(0 <= stream.below(limit) < limit for _ in range(20))
    assert sorted(stream.permutation(size)) == list(range(size))
    weights = [0, *[3] * size, 1, 0]
    assert weights[stream.draw_weighted(weights)] > 0


def test_permutations_and_weights_are_even() -> None:
    """Every order of three comes up as often as any other, and weights are followed: chi-square at 1 in a million."""
    stream = PublicRandom(1, "even")
    orders: dict[tuple[int, ...], int] = {}
    for _ in range(6000):
        order = tuple(stream.permutation(3))
        orders[order] = orders.get(order, 0) + 1
    assert len(orders) == 6
    assert sum((count - 1000) ** 2 / 1000 for count in orders.values()) < 35.9  # 5 degrees of freedom
    hits = np.bincount([stream.draw_weighted([1, 2, 0, 5]) for _ in range(8000)], minlength=4)
    assert hits[2] == 0
    assert ((hits - [1000, 2000, 0, 5000])[[0, 1, 3]] ** 2 / [1000, 2000, 5000]).sum() < 27.7  # 2 degrees


def test_streams_of_other_labels_and_seeds_differ() -> None:
    """Two trees of one run, and two runs, must not share their randomness."""
    first = [PublicRandom(0, "a").below(2**32), PublicRandom(0, "b").below(2**32), PublicRandom(1, "a").below(2**32)]
    assert len(set(first)) == 3


@settings(max_examples=60)
@given(data=st.data())
def test_trees_follow_from_their_seed(data: st.DataObject) -> None:
    """The same request gives the same tree, bit by bit, whoever draws it and however often."""
    grid = build_grid(make_plan())
    request = data.draw(requests(grid))
    first, second = draw_tree(grid, *request), draw_tree(grid, *request)
    for name in ("feature", "goes_left", "threshold"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()


@settings(max_examples=150)
@given(data=st.data())
def test_every_split_divides_what_reaches_it(data: st.DataObject) -> None:
    """A split that sends every reachable value to one side would waste a level; then everything goes left instead."""
    grid = build_grid(make_plan())
    features, cuts, depth, seed = data.draw(requests(grid))
    tree = draw_tree(grid, features, cuts, depth, seed)
    assert (tree.n_trees, tree.depth, tree.goes_left.shape[2]) == (1, depth, grid.n_codes)
    reached = {0: {f: np.ones(grid.features[f].n_codes, dtype=bool) for f in features}}
    for node in range(2**depth - 1):
        feature = int(tree.feature[0, node])
        assert feature in features
        cells = grid.features[feature]
        left = tree.goes_left[0, node, : cells.n_codes].astype(bool)
        threshold = int(tree.threshold[0, node])
        values = reached[node][feature].copy()
        if not cells.is_categorical:
            values[cells.missing_code] = False  # missing values follow a coin, whatever the split
        single = len(features) == 1 and cells.is_categorical
        if not left.all() and not single:
            assert (values & left).any() and (values & ~left).any()
        if threshold >= 0 and not left.all():
            assert threshold in cuts[feature]
            assert (left[: cells.n_cells] == (np.arange(cells.n_cells) <= threshold)).all()
        if left.all() and not single:
            assert threshold == grid.n_codes - 1 and tree.goes_left[0, node].all()
        for child, side in ((2 * node + 1, left), (2 * node + 2, ~left)):
            reached[child] = {**reached[node], feature: reached[node][feature] & side}


@pytest.mark.parametrize("n_categories", [2, 3, 9, 40, 250])
@pytest.mark.parametrize("depth", [1, 3, 5])
def test_categories_fill_the_leaves(n_categories: int, depth: int) -> None:
    """Alone in a tree, every category has a leaf of its own when there are enough, and no leaf stays empty if not."""
    categories = [str(i) for i in range(n_categories)]
    plan = make_plan(features=[{"name": "c", "type": "categorical", "categories": categories}])
    grid = build_grid(plan)
    tree = draw_tree(grid, [0], {0: []}, depth, 5)
    leaves = []
    for code in range(grid.n_codes):
        node = 0
        for _ in range(depth):
            node = 2 * node + 2 - int(tree.goes_left[0, node, code])
        leaves.append(node - (2**depth - 1))
    assert len(set(leaves)) == min(2**depth, grid.n_codes)


def test_missing_values_go_to_either_side_evenly() -> None:
    """The side of missing values is a public coin: no look at data can have chosen it, and neither side is favoured."""
    grid = build_grid(make_plan())
    cells = grid.features[3]
    cuts = {3: list(range(cells.n_cells - 1))}
    sides = []
    for seed in range(300):
        tree = draw_tree(grid, [3], cuts, 2, seed)
        sides += [int(tree.goes_left[0, node, cells.missing_code]) for node in range(3)]
    assert abs(sum(sides) - 450) < 5 * 15  # 900 coins, five standard deviations


def test_a_batch_is_its_trees_one_by_one() -> None:
    """Every tree comes from its own stream and features only, whatever is drawn beside it."""
    grid = build_grid(make_plan())
    cuts = {
        f: list(range(0, cells.n_cells - 1, 3)) for f, cells in enumerate(grid.features) if not cells.is_categorical
    }
    everything = list(range(grid.n_features))
    subsets = [[feature] for feature in everything] + [everything, everything[::-1], everything[:2]]
    streams = [PublicRandom(8, f"tree {number}") for number in range(len(subsets))]
    batch = random_trees(streams, subsets, CutTable.from_cuts(cuts, grid), grid, 3)
    for number, features in enumerate(subsets):
        alone = random_tree(PublicRandom(8, f"tree {number}"), features, cuts, grid, 3)
        np.testing.assert_array_equal(batch.feature[number], alone.feature[0])
        np.testing.assert_array_equal(batch.goes_left[number], alone.goes_left[0])
        np.testing.assert_array_equal(batch.threshold[number], alone.threshold[0])


def test_no_structure_is_drawn_from_data() -> None:
    """The functions that draw trees see no records and no sums: only features, cuts, a grid, groups and a stream."""
    names = {"randomness", "cuts", "grid", "depth", "groups"}
    assert set(inspect.signature(random_trees).parameters) == names | {"subsets", "is_central"}
    assert set(inspect.signature(random_tree).parameters) == names | {"features"}
    imported = {name for name, value in vars(structures).items() if inspect.ismodule(value)}
    assert imported == {"np", "hashlib", "struct"}


def test_joined_batches_keep_their_trees() -> None:
    """Trees of several batches, in order."""
    grid = build_grid(make_plan())
    trees = [draw_tree(grid, [0, 3], {0: [1, 2], 3: [5, 100]}, 3, seed) for seed in range(4)]
    joined = concatenate(trees)
    assert joined.n_trees == 4
    for i, tree in enumerate(trees):
        np.testing.assert_array_equal(joined.goes_left[i], tree.goes_left[0])
        np.testing.assert_array_equal(joined.threshold[i], tree.threshold[0])
