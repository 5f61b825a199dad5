"""A port for monitors alone: for engines whose nodes do not dial the coordinator."""

from __future__ import annotations

import asyncio

from hedgerow.protocol.wire.frames import MAX_FRAME_BYTES
from hedgerow.transport.connections import Door, places
from hedgerow.transport.grpc_core import DEFAULTS, background, channel_options, grpc, idle_seconds_of, listen
from hedgerow.transport.grpc_hub import HubAddress
from hedgerow.transport.grpc_monitor import MONITOR_CONNECTIONS, Monitors
from hedgerow.transport.identity import PrivateIdentity
from hedgerow.transport.roster_file import PinnedRoster, require_pinned

_STOPPING_SECONDS = 1.0


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
        self._server = grpc.aio.server(options=[*channel_options(DEFAULTS, MAX_FRAME_BYTES), *door.options])
        self._server.add_generic_rpc_handlers((self._monitors.handler(door),))
        port = await listen(self._server, str(address), credentials, "Monitors cannot be served")
        self._watching = asyncio.ensure_future(door.watch(port))
        return port

    async def _stop(self) -> None:
        await self._server.stop(grace=_STOPPING_SECONDS)
        self._watching.cancel()
