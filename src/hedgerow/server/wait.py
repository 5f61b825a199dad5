# SPDX-License-Identifier: Apache-2.0
"""Find which sites a run waits for, how many it needs, and how many are ready.

Everything that is shown uses this one answer. The module has no heavy imports, because monitors need neither numba nor
scipy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from hedgerow.protocol.messages import RunState
from hedgerow.protocol.stream import WAITING, SiteReport, SiteState


@dataclass(frozen=True, slots=True)
class Patience:
    """The facts about a wait that only the coordinator knows; empty at a monitor.

    Attributes:
        needed: number of sites that the run needs to go on; 0 if no single number tells it.
        awaited: sites whose answer the phase needs; empty if it needs sites to come.
        began, ends: times on the clock of the report; infinite if unknown.
    """

    needed: int = 0
    awaited: frozenset[str] = frozenset()
    began: float = math.inf
    ends: float = math.inf


@dataclass(frozen=True, slots=True)
class Wait:
    """The sites that a run waits for, as heading, banner, log, page and monitor show them.

    Attributes:
        awaited: names, in the roster's order; empty if the run waits for nobody.
        absent: awaited sites that are not connected.
        is_for_answers: whether all awaited sites are there, so that only their answers are missing.
        needed: number of sites that the run needs to go on; 0 if no single number tells it.
        n_ready: number of sites that are ready.
        seconds, left: how long it has waited, and how long it will wait at most; infinite if unknown.
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
        """Number of needed sites that are missing."""
        return max(0, self.needed - self.n_ready)


GATHERS = {WAITING, RunState.GATHERING.value}
_SECONDS_UNTIL_LATE = 2.0
GIVEN_UP_CODES = {"timeouts-spent", "set-ups-broken", "secret-unrecoverable"}
"""Reasons why a site is not asked any more; its state stays what it was."""
_THERE = {SiteState.READY.value, SiteState.DONE.value}
_NOT_CONNECTED = {SiteState.ABSENT.value, SiteState.LEFT.value}


def find_wait(phase: str, sites: Iterable[SiteReport], seconds: float, patience: Patience) -> Wait:
    """Return the sites that a run waits for.

    Args:
        phase: as `RunReport.phase`.
        sites: the sites' reports, in the roster's order.
        seconds: seconds since the coordinator's process began.
        patience: the facts that only the coordinator knows.
    """
    sites = tuple(sites)
    gathers = phase in GATHERS
    if patience.awaited:
        # A site that has had no time to answer is not late.
        is_late = seconds - patience.began >= _SECONDS_UNTIL_LATE
        awaited = [site for site in sites if is_late and site.name in patience.awaited]
        # Of sites that have to return, leave out those that have returned since the coordinator looked.
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
