"""Processes that are killed, frozen or starved in every phase: the exact model of the survivors, or an error by name.

Real commands, real signals, real TLS. A process is struck at an exact point: a node when a message of a kind arrives or
has been answered, the coordinator after a write of its journal. What the model must be is computed by the local engine
over the sites that were in each round. A story that hangs fails by the patience of conftest.py.
"""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.tiers import with_long

if TYPE_CHECKING:
    from conftest import Scene, Story, Theatre

pytestmark = pytest.mark.slow

SITES = tuple(f"site-{number}" for number in range(4))
VICTIM = "site-1"
N_TREES, MANY_TREES = 6, 40

PHASES: dict[str, tuple[str, int, str, set[int]]] = {
    # The message, its number, whether the node is struck before it is handled or after it is answered, and in how many
    # of the sums the victim's vector may be: what was just handed over may be lost with the process. Only the fewest
    # sites that can are asked to open a sum, those whose vector came first, so nobody knows when it is a site's turn.
    "join": ("WELCOME", 1, "before", {0}),
    "set-up, its keys sent": ("ENROL", 1, "after", {0}),
    "set-up, its nonce sent": ("SETUP", 1, "after", {0}),
    "set-up, its shares sent": ("SETUP", 2, "after", {0}),
    "mask, before its vector": ("ROUND_REQUEST", 2, "before", {1}),
    "mask, its vector sent": ("ROUND_REQUEST", 2, "after", {1, 2}),
    "unmask, before its shares": ("UNMASK", 2, "before", set(range(2, MANY_TREES + 1))),
    "unmask, its shares sent": ("UNMASK", 2, "after", set(range(2, MANY_TREES + 1))),
    "release of the last round": ("ROUND_REQUEST", 6, "after", {5, 6}),
    "the end": ("FINISHED", 1, "before", {6}),
}
FROZEN = (
    "set-up, its nonce sent", "mask, before its vector", "mask, its vector sent", "unmask, before its shares",
)  # fmt: skip
KILLED = (
    "join", "set-up, its keys sent", "set-up, its shares sent", "mask, its vector sent", "unmask, before its shares",
    "release of the last round", "the end",
)  # fmt: skip
"""At every message of all a node is killed in tests/runtime/test_federation.py, in process."""
WRITES = (1, 4, 15)
"""Of the journal: its first, the first of a round, its last; after 3, 5, 6 and 11 in other stories of this folder.
After every write of all it is killed in tests/runtime/test_federation.py, in process."""


def trees_for(phase: str) -> int:
    """Enough rounds for the victim's turn to come."""
    return MANY_TREES if phase.startswith("unmask") else N_TREES


def strike_at(phase: str, **how: Any) -> dict[str, Any]:
    kind, number, moment, _ = PHASES[phase]
    return {"kind": kind, "number": number, "moment": moment, **how}


def begin(scene: Scene, strike: dict[str, Any]) -> Any:
    """All nodes, one with a strike before it, and the coordinator's process."""
    for site in SITES:
        scene.node(site, strike=strike if site == VICTIM else None)
    return scene.coordinator()


def check_survivors(scene: Scene, hub: Any) -> None:
    """The coordinator ended well, with the model of those who were there, and every other node has it."""
    assert hub.wait() == 0, "".join(hub.err)
    assert scene.model() == scene.survivors_model()
    assert all(set(SITES) - {VICTIM} <= set(survivors) for survivors in scene.survivors)
    assert all(scene.nodes[site].wait() == 0 for site in SITES if site != VICTIM)


def check_rounds_of_the_victim(scene: Scene, phase: str) -> None:
    """Its vectors are in the first sums, as many as the phase allows, and in none after it was struck."""
    rounds = [VICTIM in survivors for survivors in scene.survivors]
    assert rounds == sorted(rounds, reverse=True)
    assert sum(rounds) in PHASES[phase][3]


def killed_node(phase: str) -> Story:
    """SIGKILL: the node is gone for good."""

    def story(scene: Scene) -> None:
        hub = begin(scene, strike_at(phase, signal=signal.SIGKILL))
        assert scene.nodes[VICTIM].wait() == -signal.SIGKILL
        scene.let_time_pass(VICTIM)
        check_survivors(scene, hub)
        check_rounds_of_the_victim(scene, phase)

    return story


