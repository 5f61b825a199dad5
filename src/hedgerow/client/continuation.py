"""What a node's session holds in memory only, for engines that start a new process for every message."""

from __future__ import annotations

from hedgerow.client.session import NodeSession
from hedgerow.protocol.script import NodeState
from hedgerow.secagg.enrolment import Enrolment


def kept(session: NodeSession) -> bytes:
    """What the store does not hold and the next message may need, when this process ends between two messages.

    It holds the secrets of a set-up that is under way, and belongs in a private file; empty when there are none.
    """
    if session.state is NodeState.STOPPED:
        # It has refused and said why; what the coordinator still sends on this connection is not for it.
        return session.state.value.encode()
    run = session._run
    if session.state not in (NodeState.INVITED, NodeState.ENROLLING) or run is None:
        return b""
    return session.state.value.encode() + b" " + (b"" if run.enrolment is None else run.enrolment.to_bytes())


def take_up(session: NodeSession, content: bytes) -> None:
    """Go on where the process before this one was, on the same connection: what `kept` gave there.

    Raises OwnMistake CORRUPT_STATE when it cannot be read.
    """
    word, _, enrolment = content.partition(b" ")
    run = session._run
    if content == NodeState.STOPPED.value.encode():
        session.state = NodeState.STOPPED
        return
    if not content or run is None or run.participant is not None:
        return
    session.state = NodeState(word.decode())
    run.enrolment = Enrolment.latest(enrolment) if enrolment else None
