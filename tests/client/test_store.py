"""What a thief finds in a node's folder: the state of the last step, and nothing that opens an earlier one."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from hedgerow.client.state import EVERY_ROUND, NodeStep, NodeStore
from hedgerow.errors import EnvironmentFault
from hedgerow.methods.tasks import TrainingTask
from hedgerow.privacy.events import GaussianEvent
from hedgerow.secagg.guarantees import Wishes
from hedgerow.secagg.messages import UnmaskRequest
from hedgerow.secagg.transitions import Code, State
from hedgerow.secagg.view import Cohort
from tests.builders import make_plan
from tests.secagg.lab import Lab, store_node

RUN = b"r" * 32


@pytest.fixture
def store(tmp_path: Path) -> NodeStore:
    """An open run of which nothing was answered yet."""
    made = NodeStore(tmp_path / "node")
    made.open_run(RUN, TrainingTask(make_plan()), b"data")
    made.save_attempt(RUN, 1)
    return made


def contents(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()))


def one_slot(lab: Lab, store: NodeStore, purpose: str = "tree-1") -> None:
    """Masks and answers, and stores node 0 after each step."""
    aggregator = lab.collected(purpose)
    store.save(RUN, NodeStep(lab.node(0)))
    lab.answered(0, lab.request(aggregator, 0, (0, 1, 2, 3, 4)))
    store.save(RUN, NodeStep(lab.node(0)))


def test_no_file_holds_the_link_of_a_past_slot(store: NodeStore) -> None:
    """The log of the database keeps replaced rows for hundreds of steps; a link there would open every slot since."""
    lab = Lab()
    fresh = lab.node(0)
    store.save(RUN, NodeStep(fresh))
    one_slot(lab, store)
    for link in (fresh.chain.link, lab.node(0).chain.link):
        assert link not in contents(store.folder)
    store.close()


def test_the_key_of_an_earlier_step_is_gone(store: NodeStore) -> None:
    """Every step is stored under a key that follows from the one before; only the newest is left in the folder."""
    lab = Lab()
    keys = []
    for purpose in ("tree-1", "tree-2"):
        one_slot(lab, store, purpose)
        keys.append(store._counter.key)
    held = contents(store.folder)
    assert keys[0].encode() not in held and bytes.fromhex(keys[0]) not in held and keys[1].encode() in held
    store.close_run(RUN, "finished")
    assert keys[1].encode() not in contents(store.folder)
    store.close()


@pytest.mark.parametrize("is_behind", [False, True])
def test_a_step_is_found_again(store: NodeStore, monkeypatch: pytest.MonkeyPatch, is_behind: bool) -> None:
    """Also where the counter was not written any more before the crash: its key leads to that of the database."""
    lab = Lab()
    store.save(RUN, NodeStep(lab.node(0)))
    lab.collected()
    with monkeypatch.context() as patch:
        if is_behind:
            patch.setattr(NodeStore, "_write_counter", lambda *arguments: None)
        store.save(RUN, NodeStep(lab.node(0)))
    store.close()
    for _ in range(2):
        again = NodeStore(store.folder)
        stored = again.load()
        assert stored is not None and stored.participant is not None and stored.fault is None
        assert store_node(stored.participant) == store_node(lab.node(0))
        again.close()
    again = NodeStore(store.folder)
    again.load()
    one_slot(lab, again, "tree-2")
    again.close()
    last = NodeStore(store.folder)
    stored = last.load()
    assert stored is not None and stored.participant is not None
    assert store_node(stored.participant) == store_node(lab.node(0))
    last.close()


def test_the_counter_is_json_of_one_length(store: NodeStore) -> None:
    """People and other tools may read it, and a write in place must cover all that was there before."""
    one_slot(Lab(), store)
    line = (store.folder / "counter.json").read_text(encoding="ascii")
    assert line == json.dumps(store._counter.__dict__).ljust(512)


def test_a_disk_that_is_full_at_the_first_count_locks_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file was made, and nothing written: nothing has left the node, which takes the run up with more room."""
    task = TrainingTask(make_plan())
    with monkeypatch.context() as patch:
        full = OSError(errno.ENOSPC, "full")
        patch.setattr(os, "pwrite", Mock(side_effect=full))
        store = NodeStore(tmp_path / "node")
        with pytest.raises(EnvironmentFault):
            store.open_run(RUN, task, b"data")
        store.close()
    again = NodeStore(tmp_path / "node")
    assert again.open_run(RUN, task, b"data").answered == frozenset()
    again.close()


