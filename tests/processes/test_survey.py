"""A survey as its operators run it: real commands over TLS."""

from __future__ import annotations

import json
import re
import signal
from typing import TYPE_CHECKING

import pytest

from hedgerow.plan.plan import parse_plan
from tests.wards import forget_place

if TYPE_CHECKING:
    from conftest import Process, Scene, Theatre

pytestmark = pytest.mark.slow

SITES = tuple(f"site-{number}" for number in range(4))


def allow_surveys(scene: Scene) -> None:
    """Policies that allow surveys."""
    policy = scene.folder / "policy.toml"
    policy.write_text("surveys = true\n" + policy.read_text(encoding="ascii"), encoding="ascii")


def surveyed(scene: Scene, site: str, strike: dict[str, object] | None = None) -> Process:
    """A node without a plan, for there is none yet."""
    scene.nodes[site] = scene.start(
        site, "node", f"{site}.csv", "--roster", "roster.toml", "--identity", f"{site}.private.json", "--policy",
        "policy.toml", "--connect", scene.address, "--json", strike=strike,
    )  # fmt: skip
    return scene.nodes[site]


def statistics(scene: Scene) -> None:
    """`hedgerow survey` over nodes, killed in the middle and started again, has the files of one over tables.

    Nothing in them, nor anything that another party sees, follows from what the owner of odd rows alone is told.
    """
    allow_surveys(scene)
    odd = scene.folder / f"{SITES[-1]}.csv"
    odd.write_text(odd.read_text(encoding="ascii").replace(",a,", ",upper,"), encoding="ascii")
    header = (scene.folder / "site-0.csv").read_text(encoding="utf-8").splitlines()[0]
    (scene.folder / "header.csv").write_text(header + "\n", encoding="utf-8")
    label = parse_plan((scene.folder / "plan.toml").read_text(encoding="ascii")).label.name
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
    local = scene.start("local", "survey", *tables, *asked, "--no-book", "--out", "local")
    assert local.wait() == 0, "".join(local.err)
    for name in ("survey.json", "plan.toml"):
        found, own = ((scene.folder / place / name).read_text(encoding="utf-8") for place in ("found", "local"))
        # Over nodes releases name their run.
        found = re.sub(r'run = ".*"\n|,\s*"run": "\w+"', "", found)
        assert found == own if name == "plan.toml" else forget_place(found.encode()) == forget_place(own.encode())
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
    "statistics, coordinator killed": (statistics, 6),
}


@pytest.mark.parametrize("story", sorted(STORIES))
def test_a_survey(theatre: Theatre, story: str) -> None:
    """Each story runs by itself; see conftest.py."""
    theatre.ended(story)
