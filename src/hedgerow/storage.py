# SPDX-License-Identifier: Apache-2.0
"""A SQLite file with transactions that are on the disk when `write` returns, and our own errors."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from hedgerow.errors import EnvironmentFault

Statement = tuple[str, tuple[Any, ...]]

_ROOM_BYTES = 1 << 20
_SECONDS_TO_FIND_OUT, _SECONDS_FOR_A_TURN = 2.0, 60.0
_DISK_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class Database:
    """A SQLite file that only its owner may read.

    Args:
        path: the file; made, with mode 0600, if it is not there, and its folder with mode 0700 if that is not there.
        schema: statements that make the tables (``create table if not exists``).
        version: of the schema; a file of another version is refused.
        is_exclusive: refuse a second process that opens the same file while this one has it.
        upgrades: by version, statements that carry a file of it over to `version`; of others, none is read.
        damaged: the entry of the error for a damaged file, of code "database-damaged".
        unless: a query that gives rows where a file cannot be carried over, and is refused as it is.

    Raises:
        EnvironmentFault: code "disk-full", "database-locked", "database-damaged" or "database-failed"; so do all
            methods. When it is opened, "database-foreign" for a file of another program, "database-newer" or
            "database-older" for another version, "state-permissions" for a file that others than its owner may read or
            write, and "state-owner" for another user's, or with another user's log beside it. A transaction that failed
            has changed nothing.
    """

    def __init__(
        self,
        path: Path,
        schema: str,
        version: int,
        *,
        is_exclusive: bool = True,
        upgrades: Mapping[int, str] | None = None,
        unless: str = "",
        damaged: str = "database-damaged",
    ) -> None:
        self.path, self._upgrades, self._unless, self._damaged = path, upgrades or {}, unless, damaged
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _require_own_file(path)
            # A process that shares a file waits for its turn; one that must have the file alone fails soon.
            patience = _SECONDS_TO_FIND_OUT if is_exclusive else _SECONDS_FOR_A_TURN
            self._connection = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False)
        except OSError as fault:
            raise EnvironmentFault("file-not-written", path=path, fault=fault.strerror or fault) from fault
        except sqlite3.Error as fault:
            raise _explain_fault(path, fault, damaged) from fault
        try:
            ((found,),) = self._connection.execute("pragma user_version").fetchall()
            if not found and self._connection.execute("select 1 from sqlite_master limit 1").fetchall():
                # Not a byte of it is changed.
                self._connection.close()
                raise EnvironmentFault("database-foreign", path=path)
            if is_exclusive:
                self._connection.execute("pragma locking_mode = exclusive")
            self._connection.execute("pragma journal_mode = wal")
            # A commit waits for the disk: what is written before a message is sent must survive a power cut.
            self._connection.execute("pragma synchronous = full")
            self._make_tables(schema, version)
            if is_exclusive:
                # A file that is shared, the budget book, is written when a run begins and ends, not in every round.
                self._make_room()
        except sqlite3.Error as fault:
            self._connection.close()
            raise _explain_fault(path, fault, damaged) from fault

    def _make_tables(self, schema: str, version: int) -> None:
        # Lock the file: a process that shares it waits, so that it is upgraded once.
        self._connection.execute("begin immediate")
        ((found,),) = self._connection.execute("pragma user_version").fetchall()
        is_stuck = found in self._upgrades and self._unless and self._connection.execute(self._unless).fetchall()
        if is_stuck or found not in (0, version, *self._upgrades):
            self._connection.close()
            if found > version:
                raise EnvironmentFault("database-newer", path=self.path, found=found, version=version)
            raise EnvironmentFault("database-older", path=self.path, found=found, version=version)
        for statement in filter(str.strip, (self._upgrades.get(found, "") + ";" + schema).split(";")):
            self._connection.execute(statement)
        self._connection.execute(f"pragma user_version = {version:d}")
        self._connection.execute("commit")

    def _make_room(self) -> None:
        """Let the log have its full size from now on, so that transactions replace bytes that are there.

        A commit that makes a file longer waits for the file system's own journal as well: 0.22 ms for one of 4 kB, and
        0.12 ms with room (medians of 150, two cores, ext4). A transaction that is larger than the cache goes to the log
        before it ends; undone, it has left nothing but room.
        """
        ((cache,),) = self._connection.execute("pragma cache_size").fetchall()
        ((page_bytes,),) = self._connection.execute("pragma page_size").fetchall()
        self._connection.execute("pragma cache_size = 8")
        self._connection.execute("begin immediate")
        self._connection.execute("create table room (content blob)")
        self._connection.execute("insert into room values (zeroblob(?))", (_ROOM_BYTES,))
        self._connection.execute("rollback")
        self._connection.execute(f"pragma cache_size = {cache:d}")
        # Restart the write-ahead log before it is longer than that.
        self._connection.execute(f"pragma wal_autocheckpoint = {_ROOM_BYTES // page_bytes * 7 // 8:d}")

    def write(self, *statements: Statement) -> None:
        """Run all statements, or none; their changes are on the disk afterwards."""
        with self.transaction() as execute:
            for sql, values in statements:
                execute(sql, values)

    @contextmanager
    def transaction(self, *, is_kept: bool = True) -> Iterator[Callable[[str, tuple[Any, ...]], object]]:
        """Run a block as one transaction, while no one else writes to the file.

        When the block ends, what it executed is on the disk. It is undone if the block raises, or unless `is_kept`.
        """
        try:
            self._connection.execute("begin immediate")
            yield self._connection.execute
            self._connection.execute("commit" if is_kept else "rollback")
        except sqlite3.Error as fault:
            raise _explain_fault(self.path, fault, self._damaged) from fault
        finally:
            if self._connection.in_transaction:
                self._connection.execute("rollback")

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows that a query gives."""
        try:
            return self._connection.execute(sql, tuple(values)).fetchall()
        except sqlite3.Error as fault:
            raise _explain_fault(self.path, fault, self._damaged) from fault

    def close(self) -> None:
        """Close the file; nothing is lost by not doing so."""
        self._connection.close()


