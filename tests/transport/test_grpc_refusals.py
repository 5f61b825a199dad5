"""Whoever is not who he should be, or speaks as he should not, is refused by name; a run beside him goes on."""

from __future__ import annotations

import logging
import random
import re
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hedgerow.codec import VERSION
from hedgerow.errors import EnvironmentFault, entries
from hedgerow.protocol.messages import Hello
from hedgerow.protocol.refusals import WireCode, WireRefusal
from hedgerow.protocol.stream import Admittance, Farewell, Introduction, wrap_message
from hedgerow.transport import grpc_link
from hedgerow.transport.grpc_hub import GrpcHub
from hedgerow.transport.identities import Role, build_roster, new_identity
from hedgerow.transport.interface import Address, Arrived, Connected, Disconnected, Joined, Left
from tests.builders import coded

EventOf = Callable[..., Any]
LIMIT = 1 << 20


@pytest.fixture
def run_beside(federation: Any, event_of: EventOf, quick: Callable[..., Any]) -> Any:
    """A hub with one good node, and a check that both still get through to each other undisturbed."""
    hub = federation.hub(settings=quick(max_message_bytes=LIMIT))
    south = federation.uplink("south", hub.port)
    event_of(hub, Joined, only=True)
    event_of(south, Connected, only=True)

    class Run:
        port: int = hub.port

        @staticmethod
        def is_undisturbed(*, others: tuple[type, ...] = ()) -> None:
            assert hub.send("south", b"question")
            assert event_of(south, bytes, only=True) == b"question"
            south.send(b"answer")
            while (event := hub.receive(300)) != Arrived("south", b"answer"):
                assert isinstance(event, others) and event.site != "south", event

    Run.hub = hub  # type: ignore[attr-defined]
    return Run


def introduction(run: Any, **changes: Any) -> bytes:
    return replace(Introduction("north", run.digest), **changes).to_bytes()


FIRST: dict[str, tuple[Callable[[Any], bytes], WireCode]] = {
    "noise": (lambda run: b"\xff" * 50, WireCode.MALFORMED),
    "nothing": (lambda run: b"", WireCode.MALFORMED),
    "no message": (lambda run: wrap_message(b"hello"), WireCode.MALFORMED),
    "truncated": (lambda run: wrap_message(introduction(run)[:-5]), WireCode.MALFORMED),
    "lengthened": (lambda run: wrap_message(introduction(run) + b"x"), WireCode.MALFORMED),
    "oversized": (lambda run: wrap_message(bytes(LIMIT + 1)), WireCode.OVERSIZED),
    "another version": (lambda run: wrap_message(of_another_version(introduction(run))), WireCode.UNKNOWN_VERSION),
    "a message of a run": (lambda run: wrap_message(Hello(1).to_bytes()), WireCode.UNEXPECTED_FRAME),
    "admittance": (lambda run: wrap_message(Admittance(1).to_bytes()), WireCode.UNEXPECTED_FRAME),
    "another site": (lambda run: wrap_message(introduction(run, site="east")), WireCode.SITE_MISMATCH),
    "another roster": (lambda run: wrap_message(introduction(run, roster_digest=bytes(32))), WireCode.ROSTER_MISMATCH),
}


def of_another_version(message: bytes) -> bytes:
    return message[:3] + bytes((VERSION + 1,)) + message[4:]


@pytest.mark.parametrize("name", FIRST)
def test_a_wrong_first_message(federation: Any, run_beside: Any, name: str) -> None:
    """Before a node has joined, the coordinator answers with the code, ends the stream and tells nobody else."""
    run_beside.digest = federation.roster.digest()
    make, code = FIRST[name]
    hostile = federation.hostile("north", run_beside.port).write(make(run_beside))
    answer = hostile.read()
    assert isinstance(answer, Farewell) and answer.code == code
    assert hostile.read() is None
    run_beside.is_undisturbed()
    assert dict(run_beside.hub.refusals) == {code.value: 1}


LATER: dict[str, tuple[bytes, WireCode]] = {
    "noise": (b"\xff" * 50, WireCode.MALFORMED),
    "second introduction": (wrap_message(Introduction("north", bytes(32)).to_bytes()), WireCode.UNEXPECTED_FRAME),
    "a farewell that is none": (wrap_message(Farewell("closed", "").to_bytes() + b"x"), WireCode.UNEXPECTED_FRAME),
    "oversized": (wrap_message(bytes(LIMIT + 1)), WireCode.OVERSIZED),
}


@pytest.mark.parametrize("name", LATER)
def test_a_wrong_later_message(federation: Any, run_beside: Any, event_of: EventOf, name: str) -> None:
    """A joined node that breaks the rules is told which, and leaves under that name."""
    raw, code = LATER[name]
    hostile = federation.hostile("north", run_beside.port).greet().write(raw)
    answer = hostile.read()
    assert isinstance(answer, Farewell) and answer.code == code
    assert event_of(run_beside.hub, Left) == Left("north", code.value)
    run_beside.is_undisturbed()


