"""Large random trees that exist where they are looked at, the search for their heavy nodes, and both queries.

A node is drawn when somebody asks below it: from public randomness and from nothing else but its own place, so all
parties have the same trees. They are deeper than a model's (8 levels), so they have tables of their own here.

The search (`Search`): a node is heavy or light, and below a light one all are light. It is a binary search on every
path at once. A subtree of s layers is looked at in one layer, `look(s)` below its root. A heavy node there makes its
ancestors heavy, and sends the search below it; a light one ends the path there; above the layer it goes on where a node
is not known to be heavy. So on every path the nodes that are not known yet are an interval of layers, and a round asks
for one of them at most: each record counts once per tree and round, in `rounds_of(height)` rounds. Marks come from
releases, so that questions depend on them costs nothing (adaptive composition).

With `UNIT` = U integers per record, T trees and units of k rows a round has the L2 sensitivity sqrt(T) k U, and so have
the leaves' counts by class; a number's sum and count together sqrt(2 T) k U. All are attained, by k equal rows. So
mu² = R / m_s² + 1 / m_l², for R rounds and the noise multipliers of search and leaves. The search ends at `MAX_ASKED`
entries whatever was released: one site that lies makes no vector longer than the account has planned for. The authors'
prototype adds noise to nodes that are not empty only, and pays for that with delta; here every node of a layer has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.trees.binning import Grid
from hedgerow.trees.leaf_sums import TrainingSite, sum_in_threads
from hedgerow.trees.plausibility import Reals, ReleaseChecks, SumFacts
from hedgerow.trees.random_trees import PublicRandom

Nodes = NDArray[np.int64]
UNIT = 2**10
"""Integers per record, and per 1.0 of a scaled label."""
MAX_ASKED = 2**20
"""Nodes that a whole search asks for at most; and leaves that it ends with."""
FIRST_LOOK, LATER_LOOK = 10, 5
"""How far below a subtree's root it is looked at: a sum names all nodes of a layer, also those without a record."""
MAX_TESTS = 7
"""Questions that say where a node is, see `Pieces`: they leave one of a model's eight levels."""
LIGHT, UNKNOWN, HEAVY = -1, 0, 1


