"""Shows a run's reports to whoever wants them, from a thread of its own: the run never waits for those who watch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from hedgerow.protocol.results import EventReport, RunReport
from hedgerow.server.status import RunBoard, Traffic

EventsSince = Callable[[int], tuple[tuple[EventReport, ...], int]]
SECONDS_BETWEEN_REPORTS = 0.2


class Audience(Protocol):
    """Somebody to whom reports are shown."""

    def is_there(self) -> bool:
        """Whether a report would be looked at now."""

    def show(self, report: RunReport, events_since: EventsSince) -> None:
        """Take the newest report; does not block. `events_since` may be called later, from any thread."""


class Publisher:
    """Shows reports until it is closed, and the last one then.

    Args:
        board: makes the reports.
        traffic: what the hub has counted so far; called in the publisher's thread.
        audiences: to whom reports are shown; when nobody is there, none is made.
    """

    def __init__(self, board: RunBoard, traffic: Callable[[], Traffic], audiences: Sequence[Audience]) -> None:
        self._board, self._traffic, self._audiences = board, traffic, audiences
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hedgerow-publisher", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Show how the run is now, and stop."""
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
