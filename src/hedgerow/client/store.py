"""A node's own state of its run, on its own disk: written before anything is sent that depends on it.

Beside the database stands a small counter file: the last step, the last round masked, the last answered or released,
and the hash of the manifest that was answered since that step. It is written after the database and before the message
leaves. A database that is older than its counter was restored from a backup: its slots may have been used, so it is
never resumed, and no round up to the counter is masked again.

SQLite keeps what was replaced in its log and in free pages, and with it the keys of past slots. So a step is encrypted
under a key that follows one way from the step's before it. Only the last one is kept: in the counter file, in place of
the one before. A database without its counter is closed, and one with it opens at the last step only.

What an epoch fixes is written once, when it is ready; a step is a few kilobytes. A masked vector costs two writes that
wait for the disk, and neither can be saved: the database's, or a node that lost power would use a slot again; the
counter's, or a database restored after that would pass for the newest. Shares cost one: what they are follows from the
step before and the request, so the manifest's hash in the counter is enough to answer it again, and no other. The whole
step is written when nobody waits for it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from hedgerow.client.counter import EVERY_ROUND, Counter, CounterFile
from hedgerow.methods.tasks import Task, task_from_text, task_to_text
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.events import Event, event_from_dict, event_to_json
from hedgerow.protocol.queries import IntVector
from hedgerow.secagg.keys import next_state_key
from hedgerow.secagg.participant import Participant, locked, unlocked
from hedgerow.secagg.transitions import Code, OwnMistake, refuse
from hedgerow.secagg.view import Cohort
from hedgerow.storage.database import Database, Statement, require_private

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
create table if not exists sites (name text primary key)
""" + "".join(
    # Their rows are their keys: without a table beside the index, a step writes a fifth less to the disk.
    f";create table if not exists {name} (run_id blob, {column}, primary key (run_id, {key})) without rowid"
    for name, column, key in (
        ("purposes", "purpose text", "purpose"),
        ("origins", "digest blob, seed integer", "digest"),
        ("spent", "round integer, event text", "round, event"),
        ("masked", "round integer, cohort text", "round, cohort"),
    )
)
_VERSION, OPEN, JOINING = 6, "open", "joining"
"""A run is "joining" from just before its cost is reserved in the budget book until it is open."""
_DELTA = 1e-6
"""At which two events are compared; which of two Gaussian events is the dearer one does not depend on it."""
_LOST_ROUND = -1
"""Stands among the rounds that were paid for when a database was older than its counter, or lost."""


@dataclass(frozen=True)
class NodeStep:
    """What one step of a node changes; all of it is written, or nothing.

    Attributes:
        participant: the state of secure aggregation after the step, or None when the step did not change it.
        releases: releases received, by round.
        spent: the round that a masked vector is about to be sent for, and what its release costs.
        answered: the round whose shares are about to be sent, and the hash of the manifest that they answer. Without
            `participant`, they are those that follow from the step written last.
        origin: digest of the epoch whose nonces seed the trees in this run for good, and the seed.
        masked: the epoch in which the vector of `spent` is about to be sent.
    """

    participant: Participant | None = None
    releases: tuple[tuple[int, IntVector], ...] = ()
    spent: tuple[int, Event] | None = None
    answered: tuple[int, bytes] | None = None
    origin: tuple[bytes, int] | None = None
    masked: Cohort | None = None


@dataclass(frozen=True)
class StoredRun:
    """A run as it was when the node last wrote.

    Attributes:
        participant: None before the first epoch is ready, and after a rollback.
        answered: all rounds whose shares may have left, in any epoch.
        origin: see `NodeStep`; None before the node saw one.
        masked: every round in which a masked vector has left, and the epoch.
        fault: why the participant cannot be resumed; None when it can, or when there is none.
    """

    run_id: bytes
    task: Task
    data_digest: bytes
    attempt: int
    participant: Participant | None
    releases: tuple[IntVector, ...]
    answered: frozenset[int]
    origin: tuple[bytes, int] | None
    masked: frozenset[tuple[int, Cohort]]
    fault: OwnMistake | None = None


