"""A federation over the engine in memory makes the local engine's model, whatever happens to its parties."""

from __future__ import annotations

import pytest

from hedgerow.local_training import train
from hedgerow.model import Model
from hedgerow.privacy.noise import SeededNoise
from hedgerow.server.coordinator import Outcome


def model_bytes(federation: object, outcome: Outcome) -> bytes:
    plan = federation.plan  # type: ignore[attr-defined]
    return Model(plan, outcome.ensemble, outcome.ledger, outcome.report).to_bytes()


def local_bytes(federation: object) -> bytes:
    return train(federation.plan, federation.data, noise=SeededNoise(1)).to_bytes()  # type: ignore[attr-defined]


@pytest.mark.parametrize("n_sites", [3, 4, 7])
def test_the_model_is_the_local_engines(federate, n_sites):
    federation = federate(n_sites)
    outcome = federation.run()
    assert model_bytes(federation, outcome) == local_bytes(federation)
    assert all(party.is_done for party in federation.parties.values())
