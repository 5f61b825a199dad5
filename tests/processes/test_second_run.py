"""A run from keys to a ledger, through two kills of its coordinator, and a second one that the owners cannot afford."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from tests.wards import forget_place

if TYPE_CHECKING:
    from conftest import Scene, Theatre

pytestmark = pytest.mark.slow

SITES = tuple(f"site-{number}" for number in range(4))


def made_through_two_kills(scene: Scene) -> None:
    """The model is that of `hedgerow train`, every node says what it cost, and the owner's ledger says so too."""
    policy = scene.folder / "policy.toml"
    text = policy.read_text(encoding="ascii")
    policy.write_text(text.replace("max_epsilon = 9", "max_epsilon = 5"), encoding="ascii")
    for site in SITES:
        scene.node(site, "--json")
    for n_writes in (6, 3):
        assert scene.coordinator({"signal": signal.SIGKILL, "writes": n_writes}).wait() == -signal.SIGKILL
    hub = scene.coordinator()
    assert hub.wait() == 0 and "6 trees" in "".join(hub.out), "".join(hub.err)
    for site in SITES:
        assert scene.nodes[site].wait() == 0, "".join(scene.nodes[site].err)
        assert 3.6 < json.loads("".join(scene.nodes[site].out))["budget"]["spent"] <= 4
    sites = [f"--site={site}={site}.csv" for site in SITES]
    local = scene.start("local", "train", "plan.toml", *sites, "--seed", "5", "--no-book", "--out", "local.json")
    assert local.wait() == 0
    assert scene.model() == forget_place((scene.folder / "local.json").read_bytes())
    shown = scene.start("ledger", "ledger", "site-0-state", "--policy", "policy.toml", "--json")
    assert shown.wait() == 0, "".join(shown.err)
    (data_set,) = json.loads("".join(shown.out))["data_sets"]
    assert data_set["max_epsilon"] == 5 and data_set["runs"][0]["status"] == "finished"


def a_second_run_is_refused(scene: Scene) -> None:
    """A coordinator with an empty folder asks for as much again: a node whose owner allows less says so and ends."""
    made_through_two_kills(scene)
    # It neither goes on with the run nor writes over the model.
    (scene.folder / "model.json.journal").unlink()
    (scene.folder / "model.json").rename(scene.folder / "first.json")
    again = scene.coordinator()
    refusing = scene.node("site-2")
    assert refusing.wait() == 6 and refusing.error == "policy-over-budget"
    scene.wait_until(lambda: again.says("site-2 refuses (policy-over-budget)"))


STORIES = {"a second run": (a_second_run_is_refused, 6)}


@pytest.mark.parametrize("story", STORIES)
def test_a_run_and_its_cost(theatre: Theatre, story: str) -> None:
    """From files and keys to a model over TLS; what it has cost counts when its coordinator has forgotten it."""
    theatre.ended(story)
