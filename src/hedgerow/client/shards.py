# SPDX-License-Identifier: Apache-2.0
"""One node whose rows are in parts, each held by a worker: for a table too large for its machine.

The node keeps the keys, the policy and the budget, and draws the site's noise; workers have only rows. Each answers a
query with the sums over its part. These are integers, so the node's vector equals that of all rows in one place, to the
last bit, however they are divided. A lost worker is started again: it reads its part, and takes in the run's releases.
If the part's rows have changed by then, all parts are read again, so that a sum is of one state of the table. The node
goes on, like an undivided one that is started again: if it stopped, all would see it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hedgerow.client.node import RowsOrCells, Shows, add_site_noise, make_node, show_nothing
from hedgerow.data.hashing import Part, hash_rows
from hedgerow.errors import EnvironmentFault, mark_private
from hedgerow.methods.registry import find_method
from hedgerow.methods.tasks import Task, TrainingTask
from hedgerow.privacy.noise import NoiseSource
from hedgerow.protocol.queries import IntVector, Query

ReadPart = Callable[[Any, Part], RowsOrCells]
"""Reads a part of a table by a plan, or by a survey's request."""
MAX_STARTS = 3
"""Most starts of a worker that is lost again and again before it has caught up."""
_LAST_HASH = 2**64 - 1


_OTHER_ROWS = (
    "A process that held a part of the rows was lost, and the table has changed since it was read: all parts were read "
    "again, and the next answers are of the rows as they are now"
)


class WorkerLost(Exception):
    """The process that held a part has ended."""


class _RowsChanged(Exception):
    """A restarted worker has read other rows than the lost one had."""


class Worker(Protocol):
    """A process, or a stand-in for one, that holds a `Shard`."""

    def ask(self, method: str, *arguments: Any) -> Callable[[], Any]:
        """Start a method of the shard; return a function that waits for its result.

        That function raises WorkerLost, or the shard's own error.
        """


StartWorker = Callable[[], Worker]


class Shard:
    """A part of a site's rows, and its scores in a run."""

    def read(self, read: ReadPart, offered: Any, part: Part) -> tuple[int, bytes]:
        """Read the part; return its number of rows and their digest."""
        vars(self).pop("_hashes", None)
        self._all = self._used = read(offered, part)
        return self._all.n_records, self._all.digest()

    @cached_property
    def _hashes(self) -> NDArray[np.uint64]:
        return hash_rows(self._all.list_contents(), self._all.n_records)

    def count_hashes(self, limit: int) -> tuple[int, int]:
        """Return how many rows have hashes below a limit, and how many have the limit itself."""
        hashes = self._hashes
        return int(np.count_nonzero(hashes < np.uint64(limit))), int(np.count_nonzero(hashes == np.uint64(limit)))

    def keep(self, limit: int, n_equal: int) -> None:
        """Use the rows with hashes below the limit, and the first `n_equal` of those that have it."""
        hashes = vars(self).pop("_hashes", self._hashes)
        chosen = hashes < np.uint64(limit)
        chosen[np.flatnonzero(hashes == np.uint64(limit))[:n_equal]] = True
        self._used = self._all.only(np.flatnonzero(chosen))

    def begin(self, task: Task, n_threads: int) -> None:
        """Begin a run that has released nothing."""
        self._node = make_node("part", self._used, task, n_threads)

    def answer(self, query: Query) -> tuple[IntVector, int]:
        """Return the sums of the part, see `Node.sum_rows`, and `Node.n_worse`."""
        return self._node.sum_rows(query), self._node.n_worse

    def finish(self, query: Query) -> int:
        """Take in a query's update, see `Node.finish`; return `Node.n_worse`."""
        self._node.finish(query)
        return self._node.n_worse


