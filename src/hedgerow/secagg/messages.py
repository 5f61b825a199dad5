"""Every message, in the order in which they travel: those of an epoch's set-up, then those of an aggregation.

Node numbers count from 0 in the roster's order; all numbers are big-endian; at set-up nothing is encrypted except the
`sealed` shares. A signed message is its body followed by a 64-byte Ed25519 signature of the named signer.

A slot is one use of one-slot keys: it sums one or more integer vectors for one purpose. The coordinator signs the
spec and the manifest, each node its header, echo and answer. The masked vectors are uniform to all but the aggregate;
the shares in an answer are in clear, because revealing them is the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Annotated

from hedgerow.codec import (
    HASH_BYTES,
    U8,
    U16,
    U32,
    U64,
    Blobs,
    Bytes,
    Choice,
    Fixed,
    Hash,
    Line,
    Many,
    Nested,
    Nodes,
    Ratio,
    Record,
    Unsigned,
    digest,
    fail,
)
from hedgerow.crypto.aead import OVERHEAD_BYTES
from hedgerow.crypto.identity import SIGNATURE_BYTES
from hedgerow.crypto.shamir import SHARE_BYTES
from hedgerow.secagg.encoding import Kind, Sent, Signed, split_signed
from hedgerow.secagg.keys import RoundContext
from hedgerow.secagg.roster import NoiseMode
from hedgerow.secagg.transitions import Code, refuse

MAX_VECTORS = 64
SEALED_SHARE_BYTES = SHARE_BYTES + OVERHEAD_BYTES
WITHHELD, SEED_SHARE, SLOT_KEY_SHARE = 0, 1, 2
Hashes = Annotated[tuple[bytes, ...], Many(Fixed(HASH_BYTES))]
SealedShares = Annotated[tuple[bytes, ...], Many(Fixed(SEALED_SHARE_BYTES))]


def _require_one_each(nodes: Sequence[int], values: Sequence[bytes]) -> None:
    if len(nodes) != len(values):
        fail("Nodes, and what is said of them, differ in number.")


@dataclass(frozen=True, slots=True)
class KeyBundle(Signed):
    """Node to all, signed: its public keys for the epoch, those of the slots by their hash; a nonce's commitment."""

    KIND = Kind.KEY_BUNDLE
    parameters: Hash
    node: U16
    nonce_commitment: Hash
    channel_key: Hash
    slot_keys_hash: Hash


def hash_of_slot_keys(slot_keys: bytes) -> bytes:
    """Returns the 32-byte hash by which a bundle signs its node's slot keys, given one after another."""
    return digest("slot-keys", slot_keys)


@dataclass(frozen=True, slots=True)
class Advertisement(Sent):
    """Node to the coordinator: its signed key bundle for all, and its slot keys, which go to its neighbours only."""

    KIND = Kind.ADVERTISEMENT
    bundle: Bytes
    slot_keys: Bytes


@dataclass(frozen=True, slots=True)
class NonceReveal(Signed):
    """Node to all, signed: the nonce, and the hash of the key list it saw."""

    KIND = Kind.NONCE
    parameters: Hash
    node: U16
    key_list: Hash
    nonce: Hash


@dataclass(frozen=True, slots=True)
class SignedList(Sent):
    """Coordinator: KeyBundles to all, or NonceReveals in a NonceDelivery; each signed, in the order of their nodes."""

    SENDER = "coordinator"
    kind: Annotated[Kind, Choice(Kind)]
    parameters: Hash
    messages: Blobs

    def check(self) -> None:
        if self.kind not in (Kind.KEY_LIST, Kind.NONCE_LIST):
            fail("It is no list of signed messages.")


def signed_list(kind: Kind, parameters: bytes, messages: Sequence[bytes]) -> bytes:
    """Returns the coordinator's list (KEY_LIST or NONCE_LIST) of signed messages, in the order of their nodes."""
    return SignedList(kind, parameters, tuple(messages)).to_bytes()


def read_signed_list(kind: Kind, data: bytes, parameters: bytes) -> tuple[bytes, ...]:
    """Returns the signed messages of a list; raises Refusal MALFORMED or DIFFERENT_VIEW (other parameters)."""
    listed = SignedList.from_bytes(data)
    if listed.kind is not kind:
        raise refuse(Code.MALFORMED, f"It is not a {kind.name}.", "coordinator")
    if listed.parameters != parameters:
        raise refuse(Code.DIFFERENT_VIEW, "The list is for other parameters.", "coordinator")
    return listed.messages


