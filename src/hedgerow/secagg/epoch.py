"""The node's side of an epoch's set-up: advertise keys, reveal a nonce, share the slot keys, acknowledge, be ready.

Run once for up to thousands of aggregations. Every step returns a `Step`: write its records and the state, then send.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from hashlib import sha256

from hedgerow.secagg._primitives.aead import seal, unseal
from hedgerow.secagg._primitives.agreement import SecretKey
from hedgerow.secagg._primitives.faults import PrimitiveFault
from hedgerow.secagg._primitives.shamir import SHARE_BYTES, parse_share, split
from hedgerow.secagg.encoding import HASH_BYTES, Kind, Reader, Writer, digest, sealed_state, unsealed_state
from hedgerow.secagg.keys import Channels, SlotChain, channel_secret, nonce_commitment, setup_share_key, slot_channel
from hedgerow.secagg.node_context import NodeContext
from hedgerow.secagg.participant import Participant
from hedgerow.secagg.refusals import Refusal, advance, refuse, untraced
from hedgerow.secagg.roster import MAX_ATTEMPTS, EpochParameters
from hedgerow.secagg.setup_messages import (
    Acknowledgement,
    KeyBundle,
    NonceReveal,
    ShareDelivery,
    ShareMessage,
)
from hedgerow.secagg.step import Entropy, Record, Step
from hedgerow.secagg.transitions import Code, Event, Party, State
from hedgerow.secagg.view import Agreement, EpochView, agree, read_key_list


@dataclass(frozen=True, slots=True, repr=False)
class Enrolment:
    """A node on its way into an epoch; immutable, `to_bytes` holds secrets and belongs in a private file."""

    state: State
    sequence: int
    parameters: EpochParameters
    node: int
    chain: SlotChain
    channel: SecretKey
    nonce: bytes
    bundle: bytes
    key_list: bytes = b""
    nonce_list: bytes = b""
    held_shares: dict[int, bytes] = field(default_factory=dict)
    channels: dict[int, bytes] = field(default_factory=dict, compare=False)
    """Channel secrets that were computed already; not stored, for they follow from the rest."""

    def __repr__(self) -> str:
        return f"Enrolment(node={self.node}, state={self.state.value}, sequence={self.sequence})"

    @classmethod
    def begin(cls, context: NodeContext, parameters: bytes, entropy: Entropy, last_attempt: int = 0) -> Step[Enrolment]:
        """Returns the first step: keys drawn, the signed key bundle to send.

        Args: parameters: the coordinator's EpochParameters; last_attempt: the highest attempt of this run that the
            node recorded (fact "enrolled"), 0 if none.
        Raises Refusal: MALFORMED, ROSTER_MISMATCH, STALE_ATTEMPT, UNKNOWN_NODE, and what the policy refuses.
        """
        state = advance(Party.NODE, State.UNENROLLED, Event.PARAMETERS)
        proposed = EpochParameters.from_bytes(parameters)
        if proposed.roster_hash != context.roster.hash():
            raise refuse(Code.ROSTER_MISMATCH, peer="coordinator")
        if not last_attempt < proposed.attempt <= MAX_ATTEMPTS:
            raise refuse(Code.STALE_ATTEMPT, f"Attempt {proposed.attempt} after {last_attempt}.", "coordinator")
        context.policy.require(proposed, len(context.roster.sites))
        node = context.roster.node_of(context.identity.public)
        chain, channel, nonce = SlotChain(entropy(32)), SecretKey(entropy(32)), entropy(HASH_BYTES)
        slot_keys = tuple(key.public for key in chain.keys(proposed.n_slots))
        commitment = nonce_commitment(nonce, node, proposed.hash())
        bundle = KeyBundle(proposed.hash(), node, commitment, channel.public, slot_keys).to_signed(context.identity)
        enrolment = cls(state, 1, proposed, node, chain, channel, nonce, bundle)
        return Step(enrolment, bundle, (Record("enrolled", 1, proposed.attempt, digest=proposed.hash()),))

    def reveal(self, context: NodeContext, key_list: bytes) -> Step[Enrolment]:
        """Returns the step that answers the list of key bundles with this node's nonce; raises Refusal."""
        state = advance(Party.NODE, self.state, Event.KEY_LIST)
        bundles = read_key_list(key_list, self.parameters, context.roster)
        if self.node not in bundles or bundles[self.node] != KeyBundle.from_signed(self.bundle):
            raise refuse(Code.OWN_BUNDLE_ALTERED, peer="coordinator")
        context.policy.require(self.parameters, len(bundles))
        reveal = NonceReveal(self.parameters.hash(), self.node, digest("key-list", key_list), self.nonce)
        return self._step(state, reveal.to_signed(context.identity), "nonce-revealed", key_list=key_list)

    def share(self, context: NodeContext, nonce_list: bytes, entropy: Entropy) -> Step[Enrolment]:
        """Returns the step that sends every holder its sealed shares of all slot keys; raises Refusal."""
        state = advance(Party.NODE, self.state, Event.NONCE_LIST)
        agreed = self._agreed(context, nonce_list)
        bundles, view, holders = agreed.bundles, agreed.view, agreed.graph.neighbours[self.node]
        runs = self._split_slot_keys((*holders, self.node), agreed.guarantees.threshold, entropy)
        channels = {holder: self._channel_to(holder, bundles[holder].channel_key) for holder in holders}
        sealed = tuple(
            seal(setup_share_key(channels[holder], self.node, holder), runs[holder], view, entropy)
            for holder in holders
        )
        message = ShareMessage(view, self.node, holders, sealed).to_signed(context.identity)
        held = {self.node: runs[self.node]}
        return self._step(state, message, "shares-sent", nonce_list=nonce_list, held_shares=held, channels=channels)

    def acknowledge(self, context: NodeContext, delivery: bytes) -> Step[Enrolment]:
        """Returns the step that acknowledges the shares that opened; the others are complaints. Raises Refusal."""
        state = advance(Party.NODE, self.state, Event.SHARE_DELIVERY)
        delivered = ShareDelivery.from_bytes(delivery)
        agreed = self._agreed(context, self.nonce_list)
        bundles, view = agreed.bundles, agreed.view
        if delivered.view != view:
            raise refuse(Code.DIFFERENT_VIEW, "The shares are for another set-up.", "coordinator")
        neighbours = set(agreed.graph.neighbours[self.node])
        held, complaints = dict(self.held_shares), []
        for sender, sealed in zip(delivered.senders, delivered.sealed, strict=True):
            if sender not in neighbours:
                raise refuse(Code.UNKNOWN_NODE, "It is not a neighbour.", sender)
            try:
                held[sender] = self._open_run(sender, bundles[sender].channel_key, sealed, view)
            except Refusal as complaint:
                complaints.append(untraced(complaint))
        others = tuple(sorted(node for node in held if node != self.node))
        message = Acknowledgement(view, self.node, others).to_signed(context.identity)
        step = self._step(state, message, "shares-acknowledged", held_shares=held)
        return replace(step, complaints=tuple(complaints))

    def finish(self, context: NodeContext, ready_list: bytes, answered: Collection[str] = ()) -> Step[Participant]:
        """Returns the step into the ready epoch; nothing is sent.

        Args: answered: the purposes of this run that the node answered in earlier epochs (facts "purpose-answered");
            without them, a coordinator could take a sum again, over other sites, by starting a new epoch.
        Raises Refusal: NOT_READY, NOT_ACKNOWLEDGED, COHORT_TOO_SMALL, DIFFERENT_VIEW, ...
        """
        advance(Party.NODE, self.state, Event.READY_LIST)
        view = EpochView.from_messages(context.roster, self.parameters, self.key_list, self.nonce_list, ready_list)
        if not view.is_ready(self.node):
            raise refuse(Code.NOT_READY, peer="coordinator")
        keys = view.channel_keys
        kept = {peer: slot_channel(self._channel_to(peer, keys[peer])) for peer in view.peers(self.node)}
        channels = Channels(self.node, kept)
        shares = {node: self.held_shares[node] for node in (*channels, self.node)}
        participant = Participant(
            view, self.node, State.READY, self.sequence + 1, self.chain, channels, shares, purposes=frozenset(answered)
        )
        return Step(participant, None, (Record("ready", self.sequence + 1, digest=view.digest),))

    def to_bytes(self) -> bytes:
        """Returns the state, secrets included, for this node's private storage."""
        writer = Writer(Kind.ENROLMENT_STATE).text(self.state.value).number(self.sequence, 8)
        writer.variable(self.parameters.to_bytes()).number(self.node, 2)
        writer.fixed(self.chain.link, 32).fixed(self.channel.secret_bytes(), 32).fixed(self.nonce, HASH_BYTES)
        writer.variable(self.bundle).variable(self.key_list).variable(self.nonce_list)
        writer.nodes(sorted(self.held_shares)).items([self.held_shares[node] for node in sorted(self.held_shares)])
        return sealed_state(writer.bytes())

    @classmethod
    def restore(cls, data: bytes, sequence: int) -> Enrolment:
        """Returns the state written last.

        Args: sequence: that of the last record written, kept apart from `data`.
        Raises OwnMistake CORRUPT_STATE, or ROLLED_BACK when `data` is of another sequence.
        """
        body = unsealed_state(data)
        try:
            reader = Reader(body, Kind.ENROLMENT_STATE)
            state, found = State(reader.text()), reader.number(8)
            parameters, node = EpochParameters.from_bytes(reader.variable()), reader.number(2)
            chain, channel = SlotChain(reader.fixed(32)), SecretKey(reader.fixed(32))
            nonce, bundle = reader.fixed(HASH_BYTES), reader.variable()
            key_list, nonce_list = reader.variable(), reader.variable()
            held = dict(zip(reader.nodes(), reader.items(), strict=True))
            reader.end()
        except (Refusal, ValueError) as error:
            raise refuse(Code.CORRUPT_STATE) from error
        if found != sequence:
            raise refuse(Code.ROLLED_BACK, f"It is step {found}, the journal says {sequence}.")
        return cls(state, found, parameters, node, chain, channel, nonce, bundle, key_list, nonce_list, held)

    @classmethod
    def latest(cls, data: bytes) -> Enrolment:
        """The same, for whoever keeps one state only and replaces it with every step; raises OwnMistake."""
        try:
            reader = Reader(unsealed_state(data), Kind.ENROLMENT_STATE)
            reader.text()
            return cls.restore(data, reader.number(8))
        except (Refusal, ValueError) as error:
            raise refuse(Code.CORRUPT_STATE) from error

    def _step(self, state: State, message: bytes, fact: str, **changes: object) -> Step[Enrolment]:
        following: Enrolment = replace(self, state=state, sequence=self.sequence + 1, **changes)  # type: ignore[arg-type]
        return Step(following, message, (Record(fact, following.sequence, digest=sha256(message).digest()),))

    def _agreed(self, context: NodeContext, nonce_list: bytes) -> Agreement:
        """Returns what the lists say, if the owner's policy allows it; raises Refusal."""
        agreed = agree(context.roster, self.parameters, self.key_list, nonce_list)
        context.policy.require(self.parameters, len(agreed.bundles))
        return agreed

    def _channel_to(self, peer: int, public: bytes) -> bytes:
        if peer in self.channels:
            return self.channels[peer]
        try:
            return channel_secret(self.channel, public, self.node, peer, self.parameters.hash())
        except PrimitiveFault as error:
            raise refuse(Code.LOW_ORDER_KEY, peer=peer) from error

    def _split_slot_keys(self, holders: tuple[int, ...], threshold: int, entropy: Entropy) -> dict[int, bytes]:
        """Returns for each holder the run of its 33-byte shares of this node's slot keys, in the order of the slots."""
        coordinates = [holder + 1 for holder in holders]
        runs: list[list[bytes]] = [[] for _ in holders]
        for secret in self.chain.secrets(self.parameters.n_slots):
            shares = split(secret, coordinates, threshold, entropy)
            for run, share in zip(runs, shares, strict=True):
                run.append(share)
        return {holder: b"".join(run) for holder, run in zip(holders, runs, strict=True)}

    def _open_run(self, sender: int, public: bytes, sealed: bytes, view: bytes) -> bytes:
        key = setup_share_key(self._channel_to(sender, public), sender, self.node)
        try:
            run = unseal(key, sealed, view)
            if len(run) != SHARE_BYTES * self.parameters.n_slots:
                raise PrimitiveFault("A run of shares has another length.")
            for start in range(0, len(run), SHARE_BYTES):
                parse_share(run[start : start + SHARE_BYTES])
        except PrimitiveFault as error:
            raise refuse(Code.SHARE_UNREADABLE, "At set-up.", sender) from error
        return run
