"""Reading a site's table: what comes out for good data, and the one clear error for each kind of bad data."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.data import tables
from hedgerow.data.columns import Place, category_indices, identifiers, numbers
from hedgerow.data.lines import MAX_BYTES
from hedgerow.data.sources import column_names, read_records
from hedgerow.data.tables import MAX_PAGE_BYTES
from hedgerow.data.units import Records, RowsLeftOut, concatenate, records_from_columns
from hedgerow.errors import DataError
from hedgerow.plan.fields import as_text
from hedgerow.plan.plan import Plan
from hedgerow.trees.binning import MISSING_CATEGORY, UNKNOWN_CATEGORY
from tests.builders import coded

SickPlan = Callable[..., Plan]
WriteFile = Callable[[str, bytes], Path]

GOOD = b"age,sex,sick\n40,f,no\n,m,yes\n61.5,x,no\n30,,yes\n"
HERE = Place("a table", "a column")


def read(path: Path, plan: Plan, **options: Any) -> Records:
    return concatenate(read_records(path, plan, **options))


def assert_good(records: Records) -> None:
    assert records.n_records == 4
    age, sex = records.features
    assert age.dtype == np.float32 and sex.dtype == np.int32
    np.testing.assert_array_equal(age, np.array([40, np.nan, 61.5, 30], dtype=np.float32))
    assert sex.tolist() == [0, 1, UNKNOWN_CATEGORY, MISSING_CATEGORY]
    assert records.label is not None and records.label.dtype == np.int32
    assert records.label.tolist() == [0, 1, 0, 1]
    assert records.unit is None


@pytest.mark.parametrize("name", ["a.csv", "A.CSV", "a.csv.gz", "a.parquet"])
def test_every_format_gives_the_same_records(name: str, sick_plan: SickPlan, write_file: WriteFile) -> None:
    """CSV, gzipped CSV and Parquet of one table are the same to a node; an upper-case ending is no other format."""
    if name.endswith("parquet"):
        path = write_file(name, b"")
        columns = {
            "age": [40, None, 61.5, 30],
            "sex": ["f", "m", "x", None],
            "sick": ["no", "yes", "no", "yes"],
            "extra": [[1], [2], [3], [4]],
        }
        pq.write_table(pa.table(columns), path)
    else:
        path = write_file(name, gzip.compress(GOOD) if name.endswith("gz") else GOOD)
    assert_good(read(path, sick_plan()))


@pytest.mark.parametrize(
    "content",
    [
        GOOD.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + GOOD,
        GOOD[:-1],
        b"\n\n" + GOOD.replace(b"61.5", b"\n 61.5 "),
        GOOD.replace(b"m,", b'" m" , ').replace(b"sex,", b' "sex" ,'.strip()),
        GOOD.replace(b",m,", b", m ,").replace(b"\n,", b"\nNaN,").replace(b"30,,", b" null ,NA,"),
        b"notes,age,notes,sex,sick\n" + b"".join(b'"a, ""b""",' + row.replace(b",", b",\xff,", 1) + b"\n"
                                                for row in GOOD.splitlines()[1:]),
    ],
    ids=["crlf", "byte order mark", "no last newline", "empty lines", "quotes", "spaces and words", "extra columns"],
)  # fmt: skip
def test_the_accidents_of_csv_do_not_matter(content: bytes, sick_plan: SickPlan, write_file: WriteFile) -> None:
    """What spreadsheets and exports vary without meaning anything; columns outside the plan are not even decoded."""
    records = read(write_file("a.csv", content), sick_plan())
    if b"null" in content:
        assert np.isnan(records.features[0][[1, 3]]).all()
        assert records.features[1].tolist() == [0, 1, UNKNOWN_CATEGORY, MISSING_CATEGORY]
    else:
        assert_good(records)


