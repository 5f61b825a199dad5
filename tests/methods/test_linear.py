"""Linear models on the grid: the integer sums against slow oracles, their bounds, the solver against scipy."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.client.node import Node
from hedgerow.data.binned import SiteData
from hedgerow.losses.tables import RECORD_NORM, SCORE_UNIT
from hedgerow.methods.adassp.program import correct_gram, cross_query, gram_query
from hedgerow.methods.adassp.settings import AdasspSettings, resolve_adassp
from hedgerow.methods.linear import (
    CROSS_SHIFT,
    GRAM_SHIFT,
    CrossProducts,
    GramMatrix,
    LinearBasis,
    cholesky,
    least_eigenvalue,
    linear_loss,
    lower_inverse,
    solve,
)
from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import FittedTrees
from hedgerow.training.steps import NodeTrees, Run
from hedgerow.trees.binning import build_grid
from hedgerow.trees.leaf_sums import SiteRecords, apply_update
from tests.builders import make_data, make_plan, take

Case = tuple[Plan, Run, LinearBasis, AdasspSettings]


def linear_plan(label: str = "binary", own: dict[str, Any] | None = None, **privacy: Any) -> Plan:
    return make_plan(label, {"algorithm": "adassp"}, privacy, adassp=own or {})


def case_of(plan: Plan) -> Case:
    own = resolve_adassp(plan)
    run = Run(plan, own, build_grid(plan), own.loss(plan))
    return plan, run, LinearBasis.of(plan, run.grid, own.row_norm, plan.own.scale), own


def slow_row(basis: LinearBasis, codes: list[int]) -> list[int]:
    """A record's row, one entry after the other, shortened in exact integers."""
    row = [0] * basis.rows.n_columns
    row[0] = basis.rows.intercept
    for feature, code in enumerate(codes):
        row[int(basis.rows.column[feature, code])] += int(basis.rows.entry[feature, code])
    norm_squared = sum(value * value for value in row)
    if norm_squared > basis.rows.limit**2:
        norm = math.isqrt(norm_squared - 1) + 1
        row = [int(math.copysign(abs(value) * basis.rows.limit // norm, value)) for value in row]
    return row


def towards_zero(value: int, shift: int) -> int:
    return int(math.copysign(abs(value) >> shift, value)) if value else 0


@st.composite
def cases(draw: st.DrawFn) -> tuple[Case, SiteData]:
    label = draw(st.sampled_from(["binary", "regression"]))
    loss = draw(st.sampled_from(["auto", "squared", "logistic", "hinge"])) if label == "binary" else "auto"
    own = {
        "loss": loss, "scale": draw(st.sampled_from(["grid", "linear"])), "rounds": draw(st.integers(1, 3)),
        "row_norm": draw(st.sampled_from(["auto", 0.4, 1.0, 1.7, 2.2])),
        "gradient_clip": draw(st.sampled_from([0.05, 0.7, 1.0])),
    }  # fmt: skip
    rows = draw(st.integers(1, 3))
    privacy = {"unit": "record" if rows == 1 else "patient", "max_rows_per_unit": rows}
    plan = linear_plan(label, own, **privacy)
    return case_of(plan), make_data(plan, draw(st.integers(1, 6)), draw(st.integers(0, 10**6)))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_kernels_sum_what_is_written_down(data: st.DataObject) -> None:
    """Gram matrix and cross products against sums in Python's integers, record by record, scores included."""
    (plan, run, basis, own), rows = data.draw(cases())
    node = Node("one", rows, plan, own)
    shown = [slow_row(basis, rows.codes[:, record].tolist()) for record in range(rows.n_records)]
    upper = [(i, j) for i in range(basis.rows.n_columns) for j in range(i, basis.rows.n_columns)]
    expected = [sum(towards_zero(row[i] * row[j], GRAM_SHIFT) for row in shown) for i, j in upper]
    assert node.answer(gram_query(run, basis, own)).tolist() == expected
    values = np.random.default_rng(1).integers(-SCORE_UNIT, SCORE_UNIT, (4, basis.trees.n_leaves, 1)).astype(np.int32)
    assert node.answer(cross_query(run, basis, 0, NodeTrees())).shape == (basis.rows.n_columns,)
    update = FittedTrees(basis.trees, values)
    sums = node.answer(cross_query(run, basis, 1, NodeTrees(update.trees.n_trees, 2**22, update)))
    leaves = basis.leaf_of_code[np.arange(4)[:, None], rows.codes]
    scores = values[np.arange(4)[:, None], leaves, 0].sum(axis=0)
    gradients = [slow_gradient(run, int(label), int(score)) for label, score in zip(rows.labels, scores, strict=True)]
    expected = [
        sum(towards_zero(g * row[j], CROSS_SHIFT) for g, row in zip(gradients, shown, strict=True))
        for j in range(basis.rows.n_columns)
    ]
    assert sums.tolist() == expected


def slow_gradient(run: Run, label: int, score: int) -> int:
    """-dL/ds from the formulas of the paper's Table 1; scores of classes in the middles of steps of 1/256."""
    own = run.settings
    assert isinstance(own, AdasspSettings)
    clip = run.plan.own.gradient_clip
    if run.plan.label.type == "regression":
        residual = (abs(label - score) * RECORD_NORM) >> 16
        return int(math.copysign(min(residual, math.floor(clip * RECORD_NORM)), label - score))
    step = min(max(score >> 8, -2048), 2047)
    s, y = (step + 0.5) / 256, 2 * label - 1
    if own.loss_kind == "logistic":
        return math.trunc((label - 1 / (1 + math.exp(-s))) * RECORD_NORM)
    if own.loss_kind == "hinge":
        return y * RECORD_NORM if y * s < 1 else 0
    return math.trunc(max(-clip, min(clip, y - s)) * RECORD_NORM)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_no_record_adds_more_than_the_query_states(data: st.DataObject) -> None:
    """The sensitivity that the noise is calibrated by, and the largest entry, for rows of one unit together."""
    (plan, run, basis, own), rows = data.draw(cases())
    unit_rows = min(rows.n_records, plan.privacy.max_rows_per_unit)
    one_unit = take(rows, np.arange(unit_rows))
    node = Node("one", one_unit, plan, own)
    gram = gram_query(run, basis, own)
    cross = cross_query(run, basis, 0, NodeTrees())
    for query in (gram, cross):
        vector = node.answer(query).astype(object)
        assert sum(value * value for value in vector) <= query.sensitivity_squared
        assert max(abs(value) for value in vector) <= query.bound * unit_rows


def test_the_worst_record_comes_near_the_bound() -> None:
    """A bound that no record comes near would be paid for with needless noise."""
    plan, run, basis, own = case_of(linear_plan())
    worst = np.zeros((4, 1), dtype=build_grid(plan).dtype)
    node = Node("one", SiteData(worst, np.ones(1, dtype=np.int32)), plan, own)
    for query in (gram_query(run, basis, own), cross_query(run, basis, 0, NodeTrees())):
        norm_squared = float((node.answer(query).astype(np.float64) ** 2).sum())
        assert norm_squared > 0.99 * query.sensitivity_squared


def test_a_skipped_shortening_would_exceed_the_bound() -> None:
    """What the property above is worth: rows that are not shortened break it."""
    plan, run, basis, own = case_of(linear_plan(own={"row_norm": 1.0}))
    query = gram_query(run, basis, own)
    free = GramMatrix(**{**query.__dict__, "rows": type(query.rows)(**{**query.rows.__dict__, "limit": 2**20})})
    codes = np.zeros((4, 1), dtype=build_grid(plan).dtype)
    node = Node("one", SiteData(codes, np.ones(1, dtype=np.int32)), plan, own)
    assert float((node.answer(free).astype(np.float64) ** 2).sum()) > 4 * query.sensitivity_squared
    assert float((node.answer(query).astype(np.float64) ** 2).sum()) <= query.sensitivity_squared


@pytest.mark.parametrize("kind", ["squared", "logistic", "hinge"])
def test_a_gradient_is_bounded_by_what_the_score_can_be(kind: str) -> None:
    """In the first round the logistic gradient is at most 1/2 (to a step), so half the noise does."""
    loss = linear_loss(kind, False, 1.0)
    first, later = (math.sqrt(loss.sensitivity_squared(bound)) / RECORD_NORM for bound in (0, 2**22))
    assert later <= 1.0
    assert first == pytest.approx(0.5 if kind == "logistic" else 1.0, abs=1e-2)


def test_the_trees_are_the_tables() -> None:
    """Each code's leaf value is coefficient times entry, the constant once; missing values count as the middle cell."""
    plan, run, basis, _ = case_of(linear_plan())
    coefficients = np.random.default_rng(3).normal(size=basis.rows.n_columns)
    fitted = FittedTrees(basis.trees, basis.values(coefficients, 2**30))
    data = make_data(plan, 400, 5)
    node = Node("one", data, plan, resolve_adassp(plan))
    node.answer(cross_query(run, basis, 1, NodeTrees(fitted.trees.n_trees, 2**22, fitted)))
    design = np.array([slow_row(basis, data.codes[:, record].tolist()) for record in range(400)]) / basis.unit
    scores = node.held.records.scores[0] / SCORE_UNIT
    np.testing.assert_allclose(scores, design @ coefficients, atol=5 * 2.0**-16)
    income = run.grid.features[1]
    assert basis.rows.entry[1, income.missing_code] == basis.rows.entry[1, income.n_cells // 2]


def test_what_is_known_of_the_gram_matrix_is_mended() -> None:
    """Two categories of a feature never meet; a category's square is its product with the constant."""
    plan, run, basis, own = case_of(linear_plan())
    query = gram_query(run, basis, own)
    exact = Node("one", make_data(plan, 50, 2), plan, own).answer(query)
    clean = correct_gram(exact, basis)
    noisy = correct_gram(exact + np.random.default_rng(0).integers(-(10**7), 10**7, len(exact)), basis)
    first, size = basis.blocks[2]
    block = noisy[first : first + size, first : first + size]
    assert size == 4 and np.array_equal(block, np.diag(np.diagonal(block)))
    assert np.array_equal(np.diagonal(block), noisy[0, first : first + size])
    assert np.array_equal(noisy, noisy.T)
    design = np.array([slow_row(basis, column) for column in make_data(plan, 50, 2).codes.T.tolist()])
    np.testing.assert_allclose(clean, (design.T @ design) / basis.unit**2, atol=50 * 2.0**GRAM_SHIFT / basis.unit**2)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 12))
def test_the_solver_agrees_with_scipy(seed: int, size: int) -> None:
    """Factor, solution and least eigenvalue, for definite and indefinite matrices."""
    random = np.random.default_rng(seed)
    factor = random.normal(size=(size, size))
    matrix = factor @ factor.T + 0.1 * np.eye(size)
    lower = cholesky(matrix)
    assert lower is not None
    np.testing.assert_allclose(lower, scipy.linalg.cholesky(matrix, lower=True), rtol=1e-6, atol=1e-9)
    right = random.normal(size=size)
    np.testing.assert_allclose(solve(lower, right), scipy.linalg.solve(matrix, right), rtol=1e-5, atol=1e-7)
    shifted = matrix - 2 * np.eye(size)
    least = float(scipy.linalg.eigvalsh(shifted)[0])
    found = least_eigenvalue(shifted, 20.0, steps=30)
    assert found <= least + 1e-9 and least - found < 1e-6
    assert (cholesky(shifted) is None) == (least <= 0)


def test_the_solver_uses_no_library_that_differs_between_machines() -> None:
    """The same bytes everywhere: no matrix product, no BLAS, no library function but the root, which IEEE 754 fixes."""
    code = "".join(map(inspect.getsource, (cholesky, solve, lower_inverse, least_eigenvalue)))
    for word in ("@", "dot(", "matmul", "einsum", "linalg", "inner(", ".sum(", "exp(", "log("):
        assert word not in code, word


def test_every_query_states_its_kind() -> None:
    """The names by which policies and ledgers know them."""
    _, run, basis, own = case_of(linear_plan())
    assert gram_query(run, basis, own).purpose.kind == GramMatrix.__name__
    assert cross_query(run, basis, 0, NodeTrees()).purpose.kind == CrossProducts.__name__


@pytest.mark.parametrize("candidates", ["adaptive", "iterative_hessian", "quantile"])
@pytest.mark.parametrize("n_records", [7, 20_000])
def test_scores_of_a_linear_model_are_those_of_its_rows(candidates: str, n_records: int) -> None:
    """Of grids that are finer than a byte as well, however few the records: a leaf's value is its cells' own."""
    plan = make_plan("regression", {"split_candidates": candidates})
    grid = build_grid(plan)
    basis = LinearBasis.of(plan, grid, 1.0, "linear")
    coefficients = np.random.default_rng(0).uniform(-1, 1, basis.rows.n_columns)
    codes = make_data(plan, n_records, 1).codes
    records = SiteRecords(codes, np.zeros(n_records, dtype=np.int32), np.zeros((1, n_records), dtype=np.int32))
    apply_update(records, FittedTrees(basis.trees, basis.values(coefficients, 2**30)))
    expected = np.full(n_records, coefficients[0])
    for feature, own in enumerate(codes):
        expected += coefficients[basis.rows.column[feature, own]] * (basis.rows.entry[feature, own] / basis.unit)
    np.testing.assert_allclose(records.scores[0] / SCORE_UNIT, expected, atol=len(codes) / SCORE_UNIT)
    for feature, cells in zip(plan.features, grid.features, strict=True):
        if not (cells.is_categorical or feature.integer):
            middles = np.linspace(feature.min, feature.max, 1000)[1:-1].astype(np.float32)
            own = basis.rows.entry[plan.features.index(feature), cells.encode(middles)] / basis.unit
            assert np.abs(own - (2 * (middles - feature.min) / (feature.max - feature.min) - 1)).max() < 0.1
