"""The engine grpc as its users know it: nodes join over TLS, messages pass both ways, a lost link comes back."""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hedgerow.errors import EnvironmentFault
from hedgerow.protocol.refusals import WireCode, WireRefusal
from hedgerow.transport.identities import Role, build_roster, new_identity
from hedgerow.transport.interface import Arrived, Connected, Disconnected, Joined, Left

EventOf = Callable[..., Any]


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1, 3_000_000])
def test_a_message_passes_whole_both_ways(federation: Any, event_of: EventOf, size: int) -> None:
    """Whatever its size, it arrives as the bytes that were sent."""
    hub = federation.hub()
    north = federation.uplink("north", hub.port)
    assert event_of(hub, Joined, only=True) == Joined("north")
    event_of(north, Connected, only=True)
    message = bytes(index % 251 for index in range(size))
    assert hub.send("north", message)
    assert event_of(north, bytes, only=True) == message
    assert north.send(message)
    assert event_of(hub, Arrived, only=True) == Arrived("north", message)


def test_many_messages_keep_their_order(federation: Any, event_of: EventOf) -> None:
    """Each direction is a queue, also when large and small messages mix."""
    hub = federation.hub()
    north = federation.uplink("north", hub.port)
    event_of(hub, Joined)
    event_of(north, Connected)
    messages = [bytes([number % 256]) * (1_500_000 if number % 50 == 7 else number) for number in range(200)]
    assert all(hub.send("north", message) and north.send(message) for message in messages)
    assert [event_of(north, bytes) for _ in messages] == messages
    assert [event_of(hub, Arrived).message for _ in messages] == messages


def test_nobody_is_written_to_who_is_not_there(federation: Any, event_of: EventOf) -> None:
    """`send` tells both parties when there is no connection, and for names that no roster has."""
    hub = federation.hub()
    north = federation.uplink("north", hub.port)
    event_of(north, Connected)
    event_of(hub, Joined)
    assert not hub.send("south", b"x") and not hub.send("nobody", b"x")
    hub.close()
    event_of(north, Disconnected)
    assert not north.send(b"x")


def test_what_was_sent_before_closing_still_arrives(federation: Any, event_of: EventOf) -> None:
    """A coordinator's last word, and a node's, are not lost in an orderly end."""
    hub = federation.hub()
    north, south = federation.uplink("north", hub.port), federation.uplink("south", hub.port)
    for end in (north, south):
        event_of(end, Connected)
        event_of(hub, Joined)
    north.send(b"n" * 2_000_000)
    north.close()
    assert event_of(hub, Arrived).message == b"n" * 2_000_000
    assert event_of(hub, Left) == Left("north", "closed")
    hub.send("south", b"s" * 2_000_000)
    hub.close()
    assert event_of(south, bytes) == b"s" * 2_000_000
    assert event_of(south, Disconnected) == Disconnected("closed")


def test_a_cut_link_comes_back(federation: Any, event_of: EventOf) -> None:
    """Both ends hear of the loss, in order, and of the new connection; then messages pass again. Three times."""
    hub = federation.hub()
    relay = federation.relay(hub.port)
    north = federation.uplink("north", relay.port)
    event_of(north, Connected, only=True)
    event_of(hub, Joined, only=True)
    for number in range(3):
        relay.cut()
        assert event_of(hub, Left, only=True).site == "north"
        event_of(north, Disconnected, only=True)
        event_of(hub, Joined, only=True)
        event_of(north, Connected)
        assert hub.send("north", bytes([number]))
        assert event_of(north, bytes, only=True) == bytes([number])


def test_a_coordinator_that_starts_again_finds_its_nodes(federation: Any, event_of: EventOf) -> None:
    """The nodes wait, however often it fails, and come back to the same address."""
    hub = federation.hub()
    nodes = [federation.uplink(site, hub.port) for site in federation.sites]
    assert {event_of(hub, Joined).site for _ in nodes} == set(federation.sites)
    hub.close()
    again = federation.hub(port=hub.port)
    assert {event_of(again, Joined).site for _ in nodes} == set(federation.sites)


def test_a_node_may_come_before_the_coordinator(federation: Any, event_of: EventOf) -> None:
    """It reports once that nobody is there, not at every attempt, and joins when the coordinator is there."""
    probe = federation.hub()
    port = probe.port
    probe.close()
    north = federation.uplink("north", port)
    assert north.receive(300) == Disconnected("unreachable")
    assert north.receive(0.6) is None
    hub = federation.hub(port=port)
    assert event_of(hub, Joined) == Joined("north")
    assert north.receive(300) == Connected()


