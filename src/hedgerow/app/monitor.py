# SPDX-License-Identifier: Apache-2.0
"""A monitor: who watches a run, as a live view at any width and height, as lines of JSON, on a page, or once."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hedgerow.app.output import json_text, note, span
from hedgerow.app.watch import RunView
from hedgerow.protocol.refusals import WireCode, WireRefusal, read_code
from hedgerow.protocol.stream import RunReport, Update
from hedgerow.transport.grpc_link import GrpcWatch, WatchEvent
from hedgerow.transport.identities import read_private, read_roster
from hedgerow.transport.interface import Connected, Disconnected

_REFRESH_SECONDS = 0.25
_PATIENCE_ONCE = 60.0


def watch(
    roster: str,
    identity: str,
    address: str,
    every: float = 0.5,
    *,
    console: str | None = None,
    as_json: bool = False,
    once: bool = False,
    follows: bool = False,
) -> None:
    """Show a run until its end, or once: in the terminal, on a page at [HOST:]PORT, or as JSON lines.

    Args:
        every: seconds between two reports.
        follows: go on with the next run of the same roster, and end only by Ctrl-C.
    """
    files = read_private(Path(identity)), read_roster(Path(roster))
    # `random.random` is enough: it only keeps monitors from coming back all at once.
    with closing(GrpcWatch(address, *files, random.random, interval=every)) as link:
        if once:
            _watch_once(link, address, as_json=as_json)
        elif console is not None:
            _serve_page(link, console, follows=follows)
        elif as_json:
            _print_lines(link, follows=follows)
        else:
            _watch_live(link, address, follows=follows)


def _watch_once(watch: GrpcWatch, address: str, *, as_json: bool) -> None:
    deadline = time.monotonic() + _PATIENCE_ONCE
    note(f"Trying to reach the coordinator at {address}, for up to {_PATIENCE_ONCE:.0f} s.")
    why = WireCode.UNREACHABLE
    while (left := deadline - time.monotonic()) > 0:
        event = watch.receive(left)
        if isinstance(event, Update):
            if as_json:
                _print_line("report", describe_report(event.report))
                return
            view, console = MonitorView(address, time.monotonic), Console()
            view.take(event)
            console.print(view.render(console.width, None))
            return
        if isinstance(event, Disconnected):
            why = read_code(event.reason)
            if event.is_final:
                break
    raise WireRefusal(why)


def _print_lines(watch: GrpcWatch, *, follows: bool) -> None:
    view = RunView()
    while True:
        event = watch.receive(60.0)
        if isinstance(event, Connected):
            _print_line("connected", {})
        elif isinstance(event, Disconnected):
            _print_line("disconnected", {"code": event.reason, "is_final": event.is_final})
            _raise_if_final(event)
        elif isinstance(event, Update):
            for one in view.take(event.report, event.events):
                _print_line(one.kind, {key: value for key, value in asdict(one).items() if key != "kind"})
            if event.missed:
                _print_line("missed", {"events": event.missed})
            _print_line("report", describe_report(event.report))
            if event.report.is_over and not follows:
                return


def _serve_page(watch: GrpcWatch, place: str, *, follows: bool) -> None:
    # Imported here, because the page is an extra.
    from hedgerow.app.page import Console

    with Console(place) as page:
        while True:
            event = watch.receive(60.0)
            if isinstance(event, Disconnected):
                page.lose(event.reason)
                _raise_if_final(event)
            elif isinstance(event, Update):
                page.take(event.report, event.events)
                if event.report.is_over and not follows:
                    break
        page.wait()


def _watch_live(watch: GrpcWatch, address: str, *, follows: bool) -> None:
    console = Console()
    view = MonitorView(address, time.monotonic)
    event: WatchEvent | None = None
    with Live(console=console, auto_refresh=False, screen=console.is_terminal, transient=True) as live:
        while not ((view.is_over and not follows) or (isinstance(event, Disconnected) and event.is_final)):
            live.update(view.render(console.width, console.height), refresh=True)
            event = watch.receive(_REFRESH_SECONDS)
            while event is not None:
                view.take(event)
                if isinstance(event, Disconnected):
                    break
                event = watch.receive(0)
    console.print(view.render(console.width, None))
    if isinstance(event, Disconnected) and (follows or not view.is_over):
        _raise_if_final(event)


def describe_report(report: RunReport) -> dict[str, Any]:
    """Return a report as JSON values for programs."""
    content = asdict(report)
    for name in ("process", "run_id", "plan_digest"):
        content[name] = content[name].hex()
    return {**content, "seconds_left": report.seconds_left, "is_over": report.is_over}


def _print_line(kind: str, content: dict[str, Any]) -> None:
    print(json_text({"event": kind, "time": round(time.time(), 3), **content}, indent=None), flush=True)


def _raise_if_final(event: Disconnected) -> None:
    if event.is_final:
        sys.stdout.flush()
        raise WireRefusal(read_code(event.reason))


_WIDEST = 160
_FEW_EVENTS = 8
_FRAME_LINES = 13
"""Lines of the picture without sites and events: three frames, the head's own lines, and the head of the table."""
_STYLES = {"good": "green", "waits": "yellow", "bad": "red"}


