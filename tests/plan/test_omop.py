"""The query of [omop]: one row for each person, out of that person's records alone; and what a database lacks."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.app.survey import SurveyOptions, survey_over_tables
from hedgerow.cli.main import main
from hedgerow.data.fit import table_fit
from hedgerow.data.omop import DIALECTS, compile_query, describe_lacks, list_events, locate_query
from hedgerow.data.raw_cells import read_raw_site
from hedgerow.data.site_data import read_site_data
from hedgerow.data.sources import open_table
from hedgerow.errors import DataError, PlanError, UsageError
from hedgerow.plan.omop import charge_survey, fill_plan
from hedgerow.plan.plan import DECLARED, Plan, parse_plan
from hedgerow.plan.toml import plan_toml
from hedgerow.privacy.accountants import compute_account
from hedgerow.privacy.ledger import read_prepared_events
from hedgerow.privacy.public import PublicInputs
from hedgerow.survey.queries import CellCounts, KindCounts, RecordCount, TextBins, TextVotes, blank
from hedgerow.survey.requests import OpenTable
from tests.builders import coded

SCHEMA = """
CREATE TABLE person (person_id BIGINT, gender_concept_id INTEGER, gender_source_value VARCHAR, year_of_birth INTEGER);
CREATE TABLE observation_period (person_id BIGINT, observation_period_start_date DATE,
    observation_period_end_date DATE);
CREATE TABLE condition_occurrence (person_id BIGINT, condition_concept_id INTEGER, condition_start_date DATE);
CREATE TABLE drug_exposure (person_id BIGINT, drug_concept_id INTEGER, drug_exposure_start_date DATE);
CREATE TABLE visit_occurrence (person_id BIGINT, visit_concept_id INTEGER, visit_start_date DATE);
CREATE TABLE measurement (person_id BIGINT, measurement_concept_id INTEGER, measurement_date DATE,
    value_as_number DOUBLE PRECISION, unit_concept_id INTEGER);
