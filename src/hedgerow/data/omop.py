# SPDX-License-Identifier: Apache-2.0
"""The query of a plan's section [omop], compiled for a database, and what the database lacks for it.

It only reads. A person's row is made of that person's own records: all joins are on `person_id`, all sums and extremes
are of one person, and there is no limit, no window and no sample. Of other persons nothing is in it, and the tables of
the vocabulary are no persons'. What stands in the text are numbers, words from lists and checked names of columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hedgerow.errors import UsageError
from hedgerow.plan.omop import PERSON, Events, Omop, OmopColumn, OmopOutcome
from hedgerow.plan.plan import Label, Plan

_TABLES = {
    "conditions": ("condition_occurrence", "condition_concept_id", "condition_start_date"),
    "drugs": ("drug_exposure", "drug_concept_id", "drug_exposure_start_date"),
    "procedures": ("procedure_occurrence", "procedure_concept_id", "procedure_date"),
    "measurements": ("measurement", "measurement_concept_id", "measurement_date"),
    "observations": ("observation", "observation_concept_id", "observation_date"),
    "visits": ("visit_occurrence", "visit_concept_id", "visit_start_date"),
    "death": ("death", "", "death_date"),
}
"""By domain: the table of the common data model (5.3 and 5.4), and its columns of concept and date."""
_FEMALE, _MALE = 8532, 8507


@dataclass(frozen=True)
class Dialect:
    """What databases write differently.

    Attributes:
        days: days from date {b} to date {a}.
        year: of the date {a}.
        number, text: types.
        quote: the mark around a name.
    """

    days: str = "DATEDIFF(day, {b}, {a})"
    year: str = "EXTRACT(YEAR FROM {a})"
    number: str = "DOUBLE PRECISION"
    text: str = "VARCHAR(50)"
    quote: str = '"'


DIALECTS = {
    "duckdb": Dialect(days="({a} - {b})"),
    # Its dates have no difference where one is infinite, which would end the query of everybody's rows.
    "postgresql": Dialect("CAST(EXTRACT(JULIAN FROM {a}) - EXTRACT(JULIAN FROM {b}) AS DOUBLE PRECISION)"),
    "sqlserver": Dialect(year="YEAR({a})", number="FLOAT"),
    "snowflake": Dialect(number="FLOAT"),
    "redshift": Dialect(),
    "oracle": Dialect(days="({a} - {b})"),
    "bigquery": Dialect("DATE_DIFF({a}, {b}, DAY)", number="FLOAT64", text="STRING", quote="`"),
    "databricks": Dialect("DATEDIFF({a}, {b})", number="DOUBLE", text="STRING", quote="`"),
}
"""By name. The first two are run in tests; of the others only the text is known."""
_OF_SCHEME = {"duckdb": "duckdb", "postgres": "postgresql", "postgresql": "postgresql"}


def locate_query(location: str, plan: Plan | None) -> str:
    """A database's URL with the query that its plan's [omop] defines, where the URL has none itself."""
    if plan is None or plan.omop is None or "#" in location or "://" not in location:
        return location
    dialect = find_dialect(location)
    if not dialect:
        raise UsageError("query-without-url")
    return f"{location}#{compile_query(plan.omop, plan.label, dialect)}"


def find_dialect(location: str) -> str:
    """The dialect of a database's URL for which queries are compiled when rows are read; "" for another."""
    return _OF_SCHEME.get(location.partition("://")[0].lower(), "")


def compile_query(omop: Omop, label: Label, dialect: str) -> str:
    """One SELECT: a row for each person of the cohort, with `person_id`, the columns, and those of the label.

    Args:
        omop: the definition, checked.
        label: of its plan.
        dialect: one of `DIALECTS`.
    """
    return _Compiler(omop, label, DIALECTS[dialect]).compile()


