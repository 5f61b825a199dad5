# SPDX-License-Identifier: Apache-2.0
"""Engine `grpc`, the coordinator's end: nodes dial in over mutual TLS and keep one stream each.

Only certificates of the roster complete a TLS handshake, and the certificate decides which site a node is. A second
node of a connected site waits until the first one has given a sign of life and is turned away as `duplicate-node`, so
that a copy started by mistake cannot disturb a run. When the first one gives none, its connection ends and the new one
takes its place, so that a dead connection locks no site out.

`Monitors` tells how the run is, on the same port, and takes nothing in. Only the roster's monitors may watch; their
certificates open no other method. Nothing is queued for them: each gets the newest report when it has taken the one
before, so a slow one gets fewer reports and delays no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hedgerow.codec import format_spoken
from hedgerow.errors import EnvironmentFault
from hedgerow.protocol.refusals import WireCode, WireRefusal
from hedgerow.protocol.stream import (
    FRAME_HEADROOM,
    MAX_ENROLMENT_BYTES,
    MAX_EVENTS,
    MAX_REQUEST_BYTES,
    Admittance,
    Current,
    EventReport,
    Farewell,
    Introduction,
    RunReport,
    Standing,
    WatchRequest,
    event_bytes,
    read_as,
    read_first,
    report_bytes,
    unwrap_message,
    wrap_message,
)
from hedgerow.transport.connections import Door, places
from hedgerow.transport.grpc_link import (
    DEFAULTS,
    ENROL_METHOD,
    ENROL_SERVICE,
    METHOD,
    OWN_VERSION,
    SERVICE,
    VERSION_OF_CALLER,
    WATCH_METHOD,
    WATCH_SERVICE,
    Caller,
    GrpcLink,
    LinkSettings,
    Stream,
    background,
    channel_options,
    get_next,
    grpc,
    other_version,
    peer_certificate_sha256,
    require_size,
    translate_error,
    within,
)
from hedgerow.transport.identities import PinnedRoster, PrivateIdentity, PublicIdentity, require_pinned
from hedgerow.transport.interface import Address, Arrived, HubEvent, Joined, Left, Repeats, Traffic, times
from hedgerow.version import __version__

_log = logging.getLogger(__name__)
_STOPPING_SECONDS = 5.0
SITE_CONNECTIONS = 2
"""Connections of one site's certificate at once: its node's, and that of the next one."""
_SENDING_SECONDS = 0.001
"""Without a pause a thread that goes on computing keeps the interpreter's lock, five milliseconds if it likes."""


def _name_in(names: Mapping[bytes, str], context: Any, otherwise: str) -> str:
    """Return the name of the peer's certificate, or `otherwise` if it is not among `names`."""
    with contextlib.suppress(WireRefusal):
        return names.get(peer_certificate_sha256(context), otherwise)
    return otherwise


def _level(refusal: WireRefusal, roster: PinnedRoster, count: int) -> int:
    """Return the level at which to log a refused stream, which its peer was refused for this many times.

    After a change of the roster everybody who stays is refused once, and then asks for the new one.
    """
    is_expected = refusal.code == WireCode.ROSTER_MISMATCH and roster.edition > 1 and count == 1
    return logging.INFO if is_expected else logging.WARNING


class TlsServer:
    """A server of a port over mutual TLS; everything runs in the event loop."""

    def __init__(
        self,
        identity: PrivateIdentity,
        guests: Sequence[PublicIdentity] | None,
        door: Door,
        settings: LinkSettings,
        most: int,
        most_sent: int = 0,
    ) -> None:
        """Prepare a server that `start` will open.

        Args:
            guests: whose certificates complete a handshake; each method then asks whose it is. None: no one is asked
                for a certificate.
            most: bytes of a message that comes.
            most_sent: of one that is sent; 0 for as many.
        """
        own = identity.public.certificate_pem
        self._credentials = grpc.ssl_server_credentials(
            [(identity.tls_key, own)],
            # gRPC needs at least one certificate; the coordinator's own opens no method.
            root_certificates=None if guests is None else b"".join(guest.certificate_pem for guest in guests) or own,
            require_client_auth=guests is not None,
        )
        options = dict(channel_options(settings, most))
        options["grpc.max_send_message_length"] = (most_sent or most) + FRAME_HEADROOM
        self._server = grpc.aio.server(options=[*options.items(), *door.options])
        self._door = door

    async def start(self, address: Address, handlers: Sequence[grpc.GenericRpcHandler], fault: str) -> int:
        """Begin to serve and return the port.

        Raises:
            EnvironmentFault: `address-in-use`, with a text that begins with `fault`.
        """
        self._server.add_generic_rpc_handlers(tuple(handlers))
        try:
            port = self._server.add_secure_port(str(address), self._credentials)
        except RuntimeError:
            port = 0
        if port == 0:
            raise EnvironmentFault("address-in-use", fault=fault, address=address)
        await self._server.start()
        self._watching = asyncio.ensure_future(self._door.watch(port))
        return int(port)

    async def stop(self, grace: float) -> None:
        """Let streams go on for this many seconds, and free the port."""
        await self._server.stop(grace=grace)
        self._watching.cancel()


