"""A page in the browser of this machine, as ``--console`` serves it: its files, what stands on it, what it may do.

It has no build step and asks nothing of other hosts. Python says what stands on it, in words and numbers; the scripts
draw that, as text, so nothing that a peer or a table says can become markup. Whoever knows the address, with the
random token in it, may read. What changes anything is asked for by POST, which this server's own page alone can do.
"""

from __future__ import annotations

import asyncio
import io
import json
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any, Self

from hedgerow.cli.inputs import address_of
from hedgerow.cli.output import json_text, note
from hedgerow.errors import EnvironmentFault, HedgerowError, missing_extra
from hedgerow.transport.connections import is_loopback, is_own_name

if TYPE_CHECKING:
    from hedgerow.models.model import Model

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route
except ImportError as error:
    raise missing_extra("starlette", "A page in the browser") from error

Action = Callable[[Mapping[str, Any]], str]
"""Does what a person asks for on the page and says what was done; raises HedgerowError, whose text is shown."""

_KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    # The address holds the token.
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_SECONDS_BETWEEN_LOOKS = 0.25
_SECONDS_BETWEEN_SIGNS = 15.0
"""Of life, so that a browser notices when the process is gone."""
_MOST_STREAMS = 16
_LONGEST_BODY = 4096
_ASKED_BY_PAGE = "x-hedgerow"
"""A header that a page of another origin cannot send without asking this server first, which allows none."""


