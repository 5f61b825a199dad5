# SPDX-License-Identifier: Apache-2.0
"""The declaration behind a CSV file's name, which says how the file is written; `hedgerow.data.lines` has the rules."""

from __future__ import annotations

import codecs
import functools
import os
import re
from dataclasses import dataclass

from hedgerow.errors import UsageError

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
"""Separators by the words of a declaration, in order of preference."""
DECIMALS = {"point": False, "comma": True}
MAX_SKIPPED = 1_000
"""Most lines of titles before a header."""
_UNICODE = ("utf-8", "utf-16")
_PARTS = ("separator", "decimal", "encoding", "skip", "repeated")
_DECLARATION = re.compile(rf"#((?:{'|'.join(_PARTS)})=[^#/]*)$")


@dataclass(frozen=True)
class Declared:
    """The declaration behind a file's name; None for parts that follow from the header."""

    separator: str | None = None
    has_decimal_commas: bool | None = None
    encoding: str | None = None
    n_skipped: int = 0
    numbers_repeated: bool = False


def without_declaration(location: str) -> tuple[str, str]:
    """Split a location into a file's name and the declaration behind it ("" for none).

    If a file of the whole name exists, the name is not split. So the owner of a folder of arrivals decides.
    """
    found = _DECLARATION.search(location)
    if found is None:
        return location, ""
    return (location if os.path.isfile(location) else location[: found.start()]), found[1]


def plain_name(name: str) -> str:
    """Return a file's name without a declaration, whether the file exists or not."""
    return _DECLARATION.sub("", name)


def parse_declaration(text: str) -> Declared:
    """Parse a declaration; raise UsageError for unknown words."""
    parts: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in _PARTS or name in parts:
            raise UsageError("csv-declaration", text=text, part=part)
        parts[name] = value.strip()
    separator, decimal, encoding, skip, repeated = (parts.get(name) for name in _PARTS)
    if separator is not None and separator not in SEPARATORS:
        raise UsageError("csv-declaration", text=text, part=f"separator={separator}")
    if decimal is not None and decimal not in DECIMALS:
        raise UsageError("csv-declaration", text=text, part=f"decimal={decimal}")
    if encoding is not None:
        try:
            encoding = _find_encoding(encoding)
        except LookupError:
            raise UsageError("csv-declaration", text=text, part=f"encoding={encoding}") from None
    if skip is not None and not (re.fullmatch("[0-9]{1,4}", skip) and int(skip) <= MAX_SKIPPED):
        raise UsageError("csv-declaration", text=text, part=f"skip={skip}")
    if repeated not in (None, "number"):
        raise UsageError("csv-declaration", text=text, part=f"repeated={repeated}")
    return Declared(
        None if separator is None else SEPARATORS[separator],
        None if decimal is None else DECIMALS[decimal],
        encoding,
        int(skip or 0),
        repeated is not None,
    )


def _find_encoding(word: str) -> str:
    """Return Python's name of a declared encoding; raise LookupError for one that is not allowed.

    Allowed are UTF-8, UTF-16, and encodings with one byte per character that include ASCII. Latin-1 is read as
    Windows-1252, as browsers do: it has the same characters and more.
    """
    name = codecs.lookup(word).name
    name = {"utf-8-sig": "utf-8", "iso8859-1": "cp1252"}.get(name, name)
    if name not in _UNICODE:
        try:
            is_plain = len(list_characters(name)) == 256 and bytes(range(128)).decode(name) == _ASCII
        except (TypeError, ValueError):
            is_plain = False
        if not is_plain:
            raise LookupError(word)
    return name


_ASCII = bytes(range(128)).decode("ascii")


@functools.cache
def list_characters(encoding: str) -> str:
    """Return the character of each byte; undefined bytes stand for themselves, as in Latin-1."""
    found = (bytes([byte]).decode(encoding, errors="ignore") or chr(byte) for byte in range(256))
    return "".join(found)
