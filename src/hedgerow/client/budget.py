# SPDX-License-Identifier: Apache-2.0
"""The budget book: the cost of every run over a data set, for its whole life.

A run's whole cost is reserved before the run begins, and the unused part is given back when it has ended. All runs of a
data set are composed by the exact accountant, at one delta; a run that would exceed the owner's epsilon is refused. The
book is kept apart from a node's other state, so that losing the one does not lose the other.

Nodes may share a book, and several of them may be in one run: each has a line of its own, and settles only that line. A
person may be in the rows of each node, so such lines are composed like rows of one person (`list_costs`). A line names
the state folder of its run, so that a run that does not go on can be settled at its real cost.

Runs in one process (`hedgerow.local.accounts`) have lines without a node, written with `put`. A line without a data set
may be over any rows that the book is for. So its account holds all runs of the book, and every account includes it.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hedgerow.errors import EnvironmentFault, PolicyRefusal
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import get_accountant, mu_of
from hedgerow.privacy.cost import for_rows
from hedgerow.privacy.events import Event, GaussianEvent, PureEvent, UnnoisedEvent, event_from_dict, scope_events
from hedgerow.privacy.rounding import format_up
from hedgerow.secagg.guarantees import MAX_ATTEMPTS
from hedgerow.secagg.messages import MAX_HANDED_BACK
from hedgerow.storage import Database, Statement

_SCHEMA = """
create table if not exists runs (
    run_id text not null, site text not null, state text not null, data_set text not null, plan_name text not null,
    plan_digest text not null, unit text not null, status text not null, events text not null,
    begun text not null default '', primary key (run_id, site)
);
create table if not exists invitations (
    site text, kind text, plan_digest text, plan_name text, epsilon real, answer text, count integer not null,
    first text not null, last text not null, primary key (site, kind, plan_digest, plan_name, epsilon, answer)
);
create table if not exists draws (
    site text, plan_digest text, run_id text, attempt integer, primary key (site, plan_digest, run_id, attempt)
);
create table if not exists groups (about text primary key, members text not null);
create table if not exists epochs (epoch text, site text, run_id text not null, slot integer,
    primary key (epoch, site));
create table if not exists losses (
    epoch text, data_set text, is_charged integer not null, primary key (epoch, data_set)
)"""
_UPGRADES = {
    # A book of this version did not record the epochs of its nodes.
    4: "",
    # A book of this version did not record of which data set it had lost an epoch.
    5: "create table losses (epoch text, data_set text, is_charged integer not null, primary key (epoch, data_set));"
    "insert into losses select epoch, '', is_charged from lost; drop table lost",
}
_VERSION = 6

MAX_INVITATIONS = 1000
"""Most lines of the list of invitations; further ones are counted by their answer alone."""
_MAX_NAME = 80
_WEIGHTLESS = 1e9
"""Noise multiplier with which a release costs only the rounding to its grid."""
MAX_UNUSED_DRAWS = MAX_ATTEMPTS
"""Most set-ups of a plan in which a node reveals its nonce without masking anything: as many as one run has."""
RESERVED, FINISHED, STOPPED, LEFT, CLOSED = "reserved", "finished", "stopped", "left", "closed"
REFUSED = "refused"
"""The status of a run in one process that did not fit into its budget, and has released nothing."""
ALL_ROWS = ""
"""The data set of runs whose owner named none: all rows that the book is for."""
ACCEPTED = "accepted"
_RESTORED = "restored"
"""Entry among the lost epochs in a book that came out of a backup. It is of no data set, and so of each."""
Charge = tuple[Sequence[Event], Mapping[bytes, int]] | None
"""The events that a run has used, and the last counted slot of each of its epochs; None if unknown, and then everything
that was reserved is charged."""


@dataclass(frozen=True)
class BudgetLine:
    """One node's part in one run.

    While the run may go on, its status is "reserved" and the events are the plan's; afterwards the events are those
    that it used. A run over nodes is then "finished", "stopped" by its coordinator, "left" by this node before its end,
    or "closed" by its owner. A run in one process is "finished", "stopped" by an error, or "refused". `site` and
    `state` are the node's name and folder. Both are empty for a run in one process, or for runs that the book has lost.
    `begun` is the time of the reservation, in UTC.
    """

    run_id: str
    site: str
    state: str
    data_set: str
    plan_name: str
    plan_digest: str
    unit: str
    status: str
    events: tuple[Event, ...]
    begun: str = ""

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of this run by itself."""
        return compose_epsilon(self.events, delta)