class MonitorView:
    """Terminal picture of what a monitor receives.

    Args:
        address: the coordinator's, to be shown.
        clock: seconds that never go back.
    """

    def __init__(self, address: str, clock: Callable[[], float]) -> None:
        self._address, self._clock = address, clock
        self._view = RunView()
        self._gone: tuple[float, str] | None = None

    @property
    def is_over(self) -> bool:
        """True if the run has ended."""
        return self._view.report is not None and self._view.report.is_over

    def take(self, event: Connected | Disconnected | Update) -> None:
        """Update the view by a received event."""
        if isinstance(event, Disconnected):
            # The coordinator hangs up at the end.
            if not self.is_over:
                self._gone = self._clock() if self._gone is None else self._gone[0], event.reason
            return
        self._gone = None
        if isinstance(event, Update):
            self._view.take(event.report, event.events)

    def render(self, width: int, height: int | None) -> RenderableType:
        """Render the picture, at most `height` lines high, or as high as needed for None."""
        width, state = min(width, _WIDEST), self._view.state()
        title = "hedgerow monitor"
        if self._gone is not None:
            seconds, reason = self._clock() - self._gone[0], self._gone[1]
            why = WireRefusal(read_code(reason)).what
            is_served = reason != WireCode.NOT_SERVED
            said = f"{'NO CONNECTION to' if is_served else 'NO RUN YET at'} {self._address} for {span(seconds)}: {why} "
            said += f"({reason})"
            head = Text(f"{said} Trying again.{' Below: the last that was told.' if state else ''}", style="bold red")
        elif not state:
            head = Text(f"Dialling {self._address} ...", style="yellow")
        else:
            where = f"   connected to {self._address}, version {dict(state['facts'])['version']}"
            head = Text.assemble((state["phase"], f"bold {_STYLES.get(state['mood'], '')}"), (where, "dim"))
        if not state:
            return Panel(head, title=title, title_align="left", width=width)
        title += f"   {state['title']}   plan {dict(state['facts'])['plan']}"
        numbers = _render_numbers(state, width, is_live=self._gone is None)
        style = "red" if self._gone else ""
        panel = Panel(Group(head, *numbers), title=title, title_align="left", width=width, border_style=style)
        n_sites, n_events = len(state["sites"]), _FEW_EVENTS
        if height is not None:
            rows = height - _FRAME_LINES
            n_sites = max(2, min(n_sites, rows - _FEW_EVENTS // 2))
            n_events = max(1, rows - n_sites)
        return Group(panel, _render_sites(state, width, n_sites), _render_events(state["events"][:n_events], width))


def _render_numbers(state: dict[str, Any], width: int, *, is_live: bool) -> list[RenderableType]:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=8, style="dim")
    table.add_column(width=max(16, width // 4))
    table.add_column()
    done, planned = state["rounds"]
    pace = [state["pace"], state["left"]] if is_live and not state["is_over"] else []
    said = ", ".join(filter(None, [f"{done} of {planned}", *pace]))
    table.add_row("rounds", ProgressBar(max(1, planned), done), said)
    if state["epsilon"] is None:
        bar: RenderableType = Text("none", style="bold red")
    else:
        spent, limit = state["epsilon"]
        bar = ProgressBar(limit, min(spent, limit), complete_style="cyan", finished_style="cyan")
    table.add_row("epsilon", bar, state["epsilon_text"])
    *facts, (_, troubles) = state["facts"][2:]
    lines = ["   ".join(f"{name} {value}" for name, value in facts), f"troubles {troubles}", state["waiting"]]
    return [table, *(Text(line, no_wrap=True, overflow="ellipsis") for line in lines if line)]


def _render_sites(state: dict[str, Any], width: int, room: int) -> Panel:
    """Render all sites in the roster's order, or, if there is no room, those in trouble before others."""
    sites = state["sites"]
    shown = sites
    if len(sites) > room:
        shown = sorted(sites, key=lambda site: bool(site["is_calm"]))[: room - 1]
    table = Table(box=None, expand=True, padding=(0, 1), show_edge=False, header_style="dim")
    table.add_column("site", ratio=3, no_wrap=True)
    table.add_column("state", width=11, no_wrap=True)
    table.add_column("why", ratio=4, no_wrap=True)
    for title in ("rounds", "drops", "refusals"):
        table.add_column(title, justify="right", no_wrap=True)
    for site in shown:
        counts = [str(count) if count else "-" for count in site["counts"]]
        # Wrap the coordinator's words in Text, because rich would read a plain str as markup with links and colours.
        how = Text(f"{site['mark']} {site['state']}", style=_STYLES.get(site["mood"], ""))
        table.add_row(Text(site["name"]), how, Text(site["why"]), *counts)
    content: RenderableType = table
    if len(shown) < len(sites):
        content = Group(table, Text(f" and {len(sites) - len(shown)} more, of which none is in greater trouble", "dim"))
    title = f"{len(sites)} site{'s' * (len(sites) != 1)}: {state['sites_text']}"
    return Panel(content, title=title, title_align="left", width=width)


def _render_events(events: list[dict[str, str]], width: int) -> Panel:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="dim", no_wrap=True, min_width=8)
    table.add_column(no_wrap=True)
    for event in reversed(events):
        table.add_row(event["time"], Text(event["text"], style=_STYLES.get(event["mood"], "")))
    return Panel(table if events else Text("nothing yet", "dim"), title="events", title_align="left", width=width)
