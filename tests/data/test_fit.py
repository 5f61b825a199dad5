"""`hedgerow check`, and the line at the beginning of a training: what a plan loses of a table, told to its owner."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hedgerow.app.fit import log_fit
from hedgerow.cli.main import main
from hedgerow.data import columns as encoders
from hedgerow.data.adapters import Adapter, read_adapter
from hedgerow.data.columns import Place
from hedgerow.data.fit import table_fit
from hedgerow.data.site_data import read_site_data
from hedgerow.data.sources import adapt, find_place, open_table
from hedgerow.errors import DataError
from hedgerow.plan.names import looks_like_identifier
from hedgerow.plan.plan import Plan
from hedgerow.trees.binning import UNKNOWN_CATEGORY

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
    assert (found.rows.n_used, found.rows.left_out, found.ignored) == (
        100, {"data-label-outside": 1, "data-wrong-type": 1}, ["left"]
    )  # fmt: skip
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
    """One line a column, then findings in words; of cells those that are not read, and on the owner's screen alone."""
    assert main(["check", *places]) == 0
    out, err = capsys.readouterr()
    assert "Private" in out and "too narrow" in out and "looks like an identifier" in out and "code book" in err
    assert "77%" in out and "left" in out
    assert "'old' 1" in out and "old" not in err
    assert main(["check", *places, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["columns"][0]["n_above"] == 59


@pytest.mark.parametrize(("label", "most"), [('"count"', 9), ('"regression"', 9), ('"regression"', 99)])
def test_training_names_a_label_that_lies_beyond_the_plan(
    label: str, most: int, write_file: WriteFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A label that is clamped spoils more than a feature: its owner hears of it, and exact scores know the bound."""
    own = f'name = "left"\ntype = {label}\nmin = 0\nmax = {most}'
    text = PLAN.replace('name = "ill"\ntype = "binary"\nclasses = [0, 1]', own)
    plan, model = str(write_file("plan.toml", text.encode())), str(tmp_path / "model.json")
    cells = "".join(f"30,a,1,{row},{row}\n" for row in range(100))
    table = str(write_file("a.csv", f"age,ward,same,visit,left\n{cells}".encode()))
    assert main(["train", plan, "--site", table, "--out", model, "--seed", "1"]) == 0
    assert ("of 'left'" in " ".join(capsys.readouterr().err.split())) == (most < 99)
    assert main(["evaluate", model, table, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seen"] == pytest.approx(np.minimum(np.arange(100), most).mean())


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
    beyond = {"age": 79, "ward": 50, "same": 100, "visit": 0, "ill": 0}
    assert report.beyond == beyond and rows.n_records == 100
    assert report.unfit == {"data-label-outside": 1, "data-wrong-type": 1}


def test_a_hashed_column_has_nothing_beyond_its_buckets(write_file: WriteFile) -> None:
    """Every text has a bucket, so only missing values are counted."""
    table = tomllib.loads(PLAN)
    table["features"][1] = {"name": "ward", "type": "hashed", "buckets": 4}
    ward = table_fit(str(write_file("a.csv", TABLE.encode())), Plan.from_dict(table)).columns[1]
    assert (ward.kind, ward.n_missing, ward.n_unlisted, ward.is_constant) == ("hashed", 1, 0, False)


NAMES_OF_IDENTIFIERS = [
    "id", "PatientID", "patient_id", "subject-id", "MRN", "case no", "uuid", "Person",
    "rownames", "row.names", "Unnamed: 0",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES_OF_IDENTIFIERS)
def test_names_of_identifiers(name: str) -> None:
    """By the name alone."""
    assert looks_like_identifier(name)


@pytest.mark.parametrize("name", ["age", "idle", "patients_per_ward", "kidney", "num", "visits", "covid", "weight"])
def test_other_names(name: str) -> None:
    """A part of a word is no word."""
    assert not looks_like_identifier(name)


def feature(name: str, **fields: object) -> dict[str, object]:
    return {"name": name, **fields}


def plan_with(*features: dict[str, object]) -> Plan:
    return Plan.from_dict({**tomllib.loads(PLAN), "features": list(features)})


OTHERWISE = plan_with(
    feature("sex", type="categorical", categories=["male", "female"]),
    feature("ward", type="categorical", categories=["surgery", "medicine"]),
    feature("lactate", type="numeric", min=0, max=30),
    feature("crp", type="numeric", min=0, max=500),
)
ODD_ROWS = [
    f"{'MF'[row % 2]},{'S' if row % 2 else 'Medicine'},{'.' if row % 7 == 0 else row % 5},"
    f"{'<11.0' if row % 3 == 0 else row},{'Yes' if row % 2 else 'No'}"
    for row in range(100)
]
ODD_TABLE = "\n".join(["sex,ward,lactate,crp,ill", *ODD_ROWS]) + "\n"


def test_another_coding_is_named_with_the_lines_that_mend_it(write_file: WriteFile) -> None:
    """Read through the lines that the check suggests, the same table fits the plan in every cell."""
    place = str(write_file("a.csv", ODD_TABLE.encode()))
    found = table_fit(place, OTHERWISE)
    assert set(found.suggested_lines) == {
        'recode.sex = {F = "female", M = "male"}',
        'recode.ward = {Medicine = "medicine", S = "surgery"}',
        'missing.lactate = ["."]',
        'recode.crp = {"<11.0" = "11.0"}',
        'recode.ill = {No = "0", Yes = "1"}',
    }
    assert found.columns[0].unlisted == {"M": 50, "F": 50} and found.rows.n_used == 0
    own = read_adapter(str(write_file("a.toml", "\n".join(["[data]", *found.suggested_lines]).encode())))
    mended = table_fit(adapt(place, own), OTHERWISE)
    assert mended.rows.n_used == 100 and not mended.suggested_lines
    assert all(column.beyond == column.n_unreadable == 0 for column in mended.columns)


TEXTS = st.sampled_from(
    [*"12.-Mfx", "", "12", "-1", "7.5", "1,5", "1,045", "0,5", "1.045", "<5", "-999", "n.a.", "Male", "yes", "No"]
)
CELLS = st.one_of(TEXTS, TEXTS.map(lambda text: f"{text} "), st.just("Männlich"))
HEADERS = ("age", "sex", "crp", "ill")


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(st.tuples(*[CELLS] * 4), min_size=1, max_size=12),
    encoding=st.sampled_from(["utf-8", "cp1252"]),
    own=st.sampled_from(["", 'missing = ["-"]', 'recode.sex = {x = "male"}', 'decimal = "comma"']),
)
def test_a_line_that_is_printed_reads_more_and_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, ...]], encoding: str, own: str
) -> None:
    """Whatever a table holds: followed as it is printed, the advice reads more cells, and each that was read stays."""
    folder = tmp_path_factory.mktemp("advice")
    lines = [",".join(f'"{cell}"' for cell in row) for row in rows]
    (folder / "a.csv").write_bytes("\n".join([",".join(HEADERS), *lines]).encode(encoding) + b"\n")
    plan = plan_with(
        feature("age", type="numeric", min=0, max=110),
        feature("sex", type="categorical", categories=["male", "female", "Männlich"]),
        feature("crp", type="numeric", min=0, max=500),
    )

    def adapter_of(*lines: str) -> Adapter:
        (folder / "a.toml").write_text("\n".join(["[data]", *lines]) + "\n", encoding="utf-8")
        return read_adapter(str(folder / "a.toml"))

    def read_by(adapter: Adapter) -> list[list[float | None]]:
        """Each column's cells, None where one is not read."""
        table = open_table(adapt(str(folder / "a.csv"), adapter))
        found = []
        for name, column in zip(HEADERS, next(table.batches(HEADERS, 100, {})), strict=True):
            place = replace(find_place(table), column=name)
            found.append([cell_of(plan, column[at : at + 1], place) for at in range(len(rows))])
        return found

    first = adapter_of(own)
    fit_now = table_fit(adapt(str(folder / "a.csv"), first), plan)
    new = {line.split(" = ")[0] for line in fit_now.suggested_lines}
    kept = [] if not own or own.split(" = ")[0] in new else [own]
    before, after = read_by(first), read_by(adapter_of(*kept, *fit_now.suggested_lines))
    pairs = [pair for columns in zip(before, after, strict=True) for pair in zip(*columns, strict=True)]
    assert all(new_cell == old for old, new_cell in pairs if old is not None)
    n_more = sum(old is None and new_cell is not None for old, new_cell in pairs)
    assert n_more >= len(fit_now.suggested_lines)


def cell_of(plan: Plan, column: Any, place: Place) -> float | None:
    """One cell by the plan, by the public encoders alone: -2 for a missing value, None for one that is not read."""
    try:
        if place.column in ("sex", "ill"):
            listed = plan.features[1].categories if place.column == "sex" else plan.label.classes
            index = int(encoders.category_indices(column, listed, place)[0])
            return None if index == UNKNOWN_CATEGORY else index
        number = float(encoders.numbers(column, place)[0])
    except DataError:
        return None
    return -2 if np.isnan(number) else number


@pytest.mark.parametrize(
    ("cells", "is_asked", "line"),
    [
        (['"1,045"', '"2,310"'], True, None),
        (['"1,045"', '"12,5"'], False, 'decimal = "comma"'),
        (['"1,045,000"', '"7"'], True, None),
        (["1 045", "7"], True, None),
        (["1\u2019045", "7"], True, None),
        ([*(f"{number}.{number:03d}" for number in range(1, 30)), "7"], True, None),
        ([*(f"{number}.{number:03d}" for number in range(1, 30)), "0.500"], False, None),
        (["7", "8"], False, None),
    ],
)
def test_thousands_are_asked_about(write_file: WriteFile, cells: list[str], is_asked: bool, line: str | None) -> None:
    """1,045 is a thousand or one and a bit: a line is printed only where another cell shows that commas are decimal."""
    table = "age,ill\n" + "".join(f"{cell},1\n" for cell in cells)
    plan = plan_with(feature("age", type="numeric", min=0, max=2000))
    found = table_fit(str(write_file("a.csv", table.encode())), plan)
    assert ("thousands" in found.columns[0].coding) is is_asked
    assert found.suggested_lines == ([] if line is None else [line])


@pytest.mark.parametrize(
    ("cells", "is_asked", "mending"),
    [(["1.045", "2.310"], True, []), (["1.045", "93.2"], False, ['decimal = "point"']), (["1.045", "93,2"], True, [])],
)
def test_points_before_three_digits_are_no_numbers_beside_decimal_commas(
    write_file: WriteFile, cells: list[str], is_asked: bool, mending: list[str]
) -> None:
    """A file with semicolons may write a thousand as 1.045: that is not read as one and a bit, unless points are."""
    table = "age;ill\n" + "".join(f"{cell};1\n" for cell in cells)
    plan = plan_with(feature("age", type="numeric", min=0, max=2000))
    found = table_fit(str(write_file("a.csv", table.encode())), plan)
    assert ("thousands" in found.columns[0].coding, found.suggested_lines) == (is_asked, mending)
    assert found.rows.left_out == {"data-wrong-type": sum("." in cell[-4:-3] for cell in cells)}


def test_cells_in_another_encoding_are_read_by_its_name(write_file: WriteFile) -> None:
    """Of a header in ASCII nothing tells that the cells are Windows-1252; `plan init` names the same declaration."""
    plan = plan_with(feature("sex", type="categorical", categories=["Männlich", "Weiblich"]))
    place = str(write_file("a.csv", "sex,ill\nMännlich,1\nWeiblich,0\n".encode("cp1252")))
    found = table_fit(place, plan)
    assert found.suggested_lines == ['encoding = "cp1252"'] and "#encoding=cp1252" in dict(found.about)["encoding"]
    assert table_fit(f"{place}#encoding=cp1252", plan).rows.n_used == 2


@pytest.mark.parametrize("row", ['"1",30,1', "30,1,"])
def test_one_field_more_in_every_row_is_explained(write_file: WriteFile, row: str) -> None:
    """R's names of rows, and a separator at the end of each line, leave every row out."""
    plan = plan_with(feature("age", type="numeric", min=0, max=110))
    found = table_fit(str(write_file("a.csv", f"age,ill\n{row}\n{row}\n".encode())), plan)
    assert (found.rows.n_used, found.rows.left_out) == (0, {"data-ragged-row": 2})
    assert "row.names" in dict(found.about)["rows"] and "ends with a separator" in dict(found.about)["rows"]


def test_the_command_prints_the_lines_and_what_is_not_listed(
    write_file: WriteFile, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unlisted texts with their counts, and the lines that are clear."""
    plan = PLAN.replace('["a", "b"]', '["male", "female"]').replace('"ward"', '"sex"')
    table = "age,sex,same,visit,ill\n" + "".join(f"30,{'MFX'[row % 3]},0,{row % 2},1\n" for row in range(30))
    places = str(write_file("p.toml", plan.encode())), str(write_file("a.csv", table.encode()))
    assert main(["check", *places]) == 0
    out = capsys.readouterr().out
    assert "'F' 10, 'M' 10, 'X' 10" in out and 'recode.sex = {F = "female", M = "male"}' in out


@pytest.mark.parametrize(
    ("kind", "words", "line"),
    [
        ("survival", ["alive", "dead"], '{alive = "0", dead = "1"}'), ("binary", ["alive", "dead"], ""),
        ("survival", ["Censored", "Death"], '{Censored = "0", Death = "1"}'), ("binary", ["y", "Yes"], ""),
        ("survival", ["-1", "yes"], ""), ("binary", ["y", "no"], '{no = "0", y = "1"}'),
    ],
)  # fmt: skip
def test_no_line_makes_one_class_of_two_codes(write_file: WriteFile, kind: str, words: list[str], line: str) -> None:
    """A label whose codes all become one class is worse than rows that are left out; a fate is one of events alone."""
    label: dict[str, Any] = {"name": "status", "type": "binary", "classes": ["0", "1"]}
    if kind == "survival":
        label = {"name": "time", "type": "survival", "event": "status", "intervals": [10, 20]}
    plan = Plan.from_dict({**tomllib.loads(PLAN), "label": label})
    table = "age,ward,same,visit,time,status\n" + "".join(f"30,a,0,{at},5,{word}\n" for at, word in enumerate(words))
    found = table_fit(str(write_file("a.csv", table.encode())), plan)
    assert found.suggested_lines == ([f"recode.status = {line}"] if line else [])


@pytest.mark.parametrize("kind", ["binary", "survival"])
@pytest.mark.parametrize(
    ("codes", "pairs"),
    [
        (["1", "2"], '{1 = "0", 2 = "1"}'), (["1.0", "2.0"], '{1 = "0", 2 = "1"}'), (["-1", "1"], '{-1 = "0"}'),
        (["0", "1"], ""), (["0", "1", "2"], ""), (["1", "3"], ""), (["1", "2", "9"], ""),
    ],
)  # fmt: skip
def test_codes_one_and_two_are_asked_about(write_file: WriteFile, kind: str, codes: list[str], pairs: str) -> None:
    """A label or a status of 1 and 2 loses all rows of 2 (R's packages write so); the line that mends it does."""
    label: dict[str, Any] = {"name": "status", "type": "binary", "classes": ["0", "1"]}
    if kind == "survival":
        label = {"name": "time", "type": "survival", "event": "status", "intervals": [10, 20]}
    plan = Plan.from_dict({**tomllib.loads(PLAN), "label": label})
    rows = [f"30,a,0,{at},5,{codes[at % len(codes)]}" for at in range(60)]
    place = str(write_file("a.csv", "\n".join(["age,ward,same,visit,time,status", *rows]).encode()))
    asked = [said for name, said in table_fit(place, plan).findings() if "which of them is the event" in said]
    assert [f"recode.status = {pairs}" in said for said in asked] == [True] * bool(pairs)
    if pairs:
        own = read_adapter(str(write_file("own.toml", f"[data]\nrecode.status = {pairs}\n".encode())))
        assert table_fit(adapt(place, own), plan).rows.n_used == len(rows)


@pytest.mark.parametrize("n_headers", [0, 2])
def test_a_value_that_is_its_columns_name_is_no_header(n_headers: int, write_file: WriteFile) -> None:
    """Of a column `dead`, "dead" is a word; where each column's name stands among its values, a header was appended."""
    plan = Plan.from_dict({**tomllib.loads(PLAN), "label": {"name": "dead", "type": "binary", "classes": ["0", "1"]}})
    rows = [f"30,a,0,{at % 2},{('alive', 'dead')[at % 2]}" for at in range(20)]
    header = "age,ward,same,visit,dead"
    found = table_fit(str(write_file("a.csv", "\n".join([header, *rows, *[header] * n_headers]).encode())), plan)
    told = [name for name, said in found.findings() if "the header stands among the rows" in said]
    assert told == header.split(",") * (n_headers > 0)


@pytest.mark.parametrize(
    ("odd", "listed"),
    [("A-", "A+"), ("1-5", "15"), ("1.5", "15"), ("<5", ">5"), ("-1", "1"), ("5+", "5"), ("50%", "50")],
)
def test_signs_and_marks_keep_texts_apart(odd: str, listed: str, write_file: WriteFile) -> None:
    """A blood group, a range or a number is not another one; hyphens and points within words tell none apart."""
    for text, other, is_one in ((odd, listed, False), ("Non smoker", "non-smoker", True), ("'dr.'", "Dr", True)):
        plan = plan_with(feature("ward", type="categorical", categories=[other, "xyz"]))
        found = table_fit(str(write_file("a.csv", f"ward,ill\n{text},1\nxyz,0\n".encode())), plan)
        assert bool(found.suggested_lines) is is_one


def test_cells_that_are_not_read_are_shown_to_their_owner(
    write_file: WriteFile, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no explanation fits, the texts themselves tell: units, signs of per cent, another minus."""
    cells = ["70 kg", "12 %", "\u22125", "n.a."]
    table = "age,ward,same,visit,ill\n" + "".join(f"{cell},a,0,{at},1\n" for at, cell in enumerate(cells))
    assert main(["check", str(write_file("p.toml", PLAN.encode())), str(write_file("a.csv", table.encode()))]) == 0
    out = capsys.readouterr().out
    assert all(f"{cell!r} 1" in " ".join(out.split()) for cell in cells) and 'missing.age = ["n.a."]' in out


@pytest.mark.parametrize(
    ("odd", "listed"),
    [({"1": 5, "2": 5}, ["male", "female"]), ({"s": 9}, ["surgery", "stroke"]), ({"x": 1}, ["xa", "xb"])],
)
def test_what_is_not_clear_is_not_suggested(odd: dict[str, int], listed: list[str], write_file: WriteFile) -> None:
    """A wrong recode is worse than an unlisted value."""
    table = "ward,ill\n" + "".join(f"{text},1\n" * count for text, count in odd.items())
    plan = plan_with(feature("ward", type="categorical", categories=listed))
    found = table_fit(str(write_file("a.csv", table.encode())), plan)
    assert (found.suggested_lines, found.columns[0].coding) == ([], "")


def test_a_node_tells_its_owner_shares_and_no_cell(write_file: WriteFile) -> None:
    """What a node says when it starts may stand in a log: shares and names of columns, no text of a row."""
    place, said = str(write_file("a.csv", ODD_TABLE.encode())), list[tuple[str, str]]()

    def tell(text: str, level: str = "INFO") -> None:
        said.append((level, text))

    log_fit(place, OTHERWISE, tell)
    assert said[0][0] == "WARNING" and said[0][1].startswith("a.csv: 0 of 100 rows used.")
    assert all("private" in line or "hedgerow check" in line for _, line in said)
    assert not any(text in " ".join(line for _, line in said) for text in ("'M'", "'F'", "Medicine", "<11"))
