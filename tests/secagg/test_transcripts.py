"""Whole rounds under a fixed source of bytes: every message and every stored state keeps its bytes.

The hashes were recorded with the version that derived every key and wrote every field one by one; what has been made
faster since must still give the same bytes, draw the same randomness in the same order, and refuse nothing new. When a
stored slot got a field more, the hash of its manifest, and when the aggregator began to store the sum of the vectors in
place of each, those with stored states in them were recorded anew; nothing else in them had changed. All were recorded
anew for version 4, in which bundles sign a hash of the slot keys and parameters say how many groups of sites there are;
what is drawn, and in which order, stayed the same. All were recorded anew for version 6, in which a header names the
account of its vectors and a vote, and a neighbour hands back four of them; without these changes the bytes are those
of 5.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from hashlib import sha256

import numpy as np

from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.guarantees import Wishes
from hedgerow.secagg.keys import next_state_key
from hedgerow.secagg.messages import NoiseMode, VectorSpec
from hedgerow.secagg.participant import ExpectedRound, encrypt_state
from hedgerow.secagg.session import EpochSession
from tests.secagg.lab import seeded_entropy, set_up, sparse_lab, store_node

SITES = [f"site-{number}" for number in range(7)]
VECTORS = (VectorSpec("histogram", 5, 64, 2**40, 2**44), VectorSpec("leaves", 21, 32, 99, 7000))


def hashed(parts: Iterable[bytes]) -> str:
    found = sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.hexdigest()[:32]


class Draws:
    """A fixed source of bytes that notes how many were asked for, in order."""

    def __init__(self, seed: int) -> None:
        self._source, self.sizes = seeded_entropy(seed), []

    def __call__(self, size: int) -> bytes:
        self.sizes.append(size)
        return self._source(size)


def a_round(session, spec, late=(), mute=()):
    """Yields all bytes of one aggregation with distributed noise: messages, states as stored, the sums."""
    aggregator = Aggregator.open(session.view, session.coordinator, spec)
    yield aggregator.signed_spec
    expected = ExpectedRound(spec.purpose, spec.model, spec.vectors, spec.noise)
    uploads, answers = [], []
    for number, site in enumerate(SITES):
        if site in late:
            continue
        vectors = {v.vector_id: np.arange(v.length) % 9 * (number + 1) - v.entry_bound // 8 for v in spec.vectors}
        noise = {v.vector_id: np.arange(v.length) - number for v in spec.vectors}
        step = session.nodes[site].mask(
            session.contexts[site], aggregator.signed_spec, expected, vectors, session.entropy, noise
        )
        session.nodes[site] = step.state
        uploads.append(step.message)
        yield from stored(step.state)
    yield from uploads
    aggregator, complaints = aggregator.receive(uploads)
    aggregator, requests = aggregator.close_vectors(session.coordinator)
    assert not complaints and requests == Aggregator.restore(session.view, aggregator.to_bytes()).requests()
    yield aggregator.to_bytes()
    yield from requests.values()
    for node, request in requests.items():
        step = session.nodes[SITES[node]].unmask(session.contexts[SITES[node]], request)
        session.nodes[SITES[node]] = step.state
        assert not step.complaints
        yield from stored(step.state)
        if SITES[node] not in mute:
            answers.append(step.message)
    yield from answers
    aggregator, complaints = aggregator.receive(answers)
    assert not complaints
    yield aggregator.to_bytes()
    aggregator, release = aggregator.release()
    yield b"".join(release.sums[vector.vector_id].tobytes() for vector in spec.vectors)


def stored(state):
    yield state.epoch_bytes()
    yield state.step_bytes()
    key = next_state_key(state.channels[min(state.channels)])
    yield encrypt_state(key, state.step_bytes(), b"r" * 32, state.sequence, seeded_entropy(4))


def test_whole_rounds_keep_their_bytes():
    """Two vectors of two widths, noise shares, a node that drops out, one that does not answer, and a slot skipped."""
    draws = Draws(11)
    session = EpochSession(SITES, 5, draws, noise=NoiseMode.DISTRIBUTED)
    found = {"record": hashed([session.view.record]), "set-up draws": hashed([str(draws.sizes).encode()])}
    draws.sizes.clear()
    found["all"] = hashed(a_round(session, session.spec("first", VECTORS, variance=Fraction(9, 2))))
    found["draws"] = hashed([str(draws.sizes).encode()])
    session.next_slot += 1
    spec = session.spec("second", VECTORS, model=b"m" * 32)
    found["drops"] = hashed(a_round(session, spec, late=["site-2"], mute=["site-5"]))
    found["one vector"] = hashed(a_round(session, session.spec("third", VECTORS[1:])))
    assert found == {
        "record": "1fa74ec8714cbf39d16bda4a227e3f16",
        "set-up draws": "a4cf330f7fe9684369e79f1b7903c1aa",
        "all": "65e39e5f1aaced49750ed5b25e806134",
        "draws": "0f1d2412451c1b2103abcda09081e1c6",
        "drops": "e75032f8ea035fff3674ce7244143de3",
        "one vector": "dc5fe4f8d18955bad0bfcfdb721259d3",
    }


def test_a_sparse_round_with_an_echo_keeps_its_bytes():
    """On a sparse graph neighbours are few, and a node echoes before it answers."""
    lab = sparse_lab()
    aggregator = lab.collected(absent=(3,), length=7)
    uploads = [upload.to_bytes() for upload in aggregator.uploads.values()]
    aggregator, requests = aggregator.close_vectors(lab.session.coordinator)
    echoes = [lab.answered(node, request).message for node, request in requests.items()]
    aggregator, complaints = aggregator.receive(echoes)
    aggregator, certificate = aggregator.close_echoes()
    assert not complaints
    answers = []
    for node in requests:
        step = lab.node(node).confirm(certificate)
        lab.session.nodes[lab.sites[node]] = step.state
        answers.append(step.message)
    aggregator, complaints = aggregator.receive(answers)
    assert not complaints
    states = [store_node(lab.node(node)) for node in requests]
    release = aggregator.release()[1]
    sums = [release.sums["leaves"].tobytes()]
    parts = (uploads, requests.values(), echoes, [certificate], answers, states, [aggregator.to_bytes()], sums)
    assert hashed(hashed(part).encode() for part in parts) == "f0a92abfe14c854d090cbc05d9c3c3de"


def test_a_set_up_keeps_its_bytes():
    """Bundles, nonces, sealed shares, deliveries and acknowledgements, and the states in between."""
    found = {}
    for stage in ("keys", "nonces", "shares", "ready"):
        made = set_up(stage, 5, Wishes(1))
        parts = [*made.messages, *(node.to_bytes() for node in made.nodes), *made.drawn.values()]
        found[stage] = hashed([*parts, *made.deliveries.values(), made.key_list])
    assert found == {
        "keys": "e53e49134ea81419f15174efcde188bd",
        "nonces": "adebfdc702e0bd416b6b391a386d83b7",
        "shares": "cf7cc907e57254238de4b1c7159c7ed8",
        "ready": "b23b684cd53abe53a540d42655ab2e5d",
    }
