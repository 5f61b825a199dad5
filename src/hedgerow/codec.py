# SPDX-License-Identifier: Apache-2.0
"""The encoding of everything that crosses a network, is signed, or is stored as a party's state.

A message is a frozen dataclass. Its fields are written in their order, each in the form that its type names::

    @dataclass(frozen=True, slots=True)
    class Echo(Encoded):
        KIND = Kind.ECHO
        node: U16
        manifest: Hash

Every message begins with the same three bytes, the version, and its kind. Numbers are big-endian and of fixed width,
and whatever varies in size has its length before it. A value has exactly one encoding and a reader accepts no other.
It refuses other kinds and versions, lists out of order, bytes after the end, and lengths beyond what is there, before
it allocates anything for them. Refusals are `CodecFault`s, which the rooms above turn into errors of their own.

`docs/wire.md` is made from the declarations (``python -m experiments wire_document``).
"""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass
from enum import Enum, IntEnum
from fractions import Fraction
from hashlib import sha256
from itertools import pairwise
from typing import Annotated, Any, ClassVar, NoReturn, Self, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

MAGIC = b"HRW"
VERSION = 6
"""The version of the wire and of stored states. A peer, journal or state of another version is refused by name."""
HEAD_BYTES = 5
HASH_BYTES = 32
MAX_ROWS = 2**48
"""Most rows of a site, as a roster and its node declare them."""
MAX_TEXT_BYTES = 200
MAX_WORD_BYTES = 64

IntVector = NDArray[np.int64]
# Crockford's alphabet: no letter that sounds or looks like a digit.
_SPOKEN = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_WORD = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-")


class Flaw(Enum):
    """The kinds of faults in bytes, or in a value that is to be written."""

    MALFORMED = "malformed"
    UNKNOWN_VERSION = "unknown version"
    DISORDERED = "nodes twice or out of order"


class CodecFault(ValueError):
    """A refusal of bytes, or of a value to be written; its text has no value of a field in it."""

    def __init__(self, what: str, flaw: Flaw = Flaw.MALFORMED) -> None:
        super().__init__(what)
        self.what, self.flaw = what, flaw


def fail(what: str, flaw: Flaw = Flaw.MALFORMED) -> NoReturn:
    """Raise a CodecFault."""
    raise CodecFault(what, flaw)


def format_spoken(digest: bytes) -> str:
    """Write the first 160 bits of a digest as 8 groups of 4 characters, for reading over the phone.

    With fewer bits the writer of two files could make them agree: a collision of n bits costs about 2^(n/2) tries.
    """
    number = int.from_bytes(digest[:20], "big")
    letters = "".join(_SPOKEN[number >> shift & 31] for shift in range(155, -1, -5))
    return "-".join(letters[start : start + 4] for start in range(0, 32, 4))


def digest(domain: str, *parts: bytes) -> bytes:
    """Return SHA-256 over the domain and the parts, each with its length (8 bytes) before it."""
    hasher = sha256()
    for part in (domain.encode(), *parts):
        hasher.update(len(part).to_bytes(8, "big"))
        hasher.update(part)
    return hasher.digest()


class Source:
    """Bytes that are being read."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes, and move on; raises CodecFault if there are fewer."""
        end = self.at + size
        if end > len(self.data):
            fail("It ends too early.")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def number(self, size: int) -> int:
        """Read an unsigned number of `size` bytes."""
        return int.from_bytes(self.take(size), "big")

    def end(self) -> None:
        """Raise CodecFault unless everything was read."""
        if self.at != len(self.data):
            fail("Bytes follow its end.")


class Form(ABC):
    """The form of a field in bytes."""

    @abstractmethod
    def write(self, value: Any, into: list[bytes]) -> None:
        """Append the value's bytes; raises CodecFault (or OverflowError) for one that no reader takes."""

    @abstractmethod
    def read(self, source: Source) -> Any:
        """Read the next value; raises CodecFault."""

    @abstractmethod
    def __str__(self) -> str:
        """Return the form in words, for docs/wire.md."""


