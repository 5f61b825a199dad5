"""Runs that were stopped and are not gone on with: what it has cost stays true, and every remedy works."""

from __future__ import annotations

import json
import shutil
import signal
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from hedgerow.models.model import Model

if TYPE_CHECKING:
    from conftest import Process, Scene, Story, Theatre

pytestmark = pytest.mark.slow

SITES = tuple(f"site-{number}" for number in range(4))
N_TREES = 6
AFTER_THREE_ROUNDS = 11
"""Writes of the journal: run, attempt, epoch, first slot, then two a round."""
N_RELEASED = 3
BEFORE_A_RELEASE = 5
"""Writes of the journal: vectors have left, and no sum was released."""


def book(scene: Scene, site: str) -> list[dict[str, Any]]:
    """The runs in a site's budget book, as its owner sees them."""
    shown = scene.start("ledger", "ledger", f"{site}-state", "--json")
    assert shown.wait() == 0, "".join(shown.err)
    (data_set,) = json.loads("".join(shown.out))["data_sets"]
    runs: list[dict[str, Any]] = data_set["runs"]
    return runs


def coordinator(scene: Scene, *more: str, plan: str = "plan.toml", strike: Any = None) -> Process:
    """As `Scene.coordinator`, with options."""
    return scene.start(
        "hub", "coordinator", plan, "--roster", "roster.toml", "--identity", "hub.private.json", "--out",
        "model.json", "--listen", scene.address, "--seed", "5", *more, strike=strike,
    )  # fmt: skip


def start_nodes(scene: Scene, *more: str) -> None:
    for site in SITES:
        scene.node(site, *more)


def stop(scene: Scene, number: int) -> None:
    """Every process gets the signal, and is gone."""
    for process in scene.processes:
        process.signal(number)
    for process in scene.processes:
        process.wait()


def check_new_run(scene: Scene, hub: Process, n_earlier: int = 0) -> None:
    """The corrected plan was carried out by all sites; so many releases of the run before it are on the account too."""
    assert hub.wait() == 0, "".join(hub.err)
    assert all(scene.nodes[site].wait() == 0 for site in SITES), [scene.nodes[site].err for site in SITES]
    assert scene.survivors == [list(SITES)] * N_TREES
    (scene.folder / "expected.json").write_bytes(scene.survivors_model())
    made = Model.load(scene.folder / "model.json")
    # The survivors' model is compared without where it was made, so its file has no checksum of its own.
    with mock.patch("hedgerow.models.model.check_checksum"):
        expected = Model.load(scene.folder / "expected.json")
    assert made.holds(expected) and len(made.ledger) == len(expected.ledger) + n_earlier
    assert n_earlier or scene.model() == scene.survivors_model()


def stopped_while_gathering(number: int, *more: str) -> Story:
    """All are stopped before all sites have come, the plan is corrected, all are started again as before."""

    def story(scene: Scene) -> None:
        for site in SITES[:3]:
            scene.node(site, *more)
        hub = coordinator(scene)
        scene.wait_until(lambda: all(hub.says(f"{site} is ready") for site in SITES[:3]))
        stop(scene, number)
        assert [run["status"] for run in book(scene, "site-0")] == ["reserved"]
        scene.change_plan("epsilon = 4", "epsilon = 3")
        start_nodes(scene, *more)
        hub = coordinator(scene)
        check_new_run(scene, hub)
        assert hub.says("set aside")
        for site in SITES[:3]:
            old, new = book(scene, site)
            assert (old["status"], old["epsilon"], new["status"]) == ("left", 0, "finished")

    return story


def stopped_after_the_first_vectors(scene: Scene) -> None:
    """No sum was released, but vectors have left: each site is charged for that round, and no more."""
    start_nodes(scene, "--plan", "plan.toml")
    hub = coordinator(scene, strike={"signal": signal.SIGKILL, "writes": BEFORE_A_RELEASE})
    hub.wait()
    stop(scene, signal.SIGTERM)
    scene.change_plan("epsilon = 4", "epsilon = 3")
    start_nodes(scene, "--plan", "plan.toml")
    hub = coordinator(scene)
    check_new_run(scene, hub)
    for site in SITES:
        old, new = book(scene, site)
        assert old["status"] == "left" and 0 < old["epsilon"] < 4
        assert new["status"] == "finished"


def stopped_with_releases(scene: Scene) -> None:
    """The coordinator refuses its journal under another plan; each way out that it names works."""
    start_nodes(scene, "--plan", "plan.toml")
    hub = coordinator(scene, strike={"signal": signal.SIGKILL, "writes": AFTER_THREE_ROUNDS})
    hub.wait()
    stop(scene, signal.SIGINT)
    shutil.copy(scene.folder / "plan.toml", scene.folder / "old.toml")
    scene.change_plan("epsilon = 4", "epsilon = 3")
    refused = coordinator(scene)
    assert refused.wait() == 2 and refused.error == "journal-of-another-run"
    assert refused.says("--new-run") and refused.says("--abort")
    start_nodes(scene, "--plan", "plan.toml")
    hub = coordinator(scene, "--new-run")
    check_new_run(scene, hub, N_RELEASED)
    for site in SITES:
        old, new = book(scene, site)
        assert old["status"] == "left" and 0 < old["epsilon"] < 4
        assert new["status"] == "finished"
    assert list(scene.folder.glob("model.json.journal.*"))


