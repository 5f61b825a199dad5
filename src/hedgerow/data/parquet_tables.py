"""Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as arrow_parquet

from hedgerow.data.tables import existing_file, rechunked, require_columns
from hedgerow.data.units import RowsLeftOut
from hedgerow.errors import DataError


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