@dataclass
class NodeStore:
    """The state of the runs of one node, in one folder.

    Raises:
        EnvironmentFault: the disk is full, another process has the folder open, or the folder or a file in it is not
            this user's alone; nothing has changed then.
    """

    folder: Path
    database: Database = field(init=False)
    _counter: Counter = field(init=False)
    _sequence: int = field(init=False, default=0)
    _epoch: bytes = field(init=False, default=b"")
    """Digest of the epoch that the database holds, and the purposes answered in it."""
    _purposes: frozenset[str] = field(init=False, default=frozenset())
    _key: str = field(init=False, repr=False, default="")
    """Of the step that the database holds; the counter has it too, or the one before."""
    _counter_file: CounterFile = field(init=False)
    _barred: int = field(init=False, default=-1)
    """The last round that must not be answered again, as `load` or `open_run` found it in either file."""

    def __post_init__(self) -> None:
        if self.folder.is_dir():
            require_private(self.folder, self.folder.stat())
        self.database = Database(self.folder / "node.db", _SCHEMA, _VERSION)
        self._counter_file = CounterFile(self.folder / "counter.json")
        self._counter = self._counter_file.read()

    def note_site(self, name: str) -> None:
        """Note that this is the state of the node of this name, so that no other's cost is read from it."""
        if name not in self.sites():
            self.database.write(("insert or ignore into sites values (?)", (name,)))

    def sites(self) -> frozenset[str]:
        """The nodes that have worked with this state, one if all is well; none in a state of an earlier version."""
        return frozenset(row[0] for row in self.database.rows("select name from sites"))

    def note_joining(self, run_id: bytes, task: Task, data_digest: bytes) -> None:
        """Note that a run is about to be taken up, before anything else tells of it; nothing of it is answered yet.

        Without this a node that was stopped between its two files would take a run that it never answered for one whose
        state it has lost.
        """
        values = (run_id, task_to_text(task), data_digest, JOINING)
        self.database.write(("insert or ignore into run values (?, ?, ?, ?, 0, null)", values))

    def forget_joining(self, run_id: bytes) -> None:
        """Such a run was not taken up."""
        self.database.write(("delete from run where run_id = ? and status = ?", (run_id, JOINING)))

    def open_run(self, run_id: bytes, task: Task, data_digest: bytes) -> frozenset[int]:
        """Begin a run, or one again that was left before anything of it was answered; any other open one must have been
        closed. Returns the rounds that may not be answered again.
        """
        barred = self._counter.last_barred if self.knows(run_id) else -1
        is_lost = self.knows(run_id) and self.has_masked(run_id)
        attempt = self.attempt_of(run_id)
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
            *([_spending_lost(run_id)] if is_lost else []),
        )
        self._barred = barred
        return frozenset(range(barred + 1))

    def renew_rows(self, run_id: bytes, data_digest: bytes) -> None:
        """The owner gave other rows before anything of the run was answered."""
        self.database.write(("update run set data_digest = ? where run_id = ?", (data_digest, run_id)))

    def status_of(self, run_id: bytes) -> str | None:
        """Whether a run is "open", how it ended, or None for one that is not here."""
        rows = self.database.rows("select status from run where run_id = ?", (run_id,))
        return rows[0][0] if rows else None

    def attempt_of(self, run_id: bytes) -> int:
        """The attempt of the last epoch of a run that this node enrolled in; 0 for none."""
        rows = self.database.rows("select attempt from run where run_id = ?", (run_id,))
        return rows[0][0] if rows else 0

    def origin_of(self, run_id: bytes) -> tuple[bytes, int] | None:
        """The epoch whose nonces seed the trees of a run, as this node has seen, and the seed; kept for good."""
        rows = self.database.rows("select digest, seed from origins where run_id = ?", (run_id,))
        return rows[0] if rows else None

    def has_masked(self, run_id: bytes) -> bool:
        """Whether a masked vector of this run may have left; False only where both files say that none has."""
        is_counted = self.knows(run_id) and self._counter.masked != -1
        return is_counted or self.spent(run_id) != []

    def charge(self, run_id: bytes) -> list[Event] | None:
        """What a run has cost that is not gone on with; None where that is not known, and all of it has to be charged.

        Of the run that is open it is true after `load`, which sees whether a file is older than the other.
        """
        spent = self.spent(run_id)
        is_known = self.status_of(run_id) is not None and (spent != [] or not self.has_masked(run_id))
        return spent if is_known else None

    def run_ids(self, status: str | None = None) -> list[bytes]:
        """All runs that this node has ever been in, or those of one status; one that it is joining is of that only."""
        if status is None:
            return [row[0] for row in self.database.rows("select run_id from run where status != ?", (JOINING,))]
        return [row[0] for row in self.database.rows("select run_id from run where status = ?", (status,))]

    def knows(self, run_id: bytes) -> bool:
        """Whether the counter file speaks of this run, though the database may have been lost."""
        return self._counter.run_id == run_id.hex()

    def last_masked(self, run_id: bytes) -> int:
        """The last round in which a masked vector may have left, whatever became of the database; -1 for none."""
        return self._counter.masked if self.knows(run_id) else EVERY_ROUND

    def save_attempt(self, run_id: bytes, attempt: int) -> None:
        """An epoch's set-up begins; what was before it is not resumed. Written before the node's keys are sent."""
        known = self._counter if self.knows(run_id) else Counter(run_id.hex(), masked=EVERY_ROUND)
        barred = max(known.answered, self._barred)
        self.database.write(
            ("update run set attempt = ?, epoch = null where run_id = ?", (attempt, run_id)),
            ("update steps set sequence = 0, step = null, barred = ? where run_id = ?", (barred, run_id)),
            ("delete from purposes where run_id = ?", (run_id,)),
        )
        self._start(replace(known, attempt=attempt, sequence=0, answered=barred))

    def _start(self, counter: Counter) -> None:
        """There is no step yet; those to come are stored under keys that nobody had before."""
        self._sequence, self._epoch, self._purposes, self._key = 0, b"", frozenset(), secrets.token_hex(32)
        self._write_counter(replace(counter, key=self._key, manifest=""))

    def save(self, run_id: bytes, step: NodeStep) -> None:
        """Write one step; when this returns, the message that belongs to it may be sent."""
        statements: list[Statement] = []
        for number, release in step.releases:
            content = release.astype("<i8").tobytes()
            statements.append(("insert or replace into releases values (?, ?, ?)", (run_id, number, content)))
        if step.spent is not None:
            text = event_to_json(step.spent[1])
            statements.append(("insert or ignore into spent values (?, ?, ?)", (run_id, step.spent[0], text)))
        if step.spent is not None and step.masked is not None:
            masked = (run_id, step.spent[0], step.masked.to_json())
            statements.append(("insert or ignore into masked values (?, ?, ?)", masked))
        if step.origin is not None:
            statements.append(("insert into origins values (?, ?, ?)", (run_id, *step.origin)))
        sequence, key = self._sequence, self._key
        if step.participant is not None:
            # From the counter's key and not from this one's: a step that the counter did not reach is written again.
            sequence, key = step.participant.sequence, _following(self._counter.key)
            statements += self._statements_of(run_id, step.participant, (key, self._over(step)))
        if statements:
            self.database.write(*statements)
        self._sequence, self._key = sequence, key
        if step.participant is not None:
            self._epoch, self._purposes = step.participant.view.digest, step.participant.purposes
        if step.participant is not None or step.answered is not None:
            self._count(run_id, step)

    def is_behind(self, participant: Participant) -> bool:
        """Whether only the counter tells of this step."""
        return participant.sequence > self._sequence

    def settle(self, run_id: bytes, participant: Participant) -> None:
        """Write such a step; what opened its slot is then on the disk no more."""
        if self.is_behind(participant):
            self.save(run_id, NodeStep(participant))

    def _count(self, run_id: bytes, step: NodeStep) -> None:
        """Note in the counter what the database holds now, and what is over."""
        known = self._counter
        manifest = known.manifest if step.participant is None else ""
        if step.answered is not None and step.participant is None:
            manifest = step.answered[1].hex()
        masked = known.masked if step.spent is None else max(known.masked, step.spent[0])
        place = (known.attempt, self._sequence)
        self._write_counter(Counter(run_id.hex(), *place, self._over(step), masked, self._key, manifest))

    def _over(self, step: NodeStep) -> int:
        """The last round that is over with this step; both files tell of it, for one of them may be lost."""
        # A round that was released is over, whether or not this node was asked to help to open its sum.
        over = [self._counter.answered, *(number for number, _ in step.releases)]
        return max(over if step.answered is None else [*over, step.answered[0]])

    def _statements_of(self, run_id: bytes, participant: Participant, kept: tuple[str, int]) -> list[Statement]:
        """What writes a participant's step under its key, the last round barred, and its epoch if that is not here."""
        key, barred = kept
        statements: list[Statement] = []
        known = self._purposes
        if self._epoch != participant.view.digest:
            known = frozenset()
            statements.append(("update run set epoch = ? where run_id = ?", (participant.epoch_bytes(), run_id)))
            statements.append(("delete from purposes where run_id = ?", (run_id,)))
        for purpose in sorted(participant.purposes - known):
            statements.append(("insert into purposes values (?, ?)", (run_id, purpose)))
        sequence = participant.sequence
        state = locked(bytes.fromhex(key), participant.step_bytes(), run_id, sequence, secrets.token_bytes)
        values = (sequence, state, barred, run_id)
        statements.append(("update steps set sequence = ?, step = ?, barred = ? where run_id = ?", values))
        return statements

    def spent(self, run_id: bytes) -> list[Event] | None:
        """What the rounds of a run have cost in which this node sent a masked vector; None when that was lost.

        A round that was begun anew may have had other noise the second time. Whichever of the two sums was opened, only
        one was, for the sites answer a purpose once; so the dearer one is charged.
        """
        rows = self.database.rows("select round, event from spent where run_id = ? order by round", (run_id,))
        if any(number == _LOST_ROUND for number, _ in rows):
            return None
        attempts: dict[int, list[Event]] = {}
        for number, text in rows:
            attempts.setdefault(number, []).append(event_from_dict(json.loads(text)))
        return [_dearest(events) for events in attempts.values()]

    def keep_model(self, digest: bytes) -> None:
        """Note that this node helped to make the model of this digest."""
        self.database.write(("insert or ignore into models values (?)", (digest,)))

    def models(self) -> frozenset[bytes]:
        """Digests of the models that this node helped to make."""
        return frozenset(row[0] for row in self.database.rows("select digest from models"))

    def _forget_spent(self, run_id: bytes) -> None:
        """Note for good that steps of this run were lost, and with them what rounds have cost."""
        self.database.write(_spending_lost(run_id))

    def close_run(self, run_id: bytes, status: str) -> None:
        """The run has ended here and its secrets are forgotten.

        It is never opened again, unless it was left before a masked vector of it had left.
        """
        self.database.write(
            ("update run set status = ?, epoch = null where run_id = ?", (status, run_id)),
            ("delete from steps where run_id = ?", (run_id,)),
            ("delete from purposes where run_id = ?", (run_id,)),
            ("delete from releases where run_id = ?", (run_id,)),
        )
        if self.knows(run_id):
            self._key = ""
            self._write_counter(replace(self._counter, key="", manifest=""))

    def load(self) -> StoredRun | None:
        """The run that is open, if any."""
        rows = self.database.rows(
            "select run_id, task, data_digest, attempt, sequence, epoch, step, barred"
            " from run join steps using (run_id) where status = ?",
            (OPEN,),
        )
        if not rows:
            if self._counter.key:
                # A crash kept `close_run` from the last thing that it does.
                self._write_counter(replace(self._counter, key="", manifest=""))
            return None
        run_id, task, data_digest, attempt, sequence, epoch, step, barred = rows[-1]
        masked = self.database.rows("select round, cohort from masked where run_id = ?", (run_id,))
        participant, fault = None, None
        self._barred = max(barred, self._counter.answered) if self.knows(run_id) else barred
        try:
            participant = self._restore(run_id, (epoch, step), (attempt, sequence))
        except OwnMistake as mistake:
            # Without its traceback, whose frames hold the step that was refused, secrets and all.
            fault = mistake.with_traceback(None)
            fault.__cause__ = fault.__context__ = None
            self._forget_spent(run_id)
            # One of the two files was lost or is too old, and what the other tells of may have been opened since.
            last = self._counter.last_barred if self.knows(run_id) else -1
            self._barred = max(self._barred, last, *(number for number, _ in masked))
            self.database.write(("update steps set barred = ? where run_id = ?", (self._barred, run_id)))
        self._sequence = sequence
        if self.knows(run_id):
            reached = replace(self._counter, answered=self._barred)
            if participant is not None and (attempt, sequence) != (reached.attempt, reached.sequence):
                reached = replace(reached, attempt=attempt, sequence=sequence, key=self._key, manifest="")
            if reached != self._counter:
                self._write_counter(reached)
        return StoredRun(
            run_id, task_from_text(task), data_digest, attempt, participant, self._releases(run_id),
            frozenset(range(self._barred + 1)), self.origin_of(run_id),
            frozenset((number, Cohort.from_json(text)) for number, text in masked), fault,
        )  # fmt: skip

    def _restore(
        self, run_id: bytes, parts: tuple[bytes | None, bytes | None], step: tuple[int, int]
    ) -> Participant | None:
        """Raises OwnMistake ROLLED_BACK or CORRUPT_STATE."""
        is_counted = self._counter.run_id == run_id.hex()
        # A crash between the two files leaves the counter one step behind; nothing was sent then.
        counted = (self._counter.attempt, self._counter.sequence)
        if not is_counted or step < counted:
            raise refuse(Code.ROLLED_BACK, f"It is step {step} of (attempt, step), the counter says {counted}.")
        epoch, state = parts
        if epoch is None or state is None:
            return None
        purposes = [row[0] for row in self.database.rows("select purpose from purposes where run_id = ?", (run_id,))]
        self._key = self._counter.key if step == counted else _following(self._counter.key)
        opened = unlocked(bytes.fromhex(self._key), state, run_id, step[1])
        participant = Participant.restore_parts(epoch, opened, purposes, step[1])
        self._epoch, self._purposes = participant.view.digest, participant.purposes
        is_answered = step == counted and self._counter.manifest
        return participant.reminded(bytes.fromhex(self._counter.manifest)) if is_answered else participant

    def _releases(self, run_id: bytes) -> tuple[IntVector, ...]:
        rows = self.database.rows("select content from releases where run_id = ? order by round", (run_id,))
        return tuple(np.frombuffer(content, dtype="<i8").astype(np.int64) for (content,) in rows)

    def close(self) -> None:
        """Close the files."""
        self.database.close()
        self._counter_file.close()

    def _write_counter(self, counter: Counter) -> None:
        self._counter_file.write(counter)
        self._counter = counter


def _dearest(events: Sequence[Event]) -> Event:
    """The event that costs most by itself."""
    if len(events) == 1:
        return events[0]
    return max(events, key=lambda event: get_accountant("gdp").epsilon([event], _DELTA))


def _spending_lost(run_id: bytes) -> Statement:
    return "insert or ignore into spent values (?, ?, 'null')", (run_id, _LOST_ROUND)


def _following(key: str) -> str:
    return next_state_key(bytes.fromhex(key)).hex()
