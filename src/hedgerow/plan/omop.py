# SPDX-License-Identifier: Apache-2.0
"""What an OMOP database has of a person, declared: from whose tables rows come is part of what is agreed on.

Concepts, windows and units are public. Each site compiles the same definition to a query of its own database
(`hedgerow.data.omop`), in which a person's row follows from that person's records alone.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hedgerow.errors import PlanError
from hedgerow.plan.fields import allows, boolean, define_field, integer, list_of, number, one_of, read_section, refuse

DOMAINS = ("conditions", "drugs", "procedures", "measurements", "observations", "visits")
VALUES = ("count", "presence", "latest", "age", "sex", "concept")
PERSON = "person_id"
_CONCEPT = integer(0, 2**31 - 1)
_DAYS = integer(0, 36_500)
_FACTOR = number(1e-12, 1e12)
_FEATURES: dict[str, dict[str, Any]] = {
    "count": {"type": "numeric", "min": 0, "max": 100, "integer": True},
    "age": {"type": "numeric", "min": 0, "max": 110, "integer": True},
    "presence": {"type": "categorical", "categories": ["0", "1"]},
    "sex": {"type": "categorical", "categories": ["female", "male"]},
    "concept": {"type": "hashed", "buckets": 32},
}
"""Feature of a plan for each kind of column, if the definition gives no bounds."""


@allows({"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_]*$", "maxLength": 60})
def read_column_name(value: Any, path: str) -> str:
    """Check for a name that every database takes unchanged between quotation marks."""
    if not isinstance(value, str) or not re.fullmatch("[A-Za-z][A-Za-z0-9_]{0,59}", value):
        raise refuse(path, value, "a name of letters, digits and _, up to 60")
    return value


@allows({"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 2}})
def _read_units(value: Any, path: str) -> tuple[tuple[int, float], ...]:
    pairs = list_of(list_of(lambda item, _: item))(value, path)
    if not all(len(pair) == 2 for pair in pairs):
        raise refuse(path, value, "pairs of a unit's concept and a factor, such as [[8840, 1.0], [8753, 18.016]]")
    found = tuple((_CONCEPT(unit, path), _FACTOR(factor, path)) for unit, factor in pairs)
    if len(dict(found)) < len(found):
        raise refuse(path, value, "one factor for each unit")
    return found


def _define_section(kind: type) -> Any:
    """Make the check of a field that is a section of class `kind`."""

    @allows({"type": "object"})
    def check(value: Any, path: str) -> Any:
        return read_section(kind, value, path)

    return check


@dataclass(frozen=True, kw_only=True)
class Events:
    """Records of a domain with one of some concepts.

    Attributes:
        domain: which table they are in.
        concepts: their standard concepts; without any, all of the domain.
        descendants: whether what is below these in `concept_ancestor` counts as well.
    """

    domain: str = define_field(one_of(*DOMAINS))
    concepts: tuple[int, ...] = define_field(list_of(_CONCEPT), ())
    descendants: bool = define_field(boolean, False)


@dataclass(frozen=True, kw_only=True)
class OmopOutcome(Events):
    """Predicted event: whether, or when, the first such record comes after the index date.

    Attributes:
        domain: as in `Events`, or "death", which has no concepts.
        concepts, descendants: as in `Events`.
        days: until when it counts. A person who was not followed so long, and had none, is left out; of a time to an
            event, its last interval says until when.
    """

    domain: str = define_field(one_of(*DOMAINS, "death"))
    days: int | None = define_field(integer(1, 36_500), None)


@dataclass(frozen=True, kw_only=True)
class OmopColumn:
    """A column of the table.

    Attributes:
        name: the feature's.
        value: "count", "presence", "latest" value of a measurement (the largest of its day), "age" at the index date in
            years of the calendar, "sex" (female, male, else as the source wrote it), or "concept": which ones a person
            has, with a row for each, of which `privacy.max_rows_per_unit` are used. At most one column, for a survey.
        domain, concepts, descendants: as in `Events`; none for age and sex.
        days: how far back from the index date, which counts itself; without it, the definition's.
        units: of a latest value, concepts of units that it may be in, and by what each is multiplied. A value without a
            unit stays as it is, one of another unit counts as missing. Without a list, units are not looked at.
    """

    name: str = define_field(read_column_name)
    value: str = define_field(one_of(*VALUES))
    domain: str = define_field(one_of(*DOMAINS), "")
    concepts: tuple[int, ...] = define_field(list_of(_CONCEPT), ())
    descendants: bool = define_field(boolean, False)
    days: int | None = define_field(_DAYS, None)
    units: tuple[tuple[int, float], ...] = define_field(_read_units, ())


@dataclass(frozen=True, kw_only=True)
class Omop:
    """The section [omop] of a plan: one row for each person of a cohort.

    Attributes:
        cohort: the `cohort_definition_id` of a table `cohort`, which ATLAS or another tool has filled; a person's
            first entry is the index date.
        index: without a cohort: records of which a person's first is the index date.
        observed: days before the index date for which a person has to be under observation without a gap.
        days: how far back columns look that do not say otherwise.
        outcome: what is predicted.
        columns: one or more.
    """

    cohort: int | None = define_field(integer(0, 2**31 - 1), None)
    index: Events | None = dataclasses.field(default=None, metadata={"check": _define_section(Events)})
    observed: int = define_field(_DAYS, 0)
    days: int = define_field(_DAYS, 365)
    outcome: OmopOutcome = dataclasses.field(metadata={"check": _define_section(OmopOutcome)})
    columns: tuple[OmopColumn, ...] = dataclasses.field(metadata={"check": list_of(_define_section(OmopColumn))})


def read_omop(table: Any) -> Omop | None:
    """Read the definition in a section [omop]; None without one.

    Raises:
        PlanError: naming the field that is wrong.
    """
    if table is None:
        return None
    found = read_section(Omop, table, "omop")
    if (found.cohort is None) == (found.index is None):
        raise refuse("omop.cohort", found.cohort, "either omop.cohort or omop.index")
    if not found.columns:
        raise refuse("omop.columns", [], "at least one [[omop.columns]] table")
    for place, column in enumerate(found.columns):
        path = f"omop.columns[{place}]"
        if (column.value in ("age", "sex")) == bool(column.domain):
            raise refuse(f"{path}.domain", column.domain, 'a domain, but none with "age" and "sex"')
        if not column.domain and (column.concepts or column.days is not None):
            raise refuse(f"{path}.concepts", list(column.concepts), f'no concepts and no days with "{column.value}"')
        if column.value == "latest" and column.domain != "measurements":
            raise refuse(f"{path}.domain", column.domain, '"measurements" with "latest"')
        if column.units and column.value != "latest":
            raise refuse(f"{path}.units", list(column.units), 'none, but with "latest"')
    if sum(column.value == "concept" for column in found.columns) > 1:
        raise refuse("omop.columns", "several of concepts", 'at most one with "concept"')
    asked: dict[str, Events | OmopColumn | None] = {"omop.outcome": found.outcome, "omop.index": found.index}
    asked |= {f"omop.columns[{place}]": column for place, column in enumerate(found.columns)}
    for path, events in asked.items():
        # Refuse fields that the query would ignore: they would still be in the plan that everybody agrees on.
        if events and events.domain == "death" and events.concepts:
            raise refuse(f"{path}.concepts", list(events.concepts), 'none with "death"')
        if events and events.descendants and not events.concepts:
            raise refuse(f"{path}.descendants", True, "concepts, or false")
    return found


def write_omop(value: Any) -> Any:
    """Turn a section, or a value in one, into plain values for `read_omop`."""
    if isinstance(value, tuple):
        return [write_omop(item) for item in value]
    if not dataclasses.is_dataclass(value):
        return value
    found = {field.name: (getattr(value, field.name), field.default) for field in dataclasses.fields(value)}
    return {name: write_omop(own) for name, (own, default) in found.items() if own is not None and own != default}


def check_omop(omop: Omop, features: tuple[str, ...], label: Any, unit: str) -> None:
    """Check that a definition gives the columns of its plan, and one row for each unit.

    Raises:
        PlanError: naming the field to change.
    """
    if unit != PERSON:
        raise refuse("privacy.unit", unit, f'"{PERSON}" with [omop]')
    columns = {column.name for column in omop.columns}
    for place, name in enumerate(features):
        if name not in columns:
            raise refuse(f"features[{place}].name", name, "a column of [omop]")
    # The label's columns are names in the query as well; the features are checked as columns of the definition.
    for path, name in zip(("label.name", "label.event"), label.columns, strict=False):
        read_column_name(name, path)
    every = [name.lower() for name in (*(column.name for column in omop.columns), *label.columns, PERSON)]
    if len(set(every)) < len(every):
        twice = sorted({name for name in every if every.count(name) > 1})
        raise refuse("omop.columns", twice, "names that differ, by more than capitals, also from label and person")
    is_time = label.type == "survival"
    if not is_time and (label.type != "binary" or label.classes != ("0", "1")):
        raise refuse("label.type", label.type, '"survival", or "binary" of the classes "0" and "1", with [omop]')
    if is_time == (omop.outcome.days is not None):
        raise refuse("omop.outcome.days", omop.outcome.days, "none for a time to an event, else a number of days")


def fill_plan(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Build a plan's table from a definition: columns as features, the person as the unit, and the label.

    Args:
        definition: a plan's table, maybe without a label; columns may have min and max. One with features stays so.
    """
    table = {"version": 1, "name": "omop", **definition}
    omop = table.get("omop")
    if not isinstance(omop, Mapping) or not isinstance(omop.get("columns"), list):
        also = " It says what rows are made of."
        raise PlanError("plan-missing-field", path="plan", name="omop", value="", also=also)
    if "features" in definition:
        return dict(definition)
    features, columns = [], []
    for column in omop["columns"]:
        if not isinstance(column, Mapping):
            raise refuse("omop.columns", column, "tables")
        columns.append({name: value for name, value in column.items() if name not in ("min", "max")})
        given = {name: column[name] for name in ("min", "max") if name in column}
        usual = _FEATURES.get(str(column.get("value")), {"type": "numeric"})
        listed = column.get("concepts")
        if usual["type"] == "hashed" and isinstance(listed, list) and listed and not column.get("descendants"):
            usual = {"type": "categorical", "categories": list(map(str, listed))}
        features.append({"name": column.get("name"), **usual, **given})
    privacy = {"epsilon": 1.0, "unit": PERSON, "max_rows_per_unit": 1, **table.get("privacy", {})}
    label = {"name": "outcome", "type": "binary", "classes": ["0", "1"]}
    return {"label": label, **table, "privacy": privacy, "omop": {**omop, "columns": columns}, "features": features}


