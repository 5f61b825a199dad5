"""The budget book: what every run has cost a data set, over its whole life.

A run's whole cost is reserved before the run begins, and what it did not use is given back when it has ended. All runs
of a data set are composed by the exact accountant, at one delta; a run that would exceed the owner's epsilon is
refused. The book is kept apart from a node's other state, so that losing the one does not lose the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.events import Event, event_from_dict, scoped
from hedgerow.protocol.errors import PolicyRefusal
from hedgerow.protocol.plan import Plan
from hedgerow.storage.database import Database, Statement

_SCHEMA = """
create table if not exists runs (
    run_id text primary key, data_set text not null, plan_name text not null, plan_digest text not null,
    unit text not null, status text not null, events text not null
)"""
_VERSION = 1

RESERVED, FINISHED, STOPPED, LEFT = "reserved", "finished", "stopped", "left"


@dataclass(frozen=True)
class BudgetLine:
    """One run: `status` is "reserved" while it may go on (the events are the plan's), else the events are what it used.

    It is "finished", "stopped" by its coordinator, or "left" by this node before its end.
    """

    run_id: str
    data_set: str
    plan_name: str
    plan_digest: str
    unit: str
    status: str
    events: tuple[Event, ...]

    def epsilon(self, delta: float) -> float:
        """What this run costs by itself."""
        return get_accountant("gdp").epsilon(self.events, delta) if self.events else 0.0


class BudgetBook:
    """The book in one file; raises EnvironmentFault when it cannot be read or written."""

    def __init__(self, path: Path) -> None:
        # Not exclusive: `hedgerow ledger` reads it while a node runs.
        self._database = Database(path, _SCHEMA, _VERSION, is_exclusive=False)

    def lines(self, data_set: str | None = None) -> list[BudgetLine]:
        """The runs of a data set, or of all, oldest first."""
        rows = self._database.rows(
            "select run_id, data_set, plan_name, plan_digest, unit, status, events from runs"
            " where data_set = coalesce(?, data_set) order by rowid",
            (data_set,),
        )
        return [
            BudgetLine(run_id, name, plan_name, plan_digest, unit, status, _read(events, run_id))
            for run_id, name, plan_name, plan_digest, unit, status, events in rows
        ]

    def has(self, run_id: bytes) -> bool:
        """Whether a run stands in the book."""
        return self.status_of(run_id) is not None

    def status_of(self, run_id: bytes) -> str | None:
        """The status of a run's line; None for a run that does not stand in the book."""
        rows = self._database.rows("select status from runs where run_id = ?", (run_id.hex(),))
        return rows[0][0] if rows else None

    def require_runs(self, run_ids: Iterable[bytes]) -> None:
        """Raises PolicyRefusal (code "budget-lost") unless all these runs stand in the book.

        A run is reserved here before a node takes it up, so a node that was in a run which the book does not know has
        been given a new book, or an older copy.
        """
        if not all(self.has(run_id) for run_id in run_ids):
            raise PolicyRefusal(
                "The budget book does not hold all runs that this node has been in.",
                cause="The book was deleted, is another one, or was restored from an older copy.",
                remedy="Give the book that the node had (--budget FILE), or restore its newest copy.",
                code="budget-lost",
            )

    def spent(self, data_set: str, delta: float) -> float:
        """The epsilon of all runs of a data set together, reserved ones included."""
        return _epsilon((event for line in self.lines(data_set) for event in line.events), delta)

    def reserve(
        self,
        run_id: bytes,
        data_set: str,
        plan: Plan,
        events: Sequence[Event],
        limit: tuple[float, float],
        leaving: tuple[bytes, Sequence[Event] | None] | None = None,
    ) -> None:
        """Reserve a run's whole cost; nothing changes for a run that is reserved already.

        A run that was left before it cost anything may be reserved again.

        Args:
            limit: the owner's (epsilon, delta).
            leaving: the run that the node leaves for this one, and what it has used, as `settle` takes it. It is
                settled in the same write; where this run is refused, it stays reserved.

        Raises:
            PolicyRefusal: policy-over-budget; run-closed for a run that has ended; policy-unit when earlier runs of
                the data set protected another unit, for then their costs cannot be added.
        """
        # Another process may share the book: what is read here must still be so when the run is written down.
        with self._database.transaction() as execute:
            if leaving is not None:
                execute(*_settled(*leaving, LEFT))
            if self._has_room(run_id, data_set, plan, events, limit):
                execute(
                    "insert or replace into runs values (?, ?, ?, ?, ?, ?, ?)",
                    (run_id.hex(), data_set, plan.name, plan.digest, plan.privacy.unit, RESERVED, _written(events)),
                )

    def _has_room(
        self, run_id: bytes, data_set: str, plan: Plan, events: Sequence[Event], limit: tuple[float, float]
    ) -> bool:
        """False for a run that is reserved already; raises as `reserve`."""
        lines = self.lines(data_set)
        for line in lines:
            if line.run_id == run_id.hex():
                if line.status == RESERVED:
                    return False
                if line.status != LEFT or line.events:
                    raise closed_run(line.status)
            if line.events and line.unit != plan.privacy.unit:
                raise PolicyRefusal(
                    f"The plan protects each {plan.privacy.unit}; earlier runs protected each {line.unit}.",
                    cause="Costs for different units of privacy cannot be added up.",
                    remedy="Use the same unit in all plans over one data set.",
                    code="policy-unit",
                )
        epsilon, delta = limit
        before = [event for line in lines for event in line.events]
        total = _epsilon((*before, *scoped(events, run_id.hex())), delta)
        if total > epsilon:
            raise PolicyRefusal(
                f"With this run, {data_set!r} would have cost epsilon = {total:.4g} at delta = {delta:g}; its owner "
                f"allows {epsilon:.4g}, of which {_epsilon(before, delta):.4g} are spent or reserved.",
                cause="Every run over the same data adds to what is given away about it.",
                remedy="Agree on a plan with a smaller epsilon, or let the owner raise max_epsilon.",
                code="policy-over-budget",
            )
        return True

    def settle(self, run_id: bytes, events: Iterable[Event] | None, status: str) -> None:
        """Close a run's line with what it has used, None for not known: then all that was reserved stays charged.

        A line that is closed stays as it is.
        """
        self._database.write(_settled(run_id, events, status))

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def closed_run(status: str) -> PolicyRefusal:
    """The refusal of a run that this node has seen the end of."""
    return PolicyRefusal(
        f"This run has ended here already ({status}).",
        cause="This node left it or saw its end; or the coordinator asks a second time for what was released.",
        remedy="Let the coordinator begin a new run (--new-run), which is counted by itself.",
        code="run-closed",
    )


def _settled(run_id: bytes, events: Iterable[Event] | None, status: str) -> Statement:
    return (
        "update runs set status = ?, events = coalesce(?, events) where run_id = ? and status = ?",
        (status, None if events is None else _written(events), run_id.hex(), RESERVED),
    )


def _epsilon(events: Iterable[Event], delta: float) -> float:
    counted = list(events)
    return get_accountant("gdp").epsilon(counted, delta) if counted else 0.0


def _written(events: Iterable[Event]) -> str:
    return json.dumps([event.to_dict() for event in events], sort_keys=True)


def _read(text: str, run_id: str) -> tuple[Event, ...]:
    return tuple(scoped((event_from_dict(item) for item in json.loads(text)), run_id))
