"""A budget book that was restored together with its state: peers remember, and the node refuses itself."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.app.backup import back_up_node, restore_node
from hedgerow.cli.main import main
from hedgerow.client.budget import CLOSED, LEFT, BudgetBook, PeerBook, fold_name, note_book
from hedgerow.client.joining import leave
from hedgerow.client.policy import Policy
from hedgerow.client.state import NodeStore
from hedgerow.crypto import Identity
from hedgerow.errors import AggregationError, PolicyRefusal
from hedgerow.privacy.events import GaussianEvent
from hedgerow.protocol.messages import MessageKind, Payload, decode, encode
from hedgerow.secagg.keys import name_account
from hedgerow.secagg.messages import (
    MAX_HANDED_BACK,
    NO_ACCOUNT,
    SIGNED_HEADER_BYTES,
    Header,
    RoundContext,
    UnmaskRequest,
)
from tests.builders import make_plan

if TYPE_CHECKING:
    from conftest import Builder, Federation

POLICY = Policy(version=1, data_set="test", max_epsilon=3.2, delta=1e-5, noise=("server", "distributed"))
FILES = ("node.db*", "counter.json", "budget.db*")


def copy(source: Path, target: Path, files: tuple[str, ...] = FILES) -> None:
    """Make the files of a copy those of the original, at one moment, and no others."""
    target.mkdir(exist_ok=True)
    for pattern in files:
        for old in target.glob(pattern):
            old.unlink()
        for file in source.glob(pattern):
            shutil.copy(file, target / file.name)


def restored(party: Any, backup: Path, files: tuple[str, ...] = FILES) -> None:
    """The site's machine comes back from its backup."""
    party.kill()
    party.failures.clear()
    copy(backup, party.folder, files)
    party.start()


def next_run(federation: Federation) -> list[str]:
    """One more run; the first site's code words."""
    for file in federation.folder.glob("journal.db*"):
        file.unlink()
    for party in federation.parties.values():
        if party.session is None or party.is_done:
            party.kill()
            party.start()
    federation.events.clear()
    federation.run()
    return [fault.code for fault in federation.parties["site-0"].failures]


def lines(party: Any) -> list[tuple[str, int]]:
    """Of each run in the book: how it stands, and how many releases it is charged for."""
    book = BudgetBook(party.folder / "budget.db")
    found = [(line.status, sum(event.count for event in line.events)) for line in book.lines()]
    book.close()
    return found


def test_a_budget_cannot_be_spent_twice_by_restoring_book_and_state_together(federate: Builder, tmp_path: Path) -> None:
    """The book and the state agree with each other, so only the peers' word tells; nothing leaves the node again, in
    this run or the next, until its owner has charged for what is lost.
    """
    federation = federate(4, policies={"site-0": POLICY})
    victim = federation.parties["site-0"]
    copy(victim.folder, tmp_path / "before")
    federation.run()
    restored(victim, tmp_path / "before")
    assert next_run(federation) == ["budget-rolled-back"]
    assert all("site-0" not in survivors for survivors in federation.session.run.survivors)
    assert lines(victim) == [("left", 0)]
    victim.failures.clear()
    assert next_run(federation) == ["budget-rolled-back"] and victim.session is None
    book = BudgetBook(victim.folder / "budget.db")
    book.charge_lost("test", "", 2.0, 1e-5)
    assert book.spent("test", 1e-5) == pytest.approx(2.0, rel=1e-6)
    book.close()
    victim.failures.clear()
    assert next_run(federation) == []
    assert lines(victim)[-1][0] == "finished"
    victim.failures.clear()
    assert next_run(federation) == ["policy-over-budget"]


