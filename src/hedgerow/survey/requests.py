# SPDX-License-Identifier: Apache-2.0
"""What a survey is asked for: the gaps of a plan, to be filled before it is run, or statistics of a whole table.

    [label]                                   [[features]]
    name = "readmitted"                       name = "age"
    type = "binary"      # no classes         type = "numeric"       # no min, no max

An open plan leaves bounds, classes or the number of records open; else it is written as a plan is. Gaps may be:
`privacy.n_records`; both bounds of a numeric feature; the classes of a label, "numbers" or "texts" in place of a list
where they are whole numbers or texts (which is also what no classes mean); both bounds of a label that is a number. All
else is as in a plan, and public like it. `OpenPlan.filled` makes the plan of it, with the survey's releases in
[[prepared]]: so a run of that plan reports both.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from hedgerow.errors import PlanError, PrivacyError
from hedgerow.plan.fields import MAX_VALUES as MAX_PLAIN
from hedgerow.plan.fields import days_between, read_section, refuse, require_plain
from hedgerow.plan.plan import FOUND, PLAN_VERSION, Feature, Label, Plan, read_feature, read_table
from hedgerow.plan.registry import label_kinds
from hedgerow.privacy.accountants import compute_account
from hedgerow.privacy.ledger import Ledger, write_prepared_tables
from hedgerow.protocol.queries import IntVector
from hedgerow.survey.bounds import Findings
from hedgerow.survey.curves import AskedCurves, SurvivalCurves
from hedgerow.survey.program import SurveyProgram, survey
from hedgerow.survey.questions import AskedColumn, Questions
from hedgerow.survey.statistics import TableStatistics

MAX_RECORDS = 10**9
"""The records that there may be where a survey is to find how many: words are made for so many, and nothing wraps."""
WORDS_FOR_CLASSES = {"numbers": "values", "texts": "texts"}
"""What may stand in place of a list of classes, and what is then asked for, as `Questions.label` says it."""
_TRIAL_CLASSES = ("0", "1")
_TRIAL_BOUNDS = {"min": 0.0, "max": 1.0}


@dataclass(frozen=True, eq=False)
class _Request(ABC):
    """What a survey is asked for, as plain values: `tomllib` and `json` give them."""

    table: Mapping[str, Any]

    def __post_init__(self) -> None:
        try:
            require_plain(self.table, MAX_PLAIN)
        except ValueError as error:
            raise PlanError("plan-not-plain", error=error) from None

    @property
    @abstractmethod
    def questions(self) -> Questions:
        """The program's; PrivacyError (code "survey-pure") where there can be none."""

    def program(self, excess: float = 1.0) -> SurveyProgram:
        """A fresh program; `excess` and errors as of `survey`."""
        return survey(self.questions, excess)

    def to_bytes(self) -> bytes:
        """Canonical JSON: equal requests give equal bytes."""
        return json.dumps(self.table, sort_keys=True, separators=(",", ":"), allow_nan=True).encode()


