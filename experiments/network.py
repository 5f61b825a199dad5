"""Real federations on this machine: seconds to a model, time of an exchange, bytes, and what the wire alone costs.

Ten ``hedgerow node`` processes and a coordinator on loopback, with mutual TLS, masks, journals and stores as in
production; the model is compared byte for byte with the engine `local`. Then two hundred nodes, nodes behind delay and
loss, the wire alone with nodes that only answer bytes, and Flower's exchange beside it. At the end stands a table of
what must hold; its time limits mean a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import platform
import pstats
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments.datasets import Table, load
from experiments.harness import plan_for
from experiments.network_crowd import Crowd, Relay, Weather, be_crowd
from experiments.network_flower import WAYS, interpreter, measure_flower
from experiments.network_lab import (
    Measured,
    Sites,
    describe,
    local_model,
    make_sites,
    run_federation,
    start_nodes,
    to_json,
)
from experiments.network_wire import Scene, be_stubs, measure_wire
from hedgerow.errors import HedgerowError
from hedgerow.plan.plan import Plan
from hedgerow.transport.grpc_hub import HubAddress

PARTS = ("adult", "many", "weather", "wire", "flower")
MODEL = {"n_trees": 100, "max_depth": 4}
MOST_SECONDS = {25: 5.0, 1: 30.0}
"""From all joined to the model, by trees per exchange."""
MOST_MEDIAN = 0.020
"""Seconds from a message to every node until all answers are in and dealt with."""
Gates = dict[str, bool]
"""What must hold, and whether it does."""
_MANY_ROWS = 2_000
_PER_PROCESS = 50
_TYPICAL_BYTES = 6_400


def main(argv: list[str]) -> int:
    """Run the parts that are asked for; 1 when a part fails or misses what must hold."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.stub:
        be_stubs(Path(options.stub[0]), int(options.stub[1]), options.stub[2].split(","))
        return 0
    if options.crowd:
        return be_crowd(options.crowd)
    gates: Gates = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(options.keep or name)
        print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}")
        print("one write to the disk takes", end=" ")
        print(f"{1000 * _seconds_of_a_write(folder):.1f} ms, and all parties here share that disk", flush=True)
        for part, run in (("adult", run_adult), ("many", run_many), ("weather", run_weather)):
            if part in options.parts:
                gates.update(_finished(part, partial(run, options, folder / part)))
    for part, run_bare in (("wire", run_wire), ("flower", run_flower)):
        if part in options.parts:
            gates.update(_finished(part, partial(run_bare, options)))
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")
    for gate, holds in gates.items():
        print(f"{'holds' if holds else 'MISSED':<7} {gate}")
    return 0 if all(gates.values()) else 1


