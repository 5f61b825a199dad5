"""`hedgerow check --against`: whether a site's columns mean what the others' do is told to its owner alone."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.app.output import json_text
from hedgerow.app.survey import SurveyOptions, survey_over_tables
from hedgerow.cli.main import main
from hedgerow.data.differences import compare_surveyed, list_differences
from hedgerow.plan.plan import Plan
from hedgerow.survey.statistics import TableStatistics

PLAN = """
version = 1
[privacy]
epsilon = 1
delta = 1e-6
n_records = 4000
[[features]]
name = "glucose"
type = "numeric"
min = 0
max = 400
[[features]]
name = "sex"
type = "categorical"
categories = ["male", "female"]
[[features]]
name = "age"
type = "numeric"
min = 0
max = 120
[[features]]
name = "admitted"
type = "date"
min = "2015-01-01"
max = "2025-01-01"
[[features]]
name = "bmi"
type = "numeric"
min = 10
max = 60
[label]
name = "outcome"
type = "binary"
classes = [0, 1]
"""
N_SITES = 5
N_ROWS = 2000
EPSILON = 0.5


def write_site(
    path: Path, draw: np.random.Generator, n_rows: int, *, unit: float = 1.0, codes: Sequence[str] = ("male", "female"),
    days: int = 0, shift: float = 0.0, missing: float = 0.05,
) -> str:  # fmt: skip
    """A hospital's table, with what is odd in it."""
    glucose, bmi = draw.lognormal(np.log(105), 0.3, n_rows) * unit, draw.normal(27, 4, n_rows) + shift
    sex, age, outcome = draw.choice(codes, n_rows), draw.normal(60, 12, n_rows).round(), draw.integers(0, 2, n_rows)
    admitted = np.datetime64("2020-01-01") + draw.integers(0, 3 * 365 - days, n_rows)
    absent = draw.random(n_rows) < missing
    rows = zip(glucose, absent, sex, age, admitted, bmi, outcome, strict=True)
    text = [f"{'' if gone else f'{own:.2f}'},{s},{a:.0f},{d},{b:.2f},{y}" for own, gone, s, a, d, b, y in rows]
    path.write_text("\n".join(["glucose,sex,age,admitted,bmi,outcome", *text]) + "\n", encoding="utf-8")
    return str(path)


def release(tables: dict[str, str], seed: int) -> dict[str, Any]:
    """What a survey of these tables writes."""
    return survey_over_tables(SurveyOptions(epsilon=EPSILON, seed=seed, quiet=True), tables).to_dict()


def tell(table: str, survey: dict[str, Any]) -> dict[str, str]:
    """The lines that its owner is told, by column; "" where there is a difference and no line."""
    return {own.name: own.line for own in list_differences(table, Plan.from_dict(tomllib.loads(PLAN)), survey)}


def plant(folder: Path, seed: int) -> dict[str, str]:
    """Tables of sites of which each but the last has something that is odd."""
    draw = np.random.default_rng(seed)
    odd: list[dict[str, Any]] = [
        {"unit": 1 / 18.016}, {"codes": ("M", "F")}, {"days": 365}, {"shift": 12.0, "missing": 0.4}, {}
    ]  # fmt: skip
    return {f"s{at}": write_site(folder / f"{seed}-{at}.csv", draw, N_ROWS, **own) for at, own in enumerate(odd)}


EXPECTED: list[dict[str, str]] = [
    {"glucose": "scale.glucose = 18.016"},
    {"sex": 'recode.sex = {F = "female", M = "male"}'},
    {"admitted": ""},
    {"glucose": "", "bmi": ""},
    {},
]


def test_a_node_compares_by_what_it_knows_itself(tmp_path: Path) -> None:
    """After a survey over nodes no file is needed: a node's own reckoning tells its owner what the file would."""
    tables, plan = plant(tmp_path, 1), Plan.from_dict(tomllib.loads(PLAN))
    found = survey_over_tables(SurveyOptions(epsilon=EPSILON, seed=1, quiet=True), tables).found.statistics
    assert isinstance(found, TableStatistics)
    told = [{own.name: own.line for own in compare_surveyed(table, plan, found)} for table in tables.values()]
    assert told == EXPECTED


