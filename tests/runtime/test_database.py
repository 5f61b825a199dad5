"""The small database that every party writes before it speaks: what it promises beyond SQLite's own promises."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from hedgerow.storage import Database

SCHEMA = "create table if not exists steps (number integer primary key, content blob)"


def open_database(path: Path) -> Database:
    """A party's database, as it opens it."""
    return Database(path, SCHEMA, 1)


def write_step(database: Database, number: int) -> None:
    """One step of a node, and the oldest one forgotten."""
    database.write(
        ("insert into steps values (?, ?)", (number, bytes([number % 251]) * 6_000)),
        ("delete from steps where number <= ?", (number - 10,)),
    )


def test_a_commit_makes_no_file_longer(tmp_path: Path) -> None:
    """Protects the time of an exchange: a log that grows with every commit makes each of them wait for the file
    system's own journal, ten nodes on one machine for each other's.
    """
    path, log = tmp_path / "node.db", tmp_path / "node.db-wal"
    database = open_database(path)
    write_step(database, 0)
    before = log.stat().st_size
    sizes = set()
    for number in range(1, 400):
        write_step(database, number)
        sizes.add(log.stat().st_size)
    database.close()
    assert sizes == {before}


def test_what_was_committed_is_there_after_a_crash_at_any_commit(tmp_path: Path) -> None:
    """Protects the steps themselves: room in the log holds bytes that were never committed, and older ones; whoever
    opens the files as a crash left them finds all that was committed, and nothing else.
    """
    database = open_database(tmp_path / "node.db")
    for number in range(120):
        write_step(database, number)
        crashed = tmp_path / "crashed"
        crashed.mkdir()
        for name in ("node.db", "node.db-wal"):
            shutil.copy(tmp_path / name, crashed / name)
        found = open_database(crashed / "node.db")
        rows = found.rows("select number, content from steps order by number")
        assert [row[0] for row in rows] == list(range(max(0, number - 9), number + 1))
        assert all(content == bytes([kept % 251]) * 6_000 for kept, content in rows)
        assert found.rows("pragma integrity_check") == [("ok",)]
        assert found.rows("select name from sqlite_master where type = 'table'") == [("steps",)]
        found.close()
        shutil.rmtree(crashed)
    database.close()


def test_two_connections_of_a_process_keep_the_log(tmp_path: Path) -> None:
    """Protects what another process writes to a shared file, a confirmation for instance, from not being seen: it must
    not take the log away, as the last one to close the file does, while a connection here has it open.
    """
    path = tmp_path / "book.db"
    first, second = (Database(path, SCHEMA, 1, is_exclusive=False) for _ in range(2))
    other = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('insert into steps values (1, null)')"
    subprocess.run([sys.executable, "-c", f"{other}; c.commit(); c.close()", str(path)], check=True)
    assert [len(database.rows("select number from steps")) for database in (first, second)] == [1, 1]
    second.close()
    first.write(("insert into steps values (2, null)", ()))
    third = Database(path, SCHEMA, 1, is_exclusive=False)
    assert len(third.rows("select number from steps")) == 2
    third.close()
    first.close()
