# SPDX-License-Identifier: Apache-2.0
"""Fold the coordinator's events into reports, shown outside the run's thread.

Events hold public facts only, never a number that came from a site. The run's thread only notes them. The publisher's
thread makes reports and computes epsilon, so the run never waits for those who watch.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

from hedgerow.codec import MAX_TEXT_BYTES
from hedgerow.methods.tasks import EvaluationTask, SurveyTask, Task, TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import compute_account
from hedgerow.privacy.ledger import Ledger
from hedgerow.protocol.messages import RunState
from hedgerow.protocol.stream import EVALUATION, OVER, SURVEY, TRAINING, EventReport, RunReport, SiteReport, SiteState
from hedgerow.server.coordinator import CoordinatorRun, RunEvent, RunEventKind, count_needed
from hedgerow.server.wait import GATHERS, GIVEN_UP_CODES, Patience, Wait, find_wait
from hedgerow.version import __version__

KEPT_EVENTS = 256
SECONDS_BETWEEN_REPORTS = 0.2
_PACE_ROUNDS = 50
"""Rounds over which the pace is measured."""
_IDLE_PER_WORK = 20
"""Seconds without computing epsilon for each second spent on it: an accountant reads the whole ledger each time."""
_PAST_POINTS = 20
"""Points of the curve of epsilon spent before this process began: an accountant reads the whole ledger for each."""
_MAX_WORD = 64
_WORDS = {TrainingTask: TRAINING, EvaluationTask: EVALUATION, SurveyTask: SURVEY}
_IN_A_ROUND = {RunState.COLLECTING_VECTORS, RunState.COLLECTING_ECHOES, RunState.COLLECTING_ANSWERS}


_STATE_AFTER = {
    RunEventKind.JOINED: SiteState.CONNECTED,
    RunEventKind.LEFT: SiteState.LEFT,
    RunEventKind.DEFERRED: SiteState.ASKING,
    RunEventKind.READY: SiteState.READY,
    RunEventKind.REFUSED: SiteState.REFUSED,
    RunEventKind.SILENT: SiteState.SILENT,
}
_DROPOUTS = {RunEventKind.LEFT, RunEventKind.SILENT}
_REFUSALS = {RunEventKind.REFUSED, RunEventKind.COMPLAINT}
EventsSince = Callable[[int], tuple[tuple[EventReport, ...], int]]


@dataclass(frozen=True, slots=True)
class HubTraffic:
    """The hub's counts: bytes of messages, and streams refused before they joined, by reason.

    `versions` has the version of Hedgerow that each site's node has told.
    """

    sent: int = 0
    received: int = 0
    refused: Mapping[str, int] | None = None
    versions: Mapping[str, str] | None = None


class RunBoard:
    """The observer of a run: notes its events and reports its state. Any thread may read it.

    Args:
        task: the run's task; a plan stands for its training.
        site_names: all sites of the roster, in its order.
        rounds_planned: releases of the whole run.
        clock: seconds that never go back: ``time.monotonic``.
        process: 8 random bytes that name this process.
    """

    def __init__(
        self, task: Plan | Task, site_names: Sequence[str], rounds_planned: int, clock: Callable[[], float],
        process: bytes,
    ) -> None:  # fmt: skip
        task = TrainingTask(task) if isinstance(task, Plan) else task
        plan, self._promise = task.plan, task.promise
        digest = task.digest if isinstance(task, SurveyTask) else plan.digest
        self._accountant = plan.privacy.accountant
        self._n_prepared = len(plan.prepared) if isinstance(task, TrainingTask) else 0
        self._clock, self._began = clock, clock()
        self._lock = threading.Lock()
        self._run: CoordinatorRun | None = None
        self._sites = {name: SiteReport(name) for name in site_names}
        self._rounds: Counter[str] = Counter()
        self._ledger = Ledger()
        self._paces: deque[float] = deque(maxlen=_PACE_ROUNDS)
        self._events: deque[EventReport] = deque(maxlen=KEPT_EVENTS)
        self._n_events = self._n_abandoned = self._n_before = 0
        self._ended: float | None = None
        self._told_phase = ""
        self._patience = Patience(began=0.0)
        self._base = RunReport(
            process, bytes(32), bytes.fromhex(digest), __version__, RunState.GATHERING.value,
            rounds_planned=rounds_planned, epsilon_limit=self._promise[0], delta=self._promise[1],
            task=_WORDS[type(task)],
        )  # fmt: skip
        self._epsilon, self._epsilon_of, self._epsilon_again = 0.0, 0, -math.inf

    def attach(self, run: CoordinatorRun) -> None:
        """Set the run whose events are noted; it may have continued from a journal.

        The run's thread calls it.
        """
        with self._lock:
            self._run, self._ledger = run, run.ledger
            self._base = replace(self._base, run_id=run.run_id)
            self._patience = replace(self._patience, needed=count_needed(run))
            self._n_before = len(self._ledger)
            for survivors in run.survivors:
                self._rounds.update(survivors)

    def __call__(self, event: RunEvent) -> None:
        """Note an event, quickly, because the run's thread calls it."""
        now = self._clock() - self._began
        with self._lock:
            if event.kind is RunEventKind.RELEASED:
                self._note_release(now)
                return
            if event.kind is RunEventKind.PHASE:
                self._patience = Patience(began=now)
            if event.kind is RunEventKind.PHASE:
                self._base = replace(self._base, phase=event.code)
                if event.code in _IN_A_ROUND or event.code == self._told_phase:
                    return
                self._told_phase = event.code
                if event.code == OVER:
                    # An event of its own follows and says how it ended.
                    self._end(now)
                    return
            elif event.kind is RunEventKind.ABANDONED:
                self._n_abandoned += 1
            self._note_site(event)
            if self._run is not None and self._base.phase in GATHERS:
                self._patience = replace(self._patience, needed=count_needed(self._run))
            self._n_events += 1
            word, who = _shorten_code(event.code), _shorten_names(event.site)
            self._events.append(EventReport(self._n_events, now, event.kind.value, event.round, who, word))

    def _note_release(self, now: float) -> None:
        self._paces.append(now)
        if self._run is not None:
            self._ledger = self._run.ledger
            self._rounds.update(self._run.survivors[-1])
            for name in self._run.survivors[-1]:
                if self._sites[name].state == SiteState.SILENT:
                    # No event tells that a silent site has woken up; its vector in a sum does.
                    self._sites[name] = replace(self._sites[name], state=SiteState.READY, code="")

    def _end(self, now: float) -> None:
        self._ended = now
        failure = None if self._run is None else self._run.failure
        if failure is not None:
            self._base = replace(self._base, failure=_shorten_code(failure.code))
            return
        for name, site in self._sites.items():
            if site.state == SiteState.READY:
                self._sites[name] = replace(site, state=SiteState.DONE)

    def _note_site(self, event: RunEvent) -> None:
        site = self._sites.get(event.site)
        if site is None:
            return
        ending = self._run if self._base.phase == RunState.FINISHING else None
        if event.kind is RunEventKind.LEFT and ending is not None and ending.sites[event.site].has_answered:
            # A node that has sent Done hangs up: it has the model.
            self._sites[event.site] = replace(site, state=SiteState.DONE, code="")
            return
        # A node that refuses hangs up. Keep the refusal, which tells more than that the node left.
        has_refused = event.kind is RunEventKind.LEFT and site.state == SiteState.REFUSED
        is_dropout = event.kind in _DROPOUTS and self._ended is None and not has_refused
        site = replace(site, dropouts=site.dropouts + is_dropout, refusals=site.refusals + (event.kind in _REFUSALS))
        if event.kind in _STATE_AFTER and not has_refused:
            code = _shorten_code(event.code) if event.kind in (RunEventKind.LEFT, RunEventKind.REFUSED) else ""
            is_given_up = site.code in GIVEN_UP_CODES and event.kind is not RunEventKind.REFUSED
            site = replace(site, state=_STATE_AFTER[event.kind], code=site.code if is_given_up else code)
        if event.kind in (RunEventKind.LEFT_OUT, RunEventKind.TAKEN_BACK):
            site = replace(site, code=_shorten_code(event.code))
        self._sites[event.site] = site

    def note_wait(self, left: float, awaited: Collection[str]) -> None:
        """Note how many seconds the phase may still take, and whose answer it needs. Called by the run's thread."""
        now = self._clock() - self._began
        with self._lock:
            needed = 0 if self._run is None else count_needed(self._run)
            self._patience = replace(self._patience, needed=needed, awaited=frozenset(awaited), ends=now + left)

    @property
    def patience(self) -> Patience:
        """The facts about a wait that only the coordinator knows."""
        with self._lock:
            return self._patience

    def wait(self) -> Wait:
        """Return the sites that the run waits for now."""
        with self._lock:
            now = self._clock() - self._began
            return find_wait(self._base.phase, self._sites.values(), now, self._patience)

    def past_curve(self) -> list[tuple[int, float]]:
        """Return (rounds, epsilon) of the releases in the journal before this process began.

        At most some 20 points are computed. May take a while; not for the run's thread.
        """
        with self._lock:
            releases = self._ledger.releases[: self._n_before]
        (limit, delta), n_first = self._promise, self._n_prepared
        n_rounds = len(releases) - n_first
        if math.isinf(limit) or n_rounds <= 0:
            return []
        step = -(-n_rounds // _PAST_POINTS)
        counts = [*range(0, n_rounds, step), n_rounds]
        events = [release.event for release in releases]
        return [(n, compute_account(self._accountant, events[: n_first + n], delta).epsilon) for n in counts]

    def events_since(self, number: int) -> tuple[tuple[EventReport, ...], int]:
        """Return the kept events after this number, oldest first, and the number of those not kept."""
        with self._lock:
            n_new = self._n_events - number
            kept = tuple(islice(self._events, max(0, len(self._events) - n_new), None))
            return kept, n_new - len(kept)

    def report(self, traffic: HubTraffic) -> RunReport:
        """Return the run's state now.

        May take a while, because epsilon is computed; not for the run's thread.
        """
        with self._lock:
            now = self._clock() - self._began if self._ended is None else self._ended
            base, ledger, paces = self._base, self._ledger, tuple(self._paces)
            said = traffic.versions or {}
            sites = tuple(
                replace(site, rounds=self._rounds[name], version=said.get(name, ""))
                for name, site in self._sites.items()
            )
            n_abandoned = self._n_abandoned
        # The pace covers the last rounds, and falls while nothing is released.
        pace = (len(paces) - 1) / (now - paces[0]) if len(paces) >= 2 and now > paces[0] else 0.0
        return replace(
            base,
            # A training's ledger begins with what was released before it.
            rounds_done=max(0, ledger.n_rounds - self._n_prepared),
            seconds=now,
            rounds_per_second=pace,
            epsilon_spent=self._compute_spent(ledger, is_last=base.is_over),
            bytes_sent=traffic.sent,
            bytes_received=traffic.received,
            rounds_abandoned=n_abandoned,
            sites=sites,
            streams_refused=dict(traffic.refused or {}),
        )

    def _compute_spent(self, ledger: Ledger, *, is_last: bool) -> float:
        limit, delta = self._promise
        if math.isinf(limit):
            return math.inf if ledger.releases else 0.0
        began = self._clock()
        if len(ledger) != self._epsilon_of and (is_last or began >= self._epsilon_again):
            self._epsilon = compute_account(self._accountant, ledger.events(), delta).epsilon
            ended = self._clock()
            self._epsilon_of, self._epsilon_again = len(ledger), ended + _IDLE_PER_WORK * (ended - began)
        return self._epsilon


def _shorten_code(code: str) -> str:
    """Shorten and clean a code for a report, because a site may have sent it."""
    return "".join(letter for letter in code[:_MAX_WORD] if letter.isascii() and letter.isprintable())


def _shorten_names(names: str) -> str:
    """Return the names of a group's sites as far as a report's line holds them, and the number left."""
    shown, n_more = names.split(", "), 0
    text = names
    while len(text.encode()) > MAX_TEXT_BYTES:
        n_more += 1
        text = f"{', '.join(shown[:-n_more])} and {n_more} more"
    return text


class Audience(Protocol):
    """A recipient of reports."""

    def is_there(self) -> bool:
        """Return whether somebody would see a report now."""

    def show(self, report: RunReport, events_since: EventsSince) -> None:
        """Take the newest report without blocking.

        `events_since` may be called later, from any thread.
        """


class Publisher:
    """Shows reports until it is closed, and a last one then.

    Args:
        traffic: returns the hub's counts so far; called in the publisher's thread.
        audiences: the recipients; while none of them looks, no report is made.
    """

    def __init__(self, board: RunBoard, traffic: Callable[[], HubTraffic], audiences: Sequence[Audience]) -> None:
        self._board, self._traffic, self._audiences = board, traffic, audiences
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hedgerow-publisher", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Show the run's state now, and stop."""
        self._stops.set()
        self._thread.join()
        self._publish()

    def _run(self) -> None:
        while not self._stops.wait(SECONDS_BETWEEN_REPORTS):
            self._publish()

    def _publish(self) -> None:
        there = [audience for audience in self._audiences if audience.is_there()]
        if there:
            report = self._board.report(self._traffic())
            for audience in there:
                audience.show(report, self._board.events_since)
