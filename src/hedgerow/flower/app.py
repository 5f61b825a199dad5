"""What the travelling app calls: a coordinator's run in a ServerApp, a node's reply to one message in a ClientApp.

The app that Flower carries is a shim: it says of which version it is, and hands over. Everything else is the Hedgerow
that each side's operator has installed, and a version that differs is refused on either side.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context, Message
from flwr.serverapp import Grid

from hedgerow import __version__
from hedgerow.flower.coordinator import coordinate
from hedgerow.flower.files import read_coordinator_file
from hedgerow.flower.site import answer
from hedgerow.protocol.errors import HedgerowError, RemoteProtocolError, UsageError
from hedgerow.transport.flower_grid import GridPost, content_of, record

SITE_KEY = "hedgerow-site"
"""The key of a SuperNode's --node-config that names its site's file."""
COORDINATOR_KEY = "coordinator"
SIMULATION_KEY = "simulation"


def serve(grid: Grid, context: Context, app_version: str) -> None:
    """Run the coordinator whose file the run's configuration names; raises HedgerowError."""
    require_version(app_version, "The app")
    folder = str(context.run_config.get(SIMULATION_KEY, ""))
    if folder:
        from hedgerow.flower.simulation import simulate

        simulate(grid, Path(folder), context.run_config)
        return
    coordinate(read_coordinator_file(Path(str(context.run_config.get(COORDINATOR_KEY, "")))), GridPost(grid))


def reply_to(message: Message, context: Context, app_version: str) -> Message:
    """A node's reply; a refusal that names its reason when this node does not take part at all."""
    try:
        content = content_of(message)
        require_version(app_version, "The app")
        require_version(content.get("version"), "The coordinator")
        request = content.get("request")
        if not isinstance(request, bytes):
            raise RemoteProtocolError("A message holds no request.", code="malformed-message")
        return Message(record(reply=answer(site_file(context), request)), reply_to=message)
    except HedgerowError as fault:
        print(f"hedgerow: {fault} ({fault.code})", file=sys.stderr, flush=True)
        return Message(record(refused=fault.code), reply_to=message)


def site_file(context: Context) -> Path:
    """The site's file that the SuperNode's operator named; in a simulation, the one of the partition.

    Only --node-config names it: nothing that the coordinator sends can.
    """
    node: Mapping[str, object] = context.node_config
    if SITE_KEY in node:
        return Path(str(node[SITE_KEY]))
    folder = str(context.run_config.get(SIMULATION_KEY, ""))
    if folder and "partition-id" in node and "num-partitions" in node:
        from hedgerow.flower.simulation import file_of_partition

        return file_of_partition(Path(folder), int(str(node["partition-id"])))
    raise UsageError(
        "This SuperNode does not say which site it is.",
        cause=f"Its --node-config has no {SITE_KEY}.",
        remedy=f"Start it with --node-config '{SITE_KEY}=\"/path/of/site.toml\"'; docs/flower.md has an example.",
        code="flower-no-site",
    )


def require_version(version: object, whose: str) -> None:
    """Raises RemoteProtocolError `flower-version` unless it is the installed one."""
    if version != __version__:
        said = str(version)[:32] if version else "no version"
        raise RemoteProtocolError(
            f"{whose} is of Hedgerow {said}; installed here is {__version__}.",
            cause="The coordinator and this machine were not upgraded together.",
            remedy="Install the same version on every machine, and start the run from that version's repository.",
            code="flower-version",
        )
