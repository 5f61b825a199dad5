"""From a query to what its round must say: the width and the bounds follow from the plan, whatever was asked before."""

from __future__ import annotations

from math import isqrt
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.errors import PlanError
from hedgerow.methods.dp_xgboost.trees import SplitSelection
from hedgerow.rounds import HEADROOM, TAIL_DEVIATIONS, expect_round, require_words
from hedgerow.secagg.messages import NoiseMode, VectorSpec
from hedgerow.secagg.transitions import Code, Refusal

MODEL = b"m" * 32


def expected(length: int, bound: int, rows: int, noise: NoiseMode, variance: int, n_nodes: int = 4) -> Any:
    return expect_round(query_of(length, bound), stand_in_plan(rows), noise, variance, n_nodes, MODEL)


def query_of(length: int, bound: int) -> Any:
    return SimpleNamespace(length=length, bound=bound, purpose=f"leaves of {length}", is_pure=False)


def stand_in_plan(rows: int, noise: str = "server") -> Any:
    privacy = SimpleNamespace(n_records=rows, max_rows_per_unit=2, sites_per_unit=1, rows_per_unit=2, noise=noise)
    return SimpleNamespace(privacy=privacy)


@pytest.mark.parametrize("bound", [3, 2**30])
@pytest.mark.parametrize("variance", [0, 10_000])
def test_a_round_says_what_its_own_query_needs(bound, variance):
    """Queries that differ in one thing only, asked in turn and again: none is told the bounds of another."""
    draws = {NoiseMode.SERVER: 1, NoiseMode.DISTRIBUTED: 4, NoiseMode.LOCAL: 2 * 50 + 4}
    for _ in range(2):
        for noise, n_draws in draws.items():
            for length in (5, 6):
                tail = TAIL_DEVIATIONS * (isqrt(variance * n_draws) + 1) if variance else 0
                own = bound * 2 * 50 + (tail if noise is NoiseMode.LOCAL else 0)
                added = 0 if noise is NoiseMode.LOCAL else tail
                sums = HEADROOM * (bound * 2 * 50 + tail)
                width = 32 if max(sums, 4 * own + added) < 2**31 else 64
                entries = (2 ** (width - 1) - 1 - added) // 4
                found = expected(length, bound, 50, noise, variance)
                assert found.vectors == (VectorSpec("sum", length, width, entries, sums),)
                assert (found.purpose, found.model) == (f"leaves of {length}", MODEL)
                assert (found.noise.mode, found.noise.variance) == (noise, variance)


@given(
    bound=st.integers(1, 2**24), rows=st.integers(1, 2**20), n_nodes=st.integers(1, 1000),
    noise=st.sampled_from(list(NoiseMode)), sigma=st.integers(0, 2**20), is_pure=st.booleans(),
)  # fmt: skip
def test_no_sum_of_what_sites_may_send_ever_wraps(bound, rows, n_nodes, noise, sigma, is_pure):
    """Whatever the plan: all sites at their bound together stay within a word, with the noise in it; a site that holds
    every declared row is not clipped; and four times the declared rows are within what may be released.
    """
    query = SplitSelection.__new__(SplitSelection) if is_pure else query_of(1, bound)
    for name, value in (("length", 1), ("bound", bound), ("purpose", "p")):
        object.__setattr__(query, name, value)
    (vector,) = expect_round(query, stand_in_plan(rows), noise, sigma * sigma, n_nodes, MODEL).vectors
    exact = bound * 2 * rows
    draws = {NoiseMode.SERVER: 1, NoiseMode.DISTRIBUTED: n_nodes, NoiseMode.LOCAL: 0}[noise]
    added = TAIL_DEVIATIONS * isqrt(sigma * sigma * draws)
    assert n_nodes * vector.entry_bound + added < 2 ** (vector.width - 1)
    assert exact <= vector.entry_bound and HEADROOM * exact <= vector.sum_bound < 2 ** (vector.width - 1)
    if is_pure:
        assert vector.width == 64 and vector.entry_bound >= min(2**31 * bound, (2**63 - 1 - added) // n_nodes)


@pytest.mark.parametrize("rows", [2**16 - 1, 2**16])
def test_there_is_room_at_the_end_of_a_word(rows):
    """One declared record more or less must not decide whether the next record ends the run: at 131,071 records of
    2^14 units the sum alone fills 31 bits.
    """
    (vector,) = expected(5, 2**14, rows, NoiseMode.SERVER, 10**12).vectors
    assert vector.width == 64 and vector.sum_bound >= HEADROOM * 2**14 * 2 * rows


@pytest.mark.parametrize(("rows", "n_nodes", "width"), [(12_000, 10, 32), (30_000, 3, 32), (48_842, 3, 64)])
def test_small_studies_send_words_of_32_bits(rows, n_nodes, width):
    """The figures of the document, for the default plan's 2^14 units a record and noise of 600,000: a larger study, as
    Adult's 48,842 records, sends twice as many bytes.
    """
    (vector,) = expected(1600, 2**14, rows // 2, NoiseMode.SERVER, 600_000**2, n_nodes).vectors
    assert vector.width == width


def test_sums_that_no_word_holds_are_refused_each_time():
    """A refusal is not remembered as an answer."""
    for _ in range(2):
        with pytest.raises(Refusal) as refused:
            expected(5, 2**62, 50, NoiseMode.SERVER, 0)
        assert refused.value.reason is Code.WIDTH_TOO_NARROW


def test_a_plan_whose_sums_no_word_holds_is_refused_by_name():
    """Before anything runs: the plan is told, and what to change in it."""
    with pytest.raises(PlanError, match=r"privacy\.n_records") as refused:
        require_words(query_of(5, 2**14), stand_in_plan(10**15), 0, 1)
    assert refused.value.code == "plan-sums-too-large"
    require_words(query_of(5, 2**14), stand_in_plan(10**12), 0, 1)
