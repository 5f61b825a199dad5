"""Whole federations of real processes on loopback, over TLS: many at once, for most of their time they wait."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hedgerow.app.backup import SITE_FILES, STATE_FILES, STUDY_FILES, list_strange
from hedgerow.plan.plan import Plan, parse_plan
from tests.ports import hold_port
from tests.wards import SEED, forget_place, furnish, model_by_journal, plan_text, survivors_of

PATIENCE = 900
"""Seconds; no test measures time, this only bounds one that hangs."""
N_SITES = 4
SITES = tuple(f"site-{number}" for number in range(N_SITES))
Strike = dict[str, Any]
_ONE_AT_A_TIME = threading.Lock()


class Forker:
    """The process from which all others are forked; see forked_commands.py."""

    def __init__(self) -> None:
        root = Path(__file__).resolve().parents[2] / "src"
        environment = {**os.environ, "PYTHONPATH": str(root), "NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        script = str(Path(__file__).with_name("forked_commands.py"))
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

    def __init__(
        self, forker: Forker, folder: Path, name: str, arguments: Sequence[str], **more: Strike | int | None
    ) -> None:
        self._forker, self.name = forker, name
        pipes = [folder / f"{name}.{stream}" for stream in ("out", "err")]
        for pipe in pipes:
            os.mkfifo(pipe)
        # A pipe, not a file: a process whose disk is full can still say so.
        self.pid: int = forker.ask(
            arguments=list(arguments), out=str(pipes[0]), err=str(pipes[1]), folder=str(folder), **more
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
        code: int | None = self._forker.ask(poll=self.pid)
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
        # Lines of the log may stand before it, and Python's own words after it.
        for line in reversed(self.err):
            if line.startswith('{"error"'):
                return str(json.loads(line)["error"]["code"])
            if ", exit code " in line:
                return line.rpartition("(")[2].partition(",")[0]
        return ""


def wait_until(is_so: Callable[[], bool], *processes: Process) -> None:
    """Wait for something to happen; fails when it never does."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        said = "".join(line for process in processes for line in (f"--- {process.name}\n", *process.err))
        assert time.monotonic() < deadline, said
        time.sleep(0.02)


