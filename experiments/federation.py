"""Federations over the engine `grpc` on this machine: real sockets, TLS, masks, stores and journals on loopback.

The coordinator is in this process. Nodes are ``hedgerow node`` processes, or several share a process (`be_crowd`), or
they are threads beside the coordinator (`Loopback`). Sessions, stores and links are the same in all three.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from experiments.datasets import Table
from hedgerow.app.coordinator import build_model
from hedgerow.app.environments import make_keys as make_keys_in
from hedgerow.app.environments import start_node
from hedgerow.app.inputs import read_plan, read_policy, signing_key, signing_roster
from hedgerow.client.budget import BudgetBook
from hedgerow.client.node import warm_up
from hedgerow.client.node_session import NodeSession, run_node
from hedgerow.client.policy import Policy
from hedgerow.client.setup import NodeSetup
from hedgerow.client.state import NodeStore
from hedgerow.data.binned import SiteData
from hedgerow.data.site_data import read_site_data
from hedgerow.errors import EnvironmentFault
from hedgerow.local.training import train
from hedgerow.methods.replica import rehearse
from hedgerow.methods.tasks import TrainingTask
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.plan.toml import plan_toml
from hedgerow.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from hedgerow.privacy.statement import NETWORK
from hedgerow.protocol.messages import RunState
from hedgerow.server.coordinator import RunEvent, RunEventKind, RunSession, RunSetup, conclude, run_coordinator
from hedgerow.server.journal import Journal
from hedgerow.transport import identities
from hedgerow.transport.grpc_hub import GrpcHub
from hedgerow.transport.grpc_link import GrpcUplink, LinkSettings
from hedgerow.transport.identities import PRIVATE_SUFFIX, PinnedRoster, PrivateIdentity, Role
from hedgerow.transport.interface import Address, Hub, Traffic

SETTINGS = LinkSettings(http_proxy=False)
SEED = 1
_POLICY = 'version = 1\ndata_set = "experiment"\nmax_epsilon = 100.0\ndelta = 1e-6\nnoise = ["server"]\n'
_LEAVING_SECONDS = 60.0
_CROWD_PATIENCE, _LOOPBACK_PATIENCE = 600.0, 120.0
_TURNS = threading.Semaphore(2)
"""One node of a process computes while another waits for the disk."""


# What the parties need -------------------------------------------------------------------------------------------


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


def make_keys(folder: Path, n_sites: int) -> Sites:
    """Identities, roster and policy of so many sites."""
    names = tuple(f"site-{number:03}" for number in range(n_sites))
    coordinator, pinned = make_keys_in(folder, dict.fromkeys(names, folder))
    (folder / "policy.toml").write_text(_POLICY, encoding="utf-8")
    return Sites(folder, coordinator, pinned, names)


def make_sites(folder: Path, table: Table, n_sites: int) -> Sites:
    """As `make_keys`, with a table's rows dealt out to the sites."""
    sites, frame = make_keys(folder, n_sites), table.frame("")
    frame[table.label_section["name"]] = table.label
    for number, name in enumerate(sites.names):
        frame.iloc[number::n_sites].to_csv(sites.table(name), index=False)
    return sites


def local_model(tables: Mapping[str, Path], plan: Plan) -> bytes:
    """The model file that the engine `local` makes of the sites' tables, with the same seeded noise."""
    rows = {name: read_site_data(str(table), plan)[0] for name, table in tables.items()}
    return train(plan, rows, noise=SeededNoise(SEED)).to_bytes()


# A coordinator that is watched -----------------------------------------------------------------------------------


@dataclass
class Timeline:
    """When what happened, in seconds of a clock that never goes back; an observer for `RunSetup`.

    Attributes:
        n_sites: how many have to join.
        on_all_joined, on_asked: called when all have, and before the nodes are first asked for something in a round.
        asked: when the nodes were asked for something in a round: vectors, then shares; and when all was over.
        phases: code words of all phases but the last.
    """

    n_sites: int
    on_all_joined: Callable[[], None] = field(default=lambda: None)
    on_asked: Callable[[], None] = field(default=lambda: None)
    joined: dict[str, float] = field(default_factory=dict)
    ready: dict[str, float] = field(default_factory=dict)
    released: list[float] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    n_silent: int = 0
    n_left: int = 0
    finishing: float = 0.0

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
        elif event.kind is RunEventKind.PHASE and event.code != RunState.OVER:
            self._enter(event.code, now)
        elif event.kind is RunEventKind.SILENT:
            self.n_silent += 1
        elif event.kind is RunEventKind.LEFT and not self.finishing:
            self.n_left += 1

    def _enter(self, phase: str, now: float) -> None:
        self.phases.append(phase)
        if phase == "finishing":
            self.finishing = now
        elif not phase.startswith("collecting-"):
            return
        if not self.asked or self.finishing:
            # What the hook does takes time; the first exchange, the longest anyway, bears it.
            self.on_asked()
        self.asked.append(now)

    @property
    def n_exchanges(self) -> int:
        """Messages to the nodes in rounds that were answered."""
        return len(self.asked) - bool(self.finishing)


