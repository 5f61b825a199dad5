"""Who has which slot keys: a node those of its neighbours, each checked against what its owner signed for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from hedgerow.crypto import KEY_BYTES
from hedgerow.secagg.enrolment import Enrolment
from hedgerow.secagg.guarantees import Wishes
from hedgerow.secagg.messages import Advertisement, KeyBundle, Kind, NonceDelivery, build_signed_list, hash_slot_keys
from hedgerow.secagg.transitions import Code, Refusal
from hedgerow.secagg.view import EpochView, agree
from tests.secagg.lab import SetUp, require_refusal, restore_node, seeded_entropy, set_up, sparse_lab, store_node

SPARSE = Wishes(9, max_drops=4, is_sparse=True, has_echo=True)
Runs = tuple[bytes, ...]


def sparse_set_up() -> tuple[SetUp, tuple[int, ...], int]:
    """Forty nodes whose nonces have drawn a sparse graph; node 0's neighbours, and a node that is none."""
    made = set_up("shares", 40, SPARSE)
    nonce_list = NonceDelivery.from_bytes(made.drawn[0]).nonce_list
    neighbours = agree(made.server.roster, made.parameters, made.key_list, nonce_list).graph.neighbours[0]
    stranger = min(set(range(1, 40)) - set(neighbours))
    return made, neighbours, stranger


def shared(made: SetUp, change: Callable[[Runs], Runs]) -> None:
    """Lets node 0 share its keys after it is shown changed keys of its neighbours."""
    before = replace(made.nodes[0], state=set_up("nonces").nodes[0].state, channels={})
    genuine = NonceDelivery.from_bytes(made.drawn[0])
    altered = replace(genuine, slot_keys=change(genuine.slot_keys))
    before.share(made.contexts[0], altered.to_bytes(), seeded_entropy(1))


def test_a_node_has_the_slot_keys_of_its_neighbours_and_the_aggregator_those_of_all() -> None:
    """What a node keeps of an epoch of forty does not hold forty nodes' keys; the record for late sites holds none."""
    lab = sparse_lab()
    assert set(lab.view.slot_keys) == set(lab.view.ready) == set(range(40))
    for node in range(40):
        view = lab.node(node).view
        assert tuple(view.slot_keys) == view.peers(node) and len(view.slot_keys) < 39
        assert (view.digest, view.record, view.graph) == (lab.view.digest, lab.view.record, lab.view.graph)
        for peer in view.peers(node):
            assert view.slot_keys[peer] == lab.view.slot_keys[peer]
            assert view.slot_keys[peer] not in view.record
    assert not EpochView.from_record(lab.view.record).slot_keys


def test_honest_keys_of_neighbours_are_taken() -> None:
    """The tests below change one thing each of what passes here."""
    made, neighbours, _ = sparse_set_up()
    assert len(NonceDelivery.from_bytes(made.drawn[0]).slot_keys) == len(neighbours) < 39
    shared(made, lambda runs: runs)


def forged(runs: Runs) -> Runs:
    """The first neighbour's key of the second slot is another."""
    return (runs[0][:KEY_BYTES] + bytes([9] * KEY_BYTES), *runs[1:])


@pytest.mark.parametrize(
    "change",
    [
        forged,
        lambda runs: (runs[1], runs[0], *runs[2:]),
        lambda runs: runs[1:],
        lambda runs: (b"", *runs[1:]),
        lambda runs: (runs[0][:-KEY_BYTES], *runs[1:]),
        lambda runs: (runs[0] + bytes([9] * KEY_BYTES), *runs[1:]),
        lambda runs: (*runs, runs[0]),
    ],
    ids=["forged", "swapped", "withheld", "empty", "cut", "lengthened", "one too many"],
)
def test_other_keys_of_one_neighbour_are_refused(change: Callable[[Runs], Runs]) -> None:
    """Before the node shares anything: the coordinator shows it keys that their site did not sign for."""
    made, neighbours, _ = sparse_set_up()
    with pytest.raises(Refusal) as refused:
        shared(made, change)
    assert refused.value.reason is Code.SLOT_KEYS_ALTERED
    assert refused.value.peer in (neighbours[0], "coordinator")