class _Compiler:
    """One definition in one dialect."""

    def __init__(self, omop: Omop, label: Label, dialect: Dialect) -> None:
        self._omop, self._label, self._dialect = omop, label, dialect

    def compile(self) -> str:
        """See `compile_query`."""
        parts = [("index_dates", self._select_index_dates()), ("followed", self._select_followed())]
        chosen = [f"i.{PERSON}"]
        joins = ["JOIN followed f ON f.person_id = i.person_id"]
        for number, column in enumerate(self._omop.columns):
            if column.events is None:
                chosen.append(f"{self._compile_person(column)} AS {self._quote(column.name)}")
                continue
            parts += self._compile_events(column, column.events, number)
            joins.append(f"LEFT JOIN v{number} ON v{number}.person_id = i.person_id")
            value = f"v{number}.amount" if column.value == "latest" else f"COALESCE(v{number}.amount, 0)"
            value = f"CASE WHEN v{number}.amount > 0 THEN 1 ELSE 0 END" if column.value == "presence" else value
            chosen.append(f"{value} AS {self._quote(column.name)}")
        parts.append(("outcomes", self._select_outcomes(self._omop.outcome)))
        joins.append("LEFT JOIN outcomes o ON o.person_id = i.person_id")
        until, followed = (self._count_days(to, "i.index_date") for to in ("o.event_day", "f.end_day"))
        if self._label.type == "survival":
            is_first = "o.event_day IS NOT NULL AND o.event_day <= f.end_day"
            time = f"CASE WHEN {is_first} THEN {until} ELSE {followed} END"
            chosen.append(f"{time} AS {self._quote(self._label.name)}")
            chosen.append(f"CASE WHEN {is_first} THEN 1 ELSE 0 END AS {self._quote(self._label.event or '')}")
            known = ""
        else:
            has = f"o.event_day IS NOT NULL AND {until} <= {self._omop.outcome.days}"
            chosen.append(f"CASE WHEN {has} THEN 1 ELSE 0 END AS {self._quote(self._label.name)}")
            known = f"\nWHERE ({has}) OR {followed} >= {self._omop.outcome.days}"
        with_parts = ",\n".join(f"{name} AS (\n  {text}\n)" for name, text in parts)
        listed, joined = ",\n  ".join(chosen), "\n".join(joins)
        persons = "FROM index_dates i\nJOIN person p ON p.person_id = i.person_id"
        return f"WITH {with_parts}\nSELECT\n  {listed}\n{persons}\n{joined}{known}\nORDER BY i.person_id"

    def _quote(self, name: str) -> str:
        return f"{self._dialect.quote}{name}{self._dialect.quote}"

    def _count_days(self, to: str, since: str) -> str:
        """The days from one date to another."""
        return self._dialect.days.format(a=to, b=since)

    def _select_index_dates(self) -> str:
        """The first date of each person."""
        if self._omop.index is None:
            dated = "subject_id AS person_id, MIN(CAST(cohort_start_date AS DATE)) AS index_date"
            where = f"cohort_definition_id = {self._omop.cohort}"
            return f"SELECT {dated} FROM cohort WHERE {where} GROUP BY subject_id"
        table, _, date = _TABLES[self._omop.index.domain]
        where = _compile_where(self._omop.index)
        first = f"MIN(CAST(e.{date} AS DATE)) AS index_date"
        return f"SELECT e.person_id, {first} FROM {table} e WHERE {where} GROUP BY e.person_id"

    def _select_followed(self) -> str:
        """Until when each person is observed who was on the index date, and for long enough before."""
        start, end = (f"CAST(s.observation_period_{word}_date AS DATE)" for word in ("start", "end"))
        return (
            f"SELECT i.person_id, MAX({end}) AS end_day FROM index_dates i JOIN observation_period s "
            f"ON s.person_id = i.person_id AND {end} >= i.index_date "
            f"AND {self._count_days('i.index_date', start)} >= {self._omop.observed} GROUP BY i.person_id"
        )

    def _compile_person(self, column: OmopColumn) -> str:
        if column.value == "age":
            # Of a type that holds any: a year that is none would end the query, and so leave out everybody's rows.
            born = f"CAST(p.year_of_birth AS {self._dialect.number})"
            return f"{self._dialect.year.format(a='i.index_date')} - {born}"
        source = f"CAST(p.gender_source_value AS {self._dialect.text})"
        return f"CASE p.gender_concept_id WHEN {_FEMALE} THEN 'female' WHEN {_MALE} THEN 'male' ELSE {source} END"

    def _compile_events(self, column: OmopColumn, events: Events, number: int) -> Iterator[tuple[str, str]]:
        """Its named parts: the last one has person and amount."""
        table, _, date = _TABLES[events.domain]
        before = self._count_days("i.index_date", f"CAST(e.{date} AS DATE)")
        days = self._omop.days if column.days is None else column.days
        join = f"FROM index_dates i JOIN {table} e ON e.person_id = i.person_id AND {before} BETWEEN 0 AND {days}"
        where = f"{join} AND {_compile_where(events)}"
        if column.value != "latest":
            yield f"v{number}", f"SELECT i.person_id, COUNT(*) AS amount {where} GROUP BY i.person_id"
            return
        value, unit = f"CAST(e.value_as_number AS {self._dialect.number})", "e.unit_concept_id"
        if column.units:
            times = " ".join(f"WHEN {unit} = {concept} THEN {value} * {factor!r}" for concept, factor in column.units)
            value = f"CASE {times} WHEN {unit} IS NULL OR {unit} = 0 THEN {value} END"
        at = f"CAST(e.{date} AS DATE) AS event_day"
        yield f"e{number}", f"SELECT i.person_id, {at}, {value} AS amount {where} AND e.value_as_number IS NOT NULL"
        last = "SELECT person_id, MAX(event_day) AS event_day"
        yield f"l{number}", f"{last} FROM e{number} WHERE amount IS NOT NULL GROUP BY person_id"
        yield (
            f"v{number}",
            (
                f"SELECT e.person_id, MAX(e.amount) AS amount FROM e{number} e JOIN l{number} m "
                "ON m.person_id = e.person_id AND m.event_day = e.event_day GROUP BY e.person_id"
            ),
        )

    def _select_outcomes(self, outcome: OmopOutcome) -> str:
        table, _, date = _TABLES[outcome.domain]
        first = f"MIN(CAST(e.{date} AS DATE)) AS event_day"
        after = f"CAST(e.{date} AS DATE) > i.index_date AND {_compile_where(outcome)}"
        join = f"FROM index_dates i JOIN {table} e ON e.person_id = i.person_id AND {after}"
        return f"SELECT i.person_id, {first} {join} GROUP BY i.person_id"