@dataclass(frozen=True, slots=True)
class NonceDelivery(Sent):
    """Coordinator to one node: the list of nonces, and the slot keys of its neighbours in the graph that they draw.

    The neighbours' runs of keys come in increasing order of their numbers, which follow from the nonces.
    """

    KIND = Kind.NONCE_DELIVERY
    SENDER = "coordinator"
    nonce_list: Bytes
    slot_keys: Blobs


@dataclass(frozen=True, slots=True)
class ShareMessage(Signed):
    """Node to the coordinator, signed: one sealed run of slot-key shares for each holder, in increasing order."""

    KIND = Kind.SHARES
    view: Hash
    node: U16
    holders: Nodes
    sealed: Blobs

    def check(self) -> None:
        _require_one_each(self.holders, self.sealed)


@dataclass(frozen=True, slots=True)
class ShareDelivery(Sent):
    """Coordinator to one holder: the sealed shares that its neighbours sent it, in increasing order of sender."""

    KIND = Kind.SHARE_DELIVERY
    SENDER = "coordinator"
    view: Hash
    senders: Nodes
    sealed: Blobs

    def check(self) -> None:
        _require_one_each(self.senders, self.sealed)


@dataclass(frozen=True, slots=True)
class Acknowledgement(Signed):
    """Node to all, signed: whose shares the node holds, for the view of the set-up that it saw."""

    KIND = Kind.ACKNOWLEDGEMENT
    view: Hash
    node: U16
    held: Nodes


@dataclass(frozen=True, slots=True)
class ReadyList(Sent):
    """Coordinator to all: the acknowledgements of the ready nodes, in the order of their numbers."""

    KIND = Kind.READY_LIST
    SENDER = "coordinator"
    view: Hash
    acknowledgements: Blobs


def view_hash(parameters: bytes, key_list: bytes, nonce_list: bytes) -> bytes:
    """Returns the hash of all that the nodes agreed on before they share keys (32 bytes)."""
    return digest("view", parameters, key_list, nonce_list)


@dataclass(frozen=True, slots=True)
class VectorSpec(Record):
    """One vector of a slot.

    Args: vector_id: distinct within the slot; length: entries (>= 1); width: bits of an entry, 32 or 64; entry_bound:
        bound on |entry| of one node's vector, before its share of noise; sum_bound: bound on |entry| of what is
        released, the noise's tail included, wherever the noise is added.
    """

    vector_id: Line
    length: U32
    width: U8
    entry_bound: U64
    sum_bound: U64


@dataclass(frozen=True, slots=True)
class NoiseSpec(Record):
    """The discrete Gaussian noise of a slot: who adds it, and the total variance (grid units squared, 0 for none)."""

    mode: Annotated[NoiseMode, Choice(NoiseMode)]
    variance: Annotated[Fraction, Ratio(16)] = Fraction(0)


@dataclass(frozen=True, slots=True)
class RoundSpec(Signed):
    """Coordinator to nodes, signed: what slot `slot` is for.

    Args: epoch: digest of the epoch's view; purpose: what the sum is for, at most one release each; model: 32-byte
        digest of the model so far; vectors: 1..64; noise: see NoiseSpec.
    """

    KIND = Kind.ROUND_SPEC
    SENDER = "coordinator"
    epoch: Hash
    slot: U32
    purpose: Line
    model: Hash
    vectors: Annotated[tuple[VectorSpec, ...], Many(Nested(VectorSpec), size=1, most=MAX_VECTORS)]
    noise: NoiseSpec


@lru_cache(maxsize=8)
def spec_hash(signed_spec: bytes) -> bytes:
    """Returns the 32-byte hash of a spec's body; the signature stays out, for it is not unique by nature.

    Remembered, like a manifest's, because an aggregator compares every message with it.
    """
    return digest("spec", split_signed(signed_spec)[0])


def context_of(spec: RoundSpec, signed_spec: bytes) -> RoundContext:
    """Returns what binds keys to this slot."""
    return RoundContext(spec.epoch, spec_hash(signed_spec), spec.slot)


