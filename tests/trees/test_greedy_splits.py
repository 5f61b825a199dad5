"""Greedy growth: the kernels choose what a slow search over all cuts chooses, to the last bit, and split so."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.losses.registry import build_loss
from hedgerow.losses.tables import Loss
from hedgerow.trees.greedy_trees import Bins, GrowingTrees, SplitRule, Splits, best_cuts
from tests.builders import make_plan

KINDS = [(label, update) for label in ("binary", "multiclass", "regression") for update in ("newton", "averaging")]


@st.composite
def situations(draw: st.DrawFn) -> tuple[GrowingTrees, SplitRule, np.random.Generator]:
    """Trees with some levels of arbitrary splits, over numeric and categorical features."""
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    label, update = draw(st.sampled_from(KINDS))
    loss = build_loss(make_plan(label, {"weight_update": update}))
    rule = SplitRule(
        loss=loss,
        leaf_ridge=draw(st.sampled_from([0.0, 1.5])),
        noise_ridge=draw(st.sampled_from([0.0, 0.3])),
        leaf_clip=draw(st.sampled_from([0.5, 1e5])),
        gradient_noise=draw(st.sampled_from([0.0, 7.0])),
    )
    n_features, n_codes = 5, 12
    is_categorical = random.integers(0, 2, n_features).astype(bool)
    cells = random.integers(1, n_codes, n_features)
    of_code, n_bins = np.zeros((n_features, n_codes), dtype=np.uint16), np.zeros(n_features, dtype=np.int64)
    last_code = np.zeros((n_features, n_codes + 1), dtype=np.int64)
    for feature, n_cells in enumerate(cells):
        cuts = np.flatnonzero(random.integers(0, 2, n_cells - 1)) if n_cells > 1 else np.zeros(0, dtype=np.int64)
        bins = np.arange(n_cells + 1) if is_categorical[feature] else np.searchsorted(cuts, np.arange(n_cells + 1))
        if not is_categorical[feature]:
            bins[n_cells] = len(cuts) + 1
            last_code[feature, : len(cuts)], last_code[feature, len(cuts)] = cuts, n_cells - 1
        n_bins[feature] = bins.max() + 1
        of_code[feature] = n_bins[feature] - 1
        of_code[feature, : n_cells + 1] = bins
    bins_of_all = Bins(of_code, n_bins, last_code[:, : int(n_bins.max())].copy(), is_categorical)
    n_trees, n_slots = draw(st.integers(1, 2)), draw(st.integers(1, n_features))
    features = np.array([random.permutation(n_features)[:n_slots] for _ in range(n_trees)])
    growing = GrowingTrees(features, bins_of_all, n_codes)
    for _ in range(draw(st.integers(0, 2))):
        growing.add_level(best_cuts(growing, *noisy(growing, loss, random), rule))
    return growing, rule, random


def noisy(
    growing: GrowingTrees, loss: Loss, random: np.random.Generator, n_nodes: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Sums of few different values, so that there are ties, and coins."""
    shape = (*growing.alive.shape, loss.n_statistics)
    nodes = n_nodes or shape[1]
    sums = random.integers(-3, 6, (shape[0], nodes, *shape[2:])) * int(loss.scales[0])
    return sums, random.integers(0, 2, shape[:2]).astype(bool)


def worth(rule: SplitRule, sums: list[int], n_releases: int) -> float:
    """The same gain in Python's floats, in the order of the formula."""
    real = [value / float(scale) for value, scale in zip(sums, rule.loss.scales, strict=True)]
    ridge = rule.leaf_ridge + rule.noise_ridge * rule.gradient_noise * math.sqrt(n_releases)
    n_outputs, gain = max(1, rule.loss.n_outputs), 0.0
    if rule.loss.counts_classes:
        for count in real:
            ridge += max(count, 0.0)
        pairs = [(max(count, 0.0), ridge) for count in real]
    else:
        pairs = [(abs(real[k]), real[min(n_outputs + k, len(real) - 1)] + ridge) for k in range(n_outputs)]
    for size, below in pairs:
        value = size / below if below else 0.0
        if not rule.loss.counts_classes:
            value = min(max(value, -rule.leaf_clip), rule.leaf_clip)
        gain += value * (2 * size - below * value)
    return gain


def place_of(rule: SplitRule, sums: list[int]) -> float:
    """What categories are ordered by."""
    real = [value / float(scale) for value, scale in zip(sums, rule.loss.scales, strict=True)]
    if rule.loss.counts_classes:
        top, below = max(real[-1], 0.0), 0.0
        for count in real:
            below += max(count, 0.0)
    else:
        top, below = real[0], max(real[max(1, rule.loss.n_outputs)], 0.0)
    below += rule.leaf_ridge + rule.noise_ridge * rule.gradient_noise
    return top / below if below > 0 else 0.0


