"""Rows that come while a run goes on: new files of a folder, taken in between two exchanges.

What a record has spent of its budget is no file: a node that starts again finds it from its rows and the releases. So
it must know in which exchange each file came, and have the file as it was. Both are written into the node's database
before an answer is computed with the rows; a file that is gone or changed ends the run for this node, for rows that
came again would have a whole budget again. These are acts of the owner on files, and depend on no row.

Whether two files are alike does depend on single rows: a file that holds one row more than a copy is no copy. If a copy
ended the run, or were left out, that row would decide about all others in the file. So its rows count, each as a record
of its own, and the operator is told; to refuse copies is the site's own choice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from hedgerow.data.site_data import SiteData
from hedgerow.data.sources import ending_of
from hedgerow.errors import DataError, EnvironmentFault, UsageError
from hedgerow.methods.registry import method_of
from hedgerow.plan.plan import Plan
from hedgerow.storage import Database

ReadTable = Callable[[Path, Plan], SiteData]


@dataclass(frozen=True)
class ArrivalFolder:
    """Where the owner puts new rows; files are written elsewhere and then moved here, so that each is whole.

    Attributes:
        folder: its tables are read in the order of their names; names that begin with a point are passed over.
        read: reads a table for a plan; DataError when it does not fit.
        is_strict: whether a file with an earlier one's content ends the run for this node; one row may decide that.
        tell: takes what the site's own operator should know, and no peer; None for no one.
    """

    folder: Path
    read: ReadTable
    is_strict: bool = False
    tell: Callable[[str], object] | None = None

    def check(self, plan: Plan) -> None:
        """Raise UsageError (code "stream-unsupported") for a plan whose rows cannot come one after the other."""
        if method_of(plan).keeps_accounts and plan.privacy.unit == "record":
            return
        raise UsageError("arrivals-unsupported", algorithm=plan.model.algorithm, unit=plan.privacy.unit)

    def names(self) -> list[str]:
        """The tables that are there now; EnvironmentFault (code "arrivals-folder") when there is no such folder."""
        try:
            found = [path.name for path in self.folder.iterdir() if path.is_file()]
        except OSError as fault:
            raise EnvironmentFault("arrivals-folder", folder=self.folder, fault=fault.strerror or fault) from fault
        return sorted(name for name in found if ending_of(name) and not name.startswith("."))


class ArrivalsOfRun:
    """The files that one run has taken in, and when; see `Node.expect`.

    Args:
        source: the folder.
        plan: the run's.
        database: the node's, with the table ``arrivals (run_id, name, digest, round)``.
        run_id: of the run.
        is_closed: whether no new file is taken in: after a state was lost or rolled back, no one knows which files
            have been in rounds already.
    """

    def __init__(
        self, source: ArrivalFolder, plan: Plan, database: Database, run_id: bytes, is_closed: bool = False
    ) -> None:
        self._is_closed = is_closed
        self._source, self._plan, self._database, self._run_id = source, plan, database, run_id
        rows = database.rows("select name, digest, round from arrivals where run_id = ? order by rowid", (run_id,))
        self._waiting: list[tuple[str, bytes, int]] = [(name, digest, number) for name, digest, number in rows]
        self._known = {name: digest for name, digest, _ in self._waiting}

    def due(self, round_number: int, may_be_new: bool) -> list[SiteData]:
        """The rows to take in before the exchange of this number.

        Args:
            round_number: of the exchange.
            may_be_new: whether files that were not seen before are taken in; not while releases are gone through again.

        Raises:
            DataError: a new file does not fit the plan; code "arrival-changed": an earlier one is not as it was;
                "arrival-repeated": a new one has an earlier one's content, where the folder is strict.
        """
        found = []
        while self._waiting and self._waiting[0][2] <= round_number:
            name, digest, _ = self._waiting.pop(0)
            found.append(self._read(name, digest))
        if self._is_closed or not may_be_new:
            return found
        names = self._source.names()
        self._require_there(names)
        for name in names:
            if name in self._known:
                continue
            digest = self._digest(name)
            rows = self._read(name, digest)
            if rows.n_records:
                self._look_for_copy(name, digest)
            found.append(rows)
            row = (self._run_id, name, digest, round_number)
            self._database.write(("insert into arrivals values (?, ?, ?, ?)", row))
            self._known[name] = digest
        return found

    def _require_there(self, names: Collection[str]) -> None:
        """A file that was renamed would come again, as another one; so one that is missing is no small matter."""
        for name in self._known:
            if name not in names:
                raise DataError("arrival-changed", name=name)

    def _look_for_copy(self, name: str, digest: bytes) -> None:
        """Tell the operator of a file that is alike to an earlier one, or refuse it; see the head of this file."""
        earlier = next((known for known, its in self._known.items() if its == digest), None)
        if earlier is None:
            return
        if self._source.is_strict:
            raise DataError("arrival-repeated", name=name)
        if self._source.tell is not None:
            self._source.tell(
                f"{name} holds what {earlier} holds. If it is a copy, its rows count twice, each time with a whole "
                "budget: stop the node then, and leave this run. Put each record into one file only (private: for "
                "this site only)"
            )

    def _read(self, name: str, digest: bytes) -> SiteData:
        data = None
        if self._digest(name) == digest:
            data = self._source.read(self._source.folder / name, self._plan)
        # Looked at again after reading: a file that is being written would be another one next time.
        if data is None or self._digest(name) != digest:
            raise DataError("arrival-changed", name=name)
        return data

    def _digest(self, name: str) -> bytes:
        try:
            return hashlib.sha256((self._source.folder / name).read_bytes()).digest()
        except OSError:
            return b""
