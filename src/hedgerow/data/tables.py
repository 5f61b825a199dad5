# SPDX-License-Identifier: Apache-2.0
"""Tables whose columns are read in bounded memory: the protocol, and the files CSV and Parquet.

A CSV, plain or gzipped, has a header; `hedgerow.data.lines` defines its format and its records. Columns that are not
asked for are not decoded. Empty lines are skipped. A fault of the file (no header, a missing column, damage) is an
error. A fault of one row is an error too, unless the caller counts rows that do not fit: then that row is left out and
no other row changes.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.csv as arrow_csv

from hedgerow.data.arrow import classify_type, is_text
from hedgerow.data.columns import file_error, missing_columns
from hedgerow.data.declarations import SEPARATORS, parse_declaration, plain_name, without_declaration
from hedgerow.data.lines import (
    MAX_BYTES,
    LineCounts,
    LineCutter,
    TableHeader,
    read_header,
    text_blocks,
    whole_lines,
    without_first,
)
from hedgerow.data.units import RowsLeftOut, count_left_out
from hedgerow.errors import DataError


class Table(Protocol):
    """An open table; no row of it has been read yet.

    Attributes:
        source: its name in messages.
        first_row: the number of its first row in messages.
        has_decimal_commas: whether text such as "3,5" is a number; a table that does not say has none.

    A table whose columns have types independent of their cells also has `is_typed = True`: a database's schema has, but
    not a Parquet file, because its writer may have inferred its types from the cells. A table of lines has `lines`, see
    `CsvTable`.
    """

    source: str
    first_row: int

    def types(self) -> dict[str, Any]:
        """Return the columns' Arrow types by name, stripped and in the table's order."""

    def names(self) -> list[str]:
        """Return the columns' names; some may occur twice."""

    def batches(
        self, names: Sequence[str], chunk_rows: int, left_out: RowsLeftOut | None
    ) -> Iterator[tuple[Sequence[Any], ...]]:
        """Yield the named columns, as tuples of Arrow arrays or lists of at most `chunk_rows` values.

        Args:
            left_out: counts of rows that do not fit; None raises for the first such row, and for a table without rows.

        Raises:
            DataError: the table is damaged, or lacks a column: see `require_columns`.
        """


def existing_file(location: str) -> Path:
    """Return the path of a file; raise DataError if it cannot be opened or is empty."""
    file = Path(location)
    try:
        with open(file, "rb") as stream:
            first = stream.read(1)
        str(file).encode()
    except OSError as error:
        raise file_error(str(file), error) from None
    except UnicodeEncodeError:  # Arrow opens no such file.
        raise DataError("data-unreadable", path=file, fault="its name is not UTF-8 text") from None
    if not first:
        raise DataError("data-empty", source=file)
    return file


def require_columns(source: str, wanted: Sequence[str], present: Sequence[str]) -> None:
    """Raise DataError unless each wanted column is there exactly once."""
    for name in wanted:
        if present.count(name) > 1:
            raise DataError("data-duplicate-column", source=source, column=name)
    missing = [name for name in wanted if name not in present]
    if missing:
        raise missing_columns(source, missing, present)


