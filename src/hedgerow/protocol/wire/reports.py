"""What a monitor and the coordinator say to each other: one request, then reports; checked before they are believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from hedgerow.codec import U64, Encoded, Hash, Many, Nested, Real, head, layout
from hedgerow.protocol.results import EventReport, RunReport
from hedgerow.protocol.wire.stream import StreamKind

MAX_REQUEST_BYTES = 1024
MAX_REPORT_BYTES = 4 << 20
"""Enough for 4096 sites with the longest names and codes, and all events."""
MAX_EVENTS = 256
LEAST_INTERVAL, LONGEST_INTERVAL = 0.2, 60.0
"""Seconds between two reports."""


@dataclass(frozen=True, slots=True)
class WatchRequest(Encoded):
    """Monitor: tell me of the run. It is all that a monitor ever says.

    Attributes:
        roster_digest: SHA-256 of the roster that it pins. Not the coordinator's: `roster-mismatch`.
        interval: least seconds between two reports; the coordinator takes it as 0.2 to 60.
    """

    KIND = StreamKind.WATCH_REQUEST
    roster_digest: Hash
    interval: Annotated[float, Real(least=0.0)] = 0.5

    @property
    def seconds(self) -> float:
        """The interval, within its bounds."""
        return min(max(self.interval, LEAST_INTERVAL), LONGEST_INTERVAL)


@dataclass(frozen=True, slots=True)
class Update(Encoded):
    """Coordinator: how the run is, and what happened since it last told this monitor.

    Attributes:
        events: oldest first; the first message of a stream has the last ones of the process.
        missed: events that are left out because they were too many.
    """

    KIND = StreamKind.TOLD
    report: RunReport
    events: Annotated[tuple[EventReport, ...], Many(Nested(EventReport), most=MAX_EVENTS)] = ()
    missed: U64 = 0


def report_bytes(report: RunReport) -> bytes:
    """The part of an `Update` that is the same for all monitors; `event_bytes` is appended to it."""
    parts = [head(StreamKind.TOLD)]
    report.write_fields(parts)
    return b"".join(parts)


def event_bytes(events: Sequence[EventReport], missed: int) -> bytes:
    """The rest of the message."""
    parts: list[bytes] = []
    (_, of_events), (_, of_missed) = layout(Update)[1:]
    of_events.write(events, parts)
    of_missed.write(missed, parts)
    return b"".join(parts)
