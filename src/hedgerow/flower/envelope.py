"""Engine `flower`: what travels inside Flower's messages, sealed end to end, so that what carries it cannot read it.

A SuperLink stores messages and sees all of them. What one node sends, together with what the others send, would show it
the sum before its noise; so beneath Flower's own TLS and authentication every message is signed by a key of the roster
and sealed (X25519, HKDF-SHA256, ChaCha20-Poly1305) for the one party that it is for.

One *link* is the coordinator's connection to one node, from a greeting to the next. A greeting is signed but open: its
messages may only be what every party of the run knows (the plan). Requests are numbered; a reply names the SHA-256 of
its request.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from hedgerow.protocol.wire.refusals import WireCode, WireRefusal

MAGIC = b"HRF\x01"
LINK_BYTES = KEY_BYTES = HASH_BYTES = 32
SIGNATURE_BYTES = 64
NONCE_BYTES = 12
MAX_NAME_BYTES = 64
MAX_MESSAGES = 4096
_DOMAIN = b"hedgerow/flower/1/"


class Kind(IntEnum):
    """What an envelope is; a number, once given, is never given to another."""

    GREETING = 1
    REQUEST = 2
    REPLY = 3
    LOST = 4
    """The node cannot go on with this link: its process ended at the wrong moment, or its state is gone."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """An envelope whose signature was verified; its body is still sealed, except in a greeting.

    Args: kind; site: the node's site ("" in a greeting); link: 32 bytes; number: of the request in its link, 0 for the
        greeting; key: the sender's X25519 key for this link, 32 bytes; request: SHA-256 of the request that this
        answers, zeros in a request; body; digest: SHA-256 of the whole envelope.
    """

    kind: Kind
    site: str
    link: bytes
    number: int
    key: bytes
    request: bytes
    body: bytes
    digest: bytes = bytes(HASH_BYTES)

    @property
    def head(self) -> bytes:
        """Everything before the body: what a sealed body is bound to."""
        name = self.site.encode("ascii")
        fixed = self.link + self.number.to_bytes(4, "big") + self.key + self.request
        return MAGIC + bytes((self.kind, len(name))) + name + fixed


def sign(envelope: Envelope, seed: bytes) -> bytes:
    """The envelope's bytes, with the signature of the Ed25519 key of this 32-byte seed."""
    content = envelope.head + envelope.body
    return content + Ed25519PrivateKey.from_private_bytes(seed).sign(_DOMAIN + content)


def parse(data: bytes) -> Envelope:
    """The envelope in `data`, its signature not verified yet; raises WireRefusal MALFORMED or UNKNOWN_VERSION."""
    if len(data) < len(MAGIC) or data[:3] != MAGIC[:3]:
        raise WireRefusal(WireCode.MALFORMED)
    if data[3] != MAGIC[3]:
        raise WireRefusal(WireCode.UNKNOWN_VERSION)
    try:
        kind, length = Kind(data[4]), data[5]
        name, rest = data[6 : 6 + length].decode("ascii"), data[6 + length : -SIGNATURE_BYTES]
    except (ValueError, IndexError):
        raise WireRefusal(WireCode.MALFORMED) from None
    size = LINK_BYTES + 4 + KEY_BYTES + HASH_BYTES
    if length > MAX_NAME_BYTES or len(rest) < size or len(data) < 6 + length + size + SIGNATURE_BYTES:
        raise WireRefusal(WireCode.MALFORMED)
    link, number = rest[:LINK_BYTES], int.from_bytes(rest[LINK_BYTES : LINK_BYTES + 4], "big")
    key, request = rest[LINK_BYTES + 4 : size - HASH_BYTES], rest[size - HASH_BYTES : size]
    return Envelope(kind, name, link, number, key, request, rest[size:], sha256(data).digest())


def require_signature(data: bytes, identity_key: bytes) -> None:
    """Raises WireRefusal UNPINNED unless the Ed25519 key of 32 bytes has signed the envelope in `data`."""
    content, signature = data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:]
    try:
        Ed25519PublicKey.from_public_bytes(identity_key).verify(signature, _DOMAIN + content)
    except InvalidSignature:
        raise WireRefusal(WireCode.UNPINNED, "An envelope is not signed by the pinned key.") from None


@dataclass(frozen=True, slots=True, repr=False)
class LinkKeys:
    """The two keys of one link, one for each direction; never logged.

    Args: to_node, to_hub: 32 bytes each.
    """

    to_node: bytes
    to_hub: bytes

    @classmethod
    def agree(cls, secret: bytes, peer: bytes, link: bytes, site: str) -> LinkKeys:
        """The keys of a link. Args: secret: one's own X25519 secret, 32 bytes; peer: the other's public key.

        Raises WireRefusal MALFORMED for a key of low order.
        """
        try:
            shared = X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError:
            raise WireRefusal(WireCode.MALFORMED, "A key of a link is of low order.") from None
        info = _DOMAIN + b"keys/" + site.encode("ascii")
        both = HKDF(algorithm=SHA256(), length=2 * KEY_BYTES, salt=link, info=info).derive(shared)
        return cls(both[:KEY_BYTES], both[KEY_BYTES:])


def public_key(secret: bytes) -> bytes:
    """The X25519 public key of a 32-byte secret."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def seal(key: bytes, messages: list[bytes], head: bytes, nonce: bytes) -> bytes:
    """Messages as a sealed body, bound to the envelope's head. Args: nonce: 12 random bytes."""
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, pack(messages), head)


def unseal(key: bytes, body: bytes, head: bytes) -> list[bytes]:
    """The messages of a sealed body; raises WireRefusal MALFORMED."""
    try:
        return unpack(ChaCha20Poly1305(key).decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], head))
    except (InvalidTag, ValueError):
        raise WireRefusal(WireCode.MALFORMED, "A sealed body does not open.") from None


def pack(messages: list[bytes]) -> bytes:
    """Messages in a row, each after its length in 4 bytes."""
    return b"".join(len(message).to_bytes(4, "big") + message for message in messages)


def unpack(data: bytes) -> list[bytes]:
    """What `pack` packed; raises WireRefusal MALFORMED."""
    messages: list[bytes] = []
    start = 0
    while start < len(data):
        end = start + 4 + int.from_bytes(data[start : start + 4], "big")
        if end > len(data) or start + 4 > len(data) or len(messages) == MAX_MESSAGES:
            raise WireRefusal(WireCode.MALFORMED)
        messages.append(data[start + 4 : end])
        start = end
    return messages
