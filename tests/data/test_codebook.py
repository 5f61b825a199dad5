"""Code books: what a study has written down about its columns goes into a draft, and nothing else does."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from hedgerow.cli.main import main
from hedgerow.data.drafts import draft_plan, read_codebook
from hedgerow.errors import UsageError
from hedgerow.plan.draft import Entry
from hedgerow.plan.plan import parse_plan

WriteFile = Callable[[str, bytes], Path]

TABLE = b"patient_id,age,sex,dose,creatinine,sick\n7,41,1,0.5,1.1,0\n8,77,2,2.5,0.9,1\n"
OWN = b"""name,type,min,max,categories,unit
age,integer,18,110,,years
sex,categorical,,,2|1|9,
dose,numeric,0,2.5,,mg
sick,binary,,,0|1,
elsewhere,numeric,0,1,,
"""
REDCAP = b""""Variable / Field Name","Form Name","Section Header","Field Type","Field Label",\
"Choices, Calculations, OR Slider Labels","Field Note","Text Validation Type OR Show Slider Number",\
"Text Validation Min","Text Validation Max",Identifier?
patient_id,base,,text,"Study ID",,,,,,y
age,base,,text,Age,,,integer,18,110,
sex,base,,radio,Sex,"2, female | 1, male | 9, not known",,,,,
dose,base,,text,Dose,,,number,0,2.5,
born,base,,text,"Date of birth",,,date_ymd,1900-01-01,2030-01-01,
symptoms,base,,checkbox,Symptoms,"1, fever | -2, other",,,,,
sick,base,,yesno,Sick,,,,,,
remark,base,,notes,Remarks,,,,,,
"""


@pytest.mark.parametrize("book", [OWN, REDCAP, OWN.replace(b",", b";"), b"\xef\xbb\xbf" + OWN], ids=range(4))
def test_a_draft_takes_what_the_book_says(book: bytes, write_file: WriteFile) -> None:
    """What the book has is confirmed already; what it lacks is asked for, and no cell decides anything."""
    entries = read_codebook(str(write_file("book.csv", book)))
    draft = draft_plan(write_file("a.csv", TABLE), "sick", codebook=entries)
    table = tomllib.loads(draft)
    age, sex, dose, creatinine = table["features"]
    assert age == {"name": "age", "type": "numeric", "integer": True, "min": 18, "max": 110}
    assert sex == {"name": "sex", "type": "categorical", "categories": ["1", "2", "9"]}
    assert dose == {"name": "dose", "type": "numeric", "min": 0, "max": 2.5}
    assert table["label"] == {"name": "sick", "type": "binary", "classes": ["0", "1"]}
    assert creatinine == {"name": "creatinine"}
    assert 'Left out: "patient_id"' in draft and '# unit = "patient_id"' in draft


def test_a_draft_does_not_choose_whom_to_protect(write_file: WriteFile) -> None:
    """Names of rows and of visits are identifiers too: each stands in a comment, and a person takes the person's."""
    draft = draft_plan(write_file("a.csv", b"rownames,encounter_id,patient_nbr,age,sick\n1,2,3,4,0\n"), "sick")
    assert re.findall('# unit = "(.*)"', draft) == ["rownames", "encounter_id", "patient_nbr"]


@pytest.mark.parametrize("rest", [b"sex,categorical\n", b"x" * 200_000])
def test_a_quotation_mark_that_is_never_closed_is_named(rest: bytes, write_file: WriteFile) -> None:
    """Else the rows behind it would be missing from the book, and nobody told."""
    path = write_file("book.csv", b'name,type,unit\nage,numeric,"two\nlines"\ndose,"numeric,mg\n' + rest)
    with pytest.raises(UsageError) as caught:
        read_codebook(str(path))
    assert caught.value.code == "codebook-field" and "row 3" in caught.value.what
    assert list(read_codebook(str(write_file("b.csv", path.read_bytes().split(b"dose")[0])))) == ["age"]


def test_redcap_fields_become_the_columns_of_its_exports(write_file: WriteFile) -> None:
    """A checkbox is a column for each choice, a date has bounds; free texts have none that a plan could take."""
    entries = read_codebook(str(write_file("book.csv", REDCAP)))
    assert entries["symptoms___1"] == entries["symptoms____2"] == Entry("categorical", categories=("0", "1"))
    assert entries["born"] == Entry("date", False, -25_567.0, 21_915.0) and entries["remark"].kind == "identifier"


def test_an_own_book_needs_names_only(write_file: WriteFile) -> None:
    """A type follows from the fields that are there; decimal commas and other separators are read as in tables."""
    book = b"name;min;max;categories\na;0,5;1,5;\nb;;;x|y\nc;;;\n"
    entries = read_codebook(str(write_file("book.csv", book)))
    assert entries == {
        "a": Entry("numeric", False, 0.5, 1.5), "b": Entry("categorical", categories=("x", "y")), "c": Entry(),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("book", "code"),
    [(b"column,low\na,1\n", "codebook-header"), (b"name,min\na,low\n", "codebook-field"),
     (b"name,type\na,colour\n", "codebook-field"),
     (b"name,type,min\na,date,1.1.2020\n", "codebook-field")],
)  # fmt: skip
def test_what_is_no_book_is_refused(book: bytes, code: str, write_file: WriteFile) -> None:
    """With the row, and what may stand there."""
    with pytest.raises(UsageError) as caught:
        read_codebook(str(write_file("book.csv", book)))
    assert caught.value.code == code


def test_the_command(write_file: WriteFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a book that knows all columns, three lines are left to a person."""
    table, book = write_file("a.csv", TABLE), write_file("book.csv", OWN + b"creatinine,numeric,0,20,,mg/dL\n")
    out = tmp_path / "plan.toml"
    assert main(["plan", "init", str(table), "--label", "sick", "--codebook", str(book), "--out", str(out)]) == 0
    assert "the 2 lines marked FILL IN" in " ".join(capsys.readouterr().err.split())
    text = out.read_text().replace("# delta =  ", "delta = 1e-6").replace("# n_records =", "n_records = 100")
    assert [feature.name for feature in parse_plan(text).features] == ["age", "sex", "dose", "creatinine"]
