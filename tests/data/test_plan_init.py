"""Drafting a plan: a draft gives nothing private away unasked, and once filled in it is a plan."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.app.fit import whose_rows
from hedgerow.cli.main import main
from hedgerow.data.drafts import draft_plan
from hedgerow.data.tables import CsvTable
from hedgerow.errors import DataError, PlanError, UsageError
from hedgerow.plan.plan import parse_plan
from tests.builders import coded

WriteFile = Callable[[str, bytes], Path]

TABLE = b"age,city,weight,sick\n41,Oslo,70.25,no\n,Rome,88.5,yes\n77,,61,no\n"


def test_a_draft_holds_no_value_of_the_table(write_file: WriteFile) -> None:
    """Bounds and categories are public inputs: not one leaves the file."""
    draft = draft_plan(write_file("a.csv", TABLE), "sick")
    for value in ("41", "77", "Oslo", "Rome", "70.25", "88.5", "61", '"no"', '"yes"'):
        assert value not in draft


CELLS = st.sampled_from(["", "0", "1", "41", "70.25", "-3", "Oslo", "yes", "unknown", "1e9"])


@given(tables=st.lists(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=6), min_size=2, max_size=2))
@settings(max_examples=60)
def test_nothing_in_a_draft_follows_from_the_cells(tables: list[list[tuple[str, ...]]], write_file: WriteFile) -> None:
    """Byte for byte a draft is the same for any two tables with this header, comments and all, and for the header."""
    drafts = [draft_plan(write_file("header.csv", b"age,city,sick\n"), "sick")]
    for number, rows in enumerate(tables):
        content = "age,city,sick\n" + "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows)
        drafts.append(draft_plan(write_file(f"{number}.csv", content.encode()), "sick"))
    assert drafts[0] == drafts[1] == drafts[2]


def test_a_draft_reads_no_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`plan init` says nothing of the rows, on the screen neither: it asks no table for a cell."""
    table = tmp_path / "a.csv"
    table.write_bytes(TABLE)
    monkeypatch.setattr(CsvTable, "batches", lambda *given: pytest.fail("a cell was read"))
    assert main(["plan", "init", str(table), "--label", "sick", "--out", str(tmp_path / "draft.toml")]) == 0


def test_a_header_alone_is_enough(write_file: WriteFile) -> None:
    """Who coordinates has no rows: a header without any gives the draft; a file without one is refused."""
    header = write_file("header.csv", TABLE.partition(b"\n")[0] + b"\n")
    draft = draft_plan(header, "sick")
    assert draft == draft_plan(write_file("a.csv", TABLE), "sick")
    with pytest.raises(DataError, check=coded("data-empty")):
        draft_plan(write_file("no.csv", b""), "sick")


def test_an_untouched_draft_names_each_line_that_waits(write_file: WriteFile) -> None:
    """A person is led from error to error, by the number of a line, until there is a plan."""
    draft = draft_plan(write_file("a.csv", TABLE), "sick")
    answers = {
        "privacy.delta": "delta = 1e-6", "privacy.n_records": "n_records = 1000",
        "features[0].type": 'type = "numeric"', "features[1].type": 'type = "categorical"',
        "features[2].type": 'type = "numeric"', "label.type": 'type = "binary"',
        "features[0] (age).min": "min = 0", "features[0] (age).max": "max = 120",
        "features[1] (city).categories": 'categories = ["Oslo", "Rome"]',
        "features[2] (weight).min": "min = 30", "features[2] (weight).max": "max = 1100",
        "label.classes": 'classes = ["no", "yes"]',
    }  # fmt: skip
    for field, answer in answers.items():
        with pytest.raises(PlanError) as caught:
            parse_plan(draft)
        assert caught.value.what.startswith(field), caught.value.what
        lines = draft.splitlines()
        (number,) = re.findall(r"Line (\d+) waits for it", caught.value.remedy)
        assert re.match(rf"# {field.rpartition('.')[2]} = .*# FILL IN", lines[int(number) - 1])
        draft = "\n".join([*lines[: int(number) - 1], answer, *lines[int(number) :]])
    plan = parse_plan(draft)
    assert [feature.type for feature in plan.features] == ["numeric", "categorical", "numeric"]
    # Nobody has said that all ages are whole numbers.
    assert [feature.integer for feature in plan.features] == [False, False, False]
    assert "\n# integer = true" in draft
    assert plan.privacy.epsilon == 1.0


def test_all_lines_that_wait_are_named_at_once(write_file: WriteFile) -> None:
    """One look at a draft is enough: the first error lists every gap and its line, and none that is no gap."""
    draft = draft_plan(write_file("a.csv", TABLE), "sick").replace(
        'name = "weight"', 'name = "weight"\ntype = "categorical"'
    )
    with pytest.raises(PlanError) as caught:
        parse_plan(draft)
    lines = draft.splitlines()
    named = {int(number): field for field, number in re.findall(r"(\w+) in line (\d+)", caught.value.remedy)}
    (first,) = re.findall(r"Line (\d+) waits for it", caught.value.remedy)
    waiting = {
        number: line.split()[1] for number, line in enumerate(lines, start=1) if re.match(r"# \w+ = .*# FILL IN", line)
    }
    weight = lines.index('name = "weight"')
    idle = {number for number in waiting if weight < number <= weight + 6}
    expected = {number: field for number, field in waiting.items() if number != int(first) and number not in idle}
    assert named == expected
    assert "age (type" in caught.value.remedy and "label" not in caught.value.remedy