MAX_MONITORS = 16
"""Streams of all monitors together."""
MAX_PER_IDENTITY = 4
MONITOR_CONNECTIONS = MAX_PER_IDENTITY + 2
"""Connections of one monitor's certificate at once: those that watch, and some that are refused as too many."""
_STATUS = {
    WireCode.UNPINNED: grpc.StatusCode.PERMISSION_DENIED,
    WireCode.TOO_MANY_MONITORS: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
EventsSince = Callable[[int], tuple[tuple[EventReport, ...], int]]


class Monitors:
    """Serves the monitors of a roster; give it to `GrpcHub`, and reports to `show`."""

    def __init__(self, roster: PinnedRoster, settings: LinkSettings = DEFAULTS) -> None:
        self._names = {monitor.certificate_sha256: monitor.name for monitor in roster.monitors}
        self._roster, self._roster_digest, self._settings = roster, roster.digest(), settings
        self._watching: Counter[str] = Counter()
        self._repeats = Repeats()
        self._newest: tuple[bytes, EventsSince] | None = None
        self._n_shown = 0
        self._is_closing = False
        self._changed = asyncio.Condition()

    def is_there(self) -> bool:
        """Return whether anybody watches."""
        return self._watching.total() > 0

    def show(self, report: RunReport, events_since: EventsSince) -> None:
        """Send the newest report to all monitors. Does not block; may be called from any thread."""
        background.start(self._take(report_bytes(report), events_since))

    def close(self) -> None:
        """Let everybody take the newest report, for `closing_seconds` at most, and hang up."""
        background.run(self._close())

    def handler(self, door: Door) -> grpc.GenericRpcHandler:
        """Return the handler for the coordinator's gRPC server to add; `door` is that server's."""
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
        """Serve one stream of one monitor."""
        try:
            name, request = self._admit(raw, context)
        except WireRefusal as refusal:
            who = _name_in(self._names, context, "Somebody who is no monitor")
            if count := self._repeats.note(who, refusal.code):
                level = _level(refusal, self._roster, count)
                _log.log(level, "%s may not watch: %s (%s)%s", who, refusal.what, refusal.code, times(count))
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

    def _admit(self, raw: bytes, context: Any) -> tuple[str, WatchRequest]:
        """Return the monitor's name and request; raise WireRefusal for a party that may not watch."""
        digest = peer_certificate_sha256(context)
        if digest not in self._names:
            raise WireRefusal(WireCode.UNPINNED)
        name = self._names[digest]
        self._door.admit(context.peer(), f"monitor {name}", MONITOR_CONNECTIONS)
        request = read_as(WatchRequest, unwrap_message(raw, MAX_REQUEST_BYTES))
        if request.roster_digest != self._roster_digest:
            raise WireRefusal(WireCode.ROSTER_MISMATCH)
        if self._watching.total() >= MAX_MONITORS or self._watching[name] >= MAX_PER_IDENTITY:
            raise WireRefusal(WireCode.TOO_MANY_MONITORS)
        return name, request

    async def _tell(self, request: WatchRequest, context: Any) -> None:
        # Skip the last report, which may be old: none is made while nobody watches.
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
            await within(context.write(wrap_message(update)), self._settings.silence_seconds)
            last_event += missed + len(events)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closes(), request.seconds)

    async def _closes(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._is_closing)


