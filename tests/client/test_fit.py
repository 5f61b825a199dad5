"""`hedgerow check`, and the line at the beginning of a training: what a plan loses of a table, told to its owner."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from hedgerow.cli.main import main
from hedgerow.data.fit import table_fit
from hedgerow.data.known_columns import known_range, looks_like_identifier
from hedgerow.data.site_data import read_site_data
from hedgerow.plan.plan import Plan

WriteFile = Callable[[str, bytes], Path]

PLAN = """
version = 1
[privacy]
epsilon = 1
delta = 1e-6
n_records = 200
[model]
n_trees = 2
max_depth = 1
[[features]]
name = "age"
type = "numeric"
min = 20
max = 40
[[features]]
name = "ward"
type = "categorical"
categories = ["a", "b"]
[[features]]
name = "same"
type = "numeric"
min = 0
max = 1
[[features]]
name = "visit"
type = "numeric"
min = 0
max = 1000
[label]
name = "ill"
type = "binary"
classes = [0, 1]
"""
AGES = [str(age) for age in range(100)]
"""Of these, 20 are below the bounds and 59 above."""
ROWS = [f"{age},{'abc?'[row % 4]},{7 + row},{row},{row % 2}" for row, age in enumerate(AGES)]
TABLE = "\n".join(["age,ward,same,visit,ill,left", *(f"{row},x" for row in ROWS), ",,,,2,x", "old,a,1,100,0,x"]) + "\n"


@pytest.fixture
def places(write_file: WriteFile) -> tuple[str, str]:
    """The paths of the plan and the table."""
    return str(write_file("plan.toml", PLAN.encode())), str(write_file("a.csv", TABLE.encode()))


def test_shares_are_those_of_the_table(places: tuple[str, str]) -> None:
    """Missing, clamped, not listed and unreadable cells are counted, for features, label and identifier."""
    found = table_fit(places[1], Plan.from_dict(tomllib.loads(PLAN)), chunk_rows=7)
    age, ward, same, visit, ill = found.columns
    assert (found.n_rows, found.ignored) == (102, ["left"])
    assert (age.n_missing, age.n_below, age.n_above, age.n_unreadable) == (1, 20, 59, 1)
    assert (ward.n_missing, ward.n_unlisted, ward.n_unreadable) == (1, 50, 0)
    assert same.is_constant and not age.is_constant
    assert visit.looks_like_id and not ward.looks_like_id
    assert (ill.role, ill.n_unlisted, ill.is_constant) == ("label", 1, False)


def test_the_command_says_what_to_look_at(places: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """One line a column, then findings in words; no cell of the table is printed."""
    assert main(["check", *places]) == 0
    out, err = capsys.readouterr()
    assert "Private" in out and "too narrow" in out and "looks like an identifier" in out and "code book" in err
    assert "77%" in out and "left" in out
    assert "old" not in out + err
    assert main(["check", *places, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["columns"][0]["n_above"] == 59


def test_training_names_columns_that_lie_beyond_the_plan(
    places: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bounds that are too narrow are no error, so they are said; the owner sees it, no peer."""
    assert main(["train", places[0], "--site", places[1], "--out", str(tmp_path / "model.json"), "--seed", "1"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "Beyond the plan's bounds or lists" in said and "of 'age'" in said and "'visit'" not in said
    rows, report = read_site_data(places[1], Plan.from_dict(tomllib.loads(PLAN)))
    assert report.beyond == {"age": 79, "ward": 50, "same": 100, "visit": 0} and rows.n_records == 100
    assert report.unfit == {"data-label-outside": 1, "data-wrong-type": 1}


def test_a_hashed_column_has_nothing_beyond_its_buckets(write_file: WriteFile) -> None:
    """Every text has a bucket, so only missing values are counted."""
    table = tomllib.loads(PLAN)
    table["features"][1] = {"name": "ward", "type": "hashed", "buckets": 4}
    ward = table_fit(str(write_file("a.csv", TABLE.encode())), Plan.from_dict(table)).columns[1]
    assert (ward.kind, ward.n_missing, ward.n_unlisted, ward.is_constant) == ("hashed", 1, 0, False)


@pytest.mark.parametrize("name", ["id", "PatientID", "patient_id", "subject-id", "MRN", "case no", "uuid", "Person"])
def test_names_of_identifiers(name: str) -> None:
    """By the name alone."""
    assert looks_like_identifier(name)


@pytest.mark.parametrize("name", ["age", "idle", "patients_per_ward", "kidney", "num", "visits", "covid", "weight"])
def test_other_names(name: str) -> None:
    """A part of a word is no word."""
    assert not looks_like_identifier(name)


def test_a_known_measurement_is_found_by_its_name() -> None:
    """Alone, or with a unit, a number or "first" behind it; never as a part of something else."""
    heart = known_range("Heart_Rate")
    assert heart is not None and (heart.low, heart.high, heart.unit, heart.source) == (0, 300, "bpm", "CLIF")
    assert known_range("creatinine_first") == known_range("Creatinine") is not None
    assert known_range("weight_kg_2") == known_range("Weight") is not None
    assert known_range("creatinine", "umol/L") is None and known_range("creatinine", "mg/dL") is not None
    for name in ("pregnant", "heart_rate_monitor_type", "x_age_group", "ph_unit", "marriage", "glucose_mmol"):
        assert known_range(name) is None