CREATE TABLE death (person_id BIGINT, death_date DATE);
CREATE TABLE cohort (cohort_definition_id INTEGER, subject_id BIGINT, cohort_start_date DATE, cohort_end_date DATE);
CREATE TABLE concept (concept_id INTEGER, concept_name VARCHAR);
CREATE TABLE concept_ancestor (ancestor_concept_id INTEGER, descendant_concept_id INTEGER);
INSERT INTO concept VALUES (1, 'diabetes'), (2, 'diabetes, type 2'), (20, 'glucose'), (30, 'inpatient');
INSERT INTO concept_ancestor VALUES (1, 1), (1, 2);
"""
COLUMNS: list[dict[str, Any]] = [
    {"name": "age", "value": "age"},
    {"name": "sex", "value": "sex"},
    {"name": "glucose", "value": "latest", "domain": "measurements", "concepts": [20], "min": 20, "max": 600,
     "units": [[8840, 1.0], [8753, 18.0]]},
    {"name": "drugged", "value": "presence", "domain": "drugs", "concepts": [10, 11], "days": 30},
    {"name": "visits", "value": "count", "domain": "visits"},
]  # fmt: skip
DAY = datetime.date(2020, 1, 1)


def make_definition(**omop: Any) -> dict[str, Any]:
    """A definition of persons with diabetes, and whether they come to hospital within 100 days."""
    return {
        "privacy": {"delta": 1e-5, "n_records": 100},
        "omop": {
            "index": {"domain": "conditions", "concepts": [1], "descendants": True},
            "outcome": {"domain": "visits", "concepts": [30], "days": 100},
            "columns": COLUMNS,
            **omop,
        },
    }


SURVIVAL = {
    "label": {"name": "days", "type": "survival", "event": "died", "intervals": [30, 100, 300]},
    **make_definition(outcome={"domain": "death"}, cohort=7, index=None),
}


def day(number: int) -> datetime.date:
    return DAY + datetime.timedelta(days=number)


def fill(connection: Any, persons: Sequence[tuple[int, dict[str, Any]]]) -> None:
    """Records of persons, each with its own, in place of those that are there."""
    for number, own in persons:
        rows: dict[str, list[tuple[Any, ...]]] = {"person": [(number, own["sex"], own["written"], own["born"])]}
        rows["person"] += [(number, *entry) for entry in own.get("again", [])]
        rows["observation_period"] = [(number, day(first), day(first + length)) for first, length in own["periods"]]
        rows["condition_occurrence"] = [(number, concept, day(at)) for concept, at in own["conditions"]]
        rows["drug_exposure"] = [(number, concept, day(at)) for concept, at in own["drugs"]]
        rows["visit_occurrence"] = [(number, concept, day(at)) for concept, at in own["visits"]]
        rows["measurement"] = [(number, 20, day(at), value, unit) for at, value, unit in own["values"]]
        rows["death"] = [(number, day(at)) for at in own["deaths"]]
        rows["cohort"] = [(7, number, day(at), day(at)) for at in own["entries"]]
        for table, own_rows in rows.items():
            for row in own_rows:
                cells = ["NULL" if cell is None else repr(str(cell)) for cell in row]
                connection.execute(f"INSERT INTO {table} VALUES ({', '.join(cells)})")


def make_file(place: Path, persons: Sequence[dict[str, Any]]) -> str:
    """The URL of a database of persons, numbered from 0."""
    with duckdb.connect(str(place)) as connection:
        connection.execute(SCHEMA)
        fill(connection, list(enumerate(persons)))
    return f"duckdb:///{place}"


def by_person(rows: Sequence[tuple[Any, ...]]) -> dict[int, tuple[Any, ...]]:
    """The row of each person, of whom each has one."""
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0]: row[1:] for row in rows}


TABLES = re.findall(r"CREATE TABLE (\w+) \((?:person_id|cohort_def)", SCHEMA)


@pytest.fixture(scope="module")
def connection() -> Any:
    """A database in memory, with the tables and nobody in them."""
    with duckdb.connect() as found:
        found.execute(SCHEMA)
        yield found


days_of = st.integers(0, 500)
person = st.fixed_dictionaries(
    {
        "sex": st.sampled_from([8507, 8532, 0]),
        "written": st.sampled_from(["M", "F", None]),
        "born": st.integers(1930, 2000) | st.sampled_from([None, -(2**31), 2**31 - 1]),
        "again": st.lists(st.tuples(st.sampled_from([8507, 0]), st.just("M"), st.just(1990)), max_size=2),
        "periods": st.lists(st.tuples(st.integers(0, 200), st.integers(0, 600)), max_size=2),
        "conditions": st.lists(st.tuples(st.sampled_from([1, 2, 3]), days_of), max_size=3),
        "drugs": st.lists(st.tuples(st.sampled_from([10, 11, 12]), days_of), max_size=3),
        "visits": st.lists(st.tuples(st.sampled_from([30, 31]), days_of), max_size=4),
        "values": st.lists(
            st.tuples(
                days_of,
                st.floats(allow_subnormal=True) | st.floats(1, 500),
                st.sampled_from([8840, 8753, 1, 0, None]),
            ),
            max_size=3,
        ),
        "deaths": st.lists(days_of, max_size=2),
        "entries": st.lists(days_of, max_size=2),
    }
)


CONCEPTS = [{"name": "age", "value": "age"}, {"name": "drug", "value": "concept", "domain": "drugs"}]


@pytest.mark.parametrize(
    "definition",
    [make_definition(), SURVIVAL, make_definition(columns=CONCEPTS)],
    ids=["binary", "survival", "concepts"],
)
@settings(deadline=None, max_examples=8)
@given(persons=st.lists(person, min_size=1, max_size=4), data=st.data())
def test_a_person_more_or_less_changes_no_other_row(
    definition: dict[str, Any], connection: Any, persons: list[dict[str, Any]], data: Any
) -> None:
    """What differential privacy of a person rests on: one row for each, or for each of their concepts, that follows
    from their own records alone, however often they stand in a table and whatever stands there.
    """
    plan = Plan.from_dict(fill_plan(definition))
    assert plan.omop is not None
    query = compile_query(plan.omop, plan.label, "duckdb")
    for table in TABLES:
        connection.execute(f"DELETE FROM {table}")
    fill(connection, list(enumerate(persons)))
    whole, gone = connection.execute(query).fetchall(), data.draw(st.integers(0, len(persons) - 1))
    for table in TABLES:
        connection.execute(f"DELETE FROM {table} WHERE {'subject_id' if table == 'cohort' else 'person_id'} = {gone}")
    assert connection.execute(query).fetchall() == [row for row in whole if row[0] != gone]
    places = [0] + [place for place, column in enumerate(plan.omop.columns, 1) if column.value == "concept"]
    assert len({tuple(row[place] for place in places) for row in whole}) == len(whole)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("definition", [make_definition(), SURVIVAL], ids=["binary", "survival"])
def test_a_query_reads_persons_and_nothing_else(dialect: str, definition: dict[str, Any]) -> None:
    """In no dialect a limit, a window, a quantile, a sample or a file: only tables of the model, joined by person."""
    plan = Plan.from_dict(fill_plan(definition))
    assert plan.omop is not None
    text = compile_query(plan.omop, plan.label, dialect)
    calls = set(re.findall(r"([A-Z_]+)\(", text))
    assert calls <= {
        "MIN", "MAX", "COUNT", "CAST", "TRY_CAST", "NULLIF", "EXTRACT", "YEAR", "COALESCE", "DATEDIFF", "DATE_DIFF",
        "VARCHAR",
    }  # fmt: skip
    words = set(re.findall(r"[A-Z]+", re.sub(r"'[^']*'|[\"`]\w+[\"`]", "", text)))
    assert not words & {"LIMIT", "TOP", "OVER", "SAMPLE", "INSERT", "UPDATE", "DELETE", "CREATE", "COPY", "ATTACH"}
    assert ";" not in text and "--" not in text and text.startswith("WITH ")
    joins = re.findall(r"JOIN \w+ \w* ?ON ([\w.]+) = ([\w.]+)", text)
    assert joins and all(side.endswith("person_id") for pair in joins for side in pair)


def test_a_row_is_what_the_definition_says(tmp_path: Path) -> None:
    """Index date, window, units, ages, counts, and who is left out because nobody knows their outcome.

    A year of birth that is none is its person's alone: it does not end the query of all.
    """
    usual = {"sex": 8532, "written": "F", "born": 1960, "periods": [(0, 700)], "conditions": [(2, 400), (1, 450)],
             "drugs": [], "visits": [], "values": [], "deaths": [], "entries": []}  # fmt: skip
    persons = [
        usual | {"drugs": [(10, 369)], "visits": [(31, 35), (30, 400), (30, 501)], "values": [(30, 90.0, 8840)]},
        usual | {"sex": 0, "born": -(2**31), "drugs": [(10, 370), (11, 401)], "visits": [(31, 34), (30, 500)],
                 "values": [(100, 5.0, 8753), (100, 80.0, 8840), (300, 7.0, 1), (401, 9.0, 0)]},
        usual | {"values": [(390, 5.0, 8753), (380, 100.0, 8840)], "periods": [(0, 499)]},
        usual | {"conditions": [(3, 400)]},
        usual | {"values": [(400, 6.0, None)], "periods": [(300, 400)]},
    ]  # fmt: skip
    plan = Plan.from_dict(fill_plan(make_definition(observed=200)))
    table = open_table(make_file(tmp_path / "omop.duckdb", persons), plan)
    (batch,) = table.batches(table.names(), 1000, {})
    columns = [pa.array(column).to_pylist() for column in batch]
    assert by_person(list(zip(*columns, strict=True))) == {
        # age, sex, glucose, drugged, visits, outcome; the third was not followed for 100 days, the last not before.
        0: (61, "female", None, 0, 2, 0),
        1: (2021 + 2**31, "F", 90.0, 1, 0, 1),
    }


def test_a_plan_holds_its_definition() -> None:
    """From a definition to a plan, its file and back: equal plans, of one digest that the definition is part of."""
    plan = Plan.from_dict(fill_plan(make_definition()))
    assert parse_plan(plan_toml(plan)) == plan == Plan.from_dict(plan.to_dict())
    other = Plan.from_dict(fill_plan(make_definition(days=364)))
    assert other.digest != plan.digest and plan.privacy.unit == "person_id"


@pytest.mark.parametrize(
    "omop",
    [
        {"cohort": 1},
        {"columns": []},
        {"columns": [{"name": 'x" FROM person; --', "value": "age"}]},
        {"columns": [{"name": "x", "value": "count", "domain": "visits", "concepts": ["1 OR 1"]}]},
        {"columns": [{"name": "x", "value": "latest", "domain": "drugs"}]},
        {"columns": [{"name": "x", "value": "age", "domain": "drugs"}]},
        {"columns": [{"name": "x", "value": "latest", "domain": "measurements", "units": [[1, 1.0], [1, 18.0]]}]},
        {"columns": [{"name": "outcome", "value": "age"}]},
        {"columns": [{"name": "Outcome", "value": "age"}]},
        {"columns": [{"name": "age", "value": "age"}, {"name": "AGE", "value": "sex"}]},
        {"columns": [{"name": "x", "value": "count", "domain": "person"}]},
        {"outcome": {"domain": "visits"}},
        {"outcome": {"domain": "death", "concepts": [201826], "days": 365}},
        {"outcome": {"domain": "visits", "descendants": True, "days": 365}},
        {"columns": [{"name": "x", "value": "age", "days": 30}]},
        {"columns": [{"name": "x", "value": "sex", "concepts": [8507]}]},
        {"columns": [{"name": "x", "value": "count", "domain": "drugs", "descendants": True}]},
        {"columns": [{"name": name, "value": "concept", "domain": "drugs"} for name in "xy"]},
        {"columns": [{"name": "x", "value": "concept"}]},
    ],
    ids=str,
)
def test_what_is_no_definition_is_refused(omop: dict[str, Any]) -> None:
    """A definition that says two things or none, or that would write SQL of its own, makes no plan."""
    with pytest.raises(PlanError):
        Plan.from_dict(fill_plan(make_definition(**omop)))


@given(name=st.text(min_size=1, max_size=8) | st.sampled_from(['y", (SELECT 1) AS "z', "y` FROM x --"]))
@pytest.mark.parametrize("place", ["name", "event"])
@settings(deadline=None, max_examples=30)
def test_no_name_of_a_label_writes_sql(place: str, name: str) -> None:
    """The label's columns stand in the query that each site sends to its database: they are words, or it is no plan."""
    table = fill_plan({**SURVIVAL, "label": {**SURVIVAL["label"], place: name}})
    taken = {"person_id", "days", "died", *(own["name"] for own in COLUMNS)} - {SURVIVAL["label"][place]}
    if re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name) and name.lower() not in taken:
        plan = Plan.from_dict(table)
        assert plan.omop is not None and f'AS "{name}"' in compile_query(plan.omop, plan.label, "duckdb")
    else:
        with pytest.raises(PlanError):
            Plan.from_dict(table)


