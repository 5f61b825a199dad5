"""Real federations on this machine: seconds to a model, time of an exchange, bytes, and what the wire alone costs.

Ten ``hedgerow node`` processes and a coordinator on loopback, with mutual TLS, masks, journals and stores as in
production; the model is compared byte for byte with the engine `local`. Then fifty and two hundred nodes, nodes behind
delay and loss, the wire alone with nodes that only answer bytes, and Flower's exchange beside it. At the end stands a
table of what must hold; its time limits mean a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from experiments import federation
from experiments.datasets import load
from experiments.federation import Measured, Sites, make_sites, run_federation, start_crowd
from experiments.harness import arguments, plan_for, verdict
from hedgerow.errors import EnvironmentFault, HedgerowError
from hedgerow.plan.plan import Plan
from hedgerow.transport.grpc_hub import GrpcHub
from hedgerow.transport.grpc_link import GrpcUplink
from hedgerow.transport.identities import PRIVATE_SUFFIX, read_private, read_roster
from hedgerow.transport.interface import Address, Arrived, Disconnected, Joined

PARTS = ("adult", "many", "weather", "wire", "flower")
MODEL = {"n_trees": 100, "max_depth": 4}
MAX_SECONDS = {25: 1.0, 1: 8.0}
"""From all joined to the model, by trees per exchange."""
Gates = dict[str, bool]
"""What must hold, and whether it does."""
_MANY_ROWS = 2_000
_PER_PROCESS = 50
_TYPICAL_BYTES = 6_400
_WIRE_PATIENCE, _FLOWER_PATIENCE = 60.0, 120.0


def main(argv: list[str]) -> int:
    """Run the parts that are asked for; 1 when a part fails or misses what must hold."""
    options = _parser().parse_args(argv)
    if options.be:
        role, *words = options.be
        roles: dict[str, Callable[..., int | None]] = {
            "crowd": federation.be_crowd, "stubs": be_stubs, "echo": be_echo, "asking": ask_echoes,
        }  # fmt: skip
        return roles[role](*words) or 0
    gates: Gates = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(options.keep or name)
        print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}")
        print("one write to the disk takes", end=" ")
        print(f"{1000 * _seconds_of_a_write(folder):.1f} ms, and all parties here share that disk", flush=True)
        for part, run in zip(PARTS, (run_adult, run_many, run_weather, run_wire, run_flower), strict=True):
            if part in options.parts:
                gates.update(_finished(part, partial(run, options, folder / part)))
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")
    return verdict(gates)


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
    parser = arguments(
        "network", __doc__, sites=(10, "nodes"), repeats=(200, "exchanges over the wire alone"),
    )  # fmt: skip
    parser.add_argument("--many", type=int, nargs="+", default=[50, 200], help="nodes of the large federations")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--batch", type=int, nargs="+", default=[25, 1], help="trees per exchange")
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 200], help="stubs for the wire alone")
    parser.add_argument("--bytes", type=int, nargs="+", default=[100, _TYPICAL_BYTES, 800_000], help="of each answer")
    parser.add_argument("--keep", metavar="FOLDER", help="put journals, stores and logs there, and keep them")
    # What a process that this command starts is, and what it is to know.
    parser.add_argument("--be", nargs="+", help=argparse.SUPPRESS)
    return parser


def run_adult(options: argparse.Namespace, folder: Path) -> Gates:
    """Adult, over a process per site, for every batch size."""
    table, gates = load("adult", options.data), Gates()
    sites = make_sites(folder, table, options.sites)
    for batch in options.batch:
        plan = plan_for(table, 1.0, table.n_records, {**MODEL, "batch_size": batch})
        measured, who = run_federation(sites, plan, federation.start_nodes), f"{options.sites} processes, B={batch}"
        title = f"Adult, {options.sites} node processes, T=100, d=4, B={batch}"
        gates |= report(title, who, sites, plan, measured)
        limit, took = MAX_SECONDS.get(batch, MAX_SECONDS[1]), measured.to_model
        gates[f"{who}: from all joined to the model under {limit:.0f} s ({took:.2f} s)"] = took < limit
    return gates


def _with_few_rows(options: argparse.Namespace, folder: Path, n_sites: int) -> tuple[Sites, Plan]:
    """Sites with a few of Adult's rows each, and a plan over them."""
    whole = load("adult", options.data)
    few = replace(whole, columns=tuple(own[:_MANY_ROWS] for own in whole.columns), label=whole.label[:_MANY_ROWS])
    plan = plan_for(few, 1.0, few.n_records, {**MODEL, "batch_size": 25})
    # A thousand nodes that share two processors answer one after the other.
    federation = replace(plan.federation, round_timeout=max(plan.federation.round_timeout, 0.9 * n_sites))
    return make_sites(folder, few, n_sites), replace(plan, federation=federation)


