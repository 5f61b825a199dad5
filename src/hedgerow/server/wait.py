# SPDX-License-Identifier: Apache-2.0
"""Whom a run waits for, how many it needs and how many are ready: one answer for everything that is shown.

Without heavy imports, for who watches a run needs neither numba nor scipy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from hedgerow.protocol.messages import RunState
from hedgerow.protocol.stream import WAITING, SiteReport, SiteState


@dataclass(frozen=True, slots=True)
class Patience:
    """What only the coordinator knows of a wait; empty at a monitor.

    Attributes:
        needed: how many sites the run needs to go on; 0 where no number says it.
        awaited: sites whose answer the phase needs; empty where it needs sites to come.
        began, ends: on the clock of the report; infinite where that is not known.
    """

    needed: int = 0
    awaited: frozenset[str] = frozenset()
    began: float = math.inf
    ends: float = math.inf


@dataclass(frozen=True, slots=True)
class Wait:
    """Whom a run waits for: what heading, banner, log, page and monitor say, each in its place.

    Attributes:
        awaited: names, in the roster's order; empty where nobody is awaited.
        absent: those of them that are not connected.
        is_for_answers: whether all of them are there, and their answers are awaited.
        needed: how many sites the run needs to go on; 0 where no number says it.
        n_ready: how many are ready.
        seconds, left: how long it has waited, and will at most; infinite where that is not known.
    """

    awaited: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    is_for_answers: bool = False
    needed: int = 0
    n_ready: int = 0
    seconds: float = math.inf
    left: float = math.inf

    @property
    def n_more(self) -> int:
        """How many of the needed sites are missing."""
        return max(0, self.needed - self.n_ready)


GATHERS = {WAITING, RunState.GATHERING.value}
_SECONDS_UNTIL_LATE = 2.0
GIVEN_UP_CODES = {"timeouts-spent", "set-ups-broken", "secret-unrecoverable"}
"""Why a site is asked no more; its state stays what it was."""
_THERE = {SiteState.READY.value, SiteState.DONE.value}
_NOT_CONNECTED = {SiteState.ABSENT.value, SiteState.LEFT.value}


def find_wait(phase: str, sites: Iterable[SiteReport], seconds: float, patience: Patience) -> Wait:
    """Return whom a run waits for.

    Args:
        phase: as `RunReport.phase`.
        sites: as they are, in the roster's order.
        seconds: since the coordinator's process began.
        patience: what the coordinator knows besides.
    """
    sites = tuple(sites)
    gathers = phase in GATHERS
    if patience.awaited:
        # Who has had no time to answer is not late.
        is_late = seconds - patience.began >= _SECONDS_UNTIL_LATE
        awaited = [site for site in sites if is_late and site.name in patience.awaited]
        # Where sites are to return, who has returned since the coordinator looked is there.
        awaited = [site for site in awaited if not (gathers and site.state in _THERE)]
    else:
        gone = {site.name for site in sites if site.state == SiteState.REFUSED or site.code in GIVEN_UP_CODES}
        awaited = [site for site in sites if gathers and site.state not in _THERE and site.name not in gone]
    return Wait(
        tuple(site.name for site in awaited),
        tuple(site.name for site in awaited if site.state in _NOT_CONNECTED),
        bool(awaited) and all(site.state in _THERE for site in awaited),
        patience.needed if gathers or awaited else 0,
        sum(site.state == SiteState.READY for site in sites),
        max(0.0, seconds - patience.began),
        max(0.0, patience.ends - seconds),
    )
