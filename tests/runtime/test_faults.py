"""Disks that fill up, backups that are restored, folders that are lost: intact state, typed faults, no slot twice.

That no slot masks two vectors and no purpose is answered for two manifests is checked on all messages of every test in
this folder: see `Federation.note`.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hedgerow import codec
from hedgerow.client.node import Node
from hedgerow.client.state import NodeStep, NodeStore
from hedgerow.codec import with_hash, without_hash
from hedgerow.errors import AggregationError, EnvironmentFault, UsageError
from hedgerow.local.training import train
from hedgerow.methods.registry import program_for, resolve
from hedgerow.methods.tasks import ensemble_bytes
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.secagg.view import StoredView
from hedgerow.server.coordinator import RunEvent, RunEventKind
from hedgerow.server.journal import Journal
from hedgerow.server.release import UNCOUNTED, PlainAggregation, run_program
from hedgerow.storage import Database
from tests.builders import make_data, make_plan, s_gbdt_plan, take
from tests.tiers import every

if TYPE_CHECKING:
    from conftest import Builder


def fill_disk(database: Database) -> None:
    """Let the file grow no more: SQLite then fails as it does when the disk is full."""
    ((pages,),) = database.rows("pragma page_count")
    database.rows(f"pragma max_page_count = {pages}")


@pytest.mark.parametrize("n_writes", [1, 3, 5, 7, 9, 12])
def test_a_full_disk_at_the_coordinator_leaves_the_journal_intact(
    federate: Builder, monkeypatch: pytest.MonkeyPatch, n_writes: int
) -> None:
    """The coordinator says that its disk is full and ends; with space again it goes on to the same model."""
    federation = federate(4)
    written = [0]
    write = Database.write

    def counting(self: Database, *statements: Any) -> None:
        if self.path.name == "journal.db":
            written[0] += 1
            if written[0] == n_writes:
                fill_disk(self)
        write(self, *statements)

    monkeypatch.setattr(Database, "write", counting)
    try:
        federation.run()
    except EnvironmentFault as fault:
        assert fault.code == "disk-full"
        assert not any(party.failures for party in federation.parties.values())
    monkeypatch.undo()
    outcome = federation.run()
    assert federation.model_bytes(outcome) == train(federation.plan, federation.data, noise=SeededNoise(1)).to_bytes()


@pytest.mark.parametrize("n_writes", every(3, range(2, 12)))
def test_a_full_disk_at_a_node_stops_that_node_only(
    federate: Builder, monkeypatch: pytest.MonkeyPatch, n_writes: int
) -> None:
    """The node refuses with the code, sends nothing that it could not write down, and goes on when there is space."""
    federation = federate(5)
    victim = federation.parties["site-1"]
    written = [0]
    write = Database.write

    def counting(self: Database, *statements: Any) -> None:
        if self.path == victim.folder / "node.db":
            written[0] += 1
            if written[0] == n_writes:
                fill_disk(self)
        write(self, *statements)

    monkeypatch.setattr(Database, "write", counting)

    def restart(event: Any) -> None:
        if event.kind == "refused":
            assert (event.site, event.code) == ("site-1", "disk-full")
            monkeypatch.undo()
            victim.start()

    federation.on_event = restart
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert {fault.code for fault in victim.failures} <= {"disk-full"}
    assert victim.is_done


def test_a_counter_that_cannot_be_written_stops_the_node(tmp_path: Path) -> None:
    """The counter is what unmasks a restored backup: nothing may leave the node before it is on the disk."""
    store = NodeStore(tmp_path)
    (tmp_path / "counter.json").mkdir()
    with pytest.raises(EnvironmentFault):
        store.save_attempt(b"1" * 32, 1)
    store.close()


def charged(party: Any) -> tuple[str, int]:
    """Of the only run in a node's budget book: how it ended, and how many releases it is charged for."""
    (line,) = party.book.lines()
    return line.status, sum(event.count for event in line.events)


def snapshot(party: Any, target: Path) -> None:
    """Copy a node's database as a backup would, without the counter that stands beside it."""
    target.mkdir(exist_ok=True)
    for file in party.folder.glob("node.db*"):
        shutil.copy(file, target / file.name)