def run_many(options: argparse.Namespace, folder: Path) -> Gates:
    """Many sites with a few rows each: they join and finish, and more of them cost each no more."""
    gates, seen = Gates(), dict[int, Measured]()
    for n_sites in options.many:
        sites, plan = _with_few_rows(options, folder / str(n_sites), n_sites)
        measured, who = run_federation(sites, plan, partial(start_crowd, _PER_PROCESS)), f"{n_sites} nodes"
        gates |= report(f"{who}, {_PER_PROCESS} to a process, B=25", who, sites, plan, measured)
        gates[f"{who} join and finish, all of them in every sum"] = measured.least_survivors == n_sites
        if n_sites == 200:
            took = measured.to_model
            gates[f"{who}: from all joined to the model under 12 s ({took:.2f} s)"] = took < 12
        seen[n_sites] = measured
    few, *more = seen.items()
    for n_sites, measured in more:
        for what, own, least in (
            ("processor time in a round", measured.cpu_round / n_sites, few[1].cpu_round / few[0]),
            ("sent bytes", measured.sent_per_node, few[1].sent_per_node),
            ("received bytes", measured.received_per_node, few[1].received_per_node),
        ):
            gates[f"{n_sites} nodes: {what} of each at most that of {few[0]} ({own / least:.2f} of it)"] = own <= least
    return gates


def run_weather(options: argparse.Namespace, folder: Path) -> Gates:
    """Delay and loss between the nodes and the coordinator, by a relay in user space."""
    (sites, plan), relays = _with_few_rows(options, folder, options.sites), list[Relay]()

    def through_relay(sites: Sites, address: Address, state: Path, plan: Path) -> Any:
        relays.append(Relay(address.port, seed=1))
        return start_crowd(len(sites.names), sites, address._replace(port=relays[0].port), state, plan)

    measured, who = run_federation(sites, plan, through_relay), "50 ms of delay and 1 % loss by a relay"
    lost = f"{relays[0].n_lost} of {relays[0].n_chunks}"
    how = f"50 ms each way, {lost} chunks a retransmission of 250 ms later"
    return {f"{who}: the run ends": True, **report(f"{options.sites} nodes, {how}", who, sites, plan, measured)}


def report(title: str, who: str, sites: Sites, plan: Plan, measured: Measured) -> Gates:
    """Print one run, also as one line for machines; whether its model is the engine `local`'s."""
    is_same = measured.model == federation.local_model({name: sites.table(name) for name in sites.names}, plan)
    timeline = measured.timeline
    exchanges, rounds = (np.diff(own) if len(own) > 1 else np.array([np.nan])
                         for own in (timeline.asked, timeline.released))  # fmt: skip
    median, late = np.quantile(exchanges, [0.5, 0.99]) * 1000
    lines = {
        "from all joined to the model": f"{measured.to_model:.2f} s",
        "from all ready to the model": f"{measured.training:.2f} s, with the set-up of the masks",
        "one exchange": f"median {median:.1f} ms, 99 % {late:.1f} ms; {len(exchanges)} exchanges",
        "one round": f"median {1000 * np.median(rounds):.1f} ms, two exchanges each; {len(timeline.released)} rounds",
        "processor time": f"coordinator {measured.cpu_coordinator:.2f} s, all nodes {measured.cpu_nodes:.2f} s; a "
        f"round {1000 * measured.cpu_round:.1f} ms of all together, "
        f"{1000 * measured.cpu_round / timeline.n_sites:.1f} ms for each node",
        "bytes per node": f"{measured.sent_per_node:,.0f} sent, {measured.received_per_node:,.0f} received",
        "smallest sum": f"over {measured.least_survivors} of {timeline.n_sites} sites; "
        f"{timeline.n_silent} times silent, {timeline.n_left} times disconnected",
        "model": f"{'byte for byte' if is_same else 'NOT'} the engine local's, {len(measured.model):,} bytes",
    }
    content = {
        "run": title, "seconds_to_model": measured.to_model, "median_exchange_seconds": float(np.median(exchanges)),
        "bytes_sent_per_node": measured.sent_per_node, "bytes_received_per_node": measured.received_per_node,
        "cpu_coordinator": measured.cpu_coordinator, "cpu_nodes": measured.cpu_nodes,
        "cpu_round": measured.cpu_round, "equals_local": is_same,
    }  # fmt: skip
    print("\n".join([title, *(f"  {name:30} {line}" for name, line in lines.items()), json.dumps(content)]), flush=True)
    return {f"{who}: the model is the engine local's, byte for byte": is_same}


