"""What one record can add to the sums of transformed rows, whatever release the transform was made from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hedgerow.client.node import Node
from hedgerow.data.binned import SiteData
from hedgerow.losses.tables import SCORE_LIMIT
from hedgerow.methods.linear import (
    MAX_TRANSFORMED,
    CrossProducts,
    GramMatrix,
    LinearBasis,
    LinearRows,
    ask_cross,
    ask_gram,
    cholesky,
    cross_products,
    gram_matrix,
    lower_inverse,
    solve,
)
from hedgerow.methods.registry import resolve
from hedgerow.methods.replica import Replica
from hedgerow.methods.s_gbdt.settings import build_start
from hedgerow.methods.tasks import TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import Purpose
from hedgerow.training.steps import NodeTrees
from hedgerow.trees.binning import build_grid
from hedgerow.trees.leaf_sums import SiteRecords
from tests.builders import make_data, s_gbdt_plan, take

Matrix = NDArray[np.float64]
Questions = list[GramMatrix | CrossProducts]


def matrices() -> dict[str, Matrix]:
    """Transforms of 4 columns that an attacker would choose, most of which no honest first release leads to."""
    reach, ones, identity = 2.0**10, np.ones((4, 4)), np.eye(4)
    signs = np.where(np.add.outer(np.arange(4), np.arange(4)) % 2, -1.0, 1.0)
    onto_one = np.zeros((4, 4))
    onto_one[3] = 1.0
    odd = identity.copy()
    odd[0, 0], odd[1, 1], odd[2, 2] = np.nan, np.inf, -np.inf
    return {
        "nothing": np.zeros((4, 4)),
        "as it is": identity,
        "the other sign": -identity,
        "as long as can be": reach * identity,
        "all alike": reach * ones,
        "signs in turn": reach * signs,
        "one feature only": np.diag([0.0, 0.0, reach, 0.0]),
        "onto one entry": reach * onto_one,
        "just above 1": (1 + 2.0**-15) * identity,
        "a hair": 2.0**-16 * ones,
        "beyond all": 1e300 * signs,
        "no numbers": odd,
        "no number at all": np.full((4, 4), np.nan),
    }


def questions(plan: Plan) -> Questions:
    """Both questions of a linear start: of plain rows, for every transform, and for integers that none is made of."""
    basis, found = LinearBasis.of(plan, build_grid(plan), 1.0, "grid", numeric_only=True), []
    bases = [basis, *(basis.transform(matrix) for matrix in matrices().values())]
    for integer in (np.iinfo(np.int64).min, np.iinfo(np.int64).max, 2**50):
        bases.append(replace(basis, rows=replace(basis.rows, transform=np.full((4, 4), integer, dtype=np.int64))))
    for one in bases:
        found.append(ask_gram(1, "test", one, 1.0, 1))
        for score_bound in (0, SCORE_LIMIT):
            purpose = Purpose(2, "CrossProducts", "test")
            carried = NodeTrees(score_bound=score_bound)
            found.append(ask_cross(purpose, one, build_start(plan).loss, 1.0, 1, carried))
    return found


def extremes(plan: Plan) -> SiteData:
    """One record for every combination of first, last and missing codes and of the two ends of the labels."""
    cells = build_grid(plan).features
    codes = [(0, one.n_cells - 1, one.n_codes - 1) for one in cells]
    ends = (-(2**16), 2**16) if plan.label.type == "regression" else (0, 1)
    rows = list(product(*codes, ends))
    table = np.array([row[:-1] for row in rows], dtype=build_grid(plan).dtype)
    return SiteData(np.ascontiguousarray(table.T), np.array([row[-1] for row in rows], dtype=np.int32))


def answer_of(plan: Plan, query: GramMatrix | CrossProducts, data: SiteData, score: int) -> list[int]:
    """The exact sums over some records of one score."""
    records = SiteRecords(data.codes, data.labels, np.full((1, data.n_records), score, dtype=np.int32))
    if isinstance(query, GramMatrix):
        return gram_matrix(records, query).tolist()
    return cross_products(records, query, build_start(plan).loss).tolist()


def worst_share(plan: Plan, fault: Callable[[LinearRows], LinearRows] = lambda rows: rows) -> float:
    """The largest squared distance of sums with and without one record, as a share of what the question declares."""
    data, worst = extremes(plan), 0.0
    others = take(data, np.arange(0, data.n_records, 7))
    for query in questions(plan):
        asked = replace(query, rows=fault(query.rows))
        far = query.score_bound if isinstance(query, CrossProducts) else 0
        for score in {-far, far}:
            without = answer_of(plan, asked, others, score)
            for number in range(0, data.n_records, 5):
                more = take(data, np.append(np.arange(0, data.n_records, 7), number))
                pairs = zip(answer_of(plan, asked, more, score), without, strict=True)
                moved = [a - b for a, b in pairs]
                assert fault(query.rows) is not query.rows or max(map(abs, moved)) <= query.bound
                worst = max(worst, sum(value * value for value in moved) / query.sensitivity_squared)
    return worst


def linear_start(label: str, epsilon: float = 2.0, **section: Any) -> Plan:
    return s_gbdt_plan(
        label, {"n_trees": 2}, {"epsilon": epsilon}, initial_score="linear", initial_score_share=0.5, **section
    )


@pytest.mark.parametrize("label", ["binary", "regression"])
def test_no_neighbour_is_farther_than_declared(label: str) -> None:
    """Sums over records and over one more, for the worst transforms, codes, labels and scores; and it is nearly
    reached, so that the search is no empty one."""
    worst = worst_share(linear_start(label))
    assert 0.99 < worst <= 1


@pytest.mark.parametrize("label", ["binary", "regression"])
def test_rows_that_are_not_shortened_afterwards_would_be_found(label: str) -> None:
    """The search above finds what it is there for: no shortening, and a limit that is a little too long."""
    for limit in (2**30, 2**14 + 100):
        assert worst_share(linear_start(label), lambda rows, limit=limit: replace(rows, limit=limit)) > 1


def test_rows_too_long_for_their_squares_are_refused() -> None:
    """With more entries than this the squared norm may leave 64 bits, and the longest row would not be shortened."""
    assert MAX_TRANSFORMED * (2**24) ** 2 < 2**63
    plan = linear_start("binary")
    basis = LinearBasis.of(plan, build_grid(plan), 1.0, "grid", numeric_only=True)
    with pytest.raises(ValueError, match="too long"):
        basis.transform(np.broadcast_to(np.zeros(1), (MAX_TRANSFORMED + 1, 1)))


def test_equations_are_solved_one_rounding_at_a_time() -> None:
    """To the bit what Python's numbers give, operation by operation: no fused, no reordered sum, on any machine; nodes
    compute the transform each for themselves."""
    random = np.random.default_rng(3)
    for size in (1, 2, 7, 20):
        root = random.normal(size=(size, size + 2))
        gram = root @ root.T
        right = random.normal(size=size)
        lower = cholesky(gram)
        assert lower is not None
        slow = slow_cholesky(gram.tolist())
        assert lower.tolist() == slow
        assert lower_inverse(lower).tolist() == slow_inverse(slow)
        assert solve(lower, right).tolist() == slow_solution(slow, right.tolist())


def slow_cholesky(rest: list[list[float]]) -> list[list[float]]:
    """The outer-product form, one number after the other."""
    size = len(rest)
    lower = [[0.0] * size for _ in range(size)]
    for step in range(size):
        pivot = math.sqrt(rest[step][step])
        for row in range(step, size):
            lower[row][step] = rest[row][step] / pivot
        for row in range(step + 1, size):
            for column in range(step + 1, size):
                rest[row][column] -= lower[row][step] * lower[column][step]
    return lower


def slow_inverse(lower: list[list[float]]) -> list[list[float]]:
    """The inverse of a lower triangular matrix, row by row."""
    size = len(lower)
    inverse = [[float(row == column) for column in range(size)] for row in range(size)]
    for step in range(size):
        inverse[step] = [value / lower[step][step] for value in inverse[step]]
        for row in range(step + 1, size):
            inverse[row] = [a - lower[row][step] * b for a, b in zip(inverse[row], inverse[step], strict=True)]
    return inverse


def slow_solution(lower: list[list[float]], x: list[float]) -> list[float]:
    """Forward and backward substitution, column by column."""
    size = len(lower)
    for step in range(size):
        x[step] /= lower[step][step]
        for row in range(step + 1, size):
            x[row] -= lower[row][step] * x[step]
    for step in range(size - 1, -1, -1):
        x[step] /= lower[step][step]
        for row in range(step):
            x[row] -= lower[step][row] * x[step]
    return x


def test_a_round_is_bound_to_its_transform() -> None:
    """Nodes whose transforms differ by one unit would add up rows that mean different things; their rounds differ."""
    plan = linear_start("binary")
    replica = Replica(TrainingTask(plan))
    node = Node("one", make_data(plan, 50, 1), plan, resolve(plan))
    contexts = []
    for _ in range(5):
        query = replica.query
        assert isinstance(query, GramMatrix | CrossProducts)
        contexts.append(replica.context())
        if len(query.rows.transform):
            assert replica.context() != replica.history
            other = query.rows.transform.copy()
            other[2, 1] += 1
            replica.query = replace(query, rows=replace(query.rows, transform=other))
            assert replica.context() != contexts[-1]
            replica.query = query
        replica.feed(node.answer(query))
    assert len(set(contexts)) == 5 and replica.context() == replica.history


@pytest.mark.parametrize("clip", [1e-3, 1e-4, 4e-5])
def test_the_smallest_clips_leave_one_integer(clip: float) -> None:
    """A clip of gradients below one integer is one integer, for the kernel and for the noise, and the plan resolves."""
    plan = linear_start("regression", 20.0, gradient_clip=clip)
    loss = build_start(plan).loss
    assert loss.clip**2 == loss.norm_squared == max(1, math.floor(clip * 2**14)) ** 2
    assert resolve(plan).schedule(plan).events
    assert worst_share(plan) <= 1