def test_chunks_are_bounded_and_in_order(sick_plan: SickPlan, write_file: WriteFile) -> None:
    """A file larger than one block comes out in chunks of at most chunk_rows, whole and in the order of the file."""
    rows = 120_000
    lines = b"".join(b"%050d,f,no\n" % (i % 97) for i in range(rows))
    path = write_file("a.csv", b"age,sex,sick\n" + lines)
    assert path.stat().st_size > 5 * 2**20
    chunks = list(read_records(path, sick_plan(), chunk_rows=7000))
    assert max(chunk.n_records for chunk in chunks) == 7000
    together = concatenate(chunks)
    np.testing.assert_array_equal(together.features[0], (np.arange(rows) % 97).astype(np.float32))


def test_a_prediction_needs_neither_label_nor_identifier(sick_plan: SickPlan, write_file: WriteFile) -> None:
    """Rows to be predicted have no label yet; the plan's identifier matters for training only."""
    plan = sick_plan(privacy={"unit": "person", "max_rows_per_unit": 2})
    records = read(write_file("a.csv", b"sex,age\nf,3\n"), plan, with_label=False)
    assert records.label is None and records.unit is None and records.features[0].tolist() == [3.0]


def test_identifiers_are_read_as_text(sick_plan: SickPlan, write_file: WriteFile) -> None:
    """The unit of privacy must not depend on how a format stores a number: 7, 7.0 and "7" are one person."""
    plan = sick_plan(privacy={"unit": "person", "max_rows_per_unit": 2})
    records = read(write_file("a.csv", b"person,age,sex,sick\n7,1,f,no\n 7.0 ,2,f,no\n007,3,f,no\n"), plan)
    assert records.unit is not None and records.unit.tolist() == ["7", "7", "007"]
    for column in (np.array([7, 12]), np.array([7.0, 12.0]), np.array(["7", "12"]), [7, 12.0]):
        assert identifiers(column, HERE).require().tolist() == ["7", "12"]


def test_a_regression_label_is_clamped(sick_plan: SickPlan, write_file: WriteFile) -> None:
    """The label's public bounds are what the sensitivity rests on, so no value leaves them, infinite ones included."""
    plan = sick_plan(label={"name": "cost", "type": "regression", "min": -1, "max": 10})
    records = read(write_file("a.csv", b"age,sex,cost\n1,f,3.25\n1,f,-7\n1,f,inf\n1,f,1e400\n"), plan)
    assert records.label is not None and records.label.dtype == np.float64
    # Beyond the bounds as well, so that its owner can be told; what a node keeps is not.
    assert records.label.tolist() == [3.25, -7.0, np.inf, np.inf]
    kept = plan.label.kind.encode(records.label, plan.label)
    assert kept.tolist() == plan.label.kind.encode(np.array([3.25, -1.0, 10.0, 10.0]), plan.label).tolist()


def test_one_class_is_fine(sick_plan: SickPlan, write_file: WriteFile) -> None:
    """A site that has seen one class only is a site like any other: refusing it would tell the others about it."""
    assert read(write_file("a.csv", b"age,sex,sick\n1,f,no\n2,m,no\n"), sick_plan()).label is not None


def test_infinite_and_huge_numbers_are_numbers(sick_plan: SickPlan, write_file: WriteFile) -> None:
    """They lie beyond the bounds, and what lies beyond the bounds is clamped later."""
    records = read(write_file("a.csv", b"age,sex,sick\ninf,f,no\n-Infinity,f,no\n1e300,f,no\n"), sick_plan())
    assert records.features[0].tolist() == [np.inf, -np.inf, np.inf]


TEXTS = st.sampled_from(["a", "B", "3 4", "01"])
# True and 1 are equal in Python, so an object column cannot keep them apart, and no real column mixes them.
STORED = st.one_of(
    st.lists(st.one_of(st.integers(-1000, 1000), st.floats(-1e6, 1e6, width=32), TEXTS), min_size=1, unique_by=as_text),
    st.lists(st.one_of(st.booleans(), TEXTS), min_size=1, unique_by=as_text),
)


