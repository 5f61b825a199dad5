# SPDX-License-Identifier: Apache-2.0
"""The engines: what carries a run's messages. `add_engine` makes one exist; a node reads its own table alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hedgerow.plan.registry import Registry
from hedgerow.transport.interface import Address, ListeningHub
from hedgerow.transport.uplinks import UPLINKS, OpenUplink

if TYPE_CHECKING:
    from hedgerow.transport.identities import PinnedRoster, PrivateIdentity

OpenHub = Callable[["PrivateIdentity", "PinnedRoster", Address, bytes, Any], ListeningHub]
"""Opens the coordinator's end, by its identity, the roster, where it listens, the SHA-256 of the plan (empty to let
nodes join whatever plan they name), and who may watch (`grpc_hub.Monitors`, or None), whom an engine need not serve."""
HUBS: Registry[OpenHub] = Registry("engine")


@dataclass(frozen=True)
class Engine:
    """Both ends of an engine.

    Attributes:
        hub: the coordinator's.
        uplink: a node's.
    """

    hub: OpenHub
    uplink: OpenUplink


def add_engine(name: str, engine: Engine) -> None:
    """Add an engine under the name by which `--engine` selects it."""
    UPLINKS[name] = engine.uplink
    HUBS[name] = engine.hub


def _open_grpc_hub(
    identity: PrivateIdentity, roster: PinnedRoster, place: Address, plan_digest: bytes, monitors: Any
) -> ListeningHub:
    # Imported here, because only a process that listens needs a server.
    from hedgerow.transport.grpc_hub import GrpcHub

    return GrpcHub(identity, roster, place, plan_digest=plan_digest, monitors=monitors)


HUBS["grpc"] = _open_grpc_hub
