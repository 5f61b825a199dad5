"""What the travelling app calls: a coordinator's run in a ServerApp, a node's reply to one message in a ClientApp.

The app that Flower carries is a shim: it says of which version it is, and hands over. Everything else is the Hedgerow
that each side's operator has installed, and a version that differs is refused on either side.

`GridCarrier` carries for the coordinator's hub: envelopes as bytes in one record of Flower's messages, over its public
grid. Flower's own `send_and_receive` looks for replies every three seconds; here the hub looks when it likes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hedgerow import __version__
from hedgerow.carriers import answer_at, read_coordinator_file, require_version
from hedgerow.errors import HedgerowError, RemoteProtocolError, UsageError, missing_extra
from hedgerow.plan.fields import escape_for_terminal
from hedgerow.transport.envelope import Fetched

try:
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.serverapp import Grid
except ImportError as error:
    raise missing_extra("flwr", "A run over Flower") from error

RECORD = "hedgerow"
MESSAGE_TYPE = "query"
_SECONDS_TO_LIVE = 3600.0
_MAX_WORD = 64
_NODE_UNAVAILABLE = 5
"""Flower's code for a node whose signs of life have stopped (flwr.common.constant.ErrorCode)."""


class GridCarrier:
    """See `transport.carrier.Carrier`.

    Args:
        grid: what Flower gives a ServerApp.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> Sequence[int]:
        """See `Carrier.nodes`."""
        return list(self._grid.get_node_ids())

    def site_at(self, node: int) -> str:
        """See `Carrier.site_at`: a SuperNode says itself which site it is."""
        return ""

    def push(self, envelopes: Sequence[tuple[int, bytes]]) -> list[str | None]:
        """See `Carrier.push`."""
        messages = [
            Message(record(request=data), dst_node_id=node, message_type=MESSAGE_TYPE, ttl=_SECONDS_TO_LIVE)
            for node, data in envelopes
        ]
        numbers = [number or None for number in self._grid.push_messages(messages)]
        return numbers if len(numbers) == len(envelopes) else [None] * len(envelopes)

    def pull(self, numbers: Iterable[str]) -> list[Fetched]:
        """See `Carrier.pull`."""
        return [_read_fetched(message) for message in self._grid.pull_messages(list(numbers))]


def record(**values: bytes | str) -> RecordDict:
    """One message's content; it names the version of Hedgerow that wrote it."""
    return RecordDict({RECORD: ConfigRecord({"version": __version__, **values})})


def read_content(message: Message) -> dict[str, object]:
    """What a peer's message holds; empty when it is of another kind."""
    found = message.content.get(RECORD)
    return dict(found) if isinstance(found, ConfigRecord) else {}


def _read_fetched(message: Message) -> Fetched:
    number = message.metadata.reply_to_message_id
    if message.has_error():
        # Its text may quote what only the site's owner should read; Flower's code says enough.
        code = message.error.code
        return Fetched(number, None, f"flower-error-{code}", is_away=code == _NODE_UNAVAILABLE)
    content = read_content(message)
    reply = content.get("reply")
    if isinstance(reply, bytes):
        return Fetched(number, reply)
    return Fetched(number, None, _word(content.get("refused")))


def _word(said: object) -> str:
    """A code word that a node sent."""
    letters = "".join(letter for letter in str(said or "") if letter.isascii() and (letter.isalnum() or letter == "-"))
    return letters[:_MAX_WORD] or "malformed"


SITE_KEY = "hedgerow-site"
"""The key of a SuperNode's --node-config that names its site's file."""
COORDINATOR_KEY = "coordinator"
SIMULATION_KEY = "simulation"


def serve(grid: Grid, context: Context, app_version: str) -> None:
    """Run the coordinator whose file the run's configuration names; raises HedgerowError."""
    # A node's process has no use for what a coordinator imports.
    from hedgerow.carriers.coordinator import coordinate, simulate
    from hedgerow.transport.carrier import Patience

    require_version(app_version, "The app")
    folder = str(context.run_config.get(SIMULATION_KEY, ""))
    if folder:
        simulate(grid, GridCarrier(grid), Path(folder), context.run_config)
        return
    file = read_coordinator_file(Path(str(context.run_config.get(COORDINATOR_KEY, ""))))
    coordinate(file, GridCarrier(grid), Patience(repeat=file.repeat, longest_repeat=10.0 * file.repeat))


def reply_to(message: Message, context: Context, app_version: str) -> Message:
    """A node's reply to a message."""
    return Message(content_for(read_content(message), context, app_version), reply_to=message)


def content_for(content: Mapping[str, object], context: Context, app_version: str) -> RecordDict:
    """The content of a reply; a refusal that names its reason when this node does not take part at all."""
    try:
        require_version(app_version, "The app")
        require_version(content.get("version"), "The coordinator")
        request = content.get("request")
        if not isinstance(request, bytes):
            raise RemoteProtocolError("malformed-message", fault="It holds no request.")
        return record(reply=answer_at(site_path(context), str(content["version"]), request))
    except HedgerowError as fault:
        print(f"hedgerow: {escape_for_terminal(str(fault))} ({fault.code})", file=sys.stderr, flush=True)
        return record(refused=fault.code)


def site_path(context: Context) -> Path:
    """The site's file or its node's socket, as the SuperNode's operator named it; in a simulation, the partition's.

    Only --node-config names it: nothing that the coordinator sends can.
    """
    node: Mapping[str, object] = context.node_config
    if SITE_KEY in node:
        return Path(str(node[SITE_KEY]))
    folder = str(context.run_config.get(SIMULATION_KEY, ""))
    # NVFlare's Flower jobs give their nodes a partition too, and a client's name: none may choose a folder for it.
    if folder and "partition-id" in node and "num-partitions" in node and "client-name" not in node:
        from hedgerow.carriers.coordinator import partition_file

        return partition_file(Path(folder), int(str(node["partition-id"])))
    raise UsageError("flower-no-site", site_key=SITE_KEY)
