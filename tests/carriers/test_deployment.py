"""A real SuperLink and real SuperNodes, with TLS and SuperNode authentication, as docs/flower.md has them.

Slow: Flower starts a process for every message of every node. A run is one test and is looked at from all sides.
"""

from __future__ import annotations

import base64
import json
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.app.inputs import read_plan
from hedgerow.carriers import read_coordinator_file
from hedgerow.client.node import Node, warm_up
from hedgerow.codec import Integers, head
from hedgerow.data.site_data import read_site_data
from hedgerow.methods.registry import resolve
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import TrainingTask
from hedgerow.models.model import Model
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.messages import MessageKind
from hedgerow.transport.envelope import EnvelopeKind
from tests.carriers.deployment import Deployment, why_not
from tests.wards import forget_place, survivors_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a deployment"),
]
PATIENCE = 1800
"""Seconds; no test measures time, this only bounds one that fails."""
CANARY = "canary-5d1f0c"


class Watcher:
    """Everything that a SuperLink's database holds at any time while it is watched."""

    def __init__(self, database: Path) -> None:
        self._database, self.seen = database, set[bytes]()
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with closing(sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)) as connection:
            last = -1
            while not self._stops.wait(0.1):
                try:
                    # It counts what others write: reading everything again takes far longer.
                    ((version,),) = connection.execute("pragma data_version").fetchall()
                    if version != last:
                        self._look(connection)
                        last = version
                except sqlite3.Error:
                    continue  # It is being written; the next look comes at once.

    def _look(self, connection: sqlite3.Connection) -> None:
        for (table,) in connection.execute("select name from sqlite_master where type = 'table'").fetchall():
            for row in connection.execute(f'select * from "{table}"'):
                self.seen.update(value if isinstance(value, bytes) else str(value).encode() for value in row)

    def close(self) -> bytes:
        self._stops.set()
        self._thread.join()
        with closing(sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)) as connection:
            self._look(connection)
        return b"\0".join(self.seen)


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Callable[..., Deployment]]:
    """Start a SuperLink and a SuperNode for every site; all of it is killed at the end."""
    started: list[Deployment] = []

    def start(federation: Any, *residents: str) -> Deployment:
        # Else every process that comes first compiles the same kernels.
        warm_up(read_plan(federation.path("plan.toml")))
        files = {site: federation.folder / f"{site}.toml" for site in federation.sites}
        deployment = Deployment(tmp_path / "flower", files, residents)
        started.append(deployment)
        for site in federation.sites:
            deployment.start_node(site)
        return deployment

    yield start
    for deployment in started:
        deployment.close()


def secrets_of(federation: Any, left: list[str]) -> dict[str, bytes]:
    """What must stay where it is: keys, rows, and each site's and all sites' sums before the noise."""
    found: dict[str, bytes] = {"a row": CANARY.encode()}
    for name in ("hub", *federation.sites):
        content = json.loads((federation.folder / f"{name}.private.json").read_text())
        found[f"{name}'s signing key"] = base64.b64decode(content["identity_seed"])
        found[f"{name}'s TLS key"] = content["tls_key"].splitlines()[1].encode()
    for site in federation.sites:
        # A resident node keeps its files locked: a copy, with its log, is read.
        copy = federation.folder / f"{site}-copy"
        copy.mkdir()
        for file in (federation.folder / f"{site}-state").glob("link.db*"):
            shutil.copy(file, copy)
        with closing(sqlite3.connect(copy / "link.db")) as connection:
            ((found[f"{site}'s key of the link"],),) = connection.execute("select secret from link").fetchall()
    plan = Model.load(federation.path("model.json")).plan
    query = Replica(TrainingTask(plan)).query
    assert query is not None
    total = np.zeros(query.length, dtype=np.int64)
    for site in federation.sites:
        data = read_site_data(federation.path(f"{site}.csv"), plan)[0]
        vector = Node(site, data, plan, resolve(plan)).answer(query)
        total += vector if site in left else 0
        found[f"{site}'s sums"] = encoded(vector)
    found["all sites' sums"] = encoded(total)
    return found


def encoded(vector: np.ndarray[Any, Any]) -> bytes:
    """The integers of a vector, as they stand in a message."""
    into: list[bytes] = []
    Integers(most=len(vector)).write(vector, into)
    return into[-1]


def written(secret: bytes) -> list[bytes]:
    """The ways in which bytes are written down."""
    return [secret, secret.hex().encode(), base64.b64encode(secret).rstrip(b"=")]


