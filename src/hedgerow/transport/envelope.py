# SPDX-License-Identifier: Apache-2.0
"""Envelopes: what a carrier hands over, sealed end to end, so that it can neither read nor change it.

Who carries a run's messages, such as Flower's SuperLink, sees all of them. What one node sends, together with what the
others send, would show it the sum before its noise. So every message is signed by a key of the roster and sealed
(X25519, HKDF-SHA256, ChaCha20-Poly1305) for the one party that it is for.

One *link* is the coordinator's connection to one node, from a greeting to the next. A greeting is signed but open: its
messages may only be what every party of the run knows (the plan). Greetings and requests are numbered, and a node takes
none that is older than one it has taken: who carries them may keep them. A reply names the SHA-256 of its request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from hashlib import sha256
from typing import Annotated

from hedgerow.codec import HASH_BYTES, U32, Blob, Bytes, CodecFault, Encoded, Hash, Many, Member, Text
from hedgerow.crypto import KEY_BYTES, SIGNATURE_BYTES, Identity, PrimitiveFault, SecretKey, hkdf, seal, unseal, verify
from hedgerow.protocol.refusals import WireCode, WireRefusal
from hedgerow.protocol.stream import translate_fault

LINK_BYTES = HASH_BYTES
HIGHEST_NUMBER = 0xF0000000
"""Highest number that a node may name, or accept in a greeting; requests of a link have room above it."""
MAX_MESSAGES = 4096
"""In one envelope."""
_DOMAIN = b"flower"
"""Domain of signatures for all carriers, named after the first one; another word would change the wire."""


class EnvelopeKind(IntEnum):
    """The kind bytes of envelopes."""

    GREETING = 80
    REQUEST = 81
    REPLY = 82
    LOST = 83
    """The node cannot go on with this link: its process ended at the wrong moment, or its state is gone."""


class PartKind(IntEnum):
    """Kind bytes of the parts of an envelope, and of messages between a carrier's app and a node."""

    BUNDLE = 84
    HANDED_ON = 85
    HANDED_BACK = 86


@dataclass(frozen=True, slots=True)
class Envelope(Encoded):
    """A signed message of the carrier, by the coordinator (greeting, request) or a node (reply, lost).

    Attributes:
        kind: also the kind in the head.
        site: the node's; "" in a greeting.
        link: drawn at random for each link.
        number: one more than that of the request before. A greeting's is higher than all that its node has seen of
            this coordinator. A lost one's is the highest.
        key: the sender's X25519 key for this link.
        request: SHA-256 of the request that this answers, without its signature; zeros in a request.
        body: a sealed Bundle, bound to the envelope without it; in a greeting an open one.
    """

    kind: Annotated[EnvelopeKind, Member(EnvelopeKind)]
    site: Annotated[str, Text(most=64)]
    link: Hash
    number: U32
    key: Hash
    request: Hash
    body: Bytes = b""

    @property
    def digest(self) -> bytes:
        """SHA-256 of the envelope, which its reply quotes."""
        return sha256(self.to_bytes()).digest()


@dataclass(frozen=True, slots=True)
class Bundle(Encoded):
    """The messages of one envelope, in their order."""

    KIND = PartKind.BUNDLE
    messages: Annotated[tuple[bytes, ...], Many(Blob(), most=MAX_MESSAGES)]


def sign(envelope: Envelope, seed: bytes) -> bytes:
    """Return the envelope's bytes, signed with the Ed25519 key of this 32-byte seed."""
    content = envelope.to_bytes()
    return content + Identity(seed).sign(_DOMAIN, content)


def parse(data: bytes) -> Envelope:
    """Read an envelope without verifying its signature; raise WireRefusal MALFORMED or UNKNOWN_VERSION."""
    try:
        return Envelope.from_bytes(data[:-SIGNATURE_BYTES])
    except CodecFault as fault:
        raise translate_fault(fault) from None


def require_signature(data: bytes, identity_key: bytes) -> None:
    """Raise WireRefusal UNPINNED unless the Ed25519 key of 32 bytes has signed the envelope in `data`."""
    try:
        verify(identity_key, _DOMAIN, data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:])
    except PrimitiveFault:
        raise WireRefusal(WireCode.UNPINNED, "An envelope is not signed by the pinned key.") from None


@dataclass(frozen=True, slots=True, repr=False)
class LinkKeys:
    """The two keys of one link, one for each direction; never logged.

    Attributes:
        to_node, to_hub: 32 bytes each.
    """

    to_node: bytes
    to_hub: bytes

    @classmethod
    def agree(cls, secret: bytes, peer: bytes, link: bytes, site: str) -> LinkKeys:
        """Derive the keys of a link.

        Raises WireRefusal MALFORMED for a key of low order.

        Args:
            secret: one's own X25519 secret, 32 bytes.
            peer: the other's public key.
        """
        try:
            shared = SecretKey(secret).agree(peer)
        except PrimitiveFault:
            raise WireRefusal(WireCode.MALFORMED, "A key of a link is of low order.") from None
        both = hkdf(shared, link, b"hedgerow/flower/keys/" + site.encode(), 2 * KEY_BYTES)
        return cls(both[:KEY_BYTES], both[KEY_BYTES:])


def derive_public_key(secret: bytes) -> bytes:
    """Return the X25519 public key of a 32-byte secret."""
    return SecretKey(secret).public


def bundle_messages(messages: Sequence[bytes]) -> bytes:
    """Messages as the open body of a greeting."""
    return Bundle(tuple(messages)).to_bytes()


def seal_messages(
    envelope: Envelope, key: bytes, messages: Sequence[bytes], entropy: Callable[[int], bytes]
) -> Envelope:
    """Return an envelope without a body, completed by these messages as its sealed body."""
    return replace(envelope, body=seal(key, bundle_messages(messages), envelope.to_bytes(), entropy))


def open_messages(envelope: Envelope, key: bytes) -> tuple[bytes, ...]:
    """Return the messages in the body, unsealed with `key` unless it is a greeting's.

    Raises:
        WireRefusal: MALFORMED.
    """
    try:
        body = envelope.body
        if envelope.kind is not EnvelopeKind.GREETING:
            body = unseal(key, body, replace(envelope, body=b"").to_bytes())
        return Bundle.from_bytes(body).messages
    except PrimitiveFault:
        raise WireRefusal(WireCode.MALFORMED, "A sealed body does not open.") from None
    except CodecFault as fault:
        raise translate_fault(fault) from None
