# SPDX-License-Identifier: Apache-2.0
"""Sums of statistics over the leaves of trees, in which most rounds spend their time.

One pass over the records adds the last trees' values to the scores and sums the statistics over the leaves of the next
trees. All of it is integers, so results do not depend on how records are divided among threads, blocks or sites.

Records are visited in blocks that stay in the first-level cache. Within a block, routing goes bottom-up over the nodes
of a tree rather than top-down over each record. For every node, one comparison per record decides whether the answer of
the left or the right child is kept. That takes 2**d - 1 comparisons instead of d for a walk. But they are branch-free
comparisons of adjacent bytes, and a processor does 16 to 64 of them at a time:

    reached[node] = reached[right child] + half    where the code of the node's feature goes right
                    reached[left child]            elsewhere;  half = number of leaves below the left child

A tree of one feature is a table by code, and so are all the trees of that feature together. So their records are gone
through once for each feature instead of twice for each tree: to update, values are added up by code before. To sum, the
records are summed by code, and codes by leaf after. Both are sums of integers, so no bit depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from hedgerow.losses.kernels import (
    PackedLoss,
    find_statistics,
    pack_loss,
    unpack,
    words_for_block,
    write_block_statistics,
)
from hedgerow.losses.survival import Baseline, with_baseline
from hedgerow.losses.tables import RECORD_NORM, Loss, double_residuals
from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import FittedTrees, IntVector, Query, TreeBatch
from hedgerow.trees.binning import CodeArray, Grid, build_grid, in_threads
from hedgerow.trees.plausibility import PartitionSums, Reals, ReleaseChecks, SumFacts
from hedgerow.trees.random_trees import SMALL_CODES, SMALL_SET, find_shapes, intervals

BLOCK = 2048
"""Records per block: routing a tree of depth 4 then needs 32 kB."""
REPLICAS = 4
"""Copies of sums: consecutive records of one leaf, or of one bin, then do not wait for each other."""
FEW_TO_SUM = 8192
"""Up to this many records numpy takes a fraction of a millisecond a tree; compiling the kernel takes nine seconds."""
FEW_TO_WALK = 64
"""Up to this many records a walk down all trees takes less time than their tables."""
SPAN = 32 * BLOCK
"""Most records whose packed statistics are added up before they are unpacked; see `losses.kernels.unpack`."""


class SiteRecords(NamedTuple):
    """The rows of one site as the kernels see them.

    Attributes:
        codes: uint8 or uint16 [n_features, n].
        labels: int32 [n]: the class index, or a regression's label scaled to [-1, 1] in units of 2**-16.
        scores: int32 [n_outputs, n]; the kernels update it in place.
    """

    codes: CodeArray
    labels: NDArray[np.int32]
    scores: NDArray[np.int32]

    @property
    def n_records(self) -> int:
        return int(self.codes.shape[1])

    def only(self, chosen: NDArray[np.bool_]) -> SiteRecords:
        """Return the records for which `chosen`, bool [n], is true."""
        rows = np.flatnonzero(chosen)
        codes, scores = np.ascontiguousarray(self.codes[:, rows]), np.ascontiguousarray(self.scores[:, rows])
        return SiteRecords(codes, self.labels[rows], scores)


@dataclass(eq=False)
class ScoredSite:
    """A site's records with their scores, from which it answers queries.

    Attributes:
        plan: of the run.
        records: its rows, with their scores under the model so far.
        n_threads: threads to sum with.
        new_edges: edges by feature, of those that were cut again; `records` have the codes of these edges.
        kept: values that kinds of queries keep from one answer to the next, each under its own name; None for a
            sample, which serves one answer only.
    """

    plan: Plan
    records: SiteRecords
    n_threads: int = 1
    new_edges: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)
    kept: dict[str, Any] | None = field(default_factory=dict)

    @cached_property
    def grid(self) -> Grid:
        """The grid of the plan, before any feature was cut again."""
        return build_grid(self.plan)

    def take_in(self, update: FittedTrees | None) -> None:
        """Add fitted trees to the scores, in place."""
        if update is not None:
            apply_update(self.records, update, self.n_threads)


@dataclass(eq=False, kw_only=True)
class TrainingSite(ScoredSite):
    """A site in training, with its losses and its sampler.

    Attributes:
        loss: whose statistics trees ask for.
        linear_loss: whose gradients linear models ask for.
        draw: draws a sample: bool [n], each record with a chance of threshold / SAMPLING_STEPS; its arguments are
            the threshold, the number of records and the purpose.
    """

    loss: Loss
    linear_loss: Loss
    draw: Callable[[int, int, str], NDArray[np.bool_]]

    def draw_sample(self, threshold: int, query: Query) -> NDArray[np.bool_]:
        """Draw a sample of the records for a query: bool [n]."""
        return self.draw(threshold, self.records.n_records, str(query.purpose))

    def only(self, chosen: NDArray[np.bool_]) -> TrainingSite:
        """Return this site with the records for which `chosen`, bool [n], is true, for one query."""
        return replace(self, records=self.records.only(chosen), kept=None)


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordCounts(Query):
    """Numbers of records of each kind, with 2**14 to a record; each record is in one entry."""

    def count(self, kinds: NDArray[np.integer[Any]]) -> IntVector:
        """Return the counts of records by kind, with 2**14 to a record: int64 [length].

        Args:
            kinds: integers [n], the kind of each record.
        """
        return np.bincount(kinds, minlength=self.length).astype(np.int64) * RECORD_NORM

    def faults(self, released: Reals, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        reach = facts.reach(1)
        if (released < -reach).any() or (released > facts.n_rows * RECORD_NORM + reach).any():
            yield "a number of records is out of range"


@dataclass(frozen=True, kw_only=True, eq=False)
class LeafSums(PartitionSums):
    """Sums of the loss's statistics per tree and leaf: int64 [B, n_leaves, n_statistics], flattened.

    Attributes:
        doublings: see `hedgerow.losses.tables.double_residuals`.
        baseline: see `hedgerow.losses.survival.with_baseline`; only times to an event have one.
    """

    doublings: int = 0
    baseline: Baseline = ()

    def loss_of(self, loss: Loss) -> Loss:
        return with_baseline(loss, self.baseline) if self.baseline else double_residuals(loss, self.doublings)

    def answer(self, site: TrainingSite) -> IntVector:
        return leaf_sums(site.records, self, self.loss_of(site.loss), site.n_threads)

    def answer_each(self, site: TrainingSite, group: NDArray[np.intp]) -> IntVector:
        """Return the sums of each group of a site's rows: int64 [n_groups, length].

        The update has to be in the scores already. Works without a kernel, since the rows of a group are few.

        Args:
            group: [n], the group of each row, ascending from 0.
        """
        statistics = find_statistics(pack_loss(self.loss_of(site.loss)), site.records.labels, site.records.scores)
        n_groups, n_trees, n_leaves = int(group[-1]) + 1, self.trees.n_trees, self.trees.n_leaves
        sums = np.zeros((n_groups * n_trees * n_leaves, len(statistics)), dtype=np.int64)
        for tree, leaves in enumerate(_route_few(site.records.codes, self.trees)):
            np.add.at(sums, (group * n_trees + tree) * n_leaves + leaves, statistics.T)
        return sums.reshape(n_groups, -1)

    def totals(self, entries: Reals) -> tuple[Reals, NDArray[np.int64]]:
        """Return totals over each tree, and the number of entries in each."""
        n_trees = self.trees.n_trees
        totals = entries.reshape(n_trees, -1, entries.shape[1]).sum(axis=1)
        return totals, np.full(n_trees, len(entries) // n_trees)


class PackedTrees(NamedTuple):
    """A batch of trees as the kernels take them.

    Attributes:
        feature: int32 [B, n_nodes].
        start, width: int64 [B, n_nodes], the interval of codes that go right. A width of SMALL_SET: their bits are in
            start; of ANY_SET: ask `goes_left`.
        goes_left: uint8 [B, n_nodes, n_codes].
        single: int64 [B], the feature that a whole tree asks for, or -1.
        leaf_of_code: uint8 [B, n_codes], the table of a tree on a single feature.
    """

    feature: NDArray[np.int32]
    start: NDArray[np.int64]
    width: NDArray[np.int64]
    goes_left: NDArray[np.uint8]
    single: NDArray[np.int64]
    leaf_of_code: NDArray[np.uint8]


@lru_cache(maxsize=2)
def pack_trees(trees: TreeBatch) -> PackedTrees:
    """Return the trees with their intervals and tables.

    The results are kept for the next round, because its update is of this round's trees.

    A node that splits ordered codes sends right the codes after its threshold, up to the missing code or one short of
    it: one interval, so one comparison. Everything else is looked up in `goes_left`.
    """
    start, width = intervals(trees.goes_left, trees.threshold)
    shapes = find_shapes(trees)
    return PackedTrees(trees.feature, start, width, trees.goes_left, shapes.single, shapes.leaf_of_code)


def make_empty_batch(n_codes: int) -> TreeBatch:
    """Return a batch of no trees."""
    return TreeBatch(
        feature=np.empty((0, 1), dtype=np.int32),
        goes_left=np.empty((0, 1, n_codes), dtype=np.uint8),
        threshold=np.empty((0, 1), dtype=np.int32),
    )


def sum_in_threads(n_records: int, n_threads: int, sums_of: Callable[[int, int], IntVector]) -> IntVector:
    """Return sums over all records, divided among threads; they do not depend on the division.

    Args:
        sums_of: the sums over records first..last-1, by a kernel that releases the interpreter's lock.
    """
    return np.asarray(np.sum(in_threads(n_records, n_threads, sums_of), axis=0, dtype=np.int64))


def leaf_sums(records: SiteRecords, query: LeafSums, loss: Loss, n_threads: int = 1) -> IntVector:
    """Apply a `LeafSums` query's update to the scores, then return its sums: int64 [query.length]."""
    update = query.update
    if records.n_records <= FEW_TO_SUM:
        if update is not None:
            apply_update(records, update)
        return _sum_few(records, query.trees, loss)
    if update is None:
        values = np.empty((0, 1, max(1, records.scores.shape[0])), dtype=np.int32)
        update = FittedTrees(make_empty_batch(query.trees.goes_left.shape[2]), values)
    old, new, how = pack_trees(update.trees), pack_trees(query.trees), pack_loss(loss)
    sums = sum_in_threads(
        records.n_records, n_threads,
        lambda first, last: _update_and_sum(records, old, update.values, new, how, first, last),
    )  # fmt: skip
    return sums.reshape(-1)


