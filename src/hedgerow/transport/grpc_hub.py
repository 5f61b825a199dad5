"""Engine `grpc`, the coordinator's end: nodes dial in over mutual TLS and keep one stream each.

Only certificates of the roster complete a TLS handshake, and the certificate decides which site a node is. A second
node of a connected site waits until the first one has given a sign of life and is turned away as `duplicate-node`, so
that a copy started by mistake cannot disturb a run; when the first one gives none, its connection ends and the new one
takes its place, so that a dead connection locks no site out.

`MonitorServer` is a port for monitors alone: for engines whose nodes do not dial the coordinator.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hedgerow import __version__
from hedgerow.protocol.reports import MAX_REPORT_BYTES
from hedgerow.protocol.stream import (
    Admittance,
    Farewell,
    Introduction,
    WireCode,
    WireRefusal,
    first_of,
    unwrapped,
    wrapped,
)
from hedgerow.transport.connections import Door, places
from hedgerow.transport.grpc_link import (
    DEFAULTS,
    METHOD,
    SERVICE,
    Caller,
    Link,
    LinkSettings,
    Stream,
    background,
    channel_options,
    grpc,
    idle_seconds_of,
    listen,
    lost,
    next_of,
    peer_certificate_sha256,
    require_size,
    within,
)
from hedgerow.transport.grpc_monitor import MONITOR_CONNECTIONS, Monitors
from hedgerow.transport.identities import PrivateIdentity
from hedgerow.transport.interface import Arrived, HubEvent, Joined, Left, Repeats, Traffic, times
from hedgerow.transport.roster_file import PinnedRoster, require_pinned

_log = logging.getLogger(__name__)
_STOPPING_SECONDS = 5.0
_CLOSING_SECONDS = 1.0
SITE_CONNECTIONS = 2
"""Of one site's certificate at once: its node's, and that of the one that comes after it."""
_SENDING_SECONDS = 0.001
"""Without a pause a thread that goes on computing keeps the interpreter's lock, five milliseconds if it likes."""


