"""Monitors over real TLS: who may watch, who may not, and that watching changes nothing for the run."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.errors import EnvironmentFault
from hedgerow.protocol.results import EventReport, RunReport, SiteReport
from hedgerow.protocol.wire import hedgerow_pb2 as pb
from hedgerow.protocol.wire.frames import Refused
from hedgerow.protocol.wire.refusals import WireCode, WireRefusal
from hedgerow.protocol.wire.reports import MAX_EVENTS, Told, WatchRequest, event_bytes, read_told, report_bytes
from hedgerow.transport import grpc_monitor
from hedgerow.transport.grpc_hub import GrpcHub, HubAddress
from hedgerow.transport.grpc_link import WATCH, grpc
from hedgerow.transport.grpc_monitor import GrpcWatch, Monitors
from hedgerow.transport.identities import PrivateIdentity, Role, new_identity
from hedgerow.transport.interface import Connected, Disconnected, Joined
from hedgerow.transport.roster_file import PinnedRoster, build_roster, parse_roster

PATIENCE = 300.0
REPORT = RunReport(
    process=b"process1", run_id=bytes(32), plan_digest=bytes(range(32)), release="1.2.3", phase="collecting-vectors",
    rounds_done=3, rounds_planned=10, seconds=1.5, rounds_per_second=2.0, epsilon_spent=0.25, epsilon_limit=1.0,
    delta=1e-5, bytes_sent=10**10, bytes_received=20, rounds_abandoned=1,
    sites=(SiteReport("east", "ready", "", 3), SiteReport("north", "refused", "policy-over-budget", 0, 1, 2)),
    streams_refused={"unpinned": 4},
)  # fmt: skip
EVENTS = tuple(EventReport(number, number / 2, "joined", 0, "east") for number in range(1, 4))


def since(number: int) -> tuple[tuple[EventReport, ...], int]:
    return EVENTS[number:], 0


class Scene:
    """The tests' federation with a monitor in its roster, and a coordinator that it may watch."""

    def __init__(self, federation: Any, settings: Any) -> None:
        self.federation, self.settings = federation, settings
        self.watcher = new_identity("watch", Role.MONITOR, bytes([77]) * 32)
        sites = [site.public for site in federation.sites.values()]
        self.roster = build_roster(federation.coordinator.public, sites, None, [self.watcher.public])
        self.monitors, self.hub = self.coordinator()

    def coordinator(self, port: int = 0) -> tuple[Monitors, GrpcHub]:
        monitors = Monitors(self.roster, self.settings)
        hub = GrpcHub(
            self.federation.coordinator, self.roster, HubAddress(port=port), settings=self.settings, monitors=monitors
        )
        return monitors, self.federation.opened(hub)

    def watch(self, identity: PrivateIdentity | None = None, roster: PinnedRoster | None = None) -> GrpcWatch:
        watch = GrpcWatch(
            f"127.0.0.1:{self.hub.port}", identity or self.watcher, roster or self.roster, random.Random(1).random,
            interval=0.2, settings=self.settings,
        )  # fmt: skip
        return self.federation.opened(watch)

    def show_until(self, watch: GrpcWatch, kind: type, report: RunReport = REPORT) -> Any:
        """Report as the coordinator does, until the watch has an event of this kind."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            self.monitors.show(report, since)
            event = watch.receive(0.05)
            if isinstance(event, kind):
                return event
        raise AssertionError(f"No {kind.__name__} came.")

    def call(self, identity: PrivateIdentity, request: bytes) -> Any:
        """A stream of a client that says whatever it likes."""
        own = self.roster.coordinator
        credentials = grpc.ssl_channel_credentials(
            own.certificate_pem, identity.tls_key, identity.public.certificate_pem
        )
        options = [("grpc.ssl_target_name_override", own.tls_name), ("grpc.enable_http_proxy", 0)]
        channel = self.federation.opened(
            grpc.secure_channel(f"127.0.0.1:{self.hub.port}", credentials, options=options)
        )
        return channel.unary_stream(WATCH)(request, timeout=PATIENCE)

    def refusal(self, identity: PrivateIdentity, request: bytes) -> str:
        with pytest.raises(grpc.RpcError) as error:
            next(self.call(identity, request))
        return str(error.value.details())


@pytest.fixture
def scene(federation: Any, quick: Callable[..., Any]) -> Iterator[Scene]:
    yield Scene(federation, quick())


def test_a_monitor_is_told_everything_once(scene: Scene) -> None:
    """Reports come as they are shown; each event comes once; the last report comes before the end."""
    watch = scene.watch()
    assert scene.show_until(watch, Connected)
    told = watch.receive(PATIENCE)
    assert told == Told(REPORT, EVENTS)
    second = scene.show_until(watch, Told, replace(REPORT, rounds_done=4))
    assert second.events == () and second.report.rounds_done in (3, 4)
    over = replace(REPORT, phase="over", rounds_done=10)
    scene.monitors.show(over, since)
    scene.monitors.close()
    *told, end = iter_until(watch, Disconnected)
    assert told[-1].report == over and end == Disconnected("closed")


def test_a_monitor_comes_back(scene: Scene) -> None:
    """The coordinator goes away and another process takes its place: the watch says so and goes on."""
    watch, port = scene.watch(), scene.hub.port
    scene.show_until(watch, Told)
    scene.monitors.close()
    scene.hub.close()
    *_, gone = iter_until(watch, Disconnected)
    assert not gone.is_final
    scene.monitors, scene.hub = scene.coordinator(port)
    assert scene.show_until(watch, Connected)
    assert watch.receive(PATIENCE).events == EVENTS


def iter_until(watch: GrpcWatch, kind: type) -> Iterator[Any]:
    """All events up to the first of this kind."""
    while (event := watch.receive(PATIENCE)) is not None:
        yield event
        if isinstance(event, kind):
            return
    raise AssertionError(f"No {kind.__name__} came.")


def test_a_monitor_opens_nothing_else(scene: Scene) -> None:
    """Its certificate is refused where nodes join, whatever site it calls itself, and the run hears nothing of it."""
    scene.federation.roster, kept = scene.roster, scene.federation.roster
    scene.federation.sites["watch"] = scene.watcher
    try:
        for name in ("watch", "north"):
            hostile = scene.federation.hostile("watch", scene.hub.port)
            hostile.hello = replace(hostile.hello, site=name)
            refused = hostile.write(hostile.writer.hello(hostile.hello)).read()
            assert isinstance(refused, Refused) and refused.code is WireCode.UNPINNED
    finally:
        scene.federation.roster = kept
        del scene.federation.sites["watch"]
    assert scene.hub.receive(0) is None and scene.hub.connected() == ()


def test_only_monitors_watch(scene: Scene) -> None:
    """Not a site, not a monitor of another roster, not the certificate of nobody."""
    good = WatchRequest(scene.roster.digest()).to_bytes()
    assert scene.refusal(scene.federation.sites["north"], good) == "unpinned"
    stranger = new_identity("watch", Role.MONITOR, bytes([78]) * 32)
    sites = [site.public for site in scene.federation.sites.values()]
    other = build_roster(scene.federation.coordinator.public, sites, None, [stranger.public])
    gone = scene.watch(stranger, other).receive(PATIENCE)
    assert gone == Disconnected("tls-refused")
    older = build_roster(scene.federation.coordinator.public, sites, scene.roster, [scene.watcher.public])
    assert scene.watch(roster=older).receive(PATIENCE) == Disconnected("roster-mismatch", is_final=True)
    for identity in (scene.federation.sites["north"], scene.federation.coordinator, stranger):
        with pytest.raises(EnvironmentFault, match="among its monitors"):
            scene.watch(identity)


REQUESTS = {
    "noise": (b"\xff" * 50, "malformed"),
    "nothing": (b"", "malformed"),
    "too long": (pb.WatchRequest(versions=[1], roster_digest=bytes(5000)).SerializeToString(), "malformed"),
    "a short digest": (pb.WatchRequest(versions=[1], roster_digest=b"x").SerializeToString(), "malformed"),
    "no common version": (pb.WatchRequest(versions=[9], roster_digest=bytes(32)).SerializeToString(),
                          "version-mismatch"),
    "another roster": (WatchRequest(bytes(32)).to_bytes(), "roster-mismatch"),
}  # fmt: skip


@pytest.mark.parametrize("what", REQUESTS)
def test_odd_requests_are_refused_by_name(what: str, scene: Scene) -> None:
    """A request that cannot be read ends its own stream and nothing else."""
    request, code = REQUESTS[what]
    assert scene.refusal(scene.watcher, request) == code
    assert not scene.monitors.is_there()


def test_there_is_room_for_so_many(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """One monitor cannot take all places, nor all monitors together more than there are; a place is free again."""
    request = WatchRequest(scene.roster.digest()).to_bytes()
    monkeypatch.setattr(grpc_monitor, "MAX_PER_IDENTITY", 2)
    calls = [scene.call(scene.watcher, request) for _ in range(2)]
    wait_until(lambda: scene.monitors._watching.total() == 2)
    assert scene.refusal(scene.watcher, request) == "too-many-monitors"
    monkeypatch.setattr(grpc_monitor, "MAX_PER_IDENTITY", 9)
    monkeypatch.setattr(grpc_monitor, "MAX_MONITORS", 2)
    assert scene.refusal(scene.watcher, request) == "too-many-monitors"
    calls[0].cancel()
    wait_until(lambda: scene.monitors._watching.total() == 1)
    assert scene.show_until(scene.watch(), Told)


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_one_who_takes_nothing_delays_nobody(scene: Scene, event_of: Callable[..., Any]) -> None:
    """A monitor that never reads: its reports are not queued, it loses its place, and a node and another monitor
    are served meanwhile.
    """
    stuck = scene.call(scene.watcher, WatchRequest(scene.roster.digest()).to_bytes())
    wait_until(scene.monitors.is_there)
    # How long they have to take a report. The other one comes back if this is too little for it as well.
    scene.monitors._settings = replace(scene.settings, silence_seconds=1.0)
    watch = scene.watch()
    many = tuple(SiteReport(f"site-{number:04}" + "x" * 180, "ready", "y" * 60) for number in range(4000))
    large = replace(REPORT, sites=many)
    for _ in range(3):
        assert scene.show_until(watch, Told, large).report == large
    north = scene.federation.uplink("north", scene.hub.port, roster=scene.roster)
    event_of(scene.hub, Joined)
    assert scene.hub.send("north", b"question")
    assert event_of(north, bytes) == b"question"
    until = time.monotonic() + PATIENCE
    while scene.monitors._watching.total() > 1:
        assert time.monotonic() < until, "the one who takes nothing has kept its place"
        scene.monitors.show(large, since)
        time.sleep(0.05)
    stuck.cancel()


words = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=64)
counts = st.integers(0, 2**32 - 1)
amounts = st.floats(0, allow_nan=False, allow_infinity=False)


@given(
    st.builds(
        RunReport, process=st.binary(min_size=8, max_size=8), run_id=st.binary(min_size=32, max_size=32),
        plan_digest=st.binary(min_size=32, max_size=32), release=words, phase=words, failure=words, rounds_done=counts,
        rounds_planned=counts, seconds=amounts, rounds_per_second=amounts, epsilon_spent=amounts,
        epsilon_limit=st.floats(0, allow_nan=False), delta=amounts, bytes_sent=st.integers(0, 2**64 - 1),
        bytes_received=st.integers(0, 2**64 - 1), rounds_abandoned=counts,
        sites=st.lists(st.builds(SiteReport, words, words, words, counts, counts, counts), max_size=4).map(tuple),
        streams_refused=st.dictionaries(words, counts, max_size=4),
    ),
    st.lists(st.builds(EventReport, st.integers(0, 2**64 - 1), amounts, words, counts, words, words), max_size=4),
    st.integers(0, 2**64 - 1),
)  # fmt: skip
def test_what_is_written_is_read(report: RunReport, events: list[EventReport], missed: int) -> None:
    """Both parts of a message, joined, are read as they were written."""
    assert read_told(report_bytes(report) + event_bytes(events, missed)) == Told(report, tuple(events), missed)


@given(st.binary(max_size=200))
def test_noise_is_refused_or_harmless(raw: bytes) -> None:
    """Whatever bytes come, they are a report or a refusal."""
    try:
        read_told(raw)
    except WireRefusal as refusal:
        assert refusal.wire_code in (WireCode.MALFORMED, WireCode.UNKNOWN_VERSION)


def test_a_report_cannot_drive_a_terminal() -> None:
    """Escape sequences are taken out of every text, and what is too long or not a number is refused."""
    odd = replace(REPORT, phase="a\x1b[31mb", sites=(SiteReport("e\x07", "\x1bx", "\n"),), failure="\x9b1m")
    told = read_told(report_bytes(odd) + event_bytes([EventReport(1, 0.0, "k\r", 0, "\x00s", "\x1b")], 0))
    site, event = told.report.sites[0], told.events[0]
    texts = [told.report.phase, told.report.failure, *(site.name, site.state, site.code)]
    texts += [event.kind, event.site, event.code]
    assert texts == ["a[31mb", "1m", "e", "x", "", "k", "s", ""]
    many = [EventReport(1, 0.0, "k", 0)] * (MAX_EVENTS + 1)
    for raw in (
        report_bytes(replace(REPORT, phase="x" * 65)),
        report_bytes(replace(REPORT, seconds=float("nan"))),
        report_bytes(replace(REPORT, seconds=float("inf"))),
        report_bytes(replace(REPORT, run_id=b"short")),
        report_bytes(REPORT) + event_bytes(many, 0),
    ):
        with pytest.raises(WireRefusal) as error:
            read_told(raw)
        assert error.value.wire_code is WireCode.MALFORMED


def test_a_roster_with_monitors_is_read_as_it_was_written(scene: Scene) -> None:
    """Monitors are in the file and in the fingerprint, so every site knows who watches; without any, both stay."""
    assert parse_roster(scene.roster.to_toml()) == scene.roster
    without = replace(scene.roster, monitors=())
    assert without.fingerprint() != scene.roster.fingerprint()
    assert without.digest() == scene.federation.roster.digest()
