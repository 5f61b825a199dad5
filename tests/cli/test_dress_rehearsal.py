"""A rehearsal runs a plan's own code, leaves nothing behind, and stands in nobody's way."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hedgerow.client.session import NodeSession
from hedgerow.client.warm_up import usual_plan
from hedgerow.dress_rehearsal import rehearse_run
from hedgerow.protocol.messages import MessageKind

ENOUGH = 10
"""Calls after which Python speeds a function up, and two more."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("label", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize("noise", ["server", "distributed", "local"])
def test_a_plan_is_gone_through_often_enough(factory: ModuleType, folder: Path, label: str, noise: str) -> None:
    """Also a plan of one round: its sites wait for that one. Afterwards no file is left, for some hold keys."""
    plan = factory.make_plan(label, model={"n_trees": 2, "batch_size": 2}, privacy={"noise": noise})
    assert rehearse_run(plan) >= ENOUGH
    assert list(folder.iterdir()) == []


def test_nodes_go_through_what_a_real_run_asks_of_them(factory: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors and shares: a rehearsal of half a round would leave the other half to be waited for."""
    heard: list[int] = []
    receive = NodeSession.receive

    def listened(session: NodeSession, data: bytes) -> list[bytes]:
        heard.append(data[4])
        answers = receive(session, data)
        assert session.failure is None
        return answers

    monkeypatch.setattr(NodeSession, "receive", listened)
    rehearse_run(factory.make_plan())
    assert heard.count(MessageKind.UNMASK) >= 2 * ENOUGH
    assert heard.count(MessageKind.ROUND_REQUEST) >= 3 * ENOUGH


def test_a_node_without_a_plan_rehearses_a_usual_one() -> None:
    """It does not know yet what it will be asked; most of its code is the same for every plan."""
    assert rehearse_run(usual_plan()) >= ENOUGH


def test_a_plan_of_many_sites_is_rehearsed_by_few(factory: ModuleType) -> None:
    """Its least number of sites is a promise of the real run, and there are no records here."""
    plan = factory.make_plan()
    table: dict[str, Any] = {**plan.to_dict(), "federation": {**plan.to_dict()["federation"], "min_sites": 50}}
    assert rehearse_run(type(plan).from_dict(table)) >= ENOUGH


def test_what_cannot_be_rehearsed_is_left(factory: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A plan that no node could answer, and a machine without room for files: a real run is refused, or is not."""
    large = factory.make_plan(model={"n_trees": 10_000, "batch_size": 10_000, "max_depth": 8})
    assert rehearse_run(large) == 0
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "missing"))
    assert rehearse_run(factory.make_plan()) == 0


def test_a_full_disk_ends_it_quietly(factory: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The owner hears of it when the real state is written, with the folder that it is about."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert rehearse_run(factory.make_plan()) == 0
    assert list(folder.iterdir()) == []


def test_a_slow_machine_rehearses_as_many_rounds(factory: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine needs code that is loaded most of all: a rehearsal ends after its rounds, not by the clock."""
    clock = iter(range(0, 10**9, 3600))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    assert rehearse_run(factory.make_plan()) >= ENOUGH