def apply_update(records: SiteRecords, update: FittedTrees, n_threads: int = 1) -> None:
    """Add fitted trees to the scores, in place."""
    if records.n_records <= FEW_TO_SUM:
        leaves = _route_few(records.codes, update.trees)
        # Of few records all trees are added at once; of more, the values of all trees would fill the memory.
        step = len(leaves) if records.n_records <= FEW_TO_WALK else 1
        for first in range(0, len(leaves), max(step, 1)):
            own = leaves[first : first + step]
            added = update.values[np.arange(first, first + len(own))[:, None], own].sum(axis=0, dtype=np.int32)
            np.add(records.scores, added.T, out=records.scores)
        return
    old, nothing = pack_trees(update.trees), pack_trees(make_empty_batch(update.trees.goes_left.shape[2]))
    in_threads(
        records.n_records, n_threads,
        lambda first, last: _update_and_sum(records, old, update.values, nothing, _NO_LOSS, first, last),
    )  # fmt: skip


def _sum_few(records: SiteRecords, trees: TreeBatch, loss: Loss) -> IntVector:
    statistics = find_statistics(pack_loss(loss), records.labels, records.scores)
    # As floats, sums of so few records are exact.
    sums = [
        np.bincount(leaves, weights=statistic, minlength=trees.n_leaves)
        for leaves in _route_few(records.codes, trees)
        for statistic in statistics
    ]
    by_tree = np.array(sums).reshape(trees.n_trees, len(statistics), trees.n_leaves)
    return by_tree.swapaxes(1, 2).astype(np.int64).reshape(-1)


