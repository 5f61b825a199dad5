"""Monitors over real TLS: who may watch, who may not, and that watching changes nothing for the run."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.codec import VERSION, CodecFault
from hedgerow.errors import EnvironmentFault
from hedgerow.protocol.refusals import WireCode, WireRefusal
from hedgerow.protocol.stream import (
    MAX_EVENTS,
    EventReport,
    Farewell,
    RunReport,
    SiteReport,
    Update,
    WatchRequest,
    event_bytes,
    read_as,
    report_bytes,
    wrap_message,
)
from hedgerow.transport import grpc_hub
from hedgerow.transport.grpc_hub import GrpcHub, Monitors, StudyServer
from hedgerow.transport.grpc_link import WATCH, GrpcWatch, grpc
from hedgerow.transport.identities import PinnedRoster, PrivateIdentity, Role, build_roster, new_identity, parse_roster
from hedgerow.transport.interface import Address, Connected, Disconnected, Joined
from tests.builders import coded

PATIENCE = 300.0
REPORT = RunReport(
    process=b"process1", run_id=bytes(32), plan_digest=bytes(range(32)), version="1.2.3", phase="collecting-vectors",
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
        self.federation.roster, kept = self.roster, self.federation.roster
        try:
            return monitors, self.federation.hub(port, self.settings, monitors=monitors)
        finally:
            self.federation.roster = kept

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
    assert told == Update(REPORT, EVENTS)
    second = scene.show_until(watch, Update, replace(REPORT, rounds_done=4))
    assert second.events == () and second.report.rounds_done in (3, 4)
    over = replace(REPORT, phase="over", rounds_done=10)
    scene.monitors.show(over, since)
    scene.monitors.close()
    *told, end = iter_until(watch, Disconnected)
    assert told[-1].report == over and end == Disconnected("closed")


def test_a_monitor_comes_back(scene: Scene) -> None:
    """The coordinator goes away and another process takes its place: the watch says so and goes on."""
    watch, port = scene.watch(), scene.hub.port
    scene.show_until(watch, Update)
    scene.monitors.close()
    scene.hub.close()
    *_, gone = iter_until(watch, Disconnected)
    assert not gone.is_final
    scene.monitors, scene.hub = scene.coordinator(port)
    assert scene.show_until(watch, Connected)
    assert watch.receive(PATIENCE).events == EVENTS


def test_a_monitor_that_comes_before_the_run_waits_for_it(scene: Scene) -> None:
    """One port has a server that enrols, one of the run, and one that hands the model out, in turn. A monitor that
    dials the first or the last goes on to the next run; it was told that its release was another one.
    """
    own, address = scene.federation.coordinator, Address("127.0.0.1", 0)
    enrolling = StudyServer(own, address, 3, lambda message: message)
    address = Address("127.0.0.1", enrolling.port)
    watch = scene.federation.opened(
        GrpcWatch(str(address), scene.watcher, scene.roster, random.Random(1).random, settings=scene.settings)
    )
    for _ in range(2):
        assert watch.receive(PATIENCE) == Disconnected("not-served-yet", is_final=False)
        enrolling.close()
        scene.monitors, scene.hub = scene.coordinator(address.port)
        while not isinstance(event := scene.show_until(watch, Connected | Disconnected), Connected):
            assert not event.is_final
        scene.monitors.close()
        scene.hub.close()
        enrolling = StudyServer(own, address, 3, lambda message: message, scene.roster.monitors)
        while (event := watch.receive(PATIENCE)) != Disconnected("not-served-yet", is_final=False):
            assert not isinstance(event, Disconnected) or not event.is_final
        watch._reported = None
    enrolling.close()


@given(
    said=st.one_of(
        st.text(max_size=40),
        st.builds("Hedgerow {}.{}.0, wire {}".format, st.integers(0, 9), st.integers(0, 9), st.integers(0, 12)),
    )
)
def test_another_version_is_reported_only_where_versions_differ(said: str) -> None:
    """An absent method alone means "not yet": nobody is sent to install another release for it."""
    found = GrpcWatch._explain(
        cast(GrpcWatch, None),
        grpc.aio.AioRpcError(grpc.StatusCode.UNIMPLEMENTED, grpc.aio.Metadata(), grpc.aio.Metadata(), details=said),
    )
    theirs = re.fullmatch(r"Hedgerow \d\.\d\.0, wire (\d+)", said)
    assert found.is_final == (theirs is not None and int(theirs[1]) != VERSION)
    assert found.code == ("version-mismatch" if found.is_final else "not-served-yet")


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
            refused = hostile.say(replace(hostile.introduction, site=name)).read()
            assert isinstance(refused, Farewell) and refused.code == WireCode.UNPINNED
    finally:
        scene.federation.roster = kept
        del scene.federation.sites["watch"]
    assert scene.hub.receive(0) is None and scene.hub.connected_sites() == ()


def test_only_monitors_watch(scene: Scene) -> None:
    """Not a site, not a monitor of another roster, not the certificate of nobody."""
    good = wrap_message(WatchRequest(scene.roster.digest()).to_bytes())
    assert scene.refusal(scene.federation.sites["north"], good) == "unpinned"
    stranger = new_identity("watch", Role.MONITOR, bytes([78]) * 32)
    sites = [site.public for site in scene.federation.sites.values()]
    other = build_roster(scene.federation.coordinator.public, sites, None, [stranger.public])
    gone = scene.watch(stranger, other).receive(PATIENCE)
    assert gone == Disconnected("tls-refused")
    older = build_roster(scene.federation.coordinator.public, sites, scene.roster, [scene.watcher.public])
    assert scene.watch(roster=older).receive(PATIENCE) == Disconnected("roster-mismatch", is_final=True)
    for identity in (scene.federation.sites["north"], scene.federation.coordinator, stranger):
        with pytest.raises(EnvironmentFault, check=coded("identity-not-pinned")):
            scene.watch(identity)


GOOD = WatchRequest(bytes(32)).to_bytes()
REQUESTS = {
    "noise": (b"\xff" * 50, "malformed"),
    "nothing": (b"", "malformed"),
    "too long": (wrap_message(GOOD + bytes(5000)), "oversized"),
    "a short digest": (wrap_message(GOOD[:-9]), "malformed"),
    "another version": (wrap_message(GOOD[:3] + b"\xff" + GOOD[4:]), "unknown-version"),
    "another roster": (wrap_message(GOOD), "roster-mismatch"),
}


@pytest.mark.parametrize("what", REQUESTS)
def test_odd_requests_are_refused_by_name(what: str, scene: Scene) -> None:
    """A request that cannot be read ends its own stream and nothing else."""
    request, code = REQUESTS[what]
    assert scene.refusal(scene.watcher, request) == code
    assert not scene.monitors.is_there()


def test_there_is_room_for_so_many(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """One monitor cannot take all places, nor all monitors together more than there are; a place is free again."""
    request = wrap_message(WatchRequest(scene.roster.digest()).to_bytes())
    monkeypatch.setattr(grpc_hub, "MAX_PER_IDENTITY", 2)
    calls = [scene.call(scene.watcher, request) for _ in range(2)]
    wait_until(lambda: scene.monitors._watching.total() == 2)
    assert scene.refusal(scene.watcher, request) == "too-many-monitors"
    monkeypatch.setattr(grpc_hub, "MAX_PER_IDENTITY", 9)
    monkeypatch.setattr(grpc_hub, "MAX_MONITORS", 2)
    assert scene.refusal(scene.watcher, request) == "too-many-monitors"
    calls[0].cancel()
    wait_until(lambda: scene.monitors._watching.total() == 1)
    assert scene.show_until(scene.watch(), Update)


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_one_who_takes_nothing_delays_nobody(scene: Scene, event_of: Callable[..., Any]) -> None:
    """A monitor that never reads: its reports are not queued, it loses its place, and a node and another monitor
    are served meanwhile.
    """
    stuck = scene.call(scene.watcher, wrap_message(WatchRequest(scene.roster.digest()).to_bytes()))
    wait_until(scene.monitors.is_there)
    # How long they have to take a report. The other one comes back if this is too little for it as well.
    scene.monitors._settings = replace(scene.settings, silence_seconds=1.0)
    watch = scene.watch()
    many = tuple(SiteReport(f"site-{number:04}" + "x" * 180, "ready", "y" * 60) for number in range(4000))
    large = replace(REPORT, sites=many)
    for _ in range(3):
        assert scene.show_until(watch, Update, large).report == large
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


def test_both_parts_of_a_message_are_read_as_one() -> None:
    """What is the same for all monitors is written once, and each one's events after it."""
    assert read_as(Update, report_bytes(REPORT) + event_bytes(EVENTS, 7)) == Update(REPORT, EVENTS, 7)


