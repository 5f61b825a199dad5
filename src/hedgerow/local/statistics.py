"""Statistics over tables of this machine, by the sums that a network would carry, and the plan that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hedgerow.data.drafts import plan_toml
from hedgerow.data.raw_tables import RawTable, read_raw, types_of
from hedgerow.data.sources import opened
from hedgerow.data.tables import require_columns
from hedgerow.data.units import RowsLeftOut
from hedgerow.errors import UsageError
from hedgerow.local.survey import carried_out
from hedgerow.plan.fields import days_between, parse_toml, read_section, refuse
from hedgerow.plan.plan import PLAN_VERSION, Feature, Plan, read_feature
from hedgerow.privacy.ledger import Ledger
from hedgerow.privacy.noise import NoiseSource
from hedgerow.privacy.prepared import prepared_tables
from hedgerow.privacy.report import PrivacyContext, PrivacyReport, report_of
from hedgerow.server.release import checked_cost
from hedgerow.survey.cells import TableSite
from hedgerow.survey.statistics import AskedColumn, TableQuestions, survey_table
from hedgerow.survey.summaries import Column, TableStatistics

HASH_BUCKETS = 32
"""Of a column of text without common values, in a drafted plan."""
USUAL_EPSILON = 1.0


@dataclass(frozen=True, eq=False)
class SiteTables:
    """Tables of sites, ready to be asked.

    Attributes:
        columns: what is known of each column without looking at a row.
        sites: by name.
        unread: columns of types that Hedgerow does not read.
        left_out: by site, rows with another number of fields; for its operator.
    """

    columns: tuple[AskedColumn, ...]
    sites: Mapping[str, TableSite]
    unread: tuple[str, ...] = ()
    left_out: Mapping[str, RowsLeftOut] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class TableSurvey:
    """What statistics were found, and what they cost.

    Attributes:
        statistics: of the table.
        ledger: the releases; they go into a plan that is made of them (`Plan.prepared`).
        report: what was promised, and spent.
    """

    statistics: TableStatistics
    ledger: Ledger
    report: PrivacyReport


def read_site_tables(
    tables: Mapping[str, str], schema: Mapping[str, AskedColumn], without: Sequence[str] = ()
) -> SiteTables:
    """Read the tables of all sites, by name; the columns are those of the first one, but for those to be left out.

    Args:
        schema: declared columns by name (`schema_of`).
        without: columns that are not read.

    Raises:
        DataError: a table cannot be read, or lacks a column; never because of a cell.
        UsageError: code "survey-no-columns"; code "survey-column" for a name in `schema` or `without` that no column
            has.
    """
    types = {site: types_of(place) for site, place in tables.items()}
    names = list(_names(tables))
    for name in (*schema, *without):
        if name not in names:
            raise UsageError("survey-column", column=name, columns=", ".join(names[:12]))
    wanted = [name for name in names if name not in without]
    for place in tables.values():
        table = opened(place)
        require_columns(table.source, wanted, table.names())
    read = [name for name in wanted if all(name in own for own in types.values())]
    if not read:
        raise UsageError("survey-no-columns")
    dates = {name: schema[name].layout for name in read if name in schema and schema[name].is_date}
    raw = {site: read_raw(place, read, dates) for site, place in tables.items()}
    return SiteTables(
        columns=tuple(_asked(name, [own[name] for own in types.values()], schema) for name in read),
        sites={site: _site_of(own) for site, own in raw.items()},
        unread=tuple(name for name in wanted if name not in read),
        left_out={site: own.left_out for site, own in raw.items() if own.left_out},
    )


def _names(tables: Mapping[str, str]) -> list[str]:
    """The columns of the first table; those without a name are none."""
    return [name for name in opened(next(iter(tables.values()))).names() if name]


def _site_of(table: RawTable) -> TableSite:
    return TableSite((), n_all=table.n_rows, cells=table.columns)


def _asked(name: str, types: Sequence[str], schema: Mapping[str, AskedColumn]) -> AskedColumn:
    if name in schema:
        return schema[name]
    kinds = {"text" if kind == "moment" else kind for kind in types}
    if kinds == {"date"}:
        return AskedColumn(name, "number", is_date=True)
    return AskedColumn(name, kinds.pop() if len(kinds) == 1 and "date" not in kinds else "")


def schema_of(toml_text: str) -> dict[str, AskedColumn]:
    """What a plan, or a draft or part of one, declares of its columns: [[features]], and [label] if it has a type.

    Raises:
        PlanError: it is no TOML, or a field is wrong.
    """
    try:
        table = parse_toml(toml_text)
    except ValueError as error:
        raise refuse("schema", str(error), "TOML with [[features]] tables") from None
    features = table.get("features", [])
    if not isinstance(features, list):
        raise refuse("features", features, "[[features]] tables")
    found = {}
    for index, item in enumerate(features):
        if isinstance(item, Mapping) and "type" in item:
            feature = read_feature(item, f"features[{index}]")
            found[feature.name] = _declared(feature)
    label = table.get("label")
    if isinstance(label, Mapping) and isinstance(label.get("name"), str) and label.get("classes"):
        kind = {"name": label["name"], "type": "categorical", "categories": label["classes"]}
        found[label["name"]] = _declared(read_section(Feature, kind, "label"))
    return found


def _declared(feature: Feature) -> AskedColumn:
    if feature.is_hashed:
        return AskedColumn(feature.name, "text")
    if feature.is_categorical:
        return AskedColumn(feature.name, "text", categories=feature.categories)
    bounds = None
    if feature.min is not None and feature.max is not None and feature.min < feature.max:
        bounds = feature.min, feature.max
    return AskedColumn(
        feature.name, "number", bounds, feature.integer, is_date=feature.is_date, layout=feature.format
    )


def survey_tables(questions: TableQuestions, sites: Mapping[str, TableSite], noise: NoiseSource) -> TableSurvey:
    """Make the statistics over all sites, with masked sums where masks hide anything; deterministic but for `noise`.

    Raises:
        PrivacyError: epsilon or delta out of range.
        UsageError: code "survey-column", for a label that no column is.
    """
    names = [column.name for column in questions.columns]
    if questions.label and questions.label not in names:
        raise UsageError("survey-column", column=questions.label, columns=", ".join(names[:12]))
    made = carried_out(questions, survey_table(questions), sites, noise)
    context = PrivacyContext(
        delta=questions.delta,
        epsilon_requested=questions.epsilon,
        accountant=questions.accountant,
        seeded=noise.seeded,
        approximate_noise=noise.approximate,
        n_records=max(1, round(made.findings.n_records.value)),
        sums_in_clear=made.is_clear,
    )
    report = report_of(made.ledger, context)
    if questions.epsilon < float("inf"):
        report = checked_cost(made.ledger, context)
    return TableSurvey(made.findings, made.ledger, report)


# The plan that follows -----------------------------------------------------------------------------------------------


def drafted_plan(survey: TableSurvey, n_sites: int, epsilon: float | None = None) -> Plan | None:
    """A plan for the label of the statistics, with all that they found, and what they cost; None where it has no label.

    Args:
        n_sites: sites that take part at least.
        epsilon: the promise of the training, with these statistics on its account; None for `usual_epsilon`.

    Raises:
        PlanError: what was found makes no plan.
    """
    statistics, report = survey.statistics, survey.report
    label = _label_of(statistics)
    features = [own for column in statistics.columns if column.name != statistics.label for own in _feature(column)]
    if label is None or not features:
        return None
    return Plan.from_dict(
        {
            "version": PLAN_VERSION,
            "name": statistics.label,
            "privacy": {
                "epsilon": usual_epsilon(report) if epsilon is None else epsilon,
                "delta": report.delta,
                "n_records": max(1, round(statistics.n_records.value)),
            },
            "model": {"structure_seed": "joint"},
            "federation": {"min_sites": n_sites},
            "label": label,
            "features": features,
            "prepared": prepared_tables(survey.ledger, "record", 1),
        }
    )


def usual_epsilon(report: PrivacyReport) -> float:
    """1, or twice what the statistics have spent if that is more."""
    return max(USUAL_EPSILON, 2 * (report.epsilon_requested or 0.0))


def plan_text(plan: Plan) -> str:
    """The plan's TOML, with a word on where it comes from."""
    return (
        "# A plan of Hedgerow: the one public file that all parties agree on.\n"
        "# Its bounds, categories, classes and number of records were found by noisy sums, which [[prepared]] names\n"
        "# below: privacy.epsilon is for them and the training together, and must stay above what they have cost.\n"
        "# They protect single records, by this plan's kind of noise: a plan with another unit or noise is refused.\n"
        "# Correct by hand what you know better from a code book.\n" + plan_toml(plan)
    )