@dataclass(frozen=True, slots=True)
class HubAddress:
    """Where the coordinator listens: `host` may be a name or an address, port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 0

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class GrpcHub:
    """See `transport.interface.Hub`. It listens as soon as it is made.

    Args: identity: the coordinator's; roster: who may join; address: where to listen; plan_digest: SHA-256 of the plan,
        or empty to let nodes join whatever plan they name; settings; monitors: serves those who may watch, on the
        same port.
    Raises EnvironmentFault `address-in-use` when the address cannot be had, `identity-not-pinned` when the roster pins
        another coordinator, `too-few-files` when this process may not open as many as the sites need.
    """

    def __init__(
        self,
        identity: PrivateIdentity,
        roster: PinnedRoster,
        address: HubAddress,
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
        self._events: queue.SimpleQueue[tuple[HubEvent, Link | None]] = queue.SimpleQueue()
        self._links: dict[str, Link] = {}
        # Set when the party above has read that the site's last stream has ended.
        self._left: dict[str, asyncio.Event] = {}
        self._past = Traffic()
        self._names = {party.certificate_sha256: f"site {party.name}" for party in roster.sites}
        self._names |= {party.certificate_sha256: f"monitor {party.name}" for party in roster.monitors}
        self._repeats = Repeats()
        self.refusals: dict[str, int] = defaultdict(int)
        """How many streams were refused before they were joined, by code."""
        self.port = background.start(self._start(address)).result()
        """The port it listens on."""

    def send(self, site: str, message: bytes) -> bool:
        """See `Hub.send`; False as well when the peer takes nothing and is disconnected for it."""
        require_size(message, self._settings)
        link = self._links.get(site)
        return link is not None and link.offer(message)

    def receive(self, timeout: float) -> HubEvent | None:
        """See `Hub.receive`; a party that only asks still lets the transport's thread send what it has been given."""
        found = next_of(self._events, max(timeout, _SENDING_SECONDS))
        if found is None:
            return None
        event, link = found
        if link is not None and isinstance(event, Arrived):
            link.taken(event.message)
        elif isinstance(event, Left):
            self._caller.soon(self._left[event.site].set)
        return event

    def connected(self) -> tuple[str, ...]:
        """The sites that are connected now, sorted."""
        return tuple(sorted(self._links))

    def traffic(self) -> Traffic:
        """Bytes of messages since the hub was made, over all streams that were joined."""
        parts = [self._past, *(link.traffic for link in list(self._links.values()))]
        return Traffic(sum(part.sent for part in parts), sum(part.received for part in parts))

    def close(self) -> None:
        """See `Hub.close`: what was sent before is delivered first, to those who take it within `closing_seconds`."""
        background.start(self._stop()).result()

    async def _start(self, address: HubAddress) -> int:
        self._caller = Caller(asyncio.get_running_loop())
        own = self._identity.public
        credentials = grpc.ssl_server_credentials(
            [(self._identity.tls_key, own.certificate_pem)],
            root_certificates=b"".join(self._trusted()),
            require_client_auth=True,
        )
        self._door = self._make_door(address.host)
        options = [*channel_options(self._settings, self._settings.max_message_bytes), *self._door.options]
        self._server = grpc.aio.server(options=options)
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._join)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        if self._monitors is not None:
            self._server.add_generic_rpc_handlers((self._monitors.handler(self._door),))
        self._server.add_generic_rpc_handlers((_OtherVersions(self._refuse),))
        self._joining: dict[str, asyncio.Lock] = {site.name: asyncio.Lock() for site in self._roster.sites}
        port = await listen(self._server, str(address), credentials, "The coordinator cannot listen")
        self._watching = asyncio.ensure_future(self._door.watch(port))
        return port

    def _make_door(self, host: str) -> Door:
        n_sites, n_monitors = len(self._roster.sites), 0 if self._monitors is None else len(self._roster.monitors)
        for_monitors = n_monitors * MONITOR_CONNECTIONS
        n_places = places(host, n_sites + for_monitors, n_sites * SITE_CONNECTIONS + for_monitors)
        return Door(n_places, idle_seconds_of(self._settings))

    def _trusted(self) -> Iterator[bytes]:
        """The certificates that complete a TLS handshake, in PEM; each method then asks whose it is."""
        watching = () if self._monitors is None else self._roster.monitors
        for party in (*self._roster.sites, *watching):
            yield party.certificate_pem

    async def _stop(self) -> None:
        links = list(self._links.values())
        for link in links:
            link.end(WireRefusal(WireCode.CLOSED), drain=True)
        with contextlib.suppress(TimeoutError):
            # A link takes so long itself, and then there is its stream's end.
            waiting = asyncio.gather(*(link.finished.wait() for link in links))
            await within(waiting, 2 * self._settings.closing_seconds)
        await self._server.stop(grace=_STOPPING_SECONDS)
        self._watching.cancel()

    async def _join(self, _: object, context: Any) -> None:
        """One stream of one node, from its first message to its last."""
        try:
            site = self._site_of(context)
            self._check(await self._introduction(context), site)
            async with self._joining[site]:
                with self._door.carrying(context.peer()):
                    await self._make_place(site)
                admittance = Admittance(self._settings.max_message_bytes, __version__)
                await context.write(wrapped(admittance.to_bytes()))
                link = self._add(site, context)
        except WireRefusal as refusal:
            self._refuse(refusal, context)
            with contextlib.suppress(grpc.RpcError, grpc.aio.BaseError):
                await context.write(wrapped(Farewell.of(refusal).to_bytes()))
            return
        except (grpc.RpcError, grpc.aio.BaseError):
            return  # The node went away before it was admitted.
        try:
            with self._door.carrying(context.peer()):
                await link.run()
        finally:
            self._remove(site, link)

    def _refuse(self, refusal: WireRefusal, context: Any) -> None:
        """Count and log whose stream was refused, and why."""
        self.refusals[refusal.code] += 1
        who = "a stranger"
        with contextlib.suppress(WireRefusal):
            who = self._names.get(peer_certificate_sha256(context), who)
        if count := self._repeats.note(who, refusal.code):
            _log.warning("A stream of %s was refused: %s (%s)%s", who, refusal.what, refusal.code, times(count))

    def _site_of(self, context: Any) -> str:
        """The site whose pinned certificate the TLS session used."""
        digest = peer_certificate_sha256(context)
        # TLS let it pass if a pinned certificate vouches for it; only the pinned ones themselves are accepted.
        if digest not in self._sites:
            raise WireRefusal(WireCode.UNPINNED)
        self._door.admit(context.peer(), self._names[digest], SITE_CONNECTIONS)
        return self._sites[digest]

    async def _introduction(self, context: Stream) -> Introduction:
        try:
            raw = await within(context.read(), self._settings.hello_seconds)
        except TimeoutError:
            raise WireRefusal(WireCode.HELLO_TIMEOUT) from None
        except (grpc.RpcError, grpc.aio.BaseError) as error:
            raise lost(error) from None
        if raw is grpc.aio.EOF:
            raise WireRefusal(WireCode.CLOSED)
        return first_of(Introduction, unwrapped(raw, self._settings.max_message_bytes))

    def _check(self, node: Introduction, site: str) -> None:
        if node.site != site:
            raise WireRefusal(WireCode.SITE_MISMATCH)
        if node.roster_digest != self._roster_digest:
            raise WireRefusal(WireCode.ROSTER_MISMATCH)
        if self._plan_digest and node.plan_digest and node.plan_digest != self._plan_digest:
            raise WireRefusal(WireCode.PLAN_MISMATCH)

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

    def _add(self, site: str, context: Stream) -> Link:
        def deliver(message: bytes) -> None:
            self._events.put((Arrived(site, message), link))

        link = Link(context, self._settings, deliver, caller=self._caller)
        self._links[site] = link
        self._events.put((Joined(site), None))
        return link

    def _remove(self, site: str, link: Link) -> None:
        del self._links[site]
        self._past = Traffic(self._past.sent + link.traffic.sent, self._past.received + link.traffic.received)
        self._left[site] = asyncio.Event()
        self._events.put((Left(site, link.why.code), None))
        link.finished.set()