def _compile_where(events: Events) -> str:
    """What records have to fulfil, in an alias `e`."""
    column = _TABLES[events.domain][1]
    if not events.concepts or not column:
        return "1 = 1"
    listed = ", ".join(map(str, events.concepts))
    if not events.descendants:
        return f"e.{column} IN ({listed})"
    below = f"SELECT descendant_concept_id FROM concept_ancestor WHERE ancestor_concept_id IN ({listed})"
    return f"(e.{column} IN ({listed}) OR e.{column} IN ({below}))"


def list_events(omop: Omop) -> dict[str, Events]:
    """The records that a definition asks for, by what they are for."""
    found = {"the index date": omop.index} if omop.index is not None else dict[str, Events]()
    found["the outcome"] = omop.outcome
    return found | {column.name: column.events for column in omop.columns if column.events is not None}


def compile_counts(omop: Omop) -> str:
    """One SELECT that counts, for what a definition asks for, records that are there, and listed concepts that are not.

    Its columns are `place`, `records` and `known`, one row for each of `list_events` in its order. Exact counts of
    private rows: for the owner of the database alone.
    """
    parts = []
    for number, events in enumerate(list_events(omop).values()):
        table, column, _ = _TABLES[events.domain]
        records = f"(SELECT COUNT(*) FROM {table} e WHERE {_compile_where(events)})"
        listed = ", ".join(map(str, events.concepts)) if column else ""
        known = f"(SELECT COUNT(*) FROM concept WHERE concept_id IN ({listed}))" if listed else "0"
        parts.append(f"SELECT {number} AS place, {records} AS records, {known} AS known")
    return " UNION ALL ".join(parts) + " ORDER BY place"


def describe_lacks(omop: Omop, counts: Sequence[tuple[int, int]]) -> list[tuple[str, str]]:
    """By what is asked for, what a database lacks of it, by the rows of `compile_counts`."""
    found = []
    for (name, events), (records, known) in zip(list_events(omop).items(), counts, strict=True):
        table, unknown = _TABLES[events.domain][0], len(set(events.concepts)) - known
        if not records:
            found.append((name, f"no record of {table} has one of its concepts: are they coded otherwise here?"))
        elif unknown > 0:
            found.append((name, f"{unknown} of {len(set(events.concepts))} concepts are not in the table concept here"))
    return found
