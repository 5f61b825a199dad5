"""``hedgerow monitor``: what it draws at any width and height, and what it prints for machines."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hedgerow.app.monitor import MonitorView, describe_report
from hedgerow.app.output import span
from hedgerow.app.watch import clock_time
from hedgerow.cli.main import main
from hedgerow.protocol.stream import EventReport, RunReport, SiteReport, Update
from hedgerow.transport.grpc_hub import GrpcHub, Monitors
from hedgerow.transport.identities import read_private, read_roster
from hedgerow.transport.interface import Address, Connected, Disconnected

EVENTS = tuple(EventReport(number, 60.0 * number, "joined", 0, f"site-{number}") for number in range(1, 31))
REPORT = RunReport(
    process=b"process1", run_id=bytes(range(32)), plan_digest=bytes(32), version="1.2.3", phase="collecting-vectors",
    rounds_done=40, rounds_planned=100, seconds=75.0, rounds_per_second=12.0, epsilon_spent=0.4321, epsilon_limit=1.0,
    delta=1e-5, bytes_sent=12_345_678, bytes_received=999, rounds_abandoned=1,
    sites=(
        SiteReport("north", "ready", "", 40), SiteReport("south", "refused", "policy-over-budget", 0, 0, 1),
        SiteReport("west", "left", "connection-lost", 17, 3, 0), SiteReport("east", "silent", "", 39, 1, 0),
    ),
)  # fmt: skip


def drawn(view: MonitorView, width: int, height: int | None = None) -> list[str]:
    page = io.StringIO()
    Console(file=page, width=width, height=height or 100, color_system=None).print(view.render(width, height))
    return page.getvalue().splitlines()


def view_of(report: RunReport = REPORT) -> MonitorView:
    view = MonitorView("hub:7443", lambda: 100.0)
    view.take(Connected())
    view.take(Update(report, EVENTS))
    return view


@pytest.mark.parametrize("width", [80, 140])
def test_everything_is_on_the_screen(width: int) -> None:
    """Round, pace, time left, epsilon, bytes, every site with its state and code, the last event; within the width."""
    lines = drawn(view_of(), width, 30)
    page = "\n".join(lines)
    for text in (
        "40 of 100, 12 a second, 5.0 s left", "0.4321 of 1, at delta", "to the sites 12.3 MB",
        "from the sites 999 bytes", "4 dropouts, 1 refusal, 1 round begun again", "policy-over-budget",
        "connection-lost", "● ready", "✕ refused", "? silent",
        "Collecting masked vectors", "site-30 is connected",
        "0:30:00", "00010203",
    ):  # fmt: skip
        assert text in page, text
    assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize("width", [40, 80, 120, 300])
@pytest.mark.parametrize("height", [20, 24, 50])
def test_a_large_federation_fits(width: int, height: int) -> None:
    """With 200 sites the picture is no higher than the screen, and who is in trouble is on it."""
    sites = [SiteReport(f"site-{number:03}", "ready", "", 5) for number in range(199)]
    sites.append(SiteReport("zebra", "left", "silent", 2, 1))
    lines = drawn(view_of(replace(REPORT, sites=tuple(sites), streams_refused={"unpinned": 3})), width, height)
    if width >= 80:
        assert len(lines) <= height
        assert any("zebra" in line and "left" in line for line in lines)
    assert any("more, of which none" in line for line in lines) or width < 80


def test_a_coordinator_that_is_gone() -> None:
    """The view says so, since when and why, keeps what it knows, and promises no time that is left."""
    now = [100.0]
    view = MonitorView("hub:7443", lambda: now[0])
    assert "Dialling hub:7443" in "".join(drawn(view, 80))
    view.take(Update(REPORT, EVENTS))
    view.take(Disconnected("connection-lost"))
    now[0] = 130.0
    view.take(Disconnected("unreachable"))
    page = "\n".join(drawn(view, 140))
    assert "NO CONNECTION to hub:7443 for 30 s" in page and "(unreachable)" in page
    assert "40 of 100" in page and "left" not in page.split("40 of 100")[1].splitlines()[0]
    view.take(Connected())
    assert "NO CONNECTION" not in "\n".join(drawn(view, 140))


def test_how_a_run_ended() -> None:
    """Finished, or given up with the code."""
    assert "Finished" in "".join(drawn(view_of(replace(REPORT, phase="over")), 80))
    over = view_of(replace(REPORT, phase="over", failure="too-few-sites"))
    assert over.is_over and "too-few-sites" in "".join(drawn(over, 80))


def test_the_hang_up_at_the_end_does_not_hide_how_it_ended() -> None:
    """The last report and the end of its stream may come together."""
    view = view_of(replace(REPORT, phase="over"))
    view.take(Disconnected("connection-lost"))
    text = "".join(drawn(view, 80))
    assert "Finished" in text and "NO CONNECTION" not in text


def test_events_are_shown_once() -> None:
    """After a new connection the last events come again; a new process counts from one."""
    view = view_of()
    view.take(Update(REPORT, EVENTS))
    assert "\n".join(drawn(view, 80)).count("site-30 is connected") == 1
    view.take(Update(replace(REPORT, process=b"process2"), EVENTS[:1]))
    page = "\n".join(drawn(view, 80))
    assert "site-1 is connected" in page and "site-30" not in page


def test_no_privacy_is_said() -> None:
    """A plan with an infinite epsilon shows no bar that could be read as a promise."""
    endless = replace(REPORT, epsilon_limit=float("inf"), epsilon_spent=float("inf"))
    assert "The plan promises no privacy" in "\n".join(drawn(view_of(endless), 80))


@pytest.mark.parametrize("name", ["[link=http://elsewhere/x]north[/link]", "[bold red]GIVEN UP[/]", "[/red]"])
def test_what_a_coordinator_says_is_shown_as_text(name: str) -> None:
    """A name that reads like markup changes no colour, makes no link, and does not end the monitor."""
    page = io.StringIO()
    told = replace(REPORT, sites=(SiteReport(name, "ready", "", 40),), version=name)
    view = view_of(told)
    view.take(Update(told, (EventReport(31, 1.0, "joined", 0, name),)))
    Console(file=page, width=150, force_terminal=True).print(view.render(150, None))
    assert "\x1b]8" not in page.getvalue()
    lines = drawn(view, 400)
    assert sum(line.count(name[:12]) for line in lines) == 3


@pytest.mark.parametrize(
    ("done", "planned", "pace", "left"),
    [(2**32 - 1, 0, 5e-324, 0.0), (0, 5, 5e-324, None), (0, 2**32 - 1, 1e-300, None), (100, 1, 1.0, 0.0)],
)
def test_no_pace_makes_the_time_left_absurd(done: int, planned: int, pace: float, left: float | None) -> None:
    """Numbers that cannot be do not end the monitor, and give no time that no run takes."""
    report = replace(REPORT, rounds_done=done, rounds_planned=planned, rounds_per_second=pace)
    assert report.seconds_left == left
    drawn(view_of(report), 120)
    json.loads(json.dumps(describe_report(report), allow_nan=False))


def test_times_for_people() -> None:
    """Lengths of time and times of events."""
    assert [span(seconds) for seconds in (0.44, 12, 75, 7322)] == ["0.4 s", "12 s", "1 min 15 s", "2 h 02 min"]
    assert clock_time(3723.9) == "1:02:03"


class Site:
    """The files of a federation with a monitor, and a coordinator that reports until it is closed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, *option in (("hub", "--coordinator"), ("north",), ("south",), ("watch", "--monitor")):
            assert main(["study", "keys", name, "--folder", str(folder), *option]) == 0
        public = [str(folder / f"{name}.public.toml") for name in ("north", "south", "hub", "watch")]
        assert main(["study", "roster", *public, "--out", self.path("roster.toml")]) == 0
        self.roster = read_roster(folder / "roster.toml")
        self.monitors = Monitors(self.roster)
        hub = read_private(folder / "hub.private.json")
        self.hub = GrpcHub(hub, self.roster, Address(), monitors=self.monitors)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._report)
        self._thread.start()

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def _report(self) -> None:
        report = REPORT
        while not self._ends.wait(0.05):
            self.monitors.show(report, lambda number: (EVENTS[number:], 0))
            if self.monitors.is_there():
                report = replace(report, rounds_done=report.rounds_done + 20)
            if report.rounds_done >= 100:
                report = replace(report, phase="over", rounds_done=100)

    def arguments(self, *options: str) -> list[str]:
        files = ["--roster", self.path("roster.toml"), "--identity", self.path("watch.private.json")]
        return ["monitor", *files, "--connect", f"127.0.0.1:{self.hub.port}", *options]

    def close(self) -> None:
        self._ends.set()
        self._thread.join()
        self.monitors.close()
        self.hub.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def test_lines_for_machines(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON object per line: connected, every event, reports, until the run is over."""
    capsys.readouterr()
    assert main(site.arguments("--json", "--every", "0.2")) == 0
    lines: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kinds = [line["event"] for line in lines]
    assert kinds[0] == "connected" and kinds[-1] == "report"
    assert [line["number"] for line in lines if line["event"] == "joined"] == [*range(1, 31)]
    last = lines[-1]
    assert last["is_over"] and last["rounds_done"] == last["rounds_planned"] == 100
    assert last["sites"][1] == {
        "name": "south", "state": "refused", "code": "policy-over-budget", "rounds": 0, "dropouts": 0, "refusals": 1,
        "version": "",
    }  # fmt: skip


def test_once(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """One picture or one object, then it ends, though the run goes on."""
    assert main(site.arguments("--once")) == 0
    assert "of 100" in capsys.readouterr().out
    assert main(site.arguments("--once", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["event"] == "report"


def test_who_may_not_watch(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """A site's identity is refused before anything is dialled, and an interval out of range is a usage error."""
    capsys.readouterr()
    as_site = [word.replace("watch.private", "north.private") for word in site.arguments("--once")]
    assert main(as_site) == 10
    assert "identity-not-pinned" in capsys.readouterr().err
    assert main(site.arguments("--every", "0")) == 2
