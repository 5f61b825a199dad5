"""Messages out of their order: swapped, late by an exchange, or said twice, though TLS and frames prevent all three.

Whoever gets one refuses it by name or drops it; what was released stays the exact sum of those who were in, and nobody
waits longer than the plan says. That no slot masks twice and no purpose is answered twice is checked on every message
(see `Federation.note`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hedgerow.protocol.messages import MessageKind
from hedgerow.transport.interface import Arrived
from tests.builders import make_plan
from tests.memory_network import Direction, Fate, Passing
from tests.tiers import every

if TYPE_CHECKING:
    from conftest import Builder, Federation

VICTIM = "site-1"
NAMED = {
    # A node that is told what its place in the script does not have ends by name; so it does when it finds a lie.
    "out-of-order", "slot-reused", "other-epoch", "purpose-unexpected", "purpose-answered", "round-out-of-step",
    "other-spec", "second-manifest", "state-lost", "malformed-message", "stale-attempt", "release-unfit",
    "different-view", "coordinator-silent",
}  # fmt: skip


def check(federation: Federation) -> None:
    """The exact model of the survivors; the others finished; the victim has the model too, or stopped by name."""
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    victim = federation.parties[VICTIM]
    assert all(party.is_done for site, party in federation.parties.items() if site != VICTIM)
    assert {fault.code for fault in victim.failures} <= NAMED
    timeouts = federation.plan.federation
    assert federation.now <= timeouts.join_timeout + 3 * timeouts.round_timeout


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("number", every(3, range(1, 13)))
def test_two_messages_that_change_places(federate: Builder, direction: Direction, number: int) -> None:
    """Wherever it happens, from the first greeting to the last release."""

    def faults(passing: Passing) -> Fate:
        is_it = passing.site == VICTIM and passing.direction is direction and passing.number == number
        return Fate.REORDER if is_it else Fate.DELIVER

    check(federate(5, make_plan(model={"n_trees": 3}), faults=faults))


class Echo:
    """Keeps what passed one way, and delivers an old message once more, after a later one."""

    def __init__(self, direction: Direction, kind: MessageKind, after: MessageKind) -> None:
        self._direction, self._kind, self._after = direction, kind, after
        self._kept: bytes | None = None
        self.federation: Federation | None = None
        self.n_replayed = 0

    def __call__(self, passing: Passing) -> Fate:
        if passing.site != VICTIM or passing.direction is not self._direction or self.federation is None:
            return Fate.DELIVER
        kind = passing.message[4]
        if kind == self._after and self._kept is not None and not self.n_replayed:
            self.n_replayed += 1
            network, old = self.federation.network, self._kept
            if self._direction is Direction.TO_NODE:
                network._uplinks[VICTIM]._inbox.put(passing.message)
                network._uplinks[VICTIM]._inbox.put(old)
            else:
                assert network._hub is not None
                network._hub._inbox.put(Arrived(VICTIM, passing.message))
                network._hub._inbox.put(Arrived(VICTIM, old))
            return Fate.DROP
        if kind == self._kind and self._kept is None:
            self._kept = passing.message
        return Fate.DELIVER


_K = MessageKind
LATE: dict[str, tuple[Direction, MessageKind, MessageKind]] = {
    "the first round's request after the second's": (Direction.TO_NODE, _K.ROUND_REQUEST, _K.ROUND_REQUEST),
    "the first round's request after its manifest": (Direction.TO_NODE, _K.ROUND_REQUEST, _K.UNMASK),
    "the first manifest after the second round's request": (Direction.TO_NODE, _K.UNMASK, _K.ROUND_REQUEST),
    "the first manifest after the second": (Direction.TO_NODE, _K.UNMASK, _K.UNMASK),
    "an enrolment after the first round's request": (Direction.TO_NODE, _K.ENROL, _K.ROUND_REQUEST),
    "a list of the set-up after the first round's request": (Direction.TO_NODE, _K.SETUP, _K.ROUND_REQUEST),
    "the invitation after the first manifest": (Direction.TO_NODE, _K.INVITATION, _K.UNMASK),
    "the welcome after the first round's request": (Direction.TO_NODE, _K.WELCOME, _K.ROUND_REQUEST),
    "the first vector after the second": (Direction.TO_HUB, _K.UPLOAD, _K.UPLOAD),
    "the first vector after its shares": (Direction.TO_HUB, _K.UPLOAD, _K.ANSWER),
    "the first shares after the second vector": (Direction.TO_HUB, _K.ANSWER, _K.UPLOAD),
    "the first shares after the second": (Direction.TO_HUB, _K.ANSWER, _K.ANSWER),
    "the first greeting after a vector": (Direction.TO_HUB, _K.HELLO, _K.UPLOAD),
    "the consent after a vector": (Direction.TO_HUB, _K.READY, _K.UPLOAD),
    "a key of the set-up after a vector": (Direction.TO_HUB, _K.SETUP_ANSWER, _K.UPLOAD),
}


@pytest.mark.parametrize("name", LATE)
def test_a_message_of_an_earlier_exchange_that_comes_after_a_later_one(federate: Builder, name: str) -> None:
    """An old message is worth nothing: it is not answered with anything new, and nothing is summed twice."""
    echo = Echo(*LATE[name])
    federation = echo.federation = federate(5, make_plan(model={"n_trees": 2}), faults=echo)
    check(federation)
    assert echo.n_replayed == 1