@dataclass(frozen=True)
class InvitationLine:
    """The requests of coordinators to this site; equal questions with equal answers are one line.

    Attributes:
        site: the site that was asked.
        kind: "training", "evaluation", "survey", or "other" for those that the list has no room for.
        plan_digest, plan_name: those of the plan; the digest is the message's if it could not be read.
        epsilon: the most that the run may cost; infinity if unbounded or unreadable.
        answer: "accepted", or the code word of the refusal.
        count: the number of such requests.
        first, last: times of the first and last one, in UTC.
    """

    site: str
    kind: str
    plan_digest: str
    plan_name: str
    epsilon: float
    answer: str
    count: int
    first: str
    last: str


class BudgetBook:
    """The budget book in one file.

    Raises EnvironmentFault if the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        # Do not lock the file: `hedgerow ledger` reads it while a node runs.
        self._database = Database(
            path, _SCHEMA, _VERSION, is_exclusive=False, upgrades=_UPGRADES, damaged="book-damaged"
        )
        self._site = self._state = self._data_set = ""
        name = path.name.replace("budget", "peers")
        self.peers = PeerBook(path.with_name(name if name != path.name else f"{path.name}.peers"))

    def serve(self, site: str, state: str | Path, data_set: str = "") -> None:
        """Set the node whose lines this object reads, reserves and settles; `lines` still shows all.

        Args:
            data_set: that of the node's policy, if the node is to take part: only its losses keep the node away.
        """
        self._site, self._state, self._data_set = site, str(Path(state).resolve()), data_set

    def lines(self, data_set: str | None = None) -> list[BudgetLine]:
        """Return the runs of a data set, or of all, by all nodes, oldest first.

        Names that look alike are one data set: `fold_name`. Runs without a data set (`ALL_ROWS`) may be over any rows
        that the book is for: their account has all runs, and they are in every account.
        """
        rows = self._database.rows(
            "select run_id, site, state, data_set, plan_name, plan_digest, unit, status, events, begun from runs"
            " order by rowid"
        )
        wanted, first, found = fold_name(data_set or ALL_ROWS), dict[str, str](), []
        for run_id, site, state, name, plan, digest, unit, status, events, begun in rows:
            own = first.setdefault(fold_name(name), name)
            if is_in_account(name, wanted):
                read = _read(events, run_id)
                found.append(BudgetLine(run_id, site, state, own, plan, digest, unit, status, read, begun))
        return found

    def describe(self, delta: float) -> dict[str, Any]:
        """Return every data set with its runs and costs at a delta, as JSON: `hedgerow ledger --json`."""
        names = list(dict.fromkeys(line.data_set for line in self.lines()))
        return {
            "delta": delta,
            "data_sets": [
                {
                    "data_set": name,
                    "epsilon": self.spent(name, delta),
                    **_describe_units(self.lines(name), delta),
                    "runs": [
                        {
                            "run_id": line.run_id,
                            "site": line.site,
                            "plan": line.plan_name,
                            "plan_digest": line.plan_digest,
                            "unit": line.unit,
                            "status": line.status,
                            "epsilon": line.epsilon(delta),
                            "begun": line.begun,
                        }
                        for line in self.lines(name)
                    ],
                }
                for name in names
            ],
        }

    def has(self, run_id: bytes) -> bool:
        """Return whether the book has this node's part in a run."""
        return self.find_status(run_id) is not None

    def find_status(self, run_id: bytes) -> str | None:
        """Return the status of this node's line for a run; None if there is no line."""
        rows = self._database.rows("select status from runs where run_id = ? and site = ?", (run_id.hex(), self._site))
        return rows[0][0] if rows else None

    def find_data_set(self, run_id: bytes) -> str:
        """Return the data set that this node's line of a run is charged to; empty if there is no line."""
        where = (run_id.hex(), self._site)
        rows = self._database.rows("select data_set from runs where run_id = ? and site = ?", where)
        return rows[0][0] if rows else ""

    def list_runs(self) -> set[str]:
        """Return the runs that the book has lines of."""
        return {run_id for (run_id,) in self._database.rows("select run_id from runs")}

    def list_charged(self) -> set[bytes]:
        """Return the runs that are settled for this node and have cost something."""
        lines = (line for line in self.lines() if line.site == self._site)
        return {bytes.fromhex(line.run_id) for line in lines if line.status != RESERVED and line.events}

    def list_reserved(self) -> list[bytes]:
        """Return the runs that are reserved for this node in its present folder."""
        rows = self._database.rows(
            "select run_id from runs where site = ? and state = ? and status = ? order by rowid",
            (self._site, self._state, RESERVED),
        )
        return [bytes.fromhex(run_id) for (run_id,) in rows]

    def claim(self, run_ids: Iterable[bytes]) -> None:
        """Record this node's folder, which may have been moved, for these runs if they are reserved."""
        sql = "update runs set state = ? where run_id = ? and site = ? and status = ? and state != ?"
        values = [(self._state, run_id.hex(), self._site, RESERVED, self._state) for run_id in run_ids]
        self._database.write(*((sql, each) for each in values))

    def require_runs(self, run_ids: Iterable[bytes]) -> None:
        """Raise PolicyRefusal unless the book has all these runs and has lost none.

        A run is reserved here before a node takes it up. So a node that was in a run which the book does not know has
        received a new book, or an older copy: code "budget-lost". The code is "budget-rolled-back" if a peer has shown
        that the book has lost runs, and "budget-restored" if it came out of a backup, until the owner has charged for
        the missing ones (`charge_lost`).
        """
        if code := self.find_block():
            raise PolicyRefusal("budget-restored" if code == "budget-restored" else "budget-rolled-back")
        if not all(self.has(run_id) for run_id in run_ids):
            raise PolicyRefusal("budget-lost")

    def find_block(self, data_set: str = "") -> str:
        """Return the code of the charge that an owner owes before a data set's node takes part again; "" for none.

        Args:
            data_set: empty for the one of the node that the book serves, or for any if it serves none.
        """
        named = fold_name(data_set or self._data_set)
        rows = self._database.rows("select epoch, data_set, is_charged from losses")
        own = [(epoch, is_charged) for epoch, of, is_charged in rows if not named or of in ("", named)]
        # What is lost of no named data set is owed for each of them until it is charged for that one.
        lost = {epoch for epoch, _ in own} - {epoch for epoch, is_charged in own if is_charged}
        return "" if not lost else "budget-restored" if lost == {_RESTORED} else "budget-rolled-back"

    def require_reserved(self, run_id: bytes) -> None:
        """Raise PolicyRefusal "run-closed" or "budget-lost" for a run whose line has been settled.

        A settled line is never charged again, so nothing more may leave the node, however the line was settled.
        """
        self.require_runs([run_id])
        status = self.find_status(run_id)
        if status is not None and status != RESERVED:
            raise PolicyRefusal("run-closed", status=status)

    def require_data_set(self, run_id: bytes, data_set: str) -> None:
        """Raise PolicyRefusal "policy-data-set" if this node's line for a run is of another data set.

        The answers are charged to that line, and would be on no account of the data set whose rows are used.
        """
        others = [line for line in self.lines() if fold_name(line.data_set) != fold_name(data_set)]
        for line in others:
            if line.run_id == run_id.hex() and line.site == self._site:
                asked = f"a run that is counted for the data set {line.data_set!r}, where this one is {data_set!r}"
                raise PolicyRefusal("policy", code="policy-data-set", asked=asked)

    def spent(self, data_set: str, delta: float, more: Sequence[Event] = ()) -> float:
        """Return the epsilon of all runs of a data set together, reserved ones and `more` included.

        `more` are the events of another run.
        """
        before = list_costs(self.lines(data_set))
        return compose_epsilon((*before, *scope_events(more, "another run")), delta)

    def reserve(
        self,
        run_id: bytes,
        data_set: str,
        plan: Plan,
        events: Sequence[Event],
        limit: tuple[float, float],
        leaving: Mapping[bytes, Charge] | None = None,
        *,
        is_kept: bool = True,
    ) -> float:
        """Reserve a run's whole cost for this node; do nothing if it is reserved for it already.

        A run that was left before it cost anything may be reserved again.

        Args:
            limit: the owner's (epsilon, delta).
            leaving: the runs that the node leaves for this one, with the charge of each. They are settled in the same
                write; if this run is refused, they stay reserved.
            is_kept: False to compute the result without writing anything.

        Returns:
            The epsilon of the data set with this run.

        Raises:
            PolicyRefusal: policy-over-budget; policy-data-set, as `require_data_set`; run-closed for a run that has
                ended, or is reserved for another plan or at another cost; policy-unit if earlier runs of the data set
                protected another unit, because their costs cannot be added.
        """
        # Use one transaction: another process may share the book, and must not change it between reading and writing.
        with self._database.transaction(is_kept=is_kept) as execute:
            for left, used in (leaving or {}).items():
                for statement in self._settle(left, used, LEFT):
                    execute(*statement)
            if self._has_room(run_id, data_set, plan, events, limit):
                place = (run_id.hex(), self._site, self._state)
                execute(
                    "insert or replace into runs values (?, ?, ?, ?, ?, ?, ?, ?, ?, datetime('now'))",
                    (*place, data_set, plan.name, plan.digest, plan.privacy.unit, RESERVED, _encode_events(events)),
                )
            return self.spent(data_set, limit[1])

    def _has_room(
        self, run_id: bytes, data_set: str, plan: Plan, events: Sequence[Event], limit: tuple[float, float]
    ) -> bool:
        """Check that a run fits into the budget, writing nothing; return False if it is reserved already.

        Raises as `reserve`.
        """
        self.require_data_set(run_id, data_set)
        lines, own = self.lines(data_set), tuple(scope_events(events, run_id.hex()))
        for line in lines:
            if line.run_id == run_id.hex() and line.site == self._site:
                if line.status == RESERVED:
                    # A node that has lost its database does not know the run's task; the book does.
                    if line.plan_digest != plan.digest or line.events != own:
                        raise PolicyRefusal("run-of-another-task")
                    return False
                if line.status != LEFT or line.events:
                    raise PolicyRefusal("run-closed", status=line.status)
            if line.events and line.unit not in ("", plan.privacy.unit):
                raise PolicyRefusal("policy-unit-of-earlier-runs", unit=plan.privacy.unit, earlier=line.unit)
        epsilon, delta = limit
        place = (run_id.hex(), self._site, self._state, data_set, plan.name, plan.digest, plan.privacy.unit)
        total = compose_epsilon(list_costs([*lines, BudgetLine(*place, RESERVED, own)]), delta)
        if total > epsilon:
            raise PolicyRefusal(
                "policy-over-budget",
                data_set=data_set,
                total=format_up(total, 4),
                delta=format_up(delta),
                epsilon=epsilon,
                spent=format_up(compose_epsilon(list_costs(lines), delta), 4),
            )
        return True

    def put(self, line: BudgetLine, limit: tuple[float, float] | None = None) -> None:
        """Write the line of a run in one process, replacing its earlier line.

        Args:
            limit: the (epsilon, delta) that all runs of its data set may cost; None for no limit.

        Raises:
            PolicyRefusal: as `require_room`; nothing is written then.
        """
        with self._database.transaction() as execute:
            if limit is not None:
                require_room(self.lines(line.data_set), line, limit)
            execute(
                "insert into runs values (?, ?, ?, ?, ?, ?, ?, ?, ?, datetime('now')) on conflict do update"
                " set status = excluded.status, events = excluded.events, plan_digest = excluded.plan_digest",
                (
                    line.run_id, line.site, line.state, line.data_set, line.plan_name, line.plan_digest, line.unit,
                    line.status, _encode_events(line.events),
                ),
            )  # fmt: skip

    def settle(self, run_id: bytes, charge: Charge, status: str) -> None:
        """Close this node's line for a run with its charge; a closed line stays as it is."""
        self._database.write(*self._settle(run_id, charge, status))

    def _settle(self, run_id: bytes, charge: Charge, status: str) -> list[Statement]:
        """Return the statements that close a line, and record how far its epochs are counted."""
        run = (run_id.hex(), self._site)
        is_open = f"exists (select 1 from runs where run_id = ? and site = ? and status = '{RESERVED}')"
        # An epoch without a slot is counted completely.
        sql = f"update epochs set slot = ? where run_id = ? and site = ? and {is_open}"
        statements: list[Statement] = [(sql, (None if charge is None else -1, *run, *run))]
        sql = (
            f"insert into epochs select ?, ?, ?, ? where {is_open}"
            " on conflict do update set run_id = excluded.run_id, slot = excluded.slot"
        )
        for epoch, slot in () if charge is None else charge[1].items():
            # A book that was restored while the run was reserved may lack the epoch; the node's state has it.
            statements.append((sql, (epoch.hex(), self._site, run_id.hex(), slot, *run)))
        written = None if charge is None else _encode_events(charge[0])
        sql = "update runs set status = ?, events = coalesce(?, events) where run_id = ? and site = ? and status = ?"
        return [*statements, (sql, (status, written, *run, RESERVED))]

    def note_invitation(self, asked: tuple[str, str, str, float], answer: str) -> None:
        """Write a coordinator's request, and the answer to it, to the disk.

        Args:
            asked: kind, digest, name and epsilon, as in `InvitationLine`.
        """
        kind, digest, name, epsilon = asked
        # The name comes from a stranger, so make it safe to show.
        name = "".join(letter if letter.isprintable() else "?" for letter in name[:_MAX_NAME])
        place = (self._site, kind, digest, name, math.inf if math.isnan(epsilon) else epsilon)
        with self._database.transaction() as execute:
            columns = "(site, kind, plan_digest, plan_name, epsilon, answer)"
            known = f"select 1 from invitations where {columns} = (?, ?, ?, ?, ?, ?)"
            ((n_lines,),) = self._database.rows("select count(*) from invitations")
            if n_lines >= MAX_INVITATIONS and not self._database.rows(known, (*place, answer)):
                place = (self._site, "other", "", "", 0.0)
            execute(
                "insert into invitations values (?, ?, ?, ?, ?, ?, 1, datetime('now'), datetime('now')) on conflict do"
                " update set count = count + 1, last = datetime('now')",
                (*place, answer),
            )

    def invitations(self) -> list[InvitationLine]:
        """Return the coordinators' requests, accepted or refused, oldest first."""
        return [InvitationLine(*row) for row in self._database.rows("select * from invitations order by rowid")]

    def note_draw(self, plan_digest: str, run_id: bytes, attempt: int) -> None:
        """Write to the disk that this node is about to reveal its nonce in a set-up.

        A node whose database was lost takes part under a number that it has used before: that counts as another set-up.
        """
        place = (self._site, plan_digest, run_id.hex())
        self._database.write(
            (
                "insert into draws select ?, ?, ?, max(?, coalesce(max(attempt), 0) + 1) from draws"
                " where site = ? and plan_digest = ? and run_id = ?",
                (*place, attempt, *place),
            )
        )

    def require_group(self, about: str, members: bytes) -> None:
        """Write the group in which rows are summed, before the first sum; refuse another group.

        The book holds it, because it has to outlast the node's database. Sums of other groups over the same rows, exact
        ones above all, would reveal single sites' sums by their differences.

        Raises PolicyRefusal "group-changed".

        Args:
            about: names the rows, or one run over them.
            members: a digest of the group.
        """
        with self._database.transaction() as execute:
            rows = self._database.rows("select about, members from groups")
            if not {found for other, found in rows if fold_name(other) == fold_name(about)} <= {members.hex()}:
                raise PolicyRefusal("group-changed")
            execute("insert or ignore into groups values (?, ?)", (about, members.hex()))

    # What peers remember ----------------------------------------------------------------------------------------------
    # A book and a state that were restored together agree with each other, and have forgotten the same runs. So every
    # node keeps the last headers that each of its neighbours has signed (`PeerBook`), and hands them back at the set-up
    # of the next epoch, sealed for their signer. The signer then looks its own signatures up here, before it masks
    # anything. Only the signer can read a header's data set, so each book is asked about its own.

    def note_epoch(self, run_id: bytes, epoch: bytes) -> None:
        """Write to the disk that this node can mask vectors in an epoch of a run."""
        self._database.write(
            ("insert or ignore into epochs values (?, ?, ?, null)", (epoch.hex(), self._site, run_id.hex()))
        )

    def has_epoch(self, run_id: bytes) -> bool:
        """Return whether this node could mask vectors in an epoch of a run."""
        sql = "select 1 from epochs where run_id = ? and site = ?"
        return bool(self._database.rows(sql, (run_id.hex(), self._site)))

    def require_counted(self, slots: Iterable[tuple[bytes, int]]) -> dict[bytes, bytes]:
        """Raise PolicyRefusal "budget-rolled-back" unless the book counts these slots.

        The slots, given with their epochs, are those in which this node has masked a vector. Slots that the book does
        not count are written down as lost to the node's data set. The refusal repeats until the owner has charged that
        data set for them (`charge_lost`).

        Returns the runs that are still reserved as a whole, by epoch: their final charge follows from the node's state.
        """
        reserved, lost, named = dict[bytes, bytes](), list[Statement](), fold_name(self._data_set)
        for epoch, slot in slots:
            where = (epoch.hex(), self._site)
            rows = self._database.rows("select run_id, slot from epochs where epoch = ? and site = ?", where)
            if rows and self.find_status(bytes.fromhex(rows[0][0])) == RESERVED:
                reserved[epoch] = bytes.fromhex(rows[0][0])
            elif not rows or (rows[0][1] is not None and rows[0][1] < slot):
                lost.append(("insert or ignore into losses values (?, ?, 0)", (epoch.hex(), named)))
        if lost:
            self._database.write(*lost)
        self.require_runs([])
        return reserved

    def charge_lost(self, data_set: str, unit: str, epsilon: float, delta: float) -> None:
        """Charge a data set for the runs that this book has lost, at the owner's estimate.

        Afterwards its node may take part again. What is lost of another data set stays to be charged.
        """
        events = [GaussianEvent(1 / mu_of(epsilon, delta))] if epsilon else []
        # Costs are added up for one unit: if the policy names none, use that of the earlier runs.
        units = [unit, *(line.unit for line in reversed(self.lines(data_set)))]
        unit = next(filter(None, units), "")
        values = (secrets.token_hex(32), data_set, unit, CLOSED, _encode_events(events))
        self._database.write(
            ("insert into runs values (?, '', '', ?, 'lost runs', '', ?, ?, ?, datetime('now'))", values),
            (
                "insert or replace into losses select epoch, ?, 1 from losses where data_set in ('', ?)",
                (fold_name(data_set), fold_name(data_set)),
            ),
        )

    def mark_restored(self) -> None:
        """Mark a book from a backup as restored, so that it understates nothing.

        Runs that were reserved do not go on: their lines are closed at the whole cost of their plans. No node takes
        part before the owner has charged its data set for the runs since the backup, even if with 0 (`require_runs`).
        """
        self._database.write(
            ("update runs set status = ? where status = ?", (CLOSED, RESERVED)),
            ("delete from losses where epoch = ?", (_RESTORED,)),
            ("insert into losses values (?, '', 0)", (_RESTORED,)),
        )

    def draws(self, plan_digest: str) -> list[bytes]:
        """Return the run of every set-up of a plan in which this node has revealed its nonce, one entry each."""
        rows = self._database.rows(
            "select run_id from draws where site = ? and plan_digest = ?", (self._site, plan_digest)
        )
        return [bytes.fromhex(run_id) for (run_id,) in rows]

    def forget_draws(self, digits: str) -> dict[str, int]:
        """Delete, for all nodes of this book, the set-ups of plans whose digests begin with `digits`.

        Returns their number by the plan's digest.

        Returns: how many there were, by the plan's digest.
        """
        with self._database.transaction() as execute:
            rows = self._database.rows(
                "select plan_digest, count(*) from draws where substr(plan_digest, 1, ?) = ? group by plan_digest",
                (len(digits), digits),
            )
            for plan_digest, _ in rows:
                execute("delete from draws where plan_digest = ?", (plan_digest,))
        return dict(rows)

    def close(self) -> None:
        """Close the files."""
        self._database.close()
        self.peers.close()


