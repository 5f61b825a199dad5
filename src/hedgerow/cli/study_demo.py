"""``hedgerow study demo``: a whole study on one machine, by the commands that its parties type, each in a process.

The people are the only part that is played: each end is told the words that the other end shows, as in a call.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from hedgerow.cli.output import note, print_facts
from hedgerow.data.datasets import write_rand_hie
from hedgerow.errors import EnvironmentFault, UsageError

_STUDY = "demo"
_SECONDS_BETWEEN_LOOKS = 0.3


def run(arguments: argparse.Namespace) -> None:
    """Invite, join, compare, train; leave the study's and the sites' folders behind."""
    folder = Path(arguments.out)
    if folder.exists():
        raise UsageError("study-exists", folder=folder)
    data = write_rand_hie(folder)
    tables = dict(list(data.train.items())[: arguments.sites])
    text = data.plan.read_text(encoding="utf-8")
    data.plan.write_text(re.sub(r"(?m)^min_sites = \d+$", f"min_sites = {arguments.sites}", text), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with ExitStack() as stack:
        scene = _Scene(folder, stack)
        scene.type("study", "new", _STUDY, "--plan", "plan.toml", "--listen", address)
        scene.type("study", "invite", *tables)
        scene.start("coordinator", "study", "serve")
        for site, table in tables.items():
            (folder / site).mkdir()
            (folder / _STUDY / f"{site}.invitation").rename(folder / site / f"{site}.invitation")
            scene.start(site, "join", f"{site}/{site}.invitation", "--data", table.name, "--yes")
        for site in tables:
            at_site, at_coordinator = scene.words_at(site), scene.words_of(site)
            note(f"(The call: {site} reads {at_site!r}, the coordinator {at_coordinator!r}.)")
            scene.type("join", f"{site}/{site}.invitation", "--confirm", at_coordinator)
            scene.type("study", "confirm", f"{site}={at_site}")
        scene.wait_for("coordinator", "")
        for site in tables:
            scene.wait_for(site, "waits for the next run")
    models = [next((folder / site).glob(f"{_STUDY}-{site}/model-*.json")) for site in tables]
    own = folder / _STUDY / "run-1" / "model.json"
    print_facts(
        [
            ("study", str(folder / _STUDY)),
            ("model", str(own)),
            (
                "at the sites",
                f"{sum(model.read_bytes() == own.read_bytes() for model in models)} of {len(models)} have it",
            ),
            ("what each said", str(folder / "*.log")),
        ]
    )
    note(f"Go on with it: cd {folder}, and the same commands; `hedgerow study list` says where it stands.")


class _Scene:
    """Types commands in a folder, some of which stay."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._staying: dict[str, subprocess.Popen[bytes]] = {}

    def type(self, *words: str, shows: bool = True) -> str:
        """A command that ends; returns what it printed. Raises EnvironmentFault "demo-command" where it fails."""
        if shows:
            note(f"$ hedgerow {shlex.join(words)}")
        done = subprocess.run(self._command(words), cwd=self._folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EnvironmentFault("demo-command", command=shlex.join(words), said=done.stderr[-2000:])
        return done.stdout

    def start(self, name: str, *words: str) -> None:
        """A command that stays until the demonstration ends."""
        note(f"$ hedgerow {shlex.join(words)} &")
        log = self._stack.enter_context((self._folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            self._command(words), cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        self._staying[name] = process
        self._stack.callback(self._end, process)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait()

    @staticmethod
    def _command(words: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "hedgerow", *words]

    def wait_for(self, name: str, pattern: str) -> str:
        """Wait until a command that stays says something, its first group; or, for nothing, until it has ended."""
        log, process = self._folder / f"{name}.log", self._staying[name]
        while True:
            code = process.poll()
            # Lines are wrapped for the terminal.
            said = " ".join(log.read_text(encoding="utf-8").split())
            found = re.search(pattern, said) if pattern else None
            if found is not None or (code == 0 and not pattern):
                return found[found.lastindex or 0] if found is not None else ""
            if code is not None:
                raise EnvironmentFault("demo-command", command=f"({name})", said=said[-2000:])
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def words_at(self, site: str) -> str:
        """What a site shows."""
        return self.wait_for(site, r"Your words: ((?:[a-z]+ ){3}[a-z]+)")

    def words_of(self, site: str) -> str:
        """What the coordinator shows for a site."""
        listed: Mapping[str, list[dict[str, str]]] = json.loads(self.type("study", "list", "--json", shows=False))
        return next(party["words"] for party in listed["parties"] if party["name"] == site)
