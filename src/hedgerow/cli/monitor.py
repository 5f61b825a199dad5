"""``hedgerow monitor``: watch a run, as a live view, as lines of JSON, or once."""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from hedgerow.cli.federation_inputs import address_of
from hedgerow.cli.monitor_view import MonitorView
from hedgerow.cli.output import note
from hedgerow.errors import UsageError
from hedgerow.protocol.results import EventReport, RunReport
from hedgerow.protocol.wire.refusals import WireCode, WireRefusal, known
from hedgerow.protocol.wire.reports import LEAST_INTERVAL, LONGEST_INTERVAL, Told
from hedgerow.transport.grpc_watch import GrpcWatch, WatchEvent
from hedgerow.transport.identity_files import read_private
from hedgerow.transport.interface import Connected, Disconnected
from hedgerow.transport.roster_file import read_roster

_REFRESH_SECONDS = 0.25
_PATIENCE_ONCE = 60.0


def run(arguments: argparse.Namespace) -> None:
    """Dial the coordinator and show what it tells, until the run is over."""
    if not LEAST_INTERVAL <= arguments.every <= LONGEST_INTERVAL:
        raise UsageError(
            f"--every {arguments.every:g}: a report comes every {LEAST_INTERVAL:g} to {LONGEST_INTERVAL:g} seconds.",
            remedy="Give a number between them.",
            code="usage",
        )
    pinned, identity = read_roster(Path(arguments.roster)), read_private(Path(arguments.identity))
    host, port = address_of(arguments.connect, "--connect")
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    # Not for secrets: it only keeps monitors from coming back all at once.
    watch = GrpcWatch(address, identity, pinned, random.random, interval=arguments.every)
    try:
        if arguments.once:
            _once(watch, address, as_json=arguments.json)
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
        if isinstance(event, Told):
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
        elif isinstance(event, Told):
            for one in known_events.of(event):
                _print_line(one.kind, {key: value for key, value in asdict(one).items() if key != "kind"})
            if event.missed:
                _print_line("missed", {"events": event.missed})
            _print_line("report", described(event.report))
            if event.report.is_over:
                return


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

    def of(self, told: Told) -> tuple[EventReport, ...]:
        """The events that were not told before."""
        if told.report.process != self._process:
            self._process, self._last = told.report.process, 0
        new = tuple(event for event in told.events if event.number > self._last)
        self._last = max([self._last, *(event.number for event in new)])
        return new


def described(report: RunReport) -> dict[str, Any]:
    """A report for machines."""
    content = asdict(report)
    for name in ("process", "run_id", "plan_digest"):
        content[name] = content[name].hex()
    return {**content, "seconds_left": report.seconds_left, "is_over": report.is_over}


def _print_line(kind: str, content: dict[str, Any]) -> None:
    values = {name: _finite(value) for name, value in content.items()}
    print(json.dumps({"event": kind, "time": round(time.time(), 3), **values}, ensure_ascii=False), flush=True)


def _finite(value: Any) -> Any:
    """As everywhere in the command line's JSON."""
    return "infinite" if isinstance(value, float) and math.isinf(value) else value


def _raise_if_final(event: Disconnected) -> None:
    if event.is_final:
        sys.stdout.flush()
        raise WireRefusal(known(event.reason))