@given(STORED, st.data())
def test_a_category_matches_however_it_is_stored(values: list[Any], data: st.DataObject) -> None:
    """A plan's [3, "a", true] meets the text, integer, float or boolean column that holds the same values."""
    listed = [as_text(value) for value in values]
    picks = data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=12))
    as_stored = np.array([values[pick] for pick in picks], dtype=object)
    as_written = np.array([f" {listed[pick]}" for pick in picks])
    assert category_indices(as_stored, listed, HERE).require().tolist() == picks
    assert category_indices(as_written, listed, HERE).require().tolist() == picks


@pytest.mark.parametrize(
    ("column", "categories", "expected"),
    [
        (["3", "3.0", "3.00", "03", "3.5", "-0.0"], ["3", "0"], [0, 0, 0, UNKNOWN_CATEGORY, UNKNOWN_CATEGORY, 1]),
        (["3.0", "3"], ["3", "3.0"], [1, 0]),
        (pa.array([3.0, 0.1, None, np.nan], pa.float32()), ["3", "0.1"], [0, 1, MISSING_CATEGORY, MISSING_CATEGORY]),
        (pa.array([6.103515625e-05, 1e20]), ["6.103515625e-05", "100000000000000000000"], [0, 1]),
        (pa.array([3, 4], pa.uint8()), ["3.0"], [0, UNKNOWN_CATEGORY]),
        ([Decimal("3.00"), Decimal("2.50")], ["3", "2.50"], [0, 1]),
        (["True", "FALSE", "true"], ["false", "true"], [1, 0, 1]),
        (pa.array([True, False, None]), ["0", "1"], [1, 0, MISSING_CATEGORY]),
        (["NA", "nan", "NULL", "", " "], ["x"], [MISSING_CATEGORY] * 5),
        (["NA", "na", ""], ["NA"], [0, MISSING_CATEGORY, MISSING_CATEGORY]),
        (pa.array(["b", None, "a"]).dictionary_encode(), ["a", "b"], [1, MISSING_CATEGORY, 0]),
        (pa.array([None, None]), ["a"], [MISSING_CATEGORY, MISSING_CATEGORY]),
        (pa.array([b"a", b"b"], pa.binary()), ["a"], [0, UNKNOWN_CATEGORY]),
    ],
)
def test_categories_by_example(column: Any, categories: list[str], expected: list[int]) -> None:
    """The rules at their edges: the exact text first, then the words for missing, then the canonical text."""
    assert category_indices(column, categories, HERE).require().tolist() == expected


NUMBERS = st.one_of(st.none(), st.floats(allow_nan=False), st.integers(-(10**6), 10**6))


@given(st.lists(NUMBERS, min_size=1, max_size=20))
def test_numbers_survive_text(values: list[float | int | None]) -> None:
    """A number written as text and read back is the same float64, missing stays missing."""
    texts = ["" if value is None else repr(value) for value in values]
    expected = np.array([np.nan if value is None else float(value) for value in values])
    np.testing.assert_array_equal(numbers(texts, HERE).require(), expected)
    np.testing.assert_array_equal(numbers(np.array(values, dtype=object), HERE).require(), expected)


