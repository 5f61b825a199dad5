"""Kernels: routing, updating and summing equal a slow walk from the root, record by record."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.losses.registry import build_loss
from hedgerow.losses.tables import SCORE_UNIT, STEP_BITS, STEPS, Loss
from hedgerow.protocol.queries import FittedTrees, Purpose, TreeBatch
from hedgerow.trees import binning
from hedgerow.trees import leaf_sums as leaf_sums_module
from hedgerow.trees.histograms import Histogram, histogram
from hedgerow.trees.leaf_sums import BLOCK, SPAN, SiteRecords, _update_and_sum, apply_update, leaf_sums
from hedgerow.trees.random_trees import concatenate
from tests.builders import LABELS, make_data, make_plan, query_of, random_fitted, random_trees, train

FEW = leaf_sums_module.FEW_TO_SUM


@pytest.fixture(params=[(0, 0), (FEW, 0), (FEW, FEW)], ids=["kernel", "tables", "walk"], scope="module", autouse=True)
def most_by_numpy(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test by the kernel, and by the two ways that stand in for it where records are few."""
    with pytest.MonkeyPatch.context() as patch:
        for name, most in zip(("FEW_TO_SUM", "FEW_TO_WALK"), request.param, strict=True):
            patch.setattr(leaf_sums_module, name, most)
        yield


AROUND_BLOCKS = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK - 5]


def walk(trees: TreeBatch, tree: int, codes: NDArray[Any]) -> int:
    """The leaf of one record, node after node from the root."""
    node = 0
    for _ in range(trees.depth):
        left = trees.goes_left[tree, node, int(codes[trees.feature[tree, node]])]
        node = 2 * node + 1 if left else 2 * node + 2
    return node - (trees.n_leaves - 1)