def slow_cut(
    growing: GrowingTrees, rule: SplitRule, own: NDArray[np.int64], place: tuple[int, int], missing_left: bool
) -> tuple[int, set[int]] | None:
    """The slot and the bins that go left of one node's best cut, by trying each; None where none is worth anything."""
    tree, node = place
    found, best = None, 0.0
    for slot, feature in enumerate(growing.features[tree]):
        categorical = bool(growing.bins.is_categorical[feature])
        alive = np.flatnonzero(growing.alive[tree, node, slot]).tolist()
        missing = [one for one in alive if not categorical and one == growing.bins.n_bins[feature] - 1]
        values = [one for one in alive if one not in missing]
        if categorical:
            values.sort(key=lambda one: place_of(rule, own[slot, one].tolist()))
        for n_left in range(1, len(values)):
            left = values[:n_left] + (missing if missing_left else [])
            right = [one for one in alive if one not in left]
            parts = [(own[slot, side].sum(axis=0).tolist(), len(side)) for side in (left, right, alive)]
            score = worth(rule, *parts[0]) + worth(rule, *parts[1]) - worth(rule, *parts[2])
            if score > best:
                best, found = score, (slot, set(left))
    return found


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_best_cut_is_the_one_that_a_slow_search_finds(data: st.DataObject) -> None:
    """Every kind of statistics, ties, missing values to either side, one histogram for all nodes: the same choice."""
    growing, rule, random = data.draw(situations())
    n_nodes = data.draw(st.sampled_from([None, 1]))
    sums, coins = noisy(growing, rule.loss, random, n_nodes)
    splits = best_cuts(growing, sums, coins, rule)
    for tree, node in np.ndindex(*coins.shape):
        own = sums[tree, node if n_nodes is None else 0]
        wanted = slow_cut(growing, rule, own, (tree, node), bool(coins[tree, node]))
        assert bool(splits.exists[tree, node]) == (wanted is not None)
        if wanted is None:
            assert splits.left[tree, node].all() and splits.slot[tree, node] == 0
            continue
        slot, left = wanted
        assert splits.slot[tree, node] == slot
        assert set(np.flatnonzero(splits.left[tree, node]).tolist()) == left


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_level_sends_every_code_where_its_bin_goes(data: st.DataObject) -> None:
    """Children divide the alive bins of the feature asked for; codes, thresholds and bins say the same."""
    growing, rule, random = data.draw(situations())
    sums, coins = noisy(growing, rule.loss, random)
    before, splits = growing.alive.copy(), best_cuts(growing, sums, coins, rule)
    growing.add_level(splits)
    n_before = before.shape[1] - 1
    trees, bins = growing.trees, growing.bins
    for tree, node in np.ndindex(*coins.shape):
        left, right = growing.alive[tree, 2 * node], growing.alive[tree, 2 * node + 1]
        slot, place = splits.slot[tree, node], n_before + node
        feature = int(growing.features[tree, slot])
        assert trees.feature[tree, place] == feature
        if not splits.exists[tree, node]:
            assert (left == before[tree, node]).all() and not right.any() and trees.goes_left[tree, place].all()
            continue
        others = np.arange(before.shape[2]) != slot
        assert (left[others] == before[tree, node, others]).all() and (right[others] == left[others]).all()
        assert (left[slot] ^ right[slot] == before[tree, node, slot]).all() and left[slot].any() and right[slot].any()
        check_codes(growing, splits, (tree, node), trees.goes_left[tree, place], int(trees.threshold[tree, place]))
        assert (trees.threshold[tree, place] == -1) == bool(bins.is_categorical[feature])


def check_codes(
    growing: GrowingTrees, splits: Splits, place: tuple[int, int], goes_left: NDArray[Any], threshold: int
) -> None:
    """Codes of bins that the node holds go where these go; a numeric value by the threshold, wherever it comes from."""
    feature = int(growing.features[place[0], splits.slot[place]])
    categorical, n_bins = bool(growing.bins.is_categorical[feature]), int(growing.bins.n_bins[feature])
    children = growing.alive[place[0], 2 * place[1] : 2 * place[1] + 2, splits.slot[place]]
    for code, one in enumerate(growing.bins.of_code[feature].tolist()):
        if children[:, one].any():
            assert bool(goes_left[code]) == bool(children[0, one])
        if not categorical and one < n_bins - 1:
            assert bool(goes_left[code]) == (code <= threshold)


def test_gains_of_many_are_gains_of_each() -> None:
    """The rule scores arrays of any shape, with the number of releases spread over them."""
    loss = build_loss(make_plan())
    rule = SplitRule(loss, 1.0, 0.5, 2.0, 3.0)
    sums = np.random.default_rng(0).integers(-(10**6), 10**6, (2, 3, 4, 2))
    n_releases = np.arange(1, 5)
    gains = rule.gain(sums, n_releases)
    for place in np.ndindex(2, 3, 4):
        assert gains[place] == worth(rule, sums[place].tolist(), int(n_releases[place[2]]))
