# SPDX-License-Identifier: Apache-2.0
"""Workers that hold parts of a site's rows as actors of Ray, on this machine or on the cluster that it is told to join.

Needs the extra "shards".
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from hedgerow.client.shards import Shard, StartWorker, WorkerLost
from hedgerow.errors import HedgerowError, UsageError, missing_extra
from hedgerow.plugins import load_agreed

_LOOPBACK = "127.0.0.1"


class AgreedShard(Shard):
    """A shard in a process of its own, which loads the policy's plug-ins before it reads any argument.

    Unpickling an argument with a plug-in's objects would import whatever Python finds under the plug-in's name.
    """

    def __init__(self, plugins: Sequence[str]) -> None:
        load_agreed(plugins)


class _Actor:
    """A `Worker` in an actor of Ray."""

    def __init__(self, ray: Any, handle: Any, plugins: Sequence[str]) -> None:
        self._ray, self._handle, self._plugins = ray, handle, ", ".join(plugins)

    def ask(self, method: str, *arguments: Any) -> Callable[[], Any]:
        """Call a method of the actor, and return a function that waits for the result."""
        asked = getattr(self._handle, method).remote(*arguments)

        def wait() -> Any:
            try:
                return self._ray.get(asked)
            except self._ray.exceptions.RayActorError as lost:
                if self._plugins and lost.actor_init_failed:
                    why = "Where an actor holds the rows it is not installed, or not as the policy names it."
                    raise UsageError("plugin", name=self._plugins, why=why) from None
                raise WorkerLost from None
            except self._ray.exceptions.RayTaskError as fault:
                if isinstance(fault.cause, HedgerowError):
                    raise fault.cause from None
                raise

        return wait


def start_actors(plugins: Sequence[str]) -> StartWorker:
    """Return a function that starts workers in Ray: in RAY_ADDRESS's cluster, or on this machine alone.

    HEDGEROW_RAY_ADDRESS names another address of this machine for a Ray of its own.

    Args:
        plugins: of the node's policy.

    Raises:
        EnvironmentFault: code "missing-extra".
    """
    # Ray reports its use to its makers unless this is set.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Without an address Ray would join any cluster on this machine, even another user's.
    address = os.environ.get("RAY_ADDRESS") or "local"
    alone: dict[str, Any] = {}
    if address == "local":
        # Every user of the machine may write to Ray's usual folder, with its sockets and code, so give it one of its
        # own.
        # Socket names are limited to some 100 bytes, for which macOS's folder of a user is too deep.
        within = os.environ.get("RAY_TMPDIR") or ("/tmp" if sys.platform == "darwin" else None)
        folder = tempfile.mkdtemp(prefix="ray-", dir=within)
        # At any address except the loopback its servers listen to the network.
        own = os.environ.get("HEDGEROW_RAY_ADDRESS") or _LOOPBACK
        alone = {"include_dashboard": False, "_temp_dir": f"{folder}/own", "_node_ip_address": own}
        if own == _LOOPBACK:
            # On Linux, Ray would otherwise replace the loopback by the machine's address in the network.
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        # Registered before Ray's own exit function, which therefore runs first.
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if alone and "ray" not in sys.modules:
        # Any user of the machine reaches Ray's ports, so require a token. Ray requires one by itself from 2.59 on, but
        # keeps it in a file that all users may read. Ray reads these two variables while it is imported.
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    try:
        import ray
        import ray.exceptions
    except ModuleNotFoundError:
        raise missing_extra("ray", "Holding a table in parts") from None
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, configure_logging=False, **alone)
    # An actor that asks for a processor would wait for ever if there are more parts than processors.
    actor = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(AgreedShard)
    return lambda: _Actor(ray, actor.remote(plugins), plugins)
