"""A stream as its operators run it: a table that is moved into a node's folder joins the run that goes on."""

from __future__ import annotations

import signal
import sqlite3
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Scene, Theatre

pytestmark = pytest.mark.slow

SITES = tuple(f"site-{number}" for number in range(4))
STOPPED_AT = 3


def late_table(scene: Scene) -> None:
    """It is moved in while releases are being made, and read once, in the exchange that finds it."""
    scene.change_plan('calibration = "none"', 'algorithm = "s-gbdt"')
    (scene.folder / "incoming").mkdir()
    for site in SITES[1:]:
        scene.node(site)
    # Not by counting requests: on a busy machine a round may be asked for twice.
    stop = {"signal": signal.SIGSTOP, "kind": "ROUND_REQUEST", "round": STOPPED_AT, "number": 1, "moment": "before"}
    node = scene.node("site-0", "--arrivals", "incoming", strike=stop)
    hub = scene.coordinator()
    scene.wait_until(lambda: node.is_frozen)
    whole = scene.folder / "elsewhere.csv"
    whole.write_bytes((scene.folder / "site-1-held-out.csv").read_bytes())
    whole.rename(scene.folder / "incoming" / "late.csv")
    node.signal(signal.SIGCONT)
    assert hub.wait() == 0, "".join(hub.err)
    assert node.wait() == 0, "".join(node.err)
    kept = sqlite3.connect(scene.folder / "site-0-state" / "node.db")
    ((name, number),) = kept.execute("select name, round from arrivals").fetchall()
    kept.close()
    assert (name, number) == ("late.csv", STOPPED_AT)


def not_for_trees(scene: Scene) -> None:
    """A plan without an account for each record: the node that would add rows refuses, and the others train."""
    (scene.folder / "incoming").mkdir()
    for site in SITES[1:]:
        scene.node(site)
    refusing = scene.node("site-0", "--arrivals", "incoming")
    hub = scene.coordinator()
    assert refusing.wait() == 2 and refusing.error == "stream-unsupported"
    scene.let_time_pass("site-0")
    assert hub.wait() == 0, "".join(hub.err)


STORIES = {"a late table": (late_table, 6), "a late table for trees": (not_for_trees, 6)}


@pytest.mark.parametrize("story", STORIES)
def test_rows_come_to_a_process_while_it_runs(theatre: Theatre, story: str) -> None:
    """Once, under the run's one ledger; or not at all, by name."""
    theatre.ended(story)