def take_concepts(table: Mapping[str, Any], survey: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the column of concepts by the presence of each concept that its survey found.

    The new plan has one row for a person. Call `charge_survey` first: it needs the rows that the survey was asked for.

    Args:
        table: of the plan (`Plan.to_dict`).
        survey: of `survey.json`.

    Raises:
        PlanError: no column asks for concepts.
    """
    columns = table["omop"]["columns"]
    own = next((column for column in columns if column["value"] == "concept"), None)
    if own is None:
        raise refuse("omop.columns", [column["name"] for column in columns], 'one with value = "concept"')
    groups = [group for column in survey["columns"] if column["name"] == own["name"] for group in column["groups"]]
    codes = [group["name"] for group in groups if group["count"] and group["name"].isdecimal()]
    found = {f"{own['name']}_{code}": {"concepts": [int(code)], "value": "presence"} for code in codes}
    shared = {name: value for name, value in own.items() if name != "descendants"}
    features = [{"name": name, **_FEATURES["presence"], "origin": "found"} for name in found]
    omop = [column for column in columns if column is not own]
    omop += [{**shared, **asked, "name": name} for name, asked in found.items()]
    return {
        **table,
        "privacy": {**table["privacy"], "max_rows_per_unit": 1},
        "features": [feature for feature in table["features"] if feature["name"] != own["name"]] + features,
        "omop": {**table["omop"], "columns": omop},
    }


def charge_survey(table: Mapping[str, Any], survey: Mapping[str, Any]) -> dict[str, Any]:
    """Add a survey's releases to the plan's account, beside those of earlier surveys.

    Arguments as for `take_concepts`. `Plan.from_dict` refuses a plan whose persons may have more rows than the releases
    protect, so read this table with it before anything lowers these rows.
    """
    return {**table, "prepared": [*table.get("prepared", ()), *survey["prepared"]]}
