"""`hedgerow join --status`: an operator alarms on it, while the node runs, and learns nothing of a row."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hedgerow.app import node
from hedgerow.app.backup import back_up_node, restore_node
from hedgerow.app.life import EXIT_CODES, MAX_SILENCE, SIGN, LifeSign, describe_node, read_sign
from hedgerow.app.node import NodeOptions, ReadyNode
from hedgerow.cli.main import main
from hedgerow.client.state import NodeStore, OwnerDesk, Question
from hedgerow.errors import AggregationError
from hedgerow.methods.tasks import TrainingTask
from hedgerow.transport.interface import Connected, Disconnected
from tests.app.site_folder import LIMIT, PLAN, SPENT, begin_run, book_of, end_run, furnish_site
from tests.builders import coded

RUN = bytes(32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A site that has joined and whose node runs."""
    folder = furnish_site(tmp_path / "wards-north")
    (folder / "state").mkdir(mode=0o700)
    LifeSign(folder / "state").beat()
    return folder


def states(folder: Path, now: float | None = None) -> list[str]:
    found: list[str] = describe_node(folder, now=now)["states"]
    return found


def test_a_node_that_waits_for_its_next_run_is_well(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Between runs nobody listens at the coordinator: that is no alarm, however long it lasts."""
    begin_run(folder, RUN)
    end_run(folder, RUN, SPENT)
    sign = LifeSign(folder / "state")
    sign.take(Connected())
    sign.end("")
    sign.take(Disconnected("unreachable"))
    assert main(["join", "--status", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["states"] == [] and found["last_contact"] and found["last_run"]["status"] == "finished"
    assert found["budget"]["max_epsilon"] == LIMIT[0] and 0 < found["budget"]["spent"] < LIMIT[0]
    assert main(["join", "--status", str(folder)]) == 0


@pytest.mark.parametrize(("stays", "run", "code"), [(True, b"", "no-run-came"), (True, RUN, "coordinator-silent"),
                                                    (False, b"", "coordinator-silent")])  # fmt: skip
def test_that_no_run_came_is_the_end_of_none(
    stays: bool, run: bytes, code: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study rests for most of its time, and how its last run ended stays true. A run that is open is another case."""
    state = folder / "state"
    LifeSign(state).end("plan-mismatch")

    def run_node(*_: object) -> None:
        raise AggregationError("coordinator-silent", limit=150.0)

    monkeypatch.setattr(node, "UPLINKS", {"grpc": lambda *_: SimpleNamespace(close=lambda: None)})
    monkeypatch.setattr(node, "run_node", run_node)
    session = SimpleNamespace(plan=None, run_id=run, is_paused=False, site="north")
    store = SimpleNamespace(folder=state, desk=None, run_ids=lambda: [RUN])
    ready: Any = SimpleNamespace(
        options=NodeOptions(connect="", roster="", identity="", policy="", quiet=True), session=session, store=store,
        page=None, identity=None, roster=None,
    )  # fmt: skip
    with pytest.raises(AggregationError, check=coded(code)):
        ReadyNode.take_part(ready, stays=stays, has_met=True)
    assert read_sign(state)["ended"] == ("plan-mismatch" if code == "no-run-came" else code)


def test_each_state_is_found_and_the_gravest_is_the_exit_code(folder: Path) -> None:
    """A monitoring system tells them apart by the code alone."""
    now = time.time()
    assert states(folder, now + MAX_SILENCE + 60) == ["not-running"]
    begin_run(folder, RUN)
    assert states(folder) == ["no-contact"]
    assert main(["join", "--status", str(folder)]) == EXIT_CODES["no-contact"]
    sign = LifeSign(folder / "state")
    sign.take(Connected())
    assert states(folder) == []
    sign.end("sum-out-of-range")
    assert main(["join", "--status", str(folder)]) == EXIT_CODES["last-run-failed"]
    task = TrainingTask(PLAN)
    question = Question(
        RUN.hex(), "training", "plan", task.plan.digest, task.plan.digest, 2.0, 1e-5, "wards", 2.0, 3.0, 1e-5, "server"
    )
    with closing(OwnerDesk(folder / "state")) as desk:
        desk.ask(question)
    assert states(folder) == ["question", "last-run-failed"]
    assert main(["join", "--status", str(folder)]) == EXIT_CODES["question"]
    (folder / "roster.toml").unlink()
    assert main(["join", "--status", str(folder)]) == EXIT_CODES["not-joined"]
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)


def test_a_budget_is_told_before_a_run_is_refused(folder: Path) -> None:
    """What is left for the plan, and what an owner has to charge after a backup, is known before the next run."""
    begin_run(folder, RUN)
    end_run(folder, RUN, SPENT)
    policy = folder / "policy.toml"
    text = policy.read_text(encoding="utf-8")
    policy.write_text(text.replace(f"max_epsilon = {LIMIT[0]}", "max_epsilon = 2.1"), encoding="utf-8")
    assert states(folder) == ["budget-short"]
    back_up_node(folder, folder.parent / "b.tar")
    (folder.parent / "north-budget.db").unlink()
    other = folder.parent / "other" / "wards-north"
    restore_node(folder.parent / "b.tar", other)
    assert states(other) == ["not-running", "budget-blocked"]


def test_nothing_is_opened_that_the_node_needs_alone(folder: Path) -> None:
    """It answers while the node has its database to itself, and the node keeps it."""
    with closing(NodeStore(folder / "state")) as store, closing(book_of(folder)):
        before = (folder / "state" / "node.db").stat().st_mtime_ns
        assert main(["join", "--status", str(folder)]) == 0
        store.note_site("north")
        assert store.sites() == {"north"} and before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"sign": "now"}', '{"sign": 1, "contact": {}, "ended": ""}'])
def test_a_sign_that_was_cut_off_is_no_sign(text: str, folder: Path) -> None:
    """A machine that lost its power may leave half a file."""
    (folder / "state" / SIGN).write_text(text, encoding="ascii")
    assert states(folder) == ["not-running"]


def test_a_sign_is_written_now_and_then_and_is_private(tmp_path: Path) -> None:
    """A node that is called every second does not write to the disk every second; contact lasts while it is there."""
    now = [1000.0]
    sign = LifeSign(tmp_path, clock=lambda: now[0])
    sign.take(Connected())
    written = 0
    for _ in range(120):
        now[0] += 1
        before = (tmp_path / SIGN).read_bytes()
        sign.beat()
        written += (tmp_path / SIGN).read_bytes() != before
    assert 4 <= written <= 12
    sign.take(Disconnected("unreachable"))
    now[0] += 500
    sign.beat()
    content = json.loads((tmp_path / SIGN).read_text(encoding="ascii"))
    assert content["contact"] == 1120.0 and content["sign"] == now[0]
    assert not (tmp_path / SIGN).stat().st_mode & 0o077


def test_status_takes_no_invitation(folder: Path) -> None:
    """A mistyped command never begins to take part, and one without either says what is missing."""
    assert main(["join", "north.invitation", "--status", str(folder)]) == 2
    assert main(["join"]) == 2
    assert main(["join", "--status", str(folder / "state")]) == 2
