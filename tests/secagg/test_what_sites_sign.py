"""What a site signs is taken from that site alone, and only where it fits the epoch, the slot and its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from hedgerow.crypto import PRIME, SHARE_BYTES, Identity, seal
from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.enrolment import Enrolment, EpochSetup
from hedgerow.secagg.guarantees import Wishes
from hedgerow.secagg.keys import setup_share_key
from hedgerow.secagg.messages import (
    HANDED_BACK_BYTES,
    WITHHELD,
    Acknowledgement,
    Answer,
    Echo,
    Header,
    Kind,
    MaskedVector,
    NodePolicy,
    ShareDelivery,
    ShareMessage,
    Signed,
    VectorSpec,
    build_signed_list,
    hash_sealed,
)
from hedgerow.secagg.participant import ExpectedRound, NodeContext
from hedgerow.secagg.session import EpochSession
from hedgerow.secagg.transitions import Code, Step
from tests.secagg.lab import Lab, echoed, require_refusal, seeded_entropy, set_up

Sent = tuple[Aggregator | EpochSetup, list[bytes], list[Identity]]
"""A party that collects, what all nodes send it, and their identities."""


def in_setup(stage: str) -> Callable[[], Sent]:
    """What nodes send at a stage of a set-up."""

    def make() -> Sent:
        made = set_up(stage)
        return made.server, made.messages, [context.identity for context in made.contexts]

    return make


def identities_of(lab: Lab) -> list[Identity]:
    """Of all nodes, by their numbers."""
    return [lab.session.contexts[site].identity for site in lab.sites]


def uploads() -> Sent:
    """The nodes' masked vectors."""
    lab = Lab()
    aggregator = lab.open()
    return aggregator, [lab.masked(node, aggregator) for node in range(5)], identities_of(lab)


def echoes() -> Sent:
    """The nodes' echoes of one manifest."""
    lab, aggregator, sent = echoed()
    return aggregator, sent, identities_of(lab)


def answers() -> Sent:
    """The nodes' answers to one manifest."""
    lab = Lab()
    aggregator, requests = lab.collected().close_vectors(lab.session.coordinator)
    sent = [lab.answered(node, requests[node]).message or b"" for node in range(5)]
    return aggregator, sent, identities_of(lab)


def change(kind: type[Signed], **changes: Any) -> Callable[[bytes, Identity], bytes]:
    """The message with other fields, each signed by the given identity; a field may follow from the one that was."""

    def made(message: bytes, identity: Identity) -> bytes:
        genuine: Any = kind.from_signed(message)
        given = {name: new(getattr(genuine, name)) if callable(new) else new for name, new in changes.items()}
        return replace(genuine, **given).to_signed(identity)

    return made


def change_upload(
    payload: Callable[[bytes], bytes] = bytes,
    sealed: Callable[[Sequence[bytes]], Sequence[bytes]] = tuple,
    says: Mapping[str, Any] = MappingProxyType({}),
) -> Callable[[bytes, Identity], bytes]:
    """An upload of other content; its header commits to just that, but for what it `says`."""

    def made(message: bytes, identity: Identity) -> bytes:
        upload = MaskedVector.from_bytes(message)
        content, boxes = payload(upload.payload), tuple(sealed(upload.sealed))
        commits = {"payload": sha256(content).digest(), "sealed": hash_sealed(boxes), **says}
        header = replace(Header.from_signed(upload.header), **commits).to_signed(identity)
        return MaskedVector(header, boxes, content).to_bytes()

    return made


