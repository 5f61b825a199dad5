"""The aggregator's side of an epoch's set-up: it collects, lists and passes on, and can read no share.

`receive` takes any number of messages, in any order; what cannot be used comes back as complaints and is dropped.
Each `close_...` ends one collection and returns what to send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from hedgerow.secagg.encoding import Kind, digest
from hedgerow.secagg.guarantees import derive
from hedgerow.secagg.keys import nonce_commitment
from hedgerow.secagg.refusals import Abandoned, OwnMistake, Refusal, advance, refuse, untraced
from hedgerow.secagg.roster import EpochParameters, Roster
from hedgerow.secagg.setup_messages import (
    Acknowledgement,
    KeyBundle,
    NonceReveal,
    ReadyList,
    ShareDelivery,
    ShareMessage,
    check_signature,
    signed_list,
    view_hash,
)
from hedgerow.secagg.transitions import Code, Event, Party, State
from hedgerow.secagg.view import EpochView, agree, read_key_list, site_key

Complaints = list[Refusal | OwnMistake | Abandoned]


@dataclass(frozen=True, slots=True)
class EpochSetup:
    """The aggregator while an epoch is set up; immutable. Each dict maps a node to its signed message."""

    roster: Roster
    parameters: EpochParameters
    state: State = State.COLLECTING_KEYS
    bundles: dict[int, bytes] = field(default_factory=dict)
    nonces: dict[int, bytes] = field(default_factory=dict)
    shares: dict[int, bytes] = field(default_factory=dict)
    acknowledgements: dict[int, bytes] = field(default_factory=dict)
    key_list: bytes = b""
    nonce_list: bytes = b""

    def receive(self, messages: Iterable[bytes]) -> tuple[EpochSetup, Complaints]:
        """Returns the state with every acceptable message of the current collection, and the refusals of the others.

        A node's identical message again is welcome; a different one is a CONTRADICTION and the first one stands.
        """
        collections: dict[State, tuple[Event, str, Callable[[], Callable[[bytes], int]]]] = {
            State.COLLECTING_KEYS: (Event.KEY_BUNDLE, "bundles", self._bundle_check),
            State.COLLECTING_NONCES: (Event.NONCE, "nonces", lambda: self._check_nonce),
            State.COLLECTING_SHARES: (Event.SHARES, "shares", self._shares_check),
            State.COLLECTING_ACKNOWLEDGEMENTS: (
                Event.ACKNOWLEDGEMENT, "acknowledgements", lambda: self._check_acknowledgement,
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
                complaints.append(untraced(complaint))
        changes = {name: collected}
        return replace(self, **changes), complaints  # type: ignore[arg-type]

    def close_keys(self) -> tuple[EpochSetup, bytes]:
        """Returns the next state and the list of key bundles for all; raises Abandoned TOO_FEW_READY."""
        state = advance(Party.AGGREGATOR, self.state, Event.CLOSE)
        self._require_enough(len(self.bundles), len(self.bundles))
        messages = [self.bundles[node] for node in sorted(self.bundles)]
        key_list = signed_list(Kind.KEY_LIST, self.parameters.hash(), messages)
        read_key_list(key_list, self.parameters, self.roster)
        return replace(self, state=state, key_list=key_list), key_list

    def close_nonces(self) -> tuple[EpochSetup, bytes]:
        """Returns the next state and the list of nonces for all; raises Refusal REVEAL_MISSING naming a node.

        All that advertised must reveal, or a coordinator could choose the graph by choosing who "dropped out".
        """
        state = advance(Party.AGGREGATOR, self.state, Event.CLOSE)
        messages = [self.nonces[node] for node in sorted(self.nonces)]
        nonce_list = signed_list(Kind.NONCE_LIST, self.parameters.hash(), messages)
        agree(self.roster, self.parameters, self.key_list, nonce_list)
        return replace(self, state=state, nonce_list=nonce_list), nonce_list

    def close_shares(self) -> tuple[EpochSetup, dict[int, bytes]]:
        """Returns the next state and, for each node, the delivery of the shares meant for it."""
        state = advance(Party.AGGREGATOR, self.state, Event.CLOSE)
        self._require_enough(len(self.shares), len(self.bundles))
        boxes: dict[int, list[tuple[int, bytes]]] = {node: [] for node in self.bundles}
        for sender in sorted(self.shares):
            message = ShareMessage.from_signed(self.shares[sender])
            for holder, sealed in zip(message.holders, message.sealed, strict=True):
                boxes[holder].append((sender, sealed))
        deliveries = {
            holder: ShareDelivery(self._view(), tuple(s for s, _ in box), tuple(c for _, c in box)).to_bytes()
            for holder, box in boxes.items()
        }
        return replace(self, state=state), deliveries

    def unacknowledged(self) -> tuple[tuple[int, int], ...]:
        """Returns the pairs of neighbours, lower number first, of which one did not acknowledge the other's shares.

        One of the two has failed, by what it dealt or by what it said, and which one only they know. Nodes that sent no
        shares or no acknowledgement are in no pair.
        """
        held, graph = self._held(), self._graph()
        return tuple(
            (node, peer)
            for node in sorted(held)
            for peer in graph[node]
            if node < peer and peer in held and (peer not in held[node] or node not in held[peer])
        )

    def close_acknowledgements(self, doubts: Mapping[int, int] | None = None) -> tuple[EpochView, bytes]:
        """Returns the ready epoch and the ready list for all; raises Abandoned TOO_FEW_READY.

        Ready are nodes that acknowledged and whose shares all ready neighbours acknowledged; the node with the most
        missing acknowledgements goes first, and of these the one with the most `doubts`, which are the caller's.
        """
        advance(Party.AGGREGATOR, self.state, Event.CLOSE)
        held, doubts = self._held(), doubts or {}
        graph = self._graph()
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
        self._require_enough(len(ready), len(self.bundles))
        messages = tuple(self.acknowledgements[node] for node in sorted(ready))
        ready_list = ReadyList(self._view(), messages).to_bytes()
        lists = (self.key_list, self.nonce_list, ready_list)
        return EpochView.from_messages(self.roster, self.parameters, *lists), ready_list

    def _held(self) -> dict[int, set[int]]:
        """Returns whose shares each node acknowledged, of nodes that sent their own."""
        return {
            node: set(Acknowledgement.from_signed(message).held)
            for node, message in self.acknowledgements.items()
            if node in self.shares
        }

    def _require_enough(self, count: int, members: int) -> None:
        least = derive(members, self.parameters.wishes).min_survivors if members else 1
        if count < least:
            raise refuse(Code.TOO_FEW_READY, f"{count} nodes, of {least} needed.")

    def _view(self) -> bytes:
        return view_hash(self.parameters.hash(), self.key_list, self.nonce_list)

    def _graph(self) -> dict[int, tuple[int, ...]]:
        return agree(self.roster, self.parameters, self.key_list, self.nonce_list).graph.neighbours

    def _bundle_check(self) -> Callable[[bytes], int]:
        """Returns the check of one bundle: as a node will check it, its keys not yet used by another node."""
        owners: dict[bytes, int] = {}
        for node, message in self.bundles.items():
            bundle = KeyBundle.from_signed(message)
            owners.update(dict.fromkeys((bundle.channel_key, *bundle.slot_keys), node))

        def check(message: bytes) -> int:
            listed = signed_list(Kind.KEY_LIST, self.parameters.hash(), [message])
            ((node, bundle),) = read_key_list(listed, self.parameters, self.roster).items()
            for key in (bundle.channel_key, *bundle.slot_keys):
                if owners.setdefault(key, node) != node:
                    raise refuse(Code.REPEATED_KEY, peer=node)
            return node

        return check

    def _check_nonce(self, message: bytes) -> int:
        reveal = NonceReveal.from_signed(message)
        if reveal.node not in self.bundles:
            raise refuse(Code.UNKNOWN_NODE, peer=reveal.node)
        check_signature(site_key(self.roster, reveal.node), Kind.NONCE, message, reveal.node)
        parameters = self.parameters.hash()
        if reveal.parameters != parameters or reveal.key_list != digest("key-list", self.key_list):
            raise refuse(Code.DIFFERENT_VIEW, peer=reveal.node)
        bundle = KeyBundle.from_signed(self.bundles[reveal.node])
        if nonce_commitment(reveal.nonce, reveal.node, parameters) != bundle.nonce_commitment:
            raise refuse(Code.NONCE_MISMATCH, peer=reveal.node)
        return reveal.node

    def _shares_check(self) -> Callable[[bytes], int]:
        """Returns the check of one message of shares, against the graph."""
        graph, view = self._graph(), self._view()

        def check(message: bytes) -> int:
            shares = ShareMessage.from_signed(message)
            if shares.node not in self.bundles:
                raise refuse(Code.UNKNOWN_NODE, peer=shares.node)
            check_signature(site_key(self.roster, shares.node), Kind.SHARES, message, shares.node)
            if shares.view != view or shares.holders != graph[shares.node]:
                raise refuse(Code.DIFFERENT_VIEW, peer=shares.node)
            return shares.node

        return check

    def _check_acknowledgement(self, message: bytes) -> int:
        acknowledgement = Acknowledgement.from_signed(message)
        if acknowledgement.node not in self.bundles:
            raise refuse(Code.UNKNOWN_NODE, peer=acknowledgement.node)
        check_signature(
            site_key(self.roster, acknowledgement.node), Kind.ACKNOWLEDGEMENT, message, acknowledgement.node
        )
        if acknowledgement.view != self._view():
            raise refuse(Code.DIFFERENT_VIEW, peer=acknowledgement.node)
        return acknowledgement.node
