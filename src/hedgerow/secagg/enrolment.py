# SPDX-License-Identifier: Apache-2.0
"""The set-up of an epoch: the node's side (`Enrolment`), then the coordinator's (`EpochSetup`).

A node advertises keys, reveals a nonce, shares its slot keys, acknowledges, and is ready. This is done once for up to
thousands of aggregations. Every step returns a `Step`: write its records and the state, then send.

The coordinator collects, lists and passes on, and can read no share. `receive` takes any number of messages, in any
order; it drops messages that cannot be used and returns them as complaints. Each `close_...` ends one collection and
returns the messages to send.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Annotated

from hedgerow.codec import HASH_BYTES, U16, U64, BlobByNode, Bytes, Hash, Member, digest
from hedgerow.crypto import (
    OVERHEAD_BYTES,
    SHARE_BYTES,
    Entropy,
    PrimitiveFault,
    SecretKey,
    parse_share,
    require_length,
    seal,
    split,
    unseal,
)
from hedgerow.secagg.guarantees import MAX_ATTEMPTS, derive, least_groups
from hedgerow.secagg.keys import (
    RoundContext,
    SlotChain,
    channel_secret,
    nonce_commitment,
    setup_share_key,
    slot_channel,
)
from hedgerow.secagg.messages import (
    HANDED_BACK_BYTES,
    MAX_HANDED_BACK,
    NO_ACCOUNT,
    SIGNED_HEADER_BYTES,
    Acknowledgement,
    Advertisement,
    EpochParameters,
    KeyBundle,
    Kind,
    NonceDelivery,
    NonceReveal,
    ReadyList,
    Roster,
    ShareDelivery,
    ShareMessage,
    StoredState,
    build_signed_list,
    check_signature,
    hash_slot_keys,
    read_kept_header,
    read_state,
)
from hedgerow.secagg.participant import NodeContext, Participant
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
from hedgerow.secagg.view import (
    Agreement,
    EpochView,
    agree,
    check_slot_keys,
    filter_survivors,
    most_beside,
    read_acknowledgement,
    read_key_list,
    read_nonce,
    site_key,
    size_beside,
    split_members,
    split_slot_keys,
)


@dataclass(frozen=True, slots=True, repr=False)
class Enrolment(StoredState):
    """Stored by a node in a set-up, its SHA-256 after it; it holds secrets and belongs in a private file.

    Attributes:
        state: where the set-up stands.
        sequence: counts the states that the node has stored.
        parameters: of the epoch.
        node: this node's number.
        link: secret of the chain of slot secrets, at slot 0.
        channel: the X25519 secret of the node's channels.
        nonce: the node's own, committed to in its key bundle.
        advertisement: as it was sent.
        key_list, nonce_list: as they came; empty before.
        held_shares: shares by the node whose slot keys they belong to.
        slot_keys: the neighbours' slot keys, concatenated for each neighbour.
        handed_back: slots of this node's own headers that neighbours gave back; not stored.
    """

    KIND = Kind.ENROLMENT_STATE
    state: Annotated[State, Member(State)]
    sequence: U64
    parameters: EpochParameters
    node: U16
    link: Hash
    channel: Hash
    nonce: Hash
    advertisement: Bytes
    key_list: Bytes = b""
    nonce_list: Bytes = b""
    held_shares: BlobByNode = field(default_factory=dict)
    slot_keys: BlobByNode = field(default_factory=dict)
    channels: Mapping[int, bytes] = field(default_factory=dict, compare=False)
    """Channel secrets computed so far; not stored, because they follow from the rest."""
    handed_back: tuple[RoundContext, ...] = field(default=(), compare=False)
    """Slots in which neighbours have seen vectors signed by this node; not stored, because the caller reads them at
    once.
    """

    def __repr__(self) -> str:
        return f"Enrolment(node={self.node}, state={self.state.value}, sequence={self.sequence})"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("An enrolment is not pickled: its secrets would be written in clear.")

    @classmethod
    def begin(cls, context: NodeContext, parameters: bytes, entropy: Entropy, last_attempt: int = 0) -> Step[Enrolment]:
        """Take the first step: draw the keys, and send the signed key bundle and the slot keys.

        Args:
            parameters: the coordinator's EpochParameters.
            last_attempt: the highest attempt of this run that the node recorded (as fact "enrolled"), 0 if none.

        Raises:
            Refusal: MALFORMED, ROSTER_MISMATCH, STALE_ATTEMPT, UNKNOWN_NODE, and the codes of the policy's `require`.
        """
        state = advance(Party.NODE, State.UNENROLLED, Event.PARAMETERS)
        proposed = EpochParameters.from_bytes(parameters)
        if proposed.roster_hash != context.roster.hash():
            raise refuse(Code.ROSTER_MISMATCH, peer="coordinator")
        if not last_attempt < proposed.attempt <= MAX_ATTEMPTS:
            raise refuse(Code.STALE_ATTEMPT, f"Attempt {proposed.attempt} after {last_attempt}.", "coordinator")
        node = context.roster.find_node(context.identity.public)
        context.policy.require(proposed, most_beside(context.roster, proposed, node))
        link, channel, nonce = entropy(32), entropy(32), entropy(HASH_BYTES)
        slot_keys = b"".join(SecretKey(secret).public for secret in SlotChain(link).secrets(proposed.n_slots))
        commitment = nonce_commitment(nonce, node, proposed.hash())
        bundle = KeyBundle(proposed.hash(), node, commitment, SecretKey(channel).public, hash_slot_keys(slot_keys))
        message = Advertisement(bundle.to_signed(context.identity), slot_keys).to_bytes()
        enrolment = cls(state, 1, proposed, node, link, channel, nonce, message)
        return Step(enrolment, message, (StepRecord("enrolled", 1, proposed.attempt, digest=proposed.hash()),))

    def reveal(self, context: NodeContext, key_list: bytes) -> Step[Enrolment]:
        """Answer the list of key bundles with this node's nonce; raise Refusal."""
        state = advance(Party.NODE, self.state, Event.KEY_LIST)
        bundles = read_key_list(key_list, self.parameters, context.roster)
        own = Advertisement.from_bytes(self.advertisement)
        if self.node not in bundles or bundles[self.node] != KeyBundle.from_signed(own.bundle):
            raise refuse(Code.OWN_BUNDLE_ALTERED, peer="coordinator")
        size = size_beside(context.roster, tuple(bundles), self.parameters, self.node)
        context.policy.require(self.parameters, size)
        reveal = NonceReveal(self.parameters.hash(), self.node, digest("key-list", key_list), self.nonce)
        return self._step(state, reveal.to_signed(context.identity), "nonce-revealed", key_list=key_list)

    def share(
        self,
        context: NodeContext,
        delivery: bytes,
        entropy: Entropy,
        kept: Mapping[bytes, Sequence[bytes]] | None = None,
    ) -> Step[Enrolment]:
        """Send every holder its sealed shares of all slot keys; raise Refusal.

        Args:
            delivery: the list of nonces, and the neighbours' slot keys.
            kept: signed headers that this node has kept, by the identity key of the site that they are handed back to.
        """
        state = advance(Party.NODE, self.state, Event.NONCE_LIST)
        delivered = NonceDelivery.from_bytes(delivery)
        agreed = self._check_agreement(context, delivered.nonce_list)
        bundles, view, holders = agreed.bundles, agreed.view, agreed.graph.neighbours[self.node]
        slot_keys = self._read_slot_keys(holders, bundles, delivered.slot_keys)
        runs = self._split_slot_keys((*holders, self.node), agreed.by_node[self.node].threshold, entropy)
        channels = self._channels_to(holders, bundles)
        headers = {holder: (kept or {}).get(site_key(context.roster, holder), ()) for holder in holders}
        sealed = tuple(
            seal(
                setup_share_key(channels[holder], self.node, holder),
                runs[holder] + _pad_headers(headers[holder]), view, entropy,
            )
            for holder in holders
        )  # fmt: skip
        message = ShareMessage(view, self.node, holders, sealed).to_signed(context.identity)
        held = {self.node: runs[self.node]}
        return self._step(
            state, message, "shares-sent", nonce_list=delivered.nonce_list, slot_keys=slot_keys, held_shares=held,
            channels=channels,
        )  # fmt: skip

    def acknowledge(self, context: NodeContext, delivery: bytes) -> Step[Enrolment]:
        """Acknowledge the shares that opened, and complain of the others; raise Refusal.

        The next state's `handed_back` lists the slots in which neighbours have seen vectors of this node that are
        charged to its data set, or to none that they name.
        """
        state = advance(Party.NODE, self.state, Event.SHARE_DELIVERY)
        delivered = ShareDelivery.from_bytes(delivery)
        agreed = self._check_agreement(context, self.nonce_list)
        view = agreed.view
        if delivered.view != view:
            raise refuse(Code.DIFFERENT_VIEW, "The shares are for another set-up.", "coordinator")
        channels = self._channels_to(agreed.graph.neighbours[self.node], agreed.bundles)
        held, complaints, handed_back = dict(self.held_shares), [], list[RoundContext]()
        for sender, sealed in zip(delivered.senders, delivered.sealed, strict=True):
            if sender not in channels:
                raise refuse(Code.UNKNOWN_NODE, "It is not a neighbour.", sender)
            try:
                held[sender], kept = self._open_run(sender, channels[sender], sealed, view)
                handed_back += _list_own(context, kept)
            except Refusal as complaint:
                complaints.append(drop_traceback(complaint))
        others = tuple(sorted(node for node in held if node != self.node))
        message = Acknowledgement(view, self.node, others).to_signed(context.identity)
        found = {"held_shares": held, "handed_back": tuple(handed_back)}
        step = self._step(state, message, "shares-acknowledged", **found)
        return replace(step, complaints=tuple(complaints))

    def finish(self, context: NodeContext, ready_list: bytes, answered: Collection[str] = ()) -> Step[Participant]:
        """Enter the ready epoch; send nothing.

        Args:
            answered: purposes of this run that the node answered in earlier epochs (facts "purpose-answered"). Without
                them, a coordinator could ask for a sum again, over other sites, by starting a new epoch.

        Raises:
            Refusal: NOT_READY, NOT_ACKNOWLEDGED, COHORT_TOO_SMALL, DIFFERENT_VIEW, ...
        """
        advance(Party.NODE, self.state, Event.READY_LIST)
        view = EpochView.from_messages(context.roster, self.parameters, self.key_list, self.nonce_list, ready_list)
        if not view.is_ready(self.node):
            raise refuse(Code.NOT_READY, peer="coordinator")
        peers = view.peers(self.node)
        view = view.with_slot_keys({peer: self.slot_keys[peer] for peer in peers})
        channels = {peer: slot_channel(secret) for peer, secret in self._channels_to(peers, view.bundles).items()}
        shares = {node: self.held_shares[node] for node in (*channels, self.node)}
        participant = Participant(
            view, self.node, State.READY, self.sequence + 1, SlotChain(self.link), channels, shares,
            purposes=frozenset(answered),
        )  # fmt: skip
        return Step(participant, None, (StepRecord("ready", self.sequence + 1, digest=view.digest),))

    @classmethod
    def latest(cls, data: bytes) -> Enrolment:
        """Read the state from a store that keeps only the newest one; raise OwnMistake."""
        return read_state(cls, data)

    def _step(self, state: State, message: bytes, fact: str, **changes: object) -> Step[Enrolment]:
        following: Enrolment = replace(self, state=state, sequence=self.sequence + 1, **changes)  # type: ignore[arg-type]
        return Step(following, message, (StepRecord(fact, following.sequence, digest=sha256(message).digest()),))

    def _check_agreement(self, context: NodeContext, nonce_list: bytes) -> Agreement:
        """Return the agreement of the lists, if the owner's policy allows it; raise Refusal."""
        agreed = agree(context.roster, self.parameters, self.key_list, nonce_list)
        context.policy.require(self.parameters, agreed.by_node[self.node].n_nodes)
        return agreed

    def _read_slot_keys(
        self, neighbours: tuple[int, ...], bundles: Mapping[int, KeyBundle], delivered: tuple[bytes, ...]
    ) -> dict[int, bytes]:
        """Return the neighbours' slot keys.

        Raises Refusal if they signed for other keys, or if a key is one of this node's.
        """
        if len(delivered) != len(neighbours):
            raise refuse(Code.SLOT_KEYS_ALTERED, "They are not of all neighbours.", "coordinator")
        slot_keys = dict(zip(neighbours, delivered, strict=True))
        own = Advertisement.from_bytes(self.advertisement).slot_keys
        check_slot_keys(bundles, self.parameters.n_slots, {**slot_keys, self.node: own})
        return slot_keys

    def _channels_to(self, peers: Collection[int], bundles: Mapping[int, KeyBundle]) -> dict[int, bytes]:
        """Return the secrets of the channels with these nodes; raise Refusal LOW_ORDER_KEY."""
        own, parameters, channels = SecretKey(self.channel), self.parameters.hash(), dict(self.channels)
        for peer in peers:
            if peer not in channels:
                try:
                    channels[peer] = channel_secret(own, bundles[peer].channel_key, self.node, peer, parameters)
                except PrimitiveFault as error:
                    raise refuse(Code.LOW_ORDER_KEY, peer=peer) from error
        return {peer: channels[peer] for peer in peers}

    def _split_slot_keys(self, holders: tuple[int, ...], threshold: int, entropy: Entropy) -> dict[int, bytes]:
        """Return for each holder its 33-byte shares of this node's slot keys, in the order of the slots."""
        coordinates = [holder + 1 for holder in holders]
        runs: list[list[bytes]] = [[] for _ in holders]
        for secret in SlotChain(self.link).secrets(self.parameters.n_slots):
            shares = split(secret, coordinates, threshold, entropy)
            for run, share in zip(runs, shares, strict=True):
                run.append(share)
        return {holder: b"".join(run) for holder, run in zip(holders, runs, strict=True)}

    def _open_run(self, sender: int, channel: bytes, sealed: bytes, view: bytes) -> tuple[bytes, bytes]:
        """Open a neighbour's item: its shares and the headers behind them.

        Raises Refusal SHARE_UNREADABLE.
        """
        key, length = setup_share_key(channel, sender, self.node), SHARE_BYTES * self.parameters.n_slots
        try:
            item = unseal(key, sealed, view)
            run, kept = item[:length], item[length:]
            require_length("run of shares", item, length + HANDED_BACK_BYTES)
            for start in range(0, len(run), SHARE_BYTES):
                parse_share(run[start : start + SHARE_BYTES])
        except PrimitiveFault as error:
            raise refuse(Code.SHARE_UNREADABLE, "At set-up.", sender) from error
        return run, kept


