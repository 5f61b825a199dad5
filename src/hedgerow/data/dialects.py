"""How a CSV file is written: its separator, its decimal mark and its encoding.

All three follow from the file's header, or from what stands behind the file's name, and never from a row: a guess that
one row could turn would change what all others count as. The rules:

    separator     of , ; tab | the one that cuts the header into the most names, the comma where none is ahead; or what
                  a first line such as "sep=;" says, as spreadsheets write it
    decimal mark  a comma where the separator is a semicolon, else a point. Where it is a comma, "3,5" is 3.5, and
                  "3.5" still is, for each cell is read by itself; a cell with both, such as "1.234,5", is no number
    encoding      UTF-8, or UTF-16 if the file begins with its mark; the others have none, so they have to be declared

A declaration is written behind the file's name, wherever a table may be named; the parts that it does not name
follow from the header:

    north.csv#encoding=cp1252
    north.csv#separator=tab,decimal=comma,encoding=latin-1
"""

from __future__ import annotations

import codecs
import csv
import functools
import io
import os
import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hedgerow.errors import UsageError

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
"""In the order in which they are preferred, by the words of a declaration."""
DECIMALS = {"point": False, "comma": True}
_UNICODE = ("utf-8", "utf-16")
_PARTS = ("separator", "decimal", "encoding")
_DECLARATION = re.compile(rf"#((?:{'|'.join(_PARTS)})=[^#/]*)$")
_FIRST_LINE = re.compile(r"sep=([,;|\t])\r?\n", re.IGNORECASE)
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True)
class Declared:
    """What is declared behind a file's name; None for what follows from the header."""

    separator: str | None = None
    has_decimal_commas: bool | None = None
    encoding: str | None = None


@dataclass(frozen=True)
class Header:
    """A file's header and how the file is written.

    Attributes:
        names: of the columns, without spaces around them; none in a file without a header.
        n_rows: the number of rows up to its end: it may follow empty lines.
        is_last: whether not one character follows.
        separator: one character.
        has_decimal_commas: whether "3,5" is a number.
        encoding: Python's name of it.
    """

    names: tuple[str, ...]
    n_rows: int
    is_last: bool
    separator: str
    has_decimal_commas: bool
    encoding: str

    @property
    def is_unicode(self) -> bool:
        """Whether its text is UTF-8, or made so before it is cut into cells; else one byte is one character."""
        return self.encoding in _UNICODE

    def decoded(self, cells: Any) -> Any:
        """Cells of one byte per character, read as Latin-1, as text in the file's own encoding.

        Args: cells: binary [n], UTF-8.
        """
        moved = _moved_characters(self.encoding)
        if not moved:
            return cells
        texts = cells.cast(pa.string())
        pattern = "[" + "".join(f"\\x{{{ord(character):x}}}" for character, _ in moved) + "]"
        if not pc.any(pc.match_substring_regex(texts, pattern)).as_py():
            return cells
        encoded = texts.dictionary_encode()
        translation = str.maketrans(dict(moved))
        own = [text.translate(translation) for text in encoded.dictionary.to_pylist()]
        return pa.array(own, pa.string()).take(encoded.indices).cast(pa.binary())


def without_declaration(location: str) -> tuple[str, str]:
    """A file's name, and what is declared behind it, "" for nothing.

    A file that itself bears such a name is read by it: so the owner of a folder of arrivals declares.
    """
    found = _DECLARATION.search(location)
    if found is None:
        return location, ""
    return (location if os.path.isfile(location) else location[: found.start()]), found[1]


def plain_name(name: str) -> str:
    """A file's name without a declaration, whether there is such a file or not."""
    return _DECLARATION.sub("", name)


def declared(text: str) -> Declared:
    """What a declaration says; UsageError for words that it cannot say."""
    parts: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in _PARTS or name in parts:
            raise UsageError("csv-declaration", text=text, part=part)
        parts[name] = value.strip()
    separator, decimal, encoding = (parts.get(name) for name in _PARTS)
    if separator is not None and separator not in SEPARATORS:
        raise UsageError("csv-declaration", text=text, part=f"separator={separator}")
    if decimal is not None and decimal not in DECIMALS:
        raise UsageError("csv-declaration", text=text, part=f"decimal={decimal}")
    if encoding is not None:
        try:
            encoding = _encoding(encoding)
        except LookupError:
            raise UsageError("csv-declaration", text=text, part=f"encoding={encoding}") from None
    return Declared(
        None if separator is None else SEPARATORS[separator], None if decimal is None else DECIMALS[decimal], encoding
    )


