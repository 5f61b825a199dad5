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

from hedgerow.secagg._primitives.aead import OVERHEAD_BYTES
from hedgerow.secagg._primitives.agreement import KEY_BYTES
from hedgerow.secagg._primitives.faults import PrimitiveFault
from hedgerow.secagg._primitives.identity import SIGNATURE_BYTES, Identity, verify
from hedgerow.secagg._primitives.shamir import SHARE_BYTES
from hedgerow.secagg.encoding import HASH_BYTES, Kind, Reader, Writer, digest
from hedgerow.secagg.keys import CONTEXT_BYTES, RoundContext
from hedgerow.secagg.roster import NoiseMode
from hedgerow.secagg.transitions import Code, refuse


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
    """Node to all, signed: its public keys for the epoch, those of the slots by their hash; a nonce's commitment."""

    parameters: bytes
    node: int
    nonce_commitment: bytes
    channel_key: bytes
    slot_keys_hash: bytes

    def to_signed(self, identity: Identity) -> bytes:
        """Returns the signed message (199 bytes)."""
        writer = Writer(Kind.KEY_BUNDLE).fixed(self.parameters, HASH_BYTES).number(self.node, 2)
        writer.fixed(self.nonce_commitment, HASH_BYTES).fixed(self.channel_key, KEY_BYTES)
        return sign(identity, Kind.KEY_BUNDLE, writer.fixed(self.slot_keys_hash, HASH_BYTES).bytes())

    @classmethod
    def from_signed(cls, data: bytes) -> KeyBundle:
        """Returns the bundle without checking its signature; raises Refusal MALFORMED."""
        reader = Reader(split_signed(data)[0], Kind.KEY_BUNDLE)
        parameters, node = reader.fixed(HASH_BYTES), reader.number(2)
        commitment, channel = reader.fixed(HASH_BYTES), reader.fixed(KEY_BYTES)
        bundle = cls(parameters, node, commitment, channel, reader.fixed(HASH_BYTES))
        reader.end()
        return bundle


def hash_of_slot_keys(slot_keys: bytes) -> bytes:
    """Returns the 32-byte hash by which a bundle signs its node's slot keys, given one after another."""
    return digest("slot-keys", slot_keys)


@dataclass(frozen=True, slots=True)
class Advertisement:
    """Node to the coordinator: its signed key bundle for all, and its slot keys, which go to its neighbours only."""

    bundle: bytes
    slot_keys: bytes

    def to_bytes(self) -> bytes:
        """Returns the message."""
        return Writer(Kind.ADVERTISEMENT).variable(self.bundle).variable(self.slot_keys).bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Advertisement:
        """Returns the message; raises Refusal MALFORMED."""
        reader = Reader(data, Kind.ADVERTISEMENT)
        advertisement = cls(reader.variable(), reader.variable())
        reader.end()
        return advertisement


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
class NonceDelivery:
    """Coordinator to one node: the list of nonces, and the slot keys of its neighbours in the graph that they draw.

    The neighbours' runs of keys come in increasing order of their numbers, which follow from the nonces.
    """

    nonce_list: bytes
    slot_keys: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """Returns the message."""
        return Writer(Kind.NONCE_DELIVERY).variable(self.nonce_list).items(self.slot_keys).bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> NonceDelivery:
        """Returns the delivery; raises Refusal MALFORMED."""
        reader = Reader(data, Kind.NONCE_DELIVERY, "coordinator")
        delivery = cls(reader.variable(), reader.items())
        reader.end()
        return delivery


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


MAX_VECTORS = 64
SEALED_SHARE_BYTES = SHARE_BYTES + OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class VectorSpec:
    """One vector of a slot.

    Args: vector_id: distinct within the slot; length: entries (>= 1); width: bits of an entry, 32 or 64; entry_bound:
        bound on |entry| of one node's vector, before its share of noise; sum_bound: bound on |entry| of what is
        released, the noise's tail included, wherever the noise is added.
    """

    vector_id: str
    length: int
    width: int
    entry_bound: int
    sum_bound: int


@dataclass(frozen=True, slots=True)
class NoiseSpec:
    """The discrete Gaussian noise of a slot: who adds it, and the total variance (grid units squared, 0 for none)."""

    mode: NoiseMode
    variance: Fraction = Fraction(0)


