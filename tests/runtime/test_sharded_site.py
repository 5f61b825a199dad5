"""A site that holds its rows in parts takes part as any other: neither the others nor its store see a difference."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import pytest

from hedgerow.client.setup import build_answers
from hedgerow.client.shards import ShardedNode
from hedgerow.local.training import train
from hedgerow.methods.tasks import TrainingTask
from hedgerow.privacy.noise import SeededNoise
from hedgerow.secagg.messages import Roster
from tests.builders import make_plan
from tests.client.test_shards import shards_of

if TYPE_CHECKING:
    from conftest import Builder


@pytest.mark.parametrize("restarts", [False, True])
def test_a_run_over_a_site_in_parts_is_the_local_engines(federate: Builder, restarts: bool) -> None:
    """Workers are lost in the run, and the node itself is killed and comes back: the model's bytes are the same."""
    federation = federate(3, make_plan(n_trees=6))
    party, calls = federation.parties["site-0"], itertools.count()
    rows = shards_of(federation.data["site-0"], federation.plan, 3, {8, 17, 29}, calls)
    party.kill()
    party.setup = dataclasses.replace(party.setup, load=lambda _: rows)
    party.start()
    if restarts:
        party.after(9, party.restart)
    found = federation.model_bytes(federation.run())
    assert found == train(federation.plan, federation.data, noise=SeededNoise(1)).to_bytes()
    assert next(calls) > 29


def test_a_site_in_parts_uses_no_more_rows_than_it_declares(federate: Builder) -> None:
    """The owner hears of more, and the sums are those of the declared number over all parts together."""
    federation = federate(3)
    party, told = federation.parties["site-0"], list[str]()
    rows = shards_of(federation.data["site-0"], federation.plan, 2)
    roster = party.setup.roster
    sites = tuple(dataclasses.replace(site, max_rows=rows.n_records - 3) for site in roster.sites)
    setup = dataclasses.replace(
        party.setup, load=lambda _: rows, roster=Roster(roster.coordinator, sites), tell=told.append
    )
    answers, digest = build_answers(TrainingTask(federation.plan.with_structure_seed(1)), setup)
    assert isinstance(answers, ShardedNode) and digest == rows.digest
    assert [rows.n_used, len(told)] == [rows.n_records - 3, 1]
