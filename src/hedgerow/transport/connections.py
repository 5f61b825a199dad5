# SPDX-License-Identifier: Apache-2.0
"""Limit the connections of a listening port, and check whom an HTTP request was meant for.

It decides how many connections there may be, which of them make room when there are too many, and whether a request
over HTTP was meant for this machine.

gRPC refuses a connection beyond `grpc.max_allowed_incoming_connections` before it begins a handshake, so that a process
keeps files for its databases whatever strangers do. It does not choose: strangers who were there first would keep the
sites out. That choice is made here. gRPC gives no handle on its connections, but they are files of this process. Each
is found among them by its own address and port, and ended by shutting its socket down, as if its peer had hung up.

A firewall or a proxy that admits only the sites' addresses makes this needless; it stays for coordinators that have
neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import resource
import socket
import stat
import struct
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from hedgerow.errors import EnvironmentFault
from hedgerow.transport.interface import Repeats, times

_log = logging.getLogger(__name__)
STRANGERS = 1024
"""Places, where there are files for them, for connections that no one has vouched for yet."""
_MIN_STRANGERS = 16
_RESERVE = 160
"""Files that no connection is given: databases and their logs, the model, ports for HTTP, and what libraries open."""
_FILES = "/dev/fd"
_SECONDS, _SECONDS_UNDER_PRESSURE = 1.0, 0.1
_PRESSURE = 4
"""Strangers are checked more often once they take more than one in this many places."""
_BYTES_RECEIVED = 128
"""Offset of tcpi_bytes_received in Linux's tcp_info (include/uapi/linux/tcp.h), 8 bytes."""

Peer = tuple[str, int]
_Address = tuple[int, str]
"""Kind of a socket, and its address on this machine."""
_EVERY_ADDRESS = ("0.0.0.0", "::")
_File = tuple[int, int]
"""Number and inode: the number alone is given again to another file."""


def allow_many_connections() -> None:
    """Let this process open as many files as its user may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def is_loopback(host: str) -> bool:
    """Return whether an address, or a name of one, can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_own_name(asked: str, host: str) -> bool:
    """Return whether an HTTP request names this machine: by an address, or by an unambiguous name.

    It refuses pages of other sites whose own name was made to resolve to this machine (DNS rebinding).

    A page in somebody's browser whose own name was made to lead here (DNS rebinding) is told from it by that name.

    Args:
        asked: the request's header `Host`.
        host: the name under which this machine was told to listen.
    """
    name = asked.lower()
    name, _, port = name[1:].partition("]") if name.startswith("[") else name.partition(":")
    if not port.removeprefix(":").isdigit() and port:
        return False
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    # A name without dots belongs to this network; an attacker cannot make a browser resolve it elsewhere.
    is_one_label = name.replace("-", "").replace("_", "").isalnum()
    return is_one_label or name in {host.lower(), socket.gethostname().lower()}


