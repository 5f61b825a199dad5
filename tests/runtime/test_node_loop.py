"""The node's loop tells its owner about the connection, and ends with a word that says what to do."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from hedgerow.client.node_session import run_node
from hedgerow.client.state import NodeStep, NodeStore
from hedgerow.errors import AggregationError
from hedgerow.protocol.refusals import FINAL, WireCode, WireRefusal
from hedgerow.transport.interface import Connected, Disconnected, UplinkEvent
from tests.builders import make_plan

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


@pytest.mark.parametrize("code", sorted(FINAL))
def test_a_refusal_for_good_is_named_with_its_own_remedy(federate: Builder, code: WireCode) -> None:
    """A wrong roster and a second node call for different deeds: each error has a word and a remedy of its own."""
    session = federate(3).parties["site-1"].session
    assert session is not None
    seen: list[Connected | Disconnected] = []
    comings = [Disconnected("unreachable"), Connected(), Disconnected(code.value, is_final=True)]
    with pytest.raises(WireRefusal) as refused:
        run_node(session, ScriptedUplink(*comings), lambda: 0.0, 60.0, seen.append)
    assert refused.value.code == code.value and refused.value.remedy == WireRefusal(code).remedy
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


def test_a_node_waits_no_longer_than_it_may(federate: Builder) -> None:
    """It gives up when nothing was heard for as long as its patience, and reads what came meanwhile before that."""
    session = federate(3).parties["site-1"].session
    assert session is not None
    session.plan = None  # Its own idle timeout would count in place of the patience here.
    uplink = Waits(0.6, Connected(), None, None)
    with pytest.raises(AggregationError) as ended:
        run_node(session, uplink, uplink.clock, 1.7)
    assert ended.value.code == "coordinator-silent"
    assert uplink.waits == [pytest.approx(wait) for wait in (1.0, 1.0, 1.0, 0.5)]


@pytest.mark.parametrize("echo", [False, True])
def test_an_answer_is_written_with_its_step(federate: Builder, monkeypatch: pytest.MonkeyPatch, echo: bool) -> None:
    """The round that is over and the state after it: one without the other would let the round be answered again."""
    written: list[bool] = []
    save = NodeStore.save

    def noting(self: NodeStore, run_id: bytes, step: NodeStep) -> None:
        if step.answered is not None:
            written.append(step.participant is not None)
        save(self, run_id, step)

    monkeypatch.setattr(NodeStore, "save", noting)
    plan = make_plan()
    federate(4, dataclasses.replace(plan, federation=dataclasses.replace(plan.federation, echo=echo))).run()
    assert written and all(written)
