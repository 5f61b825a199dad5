"""A port has so many places: strangers and surplus connections make room, and who may take part gets in."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import resource
import socket
import ssl
import stat
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hedgerow.errors import EnvironmentFault
from hedgerow.protocol.stream import WatchRequest, wrap_message
from hedgerow.transport import connections
from hedgerow.transport.connections import Door, parse_peer, places
from hedgerow.transport.grpc_hub import MONITOR_CONNECTIONS, GrpcHub, Monitors
from hedgerow.transport.grpc_link import JOIN, WATCH, grpc
from hedgerow.transport.identities import Role, build_roster, new_identity
from hedgerow.transport.interface import Address, Connected, Disconnected, Joined
from tests.tiers import all_but

EventOf = Callable[..., Any]


def wait_until(is_so: Callable[[], bool]) -> None:
    """No test measures time; this only bounds one that fails."""
    deadline = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def n_accepted(port: int) -> int:
    """Connections to a port that are among this process's files."""
    found = 0
    for number in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):
            # A duplicate of what is no socket would stay open.
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socket.socket(fileno=os.dup(number)) as one:
                    found += bool(one.getpeername()) and one.getsockname()[1] == port
    return found


def is_ended(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(1 << 16):
            pass
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def no_free_file(_: int) -> int:
    raise OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("ipv4:192.0.2.1:5000", ("192.0.2.1", 5000)),
        ("ipv6:%5B2001:db8::1%5D:5000", ("2001:db8::1", 5000)),
        ("ipv6:[::ffff:192.0.2.1]:5000", ("192.0.2.1", 5000)),
        ("ipv6:%5Bfe80::1%25eth0%5D:5000", ("fe80::1", 5000)),
        ("unix:/run/somewhere", None),
        ("ipv4:nowhere:5000", None),
        ("", None),
    ],
)
def test_grpcs_words_for_a_peer_are_read(text: str, peer: tuple[str, int] | None) -> None:
    """A site whose address were read wrongly would be taken for a stranger, and sent away."""
    assert parse_peer(text) == peer


@pytest.mark.parametrize("host", all_but(["127.0.0.1", "localhost"], ["127.0.0.1", "::1", "0.0.0.0", "localhost"]))
def test_a_node_is_found_whatever_the_coordinator_listens_on(
    federation: Any, quick: Any, event_of: EventOf, host: str
) -> None:
    """It stays connected beyond the time after which a stranger is sent away, and the stranger is."""
    settings = quick(handshake_seconds=0.5, hello_seconds=0.2)
    try:
        hub = federation.opened(GrpcHub(federation.coordinator, federation.roster, Address(host), settings=settings))
    except EnvironmentFault:
        pytest.skip(f"This machine has no {host}.")
    where = "[::1]" if host == "::1" else "127.0.0.1"
    node = federation.uplink("north", 0, settings=quick())
    node._address = f"{where}:{hub.port}"
    assert event_of(hub, Joined) == Joined("north")
    for _ in range(2):
        with socket.create_connection((where.strip("[]"), hub.port)) as stranger:
            wait_until(lambda stranger=stranger: is_ended(stranger))
    wait_until(lambda: hub._door._now > 1.5)
    assert hub.connected_sites() == ("north",) and hub.receive(0) is None


def test_strangers_make_room(federation: Any, monkeypatch: pytest.MonkeyPatch, event_of: EventOf) -> None:
    """With all places taken by connections that nobody ends, every site still gets in, and stays."""
    monkeypatch.setattr(connections, "STRANGERS", 40)
    hub = federation.hub()
    n_places = hub._door._n_places
    assert n_places == 40 + 2 * len(federation.roster.sites)
    with contextlib.ExitStack() as silent:
        for _ in range(3 * n_places):
            silent.enter_context(socket.create_connection(("127.0.0.1", hub.port)))
        nodes = [federation.uplink(site.name, hub.port) for site in federation.roster.sites]
        joined = {event_of(hub, Joined).site for _ in nodes}
        assert joined == {site.name for site in federation.roster.sites} == set(hub.connected_sites())
        assert n_accepted(hub.port) <= n_places


