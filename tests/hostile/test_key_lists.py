"""No roster and no plan lead to a message that its engine does not carry."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from experiments import secagg_cost
from hedgerow.crypto import KEY_BYTES, SHARE_BYTES
from hedgerow.errors import ModelError, PlanError
from hedgerow.methods.tasks import EvaluationTask, TrainingTask
from hedgerow.privacy.calibration import noise_of
from hedgerow.protocol.messages import MessageKind, RoundRequest, encode
from hedgerow.rounds import release_bound
from hedgerow.secagg.guarantees import MAX_NODES
from hedgerow.secagg.messages import HANDED_BACK_BYTES, Acknowledgement
from hedgerow.secagg.session import EpochSession
from hedgerow.server.coordinator import (
    MAX_HELD_SLOTS,
    RELEASES_BYTES,
    SLOT_KEYS_BYTES,
    RunEvent,
    check_releases,
    check_rounds,
    most_slots,
    slots_for,
)
from hedgerow.transport.grpc_link import DEFAULTS
from tests.builders import make_plan, queries_of
from tests.secagg.lab import set_up
from tests.secagg.setup_sizes import setup_sizes
from tests.tiers import all_but

if TYPE_CHECKING:
    from conftest import Builder

SENT = ("key bundles", "nonces, slot keys", "shares", "ready list")
ORIGIN = "the epoch that drew the seed"


@pytest.mark.parametrize("n_sites", all_but((1024, 2048, MAX_NODES), [2, 3, 200, 201, 1000, 1024, 2048, MAX_NODES]))
def test_every_message_of_the_largest_roster_fits_into_one(n_sites: int) -> None:
    """No site is sent the keys of all. The coordinator holds them, so a federation of 4,096 has shorter epochs."""
    task = TrainingTask(make_plan(model={"n_trees": 100_000, "batch_size": 1}))
    n_slots = slots_for(task.schedule.n_rounds, n_sites)
    assert n_slots == most_slots(n_sites) and 200 < n_slots <= MAX_HELD_SLOTS
    assert KEY_BYTES * n_slots * n_sites <= SLOT_KEYS_BYTES
    sizes = setup_sizes(n_sites, n_slots)
    largest = max(sizes[name] for name in (*SENT, ORIGIN))
    assert largest < DEFAULTS.max_message_bytes // 2
    assert most_slots(1024) == MAX_HELD_SLOTS


def test_what_a_node_is_sent_grows_with_its_neighbours() -> None:
    """Of a site that is no neighbour it is sent a bundle, a nonce and an acknowledgement, however many rounds."""
    sizes = setup_sizes(1000, 1024)
    assert sizes["together"] < 8e6
    longer = setup_sizes(1000, 1025)
    assert longer["together"] - sizes["together"] == sizes["neighbours"] * (KEY_BYTES + SHARE_BYTES)
    # The lists of all are those of an epoch of one slot: about half a kilobyte of each site.
    lists = setup_sizes(1000, 1)
    assert all(lists[name] == sizes[name] for name in ("key bundles", "ready list"))
    assert lists["together"] - lists["neighbours"] * HANDED_BACK_BYTES < 600 * 1000


def test_the_sizes_are_those_of_a_real_set_up() -> None:
    """The table is computed from made-up messages; a cohort that has set itself up was sent as many bytes."""
    session = EpochSession([f"site-{number:04}" for number in range(52)], 3, os.urandom)
    sizes, parameters = setup_sizes(52, 3), len(session.parameters.to_bytes())
    assert set(session.traffic.down.values()) == {sizes["together"] + parameters}
    assert len(session.view.record) == sizes[ORIGIN]


def test_the_document_says_what_a_node_of_a_large_roster_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    """An operator can read how much a set-up sends a node, and the command that prints it."""
    assert secagg_cost.main(["--sizes"]) == 0
    _, _, *rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    together = {cells[0]: round(float(cells[7])) for cells in rows}
    assert together == {"200": 3, "1,000": 3, "2,048": 2, "4,096": 3}
    text = " ".join((Path(__file__).parents[2] / "docs" / "secure-aggregation.md").read_text(encoding="utf-8").split())
    assert "2 to 3 MiB at 200 to 4,096 sites (`python -m experiments secagg_cost" in text


def test_an_acknowledgement_is_no_longer_than_its_nodes_neighbours() -> None:
    """All of them go to every node in one message, and the format alone lets each of them be 128 KiB."""
    made = set_up("ready")
    said = Acknowledgement.from_signed(made.messages[0])
    longer = replace(said, held=tuple(range(1, 1 << 16))).to_signed(made.contexts[0].identity)
    server, complaints = made.server.receive([longer, *made.messages[1:]])
    assert [(fault.code, fault.peer) for fault in complaints] == [("content-mismatch", 0)]
    assert sorted(server.acknowledgements) == [1, 2, 3]


def test_who_was_in_the_epoch_that_drew_the_seed_is_not_shown_it_again(federate: Builder) -> None:
    """Its lists are as long as those of the epoch that is set up, and only a site that came later needs them."""
    plan = make_plan(model={"structure_seed": "joint", "n_trees": 6})
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


def test_a_plan_of_more_rounds_than_a_runs_epochs_hold_is_refused_before_anyone_is_asked(federate: Builder) -> None:
    """It would use up all epochs, and with them the budgets of all sites, for no model."""
    long = TrainingTask(make_plan(model={"n_trees": 5000, "batch_size": 1}))
    check_rounds(long, 1000)
    with pytest.raises(PlanError) as refused:
        check_rounds(long, MAX_NODES)
    assert refused.value.code == "plan-too-many-rounds" and "4,096 sites" in refused.value.what
    federation = federate(3, make_plan(model={"n_trees": 20_000, "batch_size": 1}))
    with pytest.raises(PlanError):
        federation.run()
    assert not federation.sent


LARGE = {"n_records": 100_000, "epsilon": 1.0}


@pytest.mark.parametrize(
    ("label", "model"),
    [
        ("binary", {"n_trees": 40_000, "batch_size": 200, "max_depth": 8}),
        ("multiclass", {"n_trees": 10_000, "batch_size": 50, "max_depth": 8}),
        ("binary", {"n_trees": 2500, "split_method": "hist", "interaction_size": "all", "max_depth": 6}),
    ],
)
def test_a_plan_whose_releases_fit_no_message_is_refused_before_anyone_is_asked(
    federate: Builder, label: str, model: dict[str, object]
) -> None:
    """Who came late was sent all of them at once: then the coordinator ended, and again at every start."""
    federation = federate(3, make_plan(label, model=model, privacy=LARGE), must_start=False)
    with pytest.raises(PlanError) as refused:
        federation.run()
    assert refused.value.code == "plan-releases-too-long"
    assert not federation.sent and not federation.session


def test_a_model_that_fits_no_message_is_refused_before_anyone_is_asked() -> None:
    """Its invitation would reach no site, and the run would end for want of sites."""
    plan = make_plan().with_structure_seed(1)
    check_releases(EvaluationTask(plan, bytes(RELEASES_BYTES), 1.0, 1e-6, 0), 3)
    with pytest.raises(ModelError) as refused:
        check_releases(EvaluationTask(plan, bytes(RELEASES_BYTES + 1), 1.0, 1e-6, 0), 3)
    assert refused.value.code == "model-too-long-to-send"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "model", "privacy"),
    [
        ("multiclass", {"n_trees": 5000, "batch_size": 5, "max_depth": 8}, LARGE),
        ("regression", {"n_trees": 8000, "batch_size": 1}, {"n_records": 10**8, "epsilon": 0.1}),
        ("binary", {"n_trees": 8000, "batch_size": 4}, {"noise": "distributed"}),
    ],
)
def test_all_releases_of_a_plan_that_may_be_run_fit_one_message(
    label: str, model: dict[str, object], privacy: dict[str, object]
) -> None:
    """Were every number of them as large as one that is not refused, and with room for the round's spec."""
    plan, n_sites = make_plan(label, model=model, privacy=privacy), 5
    task = TrainingTask(plan)
    check_releases(task, n_sites)
    releases = []
    for query in queries_of(task)[0]:
        group = n_sites - 1 if plan.privacy.noise == "distributed" else None
        largest = release_bound(query, plan, noise_of(query, group).variance, n_sites)
        releases.append(np.full(query.release_length, -largest))
    message = RoundRequest(len(releases), tuple(releases), bytes(1 << 16))
    assert len(encode(message)) <= DEFAULTS.max_message_bytes
