# SPDX-License-Identifier: Apache-2.0
"""A node's own folder: its memory of its runs in two files, and the questions to its owner in a third.

`node.db` is a database of the runs that the node has been in, with the state of the open one. `counter.json` is one
line that is overwritten in place. It holds the number of the database's last step, and the key that opens that step.

Every step is kept in the same order:

1. The database is written: the new state, the releases received, what a masked vector costs.
2. The counter is written: the number of the step, and its key.
3. The message that belongs to the step is sent.

Each write waits for the disk, so both files know everything that was sent. A crash before 1 changes nothing. After a
crash between 1 and 2 the counter is one step behind; nothing was sent, and `load` brings the counter up to date. After
a crash between 2 and 3 the node sends the same bytes when it is asked again.

Any other difference means that a file was lost, or restored from a backup. The one-time keys in an old database may
have been used already, so the node does not resume from it: it enrols in a new epoch. It also answers no round again
that either file knows of. For this, both files hold the last round that is over.

Every step is encrypted under a key of its own, which follows from the key of the step before by a one-way function.
SQLite leaves replaced rows in its log and in free pages for a while, but their keys are gone: only the counter has one,
the newest. The constants of an epoch are written once, when it is ready; a step is a few kilobytes.

When a run begins, the counter is written first: a database without its counter would be taken for a restored one.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import Self, cast

import numpy as np

from hedgerow.codec import database_version, digest, format_spoken
from hedgerow.errors import EnvironmentFault, UsageError
from hedgerow.methods.tasks import Task, task_from_text, task_to_text
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.events import Event, event_from_dict, event_to_json
from hedgerow.protocol.queries import IntVector
from hedgerow.secagg.keys import next_state_key
from hedgerow.secagg.participant import Participant, decrypt_state, encrypt_state
from hedgerow.secagg.transitions import Code, OwnMistake, refuse
from hedgerow.secagg.view import Cohort
from hedgerow.storage import Database, Statement, require_private

_SCHEMA = """
create table if not exists run (
    run_id blob primary key, task text not null, data_digest blob not null, status text not null,
    attempt integer not null, epoch blob
);
create table if not exists steps (
    run_id blob primary key, sequence integer not null, step blob, barred integer not null
);
create table if not exists releases (run_id blob, round integer, content blob not null, primary key (run_id, round));
create table if not exists arrivals (run_id blob, name text, digest blob, round integer, primary key (run_id, name));
create table if not exists models (digest blob primary key);
create table if not exists salvaged (run_id blob primary key);
create table if not exists sites (name text primary key)
""" + "".join(
    # Each row is its own key: without a separate table, a step writes a fifth less to the disk.
    f";create table if not exists {name} (run_id blob, {column}, primary key (run_id, {key})) without rowid"
    for name, column, key in (
        ("purposes", "purpose text", "purpose"),
        ("origins", "digest blob, seed integer", "digest"),
        ("spent", "round integer, event text", "round, event"),
        ("masked", "round integer, cohort text, slot integer", "round, cohort"),
        ("votes", "round integer, vote integer, event text", "round"),
        ("seen", "round integer, votes blob", "round"),
    )
)
_VERSION = 9
_UPGRADES = {804: "alter table masked add column slot integer", 905: ""}
"""Upgrades by the full version, which includes the codec's. An open run is not upgraded, because its steps have the old
codec."""
_GOES_ON = "select 1 from run where status in ('open', 'joining')"
OPEN, JOINING = "open", "joining"
"""A run is "joining" from just before its cost is reserved in the budget book until it is open."""
_DELTA = 1e-6
"""Delta at which two events are compared; the order of two Gaussian events does not depend on it."""
RUN_ROWS = "run-rows"
"""Name of the folder with the rows of the node's run, for engines with a process per message (`ExternalMemory`,
held)."""
_LOST_ROUND = -1
"""Entry among the rounds that were paid for, if a database was older than its counter, or lost."""
_COUNTER_BYTES = 512
"""Size of a sector, which a disk writes at once."""
EVERY_ROUND = 2**31
"""Value of the last round masked if unknown, as in a new counter beside an old database."""
_sync = os.fdatasync if hasattr(os, "fdatasync") else os.fsync


@dataclass
class Counter:
    """The content of the counter file.

    Attributes:
        run_id: the run's number, in hexadecimal digits, like `key`.
        attempt: attempt number of the epoch.
        sequence: number of the last step in the database.
        answered: the last round whose shares have left, or that was released; -1 for none.
        masked: the last round masked; -1 for none.
        key: key of the last step in the database.
    """

    run_id: str = ""
    attempt: int = 0
    sequence: int = 0
    answered: int = -1
    masked: int = -1
    key: str = field(default="", repr=False)

    @property
    def last_barred(self) -> int:
        """The last round whose sum may have been opened, if no database tells the epoch of its vector."""
        return self.answered if self.masked == EVERY_ROUND else max(self.answered, self.masked)


class CounterFile:
    """The counter file, kept open for writing after the first write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def read(self) -> Counter:
        """Read the counter; return a new one if there is no file.

        Raises EnvironmentFault for a damaged file. An empty file was made as the disk became full, and counts as none.
        """
        try:
            text = self._path.read_text(encoding="ascii")
            if not text:
                return Counter()
            content = json.loads(text)
            attempt, sequence, answered, masked = (
                int(content[name]) for name in ("attempt", "sequence", "answered", "masked")
            )
            key = bytes.fromhex(content["key"]).hex()
            return Counter(str(content["run_id"]), attempt, sequence, answered, masked, key)
        except FileNotFoundError:
            return Counter()
        except (OSError, ValueError, KeyError, TypeError) as fault:
            raise EnvironmentFault("state-damaged", path=self._path) from fault

    def write(self, counter: Counter) -> None:
        """Write the counter to the disk before this returns; raise EnvironmentFault."""
        # Overwrite in place at a constant length: then only the content has to reach the disk.
        line = json.dumps(vars(counter)).ljust(_COUNTER_BYTES).encode("ascii")
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600)
            os.pwrite(self._descriptor, line, 0)
            _sync(self._descriptor)
        except OSError as fault:
            raise EnvironmentFault("disk-full", path=self._path, fault=fault.strerror or fault) from fault

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@dataclass(frozen=True)
class NodeStep:
    """The changes of one step of a node; all of them are written, or none.

    Attributes:
        participant: the state of secure aggregation after the step, or None when the step did not change it.
        releases: releases received, by round.
        spent: the round for which a masked vector is about to be sent, and the cost of its release.
        answered: the round whose shares are about to be sent.
        origin: digest of the epoch whose nonces seed the trees for the whole run, and the seed.
        masked: the epoch in which the vector of `spent` is about to be sent.
        is_salvaged: whether the run ends early, with the releases that are here.
        vote: the round of `spent`, what the node says of the model so far with its vector, and what that costs.
        seen: the round of `answered`, and by node what is known of its vote: a byte each, 255 for nothing.
    """

    participant: Participant | None = None
    releases: tuple[tuple[int, IntVector], ...] = ()
    spent: tuple[int, Event] | None = None
    answered: int | None = None
    origin: tuple[bytes, int] | None = None
    masked: Cohort | None = None
    is_salvaged: bool = False
    vote: tuple[int, int, Event] | None = None
    seen: tuple[int, bytes] | None = None


