"""Envelopes: what a carrier hands over, sealed end to end, so that it can neither read nor change it.

Who carries a run's messages, such as Flower's SuperLink, sees all of them. What one node sends, together with what the
others send, would show it the sum before its noise; so every message is signed by a key of the roster and sealed
(X25519, HKDF-SHA256, ChaCha20-Poly1305) for the one party that it is for.

One *link* is the coordinator's connection to one node, from a greeting to the next. A greeting is signed but open: its
messages may only be what every party of the run knows (the plan). Greetings and requests are numbered, and a node takes
none that is older than one it has taken: who carries them may keep them. A reply names the SHA-256 of its request.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from hashlib import sha256
from pathlib import Path
from typing import Annotated

from hedgerow import __version__
from hedgerow.codec import HASH_BYTES, U32, Blob, Bytes, CodecFault, Encoded, Hash, Many, Member, Shown, Text, Word
from hedgerow.crypto import SIGNATURE_BYTES, Identity, PrimitiveFault, SecretKey, hkdf, seal, unseal, verify
from hedgerow.errors import EnvironmentFault, HedgerowError, RemoteProtocolError
from hedgerow.plan.fields import escape_for_terminal
from hedgerow.protocol.stream import WireCode, WireRefusal, translate_fault

LINK_BYTES = KEY_BYTES = HASH_BYTES
HIGHEST_NUMBER = 0xF0000000
"""That a node may name; requests of a link have room above it."""
MAX_MESSAGES = 4096
"""In one envelope."""
_DOMAIN = b"flower"


class EnvelopeKind(IntEnum):
    """The kind bytes of envelopes."""

    GREETING = 80
    REQUEST = 81
    REPLY = 82
    LOST = 83
    """The node cannot go on with this link: its process ended at the wrong moment, or its state is gone."""


class PartKind(IntEnum):
    """The kind bytes of what stands in an envelope, and of what an app and its node say to each other."""

    BUNDLE = 84
    HANDED_ON = 85
    HANDED_BACK = 86


@dataclass(frozen=True, slots=True)
class Envelope(Encoded):
    """Coordinator (greeting, request) or node (reply, lost), signed: what is carried.

    The body is a sealed Bundle, bound to the envelope without it; in a greeting it is an open one.

    Attributes:
        site: the node's; "" in a greeting.
        link: drawn at random for each link.
        number: one more than that of the request before; a greeting's is higher than all that its node has seen, and a
            lost one's is the highest.
        key: the sender's X25519 key for this link.
        request: SHA-256 of the request that this answers, without its signature; zeros in a request.
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
        """SHA-256 of the envelope, by which a reply names it."""
        return sha256(self.to_bytes()).digest()


@dataclass(frozen=True, slots=True)
class Bundle(Encoded):
    """The messages of a run that travel in one envelope, in their order."""

    KIND = PartKind.BUNDLE
    messages: Annotated[tuple[bytes, ...], Many(Blob(), most=MAX_MESSAGES)]


def sign(envelope: Envelope, seed: bytes) -> bytes:
    """The envelope's bytes, with the signature of the Ed25519 key of this 32-byte seed."""
    content = envelope.to_bytes()
    return content + Identity(seed).sign(_DOMAIN, content)


def parse(data: bytes) -> Envelope:
    """The envelope in `data`, its signature not verified yet; raises WireRefusal MALFORMED or UNKNOWN_VERSION."""
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
        """The keys of a link.

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


def public_key(secret: bytes) -> bytes:
    """The X25519 public key of a 32-byte secret."""
    return SecretKey(secret).public


def bundle_messages(messages: Sequence[bytes]) -> bytes:
    """Messages as the open body of a greeting."""
    return Bundle(tuple(messages)).to_bytes()


def seal_messages(
    envelope: Envelope, key: bytes, messages: Sequence[bytes], entropy: Callable[[int], bytes]
) -> Envelope:
    """The envelope, which has no body yet, with messages as its sealed body."""
    return replace(envelope, body=seal(key, bundle_messages(messages), envelope.to_bytes(), entropy))


def messages_in(envelope: Envelope, key: bytes) -> tuple[bytes, ...]:
    """The messages in the body, which `key` opens where it is sealed; raises WireRefusal MALFORMED."""
    try:
        body = envelope.body
        if envelope.kind is not EnvelopeKind.GREETING:
            body = unseal(key, body, replace(envelope, body=b"").to_bytes())
        return Bundle.from_bytes(body).messages
    except PrimitiveFault:
        raise WireRefusal(WireCode.MALFORMED, "A sealed body does not open.") from None
    except CodecFault as fault:
        raise translate_fault(fault) from None


# On a site's machine --------------------------------------------------------------------------------------------------
# The app that Flower carries hands requests over to a node that is resident. Whatever a SuperLink sends to be executed
# runs as the SuperNode's user. When the node is a process of another user behind a socket, that code can only do what
# the network could: hand over bytes that the node does not believe unless the pinned coordinator has signed them. Each
# side writes one message of `hedgerow.codec` and ends its half.

MAX_BYTES = 1 << 27
_PATIENCE = 60.0
"""Seconds for a whole request, from a process of the same machine: the next one waits for it."""
_MAX_ANSWER = 3600.0
"""Seconds for a node to answer, after the requests before: one that reads its rows or grows trees takes minutes."""


@dataclass(frozen=True, slots=True)
class HandedOn(Encoded):
    """What an app or a file brings to the site's node: a request, and the release of Hedgerow at the coordinator."""

    KIND = PartKind.HANDED_ON
    release: Shown
    request: Bytes


