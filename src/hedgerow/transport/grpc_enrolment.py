"""Engine `grpc`, before there is a roster: the coordinator answers invited parties, whose certificates no one knows.

The coordinator shows the certificate that its invitations pin, and asks for none. A node that comes too early, because
it has the roster already, is told to come again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from hedgerow.protocol.enrolment import MAX_ENROLMENT_BYTES
from hedgerow.protocol.stream import Farewell, WireCode, WireRefusal, unwrapped, wrapped
from hedgerow.transport.connections import Door, places
from hedgerow.transport.grpc_hub import HubAddress, TlsServer
from hedgerow.transport.grpc_link import (
    DEFAULTS,
    ENROL,
    ENROL_METHOD,
    ENROL_SERVICE,
    METHOD,
    SERVICE,
    LinkSettings,
    background,
    channel_options,
    grpc,
    within,
)
from hedgerow.transport.grpc_uplink import why_not_connected
from hedgerow.transport.identities import PrivateIdentity, PublicIdentity

_MOST_ASKED_BYTES = 16 << 10
_STOPPING_SECONDS = 1.0
_ANSWER_SECONDS = 60.0


class EnrolmentServer:
    """Gives every message to `answer`, one at a time, in a thread of its own; listens as soon as it is made.

    Args: identity: the coordinator's; address; n_parties: that may come at once, besides strangers; answer: of a
        message, the answer's bytes; must not raise.
    Raises EnvironmentFault `address-in-use` and `too-few-files`, as `GrpcHub`.
    """

    def __init__(
        self, identity: PrivateIdentity, address: HubAddress, n_parties: int, answer: Callable[[bytes], bytes]
    ) -> None:
        self._identity, self._address, self._n_parties, self._answer = identity, address, n_parties, answer
        self._turn = threading.Lock()
        self.port = background.start(self._start()).result()
        """The port it listens on."""

    def close(self) -> None:
        """Stop serving and free the port."""
        background.start(self._server.stop(_STOPPING_SECONDS)).result()

    async def _start(self) -> int:
        door = Door(places(self._address.host, self._n_parties, self._n_parties), DEFAULTS.idle_seconds)
        # A message is short: what is longer is refused before it is in memory.
        self._server = TlsServer(self._identity, None, door, DEFAULTS, _MOST_ASKED_BYTES)
        enrol: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(self._enrol)
        join: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._come_again)
        handlers = [
            grpc.method_handlers_generic_handler(ENROL_SERVICE, {ENROL_METHOD: enrol}),
            grpc.method_handlers_generic_handler(SERVICE, {METHOD: join}),
        ]
        return await self._server.start(self._address, handlers, "The coordinator cannot listen")

    async def _enrol(self, raw: bytes, _: object) -> bytes:
        try:
            message = unwrapped(raw, _MOST_ASKED_BYTES)
        except WireRefusal as refusal:
            return wrapped(Farewell.of(refusal).to_bytes())
        return wrapped(await asyncio.to_thread(self._answered, message))

    def _answered(self, message: bytes) -> bytes:
        with self._turn:
            return self._answer(message)

    async def _come_again(self, _: object, context: Any) -> None:
        await context.write(wrapped(Farewell.of(WireRefusal(WireCode.CLOSED)).to_bytes()))


def enrol(address: str, coordinator: PublicIdentity, message: bytes, settings: LinkSettings = DEFAULTS) -> bytes:
    """Send one message to a coordinator, whose certificate is pinned, and return its answer.

    Raises WireRefusal: it cannot be reached, or whoever answers is not the coordinator; `is_final` says whether to try
    again.
    """
    return background.start(_ask(address, coordinator, message, settings)).result()


async def _ask(address: str, coordinator: PublicIdentity, message: bytes, settings: LinkSettings) -> bytes:
    credentials = grpc.ssl_channel_credentials(coordinator.certificate_pem)
    options = [
        *channel_options(settings, MAX_ENROLMENT_BYTES),
        ("grpc.ssl_target_name_override", coordinator.tls_name),
    ]
    async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
        method: Any = channel.unary_unary(ENROL)
        try:
            raw = await within(method(wrapped(message)), _ANSWER_SECONDS)
        except TimeoutError:
            raise WireRefusal(WireCode.UNREACHABLE) from None
        except grpc.aio.AioRpcError as error:
            raise why_not_connected(error) from None
        return unwrapped(raw, MAX_ENROLMENT_BYTES)
