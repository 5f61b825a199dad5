"""What README, the documents of deployment and monitor, and `--help` print is typed word for word, with the wheel.

The commands are read out of the documents. Only ports, the coordinator's host and the name of a site are put in their
place: each site does what the document says for `north`.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import site
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hedgerow.app.backup import SITE_FILES, STUDY_FILES, list_strange
from hedgerow.client.node import warm_up
from hedgerow.errors import PlanError
from hedgerow.plan.plan import parse_plan
from hedgerow.privacy.noise import sample_discrete_gaussian
from tests.ports import hold_port

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "hedgerow"
SITES = ("north", "south", "west")
PATIENCE = 900.0
"""Seconds after which a command is taken to hang; far beyond what any of them takes on a busy machine."""
N_ROWS = 3000
"""Rows of each table: enough that a survey at the epsilon of the help finds both classes of the label in every run."""
NOT_WALKED = {
    r"^python3\.11 -m venv |^\. \.venv/bin/activate$": "the environment of this test stands for it",
    r"pip (install|wheel) |sha256sum ": "needs the package index",
    r"^docker |^hedgerow\(\) ": "needs a container engine; deploy/compose-check and deploy/study-check run the same",
    r"^(systemctl|systemd-analyze|journalctl) ": "needs systemd",
    r"^(useradd|chown|ln|install|sudo) ": "needs root",
    r"/etc/(hedgerow|systemd)/|/var/lib/hedgerow/": "needs root",
    r"^hedgerow study demo --sites 3$": "eight processes; a story of tests/processes/test_study.py plays these words",
    r"^hedgerow ledger .*--close ": "needs an interrupted run; tests/hostile/test_reserved_budget.py has some",
}
"""What no test can type, and why; anything else that a document prints is run."""
NETWORK = re.compile(r"^hedgerow (coordinator|node|monitor|evaluate .*--roster)(?!.*--help)")


def fenced(name: str, language: str) -> list[str]:
    """The fenced blocks of a document in one language."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def statements(text: str) -> list[str]:
    """A block's commands: continued lines joined, here-documents whole, remarks left out."""
    found: list[str] = []
    lines = iter(text.replace("\\\n", " ").splitlines())
    for line in lines:
        if (opened := re.search(r"<<'?(\w+)'?$", line)) is not None:
            for more in lines:
                line += f"\n{more}"
                if more == opened[1]:
                    break
        command = re.sub(r"\s+#\s.*$", "", " ".join(line.split(" ")).strip()) if "\n" not in line else line
        if command and not command.startswith("#"):
            found.append(re.sub(r"(?<=\S) +(?=-)", " ", command))
    return found


