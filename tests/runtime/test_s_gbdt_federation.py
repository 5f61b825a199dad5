"""S-GBDT as a federation: over the real sessions and stores, and over TLS, to the byte what one process makes."""

from __future__ import annotations

import dataclasses
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hedgerow.app.inputs import signing_key, signing_roster
from hedgerow.client.budget import BudgetBook
from hedgerow.client.node import Node, SamplingSource, SeededSampling
from hedgerow.client.node_session import NodeSession, run_node
from hedgerow.client.policy import Policy
from hedgerow.client.setup import NodeSetup
from hedgerow.client.state import NodeStore
from hedgerow.data.binned import SiteData
from hedgerow.local.training import train
from hedgerow.methods.registry import program_for, resolve
from hedgerow.methods.s_gbdt.trees import accounts
from hedgerow.methods.tasks import TrainingTask
from hedgerow.models.model import Model
from hedgerow.plan.plan import FederationSection, Plan
from hedgerow.privacy.events import FilteredGaussianEvent
from hedgerow.privacy.noise import SeededNoise
from hedgerow.server.coordinator import RunEvent, RunSession, RunSetup, conclude, run_coordinator
from hedgerow.server.journal import Journal
from hedgerow.transport.grpc_hub import GrpcHub
from hedgerow.transport.grpc_link import GrpcUplink, LinkSettings
from hedgerow.transport.identities import Role, build_roster, new_identity
from hedgerow.transport.interface import Address
from tests.builders import make_data, s_gbdt_plan, take

if TYPE_CHECKING:
    from conftest import Builder

POLICY = Policy(version=1, data_set="test", max_epsilon=100.0, delta=1e-5, noise=("server", "distributed"))
LINK = LinkSettings(silence_seconds=3600.0, backoff_seconds=0.05, http_proxy=False)
UNHURRIED = FederationSection(join_timeout=3600.0, round_timeout=3600.0, idle_timeout=3600.0)
"""However busy the machine is, no site is left out."""


def rich_plan(label: str, noise: str = "server") -> Plan:
    """A small plan with a filter, a sample, an initial score, extra rounds and a closing one."""
    own = {"extra_rounds": 2, "closing_rounds": 1, "subsampling_ratio": 0.4}
    return s_gbdt_plan(label, privacy={"n_records": 60, "noise": noise}, **own)


def samplers(n_records: int, n_sites: int) -> dict[str, SamplingSource]:
    """Row i is at site i modulo the number of sites, under its own number."""
    owner = np.arange(n_records) % n_sites
    return {f"site-{site}": SeededSampling(5, np.flatnonzero(owner == site)) for site in range(n_sites)}


def alone(plan: Plan) -> bytes:
    """The model file of one site that holds all rows."""
    data = make_data(plan, 60, 7)
    sampling: dict[str, SamplingSource] = {"all": SeededSampling(5, np.arange(60))}
    return train(plan, {"all": data}, noise=SeededNoise(1), sampling=sampling).to_bytes()


def started(federation: FederationSection) -> FederationSection:
    """Parties whose samples are seeded by the numbers of their rows."""
    sources = samplers(60, len(federation.parties))
    for site, party in federation.parties.items():
        party.setup = dataclasses.replace(party.setup, sampling=sources[site])
        party.start()
    return federation


@pytest.mark.parametrize("label", ["binary", "regression"])
@pytest.mark.parametrize("n_sites", [3, 5])
def test_a_federation_makes_the_model_of_one_site(federate: Builder, label: str, n_sites: int) -> None:
    """Masks, sessions, stores and replicas in between: the model file is the same to the byte."""
    plan = rich_plan(label)
    federation = started(federate(n_sites, plan, must_start=False))
    outcome = federation.run()
    assert federation.model_bytes(outcome) == alone(plan)
    assert all(party.is_done and not party.failures for party in federation.parties.values())