def restore(party: Any, source: Path) -> None:
    """Put the copy back."""
    for file in party.folder.glob("node.db*"):
        file.unlink()
    for file in source.iterdir():
        shutil.copy(file, party.folder / file.name)


@pytest.mark.parametrize(("taken", "age"), every(4, [(t, a) for t in range(1, 7) for a in (1, 2, 3, 5) if t + a < 8]))
def test_a_restored_backup_is_refused_and_the_node_enrols_anew(
    federate: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int, age: int
) -> None:
    """State that is older than its counter may have used its slots: it is never resumed, whatever its age."""
    federation = federate(5, make_plan(model={"n_trees": 8}))
    victim = federation.parties["site-1"]
    backup = tmp_path / "backup"
    n_writes = [0]
    save = NodeStore.save

    def counting(self: NodeStore, run_id: bytes, step: Any) -> None:
        save(self, run_id, step)
        # Shares are in the counter only, so that the database before them is the newest after them as well.
        if self.folder == victim.folder and step.participant is not None:
            n_writes[0] += 1
            if n_writes[0] == taken:
                snapshot(victim, backup)

    monkeypatch.setattr(NodeStore, "save", counting)
    pump = victim.pump

    def fragile() -> bool:
        handled = pump()
        if n_writes[0] == taken + age and victim.session is not None:
            n_writes[0] += 1000
            victim.kill()
            restore(victim, backup)
            victim.start()
        return handled

    victim.pump = fragile  # type: ignore[method-assign]
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert "rolled-back" in federation.codes("refused")
    assert not victim.failures and victim.is_done
    assert "site-1" in federation.session.run.survivors[-1]
    # What the lost steps cost is not known any more, so nothing of what was reserved is given back.
    assert charged(victim) == ("finished", 8)


@pytest.mark.parametrize("n_crashes", [1, 2])
def test_a_node_that_dies_before_its_answer_leaves_gives_it_afterwards(
    federate: Builder, crash: type[BaseException], monkeypatch: pytest.MonkeyPatch, n_crashes: int
) -> None:
    """The step of the answer is on the disk; it is sent after the restart. Of three sites all are needed."""
    federation = federate(3)
    victim = federation.parties["site-1"]
    save, counts = NodeStore.save, {"answers": 0, "crashes": 0}

    def dying(self: NodeStore, run_id: bytes, step: NodeStep) -> None:
        save(self, run_id, step)
        if self.folder == victim.folder and step.answered is not None:
            assert step.participant is not None
            counts["answers"] += 1
            if counts["crashes"] < n_crashes:
                counts["crashes"] += 1
                raise crash

    monkeypatch.setattr(NodeStore, "save", dying)
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert not victim.failures and victim.is_done and counts["answers"] >= counts["crashes"] == n_crashes
    assert all("site-1" in survivors for survivors in federation.session.run.survivors)


@pytest.mark.parametrize(
    ("lost", "after", "faults"),
    [(("node.db*", "counter.json"), 2, ["state-lost"]), (("node.db*",), 1, [])],
)
def test_a_node_that_cannot_know_what_it_answered_ends_its_part(
    federate: Builder, lost: tuple[str, ...], after: int, faults: list[str]
) -> None:
    """Without database and counter it answers nothing more in that run; by the counter alone it enrols anew."""
    federation = federate(5)
    victim = federation.parties["site-1"]

    def lose(event: Any) -> None:
        if event.kind == "released" and event.round == after and victim.session is not None:
            victim.kill()
            for file in itertools.chain.from_iterable(map(victim.folder.glob, lost)):
                file.unlink()
            victim.start()

    federation.on_event = lose
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert [fault.code for fault in victim.failures] == faults
    if not faults:
        assert victim.is_done and "site-1" in federation.session.run.survivors[-1]
        # The first release was made with this node's vector; the database that said so is gone.
        assert charged(victim) == ("finished", 4)


