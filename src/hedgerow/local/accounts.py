# SPDX-License-Identifier: Apache-2.0
"""The budget accounts of runs in one process: what all fits, surveys and evaluations over the same rows cost together.

A run reserves its whole cost before any noise is drawn, and is charged what it has released when it ends, however it
ends. A run that is killed stays reserved as a whole. An account is chosen by public facts alone: the name of the data
set that the caller gives, or else all rows of the process, of a folder (commands), or of a `budget`.

Within one process all runs count in its own memory. `budget` adds an account with a limit, or with a file that other
processes share. Processes that begin within it, and estimators that are sent to them, find the file.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import secrets
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hedgerow.client.budget import (
    FINISHED,
    REFUSED,
    RESERVED,
    STOPPED,
    BudgetBook,
    BudgetLine,
    compose_epsilon,
    find_near_name,
    fold_name,
    is_in_account,
    list_costs,
    require_room,
)
from hedgerow.errors import EnvironmentFault, HedgerowError, PrivacyError, UsageError, warn_caller
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import check_delta, check_epsilon, mu_of
from hedgerow.privacy.accounts import MEMORY, NOWHERE, AccountState, count_releases
from hedgerow.privacy.cost import compose_cost
from hedgerow.privacy.events import (
    DiscreteGaussianEvent,
    DiscreteGaussianSumEvent,
    Event,
    GaussianEvent,
    LocalGaussianEvent,
    UnnoisedEvent,
    scope_events,
)
from hedgerow.privacy.noise import NoiseSource

VARIABLE = "HEDGEROW_BUDGETS"
"""The environment variable in which processes that begin within a `budget` find its file."""
DEFAULT_DELTA = 1e-6
_MARGIN = 1e-9
"""Relative share of a whole budget kept back, because its conversion to mu is rounded."""
_LEAST_WEIGHT = 1e-12
"""Smallest mu squared that is still reserved; less counts as nothing."""


@dataclass(frozen=True)
class RunFacts:
    """Description of a run in a budget book.

    Attributes:
        name, digest: of the plan.
        unit: of privacy.
        data_set: whose account it is charged to; "" for all rows of the process or the book.
        is_void: whether its noise promises nothing (a seed, bounds read off the data): it costs an infinite epsilon.
    """

    name: str
    digest: str = ""
    unit: str = "record"
    data_set: str = ""
    is_void: bool = False

    @classmethod
    def of_plan(cls, plan: Plan, *, is_void: bool, name: str = "") -> RunFacts:
        """Take the facts of a run from its plan; `name` replaces the plan's name if the run is no training."""
        return cls(name or plan.name, plan.digest, plan.privacy.unit, is_void=is_void or plan.reads_rows)


def is_seeded(noise: NoiseSource) -> bool:
    """Return whether noise from this source promises nothing, so that its releases cost infinite epsilon."""
    return noise.seeded or noise.approximate


# Where lines stand ----------------------------------------------------------------------------------------------------


class Store(ABC):
    """The lines of an account, and its limit (epsilon, delta), if it has one."""

    place: str
    limit: tuple[float, float] | None = None

    @abstractmethod
    def put(self, line: BudgetLine, limit: tuple[float, float] | None) -> None:
        """Write a run's line in place of its former one.

        Raises:
            PolicyRefusal: the line does not fit within a limit.
        """

    @abstractmethod
    def lines(self, data_set: str) -> list[BudgetLine]:
        """Return the lines of an account; see `BudgetBook.lines`."""

    def read_state(self, data_set: str, unit: str, delta: float) -> AccountState:
        """Return the account's present state."""
        lines = [line for line in self.lines(data_set) if line.events]
        own = [line for line in lines if line.unit in ("", unit)]
        read = datetime.now(UTC).strftime("%Y-%m-%d")
        limit = None if self.limit is None else self.limit[0]
        epsilon = compose_epsilon(list_costs(own), delta)
        releases = count_releases(event for line in own for event in line.events)
        n_others = len(lines) - len(own)
        state = AccountState(self.place, data_set, read, len(own), epsilon, delta, unit, n_others, limit)
        return replace(state, releases=releases)


