"""Tables, whose columns are read in bounded memory, and those in files: CSV and Parquet.

A CSV, plain or gzipped, has a header, and double quotes where needed; the rest stands below. Columns that are not asked
for are not decoded. Empty lines are skipped. What is wrong with the file (no header, a column that is missing, damage)
is an error. What is wrong with one row is an error too, or, where rows that do not fit are counted, leaves that row out
and changes no other one.

How a CSV is written, its separator, its decimal mark and its encoding, follows from the file's header, or from what
stands behind the file's name, and never from a row: a guess that one row could turn would change what all others count
as. The rules:

    separator     of , ; tab | the one that cuts the header into the most names, the comma where none is ahead; or what
                  a first line such as "sep=;" says, as spreadsheets write it
    decimal mark  a comma where the separator is a semicolon, else a point. Where it is a comma, "3,5" is 3.5, and
                  "3.5" still is, for each cell is read by itself; a cell with both, such as "1.234,5", is no number
    encoding      UTF-8, or UTF-16 if the file begins with its mark; the others have none, so they have to be declared

A declaration is written behind the file's name, wherever a table may be named; the parts that it does not name
follow from the header:

    north.csv#encoding=cp1252
    north.csv#separator=tab,decimal=comma,encoding=latin-1
"""

from __future__ import annotations

import codecs
import csv
import functools
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as arrow_parquet

from hedgerow.data.columns import file_error, missing_columns
from hedgerow.data.units import RowsLeftOut, count_left_out
from hedgerow.errors import DataError, UsageError


class Table(Protocol):
    """A table that was opened; no row of it is read yet.

    Attributes:
        source: what messages call it.
        first_row: what its first row is called there.
        has_decimal_commas: whether text such as "3,5" is a number; a table that does not say has none.

    A table whose columns have types of their own, whatever their cells are, has `is_typed = True` as well.
    """

    source: str
    first_row: int

    def types(self) -> dict[str, Any]:
        """The Arrow types of its columns by their names, without spaces around them, in its order."""

    def names(self) -> list[str]:
        """The names alone, of which some may be there twice."""

    def batches(
        self, names: Sequence[str], chunk_rows: int, left_out: RowsLeftOut | None
    ) -> Iterator[tuple[Sequence[Any], ...]]:
        """The named columns, as tuples of Arrow arrays, or lists, of at most `chunk_rows` values.

        Args: left_out: where rows that do not fit are counted; None refuses the first, and a table without rows.

        Raises:
            DataError: the table is damaged, or lacks a column: see `require_columns`.
        """


def existing_file(location: str) -> Path:
    """The path; DataError when it cannot be opened, or has no bytes."""
    file = Path(location)
    try:
        with open(file, "rb") as stream:
            first = stream.read(1)
    except OSError as error:
        raise file_error(str(file), error) from None
    if not first:
        raise DataError("data-empty", source=file)
    return file


def require_columns(source: str, wanted: Sequence[str], present: Sequence[str]) -> None:
    """Raise DataError unless each column that is wanted is there once."""
    for name in wanted:
        if present.count(name) > 1:
            raise DataError("data-duplicate-column", source=source, column=name)
    missing = [name for name in wanted if name not in present]
    if missing:
        raise missing_columns(source, missing, present)


def rechunked(batches: Iterator[tuple[Any, ...]], chunk_rows: int, source: str | None) -> Iterator[tuple[Any, ...]]:
    """Batches cut to at most `chunk_rows`, without empty ones; refused when there are none, if `source` is named."""
    seen = 0
    for batch in batches:
        n_rows = len(batch[0])
        seen += n_rows
        for start in range(0, n_rows, chunk_rows):
            yield tuple(column.slice(start, chunk_rows) for column in batch)
    if not seen and source is not None:
        raise DataError("data-empty", source=source)


_BLOCK_BYTES = 4 * 2**20
_LARGER_BLOCKS = (64 * 2**20, 2**30)
_HEADER_BYTES = 2**20


