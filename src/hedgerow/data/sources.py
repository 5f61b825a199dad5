"""Read a site's table in chunks, in bounded memory: from a file, or from a database.

Files are CSV, gzipped CSV and Parquet, told apart by the file's ending (`ENDINGS`). CSV is UTF-8 with commas, a header,
and double quotes where needed. Columns that the plan does not name are not decoded. Empty lines are skipped. A missing
value is an empty field or one of `columns.MISSING_WORDS`.

A database is named by any SQLAlchemy URL and asked with one SELECT. What it says of a failure may quote rows, or the
password in the URL, so only the kind of the failure is passed on.

What is wrong with the table (no header, a column that is missing, a damaged file) is an error. What is wrong with one
row is an error too, or, where rows that do not fit are counted, leaves that row out and changes no other one.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as arrow_parquet

from hedgerow.data.faults import file_error, missing_columns
from hedgerow.data.units import Records, RowsLeftOut, count_left_out, needed_columns, records_from_columns
from hedgerow.errors import DataError, EnvironmentFault, missing_extra
from hedgerow.plan.plan import Plan

CSV_ENDINGS = (".csv", ".csv.gz")
PARQUET_ENDINGS = (".parquet", ".pq")
ENDINGS = CSV_ENDINGS + PARQUET_ENDINGS
"""Of the files that are read."""

_BLOCK_BYTES = 4 * 2**20
_LARGER_BLOCKS = (64 * 2**20, 2**30)
_HEADER_BYTES = 2**20


def read_records(
    path: str | os.PathLike[str],
    plan: Plan,
    *,
    with_label: bool = True,
    with_unit: bool | None = None,
    chunk_rows: int = 65536,
    left_out: RowsLeftOut | None = None,
) -> Iterator[Records]:
    """Read a file's records in chunks of at most `chunk_rows` records, in the order of the file.

    The file is opened, and its header checked, before this returns; rows are checked as they are read.

    Args:
        path: a .csv, .csv.gz or .parquet (.pq) file.
        with_label: False for prediction; the label's column need not be there then.
        with_unit: whether to read the identifier `plan.privacy.unit`; None means as `with_label`.
        left_out: where rows that do not fit are counted, as `records_from_columns` does; there may be no record left
            then, nor one to begin with. None refuses the first of them, and a table without rows.

    Raises:
        DataError: docs/errors.md lists every cause and its code.
    """
    names = needed_columns(plan, with_label=with_label, with_unit=with_unit)
    batches = read_columns(path, names, chunk_rows=chunk_rows, left_out=left_out)

    def encode() -> Iterator[Records]:
        first_row = 1
        for batch in batches:
            yield records_from_columns(
                dict(zip(names, batch, strict=True)),
                plan,
                with_label=with_label,
                with_unit=with_unit,
                source=os.fspath(path),
                first_row=first_row,
                left_out=left_out,
            )
            first_row += len(batch[0])

    return encode()


def read_columns(
    path: str | os.PathLike[str],
    names: Sequence[str],
    *,
    chunk_rows: int = 65536,
    left_out: RowsLeftOut | None = None,
) -> Iterator[tuple[Any, ...]]:
    """Read the named columns as tuples of Arrow arrays of at most `chunk_rows` values; CSV columns are bytes.

    Raises:
        DataError: as `read_records`; without the checks of values.
    """
    file, is_csv = _opened(path)
    present, n_skipped = _csv_header(file) if is_csv else (_parquet_header(file), 0)
    for name in names:
        if present.count(name) > 1:
            raise DataError("data-duplicate-column", source=file, column=name)
    missing = [name for name in names if name not in present]
    if missing:
        raise missing_columns(str(file), missing, present)
    if is_csv:
        batches = _csv_batches(file, (present, n_skipped), names, left_out)
    else:
        batches = _parquet_batches(file, names, chunk_rows)
    return _rechunked(batches, chunk_rows, None if left_out is not None else str(file))


def column_names(path: str | os.PathLike[str]) -> list[str]:
    """The names of a file's columns, without spaces around them, in its order.

    Raises:
        DataError: the file cannot be read, or is empty.
    """
    file, is_csv = _opened(path)
    return _csv_header(file)[0] if is_csv else _parquet_header(file)


def column_types(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The Arrow types of a Parquet file's columns; text for every column of a CSV."""
    file, is_csv = _opened(path)
    if is_csv:
        return {name: pa.string() for name in _csv_header(file)[0]}
    with _parquet_errors(str(file)):
        schema = arrow_parquet.read_schema(file)
    return {name.strip(): kind for name, kind in zip(schema.names, schema.types, strict=True)}