def rechunk(batches: Iterator[tuple[Any, ...]], chunk_rows: int, source: str | None) -> Iterator[tuple[Any, ...]]:
    """Cut batches to at most `chunk_rows` rows, and to fewer where a dictionary has long cells; drop empty ones.

    A cell of a dictionary is written once and becomes as many bytes again for each row that has it.

    If `source` is named, raise DataError when there are no rows.
    """
    seen = 0
    for batch in batches:
        n_rows = len(batch[0])
        seen += n_rows
        longest = max(map(_measure_longest_of_dictionary, batch))
        step = min(chunk_rows, max(1, MAX_PAGE_BYTES // longest)) if longest else chunk_rows
        for start in range(0, n_rows, step):
            yield tuple(column.slice(start, step) for column in batch)
    if not seen and source is not None:
        raise DataError("data-empty", source=source)


def _measure_longest_of_dictionary(column: Any) -> int:
    """Return the bytes of the longest text in an array's dictionary; 0 for an array without one."""
    if not pa.types.is_dictionary(column.type) or not is_text(column.dictionary.type) or not len(column.dictionary):
        return 0
    return int(compute.max(compute.binary_length(column.dictionary.cast(pa.large_binary()))).as_py() or 0)


_BLOCK_BYTES = 2**20
"""Bytes per read. With 4 MB, a node with 100,000 x 20 numbers needed 40 MB more at its peak and read a tenth faster."""
_BYTES_PER_COLUMN = 8 * 2**10
"""Bytes of lines per column that are cut at once, so that work per column is shared by hundreds of cells."""
_HEADER_BYTES = 2**16
_OTHER_FORMATS = {
    b"PK\x03\x04": "a workbook (.xlsx, .ods) or another zip archive",
    b"\xd0\xcf\x11\xe0": "a workbook (.xls)",
    b"\x1f\x8b": "compressed by gzip",
    b"PAR1": "a Parquet file",
    b"SQLite format 3": "an SQLite database",
    b"%PDF": "a PDF",
}
"""First bytes of files that are not text."""


class CsvTable:
    """A CSV file, whose columns are bytes; see `Table`.

    Attributes:
        line_breaks: line breaks that a quoted cell may hold, see `Privacy.line_breaks`.
        lines: line counts, complete once the file has been read.
    """

    first_row = 1
    line_breaks = 0

    def __init__(self, location: str) -> None:
        place, declaration = without_declaration(location)
        self._declared = parse_declaration(declaration)
        self._file = existing_file(place)
        self.source = str(self._file)
        self.lines = LineCounts()

    @property
    def has_decimal_commas(self) -> bool:
        """Whether text such as 3,5 is a number."""
        return self._header.has_decimal_commas

    def types(self) -> dict[str, Any]:
        """Return text as the type of each column."""
        return {name: pa.string() for name in self.names()}

    def names(self) -> list[str]:
        """Return the names in the file's header."""
        return list(self._header.names)

    def batches(self, names: Sequence[str], chunk_rows: int, left_out: RowsLeftOut | None) -> Iterator[tuple[Any, ...]]:
        """Yield the named columns in chunks of rows."""
        require_columns(self.source, names, self._header.names)
        return rechunk(self._read_batches(names, left_out), chunk_rows, None if left_out is not None else self.source)

    @cached_property
    def _header(self) -> TableHeader:
        """The file's header; raises DataError if it is missing or ambiguous."""
        first, is_over = b"", False
        with self._open() as stream:
            while True:
                header = read_header(first, self._declared)
                if header.is_whole or is_over:
                    break
                if len(first) > MAX_BYTES:
                    raise DataError("data-corrupt", source=self.source, fault="is not valid CSV")
                more = stream.read(max(len(first), _HEADER_BYTES))
                first, is_over = first + more, not more
        for magic, kind in _OTHER_FORMATS.items():
            if first.startswith(magic):
                raise DataError("data-other-format", source=self.source, kind=kind)
        if not header.names:
            raise DataError("data-empty", source=self.source)
        # An undecodable byte matters here only if it is in a name; cells are decoded later.
        if any("\udc80" <= character <= "\udcff" or character == "\0" for character in "".join(header.names)):
            raise DataError("data-encoding", source=self.source, where="the header")
        if header.rival:
            words = {separator: word for word, separator in SEPARATORS.items()}
            found, other = words[header.separator], words[header.rival]
            raise DataError("data-separator", source=self.source, found=found, other=other)
        if header.is_record or header.is_open:
            raise DataError("data-no-names", source=self.source)
        return header

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """Yield the file's bytes, unpacked; raise DataError if that fails."""
        is_packed = plain_name(self._file.name).lower().endswith(".gz")
        try:
            with pa.input_stream(self._file, compression="gzip" if is_packed else None) as stream:
                yield stream
        except OSError as error:
            # Errors of Arrow itself have no errno.
            if error.errno is not None:
                raise file_error(self.source, error) from None
            if "Truncated" in str(error):
                fault = "ends too early (`gzip -t` tells)"
                raise DataError("data-corrupt", code="data-truncated", source=self.source, fault=fault) from None
            raise DataError("data-corrupt", source=self.source, fault="is not valid gzip") from None

    def _read_batches(self, names: Sequence[str], left_out: RowsLeftOut | None) -> Iterator[tuple[Any, ...]]:
        header, self.lines = self._header, LineCounts()
        reader = _Blocks(self.source, header, names, self.lines, left_out is None)
        cutter = LineCutter(header.separator, len(header.names), self.line_breaks, self.lines)
        is_utf8, waiting, held = header.encoding != "utf-8", b"", b""
        n_bytes = max(_BLOCK_BYTES, _BYTES_PER_COLUMN * len(header.names))
        with self._open() as stream:
            texts = text_blocks(iter(partial(stream.read, _BLOCK_BYTES), b""), header)
            for lines in without_first(whole_lines(texts, cutter.unfit), header.n_lines):
                block, waiting = cutter.neutral(waiting + lines, is_utf8, is_last=False)
                held += block
                if len(held) >= n_bytes:
                    yield from reader.columns(held)
                    held = b""
        yield from reader.columns(held + cutter.neutral(waiting, is_utf8, is_last=True)[0])
        if len(header.names) > 1:
            self.lines.n_blank = self.lines.n_lines - self.lines.n_joined - reader.n_rows
        if left_out is not None:
            count_left_out(left_out, "data-ragged-row", sum(self.lines.n_fields.values()))


class _Blocks:
    """Cuts blocks of lines, each a record by itself, into columns."""

    def __init__(
        self, source: str, header: TableHeader, names: Sequence[str], counts: LineCounts, is_strict: bool
    ) -> None:
        self.n_rows = 0
        self._source, self._separator, self._counts, self._is_strict = source, header.separator, counts, is_strict
        # Read columns by position, because names may repeat, and as bytes, because each cell is decoded by itself.
        positions = [str(header.names.index(name)) for name in names]
        self._all = [str(position) for position in range(len(header.names))]
        self._convert = arrow_csv.ConvertOptions(
            include_columns=positions, column_types={position: pa.binary() for position in positions}
        )

    def columns(self, block: bytes) -> Iterator[tuple[Any, ...]]:
        """Yield the columns of a block, in one tuple, or nothing for an empty block."""
        if not block:
            return
        faults: list[DataError] = []

        def note(row: Any) -> str:
            """Answer Arrow's question about a row with too few or too many fields: "skip" or "error"."""
            found, expected = row.actual_columns, row.expected_columns
            self._counts.n_fields[found] = self._counts.n_fields.get(found, 0) + 1
            if not self._is_strict:
                return "skip"
            row = self.n_rows + row.number
            faults.append(DataError("data-ragged-row", source=self._source, row=row, found=found, expected=expected))
            return "error"

        # Arrow drops a byte order mark at the beginning of its input, so put one more in front of a block that has one.
        marked = codecs.BOM_UTF8 + block if block.startswith(codecs.BOM_UTF8) else block
        n_ragged = sum(self._counts.n_fields.values())
        try:
            table = arrow_csv.read_csv(
                pa.BufferReader(marked),
                # Use one thread: only then does Arrow report the number of a row that it refuses.
                read_options=arrow_csv.ReadOptions(
                    use_threads=False, block_size=len(marked) + 1, column_names=self._all
                ),
                parse_options=arrow_csv.ParseOptions(
                    delimiter=self._separator,
                    quote_char='"' if b'"' in block else False,
                    newlines_in_values=True,
                    ignore_empty_lines=len(self._all) > 1,
                    invalid_row_handler=note,
                ),
                convert_options=self._convert,
            )
        except pa.ArrowInvalid:
            # Arrow's message may quote the whole row, so it is not passed on.
            fault = DataError("data-corrupt", source=self._source, fault="is not valid CSV")
            raise faults[0] if faults else fault from None
        self.n_rows += table.num_rows + sum(self._counts.n_fields.values()) - n_ragged
        yield from (tuple(batch.columns) for batch in table.to_batches())


PARQUET = (".parquet", ".pq")


class ParquetTable:
    """A Parquet file, or a folder of Parquet files that are one table, in the order of their names.

    See `Table`. Names in a folder that begin with "_" or "." are skipped, as Spark and others write folders.
    """

    first_row = 1
    _part = 0, 1

    def __init__(self, location: str) -> None:
        self.source, place = str(Path(location)), Path(location)
        if not place.is_dir():
            self._files = [existing_file(location)]
            return
        own = sorted(path for path in place.iterdir() if not path.name.startswith(("_", ".")))
        for path in own:
            if not path.name.lower().endswith(PARQUET):
                raise DataError("data-unknown-format", path=path)
        if not own:
            raise DataError("data-empty", source=self.source)
        self._files = [existing_file(str(path)) for path in own]

    def types(self) -> dict[str, Any]:
        """Return the types of the columns of the first file."""
        with _open_parquet(self._files[0]) as reader:
            schema = reader.schema_arrow
        return {name.strip(): kind for name, kind in zip(schema.names, schema.types, strict=True)}

    def names(self) -> list[str]:
        """Return the names of the columns of the first file."""
        return _list_parquet_names(self._files[0])

    def keep_groups(self, number: int, n_parts: int) -> None:
        """Restrict the table to row groups that begin in stretch `number` of `n_parts` equal ones."""
        self._part = number, n_parts

    def batches(self, names: Sequence[str], chunk_rows: int, left_out: RowsLeftOut | None) -> Iterator[tuple[Any, ...]]:
        """Yield the named columns in chunks of rows, file by file."""
        for file in self._files:
            require_columns(str(file), names, _list_parquet_names(file))
        groups = zip(self._files, self._own_groups(), strict=True)
        parts = (_read_parquet_batches(file, names, chunk_rows, numbers) for file, numbers in groups)
        batches = chain.from_iterable(parts)
        return rechunk(batches, chunk_rows, None if left_out is not None else self.source)

    def _own_groups(self) -> list[list[int]]:
        """Return each file's row groups in this part."""
        (number, n_parts), sizes = self._part, list[list[int]]()
        for file in self._files:
            with _open_parquet(file) as reader:
                about = reader.metadata
            sizes.append([about.row_group(group).num_rows for group in range(about.num_row_groups)])
        total, first, found = sum(map(sum, sizes)), 0, list[list[int]]()
        for groups in sizes:
            found.append([])
            for group, n_rows in enumerate(groups):
                if first * n_parts // max(1, total) == number:
                    found[-1].append(group)
                first += n_rows
        return found


def _list_parquet_names(file: Path) -> list[str]:
    """Return a file's column names; some may occur twice."""
    with _open_parquet(file) as reader:
        return [name.strip() for name in reader.schema_arrow.names]


def _open_parquet(file: Path, **more: Any) -> Any:
    """Open a Parquet file; raise DataError if it is damaged."""
    # Import here: readers of CSV only save 8 MB of memory.
    from pyarrow.parquet import ParquetFile

    with _catch_parquet_errors(str(file)):
        # Spark writes moments in 96 bits. Arrow would read them as nanoseconds, which end in 2262: 9999 would become
        # 1816.
        return ParquetFile(
            file, pre_buffer=False, page_checksum_verification=True, coerce_int96_timestamp_unit="us", **more
        )


@contextmanager
def _catch_parquet_errors(source: str) -> Iterator[None]:
    """Turn Arrow's errors for a damaged Parquet file into a DataError."""
    try:
        yield
    except (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError):
        raise DataError("data-corrupt", source=source, fault="is not valid Parquet") from None


MAX_PAGE_BYTES = 4 * MAX_BYTES
"""Largest unpacked page of a Parquet file. Writers end a page at about a megabyte, except for long cells."""


_MAX_MIXED_BYTES = 4 * MAX_PAGE_BYTES
"""Bytes of cells that are read at once from a dictionary that only a part of a column's pages uses."""


def _plan_reading(file: Path, about: Any, groups: Sequence[int], names: Sequence[str]) -> tuple[int, set[str]]:
    """Return how many rows may be read at once, and which columns are dictionaries throughout.

    Few rows are read at once where they may need much memory. Only the heads of pages, which have their lengths, are
    read. Arrow unpacks a page in one block. A few kilobytes of a file may become hundreds of megabytes. A cell of a
    dictionary becomes as many bytes again for each row that has it.

    Raises:
        DataError: code "data-corrupt"; a column has a page that is too large when unpacked.
    """
    n_rows, plain, dictionaries = float("inf"), set[str](), dict[str, int]()
    columns = [(about.row_group(group).column(index), index) for group in groups for index in range(about.num_columns)]
    with open(file, "rb") as stream:
        for chunk, index in columns:
            name = chunk.path_in_schema
            # The parts of a nested column, such as a list, have names that begin with the column's.
            if not any(name == each or name.startswith(f"{each}.") for each in names):
                continue
            at = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
            end = at + chunk.total_compressed_size
            if chunk.physical_type == "FIXED_LEN_BYTE_ARRAY":
                n_rows = min(n_rows, MAX_PAGE_BYTES / max(1, about.schema.column(index).length))
            while at < end:
                head = _read_page_head(stream, at)
                if head.unpacked > MAX_PAGE_BYTES:
                    fault = f"has a page of {head.unpacked:,} bytes in {name!r}; {MAX_PAGE_BYTES:,} are the most: "
                    raise DataError("data-corrupt", source=str(file), fault=f"{fault}write smaller pages")
                if head.n_cells is None:
                    # A cell of another type is as long in memory as in the file.
                    longest = head.unpacked if chunk.physical_type == "BYTE_ARRAY" else 1
                    dictionaries[name] = max(longest, dictionaries.get(name, 1))
                elif not head.has_indices:
                    plain.add(name)
                    n_rows = min(n_rows, MAX_PAGE_BYTES * max(1, head.n_cells) / max(1, head.unpacked))
                at += head.n_bytes
    mixed = [n_bytes for name, n_bytes in dictionaries.items() if name in plain or name not in names]
    n_rows = min(n_rows, *(_MAX_MIXED_BYTES / n_bytes for n_bytes in mixed)) if mixed else n_rows
    return int(max(1, min(n_rows, 2**31 - 1))), {*dictionaries} - plain


class _PageHead(NamedTuple):
    """The facts of a page's head.

    Attributes:
        unpacked: bytes of the page when unpacked.
        n_bytes: bytes in the file, with the head.
        n_cells: its number of cells; None for a dictionary.
        has_indices: whether its cells are indices of a dictionary.
    """

    unpacked: int
    n_bytes: int
    n_cells: int | None
    has_indices: bool


def _read_page_head(stream: IO[bytes], at: int) -> _PageHead:
    """Read a page's head; raise ArrowInvalid for bytes that are no page.

    It is a struct in Thrift's compact protocol (Apache Parquet format, PageHeader): 2 and 3 are its lengths, and 5 or 8
    is a struct, of which 1 is the number of cells, and 2 or 4 their encoding.
    """
    n_bytes, found, head, place = 2**10, dict[int, int](), b"", 0

    def number() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = head[place]
            place, value, shift = place + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128 or shift > 63:
                return value

    def signed() -> int:
        zigzag = number()
        return zigzag >> 1 ^ -(zigzag & 1)

    def skip(kind: int, depth: int, told: dict[int, int] | None = None) -> None:
        nonlocal place
        if depth > 8 or kind > 12 or kind == 11:
            raise pa.ArrowInvalid
        if kind in (4, 5, 6):
            number()
        elif kind in (3, 7):
            place += 1 if kind == 3 else 8
        elif kind == 8:
            length = number()
            place += length
        elif kind in (9, 10):
            first = head[place]
            place += 1
            for _ in range(number() if first >> 4 == 15 else first >> 4):
                skip(3 if first & 15 in (1, 2) else first & 15, depth + 1)
        elif kind == 12:
            field = 0
            while kind := head[place] & 15:
                field += head[place] >> 4
                place += 1
                if not head[place - 1] >> 4:
                    number()
                if kind == 5 and told is not None:
                    told[field] = signed()
                else:
                    skip(kind, depth + 1)
            place += 1

    while True:
        stream.seek(at)
        head, place, field = stream.read(n_bytes), 0, 0
        try:
            while kind := head[place] & 15:
                field += head[place] >> 4
                if not head[place] >> 4:
                    raise pa.ArrowInvalid
                place += 1
                if field in (2, 3) and kind == 5:
                    found[field] = signed()
                elif field in (5, 8):
                    told = dict[int, int]()
                    skip(kind, 0, told)
                    found |= {5: told.get(1, 0), 8: told.get(2 if field == 5 else 4, 0)}
                else:
                    skip(kind, 0)
            place += 1
        except IndexError:
            # The page's head may be longer than was read, because its statistics may hold cells.
            if len(head) < n_bytes or n_bytes > 4 * MAX_BYTES:
                raise pa.ArrowInvalid from None
            n_bytes *= 16
            continue
        if min(found.get(2, -1), found.get(3, -1)) < 0:
            raise pa.ArrowInvalid
        # Encodings 2 and 8 are indices of a dictionary, by their old and their new name.
        return _PageHead(found[2], place + found[3], found.get(5), found.get(8) in (2, 8))


_NO_TEXT = b"\xff"


def _without_odd(column: pa.Array) -> pa.Array:
    """Replace cells that Hedgerow does not read by bytes that are no text.

    These are cells of more than `MAX_BYTES`, and all cells of a type such as a list. Each such row then does not fit,
    by itself. If the table were refused instead, one row would decide about all others: if it alone has a cell in its
    column, the column's type follows from it.
    """
    is_dictionary = pa.types.is_dictionary(column.type)
    cells = column.dictionary if is_dictionary else column
    kind = cells.type.storage_type if isinstance(cells.type, pa.BaseExtensionType) else cells.type
    if classify_type(kind) is None:
        return compute.if_else(column.is_valid(), pa.scalar(_NO_TEXT + f" {kind}".encode(), pa.large_binary()), None)
    if not is_text(cells.type) or cells.nbytes <= MAX_BYTES:
        return column
    # Arrow cannot measure the length of string views.
    plain = cells.cast(pa.large_binary())
    is_long = compute.greater(compute.binary_length(plain), MAX_BYTES)
    if not compute.any(is_long).as_py():
        return column
    short = compute.if_else(is_long, pa.scalar(_NO_TEXT, pa.large_binary()), plain)
    return pa.DictionaryArray.from_arrays(column.indices, short) if is_dictionary else short


def _read_parquet_batches(
    file: Path, names: Sequence[str], chunk_rows: int, groups: list[int]
) -> Iterator[tuple[Any, ...]]:
    source = str(file)
    with _open_parquet(file) as reader:
        schema, about = reader.schema_arrow, reader.metadata
    stored = {name.strip(): name for name in schema.names}
    wanted = [stored[name] for name in names]
    with _catch_parquet_errors(source):
        n_rows, dictionaries = _plan_reading(file, about, groups, wanted)
    # Text that was written as a dictionary stays one until `rechunk` has cut it.
    texts = [name for name in wanted if name in dictionaries and is_text(schema.field(name).type)]
    chunk_rows = min(chunk_rows, n_rows)
    with _open_parquet(file, read_dictionary=texts) as reader:
        batches = reader.iter_batches(batch_size=chunk_rows, row_groups=groups, columns=wanted)
        while True:
            with _catch_parquet_errors(source):
                batch = next(batches, None)
            if batch is None:
                return
            yield tuple(_without_odd(batch.column(name)) for name in wanted)