class Scene:
    """One federation: a folder with everything that its parties have, and their processes."""

    def __init__(self, forker: Forker, folder: Path, n_trees: int = 6) -> None:
        self.folder, self._forker = folder, forker
        self.processes: list[Process] = []
        self.nodes: dict[str, Process] = {}
        self.plan: Plan = self.change_plan("n_trees = 6", f"n_trees = {n_trees}")
        self._held, self.address = hold_port()

    def change_plan(self, old: str, new: str) -> Plan:
        """Replace a line of the plan, before anyone has read it."""
        file = self.folder / "plan.toml"
        text = file.read_text(encoding="ascii")
        assert old in text
        text = text.replace(old, new)
        file.write_text(text, encoding="ascii")
        self.plan = parse_plan(text)
        return self.plan

    def start(self, name: str, *arguments: str, strike: Strike | None = None, files: int | None = None) -> Process:
        """A command in this folder; it may open so many files."""
        whole_name = f"{name}.{len(self.processes)}"
        process = Process(self._forker, self.folder, whole_name, arguments, strike=strike, files=files)
        self.processes.append(process)
        return process

    def coordinator(self, strike: Strike | None = None, files: int | None = None) -> Process:
        """The coordinator, for the first time or again."""
        return self.start(
            "hub", "coordinator", "plan.toml", "--roster", "roster.toml", "--identity", "hub.private.json", "--out",
            "model.json", "--listen", self.address, "--seed", SEED, strike=strike, files=files,
        )  # fmt: skip

    def node(self, site: str, *more: str, strike: Strike | None = None) -> Process:
        """A site's node, for the first time or again."""
        self.nodes[site] = self.start(
            site, "node", f"{site}.csv", "--plan", "plan.toml", "--roster", "roster.toml", "--identity",
            f"{site}.private.json", "--policy", "policy.toml", "--connect", self.address, *more, strike=strike,
        )  # fmt: skip
        return self.nodes[site]

    def let_time_pass(self, *sites: str) -> None:
        """From now on nobody but these is waited for in vain: the plan's timeouts count; without any, they do not."""
        file = self.folder / "time-passes"
        whole = file.with_suffix(".new")
        whole.write_text(" ".join(sites), encoding="ascii")
        whole.replace(file)
        if not sites:
            file.unlink()

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait for something to happen; fails when it never does."""
        wait_until(is_so, *self.processes)

    @property
    def survivors(self) -> list[list[str]]:
        """For every release, the sites whose vectors are in it, by the journal."""
        return survivors_of(self.folder / "model.json.journal")

    def survivors_model(self) -> bytes:
        """What the local engine makes of the sites that were in each round."""
        # Accountants silence warnings for a while, which Python does for all threads at once.
        with _ONE_AT_A_TIME:
            return forget_place(model_by_journal(self.folder, SITES, self.plan))

    def is_written_again(self, begin: Callable[[], Process], *names: str) -> bool:
        """Whether a coordinator whose run is over writes the files that it could not write, before any site comes."""
        before = {name: (self.folder / name).read_bytes() for name in names}
        for name in names:
            (self.folder / name).unlink()
        process = begin()
        self.wait_until(lambda: all((self.folder / name).exists() for name in names))
        process.signal(signal.SIGKILL)
        process.wait()
        return {name: (self.folder / name).read_bytes() for name in names} == before

    def model(self) -> bytes:
        """The file that the coordinator wrote, without where it was made."""
        return forget_place((self.folder / "model.json").read_bytes())

    def close(self) -> None:
        for process in self.processes:
            process.signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()
        self._held.close()


Story = Callable[[Scene], None]


def require_known_files(folder: Path) -> None:
    """A backup knows what it does with each file that a story leaves in the folders of a study, its sites and nodes."""
    for name, rules in (("study.db", STUDY_FILES), ("enrolment.db", SITE_FILES), ("node.db", STATE_FILES)):
        for found in folder.rglob(name):
            assert list_strange(found.parent, rules) == [], found.parent


class Theatre:
    """Plays stories, each with a scene of its own, several at a time; a test asks how its own one ended.

    However many workers and theatres there are, each story is played once: by whoever makes its folder first.

    Args:
        forker: where processes come from.
        own: a new folder of this theatre.
        shared: the folder of all theatres of these tests.
    """

    def __init__(self, forker: Forker, own: Path, shared: Path) -> None:
        self._forker, self._shared = forker, shared
        self._pool = ThreadPoolExecutor(4)
        self._template = own / "template"
        self._template.mkdir()
        plan = plan_text(N_SITES, model={"n_trees": 6, "max_depth": 2}, privacy={"epsilon": 4})
        furnish(self._template, SITES, plan, 9, monitor="watch")
        self._begun: dict[str, Future[None]] = {}

    def announce(self, name: str, story: Story, n_trees: int = 6) -> None:
        """Begin a story when there is room."""
        if name not in self._begun:
            self._begun[name] = self._pool.submit(self._play, name, story, n_trees)

    def _folder_of(self, name: str) -> Path:
        return self._shared / "".join(letter if letter.isalnum() else "-" for letter in name)

    def _play(self, name: str, story: Story, n_trees: int) -> None:
        folder = self._folder_of(name)
        try:
            folder.mkdir()
        except FileExistsError:
            return  # Another theatre plays it, or has.
        what_failed = ""
        try:
            shutil.copytree(self._template, folder, dirs_exist_ok=True)
            scene = Scene(self._forker, folder, n_trees)
            try:
                story(scene)
            finally:
                scene.close()
            require_known_files(folder)
        except BaseException:
            what_failed = traceback.format_exc()
        whole = folder / "end.new"
        whole.write_text(what_failed, encoding="utf-8")
        whole.replace(folder / "end")

    def ended(self, name: str) -> None:
        """Wait for a story; fails when it did."""
        self._begun[name].result()
        end = self._folder_of(name) / "end"
        wait_until(end.exists)
        what_failed = end.read_text(encoding="utf-8")
        assert not what_failed, what_failed

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def theatre(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Theatre]:
    """Where stories are played: all that the chosen tests ask for begin as soon as there is room."""
    forker = Forker()
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "stories"
    shared.mkdir(exist_ok=True)
    built = Theatre(forker, tmp_path_factory.mktemp("theatre"), shared)
    for item in request.session.items:
        name = getattr(getattr(item, "callspec", None), "params", {}).get("story")
        if name is not None and isinstance(item, pytest.Function):
            built.announce(name, *item.module.STORIES[name])
    yield built
    built.close()
    forker.close()
