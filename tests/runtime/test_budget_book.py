"""The budget book: what runs have cost a data set adds up, survives, and is enforced."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import threading
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hedgerow.client import budget
from hedgerow.client.budget import BudgetBook, book_file, find_book, note_book
from hedgerow.client.policy import Policy
from hedgerow.client.state import NodeStep, NodeStore
from hedgerow.errors import AggregationError, PolicyRefusal
from hedgerow.methods.tasks import TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.privacy.events import GaussianEvent
from tests.builders import make_plan

if TYPE_CHECKING:
    from conftest import Builder, Federation

POLICY = Policy(version=1, data_set="test", max_epsilon=100.0, delta=1e-5, noise=("server", "distributed"))


def with_policy(federate: Builder, plan: Plan | None = None, **rules: Any) -> Federation:
    """Five sites, the first of which has stricter rules."""
    strict = dataclasses.replace(POLICY, **rules)
    return federate(5, plan, policies={"site-0": strict})


def test_the_budget_book_adds_runs_up_and_refuses_the_one_too_many(federate: Builder) -> None:
    """Composition over a data set's life: two runs of epsilon 2 cost more than one, less than four, and the third is
    refused before it starts.
    """
    federation = with_policy(federate, max_epsilon=3.2)
    plan, victim = federation.plan, federation.parties["site-0"]
    spent = [0.0]
    for number in range(2):
        federation.run()
        book = BudgetBook(victim.folder / "budget.db")
        spent.append(book.spent("test", 1e-5))
        lines = book.lines("test")
        assert len(lines) == number + 1 and lines[-1].status == "finished"
        assert lines[-1].epsilon(1e-5) == pytest.approx(plan.privacy.epsilon, rel=0.01)
        book.close()
        for file in federation.folder.glob("journal.db*"):
            file.unlink()
        for party in federation.parties.values():
            party.kill()
            party.start()
    assert spent[0] < spent[1] < spent[2] < 2 * spent[1]
    federation.events.clear()
    federation.run()
    assert [fault.code for fault in victim.failures] == ["policy-over-budget"]
    assert all("site-0" not in survivors for survivors in federation.session.run.survivors)


def test_a_run_that_stops_early_costs_what_it_used(federate: Builder) -> None:
    """The whole cost is reserved at the start; what no masked vector was sent for is given back at the end."""
    plan = make_plan()
    federation = federate(3, dataclasses.replace(plan, federation=dataclasses.replace(plan.federation, salvage=False)))

    def lose(event: Any) -> None:
        if event.kind == "released" and event.round == 2:
            federation.parties["site-2"].kill()

    federation.on_event = lose
    with pytest.raises(AggregationError) as caught:
        federation.run()
    assert caught.value.code == "too-few-sites"
    party = federation.parties["site-0"]
    assert [fault.code for fault in party.failures] == ["too-few-sites"]
    book = BudgetBook(party.folder / "budget.db")
    (line,) = book.lines()
    assert line.status == "stopped"
    # Two releases; a third round may have been under way.
    assert 2 <= len(line.events) <= 3
    assert line.epsilon(1e-5) < 2.0
    book.close()


def test_costs_for_different_units_are_not_added(tmp_path: Any) -> None:
    """Epsilon per record and epsilon per patient are different promises."""
    book = BudgetBook(tmp_path / "budget.db")
    events = [GaussianEvent(10.0)]
    book.reserve(b"1" * 32, "d", make_plan(), events, (9.0, 1e-5))
    other = make_plan(privacy={"unit": "patient", "max_rows_per_unit": 2})
    with pytest.raises(PolicyRefusal) as caught:
        book.reserve(b"2" * 32, "d", other, events, (9.0, 1e-5))
    assert caught.value.code == "policy-unit"
    book.reserve(b"2" * 32, "another data set", other, events, (9.0, 1e-5))
    book.close()


NAME = "Aufnahmen Zürich"


@pytest.mark.parametrize(
    "other",
    [unicodedata.normalize("NFD", NAME), NAME.upper(), f" {NAME} ", *(NAME.replace(" ", gap) for gap in "\u00a0\t")],
)
def test_a_name_that_looks_alike_is_no_new_account(tmp_path: Any, other: str) -> None:
    """A policy that is typed again, on another machine say, does not let the same people's budget begin again."""
    events, limit = [GaussianEvent(4.0)], (1.2, 1e-5)
    with contextlib.closing(BudgetBook(tmp_path / "budget.db")) as book:
        book.reserve(b"1" * 32, NAME, make_plan(), events, limit)
        with pytest.raises(PolicyRefusal) as caught:
            book.reserve(b"2" * 32, other, make_plan(), events, limit)
        assert caught.value.code == "policy-over-budget" and book.spent(other, 1e-5) == book.spent(NAME, 1e-5) > 0
        book.require_data_set(b"1" * 32, other)
        book.require_group(f"data {NAME}", b"members")
        with pytest.raises(PolicyRefusal):
            book.require_group(f"data {other}", b"others")
        book.require_group(f"data {other}", b"members")
        book.reserve(b"3" * 32, "Aufnahmen Bern", make_plan(), events, limit)
        assert [each["data_set"] for each in book.describe(1e-5)["data_sets"]] == [NAME, "Aufnahmen Bern"]


