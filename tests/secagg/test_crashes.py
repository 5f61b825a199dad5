"""Crashes and rollbacks after every persisted step: no slot twice, identical resends, restored backups refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain, combinations

import numpy as np
import pytest

from hedgerow.crypto import SHARE_BYTES, PrimitiveFault, unseal
from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.enrolment import Enrolment
from hedgerow.secagg.guarantees import Wishes
from hedgerow.secagg.keys import setup_share_key
from hedgerow.secagg.messages import Answer, EchoCertificate, ShareMessage, manifest_hash
from hedgerow.secagg.participant import Participant
from hedgerow.secagg.session import EpochSession
from hedgerow.secagg.transitions import Code
from tests.secagg.lab import Lab, echoed, refusal_of, require_refusal, restore_node, seeded_entropy, store_node


class Disk:
    """What survives a crash: the state's last bytes and, apart from them, the sequence of the last record."""

    def __init__(self) -> None:
        self.history: list[tuple[bytes, int]] = []

    def persist(self, step):
        if step.persist:
            assert step.persist[-1].sequence == step.state.sequence
            state = step.state
            data = store_node(state) if isinstance(state, Participant) else state.to_bytes()
            self.history.append((data, state.sequence))
        return step


def test_a_node_may_crash_after_every_step_of_set_up_and_rounds(monkeypatch):
    """Every state goes through bytes before its message leaves; the epoch and two sums come out as without crashes."""
    disks: dict[int, Disk] = {}

    def through_disk(method):
        def crashing(self, *arguments, **options):
            step = method(self, *arguments, **options)
            node = step.state.node
            disk = disks.setdefault(node, Disk())
            disk.persist(step)
            data, sequence = disk.history[-1]
            if isinstance(step.state, Participant):
                restored = restore_node(data, sequence)
                assert store_node(restored) == data
            else:
                restored = Enrolment.latest(data)
                assert restored.to_bytes() == data
            return replace(step, state=restored)

        return crashing

    steps = {Enrolment: ("reveal", "share", "acknowledge", "finish"), Participant: ("mask", "unmask", "confirm")}
    for cls, names in steps.items():
        for name in names:
            monkeypatch.setattr(cls, name, through_disk(getattr(cls, name)))
    lab = Lab(n_nodes=4, wishes=Wishes(0, has_echo=True))
    for purpose in ("tree-1", "tree-2"):
        spec = lab.session.spec(purpose, lab.open().spec.vectors)
        values = {site: {"leaves": lab_values(site)} for site in lab.sites}
        assert lab.session.aggregate(spec, values).sums["leaves"].tolist() == [6, 6, 6, 6]
    assert len(disks[0].history) == 8
    for node, disk in disks.items():
        sequences = [sequence for _, sequence in disk.history]
        assert sequences == sorted(set(sequences)), f"Node {node} wrote two states under one sequence."
        # The first three are of the set-up.
        for data, _ in disk.history[3:-1]:
            require_refusal(partial(restore_node, data, sequences[-1]), Code.ROLLED_BACK)


def lab_values(site: str):
    return np.full(4, int(site.rsplit("-", 1)[1]), np.int64)


def test_a_node_that_forgets_its_answer_left_says_nothing_else():
    """A certificate leaves nothing to write. A node that comes back where it echoed, after its shares have left, says
    of every certificate and every manifest what one says that remembers them.
    """
    lab, aggregator, echoes = echoed()
    node, context, signed = lab.node(0), lab.session.contexts["site-0"], manifest_hash(aggregator.manifest)

    def certificate(nodes: tuple[int, ...]) -> bytes:
        return EchoCertificate(signed, nodes, tuple(echoes[n][-64:] for n in nodes)).to_bytes()

    step = node.confirm(certificate((0, 1, 2, 3, 4)))
    assert step.message and not step.persist
    kept, forgot = step.state, restore_node(store_node(node), step.state.sequence)
    codes = set()
    for some in chain.from_iterable(combinations(range(5), count) for count in range(6)):
        acts = [partial(one.confirm, certificate(some)) for one in (kept, forgot)]
        codes.add(refusal_of(acts[0]))
        assert refusal_of(acts[0]) is refusal_of(acts[1])
        assert refusal_of(acts[0]) or acts[0]().message == acts[1]().message == step.message
    assert codes == {None, Code.TOO_FEW_ECHOES}
    other = lab.request(aggregator, 0, (0, 1, 2, 3))
    stops = [one.unmask(context, other) for one in (kept, forgot)]
    assert store_node(stops[0].state) == store_node(stops[1].state) and stops[0].message is stops[1].message is None
    following, uploads = lab.open("tree-2"), []
    for one in (kept, forgot):
        lab.session.nodes["site-0"] = one
        lab.session.entropy = seeded_entropy(7)
        uploads.append((lab.masked(0, following), store_node(lab.node(0))))
    assert uploads[0] == uploads[1]