@pytest.mark.parametrize(("backup", "loss"), [(4, 9), (9, 14), (14, 15)])
def test_a_site_out_of_a_backup_takes_no_part_before_its_owner_has_charged(
    federate: Builder, tmp_path: Path, backup: int, loss: int
) -> None:
    """Whenever the backup was made and the machine lost, nothing more leaves in this run or the next, and the run that
    the backup knew is not gone on with; afterwards the account holds all that the others have seen.
    """
    federation = federate(4, policies={"site-0": POLICY})
    victim = federation.parties["site-0"]
    note_book(victim.folder, victim.folder / "budget.db")
    file, place = tmp_path / "b.tar", tmp_path / "restored"

    def lose() -> None:
        victim.kill()
        victim.failures.clear()
        shutil.rmtree(victim.folder)
        restore_node(file, place)
        place.rename(victim.folder)
        (tmp_path / "node-budget.db").rename(victim.folder / "budget.db")
        victim.start()

    victim.after(backup, lambda: back_up_node(victim.folder, file))
    victim.after(loss, lose)
    federation.run()
    assert [fault.code for fault in victim.failures] == ["budget-restored"]
    victim.failures.clear()
    assert next_run(federation) == ["budget-restored"]
    with closing(BudgetBook(victim.folder / "budget.db")) as book:
        assert all(line.status in (CLOSED, LEFT) for line in book.lines())
        # The backup has the run that was open, or its owner charges for it.
        book.charge_lost("test", "", 0.0 if book.lines() else 2.0, 1e-5)
        assert book.spent("test", 1e-5) >= 2.0 * (1 - 1e-6)
    victim.failures.clear()
    if next_run(federation):
        # The others show what was charged already, as the page says.
        assert [fault.code for fault in victim.failures] == ["budget-rolled-back"]
        with closing(BudgetBook(victim.folder / "budget.db")) as book:
            book.charge_lost("test", "", 0.0, 1e-5)
        victim.failures.clear()
        assert next_run(federation) == []
    assert lines(victim)[-1][0] == "finished"


def test_all_sites_restored_at_once_are_found_by_what_they_keep_apart(federate: Builder, tmp_path: Path) -> None:
    """What a site keeps for its peers is in a file of its own, for a backup of book and state is restored as one."""
    federation = federate(4)
    for site, party in federation.parties.items():
        copy(party.folder, tmp_path / site)
    federation.run()
    for site, party in federation.parties.items():
        restored(party, tmp_path / site)
    with pytest.raises(AggregationError):
        next_run(federation)
    codes = {fault.code for party in federation.parties.values() for fault in party.failures}
    assert "budget-rolled-back" in codes


@pytest.mark.parametrize("what", ["state", "peers", "nothing", "copied"])
def test_who_has_the_book_is_not_disturbed(federate: Builder, tmp_path: Path, what: str) -> None:
    """A new state folder, peers that have forgotten all, or a copy that is the newest: the count is whole."""
    federation = federate(4)
    victim = federation.parties["site-0"]
    federation.run()
    for site, party in federation.parties.items():
        party.kill()
        patterns = {"state": ("node.db*", "counter.json"), "peers": ("peers.db*",)}.get(what, ())
        for pattern in patterns if what == "peers" or site == "site-0" else ():
            for file in party.folder.glob(pattern):
                file.unlink()
        if what == "copied":
            copy(party.folder, tmp_path / site)
            copy(tmp_path / site, party.folder)
        party.start()
    assert next_run(federation) == []
    assert [status for status, _ in lines(victim)] == ["finished", "finished"]


def test_both_deleted_is_a_rollback_as_well(federate: Builder, tmp_path: Path) -> None:
    """To delete the book and the state is to begin the count again; the peers know better."""
    federation = federate(4)
    victim = federation.parties["site-0"]
    federation.run()
    restored(victim, tmp_path / "none")
    assert next_run(federation) == ["budget-rolled-back"]


@pytest.mark.parametrize("then", ["leaves", "loses its state"])
def test_a_copy_from_the_midst_of_a_run_is_found_at_the_next(federate: Builder, tmp_path: Path, then: str) -> None:
    """The copy knows of the run, but not of all its rounds: to leave it would charge for too few of them."""
    federation = federate(4)
    victim = federation.parties["site-0"]

    def backup(event: Any) -> None:
        if event.kind == "released" and event.round == 1:
            copy(victim.folder, tmp_path / "midst")

    federation.on_event = backup
    federation.run()
    federation.on_event = lambda _: None
    ((_, n_all),) = lines(victim)
    restored(victim, tmp_path / "midst")
    if then == "loses its state":
        # It is settled at what the old state says, which then is gone.
        victim.kill()
        book, store = BudgetBook(victim.folder / "budget.db"), NodeStore(victim.folder)
        leave(store, book, "site-0")
        store.close()
        book.close()
        restored(victim, tmp_path / "none", ("node.db*", "counter.json"))
    assert next_run(federation) == ["budget-rolled-back"]
    assert lines(victim)[0][0] == LEFT and lines(victim)[0][1] < n_all


