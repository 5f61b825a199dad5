"""``--console``: a page in the browser of this machine, of a run as its coordinator or a monitor knows it.

The page has no build step and asks nothing of other hosts. Python says what stands on it, in words and numbers; its
script draws that, as text, so nothing that a peer says can become markup. Whoever knows the address, with the random
token in it, may read; the page changes nothing.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
import secrets
import socket
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from hedgerow.cli.inputs import address_of, listed
from hedgerow.cli.monitor import CALM, clock_time, mark_of, phase_words, span, words_of
from hedgerow.cli.output import megabytes, note, number
from hedgerow.errors import EnvironmentFault, HedgerowError, missing_extra
from hedgerow.protocol.messages import RunState
from hedgerow.protocol.reports import EVALUATION, SURVEY, WAITING, EventReport, RunReport, SiteReport, SiteState

if TYPE_CHECKING:
    from hedgerow.models.model import Model
    from hedgerow.plan.plan import Plan

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route
except ImportError as error:
    raise missing_extra("starlette", "A page in the browser") from error

EventsSince = Callable[[int], tuple[tuple[EventReport, ...], int]]

_FILES = {"": ("console.html", "text/html"), "console.js": ("console.js", "text/javascript"),
          "console.css": ("console.css", "text/css")}  # fmt: skip
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    # The address holds the token.
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_KEPT_EVENTS = 200
_MOST_POINTS = 400
"""Of the curve of epsilon; beyond them every second one goes."""
_SECONDS_BETWEEN_LOOKS = 0.25
_SECONDS_BETWEEN_SIGNS = 15.0
"""Of life, so that a browser notices when the process is gone."""
_MOST_STREAMS = 16


class Console:
    """Serves the page until it is closed; an `Audience` of a run.

    Args:
        place: [HOST:]PORT; port 0 takes a free one; without a host it is for this machine only.
        plan: what the coordinator knows of the run beside its reports; None for a monitor.

    Raises:
        UsageError: the place is none.
        EnvironmentFault: code "address-in-use".
    """

    def __init__(self, place: str, plan: Plan | None = None) -> None:
        host, port = address_of(place if ":" in place else f"127.0.0.1:{place}", "--console")
        self._plan, self._token = plan, secrets.token_urlsafe(16)
        self._events: deque[EventReport] = deque(maxlen=_KEPT_EVENTS)
        self._curve: list[tuple[int, float]] = []
        self._process, self._last_event = b"", 0
        self._waiting_since: float | None = None
        self._end: dict[str, Any] = {}
        self._picture = b""
        self._state, self._version, self._n_streams, self._closes = b"{}", 0, 0, False
        self._lock = threading.Lock()
        try:
            listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            raise EnvironmentFault("console-not-served", host=host, port=port, fault=error.strerror or error) from error
        port = listener.getsockname()[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/{self._token}/"
        app = Starlette(routes=[Route("/{token}/{name:path}", self._answer)])
        config = uvicorn.Config(
            app, loop="asyncio", http="h11", ws="none", lifespan="off", log_config=None, server_header=False,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, name="hedgerow-console", daemon=True
        )
        self._thread.start()
        note(f"The page of this run, for this machine's browser: {self.url}")

    # What it is shown -------------------------------------------------------------------------------------------------

    def is_there(self) -> bool:
        """Always: the curve of epsilon has to be there for those who look later."""
        return True

    def show(self, report: RunReport, events_since: EventsSince) -> None:
        """From now on this report is shown; see `server.status.Audience`."""
        events, missed = events_since(self._last_event)
        self._last_event += missed + len(events)
        self.take(report, events)

    def take(self, report: RunReport, events: Sequence[EventReport]) -> None:
        """The same for a monitor: a report, and the events that it has not told of before."""
        with self._lock:
            if report.process != self._process:
                self._process, self._waiting_since = report.process, None
                self._events.clear()
            self._events.extend(events)
            self._note_epsilon(report)
            is_waiting = report.phase in (WAITING, RunState.GATHERING)
            self._waiting_since = (self._waiting_since or report.seconds) if is_waiting else None
            state = state_of(report, self._events, self._curve, self._waiting(report))
            if self._plan is not None and self._plan.name:
                state["title"] = f"{self._plan.name}, {state['title']}"
            self._show(state)

    def lose(self, reason: str) -> None:
        """The monitor has no connection to the coordinator; the last report stays, with a word above it."""
        with self._lock:
            state = json.loads(self._state)
            lost = f"No connection to the coordinator ({reason}). Below is the last that it told."
            if not state.get("is_over"):
                self._show({"title": "run", "phase": "No connection", **state, "mood": "bad", "waiting": lost})

    def show_end(self, model: Model) -> None:
        """At the end: the report as text, and the model's shapes where they can be drawn."""
        end: dict[str, Any] = {"report": model.report.text(), "picture": ""}
        try:
            # matplotlib is an extra, and slow to import.
            from hedgerow.models.plots import plot_shapes

            drawn = io.BytesIO()
            plot_shapes(model, drawn)
            self._picture, end["picture"] = drawn.getvalue(), "shapes.png"
        except HedgerowError as fault:
            end["no_picture"] = fault.what
        with self._lock:
            self._end = end
            self._show(json.loads(self._state))

    def _show(self, state: Mapping[str, Any]) -> None:
        self._state = json.dumps({**state, **self._end}, allow_nan=False).encode()
        self._version += 1

    def _note_epsilon(self, report: RunReport) -> None:
        point = (report.rounds_done, report.epsilon_spent)
        if math.isinf(point[1]) or (self._curve and self._curve[-1] == point):
            return
        if self._curve and self._curve[-1][0] >= report.rounds_done:
            # Epsilon is computed now and then: the newest value of a round counts.
            self._curve = [one for one in self._curve if one[0] < report.rounds_done]
        self._curve.append(point)
        if len(self._curve) > _MOST_POINTS:
            self._curve = [*self._curve[:-1:2], self._curve[-1]]

    def _waiting(self, report: RunReport) -> str:
        """For whom the run waits, how many it needs, and for how long still."""
        if self._waiting_since is None or report.is_over:
            return ""
        missing = [site.name for site in report.sites if site.state not in CALM or site.state == SiteState.CONNECTED]
        n_ready = sum(site.state == SiteState.READY for site in report.sites)
        parts = [f"Waiting for {listed(missing)}." if missing else "All sites are there."]
        if self._plan is not None:
            federation = self._plan.federation
            left = self._waiting_since + federation.join_timeout - report.seconds
            parts.append(f"{n_ready} of the {federation.min_sites} that are needed are ready.")
            if missing and left > 0:
                parts.append(f"They have {span(left)} left.")
        return " ".join(parts)

    # HTTP -------------------------------------------------------------------------------------------------------------

    async def _answer(self, request: Request) -> Response:
        token, name = request.path_params["token"], request.path_params["name"]
        if not secrets.compare_digest(token.encode(), self._token.encode()):
            return Response("There is no such page.", 404, _HEADERS, "text/plain")
        if name in _FILES:
            file, kind = _FILES[name]
            return Response(resources.files("hedgerow.cli").joinpath(file).read_bytes(), 200, _HEADERS, kind)
        if name == "state":
            return Response(self._state, 200, _HEADERS, "application/json")
        if name == "shapes.png" and self._picture:
            return Response(self._picture, 200, _HEADERS, "image/png")
        if name == "events" and self._n_streams < _MOST_STREAMS:
            return StreamingResponse(self._stream(), 200, _HEADERS, "text/event-stream")
        return Response("There is no such page.", 404, _HEADERS, "text/plain")

    async def _stream(self) -> AsyncIterator[bytes]:
        self._n_streams += 1
        try:
            seen, silent = -1, 0.0
            while not self._closes:
                if self._version != seen:
                    seen, silent = self._version, 0.0
                    yield b"data: " + self._state + b"\n\n"
                elif silent >= _SECONDS_BETWEEN_SIGNS:
                    silent = 0.0
                    yield b":\n\n"
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

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


