"""Fuzzes every parser and every step of secure aggregation with damaged messages.

``python -m experiments secagg_fuzz --minutes 10`` runs it for a time; the tests run a fixed number of rounds.
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

from hedgerow.codec import with_hash, without_hash
from hedgerow.crypto import Identity
from hedgerow.secagg import messages
from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.enrolment import Enrolment, EpochSetup
from hedgerow.secagg.guarantees import Wishes
from hedgerow.secagg.messages import EpochParameters, Kind, Roster
from hedgerow.secagg.participant import ExpectedRound, Participant
from hedgerow.secagg.transitions import OwnMistake, Refusal, SumAbandoned
from tests.secagg.lab import Lab, SetUp, restore_node, seeded_entropy, set_up, store_node

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


def _parser(kind: Kind, parameters: bytes, sample: bytes) -> Target:
    return Target(
        kind.name,
        sample,
        partial(_read_list, kind, parameters),
        lambda found: messages.build_signed_list(kind, parameters, found),  # type: ignore[arg-type]
    )


def _resigned(name: str, kind: Kind, signer: Identity, sample: bytes, take: Callable[[bytes], object]) -> Target:
    """A liar's own message: damaged first and then signed correctly, so that what lies behind is reached."""

    def sign_and_take(data: bytes) -> object:
        body = data[:-64]
        return take(body + signer.sign(kind.name.encode(), body))

    return Target(f"{name}, signed by a liar", sample, sign_and_take)


def _received(name: str, server: EpochSetup | Aggregator, sample: bytes) -> Target:
    return Target(f"{name} at the aggregator", sample, lambda data: server.receive([data]))


def setup_targets() -> list[Target]:
    """The parsers and steps of the set-up."""
    begun, revealed, shared, held = (set_up(stage, 5) for stage in ("keys", "nonces", "shares", "ready"))
    first, liar = begun.contexts[0], begun.contexts[0].identity
    entropy, parameters = seeded_entropy(7), begun.parameters
    _, ready_list = held.server.receive(held.messages)[0].close_acknowledgements()
    key_list, drawn, delivery = held.key_list, held.drawn[0], held.deliveries[0]
    nonce_list = messages.NonceDelivery.from_bytes(drawn).nonce_list
    advertised = messages.Advertisement.from_bytes(begun.messages[0])

    def advertise(bundle: bytes) -> object:
        """A liar's bundle with its slot keys, together with the others' honest ones, and then these are listed."""
        message = messages.Advertisement(bundle, advertised.slot_keys).to_bytes()
        return begun.server.receive([message, *begun.messages[1:]])[0].close_keys()

    def closed(made: SetUp, close: str) -> Callable[[bytes], object]:
        """The liar's message together with the others' honest ones, and then the collection is closed."""
        return lambda data: getattr(made.server.receive([data, *made.messages[1:]])[0], close)()

    return [
        _plain(Roster, first.roster.to_bytes()),
        _plain(EpochParameters, parameters.to_bytes()),
        _signed(messages.KeyBundle, advertised.bundle),
        _plain(messages.Advertisement, begun.messages[0]),
        _parser(Kind.KEY_LIST, parameters.hash(), key_list),
        _signed(messages.NonceReveal, revealed.messages[0]),
        _parser(Kind.NONCE_LIST, parameters.hash(), nonce_list),
        _plain(messages.NonceDelivery, drawn),
        _signed(messages.ShareMessage, shared.messages[0]),
        _plain(messages.ShareDelivery, delivery),
        _signed(messages.Acknowledgement, held.messages[0]),
        _plain(messages.ReadyList, ready_list),
        Target("parameters at a node", parameters.to_bytes(), lambda data: Enrolment.begin(first, data, entropy)),
        Target("key list at a node", key_list, lambda data: begun.nodes[0].reveal(first, data)),
        Target("nonce delivery at a node", drawn, lambda data: revealed.nodes[0].share(first, data, entropy)),
        Target("delivery at a node", delivery, lambda data: shared.nodes[0].acknowledge(first, data)),
        Target("ready list at a node", ready_list, lambda data: held.nodes[0].finish(first, data)),
        Target("enrolment state", held.nodes[0].to_bytes(), Enrolment.latest),
        _received("advertisement", begun.server, begun.messages[0]),
        _received("nonce", revealed.server, revealed.messages[0]),
        _received("shares", shared.server, shared.messages[0]),
        _received("acknowledgement", held.server, held.messages[0]),
        _resigned("bundle", Kind.KEY_BUNDLE, liar, advertised.bundle, advertise),
        _resigned("nonce", Kind.NONCE, liar, revealed.messages[0], closed(revealed, "close_nonces")),
        _resigned("shares", Kind.SHARES, liar, shared.messages[0], closed(shared, "close_shares")),
        _resigned(
            "acknowledgement", Kind.ACKNOWLEDGEMENT, liar, held.messages[0], closed(held, "close_acknowledgements")
        ),
    ]


