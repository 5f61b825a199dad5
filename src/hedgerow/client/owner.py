"""What a node asks its owner, and what the owner has said: one file of the node's folder, shared by all who ask.

A policy with ``ask = "always"`` lets a node answer no proposed run, evaluation or survey before its owner has approved
it. The node writes down what it is asked; the owner answers at the node's terminal, by `hedgerow approve`, or on the
site's page, each through `OwnerDesk`; the node looks every second. Question and answer survive restarts of both.

An approval holds for one question alone: the run's number and the digest of all that it is for, cost included. Whoever
answers names the question that was shown to them, so that none can be slipped in between showing and answering.

The owner can also end the node's part at any time (`OwnerDesk.stop`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from hedgerow.codec import digest
from hedgerow.errors import UsageError
from hedgerow.storage import Database, Statement, require_private
from hedgerow.transport.identities import spoken

ROSTER = "roster"
"""The kind of a question about who takes part."""
_FILE = "owner.db"
_SCHEMA = """
create table if not exists question (
    run_id text not null, kind text not null, name text not null, digest text not null, plan_digest text not null,
    epsilon real not null, delta real not null, data_set text not null, total real not null, most real not null,
    total_delta real not null, asked text not null, id text not null
);
create table if not exists answers (id text primary key, is_approved integer not null, answered text not null);
create table if not exists stops (at text not null)
"""
_VERSION = 1
_ID_DIGITS = 32


@dataclass(frozen=True)
class Question:
    """What a coordinator asks for, as the owner is shown it; everything in it is public but the budget's numbers.

    Attributes:
        run_id: of the run, in hexadecimal digits.
        kind: "training", "evaluation" or "survey"; or "roster", which has no run, costs nothing, and says in `name`
            who comes and goes; both digests are then the roster's.
        name: of the plan.
        digest: of what the run is for, in hexadecimal digits: the plan's, or that of plan, model and cost.
        plan_digest: of the plan.
        epsilon, delta: what the run may cost; epsilon is infinity where nothing bounds it.
        data_set: what the budget is counted for.
        total: the epsilon that would then be spent or reserved of it, at `total_delta`.
        most: the epsilon that the policy allows, at `total_delta`.
        total_delta: the policy's delta.
        asked: when it was asked first, in UTC, as 2026-11-23 14:41:02.
    """

    run_id: str
    kind: str
    name: str
    digest: str
    plan_digest: str
    epsilon: float
    delta: float
    data_set: str
    total: float
    most: float
    total_delta: float
    asked: str = ""

    @property
    def id(self) -> str:
        """32 hexadecimal digits that tell the question from all others: of the run's number, the kind, the digest."""
        of = bytes.fromhex(self.run_id), self.kind.encode(), bytes.fromhex(self.digest)
        return digest("hedgerow/question/1", *of).hex()[:_ID_DIGITS]

    @property
    def words(self) -> str:
        """The plan's fingerprint, as `hedgerow privacy` prints it; the roster's, as `hedgerow roster show` does."""
        return spoken(bytes.fromhex(self.plan_digest))


class OwnerDesk:
    """Where the node and its owner leave each other word; any number of processes may have it open.

    Args: folder: the node's own (`--state`). Nothing is written before there is something to say.
    Raises EnvironmentFault as `Database`, in every method.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._database: Database | None = None

    # The owner's side ------------------------------------------------------------------------------------------------

    def pending(self) -> Question | None:
        """What the node waits to be told, the newest question alone; None for nothing."""
        database = self._opened()
        if database is None:
            return None
        names = ", ".join(field.name for field in fields(Question))
        rows = database.rows(f"select {names} from question where id not in (select id from answers)")
        return Question(*rows[0]) if rows else None

    def answer(self, question_id: str, *, approve: bool) -> Question:
        """Approve or deny the question that was shown; returns it.

        Raises UsageError (code "not-asked") where that question does not wait for an answer, or not any more.
        """
        question = self.pending()
        if question is None or question.id != question_id:
            raise UsageError("not-asked")
        # The newest question may have become another one meanwhile: an answer to it is none to that.
        self._write(("insert or ignore into answers values (?, ?, datetime('now'))", (question_id, int(approve))))
        return question

    def stop(self) -> None:
        """End the node's part: the node leaves its run for good, charged for what it has answered, and ends.

        One that is not running does so when it is started next.
        """
        self._write(("delete from stops", ()), ("insert into stops values (datetime('now'))", ()))

    # The node's side -------------------------------------------------------------------------------------------------

    def ask(self, question: Question) -> bool | None:
        """Whether the owner has approved it; None while there is no answer. Asks, if that was not done before."""
        said, waiting = self.said(question.id), self.pending()
        if said is None and (waiting is None or waiting.id != question.id):
            values = (*astuple(question)[:-1], question.id)
            places = ", ".join("?" * (len(values) - 1))
            statement = f"insert into question values ({places}, datetime('now'), ?)"
            self._write(("delete from question", ()), (statement, values))
        return said

    def said(self, question_id: str) -> bool | None:
        """What the owner has answered to a question; None for nothing so far."""
        database = self._opened()
        rows = database.rows("select is_approved from answers where id = ?", (question_id,)) if database else []
        return bool(rows[0][0]) if rows else None

    def withdraw(self) -> None:
        """Nobody waits for an answer any more."""
        if self._opened() is not None:
            self._write(("delete from question", ()))

    def take_stop(self) -> bool:
        """Whether the owner has ended the node's part; afterwards no more, for the node has heard of it."""
        database = self._opened()
        if database is None or not database.rows("select 1 from stops"):
            return False
        self._write(("delete from stops", ()))
        return True

    def close(self) -> None:
        """Close the file."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def _opened(self, *, is_made: bool = False) -> Database | None:
        """The file, where there is one, or with `is_made` in any case."""
        path = self._folder / _FILE
        if self._database is None and (is_made or path.exists()):
            # A file of another user, in a folder that is not that user's, would keep the node from starting.
            require_private(self._folder, self._folder.stat())
            self._database = Database(path, _SCHEMA, _VERSION, is_exclusive=False)
        return self._database

    def _write(self, *statements: Statement) -> None:
        database = self._opened(is_made=True)
        if database is not None:
            database.write(*statements)


def node_folder(given: Path) -> Path:
    """The folder of a node's own files that a path names: itself, or the folder of a party of a study.

    Raises UsageError (code "node-folder").
    """
    for place in (given, given / "state"):
        if (place / "node.db").is_file():
            return place
    raise UsageError("node-folder", folder=given)


@contextmanager
def owner_desk(given: Path) -> Iterator[OwnerDesk]:
    """The desk of the node whose folder this is; raises as `node_folder`."""
    desk = OwnerDesk(node_folder(given))
    try:
        yield desk
    finally:
        desk.close()
