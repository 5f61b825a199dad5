"""Histograms of pairs of features: the same sums as one feature at a time, and as a slow walk over records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.client.node import Node
from hedgerow.losses.registry import build_loss
from hedgerow.losses.tables import Loss
from hedgerow.methods.registry import resolve
from hedgerow.protocol.queries import Purpose, TreeBatch
from hedgerow.trees import histograms as paired_bins
from hedgerow.trees.histograms import NodeHistograms, PairedBinsCache, node_histograms
from hedgerow.trees.leaf_sums import SPAN, SiteRecords
from tests.builders import contributions, make_data, make_plan, random_trees, take

N_CODES = 7


def make_query(random: np.random.Generator, n_slots: int, trees: TreeBatch, loss: Loss) -> NodeHistograms:
    """Any bins and any features, the same ones for all trees of the batch; a feature may occur twice."""
    n_features = 6
    n_bins = random.integers(1, 5, n_features)
    bin_of_code = random.integers(0, n_bins[:, None], (n_features, N_CODES)).astype(np.uint16)
    features = np.tile(random.integers(0, n_features, n_slots), (trees.n_trees, 1))
    length = int(n_bins[features].sum()) * trees.n_leaves * loss.n_statistics
    return NodeHistograms(
        purpose=Purpose(0, "NodeHistograms", "test"), length=length, bound=1, sensitivity_squared=1,
        noise_multiplier=1.0, trees=trees, features=features, bin_of_code=bin_of_code, n_bins=n_bins, score_bound=0,
    )  # fmt: skip


def make_records(random: np.random.Generator, n: int, loss: Loss) -> SiteRecords:
    labels = random.integers(0, 2, n).astype(np.int32)
    scores = random.integers(-(2**17), 2**17, (loss.n_outputs, n)).astype(np.int32)
    return SiteRecords(random.integers(0, N_CODES, (6, n)).astype(np.uint8), labels, scores)


def make_loss(label: str, update: str) -> Loss:
    return build_loss(make_plan(label, {"weight_update": update}), joint_clip=None)


def slow_sums(records: SiteRecords, query: NodeHistograms, loss: Loss) -> NDArray[np.int64]:
    """Record by record from the root, in the order that the query's contract states."""
    entries: list[int] = []
    statistics = contributions(loss, records.labels, records.scores)
    for tree in range(query.trees.n_trees):
        nodes = []
        for record in range(records.n_records):
            place = 0
            for _ in range(query.trees.depth):
                code = records.codes[query.trees.feature[tree, place], record]
                place = 2 * place + 2 - int(query.trees.goes_left[tree, place, code])
            nodes.append(place - (query.trees.n_leaves - 1))
        for node in range(query.trees.n_leaves):
            for feature in query.features[tree]:
                bins = query.bin_of_code[feature, records.codes[feature]]
                for one in range(query.n_bins[feature]):
                    entries += statistics[(np.array(nodes) == node) & (bins == one)].sum(axis=0).tolist()
    return np.array(entries, dtype=np.int64)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6), n_slots=st.integers(1, 5), depth=st.integers(0, 2), n_trees=st.integers(1, 3),
    kind=st.sampled_from([("binary", "newton"), ("binary", "averaging"), ("multiclass", "newton")]),
)  # fmt: skip
def test_sums_of_pairs_equal_a_slow_walk(
    seed: int, n_slots: int, depth: int, n_trees: int, kind: tuple[str, str]
) -> None:
    """Even and odd numbers of features, a feature paired with itself, every depth, and several trees at once."""
    random = np.random.default_rng(seed)
    loss = make_loss(*kind)
    trees = random_trees(random, n_trees, depth, [N_CODES] * 6)
    query, records, pairs = make_query(random, n_slots, trees, loss), make_records(random, 300, loss), PairedBinsCache()
    paired = node_histograms(records, query, loss, 1, pairs)
    assert pairs.pair_bins(records.codes, query, 1) is not None  # that is what was summed over
    assert (paired == slow_sums(records, query, loss)).all()
    assert (paired == node_histograms(records, query, loss)).all()


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_longest_sums_do_not_spill_over(n_threads: int, sign: int) -> None:
    """Two statistics share a word: records at the bound, all of one sign and in one cell, span after span."""
    random, loss = np.random.default_rng(0), make_loss("binary", "newton")
    n = 2 * SPAN + 5
    records = SiteRecords(
        np.zeros((6, n), dtype=np.uint8),
        np.full(n, 0 if sign > 0 else 1, dtype=np.int32),
        np.full((1, n), sign * 2**24, dtype=np.int32),
    )
    query = make_query(random, 3, random_trees(random, 1, 0, [N_CODES] * 6), loss)
    one = contributions(loss, records.labels[:1], records.scores[:, :1])[0]
    assert abs(int(one[0])) > 2**13 and int(one[0]) * sign > 0
    for pairs in (None, PairedBinsCache()):
        sums = node_histograms(records, query, loss, n_threads, pairs).reshape(-1, 2)
        full = sums[sums[:, 0] != 0]
        assert (full == one.astype(np.int64) * n).all() and len(full) == 3