def another_plan_and_back(scene: Scene) -> None:
    """Started with another plan by mistake, a node has lost nothing: with the run's own plan it goes on in it."""
    start_nodes(scene, "--plan", "plan.toml")
    coordinator(scene, strike={"signal": signal.SIGKILL, "writes": AFTER_THREE_ROUNDS}).wait()
    stop(scene, signal.SIGTERM)
    text = (scene.folder / "plan.toml").read_text(encoding="ascii")
    (scene.folder / "other.toml").write_text(text.replace("epsilon = 4", "epsilon = 3"), encoding="ascii")
    hub = coordinator(scene)
    mistaken = scene.node("site-0", "--plan", "other.toml")
    assert mistaken.wait() == 8 and mistaken.error == "plan-mismatch"
    # What another process writes may be read a moment later.
    scene.wait_until(lambda: hub.says("plan-mismatch") and hub.says("site-0 holds"))
    assert mistaken.says("site=site-0 This node holds the plan")
    start_nodes(scene, "--plan", "plan.toml")
    check_new_run(scene, hub)
    assert [run["status"] for run in book(scene, "site-0")] == ["finished"]


def ended_by_its_operator(scene: Scene) -> None:
    """Nodes that wait for a stopped coordinator are told that the run has ended; a new one begins when it is wanted."""
    start_nodes(scene, "--plan", "plan.toml")
    coordinator(scene, strike={"signal": signal.SIGKILL, "writes": AFTER_THREE_ROUNDS}).wait()
    ending = coordinator(scene, "--abort")
    assert ending.wait() == 0, "".join(ending.err)
    for site in SITES:
        assert scene.nodes[site].wait() == 9 and scene.nodes[site].error == "stopped-by-operator"
        (line,) = book(scene, site)
        assert line["status"] == "stopped" and 0 < line["epsilon"] < 4
    refused = coordinator(scene)
    assert refused.wait() == 2 and refused.error == "journal-given-up" and refused.says("--new-run")
    start_nodes(scene, "--plan", "plan.toml")
    check_new_run(scene, coordinator(scene, "--new-run"), N_RELEASED)


def another_table(scene: Scene) -> None:
    """A table that was changed in the middle of a run: the node warns its owner and goes on, as all others see it."""
    start_nodes(scene, "--plan", "plan.toml")
    coordinator(scene, strike={"signal": signal.SIGKILL, "writes": AFTER_THREE_ROUNDS}).wait()
    stop(scene, signal.SIGTERM)
    with (scene.folder / "site-0.csv").open("a", encoding="ascii") as table:
        table.write("50,a,1\n")
    start_nodes(scene, "--plan", "plan.toml")
    hub = coordinator(scene)
    assert hub.wait() == 0, "".join(hub.err)
    assert all(scene.nodes[site].wait() == 0 for site in SITES)
    assert scene.nodes["site-0"].says("rows-changed") and not scene.nodes["site-1"].says("rows-changed")
    assert [run["status"] for run in book(scene, "site-0")] == ["finished"]


def given_up_before_the_first_round(scene: Scene) -> None:
    """Too few sites came in time: the same command, given again, begins a new run instead of failing for ever."""
    scene.let_time_pass(*SITES)
    hub = coordinator(scene)
    assert hub.wait() == 9 and hub.error == "too-few-sites"
    scene.let_time_pass()
    start_nodes(scene, "--plan", "plan.toml")
    check_new_run(scene, coordinator(scene))


def tables_that_cannot_be_used(scene: Scene) -> None:
    """No coordinator is there at all: each node ends by itself, with its code, for it has never dialled."""
    (scene.folder / "site-1.csv").write_text("age,ill\n50,1\n", encoding="ascii")
    (scene.folder / "policy.toml").write_text(
        'version = 1\ndata_set = "wards"\nmax_epsilon = 9\ndelta = 1e-6\nnoise = ["server"]\nfeatures = ["age"]\n',
        encoding="ascii",
    )
    (scene.folder / "site-0.csv").unlink()
    (scene.folder / "site-3.csv").write_text("", encoding="ascii")
    for site, more, code, exit_code in (
        ("site-0", (), "data-file-missing", 4),
        ("site-2", ("--plan", "plan.toml"), "policy-feature", 6),
        ("site-3", (), "data-empty", 4),
        ("site-2", ("--held-out", "nowhere.csv"), "data-file-missing", 4),
    ):
        node = scene.node(site, *more)
        assert (node.wait(), node.error) == (exit_code, code), node.err
        assert not node.says("dialling")
    shutil.copy(scene.folder / "site-2.csv", scene.folder / "site-0.csv")
    (scene.folder / "policy.toml").write_text(
        'version = 1\ndata_set = "wards"\nmax_epsilon = 9\ndelta = 1e-6\nnoise = ["server"]\n', encoding="ascii"
    )
    for site, more, code in (
        ("site-1", (), "data-missing-column"),
        ("site-2", ("--held-out", "site-1.csv"), "data-missing-column"),
    ):
        node = scene.node(site, "--plan", "plan.toml", *more)
        assert (node.wait(), node.error) == (4, code), node.err
        assert not node.says("dialling")


STORIES: dict[str, tuple[Story, int]] = {
    "vectors have left": (stopped_after_the_first_vectors, N_TREES),
    "sums were released": (stopped_with_releases, N_TREES),
    "another plan and back": (another_plan_and_back, N_TREES),
    "ended by its operator": (ended_by_its_operator, N_TREES),
    "another table": (another_table, N_TREES),
    "given up before the first round": (given_up_before_the_first_round, N_TREES),
    "tables that cannot be used": (tables_that_cannot_be_used, N_TREES),
}
for _signal in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
    STORIES[f"gathering, {_signal.name}"] = stopped_while_gathering(_signal, "--plan", "plan.toml"), N_TREES


@pytest.mark.parametrize("story", STORIES)
def test_a_run_that_was_stopped_holds_nobody(theatre: Theatre, story: str) -> None:
    """A stopped run never keeps its sites from a corrected plan, costs what it has shown, and every remedy works."""
    theatre.ended(story)
