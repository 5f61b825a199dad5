"""CSV as people have it: other separators, decimal commas, national encodings. What is meant follows from no row."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hedgerow.app.inputs import parse_sites
from hedgerow.data.adapters import read_adapter
from hedgerow.data.declarations import Declared, parse_declaration, without_declaration
from hedgerow.data.drafts import draft_plan
from hedgerow.data.lines import read_header
from hedgerow.data.raw_cells import read_raw
from hedgerow.data.sources import adapt, column_names, file_ending, open_table, read_records
from hedgerow.data.units import Records, concatenate
from hedgerow.errors import DataError, UsageError
from hedgerow.local.survey import list_asked_columns
from hedgerow.plan.plan import Feature, Plan
from tests.builders import coded

WriteFile = Callable[[str, bytes], Path]

ROWS = [("31", "70.5", "Köln", "no"), ("32", "NA", "Łódź", "yes"), ("", "-0.25", "Oslo", "no")]
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "iso8859-2", "cp1250"]


def plan() -> Plan:
    return Plan.from_dict(
        {
            "version": 1,
            "privacy": {"epsilon": 1, "delta": 1e-6, "n_records": 100},
            "label": {"name": "krank", "type": "binary", "classes": ["no", "yes"]},
            "features": [
                {"name": "alter", "type": "numeric", "min": 0, "max": 100},
                {"name": "größe", "type": "numeric", "min": 0, "max": 100},
                {"name": "ort", "type": "categorical", "categories": ["Köln", "Łódź"]},
            ],
        }
    )


def table(separator: str, decimal: str, head: str = "") -> str:
    lines = [("alter", "größe", "ort", "krank"), *((a, b.replace(".", decimal), c, d) for a, b, c, d in ROWS)]
    return head + "".join(separator.join(line) + "\r\n" for line in lines)


def read(location: str | Path, **options: dict[str, int] | None) -> Records:
    return concatenate(read_records(location, plan(), **options))  # type: ignore[arg-type]


def as_expected(records: Records) -> bool:
    age, weight, town = records.features
    return (
        [value for value in age.tolist() if not math.isnan(value)] == [31, 32]
        and weight.tolist()[::2] == [70.5, -0.25]
        and math.isnan(weight[1])
        and town.tolist() == [0, 1, -1]
        and records.label is not None
        and records.label.tolist() == [0, 1, 0]
    )


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("is_packed", [False, True], ids=["csv", "csv.gz"])
@pytest.mark.parametrize(
    ("separator", "decimal", "head"),
    [(",", ".", ""), (";", ",", ""), (";", ".", ""), ("\t", ".", ""), ("|", ".", "\r\n"), (";", ",", "sep=;\r\n")],
    ids=["comma", "semicolon", "semicolon-point", "tab", "pipe-after-empty-line", "sep-line"],
)
def test_every_dialect_gives_the_same_records(
    separator: str, decimal: str, head: str, encoding: str, is_packed: bool, write_file: WriteFile
) -> None:
    """One table, however a spreadsheet has saved it; encodings without a mark are declared behind the name."""
    content = table(separator, decimal, head).encode(encoding)
    path = write_file("a.csv.gz" if is_packed else "a.csv", gzip.compress(content) if is_packed else content)
    location = f"{path}#encoding={encoding}" if encoding in ("iso8859-2", "cp1250") else path
    assert as_expected(read(location))


def test_what_a_header_does_not_say_is_declared(write_file: WriteFile) -> None:
    """Decimal commas between tabs, and a comma as the separator where a header has more of another sign."""
    path = write_file("a.csv", table("\t", ",").encode("utf-8"))
    assert as_expected(read(f"{path}#decimal=comma"))
    with pytest.raises(DataError) as caught:
        read(path)
    assert caught.value.code == "data-wrong-type" and "decimal=comma" in caught.value.remedy
    odd = write_file("b.csv", b"a;1;2,b\n1,2\n")
    assert column_names(odd) == ["a", "1", "2,b"]
    assert column_names(f"{odd}#separator=comma") == ["a;1;2", "b"]


@pytest.mark.parametrize(
    ("cell", "value"),
    [(b"3,5", 3.5), (b"3.5", 3.5), (b" -,5 ", -0.5), (b"1,5E1", 15.0), (b"7", 7.0), (b"", math.nan)],
)
def test_a_decimal_comma_is_read_cell_by_cell(cell: bytes, value: float, write_file: WriteFile) -> None:
    """A point stays a point where commas are expected; a cell with both is no number, and its row alone is left out."""
    content = "alter;größe;ort;krank\n".encode() + b"1;" + cell + b";x;no\n2;1.234,5;x;no\n3;1,2,3;x;no\n"
    left_out: dict[str, int] = {}
    records = read(write_file("a.csv", content), left_out=left_out)
    assert repr(records.features[1].tolist()) == repr([value])
    assert left_out == {"data-wrong-type": 2}


def test_latin_1_has_the_characters_of_windows(write_file: WriteFile) -> None:
    """Every byte of Windows-1252 is a character, also those that it leaves open, so no row is left out for one."""
    header = "alter,größe,ort,krank\n".encode("cp1252")
    cells = b"".join(b"1,2,\x80" + bytes([byte]) + b",no\n" for byte in range(128, 256))
    path = write_file("a.csv", header + cells)
    for encoding in ("latin-1", "cp1252", "windows-1252"):
        left_out: dict[str, int] = {}
        assert read(f"{path}#encoding={encoding}", left_out=left_out).n_records == 128 and not left_out


CELLS = st.text('0123456789.,;|\t" \n\rabÄ€', max_size=6)


NAMES = st.text(st.sampled_from('ab,;\t|"([ Ä€'), min_size=1, max_size=12).filter(str.strip)


@given(
    prelude=st.sampled_from(["", "\n", "\r\n", " \r\n\r", "sep=;\n", "sep=;\r\n", "sep=;\r"]),
    header=NAMES,
    end=st.sampled_from(["\n", "\r", "\r\n"]),
    rows=st.lists(st.text(st.sampled_from('0123456789.,;|\t" \n\rabÄ€'), max_size=30), max_size=5),
)
@example(prelude="", header='id,age,"note', end="\n", rows=["1,30,x", '4,60,"'])
@example(prelude="sep=;\n", header="id;age", end="\r", rows=["1;30\r2;40", "3;50"])
def test_no_row_decides_how_a_file_is_read(prelude: str, header: str, end: str, rows: list[str]) -> None:
    """How a file is written, what its columns are called and where its rows begin follow from its header's line and
    what stands before it, whatever marks that line or a row leaves open: else one row could take all others away."""
    first = f"{prelude}{header}{end}x"
    alone, found = (read_header(text.encode(), Declared()) for text in (first, first + end.join(rows)))
    assert found == alone
    assert not any(mark in name for name in found.names for mark in "\r\n")


@pytest.mark.parametrize("end", [b"\n1,2\n", b'\nbreak; or two",c\n1,2,3\n'])
def test_a_name_that_its_line_does_not_close_is_refused(end: bytes, write_file: WriteFile) -> None:
    """Which line closes it would be for the rows to say."""
    with pytest.raises(DataError) as caught:
        column_names(write_file("a.csv", b'a,"line' + end))
    assert caught.value.code == "data-unknown-format"


def is_record(header: str) -> bool:
    return read_header(f"{header}\n".encode(), Declared()).is_record


@given(
    cells=st.lists(st.floats(-1e4, 1e4).map(lambda value: f"{value:.1f}"), min_size=1),
    separator=st.sampled_from(",;\t|"),
)
def test_a_record_is_no_header(cells: list[str], separator: str) -> None:
    """What stands in a file without a header's first line is one person's: it becomes no name, and is not swallowed."""
    assert is_record(separator.join([*cells, "yes"][: len(cells)]))
    assert is_record(separator.join([*cells, "1", "1", "0"]))


@pytest.mark.parametrize(
    "header",
    [
        "A11 6 A34 A43 1169 A65 A75 4 A93 A101",
        '"""age"";""job"";""a"";""b"";""c"";""d"";""e"";""f"";""g"";""y"""',
        "5.1,3.5,1.4,0.2,Iris",
    ],
)
def test_a_header_that_nothing_cuts_is_refused(header: str, write_file: WriteFile) -> None:
    """Blanks, and whole lines in quotation marks, separate no names."""
    with pytest.raises(DataError) as caught:
        column_names(write_file("a.csv", f"{header}\n{header}\n".encode()))
    assert caught.value.code == "data-unknown-format"


@pytest.mark.parametrize(
    "header", ["0,1,2,3", "id,2019,2020,2021", "4019,4280,42731,died", "blood pressure", "x,,", "X1,X2,Y"]
)
def test_years_codes_and_positions_are_names(header: str) -> None:
    """Whole numbers without a sign, no two alike, are names of columns, as pandas and code lists have them."""
    assert not is_record(header)


def test_a_site_may_be_named_with_what_is_declared() -> None:
    """On the command line the name before "=", the file, and the declaration behind it."""
    declaration = "#separator=tab,encoding=cp1252"
    assert parse_sites([f"a.csv{declaration}", f"south=/data/b.csv.gz{declaration}"]) == {
        "a": f"a.csv{declaration}",
        "south": f"/data/b.csv.gz{declaration}",
    }
    assert file_ending(f"a.csv{declaration}") == ".csv"


def test_a_file_may_bear_its_declaration_as_its_name(write_file: WriteFile) -> None:
    """Tables that arrive in a folder have nobody who names them on a command line."""
    path = write_file("a.csv#encoding=cp1250", table(";", ",").encode("cp1250"))
    assert without_declaration(str(path)) == (str(path), "encoding=cp1250")
    assert as_expected(read(path))


@pytest.mark.parametrize(
    "text",
    [
        "skip=-1", "skip=99999", "repeated=yes", "encoding=klingon", "encoding=utf-32", "encoding=cp037", "decimal=dot",
        "separator=;", "encoding=cp1252,x=1",
    ],
)
def test_a_declaration_that_says_nothing_is_refused(text: str, write_file: WriteFile) -> None:
    """A misspelled declaration is no part of a file's name."""
    with pytest.raises(UsageError) as caught:
        column_names(f"{write_file('a.csv', b'a,b')}#{text}")
    assert caught.value.code == "csv-declaration"