def _pad_headers(headers: Sequence[bytes]) -> bytes:
    # All items have one length, so that the coordinator does not learn whether anything is handed back.
    padded = [header.ljust(SIGNED_HEADER_BYTES, b"\0") for header in headers[:MAX_HANDED_BACK]]
    return b"".join(padded).ljust(HANDED_BACK_BYTES, b"\0")


def _list_own(context: NodeContext, kept: bytes) -> list[RoundContext]:
    """Return the slots of this node's handed-back headers that name its data set or none."""
    found = []
    for start in range(0, len(kept), SIGNED_HEADER_BYTES):
        signed = kept[start : start + SIGNED_HEADER_BYTES]
        # Zeros fill up the items of a neighbour that has kept fewer headers.
        header = read_kept_header(signed, context.identity.public) if any(signed) else None
        if header is not None and header.account in (NO_ACCOUNT, context.account(header.context.epoch)):
            found.append(header.context)
    return found


@dataclass(frozen=True, slots=True)
class EpochSetup:
    """The aggregator while an epoch is set up; immutable. Each dict maps a node to its signed message."""

    roster: Roster
    parameters: EpochParameters
    state: State = State.COLLECTING_KEYS
    advertisements: dict[int, bytes] = field(default_factory=dict)
    nonces: dict[int, bytes] = field(default_factory=dict)
    shares: dict[int, bytes] = field(default_factory=dict)
    acknowledgements: dict[int, bytes] = field(default_factory=dict)
    key_list: bytes = b""
    nonce_list: bytes = b""
    owners: dict[bytes, int] = field(default_factory=dict, compare=False, repr=False)
    """The node that owns each key, while advertisements are collected."""

    def receive(self, messages: Iterable[bytes]) -> tuple[EpochSetup, Complaints]:
        """Return the state with every acceptable message, and the refusals of the other messages.

        A node may repeat the same message. A different one is a CONTRADICTION, and the first one stands.
        """
        fresh: dict[bytes, int] = {}
        collections: dict[State, tuple[Event, str, Callable[[], Callable[[bytes], int]]]] = {
            State.COLLECTING_KEYS: (
                Event.KEY_BUNDLE, "advertisements", lambda: partial(self._check_advertisement, fresh),
            ),
            State.COLLECTING_NONCES: (Event.NONCE, "nonces", self._nonce_check),
            State.COLLECTING_SHARES: (Event.SHARES, "shares", self._shares_check),
            State.COLLECTING_ACKNOWLEDGEMENTS: (
                Event.ACKNOWLEDGEMENT, "acknowledgements", self._acknowledgement_check,
            ),
        }  # fmt: skip
        event, name, prepare = collections[self.state]
        advance(Party.AGGREGATOR, self.state, event)
        check = prepare()
        collected, complaints = dict(getattr(self, name)), Complaints()
        for message in messages:
            try:
                node = check(message)
                if collected.setdefault(node, message) != message:
                    raise refuse(Code.CONTRADICTION, peer=node)
            except Refusal as complaint:
                complaints.append(drop_traceback(complaint))
        # Copy the keys (up to a million) only if a message was accepted, so that garbage costs no more than its own
        # size.
        changes = {name: collected, "owners": {**self.owners, **fresh} if fresh else self.owners}
        return replace(self, **changes), complaints  # type: ignore[arg-type]

    def close_keys(self) -> tuple[EpochSetup, bytes]:
        """Return the next state and the list of key bundles for all.

        Raises SumAbandoned TOO_FEW_READY.
        """
        state = advance(Party.AGGREGATOR, self.state, Event.CLOSE)
        self._require_enough(self.advertisements)
        messages = [self._read_advertisement(node).bundle for node in sorted(self.advertisements)]
        key_list = build_signed_list(Kind.KEY_LIST, self.parameters.hash(), messages)
        read_key_list(key_list, self.parameters, self.roster)
        return replace(self, state=state, key_list=key_list, owners={}), key_list

    def close_nonces(self) -> tuple[EpochSetup, dict[int, bytes]]:
        """Return the next state and each node's list of nonces with the slot keys of its neighbours.

        Raises Refusal REVEAL_MISSING naming a node: all that advertised must reveal, or a coordinator could choose the
        graph by choosing who "dropped out".
        """
        state = advance(Party.AGGREGATOR, self.state, Event.CLOSE)
        messages = [self.nonces[node] for node in sorted(self.nonces)]
        nonce_list = build_signed_list(Kind.NONCE_LIST, self.parameters.hash(), messages)
        graph = agree(self.roster, self.parameters, self.key_list, nonce_list).graph.neighbours
        slot_keys = self._read_slot_keys(graph)
        deliveries = {
            node: NonceDelivery(nonce_list, tuple(slot_keys[peer] for peer in near)).to_bytes()
            for node, near in graph.items()
        }
        return replace(self, state=state, nonce_list=nonce_list), deliveries

    def close_shares(self) -> tuple[EpochSetup, dict[int, bytes]]:
        """Return the next state and, for each node, the delivery of the shares meant for it."""
        state = advance(Party.AGGREGATOR, self.state, Event.CLOSE)
        self._require_enough(self.shares)
        boxes: dict[int, list[tuple[int, bytes]]] = {node: [] for node in self.advertisements}
        for sender in sorted(self.shares):
            message = ShareMessage.from_signed(self.shares[sender])
            for holder, sealed in zip(message.holders, message.sealed, strict=True):
                boxes[holder].append((sender, sealed))
        view = self._agree().view
        deliveries = {
            holder: ShareDelivery(view, tuple(s for s, _ in box), tuple(c for _, c in box)).to_bytes()
            for holder, box in boxes.items()
        }
        return replace(self, state=state), deliveries

    def find_unacknowledged(self) -> tuple[tuple[int, int], ...]:
        """Return the pairs of neighbours, lower number first, without an acknowledgement between them.

        One of the two has failed, by what it dealt or by what it said; only they know which one. Nodes that sent no
        shares or no acknowledgement are in no pair.
        """
        held, graph = self._read_held(), self._agree().graph.neighbours
        return tuple(
            (node, peer)
            for node in sorted(held)
            for peer in graph[node]
            if node < peer and peer in held and (peer not in held[node] or node not in held[peer])
        )

    def close_acknowledgements(self, doubts: Mapping[int, int] | None = None) -> tuple[EpochView, bytes]:
        """Return the ready epoch and the ready list for all; raise SumAbandoned TOO_FEW_READY.

        A node is ready if it acknowledged and all ready neighbours acknowledged its shares. The node with the most
        missing acknowledgements is removed first, and among equals the one with the most `doubts`, which the caller
        counts.
        """
        advance(Party.AGGREGATOR, self.state, Event.CLOSE)
        held, doubts, agreed = self._read_held(), doubts or {}, self._agree()
        graph = agreed.graph.neighbours
        ready = set(held)
        while True:
            missing = {
                node: sum((node not in held[peer]) + (peer not in held[node]) for peer in graph[node] if peer in ready)
                for node in ready
            }
            worst = max(missing, key=lambda node: (missing[node], doubts.get(node, 0), node), default=-1)
            if worst < 0 or not missing[worst]:
                break
            ready.remove(worst)
        self._require_enough(ready)
        # Members of a group that is too small are not ready: they could not even share their secrets.
        messages = tuple(self.acknowledgements[node] for node in filter_survivors(agreed, ready))
        ready_list = ReadyList(agreed.view, messages).to_bytes()
        lists = (self.key_list, self.nonce_list, ready_list)
        view = EpochView.from_messages(self.roster, self.parameters, *lists)
        return view.with_slot_keys(self._read_slot_keys(view.ready)), ready_list

    def _read_held(self) -> dict[int, set[int]]:
        """Return the nodes whose shares each node acknowledged, among nodes that sent shares."""
        return {
            node: set(Acknowledgement.from_signed(message).held)
            for node, message in self.acknowledgements.items()
            if node in self.shares
        }

    def _read_advertisement(self, node: int) -> Advertisement:
        return Advertisement.from_bytes(self.advertisements[node])

    def _read_slot_keys(self, nodes: Iterable[int]) -> dict[int, bytes]:
        return {node: self._read_advertisement(node).slot_keys for node in nodes}

    def _require_enough(self, there: Collection[int]) -> None:
        """Raise SumAbandoned TOO_FEW_READY unless enough nodes are there, in more than half of the groups."""
        wishes, n_open, needed = self.parameters.wishes, 0, 1
        for part in split_members(self.roster, self.advertisements, wishes.n_groups, self.parameters.drawing):
            least = derive(len(part), wishes).min_survivors if part else 1
            needed = max(needed, least)
            n_open += sum(node in there for node in part) >= least
        if n_open < least_groups(wishes.n_groups):
            raise refuse(Code.TOO_FEW_READY, f"{len(there)} nodes, of {needed} needed.")

    def _agree(self) -> Agreement:
        return agree(self.roster, self.parameters, self.key_list, self.nonce_list)

    def _check_advertisement(self, fresh: dict[bytes, int], message: bytes) -> int:
        """Check an advertisement as nodes will, and enter its keys in `fresh`.

        Raises Refusal REPEATED_KEY if another node has one of its keys.
        """
        advertised = Advertisement.from_bytes(message)
        listed = build_signed_list(Kind.KEY_LIST, self.parameters.hash(), [advertised.bundle])
        bundles = read_key_list(listed, self.parameters, self.roster)
        ((node, bundle),) = bundles.items()
        check_slot_keys(bundles, self.parameters.n_slots, {node: advertised.slot_keys})
        if node not in self.advertisements:
            # A node's second advertisement is a repeat or a contradiction: neither needs its keys compared or kept.
            keys = (bundle.channel_key, *split_slot_keys(advertised.slot_keys))
            if any(fresh.get(key, self.owners.get(key, node)) != node for key in keys):
                raise refuse(Code.REPEATED_KEY, peer=node)
            fresh.update(dict.fromkeys(keys, node))
        return node

    def _nonce_check(self) -> Callable[[bytes], int]:
        """Return the check of one nonce, the same as nodes make."""
        bundles = read_key_list(self.key_list, self.parameters, self.roster)
        seen = digest("key-list", self.key_list)
        return lambda message: read_nonce(message, self.parameters, self.roster, bundles, seen).node

    def _shares_check(self) -> Callable[[bytes], int]:
        """Return the check of one message of shares against the graph."""
        agreed = self._agree()
        graph, view = agreed.graph.neighbours, agreed.view
        length = SHARE_BYTES * self.parameters.n_slots + HANDED_BACK_BYTES + OVERHEAD_BYTES

        def check(message: bytes) -> int:
            shares = ShareMessage.from_signed(message)
            if shares.node not in self.advertisements:
                raise refuse(Code.UNKNOWN_NODE, peer=shares.node)
            check_signature(site_key(self.roster, shares.node), Kind.SHARES, message, shares.node)
            if shares.view != view or shares.holders != graph[shares.node]:
                raise refuse(Code.DIFFERENT_VIEW, peer=shares.node)
            # Only the holder can open an item, but a longer item would make the delivery too long for any engine.
            if any(len(sealed) != length for sealed in shares.sealed):
                raise refuse(Code.CONTENT_MISMATCH, "A run of shares has another length.", shares.node)
            return shares.node

        return check

    def _acknowledgement_check(self) -> Callable[[bytes], int]:
        """Return the check of one acknowledgement against the graph."""
        agreed = self._agree()

        def check(message: bytes) -> int:
            acknowledgement = read_acknowledgement(message, self.roster, agreed.view, agreed.graph)
            node = acknowledgement.node
            # All acknowledgements go to all nodes in one message, so a long one would cost every node.
            if not set(acknowledgement.held).issubset(agreed.graph.neighbours[node]):
                raise refuse(Code.CONTENT_MISMATCH, "It holds shares of others than its neighbours.", node)
            return node

        return check
