# SPDX-License-Identifier: Apache-2.0
"""Pages in the browser of this machine, as ``--console`` serves them: what stands on them, what they may do.

A page has no build step and asks nothing of other hosts. Python says what stands on it, in words and numbers; the
scripts draw that, as text, so nothing that a peer or a table says can become markup. Anyone who knows the address, with
the random token in it, may read. What changes anything is asked for by POST, which this server's own page alone can do.
Without the token there is only ``/metrics``, on the page of a run: what it tells is the list in app/metrics.py.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Self, cast

from hedgerow.app import cost, fit
from hedgerow.app.metrics import Metrics
from hedgerow.app.output import json_text, note, number, today
from hedgerow.app.owner import answer, list_facts
from hedgerow.app.progress import NODE_PHASES
from hedgerow.app.watch import RunView, sentence, thin
from hedgerow.client.budget import FINISHED, RESERVED, BudgetBook, BudgetLine, compose_epsilon, list_costs
from hedgerow.client.state import NodeStore, OwnerDesk, Question
from hedgerow.codec import format_spoken
from hedgerow.errors import EnvironmentFault, HedgerowError, UsageError
from hedgerow.local.forecast import forecast
from hedgerow.methods.tasks import TrainingTask, find_visibility
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan, who_sees
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.events import Event, scope_events
from hedgerow.privacy.ledger import read_prepared_events
from hedgerow.privacy.rounding import format_cost, format_up
from hedgerow.protocol.messages import NodeState
from hedgerow.protocol.refusals import WireCode, WireRefusal, read_code
from hedgerow.protocol.stream import EventReport, RunReport
from hedgerow.server.sites import count_to_begin
from hedgerow.server.status import EventsSince
from hedgerow.transport.connections import is_loopback
from hedgerow.transport.identities import PinnedRoster
from hedgerow.transport.interface import Address, Connected, Disconnected
from hedgerow.transport.pages import HttpPort, Request, Response, StreamingResponse

if TYPE_CHECKING:
    from hedgerow.client.node_session import NodeSession
    from hedgerow.client.policy import Policy
    from hedgerow.data.fit import TableFit
    from hedgerow.server.status import RunBoard

Action = Callable[[Mapping[str, Any]], str]
"""Carries out a person's request on the page and returns what was done; a HedgerowError's text is shown."""

_KINDS = {"": "text/html", "js": "text/javascript", "css": "text/css"}
_SECONDS_BETWEEN_LOOKS = 0.25
_SECONDS_BETWEEN_SIGNS = 15.0
"""Interval of signs of life, by which a browser notices when the process is gone."""
_MAX_STREAMS = 16
_MAX_BODY = 4096
_ASKED_BY_PAGE = "x-hedgerow"
"""A header that a page of another origin cannot send without asking this server first, which allows none."""


class Page:
    """Serves a page until it is closed.

    Args:
        place: [HOST:]PORT; port 0 takes a free one; without a host it is for this machine only.
        name: of its own files: NAME.html, within page.html, and NAME.js, besides page.css and page.js.
        title: what it is, for the line that says where.
        actions: what may be done on it, by name. From another machine nothing may, wherever the page is served.

    Raises:
        UsageError: the place cannot be used.
        EnvironmentFault: code "address-in-use".
    """

    def __init__(self, place: str, name: str, title: str, actions: Mapping[str, Action] | None = None) -> None:
        address = Address.parse(place, "--console", host="127.0.0.1")
        self._host = address.host
        self._token, self._actions = secrets.token_urlsafe(16), actions or {}
        own = {"name": name, "main": _read_file(f"{name}.html").decode()}
        self._files = {"": Template(_read_file("page.html").decode()).substitute(own).encode()}
        self._files |= {file: _read_file(file) for file in (f"{name}.js", "page.css", "page.js")}
        self._picture = b""
        self._parts: dict[str, Any] = {}
        self._state, self._version, self._n_streams, self._closes = b"{}", 0, 0, False
        self._lock = threading.RLock()
        try:
            self._server = HttpPort(*address, self._answer, ("GET", "POST"))
        except OSError as error:
            fault = f"Pages cannot be served ({error.strerror or error})"
            raise EnvironmentFault("address-in-use", fault=fault, address=address) from error
        self.url = f"http://{Address(address.host, self._server.port)}/{self._token}/"
        note(f"{title}, for this machine's browser: {self.url}")

    # What stands on it ------------------------------------------------------------------------------------------------

    def say(self, **parts: Any) -> None:
        """Replace these parts of the page; numbers unknown to JSON become words."""
        with self._lock:
            self._parts |= parts
            self._state = json_text(self._parts, indent=None).encode(errors="replace")
            self._version += 1

    def read_part(self, part: str) -> Any:
        """Return a part of the page; None if it was never set."""
        return self._parts.get(part)

    def fail(self, fault: HedgerowError) -> None:
        """Show why there is nothing more to come; in the browser it stays when this process has ended."""
        error = {"what": fault.what, "cause": fault.cause, "remedy": fault.remedy, "code": fault.code}
        self.say(error=error)

    def show_model(self, model: Model) -> None:
        """Show a model's report as text, and its shapes if they can be drawn."""
        try:
            self._picture, picture, why_none = _draw_shapes(model), f"shapes.png?{self._version}", ""
        except HedgerowError as fault:
            self._picture, picture, why_none = b"", "", fault.what
        self.say(report=model.report_text(today()), picture=picture, no_picture=why_none)

    # HTTP -------------------------------------------------------------------------------------------------------------

    async def _answer(self, request: Request) -> Response:
        path = str(request.path_params["path"])
        if (told := self._tell_anyone(path, request)) is not None:
            return told
        token, _, name = path.partition("/")
        if not secrets.compare_digest(token.encode(), self._token.encode()):
            return Response("There is no such page.", 404)
        if request.method == "POST":
            return await self._carry_out(request, name)
        if name in self._files:
            return Response(self._files[name], media_type=_KINDS[name.rpartition(".")[2]])
        if name == "state":
            return Response(self._state, media_type="application/json")
        if name == "shapes.png" and self._picture:
            return Response(self._picture, media_type="image/png")
        if name == "events" and self._n_streams < _MAX_STREAMS:
            return StreamingResponse(self._stream(), media_type="text/event-stream")
        return Response("There is no such page.", 404)

    def _tell_anyone(self, path: str, request: Request) -> Response | None:
        """Return the response to a request without the token; None for none."""
        return None

    async def _carry_out(self, request: Request, name: str) -> Response:
        """Carry out an action, if this server's own page asks for it, on this machine."""
        action = self._actions.get(name.removeprefix("do/")) if name.startswith("do/") else None
        if action is None:
            return Response("Nothing can be done there.", 405)
        if not self._is_from_own_page(request):
            return Response("Only this page itself may ask for that, on the machine that serves it.", 403)
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _MAX_BODY:
                return Response("That is too long.", 413)
        try:
            asked = json.loads(body)
            if not isinstance(asked, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError):
            return Response("That cannot be read.", 400)
        try:
            said, status = await asyncio.to_thread(action, asked), 200
        except HedgerowError as fault:
            said, status = f"{fault.what} {fault.remedy}".strip(), 409
        return Response(json_text({"said": said}).encode(errors="replace"), status, media_type="application/json")

    def _is_from_own_page(self, request: Request) -> bool:
        """Return whether a POST comes from this page in a browser of this machine.

        A browser sends `Origin` with every POST, and lets no page set it, nor send the page's own header to another
        origin.
        """
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
                # Send the last state before the end.
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
        """Serve until Ctrl-C: people want to look at the end of a run."""
        note(f"The page stays at {self.url} until Ctrl-C.")
        try:
            self._server.wait()
        except KeyboardInterrupt:
            note("The page is closed.")

    def close(self) -> None:
        """Stop serving and free the port."""
        self._closes = True
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, fault: object, __: object) -> None:
        if isinstance(fault, HedgerowError):
            self.fail(fault)
        self.close()