def statistics_of(loss: Loss, label: int, scores: list[int]) -> list[int]:
    """One record's statistics in Python's integers; without the softmax guard, which does not act here."""
    if loss.kind in ("table", "hazard"):
        n_steps, score = loss.table.shape[1], scores[0] if scores else 0
        # Of an odd number of steps the nearest one, and between two the one further from 0.
        nearest = (abs(score) + 2 ** (STEP_BITS - 1) >> STEP_BITS) * (-1 if score < 0 else 1)
        step = (nearest if n_steps % 2 else score >> STEP_BITS) + STEPS // 2
        return [int(x) for x in loss.table[label, min(max(step, 0), n_steps - 1)]]
    if loss.kind == "squared":
        residual = (scores[0] if scores else 0) - label
        unit, clip = (int(loss.scales[0]), loss.clip) if loss.sides is None else loss.sides[residual < 0]
        size = min(abs(residual) * unit // SCORE_UNIT, clip)
        return [size if residual >= 0 else -size, loss.constant]
    if loss.kind == "curve":
        step = min(max((scores[0] >> STEP_BITS) + STEPS // 2, 0), STEPS - 1)
        residual = int(loss.curve[0, step]) - label
        hessian = int(loss.curve[1, step])
        room = min(loss.clip, math.isqrt(loss.norm_squared - hessian**2))
        size = min(abs(residual) * int(loss.scales[0]) // SCORE_UNIT, room)
        return [size if residual >= 0 else -size, hessian]
    unit, newton = int(loss.scales[0]), loss.constant == 0
    steps = [min((max(scores) - score) >> STEP_BITS, 4095) for score in scores]
    weights = [round(2**30 * float(np.exp(-step / 256))) for step in steps]
    shares = [weight * unit // sum(weights) for weight in weights]
    gradients = list(shares)
    gradients[label] = -(sum(shares) - shares[label])
    hessians = [share * (unit - share) // unit * int(loss.scales[-1]) // unit for share in shares]
    own = gradients + (hessians if newton else [loss.constant])
    weight = int(loss.class_weights[label]) if len(loss.class_weights) else 2**16
    return [int(math.copysign(abs(value) * weight // 2**16, value)) for value in own]


def expected(
    records: SiteRecords, trees: TreeBatch, loss: Loss, update: FittedTrees | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sums per tree and leaf, and the scores afterwards; a record at a time."""
    sums = np.zeros((trees.n_trees, trees.n_leaves, loss.n_statistics), dtype=np.int64)
    scores = records.scores.astype(np.int64)
    for i in range(records.n_records):
        codes = records.codes[:, i]
        if update is not None:
            for tree in range(update.trees.n_trees):
                scores[:, i] += update.values[tree, walk(update.trees, tree, codes)]
        own = statistics_of(loss, int(records.labels[i]), scores[:, i].tolist())
        for tree in range(trees.n_trees):
            sums[tree, walk(trees, tree, codes)] += own
    return sums, scores


def make_records(
    random: np.random.Generator, n: int, n_codes: list[int], loss: Loss, dtype: type, spread: int = 2**17
) -> SiteRecords:
    codes = np.stack([random.integers(0, own, n) for own in n_codes]).astype(dtype)
    n_classes = max(2, loss.n_outputs, len(loss.table))
    low, high = (-SCORE_UNIT, SCORE_UNIT) if loss.kind in ("squared", "curve") else (0, n_classes)
    labels = random.integers(low, high, n)
    scores = random.integers(-spread, spread + 1, (loss.n_outputs, n)).astype(np.int32)
    return SiteRecords(codes, labels.astype(np.int32), scores)


def check(records: SiteRecords, trees: TreeBatch, loss: Loss, update: FittedTrees | None, n_threads: int) -> None:
    sums, scores = expected(records, trees, loss, update)
    got = leaf_sums(records, query_of(trees, loss, update), loss, n_threads)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got.reshape(sums.shape), sums)
    np.testing.assert_array_equal(records.scores, scores)


@settings(max_examples=80)
@given(data=st.data())
def test_sums_equal_a_slow_walk(data: st.DataObject) -> None:
    """Any trees (ordered, sets, missing to either side, features of any width), any loss, depths before and after.

    Losses are those of all labels, of classes that are weighed, and of two sides.
    """
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    wide = data.draw(st.booleans())
    n_codes = data.draw(st.lists(st.integers(2, 700 if wide else 256), min_size=1, max_size=4))
    label = data.draw(st.sampled_from(sorted(LABELS)))
    update_kind = data.draw(st.sampled_from(["newton", "gradient", "averaging"]))
    changes: dict[str, Any] = {"model": {"weight_update": update_kind}}
    if update_kind == "newton" and label in ("binary", "multiclass"):
        n_classes = len(LABELS[label]["classes"])
        changes["model"]["class_weights"] = data.draw(st.sampled_from([[], [1.0, 9.5, 0.3, 4.0][:n_classes]]))
    if update_kind == "newton" and label == "regression":
        named = [{"name": "quantile", "tau": 0.9}, {"name": "expectile", "tau": 0.05}, {"name": "huber"}, None]
        changes["loss"] = data.draw(st.sampled_from(named))
    loss = build_loss(make_plan(label, **{key: value for key, value in changes.items() if value}))
    one_feature = data.draw(st.booleans())
    n_trees, depth = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
    trees = random_trees(random, n_trees, depth, n_codes, one_feature)
    update = None
    if loss.n_outputs and data.draw(st.booleans()):
        # The earlier trees may be deeper or flatter, more or fewer.
        old = random_trees(random, data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6)), n_codes)
        update = random_fitted(random, old, loss.n_outputs)
    records = make_records(random, data.draw(st.integers(0, 60)), n_codes, loss, np.uint16 if wide else np.uint8)
    check(records, trees, loss, update, data.draw(st.integers(1, 3)))


@pytest.mark.parametrize("depth", range(1, 9))
@pytest.mark.parametrize("one_feature", [False, True])
def test_every_depth(depth: int, one_feature: bool) -> None:
    """Up to depth 8, where leaf numbers fill a byte, trees on one feature and on several."""
    random = np.random.default_rng(depth)
    loss = build_loss(make_plan())
    trees = random_trees(random, 2, depth, [256, 7, 40], one_feature)
    old = random_trees(random, 2, 9 - depth, [256, 7, 40], one_feature)
    records = make_records(random, 400, [256, 7, 40], loss, np.uint8)
    check(records, trees, loss, random_fitted(random, old, 1), 1)


@pytest.mark.parametrize("n", AROUND_BLOCKS)
@pytest.mark.parametrize("n_threads", [1, 2, 3, 7])
def test_block_and_thread_borders(n: int, n_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No record is lost, seen twice or updated twice where blocks or threads meet, also with no record at all."""
    monkeypatch.setattr(binning, "MIN_RECORDS_PER_THREAD", 0)
    random = np.random.default_rng(n)
    loss = build_loss(make_plan())
    trees = random_trees(random, 2, 3, [30, 9])
    update = random_fitted(random, random_trees(random, 2, 2, [30, 9]), 1)
    records = make_records(random, n, [30, 9], loss, np.uint8)
    check(records, trees, loss, update, n_threads)


@pytest.mark.parametrize("label", ["binary", "multiclass", "regression", "count", "survival"])
@pytest.mark.parametrize("is_extreme", [False, True])
def test_sums_by_code_are_those_by_record(label: str, is_extreme: bool) -> None:
    """Trees of one feature are summed by code where records are many, and nothing is lost or spills over.

    Parts with fewer records than codes are summed record by record. In the extreme all records are of one code, with
    the largest statistics that there are, and more than are summed before words are unpacked.
    """
    random = np.random.default_rng(7)
    loss = build_loss(make_plan(label))
    sizes, n, part = [200, 256], SPAN + BLOCK + 7, 199
    trees = concatenate([random_trees(random, 2, 3, sizes, one_feature) for one_feature in (True, False)] * 2)
    old = concatenate([random_trees(random, 2, 4, sizes, one_feature) for one_feature in (False, True)] * 2)
    update = random_fitted(random, old, loss.n_outputs)
    records = make_records(random, n, [1, 1] if is_extreme else sizes, loss, np.uint8)
    if is_extreme:
        records.labels[:] = -SCORE_UNIT if loss.kind == "squared" else 1
        records.scores[:] = np.array([[2**20], [-(2**20)], [0], [0]], dtype=np.int32)[: loss.n_outputs]
    parts = [
        SiteRecords(
            records.codes[:, first : first + part].copy(),
            records.labels[first : first + part],
            records.scores[:, first : first + part].copy(),
        )
        for first in range(0, n, part)
    ]
    query = query_of(trees, loss, update)
    by_record = np.sum([leaf_sums(own, query, loss) for own in parts], axis=0)
    np.testing.assert_array_equal(leaf_sums(records, query, loss), by_record)
    np.testing.assert_array_equal(records.scores, np.concatenate([own.scores for own in parts], axis=1))


def test_an_update_alone_changes_scores_exactly_once() -> None:
    """`apply_update` and an update inside a query do the same to the scores."""
    random = np.random.default_rng(0)
    loss = build_loss(make_plan("multiclass"))
    trees = random_trees(random, 3, 4, [50, 6])
    update = random_fitted(random, trees, 4)
    records = make_records(random, 5000, [50, 6], loss, np.uint8)
    twin = SiteRecords(records.codes, records.labels, records.scores.copy())
    apply_update(records, update)
    leaf_sums(twin, query_of(trees, loss, update), loss, 2)
    np.testing.assert_array_equal(records.scores, twin.scores)


@pytest.mark.parametrize("extreme", [2**15 - 1, -(2**15) + 1])
def test_a_block_of_the_largest_statistics_does_not_spill(extreme: int) -> None:
    """Two sums share a 64-bit word within a block: even with all records in one leaf neither touches the other."""
    plain = build_loss(make_plan())
    for pair in ([extreme, extreme], [extreme, -extreme], [0, extreme], [extreme, 0]):
        table = np.empty((2, STEPS, 2), dtype=np.int16)
        table[:] = pair
        loss = Loss("table", 1, 2, plain.scales, table, 2 * extreme**2)
        n = 3 * BLOCK + 17
        trees = TreeBatch(np.zeros((1, 1), np.int32), np.ones((1, 1, 4), np.uint8), np.full((1, 1), 3, np.int32))
        records = SiteRecords(np.zeros((1, n), np.uint8), np.zeros(n, np.int32), np.zeros((1, n), np.int32))
        sums = leaf_sums(records, query_of(trees, loss), loss, 1).reshape(2, 2)
        assert sums.tolist() == [[n * pair[0], n * pair[1]], [0, 0]]


def test_sums_do_not_depend_on_the_order_of_records() -> None:
    """Integers add up alike in any order: the ground on which partition invariance stands."""
    random = np.random.default_rng(8)
    loss = build_loss(make_plan("regression"))
    trees = random_trees(random, 3, 4, [50, 6])
    records = make_records(random, 5000, [50, 6], loss, np.uint8)
    order = random.permutation(5000)
    shuffled = SiteRecords(
        np.ascontiguousarray(records.codes[:, order]), records.labels[order], records.scores[:, order].copy()
    )
    query = query_of(trees, loss)
    np.testing.assert_array_equal(leaf_sums(records, query, loss, 1), leaf_sums(shuffled, query, loss, 1))


@settings(max_examples=40)
@given(data=st.data())
def test_histograms_equal_a_slow_count(data: st.DataObject) -> None:
    """Per feature and bin, the last statistic of each record that falls there, after the update was added."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    wide = data.draw(st.booleans())
    n_codes = data.draw(st.lists(st.integers(2, 700 if wide else 256), min_size=1, max_size=4))
    label = data.draw(st.sampled_from(sorted(LABELS)))
    weight_update = data.draw(st.sampled_from(["newton", "gradient"]))
    loss = build_loss(make_plan(label, model={"weight_update": weight_update}))
    update = random_fitted(random, random_trees(random, 2, 3, n_codes), loss.n_outputs)
    features = tuple(random.permutation(len(n_codes))[: data.draw(st.integers(1, len(n_codes)))].tolist())
    n_bins = tuple(int(random.integers(1, n_codes[f] + 1)) for f in features)
    bins = tuple(random.integers(0, k, n_codes[f]).astype(np.uint16) for f, k in zip(features, n_bins, strict=True))
    query = Histogram(
        purpose=Purpose(0, "Histogram", "test"), length=sum(n_bins), bound=loss.bound(), sensitivity_squared=1,
        noise_multiplier=1.0, update=update, features=features, bin_of_code=bins, n_bins=n_bins, score_bound=0,
    )  # fmt: skip
    n = data.draw(st.sampled_from([0, 1, 50, BLOCK + 1]))
    records = make_records(random, n, n_codes, loss, np.uint16 if wide else np.uint8)
    twin = SiteRecords(records.codes, records.labels, records.scores.copy())
    got = histogram(records, query, loss)
    wanted, begin = np.zeros(sum(n_bins), dtype=np.int64), np.concatenate([[0], np.cumsum(n_bins)])
    apply_update(twin, update)
    np.testing.assert_array_equal(records.scores, twin.scores)
    for i in range(n):
        hessian = statistics_of(loss, int(twin.labels[i]), twin.scores[:, i].tolist())[-1]
        for k, feature in enumerate(features):
            wanted[begin[k] + bins[k][records.codes[feature, i]]] += hessian
    np.testing.assert_array_equal(got, wanted)


def test_what_is_mapped_from_a_file_compiles_nothing_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that share a large model and its rows map them read only; predictions stay and come at once."""
    monkeypatch.setattr(binning, "FEW_TO_ENCODE", 0)
    monkeypatch.setattr(leaf_sums_module, "FEW_TO_SUM", 0)
    plan = make_plan()
    data = make_data(plan, 50, 1)
    ensemble = train(plan, [data]).ensemble
    expected = ensemble.scores(data.codes)
    rows = np.linspace(-3, 3, 40).reshape(20, 2)
    grid = binning.Grid(tuple(binning.FeatureGrid(np.array([-1, 0, 2], dtype=np.float32)) for _ in range(2)))
    bounds = np.array([[-3, -3], [3, 3]], dtype=np.float32)
    codes, _ = grid.encode_and_count(rows, bounds)
    compiled = list(_update_and_sum.signatures), list(binning._encode_rows.signatures)
    trees = ensemble.fitted.trees
    for array in (rows, trees.feature, trees.goes_left, trees.threshold, ensemble.fitted.values):
        array.flags.writeable = False
    assert (ensemble.scores(data.codes) == expected).all()
    assert (grid.encode_and_count(rows, bounds)[0] == codes).all()
    assert (list(_update_and_sum.signatures), list(binning._encode_rows.signatures)) == compiled
