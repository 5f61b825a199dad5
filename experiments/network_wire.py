"""What the engine grpc costs on this machine: joining, one round trip, one exchange with all nodes, CPU and memory.

The nodes are stubs in processes of their own: each gives back as many bytes as it is asked for, at once. So this is the
price of the wire alone, mutual TLS included, without any cryptography or training above it.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import numpy as np

from hedgerow.errors import EnvironmentFault
from hedgerow.transport.grpc_core import LinkSettings
from hedgerow.transport.grpc_hub import GrpcHub, HubAddress
from hedgerow.transport.grpc_uplink import GrpcUplink
from hedgerow.transport.identity import Role
from hedgerow.transport.identity_files import PRIVATE_SUFFIX, create_identity, read_private
from hedgerow.transport.interface import Arrived, Disconnected, Joined
from hedgerow.transport.roster_file import build_roster, read_roster

SETTINGS = LinkSettings(http_proxy=False)
_PATIENCE = 60.0


@dataclass(frozen=True)
class Scene:
    """One federation of stubs: how many, in how many processes, and how often each exchange is repeated."""

    n_nodes: int
    nodes_per_process: int
    repeats: int


def measure_wire(scene: Scene, sizes: Sequence[int]) -> None:
    """Print one block of numbers for one federation of stubs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        coordinator, _, _ = create_identity(folder, "coordinator", Role.COORDINATOR)
        names = [f"site-{number:03}" for number in range(scene.n_nodes)]
        sites = [create_identity(folder, site, Role.SITE)[0] for site in names]
        roster = build_roster(coordinator.public, [site.public for site in sites])
        (folder / "roster.toml").write_text(roster.to_toml(), encoding="utf-8")
        hub = GrpcHub(coordinator, roster, HubAddress(), settings=SETTINGS)
        groups = [
            names[start : start + scene.nodes_per_process] for start in range(0, len(names), scene.nodes_per_process)
        ]
        command = [sys.executable, "-m", "experiments", "network", "--stub", name, str(hub.port)]
        stubs = [subprocess.Popen([*command, ",".join(group)]) for group in groups]
        try:
            joined_at = []
            for _ in names:
                _expect(hub, Joined)
                joined_at.append(time.perf_counter())
            print(f"{scene.n_nodes} nodes in {len(groups)} processes, {os.cpu_count()} CPUs")
            print(f"  from the first to the last join   {joined_at[-1] - joined_at[0]:8.2f} s")
            for size in sizes:
                repeats = scene.repeats if size < 100_000 else max(3, scene.repeats // 20)
                _report(hub, names[:1], size, repeats, "round trip with one node")
                _report(hub, names, size, repeats, "exchange with all nodes")
            megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"  memory of the coordinator, at most {megabytes:7.0f} MB")
        finally:
            hub.close()
            for stub in stubs:
                stub.terminate()
                stub.wait()


def _report(hub: GrpcHub, names: Sequence[str], size: int, repeats: int, title: str) -> None:
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
    event = hub.receive(_PATIENCE)
    if not isinstance(event, kind):
        raise EnvironmentFault(
            f"Instead of the expected {kind.__name__} came {event}.",
            cause="A stub ended, or the machine is too busy.",
            remedy="Run it again with fewer --nodes.",
            code="network-experiment",
        )


def be_stubs(folder: Path, port: int, names: Sequence[str]) -> None:
    """Answer every question, for all these sites, until the coordinator is gone."""
    roster = read_roster(folder / "roster.toml")
    uplinks = [
        GrpcUplink(
            f"127.0.0.1:{port}",
            read_private(folder / f"{name}{PRIVATE_SUFFIX}"),
            roster,
            random.random,
            settings=SETTINGS,
        )
        for name in names
    ]
    threads = [Thread(target=_be_one, args=(uplink,), daemon=True) for uplink in uplinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _be_one(uplink: GrpcUplink) -> None:
    while not isinstance(event := uplink.receive(_PATIENCE), Disconnected):
        if isinstance(event, bytes):
            uplink.send(bytes(int.from_bytes(event, "big")))
