"""What a monitor and the coordinator say to each other: one request, then reports; checked before they are believed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from hedgerow.protocol.results import EventReport, RunReport, SiteReport
from hedgerow.protocol.wire import hedgerow_pb2 as pb
from hedgerow.protocol.wire.refusals import WireCode, WireRefusal

REPORT_VERSION = 1
MAX_REQUEST_BYTES = 1024
MAX_REPORT_BYTES = 4 << 20
"""Enough for 4096 sites with the longest names and codes, and all events."""
MAX_EVENTS = 256
LEAST_INTERVAL, LONGEST_INTERVAL = 0.2, 60.0
"""Seconds between two reports."""
_MAX_VERSIONS = 16
_MAX_SITES = 4096
_MAX_REASONS = 64
_DIGEST_BYTES = 32
_PROCESS_BYTES = 8
_WORD_BYTES = 64
_NAME_BYTES = 200


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """Args: roster_digest: SHA-256 of the roster, 32 bytes; interval: least seconds between two reports; versions."""

    roster_digest: bytes
    interval: float = 0.5
    versions: tuple[int, ...] = (REPORT_VERSION,)

    def to_bytes(self) -> bytes:
        """Returns the message."""
        milliseconds = round(1000 * min(max(self.interval, LEAST_INTERVAL), LONGEST_INTERVAL))
        request = pb.WatchRequest(versions=self.versions, roster_digest=self.roster_digest, interval_ms=milliseconds)
        return request.SerializeToString()

    @classmethod
    def from_bytes(cls, raw: bytes) -> WatchRequest:
        """The request in a message; raises WireRefusal MALFORMED or VERSION_MISMATCH."""
        if len(raw) > MAX_REQUEST_BYTES:
            raise WireRefusal(WireCode.MALFORMED, "The request is too long.")
        try:
            request = pb.WatchRequest.FromString(raw)
        except DecodeError:
            raise WireRefusal(WireCode.MALFORMED) from None
        if not 1 <= len(request.versions) <= _MAX_VERSIONS or len(request.roster_digest) != _DIGEST_BYTES:
            raise WireRefusal(WireCode.MALFORMED, "A field of the request has a wrong length.")
        if REPORT_VERSION not in request.versions:
            raise WireRefusal(WireCode.VERSION_MISMATCH)
        interval = min(max(request.interval_ms / 1000, LEAST_INTERVAL), LONGEST_INTERVAL)
        return cls(request.roster_digest, interval, tuple(request.versions))


@dataclass(frozen=True, slots=True)
class Told:
    """One message of the coordinator: the run, what happened since the last one, and how many events it leaves out."""

    report: RunReport
    events: tuple[EventReport, ...] = ()
    missed: int = 0


def report_bytes(report: RunReport) -> bytes:
    """The part of the message that is the same for all monitors; `event_bytes` is appended to it."""
    message = pb.Report(
        version=REPORT_VERSION,
        process=report.process,
        run_id=report.run_id,
        plan_digest=report.plan_digest,
        hedgerow_version=report.release,
        phase=report.phase,
        failure=report.failure,
        rounds_done=report.rounds_done,
        rounds_planned=report.rounds_planned,
        seconds=report.seconds,
        rounds_per_second=report.rounds_per_second,
        epsilon_spent=report.epsilon_spent,
        epsilon_limit=report.epsilon_limit,
        delta=report.delta,
        bytes_sent=report.bytes_sent,
        bytes_received=report.bytes_received,
        rounds_abandoned=report.rounds_abandoned,
        streams_refused=dict(sorted(report.streams_refused.items())[:_MAX_REASONS]),
        task=report.task,
    )
    for site in report.sites:
        message.sites.add(
            name=site.name, state=site.state, code=site.code, rounds=site.rounds, dropouts=site.dropouts,
            refusals=site.refusals,
        )  # fmt: skip
    return message.SerializeToString()


def event_bytes(events: Sequence[EventReport], missed: int) -> bytes:
    """The rest of the message: in protobuf's format two messages, one after the other, are one with both's fields."""
    message = pb.Report(events_missed=missed)
    for event in events:
        message.events.add(
            number=event.number, seconds=event.seconds, kind=event.kind, round=event.round, site=event.site,
            code=event.code,
        )  # fmt: skip
    return message.SerializeToString()


def read_told(raw: bytes) -> Told:
    """What the coordinator says; raises WireRefusal for what a terminal should not be given."""
    if len(raw) > MAX_REPORT_BYTES:
        raise WireRefusal(WireCode.OVERSIZED)
    try:
        message = pb.Report.FromString(raw)
    except DecodeError:
        raise WireRefusal(WireCode.MALFORMED) from None
    if message.version != REPORT_VERSION:
        raise WireRefusal(WireCode.UNKNOWN_VERSION)
    lengths_fit = (
        len(message.process) == _PROCESS_BYTES
        and len(message.run_id) == len(message.plan_digest) == _DIGEST_BYTES
        and len(message.sites) <= _MAX_SITES
        and len(message.events) <= MAX_EVENTS
        and len(message.streams_refused) <= _MAX_REASONS
    )
    lengths_of_time = (message.seconds, message.rounds_per_second, *(event.seconds for event in message.events))
    numbers = (*lengths_of_time, message.epsilon_spent, message.epsilon_limit, message.delta)
    numbers_fit = all(number >= 0 for number in numbers) and all(map(math.isfinite, lengths_of_time))
    if not lengths_fit or not numbers_fit:
        raise WireRefusal(WireCode.MALFORMED, "A field of the report is out of its range.")
    return Told(_report(message), tuple(_event(event) for event in message.events), message.events_missed)


def _report(message: pb.Report) -> RunReport:
    return RunReport(
        process=message.process,
        run_id=message.run_id,
        plan_digest=message.plan_digest,
        release=_text(message.hedgerow_version),
        phase=_text(message.phase),
        failure=_text(message.failure),
        rounds_done=message.rounds_done,
        rounds_planned=message.rounds_planned,
        seconds=message.seconds,
        rounds_per_second=message.rounds_per_second,
        epsilon_spent=message.epsilon_spent,
        epsilon_limit=message.epsilon_limit,
        delta=message.delta,
        bytes_sent=message.bytes_sent,
        bytes_received=message.bytes_received,
        rounds_abandoned=message.rounds_abandoned,
        sites=tuple(_site(site) for site in message.sites),
        streams_refused={_text(reason): count for reason, count in sorted(message.streams_refused.items())},
        task=_text(message.task),
    )


def _site(site: pb.SiteReport) -> SiteReport:
    return SiteReport(
        _text(site.name, _NAME_BYTES), _text(site.state), _text(site.code), site.rounds, site.dropouts, site.refusals
    )


def _event(event: pb.EventReport) -> EventReport:
    name = _text(event.site, _NAME_BYTES)
    return EventReport(event.number, event.seconds, _text(event.kind), event.round, name, _text(event.code))


def _text(text: str, longest: int = _WORD_BYTES) -> str:
    """A word without what could drive a terminal."""
    if len(text.encode()) > longest:
        raise WireRefusal(WireCode.MALFORMED, "A word of the report is too long.")
    return "".join(character for character in text if character.isprintable())