def is_walked(command: str) -> bool:
    return not any(re.search(pattern, command) for pattern in NOT_WALKED)


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the wheel of this checkout; other packages come from the running one.

    The workers share one: who comes first makes it, and the others wait.
    """
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "installed"
    folder.mkdir(exist_ok=True)
    environment = folder / "venv"
    with open(folder / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "whole").exists():
            _install(folder, environment)
            (folder / "whole").touch()
    return environment


def _install(folder: Path, environment: Path) -> None:
    source = folder / "source"
    left_out = shutil.ignore_patterns(".*", "build", "tests", "docs", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, source, symlinks=True, ignore=left_out)
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    shutil.rmtree(source)
    (wheel,) = folder.glob("*.whl")
    # Its own pip would take three times as long to make as the wheel takes to be installed.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    pip = [sys.executable, "-m", "pip", "--python", environment, "install", "--quiet", "--no-deps", "--no-index", wheel]
    quiet = {"PATH": os.defpath, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run([str(word) for word in pip], check=True, env=quiet)
    (packages,) = environment.glob("lib/python3*/site-packages")
    # Plain folders: what makes a checkout importable in the running environment has no effect from here.
    (packages / "dependencies.pth").write_text("".join(f"{place}\n" for place in site.getsitepackages()))
    _lend_kernels(packages / "hedgerow")


def _lend_kernels(package: Path) -> None:
    """Kernels that numba has compiled here are taken along, if their source is the same; else they are compiled.

    Those of a usual run are compiled now where nobody has done so yet: every process of the walk would do it by itself.
    """
    warm_up(None)
    sample_discrete_gaussian(1, 1, os.urandom)
    for stored in PACKAGE.rglob("__pycache__/*.nb[ci]"):
        room = stored.parent.parent
        for own in room.glob("*.py"):
            os.utime(package / own.relative_to(PACKAGE), ns=(own.stat().st_atime_ns, own.stat().st_mtime_ns))
        target = package / stored.parent.relative_to(PACKAGE)
        target.mkdir(exist_ok=True)
        shutil.copy2(stored, target)


class Walk:
    """Types commands in a folder, as a reader would; those of a network run beside each other until all have ended."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self.folder, self._port = folder, 0
        # The documents say `.venv/bin/hedgerow` after `make demo`, and `hedgerow` elsewhere.
        (folder / ".venv").symlink_to(environment)
        self._environment = {
            "PATH": f"{environment / 'bin'}{os.pathsep}{os.defpath}", "HOME": str(folder), "COLUMNS": "100",
            "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        self._running: list[tuple[str, subprocess.Popen[bytes], Path]] = []

    def type(self, commands: Sequence[str]) -> str:
        """Run the commands in order, as in one shell; returns what they printed."""
        printed, group = "", list[str]()
        for command in [*commands, ""]:
            kind = NETWORK.match(command)
            if group and (kind is None or _listens(command)):
                printed += self._federation(group)
                group = []
            if kind is not None:
                group.append(command)
            elif command.startswith("cd "):
                self.folder = self.folder / command.removeprefix("cd ")
            elif command:
                printed += self._run(command)
        return printed

    def _run(self, command: str) -> str:
        names = SITES if re.match(r"hedgerow study keys north\b", command) else ("north",)
        printed = ""
        for name in names:
            done = subprocess.run(
                ["bash", "-c", command.replace("north", name)], cwd=self.folder, env=self._environment,
                capture_output=True, text=True, timeout=PATIENCE,
            )  # fmt: skip
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            printed += done.stdout + done.stderr
        return printed

    def type_of_a_study(self, command: str) -> None:
        """One command of a study: those that stay do so, each site types its own, and words are what the ends show."""
        if command == "hedgerow study serve":
            self._start(command)
        elif "--data" in command and command.startswith("hedgerow join"):
            self._joining(command)
        elif "words that" in command:
            listed = json.loads(self._run("hedgerow study list --json"))
            for name, party in zip(
                SITES, sorted(listed["parties"], key=lambda one: SITES.index(one["name"])), strict=True
            ):
                # One of the words may be north.
                self._run(re.sub('"words that.*"', f'"{party["words"]}"', command.replace("north", name)))
            if "--confirm" in command:
                serving = self._running.pop(0)
                assert serving[1].wait(PATIENCE) == 0, serving[2].read_text(encoding="utf-8")
                self._wait_for_all("waits for the next run")
        elif command.startswith("hedgerow study evaluate"):
            # As the document says: rows that are held out.
            joined = [line for line, *_ in self._running]
            self.stop()
            for line in joined:
                self._start(line + re.sub(r".* --data (\w+)\.csv.*", r" --held-out \1-test.csv", line))
            self._run(command)
            self._wait_for_all("waits for the next run")
        else:
            self._run(command)

    def _joining(self, command: str) -> None:
        for name in SITES:
            shutil.copy2(self.folder / "wards" / f"{name}.invitation", self.folder)
            self._start(command.replace("north", name) + " --yes")
        self._wait_for_all(r"Your words: [a-z ]{19}")

    def _wait_for_all(self, pattern: str) -> None:
        """Until every site has said it; words may stand on two lines."""
        for command, process, said in self._running:
            while command.startswith("hedgerow join") and not re.search(pattern, said.read_text(encoding="utf-8")):
                assert process.poll() is None, f"{command}\n{said.read_text(encoding='utf-8')}"
                time.sleep(0.05)

    def stop(self) -> None:
        """End what stays, as a person does."""
        for _, process, _ in self._running:
            process.send_signal(signal.SIGINT)
        for _, process, _ in self._running:
            process.wait(PATIENCE)
        self._running = []

    def _federation(self, commands: Sequence[str]) -> str:
        """A run: who listens first, then who watches, then every site, each as one of the commands has it."""
        order = ["coordinator", "evaluate", "monitor", "node"]
        nodes = [command for command in commands if command.startswith("hedgerow node")]
        try:
            for command in sorted(commands, key=lambda line: order.index(line.split()[1])):
                if _listens(command):
                    self._start(re.sub(r"(--listen \S+?:\d+|$)", " --listen 127.0.0.1:0", command, count=1))
                    self._port = int(self._wait_for(r"Listening on \S+:(\d+)")[1])
                    continue
                here = re.sub(r"--connect \S+", f"--connect 127.0.0.1:{self._port}", command)
                if here.startswith("hedgerow monitor"):
                    self._start(here)
                    self._wait_until_connected()
                    continue
                for name in SITES[nodes.index(command) :: len(nodes)]:
                    self._start(here.replace("north", name))
            return self._end()
        finally:
            for _, process, _ in self._running:
                process.kill()
                process.wait()
            self._running = []

    def _start(self, command: str) -> None:
        said = self.folder / f"said-{len(self._running)}"
        with open(said, "wb") as stream:
            process = subprocess.Popen(
                shlex.split(command), cwd=self.folder, env=self._environment, stdout=stream, stderr=stream,
                executable=shutil.which(shlex.split(command)[0], path=self._environment["PATH"]),
            )  # fmt: skip
        self._running.append((command, process, said))

    def _wait_for(self, pattern: str) -> re.Match[str]:
        said = self._running[-1][2]
        while (found := re.search(pattern, said.read_text(encoding="utf-8"))) is None:
            self._pause()
        return found

    def _wait_until_connected(self) -> None:
        """A monitor that comes when the run is over would wait for another one."""
        port = f":{self._port:04X}"
        tables = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
        while not any(
            words[2].endswith(port) and words[3] == "01"
            for table in tables if table.exists()
            for words in map(str.split, table.read_text(encoding="ascii").splitlines()[1:])
        ):  # fmt: skip
            self._pause()

    def _pause(self) -> None:
        command, process, said = self._running[-1]
        assert process.poll() is None, f"{command}\n{said.read_text(encoding='utf-8')}"
        time.sleep(0.05)

    def _end(self) -> str:
        printed = ""
        # A node that stays is ended when all others have ended, as a person does.
        for command, process, said in sorted(self._running, key=lambda one: "--serve" in one[0]):
            if "--serve" in command:
                process.send_signal(signal.SIGINT)
            code = process.wait(PATIENCE)
            text = said.read_text(encoding="utf-8")
            assert code == (130 if "--serve" in command else 0), f"{command}\n{text}"
            printed += text
        return printed


def _listens(command: str) -> bool:
    return command.startswith(("hedgerow coordinator", "hedgerow evaluate")) and "--roster" in command


@pytest.fixture
def walk(installed: Path, tmp_path: Path) -> Walk:
    """A reader in an empty folder."""
    return Walk(installed, tmp_path)


def write_tables(folder: Path) -> None:
    """What the documents take for granted: each site's table, and rows that it holds out."""
    generator = np.random.default_rng(21)
    for name in ("north", "south", "west", "north-test", "south-test", "west-test", "test"):
        age, income = generator.integers(0, 100, N_ROWS), generator.uniform(0, 90_000, N_ROWS).round(2)
        ward = generator.choice(["surgery", "medicine"], N_ROWS)
        outcome = np.where(age + generator.normal(0, 20, N_ROWS) > 55, "yes", "no")
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(["age", "income", "ward", "outcome"])
            writer.writerows(zip(age, income, ward, outcome, strict=True))


CURVES = """\
[label]
name = "age"
type = "survival"
event = "outcome"
intervals = [20, 40, 60, 80]

[[features]]
name = "ward"
type = "categorical"
categories = ["surgery", "medicine"]
"""
"""What `hedgerow survey --survival` is given: the tables have the event's words in their outcome."""


def filled_in(draft: str, plan: dict[str, object]) -> str:
    """A draft after a person has written the plan's values into the lines that errors name."""
    lines = draft.splitlines()
    while True:
        try:
            parse_plan("\n".join(lines))
        except PlanError as error:
            (number,) = re.findall(r"Line (\d+) waits for it", error.remedy)
            section, index, field = re.findall(r"^(\w+)(?:\[(\d+)\])?.*?\.(\w+)(?: is missing|: \[\])", error.what)[0]
            table = plan[section] if not index else plan[section][int(index)]  # type: ignore[index]
            value = table[field]  # type: ignore[index]
            lines[int(number) - 1] = f"{field} = {value if isinstance(value, int | float | list) else repr(value)}"
        else:
            text = "\n".join(lines)
            for feature in plan["features"]:  # type: ignore[attr-defined]
                if feature.get("integer"):
                    its = rf'(name = "{feature["name"]}"\n(?:.*\n)*?)# (integer = true) .*'
                    text = re.sub(its, r"\1\2", text, count=1)
            return text


README = [line for block in fenced("README.md", "sh") for line in statements(block)]
DEPLOY = [line for block in fenced("docs/operate.md", "sh") for line in statements(block)]
STUDY = [line for block in fenced("docs/deploy.md", "sh") for line in statements(block)]
MONITOR = [line for block in fenced("docs/monitor.md", "sh") for line in statements(block)]
(DEMO, *_) = fenced("README.md", "text")
NEXT = re.findall(r"^  (\.venv/bin/hedgerow .*)$", f"\n{DEMO}".partition("\nNext\n")[2], re.MULTILINE)


def test_what_is_installed_is_the_wheel(installed: Path) -> None:
    """Else these tests would say nothing about what a user gets."""
    code = "import hedgerow, hedgerow.trees.leaf_sums as k; print(hedgerow.__file__); print(k.__file__)"
    python = installed / "bin" / "python"
    printed = subprocess.run([python, "-c", code], cwd="/", capture_output=True, text=True, check=True).stdout
    assert all(Path(line).is_relative_to(installed) for line in printed.splitlines())


def test_the_list_of_what_is_not_walked_is_short_and_needed() -> None:
    """A pattern that no command needs any more would one day hide a command that fails."""
    everything = [*README, *DEPLOY, *STUDY, *MONITOR]
    for pattern in NOT_WALKED:
        assert any(re.search(pattern, command) for command in everything), pattern
    assert sum(map(is_walked, everything)) > 25


def test_the_readme_can_be_typed(walk: Walk, installed: Path) -> None:
    """From the demonstration, and from what it prints under Next, to a model that predicts, is drawn and exported."""
    home = walk.folder
    walk.type([line for line in README if is_walked(line)])
    for name in ("model.json", "predictions.csv", "shapes.png", "model.xgboost.json", "draft.toml"):
        assert (home / "hedgerow-demo" / "data" / name).stat().st_size > 0
    walk.folder = home
    assert len(NEXT) == 3
    assert "probability_1" in walk.type(NEXT)
    (snippet,) = fenced("README.md", "python")
    (home / "snippet.py").write_text(snippet, encoding="utf-8")
    assert "HOLDS" in walk.type([".venv/bin/python snippet.py"])


HELP = (
    "import sys; from hedgerow.cli.main import main;"
    " sys.exit(any([main([*page.split(), '--help']) for page in sys.argv[1:]]))"
)
"""Prints the help of the commands that it is given."""


def helped(walk: Walk) -> list[str]:
    """The examples of all commands' help, in the order of the overview."""
    overview = walk.type(["hedgerow --help"])
    names = re.findall(r"^  ([a-z][a-z-]*)(?:$| )", overview, re.MULTILINE)
    assert {"train", "node", "monitor", "ledger", "study"} <= set(names)
    pages = [*names, "plan init", "study keys", "study roster"]
    # One process prints them all: the walk starts forty others.
    text = walk.type([shlex.join(["python", "-c", HELP, *pages])]).replace("\\\n", " ")
    assert text.count("usage: hedgerow ") == len(pages)
    found = [one for line in re.findall(r"^  (hedgerow .*)$", text, re.MULTILINE) for one in statements(line)]
    assert len(found) >= 9 and len(set(found)) == len(found)
    return found


def but_for_numbers(command: str) -> list[str]:
    """What two commands have in common that differ in the order of their options, and in how large an epsilon is."""
    return sorted(re.sub(r"^[\d.]+$", "number", word) for word in command.split())


def with_examples(commands: Sequence[str], examples: Sequence[str]) -> list[str]:
    """The document's commands, and where one starts nodes, what the help has for the same table.

    Each of the two is then typed at some of the sites. All else that the help shows of a network, the document has too.
    """
    found, typed = list[str](), {tuple(but_for_numbers(command)) for command in commands}
    others = [line for line in examples if NETWORK.match(line) and tuple(but_for_numbers(line)) not in typed]
    assert len(others) == 2 and all(line.startswith("hedgerow node") for line in others)
    for command in commands:
        same = [line for line in others if line.split()[:3] == command.split()[:3]]
        found += [command, *same]
    assert len(found) == len(commands) + 2
    return found


def test_the_deployment_and_the_help_can_be_typed(walk: Walk) -> None:
    """An operator goes from keys to a model, an evaluation and an account, with the document's own plan and policy.

    The run is watched as docs/monitor.md has it. One of the sites types what `--help` shows; then follow the examples
    of the help that one machine is enough for.
    """
    write_tables(walk.folder)
    (walk.folder / "curves.toml").write_text(CURVES, encoding="utf-8")
    plan, policy = fenced("docs/operate.md", "toml")
    (walk.folder / "policy.toml").write_text(policy, encoding="utf-8")
    commands = [line for line in DEPLOY if is_walked(line)]
    # Pages in a browser are tried in tests/app/test_console.py and tests/runtime/test_site_page.py.
    assert {line for line in MONITOR if "--console" not in line} <= set(commands)
    until = next(number for number, line in enumerate(commands) if line.startswith("hedgerow privacy"))
    # Sites that come later make their keys in the same way.
    walk.type([line.replace("north", "east") for line in commands if line == "hedgerow study keys north"])
    walk.type(commands[:until])
    draft = walk.folder / "plan.toml"
    draft.write_text(filled_in(draft.read_text(encoding="utf-8"), tomllib.loads(plan)), encoding="utf-8")
    assert parse_plan(draft.read_text(encoding="utf-8")) == parse_plan(plan)
    examples = helped(walk)
    printed = walk.type(with_examples(commands[until:], examples))
    assert "3 of 3: north, south, west" in printed and "Finished" in printed
    assert (walk.folder / "backup" / "ledger.json").stat().st_size > 0
    assert json.loads((walk.folder / "model.json").read_text(encoding="utf-8"))["report"]["guarantee"] == "holds"
    # Training on one machine does not write over the federation's model.
    alone = [line for line in examples if not NETWORK.match(line) and line not in commands]
    walk.type(["mv model.json federated.json", *sorted(alone, key=lambda line: line.startswith("hedgerow evaluate"))])


def test_a_study_can_be_typed(walk: Walk) -> None:
    """From invitations to a model at every site, an evaluation and a second run; words are read off both ends."""
    write_tables(walk.folder)
    plan, _ = fenced("docs/operate.md", "toml")
    (walk.folder / "plan.toml").write_text(plan, encoding="utf-8")
    held, address = hold_port()
    try:
        for command in filter(is_walked, STUDY):
            walk.type_of_a_study(re.sub(r"[\w.]+:7443", address, command))
    finally:
        walk.stop()
        held.close()
    # A backup knows what it does with every file that was made on the way.
    for name, rules in (("wards", STUDY_FILES), *((f"wards-{own}", SITE_FILES) for own in SITES)):
        assert list_strange(walk.folder / name, rules) == [], name
    model = (walk.folder / "wards" / "run-2" / "model.json").read_bytes()
    for name in SITES:
        kept = [path.read_bytes() for path in (walk.folder / f"wards-{name}").glob("model-*.json")]
        assert len(kept) == 2 and model in kept
