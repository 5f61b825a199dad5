"""Fuzzes every parser and every step of secure aggregation with damaged messages.

``python -m hedgerow.experiments secagg_fuzz --minutes 10`` runs it for a time; the tests run a fixed number of rounds.
A parser must either refuse with a typed error or accept exactly what it would itself write (one encoding a message);
a step must refuse, or answer as the protocol allows, and never raise anything else.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from hedgerow.experiments.secagg_checks import Lab, seeded_entropy
from hedgerow.secagg._primitives.identity import Identity
from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.checks import ExpectedRound
from hedgerow.secagg.encoding import Kind, sealed_state, unsealed_state
from hedgerow.secagg.epoch import Enrolment
from hedgerow.secagg.epoch_server import EpochSetup
from hedgerow.secagg.guarantees import Wishes
from hedgerow.secagg.participant import Participant
from hedgerow.secagg.refusals import Abandoned, OwnMistake, Refusal
from hedgerow.secagg.roster import EpochParameters, Roster
from hedgerow.secagg.round_messages import (
    Answer,
    Echo,
    EchoCertificate,
    Header,
    Manifest,
    MaskedVector,
    RoundSpec,
    UnmaskRequest,
)
from hedgerow.secagg.setup_messages import (
    Acknowledgement,
    KeyBundle,
    NonceReveal,
    ReadyList,
    ShareDelivery,
    ShareMessage,
    read_signed_list,
    signed_list,
)

SIGNER = Identity(bytes(range(32)))


@dataclass(frozen=True, slots=True)
class Target:
    """Something that takes bytes: `sample` is a valid message, `take` must raise only typed errors.

    `again` re-encodes what was accepted, up to a trailing signature; None for steps, whose answer is their own.
    """

    name: str
    sample: bytes
    take: Callable[[bytes], object]
    again: Callable[[object], bytes] | None = None
    is_signed: bool = False


def _signed(cls: type, sample: bytes) -> Target:
    return Target(cls.__name__, sample, cls.from_signed, lambda found: found.to_signed(SIGNER), True)  # type: ignore


def _plain(cls: type, sample: bytes) -> Target:
    return Target(cls.__name__, sample, cls.from_bytes, lambda found: found.to_bytes())  # type: ignore[attr-defined]


def targets() -> list[Target]:
    """Returns all parsers and steps, each with a valid message that passes it."""
    lab = Lab(wishes=Wishes(1, has_echo=True))
    view, session = lab.view, lab.session
    entropy = seeded_entropy(7)
    parameters = session.parameters
    contexts = list(session.contexts.values())
    setup = EpochSetup(session.roster, parameters)
    begun = [Enrolment.begin(context, parameters.to_bytes(), entropy) for context in contexts]
    keys_open = setup
    setup, _ = setup.receive([step.message or b"" for step in begun])
    setup, key_list = setup.close_keys()
    revealed = [step.state.reveal(contexts[i], key_list) for i, step in enumerate(begun)]
    nonces_open = setup
    setup, _ = setup.receive([step.message or b"" for step in revealed])
    setup, nonce_list = setup.close_nonces()
    shared = [step.state.share(contexts[i], nonce_list, entropy) for i, step in enumerate(revealed)]
    shares_open = setup
    setup, _ = setup.receive([step.message or b"" for step in shared])
    setup, deliveries = setup.close_shares()
    held = [step.state.acknowledge(contexts[i], deliveries[i]) for i, step in enumerate(shared)]
    acknowledgements_open = setup
    _, ready_list = setup.receive([step.message or b"" for step in held])[0].close_acknowledgements()

    aggregator = lab.open()
    before = lab.node(0)
    spec = aggregator.spec
    expected = ExpectedRound(spec.purpose, spec.model, spec.vectors, spec.noise)
    uploads = [lab.masked(node, aggregator) for node in range(5)]
    collected, _ = aggregator.receive(uploads)
    closed, requests = collected.close_vectors(session.coordinator)
    masked = lab.node(0)
    echoes = [lab.answered(node, requests[node]).message or b"" for node in range(5)]
    echoed = lab.node(0)
    certified, certificate = closed.receive(echoes)[0].close_echoes()
    answers = [lab.node(node).confirm(certificate).message or b"" for node in range(5)]

    def lists(kind: Kind, sample: bytes) -> Target:
        return Target(
            kind.name, sample, partial(_read_list, kind, parameters.hash()),
            lambda found: signed_list(kind, parameters.hash(), found),  # type: ignore[arg-type]
        )  # fmt: skip

    def receives(name: str, server: EpochSetup | Aggregator, sample: bytes) -> Target:
        return Target(f"{name} at the aggregator", sample, lambda data: server.receive([data]))

    def resigned(name: str, kind: Kind, signer: Identity, sample: bytes, take: Callable[[bytes], object]) -> Target:
        """A liar's own message: damaged first and then signed correctly, so that what lies behind is reached."""

        def sign_and_take(data: bytes) -> object:
            body = data[:-64]
            return take(body + signer.sign(kind.name.encode(), body))

        return Target(f"{name}, signed by a liar", sample, sign_and_take)

    def asked(manifest: bytes) -> object:
        genuine = UnmaskRequest.from_bytes(requests[0])
        return masked.unmask(contexts[0], UnmaskRequest(manifest, genuine.headers, genuine.sealed).to_bytes())

    def uploaded(header: bytes) -> object:
        genuine = collected.uploads[0]
        return aggregator.receive([MaskedVector(header, genuine.sealed, genuine.payload).to_bytes()])

    def answered(answer: bytes) -> object:
        received, _ = certified.receive([answer, *answers[1:]])
        return received.release()

    def shared_by_liar(message: bytes) -> object:
        return shares_open.receive([message, *(step.message or b"" for step in shared[1:])])[0].close_shares()

    def acknowledged_by_liar(message: bytes) -> object:
        others = [step.message or b"" for step in held[1:]]
        return acknowledgements_open.receive([message, *others])[0].close_acknowledgements()

    vectors = {"leaves": np.ones(4, np.int64)}
    coordinator, liar = session.coordinator, contexts[0].identity
    return [
        _plain(Roster, session.roster.to_bytes()),
        _plain(EpochParameters, parameters.to_bytes()),
        _signed(KeyBundle, begun[0].message or b""),
        lists(Kind.KEY_LIST, key_list),
        _signed(NonceReveal, revealed[0].message or b""),
        lists(Kind.NONCE_LIST, nonce_list),
        _signed(ShareMessage, shared[0].message or b""),
        _plain(ShareDelivery, deliveries[0]),
        _signed(Acknowledgement, held[0].message or b""),
        _plain(ReadyList, ready_list),
        _signed(RoundSpec, aggregator.signed_spec),
        _signed(Header, collected.uploads[0].header),
        _plain(MaskedVector, uploads[0]),
        _signed(Manifest, closed.manifest),
        _plain(UnmaskRequest, requests[0]),
        _signed(Echo, echoes[0]),
        _plain(EchoCertificate, certificate),
        _signed(Answer, answers[0]),
        Target("parameters at a node", parameters.to_bytes(), lambda data: Enrolment.begin(contexts[0], data, entropy)),
        Target("key list at a node", key_list, lambda data: begun[0].state.reveal(contexts[0], data)),
        Target("nonce list at a node", nonce_list, lambda data: revealed[0].state.share(contexts[0], data, entropy)),
        Target("delivery at a node", deliveries[0], lambda data: shared[0].state.acknowledge(contexts[0], data)),
        Target("ready list at a node", ready_list, lambda data: held[0].state.finish(contexts[0], data)),
        Target("spec at a node", aggregator.signed_spec,
               lambda data: before.mask(contexts[0], data, expected, vectors, entropy)),
        Target("request at a node", requests[0], lambda data: masked.unmask(contexts[0], data)),
        Target("certificate at a node", certificate, echoed.confirm),
        resigned("spec", Kind.ROUND_SPEC, coordinator, aggregator.signed_spec,
                 lambda data: before.mask(contexts[0], data, expected, vectors, entropy)),
        resigned("manifest", Kind.MANIFEST, coordinator, closed.manifest, asked),
        resigned("header", Kind.HEADER, liar, collected.uploads[0].header, uploaded),
        resigned("answer", Kind.ANSWER, liar, answers[0], answered),
        resigned("bundle", Kind.KEY_BUNDLE, liar, begun[0].message or b"",
                 lambda data: keys_open.receive([data, *(step.message or b"" for step in begun[1:])])[0].close_keys()),
        resigned("shares", Kind.SHARES, liar, shared[0].message or b"", shared_by_liar),
        resigned("acknowledgement", Kind.ACKNOWLEDGEMENT, liar, held[0].message or b"", acknowledged_by_liar),
        receives("bundle", keys_open, begun[0].message or b""),
        receives("nonce", nonces_open, revealed[0].message or b""),
        receives("shares", shares_open, shared[0].message or b""),
        receives("acknowledgement", acknowledgements_open, held[0].message or b""),
        receives("vector", aggregator, uploads[0]),
        receives("echo", closed, echoes[0]),
        receives("answer", certified, answers[0]),
        Target("participant state", masked.to_bytes(), lambda data: Participant.restore(data, masked.sequence)),
        Target("enrolment state", held[0].state.to_bytes(), lambda data: Enrolment.restore(data, 4)),
        Target("aggregator state", certified.to_bytes(), lambda data: Aggregator.restore(view, data)),
    ]  # fmt: skip