def returning_node(phase: str) -> Story:
    """SIGKILL, and started again at once: it takes part again, and has the model like everybody else."""

    def story(scene: Scene) -> None:
        hub = begin(scene, strike_at(phase, signal=signal.SIGKILL))
        dead = scene.nodes[VICTIM]
        scene.wait_until(lambda: dead.code is not None)
        scene.node(VICTIM)
        check_survivors(scene, hub)
        assert scene.nodes[VICTIM].wait() == 0

    return story


def frozen_node(phase: str) -> Story:
    """SIGSTOP, and thawed when it has been given up for the round: what it says late is not taken, and nobody waits."""

    def story(scene: Scene) -> None:
        hub = begin(scene, strike_at(phase, signal=signal.SIGSTOP))
        frozen = scene.nodes[VICTIM]
        scene.wait_until(lambda: frozen.is_frozen)
        scene.let_time_pass(VICTIM)
        scene.wait_until(lambda: hub.says(f"{VICTIM} does not answer") or hub.code is not None)
        scene.let_time_pass()
        frozen.signal(signal.SIGCONT)
        check_survivors(scene, hub)
        # It is back in the run, or finds that the run is over and nobody there any more.
        scene.let_time_pass(VICTIM)
        assert frozen.wait() == 0 or frozen.error == "coordinator-silent"

    return story


def killed_coordinator(n_writes: int) -> Story:
    """SIGKILL after a write: started again it goes on, with the same noise, to the byte-identical model of all."""

    def story(scene: Scene) -> None:
        for site in SITES:
            scene.node(site)
        assert scene.coordinator({"signal": signal.SIGKILL, "writes": n_writes}).wait() == -signal.SIGKILL
        hub = scene.coordinator()
        assert hub.wait() == 0, "".join(hub.err)
        assert scene.survivors == [list(SITES)] * N_TREES
        assert scene.model() == scene.survivors_model()
        assert all(scene.nodes[site].wait() == 0 for site in SITES)

    return story


def full_disk_at_the_coordinator(n_writes: int) -> Story:
    """The journal cannot grow: nothing is sent that was not written, and with space again the run goes on."""

    def story(scene: Scene) -> None:
        for site in SITES:
            scene.node(site)
        full = scene.coordinator({"full": True, "writes": n_writes})
        assert full.wait() == 10 and full.error == "disk-full"
        hub = scene.coordinator()
        assert hub.wait() == 0, "".join(hub.err)
        assert scene.model() == scene.survivors_model()
        assert all(scene.nodes[site].wait() == 0 for site in SITES)

    return story


def full_disk_at_a_node(phase: str) -> Story:
    """The node ends by name and has sent nothing that it had not written; the others have their exact model."""

    def story(scene: Scene) -> None:
        hub = begin(scene, strike_at(phase, full=True))
        assert scene.nodes[VICTIM].wait() == 10 and scene.nodes[VICTIM].error == "disk-full"
        scene.let_time_pass(VICTIM)
        check_survivors(scene, hub)
        check_rounds_of_the_victim(scene, phase)

    return story


def too_many_killed(phase: str) -> Story:
    """Two of four are gone, fewer than the plan asks for: at its own timeout the run is given up by name, or ends with
    the model of the rounds that were released.
    """

    def story(scene: Scene) -> None:
        strike = strike_at(phase, signal=signal.SIGKILL)
        for site in SITES:
            scene.node(site, strike=strike if site in {"site-1", "site-2"} else None)
        hub = scene.coordinator()
        for site in ("site-1", "site-2"):
            assert scene.nodes[site].wait() == -signal.SIGKILL
        scene.let_time_pass("site-1", "site-2")
        if phase.startswith("unmask"):
            assert hub.wait() == 0 and hub.says("(too-few-sites)"), hub.err
            for site in ("site-0", "site-3"):
                assert scene.nodes[site].wait() == 0 and scene.nodes[site].says("(too-few-sites)")
            salvaged = json.loads(scene.model())["salvaged"]
            assert salvaged["n_used"] == len(scene.survivors) and salvaged["n_planned"] == trees_for(phase)
            return
        assert hub.wait() == 9 and hub.error == "too-few-sites", hub.err
        for site in ("site-0", "site-3"):
            assert scene.nodes[site].wait() == 9 and scene.nodes[site].error == "too-few-sites"
        assert not (scene.folder / "model.json").exists()

    return story


