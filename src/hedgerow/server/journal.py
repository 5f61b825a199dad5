# SPDX-License-Identifier: Apache-2.0
"""The coordinator's journal: messages and releases, on the disk before anyone can see them.

A coordinator that was killed and started again reads the journal and continues where it was: the same run, the same
epoch, the same spec and manifest of the open slot, the same releases. Noise is drawn only once for each purpose,
because a release is here before it is anywhere else.

An exchange costs two writes that have to wait for the disk: one of the uploads with the manifest, because there may
never be a second manifest, and one of the release with the next slot's spec, because noise may be drawn only once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

import numpy as np

from hedgerow.codec import database_version, with_hash, without_hash
from hedgerow.errors import EnvironmentFault, UsageError
from hedgerow.methods.tasks import EvaluationTask, Task
from hedgerow.plan.plan import Plan
from hedgerow.privacy.ledger import Ledger, Release
from hedgerow.protocol.queries import IntVector
from hedgerow.protocol.refusals import Salvage
from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.messages import Roster
from hedgerow.secagg.transitions import OwnMistake, Refusal
from hedgerow.secagg.view import Cohort, EpochView
from hedgerow.storage import Database, Statement

_SCHEMA = """
create table if not exists run (
    run_id blob primary key, plan_digest text not null, roster blob not null, attempt integer not null,
    epoch blob, origin blob, model_digest blob, given_up text, salvaged text, account text
);
create table if not exists earlier (run text not null, entry text not null);
create table if not exists slots (run_id blob primary key, next_slot integer not null, slot blob);
create table if not exists releases (
    round integer primary key, purpose text not null unique, content blob not null, entry text not null,
    survivors text not null
);
create table if not exists burnt (round integer, cohort text, masked text, primary key (round, cohort, masked))
"""
_VERSION = 10
_ENTRIES = "select entry from releases order by round"
_NO_SLOTS: Statement = ("update slots set slot = null, next_slot = 0", ())
_CLOSED_SLOT: Statement = ("update slots set slot = null", ())
_NO_ACCOUNT = Ledger()
_VOTES = "votes"
Runs = dict[str, list[Release]]
"""Releases by run; the key identifies the run in a ledger, see `Ledger.with_run`."""


@dataclass(frozen=True)
class JournalledRelease:
    """A release, its line in the ledger, the sites whose vectors are in it, and the line of their votes, if any."""

    release: IntVector
    entry: Release
    survivors: tuple[str, ...]
    votes: Release | None = None

    @property
    def entries(self) -> tuple[Release, ...]:
        """Return its lines in the ledger."""
        return (self.entry,) if self.votes is None else (self.entry, self.votes)


@dataclass(frozen=True)
class BurntSlot:
    """A slot that was given up before its manifest: its round, epoch, and the nodes whose vectors came."""

    round: int
    cohort: Cohort
    masked: frozenset[int]


@dataclass(frozen=True)
class JournalledRun:
    """A run as the journal has it.

    `view` is the view of its epoch, `slot` the open slot's aggregator, and `origin` the epoch whose nonces seed the
    trees. With `salvage` only the first releases are in the model; the others were charged too.
    """

    run_id: bytes
    attempt: int
    next_slot: int
    view: EpochView | None
    origin: EpochView | None
    slot: Aggregator | None
    releases: tuple[JournalledRelease, ...]
    result_digest: bytes | None
    salvage: Salvage | None = None
    burnt: tuple[BurntSlot, ...] = ()


class Journal:
    """One run's journal in one file; every method that writes returns when the data are on the disk.

    Attributes:
        found: releases of runs before it, by run; `begin` stores them as `earlier`.

    Raises:
        EnvironmentFault: the file cannot be read or written; nothing has changed then.
    """

    def __init__(self, path: Path) -> None:
        self._database = Database(path, _SCHEMA, database_version(_VERSION))
        self.found: Runs = {}

    def load(self, task: Plan | Task, roster: Roster) -> JournalledRun | None:
        """Load the run in the journal; return None for a new journal.

        Raises UsageError for a run of another task or roster.

        Args:
            task: the run's task; a plan stands for its training.

        Raises:
            EnvironmentFault: "corrupt-state" if the stored data cannot be those that were written.
        """
        rows = self._database.rows(
            "select run_id, plan_digest, roster, attempt, next_slot, epoch, origin, slot, model_digest, given_up,"
            " salvaged from run join slots using (run_id)"
        )
        if not rows:
            return None
        run_id, task_digest, roster_bytes, attempt, next_slot, epoch, origin, slot, digest, given_up, salvaged = rows[0]
        if task_digest != task.digest or roster_bytes != roster.to_bytes():
            raise UsageError("journal-of-another-run", path=self._database.path)
        if given_up is not None:
            raise UsageError("journal-given-up", path=self._database.path, given_up=given_up)
        try:
            view = None if epoch is None else EpochView.from_bytes(without_hash(epoch))
            first = None if origin is None else EpochView.from_record(without_hash(origin))
            opened = None if slot is None or view is None else Aggregator.restore(view, slot)
            salvage = None if salvaged is None else Salvage(**json.loads(salvaged))
            rows = self._database.rows("select round, cohort, masked from burnt order by rowid")
            burnt = tuple(BurntSlot(n, Cohort.from_json(text), frozenset(json.loads(own))) for n, text, own in rows)
            parts = (view, first, opened, self._read_releases(), digest, salvage, burnt)
        except (Refusal, OwnMistake, ValueError, KeyError, TypeError) as fault:
            # The disk is at fault here: a refusal would blame a site.
            raise EnvironmentFault("journal-damaged", path=self._database.path) from fault
        return JournalledRun(run_id, attempt, next_slot, *parts)

    def is_in_the_way(self, task: Task, roster: Roster, *, is_new: bool) -> bool:
        """Return whether the journal must be set aside for a new run.

        With `is_new` that is any run; else a run that has released nothing and cannot go on, because it was given up,
        or was for another task or roster.
        """
        rows = self._database.rows("select plan_digest, roster, given_up from run")
        if not rows or is_new:
            return bool(rows)
        task_digest, roster_bytes, given_up = rows[0]
        cannot_go_on = given_up is not None or task_digest != task.digest or roster_bytes != roster.to_bytes()
        return cannot_go_on and not self._database.rows("select 1 from releases")

    @property
    def has_begun(self) -> bool:
        """Whether the journal holds a run."""
        return bool(self._database.rows("select 1 from run"))

    @property
    def earlier(self) -> Runs:
        """Releases, by run, of earlier runs whose journals were set aside for this one; this run's account has them."""
        found: Runs = {}
        for run, text in self._database.rows("select run, entry from earlier order by rowid"):
            found.setdefault(run, []).append(Release.from_dict(json.loads(text)))
        return found

    def runs(self, ledger: Ledger) -> Runs:
        """Return all releases by run, whatever became of the run: of `earlier` runs and of this one.

        Releases that prepared the plan are left out, and so are runs that are over and in `ledger`.
        """
        held, found = set(ledger), dict[str, list[Release]]()
        for run, releases in self.earlier.items():
            # Lines of two trainings may be equal, so only an evaluation's figures prove that a run is in the ledger.
            if not (held.issuperset(releases) and any(release.figures for release in releases)):
                found[run] = releases
        own = [entry for (text,) in self._database.rows(_ENTRIES) for entry in _read_entries(text) if entry is not None]
        for run_id, digest in self._database.rows("select run_id, model_digest from run") if own else []:
            if digest is None or not held.issuperset(own):
                found[f"run {run_id.hex()[:16]}"] = own
        return found

    def adds_to(self, task: Task) -> bool:
        """Return whether an account may hold this run and the task: both protect the same."""
        return all(account == _name_account(task) for (account,) in self._database.rows("select account from run"))

    def end(self, code: str) -> bytes:
        """Give the run up, unless it was given up already, and return its number.

        Raises UsageError if there is no run to give up.
        """
        rows = self._database.rows("select run_id, model_digest, given_up from run")
        if not rows or rows[0][1] is not None:
            raise UsageError("no-open-run", path=self._database.path)
        if rows[0][2] is None:
            self.commit(given_up=code)
        run_id: bytes = rows[0][0]
        return run_id

    def begin(self, run_id: bytes, task: Task, roster: Roster) -> None:
        """Write that a run begins; call it before anyone is invited."""
        self._database.write(
            (
                "insert into run values (?, ?, ?, 0, null, null, null, null, null, ?)",
                (run_id, task.digest, roster.to_bytes(), _name_account(task)),
            ),
            ("insert into slots values (?, 0, null)", (run_id,)),
            *(
                ("insert into earlier values (?, ?)", (run, json.dumps(release.to_dict(), sort_keys=True)))
                for run, releases in self.found.items()
                for release in releases
            ),
        )

    def save_attempt(self, attempt: int) -> None:
        """Write that an epoch's set-up begins; call it before its parameters are sent."""
        self._database.write(("update run set attempt = ?, epoch = null", (attempt,)), _NO_SLOTS)

    def save_epoch(self, view: EpochView, *, is_origin: bool) -> None:
        """Write that an epoch is ready; call it before the nodes hear of it.

        With `is_origin` its nonces seed the trees.
        """
        epoch = with_hash(view.to_bytes())
        statement: Statement = ("update run set epoch = ?", (epoch,))
        if is_origin:
            statement = ("update run set epoch = ?, origin = ?", (epoch, with_hash(view.record)))
        self._database.write(statement, _NO_SLOTS)

    def burn_slot(self, burnt: BurntSlot) -> None:
        """Write that a slot was given up before its manifest.

        Its purpose may be asked for again in another slot of the epoch, and in another epoch if no two sums of it could
        be opened.
        """
        values = (burnt.round, burnt.cohort.to_json(), json.dumps(sorted(burnt.masked)))
        self._database.write(_CLOSED_SLOT, ("insert or ignore into burnt values (?, ?, ?)", values))

    def commit(
        self,
        release: JournalledRelease | None = None,
        next_slot: Aggregator | None = None,
        result_digest: bytes | None = None,
        given_up: str | Salvage | None = None,
    ) -> None:
        """Write everything that goes out in one message: a release, and what follows it; nothing for nothing.

        Args:
            release: the release; its slot is closed with it.
            next_slot: the open slot: its spec, or its uploads with the manifest.
            result_digest: digest of the result that the run ends with.
            given_up: the code of the reason why the run ends without a result; or the salvage.
        """
        statements: list[Statement] = []
        if release is not None:
            content = release.release.astype("<i8").tobytes()
            votes = {} if release.votes is None else {_VOTES: release.votes.to_dict()}
            entry = json.dumps(release.entry.to_dict() | votes, sort_keys=True)
            survivors = json.dumps(release.survivors)
            numbered = "insert into releases values ((select count(*) from releases), ?, ?, ?, ?)"
            statements = [(numbered, (release.entry.purpose, content, entry, survivors)), _CLOSED_SLOT]
        if next_slot is not None:
            values = (next_slot.to_bytes(), next_slot.spec.slot + 1)
            statements.append(("update slots set slot = ?, next_slot = ?", values))
        if result_digest is not None:
            statements.append(("update run set model_digest = ?", (result_digest,)))
        if isinstance(given_up, Salvage):
            statements.append(("update run set salvaged = ?", (json.dumps(asdict(given_up)),)))
        elif given_up is not None:
            statements.append(("update run set given_up = ?", (given_up,)))
        if statements:
            self._database.write(*statements)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _read_releases(self) -> tuple[JournalledRelease, ...]:
        rows = self._database.rows("select content, entry, survivors from releases order by round")
        return tuple(
            JournalledRelease(
                np.frombuffer(content, dtype="<i8").astype(np.int64),
                entry,
                tuple(json.loads(survivors)),
                votes,
            )
            for content, text, survivors in rows
            for entry, votes in [_read_entries(text)]
        )


