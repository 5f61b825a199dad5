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
    """A shard in a process of its own, which has loaded what a policy names before it reads any argument: to read one
    that holds a plug-in's objects imports that, whatever Python finds under its name.
    """

    def __init__(self, plugins: Sequence[str]) -> None:
        load_agreed(plugins)


class _Actor:
    """A `Worker` that is an actor of Ray."""

    def __init__(self, ray: Any, handle: Any, plugins: Sequence[str]) -> None:
        self._ray, self._handle, self._plugins = ray, handle, ", ".join(plugins)

    def ask(self, method: str, *arguments: Any) -> Callable[[], Any]:
        """See `Worker.ask`."""
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
    """What starts a worker in Ray: in the cluster that RAY_ADDRESS names, or on this machine alone, at 127.0.0.1.

    HEDGEROW_RAY_ADDRESS names another address of this machine for a Ray of its own.

    Args:
        plugins: of the node's policy.

    Raises:
        EnvironmentFault: code "missing-extra".
    """
    # Ray reports how it is used unless it is told not to.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Without an address it would join a cluster that it finds on this machine, whosever that is.
    address = os.environ.get("RAY_ADDRESS") or "local"
    alone: dict[str, Any] = {}
    if address == "local":
        # Ray lets every user of the machine write to its folder, where its sockets are, and code that it runs.
        # The names of these sockets may be of some 100 bytes, which macOS's own folder for a user leaves no room for.
        within = os.environ.get("RAY_TMPDIR") or ("/tmp" if sys.platform == "darwin" else None)
        folder = tempfile.mkdtemp(prefix="ray-", dir=within)
        # At any other address than this its servers listen to the network.
        own = os.environ.get("HEDGEROW_RAY_ADDRESS") or _LOOPBACK
        alone = {"include_dashboard": False, "_temp_dir": f"{folder}/own", "_node_ip_address": own}
        if own == _LOOPBACK:
            # On Linux, Ray would take it for the address by which the network knows the machine.
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        # Before Ray registers its own end, which comes first then.
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if alone and "ray" not in sys.modules:
        # Any user of the machine reaches its ports, and who has the token runs code here. Ray asks for one by itself
        # from 2.59 on, and keeps it in a file that all users may read; it reads these two as it is imported.
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    try:
        import ray
        import ray.exceptions
    except ModuleNotFoundError:
        raise missing_extra("ray", "Holding a table in parts") from None
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, configure_logging=False, **alone)
    # One that asks for a processor waits for ever where there are more parts than processors.
    actor = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(AgreedShard)
    return lambda: _Actor(ray, actor.remote(plugins), plugins)
