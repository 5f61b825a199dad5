"""docs/wire.md: every message and stored state, field by field, written from their declarations."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import get_args

from hedgerow.carriers.handing import HandedBack, HandedOn
from hedgerow.codec import MAGIC, VERSION, Encoded, Form, Record, layout
from hedgerow.protocol import messages
from hedgerow.protocol.stream import (
    Admittance,
    Asking,
    Challenge,
    Current,
    EventReport,
    Farewell,
    Introduction,
    Knock,
    Opening,
    Result,
    RunReport,
    SiteReport,
    Standing,
    Update,
    Wanted,
    WatchRequest,
)
from hedgerow.secagg import messages as secagg
from hedgerow.secagg.aggregator import AggregatorState
from hedgerow.secagg.enrolment import Enrolment
from hedgerow.secagg.guarantees import Wishes
from hedgerow.secagg.keys import RoundContext
from hedgerow.secagg.messages import EpochParameters, Roster, Site
from hedgerow.secagg.messages import Kind as SecaggKind
from hedgerow.secagg.participant import OpenSlot, ParticipantEpoch, ParticipantStep
from hedgerow.secagg.transitions import TRANSITIONS, Party, State
from hedgerow.secagg.view import EpochRecord, StoredView
from hedgerow.transport.envelope import Bundle, Envelope, EnvelopeKind

NAMED = {
    "line": "u8 length, UTF-8 (at most 200 bytes, all printable)",
    "text": "u8 length, UTF-8 (at most 200 bytes)",
    "word": "u8 length, 1 to 64 of a-z, 0-9 and -",
    "word or none": "u8 length, 0 to 64 of a-z, 0-9 and -",
    "bytes": "u32 length, bytes",
    "integers": "u32 count (at most 4194304), u8 width, so many bytes each in two's complement, no more than needed",
    "state": "word: " + ", ".join(State),
}
"""Forms of many fields, by the names that they have on the page."""
INTRODUCTION = f"""---
search:
  exclude: true
---

# The wire

Everything that crosses the network, is signed, or is stored as a party's state is written by one codec,
`hedgerow.codec`. This page is made from the declarations (`python -m experiments wire_document > docs/wire.md`), and a
test compares.

**Head.** Five bytes: `{MAGIC.decode()}` in ASCII, the version ({VERSION}), and the kind, which stands behind each title
below. All kinds are of one space: a number, once given, is never given to another message. There is one version of
everything; parties of different versions do not speak to each other, and a journal or state of another version is
refused as `database-version`.

**Fields.** They follow the head in the order of the lists, without names, gaps or padding. Numbers are big-endian:
`u8` to `u64` are unsigned and take 1 to 8 bytes. A *length* is in bytes. What has no kind stands only inside others.
These forms have names below:

{{forms}}

**One encoding.** A value has one encoding, and a reader refuses every other: another kind or version, a number out of
its range, a list out of order, bytes after the last field, and a length beyond what is there, before it allocates
anything for it.