_PEERS = "create table if not exists headers (own blob, signer blob, run_id blob, header blob not null)"
_LAST_OF_ALL = f"""{_PEERS};
insert into headers select substr(key, 1, length(key) - 32), substr(key, length(key) - 31), x'', header from peers;
drop table peers"""
"""A file of the previous version had one header of each neighbour, without its run."""


class PeerBook:
    """The last headers that each neighbour of this site's nodes has signed, one for each of its last runs.

    Headers are kept by run, because a site may have several data sets under one identity, and only it can tell their
    headers apart: a single last header would hide what another data set has spent.

    The file is beside the budget book and separate from it, so that it is not lost or restored with a node's state, nor
    with the book. It only holds what the node saw in common runs, and only a header's signer reads it again. Nodes may
    share the file: each hands back only what it saw itself, so that nobody learns which nodes have one owner.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: Database | None = None

    def _open(self) -> Database:
        if self._database is None:
            self._database = Database(self._path, _PEERS, 2, is_exclusive=False, upgrades={1: _LAST_OF_ALL})
        return self._database

    def keep(self, own: bytes, run_id: bytes, headers: Mapping[bytes, bytes]) -> None:
        """Replace the headers that a node has kept of these sites in a run; forget their oldest runs.

        `own` is the identity key of the node. The data are on the disk when this returns.
        """
        if not headers:
            return
        with self._open().transaction() as execute:
            for signer, header in headers.items():
                execute("delete from headers where own = ? and signer = ? and run_id = ?", (own, signer, run_id))
                execute("insert into headers values (?, ?, ?, ?)", (own, signer, run_id, header))
                newest = "select rowid from headers where own = ? and signer = ? order by rowid desc limit ?"
                execute(
                    f"delete from headers where own = ? and signer = ? and rowid not in ({newest})",
                    (own, signer, own, signer, MAX_HANDED_BACK),
                )

    def headers(self, own: bytes) -> dict[bytes, list[bytes]]:
        """Return the signed headers that a node has kept, by the signers' keys, oldest first.

        `own` is the node's identity key.
        """
        kept = dict[bytes, list[bytes]]()
        rows = self._open().rows("select signer, header from headers where own = ? order by rowid", (own,))
        for signer, header in rows:
            kept.setdefault(signer, []).append(header)
        return kept

    def close(self) -> None:
        """Close the file."""
        if self._database is not None:
            self._database.close()
            self._database = None


def require_room(lines: Sequence[BudgetLine], line: BudgetLine, limit: tuple[float, float]) -> None:
    """Check that a run in one process fits beside the other runs of its account.

    Args:
        lines: lines of the account; an earlier state of this run among them does not count.
        limit: the largest (epsilon, delta) of all runs together.

    Raises:
        PolicyRefusal: code "over-budget"; "policy-unit" if the other runs protect another unit.
    """
    epsilon, delta = limit
    line = replace(line, events=tuple(scope_events(line.events, line.run_id)))
    others = [other for other in lines if (other.run_id, other.site) != (line.run_id, line.site)]
    for other in others:
        if other.events and line.events and other.unit not in ("", line.unit):
            raise PolicyRefusal("policy-unit-of-earlier-runs", unit=line.unit, earlier=other.unit)
    total = compose_epsilon(list_costs([*others, line]), delta)
    if total > epsilon:
        spent = format_up(compose_epsilon(list_costs(others), delta), 4)
        raise PolicyRefusal(
            "over-budget", total=format_up(total, 4), delta=format_up(delta), epsilon=epsilon, spent=spent
        )


def _describe_units(lines: Sequence[BudgetLine], delta: float) -> dict[str, Any]:
    """Return the cost by unit of privacy if runs protect several units; else nothing.

    Costs of different units cannot be added.
    """
    units = list(dict.fromkeys(line.unit for line in lines if line.events and line.unit))
    by_unit = {
        unit: compose_epsilon(list_costs(line for line in lines if line.unit in ("", unit)), delta) for unit in units
    }
    return {"epsilon_by_unit": by_unit} if len(units) > 1 else {}


_LOOK_ALIKES = str.maketrans(
    # Letters of other alphabets that look like Latin ones once they are in lower case, or in capitals, and digits that
    # look like letters (Unicode's confusables, UTS 39).
    "\u0430\u0432\u0435\u043a\u043c\u043d\u043e\u0440\u0441\u0442\u0443\u0445\u0455\u0456\u0458\u04bb\u0501\u051b\u051d\u0475\u04cf"
    "\u03b1\u03b2\u03b5\u03b6\u03b7\u03b9\u03ba\u03bc\u03bd\u03bf\u03c1\u03c4\u03c5\u03c7\u03f2\u03f3"
    "\u0131\u0251\u0261\u026a\u0585\u057d\u0578\u057001|",
    "abekmhopctyxsijhdqwvl"
    "abezhikmvoptuxcj"
    "iagiounholl",
)  # fmt: skip
_GAP, _DIGITS = "\0", "23456789ol"


def fold_name(name: str) -> str:
    """Return the common form of all names of one data set, however they are typed.

    Otherwise a name that differs in capitals, look-alike letters of another alphabet, dashes, spaces, a final stop or
    invisible letters would begin a new account for the same rows. Taking two names for one charges too much, and never
    too little.
    """
    # Remove invisible letters first, because they also separate a letter from its accent.
    seen = "".join(map(_show, name))
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", seen).casefold())
    # Keep a dash or a space between digits: 1-12 is not 11-2.
    letters = "".join(
        _GAP if letter.isspace() or unicodedata.category(letter) in ("Pd", "Pc") or letter == "\u2212" else letter
        for letter in folded
    ).strip(_GAP + ".")
    words = [word for word in letters.translate(_LOOK_ALIKES).split(_GAP) if word]
    joined = words[0] if words else ""
    for word in words[1:]:
        joined += ("-" if joined[-1] in _DIGITS and word[0] in _DIGITS else "") + word
    # All names of only dashes and stops are one name. A name that shows nothing is none, so it means all rows.
    return joined or ("-" if folded.strip() else ALL_ROWS)


def _show(letter: str) -> str:
    """Return the visible form of a letter: nothing, a space, or the letter itself."""
    if letter.isspace() or letter in _BLANKS:
        return " "
    if unicodedata.category(letter)[0] == "C" or _IGNORABLE.match(letter):
        return ""
    return letter


_BLANKS = "\u2800\U0001d159"
"""Letters with a width and no ink."""
_IGNORABLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U00016fe4\U000e0000-\U000e0fff]"
)
"""Letters outside Unicode's category C that are drawn as nothing (Default_Ignorable_Code_Point, and a filler)."""


