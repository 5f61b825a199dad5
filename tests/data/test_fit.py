"""`hedgerow check`, and the line at the beginning of a training: what a plan loses of a table, told to its owner."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.app.fit import log_fit
from hedgerow.cli.main import main
from hedgerow.data.adapters import read_adapter
from hedgerow.data.fit import explain_texts, table_fit
from hedgerow.data.site_data import read_site_data
from hedgerow.data.sources import adapt
from hedgerow.plan.names import looks_like_identifier
from hedgerow.plan.plan import Plan
from hedgerow.plan.toml import plan_toml

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
    assert "Private" in out and "another unit" in out and "identifier" in out and "code book" in err
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
    assert "79 of 102 cells of 'age'" in said and "'visit'" not in said
    rows, report = read_site_data(places[1], Plan.from_dict(tomllib.loads(PLAN)))
    beyond = {name: own.n_below + own.n_above + own.n_unlisted for name, own in report.cells.items()}
    assert beyond == {"age": 79, "ward": 50, "same": 100, "visit": 0} and rows.n_records == 100
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


@pytest.mark.parametrize("row", ['"1",30,1', "30,1,"])
def test_one_field_more_in_every_row_is_explained(write_file: WriteFile, row: str) -> None:
    """R's names of rows, and a separator at the end of each line, leave every row out."""
    plan = plan_with(feature("age", type="numeric", min=0, max=110))
    found = table_fit(str(write_file("a.csv", f"age,ill\n{row}\n{row}\n".encode())), plan)
    assert (found.rows.n_used, found.rows.left_out) == (0, {"data-ragged-row": 2})
    assert "row.names" in dict(found.about)["rows"] and "a separator" in dict(found.about)["rows"]


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


def test_a_line_is_proposed_where_the_plans_words_explain_every_text(
    write_file: WriteFile, capsys: pytest.CaptureFixture[str]
) -> None:
    """M, F and S, Medicine begin or are the plan's words, all of them; what else is not read is shown, never mended."""
    place, plan = str(write_file("a.csv", ODD_TABLE.encode())), str(write_file("p.toml", plan_toml(OTHERWISE).encode()))
    found = table_fit(place, OTHERWISE)
    assert found.suggested_lines == [
        'recode.sex = {F = "female", M = "male"}', 'recode.ward = {Medicine = "medicine", S = "surgery"}'
    ]  # fmt: skip
    own = read_adapter(str(write_file("a.toml", "\n".join(["[data]", *found.suggested_lines]).encode())))
    mended = table_fit(adapt(place, own), OTHERWISE)
    assert not mended.suggested_lines and mended.columns[0].n_unlisted == mended.columns[1].n_unlisted == 0
    assert main(["check", plan, place]) == 11
    out = " ".join(capsys.readouterr().out.split())
    assert "'Yes' 50" in out and "'<11.0' 34" in out and "'.' 15" in out and 'recode.sex = {F = "female"' in out