class GrpcHub:
    """Hub over gRPC; see `transport.interface.Hub`. It listens as soon as it is made.

    Args:
        plan_digest: SHA-256 of the plan, or empty to let nodes join whatever plan they name.
        monitors: serves those who may watch, on the same port.

    Raises:
        EnvironmentFault: `address-in-use` when the address cannot be had, `identity-not-pinned` when the roster pins
            another coordinator, `too-few-files` when this process may not open as many as the sites need.
    """

    def __init__(
        self,
        identity: PrivateIdentity,
        roster: PinnedRoster,
        address: Address,
        *,
        plan_digest: bytes = b"",
        settings: LinkSettings = DEFAULTS,
        monitors: Monitors | None = None,
    ) -> None:
        require_pinned(identity, roster)
        self._identity, self._roster, self._settings = identity, roster, settings
        self._monitors = monitors
        self._plan_digest, self._roster_digest = plan_digest, roster.digest()
        self._sites = {site.certificate_sha256: site.name for site in roster.sites}
        self._events: queue.SimpleQueue[tuple[HubEvent, GrpcLink | None]] = queue.SimpleQueue()
        self._links: dict[str, GrpcLink] = {}
        # By site: set when the coordinator has read the end of the site's last stream.
        self._left: dict[str, asyncio.Event] = {}
        self._past = Traffic()
        self._names = {party.certificate_sha256: f"site {party.name}" for party in roster.sites}
        self._names |= {party.certificate_sha256: f"monitor {party.name}" for party in roster.monitors}
        self._repeats = Repeats()
        self.refusals: dict[str, int] = defaultdict(int)
        """How many streams were refused before they were joined, by code."""
        self.versions: dict[str, str] = {}
        """Version of Hedgerow that each site's node has told."""
        self.port = background.run(self._start(address))
        """The port it listens on."""

    def send(self, site: str, message: bytes) -> bool:
        """Queue a message for a site; False if the site is absent, or is disconnected for taking nothing."""
        require_size(message, self._settings)
        link = self._links.get(site)
        return link is not None and link.offer(message)

    def receive(self, timeout: float) -> HubEvent | None:
        """Return the next event; even with no timeout it lets the transport's thread send queued messages."""
        found = get_next(self._events, max(timeout, _SENDING_SECONDS))
        if found is None:
            return None
        event, link = found
        if link is not None and isinstance(event, Arrived):
            link.note_taken(event.message)
        elif isinstance(event, Left):
            self._caller.soon(self._left[event.site].set)
        return event

    def connected_sites(self) -> tuple[str, ...]:
        """Return the sites connected now, sorted."""
        return tuple(sorted(self._links))

    def traffic(self) -> Traffic:
        """Return the bytes of messages since the hub was made, over all joined streams."""
        parts = [self._past, *(link.traffic for link in list(self._links.values()))]
        return Traffic(sum(part.sent for part in parts), sum(part.received for part in parts))

    def close(self) -> None:
        """Deliver queued messages to peers that take them within `closing_seconds`, then stop the server."""
        background.run(self._stop())

    async def _start(self, address: Address) -> int:
        self._caller = Caller(asyncio.get_running_loop())
        self._joining: dict[str, asyncio.Lock] = {site.name: asyncio.Lock() for site in self._roster.sites}
        watching = () if self._monitors is None else self._roster.monitors
        n_sites, for_monitors = len(self._roster.sites), len(watching) * MONITOR_CONNECTIONS
        n_places = places(address.host, n_sites + for_monitors, n_sites * SITE_CONNECTIONS + for_monitors)
        self._door = Door(n_places, self._settings.idle_seconds)
        method: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._join)
        current: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(self._tell_roster)
        handlers = [
            grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),
            grpc.method_handlers_generic_handler(ENROL_SERVICE, {ENROL_METHOD: current}),
        ]
        if self._monitors is not None:
            handlers.append(self._monitors.handler(self._door))
        handlers.append(_OtherMethods(self._refuse))
        guests, most = (*self._roster.sites, *watching), self._settings.max_message_bytes
        self._server = TlsServer(self._identity, guests, self._door, self._settings, most)
        return await self._server.start(address, handlers, "The coordinator cannot listen")

    async def _stop(self) -> None:
        links = list(self._links.values())
        for link in links:
            link.end(WireRefusal(WireCode.CLOSED), drain=True)
        with contextlib.suppress(TimeoutError):
            # A link may take `closing_seconds` itself, and its stream's end takes further time.
            waiting = asyncio.gather(*(link.finished.wait() for link in links))
            await within(waiting, 2 * self._settings.closing_seconds)
        await self._server.stop(_STOPPING_SECONDS)

    async def _tell_roster(self, raw: bytes, _: object) -> bytes:
        """Answer with the roster of this run, for a party that pins an earlier one."""
        try:
            read_as(Current, unwrap_message(raw, self._settings.max_message_bytes))
        except WireRefusal as refusal:
            return wrap_message(Farewell.from_refusal(refusal).to_bytes())
        return wrap_message(Standing(self._roster.to_toml().encode()).to_bytes())

    async def _join(self, _: object, context: Any) -> None:
        """Serve one stream of one node, from its first message to its last."""
        try:
            digest = peer_certificate_sha256(context)
            # TLS also accepts a certificate issued by a pinned one; only the pinned ones themselves are accepted here.
            if digest not in self._sites:
                raise WireRefusal(WireCode.UNPINNED)
            site = self._sites[digest]
            self._door.admit(context.peer(), self._names[digest], SITE_CONNECTIONS)
            self._check(await self._read_introduction(context), site)
            async with self._joining[site]:
                with self._door.carrying(context.peer()):
                    await self._make_place(site)
                admittance = Admittance(self._settings.max_message_bytes, __version__)
                await context.write(wrap_message(admittance.to_bytes()))
                link = self._add(site, context)
        except WireRefusal as refusal:
            self._refuse(refusal, context)
            with contextlib.suppress(grpc.RpcError, grpc.aio.BaseError):
                await context.write(wrap_message(Farewell.from_refusal(refusal).to_bytes()))
            return
        except (grpc.RpcError, grpc.aio.BaseError):
            return  # The node went away before it was admitted.
        try:
            with self._door.carrying(context.peer()):
                await link.run()
        finally:
            del self._links[site]
            self._past = Traffic(self._past.sent + link.traffic.sent, self._past.received + link.traffic.received)
            self._left[site] = asyncio.Event()
            self._events.put((Left(site, link.why.code), None))
            link.finished.set()

    def _refuse(self, refusal: WireRefusal, context: Any) -> None:
        """Count and log a refused stream, with its peer and the reason."""
        self.refusals[refusal.code] += 1
        who, said = _name_in(self._names, context, "a stranger"), refusal.what
        if count := self._repeats.note(who, refusal.code):
            level = _level(refusal, self._roster, count)
            if level == logging.INFO:
                said += " A node that stays asks its owner for a later roster, and ends if that is denied."
            _log.log(level, "A stream of %s was refused: %s (%s)%s", who, said, refusal.code, times(count))

    async def _read_introduction(self, context: Stream) -> Introduction:
        try:
            raw = await within(context.read(), self._settings.hello_seconds)
        except TimeoutError:
            raise WireRefusal(WireCode.HELLO_TIMEOUT) from None
        except (grpc.RpcError, grpc.aio.BaseError) as error:
            raise translate_error(error) from None
        if raw is grpc.aio.EOF:
            raise WireRefusal(WireCode.CONNECTION_LOST)  # A peer that ends in order sends a message first.
        return read_first(Introduction, unwrap_message(raw, self._settings.max_message_bytes))

    def _check(self, node: Introduction, site: str) -> None:
        if node.site != site:
            raise WireRefusal(WireCode.SITE_MISMATCH)
        self.versions[site] = node.version
        if node.roster_digest != self._roster_digest:
            pinned, own = format_spoken(node.roster_digest), format_spoken(self._roster_digest)
            raise WireRefusal(WireCode.ROSTER_MISMATCH, f"{site} holds {pinned}, and the coordinator {own}.")
        if self._plan_digest and node.plan_digest and node.plan_digest != self._plan_digest:
            agreed, own = format_spoken(node.plan_digest), format_spoken(self._plan_digest)
            raise WireRefusal(WireCode.PLAN_MISMATCH, f"{site} holds {agreed}, and the coordinator {own}.")

    async def _make_place(self, site: str) -> None:
        """Raise DUPLICATE_NODE if the site's connected node gives a sign of life; else its stream has ended.

        Then it has been read as well, with all that it brought: else a site could fill the memory stream by stream.
        """
        old = self._links.get(site)
        if old is not None:
            try:
                await within(old.finished.wait(), self._settings.place_seconds)
            except TimeoutError:
                raise WireRefusal(WireCode.DUPLICATE_NODE) from None
        if site in self._left:
            await self._left[site].wait()

    def _add(self, site: str, context: Stream) -> GrpcLink:
        def deliver(message: bytes) -> None:
            self._events.put((Arrived(site, message), link))

        link = GrpcLink(context, self._settings, deliver, caller=self._caller)
        self._links[site] = link
        self._events.put((Joined(site), None))
        return link


