"""Engine `flower`, Flower's side: envelopes as bytes in one record of Flower's messages, over its public grid.

Flower's own `send_and_receive` looks for replies every three seconds; here the hub looks when it likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hedgerow import __version__
from hedgerow.errors import missing_extra
from hedgerow.flower.hub import Fetched

try:
    from flwr.app import ConfigRecord, Message, RecordDict
    from flwr.serverapp import Grid
except ImportError as error:
    raise missing_extra("flwr", "The engine `flower`") from error

RECORD = "hedgerow"
MESSAGE_TYPE = "query"
_SECONDS_TO_LIVE = 3600.0
_LONGEST_WORD = 64
_NODE_UNAVAILABLE = 5
"""Flower's code for a node whose signs of life have stopped (flwr.common.constant.ErrorCode)."""


class GridPost:
    """See `hub.Post`. Args: grid: what Flower gives a ServerApp."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> Sequence[int]:
        """See `Post.nodes`."""
        return list(self._grid.get_node_ids())

    def push(self, letters: Sequence[tuple[int, bytes]]) -> list[str | None]:
        """See `Post.push`."""
        messages = [
            Message(record(request=data), dst_node_id=node, message_type=MESSAGE_TYPE, ttl=_SECONDS_TO_LIVE)
            for node, data in letters
        ]
        numbers = [number or None for number in self._grid.push_messages(messages)]
        return numbers if len(numbers) == len(letters) else [None] * len(letters)

    def pull(self, numbers: Iterable[str]) -> list[Fetched]:
        """See `Post.pull`."""
        return [_fetched(message) for message in self._grid.pull_messages(list(numbers))]


def record(**values: bytes | str) -> RecordDict:
    """One message's content; it names the version of Hedgerow that wrote it."""
    return RecordDict({RECORD: ConfigRecord({"version": __version__, **values})})


def content_of(message: Message) -> dict[str, object]:
    """What a peer's message holds; empty when it is of another kind."""
    found = message.content.get(RECORD)
    return dict(found) if isinstance(found, ConfigRecord) else {}


def _fetched(message: Message) -> Fetched:
    number = message.metadata.reply_to_message_id
    if message.has_error():
        # Its text may quote what only the site's owner should read; Flower's code says enough.
        code = message.error.code
        return Fetched(number, None, f"flower-error-{code}", is_away=code == _NODE_UNAVAILABLE)
    content = content_of(message)
    reply = content.get("reply")
    if isinstance(reply, bytes):
        return Fetched(number, reply)
    return Fetched(number, None, _word(content.get("refused")))


def _word(said: object) -> str:
    """A code word that a node sent."""
    letters = "".join(letter for letter in str(said or "") if letter.isascii() and (letter.isalnum() or letter == "-"))
    return letters[:_LONGEST_WORD] or "malformed"