@dataclass(frozen=True)
class Unsigned(Form):
    """An unsigned number of `size` bytes, from `least` to `most`."""

    size: int
    least: int = 0
    most: int | None = None

    def write(self, value: int, into: list[bytes]) -> None:
        into.append(self.within(value).to_bytes(self.size, "big"))

    def read(self, source: Source) -> int:
        return self.within(int.from_bytes(source.take(self.size), "big"))

    def within(self, value: int) -> int:
        """Return the value if it is within the bounds; raises CodecFault."""
        if value < self.least or (self.most is not None and value > self.most):
            fail("A number is out of its range.")
        return value

    def __str__(self) -> str:
        bounds = f", {self.least} to {self.most}" if self.most is not None else f", at least {self.least}"
        return f"u{8 * self.size}" + (bounds if self.least or self.most is not None else "")


@dataclass(frozen=True)
class Real(Form):
    """A double of IEEE 754 from `least` to `most`, and no NaN."""

    least: float = -math.inf
    most: float = math.inf

    def write(self, value: float, into: list[bytes]) -> None:
        into.append(struct.pack(">d", self._within(value)))

    def read(self, source: Source) -> float:
        return self._within(float(struct.unpack(">d", source.take(8))[0]))

    def _within(self, value: float) -> float:
        if not self.least <= value <= self.most:
            fail("A field that should be a number is not one, or is out of its range.")
        return value

    def __str__(self) -> str:
        return f"double, {self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class Fixed(Form):
    """Exactly `size` bytes."""

    size: int

    def write(self, value: bytes, into: list[bytes]) -> None:
        if len(value) != self.size:
            fail(f"A field of {self.size} bytes has {len(value)}.")
        into.append(value)

    def read(self, source: Source) -> bytes:
        return source.take(self.size)

    def __str__(self) -> str:
        return f"{self.size} bytes"


@dataclass(frozen=True)
class Blob(Form):
    """Bytes with their length before them, at most `most`."""

    most: int = (1 << 32) - 1

    def write(self, value: bytes, into: list[bytes]) -> None:
        if len(value) > self.most:
            fail("A field is too long.")
        into += (len(value).to_bytes(4, "big"), value)

    def read(self, source: Source) -> bytes:
        size = source.number(4)
        if size > self.most:
            fail("A field is too long.")
        return source.take(size)

    def __str__(self) -> str:
        return "u32 length, bytes" + (f" (at most {self.most})" if self.most < (1 << 32) - 1 else "")


@dataclass(frozen=True)
class Text(Form):
    """UTF-8 of at most `most` bytes, with their number in one byte before it.

    A text that `is_shown` has printable characters only, so it drives no terminal.
    """

    most: int = MAX_TEXT_BYTES
    is_shown: bool = False

    def write(self, value: str, into: list[bytes]) -> None:
        raw = value.encode()
        self._check(value, len(raw))
        into += (bytes((len(raw),)), raw)

    def read(self, source: Source) -> str:
        raw = source.take(source.number(1))
        try:
            value = raw.decode()
        except UnicodeDecodeError:
            fail("A text is not UTF-8.")
        self._check(value, len(raw))
        return value

    def _check(self, value: str, size: int) -> None:
        if size > self.most or (self.is_shown and not value.isprintable()):
            fail("A text is too long, or cannot be shown.")

    def __str__(self) -> str:
        return f"u8 length, UTF-8 (at most {self.most} bytes{', all printable' if self.is_shown else ''})"


@dataclass(frozen=True)
class Word(Form):
    """A code word: lower-case letters, digits and hyphens only.

    It is shown to people and put into logs.
    """

    least: int = 1

    def write(self, value: str, into: list[bytes]) -> None:
        raw = self._check(value.encode("ascii", "replace"))
        into += (bytes((len(raw),)), raw)

    def read(self, source: Source) -> str:
        return self._check(source.take(source.number(1))).decode("ascii")

    def _check(self, raw: bytes) -> bytes:
        if not self.least <= len(raw) <= MAX_WORD_BYTES or not _WORD.issuperset(raw):
            fail("A field that should be a code word is not one.")
        return raw

    def __str__(self) -> str:
        return f"u8 length, {self.least} to {MAX_WORD_BYTES} of a-z, 0-9 and -"