def copy_database(path: Path) -> bytes:
    """Return the content of a database as one transaction has left it, without writing to it.

    Others may go on using it.

    Raises EnvironmentFault, as `Database`.
    """
    require_private(path, path.stat())
    try:
        with (
            closing(
                sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_SECONDS_FOR_A_TURN)
            ) as own,
            closing(sqlite3.connect(":memory:")) as twin,
        ):
            own.backup(twin)
            return twin.serialize()
    except sqlite3.Error as fault:
        raise _explain_fault(path, fault) from fault


def require_private(path: Path, status: os.stat_result) -> None:
    """Raise EnvironmentFault unless a file or folder is this user's alone.

    Its code is "state-permissions" or "state-owner". Whoever may write to it could take back a charge, or have a node
    mask a round twice; whoever may read it has the keys of masks. This holds for root as well.
    """
    if not hasattr(os, "geteuid"):
        return  # Files have no such owner and mode here.
    user = os.geteuid()
    if status.st_uid != user:
        raise EnvironmentFault("state-owner", path=path, owner=status.st_uid, user=user)
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        mode = "700" if stat.S_ISDIR(status.st_mode) else "600"
        found, used, first = stat.S_IMODE(status.st_mode), "used", ""
        raise EnvironmentFault(
            "state-permissions", code="state-permissions", path=path, used=used, found=found, mode=mode, first=first
        )


def _require_own_file(path: Path) -> None:
    """Make the file if it is not there; raises as `require_private`, and OSError."""
    # Do not open an existing file: closing it would undo the locks of another connection of this process (POSIX), and
    # the next process that closes it would remove the log that this connection uses.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    require_private(path, path.stat())
    for beside in (Path(f"{path}-wal"), Path(f"{path}-journal")):
        # SQLite would carry out what another user left there.
        if beside.exists():
            require_private(beside, beside.stat())


def _explain_fault(path: Path, fault: sqlite3.Error, damaged: str = "database-damaged") -> EnvironmentFault:
    # The primary code stands in the lowest byte of SQLite's extended codes.
    code = getattr(fault, "sqlite_errorcode", 0) & 0xFF
    if code in _DISK_FULL:
        return EnvironmentFault("disk-full", path=path, fault=fault)
    if code in _LOCKED:
        return EnvironmentFault("database-locked", path=path)
    if code in _DAMAGED:
        if damaged == "book-damaged":
            return EnvironmentFault("book-damaged", path=path)
        return EnvironmentFault("database-damaged", path=path)
    return EnvironmentFault("file-operation", code="database-failed", name=f"{path}: ", fault=fault)
