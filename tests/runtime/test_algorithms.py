"""Every algorithm is one program over the same federation: the local engine's bytes, over memory and over gRPC."""

from __future__ import annotations

import dataclasses
import os
import random
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hedgerow.app.inputs import signing_key, signing_roster
from hedgerow.client.budget import BudgetBook
from hedgerow.client.node import SamplingSource, SeededSampling
from hedgerow.client.node_session import NodeSession, run_node
from hedgerow.client.policy import Policy
from hedgerow.client.setup import NodeSetup
from hedgerow.client.state import NodeStore
from hedgerow.local.training import train
from hedgerow.methods.tasks import TrainingTask
from hedgerow.models.model import Model
from hedgerow.plan.plan import FederationSection, Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.server.coordinator import RunSession, RunSetup, conclude, run_coordinator
from hedgerow.server.journal import Journal
from hedgerow.transport.grpc_hub import GrpcHub
from hedgerow.transport.grpc_link import GrpcUplink, LinkSettings
from hedgerow.transport.identities import Role, build_roster, create_identity
from hedgerow.transport.interface import Address
from tests.builders import make_data, make_plan, take
from tests.tiers import every

if TYPE_CHECKING:
    from conftest import Builder

SETTINGS = LinkSettings(silence_seconds=3600.0, backoff_seconds=0.05, http_proxy=False)
PATIENCE = 600.0
UNHURRIED = FederationSection(join_timeout=3600.0, round_timeout=3600.0, idle_timeout=3600.0)
"""However busy the machine is, no site is left out."""

_ADASSP = {"model": {"algorithm": "adassp"}}
_S_GBDT = {"model": {"algorithm": "s-gbdt", "n_trees": 3, "max_depth": 2}}
_FILTER = {"individual_filter": True, "extra_rounds": 2, "subsampling_ratio": 0.4}

PLANS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "adassp, logistic": ("binary", {**_ADASSP, "adassp": {"rounds": 3}}, {}),
    "adassp, hinge": ("binary", {**_ADASSP, "adassp": {"rounds": 2, "loss": "hinge"}}, {}),
    "adassp, squared": ("binary", {**_ADASSP, "adassp": {"rounds": 2, "loss": "squared"}}, {}),
    "adassp, regression": ("regression", {**_ADASSP, "adassp": {"rounds": 2}}, {}),
    "adassp, regression, noise of the sites": (
        "regression", {"model": {"algorithm": "adassp"}, "adassp": {"rounds": 2}}, {"noise": "distributed"},
    ),
    "dp-xgboost, choices": (
        "binary", {"model": {"algorithm": "dp-xgboost", "n_trees": 2, "max_depth": 2}}, {},
    ),
    "dp-xgboost, samples of rows": (
        "binary",
        {
            "model": {"algorithm": "dp-xgboost", "n_trees": 2, "max_depth": 2},
            "dp_xgboost": {"subsampling_ratio": 0.5, "gradient": "filter"},
        },
        {},
    ),
    "s-gbdt, filter and samples": ("regression", {**_S_GBDT, "s_gbdt": _FILTER}, {}),
    "s-gbdt, classes": ("binary", {**_S_GBDT, "s_gbdt": {**_FILTER, "splits": "cyclical"}}, {}),
    "s-gbdt, linear start": ("regression", {**_S_GBDT, "s_gbdt": {**_FILTER, "initial_score": "linear"}}, {}),
    "s-gbdt, linear start, classes": ("binary", {**_S_GBDT, "s_gbdt": {**_FILTER, "initial_score": "linear"}}, {}),
    "s-gbdt, linear start, noise of the sites": (
        "binary", {**_S_GBDT, "s_gbdt": {**_FILTER, "initial_score": "linear"}}, {"noise": "distributed"},
    ),
    "dp-xgboost, histograms": (
        "regression",
        {"model": {"algorithm": "dp-xgboost", "n_trees": 2, "max_depth": 2}, "dp_xgboost": {"splits": "histogram"}}, {},
    ),
}  # fmt: skip


def plan_named(name: str) -> Plan:
    label, sections, privacy = PLANS[name]
    return make_plan(label, privacy=privacy, **sections)


