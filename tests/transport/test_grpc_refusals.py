"""Whoever is not who he should be, or speaks as he should not, is refused by name; a run beside him goes on."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hedgerow.errors import EnvironmentFault, entries
from hedgerow.protocol.wire import hedgerow_pb2 as pb
from hedgerow.protocol.wire.frames import CHUNK_BYTES, Message, Ping, Refused, Welcome
from hedgerow.protocol.wire.refusals import WireCode, WireRefusal
from hedgerow.transport.identities import Role, new_identity
from hedgerow.transport.interface import Arrived, Connected, Disconnected, Joined, Left
from hedgerow.transport.roster_file import build_roster

EventOf = Callable[..., Any]


@pytest.fixture
def run_beside(federation: Any, event_of: EventOf) -> Any:
    """A hub with one good node, and a check that both still get through to each other undisturbed."""
    hub = federation.hub()
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


def frame(**fields: Any) -> bytes:
    return pb.Envelope(**{"version": 1, "sequence": 1, **fields}).SerializeToString()


def hello(run: Any, **changes: Any) -> bytes:
    fields = {"versions": [1], "site": "north", "roster_digest": run.digest, **changes}
    return frame(hello=pb.Hello(**fields))


FIRST_FRAMES: dict[str, tuple[Callable[[Any], bytes], WireCode]] = {
    "noise": (lambda run: b"\xff" * 50, WireCode.MALFORMED),
    "nothing": (lambda run: b"", WireCode.MALFORMED),
    "no body": (lambda run: frame(), WireCode.MALFORMED),
    "truncated": (lambda run: hello(run)[:-5], WireCode.MALFORMED),
    "oversized frame": (lambda run: frame(chunk=pb.Chunk(data=bytes(CHUNK_BYTES + 5000))), WireCode.OVERSIZED),
    "another envelope": (lambda run: frame(version=2, hello=pb.Hello(site="north")), WireCode.UNKNOWN_VERSION),
    "no common version": (lambda run: hello(run, versions=[7, 9]), WireCode.VERSION_MISMATCH),
    "no version": (lambda run: hello(run, versions=[]), WireCode.MALFORMED),
    "second frame first": (lambda run: frame(sequence=2, hello=pb.Hello(site="north")), WireCode.OUT_OF_ORDER),
    "chunk first": (lambda run: frame(chunk=pb.Chunk(message_bytes=1, data=b"x")), WireCode.UNEXPECTED_FRAME),
    "welcome first": (lambda run: frame(welcome=pb.Welcome(version=1, max_message_bytes=1)), WireCode.UNEXPECTED_FRAME),
    "another site": (lambda run: hello(run, site="east"), WireCode.SITE_MISMATCH),
    "another roster": (lambda run: hello(run, roster_digest=bytes(32)), WireCode.ROSTER_MISMATCH),
    "short digest": (lambda run: hello(run, roster_digest=bytes(31)), WireCode.MALFORMED),
}


@pytest.mark.parametrize("name", FIRST_FRAMES)
def test_a_wrong_first_frame(federation: Any, run_beside: Any, name: str) -> None:
    """Before a node has joined, the coordinator answers with the code, ends the stream and tells nobody else."""
    run_beside.digest = federation.roster.digest()
    make, code = FIRST_FRAMES[name]
    hostile = federation.hostile("north", run_beside.port).write(make(run_beside))
    answer = hostile.read()
    assert isinstance(answer, Refused) and answer.code is code
    assert hostile.read() is None
    run_beside.is_undisturbed()
    assert dict(run_beside.hub.refusals) == {code.value: 1}


def chunk(sequence: int, message_bytes: int, offset: int, data: bytes) -> bytes:
    return frame(sequence=sequence, chunk=pb.Chunk(message_bytes=message_bytes, offset=offset, data=data))


FULL = bytes(CHUNK_BYTES)
TWO, THREE = 2 * CHUNK_BYTES, 3 * CHUNK_BYTES
SECOND_HELLO = frame(sequence=2, hello=pb.Hello(versions=[1], roster_digest=bytes(32)))
LATER_FRAMES: dict[str, tuple[list[bytes], WireCode]] = {
    "noise": ([b"\xff" * 50], WireCode.MALFORMED),
    "truncated": ([chunk(2, 5, 0, b"12345")[:-2]], WireCode.MALFORMED),
    "second hello": ([SECOND_HELLO], WireCode.UNEXPECTED_FRAME),
    "unknown version": ([frame(sequence=2, version=2, ping=pb.Ping(token=1))], WireCode.UNKNOWN_VERSION),
    "version 0": ([frame(sequence=2, version=0, ping=pb.Ping(token=1))], WireCode.UNKNOWN_VERSION),
    "repeated": ([chunk(2, 1, 0, b"a"), chunk(2, 1, 0, b"a")], WireCode.OUT_OF_ORDER),
    "missing": ([chunk(3, 1, 0, b"a")], WireCode.OUT_OF_ORDER),
    "oversized message": ([chunk(2, 1 << 40, 0, FULL)], WireCode.OVERSIZED),
    "begins in the middle": ([chunk(2, 9, 4, b"56789")], WireCode.OUT_OF_ORDER),
    "a hole": ([chunk(2, THREE, 0, FULL), chunk(3, THREE, TWO, FULL)], WireCode.OUT_OF_ORDER),
    "grows on the way": ([chunk(2, TWO, 0, FULL), chunk(3, 1 << 40, CHUNK_BYTES, FULL)], WireCode.OUT_OF_ORDER),
    "tiny chunks": ([chunk(2, TWO, 0, b"1")], WireCode.MALFORMED),
    "longer than it says": ([chunk(2, 3, 0, b"1234")], WireCode.MALFORMED),
}  # fmt: skip


@pytest.mark.parametrize("name", LATER_FRAMES)
def test_a_wrong_later_frame(federation: Any, run_beside: Any, event_of: EventOf, name: str) -> None:
    """A joined node that breaks the rules is told which, and leaves under that name."""
    frames, code = LATER_FRAMES[name]
    hostile = federation.hostile("north", run_beside.port).greet().write(*frames)
    answer = hostile.read()
    assert isinstance(answer, Refused) and answer.code is code
    assert event_of(run_beside.hub, Left) == Left("north", code.value)
    run_beside.is_undisturbed()


def test_a_frame_beyond_what_grpc_takes(federation: Any, run_beside: Any, event_of: EventOf) -> None:
    """Far too large a frame is not even read; its sender is gone, the others stay."""
    federation.hostile("north", run_beside.port).greet().write(bytes(3 << 20))
    assert event_of(run_beside.hub, Left).site == "north"
    run_beside.is_undisturbed()


def test_random_frames_never_disturb(federation: Any, run_beside: Any) -> None:
    """Good frames with bytes changed end in a named refusal or are taken; the run beside goes on."""
    source = random.Random(5)
    for _ in range(60):
        hostile = federation.hostile("north", run_beside.port).greet()
        bad = bytearray(chunk(2, 20, 0, bytes(20)))
        for _ in range(source.randrange(1, 4)):
            bad[source.randrange(len(bad))] = source.randrange(256)
        hostile.write(bytes(bad), frame(sequence=9, ping=pb.Ping(token=1)))
        while (answer := hostile.read()) is not None:
            assert isinstance(answer, Refused | Ping)
        hostile.close()
    run_beside.is_undisturbed(others=(Joined, Left, Arrived))


def test_one_who_says_nothing(federation: Any, quick: Callable[..., Any]) -> None:
    """A stream without a first frame is ended when its time is over."""
    hub = federation.hub(settings=quick(hello_seconds=0.3))
    answer = federation.hostile("north", hub.port).read()
    assert isinstance(answer, Refused) and answer.code is WireCode.HELLO_TIMEOUT
    assert hub.receive(0) is None


def test_a_stranger_does_not_get_in(federation: Any, run_beside: Any) -> None:
    """A certificate that the coordinator does not pin ends in the TLS handshake, and the node is told so."""
    stranger = new_identity("stranger", Role.SITE, bytes([77]) * 32)
    roster = build_roster(federation.coordinator.public, [stranger.public])
    node = federation.uplink("stranger", run_beside.port, identity=stranger, roster=roster)
    assert node.receive(300) == Disconnected("tls-refused")
    run_beside.is_undisturbed()
    assert not run_beside.hub.refusals


def test_a_removed_site_does_not_get_in(federation: Any, event_of: EventOf) -> None:
    """A site that the new roster leaves out is a stranger; those who stay and pin the new roster are let in."""
    kept = [site.public for name, site in federation.sites.items() if name != "west"]
    old, federation.roster = federation.roster, build_roster(federation.coordinator.public, kept, federation.roster)
    try:
        hub = federation.hub()
        west = federation.uplink("west", hub.port, roster=old)
        assert west.receive(300) == Disconnected("tls-refused")
        late = federation.uplink("north", hub.port, roster=old)
        assert late.receive(300) == Disconnected("roster-mismatch", is_final=True)
        federation.uplink("north", hub.port)
        assert event_of(hub, Joined) == Joined("north")
    finally:
        federation.roster = old


def test_a_renewed_key_needs_a_new_roster(federation: Any) -> None:
    """Neither end starts with an identity that its own roster does not pin."""
    renewed = new_identity("north", Role.SITE, bytes([78]) * 32)
    with pytest.raises(EnvironmentFault) as error:
        federation.uplink("north", 1, identity=renewed)
    assert error.value.code == "identity-not-pinned"


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
        answer = hostile.write(hostile.writer.hello(replace(hostile.hello, site="north"))).read()
        assert isinstance(answer, Refused) and answer.code is WireCode.UNPINNED
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


def test_a_living_node_keeps_its_place(federation: Any, run_beside: Any, event_of: EventOf) -> None:
    """A second node of a site is turned away for good; the first one does not even notice."""
    twin = federation.uplink("south", run_beside.port)
    assert twin.receive(300) == Disconnected("duplicate-node", is_final=True)
    assert twin.receive(0.5) is None
    run_beside.is_undisturbed()


def test_a_dead_connection_is_replaced(federation: Any, quick: Callable[..., Any], event_of: EventOf) -> None:
    """A node that comes back while its old connection hangs is let in, after the old one has been reported as gone."""
    hub = federation.hub(settings=quick(duplicate_seconds=0.5))
    relay = federation.relay(hub.port)
    federation.uplink("north", relay.port)
    assert event_of(hub, Joined, only=True) == Joined("north")
    relay.freeze()
    new = federation.uplink("north", hub.port)
    assert event_of(hub, Left, only=True) == Left("north", "replaced")
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


def test_a_flood_of_pings(federation: Any, event_of: EventOf) -> None:
    """Asking for signs of life without taking them fills no memory."""
    hub = federation.hub()
    hostile = federation.hostile("north", hub.port).greet()
    event_of(hub, Joined)
    hub.send("north", bytes(30 << 20))
    for _ in range(400):
        hostile.write(*(hostile.writer.ping(Ping(token)) for token in range(50)))
        if (event := hub.receive(0.02)) is not None:
            break
    assert (event or hub.receive(300)) == Left("north", "slow-peer")


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
    assert run_beside.hub.connected() == ("south",)
    assert not run_beside.hub.refusals


def test_every_code_is_explained() -> None:
    """The table has one row per code, and every row its three sentences."""
    assert set(entries()["WireRefusal"]) == set(WireCode)
    for row in map(WireRefusal, WireCode):
        assert all(sentence.endswith(".") for sentence in (row.what, row.cause, row.remedy))


def test_a_good_first_frame_is_welcome(federation: Any, run_beside: Any) -> None:
    """The hostile client can behave: else the refusals above would prove nothing."""
    hostile = federation.hostile("north", run_beside.port)
    hostile.write(hostile.writer.hello(replace(hostile.hello, versions=(1, 99))))
    answer = hostile.read()
    assert isinstance(answer, Welcome) and answer.version == 1
    assert run_beside.hub.receive(300) == Joined("north")
    assert run_beside.hub.send("north", b"question")
    while isinstance(answer := hostile.read(), Ping):
        pass
    assert answer == Message(b"question")


def test_the_document_has_every_code() -> None:
    """docs/errors.md tells an operator what each word means and whether the node comes back."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
    for row in map(WireRefusal, WireCode):
        assert f"| `{row.code}` | {row.what} | {'stops' if row.is_final else 'tries again'} |" in text
