"""What a node refuses, each by its code: to its owner in words, to the coordinator as the code alone."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import sqlite3
import threading
from collections.abc import Callable
from fractions import Fraction
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hedgerow.client import budget, policy
from hedgerow.client.budget import BudgetBook
from hedgerow.client.node_run import require_moderate
from hedgerow.client.policy import Policy, parse_policy
from hedgerow.privacy.events import GaussianEvent
from hedgerow.protocol.errors import AggregationError, PolicyRefusal, UsageError
from hedgerow.protocol.plan import Plan
from hedgerow.protocol.run_messages import Hello, MessageKind, Payload, RoundRequest, decode, encode
from hedgerow.secagg.round_messages import RoundSpec
from hedgerow.training.settings import resolve
from hedgerow.transport.interface import Arrived, Connected
from hedgerow.transport.memory import Direction, Fate, MemoryHub, Passing

if TYPE_CHECKING:
    from conftest import Builder, Federation

NAMES = itertools.count()
POLICY = Policy(version=1, data_set="test", max_epsilon=100.0, delta=1e-5)


def with_policy(federate: Builder, plan: Plan | None = None, **rules: Any) -> Federation:
    """Five sites, the first of which has stricter rules."""
    strict = dataclasses.replace(POLICY, **rules)
    return federate(5, plan, policies={"site-0": strict})  # type: ignore[no-any-return]


def refused(federation: Federation, code: str) -> None:
    """The strict site has refused by this code, its owner and the coordinator know, and the others went on."""
    victim = federation.parties["site-0"]
    assert [fault.code for fault in victim.failures] == [code]
    assert victim.failures[0].cause and victim.failures[0].remedy
    assert [(e.site, e.code) for e in federation.events if e.kind == "refused"] == [("site-0", code)]
    assert all(party.is_done for site, party in federation.parties.items() if site != "site-0")
    assert all("site-0" not in survivors for survivors in federation.session.survivors)


PLANS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "policy-over-budget": ({}, {"max_epsilon": 1.5}),
    "policy-feature": ({}, {"features": ("age", "region", "change")}),
    "policy-label": ({}, {"labels": ("z",)}),
    "policy-query-kind": ({}, {"query_kinds": ("Histogram",)}),
    "policy-noise": ({}, {"noise": ("distributed",)}),
    "policy-unit": ({}, {"unit": "patient"}),
    "policy-unnoised": ({"privacy": {"epsilon": math.inf}}, {}),
    "parameters-refused": ({}, {"min_colluders": 3}),
}


@pytest.mark.parametrize("code", sorted(PLANS))
def test_a_policy_refuses_a_plan_by_its_code(federate: Builder, factory: ModuleType, code: str) -> None:
    """A node's owner has the last word, and one strict site does not stop the others."""
    changes, rules = PLANS[code]
    others = {"max_epsilon": math.inf} if code == "policy-unnoised" else {}
    policies = {f"site-{i}": dataclasses.replace(POLICY, **others) for i in range(1, 5)}
    policies["site-0"] = dataclasses.replace(POLICY, **rules)
    federation = federate(5, factory.make_plan(**changes), policies=policies)
    federation.run()
    refused(federation, code)


def test_a_plan_that_would_fill_the_memory_is_refused_before_it_begins(factory: ModuleType) -> None:
    """A coordinator may stop a run, but not a node's machine: the trees of this plan's one batch take gigabytes."""
    plan = factory.make_plan(model={"n_trees": 100_000, "max_depth": 8, "batch_size": "all"})
    with pytest.raises(PolicyRefusal) as caught:
        require_moderate(plan, resolve(plan), POLICY.secure_sums.max_length)
    assert caught.value.code == "plan-too-large"
    largest = factory.make_plan(model={"n_trees": 8192, "max_depth": 8, "batch_size": "all"})
    require_moderate(largest, resolve(largest), POLICY.secure_sums.max_length)


