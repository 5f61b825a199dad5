"""The page of a run: ``--console`` of its coordinator, of its study, or of a monitor; it changes nothing."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hedgerow.cli.inputs import listed
from hedgerow.cli.monitor import CALM, clock_time, mark_of, phase_words, span, words_of
from hedgerow.cli.output import megabytes, number
from hedgerow.cli.page import Page
from hedgerow.methods.tasks import TrainingTask
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.prepared import prepared_events
from hedgerow.protocol.messages import RunState
from hedgerow.protocol.reports import EVALUATION, SURVEY, WAITING, EventReport, RunReport, SiteReport, SiteState
from hedgerow.transport.identities import spoken

if TYPE_CHECKING:
    from hedgerow.cli.study import PastRun
    from hedgerow.plan.plan import Plan

EventsSince = Callable[[int], tuple[tuple[EventReport, ...], int]]

_KEPT_EVENTS = 200
_MOST_POINTS = 400
"""Of the curve of epsilon; beyond them every second one goes."""
_NOT_YET = {"title": "Run", "phase": "Not begun", "mood": "waits", "waiting": "", "sites": [], "events": []}


class Console(Page):
    """Serves the page of a run until it is closed; an `Audience` of that run.

    Args:
        place: see `Page`.
        plan: what the coordinator knows of the run beside its reports; None for a monitor.

    Raises:
        UsageError, EnvironmentFault: as `Page`.
    """

    def __init__(self, place: str, plan: Plan | None = None) -> None:
        self._plan = plan
        self._events: deque[EventReport] = deque(maxlen=_KEPT_EVENTS)
        self._curve: list[tuple[int, float]] = []
        self._process, self._last_event = b"", 0
        self._waiting_since: float | None = None
        super().__init__(place, "console", "The page of this run")
        self.say(**_NOT_YET)
        if plan is not None:
            self.show_plan(plan)

    # What it is shown -------------------------------------------------------------------------------------------------

    def is_there(self) -> bool:
        """Always: the curve of epsilon has to be there for those who look later."""
        return True

    def show_plan(self, plan: Plan) -> None:
        """What is agreed on by all parties of the run."""
        self._plan = plan
        self.say(title=plan.name, plan=plan_facts(plan))

    def show_parties(self, parties: Sequence[tuple[str, str, bool]]) -> None:
        """Before the first run: each party's name, how far its enrolment is, and whether that is all."""
        missing = [name for name, _, is_done in parties if not is_done]
        self.say(
            phase="Gathering the parties",
            mood="waits",
            waiting=f"Waiting for {listed(missing)}." if missing else "",
            sites_text=f"{len(parties) - len(missing)} of {len(parties)} take part",
            sites=[
                {"name": name, "mark": "●" if is_done else "○", "state": state, "is_calm": is_done}
                for name, state, is_done in parties
            ],
        )

    def show_history(self, past: Sequence[PastRun], plan: Plan) -> None:
        """The runs of a study before this one, and what all cost together. Args: plan: of the run that goes on."""
        self.say(history=[_past(run) for run in past], budget=budget_facts(past, plan))

    def show(self, report: RunReport, events_since: EventsSince) -> None:
        """From now on this report is shown; see `server.status.Audience`."""
        events, missed = events_since(self._last_event)
        self._last_event += missed + len(events)
        self.take(report, events)

    def take(self, report: RunReport, events: Sequence[EventReport]) -> None:
        """The same for a monitor: a report, and the events that it has not told of before."""
        if report.process != self._process:
            self._process, self._waiting_since = report.process, None
            self._events.clear()
        self._events.extend(events)
        self._note_epsilon(report)
        is_waiting = report.phase in (WAITING, RunState.GATHERING)
        self._waiting_since = (self._waiting_since or report.seconds) if is_waiting else None
        state = state_of(report, self._events, self._curve, self._waiting(report))
        if self._plan is not None and self._plan.name:
            state["title"] = f"{self._plan.name}, {state['title']}"
        self.say(lost="", **state)

    def lose(self, reason: str) -> None:
        """The monitor has no connection to the coordinator; the last report stays, with a word above it."""
        if not self.said("is_over"):
            lost = f"No connection to the coordinator ({reason})."
            if self.said("is_over") is None:
                self.say(phase="No connection", mood="bad", lost=lost)
            else:
                self.say(mood="bad", lost=f"{lost} Below is the last that it told.")

    def _note_epsilon(self, report: RunReport) -> None:
        point = (report.rounds_done, report.epsilon_spent)
        if math.isinf(point[1]) or (self._curve and self._curve[-1] == point):
            return
        if self._curve and self._curve[-1][0] >= report.rounds_done:
            # Epsilon is computed now and then: the newest value of a round counts.
            self._curve = [one for one in self._curve if one[0] < report.rounds_done]
        self._curve.append(point)
        if len(self._curve) > _MOST_POINTS:
            self._curve = [*self._curve[:-1:2], self._curve[-1]]

    def _waiting(self, report: RunReport) -> str:
        """For whom the run waits, how many it needs, and for how long still."""
        if self._waiting_since is None or report.is_over:
            return ""
        missing = [site.name for site in report.sites if site.state not in (SiteState.READY, SiteState.DONE)]
        n_ready = sum(site.state == SiteState.READY for site in report.sites)
        parts = [f"Waiting for {listed(missing)}." if missing else "All sites are there."]
        if self._plan is not None:
            federation = self._plan.federation
            left = self._waiting_since + federation.join_timeout - report.seconds
            parts.append(f"{n_ready} of the {federation.min_sites} that are needed are ready.")
            if missing and left > 0:
                parts.append(f"They have {span(left)} left.")
        return " ".join(parts)


