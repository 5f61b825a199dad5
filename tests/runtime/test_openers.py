"""Who is asked to open a sum: the fewest sites whose shares do, and all as soon as one of those does not."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sqlite3
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from hedgerow.errors import AggregationError
from hedgerow.local.training import train
from hedgerow.privacy.noise import SeededNoise, SystemNoise
from hedgerow.protocol.messages import MessageKind, Payload, encode
from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.messages import SEED_SHARE, WITHHELD, Answer
from hedgerow.secagg.participant import Participant
from hedgerow.secagg.transitions import Code, refuse
from tests.builders import make_plan
from tests.memory_network import Direction, Fate, FaultPlan, Passing

if TYPE_CHECKING:
    from conftest import Builder, Federation

N_SITES, THRESHOLD = 7, 5
"""Of seven shares, five open a secret."""


def asked(federation: Federation) -> Counter[str]:
    """How often each site was asked for shares."""
    return Counter(site for site, message in federation.sent if message[4] == MessageKind.UNMASK)


def freezing(hit: list[str], most: int, federation: Callable[[], Federation]) -> FaultPlan:
    """Freezes the first sites that are asked for shares, before they answer; `hit` says which."""

    def fate(passing: Passing) -> Fate:
        if passing.direction is Direction.TO_NODE and passing.message[4] == MessageKind.UNMASK and len(hit) < most:
            hit.append(passing.site)
            federation().parties[passing.site].is_frozen = True
        return Fate.DELIVER

    return fate


def everybodys_model(federation: Federation) -> bytes:
    """What the local engine makes of all sites."""
    return train(federation.plan, federation.data, noise=SeededNoise(1)).to_bytes()


def test_no_more_sites_are_asked_than_are_needed(federate: Builder) -> None:
    """Shares beyond the threshold tell the coordinator nothing, and cost every site the work of giving them."""
    federation = federate(N_SITES)
    assert federation.model_bytes(federation.run()) == everybodys_model(federation)
    n_rounds = len(federation.session.run.survivors)
    assert asked(federation).total() == n_rounds * THRESHOLD
    assert max(asked(federation).values()) <= n_rounds


def test_with_an_echo_everybody_is_asked(federate: Builder) -> None:
    """That a manifest is the only one is shown by how many confirm it."""
    plan = make_plan()
    echoing = dataclasses.replace(plan.federation, echo=True)
    federation = federate(N_SITES, dataclasses.replace(plan, federation=echoing))
    assert federation.model_bytes(federation.run()) == everybodys_model(federation)
    assert set(asked(federation)) == set(federation.data)
    assert asked(federation).total() == len(federation.session.run.survivors) * N_SITES


@pytest.mark.parametrize("n_gone", [1, 2])
def test_others_are_asked_at_once_when_one_leaves(federate: Builder, n_gone: int) -> None:
    """A site that was asked and is gone costs no timeout: another one's shares do as well, of the same manifest."""
    gone: list[str] = []
    federation = federate(N_SITES, faults=freezing(gone, n_gone, lambda: federation))

    def vanish(_: float) -> bool:
        waiting = [site for site in gone if federation.parties[site].uplink is not None]
        for site in waiting:
            federation.parties[site].kill()
        return bool(waiting)

    federation.while_waiting = vanish
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert federation.session.run.survivors[0] == tuple(sorted(federation.data))
    assert len(federation.manifests) == len(federation.session.run.survivors)
    assert "silent" not in {event.kind.value for event in federation.events}


def test_who_is_gone_is_replaced_while_another_one_is_still_waited_for(federate: Builder) -> None:
    """Of the five one is frozen and one goes: the others are asked then, not when the frozen one is given up."""
    hit: list[str] = []
    asked_at: dict[str, float] = {}

    freeze = freezing(hit, 2, lambda: federation)

    def fate(passing: Passing) -> Fate:
        if passing.direction is Direction.TO_NODE and passing.message[4] == MessageKind.UNMASK:
            asked_at.setdefault(passing.site, federation.now)
        return freeze(passing)

    federation = federate(N_SITES, faults=fate)

    def vanish(_: float) -> bool:
        second = federation.parties[hit[1]]
        is_there = second.uplink is not None
        second.kill()
        return is_there

    federation.while_waiting = vanish
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert asked_at == dict.fromkeys(federation.data, 0.0)