def _read_file(name: str) -> bytes:
    return resources.files("hedgerow.app").joinpath(name).read_bytes()


def _draw_shapes(model: Model) -> bytes:
    """Draw the model's shapes as PNG; EnvironmentFault without matplotlib."""
    # Imported here, because matplotlib is an extra and slow to import.
    from hedgerow.models.plots import plot_shapes

    drawn = io.BytesIO()
    plot_shapes(model, drawn)
    return drawn.getvalue()


# The page of a run ----------------------------------------------------------------------------------------------------
# ``--console`` of its coordinator, of its study, or of a monitor; it changes nothing.

_NOT_YET = {"title": "Run", "phase": "Not begun", "mood": "waits", "waiting": "", "sites": [], "events": []}


class Console(Page):
    """Page of a run, served until it is closed; an `Audience` of that run.

    Args:
        plan: what the coordinator knows of the run beside its reports; None for a monitor.

    Raises:
        UsageError, EnvironmentFault: as `Page`.
    """

    def __init__(self, place: str, plan: Plan | None = None) -> None:
        self._plan, self._board = plan, cast("RunBoard | None", None)
        self._view, self._metrics, self._last_event = RunView(), Metrics(), 0
        super().__init__(place, "console", "The page of this run")
        self.say(**_NOT_YET)
        if plan is not None:
            self.show_plan(plan)

    def _tell_anyone(self, path: str, request: Request) -> Response | None:
        if path != "metrics" or request.method == "POST":
            return None
        content, media_type = self._metrics.encode(request.headers.get("accept", ""))
        return Response(content, headers={"Content-Type": media_type})

    # What the run tells the page ------------------------------------------------------------------------------------

    def is_there(self) -> bool:
        """Return True always: people who look later need the whole curve of epsilon."""
        return True

    def show_plan(self, plan: Plan, n_sites: int | None = None) -> None:
        """Show the agreed plan, and how many of n_sites sites it needs to begin."""
        self._plan = plan
        self.say(title=plan.name, plan=plan_facts(plan, n_sites))

    def show_parties(self, parties: Sequence[tuple[str, str, bool]], waiting: str) -> None:
        """Show, before the first run, each party's enrolment, and for whom the study waits.

        Args:
            parties: each party's name, its state, and whether it has finished.
        """
        n_there = sum(is_done for _, _, is_done in parties)
        self.say(
            phase="Gathering the parties",
            mood="waits",
            waiting=sentence(waiting),
            sites_text=f"{n_there} of {len(parties)} take part",
            sites=[
                {"name": name, "mark": "●" if is_done else "○", "state": state, "is_calm": is_done}
                for name, state, is_done in parties
            ],
        )

    def show_history(self, past: Sequence[PastRun], plan: Plan) -> None:
        """Show the study's earlier runs, and the cost of all runs together.

        Args:
            plan: of the run that goes on.
        """
        self.say(history=[_describe_past(run) for run in past], budget=budget_facts(past, plan))

    def follow(self, board: RunBoard) -> None:
        """Take waiting times and earlier spending from the board of a coordinator's run."""
        self._board, self._view = board, RunView()

    def show(self, report: RunReport, events_since: EventsSince) -> None:
        """Show this report from now on; see `server.status.Audience`."""
        if (board := self._board) is not None:
            if self._view.report is None:
                self._view.begin_curve(board.past_curve())
            self._view.patience = board.patience
        events, missed = events_since(self._last_event)
        self._last_event += missed + len(events)
        self.take(report, events)

    def take(self, report: RunReport, events: Sequence[EventReport]) -> None:
        """Show a report and the events that came with it."""
        self._metrics.take(report, self._view.take(report, events))
        state = self._view.state()
        if self._plan is not None and self._plan.name:
            state["title"] = f"{self._plan.name}, {state['title']}"
        self.say(lost="", **state)

    def lose(self, reason: str) -> None:
        """Show that the monitor has lost the coordinator; the last report stays below."""
        if reason == WireCode.NOT_SERVED:
            why = WireRefusal(WireCode.NOT_SERVED)
            self.say(phase="No run yet", mood="waits", lost=f"{why.what} {why.cause}")
        elif not self.read_part("is_over"):
            lost = f"No connection to the coordinator ({reason})."
            if self.read_part("is_over") is None:
                self.say(phase="No connection", mood="bad", lost=lost)
            else:
                self.say(mood="bad", lost=f"{lost} Below is the last that it told.")


