"""The node's loop: an uplink's events into a session, and its messages out."""

from __future__ import annotations

from collections.abc import Callable

from hedgerow.client.session import NodeSession
from hedgerow.errors import AggregationError
from hedgerow.evaluation.estimates import Evaluation
from hedgerow.protocol.script import NodeState
from hedgerow.protocol.wire.refusals import WireRefusal, known
from hedgerow.transport.interface import Connected, Disconnected, Uplink, UplinkEvent
from hedgerow.trees.ensemble import Ensemble

_LONGEST_WAIT = 60.0
_LEAST_WAIT = 1.0
"""If the time to give up came while this process did not run, what the coordinator sent meanwhile is read first."""
_REST_SECONDS = 1.0
"""After an answer, the round is over by then, or does not wait for this node."""


def handle(session: NodeSession, uplink: Uplink, event: UplinkEvent | None) -> None:
    """Take one event in, or None when there is time to write what can wait, and send what it calls for.

    Raises the node's failure after it was told to the coordinator.

    A message that finds the link down is not kept: after a reconnection both sides say where they stand.
    """
    if event is None:
        answers = session.settle()
    elif isinstance(event, Connected):
        answers = session.connected()
    elif isinstance(event, Disconnected):
        answers = []
        if event.is_final and session.state is not NodeState.FINISHED:
            raise WireRefusal(known(event.reason))
    else:
        answers = session.receive(event)
    for answer in answers:
        uplink.send(answer)
    if session.failure is not None:
        raise session.failure


def run_node(
    session: NodeSession,
    uplink: Uplink,
    clock: Callable[[], float],
    patience: float,
    observer: Callable[[Connected | Disconnected], None] | None = None,
) -> Ensemble | Evaluation:
    """Take part until the run is over.

    Args:
        session: a new session, or one that its store brought back.
        uplink: to the coordinator; the caller closes it.
        clock: seconds, from any beginning, that never go back: ``time.monotonic``.
        patience: seconds without any message after which the node gives up; the plan's own idle timeout counts as
            soon as the node has a plan.
        observer: is told whenever the connection comes or goes.

    Returns:
        The model, or what the evaluation found, as this node's own replica made it.

    Raises:
        HedgerowError: what it refused, or why the run ended.
    """
    last, since = clock(), None
    try:
        while session.state is not NodeState.FINISHED:
            limit = patience if session.plan is None else session.plan.federation.idle_timeout
            until = min(clock() + _LONGEST_WAIT, last + limit)
            rest = (until if since is None else min(until, since + _REST_SECONDS)) - clock()
            event = uplink.receive(_LEAST_WAIT if until <= clock() else max(0.0, rest))
            if event is None and clock() - last >= limit:
                raise AggregationError(
                    f"Nothing was heard of the coordinator for {limit:.0f} s.",
                    cause="It is down, or cannot be reached from here.",
                    remedy="Start the node again when the coordinator is there: it goes on where it was.",
                    code="coordinator-silent",
                )
            if event is not None and not isinstance(event, Disconnected):
                last = clock()
            if observer is not None and isinstance(event, Connected | Disconnected):
                observer(event)
            if event is not None:
                handle(session, uplink, event)
            if since is not None and clock() - since >= _REST_SECONDS:
                handle(session, uplink, None)
            since = (clock() if since is None else since) if session.is_unsettled else None
    finally:
        session.settle()
    result = session.ensemble or session.evaluation
    if result is None:
        raise AggregationError("The run ended without a model.", code="no-model")
    return result