def test_columns_that_no_plan_can_use(write_file: WriteFile) -> None:
    """A nameless index, and names with marks that are not seen, are no features; a word says how many."""
    path = write_file("a.csv", b',flat,y,"a\tb","a\x01b"\n0,5,1,1,2\n')
    draft = draft_plan(path, "y")
    assert [feature["name"] for feature in tomllib.loads(draft)["features"]] == ["flat"]
    assert "3 column(s)" in draft


@given(
    names=st.lists(
        st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), min_size=1).map(str.strip),
        min_size=2,
        max_size=4,
        unique=True,
    ).filter(lambda names: all(names)),
    words=st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\x00"), max_size=6),
        min_size=2,
        max_size=4,
    ),
)
@settings(max_examples=60)
def test_any_names_and_values_survive_the_draft(names: list[str], words: list[str], write_file: WriteFile) -> None:
    """Quotes, commas, backslashes, and in cells control characters too, neither break a draft nor get lost."""
    *features, label = names
    rows = [names, *([word] * len(names) for word in words)]
    quoted = [['"' + cell.replace('"', '""') + '"' for cell in row] for row in rows]
    path = write_file("a.csv", "\n".join(",".join(row) for row in quoted).encode())
    table = tomllib.loads(draft_plan(path, label))
    assert table["label"]["name"] == label
    assert [feature["name"] for feature in table["features"]] == features


def test_what_cannot_be_drafted(write_file: WriteFile) -> None:
    """A label that is not there, a name used twice, nothing to predict from: each is said before any work is done."""
    with pytest.raises(DataError, match="'ill'") as caught:
        draft_plan(write_file("a.csv", TABLE), "ill")
    assert caught.value.code == "data-missing-column"
    with pytest.raises(DataError, check=coded("data-duplicate-column")):
        draft_plan(write_file("b.csv", b"a,y,y\n1,2,3\n"), "y")
    with pytest.raises(UsageError, check=coded("usage-no-features")):
        draft_plan(write_file("c.csv", b"y\n1\n"), "y")


def test_a_time_to_an_event(write_file: WriteFile) -> None:
    """The event is part of the label and no feature; the ends of the intervals wait for a person in any case."""
    path = write_file("a.csv", b"age,days,died\n41,100,no\n52,20,yes\n77,300,no\n")
    draft = draft_plan(path, ("days", "died"))
    assert [one["name"] for one in tomllib.loads(draft)["features"]] == ["age"]
    answers = {"delta": "1e-6", "n_records": "1000", "type": '"numeric"', "min": "0", "max": "120"}
    for field, answer in answers.items():
        draft = re.sub(rf"# {field} = +#", f"{field} = {answer}   #", draft, count=1)
    with pytest.raises(PlanError, match="intervals"):
        parse_plan(draft)
    plan = parse_plan(draft.replace("# intervals =   #", "intervals = [100, 200]   #"))
    assert plan.label.event == "died" and plan.label.intervals == (100, 200)
    with pytest.raises(DataError, check=coded("data-missing-column")) as caught:
        draft_plan(path, ("days", "dead"))
    assert "'dead'" in caught.value.what
    with pytest.raises(UsageError, match="same column"):
        draft_plan(path, ("days", "days"))


def test_the_lines_of_a_draft_fit_a_page(write_file: WriteFile) -> None:
    """But for those that hold what the table or a code book says."""
    for label in ("sick", "weight"):
        assert max(map(len, draft_plan(write_file("a.csv", TABLE), label).splitlines())) <= 120


def test_a_draft_says_whom_its_noise_trusts(tmp_path: Path) -> None:
    """Whoever leaves the drafted line as it is has read whom everybody trusts by it."""
    (tmp_path / "t.csv").write_text("a,y\n1,0\n2,1\n", encoding="ascii")
    text = draft_plan(tmp_path / "t.csv", "y")
    assert '\nnoise = "distributed"\n' in text


def test_repeating_people_are_asked_about_on_the_owners_screen_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A column whose values come again as people's do is named to its owner by `check`, with the way to protect
    people; a plan that protects them already is left in peace."""
    table, plan = tmp_path / "table.csv", tmp_path / "plan.toml"
    lines = [f"k{row % 300},{row % 7},{row}.5,{row % 2}" for row in range(900)]
    table.write_text("\n".join(["whom,ward,cost,ill", *lines]) + "\n", encoding="utf-8")
    rows = """version = 1
[privacy]
epsilon = 1
delta = 1e-5
n_records = 900
[[features]]
name = "ward"
type = "numeric"
min = 0
max = 6
[label]
name = "ill"
type = "binary"
classes = [0, 1]
"""
    for text, is_asked in ((rows, True), (rows.replace("n_rec", 'unit = "whom"\nmax_rows_per_unit = 3\nn_rec'), False)):
        plan.write_text(text, encoding="utf-8")
        assert main(["check", str(plan), str(table)]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert ("whom (900 values, 300 different)" in said) == is_asked and "cost (" not in said


def test_a_unit_that_is_called_as_the_word_for_each_row(tmp_path: Path) -> None:
    """With `unit = "record"` a column of that name protects nobody who has several rows, and its owner is told so."""
    lines = [f"{person},{person % 7}" for person in range(300) for _ in range(3)]
    said = {}
    for name in ("record", "whom"):
        table = tmp_path / f"{name}.csv"
        table.write_text("\n".join([f"{name},ward", *lines]) + "\n", encoding="utf-8")
        said[name] = whose_rows(str(table), [name, "ward"])
    assert "another name" in said["record"] and said["whom"] and "another name" not in said["whom"]