PAIRS: dict[str, tuple[Callable[[], Sent], Callable[[bytes, Identity], bytes]]] = {
    "shares": (in_setup("shares"), change(ShareMessage)),
    "acknowledgement": (in_setup("ready"), change(Acknowledgement)),
    "upload": (uploads, change_upload()),
    "echo": (echoes, change(Echo)),
    "answer": (answers, change(Answer)),
}
OTHERS: dict[str, tuple[str, Callable[[bytes, Identity], bytes], Code]] = {
    "shares of no node of the set-up": ("shares", change(ShareMessage, node=77), Code.UNKNOWN_NODE),
    "shares in another view": ("shares", change(ShareMessage, view=bytes(32)), Code.DIFFERENT_VIEW),
    "shares for others": (
        "shares", change(ShareMessage, holders=lambda held: tuple(each + 1 for each in held)), Code.DIFFERENT_VIEW,
    ),
    "shares that are longer": (
        "shares", change(ShareMessage, sealed=lambda runs: (runs[0] + b"0", *runs[1:])), Code.CONTENT_MISMATCH,
    ),
    "an acknowledgement of strangers": (
        "acknowledgement", change(Acknowledgement, held=lambda held: (*held, 77)), Code.CONTENT_MISMATCH,
    ),
    "an acknowledgement in another view": (
        "acknowledgement", change(Acknowledgement, view=bytes(32)), Code.DIFFERENT_VIEW,
    ),
    "an upload of no node of the epoch": ("upload", change_upload(says={"node": 77}), Code.UNKNOWN_NODE),
    "an upload that is shorter": ("upload", change_upload(lambda content: content[:-4]), Code.CONTENT_MISMATCH),
    "an upload that is longer": ("upload", change_upload(lambda content: content + bytes(4)), Code.CONTENT_MISMATCH),
    "an upload with a share too many": (
        "upload", change_upload(sealed=lambda boxes: (*boxes, boxes[0])), Code.CONTENT_MISMATCH,
    ),
    "an upload with a share too few": ("upload", change_upload(sealed=lambda boxes: boxes[1:]), Code.CONTENT_MISMATCH),
    "an upload of other content": ("upload", change_upload(says={"payload": bytes(32)}), Code.CONTENT_MISMATCH),
    "an upload of other shares": ("upload", change_upload(says={"sealed": bytes(32)}), Code.CONTENT_MISMATCH),
    "an answer with a share too many": (
        "answer", change(Answer, kinds=lambda kinds: (*kinds, WITHHELD)), Code.CONTENT_MISMATCH,
    ),
}  # fmt: skip


def collected(party: Aggregator | EpochSetup) -> object:
    """All that it has taken so far."""
    if isinstance(party, EpochSetup):
        return party.advertisements, party.nonces, party.shares, party.acknowledgements
    return party.uploads, party.echoes, party.answers, party.headers, party.shares


@pytest.mark.parametrize("kind", PAIRS)
def test_nobody_signs_for_another_site(kind: str) -> None:
    """The words of a site under the key of any other party are refused, and nothing of them is kept; its own are
    taken afterwards.
    """
    make, alter = PAIRS[kind]
    party, messages, identities = make()
    for forger in (identities[1], identities[-1], Identity(bytes(range(32)))):
        after, complaints = party.receive([alter(messages[0], forger)])
        assert [complaint.reason for complaint in complaints] == [Code.BAD_SIGNATURE]
        assert collected(after) == collected(party)
    assert alter(messages[0], identities[0]) == messages[0]
    assert party.receive(messages)[1] == []


@pytest.mark.parametrize("what", OTHERS)
def test_what_a_site_may_not_say_is_refused_under_its_own_signature(what: str) -> None:
    """A site that lies about its place, its neighbours or its content is refused by a code, and nothing is kept."""
    kind, alter, code = OTHERS[what]
    party, messages, identities = PAIRS[kind][0]()
    after, complaints = party.receive([alter(messages[0], identities[0])])
    assert [complaint.reason for complaint in complaints] == [code]
    assert collected(after) == collected(party)


@pytest.mark.parametrize("lie", ["no number", "longer", "shorter", "empty"])
def test_a_neighbour_that_deals_what_is_no_share_is_named_and_not_held(lie: str) -> None:
    """Else the holder of the share would look like the liar when it hands it over, or could hand over none."""
    made = set_up("shares")
    deliveries = made.server.receive(made.messages)[0].close_shares()[1]
    delivered = ShareDelivery.from_bytes(deliveries[0])
    dealer, place = made.nodes[1], delivered.senders.index(1)
    length = SHARE_BYTES * made.parameters.n_slots + HANDED_BACK_BYTES
    items = {"no number": PRIME.to_bytes(SHARE_BYTES, "big").ljust(length, b"\0"), "longer": bytes(length + 1),
             "shorter": bytes(length - 1), "empty": b""}  # fmt: skip
    key = setup_share_key(dealer.channels[0], 1, 0)
    sealed = [*delivered.sealed]
    sealed[place] = seal(key, items[lie], delivered.view, seeded_entropy(5))
    step = made.nodes[0].acknowledge(made.contexts[0], replace(delivered, sealed=tuple(sealed)).to_bytes())
    assert [(each.reason, each.peer) for each in step.complaints] == [(Code.SHARE_UNREADABLE, 1)]
    assert step.message is not None and Acknowledgement.from_signed(step.message).held == (2, 3)
    honest = made.nodes[0].acknowledge(made.contexts[0], deliveries[0])
    assert not honest.complaints


