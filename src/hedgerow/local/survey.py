# SPDX-License-Identifier: Apache-2.0
"""Survey sites that are objects in this process: sums over all of them, noise, a ledger; what estimators call.

Statistics over tables of this machine are found likewise, and make a plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hedgerow.data.raw_cells import RawTable, bound_tables, read_types
from hedgerow.data.sources import Location, open_table
from hedgerow.data.tables import require_columns
from hedgerow.errors import UsageError
from hedgerow.local.accounts import Account, RunAccount, RunFacts, current_account, is_seeded
from hedgerow.local.training import build_aggregation
from hedgerow.plan.draft import Entry
from hedgerow.plan.fields import days_between, read_section, refuse
from hedgerow.plan.plan import DECLARED, FOUND, PLAN_VERSION, Feature, Label, Plan, read_feature, read_table
from hedgerow.plan.registry import label_kinds
from hedgerow.plan.toml import plan_toml, schema_line, toml_value, toml_without_label
from hedgerow.privacy.ledger import Ledger, write_prepared_tables
from hedgerow.privacy.noise import NoiseSource
from hedgerow.privacy.outlook import with_buckets
from hedgerow.privacy.public import PublicColumn, PublicInputs, list_units
from hedgerow.privacy.report import PrivacyContext, PrivacyReport, build_report
from hedgerow.server.release import Answering, PlainAggregation, Releaser, check_cost
from hedgerow.survey.bounds import is_away_from_zero
from hedgerow.survey.curves import SurvivalCurves
from hedgerow.survey.kinds import MAX_FOUND_CLASSES
from hedgerow.survey.program import survey
from hedgerow.survey.queries import RawSite, SurveyNode
from hedgerow.survey.questions import Questions
from hedgerow.survey.requests import HASH_BUCKETS, OpenTable
from hedgerow.survey.statistics import MIN_LISTED, ColumnStatistics, TableStatistics
from hedgerow.training.steps import play

MAX_SURVEYED_ROWS = 2**33
"""Largest number of rows of all sites together, by which the words of masked sums are chosen."""


@dataclass(frozen=True, eq=False)
class SurveyResult:
    """Findings of a survey, and its releases, which belong in a plan made from the findings (`Plan.prepared`).

    Attributes:
        findings: what they are, `Questions.about` says: see `hedgerow.survey.program.Found`.
        ledger: the releases.
        is_clear: whether sums of several sites were added up without masks.
    """

    findings: Any
    ledger: Ledger
    is_clear: bool = False


def survey_sites(
    questions: Questions,
    sites: Mapping[str, RawSite],
    noise: NoiseSource,
    account: Account | RunAccount | None = None,
    unit: str = "record",
) -> SurveyResult:
    """Carry out a survey over all sites, under masks as a training would be; deterministic except `noise`.

    Args:
        sites: each site's rows, by its name.
        account: where it is charged; None for that of this process (`current_account`).
        unit: of privacy.

    Raises:
        PrivacyError: for an epsilon or delta out of range.
    """
    nodes: list[Answering] = [SurveyNode(name, sites[name], questions.rows_per_unit) for name in sorted(sites)]
    aggregation = build_aggregation(_plan_of_sums(questions, len(nodes)), nodes, questions.schedule.n_rounds, noise)
    facts = RunFacts("survey", unit=unit, is_void=is_seeded(noise))
    with (account or current_account()).open_run(facts, questions.schedule.events) as run:
        releaser = Releaser(noise, run)
        findings = play(survey(questions), lambda query: releaser.release(query, aggregation.sum_answers(query)))
    is_clear = len(nodes) > 1 and isinstance(aggregation, PlainAggregation)
    return SurveyResult(findings, releaser.ledger, is_clear)


def _plan_of_sums(questions: Questions, n_sites: int) -> Plan:
    """Build a plan for the masked sums alone: how many sites there are, and how large a sum may be."""
    return Plan.from_dict(
        {
            "version": PLAN_VERSION,
            "name": "survey",
            "privacy": {"epsilon": questions.epsilon, "delta": questions.delta, "n_records": MAX_SURVEYED_ROWS},
            "federation": {"min_sites": n_sites},
            "label": {"name": "label", "type": "binary", "classes": ["0", "1"]},
            "features": [{"name": "feature", "type": "numeric", "min": 0, "max": 1}],
        }
    )


# Statistics of tables -------------------------------------------------------------------------------------------------

USUAL_EPSILON = 1.0
_TYPES = {"number": "numeric", "text": "hashed", "date": "date"}
"""A plan's type of a column whose cells are all of one kind."""
_KINDS = {"numeric": "number", "date": "number", "hashed": "text", "categorical": "text"}