@pytest.mark.parametrize("method", ["wire.v1.Coordinator", "wire.v99.Coordinator"])
def test_a_node_of_another_version(
    federation: Any, run_beside: Any, monkeypatch: Any, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The version stands in the name of what it calls: both sides hear of it by name, and the node stops."""
    monkeypatch.setattr(grpc_link, "JOIN", f"/hedgerow.{method}/Join")
    node = federation.uplink("north", run_beside.port)
    # A refusal can be lost with its connection: the node dials again, and hears it then.
    while (told := node.receive(300)) == Disconnected("connection-lost"):
        pass
    assert told == Disconnected("version-mismatch", is_final=True)
    # Both are of this release here; what each says of the other is what the other says of itself.
    assert told.detail == f"It is {grpc_link.OWN_VERSION}; here is {grpc_link.OWN_VERSION}."
    run_beside.is_undisturbed()
    assert set(run_beside.hub.refusals) == {"version-mismatch"}
    assert caplog.text.count(told.detail) >= 1


@pytest.mark.parametrize("said", [None, "", "version-mismatch", "Hedgerow 1.0, wire 5\nINFO", "x" * 200, 3])
def test_what_another_version_says_of_itself_is_shown_only_in_its_form(said: object) -> None:
    """A release before 0.2.0 says nothing, and no peer writes what it likes into the operator's log."""
    assert grpc_link.other_version(said).detail == grpc_link.other_version(None).detail
    later = "Hedgerow 0.3.0rc1, wire 6"
    assert grpc_link.other_version(later).detail.startswith(f"It is {later}; here is")


def test_a_message_beyond_what_grpc_takes(federation: Any, run_beside: Any, event_of: EventOf) -> None:
    """Far too large a message is not even read; its sender is gone, the others stay."""
    federation.hostile("north", run_beside.port).greet().write(bytes(3 << 20))
    assert event_of(run_beside.hub, Left).site == "north"
    run_beside.is_undisturbed()


def test_random_messages_never_disturb(federation: Any, run_beside: Any) -> None:
    """Good messages with bytes changed end in a named refusal or are taken; the run beside goes on."""
    source = random.Random(5)
    for number in range(60):
        hostile = federation.hostile("north", run_beside.port)
        good = hostile.introduction if number % 2 else Farewell("closed", "It was stopped.")
        bad = bytearray(wrap_message(good.to_bytes()))
        for _ in range(source.randrange(1, 4)):
            bad[source.randrange(len(bad))] = source.randrange(256)
        if number % 2 == 0:
            hostile.greet()
        hostile.write(bytes(bad)).say(Farewell("closed", ""))
        while (answer := hostile.read()) is not None:
            assert isinstance(answer, Farewell | Admittance)
        hostile.close()
        run_beside.is_undisturbed(others=(Joined, Left, Arrived))


def test_one_who_says_nothing(federation: Any, quick: Callable[..., Any]) -> None:
    """A stream without a first message is ended when its time is over."""
    hub = federation.hub(settings=quick(hello_seconds=0.3))
    answer = federation.hostile("north", hub.port).read()
    assert isinstance(answer, Farewell) and answer.code == WireCode.HELLO_TIMEOUT
    assert hub.receive(0) is None


def test_a_stranger_does_not_get_in(federation: Any, run_beside: Any) -> None:
    """A certificate that the coordinator does not pin ends in the TLS handshake, and the node is told so."""
    stranger = new_identity("stranger", Role.SITE, bytes([77]) * 32)
    roster = build_roster(federation.coordinator.public, [stranger.public])
    node = federation.uplink("stranger", run_beside.port, identity=stranger, roster=roster)
    assert node.receive(300) == Disconnected("tls-refused")
    run_beside.is_undisturbed()
    assert not run_beside.hub.refusals


def test_a_removed_site_does_not_get_in(federation: Any, event_of: EventOf, caplog: pytest.LogCaptureFixture) -> None:
    """A site that the new roster leaves out is a stranger; those who stay and pin the new roster are let in.

    That they come once with the old one is how a roster changes, and nothing to warn of; twice is.
    """
    caplog.set_level(logging.INFO, "hedgerow")
    kept = [site.public for name, site in federation.sites.items() if name != "west"]
    old, federation.roster = federation.roster, build_roster(federation.coordinator.public, kept, federation.roster)
    try:
        hub = federation.hub()
        west = federation.uplink("west", hub.port, roster=old)
        assert west.receive(300) == Disconnected("tls-refused")
        late = federation.uplink("north", hub.port, roster=old)
        assert late.receive(300) == Disconnected("roster-mismatch", is_final=True)
        again = federation.uplink("north", hub.port, roster=old)
        assert again.receive(300) == Disconnected("roster-mismatch", is_final=True)
        said = [record for record in caplog.records if record.getMessage().startswith("A stream of")]
        assert [record.levelname for record in said] == ["INFO", "WARNING"]
        assert "later roster" in said[0].getMessage()
        federation.uplink("north", hub.port)
        assert event_of(hub, Joined) == Joined("north")
    finally:
        federation.roster = old


def test_a_renewed_key_needs_a_new_roster(federation: Any) -> None:
    """Neither end starts with an identity that its own roster does not pin."""
    renewed = new_identity("north", Role.SITE, bytes([78]) * 32)
    with pytest.raises(EnvironmentFault, check=coded("identity-not-pinned")):
        federation.uplink("north", 1, identity=renewed)
    hub = new_identity("coordinator", Role.COORDINATOR, bytes([79]) * 32)
    with pytest.raises(EnvironmentFault, check=coded("identity-not-pinned")):
        federation.opened(GrpcHub(hub, federation.roster, Address("127.0.0.1", 0)))


def test_a_certificate_under_a_pinned_one(federation: Any, run_beside: Any) -> None:
    """A pinned site cannot vouch for another certificate with its own key: TLS would let it, the hub does not."""
    from datetime import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

    north = federation.sites["north"]
    parent = x509.load_der_x509_certificate(north.public.certificate)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateBuilder().subject_name(x509.Name([])).issuer_name(parent.subject)
    builder = builder.public_key(key.public_key()).serial_number(5)
    builder = builder.not_valid_before(datetime(2000, 1, 1)).not_valid_after(datetime(2999, 1, 1))
    child = builder.sign(load_pem_private_key(north.tls_key, None), hashes.SHA256())  # type: ignore[arg-type]

    class Forged:
        public = type("P", (), {"certificate_pem": child.public_bytes(Encoding.PEM) + north.public.certificate_pem})
        tls_key = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    federation.sites["forged"] = Forged()
    try:
        hostile = federation.hostile("forged", run_beside.port)
        answer = hostile.say(replace(hostile.introduction, site="north")).read()
        assert isinstance(answer, Farewell) and answer.code == WireCode.UNPINNED
    finally:
        del federation.sites["forged"]
    run_beside.is_undisturbed()


def test_a_wrong_coordinator_is_not_spoken_to(federation: Any, run_beside: Any) -> None:
    """Whoever answers at the coordinator's address with another certificate hears nothing, and the node tries again."""
    other = new_identity("coordinator", Role.COORDINATOR, bytes([79]) * 32)
    roster = build_roster(other.public, federation.roster.sites)
    node = federation.uplink("north", run_beside.port, roster=roster)
    assert node.receive(300) == Disconnected("wrong-coordinator")
    run_beside.is_undisturbed()


def test_two_plans(federation: Any, event_of: EventOf) -> None:
    """A node whose owner agreed to another plan is told; one that names the same plan joins."""
    hub = federation.hub(plan_digest=bytes(32))
    north = federation.uplink("north", hub.port, plan_digest=bytes([1]) * 32)
    assert north.receive(300) == Disconnected("plan-mismatch", is_final=True)
    federation.uplink("south", hub.port, plan_digest=bytes(32))
    assert event_of(hub, Joined) == Joined("south")


def test_a_living_node_keeps_its_place(federation: Any, quick: Callable[..., Any], event_of: EventOf) -> None:
    """A second node of a site is turned away for good when the first has given a sign of life; that one notices
    nothing.
    """
    hub = federation.hub(settings=quick(silence_seconds=10.0))
    south = federation.uplink("south", hub.port)
    event_of(hub, Joined, only=True)
    event_of(south, Connected, only=True)
    twin = federation.uplink("south", hub.port)
    assert twin.receive(300) == Disconnected("duplicate-node", is_final=True)
    assert twin.receive(0.5) is None
    assert hub.send("south", b"question")
    assert event_of(south, bytes, only=True) == b"question"
    assert hub.receive(0) is None


def test_a_dead_connection_is_replaced(federation: Any, quick: Callable[..., Any], event_of: EventOf) -> None:
    """A node that comes back while its old connection hangs is let in, after the old one has been reported as gone."""
    hub = federation.hub(settings=quick(silence_seconds=3.0))
    relay = federation.relay(hub.port)
    federation.uplink("north", relay.port)
    assert event_of(hub, Joined, only=True) == Joined("north")
    relay.freeze()
    new = federation.uplink("north", hub.port)
    assert event_of(hub, Left, only=True) == Left("north", "connection-lost")
    assert event_of(hub, Joined, only=True) == Joined("north")
    event_of(new, Connected, only=True)
    assert hub.send("north", b"to the new one")
    assert event_of(new, bytes, only=True) == b"to the new one"


def test_a_peer_that_reads_nothing(federation: Any, quick: Callable[..., Any], event_of: EventOf) -> None:
    """What waits for it is bounded: one message too many and it is disconnected by name."""
    hub = federation.hub(settings=quick(outbox_bytes=1 << 20))
    relay = federation.relay(hub.port)
    hostile = federation.hostile("north", relay.port).greet()
    event_of(hub, Joined)
    relay.freeze()
    sent = 0
    while hub.send("north", bytes(100_000)):
        sent += 1
        assert sent < 1000, "nothing bounds the queue"
    assert event_of(hub, Left) == Left("north", "slow-peer")
    hostile.close()


def test_a_flood_is_not_read(federation: Any, quick: Callable[..., Any], event_of: EventOf) -> None:
    """While nobody takes a site's messages, no more of them are read; once they are taken, all come, in order."""
    hub = federation.hub(settings=quick(inbox_bytes=1 << 20))
    north = federation.uplink("north", hub.port)
    event_of(hub, Joined)
    event_of(north, Connected)
    messages = [bytes([number]) * 200_000 for number in range(200)]
    assert all(north.send(message) for message in messages)
    assert hub.receive(300) is not None
    assert hub.traffic().received < 20 << 20
    assert [messages[0], *(event_of(hub, Arrived).message for _ in messages[1:])] == messages


def test_a_site_that_comes_again_and_again_fills_no_memory(federation: Any, event_of: EventOf) -> None:
    """Each of its streams could leave a full inbox behind, 130 MiB, while the coordinator computed."""
    hub = federation.hub()
    hostile = federation.hostile("north", hub.port).greet()
    event_of(hub, Joined)
    hostile.say(b"filling")
    while hub.traffic().received < len(b"filling"):
        time.sleep(0.01)
    hostile.close()
    north = federation.uplink("north", hub.port)
    assert north.receive(2.0) is None
    assert hub.receive(300) == Arrived("north", b"filling")
    assert event_of(hub, Left, only=True).site == "north"
    event_of(north, Connected, only=True)


def test_a_coordinator_that_comes_again_and_again_fills_no_memory(federation: Any, event_of: EventOf) -> None:
    """A node dials again when it has read what the last connection brought."""
    hub = federation.hub()
    south = federation.uplink("south", hub.port)
    event_of(hub, Joined)
    event_of(south, Connected)
    assert hub.send("south", b"filling")
    hub.close()
    hub = federation.hub(hub.port)
    assert hub.receive(2.0) is None
    assert event_of(south, bytes, only=True) == b"filling"
    assert event_of(hub, Joined, only=True) == Joined("south")


@pytest.mark.slow
def test_ten_thousand_garbage_connections(federation: Any, run_beside: Any) -> None:
    """Strangers who send random bytes, or nothing, or half a handshake, cost the run nothing but time."""
    source = random.Random(3)
    greeting = bytes.fromhex("16030100c8010000c40303")
    with ExitStack() as silent:
        for number in range(10_000):
            with_what = source.randbytes(source.randrange(1, 60))
            connection = socket.create_connection(("127.0.0.1", run_beside.port), timeout=300)
            if number % 100 == 0:
                silent.enter_context(connection)
                continue
            with connection:
                connection.sendall(greeting + with_what if number % 3 == 0 else with_what)
            if number % 1000 == 1:
                run_beside.is_undisturbed()
        run_beside.is_undisturbed()
    assert run_beside.hub.connected_sites() == ("south",)
    assert not run_beside.hub.refusals


def test_every_code_is_explained() -> None:
    """The table has one row per code, and every row its three sentences."""
    assert set(entries()["WireRefusal"]) == set(WireCode)
    for row in map(WireRefusal, WireCode):
        assert all(sentence.endswith(".") for sentence in (row.what, row.cause, row.remedy))


def test_a_good_first_message_is_taken(federation: Any, run_beside: Any) -> None:
    """The hostile client can behave: else the refusals above would prove nothing."""
    hostile = federation.hostile("north", run_beside.port)
    answer = hostile.say(hostile.introduction).read()
    assert isinstance(answer, Admittance) and answer.max_message_bytes == LIMIT
    assert run_beside.hub.receive(300) == Joined("north")
    assert run_beside.hub.send("north", b"question")
    assert hostile.read() == b"question"


def test_the_document_says_for_what_a_node_stops() -> None:
    """docs/errors.md tells an operator after which words a node does not come back by itself."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
    said = text.partition("## When a connection ends")[2].partition("a node stops")[0]
    assert set(re.findall(r"`([a-z-]+)`", said)) == {row.code for row in map(WireRefusal, WireCode) if row.is_final}