def is_in_account(name: str, wanted: str) -> bool:
    """Return whether a run over this data set belongs to the account with the folded name `wanted`."""
    return ALL_ROWS in (wanted, own := fold_name(name)) or own == wanted


def find_near_name(name: str, known: Iterable[str]) -> str | None:
    """Return a known name that differs by at most two letters (one in a short name), else None.

    Such a name may be a slip, so the owner is asked before a new account begins.
    """
    own = fold_name(name)
    others = {fold_name(other): other for other in known if fold_name(other)}
    if own in others:
        return None
    most = 2 if len(own) >= _LEAST_LONG else 1
    return next((other for folded, other in others.items() if _count_edits(own, folded) <= most), None)


_LEAST_LONG = 6
"""Fewest letters of a name in which two may be slips."""


def _count_edits(one: str, other: str) -> int:
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one, 1):
        before, row[0] = row[0], at
        for place, wanted in enumerate(other, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (letter != wanted))
    return row[-1]


def list_costs(lines: Iterable[BudgetLine]) -> list[Event]:
    """Return the joint cost of the runs of one data set, as events to compose.

    A sum over n nodes contains a person n times if the person is in the rows of each. By Cauchy's inequality all rounds
    then cost at most n times the weights of all lines: n squared times those of a list that has each event as often as
    the line with most of it. Of the remaining events only the price of the grid is left, for releases that are in one
    line only. Events over samples, and of pure privacy, count in full, because weights do not cover all of their cost.
    """
    runs = dict[str, list[BudgetLine]]()
    for line in lines:
        if line.events:
            runs.setdefault(line.run_id, []).append(line)
    found = list[Event]()
    for own in runs.values():
        whole, most = Counter[Event](), Counter[Event]()
        for line in own:
            whole, most = whole + Counter(line.events), most | Counter(line.events)
        found += [for_rows(event, len(own)) for event in most.elements()]
        for event in (whole - most).elements():
            if not isinstance(event, PureEvent | UnnoisedEvent) and getattr(event, "sampling_rate", 1.0) == 1.0:
                event = replace(event, noise_multiplier=_WEIGHTLESS)
            found.append(event)
    return found


