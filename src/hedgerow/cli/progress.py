"""How a run is told to a person: its progress on stderr, and the words and marks that all views of a run share.

Progress is a bar in a terminal, a line now and then elsewhere, nothing for machines. Who only watches a run needs
neither numba nor scipy, so what does is imported where a run is carried out.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from hedgerow.cli.inputs import listed
from hedgerow.cli.output import WIDEST, note, number
from hedgerow.plan.plan import Plan
from hedgerow.protocol.stream import EventReport, SiteState

if TYPE_CHECKING:
    from hedgerow.privacy.events import Event
    from hedgerow.privacy.ledger import Ledger
    from hedgerow.protocol.queries import Query
    from hedgerow.server.coordinator import RunSession
    from hedgerow.survey.program import Findings

_SECONDS_BETWEEN_LINES = 5.0
_SECONDS_UNTIL_SLOW = 10.0
_SECONDS_BETWEEN_EPSILONS = 0.2
"""An accountant reads the whole ledger, so it is not asked after every release."""


class TrainingProgress:
    """How far a run is: rounds, and what it has spent so far; pass it to `train` as `progress`.

    Args:
        plan: the plan.
        n_sites: sites that take part.
        quiet: show nothing.
        patience: seconds before anything is shown, >= 0.
    """

    def __init__(
        self, plan: Plan, n_sites: int, *, quiet: bool = False, title: str = "Training", patience: float = 0.0
    ) -> None:
        from hedgerow.methods.tasks import TrainingTask

        self._plan = plan
        self._sites = f"{n_sites} site{'' if n_sites == 1 else 's'}"
        self._title = title
        console = Console(stderr=True)
        self._console = Console(stderr=True, width=min(WIDEST, console.width))
        self._quiet = quiet
        self._total = 0 if quiet else TrainingTask(plan).n_exchanges
        self._done = 0
        self._spent = 0.0
        self._last_epsilon = self._last_line = -math.inf
        self._bar: Progress | None = None
        self._patience = patience
        self._starts_at = math.inf

    def __enter__(self) -> TrainingProgress:
        now = time.monotonic()
        self._starts_at = now + self._patience
        self._last_line = now + self._patience - _SECONDS_BETWEEN_LINES if self._patience else now
        if not self._patience:
            if not self._quiet and is_first_run():
                note("This is the first run here: inner loops are compiled, which takes a minute or two, once.")
            self._start_bar()
        return self

    def _start_bar(self) -> None:
        if not self._quiet and self._console.is_terminal:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description:<15}"),
                BarColumn(bar_width=None, complete_style="green", finished_style="green"),
                TextColumn("{task.completed:.0f}/{task.total:.0f} rounds"),
                TextColumn("{task.fields[epsilon]}"),
                TextColumn(f"[dim]{self._sites}[/]"),
                TimeElapsedColumn(),
                console=self._console,
                expand=True,
                transient=False,
            )
            self._task = self._bar.add_task("Starting", total=self._total, epsilon=self._epsilon_text())
            self._bar.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, query: Query, ledger: Ledger) -> None:
        """Take note of a release."""
        self._done += 1
        if self._quiet:
            return
        now = time.monotonic()
        is_last = self._done >= self._total
        if now < self._starts_at:
            return
        if self._bar is None:
            self._start_bar()
        if now - self._last_epsilon >= _SECONDS_BETWEEN_EPSILONS or is_last:
            self._spent = self._epsilon(ledger)
            self._last_epsilon = now
        if self._bar is not None:
            title = self._title
            self._bar.update(self._task, completed=self._done, description=title, epsilon=self._epsilon_text())
        elif now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = now
            line = f"{self._title}: {self._done}/{self._total} rounds, {self._epsilon_text(True)}, {self._sites}"
            print(line, file=sys.stderr, flush=True)

    def _epsilon(self, ledger: Ledger) -> float:
        from hedgerow.privacy.accountants import account_of

        privacy = self._plan.privacy
        if math.isinf(privacy.epsilon):
            return math.inf
        return account_of(privacy.accountant, ledger.events(), privacy.delta).epsilon

    def _epsilon_text(self, plain: bool = False) -> str:
        total = self._plan.privacy.epsilon
        if math.isinf(total):
            return "no privacy" if plain else "[red]no privacy[/]"
        text = f"epsilon {min(self._spent, total):.2f} of {total:g}"
        return text if plain else f"[cyan]{text}[/]"


def is_first_run() -> bool:
    """Whether inner loops are still to be compiled."""
    from hedgerow.client.node import has_compiled

    return not has_compiled()


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