def test_a_crash_before_the_write_sends_nothing_and_changes_nothing(lab):
    """States are immutable: a step whose outcome is thrown away leaves the node where it was."""
    before = store_node(lab.node(0))
    aggregator = lab.open()
    state = lab.node(0)
    lab.masked(0, aggregator)
    assert store_node(state) == before


def test_a_resend_is_identical(lab):
    """After a crash between write and send, the same spec and manifest give the same bytes."""
    aggregator = lab.open()
    uploads = [lab.masked(node, aggregator) for node in range(5)]
    lab.session.nodes["site-0"] = restore_node(store_node(lab.node(0)), lab.node(0).sequence)
    assert lab.masked(0, aggregator) == uploads[0]
    aggregator, _ = aggregator.receive(uploads)
    request = lab.request(aggregator, 0, (0, 1, 2, 3, 4))
    answer = lab.answered(0, request).message
    lab.session.nodes["site-0"] = restore_node(store_node(lab.node(0)), lab.node(0).sequence)
    again = lab.answered(0, request)
    assert again.message == answer and not again.persist


def test_a_restored_backup_cannot_mask_or_answer_again(lab):
    """Whatever state is brought back, its sequence betrays it."""
    states = [store_node(lab.node(0))]
    aggregator = lab.collected()
    states.append(store_node(lab.node(0)))
    lab.answered(0, lab.request(aggregator, 0, (0, 1, 2, 3, 4)))
    latest = lab.node(0)
    for backup in states:
        require_refusal(lambda backup=backup: restore_node(backup, latest.sequence), Code.ROLLED_BACK)
    restored = restore_node(store_node(latest), latest.sequence)
    lab.session.nodes["site-0"] = restored
    require_refusal(lambda: lab.masked(0, aggregator), Code.SLOT_REUSED)


def test_peers_tell_when_a_node_was_rolled_back_anyway(lab):
    """If a node's owner ignores all warnings, its second upload for one slot differs and the aggregator names it."""
    backup = lab.node(1)
    aggregator = lab.collected()
    lab.session.nodes["site-1"] = backup
    second = lab.masked(1, aggregator)
    _, complaints = aggregator.receive([second])
    assert [(c.reason, c.peer) for c in complaints] == [(Code.CONTRADICTION, 1)]


@pytest.mark.parametrize("position", [0, 10, 40, -33, -1])
def test_a_damaged_state_is_refused(lab, position):
    """A torn write or a flipped byte is CORRUPT_STATE, for nodes and for the coordinator's journal alike."""
    aggregator = lab.collected()
    for data, load in (
        (store_node(lab.node(0)), lambda raw: restore_node(raw, lab.node(0).sequence)),
        (aggregator.to_bytes(), lambda raw: Aggregator.restore(lab.view, raw)),
    ):
        load(data)
        damaged = bytearray(data)
        damaged[position] ^= 1
        for raw in (bytes(damaged), data[:-1], data[:20], b""):
            assert refusal_of(lambda load=load, raw=raw: load(raw)) is Code.CORRUPT_STATE


def test_the_coordinator_resumes_with_the_same_manifest(lab):
    """After a crash the journal gives back uploads and manifest; nodes that answered before answer again, alike."""
    aggregator = lab.collected(absent=(4,))
    aggregator, requests = aggregator.close_vectors(lab.session.coordinator)
    first = lab.answered(0, requests[0]).message
    resumed = Aggregator.restore(lab.view, aggregator.to_bytes())
    assert resumed.requests() == requests
    answers = [lab.answered(node, resumed.requests()[node]).message for node in range(4)]
    assert answers[0] == first
    resumed, complaints = resumed.receive(answers)
    resumed = Aggregator.restore(lab.view, resumed.to_bytes())
    assert not complaints and resumed.release()[1].sums["leaves"].tolist() == [10] * 4


def test_stragglers_complete_an_answer_round(lab):
    """Too few answers first; the same manifest again as nodes return; then the exact sum."""
    aggregator = lab.collected()
    aggregator, requests = aggregator.close_vectors(lab.session.coordinator)
    few = [lab.answered(node, requests[node]).message for node in range(3)]
    waiting, _ = aggregator.receive(few)
    require_refusal(waiting.release, Code.TOO_FEW_ANSWERS)
    complete, _ = waiting.receive([lab.answered(3, requests[3]).message])
    assert complete.release()[1].sums["leaves"].tolist() == [15] * 4