def _opened(path: str | os.PathLike[str]) -> tuple[Path, bool]:
    """The path, and whether it is a CSV; refused when it cannot be opened, has no bytes or an unknown ending."""
    file = Path(path)
    name = file.name.lower()
    if not name.endswith(ENDINGS):
        raise DataError("data-unknown-format", path=file)
    try:
        with open(file, "rb") as stream:
            first = stream.read(1)
    except OSError as error:
        raise file_error(str(file), error) from None
    if not first:
        raise DataError("data-empty", source=file)
    return file, name.endswith(CSV_ENDINGS)


def _parquet_header(file: Path) -> list[str]:
    with _parquet_errors(str(file)):
        return [name.strip() for name in arrow_parquet.read_schema(file).names]


def _csv_header(file: Path) -> tuple[list[str], int]:
    """The names in the header, and the number of rows up to its end: it may follow empty lines."""
    # A byte that is not UTF-8 matters here only if it stands in the header; Arrow checks the rows.
    text = _first_bytes(file).decode("utf-8-sig", errors="surrogateescape")
    stream = io.StringIO(text, newline="")
    n_rows, names = next(((count, row) for count, row in enumerate(csv.reader(stream), start=1) if row), (0, []))
    if not names:
        raise DataError("data-empty", source=file)
    if any("\udc80" <= character <= "\udcff" for name in names for character in name):
        raise DataError("data-encoding", source=file, where="the header")
    return [name.strip() for name in names], n_rows


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


