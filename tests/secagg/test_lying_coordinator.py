"""What a lying coordinator can say with correctly signed messages of its own, beyond one scenario for each code."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from hedgerow.crypto import Identity
from hedgerow.secagg.guarantees import Wishes
from hedgerow.secagg.messages import (
    Acknowledgement,
    Answer,
    Echo,
    EchoCertificate,
    Header,
    Kind,
    Manifest,
    NodePolicy,
    NoiseMode,
    NoiseSpec,
    ReadyList,
    Roster,
    RoundSpec,
    ShareDelivery,
    UnmaskRequest,
    VectorSpec,
    build_signed_list,
    header_hash,
    manifest_hash,
)
from hedgerow.secagg.participant import ExpectedRound
from hedgerow.secagg.transitions import Code
from tests.secagg.lab import (
    Lab,
    complaint_of,
    echoed,
    refusal_of,
    require_refusal,
    seeded_entropy,
    set_up,
    sparse_lab,
    vector,
    with_manifest,
    with_spec,
)
from tests.secagg.setup_scenarios import begin, ready_list

MORE_LIES = {
    "spec with another model": (with_spec(model=bytes([1] * 32)), Code.PURPOSE_UNEXPECTED),
    "spec with other vectors": (with_spec(vectors=vector(length=5)), Code.PURPOSE_UNEXPECTED),
    "spec with a wider bound": (with_spec(vectors=vector(entry_bound=2000)), Code.PURPOSE_UNEXPECTED),
    "spec with an empty vector": (with_spec(vectors=vector(length=0)), Code.SPEC_UNACCEPTABLE),
    "spec with a huge vector": (with_spec(vectors=vector(length=2**31)), Code.SPEC_UNACCEPTABLE),
    "spec with an odd width": (with_spec(vectors=vector(width=16)), Code.WIDTH_TOO_NARROW),
    "spec with the other noise": (with_spec(noise=NoiseSpec(NoiseMode.DISTRIBUTED)), Code.NOISE_MISMATCH),
    "manifest of another purpose": (with_manifest(purpose="tree-2"), Code.OTHER_SPEC),
    "manifest of an older slot": (
        with_manifest(context=lambda a: replace(a.context, slot=3)), Code.OUT_OF_ORDER),
    "manifest of another epoch": (
        with_manifest(context=lambda a: replace(a.context, epoch=bytes(32))), Code.OTHER_EPOCH),
    "manifest of another spec": (
        with_manifest(context=lambda a: replace(a.context, spec=bytes(32))), Code.OTHER_SPEC),
    "weak threshold against colluders": (lambda: begin({"wishes": Wishes(0, threshold=2)}), Code.PARAMETERS_REFUSED),
    "sparse graph without echo": (lambda: begin({"wishes": Wishes(0, is_sparse=True)}), Code.PARAMETERS_REFUSED),
    "more slots than the policy holds": (lambda: begin({"n_slots": 2000}), Code.PARAMETERS_REFUSED),
    "no echo for a policy that wants it": (
        lambda: begin(policy=NodePolicy(requires_echo=True)), Code.PARAMETERS_REFUSED),
    "central noise for a policy that refuses it": (
        lambda: begin(policy=NodePolicy(refuses_server_noise=True)), Code.PARAMETERS_REFUSED),
}  # fmt: skip


@pytest.mark.parametrize("lie", MORE_LIES)
def test_more_lies_of_the_coordinator(lie):
    """Variants of the scenarios above that a coordinator could try."""
    scenario, code = MORE_LIES[lie]
    require_refusal(scenario, code)


@pytest.mark.parametrize("kind", ["spec", "manifest", "header", "echo", "nonce", "acknowledgement"])
def test_every_signature_is_checked(kind):
    """One flipped bit in the signature of each kind of message, at the party that must check it."""

    def flipped(message: bytes) -> bytes:
        return message[:-1] + bytes([message[-1] ^ 1])

    def act() -> None:
        if kind == "nonce":
            made = set_up("nonces")
            messages = [*made.messages[:3], flipped(made.messages[3])]
            made.nodes[0].share(made.contexts[0], made.drawn_with(messages), seeded_entropy(1))
        elif kind == "acknowledgement":
            made = set_up("ready")
            made.nodes[0].finish(made.contexts[0], ready_list(made, [*made.messages[:3], flipped(made.messages[3])]))
        elif kind == "echo":
            lab, aggregator, echoes = echoed()
            signatures = (flipped(echoes[0][-64:]), *(echo[-64:] for echo in echoes[1:]))
            nodes = (0, 1, 2, 3, 4)
            lab.node(1).confirm(EchoCertificate(manifest_hash(aggregator.manifest), nodes, signatures).to_bytes())
        elif kind == "spec":
            lab = Lab()
            aggregator = lab.open()
            lab.masked(0, replace(aggregator, signed_spec=flipped(aggregator.signed_spec)))
        else:
            lab = Lab()
            request = UnmaskRequest.from_bytes(lab.request(lab.collected(), 0, (0, 1, 2, 3, 4)))
            if kind == "manifest":
                request = replace(request, manifest=flipped(request.manifest))
            else:
                # While the sealed share opens it is the better witness; with a damaged one the signature is asked.
                damaged = (*request.sealed[:3], flipped(request.sealed[3]))
                request = replace(request, headers=(*request.headers[:4], flipped(request.headers[4])), sealed=damaged)
            lab.answered(0, request.to_bytes())

    require_refusal(act, Code.BAD_SIGNATURE)


@pytest.mark.parametrize("field", ["payload", "seed_commitment"])
def test_a_header_that_its_sealed_share_does_not_bear_out_is_refused(lab, field):
    """The coordinator makes a header of a node up and lists it: the genuine share no longer opens, nothing is sent."""
    aggregator = lab.collected()
    genuine = aggregator.uploads[1]
    made_up = replace(Header.from_signed(genuine.header), **{field: bytes(32)}).to_signed(lab.session.coordinator)
    lying = replace(aggregator, uploads={**aggregator.uploads, 1: replace(genuine, header=made_up)})
    require_refusal(lambda: lab.answered(0, lab.request(lying, 0, (0, 1, 2, 3, 4))), Code.BAD_SIGNATURE)


def test_both_lists_cannot_even_be_written(lab):
    """A node listed as alive and dead would give both secrets; the format lists survivors only, once, in order."""
    aggregator = lab.collected()
    with pytest.raises(ValueError, match="strictly increasing"):
        lab.request(aggregator, 0, (0, 1, 1, 2, 3))
    request = UnmaskRequest.from_bytes(lab.request(aggregator, 0, (0, 1, 2, 3)))
    at = request.manifest.index(bytes([0, 4, 0, 0, 0, 1, 0, 2, 0, 3]))
    repeated = bytearray(request.manifest[:-64])
    repeated[at + 8 : at + 10] = bytes([0, 2])
    signed = bytes(repeated) + lab.session.coordinator.sign(b"MANIFEST", bytes(repeated))
    require_refusal(lambda: lab.answered(0, replace(request, manifest=signed).to_bytes()), Code.REPEATED_NODE)


def test_a_swapped_ciphertext_costs_one_share_and_names_the_sender(lab):
    """The coordinator exchanges two sealed seed shares: both are withheld and complained of, nothing else changes."""
    aggregator = lab.collected()
    request = UnmaskRequest.from_bytes(lab.request(aggregator, 0, (0, 1, 2, 3, 4)))
    first, second, *rest = request.sealed
    step = lab.answered(0, replace(request, sealed=(second, first, *rest)).to_bytes())
    assert Answer.from_signed(step.message or b"").kinds == (1, 0, 0, 1, 1)
    assert [(c.reason, c.peer) for c in step.complaints] == [(Code.SHARE_UNREADABLE, 1), (Code.SHARE_UNREADABLE, 2)]


def test_an_echo_for_another_manifest_does_not_count():
    """Nodes that saw another survivor list cannot be counted towards the quorum."""
    lab, aggregator, echoes = echoed()
    stray = Echo(2, bytes(32)).to_signed(lab.session.contexts["site-2"].identity)
    require_refusal(lambda: complaint_of(aggregator, stray), Code.OTHER_MANIFEST)
    assert len(echoes) == 5


def test_a_committee_of_another_part_does_not_count() -> None:
    """A node of a sparse group counts its own committee's echoes: not other groups', nor those of other members."""
    wishes = Wishes(2, max_drops=1, is_sparse=True, has_echo=True, n_groups=3)
    lab = Lab(n_nodes=36, wishes=wishes, policy=NodePolicy())
    late = lab.view.parts[1][4]
    aggregator, requests = lab.collected(absent=(late,)).close_vectors(lab.session.coordinator)
    echoes = {node: lab.answered(node, requests[node]).message or b"" for node in requests}
    node, committee = lab.view.parts[0][0], lab.view.graph.committee
    own, quorum = sorted(committee[node]), lab.view.by_node[node].quorum
    assert len(own) == 10 and quorum == 7 and len({committee[n] for n in range(36)}) == 3
    few = sorted({*requests} - {*own[quorum - 1 :]})
    short = EchoCertificate(manifest_hash(aggregator.manifest), tuple(few), tuple(echoes[n][-64:] for n in few))
    require_refusal(lambda: lab.node(node).confirm(short.to_bytes()), Code.TOO_FEW_ECHOES)
    aggregator, complaints = aggregator.receive(echoes.values())
    aggregator, certificate = aggregator.close_echoes()
    assert not complaints and len(EchoCertificate.from_bytes(certificate).nodes) == 3 * quorum
    aggregator, complaints = aggregator.receive([lab.node(n).confirm(certificate).message or b"" for n in requests])
    opened = aggregator.release()[1]
    expected = [sum(n + 1 for n in part if n != late) for part in lab.view.parts]
    assert not complaints and [int(opened.sums[f"leaves/{number}"][0]) for number in range(3)] == expected


def test_a_node_out_of_the_roster_cannot_upload(lab):
    """An invented node has no pinned key; its header names a number that is not ready."""
    aggregator = lab.open()
    upload = lab.masked(0, aggregator)
    other = Lab(n_nodes=7, seed=9)
    assert Header.from_signed(aggregator.receive([upload])[0].uploads[0].header).node == 0
    stranger = other.masked(6, other.open())
    require_refusal(lambda: complaint_of(aggregator, stranger), Code.UNKNOWN_NODE)


def test_duplicate_vector_names_are_refused():
    """Two vectors of one name would share one mask key, and their difference would be bare."""
    lab = Lab()
    twice = (VectorSpec("v", 2, 32, 5, 25),) * 2
    require_refusal(lambda: lab.open_vectors("tree-1", twice), Code.SPEC_UNACCEPTABLE)


def test_a_new_epoch_does_not_free_an_answered_purpose():
    """A coordinator that restarts the set-up cannot take a sum again over other sites: purposes are carried over."""
    made = set_up("ready")
    step = made.nodes[0].finish(made.contexts[0], ready_list(made, made.messages), answered=["tree-1"])
    view = step.state.view
    coordinator = Identity(bytes(32))
    roster = replace(view.roster, coordinator=coordinator.public)
    node = replace(step.state, view=replace(view, roster=roster))
    vectors = (VectorSpec("leaves", 4, 32, 10, 40),)
    noise = NoiseSpec(NoiseMode.SERVER)
    for purpose, code in (("tree-1", Code.PURPOSE_ANSWERED), ("tree-2", None)):
        signed = RoundSpec(view.digest, 0, purpose, bytes(32), vectors, noise).to_signed(coordinator)
        expected = ExpectedRound(purpose, bytes(32), vectors, noise)
        values = {"leaves": np.zeros(4, np.int64)}
        act = partial(node.mask, replace(made.contexts[0], roster=roster), signed, expected, values, seeded_entropy(1))
        assert refusal_of(act) is code


def test_an_invented_survivor_is_noticed_by_its_neighbours():
    """On a sparse graph, a node that did not upload is listed with an invented header: its neighbours refuse."""
    lab = sparse_lab()
    absent = lab.view.peers(0)[0]
    aggregator = lab.collected(absent=(absent,))
    invented = replace(aggregator.uploads[0], header=aggregator.uploads[0].header)
    lying = replace(aggregator, uploads=dict(sorted({**aggregator.uploads, absent: invented}.items())))
    require_refusal(lambda: lab.answered(0, lab.request(lying, 0, tuple(range(40)))), Code.HEADER_ALTERED)


def test_an_upload_of_an_earlier_slot_is_refused(lab):
    """Replay: a masked vector of slot 0 is not one of slot 1."""
    old = lab.masked(0, lab.open("tree-1"))
    require_refusal(lambda: complaint_of(lab.open("tree-2"), old), Code.OTHER_SPEC)


def test_an_answer_of_an_earlier_slot_is_refused(lab):
    """Replay: shares given for one manifest do not count for another."""
    _, requests = lab.collected("tree-1").close_vectors(lab.session.coordinator)
    old = lab.answered(0, requests[0]).message or b""
    second, _ = lab.collected("tree-2").close_vectors(lab.session.coordinator)
    require_refusal(lambda: complaint_of(second, old), Code.OTHER_MANIFEST)


def test_a_late_vector_stays_hidden_from_all_answers_together(lab):
    """A node that was declared dropped uploads late: all shares that were given about it are of its slot key only."""
    aggregator = lab.collected(absent=(4,))
    aggregator, requests = aggregator.close_vectors(lab.session.coordinator)
    answers = [Answer.from_signed(lab.answered(node, requests[node]).message or b"") for node in range(4)]
    late = lab.masked(4, aggregator)
    require_refusal(lambda: complaint_of(aggregator, late), Code.LATE_UPLOAD)
    assert {answer.kinds[4] for answer in answers} == {2}
    for node in range(4):
        require_refusal(lambda node=node: lab.answered(4, requests[node]), Code.SELF_OMITTED)


def test_a_site_taken_off_the_pinned_roster_ends_the_epoch(lab):
    """The owner pins a new roster while an epoch runs: the node masks nothing more under the old one, and helps to open
    no sum that was masked before.
    """
    asked = lab.request(lab.collected(), 0, (0, 1, 2, 3, 4))
    context = lab.session.contexts["site-0"]
    shorter = Roster(context.roster.coordinator, context.roster.sites[:4])
    lab.session.contexts["site-0"] = replace(context, roster=shorter)
    require_refusal(lambda: lab.answered(0, asked), Code.ROSTER_MISMATCH)
    require_refusal(lambda: lab.masked(0, lab.open("tree-2")), Code.ROSTER_MISMATCH)


def test_a_survivor_that_is_not_ready_is_refused(lab):
    """The coordinator lists a number that no ready node has, with an invented header."""
    aggregator = lab.collected()
    hashes = tuple(header_hash(aggregator.uploads[n].header) for n in range(5))
    manifest = Manifest(aggregator.context, "tree-1", (0, 1, 2, 3, 4, 9), (*hashes, bytes(32)))
    request = UnmaskRequest.from_bytes(lab.request(aggregator, 0, (0, 1, 2, 3, 4)))
    lying = replace(request, manifest=manifest.to_signed(lab.session.coordinator))
    require_refusal(lambda: lab.answered(0, lying.to_bytes()), Code.UNKNOWN_NODE)


def test_one_node_s_header_in_another_s_place_is_refused(lab):
    """Node 1's genuine header listed and shown as node 2's."""
    aggregator = lab.collected()
    lying = replace(aggregator, uploads={**aggregator.uploads, 2: aggregator.uploads[1]})
    require_refusal(lambda: lab.answered(0, lab.request(lying, 0, (0, 1, 2, 3, 4))), Code.HEADER_ALTERED)


def test_a_header_left_out_of_the_request_is_refused(lab):
    """A node wants to see the header of every surviving neighbour, and its sealed share."""
    request = UnmaskRequest.from_bytes(lab.request(lab.collected(), 0, (0, 1, 2, 3, 4)))
    for lying in (replace(request, headers=request.headers[:4]), replace(request, sealed=request.sealed[:3])):
        require_refusal(lambda lying=lying: lab.answered(0, lying.to_bytes()), Code.MALFORMED)


def test_certificates_about_other_things_are_refused():
    """An echo certificate for another manifest, or with the echo of a node that is not ready."""
    lab, aggregator, echoes = echoed()
    signatures = tuple(echo[-64:] for echo in echoes)
    other = EchoCertificate(bytes(32), (0, 1, 2, 3, 4), signatures)
    stranger = EchoCertificate(manifest_hash(aggregator.manifest), (0, 1, 2, 3, 9), signatures)
    require_refusal(lambda: lab.node(0).confirm(other.to_bytes()), Code.OTHER_MANIFEST)
    require_refusal(lambda: lab.node(0).confirm(stranger.to_bytes()), Code.UNKNOWN_NODE)


def test_answers_of_the_wrong_kind_are_refused_and_shares_out_of_the_field_name_their_sender(lab):
    """A node answers with slot-key shares about survivors, or with a number that is no field element."""
    aggregator, requests = lab.collected().close_vectors(lab.session.coordinator)
    answers = [Answer.from_signed(lab.answered(node, requests[node]).message or b"") for node in range(5)]
    identity = lab.session.contexts["site-1"].identity
    wrong_kind = replace(answers[1], kinds=(2, *answers[1].kinds[1:])).to_signed(identity)
    require_refusal(lambda: complaint_of(aggregator, wrong_kind), Code.CONTENT_MISMATCH)
    too_large = replace(answers[1], shares=(b"\xff" * 33,) * 5).to_signed(identity)
    honest = [answers[n].to_signed(lab.session.contexts[f"site-{n}"].identity) for n in (0, 2, 3, 4)]
    release = aggregator.receive([too_large, *honest])[0].release()[1]
    assert release.suspects == (1,) and release.sums["leaves"].tolist() == [15] * 4


def test_shares_from_a_stranger_at_set_up_are_refused():
    """A delivery names a sender that is no member, or is about another set-up."""
    made = set_up("shares")
    made.server, _ = made.server.receive(made.messages)
    delivery = ShareDelivery.from_bytes(made.server.close_shares()[1][0])
    stranger = replace(delivery, senders=(1, 2, 7))
    elsewhere = replace(delivery, view=bytes(32))
    node, context = made.nodes[0], made.contexts[0]
    require_refusal(lambda: node.acknowledge(context, stranger.to_bytes()), Code.UNKNOWN_NODE)
    require_refusal(lambda: node.acknowledge(context, elsewhere.to_bytes()), Code.DIFFERENT_VIEW)


def test_lists_about_another_set_up_are_refused():
    """Key, nonce and ready lists are bound to the parameters and to everything before them."""
    made = set_up("keys")
    other = build_signed_list(Kind.KEY_LIST, bytes(32), made.bundles)
    require_refusal(lambda: made.nodes[0].reveal(made.contexts[0], other), Code.DIFFERENT_VIEW)
    ready = set_up("ready")
    elsewhere = ReadyList(bytes(32), tuple(ready.messages)).to_bytes()
    require_refusal(lambda: ready.nodes[0].finish(ready.contexts[0], elsewhere), Code.DIFFERENT_VIEW)
    stale = replace(Acknowledgement.from_signed(ready.messages[1]), view=bytes(32))
    messages = [ready.messages[0], stale.to_signed(ready.contexts[1].identity), *ready.messages[2:]]
    require_refusal(lambda: ready.nodes[0].finish(ready.contexts[0], ready_list(ready, messages)), Code.DIFFERENT_VIEW)


def test_an_abandoned_aggregation_takes_nothing_more(lab):
    """After giving up, nothing is collected and nothing can be released."""
    aggregator = lab.open()
    given_up = aggregator.abandon()
    require_refusal(given_up.release, Code.OUT_OF_ORDER)
    require_refusal(lambda: complaint_of(given_up, lab.masked(0, aggregator)), Code.LATE_UPLOAD)


def test_a_low_order_slot_key_that_slipped_through_is_caught_at_use(lab):
    """Defence in depth: agreement refuses the all-zero secret even if a bundle was accepted."""
    weak = {**lab.view.slot_keys, 1: bytes(32 * 4)}
    lab.session.nodes["site-0"] = replace(lab.node(0), view=replace(lab.view, slot_keys=weak))
    require_refusal(lambda: lab.masked(0, lab.open()), Code.LOW_ORDER_KEY)


def test_noise_where_it_does_not_belong_is_refused(lab):
    """Central noise and a node's own share, or distributed noise without one, would be wrong by a whole share."""
    aggregator = lab.open()
    spec, node = aggregator.spec, lab.node(0)
    expected = ExpectedRound(spec.purpose, spec.model, spec.vectors, spec.noise)
    zeros = {"leaves": np.zeros(4, np.int64)}
    context, entropy = lab.session.contexts["site-0"], lab.session.entropy
    act = partial(node.mask, context, aggregator.signed_spec, expected, zeros, entropy)
    require_refusal(lambda: act(noise=zeros), Code.VECTOR_UNFIT)
    act = partial(node.mask, context, aggregator.signed_spec, expected, {"other": zeros["leaves"]}, entropy)
    require_refusal(act, Code.VECTOR_UNFIT)
