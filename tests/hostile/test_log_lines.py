"""One hostile peer that repeats itself: what is logged about it stays readable, and names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hedgerow.app.node import ConnectionNotes
from hedgerow.carriers import site
from hedgerow.errors import RemoteProtocolError
from hedgerow.protocol.refusals import WireCode
from hedgerow.server.coordinator import RunEvent, RunEventKind
from hedgerow.transport.interface import Connected, Disconnected
from tests.run_lines import Told

MESSAGES = 30_000
SITES = ["hostile", "honest"]


KINDS = [
    RunEventKind.COMPLAINT, RunEventKind.REFUSED, RunEventKind.LEFT, RunEventKind.JOINED, RunEventKind.READY,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_words", [1, 500])
def test_a_coordinator_logs_a_sites_messages_less_and_less_often(
    capsys: pytest.CaptureFixture[str], kind: RunEventKind, n_words: int
) -> None:
    """30,000 messages, of one kind or with a code word of the site's own each, are a page; what an honest site does
    beside it is said as ever.
    """
    lines = Told(30, SITES)
    for number in range(MESSAGES):
        lines(RunEvent(kind, 0, "hostile", f"word-{number % n_words}"))
    lines(RunEvent(RunEventKind.SILENT, 0, "honest"))
    said = capsys.readouterr().err.splitlines()
    assert len(said) <= 120 and said[-1].startswith("honest ")
    assert all(line.startswith("hostile ") for line in said[:-1])
    assert any("16384 times" in line for line in said) or n_words > 1


def test_a_coordinator_logs_a_site_that_changes_who_is_awaited_less_and_less_often(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is said besides about the others does not make its line another one."""
    lines = Told(30, SITES)
    for number in range(MESSAGES):
        lines(RunEvent(RunEventKind.LEFT if number % 2 else RunEventKind.REFUSED, 0, "honest", "word"))
        lines(RunEvent(RunEventKind.READY, 0, "hostile"))
    said = capsys.readouterr().err.splitlines()
    assert len([line for line in said if line.startswith("hostile ")]) < 20


def test_a_coordinator_logs_rounds_that_begin_anew_less_and_less_often(capsys: pytest.CaptureFixture[str]) -> None:
    """A site that leaves in every round brings them about."""
    lines = Told(30, SITES)
    for _ in range(MESSAGES):
        lines(RunEvent(RunEventKind.ABANDONED, 3, code="too-few-survivors"))
    assert 1 < len(capsys.readouterr().err.splitlines()) < 20


def test_a_node_logs_a_connection_that_flaps_less_and_less_often(capsys: pytest.CaptureFixture[str]) -> None:
    """A coordinator that takes and drops it all the time does not fill the owner's log."""
    notes = ConnectionNotes()
    for _ in range(MESSAGES):
        notes(Connected())
        notes(Disconnected(WireCode.CONNECTION_LOST.value, False))
    said = capsys.readouterr().err
    assert said.count("Connected.") < 20 and len(said) < 10_000


def test_a_nodes_own_log_stays_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Over Flower every message is a process of its own, and may leave a line in the owner's folder."""
    fault = RemoteProtocolError("x" * 10_000, code="malformed-message")
    for _ in range(500):
        site.log_failure(tmp_path, fault)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2 and all(file.stat().st_size < 1 << 21 for file in files)
    assert "malformed-message" in capsys.readouterr().err
