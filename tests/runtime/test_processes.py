"""The commands as an operator runs them: processes on loopback, over TLS, killed and stopped by real signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from hedgerow.cli.main import main

N_SITES = 4
PATIENCE = 900
"""Seconds; no test measures time, this only bounds one that fails."""


class Process:
    """A command in a process of its own, whose stderr is read line by line."""

    def __init__(self, *arguments: str) -> None:
        root = str(Path(__file__).resolve().parents[2] / "src")
        environment = {**os.environ, "PYTHONPATH": root, "NUMBA_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hedgerow", *arguments], env=environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(line)

    def wait_for(self, words: str, count: int = 1) -> None:
        """Wait until so many lines hold the words; fail when the process ends before."""
        deadline = time.monotonic() + PATIENCE
        while sum(words in line for line in self.lines) < count:
            assert self._process.poll() is None and time.monotonic() < deadline, "".join(self.lines)
            time.sleep(0.01)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait()

    def end(self) -> str:
        """Wait for the end; its stdout, if it ended well."""
        assert self._process.stdout is not None
        out = self._process.stdout.read()
        assert self._process.wait(PATIENCE) == 0, "".join(self.lines)
        return out

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


class Scene:
    """A folder with everything that a federation's parties have."""

    def __init__(self, wards: ModuleType, folder: Path, round_timeout: int) -> None:
        self.folder = folder
        self.processes: list[Process] = []
        timeouts = {"join_timeout": 3600, "round_timeout": round_timeout, "idle_timeout": 3600}
        plan = wards.plan_text(N_SITES, model={"n_trees": 120, "max_depth": 3}, federation=timeouts)
        wards.furnish(folder, self.sites, plan, 1.2)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"

    @property
    def sites(self) -> list[str]:
        return [f"site-{number}" for number in range(N_SITES)]

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def start(self, *arguments: str) -> Process:
        self.processes.append(process := Process(*arguments))
        return process

    def coordinator(self, *more: str) -> Process:
        return self.start(
            "coordinator", self.path("plan.toml"), "--roster", self.path("roster.toml"), "--identity",
            self.path("hub.private.json"), "--out", self.path("model.json"), "--listen", self.address, *more,
        )  # fmt: skip

    def node(self, site: str) -> Process:
        return self.start(
            "node", self.path(f"{site}.csv"), "--plan", self.path("plan.toml"), "--roster",
            self.path("roster.toml"), "--identity", self.path(f"{site}.private.json"), "--policy",
            self.path("policy.toml"), "--connect", self.address, "--json",
        )  # fmt: skip


@pytest.fixture
def scene(wards: ModuleType, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    built = Scene(wards, tmp_path, getattr(request, "param", 3600))
    yield built
    for process in built.processes:
        process.close()


def test_a_coordinator_killed_twice_writes_the_local_engines_model(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    """From files and keys to a model over TLS, through two SIGKILLs: the bytes are those of `hedgerow train`."""
    nodes = {site: scene.node(site) for site in scene.sites}
    coordinator = scene.coordinator("--seed", "5")
    for _ in range(2):
        coordinator.wait_for("released")
        coordinator.signal(signal.SIGKILL)
        coordinator = scene.coordinator("--seed", "5")
    assert "120 trees" in coordinator.end()
    spent = [json.loads(node.end())["budget"]["spent"] for node in nodes.values()]
    assert all(0.9 < epsilon <= 1 for epsilon in spent)
    sites = [f"--site={site}={scene.path(site)}.csv" for site in scene.sites]
    assert main(["train", scene.path("plan.toml"), *sites, "--seed", "5", "--out", scene.path("local.json")]) == 0
    assert (scene.folder / "model.json").read_bytes() == (scene.folder / "local.json").read_bytes()
    capsys.readouterr()
    assert main(["ledger", scene.path("site-0-state"), "--policy", scene.path("policy.toml"), "--json"]) == 0
    (data_set,) = json.loads(capsys.readouterr().out)["data_sets"]
    assert data_set["max_epsilon"] == 1.2 and data_set["runs"][0]["status"] == "finished"


# Others may be given up for a round as well, on a machine that is busy enough: they come back.
@pytest.mark.parametrize("scene", [3], indirect=True)
def test_a_stopped_node_does_not_end_a_run_and_a_second_run_is_over_budget(scene: Scene) -> None:
    """SIGSTOP costs one round's timeout; a second run would cost more than the owner allows, and its node says so."""
    nodes = {site: scene.node(site) for site in scene.sites}
    coordinator = scene.coordinator()
    coordinator.wait_for("is ready", N_SITES)
    nodes["site-1"].signal(signal.SIGSTOP)
    coordinator.wait_for("site-1 does not answer")
    nodes["site-1"].signal(signal.SIGCONT)
    assert "120 trees" in coordinator.end()
    assert json.loads((scene.folder / "model.json").read_text())["report"]["guarantee"] == "holds"
    for node in nodes.values():
        node.end()
    # A coordinator with an empty folder: it neither goes on with the run nor writes over the model.
    (scene.folder / "model.json.journal").unlink()
    (scene.folder / "model.json").rename(scene.folder / "first.json")
    again = scene.coordinator()
    refusing = scene.node("site-2")
    again.wait_for("site-2 refuses (policy-over-budget)")
    with pytest.raises(AssertionError, match="policy-over-budget"):
        refusing.end()
