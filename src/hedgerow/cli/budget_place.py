"""Where a node's budget book is: its state folder remembers, so that `hedgerow ledger FOLDER` finds it."""

from __future__ import annotations

import os
from pathlib import Path

from hedgerow.errors import EnvironmentFault

OLD_BOOK = "budget.db"
"""Earlier versions kept the book in the state folder, under this name."""
_PLACE = "budget.path"


def note_book(folder: Path, book: Path) -> Path:
    """Remember in the state folder where the book is; returns it. EnvironmentFault when that cannot be written."""
    text = f"{book.resolve()}\n".encode()
    place = folder / _PLACE
    try:
        if not place.exists() or place.read_bytes() != text:
            descriptor = os.open(place, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(text)
    except OSError as fault:
        raise EnvironmentFault(
            f"{place} could not be written: {fault.strerror or fault}.",
            cause="The disk is full, or the folder may not be written to.",
            remedy="Free some space, or give another folder with --state.",
            code="disk-full",
        ) from fault
    return book


def book_of(given: Path) -> Path:
    """The book that a path names: a file as it is, a state folder's own."""
    if not given.is_dir():
        return given
    try:
        return Path((given / _PLACE).read_text(encoding="utf-8").rstrip("\n"))
    except (OSError, UnicodeDecodeError):
        return given / OLD_BOOK
