# SPDX-License-Identifier: Apache-2.0
"""The seam for carriers that only hand envelopes over, and the hub that stands on it. No carrier needs to be trusted.

A `Carrier` knows which nodes there are, takes an envelope for one and brings back the reply: Flower's grid, NVFlare's
clients, a folder of files. What it carries is signed and sealed beneath (`transport/envelope.py`).

Nodes cannot speak first: whatever they have to say is the reply to a request. So messages for a site wait until the
coordinator waits, and go together as one request. A site has one request at a time, and the next one waits for its
reply. A request without a reply is posted again, byte for byte: a node answers a repeated one from its store.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hedgerow.crypto import KEY_BYTES
from hedgerow.protocol.messages import Deferred, encode
from hedgerow.protocol.refusals import WireCode, WireRefusal
from hedgerow.transport.envelope import (
    HIGHEST_NUMBER,
    LINK_BYTES,
    MAX_MESSAGES,
    Envelope,
    EnvelopeKind,
    LinkKeys,
    bundle_messages,
    derive_public_key,
    open_messages,
    parse,
    require_signature,
    seal_messages,
    sign,
)
from hedgerow.transport.identities import PinnedRoster, PrivateIdentity, require_pinned
from hedgerow.transport.interface import Arrived, Hub, HubEvent, Joined, Left, Repeats, times

_log = logging.getLogger(__name__)
_DEFERRED = encode(Deferred())
_NO_HASH = bytes(32)
OUTBOX_BYTES = 128 << 20
"""Limit of bytes queued for one node, as with gRPC; beyond it the link begins again."""
_PER_MESSAGE = 256
"""Counted for each message that waits, so that empty ones cannot fill the memory either."""
_SECONDS_BETWEEN_HUBS = 0.5


@dataclass(frozen=True, slots=True)
class Fetched:
    """Reply to one envelope, or the reason why there is none.

    Attributes:
        number: of the envelope, as `post` gave it.
        data: the reply, or None.
        code: why there is none.
        is_away: because the node is not there now.
    """

    number: str
    data: bytes | None
    code: str = ""
    is_away: bool = False


class Waiting(Exception):
    """Raised by a carrier if no reply can come in this process; the run goes on in another one."""


class Carrier(Protocol):
    """Transport of envelopes to nodes and of replies back.

    Attributes:
        place: what a run over it is said to be made in, a name of `hedgerow.privacy.statement.PLACES`.
    """

    @property
    def place(self) -> str: ...

    def nodes(self) -> Mapping[int, str]:
        """Return the nodes present now with their sites' names, "" for a node that says it itself.

        The hub's greeting to a node is addressed to the site that is named here.
        """

    def push(self, envelopes: Sequence[tuple[int, bytes]]) -> list[str | None]:
        """Post one envelope to each of these nodes; return its number, or None for one that was not taken."""

    def pull(self, numbers: Iterable[str]) -> list[Fetched]:
        """Return the replies that have come."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Waiting times of the hub, in seconds.

    Attributes:
        poll, longest_poll: between two looks for replies, longer while none comes.
        roll_call: between two looks for new nodes.
        repeat, longest_repeat: before a request without a reply is posted again, doubled each time up to the latter.
        closing: for the last messages to be taken.
        max_failures: of one request, before its node counts as gone.
    """

    poll: float = 0.1
    longest_poll: float = 0.5
    roll_call: float = 2.0
    repeat: float = 30.0
    longest_repeat: float = 300.0
    closing: float = 15.0
    max_failures: int = 3


@dataclass(frozen=True, slots=True)
class Clock:
    """Time and chance, passed in: a monotonic clock, a sleep, random bytes, and the date in seconds."""

    now: Callable[[], float]
    sleep: Callable[[float], None]
    entropy: Callable[[int], bytes]
    date: Callable[[], float]


@dataclass(eq=False)
class _Peer:
    """A node, the link to it, and its pending request."""

    node: int
    known: str
    link: bytes = b""
    secret: bytes = field(default=b"", repr=False)
    site: str = ""
    keys: LinkKeys | None = None
    number: int = -1
    request: Envelope | None = None
    raw: bytes = b""
    posted: set[str] = field(default_factory=set)
    posted_at: float = 0.0
    repeat_after: float = 0.0
    failures: int = 0
    rests_until: float = 0.0
    twin: int | None = None
    outbox: list[bytes] = field(default_factory=list)
    outbox_bytes: int = 0

    @property
    def is_busy(self) -> bool:
        return bool(self.raw)

    def put(self, message: bytes) -> bool:
        """Keep a message for the next request; return False if the outbox has no room for it."""
        cost = len(message) + _PER_MESSAGE
        is_full = len(self.outbox) >= MAX_MESSAGES or self.outbox_bytes + cost > OUTBOX_BYTES
        if self.outbox and is_full:
            return False
        self.outbox.append(message)
        self.outbox_bytes += cost
        return True

    def drain(self) -> list[bytes]:
        """Empty the outbox and return its messages."""
        waited, self.outbox, self.outbox_bytes = self.outbox, [], 0
        return waited


class EnvelopeHub:
    """Hub over a carrier of envelopes; see `transport.interface.Hub`.

    Args:
        clock: time and chance.
        patience: a node that asks its owner is greeted again after its `repeat`.
    """

    def __init__(
        self,
        identity: PrivateIdentity,
        roster: PinnedRoster,
        carrier: Carrier,
        clock: Clock,
        patience: Patience | None = None,
    ) -> None:
        require_pinned(identity, roster)
        self._identity, self._roster, self._carrier, self._clock = identity, roster, carrier, clock
        self.greet: Callable[[bool], list[bytes]] = lambda is_first: []
        """What a greeting carries, open for its carrier to read; whether its node is greeted for the first time."""
        self.needs_reply: Callable[[str, Sequence[bytes]], bool] = lambda site, messages: bool(messages)
        """Whether what waits for a site must go now, or may wait for the next message."""
        self._patience = patience or Patience()
        self._peers: dict[int, _Peer] = {}
        self._by_site: dict[str, _Peer] = {}
        self._events: deque[HubEvent] = deque()
        self._next_roll_call = -1.0
        self.refusals: dict[str, int] = defaultdict(int)
        """How many replies and nodes were refused, by code."""
        self._repeats = Repeats()
        self.n_requests: dict[str, int] = defaultdict(int)
        """How many requests each site was sent, greetings included and repetitions not."""

    def send(self, site: str, message: bytes) -> bool:
        """Queue a message for a site; False if it is absent or its outbox is full, when its link begins again."""
        peer = self._by_site.get(site)
        if peer is None:
            return False
        if not peer.put(message):
            # Drop events of the ended link, because handling them would send further messages to the site.
            self._events = deque(event for event in self._events if event.site != site)
            self._begin_again(peer, WireCode.SLOW_PEER)
            return False
        return True

    def receive(self, timeout: float) -> HubEvent | None:
        """Return the next event; while there is none, post queued messages and collect replies."""
        deadline, poll = self._clock.now() + timeout, self._patience.poll
        while not self._events:
            self._flush()
            absent = self._call_roll()
            # Collect after the roll call, so that replies left by nodes that are gone still count.
            self._collect()
            for node in absent:
                # The node has ended, or its carrier takes it for dead, so no round waits for it.
                self._drop(self._peers.pop(node), WireCode.CONNECTION_LOST)
            rest = deadline - self._clock.now()
            if self._events or rest <= 0:
                break
            self._clock.sleep(min(poll, rest))
            poll = min(1.2 * poll, self._patience.longest_poll)
        return self._events.popleft() if self._events else None

    def close(self) -> None:
        """Deliver queued messages to the nodes that take them in time, then forget all nodes."""
        deadline = self._clock.now() + self._patience.closing
        self._flush(everything=True)
        while any(peer.is_busy or peer.outbox for peer in self._by_site.values()) and self._clock.now() < deadline:
            self._collect()
            self._clock.sleep(self._patience.poll)
            self._flush(everything=True)
        self._peers.clear()
        self._by_site.clear()

    # Requests ----------------------------------------------------------------------------------------------------

    def _flush(self, *, everything: bool = False) -> None:
        """Post requests to sites that answered their last one, and repeat requests left without a reply."""
        now, due = self._clock.now(), []
        for peer in self._peers.values():
            if now < peer.rests_until or peer.twin in self._peers:
                continue
            if peer.is_busy:
                if now - peer.posted_at >= peer.repeat_after:
                    due.append(peer)
            elif peer.site and peer.outbox and (everything or self.needs_reply(peer.site, peer.outbox)):
                self._write_request(peer)
                due.append(peer)
            elif not peer.site:
                self._write_greeting(peer)
                due.append(peer)
        self._post_all(due)

    def _post_all(self, peers: list[_Peer]) -> None:
        """Hand requests to the carrier; the next repetition of each comes after twice the time."""
        if not peers:
            return
        numbers = self._carrier.push([(peer.node, peer.raw) for peer in peers])
        now = self._clock.now()
        for peer, number in zip(peers, numbers, strict=True):
            is_first = not peer.posted
            peer.posted_at = now
            grown = self._patience.repeat if is_first else 2 * peer.repeat_after
            peer.repeat_after = min(grown, self._patience.longest_repeat)
            if number is not None:
                peer.posted.add(number)

    def _write_greeting(self, peer: _Peer) -> None:
        """Begin a link with new keys."""
        is_first = peer.number < 0
        peer.link, peer.secret = self._clock.entropy(LINK_BYTES), self._clock.entropy(KEY_BYTES)
        # Seconds since 1970 exceed the numbers of an earlier process's greetings; otherwise the node replies LOST.
        peer.number, peer.keys = max(peer.number + 1, int(self._clock.date())), None
        body = bundle_messages(self.greet(is_first))
        key = derive_public_key(peer.secret)
        peer.request = Envelope(EnvelopeKind.GREETING, peer.known, peer.link, peer.number, key, _NO_HASH, body)
        self._sign(peer)

    def _write_request(self, peer: _Peer) -> None:
        """Seal the messages queued for a node into its next request."""
        if peer.keys is None:
            return
        peer.number += 1
        key = derive_public_key(peer.secret)
        bare = Envelope(EnvelopeKind.REQUEST, peer.site, peer.link, peer.number, key, _NO_HASH)
        peer.request = seal_messages(bare, peer.keys.to_node, peer.drain(), self._clock.entropy)
        self._sign(peer)
        self.n_requests[peer.site] += 1

    def _sign(self, peer: _Peer) -> None:
        if peer.request is not None:
            peer.raw, peer.posted, peer.failures = sign(peer.request, self._identity.seed), set(), 0

    def _call_roll(self) -> list[int]:
        """Add new nodes; return the nodes that are gone."""
        if self._clock.now() < self._next_roll_call:
            return []
        self._next_roll_call = self._clock.now() + self._patience.roll_call
        there = self._carrier.nodes()
        for node in sorted(there.keys() - self._peers):
            self._peers[node] = _Peer(node, there[node])
        return sorted(self._peers.keys() - there)

    # Replies -----------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Process the replies that have come; a refused reply ends its node's link."""
        waiting = {number: peer for peer in self._peers.values() for number in peer.posted}
        if not waiting:
            return
        for fetched in self._carrier.pull(list(waiting)):
            peer = waiting.get(fetched.number)
            if peer is None or fetched.number not in peer.posted:
                continue
            peer.posted.discard(fetched.number)
            if fetched.data is None:
                self._post_again(peer, fetched)
                continue
            try:
                self._take(peer, fetched.data)
            except WireRefusal as refusal:
                self.refusals[refusal.code] += 1
                if count := self._repeats.note(str(peer.node), refusal.code):
                    said = f"{refusal.what} ({refusal.code}){times(count)}"
                    _log.warning("A reply of node %d is refused: %s", peer.node, said)
                self._begin_again(peer, WireCode.CONNECTION_LOST)

    def _take(self, peer: _Peer, data: bytes) -> None:
        """Process a reply to the pending request; raise WireRefusal for one that does not fit."""
        reply = parse(data)
        site = self._roster.site(reply.site)
        if site is None:
            raise WireRefusal(WireCode.UNPINNED)
        require_signature(data, site.identity_key)
        request = peer.request
        if request is None or reply.request != request.digest:
            return  # The reply belongs to an earlier link, while this link's request is pending.
        is_lost = reply.kind is EnvelopeKind.LOST and reply.number < HIGHEST_NUMBER
        is_for_it = peer.site in ("", reply.site) and request.site in ("", reply.site)
        if not is_for_it or reply.link != peer.link or not (is_lost or reply.number == peer.number):
            raise WireRefusal(WireCode.SITE_MISMATCH)
        peer.raw, peer.posted = b"", set()
        if is_lost:
            peer.number = max(peer.number, reply.number)
            if not peer.site and self._is_twin(peer, reply.site):
                return
            self._begin_again(peer, WireCode.CONNECTION_LOST)
            return
        if reply.kind is not EnvelopeKind.REPLY:
            raise WireRefusal(WireCode.UNEXPECTED_FRAME)
        if request.kind is EnvelopeKind.GREETING:
            self._join(peer, reply)
        if peer.keys is None:
            return
        messages = open_messages(reply, peer.keys.to_hub)
        self._events.extend(Arrived(reply.site, message) for message in messages)
        if _DEFERRED in messages:
            # The node will answer later and cannot send by itself, so it is greeted again.
            self._begin_again(peer, WireCode.CLOSED)
            peer.rests_until = self._clock.now() + self._patience.repeat

    def _is_twin(self, peer: _Peer, site: str) -> bool:
        """Return whether another node with this identity is present, and log it; the first one stays."""
        other = self._by_site.get(site)
        if other is None or other is peer:
            return False
        self.refusals[WireCode.DUPLICATE_NODE] += 1
        if count := self._repeats.note(site, WireCode.DUPLICATE_NODE):
            said = f"{WireCode.DUPLICATE_NODE}; {count} by now"
            _log.warning("A second node of %s is left alone (%s).", site, said)
        peer.twin = other.node
        return True

    def _join(self, peer: _Peer, reply: Envelope) -> None:
        """Let a site take part after its reply to the greeting."""
        if self._is_twin(peer, reply.site):
            return
        peer.keys = LinkKeys.agree(peer.secret, reply.key, peer.link, reply.site)
        peer.site = reply.site
        peer.drain()
        self._by_site[reply.site] = peer
        self.n_requests[reply.site] += 1
        self._events.append(Joined(reply.site))

    def _post_again(self, peer: _Peer, fetched: Fetched) -> None:
        """Post a request again after its node failed; after some failures, greet the node anew."""
        if fetched.is_away:
            self._begin_again(peer, WireCode.CONNECTION_LOST)
            peer.rests_until = self._clock.now() + self._patience.roll_call
            return
        if peer.posted:
            return  # Another copy of the same request is still pending.
        peer.failures += 1
        self.refusals[fetched.code] += 1
        who = peer.site or f"node {peer.node}"
        if count := self._repeats.note(str(peer.node), fetched.code):
            _log.warning("%s has not answered a request: %s (%d times).", who, fetched.code, count)
        if peer.failures >= self._patience.max_failures:
            self._begin_again(peer, WireCode.CONNECTION_LOST)
            peer.rests_until = self._clock.now() + self._patience.repeat
        else:
            peer.posted_at, peer.repeat_after = self._clock.now(), min(peer.repeat_after, 2.0)

    def _begin_again(self, peer: _Peer, reason: WireCode) -> None:
        """End a node's link and discard its outbox, so that the node is greeted anew."""
        self._drop(peer, reason)
        peer.site, peer.keys, peer.raw, peer.posted = "", None, b"", set()
        peer.drain()

    def _drop(self, peer: _Peer, reason: WireCode) -> None:
        """Queue the event that a site has left."""
        if peer.site and self._by_site.get(peer.site) is peer:
            del self._by_site[peer.site]
            self._events.append(Left(peer.site, reason.value))


class JointHub:
    """Two hubs as one: some sites come by a carrier, the others dial.

    A site belongs to the hub of its first event.

    Args:
        carried: the hub over a carrier; each look at its events asks the carrier for replies.
        listening: hears by itself.
    """

    def __init__(self, carried: EnvelopeHub, listening: Hub) -> None:
        self._carried, self._listening = carried, listening
        self._at: dict[str, Hub] = {}

    def send(self, site: str, message: bytes) -> bool:
        """Send through the hub of this site; False if the site has not joined."""
        hub = self._at.get(site)
        return hub is not None and hub.send(site, message)

    def receive(self, timeout: float) -> HubEvent | None:
        """Return the next event of either hub.

        Events of a site that is already joined through the other hub are dropped.
        """
        left = timeout
        while True:
            wait = min(left, _SECONDS_BETWEEN_HUBS)
            for hub, seconds in ((self._carried, 0.0), (self._listening, wait)):
                event = hub.receive(seconds)
                if event is not None and self._at.setdefault(event.site, hub) is hub:
                    if isinstance(event, Left):
                        del self._at[event.site]
                    return event
            left -= wait
            if left <= 0:
                return None

    def close(self) -> None:
        """Close both hubs."""
        self._carried.close()
        self._listening.close()
