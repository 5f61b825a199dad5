# SPDX-License-Identifier: Apache-2.0
"""What the travelling app calls: a coordinator's run in a ServerApp, a node's reply to one message in a ClientApp.

The app that Flower carries is a shim: it says of which version it is, and hands over. Everything else is the Hedgerow
that each side's operator has installed, and a version that differs is refused on either side.

`GridCarrier` carries for the coordinator's hub, over Flower's public grid. Flower's own `send_and_receive` looks for
replies every three seconds; here the hub looks when it likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hedgerow.carriers import read_coordinator_file
from hedgerow.carriers.handing import answer_handed_on, fetch_handed_back, hand_on, require_version
from hedgerow.errors import UsageError, missing_extra
from hedgerow.transport.carrier import Fetched, Patience

try:
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.serverapp import Grid
except ImportError as error:
    raise missing_extra("flwr", "A run over Flower") from error

RECORD, FIELD = "hedgerow", "handed"
MESSAGE_TYPE = "query"
_SECONDS_TO_LIVE = 3600.0
_NODE_UNAVAILABLE = 5
"""Flower's code for a node whose signs of life have stopped (flwr.common.constant.ErrorCode)."""


class GridCarrier:
    """Carrier over Flower's grid; see `transport.carrier.Carrier`.

    Args:
        grid: what Flower gives a ServerApp.
    """

    place = "flower"

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> Mapping[int, str]:
        """Return the SuperNodes now connected, without names: each says which site it is."""
        return dict.fromkeys(self._grid.get_node_ids(), "")

    def push(self, envelopes: Sequence[tuple[int, bytes]]) -> list[str | None]:
        """Push one Flower message per envelope, and return Flower's message numbers."""
        messages = [
            Message(wrap(hand_on(data)), dst_node_id=node, message_type=MESSAGE_TYPE, ttl=_SECONDS_TO_LIVE)
            for node, data in envelopes
        ]
        numbers = [number or None for number in self._grid.push_messages(messages)]
        return numbers if len(numbers) == len(envelopes) else [None] * len(envelopes)

    def pull(self, numbers: Iterable[str]) -> list[Fetched]:
        """Pull the replies that have come, with Flower's errors as codes."""
        found = []
        for message in self._grid.pull_messages(list(numbers)):
            number = message.metadata.reply_to_message_id
            if message.has_error():
                # Keep only Flower's code, because the text may quote what only the site's owner should read.
                code = message.error.code
                found.append(Fetched(number, None, f"flower-error-{code}", is_away=code == _NODE_UNAVAILABLE))
            else:
                found.append(fetch_handed_back(number, unwrap(message.content)))
        return found


def wrap(data: bytes) -> RecordDict:
    """Make a message's content: one field of one record."""
    return RecordDict({RECORD: ConfigRecord({FIELD: data})})


def unwrap(content: RecordDict) -> bytes:
    """Return the data given to `wrap`; empty for a message of another kind."""
    found = content.get(RECORD)
    data = found.get(FIELD) if isinstance(found, ConfigRecord) else None
    return data if isinstance(data, bytes) else b""


SITE_KEY = "hedgerow-site"
"""The key of a SuperNode's --node-config that names its site's file."""
COORDINATOR_KEY = "coordinator"


def serve(grid: Grid, context: Context, app_version: str) -> None:
    """Run the coordinator of the file named in the run's configuration; raise HedgerowError."""
    # Imported here, because a node's process does not need the coordinator's imports.
    from hedgerow.carriers.coordinator import coordinate

    require_version(app_version, "The app")
    file = read_coordinator_file(Path(str(context.run_config.get(COORDINATOR_KEY, ""))))
    patience = Patience(repeat=file.repeat, longest_repeat=10.0 * file.repeat)
    coordinate(file, GridCarrier(grid), patience)


def reply_to(message: Message, context: Context, app_version: str) -> Message:
    """Return a node's reply to a message."""

    def find() -> Path:
        require_version(app_version, "The app")
        return site_path(context)

    return Message(wrap(answer_handed_on(find, unwrap(message.content))), reply_to=message)


def site_path(context: Context) -> Path:
    """Return the path of the site's file or of its node's socket, as set by the SuperNode's operator.

    Raises UsageError `flower-no-site` where its --node-config names none.
    """
    node: Mapping[str, object] = context.node_config
    if SITE_KEY not in node:
        raise UsageError("flower-no-site", site_key=SITE_KEY)
    return Path(str(node[SITE_KEY]))
