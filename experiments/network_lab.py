"""Federations on one machine: a folder with everything ten sites need, their processes, and a watched coordinator."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd

from experiments.datasets import Table
from hedgerow.cli.federation_inputs import signing_key, signing_roster
from hedgerow.data.site_data import read_site_data
from hedgerow.errors import EnvironmentFault
from hedgerow.local.training import train
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.server.events import RunEvent, RunEventKind
from hedgerow.server.journal import Journal
from hedgerow.server.run import run_coordinator
from hedgerow.server.run_setup import RunSetup
from hedgerow.server.session import RunSession
from hedgerow.transport.grpc_core import LinkSettings
from hedgerow.transport.grpc_hub import GrpcHub, HubAddress
from hedgerow.transport.identity import PrivateIdentity, Role
from hedgerow.transport.identity_files import PRIVATE_SUFFIX, create_identity
from hedgerow.transport.interface import HubEvent
from hedgerow.transport.roster_file import PinnedRoster, build_roster

SETTINGS = LinkSettings(http_proxy=False)
SEED = 1
_POLICY = 'version = 1\ndata_set = "experiment"\nmax_epsilon = 100.0\ndelta = 1e-6\nnoise = ["server"]\n'
_LEAVING_SECONDS = 60.0


@dataclass(frozen=True)
class Sites:
    """A folder with identities, a roster, a policy and one CSV per site."""

    folder: Path
    coordinator: PrivateIdentity
    pinned: PinnedRoster
    names: tuple[str, ...]

    def table(self, name: str) -> Path:
        """A site's rows."""
        return self.folder / f"{name}.csv"


def make_sites(folder: Path, table: Table, n_sites: int) -> Sites:
    """Deal a table's rows out to so many sites, and write what each of them needs."""
    folder.mkdir(parents=True, exist_ok=True)
    coordinator = create_identity(folder, "coordinator", Role.COORDINATOR)[0]
    names = tuple(f"site-{number:03}" for number in range(n_sites))
    identities = [create_identity(folder, name, Role.SITE)[0] for name in names]
    pinned = build_roster(coordinator.public, [identity.public for identity in identities])
    (folder / "roster.toml").write_text(pinned.to_toml(), encoding="utf-8")
    (folder / "policy.toml").write_text(_POLICY, encoding="utf-8")
    frame = _frame_of(table)
    sites = Sites(folder, coordinator, pinned, names)
    for number, name in enumerate(names):
        frame.iloc[number::n_sites].to_csv(sites.table(name), index=False)
    return sites


def _frame_of(table: Table) -> pd.DataFrame:
    columns: dict[str, Any] = {}
    for feature, values in zip(table.features, table.columns, strict=True):
        if feature["type"] == "categorical":
            values = np.array([*feature["categories"], ""], dtype=object)[values]
        columns[feature["name"]] = values
    columns[table.label_section["name"]] = table.label
    return pd.DataFrame(columns)


def plan_text(plan: Plan) -> str:
    """A plan as its TOML file; JSON's texts, numbers and lists of texts are TOML's as well."""
    table = plan.to_dict()
    lines = [f"version = {table['version']}", f"name = {json.dumps(table['name'])}"]
    for name in ("model", "privacy", "label", "federation"):
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table[name].items())]
    for feature in table["features"]:
        lines += ["[[features]]", *(f"{key} = {json.dumps(value)}" for key, value in feature.items())]
    return "\n".join(lines) + "\n"


def local_model(sites: Sites, plan: Plan) -> bytes:
    """The model file that the engine `local` makes of the same tables, with the same seeded noise."""
    rows = {name: read_site_data(str(sites.table(name)), plan)[0] for name in sites.names}
    return train(plan, rows, noise=SeededNoise(SEED)).to_bytes()


