# SPDX-License-Identifier: Apache-2.0
"""Compile the query of a plan's [omop] for a database, and find what the database lacks for it.

The query only reads. A person's row is computed from that person's records alone. Everything joined has one row per
`person_id`, so that a person has one row however often they occur in a table. Only a column of concepts has a row for
each of a person's concepts. All sums and extremes are of one person, and there is no limit, no window and no sample. No
record can make the query fail, which would suppress everybody's rows: an invalid number, date or code counts as
missing. The vocabulary's tables hold no persons. The text of the query has only numbers, words from lists and checked
column names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hedgerow.errors import UsageError
from hedgerow.plan.omop import PERSON, Events, Omop, OmopColumn
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
"""Domain -> the table of the common data model (5.3 and 5.4), and its columns of concept and date."""
_FEMALE, _MALE = 8532, 8507


@dataclass(frozen=True)
class Dialect:
    """The expressions that databases write differently.

    Attributes:
        days: the number of days from date {b} to date {a}.
        year: the year of the date {a}.
        date, number, code: {a} as a date, a number, or the number of a concept; NULL if it is not one.
        double, text: types.
        quote: the mark around a name.
    """

    days: str = "DATEDIFF(day, {b}, {a})"
    year: str = "EXTRACT(YEAR FROM {a})"
    date: str = "CAST({a} AS DATE)"
    number: str = "{a}"
    code: str = "{a}"
    double: str = "DOUBLE PRECISION"
    text: str = "VARCHAR(50)"
    quote: str = '"'


DIALECTS = {
    # A database that was filled from text may have text where the model has dates and numbers.
    "duckdb": Dialect(
        "({a} - {b})", date="TRY_CAST({a} AS DATE)", number="TRY_CAST({a} AS DOUBLE)", code="TRY_CAST({a} AS BIGINT)"
    ),
    # Subtracting an infinite date would end the query, so Julian days are subtracted.
    "postgresql": Dialect("CAST(EXTRACT(JULIAN FROM {a}) - EXTRACT(JULIAN FROM {b}) AS DOUBLE PRECISION)"),
    "sqlserver": Dialect(year="YEAR({a})"),
    "snowflake": Dialect(),
    "redshift": Dialect(),
    "oracle": Dialect(days="({a} - {b})"),
    "bigquery": Dialect("DATE_DIFF({a}, {b}, DAY)", double="FLOAT64", text="STRING", quote="`"),
    "databricks": Dialect("DATEDIFF({a}, {b})", double="DOUBLE", text="STRING", quote="`"),
}
"""Dialects by name. Tests run the first two; for the others they check the text only."""
_OF_SCHEME = {"duckdb": "duckdb", "postgres": "postgresql", "postgresql": "postgresql"}


def locate_query(location: str, plan: Plan | None) -> str:
    """Append the query of the plan's [omop] to a database's URL, unless it has a query itself."""
    if plan is None or plan.omop is None or "#" in location or "://" not in location:
        return location
    dialect = find_dialect(location)
    if not dialect:
        raise UsageError("query-without-url")
    return f"{location}#{compile_query(plan.omop, plan.label, dialect)}"


def find_dialect(location: str) -> str:
    """Return the dialect for which a URL's queries are compiled when rows are read; "" for other URLs."""
    return _OF_SCHEME.get(location.partition("://")[0].lower(), "")


def compile_query(omop: Omop, label: Label, dialect: str) -> str:
    """Compile one SELECT: a row per person of the cohort, with `person_id`, columns and label.

    Args:
        omop: the definition, checked.
        dialect: one of `DIALECTS`.
    """
    return _Compiler(omop, DIALECTS[dialect]).compile(label)