class CsvTable:
    """A CSV file, whose columns are bytes; see `Table`."""

    first_row = 1

    def __init__(self, location: str) -> None:
        place, declaration = without_declaration(location)
        self._declared = declared(declaration)
        self._file = existing_file(place)
        self.source = str(self._file)

    @property
    def has_decimal_commas(self) -> bool:
        """See `Table.has_decimal_commas`."""
        return _csv_header(self._file, self._declared).has_decimal_commas

    def types(self) -> dict[str, Any]:
        """See `Table.types`: text, all of them."""
        return {name: pa.string() for name in self.names()}

    def names(self) -> list[str]:
        """See `Table.names`."""
        return list(_csv_header(self._file, self._declared).names)

    def batches(self, names: Sequence[str], chunk_rows: int, left_out: RowsLeftOut | None) -> Iterator[tuple[Any, ...]]:
        """See `Table.batches`."""
        header = _csv_header(self._file, self._declared)
        require_columns(self.source, names, header.names)
        batches = _csv_batches(self._file, header, names, left_out)
        return rechunked(batches, chunk_rows, None if left_out is not None else self.source)


def _csv_header(file: Path, declaration: Declared) -> Header:
    """The file's header; DataError for none."""
    first = _first_bytes(file)
    # A byte that its encoding does not know matters here only if it stands in a name; the cells are looked at later.
    header = header_of(first, len(first) < _HEADER_BYTES, declaration)
    if not header.names:
        raise DataError("data-empty", source=file)
    if any("\udc80" <= character <= "\udcff" for name in header.names for character in name):
        raise DataError("data-encoding", source=file, where="the header")
    return header


def _first_bytes(file: Path) -> bytes:
    is_gzip = file.name.lower().endswith(".gz")
    try:
        if not is_gzip:
            with open(file, "rb") as plain:
                return plain.read(_HEADER_BYTES)
        with gzip.open(file, "rb") as packed:
            return packed.read(_HEADER_BYTES)
    except EOFError:
        raise DataError("data-truncated", source=file) from None
    except (gzip.BadGzipFile, zlib.error):
        raise DataError("data-corrupt", source=file, kind="gzip") from None
    except OSError as error:
        raise file_error(str(file), error) from None


def _csv_batches(
    file: Path, header: Header, names: Sequence[str], left_out: RowsLeftOut | None
) -> Iterator[tuple[Any, ...]]:
    """Columns as they stand, block by block; where rows are left out, one that is longer than a block fits as well.

    A block must hold a whole row. To give up because of one long row would tell of it, so the file is read again, in
    larger blocks, from where it was.
    """
    if header.is_last:
        # Arrow takes a header without a line's end for a broken file.
        return
    n_skipped = header.n_rows
    n_rows, sizes = 0, (_BLOCK_BYTES,) if left_out is None else (_BLOCK_BYTES, *_LARGER_BLOCKS)
    for block_bytes in sizes:
        ragged = _RaggedRows(str(file), n_skipped, is_strict=left_out is None)
        n_seen = 0
        try:
            for batch in _csv_blocks(file, header, names, ragged, block_bytes):
                ragged.check()
                start = min(max(0, n_rows - n_seen), len(batch[0]))
                n_seen += len(batch[0])
                n_rows = max(n_rows, n_seen)
                yield tuple(column.slice(start) for column in batch)
        except (pa.ArrowInvalid, OSError) as error:
            ragged.check()
            if "straddl" in str(error) and block_bytes != sizes[-1]:
                continue
            raise _csv_error(str(file), error) from None
        ragged.check()
        if left_out is not None:
            count_left_out(left_out, "data-ragged-row", ragged.n_rows)
        return


class _RaggedRows:
    """Rows with too few or too many fields: counted, or the first of them refused.

    One that goes over several lines with a quotation mark too many is refused in any case: that is what a mark that is
    never closed makes of the rest of the file.
    """

    def __init__(self, source: str, n_skipped: int, is_strict: bool) -> None:
        self.n_rows = 0
        self._source, self._n_skipped, self._is_strict = source, n_skipped, is_strict
        self._fault: DataError | None = None

    def note(self, row: Any) -> str:
        """What Arrow asks for such a row."""
        self.n_rows += 1
        text = row.text or ""
        # Not splitlines, which takes a form feed inside a cell for the end of a line.
        has_swallowed_lines = text.count('"') % 2 == 1 and re.search("[\r\n]", text.strip("\r\n")) is not None
        if self._fault is None and len(text) > _BLOCK_BYTES and has_swallowed_lines:
            self._fault = DataError("data-long-row", source=self._source, megabytes=_BLOCK_BYTES >> 20)
        elif self._fault is None and (self._is_strict or has_swallowed_lines):
            self._fault = DataError(
                "data-ragged-row",
                source=self._source,
                row=row.number - self._n_skipped,
                found=row.actual_columns,
                expected=row.expected_columns,
            )
        return "skip" if self._fault is None else "error"

    def check(self) -> None:
        """Raise what was refused; Arrow itself may quote the whole row."""
        if self._fault is not None:
            raise self._fault from None


