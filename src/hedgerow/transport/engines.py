# SPDX-License-Identifier: Apache-2.0
"""The engines, by name: what carries a run's messages. One line here makes an engine exist."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import SystemRandom
from typing import TYPE_CHECKING, Any

from hedgerow.plan.registry import Registry
from hedgerow.transport.interface import Address, ListeningHub, Uplink

if TYPE_CHECKING:
    from hedgerow.transport.identities import PinnedRoster, PrivateIdentity


@dataclass(frozen=True)
class Engine:
    """Both ends of an engine.

    Attributes:
        hub: opens the coordinator's end, by its identity, the roster, where it listens, the SHA-256 of
            the plan (empty to let nodes join whatever plan they name), and who may watch (`grpc_hub.Monitors`, or
            None), whom an engine need not serve.
        uplink: opens a node's end, by the coordinator's "host:port", the node's identity, the roster, and the SHA-256
            of the plan that its owner agreed to, or empty.
    """

    hub: Callable[[PrivateIdentity, PinnedRoster, Address, bytes, Any], ListeningHub]
    uplink: Callable[[str, PrivateIdentity, PinnedRoster, bytes], Uplink]


ENGINES: Registry[Engine] = Registry("engine")


def add_engine(name: str, engine: Engine) -> None:
    """Add an engine under the name by which `--engine` selects it."""
    ENGINES[name] = engine


def _open_grpc_hub(
    identity: PrivateIdentity, roster: PinnedRoster, place: Address, plan_digest: bytes, monitors: Any
) -> ListeningHub:
    # Imported here, because only a process that listens or dials needs grpc.
    from hedgerow.transport.grpc_hub import GrpcHub

    return GrpcHub(identity, roster, place, plan_digest=plan_digest, monitors=monitors)


def _open_grpc_uplink(address: str, identity: PrivateIdentity, roster: PinnedRoster, plan_digest: bytes) -> Uplink:
    from hedgerow.transport.grpc_link import GrpcUplink

    # It keeps nodes from coming back all at once.
    return GrpcUplink(address, identity, roster, SystemRandom().random, plan_digest=plan_digest)


add_engine("grpc", Engine(_open_grpc_hub, _open_grpc_uplink))
