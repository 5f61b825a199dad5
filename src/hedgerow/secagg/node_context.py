"""What a node's owner configured, outside any message."""

from __future__ import annotations

from dataclasses import dataclass

from hedgerow.secagg._primitives.identity import Identity
from hedgerow.secagg.roster import NodePolicy, Roster


@dataclass(frozen=True, slots=True)
class NodeContext:
    """A node's signing key, the roster it pinned, and its owner's policy."""

    identity: Identity
    roster: Roster
    policy: NodePolicy
