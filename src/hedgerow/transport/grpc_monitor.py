"""Engine `grpc`, monitors: the service on the coordinator's port (`Monitors`), and a monitor's own end (`GrpcWatch`).

The service tells how the run is, and takes nothing in. Only the roster's monitors may watch; their certificates open no
other method. Nothing is queued for them: each gets the newest report when it has taken the one before, so a slow one
gets fewer reports and delays no other.

A monitor dials the coordinator, reads reports, and comes back after every loss.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
from collections import Counter
from collections.abc import Callable
from typing import Any

from hedgerow.errors import EnvironmentFault
from hedgerow.protocol.reports import (
    MAX_EVENTS,
    MAX_REPORT_BYTES,
    MAX_REQUEST_BYTES,
    EventReport,
    RunReport,
    Update,
    WatchRequest,
    event_bytes,
    report_bytes,
)
from hedgerow.protocol.stream import WireCode, WireRefusal, read_as, unwrapped, wrapped
from hedgerow.transport.connections import Door
from hedgerow.transport.grpc_link import (
    DEFAULTS,
    WATCH,
    WATCH_METHOD,
    WATCH_SERVICE,
    LinkSettings,
    background,
    channel_options,
    grpc,
    lost,
    next_of,
    peer_certificate_sha256,
    within,
)
from hedgerow.transport.grpc_uplink import why_not_connected
from hedgerow.transport.identities import PrivateIdentity
from hedgerow.transport.interface import Connected, Disconnected, Repeats, times
from hedgerow.transport.roster_file import PinnedRoster

_log = logging.getLogger(__name__)
MAX_MONITORS = 16
"""Streams of all monitors together."""
MAX_PER_IDENTITY = 4
MONITOR_CONNECTIONS = MAX_PER_IDENTITY + 2
"""Of one monitor's certificate at once: those that watch, and some that are told that there are too many."""
_STATUS = {
    WireCode.UNPINNED: grpc.StatusCode.PERMISSION_DENIED,
    WireCode.TOO_MANY_MONITORS: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
EventsSince = Callable[[int], tuple[tuple[EventReport, ...], int]]


class Monitors:
    """Serves the monitors of a roster; give it to `GrpcHub`, and reports to `show`."""

    def __init__(self, roster: PinnedRoster, settings: LinkSettings = DEFAULTS) -> None:
        self._names = {monitor.certificate_sha256: monitor.name for monitor in roster.monitors}
        self._roster_digest, self._settings = roster.digest(), settings
        self._watching: Counter[str] = Counter()
        self._repeats = Repeats()
        self._newest: tuple[bytes, EventsSince] | None = None
        self._n_shown = 0
        self._is_closing = False
        self._changed = asyncio.Condition()

    def is_there(self) -> bool:
        """Whether anybody watches."""
        return self._watching.total() > 0

    def show(self, report: RunReport, events_since: EventsSince) -> None:
        """The newest report, for all who watch. Does not block; may be called from any thread."""
        background.start(self._take(report_bytes(report), events_since))

    def close(self) -> None:
        """Let everybody take the newest report, for `closing_seconds` at most, and hang up."""
        background.start(self._close()).result()

    def handler(self, door: Door) -> grpc.GenericRpcHandler:
        """What the coordinator's gRPC server adds to its own method; `door` is that server's."""
        self._door = door
        method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(self._watch)
        return grpc.method_handlers_generic_handler(WATCH_SERVICE, {WATCH_METHOD: method})

    async def _take(self, shared: bytes, events_since: EventsSince) -> None:
        async with self._changed:
            self._newest = shared, events_since
            self._n_shown += 1
            self._changed.notify_all()

    async def _close(self) -> None:
        async with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        try:
            await within(self._has_gone(), self._settings.closing_seconds)
        except TimeoutError:
            _log.warning("The monitors were not told of the end.")

    async def _has_gone(self) -> None:
        """Wait until no one watches."""
        while self.is_there():
            await asyncio.sleep(0.01)

    async def _watch(self, raw: bytes, context: Any) -> None:
        """One stream of one monitor."""
        try:
            name, request = self._admit(raw, context)
        except WireRefusal as refusal:
            self._tell_of(refusal, context)
            status = _STATUS.get(refusal.wire_code, grpc.StatusCode.FAILED_PRECONDITION)
            await context.abort(status, refusal.code)
            return
        self._watching[name] += 1
        if count := self._repeats.note(name, "watches"):
            _log.info("%s watches%s.", name, times(count))
        try:
            with self._door.carrying(context.peer()):
                await self._tell(request, context)
        except (TimeoutError, grpc.RpcError, grpc.aio.BaseError):
            if count := self._repeats.note(name, "left"):
                _log.info("%s takes nothing and is not told any more%s.", name, times(count))
        finally:
            self._watching[name] -= 1

    def _tell_of(self, refusal: WireRefusal, context: Any) -> None:
        """Log who was refused, and why."""
        who = "Somebody who is no monitor"
        with contextlib.suppress(WireRefusal):
            who = self._names.get(peer_certificate_sha256(context), who)
        if count := self._repeats.note(who, refusal.code):
            _log.warning("%s may not watch: %s (%s)%s", who, refusal.what, refusal.code, times(count))

    def _admit(self, raw: bytes, context: Any) -> tuple[str, WatchRequest]:
        """Who wants to watch, and what; raises WireRefusal."""
        digest = peer_certificate_sha256(context)
        if digest not in self._names:
            raise WireRefusal(WireCode.UNPINNED)
        name = self._names[digest]
        self._door.admit(context.peer(), f"monitor {name}", MONITOR_CONNECTIONS)
        request = read_as(WatchRequest, unwrapped(raw, MAX_REQUEST_BYTES))
        if request.roster_digest != self._roster_digest:
            raise WireRefusal(WireCode.ROSTER_MISMATCH)
        if self._watching.total() >= MAX_MONITORS or self._watching[name] >= MAX_PER_IDENTITY:
            raise WireRefusal(WireCode.TOO_MANY_MONITORS)
        return name, request

    async def _tell(self, request: WatchRequest, context: Any) -> None:
        # The report of before may be old: while no one watched, none was made.
        n_told, last_event = self._n_shown, 0
        while True:
            async with self._changed:
                while self._n_shown <= n_told and not self._is_closing:
                    await self._changed.wait()
                if self._n_shown <= n_told or self._newest is None:
                    return
                n_told, (shared, events_since) = self._n_shown, self._newest
            events, missed = events_since(last_event)
            update = shared + event_bytes(events[-MAX_EVENTS:], missed)
            await within(context.write(wrapped(update)), self._settings.silence_seconds)
            last_event += missed + len(events)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closes(), request.seconds)

    async def _closes(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._is_closing)


_MAX_WAITING = 64
_TOLD_BY_STATUS = {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED,
                   grpc.StatusCode.FAILED_PRECONDITION}  # fmt: skip

WatchEvent = Connected | Disconnected | Update


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
            raise EnvironmentFault("monitor-not-pinned", name=identity.public.name)
        self._address, self._identity, self._coordinator = address, identity, roster.coordinator
        self._request = wrapped(WatchRequest(roster.digest(), interval).to_bytes())
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
            is_final = why.is_final
            if self._is_connected or why.wire_code is not reported or is_final:
                # One event for many failures of one kind: nothing may grow while no one looks.
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
            update = read_as(Update, unwrapped(raw, MAX_REPORT_BYTES))
            if not self._is_connected:
                self._is_connected = True
                self._events.put(Connected())
            self._events.put(update)
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