class MemoryStore(Store):
    """Lines in the memory of this process."""

    place = MEMORY

    def __init__(self, limit: tuple[float, float] | None = None) -> None:
        self.limit, self._lines, self._lock = limit, dict[str, BudgetLine](), threading.Lock()

    def put(self, line: BudgetLine, limit: tuple[float, float] | None) -> None:
        """Write a run's line into memory, in place of its former one."""
        with self._lock:
            if limit is not None:
                require_room(self._list(line.data_set), line, limit)
            self._lines[line.run_id] = replace(line, events=tuple(scope_events(line.events, line.run_id)))

    def lines(self, data_set: str) -> list[BudgetLine]:
        """Return the lines of an account from memory."""
        with self._lock:
            return self._list(data_set)

    def clear(self) -> None:
        """Forget all lines."""
        with self._lock:
            self._lines.clear()

    def _list(self, data_set: str) -> list[BudgetLine]:
        wanted = fold_name(data_set)
        return [line for line in self._lines.values() if is_in_account(line.data_set, wanted)]


class BookStore(Store):
    """Lines in a budget book, a file open to several processes.

    The file is opened for each use: a process that is forked must not go on with an open database.
    """

    def __init__(self, path: Path, limit: tuple[float, float] | None = None) -> None:
        self.path, self.limit, self.place = path, limit, path.name
        self._seen = set[str]()

    def put(self, line: BudgetLine, limit: tuple[float, float] | None) -> None:
        """Write a run's line into the book's file, in place of its former one.

        Raises:
            EnvironmentFault: the file cannot be read or written; or code "book-replaced", with the line written.
        """
        with closing(BudgetBook(self.path)) as book:
            book.put(line, limit)
            self._require_seen(book)

    def lines(self, data_set: str) -> list[BudgetLine]:
        """Read the lines of an account from the book's file; raises EnvironmentFault as `put`."""
        with closing(BudgetBook(self.path)) as book:
            self._require_seen(book)
            return book.lines(data_set)

    def _require_seen(self, book: BudgetBook) -> None:
        """Raise EnvironmentFault "book-replaced" if runs are gone that this object has seen in the file."""
        found = book.list_runs()
        if not self._seen <= found:
            raise EnvironmentFault("book-replaced", path=self.path)
        self._seen = found


# Runs -----------------------------------------------------------------------------------------------------------------