@dataclass(frozen=True)
class StoredRun:
    """A run as the node last wrote it.

    Attributes:
        run_id: the run's number.
        task: the run's task.
        data_digest: digest of the rows that the node has for it.
        participant: None before the first epoch is ready, and after a rollback.
        releases: the releases that the node holds, from the first on.
        answered: all rounds whose shares may have left, in any epoch.
        origin: see `NodeStep`; None before the node saw one.
        masked: every round in which a masked vector has left, with the epoch.
        fault: the reason why the participant cannot be resumed; None if it can, or if there is none.
        is_salvaged: whether the node has heard that the run ends early, with these releases.
        votes: what the node has said of the model so far, by round; it is drawn once.
        seen: votes of all nodes as far as the node saw them, by round.
    """

    run_id: bytes
    task: Task
    data_digest: bytes
    participant: Participant | None
    releases: tuple[IntVector, ...]
    answered: frozenset[int]
    origin: tuple[bytes, int] | None
    masked: frozenset[tuple[int, Cohort]]
    fault: OwnMistake | None = None
    is_salvaged: bool = False
    votes: Mapping[int, int] = field(default_factory=dict)
    seen: Mapping[int, bytes] = field(default_factory=dict)


class NodeStore:
    """The state of one node's runs, in one folder.

    Attributes:
        desk: the desk at which the node asks its owner, in a file of its own.

    Raises:
        EnvironmentFault: the disk is full, another process has the folder open, or the folder or a file in it does not
            belong to this user alone; nothing has changed then.
    """

    def __init__(self, folder: Path) -> None:
        if folder.is_dir():
            require_private(folder, folder.stat())
        version = database_version(_VERSION)
        self.folder = folder
        self.database = Database(folder / "node.db", _SCHEMA, version, upgrades=_UPGRADES, unless=_GOES_ON)
        self.desk = OwnerDesk(folder)
        self._counter_file = CounterFile(folder / "counter.json")
        self._counter = self._counter_file.read()
        # Digest of the epoch that the database holds, and the purposes answered in it.
        self._epoch, self._purposes = b"", frozenset[str]()
        # The last round that must not be answered again, as `load` or `open_run` found it in either file.
        self._barred = -1

    def note_site(self, name: str) -> None:
        """Record that this is the state of the node of this name, so that no other node uses its costs."""
        if name not in self.sites():
            self.database.write(("insert or ignore into sites values (?)", (name,)))

    def sites(self) -> frozenset[str]:
        """Return the names of nodes that have worked with this state: one, unless folders were mixed up."""
        return frozenset(row[0] for row in self.database.rows("select name from sites"))

    def note_joining(self, run_id: bytes, task: Task, data_digest: bytes) -> None:
        """Record that a run is about to be taken up, before any other file has it.

        Without this record a node that was stopped between its two files would take a run that it never answered for
        one whose state it has lost.
        """
        values = (run_id, task_to_text(task), data_digest, JOINING)
        self.database.write(("insert or ignore into run values (?, ?, ?, ?, 0, null)", values))

    def forget_joining(self, run_id: bytes) -> None:
        """Delete the record of a run that was not taken up."""
        self.database.write(("delete from run where run_id = ? and status = ?", (run_id, JOINING)))

    def open_run(self, run_id: bytes, task: Task, data_digest: bytes) -> StoredRun:
        """Begin a run, or begin one again that was left before anything was answered.

        Any other open run must have been closed.
        """
        barred = self._counter.last_barred if self.knows(run_id) else -1
        is_lost = self.knows(run_id) and self.has_masked(run_id)
        attempt = self.find_attempt(run_id)
        counter = Counter(run_id.hex(), attempt)
        if self.knows(run_id):
            counter = replace(self._counter, attempt=attempt, sequence=0, answered=barred)
        # The counter goes first: a database without it would be taken for an old copy.
        self._start(counter)
        values = (run_id, task_to_text(task), data_digest, OPEN, attempt)
        self.database.write(
            ("insert or replace into run values (?, ?, ?, ?, ?, null)", values),
            ("insert or replace into steps values (?, 0, null, ?)", (run_id, barred)),
            ("delete from arrivals where run_id = ?", (run_id,)),
            *([_charge_lost(run_id)] if is_lost else []),
        )
        self._barred = barred
        return cast(StoredRun, self.load())

    def renew_rows(self, run_id: bytes, data_digest: bytes) -> None:
        """Record that the run's rows have changed."""
        self.database.write(("update run set data_digest = ? where run_id = ?", (data_digest, run_id)))

    def find_status(self, run_id: bytes) -> str | None:
        """Return a run's status ("open", "joining", or how it ended); None if the run is not here."""
        rows = self.database.rows("select status from run where run_id = ?", (run_id,))
        return rows[0][0] if rows else None

    def find_attempt(self, run_id: bytes) -> int:
        """Return the attempt of a run's last epoch that this node enrolled in; 0 for none."""
        rows = self.database.rows("select attempt from run where run_id = ?", (run_id,))
        return rows[0][0] if rows else 0

    def find_origin(self, run_id: bytes) -> tuple[bytes, int] | None:
        """Return the epoch whose nonces seed a run's trees, and the seed; None if the node saw none."""
        rows = self.database.rows("select digest, seed from origins where run_id = ?", (run_id,))
        return rows[0] if rows else None

    def has_masked(self, run_id: bytes) -> bool:
        """Return whether a masked vector of this run may have left.

        It is False only if both files tell that none has.
        """
        is_counted = self.knows(run_id) and self._counter.masked != -1
        return is_counted or self.spent(run_id) != []

    def charge(self, run_id: bytes) -> list[Event] | None:
        """Return the costs of a run that does not go on; None if unknown, so that all must be charged.

        For the open run it is correct after `load`, which notices if one file is older than the other.
        """
        spent = self.spent(run_id)
        is_known = self.find_status(run_id) is not None and (spent != [] or not self.has_masked(run_id))
        return spent if is_known else None

    def find_last_slots(self, run_id: bytes) -> dict[bytes, int]:
        """Return the last slot in which this node masked a vector of a run, by the epoch's digest."""
        sql = "select cohort, coalesce(slot, -1) from masked where run_id = ? order by slot"
        rows = self.database.rows(sql, (run_id,))
        return {Cohort.from_json(text).epoch: slot for text, slot in rows}

    def lose_spending(self, run_id: bytes) -> None:
        """Mark a run's costs as unknown here: all of them will be charged."""
        self.database.write(_charge_lost(run_id))

    def run_ids(self, status: str | None = None) -> list[bytes]:
        """Return all runs that this node has been in, or those of one status.

        A run that the node is joining is listed only under that status.
        """
        if status is None:
            return [row[0] for row in self.database.rows("select run_id from run where status != ?", (JOINING,))]
        return [row[0] for row in self.database.rows("select run_id from run where status = ?", (status,))]

    def knows(self, run_id: bytes) -> bool:
        """Return whether the counter file names this run, even if the database was lost."""
        return self._counter.run_id == run_id.hex()

    def list_counted_runs(self) -> list[bytes]:
        """Return the run of which a vector may have left by the counter file, as a list; or none.

        The state of the database does not matter.
        """
        return [] if self._counter.masked == -1 else [bytes.fromhex(self._counter.run_id)]

    def last_masked(self, run_id: bytes) -> int:
        """Return the last round in which a masked vector may have left; -1 for none.

        It is correct even if the database was lost.
        """
        return self._counter.masked if self.knows(run_id) else EVERY_ROUND

    def save_attempt(self, run_id: bytes, attempt: int) -> None:
        """Write that an epoch's set-up begins; call it before the node's keys are sent.

        An earlier epoch is not resumed afterwards.
        """
        known = self._counter if self.knows(run_id) else Counter(run_id.hex(), masked=EVERY_ROUND)
        barred = max(known.answered, self._barred)
        self.database.write(
            ("update run set attempt = ?, epoch = null where run_id = ?", (attempt, run_id)),
            ("update steps set sequence = 0, step = null, barred = ? where run_id = ?", (barred, run_id)),
            ("delete from purposes where run_id = ?", (run_id,)),
        )
        self._start(replace(known, attempt=attempt, sequence=0, answered=barred))

    def _start(self, counter: Counter) -> None:
        """Reset the steps; later ones are stored under new keys."""
        self._epoch, self._purposes = b"", frozenset()
        self._write_counter(replace(counter, key=secrets.token_hex(32)))

    def save(self, run_id: bytes, step: NodeStep) -> None:
        """Write one step; when this returns, the step's message may be sent."""
        statements: list[Statement] = []
        for number, release in step.releases:
            content = release.astype("<i8").tobytes()
            statements.append(("insert or replace into releases values (?, ?, ?)", (run_id, number, content)))
        if step.spent is not None:
            text = event_to_json(step.spent[1])
            statements.append(("insert or ignore into spent values (?, ?, ?)", (run_id, step.spent[0], text)))
        if step.spent is not None and step.masked is not None:
            opened = None if step.participant is None else step.participant.open
            masked = (run_id, step.spent[0], step.masked.to_json(), -1 if opened is None else opened.context.slot)
            statements.append(("insert or replace into masked values (?, ?, ?, ?)", masked))
        if step.vote is not None:
            number, vote, event = step.vote
            values = (run_id, number, vote, event_to_json(event))
            statements.append(("insert or ignore into votes values (?, ?, ?, ?)", values))
        if step.seen is not None:
            statements.append(("insert or replace into seen values (?, ?, ?)", (run_id, *step.seen)))
        if step.is_salvaged:
            statements.append(("insert or ignore into salvaged values (?)", (run_id,)))
        if step.origin is not None:
            statements.append(("insert into origins values (?, ?, ?)", (run_id, *step.origin)))
        participant, counter = step.participant, self._counter
        if participant is not None:
            # Derive the key from the counter's: a step that the counter did not reach is written again under the same
            # key.
            counter = self._make_counter(run_id, step, participant.sequence)
            statements += self._write_participant(run_id, participant, counter)
        if statements:
            self.database.write(*statements)
        if participant is not None:
            self._epoch, self._purposes = participant.view.digest, participant.purposes
            self._write_counter(counter)

    def _make_counter(self, run_id: bytes, step: NodeStep, sequence: int) -> Counter:
        """Return the counter after a step that changed the participant."""
        known = self._counter
        masked = known.masked if step.spent is None else max(known.masked, step.spent[0])
        # The last round that is over. Both files record it, because one of them may be lost. A released round is over,
        # whether or not this node helped to open its sum.
        over = [known.answered, *(number for number, _ in step.releases)]
        over += [] if step.answered is None else [step.answered]
        return Counter(run_id.hex(), known.attempt, sequence, max(over), masked, _advance_key(known.key))

    def _write_participant(self, run_id: bytes, participant: Participant, counter: Counter) -> list[Statement]:
        """Return the statements that write a participant's step, the last barred round, and a new epoch."""
        statements: list[Statement] = []
        known = self._purposes
        if self._epoch != participant.view.digest:
            known = frozenset()
            statements.append(("update run set epoch = ? where run_id = ?", (participant.epoch_bytes(), run_id)))
            statements.append(("delete from purposes where run_id = ?", (run_id,)))
        for purpose in sorted(participant.purposes - known):
            statements.append(("insert into purposes values (?, ?)", (run_id, purpose)))
        key, sequence = bytes.fromhex(counter.key), participant.sequence
        state = encrypt_state(key, participant.step_bytes(), run_id, sequence, secrets.token_bytes)
        values = (sequence, state, counter.answered, run_id)
        statements.append(("update steps set sequence = ?, step = ?, barred = ? where run_id = ?", values))
        return statements

    def spent(self, run_id: bytes) -> list[Event] | None:
        """Return the costs of a run's rounds in which this node sent a masked vector; None if they were lost.

        A round that was begun a second time may have had other noise then. Only one of the two sums was opened, because
        sites answer a purpose once; so the more expensive one is charged.
        """
        rows = self.database.rows("select round, event from spent where run_id = ? order by round", (run_id,))
        if any(number == _LOST_ROUND for number, _ in rows):
            return None
        attempts: dict[int, list[Event]] = {}
        for number, text in rows:
            attempts.setdefault(number, []).append(event_from_dict(json.loads(text)))
        # For a repeated round, take the event that costs most by itself.
        gdp = get_accountant("gdp")
        sums = [
            max(events, key=lambda event: gdp.epsilon([event], _DELTA)) if len(events) > 1 else events[0]
            for events in attempts.values()
        ]
        votes = self.database.rows("select event from votes where run_id = ? order by round", (run_id,))
        return [*sums, *(event_from_dict(json.loads(text)) for (text,) in votes)]

    def keep_model(self, digest: bytes) -> None:
        """Record that this node helped to make the model of this digest."""
        self.database.write(("insert or ignore into models values (?)", (digest,)))

    def models(self) -> frozenset[bytes]:
        """Return the digests of the models that this node helped to make."""
        return frozenset(row[0] for row in self.database.rows("select digest from models"))

    def close_run(self, run_id: bytes, status: str) -> None:
        """End a run here and delete its secrets.

        It is never opened again, unless it was left before a masked vector of it had left the node.
        """
        self.database.write(
            ("update run set status = ?, epoch = null where run_id = ?", (status, run_id)),
            ("delete from steps where run_id = ?", (run_id,)),
            ("delete from purposes where run_id = ?", (run_id,)),
            ("delete from releases where run_id = ?", (run_id,)),
            ("delete from seen where run_id = ?", (run_id,)),
            ("delete from salvaged where run_id = ?", (run_id,)),
        )
        if self.knows(run_id):
            self._write_counter(replace(self._counter, key=""))
        self.forget_rows()

    def forget_rows(self) -> None:
        """Delete the stored rows of the run; the next run reads them again."""
        try:
            if (self.folder / RUN_ROWS).exists():
                shutil.rmtree(self.folder / RUN_ROWS)
        except OSError as fault:
            raise EnvironmentFault("disk-full", path=self.folder, fault=fault.strerror or fault) from fault

    def load(self) -> StoredRun | None:
        """Load the open run, and bring the counter up to date; return None if no run is open."""
        rows = self.database.rows(
            "select run_id, task, data_digest, attempt, sequence, epoch, step, barred"
            " from run join steps using (run_id) where status = ?",
            (OPEN,),
        )
        if not rows:
            if self._counter.key:
                # A crash interrupted `close_run` before its last write.
                self._write_counter(replace(self._counter, key=""))
            return None
        run_id, task, data_digest, attempt, sequence, epoch, step, barred = rows[-1]
        masked = self.database.rows("select round, cohort from masked where run_id = ?", (run_id,))
        participant, key, fault = None, "", None
        self._barred = max(barred, self._counter.answered) if self.knows(run_id) else barred
        try:
            participant, key = self._restore(run_id, epoch, step, (attempt, sequence))
        except OwnMistake as mistake:
            # Drop the traceback: its frames hold the refused step, secrets included.
            fault = mistake.with_traceback(None)
            fault.__cause__ = fault.__context__ = None
            # The costs of rounds were lost with the steps.
            self.database.write(_charge_lost(run_id))
            # One of the two files was lost or is too old. Bar every round that the other file names: its sum may be
            # open.
            last = self._counter.last_barred if self.knows(run_id) else -1
            self._barred = max(self._barred, last, *(number for number, _ in masked))
            self.database.write(("update steps set barred = ? where run_id = ?", (self._barred, run_id)))
        if self.knows(run_id):
            reached = replace(self._counter, answered=self._barred)
            if participant is not None and (attempt, sequence) != (reached.attempt, reached.sequence):
                reached = replace(reached, attempt=attempt, sequence=sequence, key=key)
            if reached != self._counter:
                self._write_counter(reached)
        rows = self.database.rows("select content from releases where run_id = ? order by round", (run_id,))
        releases = tuple(np.frombuffer(content, dtype="<i8").astype(np.int64) for (content,) in rows)
        return StoredRun(
            run_id, task_from_text(task), data_digest, participant, releases,
            frozenset(range(self._barred + 1)), self.find_origin(run_id),
            frozenset((number, Cohort.from_json(text)) for number, text in masked), fault,
            bool(self.database.rows("select 1 from salvaged where run_id = ?", (run_id,))),
            dict(self.database.rows("select round, vote from votes where run_id = ?", (run_id,))),
            dict(self.database.rows("select round, votes from seen where run_id = ?", (run_id,))),
        )  # fmt: skip

    def _restore(
        self, run_id: bytes, epoch: bytes | None, state: bytes | None, step: tuple[int, int]
    ) -> tuple[Participant | None, str]:
        """Return the participant after its last step, and that step's key; `step` is (attempt, sequence).

        Raises OwnMistake ROLLED_BACK or CORRUPT_STATE.
        """
        is_counted = self._counter.run_id == run_id.hex()
        # A crash between the two files leaves the counter one step behind; nothing was sent then.
        counted = (self._counter.attempt, self._counter.sequence)
        if not is_counted or step < counted:
            raise refuse(Code.ROLLED_BACK, f"It is step {step} of (attempt, step), the counter says {counted}.")
        if epoch is None or state is None:
            return None, ""
        purposes = [row[0] for row in self.database.rows("select purpose from purposes where run_id = ?", (run_id,))]
        key = self._counter.key if step == counted else _advance_key(self._counter.key)
        opened = decrypt_state(bytes.fromhex(key), state, run_id, step[1])
        participant = Participant.restore_parts(epoch, opened, purposes, step[1])
        self._epoch, self._purposes = participant.view.digest, participant.purposes
        return participant, key

    def close(self) -> None:
        """Close the files."""
        self.database.close()
        self.desk.close()
        self._counter_file.close()

    def _write_counter(self, counter: Counter) -> None:
        self._counter_file.write(counter)
        self._counter = counter


