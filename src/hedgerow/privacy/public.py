# SPDX-License-Identifier: Apache-2.0
"""What a run takes as public: what its promise does not cover, because it is as public as the plan.

Every line of it is computed from a plan or from what a survey was asked, so a report cannot leave out what its run
rested on. It says of each part where it is from: declared by the plan's author; found by noisy sums of the ledger; from
the type that a library gives a column, because the caller said so; read off the private rows, which voids the promise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from hedgerow.plan.fields import format_day
from hedgerow.plan.plan import DECLARED, FOUND, READ_OFF, TYPED, Feature, Label, Plan, name_first
from hedgerow.plan.registry import section_name
from hedgerow.plan.toml import toml_value

_COUNTS_RECORDS = "RecordCount"
"""The kind of the release that finds the number of records."""
_DRAWN = "model.structure_seed"
"""A setting that is a random number, and nothing to read."""
_MAX_LINE = 80
"""Largest length of a setting's line; of a longer one only the name is shown."""
_ORIGINS = {DECLARED: "declared", FOUND: "found", TYPED: "from the table's types", READ_OFF: "READ OFF THE ROWS"}


@dataclass(frozen=True)
class PublicColumn:
    """A public column of a plan or a survey.

    Attributes:
        name: of the column.
        role: "feature", "label" or "unit".
        kind: a plan's type; "" for what statistics found.
        origin: of its type, and of its bounds, categories, classes or intervals.
        about: these, as JSON values.
    """

    name: str
    role: str
    kind: str
    origin: str
    about: tuple[tuple[str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the column as plain values for JSON."""
        return {"name": self.name, "role": self.role, "type": self.kind, "origin": self.origin, **dict(self.about)}


@dataclass(frozen=True)
class PublicInputs:
    """Everything that a run takes as public.

    Made by `from_plan`, or by the maker of a report without a plan.

    Attributes:
        columns: features, label, and the column of the unit.
        n_records: None where it is a release's own result.
        n_records_origin: as a column's.
        name, digest: of the plan; "" without one.
        line_breaks: that a cell of a CSV may hold, see `Privacy`.
        settings: what the plan's author has chosen besides, by the plan's names, as JSON values.
    """

    columns: tuple[PublicColumn, ...]
    n_records: int | None = None
    n_records_origin: str = DECLARED
    name: str = ""
    digest: str = ""
    line_breaks: int = 0
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def records_of_a_line(self) -> int:
        """Largest number of records that one line of a CSV may add and remove: see `hedgerow.data.lines`."""
        return 2 * self.line_breaks + 2 if self.line_breaks else 1

    @classmethod
    def from_plan(cls, plan: Plan) -> PublicInputs:
        """List what runs of a plan take as public."""
        # Plans of older versions, or written by hand, may set this flag for all their columns.
        voided = READ_OFF if plan.privacy.bounds_from_data else ""
        own: list[Feature | Label] = [*plan.features, plan.label]
        columns = [
            PublicColumn(each.name, role, each.type, _choose_worse(each.origin, voided), tuple(_about(each).items()))
            for each, role in zip(own, ["feature"] * len(plan.features) + ["label"], strict=True)
        ]
        # With [omop] the declared number of persons stays, although a survey of concepts also releases a count.
        is_counted = plan.omop is None and any(release.kind == _COUNTS_RECORDS for release in plan.prepared)
        counted = FOUND if is_counted else _choose_worse(DECLARED, voided)
        columns += list_units(plan)
        breaks = plan.privacy.line_breaks
        settings = tuple(_list_settings(plan))
        return cls(tuple(columns), plan.privacy.n_records, counted, plan.name, plan.digest, breaks, settings)

    def to_dict(self) -> dict[str, Any]:
        """Return all facts as plain values for JSON."""
        plan = {"plan": {"name": self.name, "digest": self.digest}} if self.digest else {}
        counted = {"n_records": {"value": self.n_records, "origin": self.n_records_origin}}
        columns = {"columns": [column.to_dict() for column in self.columns]}
        return {**plan, **columns, **(counted if self.n_records else {}), "settings": dict(self.settings)}

    def facts(self, n_prepared: int) -> list[tuple[str, str]]:
        """Return lines for a person: counts, and the first names if there are many columns.

        Args:
            n_prepared: releases before the run, which found what was found.
        """
        features = [column for column in self.columns if column.role == "feature"]
        facts = [("columns", f"the names of {_count_features(features)}, and their types: {_by_origin(features)}")]
        lists = [column for column in features if column.kind == "categorical"]
        if lists:
            values = sum(len(dict(column.about)["categories"]) for column in lists)
            facts.append(("categories", f"{values:,} of {_count_features(lists)}: {_by_origin(lists, names=False)}"))
        bounded = [column for column in features if "min" in dict(column.about)]
        if bounded:
            facts.append(("bounds", f"of {_count_features(bounded)}: {_by_origin(bounded, names=False)}"))
        facts += [(column.role, _describe_column(column)) for column in self.columns if column.role != "feature"]
        if self.n_records:
            facts.append(("records", f"about {self.n_records:,}, {_ORIGINS[self.n_records_origin]}"))
        if directed := [column for column in features if "monotone" in dict(column.about)]:
            facts.append(("directions", f"of {_count_features(directed)}: {_by_origin(directed, names=False)}"))
        lines = [f"{name} {toml_value(value)}" for name, value in self.settings if name != _DRAWN]
        if said := [line if len(line) <= _MAX_LINE else line.partition(" ")[0] for line in lines]:
            facts.append(("settings", f"{name_first(said)}, declared"))
        if n_prepared and any(column.origin == FOUND for column in self.columns):
            facts.append(("found", f"by the {n_prepared} noisy sums before the run, which epsilon counts"))
        return facts


def list_units(plan: Plan) -> tuple[PublicColumn, ...]:
    """Return the column that identifies the person or thing of a row, if the plan has one."""
    privacy = plan.privacy
    rows = {"max_rows_per_unit": privacy.max_rows_per_unit, "sites_per_unit": privacy.sites_per_unit}
    unit = PublicColumn(privacy.unit, "unit", "identifier", DECLARED, tuple(rows.items()))
    return () if privacy.unit == "record" else (unit,)


def _choose_worse(origin: str, voided: str) -> str:
    """Return `voided` in place of "declared" for a plan that says its declarations were read off rows."""
    return voided if voided and origin == DECLARED else origin


def _about(column: Feature | Label) -> dict[str, Any]:
    """Return a plan's statements about a column's values."""
    found: dict[str, Any] = {}
    is_date = isinstance(column, Feature) and column.is_date
    for name, bound in (("min", column.min), ("max", column.max)):
        if bound is not None:
            found[name] = format_day(bound) if is_date else bound
    if isinstance(column, Label):
        lists = {"classes": column.classes, "event_codes": column.event_codes, "intervals": column.intervals}
        event = {} if column.event is None else {"event": column.event}
        return found | {name: list(values) for name, values in lists.items() if values} | event
    found |= {} if column.monotone is None else {"monotone": column.monotone}
    if column.is_hashed:
        return found | {"buckets": column.buckets}
    return found | ({"categories": list(column.categories)} if column.categories else {})


def _list_settings(plan: Plan) -> Iterator[tuple[str, Any]]:
    """Yield the plan's settings of method, trees and loss that are not defaults.

    They belong into the list because weights of classes, for example, could be read off the rows.
    """
    table, own = plan.to_dict(), section_name(plan.model.algorithm)
    parts: tuple[tuple[str, Any], ...] = ("model", plan.model), (own, plan.own), ("loss", plan.loss)
    for section, part in parts:
        usual = {} if part is None else {each.name: each.default for each in fields(part)}
        for name, value in table.get(section, {}).items():
            if usual.get(name) != value:
                yield f"{section}.{name}", value


def _count_features(columns: Sequence[PublicColumn]) -> str:
    return f"{len(columns):,} feature{'' if len(columns) == 1 else 's'}"


def _by_origin(columns: Iterable[PublicColumn], *, names: bool = True) -> str:
    """Count columns by origin; with `names`, add the first names of columns that nobody declared."""
    said = []
    for origin, words in _ORIGINS.items():
        own = [column.name for column in columns if column.origin == origin]
        if own:
            said.append(f"{len(own):,} {words}" + (f" ({name_first(own)})" if names and origin != DECLARED else ""))
    return ", ".join(said)


def _describe_column(column: PublicColumn) -> str:
    """Describe the label or the unit in one line."""
    about = dict(column.about)
    if column.role == "unit":
        return f"{column.name}: that it tells whom a row is about, {_ORIGINS[column.origin]}"
    if "classes" in about:
        values = f"its classes {name_first(about['classes'])}"
    elif "intervals" in about:
        values = f"its {len(about['intervals'])} intervals to {about['intervals'][-1]:g}, event {about['event']}"
    elif "max" in about:
        values = f"its bounds {about.get('min', 0.0):g} to {about['max']:g}"
    else:
        return f"{column.name}; its type and values, {_ORIGINS[column.origin]}"
    return f"{column.name} ({column.kind}) and {values}, {_ORIGINS[column.origin]}"