def _route_few(codes: CodeArray, trees: TreeBatch) -> NDArray[np.integer[Any]]:
    """Return the leaf of each record in each tree: integers [B, n]."""
    tree, record = np.arange(trees.n_trees)[:, None], np.arange(codes.shape[1])
    if len(record) > FEW_TO_WALK and (find_shapes(trees).single >= 0).all():
        shapes = find_shapes(trees)
        return shapes.leaf_of_code[tree, codes[shapes.single]]
    node = np.zeros((trees.n_trees, len(record)), dtype=np.intp)
    for _ in range(trees.depth):
        code = codes[trees.feature[tree, node], record]
        node = 2 * node + 2 - trees.goes_left[tree, node, code]
    return node - trees.n_leaves + 1


_NONE = np.zeros((2, 0), dtype=np.int64)
_NO_TABLES = np.zeros((1, 1, 1), dtype=np.int64), np.zeros(1, dtype=np.int64)
_NO_LOSS = PackedLoss(0, *_NO_TABLES, 0, 0, 0, 0, 0, 1, _NONE)


@numba.njit(cache=True, nogil=True)
def _update_and_sum(records, old, old_values, new, loss, first, last):  # type: ignore[no-untyped-def]
    """Add the old trees to the scores, then sum the statistics over the leaves of the new trees.

    Args:
        records: a `SiteRecords`.
        old, new: `PackedTrees`, possibly of no trees.
        old_values: int32 [n_old, n_leaves, n_outputs].
        loss: a `PackedLoss`.
        first, last: the records to visit, last excluded. (A slice of the arrays would no longer be contiguous to the
            compiler, which then does without wide instructions.)

    Returns:
        int64 [n_new, n_leaves, n_statistics].
    """
    codes, labels, scores = records.codes, records.labels, records.scores
    n_trees, n_leaves, n_codes = new.feature.shape[0], new.feature.shape[1] + 1, new.leaf_of_code.shape[1]
    sums = np.zeros((n_trees, n_leaves, loss.n_statistics), dtype=np.int64)
    work = np.empty((max(n_leaves - 1, old.feature.shape[1], 1), BLOCK), dtype=np.uint8)
    words, own = words_for_block(loss, BLOCK)
    # With few records, tables of all codes would be more work.
    is_worth_it = n_codes <= last - first
    old_group, old_features = _by_feature(old.single, codes.shape[0], is_worth_it)
    old_groups = (old_group, old_features, _values_by_code(old_group, len(old_features), old.leaf_of_code, old_values))
    group, features = _by_feature(new.single, codes.shape[0], is_worth_it)
    by_code = np.zeros((len(features), words.shape[0], REPLICAS, n_codes), dtype=np.int64)
    by_leaf = np.zeros((n_trees, words.shape[0], REPLICAS, n_leaves), dtype=np.int64)
    every_leaf = np.arange(n_leaves).astype(np.uint8)
    values = _by_output(old_values)
    for span in range(first, last, SPAN):
        by_code[:], by_leaf[:] = 0, 0
        span_end = min(span + SPAN, last)
        for begin in range(span, span_end, BLOCK):
            end = min(begin + BLOCK, span_end)
            _update_block(codes, scores, begin, end, old, values, old_groups, work)
            if n_trees == 0:
                continue
            write_block_statistics(loss, labels, scores, begin, end, words, own)
            groups = (group, features, by_code)
            _sum_over_block(codes, words, begin, end, new, groups, work, by_leaf)
        for tree in range(n_trees):
            if group[tree] >= 0:
                _sum_leaves(by_code[group[tree]], new.leaf_of_code[tree], sums[tree])
            else:
                _sum_leaves(by_leaf[tree], every_leaf, sums[tree])
    return sums


