"""Engine `memory`: hub and uplinks in one process, with faults on demand; deterministic where the caller is.

Who drives it decides about time: nothing here waits for a clock except `receive` with a timeout, and a fault is chosen
by a function of the message's direction, site and number, never by chance. DROP and REORDER break the contract of
`interface.py` on purpose: a party must survive, or refuse, a peer that does so.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, TypeVar

from hedgerow.errors import HedgerowError
from hedgerow.methods.replica import digest_behaviour
from hedgerow.methods.tasks import read_invitation
from hedgerow.protocol.messages import EvaluationInvitation, Invitation, Message, SurveyInvitation, decode, encode
from hedgerow.transport.interface import Arrived, Connected, Disconnected, HubEvent, Joined, Left, UplinkEvent

Event = TypeVar("Event")


class Direction(Enum):
    """Which way a message goes."""

    TO_NODE = "to node"
    TO_HUB = "to hub"


class Fate(Enum):
    """What becomes of one message."""

    DELIVER = "deliver"
    DROP = "drop"
    """It is lost, and nobody is told."""
    CUT = "cut"
    """It is lost and the connection with it; the node reconnects at once."""
    CUT_AFTER = "cut after"
    """It arrives, then the connection is lost; the node reconnects at once."""
    HOLD = "hold"
    """It waits for `MemoryNetwork.release`, and all later ones of this connection and direction behind it."""
    REORDER = "reorder"
    """It arrives after the next message of this connection and direction."""


@dataclass(frozen=True, slots=True)
class Passing:
    """A message on its way: `number` counts from 0 per site and direction, over all its connections."""

    direction: Direction
    site: str
    number: int
    message: bytes


FaultPlan = Callable[[Passing], Fate]


def no_faults(_: Passing) -> Fate:
    """Every message is delivered."""
    return Fate.DELIVER


class _Inbox(Generic[Event]):
    """Events for one party, which it may wait for."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._changed = threading.Condition()

    def put(self, event: Event) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify()

    def get(self, timeout: float) -> Event | None:
        with self._changed:
            if not self._events and timeout > 0:
                self._changed.wait_for(lambda: bool(self._events), timeout)
            return self._events.popleft() if self._events else None


class _Lane:
    """One direction of one site's connection: what is held or put back waits here."""

    def __init__(self) -> None:
        self.sent = 0
        self.held: deque[bytes] = deque()
        self.is_holding = False
        self.late: bytes | None = None

    def clear(self) -> None:
        self.held.clear()
        self.is_holding, self.late = False, None


class MemoryUplink:
    """A node's end; see `transport.interface.Uplink`. Made by `MemoryNetwork.uplink`."""

    def __init__(self, network: MemoryNetwork, site: str) -> None:
        self._network, self._site = network, site
        self._inbox: _Inbox[UplinkEvent] = _Inbox()

    def send(self, message: bytes) -> bool:
        """See `Uplink.send`."""
        return self._network._send(Direction.TO_HUB, self._site, message, self)

    def receive(self, timeout: float) -> UplinkEvent | None:
        """See `Uplink.receive`."""
        return self._inbox.get(timeout)

    def close(self) -> None:
        """See `Uplink.close`."""
        self._network._close_uplink(self._site, self)


class MemoryHub:
    """The coordinator's end; see `transport.interface.Hub`. Made by `MemoryNetwork.hub`."""

    def __init__(self, network: MemoryNetwork) -> None:
        self._network = network
        self._inbox: _Inbox[HubEvent] = _Inbox()

    def send(self, site: str, message: bytes) -> bool:
        """See `Hub.send`."""
        return self._network._send(Direction.TO_NODE, site, message, self)

    def receive(self, timeout: float) -> HubEvent | None:
        """See `Hub.receive`."""
        return self._inbox.get(timeout)

    def close(self) -> None:
        """See `Hub.close`: the uplinks stay, disconnected, and connect again to the next hub."""
        self._network._close_hub(self)


