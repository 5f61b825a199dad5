"""No roster and no plan lead to a message that its engine does not carry."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from experiments.secagg_lab import set_up
from hedgerow.errors import PlanError
from hedgerow.methods.tasks import TrainingTask
from hedgerow.protocol.messages import MessageKind
from hedgerow.secagg._primitives.identity import Identity
from hedgerow.secagg._primitives.shamir import SHARE_BYTES
from hedgerow.secagg.encoding import Kind
from hedgerow.secagg.guarantees import derive
from hedgerow.secagg.integers import LEAST_COLLUDERS
from hedgerow.secagg.messages import (
    Acknowledgement,
    KeyBundle,
    NonceReveal,
    ReadyList,
    ShareDelivery,
    signed_list,
)
from hedgerow.secagg.roster import MAX_NODES, Roster, Site
from hedgerow.secagg.session import default_wishes
from hedgerow.server.epochs import KEY_LIST_BYTES, MAX_SLOTS, check_rounds, most_slots, slots_for
from hedgerow.server.status import RunEvent
from hedgerow.transport.grpc_link import DEFAULTS

if TYPE_CHECKING:
    from conftest import Builder


@pytest.mark.parametrize("n_sites", [1, 3, 200, 1000, 1024, 2040, 2048, MAX_NODES])
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


def signed_by(node: int, n_slots: int, held: tuple[int, ...]) -> tuple[bytes, bytes, bytes]:
    """A node's bundle, nonce and acknowledgement; how long they are does not depend on what is in them."""
    identity, some = Identity(bytes(32)), bytes(32)
    keys = tuple(os.urandom(32) for _ in range(n_slots))
    return (
        KeyBundle(some, node, some, some, keys).to_signed(identity),
        NonceReveal(some, node, some, some).to_signed(identity),
        Acknowledgement(some, node, held).to_signed(identity),
    )


def bytes_to_a_node(task: TrainingTask, n_sites: int) -> dict[str, int]:
    """The messages that one node is sent in a set-up, how many bytes each, and what of the keys it works with."""
    n_slots, guarantees = slots_for(task, 0, n_sites), derive(n_sites, default_wishes(n_sites, LEAST_COLLUDERS))
    near = tuple(range(guarantees.degree or n_sites - 1))
    bundle, nonce, said = signed_by(0, n_slots, near)
    coordinator, *keys = distinct_keys(n_sites + 1)
    roster = Roster(coordinator, tuple(Site(f"site-{count:04}", key) for count, key in enumerate(keys)))
    lists = (
        signed_list(Kind.KEY_LIST, bytes(32), [bundle] * n_sites),
        signed_list(Kind.NONCE_LIST, bytes(32), [nonce] * n_sites),
        ReadyList(bytes(32), (said,) * n_sites).to_bytes(),
    )
    sealed = (bytes(SHARE_BYTES * n_slots + 28),) * len(near)
    return {
        "keys": len(lists[0]), "nonces": len(lists[1]), "ready": len(lists[2]),
        "shares": len(ShareDelivery(bytes(32), near, sealed).to_bytes()),
        "origin": len(roster.to_bytes()) + sum(map(len, lists)),
        "neighbours' keys": len(bundle) * len(near),
    }  # fmt: skip


def distinct_keys(count: int) -> list[bytes]:
    """Public keys that a roster takes."""
    return [Identity(number.to_bytes(32, "big")).public for number in range(1, count + 1)]


@pytest.mark.parametrize("n_sites", [200, 1000, 2048, MAX_NODES])
def test_the_document_says_what_a_node_of_a_large_roster_is_sent(factory: ModuleType, n_sites: int) -> None:
    """Every message of a set-up has room in one, and an operator can read how much there is of each."""
    sent = bytes_to_a_node(TrainingTask(factory.make_plan(model={"n_trees": 100_000, "batch_size": 1})), n_sites)
    assert max(sent.values()) < DEFAULTS.max_message_bytes
    text = (Path(__file__).parents[2] / "docs" / "secure-aggregation.md").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^ *\| {n_sites:,} \|(.*)\|$", text, re.MULTILINE)
    assert [cell.strip() for cell in line.split("|")] == [f"{size / 2**20:.2f}" for size in sent.values()]


def test_an_acknowledgement_is_no_longer_than_its_nodes_neighbours() -> None:
    """All of them go to every node in one message, and the format alone lets each of them be 128 KiB."""
    made = set_up("ready")
    said = Acknowledgement.from_signed(made.messages[0])
    longer = replace(said, held=tuple(range(1, 1 << 16))).to_signed(made.contexts[0].identity)
    server, complaints = made.server.receive([longer, *made.messages[1:]])
    assert [(fault.code, fault.peer) for fault in complaints] == [("content-mismatch", 0)]
    assert sorted(server.acknowledgements) == [1, 2, 3]


def test_who_was_in_the_epoch_that_drew_the_seed_is_not_shown_it_again(federate: Builder, factory: ModuleType) -> None:
    """Its lists are as long as those of the epoch that is set up, and only a site that came later needs them."""
    plan = factory.make_plan(model={"structure_seed": "joint", "n_trees": 6})
    federation = federate(5, plan, must_start=False)
    early, late = [f"site-{number}" for number in range(4)], "site-4"
    for site in early:
        federation.parties[site].start()
    n_released = [0]

    def act(event: RunEvent) -> None:
        n_released[0] += event.kind == "released"
        if event.kind == "released" and n_released[0] == 2:
            federation.parties[late].start()
        if event.kind == "released" and n_released[0] == 4:
            federation.parties["site-1"].restart()

    federation.on_event = act
    outcome = federation.run()
    assert federation.session.run.attempt >= 2
    shown = [site for site, message in federation.sent if message[4] == MessageKind.ORIGIN]
    assert shown == [late]
    assert federation.model_bytes(outcome) == federation.survivors_model()


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
