"""Budgets that were reserved for runs that never end: each of them is settled at what it has cost, and no less."""

from __future__ import annotations

import dataclasses
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.cli.main import main
from hedgerow.client.budget import FINISHED, BudgetBook, BudgetLine, compose_epsilon, list_costs, note_book
from hedgerow.client.joining import leave
from hedgerow.client.node_session import NodeSession
from hedgerow.client.state import NodeStore
from hedgerow.errors import AggregationError, DataError, PlanError, PolicyRefusal
from hedgerow.methods.replica import Replica, digest_behaviour
from hedgerow.methods.tasks import TrainingTask
from hedgerow.plan.plan import FederationSection as Timeouts
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import epsilon_of_rows
from hedgerow.privacy.cost import for_rows
from hedgerow.privacy.events import (
    DiscreteGaussianEvent,
    DiscreteGaussianSumEvent,
    DiscreteLaplaceEvent,
    FilteredGaussianEvent,
    GaussianEvent,
    LocalGaussianEvent,
    SampledGaussianEvent,
)
from hedgerow.protocol.messages import (
    Done,
    Finished,
    Hello,
    Invitation,
    Refused,
    RoundRequest,
    Salvaged,
    Welcome,
    decode,
    encode,
)
from tests.builders import make_plan

if TYPE_CHECKING:
    from conftest import Builder, Federation, Party

NO_VECTOR, VECTORS_LEFT, THREE_RELEASES = 3, 5, 10
"""Writes of the journal after which the coordinator is killed."""
VICTIM = "site-1"
RUN = b"1" * 32


def other(epsilon: float = 1.5) -> Plan:
    """Another plan than the federation's."""
    return make_plan(privacy={"epsilon": epsilon})


def book_of(party: Party) -> Path:
    return party.folder / "budget.db"


def lines(party: Party) -> list[tuple[str, int]]:
    """Of a node's book: how each run stands, and for how many releases it is charged."""
    with closing(BudgetBook(book_of(party))) as book:
        return [(line.status, sum(event.count for event in line.events)) for line in book.lines()]


def restart(federation: Federation, plan: Plan) -> None:
    """A new run of another plan: all nodes are started again, the coordinator has a new journal."""
    for file in federation.folder.glob("journal.db*"):
        file.unlink()
    federation.plan = plan
    federation.pin(plan)
    for party in federation.parties.values():
        party.kill()
        party.start()


def close(party: Party, run_id: bytes, *more: str, place: Path | None = None) -> int:
    """`hedgerow ledger --close`; its exit code."""
    return main(["ledger", str(place or book_of(party)), "--close", run_id.hex()[:12], *more])


@pytest.mark.parametrize(("n_writes", "n_charged"), [(NO_VECTOR, 0), (VECTORS_LEFT, 1), (THREE_RELEASES, 4)])
def test_an_owner_closes_a_run_that_never_ends_at_what_it_has_cost(
    federate: Builder,
    capsys: pytest.CaptureFixture[str],
    n_writes: int,
    n_charged: int,
) -> None:
    """Whoever makes a coordinator vanish costs an owner what was shown to it, and not the whole budget; the run that
    was closed is never taken up again, though its coordinator comes back with it.
    """
    federation = federate(4)
    victim = federation.parties[VICTIM]
    federation.stop(n_writes)
    run_id = federation.session.run.run_id
    (status, reserved), *_ = lines(victim)
    assert status == "reserved" and reserved == 4
    assert main(["ledger", str(book_of(victim))]) == 0
    assert "--close RUN" in capsys.readouterr().err
    assert close(victim, run_id) == 0
    ((status, charged),) = lines(victim)
    assert status == "closed" and n_charged - 1 <= charged <= n_charged
    assert close(victim, run_id) == 2 and "run-not-reserved" in capsys.readouterr().err
    federation.events.clear()
    for party in federation.parties.values():
        party.start()
    n_sent = len(federation.uploads)
    federation.run()
    assert [fault.code for fault in victim.failures] == ["run-closed"]
    assert VICTIM not in [site for site, _, _ in list(federation.uploads)[n_sent:]]
    assert lines(victim) == [("closed", charged)]


