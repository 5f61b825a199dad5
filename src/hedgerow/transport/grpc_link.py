# SPDX-License-Identifier: Apache-2.0
"""The common parts of both ends of the engine `grpc`, and the ends that dial out.

Common are the settings, the event loop of the process, and a stream after its handshake.

A `GrpcLink` has bounded queues and one named end. Its `offer` and `note_taken` may be called from any thread;
everything else runs in the event loop. Whether the peer is alive is HTTP/2's own matter: gRPC asks for a sign of life
and ends a connection that gives none, whether the network drops packets or the peer's process is stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import re
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol, TypeVar, cast

from hedgerow.codec import VERSION
from hedgerow.errors import EnvironmentFault, HedgerowError
from hedgerow.protocol.refusals import WireCode, WireRefusal
from hedgerow.protocol.stream import (
    FRAME_HEADROOM,
    MAX_ENROLMENT_BYTES,
    MAX_REPORT_BYTES,
    Admittance,
    Farewell,
    Introduction,
    Update,
    WatchRequest,
    farewell_in,
    read_as,
    read_first,
    unwrap_message,
    wrap_message,
)
from hedgerow.transport.identities import PinnedRoster, PrivateIdentity, PublicIdentity, require_pinned
from hedgerow.transport.interface import Connected, Disconnected, Traffic, UplinkEvent
from hedgerow.version import __version__

# gRPC's core logs every failed handshake on stderr; strangers must not be able to fill the operator's log.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc as grpc
import grpc.aio

JOIN = f"/hedgerow.wire.v{VERSION}.Coordinator/Join"
"""The method of hedgerow.proto that every stream calls."""
SERVICE, METHOD = JOIN[1:].split("/")
OWN_VERSION = f"Hedgerow {__version__}, wire {VERSION}"
"""Version that each side states if the other side has another wire."""
VERSION_OF_CALLER = "hedgerow-version"
"""The name under which a call carries it."""
WATCH = f"/hedgerow.wire.v{VERSION}.Monitor/Watch"
"""The method of hedgerow.proto that monitors call."""
WATCH_SERVICE, WATCH_METHOD = WATCH[1:].split("/")
ENROL = f"/hedgerow.wire.v{VERSION}.Study/Enrol"
"""The method of hedgerow.proto that invited parties call."""
ENROL_SERVICE, ENROL_METHOD = ENROL[1:].split("/")
_ON_THE_WAY = 4 << 20
"""Bytes of a stream that its reader has not taken yet: 40 MB a second over a distance of 100 ms."""
MIN_SPEED = 256 << 10
"""Bytes a second at which a peer has to take a message, at least; docs/deploy.md states it as a line of 2 Mbit/s."""
_ANSWER_SECONDS = 60.0
_SLICE_SECONDS = 1.0
_SLICES = 8
_LATE_SECONDS = 0.05
"""So late does a thread wake up at times on a machine that is not busy at all."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Time limits and sizes of one end of a stream.

    Three limits (to say the first message, to take one, to take the last) count only seconds in which this process ran.
    So they are longer on a busy machine.

    Attributes:
        max_message_bytes: largest message taken or sent.
        outbox_bytes: what may wait to be sent to one peer, beyond it the peer is disconnected as `slow-peer`.
        inbox_bytes: what may wait for the party above from one peer, beyond it nothing more is read from that peer.
        ping_seconds: after so long without a word a peer is asked for a sign of life.
        silence_seconds: after so long without one the peer is disconnected, and so it is when a message takes so long
            and the time of its length at `MIN_SPEED`.
        handshake_seconds: for TLS.
        hello_seconds: for the first message.
        closing_seconds: for a peer to take what was sent before the end.
        backoff_seconds, longest_backoff_seconds: before the node tries again, doubled each time.
        http_proxy: whether a node dials through the proxy that the environment names.
    """

    max_message_bytes: int = 64 << 20
    outbox_bytes: int = 128 << 20
    inbox_bytes: int = 128 << 20
    ping_seconds: float = 10.0
    silence_seconds: float = 30.0
    handshake_seconds: float = 10.0
    hello_seconds: float = 10.0
    closing_seconds: float = 5.0
    backoff_seconds: float = 0.2
    longest_backoff_seconds: float = 30.0
    http_proxy: bool = True

    @property
    def place_seconds(self) -> float:
        """Seconds after which a connection that still exists has given a sign of life."""
        return self.silence_seconds + self.ping_seconds

    @property
    def idle_seconds(self) -> float:
        """Seconds that a good connection may need to shake hands and to introduce itself."""
        return self.handshake_seconds + self.hello_seconds


DEFAULTS = LinkSettings()


def require_size(message: bytes, settings: LinkSettings) -> None:
    """Raise WireRefusal OVERSIZED for a message larger than any receiver takes."""
    if len(message) > settings.max_message_bytes:
        raise WireRefusal(WireCode.OVERSIZED)


def channel_options(settings: LinkSettings, max_bytes: int) -> list[tuple[str, int]]:
    """Return the gRPC options of both ends; they let slightly too large messages pass, to be refused by name."""
    answer_ms = int(1000 * max(settings.silence_seconds - settings.ping_seconds, settings.ping_seconds))
    return [
        ("grpc.max_receive_message_length", max_bytes + FRAME_HEADROOM),
        ("grpc.max_send_message_length", max_bytes + FRAME_HEADROOM),
        ("grpc.enable_retries", 0),
        ("grpc.keepalive_time_ms", int(1000 * settings.ping_seconds)),
        # gRPC documents the first option, and version 1.85 uses the second.
        ("grpc.keepalive_timeout_ms", answer_ms),
        ("grpc.http2.ping_timeout_ms", answer_ms),
        ("grpc.http2.max_pings_without_data", 0),
        # A peer that pings more often than agreed is disconnected.
        ("grpc.http2.min_ping_interval_without_data_ms", int(500 * settings.ping_seconds)),
        # The window is set here; to measure it, gRPC would send a ping with every message.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _ON_THE_WAY),
        # Make every attempt a new connection, so that only our own back-off applies.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", int(settings.http_proxy)),
        # With port sharing, two coordinators on one port would divide the nodes between them.
        ("grpc.so_reuseport", 0),
        # A silent stranger is disconnected here, or by the Door at the latest.
        ("grpc.server_handshake_timeout_ms", int(settings.handshake_seconds * 1000)),
        ("grpc.max_concurrent_streams", 4),
    ]


def ran_on_time(began: float, now: float, seconds: float) -> bool:
    """Return whether a wait of `seconds` ended on time by the clock, so that this process was running.

    A wait that was too long says nothing about a peer: what it sent meanwhile is still to be read.
    """
    return now - began <= 1.5 * seconds + _LATE_SECONDS


async def within(work: Awaitable[Result], seconds: float) -> Result:
    """Await `work` and return its result; cancel it and raise TimeoutError after `seconds`.

    Time in which this process did not run does not count.
    """
    task = asyncio.ensure_future(work)
    # Read a late exception, so that asyncio does not log it as never retrieved.
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
        # An error holds this frame; would that hold the error, both would stay until Python looks for such circles, and
        # with them the call of which it speaks, and its connection.
        del task


def get_next(events: queue.SimpleQueue[Result], timeout: float) -> Result | None:
    """Return the next item of a queue, or None after `timeout` seconds in which this process ran."""
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
    """Return the SHA-256, 32 bytes, of the peer's TLS certificate; raise WireRefusal UNPINNED without one."""
    pem = context.auth_context().get("x509_pem_cert", [b""])[0]
    try:
        return sha256(ssl.PEM_cert_to_DER_cert(pem.decode("ascii"))).digest()
    except ValueError:
        raise WireRefusal(WireCode.UNPINNED) from None


