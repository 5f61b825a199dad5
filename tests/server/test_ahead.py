"""What is worked out while sites are waited for: the same noise, once for each release, and the same report."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from hedgerow.errors import PrivacyError
from hedgerow.methods.registry import program_for
from hedgerow.plan.plan import Plan
from hedgerow.privacy.ledger import Ledger
from hedgerow.privacy.noise import SeededNoise, SystemNoise
from hedgerow.protocol.queries import Query
from hedgerow.server.ahead import Ahead, DrawnAhead
from hedgerow.server.coordinator import Releaser, checked_report, entry_of


def first_query(factory: ModuleType, **privacy: Any) -> tuple[Plan, Query]:
    plan = factory.make_plan(privacy=privacy)
    return plan, next(program_for(plan))


def test_noise_drawn_ahead_is_given_out_once() -> None:
    """Two releases with one draw of noise would cancel it: their difference is the exact difference of two sums."""
    noise = DrawnAhead(SystemNoise(os.urandom))
    noise.draw(1 << 30, 4, "round 1")
    first, second = noise.sample(1 << 30, 4, "round 1"), noise.sample(1 << 30, 4, "round 1")
    assert (first != second).all()


@pytest.mark.parametrize("asked", [(9, 4, "round 1"), (8, 5, "round 1"), (8, 4, "round 2")])
def test_noise_drawn_ahead_is_for_one_release_only(factory: ModuleType, asked: tuple[int, int, str]) -> None:
    """Noise of another size, length or purpose is drawn anew, and what was drawn ahead is forgotten."""
    counting = factory.CountingNoise(5)
    noise = DrawnAhead(counting)
    noise.draw(8, 4, "round 1")
    np.testing.assert_array_equal(noise.sample(*asked), SeededNoise(5).sample(*asked))
    noise.sample(8, 4, "round 1")
    assert counting.asked == [(8, 4, "round 1"), asked, (8, 4, "round 1")]


def test_a_prepared_release_is_the_release(factory: ModuleType) -> None:
    """Drawn ahead or not, a sum gets the noise that its event declares; to prepare twice draws once."""
    plan, query = first_query(factory)
    counting = factory.CountingNoise(5)
    ahead = Ahead(plan, counting)
    for _ in range(2):
        ahead.prepare(query, Ledger(), None, is_last=False)
    total = np.arange(query.length)
    released = Releaser(ahead.noise).release(query, total)
    np.testing.assert_array_equal(released, Releaser(SeededNoise(5)).release(query, total))
    assert len(counting.asked) == 1


def test_a_report_is_of_the_ledger_that_it_was_made_for(factory: ModuleType) -> None:
    """The prepared report is the one that would have been made, and it is never given for another ledger."""
    plan, query = first_query(factory)
    ahead = Ahead(plan, factory.CountingNoise(5))
    ahead.prepare(query, Ledger(), None, is_last=True)
    ledger = Ledger().append(entry_of(query, None, SeededNoise(5), is_local=False)[0])
    assert ahead.report_on(ledger) == checked_report(plan, ledger, factory.CountingNoise(5))
    assert ahead.report_on(Ledger()) == checked_report(plan, Ledger(), factory.CountingNoise(5))


def test_a_run_beyond_its_budget_is_told_at_its_end_and_not_before(factory: ModuleType) -> None:
    """Work ahead never fails: the release and the report say what is wrong, where it can be dealt with."""
    _, query = first_query(factory)
    poor = factory.make_plan(privacy={"epsilon": 1e-6})
    ahead = Ahead(poor, factory.CountingNoise(5))
    ahead.prepare(query, Ledger(), None, is_last=True)
    ledger = Ledger().append(entry_of(query, None, SeededNoise(5), is_local=False)[0])
    with pytest.raises(PrivacyError) as caught:
        ahead.report_on(ledger)
    assert caught.value.code == "budget-exceeded"
    ahead.prepare(query, ledger, None, is_last=True)