@dataclass(frozen=True, eq=False)
class OpenPlan(_Request):
    """A plan with gaps.

    Raises:
        PlanError: it is wrong beside its gaps, or has none.
        PrivacyError: code "survey-pure", or "noise-mode-unsupported" for noise of each record.
    """

    KIND: ClassVar[str] = "plan"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("label", "privacy", "federation"):
            if not isinstance(self.table.get(name, {}), Mapping):
                raise refuse(name, self.table.get(name), f"a [{name}] table")
        features = self.table.get("features")
        if not isinstance(features, list | tuple) or not all(isinstance(item, Mapping) for item in features):
            raise refuse("features", features, "[[features]] tables")
        plan = self.trial
        if plan.prepared:
            raise refuse("prepared", f"{len(plan.prepared)} releases", "none in a plan that a survey is to fill in")
        if plan.privacy.noise == "local":
            raise PrivacyError(
                "noise-mode-unsupported", subject="A survey", noise="local", others='"distributed" or "server"'
            )
        if self.questions.is_empty:
            raise PlanError("survey-nothing-open", name=plan.name)

    # What it says ----------------------------------------------------------------------------------------------------

    @property
    def columns(self) -> tuple[str, ...]:
        """The features whose bounds are asked for, in the order of the plan."""
        return tuple(item["name"] for item in self.table["features"] if _lacks_bounds(item))

    @property
    def label_asked(self) -> str:
        """What is asked for of the label, as `Questions.label`."""
        label = self.table.get("label", {})
        if self.trial.label.kind.is_number:
            is_open = label.get("min") is None and label.get("max") is None
            return ("counts" if label.get("type") == "count" else "bounds") if is_open else ""
        return WORDS_FOR_CLASSES.get(label.get("classes") or "texts", "") if _lacks_classes(label) else ""

    @property
    def read_columns(self) -> tuple[str, ...]:
        """The columns that a site reads: those asked for, the label if it is among them, the unit's identifier."""
        unit, label = self.trial.privacy.unit, self.trial.label.name
        return (*self.columns, *([label] if self.label_asked else []), *([] if unit == "record" else [unit]))

    @cached_property
    def questions(self) -> Questions:
        """The survey's; PrivacyError (code "survey-pure") where no survey is possible."""
        privacy = self.trial.privacy
        return Questions.of_plan(
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            accountant=privacy.accountant,
            n_columns=len(self.columns),
            n_records=None if _lacks(self.table.get("privacy", {}), "n_records") else privacy.n_records,
            label=self.label_asked,
            rows_per_unit=privacy.rows_per_unit,
        )

    @cached_property
    def trial(self) -> Plan:
        """The plan with something in each gap: everything else about it is as it will be. PlanError."""
        table = _copy(self.table)
        table["features"] = [{**item, **_TRIAL_BOUNDS} if _lacks_bounds(item) else item for item in table["features"]]
        label, privacy = table.get("label", {}), table.get("privacy", {})
        if label.get("type") in ("binary", "multiclass"):
            if _lacks_classes(label):
                label["classes"] = list(_TRIAL_CLASSES if label["type"] == "binary" else (*_TRIAL_CLASSES, "2"))
        elif label.get("min") is None and label.get("max") is None:
            table["label"] = {**label, "max": 1.0} if label.get("type") == "count" else {**label, **_TRIAL_BOUNDS}
        if _lacks(privacy, "n_records"):
            table["privacy"] = {**privacy, "n_records": MAX_RECORDS}
        return Plan.from_dict(table)

    @cached_property
    def carrier(self) -> Plan:
        """A plan that says how the survey's sums are made: noise, unit, sites, timeouts. It is never trained by."""
        table = self.trial.to_dict()
        kept = {name: table[name] for name in ("version", "privacy", "label", "federation", "features")}
        return Plan.from_dict({**kept, "name": f"{self.trial.name} (survey)"}, is_stored=True)

    # What is done with it --------------------------------------------------------------------------------------------

    @cached_property
    def epsilon(self) -> float:
        """What it costs by itself at the plan's delta, at its most expensive."""
        privacy = self.trial.privacy
        return float(compute_account(privacy.accountant, self.questions.schedule.events, privacy.delta).epsilon)

    def filled(self, findings: Findings, ledger: Ledger, run: bytes = b"") -> Plan:
        """The plan, with what was found in the gaps and the releases that it came from, of a run over nodes if any.

        Raises:
            DataError: code "data-one-class" or "data-range": neither two classes nor a range of the label stand out.
            PlanError: what was found makes no plan.
        """
        table, ranges = _copy(self.table), dict(zip(self.columns, findings.ranges, strict=True))
        for item in table["features"]:
            found = ranges.get(item["name"])
            if found is not None:
                is_date = item["type"] == "date"
                item["min"], item["max"] = days_between(*found.bounds) if is_date else found.bounds
                item.setdefault("integer", found.is_whole)
                item["origin"] = FOUND
        label, privacy = table["label"], self.trial.privacy
        if self.label_asked:
            findings.require_label(compute_account(privacy.accountant, ledger.events(), privacy.delta).epsilon)
            label["origin"] = FOUND
        if findings.label is not None:
            low, high = findings.label.bounds
            label.update({"max": high} if label["type"] == "count" else {"min": low, "max": high})
        elif self.label_asked:
            label["classes"] = [str(name) for name in findings.classes]
            label["type"] = "binary" if len(findings.classes) == 2 else "multiclass"
        table["privacy"]["n_records"] = findings.n_records
        table["prepared"] = write_prepared_tables(ledger, privacy.unit, privacy.rows_per_unit, run)
        return Plan.from_dict(table)


