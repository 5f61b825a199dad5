"""What a monitor sees of a run: only what every party knows, or anyone who watches the network; nothing from rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


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
class SiteReport:
    """One site.

    Attributes:
        name: as in the roster.
        state: a word of `SiteState`.
        code: why it is so, a stable code, or "".
        rounds: releases whose sum it is in.
        dropouts: times that its connection was lost or it did not answer in time.
        refusals: times that it refused, or sent what could not be used.
    """

    name: str
    state: str = SiteState.ABSENT
    code: str = ""
    rounds: int = 0
    dropouts: int = 0
    refusals: int = 0


@dataclass(frozen=True, slots=True)
class EventReport:
    """One event: `number` counts those of a process from 1, `seconds` are since it began; see `server.events`."""

    number: int
    seconds: float
    kind: str
    round: int
    site: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class RunReport:
    """A run at one moment; protocol/wire/hedgerow.proto documents every field (message Report)."""

    process: bytes
    run_id: bytes
    plan_digest: bytes
    release: str
    phase: str
    failure: str = ""
    rounds_done: int = 0
    rounds_planned: int = 0
    seconds: float = 0.0
    rounds_per_second: float = 0.0
    epsilon_spent: float = 0.0
    epsilon_limit: float = 0.0
    delta: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    rounds_abandoned: int = 0
    sites: tuple[SiteReport, ...] = ()
    streams_refused: Mapping[str, int] = field(default_factory=dict)
    task: str = TRAINING

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.phase == OVER

    @property
    def seconds_left(self) -> float | None:
        """How long the run still takes at its present pace; None when it has none."""
        if self.is_over or self.phase == WAITING or self.rounds_per_second <= 0:
            return None
        return (self.rounds_planned - self.rounds_done) / self.rounds_per_second
