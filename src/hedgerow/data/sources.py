# SPDX-License-Identifier: Apache-2.0
"""The door to every source of tables: files by their endings, everything else by a URL's scheme.

One line here adds a source. A missing value is an empty field or one of `columns.MISSING_WORDS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from hedgerow.data.adapted import AdaptedTable, declare
from hedgerow.data.adapters import PLAIN, Adapter
from hedgerow.data.columns import Place
from hedgerow.data.databases import AdbcTable, DuckDbTable, SqlTable, TypedQuery
from hedgerow.data.declarations import plain_name, without_declaration
from hedgerow.data.hashing import Part
from hedgerow.data.omop import locate_query
from hedgerow.data.tables import PARQUET, CsvTable, ParquetTable, Table
from hedgerow.data.units import Records, RowsLeftOut, list_needed_columns, records_from_columns
from hedgerow.errors import DataError
from hedgerow.plan.plan import Plan
from hedgerow.plan.registry import Registry

Location = str | os.PathLike[str]
"""A path, or a URL."""


@dataclass(frozen=True)
class AdaptedLocation(os.PathLike[str]):
    """A location together with the adapter that its tables are read through; see `adapt`."""

    place: str
    adapter: Adapter

    def __fspath__(self) -> str:
        return self.place


def adapt(location: Location, adapter: Adapter) -> Location:
    """Return the location with an adapter for a site that writes tables in its own way."""
    return location if adapter == PLAIN else AdaptedLocation(os.fspath(location), adapter)


SOURCES: Registry[Callable[[str], Table]] = Registry("source of tables")


def add_source(kind: str, open_table: Callable[[str], Table]) -> None:
    """Let tables be read from files of an ending (".csv"), or from URLs of a scheme ("https"; "" for any other)."""
    SOURCES[kind] = open_table


for _ending in (".csv", ".tsv", ".txt", ".data"):
    add_source(_ending, CsvTable)
    add_source(f"{_ending}.gz", CsvTable)
for _ending in PARQUET:
    add_source(_ending, ParquetTable)
add_source("duckdb", DuckDbTable)
add_source("postgres", AdbcTable)
add_source("postgresql", AdbcTable)
add_source("", SqlTable)


def is_url(location: Location) -> bool:
    """Return whether a location is a URL, which is opened again for each reading, and not a file."""
    return "://" in os.fspath(location)


def file_path(location: Location) -> str:
    """Return a file's own path, without the declaration behind its name."""
    return without_declaration(os.fspath(location))[0]


def stamp_files(location: Location) -> list[tuple[int, ...]] | None:
    """Return values that change whenever a table's files change; None for a database.

    For each file: time of writing, size, inode number and time of the last change. The last one is needed because a
    writer can set the first, as a copy that keeps times does. A database may change unseen, so it has None, and so has
    a table that does not exist.
    """
    if is_url(location):
        return None
    place = Path(file_path(location))
    try:
        every = [place, *sorted(place.iterdir())] if place.is_dir() else [place]
        return [(each.st_mtime_ns, each.st_size, each.st_ino, each.st_ctime_ns) for each in map(os.stat, every)]
    except OSError:
        return None


def file_ending(name: str) -> str:
    """Return the ending by which a file is read ("" for none), ignoring a declaration behind its name."""
    name = plain_name(name)
    fitting = [kind for kind in SOURCES if kind.startswith(".") and name.lower().endswith(kind)]
    return max(fitting, key=len, default="")


def open_table(location: Location, plan: Plan | None = None, *, line_breaks: int = 0) -> Table:
    """Open the table at a location.

    Raises DataError or UsageError if it cannot be opened, or if nothing reads such tables.

    Args:
        plan: the plan that the rows are for, if there is one; it defines the query of an OMOP database without a query.
        line_breaks: line breaks that a cell of a CSV may hold, if there is no plan.
    """
    own = location.adapter if isinstance(location, AdaptedLocation) else PLAIN
    place = os.fspath(location)
    if is_url(place):
        place = locate_query(place, plan)
        scheme = place.partition("://")[0].lower()
        table = SOURCES[scheme if scheme in SOURCES else ""](place)
        return table if own == PLAIN else AdaptedTable(table, own)
    ending = file_ending(os.path.basename(place)) or (PARQUET[0] if os.path.isdir(place) else "")
    if not ending:
        raise DataError("data-unknown-format", path=place)
    table = SOURCES[ending](declare(own, place) if SOURCES[ending] is CsvTable else place)
    if isinstance(table, CsvTable):
        table.line_breaks = line_breaks if plan is None else plan.privacy.line_breaks
    return table if own == PLAIN else AdaptedTable(table, own)


def divide_table(table: Table, part: Part | None, unit: str) -> Part | None:
    """Have the table return only a part, if it can.

    A database can by identifiers that are whole numbers, Parquet by row groups.

    Returns:
        The part that the caller still has to select among the table's rows; None if the table returns only that part.
    """
    if part is None:
        return None
    if isinstance(table, ParquetTable) and unit == "record":
        table.keep_groups(part.number, part.n_parts)
        return None
    if isinstance(table, TypedQuery) and pa.types.is_integer(table.types().get(unit, pa.null())):
        table.keep_remainder(unit, part.number, part.n_parts)
        return None
    return part


def read_records(
    location: Location | Table,
    plan: Plan,
    *,
    with_label: bool = True,
    chunk_rows: int = 65536,
    left_out: RowsLeftOut | None = None,
) -> Iterator[Records]:
    """Read a table's records in chunks of at most `chunk_rows` records, in the order of the table.

    A file is opened, and its header checked, before this returns; rows are checked as they are read.

    Args:
        location: a file with an ending that is known, or a URL (a database's with "#" and the query); or the table
            there, which then says how many lines were read.
        with_label: False for prediction, which needs no columns of the label and of the identifier.
        left_out: counts of rows that do not fit, as in `records_from_columns`; then there may be no records at all.
            None raises for the first such row, and for a table without rows.

    Raises:
        DataError: see docs/errors.md for every cause and its code.
    """
    names = list_needed_columns(plan, with_label=with_label)
    table: Table
    if isinstance(location, str | os.PathLike):
        table = open_table(location, plan)
    else:
        table = location
    # Names in files are stripped; those of a Python table, and so of its model, may have spaces around them.
    batches = table.batches([name.strip() for name in names], chunk_rows, left_out)

    def encode() -> Iterator[Records]:
        place = find_place(table)
        for batch in batches:
            yield records_from_columns(
                dict(zip(names, batch, strict=True)),
                plan,
                with_label=with_label,
                table=place,
                left_out=left_out,
            )
            place = replace(place, first_row=place.first_row + len(batch[0]))

    return encode()


def find_place(table: Table) -> Place:
    """Return the place of a table, without a column."""
    return Place(table.source, "", table.first_row, getattr(table, "has_decimal_commas", False))


def column_names(location: Location) -> list[str]:
    """Return a table's column names in order, stripped; raise DataError if it has no header."""
    return open_table(location).names()
