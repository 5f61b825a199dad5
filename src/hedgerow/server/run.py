"""The coordinator's loop: a hub's events into a session, its messages out, and the plan's three timeouts."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress

from hedgerow.errors import HedgerowError, RemoteProtocolError
from hedgerow.methods.rehearsal import rehearse
from hedgerow.plan.plan import Federation
from hedgerow.protocol.messages import Hello, Stop, Welcome, decode, encode
from hedgerow.protocol.script import RunState
from hedgerow.server.coordinator import Outcome
from hedgerow.server.session import RunSession
from hedgerow.transport.interface import Arrived, Hub, HubEvent, Joined, Left

_LEAST_WAIT = 1.0
"""Seconds: if a deadline passed while this process did not run, what the sites sent meanwhile is read first."""
_MOST_LATE = 4096
"""Messages that are read so, once the deadline is over: who sends without end does not put the timeout off."""


def run_coordinator(session: RunSession, hub: Hub, timeouts: Federation, clock: Callable[[], float]) -> Outcome:
    """Carry a run out.

    Args:
        session: a new session, or one that a journal brought back.
        hub: connected to the nodes; the caller closes it.
        timeouts: `join_timeout` for sites to come or come back, `round_timeout` for an answer, `idle_timeout` for
            enough sites to return when there are too few.
        clock: seconds, from any beginning, that never go back: ``time.monotonic``.

    Raises:
        HedgerowError: why the run was given up.
        EnvironmentFault: the journal could not be written; started again, the run goes on.
    """
    # Compiled code takes a second to load: before the sites come, and not while they wait for a sum.
    rehearse(session.task.with_structure_seed(0))
    phase, deadline, late_until, n_late = -1, 0.0, 0.0, 0
    while session.state is not RunState.OVER:
        event: HubEvent | None = None
        if session.n_phases != phase:
            phase = session.n_phases
            deadline, n_late = clock() + _timeout(session, timeouts), 0
        if event is None and clock() < deadline:
            event = hub.receive(deadline - clock())
        elif event is None:
            late_until = late_until if n_late else clock() + _LEAST_WAIT
            n_late += 1
            # After the second that what is on its way is given, only what is there already is read.
            event = hub.receive(max(0.0, late_until - clock())) if n_late <= _MOST_LATE else None
        if event is None and clock() < deadline:
            continue
        n_late = n_late if event is not None else 0
        for site, message in session.timed_out() if event is None else _react(session, event):
            hub.send(site, message)
    if session.outcome is not None and session.failure is None:
        return session.outcome
    raise session.failure or HedgerowError("The run ended without a model.")


def tell_of_the_end(
    run: tuple[bytes, str], hub: Hub, sites: Collection[str], seconds: float, clock: Callable[[], float]
) -> list[str]:
    """Tell the sites that come back to a run that it has ended.

    Args:
        run: its number, and the code word that says why it has ended.
        hub: connected to the nodes; the caller closes it.
        sites: that may come.
        seconds: to wait for them; all that have come are told at once.
        clock: as for `run_coordinator`.

    Returns:
        The names of those that were in the run and were told.
    """
    run_id, code = run
    told: list[str] = []
    deadline = clock() + seconds
    while set(told) != set(sites) and clock() < deadline:
        event = hub.receive(max(0.0, deadline - clock()))
        if not isinstance(event, Arrived):
            continue
        with suppress(RemoteProtocolError):
            hello = decode(event.message)
            if isinstance(hello, Hello) and hello.run_id == run_id:
                hub.send(event.site, encode(Welcome(hello.connection)))
                hub.send(event.site, encode(Stop(code)))
                told += [event.site] * (event.site not in told)
    return sorted(told)


def _react(session: RunSession, event: HubEvent) -> list[tuple[str, bytes]]:
    match event:
        case Joined(site):
            session.joined(site)
            return []
        case Left(site, reason):
            return session.left(site, reason)
        case Arrived(site, message):
            return session.arrived(site, message)


def _timeout(session: RunSession, timeouts: Federation) -> float:
    if session.waits_for_joining:
        return timeouts.join_timeout
    return timeouts.idle_timeout if session.is_stalled else timeouts.round_timeout
