# SPDX-License-Identifier: Apache-2.0
"""Every message of the protocol, in the order in which they travel.

First come the parties and how messages are signed and refused. Node numbers count from 0 in the roster's order; all
numbers are big-endian; at set-up nothing is encrypted except the `sealed` shares. A signed message is its body followed
by a 64-byte Ed25519 signature of the named signer.

A slot is one use of one-slot keys: it sums one or more integer vectors for one purpose. The coordinator signs the
spec and the manifest, each node its header, echo and answer. Single masked vectors look uniformly random to the
coordinator; only their aggregate can be opened. The shares in an answer are in clear, because revealing them is the
answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, ClassVar, Self, TypeVar

from hedgerow import codec, crypto
from hedgerow.secagg.guarantees import MAX_NODES, Guarantees, Wishes, derive
from hedgerow.secagg.keys import RoundContext
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
    AGGREGATOR_STATE = 54
    PARTICIPANT_EPOCH = 55
    PARTICIPANT_STEP = 56
    ADVERTISEMENT = 57
    NONCE_DELIVERY = 58
    EPOCH_VIEW = 59


_CODES = {
    codec.Flaw.MALFORMED: Code.MALFORMED,
    codec.Flaw.UNKNOWN_VERSION: Code.UNKNOWN_VERSION,
    codec.Flaw.DISORDERED: Code.REPEATED_NODE,
}


class Sent(codec.Encoded):
    """A message. Parsing other bytes raises Refusal MALFORMED, UNKNOWN_VERSION or REPEATED_NODE."""

    __slots__ = ()
    SENDER: ClassVar[str | None] = None
    """The party that a refusal names, if it is always the same."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse the message in `data`; raise Refusal."""
        try:
            return super().from_bytes(data)
        except codec.CodecFault as fault:
            raise refuse(_CODES[fault.flaw], fault.what, cls.SENDER) from None


class Signed(Sent):
    """A message that travels with the signature of its sender after it, 64 bytes."""

    __slots__ = ()

    def to_signed(self, identity: crypto.Identity) -> bytes:
        """Return the message with its signature appended."""
        body = self.to_bytes()
        return body + identity.sign(_domain(self.KIND), body)

    @classmethod
    def from_signed(cls, data: bytes) -> Self:
        """Parse the message without checking its signature; raise Refusal."""
        return cls.from_bytes(split_signed(data, cls.SENDER)[0])


def split_signed(data: bytes, peer: int | str | None = None) -> tuple[bytes, bytes]:
    """Split a signed message into body and signature; raise Refusal MALFORMED if it is too short."""
    if len(data) <= crypto.SIGNATURE_BYTES:
        raise refuse(Code.MALFORMED, "It is shorter than a signature.", peer)
    return data[: -crypto.SIGNATURE_BYTES], data[-crypto.SIGNATURE_BYTES :]


def check_signature(public: bytes, kind: Kind, data: bytes, peer: int | str | None) -> None:
    """Raise Refusal BAD_SIGNATURE unless the signed message `data` of `kind` verifies under `public`."""
    body, signature = split_signed(data, peer)
    try:
        crypto.verify(public, _domain(kind), body, signature)
    except crypto.PrimitiveFault as error:
        raise refuse(Code.BAD_SIGNATURE, f"In a {kind.name}.", peer) from error


def _domain(kind: int | None) -> bytes:
    """Return the domain of a signature: the name of the message's kind."""
    return Kind(kind or 0).name.encode()