**Hashes.** `digest(domain, part, ...)` is SHA-256 over the domain and the parts, each with its length in 8 bytes before
it.
"""

HASHES = {
    "roster": "a Roster",
    "parameters": "EpochParameters",
    "slot-keys": "a node's slot keys, one after another",
    "nonce-commitment": "hash of the parameters; node (u32); nonce",
    "key-list": "the SignedList of KeyBundles",
    "view": "hash of the parameters; the SignedList of KeyBundles; that of NonceReveals",
    "graph-seed": "the nonces, in the order of their nodes",
    "structure-seed": "the nonces, in the order of their nodes",
    "graph-order": "the graph's seed",
    "group": "the identity key of a site, and by what groups are drawn if they are: the site is dealt by the hash",
    "epoch": "the view; each ready node (u16)",
    "spec": "a RoundSpec without its signature",
    "seed-commitment": "RoundContext; node (u32); the seed of its own mask",
    "sealed": "sealed seed shares, in their order",
    "sealed-seed-share": "RoundContext; sender and holder (u16 each); payload and seed commitment as in the Header",
    "header": "a Header without its signature",
    "manifest": "a Manifest without its signature",
    "state": "run id; sequence (u64)",
}
"""Every domain of a hash, and the parts after it."""
KEYS = {
    "slot-secret": "the link of a slot; no salt; no parts",
    "slot-next": "the link of a slot, for that of the next; no salt; no parts",
    "slot-storage": "the link of a slot; no salt; no parts",
    "channel": "X25519 of channel keys; hash of the parameters; of the lower node, then the higher: number (u32), key",
    "slot-channel": "a channel's secret; no salt; no parts",
    "setup-shares": "a channel's secret; no salt; sender, holder (u32 each)",
    "seed-share": "a slot channel; no salt; sender, holder, slot (u32 each)",
    "pair": "X25519 of two slot keys; the epoch; the epoch, slot (u32), and both sides as for `channel`",
    "self-mask": "a node's seed; the epoch; RoundContext; node (u32)",
    "account": "what the signing key's holder derives from it; the epoch; folded name of the data set; the epoch",
    "vector": "a pair's or a self-mask's secret; none (HKDF-Expand alone); RoundContext; vector's name; width (u32)",
    "state-next": "the key of a stored state, for the next; no salt; no parts",
    "state-at-rest": "the key of a stored state; no salt; no parts",
}
"""Every domain of a derived key: from what, under what salt, and the parts after the domain."""


@dataclass(frozen=True)
class Room:
    """The messages of one part of the wire, in the order in which they are printed."""

    title: str
    text: str
    records: tuple[type[Record], ...]


ROOMS = (
    Room(
        "A run",
        "What a node and the coordinator say to each other in a run, whatever engine carries it. Which may come when "
        "is the table of `hedgerow.protocol.messages`.",
        get_args(messages.Message),
    ),
    Room(
        "Secure aggregation: set-up",
        "Payloads of a run, or parts of them, in the order in which they travel; `hedgerow.secagg.transitions` says "
        "what is legal when. Nodes count from 0 in the roster's order. A signed message is followed by its sender's "
        "Ed25519 signature, 64 bytes, of `hedgerow/secagg/1/`, the length of the domain in one byte, the domain, and "
        "the message; the domain is the name of the kind, as `KEY_BUNDLE`.",
        (
            Roster,
            Site,
            EpochParameters,
            Wishes,
            secagg.Advertisement,
            secagg.KeyBundle,
            secagg.SignedList,
            secagg.NonceReveal,
            secagg.NonceDelivery,
            secagg.ShareMessage,
            secagg.ShareDelivery,
            secagg.Acknowledgement,
            secagg.ReadyList,
            EpochRecord,
        ),
    ),
    Room(
        "Secure aggregation: a slot",
        "One sum of one or more vectors. The masked vectors in a MaskedVector stand one after another, little-endian "
        "words of the widths that the spec gives.",
        (
            secagg.RoundSpec,
            secagg.VectorSpec,
            secagg.NoiseSpec,
            secagg.Header,
            RoundContext,
            secagg.MaskedVector,
            secagg.Manifest,
            secagg.UnmaskRequest,
            secagg.Echo,
            secagg.EchoCertificate,
            secagg.Answer,
        ),
    ),
    Room(
        "Secure aggregation: stored states",
        "They never travel. A stored state has the SHA-256 of its bytes after it.",
        (
            Enrolment,
            ParticipantEpoch,
            ParticipantStep,
            OpenSlot,
            StoredView,
            AggregatorState,
        ),
    ),
    Room(
        "A stream over gRPC",
        "The engine `grpc` carries messages in the `Message` of `protocol/hedgerow.proto`, over mutual TLS in "
        "which both sides pin the other's certificate by the roster. The version stands in the names of the services. "
        "A node says its Introduction first, the coordinator an Admittance; then both send messages of the run. The "
        "side that ends the stream says a Farewell first.",
        (Introduction, Admittance, Farewell),
    ),
    Room(
        "A monitor",
        "A party that the roster lists as a monitor sends one WatchRequest, and is told of the run until it ends. "
        "Nothing in it was computed from a site's rows: all parties of the run know it, and those who watch the "
        "network.",
        (WatchRequest, Update, RunReport, SiteReport, EventReport),
    ),
    Room(
        "An enrolment",
        "A party that was invited to a study asks, the coordinator answers each message with one of its own, until all "
        "have the roster, and sites ask for the model's file after a run. An enrolment goes over TLS in which a party "
        "pins the coordinator's certificate by its invitation and shows none. The HMACs and hashes are those of "
        "`hedgerow.study`.",
        (Knock, Challenge, Opening, Asking, Standing, Wanted, Result, Current),
    ),
    Room(
        "Over Flower",
        "An Envelope is followed by the sender's Ed25519 signature, 64 bytes, of `hedgerow/secagg/1/`, the length of "
        "`flower` in one byte, `flower`, and the envelope. A link's keys are HKDF-SHA256 of the X25519 secret of both "
        "`key` fields, with the link as salt and `hedgerow/flower/keys/` and the site's name as info: 32 bytes to the "
        "node, then 32 to the coordinator. A body is sealed with ChaCha20-Poly1305: 12 bytes of nonce, the ciphertext, "
        "the tag. An app and the node behind its socket say one message each and end their half of the connection.",
        (Envelope, Bundle, HandedOn, HandedBack),
    ),
)


_KINDS_OF: dict[type[Record], Iterable[int]] = {
    messages.Payload: messages.PAYLOADS,
    Envelope: EnvelopeKind,
    secagg.SignedList: (SecaggKind.KEY_LIST, SecaggKind.NONCE_LIST),
}
"""Of the records whose first field is the kind in the head."""


def kinds_of(record: type[Record]) -> list[int]:
    """The kinds that stand in the head of a record; none for one that stands inside others."""
    if not issubclass(record, Encoded):
        return []
    if record.KIND is None:
        return sorted(_KINDS_OF.get(record, ()))
    return [record.KIND]


def render() -> str:
    """The whole page."""
    forms = "\n".join(f"- {name}: {words}" for name, words in NAMED.items())
    parts = [INTRODUCTION.format(forms=forms)]
    for room in ROOMS:
        parts += [f"## {room.title}\n", room.text + "\n"]
        for record in room.records:
            parts += _section(record)
    return "\n".join([*parts, *_domains(), *_states()])


def _states() -> Iterator[str]:
    yield "## States of secure aggregation\n"
    yield "Each line: a state, the next one, and the message that comes / the message that is sent.\n"
    for title, party in (("The node", Party.NODE), ("The aggregator", Party.AGGREGATOR)):
        yield f"### {title}\n\n```mermaid\nstateDiagram-v2"
        for move in TRANSITIONS:
            if move.party is party:
                names = [state.value.replace("-", "_") for state in (move.state, move.then)]
                yield f"    {names[0]} --> {names[1]}: {move.event.value}" + f" / {move.sends}" * bool(move.sends)
        yield "```\n"


def _domains() -> Iterator[str]:
    yield "## Hashes and keys of secure aggregation\n"
    yield "The `digest` of each domain, over these parts:\n"
    yield "\n".join(f"- `{domain}`: {parts}" for domain, parts in HASHES.items()) + "\n"
    yield (
        "A key is 32 bytes of HKDF-SHA256, whose info is `hedgerow/secagg/1/` and the digest of the domain and its "
        "parts. For each domain: from what, under which salt, and these parts:\n"
    )
    yield "\n".join(f"- `{domain}`: {text}" for domain, text in KEYS.items()) + "\n"


def _section(record: type[Record]) -> Iterator[str]:
    kinds = ", ".join(str(kind) for kind in kinds_of(record))
    text, _, attributes = inspect.cleandoc(record.__doc__ or "").partition("\n\nAttributes:\n")
    meanings = _meanings(attributes)
    # The kinds stand below the heading: links go to a heading by its whole text.
    yield f"### {record.__name__}\n"
    yield (f"Kind {kinds}. " if kinds else "") + text + "\n"
    rows = [
        (f"`{name}`", "u8" if record in _KINDS_OF and name == "kind" else _words(form), meanings.get(name, ""))
        for name, form in layout(record)
    ]
    for (words, meaning), fields in groupby(rows, key=lambda row: row[1:]):
        yield f"- {', '.join(name for name, *_ in fields)}: {words}" + f"; {meaning}".rstrip(".") * bool(meaning)
    if rows:
        yield ""


def _meanings(attributes: str) -> dict[str, str]:
    """What a docstring says of each attribute."""
    found: dict[str, str] = {}
    for line in re.sub(r"\n {8,}", " ", attributes).splitlines():
        names, _, text = line.strip().partition(": ")
        found |= dict.fromkeys(names.split(", "), text)
    return found


def _words(form: Form) -> str:
    words = str(form)
    for name, meant in NAMED.items():
        words = words.replace(meant, name)
    return re.sub(r"the fields of (\w+)", lambda found: f"[{found[1]}](#{found[1].lower()})", words)


def main(argv: list[str]) -> int:
    """Print the page."""
    print(render(), end="")
    return 0