def test_two_runs_of_one_plan_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An owner who closes one of them names it as `hedgerow ledger` does, and the other one stays reserved."""
    plan, file = make_plan(), tmp_path / "budget.db"
    with closing(BudgetBook(file)) as book:
        book.serve("site-1", tmp_path / "state")
        for digit in (b"1", b"2"):
            book.reserve(digit * 32, "x", plan, [GaussianEvent(2.0)], (9.0, 1e-5))
    assert main(["ledger", str(file)]) == 0
    names = re.findall(r"^ *run ([0-9a-f]+) +reserved .*$", capsys.readouterr().out, re.MULTILINE)
    assert names == ["31" * 6, "32" * 6]
    assert main(["ledger", str(file), "--close", names[1]]) == 0
    with closing(BudgetBook(file)) as book:
        assert [line.status for line in book.lines()] == ["reserved", "closed"]


def test_a_run_is_not_closed_under_a_node_that_works_in_it(
    federate: Builder, killed: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    """What leaves a node after its run was settled would be charged to nobody: first the node is stopped."""
    federation = federate(4)
    victim = federation.parties[VICTIM]
    with pytest.raises(killed):
        federation.run(kill_after=VECTORS_LEFT)
    before = lines(victim)
    assert close(victim, federation.session.run.run_id) == 2
    assert "run-in-use" in capsys.readouterr().err
    assert lines(victim) == before and before[0][0] == "reserved"


@pytest.mark.parametrize("is_counter_left", [True, False])
def test_a_run_whose_state_is_gone_is_closed_at_its_whole_cost(
    federate: Builder, capsys: pytest.CaptureFixture[str], is_counter_left: bool
) -> None:
    """What has left a node whose folder was removed cannot be known: closing gives nothing back, and says so."""
    federation = federate(4)
    victim = federation.parties[VICTIM]
    federation.stop(VECTORS_LEFT)
    ((_, reserved),) = lines(victim)
    for file in victim.folder.iterdir():
        if not file.name.startswith("budget.db") and not (is_counter_left and file.name == "counter.json"):
            file.unlink()
    assert close(victim, federation.session.run.run_id) == 0
    assert "stays charged" in " ".join(capsys.readouterr().err.split())
    assert lines(victim) == [("closed", reserved)]
    assert not (victim.folder / "node.db").exists()


def test_a_state_folder_that_was_moved_away_meanwhile_is_closed_when_it_is_used_again(
    federate: Builder, tmp_path: Path
) -> None:
    """Its volume was not mounted when the owner closed the run: the node that has it later goes on with nothing."""
    federation = federate(4)
    victim = federation.parties[VICTIM]
    federation.stop(VECTORS_LEFT)
    run_id = federation.session.run.run_id
    book = tmp_path / "book.db"
    shutil.move(book_of(victim), book)
    shutil.move(victim.folder, tmp_path / "elsewhere")
    assert close(victim, run_id, place=book) == 0
    shutil.move(tmp_path / "elsewhere", victim.folder)
    shutil.move(book, book_of(victim))
    victim.start()
    assert victim.store is not None and victim.store.find_status(run_id) == "closed"
    assert victim.session is not None and victim.session._run is None


def test_a_folder_that_was_renamed_takes_its_run_along(federate: Builder, tmp_path: Path) -> None:
    """The node is started with another --state: its run is still its own, and settled when it joins the next one."""
    federation = federate(4)
    victim = federation.parties[VICTIM]
    federation.stop(VECTORS_LEFT)
    shutil.move(victim.folder, tmp_path / "renamed")
    victim.folder = tmp_path / "renamed"
    victim.start()
    assert victim.book is not None and victim.book.list_reserved() == [federation.session.run.run_id]
    assert victim.book.lines()[0].state == str(victim.folder)


def test_the_nodes_of_a_lying_coordinator_are_in_debt_for_nothing_in_the_end(
    federate: Builder, killed: type[BaseException]
) -> None:
    """It invites to one run after the other and ends none: each is settled, at no cost, when the next is joined."""
    federation = federate(4)
    victim = federation.parties[VICTIM]
    victim.setup = dataclasses.replace(victim.setup, policy=dataclasses.replace(victim.setup.policy, max_epsilon=2.2))
    for epsilon in (1.5, 1.6, 1.7, 1.8):
        restart(federation, other(epsilon))
        with pytest.raises(killed):
            federation.run(kill_after=NO_VECTOR)
    assert not victim.failures
    assert lines(victim)[:-1] == [("left", 0)] * 3 and lines(victim)[-1][0] == "reserved"


@pytest.mark.parametrize("moment", ["note_joining", "reserve", "_start", "open_run"])
def test_a_run_that_was_being_joined_a_second_time_is_not_forgotten(
    federate: Builder, killed: type[BaseException], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It was left without cost, its coordinator came back with it, and the node was killed between two of its files:
    the next run it joins finds all of the budget free.
    """
    federation = federate(4)
    victim, first = federation.parties[VICTIM], federation.plan
    federation.stop(NO_VECTOR)
    journal = (federation.folder / "journal.db").read_bytes()
    restart(federation, other())
    with pytest.raises(killed):
        federation.run(kill_after=NO_VECTOR)
    restart(federation, first)
    (federation.folder / "journal.db").write_bytes(journal)
    (federation.folder / "journal.db").chmod(0o600)
    crashed = victim.crash_after(monkeypatch, BudgetBook if moment == "reserve" else NodeStore, moment)
    struck = victim.restart
    victim.restart = victim.kill  # type: ignore[method-assign]
    with pytest.raises(killed):
        federation.run(kill_after=NO_VECTOR)
    assert crashed
    victim.restart = struck  # type: ignore[method-assign]
    restart(federation, other(1.2))
    federation.run()
    found = lines(victim)
    assert [status for status, _ in found].count("finished") == 1
    assert "reserved" not in [status for status, _ in found] and sum(count for _, count in found[:-1]) == 0