@dataclass(frozen=True, slots=True)
class RoundSpec:
    """Coordinator to nodes, signed: what slot `slot` is for.

    Args: epoch: digest of the epoch's view; purpose: what the sum is for, at most one release each; model: 32-byte
        digest of the model so far; vectors: 1..64; noise: see NoiseSpec.
    """

    epoch: bytes
    slot: int
    purpose: str
    model: bytes
    vectors: tuple[VectorSpec, ...]
    noise: NoiseSpec

    def to_signed(self, coordinator: Identity) -> bytes:
        """Returns the signed message."""
        writer = Writer(Kind.ROUND_SPEC).fixed(self.epoch, HASH_BYTES).number(self.slot, 4).text(self.purpose)
        writer.fixed(self.model, HASH_BYTES).number(self.noise.mode, 1)
        writer.number(self.noise.variance.numerator, 16).number(self.noise.variance.denominator, 16)
        writer.number(len(self.vectors), 1)
        for vector in self.vectors:
            writer.text(vector.vector_id).number(vector.length, 4).number(vector.width, 1)
            writer.number(vector.entry_bound, 8).number(vector.sum_bound, 8)
        return sign(coordinator, Kind.ROUND_SPEC, writer.bytes())

    @classmethod
    def from_signed(cls, data: bytes) -> RoundSpec:
        """Returns the spec without checking its signature; raises Refusal MALFORMED."""
        reader = Reader(split_signed(data, "coordinator")[0], Kind.ROUND_SPEC, "coordinator")
        epoch, slot, purpose = reader.fixed(HASH_BYTES), reader.number(4), reader.text()
        model, mode = reader.fixed(HASH_BYTES), NoiseMode(reader.number(1, least=1, most=3))
        numerator, denominator = reader.number(16), reader.number(16, least=1)
        variance = Fraction(numerator, denominator)
        if variance.denominator != denominator:
            raise refuse(Code.MALFORMED, "A fraction is not in lowest terms.", "coordinator")
        vectors = tuple(
            VectorSpec(reader.text(), reader.number(4), reader.number(1), reader.number(8), reader.number(8))
            for _ in range(reader.number(1, most=MAX_VECTORS))
        )
        reader.end()
        return cls(epoch, slot, purpose, model, vectors, NoiseSpec(mode, variance))


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
class Header:
    """Node to all, signed: what the node uploaded for one slot, by hashes."""

    context: RoundContext
    node: int
    payload: bytes
    seed_commitment: bytes
    sealed: bytes

    def to_signed(self, identity: Identity) -> bytes:
        """Returns the signed message (237 bytes)."""
        writer = Writer(Kind.HEADER).fixed(self.context.to_bytes(), CONTEXT_BYTES).number(self.node, 2)
        for part in (self.payload, self.seed_commitment, self.sealed):
            writer.fixed(part, HASH_BYTES)
        return sign(identity, Kind.HEADER, writer.bytes())

    @classmethod
    def from_signed(cls, data: bytes) -> Header:
        """Returns the header without checking its signature; raises Refusal MALFORMED."""
        reader = Reader(split_signed(data)[0], Kind.HEADER)
        context, node = RoundContext.from_bytes(reader.fixed(CONTEXT_BYTES)), reader.number(2)
        header = cls(context, node, *reader.run(3, HASH_BYTES))
        reader.end()
        return header


def header_hash(signed_header: bytes) -> bytes:
    """Returns the 32-byte hash of a header's body, by which a manifest lists it."""
    return digest("header", split_signed(signed_header)[0])


@dataclass(frozen=True, slots=True)
class MaskedVector:
    """Node to the aggregator: header, sealed seed shares (61 bytes for each ready neighbour), masked entries."""

    header: bytes
    sealed: tuple[bytes, ...]
    payload: bytes

    def to_bytes(self) -> bytes:
        """Returns the message."""
        writer = Writer(Kind.MASKED_VECTOR).variable(self.header).number(len(self.sealed), 2)
        return writer.run(self.sealed, SEALED_SHARE_BYTES).variable(self.payload).bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> MaskedVector:
        """Returns the message; raises Refusal MALFORMED."""
        reader = Reader(data, Kind.MASKED_VECTOR)
        header, sealed = reader.variable(), reader.run(reader.number(2), SEALED_SHARE_BYTES)
        message = cls(header, sealed, reader.variable())
        reader.end()
        return message


@dataclass(frozen=True, slots=True)
class Manifest:
    """Coordinator to nodes, signed: the survivors of a slot, each with the hash of its header.

    A node that is not listed has dropped out; the format has no way to list it as both.
    """

    context: RoundContext
    purpose: str
    survivors: tuple[int, ...]
    headers: tuple[bytes, ...]

    def to_signed(self, coordinator: Identity) -> bytes:
        """Returns the signed message."""
        writer = Writer(Kind.MANIFEST).fixed(self.context.to_bytes(), CONTEXT_BYTES)
        writer.text(self.purpose).nodes(self.survivors)
        return sign(coordinator, Kind.MANIFEST, writer.run(self.headers, HASH_BYTES).bytes())

    @classmethod
    def from_signed(cls, data: bytes) -> Manifest:
        """Returns the manifest without checking its signature; raises Refusal MALFORMED or REPEATED_NODE."""
        reader = Reader(split_signed(data, "coordinator")[0], Kind.MANIFEST, "coordinator")
        context = RoundContext.from_bytes(reader.fixed(CONTEXT_BYTES))
        purpose, survivors = reader.text(), reader.nodes()
        manifest = cls(context, purpose, survivors, reader.run(len(survivors), HASH_BYTES))
        reader.end()
        return manifest