def test_sites_that_were_asked_and_come_back_are_asked_again(federate: Builder) -> None:
    """Two of four die of the question and are started again: without either of them the sum cannot be opened."""
    died: list[str] = []

    def fate(passing: Passing) -> Fate:
        is_fatal = passing.direction is Direction.TO_NODE and passing.message[4] == MessageKind.UNMASK
        if is_fatal and passing.site in ("site-1", "site-2") and passing.site not in died:
            died.append(passing.site)
            federation.parties[passing.site].is_frozen = True
        return Fate.DELIVER

    federation = federate(4, faults=fate)

    def revive(_: float) -> bool:
        frozen = [party for party in federation.parties.values() if party.is_frozen]
        for party in frozen:
            party.is_frozen = False
            party.kill()
        gone = [] if frozen else [party for party in federation.parties.values() if party.uplink is None]
        for party in gone:
            party.start()
        return bool(frozen or gone)

    federation.while_waiting = revive
    assert federation.model_bytes(federation.run()) == everybodys_model(federation)
    # The third site that was asked at first, and the fourth when the two had gone, were asked once in that round.
    assert asked(federation).total() == 4 + 2 + 3 * (len(federation.session.run.survivors) - 1)
    assert "waiting-for-sites" in federation.codes("phase")


def test_a_site_that_dies_of_every_question_puts_off_nothing(federate: Builder) -> None:
    """One of four is frozen, and one comes back to be asked again and again: the plan's timeouts end the run still."""

    def fate(passing: Passing) -> Fate:
        if passing.message[4] == MessageKind.UNMASK and passing.site in ("site-1", "site-2"):
            federation.parties[passing.site].is_frozen = True
        return Fate.DELIVER

    federation = federate(4, faults=fate)

    def flap(timeout: float) -> bool:
        second = federation.parties["site-2"]
        if second.is_frozen and second.uplink is not None:
            second.kill()
        elif second.uplink is None and timeout >= 1000.0:
            federation.now += 1000.0
            second.is_frozen = False
            second.start()
        else:
            return False
        return True

    federation.while_waiting = flap
    with pytest.raises(AggregationError) as caught:
        federation.run()
    assert caught.value.code == "too-few-sites"
    timeouts = federation.plan.federation
    assert federation.now <= timeouts.idle_timeout + 3 * timeouts.round_timeout


def test_the_quick_are_asked(federate: Builder) -> None:
    """Whose vector came last is likely to be the last again, and is not waited for."""
    held: list[str] = []

    def fate(passing: Passing) -> Fate:
        if passing.message[4] == MessageKind.UPLOAD and passing.site == "site-0":
            held.append(passing.site)
            return Fate.HOLD
        return Fate.DELIVER

    federation = federate(N_SITES, faults=fate)

    def let_go(_: float) -> bool:
        waiting = bool(held)
        held.clear()
        federation.network.release("site-0")
        return waiting

    federation.while_waiting = let_go
    assert federation.model_bytes(federation.run()) == everybodys_model(federation)
    assert set(asked(federation)) == set(federation.data) - {"site-0", "site-6"}


def test_who_has_lost_its_state_is_not_asked(federate: Builder) -> None:
    """A node that has begun anew holds no shares of the slot, and a question about it would end its part in the run."""
    hit: list[str] = []
    federation = federate(4, faults=freezing(hit, 1, lambda: federation))
    steps = iter(range(1, 4))

    def act(_: float) -> bool:
        first, spare = federation.parties[hit[0]], federation.parties["site-3"]
        step = next(steps, 0)
        if step == 1:
            spare.kill()
            for file in (*spare.folder.glob("node.db*"), spare.folder / "counter.json"):
                file.unlink()
            spare.start()
        elif step == 2:
            first.kill()
        elif step == 3:
            first.is_frozen = False
            first.start()
        return step > 0

    federation.while_waiting = act
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert asked(federation)["site-3"] == 0
    assert [fault.code for fault in federation.parties["site-3"].failures] == ["state-lost"]


@pytest.mark.parametrize("number", [9, 12, 15])
def test_who_has_lost_its_state_gets_no_certificate(federate: Builder, number: int) -> None:
    """Invited anew while the others echo, it knows no manifest: the others' certificate would end its part in the run.

    After so many events its vector is in the sum that is being opened.
    """
    plan = make_plan()
    plan = dataclasses.replace(plan, federation=dataclasses.replace(plan.federation, echo=True))
    federation = federate(4, plan)
    victim = federation.parties["site-1"]

    def damage() -> None:
        victim.kill()
        with contextlib.closing(sqlite3.connect(victim.folder / "node.db")) as database:
            database.execute("update steps set step = x'00' where step is not null")
            database.commit()
        victim.start()

    victim.after(number, damage)
    federation.run()
    assert victim.failures == [] and victim.is_done


def test_others_are_asked_when_one_is_silent(federate: Builder) -> None:
    """A site that was asked and is frozen is given up after one timeout, and the sum is opened without its shares."""
    frozen: list[str] = []
    federation = federate(N_SITES, faults=freezing(frozen, 1, lambda: federation))
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert federation.session.run.survivors[0] == tuple(sorted(federation.data))
    assert [event.site for event in federation.events if event.kind.value == "silent"] == frozen
    # One timeout for the round in which it froze, and one for it to take its leave at the end.
    assert federation.now <= 2 * federation.plan.federation.round_timeout


