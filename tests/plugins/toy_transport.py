"""An engine from outside the package: queues between threads of one process, a hub for each port."""

from __future__ import annotations

import queue
import threading
from typing import Any

from hedgerow.transport.engines import Engine
from hedgerow.transport.identities import PrivateIdentity
from hedgerow.transport.interface import Arrived, Connected, Disconnected, HubEvent, Joined, Left, Traffic, UplinkEvent

HUBS: dict[int, ToyHub] = {}
_LOCK = threading.Lock()


class ToyHub:
    """See `hedgerow.transport.interface.ListeningHub`."""

    def __init__(self, port: int) -> None:
        self.port, self.refusals, self.releases = port, dict[str, int](), dict[str, str]()
        self._events: queue.SimpleQueue[HubEvent] = queue.SimpleQueue()
        self._uplinks: dict[str, ToyUplink] = {}
        self._traffic = Traffic()
        HUBS[port] = self

    def send(self, site: str, message: bytes) -> bool:
        uplink = self._uplinks.get(site)
        if uplink is not None:
            self._traffic.sent += len(message)
            uplink.events.put(message)
        return uplink is not None

    def receive(self, timeout: float) -> HubEvent | None:
        return _next(self._events, timeout)

    def traffic(self) -> Traffic:
        return self._traffic

    def join(self, uplink: ToyUplink) -> None:
        with _LOCK:
            self._uplinks[uplink.site] = uplink
        self._events.put(Joined(uplink.site))
        uplink.events.put(Connected())

    def take(self, site: str, message: bytes | None) -> None:
        """A message of a site, or None for its leaving."""
        if message is None:
            self._uplinks.pop(site, None)
        else:
            self._traffic.received += len(message)
        self._events.put(Left(site, "connection-lost") if message is None else Arrived(site, message))

    def close(self) -> None:
        HUBS.pop(self.port, None)
        for uplink in list(self._uplinks.values()):
            uplink.events.put(Disconnected("connection-lost"))


class ToyUplink:
    """See `hedgerow.transport.interface.Uplink`."""

    def __init__(self, port: int, site: str) -> None:
        self.site, self._port = site, port
        self.events: queue.SimpleQueue[UplinkEvent] = queue.SimpleQueue()
        self._hub: ToyHub | None = None

    def send(self, message: bytes) -> bool:
        if self._hub is not None:
            self._hub.take(self.site, message)
        return self._hub is not None

    def receive(self, timeout: float) -> UplinkEvent | None:
        if self._hub is None and self._port in HUBS:
            self._hub = HUBS[self._port]
            self._hub.join(self)
        return _next(self.events, min(timeout, 0.05) if self._hub is None else timeout)

    def close(self) -> None:
        if self._hub is not None:
            self._hub.take(self.site, None)


def _next(events: queue.SimpleQueue[Any], timeout: float) -> Any:
    try:
        return events.get(timeout=timeout) if timeout > 0 else events.get_nowait()
    except queue.Empty:
        return None


def _uplink(address: str, identity: PrivateIdentity, roster: Any, plan_digest: bytes) -> ToyUplink:
    return ToyUplink(int(address.rpartition(":")[2]), identity.public.name)


ENGINE = Engine(lambda identity, roster, place, plan_digest, monitors: ToyHub(place[1]), _uplink)
