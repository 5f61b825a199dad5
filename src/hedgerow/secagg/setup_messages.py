"""The messages of an epoch's set-up, in the order in which they travel.

Node numbers count from 0 in the roster's order; all numbers are big-endian; nothing here is encrypted except the
`sealed` shares. A signed message is its body followed by a 64-byte Ed25519 signature of the named signer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hedgerow.secagg._primitives.agreement import KEY_BYTES
from hedgerow.secagg._primitives.faults import PrimitiveFault
from hedgerow.secagg._primitives.identity import SIGNATURE_BYTES, Identity, verify
from hedgerow.secagg.encoding import HASH_BYTES, Kind, Reader, Writer, digest
from hedgerow.secagg.refusals import refuse
from hedgerow.secagg.transitions import Code


def sign(identity: Identity, kind: Kind, body: bytes) -> bytes:
    """Returns the body with the signature after it; the kind is the signature's domain."""
    return body + identity.sign(kind.name.encode(), body)


def split_signed(data: bytes, peer: int | str | None = None) -> tuple[bytes, bytes]:
    """Returns (body, signature) of a signed message; raises Refusal MALFORMED when it is too short."""
    if len(data) <= SIGNATURE_BYTES:
        raise refuse(Code.MALFORMED, "It is shorter than a signature.", peer)
    return data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:]


def check_signature(public: bytes, kind: Kind, data: bytes, peer: int | str | None) -> None:
    """Raises Refusal BAD_SIGNATURE unless the signed message `data` of `kind` verifies under `public`."""
    body, signature = split_signed(data, peer)
    try:
        verify(public, kind.name.encode(), body, signature)
    except PrimitiveFault as error:
        raise refuse(Code.BAD_SIGNATURE, f"In a {kind.name}.", peer) from error


@dataclass(frozen=True, slots=True)
class KeyBundle:
    """Node to all, signed: the node's public keys for the epoch and its commitment to a nonce."""

    parameters: bytes
    node: int
    nonce_commitment: bytes
    channel_key: bytes
    slot_keys: tuple[bytes, ...]

    def to_signed(self, identity: Identity) -> bytes:
        """Returns the signed message."""
        writer = Writer(Kind.KEY_BUNDLE).fixed(self.parameters, HASH_BYTES).number(self.node, 2)
        writer.fixed(self.nonce_commitment, HASH_BYTES).fixed(self.channel_key, KEY_BYTES)
        writer.number(len(self.slot_keys), 2)
        for key in self.slot_keys:
            writer.fixed(key, KEY_BYTES)
        return sign(identity, Kind.KEY_BUNDLE, writer.bytes())

    @classmethod
    def from_signed(cls, data: bytes) -> KeyBundle:
        """Returns the bundle without checking its signature; raises Refusal MALFORMED."""
        reader = Reader(split_signed(data)[0], Kind.KEY_BUNDLE)
        parameters, node = reader.fixed(HASH_BYTES), reader.number(2)
        commitment, channel = reader.fixed(HASH_BYTES), reader.fixed(KEY_BYTES)
        keys = reader.fixed(KEY_BYTES * reader.number(2, least=1))
        reader.end()
        slot_keys = tuple(keys[start : start + KEY_BYTES] for start in range(0, len(keys), KEY_BYTES))
        return cls(parameters, node, commitment, channel, slot_keys)


@dataclass(frozen=True, slots=True)
class NonceReveal:
    """Node to all, signed: the nonce, and the hash of the key list it saw."""

    parameters: bytes
    node: int
    key_list: bytes
    nonce: bytes

    def to_signed(self, identity: Identity) -> bytes:
        """Returns the signed message."""
        writer = Writer(Kind.NONCE).fixed(self.parameters, HASH_BYTES).number(self.node, 2)
        body = writer.fixed(self.key_list, HASH_BYTES).fixed(self.nonce, HASH_BYTES).bytes()
        return sign(identity, Kind.NONCE, body)

    @classmethod
    def from_signed(cls, data: bytes) -> NonceReveal:
        """Returns the reveal without checking its signature; raises Refusal MALFORMED."""
        reader = Reader(split_signed(data)[0], Kind.NONCE)
        parameters, node = reader.fixed(HASH_BYTES), reader.number(2)
        reveal = cls(parameters, node, reader.fixed(HASH_BYTES), reader.fixed(HASH_BYTES))
        reader.end()
        return reveal