class _OtherMethods(grpc.GenericRpcHandler):
    """Handler of unknown methods: it answers as gRPC does, and adds the version of this end.

    Args:
        refuse: lets the operator know of a node of another version.
    """

    def __init__(self, refuse: Callable[[WireRefusal, Any], None] = lambda refusal, context: None) -> None:
        self._refuse = refuse

    def service(self, call: Any) -> Any:
        """Return the handler of a call to a method of Hedgerow that is not served; None for other calls."""
        if not call.method.startswith("/hedgerow."):
            return None
        is_node = call.method.endswith(f"/{METHOD}")
        return grpc.stream_stream_rpc_method_handler(self._answer_node if is_node else self._answer)

    async def _answer_node(self, request: object, context: Any) -> None:
        self._refuse(other_version(dict(context.invocation_metadata()).get(VERSION_OF_CALLER)), context)
        await self._answer(request, context)

    async def _answer(self, _: object, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, OWN_VERSION)


# Before and between the runs of a study -------------------------------------------------------------------------------
# The coordinator answers single messages of its parties. It shows the certificate that its invitations pin. Before
# there is a roster, it knows no other certificate and asks for none; afterwards only parties of the roster get in. A
# node that comes meanwhile is told to come again.

_MAX_ASKED_BYTES = 16 << 10
_LAST_SECONDS = 1.0


