"""A coordinator, or a node, that does not follow the protocol: it gets a code, and never a sum that it may not have."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
import sqlite3
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.errors import AggregationError
from hedgerow.protocol.messages import Hello, Message, MessageKind, Payload, RoundRequest, decode, encode
from hedgerow.protocol.queries import IntVector
from hedgerow.secagg.messages import Roster, RoundSpec, Site
from hedgerow.server.coordinator import RunEvent
from hedgerow.transport.interface import Arrived, Connected
from tests.memory_network import Direction, Fate, MemoryHub, Passing, telling

if TYPE_CHECKING:
    from conftest import Builder, Federation

NAMES = itertools.count()


def test_a_second_run_under_the_same_number_is_refused(federate: Builder) -> None:
    """A coordinator that asks again for what was released, under the same run, gets nothing."""
    federation = federate(5)
    federation.run()
    run_id = federation.session.run.run_id
    for file in federation.folder.glob("journal.db*"):
        file.unlink()
    for party in federation.parties.values():
        party.kill()
        party.start()
    federation.coordinator_entropy = lambda n: run_id if n == 32 else os.urandom(n)
    with pytest.raises(AggregationError):
        federation.run()
    assert {fault.code for party in federation.parties.values() for fault in party.failures} == {"run-closed"}


def keeping(kind: MessageKind, most: int, kept: list[str]) -> Callable[[Passing], Fate]:
    """Lets the coordinator keep, and nobody see, the first messages of a kind; `kept` says whose they were."""

    def fate(passing: Passing) -> Fate:
        if passing.message[4] == kind and len(kept) < most:
            kept.append(passing.site)
            return Fate.DROP
        return Fate.DELIVER

    return fate


def forget_when_killed(federation: Federation, killed: type[BaseException]) -> None:
    """The coordinator dies when nothing comes any more, and its journal then knows of no epoch and no slot."""

    def die(_: float) -> bool:
        raise killed

    federation.while_waiting = die
    with pytest.raises(killed):
        federation.run()
    federation.while_waiting = lambda _: False
    database = sqlite3.connect(federation.folder / "journal.db")
    database.execute("update run set epoch = null")
    database.execute("update slots set slot = null, next_slot = 0")
    database.commit()
    database.close()


def test_a_purpose_that_was_answered_is_not_answered_again_in_a_new_epoch(
    federate: Builder, killed: type[BaseException]
) -> None:
    """A coordinator that took the shares, and forgets that it did, would sum again over other sites: the difference of
    the two sums is one hospital's vector.
    """
    taken: list[str] = []
    federation = federate(5, faults=keeping(MessageKind.ANSWER, 5, taken))
    forget_when_killed(federation, killed)
    assert len(taken) == 4, "as many as open the sum are asked"
    with pytest.raises(AggregationError):
        federation.run()
    codes = [fault.code for party in federation.parties.values() for fault in party.failures]
    assert sorted(codes) == ["purpose-answered"] * 4 + ["too-few-sites"]
    assert not federation.session.run.survivors


def test_a_round_that_was_masked_is_not_masked_again_where_both_could_be_opened(
    federate: Builder, killed: type[BaseException]
) -> None:
    """Seven of ten sites can open the sum of all ten; the other three must not sum the same round by themselves, or
    their rows would be in two releases that are paid for once.
    """
    kept: list[str] = []
    federation = federate(10, faults=keeping(MessageKind.UPLOAD, 10, kept))
    forget_when_killed(federation, killed)
    assert len(kept) == 10
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


def test_a_round_that_was_masked_is_not_masked_again_under_a_later_roster(
    federate: Builder, killed: type[BaseException]
) -> None:
    """Its other sites have other numbers there: counted as the same ones, they could open both sums."""
    kept: list[str] = []
    federation = federate(19, faults=keeping(MessageKind.UPLOAD, 10, kept))
    later = federation.roster
    first = Roster(later.coordinator, (later.sites[0], *later.sites[10:]))

    def pin(roster: Roster, asked: tuple[Site, ...]) -> None:
        federation.roster = roster
        for site, party in federation.parties.items():
            party.kill()
            party.setup = dataclasses.replace(party.setup, roster=roster)
            if site in {one.name for one in asked}:
                party.start()

    pin(first, first.sites)
    forget_when_killed(federation, killed)
    assert len(kept) == 10
    pin(later, later.sites[:10])
    journal = sqlite3.connect(federation.folder / "journal.db")
    journal.execute("update run set roster = ?", (later.to_bytes(),))
    journal.commit()
    journal.close()
    federation.received.clear()
    with contextlib.suppress(AggregationError):
        federation.run()
    masked = [site for site, message in federation.received if message[4] == MessageKind.UPLOAD]
    assert "site-0" not in masked
    assert [fault.code for fault in federation.parties["site-0"].failures] == ["purpose-answered"]


@pytest.mark.parametrize("database", ["lost", "restored"])
@pytest.mark.parametrize("first", [0, 2])
def test_sites_that_were_not_asked_do_not_open_what_others_have_opened(
    federate: Builder, killed: type[BaseException], database: str, first: int
) -> None:
    """Seven of ten sites open every sum, and the databases of the other three are lost, or restored from a backup. A
    coordinator that forgets its releases could have the three sum the same rounds: the difference of the two sums is
    that of the seven. Their counters know that the rounds were released, and which one was masked last.
    """
    federation = federate(10)
    three = ["site-7", "site-8", "site-9"]
    released = itertools.count(1)

    def back_up(event: RunEvent) -> None:
        if event.kind.value == "phase" and event.code == "collecting-vectors":
            for site in three:
                shutil.copytree(federation.parties[site].folder, federation.folder / f"backup-{site}")
            federation.on_event = kill

    def kill(event: RunEvent) -> None:
        if event.kind.value == "released" and next(released) == 3:
            raise killed

    federation.on_event = back_up
    with pytest.raises(killed):
        federation.run()
    federation.on_event = lambda _: None
    for site, party in federation.parties.items():
        party.kill()
        if site in three:
            for file in party.folder.glob("node.db*"):
                file.unlink()
            for file in (federation.folder / f"backup-{site}").glob("node.db*") if database == "restored" else ():
                shutil.copy(file, party.folder)
            party.start()
    journal = sqlite3.connect(federation.folder / "journal.db")
    journal.execute("update run set epoch = null")
    journal.execute("update slots set slot = null, next_slot = 0")
    journal.execute("delete from releases where round >= ?", (first,))
    journal.commit()
    journal.close()
    with pytest.raises(AggregationError):
        federation.run()
    assert len(federation.session.run.survivors) == first
    for site in three:
        assert {fault.code for fault in federation.parties[site].failures} <= {"purpose-answered", "too-few-sites"}


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
    assert ["site-0" in survivors for survivors in federation.session.run.survivors] == [True, False, False, False]


def telling_site_0(change: Callable[[tuple[IntVector, ...]], tuple[IntVector, ...]]) -> Callable[[MemoryHub], None]:
    """What makes a hub change the releases that site-0 is sent, and nobody else."""

    def changed(said: Message) -> Message:
        is_told = isinstance(said, RoundRequest) and said.releases
        return dataclasses.replace(said, releases=change(said.releases)) if is_told else said

    return telling("site-0", changed)


def test_a_coordinator_cannot_send_a_release_that_is_none(federate: Builder) -> None:
    """Numbers beyond any sum over the plan's records would break the arithmetic; another length the program."""
    for name, code, change in (
        ("large", "release-implausible", lambda r: r * 2**40),
        ("long", "release-unfit", lambda r: np.concatenate([r, r])),
        ("empty", "release-unfit", lambda r: r[:0]),
    ):
        federation = federate(5, name=name)
        federation.tamper = telling_site_0(lambda releases, change=change: tuple(map(change, releases)))  # type: ignore[misc]
        federation.run()
        assert [fault.code for fault in federation.parties["site-0"].failures] == [code]