def altered(answer: Answer, *, withheld: bool) -> Answer:
    """An answer whose shares were left out, or are each of the right form and wrong."""
    if withheld:
        return dataclasses.replace(answer, kinds=(WITHHELD,) * len(answer.kinds), shares=())
    shares = tuple(bytes([*share[:-1], share[-1] ^ 1]) for share in answer.shares)
    return dataclasses.replace(answer, shares=shares)


@pytest.mark.parametrize("withheld", [True, False], ids=["withheld", "wrong"])
@pytest.mark.parametrize("n_liars", [1, 2])
def test_others_are_asked_when_the_shares_of_some_do_not_do(
    federate: Builder, monkeypatch: pytest.MonkeyPatch, n_liars: int, withheld: bool
) -> None:
    """With none to spare a wrong share hides the secret; with the others' shares it is found, and the sum is exact."""
    answer = Participant._answer

    def lying(self: Participant, *arguments: Any) -> Any:
        told, complaints = answer(self, *arguments)
        assert SEED_SHARE in told.kinds
        return (altered(told, withheld=withheld) if self.node < n_liars else told), complaints

    federation = federate(N_SITES)
    expected = everybodys_model(federation)
    monkeypatch.setattr(Participant, "_answer", lying)
    assert federation.model_bytes(federation.run()) == expected
    assert asked(federation).total() > len(federation.session.run.survivors) * THRESHOLD
    assert len(federation.manifests) == len(federation.session.run.survivors)


def test_an_answer_that_is_none_is_not_waited_for(federate: Builder) -> None:
    """What the aggregator refuses at the door helps as little as silence, but is known at once."""
    federation = federate(N_SITES)
    uplink = federation.parties["site-0"].uplink
    assert uplink is not None
    send = uplink.send

    def garbling(message: bytes) -> bool:
        is_answer = message[4] == MessageKind.ANSWER
        return send(encode(Payload(MessageKind.ANSWER, b"garbage")) if is_answer else message)

    uplink.send = garbling  # type: ignore[method-assign]
    assert federation.model_bytes(federation.run()) == everybodys_model(federation)
    assert federation.codes("complaint") == ["malformed-message"] * len(federation.session.run.survivors)
    assert federation.now == 0.0


def test_a_sum_out_of_its_bound_is_not_asked_about_again(federate: Builder) -> None:
    """More shares would not change it: the secrets that they gave were checked."""
    plan = make_plan(privacy={"noise": "distributed", "n_records": 4000, "epsilon": 50.0})
    federation = federate(N_SITES, plan, noise=SystemNoise(os.urandom))
    release = Aggregator.release

    def out_of_range(self: Aggregator) -> Any:
        release(self)
        raise refuse(Code.SUM_OUT_OF_RANGE)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(AggregationError) as caught:
        patch.setattr(Aggregator, "release", out_of_range)
        federation.run()
    assert caught.value.code == "sum-out-of-range"
    # Under distributed noise sites echo the manifest first, and then all of them are asked; once each.
    assert asked(federation) == dict.fromkeys(federation.parties, 1)


def test_when_nobodys_shares_do_the_run_ends_by_name(federate: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking the others is done once; a sum that cannot be opened is not waited for, and nothing is released."""
    answer = Participant._answer

    def lying(self: Participant, *arguments: Any) -> Any:
        told, complaints = answer(self, *arguments)
        return altered(told, withheld=False), complaints

    monkeypatch.setattr(Participant, "_answer", lying)
    federation = federate(N_SITES)
    with pytest.raises(AggregationError) as caught:
        federation.run()
    assert caught.value.code == "secret-unrecoverable"
    assert asked(federation) == dict.fromkeys(federation.data, 1)
    assert not federation.session.run.survivors


def test_a_coordinator_started_again_in_a_round_says_that_it_waits(
    federate: Builder, killed: type[BaseException]
) -> None:
    """Its page said for all of `join_timeout` that it collects vectors, while it waited for sites to come back."""
    said = list[list[str]]()
    for kill_after in (3, 4, 5):
        federation = federate(4, name=f"killed-{kill_after}")
        with pytest.raises(killed):
            federation.run(kill_after)
        federation.events.clear()
        with contextlib.suppress(killed):
            federation.run(1)
        said.append(federation.codes("phase")[:2])
    in_a_round = [codes for codes in said if codes[0].startswith("collecting-")]
    assert in_a_round and {codes[1] for codes in in_a_round} == {"waiting-for-sites"}
