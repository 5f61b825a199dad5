"""The engine in memory keeps the contract of `transport.interface`, and breaks it exactly where it was told to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.transport.interface import Arrived, Connected, Disconnected, HubEvent, Joined, Left, UplinkEvent
from tests.memory_network import Direction, Fate, MemoryHub, MemoryNetwork, MemoryUplink, Passing


def drained(end: MemoryHub | MemoryUplink) -> list[HubEvent | UplinkEvent]:
    """All events that wait."""
    events: list[HubEvent | UplinkEvent] = []
    while (event := end.receive(0)) is not None:
        events.append(event)
    return events


def fault_at(number: int, fate: Fate, direction: Direction = Direction.TO_HUB) -> Callable[[Passing], Fate]:
    return lambda passing: fate if (passing.number, passing.direction) == (number, direction) else Fate.DELIVER


def test_messages_arrive_whole_and_in_order() -> None:
    """Both ends are told of the connection first, then get exactly what was sent."""
    network = MemoryNetwork()
    hub, north = network.hub(), network.uplink("north")
    assert hub.send("north", b"question") and north.send(b"a") and north.send(b"b")
    assert drained(hub) == [Joined("north"), Arrived("north", b"a"), Arrived("north", b"b")]
    assert drained(north) == [Connected(), b"question"]


def test_an_absent_site_is_not_written_to() -> None:
    """`send` says so when nobody is there; nothing is queued for a later connection."""
    network = MemoryNetwork()
    hub = network.hub()
    assert not hub.send("north", b"early")
    north = network.uplink("north")
    network.cut("north", reconnect=False)
    assert not hub.send("north", b"lost") and not north.send(b"lost")
    network.restore("north")
    assert drained(north) == [Connected(), Disconnected("connection-lost"), Connected()]
    assert drained(hub) == [Joined("north"), Left("north", "connection-lost"), Joined("north")]


@pytest.mark.parametrize(
    ("fate", "arrived"),
    [
        (Fate.DROP, [b"0", b"2"]),
        (Fate.REORDER, [b"0", b"2", b"1"]),
        (Fate.HOLD, [b"0"]),
        (Fate.CUT, [b"0", b"2"]),
        (Fate.CUT_AFTER, [b"0", b"1", b"2"]),
    ],
)
def test_each_fate_is_what_it_says(fate: Fate, arrived: list[bytes]) -> None:
    """The second of three messages meets its fate; the others pass."""
    network = MemoryNetwork(fault_at(1, fate))
    hub, north = network.hub(), network.uplink("north")
    for number in range(3):
        north.send(str(number).encode())
    events = drained(hub)
    assert [event.message for event in events if isinstance(event, Arrived)] == arrived
    assert any(isinstance(event, Left) for event in events) == (fate in (Fate.CUT, Fate.CUT_AFTER))
    if fate is Fate.HOLD:
        network.release("north")
        assert drained(hub) == [Arrived("north", b"1"), Arrived("north", b"2")]


def test_a_new_hub_meets_the_waiting_nodes() -> None:
    """A coordinator that was killed and started again finds its nodes; the old hub hears and says nothing more."""
    network = MemoryNetwork()
    first, north, south = network.hub(), network.uplink("north"), network.uplink("south")
    second = network.hub()
    assert drained(second) == [Joined("north"), Joined("south")]
    assert not first.send("north", b"from the grave")
    assert drained(south) == drained(north) == [Connected(), Disconnected("closed"), Connected()]


def test_a_second_node_of_a_site_replaces_the_first() -> None:
    """There is never more than one connection per site, and the replaced end can no longer speak."""
    network = MemoryNetwork()
    hub, first = network.hub(), network.uplink("north")
    second = network.uplink("north")
    assert not first.send(b"old") and second.send(b"new")
    assert drained(first)[-1] == Disconnected("duplicate-node", is_final=True)
    left = Left("north", "connection-lost")
    assert drained(hub) == [Joined("north"), left, Joined("north"), Arrived("north", b"new")]


@given(fates=st.lists(st.sampled_from([Fate.DELIVER, Fate.CUT, Fate.CUT_AFTER, Fate.HOLD]), max_size=12))
def test_without_drop_and_reorder_the_contract_holds(fates: list[Fate]) -> None:
    """What arrives of one connection is the beginning of what was sent over it: nothing missing, twice or swapped."""
    network = MemoryNetwork(lambda passing: fates[passing.number])
    hub, north = network.hub(), network.uplink("north")
    sent: list[list[int]] = [[]]
    for number, fate in enumerate(fates):
        assert north.send(bytes([number]))
        sent[-1].append(number)
        if fate in (Fate.CUT, Fate.CUT_AFTER):
            sent.append([])
    arrived: list[list[int]] = []
    for event in drained(hub):
        if isinstance(event, Joined):
            arrived.append([])
        elif isinstance(event, Arrived):
            arrived[-1].append(event.message[0])
    assert len(arrived) == len(sent)
    assert all(part == whole[: len(part)] for part, whole in zip(arrived, sent, strict=True))