def test_what_a_node_lost_its_database_in_is_settled_before_another_run_is_reserved(federate: Builder) -> None:
    """A state folder that was emptied, or lost its database: its run keeps its whole cost, but it is closed."""
    federation = federate(4)
    federation.stop(VECTORS_LEFT)
    reserved = {site: lines(party)[0][1] for site, party in federation.parties.items()}
    for number, party in enumerate(federation.parties.values()):
        for file in party.folder.glob("node.db*" if number % 2 else "[nc]o*"):
            file.unlink()
    restart(federation, other())
    federation.run()
    for site, party in federation.parties.items():
        assert not party.failures
        assert lines(party)[0] == ("left", reserved[site]) and lines(party)[1][0] == "finished"


def test_a_run_that_cannot_be_joined_again_keeps_its_cost(federate: Builder) -> None:
    """The database was lost after vectors had left, and now the table cannot be read: they have left all the same."""
    federation = federate(4)
    victim = federation.parties[VICTIM]
    federation.stop(VECTORS_LEFT)
    ((_, reserved),) = lines(victim)
    for file in victim.folder.glob("node.db*"):
        file.unlink()

    def fail(_: Plan) -> Any:
        raise DataError("The table is away.", code="data-file-missing")

    victim.setup = dataclasses.replace(victim.setup, load=fail)
    for party in federation.parties.values():
        party.start()
    federation.run()
    assert [fault.code for fault in victim.failures] == ["data-file-missing"]
    assert lines(victim) == [("left", reserved)]


