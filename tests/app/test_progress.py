"""Progress: a bar in a terminal, lines elsewhere, nothing for machines."""

from __future__ import annotations

import io
import math
import os
import re
import sys
import threading
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from hedgerow.app import environments, progress
from hedgerow.app.watch import in_words
from hedgerow.data.binned import SiteData
from hedgerow.local import progress as bar
from hedgerow.local.training import train
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SystemNoise
from hedgerow.protocol.stream import EventReport
from hedgerow.server.coordinator import RunEvent, RunEventKind
from tests.run_lines import Told

N_ROUNDS = 15
"""Of the plan below: its trees, the bins of the scores, and two for the level."""


@pytest.fixture
def plan() -> Plan:
    return Plan.from_dict(
        {
            "version": 1,
            "model": {"n_trees": 12},
            "privacy": {"epsilon": 2, "delta": 1e-6, "n_records": 50},
            "label": {"name": "y", "type": "binary", "classes": [0, 1]},
            "features": [{"name": "x", "type": "numeric", "min": 0, "max": 9, "integer": True}],
        }
    )


def run(plan: Plan, *, quiet: bool) -> None:
    rows = SiteData(np.zeros((1, 5), dtype=np.uint8), np.zeros(5, dtype=np.int32))
    with bar.TrainingProgress(plan, 2, quiet=quiet) as shown:
        train(plan, {"a": rows, "b": rows}, noise=SystemNoise(os.urandom), progress=shown)