def test_a_state_that_is_older_than_its_book_is_charged_in_full(federate: Builder, tmp_path: Path) -> None:
    """The book still reserves the whole run, so nothing is lost, if the old state is not believed when it is left."""
    federation = federate(4)
    victim = federation.parties["site-0"]

    def act(event: Any) -> None:
        if event.kind == "released" and event.round == 1:
            copy(victim.folder, tmp_path / "midst", FILES[:2])
        if event.kind == "released" and event.round == 3:
            restored(victim, tmp_path / "midst", FILES[:2])

    federation.on_event = act
    federation.run()
    (line,) = lines(victim)
    assert line[1] == sum(event.count for event in federation.session.run.ledger.events())


def test_a_peer_can_neither_make_up_a_header_nor_learn_from_one(federate: Builder) -> None:
    """What a peer hands back counts only with the node's own signature; and the coordinator, who carries it, sees
    neither what is handed back nor whether anything is.
    """
    federation = federate(4)
    federation.run()
    sizes = {len(message) for _, message in federation.received if message[4] == 22}
    liar = federation.parties["site-1"]
    own = liar.setup.identity.public
    kept = liar.book.peers.headers(own)
    run_id = federation.session.run.run_id
    liar.book.peers.keep(own, run_id, {key: bytes(8) + header[8:] for key, (header,) in kept.items()})
    federation.received.clear()
    assert next_run(federation) == []
    assert {len(message) for _, message in federation.received if message[4] == 22} == sizes


@pytest.mark.parametrize("signer", ["the liar", "nobody", "the victim, in another kind"])
def test_a_whole_header_of_an_epoch_that_its_victim_never_saw_locks_nobody(federate: Builder, signer: str) -> None:
    """It has every form of the real ones, and lacks the victim's signature alone: else one message of any neighbour
    would lock a site out of every run for ever. Nor does the victim's signature count that it gave to other words.
    """
    federation = federate(4)
    federation.run()
    liar, victim = federation.parties["site-1"], federation.parties["site-0"]
    own, name = liar.setup.identity.public, victim.setup.identity.public
    made_up = replace(
        Header.from_signed(liar.book.peers.headers(own)[name][-1]),
        context=RoundContext(b"r" * 32, b"e" * 32, 7),
        account=NO_ACCOUNT,
    )
    if signer == "the liar":
        signed = made_up.to_signed(liar.setup.identity)
    elif signer == "nobody":
        signed = made_up.to_bytes() + bytes(64)
    else:
        body = made_up.to_bytes()
        signed = body + victim.setup.identity.sign(b"NONCE", body)
    assert len(signed) == SIGNED_HEADER_BYTES and Header.from_signed(signed) == made_up
    for party in federation.parties.values():
        if party is not victim:
            party.book.peers.keep(party.setup.identity.public, b"another run", {name: signed})
    assert next_run(federation) == [] and victim.failures == []
    assert any("site-0" in survivors for survivors in federation.session.run.survivors)
    # By the victim's own hand the same words stop it: they were read, and the signature alone was missing.
    for party in federation.parties.values():
        if party is not victim:
            signed = made_up.to_signed(victim.setup.identity)
            party.book.peers.keep(party.setup.identity.public, b"another run", {name: signed})
    assert next_run(federation) == ["budget-rolled-back"]