def header_of(first: bytes, is_whole: bool, declaration: Declared) -> Header:
    """The header in the first bytes of a file; see the head of this module for the rules.

    Bytes that its encoding does not know are kept as lone surrogates: they matter only in names.

    Args: is_whole: whether these are all bytes of the file.
    """
    marked = "utf-8" if first.startswith(codecs.BOM_UTF8) else "utf-16" if first.startswith(_UTF16_MARKS) else None
    encoding = marked or declaration.encoding or "utf-8"
    # Of UTF-16, the first bytes may end in the middle of a character.
    errors = "ignore" if encoding == "utf-16" else "surrogateescape"
    text = first.decode("utf-8-sig" if encoding == "utf-8" else encoding, errors=errors)
    said = _FIRST_LINE.match(text)
    text = text[said.end() :] if said else text
    cut = [_cut(text, separator) for separator in SEPARATORS.values()]
    separators = list(SEPARATORS.values())
    separator = declaration.separator or (said[1] if said else None)
    if separator is None:
        separator = separators[max(range(len(cut)), key=lambda index: len(cut[index][0]))]
    names, n_rows, is_last = cut[separators.index(separator)]
    has_commas = declaration.has_decimal_commas
    return Header(
        tuple(name.strip() for name in names),
        n_rows + (1 if said else 0),
        is_whole and is_last,
        separator,
        separator == ";" if has_commas is None else has_commas,
        encoding,
    )


def as_utf8(stream: Any) -> Any:
    """A stream of UTF-16 as one of UTF-8; what is no character becomes the mark for that, in its own cell only."""
    return pa.PythonFile(_Recoded(stream), mode="r")


class _Recoded(io.RawIOBase):
    """The bytes of a UTF-16 stream, in UTF-8."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
        self._waiting = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes; none at the end."""
        is_over = False
        while not is_over and (size < 0 or len(self._waiting) < size):
            found = self._stream.read(max(size, 1 << 16))
            is_over = not found
            self._waiting += self._decoder.decode(found, is_over).encode(errors="replace")
        size = len(self._waiting) if size < 0 else size
        answer, self._waiting = self._waiting[:size], self._waiting[size:]
        return answer


def _cut(text: str, separator: str) -> tuple[list[str], int, bool]:
    """The fields of the first row that is not empty, the number of rows up to its end, and whether nothing follows."""
    stream = io.StringIO(text, newline="")
    rows = csv.reader(stream, delimiter=separator)
    n_rows, names = next(((count, row) for count, row in enumerate(rows, start=1) if row), (0, []))
    return names, n_rows, not stream.read()


def _encoding(word: str) -> str:
    """Python's name of a declared encoding: of Unicode's, or one with a byte for each character, ASCII among them.

    LookupError for any other. Latin-1 is read as Windows-1252, as browsers do: it has the same characters and more.
    """
    name = codecs.lookup(word).name
    name = {"utf-8-sig": "utf-8", "iso8859-1": "cp1252"}.get(name, name)
    if name not in _UNICODE:
        try:
            is_plain = len(_all_characters(name)) == 256 and bytes(range(128)).decode(name) == _ASCII
        except (TypeError, ValueError):
            is_plain = False
        if not is_plain:
            raise LookupError(word)
    return name


_ASCII = bytes(range(128)).decode("ascii")


@functools.cache
def _all_characters(encoding: str) -> str:
    """The character of each byte; bytes that the encoding leaves open stand for themselves, as in Latin-1."""
    found = (bytes([byte]).decode(encoding, errors="ignore") or chr(byte) for byte in range(256))
    return "".join(found)


@functools.cache
def _moved_characters(encoding: str) -> tuple[tuple[str, str], ...]:
    """Characters of Latin-1, and what the same byte is in the encoding, where that is another one."""
    return tuple((chr(byte), own) for byte, own in enumerate(_all_characters(encoding)) if own != chr(byte))