def _charge_lost(run_id: bytes) -> Statement:
    return "insert or ignore into spent values (?, ?, 'null')", (run_id, _LOST_ROUND)


def _advance_key(key: str) -> str:
    return next_state_key(bytes.fromhex(key)).hex()


# The owner ------------------------------------------------------------------------------------------------------------
# Questions of a node and answers of its owner: `owner.db` in the node's folder, shared by all processes.
#
# With ``ask = "always"`` in its policy, a node answers a proposed run, evaluation or survey only after its owner has
# approved it. The node writes the question down. The owner answers at the node's terminal, by `hedgerow approve`, or on
# the site's page, each through `OwnerDesk`. The node looks every second. Question and answer survive restarts of both.
#
# An approval holds for one question only: the run's number and the digest of its task, cost included. An answer names
# the question that was shown, so that no other question can be slipped in between.
#
# The owner can also end the node's part at any time (`OwnerDesk.stop`).

ROSTER = "roster"
"""The kind of a question about a new roster."""
_OWNER_FILE = "owner.db"
_OWNER_SCHEMA = """
create table if not exists question (
    run_id text not null, kind text not null, name text not null, digest text not null, plan_digest text not null,
    epsilon real not null, delta real not null, data_set text not null, total real not null, most real not null,
    total_delta real not null, noise text not null, asked text not null, id text not null
);
create table if not exists answers (id text primary key, is_approved integer not null, answered text not null);
create table if not exists stops (at text not null)
"""
_OWNER_VERSION = 2
_ID_DIGITS = 32