BAD_ROWS = [
    ("data-wrong-type", b"age,sex,sick\n1,f,no\nabc,f,no\n", "data row 2, column 'age'", "'abc'"),
    ("data-wrong-type", b'age,sex,sick\n1,f,no\n"1,5",f,no\n', "data row 2, column 'age'", "decimal comma"),
    ("data-label-outside", b"age,sex,sick\n1,f,no\n2,m,maybe\n", "data row 2, column 'sick'", "'maybe'"),
    ("data-label-missing", b"age,sex,sick\n1,f,no\n2,m,\n", "data row 2, column 'sick'", "label is missing"),
    ("data-ragged-row", b"age,sex,sick\n1,f,no\n2,secret\n", "data row 2", "2 fields"),
    ("data-ragged-row", b"age,sex,sick\n1,f,no\n2,m,no,secret\n", "data row 2", "4 fields"),
    ("data-ragged-row", b'age,sex,sick\n1,f,no\n2,"m,no\n', "data row 2", "quotation mark"),
    ("data-ragged-row", b'age,sex,sick\n1,f,no\n2,"m,no\nsecret,f,no\n', "data row 2", "line break"),
    ("data-encoding", b"age,sex,sick\n1,f,no\n2,\xe9,no\n", "data row 2", "UTF-8"),
    ("data-encoding", b"age,sex\xe9,sick\n1,f,no\n", "the header", "UTF-16"),
    ("data-empty", b"", "no data rows", "header only"),
    ("data-empty", b"age,sex,sick\n", "no data rows", "header only"),
    ("data-empty", b"\n\n\n", "no data rows", "header only"),
    ("data-missing-column", b"age,sick\n1,no\n", "'sex'", "'age', 'sick'"),
    ("data-missing-column", b"age:sex:sick\n1:f:no\n", "'age', 'sex', 'sick'", "age:sex:sick"),
    ("data-duplicate-column", b"age,sex, age ,sick\n1,f,1,no\n", "two columns are called 'age'", "`rename`"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "content", "where", "said"), BAD_ROWS)
@pytest.mark.parametrize("is_packed", [False, True], ids=["csv", "csv.gz"])
def test_bad_csv_has_one_clear_error(
    code: str, content: bytes, where: str, said: str, is_packed: bool, sick_plan: SickPlan, write_file: WriteFile
) -> None:
    """Each fault has its own code and names its place, cause and remedy; no message prints a row."""
    name = "a.csv.gz" if is_packed else "a.csv"
    path = write_file(name, gzip.compress(content, 1) if is_packed else content)
    with pytest.raises(DataError) as caught:
        read(path, sick_plan())
    error = caught.value
    assert error.code == code
    assert error.public_code == (code if code in ("data-missing-column", "data-duplicate-column") else "data")
    assert str(path) in error.what and where in error.what
    assert said in str(error)
    assert error.remedy
    assert "secret" not in str(error)


@pytest.mark.parametrize("value", ["Ms Smith of 4 High Street, who must not be named", "abc"])
def test_what_happened_names_no_value(value: str, sick_plan: SickPlan, write_file: WriteFile) -> None:
    """A cell's content stands in the cause only, shortened: `what` may be logged where values may not."""
    path = write_file("a.csv", f'age,sex,sick\n"{value}",f,no\n'.encode())
    with pytest.raises(DataError) as caught:
        read(path, sick_plan())
    assert value not in caught.value.what
    assert (value in caught.value.cause) == (len(value) < 38)


def test_a_missing_identifier_is_refused(sick_plan: SickPlan, write_file: WriteFile) -> None:
    """A row without an identifier belongs to nobody, so nobody's rows could be bounded."""
    plan = sick_plan(privacy={"unit": "person", "max_rows_per_unit": 2})
    for content in (b"person,age,sex,sick\nA,1,f,no\n,2,f,no\n", b"person,age,sex,sick\nA,1,f,no\nNA,2,f,no\n"):
        with pytest.raises(DataError) as caught:
            read(write_file("a.csv", content), plan)
        assert caught.value.code == "data-unit-missing"