class Caller:
    """Calls functions in an event loop from any thread, in order, with one wake-up for all waiting calls.

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
                # A call that raises must not stop the other calls.
                self._loop.call_exception_handler({"message": "A call from another thread failed.", "exception": error})


class _Background:
    """One event loop in one thread for all hubs and uplinks of the process, as gRPC's asyncio layer needs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the running loop, starting its thread if needed."""
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                threading.Thread(target=loop.run_forever, name="hedgerow-transport", daemon=True).start()
                # Set it only when it runs: after Ctrl-C in between, everybody would wait for ever for a dead loop.
                self._loop = loop
            return self._loop

    def start(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Run a coroutine there."""
        return asyncio.run_coroutine_threadsafe(work, self.loop())

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the loop and wait for its result; its exceptions are raised here.

        The loop's thread lets go of all that the coroutine used. In the main thread that would run destructors and
        callbacks of weak references (gRPC's even wait there for a thread to end), in which Python drops a Ctrl-C.
        """
        ended: queue.SimpleQueue[tuple[Result | None, BaseException | None]] = queue.SimpleQueue()

        async def to_its_end() -> None:
            try:
                ended.put((await work, None))
            except HedgerowError as fault:
                # Drop the traceback, whose frames hold the coroutine's objects; such an error is complete without it.
                fault.__context__ = fault.__cause__ = None
                ended.put((None, fault.with_traceback(None)))
            except BaseException as fault:
                ended.put((None, fault))

        try:
            self.loop()
        except BaseException:
            # After Ctrl-C while the loop starts, close the coroutine, or Python warns that it was never awaited.
            work.close()
            raise
        # Do not keep the future: it would keep the task alive.
        self.start(to_its_end())
        result, fault = ended.get()
        try:
            if fault is not None:
                raise fault
            return cast(Result, result)
        finally:
            # As in `within`: a cycle of the error and this frame would keep the callers' objects alive.
            del fault


background = _Background()
_PER_MESSAGE = 256
"""Counted for each message that waits, so that empty ones cannot fill the memory either."""
_LAST_WORDS_SECONDS = 1.0


class Stream(Protocol):
    """gRPC's stream at either end."""

    async def read(self) -> Any:
        """Read the next message, still wrapped, or `grpc.aio.EOF`."""

    async def write(self, raw: bytes, /) -> None:
        """Hand a wrapped message over; waits while the peer takes nothing."""


class GrpcLink:
    """Carries messages over a stream until it ends; `run` returns why."""

    def __init__(
        self,
        stream: Stream,
        settings: LinkSettings,
        deliver: Callable[[bytes], None],
        hang_up: Callable[[], Awaitable[None]] | None = None,
        caller: Caller | None = None,
    ) -> None:
        """Make a link over an open stream.

        Args:
            hang_up: on the side that opened the stream, says that nothing more will be written.
            caller: of the event loop, shared with other links.
        """
        self._stream, self._settings, self._deliver, self._hang_up = stream, settings, deliver, hang_up
        self._loop = asyncio.get_running_loop()
        self._caller = caller or Caller(self._loop)
        self._lock = threading.Lock()
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = self._inbox_bytes = 0
        self._is_open = True
        self._work = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._ended: asyncio.Future[WireRefusal] = self._loop.create_future()
        self._last_words: WireRefusal | None = None
        self._drains = self._is_writing = False
        self._n_written = 0
        self.finished = asyncio.Event()
        self.traffic = Traffic()

    def offer(self, message: bytes) -> bool:
        """Queue a message; False when the stream has ended, or ends now because the peer takes nothing."""
        with self._lock:
            if not self._is_open:
                return False
            cost = len(message) + _PER_MESSAGE
            if self._outbox and self._outbox_bytes + cost > self._settings.outbox_bytes:
                self._is_open = False
                self._caller.soon(lambda: self.end(WireRefusal(WireCode.SLOW_PEER)))
                return False
            self._outbox_bytes += cost
            self._outbox.append(message)
            is_first = len(self._outbox) == 1
        if is_first:
            self._caller.soon(self._work.set)
        return True

    def note_taken(self, message: bytes) -> None:
        """Count a delivered message as taken by the party above, which makes room in the inbox."""
        with self._lock:
            was_full = self._inbox_bytes > self._settings.inbox_bytes
            self._inbox_bytes -= len(message) + _PER_MESSAGE
            has_room = self._inbox_bytes <= self._settings.inbox_bytes
        if was_full and has_room:
            self._caller.soon(self._room.set)

    @property
    def is_read(self) -> bool:
        """True if the party above has taken all delivered messages."""
        with self._lock:
            return not self._inbox_bytes

    def end(self, why: WireRefusal, *, tell: bool = True, drain: bool = False) -> None:
        """End the stream; the first reason counts.

        With `tell` the peer is told why, if it still listens; with `drain` it gets what waits for it first.
        """
        if self._ended.done():
            return
        with self._lock:
            self._is_open = False
        self._last_words, self._drains = (why if tell else None), drain
        self._ended.set_result(why)
        self._work.set()

    @property
    def why(self) -> WireRefusal:
        """Why the stream ended; only after it has."""
        return self._ended.result()

    async def run(self) -> WireRefusal:
        """Carry messages until the stream ends, and return why; cancelled, the stream is lost."""
        writing, reading = asyncio.ensure_future(self._write()), asyncio.ensure_future(self._read())
        tasks = (writing, reading, asyncio.ensure_future(self._watch()))
        for task in tasks:
            task.add_done_callback(self._on_stop)
        try:
            # Shield the future, because a cancelled handler must leave the reason to `end`.
            why = await asyncio.shield(self._ended)
            if self._last_words is not None:
                # Wait for the other side to end the stream: cancelled earlier, it may lose the last message.
                last = [writing] if self._hang_up is None else [writing, reading]
                # A peer that took no earlier messages will hardly take the last one.
                is_deaf = why.wire_code is WireCode.SLOW_PEER
                seconds = _LAST_WORDS_SECONDS if is_deaf else self._settings.closing_seconds
                with contextlib.suppress(TimeoutError):
                    await within(asyncio.wait(last), seconds)
            return why
        finally:
            self.end(WireRefusal(WireCode.CONNECTION_LOST), tell=False)
            for task in tasks:
                task.cancel()
            # Drop the call, because gRPC keeps the connection while the call exists, and the link may outlive it.
            del self._stream, self._hang_up

    def _on_stop(self, task: asyncio.Future[None]) -> None:
        """End the link if one of its tasks fails unexpectedly, so that no half of a stream stays open.

        asyncio logs the error.
        """
        if not task.cancelled() and task.exception() is not None:
            self.end(WireRefusal(WireCode.CONNECTION_LOST), tell=False)
            self._loop.call_exception_handler({"message": "A stream's task failed.", "exception": task.exception()})

    async def _read(self) -> None:
        try:
            while (raw := await self._stream.read()) is not grpc.aio.EOF:
                self.traffic.received += len(raw)
                message = unwrap_message(raw, self._settings.max_message_bytes)
                if (farewell := farewell_in(message)) is not None:
                    return self.end(farewell.refusal(), tell=False)
                with self._lock:
                    self._inbox_bytes += len(message) + _PER_MESSAGE
                    if self._inbox_bytes > self._settings.inbox_bytes:
                        self._room.clear()
                self._deliver(message)
                await self._room.wait()
            # An end without a Farewell is a loss; the coordinator's gRPC reports every loss this way.
            self.end(WireRefusal(WireCode.CONNECTION_LOST), tell=False)
        except WireRefusal as refusal:
            self.end(refusal)
        except (grpc.RpcError, grpc.aio.BaseError, grpc.aio.UsageError) as error:
            self.end(translate_error(error), tell=False)

    async def _write(self) -> None:
        try:
            while not self._ended.done() or (self._drains and self._outbox):
                if not self._outbox:
                    await self._work.wait()
                    self._work.clear()
                    continue
                message = self._outbox[0]
                raw, self._is_writing = wrap_message(message), True
                await self._stream.write(raw)
                self._is_writing = False
                self._n_written += 1
                self.traffic.sent += len(raw)
                with self._lock:
                    self._outbox.popleft()
                    self._outbox_bytes -= len(message) + _PER_MESSAGE
            if self._last_words is not None:
                await self._stream.write(wrap_message(Farewell.from_refusal(self._last_words).to_bytes()))
                if self._hang_up is not None:
                    await self._hang_up()
        except (grpc.RpcError, grpc.aio.BaseError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            # An InvalidStateError means that the peer ended the stream before this message.
            self.end(translate_error(error), tell=False)

    async def _watch(self) -> None:
        """End the stream when the peer has not taken a message for too long, by the message's length.

        A timeout for each message would cost 15 microseconds each. A peer that is dead is found out long before, for it
        gives no sign of life.
        """
        while not self._ended.done():
            n_written, patience = -1, self._settings.silence_seconds
            if self._is_writing:
                n_written, patience = self._n_written, patience + len(self._outbox[0]) / MIN_SPEED
            with contextlib.suppress(TimeoutError):
                await within(asyncio.wait({self._ended}), patience)
            if self._n_written == n_written:
                self.end(WireRefusal(WireCode.SLOW_PEER))


_VERSION_FORM = re.compile(r"Hedgerow [\w.+-]{1,40}, wire (\d{1,5})")


def other_version(said: object) -> WireRefusal:
    """Make the refusal of a peer with another version of the wire.

    Args:
        said: its `OWN_VERSION`, if it said any.
    """
    is_known = isinstance(said, str) and _VERSION_FORM.fullmatch(said)
    theirs = said if is_known else "a release before 0.2.0, or no Hedgerow"
    return WireRefusal(WireCode.VERSION_MISMATCH, f"It is {theirs}; here is {OWN_VERSION}.")


def translate_error(error: BaseException) -> WireRefusal:
    """Translate gRPC's error into a refusal."""
    code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
    text = (error.details() or "") if isinstance(error, grpc.aio.AioRpcError) else ""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return WireRefusal(WireCode.OVERSIZED)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return other_version(text)
    is_silent = "ping timeout" in text.replace("_", " ") or "keepalive" in text
    return WireRefusal(WireCode.SILENT if is_silent else WireCode.CONNECTION_LOST)


# The ends that dial ---------------------------------------------------------------------------------------------------
# A node's (`GrpcUplink`) and a monitor's (`GrpcWatch`): both pin the coordinator's certificate, and come back after
# every loss.

_log = logging.getLogger(__name__)
_HEALTHY_SECONDS = 5.0
"""Seconds after which a connection counts as healthy, so that the back-off starts again."""


class _Dialler(ABC):
    """Base of parties that dial the coordinator, pin its certificate, and redial after every loss.

    Args:
        jitter: gives numbers from 0 to 1, so that those who lost their coordinator together do not all come back
            together.
    """

    def __init__(
        self,
        address: str,
        identity: PrivateIdentity,
        roster: PinnedRoster,
        jitter: Callable[[], float],
        settings: LinkSettings,
        max_bytes: int,
    ) -> None:
        self._address, self._identity, self._roster = address, identity, roster
        self._jitter, self._settings, self._max_bytes = jitter, settings, max_bytes
        self._longest_pause = settings.longest_backoff_seconds
        self._reported: str | None = None
        """Why the link is down, if that was said already."""

    async def _keep_connected(self) -> None:
        delay = self._settings.backoff_seconds
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            why = await self._connect()
            if why.code != self._reported:
                # Report a series of equal failures once, so that nothing grows while nobody reads the events.
                self._reported = why.code
                _log.info("The link is down: %s (%s)", why.what, why.code)
                self._report(Disconnected(why.code, why.is_final, why.detail))
            if why.is_final:
                return
            if loop.time() - began > _HEALTHY_SECONDS:
                delay = self._settings.backoff_seconds
            await asyncio.sleep(delay * (0.5 + self._jitter() / 2))
            await self._read_up()
            delay = min(2 * delay, self._longest_pause)

    async def _connect(self) -> WireRefusal:
        """Dial once and carry until the connection ends; return why it ended."""
        coordinator = self._roster.coordinator
        credentials = grpc.ssl_channel_credentials(
            coordinator.certificate_pem, self._identity.tls_key, self._identity.public.certificate_pem
        )
        options = [
            *channel_options(self._settings, self._max_bytes),
            # The certificate names its key, because the coordinator's address is no part of its identity.
            ("grpc.ssl_target_name_override", coordinator.tls_name),
        ]
        async with grpc.aio.secure_channel(self._address, credentials, options=options) as channel:
            call = self._call(channel)
            try:
                return await self._carry(call)
            except WireRefusal as refusal:
                return refusal
            except TimeoutError:
                return WireRefusal(WireCode.UNREACHABLE)
            except grpc.aio.AioRpcError as error:
                return self._explain(error)
            except grpc.aio.BaseError as error:
                return translate_error(error)
            finally:
                call.cancel()

    @abstractmethod
    def _report(self, event: Disconnected) -> None:
        """Tell the party above."""

    @abstractmethod
    def _call(self, channel: grpc.aio.Channel) -> Any:
        """Call the method served to this kind of party."""

    @abstractmethod
    async def _carry(self, call: Any) -> WireRefusal:
        """Work over an open connection; return or raise why it ended, TimeoutError if it never opened."""

    async def _read_up(self) -> None:  # noqa: B027
        """Wait until the party above has read enough for the next connection."""

    def _explain(self, error: grpc.aio.AioRpcError) -> WireRefusal:
        return why_not_connected(error)


def why_not_connected(error: grpc.aio.AioRpcError) -> WireRefusal:
    """Translate gRPC's error before a stream; gRPC has one status for all causes, so its text decides."""
    text = error.details() or ""
    if "CERTIFICATE_VERIFY_FAILED" in text or "Hostname Verification" in text or "Peer name" in text:
        return WireRefusal(WireCode.WRONG_COORDINATOR)
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        is_refused = "andshake" in text or "Socket closed" in text or "Broken pipe" in text
        return WireRefusal(WireCode.TLS_REFUSED if is_refused else WireCode.UNREACHABLE)
    return translate_error(error)


class GrpcUplink(_Dialler):
    """Uplink over gRPC; see `transport.interface.Uplink`. It begins to dial as soon as it is made.

    Args:
        plan_digest: SHA-256 of the plan that the owner agreed to, or empty.

    Raises:
        EnvironmentFault: `identity-not-pinned` when the roster pins another identity for this site.
    """

    def __init__(
        self,
        address: str,
        identity: PrivateIdentity,
        roster: PinnedRoster,
        jitter: Callable[[], float],
        *,
        plan_digest: bytes = b"",
        settings: LinkSettings = DEFAULTS,
    ) -> None:
        require_pinned(identity, roster)
        super().__init__(address, identity, roster, jitter, settings, settings.max_message_bytes)
        self._plan_digest = plan_digest
        self._events: queue.SimpleQueue[tuple[UplinkEvent, GrpcLink | None]] = queue.SimpleQueue()
        self._link: GrpcLink | None = None
        self._last: GrpcLink | None = None
        self._accepted_bytes = settings.max_message_bytes
        """Largest message that the coordinator takes."""
        self._running = background.start(self._keep_connected())

    def send(self, message: bytes) -> bool:
        """Queue a message for the coordinator; return False if there is no connection.

        Raises:
            WireRefusal: OVERSIZED, for a message that the coordinator would not take.
        """
        require_size(message, self._settings)
        link = self._link
        if link is not None and len(message) > self._accepted_bytes:
            raise WireRefusal(WireCode.OVERSIZED, "The coordinator's limit is lower than this node's.")
        return link is not None and link.offer(message)

    def receive(self, timeout: float) -> UplinkEvent | None:
        """Return the next event, or None after `timeout` seconds; a message is thereby taken."""
        found = get_next(self._events, timeout)
        if found is None:
            return None
        event, link = found
        if link is not None and isinstance(event, bytes):
            link.note_taken(event)
        return event

    def close(self) -> None:
        """Deliver queued messages if they are taken within `closing_seconds`, then close the connection."""
        background.run(self._close())

    async def _close(self) -> None:
        link = self._link
        if link is not None:
            link.end(WireRefusal(WireCode.CLOSED), drain=True)
            await link.finished.wait()
        self._running.cancel()

    def _report(self, event: Disconnected) -> None:
        self._events.put((event, None))

    async def _read_up(self) -> None:
        while self._last is not None and not self._last.is_read:
            # Wait until the messages of one connection are read before the next, which limits memory.
            await asyncio.sleep(self._settings.backoff_seconds)

    def _call(self, channel: grpc.aio.Channel) -> Any:
        return channel.stream_stream(JOIN)(metadata=((VERSION_OF_CALLER, OWN_VERSION),))

    async def _introduce(self, stream: Any) -> Admittance:
        own = Introduction(self._identity.public.name, self._roster.digest(), self._plan_digest, __version__)
        # If the stream ended before the first message, reading it gives the reason.
        with contextlib.suppress(asyncio.InvalidStateError):
            await stream.write(wrap_message(own.to_bytes()))
        raw = await stream.read()
        if raw is grpc.aio.EOF:
            raise WireRefusal(WireCode.CONNECTION_LOST)  # Who ends in order says so.
        return read_first(Admittance, unwrap_message(raw, self._settings.max_message_bytes))

    async def _carry(self, call: Any) -> WireRefusal:
        # Before it admits this node, the coordinator may have to check whether another node of the site is alive.
        seconds = 2 * self._settings.hello_seconds + self._settings.place_seconds
        admittance = await within(self._introduce(call), seconds)

        def deliver(message: bytes) -> None:
            self._events.put((message, link))

        link = GrpcLink(call, self._settings, deliver, call.done_writing)
        self._accepted_bytes = admittance.max_message_bytes
        self._reported = None
        # Set the link before the event, because a reader of the event may send at once from another thread.
        self._link = self._last = link
        self._events.put((Connected(), None))
        try:
            return await link.run()
        finally:
            self._link = None
            link.finished.set()


_MAX_WAITING = 64
_TOLD_BY_STATUS = {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED,
                   grpc.StatusCode.FAILED_PRECONDITION}  # fmt: skip

WatchEvent = Connected | Disconnected | Update


class GrpcWatch(_Dialler):
    """Reads the reports of a coordinator; `Connected` comes with the first report of each connection, before it.

    Args:
        interval: least seconds between two reports.

    Raises:
        EnvironmentFault: `identity-not-pinned` when the roster does not list this identity among its monitors.
    """

    def __init__(
        self,
        address: str,
        identity: PrivateIdentity,
        roster: PinnedRoster,
        jitter: Callable[[], float],
        *,
        interval: float = 0.5,
        settings: LinkSettings = DEFAULTS,
    ) -> None:
        if identity.public != roster.monitor(identity.public.name):
            raise EnvironmentFault("identity-not-pinned", name=identity.public.name)
        super().__init__(address, identity, roster, jitter, settings, MAX_REPORT_BYTES)
        # A person is watching, so pauses are limited to a few seconds.
        self._longest_pause = min(settings.longest_backoff_seconds, 5.0)
        self._request = wrap_message(WatchRequest(roster.digest(), interval).to_bytes())
        self._interval = interval
        self._events: queue.SimpleQueue[WatchEvent] = queue.SimpleQueue()
        self._running = background.start(self._keep_connected())

    def receive(self, timeout: float) -> WatchEvent | None:
        """Return the next event, or None after `timeout` seconds without one."""
        return get_next(self._events, timeout)

    def close(self) -> None:
        """Stop trying and disconnect."""
        self._running.cancel()

    def _report(self, event: Disconnected) -> None:
        self._events.put(event)

    def _call(self, channel: grpc.aio.Channel) -> Any:
        watch: Any = channel.unary_stream(WATCH)
        return watch(self._request)

    async def _carry(self, call: Any) -> WireRefusal:
        is_connected = False
        while True:
            # A live coordinator reports regularly, whether anything has happened or not.
            patience = self._interval + self._settings.silence_seconds
            try:
                raw = await within(call.read(), patience)
            except TimeoutError:
                return WireRefusal(WireCode.SILENT if is_connected else WireCode.UNREACHABLE)
            if raw is grpc.aio.EOF:
                return WireRefusal(WireCode.CLOSED)
            update = read_as(Update, unwrap_message(raw, MAX_REPORT_BYTES))
            if not is_connected:
                is_connected, self._reported = True, None
                self._events.put(Connected())
            self._events.put(update)
            while self._events.qsize() > _MAX_WAITING:
                await asyncio.sleep(0.05)

    def _explain(self, error: grpc.aio.AioRpcError) -> WireRefusal:
        """Translate the status of a refused or broken stream."""
        word = error.details() or ""
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            # One port has several servers in turn, and only that of a run is watched. That it has no such method says
            # nothing of its version, which it says itself.
            said = _VERSION_FORM.fullmatch(word)
            is_other = said is not None and int(said[1]) != VERSION
            return other_version(word) if is_other else WireRefusal(WireCode.NOT_SERVED)
        if error.code() in _TOLD_BY_STATUS and word in set(WireCode):
            return WireRefusal(WireCode(word))
        return super()._explain(error)


def ask(
    address: str,
    coordinator: PublicIdentity,
    message: bytes,
    identity: PrivateIdentity | None = None,
    settings: LinkSettings = DEFAULTS,
) -> bytes:
    """Send one message to a coordinator with a pinned certificate, and return its answer.

    Args:
        identity: of who asks, where the coordinator wants to see its certificate.

    Raises:
        WireRefusal: it cannot be reached, or another party answers; `is_final` says whether to try again.
    """
    return background.run(_ask(address, coordinator, message, identity, settings))


async def _ask(
    address: str, coordinator: PublicIdentity, message: bytes, identity: PrivateIdentity | None, settings: LinkSettings
) -> bytes:
    own = (None, None) if identity is None else (identity.tls_key, identity.public.certificate_pem)
    credentials = grpc.ssl_channel_credentials(coordinator.certificate_pem, *own)
    options = [
        *channel_options(settings, MAX_ENROLMENT_BYTES),
        ("grpc.ssl_target_name_override", coordinator.tls_name),
    ]
    async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
        method: Any = channel.unary_unary(ENROL)
        try:
            raw = await within(method(wrap_message(message)), _ANSWER_SECONDS)
        except TimeoutError:
            raise WireRefusal(WireCode.UNREACHABLE) from None
        except grpc.aio.AioRpcError as error:
            raise why_not_connected(error) from None
        return unwrap_message(raw, MAX_ENROLMENT_BYTES)