@dataclass
class Timeline:
    """When what happened, in seconds of a clock that never goes back; an observer for `RunSetup`."""

    n_sites: int
    on_all_joined: Callable[[], None] = field(default=lambda: None)
    cpu_so_far: Callable[[], float] = field(default=lambda: 0.0)
    joined: dict[str, float] = field(default_factory=dict)
    ready: dict[str, float] = field(default_factory=dict)
    released: list[float] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    """When the nodes were asked for something in a round: vectors, then shares; and when all was over."""
    n_silent: int = 0
    n_left: int = 0
    refused: list[str] = field(default_factory=list)
    finishing: float = 0.0
    cpu_at_first: float = 0.0
    cpu_at_end: float = 0.0

    def __call__(self, event: RunEvent) -> None:
        now = time.perf_counter()
        if event.kind is RunEventKind.JOINED and event.site not in self.joined:
            self.joined[event.site] = now
            if len(self.joined) == self.n_sites:
                self.on_all_joined()
        elif event.kind is RunEventKind.READY:
            self.ready.setdefault(event.site, now)
        elif event.kind is RunEventKind.RELEASED:
            self.released.append(now)
        elif event.kind is RunEventKind.PHASE and event.code == "finishing":
            self.asked.append(now)
            self.finishing, self.cpu_at_end = now, self.cpu_so_far()
        elif event.kind is RunEventKind.PHASE and event.code.startswith("collecting-"):
            self.asked.append(now)
            if len(self.asked) == 1:
                # To ask what ten processes have used takes time; the first exchange, the longest anyway, bears it.
                self.cpu_at_first = self.cpu_so_far()
        elif event.kind is RunEventKind.SILENT:
            self.n_silent += 1
        elif event.kind is RunEventKind.LEFT and not self.finishing:
            self.n_left += 1
        elif event.kind is RunEventKind.REFUSED:
            self.refused.append(f"{event.site}: {event.code}")


@dataclass(frozen=True)
class Measured:
    """One run: seconds are wall clock; `cpu_*` are of processors, from the last join to the end.

    An exchange is a message to the nodes, their answers, and all that the coordinator does until it sends the next one;
    a round has two: all nodes are asked for their vectors, then as many as are needed for shares
    (docs/secure-aggregation.md). `rounds` are from one release to the next, `cpu_round` is what all
    parties together spend on one; it depends less on what else runs.
    """

    model: bytes
    timeline: Timeline
    to_model: float
    training: float
    exchanges: tuple[float, ...]
    rounds: tuple[float, ...]
    cpu_coordinator: float
    cpu_nodes: float
    cpu_round: float
    sent_per_node: float
    received_per_node: float
    least_survivors: int


StartNodes = Callable[[Sites, HubAddress, Path, Path], Sequence[subprocess.Popen[bytes]]]
Profiled = Callable[[Callable[[], Any]], Any]


def run_federation(
    sites: Sites, plan: Plan, start: StartNodes, address: HubAddress, profiled: Profiled = lambda work: work()
) -> Measured:
    """Run a plan over processes that `start` makes; the coordinator is in this process, with a journal on the disk.

    Raises:
        HedgerowError: why the run was given up.
        EnvironmentFault: a node's process ended otherwise than well.
    """
    state = sites.folder / f"run-{time.monotonic_ns()}"
    state.mkdir()
    plan_file = state / "plan.toml"
    plan_file.write_text(plan_text(plan), encoding="utf-8")
    before = [0.0, 0.0]
    processes: list[subprocess.Popen[bytes]] = []

    def all_joined() -> None:
        before[0], before[1] = time.process_time(), sum(map(_cpu_so_far, processes))

    timeline = Timeline(
        len(sites.names), all_joined, lambda: time.process_time() + sum(map(_cpu_so_far, processes))
    )
    journal = Journal(state / "journal.db")
    keys = (signing_roster(sites.pinned), signing_key(sites.coordinator))
    setup = RunSetup(plan, *keys, SeededNoise(SEED), os.urandom, timeline)
    session = RunSession(setup, journal)
    hub = GrpcHub(sites.coordinator, sites.pinned, address, settings=SETTINGS)
    children_before = _cpu_of_children()
    try:
        processes.extend(start(sites, HubAddress(address.host, hub.port), state, plan_file))
        watched = _Watched(hub, processes)
        outcome = profiled(lambda: run_coordinator(session, watched, plan.federation, time.monotonic))
        ended, cpu = time.perf_counter(), time.process_time() - before[0]
        traffic = hub.traffic()
    finally:
        hub.close()
        journal.close()
        codes = [_end(process) for process in processes]
    _require_success(codes)
    model = Model(outcome.plan, outcome.ensemble, outcome.ledger, outcome.report).to_bytes()
    all_at, ready_at, n_sites = max(timeline.joined.values()), max(timeline.ready.values()), len(sites.names)
    return Measured(
        model,
        timeline,
        (timeline.finishing or ended) - all_at,
        (timeline.finishing or ended) - ready_at,
        tuple(np.diff(timeline.asked).tolist()),
        tuple(np.diff(timeline.released).tolist()),
        cpu,
        _cpu_of_children() - children_before - before[1],
        (timeline.cpu_at_end - timeline.cpu_at_first) / max(1, len(timeline.released)),
        traffic.received / n_sites,
        traffic.sent / n_sites,
        min(map(len, session.survivors)),
    )