def _seconds_of_a_write(folder: Path, repeats: int = 20) -> float:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        began = time.perf_counter()
        for _ in range(repeats):
            file.write(b"written")
            file.flush()
            os.fsync(file.fileno())
        return (time.perf_counter() - began) / repeats


class Relay:
    """A TCP relay in user space with delay and loss: TCP's own repair of a loss looks like this."""

    DELAY, LOSS, RETRANSMISSION = 0.05, 0.01, 0.25
    """Seconds each way, share of the chunks, and seconds until one that was lost is sent again."""

    def __init__(self, target: int, seed: int) -> None:
        self._target, self._random = target, random.Random(seed)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="relay", daemon=True).start()
        started = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self.port = int(started.result().sockets[0].getsockname()[1])
        self.n_chunks = self.n_lost = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass chunks on in order, each at its own time or after the one before it."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        feeding = asyncio.ensure_future(self._deliver(waiting, writer))
        try:
            while chunk := await reader.read(1400):
                is_lost = self._random.random() < self.LOSS
                self.n_chunks, self.n_lost = self.n_chunks + 1, self.n_lost + is_lost
                late = self.DELAY + (self.RETRANSMISSION if is_lost else 0.0)
                waiting.put_nowait((self._loop.time() + late, chunk))
        except OSError:
            pass  # The one end is gone; the other is told below.
        waiting.put_nowait((self._loop.time() + self.DELAY, b""))
        await feeding

    async def _deliver(self, waiting: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                due, chunk = await waiting.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                if not chunk:
                    writer.close()
                    return
                writer.write(chunk)
                await writer.drain()
        except OSError:
            writer.close()


# The wire alone -------------------------------------------------------------------------------------------------------


def run_wire(options: argparse.Namespace, folder: Path) -> Gates:
    """Print one block of numbers for each federation of stubs.

    A stub gives back as many bytes as it is asked for, at once. So this is the price of the wire alone, mutual TLS
    included, without any cryptography or training above it.
    """
    for n_nodes in options.nodes:
        _measure_wire(federation.make_keys(folder / str(n_nodes), n_nodes), options.repeats, options.bytes)
    return {}


def _measure_wire(sites: Sites, repeats: int, sizes: Sequence[int]) -> None:
    names = sites.names
    # Few nodes get a process each, as in reality; many would only measure the start of Python on this machine.
    per_process = 1 if len(names) <= 20 else 25
    groups = [names[start : start + per_process] for start in range(0, len(names), per_process)]
    with closing(GrpcHub(sites.coordinator, sites.pinned, Address(), settings=federation.SETTINGS)) as hub:
        command = [sys.executable, "-m", "experiments", "network", "--be", "stubs", str(sites.folder), str(hub.port)]
        stubs = [subprocess.Popen([*command, ",".join(group)]) for group in groups]
        try:
            joined_at = []
            for _ in names:
                _expect(hub, Joined)
                joined_at.append(time.perf_counter())
            print(f"{len(names)} nodes in {len(groups)} processes, {os.cpu_count()} CPUs")
            print(f"  from the first to the last join   {joined_at[-1] - joined_at[0]:8.2f} s")
            for size in sizes:
                n_times = repeats if size < 100_000 else max(3, repeats // 20)
                _exchange(hub, names[:1], size, n_times, "round trip with one node")
                _exchange(hub, names, size, n_times, "exchange with all nodes")
            megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"  memory of the coordinator, at most {megabytes:7.0f} MB")
        finally:
            for stub in stubs:
                stub.terminate()
                stub.wait()


def _exchange(hub: GrpcHub, names: Sequence[str], size: int, repeats: int, title: str) -> None:
    question = size.to_bytes(8, "big")
    seconds = []
    cpu_before = time.process_time()
    for _ in range(repeats):
        began = time.perf_counter()
        for name in names:
            hub.send(name, question)
        for _ in names:
            _expect(hub, Arrived)
        seconds.append(time.perf_counter() - began)
    cpu = (time.process_time() - cpu_before) / repeats
    median, late = np.quantile(seconds, [0.5, 0.99]) * 1000
    print(f"  {title}, {size:>7,} bytes   {median:8.2f} ms, 99 % {late:8.2f} ms, CPU here {cpu * 1000:8.2f} ms")


def _expect(hub: GrpcHub, kind: type) -> None:
    event = hub.receive(_WIRE_PATIENCE)
    if not isinstance(event, kind):
        raise EnvironmentFault(
            f"Instead of the expected {kind.__name__} came {event}.",
            cause="A stub ended, or the machine is too busy.",
            remedy="Run it again with fewer --nodes.",
            code="network-experiment",
        )


def be_stubs(folder: str, port: str, names: str) -> None:
    """Answer every question, for all these sites, until the coordinator is gone."""
    roster = read_roster(Path(folder) / "roster.toml")

    def be_one(name: str) -> None:
        identity = read_private(Path(folder) / f"{name}{PRIVATE_SUFFIX}")
        uplink = GrpcUplink(f"127.0.0.1:{port}", identity, roster, random.random, settings=federation.SETTINGS)
        while not isinstance(event := uplink.receive(_WIRE_PATIENCE), Disconnected):
            if isinstance(event, bytes):
                uplink.send(bytes(int.from_bytes(event, "big")))

    federation.in_threads(be_one, names.split(","))


# Flower's exchange ----------------------------------------------------------------------------------------------------


def run_flower(options: argparse.Namespace, folder: Path) -> Gates:
    """One line on Flower's exchange with all nodes, without TLS, masks or journals; says why when there is none.

    Clients give back as many bytes as they are sent. It has no limit to keep.
    """
    if find_spec("flwr") is None:
        print("Flower's exchange is not measured beside: flwr is not installed (the extra `flower`)")
        return {}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "experiments", "network", "--be"]
    asking, echo = (
        [*command, *map(str, words)] for words in (("asking", port, options.sites, 50, _TYPICAL_BYTES), ("echo", port))
    )
    pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
    hub = subprocess.Popen(asking, stdout=pipe, stderr=pipe, text=True)
    time.sleep(1.0)
    clients = [subprocess.Popen(echo, stdout=quiet, stderr=quiet, text=True) for _ in range(options.sites)]
    said, complaints = "", f"no end within {_FLOWER_PATIENCE:.0f} s"
    try:
        said, complaints = hub.communicate(timeout=_FLOWER_PATIENCE)
    except subprocess.TimeoutExpired:
        pass  # Told below.
    finally:
        for process in (hub, *clients):
            process.kill()
            process.wait()
    failed = f"Flower failed: {(complaints.strip() or 'nothing was said').splitlines()[-1]}"
    print(next((line for line in said.splitlines() if line.startswith("Flower ")), failed))
    return {}


