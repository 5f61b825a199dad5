"""Engine `grpc`, a monitor's end: it dials the coordinator, reads reports, and comes back after every loss."""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import Callable
from typing import Any

from hedgerow.errors import EnvironmentFault
from hedgerow.protocol.wire.refusals import EXPLANATIONS, WireCode, WireRefusal
from hedgerow.protocol.wire.reports import MAX_REPORT_BYTES, Told, WatchRequest, read_told
from hedgerow.transport.grpc_core import (
    DEFAULTS,
    WATCH,
    LinkSettings,
    background,
    channel_options,
    grpc,
    next_of,
    within,
)
from hedgerow.transport.grpc_link import lost
from hedgerow.transport.grpc_uplink import why_not_connected
from hedgerow.transport.identity import PrivateIdentity
from hedgerow.transport.interface import Connected, Disconnected
from hedgerow.transport.roster_file import PinnedRoster

_log = logging.getLogger(__name__)
_MAX_WAITING = 64
_TOLD_BY_STATUS = {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED,
                   grpc.StatusCode.FAILED_PRECONDITION}  # fmt: skip

WatchEvent = Connected | Disconnected | Told


class GrpcWatch:
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
            raise EnvironmentFault(
                f"The roster does not list this identity of {identity.public.name!r} among its monitors.",
                cause="The identity is a site's or the coordinator's, or was made after the roster.",
                remedy="Make one with `hedgerow identity new NAME --monitor`, and a new roster with "
                "`hedgerow roster build --monitor`.",
                code="identity-not-pinned",
            )
        self._address, self._identity, self._coordinator = address, identity, roster.coordinator
        self._request = WatchRequest(roster.digest(), interval).to_bytes()
        self._jitter, self._settings, self._interval = jitter, settings, interval
        self._events: queue.SimpleQueue[WatchEvent] = queue.SimpleQueue()
        self._is_connected = False
        self._task = background.start(self._dial())

    def receive(self, timeout: float) -> WatchEvent | None:
        """The next event, or None after `timeout` seconds without one."""
        return next_of(self._events, timeout)

    def close(self) -> None:
        """Stop trying and disconnect."""
        self._task.cancel()

    async def _dial(self) -> None:
        delay = self._settings.backoff_seconds
        reported: WireCode | None = None
        while True:
            why = await self._connect()
            is_final = EXPLANATIONS[why.wire_code].is_final
            if self._is_connected or why.wire_code is not reported or is_final:
                # One event for many failures of one kind: nothing may grow while nobody looks.
                self._events.put(Disconnected(why.code, is_final))
                reported = why.wire_code
            if is_final:
                return
            if self._is_connected:
                self._is_connected, delay = False, self._settings.backoff_seconds
            await asyncio.sleep(delay * (0.5 + self._jitter() / 2))
            # A person looks on: longer pauses than a few seconds would only keep him waiting.
            delay = min(2 * delay, self._settings.longest_backoff_seconds, 5.0)

    async def _connect(self) -> WireRefusal:
        """One connection, from dialling to its end; returns why it ended."""
        coordinator = self._coordinator
        credentials = grpc.ssl_channel_credentials(
            coordinator.certificate_pem, self._identity.tls_key, self._identity.public.certificate_pem
        )
        options = [
            *channel_options(self._settings, MAX_REPORT_BYTES),
            ("grpc.ssl_target_name_override", coordinator.tls_name),
        ]
        async with grpc.aio.secure_channel(self._address, credentials, options=options) as channel:
            watch: Any = channel.unary_stream(WATCH)
            call = watch(self._request)
            try:
                return await self._read(call)
            except WireRefusal as refusal:
                return refusal
            except TimeoutError:
                return WireRefusal(WireCode.SILENT if self._is_connected else WireCode.UNREACHABLE)
            except grpc.aio.AioRpcError as error:
                return _why(error)
            except grpc.aio.BaseError as error:
                return lost(error)
            finally:
                call.cancel()

    async def _read(self, call: Any) -> WireRefusal:
        while True:
            # The coordinator reports as long as it lives, whether anything has happened or not.
            patience = self._interval + self._settings.silence_seconds
            raw = await within(call.read(), patience)
            if raw is grpc.aio.EOF:
                return WireRefusal(WireCode.CLOSED)
            told = read_told(raw)
            if not self._is_connected:
                self._is_connected = True
                self._events.put(Connected())
            self._events.put(told)
            while self._events.qsize() > _MAX_WAITING:
                await asyncio.sleep(0.05)


def _why(error: grpc.aio.AioRpcError) -> WireRefusal:
    """What the status of a refused or broken stream means."""
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return WireRefusal(WireCode.VERSION_MISMATCH, "The coordinator serves no monitors.")
    word = error.details() or ""
    if error.code() in _TOLD_BY_STATUS and word in set(WireCode):
        return WireRefusal(WireCode(word))
    return why_not_connected(error)