@given(st.binary(max_size=200))
def test_noise_is_refused_or_harmless(raw: bytes) -> None:
    """Whatever bytes come, they are a report or a refusal."""
    try:
        read_as(Update, raw)
    except WireRefusal as refusal:
        assert refusal.wire_code in (WireCode.MALFORMED, WireCode.UNKNOWN_VERSION)


def test_a_report_cannot_drive_a_terminal() -> None:
    """Text with escape sequences, too long, or with numbers that are none is refused, whoever has written it."""
    good = report_bytes(REPORT) + event_bytes(EVENTS, 0)
    assert read_as(Update, good).report == REPORT
    for before, after in (
        (b"\x051.2.3", b"\x05\x1b[31m"),
        (b"\x05ready", b"\x05r\x07ady"),
        (b"\x05ready", b"\xffready"),
    ):
        with pytest.raises(WireRefusal) as error:
            read_as(Update, good.replace(before, after))
        assert error.value.wire_code is WireCode.MALFORMED
    many = [EventReport(1, 0.0, "k", 0)] * (MAX_EVENTS + 1)
    for odd in (
        {"phase": "x" * 65}, {"phase": "a\x1b[31mb"}, {"seconds": float("nan")}, {"seconds": float("inf")},
        {"run_id": b"short"},
    ):  # fmt: skip
        with pytest.raises(CodecFault):
            report_bytes(replace(REPORT, **odd))
    with pytest.raises(CodecFault):
        event_bytes(many, 0)


def test_a_roster_with_monitors_is_read_as_it_was_written(scene: Scene) -> None:
    """Monitors are in the file and in the fingerprint, so every site knows who watches; without any, both stay."""
    assert parse_roster(scene.roster.to_toml()) == scene.roster
    without = replace(scene.roster, monitors=())
    assert without.fingerprint() != scene.roster.fingerprint()
    assert without.digest() == scene.federation.roster.digest()
