"""The canonical byte encoding: fixed-width big-endian numbers, a length before everything of variable size.

Every message has exactly one encoding, and a reader accepts no other: it refuses unknown kinds and versions, lists out
of order, trailing bytes, and lengths beyond what was announced, before it allocates anything for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from hashlib import sha256
from itertools import pairwise

from hedgerow.secagg.transitions import Code, refuse

MAGIC = b"HSA"
VERSION = 4
HASH_BYTES = 32
MAX_TEXT_BYTES = 200


class Kind(IntEnum):
    """The kind byte of every message and stored state."""

    ROSTER = 1
    PARAMETERS = 2
    KEY_BUNDLE = 3
    KEY_LIST = 4
    NONCE = 5
    NONCE_LIST = 6
    SHARES = 7
    SHARE_DELIVERY = 8
    ACKNOWLEDGEMENT = 9
    READY_LIST = 10
    ROUND_SPEC = 11
    HEADER = 12
    MASKED_VECTOR = 13
    MANIFEST = 14
    UNMASK_REQUEST = 15
    ECHO = 16
    ECHO_CERTIFICATE = 17
    ANSWER = 18
    EPOCH_RECORD = 19
    ENROLMENT_STATE = 20
    PARTICIPANT_STATE = 21
    AGGREGATOR_STATE = 22
    PARTICIPANT_EPOCH = 24
    PARTICIPANT_STEP = 25
    ADVERTISEMENT = 26
    NONCE_DELIVERY = 27
    EPOCH_VIEW = 28


def digest(label: str, *parts: bytes) -> bytes:
    """Returns SHA-256 over the label and the parts, each with its length (8 bytes) before it."""
    hasher = sha256()
    for part in (label.encode(), *parts):
        hasher.update(len(part).to_bytes(8, "big"))
        hasher.update(part)
    return hasher.digest()


class Writer:
    """Builds one message; every method returns the writer."""

    __slots__ = ("_parts",)

    def __init__(self, kind: Kind) -> None:
        self._parts: list[bytes] = [MAGIC, bytes((VERSION, kind))]

    def number(self, value: int, size: int) -> Writer:
        """An unsigned big-endian number of `size` bytes; raises OverflowError when it does not fit."""
        self._parts.append(value.to_bytes(size, "big"))
        return self

    def fixed(self, value: bytes, size: int) -> Writer:
        """Exactly `size` bytes; raises ValueError for another length."""
        if len(value) != size:
            raise ValueError(f"A field of {size} bytes was given {len(value)}.")
        self._parts.append(value)
        return self

    def variable(self, value: bytes) -> Writer:
        """Bytes of any length up to 2^32 - 1, their length before them."""
        self._parts += (len(value).to_bytes(4, "big"), value)
        return self

    def run(self, values: Sequence[bytes], size: int) -> Writer:
        """Byte strings of exactly `size` bytes each, one after another; raises ValueError for another length."""
        for value in values:
            if len(value) != size:
                raise ValueError(f"A field of {size} bytes was given {len(value)}.")
        self._parts += values
        return self

    def text(self, value: str) -> Writer:
        """Text of at most 200 bytes of UTF-8; raises ValueError beyond."""
        raw = value.encode()
        if len(raw) > MAX_TEXT_BYTES:
            raise ValueError(f"A text of {len(raw)} bytes is longer than {MAX_TEXT_BYTES}.")
        return self.number(len(raw), 1).fixed(raw, len(raw))

    def nodes(self, ids: Sequence[int]) -> Writer:
        """A list of node numbers, strictly increasing; raises ValueError otherwise."""
        if any(a >= b for a, b in pairwise(ids)):
            raise ValueError("Node numbers are not strictly increasing.")
        self.number(len(ids), 2)
        for node in ids:
            self.number(node, 2)
        return self

    def items(self, values: Sequence[bytes]) -> Writer:
        """A list of byte strings, each with its length."""
        self.number(len(values), 2)
        for value in values:
            self._parts += (len(value).to_bytes(4, "big"), value)
        return self

    def bytes(self) -> bytes:
        """Returns the message."""
        return b"".join(self._parts)


def sealed_state(body: bytes) -> bytes:
    """Returns a state's bytes with their SHA-256 after them, which tells a torn or damaged file from a whole one."""
    return body + sha256(body).digest()