class StoredState(codec.Encoded):
    """A party's state, with its SHA-256 after it: a torn or damaged file is a CodecFault."""

    __slots__ = ()

    def to_bytes(self) -> bytes:
        """Return the bytes to store, with their hash appended."""
        return codec.with_hash(super().to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the state that was stored; raise CodecFault."""
        return super().from_bytes(codec.without_hash(data))


Stored = TypeVar("Stored", bound=StoredState)


def read_state(kind: type[Stored], data: bytes) -> Stored:
    """Read the state that was stored; raise OwnMistake CORRUPT_STATE."""
    try:
        return kind.from_bytes(data)
    except (codec.CodecFault, Refusal) as error:
        raise refuse(Code.CORRUPT_STATE) from error


MAX_SLOTS = 4096


class NoiseMode(IntEnum):
    """Who adds the noise: the aggregator after unmasking, each node before masking, or each record.

    With local noise a node's vector is noisy before it comes here; there are no shares, and no party adds anything.
    """

    SERVER = 1
    DISTRIBUTED = 2
    LOCAL = 3


@dataclass(frozen=True, slots=True)
class Site(codec.Record):
    """One organisation of the roster, the Ed25519 key (32 bytes) of its node, and the most rows it has; 0: not said."""

    name: codec.Line
    key: codec.Hash
    max_rows: Annotated[int, codec.Unsigned(8, most=codec.MAX_ROWS)] = 0


@dataclass(frozen=True, slots=True)
class Roster(Sent):
    """The sites, in the order that numbers their nodes from 0, and the coordinator's key.

    Raises Refusal ROSTER_MISMATCH for repeated names or keys, keys of small order, or too many sites.
    """

    KIND = Kind.ROSTER
    coordinator: codec.Hash
    sites: Annotated[tuple[Site, ...], codec.Many(codec.Nested(Site), least=1, most=MAX_NODES)]

    def __post_init__(self) -> None:
        keys = [self.coordinator, *(site.key for site in self.sites)]
        names = [site.name for site in self.sites]
        if not all(0 <= site.max_rows <= codec.MAX_ROWS for site in self.sites):
            raise refuse(Code.ROSTER_MISMATCH, "A site's largest number of rows is out of range.")
        if not 1 <= len(names) <= MAX_NODES or len(set(names)) != len(names) or len(set(keys)) != len(keys):
            raise refuse(Code.ROSTER_MISMATCH, "Names and keys must be distinct, and sites 1 to 4096.")
        try:
            for key in keys:
                crypto.require_public(key)
        except crypto.PrimitiveFault as error:
            raise refuse(Code.ROSTER_MISMATCH, error.what) from error

    def __hash__(self) -> int:
        # The roster is a key of caches. Hashing the names of a thousand sites each time would be slow.
        return hash((self.coordinator, len(self.sites)))

    def find_max_rows(self, name: str) -> int:
        """Return the most rows that the site of this name has; 0 if the roster does not say."""
        return next((site.max_rows for site in self.sites if site.name == name), 0)

    def hash(self) -> bytes:
        """Return the 32-byte hash that bundles and parameters carry."""
        return codec.digest("roster", self.to_bytes())

    def find_node(self, key: bytes) -> int:
        """Return the number of the node with this identity key; raise Refusal UNKNOWN_NODE if there is none."""
        for node, site in enumerate(self.sites):
            if site.key == key:
                return node
        raise refuse(Code.UNKNOWN_NODE, "This node's own key is not in the roster.")


@dataclass(frozen=True, slots=True)
class EpochParameters(Sent):
    """What the coordinator proposes for one epoch; every node checks it against its own policy.

    Attributes:
        run_id: 32 bytes, the plan's hash or a nonce.
        attempt: 1..16, counts the set-ups of one run.
        roster_hash: 32 bytes.
        n_slots: aggregations (retries included) the epoch can hold (1..4096).
        wishes: thresholds and graph.
        noise: who adds it.
        drawing: 32 bytes by which sites are dealt to groups, none for groups of the roster alone.
    """

    KIND = Kind.PARAMETERS
    SENDER = "coordinator"
    run_id: codec.Hash
    attempt: Annotated[int, codec.Unsigned(1, least=1)]
    roster_hash: codec.Hash
    n_slots: Annotated[int, codec.Unsigned(2, least=1, most=MAX_SLOTS)]
    wishes: Wishes
    noise: Annotated[NoiseMode, codec.Member(NoiseMode)]
    drawing: Annotated[bytes, codec.Blob(most=codec.HASH_BYTES)] = b""

    def hash(self) -> bytes:
        """Return the 32-byte hash that every set-up message carries."""
        return _hash_parameters(self)


@lru_cache(maxsize=16)
def _hash_parameters(parameters: EpochParameters) -> bytes:
    """Return the hash of the parameters.

    It is cached, because a set-up asks for it once for every pair of nodes.
    """
    return codec.digest("parameters", parameters.to_bytes())


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """The conditions that a node's owner sets, whatever the coordinator proposes.

    Attributes:
        min_cohort: least nodes in the epoch.
        min_colluders: least colluders to be withstood.
        min_honest_survivors: least survivors beyond the colluders (3, or 2 where every node adds its own noise).
        min_honest_group: least honest vectors guaranteed in any sum.
        requires_echo: no epoch without the echo exchange.
        refuses_server_noise: no epoch in which the coordinator adds the noise.
        max_slots, max_length: what the node is willing to hold (slots, entries).
    """

    min_cohort: int = 3
    min_colluders: int = 0
    min_honest_survivors: int = 3
    min_honest_group: int = 2
    requires_echo: bool = False
    refuses_server_noise: bool = False
    max_slots: int = 1024
    max_length: int = 1 << 22

    def require(self, parameters: EpochParameters, n_nodes: int) -> Guarantees:
        """Return the guarantees for `n_nodes` members.

        Raises Refusal COHORT_TOO_SMALL or PARAMETERS_REFUSED.
        """
        if n_nodes < self.min_cohort:
            raise refuse(Code.COHORT_TOO_SMALL, f"{n_nodes} nodes, of {self.min_cohort} required.")
        guarantees = derive(n_nodes, parameters.wishes)
        is_distributed = parameters.noise is NoiseMode.DISTRIBUTED
        least = min(self.min_honest_survivors, 2) if is_distributed else self.min_honest_survivors
        unmet = {
            "slots": parameters.n_slots > self.max_slots,
            "colluders": guarantees.n_colluders < self.min_colluders,
            "honest survivors": guarantees.min_survivors - guarantees.n_colluders < least,
            "honest group": guarantees.honest_group < self.min_honest_group,
            "echo": self.requires_echo and not guarantees.has_echo,
            "noise": self.refuses_server_noise and parameters.noise is NoiseMode.SERVER,
        }
        if any(unmet.values()):
            raise refuse(Code.PARAMETERS_REFUSED, "Unmet: " + ", ".join(name for name, bad in unmet.items() if bad))
        return guarantees


MAX_VECTORS = 64
SEALED_SHARE_BYTES = crypto.SHARE_BYTES + crypto.OVERHEAD_BYTES
WITHHELD, SEED_SHARE, SLOT_KEY_SHARE = 0, 1, 2
Hashes = Annotated[tuple[bytes, ...], codec.Many(codec.Fixed(codec.HASH_BYTES))]
SealedShares = Annotated[tuple[bytes, ...], codec.Many(codec.Fixed(SEALED_SHARE_BYTES))]


def _require_one_each(nodes: Sequence[int], values: Sequence[bytes]) -> None:
    if len(nodes) != len(values):
        codec.fail("Nodes, and what is said of them, differ in number.")


@dataclass(frozen=True, slots=True)
class KeyBundle(Signed):
    """Node to all, signed: its public keys for the epoch, those of the slots by their hash; a nonce's commitment."""

    KIND = Kind.KEY_BUNDLE
    parameters: codec.Hash
    node: codec.U16
    nonce_commitment: codec.Hash
    channel_key: codec.Hash
    slot_keys_hash: codec.Hash


def hash_slot_keys(slot_keys: bytes) -> bytes:
    """Return the 32-byte hash by which a bundle signs its node's slot keys (concatenated)."""
    return codec.digest("slot-keys", slot_keys)


@dataclass(frozen=True, slots=True)
class Advertisement(Sent):
    """Node to the coordinator: its signed key bundle for all, and its slot keys, which go to its neighbours only."""

    KIND = Kind.ADVERTISEMENT
    bundle: codec.Bytes
    slot_keys: codec.Bytes


@dataclass(frozen=True, slots=True)
class NonceReveal(Signed):
    """Node to all, signed: the nonce, and the hash of the key list it saw."""

    KIND = Kind.NONCE
    parameters: codec.Hash
    node: codec.U16
    key_list: codec.Hash
    nonce: codec.Hash


@dataclass(frozen=True, slots=True)
class SignedList(Sent):
    """Coordinator: KeyBundles to all, or NonceReveals in a NonceDelivery; each signed, in the order of their nodes."""

    SENDER = "coordinator"
    kind: Annotated[Kind, codec.Member(Kind)]
    parameters: codec.Hash
    messages: codec.Blobs

    def check(self) -> None:
        if self.kind not in (Kind.KEY_LIST, Kind.NONCE_LIST):
            codec.fail("It is not a list of signed messages.")


def build_signed_list(kind: Kind, parameters: bytes, messages: Sequence[bytes]) -> bytes:
    """Build the coordinator's list (KEY_LIST or NONCE_LIST) of signed messages, ordered by node."""
    return SignedList(kind, parameters, tuple(messages)).to_bytes()


def read_signed_list(kind: Kind, data: bytes, parameters: bytes) -> tuple[bytes, ...]:
    """Return the signed messages of a list.

    Raises Refusal MALFORMED, or DIFFERENT_VIEW for other parameters.
    """
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
    nonce_list: codec.Bytes
    slot_keys: codec.Blobs


@dataclass(frozen=True, slots=True)
class ShareMessage(Signed):
    """Node to the coordinator, signed: one sealed item for each holder, in increasing order.

    An item is the run of slot-key shares, 33 bytes each, and behind it four signed Headers of its holder, 268 bytes
    each, the last of four earlier runs that the node kept, or zeros: see `hedgerow.client.budget`.
    """

    KIND = Kind.SHARES
    view: codec.Hash
    node: codec.U16
    holders: codec.Nodes
    sealed: codec.Blobs

    def check(self) -> None:
        _require_one_each(self.holders, self.sealed)


@dataclass(frozen=True, slots=True)
class ShareDelivery(Sent):
    """Coordinator to one holder: the sealed shares that its neighbours sent it, in increasing order of sender."""

    KIND = Kind.SHARE_DELIVERY
    SENDER = "coordinator"
    view: codec.Hash
    senders: codec.Nodes
    sealed: codec.Blobs

    def check(self) -> None:
        _require_one_each(self.senders, self.sealed)


@dataclass(frozen=True, slots=True)
class Acknowledgement(Signed):
    """Node to all, signed: whose shares the node holds, for the view of the set-up that it saw."""

    KIND = Kind.ACKNOWLEDGEMENT
    view: codec.Hash
    node: codec.U16
    held: codec.Nodes


@dataclass(frozen=True, slots=True)
class ReadyList(Sent):
    """Coordinator to all: the acknowledgements of the ready nodes, in the order of their numbers."""

    KIND = Kind.READY_LIST
    SENDER = "coordinator"
    view: codec.Hash
    acknowledgements: codec.Blobs


def view_hash(parameters: bytes, key_list: bytes, nonce_list: bytes) -> bytes:
    """Return the 32-byte hash of all that the nodes agreed on before they share keys."""
    return codec.digest("view", parameters, key_list, nonce_list)


@dataclass(frozen=True, slots=True)
class VectorSpec(codec.Record):
    """One vector of a slot.

    Attributes:
        vector_id: distinct within the slot.
        length: entries (>= 1).
        width: bits of an entry, 32 or 64.
        entry_bound: bound on the absolute value of an entry of one node's vector, before its share of noise.
        sum_bound: bound on the absolute value of an entry of what is released, the noise's tail included, wherever the
            noise is added.
    """

    vector_id: codec.Line
    length: codec.U32
    width: codec.U8
    entry_bound: codec.U64
    sum_bound: codec.U64


@dataclass(frozen=True, slots=True)
class NoiseSpec(codec.Record):
    """The discrete Gaussian noise of a slot: who adds it, and the total variance (grid units squared, 0 for none)."""

    mode: Annotated[NoiseMode, codec.Member(NoiseMode)]
    variance: Annotated[Fraction, codec.Ratio(16)] = Fraction(0)


@dataclass(frozen=True, slots=True)
class RoundSpec(Signed):
    """Coordinator to nodes, signed: what a slot is for.

    Attributes:
        epoch: digest of the epoch's view.
        slot: its number in the epoch.
        purpose: what the sum is for, at most one release each.
        model: 32-byte digest of the model so far.
        vectors: 1 to 64 of them.
        noise: see NoiseSpec.
    """

    KIND = Kind.ROUND_SPEC
    SENDER = "coordinator"
    epoch: codec.Hash
    slot: codec.U32
    purpose: codec.Line
    model: codec.Hash
    vectors: Annotated[tuple[VectorSpec, ...], codec.Many(codec.Nested(VectorSpec), size=1, most=MAX_VECTORS)]
    noise: NoiseSpec


@lru_cache(maxsize=8)
def spec_hash(signed_spec: bytes) -> bytes:
    """Return the 32-byte hash of a spec's body.

    The signature stays out, because one body can have several valid ones. The hash is cached, because an aggregator
    compares every message with it.
    """
    return codec.digest("spec", split_signed(signed_spec)[0])


def bind_context(spec: RoundSpec, signed_spec: bytes) -> RoundContext:
    """Return the context to which all keys of this slot are bound."""
    return RoundContext(spec.epoch, spec_hash(signed_spec), spec.slot)


NO_ACCOUNT = bytes(codec.HASH_BYTES)


@dataclass(frozen=True, slots=True)
class Header(Signed):
    """Node to all, signed: what the node uploaded for one slot, by hashes.

    `account` names, for this node alone, the data set that the slot is charged to (`name_account`); zeros for none.
    `vote` is what the node says of the model so far (`hedgerow.protocol.votes`), 0 in rounds without votes.
    """

    KIND = Kind.HEADER
    context: RoundContext
    node: codec.U16
    payload: codec.Hash
    seed_commitment: codec.Hash
    sealed: codec.Hash
    account: codec.Hash = NO_ACCOUNT
    vote: Annotated[int, codec.Unsigned(1, most=2)] = 0


_NO_HASH = bytes(codec.HASH_BYTES)
_NO_HEADER = Header(RoundContext(_NO_HASH, _NO_HASH, 0), 0, _NO_HASH, _NO_HASH, _NO_HASH)
SIGNED_HEADER_BYTES = len(_NO_HEADER.to_bytes()) + crypto.SIGNATURE_BYTES
MAX_HANDED_BACK = 4
"""Most headers of one site that a neighbour hands back: the last one of each run."""
HANDED_BACK_BYTES = MAX_HANDED_BACK * SIGNED_HEADER_BYTES
_WITHOUT_ACCOUNT = 5
"""Last wire version whose headers have no account; neighbours still keep some of them."""


def read_kept_header(data: bytes, key: bytes) -> Header | None:
    """Read a header that a neighbour has kept; return None unless the site of this key signed it.

    Args:
        data: the signed header, of this wire version or of the one without accounts; zeros behind it are ignored.
    """
    is_old = data[3:4] == bytes((_WITHOUT_ACCOUNT,))
    added = NO_ACCOUNT + bytes(1)
    length = SIGNED_HEADER_BYTES - len(added) * is_old
    signed, rest = data[:length], data[length:]
    if any(rest):
        return None
    try:
        # The signature covers the bytes as they were sent, in either version.
        check_signature(key, Kind.HEADER, signed, None)
        body, _ = split_signed(signed)
        return Header.from_bytes(_NO_HEADER.to_bytes()[:4] + body[4:] + added if is_old else body)
    except Refusal:
        return None


def header_hash(signed_header: bytes) -> bytes:
    """Return the 32-byte hash of a header's body, by which a manifest lists the header."""
    return codec.digest("header", split_signed(signed_header)[0])


@dataclass(frozen=True, slots=True)
class MaskedVector(Sent):
    """Node to the aggregator: header, sealed seed shares (61 bytes for each ready neighbour), masked entries."""

    KIND = Kind.MASKED_VECTOR
    header: codec.Bytes
    sealed: SealedShares
    payload: codec.Bytes


@dataclass(frozen=True, slots=True)
class Manifest(Signed):
    """Coordinator to nodes, signed: the survivors of a slot, each with the hash of its header.

    A node that is not listed has dropped out; the format has no way to list it as both.
    """

    KIND = Kind.MANIFEST
    SENDER = "coordinator"
    context: RoundContext
    purpose: codec.Line
    survivors: codec.Nodes
    headers: Hashes

    def check(self) -> None:
        _require_one_each(self.survivors, self.headers)


@lru_cache(maxsize=8)
def manifest_hash(signed_manifest: bytes) -> bytes:
    """Return the 32-byte hash of a manifest's body."""
    return codec.digest("manifest", split_signed(signed_manifest)[0])


@dataclass(frozen=True, slots=True)
class UnmaskRequest(Sent):
    """Coordinator to one survivor: the manifest, and what the survivor needs to answer it.

    First come the signed headers of itself and of each surviving neighbour, in increasing order; then the seed shares
    that the surviving neighbours sealed for it, in the same order.
    """

    KIND = Kind.UNMASK_REQUEST
    SENDER = "coordinator"
    manifest: codec.Bytes
    headers: codec.Blobs
    sealed: SealedShares


@dataclass(frozen=True, slots=True)
class Echo(Signed):
    """Node to all, signed: "this is the manifest I saw"."""

    KIND = Kind.ECHO
    node: codec.U16
    manifest: codec.Hash


@dataclass(frozen=True, slots=True)
class EchoCertificate(Sent):
    """Coordinator to survivors: who echoed the manifest, with the signatures."""

    KIND = Kind.ECHO_CERTIFICATE
    SENDER = "coordinator"
    manifest: codec.Hash
    nodes: codec.Nodes
    signatures: Annotated[tuple[bytes, ...], codec.Many(codec.Fixed(crypto.SIGNATURE_BYTES))]

    def check(self) -> None:
        _require_one_each(self.nodes, self.signatures)


@dataclass(frozen=True, slots=True)
class Answer(Signed):
    """Node to the aggregator, signed: for itself and each ready neighbour, in increasing order, one share or none.

    `kinds` says which: of a survivor's self-mask seed, or of a dropped node's slot key, never both; or withheld.
    """

    KIND = Kind.ANSWER
    node: codec.U16
    manifest: codec.Hash
    kinds: Annotated[tuple[int, ...], codec.Many(codec.Unsigned(1, most=SLOT_KEY_SHARE))]
    shares: Annotated[tuple[bytes, ...], codec.Many(codec.Fixed(crypto.SHARE_BYTES))]

    def __repr__(self) -> str:
        return f"Answer(node={self.node}, kinds={self.kinds})"

    def check(self) -> None:
        if len(self.shares) != len(self.kinds) - self.kinds.count(WITHHELD):
            codec.fail("Shares are more or fewer than it says.")


def derive_share_context(context: RoundContext, sender: int, holder: int, payload: bytes, commitment: bytes) -> bytes:
    """Return the 32 bytes to which the seed share that `sender` sealed for `holder` is bound.

    Args:
        payload: hash of the masked vectors, as in the sender's header.
        commitment: to the sender's seed, as in its header. A share that opens therefore proves that the header is the
            sender's.
    """
    numbers = sender.to_bytes(2, "big") + holder.to_bytes(2, "big")
    return codec.digest("sealed-seed-share", context.to_bytes(), numbers, payload, commitment)


def hash_sealed(sealed: Sequence[bytes]) -> bytes:
    """Return the 32-byte hash of a message's sealed shares, in order."""
    return codec.digest("sealed", *sealed)
