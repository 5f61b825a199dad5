"""Lumberjack as one generator of queries.

    in rounds_of(height) rounds at most:
        yield NodeCounts        ->  noisy counts of some nodes of all trees: heavy, or light with all below
    yield LeafCounts            ->  noisy statistics of the leaves of what is heavy: the model
    yield SpreadSums, LineSums  ->  of numbers, the line that finished scores are put on (methods/line.py)

Source: Lebeda, Erb, Cebere & Bellet 2026, arXiv 2605.22756, of which we had the abstract and summaries, and the
authors' prototype (github.com/daviderb/Lumberjack). Theirs are: totally random trees of many layers; the search by
binary search over each path, whose marks go up where heavy and down where light, with 1 + floor(log2 height) looks at a
record; the leaves below heavy nodes; forests that average over 25 trees, three quarters of the budget for the search.
Ours are, each because sums over sites are all that there is, or because a model's trees have 8 levels:

- A layer is released as a whole, with noise on empty nodes as well: who is not empty is private. So there is no
  threshold that a delta pays for (their sparse histogram), the account is exact Gaussian DP, and looks stay close
  enough to a subtree's root (10 layers the first time, 5 later) for a layer to be sent. 24 layers take 5 rounds.
- A node is heavy from 4 deviations of the noise on, from `least_records`, and from so many records that the whole
  search cannot be expected to ask for more nodes than `MAX_ASKED`.
- Leaves release their counts, and a leaf's value is the share of each class, averaged over the trees: their option
  "noisy fraction". Their default votes for one class by the exponential mechanism, which says less to a ranking.
- Numbers: the mean of the leaf instead, drawn to that of the tree.
- Categories are split one against the rest, where theirs are encoded so; cuts are on the plan's grid; where a node lies
  takes `MAX_TESTS` questions at most.
- Leaves whose released count is within two deviations of nothing join their sibling, and what is left of a tree that
  is deeper than 8 levels is the sum of several trees (`forest.Pieces`). Both are post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.lumberjack import Lumberjack
from experiments.lumberjack.forest import (
    LATER_LOOK,
    MAX_ASKED,
    UNIT,
    Forest,
    Kept,
    LeafCounts,
    NodeCounts,
    Nodes,
    Pieces,
    Search,
    kept_tree,
    leaves_of,
    places,
)
from experiments.lumberjack.settings import LumberjackSettings, most_leaves, n_statistics, sensitivities_squared
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.methods.line import calibrate_by_spread
from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import FittedTrees, IntVector, Query, TreeBatch
from hedgerow.training.steps import GrowingModel, NodeTrees, Program, Run, grow_by
from hedgerow.trees.ensemble import MAX_DEPTH

SURE = 2.0
"""A leaf is one of its own from so many deviations of its released count on."""


def lumberjack(plan: Plan, settings: LumberjackSettings) -> Program:
    """The program of a plan with `algorithm = "lumberjack"`.

    Args:
        plan: the plan.
        settings: its resolved settings.
    """
    return grow_by(Run.from_plan(plan, settings), lambda grown: _grow(grown, settings))


def searched(
    run: Run, settings: LumberjackSettings
) -> Generator[Query, IntVector, tuple[Forest, Nodes, NDArray[np.float64], int]]:
    """A forest with its marks, its leaves, int64 [n], their released statistics [n, S]; how many questions there were.

    Statistics are in records: counts of each class, or the sum of the scaled labels and a count.
    """
    forest = Forest(run.plan, run.grid, run.structure_seed, settings.n_trees)
    search, number = Search(forest, settings.height, most_leaves(run.plan)), 0
    while len(asked := search.asked()):
        query = _question(NodeCounts, number, f"round {number}", forest, asked, settings.search_multiplier, run)
        counts = yield query
        search.take(asked, counts >= _threshold(run, query))
        number += 1
    leaves = leaves_of(forest)
    released = yield _question(LeafCounts, number, "all leaves", forest, leaves, settings.noise_multiplier, run)
    return forest, leaves, released.reshape(len(leaves), -1) / UNIT, number + 1


def _grow(grown: GrowingModel, settings: LumberjackSettings) -> Generator[Query, IntVector, None]:
    run = grown.run
    forest, leaves, sums, exchange = yield from searched(run, settings)
    is_numeric = run.plan.label.kind.is_number
    # Of several classes the counts are added up.
    noise = leaf_noise(run, settings)
    least = SURE * noise * math.sqrt(1 if is_numeric else sums.shape[1])
    by_leaf = dict(zip(leaves.tolist(), sums, strict=True))
    trees = [kept_tree(forest, root, by_leaf, least, is_numeric) for root in range(settings.n_trees)]
    fitted = _fitted(run, forest, trees, noise)
    grown.add(fitted, None)
    if settings.has_line:
        whole = [math.fsum(column) for column in sums.T.tolist()]
        mean = min(max(whole[0] / max(1.0, whole[1]), -1.0), 1.0)
        carried = NodeTrees()
        carried.take(fitted)
        yield from calibrate_by_spread(grown, exchange, round(mean * SCORE_UNIT), settings.line_multipliers, carried)


def _question(
    kind: type[NodeCounts], number: int, subject: str, forest: Forest, asked: Nodes, noise_multiplier: float, run: Run
) -> NodeCounts:
    plan, n_trees = run.plan, run.settings.n_trees
    of_nodes, of_leaves = sensitivities_squared(plan, n_trees)
    is_last = kind is LeafCounts
    width = n_statistics(plan) if is_last else 1
    own: dict[str, Any] = {"n_statistics": width, "is_numeric": is_last and plan.label.kind.is_number}
    return kind(
        purpose=kind.purpose_of(number, subject),
        length=len(asked) * width,
        bound=UNIT,
        sensitivity_squared=of_leaves if is_last else of_nodes,
        noise_multiplier=noise_multiplier,
        routes=forest.routes,
        slot=places(asked, len(forest.parent)),
        tree=forest.tree[asked],
        **own,
    )


def leaf_noise(run: Run, settings: LumberjackSettings) -> float:
    """Standard deviation of the noise of one statistic of a leaf, in records."""
    if settings.noise_multiplier == 0:
        return 0.0
    return settings.noise_multiplier * math.sqrt(sensitivities_squared(run.plan, settings.n_trees)[1]) / UNIT


def _threshold(run: Run, query: NodeCounts) -> int:
    """What a released count has to reach: in integer units, from public numbers."""
    own, n_trees = Lumberjack.of(run.plan), run.settings.n_trees
    # A heavy node sends the search to a layer below each of its children; half of what may be asked is for those.
    affordable = n_trees * run.plan.privacy.n_records * run.plan.privacy.rows_per_unit * 2 ** (LATER_LOOK + 2)
    least: int = max(own.least_records, -(-affordable // MAX_ASKED))
    return max(math.ceil(own.threshold * run.sigma(query)), least * UNIT)


def _fitted(run: Run, forest: Forest, trees: list[Kept], noise: float) -> FittedTrees:
    depth = min(MAX_DEPTH, max(1, *(tree.depth for tree in trees)))
    pieces, unit = Pieces(forest, run.grid, depth), SCORE_UNIT / len(trees)
    for tree in trees:

        def value(sums: NDArray[np.float64], tree: Kept = tree) -> NDArray[np.int32]:
            shares = leaf_values(sums[None], tree.sums, noise, run.plan.label.kind.is_number)[0]
            return np.asarray(np.rint((shares[1:] if len(shares) == 2 else shares) * unit), dtype=np.int32)

        pieces.add(tree, value)
    feature, goes_left, threshold, values = (np.stack(part) for part in zip(*pieces.trees, strict=True))
    return FittedTrees(TreeBatch(feature, goes_left, threshold), values)


def leaf_values(
    sums: NDArray[np.float64], root: NDArray[np.float64], noise: float, is_numeric: bool
) -> NDArray[np.float64]:
    """The share of each class in a leaf, float64 [n, K], or the mean of its scaled labels [n, 1].

    A mean is drawn to that of the whole tree, the more the less of its leaf stands out of the noise.

    Args:
        sums: released statistics of leaves, float64 [n, n_statistics], in records.
        root: their sum over the tree.
        noise: the standard deviation of each.
        is_numeric: whether these are sums of labels and counts.
    """
    if is_numeric:
        middle = min(max(float(root[0]) / max(1.0, float(root[1])), -1.0), 1.0)
        least = max(1.0, SURE * noise)
        steps = (sums[:, :1] - middle * sums[:, 1:]) / np.maximum(sums[:, 1:], least)
        return np.asarray(np.clip(middle + steps * (sums[:, 1:] > 0), -1, 1))
    total = sums.sum(axis=1, keepdims=True)
    return np.where(total > 0, np.clip(sums / np.where(total > 0, total, 1), 0, 1), 1 / sums.shape[1])