class RunAccount:
    """A run reserved in all stores of an account, until it is settled.

    Every release is charged here before its noise is drawn. A release that was not foreseen is written down first.

    Args:
        events: what the run may release, at most.
        whole: what all its parts may cost together, (epsilon, delta), where the events are not known yet.

    Raises:
        PolicyRefusal: it does not fit into the account; nothing is spent then.
        EnvironmentFault: a book cannot be read or written; nothing is spent then.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        facts: RunFacts,
        events: Iterable[Event] = (),
        whole: tuple[float, float] | None = None,
    ) -> None:
        self.stores, self.facts, self._n_parts = list(stores), facts, 0
        self._used, self._foreseen, self._room = list[Event](), _count_events(events), 0.0
        self._is_unbounded = facts.is_void or (whole is not None and not math.isfinite(whole[0]))
        if whole is not None and not self._is_unbounded:
            self._room = _weigh_whole(*whole)
        place = (secrets.token_hex(32), "", "", facts.data_set, facts.name, facts.digest, facts.unit)
        self._line = BudgetLine(*place, RESERVED, ())
        self._reserve()

    def charge(self, event: Event) -> None:
        """Charge a release just before its noise is drawn; an unforeseen one is reserved first.

        Raises:
            PolicyRefusal: it was not foreseen, and does not fit.
        """
        (event,) = self._name_part([UnnoisedEvent() if self.facts.is_void else event])
        ((one, count),) = _count_events([event]).items()
        covering = [other for other, left in self._foreseen.items() if left >= count and _covers(other, one)]
        if covering:
            # Use up the foreseen release with the most noise that still covers this one, and keep the others.
            self._foreseen[max(covering, key=_get_noise)] -= count
        elif not self._is_unbounded and self._exceeds_room([event]):
            self._reserve([event])
        self._used = merge_events([*self._used, event])

    @contextmanager
    def open_run(
        self,
        facts: RunFacts,
        events: Iterable[Event] = (),
        *,
        earlier: Sequence[Event] = (),
        whole: tuple[float, float] | None = None,
    ) -> Iterator[RunAccount]:
        """Reserve these releases as the next part of this run; arguments as `Account.open_run`.

        What was released `earlier` was a part of this run as well, and is charged already; so is the `whole`.
        """
        self._n_parts += 1
        self.facts = replace(self.facts, is_void=self.facts.is_void or facts.is_void)
        self._is_unbounded |= facts.is_void
        self._line = replace(self._line, plan_digest=facts.digest or self._line.plan_digest)
        self._foreseen = _count_events(self._name_part(events))
        self._reserve()
        try:
            yield self
        finally:
            self._foreseen = Counter()

    def read_state(self, delta: float) -> AccountState:
        """Return the present state of the account nearest to the caller."""
        if not self.stores:
            return AccountState(NOWHERE)
        return self.stores[0].read_state(self.facts.data_set, self.facts.unit, delta)

    def settle(self, status: str) -> None:
        """Charge the releases made, and free the rest of the reservation."""
        for store in self.stores:
            store.put(replace(self._line, status=status, events=tuple(merge_events(self._used))), None)

    def _name_part(self, events: Iterable[Event]) -> list[Event]:
        # The budget of a filter is spent once in each part.
        return scope_events(events, f"part {self._n_parts} " if self._n_parts else "")

    def _exceeds_room(self, more: Iterable[Event] = ()) -> bool:
        expected = _weigh([*self._used, *_list_events(self._foreseen), *more])
        return not expected <= self._room * (1 + _MARGIN)

    def _reserve(self, more: Sequence[Event] = ()) -> None:
        """Write used and foreseen releases into each store; if one refuses, keep only the used ones and raise."""
        foreseen = [*self._used, *_list_events(self._foreseen), *more]
        # Releases within the reserved room were checked against the limit before.
        is_first, is_within = not self._line.events, self._room > 0 and not self._exceeds_room(more)
        rest = self._room - _weigh(foreseen) if is_within else 0.0
        events = [*foreseen, *([GaussianEvent(1 / math.sqrt(rest))] if rest > _LEAST_WEIGHT else [])]
        self._line = replace(
            self._line, events=(UnnoisedEvent(),) if self._is_unbounded else tuple(merge_events(events))
        )
        for store in self.stores:
            try:
                store.put(self._line, store.limit if is_first or not is_within else None)
            except HedgerowError:
                used = tuple(merge_events(self._used))
                for each in self.stores:
                    with suppress(HedgerowError):
                        each.put(replace(self._line, status=STOPPED if used else REFUSED, events=used), None)
                raise


class Account:
    """The stores to which runs are charged.

    Args:
        stores: where each of them is written down.
        data_set: whose rows they are over; "" for all that the stores are for.
        n_told: how many of the stores, from the first on, reports speak of: the one in which most was spent.
    """

    def __init__(self, stores: Sequence[Store] = (), data_set: str = "", n_told: int = 1) -> None:
        self.stores, self.data_set, self._n_told = list(stores), data_set, n_told

    @contextmanager
    def open_run(
        self,
        facts: RunFacts,
        events: Iterable[Event] = (),
        *,
        earlier: Sequence[Event] = (),
        whole: tuple[float, float] | None = None,
    ) -> Iterator[RunAccount]:
        """Reserve a run until the block ends, then charge its releases, however the block ended.

        Args:
            facts: what the books write down.
            events: what the run may release, at most.
            earlier: the releases that its plan was made of. They are charged as well, unless the account has them.
            whole: in place of events that are not known yet, the (epsilon, delta) of all parts together.

        Raises:
            PolicyRefusal: code "over-budget" or "policy-unit"; before anything is spent.
            EnvironmentFault: a book cannot be read or written; before anything is spent.
        """
        facts = replace(facts, data_set=self.data_set)
        earlier = [] if not earlier or self._holds(earlier) else earlier
        run = RunAccount(self.stores, facts, [*earlier, *events], whole)
        try:
            for event in earlier:
                run.charge(event)
            yield run
        except BaseException:
            # If this cannot be written, the line stays at the reservation, which is an upper bound.
            with suppress(HedgerowError):
                run.settle(STOPPED)
            raise
        run.settle(FINISHED)

    def read_state(self, unit: str, delta: float) -> AccountState:
        """Return the account's present state."""
        states = [store.read_state(self.data_set, unit, delta) for store in self.stores[: self._n_told]]
        return max(states, key=lambda state: state.epsilon, default=AccountState(NOWHERE))

    def _holds(self, events: Sequence[Event]) -> bool:
        """Return whether each store has a run of exactly these releases: the survey behind a plan."""
        wanted = set(merge_events(events))
        return all(any(set(line.events) == wanted for line in store.lines(self.data_set)) for store in self.stores)


