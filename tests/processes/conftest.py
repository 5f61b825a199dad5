"""Whole federations of real processes on loopback, over TLS: many at once, for most of their time they wait."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.cli.main import main
from hedgerow.client.node import Node
from hedgerow.model import Model
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.plan import Plan, parse_plan
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.server.coordinator import run_program
from hedgerow.site_data import read_site_data
from hedgerow.training.programs import program_for
from hedgerow.training.settings import resolve

SEED = "5"
PATIENCE = 180
"""Seconds; no test measures time, this only bounds one that hangs."""
JOIN_TIMEOUT, ROUND_TIMEOUT, IDLE_TIMEOUT = 15, 5, 20
PLAN = f"""version = 1
[model]
n_trees = 6
max_depth = 2
[privacy]
epsilon = 4
delta = 1e-6
n_records = 400
[federation]
min_sites = 3
join_timeout = {JOIN_TIMEOUT}
round_timeout = {ROUND_TIMEOUT}
idle_timeout = {IDLE_TIMEOUT}
[[features]]
name = "age"
type = "numeric"
min = 0
max = 100
[[features]]
name = "ward"
type = "categorical"
categories = ["a", "b"]
[label]
name = "ill"
type = "binary"
classes = [0, 1]
"""
POLICY = 'version = 1\ndata_set = "wards"\nmax_epsilon = 9\ndelta = 1e-6\n'
N_SITES = 4
SITES = tuple(f"site-{number}" for number in range(N_SITES))
Strike = dict[str, Any]
_ONE_AT_A_TIME = threading.Lock()


class Nursery:
    """The process from which all others are forked; see nursery.py."""

    def __init__(self) -> None:
        root = Path(__file__).resolve().parents[2] / "src"
        environment = {**os.environ, "PYTHONPATH": str(root), "NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        script = str(Path(__file__).with_name("nursery.py"))
        self._process = subprocess.Popen(
            [sys.executable, script], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._lock = threading.Lock()
        assert self._answer() == "ready"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ask(self, **request: Any) -> Any:
        """A child's pid, or, for a poll, its exit code."""
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return json.loads(self._answer())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


class Process:
    """A command in a process of its own."""

    def __init__(self, nursery: Nursery, folder: Path, name: str, arguments: Sequence[str], strike: Strike | None):
        self._nursery, self.name = nursery, name
        pipes = [folder / f"{name}.{stream}" for stream in ("out", "err")]
        for pipe in pipes:
            os.mkfifo(pipe)
        # A pipe, not a file: a process whose disk is full can still say so.
        self.pid: int = nursery.ask(
            arguments=list(arguments), out=str(pipes[0]), err=str(pipes[1]), folder=str(folder), strike=strike
        )
        self.out: list[str] = []
        self.err: list[str] = []
        texts = zip(pipes, (self.out, self.err), strict=True)
        self._readers = [threading.Thread(target=self._read, args=pair, daemon=True) for pair in texts]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(pipe: Path, lines: list[str]) -> None:
        with pipe.open(encoding="utf-8") as stream:
            lines.extend(iter(stream.readline, ""))

    def signal(self, number: int) -> None:
        if self.code is None:
            os.kill(self.pid, number)

    @property
    def code(self) -> int | None:
        """The exit code, below 0 for a signal; None while it runs."""
        code: int | None = self._nursery.ask(poll=self.pid)
        return code

    @property
    def is_frozen(self) -> bool:
        """Whether it has been stopped by a signal."""
        text = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii")
        return text.rpartition(")")[2].split()[0] == "T"

    def says(self, words: str) -> bool:
        """Whether it has written this to stderr."""
        return any(words in line for line in list(self.err))

    def wait(self) -> int:
        """Its exit code; fails when it hangs."""
        wait_until(lambda: self.code is not None, self)
        for reader in self._readers:
            reader.join(PATIENCE)
        code = self.code
        assert code is not None
        return code

    @property
    def error(self) -> str:
        """The code word of the error with which it ended."""
        if not self.err:
            return ""
        if self.err[0].startswith("{"):
            return str(json.loads("".join(self.err))["error"]["code"])
        return self.err[-1].strip().lstrip("(").partition(",")[0]


def wait_until(is_so: Callable[[], bool], *processes: Process) -> None:
    """Wait for something to happen; fails when it never does."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        said = "".join(line for process in processes for line in (f"--- {process.name}\n", *process.err))
        assert time.monotonic() < deadline, said
        time.sleep(0.02)


class SumOverSurvivors:
    """Plain sums in which every round has the sites of the coordinator's journal; the others take its update in."""

    honest_group = None

    def __init__(self, nodes: dict[str, Node], survivors: list[list[str]]) -> None:
        self._nodes, self._survivors = nodes, survivors

    def sum_of(self, query: Query) -> IntVector:
        """See `Aggregation.sum_of`."""
        total = np.zeros(query.length, dtype=np.int64)
        for site, node in self._nodes.items():
            if site in self._survivors[query.purpose.round]:
                total += node.answer(query)
            else:
                node.finish(query)
        return total


