"""A line of a CSV is a record by itself: whatever stands in it, the records of all other lines stay what they are."""

from __future__ import annotations

import csv
import gzip
import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import hedgerow.data.lines
import hedgerow.data.tables
from hedgerow.data.tables import CsvTable
from hedgerow.errors import DataError

SEPARATORS = ",;\t|"
NAMES = ["a", "b", "c"]
PIECES = [
    '"', '"', '""', ",", ",", ",,", ";", "\t", "|", "a", "5", " ", "\\", "'", "1", '"x"', '"x",', ',"', "\u2028",
    "\x1a", "#", "\x00", "\r", "é", "\x85", "\x0c", "\ufeff", "p,1,a", "p,2,b", "x" * 40, "y" * 500,
]  # fmt: skip
UNICODE, BYTES = st.sampled_from(PIECES), st.sampled_from([b"\xff", b"\xe9", b"\xc3", b"\xef\xbb\xbf", b"\x80"])
LINES = st.lists(st.lists(st.one_of(UNICODE.map(str.encode), BYTES), max_size=7).map(b"".join), max_size=8)
HALVES = st.sampled_from(["\ud800", "\udc00"])
TEXTS = st.lists(st.lists(st.one_of(UNICODE, HALVES), max_size=7).map("".join), max_size=8)
BLOCKS = st.sampled_from([2, 7, 16, 50, 130])
MOST = 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lines")


