"""From a query to what its round must say: the width and the bounds follow from the plan, whatever was asked before."""

from __future__ import annotations

from math import isqrt
from types import SimpleNamespace
from typing import Any

import pytest

from hedgerow.secagg.query_round import HEADROOM, TAIL_DEVIATIONS, expected_round
from hedgerow.secagg.refusals import Refusal
from hedgerow.secagg.roster import NoiseMode
from hedgerow.secagg.round_messages import VectorSpec
from hedgerow.secagg.transitions import Code

MODEL = b"m" * 32


def expected(length: int, bound: int, rows: int, noise: NoiseMode, variance: int, n_nodes: int = 4) -> Any:
    query: Any = SimpleNamespace(length=length, bound=bound, purpose=f"leaves of {length}")
    plan: Any = SimpleNamespace(privacy=SimpleNamespace(n_records=rows, max_rows_per_unit=2))
    return expected_round(query, plan, noise, variance, n_nodes, MODEL)


@pytest.mark.parametrize("bound", [3, 2**30])
@pytest.mark.parametrize("variance", [0, 10_000])
def test_a_round_says_what_its_own_query_needs(bound, variance):
    """Queries that differ in one thing only, asked in turn and again: none is told the bounds of another."""
    draws = {NoiseMode.SERVER: 0, NoiseMode.DISTRIBUTED: 4, NoiseMode.LOCAL: 2 * 50}
    for _ in range(2):
        for noise, n_draws in draws.items():
            for length in (5, 6):
                tail = TAIL_DEVIATIONS * (isqrt(variance * n_draws) + 1) if variance * n_draws else 0
                needed = bound * 2 * 50 + tail
                width = 32 if needed < 2**31 else 64
                most = min(2 ** (width - 1) - 1, HEADROOM * needed)
                found = expected(length, bound, 50, noise, variance)
                assert found.vectors == (VectorSpec("sum", length, width, most, most),)
                assert (found.purpose, found.model) == (f"leaves of {length}", MODEL)
                assert (found.noise.mode, found.noise.variance) == (noise, variance)


def test_sums_that_no_word_holds_are_refused_each_time():
    """A refusal is not remembered as an answer."""
    for _ in range(2):
        with pytest.raises(Refusal) as refused:
            expected(5, 2**62, 50, NoiseMode.SERVER, 0)
        assert refused.value.reason is Code.WIDTH_TOO_NARROW