def test_a_release_that_was_altered_is_noticed_by_its_history(federate: Builder) -> None:
    """A coordinator that gives sites different models gets masks that do not cancel; the altered site refuses first."""
    federation = federate(5)
    federation.tamper = telling_site_0(lambda releases: (*releases[:-1], releases[-1] + 1))
    federation.run()
    assert [fault.code for fault in federation.parties["site-0"].failures] == ["purpose-unexpected"]


def test_a_spec_that_was_answered_brings_no_new_releases(federate: Builder) -> None:
    """The node would send the vector of one round again, and be charged for the next one."""
    federation = federate(5)
    asked: list[RoundRequest] = []

    def changed(said: Message) -> Message:
        if isinstance(said, RoundRequest):
            asked.append(said)
        if isinstance(said, Payload) and said.kind is MessageKind.UNMASK and len(asked) == 2:
            last = asked[-1]
            made_up = (np.zeros(federation.session.run.replica.query.release_length, dtype=np.int64),)
            return RoundRequest(last.round + 1, made_up, last.signed_spec, last.structure_seed)
        return said

    federation.tamper = telling("site-0", changed)
    federation.run()
    party = federation.parties["site-0"]
    assert [fault.code for fault in party.failures] == ["slot-reused"]
    party.start()
    assert len(party.store.spent(federation.session.run.run_id)) == 2


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


def spoil(message: bytes, where: float, value: int) -> bytes:
    """The message with one byte changed, beyond its first five."""
    spoiled = bytearray(message)
    spoiled[5 + int(where * (len(message) - 6))] ^= value
    return bytes(spoiled)


@pytest.mark.slow
@settings(max_examples=40)
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
