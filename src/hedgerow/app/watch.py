# SPDX-License-Identifier: Apache-2.0
"""How a run is, in the words that all who watch it see: on its page, and at a monitor's terminal. No heavy imports."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, TypeVar

from hedgerow.app.inputs import join_names
from hedgerow.app.output import megabytes, number, span
from hedgerow.codec import format_spoken
from hedgerow.privacy.rounding import format_up
from hedgerow.protocol.messages import RunState
from hedgerow.protocol.stream import EVALUATION, SURVEY, WAITING, EventReport, RunReport, SiteReport, SiteState
from hedgerow.server.wait import Patience, Wait, find_wait

PHASE_WORDS = {
    "gathering": "waiting for sites to join",
    "waiting-for-sites": "waiting for sites to return",
    "setting-up": "agreeing on keys",
    "collecting-vectors": "collecting masked vectors",
    "collecting-echoes": "collecting echoes",
    "collecting-answers": "unmasking the sum",
    "finishing": "handing the result out",
}
_MARKS = {
    SiteState.ABSENT: ("·", ""),
    SiteState.CONNECTED: ("○", "waits"),
    SiteState.ASKING: ("○", "waits"),
    SiteState.READY: ("●", "good"),
    SiteState.REFUSED: ("✕", "bad"),
    SiteState.SILENT: ("?", "waits"),
    SiteState.LEFT: ("✕", "bad"),
    SiteState.DONE: ("✓", "good"),
}
"""A site's state as one character, and its mood: "good", "waits" or "bad"."""
_CALM = {SiteState.READY, SiteState.CONNECTED, SiteState.ASKING, SiteState.DONE}
EVENT_WORDS = {
    "joined": ("is connected", ""),
    "left": ("is gone", "bad"),
    "deferred": ("asks its owner first", "waits"),
    "ready": ("is ready", "good"),
    "refused": ("refuses", "bad"),
    "silent": ("does not answer", "waits"),
    "late": ("answered too late", "waits"),
    "complaint": ("sent what cannot be used", "bad"),
    "false-sum": ("made a sum that no records add up to: one or more of them lies or is broken", "bad"),
    "disagreement": ("groups of sites disagree: either one of them is unlike the whole, or all others are", "bad"),
    "objection": ("most sites say that the model so far predicts their rows badly: it is likely spoilt", "bad"),
    "left-out": ("is asked no more", "bad"),
    "taken-back": ("is asked again, for there are too few without it", "waits"),
    "abandoned": ("round begun again", "waits"),
    "salvaged": ("ends early with the rounds so far", "waits"),
    "phase": ("", ""),
    "finished": ("the run is finished", "good"),
    "stopped": ("the run was given up", "bad"),
}
"""Words for each event, in a log as well, and its mood."""
_KEPT_EVENTS = 200


class RunView:
    """State of a run from its reports and events alone, as a monitor receives them.

    Attributes:
        report: the last one; None before there is any.
        patience: what the coordinator knows of a wait beside its reports; None at a monitor.
    """

    def __init__(self) -> None:
        self.report: RunReport | None = None
        self.patience: Patience | None = None
        self._events: deque[EventReport] = deque(maxlen=_KEPT_EVENTS)
        self._curve: list[tuple[int, float]] = []
        self._waiting_since: float | None = None

    def begin_curve(self, points: list[tuple[int, float]]) -> None:
        """Start the curve of epsilon with what earlier processes of the coordinator have spent."""
        self._curve = points

    def take(self, report: RunReport, events: Iterable[EventReport]) -> list[EventReport]:
        """Store a report and its events, and return the events that are new.

        After a new connection the coordinator tells its last events again; a new process of it counts from one.
        """
        if self.report is not None and report.run_id != self.report.run_id:
            self._curve.clear()
        if self.report is None or report.process != self.report.process:
            self._waiting_since = None
            self._events.clear()
        last = self._events[-1].number if self._events else 0
        new = [event for event in events if event.number > last]
        self._events.extend(new)
        self.report = report
        point = (report.rounds_done, report.epsilon_spent)
        if not math.isinf(point[1]) and self._curve[-1:] != [point]:
            # Epsilon is computed now and then, so the newest value of a round replaces earlier ones.
            self._curve = thin([*(one for one in self._curve if one[0] < report.rounds_done), point])
        is_waiting = report.phase in (WAITING, RunState.GATHERING)
        self._waiting_since = (self._waiting_since or report.seconds) if is_waiting else None
        return new

    def state(self) -> dict[str, Any]:
        """Return everything in words and numbers; empty before the first report."""
        report = self.report
        if report is None:
            return {}
        wait = self.wait(report)
        waiting = sentence(describe_wait(wait))
        kind = report.task if report.task in (EVALUATION, SURVEY) else "run"
        if report.failure:
            phase, mood = f"Given up: {report.failure}", "bad"
        elif report.is_over:
            phase, mood = "Finished", "good"
        else:
            phase, mood = describe_phase(report.phase, wait), "waits" if waiting else "runs"
        has_promise = not math.isinf(report.epsilon_limit)
        left = report.seconds_left
        dropouts, refusals = (sum(getattr(one, name) for one in report.sites) for name in ("dropouts", "refusals"))
        counts = {
            "dropout": dropouts, "refusal": refusals, "round begun again": report.rounds_abandoned,
            "stream refused": sum(report.streams_refused.values()),
        }  # fmt: skip
        troubles = []
        for what, count in counts.items():
            if count:
                noun, gap, rest = what.partition(" ")
                troubles.append(f"{count} {noun}{'s' * (count != 1)}{gap}{rest}")
        spent = f"{format_up(report.epsilon_spent, 4)} of {report.epsilon_limit:g}, at delta {format_up(report.delta)}"
        tally = Counter(site.state for site in report.sites)
        return {
            "title": f"{kind} {report.run_id.hex()[:8]}",
            "phase": phase,
            "mood": mood,
            "waiting": waiting,
            "wait": {
                "for": list(wait.awaited), "needed": wait.needed, "ready": wait.n_ready, "more": wait.n_more,
            },
            "is_over": report.is_over,
            "rounds": [report.rounds_done, report.rounds_planned],
            "pace": f"{number(report.rounds_per_second, 3)} a second" if report.rounds_per_second > 0 else "",
            "left": "" if left is None else f"{span(left)} left",
            "epsilon": [report.epsilon_spent, report.epsilon_limit] if has_promise else None,
            "epsilon_text": spent if has_promise else "The plan promises no privacy.",
            "curve": list(self._curve),
            "facts": [
                ["plan", format_spoken(report.plan_digest)[:9]],
                ["version", report.version],
                ["time", span(report.seconds)],
                ["to the sites", megabytes(report.bytes_sent)],
                ["from the sites", megabytes(report.bytes_received)],
                ["troubles", ", ".join(troubles) or "none"],
            ],
            "sites_text": ", ".join(f"{count} {state}" for state, count in tally.most_common()),
            "sites": [_describe_site(site) for site in report.sites],
            "events": in_words(self._events)[::-1],
        }

    def wait(self, report: RunReport) -> Wait:
        """Return for whom the run waits at a report."""
        if report.is_over:
            return Wait()
        began = math.inf if self._waiting_since is None else self._waiting_since
        patience = Patience(began=began) if self.patience is None else self.patience
        return find_wait(report.phase, report.sites, report.seconds, patience)


