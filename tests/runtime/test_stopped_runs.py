"""Runs that are not gone on with: what a node closes, what it charges, and what nobody can make it answer again."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

from hedgerow.client.budget import LEFT, BudgetBook
from hedgerow.client.joining import leave
from hedgerow.client.node_session import compute_patience
from hedgerow.client.state import NodeStore
from hedgerow.errors import AggregationError, PolicyRefusal, UsageError
from hedgerow.methods.tasks import TrainingTask, ensemble_bytes
from hedgerow.plan.plan import Plan
from hedgerow.protocol.messages import NO_HASH, Hello, Invitation, Refused, Stop, Welcome, decode, encode
from hedgerow.server.coordinator import RunEvent, tell_end
from hedgerow.server.journal import open_journal
from hedgerow.transport.interface import Connected
from tests.builders import make_plan, take
from tests.memory_network import MemoryNetwork

if TYPE_CHECKING:
    from conftest import Builder, Federation, Party

VECTORS_LEFT, THREE_RELEASES = 5, 10
"""Writes of the journal: run, attempt, epoch, a slot's spec and its vectors; then two a round."""
VICTIM = "site-1"


def other(**privacy: Any) -> Plan:
    """A corrected plan."""
    return make_plan(privacy={"epsilon": 1.5, **privacy})


def start(federation: Federation, plan: Plan | None, *listed: Plan) -> None:
    """All nodes, with the plan that their owners pin now; or the first one and these, by their digests."""
    digests = () if plan is not None else tuple(each.digest for each in (federation.plan, *listed))
    for party in federation.parties.values():
        policy = dataclasses.replace(party.setup.policy, plans=digests)
        party.setup = dataclasses.replace(party.setup, plan=plan, policy=policy)
        party.start()


def lines(party: Party) -> list[tuple[str, int]]:
    """Of a node's book: how each run stands, and for how many releases it is charged."""
    book = party.book or BudgetBook(party.folder / "budget.db")
    found = [(line.status, sum(event.count for event in line.events)) for line in book.lines()]
    if party.book is None:
        book.close()
    return found


def finish(federation: Federation, plan: Plan) -> None:
    """A new run of this plan goes to its end at every node."""
    federation.plan = plan
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert not [party.failures for party in federation.parties.values() if not party.is_done]


@pytest.mark.parametrize("is_pinned", [True, False])
@pytest.mark.parametrize(("n_writes", "n_charged"), [(1, 0), (2, 0), (3, 0), (VECTORS_LEFT, 1), (THREE_RELEASES, 4)])
def test_a_run_that_was_stopped_costs_what_left_the_node_and_no_more(
    federate: Builder, n_writes: int, n_charged: int, is_pinned: bool
) -> None:
    """Wherever it was stopped, set-up included, a corrected plan is carried out, and the book says what is true."""
    federation = federate(4)
    start_with = federation.plan if is_pinned else None
    for party in federation.parties.values():
        party.kill()
    start(federation, start_with)
    federation.stop(n_writes)
    was_in = bool(lines(federation.parties[VICTIM]))
    plan = other()
    federation.drop_journal()
    start(federation, plan if is_pinned else None, plan)
    finish(federation, plan)
    for party in federation.parties.values():
        old = lines(party)[:-1]
        assert [status for status, _ in old] == ["left"] * was_in
        assert all(count <= n_charged for _, count in old) and lines(party)[-1][0] == "finished"
    if n_charged > 1:
        assert lines(federation.parties[VICTIM])[0][1] >= n_charged - 1


def test_a_run_without_cost_is_free_in_the_book_as_soon_as_its_owner_starts_with_another_plan(
    federate: Builder
) -> None:
    """Nothing was answered, so nothing stays reserved, whether or not another run ever begins; and going back works."""
    federation = federate(4)
    plan = federation.plan
    federation.stop(3)
    start(federation, other())
    victim = federation.parties[VICTIM]
    assert lines(victim) == [("left", 0)]
    assert victim.session.set_aside is not None and victim.session.set_aside.code == "run-set-aside"
    for party in federation.parties.values():
        party.kill()
    start(federation, plan)
    finish(federation, plan)
    assert [status for status, _ in lines(victim)] == ["finished"]