def parse_open_plan(toml_text: str) -> OpenPlan:
    """Read an open plan from the text of its TOML file; raises PlanError or PrivacyError."""
    return OpenPlan(read_table(toml_text))


def _copy(table: Mapping[str, Any]) -> dict[str, Any]:
    """A copy two tables deep, whose sections may be changed."""
    copied: dict[str, Any] = {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in table.items()
    }
    copied["features"] = [dict(item) for item in table["features"]]
    return copied


def _lacks(section: Mapping[str, Any], field: str) -> bool:
    return section.get(field) is None


def _lacks_bounds(feature: Mapping[str, Any]) -> bool:
    """Whether both are open; one bound alone is a mistake, which the plan refuses."""
    return feature.get("type") in ("numeric", "date") and _lacks(feature, "min") and _lacks(feature, "max")


def _lacks_classes(label: Mapping[str, Any]) -> bool:
    classes = label.get("classes")
    return label.get("type") in ("binary", "multiclass") and (not classes or classes in tuple(WORDS_FOR_CLASSES))


# Statistics that are asked for ----------------------------------------------------------------------------------------
# As every party has it: the promise, the columns, what is public of each.
#
#     {"privacy": {"epsilon": 0.3, "delta": 1e-6, "noise": "distributed"}, "label": "readmitted",
#      "columns": [{"name": "age", "type": "numeric", "min": 0, "max": 110}, {"name": "ward"}, {"name": "readmitted"}]}
#
# A column is written as a plan's [[features]] are, with two liberties: a number or a date may lack both bounds, and
# where nothing but its name is known, it has no type. What is missing is found by the statistics. The label, "" for
# none, is one of the columns.
#
# With "curves": {"event": "died", "intervals": [365, 730], "by": "ward"} nothing is asked for but Kaplan-Meier curves.
# The columns are then the label's, of times, the event's, and that of the groups, "by", with its categories; without
# "by" all records are one group.

HASH_BUCKETS = 32
"""Of a column of text without a list of values."""
_NO_LABEL = "(no label)"
_SECTIONS = {"privacy", "federation", "label", "columns", "curves"}