def test_a_database_does_not_open_under_the_counter_of_another_folder(store: NodeStore) -> None:
    """Whoever has the database only, as from a backup that leaves the counter out, has none of its steps."""
    store.save(RUN, NodeStep(Lab().node(0)))
    store._write_counter(replace(store._counter, key="00" * 32))
    store.close()
    again = NodeStore(store.folder)
    stored = again.load()
    assert stored is not None and stored.participant is None
    assert stored.fault is not None and stored.fault.code == Code.CORRUPT_STATE
    again.close()


def test_what_refuses_a_step_does_not_keep_it(store: NodeStore) -> None:
    """An error holds its frames, and those what they had decrypted: a link that the disk has forgotten lived on."""
    lab = Lab()
    store.save(RUN, NodeStep(lab.node(0)))
    store.database.write(("insert into purposes values (?, 'never asked')", (RUN,)))
    store.close()
    again = NodeStore(store.folder)
    found = again.load()
    assert found is not None and found.fault is not None and found.fault.code == Code.CORRUPT_STATE.value
    assert (found.fault.__traceback__, found.fault.__cause__, found.fault.__context__) == (None, None, None)
    again.close()


def answered_slot(lab: Lab, store: NodeStore) -> tuple[bytes, bytes]:
    """Masks and answers, and writes what a session would; returns node 0's request and answer."""
    aggregator = lab.collected()
    store.save(RUN, NodeStep(lab.node(0), spent=(0, GaussianEvent(1.0, 1)), masked=Cohort.from_view(lab.view)))
    request = lab.request(aggregator, 0, (0, 1, 2, 3, 4))
    step = lab.answered(0, request)
    store.save(RUN, NodeStep(step.state, answered=0))
    return request, step.message or b""


@pytest.mark.parametrize("n_restarts", [1, 2])
def test_an_answer_is_found_again(store: NodeStore, n_restarts: int) -> None:
    """Started again, the node answers the same manifest as before, and goes on."""
    lab = Lab()
    request, answer = answered_slot(lab, store)
    for _ in range(n_restarts):
        store.close()
        store = NodeStore(store.folder)
        stored = store.load()
        assert stored is not None and stored.participant is not None and stored.fault is None
        assert stored.answered == {0} and stored.participant.state is State.SHARES_ANSWERED
        lab.session.nodes["site-0"] = stored.participant
        assert lab.answered(0, request).message == answer
    lab.session.nodes["site-0"] = stored.participant
    one_slot(lab, store, "tree-2")
    store.close()
    again = NodeStore(store.folder)
    stored = again.load()
    assert stored is not None and stored.participant is not None
    assert store_node(stored.participant) == store_node(lab.node(0))
    assert stored.participant.purposes == {"tree-1", "tree-2"}
    again.close()


@pytest.mark.parametrize("is_behind", [False, True])
def test_nothing_opens_the_slot_that_was_answered(
    store: NodeStore, monkeypatch: pytest.MonkeyPatch, is_behind: bool
) -> None:
    """The step of the answer replaces that of the vector before the shares leave. Its key is gone from the folder, also
    after a crash between the two writes, as soon as the node is started again.
    """
    lab = Lab()
    aggregator = lab.collected()
    store.save(RUN, NodeStep(lab.node(0)))
    key = store._counter.key
    request = lab.request(aggregator, 0, (0, 1, 2, 3, 4))
    step = lab.answered(0, request)
    with monkeypatch.context() as patch:
        if is_behind:
            patch.setattr(NodeStore, "_write_counter", lambda *arguments: None)
        store.save(RUN, NodeStep(step.state, answered=0))
    store.close()
    again = NodeStore(store.folder)
    stored = again.load()
    assert key.encode() not in contents(store.folder)
    assert stored is not None and stored.participant is not None and stored.participant.open is not None
    assert stored.participant.open.own_share == b"" and store_node(stored.participant) == store_node(lab.node(0))
    assert stored.answered == {0}
    lab.session.nodes["site-0"] = stored.participant
    assert lab.answered(0, request).message == step.message
    again.close()


def test_no_other_manifest_is_answered_after_a_restart(store: NodeStore) -> None:
    """One for other survivors would give the other share of a secret: the node stops, and keeps both for its owner."""
    lab = Lab()
    aggregator = lab.collected()
    store.save(RUN, NodeStep(lab.node(0)))
    request = lab.request(aggregator, 0, (0, 1, 2, 3, 4))
    store.save(RUN, NodeStep(lab.answered(0, request).state, answered=0))
    store.close()
    again = NodeStore(store.folder)
    stored = again.load()
    assert stored is not None and stored.participant is not None
    lab.session.nodes["site-0"] = stored.participant
    other = lab.request(aggregator, 0, (0, 1, 2, 3))
    step = lab.answered(0, other)
    assert step.message is None and step.complaints[0].reason is Code.SECOND_MANIFEST
    assert step.state.evidence == tuple(UnmaskRequest.from_bytes(asked).manifest for asked in (request, other))
    again.close()


