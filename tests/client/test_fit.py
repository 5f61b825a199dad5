"""`hedgerow check`, and the line at the beginning of a training: what a plan loses of a table, told to its owner."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hedgerow.cli.main import main
from hedgerow.cli.owner import look
from hedgerow.client.policy import Policy
from hedgerow.data import fit
from hedgerow.data.adapters import read_adapter
from hedgerow.data.drafts import known_range, looks_like_identifier
from hedgerow.data.fit import table_fit
from hedgerow.data.site_data import read_site_data
from hedgerow.data.sources import adapted
from hedgerow.errors import PolicyRefusal
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


def test_measurements_are_no_identifiers(write_file: WriteFile) -> None:
    """Fractions all differ anyway, whichever mark a table writes them with: nobody is told to leave a column out."""
    plan = Plan.from_dict(tomllib.loads(PLAN))
    cells = "".join(f"{age}|5;a;1;{age};0\n" for age in range(60))
    for mark in ".,":
        table = write_file("a.csv", f"age;ward;same;visit;ill\n{cells}".replace("|", mark).encode())
        found = table_fit(f"{table}#decimal={'comma' if mark == ',' else 'point'}", plan)
        assert not found.columns[0].looks_like_id and found.columns[3].looks_like_id


def test_the_command_says_what_to_look_at(places: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """One line a column, then findings in words; no cell of the table is printed."""
    assert main(["check", *places]) == 0
    out, err = capsys.readouterr()
    assert "Private" in out and "too narrow" in out and "looks like an identifier" in out and "code book" in err
    assert "77%" in out and "left" in out
    assert "old" not in out + err
    assert main(["check", *places, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["columns"][0]["n_above"] == 59


def test_a_narrow_terminal_breaks_no_line(
    places: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the table has no room, each column says what it has; a table that the terminal folds cannot be read."""
    monkeypatch.chdir(Path(places[0]).parent)
    monkeypatch.setenv("COLUMNS", "50")
    assert main(["check", "plan.toml", "a.csv"]) == 0
    text = capsys.readouterr().out
    assert "  ill    categorical label" in text and "numeric, " in text and "clamped " in text
    assert max(map(len, text.split("\n"))) <= 50


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


def feature(name: str, **fields: object) -> dict[str, object]:
    return {"name": name, **fields}


def plan_with(*features: dict[str, object]) -> Plan:
    return Plan.from_dict({**tomllib.loads(PLAN), "features": list(features)})


OTHERWISE = plan_with(
    feature("age", type="numeric", min=0, max=110),
    feature("sex", type="categorical", categories=["male", "female"]),
    feature("ward", type="categorical", categories=["surgery", "medicine"]),
    feature("born", type="date", min="1900-01-01", max="2025-01-01"),
    feature("height", type="numeric", min=100, max=220),
    feature("pulse", type="numeric", min=20, max=250),
    feature("lactate", type="numeric", min=0, max=30),
)
ODD_ROWS = [
    f"{7000 + 250 * row};{'MF'[row % 2]};{'S' if row % 2 else 'Medicine'};{row % 28 + 1}.{row % 12 + 1}.1980;"
    f"{1.5 + row / 200};{'-999' if row % 9 == 0 else 60 + row % 50};{'.' if row % 7 == 0 else row % 5};{row % 2}"
    for row in range(100)
]
ODD_TABLE = "\n".join(["age;sex;ward;born;height;pulse;lactate;ill", *ODD_ROWS]) + "\n"


