"""``hedgerow monitor``: watch a run, as a live view at any width and height, as lines of JSON, or once."""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hedgerow.app.inputs import dialled
from hedgerow.app.output import json_text, megabytes, note, number
from hedgerow.app.progress import CALM, Told, clock_time, in_words, mark_of, phase_words, span
from hedgerow.errors import UsageError
from hedgerow.protocol.stream import (
    EVALUATION,
    LEAST_INTERVAL,
    LONGEST_INTERVAL,
    SURVEY,
    EventReport,
    RunReport,
    SiteReport,
    Update,
    WireCode,
    WireRefusal,
    known,
)
from hedgerow.transport.grpc_link import GrpcWatch, WatchEvent
from hedgerow.transport.identities import read_private, read_roster
from hedgerow.transport.interface import Connected, Disconnected

_REFRESH_SECONDS = 0.25
_PATIENCE_ONCE = 60.0


def run(arguments: argparse.Namespace) -> None:
    """Dial the coordinator and show what it tells, until the run is over."""
    if not LEAST_INTERVAL <= arguments.every <= LONGEST_INTERVAL:
        raise UsageError("usage-every", every=arguments.every, least=LEAST_INTERVAL, longest=LONGEST_INTERVAL)
    pinned, identity = read_roster(Path(arguments.roster)), read_private(Path(arguments.identity))
    address = dialled(arguments.connect, "--connect")
    # Not for secrets: it only keeps monitors from coming back all at once.
    watch = GrpcWatch(address, identity, pinned, random.random, interval=arguments.every)
    try:
        if arguments.once:
            _once(watch, address, as_json=arguments.json)
        elif arguments.console is not None:
            _page(watch, arguments.console)
        elif arguments.json:
            _lines(watch)
        else:
            _live(watch, address)
    finally:
        watch.close()


def _once(watch: GrpcWatch, address: str, *, as_json: bool) -> None:
    deadline = time.monotonic() + _PATIENCE_ONCE
    note(f"Trying to reach the coordinator at {address}, for up to {_PATIENCE_ONCE:.0f} s.")
    why = WireCode.UNREACHABLE
    while (left := deadline - time.monotonic()) > 0:
        event = watch.receive(left)
        if isinstance(event, Update):
            if as_json:
                _print_line("report", described(event.report))
                return
            view = MonitorView(address, time.monotonic)
            view.take(event)
            console = Console()
            console.print(view.render(console.width, None))
            return
        if isinstance(event, Disconnected):
            why = known(event.reason)
            if event.is_final:
                break
    raise WireRefusal(why)


def _lines(watch: GrpcWatch) -> None:
    known_events = _NewEvents()
    while True:
        event = watch.receive(60.0)
        if isinstance(event, Connected):
            _print_line("connected", {})
        elif isinstance(event, Disconnected):
            _print_line("disconnected", {"code": event.reason, "is_final": event.is_final})
            _raise_if_final(event)
        elif isinstance(event, Update):
            for one in known_events.of(event):
                _print_line(one.kind, {key: value for key, value in asdict(one).items() if key != "kind"})
            if event.missed:
                _print_line("missed", {"events": event.missed})
            _print_line("report", described(event.report))
            if event.report.is_over:
                return


def _page(watch: GrpcWatch, place: str) -> None:
    # An extra: only who wants the page needs it.
    from hedgerow.app.page import Console

    known_events = _NewEvents()
    with Console(place) as page:
        while True:
            event = watch.receive(60.0)
            if isinstance(event, Disconnected):
                page.lose(event.reason)
                _raise_if_final(event)
            elif isinstance(event, Update):
                page.take(event.report, known_events.of(event))
                if event.report.is_over:
                    break
        page.wait()


def _live(watch: GrpcWatch, address: str) -> None:
    console = Console()
    view = MonitorView(address, time.monotonic)
    event: WatchEvent | None = None
    with Live(console=console, auto_refresh=False, screen=console.is_terminal, transient=True) as live:
        while not (view.is_over or (isinstance(event, Disconnected) and event.is_final)):
            live.update(view.render(console.width, console.height), refresh=True)
            event = watch.receive(_REFRESH_SECONDS)
            while event is not None:
                view.take(event)
                if isinstance(event, Disconnected):
                    break
                event = watch.receive(0)
    console.print(view.render(console.width, None))
    if isinstance(event, Disconnected) and not view.is_over:
        _raise_if_final(event)


