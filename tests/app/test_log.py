"""What a node and a coordinator log: each line says when, how grave, of which run and site; as text or as JSON."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from hedgerow.app import coordinator, node
from hedgerow.app.node import ConnectionNotes
from hedgerow.app.options import NodeOptions
from hedgerow.app.output import begin_log, end_log, note, report_error, tell, warn
from hedgerow.app.watch import describe_wait
from hedgerow.errors import (
    AggregationError,
    DataError,
    EnvironmentFault,
    HedgerowError,
    ModelError,
    PolicyRefusal,
    RemoteProtocolError,
)
from hedgerow.protocol.messages import NodeState, RunState
from hedgerow.protocol.refusals import WireCode, WireRefusal
from hedgerow.server import status
from hedgerow.server.coordinator import RunEvent, RunEventKind
from hedgerow.transport.identities import Role, new_identity
from hedgerow.transport.interface import Connected, Disconnected
from tests.run_lines import Told

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (INFO|WARNING|ERROR) run=([0-9a-f]{12}|-) site=(\S+) (.*)")
OPTIONS = NodeOptions(identity="north.private.json", roster="roster.toml", policy="policy.toml")


def said(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, ...]]:
    """Level, run, site and text of each line; fails for a line that has not all of them."""
    found = [LINE.fullmatch(line) for line in capsys.readouterr().err.splitlines()]
    assert all(found)
    return [each.groups() for each in found if each is not None]


def speak() -> None:
    """Everything that a command may say."""
    note("A remark of\nmany " + "words " * 40 + "\x1b[2J")
    warn("Careful.")
    tell("south is gone", level="WARNING", site="south")
    logging.getLogger("hedgerow.transport.grpc_hub").warning("A stream of %s was refused.", "a stranger")
    report_error(DataError("data-duplicate-column", source="a.csv", column="age"), as_json=False)


def test_every_line_says_when_how_grave_and_of_whom(capsys: pytest.CaptureFixture[str]) -> None:
    """One line each, however long, without anything that a terminal takes for a command."""
    log = begin_log("north")
    log.run = lambda: bytes.fromhex("3f9a0c41d7be0000")
    speak()
    lines = said(capsys)
    assert [line[:3] for line in lines] == [
        ("INFO", "3f9a0c41d7be", "north"), ("WARNING", "3f9a0c41d7be", "north"), ("WARNING", "3f9a0c41d7be", "south"),
        ("WARNING", "3f9a0c41d7be", "north"), ("ERROR", "3f9a0c41d7be", "north"),
    ]  # fmt: skip
    assert "\x1b" not in lines[0][3]
    assert lines[4][3].startswith("a.csv: ") and "'age'" in lines[4][3]
    assert lines[4][3].endswith("(data-duplicate-column, exit code 4)")
    # What the coordinator's hub remarks is said as well; nodes have lines of their own for it.
    for library in ("grpc_hub", "grpc_link"):
        logging.getLogger(f"hedgerow.transport.{library}").info("north holds another roster.")
    assert said(capsys) == [("INFO", "3f9a0c41d7be", "north", "north holds another roster.")]
    end_log()
    note("Plain.")
    assert capsys.readouterr().err == "Plain.\n"


def test_json_has_an_object_in_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    """For machines: the same, with an error's parts by name."""
    begin_log("north", "json")
    speak()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert len(lines) == 5 and all({"time", "level", "run", "site", "message"} <= set(line) for line in lines)
    assert lines[2]["site"] == "south" and "south" in lines[2]["message"]
    assert (lines[4]["level"], lines[4]["code"], lines[4]["exit_code"]) == ("ERROR", "data-duplicate-column", 4)


