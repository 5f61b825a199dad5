"""A small federation with real keys, TLS and sockets on loopback; a wire that can be cut; a hostile client."""

from __future__ import annotations

import contextlib
import gc
import queue
import random
import select
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from hedgerow.codec import CodecFault, Encoded
from hedgerow.protocol.stream import Admittance, Farewell, Introduction, unwrap_message, wrap_message
from hedgerow.transport.grpc_hub import GrpcHub
from hedgerow.transport.grpc_link import JOIN, GrpcUplink, LinkSettings, grpc
from hedgerow.transport.identities import PinnedRoster, PrivateIdentity, Role, build_roster, new_identity
from hedgerow.transport.interface import Address, HubEvent, UplinkEvent
from tests.ports import hold_port

QUICK = LinkSettings(
    ping_seconds=0.2, silence_seconds=3600.0, handshake_seconds=600.0, hello_seconds=600.0, closing_seconds=600.0,
    backoff_seconds=0.05, longest_backoff_seconds=0.2, http_proxy=False,
)  # fmt: skip
"""Quick where nothing is judged. No peer is given up, however busy the machine is, unless a test asks for it."""
PATIENCE = 300.0
"""No test measures time; this only bounds a test that fails."""


class Relay:
    """A TCP wire in front of a port: it can be cut, frozen (nothing passes, nothing breaks) and mended."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._passes = threading.Event()
        self._passes.set()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            self._sockets += [near, far]
            carrying = threading.Thread(target=self._carry, args=(near, far), daemon=True)
            self._threads.append(carrying)
            carrying.start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        other = {near: far, far: near}
        try:
            while True:
                for side in select.select([near, far], [], [], 0.2)[0]:
                    self._passes.wait()
                    data = side.recv(1 << 16)
                    if not data:
                        return
                    other[side].sendall(data)
        except (OSError, ValueError):
            return
        finally:
            near.close()
            far.close()

    def cut(self) -> None:
        """Break all connections; new ones are let through."""
        for end in self._sockets:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        self._sockets.clear()

    def freeze(self) -> None:
        """Let nothing through, as a network that drops packets."""
        self._passes.clear()

    def thaw(self) -> None:
        self._passes.set()

    def close(self) -> None:
        # Closed by itself, it would leave a thread in `accept`.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.thaw()
        self._threads[0].join(PATIENCE)
        self.cut()
        for thread in self._threads:
            thread.join(PATIENCE)


class Hostile:
    """A client with a valid certificate that writes whatever it is told to, message by message."""

    def __init__(self, federation: Federation, site: str, port: int) -> None:
        identity, own = federation.sites[site], federation.roster.coordinator
        credentials = grpc.ssl_channel_credentials(
            own.certificate_pem, identity.tls_key, identity.public.certificate_pem
        )
        options = [("grpc.ssl_target_name_override", own.tls_name), ("grpc.enable_http_proxy", 0)]
        self._channel = grpc.secure_channel(f"127.0.0.1:{port}", credentials, options=options)
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._answers: Any = self._channel.stream_stream(JOIN)(iter(self._messages.get, None))
        self.introduction = Introduction(site, federation.roster.digest())

    def write(self, *raw: bytes) -> Hostile:
        """Hand over what gRPC shall carry."""
        for each in raw:
            self._messages.put(each)
        return self

    def say(self, *messages: Encoded | bytes) -> Hostile:
        """Send these, as a node wraps its own."""
        contents = [message.to_bytes() if isinstance(message, Encoded) else message for message in messages]
        return self.write(*map(wrap_message, contents))

    def read(self) -> object:
        """The next message of the coordinator, whatever it says; None when the stream is over."""
        try:
            content = unwrap_message(next(self._answers), 1 << 30)
        except StopIteration:
            return None
        for kind in (Admittance, Farewell):
            with contextlib.suppress(CodecFault):
                return kind.from_bytes(content)
        return content

    def greet(self) -> Hostile:
        """Join as a good node would."""
        self.say(self.introduction).read()
        return self

    def close(self) -> None:
        self._messages.put(None)
        self._channel.close()


class Federation:
    """Identities that live as long as the tests, and whatever a test opens, closed after it."""

    def __init__(self) -> None:
        # Keys of tests are no secrets: the same seeds every time.
        self.coordinator = new_identity("coordinator", Role.COORDINATOR, bytes([99]) * 32)
        self.sites = {
            name: new_identity(name, Role.SITE, bytes([number + 1]) * 32)
            for number, name in enumerate(["east", "north", "south", "west"])
        }
        self.roster = build_roster(self.coordinator.public, [site.public for site in self.sites.values()])
        self._open: list[Any] = []

    def opened(self, thing: Any) -> Any:
        self._open.append(thing)
        return thing

    def hub(self, port: int = 0, settings: LinkSettings = QUICK, **kwargs: Any) -> GrpcHub:
        if not port:
            # It stays this test's own when the hub is closed, for another one.
            held, address = hold_port()
            self.opened(held)
            port = int(address.rpartition(":")[2])
        hub: GrpcHub = self.opened(
            GrpcHub(self.coordinator, self.roster, Address(port=port), settings=settings, **kwargs)
        )
        return hub

    def uplink(
        self,
        site: str,
        port: int,
        *,
        identity: PrivateIdentity | None = None,
        roster: PinnedRoster | None = None,
        settings: LinkSettings = QUICK,
        **kwargs: Any,
    ) -> GrpcUplink:
        uplink: GrpcUplink = self.opened(
            GrpcUplink(
                f"127.0.0.1:{port}",
                identity or self.sites[site],
                roster or self.roster,
                random.Random(1).random,
                settings=settings,
                **kwargs,
            )
        )
        return uplink

    def relay(self, port: int) -> Relay:
        relay: Relay = self.opened(Relay(port))
        return relay

    def hostile(self, site: str, port: int) -> Hostile:
        hostile: Hostile = self.opened(Hostile(self, site, port))
        return hostile

    def close(self) -> None:
        # First the wires: nobody can take its leave over one that is frozen.
        for thing in sorted(reversed(self._open), key=lambda thing: not isinstance(thing, Relay)):
            thing.close()
        self._open.clear()
        # A socket that a test forgot is that test's fault, and not that of the one in which Python finds it.
        gc.collect()


@pytest.fixture(scope="session")
def _keys() -> Federation:
    return Federation()


@pytest.fixture
def federation(_keys: Federation) -> Iterator[Federation]:
    """Four sites and a coordinator who pin each other."""
    yield _keys
    _keys.close()


@pytest.fixture
def quick() -> Callable[..., LinkSettings]:
    """The settings of these tests, with changes."""
    return lambda **changes: replace(QUICK, **changes)


@pytest.fixture
def event_of() -> Callable[..., Any]:
    """Wait for one end's next event of a kind, past others."""

    def wait(end: GrpcHub | GrpcUplink, kind: type, *, only: bool = False) -> HubEvent | UplinkEvent:
        while (event := end.receive(PATIENCE)) is not None:
            if isinstance(event, kind):
                return event
            assert not only, event
        raise AssertionError(f"No {kind.__name__} came.")

    return wait