def test_one_row_for_a_person_is_asked_for() -> None:
    """A plan over persons whose unit is a row would promise persons less than it says: refused."""
    table = fill_plan(make_definition())
    with pytest.raises(PlanError):
        Plan.from_dict({**table, "privacy": {**table["privacy"], "unit": "record"}})


TEN: list[dict[str, Any]] = [
    {"sex": 8507, "written": "M", "born": 1950, "periods": [(0, 900)], "conditions": [(2, 400)], "drugs": [],
     "visits": [(30, 401)] * (number % 2), "values": [(399, 100.0, 8840)], "deaths": [], "entries": []}
    for number in range(10)
]  # fmt: skip


def test_no_record_makes_the_query_fail(tmp_path: Path) -> None:
    """A person whose dates and numbers are none has a row or not; everybody else's stays, and there is no error."""
    plan, place = Plan.from_dict(fill_plan(make_definition())), tmp_path / "omop.duckdb"
    url = make_file(place, TEN)
    with duckdb.connect(str(place)) as connection:
        for table, column in (
            ("person", "year_of_birth"), ("observation_period", "observation_period_end_date"),
            ("measurement", "value_as_number"), ("measurement", "measurement_date"),
            ("condition_occurrence", "condition_start_date"), ("condition_occurrence", "condition_concept_id"),
            ("measurement", "unit_concept_id"), ("person", "gender_concept_id"),
            ("visit_occurrence", "visit_concept_id"),
        ):  # fmt: skip
            connection.execute(f"ALTER TABLE {table} ALTER {column} TYPE VARCHAR")
    before, _ = read_site_data(url, plan)
    with duckdb.connect(str(place)) as connection:
        connection.execute("INSERT INTO person VALUES (99, 0, NULL, 'unknown'), (0, 8507, 'M', '1950')")
        connection.execute("INSERT INTO observation_period VALUES (99, '2020-01-01', 'today'), (1, '2020-01-01', '')")
        connection.execute("INSERT INTO measurement VALUES (99, 20, 'x', '>5', 8753), (2, 20, '2021-02-03', '-', 8840)")
        connection.execute("INSERT INTO condition_occurrence VALUES (99, 1, '2021-02-30'), (3, 'E11', '2021-02-03')")
        connection.execute("INSERT INTO visit_occurrence VALUES (3, 'ward', '2021-03-01')")
        connection.execute("INSERT INTO person VALUES (98, 'F', NULL, '1950')")
        connection.execute("INSERT INTO measurement VALUES (2, 20, '2021-02-03', '700', 'mmol/L')")
    after, report = read_site_data(url, plan)
    assert np.array_equal(before.codes, after.codes) and np.array_equal(before.labels, after.labels)
    assert (report.n_rows, report.n_dropped, table_fit(url, plan).rows.n_used) == (10, 0, 10)


