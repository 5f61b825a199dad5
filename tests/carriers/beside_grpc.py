"""Flower beside gRPC: exchanges and seconds of one run over real processes, with TLS, masks, journals and stores.

The same federation of RAND's rows in the same files, over a SuperLink and SuperNodes (a new process for every message,
and nodes that are resident behind a socket), and over ``hedgerow node`` processes. Every model is compared, byte for
byte, with the engine `local`'s.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from experiments.federation import SEED, Timeline, coordinate, local_model
from experiments.harness import arguments
from hedgerow.app.environments import make_keys, start_node
from hedgerow.app.inputs import read_plan
from hedgerow.client.node import warm_up
from hedgerow.data.datasets import load_rand_hie, rand_hie_plan_text
from hedgerow.errors import EnvironmentFault
from hedgerow.privacy.noise import SeededNoise
from hedgerow.secagg.guarantees import MIN_COHORT
from hedgerow.transport.grpc_hub import GrpcHub
from hedgerow.transport.identities import read_private, read_roster
from hedgerow.transport.interface import Address
from tests.carriers.deployment import Deployment, why_not
from tests.wards import forget_place

_PATIENCE = 3600.0
_GREETINGS = 2
"""Over gRPC a node says Hello, and is invited: two exchanges before the first phase that the session tells of."""

_POLICY = 'version = 1\ndata_set = "{name}"\nmax_epsilon = 3.0\ndelta = 1e-5\nmin_sites = {n_sites}\n'
_POLICY += 'noise = ["server"]\n'
_SITE = """\
version = 1
data = "rows.csv"
identity = "{name}.private.json"
roster = "../roster.toml"
policy = "policy.toml"
plan = "../plan.toml"
state = "state"
threads = 1
"""
_COORDINATOR = """\
version = 1
plan = "plan.toml"
roster = "roster.toml"
identity = "coordinator.private.json"
out = "model.json"
"""


@dataclass(frozen=True)
class Measured:
    """One run. Args: model: its file; exchanges: with each site; seconds: from the start of the run to the model."""

    model: bytes
    exchanges: int
    seconds: float


def main(argv: list[str]) -> int:
    """Run all three; 1 when a model differs from the engine `local`'s."""
    options = arguments(
        "flower", __doc__, data="not used: the rows are shipped", sites=(3, "sites"), trees=(100, "of the model"),
        depth=(4, "of a tree"), batch=(25, "trees per exchange"),
        only=(0, "one of the three runs: 1, 2 or 3; 0 for all"),
    ).parse_args(argv)  # fmt: skip
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
    for name, run in runs[options.only - 1 : options.only] if options.only else runs:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "federation"
            make_federation(folder, options.sites, model)
            load = os.getloadavg()[0]
            measured = run(folder, options.sites)
            tables = {f"site-{n}": partition_file(folder, n).parent / "rows.csv" for n in range(options.sites)}
            is_same = measured.model == forget_place(local_model(tables, read_plan(str(folder / "plan.toml"))))
            is_fine &= is_same
        pace = measured.seconds / measured.exchanges
        verdict = "byte for byte local's" if is_same else "NOT local's"
        line = f"{name:38}{measured.exchanges:10}{measured.seconds:10.1f}{pace:12.2f}  {verdict}"
        print(f"{line} (load before: {load:.1f})", flush=True)
    return 0 if is_fine else 1


def make_federation(folder: Path, n_sites: int, model: Mapping[str, int]) -> None:
    """Write the files of all parties."""
    places = {f"site-{number}": partition_file(folder, number).parent for number in range(n_sites)}
    make_keys(folder, places)
    columns = load_rand_hie()
    # All rows of a person are at one site, as the plan declares.
    people, person = np.unique(columns["zper"], return_inverse=True)
    owner = (np.random.default_rng(0).permutation(len(people)) % n_sites)[person]
    for number, (name, place) in enumerate(places.items()):
        rows = pa.table({name: values[owner == number] for name, values in columns.items()})
        arrow_csv.write_csv(rows, place / "rows.csv")
        (place / "policy.toml").write_text(_POLICY.format(name=name, n_sites=MIN_COHORT), encoding="utf-8")
        (place / "site.toml").write_text(_SITE.format(name=name), encoding="utf-8")
    text = rand_hie_plan_text()
    federation = f"min_sites = {max(MIN_COHORT, n_sites * 2 // 3)}\njoin_timeout = 3600\nround_timeout = 1800"
    for old, new in (("n_records = 8091", "n_records = 11500"), ("min_sites = 6", federation)):
        assert text.count(old) == 1
        text = text.replace(old, new)
    text += "\n[model]\n" + "".join(f"{name} = {value}\n" for name, value in model.items())
    (folder / "plan.toml").write_text(text, encoding="utf-8")
    (folder / "coordinator.toml").write_text(_COORDINATOR, encoding="utf-8")


def partition_file(folder: Path, number: int) -> Path:
    """The site's file of one partition."""
    return folder / f"site-{number}" / "site.toml"


def over_flower(folder: Path, n_sites: int, *, resident: bool) -> Measured:
    """A real SuperLink and SuperNodes."""
    coordinator = folder / "coordinator.toml"
    coordinator.write_text(coordinator.read_text(encoding="utf-8") + f"seed = {SEED}\n", encoding="utf-8")
    files = {f"site-{number}": partition_file(folder, number) for number in range(n_sites)}
    # Else every process that comes first compiles the same kernels.
    warm_up(read_plan(str(folder / "plan.toml")))
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
    model = forget_place((folder / "model.json").read_bytes())
    return Measured(model, int(line.rpartition(":")[2].split()[0]), ended - began)


def over_grpc(folder: Path, n_sites: int) -> Measured:
    """``hedgerow node`` processes, and a coordinator in this one."""
    plan, pinned = read_plan(str(folder / "plan.toml")), read_roster(folder / "roster.toml")
    keys, timeline = (read_private(folder / "coordinator.private.json"), pinned), Timeline(n_sites)
    began = time.time()
    with closing(GrpcHub(*keys, Address())) as hub:
        nodes = []
        for number in range(n_sites):
            place = partition_file(folder, number).parent
            options = [
                str(place / "rows.csv"), "--roster", str(folder / "roster.toml"), "--identity",
                str(place / f"site-{number}.private.json"), "--policy", str(place / "policy.toml"), "--plan",
                str(folder / "plan.toml"), "--state", str(place / "grpc-state"), "--connect", f"127.0.0.1:{hub.port}",
                "--threads", "1", "--json",
            ]  # fmt: skip
            nodes.append(start_node(options, place / "node.log"))
        try:
            model, _ = coordinate(hub, keys, plan, SeededNoise(SEED), folder / "grpc.journal", timeline)
            seconds = time.time() - began
        finally:
            for node in nodes:
                node.terminate()
                node.wait()
    return Measured(forget_place(model.to_bytes()), _GREETINGS + len(timeline.phases), seconds)