@dataclass(frozen=True, slots=True)
class HandedBack(Encoded):
    """What the site's node gives back: its reply, or the code with which it refuses."""

    KIND = PartKind.HANDED_BACK
    reply: Bytes
    refusal: Annotated[str, Word(least=0)] = ""


class NodeSocket:
    """Takes requests from processes of this machine, one at a time.

    Raises EnvironmentFault `address-in-use` when another node listens there, `file-not-written` when it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        if path.is_socket():
            _require_dead(path)
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if path.is_socket():
                path.unlink()
            # Made closed to all, then opened for its group.
            before = os.umask(0o177)
            try:
                self._listener.bind(str(path))
            finally:
                os.umask(before)
            path.chmod(0o660)
            self._listener.listen(8)
        except OSError as fault:
            self._listener.close()
            raise EnvironmentFault("file-not-written", path=path, fault=fault.strerror or fault) from None

    def take(self, answer: Callable[[str, bytes], bytes]) -> None:
        """Take one request: `answer` gives the reply to the coordinator's version and its bytes, or raises."""
        connection, _ = self._listener.accept()
        with connection:
            # A peer that hangs up, is slow or sends nonsense has not asked anything.
            with contextlib.suppress(OSError, ValueError):
                asked = HandedOn.from_bytes(_receive_all(connection, _PATIENCE))
                try:
                    reply = HandedBack(answer(asked.release, asked.request))
                except HedgerowError as fault:
                    reply = HandedBack(b"", fault.code)
                connection.settimeout(_PATIENCE)
                connection.sendall(reply.to_bytes())

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._listener.close()
        with contextlib.suppress(OSError):
            self._path.unlink()


def ask(path: Path, version: str, request: bytes) -> bytes:
    """The resident node's reply.

    Raises EnvironmentFault `flower-node-absent` when no one listens, or the node hangs up or hangs; RemoteProtocolError
    with the node's own code word when it refuses, or `flower-version` for a version that cannot be shown.
    """
    try:
        asked = HandedOn(version, request).to_bytes()
    except ValueError:
        said = escape_for_terminal(version[:32])
        raise RemoteProtocolError("flower-version", whose="The coordinator", said=said, installed=__version__) from None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_MAX_ANSWER)
            connection.connect(str(path))
            connection.sendall(asked)
            connection.shutdown(socket.SHUT_WR)
            back = HandedBack.from_bytes(_receive_all(connection, _MAX_ANSWER))
    except (OSError, ValueError) as fault:
        raise EnvironmentFault("flower-node-absent", path=path, fault=fault) from None
    if code := back.refusal:
        raise RemoteProtocolError("node-refuses", code=code)
    return back.reply


def _require_dead(path: Path) -> None:
    """EnvironmentFault `address-in-use` where something answers at a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return
    raise EnvironmentFault("address-in-use", fault="A node listens already", address=path)


def _receive_all(connection: socket.socket, seconds: float) -> bytes:
    """All that the other side writes until it ends its half; TimeoutError when that takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    parts: list[bytes] = []
    n_bytes = 0
    while True:
        # For the whole of it: a peer that sends a byte now and then would keep the next one waiting without end.
        if (left := deadline - time.monotonic()) <= 0:
            raise TimeoutError("it took too long")
        connection.settimeout(left)
        if not (part := connection.recv(1 << 20)):
            return b"".join(parts)
        parts.append(part)
        n_bytes += len(part)
        if n_bytes > MAX_BYTES:
            raise ValueError("a message is too long")


@dataclass(frozen=True, slots=True)
class Fetched:
    """What came back for one envelope.

    Attributes:
        data: the reply, or None.
        code: why there is none.
        is_away: because the node is not there now.
    """

    number: str
    data: bytes | None
    code: str = ""
    is_away: bool = False
