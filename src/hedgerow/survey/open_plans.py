"""A plan with gaps: bounds, classes or the number of records left open, for a survey to find before a run is planned.

    [label]                                   [[features]]
    name = "readmitted"                       name = "age"
    type = "binary"      # no classes         type = "numeric"       # no min, no max

An open plan is written as a plan is. Gaps may be: `privacy.n_records`; both bounds of a numeric feature; the classes of
a label, "numbers" or "texts" in place of a list where they are whole numbers or texts (which is also what no classes
mean); both bounds of a label that is a number. All else is as in a plan, and public like it. `OpenPlan.filled` makes
the plan of it, with the survey's releases in [[prepared]]: so a run of that plan reports both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from hedgerow.errors import DataError, PlanError, PrivacyError
from hedgerow.plan.fields import MOST_VALUES, days_between, parse_toml, refuse, require_plain
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import account_of
from hedgerow.privacy.events import Event
from hedgerow.privacy.ledger import Ledger
from hedgerow.privacy.prepared import prepared_tables
from hedgerow.survey.program import Findings, Questions, SurveyProgram, planned_survey, survey
from hedgerow.survey.queries import N_OCTAVES, N_ZOOM

MOST_RECORDS = 10**9
"""The records that there may be where a survey is to find how many: words are made for so many, and nothing wraps."""
WORDS_FOR_CLASSES = {"numbers": "values", "texts": "texts"}
"""What may stand in place of a list of classes, and what is then asked for, as `Questions.label` says it."""
_TRIAL_CLASSES = ("0", "1")
_TRIAL_BOUNDS = {"min": 0.0, "max": 1.0}


@dataclass(frozen=True, eq=False)
class OpenPlan:
    """A plan with gaps.

    Attributes:
        table: its plain values, as `tomllib` and `json` give them.

    Raises:
        PlanError: it is wrong beside its gaps, or has none.
        PrivacyError: code "survey-pure", or "noise-mode-unsupported" for noise of each record.
    """

    KIND: ClassVar[str] = "plan"
    table: Mapping[str, Any]

    def __post_init__(self) -> None:
        try:
            require_plain(self.table, MOST_VALUES)
        except ValueError as error:
            raise PlanError("plan-not-plain", error=error) from None
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
            raise PrivacyError("noise-mode-unsupported", noise="local")
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
        if self.trial.label.is_numeric:
            return "bounds" if label.get("min") is None and label.get("max") is None else ""
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
        return Questions(
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
            table["privacy"] = {**privacy, "n_records": MOST_RECORDS}
        return Plan.from_dict(table)

    @cached_property
    def carrier(self) -> Plan:
        """A plan that says how the survey's sums are made: noise, unit, sites, timeouts. It is never trained by."""
        table = self.trial.to_dict()
        kept = {name: table[name] for name in ("version", "privacy", "label", "federation", "features")}
        return Plan.from_dict({**kept, "name": f"{self.trial.name} (survey)"}, is_stored=True)

    # What is done with it --------------------------------------------------------------------------------------------

    def program(self) -> SurveyProgram:
        """A fresh program; PrivacyError for an epsilon or delta out of range."""
        return survey(self.questions)

    def planned_releases(self) -> list[Event]:
        """What it releases, at its most expensive; raises as `program`."""
        return planned_survey(self.questions)

    @cached_property
    def epsilon(self) -> float:
        """What it costs by itself at the plan's delta, at its most expensive."""
        privacy = self.trial.privacy
        return float(account_of(privacy.accountant, self.planned_releases(), privacy.delta).epsilon)

    @property
    def n_exchanges(self) -> int:
        """Releases, at most."""
        return self.questions.n_exchanges

    @property
    def largest_length(self) -> int:
        """Entries of the longest release, at most."""
        of_columns = len(self.questions.surveyed) * (max(N_OCTAVES, N_ZOOM) + 1)
        return max(of_columns, 2**16 if self.label_asked == "texts" else 2**11)

    @property
    def n_released(self) -> int:
        """Entries of all releases, at most."""
        return self.n_exchanges * self.largest_length

    def filled(self, findings: Findings, ledger: Ledger) -> Plan:
        """The plan, with what was found in the gaps and the releases that it came from.

        Raises:
            DataError: code "data-one-class": fewer than two classes stand out of the noise.
            PlanError: what was found makes no plan.
        """
        table, ranges = _copy(self.table), dict(zip(self.columns, findings.ranges, strict=True))
        for item in table["features"]:
            found = ranges.get(item["name"])
            if found is not None:
                is_date = item["type"] == "date"
                item["min"], item["max"] = days_between(*found.bounds) if is_date else found.bounds
                item.setdefault("integer", found.is_whole)
        label, privacy = table["label"], self.trial.privacy
        if findings.label is not None:
            low, high = findings.label.bounds
            label.update({"max": max(high, 1.0)} if label["type"] == "count" else {"min": low, "max": high})
        elif self.label_asked:
            if len(findings.classes) < 2:
                raise DataError("data-one-class-private", n_classes=len(findings.classes))
            label["classes"] = [str(own) for own in findings.classes]
            label["type"] = "binary" if len(findings.classes) == 2 else "multiclass"
        table["privacy"]["n_records"] = findings.n_records
        table["prepared"] = prepared_tables(ledger, privacy.unit, privacy.rows_per_unit)
        return Plan.from_dict(table)

    def to_bytes(self) -> bytes:
        """Canonical JSON: equal open plans give equal bytes."""
        return canonical_json(self.table)


def parse_open_plan(toml_text: str) -> OpenPlan:
    """Read an open plan from the text of its TOML file; raises PlanError or PrivacyError."""
    try:
        table = parse_toml(toml_text)
    except ValueError as error:
        raise PlanError("plan-syntax", error=error) from None
    return OpenPlan(table)


def canonical_json(table: Mapping[str, Any]) -> bytes:
    """The one way to write plain values for hashing and sending."""
    return json.dumps(table, sort_keys=True, separators=(",", ":"), allow_nan=True).encode()


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