class _NewEvents:
    """After a new connection the coordinator tells its last events again; here each is told once."""

    def __init__(self) -> None:
        self._process, self._last = b"", 0

    def of(self, update: Update) -> tuple[EventReport, ...]:
        """The events that did not come before."""
        if update.report.process != self._process:
            self._process, self._last = update.report.process, 0
        new = tuple(event for event in update.events if event.number > self._last)
        self._last = max([self._last, *(event.number for event in new)])
        return new


def described(report: RunReport) -> dict[str, Any]:
    """A report for machines."""
    content = asdict(report)
    for name in ("process", "run_id", "plan_digest"):
        content[name] = content[name].hex()
    return {**content, "seconds_left": report.seconds_left, "is_over": report.is_over}


def _print_line(kind: str, content: dict[str, Any]) -> None:
    print(json_text({"event": kind, "time": round(time.time(), 3), **content}, indent=None), flush=True)


def _raise_if_final(event: Disconnected) -> None:
    if event.is_final:
        sys.stdout.flush()
        raise WireRefusal(known(event.reason))


_WIDE = 120
"""From so many columns on, events stand beside the sites; below, under them."""
_WIDEST = 160
_KEPT_EVENTS = 200
_FEW_EVENTS = 8
_HEAD_LINES = 8


class MonitorView:
    """Takes what a watch receives, and draws it.

    Args:
        address: the coordinator's, to be shown.
        clock: seconds that never go back.
    """

    def __init__(self, address: str, clock: Callable[[], float]) -> None:
        self._address, self._clock = address, clock
        self._report: RunReport | None = None
        self._events: deque[EventReport] = deque(maxlen=_KEPT_EVENTS)
        self._gone: tuple[float, str] | None = None

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self._report is not None and self._report.is_over

    def take(self, event: Connected | Disconnected | Update) -> None:
        """Take note of what was received."""
        if isinstance(event, Disconnected):
            if self.is_over:
                return  # The coordinator hangs up at the end.
            since = self._clock() if self._gone is None else self._gone[0]
            self._gone = since, event.reason
            return
        self._gone = None
        if isinstance(event, Update):
            if self._report is None or self._report.process != event.report.process:
                self._events.clear()
            last = self._events[-1].number if self._events else 0
            self._events.extend(one for one in event.events if one.number > last)
            self._report = event.report

    def render(self, width: int, height: int | None) -> RenderableType:
        """The picture, at most `height` lines high; None: as high as it gets."""
        width = min(width, _WIDEST)
        report = self._report
        if report is None:
            return Panel(self._connection(), title="hedgerow monitor", title_align="left", width=width)
        kind = report.task if report.task in (EVALUATION, SURVEY) else "run"
        head = Panel(
            Group(self._connection(), *_numbers(report, width, is_live=self._gone is None)),
            title=f"hedgerow monitor   {kind} {report.run_id.hex()[:8]}   plan {report.plan_digest.hex()[:8]}",
            title_align="left",
            width=width,
            border_style="red" if self._gone else "",
        )
        n_sites = len(report.sites)
        # Without the frames, the head of the table, and the head's own lines, of which one may be wrapped.
        rows = None if height is None else max(2, height - _HEAD_LINES - bool(report.streams_refused) - 3)
        if width >= _WIDE:
            left = width * 4 // 7
            both = Table.grid(padding=0)
            events = self._newest(max(n_sites, _FEW_EVENTS) + 1 if rows is None else rows + 1)
            both.add_row(_sites(report.sites, left, rows), _events(events, width - left))
            return Group(head, both)
        if rows is None:
            return Group(head, _sites(report.sites, width, None), _events(self._newest(_FEW_EVENTS), width))
        for_sites = max(2, min(n_sites, rows - 2 - _FEW_EVENTS // 2))
        events = self._newest(max(1, rows - 2 - for_sites))
        return Group(head, _sites(report.sites, width, for_sites), _events(events, width))

    def _newest(self, count: int) -> list[Told]:
        return in_words(self._events)[-count:] if count else []

    def _connection(self) -> Text:
        if self._gone is not None:
            seconds, reason = self._clock() - self._gone[0], self._gone[1]
            what = WireRefusal(known(reason)).what
            text = f"NO CONNECTION to {self._address} for {span(seconds)}: {what} ({reason}) Trying again."
            return Text(text + (" Below: the last that was told." if self._report else ""), style="bold red")
        if self._report is None:
            return Text(f"Dialling {self._address} ...", style="yellow")
        report = self._report
        where = f"   connected to {self._address}, release {report.release}"
        if report.failure:
            said, style = f"GIVEN UP: {report.failure}", "bold red"
        elif report.is_over:
            said, style = "FINISHED", "bold green"
        else:
            said, style = phase_words(report.phase), "bold"
        return Text.assemble((said, style), (where, "dim"))


def _numbers(report: RunReport, width: int, *, is_live: bool) -> list[RenderableType]:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=8, style="dim")
    table.add_column(width=max(16, width // 4))
    table.add_column()
    has_pace = is_live and not report.is_over and report.rounds_per_second > 0
    pace = f"   {number(report.rounds_per_second, 3)}/s" if has_pace else ""
    left = report.seconds_left if is_live else None
    rest = "" if left is None else f"   {span(left)} left"
    table.add_row(
        "rounds",
        ProgressBar(max(1, report.rounds_planned), report.rounds_done),
        f"{report.rounds_done} of {report.rounds_planned}{pace}{rest}",
    )
    if math.isinf(report.epsilon_limit):
        table.add_row("epsilon", Text("none", style="bold red"), "the plan promises no privacy")
    else:
        spent = min(report.epsilon_spent, report.epsilon_limit)
        table.add_row(
            "epsilon",
            ProgressBar(report.epsilon_limit, spent, complete_style="cyan", finished_style="cyan"),
            f"{report.epsilon_spent:.3f} of {report.epsilon_limit:g} spent, at delta {report.delta:g}",
        )
    traffic = f"{megabytes(report.bytes_sent)} to the sites, {megabytes(report.bytes_received)} from them"
    table.add_row("time", span(report.seconds), traffic)
    dropouts, refusals = (sum(getattr(one, name) for one in report.sites) for name in ("dropouts", "refusals"))
    again = f", {_counted(report.rounds_abandoned, 'round')} begun again" if report.rounds_abandoned else ""
    table.add_row("troubles", _counted(dropouts, "dropout"), _counted(refusals, "refusal") + again)
    lines: list[RenderableType] = [table]
    if report.streams_refused:
        said = ", ".join(f"{reason} {count}" for reason, count in sorted(report.streams_refused.items()))
        lines.append(Text(f"streams refused before they joined: {said}", style="yellow", no_wrap=True))
    return lines


def _sites(sites: Sequence[SiteReport], width: int, room: int | None) -> Panel:
    """All sites in the roster's order; if they do not fit, those in trouble, then as many others as fit."""
    shown = list(sites)
    if room is not None and len(shown) > room:
        troubled = [site for site in sites if site.state not in CALM]
        calm = [site for site in sites if site.state in CALM]
        shown = [*troubled, *calm][: max(0, room - 1)]
    table = Table(box=None, expand=True, padding=(0, 1), show_edge=False, header_style="dim")
    table.add_column("site", ratio=3, no_wrap=True)
    table.add_column("state", width=11, no_wrap=True)
    table.add_column("why", ratio=4, no_wrap=True)
    for title in ("rounds", "drops", "refusals"):
        table.add_column(title, justify="right", no_wrap=True)
    for site in shown:
        mark, style = mark_of(site.state)
        counts = [str(count) if count else "-" for count in (site.rounds, site.dropouts, site.refusals)]
        # What a coordinator says is text: a plain str would be read as rich's markup, with links and colours.
        table.add_row(Text(site.name), Text(f"{mark} {site.state}", style=style), Text(site.code), *counts)
    content: RenderableType = table
    if len(shown) < len(sites):
        content = Group(table, Text(f" and {len(sites) - len(shown)} more, of which none is in greater trouble", "dim"))
    tally = Counter(site.state for site in sites)
    summary = ", ".join(f"{count} {state}" for state, count in tally.most_common())
    return Panel(content, title=f"{_counted(len(sites), 'site')}: {summary}", title_align="left", width=width)


def _events(events: Sequence[Told], width: int) -> Panel:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="dim", no_wrap=True, min_width=8)
    table.add_column(no_wrap=True)
    for event, said, style in events:
        table.add_row(clock_time(event.seconds), Text(said, style=style))
    return Panel(table if events else Text("nothing yet", "dim"), title="events", title_align="left", width=width)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