@dataclass(frozen=True, eq=False)
class TableSurvey:
    """Statistics of a table, and their cost.

    Attributes:
        statistics: of the table, or its curves.
        ledger: the releases; they go into a plan that is made of them (`Plan.prepared`).
        report: what was promised, and spent.
        run: that made them, over nodes.
    """

    statistics: TableStatistics | SurvivalCurves
    ledger: Ledger
    report: PrivacyReport
    run: bytes = b""


def list_asked_columns(
    tables: Mapping[str, Location], schema: Mapping[str, Feature], without: Sequence[str]
) -> tuple[tuple[Feature, ...], tuple[str, ...]]:
    """Describe each column of the first table from the headers alone, and list the columns that cannot be read.

    Unreadable are columns of types unknown to Hedgerow, and columns that share a name.

    Args:
        tables: of all sites, by name.
        schema: declared columns by name (`read_schema`).
        without: columns that are not read, such as that of the unit.

    Raises:
        DataError: a table cannot be opened, or lacks a column.
        UsageError: code "survey-no-columns"; code "survey-column" for a name in `schema` or `without` that no column
            is called.
    """
    types = {site: read_types(place) for site, place in tables.items()}
    names = [name for name in open_table(next(iter(tables.values()))).names() if name.strip() and "\n" not in name]
    for name in (*schema, *without):
        if name not in names:
            raise UsageError(
                "unknown-name", code="survey-column", kind="column", name=name, known=", ".join(names[:12])
            )
    wanted = [name for name in dict.fromkeys(names) if name not in without]
    for place in tables.values():
        table = open_table(place)
        present = table.names()
        require_columns(table.source, [name for name in wanted if name in schema or present.count(name) < 2], present)
    read = [name for name in wanted if all(name in known for known in types.values())]
    if not read:
        raise UsageError("survey-no-columns")
    found = tuple(_ask_column(name, [known[name] for known in types.values()], schema) for name in read)
    return found, tuple(name for name in wanted if name not in read)


def _ask_column(name: str, types: Sequence[str], schema: Mapping[str, Feature]) -> Feature:
    if name in schema:
        return schema[name]
    kinds = set(types)
    return Feature(name=name, type=_TYPES.get(kinds.pop(), "") if len(kinds) == 1 else "")


def read_schema(toml_text: str) -> dict[str, Feature]:
    """Read the columns declared by a plan, a draft or a part: [[features]], and [label] if it has a type.

    Raises:
        PlanError: it is no TOML, or a field is wrong.
    """
    table = read_table(toml_text)
    features = table.get("features", [])
    if not isinstance(features, list):
        raise refuse("features", features, "[[features]] tables")
    found = {}
    for index, item in enumerate(features):
        if isinstance(item, Mapping) and "type" in item:
            feature = read_feature(item, f"features[{index}]")
            found[feature.name] = feature
    label = table.get("label")
    if isinstance(label, Mapping) and isinstance(label.get("name"), str) and label.get("classes"):
        kind = {"name": label["name"], "type": "categorical", "categories": label["classes"]}
        found[label["name"]] = read_section(Feature, kind, "label")
    return found


def read_numeric_label(toml_text: str, name: str) -> dict[str, Any] | None:
    """Return a plan's [label] if it declares the column `name` as a count or a bounded number; else None.

    Raises:
        PlanError: it is no TOML, a field is wrong, or its bounds are missing.
    """
    table = read_table(toml_text).get("label")
    if not isinstance(table, Mapping) or table.get("name") != name or "type" not in table:
        return None
    label = read_section(Label, table, "label")
    if not label.kind.is_number:
        return None
    label_kinds()[label.type].check(label)
    return dict(table)


def ask_curves(toml_text: str, by: str | None, privacy: Mapping[str, Any]) -> OpenTable:
    """Request the Kaplan-Meier curves declared by a plan, or a part of one, by groups of a feature.

    Args:
        by: the feature; None for all records together.
        privacy: of the curves, as in `OpenTable.of`.

    Raises:
        PlanError: it is no TOML, a field is wrong, or its label is no time to an event.
        UsageError: code "survey-by", where no feature with categories is called so.
    """
    columns = read_schema(toml_text)
    label = read_section(Label, read_table(toml_text).get("label"), "label")
    if not label.intervals:
        raise refuse("label.type", label.type, '"survival" with event and intervals')
    label_kinds()[label.type].check(label)
    if by is not None and (by not in columns or not columns[by].listed):
        known = ", ".join(name for name, column in columns.items() if column.listed)
        kind = "declared feature with categories"
        raise UsageError("unknown-name", code="survey-by", kind=kind, name=by, known=known or "none")
    asked = [Feature(name=name, type="") for name in label.columns] + ([] if by is None else [columns[by]])
    intervals, codes = list(label.intervals), list(label.event_codes)
    curves = {"event": label.event, "intervals": intervals, "event_codes": codes, "by": by}
    return OpenTable.of(asked, label.name, privacy, **{name: each for name, each in curves.items() if each})