def compose_epsilon(events: Iterable[Event], delta: float) -> float:
    """Return the epsilon of these releases together."""
    counted = list(events)
    return get_accountant("gdp").epsilon(counted, delta) if counted else 0.0


def _encode_events(events: Iterable[Event]) -> str:
    return json.dumps([event.to_dict() for event in events], sort_keys=True)


def _read(text: str, scope: str) -> tuple[Event, ...]:
    return tuple(scope_events((event_from_dict(item) for item in json.loads(text)), scope))


# Where books are -----------------------------------------------------------------------------------------------------

BOOK = "hedgerow-budget.db"
"""The name of a folder's budget book."""
_BOOK_PATH = "budget.path"


def note_book(folder: Path, book: Path) -> Path:
    """Store the book's path in the state folder, and return it. EnvironmentFault if the write fails."""
    text = f"{book.resolve()}\n".encode()
    place = folder / _BOOK_PATH
    try:
        if not place.exists() or place.read_bytes() != text:
            descriptor = os.open(place, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(text)
    except OSError as fault:
        raise EnvironmentFault("disk-full", path=place, fault=fault.strerror or fault) from fault
    return book


def find_book(given: Path) -> Path:
    """Return the book named by a path: a file itself, or the book of a state folder or of a data folder.

    A folder without a book is returned itself.
    """
    if not given.is_dir():
        return given
    if (given / BOOK).is_file():
        return given / BOOK
    try:
        return Path((given / _BOOK_PATH).read_text(encoding="utf-8").rstrip("\n"))
    except (OSError, UnicodeDecodeError):
        return given


def book_file(budget: str | None, policy: str, name: str) -> Path:
    """Return the path of the budget book: as given, else beside the policy.

    It is not in the state folder, which people delete to start afresh, because the data's cost must outlive that.
    """
    return Path(budget or Path(policy).parent / f"{name}-budget.db")