def test_a_run_with_answers_that_was_left_is_never_taken_up_again(
    federate: Builder, killed: type[BaseException], tmp_path: Any
) -> None:
    """A coordinator that leads its sites into another run and back gets no second answer for any purpose."""
    federation = federate(4)
    first = federation.plan
    federation.stop(THREE_RELEASES)
    journal = (federation.folder / "journal.db").read_bytes()
    before = {party.setup.site: lines(party)[0][1] for party in federation.parties.values()}
    federation.drop_journal()
    start(federation, None, other())
    second = other()
    with pytest.raises(killed):
        federation.plan = second
        federation.run(kill_after=3)
    for file in federation.folder.glob("journal.db*"):
        file.unlink()
    (federation.folder / "journal.db").write_bytes(journal)
    (federation.folder / "journal.db").chmod(0o600)
    federation.plan = first
    n_received = len(federation.uploads)
    with pytest.raises(AggregationError):
        federation.run()
    assert len(federation.uploads) == n_received
    for party in federation.parties.values():
        assert [fault.code for fault in party.failures] == ["run-closed"]
        status, charged = lines(party)[0]
        assert status == "left" and charged <= before[party.setup.site]


def test_leaving_makes_room_in_the_budget_for_the_run_that_is_joined(federate: Builder) -> None:
    """What the old run did not use is free for the new one; else a stopped run would use a budget up for nothing."""
    federation = federate(4)
    for party in federation.parties.values():
        party.kill()
        policy = dataclasses.replace(party.setup.policy, max_epsilon=2.2)
        party.setup = dataclasses.replace(party.setup, policy=policy)
        party.start()
    federation.stop(VECTORS_LEFT)
    federation.drop_journal()
    start(federation, None, other(epsilon=1.8))
    finish(federation, other(epsilon=1.8))


def test_a_refused_run_leaves_the_old_one_as_it_is(federate: Builder, tmp_path: Any) -> None:
    """A run that a site may not join does not cost it its place in the one that it is in."""
    federation = federate(4)
    victim = federation.parties[VICTIM]
    federation.stop(THREE_RELEASES)
    reserved = lines(victim)
    victim.setup = dataclasses.replace(victim.setup, policy=dataclasses.replace(victim.setup.policy, max_epsilon=2.2))
    journal = (federation.folder / "journal.db").read_bytes()
    federation.drop_journal()
    start(federation, None, other(epsilon=9.0))
    federation.plan, first = other(epsilon=9.0), federation.plan
    federation.run()
    assert [fault.code for fault in victim.failures] == ["policy-over-budget"]
    assert lines(victim) == reserved
    federation.drop_journal()
    (federation.folder / "journal.db").write_bytes(journal)
    (federation.folder / "journal.db").chmod(0o600)
    victim.start()
    assert victim.session is not None and victim.session.set_aside is None
    assert first.digest == victim.session.plan.digest


def test_a_run_that_cost_nothing_fixes_no_unit_of_privacy(tmp_path: Any) -> None:
    """The plan is corrected from records to patients before anything was answered: there is nothing to add up."""
    book = BudgetBook(tmp_path / "budget.db")
    plan = make_plan()
    patients = make_plan(privacy={"unit": "patient", "max_rows_per_unit": 2})
    events = TrainingTask(plan).schedule.events
    book.reserve(b"1" * 32, "d", plan, events, (9.0, 1e-5))
    book.settle(b"1" * 32, ([], {}), LEFT)
    book.reserve(b"2" * 32, "d", patients, events, (9.0, 1e-5))
    book.close()


