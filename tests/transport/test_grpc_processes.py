"""Nodes in processes of their own: killed, frozen and thawed, as machines do."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hedgerow.transport.grpc_hub import GrpcHub
from hedgerow.transport.identities import Role, build_roster, create_identity
from hedgerow.transport.interface import Address, Arrived, Joined, Left

NODE = """
import random, sys
from pathlib import Path
from hedgerow.transport.grpc_link import LinkSettings
from hedgerow.transport.grpc_link import GrpcUplink
from hedgerow.transport.identities import read_private, read_roster
folder, port = Path(sys.argv[1]), sys.argv[2]
settings = LinkSettings(ping_seconds=0.2, silence_seconds=3600.0, backoff_seconds=0.05, http_proxy=False)
identity, roster = read_private(folder / "north.private.json"), read_roster(folder / "roster.toml")
uplink = GrpcUplink("127.0.0.1:" + port, identity, roster, random.random, settings=settings)
while True:
    event = uplink.receive(600)
    if isinstance(event, bytes):
        uplink.send(event[::-1])
"""


class Scene:
    """A hub, and the means to start its one node."""

    def __init__(self, folder: Path, settings: Any) -> None:
        self.folder = folder
        coordinator, _, _ = create_identity(folder, "hub", Role.COORDINATOR)
        north, _, _ = create_identity(folder, "north", Role.SITE)
        roster = build_roster(coordinator.public, [north.public])
        (folder / "roster.toml").write_text(roster.to_toml())
        self.hub = GrpcHub(coordinator, roster, Address(), settings=settings)
        self.nodes: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", NODE, str(self.folder), str(self.hub.port)]
        self.nodes.append(subprocess.Popen(command, env={"PYTHONPATH": ":".join(sys.path)}))
        return self.nodes[-1]

    def close(self) -> None:
        self.hub.close()
        for node in self.nodes:
            node.kill()
            node.wait()


@pytest.fixture
def scene(tmp_path: Path, quick: Callable[..., Any], request: pytest.FixtureRequest) -> Iterator[Scene]:
    # Where no node is frozen, none is given up, however long it is silent.
    opened = Scene(tmp_path, quick(**getattr(request, "param", {"silence_seconds": 4.0})))
    yield opened
    opened.close()


@pytest.mark.parametrize("scene", [{}], indirect=True, ids=["patient"])
def test_a_killed_node_is_missed_at_once_and_may_come_back(scene: Scene, event_of: Callable[..., Any]) -> None:
    """The end of its process is the end of its connection; a new process takes the place without waiting."""
    first = scene.start()
    assert event_of(scene.hub, Joined, only=True) == Joined("north")
    first.send_signal(signal.SIGKILL)
    assert event_of(scene.hub, Left, only=True).site == "north"
    assert not scene.hub.send("north", b"abc")
    scene.start()
    assert event_of(scene.hub, Joined, only=True) == Joined("north")
    assert scene.hub.send("north", b"abc")
    assert event_of(scene.hub, Arrived, only=True) == Arrived("north", b"cba")


def test_a_frozen_node_is_missed_and_comes_back_when_it_thaws(scene: Scene, event_of: Callable[..., Any]) -> None:
    """Its connection stands, but it gives no sign of life; thawed late, it joins again by itself."""
    node = scene.start()
    event_of(scene.hub, Joined, only=True)
    node.send_signal(signal.SIGSTOP)
    assert event_of(scene.hub, Left, only=True) == Left("north", "connection-lost")
    node.send_signal(signal.SIGCONT)
    assert event_of(scene.hub, Joined, only=True) == Joined("north")
    assert scene.hub.send("north", b"abc")
    assert event_of(scene.hub, Arrived, only=True) == Arrived("north", b"cba")


@pytest.mark.slow
def test_a_node_started_beside_a_frozen_one_takes_its_place(scene: Scene, event_of: Callable[..., Any]) -> None:
    """And the frozen one, when it thaws, finds the place taken and disturbs nothing."""
    frozen = scene.start()
    event_of(scene.hub, Joined, only=True)
    frozen.send_signal(signal.SIGSTOP)
    scene.start()
    assert event_of(scene.hub, Left, only=True) == Left("north", "connection-lost")
    assert event_of(scene.hub, Joined, only=True) == Joined("north")
    frozen.send_signal(signal.SIGCONT)
    until = time.monotonic() + 300
    while not scene.hub.refusals:
        assert time.monotonic() < until, "the frozen one was not turned away"
        assert scene.hub.send("north", b"abc")
        assert event_of(scene.hub, Arrived, only=True) == Arrived("north", b"cba")
        assert scene.hub.receive(0.05) is None
    assert scene.hub.refusals == {"duplicate-node": 1}