@numba.njit(cache=True, nogil=True)
def _by_output(values):  # type: ignore[no-untyped-def]
    """Return the values of trees, int32 [B, n_leaves, n_outputs], as [B, n_outputs, n_leaves].

    Not np.ascontiguousarray of a transpose: numba would compile its messages about shapes, 2.9 of a first run's 23.7 s.
    """
    n_trees, n_leaves, n_outputs = values.shape
    turned = np.empty((n_trees, n_outputs, n_leaves), dtype=np.int32)
    for tree in range(n_trees):
        for output in range(n_outputs):
            for leaf in range(n_leaves):
                turned[tree, output, leaf] = values[tree, leaf, output]
    return turned


@numba.njit(cache=True, nogil=True)
def _by_feature(single, n_features, is_worth_it):  # type: ignore[no-untyped-def]
    """Return the group of each tree on one feature, by that feature, and the feature of each group.

    Args:
        single: int64 [n_trees], the feature, or -1 for a tree of several, which is in no group: -1.
        n_features: features of the records.
        is_worth_it: if False, no tree is in a group.
    """
    group, group_of_feature = np.full(len(single), -1), np.full(n_features, -1)
    features = np.zeros(len(single), dtype=np.int64)
    n_groups = 0
    for tree in range(len(single)):
        feature = single[tree]
        if feature >= 0 and is_worth_it:
            if group_of_feature[feature] < 0:
                group_of_feature[feature] = n_groups
                features[n_groups] = feature
                n_groups += 1
            group[tree] = group_of_feature[feature]
    return group, features[:n_groups]