def _csv_blocks(
    file: Path, header: Header, names: Sequence[str], ragged: _RaggedRows, block_bytes: int
) -> Iterator[tuple[Any, ...]]:
    """Columns are called by their position, for names may be repeated or odd.

    They are not taken for text here: whether a cell is UTF-8 is asked of each one by itself. Arrow is told that
    the file is Latin-1, in which any byte is a character: it cannot hand over a row with too few fields, to be left
    out, if there is a byte in it that is no UTF-8. Of a file that is in no Unicode, those characters are the cells, but
    for the few that its encoding has elsewhere.
    """
    present = header.names
    positions = [str(present.index(name)) for name in names]
    # One thread: only then does Arrow know the number of a row that it refuses.
    with (
        pa.input_stream(file) as stream,
        arrow_csv.open_csv(
            as_utf8(stream) if header.encoding == "utf-16" else _without_mark(stream, file),
            read_options=arrow_csv.ReadOptions(
                encoding="latin-1",
                use_threads=False,
                block_size=block_bytes,
                column_names=[str(position) for position in range(len(present))],
                skip_rows_after_names=header.n_rows,
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=header.separator,
                newlines_in_values=True,
                ignore_empty_lines=len(present) > 1,
                invalid_row_handler=ragged.note,
            ),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=positions, column_types={position: pa.binary() for position in positions}
            ),
        ) as reader,
    ):
        for batch in reader:
            cells = (batch.column(position) for position in positions)
            yield tuple(map(_as_in_file if header.is_unicode else header.decoded, cells))


def _without_mark(stream: Any, file: Path) -> Any:
    """The stream behind a byte order mark, if there is one."""
    if _first_bytes(file).startswith(codecs.BOM_UTF8):
        stream.read(len(codecs.BOM_UTF8))
    return stream


def _as_in_file(cells: Any) -> Any:
    """The bytes of each cell as they stand in the file, binary [n]: `_csv_blocks` reads a character for each byte."""
    if cells.offset:
        cells = pa.concat_arrays([cells])
    validity, offsets, content = cells.buffers()
    if content is None:
        return cells
    data = np.frombuffer(content, dtype=np.uint8)
    ends = np.frombuffer(offsets, dtype=np.int32)[: len(cells) + 1]
    data = data[: int(ends[-1])]
    is_lead = data >= 0xC0
    if not is_lead.any():
        return cells
    # Characters up to 255 are one byte below 128, or two: 110000xx 10yyyyyy stands for the byte xxyyyyyy.
    n_leads = np.append(0, np.cumsum(is_lead, dtype=np.int32))
    found = data.copy()
    after = np.flatnonzero(is_lead) + 1
    found[after] = (data[after - 1] << 6) | (data[after] & 0x3F)
    moved = [pa.py_buffer((ends - n_leads[ends]).astype(np.int32)), pa.py_buffer(found[~is_lead])]
    return pa.Array.from_buffers(pa.binary(), len(cells), [validity, *moved])


def _csv_error(source: str, error: Exception) -> DataError:
    """Arrow's message may quote the whole row, so nothing of it is passed on."""
    message = str(error)
    if "straddl" in message:
        return DataError("data-long-row", source=source, megabytes=_BLOCK_BYTES >> 20)
    if "Truncated" in message:
        return DataError("data-truncated", source=source)
    if "zlib" in message:
        return DataError("data-corrupt", source=source, kind="gzip")
    if isinstance(error, OSError) and error.errno is not None:
        return file_error(source, error)
    return DataError("data-corrupt", source=source, kind="CSV")


class ParquetTable:
    """A Parquet file; see `Table`."""

    first_row = 1
    is_typed = True

    def __init__(self, location: str) -> None:
        self._file = existing_file(location)
        self.source = str(self._file)

    def types(self) -> dict[str, Any]:
        """See `Table.types`."""
        with _parquet_errors(self.source):
            schema = arrow_parquet.read_schema(self._file)
        return {name.strip(): kind for name, kind in zip(schema.names, schema.types, strict=True)}

    def names(self) -> list[str]:
        """See `Table.names`."""
        with _parquet_errors(self.source):
            return [name.strip() for name in arrow_parquet.read_schema(self._file).names]

    def batches(self, names: Sequence[str], chunk_rows: int, left_out: RowsLeftOut | None) -> Iterator[tuple[Any, ...]]:
        """See `Table.batches`."""
        require_columns(self.source, names, self.names())
        batches = _parquet_batches(self._file, names, chunk_rows)
        return rechunked(batches, chunk_rows, None if left_out is not None else self.source)