@pytest.mark.parametrize(("step", "advice"), [(-1, "counter.json"), (1, "leave the file where it is")])
def test_a_state_of_another_version_is_refused_by_name(store: NodeStore, step: int, advice: str) -> None:
    """Its steps mean something else; the owner hears which version wrote it, and what to do that ends the refusal."""
    version = store.database.rows("pragma user_version")[0][0]
    store.database.rows(f"pragma user_version = {version + step}")
    store.close()
    with pytest.raises(EnvironmentFault) as refused:
        NodeStore(store.folder)
    assert refused.value.code == "database-version" and advice in refused.value.remedy


def two_rounds(store: NodeStore) -> None:
    """Masks and answers rounds 0 and 1."""
    lab = Lab()
    answered_slot(lab, store)
    aggregator = lab.collected("tree-2")
    released = ((0, np.zeros(4, dtype=np.int64)),)
    step = NodeStep(lab.node(0), released, (1, GaussianEvent(1.0, 1)), masked=Cohort.from_view(lab.view))
    store.save(RUN, step)
    answer = lab.answered(0, lab.request(aggregator, 0, (0, 1, 2, 3, 4)))
    store.save(RUN, NodeStep(answer.state, answered=1))


@pytest.mark.parametrize("is_restored", [False, True])
@pytest.mark.parametrize("lost", ["counter", "database"])
def test_what_one_file_lost_is_barred_by_the_other_for_good(store: NodeStore, lost: str, is_restored: bool) -> None:
    """Not on the first start only: a new epoch writes a new counter, and the node may be started again in it."""
    folder, names = store.folder, {"node.db", "node.db-wal"} if lost == "database" else {"counter.json"}
    store.save(RUN, NodeStep(Lab().node(0)))
    store.close()
    backup = {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}
    store = NodeStore(folder)
    stored = store.load()
    assert stored is not None
    two_rounds(store)
    store.close()
    for file in folder.iterdir():
        if file.name.startswith(tuple(names)):
            file.unlink()
    for name, content in backup.items() if is_restored else ():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    for attempt in (2, 3):
        again = NodeStore(folder)
        if lost == "database" and not is_restored and attempt == 2:
            assert again.open_run(RUN, stored.task, b"data").answered == {0, 1}
        else:
            found = again.load()
            assert found is not None and found.participant is None and found.answered == {0, 1}
        again.save_attempt(RUN, attempt)
        again.close()
    again = NodeStore(folder)
    found = again.load()
    assert found is not None and found.answered == {0, 1}
    again.close()


def test_a_counter_that_is_one_step_old_frees_no_round(store: NodeStore) -> None:
    """It cannot be told from one that a crash has kept from being written; the database says what is over."""
    lab = Lab()
    aggregator = lab.collected()
    store.save(RUN, NodeStep(lab.node(0), spent=(0, GaussianEvent(1.0, 1)), masked=Cohort.from_view(lab.view)))
    backup = (store.folder / "counter.json").read_bytes()
    answer = lab.answered(0, lab.request(aggregator, 0, (0, 1, 2, 3, 4)))
    store.save(RUN, NodeStep(answer.state, answered=0))
    store.close()
    (store.folder / "counter.json").write_bytes(backup)
    for _ in range(2):
        again = NodeStore(store.folder)
        stored = again.load()
        assert stored is not None and stored.fault is None and stored.answered == {0}
        again.save_attempt(RUN, 2)
        again.close()


def test_an_old_counter_frees_no_round_while_an_epoch_is_set_up(store: NodeStore) -> None:
    """There is no step then whose key would not fit."""
    store.save(RUN, NodeStep(Lab().node(0)))
    backup = (store.folder / "counter.json").read_bytes()
    two_rounds(store)
    store.save_attempt(RUN, 2)
    store.close()
    (store.folder / "counter.json").write_bytes(backup)
    again = NodeStore(store.folder)
    stored = again.load()
    assert stored is not None and stored.answered == {0, 1} and again._counter.answered == 1
    again.close()


