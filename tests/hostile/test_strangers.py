"""Who reaches the coordinator's port without a certificate, or with a monitor's, costs it only what it can spare.

The coordinator may open 1,024 files. The hostile party opens 1,500 connections, or as many as the system lets it, and
replaces each that is ended. The sites dial in while it does, and the run is made while it goes on.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Scene, Story, Theatre

pytestmark = pytest.mark.slow

SITES = tuple(f"site-{number}" for number in range(4))
N_TREES, FILES, N_CONNECTIONS = 20, 1024, 1500
SCRIPT = Path(__file__).with_name("strange_clients.py")


@contextlib.contextmanager
def knocking(scene: Scene, manner: str, count: int) -> Iterator[None]:
    """The hostile party is there, and has opened as many connections as it could, until the block ends."""
    root = Path(__file__).resolve().parents[2] / "src"
    party = subprocess.Popen(
        [sys.executable, str(SCRIPT), scene.address, str(count), manner, str(scene.folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert party.stdin is not None and party.stdout is not None
    try:
        assert party.stdout.readline() == b"there\n"
        yield
        assert party.poll() is None
    finally:
        party.kill()
        party.wait()
        party.stdin.close()
        party.stdout.close()


def besieged(manner: str, count: int = N_CONNECTIONS) -> Callable[[Scene], None]:
    """Two sites are there before, two dial in under the siege; the run is theirs all the same."""

    def story(scene: Scene) -> None:
        hub = scene.coordinator(files=FILES)
        for site in SITES[:2]:
            scene.node(site)
        scene.wait_until(lambda: all(hub.says(f"{site} is connected") for site in SITES[:2]) or hub.code is not None)
        with knocking(scene, manner, count):
            for site in SITES[2:]:
                scene.node(site)
            seen = []

            def has_ended() -> bool:
                with contextlib.suppress(OSError):
                    seen.append(len(os.listdir(f"/proc/{hub.pid}/fd")))
                return hub.code is not None

            scene.wait_until(has_ended)
        assert hub.wait() == 0, "".join(hub.err)
        assert all(scene.nodes[site].wait() == 0 for site in SITES)
        assert scene.survivors == [list(SITES)] * N_TREES and scene.model() == scene.survivors_model()
        # Some are kept for the databases, always.
        assert seen and max(seen) <= FILES - 64
        assert hub.says("surplus connection") and len(hub.err) < 100

    return story


STORIES: dict[str, tuple[Story, int]] = {
    "strangers who say nothing": (besieged("idle"), N_TREES),
    "strangers who say a part of a greeting": (besieged("half"), N_TREES),
    "strangers who greet and say nothing more": (besieged("greeting"), N_TREES),
    "a monitor with a thousand connections": (besieged("monitor", 1000), N_TREES),
}


@pytest.mark.parametrize("story", STORIES)
def test_a_run_under_siege_is_the_run_without_one(theatre: Theatre, story: str) -> None:
    """Nobody who may not take part can end a run, keep a site out of it, or change its model."""
    theatre.ended(story)
