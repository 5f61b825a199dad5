"""No roster and no plan lead to a message that its engine does not carry."""

from __future__ import annotations

import os
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from hedgerow.errors import PlanError
from hedgerow.methods.tasks import TrainingTask
from hedgerow.secagg._primitives.identity import Identity
from hedgerow.secagg.encoding import Kind
from hedgerow.secagg.roster import MAX_NODES
from hedgerow.secagg.setup_messages import KeyBundle, signed_list
from hedgerow.server.rounds import KEY_LIST_BYTES, MAX_SLOTS, check_rounds, most_slots, slots_for
from hedgerow.transport.grpc_core import DEFAULTS

if TYPE_CHECKING:
    from conftest import Builder


@pytest.mark.parametrize("n_sites", [1, 3, 200, 1000, 1024, 2040, MAX_NODES])
def test_the_keys_of_the_largest_roster_fit_into_a_message(factory: ModuleType, n_sites: int) -> None:
    """A federation of 4,096 sites has shorter epochs, instead of a set-up that fails at every site."""
    task = TrainingTask(factory.make_plan(model={"n_trees": 100_000, "batch_size": 1}))
    n_slots = slots_for(task, 0, n_sites)
    assert n_slots == most_slots(n_sites) and 200 < n_slots <= MAX_SLOTS
    keys = tuple(os.urandom(32) for _ in range(n_slots))
    bundle = KeyBundle(bytes(32), 0, bytes(32), bytes(32), keys).to_signed(Identity(bytes(32)))
    listed = signed_list(Kind.KEY_LIST, bytes(32), [bundle] * n_sites)
    assert len(listed) <= KEY_LIST_BYTES + 64 <= DEFAULTS.max_message_bytes // 2 + 64
    assert most_slots(1000) == MAX_SLOTS


def test_a_plan_of_more_rounds_than_a_runs_epochs_hold_is_refused_before_anyone_is_asked(
    federate: Builder, factory: ModuleType
) -> None:
    """It would use up all epochs, and with them the budgets of all sites, for no model."""
    long = TrainingTask(factory.make_plan(model={"n_trees": 5000, "batch_size": 1}))
    check_rounds(long, 1000)
    with pytest.raises(PlanError) as refused:
        check_rounds(long, MAX_NODES)
    assert refused.value.code == "plan-too-many-rounds" and "4,096 sites" in refused.value.what
    federation = federate(3, factory.make_plan(model={"n_trees": 20_000, "batch_size": 1}))
    with pytest.raises(PlanError):
        federation.run()
    assert not federation.sent