def test_a_small_cohort_is_refused(federate: Builder) -> None:
    """A sum over few sites says much about each of them: neither the roster nor the epoch may be smaller."""
    federation = with_policy(federate, min_sites=6)
    federation.run()
    refused(federation, "policy-small-cohort")
    federation = federate(5, policies={"site-0": dataclasses.replace(POLICY, min_sites=5)}, name="later")
    federation.parties["site-4"].kill()
    federation.run()
    # One site never came: the roster has five, the epoch four.
    refused_codes = [event.code for event in federation.events if event.kind == "refused"]
    assert refused_codes == ["cohort-too-small"]


def test_an_unknown_coordinator_is_refused(federate: Builder) -> None:
    """A roster may be exchanged; the policy pins the coordinator's key as well."""
    federation = with_policy(federate, coordinators=("00" * 32,))
    federation.run()
    refused(federation, "policy-coordinator")


def test_a_plan_that_was_changed_is_refused(federate: Builder, factory: ModuleType) -> None:
    """A node that holds the plan takes part in no other one."""
    federation = federate(5)
    victim = federation.parties["site-0"]
    victim.kill()
    victim.setup = dataclasses.replace(victim.setup, plan=factory.make_plan(privacy={"epsilon": 1.9}))
    victim.start()
    federation.run()
    refused(federation, "plan-changed")


def test_the_budget_book_adds_runs_up_and_refuses_the_one_too_many(federate: Builder, factory: ModuleType) -> None:
    """Composition over a data set's life: two runs of epsilon 2 cost more than one, less than four, and the third is
    refused before it starts.
    """
    federation = with_policy(federate, max_epsilon=3.2)
    plan, victim = federation.plan, federation.parties["site-0"]
    spent = [0.0]
    for number in range(2):
        federation.run()
        book = BudgetBook(victim.folder / "budget.db")
        spent.append(book.spent("test", 1e-5))
        lines = book.lines("test")
        assert len(lines) == number + 1 and lines[-1].status == "finished"
        assert lines[-1].epsilon(1e-5) == pytest.approx(plan.privacy.epsilon, rel=0.01)
        book.close()
        for file in federation.folder.glob("journal.db*"):
            file.unlink()
        for party in federation.parties.values():
            party.kill()
            party.start()
    assert spent[0] < spent[1] < spent[2] < 2 * spent[1]
    federation.events.clear()
    federation.run()
    assert [fault.code for fault in victim.failures] == ["policy-over-budget"]
    assert all("site-0" not in survivors for survivors in federation.session.survivors)


def test_a_run_that_stops_early_costs_what_it_used(federate: Builder) -> None:
    """The whole cost is reserved at the start; what no masked vector was sent for is given back at the end."""
    federation = federate(3)

    def lose(event: Any) -> None:
        if event.kind == "released" and event.round == 2:
            federation.parties["site-2"].kill()

    federation.on_event = lose
    with pytest.raises(AggregationError) as caught:
        federation.run()
    assert caught.value.code == "too-few-sites"
    party = federation.parties["site-0"]
    assert [fault.code for fault in party.failures] == ["too-few-sites"]
    book = BudgetBook(party.folder / "budget.db")
    (line,) = book.lines()
    assert line.status == "stopped"
    # Two releases; a third round may have been under way.
    assert 2 <= len(line.events) <= 3
    assert line.epsilon(1e-5) < 2.0
    book.close()


def test_a_second_run_under_the_same_number_is_refused(federate: Builder) -> None:
    """A coordinator that asks again for what was released, under the same run, gets nothing."""
    federation = federate(5)
    federation.run()
    run_id = federation.session.run_id
    for file in federation.folder.glob("journal.db*"):
        file.unlink()
    for party in federation.parties.values():
        party.kill()
        party.start()
    federation.coordinator_entropy = lambda n: run_id if n == 32 else os.urandom(n)
    with pytest.raises(AggregationError):
        federation.run()
    assert {fault.code for party in federation.parties.values() for fault in party.failures} == {"run-closed"}


