"""A survey as its operators run it, then a training by the plan that it found: real commands over TLS."""

from __future__ import annotations

import json
import re
import signal
from typing import TYPE_CHECKING

import pytest

from hedgerow.data.raw_cells import read_raw_site
from hedgerow.local.survey import survey_sites
from hedgerow.plan.plan import parse_plan
from hedgerow.plan.toml import plan_toml
from hedgerow.privacy.noise import SeededNoise
from hedgerow.survey.requests import parse_open_plan

if TYPE_CHECKING:
    from conftest import Process, Scene, Theatre

pytestmark = pytest.mark.slow

SITES = tuple(f"site-{number}" for number in range(4))


def open_the_plan(scene: Scene) -> None:
    """The plan with gaps: no bounds and no number of records; and policies that allow surveys."""
    text = (scene.folder / "plan.toml").read_text(encoding="ascii")
    lines = [line for line in text.splitlines() if not line.startswith(("min =", "max =", "n_records ="))]
    (scene.folder / "open.toml").write_text("\n".join(lines) + "\n", encoding="ascii")
    policy = scene.folder / "policy.toml"
    policy.write_text("surveys = true\n" + policy.read_text(encoding="ascii"), encoding="ascii")


def surveying(scene: Scene, strike: dict[str, int] | None = None) -> Process:
    """The coordinator of a survey."""
    return scene.start(
        "hub", "plan", "init", "open.toml", "--federated", "--roster", "roster.toml", "--identity",
        "hub.private.json", "--listen", scene.address, "--seed", "5", "--out", "found.toml", "--json", strike=strike,
    )  # fmt: skip


def surveyed(scene: Scene, site: str, strike: dict[str, object] | None = None) -> Process:
    """A node without a plan, for there is none yet."""
    scene.nodes[site] = scene.start(
        site, "node", f"{site}.csv", "--roster", "roster.toml", "--identity", f"{site}.private.json", "--policy",
        "policy.toml", "--connect", scene.address, "--json", strike=strike,
    )  # fmt: skip
    return scene.nodes[site]


def check(scene: Scene, hub: Process) -> None:
    """The local engine's plan to the byte; then a training by it, whose report counts both."""
    assert hub.wait() == 0, "".join(hub.err)
    asked = parse_open_plan((scene.folder / "open.toml").read_text(encoding="ascii"))
    rows = {site: read_raw_site(scene.folder / f"{site}.csv", asked) for site in SITES}
    local = survey_sites(asked.questions, rows, SeededNoise(5))
    found = (scene.folder / "found.toml").read_text(encoding="utf-8")
    told = json.loads("".join(hub.out))
    plan = parse_plan(found)
    (run,) = {release.run for release in plan.prepared}
    assert found == plan_toml(asked.filled(local.findings, local.ledger, bytes.fromhex(run or "")))
    assert told["plan_digest"] == plan.digest and told["sites"] == list(SITES)
    for site in SITES:
        node = scene.nodes[site]
        assert node.wait() == 0, "".join(node.err)
        assert 0 < json.loads("".join(node.out))["budget"]["spent"] < plan.privacy.epsilon
    (scene.folder / "plan.toml").write_text(found, encoding="utf-8")
    for site in SITES:
        scene.node(site)
    training = scene.coordinator()
    assert training.wait() == 0, "".join(training.err)
    assert all(scene.nodes[site].wait() == 0 for site in SITES)
    report = json.loads(scene.model())["report"]
    assert told["cost"]["epsilon"] < report["epsilon"] <= plan.privacy.epsilon


def undisturbed(scene: Scene) -> None:
    """A survey, then the training."""
    open_the_plan(scene)
    for site in SITES:
        surveyed(scene, site)
    check(scene, surveying(scene))
    assert scene.is_written_again(lambda: surveying(scene), "found.toml")


def killed_coordinator(scene: Scene) -> None:
    """SIGKILL after the first release's write: no noise is drawn twice, the plan is the undisturbed one."""
    open_the_plan(scene)
    for site in SITES:
        surveyed(scene, site)
    assert surveying(scene, {"signal": signal.SIGKILL, "writes": 6}).wait() == -signal.SIGKILL
    check(scene, surveying(scene))


def statistics(scene: Scene) -> None:
    """`hedgerow survey` over nodes, killed in the middle and started again, has the files of one over tables.

    Nothing in them, nor anything that another party sees, follows from what the owner of odd rows alone is told.
    """
    open_the_plan(scene)
    odd = scene.folder / f"{SITES[-1]}.csv"
    odd.write_text(odd.read_text(encoding="ascii").replace(",a,", ",upper,"), encoding="ascii")
    header = (scene.folder / "site-0.csv").read_text(encoding="utf-8").splitlines()[0]
    (scene.folder / "header.csv").write_text(header + "\n", encoding="utf-8")
    label = parse_open_plan((scene.folder / "open.toml").read_text(encoding="ascii")).trial.label.name
    for site in SITES:
        surveyed(scene, site)
    asked = ("--label", label, "--epsilon", "8", "--seed", "5", "--json")

    def asking(strike: dict[str, int] | None = None) -> Process:
        return scene.start(
            "hub", "survey", "header.csv", *asked, "--out", "found", "--federated", "--roster", "roster.toml",
            "--identity", "hub.private.json", "--listen", scene.address, "--noise", "server", strike=strike,
        )  # fmt: skip

    assert asking({"signal": signal.SIGKILL, "writes": 12}).wait() == -signal.SIGKILL
    hub = asking()
    assert hub.wait() == 0, "".join(hub.err)
    tables = [part for site in SITES for part in ("--site", f"{site}.csv")]
    local = scene.start("local", "survey", *tables, *asked, "--out", "local")
    assert local.wait() == 0, "".join(local.err)
    for name in ("survey.json", "report.html", "plan.toml"):
        found, own = ((scene.folder / place / name).read_text(encoding="utf-8") for place in ("found", "local"))
        # Over nodes releases name their run.
        assert re.sub(r'run = ".*"\n|,\s*"run": "\w+"', "", found) == own
    told = json.loads("".join(hub.out))
    assert told["sites"] == list(SITES) and told["label"] == label
    for site in SITES:
        node = scene.nodes[site]
        assert node.wait() == 0, "".join(node.err)
        said = json.loads("".join(node.out))
        assert said["statistics"]["columns"] == told["columns"] and 0 < said["budget"]["spent"] <= 8
    remark = "Beside the other sites"
    assert [site for site in SITES if remark in "".join(scene.nodes[site].err)] == [SITES[-1]]
    assert remark not in "".join([*hub.err, *hub.out, *(line for site in SITES for line in scene.nodes[site].out)])
    files = [path for path in scene.folder.rglob("*") if path.is_file()]
    assert [path.name for path in files if remark.encode() in path.read_bytes()] == []
    assert scene.is_written_again(asking, "found/survey.json", "found/plan.toml")


STORIES = {
    "survey": (undisturbed, 6),
    "survey, coordinator killed": (killed_coordinator, 6),
    "statistics, coordinator killed": (statistics, 6),
}


@pytest.mark.parametrize("story", sorted(STORIES))
def test_a_survey(theatre: Theatre, story: str) -> None:
    """Each story runs by itself; see conftest.py."""
    theatre.ended(story)
