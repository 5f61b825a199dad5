# SPDX-License-Identifier: Apache-2.0
"""The request of a survey, as every party has it: statistics of a whole table, or curves.

It has the promise, the columns, and each column's public declarations:

    {"privacy": {"epsilon": 0.3, "delta": 1e-6, "noise": "distributed"}, "label": "readmitted",
     "columns": [{"name": "age", "type": "numeric", "min": 0, "max": 110}, {"name": "ward"}, {"name": "readmitted"}]}

A column is written like a plan's [[features]], with two liberties: a number or a date may lack both bounds, and a
column of which only the name is known has no type. The statistics find what is missing. The label, "" for none, is one
of the columns.

With "curves": {"event": "died", "intervals": [365, 730], "by": "ward"} the request is for Kaplan-Meier curves only. The
columns are then the label's (times), the event's, and that of the groups ("by") with its categories; without "by" all
records are one group.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from hedgerow.errors import PlanError, PrivacyError
from hedgerow.plan.fields import MAX_VALUES as MAX_PLAIN
from hedgerow.plan.fields import read_section, refuse, require_plain
from hedgerow.plan.plan import PLAN_VERSION, Feature, Label, Plan, read_feature
from hedgerow.plan.registry import label_kinds
from hedgerow.privacy.ledger import Ledger
from hedgerow.protocol.queries import IntVector
from hedgerow.survey.curves import AskedCurves, SurvivalCurves
from hedgerow.survey.program import SurveyProgram, survey
from hedgerow.survey.questions import Questions
from hedgerow.survey.statistics import TableStatistics

MAX_RECORDS = 10**9
"""Largest number of records if a survey has to find it: words are wide enough for it, so that no sum wraps."""
_TRIAL_BOUNDS = {"min": 0.0, "max": 1.0}


HASH_BUCKETS = 32
"""Buckets of a text column without a list of values."""
_NO_LABEL = "(no label)"
_SECTIONS = {"privacy", "federation", "label", "columns", "curves"}


@dataclass(frozen=True, eq=False)
class OpenTable:
    """A request for the statistics of a table.

    Attributes:
        table: the request in plain values, as from `tomllib` or `json`.

    Raises:
        PlanError: a value is wrong.
        PrivacyError: code "survey-pure", or "noise-mode-unsupported" for noise of each record.
    """

    KIND: ClassVar[str] = "statistics"
    table: Mapping[str, Any]

    def __post_init__(self) -> None:
        try:
            require_plain(self.table, MAX_PLAIN)
        except ValueError as error:
            raise PlanError("plan-not-plain", error=error) from None
        unknown = sorted(set(self.table) - _SECTIONS)
        if unknown:
            raise refuse(unknown[0], self.table[unknown[0]], "nothing of this name")
        columns, names = self.table.get("columns"), [column.name for column in self.columns]
        if self.label and self.label not in names:
            raise refuse("label", self.label, "one of the columns")
        if len(set(names)) < len(names):
            raise refuse("columns", columns, "columns of different names")
        if self.schema_plan.privacy.noise == "local":
            raise PrivacyError(
                "noise-mode-unsupported", subject="A survey", noise="local", others='"distributed" or "server"'
            )
        _ = self.questions

    @classmethod
    def of(cls, columns: Sequence[Feature], label: str, privacy: Mapping[str, Any], **curves: Any) -> OpenTable:
        """Build the request from the columns' declarations, a plan's [privacy] without `n_records`, and the curves."""
        items = [_write_column(column) for column in columns]
        more = {"curves": curves} if curves else {}
        return cls({"privacy": dict(privacy), "label": label, "columns": items, **more})

    # What it says ----------------------------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """The column whose classes are counted by bin of each other column; "" for none."""
        label = self.table.get("label", "")
        if not isinstance(label, str):
            raise refuse("label", label, "the name of a column")
        return label

    @cached_property
    def columns(self) -> tuple[Feature, ...]:
        """The declaration of each column."""
        items = self.table.get("columns")
        if not isinstance(items, list | tuple) or not all(isinstance(item, Mapping) for item in items):
            raise refuse("columns", items, "a list of columns")
        return tuple(_read_column(item, f"columns[{index}]") for index, item in enumerate(items))

    @cached_property
    def questions(self) -> Questions:
        """The questions of the survey's program.

        Raises PrivacyError, code "survey-pure", if there can be none.
        """
        privacy, curves = self.schema_plan.privacy, self._curves if "curves" in self.table else None
        names = [column.name for column in self.columns]
        return Questions(
            columns=self.columns,
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            accountant=privacy.accountant,
            rows_per_unit=privacy.rows_per_unit,
            noise=privacy.noise,
            about="table" if curves is None else "curves",
            label=names.index(self.label) if self.label else None,
            curves=curves,
        )

    @property
    def _curves(self) -> AskedCurves:
        """The requested curves.

        Raises PlanError if the columns are not those of curves.
        """
        section = self.table["curves"]
        may_have = {"event", "intervals", "event_codes", "by"}
        if not isinstance(section, Mapping) or not {"event", "intervals"} <= set(section) <= may_have:
            raise refuse("curves", section, "an event, intervals, event_codes if need be, and by if there are groups")
        found = {name: value for name, value in section.items() if name != "by"}
        label = read_section(Label, {"name": self.label, "type": "survival", **found}, "curves")
        label_kinds()["survival"].check(label)
        names, by = [column.name for column in self.columns], section.get("by")
        if names != [*label.columns, *([] if by is None else [by])]:
            raise refuse("columns", names, "the columns of times, of events, and of groups if there are any")
        groups = ("",) if by is None else self.columns[-1].listed
        if not groups:
            raise refuse("curves.by", by, "a column with categories")
        codes = {"codes": label.event_codes} if label.event_codes else {}
        time, event = label.columns
        return AskedCurves(ends=label.intervals, groups=groups, names=(time, event, by or ""), **codes)

    @cached_property
    def schema_plan(self) -> Plan:
        """The plan by which the sums are made and the columns are read. It is never trained."""
        privacy = self.table.get("privacy")
        if not isinstance(privacy, Mapping):
            raise refuse("privacy", privacy, "a [privacy] table, which says what is promised")
        items = [_fill(item) for item in self.table["columns"] if item["name"] != self.label]
        return Plan.from_dict(
            {
                "version": PLAN_VERSION,
                "name": "statistics",
                "privacy": {**privacy, "n_records": MAX_RECORDS},
                "federation": self.table.get("federation", {}),
                "label": {"name": self.label or _NO_LABEL, "type": "binary", "classes": ["0", "1"]},
                "features": items,
            }
        )

    # What is done with it --------------------------------------------------------------------------------------------

    @property
    def epsilon(self) -> float:
        """The largest cost of the statistics at the promise's delta."""
        return self.questions.epsilon

    def program(self, excess: float = 1.0) -> SurveyProgram:
        """Return a fresh program; `excess` and errors are those of `survey`."""
        return survey(self.questions, excess)

    def to_bytes(self) -> bytes:
        """Return canonical JSON: equal requests give equal bytes."""
        return json.dumps(self.table, sort_keys=True, separators=(",", ":"), allow_nan=True).encode()

    def statistics(self, releases: Sequence[IntVector], ledger: Ledger) -> TableStatistics | SurvivalCurves:
        """Compute the findings from releases, with the noise that is really in them.

        If sites added the noise, that is the shares of all of them. The program itself uses the accounted noise, which
        all parties know beforehand.
        """
        cohorts = [release.cohort for release in ledger if release.cohort is not None]
        excess = max((math.sqrt(cohort.n_sites / cohort.n_shares) for cohort in cohorts), default=1.0)
        program = self.program(excess)
        try:
            next(program)
            for release in releases:
                program.send(release)
        except StopIteration as finished:
            found: TableStatistics | SurvivalCurves = finished.value
            return found
        raise ValueError("the releases are not those of all statistics")


