"""Engine `grpc`, the ends that dial out: a node's (`GrpcUplink`) and a monitor's (`GrpcWatch`).

Both pin the coordinator's certificate, and come back after every loss.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
from collections.abc import Callable
from typing import Any

from hedgerow import __version__
from hedgerow.errors import EnvironmentFault
from hedgerow.protocol.reports import MAX_REPORT_BYTES, Update, WatchRequest
from hedgerow.protocol.stream import (
    Admittance,
    Introduction,
    WireCode,
    WireRefusal,
    first_of,
    read_as,
    unwrapped,
    wrapped,
)
from hedgerow.transport.grpc_link import (
    DEFAULTS,
    JOIN,
    WATCH,
    Link,
    LinkSettings,
    background,
    channel_options,
    grpc,
    lost,
    next_of,
    require_size,
    within,
)
from hedgerow.transport.identities import PinnedRoster, PrivateIdentity, require_pinned
from hedgerow.transport.interface import Connected, Disconnected, UplinkEvent

_log = logging.getLogger(__name__)
_HEALTHY_SECONDS = 5.0
"""A connection that lasted so long sets the back-off to its beginning."""


class _Dialler:
    """An end that dials the coordinator, pins its certificate, and comes back after every loss.

    Args: address: the coordinator's "host:port"; jitter: gives numbers from 0 to 1, so that those who lost their
        coordinator together do not all come back together; max_bytes: of what it reads or writes.
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
                # One report for a whole row of failures of one kind: nothing may grow while no one looks.
                self._reported = why.code
                _log.info("The link is down: %s (%s)", why.what, why.code)
                self._report(Disconnected(why.code, why.is_final))
            if why.is_final:
                return
            if loop.time() - began > _HEALTHY_SECONDS:
                delay = self._settings.backoff_seconds
            await asyncio.sleep(delay * (0.5 + self._jitter() / 2))
            await self._read_up()
            delay = min(2 * delay, self._longest_pause)

    async def _connect(self) -> WireRefusal:
        """One connection, from dialling to its end; returns why it ended."""
        coordinator = self._roster.coordinator
        credentials = grpc.ssl_channel_credentials(
            coordinator.certificate_pem, self._identity.tls_key, self._identity.public.certificate_pem
        )
        options = [
            *channel_options(self._settings, self._max_bytes),
            # The certificate is for its key's own name; where the coordinator lives is no part of who it is.
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
                return self._why(error)
            except grpc.aio.BaseError as error:
                return lost(error)
            finally:
                call.cancel()

    def _report(self, event: Disconnected) -> None:
        """Tell the party above."""
        raise NotImplementedError

    def _call(self, channel: grpc.aio.Channel) -> Any:
        """Call the method that this end is for."""
        raise NotImplementedError

    async def _carry(self, call: Any) -> WireRefusal:
        """What happens while it is connected; returns or raises why it ended, TimeoutError if it never was."""
        raise NotImplementedError

    async def _read_up(self) -> None:
        """Wait until the party above has read enough for the next connection."""

    def _why(self, error: grpc.aio.AioRpcError) -> WireRefusal:
        return why_not_connected(error)


def why_not_connected(error: grpc.aio.AioRpcError) -> WireRefusal:
    """gRPC gives one status for all that goes wrong before a stream; only its text tells them apart."""
    text = error.details() or ""
    if "CERTIFICATE_VERIFY_FAILED" in text or "Hostname Verification" in text or "Peer name" in text:
        return WireRefusal(WireCode.WRONG_COORDINATOR)
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        is_refused = "andshake" in text or "Socket closed" in text or "Broken pipe" in text
        return WireRefusal(WireCode.TLS_REFUSED if is_refused else WireCode.UNREACHABLE)
    return lost(error)


class GrpcUplink(_Dialler):
    """See `transport.interface.Uplink`. It begins to dial as soon as it is made.

    Args: address: the coordinator's "host:port"; identity: this site's; roster: the pinned one; jitter: gives numbers
        from 0 to 1; plan_digest: SHA-256 of the plan that the owner agreed to, or empty; settings.
    Raises EnvironmentFault `identity-not-pinned` when the roster pins another identity for this site.
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
        self._events: queue.SimpleQueue[tuple[UplinkEvent, Link | None]] = queue.SimpleQueue()
        self._link: Link | None = None
        self._last: Link | None = None
        self._accepted_bytes = settings.max_message_bytes
        """Largest message that the coordinator takes."""
        self._running = background.start(self._keep_connected())

    def send(self, message: bytes) -> bool:
        """See `Uplink.send`. Raises WireRefusal OVERSIZED for a message that the coordinator would not take."""
        require_size(message, self._settings)
        link = self._link
        if link is not None and len(message) > self._accepted_bytes:
            raise WireRefusal(WireCode.OVERSIZED, "The coordinator's limit is lower than this node's.")
        return link is not None and link.offer(message)

    def receive(self, timeout: float) -> UplinkEvent | None:
        """See `Uplink.receive`."""
        found = next_of(self._events, timeout)
        if found is None:
            return None
        event, link = found
        if link is not None and isinstance(event, bytes):
            link.taken(event)
        return event

    def close(self) -> None:
        """See `Uplink.close`: what was sent before is delivered first, if it is taken within `closing_seconds`."""
        background.start(self._close()).result()

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
            # What one connection brought is read before the next: else they could fill the memory together.
            await asyncio.sleep(self._settings.backoff_seconds)

    def _call(self, channel: grpc.aio.Channel) -> Any:
        return channel.stream_stream(JOIN)()

    async def _introduced(self, stream: Any) -> Admittance:
        own = Introduction(self._identity.public.name, self._roster.digest(), self._plan_digest, __version__)
        # Where the stream has ended before the first message, reading says why.
        with contextlib.suppress(asyncio.InvalidStateError):
            await stream.write(wrapped(own.to_bytes()))
        raw = await stream.read()
        if raw is grpc.aio.EOF:
            raise WireRefusal(WireCode.CONNECTION_LOST)  # Who ends in order says so.
        return first_of(Admittance, unwrapped(raw, self._settings.max_message_bytes))

    async def _carry(self, call: Any) -> WireRefusal:
        # Before it is admitted, the coordinator may have to find out whether another node of the site lives.
        seconds = 2 * self._settings.hello_seconds + self._settings.place_seconds
        admittance = await within(self._introduced(call), seconds)

        def deliver(message: bytes) -> None:
            self._events.put((message, link))

        link = Link(call, self._settings, deliver, call.done_writing)
        self._accepted_bytes = admittance.max_message_bytes
        self._reported = None
        # First the link, then the news: the one who hears that it is up may send at once, from another thread.
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

    Args: address: the coordinator's "host:port"; identity: a monitor's; roster: the pinned one; jitter: gives numbers
        from 0 to 1; interval: least seconds between two reports; settings.
    Raises EnvironmentFault `identity-not-pinned` when the roster does not list this identity among its monitors.
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
            raise EnvironmentFault("monitor-not-pinned", name=identity.public.name)
        super().__init__(address, identity, roster, jitter, settings, MAX_REPORT_BYTES)
        # A person looks on: longer pauses than a few seconds would only keep him waiting.
        self._longest_pause = min(settings.longest_backoff_seconds, 5.0)
        self._request = wrapped(WatchRequest(roster.digest(), interval).to_bytes())
        self._interval = interval
        self._events: queue.SimpleQueue[WatchEvent] = queue.SimpleQueue()
        self._running = background.start(self._keep_connected())

    def receive(self, timeout: float) -> WatchEvent | None:
        """The next event, or None after `timeout` seconds without one."""
        return next_of(self._events, timeout)

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
            # The coordinator reports as long as it lives, whether anything has happened or not.
            patience = self._interval + self._settings.silence_seconds
            try:
                raw = await within(call.read(), patience)
            except TimeoutError:
                return WireRefusal(WireCode.SILENT if is_connected else WireCode.UNREACHABLE)
            if raw is grpc.aio.EOF:
                return WireRefusal(WireCode.CLOSED)
            update = read_as(Update, unwrapped(raw, MAX_REPORT_BYTES))
            if not is_connected:
                is_connected, self._reported = True, None
                self._events.put(Connected())
            self._events.put(update)
            while self._events.qsize() > _MAX_WAITING:
                await asyncio.sleep(0.05)

    def _why(self, error: grpc.aio.AioRpcError) -> WireRefusal:
        """What the status of a refused or broken stream means."""
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return WireRefusal(WireCode.VERSION_MISMATCH, "The coordinator serves no monitors.")
        word = error.details() or ""
        if error.code() in _TOLD_BY_STATUS and word in set(WireCode):
            return WireRefusal(WireCode(word))
        return super()._why(error)