def test_a_run_that_was_reserved_takes_on_no_other_plan(federate: Builder) -> None:
    """The database was lost after vectors had left, and the coordinator asks for a dearer plan under the run's number:
    the book has reserved the first one, at its cost.
    """
    federation = federate(4)
    victim = federation.parties[VICTIM]
    victim.setup = dataclasses.replace(victim.setup, policy=dataclasses.replace(victim.setup.policy, max_epsilon=3.0))
    federation.stop(VECTORS_LEFT)
    before = lines(victim)
    for file in victim.folder.glob("node.db*"):
        file.unlink()
    with closing(BudgetBook(book_of(victim))) as book:
        (run_id,) = (bytes.fromhex(line.run_id) for line in book.lines())
    dearer = other(50.0)
    victim.setup = dataclasses.replace(victim.setup, plan=dearer)
    victim.start()
    assert victim.session is not None
    hello = decode(victim.session.connect()[0])
    assert isinstance(hello, Hello)
    victim.session.receive(encode(Welcome(hello.connection)))
    invitation = Invitation(run_id, dearer.to_bytes(), digest_behaviour(TrainingTask(dearer)))
    (answer,) = map(decode, victim.session.receive(encode(invitation)))
    assert isinstance(answer, Refused) and answer.code == "run-closed" and lines(victim) == before


def test_two_nodes_with_one_book_in_one_run_are_settled_each_for_itself(tmp_path: Path) -> None:
    """The first that ends must not end the line of the other, whose vectors go on leaving."""
    plan, events = make_plan(), [GaussianEvent(10.0, count=8)]
    books = [BudgetBook(tmp_path / "budget.db") for _ in range(2)]
    for number, book in enumerate(books):
        book.serve(f"site-{number}", tmp_path / f"state-{number}")
        book.reserve(RUN, "d", plan, events, (9.0, 1e-5))
    books[0].settle(RUN, ([GaussianEvent(10.0, count=2)], {}), FINISHED)
    assert [(line.site, line.status, line.events[0].count) for line in books[1].lines()] == [
        ("site-0", "finished", 2), ("site-1", "reserved", 8)
    ]  # fmt: skip
    assert books[0].list_reserved() == [] and books[1].list_reserved() == [RUN]
    both = books[0].spent("d", 1e-5)
    books[1].settle(RUN, ([GaussianEvent(10.0, count=3)], {}), FINISHED)
    assert 0 < books[0].spent("d", 1e-5) < both
    for book in books:
        book.close()


@pytest.mark.parametrize("n_nodes", [1, 2, 3])
def test_a_run_costs_no_less_than_a_person_in_the_rows_of_all_its_nodes(tmp_path: Path, n_nodes: int) -> None:
    """Nodes on the same data that are in one run add the same person to its sums, once each: that is no two runs."""
    plan, events, limit = make_plan(), [GaussianEvent(10.0, count=8)], (9.0, 1e-5)
    for number in range(n_nodes):
        with closing(BudgetBook(tmp_path / "budget.db")) as book:
            book.serve(f"site-{number}", tmp_path / f"state-{number}")
            told = book.reserve(RUN, "d", plan, events, limit)
            assert told == book.spent("d", 1e-5) >= epsilon_of_rows("gdp", events, 1e-5, number + 1)
    with closing(BudgetBook(tmp_path / "budget.db")) as book:
        book.serve("another", tmp_path / "another")
        with pytest.raises(PolicyRefusal) as caught:
            book.reserve(RUN, "d", plan, events, (epsilon_of_rows("gdp", events, 1e-5, n_nodes + 1) * 0.99, 1e-5))
        assert caught.value.code == "policy-over-budget"
        assert book.reserve(RUN, "other data", plan, events, limit) == epsilon_of_rows("gdp", events, 1e-5, 1)


RELEASES = {
    "gaussian": GaussianEvent(20.0),
    "grid": DiscreteGaussianEvent(20.0, 50, 4),
    "shares": DiscreteGaussianSumEvent(20.0, 50, 4, 4),
    "local": LocalGaussianEvent(20.0, 50, 4),
    "filter": FilteredGaussianEvent(20.0, 1.0, 1000, 1, 4, order=2, budget=0.02, scope="run"),
    "sample": SampledGaussianEvent(20.0, 0.1, 1000, 1, 4),
    "pure": DiscreteLaplaceEvent(0.1),
}


