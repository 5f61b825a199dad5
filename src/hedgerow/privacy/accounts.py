# SPDX-License-Identifier: Apache-2.0
"""The state of a budget account as a report quotes it: all runs over some rows, and what they cost together.

A report speaks of one run. The account holds every run that was charged to it. So a reader learns from the report what
all of them have cost by the time it was made. All of it follows from releases and public facts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from hedgerow.errors import PrivacyError
from hedgerow.privacy.events import Event, FilteredGaussianEvent, UnnoisedEvent
from hedgerow.privacy.rounding import format_up

MEMORY, NOWHERE = "memory", "none"
"""Places of an account that is in no file: the memory of a process, and no account at all (`--no-book`)."""
_INFINITE = "infinite"


@dataclass(frozen=True)
class AccountState:
    """State of a budget account at the time of a report.

    Attributes:
        place: the name of the book's file, without its folder; or `MEMORY`, or `NOWHERE`.
        data_set: whose account it is, as its owner named it; "" for all rows that the book's folder or process has.
        read: the day when it was read, in UTC.
        n_runs: the runs in it that have cost something, this one included.
        epsilon: what they cost together at `delta`; infinity where one of them has no guarantee.
        delta: in (0, 1).
        unit: the unit of privacy of these runs.
        n_other_units: runs in the account that protect another unit. Their cost cannot be added.
        limit: the largest epsilon that the account allows; None for no limit.
        is_chosen: whether a search chose this run's settings by exact scores, also of runs that are not counted here.
        n_releases: releases of the report when the account was read.
        n_counted: those of them that are known to be in it; None if an earlier version did not look.
        releases: all releases in the account, by their cost; None once they were compared with a report's.
    """

    place: str
    data_set: str = ""
    read: str = ""
    n_runs: int = 0
    epsilon: float = 0.0
    delta: float = 1e-6
    unit: str = "record"
    n_other_units: int = 0
    limit: float | None = None
    is_chosen: bool = False
    n_releases: int = 0
    n_counted: int | None = None
    releases: Counter[Event] | None = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the state as a dictionary of JSON values."""
        content = {part.name: getattr(self, part.name) for part in fields(self) if part.compare}
        for name, is_said in (("is_chosen", self.is_chosen), ("n_counted", self.n_counted is not None)):
            if not is_said:
                del content[name]
        return {name: _INFINITE if value == math.inf else value for name, value in content.items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> AccountState:
        """Read the state that `to_dict` wrote.

        Raises:
            PrivacyError: code "malformed-report".
        """
        known = {part.name: part.type for part in fields(cls) if part.compare}
        kinds: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}
        values: dict[str, Any] = {name: math.inf if value == _INFINITE else value for name, value in content.items()}
        for name, value in values.items():
            kind = str(known.get(name, "")).removesuffix(" | None")
            is_none = value is None and name in ("limit", "n_counted")
            is_other = isinstance(value, bool) is not (kind == "bool") or not isinstance(value, kinds.get(kind, ()))
            if not is_none and is_other:
                what = f"Its account has {name} = {value!r}."
                raise PrivacyError("malformed", code="malformed-report", what=what)
        values = {"place": NOWHERE, **values}
        return cls(**values)

    def compare_with(self, events: Iterable[Event], before: AccountState | None) -> AccountState:
        """Return this state with the number of a report's releases that the account is known to have.

        Args:
            events: of the report's releases.
            before: the account that the report named until now, if any. What was not in that one is in none.
        """
        own = count_releases(events)
        if self.releases is None and self.n_counted is not None:
            # It was compared when it was read.
            return replace(self, n_releases=own.total())
        n_lost = 0 if before is None or before.n_counted is None else before.n_releases - before.n_counted
        found = own & (self.releases or Counter())
        n_counted: int | None = min(found.total(), own.total() - n_lost)
        if self.place == NOWHERE:
            n_counted = 0 if before is None else before.n_counted
        elif self.epsilon == math.inf:
            # An account of infinite cost leaves nothing out.
            n_counted = own.total()
        return replace(self, n_releases=own.total(), n_counted=n_counted, releases=None)

    def facts(self, n_releases: int = 0) -> list[tuple[str, str]]:
        """Return the report's lines about the account as (name, text).

        A line with an empty name continues the line above it.

        Args:
            n_releases: of the report.
        """
        if self.place == NOWHERE:
            said = "no budget book was kept (--no-book): what other runs over these rows have cost is not counted"
            return [("account", said)]
        n_missing = 0 if self.n_counted is None else max(0, n_releases - self.n_counted)
        lines = [f"{self._describe_runs(has_all=not n_missing)}{self._describe_others()}"]
        if n_missing:
            lines.append(
                f"{n_missing} of the {n_releases} releases of this report are not known to be in it, as if nodes, "
                "another process or a run with --no-book had made them: what they cost comes on top"
            )
        if self.place == MEMORY:
            lines.append(
                "it is in the memory of one process: runs of other processes are not counted. With "
                "hedgerow.budget(EPSILON, book=FILE) they share a file"
            )
        if self.n_runs > 1 or self.is_chosen:
            lines.append(
                "to choose among the models of these runs by exact scores of held-out rows, as GridSearchCV does, is "
                "outside the guarantee; hedgerow.tune chooses within one budget"
            )
        return [("" if at else "account", line) for at, line in enumerate(lines)]

    def describe_total(self) -> str:
        """Return the cost of all runs together, worded for a sentence."""
        return f"epsilon {format_up(self.epsilon, 4)} at delta {format_up(self.delta, 3)}"

    def _describe_runs(self, *, has_all: bool) -> str:
        whose = (
            f"{self.data_set!r}"
            if self.data_set
            else "all rows of this process" if self.place == MEMORY else "all rows that are counted"
        )
        where = "" if self.place == MEMORY else f" in {self.place}"
        limit = "" if self.limit is None else f", of {format_up(self.limit)} that it allows"
        one, several = ("1 run, this one", " with this one") if has_all else ("1 run", "")
        count = one if self.n_runs == 1 else f"{self.n_runs} runs{several}"
        return f"of {whose}{where}, read {self.read}: {count}, together at most {self.describe_total()}{limit}"

    def _describe_others(self) -> str:
        if not self.n_other_units:
            return ""
        return f"; {self.n_other_units} more protect another unit than each {self.unit}, and cannot be added"


def count_releases(events: Iterable[Event]) -> Counter[Event]:
    """Count releases of equal cost, whatever run they are of."""
    counts = Counter[Event]()
    for event in events:
        one = event if isinstance(event, UnnoisedEvent) else replace(event, count=1)
        one = replace(one, scope="") if isinstance(one, FilteredGaussianEvent) else one
        counts[one] += getattr(event, "count", 1)
    return counts