def _read_entries(text: str) -> tuple[Release, Release | None]:
    """Read the line of a release in the ledger, and that of the votes beside it."""
    content = json.loads(text)
    votes = content.get(_VOTES)
    return Release.from_dict(content), None if votes is None else Release.from_dict(votes)


def _name_account(task: Task) -> str:
    """Return a name that differs for accounts that may not be added.

    It is an evaluation's model, or else the protected unit and the kind of protection.
    """
    plan, privacy = task.plan, task.plan.privacy
    protected = [privacy.unit, privacy.rows_per_unit, privacy.noise, plan.model.algorithm]
    return json.dumps([type(task).__name__, plan.digest if isinstance(task, EvaluationTask) else protected])


def find_journals(path: Path) -> list[Path]:
    """Return the journal at `path` and those set aside there.

    For an evaluation, the journals of all evaluations of its model are returned.
    """
    name = re.sub(r"(?<=\\.evaluation\\-)\d+(?=\\.journal$)", r"\\d+", re.escape(path.name))
    return sorted(place for place in path.parent.glob("*") if re.fullmatch(name + r"(\.\d+)?", place.name))


def read_runs(paths: Iterable[Path], ledger: Ledger, task: Task | None = None) -> Runs:
    """Return the releases in these journals by run, as `Journal.runs` does.

    With a task, only journals that add to its account are read.

    Raises:
        EnvironmentFault: as `Journal`.
    """
    found: Runs = {}
    for path in paths:
        with closing(Journal(path)) as journal:
            for run, releases in journal.runs(ledger).items() if task is None or journal.adds_to(task) else ():
                found[run] = max(found.get(run, []), releases, key=len)
    return found