def signed_list(kind: Kind, parameters: bytes, messages: Sequence[bytes]) -> bytes:
    """Returns the coordinator's list (KEY_LIST or NONCE_LIST) of signed messages, in the order of their nodes."""
    return Writer(kind).fixed(parameters, HASH_BYTES).items(messages).bytes()


def read_signed_list(kind: Kind, data: bytes, parameters: bytes) -> tuple[bytes, ...]:
    """Returns the signed messages of a list; raises Refusal MALFORMED or DIFFERENT_VIEW (other parameters)."""
    reader = Reader(data, kind, "coordinator")
    if reader.fixed(HASH_BYTES) != parameters:
        raise refuse(Code.DIFFERENT_VIEW, "The list is for other parameters.", "coordinator")
    messages = reader.items()
    reader.end()
    return messages


@dataclass(frozen=True, slots=True)
class ShareMessage:
    """Node to the coordinator, signed: one sealed run of slot-key shares for each holder, in increasing order."""

    view: bytes
    node: int
    holders: tuple[int, ...]
    sealed: tuple[bytes, ...]

    def to_signed(self, identity: Identity) -> bytes:
        """Returns the signed message."""
        writer = Writer(Kind.SHARES).fixed(self.view, HASH_BYTES).number(self.node, 2).nodes(self.holders)
        return sign(identity, Kind.SHARES, writer.items(self.sealed).bytes())

    @classmethod
    def from_signed(cls, data: bytes) -> ShareMessage:
        """Returns the message without checking its signature; raises Refusal MALFORMED or REPEATED_NODE."""
        reader = Reader(split_signed(data)[0], Kind.SHARES)
        view, node = reader.fixed(HASH_BYTES), reader.number(2)
        message = cls(view, node, reader.nodes(), reader.items())
        reader.end()
        if len(message.holders) != len(message.sealed):
            raise refuse(Code.MALFORMED, "Holders and shares differ in number.", node)
        return message


@dataclass(frozen=True, slots=True)
class ShareDelivery:
    """Coordinator to one holder: the sealed shares that its neighbours sent it, in increasing order of sender."""

    view: bytes
    senders: tuple[int, ...]
    sealed: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """Returns the message."""
        return Writer(Kind.SHARE_DELIVERY).fixed(self.view, HASH_BYTES).nodes(self.senders).items(self.sealed).bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> ShareDelivery:
        """Returns the delivery; raises Refusal MALFORMED or REPEATED_NODE."""
        reader = Reader(data, Kind.SHARE_DELIVERY, "coordinator")
        delivery = cls(reader.fixed(HASH_BYTES), reader.nodes(), reader.items())
        reader.end()
        if len(delivery.senders) != len(delivery.sealed):
            raise refuse(Code.MALFORMED, "Senders and shares differ in number.", "coordinator")
        return delivery


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Node to all, signed: whose shares the node holds, for the view of the set-up that it saw."""

    view: bytes
    node: int
    held: tuple[int, ...]

    def to_signed(self, identity: Identity) -> bytes:
        """Returns the signed message."""
        writer = Writer(Kind.ACKNOWLEDGEMENT).fixed(self.view, HASH_BYTES).number(self.node, 2)
        return sign(identity, Kind.ACKNOWLEDGEMENT, writer.nodes(self.held).bytes())

    @classmethod
    def from_signed(cls, data: bytes) -> Acknowledgement:
        """Returns the acknowledgement without checking its signature; raises Refusal."""
        reader = Reader(split_signed(data)[0], Kind.ACKNOWLEDGEMENT)
        acknowledgement = cls(reader.fixed(HASH_BYTES), reader.number(2), reader.nodes())
        reader.end()
        return acknowledgement


@dataclass(frozen=True, slots=True)
class ReadyList:
    """Coordinator to all: the acknowledgements of the ready nodes, in the order of their numbers."""

    view: bytes
    acknowledgements: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """Returns the message."""
        return Writer(Kind.READY_LIST).fixed(self.view, HASH_BYTES).items(self.acknowledgements).bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> ReadyList:
        """Returns the list; raises Refusal MALFORMED."""
        reader = Reader(data, Kind.READY_LIST, "coordinator")
        ready = cls(reader.fixed(HASH_BYTES), reader.items())
        reader.end()
        return ready


def view_hash(parameters: bytes, key_list: bytes, nonce_list: bytes) -> bytes:
    """Returns the hash of all that the nodes agreed on before they share keys (32 bytes)."""
    return digest("view", parameters, key_list, nonce_list)