@pytest.mark.parametrize("keep", [0.5, 0.999])
def test_a_truncated_gzip_is_named_so(keep: float, sick_plan: SickPlan, write_file: WriteFile) -> None:
    """A broken download must not train on the rows that happen to have arrived, even if only the trailer is lost."""
    packed = gzip.compress(GOOD + b"".join(b"%d,f,no\n" % (i * 7919 % 100_003) for i in range(300_000)))
    path = write_file("a.csv.gz", packed[: int(len(packed) * keep)])
    with pytest.raises(DataError) as caught:
        read(path, sick_plan())
    assert caught.value.code == "data-truncated"


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("a.csv.gz", b"this is not gzip", "data-corrupt"),
        ("a.csv.gz", gzip.compress(GOOD, mtime=0)[:10] + b"\xff" * 40, "data-corrupt"),
        ("a.csv.gz", gzip.compress(GOOD, mtime=0)[:-8] + bytes(8), "data-corrupt"),
        ("a.csv.gz", gzip.compress(GOOD, mtime=0)[:6], "data-truncated"),
        ("a.parquet", b"", "data-empty"),
        ("a.parquet", b"PAR1 and nothing else", "data-corrupt"),
        ("a.xlsx", b"PK", "data-unknown-format"),
        ("a", GOOD, "data-unknown-format"),
    ],
)
def test_damaged_files(name: str, content: bytes, code: str, sick_plan: SickPlan, write_file: WriteFile) -> None:
    """A file that is not what its name says is refused before a row is used."""
    with pytest.raises(DataError) as caught:
        read(write_file(name, content), sick_plan())
    assert caught.value.code == code


@pytest.mark.parametrize("kind", [pa.string(), pa.large_binary(), pa.string_view(), pa.binary_view(), "dictionary"])
@pytest.mark.parametrize("n_more", [0, 3])
def test_a_parquet_cell_that_is_too_long_takes_its_own_row_away(
    write_file: WriteFile, n_more: int, kind: Any, sick_plan: SickPlan
) -> None:
    """A few kilobytes unpack to a cell of any length; one row decides about no other, as one line of CSV does not."""
    path = write_file("a.parquet", b"")
    for length, n_left_out in ((MAX_BYTES + 1, 1), (MAX_BYTES - 64, 0)):
        sexes = pa.array(["f" * length, *["f"] * n_more])
        n_rows, sexes = len(sexes), sexes.dictionary_encode() if kind == "dictionary" else sexes.cast(kind)
        pq.write_table(pa.table({"age": [1] * n_rows, "sex": sexes, "sick": ["no"] * n_rows}), path, compression="zstd")
        left_out: RowsLeftOut = {}
        found = list(read_records(path, sick_plan(), left_out=left_out))
        assert sum(records.n_records for records in found) == n_rows - n_left_out
        assert left_out == ({"data-encoding": 1} if n_left_out else {})