def test_a_state_from_before_the_set_up_does_not_make_a_run_free(
    federate: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old state says that nothing of the run was answered; the book, which has noted an epoch of it, charges it
    in full, and so nothing is lost that peers could show.
    """
    federation = federate(4)
    victim, note_joining = federation.parties["site-0"], NodeStore.note_joining

    def noted(store: NodeStore, *arguments: Any) -> None:
        note_joining(store, *arguments)
        if store.folder == victim.folder:
            copy(victim.folder, tmp_path / "joining", FILES[:2])

    monkeypatch.setattr(NodeStore, "note_joining", noted)
    federation.on_event = lambda event: victim.kill() if event.kind == "released" and event.round == 3 else None
    federation.run()
    federation.on_event = lambda _: None
    monkeypatch.undo()
    restored(victim, tmp_path / "joining", FILES[:2])
    n_all = sum(event.count for event in federation.session.run.ledger.events())
    assert lines(victim) == [("left", n_all)]
    assert next_run(federation) == []


def test_a_coordinator_does_not_blot_out_what_peers_have_kept(federate: Builder, tmp_path: Path) -> None:
    """An opened sum does not rest on the headers' signatures: one that its signer would pass over replaces nothing."""
    federation = federate(4)
    victim = federation.parties["site-0"]
    copy(victim.folder, tmp_path / "before")
    asked = set[str]()

    def tamper(hub: Any) -> None:
        send = hub.send

        def sent(site: str, message: bytes) -> bool:
            # Each site has kept whole headers of the run's first round.
            if message[4] == MessageKind.UNMASK and (site in asked or asked.add(site) is not None):
                request = UnmaskRequest.from_bytes(decode(message).content)
                headers = tuple(header[:-1] + bytes([header[-1] ^ 1]) for header in request.headers)
                message = encode(Payload(MessageKind.UNMASK, replace(request, headers=headers).to_bytes()))
            return bool(send(site, message))

        hub.send = sent

    federation.tamper = tamper
    federation.run()
    assert len(asked) >= 3
    federation.tamper = lambda _: None
    restored(victim, tmp_path / "before")
    assert next_run(federation) == ["budget-rolled-back"]


def test_nodes_with_one_file_hand_back_only_what_they_saw_themselves(tmp_path: Path) -> None:
    """Or a peer of two studies would learn from one which node of the other has the same owner."""
    peers = PeerBook(tmp_path / "peers.db")
    north, west, signer = b"n" * 32, b"w" * 32, b"s" * 32
    peers.keep(north, b"run", {signer: b"first"})
    assert peers.headers(west) == {}
    peers.keep(west, b"run", {signer: b"second"})
    assert (peers.headers(north), peers.headers(west)) == ({signer: [b"first"]}, {signer: [b"second"]})
    peers.close()


@settings(max_examples=40, deadline=None)
@given(seen=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 6)), max_size=20))
def test_peers_keep_the_last_header_of_each_of_the_last_runs(tmp_path: Path, seen: list[tuple[str, int]]) -> None:
    """A site that has been in another run since, with other rows, is still shown what it signed in the one before."""
    path = Path(tmp_path, "peers.db")
    path.unlink(missing_ok=True)
    peers, expected = PeerBook(path), dict[bytes, dict[int, bytes]]()
    for number, (name, run) in enumerate(seen):
        signer, header = name.encode() * 32, b"%d" % number
        peers.keep(b"n" * 32, bytes([run]), {signer: header})
        expected.setdefault(signer, {}).pop(run, None)
        expected[signer][run] = header
    found = peers.headers(b"n" * 32)
    peers.close()
    assert found == {signer: list(kept.values())[-MAX_HANDED_BACK:] for signer, kept in expected.items()}


# Whose account ------------------------------------------------------------------------------------------------------


def serve_data_set(federation: Federation, name: str, folder: str) -> list[str]:
    """One more run, for which the first site gives another data set, with a state and a book of its own."""
    victim = federation.parties["site-0"]
    victim.kill()
    victim.failures.clear()
    victim.folder = federation.folder / folder
    victim.setup = replace(victim.setup, policy=replace(victim.setup.policy, data_set=name))
    victim.start()
    return next_run(federation)


def took_part(federation: Federation) -> bool:
    """Whether the first site is in a sum of the last run."""
    return any("site-0" in survivors for survivors in federation.session.run.survivors)


def test_another_data_set_of_one_identity_is_not_accused(federate: Builder) -> None:
    """Two data sets, each with a book and a state of its own: neither book is asked about what the other counts."""
    federation = federate(4)
    for name, folder in [("wards", "a"), ("clinics", "b"), ("clinics", "b"), ("wards", "a"), ("clinics", "b")]:
        assert serve_data_set(federation, name, folder) == []
        assert took_part(federation)
    for folder, n_runs in (("a", 2), ("b", 3)):
        book = BudgetBook(federation.folder / folder / "budget.db")
        assert len(book.lines()) == n_runs
        book.require_runs([])
        book.close()


