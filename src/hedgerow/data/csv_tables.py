"""CSV files, plain or gzipped, with a header, and double quotes where needed; `hedgerow.data.dialects` has the rest.

Columns that are not asked for are not decoded. Empty lines are skipped. What is wrong with the file (no header, a
column that is missing, damage) is an error. What is wrong with one row is an error too, or, where rows that do not fit
are counted, leaves that row out and changes no other one.
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from hedgerow.data.dialects import Declared, Header, as_utf8, declared, header_of, without_declaration
from hedgerow.data.faults import file_error
from hedgerow.data.tables import existing_file, rechunked, require_columns
from hedgerow.data.units import RowsLeftOut, count_left_out
from hedgerow.errors import DataError

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
