"""What both ends of the engine `grpc` share: settings, channel options, and the one event loop of the process."""

from __future__ import annotations

import asyncio
import os
import queue
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar

from hedgerow.errors import EnvironmentFault
from hedgerow.protocol.wire.refusals import WireCode, WireRefusal

# gRPC's core writes a line to stderr for every failed handshake: strangers must not be able to fill the operator's log.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc.aio

JOIN = "/hedgerow.wire.v1.Coordinator/Join"
"""The method of hedgerow.proto that every stream calls."""
SERVICE, METHOD = JOIN[1:].split("/")
WATCH = "/hedgerow.wire.v1.Monitor/Watch"
"""The method of hedgerow.proto that monitors call."""
WATCH_SERVICE, WATCH_METHOD = WATCH[1:].split("/")
_HEADROOM = 1 << 16
_ON_THE_WAY = 4 << 20
"""Bytes of a stream that its reader has not taken yet: 40 MB a second over a distance of 100 ms."""
_SLICE_SECONDS = 1.0
_SLICES = 8
_LATE_SECONDS = 0.05
"""So late does a thread wake up at times on a machine that is not busy at all."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """How patient and how generous one end of a stream is.

    Args: max_message_bytes: largest message taken or sent; outbox_bytes: what may wait to be sent to one peer, beyond
        it the peer is disconnected as `slow-peer`; inbox_bytes: what may wait for the party above from one peer,
        beyond it nothing more is read from that peer; ping_seconds: one beat, after which a peer that
        said nothing is asked for a sign of life; silence_seconds: after as many beats without one, or with a frame
        that cannot be written, the peer is disconnected; handshake_seconds: for TLS, by the clock, since strangers may
        begin one; hello_seconds: for the first frame; duplicate_seconds: for a
        connected node to answer when a second one of its site appears; closing_seconds: for a peer to take what was
        sent before the end; backoff_seconds, longest_backoff_seconds: before the node tries again, doubled each time;
        http_proxy: whether a node dials through the proxy that the environment names.

    All but the back-off and the handshake are seconds in which this process ran: on a busy machine they take longer.
    """

    max_message_bytes: int = 64 << 20
    outbox_bytes: int = 128 << 20
    inbox_bytes: int = 128 << 20
    ping_seconds: float = 10.0
    silence_seconds: float = 60.0
    handshake_seconds: float = 10.0
    hello_seconds: float = 10.0
    duplicate_seconds: float = 10.0
    closing_seconds: float = 5.0
    backoff_seconds: float = 0.2
    longest_backoff_seconds: float = 30.0
    http_proxy: bool = True


DEFAULTS = LinkSettings()


def channel_options(settings: LinkSettings, max_frame_bytes: int) -> list[tuple[str, int]]:
    """Options for both ends. Frames a little too large are let through to be refused by name."""
    return [
        ("grpc.max_receive_message_length", max_frame_bytes + _HEADROOM),
        ("grpc.max_send_message_length", max_frame_bytes + _HEADROOM),
        ("grpc.enable_retries", 0),
        # What may be on its way to a reader is said here; to find it out, gRPC would send a ping with every message.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _ON_THE_WAY),
        # Every attempt to connect is a new one, with our own back-off and nobody else's.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", int(settings.http_proxy)),
        # Two coordinators on one port would share the nodes between them.
        ("grpc.so_reuseport", 0),
        # A stranger who connects and says nothing is sent away, by the Door at the latest.
        ("grpc.server_handshake_timeout_ms", int(settings.handshake_seconds * 1000)),
        ("grpc.max_concurrent_streams", 4),
    ]


def ran_on_time(began: float, now: float, seconds: float) -> bool:
    """Whether a wait of `seconds` ended when it should have, by the clock: else this process was not running.

    A wait that was too long says nothing about a peer: what it sent meanwhile is still to be read.
    """
    return now - began <= 1.5 * seconds + _LATE_SECONDS


async def within(work: Awaitable[Result], seconds: float) -> Result:
    """What `work` gives; raises TimeoutError, and cancels it, after `seconds` in which this process ran."""
    task = asyncio.ensure_future(work)
    # What it raises when nobody waits for it any more is no news.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    loop, left = asyncio.get_running_loop(), _SLICES
    try:
        while left > 0:
            began = loop.time()
            if (await asyncio.wait({task}, timeout=seconds / _SLICES))[0]:
                return task.result()
            left -= ran_on_time(began, loop.time(), seconds / _SLICES)
        raise TimeoutError
    finally:
        task.cancel()


def next_of(events: queue.SimpleQueue[Result], timeout: float) -> Result | None:
    """The next of a queue, or None after `timeout` seconds in which this process ran, and the queue's writer could."""
    left = timeout
    while True:
        began, part = time.monotonic(), min(max(left, 0.0), _SLICE_SECONDS)
        try:
            return events.get(timeout=part) if part > 0 else events.get_nowait()
        except queue.Empty:
            left -= part if ran_on_time(began, time.monotonic(), part) else 0.0
        if left <= 0:
            return None


