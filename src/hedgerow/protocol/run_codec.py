"""The bytes of a run's messages: fixed-width big-endian numbers, a length before everything of variable size.

Every message has exactly one encoding and the reader accepts no other; lengths are checked against what is there
before anything is allocated for them.
"""

from __future__ import annotations

import math
import struct

import numpy as np

from hedgerow.protocol.errors import RemoteProtocolError
from hedgerow.protocol.queries import IntVector

MAGIC = b"HRM"
VERSION = 3
"""2: a round's spec names the epoch that drew the trees' seed, and a site is shown that epoch before any other."""
HASH_BYTES = 32
MAX_MESSAGE_BYTES = 1 << 27
"""No message of a run is longer; an engine may cut a peer off that sends more."""
MAX_PLAN_BYTES = 1 << 22
MAX_MODEL_BYTES = 1 << 26
MAX_CODE_BYTES = 64
MAX_ENTRIES = 1 << 22
MAX_RELEASES = 1 << 16


def malformed(what: str) -> RemoteProtocolError:
    """The error for bytes that are no message; `what` names a field, never its content."""
    return RemoteProtocolError(
        f"A message of a run is malformed: {what}.",
        cause="It was cut or altered on its way, or the peer runs another version.",
        remedy="Compare the installed versions of hedgerow.",
        code="malformed-message",
    )


class MessageWriter:
    """Builds one message; every method returns the writer."""

    __slots__ = ("_parts",)

    def __init__(self, kind: int) -> None:
        self._parts: list[bytes] = [MAGIC, bytes((VERSION, kind))]

    def number(self, value: int, size: int) -> MessageWriter:
        """An unsigned number of `size` bytes; raises OverflowError when it does not fit."""
        self._parts.append(value.to_bytes(size, "big"))
        return self

    def real(self, value: float) -> MessageWriter:
        """A double; raises ValueError for a NaN."""
        if math.isnan(value):
            raise ValueError("A NaN has no place in a message.")
        self._parts.append(struct.pack(">d", value))
        return self

    def hash(self, value: bytes) -> MessageWriter:
        """32 bytes; raises ValueError for another length."""
        if len(value) != HASH_BYTES:
            raise ValueError(f"A hash has {HASH_BYTES} bytes, not {len(value)}.")
        self._parts.append(value)
        return self

    def blob(self, value: bytes) -> MessageWriter:
        """Bytes of any length, their length before them."""
        self.number(len(value), 4)
        self._parts.append(value)
        return self

    def word(self, value: str) -> MessageWriter:
        """A code word of at most 64 bytes of ASCII."""
        raw = value.encode("ascii")
        if not 1 <= len(raw) <= MAX_CODE_BYTES:
            raise ValueError(f"A code word has 1 to {MAX_CODE_BYTES} bytes, not {len(raw)}.")
        self.number(len(raw), 1)
        self._parts.append(raw)
        return self

    def vector(self, values: IntVector) -> MessageWriter:
        """Integers: how many, the fewest bytes that hold each of them (1 to 8), then all in two's complement."""
        width = _width_of(values)
        self.number(len(values), 4).number(width, 1)
        octets = np.ascontiguousarray(values, dtype=">i8").view(np.uint8).reshape(len(values), 8)
        self._parts.append(octets[:, 8 - width :].tobytes())
        return self

    def bytes(self) -> bytes:
        """The message."""
        return b"".join(self._parts)


class MessageReader:
    """Reads one message; raises RemoteProtocolError for anything that no writer wrote."""

    __slots__ = ("_at", "_data", "kind")

    def __init__(self, data: bytes) -> None:
        if len(data) < 5 or data[:3] != MAGIC:
            raise malformed("it is too short or of a foreign format")
        if len(data) > MAX_MESSAGE_BYTES:
            raise malformed("it is too long")
        if data[3] != VERSION:
            raise RemoteProtocolError(
                f"A message is of version {data[3]} of the protocol; this side speaks version {VERSION}.",
                cause="The parties run different versions of hedgerow.",
                remedy="Install the same version on both sides.",
                code="unknown-version",
            )
        self._data, self._at, self.kind = data, 5, data[4]

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise malformed("it ends too early")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def number(self, size: int, most: int | None = None) -> int:
        """An unsigned number of `size` bytes, at most `most`."""
        value = int.from_bytes(self._take(size), "big")
        if most is not None and value > most:
            raise malformed("a number is out of its range")
        return value

    def real(self) -> float:
        """A double that is no NaN."""
        (value,) = struct.unpack(">d", self._take(8))
        if math.isnan(value):
            raise malformed("a number is none")
        return float(value)

    def hash(self) -> bytes:
        """32 bytes."""
        return self._take(HASH_BYTES)

    def blob(self, most: int = MAX_MESSAGE_BYTES) -> bytes:
        """Bytes with their length before them, at most `most`."""
        return self._take(self.number(4, most))

    def word(self) -> str:
        """A code word: lower-case letters, digits and hyphens only, for it is shown to people and put into logs."""
        raw = self._take(self.number(1, MAX_CODE_BYTES))
        if not raw or any(byte not in b"abcdefghijklmnopqrstuvwxyz0123456789-" for byte in raw):
            raise malformed("a code word is none")
        return raw.decode("ascii")

    def vector(self) -> IntVector:
        """Integers: int64 [n]."""
        count, width = self.number(4, MAX_ENTRIES), self.number(1, 8)
        if width < 1:
            raise malformed("integers have no width")
        octets = np.frombuffer(self._take(count * width), dtype=np.uint8).reshape(count, width)
        # At the top of a word first, and then down to where they belong: the shift brings the sign along.
        wide = np.zeros((count, 8), dtype=np.uint8)
        wide[:, :width] = octets
        values = wide.view(">i8").reshape(count).astype(np.int64)
        values >>= 8 * (8 - width)
        if _width_of(values) != width:
            raise malformed("integers are wider than they need to be")
        return values

    def end(self) -> None:
        """Raises RemoteProtocolError unless everything was read."""
        if self._at != len(self._data):
            raise malformed("bytes follow its end")


def _width_of(values: IntVector) -> int:
    """The fewest bytes, 1 to 8, that hold every value in two's complement."""
    if not len(values):
        return 1
    largest, least = int(values.max()), int(values.min())
    bits = 1 + max(largest.bit_length() if largest >= 0 else 0, (~least).bit_length() if least < 0 else 0)
    return max(1, -(-bits // 8))