def open_journal(
    path: Path,
    task: Task,
    roster: Roster,
    *,
    is_new: bool = False,
    before_new: Callable[[], None] = lambda: None,
    ledger: Ledger = _NO_ACCOUNT,
) -> tuple[Journal, Path | None]:
    """Open the journal for a run at `path`; set an older one aside if needed.

    Returns the journal, and the path of the one that was set aside: it is renamed, never deleted. The older run's
    releases stay on the account, see `Journal.earlier`.

    Args:
        is_new: whether to begin a new run even if the older one could go on, or has released something.
        before_new: called before a journal is begun or set aside; what it raises is raised, and no file has changed.
        ledger: the account so far: the evaluated model's.

    Raises:
        UsageError: code "journal-of-another-run"; the older run's releases cannot be added to a new run's account.
        EnvironmentFault: as `Journal`; code "database-locked" while a coordinator works with it.
    """
    if is_new or not path.exists():
        before_new()
    aside = None
    with ExitStack() as opened:
        journal = opened.enter_context(closing(Journal(path)))
        if journal.is_in_the_way(task, roster, is_new=is_new):
            can_count = journal.adds_to(task) or not journal.runs(ledger)
            opened.close()
            if not can_count:
                raise UsageError("journal-of-another-run", path=path)
            before_new()
            if Path(f"{path}-wal").exists():
                # Without the -wal file the renamed journal would lack its last lines; left behind, the file would mix
                # with the new one.
                raise EnvironmentFault(
                    "disk-full", path=path, fault="it could not be closed, so that it cannot be set aside"
                )
            beside = (path.with_name(f"{path.name}.{number}") for number in count(1))
            aside = next(place for place in beside if not place.exists())
            path.rename(aside)
            journal = opened.enter_context(closing(Journal(path)))
        if not journal.has_begun:
            # Read where they are, not handed over: whatever ends this process before the run begins, the next finds
            # them.
            journal.found = read_runs((place for place in find_journals(path) if place != path), ledger, task)
        opened.pop_all()
    return journal, aside