# What stands on the page ----------------------------------------------------------------------------------------------


def state_of(
    report: RunReport, events: Sequence[EventReport], curve: Sequence[tuple[int, float]], waiting: str
) -> dict[str, Any]:
    """Everything on the page, in words and numbers, made of nothing but what a monitor is told."""
    kind = report.task if report.task in (EVALUATION, SURVEY) else "run"
    if report.failure:
        phase, mood = f"Given up: {report.failure}", "bad"
    elif report.is_over:
        phase, mood = "Finished", "good"
    else:
        phase, mood = phase_words(report.phase), "waits" if waiting else "runs"
    has_promise = not math.isinf(report.epsilon_limit)
    left = report.seconds_left
    dropouts, refusals = (sum(getattr(one, name) for one in report.sites) for name in ("dropouts", "refusals"))
    troubles = [(dropouts, "dropouts"), (refusals, "refusals"), (report.rounds_abandoned, "rounds begun again"),
                (sum(report.streams_refused.values()), "streams refused")]  # fmt: skip
    tally = Counter(site.state for site in report.sites)
    return {
        "title": f"{kind} {report.run_id.hex()[:8]}",
        "phase": phase,
        "mood": mood,
        "waiting": waiting,
        "is_over": report.is_over,
        "rounds": [report.rounds_done, report.rounds_planned],
        "pace": f"{number(report.rounds_per_second, 3)} a second" if report.rounds_per_second > 0 else "",
        "left": "" if left is None else f"{span(left)} left",
        "epsilon": [report.epsilon_spent, report.epsilon_limit] if has_promise else None,
        "epsilon_text": f"{report.epsilon_spent:.3f} of {report.epsilon_limit:g}, at delta {report.delta:g}"
        if has_promise
        else "The plan promises no privacy.",
        "curve": list(curve),
        "facts": [
            ["plan", report.plan_digest.hex()[:8]],
            ["release", report.release],
            ["time", span(report.seconds)],
            ["to the sites", megabytes(report.bytes_sent)],
            ["from the sites", megabytes(report.bytes_received)],
            ["troubles", ", ".join(f"{count} {name}" for count, name in troubles if count) or "none"],
        ],
        "sites_text": ", ".join(f"{count} {state}" for state, count in tally.most_common()),
        "sites": [_site(site) for site in report.sites],
        "events": [_said(event) for event in reversed(events)],
    }


def _site(site: SiteReport) -> dict[str, Any]:
    counts = [site.rounds, site.dropouts, site.refusals]
    words = {"name": site.name, "mark": mark_of(site.state)[0], "state": site.state, "why": site.code}
    return {**words, "is_calm": site.state in CALM, "counts": counts}


def _said(event: EventReport) -> dict[str, str]:
    text, colour = words_of(event)
    mood = {"red": "bad", "yellow": "waits", "green": "good"}.get(colour, "")
    return {"time": clock_time(event.seconds), "text": text, "mood": mood}
