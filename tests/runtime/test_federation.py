"""A federation over the engine in memory makes the local engine's model, whatever happens to its parties."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hedgerow.data.binned import SiteData
from hedgerow.errors import AggregationError
from hedgerow.local.training import train
from hedgerow.methods.boosting.settings import resolve_boosting
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise, SystemNoise
from hedgerow.protocol.messages import MessageKind
from hedgerow.transport.interface import Arrived
from tests import builders
from tests.builders import make_plan
from tests.memory_network import Direction, Fate, Passing
from tests.tiers import all_but, every

if TYPE_CHECKING:
    from conftest import Builder, Federation


def local_bytes(federation: Federation, *sites: str) -> bytes:
    """The local engine's model file over some of the sites, or all."""
    data = {site: federation.data[site] for site in sites or federation.data}
    return train(federation.plan, data, noise=SeededNoise(1)).to_bytes()


def kind(passing: Passing) -> int:
    """The kind byte of a message on its way."""
    return passing.message[4]


def with_echo(plan: Plan, echo: bool) -> Plan:
    """The plan with or without the echo exchange."""
    return dataclasses.replace(plan, federation=dataclasses.replace(plan.federation, echo=echo))


@pytest.mark.parametrize("n_sites", all_but([4], [3, 4, 7]))
@pytest.mark.parametrize("candidates", ["adaptive", "iterative_hessian"])
def test_the_model_is_the_local_engines(federate: Builder, n_sites: int, candidates: str) -> None:
    """Whoever carries the messages, the model file is the same to the byte, and every node's replica makes it too."""
    plan = make_plan(model={"split_candidates": candidates, "batch_size": 2, "n_trees": 5})
    federation = federate(n_sites, plan)
    outcome = federation.run()
    assert federation.model_bytes(outcome) == local_bytes(federation)
    for party in federation.parties.values():
        assert party.session is not None and party.is_done and not party.failures
        assert np.array_equal(party.session.result.fitted.values, outcome.ensemble.fitted.values)


@pytest.mark.parametrize("noise", ["server", "distributed"])
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("method", ["hist", "partially_random"])
def test_greedy_trees_are_the_local_engines(federate: Builder, method: str, size: int, noise: str) -> None:
    """Level by level the same queries go over the engine; the model is the same, or the shares keep the promise."""
    model = {
        "split_method": method, "interaction_size": size, "n_trees": 3, "max_depth": 3, "n_candidates": 6,
        "split_candidates": "iterative_hessian",
    }  # fmt: skip
    plan = make_plan(model=model, privacy={"noise": noise})
    federation = federate(4, plan, noise=SystemNoise(os.urandom) if noise == "distributed" else None)
    outcome = federation.run()
    assert outcome.report.guarantee == ("holds" if noise == "distributed" else outcome.report.guarantee)
    assert outcome.report.epsilon <= plan.privacy.epsilon
    for party in federation.parties.values():
        assert party.session is not None and party.is_done and not party.failures
        assert np.array_equal(party.session.result.fitted.values, outcome.ensemble.fitted.values)
    if noise == "server":
        assert federation.model_bytes(outcome) == local_bytes(federation)


def test_sites_add_the_noise_when_the_plan_says_so(federate: Builder) -> None:
    """With distributed noise nothing is added centrally, and the promise is kept by the shares that are guaranteed."""
    plan = make_plan(privacy={"noise": "distributed"})
    outcome = federate(5, plan, noise=SystemNoise(os.urandom)).run()
    assert outcome.report.guarantee == "holds" and outcome.report.noise_mode == "distributed"
    assert outcome.report.cohorts and outcome.report.epsilon <= plan.privacy.epsilon