@dataclass(frozen=True, eq=False)
class OpenTable(_Request):
    """The statistics that are asked for.

    Raises:
        PlanError: a value is wrong.
        PrivacyError: code "survey-pure", or "noise-mode-unsupported" for noise of each record.
    """

    KIND: ClassVar[str] = "statistics"

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = sorted(set(self.table) - _SECTIONS)
        if unknown:
            raise refuse(unknown[0], self.table[unknown[0]], "nothing of this name")
        columns, names = self.table.get("columns"), [column.name for column in self.columns]
        if self.label and self.label not in names:
            raise refuse("label", self.label, "one of the columns")
        if len(set(names)) < len(names):
            raise refuse("columns", columns, "columns of different names")
        if self.carrier.privacy.noise == "local":
            raise PrivacyError(
                "noise-mode-unsupported", subject="A survey", noise="local", others='"distributed" or "server"'
            )
        _ = self.questions

    @classmethod
    def of(cls, columns: Sequence[AskedColumn], label: str, privacy: Mapping[str, Any]) -> OpenTable:
        """What is asked, of what is known of each column, and a plan's [privacy] without `n_records`."""
        return cls({"privacy": dict(privacy), "label": label, "columns": [_write_column(column) for column in columns]})

    @classmethod
    def of_curves(cls, label: Label, by: AskedColumn | None, privacy: Mapping[str, Any]) -> OpenTable:
        """Kaplan-Meier curves for a label that is a time to an event, by the categories of a column, or of all."""
        columns = [AskedColumn(name) for name in label.columns] + ([] if by is None else [by])
        curves: dict[str, Any] = {"event": label.event, "intervals": list(label.intervals)}
        curves |= {"event_codes": list(label.event_codes)} if label.event_codes else {}
        curves |= {} if by is None else {"by": by.name}
        items = [_write_column(column) for column in columns]
        return cls({"privacy": dict(privacy), "label": label.name, "columns": items, "curves": curves})

    # What it says ----------------------------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """The column whose classes are asked for by bin of each other; "" for none."""
        label = self.table.get("label", "")
        if not isinstance(label, str):
            raise refuse("label", label, "the name of a column")
        return label

    @cached_property
    def columns(self) -> tuple[AskedColumn, ...]:
        """What is known of each column."""
        items = self.table.get("columns")
        if not isinstance(items, list | tuple) or not all(isinstance(item, Mapping) for item in items):
            raise refuse("columns", items, "a list of columns")
        return tuple(_read_column(item, f"columns[{index}]") for index, item in enumerate(items))

    @property
    def read_columns(self) -> tuple[str, ...]:
        """The columns that a site reads: those asked for, and the unit's identifier."""
        unit = self.carrier.privacy.unit
        return (*(column.name for column in self.columns), *([] if unit == "record" else [unit]))

    @cached_property
    def questions(self) -> Questions:
        """See `_Request.questions`."""
        privacy, curves = self.carrier.privacy, self._curves if "curves" in self.table else None
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
        """The curves that are asked for; PlanError where the columns are not those of curves."""
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
        groups = ("",) if by is None else self.columns[-1].categories
        if not groups:
            raise refuse("curves.by", by, "a column with categories")
        codes = {"codes": label.event_codes} if label.event_codes else {}
        time, event = label.columns
        return AskedCurves(ends=label.intervals, groups=groups, names=(time, event, by or ""), **codes)

    @cached_property
    def carrier(self) -> Plan:
        """A plan that says how the sums are made, and which columns are read. It is never trained by."""
        privacy = self.table.get("privacy")
        if not isinstance(privacy, Mapping):
            raise refuse("privacy", privacy, "a [privacy] table, which says what is promised")
        items = [_trial(item) for item in self.table["columns"] if item["name"] != self.label]
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
        """What the statistics may cost at the promise's delta."""
        return self.questions.epsilon

    def statistics(self, releases: Sequence[IntVector], ledger: Ledger) -> TableStatistics | SurvivalCurves:
        """What releases say, with the noise that is in them: where sites added it, the shares of all of them.

        The program itself reckons with the noise that is accounted for, which all parties know beforehand.
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


Asked = OpenPlan | OpenTable
"""What a survey may be about."""


def declare_column(feature: Feature) -> AskedColumn:
    """What a plan's feature says of its column."""
    if feature.is_hashed:
        return AskedColumn(feature.name, "text")
    if feature.is_categorical:
        return AskedColumn(feature.name, "text", categories=feature.categories)
    bounds = None
    if feature.min is not None and feature.max is not None and feature.min < feature.max:
        bounds = feature.min, feature.max
    return AskedColumn(feature.name, "number", bounds, feature.integer, is_date=feature.is_date, layout=feature.format)


def _trial(item: Mapping[str, Any]) -> dict[str, Any]:
    """A column as a plan's feature, with something in place of what is not known."""
    if "type" not in item:
        return {**item, "type": "numeric", **_TRIAL_BOUNDS}
    return {**item, **_TRIAL_BOUNDS} if _lacks_bounds(item) else dict(item)


def _read_column(item: Mapping[str, Any], path: str) -> AskedColumn:
    if "type" not in item and set(item) != {"name"}:
        raise refuse(f"{path}.type", None, "the type of a column of which more than the name is said")
    feature = read_feature(_trial(item), path)
    if "type" not in item:
        return AskedColumn(feature.name)
    column = declare_column(feature)
    is_complete = column.kind == "text" or column.bounds is not None
    if not is_complete:
        raise refuse(path, dict(item), "both bounds, the lower one first, or none")
    open_bounds = AskedColumn(column.name, "number", None, column.is_whole, (), column.is_date, column.layout)
    return open_bounds if _lacks_bounds(item) else column


def _write_column(column: AskedColumn) -> dict[str, Any]:
    """A column as `_read_column` reads it."""
    if column.kind == "text":
        if column.categories:
            return {"name": column.name, "type": "categorical", "categories": list(column.categories)}
        return {"name": column.name, "type": "hashed", "buckets": HASH_BUCKETS}
    if column.kind != "number":
        return {"name": column.name}
    item: dict[str, Any] = {"name": column.name, "type": "date" if column.is_date else "numeric"}
    if column.bounds is not None:
        item |= dict(zip(("min", "max"), column.bounds, strict=True))
    if column.is_whole:
        item["integer"] = True
    return item | ({} if column.layout is None else {"format": column.layout})
