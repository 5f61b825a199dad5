# SPDX-License-Identifier: Apache-2.0
"""The aggregator's side of one aggregation, from the masked vectors to the released sum.

It collects masked vectors, fixes the survivors, collects shares, unmasks and releases.

One object serves one slot and one purpose. It is immutable. Messages that cannot be used come back as complaints that
name the node. It signs one manifest only, and sends the same one to nodes that return.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Annotated

import numpy as np

from hedgerow.codec import BlobByNode, Blobs, Bytes, Member
from hedgerow.crypto import DTYPES, Identity, Words
from hedgerow.secagg.keys import RoundContext
from hedgerow.secagg.masks import OpenedSums, add_parts, check_vectors, list_sum_names, shares_in, unmask
from hedgerow.secagg.messages import (
    SEED_SHARE,
    SLOT_KEY_SHARE,
    WITHHELD,
    Answer,
    Echo,
    EchoCertificate,
    Header,
    Kind,
    Manifest,
    MaskedVector,
    RoundSpec,
    StoredState,
    UnmaskRequest,
    bind_context,
    check_signature,
    hash_sealed,
    header_hash,
    manifest_hash,
    read_state,
    split_signed,
)
from hedgerow.secagg.transitions import Code, Complaints, Event, Party, Refusal, State, advance, drop_traceback, refuse
from hedgerow.secagg.view import EpochView, filter_survivors, is_enough, site_key


@dataclass(frozen=True, slots=True, repr=False)
class AggregatorState(StoredState):
    """Stored by the coordinator in a round, its SHA-256 after it.

    Attributes:
        state: where the slot stands.
        signed_spec: the slot's RoundSpec, as it was signed.
        uploads: MaskedVectors, in the order of their nodes; without entries once they are summed.
        manifest: as it was signed; empty as long as vectors come.
        totals: the masked sums, group by group, in each group in the order of the spec's vectors.
        echoes: signatures.
        answers: as they were signed.
    """

    KIND = Kind.AGGREGATOR_STATE
    state: Annotated[State, Member(State)]
    signed_spec: Bytes
    uploads: Blobs
    manifest: Bytes
    totals: Blobs
    echoes: BlobByNode
    answers: BlobByNode


@dataclass(frozen=True, slots=True, repr=False)
class Aggregator:
    """The aggregator in one slot. `uploads`, `echoes` and `answers` map nodes to what they sent.

    `headers` (of the uploads) and `shares` (of the answers) are parsed on arrival, not at the end when all parties
    wait. `totals` are the masked sums of the uploads. They are computed when the collection closes; the entries of
    single uploads are dropped then.
    """

    view: EpochView
    spec: RoundSpec
    signed_spec: bytes
    state: State = State.COLLECTING_VECTORS
    uploads: dict[int, MaskedVector] = field(default_factory=dict)
    manifest: bytes = b""
    echoes: dict[int, bytes] = field(default_factory=dict)
    answers: dict[int, bytes] = field(default_factory=dict)
    headers: dict[int, Header] = field(default_factory=dict, compare=False)
    shares: dict[int, dict[int, int | None]] = field(default_factory=dict, compare=False)
    totals: Mapping[str, Words] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        counts = f"uploads={len(self.uploads)}, echoes={len(self.echoes)}, answers={len(self.answers)}"
        return f"Aggregator(slot={self.spec.slot}, purpose={self.spec.purpose!r}, state={self.state.value}, {counts})"

    @classmethod
    def open(cls, view: EpochView, coordinator: Identity, spec: RoundSpec) -> Aggregator:
        """Open a new slot; its `signed_spec` goes to all ready nodes. Raise Refusal."""
        check_vectors(spec.vectors, 1 << 32)
        return cls(view, spec, spec.to_signed(coordinator))

    @property
    def context(self) -> RoundContext:
        """The epoch, spec and slot to which this slot's keys are bound."""
        return bind_context(self.spec, self.signed_spec)

    def receive(self, messages: Iterable[bytes]) -> tuple[Aggregator, Complaints]:
        """Return the state with every acceptable message, and the refusals of the other messages."""
        following = replace(
            self,
            uploads=dict(self.uploads),
            echoes=dict(self.echoes),
            answers=dict(self.answers),
            headers=dict(self.headers),
            shares=dict(self.shares),
        )
        complaints = Complaints()
        for message in messages:
            try:
                if message[4:5] == bytes((Kind.MASKED_VECTOR,)):
                    following._take_upload(message)
                elif message[4:5] == bytes((Kind.ECHO,)):
                    following._take_echo(message)
                else:
                    following._take_answer(message)
            except Refusal as complaint:
                complaints.append(drop_traceback(complaint))
        return following, complaints

    def openers(self, among: Collection[int]) -> tuple[int, ...]:
        """Return the survivors to ask for shares: as few as open the sum, in the order of their uploads.

        Each node of a complete graph holds a share of every secret, so any threshold of them open the sum. All are
        asked if there is an echo, a sparse graph (each secret has holders of its own) or groups. If one of the fewest
        does not answer, or an answer does not fit, ask the others as well: the manifest is the same.
        """
        there = tuple(node for node in self.uploads if node in among)
        guarantees = self.view.guarantees
        is_asked_of_all = guarantees.has_echo or guarantees.is_sparse or len(self.view.parts) > 1
        return there if is_asked_of_all else there[: guarantees.threshold]

    def close_vectors(
        self, coordinator: Identity, holders: Collection[int] | None = None
    ) -> tuple[Aggregator, dict[int, bytes]]:
        """Sign the manifest; return the next state and the requests to survivors (among `holders`).

        A group with too few uploads sits the round out: its vectors are in no manifest, and never opened.

        Raises SumAbandoned TOO_FEW_UPLOADS (the slot is burned).
        """
        guarantees = self.view.guarantees
        survivors = filter_survivors(self.view, self.uploads)
        if self.state is State.COLLECTING_VECTORS and not is_enough(self.view, self.uploads):
            raise refuse(Code.TOO_FEW_UPLOADS, f"{len(self.uploads)} of {guarantees.min_survivors}.")
        kept = {node: self.uploads[node] for node in self.uploads if node in survivors}
        event = Event.CLOSE_FOR_ECHO if guarantees.has_echo else Event.CLOSE
        state = advance(Party.AGGREGATOR, self.state, event)
        hashes = tuple(header_hash(self.uploads[node].header) for node in survivors)
        manifest = Manifest(self.context, self.spec.purpose, survivors, hashes).to_signed(coordinator)
        following = replace(
            self,
            state=state,
            manifest=manifest,
            uploads={node: MaskedVector(upload.header, upload.sealed, b"") for node, upload in kept.items()},
            headers={node: header for node, header in self.headers.items() if node in kept},
            totals=add_parts(self.view, self.spec, kept),
        )
        return following, following.requests(holders)

    def requests(self, holders: Collection[int] | None = None) -> dict[int, bytes]:
        """Return the requests to survivors (those among `holders`, or all).

        A node's request is the same bytes every time.
        """
        view = self.view
        boxes = {node: dict(zip(view.peers(node), self.uploads[node].sealed, strict=True)) for node in self.uploads}
        requests = {}
        for holder in self.uploads if holders is None else [node for node in self.uploads if node in holders]:
            near = [peer for peer in view.peers(holder) if peer in self.uploads]
            headers = tuple(self.uploads[node].header for node in sorted((*near, holder)))
            sealed = tuple(boxes[peer][holder] for peer in near)
            requests[holder] = UnmaskRequest(self.manifest, headers, sealed).to_bytes()
        return requests

    def _count_echoes(self, part: Sequence[int]) -> int:
        return len(self.view.graph.committee[part[0]] & self.echoes.keys())

    def certificate(self) -> bytes:
        """Return the echo certificate for all survivors.

        For each sum it holds as many echoes as the quorum asks for.
        """
        kept = dict[int, bytes]()
        for part in self.view.parts:
            if not self.uploads.keys().isdisjoint(part):
                echoed = sorted(self.view.graph.committee[part[0]] & self.echoes.keys())
                kept |= {node: self.echoes[node] for node in echoed[: self.view.by_node[part[0]].quorum]}
        nodes = tuple(sorted(kept))
        return EchoCertificate(manifest_hash(self.manifest), nodes, tuple(kept[node] for node in nodes)).to_bytes()

    def close_echoes(self, *, is_last: bool = False) -> tuple[Aggregator, bytes]:
        """Return the next state and the echo certificate; raise SumAbandoned TOO_FEW_ANSWERS.

        Args:
            is_last: whether the caller waits for no more echoes; then more than half of the groups are enough.
        """
        parts = [part for part in self.view.parts if not self.uploads.keys().isdisjoint(part)]
        lacking = [part for part in parts if self._count_echoes(part) < self.view.by_node[part[0]].quorum]
        left = {node for part in parts if part not in lacking for node in part}
        # A group with too few echoes sits the round out: its nodes would refuse to answer, so they are not asked.
        if self.state is State.COLLECTING_ECHOES and lacking and not (is_last and is_enough(self.view, left)):
            quorum = self.view.by_node[lacking[0][0]].quorum
            raise refuse(Code.TOO_FEW_ANSWERS, f"{self._count_echoes(lacking[0])} echoes of {quorum}.")
        state = advance(Party.AGGREGATOR, self.state, Event.CLOSE)
        kept = {node: upload for node, upload in self.uploads.items() if node in left}
        headers = {node: header for node, header in self.headers.items() if node in kept}
        totals = {name: self.totals[name] for name in list_sum_names(self.view, self.spec, kept)}
        following = replace(self, state=state, uploads=kept, headers=headers, totals=totals)
        return following, following.certificate()

    def release(self, *, is_last: bool = False) -> tuple[Aggregator, OpenedSums]:
        """Return the final state and the exact sums over the survivors.

        The caller adds the noise if it is central. With `is_last` a group whose sum cannot be opened sits the round
        out, if more than half of the groups can be opened. `masks.require_within` checks the bounds later.

        Raises:
            SumAbandoned: TOO_FEW_ANSWERS (this state may receive more and try again), SECRET_UNRECOVERABLE.
        """
        state = advance(Party.AGGREGATOR, self.state, Event.RELEASE)
        return replace(self, state=state), unmask(
            self.view, self.spec, self.context, self.headers, self.totals, self.shares, is_last=is_last
        )

    def to_bytes(self) -> bytes:
        """Serialize the state for the coordinator's journal, so that the same manifest is sent after a crash.

        Once the vectors are closed it holds only their sums.
        """
        return AggregatorState(
            self.state,
            self.signed_spec,
            tuple(self.uploads[node].to_bytes() for node in sorted(self.uploads)),
            self.manifest,
            tuple(total.tobytes() for total in self.totals.values()),
            self.echoes,
            self.answers,
        ).to_bytes()

    @classmethod
    def restore(cls, view: EpochView, data: bytes) -> Aggregator:
        """Read the state stored as `data`; raise OwnMistake CORRUPT_STATE."""
        stored = read_state(AggregatorState, data)
        manifest, answers = stored.manifest, dict(stored.answers)
        try:
            uploads = [MaskedVector.from_bytes(message) for message in stored.uploads]
            parsed = [Header.from_signed(upload.header) for upload in uploads]
            spec = RoundSpec.from_signed(stored.signed_spec)
            names = list(list_sum_names(view, spec, [header.node for header in parsed]))
            sums = _sums_from(spec, names, stored.totals) if stored.totals or manifest else {}
            is_collecting = stored.state is State.COLLECTING_VECTORS
            if bool(manifest) == is_collecting and stored.state is not State.ABANDONED:
                raise ValueError("a manifest is there exactly when the collection of vectors is closed")
            shares = {
                node: shares_in(Answer.from_signed(message), _about(view, node)) for node, message in answers.items()
            }
        except (Refusal, ValueError, KeyError) as error:
            raise refuse(Code.CORRUPT_STATE) from error
        by_node = {header.node: upload for header, upload in zip(parsed, uploads, strict=True)}
        headers = {header.node: header for header in parsed}
        return cls(
            view, spec, stored.signed_spec, stored.state, by_node, manifest, dict(stored.echoes), answers, headers,
            shares, sums,
        )  # fmt: skip

    def abandon(self) -> Aggregator:
        """Return the state that has given up: nothing was released and the slot cannot be used again."""
        return replace(self, state=advance(Party.AGGREGATOR, self.state, Event.ABANDON))

    # These change the collections in place, of a state that `receive` has copied and not returned yet.

    def _take_upload(self, message: bytes) -> None:
        if self.state is not State.COLLECTING_VECTORS:
            raise refuse(Code.LATE_UPLOAD)
        advance(Party.AGGREGATOR, self.state, Event.VECTOR)
        upload = MaskedVector.from_bytes(message)
        header = Header.from_signed(upload.header)
        node = header.node
        if not self.view.is_ready(node):
            raise refuse(Code.UNKNOWN_NODE, peer=node)
        check_signature(site_key(self.view.roster, node), Kind.HEADER, upload.header, node)
        if header.context != self.context:
            raise refuse(Code.OTHER_SPEC, peer=node)
        length = sum(vector.length * vector.width // 8 for vector in self.spec.vectors)
        if (
            len(upload.payload) != length
            or sha256(upload.payload).digest() != header.payload
            or len(upload.sealed) != len(self.view.peers(node))
            or hash_sealed(upload.sealed) != header.sealed
        ):
            raise refuse(Code.CONTENT_MISMATCH, peer=node)
        if self.uploads.setdefault(node, upload) != upload:
            raise refuse(Code.CONTRADICTION, peer=node)
        self.headers[node] = header

    def _take_echo(self, message: bytes) -> None:
        advance(Party.AGGREGATOR, self.state, Event.ECHO)
        echo = Echo.from_signed(message)
        if echo.node not in self.uploads:
            raise refuse(Code.NOT_A_SURVIVOR, peer=echo.node)
        if echo.node not in self.view.graph.committee[echo.node]:
            return
        check_signature(site_key(self.view.roster, echo.node), Kind.ECHO, message, echo.node)
        if echo.manifest != manifest_hash(self.manifest):
            raise refuse(Code.OTHER_MANIFEST, peer=echo.node)
        self.echoes.setdefault(echo.node, split_signed(message)[1])

    def _take_answer(self, message: bytes) -> None:
        advance(Party.AGGREGATOR, self.state, Event.ANSWER)
        answer = Answer.from_signed(message)
        node = answer.node
        if node not in self.uploads:
            raise refuse(Code.NOT_A_SURVIVOR, peer=node)
        check_signature(site_key(self.view.roster, node), Kind.ANSWER, message, node)
        if answer.manifest != manifest_hash(self.manifest):
            raise refuse(Code.OTHER_MANIFEST, peer=node)
        about = _about(self.view, node)
        fitting = (
            kind in (WITHHELD, SEED_SHARE if other in self.uploads else SLOT_KEY_SHARE)
            for kind, other in zip(answer.kinds, about, strict=False)
        )
        if len(answer.kinds) != len(about) or not all(fitting):
            raise refuse(Code.CONTENT_MISMATCH, peer=node)
        if self.answers.setdefault(node, message) != message:
            raise refuse(Code.CONTRADICTION, peer=node)
        self.shares[node] = shares_in(answer, about)


def _about(view: EpochView, node: int) -> list[int]:
    """Return the nodes of an answer's shares: its ready neighbours and itself, in increasing order."""
    return sorted((*view.peers(node), node))


def _sums_from(spec: RoundSpec, names: Sequence[str], stored: Sequence[bytes]) -> dict[str, Words]:
    """Read the stored sums; raise ValueError if they do not fit the spec."""
    vectors = list(spec.vectors) * (len(names) // len(spec.vectors))
    sums = {
        name: np.frombuffer(content, DTYPES[vector.width])
        for name, vector, content in zip(names, vectors, stored, strict=True)
    }
    if any(len(sums[name]) != vector.length for name, vector in zip(names, vectors, strict=True)):
        raise ValueError("a sum is not as long as its vector")
    return sums