class _Compiler:
    def __init__(self, omop: Omop, dialect: Dialect) -> None:
        self._omop, self._dialect = omop, dialect

    def compile(self, label: Label) -> str:
        days, quote = self._omop.outcome.days, self._dialect.quote
        written, gender = f"CAST(gender_source_value AS {self._dialect.text})", self._as_code("gender_concept_id")
        # If a person has two entries, take the smaller value.
        sex = f"CASE {gender} WHEN {_FEMALE} THEN 'female' WHEN {_MALE} THEN 'male' ELSE {written} END"
        entry = f"MIN({self._as_number('year_of_birth')}) AS born, MIN({sex}) AS sex"
        parts = [*self.list_followed(), ("persons", f"SELECT {PERSON}, {entry} FROM person GROUP BY {PERSON}")]
        chosen, joins, order = [f"i.{PERSON}"], ["JOIN followed f", "JOIN persons p"], [f"i.{PERSON}"]
        for number, column in enumerate(self._omop.columns):
            value = f"{self._dialect.year.format(a='i.index_date')} - p.born" if column.value == "age" else "p.sex"
            if column.domain:
                parts += self._compile_events(column, number)
                joins.append(f"LEFT JOIN v{number}")
                order += [f"v{number}.amount"] if column.value == "concept" else []
                is_own = column.value in ("latest", "concept")
                value = f"v{number}.amount" if is_own else f"COALESCE(v{number}.amount, 0)"
                value = f"CASE WHEN v{number}.amount > 0 THEN 1 ELSE 0 END" if column.value == "presence" else value
            chosen.append(f"{value} AS {quote}{column.name}{quote}")
        table, _, date = _TABLES[self._omop.outcome.domain]
        day, where = self._as_date(date), _compile_where(self._omop.outcome, self._dialect)
        first = f"SELECT i.{PERSON}, MIN({day}) AS event_day {_join(table)} AND {day} > i.index_date AND {where}"
        parts.append(("outcomes", f"{first} GROUP BY i.{PERSON}"))
        joins.append("LEFT JOIN outcomes o")
        until, followed = (self._count_days(to, "i.index_date") for to in ("o.event_day", "f.end_day"))
        if label.type == "survival":
            has, known = "o.event_day IS NOT NULL AND o.event_day <= f.end_day", ""
            chosen.append(f"CASE WHEN {has} THEN {until} ELSE {followed} END AS {quote}{label.name}{quote}")
        else:
            has = f"o.event_day IS NOT NULL AND {until} <= {days}"
            known = f"\nWHERE ({has}) OR {followed} >= {days}"
        chosen.append(f"CASE WHEN {has} THEN 1 ELSE 0 END AS {quote}{label.event or label.name}{quote}")
        listed = ",\n  ".join(chosen)
        joined = "\n".join(f"{table} ON {table.split()[-1]}.{PERSON} = i.{PERSON}" for table in joins)
        rows = f"SELECT\n  {listed}\nFROM index_dates i\n{joined}{known}\nORDER BY {', '.join(order)}"
        return f"{_name_parts(parts)}\n{rows}"

    def _count_days(self, to: str, since: str) -> str:
        return self._dialect.days.format(a=to, b=since)

    def _as_date(self, column: str) -> str:
        return self._dialect.date.format(a=column)

    def _as_number(self, column: str) -> str:
        """Return an expression for a double that stays finite after any unit's factor.

        An overflow would end the query for everybody.
        """
        held = self._dialect.number.format(a=column)
        sizes = f"{held} = 0 OR {held} BETWEEN 1e-30 AND 1e30 OR {held} BETWEEN -1e30 AND -1e-30"
        return f"CASE WHEN {sizes} THEN CAST({held} AS {self._dialect.double}) END"

    def _as_code(self, column: str) -> str:
        return self._dialect.code.format(a=column)

    def list_followed(self) -> list[tuple[str, str]]:
        """Return two named parts: each person's index date, and the end of observation.

        The second has only persons who were observed at the index date and before.
        """
        if self._omop.index is None:
            person, date, table = "subject_id", "cohort_start_date", "cohort"
            where = f"{self._as_code('cohort_definition_id')} = {self._omop.cohort}"
        else:
            person, (table, _, date) = PERSON, _TABLES[self._omop.index.domain]
            where = _compile_where(self._omop.index, self._dialect)
        first = f"SELECT {person} AS {PERSON}, MIN({self._as_date(date)}) AS index_date FROM {table}"
        start, end = (self._as_date(f"observation_period_{word}_date") for word in ("start", "end"))
        followed = f"SELECT i.{PERSON}, MAX({end}) AS end_day {_join('observation_period')} AND {end} >= i.index_date"
        before = f"{self._count_days('i.index_date', start)} >= {self._omop.observed}"
        return [
            ("index_dates", f"{first} WHERE {where} GROUP BY {person}"),
            ("followed", f"{followed} AND {before} GROUP BY i.{PERSON}"),
        ]

    def _compile_events(self, column: OmopColumn, number: int) -> Iterator[tuple[str, str]]:
        """Yield the named parts of a column; the last one has person and amount."""
        table, concept, date = _TABLES[column.domain]
        days = self._omop.days if column.days is None else column.days
        before = self._count_days("i.index_date", self._as_date(date))
        where = f"{_join(table)} AND {before} BETWEEN 0 AND {days} AND {_compile_where(column, self._dialect)}"
        if column.value == "concept":
            code = self._as_code(concept)
            # The concept 0 stands for a code without a concept.
            which = f"SELECT DISTINCT i.{PERSON}, CAST({code} AS {self._dialect.text}) AS amount {where} AND {code} > 0"
            yield f"v{number}", which
            return
        if column.value != "latest":
            yield f"v{number}", f"SELECT i.{PERSON}, COUNT(*) AS amount {where} GROUP BY i.{PERSON}"
            return
        value, unit = self._as_number("value_as_number"), self._as_code("unit_concept_id")
        if column.units:
            times = " ".join(f"WHEN {unit} = {concept} THEN {value} * {factor!r}" for concept, factor in column.units)
            value = f"CASE {times} WHEN unit_concept_id IS NULL OR {unit} = 0 THEN {value} END"
        yield f"e{number}", f"SELECT i.{PERSON}, {self._as_date(date)} AS event_day, {value} AS amount {where}"
        last = f"SELECT {PERSON}, MAX(event_day) AS event_day FROM e{number}"
        yield f"l{number}", f"{last} WHERE amount IS NOT NULL GROUP BY {PERSON}"
        same = f"m.{PERSON} = e.{PERSON} AND m.event_day = e.event_day"
        latest = f"SELECT e.{PERSON}, MAX(e.amount) AS amount FROM e{number} e JOIN l{number} m ON {same}"
        yield f"v{number}", f"{latest} GROUP BY e.{PERSON}"