@pytest.mark.parametrize("name", ["wards", "  WARDS "])
@pytest.mark.parametrize("between", [0, 3])
def test_a_new_book_of_the_same_data_set_is_noticed(federate: Builder, name: str, between: int) -> None:
    """Deleted or begun anew, under the same name or one that looks alike, and though the same node has been in runs
    over another data set since: what peers hand back of its own account stands.
    """
    federation = federate(4)
    assert serve_data_set(federation, "wards", "a") == []
    for _ in range(between):
        assert serve_data_set(federation, "clinics", "b") == []
    assert serve_data_set(federation, name, "anew") == ["budget-rolled-back"]
    assert not took_part(federation)


def test_headers_without_a_name_count_as_they_did(federate: Builder) -> None:
    """Those of the wire before say of no data set: a book that lacks their epochs is behind, whichever it is."""
    federation = federate(4)
    assert serve_data_set(federation, "wards", "a") == []
    victim = federation.parties["site-0"]
    identity = victim.setup.identity
    for party in federation.parties.values():
        kept = party.book.peers.headers(party.setup.identity.public).get(identity.public)
        if kept is None:
            continue
        body = Header.from_signed(kept[-1]).to_bytes()
        body = body[:3] + b"\5" + body[4:-33]
        signed = body + identity.sign(b"HEADER", body)
        assert len(signed) == 235
        party.book.peers.keep(party.setup.identity.public, federation.session.run.run_id, {identity.public: signed})
    assert serve_data_set(federation, "wards", "a") == []
    assert serve_data_set(federation, "wards", "anew") == ["budget-rolled-back"]


_NAMES = st.text(min_size=1, max_size=6).map(fold_name).filter(bool)


@settings(max_examples=60, deadline=None)
@given(names=st.tuples(_NAMES, _NAMES), epochs=st.tuples(*[st.binary(min_size=32, max_size=32)] * 2))
def test_only_the_signer_can_tell_an_account(names: tuple[str, str], epochs: tuple[bytes, bytes]) -> None:
    """Equal name and epoch, equal mark; any other name, epoch or identity has another, so that marks link nothing."""
    own, other = Identity(b"a" * 32), Identity(b"b" * 32)
    marks = {(name, epoch): name_account(own, name, epoch) for name in names for epoch in epochs}
    assert len(set(marks.values())) == len(marks)
    assert marks == {key: name_account(Identity(b"a" * 32), *key) for key in marks}
    assert not {name_account(other, *key) for key in marks} & set(marks.values())


_SLOTS = st.dictionaries(st.integers(0, 3).map(lambda number: bytes([number])), st.integers(0, 5), max_size=4)


@settings(max_examples=60, deadline=None)
@given(shown=_SLOTS, counted=_SLOTS, asked=_SLOTS, is_known=st.booleans(), epochs=st.sets(st.integers(0, 3)))
def test_a_slot_passes_exactly_where_the_book_charges_for_it(
    tmp_path: Path, shown: dict[bytes, int], counted: dict[bytes, int], asked: dict[bytes, int], is_known: bool,
    epochs: set[int],
) -> None:  # fmt: skip
    """Whatever epochs a book knows, however far its settled line counts, and whatever was asked before and not done, it
    refuses exactly what is not charged; and all that is lost is found before its owner is asked to charge for it.
    """
    path = Path(tmp_path, "x.db")
    path.unlink(missing_ok=True)
    book, run = BudgetBook(path), b"1" * 32
    book.serve("north", "state")
    events, plan, limit = [GaussianEvent(10.0, count=6)], make_plan(), (9.0, 1e-5)
    book.reserve(run, "d", plan, events, limit)
    known = {bytes([epoch]) for epoch in epochs}
    for epoch in known:
        book.note_epoch(run, epoch)
    book.reserve(b"2" * 32, "d", plan, events, limit, {run: (events, asked)}, is_kept=False)
    with pytest.raises(PolicyRefusal):
        book.reserve(b"2" * 32, "d", plan, events, (1e-3, 1e-5), {run: (events, asked)})
    now = [item for item in shown.items() if item[0] in known]
    assert book.require_counted(now) == {epoch: run for epoch, _ in now}
    book.settle(run, (events, counted) if is_known else None, CLOSED)
    # It is settled, so nothing more is charged, and nothing more counts.
    book.settle(run, (events, dict.fromkeys(shown, 9)), CLOSED)
    lost = {
        epoch for epoch, slot in shown.items() if (counted.get(epoch, -1) < slot if is_known else epoch not in known)
    }
    assert book.require_counted([item for item in shown.items() if item[0] not in lost]) == {}
    if lost:
        with pytest.raises(PolicyRefusal) as refused:
            book.require_counted(shown.items())
        assert refused.value.code == "budget-rolled-back"
        with pytest.raises(PolicyRefusal):
            book.require_runs([run])
    book.charge_lost("d", "", 1.0, 1e-5)
    book.require_runs([run])
    assert book.require_counted(shown.items()) == {}
    book.close()