@lru_cache(maxsize=8)
def manifest_hash(signed_manifest: bytes) -> bytes:
    """Returns the 32-byte hash of a manifest's body."""
    return digest("manifest", split_signed(signed_manifest)[0])


@dataclass(frozen=True, slots=True)
class UnmaskRequest:
    """Coordinator to one survivor: the manifest, and of itself and each surviving neighbour the signed header, in
    increasing order; then the seed shares that the surviving neighbours sealed for it, in the same order.
    """

    manifest: bytes
    headers: tuple[bytes, ...]
    sealed: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """Returns the message."""
        writer = Writer(Kind.UNMASK_REQUEST).variable(self.manifest).items(self.headers)
        return writer.number(len(self.sealed), 2).run(self.sealed, SEALED_SHARE_BYTES).bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> UnmaskRequest:
        """Returns the request; raises Refusal MALFORMED."""
        reader = Reader(data, Kind.UNMASK_REQUEST, "coordinator")
        manifest, headers = reader.variable(), reader.items()
        request = cls(manifest, headers, reader.run(reader.number(2), SEALED_SHARE_BYTES))
        reader.end()
        return request


@dataclass(frozen=True, slots=True)
class Echo:
    """Node to all, signed: "this is the manifest I saw"."""

    node: int
    manifest: bytes

    def body(self) -> bytes:
        """Returns the bytes that are signed."""
        return Writer(Kind.ECHO).number(self.node, 2).fixed(self.manifest, HASH_BYTES).bytes()

    def to_signed(self, identity: Identity) -> bytes:
        """Returns the signed message."""
        return sign(identity, Kind.ECHO, self.body())

    @classmethod
    def from_signed(cls, data: bytes) -> Echo:
        """Returns the echo without checking its signature; raises Refusal MALFORMED."""
        reader = Reader(split_signed(data)[0], Kind.ECHO)
        echo = cls(reader.number(2), reader.fixed(HASH_BYTES))
        reader.end()
        return echo


@dataclass(frozen=True, slots=True)
class EchoCertificate:
    """Coordinator to survivors: who echoed the manifest, with the signatures."""

    manifest: bytes
    nodes: tuple[int, ...]
    signatures: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """Returns the message."""
        writer = Writer(Kind.ECHO_CERTIFICATE).fixed(self.manifest, HASH_BYTES).nodes(self.nodes)
        return writer.run(self.signatures, SIGNATURE_BYTES).bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> EchoCertificate:
        """Returns the certificate; raises Refusal MALFORMED or REPEATED_NODE."""
        reader = Reader(data, Kind.ECHO_CERTIFICATE, "coordinator")
        manifest, nodes = reader.fixed(HASH_BYTES), reader.nodes()
        certificate = cls(manifest, nodes, reader.run(len(nodes), SIGNATURE_BYTES))
        reader.end()
        return certificate


WITHHELD, SEED_SHARE, SLOT_KEY_SHARE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Answer:
    """Node to the aggregator, signed: for itself and each ready neighbour, in increasing order, one share or none.

    `kinds` says which: of a survivor's self-mask seed, or of a dropped node's slot key, never both; or withheld.
    """

    node: int
    manifest: bytes
    kinds: tuple[int, ...]
    shares: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"Answer(node={self.node}, kinds={self.kinds})"

    def to_signed(self, identity: Identity) -> bytes:
        """Returns the signed message."""
        writer = Writer(Kind.ANSWER).number(self.node, 2).fixed(self.manifest, HASH_BYTES)
        return sign(identity, Kind.ANSWER, writer.variable(bytes(self.kinds)).run(self.shares, SHARE_BYTES).bytes())

    @classmethod
    def from_signed(cls, data: bytes) -> Answer:
        """Returns the answer without checking its signature; raises Refusal MALFORMED."""
        reader = Reader(split_signed(data)[0], Kind.ANSWER)
        node, manifest, kinds = reader.number(2), reader.fixed(HASH_BYTES), tuple(reader.variable())
        if max(kinds, default=WITHHELD) > SLOT_KEY_SHARE:
            raise refuse(Code.MALFORMED, "An unknown kind of share.", node)
        shares = reader.run(len(kinds) - kinds.count(WITHHELD), SHARE_BYTES)
        reader.end()
        return cls(node, manifest, kinds, shares)


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