def _join(table: str) -> str:
    return f"FROM index_dates i JOIN {table} ON {table}.{PERSON} = i.{PERSON}"


def _name_parts(parts: Iterable[tuple[str, str]]) -> str:
    return "WITH " + ",\n".join(f"{name} AS (\n  {text}\n)" for name, text in parts)


def _compile_where(events: Events | OmopColumn, dialect: Dialect) -> str:
    """Return the condition that records have to fulfil."""
    column = dialect.code.format(a=_TABLES[events.domain][1])
    if not events.concepts:
        return "1 = 1"
    listed = ", ".join(map(str, events.concepts))
    if not events.descendants:
        return f"{column} IN ({listed})"
    below = f"SELECT descendant_concept_id FROM concept_ancestor WHERE ancestor_concept_id IN ({listed})"
    return f"({column} IN ({listed}) OR {column} IN ({below}))"


def list_events(omop: Omop) -> dict[str, Events | OmopColumn]:
    """Return the records that a definition asks for, by their purpose."""
    found: dict[str, Events | OmopColumn] = {} if omop.index is None else {"the index date": omop.index}
    return found | {"the outcome": omop.outcome} | {column.name: column for column in omop.columns if column.domain}


def compile_counts(omop: Omop, dialect: str) -> str:
    """Compile one SELECT that counts the records of each of `list_events`.

    It also counts the persons with an index date, and those of them who were observed. The exact counts are of private
    rows: for the owner of the database only.
    """
    asked, own = list_events(omop).values(), DIALECTS[dialect]
    counted = [f"{_TABLES[events.domain][0]} WHERE {_compile_where(events, own)}" for events in asked]
    rows = " UNION ALL ".join(
        f"SELECT {place} AS place, (SELECT COUNT(*) FROM {table}) AS records"
        for place, table in enumerate((*counted, "index_dates", "followed"))
    )
    return f"{_name_parts(_Compiler(omop, own).list_followed())}\n{rows} ORDER BY place"


def compile_known(omop: Omop) -> str:
    """Compile one SELECT of the definition's concepts that the table `concept` has."""
    listed = {0}.union(*(events.concepts for events in list_events(omop).values()))
    return f"SELECT DISTINCT concept_id FROM concept WHERE concept_id IN ({', '.join(map(str, sorted(listed)))})"


def describe_lacks(
    omop: Omop, counts: Sequence[int], n_rows: int, known: Collection[int] | None
) -> Iterator[tuple[str, str]]:
    """Yield what a database lacks, by what the definition asks for.

    Args:
        n_rows: rows of the definition's query.
        known: the concepts from `compile_known`; None if that table cannot be read.
    """
    *records, n_indexed, n_followed = counts
    for (name, events), n_records in zip(list_events(omop).items(), records, strict=True):
        table, unknown = _TABLES[events.domain][0], 0 if known is None else len({*events.concepts} - {*known})
        if not n_records:
            coded = f"no record of {table} has one of its concepts: are they coded otherwise here?"
            yield name, coded if events.concepts else f"{table} has no records"
        elif unknown:
            yield name, f"{unknown} of {len({*events.concepts})} concepts are not in the table concept here"
    if known is None:
        yield "the table concept", "it cannot be read, so nobody has looked whether it has the definition's concepts"
    if 2 * n_followed <= n_indexed:
        period = f"with {omop.observed} days in observation_period before it"
        yield "the index date", f"{n_indexed:,} persons have one, {n_followed:,} of them {period}: no others count"
    elif 2 * n_rows < n_followed:
        known_of = f"{n_rows:,} of them are in the table person, and followed until it is known: no others count"
        yield "the outcome", f"of {n_followed:,} persons who are observed at the index date {known_of}"