class TwoTables:
    """A site's node whose rows are others from a round on: each round is answered from the rows of its time alone."""

    def __init__(self, before: Node, after: Node, since: int) -> None:
        self.site, self._before, self._after, self._since = before.site, before, after, since

    def answer(self, query: Query) -> IntVector:
        if query.purpose.round >= self._since:
            return self._after.answer(query)
        self._after.finish(query)
        return self._before.answer(query)


@pytest.mark.parametrize("change", ["one comes", "one goes", "all are others"])
def test_rows_that_changed_between_two_starts_take_a_node_out_of_no_run(federate: Builder, change: str) -> None:
    """All see that a node leaves, and who can have it start again would learn whether one row has come."""
    federation, told, since = federate(5), list[str](), 2
    victim, plan, data = federation.parties["site-1"], federation.plan, federation.data
    held = data["site-1"]
    # The first of its rows once more.
    more = take(held, [0, *range(held.n_records)])
    others = {"one comes": more, "one goes": take(held, slice(1, None)), "all are others": make_data(plan, 10, 99)}

    def swap(event: Any) -> None:
        if event.kind == "released" and event.round == since:
            victim.kill()
            object.__setattr__(victim.setup, "load", lambda _: others[change])
            object.__setattr__(victim.setup, "tell", told.append)
            victim.start()

    federation.on_event = swap
    outcome = federation.run()
    assert victim.is_done and not victim.failures
    assert all("site-1" in survivors for survivors in federation.session.run.survivors)
    assert len(told) == 1 and "rows-changed" in told[0] and "private" in told[0]
    plan, settings = outcome.plan, resolve(outcome.plan)
    nodes: list[Any] = [Node(site, own, plan, settings) for site, own in data.items() if site != "site-1"]
    both = (Node("site-1", own, plan, settings) for own in (held, others[change]))
    expected = run_program(
        plan,
        program_for(plan, settings),
        PlainAggregation([*nodes, TwoTables(*both, since)]),
        SeededNoise(1),
        UNCOUNTED,
    )
    assert ensemble_bytes(outcome.ensemble) == ensemble_bytes(expected.ensemble)


def test_accounts_of_records_are_not_gone_on_with_over_other_rows(federate: Builder) -> None:
    """What a record has spent follows from its row: one that was changed would have its whole budget again."""
    federation = federate(5, s_gbdt_plan())
    victim = federation.parties["site-1"]

    def swap(event: Any) -> None:
        if event.kind == "released" and event.round == 1:
            victim.kill()
            other = make_data(federation.plan, 10, 99)
            object.__setattr__(victim.setup, "load", lambda _: other)
            victim.start()

    federation.on_event = swap
    federation.run()
    assert [fault.code for fault in victim.failures] == ["data-changed"]


def test_a_journal_from_a_backup_is_refused_by_the_nodes_count(
    federate: Builder, killed: type[BaseException], tmp_path: Path
) -> None:
    """A coordinator that forgot a release would draw its noise anew; the sites hold more releases, and it stops."""
    federation = federate(4)
    kept = tmp_path / "journal-backup"
    kept.mkdir()

    def keep(event: Any) -> None:
        if event.kind == "released" and event.round == 1:
            for file in federation.folder.glob("journal.db*"):
                shutil.copy(file, kept / file.name)

    federation.on_event = keep
    with pytest.raises(killed):
        federation.run(kill_after=12)
    federation.on_event = lambda _: None
    for file in federation.folder.glob("journal.db*"):
        file.unlink()
    for file in kept.iterdir():
        shutil.copy(file, federation.folder / file.name)
    with pytest.raises(Exception, match="more releases") as caught:
        federation.run()
    assert getattr(caught.value, "code", "") == "journal-rolled-back"


def flipped(stored: bytes) -> bytes:
    middle = len(stored) // 2
    return stored[:middle] + bytes([stored[middle] ^ 1]) + stored[middle + 1 :]


def without_keys(stored: bytes) -> bytes:
    """The epoch as it was, hash and all, but with the slot keys of no site."""
    return with_hash(StoredView(StoredView.from_bytes(without_hash(stored)).record, {}).to_bytes())