class StudyServer:
    """Gives every message to `answer`, one at a time, in a thread of its own; listens as soon as it is made.

    Args:
        n_parties: that may come at once, besides strangers.
        answer: of a message, the answer's bytes; must not raise.
        parties: whose certificates are asked for; None: no one's.

    Raises:
        EnvironmentFault: `address-in-use` and `too-few-files`, as `GrpcHub`.
    """

    def __init__(
        self,
        identity: PrivateIdentity,
        address: Address,
        n_parties: int,
        answer: Callable[[bytes], bytes],
        parties: Sequence[PublicIdentity] | None = None,
    ) -> None:
        self._identity, self._address, self._n_parties, self._answer = identity, address, n_parties, answer
        self._parties = parties
        self._turn = threading.Lock()
        self.port = background.run(self._start())
        """The port it listens on."""

    def close(self) -> None:
        """Stop serving and free the port."""
        background.run(self._server.stop(_LAST_SECONDS))

    async def _start(self) -> int:
        door = Door(places(self._address.host, self._n_parties, self._n_parties), DEFAULTS.idle_seconds)
        # Messages are short; a longer one is refused before it is in memory.
        self._server = TlsServer(self._identity, self._parties, door, DEFAULTS, _MAX_ASKED_BYTES, MAX_ENROLMENT_BYTES)
        enrol: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(self._enrol)
        join: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._come_again)
        handlers = [
            grpc.method_handlers_generic_handler(ENROL_SERVICE, {ENROL_METHOD: enrol}),
            grpc.method_handlers_generic_handler(SERVICE, {METHOD: join}),
            _OtherMethods(),
        ]
        return await self._server.start(self._address, handlers, "The coordinator cannot listen")

    async def _enrol(self, raw: bytes, _: object) -> bytes:
        try:
            message = unwrap_message(raw, _MAX_ASKED_BYTES)
        except WireRefusal as refusal:
            return wrap_message(Farewell.from_refusal(refusal).to_bytes())
        return wrap_message(await asyncio.to_thread(self._answer_in_turn, message))

    def _answer_in_turn(self, message: bytes) -> bytes:
        with self._turn:
            return self._answer(message)

    async def _come_again(self, _: object, context: Any) -> None:
        # Read the first message first, because otherwise the answer may go to a stream that has ended.
        await within(context.read(), DEFAULTS.hello_seconds)
        await context.write(wrap_message(Farewell.from_refusal(WireRefusal(WireCode.CLOSED)).to_bytes()))