STEPS = st.one_of(
    st.tuples(st.just("lose"), st.sampled_from(["wards", "clinics"]), st.integers(0, 1)),
    st.tuples(st.just("charge"), st.sampled_from(["wards", "clinics", "WARDS"]), st.just(0)),
    st.tuples(st.just("restore"), st.just(""), st.just(0)),
)


@settings(max_examples=60)
@given(steps=st.lists(STEPS, max_size=12))
def test_a_charge_for_one_data_set_forgives_no_loss_of_another(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int]]
) -> None:
    """One book may count several data sets: an owner who charges one, even with 0, has said nothing of the others."""
    book = BudgetBook(tmp_path_factory.mktemp("book") / "budget.db")
    owed, charged = dict[str, set[int]](), dict[str, set[int]]()
    restored = -1
    for kind, name, epoch in steps:
        data_set = name.lower()
        if kind == "lose":
            book.serve("north", "state", name)
            with suppress(PolicyRefusal):
                book.require_counted([(bytes([epoch]) * 32, 0)])
            owed.setdefault(data_set, set()).add(epoch)
        elif kind == "charge":
            book.charge_lost(name, "", 0.0, 1e-5)
            charged.setdefault(data_set, set()).update(owed.get(data_set, set()))
        else:
            book.mark_restored()
            for each in ("wards", "clinics"):
                owed.setdefault(each, set()).add(restored)
                charged.setdefault(each, set()).discard(restored)
        for each in ("wards", "clinics"):
            left = owed.get(each, set()) - charged.get(each, set())
            code = "" if not left else "budget-restored" if left == {restored} else "budget-rolled-back"
            assert book.find_block(each) == code
            book.serve("north", "state", each)
            if code:
                with pytest.raises(PolicyRefusal) as refused:
                    book.require_runs([])
                assert refused.value.code == code
            else:
                book.require_runs([])
    book.close()


def test_a_loss_that_an_older_book_wrote_down_is_owed_for_every_data_set(tmp_path: Path) -> None:
    """It did not say whose it was; one that was charged stays so, and none is forgiven by the upgrade."""
    path = tmp_path / "budget.db"
    BudgetBook(path).close()
    with closing(sqlite3.connect(path)) as file:
        file.executescript(
            "drop table losses; create table lost (epoch text primary key, is_charged integer not null);"
            f"insert into lost values ('{bytes(32).hex()}', 0), ('{bytes([1] * 32).hex()}', 1); pragma user_version = 5"
        )
    with closing(BudgetBook(path)) as book:
        assert {book.find_block(name) for name in ("wards", "clinics", "")} == {"budget-rolled-back"}
        book.charge_lost("wards", "", 1.0, 1e-5)
        assert [book.find_block(name) for name in ("wards", "clinics")] == ["", "budget-rolled-back"]
        book.serve("north", "state", "wards")
        assert book.require_counted([(bytes(32), 4), (bytes([1] * 32), 4)]) == {}


def test_the_owner_charges_by_the_command_that_the_refusal_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the way on that the error and the documents name; it asks for the policy, and counts what is said."""
    book = BudgetBook(tmp_path / "budget.db")
    book.serve("north", "state")
    with pytest.raises(PolicyRefusal):
        book.require_counted([(bytes(32), 0)])
    book.close()
    policy = tmp_path / "policy.toml"
    policy.write_text('version = 1\ndata_set = "wards"\nmax_epsilon = 3\ndelta = 1e-6\n')
    command = ["ledger", str(tmp_path / "budget.db"), "--lost", "2.5"]
    assert main(command) == 2
    assert main([*command, "--policy", str(policy), "--json"]) == 0
    (data_set,) = json.loads(capsys.readouterr().out)["data_sets"]
    assert data_set["data_set"] == "wards" and data_set["epsilon"] == pytest.approx(2.5, rel=1e-6)
    book = BudgetBook(tmp_path / "budget.db")
    book.require_runs([])
    book.close()
