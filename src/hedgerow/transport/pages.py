# SPDX-License-Identifier: Apache-2.0
"""A port for HTTP, whoever knocks at it: so many connections at once, so many seconds for each to ask.

uvicorn bounds neither: its `limit_concurrency` counts requests, and a connection that never ends its request stays.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence

from hedgerow.errors import missing_extra
from hedgerow.transport.connections import is_own_name

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request as Request
    from starlette.responses import Response as Response
    from starlette.responses import StreamingResponse as StreamingResponse
    from starlette.routing import Route
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise missing_extra("starlette", "A page for the browser") from error

MAX_CONNECTIONS = 32
ASKING_SECONDS = 10.0
"""So long has a client for a request, however slowly it asks, and between two of them."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    # The page's address holds the token, so it must not leak as a referrer.
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_ACCEPTED_AT_ONCE, _WAITING = 4, 512
"""Connections accepted before any is looked at, and those waiting in the system without a file of this process."""


class _Connection(H11Protocol):
    """A connection that hangs up when its time for asking is over.

    If there are too many, a new one makes the oldest asking one hang up.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline for asking; make room if there are too many connections."""
        super().connection_made(transport)
        self.began = self.loop.time()
        self._deadline = self.loop.call_later(ASKING_SECONDS, self._look)
        others = [other for other in self.connections if isinstance(other, _Connection) and not other.is_ending]
        if len(others) > MAX_CONNECTIONS:
            min(others, key=lambda other: (other.is_answered, other.began)).end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline for asking."""
        self._deadline.cancel()
        super().connection_lost(exc)

    @property
    def is_answered(self) -> bool:
        """True if a whole request has come and its answer is under way, such as a stream of events."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    @property
    def is_ending(self) -> bool:
        return self.transport.is_closing()

    def end(self) -> None:
        """Hang up at once, discarding what the peer has not taken."""
        self.transport.abort()

    def _look(self) -> None:
        if self.is_answered:
            self._deadline = self.loop.call_later(ASKING_SECONDS, self._look)
        else:
            self.end()


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server with `_WAITING` as its sockets' backlog, for which uvicorn has no own setting."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_WAITING)


class HttpPort:
    """Answers requests until it is closed, of those who ask by an address or a name of this machine.

    Args:
        host: an address of this machine, or its name.
        port: 0 takes a free one.
        answer: to a request.
        methods: that there are, HEAD with GET.

    Raises:
        OSError: when the address cannot be had.
    """

    def __init__(
        self, host: str, port: int, answer: Callable[[Request], Awaitable[Response]], methods: Sequence[str] = ("GET",)
    ) -> None:
        async def asked(request: Request) -> Response:
            if not is_own_name(request.headers.get("host", ""), host):
                # A web page whose name was made to resolve to this machine (DNS rebinding) must not read the answer.
                answered = Response("Ask for this page by an address or a name of this machine.", 403)
            else:
                answered = await answer(request)
            answered.headers.update(_HEADERS)
            return answered

        ((family, _, _, _, address), *_) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        listener = socket.create_server((str(address[0]), port), family=family, backlog=_ACCEPTED_AT_ONCE)
        self.port: int = listener.getsockname()[1]
        config = uvicorn.Config(
            Starlette(routes=[Route("/{path:path}", asked, methods=list(methods))]), loop="asyncio", http=_Connection,
            ws="none", lifespan="off", log_config=None, access_log=False, server_header=False, proxy_headers=False,
            # Bytes that are no request must not write into this process's log.
            log_level="error", backlog=_ACCEPTED_AT_ONCE, timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = _Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, name="hedgerow-port", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Block until the port is closed, or until Ctrl-C."""
        self._thread.join()

    def close(self) -> None:
        """Stop answering and free the port."""
        self._server.should_exit = True
        self._thread.join()