def test_waiting_says_for_whom_how_many_are_needed_and_how_long_still(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs a study sees whom to call, and until when."""
    begin_log("hub")
    lines = Told(5, ["a", "b", "c", "d"])
    lines.board._run = SimpleNamespace()  # type: ignore[assignment]
    monkeypatch.setattr(status, "count_needed", lambda _: 3)
    lines.waiting(600.0)
    lines.waiting(599.0)
    lines(RunEvent(RunEventKind.READY, 0, "b"))
    lines(RunEvent(RunEventKind.READY, 0, "a"))
    lines(RunEvent(RunEventKind.READY, 0, "d"))
    found = said(capsys)
    assert len(found) == 4
    first, *others = (line[3] for line in found)
    assert first in [f"waiting for a, b, c, d (3 more of 3 needed; {left} s more at most)" for left in (600, 599)]
    assert others[0].startswith("b is ready; waiting for a, c, d (2 more of 3 needed; ")
    assert others[2].startswith("d is ready; waiting for c (the 3 needed are ready; ")
    assert [line[2] for line in found] == ["hub", "b", "a", "d"]


def test_a_wait_says_who_is_not_connected_and_why_that_may_be(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site that has denied a roster tells the coordinator nothing: whom to call is said all the same."""
    monkeypatch.setattr(coordinator, "space_lines", lambda _: 0.0)
    begin_log("hub")
    lines = Told(5, ["a", "b", "c"])
    lines.waiting(math.inf)
    lines(RunEvent(RunEventKind.JOINED, 0, "b"))
    lines(RunEvent(RunEventKind.JOINED, 0, "c"))
    lines(RunEvent(RunEventKind.LEFT, 0, "c", "closed"))
    lines.waiting(math.inf)
    *_, (level, _, _, text) = said(capsys)
    assert level == "INFO"
    assert re.findall(r"(?:\b[abc], )+[abc]\b", text) == ["a, b, c", "a, c"]
    assert "owner" in text and "roster" in text


def test_a_site_that_has_the_result_and_hangs_up_is_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """Who watches a log for warnings is not called after each run that went well, and is when a site leaves one."""
    begin_log("hub")
    lines = Told(5, ["a", "b"])
    lines(RunEvent(RunEventKind.LEFT, 4, "a", "closed"))
    lines(RunEvent(RunEventKind.PHASE, 5, code=RunState.FINISHING.value))
    lines(RunEvent(RunEventKind.LEFT, 5, "a", "closed"))
    told = [(line[0], line[3]) for line in said(capsys)]
    assert told == [("WARNING", "a is gone (closed)"), ("INFO", "a has hung up")]


def test_a_node_says_how_long_it_waits(capsys: pytest.CaptureFixture[str]) -> None:
    """A node without news of its coordinator gives up in the end, and says beforehand when."""
    begin_log("north")
    notes = ConnectionNotes(lambda: 3600.0)
    notes(Connected())
    notes(Disconnected(WireCode.CONNECTION_LOST.value, False))
    lines = said(capsys)
    assert [line[0] for line in lines] == ["INFO", "WARNING"] and "1 h 00 min" in lines[0][3]


def test_a_site_that_was_withdrawn_is_told_once_whom_to_ask(capsys: pytest.CaptureFixture[str]) -> None:
    """Each run of the others refuses it: who watches its log is warned of the first, and told what it may be."""
    begin_log("north")
    notes = ConnectionNotes(lambda: 3600.0, is_resting=lambda: True)
    for _ in range(64):
        notes(Disconnected(WireCode.TLS_REFUSED.value, False))
        notes(Disconnected(WireCode.UNREACHABLE.value, False))
    lines = [line for line in said(capsys) if "tls-refused" in line[3]]
    assert [line[0] for line in lines] == ["WARNING", *["INFO"] * 6]
    refusal = WireRefusal(WireCode.TLS_REFUSED)
    assert refusal.cause in lines[0][3] and refusal.remedy in lines[0][3]


def test_no_coordinator_between_two_runs_is_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """There is none for most of a study's time; in a run, or before the first one, something is in the way."""
    begin_log("north")
    for is_resting in (True, False):
        notes = ConnectionNotes(lambda: 3600.0, is_resting=lambda is_resting=is_resting: is_resting)  # type: ignore[misc]
        notes(Disconnected(WireCode.UNREACHABLE.value, False))
        notes(Disconnected(WireCode.CONNECTION_LOST.value, False))
    # Nor is a pause, which the coordinator's operator meant.
    ConnectionNotes(lambda: 3600.0, lambda: True)(Disconnected(WireCode.CLOSED.value, False))
    assert [line[0] for line in said(capsys)] == ["INFO", "WARNING", "WARNING", "WARNING", "INFO"]


@pytest.mark.parametrize(
    ("stays", "has_met", "run", "earlier", "is_resting"),
    [
        (True, True, b"", [], True),  # `join`, after its enrolment
        (False, True, b"", [], True),  # `join --once`
        (True, False, b"", [b"run"], True),  # `node --serve`
        (True, False, b"", [], False),
        (False, False, b"", [b"run"], False),
        (True, True, b"run", [b"run"], False),
    ],
)
def test_when_no_run_is_due(stays: bool, has_met: bool, run: bytes, earlier: list[bytes], is_resting: bool) -> None:
    """A node that has never reached its coordinator, or is in a run, has to: a wrong address must be a warning."""
    session: Any = SimpleNamespace(run_id=run, is_paused=False)
    store: Any = SimpleNamespace(run_ids=lambda: earlier)
    assert node.is_no_run_due(session, store, stays=stays, has_met=has_met) is is_resting


@pytest.mark.parametrize(
    ("fault", "level"),
    [
        (PolicyRefusal("run-closed", status="finished"), "INFO"),
        (AggregationError("no-run-came"), "INFO"),
        (PolicyRefusal("policy-no-rows", code="policy-no-held-out", task="a", option="b"), "INFO"),
        (
            PolicyRefusal("policy-over-budget", data_set="a", total=2.0, delta=1e-6, epsilon=1.0, spent=1.0),
            "WARNING",
        ),
        (AggregationError("coordinator-silent", limit=60.0), "WARNING"),
        (PolicyRefusal("policy-survey"), "WARNING"),
        *((PolicyRefusal("policy", code=f"policy-{own}", asked=own), "WARNING") for own in ("clear-sums", "unnoised")),
        (PolicyRefusal("plan-changed", offered="a", own="b"), "WARNING"),
        *(
            (WireRefusal(code), "WARNING")
            for code in (
                WireCode.PLAN_MISMATCH,
                WireCode.ROSTER_MISMATCH,
                WireCode.VERSION_MISMATCH,
                WireCode.SITE_MISMATCH,
            )
        ),
        (ModelError("model-of-others"), "WARNING"),
    ],
)
def test_a_run_that_a_node_could_not_take_part_in_is_a_warning(
    fault: HedgerowError, level: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node whose budget is spent stays, and its owner does not look at it every day; and a command that was mistyped
    at the coordinator (another plan, roster, a survey) ends no site's node.
    """
    faults = iter([fault])

    def take_part(**_: object) -> None:
        raise next(faults, KeyboardInterrupt())

    monkeypatch.setattr(node, "prepare_node", lambda *_, **__: nullcontext(SimpleNamespace(take_part=take_part)))
    monkeypatch.setattr(node, "_takes_up_roster", lambda *_: False)
    monkeypatch.setattr(node, "read_private", lambda path: new_identity("north", Role.SITE, bytes(range(32))))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    begin_log("north")
    with pytest.raises(KeyboardInterrupt):
        node.stay(OPTIONS, lambda _: None)
    assert [line[0] for line in said(capsys)] == [level, "INFO"]


@pytest.mark.parametrize(
    ("fault", "has_dialled"),
    [
        (PolicyRefusal("policy-survey"), False),
        (WireRefusal(WireCode.DUPLICATE_NODE), True),
        (PolicyRefusal("state-lost"), True),
        (PolicyRefusal("stopped-by-owner"), True),
        (RemoteProtocolError("structure-seed", why="another"), True),
        (EnvironmentFault("disk-full", place="a", fault="b"), True),
    ],
)
def test_a_node_ends_for_what_its_own_people_have_to_mend(
    fault: HedgerowError, has_dialled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it has dialled that is everything; afterwards its files, its owner's word, and what must be looked at."""

    def take_part(**_: object) -> None:
        raise fault

    @contextmanager
    def ready(*_: object, **__: object) -> Iterator[SimpleNamespace]:
        if not has_dialled:
            raise fault
        yield SimpleNamespace(take_part=take_part)

    monkeypatch.setattr(node, "prepare_node", ready)
    monkeypatch.setattr(node, "read_private", lambda path: new_identity("north", Role.SITE, bytes(range(32))))
    with pytest.raises(type(fault)):
        node.stay(OPTIONS, lambda _: None)


@pytest.mark.parametrize("state", [NodeState.OUTSIDE, NodeState.INVITED, NodeState.WAITING, NodeState.FINISHED])
def test_a_node_that_waits_says_so_while_it_is_connected(
    state: NodeState, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks at a site's terminal in a run took it for stuck; a lost connection is said by another line."""
    now, session = 1000.0, SimpleNamespace(state=state, progress=(0, 0))
    monkeypatch.setattr("hedgerow.app.node.time.monotonic", lambda: now)
    begin_log("north")
    lines, told = node.NodeLines(session), list[float]()  # type: ignore[arg-type]
    for second in range(120):
        now = 1000.0 + second
        session.progress = (second // 50, 3) if state is NodeState.WAITING else (0, 0)
        if second in (0, 60, 90):
            lines.take(Disconnected("unreachable") if second == 60 else Connected())
        lines.look()
        told += [second] * len(said(capsys))
    assert told == ([] if state is NodeState.FINISHED else [12, 24, 36, 48, 102, 114])


def test_a_coordinator_that_waits_says_for_whom_in_every_phase(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started again in the middle of a round it was silent for as long as sites have to return: within five seconds it
    says who is awaited, since when and how long, again when that changes, and every quarter of a minute.
    """
    now = 1000.0
    monkeypatch.setattr("hedgerow.app.coordinator.time.monotonic", lambda: now)
    begin_log("coordinator")
    shown = list[str]()
    lines = Told(10, ["a", "b", "c"], shows=lambda: shown.append(describe_wait(lines.board.wait())))
    lines(RunEvent(RunEventKind.PHASE, 0, code=RunState.COLLECTING_VECTORS.value))
    found = list[tuple[float, str]]()
    for now, awaited in [
        (1000, "ab"), (1001, "ab"), (1004, "ab"), (1006, "b"), (1010, "b"), (1012, "b"), (1050, "b"), (1071, "b"),
    ]:  # fmt: skip
        lines.waiting(1090.0 - now, set(awaited))
        found += [(now, text) for _, _, _, text in said(capsys)]
    assert [at for at, _ in found] == [1004, 1010, 1050, 1071]
    assert re.findall(r"\d+|\b[ab]\b", found[0][1]) == ["a", "b", "4", "86"]
    assert re.findall(r"\d+|\b[ab]\b", found[1][1])[:3] == ["b", "10", "80"]
    # The page has it with every look, and nothing where nobody is late.
    assert [text.partition(" (")[0] for text in shown] == ["", "", "waiting for a, b", *["waiting for b"] * 5]
