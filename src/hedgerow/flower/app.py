"""What the travelling app calls: a coordinator's run in a ServerApp, a node's reply to one message in a ClientApp.

The app that Flower carries is a shim: it says of which version it is, and hands over. Everything else is the Hedgerow
that each side's operator has installed, and a version that differs is refused on either side.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid

from hedgerow.errors import HedgerowError, RemoteProtocolError, UsageError
from hedgerow.flower import require_version
from hedgerow.flower.grid import GridPost, content_of, record
from hedgerow.flower.hub import Patience
from hedgerow.flower.socket import ask
from hedgerow.plan.fields import shown

SITE_KEY = "hedgerow-site"
"""The key of a SuperNode's --node-config that names its site's file."""
COORDINATOR_KEY = "coordinator"
SIMULATION_KEY = "simulation"


def serve(grid: Grid, context: Context, app_version: str) -> None:
    """Run the coordinator whose file the run's configuration names; raises HedgerowError."""
    # A node's process has no use for what a coordinator imports.
    from hedgerow.flower.coordinator import coordinate
    from hedgerow.flower.files import read_coordinator_file

    require_version(app_version, "The app")
    folder = str(context.run_config.get(SIMULATION_KEY, ""))
    if folder:
        from hedgerow.flower.simulation import simulate

        simulate(grid, Path(folder), context.run_config)
        return
    file = read_coordinator_file(Path(str(context.run_config.get(COORDINATOR_KEY, ""))))
    coordinate(file, GridPost(grid), Patience(repeat=file.repeat, longest_repeat=10.0 * file.repeat))


def reply_to(message: Message, context: Context, app_version: str) -> Message:
    """A node's reply to a message."""
    return Message(content_for(content_of(message), context, app_version), reply_to=message)


def content_for(content: Mapping[str, object], context: Context, app_version: str) -> RecordDict:
    """The content of a reply; a refusal that names its reason when this node does not take part at all."""
    try:
        require_version(app_version, "The app")
        require_version(content.get("version"), "The coordinator")
        request = content.get("request")
        if not isinstance(request, bytes):
            raise RemoteProtocolError("flower-no-request")
        return record(reply=answer(site_path(context), str(content["version"]), request))
    except HedgerowError as fault:
        print(f"hedgerow: {shown(str(fault))} ({fault.code})", file=sys.stderr, flush=True)
        return record(refused=fault.code)


def answer(path: Path, version: str, request: bytes) -> bytes:
    """The reply of the node that listens at this socket, or else of the one whose file this is."""
    if path.is_socket():
        return ask(path, version, request)
    # Seconds of imports, which a resident node has behind it.
    from hedgerow.flower import site

    return site.answer(path, request)


def site_path(context: Context) -> Path:
    """The site's file or its node's socket, as the SuperNode's operator named it; in a simulation, the partition's.

    Only --node-config names it: nothing that the coordinator sends can.
    """
    node: Mapping[str, object] = context.node_config
    if SITE_KEY in node:
        return Path(str(node[SITE_KEY]))
    folder = str(context.run_config.get(SIMULATION_KEY, ""))
    if folder and "partition-id" in node and "num-partitions" in node:
        from hedgerow.flower.simulation import file_of_partition

        return file_of_partition(Path(folder), int(str(node["partition-id"])))
    raise UsageError("flower-no-site", site_key=SITE_KEY)