def test_a_frozen_network_is_noticed_by_both(federation: Any, event_of: EventOf, quick: Callable[..., Any]) -> None:
    """Where nothing breaks and nothing passes, the missing signs of life end the connection."""
    settings = quick(silence_seconds=3.0)
    hub = federation.hub(settings=settings)
    relay = federation.relay(hub.port)
    north = federation.uplink("north", relay.port, settings=settings)
    event_of(north, Connected)
    event_of(hub, Joined)
    relay.freeze()
    assert event_of(hub, Left) == Left("north", "connection-lost")
    assert event_of(north, Disconnected) == Disconnected("silent")
    relay.thaw()
    assert event_of(hub, Joined) == Joined("north")


def test_fifty_nodes(federation: Any, event_of: EventOf) -> None:
    """Fifty sites join and every one answers every question."""
    sites = [new_identity(f"site-{number:02}", Role.SITE, bytes([number, 1] * 16)) for number in range(50)]
    federation_of_fifty = type(federation)()
    federation_of_fifty.sites = {site.public.name: site for site in sites}
    federation_of_fifty.roster = build_roster(federation_of_fifty.coordinator.public, [site.public for site in sites])
    try:
        hub = federation_of_fifty.hub()
        nodes = {name: federation_of_fifty.uplink(name, hub.port) for name in federation_of_fifty.sites}
        assert {event_of(hub, Joined, only=True).site for _ in nodes} == set(nodes) == set(hub.connected_sites())
        for question in (b"one", b"two" * 10_000):
            assert all(hub.send(name, question) for name in nodes)
            for name, node in nodes.items():
                assert event_of(node, bytes) == question
                node.send(name.encode() + question)
            answers = {event_of(hub, Arrived, only=True) for _ in nodes}
            assert answers == {Arrived(name, name.encode() + question) for name in nodes}
    finally:
        federation_of_fifty.close()


def test_a_port_is_not_shared(federation: Any) -> None:
    """A second coordinator on the same port would get half of the nodes."""
    hub = federation.hub()
    with pytest.raises(EnvironmentFault) as error:
        federation.hub(port=hub.port)
    assert error.value.code == "address-in-use"


def test_an_oversized_message_is_the_senders_error(
    federation: Any, quick: Callable[..., Any], event_of: EventOf
) -> None:
    """It is refused before it is queued, also by a node whose own limit is higher; nobody is disconnected."""
    hub = federation.hub(settings=quick(max_message_bytes=1000))
    north = federation.uplink("north", hub.port)
    event_of(hub, Joined)
    event_of(north, Connected)
    for send in (lambda: hub.send("north", bytes(1001)), lambda: north.send(bytes(1001))):
        with pytest.raises(WireRefusal) as error:
            send()
        assert error.value.wire_code is WireCode.OVERSIZED
    assert north.send(bytes(1000))
    assert event_of(hub, Arrived, only=True).message == bytes(1000)


def test_traffic_is_counted(federation: Any, event_of: EventOf) -> None:
    """The coordinator knows how many bytes went each way, also over streams that have ended."""
    hub = federation.hub()
    north = federation.uplink("north", hub.port)
    event_of(hub, Joined)
    event_of(north, Connected)
    north.send(bytes(50_000))
    event_of(hub, Arrived)
    north.close()
    event_of(hub, Left)
    assert hub.traffic().received >= 50_000 > hub.traffic().sent >= 0


def test_a_process_with_an_open_hub_can_end(tmp_path: Path) -> None:
    """Neither the loop's thread nor gRPC's keeps a process alive that forgot to close, and nothing is printed."""
    code = (
        "from hedgerow.transport.identities import *\n"
        "from hedgerow.transport.grpc_hub import GrpcHub\n"
        "from hedgerow.transport.interface import Address\n"
        "from hedgerow.transport.grpc_link import GrpcUplink\n"
        "hub, site = new_identity('c', Role.COORDINATOR, bytes(32)), new_identity('s', Role.SITE, bytes([1]) * 32)\n"
        "roster = build_roster(hub.public, [site.public])\n"
        "hub = GrpcHub(hub, roster, Address())\n"
        "node = GrpcUplink(f'127.0.0.1:{hub.port}', site, roster, lambda: 0.5)\n"
        "print(hub.receive(300))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, text=True, capture_output=True,
        timeout=600,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "Joined(site='s')\n", "")


def test_a_node_may_send_as_soon_as_it_hears_of_the_link(federation: Any, event_of: EventOf) -> None:
    """A node's thread may run before the transport's next line: its first message must not find the link missing."""
    probe = federation.hub()
    port = probe.port
    probe.close()
    uplink = federation.uplink("north", port)
    sent: list[bool] = []

    class Hasty(queue.SimpleQueue[Any]):
        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            if isinstance(item[0], Connected):
                sent.append(uplink.send(b"hello"))
            super().put(item, block, timeout)

    uplink._events = Hasty()
    hub = federation.hub(port)
    assert event_of(hub, Arrived) == Arrived("north", b"hello")
    assert sent == [True]