@dataclass(frozen=True)
class Question:
    """A coordinator's request as the owner sees it; only the budget's numbers in it are private.

    Attributes:
        run_id: the run's number, in hexadecimal digits.
        kind: "training", "evaluation" or "survey"; or "roster" (`about_roster`).
        name: the plan's name.
        digest: digest of the run's task, in hexadecimal digits: of the plan, or of plan, model and cost.
        plan_digest: the plan's digest.
        epsilon, delta: the most that the run may cost; epsilon is infinity if nothing bounds it.
        data_set: the data set whose budget is charged.
        total: the epsilon that would then be spent or reserved of its budget, at `total_delta`.
        most: the epsilon that the policy allows, at `total_delta`.
        total_delta: the policy's delta.
        noise: the party that adds it, and who sees what (`find_visibility`); "" for a roster.
        asked: time of the first question, in UTC, as 2026-11-23 14:41:02.
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
    noise: str
    asked: str = ""

    @classmethod
    def about_roster(cls, change: str, digest: bytes) -> Self:
        """Return the question about a new roster, which has no run and costs nothing.

        Args:
            change: the parties that come and go, in words.
        """
        of = digest.hex()
        return cls("00" * 32, ROSTER, change, of, of, 0.0, 0.0, "", 0.0, 0.0, 0.0, "")

    @property
    def is_about_roster(self) -> bool:
        return self.kind == ROSTER

    @property
    def id(self) -> str:
        """The 32 hexadecimal digits that identify the question.

        They are a hash of the run's number, the kind and the digest.
        """
        of = bytes.fromhex(self.run_id), self.kind.encode(), bytes.fromhex(self.digest)
        return digest("hedgerow/question/1", *of).hex()[:_ID_DIGITS]

    @property
    def words(self) -> str:
        """The fingerprint in words: the plan's, or the roster's for a question about a roster.

        `hedgerow privacy` prints the same for a plan, `hedgerow study roster` for a roster.
        """
        return format_spoken(bytes.fromhex(self.plan_digest))


class OwnerDesk:
    """The desk where a node and its owner exchange questions and answers.

    Any number of processes may have it open.

    Args:
        folder: the node's own folder (`--state`). Nothing is written before the first question or answer.

    Raises:
        EnvironmentFault: as `Database`, in every method.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._database: Database | None = None

    # The owner's side ------------------------------------------------------------------------------------------------

    def pending(self) -> Question | None:
        """Return the newest question, if it has no answer yet; None otherwise."""
        return self._read_question("id not in (select id from answers)")

    def find_denied_roster(self) -> Question | None:
        """Return the newest question, if it is about a roster that was denied; None otherwise.

        A denied run is over, and the next one asks again. A denied roster stays, so a mistaken denial must be
        reversible.
        """
        return self._read_question(f"kind = '{ROSTER}' and id in (select id from answers where not is_approved)")

    def _read_question(self, where: str) -> Question | None:
        database = self._open()
        if database is None:
            return None
        names = ", ".join(field.name for field in fields(Question))
        rows = database.rows(f"select {names} from question where {where}")
        return Question(*rows[0]) if rows else None

    def answer(self, question_id: str, *, approve: bool) -> Question:
        """Approve or deny the question that was shown, and return it.

        A denied roster may still be approved. Raises UsageError "not-asked" if that question does not wait for an
        answer, or no longer does.
        """
        denied = self.find_denied_roster()
        if approve and denied is not None and denied.id == question_id:
            self._write(("update answers set is_approved = 1, answered = datetime('now') where id = ?", (denied.id,)))
            return denied
        question = self.pending()
        if question is None or question.id != question_id:
            raise UsageError("not-asked")
        # The newest question may be another one meanwhile; the answer names the one that was shown.
        self._write(("insert or ignore into answers values (?, ?, datetime('now'))", (question_id, int(approve))))
        return question

    def stop(self) -> None:
        """Record the owner's wish to end the node's part.

        The node leaves its run for good, charged for what it has answered, and ends. A node that is not running does so
        at its next start.
        """
        self._write(("delete from stops", ()), ("insert into stops values (datetime('now'))", ()))

    # The node's side -------------------------------------------------------------------------------------------------

    def ask(self, question: Question) -> bool | None:
        """Write the question down unless it is there; return the owner's answer, None while there is none."""
        said, waiting = self.find_answer(question.id), self.pending()
        if said is None and (waiting is None or waiting.id != question.id):
            values = (*astuple(question)[:-1], question.id)
            places = ", ".join("?" * (len(values) - 1))
            statement = f"insert into question values ({places}, datetime('now'), ?)"
            self._write(("delete from question", ()), (statement, values))
        return said

    def find_answer(self, question_id: str) -> bool | None:
        """Return the owner's answer to a question; None if there is none so far."""
        database = self._open()
        rows = database.rows("select is_approved from answers where id = ?", (question_id,)) if database else []
        return bool(rows[0][0]) if rows else None

    def withdraw(self) -> None:
        """Delete the question, because no answer is needed any more."""
        if self._open() is not None:
            self._write(("delete from question", ()))

    def take_stop(self) -> bool:
        """Return whether the owner has ended the node's part, and clear the wish."""
        database = self._open()
        if database is None or not database.rows("select 1 from stops"):
            return False
        self._write(("delete from stops", ()))
        return True

    def close(self) -> None:
        """Close the file."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def _open(self, *, is_made: bool = False) -> Database | None:
        """Open the file if it exists, or in any case with `is_made`; else return None."""
        path = self._folder / _OWNER_FILE
        if self._database is None and (is_made or path.exists()):
            # Check the folder: a file of another user in it would keep the node from starting.
            require_private(self._folder, self._folder.stat())
            self._database = Database(path, _OWNER_SCHEMA, _OWNER_VERSION, is_exclusive=False)
        return self._database

    def _write(self, *statements: Statement) -> None:
        database = self._open(is_made=True)
        if database is not None:
            database.write(*statements)


def node_folder(given: Path) -> Path:
    """Return the folder of a node's own files: the path itself, or its subfolder in a party's folder.

    Raises UsageError (code "node-folder").
    """
    for place in (given, given / "state"):
        if (place / "node.db").is_file():
            return place
    raise UsageError("node-folder", folder=given)


@contextmanager
def owner_desk(given: Path) -> Iterator[OwnerDesk]:
    """Open the desk of the node whose folder this is; raise as `node_folder` does."""
    desk = OwnerDesk(node_folder(given))
    try:
        yield desk
    finally:
        desk.close()
