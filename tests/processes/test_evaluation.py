"""An evaluation as its operators run it: one command at the coordinator, one at every site, over TLS."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from tests.wards import forget_place

if TYPE_CHECKING:
    from conftest import Process, Scene, Theatre

pytestmark = pytest.mark.slow

SITES = tuple(f"site-{number}" for number in range(4))


def trained(scene: Scene) -> None:
    """A model, which all nodes helped to make."""
    for site in SITES:
        scene.node(site)
    hub = scene.coordinator()
    assert hub.wait() == 0, "".join(hub.err)
    assert all(scene.nodes[site].wait() == 0 for site in SITES)


def evaluating(scene: Scene, *more: str, strike: dict[str, int] | None = None) -> Process:
    """The coordinator of an evaluation."""
    return scene.start(
        "hub", "evaluate", "model.json", "--federated", "--roster", "roster.toml", "--identity", "hub.private.json",
        "--listen", scene.address, "--epsilon", "2", "--noise", "server", "--seed", "5", "--out", "evaluated.json",
        "--json", *more, strike=strike,
    )  # fmt: skip


def holding_out(scene: Scene, site: str, *more: str) -> Process:
    """A node for evaluations only."""
    scene.nodes[site] = scene.start(
        site, "node", "--held-out", f"{site}-held-out.csv", "--plan", "plan.toml", "--roster", "roster.toml",
        "--identity", f"{site}.private.json", "--policy", "policy.toml", "--connect", scene.address, "--json", *more,
    )  # fmt: skip
    return scene.nodes[site]


def check(scene: Scene, hub: Process) -> None:
    """The local engine's numbers and file, at every site and at the coordinator; and the cost in the sites' books."""
    assert hub.wait() == 0, "".join(hub.err)
    sites = [f"--site={site}={site}-held-out.csv" for site in SITES]
    options = ("--epsilon", "2", "--seed", "5", "--out", "local.json")
    assert scene.start("local", "evaluate", "model.json", "--federated", *sites, *options).wait() == 0
    evaluated, local = (forget_place((scene.folder / f"{name}.json").read_bytes()) for name in ("evaluated", "local"))
    assert evaluated == local
    told = json.loads("".join(hub.out))
    assert told["sites"] == list(SITES) and told["cost"]["epsilon_gdp"] <= 2
    for site in SITES:
        node = scene.nodes[site]
        assert node.wait() == 0, "".join(node.err)
        found = json.loads("".join(node.out))
        assert found["evaluation"]["scores"] == told["scores"]
        assert 4 < found["budget"]["spent"] <= 6


def undisturbed(scene: Scene) -> None:
    """Training, then an evaluation of what it made."""
    trained(scene)
    for site in SITES:
        holding_out(scene, site)
    check(scene, evaluating(scene))
    assert scene.is_written_again(lambda: evaluating(scene), "evaluated.json")


def charged_once_for_all(scene: Scene) -> None:
    """The run's command, given again after an evaluation in place, leaves the model with the evaluation's charge."""
    trained(scene)
    sites = [f"--site={site}={site}-held-out.csv" for site in SITES]
    assert scene.start("local", "evaluate", "model.json", "--federated", *sites, "--epsilon", "2").wait() == 0
    charged = scene.model()
    scene.let_time_pass(*SITES)
    again = scene.coordinator()
    assert again.wait() == 0 and again.says("The run is over") and scene.model() == charged
    refused = scene.start(
        "hub", "coordinator", "plan.toml", "--roster", "roster.toml", "--identity", "hub.private.json", "--out",
        "model.json", "--listen", scene.address, "--new-run",
    )  # fmt: skip
    assert refused.wait() == 2 and refused.error == "model-exists" and scene.model() == charged
    # Refused before the finished run's journal was set aside: it can still give its model to another file.
    assert not list(scene.folder.glob("model.json.journal.*"))


def killed_coordinator(scene: Scene) -> None:
    """SIGKILL after the first release's write: no noise is drawn twice, the numbers are the undisturbed ones."""
    trained(scene)
    for site in SITES:
        holding_out(scene, site)
    assert evaluating(scene, strike={"signal": signal.SIGKILL, "writes": 6}).wait() == -signal.SIGKILL
    check(scene, evaluating(scene))


def rows_to_train_on_only(scene: Scene) -> None:
    """A node without held-out rows says so, and one for evaluations takes part in no training; the rest go on.

    One site has figures by itself, for its policy allows them.
    """
    for site in SITES[:3]:
        scene.node(site)
    stays_out = holding_out(scene, "site-3")
    hub = scene.coordinator()
    assert hub.wait() == 0, "".join(hub.err)
    assert stays_out.wait() == 6 and stays_out.error == "policy-no-training"
    shows = (scene.folder / "policy.toml").read_text(encoding="utf-8") + "site_figures = true\n"
    (scene.folder / "shows.toml").write_text(shows, encoding="utf-8")
    holding_out(scene, "site-0", "--policy", "shows.toml")
    holding_out(scene, "site-1")
    holding_out(scene, "site-3", "--model", "model.json")
    trains_only = scene.node("site-2")
    hub = evaluating(scene, "--by", "site")
    assert hub.wait() == 0, "".join(hub.err)
    assert trains_only.wait() == 6 and trains_only.error == "policy-no-held-out"
    told = json.loads("".join(hub.out))
    assert told["sites"] == ["site-0", "site-1", "site-3"]
    assert list(told["groups"]["site"]) == ["site-0"] and told["sites_left_out"] == ["site-1", "site-2", "site-3"]


STORIES = {
    "evaluation": (undisturbed, 6),
    "evaluation, the run repeated": (charged_once_for_all, 6),
    "evaluation, coordinator killed": (killed_coordinator, 6),
    "evaluation, rows of one kind only": (rows_to_train_on_only, 6),
}


@pytest.mark.parametrize("story", STORIES)
def test_an_evaluation_over_processes(theatre: Theatre, story: str) -> None:
    """Byte-identical to the local engine's, charged everywhere, and only over rows that an owner gave for it."""
    theatre.ended(story)
