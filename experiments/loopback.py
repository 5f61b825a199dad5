"""A federation over the engine `grpc` within one process: real sockets, TLS, masks, stores and journal on loopback.

Every node runs in a thread of its own, so that what it spends can be told from what the others do: its processor time
without that of the wire, which gRPC's own threads carry. Bytes are those of the frames that the coordinator's hub has
sent and received, counted there.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from hedgerow.cli.federation_inputs import signing_key, signing_roster
from hedgerow.client.budget import BudgetBook
from hedgerow.client.node_run import NodeSetup
from hedgerow.client.policy import Policy
from hedgerow.client.run import run_node
from hedgerow.client.session import NodeSession
from hedgerow.client.store import NodeStore
from hedgerow.data.site_data import SiteData
from hedgerow.errors import EnvironmentFault
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import NoiseSource
from hedgerow.server.events import RunEvent, RunEventKind
from hedgerow.server.journal import Journal
from hedgerow.server.run import run_coordinator
from hedgerow.server.run_setup import RunSetup
from hedgerow.server.session import RunSession
from hedgerow.transport.grpc_core import LinkSettings
from hedgerow.transport.grpc_hub import GrpcHub, HubAddress
from hedgerow.transport.grpc_link import Traffic
from hedgerow.transport.grpc_uplink import GrpcUplink
from hedgerow.transport.identity import Role, new_identity
from hedgerow.transport.roster_file import build_roster

SETTINGS = LinkSettings(backoff_seconds=0.05, http_proxy=False)
NOISE = ("server", "distributed", "local")
POLICY = Policy(version=1, data_set="loopback", max_epsilon=float("inf"), delta=1e-6, noise=NOISE)
_PATIENCE = 120.0


@dataclass(frozen=True)
class LoopbackRun:
    """What one run made and took.

    Attributes:
        model: the model file.
        set_up: bytes until the first round was asked for: joining, the plan, keys for the masks.
        rounds: bytes from then on.
        n_rounds: releases.
        numbers: integers in the vectors of one node, as the ledger has them.
        n_exchanges: messages to every node that were answered, from the first round on: two a round, with masks.
        cpu_node: processor seconds of one node, on average.
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
    """Identities of a coordinator and so many sites, for any number of runs.

    Args:
        n_sites: three or more, so that masks have something to hide.
        folder: an empty folder for journals and stores; the caller removes it.
    """

    def __init__(self, n_sites: int, folder: Path) -> None:
        self.names = tuple(f"site-{number:03}" for number in range(n_sites))
        self._coordinator = new_identity("coordinator", Role.COORDINATOR, os.urandom(32))
        self._keys = {name: new_identity(name, Role.SITE, os.urandom(32)) for name in self.names}
        self._pinned = build_roster(self._coordinator.public, [key.public for key in self._keys.values()])
        self._roster = signing_roster(self._pinned)
        self._folder = folder
        self._n_runs = 0

    def run(self, plan: Plan, data: Mapping[str, SiteData], noise: NoiseSource) -> LoopbackRun:
        """Train one model over all sites.

        Args: data: each site's rows by its name; noise: of the coordinator and of the nodes.
        Raises EnvironmentFault when a node did not end well, and what the coordinator raises.
        """
        self._n_runs += 1
        folder = self._folder / f"run-{self._n_runs}"
        folder.mkdir()
        hub = GrpcHub(self._coordinator, self._pinned, HubAddress(), settings=SETTINGS)
        nodes = [_Node(self, name, (plan, data[name]), noise, folder / name, hub.port) for name in self.names]
        watch = _Watch(hub)
        journal = Journal(folder / "journal.db")
        try:
            for node in nodes:
                node.start()
            began = time.thread_time()
            setup = RunSetup(plan, self._roster, signing_key(self._coordinator), noise, os.urandom, watch)
            outcome = run_coordinator(RunSession(setup, journal), hub, plan.federation, time.monotonic)
            spent = time.thread_time() - began
            for node in nodes:
                node.join(_PATIENCE)
            total = hub.traffic()
        finally:
            hub.close()
            journal.close()
        _require_success(nodes)
        model = Model(outcome.plan, outcome.ensemble, outcome.ledger, outcome.report).to_bytes()
        before = watch.before_rounds
        rounds = Traffic(total.sent - before.sent, total.received - before.received)
        cpu_node = sum(node.cpu for node in nodes) / len(nodes)
        numbers = sum(release.length for release in outcome.ledger)
        return LoopbackRun(model, before, rounds, watch.n_rounds, numbers, watch.n_exchanges, cpu_node, spent)

    def node_setup(self, name: str, plan: Plan, data: SiteData, noise: NoiseSource) -> NodeSetup:
        """What a site's owner gives its node."""
        keys = signing_key(self._keys[name]), self._roster
        return NodeSetup(name, *keys, POLICY, os.urandom, noise, lambda _: data, plan)

    def uplink(self, name: str, port: int) -> GrpcUplink:
        """A site's end of the wire."""
        address = f"127.0.0.1:{port}"
        return GrpcUplink(address, self._keys[name], self._pinned, random.random, settings=SETTINGS)


class _Watch:
    """Counts rounds and exchanges, and reads the hub's counter when the first round is asked for."""

    def __init__(self, hub: GrpcHub) -> None:
        self._hub = hub
        self.before_rounds = Traffic(0, 0)
        self.n_rounds = self.n_exchanges = 0

    def __call__(self, event: RunEvent) -> None:
        if event.kind is RunEventKind.PHASE and event.code.startswith("collecting-"):
            if self.n_exchanges == 0:
                self.before_rounds = self._hub.traffic()
            self.n_exchanges += 1
        elif event.kind is RunEventKind.RELEASED:
            self.n_rounds += 1


class _Node(threading.Thread):
    """One node; `cpu` is what its thread spent, in seconds, and `fault` why it failed."""

    def __init__(
        self, loopback: Loopback, name: str, task: tuple[Plan, SiteData], noise: NoiseSource, folder: Path, port: int
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._loopback, self._site, self._folder, self._port = loopback, name, folder, port
        self._setup = loopback.node_setup(name, *task, noise)
        self.cpu = 0.0
        self.fault: BaseException | None = None

    def run(self) -> None:
        """See `threading.Thread.run`."""
        began = time.thread_time()
        try:
            with _Disk(self._folder) as disk:
                uplink = self._loopback.uplink(self._site, self._port)
                try:
                    run_node(NodeSession(self._setup, disk.store, disk.book), uplink, time.monotonic, _PATIENCE)
                finally:
                    uplink.close()
        except Exception as fault:  # the main thread raises it
            self.fault = fault
        self.cpu = time.thread_time() - began


class _Disk:
    """What a node keeps."""

    def __init__(self, folder: Path) -> None:
        self.store, self.book = NodeStore(folder), BudgetBook(folder / "budget.db")

    def __enter__(self) -> _Disk:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.store.close()
        self.book.close()


def _require_success(nodes: list[_Node]) -> None:
    for node in nodes:
        if node.fault is not None or node.is_alive():
            raise EnvironmentFault(
                f"The node {node.name} did not end well: {node.fault or 'it still runs'}.",
                cause="It refused the run, or the machine is too busy.",
                remedy="Run it again on a machine that does less.",
                code="network-experiment",
            ) from node.fault