def test_a_purpose_that_was_answered_is_not_answered_again_in_a_new_epoch(
    federate: Builder, killed: type[BaseException]
) -> None:
    """A coordinator that took the shares, and forgets that it did, would sum again over other sites: the difference of
    the two sums is one hospital's vector.
    """
    taken: list[str] = []

    def keep_answers(passing: Passing) -> Fate:
        if passing.message[4] == MessageKind.ANSWER and len(taken) < 5:
            taken.append(passing.site)
            return Fate.DROP
        return Fate.DELIVER

    federation = federate(5, faults=keep_answers)

    def die(_: float) -> bool:
        raise killed

    federation.while_waiting = die
    with pytest.raises(killed):
        federation.run()
    assert len(taken) == 5
    federation.while_waiting = lambda _: False
    database = sqlite3.connect(federation.folder / "journal.db")
    database.execute("update run set epoch = null")
    database.execute("update slots set slot = null, next_slot = 0")
    database.commit()
    database.close()
    with pytest.raises(AggregationError):
        federation.run()
    codes = [fault.code for party in federation.parties.values() for fault in party.failures]
    assert codes == ["purpose-answered"] * 5
    assert not federation.session.survivors


def test_a_round_that_was_masked_is_not_masked_again_where_both_could_be_opened(
    federate: Builder, killed: type[BaseException]
) -> None:
    """Seven of ten sites can open the sum of all ten; the other three must not sum the same round by themselves, or
    their rows would be in two releases that are paid for once.
    """
    kept: list[str] = []

    def keep_vectors(passing: Passing) -> Fate:
        if passing.message[4] == MessageKind.UPLOAD and len(kept) < 10:
            kept.append(passing.site)
            return Fate.DROP
        return Fate.DELIVER

    federation = federate(10, faults=keep_vectors)

    def die(_: float) -> bool:
        raise killed

    federation.while_waiting = die
    with pytest.raises(killed):
        federation.run()
    assert len(kept) == 10
    federation.while_waiting = lambda _: False
    database = sqlite3.connect(federation.folder / "journal.db")
    database.execute("update run set epoch = null")
    database.execute("update slots set slot = null, next_slot = 0")
    database.commit()
    database.close()
    for number, party in enumerate(federation.parties.values()):
        party.kill()
        if number >= 7:
            party.start()
    federation.received.clear()
    with pytest.raises(AggregationError):
        federation.run()
    codes = [fault.code for party in federation.parties.values() for fault in party.failures]
    assert codes == ["purpose-answered"] * 3
    assert not any(message[4] == MessageKind.UPLOAD for _, message in federation.received)


class Forger:
    """A coordinator with the right key that changes what it sends to one site."""

    def __init__(self, federation: Federation, change: Callable[[RoundSpec], RoundSpec]) -> None:
        self._federation, self._change = federation, change

    def install(self, hub: MemoryHub) -> None:
        """Change every spec on its way to site-0."""
        send = hub.send

        def forging(site: str, message: bytes) -> bool:
            request = decode(message)
            if site == "site-0" and isinstance(request, RoundRequest):
                spec = self._change(RoundSpec.from_signed(request.signed_spec))
                signed = spec.to_signed(self._federation.coordinator_key)
                message = encode(dataclasses.replace(request, signed_spec=signed))
            return send(site, message)

        hub.send = forging  # type: ignore[method-assign]


def wider(spec: RoundSpec) -> RoundSpec:
    (vector,) = spec.vectors
    return dataclasses.replace(spec, vectors=(dataclasses.replace(vector, width=64),))


def without_noise(spec: RoundSpec) -> RoundSpec:
    return dataclasses.replace(spec, noise=dataclasses.replace(spec.noise, variance=Fraction(0)))


LIES: dict[str, tuple[str, Callable[[RoundSpec], RoundSpec]]] = {
    "no noise": ("noise-mismatch", without_noise),
    "another purpose": ("purpose-unexpected", lambda s: dataclasses.replace(s, purpose="0/LeafSums/mine")),
    "another model": ("purpose-unexpected", lambda s: dataclasses.replace(s, model=bytes(32))),
    "another width": ("purpose-unexpected", wider),
    "another epoch": ("other-epoch", lambda s: dataclasses.replace(s, epoch=bytes(32))),
    "a used slot": ("slot-reused", lambda s: dataclasses.replace(s, slot=0)),
}  # fmt: skip