def test_a_killed_node_charges_its_records_as_if_it_had_not_been(federate: Builder) -> None:
    """What each record has spent is no file: a restarted node finds it again from its rows and the releases."""
    plan = rich_plan("regression")
    federation = started(federate(4, plan, must_start=False))
    n_told = 0

    def act(event: RunEvent) -> None:
        nonlocal n_told
        n_told += event.kind == "released"
        if event.kind == "released" and n_told == 4:
            federation.parties["site-2"].kill()
            federation.parties["site-2"].start()

    federation.on_event = act
    federation.run()
    session, coordinator = federation.parties["site-2"].session, federation.session
    assert n_told == 9 and session is not None and session._run is not None and coordinator is not None
    decided = resolve(plan)
    calm, program = Node("site-2", federation.data["site-2"], plan, decided), program_for(plan, decided)
    query = next(program)
    for release in coordinator.run.releases:
        calm.finish(query)
        try:
            query = program.send(release)
        except StopIteration:
            break
    assert (accounts(session._run.node.held) == accounts(calm.held)).all() and accounts(calm.held).min() > 0


def test_a_node_books_one_filter_for_a_run(federate: Builder) -> None:
    """What the owner reads in the budget book is what the model's ledger says, and no more than the plan's epsilon."""
    plan = rich_plan("binary", "distributed")
    federation = started(federate(4, plan, must_start=False))
    outcome = federation.run()
    events = [event for event in outcome.ledger.events() if isinstance(event, FilteredGaussianEvent)]
    assert len(events) == 6 and len({(event.order, event.budget) for event in events}) == 1
    for party in federation.parties.values():
        assert party.book is not None
        assert party.book.spent("test", plan.privacy.delta) == outcome.report.epsilon <= plan.privacy.epsilon


def test_over_grpc_it_is_the_model_of_one_site(tmp_path: Path) -> None:
    """The same over TLS and sockets, each node in a thread of its own."""
    plan = rich_plan("binary")
    rows = make_data(plan, 60, 7)
    sources = samplers(60, 3)
    coordinator = new_identity("coordinator", Role.COORDINATOR, bytes([9]) * 32)
    identities = {site: new_identity(site, Role.SITE, bytes([i + 1]) * 32) for i, site in enumerate(sources)}
    pinned = build_roster(coordinator.public, [identity.public for identity in identities.values()])
    roster = signing_roster(pinned)
    hub = GrpcHub(coordinator, pinned, Address(), settings=LINK)

    def take_part(number: int, site: str) -> None:
        own: SiteData = take(rows, np.flatnonzero(np.arange(60) % 3 == number))
        store, book = NodeStore(tmp_path / site), BudgetBook(tmp_path / site / "budget.db")
        keys = (signing_key(identities[site]), roster, POLICY)
        setup = NodeSetup(site, *keys, os.urandom, SeededNoise(1), lambda _: own, plan, sampling=sources[site])
        jitter = random.Random(number).random
        uplink = GrpcUplink(f"127.0.0.1:{hub.port}", identities[site], pinned, jitter, settings=LINK)
        try:
            run_node(NodeSession(setup, store, book), uplink, time.monotonic, 600.0)
        finally:
            uplink.close()
            book.close()
            store.close()

    journal = Journal(tmp_path / "journal.db")
    try:
        with ThreadPoolExecutor(3) as threads:
            nodes = [threads.submit(take_part, number, site) for number, site in enumerate(sources)]
            keys = roster, signing_key(coordinator)
            setup = RunSetup(TrainingTask(plan), *keys, SeededNoise(1), os.urandom, lambda _: None)
            session = RunSession(setup, journal)
            run_coordinator(session, hub, UNHURRIED, time.monotonic)
            outcome = conclude(session.run)
            for node in nodes:
                node.result(600)
    finally:
        hub.close()
        journal.close()
    model = Model(plan, outcome.ensemble, outcome.ledger, outcome.report)
    assert model.to_bytes() == alone(plan)
