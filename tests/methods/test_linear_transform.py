"""Transformed rows of linear models: integer sums against a slow oracle, and a bound that no transform can break."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.data.binned import SiteData
from hedgerow.losses.tables import RECORD_NORM, SCORE_UNIT
from hedgerow.methods.linear import (
    CROSS_SHIFT,
    GRAM_SHIFT,
    LinearBasis,
    ask_cross,
    ask_gram,
    cholesky,
    cross_products,
    gram_matrix,
    linear_loss,
    lower_inverse,
)
from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import FittedTrees, Purpose
from hedgerow.training.steps import NodeTrees
from hedgerow.trees.binning import build_grid
from hedgerow.trees.ensemble import Ensemble
from hedgerow.trees.leaf_sums import SiteRecords
from tests.builders import make_data, make_plan, take


def towards_zero(value: int, shift: int) -> int:
    return abs(value) >> shift if value >= 0 else -(abs(value) >> shift)


def slow_row(basis: LinearBasis, codes: list[int]) -> list[int]:
    """T r / 2**16 towards zero, cut off, then shortened: in Python's integers."""
    plain = [0] * basis.rows.n_columns
    plain[0] = basis.rows.intercept
    for feature, code in enumerate(codes):
        plain[int(basis.rows.column[feature, code])] += int(basis.rows.entry[feature, code])
    row = []
    for line in basis.rows.transform.tolist():
        value = towards_zero(sum(t * r for t, r in zip(line, plain, strict=True)), 16)
        row.append(min(max(value, -(2**24)), 2**24))
    norm_squared = sum(value * value for value in row)
    if norm_squared > basis.rows.limit**2:
        norm = math.isqrt(norm_squared - 1) + 1
        row = [(1 if value >= 0 else -1) * (abs(value) * basis.rows.limit // norm) for value in row]
    return row


@st.composite
def bases(draw: st.DrawFn) -> tuple[Plan, LinearBasis, SiteData]:
    """A basis after any transform: small, usual, or beyond the largest entry that is kept."""
    plan = make_plan(draw(st.sampled_from(["binary", "regression"])))
    basis = LinearBasis.of(plan, build_grid(plan), 1.0, "grid", numeric_only=draw(st.booleans()))
    p = basis.rows.n_columns
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    matrix = random.normal(size=(p, p)) * 10.0 ** draw(st.integers(-4, 4))
    return plan, basis.transform(matrix), make_data(plan, draw(st.integers(1, 5)), draw(st.integers(0, 99)))


def records_of(data: SiteData) -> SiteRecords:
    return SiteRecords(data.codes, data.labels, np.zeros((1, data.n_records), dtype=np.int32))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_kernels_sum_what_is_written_down(data: st.DataObject) -> None:
    """Both kinds of sums against sums record by record, whatever the transform."""
    plan, basis, rows = data.draw(bases())
    shown = [slow_row(basis, rows.codes[:, record].tolist()) for record in range(rows.n_records)]
    p = basis.rows.n_columns
    upper = [(i, j) for i in range(p) for j in range(i, p)]
    query = ask_gram(1, "test", basis, 1.0, 1)
    expected = [sum(towards_zero(row[i] * row[j], GRAM_SHIFT) for row in shown) for i, j in upper]
    assert gram_matrix(records_of(rows), query).tolist() == expected
    loss = linear_loss("logistic", plan.label.type == "regression", 0.3)
    cross = ask_cross(Purpose(2, "CrossProducts", "test"), basis, loss, 1.0, 1, NodeTrees())
    if plan.label.type == "regression":
        residuals = [(abs(int(label)) * RECORD_NORM) >> 16 for label in rows.labels]
        limit = math.floor(0.3 * RECORD_NORM)
        signed = zip(rows.labels, residuals, strict=True)
        gradients = [min(size, limit) * (1 if label >= 0 else -1) for label, size in signed]
    else:
        # A score of zero counts as the middle of its step of 1/256.
        share = 1 / (1 + math.exp(-0.5 / 256))
        gradients = [math.trunc((label - share) * RECORD_NORM) for label in rows.labels]
    expected = [
        sum(towards_zero(g * row[i], CROSS_SHIFT) for g, row in zip(gradients, shown, strict=True)) for i in range(p)
    ]
    assert cross_products(records_of(rows), cross, loss).tolist() == expected


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_no_transform_makes_a_record_larger_than_stated(data: st.DataObject) -> None:
    """The transform is a release, so nobody knows it beforehand: the sensitivity must hold for all of them."""
    plan, basis, rows = data.draw(bases())
    one = take(rows, np.arange(1))
    loss = linear_loss("logistic", plan.label.type == "regression", 1.0)
    gram = ask_gram(1, "test", basis, 1.0, 1)
    cross = ask_cross(Purpose(2, "CrossProducts", "test"), basis, loss, 1.0, 1, NodeTrees())
    for query, answer in (
        (gram, gram_matrix(records_of(one), gram)),
        (cross, cross_products(records_of(one), cross, loss)),
    ):
        vector = answer.astype(object)
        assert sum(value * value for value in vector) <= query.sensitivity_squared
        assert max(abs(value) for value in vector) <= query.bound


def test_a_record_comes_near_the_bound() -> None:
    """A transform that sends a record onto one axis reaches the stated sensitivity: it is no larger than it must be."""
    plan = make_plan("binary")
    basis = LinearBasis.of(plan, build_grid(plan), 1.0, "grid", numeric_only=True)
    matrix = np.zeros((4, 4))
    matrix[0, 0] = 5.0
    query = ask_gram(1, "test", basis.transform(matrix), 1.0, 1)
    vector = gram_matrix(records_of(make_data(plan, 1, 1)), query).astype(np.float64)
    assert (vector**2).sum() > 0.999 * query.sensitivity_squared


def test_coefficients_of_transformed_rows_are_trees_over_codes() -> None:
    """The score of a record is the product of coefficients, transform and plain row; left-out features say nothing."""
    plan = make_plan("regression")
    grid = build_grid(plan)
    random = np.random.default_rng(4)
    matrix, coefficients = random.normal(size=(4, 4)), random.normal(size=4)
    basis = LinearBasis.of(plan, grid, 1.0, "grid", numeric_only=True).transform(matrix)
    assert basis.blocks == ((1, 1), (2, 1), (3, 0), (3, 1))
    data = make_data(plan, 50, 3)
    values = basis.values(coefficients, 2**30)
    scores = Ensemble(grid, FittedTrees(basis.trees, values), 1, "identity").scores(data.codes)[0]
    plain = np.zeros((50, 4))
    plain[:, 0] = 1.0
    for feature, column in ((0, 1), (1, 2), (3, 3)):
        plain[:, column] = basis.rows.entry[feature, data.codes[feature]] / basis.unit
    assert scores == pytest.approx(plain @ matrix.T @ coefficients, abs=10 / SCORE_UNIT + 1e-3)
    assert not values[2].any()


def test_the_inverse_of_a_factor_is_scipys() -> None:
    """And makes what it was made of round."""
    random = np.random.default_rng(1)
    matrix = random.normal(size=(9, 40))
    gram = matrix @ matrix.T + 0.1 * np.eye(9)
    lower = cholesky(gram)
    assert lower is not None
    inverse = lower_inverse(lower)
    assert inverse == pytest.approx(scipy.linalg.solve_triangular(lower, np.eye(9), lower=True), abs=1e-10)
    assert inverse @ gram @ inverse.T == pytest.approx(np.eye(9), abs=1e-9)