def test_a_list_of_keys_without_this_node_is_refused() -> None:
    """A coordinator that leaves a node's keys out could set the others up among themselves in its name."""
    made = set_up("keys")
    others = build_signed_list(Kind.KEY_LIST, made.parameters.hash(), made.bundles[1:])
    require_refusal(lambda: made.nodes[0].reveal(made.contexts[0], others), Code.OWN_BUNDLE_ALTERED)


@pytest.mark.parametrize("gone_before", ["keys", "shares", "acknowledgements"])
def test_a_site_that_is_not_ready_is_in_no_sum(gone_before: str) -> None:
    """However far it came in the set-up and whatever it signs: nobody shares masks with it, so its vector would spoil
    the sum.
    """
    late = "site-4"
    session = EpochSession(
        [f"site-{number}" for number in range(5)], 1, seeded_entropy(2), wishes=Wishes(0),
        silent_at_setup={gone_before: [late]},
    )  # fmt: skip
    spec = session.spec("tree-1", (VectorSpec("leaves", 4, 32, 10, 50),))
    aggregator = Aggregator.open(session.view, session.coordinator, spec)
    expected, values = ExpectedRound("tree-1", spec.model, spec.vectors, spec.noise), {"leaves": np.ones(4, np.int64)}
    upload = session.nodes["site-0"].mask(
        session.contexts["site-0"], aggregator.signed_spec, expected, values, session.entropy
    ).message  # fmt: skip
    # As many shares as it has ready neighbours: one more than a node that is ready itself.
    made = change_upload(sealed=lambda boxes: (*boxes, boxes[0]), says={"node": 4})
    after, complaints = aggregator.receive([made(upload or b"", session.contexts[late].identity)])
    assert [complaint.reason for complaint in complaints] == [Code.UNKNOWN_NODE]
    assert collected(after) == collected(aggregator)


STRICTER: dict[str, tuple[NodePolicy, Code]] = {
    "cohort": (NodePolicy(min_cohort=5), Code.COHORT_TOO_SMALL),
    "slots": (NodePolicy(max_slots=1), Code.PARAMETERS_REFUSED),
    "colluders": (NodePolicy(min_colluders=1), Code.PARAMETERS_REFUSED),
    "honest survivors": (NodePolicy(min_honest_survivors=4), Code.PARAMETERS_REFUSED),
    "honest group": (NodePolicy(min_honest_group=5), Code.PARAMETERS_REFUSED),
    "echo": (NodePolicy(requires_echo=True), Code.PARAMETERS_REFUSED),
    "noise": (NodePolicy(refuses_server_noise=True), Code.PARAMETERS_REFUSED),
}
STEPS: dict[str, Callable[[EpochSetup, Enrolment, NodeContext], Step[Enrolment]]] = {
    "keys": lambda server, node, own: node.reveal(own, server.close_keys()[1]),
    "nonces": lambda server, node, own: node.share(own, server.close_nonces()[1][0], seeded_entropy(1)),
    "shares": lambda server, node, own: node.acknowledge(own, server.close_shares()[1][0]),
}


@pytest.mark.parametrize("stage", STEPS)
def test_each_step_of_a_set_up_asks_the_owners_policy(stage: str) -> None:
    """A node may be started again between any two steps, with a policy that its owner has made stricter: it signs
    nothing more for a cohort that this one does not allow.
    """
    made, step = set_up(stage), STEPS[stage]
    server, node, own = made.server.receive(made.messages)[0], made.nodes[0], made.contexts[0]
    assert step(server, node, own).message
    for policy, code in STRICTER.values():
        require_refusal(partial(step, server, node, replace(own, policy=policy)), code)