class Page:
    """Serves a page until it is closed.

    Args:
        place: [HOST:]PORT; port 0 takes a free one; without a host it is for this machine only.
        name: of its own files: NAME.html and NAME.js, besides page.css and page.js.
        title: what it is, for the line that says where.
        actions: what may be done on it, by name. From another machine nothing may, wherever the page is served.

    Raises:
        UsageError: the place is none.
        EnvironmentFault: code "address-in-use".
    """

    def __init__(self, place: str, name: str, title: str, actions: Mapping[str, Action] | None = None) -> None:
        self._host, port = address_of(place if ":" in place else f"127.0.0.1:{place}", "--console")
        self._token, self._actions = secrets.token_urlsafe(16), actions or {}
        self._files = {"": f"{name}.html", **{file: file for file in (f"{name}.js", "page.css", "page.js")}}
        self._picture = b""
        self._parts: dict[str, Any] = {}
        self._state, self._version, self._n_streams, self._closes = b"{}", 0, 0, False
        self._lock = threading.RLock()
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            listener = socket.create_server((self._host, port), family=family)
        except OSError as error:
            fault = error.strerror or error
            raise EnvironmentFault("console-not-served", host=self._host, port=port, fault=fault) from error
        port = listener.getsockname()[1]
        self.url = f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{port}/{self._token}/"
        app = Starlette(routes=[Route("/{token}/{name:path}", self._answer, methods=["GET", "POST"])])
        config = uvicorn.Config(
            app, loop="asyncio", http="h11", ws="none", lifespan="off", log_config=None, server_header=False,
            proxy_headers=False, timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, name="hedgerow-page", daemon=True
        )
        self._thread.start()
        note(f"{title}, for this machine's browser: {self.url}")

    # What stands on it ------------------------------------------------------------------------------------------------

    def say(self, **parts: Any) -> None:
        """Put these parts of the page in place of what they were; numbers that JSON does not know become words."""
        with self._lock:
            self._parts |= parts
            self._state = json_text(self._parts, indent=None).encode(errors="replace")
            self._version += 1

    def said(self, part: str) -> Any:
        """A part of the page as it is now; None before it was said."""
        return self._parts.get(part)

    def fail(self, fault: HedgerowError) -> None:
        """Show why there is nothing more to come; in the browser it stays when this process has ended."""
        error = {"what": fault.what, "cause": fault.cause, "remedy": fault.remedy, "code": fault.code}
        self.say(error=error)

    def show_model(self, model: Model) -> None:
        """A model's report as text, and its shapes where they can be drawn."""
        try:
            self._picture, picture, why_none = _drawn(model), f"shapes.png?{self._version}", ""
        except HedgerowError as fault:
            self._picture, picture, why_none = b"", "", fault.what
        self.say(report=model.report.text(), picture=picture, no_picture=why_none)

    # HTTP -------------------------------------------------------------------------------------------------------------

    async def _answer(self, request: Request) -> Response:
        token, name = request.path_params["token"], request.path_params["name"]
        if not is_own_name(request.headers.get("host", ""), self._host):
            return _plain("Ask for this page by an address or a name of this machine.", 403)
        if not secrets.compare_digest(token.encode(), self._token.encode()):
            return _plain("There is no such page.", 404)
        if request.method == "POST":
            return await self._done(request, name)
        if name in self._files:
            file = self._files[name]
            content = resources.files("hedgerow.cli").joinpath(file).read_bytes()
            return Response(content, 200, _HEADERS, _KINDS[file.rpartition(".")[2]])
        if name == "state":
            return Response(self._state, 200, _HEADERS, "application/json")
        if name == "shapes.png" and self._picture:
            return Response(self._picture, 200, _HEADERS, "image/png")
        if name == "events" and self._n_streams < _MOST_STREAMS:
            return StreamingResponse(self._stream(), 200, _HEADERS, "text/event-stream")
        return _plain("There is no such page.", 404)

    async def _done(self, request: Request, name: str) -> Response:
        """Carry out an action, if this server's own page asks for it, on this machine."""
        action = self._actions.get(name.removeprefix("do/")) if name.startswith("do/") else None
        if action is None:
            return _plain("Nothing can be done there.", 405)
        if not self._is_from_own_page(request):
            return _plain("Only this page itself may ask for that, on the machine that serves it.", 403)
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _LONGEST_BODY:
                return _plain("That is too long.", 413)
        try:
            asked = json.loads(body)
            if not isinstance(asked, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError):
            return _plain("That cannot be read.", 400)
        try:
            said, status = await asyncio.to_thread(action, asked), 200
        except HedgerowError as fault:
            said, status = f"{fault.what} {fault.remedy}".strip(), 409
        return Response(json_text({"said": said}).encode(errors="replace"), status, _HEADERS, "application/json")

    def _is_from_own_page(self, request: Request) -> bool:
        """A browser sends `Origin` with every POST, and lets no page write it, nor this header to another origin."""
        headers, client = request.headers, request.client
        return (
            headers.get(_ASKED_BY_PAGE) == "1"
            and headers.get("origin", "").lower() == f"http://{headers.get('host', '')}".lower()
            and headers.get("sec-fetch-site", "same-origin") == "same-origin"
            and headers.get("content-type", "").partition(";")[0].strip() == "application/json"
            and client is not None
            and is_loopback(client.host.removeprefix("::ffff:"))
        )

    async def _stream(self) -> AsyncIterator[bytes]:
        self._n_streams += 1
        try:
            seen, silent = -1, 0.0
            while True:
                # What was said last is told before the end.
                is_last = self._closes
                if self._version != seen:
                    seen, silent = self._version, 0.0
                    yield b"data: " + self._state + b"\n\n"
                elif silent >= _SECONDS_BETWEEN_SIGNS:
                    silent = 0.0
                    yield b":\n\n"
                if is_last:
                    return
                await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
                silent += _SECONDS_BETWEEN_LOOKS
        finally:
            self._n_streams -= 1

    def wait(self) -> None:
        """Go on serving until Ctrl-C: the end of a run is what people want to look at."""
        note(f"The page stays at {self.url} until Ctrl-C.")
        try:
            self._thread.join()
        except KeyboardInterrupt:
            note("The page is closed.")

    def close(self) -> None:
        """Stop serving and free the port."""
        self._closes = True
        self._server.should_exit = True
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, fault: object, __: object) -> None:
        if isinstance(fault, HedgerowError):
            self.fail(fault)
        self.close()


def _plain(text: str, status: int) -> Response:
    return Response(text, status, _HEADERS, "text/plain")


def _drawn(model: Model) -> bytes:
    """The model's shapes as PNG; EnvironmentFault without matplotlib."""
    # An extra, and slow to import.
    from hedgerow.models.plots import plot_shapes

    drawn = io.BytesIO()
    plot_shapes(model, drawn)
    return drawn.getvalue()