class _parquet_errors:
    """Turns what Arrow raises for a damaged Parquet file into a `DataError`; nothing is raised otherwise."""

    def __init__(self, source: str) -> None:
        self.source = source

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError | pa.ArrowInvalid | pa.ArrowNotImplementedError | pa.ArrowKeyError):
            raise DataError("data-corrupt", source=self.source, kind="Parquet") from None


def _parquet_batches(file: Path, names: Sequence[str], chunk_rows: int) -> Iterator[tuple[Any, ...]]:
    source = str(file)
    with _parquet_errors(source):
        reader = arrow_parquet.ParquetFile(file, pre_buffer=False, page_checksum_verification=True)
    with reader:
        stored = {name.strip(): name for name in reader.schema_arrow.names}
        wanted = [stored[name] for name in names]
        batches = reader.iter_batches(batch_size=chunk_rows, columns=wanted)
        while True:
            with _parquet_errors(source):
                batch = next(batches, None)
            if batch is None:
                return
            yield tuple(batch.column(name) for name in wanted)


SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
"""In the order in which they are preferred, by the words of a declaration."""
DECIMALS = {"point": False, "comma": True}
_UNICODE = ("utf-8", "utf-16")
_PARTS = ("separator", "decimal", "encoding")
_DECLARATION = re.compile(rf"#((?:{'|'.join(_PARTS)})=[^#/]*)$")
_FIRST_LINE = re.compile(r"sep=([,;|\t])\r?\n", re.IGNORECASE)
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True)
class Declared:
    """What is declared behind a file's name; None for what follows from the header."""

    separator: str | None = None
    has_decimal_commas: bool | None = None
    encoding: str | None = None


@dataclass(frozen=True)
class Header:
    """A file's header and how the file is written.

    Attributes:
        names: of the columns, without spaces around them; none in a file without a header.
        n_rows: the number of rows up to its end: it may follow empty lines.
        is_last: whether not one character follows.
        separator: one character.
        has_decimal_commas: whether "3,5" is a number.
        encoding: Python's name of it.
    """

    names: tuple[str, ...]
    n_rows: int
    is_last: bool
    separator: str
    has_decimal_commas: bool
    encoding: str

    @property
    def is_unicode(self) -> bool:
        """Whether its text is UTF-8, or made so before it is cut into cells; else one byte is one character."""
        return self.encoding in _UNICODE

    def decoded(self, cells: Any) -> Any:
        """Cells of one byte per character, read as Latin-1, as text in the file's own encoding.

        Args: cells: binary [n], UTF-8.
        """
        moved = _moved_characters(self.encoding)
        if not moved:
            return cells
        texts = cells.cast(pa.string())
        pattern = "[" + "".join(f"\\x{{{ord(character):x}}}" for character, _ in moved) + "]"
        if not pc.any(pc.match_substring_regex(texts, pattern)).as_py():
            return cells
        encoded = texts.dictionary_encode()
        translation = str.maketrans(dict(moved))
        own = [text.translate(translation) for text in encoded.dictionary.to_pylist()]
        return pa.array(own, pa.string()).take(encoded.indices).cast(pa.binary())


def without_declaration(location: str) -> tuple[str, str]:
    """A file's name, and what is declared behind it, "" for nothing.

    A file that itself bears such a name is read by it: so the owner of a folder of arrivals declares.
    """
    found = _DECLARATION.search(location)
    if found is None:
        return location, ""
    return (location if os.path.isfile(location) else location[: found.start()]), found[1]


def plain_name(name: str) -> str:
    """A file's name without a declaration, whether there is such a file or not."""
    return _DECLARATION.sub("", name)


