"""Many sites in few processes, and weather between them and the coordinator.

The sessions, stores and links are those of ``hedgerow node``; only the process is shared, for two hundred starts of
Python would measure nothing but that.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.network_lab import SETTINGS, Sites, start_process
from hedgerow.cli.federation_inputs import read_policy, signing_key, signing_roster
from hedgerow.cli.inputs import read_plan
from hedgerow.client.budget import BudgetBook
from hedgerow.client.node_run import NodeSetup
from hedgerow.client.run import run_node
from hedgerow.client.session import NodeSession
from hedgerow.client.store import NodeStore
from hedgerow.client.warm_up import warm_up
from hedgerow.data.site_data import read_site_data
from hedgerow.privacy.noise import SystemNoise
from hedgerow.transport.grpc_hub import HubAddress
from hedgerow.transport.grpc_uplink import GrpcUplink
from hedgerow.transport.identity_files import PRIVATE_SUFFIX, read_private
from hedgerow.transport.roster_file import read_roster

_PATIENCE = 600.0


@dataclass(frozen=True)
class Crowd:
    """How `run_federation` starts nodes: so many to a process; `prefix` goes before every command."""

    per_process: int
    prefix: tuple[str, ...] = ()

    def __call__(self, sites: Sites, address: HubAddress, state: Path, plan: Path) -> list[subprocess.Popen[bytes]]:
        processes = []
        for start in range(0, len(sites.names), self.per_process):
            names = ",".join(sites.names[start : start + self.per_process])
            command = [*self.prefix, sys.executable, "-m", "experiments", "network", "--crowd"]
            words = [str(sites.folder), str(state), str(plan), str(address), names]
            processes.append(start_process([*command, *words], state / f"crowd-{start:03}.log"))
        return processes


def be_crowd(words: Sequence[str]) -> int:
    """Be several nodes until their run is over; 1 when one of them fails."""
    folder, state, plan_file, address, names = Path(words[0]), Path(words[1]), words[2], words[3], words[4].split(",")
    plan = read_plan(plan_file)
    warm_up(plan)
    pinned = read_roster(folder / "roster.toml")
    policy = read_policy(str(folder / "policy.toml"))
    failed: list[str] = []

    def be_one(name: str) -> None:
        identity = read_private(folder / f"{name}{PRIVATE_SUFFIX}")
        rows = read_site_data(str(folder / f"{name}.csv"), plan)[0]
        keys = (signing_key(identity), signing_roster(pinned))
        noise = SystemNoise(os.urandom)
        setup = NodeSetup(name, *keys, policy, os.urandom, noise, lambda _: rows, plan)
        store, book = NodeStore(state / name), BudgetBook(state / name / "budget.db")
        uplink = GrpcUplink(address, identity, pinned, random.random, settings=SETTINGS)
        try:
            run_node(NodeSession(setup, store, book), uplink, time.monotonic, _PATIENCE)
        except Exception as fault:
            failed.append(name)
            print(f"{name}: {fault}", file=sys.stderr, flush=True)
        finally:
            uplink.close()

    threads = [threading.Thread(target=be_one, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 1 if failed else 0


@dataclass(frozen=True)
class Weather:
    """What a relay does: seconds of delay each way, and the share of chunks that come a retransmission later."""

    delay: float = 0.05
    loss: float = 0.01
    retransmission: float = 0.25


class Relay:
    """A TCP relay in user space, for machines whose kernel has no netem: TCP's own repair of a loss looks like this."""

    def __init__(self, target: int, weather: Weather, seed: int) -> None:
        self._target, self._weather, self._random = target, weather, random.Random(seed)
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
                is_lost = self._random.random() < self._weather.loss
                self.n_chunks, self.n_lost = self.n_chunks + 1, self.n_lost + is_lost
                late = self._weather.delay + (self._weather.retransmission if is_lost else 0.0)
                waiting.put_nowait((self._loop.time() + late, chunk))
        except OSError:
            pass  # The one end is gone; the other is told below.
        waiting.put_nowait((self._loop.time() + self._weather.delay, b""))
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