@dataclass(frozen=True)
class Member(Form):
    """A member of an enumeration: a number in one byte, or a word."""

    members: type[Enum]

    def write(self, value: Enum, into: list[bytes]) -> None:
        self._form.write(value.value, into)

    def read(self, source: Source) -> Enum:
        try:
            return self.members(self._form.read(source))
        except CodecFault:
            raise
        except ValueError:
            fail("A field has none of its values.")

    @property
    def _form(self) -> Form:
        return _BYTE if issubclass(self.members, IntEnum) else _WORD_FORM

    def __str__(self) -> str:
        if issubclass(self.members, IntEnum):
            return "u8: " + ", ".join(f"{member.value} {member.name.lower()}" for member in self.members)
        return "word: " + ", ".join(str(member.value) for member in self.members)


class Flag(Form):
    """Yes or no, in one byte: 1 or 0."""

    def write(self, value: bool, into: list[bytes]) -> None:
        into.append(b"\x01" if value else b"\x00")

    def read(self, source: Source) -> bool:
        number = source.number(1)
        if number > 1:
            fail("A flag is neither yes nor no.")
        return bool(number)

    def __str__(self) -> str:
        return "u8: 0 no, 1 yes"


@dataclass(frozen=True)
class Maybe(Form):
    """A value, or `none`: one byte, 1 or 0, and then the value if there is one."""

    form: Form
    none: Any = None

    def write(self, value: Any, into: list[bytes]) -> None:
        is_there = value != self.none
        _FLAG.write(is_there, into)
        if is_there:
            self.form.write(value, into)

    def read(self, source: Source) -> Any:
        return self.form.read(source) if _FLAG.read(source) else self.none

    def __str__(self) -> str:
        return f"u8: 0 none, 1 and then: {self.form}"


@dataclass(frozen=True)
class Ratio(Form):
    """A fraction that is not negative, in lowest terms: numerator and denominator of `size` bytes each."""

    size: int

    def write(self, value: Fraction, into: list[bytes]) -> None:
        into += (part.to_bytes(self.size, "big") for part in (value.numerator, value.denominator))

    def read(self, source: Source) -> Fraction:
        numerator, denominator = source.number(self.size), source.number(self.size)
        if not denominator or math.gcd(numerator, denominator) != 1:
            fail("A fraction is not in lowest terms.")
        return Fraction(numerator, denominator)

    def __str__(self) -> str:
        return f"u{8 * self.size} numerator, u{8 * self.size} denominator, in lowest terms"


class NodeList(Form):
    """Numbers of nodes, strictly increasing."""

    def write(self, value: Sequence[int], into: list[bytes]) -> None:
        self._require_increasing(value)
        into += (len(value).to_bytes(2, "big"), struct.pack(f">{len(value)}H", *value))

    def read(self, source: Source) -> tuple[int, ...]:
        count = source.number(2)
        nodes = struct.unpack(f">{count}H", source.take(2 * count))
        self._require_increasing(nodes)
        return nodes

    def _require_increasing(self, nodes: Sequence[int]) -> None:
        if any(a >= b for a, b in pairwise(nodes)):
            fail("Node numbers are not strictly increasing.", Flaw.DISORDERED)

    def __str__(self) -> str:
        return "u16 count, u16 each, strictly increasing"