def places(host: str, n_needed: int, n_guests: int) -> int:
    """Return the most connections that a port may have, limited by the files that this process may open.

    Args:
        host: where it will listen.
        n_needed: connections without which it would be of no use.
        n_guests: connections that all certificates together may have.

    Raises:
        EnvironmentFault: `too-few-files`.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free, needed = soft - len(os.listdir(_FILES)) - _RESERVE, n_needed + _MIN_STRANGERS
    if soft == resource.RLIM_INFINITY:
        free = n_guests + STRANGERS
    if free < needed:
        enough = soft + needed - free
        raise EnvironmentFault("too-few-files", soft=soft, n_needed=n_needed, enough=enough)
    # gRPC listens on every address of a name, and applies the limit to each separately.
    try:
        n_addresses = len({found[4] for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
    except OSError:
        n_addresses = 1
    return max(1, min(free, n_guests + STRANGERS) // n_addresses)


@dataclass(slots=True)
class _SeenConnection:
    """An accepted connection. `network`: what one household is given; `since`: when it began."""

    peer: Peer
    network: str
    since: float
    has_spoken: bool = False
    is_ended: bool = False


@dataclass(slots=True)
class _Guest:
    """A peer with a known certificate. `since`: the time since which it has carried nothing that counts."""

    name: str
    at_most: int
    since: float
    number: int
    n_carried: int = 0


class Door:
    """Looks after the connections of one port; everything but `__init__` runs in the event loop.

    A connection is a stranger's until a stream has come over it with a pinned certificate. One that carries nothing for
    `idle_seconds` is ended, and so are the surplus ones of one certificate: first those that carry nothing, and of
    these the oldest. When strangers take half of the free places, the address with the most connections makes room:
    first the connections that have said nothing, the oldest first. So a new caller gets through its handshake, however
    many others are at the door.

    Args:
        n_places: as given to gRPC, see `places`.
        idle_seconds: in which this process ran.
    """

    def __init__(self, n_places: int, idle_seconds: float) -> None:
        self._n_places, self._idle_seconds = n_places, idle_seconds
        self._now = 0.0
        """Seconds that were waited for here: they do not pass while this process does not run."""
        self._found: dict[_File, _SeenConnection | None] = {}
        """What is among the files; None for what is no connection of the port."""
        self._listening: set[_Address] = set()
        self._guests: dict[Peer, _Guest] = {}
        self._n_admitted = 0
        self._repeats = Repeats()
        self._is_blind = False
        """A peer has come whose address is of an unknown kind: from now on no one is sent away."""
        self._wake = asyncio.Event()

    def admit(self, peer: str, name: str, at_most: int) -> None:
        """Register a peer, in gRPC's words, whose stream has come with a pinned certificate.

        Args:
            name: whose it is, no two the same.
            at_most: how many connections that party may have.
        """
        key = parse_peer(peer)
        if key is None:
            # Stop ending strangers: this guest cannot be told from them.
            self._is_blind = True
            return
        guest = self._guests.get(key)
        if guest is None or guest.name != name:
            self._n_admitted += 1
            self._guests[key] = _Guest(name, at_most, self._now, self._n_admitted)
            own = sum(other.name == name for other in self._guests.values())
            if own > at_most:
                self._wake.set()

    @contextlib.contextmanager
    def carrying(self, peer: str) -> Iterator[None]:
        """Mark the admitted peer's connection as in use for the duration of the block."""
        guest = self._guests.get(parse_peer(peer) or ("", 0))
        if guest is None:
            yield
            return
        guest.n_carried += 1
        try:
            yield
        finally:
            guest.n_carried -= 1
            guest.since = self._now

    @property
    def options(self) -> list[tuple[str, int]]:
        """Options for gRPC's server."""
        return [("grpc.max_allowed_incoming_connections", self._n_places)]

    async def watch(self, port: int) -> None:
        """Look after the connections of this port until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                is_pressed = self._look(port) * _PRESSURE > self._n_places
            except OSError:
                is_pressed = True  # Other parts of this process have used up all files, so there is none to look with.
            seconds = _SECONDS_UNDER_PRESSURE if is_pressed else _SECONDS
            # Limit the share of time spent here, so that most of the loop's time remains for the sites.
            seconds = min(max(seconds, 2 * (clock() - began)), _SECONDS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), seconds)
                # A peer that opens connection after connection does not speed up this loop.
                self._wake.clear()
                seconds = _SECONDS_UNDER_PRESSURE
                await asyncio.sleep(seconds)
            self._now += seconds

    def _look(self, port: int) -> int:
        """End idle and surplus connections; return the number of strangers found.

        Raises OSError when there is no free file to look with; what was not done then is done at the next look.
        """
        self._find(port)
        present = {file: one for file, one in self._found.items() if one is not None and not one.is_ended}
        peers = {one.peer for one in present.values()}
        for peer, guest in list(self._guests.items()):
            # Forget a guest whose connection has ended, but not before the first look after it came.
            if peer not in peers and guest.n_carried == 0 and guest.since < self._now:
                del self._guests[peer]
        strangers = [file for file, one in present.items() if one.peer not in self._guests]
        idle = {file for file in present if self._is_idle(present[file])}
        surplus = self._list_surplus()
        ended = idle | {file for file, one in present.items() if one.peer in surplus}
        room = max(self._n_places - (len(present) - len(strangers)), _MIN_STRANGERS) // 2
        staying = [file for file in strangers if file not in ended]
        if len(staying) > room:
            crowd = Counter(present[file].network for file in staying)
            for file in staying:
                present[file].has_spoken = present[file].has_spoken or _has_spoken(file)

            def turn(file: _File) -> tuple[int, bool, float]:
                one = present[file]
                return -crowd[one.network], one.has_spoken, one.since

            staying.sort(key=turn)
            ended.update(staying[: len(staying) - room])
        for file in () if self._is_blind else sorted(ended):
            _shut(file)
            present[file].is_ended, peer = True, present[file].peer
            name = self._guests[peer].name if peer in self._guests else ""
            if count := self._repeats.note(name, "ended"):
                said, of = "Closed an idle or surplus connection%s from %s%s", f" of {name}" if name else ""
                _log.warning(said, of, peer[0], times(count))
        return len(strangers)

    def _find(self, port: int) -> None:
        """Update `_found` to the connections open now; without a free file to look with, leave it unchanged."""
        found: dict[_File, _SeenConnection | None] = {}
        new: dict[_File, _Ends] = {}
        for name in os.listdir(_FILES):
            try:
                state = os.fstat(int(name))
            except OSError:
                continue  # Closed meanwhile.
            if not stat.S_ISSOCK(state.st_mode):
                continue
            file = int(name), state.st_ino
            found[file] = self._found.get(file)
            if file not in self._found and (ends := _read_ends(file)) is not None and ends.port == port:
                new[file] = ends
        self._listening.update(ends.own for ends in new.values() if ends.peer is None)
        for file, ends in new.items():
            # A connection from an address on which this process does not listen was dialled by it.
            kind, host = ends.own
            if ends.peer is not None and any((kind, one) in self._listening for one in (host, *_EVERY_ADDRESS)):
                found[file] = self._add_peer(ends.peer)
        self._found = found

    def _add_peer(self, peer: Peer) -> _SeenConnection:
        """Describe a connection seen for the first time."""
        guest = self._guests.get(peer)
        if guest is not None and guest.n_carried == 0 and guest.since + _SECONDS < self._now:
            del self._guests[peer]  # A new connection reuses the port of a former guest.
        # One household has one IPv4 address, or one IPv6 network of 64 bits.
        host, _ = peer
        network = str(ipaddress.ip_network((host, 64), strict=False)) if ":" in host else host
        return _SeenConnection(peer, network, self._now)

    def _is_idle(self, connection: _SeenConnection) -> bool:
        guest = self._guests.get(connection.peer)
        if guest is not None and guest.n_carried:
            return False
        return (connection if guest is None else guest).since + self._idle_seconds < self._now

    def _list_surplus(self) -> set[Peer]:
        """List the connections beyond their parties' limits."""
        by_name: dict[str, list[tuple[bool, int, Peer]]] = defaultdict(list)
        for peer, guest in self._guests.items():
            by_name[guest.name].append((guest.n_carried > 0, guest.number, peer))
        surplus: set[Peer] = set()
        for held in by_name.values():
            at_most = self._guests[held[0][2]].at_most
            surplus.update(peer for _, _, peer in sorted(held)[: max(0, len(held) - at_most)])
        return surplus