class MemoryNetwork:
    """The wire between one hub and its uplinks.

    Args:
        faults: asked once for every message that is sent.
    """

    def __init__(self, faults: FaultPlan = no_faults) -> None:
        self._faults = faults
        self._lock = threading.RLock()
        self._hub: MemoryHub | None = None
        self._uplinks: dict[str, MemoryUplink] = {}
        self._online: set[str] = set()
        self._down: set[str] = set()
        self._lanes: dict[tuple[Direction, str], _Lane] = {}

    def hub(self) -> MemoryHub:
        """A new hub; the one before it, if any, is closed first. Uplinks that wait connect in the sites' order."""
        with self._lock:
            if self._hub is not None:
                self._close_hub(self._hub)
            self._hub = MemoryHub(self)
            for site in sorted(self._uplinks):
                self._connect(site)
            return self._hub

    def uplink(self, site: str) -> MemoryUplink:
        """A new uplink of a site; a live one of the same site is replaced."""
        with self._lock:
            if site in self._uplinks:
                old = self._uplinks[site]
                self._disconnect(site, "connection-lost")
                old._inbox.put(Disconnected("duplicate-node", is_final=True))
            self._uplinks[site] = uplink = MemoryUplink(self, site)
            self._connect(site)
            return uplink

    def cut(self, site: str, *, reconnect: bool = True, reason: str = "connection-lost") -> None:
        """Lose a site's connection; with `reconnect` False it stays away until `restore`."""
        with self._lock:
            if not reconnect:
                self._down.add(site)
            self._disconnect(site, reason)
            if reconnect:
                self._connect(site)

    def restore(self, site: str) -> None:
        """Let a site connect again after `cut` without `reconnect`."""
        with self._lock:
            self._down.discard(site)
            self._connect(site)

    def release(self, site: str) -> None:
        """Deliver what HOLD kept back, in both directions and in order."""
        with self._lock:
            for direction in Direction:
                lane = self._lane(direction, site)
                lane.is_holding = False
                while lane.held:
                    self._deliver(direction, site, lane.held.popleft())

    def _lane(self, direction: Direction, site: str) -> _Lane:
        return self._lanes.setdefault((direction, site), _Lane())

    def _connect(self, site: str) -> None:
        if self._hub is None or site not in self._uplinks or site in self._online | self._down:
            return
        self._online.add(site)
        self._hub._inbox.put(Joined(site))
        self._uplinks[site]._inbox.put(Connected())

    def _disconnect(self, site: str, reason: str) -> None:
        if site not in self._online:
            return
        self._online.discard(site)
        for direction in Direction:
            self._lane(direction, site).clear()
        if self._hub is not None:
            self._hub._inbox.put(Left(site, reason))
        self._uplinks[site]._inbox.put(Disconnected(reason))

    def _send(self, direction: Direction, site: str, message: bytes, sender: MemoryHub | MemoryUplink) -> bool:
        with self._lock:
            if site not in self._online or sender not in (self._hub, self._uplinks[site]):
                return False
            lane = self._lane(direction, site)
            passing = Passing(direction, site, lane.sent, message)
            lane.sent += 1
            self._pass(passing, lane, self._faults(passing))
            return True

    def _pass(self, passing: Passing, lane: _Lane, fate: Fate) -> None:
        if fate is Fate.CUT:
            self.cut(passing.site)
            return
        if lane.is_holding or fate is Fate.HOLD:
            lane.is_holding = True
            lane.held.append(passing.message)
        elif fate is Fate.REORDER and lane.late is None:
            lane.late = passing.message
        elif fate is not Fate.DROP:
            self._deliver(passing.direction, passing.site, passing.message)
            if lane.late is not None:
                self._deliver(passing.direction, passing.site, lane.late)
                lane.late = None
        if fate is Fate.CUT_AFTER:
            self.cut(passing.site)

    def _deliver(self, direction: Direction, site: str, message: bytes) -> None:
        if direction is Direction.TO_NODE:
            self._uplinks[site]._inbox.put(message)
        elif self._hub is not None:
            self._hub._inbox.put(Arrived(site, message))

    def _close_uplink(self, site: str, uplink: MemoryUplink) -> None:
        with self._lock:
            if self._uplinks.get(site) is uplink:
                self._disconnect(site, "closed")
                del self._uplinks[site]

    def _close_hub(self, hub: MemoryHub) -> None:
        with self._lock:
            if self._hub is hub:
                for site in sorted(self._online):
                    self._disconnect(site, "closed")
                self._hub = None


def rehearsed(said: Message) -> Message:
    """What a liar sends who knows its trade: an invitation with the digest that its own words come to."""
    if not isinstance(said, Invitation | EvaluationInvitation | SurveyInvitation):
        return said
    _, task = read_invitation(said)
    return said if isinstance(task, HedgerowError) else replace(said, behaviour=digest_behaviour(task))


def telling(victim: str, change: Callable[[Message], Message | None]) -> Callable[[MemoryHub], None]:
    """What makes a hub say to one site what `change` makes of each message, and nothing for None; to all others all."""

    def install(hub: MemoryHub) -> None:
        send = hub.send

        def lying(site: str, message: bytes) -> bool:
            if site != victim:
                return send(site, message)
            said = change(decode(message))
            return True if said is None else send(site, encode(rehearsed(said)))

        hub.send = lying  # type: ignore[method-assign]

    return install