def test_what_is_kept_is_only_used_for_what_it_was_made_of() -> None:
    """Other records, features or bins are looked up again; the same ones, in new arrays, are not."""
    random, loss = np.random.default_rng(1), make_loss("binary", "newton")
    trees = random_trees(random, 1, 1, [N_CODES] * 6)
    query, records, pairs = make_query(random, 4, trees, loss), make_records(random, 300, loss), PairedBinsCache()
    kept = pairs.pair_bins(records.codes, query, 1)
    copied = replace(query, features=query.features.copy(), bin_of_code=query.bin_of_code.copy())
    assert pairs.pair_bins(records.codes, copied, 1) is kept
    # Changed in place as well: what is kept does not follow.
    query.bin_of_code[query.features[0, 0]] = 0
    others = [
        (records, query),
        (records, replace(copied, features=copied.features[:, ::-1].copy())),
        (make_records(random, 300, loss), copied),
    ]
    for other, question in others:
        assert (node_histograms(other, question, loss, 1, pairs) == slow_sums(other, question, loss)).all()


def test_pairs_are_left_alone_where_they_do_not_pay() -> None:
    """Trees with features of their own, and cells that outnumber the records: one feature at a time."""
    random, loss = np.random.default_rng(2), make_loss("binary", "newton")
    query = make_query(random, 4, random_trees(random, 2, 1, [N_CODES] * 6), loss)
    few, many = (make_records(random, n, loss) for n in (3, 300))
    assert PairedBinsCache().pair_bins(many.codes, query, 1) is not None
    assert PairedBinsCache().pair_bins(few.codes, query, 1) is None
    query.features[1] = (query.features[0] + 1) % 6
    assert PairedBinsCache().pair_bins(many.codes, query, 1) is None


def test_a_large_batch_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells outnumber bins, so a vector of moderate length could need many times its memory, once for each thread."""
    random, loss = np.random.default_rng(4), make_loss("multiclass", "newton")
    query = make_query(random, 4, random_trees(random, 3, 1, [N_CODES] * 6), loss)
    records, bins = make_records(random, 300, loss), query.n_bins[query.features[0]]
    n_cells = int(bins[0] * bins[1] + bins[2] * bins[3])
    monkeypatch.setattr(paired_bins, "MAX_STATISTICS", 3 * 2 * n_cells * loss.n_statistics)
    assert PairedBinsCache().pair_bins(records.codes, query, 1) is not None
    assert PairedBinsCache().pair_bins(records.codes, query, 2) is None
    monkeypatch.setattr(paired_bins, "MAX_STATISTICS", 3 * 2 * n_cells * loss.n_statistics - 1)
    pairs = PairedBinsCache()
    assert pairs.pair_bins(records.codes, query, 1) is None
    assert (node_histograms(records, query, loss, 1, pairs) == slow_sums(records, query, loss)).all()


def test_rows_that_arrive_are_in_the_next_histogram() -> None:
    """A node's cells are those of the records that it has now."""
    model: dict[str, Any] = {"split_method": "hist", "interaction_size": "all", "n_candidates": 2}
    plan = make_plan(model=model)
    early, late, every = (make_data(plan, n, 5) for n in (400, 250, 650))
    every = take(every, np.arange(650))
    every.codes[:] = np.concatenate([early.codes, late.codes], axis=1)
    every.labels[:] = np.concatenate([early.labels, late.labels])
    own = resolve(plan)
    loss, random = own.loss(plan), np.random.default_rng(3)
    n_codes = [int(row.max()) + 1 for row in every.codes]
    n_bins = np.full(4, 2)
    query = NodeHistograms(
        purpose=Purpose(0, "NodeHistograms", "test"), length=4 * 2 * loss.n_statistics, bound=1,
        sensitivity_squared=1, noise_multiplier=1.0, trees=random_trees(random, 1, 0, n_codes),
        features=np.arange(4)[None], bin_of_code=random.integers(0, 2, (4, max(n_codes))).astype(np.uint16),
        n_bins=n_bins, score_bound=0,
    )  # fmt: skip
    node, whole = Node("one", early, plan, own), Node("all", every, plan, own)
    before = node.answer(query)
    node.arrive(late)
    assert (node.answer(query) == whole.answer(query)).all() and (before != whole.answer(query)).any()