def peer_certificate_sha256(context: Any) -> bytes:
    """SHA-256 of the certificate that the peer's TLS session used, 32 bytes; raises WireRefusal UNPINNED."""
    pem = context.auth_context().get("x509_pem_cert", [b""])[0]
    try:
        return sha256(ssl.PEM_cert_to_DER_cert(pem.decode("ascii"))).digest()
    except ValueError:
        raise WireRefusal(WireCode.UNPINNED) from None


def idle_seconds_of(settings: LinkSettings) -> float:
    """How long a good connection may carry nothing that counts: to shake hands, say Hello, and wait for its place."""
    return settings.handshake_seconds + settings.hello_seconds + settings.duplicate_seconds


async def listen(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials, fault: str) -> int:
    """Begin to serve and return the port; raises EnvironmentFault `address-in-use`, whose text begins with `fault`."""
    try:
        port = server.add_secure_port(address, credentials)
    except RuntimeError:
        port = 0
    if port == 0:
        raise EnvironmentFault(
            f"{fault} on {address}.",
            cause="Another program listens there, or the address is not one of this machine.",
            remedy="Stop the other program, or give another address.",
            code="address-in-use",
        )
    await server.start()
    return int(port)


class Caller:
    """Calls functions in an event loop from any thread, in order, and wakes the loop once for all that are waiting.

    Every wake-up is a write that lets another thread run. A coordinator that sends to all its nodes needs one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._lock = loop, threading.Lock()
        self._waiting: list[Callable[[], object]] = []

    def soon(self, function: Callable[[], object]) -> None:
        """Call this in the loop, soon."""
        with self._lock:
            self._waiting.append(function)
            is_first = len(self._waiting) == 1
        if is_first:
            self._loop.call_soon_threadsafe(self._call)

    def _call(self) -> None:
        with self._lock:
            functions, self._waiting = self._waiting, []
        for function in functions:
            try:
                function()
            except Exception as error:
                # One that raises must not take the others with it.
                self._loop.call_exception_handler({"message": "A call from another thread failed.", "exception": error})


class _Background:
    """One event loop in one thread for all hubs and uplinks of the process: gRPC's asyncio layer wants one loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, running."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="hedgerow-transport", daemon=True).start()
            return self._loop

    def start(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Run a coroutine there."""
        return asyncio.run_coroutine_threadsafe(work, self.loop())


background = _Background()

__all__ = [
    "DEFAULTS",
    "JOIN",
    "METHOD",
    "SERVICE",
    "WATCH",
    "WATCH_METHOD",
    "WATCH_SERVICE",
    "Caller",
    "LinkSettings",
    "background",
    "channel_options",
    "grpc",
    "idle_seconds_of",
    "listen",
    "next_of",
    "peer_certificate_sha256",
    "ran_on_time",
    "within",
]
