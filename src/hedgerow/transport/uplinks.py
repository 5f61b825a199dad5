# SPDX-License-Identifier: Apache-2.0
"""The nodes' ends of the engines, by name. `transport/engines.py` has the coordinators' ends and adds an engine."""

from __future__ import annotations

from collections.abc import Callable
from random import SystemRandom
from typing import TYPE_CHECKING

from hedgerow.plan.registry import Registry
from hedgerow.transport.interface import Uplink

if TYPE_CHECKING:
    from hedgerow.transport.identities import PinnedRoster, PrivateIdentity

OpenUplink = Callable[[str, "PrivateIdentity", "PinnedRoster", bytes], Uplink]
"""Opens a node's end, by the coordinator's "host:port", the node's identity, the roster, and the SHA-256 of the plan
that its owner agreed to, or empty."""
UPLINKS: Registry[OpenUplink] = Registry("engine")


def _open_grpc_uplink(address: str, identity: PrivateIdentity, roster: PinnedRoster, plan_digest: bytes) -> Uplink:
    # Imported here, because only a process that dials needs grpc.
    from hedgerow.transport.grpc_link import GrpcUplink

    # It keeps nodes from coming back all at once.
    return GrpcUplink(address, identity, roster, SystemRandom().random, plan_digest=plan_digest)


UPLINKS["grpc"] = _open_grpc_uplink
