"""Flower beside gRPC: exchanges and seconds of one run over real processes, with TLS, masks, journals and stores.

The same federation of RAND's rows in the same files, over a SuperLink and SuperNodes (a new process for every message,
and nodes that are resident behind a socket), and over ``hedgerow node`` processes. Every model is compared, byte for
byte, with the engine `local`'s.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from experiments.flower_lab import Deployment, free_port, why_not
from hedgerow.cli.federation_inputs import signing_key, signing_roster
from hedgerow.cli.inputs import read_plan
from hedgerow.data.site_data import read_site_data
from hedgerow.errors import EnvironmentFault
from hedgerow.flower.simulation import file_of_partition, make_federation
from hedgerow.local.training import train
from hedgerow.models.model import Model
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.script import RunState
from hedgerow.server.events import RunEvent, RunEventKind
from hedgerow.server.journal import Journal
from hedgerow.server.phases import RunSetup
from hedgerow.server.run import run_coordinator
from hedgerow.server.session import RunSession
from hedgerow.transport.grpc_hub import GrpcHub, HubAddress
from hedgerow.transport.identity_files import read_private
from hedgerow.transport.roster_file import read_roster

SEED = 1
_PATIENCE = 3600.0
_GREETINGS = 2
"""Over gRPC a node says Hello, and is invited: two exchanges before the first phase that the session tells of."""


@dataclass(frozen=True)
class Measured:
    """One run. Args: model: its file; exchanges: with each site; seconds: from the start of the run to the model."""

    model: bytes
    exchanges: int
    seconds: float


def main(argv: list[str]) -> int:
    """Run all three; 1 when a model differs from the engine `local`'s."""
    parser = argparse.ArgumentParser(prog="python -m experiments flower", description=__doc__)
    parser.add_argument("--data", help="not used: the rows are shipped")
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=25)
    options = parser.parse_args(argv)
    if why_not():
        raise EnvironmentFault(why_not(), remedy='Install it: pip install "hedgerow[flower]"', code="missing-extra")
    model = {"n_trees": options.trees, "max_depth": options.depth, "batch_size": options.batch}
    runs: tuple[tuple[str, Callable[[Path, int], Measured]], ...] = (
        ("grpc", over_grpc),
        ("flower, a process for every message", lambda folder, n_sites: over_flower(folder, n_sites, resident=False)),
        ("flower, resident nodes", lambda folder, n_sites: over_flower(folder, n_sites, resident=True)),
    )
    size = f"T={options.trees}, d={options.depth}, B={options.batch}"
    print(f"{options.sites} sites, {size}; {os.cpu_count()} processors")
    print(f"{'engine':38}{'exchanges':>10}{'seconds':>10}{'s/exchange':>12}  model")
    is_fine = True
    for name, run in runs:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "federation"
            make_federation(folder, options.sites, model)
            load = os.getloadavg()[0]
            measured = run(folder, options.sites)
            is_same = measured.model == local_model(folder, options.sites)
            is_fine &= is_same
        pace = measured.seconds / measured.exchanges
        verdict = "byte for byte local's" if is_same else "NOT local's"
        line = f"{name:38}{measured.exchanges:10}{measured.seconds:10.1f}{pace:12.2f}  {verdict}"
        print(f"{line} (load before: {load:.1f})", flush=True)
    return 0 if is_fine else 1


def local_model(folder: Path, n_sites: int) -> bytes:
    """What the engine `local` makes of the same tables."""
    plan = read_plan(str(folder / "plan.toml"))
    tables = [file_of_partition(folder, number).parent / "rows.csv" for number in range(n_sites)]
    rows = {f"site-{number}": read_site_data(table, plan)[0] for number, table in enumerate(tables)}
    return train(plan, rows, noise=SeededNoise(SEED)).to_bytes()


def over_flower(folder: Path, n_sites: int, *, resident: bool) -> Measured:
    """A real SuperLink and SuperNodes."""
    coordinator = folder / "coordinator.toml"
    coordinator.write_text(coordinator.read_text(encoding="utf-8") + f"seed = {SEED}\n", encoding="utf-8")
    files = {f"site-{number}": file_of_partition(folder, number) for number in range(n_sites)}
    with Deployment(folder / "flower", files, files if resident else ()) as deployment:
        for site in files:
            deployment.start_node(site)
            deployment.nodes[site].wait_for("SuperNode ID")
        began = time.time()
        run = deployment.run(coordinator)
        run.wait_for("Requests to a site", patience=_PATIENCE)
        (line,) = (line for line in run.lines if "Requests to a site" in line)
    # The log arrives in instalments; the file says when it was written.
    ended = (folder / "model.json").stat().st_mtime
    return Measured((folder / "model.json").read_bytes(), int(line.split(":")[1].split()[0]), ended - began)


def over_grpc(folder: Path, n_sites: int) -> Measured:
    """``hedgerow node`` processes, and a coordinator in this one."""
    plan, pinned = read_plan(str(folder / "plan.toml")), read_roster(folder / "roster.toml")
    identity = read_private(folder / "coordinator.private.json")
    phases: list[str] = []

    def watch(event: RunEvent) -> None:
        if event.kind is RunEventKind.PHASE and event.code != RunState.OVER:
            phases.append(event.code)

    journal = Journal(folder / "grpc.journal")
    setup = RunSetup(plan, signing_roster(pinned), signing_key(identity), SeededNoise(SEED), os.urandom, watch)
    session = RunSession(setup, journal)
    began = time.time()
    hub = GrpcHub(identity, pinned, HubAddress("127.0.0.1", free_port()))
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        nodes.extend(_start_node(folder, number, hub.port) for number in range(n_sites))
        outcome = run_coordinator(session, hub, plan.federation, time.monotonic)
        seconds = time.time() - began
    finally:
        hub.close()
        journal.close()
        for node in nodes:
            node.terminate()
            node.wait()
    model = Model(plan, outcome.ensemble, outcome.ledger, outcome.report).to_bytes()
    return Measured(model, _GREETINGS + len(phases), seconds)


def _start_node(folder: Path, number: int, port: int) -> subprocess.Popen[bytes]:
    place = file_of_partition(folder, number).parent
    command = [
        sys.executable, "-m", "hedgerow.cli.main", "node", str(place / "rows.csv"), "--roster",
        str(folder / "roster.toml"), "--identity", str(place / f"site-{number}.private.json"), "--policy",
        str(place / "policy.toml"), "--plan", str(folder / "plan.toml"), "--state", str(place / "grpc-state"),
        "--connect", f"127.0.0.1:{port}", "--threads", "1", "--json",
    ]  # fmt: skip
    environment = {**os.environ, "no_proxy": "127.0.0.1"}
    with (place / "node.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