@numba.njit(cache=True, nogil=True)
def _values_by_code(group, n_groups, leaf_of_code, values):  # type: ignore[no-untyped-def]
    """Return the sum of each feature's trees by code: int32 [n_groups, n_outputs, n_codes]."""
    by_code = np.zeros((n_groups, values.shape[2], leaf_of_code.shape[1]), dtype=np.int32)
    for tree in range(len(group)):
        if group[tree] >= 0:
            for output in range(values.shape[2]):
                for code in range(leaf_of_code.shape[1]):
                    by_code[group[tree], output, code] += values[tree, leaf_of_code[tree, code], output]
    return by_code


@numba.njit(cache=True, nogil=True)
def _sum_leaves(by_code, leaf_of_code, sums):  # type: ignore[no-untyped-def]
    """Add packed sums by code to those of a tree's leaves: int64 [n_leaves, n_statistics]."""
    n_leaves, n_statistics = sums.shape
    words = np.zeros(n_leaves, dtype=np.int64)
    for pair in range(by_code.shape[0]):
        words[:] = 0
        for replica in range(REPLICAS):
            for code in range(len(leaf_of_code)):
                words[leaf_of_code[code]] += by_code[pair, replica, code]
        for leaf in range(n_leaves):
            first, second = unpack(words[leaf])
            sums[leaf, 2 * pair] += first
            if 2 * pair + 1 < n_statistics:
                sums[leaf, 2 * pair + 1] += second


@numba.njit(cache=True, nogil=True)
def _update_block(codes, scores, begin, end, trees, values, groups, work):  # type: ignore[no-untyped-def]
    """Add the values of trees to a block's scores.

    Args:
        groups: the result of `_by_feature`, and the groups' values by code.
    """
    group, features, by_code = groups
    for number in range(len(features)):
        _add_values(scores, begin, end, by_code[number], codes[features[number], begin:end])
    for tree in range(len(group)):
        if group[tree] < 0:
            route_block(codes, begin, end, trees, tree, work)
            _add_values(scores, begin, end, values[tree], work[0])


@numba.njit(cache=True, nogil=True)
def _sum_over_block(codes, packed, begin, end, trees, groups, work, by_leaf):  # type: ignore[no-untyped-def]
    """Add a block's packed statistics to sums over leaves, or for groups of trees to sums by code.

    Args:
        groups: the result of `_by_feature`, and the groups' sums by code.
    """
    group, features, by_code = groups
    for number in range(len(features)):
        _sum_block(packed, codes[features[number], begin:end], by_code[number])
    for tree in range(len(group)):
        if group[tree] < 0:
            route_block(codes, begin, end, trees, tree, work)
            _sum_block(packed, work[0, : end - begin], by_leaf[tree])


@numba.njit(cache=True, nogil=True)
def _select(codes, start, width, half, left, right, reached):  # type: ignore[no-untyped-def]
    """Write right + half where start <= code < start + width (modulo the code's type), else left."""
    # Read both sides and mask one. With a branch the compiler did not vectorise for AVX2: 1.2 ns a record, not .4.
    for i in range(len(codes)):
        inside = np.uint8(codes.dtype.type(codes[i] - start) < width)
        reached[i] = left[i] ^ (left[i] ^ np.uint8(right[i] + half)) & np.uint8(-inside)