@dataclass(frozen=True)
class Many(Form):
    """A list of `least` to `most` values of one form, their count in `size` bytes before them."""

    form: Form
    size: int = 2
    least: int = 0
    most: int | None = None

    def write(self, value: Sequence[Any], into: list[bytes]) -> None:
        Unsigned(self.size, self.least, self.most).write(len(value), into)
        if isinstance(self.form, Fixed):
            if any(len(item) != self.form.size for item in value):
                fail(f"A field of {self.form.size} bytes has another length.")
            into += value
            return
        for item in value:
            self.form.write(item, into)

    def read(self, source: Source) -> tuple[Any, ...]:
        count = Unsigned(self.size, self.least, self.most).read(source)
        if isinstance(self.form, Unsigned) and self.form.size == 1:
            return tuple(map(self.form.within, source.take(count)))
        if isinstance(self.form, Fixed):
            # Lists of keys are megabytes: one slice, and then its parts.
            size = self.form.size
            together = source.take(count * size)
            return tuple([together[start : start + size] for start in range(0, len(together), size)])
        # The list grows as its items are read: a count that is a lie ends with the bytes that are there.
        read = self.form.read
        return tuple([read(source) for _ in range(count)])

    def __str__(self) -> str:
        bounds = f" ({self.least} to {self.most})" if self.most is not None else ""
        bounds = bounds or (f" (at least {self.least})" if self.least else "")
        return f"u{8 * self.size} count{bounds}, each: {self.form}"


@dataclass(frozen=True)
class Dictionary(Form):
    """Values by their keys, which are strictly increasing."""

    keys: Form
    values: Form

    def write(self, value: Mapping[Any, Any], into: list[bytes]) -> None:
        into.append(len(value).to_bytes(2, "big"))
        for key in sorted(value):
            self.keys.write(key, into)
            self.values.write(value[key], into)

    def read(self, source: Source) -> dict[Any, Any]:
        found = {}
        last = None
        for _ in range(source.number(2)):
            key = self.keys.read(source)
            if last is not None and key <= last:
                fail("Keys are not strictly increasing.", Flaw.DISORDERED)
            last, found[key] = key, self.values.read(source)
        return found

    def __str__(self) -> str:
        return f"u16 count, each: {self.keys}, strictly increasing; {self.values}"


@dataclass(frozen=True)
class Integers(Form):
    """Up to `most` integers, as many bytes each (1 to 8) as the widest needs, in two's complement."""

    most: int

    def write(self, value: IntVector, into: list[bytes]) -> None:
        if len(value) > self.most:
            fail("A vector is too long.")
        width = _count_bytes(value)
        into.append(len(value).to_bytes(4, "big") + bytes((width,)))
        octets = np.ascontiguousarray(value, dtype=">i8").view(np.uint8).reshape(len(value), 8)
        into.append(octets[:, 8 - width :].tobytes())

    def read(self, source: Source) -> IntVector:
        count, width = source.number(4), source.number(1)
        if count > self.most or not 1 <= width <= 8:
            fail("A vector is too long, or its integers have no width.")
        octets = np.frombuffer(source.take(count * width), dtype=np.uint8).reshape(count, width)
        # At the top of a word first, and then down to where they belong: the shift brings the sign along.
        wide = np.zeros((count, 8), dtype=np.uint8)
        wide[:, :width] = octets
        values = wide.view(">i8").reshape(count).astype(np.int64)
        values >>= 8 * (8 - width)
        if _count_bytes(values) != width:
            fail("Integers are wider than they need to be.")
        return values

    def __str__(self) -> str:
        return f"u32 count (at most {self.most}), u8 width, so many bytes each in two's complement, no more than needed"