def _read_list(kind: Kind, parameters: bytes, data: bytes) -> object:
    return read_signed_list(kind, data, parameters)


def damaged(sample: bytes, draw: random.Random) -> bytes:
    """Returns the message with one to four random injuries: flips, cuts, repeats, insertions, extreme numbers."""
    data = bytearray(sample)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data) + 1) if data else 0
        injury = draw.randrange(7)
        if injury == 0 and data:
            data[at % len(data)] ^= 1 << draw.randrange(8)
        elif injury == 1:
            del data[at : at + draw.randint(1, 40)]
        elif injury == 2:
            data[at:at] = draw.randbytes(draw.randint(1, 40))
        elif injury == 3:
            data[at:at] = data[at : at + draw.randint(1, 80)]
        elif injury == 4:
            size = draw.choice([1, 2, 4, 8])
            data[at : at + size] = draw.choice([bytes(size), b"\xff" * size, b"\x7f" + b"\xff" * (size - 1)])
        elif injury == 5:
            del data[at:]
        else:
            # Early bytes hold counts and lengths: hit them more often than chance would.
            data[min(len(data), draw.randrange(5, 60)) :][:1] = draw.randbytes(1)
    return bytes(data)


def try_once(target: Target, data: bytes) -> str:
    """Returns what came of `data`: a refusal's code or "accepted"; raises AssertionError for a second encoding."""
    try:
        found = target.take(data)
    except (Refusal, OwnMistake, Abandoned) as refusal:
        return refusal.reason.value
    if target.again is not None:
        written = target.again(found)
        kept, wanted = (data[:-64], written[:-64]) if target.is_signed else (data, written)
        if kept != wanted:
            raise AssertionError(f"{target.name} accepts two encodings of one message.")
    return "accepted"