def test_two_runs_that_begin_at_once_do_not_both_get_the_last_of_a_budget(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes may share a book: between reading what is spent and reserving, the other must not come in."""
    books = [BudgetBook(tmp_path / "budget.db") for _ in range(2)]
    both_have_read = threading.Barrier(2)
    epsilon_of = budget.compose_epsilon

    def slow(events: Any, delta: float) -> float:
        with contextlib.suppress(threading.BrokenBarrierError):
            # Both never do; the one that waits here for the other in vain keeps it out meanwhile.
            both_have_read.wait(0.5)
        return epsilon_of(events, delta)

    monkeypatch.setattr(budget, "compose_epsilon", slow)
    refusals: list[str] = []

    def reserve(number: int) -> None:
        try:
            books[number].reserve(b"%d" % number * 32, "d", make_plan(), [GaussianEvent(4.0)], (1.2, 1e-5))
        except PolicyRefusal as refusal:
            refusals.append(refusal.code)

    threads = [threading.Thread(target=reserve, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refusals == ["policy-over-budget"] and len(books[0].lines("d")) == 1
    for book in books:
        book.close()


@pytest.mark.parametrize("has_database", [True, False])
@pytest.mark.parametrize("is_older", [False, True])
def test_a_node_whose_book_is_not_its_own_takes_part_in_nothing(
    federate: Builder, tmp_path: Path, is_older: bool, has_database: bool
) -> None:
    """A book that was deleted, or is a copy from before the last run, would count from less than was spent. Where the
    node's database went with it, the counter knows of the run.
    """
    federation = federate(3)
    victim = federation.parties["site-0"]
    if is_older:
        victim.kill()
        shutil.copy(victim.folder / "budget.db", tmp_path / "copy.db")
        victim.start()
    federation.run()
    victim.kill()
    for file in victim.folder.glob("budget.db*" if has_database else "*.db*"):
        file.unlink()
    if is_older:
        shutil.copy(tmp_path / "copy.db", victim.folder / "budget.db")
    victim.start()
    assert [fault.code for fault in victim.failures] == ["budget-lost"] and victim.session is None


def test_a_book_outlives_the_state_folder(tmp_path: Path) -> None:
    """By default the book lies beside the policy, under the site's name: deleting the state folder begins no account
    anew.
    """
    policy = str(tmp_path / "policy.toml")
    state = tmp_path / "north-state"
    state.mkdir()
    place = book_file(None, policy, "north")
    assert place == tmp_path / "north-budget.db"
    assert note_book(state, place) == place and find_book(state) == place.resolve() and find_book(place) == place
    assert (state / "budget.path").stat().st_mode & 0o077 == 0
    assert book_file("mine.db", policy, "north") == Path("mine.db")


def test_a_round_that_was_begun_anew_is_charged_at_its_dearer_cost(tmp_path: Path) -> None:
    """Which of two sums was opened a node need not know; it must not believe that it was the cheaper one."""
    cheap, dear = GaussianEvent(20.0), GaussianEvent(5.0)
    for number, attempts in enumerate([(cheap, dear), (dear, cheap), (dear,), (cheap, cheap)]):
        store = NodeStore(tmp_path / str(number))
        store.open_run(b"1" * 32, TrainingTask(make_plan()), b"2" * 32)
        for event in attempts:
            store.save(b"1" * 32, NodeStep(spent=(0, event)))
        store.save(b"1" * 32, NodeStep(spent=(1, cheap)))
        assert store.spent(b"1" * 32) == [dear if dear in attempts else cheap, cheap]
        store.close()


def test_what_a_node_writes_is_its_owners_alone(federate: Builder) -> None:
    """The folder holds keys: nobody else may list it, nor read a file in it."""
    federation = federate(3)
    federation.run()
    for party in federation.parties.values():
        assert party.folder.stat().st_mode & 0o777 == 0o700
        files = list(party.folder.iterdir())
        assert len(files) >= 3 and all(file.stat().st_mode & 0o777 == 0o600 for file in files)


@pytest.mark.parametrize("is_lost", [False, True], ids=["started again", "database lost"])
def test_a_run_is_answered_and_charged_for_one_data_set(federate: Builder, is_lost: bool) -> None:
    """A policy of another data set that is put in place in the midst of a run: what is asked of its rows would be on no
    account of theirs, and a line that was begun anew would be on none of those before."""
    federation = federate(5)
    victim = federation.parties["site-1"]

    def rename(event: Any) -> None:
        if event.kind == "released" and event.round == 1:
            victim.kill()
            if is_lost:
                for file in victim.folder.glob("node.db*"):
                    file.unlink()
            other = dataclasses.replace(victim.setup.policy, data_set="another")
            object.__setattr__(victim.setup, "policy", other)
            victim.start()

    federation.on_event = rename
    federation.run()
    assert ["site-1" in survivors for survivors in federation.session.run.survivors] == [True, False, False, False]
    assert victim.failures and not victim.is_done
    book = BudgetBook(victim.folder / "budget.db")
    (line,) = book.lines()
    assert line.data_set == "test" and line.events
    book.close()