@dataclass(frozen=True)
class _Watched:
    """A hub that gives up when a node's process has failed, rather than wait for it as long as the plan allows."""

    hub: GrpcHub
    processes: Sequence[subprocess.Popen[bytes]]

    def send(self, site: str, message: bytes) -> bool:
        """See `Hub.send`."""
        return self.hub.send(site, message)

    def receive(self, timeout: float) -> HubEvent | None:
        """See `Hub.receive`; raises EnvironmentFault."""
        event = self.hub.receive(min(timeout, 1.0))
        if event is None:
            _require_success([process.poll() for process in self.processes])
        return event

    def close(self) -> None:
        """See `Hub.close`."""
        self.hub.close()


def start_nodes(sites: Sites, address: HubAddress, state: Path, plan: Path) -> list[subprocess.Popen[bytes]]:
    """One ``hedgerow node`` process per site, each with the plan that its owner agreed to."""
    processes = []
    for name in sites.names:
        command = [
            sys.executable, "-m", "hedgerow.cli.main", "node", str(sites.table(name)),
            "--roster", str(sites.folder / "roster.toml"), "--policy", str(sites.folder / "policy.toml"),
            "--identity", str(sites.folder / f"{name}{PRIVATE_SUFFIX}"), "--state", str(state / name),
            "--connect", str(address), "--plan", str(plan), "--threads", "1", "--json",
        ]  # fmt: skip
        processes.append(start_process(command, state / f"{name}.log"))
    return processes


def start_process(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """A process of its own that writes what it says to a file; it dials no proxy."""
    environment = {**os.environ, "no_proxy": "127.0.0.1,localhost", "OMP_NUM_THREADS": "1"}
    output: IO[bytes]
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)


def _require_success(codes: Sequence[int | None]) -> None:
    if any(codes):
        raise EnvironmentFault(
            f"{sum(map(bool, codes))} of {len(codes)} node processes failed.",
            remedy="Run it again with --keep FOLDER and read the files *.log there.",
            code="network-experiment",
        )


def _end(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(_LEAVING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait() or 1


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _cpu_so_far(process: subprocess.Popen[bytes]) -> float:
    """Processor seconds of a process until now; 0 where the system does not tell."""
    try:
        words = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def describe(measured: Measured) -> dict[str, str]:
    """The numbers of one run, as lines."""
    exchanges = np.array(measured.exchanges or (np.nan,)) * 1000
    median, late = np.quantile(exchanges, [0.5, 0.99])
    rounds, timeline = np.array(measured.rounds or (np.nan,)) * 1000, measured.timeline
    return {
        "from all joined to the model": f"{measured.to_model:.2f} s",
        "from all ready to the model": f"{measured.training:.2f} s, with the set-up of the masks",
        "one exchange": f"median {median:.1f} ms, 99 % {late:.1f} ms; {len(exchanges)} exchanges",
        "one round": f"median {np.median(rounds):.1f} ms, two exchanges each; {len(timeline.released)} rounds",
        "processor time": f"coordinator {measured.cpu_coordinator:.2f} s, all nodes {measured.cpu_nodes:.2f} s; a "
        f"round {1000 * measured.cpu_round:.1f} ms of all together",
        "bytes per node": f"{measured.sent_per_node:,.0f} sent, {measured.received_per_node:,.0f} received",
        "smallest sum": f"over {measured.least_survivors} of {timeline.n_sites} sites; "
        f"{timeline.n_silent} times silent, {timeline.n_left} times disconnected",
    }


def to_json(title: str, measured: Measured, *, is_same: bool | None) -> str:
    """One line for machines."""
    content = {
        "run": title,
        "seconds_to_model": measured.to_model,
        "median_exchange_seconds": float(np.median(measured.exchanges or (np.nan,))),
        "bytes_sent_per_node": measured.sent_per_node,
        "bytes_received_per_node": measured.received_per_node,
        "cpu_coordinator": measured.cpu_coordinator,
        "cpu_nodes": measured.cpu_nodes,
        "cpu_round": measured.cpu_round,
        "equals_local": is_same,
    }
    return json.dumps(content)