def resealed(target: Target, data: bytes) -> bytes:
    """Returns damaged state bytes with a fitting hash, so that what lies behind the hash is reached."""
    return sealed_state(data[:-32]) if target.name.endswith("state") else data


def main(argv: list[str]) -> int:
    """Fuzzes for a time and prints what came of it; returns 1 at the first finding, with the seed to repeat it."""
    parser = argparse.ArgumentParser(prog="secagg_fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    everything = targets()
    for target in everything:
        if try_once(target, target.sample) != "accepted":
            raise AssertionError(f"{target.name} refuses its own sample.")
        if target.name.endswith("state"):
            unsealed_state(target.sample)
    outcomes: Counter[str] = Counter()
    started, seed = time.monotonic(), options.seed
    while time.monotonic() - started < 60 * options.minutes:
        for target in everything:
            draw = random.Random(f"{seed}/{target.name}")
            data = resealed(target, damaged(target.sample, draw))
            try:
                outcomes[try_once(target, data)] += 1
            except Exception as error:
                print(f"FINDING: {target.name}, seed {seed}: {type(error).__name__}: {error}")
                return 1
        seed += 1
    total = sum(outcomes.values())
    print(f"{total} damaged messages, {len(everything)} targets, {options.minutes:g} minutes: no finding.")
    for outcome, count in outcomes.most_common():
        print(f"  {count:>9}  {outcome}")
    return 0