# What stands on the page ----------------------------------------------------------------------------------------------


def plan_facts(plan: Plan, n_sites: int | None = None) -> list[list[str]]:
    """Describe a plan in the words that all parties can compare.

    Args:
        n_sites: of the roster; None where it is not known yet.
    """
    needed = [] if n_sites is None else [["sites needed", f"{count_to_begin(plan, n_sites)} of {n_sites}, to begin"]]
    privacy = plan.privacy
    unit = "each record" if privacy.unit == "record" else f"each {privacy.unit}"
    return [
        ["plan", plan.name],
        ["fingerprint", format_spoken(bytes.fromhex(plan.digest))],
        ["predicts", f"{plan.label.name} ({plan.label.type}), from {len(plan.features)} features"],
        ["protects", unit],
        ["promise", format_cost(privacy.epsilon, privacy.delta, 4)],
        ["who sees what", who_sees(find_visibility(TrainingTask(plan)))],
        *needed,
    ]


@dataclass(frozen=True)
class PastRun:
    """An earlier run of a study, as all its parties know it: its model's report, or its releases.

    Attributes:
        name: as people call it: "run 2".
        state: "finished" or "ended".
        plan: of the run.
        events: of all its releases, evaluations of its model among them.
        remark: what else a line has room for.
    """

    name: str
    state: str
    plan: Plan
    events: tuple[Event, ...]
    remark: str = ""