def round_targets() -> list[Target]:
    """The parsers and steps of an honest aggregation with echo, at node 0 and at the aggregator."""
    lab = Lab(wishes=Wishes(1, has_echo=True))
    opened, ready = lab.open(), lab.node(0)
    uploads = [lab.masked(node, opened) for node in range(5)]
    masked = lab.node(0)
    closed, requests = opened.receive(uploads)[0].close_vectors(lab.session.coordinator)
    echoes = [lab.answered(node, requests[node]).message or b"" for node in range(5)]
    echoed = lab.node(0)
    certified, certificate = closed.receive(echoes)[0].close_echoes()
    answers = [lab.node(node).confirm(certificate).message or b"" for node in range(5)]
    context, coordinator = lab.session.contexts["site-0"], lab.session.coordinator
    spec, upload = opened.spec, closed.uploads[0]
    expected = ExpectedRound(spec.purpose, spec.model, spec.vectors, spec.noise)
    entropy, vectors = seeded_entropy(7), {"leaves": np.ones(4, np.int64)}
    specified = partial(ready.mask, context, expected=expected, vectors=vectors, entropy=entropy)

    def asked(manifest: bytes) -> object:
        genuine = messages.UnmaskRequest.from_bytes(requests[0])
        return masked.unmask(context, messages.UnmaskRequest(manifest, genuine.headers, genuine.sealed).to_bytes())

    def uploaded(header: bytes) -> object:
        return opened.receive([messages.MaskedVector(header, upload.sealed, upload.payload).to_bytes()])

    def answered(answer: bytes) -> object:
        return certified.receive([answer, *answers[1:]])[0].release()

    return [
        _signed(messages.RoundSpec, opened.signed_spec),
        _signed(messages.Header, upload.header),
        _plain(messages.MaskedVector, uploads[0]),
        _signed(messages.Manifest, closed.manifest),
        _plain(messages.UnmaskRequest, requests[0]),
        _signed(messages.Echo, echoes[0]),
        _plain(messages.EchoCertificate, certificate),
        _signed(messages.Answer, answers[0]),
        Target("spec at a node", opened.signed_spec, specified),
        Target("request at a node", requests[0], lambda data: masked.unmask(context, data)),
        Target("certificate at a node", certificate, echoed.confirm),
        Target("stored participant", store_node(masked), lambda d: restore_node(d, masked.sequence)),
        Target("participant epoch state", masked.epoch_bytes(), lambda data: _restored(masked, epoch=data)),
        Target("participant step state", masked.step_bytes(), lambda data: _restored(masked, step=data)),
        Target("aggregator state", certified.to_bytes(), lambda data: Aggregator.restore(lab.view, data)),
        _received("vector", opened, uploads[0]),
        _received("echo", closed, echoes[0]),
        _received("answer", certified, answers[0]),
        _resigned("spec", Kind.ROUND_SPEC, coordinator, opened.signed_spec, specified),
        _resigned("manifest", Kind.MANIFEST, coordinator, closed.manifest, asked),
        _resigned("header", Kind.HEADER, context.identity, upload.header, uploaded),
        _resigned("answer", Kind.ANSWER, context.identity, answers[0], answered),
    ]


def targets() -> list[Target]:
    """All parsers and steps, each with a valid message that passes it."""
    return [*setup_targets(), *round_targets()]


def _read_list(kind: Kind, parameters: bytes, data: bytes) -> object:
    return messages.read_signed_list(kind, data, parameters)


def damaged(sample: bytes, draw: random.Random) -> bytes:
    """The message with one to four random injuries: flips, cuts, repeats, insertions, extreme numbers."""
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
    """What came of `data`: a refusal's code or "accepted"; raises AssertionError for a second encoding."""
    try:
        found = target.take(data)
    except (Refusal, OwnMistake, SumAbandoned) as refusal:
        return refusal.reason.value
    if target.again is not None:
        written = target.again(found)
        kept, wanted = (data[:-64], written[:-64]) if target.is_signed else (data, written)
        if kept != wanted:
            raise AssertionError(f"{target.name} accepts two encodings of one message.")
    return "accepted"


def _restored(whole: Participant, epoch: bytes | None = None, step: bytes | None = None) -> Participant:
    """A participant from its two stored parts, one of which may be damaged."""
    parts = (epoch or whole.epoch_bytes(), step or whole.step_bytes())
    return Participant.restore_parts(*parts, whole.purposes, whole.sequence)


def resealed(target: Target, data: bytes) -> bytes:
    """Damaged state bytes with a fitting hash, so that what lies behind the hash is reached."""
    return with_hash(data[:-32]) if target.name.endswith("state") else data


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
            without_hash(target.sample)
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