def merge_events(events: Iterable[Event]) -> list[Event]:
    """Merge equal releases into one event with their count."""
    return _list_events(_count_events(events))


def _count_events(events: Iterable[Event]) -> Counter[Event]:
    """Count each release; releases without noise count once, because one is as bad as many."""
    counts = Counter[Event]()
    for event in events:
        if isinstance(event, UnnoisedEvent):
            counts[event] = 1
        else:
            counts[event if event.count == 1 else replace(event, count=1)] += event.count
    return counts


def _covers(foreseen: Event, event: Event) -> bool:
    """Return whether a release costs at most as much as a foreseen one."""
    if foreseen == event:
        return True
    if type(foreseen) is not type(event):
        # Noise of the coordinator is foreseen where shares of the sites, or noise of the records, may come.
        if not {type(foreseen), type(event)} <= _PLAIN:
            return False
        most, own = compose_cost([foreseen]), compose_cost([event])
        return all(getattr(most, name) >= value for name, value in vars(own).items())
    pairs = {name: (value, getattr(event, name)) for name, value in vars(foreseen).items()}
    return all(
        most >= own if name in _COSTS else most <= own if name in _NOISES else most == own
        for name, (most, own) in pairs.items()
    )


_PLAIN = {DiscreteGaussianEvent, DiscreteGaussianSumEvent, LocalGaussianEvent}
"""Releases whose costs add up as they are, with no sample and no filter."""
_COSTS = ("epsilon", "zcdp_weight", "sampling_rate", "length")
_NOISES = ("noise_multiplier", "sigma", "share_sigma", "n_shares")
"""Numbers of an event: it costs more with more of the first, and less with more of the others."""


def _get_noise(event: Event) -> float:
    """More for a release with more noise."""
    return float(getattr(event, "noise_multiplier", 0.0) or 1 / getattr(event, "epsilon", math.inf))


def _list_events(counts: Counter[Event]) -> list[Event]:
    return [
        event if isinstance(event, UnnoisedEvent) or count == 1 else replace(event, count=count)
        for event, count in counts.items()
        if count > 0
    ]


def _weigh(events: Iterable[Event]) -> float:
    """Return mu squared of all releases together; infinity for releases without noise, or without a mu."""
    try:
        return compose_cost(events).gdp_weight
    except PrivacyError:
        return math.inf


def _weigh_whole(epsilon: float, delta: float) -> float:
    check_epsilon(epsilon)
    return mu_of(epsilon, delta) ** 2 * (1 - _MARGIN)


# The account of a process ---------------------------------------------------------------------------------------------

_process = MemoryStore()
_budgets: list[Store] = []
_inherited: list[dict[str, Any]] | None = None
_outer: list[dict[str, Any]] = []
"""Files of the process that started this one, kept while the variable names budgets of this one as well."""
_shares_files = False
_open_run: ContextVar[RunAccount | None] = ContextVar("open run", default=None)
_asked_about: set[tuple[str, str]] = set()


def current_account() -> Account | RunAccount:
    """Return the account for releases made now: this thread's run (`enter_run`), else `process_account`."""
    return _open_run.get() or process_account()


def process_account(data_set: str = "") -> Account:
    """Return the account for runs that begin now: the open budgets, nearest first, and the process.

    Args:
        data_set: as the caller names it; "" for all rows.
    """
    account = Account([*reversed(_budgets), *open_outer_budgets(), _process], data_set)
    if data_set:
        _warn_about_name(account.stores[0], data_set)
    return account


def open_outer_budgets() -> list[BookStore]:
    """Open the budget files of the process that started this one, except those that are open here as well.

    Raises:
        UsageError: the variable that names them was changed.
    """
    known = {store.path for store in _budgets if isinstance(store, BookStore)}
    return [
        BookStore(Path(each["path"]), None if each["epsilon"] is None else (each["epsilon"], each["delta"]))
        for each in _list_outer()
        if Path(each["path"]) not in known
    ]


