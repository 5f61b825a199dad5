"""Engine `grpc`, a node's end: it dials out, pins the coordinator's certificate, and comes back after every loss."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
from collections.abc import Callable
from typing import Any

from hedgerow import __version__
from hedgerow.protocol.stream import Admittance, Introduction, WireCode, WireRefusal, first_of, unwrapped, wrapped
from hedgerow.transport.grpc_link import (
    DEFAULTS,
    JOIN,
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
from hedgerow.transport.identities import PrivateIdentity
from hedgerow.transport.interface import Connected, Disconnected, UplinkEvent
from hedgerow.transport.roster_file import PinnedRoster, require_pinned

_log = logging.getLogger(__name__)
_HEALTHY_SECONDS = 5.0
"""A connection that lasted so long sets the back-off to its beginning."""


class GrpcUplink:
    """See `transport.interface.Uplink`. It begins to dial as soon as it is made.

    Args: address: the coordinator's "host:port"; identity: this site's; roster: the pinned one; jitter: gives numbers
        from 0 to 1, so that nodes that lost their coordinator together do not all come back together; plan_digest:
        SHA-256 of the plan that the owner agreed to, or empty; settings.
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
        self._address, self._identity, self._roster = address, identity, roster
        self._jitter, self._plan_digest, self._settings = jitter, plan_digest, settings
        self._events: queue.SimpleQueue[tuple[UplinkEvent, Link | None]] = queue.SimpleQueue()
        self._link: Link | None = None
        self._last: Link | None = None
        self._reported: str | None = None
        self._max_message_bytes = settings.max_message_bytes
        self._running = background.start(self._keep_connected())

    def send(self, message: bytes) -> bool:
        """See `Uplink.send`. Raises WireRefusal OVERSIZED for a message that the coordinator would not take."""
        require_size(message, self._settings)
        link = self._link
        if link is not None and len(message) > self._max_message_bytes:
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

    async def _keep_connected(self) -> None:
        delay = self._settings.backoff_seconds
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            why = await self._connect()
            is_final = why.is_final
            if why.code != self._reported:
                # One report for a whole row of failures of one kind: nothing may grow while no one looks.
                self._reported = why.code
                _log.info("The link is down: %s (%s)", why.what, why.code)
                self._events.put((Disconnected(why.code, is_final), None))
            if is_final:
                return
            if loop.time() - began > _HEALTHY_SECONDS:
                delay = self._settings.backoff_seconds
            await asyncio.sleep(delay * (0.5 + self._jitter() / 2))
            while self._last is not None and not self._last.is_read:
                # What one connection brought is read before the next: else they could fill the memory together.
                await asyncio.sleep(self._settings.backoff_seconds)
            delay = min(2 * delay, self._settings.longest_backoff_seconds)

    async def _connect(self) -> WireRefusal:
        """One connection, from dialling to its end; returns why it ended."""
        coordinator, settings = self._roster.coordinator, self._settings
        credentials = grpc.ssl_channel_credentials(
            coordinator.certificate_pem, self._identity.tls_key, self._identity.public.certificate_pem
        )
        options = [
            *channel_options(settings, settings.max_message_bytes),
            # The certificate is for its key's own name; where the coordinator lives is no part of who it is.
            ("grpc.ssl_target_name_override", coordinator.tls_name),
        ]
        async with grpc.aio.secure_channel(self._address, credentials, options=options) as channel:
            call: Any = channel.stream_stream(JOIN)
            stream = call()
            try:
                # Before it is admitted, the coordinator may have to find out whether another node of the site lives.
                seconds = 2 * settings.hello_seconds + settings.place_seconds
                return await self._carry(stream, await within(self._introduced(stream), seconds))
            except WireRefusal as refusal:
                return refusal
            except TimeoutError:
                return WireRefusal(WireCode.UNREACHABLE)
            except grpc.aio.AioRpcError as error:
                return why_not_connected(error)
            except grpc.aio.BaseError as error:
                return lost(error)
            finally:
                stream.cancel()

    async def _introduced(self, stream: Any) -> Admittance:
        own = Introduction(self._identity.public.name, self._roster.digest(), self._plan_digest, __version__)
        # Where the stream has ended before the first message, reading says why.
        with contextlib.suppress(asyncio.InvalidStateError):
            await stream.write(wrapped(own.to_bytes()))
        raw = await stream.read()
        if raw is grpc.aio.EOF:
            raise WireRefusal(WireCode.CLOSED)
        return first_of(Admittance, unwrapped(raw, self._settings.max_message_bytes))

    async def _carry(self, stream: Any, admittance: Admittance) -> WireRefusal:
        def deliver(message: bytes) -> None:
            self._events.put((message, link))

        link = Link(stream, self._settings, deliver, stream.done_writing)
        self._max_message_bytes = admittance.max_message_bytes
        self._reported = None
        # First the link, then the news: the one who hears that it is up may send at once, from another thread.
        self._link = self._last = link
        self._events.put((Connected(), None))
        try:
            return await link.run()
        finally:
            self._link = None
            link.finished.set()


def why_not_connected(error: grpc.aio.AioRpcError) -> WireRefusal:
    """gRPC gives one status for all that goes wrong before a stream; only its text tells them apart."""
    text = error.details() or ""
    if "CERTIFICATE_VERIFY_FAILED" in text or "Hostname Verification" in text or "Peer name" in text:
        return WireRefusal(WireCode.WRONG_COORDINATOR)
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        is_refused = "andshake" in text or "Socket closed" in text or "Broken pipe" in text
        return WireRefusal(WireCode.TLS_REFUSED if is_refused else WireCode.UNREACHABLE)
    return lost(error)