def _finished(part: str, run: Callable[[], Gates]) -> Gates:
    """What a part's run says; a part that fails does not keep the others from being run."""
    began = time.perf_counter()
    try:
        return run()
    except HedgerowError as fault:
        print(f"{part}: {fault}", flush=True)
        return {f"the part {part!r} ends ({fault.code})": False}
    finally:
        print(f"  ({part}: {time.perf_counter() - began:.0f} s in all)", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments network", description=__doc__)
    parser.add_argument("--data", help="folder with the data sets")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--batch", type=int, nargs="+", default=[25, 1], help="trees per exchange")
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--many", type=int, default=200, help="nodes of the large federation")
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 200], help="stubs for the wire alone")
    parser.add_argument("--bytes", type=int, nargs="+", default=[100, _TYPICAL_BYTES, 800_000], help="of each answer")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--keep", metavar="FOLDER", help="put journals, stores and logs there, and keep them")
    parser.add_argument("--profile", action="store_true", help="profile the coordinator")
    parser.add_argument("--flower-python", metavar="PATH", help="an interpreter that has flwr")
    parser.add_argument("--stub", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--crowd", nargs=5, help=argparse.SUPPRESS)
    return parser


def run_adult(options: argparse.Namespace, folder: Path) -> Gates:
    """Adult, over a process per site, for every batch size."""
    table = load("adult", options.data)
    sites = make_sites(folder, table, options.sites)
    gates: Gates = {}
    for batch in options.batch:
        plan = plan_for(table, 1.0, table.n_records, {**MODEL, "batch_size": batch})
        measured = run_federation(sites, plan, start_nodes, HubAddress(), _profile if options.profile else _plainly)
        who = f"{options.sites} processes, B={batch}"
        title = f"Adult, {options.sites} node processes, T=100, d=4, B={batch}"
        gates.update(report(title, who, sites, plan, measured))
        limit = MOST_SECONDS.get(batch, MOST_SECONDS[1])
        gates[f"{who}: from all joined to the model under {limit:.0f} s ({measured.to_model:.2f} s)"] = (
            measured.to_model < limit
        )
        median = statistics.median(measured.exchanges)
        found = f"{1000 * median:.1f} ms of {len(measured.exchanges)}"
        gates[f"{who}: median exchange under {1000 * MOST_MEDIAN:.0f} ms ({found})"] = median < MOST_MEDIAN
    return gates


def run_many(options: argparse.Namespace, folder: Path) -> Gates:
    """Many sites with a few rows each: they join and finish."""
    table = _first_rows(load("adult", options.data), _MANY_ROWS)
    sites = make_sites(folder, table, options.many)
    plan = plan_for(table, 1.0, table.n_records, {**MODEL, "batch_size": 25})
    measured = run_federation(sites, plan, Crowd(_PER_PROCESS), HubAddress(), _plainly)
    who = f"{options.many} nodes"
    gates = report(f"{options.many} nodes, {_PER_PROCESS} to a process, B=25", who, sites, plan, measured)
    whole = measured.least_survivors == options.many
    return {f"{who} join and finish, all of them in every sum": whole, **gates}


def run_weather(options: argparse.Namespace, folder: Path) -> Gates:
    """Delay and loss between the nodes and the coordinator: by netem if the kernel has it, else by a relay."""
    table = _first_rows(load("adult", options.data), _MANY_ROWS)
    sites = make_sites(folder, table, options.sites)
    plan = plan_for(table, 1.0, table.n_records, {**MODEL, "batch_size": 25})
    if has_netem():
        with Namespace() as space:
            crowd = Crowd(options.sites, space.prefix)
            measured = run_federation(sites, plan, crowd, HubAddress(space.host), _plainly)
        way, how = "netem", "50 ms and 1 % loss by netem between two network namespaces"
    else:
        relays = []

        def through_relay(sites: Sites, address: HubAddress, state: Path, plan: Path) -> Any:
            relays.append(Relay(address.port, Weather(), seed=1))
            return Crowd(len(sites.names))(sites, replace(address, port=relays[0].port), state, plan)

        measured = run_federation(sites, plan, through_relay, HubAddress(), _plainly)
        print("No netem here (it needs root, ip, tc and the kernel module sch_netem): a relay in user space instead.")
        lost = f"{relays[0].n_lost} of {relays[0].n_chunks}"
        way, how = "a relay", f"50 ms each way, {lost} chunks a retransmission of 250 ms later"
    who = f"50 ms of delay and 1 % loss by {way}"
    return {f"{who}: the run ends": True, **report(f"{options.sites} nodes, {how}", who, sites, plan, measured)}


def run_wire(options: argparse.Namespace) -> Gates:
    """The wire alone."""
    for n_nodes in options.nodes:
        # Few nodes get a process each, as in reality; many would only measure the start of Python on this machine.
        measure_wire(Scene(n_nodes, 1 if n_nodes <= 20 else 25, options.repeats), options.bytes)
    return {}


def run_flower(options: argparse.Namespace) -> Gates:
    """Flower's exchange beside ours: it has no limit to keep."""
    python = interpreter(options.flower_python)
    print(WAYS if python is None else measure_flower(python, options.sites, 50, _TYPICAL_BYTES, _free_port()))
    return {}


class Namespace:
    """A network namespace whose only way out delays and loses packets; made and removed with ``ip``."""

    name, host, inside = "hedgerow-weather", "10.213.77.1", "10.213.77.2"
    prefix = ("ip", "netns", "exec", name)

    def __enter__(self) -> Namespace:
        for line in (
            f"ip netns add {self.name}",
            f"ip link add hedgerow0 type veth peer name hedgerow1 netns {self.name}",
            f"ip addr add {self.host}/30 dev hedgerow0",
            "ip link set hedgerow0 up",
            "tc qdisc add dev hedgerow0 root netem delay 50ms loss 1%",
            f"ip -n {self.name} addr add {self.inside}/30 dev hedgerow1",
            f"ip -n {self.name} link set hedgerow1 up",
            f"tc -n {self.name} qdisc add dev hedgerow1 root netem delay 50ms loss 1%",
        ):
            subprocess.run(line.split(), check=True)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["ip", "netns", "delete", self.name], check=True)


def has_netem() -> bool:
    """Whether this machine lets us make a network namespace with netem in it."""
    if shutil.which("ip") is None or shutil.which("tc") is None or shutil.which("unshare") is None:
        return False
    trial = ["unshare", "-n", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


def report(title: str, who: str, sites: Sites, plan: Plan, measured: Measured) -> Gates:
    """Print one run; whether its model is the engine `local`'s."""
    is_same = measured.model == local_model(sites, plan)
    print(title)
    for name, line in describe(measured).items():
        print(f"  {name:30} {line}")
    print(f"  {'model':30} {'byte for byte' if is_same else 'NOT'} the engine local's, {len(measured.model):,} bytes")
    print(to_json(title, measured, is_same=is_same), flush=True)
    return {f"{who}: the model is the engine local's, byte for byte": is_same}


def _first_rows(table: Table, n_rows: int) -> Table:
    return replace(table, columns=tuple(values[:n_rows] for values in table.columns), label=table.label[:n_rows])


def _seconds_of_a_write(folder: Path, repeats: int = 20) -> float:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        began = time.perf_counter()
        for _ in range(repeats):
            file.write(b"written")
            file.flush()
            os.fsync(file.fileno())
        return (time.perf_counter() - began) / repeats


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _plainly(work: Callable[[], Any]) -> Any:
    return work()


def _profile(work: Callable[[], Any]) -> Any:
    profile = cProfile.Profile()
    try:
        return profile.runcall(work)
    finally:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("cumulative").print_stats(45)
