# SPDX-License-Identifier: Apache-2.0
"""How a run is told to a person.

Who only watches a run needs neither numba nor scipy, so what does is imported where a run is carried out.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from hedgerow.app.output import note
from hedgerow.protocol.messages import NodeState

if TYPE_CHECKING:
    from hedgerow.server.coordinator import RunSession

_SECONDS_UNTIL_SLOW = 1.0
SECONDS_BETWEEN_LINES = 5.0
"""Interval of progress lines if progress cannot be shown in place."""

_LONG_WAIT = 600.0
NODE_PHASES = {
    NodeState.OUTSIDE: ("Waiting for the coordinator to propose a run", "waits"),
    NodeState.INVITED: ("In a run, which waits for other sites", "waits"),
    NodeState.ENROLLING: ("Agreeing on keys with the other sites", "runs"),
    NodeState.WAITING: ("Taking part", "runs"),
    NodeState.MASKED: ("Taking part", "runs"),
    NodeState.ECHOED: ("Taking part", "runs"),
    NodeState.FINISHED: ("Finished", "good"),
    NodeState.STOPPED: ("Stopped", "bad"),
}
"""A node's part in a run, in words, and its mood."""


def space_lines(waited: float) -> float:
    """Return the seconds between two lines about one wait; a wait of more than ten minutes has fewer."""
    # A loaded machine adds some seconds: a quarter of a minute is the most that people should wait for a word.
    return 12.0 if waited < _LONG_WAIT else 60.0


class WaitLine:
    """Says for what this party waits: at once, and again now and then, so that no wait looks like a fault."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._began = self._said = time.monotonic()
        note(f"{text}.")

    def look(self) -> None:
        """Say it again if it is time; to be called every few seconds."""
        now = time.monotonic()
        waited = now - self._began
        if now - self._said >= space_lines(waited):
            self._said = now
            note(f"{self._text} ({waited:,.0f} s so far).")


@contextmanager
def note_if_slow(*, quiet: bool) -> Iterator[None]:
    """Log after a second, while the block loads a party's code, why that takes long."""
    text = "Getting ready: on a machine's first run inner loops are compiled, which takes some seconds, once."
    # Run in a copy of the context, because the timer's thread would not find this thread's log.
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
    """Show what is being done during the block: in place in a terminal, else by a line every few seconds."""
    console, is_over, began = Console(stderr=True), threading.Event(), time.monotonic()

    def repeat() -> None:
        while not is_over.wait(SECONDS_BETWEEN_LINES):
            note(f"{text}: {time.monotonic() - began:.0f} s so far.")

    with console.status(Text(text)) if console.is_terminal and not quiet else nullcontext():
        if not quiet and not console.is_terminal:
            # In a copy of the context, as in `note_if_slow`.
            threading.Thread(target=copy_context().run, args=(repeat,), daemon=True).start()
        try:
            yield
        finally:
            is_over.set()


@contextmanager
def follow_steps() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the name of each step: in place in a terminal, else now and then."""
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status("Getting ready") as shown:
            yield lambda text: shown.update(Text(text))
        return
    last = -math.inf

    def say(text: str) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= SECONDS_BETWEEN_LINES:
            last = now
            note(text)

    yield say


def list_contributors(session: RunSession) -> list[str]:
    """Return the sites with rows in a release of the run."""
    return sorted({site for survivors in session.run.survivors for site in survivors})
