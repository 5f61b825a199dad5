"""Engine `grpc`, the monitors' service on the coordinator's port: it tells how the run is, and takes nothing in.

The roster's monitors may watch and nobody else; their certificates open no other method. Nothing is queued for them:
each gets the newest report when it has taken the one before, so a slow one is told less and delays nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from hedgerow.protocol.results import EventReport, RunReport
from hedgerow.protocol.wire.refusals import WireCode, WireRefusal
from hedgerow.protocol.wire.reports import MAX_EVENTS, WatchRequest, event_bytes, report_bytes
from hedgerow.transport.connections import Door
from hedgerow.transport.grpc_core import (
    DEFAULTS,
    WATCH_METHOD,
    WATCH_SERVICE,
    LinkSettings,
    background,
    grpc,
    peer_certificate_sha256,
    within,
)
from hedgerow.transport.interface import Repeats, times
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
        """Wait until nobody watches."""
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
        request = WatchRequest.from_bytes(raw)
        if request.roster_digest != self._roster_digest:
            raise WireRefusal(WireCode.ROSTER_MISMATCH)
        if self._watching.total() >= MAX_MONITORS or self._watching[name] >= MAX_PER_IDENTITY:
            raise WireRefusal(WireCode.TOO_MANY_MONITORS)
        return name, request

    async def _tell(self, request: WatchRequest, context: Any) -> None:
        # The report of before may be old: while nobody watched, none was made.
        n_told, last_event = self._n_shown, 0
        while True:
            async with self._changed:
                while self._n_shown <= n_told and not self._is_closing:
                    await self._changed.wait()
                if self._n_shown <= n_told or self._newest is None:
                    return
                n_told, (shared, events_since) = self._n_shown, self._newest
            events, missed = events_since(last_event)
            told = shared + event_bytes(events[-MAX_EVENTS:], missed)
            await within(context.write(told), self._settings.silence_seconds)
            last_event += missed + len(events)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closes(), request.interval)

    async def _closes(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._is_closing)