def test_of_many_texts_twenty_are_shown(write_file: WriteFile, capsys: pytest.CaptureFixture[str]) -> None:
    """The owner sees the most frequent ones, and how many there are besides."""
    plan = plan_with(feature("ward", type="categorical", categories=["surgery", "medicine"]))
    cells = "".join(f"odd{number:02d},1\n" * (40 - number) for number in range(33))
    table = str(write_file("a.csv", f"ward,ill\n{cells}".encode()))
    assert main(["check", str(write_file("p.toml", plan_toml(plan).encode())), table]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "'odd19' 21" in out and "'odd20'" not in out and "and 13 more" in out


WORDS = st.sampled_from(["male", "female", "no", "yes", "0", "1", "alive", "dead", "neg", "pos", "A+", "A-", "15"])
ODD_TEXTS = st.one_of(
    WORDS, st.sampled_from([*"MFOoyn-+ad", "m.", "FEMALE", "Yes ", "oui", "'No'", "O", "f", "++", "1-5", "de"])
)


@given(
    texts=st.sets(ODD_TEXTS, min_size=1, max_size=6), words=st.lists(WORDS, min_size=2, max_size=4, unique=True)
)
def test_no_line_explains_a_part_of_a_coding(texts: set[str], words: list[str]) -> None:
    """A half of a coding turns data round: each text has a word of its own, by its own letters, or none has."""
    pairs = explain_texts(texts, words)
    if not pairs:
        return
    every = {text: pairs.get(text, text) for text in texts}
    assert set(every.values()) <= set(words) and len(set(every.values())) == len(texts)
    for text, word in pairs.items():
        plain = text.casefold().strip(" '.")
        assert word.casefold() == plain or (word.startswith(plain) and plain.isalpha() and len(texts) == len(words))


@given(
    texts=st.sets(st.sampled_from(["M", "F", "male", "FEMALE", "0", "1", "O", "oui", "-"]), min_size=1, max_size=4),
    said=st.permutations(["male", "female", "other"]),
    n_codes=st.integers(1, 3),
)
def test_a_code_books_words_explain_all_texts_or_none(texts: set[str], said: list[str], n_codes: int) -> None:
    """Whichever way round a code book has them, each text gets the code of its own word; a half of a coding is none."""
    codes = [str(at) for at in range(n_codes)]
    labels = list(zip(codes, said, strict=False))
    pairs = explain_texts(texts, codes, labels)
    every = {text: pairs.get(text, text) for text in texts}
    if pairs:
        assert set(every.values()) <= set(codes) and len(set(every.values())) == len(texts)
    for text, code in pairs.items():
        word, plain = dict(labels)[code], text.casefold()
        assert plain == word or (word.startswith(plain) and len(texts) == n_codes)


def test_check_reads_what_codes_mean_from_a_code_book(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F and M against 0 and 1 are asked, and with the study's own words a line for both, by either kind of book."""
    monkeypatch.chdir(tmp_path)
    plan = plan_with(feature("sex", type="categorical", categories=["0", "1"]))
    Path("plan.toml").write_text(plan_toml(plan), encoding="utf-8")
    Path("a.csv").write_text("sex,ill\n" + "F,1\nM,0\n" * 10, encoding="utf-8")
    Path("plain.csv").write_text("name,type,categories,labels\nsex,categorical,1|0,female|male\n", encoding="utf-8")
    choices = "Variable / Field Name,Field Type,\"Choices, Calculations, OR Slider Labels\"\n"
    Path("redcap.csv").write_text(f'{choices}sex,radio,"0, Male | 1, Female"\n', encoding="utf-8")
    assert main(["check", "plan.toml", "a.csv"]) == 0
    assert "recode.sex = {" not in capsys.readouterr().out
    for book in ("plain.csv", "redcap.csv"):
        assert main(["check", "plan.toml", "a.csv", "--codebook", book]) == 0
        assert 'recode.sex = {F = "1", M = "0"}' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"0", "1", "O"}, ["0", "1"]), ({"F", "M"}, ["0", "1"]), ({"-", "+", "++"}, ["negative", "positive", "strong"]),
        ({"alive", "dead"}, ["0", "1"]), ({"Yes", "yes", "no"}, ["yes", "no"]), ({"s"}, ["surgery", "stroke"]),
        ({"m"}, ["male", "female"]), ({"A-"}, ["A+", "xyz"]), ({"1-5"}, ["15", "xyz"]),
    ],
)  # fmt: skip
def test_what_is_not_wholly_explained_is_asked(texts: set[str], words: list[str]) -> None:
    """A letter O, codes for the sexes, a strip's minus: no plan's word tells what they are."""
    assert explain_texts(texts, words) == {}


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["1.1", "1.10", "2.5"], "'1.1' and '1.10'"), (["9007199254740993", "9007199254740992"], "2^53"),
        (["1.5", "2.5", "7"], ""), (["1,045", "2,310"], "decimal=comma"), (["1.045,5", "7"], "decimal=comma"),
    ],
)  # fmt: skip
def test_what_becomes_one_number_is_asked_about(cells: list[str], said: str, write_file: WriteFile) -> None:
    """Codes that look like numbers are told apart as categories alone; marks within numbers may mean two things."""
    table = "age,ill\n" + "".join(f'"{cell}",1\n' for cell in cells * 8)
    found = table_fit(str(write_file("a.csv", table.encode())), plan_with(feature("age", type="numeric", min=0, max=9)))
    asked = found.columns[0].coding
    assert said in asked and bool(said) == bool(asked)


def test_cells_in_another_encoding_are_counted(write_file: WriteFile) -> None:
    """Of a header in ASCII nothing tells that the cells are Windows-1252; named, the encoding reads them all."""
    plan = plan_with(feature("sex", type="categorical", categories=["Männlich", "Weiblich"]))
    place = str(write_file("a.csv", ("sex,ill\n" + "Männlich,1\nWeiblich,0\n" * 10).encode("cp1252")))
    assert "another encoding" in dict(table_fit(place, plan).findings())["sex"]
    assert table_fit(f"{place}#encoding=cp1252", plan).rows.n_used == 20


def test_a_node_tells_its_owner_shares_and_no_cell(write_file: WriteFile) -> None:
    """What a node says when it starts may stand in a log: shares and names of columns, no text of a row."""
    place, said = str(write_file("a.csv", ODD_TABLE.encode())), list[tuple[str, str]]()

    def tell(text: str, level: str = "INFO") -> None:
        said.append((level, text))

    log_fit(place, OTHERWISE, tell)
    assert said[0][0] == "WARNING" and said[0][1].startswith("a.csv: 0 of 100 rows used.")
    assert all("private" in line or "hedgerow check" in line for _, line in said)
    assert not any(text in " ".join(line for _, line in said) for text in ("'M'", "'F'", "Medicine", "<11"))
