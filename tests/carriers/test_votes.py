"""Votes of sites over every engine: the model, the votes and the alarm of the engine `local`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from experiments.federation import Loopback
from hedgerow.app.inputs import read_plan, signing_roster
from hedgerow.carriers.site import LOG_FILE
from hedgerow.client.shards import Shards
from hedgerow.data.site_data import read_site_data
from hedgerow.local import training
from hedgerow.models.model import Model
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.votes import Tally
from hedgerow.secagg.guarantees import assign_groups
from hedgerow.transport.identities import PinnedRoster, read_roster
from tests.carriers.conftest import Builder, Federation
from tests.carriers.test_files import DAYS, Airlock
from tests.carriers.test_link import office_of, run
from tests.client.test_shards import shards_of
from tests.wards import SEED, forget_place

N_SITES, N_GROUPS, EPSILON = 9, 3, 40
N_TURNED = 4
"""Sites with most of the rows, and labels turned round: more than half of the groups have one."""


def furnish_dispute(federation: Federation) -> None:
    """Give the sites a plan with votes, and rows on which five of nine object to the model of the four others."""
    plan = federation.folder / "plan.toml"
    text = plan.read_text().replace("epsilon = 1\n", f"epsilon = {EPSILON}\n")
    plan.write_text(text.replace("[federation]\n", f"[federation]\ngroups = {N_GROUPS}\nvotes = true\n"))
    for policy in (federation.folder / name for name in ("policy.toml", "shows.toml")):
        policy.write_text(policy.read_text().replace("max_epsilon = 3", f"max_epsilon = {EPSILON}"))
    random = np.random.default_rng(3)
    for number, site in enumerate(federation.sites):
        is_turned = number < N_TURNED
        ages = random.integers(0, 100, 400 if is_turned else 64)
        rows = [f"{age},{'ab'[age % 2]},{int((age > 50) != is_turned)}\n" for age in ages]
        (federation.folder / f"{site}.csv").write_text("age,ward,ill\n" + "".join(rows), encoding="ascii")


def deal_locally_by(roster: PinnedRoster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the engine `local`, whose sites have no keys, form the groups of a roster."""
    keys = {site.name.encode(): site.key for site in signing_roster(roster).sites}

    def assign(names: list[bytes], n_groups: int, drawing: bytes = b"") -> tuple[int, ...]:
        return assign_groups([keys[name] for name in names], n_groups, drawing)

    monkeypatch.setattr(training, "assign_groups", assign)


def over_grpc(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Train over sockets; one site holds its rows in three parts."""
    folder = federation.folder / "loopback"
    folder.mkdir()
    loopback = Loopback(N_SITES, folder)
    plan = read_plan(federation.path("plan.toml"))
    names = dict(zip(federation.sites, loopback.names, strict=True))
    rows = {names[site]: read_site_data(federation.path(f"{site}.csv"), plan)[0] for site in federation.sites}
    deal_locally_by(loopback.roster, monkeypatch)
    local = training.train(plan, rows, noise=SeededNoise(int(SEED)))
    (federation.folder / "local.json").write_bytes(local.to_bytes())
    parts: dict[str, Shards] = {loopback.names[0]: shards_of(rows[loopback.names[0]], plan, 3)}
    return loopback.run(plan, {**rows, **parts}, SeededNoise(int(SEED))).model  # type: ignore[arg-type]


def over_messages(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Train as Flower and NVFlare carry messages: a node's process for each of them."""
    deal_locally_by(read_roster(federation.folder / "roster.toml"), monkeypatch)
    federation.local_model()
    run(federation, office_of(federation))
    require_told(federation)
    return federation.model()


def over_files(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Train by files that people carry."""
    deal_locally_by(read_roster(federation.folder / "roster.toml"), monkeypatch)
    federation.local_model()
    airlock = Airlock(federation)
    while not airlock.is_done:
        airlock.step()
    assert airlock.party("out", "coordinator") == 0
    for site in federation.sites:
        airlock.carry("coordinator", site, "request")
        assert airlock.party("in", site) == 0
    require_told(federation)
    return federation.model()


def require_told(federation: Federation) -> None:
    """Require that every owner has heard of the objections, and that no site is named."""
    for site in federation.sites:
        lines = (federation.folder / f"{site}-state" / LOG_FILE).read_text(encoding="utf-8").splitlines()
        told = [line for line in lines if "model-spoilt" in line]
        assert told and not [line for line in told if "site-" in line.replace(f"{site}:", "")]


ENGINES: dict[str, Callable[[Federation, pytest.MonkeyPatch], bytes]] = {
    "grpc": over_grpc,
    "messages": over_messages,
    "files": over_files,
}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_votes_are_the_local_engines(in_files: Builder, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """Whoever carries the messages, the same sites object, all parties conclude the same, and no tree differs."""
    federation = in_files(N_SITES, n_trees=3, batch_size=1, learning_rate=1.0, **(DAYS if engine == "files" else {}))
    furnish_dispute(federation)
    found = ENGINES[engine](federation, monkeypatch)
    local = Path(federation.path("local.json"))
    assert forget_place(found) == forget_place(local.read_bytes())
    report = Model.load(local).report
    assert [(n_sites, n_voted) for n_sites, n_voted, _ in report.tallies] == [(N_SITES, N_SITES)] * 2
    assert any(Tally(*tally).is_against(N_GROUPS) for tally in report.tallies)
    assert json.loads(found)["report"]["tallies"] == [list(tally) for tally in report.tallies]