@numba.njit(cache=True, nogil=True)
def _split(codes, start, width, reached):  # type: ignore[no-untyped-def]
    """Write start <= code < start + width (modulo the code's type) to `reached`.

    Both children are leaves.
    """
    for i in range(len(codes)):
        reached[i] = codes.dtype.type(codes[i] - start) < width


@numba.njit(cache=True, nogil=True)
def _is_in(bits, code):  # type: ignore[no-untyped-def]
    """Return 1 for a code with a set bit, and for a code beyond the bits; else 0."""
    last = np.uint64(SMALL_CODES - 1)
    return (bits >> (code & last)) & np.uint64(1) | np.uint64(code > last)


@numba.njit(cache=True, nogil=True)
def _select_set(codes, bits, half, left, right, reached):  # type: ignore[no-untyped-def]
    """Write right + half where the code is in a small set, else left.

    This takes a fifth of the time of a look-up.
    """
    for i in range(len(codes)):
        inside = np.uint8(_is_in(bits, np.uint64(codes[i])))
        reached[i] = left[i] ^ (left[i] ^ np.uint8(right[i] + half)) & np.uint8(-inside)


@numba.njit(cache=True, nogil=True)
def _split_set(codes, bits, reached):  # type: ignore[no-untyped-def]
    """Write 1 where the code is in the set `bits`, else 0; both children are leaves."""
    for i in range(len(codes)):
        reached[i] = _is_in(bits, np.uint64(codes[i]))


@numba.njit(cache=True, nogil=True)
def route_block(codes, begin, end, trees, tree, work):  # type: ignore[no-untyped-def]
    """Write the leaf of each record of a block in one of the trees to work[0, :end - begin].

    Args:
        codes: uint8 or uint16 [n_features, n].
        trees: a `PackedTrees`.
        work: uint8 [n_nodes, BLOCK], overwritten.
    """
    count = end - begin
    single = trees.single[tree]
    if single >= 0:
        row, leaf_of_code = codes[single, begin:end], trees.leaf_of_code[tree]
        leaves = work[0]
        for i in range(count):
            leaves[i] = leaf_of_code[row[i]]
        return
    feature, start, width, goes_left = trees.feature[tree], trees.start[tree], trees.width[tree], trees.goes_left[tree]
    n_nodes = len(feature)
    code_type = codes.dtype.type
    for node in range(n_nodes - 1, -1, -1):
        row = codes[feature[node], begin:end]
        reached = work[node]
        first_child = 2 * node + 1
        is_last_level = first_child >= n_nodes
        half = np.uint8(1)
        child = first_child
        while child < n_nodes:
            half = np.uint8(half * 2)
            child = 2 * child + 1
        if width[node] == SMALL_SET:
            if is_last_level:
                _split_set(row, np.uint64(start[node]), reached)
            else:
                left, right = work[first_child], work[first_child + 1]
                _select_set(row, np.uint64(start[node]), half, left, right, reached)
        elif width[node] < 0:
            table = goes_left[node]
            if is_last_level:
                for i in range(count):
                    reached[i] = 1 - table[row[i]]
            else:
                left, right = work[first_child], work[first_child + 1]
                for i in range(count):
                    reached[i] = left[i] if table[row[i]] else right[i] + half
        elif is_last_level:
            _split(row, code_type(start[node]), code_type(width[node]), reached)
        else:
            left, right = work[first_child], work[first_child + 1]
            _select(row, code_type(start[node]), code_type(width[node]), half, left, right, reached)


@numba.njit(cache=True, nogil=True)
def _add_values(scores, begin, end, values, places):  # type: ignore[no-untyped-def]
    """Add values[k, place] to scores[k, begin:end]; places are leaves or codes."""
    for output in range(scores.shape[0]):
        row, table = scores[output, begin:end], values[output]
        for i in range(len(row)):
            row[i] += table[places[i]]


@numba.njit(cache=True, nogil=True)
def _sum_block(packed, places, sums):  # type: ignore[no-untyped-def]
    """Add a block's packed statistics to sums over leaves or codes: int64 [n_pairs, REPLICAS, n_places]."""
    for pair in range(packed.shape[0]):
        words, own = packed[pair], sums[pair]
        for i in range(len(places)):
            own[i & (REPLICAS - 1), places[i]] += words[i]