def unsealed_state(data: bytes) -> bytes:
    """Returns the body of a stored state; raises OwnMistake CORRUPT_STATE when its hash does not fit."""
    body = data[:-HASH_BYTES]
    if sha256(body).digest() != data[-HASH_BYTES:]:
        raise refuse(Code.CORRUPT_STATE)
    return body


class Reader:
    """Reads one message of a known kind; raises Refusal MALFORMED or UNKNOWN_VERSION for anything not canonical."""

    __slots__ = ("_at", "_data", "_peer")

    def __init__(self, data: bytes, kind: Kind, peer: int | str | None = None) -> None:
        self._data, self._at, self._peer = data, 5, peer
        if len(data) < 5 or data[:3] != MAGIC:
            raise refuse(Code.MALFORMED, "It is too short or of a foreign format.", peer)
        if data[3] != VERSION:
            raise refuse(Code.UNKNOWN_VERSION, peer=peer)
        if data[4] != kind:
            raise refuse(Code.MALFORMED, f"It is not a {kind.name}.", peer)

    def fixed(self, size: int) -> bytes:
        """Returns the next `size` bytes."""
        end = self._at + size
        if end > len(self._data):
            raise refuse(Code.MALFORMED, "It ends too early.", self._peer)
        value = self._data[self._at : end]
        self._at = end
        return value

    def run(self, count: int, size: int) -> tuple[bytes, ...]:
        """Returns the next `count` byte strings of `size` bytes each."""
        together = self.fixed(count * size)
        return tuple([together[start : start + size] for start in range(0, len(together), size)])

    def number(self, size: int, least: int = 0, most: int | None = None) -> int:
        """Returns an unsigned number of `size` bytes between `least` and `most`."""
        value = int.from_bytes(self.fixed(size), "big")
        if value < least or (most is not None and value > most):
            raise refuse(Code.MALFORMED, "A number is out of its range.", self._peer)
        return value

    @property
    def is_at_end(self) -> bool:
        """Whether everything was read."""
        return self._at == len(self._data)

    def variable(self) -> bytes:
        """Returns bytes with their length before them."""
        return self.fixed(self.number(4))

    def text(self) -> str:
        """Returns a text of at most 200 bytes."""
        try:
            return self.fixed(self.number(1, most=MAX_TEXT_BYTES)).decode()
        except UnicodeDecodeError as error:
            raise refuse(Code.MALFORMED, "A text is not UTF-8.", self._peer) from error

    def nodes(self) -> tuple[int, ...]:
        """Returns strictly increasing node numbers; raises Refusal REPEATED_NODE otherwise."""
        raw = self.fixed(2 * self.number(2))
        ids = tuple(int.from_bytes(raw[i : i + 2], "big") for i in range(0, len(raw), 2))
        if any(a >= b for a, b in pairwise(ids)):
            raise refuse(Code.REPEATED_NODE, peer=self._peer)
        return ids

    def items(self) -> tuple[bytes, ...]:
        """Returns a list of byte strings."""
        count = self.number(2)
        if 4 * count > len(self._data) - self._at:
            raise refuse(Code.MALFORMED, "It ends too early.", self._peer)
        data, at, values = self._data, self._at, []
        for _ in range(count):
            start = at + 4
            at = start + int.from_bytes(data[at:start], "big")
            # A length that is itself cut short ends beyond the data as well.
            if at > len(data):
                raise refuse(Code.MALFORMED, "It ends too early.", self._peer)
            values.append(data[start:at])
        self._at = at
        return tuple(values)

    def end(self) -> None:
        """Raises Refusal MALFORMED unless everything was read."""
        if self._at != len(self._data):
            raise refuse(Code.MALFORMED, "Bytes follow its end.", self._peer)
