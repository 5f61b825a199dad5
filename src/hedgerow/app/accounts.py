# SPDX-License-Identifier: Apache-2.0
"""The budget book of commands that read tables on this machine: where it stands, and whose account is charged."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hedgerow.app.inputs import is_terminal, says_yes
from hedgerow.app.output import note, warn
from hedgerow.client.budget import BOOK, find_near_name
from hedgerow.data.databases import find_database_file
from hedgerow.data.sources import Location, file_path, is_url
from hedgerow.errors import PolicyRefusal, UsageError
from hedgerow.local.accounts import Account, BookStore, open_outer_budgets
from hedgerow.plan.fields import text


@dataclass(frozen=True)
class AccountOptions:
    """The account that a command charges.

    Attributes:
        data_set: whose rows they are, as their owner calls them; None for all tables of the folder.
        book: the file that keeps the account; None for the one beside the data.
        no_book: keep no account at all.
    """

    data_set: str | None = None
    book: str | None = None
    no_book: bool = False


def open_account(options: AccountOptions, tables: Iterable[Location], out: Path | None) -> Account:
    """Open the books that a command charges and return their account; nothing is spent yet.

    Tables of several folders are charged in the book of each folder, so that every book counts all runs over its rows.

    Args:
        tables: that the command reads.
        out: a file that the command writes, beside which a book stands that has no place beside the data.

    Raises:
        UsageError: for a book beside --no-book, and where neither folder takes a book.
        PolicyRefusal: code "not-agreed": a person at the terminal says that a new name, which is nearly one that the
            book has, means the same people. Without a terminal it is warned of.
        EnvironmentFault: a book cannot be read or written.
    """
    if options.no_book:
        if options.book is not None or options.data_set is not None:
            given = "--data-set" if options.book is None else "--book"
            raise UsageError("usage-beside", option=given, other="--no-book")
        return Account()
    data_set = "" if options.data_set is None else text(options.data_set, "--data-set")
    tables = list(tables)
    places = [Path(options.book)] if options.book is not None else _find_places(tables, out)
    stores = [BookStore(place.resolve()) for place in places]
    folders = {folder for table in tables if (folder := _find_folder(table)) is not None}
    found = {book.resolve() for folder in folders for book in folder.glob("*-budget.db")}
    if beside := ", ".join(map(str, sorted(found - {store.path for store in stores}))):
        note(f"What these books beside the data count is not added up here: {beside}. If one of them is of the same "
             "people, give it with --book.")  # fmt: skip
    for store in stores:
        known = {line.data_set for line in store.lines("")}
        if data_set and (near := find_near_name(data_set, known)) is not None:
            said = f"{data_set!r} begins a new account beside {near!r} in {store.path}"
            if not is_terminal():
                warn(f"{said}. If both mean the same people, give the name that the book has: what is spent adds up.")
            elif not says_yes(f"{said}. Are these other people?"):
                raise PolicyRefusal("not-agreed")
    # A program that has opened a `hedgerow.budget` may have started this command.
    return Account([*stores, *open_outer_budgets()], data_set, n_told=len(stores))


def _find_places(tables: Iterable[Location], out: Path | None) -> list[Path]:
    """Return the books beside tables and databases' files, and beside the output for what has no file."""
    places, others = list[Path](), list[str]()
    for table in tables:
        folder = _find_folder(table)
        # A book that is there is used, even where it cannot be written: it may hold earlier runs over these rows.
        if folder is not None and ((folder / BOOK).exists() or _takes_book(folder / BOOK)):
            places.append(folder / BOOK)
        else:
            others.append("a database" if folder is None else str(folder))
    if others:
        if out is None or not _takes_book(out.resolve().parent / BOOK):
            missing = f"--book FILE, for no budget book can stand beside the data ({others[0]}), or --no-book,"
            raise UsageError("usage-missing", missing=missing)
        places.append(out.resolve().parent / BOOK)
        note(f"No budget book can stand beside the data ({others[0]}): what this costs is counted in {places[-1]}.")
    return list(dict.fromkeys(places))


def _find_folder(table: Location) -> Path | None:
    file = find_database_file(os.fspath(table)) if is_url(table) else file_path(table)
    return None if file is None else Path(file).resolve().parent


def _takes_book(place: Path) -> bool:
    return os.access(place.parent, os.W_OK | os.X_OK)