def schema_from_book(book: Mapping[str, Entry]) -> dict[str, Feature]:
    """Read a code book's declarations of columns, by name; identifiers and free text are left out."""
    return {
        name: Feature(
            name=name, type=entry.kind, min=entry.low, max=entry.high, integer=entry.is_integer,
            categories=entry.categories,
        )
        for name, entry in book.items() if entry.kind in ("numeric", "date", "categorical")
    }  # fmt: skip


def survey_tables(
    asked: OpenTable, tables: Mapping[str, RawTable], noise: NoiseSource, account: Account | RunAccount | None = None
) -> TableSurvey:
    """Make statistics over all sites, with masked sums where masks hide anything.

    They are deterministic except `noise`.

    Args:
        account: as for `survey_sites`.

    Raises:
        PrivacyError: epsilon or delta out of range.
        PolicyRefusal, EnvironmentFault: as `hedgerow.local.training.train`.
    """
    unit = asked.schema_plan.privacy.unit
    made = survey_sites(asked.questions, bound_tables(tables, asked), noise, account, unit)
    found = table_survey(asked, made.findings, made.ledger, noise, is_clear=made.is_clear)
    check_cost(made.ledger, found.report)
    return found


def table_survey(
    asked: OpenTable,
    found: TableStatistics | SurvivalCurves,
    ledger: Ledger,
    noise: NoiseSource,
    *,
    is_clear: bool = False,
) -> TableSurvey:
    """Statistics with the report on them, and on whatever else is in their ledger.

    Args:
        is_clear: whether sums of several sites were added up without masks.
    """
    public = []
    for column in asked.columns:
        # A column's name and declarations are public; the statistics find the rest.
        bounds = {} if column.bounds is None else dict(zip(("min", "max"), column.bounds, strict=True))
        declared = bounds | ({"categories": list(column.listed)} if column.listed else {})
        kind = "categorical" if column.listed else _KINDS.get(column.type, "")
        role, origin = "label" if column.name == asked.label else "feature", DECLARED if kind else FOUND
        public.append(PublicColumn(column.name, role, kind, origin, tuple(declared.items())))
    context = replace(
        PrivacyContext.from_plan(asked.schema_plan, seeded=noise.seeded, approximate=noise.approximate),
        n_records=max(1, round(found.n_records.value)),
        sums_in_clear=is_clear,
        outlook=(),
        public=PublicInputs(
            (*public, *list_units(asked.schema_plan)), line_breaks=asked.schema_plan.privacy.line_breaks
        ),
    )
    return TableSurvey(found, ledger, build_report(ledger, context))


# The plan that follows -----------------------------------------------------------------------------------------------


def draft_plan(
    survey: TableSurvey, n_sites: int, epsilon: float | None = None, label: Mapping[str, Any] | None = None
) -> Plan | None:
    """Build a plan for the statistics' label with all findings and their cost; None without a label.

    Args:
        n_sites: sites that take part at least.
        epsilon: the promise of the training, with these statistics on its account; None for `usual_epsilon`.
        label: the plan's [label] as it is declared; None for what was found.

    Raises:
        PlanError: what was found makes no plan.
    """
    statistics, report = survey.statistics, survey.report
    if isinstance(statistics, SurvivalCurves):
        return None
    label = _draft_label(statistics) if label is None else label
    features = [
        drafted if column.is_declared else drafted | {"origin": FOUND}
        for column in statistics.columns
        if column.name != statistics.label
        for drafted in _feature(column)
    ]
    if label is None or not features:
        return None
    plan = Plan.from_dict(
        {
            "version": PLAN_VERSION,
            "name": statistics.label,
            "privacy": {
                "epsilon": usual_epsilon(report) if epsilon is None else epsilon,
                "delta": report.delta,
                "n_records": max(1, round(statistics.n_records.value)),
                "noise": report.noise_mode,
                "unit": report.unit,
                "max_rows_per_unit": report.max_rows_per_unit,
                "sites_per_unit": report.sites_per_unit,
            },
            "model": {"structure_seed": "joint"},
            "federation": {"min_sites": n_sites},
            "label": label,
            "features": features,
            "prepared": write_prepared(survey),
        }
    )
    return with_buckets(plan)


def write_prepared(survey: TableSurvey) -> list[dict[str, Any]]:
    """Return a survey's releases as [[prepared]] tables for the plan made of it."""
    report = survey.report
    rows_per_unit = report.max_rows_per_unit * report.sites_per_unit
    return write_prepared_tables(survey.ledger, report.unit, rows_per_unit, survey.run)


