# SPDX-License-Identifier: Apache-2.0
"""The state of a budget account as a report quotes it: all runs over some rows, and what they cost together.

A report speaks of one run. The account holds every run that was charged to it, so a reader learns from the report what
all of them have cost by the time it was made. All of it follows from releases and public facts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from hedgerow.errors import PrivacyError
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

    def to_dict(self) -> dict[str, Any]:
        """Return the state as a dictionary of JSON values."""
        content = {part.name: getattr(self, part.name) for part in fields(self)}
        if not self.is_chosen:
            del content["is_chosen"]
        return {name: _INFINITE if value == math.inf else value for name, value in content.items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> AccountState:
        """Read the state that `to_dict` wrote.

        Raises:
            PrivacyError: code "malformed-report".
        """
        known = {part.name: part.type for part in fields(cls)}
        kinds: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}
        values: dict[str, Any] = {name: math.inf if value == _INFINITE else value for name, value in content.items()}
        for name, value in values.items():
            kind = str(known.get(name, "")).removesuffix(" | None")
            is_none = value is None and name == "limit"
            is_other = isinstance(value, bool) is not (kind == "bool") or not isinstance(value, kinds.get(kind, ()))
            if not is_none and is_other:
                what = f"Its account has {name} = {value!r}."
                raise PrivacyError("malformed", code="malformed-report", what=what)
        values = {"place": NOWHERE, **values}
        return cls(**values)

    def facts(self) -> list[tuple[str, str]]:
        """Return the report's lines about the account as (name, text).

        A line with an empty name continues the line above it.
        """
        if self.place == NOWHERE:
            said = "no budget book was kept (--no-book): what other runs over these rows have cost is not counted"
            return [("account", said)]
        lines = [f"{self._describe_runs()}{self._describe_others()}"]
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

    def _describe_runs(self) -> str:
        whose = (
            f"{self.data_set!r}"
            if self.data_set
            else "all rows of this process" if self.place == MEMORY else "all rows that are counted"
        )
        where = "" if self.place == MEMORY else f" in {self.place}"
        limit = "" if self.limit is None else f", of {format_up(self.limit)} that it allows"
        count = "1 run, this one" if self.n_runs == 1 else f"{self.n_runs} runs with this one"
        return f"of {whose}{where}, read {self.read}: {count}, together at most {self.describe_total()}{limit}"

    def _describe_others(self) -> str:
        if not self.n_other_units:
            return ""
        return f"; {self.n_other_units} more protect another unit than each {self.unit}, and cannot be added"
