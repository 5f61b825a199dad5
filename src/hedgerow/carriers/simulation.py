# SPDX-License-Identifier: Apache-2.0
"""The federations of Flower's simulations: keys, policies and rows of the shipped study for each of its nodes.

The rows are public, so everything may lie in one folder; the parties' code is the one of every run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from hedgerow.app.environments import make_keys
from hedgerow.carriers import read_coordinator_file
from hedgerow.carriers.coordinator import coordinate
from hedgerow.data.datasets import load_rand_hie, rand_hie_plan_text
from hedgerow.errors import UsageError
from hedgerow.secagg.guarantees import MIN_COHORT
from hedgerow.transport.carrier import Carrier, Patience

if TYPE_CHECKING:
    from flwr.serverapp import Grid

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
_PATIENCE = Patience(poll=0.05, repeat=600.0, longest_repeat=3600.0)
_JOINING_SECONDS = 120.0
_MODEL = (("n_trees", "trees", 100), ("batch_size", "batch", 25), ("max_depth", "depth", 4))


def simulate(grid: Grid, carrier: Carrier, folder: Path, config: Mapping[str, object]) -> None:
    """Make a federation of all nodes of a simulation in `folder`, run it, and leave the model there.

    Args:
        grid: what Flower gives a ServerApp.
        carrier: the same, as the coordinator's hub takes it.
        folder: where the files of all parties go.
        config: the run's configuration: "trees", "batch" and "depth" of the plan.
    """
    nodes = wait_for_nodes(grid)
    model = {name: int(str(config.get(key, default))) for name, key, default in _MODEL}
    make_federation(folder, len(nodes), model)
    began = time.monotonic()
    trained, hub = coordinate(read_coordinator_file(folder / "coordinator.toml"), carrier, _PATIENCE)
    print(
        f"simulation: {len(nodes)} nodes, {trained.ensemble.n_trees} trees, {max(hub.n_requests.values())} exchanges, "
        f"{time.monotonic() - began:.0f} s.",
        file=sys.stderr,
        flush=True,
    )


def wait_for_nodes(grid: Grid) -> list[int]:
    """All nodes of a simulation, when their number does not grow any more; raises UsageError for fewer than three."""
    deadline, before = time.monotonic() + _JOINING_SECONDS, -1
    while time.monotonic() < deadline:
        nodes = sorted(grid.get_node_ids())
        if len(nodes) == before and len(nodes) >= MIN_COHORT:
            return nodes
        before = len(nodes)
        time.sleep(1.0)
    raise UsageError("too-few-sites", n_sites=max(before, 0), wanted=MIN_COHORT)


def make_federation(folder: Path, n_sites: int, model: Mapping[str, int]) -> None:
    """Write the files of all parties; raises UsageError when the folder holds a federation already."""
    if (folder / "roster.toml").exists():
        raise UsageError("exists", code="out-is-folder", path=folder / "roster.toml")
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
    (folder / "plan.toml").write_text(_plan(n_sites, model), encoding="utf-8")
    (folder / "coordinator.toml").write_text(_COORDINATOR, encoding="utf-8")


def partition_file(folder: Path, number: int) -> Path:
    """The site's file of one partition."""
    return folder / f"site-{number}" / "site.toml"


def _plan(n_sites: int, model: Mapping[str, int]) -> str:
    """The demonstration's plan for all rows, for so many sites, with patience for so many nodes on one machine."""
    text = rand_hie_plan_text()
    federation = f"min_sites = {max(MIN_COHORT, n_sites * 2 // 3)}\njoin_timeout = 3600\nround_timeout = 1800"
    for old, new in (("n_records = 14133", "n_records = 20190"), ("min_sites = 6", federation)):
        if text.count(old) != 1:
            raise ValueError(f"the demonstration's plan no longer says {old!r} once")
        text = text.replace(old, new)
    return text + "\n[model]\n" + "".join(f"{name} = {value}\n" for name, value in model.items())