def test_a_coordinator_that_counts_every_share_of_noise_is_refused(
    federate: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site that sees the releases takes its own share away; nodes do not believe an account that forgets this."""
    monkeypatch.setattr("hedgerow.rounds.MIN_COLLUDERS", 0)
    federation = federate(4, make_plan(privacy={"noise": "distributed"}), noise=SystemNoise(os.urandom))
    with pytest.raises(AggregationError):
        federation.run()
    assert {fault.code for party in federation.parties.values() for fault in party.failures} == {"parameters-refused"}


def test_a_declared_number_of_records_is_no_question_about_a_sites_exact_sum(federate: Builder) -> None:
    """Whether a sum is beyond the plan's bound depends on one record; a node that hides it from its coordinator by
    noise of its own must not tell it by a refusal either.
    """
    plan = make_plan(privacy={"noise": "distributed", "n_records": 4000, "epsilon": 50.0})
    too_few = dataclasses.replace(plan, privacy=dataclasses.replace(plan.privacy, n_records=1))
    federation = federate(4, plan, noise=SystemNoise(os.urandom), must_start=False)
    federation.pin(too_few)
    for party in federation.parties.values():
        party.start()
    with pytest.raises(AggregationError) as caught:
        federation.run(plan=too_few)
    # The noisy total may be found too large: that is a statement about what is released anyway.
    assert caught.value.code in ("sum-out-of-range", "release-implausible") and not federation.codes("refused")


@pytest.mark.parametrize("echo", every(2, [False, True]))
def test_a_coordinator_killed_after_every_write_goes_on_to_the_same_model(
    federate: Builder, killed: type[BaseException], echo: bool
) -> None:
    """A crash loses no privacy: after any write, a restart ends in the same bytes and each purpose is released once."""
    plan = with_echo(make_plan(), echo)
    from_start = federate(4, plan, name="whole")
    expected = from_start.model_bytes(from_start.run())
    for kill_after in range(1, 1000):
        federation = federate(4, plan, name=f"killed-{kill_after}")
        was_killed = False
        try:
            federation.run(kill_after)
        except killed:
            was_killed = True
        outcome = federation.run()
        assert federation.model_bytes(outcome) == expected
        purposes = [release.purpose for release in outcome.ledger]
        assert len(set(purposes)) == len(purposes) == 4
        assert all(party.is_done for party in federation.parties.values())
        federation.close()
        if not was_killed:
            assert kill_after > 10
            return
    raise AssertionError("the run never ended")


def test_a_coordinator_that_dies_again_and_again_gets_there(federate: Builder, killed: type[BaseException]) -> None:
    """Each life makes a few writes only; the lives together make the same model."""
    federation = federate(4)
    for _ in range(100):
        try:
            outcome = federation.run(kill_after=4)
        except killed:
            continue
        assert federation.model_bytes(outcome) == local_bytes(federation)
        return
    raise AssertionError("the run never ended")


@pytest.mark.parametrize("label", ["binary", "regression", "count"])
def test_what_releases_say_of_values_outlives_every_process(
    federate: Builder, killed: type[BaseException], label: str
) -> None:
    """The spread that values are expected by is learned from all releases so far; a restart learns it again."""
    plan = make_plan(label, {"n_trees": 12}, {"epsilon": 12.0, "n_records": 3_000})
    assert resolve_boosting(plan).shape_rate > 0
    federation = federate(4, plan)
    for number, party in enumerate(federation.parties.values()):
        party.after(12 + 9 * number, party.restart)
    outcome = None
    for _ in range(100):
        try:
            outcome = federation.run(kill_after=9)
            break
        except killed:
            continue
    assert outcome is not None and federation.model_bytes(outcome) == federation.survivors_model()
    assert [fault.code for party in federation.parties.values() for fault in party.failures] == []


def wide_plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Rows in a few cells of wide bounds: the first trees find them, and later ones have other edges."""
    features = [{"name": name, "type": "numeric", "min": -1e6, "max": 1e6} for name in "ab"]
    model = {"n_trees": 12, "max_depth": 4, "structure_seed": 3, "calibration": "auto"}
    plan = make_plan("binary", model, {"epsilon": 50.0, "n_records": 400}, features)
    make_data = builders.make_data

    def crowded(plan: Plan, n: int, seed: int) -> SiteData:
        rows = make_data(plan, n, seed)
        return dataclasses.replace(rows, codes=np.minimum(126 + rows.codes % 3, rows.codes.max()).astype(np.uint8))

    monkeypatch.setattr(builders, "make_data", crowded)
    return plan


@pytest.mark.parametrize("writes", [4, 7])
def test_edges_that_are_cut_anew_outlive_every_process(
    federate: Builder, killed: type[BaseException], writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes and coordinator find them again from releases: the same model to the byte, whoever died and when."""
    federation = federate(4, wide_plan(monkeypatch))
    for number, party in enumerate(federation.parties.values()):
        party.after(12 + 9 * number, party.restart)
    outcome = None
    for _ in range(100):
        try:
            outcome = federation.run(writes)
            break
        except killed:
            continue
    assert outcome is not None and len(outcome.ensemble.grid.new_edges) == 2
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert [fault.code for party in federation.parties.values() for fault in party.failures] == []
    for party in federation.parties.values():
        assert party.session.result.grid.new_edges.keys() == outcome.ensemble.grid.new_edges.keys()


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("number", every(4, range(1, 16)))
def test_a_node_killed_at_any_message_and_started_again_takes_part_again(
    federate: Builder, number: int, echo: bool
) -> None:
    """After a restart at any point of its script a node goes on from its store, or in a new epoch."""
    federation = federate(4, with_echo(make_plan(), echo))
    victim = federation.parties["site-1"]
    victim.after(number, victim.restart)
    outcome = federation.run()
    assert not victim.failures and victim.is_done
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert outcome.report.epsilon <= federation.plan.privacy.epsilon
    # Whatever it missed, it is back at the end.
    assert "site-1" in federation.session.run.survivors[-1]


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("number", every(4, range(1, 16)))
def test_a_run_goes_on_without_a_node_that_is_gone_for_good(federate: Builder, number: int, echo: bool) -> None:
    """A site lost in any phase costs its records of the later rounds, and nothing else."""
    federation = federate(5, with_echo(make_plan(), echo))
    victim = federation.parties["site-1"]
    victim.after(number, victim.kill)
    outcome = federation.run()
    assert len(outcome.ledger) == 4
    assert all(party.is_done for site, party in federation.parties.items() if site != "site-1")
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert all(len(survivors) >= 4 for survivors in federation.session.run.survivors)


@pytest.mark.parametrize("number", every(3, range(3, 15)))
def test_a_frozen_node_is_left_behind_and_catches_up_when_it_thaws(federate: Builder, number: int) -> None:
    """A stopped process costs one round's time, not one per round; thawed late, it takes part again."""
    federation = federate(5)
    victim = federation.parties["site-1"]
    seen = [0]
    pump = victim.pump

    def freezing() -> bool:
        handled = pump()
        seen[0] += handled
        victim.is_frozen = seen[0] == number
        return handled

    victim.pump = freezing  # type: ignore[method-assign]

    def thaw(_: float) -> bool:
        if federation.codes("silent") and victim.is_frozen:
            seen[0] += 1
            victim.is_frozen = False
            federation.now += federation.plan.federation.round_timeout
            return True
        return False

    federation.on_event = lambda event: thaw(0) if event.kind == "released" and event.round >= 3 else None
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert federation.now <= 3 * federation.plan.federation.round_timeout
    assert not victim.failures


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("fate", [Fate.CUT, Fate.CUT_AFTER])
@pytest.mark.parametrize("number", every(4, range(9)))
def test_a_connection_cut_at_any_message_is_made_good(
    federate: Builder, direction: Direction, fate: Fate, number: int
) -> None:
    """What was under way when a stream broke is said again, and answered alike."""

    def faults(passing: Passing) -> Fate:
        is_it = passing.site == "site-2" and passing.direction is direction and passing.number == number
        return fate if is_it else Fate.DELIVER

    federation = federate(5, faults=faults)
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert [fault.code for party in federation.parties.values() for fault in party.failures] == []
    assert all(party.is_done for party in federation.parties.values())


class Freeze:
    """Stops some nodes when they are about to handle the second message of a kind, until it thaws them."""

    def __init__(self, federation: Federation, sites: list[str], kind: MessageKind) -> None:
        self.federation, self.sites = federation, sites
        for site in sites:
            self._stop_before(federation.parties[site], kind)

    def _stop_before(self, party: Any, kind: MessageKind) -> None:
        receive, pump = party.uplink.receive, party.pump
        seen = [0]

        def peeking(timeout: float) -> object:
            event = receive(timeout)
            if isinstance(event, bytes) and event[4] == kind:
                seen[0] += 1
                party.is_frozen = seen[0] == 2
            return event

        held: list[object] = []

        def stopping() -> bool:
            if party.is_frozen:
                return False
            if held:
                party.uplink.receive = lambda _: held.pop()
                handled = pump()
                party.uplink.receive = peeking
                return bool(handled)
            party.uplink.receive = peeking
            event = party.uplink.receive(0)
            if event is None:
                return False
            held.append(event)
            return True

        party.pump = stopping

    def thaw(self, _: float) -> bool:
        """Wake all of them once; time has passed by then."""
        frozen = [self.federation.parties[site] for site in self.sites if self.federation.parties[site].is_frozen]
        if not frozen or not self.federation.session.run.is_stalled:
            return False
        for party in frozen:
            party.is_frozen = False
        return True


def test_a_purpose_that_too_few_answered_is_asked_again_in_a_new_slot(federate: Builder) -> None:
    """Without a manifest nothing of the slot can be opened, so the same purpose gets another one, and one release."""
    federation = federate(4)
    federation.while_waiting = Freeze(federation, ["site-1", "site-2"], MessageKind.ROUND_REQUEST).thaw
    outcome = federation.run()
    assert "too-few-uploads" in federation.codes("abandoned")
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert len({slot for _, _, slot in federation.uploads}) == 5
    assert len(federation.session.run.survivors[-1]) == 4


@pytest.mark.parametrize("echo", [False, True])
def test_a_manifest_that_too_few_answered_is_repeated_until_they_return(federate: Builder, echo: bool) -> None:
    """Once a manifest was sent there is no second one: the run waits for those who have not answered it."""
    federation = federate(4, with_echo(make_plan(), echo))
    federation.while_waiting = Freeze(federation, ["site-1", "site-2"], MessageKind.UNMASK).thaw
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert federation.session.run.survivors[:2] == [tuple(federation.parties)] * 2
    assert len(federation.manifests) == 4


@pytest.mark.parametrize("kind", [MessageKind.ROUND_REQUEST, MessageKind.UNMASK, MessageKind.SETUP])
def test_a_run_that_cannot_go_on_ends_with_a_code_and_not_with_a_wait(federate: Builder, kind: MessageKind) -> None:
    """Whatever phase the sites vanish in, the plan's timeouts end the run, and everybody who is there learns why."""
    plan = make_plan()
    federation = federate(4, dataclasses.replace(plan, federation=dataclasses.replace(plan.federation, salvage=False)))
    Freeze(federation, ["site-1", "site-2"], kind)
    with pytest.raises(AggregationError) as caught:
        federation.run()
    assert caught.value.code == "too-few-sites"
    timeouts = federation.plan.federation
    assert federation.now <= timeouts.join_timeout + timeouts.idle_timeout + 3 * timeouts.round_timeout
    for site in ("site-0", "site-3"):
        assert [fault.code for fault in federation.parties[site].failures] == ["too-few-sites"]


@pytest.mark.parametrize("reason", ["silent", "slow-peer"])
@pytest.mark.parametrize("kind", [MessageKind.ROUND_REQUEST, MessageKind.UNMASK])
def test_a_node_whose_connection_was_given_up_keeps_its_place(
    federate: Builder, kind: MessageKind, reason: str
) -> None:
    """A machine that is too busy to hear a node may give its connection up: it dials again, and is in all sums."""
    federation = federate(5)
    victim, network = federation.parties["site-2"], federation.network
    receive = victim.uplink.receive

    def losing(timeout: float) -> object:
        event = receive(timeout)
        if isinstance(event, bytes) and event[4] == kind and not federation.codes("left"):
            network.cut("site-2", reconnect=False, reason=reason)
        return event

    victim.uplink.receive = losing
    # It is back when all others have said what they had to say.
    federation.while_waiting = lambda _: bool("site-2" in network._down and (network.restore("site-2") or True))
    outcome = federation.run()
    assert "site-2" not in network._down and federation.codes("left") == [reason]
    assert federation.session.run.survivors == [tuple(federation.parties)] * len(federation.session.run.survivors)
    assert federation.model_bytes(outcome) == federation.survivors_model()


def test_a_node_that_does_not_come_back_costs_one_timeout(federate: Builder) -> None:
    """Its connection was given up with good reason: the round is closed without it, and the next ones do not wait."""
    federation = federate(5)
    victim, network = federation.parties["site-2"], federation.network
    victim.after(12, lambda: network.cut("site-2", reconnect=False, reason="silent"))
    outcome = federation.run()
    assert federation.codes("left") == ["silent"]
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert federation.now <= federation.plan.federation.round_timeout


def test_what_came_while_the_coordinator_did_not_run_counts(federate: Builder) -> None:
    """Stopped for longer than a round may take, it reads what the sites have sent before it calls them silent."""
    federation = federate(4)
    late, note = federation.parties["site-3"], federation.note
    pump, uploads = late.pump, [0]

    def stopped(event: Arrived) -> None:
        note(event)
        uploads[0] += event.message[4] == MessageKind.UPLOAD
        if uploads[0] == 1:
            federation.now += 10 * federation.plan.federation.round_timeout

    federation.note = stopped

    def on_its_way() -> bool:
        """Its vector is not there yet when the coordinator is stopped, and not read when it wakes up."""
        is_asked = any(message[4] == MessageKind.ROUND_REQUEST for _, message in federation.sent)
        return (uploads[0] > 0 or not is_asked) and pump()

    late.pump = on_its_way
    outcome = federation.run()
    assert uploads[0] > 0 and federation.codes("silent") == []
    assert federation.model_bytes(outcome) == federation.survivors_model()