def samplers(owners: Mapping[str, NDArray[np.int64]]) -> dict[str, SamplingSource]:
    """Samples that follow the numbers of the rows, whoever holds them."""
    return {site: SeededSampling(5, numbers) for site, numbers in owners.items()}


@pytest.mark.parametrize("name", every(3, PLANS))
def test_over_memory(federate: Builder, name: str) -> None:
    """Masks, sessions, stores, replicas: the model file of one process that holds all sites."""
    plan = plan_named(name)
    federation = federate(4, plan, must_start=False)
    every = np.arange(plan.privacy.n_records)
    sampling = samplers({f"site-{number}": every[number::4] for number in range(4)})
    for site, party in federation.parties.items():
        party.setup = dataclasses.replace(party.setup, sampling=sampling[site])
        party.start()
    outcome = federation.run()
    expected = train(plan, federation.data, noise=SeededNoise(1), sampling=sampling)
    if plan.privacy.noise == "server":
        assert federation.model_bytes(outcome) == expected.to_bytes()
        together = {"one": make_data(plan, plan.privacy.n_records, 7)}
        alone = train(plan, together, noise=SeededNoise(1), sampling=samplers({"one": every}))
        assert alone.to_bytes() == expected.to_bytes()
    for party in federation.parties.values():
        assert party.session is not None and party.is_done and not party.failures
        assert np.array_equal(party.session.result.fitted.values, outcome.ensemble.fitted.values)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PLANS if PLANS[name][2].get("noise") != "distributed"])
def test_over_grpc(tmp_path: Path, name: str) -> None:
    """Real sockets and TLS on loopback, one thread per node: the bytes of one site, and of the local engine."""
    plan = plan_named(name)
    rows = make_data(plan, plan.privacy.n_records, 7)
    names = ["east", "north", "west"]
    numbers = {site: np.arange(number, rows.n_records, 3) for number, site in enumerate(names)}
    data, sampling = {site: take(rows, own) for site, own in numbers.items()}, samplers(numbers)
    coordinator = create_identity(tmp_path, "hub", Role.COORDINATOR)[0]
    keys = {site: create_identity(tmp_path, site, Role.SITE)[0] for site in names}
    pinned = build_roster(coordinator.public, [key.public for key in keys.values()])
    roster, noise = signing_roster(pinned), SeededNoise(3)
    hub = GrpcHub(coordinator, pinned, Address(), settings=SETTINGS)
    policy = Policy(version=1, data_set="test", max_epsilon=100.0, delta=1e-5, noise=("server", "distributed"))
    models: dict[str, Any] = {}

    def take_part(site: str) -> None:
        folder = tmp_path / f"{site}-state"
        store, book = NodeStore(folder), BudgetBook(folder / "budget.db")
        uplink = GrpcUplink(f"127.0.0.1:{hub.port}", keys[site], pinned, random.random, settings=SETTINGS)
        own = data[site]
        own_keys = (signing_key(keys[site]), roster, policy)
        setup = NodeSetup(site, *own_keys, os.urandom, noise, lambda _: own, plan, sampling=sampling[site])
        try:
            models[site] = run_node(NodeSession(setup, store, book), uplink, _clock, PATIENCE)
        finally:
            uplink.close()
            store.close()
            book.close()

    threads = [threading.Thread(target=take_part, args=(site,), daemon=True) for site in names]
    for thread in threads:
        thread.start()
    journal = Journal(tmp_path / "journal.db")
    try:
        setup = RunSetup(TrainingTask(plan), roster, signing_key(coordinator), noise, os.urandom, lambda _: None)
        session = RunSession(setup, journal)
        run_coordinator(session, hub, UNHURRIED, _clock)
        outcome = conclude(session.run)
        for thread in threads:
            thread.join(PATIENCE)
    finally:
        hub.close()
        journal.close()
    federated = Model(plan, outcome.ensemble, outcome.ledger, outcome.report).to_bytes()
    alone = train(plan, {"one": rows}, noise=noise, sampling=samplers({"one": np.arange(rows.n_records)}))
    assert federated == alone.to_bytes() == train(plan, data, noise=noise, sampling=sampling).to_bytes()
    assert sorted(models) == names


def _clock() -> float:
    import time

    return time.monotonic()