def test_another_coding_is_named_with_the_lines_that_mend_it(
    write_file: WriteFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Read through the lines that the check suggests, the same table fits the plan in every cell."""
    place = str(write_file("a.csv", ODD_TABLE.encode()))
    found = {column.name: column for column in table_fit(place, OTHERWISE).columns}
    assert {name: column.mending for name, column in found.items() if column.mending} == {
        "age": 'scale.age = "days to years"',
        "sex": 'recode.sex = {F = "female", M = "male"}',
        "ward": 'recode.ward = {Medicine = "medicine", S = "surgery"}',
        "born": 'date.born = "%d.%m.%Y"',
        "height": 'scale.height = "m to cm"',
        "pulse": "missing.pulse = [-999]",
        "lactate": 'missing.lactate = ["."]',
    }
    assert found["sex"].unlisted == {"M": 50, "F": 50}
    lines = "\n".join(["[data]", *(column.mending for column in found.values())])
    own = read_adapter(str(write_file("a.toml", lines.encode())))
    mended = table_fit(adapted(place, own), OTHERWISE)
    assert all(column.beyond == column.n_unreadable == 0 and not column.mending for column in mended.columns)
    assert (mended.columns[5].n_missing, mended.columns[6].n_missing) == (12, 15)


def test_the_command_prints_the_lines_and_what_is_not_listed(
    write_file: WriteFile, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unlisted texts with their counts, the lines that are clear, and a name under which a column may be there."""
    plan = PLAN.replace('["a", "b"]', '["male", "female"]').replace('"ward"', '"sex"')
    table = "Age,sex,same,visit,ill\n" + "".join(f"30,{'MFX'[row % 3]},0,{row % 2},1\n" for row in range(30))
    places = str(write_file("p.toml", plan.encode())), str(write_file("a.csv", table.encode()))
    assert main(["check", *places]) == 4
    said = capsys.readouterr().err
    assert 'rename = {Age = "age"}' in said and "data-missing-column" in said
    adapter = str(write_file("a.toml", b'[data]\nrename = {Age = "age"}\n'))
    assert main(["check", *places, "--adapter", adapter]) == 0
    out = capsys.readouterr().out
    assert "'F' 10, 'M' 10, 'X' 10" in out and 'recode.sex = {F = "female", M = "male"}' in out


@pytest.mark.parametrize("is_shifted", [True, False])
def test_one_and_two_for_no_and_yes_is_asked_about(write_file: WriteFile, is_shifted: bool) -> None:
    """Where 1 is listed and means something else, only a person knows; where a 0 is there, 2 is an odd value."""
    rows = [f"{row % 2 + 1}" for row in range(40)] + ([] if is_shifted else ["0"])
    table = "smoker,ill\n" + "".join(f"{row},{row if int(row) < 2 else 0}\n" for row in rows)
    plan = plan_with(feature("smoker", type="categorical", categories=[0, 1]))
    smoker = table_fit(str(write_file("a.csv", table.encode())), plan).columns[0]
    assert not smoker.mending
    assert ('recode.smoker = {1 = "0", 2 = "1"}' in " ".join(smoker.findings())) is is_shifted


@pytest.mark.parametrize(
    ("unlisted", "listed"),
    [({"1": 5, "2": 5}, ["male", "female"]), ({"s": 9}, ["surgery", "stroke"]), ({"x": 1}, ["xa", "xb"])],
)
def test_what_is_not_clear_is_not_suggested(unlisted: dict[str, int], listed: list[str]) -> None:
    """A wrong recode is worse than an unlisted value."""
    assert fit.of_categories("a", unlisted, listed, set()) == ("", "")


def test_dates_and_units_that_are_not_clear_are_named(write_file: WriteFile) -> None:
    """3/4/2020 is two days, and a number may be a date in a column of numbers: said, without a line."""
    said, line = fit.of_unreadable("born", {"3/4/2020": 5, "5/6/2020": 5}, True)
    assert "%d/%m/%Y or %m/%d/%Y" in said and not line
    said, line = fit.of_unreadable("born", {"2020-01-31": 5}, False)
    assert "dates" in said and not line
    assert fit.of_unreadable("x", {"3,5": 5}, False)[1] == 'decimal = "comma"'
    far = np.linspace(1e9, 2e9, 50)
    assert fit.of_numbers("x", far, (0.0, 1.0), {}) == ("", "")


def test_a_node_tells_its_owner_shares_and_no_cell(write_file: WriteFile) -> None:
    """What a node says when it starts may stand in a log: shares and names of columns, no text of a row."""
    place, said = str(write_file("a.csv", ODD_TABLE.encode())), list[str]()
    rules = {"version": 1, "data_set": "x", "max_epsilon": 1.0, "delta": 1e-6}
    look(place, OTHERWISE, Policy(**rules), said.append)
    assert said[0].startswith("a.csv: 100 rows read; clamped 100% of 'age', 100% of 'height', 12% of 'pulse'; not ")
    assert all("private" in line or "hedgerow check" in line for line in said)
    assert not any(text in " ".join(said) for text in ("'M'", "'F'", "Medicine", "1980"))
    for limit, code in (({"max_clamped": 0.5}, "policy-clamped"), ({"max_unlisted": 0.99}, "policy-unlisted")):
        with pytest.raises(PolicyRefusal) as caught:
            look(place, OTHERWISE, Policy(**rules, **limit), said.append)
        assert caught.value.code == code
    look(place, OTHERWISE, Policy(**rules, max_clamped=1.0, max_unlisted=1.0), said.append)