def test_keys_of_a_node_that_is_no_neighbour_are_refused() -> None:
    """In place of a neighbour's, or along with them."""
    made, _, stranger = sparse_set_up()
    keys = made.advertised(stranger).slot_keys
    require_refusal(lambda: shared(made, lambda runs: (keys, *runs[1:])), Code.SLOT_KEYS_ALTERED)
    require_refusal(lambda: shared(made, lambda runs: (*runs, keys)), Code.SLOT_KEYS_ALTERED)


def test_two_bundles_of_one_site_are_found() -> None:
    """A coordinator and a site that collude show nodes different slot keys: their nonces tell of different lists."""
    made = set_up("keys")
    other_keys = bytes(range(2 * KEY_BYTES))
    signed = replace(KeyBundle.from_signed(made.bundles[3]), slot_keys_hash=hash_slot_keys(other_keys))
    other = signed.to_signed(made.contexts[3].identity)
    lists = [
        build_signed_list(Kind.KEY_LIST, made.parameters.hash(), [*made.bundles[:3], last])
        for last in (made.bundles[3], other)
    ]
    shown = [lists[0], lists[1], lists[1], lists[0]]
    steps = [made.nodes[i].reveal(made.contexts[i], shown[i]) for i in range(4)]
    made.nodes = [step.state for step in steps]
    nonces = made.drawn_with([step.message or b"" for step in steps])
    for node, context in zip(made.nodes[:2], made.contexts[:2], strict=True):
        require_refusal(partial(node.share, context, nonces, seeded_entropy(1)), Code.DIFFERENT_VIEW)


def advertised_with(made: SetUp, node: int, slot_keys: bytes, signed_hash: bytes | None = None) -> bytes:
    """A node's advertisement with other slot keys, its own signature on their hash, or on another."""
    bundle = replace(KeyBundle.from_signed(made.bundles[node]), slot_keys_hash=signed_hash or hash_slot_keys(slot_keys))
    return Advertisement(bundle.to_signed(made.contexts[node].identity), slot_keys).to_bytes()


HONEST = bytes([9] * KEY_BYTES)


@pytest.mark.parametrize(
    ("slot_keys", "code"),
    [
        (HONEST + HONEST, Code.REPEATED_KEY),
        (HONEST + bytes(KEY_BYTES), Code.LOW_ORDER_KEY),
        (HONEST, Code.SLOT_KEYS_ALTERED),
        (b"", Code.SLOT_KEYS_ALTERED),
    ],
    ids=["repeated", "low order", "too few", "none"],
)
def test_a_site_with_bad_slot_keys_is_named_by_the_aggregator_and_refused_by_its_neighbours(
    slot_keys: bytes, code: Code
) -> None:
    """It signs them correctly; a coordinator that lets them through gets no further."""
    made = set_up("keys")
    message = advertised_with(made, 2, slot_keys)
    server, (complaint,) = made.server.receive([message])
    assert complaint.reason is code and not server.advertisements
    require_refusal(lambda: passed_on(made, message), code)


def passed_on(made: SetUp, message: bytes) -> None:
    """Lets node 0 share its keys in a set-up in which node 2 has advertised this, unchecked."""
    made.nodes[2] = replace(made.nodes[2], advertisement=message)
    listed = build_signed_list(Kind.KEY_LIST, made.parameters.hash(), made.bundles)
    steps = [node.reveal(context, listed) for node, context in zip(made.nodes, made.contexts, strict=True)]
    nonces = made.drawn_with([step.message or b"" for step in steps])
    steps[0].state.share(made.contexts[0], nonces, seeded_entropy(1))


def test_keys_that_their_site_did_not_sign_for_are_refused_by_name() -> None:
    """The aggregator passes nothing on that a neighbour would refuse."""
    made = set_up("keys")
    message = advertised_with(made, 1, made.advertised(1).slot_keys, bytes(32))
    _, (complaint,) = made.server.receive([message])
    assert (complaint.reason, complaint.peer) == (Code.SLOT_KEYS_ALTERED, 1)