@pytest.mark.parametrize(
    ("table", "column", "damage"),
    [
        ("run", "epoch", flipped), ("run", "epoch", lambda stored: stored[:100]), ("run", "epoch", without_keys),
        ("run", "origin", flipped), ("slots", "slot", flipped), ("releases", "entry", lambda _: "{}"),
        ("releases", "content", lambda stored: stored[:-1]),
    ],
)  # fmt: skip
def test_a_damaged_journal_is_named_and_no_site_is_blamed(
    federate: Builder, killed: type[BaseException], table: str, column: str, damage: Callable[[Any], Any]
) -> None:
    """What was stored is not believed to be what a site signed: a flipped bit is the disk's fault."""
    federation = federate(5)
    with pytest.raises(killed):
        federation.run(kill_after=6)
    database = sqlite3.connect(federation.folder / "journal.db")
    database.create_function("damaged", 1, damage)
    database.execute(f"update {table} set {column} = damaged({column})")
    database.commit()
    database.close()
    with pytest.raises(EnvironmentFault) as caught:
        federation.run()
    assert caught.value.code == "corrupt-state" and "journal.db" in caught.value.what


def test_what_another_version_of_the_codec_wrote_is_refused_as_such(
    federate: Builder, killed: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as another run's, nor as damaged: an operator would move away what the other version can go on with."""
    federation = federate(4)
    with pytest.raises(killed):
        federation.run(kill_after=7)
    for party in federation.parties.values():
        party.kill()
    files = [federation.folder / "journal.db", *(party.folder / "node.db" for party in federation.parties.values())]
    opened: list[Callable[[Path], Any]] = [Journal, *[lambda path: NodeStore(path.parent)] * 4]
    monkeypatch.setattr(codec, "VERSION", codec.VERSION + 1)
    for path, opening in zip(files, opened, strict=True):
        with pytest.raises(EnvironmentFault) as caught:
            opening(path)
        assert caught.value.code == "database-version"


def test_a_journal_serves_one_plan_one_roster_and_one_run(federate: Builder) -> None:
    """A run that was given up is not taken up again, and a journal is not another run's."""
    plan = make_plan()
    federation = federate(3, dataclasses.replace(plan, federation=dataclasses.replace(plan.federation, salvage=False)))
    federation.on_event = lambda e: federation.parties["site-2"].kill() if e.kind == "released" else None
    with pytest.raises(AggregationError):
        federation.run()
    with pytest.raises(UsageError) as caught:
        federation.run()
    assert caught.value.code == "journal-given-up"
    journal = Journal(federation.folder / "journal.db")
    with pytest.raises(UsageError) as caught:
        journal.load(make_plan(model={"n_trees": 5}), federation.roster)
    assert caught.value.code == "journal-of-another-run"
    journal.close()


def test_two_processes_cannot_share_a_folder(tmp_path: Path) -> None:
    """Two nodes with one state would use the same slots."""
    store = NodeStore(tmp_path)
    with pytest.raises(EnvironmentFault) as caught:
        NodeStore(tmp_path)
    assert caught.value.code == "database-locked"
    store.close()
    NodeStore(tmp_path).close()


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    """An operator is told which file, and what to do."""
    (tmp_path / "node.db").write_bytes(content)
    (tmp_path / "node.db").chmod(0o600)
    with pytest.raises(EnvironmentFault) as caught:
        NodeStore(tmp_path)
    assert caught.value.code == "database-damaged" and "node.db" in caught.value.what


def test_private_files_are_private(tmp_path: Path) -> None:
    """The store holds keys: nobody but its owner may read it."""
    store = NodeStore(tmp_path / "state")
    store.save_attempt(b"1" * 32, 1)
    for name in ("node.db", "counter.json"):
        assert (tmp_path / "state" / name).stat().st_mode & 0o077 == 0
    store.close()


@pytest.mark.parametrize(("taken", "restored"), [(2, 4), (4, 6), (0, 1), (0, 3), (0, 8)])
def test_a_folder_that_was_restored_whole_is_charged_for_the_whole_run(
    federate: Builder, tmp_path: Path, taken: int, restored: int
) -> None:
    """Database, counter and book of one snapshot agree with each other, so the node sees nothing; but the coordinator
    has a vector of it that they do not know of. It answers nothing more, and nothing that was reserved is given back.
    Last night's copy (0) knows nothing of the run, and takes it up as a new one; what has left before counts.
    """
    federation = federate(5, make_plan(model={"n_trees": 8}))
    victim, backup = federation.parties["site-1"], tmp_path / "snapshot"
    if not taken:
        victim.kill()
        shutil.copytree(victim.folder, backup)
        victim.start()

    def act(event: RunEvent) -> None:
        if event.kind != RunEventKind.RELEASED:
            return
        if event.round == taken:
            shutil.copytree(victim.folder, backup)
        elif event.round == restored:
            victim.kill()
            shutil.rmtree(victim.folder)
            shutil.copytree(backup, victim.folder)
            victim.start()

    federation.on_event = act
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert [fault.code for fault in victim.failures] == ["rolled-back"]
    assert restored == 8 or sum("site-1" in survivors for survivors in federation.session.run.survivors) < 8
    victim.start()
    assert charged(victim) == ("stopped", 8)


@pytest.mark.parametrize("known", [1, 3])
def test_a_folder_that_was_restored_within_the_round_after_is_charged_for_the_whole_run(
    federate: Builder, tmp_path: Path, known: int
) -> None:
    """A vector that is at the coordinator, in a round whose sum is still to be opened, is an answer as any other."""
    federation = federate(5, make_plan(model={"n_trees": 8}))
    victim, backup = federation.parties["site-1"], tmp_path / "snapshot"
    pump, was_restored = victim.pump, []

    def watched() -> bool:
        handled = pump()
        session, store = victim.session, victim.store
        n_answered = 0 if session is None or store is None else len(store.spent(session.run_id) or ())
        if n_answered == known and not backup.exists():
            shutil.copytree(victim.folder, backup)
        elif n_answered == known + 1 and not was_restored:
            was_restored.append(True)
            victim.kill()
            shutil.rmtree(victim.folder)
            shutil.copytree(backup, victim.folder)
            victim.start()
        return handled

    victim.pump = watched  # type: ignore[method-assign]
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert was_restored
    assert [fault.code for fault in victim.failures] == ["rolled-back"]
    victim.start()
    assert charged(victim) == ("stopped", 8)


@pytest.mark.parametrize("phase", [1, 2, 3, 4])
def test_a_node_that_is_too_slow_for_a_set_up_finishes_with_the_others(federate: Builder, phase: int) -> None:
    """It was not heard in time during the set-up, so the run went on without it: it still takes the result."""
    federation, n_phases, is_over = federate(5), 0, False
    slow = federation.parties["site-2"]

    def watch(event: RunEvent) -> None:
        nonlocal n_phases, is_over
        n_phases += event.kind is RunEventKind.PHASE and event.code == "setting-up"
        is_over |= event.kind is RunEventKind.PHASE and event.code == "finishing"
        slow.is_frozen = n_phases >= phase and not is_over

    federation.on_event = watch
    federation.run()
    assert [fault.code for fault in slow.failures] == []
    assert all(party.is_done for party in federation.parties.values())


def test_a_site_that_was_left_out_before_it_saw_a_manifest_is_sent_no_certificate(federate: Builder) -> None:
    """Its vector is in the sum; it was too slow too often, came back on a new connection, and is asked nothing more."""
    plan = make_plan()
    plan = dataclasses.replace(plan, federation=dataclasses.replace(plan.federation, echo=True))
    federation, gone = federate(5, plan), ["site-1", "site-2", "site-3"]

    def watch(event: RunEvent) -> None:
        if event.kind is RunEventKind.PHASE and event.code == "collecting-echoes" and gone:
            assert federation.session is not None
            federation.session.run.leave_out(federation.session.run.sites["site-3"], "timeouts-spent")
            for name in gone:
                federation.parties[name].kill()

    def start_again(_: float) -> bool:
        if gone:
            federation.parties[gone.pop()].start()
            return True
        return False

    federation.on_event, federation.while_waiting = watch, start_again
    federation.run()
    assert {name: [fault.code for fault in party.failures] for name, party in federation.parties.items()} == {
        name: [] for name in federation.parties
    }