def be_echo(port: str) -> None:
    """Be a client of Flower."""
    import flwr

    class Echo(flwr.client.NumPyClient):
        def fit(self, parameters: Any, config: Any) -> tuple[Any, int, dict[str, Any]]:
            return parameters, 1, {}

    flwr.client.start_client(server_address=f"127.0.0.1:{port}", client=Echo().to_client())


def ask_echoes(port: str, *counts: str) -> None:
    """Be a server of Flower: ask so many clients in so many rounds for so many bytes, and print the line."""
    import flwr

    (n_nodes, n_rounds, size), begun = map(int, counts), []

    class Timed(flwr.server.strategy.FedAvg):
        def configure_fit(self, *arguments: Any, **named: Any) -> Any:
            begun.append(time.perf_counter())
            return super().configure_fit(*arguments, **named)

        def evaluate(self, server_round: int, parameters: Any) -> None:
            return None

    strategy = Timed(
        fraction_fit=1.0, fraction_evaluate=0.0, min_fit_clients=n_nodes, min_available_clients=n_nodes,
        accept_failures=False,
        initial_parameters=flwr.common.ndarrays_to_parameters([np.zeros(size, dtype=np.uint8)]),
    )  # fmt: skip
    config, cpu = flwr.server.ServerConfig(num_rounds=n_rounds), time.process_time()
    flwr.server.start_server(server_address=f"127.0.0.1:{port}", config=config, strategy=strategy)
    median, late = np.quantile(np.diff(begun) * 1000, [0.5, 0.99])
    print(
        f"Flower {flwr.__version__}, {n_nodes} clients, {size:,} bytes, plain text: median {median:.1f} ms, 99 % "
        f"{late:.1f} ms over {len(begun) - 1} rounds; processor time of the server {time.process_time() - cpu:.2f} s"
    )