TITLES = st.lists(st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), max_size=12), min_size=1, max_size=4)


@given(titles=TITLES, end=st.sampled_from(["\n", "\r\n", "\r"]), marked=st.booleans())
def test_titles_before_the_header_are_skipped(
    titles: list[str], end: str, marked: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """However many lines a table has above its header, declared away it is the table without them."""
    lines = ["age,ward", "30,north", "40,south"]
    path = tmp_path_factory.mktemp("titles") / "a.csv"
    path.write_bytes((b"\xef\xbb\xbf" if marked else b"") + end.join([*titles, *lines, ""]).encode())
    place = f"{path}#skip={len(titles)}"
    found = open_table(place)
    assert found.names() == ["age", "ward"]
    (batch,) = found.batches(["age", "ward"], 10, None)
    assert [column.to_pylist() for column in batch] == [[b"30", b"40"], [b"north", b"south"]]


@given(names=st.lists(st.sampled_from(["a", "b", "c", "a.1", "b.2"]), min_size=1, max_size=6))
def test_columns_of_one_name_are_told_apart_by_their_numbers(
    names: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each column of a repeated name can be read by its number, or is refused where that is a name already."""
    path = tmp_path_factory.mktemp("names") / "a.csv"
    path.write_text("\n".join([",".join(names), ",".join(f"v{at}" for at in range(len(names))), ""]))
    found = open_table(f"{path}#repeated=number")
    for at, (name, own) in enumerate(zip(names, found.names(), strict=True)):
        assert own == (f"{name}.{names[:at].count(name) + 1}" if names.count(name) > 1 else name)
        if found.names().count(own) > 1:
            with pytest.raises(DataError, check=coded("data-duplicate-column")):
                list(found.batches([own], 10, None))
        else:
            ((column,),) = found.batches([own], 10, None)
            assert column.to_pylist() == [f"v{at}".encode()]


def test_an_adapter_skips_titles_and_numbers_names(tmp_path: Path) -> None:
    """What stands behind a file's name may stand in a site's own file, before its `rename`."""
    (tmp_path / "a.csv").write_text("Ward round, 2026\nbp,bp,age\n1,2,3\n")
    (tmp_path / "own.toml").write_text('[data]\nskip = 1\nrepeated = "number"\nrename = {"bp.2" = "systolic"}\n')
    place = adapt(str(tmp_path / "a.csv"), read_adapter(str(tmp_path / "own.toml")))
    assert column_names(place) == ["bp.1", "systolic", "age"]
    (batch,) = open_table(place).batches(["systolic", "age"], 10, None)
    assert [column.to_pylist() for column in batch] == [[b"2"], [b"3"]]


def test_a_declaration_names_what_it_names() -> None:
    """What it leaves open follows from the header."""
    assert parse_declaration("") == Declared()
    assert parse_declaration("decimal=point,encoding=Latin-1") == Declared(None, False, "cp1252")


@pytest.mark.parametrize(
    ("header", "separator", "names"),
    [
        (b'"age","hb","sex","answer (a;b;c;d;e;f)"', ",", ["age", "hb", "sex", "answer (a;b;c;d;e;f)"]),
        (b"age,hb,answer (a;b;c;d;e;f)", ",", ["age", "hb", "answer (a;b;c;d;e;f)"]),
        (b'age;"weight, kg";"height, cm"', ";", ["age", "weight, kg", "height, cm"]),
        ("größe;dosis [0,5 mg];ort".encode(), ";", ["größe", "dosis [0,5 mg]", "ort"]),
        (b"age|a;b|c|d", "|", ["age", "a;b", "c", "d"]),
        (b'a\t"b,c,d,e"\tf', "\t", ["a", "b,c,d,e", "f"]),
        (b'"sep=;"\na;b,c,d', ";", ["a", "b,c,d"]),
        (b'"a ""q"" (x)",b', ",", ['a "q" (x)', "b"]),
        (b" \n\r\n\na,b", ",", ["a", "b"]),
        (b"# made by hand", ",", ["# made by hand"]),
    ],
)
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\n1,2\n"])
def test_a_quoted_name_is_one_field(
    header: bytes, separator: str, names: list[str], end: bytes, write_file: WriteFile
) -> None:
    """Quotation marks and brackets are looked through; blank lines may stand first."""
    path = write_file("a.csv", header + end)
    assert column_names(path) == names
    assert read_header(path.read_bytes(), Declared()).separator == separator


@pytest.mark.parametrize("header", [b"age,hb,answer a;b;c", b"a|b,c", b"a\tb;c\td;e"])
def test_a_header_that_two_separators_cut_is_refused(header: bytes, write_file: WriteFile) -> None:
    """Whichever was guessed, half the names might be wrong; the advice is a declaration, and it works."""
    path = write_file("a.csv", header + b"\n1,2\n")
    with pytest.raises(DataError) as caught:
        column_names(path)
    assert caught.value.code == "data-unknown-format"
    advice = [word.rstrip(",.") for word in caught.value.remedy.split() if word.startswith("#")]
    assert len(advice) == 2
    for declaration in advice:
        separator = parse_declaration(declaration[1:]).separator
        assert separator is not None
        assert column_names(f"{path}{declaration}") == header.decode().split(separator)


@pytest.mark.parametrize("ending", [".tsv", ".txt", ".data", ".TSV", ".tsv.gz", ".txt.gz", ".data.gz"])
def test_endings_of_tables_in_lines(ending: str, write_file: WriteFile) -> None:
    """A table is read by its header, whichever of their usual endings it has."""
    content = table("\t", ".").encode()
    path = write_file(f"a{ending}", gzip.compress(content) if ending.endswith(".gz") else content)
    assert as_expected(read(path)) and file_ending(path.name) == ending.lower()


@pytest.mark.parametrize("name", ["a.csv", "a.txt", "a.csv.gz"])
@pytest.mark.parametrize(
    "content",
    [b"PK\x03\x04\x14\x00", b"\xd0\xcf\x11\xe0\xa1", gzip.compress(b"a,b\n", mtime=0), b"PAR1\x15", b"%PDF-1.7"],
)
def test_a_file_of_another_kind_is_called_so(name: str, content: bytes, write_file: WriteFile) -> None:
    """A workbook that was renamed is no question of encodings."""
    path = write_file(name, gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(DataError) as caught:
        column_names(path)
    assert caught.value.code == "data-unknown-format" and str(path) in caught.value.what


def test_a_long_header_is_read_and_an_endless_one_refused(write_file: WriteFile) -> None:
    """Of 40,000 columns all are found; what has no line's end in 16 MB is no CSV."""
    names = [f"a column with quite a long name {number}" for number in range(40_000)]
    assert column_names(write_file("a.csv", ",".join(names).encode() + b"\n1,2\n")) == names
    quoted = ",".join(f'"{name}"' for name in [*names, "x" * 200_000]).encode()
    assert column_names(write_file("b.csv.gz", gzip.compress(quoted, 1)))[-1] == "x" * 200_000
    with pytest.raises(DataError) as caught:
        column_names(write_file("c.csv", b"x" * 17_000_000))
    assert caught.value.code == "data-corrupt"
    with pytest.raises(DataError) as caught:
        column_names(write_file("d.csv", "a,b\n1,2\n".encode("utf-16-le")))
    assert caught.value.code == "data-encoding"
    assert column_names(f"{write_file('e.csv', 'a,b'.encode('utf-16-le'))}#encoding=utf-16") == ["a", "b"]


def test_columns_of_one_name_that_nobody_needs_are_left_out(write_file: WriteFile) -> None:
    """A draft and a survey do without them; where one of them is asked for, it would be a guess which is meant."""
    path = write_file("a.csv", b"age,note,dead,note\n1,x,0,y\n2,x,1,y\n")
    assert 'name = "age"' in (draft := draft_plan(path, "dead")) and "note" not in draft
    columns, unread = list_asked_columns({"a": path}, {}, ())
    assert [column.name for column in columns] == ["age", "dead"] and unread == ("note",)
    assert read_raw(path, columns).n_rows == 2
    for ask in (
        lambda: draft_plan(path, "note"),
        lambda: list_asked_columns({"a": path}, {"note": Feature(name="note", type="")}, ()),
    ):
        with pytest.raises(DataError) as caught:
            ask()
        assert caught.value.code == "data-duplicate-column"