def describe_phase(phase: str, wait: Wait) -> str:
    """Return how a run stands, as a heading: no other numbers than those of `describe_wait`."""
    said = PHASE_WORDS.get(phase, phase)
    if phase == WAITING and wait.needed:
        said += "; too few are there" if wait.n_more else "; enough are there"
    elif phase not in (WAITING, RunState.GATHERING) and describe_wait(wait):
        said = f"waiting for sites: {said}"
    return _capitalise(said)


def describe_wait(wait: Wait) -> str:
    """Describe for whom a run waits, how many it needs, and how long; "" if it waits for nobody."""
    if not wait.awaited:
        return ""
    said = []
    if wait.is_for_answers:
        said.append("for their answers")
    elif wait.n_more:
        said.append(f"{wait.n_more} more of {wait.needed} needed")
    elif wait.needed:
        said.append(f"the {wait.needed} needed are ready")
    if 1 <= wait.seconds < math.inf:
        said.append(f"{wait.seconds:,.0f} s so far")
    if math.isfinite(wait.left):
        said.append(f"{wait.left:,.0f} s more at most")
    return f"waiting for {join_names(wait.awaited)}" + (f" ({'; '.join(said)})" if said else "")


def _describe_site(site: SiteReport) -> dict[str, Any]:
    mark, mood = _MARKS[SiteState(site.state)] if site.state in set(SiteState) else ("", "")
    counts = [site.rounds, site.dropouts, site.refusals]
    words = {"name": site.name, "mark": mark, "mood": mood, "state": site.state, "why": site.code}
    return {**words, "version": site.version, "is_calm": site.state in _CALM, "counts": counts}


def in_words(events: Iterable[EventReport]) -> list[dict[str, str]]:
    """Events of a run, in order: time, text and mood of each."""
    told, is_handed_out = [], False
    for event in events:
        said, mood = EVENT_WORDS.get(event.kind, (event.kind, ""))
        if event.kind == "phase":
            is_handed_out = event.code == "finishing"
            said = PHASE_WORDS.get(event.code, event.code)
        elif is_handed_out and event.kind == "left":
            # A site hangs up once it has the result; the words are those of the coordinator's log.
            said, mood = "has hung up", ""
        elif event.code:
            said = f"{said} ({event.code})"
        told.append({"time": clock_time(event.seconds), "text": f"{event.site} {said}".strip(), "mood": mood})
    return told


def sentence(said: str) -> str:
    """Turn a remark into a sentence; "" stays ""."""
    return f"{_capitalise(said)}." if said else ""


def _capitalise(said: str) -> str:
    return said[:1].upper() + said[1:]


MAX_POINTS = 400
Point = TypeVar("Point", bound=tuple[float, float])


def thin(curve: list[Point]) -> list[Point]:
    """Drop every second point of a curve of more than `MAX_POINTS`, keeping the last; else return it."""
    return [*curve[:-1:2], curve[-1]] if len(curve) > MAX_POINTS else curve


def clock_time(seconds: float) -> str:
    """Hours, minutes and seconds since the coordinator began, as 1:02:03."""
    whole = int(min(seconds, 10**9))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