def usual_epsilon(report: PrivacyReport) -> float:
    """Return 1, or twice the statistics' epsilon, requested or spent, if that is more."""
    return max(USUAL_EPSILON, 2 * max(report.epsilon_requested or 0.0, report.epsilon))


_PREAMBLE = (
    f"{schema_line('plan')}\n"
    "# A plan of Hedgerow: the one public file that all parties agree on.\n"
    "# Its bounds, categories, classes and number of records were found by noisy sums, which [[prepared]] names\n"
    "# below: privacy.epsilon is for them and the training together, and must stay above what they have cost.\n"
    "# They protect this plan's unit, by its kind of noise: a plan with another unit or noise is refused.\n"
    "# Correct by hand what you know better from a code book.\n"
)


def plan_text(plan: Plan) -> str:
    """Return the plan's TOML, with comments on its origin and on columns that may name persons."""
    return _PREAMBLE + _ask_about_persons(plan) + plan_toml(plan)


def _ask_about_persons(plan: Plan) -> str:
    """Ask, by the released counts alone, about columns of which most texts are rare, and about dates."""
    rare = [feature.name for feature in plan.features if feature.is_hashed and feature.origin == FOUND]
    dates = [feature.name for feature in plan.features if feature.type == "date" and feature.origin == FOUND]
    said = ""
    if rare:
        said += (
            f"# Most texts of these columns are rare, or long: {toml_value(rare)}.\n"
            "# If they name persons or where they live, or are free text, remove their [[features]] tables: a model\n"
            "# learns nothing general from them, and much about single people.\n"
        )
    if dates:
        said += f"# Is one of these a day of birth? Then an age tells less of a person: {toml_value(dates)}.\n"
    return said


def open_plan_text(survey: TableSurvey, n_sites: int, epsilon: float | None = None) -> str:
    """Return `plan_text` with gaps for the label's missing classes; "" without any feature.

    A person fills in the gaps.

    Arguments and errors as of `draft_plan`.
    """
    statistics = survey.statistics
    if isinstance(statistics, SurvivalCurves) or not statistics.label:
        return ""
    trial = {"name": statistics.label, "type": "binary", "classes": ["0", "1"]}
    plan = draft_plan(survey, n_sites, epsilon, trial)
    if plan is None:
        return ""
    return _PREAMBLE + _ask_about_persons(plan) + toml_without_label(plan)


def _draft_label(statistics: TableStatistics) -> dict[str, Any] | None:
    """Build the plan's [label] from findings; None if its classes, or its bounds, were not found."""
    own = next((column for column in statistics.columns if column.name == statistics.label), None)
    if own is None:
        return None
    if statistics.classes:
        kind = "binary" if len(statistics.classes) == 2 else "multiclass"
        # Declared bounds of whole numbers do not list the classes, so these count as found.
        origin = {} if own.is_declared and own.kind == "text" else {"origin": FOUND}
        return {"name": own.name, "type": kind, "classes": list(statistics.classes), **origin}
    if own.kind != "number" or own.range is None or own.is_date:
        return None
    low, high = own.range.bounds
    if own.range.is_whole and high - low < MAX_FOUND_CLASSES and not own.is_declared:
        # Few whole numbers are probably classes with too few records to be found, rather than a quantity.
        return None
    if own.is_declared:
        return {"name": own.name, "type": "regression", "min": low, "max": high}
    found = statistics.label_range
    if found is None or not found.is_seen:
        return None
    if not is_away_from_zero(found):
        low, high = found.bounds
    else:
        # Widen the range found for the column by its width on either side.
        low, high = low - (high - low), high + (high - low)
    return {"name": own.name, "type": "regression", "min": low, "max": high, "origin": FOUND}


def _feature(column: ColumnStatistics) -> list[dict[str, Any]]:
    """Build the [[features]] table of a column; none if too little of the column was found."""
    if column.kind == "number" and column.range is not None:
        low, high = column.range.bounds
        integer = column.range.is_whole
        if column.is_date:
            first, last = days_between(low, high)
            own = {"name": column.name, "type": "date", "min": first, "max": last, "integer": integer}
            return [own | ({} if column.layout is None else {"format": column.layout})]
        return [{"name": column.name, "type": "numeric", "min": low, "max": high, "integer": integer}]
    if column.categories and column.listed_share >= MIN_LISTED:
        return [{"name": column.name, "type": "categorical", "categories": list(column.categories)}]
    if column.kind == "text":
        return [{"name": column.name, "type": "hashed", "buckets": HASH_BUCKETS}]
    return []