def test_the_coordinator_says_who_is_awaited(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever starts a run sees which site to call, and does not wait for one that has refused."""
    lines = Told(5, ["a", "b", "c", "d"])

    def said(kind: RunEventKind, site: str = "", code: str = "") -> str:
        lines(RunEvent(kind, 0, site, code))
        return capsys.readouterr().err.strip()

    assert said(RunEventKind.READY, "b") == "b is ready; waiting for a, c, d"
    assert said(RunEventKind.READY, "d") == "d is ready; waiting for a, c"
    assert said(RunEventKind.REFUSED, "c", "policy-unit") == "c refuses (policy-unit)"
    assert said(RunEventKind.LEFT, "c", "closed") == "c is gone (closed)"
    assert said(RunEventKind.LEFT, "b", "silent") == "b is gone (silent)"
    assert said(RunEventKind.READY, "a") == "a is ready; waiting for b"
    assert said(RunEventKind.READY, "b") == "b is ready (2 times by now)"
    said(RunEventKind.PHASE, code="setting-up")
    said(RunEventKind.LEFT, "a", "silent")
    assert said(RunEventKind.READY, "c") == "c is ready"
    said(RunEventKind.PHASE, code="waiting-for-sites")
    said(RunEventKind.LEFT, "d", "silent")
    assert said(RunEventKind.READY, "d") == "d is ready (2 times by now); waiting for a"


def test_a_site_that_has_the_result_hangs_up() -> None:
    """A run that ended well shows no site in red: on the page and at a monitor as in the coordinator's log."""
    told = in_words(
        EventReport(number, 1.0, kind, 3, site, code)
        for number, (kind, site, code) in enumerate(
            [("left", "a", "silent"), ("phase", "", "finishing"), ("left", "a", "closed"), ("finished", "", "")], 1
        )
    )
    assert [(one["text"], one["mood"]) for one in told] == [
        ("a is gone (silent)", "bad"), ("handing the result out", ""), ("a has hung up", ""),
        ("the run is finished", "good"),
    ]  # fmt: skip


def test_lines_without_a_terminal(
    plan: Plan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside a terminal there is a line now and then, ending at the whole budget; none under a second."""
    monkeypatch.setattr(bar, "_SECONDS_BETWEEN_LINES", math.inf)
    run(plan, quiet=False)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(bar, "_SECONDS_BETWEEN_LINES", 0.0)
    run(plan, quiet=False)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == N_ROUNDS
    assert lines[-1] == f"Training: {N_ROUNDS}/{N_ROUNDS} rounds, epsilon 2 of 2, 2 sites"


def test_the_first_run_says_why_it_is_slow(
    plan: Plan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bar that stands still for a minute at 0 rounds looks like a fault; machines are told nothing."""
    monkeypatch.setattr(environments, "has_compiled", lambda: False)
    rows = SiteData(np.zeros((1, 5), dtype=np.uint8), np.zeros(5, dtype=np.int32))
    for quiet in (False, True):
        noise = SystemNoise(os.urandom)
        environments.train_with_progress(plan, {"a": rows, "b": rows}, noise, n_threads=1, quiet=quiet)
        assert ("compiled" in capsys.readouterr().err) is not quiet


def told_by(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Counts what a module notes, each line when it has been written."""
    told, note = threading.Semaphore(0), module.note

    def noted(text: str) -> None:
        note(text)
        told.release()

    monkeypatch.setattr(module, "note", noted)
    return told


def test_who_gets_ready_for_long_says_why(
    plan: Plan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node or coordinator that compiles for minutes looks as if it hung; one that is soon ready says nothing."""
    monkeypatch.setattr(progress, "_SECONDS_UNTIL_SLOW", 0.01)
    told = told_by(progress, monkeypatch)
    for quiet in (True, False):
        with progress.note_if_slow(quiet=quiet):
            assert told.acquire(timeout=0.2 if quiet else 600.0) is not quiet
        assert ("compiled" in capsys.readouterr().err) is not quiet
    monkeypatch.setattr(progress, "_SECONDS_UNTIL_SLOW", 3600.0)
    with progress.note_if_slow(quiet=False):
        pass
    assert capsys.readouterr().err == ""


def test_who_works_for_long_says_so_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A survey of thousands of columns whose output goes to a file looks as if it hung; machines are told nothing."""
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.01)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: 0.0))
    told = told_by(progress, monkeypatch)
    for quiet in (True, False):
        with progress.status("Adding up", quiet=quiet):
            for _ in range(2):
                assert told.acquire(timeout=0.2 if quiet else 600.0) is not quiet
        lines = capsys.readouterr().err.splitlines()
        assert [line.startswith("Adding up: 0 s") for line in lines[:2]] == ([] if quiet else [True, True])
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 3600.0)
    with progress.status("Adding up"):
        pass
    assert capsys.readouterr().err == ""


def test_nothing_for_machines(plan: Plan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With --json nothing is shown, however long it takes."""
    monkeypatch.setattr(bar, "_SECONDS_BETWEEN_LINES", 0.0)
    run(plan, quiet=True)
    assert capsys.readouterr() == ("", "")


def test_bar_in_a_terminal(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a terminal of 80 columns the bar's last state fits one line and tells rounds, epsilon and sites."""
    screen = io.StringIO()

    def terminal(**options: object) -> Console:
        return Console(file=screen, force_terminal=True, width=80, color_system=None)

    monkeypatch.setattr(bar, "Console", terminal)
    run(plan, quiet=False)
    last = [line for line in screen.getvalue().replace("\r", "\n").split("\n") if "rounds" in line][-1]
    assert f"{N_ROUNDS}/{N_ROUNDS} rounds" in last and "epsilon 2 of 2" in last and "2 sites" in last


def test_a_notebook_has_a_bar_of_its_own(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell shows how far a fit is, without widgets, and ends at the last round."""
    shown: list[str] = []
    cell = SimpleNamespace(update=shown.append)

    def show(html: str, display_id: bool) -> SimpleNamespace:
        shown.append(html)
        return cell

    display = SimpleNamespace(HTML=str, display=show)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=display))
    monkeypatch.setattr(bar, "Console", lambda **options: SimpleNamespace(is_jupyter=True, is_terminal=False, width=80))
    run(plan, quiet=False)
    done = [int(value) for value in re.findall(r'value="(\d+)"', " ".join(shown))]
    assert done[0] == 0 and done == sorted(done) and f'max="{done[-1]}"' in shown[-1]
