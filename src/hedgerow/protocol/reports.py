"""What a monitor sees of a run: only what every party knows, or anyone who watches the network; nothing from rows.

A monitor sends one request, and is told of the run in reports; both are checked before they are believed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from hedgerow.codec import (
    U32,
    U64,
    CodeWord,
    Encoded,
    Fixed,
    Hash,
    Many,
    Nested,
    Real,
    Record,
    Shown,
    Table,
    Unsigned,
    Word,
    head,
    layout,
)
from hedgerow.protocol.stream import StreamKind

Amount = Annotated[float, Real(least=0.0)]
Seconds = Annotated[float, Real(least=0.0, most=1e15)]
MaybeWord = Annotated[str, Word(least=0)]


class SiteState(StrEnum):
    """How a site is."""

    ABSENT = "absent"
    CONNECTED = "connected"
    ASKING = "asking"
    READY = "ready"
    REFUSED = "refused"
    SILENT = "silent"
    LEFT = "left"
    DONE = "done"


OVER = "over"
"""The phase of a run that has ended, with a model or, when `RunReport.failure` is set, without."""
WAITING = "waiting-for-sites"
"""The phase of a run in which too few sites are there."""


_LONGEST_SECONDS = 1e9
"""More than thirty years: a number that someone made up, or infinity."""
TRAINING, EVALUATION, SURVEY = "training", "evaluation", "survey"
"""What a run is for."""


@dataclass(frozen=True, slots=True)
class Salvage:
    """That a training could not go on, and ended with the model of the rounds that were released.

    Attributes:
        code: why it could not, a stable code.
        n_used: releases that the model is made of, the first ones of the ledger; >= 1.
        n_planned: releases of the whole run.
    """

    code: str
    n_used: int
    n_planned: int

    def text(self) -> str:
        """What a person is told, as one sentence."""
        return (
            f"The run could not go on ({self.code}). The model is that of the {self.n_used} of {self.n_planned} rounds "
            "that were released before."
        )


@dataclass(frozen=True, slots=True)
class SiteReport(Record):
    """One site.

    Attributes:
        name: as in the roster.
        state: a word of `SiteState`.
        code: why it is so, a stable code, or "".
        rounds: releases whose sum it is in.
        dropouts: times that its connection was lost or it did not answer in time.
        refusals: times that it refused, or sent what could not be used.
        release: of Hedgerow, as its node has said; "" where it has not.
    """

    name: Shown
    state: CodeWord = SiteState.ABSENT
    code: MaybeWord = ""
    rounds: U32 = 0
    dropouts: U32 = 0
    refusals: U32 = 0
    release: Shown = ""


@dataclass(frozen=True, slots=True)
class EventReport(Record):
    """One event of a run; rounds and phases are none, the reports themselves tell of them.

    Attributes:
        number: counts the events of one process of the coordinator: 1, 2, 3 ...
        seconds: since that process began.
        kind: a word of `server.run.RunEventKind`.
        round: releases made before it.
        site: that it is about, or "".
        code: why, a stable code, or "".
    """

    number: U64
    seconds: Seconds
    kind: CodeWord
    round: U32
    site: Shown = ""
    code: MaybeWord = ""


@dataclass(frozen=True, slots=True)
class RunReport(Record):
    """A run at one moment.

    Attributes:
        process: 8 random bytes of the coordinator's process; others after it was started again.
        run_id: the run's number; the same after the coordinator was started again.
        plan_digest: SHA-256 of the plan.
        release: of Hedgerow.
        phase: what the coordinator collects, a word of `RunState`, or `waiting-for-sites`.
        failure: why the run was given up, a stable code; or "".
        rounds_done: releases made.
        rounds_planned: releases that the whole run makes.
        seconds: since the coordinator's process began, or until the run was over.
        rounds_per_second: lately; 0 when not known.
        epsilon_spent: what all releases so far cost at the delta of the promise, by the plan's accountant.
        epsilon_limit: what the plan, or the evaluation, promises; infinite when it promises none.
        delta: of that promise.
        bytes_sent: to all nodes since the coordinator's process began.
        bytes_received: from all nodes, likewise.
        rounds_abandoned: rounds that were begun again since the coordinator's process began.
        sites: all of the roster, in its order.
        streams_refused: how many streams were refused before they joined, by reason.
        task: what the run is for: `training`, `evaluation` of a model of the plan, or `survey`.
    """

    process: Annotated[bytes, Fixed(8)]
    run_id: Hash
    plan_digest: Hash
    release: Shown
    phase: CodeWord
    failure: MaybeWord = ""
    rounds_done: U32 = 0
    rounds_planned: U32 = 0
    seconds: Seconds = 0.0
    rounds_per_second: Seconds = 0.0
    epsilon_spent: Amount = 0.0
    epsilon_limit: Amount = 0.0
    delta: Amount = 0.0
    bytes_sent: U64 = 0
    bytes_received: U64 = 0
    rounds_abandoned: U32 = 0
    sites: Annotated[tuple[SiteReport, ...], Many(Nested(SiteReport), most=4096)] = ()
    streams_refused: Annotated[Mapping[str, int], Table(Word(), Unsigned(4))] = field(default_factory=dict)
    task: CodeWord = TRAINING

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.phase == OVER

    @property
    def seconds_left(self) -> float | None:
        """How long the run still takes at its present pace; None when it has none, or one that no run has."""
        if self.is_over or self.phase == WAITING or self.rounds_per_second <= 0:
            return None
        left = max(0, self.rounds_planned - self.rounds_done) / self.rounds_per_second
        return left if left <= _LONGEST_SECONDS else None


# What is said ---------------------------------------------------------------------------------------------------------

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