# What stands on the page ----------------------------------------------------------------------------------------------


def state_of(
    report: RunReport, events: Sequence[EventReport], curve: Sequence[tuple[int, float]], waiting: str
) -> dict[str, Any]:
    """Everything on the page, in words and numbers, made of nothing but what a monitor is told."""
    kind = report.task if report.task in (EVALUATION, SURVEY) else "run"
    if report.failure:
        phase, mood = f"Given up: {report.failure}", "bad"
    elif report.is_over:
        phase, mood = "Finished", "good"
    else:
        phase, mood = phase_words(report.phase), "waits" if waiting else "runs"
    has_promise = not math.isinf(report.epsilon_limit)
    left = report.seconds_left
    dropouts, refusals = (sum(getattr(one, name) for one in report.sites) for name in ("dropouts", "refusals"))
    troubles = [(dropouts, "dropouts"), (refusals, "refusals"), (report.rounds_abandoned, "rounds begun again"),
                (sum(report.streams_refused.values()), "streams refused")]  # fmt: skip
    tally = Counter(site.state for site in report.sites)
    return {
        "title": f"{kind} {report.run_id.hex()[:8]}",
        "phase": phase,
        "mood": mood,
        "waiting": waiting,
        "is_over": report.is_over,
        "rounds": [report.rounds_done, report.rounds_planned],
        "pace": f"{number(report.rounds_per_second, 3)} a second" if report.rounds_per_second > 0 else "",
        "left": "" if left is None else f"{span(left)} left",
        "epsilon": [report.epsilon_spent, report.epsilon_limit] if has_promise else None,
        "epsilon_text": f"{report.epsilon_spent:.3f} of {report.epsilon_limit:g}, at delta {report.delta:g}"
        if has_promise
        else "The plan promises no privacy.",
        "curve": list(curve),
        "facts": [
            ["plan", report.plan_digest.hex()[:8]],
            ["release", report.release],
            ["time", span(report.seconds)],
            ["to the sites", megabytes(report.bytes_sent)],
            ["from the sites", megabytes(report.bytes_received)],
            ["troubles", ", ".join(f"{count} {name}" for count, name in troubles if count) or "none"],
        ],
        "sites_text": ", ".join(f"{count} {state}" for state, count in tally.most_common()),
        "sites": [_site(site) for site in report.sites],
        "events": [_said(event) for event in reversed(events)],
    }


def _site(site: SiteReport) -> dict[str, Any]:
    counts = [site.rounds, site.dropouts, site.refusals]
    words = {"name": site.name, "mark": mark_of(site.state)[0], "state": site.state, "why": site.code}
    return {**words, "release": site.release, "is_calm": site.state in CALM, "counts": counts}


def _said(event: EventReport) -> dict[str, str]:
    text, colour = words_of(event)
    mood = {"red": "bad", "yellow": "waits", "green": "good"}.get(colour, "")
    return {"time": clock_time(event.seconds), "text": text, "mood": mood}


def plan_facts(plan: Plan) -> list[list[str]]:
    """What a plan says, in the words that all parties can compare."""
    privacy = plan.privacy
    unit = "each record" if privacy.unit == "record" else f"each {privacy.unit}"
    noise = {"distributed": "the sites", "server": "the coordinator"}.get(privacy.noise, "each record's node")
    return [
        ["plan", plan.name],
        ["fingerprint", spoken(bytes.fromhex(plan.digest))],
        ["predicts", f"{plan.label.name} ({plan.label.type}), from {len(plan.features)} features"],
        ["protects", unit],
        ["promise", f"epsilon {number(privacy.epsilon)} at delta {privacy.delta:g}"],
        ["noise by", noise],
        ["sites needed", str(plan.federation.min_sites)],
    ]


def budget_facts(past: Sequence[PastRun], plan: Plan) -> list[list[str]]:
    """What runs cost together, for rows that were in all of them, before this one and with it; nothing for a first run.

    By exact accounting at the delta of the plan that goes on; nothing is added up over runs that protect other units.
    """
    if not past:
        return []
    if {run.plan.privacy.unit for run in past} != {plan.privacy.unit}:
        return [["all runs", "they protect different units, so their costs cannot be added"]]
    before = [event for run in past for event in run.events]
    # What a survey released before several runs was released once.
    for prepared in {run.plan.prepared: run.plan for run in past}.values():
        before += prepared_events(prepared)
    known = {run.plan.prepared for run in past}
    gdp, delta = get_accountant("gdp"), plan.privacy.delta
    own = TrainingTask(plan).planned_releases() + ([] if plan.prepared in known else prepared_events(plan))
    whole = gdp.epsilon([*before, *own], delta)
    return [
        ["before this run", f"epsilon {number(gdp.epsilon(before, delta))}"],
        ["with this run, at most", f"epsilon {number(whole)}"],
        ["at delta", f"{delta:g}"],
    ]


def _past(run: PastRun) -> list[str]:
    delta = run.plan.privacy.delta
    epsilon = get_accountant("gdp").epsilon([*prepared_events(run.plan), *run.events], delta)
    return [run.name, run.state, run.plan.name, number(epsilon), run.remark]