def _list_outer() -> list[dict[str, Any]]:
    if _inherited is not None:
        return _inherited
    if _has_files():
        return _outer
    value = os.environ.get(VARIABLE, "[]")
    try:
        return [{name: each[name] for name in ("path", "epsilon", "delta")} for each in json.loads(value)]
    except (ValueError, TypeError, LookupError):
        expected = "what `hedgerow.budget` wrote there"
        raise UsageError("argument", code="usage", name=VARIABLE, value=value, expected=expected) from None


def _has_files() -> bool:
    return any(isinstance(store, BookStore) for store in _budgets)


@contextmanager
def enter_run(run: RunAccount) -> Iterator[None]:
    """Make all releases of a block parts of one run, as far as they are made in this thread."""
    before = _open_run.set(run)
    try:
        yield
    finally:
        _open_run.reset(before)


def send_budgets() -> dict[str, Any]:
    """Return the open budgets for a worker process; empty if this process never had one with a file."""
    is_known = _shares_files or _inherited is not None
    return {"pid": os.getpid(), "files": _describe_budgets()} if is_known else {}


def receive_budgets(sent: Mapping[str, Any]) -> None:
    """Count, in a worker process, in the budgets of the process that started it.

    Data sent by another process, such as a file that is read again later, change nothing.
    """
    global _inherited
    starter = multiprocessing.parent_process()
    if sent and sent["pid"] in (os.getppid(), starter and starter.pid):
        _inherited = list(sent["files"])


def _describe_budgets() -> list[dict[str, Any]]:
    """List the files of this process's open budgets, nearest first."""
    own = [
        {"path": str(store.path), "epsilon": store.limit and store.limit[0], "delta": store.limit and store.limit[1]}
        for store in reversed(_budgets)
        if isinstance(store, BookStore)
    ]
    return [*own, *_list_outer()]


@contextmanager
def budget(
    epsilon: float | None = None, *, book: str | os.PathLike[str] | None = None, delta: float = DEFAULT_DELTA
) -> Iterator[Account]:
    """Give all fits, searches, surveys and evaluations of a block one account, with a limit.

    What would exceed the limit is refused before it spends anything (PolicyRefusal, code "over-budget"); models that
    were fitted before stay as they are. Their reports name the account and the sum of all runs in it.

    Args:
        epsilon: what all runs of the account may cost together; None only adds up.
        book: a file that keeps the account. Earlier blocks and other processes with this file count as well, and worker
            processes (``n_jobs``) of this block find it: those that begin in it, and those that are sent an estimator.
            None keeps it in memory, for this block and this process.
        delta: of the sum, in (0, 1).

    Yields:
        The account; `Account.read_state` says what was spent.

    Raises:
        PrivacyError: epsilon or delta out of range.
        EnvironmentFault: the file cannot be read or written, or is no budget book.
    """
    if epsilon is not None:
        check_epsilon(float(epsilon))
    check_delta(delta)
    limit = None if epsilon is None else (float(epsilon), delta)
    store: Store = MemoryStore(limit)
    if book is not None:
        store = BookStore(Path(book).resolve(), limit)
        store.lines("")
    global _shares_files, _outer
    _outer = _list_outer()
    _budgets.append(store)
    try:
        _shares_files |= book is not None
        _set_variable()
        yield Account([store])
    finally:
        _budgets.remove(store)
        _set_variable()


def _set_variable() -> None:
    # Budgets of several threads may end in any order.
    if described := _describe_budgets() if _has_files() else _outer:
        os.environ[VARIABLE] = json.dumps(described)
    else:
        os.environ.pop(VARIABLE, None)


def forget_runs() -> None:
    """Empty the account of this process, for tests: the process then no longer counts its spending."""
    _process.clear()
    _told.clear()


_told: set[object] = set()


def has_told(run: RunAccount) -> bool:
    """Return whether it was called for this account before, so that a warning is given once.

    It remembers each call.
    """
    store = run.stores[0]
    # The store itself is kept: the next account in memory could have its `id`.
    key = store.path if isinstance(store, BookStore) else store
    was_told = key in _told
    _told.add(key)
    return was_told


def _warn_about_name(store: Store, data_set: str) -> None:
    near = find_near_name(data_set, {line.data_set for line in store.lines("")})
    if near is not None and (near, data_set) not in _asked_about:
        _asked_about.add((near, data_set))
        warn_caller(
            f"data_set={data_set!r} begins a new account beside {near!r}. If these are the same people, give the name "
            "that they have: what is spent on them adds up."
        )