class WatchedHub:
    """A coordinator that the monitor `watch` may watch, and connections with its certificate."""

    def __init__(self, federation: Any, settings: Any) -> None:
        self._federation = federation
        self.watcher = new_identity("watch", Role.MONITOR, bytes([77]) * 32)
        sites = [site.public for site in federation.sites.values()]
        self.roster = build_roster(federation.coordinator.public, sites, None, [self.watcher.public])
        monitors = Monitors(self.roster, settings)
        self.hub = federation.opened(
            GrpcHub(federation.coordinator, self.roster, Address(), settings=settings, monitors=monitors)
        )

    def channel(self) -> Any:
        own = self.roster.coordinator
        credentials = grpc.ssl_channel_credentials(
            own.certificate_pem, self.watcher.tls_key, self.watcher.public.certificate_pem
        )
        options = [
            ("grpc.ssl_target_name_override", own.tls_name),
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        return self._federation.opened(grpc.secure_channel(f"127.0.0.1:{self.hub.port}", credentials, options=options))

    def tls(self, folder: Any) -> ssl.SSLSocket:
        file = folder / "watch.pem"
        file.write_bytes(self.watcher.tls_key + self.watcher.public.certificate_pem)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(file)
        connection = context.wrap_socket(socket.create_connection(("127.0.0.1", self.hub.port)))
        return self._federation.opened(connection)


def test_one_certificate_has_a_few_connections(
    federation: Any, quick: Any, event_of: EventOf, caplog: pytest.LogCaptureFixture
) -> None:
    """A monitor that opens forty, each with a stream, keeps as many as it may, and the operator reads its name; a site
    gets in beside it.
    """
    scene = WatchedHub(federation, quick())
    request = wrap_message(WatchRequest(scene.roster.digest(), 0.1).to_bytes())
    calls = [scene.channel().unary_stream(WATCH)(request) for _ in range(40)]
    wait_until(lambda: sum(call.done() for call in calls) >= 36)
    wait_until(lambda: n_accepted(scene.hub.port) <= MONITOR_CONNECTIONS)
    assert scene.hub._monitors.is_there()
    federation.uplink("north", scene.hub.port, roster=scene.roster)
    assert event_of(scene.hub, Joined) == Joined("north")
    assert "monitor watch" in caplog.text
    assert len(caplog.records) < 20


def test_refused_streams_name_their_party(federation: Any, quick: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A monitor that asks for what only sites may is in the log by its name, and not once for every stream."""
    scene = WatchedHub(federation, quick())
    channel = scene.channel()
    for _ in range(100):
        assert not list(channel.stream_stream(JOIN)(iter([b""])))[1:]
    wait_until(lambda: scene.hub.refusals["unpinned"] == 100)
    assert "monitor watch" in caplog.text and len(caplog.records) < 10


def test_a_connection_that_asks_for_nothing_is_ended(federation: Any, quick: Any, tmp_path: Any) -> None:
    """A certificate of the roster alone keeps no connection open: something has to be carried over it."""
    scene = WatchedHub(federation, quick(handshake_seconds=0.5, hello_seconds=0.2))
    connection = scene.tls(tmp_path)
    wait_until(lambda: is_ended(connection))


@pytest.mark.parametrize("is_refused", [False, True])
def test_who_has_hung_up_keeps_no_connection(federation: Any, event_of: EventOf, is_refused: bool) -> None:
    """A node that waits for its owner, or for the next run, was ended later as a stranger who takes a place, which was
    a warning in the coordinator's log: gRPC keeps the connection until Python has freed the call."""
    sites = [site.public for name, site in federation.sites.items() if name != "west"]
    roster = build_roster(federation.coordinator.public, sites) if is_refused else federation.roster
    hub = federation.hub()
    gc.disable()
    try:
        uplink = federation.uplink("north", hub.port, roster=roster)
        assert event_of(uplink, Disconnected if is_refused else Connected)
        uplink.close()
        wait_until(lambda: not n_accepted(hub.port))
    finally:
        gc.enable()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A port whose accepted connections are files of this process."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield listening


@pytest.mark.skipif(sys.platform != "linux", reason="other systems neither say who has spoken nor have 127.0.0.2")
def test_who_makes_room_first(listener: socket.socket) -> None:
    """The address that has the most, of these who said nothing, of these the oldest: a crowd crowds itself out."""
    where = listener.getsockname()
    plan = [("127.0.0.2", b"hello"), *[("127.0.0.3", b""), ("127.0.0.3", b"hello")] * 20]
    with contextlib.ExitStack() as stack:
        near = []
        for host, words in plan:
            far = stack.enter_context(socket.create_connection(where, source_address=(host, 0)))
            near.append(stack.enter_context(listener.accept()[0]))
            far.sendall(words)
        for (_, words), end in zip(plan, near, strict=True):
            if words:
                end.recv(1, socket.MSG_PEEK)  # It has arrived.

        async def look() -> int:
            return Door(40, 3600.0)._look(where[1])

        assert asyncio.run(look()) == len(plan)
        ended = [number for number, end in enumerate(near) if is_ended(end)]
        silent = [number for number, (_, words) in enumerate(plan) if not words]
        # Of 40 places strangers have half: one more than the silent ones must go, and number 0 has its address alone.
        assert ended == sorted([*silent, 2])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no 127.0.0.2")
def test_an_outgoing_connection_is_no_stranger(listener: socket.socket) -> None:
    """What this process dialled itself is not ended, though its own port has the number of the listening one."""
    port = listener.getsockname()[1]
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        stack.enter_context(socket.create_connection(database.getsockname(), source_address=("127.0.0.2", port)))
        stack.enter_context(socket.create_connection(listener.getsockname()))
        stack.enter_context(listener.accept()[0])

        async def look() -> int:
            return Door(40, 3600.0)._look(port)

        assert asyncio.run(look()) == 1


@pytest.fixture
def stranger(listener: socket.socket) -> Iterator[socket.socket]:
    """The far end of a connection that has been accepted."""
    with socket.create_connection(listener.getsockname()) as far, listener.accept()[0]:
        yield far


def test_a_connection_that_comes_when_there_is_no_free_file_is_found_later(
    listener: socket.socket, stranger: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment at which a stranger comes does not give it a place for ever."""
    port = listener.getsockname()[1]

    async def look() -> int:
        door = Door(40, 3600.0)
        with monkeypatch.context() as patched:
            patched.setattr(os, "dup", no_free_file)
            with contextlib.suppress(OSError):
                door._look(port)
        return door._look(port)

    assert asyncio.run(look()) == 1


def test_a_connection_that_could_not_be_ended_is_ended_later(
    listener: socket.socket, stranger: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has to go does not stay because this process had no free file when it was to be sent away."""
    port = listener.getsockname()[1]

    async def look() -> None:
        door = Door(40, 1.0)
        door._look(port)
        door._now += 2.0
        with monkeypatch.context() as patched:
            patched.setattr(os, "dup", no_free_file)
            with contextlib.suppress(OSError):
                door._look(port)
        assert not is_ended(stranger)
        door._look(port)

    asyncio.run(look())
    wait_until(lambda: is_ended(stranger))


def test_too_few_files_are_an_error_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Better at the start than when the last site dials in, or the database has to be opened."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, hard))
    assert 100 < places("127.0.0.1", 100, 200) < 1024
    with pytest.raises(EnvironmentFault) as error:
        places("127.0.0.1", 1000, 2000)
    assert error.value.code == "too-few-files"
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, hard))
    assert places("127.0.0.1", 1000, 2000) == 2000 + connections.STRANGERS


def test_a_hub_that_has_too_few_files_does_not_listen(federation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator reads it where the coordinator is started."""
    monkeypatch.setattr(connections, "_RESERVE", 10**9)
    with pytest.raises(EnvironmentFault) as error:
        federation.hub()
    assert error.value.code == "too-few-files"