class Scene:
    """One federation: a folder with everything that its parties have, and their processes."""

    def __init__(self, nursery: Nursery, folder: Path, n_trees: int = 6) -> None:
        self.folder, self._nursery = folder, nursery
        self.processes: list[Process] = []
        self.nodes: dict[str, Process] = {}
        self.plan: Plan = self.change_plan("n_trees = 6", f"n_trees = {n_trees}")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"

    def change_plan(self, old: str, new: str) -> Plan:
        """Replace a line of the plan, before anyone has read it."""
        file = self.folder / "plan.toml"
        text = file.read_text(encoding="ascii").replace(old, new)
        file.write_text(text, encoding="ascii")
        self.plan = parse_plan(text)
        return self.plan

    def start(self, name: str, *arguments: str, strike: Strike | None = None) -> Process:
        """A command in this folder."""
        process = Process(self._nursery, self.folder, f"{name}.{len(self.processes)}", arguments, strike)
        self.processes.append(process)
        return process

    def coordinator(self, strike: Strike | None = None) -> Process:
        """The coordinator, for the first time or again."""
        return self.start(
            "hub", "coordinator", "plan.toml", "--roster", "roster.toml", "--identity", "hub.private.json", "--out",
            "model.json", "--listen", self.address, "--seed", SEED, strike=strike,
        )  # fmt: skip

    def node(self, site: str, *more: str, strike: Strike | None = None) -> Process:
        """A site's node, for the first time or again."""
        self.nodes[site] = self.start(
            site, "node", f"{site}.csv", "--roster", "roster.toml", "--identity", f"{site}.private.json", "--policy",
            "policy.toml", "--connect", self.address, *more, strike=strike,
        )  # fmt: skip
        return self.nodes[site]

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait for something to happen; fails when it never does."""
        wait_until(is_so, *self.processes)

    @property
    def survivors(self) -> list[list[str]]:
        """For every release, the sites whose vectors are in it, by the journal."""
        database = sqlite3.connect(f"file:{self.folder / 'model.json.journal'}?mode=ro", uri=True)
        rows = database.execute("select survivors from releases order by round").fetchall()
        database.close()
        return [json.loads(row[0]) for row in rows]

    def survivors_model(self) -> bytes:
        """What the local engine makes of the sites that were in each round."""
        # Accountants silence warnings for a while, which Python does for all threads at once.
        with _ONE_AT_A_TIME:
            settings = resolve(self.plan)
            data = {site: read_site_data(self.folder / f"{site}.csv", self.plan)[0] for site in SITES}
            nodes = {site: Node(site, rows, self.plan, settings) for site, rows in data.items()}
            sums = SumOverSurvivors(nodes, self.survivors)
            outcome = run_program(self.plan, program_for(self.plan, settings), sums, SeededNoise(int(SEED)))
        return Model(self.plan, outcome.ensemble, outcome.ledger, outcome.report).to_bytes()

    def model(self) -> bytes:
        """The file that the coordinator wrote."""
        return (self.folder / "model.json").read_bytes()

    def close(self) -> None:
        for process in self.processes:
            process.signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()


Story = Callable[[Scene], None]


class Theatre:
    """Plays stories, each with a scene of its own, several at a time; a test asks how its own one ended."""

    def __init__(self, nursery: Nursery, folder: Path) -> None:
        self._nursery, self._folder = nursery, folder
        self._pool = ThreadPoolExecutor(4)
        self._template = folder / "template"
        self._template.mkdir()
        _furnish(self._template)
        self.ends: dict[str, Any] = {}

    def announce(self, name: str, story: Story, n_trees: int = 6) -> None:
        """Begin a story when there is room."""
        if name not in self.ends:
            self.ends[name] = self._pool.submit(self._play, name, story, n_trees)

    def _play(self, name: str, story: Story, n_trees: int) -> None:
        folder = self._folder / "".join(letter if letter.isalnum() else "-" for letter in name)
        shutil.copytree(self._template, folder)
        scene = Scene(self._nursery, folder, n_trees)
        try:
            story(scene)
        finally:
            scene.close()

    def ended(self, name: str) -> None:
        """Wait for a story; raises what it raised."""
        self.ends[name].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _furnish(folder: Path) -> None:
    """Keys, roster, plan, policy, and tables, different for every site, to train on and held out."""
    (folder / "plan.toml").write_text(PLAN, encoding="ascii")
    (folder / "policy.toml").write_text(POLICY, encoding="ascii")
    assert main(["identity", "new", "hub", "--coordinator", "--folder", str(folder)]) == 0
    source = random.Random(1)
    for site in SITES:
        assert main(["identity", "new", site, "--folder", str(folder)]) == 0
        for name in (f"{site}.csv", f"{site}-held-out.csv"):
            ages = [source.randint(0, 99) for _ in range(100)]
            rows = [f"{age},{source.choice('ab')},{int(source.random() < age / 100)}\n" for age in ages]
            (folder / name).write_text("age,ward,ill\n" + "".join(rows), encoding="ascii")
    public = [str(folder / f"{site}.public.toml") for site in SITES]
    hub, roster = str(folder / "hub.public.toml"), str(folder / "roster.toml")
    assert main(["roster", "build", *public, "--coordinator", hub, "--out", roster]) == 0


@pytest.fixture(scope="session")
def theatre(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Theatre]:
    """Where stories are played: all that the chosen tests ask for begin as soon as there is room."""
    nursery = Nursery()
    built = Theatre(nursery, tmp_path_factory.mktemp("theatre"))
    for item in request.session.items:
        name = getattr(getattr(item, "callspec", None), "params", {}).get("story")
        if name is not None and isinstance(item, pytest.Function):
            built.announce(name, *item.module.STORIES[name])
    yield built
    built.close()
    nursery.close()
