"""The messages and stored states of this room: their kinds, who signs, and by which names they are refused."""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, Self, TypeVar

from hedgerow.codec import CodecFault, Encoded, Flaw, without_hash
from hedgerow.crypto.faults import PrimitiveFault
from hedgerow.crypto.identity import SIGNATURE_BYTES, Identity, verify
from hedgerow.secagg.transitions import Code, Refusal, refuse


class Kind(IntEnum):
    """The kind byte of every message and stored state."""

    ROSTER = 33
    PARAMETERS = 34
    KEY_BUNDLE = 35
    KEY_LIST = 36
    NONCE = 37
    NONCE_LIST = 38
    SHARES = 39
    SHARE_DELIVERY = 40
    ACKNOWLEDGEMENT = 41
    READY_LIST = 42
    ROUND_SPEC = 43
    HEADER = 44
    MASKED_VECTOR = 45
    MANIFEST = 46
    UNMASK_REQUEST = 47
    ECHO = 48
    ECHO_CERTIFICATE = 49
    ANSWER = 50
    EPOCH_RECORD = 51
    ENROLMENT_STATE = 52
    PARTICIPANT_STATE = 53
    AGGREGATOR_STATE = 54
    PARTICIPANT_EPOCH = 55
    PARTICIPANT_STEP = 56
    ADVERTISEMENT = 57
    NONCE_DELIVERY = 58
    EPOCH_VIEW = 59


_CODES = {
    Flaw.MALFORMED: Code.MALFORMED,
    Flaw.UNKNOWN_VERSION: Code.UNKNOWN_VERSION,
    Flaw.DISORDERED: Code.REPEATED_NODE,
}


class Sent(Encoded):
    """A message. Bytes that are none are a Refusal: MALFORMED, UNKNOWN_VERSION or REPEATED_NODE."""

    __slots__ = ()
    SENDER: ClassVar[str | None] = None
    """Whom a refusal names, where it is always the same party."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The message in `data`; raises Refusal."""
        try:
            return super().from_bytes(data)
        except CodecFault as fault:
            raise refuse(_CODES[fault.flaw], fault.what, cls.SENDER) from None


class Signed(Sent):
    """A message that travels with the signature of its sender after it, 64 bytes."""

    __slots__ = ()

    def to_signed(self, identity: Identity) -> bytes:
        """Returns the signed message."""
        body = self.to_bytes()
        return body + identity.sign(_domain(self.KIND), body)

    @classmethod
    def from_signed(cls, data: bytes) -> Self:
        """Returns the message without checking its signature; raises Refusal."""
        return cls.from_bytes(split_signed(data, cls.SENDER)[0])


def split_signed(data: bytes, peer: int | str | None = None) -> tuple[bytes, bytes]:
    """Returns (body, signature) of a signed message; raises Refusal MALFORMED when it is too short."""
    if len(data) <= SIGNATURE_BYTES:
        raise refuse(Code.MALFORMED, "It is shorter than a signature.", peer)
    return data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:]


def check_signature(public: bytes, kind: Kind, data: bytes, peer: int | str | None) -> None:
    """Raises Refusal BAD_SIGNATURE unless the signed message `data` of `kind` verifies under `public`."""
    body, signature = split_signed(data, peer)
    try:
        verify(public, _domain(kind), body, signature)
    except PrimitiveFault as error:
        raise refuse(Code.BAD_SIGNATURE, f"In a {kind.name}.", peer) from error


def _domain(kind: int | None) -> bytes:
    """A signature's domain is the name of the message's kind."""
    return Kind(kind or 0).name.encode()


Stored = TypeVar("Stored", bound=Encoded)


def read_state(kind: type[Stored], data: bytes) -> Stored:
    """Returns the state that was stored, with its hash after it; raises OwnMistake CORRUPT_STATE."""
    try:
        return kind.from_bytes(without_hash(data))
    except (CodecFault, Refusal) as error:
        raise refuse(Code.CORRUPT_STATE) from error


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
    "vector": "a pair's or a self-mask's secret; none (HKDF-Expand alone); RoundContext; vector's name; width (u32)",
    "state-next": "the key of a stored state, for the next; no salt; no parts",
    "state-at-rest": "the key of a stored state; no salt; no parts",
}
"""Every domain of a derived key: from what, under what salt, and the parts after the domain."""