@pytest.mark.parametrize("kind", RELEASES)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_nodes_in_one_run_cost_what_a_person_in_their_rows_costs(kind: str, data: st.DataObject) -> None:
    """Whichever rounds each was in, it is no less; and no more where all were in all, by what weights say."""
    event, n_nodes = RELEASES[kind], data.draw(st.integers(1, 3))
    rounds = data.draw(st.lists(st.sets(st.integers(1, n_nodes), min_size=1), min_size=1, max_size=5))
    place, nodes = ("run", "", "", "d", "plan", "", "record", FINISHED), range(1, n_nodes + 1)
    for held in (rounds, [set(nodes)] * len(rounds)):
        lines = [BudgetLine(*place, tuple(event for own in held if node in own), "") for node in nodes]
        told = compose_epsilon(list_costs(lines), 1e-5)
        assert told >= compose_epsilon([for_rows(event, len(own)) for own in held], 1e-5) * (1 - 1e-12)
    if kind not in ("sample", "pure"):
        assert told == pytest.approx(compose_epsilon([for_rows(event, n_nodes)] * len(rounds), 1e-5), rel=1e-3)


@pytest.mark.parametrize(
    ("field", "seconds"),
    [("idle_timeout", 1e-9), ("join_timeout", 0.5), ("round_timeout", 0.999), ("idle_timeout", 299.0)],
)
def test_a_plan_under_which_nobody_can_answer_in_time_is_refused_by_name(field: str, seconds: float) -> None:
    """With an idle timeout of a nanosecond, a node reserves a budget and gives the run up before it has begun."""
    table = make_plan().to_dict()
    with pytest.raises(PlanError) as caught:
        Plan.from_dict({**table, "federation": {**table["federation"], field: seconds}})
    assert caught.value.code == "plan-field" and f"federation.{field}" in str(caught.value)
    stored = Plan.from_dict({**table, "federation": {**table["federation"], field: seconds}}, is_stored=True)
    assert getattr(stored.federation, field) == seconds


def test_an_invitation_to_such_a_plan_reserves_nothing(federate: Builder) -> None:
    """The lying coordinator is refused by its plan's name before the book is opened for it."""
    federation = federate(4)
    federation.plan = dataclasses.replace(federation.plan, federation=Timeouts(min_sites=3, idle_timeout=1e-9))
    with pytest.raises(AggregationError):
        federation.run()
    for party in federation.parties.values():
        assert [fault.code for fault in party.failures] == ["plan-unreadable"]
        assert "federation.idle_timeout" in str(party.failures[0]) and lines(party) == []


def salvaged_once(federation: Federation) -> list[str]:
    """The coordinator tells the victim in round 2 that the run is salvaged, and then goes on with it; what was told."""
    told: list[str] = []

    def tamper(hub: Any) -> None:
        send = hub.send

        def lying(site: str, message: bytes) -> None:
            asked = decode(message)
            if site == VICTIM and not told and isinstance(asked, RoundRequest) and asked.round == 2:
                replica = Replica(federation.session.run.task)
                for release in federation.session.run.releases:
                    replica.feed(release)
                assert replica.end_early()
                told.append("salvaged")
                place = (asked.round, asked.releases, replica.result_digest(), asked.structure_seed)
                message = encode(Salvaged(*place, "too-few-sites"))
            send(site, message)

        hub.send = lying

    federation.tamper = tamper
    return told


def crash_before_closing(
    monkeypatch: pytest.MonkeyPatch, victim: Party, told: list[str], crash: type[BaseException]
) -> None:
    """The victim's process is gone once it has settled its book, before its store is closed; it is started again."""
    close_run = NodeStore.close_run

    def struck(self: NodeStore, run_id: bytes, status: str) -> None:
        if self is victim.store and "crashed" not in told:
            told.append("crashed")
            raise crash
        close_run(self, run_id, status)

    monkeypatch.setattr(NodeStore, "close_run", struck)