class Shards:
    """A site's rows in parts.

    Raises DataError if a part cannot be read.

    Args:
        start: starts a worker with an empty `Shard`.
        read: reads a part, in the worker.
        offered: the plan by which the rows are read, or a survey's request.

    Attributes:
        n_records: number of rows of all parts together.
        digest: differs if the rows, or their division, differ.
        tell: called with a sentence for the owner only.
    """

    def __init__(self, start: StartWorker, n_parts: int, read: ReadPart, offered: Any, n_threads: int = 1) -> None:
        self.n_threads, self._start = n_threads, start
        self._parts = [(read, offered, Part(number, n_parts)) for number in range(n_parts)]
        self._workers = [start() for _ in self._parts]
        # The calls, in order, that bring a shard which has read its part to its present state.
        self._kept, self._most = list[tuple[int, int]](), 0
        self._run: list[tuple[Any, ...]] = []
        self._read: list[tuple[int, bytes]] = []
        self._has_accounts = False
        self.tell: Callable[[str], object] = lambda text: None
        self._note_read(self._ask_each("read", self._parts))

    def _note_read(self, read: list[tuple[int, bytes]]) -> None:
        self._read, self._kept = read, []
        self.n_records = sum(n_rows for n_rows, _ in read)
        self.digest = hashlib.sha256(b"".join(digest for _, digest in read)).digest()

    @property
    def n_used(self) -> int:
        """Number of rows that runs use: all, or as many as `limit` allows."""
        return self._most if self._kept else self.n_records

    def limit(self, most: int) -> None:
        """Use at most `most` rows, by the rule of `select_rows` over all parts together."""
        if self._most != most:
            self._most = most
            self._keep_going(self._select)

    def _select(self) -> None:
        if not 0 < self._most < self.n_records:
            return
        # Find by bisection the least limit with enough rows.
        low, high = 0, _LAST_HASH
        while low < high:
            middle = (low + high) // 2
            if sum(map(sum, self._ask("count_hashes", middle))) >= self._most:
                high = middle
            else:
                low = middle + 1
        counts = self._ask("count_hashes", low)
        # Rows with the same hash are equal, so it does not matter which of them are used.
        left, kept = self._most - sum(below for below, _ in counts), []
        for _, n_equal in counts:
            kept.append((low, min(left, n_equal)))
            left -= kept[-1][1]
        self._ask_each("keep", kept)
        self._kept = kept

    def begin(self, task: Task) -> None:
        """Begin a run that has released nothing."""
        self._run = []
        self._has_accounts = isinstance(task, TrainingTask) and find_method(task.plan).keeps_accounts
        self._keep_going(self._ask, "begin", task, self.n_threads)
        self._run.append(("begin", task, self.n_threads))

    def answer(self, query: Query) -> list[tuple[IntVector, int]]:
        """Return each part's answer to a query."""
        found: list[tuple[IntVector, int]] = self._keep_going(self._ask, "answer", query)
        self._run.append(("finish", query))
        return found

    def finish(self, query: Query) -> list[int]:
        """Let each part take in a query's update; return each part's `Node.n_worse`."""
        found: list[int] = self._keep_going(self._ask, "finish", query)
        self._run.append(("finish", query))
        return found

    def _keep_going(self, act: Callable[..., Any], *arguments: Any) -> Any:
        """Run an action on all parts; begin again if rows have changed.

        Nothing has left the node before the action is complete. Only a lost worker reads again, so this ends.
        """
        is_renewed = False
        while True:
            try:
                if is_renewed:
                    self._renew()
                return act(*arguments)
            except _RowsChanged:
                if not is_renewed:
                    self.tell(mark_private(_OTHER_ROWS, "rows-changed"))
                is_renewed = True

    def _renew(self) -> None:
        """Read all parts again.

        A row that has moved between parts would otherwise be in two of them, or in none.
        """
        self._read = []
        self._note_read(self._ask_each("read", self._parts))
        self._select()
        # Replay step by step: a worker that is lost meanwhile is brought to the step that the others have reached.
        run, self._run = self._run, []
        try:
            for call in run:
                self._ask(*call)
                self._run.append(call)
        finally:
            self._run = run

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        return self._ask_each(method, [arguments] * len(self._parts))

    def _ask_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Ask all workers at once; restart a lost worker, and ask it again."""
        waiting = [worker.ask(method, *given) for worker, given in zip(self._workers, arguments, strict=True)]
        return [self._wait(number, wait, (method, *arguments[number])) for number, wait in enumerate(waiting)]

    def _wait(self, number: int, wait: Callable[[], Any], call: tuple[Any, ...]) -> Any:
        try:
            return wait()
        except WorkerLost:
            pass
        # Accounts of records need unchanged rows. Stop without reading again: others must not see whether rows changed.
        for _ in range(0 if self._has_accounts and self._run else MAX_STARTS):
            self._workers[number] = self._start()
            try:
                self._restore(number)
                return self._workers[number].ask(*call)()
            except WorkerLost:
                continue
        times = 1 if self._has_accounts and self._run else MAX_STARTS
        raise EnvironmentFault("shard-lost", number=number + 1, n_parts=len(self._parts), times=times)

    def _restore(self, number: int) -> None:
        """Bring a new worker's shard to the lost one's state; raise _RowsChanged if its rows differ."""
        if not self._read:
            return
        worker = self._workers[number]
        if worker.ask("read", *self._parts[number])() != self._read[number]:
            raise _RowsChanged
        for call in [("keep", *kept) for kept in self._kept[number : number + 1]] + self._run:
            worker.ask(*call)()


class ShardedNode:
    """One site of a run whose rows are in parts; it answers like `make_node`'s node over all rows.

    Args:
        task: the task that all parties agreed on.
        noise: the source of the site's own noise: one draw, whatever the parts.
    """

    def __init__(
        self, site: str, shards: Shards, task: Task, noise: NoiseSource, *, shows: Shows = show_nothing
    ) -> None:
        self.site, self._shards, self._plan, self._noise = site, shards, task.run_plan, noise
        self._shows = shows
        self.n_worse = 0
        """The smallest `Node.n_worse` of any part."""
        shards.begin(task)

    def sum_rows(self, query: Query) -> IntVector:
        """Return the sum over the rows of all parts, without noise; update `n_worse`."""
        found = self._shards.answer(query)
        self.n_worse = min(n_worse for _, n_worse in found)
        return np.asarray(np.sum([own for own, _ in found], axis=0, dtype=np.int64))

    def answer(self, query: Query) -> IntVector:
        """Return the sum over all parts, with the noise that this site adds by itself."""
        sums = self.sum_rows(query)
        drawn = self._plan, self._shards.n_used, self._noise
        return add_site_noise(query, sums, self.site, *drawn, shows=self._shows)

    def finish(self, query: Query) -> None:
        """Let every part take in the query's update without answering it; update `n_worse`."""
        self.n_worse = min(self._shards.finish(query))