class _OtherVersions(grpc.GenericRpcHandler):
    """Answers nodes of another version as gRPC does for every unknown method, and lets the operator know."""

    def __init__(self, refuse: Callable[[WireRefusal, Any], None]) -> None:
        self._refuse = refuse

    def service(self, call: Any) -> Any:
        """See gRPC: the handler of a call, if it is for this one."""
        is_ours = call.method.startswith("/hedgerow.") and call.method.endswith(f"/{METHOD}")
        return grpc.stream_stream_rpc_method_handler(self._answer) if is_ours else None

    async def _answer(self, _: object, context: Any) -> None:
        refusal = WireRefusal(WireCode.VERSION_MISMATCH)
        self._refuse(refusal, context)
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, refusal.code)


class MonitorServer:
    """Serves `monitors` over mutual TLS, as `GrpcHub` does beside the nodes.

    Raises EnvironmentFault `address-in-use`, `too-few-files`, and `identity-not-pinned` when the roster pins another
    coordinator.
    """

    def __init__(
        self, identity: PrivateIdentity, roster: PinnedRoster, address: HubAddress, monitors: Monitors
    ) -> None:
        require_pinned(identity, roster)
        self._identity, self._roster, self._monitors = identity, roster, monitors
        self.port = background.start(self._start(address)).result()
        """The port it listens on."""

    def close(self) -> None:
        """Stop serving and free the port."""
        background.start(self._stop()).result()

    async def _start(self, address: HubAddress) -> int:
        trusted = b"".join(monitor.certificate_pem for monitor in self._roster.monitors)
        credentials = grpc.ssl_server_credentials(
            [(self._identity.tls_key, self._identity.public.certificate_pem)],
            # gRPC wants at least one; the coordinator's own certificate opens no method.
            root_certificates=trusted or self._identity.public.certificate_pem,
            require_client_auth=True,
        )
        n_guests = len(self._roster.monitors) * MONITOR_CONNECTIONS
        door = Door(places(address.host, n_guests, n_guests), idle_seconds_of(DEFAULTS))
        self._server = grpc.aio.server(options=[*channel_options(DEFAULTS, MAX_REPORT_BYTES), *door.options])
        self._server.add_generic_rpc_handlers((self._monitors.handler(door),))
        port = await listen(self._server, str(address), credentials, "Monitors cannot be served")
        self._watching = asyncio.ensure_future(door.watch(port))
        return port

    async def _stop(self) -> None:
        await self._server.stop(grace=_CLOSING_SECONDS)
        self._watching.cancel()