@pytest.mark.parametrize("is_reopened", [False, True])
def test_nothing_leaves_a_node_in_a_run_that_its_book_has_settled(
    federate: Builder,
    crash: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    is_reopened: bool,
) -> None:
    """A coordinator that says "salvaged", waits for the node to crash between its two files and asks on gets no vector
    that is not charged: the run is closed at the start, and a node that still had it open would not answer.
    """
    federation = federate(4, make_plan(model={"n_trees": 6}))
    victim, told = federation.parties[VICTIM], salvaged_once(federation)
    crash_before_closing(monkeypatch, victim, told, crash)
    if is_reopened:
        monkeypatch.setattr("hedgerow.client.joining.NodeFiles.reconcile", lambda files: None)
    federation.run()
    assert told == ["salvaged", "crashed"]
    assert [fault.code for fault in victim.failures] == ["run-closed"]
    ((status, charged),) = lines(victim)
    n_sent = sum(site == VICTIM for site, _, _ in federation.uploads)
    assert status == "finished" and n_sent == charged == 2


def test_a_finished_run_is_answered_again_after_a_crash_between_its_files(
    federate: Builder, crash: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that crashed when it had settled the whole run still has the model in the end."""
    federation = federate(4)
    victim, told = federation.parties[VICTIM], list[str]()
    crash_before_closing(monkeypatch, victim, told, crash)
    federation.run()
    assert told == ["crashed"] and not victim.failures and lines(victim) == [("finished", 4)]
    session = victim.session
    assert session is not None
    hello = decode(session.connect()[0])
    assert isinstance(hello, Hello)
    session.receive(encode(Welcome(hello.connection)))
    (end,) = {message for site, message in federation.sent if site == VICTIM and isinstance(decode(message), Finished)}
    assert [type(decode(answer)) for answer in session.receive(end)] == [Done]
    assert victim.is_done and session.result is not None


def shared(federation: Federation, book: Path, *sites: str) -> None:
    """These nodes have one book, outside of their folders."""
    for site in sites:
        party = federation.parties[site]

        def start(party: Party = party) -> None:
            party.store, party.book = NodeStore(party.folder), BudgetBook(book)
            note_book(party.folder, book)
            party.session = NodeSession(party.setup, party.store, party.book)
            party.uplink = party.network.uplink(party.setup.site)

        party.start = start  # type: ignore[method-assign]


@pytest.mark.parametrize("where", ["another", "another-with-its-own", "swapped", "own"])
def test_a_line_is_settled_by_its_own_nodes_state_only(
    federate: Builder, killed: type[BaseException], capsys: pytest.CaptureFixture[str], where: str
) -> None:
    """Two nodes share a book and the folder of one is away: the other's, which has sent less, does not tell what has
    left it; its own does, wherever it is now.
    """
    federation = federate(4, must_start=False)
    book, moved = federation.folder / "shared.db", federation.folder / "elsewhere"
    shared(federation, book, VICTIM, "site-2")
    for party in federation.parties.values():
        party.start()
    with pytest.raises(killed):
        federation.run(kill_after=THREE_RELEASES)
    for party in federation.parties.values():
        party.kill()
    victim, other_site = federation.parties[VICTIM], federation.parties["site-2"]
    if where in ("another", "swapped"):
        with closing(NodeStore(other_site.folder)) as store, closing(BudgetBook(book)) as opened:
            leave(store, opened, "site-2")
    with closing(BudgetBook(book)) as opened:
        before = {line.site: line for line in opened.lines()}
    shutil.move(victim.folder, moved)
    given = moved if where == "own" else other_site.folder
    if where == "swapped":
        given = shutil.move(other_site.folder, victim.folder)
    assert close(victim, federation.session.run.run_id, place=given) == 0
    said = " ".join(capsys.readouterr().err.split())
    with closing(BudgetBook(book)) as opened:
        after = {line.site: line for line in opened.lines()}
    if where == "own":
        assert after[VICTIM].status == "closed" and after[VICTIM].events != before[VICTIM].events
    else:
        assert after[VICTIM].events == before[VICTIM].events
        assert after[VICTIM].status == ("reserved" if where == "another-with-its-own" else "closed")
        assert (after[VICTIM].status == "closed") == ("stays charged" in said)
