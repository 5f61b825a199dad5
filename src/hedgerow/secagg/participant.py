# SPDX-License-Identifier: Apache-2.0
"""The node's side of the aggregations of one epoch.

For each purpose the node masks a vector, then answers one manifest. It persists "slot used" before its masked vector
leaves, and "purpose answered" before its shares leave; a resend is byte for byte what was sent before. Nothing is
answered on trust: the node recomputes and compares everything that the coordinator says. It refuses any difference with
a code of the transition table.

Stored states are opened only by the newest key. A database keeps replaced pages for a while, in its log and among its
free pages. So every state is stored under a key of its own. Each key follows from the one before by a one-way function,
and the caller keeps only the last, in a place that it overwrites.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from hedgerow.codec import U16, U32, U64, BlobByNode, Blobs, Bytes, Hash, Line, Maybe, Member, Nested, Nodes, digest
from hedgerow.codec import Record as Fields
from hedgerow.crypto import SHARE_BYTES, Entropy, Identity, PrimitiveFault, keystream, parse_share, seal, unseal, verify
from hedgerow.secagg.keys import RoundContext, SlotChain, name_account, seed_share_key, state_key
from hedgerow.secagg.masks import Integers, MaskingKeys, check_vectors, encode_vectors, mask_upload
from hedgerow.secagg.messages import (
    NO_ACCOUNT,
    SEED_SHARE,
    SLOT_KEY_SHARE,
    WITHHELD,
    Answer,
    Echo,
    EchoCertificate,
    Header,
    Kind,
    Manifest,
    NodePolicy,
    NoiseSpec,
    Roster,
    RoundSpec,
    StoredState,
    UnmaskRequest,
    VectorSpec,
    bind_context,
    check_signature,
    derive_share_context,
    header_hash,
    manifest_hash,
    read_state,
)
from hedgerow.secagg.transitions import (
    Code,
    Complaints,
    Event,
    Party,
    Refusal,
    State,
    Step,
    StepRecord,
    advance,
    drop_traceback,
    refuse,
)
from hedgerow.secagg.view import EpochView, site_key


@dataclass(frozen=True, slots=True)
class ExpectedRound:
    """The next round as the node computes it from its own copy of plan and model."""

    purpose: str
    model: bytes
    vectors: tuple[VectorSpec, ...]
    noise: NoiseSpec


def check_spec(spec: RoundSpec, expected: ExpectedRound, view: EpochView, policy: NodePolicy) -> None:
    """Raise Refusal: NOISE_MISMATCH, SPEC_UNACCEPTABLE, WIDTH_TOO_NARROW or PURPOSE_UNEXPECTED."""
    if spec.noise.mode is not view.noise or spec.noise != expected.noise:
        raise refuse(Code.NOISE_MISMATCH, peer="coordinator")
    check_vectors(spec.vectors, policy.max_length)
    if spec.purpose != expected.purpose or spec.model != expected.model or spec.vectors != expected.vectors:
        raise refuse(Code.PURPOSE_UNEXPECTED, peer="coordinator")


def check_manifest(
    manifest: Manifest, view: EpochView, node: int, context: RoundContext, purpose: str, own_header: bytes
) -> None:
    """Raise Refusal: OTHER_SPEC, UNKNOWN_NODE, TOO_FEW_SURVIVORS or SELF_OMITTED."""
    if manifest.context != context or manifest.purpose != purpose:
        raise refuse(Code.OTHER_SPEC, "The manifest's.", "coordinator")
    for survivor in manifest.survivors:
        if not view.is_ready(survivor):
            raise refuse(Code.UNKNOWN_NODE, peer=survivor)
    listed = dict(zip(manifest.survivors, manifest.headers, strict=True))
    if listed.get(node) != own_header:
        raise refuse(Code.SELF_OMITTED, peer="coordinator")
    n_listed, least = sum(other in listed for other in view.part_of(node)), view.by_node[node].min_survivors
    if n_listed < least:
        raise refuse(Code.TOO_FEW_SURVIVORS, f"{n_listed} of {least}.", "coordinator")


def check_headers(request: UnmaskRequest, manifest: Manifest, view: EpochView, node: int) -> dict[int, Header]:
    """Return the headers of this node and its surviving neighbours, each as the manifest lists it.

    A sealed share that opens proves whose header it is; if it does not open, the header's signature is checked.

    Raises:
        Refusal: HEADER_ALTERED, OTHER_SPEC, MALFORMED.
    """
    listed = dict(zip(manifest.survivors, manifest.headers, strict=True))
    wanted = [peer for peer in sorted((*view.peers(node), node)) if peer in listed]
    if len(request.headers) != len(wanted) or len(request.sealed) != len(wanted) - 1:
        raise refuse(Code.MALFORMED, "Headers or shares are missing.", "coordinator")
    headers: dict[int, Header] = {}
    for peer, signed in zip(wanted, request.headers, strict=True):
        if header_hash(signed) != listed[peer]:
            raise refuse(Code.HEADER_ALTERED, peer=peer)
        header = Header.from_signed(signed)
        if header.node != peer:
            raise refuse(Code.HEADER_ALTERED, "It is another node's.", peer)
        if header.context != manifest.context:
            raise refuse(Code.OTHER_SPEC, "A header's.", peer)
        headers[peer] = header
    return headers


def open_seed_share(channel: bytes, header: Header, holder: int, sealed: bytes) -> bytes:
    """Open the 33-byte share of the self-mask seed that a header commits to.

    The share is sealed under a key that only the two nodes have, bound to the header's slot, payload and commitment.
    That it opens proves that the neighbour made the header, as its signature would, for a tenth of the time.

    Raises Refusal SHARE_UNREADABLE.

    Args:
        channel: secret from `slot_channel` between the header's node and `holder`.
        header: from `check_headers`.
    """
    context, sender = header.context, header.node
    bound = derive_share_context(context, sender, holder, header.payload, header.seed_commitment)
    try:
        share = unseal(seed_share_key(channel, sender, holder, context.slot), sealed, bound)
        parse_share(share)
    except PrimitiveFault as error:
        raise refuse(Code.SHARE_UNREADABLE, peer=sender) from error
    return share


@dataclass(frozen=True, slots=True)
class NodeContext:
    """A node's signing key, pinned roster, owner's policy and data set.

    `data_set` is the folded name of the data set that the node's vectors are charged to; empty if nothing is charged.
    """

    identity: Identity
    roster: Roster
    policy: NodePolicy
    data_set: str = ""

    def account(self, epoch: bytes) -> bytes:
        """Return the account that a header of this node names in an epoch."""
        return name_account(self.identity, self.data_set, epoch) if self.data_set else NO_ACCOUNT


@dataclass(frozen=True, slots=True, repr=False)
class OpenSlot(Fields):
    """The slot a node is in: what it sent, and what it may send again.

    `digest` is the hash of the only manifest that is answered in this slot, empty before there is one; `manifest` is
    that manifest as the coordinator signed it.
    """

    context: RoundContext
    purpose: Line
    header_hash: Hash
    own_share: Bytes
    upload: Bytes
    digest: Bytes = b""
    manifest: Bytes = b""
    echo: Bytes = b""
    answer: Bytes = b""

    def __repr__(self) -> str:
        return f"OpenSlot(slot={self.context.slot}, purpose={self.purpose!r})"


@dataclass(frozen=True, slots=True, repr=False)
class ParticipantEpoch(StoredState):
    """Stored by a node once for an epoch, its SHA-256 after it.

    Attributes:
        view: a StoredView.
        node: this one's number.
        channels: secrets by the peer with which they are shared.
        holders: the nodes whose slot keys' shares are held.
        first: the slot of the first row.
        rows: for each slot the held shares, in the order of `holders`, encrypted under a key of that slot.
    """

    KIND = Kind.PARTICIPANT_EPOCH
    view: Bytes
    node: U16
    channels: BlobByNode
    holders: Nodes
    first: U32
    rows: Blobs


@dataclass(frozen=True, slots=True, repr=False)
class ParticipantStep(StoredState):
    """Stored by a node before every message, its SHA-256 after it.

    Attributes:
        epoch: digest of the epoch's view.
        state: where the node stands.
        sequence: counts the states that the node has stored.
        link, slot: the chain of slot secrets, and the slot at which it is.
        shares_from: the slot of the first share in `held`.
        held: the shares of past slots for which the coordinator may still ask.
        n_purposes: how many purposes were answered; they are stored one by one.
        evidence: two manifests that a coordinator signed for one slot.
        open: the slot that the node is in.
    """

    KIND = Kind.PARTICIPANT_STEP
    epoch: Hash
    state: Annotated[State, Member(State)]
    sequence: U64
    link: Hash
    slot: U32
    shares_from: U32
    held: Bytes
    n_purposes: U32
    evidence: Blobs
    open: Annotated[OpenSlot | None, Maybe(Nested(OpenSlot))]


@dataclass(frozen=True, slots=True, repr=False)
class Participant:
    """A node in a ready epoch; immutable.

    `chain` starts at the first unused slot and `shares` (33 bytes a slot and neighbour, from slot `shares_from` on)
    are cut as slots close, so that a stolen state cannot rebuild the keys of past slots. `purposes` have been answered.
    """

    view: EpochView
    node: int
    state: State
    sequence: int
    chain: SlotChain
    channels: Mapping[int, bytes] = field(repr=False)
    shares: Mapping[int, bytes] = field(repr=False)
    shares_from: int = 0
    purposes: frozenset[str] = frozenset()
    open: OpenSlot | None = None
    evidence: tuple[bytes, ...] = ()

    def __repr__(self) -> str:
        return f"Participant(node={self.node}, state={self.state.value}, sequence={self.sequence})"

    def mask(
        self,
        context: NodeContext,
        signed_spec: bytes,
        expected: ExpectedRound,
        vectors: Mapping[str, Integers],
        entropy: Entropy,
        noise: Mapping[str, Integers] | None = None,
        vote: int = 0,
    ) -> Step[Participant]:
        """Answer a spec: return the step that sends this node's masked vectors for one slot.

        Raises Refusal (peer's fault) or OwnMistake VECTOR_UNFIT. Then nothing is sent and no slot is used.

        Args:
            expected: what this node's own training state expects.
            vectors: int64 arrays by vector id, entries within the entry bound.
            noise: this node's noise shares, required where noise is distributed and only there.
            vote: what the header says of the model so far.
        """
        self._require_running(context)
        check_signature(self.view.roster.coordinator, Kind.ROUND_SPEC, signed_spec, "coordinator")
        spec = RoundSpec.from_signed(signed_spec)
        round_context = bind_context(spec, signed_spec)
        if self.open is not None and round_context == self.open.context and self.state is State.VECTOR_MASKED:
            advance(Party.NODE, self.state, Event.SAME_SPEC)
            return Step(self, self.open.upload)
        state = advance(Party.NODE, self.state, Event.ROUND_SPEC)
        self._require_fresh(spec)
        check_spec(spec, expected, self.view, context.policy)
        words = encode_vectors(spec, vectors, noise)
        own = self.chain.after(spec.slot).current()
        account = context.account(round_context.epoch)
        keys = MaskingKeys(self.view, self.node, own, self.channels, round_context, account, vote)
        upload, header, own_share = mask_upload(keys, spec, words, context.identity, entropy)
        opened = OpenSlot(round_context, spec.purpose, header, own_share, upload)
        following = self._after_step(state, self.chain.after(spec.slot + 1), spec.slot, self.purposes, opened)
        return Step(
            following,
            upload,
            (StepRecord("slot-used", following.sequence, spec.slot, spec.purpose, round_context.spec),),
        )

    def unmask(self, context: NodeContext, request: bytes) -> Step[Participant]:
        """Answer a manifest: return the step that sends the shares, or first an echo if the epoch wants one.

        A second, different manifest of the coordinator stops the node: the step sends nothing and its complaint is
        SECOND_MANIFEST. Sealed shares that do not open are withheld and reported as complaints. Raises Refusal.
        """
        self._require_running(context)
        asked = UnmaskRequest.from_bytes(request)
        check_signature(self.view.roster.coordinator, Kind.MANIFEST, asked.manifest, "coordinator")
        manifest = Manifest.from_signed(asked.manifest)
        if manifest.context.epoch != self.view.digest:
            raise refuse(Code.OTHER_EPOCH, peer="coordinator")
        if self.open is None or manifest.context.slot != self.open.context.slot:
            raise refuse(Code.OUT_OF_ORDER, "The manifest is for a slot that is not open.", "coordinator")
        digest = manifest_hash(asked.manifest)
        if self.open.digest:
            return self._repeat_or_stop(asked.manifest, digest)
        wants_echo = self.view.guarantees.has_echo
        state = advance(
            Party.NODE,
            self.state,
            Event.MANIFEST,
            State.MANIFEST_ECHOED if wants_echo else State.SHARES_ANSWERED,
        )
        check_manifest(manifest, self.view, self.node, self.open.context, self.open.purpose, self.open.header_hash)
        headers = check_headers(asked, manifest, self.view, self.node)
        answer, complaints = self._answer(headers, asked, digest)
        signed_answer = answer.to_signed(context.identity)
        echo = Echo(self.node, digest).to_signed(context.identity) if wants_echo else b""
        slot, purpose = self.open.context.slot, self.open.purpose
        # The upload can be dropped: the node is in the manifest, so the coordinator has it.
        answered = OpenSlot(
            self.open.context, purpose, self.open.header_hash, b"", b"", digest, asked.manifest, echo, signed_answer
        )
        following = self._after_step(state, self.chain, slot + 1, self.purposes | {purpose}, answered)
        record = StepRecord("purpose-answered", following.sequence, slot, purpose, digest)
        return Step(following, echo or signed_answer, (record,), tuple(complaints))

    def confirm(self, certificate: bytes) -> Step[Participant]:
        """Answer an echo certificate: return the step that sends the shares, if a quorum signed the manifest.

        The step has no record: the answer has been in the store since the echo left. A node that comes back at its
        echo asks for a certificate again. Raises Refusal.
        """
        self._require_running(None)
        state = advance(Party.NODE, self.state, Event.ECHO_CERTIFICATE)
        certified = EchoCertificate.from_bytes(certificate)
        if self.open is None or certified.manifest != self.open.digest:
            raise refuse(Code.OTHER_MANIFEST, peer="coordinator")
        committee, n_echoes = self.view.graph.committee[self.node], 0
        for node, signature in zip(certified.nodes, certified.signatures, strict=True):
            if not self.view.is_ready(node):
                raise refuse(Code.UNKNOWN_NODE, peer=node)
            if node not in committee:
                continue
            try:
                verify(
                    site_key(self.view.roster, node), Kind.ECHO.name.encode(),
                    Echo(node, certified.manifest).to_bytes(), signature,
                )  # fmt: skip
            except PrimitiveFault as error:
                raise refuse(Code.BAD_SIGNATURE, "In an ECHO.", node) from error
            n_echoes += 1
        quorum = self.view.by_node[self.node].quorum
        if n_echoes < quorum:
            raise refuse(Code.TOO_FEW_ECHOES, f"{n_echoes} of {quorum}.")
        return Step(replace(self, state=state), self.open.answer)

    def epoch_bytes(self) -> bytes:
        """Return the bytes to store once for the epoch: everything that does not change, secrets included.

        The held shares of each slot are encrypted under a key that follows from the chain's link of that slot. The link
        of a later slot, which is all that `step_bytes` keeps, cannot decrypt them.
        """
        first = max(self.chain.slot, self.shares_from)
        slots = zip(range(first, self.view.parameters.n_slots), storage_keys(self.chain.after(first)), strict=False)
        rows = tuple(apply_cipher(key, self._read_shares(slot)) for slot, key in slots)
        holders = tuple(sorted(self.shares))
        return ParticipantEpoch(self.view.to_bytes(), self.node, self.channels, holders, first, rows).to_bytes()

    def step_bytes(self) -> bytes:
        """Return the bytes to store before each message: everything that a step changes, secrets included.

        They are few, and only count the purposes answered: the caller stores those one by one.
        """
        # The chain is already past the open slot, but the coordinator may still ask for that slot's shares.
        held = b"".join(self._read_shares(slot) for slot in range(self.shares_from, self.chain.slot))
        return ParticipantStep(
            self.view.digest, self.state, self.sequence, self.chain.link, self.chain.slot, self.shares_from, held,
            len(self.purposes), self.evidence, self.open,
        ).to_bytes()  # fmt: skip

    @classmethod
    def restore_parts(cls, epoch: bytes, step: bytes, purposes: Collection[str], sequence: int) -> Participant:
        """Restore the state that was written last.

        Raises OwnMistake CORRUPT_STATE or ROLLED_BACK; the node must then enrol in a new epoch.

        Args:
            epoch, step: from `epoch_bytes` and `step_bytes`.
            purposes: purposes that were answered.
            sequence: that of the last record written. It is kept apart from `step`, so that it does not fit a restored
                backup.
        """
        kept, last = read_state(ParticipantEpoch, epoch), read_state(ParticipantStep, step)
        try:
            view = EpochView.from_bytes(kept.view, kept.node)
        except (Refusal, KeyError) as error:
            raise refuse(Code.CORRUPT_STATE) from error
        if last.sequence != sequence:
            raise refuse(Code.ROLLED_BACK, f"It is step {last.sequence}, the journal says {sequence}.")
        if last.epoch != view.digest or last.n_purposes != len(purposes) or last.slot < kept.first:
            raise refuse(Code.CORRUPT_STATE)
        chain = SlotChain(last.link, last.slot)
        readable = zip(storage_keys(chain), kept.rows[chain.slot - kept.first :], strict=False)
        by_slot = last.held + b"".join(apply_cipher(key, row) for key, row in readable)
        shares = runs_by_node(kept.holders, by_slot)
        return cls(
            view, kept.node, last.state, sequence, chain, kept.channels, shares, last.shares_from,
            frozenset(purposes), last.open, last.evidence,
        )  # fmt: skip

    def _require_running(self, context: NodeContext | None) -> None:
        if self.state is State.STOPPED:
            raise refuse(Code.STOPPED)
        if context is not None and context.roster != self.view.roster:
            # The owner may have pinned another roster since: a site that was taken off it is not trusted any more.
            raise refuse(Code.ROSTER_MISMATCH)

    def _require_fresh(self, spec: RoundSpec) -> None:
        if spec.epoch != self.view.digest:
            raise refuse(Code.OTHER_EPOCH, peer="coordinator")
        if spec.slot < self.chain.slot:
            raise refuse(Code.SLOT_REUSED, f"Slot {spec.slot}; the next is {self.chain.slot}.", "coordinator")
        if spec.slot >= self.view.parameters.n_slots:
            raise refuse(Code.SLOT_OUT_OF_RANGE, f"Slot {spec.slot} of {self.view.parameters.n_slots}.", "coordinator")
        if spec.purpose in self.purposes:
            raise refuse(Code.PURPOSE_ANSWERED, peer="coordinator")

    def _repeat_or_stop(self, signed_manifest: bytes, digest: bytes) -> Step[Participant]:
        opened = self.open
        if opened is not None and digest == opened.digest:
            state = advance(Party.NODE, self.state, Event.SAME_MANIFEST)
            return Step(self, opened.echo if state is State.MANIFEST_ECHOED else opened.answer)
        state = advance(Party.NODE, self.state, Event.OTHER_MANIFEST)
        first = b"" if opened is None else opened.manifest
        following = replace(self, state=state, sequence=self.sequence + 1, evidence=(first, signed_manifest))
        record = StepRecord("stopped", following.sequence, digest=digest)
        return Step(following, None, (record,), (refuse(Code.SECOND_MANIFEST, peer="coordinator"),))

    def _answer(self, headers: Mapping[int, Header], asked: UnmaskRequest, digest: bytes) -> tuple[Answer, Complaints]:
        """Build the answer to a checked manifest, and the complaints about shares that do not open.

        Raises Refusal BAD_SIGNATURE.
        """
        opened = self.open
        if opened is None:
            raise refuse(Code.OUT_OF_ORDER)
        peers = self.view.peers(self.node)
        sealed_by = dict(zip((peer for peer in peers if peer in headers), asked.sealed, strict=True))
        signed = dict(zip(headers, asked.headers, strict=True))
        start = SHARE_BYTES * (opened.context.slot - self.shares_from)
        kinds, shares = [], []
        complaints: Complaints = []
        for node in sorted((*peers, self.node)):
            if node == self.node:
                kind, share = SEED_SHARE, opened.own_share
            elif node not in headers:
                kind, share = SLOT_KEY_SHARE, self.shares[node][start : start + SHARE_BYTES]
            else:
                try:
                    share = open_seed_share(self.channels[node], headers[node], self.node, sealed_by[node])
                    kind = SEED_SHARE
                except Refusal as complaint:
                    # If the signature fails, the header is not the neighbour's and the node must not answer at all.
                    check_signature(site_key(self.view.roster, node), Kind.HEADER, signed[node], node)
                    complaints.append(drop_traceback(complaint))
                    kinds.append(WITHHELD)
                    continue
            kinds.append(kind)
            shares.append(share)
        return Answer(self.node, digest, tuple(kinds), tuple(shares)), complaints

    def _after_step(
        self, state: State, chain: SlotChain, first: int, purposes: frozenset[str], opened: OpenSlot
    ) -> Participant:
        """Return the next state, with the held shares from slot `first` on."""
        cut = SHARE_BYTES * (first - self.shares_from)
        held = {node: run[cut:] for node, run in self.shares.items()} if cut else self.shares
        sequence = self.sequence + 1
        return Participant(
            self.view, self.node, state, sequence, chain, self.channels, held, first, purposes, opened, self.evidence
        )

    def _read_shares(self, slot: int) -> bytes:
        """Return the held shares of one slot, ordered by the node whose secret they belong to."""
        at = SHARE_BYTES * (slot - self.shares_from)
        return b"".join(self.shares[node][at : at + SHARE_BYTES] for node in sorted(self.shares))


def storage_keys(chain: SlotChain) -> Iterator[bytes]:
    """Yield the storage keys of the chain's slot and of all later slots."""
    while True:
        yield chain.storage_key()
        chain = chain.after(chain.slot + 1)


def apply_cipher(key: bytes, row: bytes) -> bytes:
    """Encrypt or decrypt a row with the key stream of `key`, which is used for this row only."""
    stream = keystream(key, len(row))
    return (int.from_bytes(row, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(row), "big")


def runs_by_node(nodes: tuple[int, ...], by_slot: bytes) -> dict[int, bytes]:
    """Regroup shares from one row per slot (a share of every node) to one byte string per node."""
    row = SHARE_BYTES * len(nodes)
    return {
        node: b"".join(by_slot[at : at + SHARE_BYTES] for at in range(SHARE_BYTES * place, len(by_slot), row))
        for place, node in enumerate(nodes)
    }


def encrypt_state(key: bytes, state: bytes, run_id: bytes, sequence: int, entropy: Entropy) -> bytes:
    """Encrypt a state under the 32-byte key of its step, bound to its run and sequence."""
    return seal(state_key(key), state, _context(run_id, sequence), entropy)


def decrypt_state(key: bytes, data: bytes, run_id: bytes, sequence: int) -> bytes:
    """Decrypt a state from `encrypt_state`.

    Raises OwnMistake CORRUPT_STATE for another key, run or sequence.
    """
    try:
        return unseal(state_key(key), data, _context(run_id, sequence))
    except PrimitiveFault as error:
        raise refuse(Code.CORRUPT_STATE) from error


def _context(run_id: bytes, sequence: int) -> bytes:
    return digest("state", run_id, sequence.to_bytes(8, "big"))
