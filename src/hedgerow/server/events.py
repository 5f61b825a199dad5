"""What the coordinator tells whoever watches a run: public facts only, never a number that came from a site."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class RunEventKind(StrEnum):
    """What happened."""

    JOINED = "joined"
    LEFT = "left"
    READY = "ready"
    REFUSED = "refused"
    SILENT = "silent"
    LATE = "late"
    COMPLAINT = "complaint"
    PHASE = "phase"
    RELEASED = "released"
    ABANDONED = "abandoned"
    LEFT_OUT = "left-out"
    TAKEN_BACK = "taken-back"
    SALVAGED = "salvaged"
    FINISHED = "finished"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event.

    Attributes:
        kind: what happened.
        round: the exchange in which it happened.
        site: the site that it is about, or "".
        code: why, as a code word; for a phase, its name.
    """

    kind: RunEventKind
    round: int
    site: str = ""
    code: str = ""


Observer = Callable[[RunEvent], None]


def nobody_watches(_: RunEvent) -> None:
    """The observer when there is none."""