def budget_facts(past: Sequence[PastRun], plan: Plan) -> list[list[str]]:
    """Describe the cost of all runs for rows in all of them, before this run and with it; empty at first.

    By exact accounting at the delta of the plan that goes on; nothing is added up over runs that protect other units.
    """
    if not past:
        return []
    if {run.plan.privacy.unit for run in past} != {plan.privacy.unit}:
        return [["all runs", "they protect different units, so their costs cannot be added"]]
    before = [event for run in past for event in run.events]
    # Count a survey once, even if it came before several runs.
    surveys = {_identify_survey(run.plan): run.plan for run in past}
    for surveyed in surveys.values():
        before += read_prepared_events(surveyed)
    gdp, delta = get_accountant("gdp"), plan.privacy.delta
    own = TrainingTask(plan).schedule.events + ([] if _identify_survey(plan) in surveys else read_prepared_events(plan))
    whole = gdp.epsilon([*before, *own], delta)
    return [
        ["before this run", f"epsilon {format_up(gdp.epsilon(before, delta), 4)}"],
        ["with this run, at most", f"epsilon {format_up(whole, 4)}"],
        ["at delta", format_up(delta)],
    ]


def _identify_survey(plan: Plan) -> Hashable:
    """Return the identity of the survey before a run: the runs that made it, or else the whole plan.

    A plan without these runs that was changed by hand thus counts its survey twice, rather too much than too little.
    """
    runs = {release.run for release in plan.prepared}
    return plan if None in runs else frozenset(runs)


def _describe_past(run: PastRun) -> list[str]:
    delta = run.plan.privacy.delta
    epsilon = get_accountant("gdp").epsilon([*read_prepared_events(run.plan), *run.events], delta)
    return [run.name, run.state, run.plan.name, format_up(epsilon, 4), run.remark]


# The page of a site ---------------------------------------------------------------------------------------------------
# ``--console`` of its node, or of ``hedgerow join``; for the owner of its rows, and no one else.
#
# It shows what a run costs before and after, the budget book as a curve, how the table fits the plan, and the files
# that were received. There the owner approves or denies what is asked, and ends the node's part. It sees no row: what
# it shows of the table are the counts that `hedgerow check` prints, and only where no other machine can ask for the
# page.

_KEPT_LINES = 200
_MAX_RUNS = 24
"""Largest number of the book's runs in the curve; earlier ones count as one."""
_MAX_INVITATIONS = 20
_SECONDS_BETWEEN_COUNTS = 1.0
_IDLE_PER_WORK = 20
"""Costs are added up at most for a twentieth of the time: the node computes on the same machine."""
_MOODS = {"WARNING": "waits", "ERROR": "bad"}