def test_used_keys_are_gone_from_the_state(lab):
    """After an answer the state holds neither the slot's key, nor its chain link, nor any share of the slot."""
    key = lab.node(0).chain.current_secret()
    link = lab.node(0).chain.link
    shares = {node: run[:33] for node, run in lab.node(0).shares.items()}
    aggregator = lab.collected()
    lab.answered(0, lab.request(aggregator, 0, (0, 1, 2, 3, 4)))
    stored = store_node(lab.node(0))
    assert key not in stored and link not in stored
    assert not any(share in stored for share in shares.values())


def test_an_enrolment_attempt_is_not_repeated():
    """A node that recorded attempt 1 refuses a set-up with attempt 1 again: the coordinator cannot redraw the graph."""
    session = EpochSession(["a", "b", "c"], 1, seeded_entropy(1))
    context, parameters = session.contexts["a"], session.parameters.to_bytes()
    require_refusal(lambda: Enrolment.begin(context, parameters, seeded_entropy(2), last_attempt=1), Code.STALE_ATTEMPT)


def test_shares_are_signed_by_their_node(lab):
    """The answers carry their node's number and no other's."""
    aggregator = lab.collected()
    step = lab.answered(2, lab.request(aggregator, 2, (0, 1, 2, 3, 4)))
    assert Answer.from_signed(step.message).node == 2


def test_the_parts_of_two_epochs_are_not_put_together():
    """A step belongs to one epoch; under another's, its keys would mask with what other nodes take for wrong."""
    one, other = Lab(seed=1).node(0), Lab(seed=2).node(0)
    assert one.sequence == other.sequence
    require_refusal(
        lambda: Participant.restore_parts(one.epoch_bytes(), other.step_bytes(), (), one.sequence), Code.CORRUPT_STATE
    )


def test_a_step_is_not_restored_without_its_purposes_or_with_a_later_epoch(lab):
    """A purpose that is missing could be answered twice; rows of later slots would be read as earlier slots' shares."""
    before = lab.node(0)
    requests = lab.collected().close_vectors(lab.session.coordinator)[1]
    lab.answered(0, requests[0])
    after = lab.node(0)
    epoch, purposes = before.epoch_bytes(), sorted(after.purposes)
    assert Participant.restore_parts(epoch, after.step_bytes(), purposes, after.sequence).purposes == after.purposes
    for others in ([], [*purposes, "another"]):
        require_refusal(
            lambda others=others: Participant.restore_parts(epoch, after.step_bytes(), others, after.sequence),
            Code.CORRUPT_STATE,
        )
    require_refusal(
        lambda: Participant.restore_parts(after.epoch_bytes(), before.step_bytes(), (), before.sequence),
        Code.CORRUPT_STATE,
    )


def test_a_ready_node_cannot_open_the_shares_of_its_set_up(monkeypatch):
    """The coordinator has all sealed shares of all slots; a state that is stolen later must not open them for it."""
    sent, share = {}, Enrolment.share

    def recording(self, *arguments):
        step = share(self, *arguments)
        sent[self.node] = ShareMessage.from_signed(step.message)
        return step

    monkeypatch.setattr(Enrolment, "share", recording)
    lab = Lab()
    node = lab.node(0)
    for holder, sealed in zip(sent[0].holders, sent[0].sealed, strict=True):
        with pytest.raises(PrimitiveFault):
            unseal(setup_share_key(node.channels[holder], 0, holder), sealed, sent[0].view)
    for sender in node.channels:
        sealed = dict(zip(sent[sender].holders, sent[sender].sealed, strict=True))[0]
        with pytest.raises(PrimitiveFault):
            unseal(setup_share_key(node.channels[sender], sender, 0), sealed, sent[sender].view)


def test_held_shares_are_stored_under_the_keys_of_their_slots():
    """What is stored once for an epoch shows no share; with a later link, the shares of past slots stay closed."""
    lab = Lab()
    fresh = lab.node(0)
    stored = fresh.epoch_bytes()
    shares = [run[at : at + SHARE_BYTES] for run in fresh.shares.values() for at in range(0, len(run), SHARE_BYTES)]
    assert shares and not any(share in stored for share in shares)
    aggregator = lab.collected()
    lab.answered(0, lab.request(aggregator, 0, (0, 1, 2, 3, 4)))
    later = lab.node(0)
    restored = Participant.restore_parts(stored, later.step_bytes(), later.purposes, later.sequence)
    assert restored.shares == later.shares
    used = {run[:SHARE_BYTES] for run in fresh.shares.values()}
    assert not any(share in run for share in used for run in restored.shares.values())