def declared(text: str) -> Declared:
    """What a declaration says; UsageError for words that it cannot say."""
    parts: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in _PARTS or name in parts:
            raise UsageError("csv-declaration", text=text, part=part)
        parts[name] = value.strip()
    separator, decimal, encoding = (parts.get(name) for name in _PARTS)
    if separator is not None and separator not in SEPARATORS:
        raise UsageError("csv-declaration", text=text, part=f"separator={separator}")
    if decimal is not None and decimal not in DECIMALS:
        raise UsageError("csv-declaration", text=text, part=f"decimal={decimal}")
    if encoding is not None:
        try:
            encoding = _encoding(encoding)
        except LookupError:
            raise UsageError("csv-declaration", text=text, part=f"encoding={encoding}") from None
    return Declared(
        None if separator is None else SEPARATORS[separator], None if decimal is None else DECIMALS[decimal], encoding
    )


def header_of(first: bytes, is_whole: bool, declaration: Declared) -> Header:
    """The header in the first bytes of a file; see the head of this module for the rules.

    Bytes that its encoding does not know are kept as lone surrogates: they matter only in names.

    Args: is_whole: whether these are all bytes of the file.
    """
    marked = "utf-8" if first.startswith(codecs.BOM_UTF8) else "utf-16" if first.startswith(_UTF16_MARKS) else None
    encoding = marked or declaration.encoding or "utf-8"
    # Of UTF-16, the first bytes may end in the middle of a character.
    errors = "ignore" if encoding == "utf-16" else "surrogateescape"
    text = first.decode("utf-8-sig" if encoding == "utf-8" else encoding, errors=errors)
    said = _FIRST_LINE.match(text)
    text = text[said.end() :] if said else text
    cut = [_cut(text, separator) for separator in SEPARATORS.values()]
    separators = list(SEPARATORS.values())
    separator = declaration.separator or (said[1] if said else None)
    if separator is None:
        separator = separators[max(range(len(cut)), key=lambda index: len(cut[index][0]))]
    names, n_rows, is_last = cut[separators.index(separator)]
    has_commas = declaration.has_decimal_commas
    return Header(
        tuple(name.strip() for name in names),
        n_rows + (1 if said else 0),
        is_whole and is_last,
        separator,
        separator == ";" if has_commas is None else has_commas,
        encoding,
    )


def as_utf8(stream: Any) -> Any:
    """A stream of UTF-16 as one of UTF-8; what is no character becomes the mark for that, in its own cell only."""
    return pa.PythonFile(_Recoded(stream), mode="r")


class _Recoded(io.RawIOBase):
    """The bytes of a UTF-16 stream, in UTF-8."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
        self._waiting = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes; none at the end."""
        is_over = False
        while not is_over and (size < 0 or len(self._waiting) < size):
            found = self._stream.read(max(size, 1 << 16))
            is_over = not found
            self._waiting += self._decoder.decode(found, is_over).encode(errors="replace")
        size = len(self._waiting) if size < 0 else size
        answer, self._waiting = self._waiting[:size], self._waiting[size:]
        return answer


def _cut(text: str, separator: str) -> tuple[list[str], int, bool]:
    """The fields of the first row that is not empty, the number of rows up to its end, and whether nothing follows."""
    stream = io.StringIO(text, newline="")
    rows = csv.reader(stream, delimiter=separator)
    n_rows, names = next(((count, row) for count, row in enumerate(rows, start=1) if row), (0, []))
    return names, n_rows, not stream.read()


def _encoding(word: str) -> str:
    """Python's name of a declared encoding: of Unicode's, or one with a byte for each character, ASCII among them.

    LookupError for any other. Latin-1 is read as Windows-1252, as browsers do: it has the same characters and more.
    """
    name = codecs.lookup(word).name
    name = {"utf-8-sig": "utf-8", "iso8859-1": "cp1252"}.get(name, name)
    if name not in _UNICODE:
        try:
            is_plain = len(_all_characters(name)) == 256 and bytes(range(128)).decode(name) == _ASCII
        except (TypeError, ValueError):
            is_plain = False
        if not is_plain:
            raise LookupError(word)
    return name


_ASCII = bytes(range(128)).decode("ascii")


@functools.cache
def _all_characters(encoding: str) -> str:
    """The character of each byte; bytes that the encoding leaves open stand for themselves, as in Latin-1."""
    found = (bytes([byte]).decode(encoding, errors="ignore") or chr(byte) for byte in range(256))
    return "".join(found)


@functools.cache
def _moved_characters(encoding: str) -> tuple[tuple[str, str], ...]:
    """Characters of Latin-1, and what the same byte is in the encoding, where that is another one."""
    return tuple((chr(byte), own) for byte, own in enumerate(_all_characters(encoding)) if own != chr(byte))