def other_plan(scene: Scene) -> None:
    """One owner agreed to another plan: that node is told, and is not in the model."""
    text = (scene.folder / "plan.toml").read_text(encoding="ascii")
    (scene.folder / "other.toml").write_text(text.replace("epsilon = 4", "epsilon = 3"), encoding="ascii")
    for site in SITES:
        scene.node(site, "--plan", "other.toml" if site == VICTIM else "plan.toml")
    hub = scene.coordinator()
    assert scene.nodes[VICTIM].wait() == 8 and scene.nodes[VICTIM].error == "plan-mismatch"
    scene.let_time_pass(VICTIM)
    check_survivors(scene, hub)
    assert not any(VICTIM in survivors for survivors in scene.survivors)


def second_node_of_a_site(scene: Scene) -> None:
    """Two nodes of one site with a folder each: the later one is turned away, and the sum holds the site once."""
    for site in SITES[:3]:
        scene.node(site)
    hub, first = scene.coordinator(), scene.nodes[VICTIM]
    scene.wait_until(lambda: hub.says(f"{VICTIM} is connected"))
    second = scene.node(VICTIM, "--state", "second-state", "--budget", "second.db")
    assert second.wait() == 8 and second.error == "duplicate-node"
    scene.node("site-3")
    assert hub.wait() == 0, "".join(hub.err)
    assert first.wait() == 0
    assert scene.survivors == [list(SITES)] * N_TREES and scene.model() == scene.survivors_model()


def strangers(scene: Scene) -> None:
    """Ten thousand connections of garbage while two loops keep both processors busy: nobody loses its place."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        for site in SITES:
            scene.node(site)
        hub = scene.coordinator()
        scene.wait_until(lambda: all(hub.says(f"{site} is connected") for site in SITES))
        knock(scene.address, 10_000)
        assert hub.wait() == 0, "".join(hub.err)
        assert all(scene.nodes[site].wait() == 0 for site in SITES)
    finally:
        for loop in busy:
            loop.kill()
            loop.wait()
    assert scene.survivors == [list(SITES)] * MANY_TREES and scene.model() == scene.survivors_model()


def knock(address: str, times: int) -> None:
    """Connect and send random bytes, or half a handshake, or nothing, until nobody listens any more."""
    host, port = address.split(":")
    source, greeting = random.Random(3), bytes.fromhex("16030100c8010000c40303")
    with ExitStack() as silent:
        for number in range(times):
            garbage = source.randbytes(source.randrange(1, 60))
            try:
                connection = silent.enter_context(socket.create_connection((host, int(port)), timeout=300))
                if number % 100:
                    connection.sendall(greeting + garbage if number % 3 else garbage)
                    connection.close()
            except ConnectionRefusedError:
                return
            except OSError:
                continue


STORIES: dict[str, tuple[Story, int]] = {
    "strangers": (strangers, MANY_TREES),
    "another plan": (other_plan, N_TREES),
    "a second node of a site": (second_node_of_a_site, N_TREES),
}
STORIES |= {f"killed: {phase}": (killed_node(phase), trees_for(phase)) for phase in KILLED}
STORIES |= {f"frozen: {phase}": (frozen_node(phase), MANY_TREES) for phase in FROZEN}
STORIES |= {f"coordinator killed after write {n}": (killed_coordinator(n), N_TREES) for n in WRITES}
STORIES |= {f"disk full at write {n}": (full_disk_at_the_coordinator(n), N_TREES) for n in (2, 5, 6)}
for _phase in ("set-up, its nonce sent", "unmask, its shares sent"):
    STORIES[f"back again: {_phase}"] = returning_node(_phase), MANY_TREES
for _phase in ("mask, before its vector", "unmask, before its shares"):
    STORIES[f"disk full at a node: {_phase}"] = full_disk_at_a_node(_phase), trees_for(_phase)
for _phase in ("set-up, its shares sent", "unmask, before its shares"):
    STORIES[f"two killed: {_phase}"] = too_many_killed(_phase), trees_for(_phase)


# Two busy loops beside it would slow all other tests down.
@pytest.mark.parametrize("story", with_long(["strangers"], STORIES))
def test_what_befalls_a_process_ends_in_the_exact_model_or_by_name(theatre: Theatre, story: str) -> None:
    """No fault of one process gives a wrong model, an unnamed error, or a wait beyond the plan's timeouts."""
    theatre.ended(story)