@pytest.mark.parametrize("moment", ["reserve", "close_run", "_start", "database"])
def test_a_node_that_is_killed_between_two_files_takes_part_and_charges_what_is_true(
    federate: Builder, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Book, database and counter are three files: whatever the kill comes between, no answer is given for nothing, and
    none is charged that was not given."""
    federation = federate(4)
    federation.stop(VECTORS_LEFT)
    victim = federation.parties[VICTIM]
    (before,) = [count for _, count in lines(victim)]
    assert before > 1
    federation.drop_journal()
    start(federation, None, other())
    place = {"reserve": (BudgetBook, "reserve"), "close_run": (NodeStore, "close_run"), "_start": (NodeStore, "_start")}
    crashed = victim.crash_after(monkeypatch, *place.get(moment, (NodeStore, "open_run")))
    finish(federation, other())
    assert crashed and not victim.failures
    (old, n_old), (new, n_new) = lines(victim)
    assert (old, n_old, new) == ("left", 1, "finished")
    assert n_new == len(federation.session.run.ledger)


@pytest.mark.parametrize("is_salvaged", [False, True])
def test_a_node_that_is_killed_between_two_files_at_the_end_hears_of_the_end_again(
    federate: Builder, monkeypatch: pytest.MonkeyPatch, is_salvaged: bool
) -> None:
    """Its book has settled the run and its database has not closed it: it has the model, however far the run came."""
    federation = federate(5, make_plan(model={"n_trees": 6}))
    victim = federation.parties["site-4"]

    def act(event: RunEvent) -> None:
        if event.kind == "released" and is_salvaged and len(federation.session.run.releases) == 3:
            for site in ("site-0", "site-1", "site-2"):
                federation.parties[site].kill()

    federation.on_event = act
    crashed = victim.crash_after(monkeypatch, BudgetBook, "settle")
    federation.run()
    outcome = federation.run()
    assert (outcome.salvaged is not None) is is_salvaged
    assert crashed and not victim.failures and victim.is_done
    assert (victim.session.salvaged is not None) is is_salvaged
    assert ensemble_bytes(victim.session.result) == ensemble_bytes(outcome.ensemble)
    assert lines(victim) == [("finished", len(outcome.ledger) + is_salvaged)]


def test_rows_may_be_corrected_until_something_was_answered_with_them(federate: Builder) -> None:
    """A table that was wrong is replaced before the first round, in the run that waits for it."""
    federation = federate(4)
    federation.stop(3)
    victim = federation.parties[VICTIM]
    rows = take(federation.data[VICTIM], list(range(20)))
    federation.data[VICTIM] = rows
    victim.setup = dataclasses.replace(victim.setup, load=lambda _: rows)
    start(federation, None)
    finish(federation, federation.plan)


def test_an_owner_leaves_a_run_and_is_charged_for_what_left(federate: Builder) -> None:
    """--leave: the run is closed in both files, and the node that starts next is in none."""
    federation = federate(4)
    federation.stop(VECTORS_LEFT)
    victim = federation.parties[VICTIM]
    store, book = NodeStore(victim.folder), BudgetBook(victim.folder / "budget.db")
    assert leave(store, book, VICTIM) == federation.session.run.run_id
    assert leave(store, book, VICTIM) is None
    store.close()
    book.close()
    assert lines(victim) == [("left", 1)]
    victim.start()
    assert victim.session is not None and victim.session._run is None


def test_a_run_whose_state_was_lost_is_left_at_its_whole_cost(federate: Builder) -> None:
    """What cannot be known is charged: an older database does not tell which vectors have left."""
    federation = federate(4)
    victim = federation.parties[VICTIM]
    federation.stop(VECTORS_LEFT)
    ((_, whole),) = lines(victim)
    for file in victim.folder.glob("node.db*"):
        file.unlink()
    federation.drop_journal()
    plan = other()
    start(federation, None, plan)
    finish(federation, plan)
    assert lines(victim)[0] == ("left", whole)


def test_a_journal_makes_room_only_where_nothing_was_released(federate: Builder) -> None:
    """A run that has shown something is never put away by mistake; one that has not never stands in the way."""
    federation = federate(4)
    path = federation.folder / "journal.db"
    corrected = TrainingTask(other())
    federation.stop(3)
    same, aside = open_journal(path, TrainingTask(federation.plan), federation.roster)
    assert aside is None and same.load(federation.plan, federation.roster) is not None
    same.close()
    empty, aside = open_journal(path, corrected, federation.roster)
    assert aside is not None and aside.is_file() and empty.load(corrected, federation.roster) is None
    empty.close()
    federation.drop_journal()
    start(federation, None)
    federation.stop(THREE_RELEASES)
    kept, aside = open_journal(path, corrected, federation.roster)
    assert aside is None
    with pytest.raises(UsageError) as caught:
        kept.load(corrected, federation.roster)
    assert caught.value.code == "journal-of-another-run"
    kept.close()
    for _ in range(2):
        fresh, aside = open_journal(path, corrected, federation.roster, is_new=True)
        assert fresh.load(corrected, federation.roster) is None
        fresh.close()
    assert aside is None


def test_a_policy_that_became_stricter_does_not_hold_the_node_in_its_old_run(federate: Builder) -> None:
    """The owner forbids what the stopped run used: it is not gone on with, and a run within the rules is."""
    federation = federate(4)
    federation.stop(VECTORS_LEFT)
    plan = dataclasses.replace(other(), privacy=dataclasses.replace(other().privacy, noise="distributed"))
    for party in federation.parties.values():
        policy = dataclasses.replace(party.setup.policy, noise=("distributed",))
        party.setup = dataclasses.replace(party.setup, policy=policy)
    federation.drop_journal()
    start(federation, None, plan)
    assert isinstance(federation.parties[VICTIM].session.set_aside, PolicyRefusal)
    federation.plan = plan
    federation.run()
    assert all(party.is_done for party in federation.parties.values())


def test_who_has_nothing_to_hear_of_the_end_is_not_waited_for() -> None:
    """A site that was never in the run, or in an earlier one, has come, and so the operator's `--abort` may end."""
    network = MemoryNetwork()
    hub, ended = network.hub(), b"e" * 32
    runs = {"in-it": ended, "in-another": b"o" * 32, "in-none": NO_HASH}
    uplinks = {site: network.uplink(site) for site in runs}
    for site, run_id in runs.items():
        assert uplinks[site].send(encode(Hello(7, run_id)))
    # A clock that stands still: were anybody else awaited, this would never return.
    assert tell_end(ended, "stopped-by-operator", hub, runs, 1.0, lambda: 0.0) == ["in-it"]
    heard = [uplinks["in-it"].receive(0.0) for _ in range(3)]
    assert heard[1:] == [encode(Welcome(7)), encode(Stop("stopped-by-operator"))]
    for site in ("in-another", "in-none"):
        assert isinstance(uplinks[site].receive(0.0), Connected) and uplinks[site].receive(0.0) is None


# Runs that rest ------------------------------------------------------------------------------------------------------


def pause(federation: Federation, after: int) -> None:
    """The coordinator is to rest once so many rounds are released; the nodes stay where they are."""
    with pytest.raises(AggregationError) as paused:
        federation.run(is_paused=lambda: len(federation.session.run.releases) >= after)  # type: ignore[union-attr]
    assert paused.value.code == "run-paused" and f"after {after} of" in paused.value.what


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_paused_run_goes_on_to_the_same_model_at_the_same_cost(federate: Builder, after: int) -> None:
    """Between two rounds nothing is lost: what was released stays, and no round is charged or asked for twice."""
    whole, federation = federate(4, name="whole"), federate(4, name="paused")
    expected = whole.model_bytes(whole.run())
    pause(federation, after)
    sessions = [party.session for party in federation.parties.values()]
    # At the very start nobody has come whom it could tell.
    assert all(session is not None and session.is_paused == (after > 0) for session in sessions)
    assert all(
        compute_patience(session, 600_000.0) == 600_000.0 for session in sessions if session and session.is_paused
    )
    assert len(federation.uploads) == 4 * after
    outcome = federation.run()
    assert federation.model_bytes(outcome) == expected
    assert len(federation.uploads) == len(whole.uploads)
    for site, party in federation.parties.items():
        assert lines(party) == lines(whole.parties[site])
        assert party.session is not None and not party.session.is_paused


def test_a_run_can_be_paused_again_and_again_while_nodes_are_killed(federate: Builder) -> None:
    """Each time everything is on the disks of both ends."""
    federation = federate(4)
    for after in (1, 2, 3):
        pause(federation, after)
        for site in ("site-0", f"site-{after}"):
            federation.parties[site].restart()
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert len(set(federation.session.run.survivors)) == 1  # type: ignore[union-attr]


def test_a_paused_run_does_not_go_on_with_another_plan(federate: Builder) -> None:
    """Under the number of the run that rests, a dearer plan: the node that keeps its place refuses, and has lost
    nothing by it.
    """
    federation = federate(4)
    federation.pin(other())
    pause(federation, 1)
    party = federation.parties[VICTIM]
    charged = lines(party)
    session = party.session
    assert session is not None and session.is_paused
    run_id = session.run_id
    (hello,) = map(decode, session.connect())
    assert isinstance(hello, Hello) and hello.run_id == run_id
    session.receive(encode(Welcome(hello.connection)))
    assert not session.is_paused
    plan = json.dumps(other().to_dict()).encode()
    (refused,) = map(decode, session.receive(encode(Invitation(run_id, plan))))
    assert isinstance(refused, Refused) and refused.code == "plan-changed"
    assert lines(party) == charged