def test_one_slot_key_of_another_site_is_refused_by_name_and_by_the_neighbour_that_has_both() -> None:
    """Two sites that collude may use one key; who masks with both sees it, the aggregator sees it of all."""
    made = set_up("keys")
    of_node_1 = made.advertised(1).slot_keys
    message = advertised_with(made, 2, HONEST + of_node_1[:KEY_BYTES])
    server, complaints = made.server.receive([made.messages[1], message])
    assert [(complaint.reason, complaint.peer) for complaint in complaints] == [(Code.REPEATED_KEY, 2)]
    _, (complaint,) = server.receive([message])
    assert (complaint.reason, complaint.peer) == (Code.REPEATED_KEY, 2)
    require_refusal(lambda: passed_on(made, message), Code.REPEATED_KEY)


def test_a_channel_key_that_is_the_hash_of_another_sites_slot_keys_stops_no_one() -> None:
    """Two sites that collude would end set-up after set-up, and no one could be named."""
    made = set_up("keys")
    odd = hash_slot_keys(made.advertised(1).slot_keys)
    bundle = replace(KeyBundle.from_signed(made.bundles[2]), channel_key=odd).to_signed(made.contexts[2].identity)
    message = Advertisement(bundle, made.advertised(2).slot_keys).to_bytes()
    server, complaints = made.server.receive([*made.messages[:2], message, made.messages[3]])
    assert not complaints
    _, listed = server.close_keys()
    assert made.nodes[0].reveal(made.contexts[0], listed).message


def test_a_second_advertisement_changes_nothing() -> None:
    """The same again is welcome, another is a contradiction, and its keys are not counted as the site's."""
    made = set_up("keys")
    server, _ = made.server.receive([made.messages[1]])
    again, complaints = server.receive([made.messages[1]])
    assert not complaints and again.advertisements == server.advertisements
    other, (complaint,) = server.receive([advertised_with(made, 1, HONEST + bytes([10] * KEY_BYTES))])
    assert complaint.reason is Code.CONTRADICTION and other.owners == server.owners
    (garbage, complaints) = server.receive([b"x"])
    assert len(complaints) == 1 and garbage.owners is server.owners, "a million keys were copied for one byte"
    _, complaints = other.receive([advertised_with(made, 2, HONEST + bytes([10] * KEY_BYTES))])
    assert not complaints


def test_stored_slot_keys_are_checked_again() -> None:
    """In the coordinator's journal as in a node's state: neither goes on with keys that no site signed for."""
    lab = sparse_lab()
    assert EpochView.from_bytes(lab.view.to_bytes()) == lab.view
    slot_keys = {**lab.view.slot_keys, 5: lab.view.slot_keys[6]}
    require_refusal(
        lambda: EpochView.from_bytes(replace(lab.view, slot_keys=slot_keys).to_bytes()), Code.SLOT_KEYS_ALTERED
    )
    stranger = replace(lab.view, slot_keys={50: lab.view.slot_keys[5]})
    require_refusal(lambda: EpochView.from_bytes(stranger.to_bytes()), Code.UNKNOWN_NODE)
    node = lab.node(0)
    peer, other, *_ = node.view.slot_keys
    lying = replace(node.view, slot_keys={**node.view.slot_keys, peer: node.view.slot_keys[other]})
    stored = store_node(replace(node, view=lying))
    require_refusal(lambda: restore_node(stored, node.sequence), Code.CORRUPT_STATE)


def test_a_node_in_a_set_up_keeps_its_neighbours_keys_over_a_restart() -> None:
    """The keys came with the nonces, and are needed when the epoch is ready."""
    made, neighbours, _ = sparse_set_up()
    state = made.nodes[0]
    restored = Enrolment.latest(state.to_bytes())
    assert tuple(restored.slot_keys) == neighbours and restored.slot_keys == state.slot_keys