def parse_peer(text: str) -> Peer | None:
    """Read address and port from gRPC's name of a peer; None for another form.

    Examples are "ipv4:192.0.2.1:5000" and "ipv6:%5B2001:db8::1%5D:5000".
    """
    kind, _, rest = unquote(text).partition(":")
    host, _, port = rest.rpartition(":")
    return _find_peer(host.strip("[]"), int(port)) if kind in {"ipv4", "ipv6"} and port.isdigit() else None


def _find_peer(host: str, port: int) -> Peer | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address), port


@contextlib.contextmanager
def _duplicate_socket(file: _File) -> Iterator[socket.socket | None]:
    """Duplicate an open socket, so that the duplicate stays this socket if the first is closed meanwhile.

    Yields None if it was closed before. Raises OSError when there is no free file for it.
    """
    number, inode = file
    found = None
    try:
        again = os.dup(number)
    except OSError as fault:
        if fault.errno != errno.EBADF:
            raise
        yield None
        return
    try:
        if os.fstat(again).st_ino == inode:
            found = socket.socket(fileno=again)
    finally:
        if found is None:
            os.close(again)
    if found is None:
        yield None
        return
    with found:
        yield found


@dataclass(frozen=True, slots=True)
class _Ends:
    """Both ends of a socket. `own`, `port`: of this process; `peer`: None for a listening socket."""

    own: _Address
    port: int
    peer: Peer | None


def _read_ends(file: _File) -> _Ends | None:
    """Return both ends of a socket; None for other files and for sockets that have ended.

    Raises OSError when there is no free file to look.
    """
    with _duplicate_socket(file) as found:
        if found is None or found.family not in {socket.AF_INET, socket.AF_INET6}:
            return None
        try:
            own = found.getsockname()
            is_listening = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            theirs = None if is_listening else found.getpeername()
        except OSError:
            return None  # The connection has ended, or never existed.
    address, peer = _find_peer(own[0], own[1]), None if theirs is None else _find_peer(theirs[0], theirs[1])
    if address is None or (theirs is not None and peer is None):
        return None
    return _Ends((found.family, address[0]), address[1], peer)


def _has_spoken(file: _File) -> bool:
    """Return whether the peer has sent anything; False if the system cannot tell."""
    if sys.platform != "linux":
        return False
    with _duplicate_socket(file) as found:
        if found is None:
            return False
        with contextlib.suppress(OSError, struct.error):
            state = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED + 8)
            (n_bytes,) = struct.unpack_from("=Q", state, _BYTES_RECEIVED)
            return bool(n_bytes)
    return False


def _shut(file: _File) -> None:
    """End a connection; gRPC notices it and closes the file.

    Raises OSError when there is no free file to do it with.
    """
    with _duplicate_socket(file) as found:
        if found is not None:
            with contextlib.suppress(OSError):  # The peer was quicker.
                found.shutdown(socket.SHUT_RDWR)