def test_what_a_restored_database_had_lost_outlives_the_counter(store: NodeStore) -> None:
    """First an older database, then, in the next epoch, no counter: each file has told the other in time."""
    folder = store.folder
    store.save(RUN, NodeStep(Lab().node(0)))
    store.close()
    backup = {file: file.read_bytes() for file in folder.glob("node.db*")}
    store = NodeStore(folder)
    store.load()
    two_rounds(store)
    store.close()
    for file in folder.glob("node.db*"):
        file.unlink()
    for file, content in backup.items():
        file.write_bytes(content)
        file.chmod(0o600)
    store = NodeStore(folder)
    store.load()
    store.save_attempt(RUN, 2)
    store.save(RUN, NodeStep(Lab(seed=9).node(0)))
    store.close()
    (folder / "counter.json").unlink()
    again = NodeStore(folder)
    stored = again.load()
    assert stored is not None and stored.answered == {0, 1}
    again.close()


def test_a_crash_between_an_echo_and_its_counter_frees_no_round(
    store: NodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The echo is repeated without being written again, and the shares that follow it leave."""
    lab = Lab(wishes=Wishes(1, has_echo=True))
    aggregator = lab.collected()
    store.save(RUN, NodeStep(lab.node(0), spent=(0, GaussianEvent(1.0, 1)), masked=Cohort.from_view(lab.view)))
    _, requests = aggregator.close_vectors(lab.session.coordinator)
    step = lab.answered(0, requests[0])
    with monkeypatch.context() as patch:
        patch.setattr(NodeStore, "_write_counter", lambda *arguments: None)
        store.save(RUN, NodeStep(step.state, answered=0))
    store.close()
    again = NodeStore(store.folder)
    stored = again.load()
    assert stored is not None and stored.fault is None and stored.answered == {0}
    assert again._counter.answered == 0
    again.close()


def test_what_one_run_bars_is_free_in_the_next(store: NodeStore) -> None:
    """Rounds are numbered anew in every run; a node that was started in one may join another."""
    two_rounds(store)
    store.close()
    store = NodeStore(store.folder)
    stored = store.load()
    assert stored is not None and stored.answered == {0, 1}
    store.close_run(RUN, "stopped")
    assert store.open_run(b"s" * 32, stored.task, b"data").answered == frozenset()
    store.save_attempt(b"s" * 32, 1)
    store.close()
    store = NodeStore(store.folder)
    stored = store.load()
    assert stored is not None and stored.answered == frozenset()
    store.close()


def test_an_answer_is_not_taken_for_one_to_the_next_vector(store: NodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process died between the two writes of a vector, so that the counter is still at the answer before it."""
    lab = Lab()
    answered_slot(lab, store)
    aggregator = lab.collected("tree-2")
    with monkeypatch.context() as patch:
        patch.setattr(NodeStore, "_write_counter", lambda *arguments: None)
        store.save(RUN, NodeStep(lab.node(0)))
    store.close()
    for _ in range(2):
        store = NodeStore(store.folder)
        stored = store.load()
        assert stored is not None and stored.participant is not None
        assert stored.participant.state is State.VECTOR_MASKED
        lab.session.nodes["site-0"] = stored.participant
        assert lab.answered(0, lab.request(aggregator, 0, (0, 1, 2, 3, 4))).message
        store.close()


def test_a_crash_at_the_end_of_a_run_leaves_no_key(store: NodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the database's log holds of the last step is closed at the latest when the node is started again."""
    answered_slot(Lab(), store)
    with monkeypatch.context() as patch:
        patch.setattr(NodeStore, "_write_counter", lambda *arguments: None)
        store.close_run(RUN, "finished")
    assert store._counter.key
    store.close()
    again = NodeStore(store.folder)
    assert again.load() is None and again._counter.key == "" and again._counter.answered == 0
    again.close()


@pytest.mark.parametrize("forgets_masked", [False, True])
def test_a_round_that_is_over_is_barred_when_the_database_is_lost(store: NodeStore, forgets_masked: bool) -> None:
    """Though this node was not asked for its shares, others have opened the sum: the counter says so by itself, also
    where it does not know what was masked. Where it does, a round that was masked last may have been opened too.
    """
    lab, released = Lab(), np.zeros(4, dtype=np.int64)
    event = GaussianEvent(1.0, 1)
    store.save(RUN, NodeStep(lab.node(0), spent=(0, event)))
    lab.collected()
    store.save(RUN, NodeStep(lab.node(0), releases=((0, released),), spent=(1, event)))
    if forgets_masked:
        store._write_counter(replace(store._counter, masked=EVERY_ROUND))
    task = store.load().task
    store.close()
    for file in store.folder.glob("node.db*"):
        file.unlink()
    again = NodeStore(store.folder)
    assert again.open_run(RUN, task, b"data").answered == ({0} if forgets_masked else {0, 1})
    again.close()