def _label_of(statistics: TableStatistics) -> dict[str, Any] | None:
    own = next((column for column in statistics.columns if column.name == statistics.label), None)
    if own is None:
        return None
    if statistics.classes:
        kind = "binary" if len(statistics.classes) == 2 else "multiclass"
        return {"name": own.name, "type": kind, "classes": list(statistics.classes)}
    if own.kind != "number" or own.range is None or own.is_date:
        return None
    low, high = own.range.bounds
    return {"name": own.name, "type": "regression", "min": low, "max": high}


def _feature(column: Column) -> list[dict[str, Any]]:
    """The [[features]] table of a column; none for one of which too little was seen."""
    if column.kind == "number" and column.range is not None:
        low, high = column.range.bounds
        integer = column.range.is_whole
        if column.is_date:
            first, last = days_between(low, high)
            own = {"name": column.name, "type": "date", "min": first, "max": last, "integer": integer}
            return [own | ({} if column.layout is None else {"format": column.layout})]
        return [{"name": column.name, "type": "numeric", "min": low, "max": high, "integer": integer}]
    if column.categories:
        return [{"name": column.name, "type": "categorical", "categories": list(column.categories)}]
    if column.kind == "text":
        return [{"name": column.name, "type": "hashed", "buckets": HASH_BUCKETS}]
    return []
