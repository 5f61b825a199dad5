"""A real Flower deployment on this machine: a SuperLink and SuperNodes as processes, with TLS and SuperNode keys."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from deploy.flower.keys import make_certificates, make_node_key
from hedgerow.errors import EnvironmentFault
from tests.ports import hold_port

CONNECTION = "deployment"
APP = Path(__file__).resolve().parents[2]
"""The repository: it is the Flower app."""
_POLLS = "0.5"
_PATIENCE = 1800.0
"""Seconds; it only bounds a run that fails."""
_LEAVING = 30.0
_CONFIG = """\
[superlink]
default = "{name}"
[superlink.{name}]
address = "127.0.0.1:{port}"
root-certificates = "{certificate}"
"""


def _flower_version() -> tuple[int, ...]:
    """Its first two numbers; none where it is not installed."""
    try:
        return tuple(int(number) for number in importlib.metadata.version("flwr").split(".")[:2])
    except importlib.metadata.PackageNotFoundError:
        return ()


FLOWER = _flower_version()


def why_not() -> str:
    """Why no deployment can be made here; empty when one can."""
    if importlib.util.find_spec("flwr") is None:
        return "flwr is not installed (the extra `flower`)"
    if not (APP / "flower_app.py").is_file() or not (APP / "pyproject.toml").is_file():
        return "the repository that is the Flower app is not here"
    return "" if program("flower-superlink").is_file() else "flwr's programs are not beside this interpreter"


def program(name: str) -> Path:
    """One of flwr's programs, of this interpreter's environment."""
    return Path(sys.executable).parent / name


class Process:
    """A program in a session of its own, whose output is read line by line into a file and a list."""

    def __init__(self, words: Sequence[str], environment: dict[str, str], log: Path, folder: Path) -> None:
        self._process = subprocess.Popen(
            list(words), env=environment, cwd=folder, text=True, start_new_session=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.log, self.lines = log, list[str]()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        stream = self._process.stdout
        if stream is None:
            return
        with self.log.open("a", encoding="utf-8") as log:
            for line in stream:
                self.lines.append(line)
                log.write(line)
                log.flush()

    def count(self, words: str) -> int:
        """Lines so far that hold the words."""
        return sum(words in line for line in self.lines)

    def wait_for(self, words: str, count: int = 1, patience: float = _PATIENCE) -> None:
        """Wait until so many lines hold the words; raises EnvironmentFault when the process ends before, or never."""
        deadline = time.monotonic() + patience
        while self.count(words) < count:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise EnvironmentFault(f"{self.log.name} never said {words!r}: {''.join(self.lines[-30:])}")
            time.sleep(0.05)

    def wait(self, patience: float) -> int:
        """The exit code; raises EnvironmentFault when it does not end."""
        try:
            return self._process.wait(patience)
        except subprocess.TimeoutExpired:
            raise EnvironmentFault(f"{self.log.name} does not end: {''.join(self.lines[-30:])}") from None

    def end(self, number: int = signal.SIGKILL) -> None:
        """End it and all that it started, as when its machine goes down; with another signal, ask it to end first."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if number != signal.SIGKILL:
                self._process.send_signal(number)
                self._process.wait(_LEAVING)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(timeout=5)
        if self._process.stdout is not None:
            self._process.stdout.close()


