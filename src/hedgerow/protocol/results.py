"""What a monitor sees of a run: only what every party knows, or anyone who watches the network; nothing from rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from hedgerow.codec import U32, U64, CodeWord, Fixed, Hash, Many, Nested, Real, Record, Shown, Table, Unsigned, Word

Amount = Annotated[float, Real(least=0.0)]
Seconds = Annotated[float, Real(least=0.0, most=1e15)]
MaybeWord = Annotated[str, Word(least=0)]


class SiteState(StrEnum):
    """How a site is."""

    ABSENT = "absent"
    CONNECTED = "connected"
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
TRAINING, EVALUATION = "training", "evaluation"
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
    """

    name: Shown
    state: CodeWord = SiteState.ABSENT
    code: MaybeWord = ""
    rounds: U32 = 0
    dropouts: U32 = 0
    refusals: U32 = 0


@dataclass(frozen=True, slots=True)
class EventReport(Record):
    """One event of a run; rounds and phases are none, the reports themselves tell of them.

    Attributes:
        number: counts the events of one process of the coordinator: 1, 2, 3 ...
        seconds: since that process began.
        kind: a word of `server.facts.RunEventKind`.
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
        phase: what the coordinator collects, a word of `protocol.script`, or `waiting-for-sites`.
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
        task: what the run is for: `training`, or `evaluation` of a model of the plan.
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
