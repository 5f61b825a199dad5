"""Engine `grpc`, before and between the runs of a study: the coordinator answers single messages of its parties.

The coordinator shows the certificate that its invitations pin. Before there is a roster, nobody's else is known, and it
asks for none; afterwards only parties of the roster get in. A node that comes meanwhile is told to come again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
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


class StudyServer:
    """Gives every message to `answer`, one at a time, in a thread of its own; listens as soon as it is made.

    Args: identity: the coordinator's; address; n_parties: that may come at once, besides strangers; answer: of a
        message, the answer's bytes; must not raise; parties: whose certificates are asked for; None: nobody's.
    Raises EnvironmentFault `address-in-use` and `too-few-files`, as `GrpcHub`.
    """

    def __init__(
        self,
        identity: PrivateIdentity,
        address: HubAddress,
        n_parties: int,
        answer: Callable[[bytes], bytes],
        parties: Sequence[PublicIdentity] | None = None,
    ) -> None:
        self._identity, self._address, self._n_parties, self._answer = identity, address, n_parties, answer
        self._parties = parties
        self._turn = threading.Lock()
        self.port = background.start(self._start()).result()
        """The port it listens on."""

    def close(self) -> None:
        """Stop serving and free the port."""
        background.start(self._server.stop(_STOPPING_SECONDS)).result()

    async def _start(self) -> int:
        door = Door(places(self._address.host, self._n_parties, self._n_parties), DEFAULTS.idle_seconds)
        # A message is short: what is longer is refused before it is in memory.
        self._server = TlsServer(self._identity, self._parties, door, DEFAULTS, _MOST_ASKED_BYTES, MAX_ENROLMENT_BYTES)
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
        # Its first message is read before: else it may be written to a stream that has ended.
        await within(context.read(), DEFAULTS.hello_seconds)
        await context.write(wrapped(Farewell.of(WireRefusal(WireCode.CLOSED)).to_bytes()))


def ask(
    address: str,
    coordinator: PublicIdentity,
    message: bytes,
    identity: PrivateIdentity | None = None,
    settings: LinkSettings = DEFAULTS,
) -> bytes:
    """Send one message to a coordinator, whose certificate is pinned, and return its answer.

    Args: identity: of who asks, where the coordinator wants to see its certificate.
    Raises WireRefusal: it cannot be reached, or whoever answers is not the coordinator; `is_final` says whether to try
    again.
    """
    return background.start(_ask(address, coordinator, message, identity, settings)).result()


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
            raw = await within(method(wrapped(message)), _ANSWER_SECONDS)
        except TimeoutError:
            raise WireRefusal(WireCode.UNREACHABLE) from None
        except grpc.aio.AioRpcError as error:
            raise why_not_connected(error) from None
        return unwrapped(raw, MAX_ENROLMENT_BYTES)