def coordinate(
    hub: Hub,
    keys: tuple[PrivateIdentity, PinnedRoster],
    plan: Plan,
    noise: NoiseSource,
    journal: Path,
    watch: Timeline,
    check: Callable[[], object] = lambda: None,
) -> tuple[Model, RunSession]:
    """The model of a plan that is run over what joins a hub; raises HedgerowError where the run is given up.

    Args: check: is called every few seconds; what it raises ends the run.
    """
    with closing(Journal(journal)) as kept:
        setup = RunSetup(TrainingTask(plan), signing_roster(keys[1]), signing_key(keys[0]), noise, os.urandom, watch)
        session = RunSession(setup, kept)
        rehearse(session.run.task.with_structure_seed(0))
        run_coordinator(session, hub, plan.federation, time.monotonic, lambda *_: check())
        return build_model(conclude(session.run), session, NETWORK).made(""), session


# Nodes -----------------------------------------------------------------------------------------------------------


class _InTurn(NodeSession):
    """A node that shares its process: fifty that were asked at once would hand one interpreter's lock around among
    them, which is work that no node has on a machine of its own.
    """

    def receive(self, data: bytes) -> list[bytes]:
        with _TURNS:
            return super().receive(data)


@dataclass(frozen=True)
class Site:
    """A node's keys, and what its owner agreed to."""

    name: str
    identity: PrivateIdentity
    pinned: PinnedRoster
    policy: Policy
    settings: LinkSettings = SETTINGS
    patience: float = _CROWD_PATIENCE

    def be(self, plan: Plan, rows: SiteData, noise: NoiseSource, folder: Path, address: str) -> None:
        """Be this site's node until its run is over."""
        keys = signing_key(self.identity), signing_roster(self.pinned)
        setup = NodeSetup(self.name, *keys, self.policy, os.urandom, noise, lambda _: rows, plan)
        with closing(NodeStore(folder)) as store, closing(BudgetBook(folder / "budget.db")) as book:
            uplink = GrpcUplink(address, self.identity, self.pinned, random.random, settings=self.settings)
            with closing(uplink):
                run_node(_InTurn(setup, store, book), uplink, time.monotonic, self.patience)


def start_nodes(sites: Sites, address: Address, state: Path, plan: Path) -> list[subprocess.Popen[bytes]]:
    """One ``hedgerow node`` process per site, each with the plan that its owner agreed to."""
    common = ["--roster", str(sites.folder / "roster.toml"), "--policy", str(sites.folder / "policy.toml")]
    common += ["--plan", str(plan), "--connect", str(address)]

    def start(name: str) -> subprocess.Popen[bytes]:
        identity = str(sites.folder / f"{name}{PRIVATE_SUFFIX}")
        own = [str(sites.table(name)), "--identity", identity, "--state", str(state / name)]
        return start_node([*own, *common, "--threads", "1", "--json"], state / f"{name}.log")

    return [start(name) for name in sites.names]