class Deployment:
    """A SuperLink with TLS and SuperNode authentication, and SuperNodes that are told which site they are.

    Args: folder: for keys, logs and the SuperLink's database; site_files: the `site.toml` of each site by its name;
        residents: sites whose node is a process of its own behind a socket.
    """

    def __init__(self, folder: Path, site_files: dict[str, Path], residents: Collection[str] = ()) -> None:
        self.folder, self.site_files = folder, dict(site_files)
        folder.mkdir(parents=True, exist_ok=True)
        self._held: list[socket.socket] = []
        self.port = self._hold_port()
        self._fleet_port, words = self._listening()
        self.database = folder / "superlink.db"
        make_certificates(folder)
        home = self._home("user")
        text = _CONFIG.format(name=CONNECTION, port=self.port, certificate=folder / "ca.pem")
        (home / "config.toml").write_text(text, encoding="utf-8")
        self.nodes: dict[str, Process] = {}
        self._runs: list[Process] = []
        # A socket's path may have a hundred letters only.
        self._sockets = Path(tempfile.mkdtemp(prefix="hedgerow-"))
        self._residents = [self._start_resident(site) for site in residents]
        self.superlink = self._start(
            "superlink", "flower-superlink", "--ssl-ca-certfile", "ca.pem", "--ssl-certfile", "server.pem",
            "--ssl-keyfile", "server.key", "--enable-supernode-auth", "--disable-runtime-dependency-installation",
            "--database", str(self.database), *words,
        )  # fmt: skip
        self._wait_until_it_listens()
        for site in site_files:
            make_node_key(folder, site)
            register = self._start("user", "flwr", "supernode", "register", f"{site}.pub", CONNECTION)
            if register.wait(_PATIENCE) != 0:
                raise EnvironmentFault(f"{site} could not be registered: {''.join(register.lines)}")
            register.end()
        for resident in self._residents:
            resident.wait_for("Listening at")

    def _start_resident(self, site: str) -> Process:
        place = self._sockets / site
        words = ("hedgerow", "resident-node", str(self.site_files[site]), "--socket", str(place))
        self.site_files[site] = place
        return self._start(f"{site}-resident", *words)

    def start_node(self, site: str) -> None:
        """Start a site's SuperNode."""
        self.nodes[site] = self._start(
            site, "flower-supernode", "--root-certificates", "ca.pem", "--superlink", f"127.0.0.1:{self._fleet_port}",
            "--auth-supernode-private-key", site, *self._own_address(),
            "--node-config", f'hedgerow-site="{self.site_files[site]}"',
        )  # fmt: skip

    def end_node(self, site: str) -> None:
        """End a SuperNode in order, for good or for a while. One that is killed is not let in for a minute."""
        self.nodes[site].end(signal.SIGTERM)

    def run(self, coordinator: Path) -> Process:
        """`flwr run` of the repository with a coordinator's file, and its log as it grows."""
        config = f'coordinator="{coordinator}"'
        run = self._start("user", "flwr", "run", str(APP), CONNECTION, "--run-config", config, "--stream")
        self._runs.append(run)
        return run

    def close(self) -> None:
        """End everything."""
        for process in (*self._runs, *self.nodes.values(), *self._residents, self.superlink):
            process.end()
        for held in self._held:
            held.close()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, party: str, name: str, *words: str) -> Process:
        environment = {
            **os.environ,
            "PATH": f"{program(name).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(self._home(party)),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            # How often a SuperNode looks whether there is a process to start: 1 s by default. Each look costs the
            # SuperLink some 4 ms of processor time, and there are as many who look as nodes, and one more.
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": _POLLS,
            "NUMBA_NUM_THREADS": "1",
            "COLUMNS": "250",
            "no_proxy": "127.0.0.1",
        }
        return Process([str(program(name)), *words], environment, self.folder / f"{party}.log", self.folder)

    def _home(self, party: str) -> Path:
        home = self.folder / f"home-{party}"
        home.mkdir(exist_ok=True)
        return home

    def _wait_until_it_listens(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        context = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 5) as plain:
                    with context.wrap_socket(plain, server_hostname="127.0.0.1"):
                        return
            except OSError:
                if time.monotonic() > deadline:
                    raise EnvironmentFault(f"The SuperLink does not listen: {self.superlink.lines[-20:]}") from None
                time.sleep(0.2)

    def _hold_port(self) -> int:
        held, address = hold_port()
        self._held.append(held)
        return int(address.rpartition(":")[2])

    def _listening(self) -> tuple[int, list[str]]:
        """Where SuperNodes find a SuperLink that `flwr` finds at its port, and the options that make it listen there.

        Flower has moved its interfaces to one port step by step.
        """
        if FLOWER >= (1, 40):
            return self.port, ["--host", "127.0.0.1", "--port", str(self.port)]
        fleet, runtime = self._hold_port(), self._hold_port()
        words = ["--fleet-api-address", f"127.0.0.1:{fleet}"]
        if FLOWER >= (1, 37):
            return fleet, [*words, "--host", "127.0.0.1", "--port", str(self.port)]
        words += ["--control-api-address", f"127.0.0.1:{self.port}"]
        if FLOWER >= (1, 36):
            return fleet, [*words, "--host", "127.0.0.1", "--port", str(runtime)]
        return fleet, [*words, "--serverappio-api-address", f"127.0.0.1:{runtime}"]

    def _own_address(self) -> list[str]:
        """Where a SuperNode's processes find it."""
        if FLOWER >= (1, 36):
            return ["--host", "127.0.0.1", "--port", str(self._hold_port())]
        return ["--clientappio-api-address", f"127.0.0.1:{self._hold_port()}"]