class SitePage(Page):
    """Serves a site's page until it is closed.

    Args:
        study: that it takes part in, if that has a name.

    Raises:
        HedgerowError: as `Page`.
    """

    def __init__(self, place: str, site: str, study: str = "") -> None:
        self._folder: Path | None = None
        self._context = copy_context()
        self._lines: deque[dict[str, str]] = deque(maxlen=_KEPT_LINES)
        self._connection = ""
        actions: dict[str, Callable[[Mapping[str, Any]], str]] = {
            "approve": lambda asked: self._answer_question(asked, approve=True),
            "deny": lambda asked: self._answer_question(asked, approve=False),
            "stop": self._stop,
        }
        super().__init__(place, "site", "The page of this site", actions)
        self.say(title=site, study=study, phase="Starting", mood="waits", waiting="", events=[], tables=[])

    @property
    def _is_for_owner(self) -> bool:
        """True if only this machine can ask for the page, which travels unencrypted."""
        return is_loopback(self._host)

    # What it is told --------------------------------------------------------------------------------------------------

    def tell(self, level: str, text: str) -> None:
        """Show a line of the node's log to the owner; it may hold counts of rows."""
        if not self._is_for_owner:
            return
        at = time.strftime("%H:%M:%S", time.gmtime())
        self._lines.appendleft({"time": at, "text": text, "mood": _MOODS.get(level, "")})
        self.say(events=list(self._lines))

    def fail(self, fault: HedgerowError) -> None:
        """Show why the node stopped; over a network only that it did, because even the code may reveal rows."""
        if self._is_for_owner:
            super().fail(fault)
        else:
            self.say(
                error={"what": "The node's log says why it does not go on.", "cause": "", "remedy": "", "code": ""}
            )

    def wait_for(self, phase: str, waiting: str = "") -> None:
        """Show that something is being done, or waited for, outside a run."""
        self.say(phase=phase, mood="waits", waiting=waiting, rounds=None, can_stop=False)

    def begin(self, plan: Plan | None, policy: Policy, roster: PinnedRoster, address: str) -> None:
        """Show what a starting node was given, and its plan's cost."""
        self.show_cost(plan)
        facts = [
            ["data", policy.data_set],
            ["coordinator", address],
            ["roster", roster.fingerprint()],
            ["sites of the roster", ", ".join(site.name for site in roster.sites)],
        ]
        self.say(about=facts, tables=[], error=None, question=None)

    def show_cost(self, plan: Plan | None) -> None:
        """Show what a plan asks for, and its cost."""
        if plan is not None:
            about = f"{plan.label.name} ({plan.label.type}), from {len(plan.features)} features"
            words = format_spoken(bytes.fromhex(plan.digest))
            named = [("plan", plan.name), ("fingerprint", words), ("predicts", about)]
            expected = forecast(plan)
            seen = cost.describe_visibility(plan, expected)
            self.say(cost=[*named, *cost.privacy_facts(plan, expected), *seen])

    def show_fit(self, name: str, found: TableFit) -> None:
        """Show how one of the site's tables fits the plan."""
        table: dict[str, Any] = {"name": name, "rest": "", "columns": []}
        if self._is_for_owner:
            columns = [[*fit.fit_row(column), "; ".join(column.findings())] for column in found.columns]
            lines = ["[data]", *found.suggested_lines] if found.suggested_lines else []
            about = [f"{title}: {said}." for title, said in found.about]
            rest = " ".join(filter(None, [found.rows.text(), *about, fit.describe_unused_columns(found)]))
            table |= {"rest": rest, "columns": columns, "suggested_lines": "\n".join(lines)}
        else:
            table["rest"] = "Its counts are private, and this page is served to other machines: see `hedgerow check`."
        self.say(tables=[*(self.read_part("tables") or []), table])

    def show_connection(self, event: Connected | Disconnected) -> None:
        """Show that the connection to the coordinator has come or gone."""
        is_there = isinstance(event, Connected)
        self._connection = "" if is_there else WireRefusal(read_code(event.reason)).what  # type: ignore[union-attr]

    def show_models(self, folder: Path) -> None:
        """List the models received by this site, with the newest one's report and shapes."""
        found = sorted(folder.glob("model-*.json"), key=lambda place: -place.stat().st_mtime)
        self.say(models=[[str(place), str(place.with_suffix(".report.txt"))] for place in found])
        if found:
            self.show_model(Model.load(found[0]))

    # While a node runs ------------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self, session: NodeSession, store: NodeStore, book: Path, policy: Policy) -> Iterator[None]:
        """Show a node's state until the block ends, and take its owner's answers.

        Args:
            book: the budget book's file.
        """
        self._folder, self._context = store.folder, copy_context()
        stops = threading.Event()

        def watch() -> None:
            # Use separate connections, because the node may write meanwhile.
            with closing(BudgetBook(book)) as own:
                look = _Look(session, store, own, policy)
                while True:
                    is_last = stops.is_set()
                    try:
                        found = look(self._connection, is_last=is_last)
                        # The node's answers may reveal rows.
                        found |= {} if self._is_for_owner else {"invitations": []}
                        self.say(**found)
                    except HedgerowError as fault:
                        self.tell("WARNING", f"{fault.what} ({fault.code})")
                    if is_last:
                        return
                    stops.wait(_SECONDS_BETWEEN_COUNTS)

        thread = threading.Thread(target=watch, name="hedgerow-look", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stops.set()
            thread.join()
            self._folder = None

    @contextmanager
    def asking(self, folder: Path, question: Question) -> Iterator[None]:
        """Show a question between two runs until the block ends, and take its answer; `folder`: the node's."""
        self._folder = folder
        *facts, _ = list_facts(question)
        waiting = "The coordinator has a new roster: see below."
        shown = {"id": question.id, "facts": facts}
        self.say(phase="Your answer is awaited", mood="waits", waiting=waiting, question=shown, can_stop=True)
        try:
            yield
        finally:
            self._folder = None
            self.say(question=None, can_stop=False)

    # What the owner may do --------------------------------------------------------------------------------------------

    def _answer_question(self, asked: Mapping[str, Any], *, approve: bool) -> str:
        """Answer the question shown; the page sends its number, so no other can be slipped in between."""
        with closing(self._own_desk()) as desk:
            said = answer(desk, str(asked.get("question", "")), approve=approve)
        return self._log_action(said)

    def _stop(self, _: Mapping[str, Any]) -> str:
        with closing(self._own_desk()) as desk:
            desk.stop()
        return self._log_action("The node leaves its run, charged for what it has answered, and ends.")

    def _log_action(self, said: str) -> str:
        """Write an action on the page into the node's log, which belongs to another thread; return its text."""
        self._context.copy().run(note, f"On the site's page: {said}")
        return said

    def _own_desk(self) -> OwnerDesk:
        """Open the owner's desk for one answer; raise UsageError (code "not-asked") if no node runs."""
        if self._folder is None:
            raise UsageError("not-asked")
        return OwnerDesk(self._folder)


class _Look:
    """Reader of a running node's state for its page; called now and then, by one thread.

    Args:
        book: opened for this.
    """

    def __init__(self, session: NodeSession, store: NodeStore, book: BudgetBook, policy: Policy) -> None:
        self._session, self._store, self._book, self._policy = session, store, book, policy
        self._known: tuple[tuple[str, str, str], ...] | None = None
        self._runs: list[list[str]] = []
        self._totals = [0.0]
        self._after: list[list[str]] = []
        self._in_run: list[tuple[float, float]] = []
        self._again = -math.inf

    def __call__(self, lost: str, *, is_last: bool) -> dict[str, Any]:
        """Return the changed parts of the page.

        Args:
            lost: why there is no connection, "" where there is one.
            is_last: whether no other look follows.
        """
        session = self._session
        question, (phase, mood), waiting = session.question, NODE_PHASES[session.state], ""
        is_over = session.state in (NodeState.FINISHED, NodeState.STOPPED)
        if question is not None:
            phase, waiting = "Your answer is awaited", f"The coordinator asks for a {question.kind}: see below."
        elif lost and session.state is NodeState.OUTSIDE and self._has_finished():
            phase, mood = "No run now; the last one is finished", "good"
            waiting = "The coordinator is dialled again and again, and proposes the next run."
        elif lost and not is_over:
            phase, mood, waiting = "No connection to the coordinator", "waits", f"{lost} The node tries again."
        if session.is_paused and not is_over:
            phase, mood, waiting = "Paused by the coordinator", "waits", "The run goes on when it is resumed there."
        done, planned = session.progress
        parts = {
            "phase": phase,
            "mood": mood,
            "waiting": waiting,
            "question": None if question is None else {"id": question.id, "facts": self._describe_question(question)},
            "can_stop": not is_over,
            "rounds": [done, planned] if planned else None,
        }
        if is_last or time.monotonic() >= self._again:
            began = time.monotonic()
            parts |= self._describe_ledger()
            ended = time.monotonic()
            self._again = ended + _IDLE_PER_WORK * (ended - began)
        return parts

    def _has_finished(self) -> bool:
        """Return whether the book's newest run finished in order: without a run there may be no coordinator."""
        lines = self._book.lines(self._policy.data_set)
        return bool(lines) and lines[-1].status == FINISHED

    def _describe_question(self, question: Question) -> list[tuple[str, str]]:
        """Describe a question and the spending so far, without the question's number."""
        before = self._book.spent(question.data_set, question.total_delta)
        *facts, then, _ = list_facts(question)
        return [*facts, ("spent now", f"epsilon {format_up(before, 4)}"), then]

    def _describe_ledger(self) -> dict[str, Any]:
        """Return the budget book as numbers, a table and a curve."""
        policy, run_id = self._policy, self._session.run_id.hex()
        lines = self._book.lines(policy.data_set)
        known = tuple((line.run_id, line.site, line.status) for line in lines)
        if known != self._known:
            self._add_up(lines)
            self._known, self._in_run = known, []
        (*_, total), most = self._totals, policy.max_epsilon
        last = len(self._totals) - 1
        points = [(float(n), each) for n, each in enumerate(self._totals)]
        facts = [["spent", f"epsilon {format_up(total, 4)}"]]
        reserved: list[tuple[float, float]] = []
        if any(line.status == RESERVED for line in lines):
            facts[0][0] = "spent, or reserved"
        if lines and lines[-1].status == RESERVED and lines[-1].run_id == run_id:
            self._note_spent(lines, last - 1)
            if self._in_run:
                points, reserved = [*points[:-1], *self._in_run], [points[-2], points[-1]]
                facts.insert(0, ["spent so far", f"epsilon {format_up(self._in_run[-1][1], 4)}"])
        facts += self._after
        facts += [["your policy allows", f"epsilon {number(most)}"], ["at delta", format_up(policy.delta)]]
        limit = most if 0 < most < math.inf else max(1.1 * total, 1.0)
        return {
            "budget": facts,
            "budget_text": f"{format_up(total, 4)} of {number(most)}",
            "ledger": {"points": points, "reserved": reserved, "most": max(1, last), "limit": limit},
            "runs": self._runs,
            "invitations": [
                [line.last, line.kind, line.plan_name, format_up(line.epsilon, 4), line.answer, str(line.count)]
                for line in reversed(self._book.invitations()[-_MAX_INVITATIONS:])
            ],
        }

    def _add_up(self, lines: Sequence[BudgetLine]) -> None:
        """Compute the costs of the book's last runs, each and cumulative, oldest first."""
        delta, first = self._policy.delta, max(0, len(lines) - _MAX_RUNS)
        self._totals, self._runs = [compose_epsilon(list_costs(lines[:first]), delta)], []
        for end, line in enumerate(lines[first:], first + 1):
            self._totals.append(compose_epsilon(list_costs(lines[:end]), delta))
            name = line.run_id[:12] + (f" of {line.site}" if line.site and line.site != self._session.site else "")
            costs = [format_up(line.epsilon(delta), 4), format_up(self._totals[-1], 4)]
            self._runs.insert(0, [name, line.begun, line.plan_name, line.status, *costs])
        plan = self._session.plan
        self._after = []
        if plan is not None and not any(line.status == RESERVED for line in lines):
            whole = compose_epsilon([*list_costs(lines), *TrainingTask(plan).schedule.events], delta)
            self._after = [["after one more run by this plan", f"epsilon {format_up(whole, 4)}, at most"]]

    def _note_spent(self, lines: Sequence[BudgetLine], start: int) -> None:
        """Add the present cost of the open run to the curve, whose last segment begins at `start`."""
        done, planned = self._session.progress
        spent = self._store.spent(self._session.run_id)
        if spent is None or not planned:
            return
        own = replace(lines[-1], events=tuple(scope_events(spent, lines[-1].run_id)))
        total = compose_epsilon(list_costs([*lines[:-1], own]), self._policy.delta)
        point = (start + min(1.0, done / planned), total)
        if not self._in_run or self._in_run[-1] != point:
            self._in_run.append(point)
        self._in_run = thin(self._in_run)
