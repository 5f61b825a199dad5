"""The node's loop tells its owner about the connection, and ends with a word that says what to do."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from hedgerow.client.run import run_node
from hedgerow.client.session import NodeSession
from hedgerow.client.store import NodeStep, NodeStore
from hedgerow.errors import AggregationError
from hedgerow.protocol.messages import Refused, decode
from hedgerow.protocol.wire.refusals import EXPLANATIONS, WireCode, WireRefusal
from hedgerow.server.status import RunEvent
from hedgerow.transport.interface import Connected, Disconnected, UplinkEvent

if TYPE_CHECKING:
    from conftest import Builder


class ScriptedUplink:
    """A link whose events were written down before."""

    def __init__(self, *events: UplinkEvent | None) -> None:
        self._events = list(events)
        self.sent: list[bytes] = []

    def receive(self, timeout: float) -> UplinkEvent | None:
        return self._events.pop(0) if self._events else None

    def send(self, message: bytes) -> bool:
        self.sent.append(message)
        return True

    def close(self) -> None:
        pass


@pytest.mark.parametrize("code", [code for code, row in EXPLANATIONS.items() if row.is_final])
def test_a_refusal_for_good_is_named_with_its_own_remedy(federate: Builder, code: WireCode) -> None:
    """A wrong roster and a second node call for different deeds: each error has a word and a remedy of its own."""
    session = federate(3).parties["site-1"].session
    assert session is not None
    seen: list[Connected | Disconnected] = []
    comings = [Disconnected("unreachable"), Connected(), Disconnected(code.value, is_final=True)]
    with pytest.raises(WireRefusal) as refused:
        run_node(session, ScriptedUplink(*comings), lambda: 0.0, 60.0, seen.append)
    assert refused.value.code == code.value and refused.value.remedy == EXPLANATIONS[code].remedy
    assert refused.value.exit_code == 8
    assert seen == comings


class Waits(ScriptedUplink):
    """Notes how long the node would wait each time; so many seconds pass with each event."""

    def __init__(self, seconds: float, *events: UplinkEvent | None) -> None:
        super().__init__(*events)
        self.seconds, self.waits = seconds, list[float]()

    def receive(self, timeout: float) -> UplinkEvent | None:
        self.waits.append(timeout)
        return super().receive(timeout)

    def clock(self) -> float:
        return self.seconds * len(self.waits)


@pytest.fixture
def unsettled(federate: Builder, monkeypatch: pytest.MonkeyPatch) -> tuple[NodeSession, list[bool]]:
    """A session whose store is behind, and that notes when it is brought up to date."""
    session = federate(3).parties["site-1"].session
    assert session is not None
    settled: list[bool] = []
    monkeypatch.setattr(NodeSession, "is_unsettled", property(lambda _: not settled))
    monkeypatch.setattr(session, "settle", lambda: settled.append(True) or [])
    return session, settled


def test_a_second_after_an_answer_the_store_is_brought_up_to_date(unsettled: tuple[NodeSession, list[bool]]) -> None:
    """Once; the loop wakes up for it and is then as quiet as before."""
    session, settled = unsettled
    session.plan = None  # Its own idle timeout would count in place of the patience here.
    uplink = Waits(0.6, Connected(), None, None)
    with pytest.raises(AggregationError):
        run_node(session, uplink, uplink.clock, 1.7)
    assert uplink.waits[:3] == [pytest.approx(wait) for wait in (1.7, 1.0, 0.4)]
    assert len(settled) == 2, "The second is that of the loop's end."


def test_whoever_keeps_a_node_busy_does_not_put_that_off(unsettled: tuple[NodeSession, list[bool]]) -> None:
    """A coordinator could say something twice a second, and have a slot's secrets lie on the disk for ever."""
    session, settled = unsettled
    uplink = Waits(0.6, *[Connected()] * 9, Disconnected(WireCode.ROSTER_MISMATCH.value, is_final=True))
    with pytest.raises(WireRefusal):
        run_node(session, uplink, uplink.clock, 60.0)
    assert len(settled) == 2


def test_a_node_that_ends_brings_its_store_up_to_date(unsettled: tuple[NodeSession, list[bool]]) -> None:
    """Also when it ends with an error, or by its owner's hand, within that second."""
    session, settled = unsettled
    uplink = Waits(0.1, Disconnected(WireCode.ROSTER_MISMATCH.value, is_final=True))
    with pytest.raises(WireRefusal):
        run_node(session, uplink, uplink.clock, 60.0)
    assert settled == [True]


def test_a_session_that_has_answered_settles_also_when_it_refuses(federate: Builder) -> None:
    """Until then only the counter tells of the answer; then nothing that opens the slot is left in the folder."""
    federation = federate(3)
    party = federation.parties["site-1"]
    found: list[tuple[str, str]] = []

    def settle(event: RunEvent) -> None:
        if event.kind != "released" or party.session is None or party.store is None:
            return
        assert party.session.is_unsettled
        before = party.store._counter.manifest
        if event.round == 2:
            # A message that is refused: the node stops, and its store is brought up to date all the same.
            assert decode(party.session.receive(b"no message")[0]) == Refused(1, "malformed-message")
        assert party.session.settle() == [] and not party.session.is_unsettled
        found.append((before, party.store._counter.manifest))

    federation.on_event = settle
    with suppress(AggregationError):
        federation.run()
    assert len(found) == 2 and all(before and not after for before, after in found)


def test_an_echo_is_written_with_its_step(federate: Builder, factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows it is a certificate, which a node that knows the manifest's hash alone could not answer."""
    written: list[bool] = []
    save = NodeStore.save

    def noting(self: NodeStore, run_id: bytes, step: NodeStep) -> None:
        if step.answered is not None:
            written.append(step.participant is not None)
        save(self, run_id, step)

    monkeypatch.setattr(NodeStore, "save", noting)
    plan = factory.make_plan()
    federate(4, dataclasses.replace(plan, federation=dataclasses.replace(plan.federation, echo=True))).run()
    assert written and all(written)