def _csv_batches(
    file: Path, header: tuple[Sequence[str], int], names: Sequence[str], left_out: RowsLeftOut | None
) -> Iterator[tuple[Any, ...]]:
    """Columns as they stand, block by block; where rows are left out, one that is longer than a block fits as well.

    A block must hold a whole row. To give up because of one long row would tell of it, so the file is read again, in
    larger blocks, from where it was.
    """
    n_skipped = header[1]
    if _ends_with_header(file, n_skipped):
        return
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
    file: Path, header: tuple[Sequence[str], int], names: Sequence[str], ragged: _RaggedRows, block_bytes: int
) -> Iterator[tuple[Any, ...]]:
    """Columns are called by their position, for names may be repeated or odd.

    They are not taken for text here: whether a cell is UTF-8 is asked of each one by itself. Arrow is told that
    the file is Latin-1, in which any byte is a character: it cannot hand over a row with too few fields, to be left
    out, if there is a byte in it that is no UTF-8.
    """
    present, n_skipped = header
    positions = [str(present.index(name)) for name in names]
    # One thread: only then does Arrow know the number of a row that it refuses.
    with (
        pa.input_stream(file) as stream,
        arrow_csv.open_csv(
            _without_mark(stream, file),
            read_options=arrow_csv.ReadOptions(
                encoding="latin-1",
                use_threads=False,
                block_size=block_bytes,
                column_names=[str(position) for position in range(len(present))],
                skip_rows_after_names=n_skipped,
            ),
            parse_options=arrow_csv.ParseOptions(
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
            yield tuple(_as_in_file(batch.column(position)) for position in positions)


def _without_mark(stream: Any, file: Path) -> Any:
    """The stream behind a byte order mark, if there is one."""
    if _first_bytes(file).startswith(codecs.BOM_UTF8):
        stream.read(len(codecs.BOM_UTF8))
    return stream


def _ends_with_header(file: Path, n_skipped: int) -> bool:
    """Whether not one byte follows the header: Arrow takes a header without a line's end for a broken file."""
    first = _first_bytes(file)
    stream = io.StringIO(first.decode("utf-8-sig", errors="surrogateescape"), newline="")
    rows = csv.reader(stream)
    for _ in range(n_skipped):
        next(rows)
    return len(first) < _HEADER_BYTES and not stream.read()


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


def _rechunked(batches: Iterator[tuple[Any, ...]], chunk_rows: int, source: str | None) -> Iterator[tuple[Any, ...]]:
    """Batches cut to at most `chunk_rows`, without empty ones; refused when there are none, if `source` is named."""
    seen = 0
    for batch in batches:
        n_rows = len(batch[0])
        seen += n_rows
        for start in range(0, n_rows, chunk_rows):
            yield tuple(column.slice(start, chunk_rows) for column in batch)
    if not seen and source is not None:
        raise DataError("data-empty", source=source)


_QUERY = "The query's result"


def read_sql_records(
    url: str, query: str, plan: Plan, *, chunk_rows: int = 65536, left_out: RowsLeftOut | None = None
) -> Iterator[Records]:
    """Read what a query gives, with labels (and identifiers, if the plan has a unit), in chunks.

    Args:
        url: as SQLAlchemy takes it: "postgresql+psycopg://user@host/database", "sqlite:///file.db".
        query: one SELECT whose columns are named as in the plan; others are ignored. Order it by a key: which rows of
            a unit are used must not depend on the order in which the database happens to give them.
        left_out: where rows that do not fit are counted, as `records_from_columns` does; None refuses the first.

    Raises:
        DataError: code "data-sql" when the database refuses; else as `read_records`.
        EnvironmentFault: code "missing-extra" when SQLAlchemy, or the database's own driver, is not installed.
    """
    try:
        import sqlalchemy
        from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError
    except ModuleNotFoundError:
        raise missing_extra("sqlalchemy", "Reading from a database") from None
    names = needed_columns(plan)
    try:
        engine = sqlalchemy.create_engine(url)
        if engine.dialect.name == "sqlite":
            sqlalchemy.event.listen(engine, "connect", _keep_odd_bytes)
        with engine.connect().execution_options(stream_results=True) as connection:
            result = connection.execute(sqlalchemy.text(query))
            present = [str(name) for name in result.keys()]
            at = _positions(names, present)
            first_row = 1
            for rows in result.partitions(chunk_rows):
                columns: dict[str, Any] = {name: [row[at[name]] for row in rows] for name in names}
                yield records_from_columns(columns, plan, source=_QUERY, first_row=first_row, left_out=left_out)
                first_row += len(rows)
    except (NoSuchModuleError, ModuleNotFoundError) as absent:
        raise _missing_driver(getattr(absent, "name", None)) from None
    except SQLAlchemyError as fault:
        raise DataError("data-sql", fault=type(fault).__name__) from None


def _keep_odd_bytes(connection: Any, _: object) -> None:
    """Text that is not UTF-8 stays bytes: SQLite's driver would give the whole query up because of one cell."""

    def decoded(content: bytes) -> str | bytes:
        try:
            return content.decode()
        except UnicodeDecodeError:
            return content

    connection.text_factory = decoded


def _positions(names: tuple[str, ...], present: list[str]) -> dict[str, int]:
    for name in names:
        if present.count(name) > 1:
            raise DataError("data-duplicate-column", source=_QUERY, column=name)
    missing = [name for name in names if name not in present]
    if missing:
        raise missing_columns(_QUERY, missing, present)
    return {name: present.index(name) for name in names}


def _missing_driver(module: str | None) -> EnvironmentFault:
    """Without a module's name it is the URL's own beginning that SQLAlchemy does not know."""
    return EnvironmentFault("database-driver", module=module) if module else EnvironmentFault("database-driver-unknown")