def _count_bytes(values: IntVector) -> int:
    """Return the fewest bytes, 1 to 8, that hold every value in two's complement."""
    if not len(values):
        return 1
    largest, least = int(values.max()), int(values.min())
    bits = 1 + max(largest.bit_length() if largest >= 0 else 0, (~least).bit_length() if least < 0 else 0)
    return max(1, -(-bits // 8))


@dataclass(frozen=True)
class Nested(Form):
    """The fields of another record, one after another, without a head."""

    record: type[Record]

    def write(self, value: Record, into: list[bytes]) -> None:
        value.write_fields(into)

    def read(self, source: Source) -> Record:
        return self.record.read_fields(source)

    def __str__(self) -> str:
        return f"the fields of {self.record.__name__}"


_FLAG, _BYTE, _WORD_FORM = Flag(), Unsigned(1), Word()

U8 = Annotated[int, Unsigned(1)]
U16 = Annotated[int, Unsigned(2)]
U32 = Annotated[int, Unsigned(4)]
U64 = Annotated[int, Unsigned(8)]
YesNo = Annotated[bool, Flag()]
Hash = Annotated[bytes, Fixed(HASH_BYTES)]
Bytes = Annotated[bytes, Blob()]
Line = Annotated[str, Text()]
Shown = Annotated[str, Text(is_shown=True)]
CodeWord = Annotated[str, Word()]
Nodes = Annotated[tuple[int, ...], NodeList()]
Blobs = Annotated[tuple[bytes, ...], Many(Blob())]
BlobByNode = Annotated[Mapping[int, bytes], Dictionary(Unsigned(2), Blob())]


class Record:
    """A frozen dataclass whose fields have forms; it stands inside messages.

    Fields that are not compared come last, and are neither written nor read: they follow from the others.
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def write_fields(self, into: list[bytes]) -> None:
        """Append the fields' bytes; raises CodecFault or OverflowError for what no reader takes."""
        self.check()
        for name, form in layout(type(self)):
            form.write(getattr(self, name), into)

    @classmethod
    def read_fields(cls, source: Source) -> Self:
        """Read the next record; raises CodecFault."""
        record = cls(*[form.read(source) for _, form in layout(cls)])
        record.check()
        return record

    def check(self) -> None:
        """Raise CodecFault for fields that do not go together."""


class Encoded(Record):
    """A record behind a head.

    Without a `KIND`, the kind in the head is its first field.
    """

    __slots__ = ()
    KIND: ClassVar[int | None] = None

    def to_bytes(self) -> bytes:
        """Return its bytes; raises CodecFault or OverflowError for a record that no reader takes."""
        parts = [_BEGINNING if self.KIND is None else head(self.KIND)]
        self.write_fields(parts)
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the record in `data`; raises CodecFault."""
        if kind_in(data) != cls.KIND and cls.KIND is not None:
            fail("It is of another kind.")
        source = Source(data, HEAD_BYTES if cls.KIND is not None else len(_BEGINNING))
        record = cls.read_fields(source)
        source.end()
        return record


_BEGINNING = MAGIC + bytes((VERSION,))


def head(kind: int) -> bytes:
    """Return the first 5 bytes of a message of this kind."""
    return _BEGINNING + bytes((kind,))


def kind_in(data: bytes) -> int:
    """Return the kind of the message in `data`; raises CodecFault for another format or version."""
    if len(data) < HEAD_BYTES or data[:3] != MAGIC:
        fail("It is too short or of a foreign format.")
    if data[3] != VERSION:
        fail(f"It is of version {data[3]}; this side has version {VERSION}.", Flaw.UNKNOWN_VERSION)
    return data[4]


_LAYOUTS: dict[type, tuple[tuple[str, Form], ...]] = {}


def layout(record: type[Record]) -> tuple[tuple[str, Form], ...]:
    """Return the fields of a record with their forms, in the order in which they are written.

    A field whose type is itself a record has the form of that record's fields.
    """
    if record not in _LAYOUTS:
        hints = get_type_hints(record, include_extras=True)
        fields = record.__dataclass_fields__.items()
        _LAYOUTS[record] = tuple((name, _choose_form(hints[name])) for name, field in fields if field.compare)
    return _LAYOUTS[record]


def _choose_form(hint: Any) -> Form:
    if isinstance(hint, type) and issubclass(hint, Record):
        return Nested(hint)
    return next(part for part in get_args(hint) if isinstance(part, Form))


def database_version(schema: int) -> int:
    """Return the version of a database with messages of this codec in it.

    It is 905 for version 9 of the schema and 5 of the codec.
    """
    return 100 * schema + VERSION


def with_hash(body: bytes) -> bytes:
    """Return a state's bytes with their SHA-256 after them.

    The hash tells a torn or damaged file from a whole one.
    """
    return body + sha256(body).digest()


def without_hash(data: bytes) -> bytes:
    """Return the body of a stored state; raises CodecFault if its hash does not fit."""
    body = data[:-HASH_BYTES]
    if sha256(body).digest() != data[-HASH_BYTES:]:
        fail("Its hash does not fit.")
    return body