def count_told(folder: Path, n_runs: int) -> list[int]:
    """In how many runs each site's owner is told what is odd at this site, and no more."""
    told = [0] * N_SITES
    for seed in range(n_runs):
        tables = plant(folder, seed)
        survey = release(tables, seed)
        for at, (table, expected) in enumerate(zip(tables.values(), EXPECTED, strict=True)):
            told[at] += tell(table, survey) == expected
    return told


@pytest.mark.slow
def test_what_is_odd_is_told_to_its_owner(tmp_path: Path) -> None:
    """Units, codes, dates that end early, a shifted column and missing cells are told in nine of ten runs or more."""
    assert min(count_told(tmp_path, 10)) >= 9


@pytest.mark.slow
@pytest.mark.long
def test_equal_sites_are_told_nothing(tmp_path: Path) -> None:
    """In 100 runs no owner of rows that are like all others is told anything, small sites and strangers neither."""
    found = []
    for seed in range(100):
        draw = np.random.default_rng(1000 + seed)
        tables = {
            f"s{at}": write_site(tmp_path / f"{at}.csv", draw, n_rows) for at, n_rows in enumerate((2000, 1500, 60))
        }
        survey = release(tables, seed)
        stranger = write_site(tmp_path / "stranger.csv", draw, 1000)
        found += [(seed, name, told) for name, table in {**tables, "stranger": stranger}.items()
                  if (told := tell(table, survey))]  # fmt: skip
    assert found == []


def test_lines_make_the_difference_go_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`check --against` marks what it tells as private, and nothing is left to tell with the lines that it prints."""
    plan, against, own = tmp_path / "plan.toml", tmp_path / "survey.json", tmp_path / "own.toml"
    tables = plant(tmp_path, 1)
    plan.write_text(PLAN, encoding="utf-8")
    against.write_text(json_text(release(tables, 1)), encoding="utf-8")
    for name, expected in zip(("s0", "s1", "s4"), (EXPECTED[0], EXPECTED[1], EXPECTED[4]), strict=True):
        command = ["check", str(plan), tables[name], "--against", str(against), "--json"]
        assert main(command) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["private"], {each["name"]: each["line"] for each in told["differences"]}) == (True, expected)
        own.write_text("\n".join(["[data]", *expected.values()]), encoding="utf-8")
        assert main([*command, "--adapter", str(own)]) == 0
        assert json.loads(capsys.readouterr().out)["differences"] == []


def test_cells_that_cannot_be_read_are_no_numbers(tmp_path: Path) -> None:
    """A column of which no cell is a number is compared by nothing; `check` says that its cells cannot be read."""
    tables = plant(tmp_path, 1)
    odd = tmp_path / "odd.csv"
    odd.write_text("glucose,sex,age,admitted,bmi,outcome\n" + "high,male,old,soon,big,1\n" * 1000, encoding="utf-8")
    told = tell(str(odd), release(tables, 1))
    assert set(told) <= {"sex"}


def test_a_file_that_is_no_survey_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Any other JSON, or none, is a mistake in the command: exit code 2."""
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN, encoding="utf-8")
    table = write_site(tmp_path / "site.csv", np.random.default_rng(1), 40)
    spoilt = json.loads(json_text(release({"own": table}, 1)))
    del spoilt["columns"][1]["missing"]
    contents = "{}", "[1]", "glucose,sex\n", '{"n_records": {"deviation": 1}, "columns": [3]}', json.dumps(spoilt)
    for content in (*contents, "[" * 20_000, json.dumps(spoilt | {"label": "\x9b31m"})):
        (tmp_path / "survey.json").write_text(content, encoding="utf-8")
        assert main(["check", str(plan), table, "--against", str(tmp_path / "survey.json")]) == 2
        assert "usage" in capsys.readouterr().err