@pytest.mark.parametrize("lie", sorted(LIES))
def test_a_lying_coordinator_gets_a_code_and_no_vector(federate: Builder, lie: str) -> None:
    """A node computes each query itself: whatever the signed spec says otherwise, it sends nothing for it."""
    code, change = LIES[lie]
    federation = federate(5)
    asked: list[int] = []

    def from_the_second_round_on(spec: RoundSpec) -> RoundSpec:
        asked.append(spec.slot)
        return spec if len(asked) == 1 else change(spec)

    federation.tamper = Forger(federation, from_the_second_round_on).install
    federation.run()
    victim = federation.parties["site-0"]
    assert [fault.code for fault in victim.failures] == [code]
    assert ["site-0" in survivors for survivors in federation.session.survivors] == [True, False, False, False]


def test_a_coordinator_cannot_send_a_release_that_is_none(federate: Builder) -> None:
    """Numbers beyond any sum over the plan's records would break the arithmetic; another length the program."""
    for name, change in (
        ("large", lambda r: r * 2**40),
        ("long", lambda r: np.concatenate([r, r])),
        ("empty", lambda r: r[:0]),
    ):
        federation = federate(5, name=name)

        def tamper(hub: MemoryHub, change: Callable[..., Any] = change) -> None:
            send = hub.send

            def forging(site: str, message: bytes) -> bool:
                request = decode(message)
                if site == "site-0" and isinstance(request, RoundRequest):
                    releases = tuple(change(release) for release in request.releases)
                    message = encode(dataclasses.replace(request, releases=releases))
                return send(site, message)

            hub.send = forging  # type: ignore[method-assign]

        federation.tamper = tamper
        federation.run()
        assert [fault.code for fault in federation.parties["site-0"].failures] == ["release-unfit"]


def test_a_release_that_was_altered_is_noticed_by_its_history(federate: Builder) -> None:
    """A coordinator that gives sites different models gets masks that do not cancel; the altered site refuses first."""
    federation = federate(5)

    def tamper(hub: MemoryHub) -> None:
        send = hub.send

        def forging(site: str, message: bytes) -> bool:
            request = decode(message)
            if site == "site-0" and isinstance(request, RoundRequest) and request.releases:
                releases = (*request.releases[:-1], request.releases[-1] + 1)
                message = encode(dataclasses.replace(request, releases=releases))
            return send(site, message)

        hub.send = forging  # type: ignore[method-assign]

    federation.tamper = tamper
    federation.run()
    assert [fault.code for fault in federation.parties["site-0"].failures] == ["purpose-unexpected"]


def test_garbage_from_a_node_does_not_disturb_the_others(federate: Builder) -> None:
    """A site that sends what is no message, or messages out of turn, is told apart and left out."""
    federation = federate(5)
    victim = federation.parties["site-0"]
    uplink = victim.uplink

    def pump() -> bool:
        event = uplink.receive(0)
        if isinstance(event, Connected):
            uplink.send(encode(Hello(1)))
        elif event is not None:
            uplink.send(b"garbage")
            uplink.send(encode(Payload(MessageKind.ANSWER, b"garbage")))
        return event is not None

    victim.pump = pump  # type: ignore[method-assign]
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert "malformed-message" in federation.codes("complaint") and "answer" in federation.codes("late")


@pytest.mark.parametrize(
    "text",
    [
        "", "version = 1", "= 3", 'version = 1\ndata_set = "a"\nmax_epsilon = -1\ndelta = 1e-6',
        'version = 1\ndata_set = "a"\nmax_epsilon = 1\ndelta = 1e-6\nmax_epsilom = 2',
        'version = 2\ndata_set = "a"\nmax_epsilon = 1\ndelta = 1e-6',
    ],
)  # fmt: skip
def test_a_policy_file_that_is_wrong_is_refused(text: str) -> None:
    """A misspelled rule would be a rule that does not hold."""
    with pytest.raises(UsageError) as caught:
        parse_policy(text)
    assert caught.value.code == "policy-file"