@pytest.fixture(autouse=True, scope="module")
def short_lines() -> Iterator[None]:
    """Lines beyond the length that a record may have are short ones here."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (hedgerow.data.lines, hedgerow.data.tables):
            patch.setattr(module, "MAX_BYTES", MOST)
        yield


def read(place: Path, content: bytes, declaration: str = "", k: int = 0, block: int = 130) -> tuple[list[Any], Any]:
    """The records, and what was counted."""
    place.write_bytes(gzip.compress(content, 0) if place.suffix == ".gz" else content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hedgerow.data.tables, "_BLOCK_BYTES", block)
        patch.setattr(hedgerow.data.tables, "_BYTES_PER_COLUMN", block // len(NAMES))
        table = CsvTable(f"{place}{declaration}")
        table.line_breaks = k
        left_out: dict[str, int] = {}
        batches = [[column.to_pylist() for column in batch] for batch in table.batches(NAMES, 3, left_out)]
        rows = [row for batch in batches for row in zip(*batch, strict=True)]
    assert left_out.get("data-ragged-row", 0) == sum(table.lines.n_fields.values())
    return rows, table.lines


def by_hand(line: bytes, separator: int, end: bytes = b"\n") -> list[bytes]:
    """The cells of a line, byte by byte; another way to the same rules."""
    cells, cell, state = [], bytearray(), "begin"
    for byte in line.removesuffix(b"\r"):
        if state == "closed" and byte == ord('"'):
            cell.append(byte)
            state = "quoted"
        elif state == "quoted" and byte == ord('"'):
            state = "closed"
        elif state == "begin" and byte == ord('"'):
            state = "quoted"
        elif state != "quoted" and byte == separator:
            cells.append(bytes(cell))
            cell, state = bytearray(), "begin"
        else:
            cell.append(byte)
            state = "quoted" if state == "quoted" else "plain"
    return [*cells, bytes(cell)]


def expected(lines: list[bytes], separator: str) -> tuple[list[Any], Counter[str]]:
    rows, counts = [], Counter[str]()
    for line in lines:
        cells = by_hand(line, ord(separator))
        if len(line) > MOST:
            counts["ragged"] += 1
        elif line in (b"", b"\r"):
            counts["blank"] += 1
        elif len(cells) == len(NAMES):
            rows.append(tuple(cells))
        else:
            counts["ragged"] += 1
    return rows, counts


def checked(found: tuple[list[Any], Any], lines: list[bytes], separator: str) -> None:
    rows, counts = expected(lines, separator)
    assert found[0] == rows
    assert (found[1].n_blank, sum(found[1].n_fields.values())) == (counts["blank"], counts["ragged"])
    assert found[1].n_lines == len(lines)


FILES = st.tuples(st.sampled_from(["a.csv", "a.csv.gz"]), st.sampled_from(["\n", "\r\n"]))


@given(LINES, st.sampled_from(SEPARATORS), FILES, BLOCKS)
def test_each_line_is_a_record_by_itself(
    folder: Path, lines: list[bytes], separator: str, file: tuple[str, str], block: int
) -> None:
    """Added, dropped or changed, a line has no say in the record of any other one: each is cut alone, by the header."""
    name, end = file
    lines = [line.replace(b",", separator.encode()) for line in lines]
    lines = [line + end.encode() for line in lines]
    content = separator.join(NAMES).encode() + end.encode() + b"".join(lines)
    checked(read(folder / name, content, block=block), [line[:-1] for line in lines], separator)


@given(LINES, BLOCKS)
def test_a_strict_reading_has_a_record_for_each_line_or_names_the_first(
    folder: Path, lines: list[bytes], block: int
) -> None:
    """As predictions are made: a row for each line that is not blank, or the first that has none is named."""
    kinds = [expected([line], ",")[1] for line in lines]
    ragged = [kind["ragged"] for kind in kinds if not kind["blank"]]
    (place := folder / "h.csv").write_bytes(b"\n".join([b"a,b,c", *lines, b""]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hedgerow.data.tables, "_BLOCK_BYTES", block)
        patch.setattr(hedgerow.data.tables, "_BYTES_PER_COLUMN", block // len(NAMES))
        table, n_rows, fault = CsvTable(str(place)), 0, None
        try:
            n_rows = sum(len(batch[0]) for batch in table.batches(NAMES, 3, None))
        except DataError as error:
            fault = error
    if any(ragged):
        assert fault is not None and fault.code == "data-ragged-row"
        assert f"data row {ragged.index(1) + 1}:" in fault.what
    elif ragged:
        assert fault is None and n_rows == len(ragged) == len(lines) - table.lines.n_blank
    else:
        assert fault is not None and fault.code == "data-empty"


@given(LINES, st.sampled_from(SEPARATORS), BLOCKS)
def test_each_line_of_a_national_encoding_is_a_record(
    folder: Path, lines: list[bytes], separator: str, block: int
) -> None:
    """Of Windows-1252 each byte is a character, and its lines are cut as those of UTF-8."""
    content = b"\n".join([separator.join(NAMES).encode(), *lines, b""])
    table = [bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in range(256)]
    as_utf8 = ["".join(table[byte] for byte in line).encode() for line in lines]
    checked(read(folder / "b.csv", content, "#encoding=cp1252", block=block), as_utf8, separator)


@given(TEXTS, st.sampled_from(["utf-16-le", "utf-16-be"]), st.sampled_from([2, 6, 16, 50, 130]))
def test_each_line_of_utf_16_is_a_record(folder: Path, lines: list[str], encoding: str, block: int) -> None:
    """What is no character, such as half of one, is replaced within its own cell."""
    content = "\n".join(["\ufeff" + ",".join(NAMES), *lines, ""]).encode(encoding, "surrogatepass")
    as_utf8 = [line.encode(encoding, "surrogatepass").decode(encoding, "replace").encode() for line in lines]
    checked(read(folder / "c.csv", content, block=block), as_utf8, ",")


@given(LINES, BLOCKS)
def test_a_line_may_end_in_cr(folder: Path, lines: list[bytes], block: int) -> None:
    """Where the header does, as old systems write, a CR ends a line, and an LF does as well."""
    lines = [line.replace(b"\r", b"") for line in lines]
    checked(read(folder / "d.csv", b"\r".join([b"a,b,c", *lines, b""]), block=block), lines, ",")


@given(st.lists(st.text('",a\n', max_size=5), min_size=3, max_size=3), LINES, LINES, st.integers(1, 3), BLOCKS)
def test_declared_line_breaks_are_taken(
    folder: Path, cells: list[str], before: list[bytes], after: list[bytes], k: int, block: int
) -> None:
    """A record that a program wrote is read as it is, if its cells hold few enough line breaks, and its neighbours are
    records by themselves."""
    plain = [[line for line in lines if b'"' not in line] for lines in (before, after)]
    stream = io.StringIO(newline="")
    csv.writer(stream, lineterminator="\n", quoting=csv.QUOTE_ALL).writerow(["k", *cells[1:]])
    written = stream.getvalue().encode()
    rows, counts = read(folder / "e.csv", b"\n".join([b"a,b,c", *plain[0], written, *plain[1], b""]), "", k, block)
    around = [expected(lines, ",")[0] for lines in plain]
    own = [("k", *cells[1:])]
    n_breaks = written.count(b"\n") - 1
    # A line in which a mark stands behind a comma may as well begin a cell, and is taken for that.
    if n_breaks <= k and not any(',"' in f'{cell}"' for cell in cells):
        assert rows == [*around[0], *[tuple(cell.encode() for cell in row) for row in own], *around[1]]
        assert counts.n_joined == n_breaks
    assert rows[: len(around[0])] == around[0]


OPENING = st.lists(
    st.sampled_from([b'"', b'""', b",", b'"x', b'x"', b'","', b'p,"', b'p,1,"q', b'r"', b"p,1,a", b'",1', b'",1,2']),
    max_size=4,
).map(b"".join)
CHAIN = [b'%d,,"' % number for number in range(8)]
"""Each may end a cell and begin another: taken in pairs, one line more would part all pairs behind it."""


@given(st.lists(OPENING, max_size=9), OPENING, st.integers(0, 9), st.integers(1, 3), BLOCKS)
@example(CHAIN, b'9,,"', 0, 1, 130)
def test_with_line_breaks_one_line_has_a_say_in_few_records(
    folder: Path, lines: list[bytes], line: bytes, at: int, k: int, block: int
) -> None:
    """With k line breaks, a line that comes or goes takes or adds 2k + 2 records at most: what reports count with."""
    found = [
        Counter(read(folder / "f.csv", b"\n".join([b"a,b,c", *own, b""]), "", k, block)[0])
        for own in (lines, [*lines[:at], line, *lines[at:]])
    ]
    assert sum(((found[0] - found[1]) + (found[1] - found[0])).values()) <= 2 * k + 2


@given(st.lists(OPENING, max_size=9), st.integers(1, 3), st.sampled_from([2, 7, 16]))
@example(CHAIN, 1, 7)
def test_blocks_have_no_say_in_records(folder: Path, lines: list[bytes], k: int, block: int) -> None:
    """Where a file is cut for reading changes nothing, also where cells go on over lines."""
    content = b"\n".join([b"a,b,c", *lines, b""])
    assert read(folder / "g.csv", content, "", k, block) == read(folder / "g.csv", content, "", k)


def test_a_block_has_rows_enough_however_many_columns_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what is done for each column of each block makes a table of thousands of columns take minutes."""
    monkeypatch.setattr(hedgerow.data.tables, "_BLOCK_BYTES", 64)
    path, names = tmp_path / "wide.csv", [f"x{number}" for number in range(40)]
    path.write_text("\n".join([",".join(names), *[",".join(["0.25"] * 40)] * 200]) + "\n")
    assert [len(batch[0]) for batch in CsvTable(str(path)).batches(names, 1000, None)] == [200]
