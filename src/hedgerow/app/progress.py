"""How a run is told to a person: the words and marks that all views of a run share.

Who only watches a run needs neither numba nor scipy, so what does is imported where a run is carried out.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.text import Text

from hedgerow.app.inputs import listed
from hedgerow.app.output import note, number
from hedgerow.plan.plan import Plan
from hedgerow.protocol.stream import EventReport, SiteState

if TYPE_CHECKING:
    from hedgerow.privacy.events import Event
    from hedgerow.server.coordinator import RunSession
    from hedgerow.survey.program import Findings

_SECONDS_UNTIL_SLOW = 10.0


@contextmanager
def told_if_slow(*, quiet: bool) -> Iterator[None]:
    """While a party has its code loaded, say after ten seconds why that takes long, whatever its method compiles."""
    text = "Getting ready: on a machine's first run inner loops are compiled, which takes a minute or two, once."
    # The log's line is made where the timer runs, which would not know that there is a log.
    timer = threading.Timer(_SECONDS_UNTIL_SLOW, copy_context().run, (note, text))
    timer.daemon = True
    if not quiet:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def status(text: str, *, quiet: bool = False) -> Iterator[None]:
    """Say what is being done while it is done, in a terminal only."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with console.status(Text(text)):
        yield


# Words and marks ------------------------------------------------------------------------------------------------------

PHASE_WORDS = {
    "gathering": "waiting for sites to join",
    "waiting-for-sites": "too few sites; waiting for their return",
    "setting-up": "agreeing on keys",
    "collecting-vectors": "collecting masked vectors",
    "collecting-echoes": "collecting echoes",
    "collecting-answers": "unmasking the sum",
    "finishing": "handing the result out",
}
STATE_MARKS = {
    SiteState.ABSENT: ("·", "dim"),
    SiteState.CONNECTED: ("○", "yellow"),
    SiteState.ASKING: ("○", "yellow"),
    SiteState.READY: ("●", "green"),
    SiteState.REFUSED: ("✕", "red"),
    SiteState.SILENT: ("?", "yellow"),
    SiteState.LEFT: ("✕", "red"),
    SiteState.DONE: ("✓", "green"),
}
CALM = {SiteState.READY, SiteState.CONNECTED, SiteState.ASKING, SiteState.DONE}
EVENT_WORDS = {
    "joined": ("connected", ""),
    "left": ("is gone", "red"),
    "deferred": ("asks its owner first", "yellow"),
    "ready": ("is ready", "green"),
    "refused": ("refuses", "red"),
    "silent": ("does not answer", "yellow"),
    "late": ("answered too late", "yellow"),
    "complaint": ("sent what cannot be used", "red"),
    "left-out": ("is asked no more", "red"),
    "taken-back": ("is asked again", "yellow"),
    "abandoned": ("round begun again", "yellow"),
    "salvaged": ("ends early with the rounds so far", "yellow"),
    "phase": ("", ""),
    "finished": ("the run is finished", "green"),
    "stopped": ("the run was given up", "red"),
}


def phase_words(phase: str) -> str:
    """A phase of a run as the beginning of a sentence."""
    said = PHASE_WORDS.get(phase, phase)
    return said[:1].upper() + said[1:]


def mark_of(state: str) -> tuple[str, str]:
    """A site's state as one character and a style; empty for a state that this version does not know."""
    return STATE_MARKS[SiteState(state)] if state in set(SiteState) else ("", "")


class Told(NamedTuple):
    """An event in words, and their style."""

    event: EventReport
    words: str
    style: str


def in_words(events: Iterable[EventReport]) -> list[Told]:
    """Events of a run, in order."""
    told, is_handed_out = [], False
    for event in events:
        if event.kind == "phase":
            is_handed_out = event.code == "finishing"
        # Sites that have the result hang up, as the coordinator's log says it.
        has_hung_up = is_handed_out and event.kind == "left"
        told.append(Told(event, *((f"{event.site} has hung up", "") if has_hung_up else _words_of(event))))
    return told


def _words_of(event: EventReport) -> tuple[str, str]:
    if event.kind == "phase":
        return f"{event.site} {PHASE_WORDS.get(event.code, event.code)}".strip(), EVENT_WORDS["phase"][1]
    said, style = EVENT_WORDS.get(event.kind, (event.kind, ""))
    return f"{event.site} {said}{f' ({event.code})' if event.code else ''}".strip(), style


def span(seconds: float) -> str:
    """A length of time for a person."""
    whole = int(min(seconds, 10**9))
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def clock_time(seconds: float) -> str:
    """Hours, minutes and seconds since the coordinator began, as 1:02:03."""
    whole = int(min(seconds, 10**9))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


@dataclass(frozen=True)
class PastRun:
    """A run of a study that is over, from what all its parties were given: its model's report, or its releases.

    Attributes:
        name: as people call it: "run 2".
        state: "finished" or "ended".
        plan: of the run.
        events: of all its releases, evaluations of its model among them.
        remark: what else a line has room for.
    """

    name: str
    state: str
    plan: Plan
    events: tuple[Event, ...]
    remark: str = ""


def survey_facts(findings: Findings, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """What was found, for a person. Args: names: of the columns that were asked for."""
    facts = [("records", f"about {findings.n_records:,}")]
    for name, own in zip(names, findings.ranges, strict=True):
        low, high = own.bounds
        facts.append((name, f"{number(low)} to {number(high)}" + (f" ({own.doubt})" if own.doubt else "")))
    if findings.label is not None:
        (low, high), (share, deviation) = findings.label.bounds, findings.label.share_beyond
        cut = f"; about {share:.1%} (± {deviation:.1%}) of it lies beyond" if deviation else ""
        doubt = f" ({findings.label.doubt})" if findings.label.doubt else ""
        facts.append(("label", f"{number(low)} to {number(high)}{cut}{doubt}"))
    if findings.classes:
        facts.append(("classes", listed([str(own) for own in findings.classes])))
    return facts


def sites_of(session: RunSession) -> list[str]:
    """Whose rows are in a release of the run."""
    return sorted({site for survivors in session.run.survivors for site in survivors})
