"""The node's loop tells its owner about the connection, and ends with a word that says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hedgerow.client.run import run_node
from hedgerow.protocol.errors import AggregationError
from hedgerow.protocol.wire.refusals import EXPLANATIONS, WireCode, WireRefusal
from hedgerow.transport.interface import Connected, Disconnected, UplinkEvent

if TYPE_CHECKING:
    from conftest import Builder


class ScriptedUplink:
    """A link whose events were written down before."""

    def __init__(self, *events: UplinkEvent) -> None:
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


def test_a_node_that_nobody_asks_brings_its_store_up_to_date(
    federate: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second after the last message; from then on it wakes up seldom."""
    session = federate(3).parties["site-1"].session
    assert session is not None
    waits, settled = [], []

    class Quiet(ScriptedUplink):
        def receive(self, timeout: float) -> UplinkEvent | None:
            waits.append(timeout)
            return super().receive(timeout)

    monkeypatch.setattr(session, "settle", lambda: settled.append(len(waits)) or [])
    with pytest.raises(AggregationError):
        run_node(session, Quiet(Connected()), lambda: 100.0 * len(waits), 1000.0)
    assert waits[1] == 1.0 and settled[0] == 2 and min(waits[2:4]) > 1.0