SIZES = ("1e308", "-1e308", "1e30", "-9e29", "1e-30", "9e-31", "5e-324", "-0.0", "inf", "-inf", "nan")
FACTORS = {8840: 1e-12, 8753: 1e12}


def read_sizes(connection: Any, dialect: str, sizes: Sequence[str]) -> dict[int, float | None]:
    """The latest value of persons of whom each has one of the sizes in one of the units, by the query of a dialect."""
    units = [[unit, factor] for unit, factor in FACTORS.items()]
    column = {**COLUMNS[2], "units": units, "min": -1e30, "max": 1e30}
    plan = Plan.from_dict(fill_plan(make_definition(columns=[column])))
    for table in TABLES:
        connection.execute(f"DELETE FROM {table}")
    persons = [TEN[1] | {"values": [(399, size, unit)]} for size in sizes for unit in FACTORS]
    fill(connection, list(enumerate(persons)))
    assert plan.omop is not None
    connection.execute(compile_query(plan.omop, plan.label, dialect))
    return {number: value for number, value, _ in connection.fetchall()}


def expect_sizes(sizes: Sequence[str]) -> dict[int, float | None]:
    """What of these is a number, times its unit's factor; the others are missing."""
    pairs = enumerate((float(size), factor) for size in sizes for factor in FACTORS.values())
    sized = {at: size * factor if 1e-30 <= abs(size) <= 1e30 else None for at, (size, factor) in pairs}
    return sized | {at: 0.0 for at in sized if not sizes[at // len(FACTORS)].strip("-0.")}


def test_no_size_of_a_number_makes_the_query_fail(connection: Any) -> None:
    """A product beyond the doubles, or one that falls to zero, would end the query of all persons: it is missing."""
    assert read_sizes(connection, "duckdb", SIZES) == expect_sizes(SIZES)


@pytest.mark.parametrize("factor", [0, 1e-13, 1e13, -1.0], ids=str)
def test_no_factor_leaves_the_doubles(factor: float) -> None:
    """A unit's factor is bounded, so that its product with a number that counts is a double in every database."""
    with pytest.raises(PlanError):
        Plan.from_dict(fill_plan(make_definition(columns=[{**COLUMNS[2], "units": [[8840, factor]]}])))


def test_an_owner_learns_why_there_are_no_rows(tmp_path: Path) -> None:
    """A table that is not there is named; without a vocabulary the rows are checked all the same; and who is left out
    for want of observation, of a cohort or of a known outcome is counted.
    """
    plan, place = Plan.from_dict(fill_plan(make_definition())), tmp_path / "omop.duckdb"
    url = make_file(place, TEN)

    def change(statement: str) -> list[str]:
        with duckdb.connect(str(place)) as connection:
            connection.execute(statement)
        return [f"{title}: {said}" for title, said in table_fit(url, plan).about if title != "drugged"]

    assert change("SELECT 1") == []
    assert [said.partition(":")[0] for said in change("DROP TABLE concept")] == ["the table concept"]
    ends = "UPDATE observation_period SET observation_period_end_date = DATE '2021-02-05'"
    assert "of 10 persons" in change(f"{ends}; DELETE FROM visit_occurrence WHERE person_id < 6")[1]
    assert "10 persons have one, 0 of them" in change("DELETE FROM observation_period")[1]
    cohort = Plan.from_dict(fill_plan(make_definition(index=None, cohort=8)))
    assert [said[:9] for title, said in table_fit(url, cohort).about if title == "the index date"] == ["0 persons"]
    with pytest.raises(DataError, match="drug_exposure", check=coded("data-sql")):
        change("DROP TABLE drug_exposure")


def test_rows_beyond_the_bound_are_told_of(tmp_path: Path) -> None:
    """Who looks at a table with a query of their own is told how many rows of a person no training will use."""
    plan = Plan.from_dict(fill_plan(make_definition()))
    url = make_file(tmp_path / "omop.duckdb", TEN)
    assert plan.omop is not None
    whole = compile_query(plan.omop, plan.label, "duckdb")
    query = f"{url}#SELECT rows.* FROM ({whole}) AS rows JOIN person USING (person_id), range(3) ORDER BY person_id"
    found, used = table_fit(query, plan).rows, read_site_data(query, plan)
    assert (found.n_used, found.n_rows, found.left_out) == (10, 30, {"privacy.max_rows_per_unit": 20})
    assert (used[0].n_records, used[1].rows.left_out) == (10, found.left_out)


def test_a_site_reads_its_rows_and_sees_what_it_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A database's URL is enough; what it codes otherwise is told to its owner; a URL that no plan fills is refused."""
    plan, url = Plan.from_dict(fill_plan(make_definition())), make_file(tmp_path / "omop.duckdb", TEN)
    assert read_site_data(url, plan)[0].n_records == 10
    assert [title for title, _ in table_fit(url, plan).about] == ["drugged"]
    with pytest.raises(UsageError, check=coded("query-without-url")):
        open_table(url)
    (tmp_path / "plan.toml").write_text(plan_toml(plan))
    assert main(["check", str(tmp_path / "plan.toml"), url]) == 0
    assert main(["plan", "from-omop", str(tmp_path / "plan.toml"), "--sql", "duckdb"]) == 0
    query = capsys.readouterr().out.partition("WITH ")[2]
    assert open_table(f"{url}#WITH {query}").names()[0] == "person_id"


def make_concepts(**column: Any) -> Plan:
    """A plan that asks which drugs persons take, by four of each at most."""
    table = make_definition(columns=[CONCEPTS[0], {**CONCEPTS[1], **column}])
    return Plan.from_dict(fill_plan({**table, "privacy": {**table["privacy"], "max_rows_per_unit": 4}}))


@pytest.mark.parametrize("concepts", [[], [10, 11, 12]], ids=["found", "declared"])
@settings(deadline=None, max_examples=4)
@given(drugs=st.lists(st.lists(st.integers(9, 16), max_size=12), min_size=2, max_size=5), gone=st.integers(0, 1))
def test_one_person_changes_what_is_said_of_concepts_by_the_bound(
    concepts: list[int], drugs: list[list[int]], gone: int, tmp_path: Path
) -> None:
    """Adding or removing a person with however many drugs moves each answer by at most its sensitivity for a person,
    and other persons' rows stay.
    """
    plan = make_concepts(concepts=concepts)
    persons = [TEN[0] | {"drugs": [(drug, 390) for drug in own]} for own in drugs]
    columns = plan.features
    privacy = {"epsilon": 1.0, "delta": 1e-6, "unit": "person_id", "max_rows_per_unit": 4}
    asked = OpenTable.of(columns, "", privacy)
    place = tmp_path / "omop.duckdb"
    place.unlink(missing_ok=True)
    url = locate_query(make_file(place, persons), plan)
    sites = [read_raw_site(url, asked)]
    with duckdb.connect(str(place)) as connection:
        connection.execute(f"DELETE FROM condition_occurrence WHERE person_id = {gone}")
    sites.append(read_raw_site(url, asked))
    cells = TextBins(("10", "11", "12"), 1)
    for blank_query in (
        blank(RecordCount), blank(KindCounts, columns=(0, 1)), blank(TextVotes, columns=(1,)),
        blank(CellCounts, columns=(1,), bins=(cells,)),
    ):  # fmt: skip
        query = replace(blank_query, length=blank_query.expected_length(), bound=blank_query.largest_entry())
        with_person, without = (query.answer(site) for site in sites)
        assert np.square(with_person - without).sum() <= query.norm_squared() * 4**2
    used = [max(1, min(4, len({*own} & {*(concepts or own)}))) for own in drugs]
    assert [site.n_records for site in sites] == [sum(used), sum(used) - used[gone]]


def test_concepts_are_found_by_a_survey_that_is_paid_for(tmp_path: Path) -> None:
    """Which drugs are common comes from noisy sums of a hospital, becomes a column each of the plan, and is on
    its account; a code of one person's is not found, and the databases' own plan says what rows there are.
    """
    drugs = [[(10, 399), (12, 398)], [(10, 395), (10, 396)], [(2_000_000_001, 399)]]
    sites = [f"--site=s{at}={make_file(tmp_path / f's{at}.duckdb', [TEN[0] | {'drugs': own} for own in drugs * 40])}"
             for at in range(1)]  # fmt: skip
    with duckdb.connect(str(tmp_path / "s0.duckdb")) as connection:
        connection.execute("INSERT INTO drug_exposure VALUES (0, 13, DATE '2021-02-01')")
    asked, plan, out = tmp_path / "asked.toml", tmp_path / "plan.toml", tmp_path / "statistics"
    asked.write_text(plan_toml(make_concepts()))
    survey = ["survey", *sites, "--schema", str(asked), "--epsilon", "60", "--seed", "1", "--out", str(out)]
    assert main(survey) == 0
    taken = ["plan", "from-omop", str(asked), "--survey", str(out / "survey.json")]
    assert main([*taken, "--out", str(plan)]) == 0
    found = parse_plan(plan.read_text())
    assert found.omop is not None and found.privacy.max_rows_per_unit == 1
    drugs_found = [column for column in found.omop.columns if column.domain == "drugs"]
    assert [(column.value, column.concepts) for column in drugs_found] == [
        ("presence", (10,)), ("presence", (12,)), ("presence", (2_000_000_001,))
    ]  # fmt: skip
    assert [release.rows_per_unit for release in found.prepared] == [4] * len(found.prepared)
    spent = compute_account("gdp", read_prepared_events(found), 1e-6).epsilon
    assert 40 < spent <= 60 and found.privacy.unit == "person_id"
    data, _ = read_site_data(sites[0].partition("=s0=")[2], found)
    assert data.n_records == 120
    with pytest.raises(PlanError):
        Plan.from_dict({**found.to_dict(), "prepared": ()})
    assert main(["plan", "from-omop", str(plan), "--survey", str(out / "survey.json")]) == 3
    # How many persons there are was declared, whatever rows the survey has counted.
    for rows in (1, 4):
        prepared = tuple(replace(release, rows_per_unit=rows) for release in found.prepared)
        assert PublicInputs.from_plan(replace(found, prepared=prepared)).n_records_origin == DECLARED
    # A definition of persons who may be at two sites: this survey protects them at one.
    wider = make_concepts().to_dict()
    wider["privacy"]["sites_per_unit"] = 2
    asked.write_text(plan_toml(Plan.from_dict(wider)))
    assert main(taken) == 3


@pytest.mark.parametrize("n_sites", [1, 2])
def test_a_survey_of_a_definition_protects_persons_at_as_many_sites(n_sites: int, tmp_path: Path) -> None:
    """Every site bounds its own rows alone, so a person at two sites adds twice as many to each sum."""
    table, schema = make_concepts().to_dict(), tmp_path / "asked.toml"
    table["privacy"]["sites_per_unit"] = n_sites
    schema.write_text(plan_toml(Plan.from_dict(table)))
    url = make_file(tmp_path / "s0.duckdb", TEN)
    found = survey_over_tables(SurveyOptions(epsilon=1.0, schema=str(schema), quiet=True), {"s0": url, "s1": url})
    assert {release["rows_per_unit"] for release in found.to_dict()["prepared"]} == {4 * n_sites}
    assert found.found.report.sites_per_unit == n_sites


def test_what_was_paid_for_before_stays_on_the_account() -> None:
    """A definition may rest on an earlier survey: another one's releases stand beside its own."""
    earlier = {"kind": "RecordCount", "subject": "first", "length": 1, "sensitivity_squared": 16, "sigma": 100,
               "unit": "person_id", "rows_per_unit": 4}  # fmt: skip
    plan = Plan.from_dict({**make_concepts().to_dict(), "prepared": [earlier]})
    charged = Plan.from_dict(charge_survey(plan.to_dict(), {"prepared": [{**earlier, "subject": "second"}]}))
    assert [release.subject for release in charged.prepared] == ["first", "second"]
    with pytest.raises(LookupError):
        charge_survey(plan.to_dict(), {"columns": []})


def test_tables_are_surveyed_by_the_definition_that_nodes_have(tmp_path: Path) -> None:
    """On one machine too a database's URL is enough: the schema's [omop] says what rows are, and whom it protects."""
    sites = {"s0": make_file(tmp_path / "s0.duckdb", [{**own, "entries": [400]} for own in TEN * 12])}
    plans = {name: tmp_path / f"{name}.toml" for name in ("plan", "curves")}
    for definition, place in zip((make_definition(), SURVIVAL), plans.values(), strict=True):
        place.write_text(plan_toml(Plan.from_dict(fill_plan(definition))))
    options = {"epsilon": 50.0, "seed": 1, "quiet": True}
    made = survey_over_tables(SurveyOptions(**options, schema=str(plans["plan"]), label="outcome"), sites)
    curves = survey_over_tables(SurveyOptions(**options, survival=str(plans["curves"]), by="sex"), sites)
    assert [found.found.report.unit for found in (made, curves)] == ["person_id"] * 2
    assert made.plan is not None and made.plan.omop == parse_plan(plans["plan"].read_text()).omop
    assert read_site_data(sites["s0"], made.plan)[0].n_records == 120


@pytest.mark.parametrize("definition", [make_definition(), SURVIVAL], ids=["binary", "survival"])
def test_nobody_looks_for_codes_that_were_not_asked_for(definition: dict[str, Any]) -> None:
    """Where no record is there, concepts are spoken of only where the definition has some."""
    omop = Plan.from_dict(fill_plan(definition)).omop
    assert omop is not None
    asked = list_events(omop)
    told = dict(describe_lacks(omop, [0] * len(asked) + [10, 10], 10, known=()))
    assert {name: "concepts" in text for name, text in told.items()} == {
        name: bool(events.concepts) for name, events in asked.items()
    }