def start_process(words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """A process of this interpreter that writes what it says to a file; it dials no proxy."""
    environment = {**os.environ, "no_proxy": "127.0.0.1,localhost", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        return subprocess.Popen([sys.executable, *words], stdout=output, stderr=subprocess.STDOUT, env=environment)


def start_crowd(
    per_process: int, sites: Sites, address: Address, state: Path, plan: Path
) -> list[subprocess.Popen[bytes]]:
    """Nodes, so many to a process: two hundred starts of Python would measure nothing but that."""
    words = ["-m", "experiments", "network", "--be", "crowd", str(sites.folder), str(state), str(plan), str(address)]
    return [
        start_process([*words, ",".join(sites.names[start : start + per_process])], state / f"crowd-{start:03}.log")
        for start in range(0, len(sites.names), per_process)
    ]


def be_crowd(sites: str, state: str, plan_file: str, address: str, names: str) -> int:
    """Be several nodes until their run is over; 1 when one of them fails."""
    folder, plan = Path(sites), read_plan(plan_file)
    warm_up(plan)
    pinned, policy = identities.read_roster(folder / "roster.toml"), read_policy(str(folder / "policy.toml"))
    failed: list[str] = []

    def be_one(numbered: tuple[int, str]) -> None:
        number, name = numbered
        # Real sites begin apart; a thousand handshakes at once would only wait for two processors.
        time.sleep(number * len(pinned.sites) / 1000)
        site = Site(name, identities.read_private(folder / f"{name}{PRIVATE_SUFFIX}"), pinned, policy)
        rows = read_site_data(str(folder / f"{name}.csv"), plan)[0]
        try:
            site.be(plan, rows, SystemNoise(os.urandom), Path(state) / name, address)
        except Exception as fault:
            failed.append(name)
            print(f"{name}: {fault}", file=sys.stderr, flush=True)

    in_threads(be_one, list(enumerate(names.split(","))))
    return 1 if failed else 0


def in_threads(act: Callable[[Any], None], arguments: Sequence[Any]) -> None:
    """Call it with each argument in a thread of its own, and wait for all."""
    with ThreadPoolExecutor(len(arguments)) as threads:
        list(threads.map(act, arguments))


# Nodes as processes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """One run: seconds are wall clock; `cpu_*` are of processors, from the last join to the end.

    An exchange is a message to the nodes, their answers, and all that the coordinator does until it sends the next one;
    a round has two: all nodes are asked for their vectors, then as many as are needed for shares
    (docs/secure-aggregation.md). A round is from one release to the next, `cpu_round` is what all parties together
    spend on one; it depends less on what else runs.
    """

    model: bytes
    timeline: Timeline
    to_model: float
    training: float
    cpu_coordinator: float
    cpu_nodes: float
    cpu_round: float
    sent_per_node: float
    received_per_node: float
    least_survivors: int


StartNodes = Callable[[Sites, Address, Path, Path], Sequence[subprocess.Popen[bytes]]]


def run_federation(sites: Sites, plan: Plan, start: StartNodes) -> Measured:
    """Run a plan over processes that `start` makes.

    Raises:
        HedgerowError: why the run was given up.
        EnvironmentFault: a node's process ended otherwise than well.
    """
    state = sites.folder / f"run-{time.monotonic_ns()}"
    state.mkdir()
    plan_file = state / "plan.toml"
    plan_file.write_text(plan_toml(plan), encoding="utf-8")
    processes: list[subprocess.Popen[bytes]] = []
    before, asked = [0.0, 0.0], list[float]()

    def all_joined() -> None:
        before[:] = time.process_time(), sum(map(_cpu_of, processes))

    timeline = Timeline(
        len(sites.names), all_joined, lambda: asked.append(time.process_time() + sum(map(_cpu_of, processes)))
    )
    hub = GrpcHub(sites.coordinator, sites.pinned, Address(), settings=SETTINGS)
    children_before = _cpu_of_children()

    def check() -> None:
        _require_success([process.poll() for process in processes])

    try:
        processes.extend(start(sites, Address("127.0.0.1", hub.port), state, plan_file))
        keys, journal = (sites.coordinator, sites.pinned), state / "journal.db"
        model, session = coordinate(hub, keys, plan, SeededNoise(SEED), journal, timeline, check)
        ended, cpu = timeline.finishing or time.perf_counter(), time.process_time() - before[0]
        traffic = hub.traffic()
    finally:
        hub.close()
        codes = [_end(process) for process in processes]
    _require_success(codes)
    n_sites = len(sites.names)
    return Measured(
        model.to_bytes(),
        timeline,
        ended - max(timeline.joined.values()),
        ended - max(timeline.ready.values()),
        cpu,
        _cpu_of_children() - children_before - before[1],
        (asked[-1] - asked[0]) / max(1, len(timeline.released)) if asked else 0.0,
        traffic.received / n_sites,
        traffic.sent / n_sites,
        min(map(len, session.run.survivors)),
    )


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


def _cpu_of(process: subprocess.Popen[bytes]) -> float:
    """Processor seconds of a process until now; 0 where the system does not tell."""
    try:
        words = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


# Nodes as threads ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoopbackRun:
    """What one run made and took.

    Attributes:
        set_up: bytes until the first round was asked for: joining, the plan, keys for the masks.
        rounds: bytes from then on, as the coordinator's hub counts them.
        n_rounds: releases.
        numbers: integers in the vectors of one node, as the ledger has them.
        n_exchanges: messages to every node that were answered, from the first round on: two a round, with masks.
        cpu_node: processor seconds of one node's thread, on average; the wire's are gRPC's own threads'.
        cpu_coordinator: processor seconds of the coordinator.
    """

    model: bytes
    set_up: Traffic
    rounds: Traffic
    n_rounds: int
    numbers: int
    n_exchanges: int
    cpu_node: float
    cpu_coordinator: float


class Loopback:
    """Identities of a coordinator and three or more sites, for any number of runs in this process.

    Every node runs in a thread of its own, so that what it spends can be told from what the others do. The folder, for
    journals and stores, is empty before, and the caller removes it.

    Attributes:
        roster: the parties of every run.
    """

    SETTINGS = LinkSettings(backoff_seconds=0.05, http_proxy=False)
    NOISE = ("server", "distributed", "local")
    POLICY = Policy(version=1, data_set="loopback", max_epsilon=float("inf"), delta=1e-6, noise=NOISE)

    def __init__(self, n_sites: int, folder: Path) -> None:
        self.names = tuple(f"site-{number:03}" for number in range(n_sites))
        coordinator = identities.new_identity("coordinator", Role.COORDINATOR, os.urandom(32))
        keys = {name: identities.new_identity(name, Role.SITE, os.urandom(32)) for name in self.names}
        self.roster = pinned = identities.build_roster(coordinator.public, [key.public for key in keys.values()])
        self._keys = coordinator, pinned
        self._sites = [
            Site(name, key, pinned, self.POLICY, self.SETTINGS, _LOOPBACK_PATIENCE) for name, key in keys.items()
        ]
        self._folder = folder
        self._n_runs = 0

    def run(self, plan: Plan, data: Mapping[str, SiteData], noise: NoiseSource) -> LoopbackRun:
        """Train one model over all sites, whose rows come by their names; one noise for coordinator and nodes.

        Raises:
            EnvironmentFault: a node did not end well.
            HedgerowError: why the coordinator gave the run up.
        """
        self._n_runs += 1
        folder = self._folder / f"run-{self._n_runs}"
        folder.mkdir()
        with closing(GrpcHub(*self._keys, Address(), settings=self.SETTINGS)) as hub:
            before: list[Traffic] = []
            watch = Timeline(len(self.names), on_asked=lambda: before.append(hub.traffic()))
            address = f"127.0.0.1:{hub.port}"
            threads, nodes = ThreadPoolExecutor(len(self._sites)), {}
            for site in self._sites:
                be = partial(site.be, plan, data[site.name], noise, folder / site.name, address)
                nodes[site.name] = threads.submit(_timed, be)
            run = partial(coordinate, hub, self._keys, plan, noise, folder / "journal.db", watch)
            (model, _), spent = _timed(run)
            cpu_node = sum(_spent_by(name, node) for name, node in nodes.items()) / len(nodes)
            total = hub.traffic()
        rounds = Traffic(total.sent - before[0].sent, total.received - before[0].received)
        numbers = sum(release.length for release in model.ledger)
        n_rounds = len(watch.released)
        return LoopbackRun(model.to_bytes(), before[0], rounds, n_rounds, numbers, watch.n_exchanges, cpu_node, spent)


T = TypeVar("T")


def _timed(act: Callable[[], T]) -> tuple[T, float]:
    """What it gives, and the processor seconds of this thread for it."""
    began = time.thread_time()
    return act(), time.thread_time() - began


def _spent_by(name: str, node: Future[tuple[None, float]]) -> float:
    """What a node's thread spent; raises EnvironmentFault unless it has ended well."""
    try:
        return node.result(_LOOPBACK_PATIENCE)[1]
    except Exception as fault:
        raise EnvironmentFault(
            f"The node {name} did not end well: {str(fault) or 'it still runs'}.",
            cause="It refused the run, or the machine is too busy.",
            remedy="Run it again on a machine that does less.",
            code="network-experiment",
        ) from fault
