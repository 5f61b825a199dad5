"""Pages for those who sign: each number is what the functions say that a report is made of."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from hedgerow.privacy.accountants import mu_of
from hedgerow.privacy.accounts import AccountState
from hedgerow.privacy.events import DiscreteLaplaceEvent, GaussianEvent
from hedgerow.privacy.guesses import bound_guesses, compute_meeting_chance
from hedgerow.privacy.statement import PLACES, PROCESS, format_share
from hedgerow.rounds import choose_wishes
from hedgerow.secagg.guarantees import derive
from tests.builders import make_plan

DOCS = Path(__file__).resolve().parents[2] / "docs"
OFFICER = " ".join((DOCS / "officer.md").read_text(encoding="utf-8").split())
REPORT = " ".join((DOCS / "how-to" / "choose-epsilon.md").read_text(encoding="utf-8").split())


def bound_gaussian(epsilon: float, delta: float) -> str:
    """The share of right guesses under Gaussian noise of that promise."""
    return format_share(bound_guesses([GaussianEvent(1 / mu_of(epsilon, delta))]))


def test_the_officer_reads_how_often_guesses_are_right() -> None:
    """Whoever signs for a method with pure noise must not read the share of Gaussian noise, and none is too small."""
    rows = re.findall(r"\| ([0-9.]+) \| ([0-9.]+ %) \| ([0-9.]+ %) \|", OFFICER)
    assert len(rows) == 4
    for epsilon, gaussian, pure in rows:
        assert gaussian == bound_gaussian(float(epsilon), 1e-6)
        assert pure == format_share(bound_guesses([DiscreteLaplaceEvent(float(epsilon))]))
        # Nothing that is promised at this epsilon is above the second column.
        assert pure == format_share(bound_guesses([GaussianEvent(0.01)], float(epsilon), 1e-6))


def test_the_page_on_reports_shows_the_guesses_of_its_example() -> None:
    """The example is the demonstration's: epsilon 1 at delta 1e-5."""
    assert f"right in at most {bound_gaussian(1.0, 1e-5)} of cases" in REPORT
    assert PLACES[PROCESS] in REPORT


def count_colluders(n_sites: int, n_groups: int = 0) -> int:
    """How many sites may collude by what a coordinator asks for and every node recomputes."""
    plan = make_plan("binary", {})
    plan = replace(plan, federation=replace(plan.federation, groups=n_groups))
    sizes = {n_sites // max(1, n_groups), -(-n_sites // max(1, n_groups))}
    wishes = choose_wishes(plan, sizes)
    (found,) = {derive(size, wishes).n_colluders for size in sizes}
    return found


def test_the_officer_reads_how_many_sites_may_collude() -> None:
    """With groups fewer may collude than a quarter: the page names both, as the protocol derives them."""
    said = re.search(r"at most 1 of 3 to 8 sites, (.*?)\. With groups", OFFICER)
    assert said is not None
    pairs = [(int(c), int(n)) for c, n in re.findall(r"(\d+) of (\d+)", said.group(1))]
    assert len(pairs) == 5 and pairs == [(count_colluders(n), n) for _, n in pairs]
    assert {count_colluders(n) for n in range(3, 9)} == {1}
    grouped = re.search(r"at most (\d+) of 9 sites in three groups and (\d+) of 30", OFFICER)
    assert grouped is not None
    assert [int(each) for each in grouped.groups()] == [count_colluders(9, 3), count_colluders(30, 3)]


@pytest.mark.parametrize("n_beside", [0, 1])
def test_the_officer_reads_how_often_colluders_meet(n_beside: int) -> None:
    """Groups that are dealt anew make colluders meet: the chance is the exact one."""
    assert format_share(float(compute_meeting_chance(9, 3, 8, 2, n_beside))) in OFFICER


def test_no_page_for_those_who_sign_claims_one_share_for_all_methods() -> None:
    """What was true of usual runs only stays out of the pages."""
    pages = [(DOCS / name).read_text(encoding="utf-8") for name in ("officer.md", "law.md", "checker.md")]
    assert not any("about a quarter" in page or "54.7 %" in page for page in pages)


def test_the_line_of_the_account_on_the_page_on_reports_is_the_code_s() -> None:
    """A reader finds the line that a report has, word for word."""
    state = AccountState("hedgerow-budget.db", read="2026-11-28", n_runs=2, epsilon=1.4549)
    assert f"account {state.facts()[0][1].partition(' at delta')[0]}" in REPORT