@dataclass(frozen=True, slots=True)
class Header(Signed):
    """Node to all, signed: what the node uploaded for one slot, by hashes."""

    KIND = Kind.HEADER
    context: RoundContext
    node: U16
    payload: Hash
    seed_commitment: Hash
    sealed: Hash


def header_hash(signed_header: bytes) -> bytes:
    """Returns the 32-byte hash of a header's body, by which a manifest lists it."""
    return digest("header", split_signed(signed_header)[0])


@dataclass(frozen=True, slots=True)
class MaskedVector(Sent):
    """Node to the aggregator: header, sealed seed shares (61 bytes for each ready neighbour), masked entries."""

    KIND = Kind.MASKED_VECTOR
    header: Bytes
    sealed: SealedShares
    payload: Bytes


@dataclass(frozen=True, slots=True)
class Manifest(Signed):
    """Coordinator to nodes, signed: the survivors of a slot, each with the hash of its header.

    A node that is not listed has dropped out; the format has no way to list it as both.
    """

    KIND = Kind.MANIFEST
    SENDER = "coordinator"
    context: RoundContext
    purpose: Line
    survivors: Nodes
    headers: Hashes

    def check(self) -> None:
        _require_one_each(self.survivors, self.headers)


@lru_cache(maxsize=8)
def manifest_hash(signed_manifest: bytes) -> bytes:
    """Returns the 32-byte hash of a manifest's body."""
    return digest("manifest", split_signed(signed_manifest)[0])


@dataclass(frozen=True, slots=True)
class UnmaskRequest(Sent):
    """Coordinator to one survivor: the manifest, and of itself and each surviving neighbour the signed header, in
    increasing order; then the seed shares that the surviving neighbours sealed for it, in the same order.
    """

    KIND = Kind.UNMASK_REQUEST
    SENDER = "coordinator"
    manifest: Bytes
    headers: Blobs
    sealed: SealedShares


@dataclass(frozen=True, slots=True)
class Echo(Signed):
    """Node to all, signed: "this is the manifest I saw"."""

    KIND = Kind.ECHO
    node: U16
    manifest: Hash


@dataclass(frozen=True, slots=True)
class EchoCertificate(Sent):
    """Coordinator to survivors: who echoed the manifest, with the signatures."""

    KIND = Kind.ECHO_CERTIFICATE
    SENDER = "coordinator"
    manifest: Hash
    nodes: Nodes
    signatures: Annotated[tuple[bytes, ...], Many(Fixed(SIGNATURE_BYTES))]

    def check(self) -> None:
        _require_one_each(self.nodes, self.signatures)


@dataclass(frozen=True, slots=True)
class Answer(Signed):
    """Node to the aggregator, signed: for itself and each ready neighbour, in increasing order, one share or none.

    `kinds` says which: of a survivor's self-mask seed, or of a dropped node's slot key, never both; or withheld.
    """

    KIND = Kind.ANSWER
    node: U16
    manifest: Hash
    kinds: Annotated[tuple[int, ...], Many(Unsigned(1, most=SLOT_KEY_SHARE))]
    shares: Annotated[tuple[bytes, ...], Many(Fixed(SHARE_BYTES))]

    def __repr__(self) -> str:
        return f"Answer(node={self.node}, kinds={self.kinds})"

    def check(self) -> None:
        if len(self.shares) != len(self.kinds) - self.kinds.count(WITHHELD):
            fail("Shares are more or fewer than it says.")


def sealed_share_context(context: RoundContext, sender: int, holder: int, payload: bytes, commitment: bytes) -> bytes:
    """Returns what the seed share that `sender` sealed for `holder` is bound to beyond its key, 32 bytes.

    Args:
        payload: hash of the masked vectors, as in the sender's header.
        commitment: to the sender's seed, as in its header: so a share that opens shows that the header is the sender's.
    """
    numbers = sender.to_bytes(2, "big") + holder.to_bytes(2, "big")
    return digest("sealed-seed-share", context.to_bytes(), numbers, payload, commitment)


def sealed_hash(sealed: Sequence[bytes]) -> bytes:
    """Returns the 32-byte hash of a message's sealed shares, in order."""
    return digest("sealed", *sealed)