def _fill(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return a column as a plan's feature, with placeholders for a type and bounds that are open.

    One bound alone is a mistake, which the plan refuses.
    """
    filled = {"type": "numeric", **item}
    is_open = filled["type"] in ("numeric", "date") and filled.get("min") is None and filled.get("max") is None
    return filled | _TRIAL_BOUNDS if is_open else filled


def _read_column(item: Mapping[str, Any], path: str) -> Feature:
    if "type" not in item and set(item) != {"name"}:
        raise refuse(f"{path}.type", None, "the type of a column of which more than the name is said")
    filled = _fill(item)
    column = read_feature(filled, path)
    if not column.is_categorical and column.bounds is None:
        raise refuse(path, dict(item), "both bounds, the lower one first, or none")
    gaps: dict[str, Any] = dict.fromkeys(_TRIAL_BOUNDS) if filled.get("min") != item.get("min") else {}
    return replace(column, type=item.get("type", ""), **gaps)


def _write_column(column: Feature) -> dict[str, Any]:
    """Write what `_read_column` reads: the column's type, and its bounds or categories."""
    if column.listed:
        return {"name": column.name, "type": "categorical", "categories": list(column.listed)}
    if column.is_categorical:
        return {"name": column.name, "type": "hashed", "buckets": HASH_BUCKETS}
    item: dict[str, Any] = {"name": column.name} | ({"type": column.type} if column.type else {})
    item |= dict(zip(("min", "max"), column.bounds or (), strict=False))
    item |= {"integer": True} if column.integer else {}
    return item | ({} if column.format is None else {"format": column.format})