def look(height: int, *, is_first: bool = False) -> int:
    """How far below its root a subtree of so many layers is looked at."""
    return min(height // 2, FIRST_LOOK if is_first else LATER_LOOK)


@lru_cache(maxsize=128)
def rounds_of(height: int, is_first: bool = True) -> int:
    """Rounds of a search over so many layers; 0 for none."""
    if height == 0:
        return 0
    middle = look(height, is_first=is_first)
    return 1 + max(rounds_of(middle, False), rounds_of(height - middle - 1, False))


class Routes(NamedTuple):
    """Nodes as the kernel takes them, those of all trees in one table.

    Attributes:
        feature: int32 [N], what a node asks for.
        cut: int32 [N]: codes up to it go left, or it alone where `is_category`.
        is_category: uint8 [N].
        missing_left: uint8 [N], for a cut: the side of codes from the feature's missing one on.
        child: int64 [N], the left child, which the right one follows; -1 below what was drawn.
        roots: int64 [n_trees].
        missing: int32 [n_features], each feature's code for missing values.
    """

    feature: NDArray[np.int32]
    cut: NDArray[np.int32]
    is_category: NDArray[np.uint8]
    missing_left: NDArray[np.uint8]
    child: Nodes
    roots: Nodes
    missing: NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeCounts(Query):
    """How many records there are in some nodes, `UNIT` for each: int64 [n_asked, n_statistics], flattened.

    A record counts in the first asked node on its path of each tree; in a search there is one at most.

    Attributes:
        routes: the trees.
        slot: int32 [N], a node's place among the asked ones; -1 for all others.
        tree: int64 [n_asked], whose node each is.
        n_statistics: 1: records; K: those of each class; 2 where `is_numeric`: scaled labels, and records.
    """

    routes: Routes
    slot: NDArray[np.int32]
    tree: Nodes
    n_statistics: int = 1
    is_numeric: bool = False

    def answer(self, site: TrainingSite) -> IntVector:
        site.take_in(self.update)
        shape = len(self.tree), self.n_statistics
        return sum_in_threads(
            site.records.n_records, site.n_threads,
            lambda first, last: _counts(site.records, self.routes, self.slot, shape, self.is_numeric, first, last),
        ).reshape(-1)  # fmt: skip

    def faults(self, released: Reals, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        """See `Query.faults`: counts are not negative, and those of a tree hold no record twice."""
        entries = released.reshape(-1, self.n_statistics)
        counts = entries[:, -1:] if self.is_numeric else entries
        if counts.min() < -facts.reach(1):
            yield "a count is below zero"
        sizes = np.bincount(self.tree) * counts.shape[1]
        totals = np.bincount(self.tree, weights=counts.sum(axis=1))
        reach = np.array([facts.reach(max(1, int(size))) for size in sizes])
        if (totals > facts.n_rows * UNIT + reach).any():
            yield "a total is larger than the rows allow"
        if self.is_numeric and (np.abs(entries[:, :1]) > np.maximum(counts, 0) + 2 * facts.reach(1)).any():
            yield "a sum of labels is larger than its records allow"


class LeafCounts(NodeCounts):
    """The statistics of the leaves, which hold every record once per tree."""


@numba.njit(cache=True, nogil=True)
def _counts(records, routes, slot, shape, is_numeric, first, last):  # type: ignore[no-untyped-def]
    """The records from `first` to `last` (excluded) in the nodes that are asked for: int64 [n_asked, n_statistics]."""
    counts = np.zeros(shape, dtype=np.int64)
    for root in routes.roots:
        for record in range(first, last):
            node = root
            while slot[node] < 0 and routes.child[node] >= 0:
                code = np.int32(records.codes[routes.feature[node], record])
                if routes.is_category[node]:
                    goes_left = code == routes.cut[node]
                elif code >= routes.missing[routes.feature[node]]:
                    goes_left = routes.missing_left[node] == 1
                else:
                    goes_left = code <= routes.cut[node]
                node = routes.child[node] + (0 if goes_left else 1)
            place = slot[node]
            if place < 0:
                continue
            if is_numeric:
                # Towards zero, so that no label counts for more than a record.
                label = records.labels[record]
                scaled = abs(label) * UNIT // SCORE_UNIT
                counts[place, 0] += scaled if label >= 0 else -scaled
                counts[place, 1] += UNIT
            else:
                counts[place, records.labels[record] if shape[1] > 1 else 0] += UNIT
    return counts


class Forest:
    """Random trees, drawn as far as somebody has asked.

    A node asks for a feature that its cells still leave open, each as likely as any other. A number is cut at a value
    drawn uniformly from what is left of its range, at the next edge of the grid; of a category one is drawn, which goes
    left alone. Missing values of a number go to a side drawn by coin.

    Attributes:
        routes: the nodes.
        parent: int64 [N]; -1 for roots.
        tree: int64 [N].
        mark: int8 [N]: LIGHT, UNKNOWN or HEAVY.
    """

    def __init__(self, plan: Plan, grid: Grid, seed: int, n_trees: int) -> None:
        self._seed, self._grid = seed, grid
        self._last = np.array([cells.n_cells - 1 for cells in grid.features], dtype=np.int32)
        self._is_category = np.array([cells.is_categorical for cells in grid.features])
        # Where each cell begins, and where the last one ends.
        self._ends = [
            np.array([] if cells.is_categorical else [feature.min, *cells.edges, feature.max], dtype=np.float64)
            for feature, cells in zip(plan.features, grid.features, strict=True)
        ]
        self._low = np.zeros((n_trees, len(self._last)), dtype=np.int32)
        self._high = np.repeat(self._last[None], n_trees, axis=0)
        self.parent: Nodes = np.full(n_trees, -1, dtype=np.int64)
        self.tree: Nodes = np.arange(n_trees)
        self.mark = np.zeros(n_trees, dtype=np.int8)
        missing = np.array([cells.missing_code for cells in grid.features], dtype=np.int32)
        zeros, bytes_ = np.zeros(n_trees, dtype=np.int32), np.zeros(n_trees, dtype=np.uint8)
        self.routes = Routes(zeros, zeros, bytes_, bytes_, self.parent, np.arange(n_trees), missing)

    def children_of(self, nodes: Nodes) -> Nodes:
        """Both children of each node, drawn where they are not there: int64 [2 n]."""
        new = nodes[self.routes.child[nodes] < 0]
        if len(new):
            self._split(new)
        left = self.routes.child[nodes]
        return np.stack([left, left + 1], axis=1).reshape(-1)

    def _split(self, nodes: Nodes) -> None:
        n_known, n = len(self.parent), len(nodes)
        words = PublicRandom(self._seed, f"splits below {n_known} nodes").first_words(3 * n).reshape(n, 3)
        feature, is_open = self._features(nodes, words[:, 0])
        low, high = self._low[nodes, feature], self._high[nodes, feature]
        share = (words[:, 1] >> np.uint64(11)) / 2.0**53
        # Where nothing is open, everything goes left.
        cut = np.full(n, self._grid.n_codes, dtype=np.int32)
        is_category = (self._is_category[feature] & is_open).astype(np.uint8)
        for number, ends in enumerate(self._ends):
            here = np.flatnonzero(is_open & (feature == number))
            if self._is_category[number]:
                cut[here] = low[here] + (share[here] * (high[here] - low[here] + 1)).astype(np.int32)
                continue
            begin, end = ends[low[here]], ends[high[here] + 1]
            place = np.searchsorted(ends[1:-1], begin + (end - begin) * share[here], side="right")
            cut[here] = np.clip(place, low[here], high[here] - 1)
        coin = ((words[:, 2] & np.uint64(1)) == 1) | ~is_open
        routes, left = self.routes, n_known + 2 * np.arange(n)
        changed = [part.copy() for part in routes[:5]]
        for part, values in zip(changed, (feature, cut, is_category, coin, left), strict=True):
            part[nodes] = values
        fresh = (0, 0, 0, 0, -1)
        grown = [
            np.concatenate([part, np.full(2 * n, value, dtype=part.dtype)])
            for part, value in zip(changed, fresh, strict=True)
        ]
        self.routes = Routes(grown[0], grown[1], grown[2], grown[3], grown[4], routes.roots, routes.missing)
        self.parent = np.concatenate([self.parent, np.repeat(nodes, 2)])
        self.tree = np.concatenate([self.tree, np.repeat(self.tree[nodes], 2)])
        self.mark = np.concatenate([self.mark, np.zeros(2 * n, dtype=np.int8)])
        lows, highs = (np.repeat(part[nodes], 2, axis=0) for part in (self._low, self._high))
        split = np.flatnonzero(is_open)
        one, cuts = split[is_category[split] == 0], split[is_category[split] == 1]
        highs[2 * one, feature[one]] = cut[one]
        lows[2 * one + 1, feature[one]] = cut[one] + 1
        lows[2 * cuts, feature[cuts]] = highs[2 * cuts, feature[cuts]] = cut[cuts]
        self._low, self._high = np.concatenate([self._low, lows]), np.concatenate([self._high, highs])

    def _features(self, nodes: Nodes, words: NDArray[np.uint64]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """The feature that each node asks for, and whether there is one: int32 and bool [n]."""
        is_open = self._high[nodes] > self._low[nodes]
        n_open = is_open.sum(axis=1)
        drawn = ((words >> np.uint64(33)) * n_open.astype(np.uint64)) >> np.uint64(31)
        feature = (np.cumsum(is_open, axis=1) <= drawn[:, None].astype(np.int64)).sum(axis=1)
        has_one = n_open > 0
        return np.where(has_one, feature, 0).astype(np.int32), has_one


class Search:
    """Which nodes of a forest are heavy, round by round; see the module's first lines.

    Why a round asks for one node of a path at most: its subtrees begin as whole trees. A subtree with root v gives way
    to its upper part, of the same root and with the layers above the one that was looked at, and to subtrees below
    heavy nodes of that layer. If a path crosses one of the latter, all nodes of that path in the upper part are above a
    heavy node, so they are heavy, and are never asked for again. By induction a path has one subtree with a node that
    is not known, or none.

    Args:
        forest: of trees without marks.
        height: layers that are searched.
        most_leaves: that the forest has at the end, at least one a tree. Ancestors are heavy without being asked for,
            so what is asked for does not bound them, and one site that lies could have more than nodes can hold.
    """

    def __init__(self, forest: Forest, height: int, most_leaves: int = MAX_ASKED) -> None:
        self._forest = forest
        # Every heavy node makes one leaf two.
        self._most_heavy = most_leaves - len(forest.routes.roots)
        self._subtrees: list[tuple[Nodes, int]] = [(forest.routes.roots, height)]
        self._layers: list[tuple[Nodes, int, int]] = []
        self._is_first = True
        self.n_asked = 0

    def asked(self) -> Nodes:
        """The nodes of the next round, which it draws: int64 [n]; none at the end."""
        while self._subtrees:
            self._layers = []
            for roots, height in self._subtrees:
                middle = look(height, is_first=self._is_first)
                # What is more than a whole search may ask for stays as it is: light.
                room = max(0, MAX_ASKED - self.n_asked) >> middle
                layer = roots[:room]
                self.n_asked += len(layer) << middle
                for _ in range(middle):
                    layer = self._forest.children_of(layer)
                self._layers.append((layer, height, middle))
            asked = np.concatenate([layer[self._forest.mark[layer] == UNKNOWN] for layer, _, _ in self._layers])
            if len(asked):
                return asked
            self._go_on()
        return np.empty(0, dtype=np.int64)

    def take(self, asked: Nodes, is_heavy: NDArray[np.bool_]) -> None:
        """Go on from what a round has found: bool [n]."""
        # With each of them so many nodes above it may become heavy.
        deepest = max(middle for _, _, middle in self._layers)
        room = (self._most_heavy - np.count_nonzero(self._forest.mark == HEAVY)) // (deepest + 1)
        self._forest.mark[asked] = np.where(is_heavy & (np.cumsum(is_heavy) <= room), HEAVY, LIGHT)
        self._go_on()

    def _go_on(self) -> None:
        forest, below = self._forest, []
        for (layer, height, middle), (roots, _) in zip(self._layers, self._subtrees, strict=True):
            heavy = layer[forest.mark[layer] == HEAVY]
            above = heavy
            for _ in range(middle):
                above = np.unique(forest.parent[above])
                forest.mark[above] = HEAVY
            rest = height - middle - 1
            children = forest.children_of(heavy)
            if rest:
                below.append((children, rest))
            if middle:
                below.append((roots, middle))
        self._subtrees, self._is_first = [(roots, left) for roots, left in below if len(roots)], False


def places(nodes: Nodes, n_nodes: int) -> NDArray[np.int32]:
    """The place of each node among some of them, -1 for all others: int32 [n_nodes]."""
    slot = np.full(n_nodes, -1, dtype=np.int32)
    slot[nodes] = np.arange(len(nodes))
    return slot


def leaves_of(forest: Forest) -> Nodes:
    """The nodes that are not heavy and whose parent is, and roots that are not: int64 [n_leaves]."""
    parents = forest.mark[np.maximum(forest.parent, 0)] == HEAVY
    is_below = (forest.parent < 0) | parents
    return np.flatnonzero((forest.mark != HEAVY) & is_below)


# What a model keeps ---------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Kept:
    """A node of a pruned tree.

    Attributes:
        sums: released statistics of its records, float64 [n_statistics]; of a split, of both its sides.
        split: the forest's node that asks; -1 for a leaf.
        sides: left and right; empty for a leaf.
    """

    sums: Reals
    split: int = -1
    sides: tuple[Kept, ...] = ()

    @property
    def depth(self) -> int:
        """Splits on the longest path."""
        return 1 + max(side.depth for side in self.sides) if self.sides else 0


def kept_tree(forest: Forest, node: int, sums: dict[int, Reals], least: float, is_numeric: bool) -> Kept:
    """The tree below a node, without the leaves of fewer than `least` released records: these join their sibling.

    Args:
        forest: with the marks of a finished search.
        node: a root, or a node below a heavy one.
        sums: by leaf, float64 [n_statistics], in records.
        least: in records.
        is_numeric: whether the last statistic alone counts records.
    """
    if node in sums:
        return Kept(sums[node])
    left = int(forest.routes.child[node])
    sides = [kept_tree(forest, side, sums, least, is_numeric) for side in (left, left + 1)]
    for one, other in (sides, sides[::-1]):
        n_records = one.sums[-1] if is_numeric else one.sums.sum()
        if not one.sides and n_records < least:
            return other if other.sides else Kept(one.sums + other.sums)
    return Kept(sides[0].sums + sides[1].sums, node, (sides[0], sides[1]))


class Pieces:
    """Trees of few levels that add up to a deep one.

    A tree of a model has at most 8 levels. A deeper tree is the sum of several: the first has its upper levels, and 0
    below where it goes on. There another one asks where the node is, up to `MAX_TESTS` questions one below the other,
    is 0 for all records elsewhere, and has the next levels; and so on. A record's values add up to that of its leaf.
    A node that more questions are needed for is a leaf.

    Args:
        forest: whose splits the trees have.
        grid: the plan's.
        depth: levels of every piece, more than `MAX_TESTS` where a tree is deeper than that.
    """

    def __init__(self, forest: Forest, grid: Grid, depth: int) -> None:
        self._routes, self._grid, self._depth = forest.routes, grid, depth
        self.trees: list[tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int32], NDArray[np.int32]]] = []

    def add(self, tree: Kept, value_of: Callable[[Reals], NDArray[np.int32]]) -> None:
        """Add the pieces of a tree; `value_of` says what a leaf of these sums adds to the scores, int32 [n_outputs]."""
        everywhere = np.arange(self._grid.n_codes) < self._grid.codes_of_features[0][:, None]
        left_over = [(tree, everywhere)]
        while left_over:
            root, cells = left_over.pop()
            n_nodes, n_outputs = 2**self._depth - 1, len(value_of(root.sums))
            piece = (
                np.zeros(n_nodes, dtype=np.int32),
                np.ones((n_nodes, self._grid.n_codes), dtype=np.uint8),
                np.full(n_nodes, self._grid.n_codes - 1, dtype=np.int32),
                np.zeros((n_nodes + 1, n_outputs), dtype=np.int32),
            )
            self.trees.append(piece)
            place = 0
            for feature, goes_left, cut, is_left in self._tests(cells):
                piece[0][place], piece[1][place], piece[2][place] = feature, goes_left, cut
                place = 2 * place + (1 if is_left else 2)
            below = [(root, cells, place)]
            while below:
                node, own, place = below.pop()
                if not node.sides:
                    first, last = _leaves_below(place, n_nodes)
                    piece[3][first:last] = value_of(node.sums)
                elif place >= n_nodes and len(list(self._tests(own))) <= MAX_TESTS:
                    left_over.append((node, own))
                elif place >= n_nodes:
                    piece[3][place - n_nodes] = value_of(node.sums)
                else:
                    feature, goes_left, cut = self._split(node.split)
                    piece[0][place], piece[1][place], piece[2][place] = feature, goes_left, cut
                    for number, side in enumerate(node.sides):
                        inner = own.copy()
                        inner[feature] &= goes_left == 1 - number
                        # Where nothing was open everything went left, and no record is on the right.
                        if inner[feature].any():
                            below.append((side, inner, 2 * place + 1 + number))

    def _split(self, node: int) -> tuple[int, NDArray[np.uint8], int]:
        """A node's feature, the side of each code, and the cut as a model has it."""
        routes, codes = self._routes, np.arange(self._grid.n_codes)
        feature, cut = int(routes.feature[node]), int(routes.cut[node])
        if routes.is_category[node]:
            return feature, (codes == cut).astype(np.uint8), -1
        return feature, self._below(feature, cut, bool(routes.missing_left[node])), cut

    def _below(self, feature: int, cut: int, missing_left: bool) -> NDArray[np.uint8]:
        codes = np.arange(self._grid.n_codes)
        is_left = np.where(codes >= self._grid.features[feature].missing_code, missing_left, codes <= cut)
        return is_left.astype(np.uint8)

    def _tests(self, cells: NDArray[np.bool_]) -> Iterator[tuple[int, NDArray[np.uint8], int, bool]]:
        """Questions that tell the records of these cells, bool [n_features, n_codes]: each with the side of theirs."""
        for feature, (grid, own) in enumerate(zip(self._grid.features, cells, strict=True)):
            if own[: grid.n_codes].all():
                continue
            if grid.is_categorical:
                yield feature, own.astype(np.uint8), -1, True
                continue
            inside, has_missing = np.flatnonzero(own[: grid.n_cells]), bool(own[grid.missing_code])
            if inside[-1] < grid.n_cells - 1:
                yield feature, self._below(feature, int(inside[-1]), has_missing), int(inside[-1]), True
            if inside[0] > 0:
                yield feature, self._below(feature, int(inside[0]) - 1, not has_missing), int(inside[0]) - 1, False


def _leaves_below(place: int, n_nodes: int) -> tuple[int, int]:
    """The leaves below a place in a heap, as a range."""
    first = last = place
    while first < n_nodes:
        first, last = 2 * first + 1, 2 * last + 2
    return first - n_nodes, last - n_nodes + 1