def test_a_policy_file_is_read_as_it_is_written() -> None:
    """The example in the documentation of the module is a policy."""
    example = policy.__doc__ or ""
    lines = [line.strip() for line in example.splitlines() if "=" in line]
    read = parse_policy("\n".join(lines))
    assert read.min_sites == 5 and read.noise == ("distributed",) and read.secure_sums.requires_distributed_noise


def test_costs_for_different_units_are_not_added(tmp_path: Any, factory: ModuleType) -> None:
    """Epsilon per record and epsilon per patient are different promises."""
    book = BudgetBook(tmp_path / "budget.db")
    events = [GaussianEvent(10.0)]
    book.reserve(b"1" * 32, "d", factory.make_plan(), events, (9.0, 1e-5))
    other = factory.make_plan(privacy={"unit": "patient", "max_rows_per_unit": 2})
    with pytest.raises(PolicyRefusal) as caught:
        book.reserve(b"2" * 32, "d", other, events, (9.0, 1e-5))
    assert caught.value.code == "policy-unit"
    book.reserve(b"2" * 32, "another data set", other, events, (9.0, 1e-5))
    book.close()


def test_two_runs_that_begin_at_once_do_not_both_get_the_last_of_a_budget(
    tmp_path: Any, factory: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes may share a book: between reading what is spent and reserving, the other must not come in."""
    books = [BudgetBook(tmp_path / "budget.db") for _ in range(2)]
    both_have_read = threading.Barrier(2)
    epsilon_of = budget._epsilon

    def slow(events: Any, delta: float) -> float:
        with contextlib.suppress(threading.BrokenBarrierError):
            both_have_read.wait(0.5)
        return epsilon_of(events, delta)

    monkeypatch.setattr(budget, "_epsilon", slow)
    refusals: list[str] = []

    def reserve(number: int) -> None:
        try:
            books[number].reserve(b"%d" % number * 32, "d", factory.make_plan(), [GaussianEvent(4.0)], (1.2, 1e-5))
        except PolicyRefusal as refusal:
            refusals.append(refusal.code)

    threads = [threading.Thread(target=reserve, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refusals == ["policy-over-budget"] and len(books[0].lines("d")) == 1
    for book in books:
        book.close()


def spoil(message: bytes, where: float, value: int) -> bytes:
    """The message with one byte changed, beyond its first five."""
    spoiled = bytearray(message)
    spoiled[5 + int(where * (len(message) - 6))] ^= value
    return bytes(spoiled)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(number=st.integers(0, 13), where=st.floats(0, 1), value=st.integers(1, 255), to_node=st.booleans())
def test_one_changed_byte_never_gives_a_wrong_model_and_never_an_unknown_error(
    federate: Builder, number: int, where: float, value: int, to_node: bool
) -> None:
    """Whatever one party's messages become on the way: a typed refusal, or the exact model of those who were in."""

    def faults(passing: Passing) -> Fate:
        direction = Direction.TO_NODE if to_node else Direction.TO_HUB
        is_it = passing.site == "site-0" and passing.direction is direction and passing.number == number
        if is_it and len(passing.message) > 6:
            spoiled = spoil(passing.message, where, value)
            target = federation.parties["site-0"].uplink if to_node else federation.network._hub
            if to_node:
                target._inbox.put(spoiled)
            else:
                target._inbox.put(Arrived("site-0", spoiled))
            return Fate.DROP
        return Fate.DELIVER

    federation = federate(5, faults=faults, name=f"spoiled-{next(NAMES)}", must_start=False)
    federation.checks_messages = False
    for party in federation.parties.values():
        party.start()
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert all(party.is_done for site, party in federation.parties.items() if site != "site-0")
    federation.close()