def nothing_was_learnt(federation: Any, deployment: Deployment, stored: bytes, left: list[str]) -> None:
    """No secret and no private number stands in the SuperLink's database or in a log."""
    logs = b"".join(path.read_bytes() for path in deployment.folder.glob("*.log"))
    # The search would see what is there: the plan travels in the open, and sealed requests and replies were stored.
    assert b'"ward"' in stored and b"is ready" in logs
    for kind in (EnvelopeKind.REQUEST, EnvelopeKind.REPLY):
        assert head(kind) in stored
    for kind in set(MessageKind) - {MessageKind.INVITATION}:
        assert head(kind) not in stored
    for name, secret in secrets_of(federation, left).items():
        assert len(secret) >= len(CANARY), name
        for text in written(secret):
            assert text not in stored and text not in logs, name


def with_a_canary(table: Path) -> None:
    """Give a table a column that the plan does not name."""
    first, *others = table.read_text().splitlines()
    table.write_text("\n".join([f"{first},note", *(f"{line},{CANARY}" for line in others)]) + "\n")


def furnished(in_files: Callable[..., Any]) -> Any:
    """Four sites, two rounds, a table on its way, and a coordinator that is in no hurry."""
    timeouts = dict.fromkeys(("join_timeout", "round_timeout", "idle_timeout"), PATIENCE)
    model = {"algorithm": "s-gbdt", "n_trees": 1, "max_depth": 2}
    federation = in_files(n_sites=4, **model, **timeouts)
    with open(federation.path("plan.toml"), "a", encoding="ascii") as file:
        file.write("[s_gbdt]\nextra_rounds = 1\nsubsampling_ratio = 1\ninitial_score_share = 0\n")
    with open(federation.path("site-1.toml"), "a", encoding="ascii") as file:
        file.write('arrivals = "incoming"\n')
    coordinator = federation.folder / "coordinator.toml"
    # A request that is repeated while its node is at work is one more process on a busy machine.
    coordinator.write_text(coordinator.read_text().replace("repeat = 5", f"repeat = {PATIENCE}"))
    (federation.folder / "incoming").mkdir()
    for site in federation.sites:
        with_a_canary(federation.folder / f"{site}.csv")
    return federation


def test_a_deployment_makes_the_local_engines_model_and_the_superlink_learns_nothing(
    in_files: Callable[..., Any], deploy: Callable[..., Deployment]
) -> None:
    """Four sites: one is ended for good after the set-up, one is ended after its first vector and started again.

    No round waits for the one that has gone, and the second round has to wait for the other. While that one's node is
    away, its owner moves a table of more rows into its folder. Three of the nodes are resident behind sockets. The
    model is, byte for byte, that of the sites in each round, with the new rows from the round on that found them.
    """
    federation = furnished(in_files)
    more = federation.folder / "incoming" / "more.csv"
    deployment = deploy(federation, "site-0", "site-2", "site-3")
    watcher = Watcher(deployment.database)
    run = deployment.run(federation.folder / "coordinator.toml")
    # Greeting, keys, nonces, shares, acknowledgement; and a vector.
    deployment.nodes["site-3"].wait_for("Sent successfully", 5, patience=PATIENCE)
    deployment.end_node("site-3")
    deployment.nodes["site-1"].wait_for("Sent successfully", 6, patience=PATIENCE)
    deployment.end_node("site-1")
    for site in ("site-1", "site-3"):
        run.wait_for(f"{site} is gone", patience=PATIENCE)
    (federation.folder / "site-1-held-out.csv").rename(more)
    deployment.start_node("site-1")
    run.wait_for("Requests to a site: ", patience=PATIENCE)
    stored = watcher.close()

    with closing(sqlite3.connect(federation.path("site-1-state/node.db"))) as database:
        ((came,),) = database.execute("select round from arrivals").fetchall()
    plan = Model.load(federation.path("model.json")).plan
    survivors, left = federation.survivors(), federation.sites[:3]
    rows = {site: read_site_data(federation.path(f"{site}.csv"), plan)[0] for site in federation.sites}
    noise = SeededNoise(read_coordinator_file(federation.folder / "coordinator.toml").seed)
    late = {came: {"site-1": read_site_data(more, plan)[0]}}
    # The first vector of the one that went for good may have been on its way; and on a machine so busy that the other
    # one was greeted twice, its first vector may not have been.
    assert came in (0, 1) and survivors[0] in (federation.sites, left) and survivors[1:] == [left]
    assert federation.model() == forget_place(survivors_model(plan, rows, survivors, noise, late))
    nothing_was_learnt(federation, deployment, stored, survivors[0])
