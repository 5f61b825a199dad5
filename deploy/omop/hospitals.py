# SPDX-License-Identifier: Apache-2.0
"""Three made hospitals as OMOP tables in DuckDB: `python hospitals.py FOLDER`, and persons of each to test on.

All persons have type 2 diabetes. Their risk to come back to hospital rises with glucose, age and earlier visits, and
falls with metformin. South writes glucose in mmol/L and no unit; west writes sex as M and F and metformin by a code of
its own. Nobody in them is real.
"""

import sys
from pathlib import Path

import duckdb
import numpy as np

DIABETES, GLUCOSE, METFORMIN, INPATIENT, OUTPATIENT = 201826, 3004501, 1503297, 9201, 9202
OWN_CODE = 2_000_000_001
MG_DL, FEMALE, MALE = 8840, 8532, 8507
START = np.datetime64("2018-01-01")
TABLES = """
CREATE TABLE person (person_id BIGINT, gender_concept_id INTEGER, gender_source_value VARCHAR, year_of_birth INTEGER);
CREATE TABLE observation_period (person_id BIGINT, observation_period_start_date DATE,
    observation_period_end_date DATE);
CREATE TABLE condition_occurrence (person_id BIGINT, condition_concept_id INTEGER, condition_start_date DATE);
CREATE TABLE drug_exposure (person_id BIGINT, drug_concept_id INTEGER, drug_exposure_start_date DATE);
CREATE TABLE visit_occurrence (person_id BIGINT, visit_concept_id INTEGER, visit_start_date DATE);
CREATE TABLE measurement (person_id BIGINT, measurement_concept_id INTEGER, measurement_date DATE,
    value_as_number DOUBLE PRECISION, unit_concept_id INTEGER);
CREATE TABLE concept (concept_id INTEGER, concept_name VARCHAR);
CREATE TABLE concept_ancestor (ancestor_concept_id INTEGER, descendant_concept_id INTEGER);
"""


def make(place: Path, n: int, seed: int, kind: str) -> None:
    """The tables of one hospital."""
    draw, number = np.random.default_rng(seed), np.arange(n) + 100_000 * seed
    day = draw.integers(400, 900, n)
    female, age = draw.random(n) < 0.5, draw.normal(62, 12, n).round().clip(20, 95)
    glucose, treated = draw.lognormal(np.log(140), 0.35, n), draw.random(n) < 0.6
    visits = draw.poisson(1.5, n)
    risk = -0.9 + 1.6 * np.log(glucose / 140) + 0.04 * (age - 62) + 0.3 * visits - 0.8 * treated
    wait = draw.exponential(180 / np.log1p(np.exp(risk)), n).round() + 1
    end = day + draw.integers(200, 1200, n)
    is_odd = kind == "west"
    words = np.where(female, "F", "M") if is_odd else np.where(female, "female", "male")
    sexes = np.zeros(n, int) if is_odd else np.where(female, FEMALE, MALE)
    values = glucose / 18.016 if kind == "south" else glucose
    earlier, back = np.repeat(np.arange(n), visits), np.flatnonzero(day + wait <= end)
    before = day[earlier] - draw.integers(1, 365, len(earlier))
    drug = OWN_CODE if is_odd else METFORMIN
    filled = {
        "person": (number, sexes, words, 2018 + day // 365 - age.astype(int)),
        "observation_period": (number, START + np.zeros(n, int), START + end),
        "condition_occurrence": (number, np.full(n, DIABETES), START + day),
        "drug_exposure": (number[treated], np.full(treated.sum(), drug), START + day[treated] - 5),
        "measurement": (number, np.full(n, GLUCOSE), START + day - draw.integers(0, 90, n), values.round(2),
                        np.full(n, 0 if kind == "south" else MG_DL)),
        "visit_occurrence": (
            np.concatenate([number[earlier], number[back]]),
            np.concatenate([np.full(len(earlier), OUTPATIENT), np.full(len(back), INPATIENT)]),
            START + np.concatenate([before, (day + wait.astype(int))[back]]),
        ),
    }  # fmt: skip
    with duckdb.connect(str(place)) as connection:
        connection.execute(TABLES)
        names = [(DIABETES, "Type 2 diabetes mellitus"), (GLUCOSE, "Glucose in serum"), (METFORMIN, "metformin"),
                 (INPATIENT, "Inpatient Visit"), (OUTPATIENT, "Outpatient Visit")]  # fmt: skip
        connection.executemany("INSERT INTO concept VALUES (?, ?)", names)
        connection.executemany("INSERT INTO concept_ancestor VALUES (?, ?)", [(own, own) for own, _ in names])
        for table, columns in filled.items():
            rows = {f"c{place}": column for place, column in enumerate(columns)}
            connection.register("rows", _as_table(rows))
            connection.execute(f"INSERT INTO {table} SELECT * FROM rows")
            connection.unregister("rows")


def _as_table(columns: dict) -> object:
    import pyarrow as pa

    return pa.table({name: pa.array(column.tolist()) for name, column in columns.items()})


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for seed, kind in enumerate(("north", "south", "west"), start=1):
        make(folder / f"{kind}.duckdb", 2000, seed, kind)
        make(folder / f"{kind}-test.duckdb", 1000, seed + 10, kind)