@pytest.mark.parametrize("is_dictionary", [False, True])
def test_a_parquet_page_that_would_fill_the_memory_is_not_unpacked(
    write_file: WriteFile, sick_plan: SickPlan, is_dictionary: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own head says how long it is; a column that nobody asks for is not looked at."""
    path = write_file("a.parquet", b"")
    texts = ["f" * (MAX_PAGE_BYTES + 1), "f"]
    rows = {"age": [1, 1], "sex": ["f", "f"], "sick": ["no", "no"]}
    how: dict[str, Any] = {"compression": "zstd", "use_dictionary": is_dictionary}
    pq.write_table(pa.table(rows | {"notes": texts}), path, **how)
    assert read(path, sick_plan()).n_records == 2
    pq.write_table(pa.table(rows | {"sex": texts}), path, **how)
    # Nothing of it is read.
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", None)
    with pytest.raises(DataError, check=coded("data-corrupt")):
        read(path, sick_plan())


LONG = "x" * 3000
TEXTS: dict[str, list[str | None]] = {
    "once in the file": [LONG, None, "f"] * 20,
    "each in the file": [f"{LONG}{number}" for number in range(60)],
    "some of each": [LONG] * 40 + [f"{'m' * 90}{number}" for number in range(80)],
    "short": ["f", None] * 200,
}


@pytest.mark.parametrize("stored", [pa.string(), pa.large_binary(), pa.dictionary(pa.int32(), pa.string())], ids=str)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("name", TEXTS)
def test_cells_that_are_read_at_once_fit_into_a_page(
    name: str, version: str, stored: pa.DataType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell that a file holds once, or packed small, is in memory as often and as long as its rows have it."""
    most, n_rows, texts = 2**12, 100, TEXTS[name]
    # Arrow writes a dictionary of its own as one page, however long.
    plain = stored if name in ("once in the file", "short") or not pa.types.is_dictionary(stored) else pa.string()
    table = pa.table({"a": pa.array(texts, pa.string()).cast(plain), "n": np.arange(len(texts), dtype=float)})
    pq.write_table(
        table, tmp_path / "a.parquet", compression="zstd", data_page_version=version, data_page_size=500,
        write_batch_size=1, use_dictionary=name != "each in the file", dictionary_pagesize_limit=3500,
        row_group_size=len(texts) - 7,
    )  # fmt: skip
    monkeypatch.setattr(tables, "MAX_PAGE_BYTES", most)
    monkeypatch.setattr(tables, "_MAX_MIXED_BYTES", most)
    found = list(tables.ParquetTable(str(tmp_path / "a.parquet")).batches(["a", "n"], n_rows, {}))
    read = [batch[0].dictionary_decode() if pa.types.is_dictionary(batch[0].type) else batch[0] for batch in found]
    told = [text for cells in read for text in cells.to_pylist()]
    assert [text.decode() if isinstance(text, bytes) else text for text in told] == texts
    assert [n for batch in found for n in batch[1].to_pylist()] == list(range(len(texts)))
    held = [batch[0].dictionary for batch in found if pa.types.is_dictionary(batch[0].type)]
    # A part of a page is read with the rest of it.
    assert max(sum(len(text or "") for text in cells.to_pylist()) for cells in (*read, *held)) <= 3 * most
    assert name != "short" or max(map(len, read)) == n_rows


@given(
    texts=st.lists(st.one_of(st.none(), st.text(max_size=300), st.just("x" * 5000)), min_size=1, max_size=200),
    codec=st.sampled_from(["none", "snappy", "zstd", "gzip"]),
    version=st.sampled_from(["1.0", "2.0"]),
    page_bytes=st.sampled_from([64, 1 << 10, 1 << 20]),
    is_dictionary=st.booleans(),
    has_checksums=st.booleans(),
)
def test_all_pages_of_a_parquet_column_are_measured(
    texts: list[str | None], codec: str, version: str, page_bytes: int, is_dictionary: bool, has_checksums: bool
) -> None:
    """One after the other they are the column, whatever wrote them: their lengths add up to what the footer says."""
    content = io.BytesIO()
    table = pa.table({"a": texts, "b": pa.array([[text] for text in texts], pa.list_(pa.string()))})
    pq.write_table(
        table, content, compression=codec, data_page_version=version, data_page_size=page_bytes, write_batch_size=7,
        use_dictionary=is_dictionary, write_page_checksum=has_checksums,
    )  # fmt: skip
    about = pq.ParquetFile(content).metadata.row_group(0)
    for index in range(about.num_columns):
        chunk = about.column(index)
        at = start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
        unpacked = packed = n_cells = 0
        while at < start + chunk.total_compressed_size:
            head = tables._read_page_head(content, at)
            n_cells += head.n_cells or 0
            assert not head.has_indices or (is_dictionary and chunk.has_dictionary_page)
            unpacked, packed, at = unpacked + head.unpacked, packed + head.n_bytes, at + head.n_bytes
        assert packed == chunk.total_compressed_size and n_cells == chunk.num_values
        # The heads stand unpacked in both.
        assert unpacked <= chunk.total_uncompressed_size <= unpacked + packed
        if codec == "none":
            assert packed == chunk.total_uncompressed_size


@given(st.binary(max_size=200))
def test_any_bytes_are_a_page_or_none(content: bytes) -> None:
    """A damaged head ends by name, and in time."""
    with suppress(pa.ArrowInvalid):
        head = tables._read_page_head(io.BytesIO(content), 0)
        assert head.unpacked >= 0 and head.n_bytes > 0


def test_a_damaged_parquet_page_is_refused(sick_plan: SickPlan, write_file: WriteFile) -> None:
    """A Parquet file whose footer is whole and whose data is not gives an error, not other numbers."""
    path = write_file("a.parquet", b"")
    ages = np.random.default_rng(0).random(20_000)
    table = pa.table({"age": ages, "sex": ["f"] * 20_000, "sick": ["no"] * 20_000})
    pq.write_table(table, path, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[200:40_000] = bytes(39_800)
    path.write_bytes(bytes(content))
    with pytest.raises(DataError) as caught:
        read(path, sick_plan())
    assert caught.value.code == "data-corrupt"


def test_a_parquet_column_of_dates_is_no_column_of_numbers(sick_plan: SickPlan, write_file: WriteFile) -> None:
    """A date is no number; the error of who reads strictly names it."""
    path = write_file("a.parquet", b"")
    dates = pa.array([0], pa.date32())
    pq.write_table(pa.table({"age": dates, "sex": ["f"], "sick": ["no"]}), path)
    with pytest.raises(DataError, match=r"data row 1, column 'age'.*1970-01-01") as caught:
        read(path, sick_plan())
    assert caught.value.code == "data-wrong-type"


def test_files_that_cannot_be_opened(tmp_path: Path, sick_plan: SickPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing, forbidden, not a file: told apart, and told before the first chunk is asked for."""

    def code_of(path: Path) -> str:
        with pytest.raises(DataError) as caught:
            read_records(path, sick_plan())
        return caught.value.code

    assert code_of(tmp_path / "none.csv") == "data-file-missing"
    (tmp_path / "folder.csv").mkdir()
    assert code_of(tmp_path / "folder.csv") == "data-unreadable"
    odd = tmp_path / os.fsdecode(b"\xff.csv")
    with suppress(OSError):  # macOS has no file whose name is not UTF-8.
        odd.write_bytes(b"age,sex,sick\n1,f,no\n")
        assert code_of(odd) == "data-unreadable"

    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    # The tests may run as root, whom no file mode stops.
    monkeypatch.setattr("builtins.open", forbidden)
    assert code_of(tmp_path / "a.csv") == "data-permission"


def test_columns_from_memory(sick_plan: SickPlan) -> None:
    """The estimators' way in: arrays of any dtype, extra ones ignored, a missing or shorter one refused."""
    columns: dict[str, Any] = {
        "age": np.array([40, np.nan, 61.5, 30]),
        "sex": np.array(["f", "m", "x", None], dtype=object),
        "sick": np.array(["no", "yes", "no", "yes"]),
        "other": np.array([object()] * 4),
    }
    assert_good(records_from_columns(columns, sick_plan()))
    assert_good(records_from_columns({**columns, "age": np.array(["40", "", "61.5", "30"])}, sick_plan()))
    with pytest.raises(DataError, check=coded("data-lengths")):
        records_from_columns({**columns, "age": np.zeros(3)}, sick_plan())
    with pytest.raises(DataError, match="'age'"):
        records_from_columns({name: columns[name] for name in ("sex", "sick")}, sick_plan())


def test_concatenating_nothing_is_an_error() -> None:
    """A node without a single record must hear of it here, not as a division by zero later."""
    with pytest.raises(DataError) as caught:
        concatenate([])
    assert caught.value.code == "data-empty"


def test_header_names_are_trimmed(write_file: WriteFile) -> None:
    """A space after a comma in the header is not part of a name."""
    assert column_names(write_file("a.csv", b"age, sex ,sick\n1,f,no\n")) == ["age", "sex", "sick"]
