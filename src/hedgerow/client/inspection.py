"""What a table's columns hold: numbers or text, and, when the owner says that this is public, which.

Only `hedgerow plan init` uses this; training never derives anything public from data.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from hedgerow.client import columns as encoders
from hedgerow.client.data_errors import Place
from hedgerow.client.reading import column_types, read_columns
from hedgerow.protocol.errors import DataError
from hedgerow.protocol.plan import MAX_CATEGORIES

MAX_CLASSES = 20
"""A numeric column with more values than this is taken for a quantity, not for classes."""


@dataclass
class Summary:
    """One column, over all chunks.

    Attributes:
        is_numeric: every value that is not missing is a number.
        is_integer: and each is integral.
        has_values: some value is not missing.
        low, high: the smallest and largest finite number.
        values: the distinct texts, until there are more than `MAX_CATEGORIES` of them.
    """

    name: str
    is_numeric: bool = True
    is_integer: bool = True
    has_values: bool = False
    low: float = math.inf
    high: float = -math.inf
    values: set[str] = field(default_factory=set)

    @property
    def has_too_many_values(self) -> bool:
        return len(self.values) > MAX_CATEGORIES

    def sorted_values(self) -> list[str]:
        """The distinct values: numbers by size, text by alphabet."""
        return sorted(self.values, key=float) if self.is_numeric else sorted(self.values)


def summarise(path: str | os.PathLike[str], names: Sequence[str]) -> dict[str, Summary]:
    """Read the named columns once, in bounded memory.

    Raises:
        DataError: the file cannot be read.
    """
    kinds = column_types(path)
    summaries = {name: Summary(name) for name in names}
    for batch in read_columns(path, names):
        for name, column in zip(names, batch, strict=True):
            _add(summaries[name], column, kinds[name], Place(os.fspath(path), name))
    for summary in summaries.values():
        # A column of nothing says nothing about its type; numbers are the commoner case.
        summary.is_integer &= summary.is_numeric and summary.has_values
    return summaries


def _add(summary: Summary, column: Any, kind: Any, place: Place) -> None:
    if pa.types.is_boolean(kind):
        summary.is_numeric = False
    if summary.is_numeric:
        try:
            numbers = encoders.numbers(column, place)
        except DataError:
            summary.is_numeric = False
        else:
            finite = numbers[np.isfinite(numbers)]
            if finite.size:
                summary.low = min(summary.low, float(finite.min()))
                summary.high = max(summary.high, float(finite.max()))
                summary.is_integer &= bool(np.all(finite == np.floor(finite)))
    distinct = encoders.distinct_texts(column, place)
    summary.has_values |= len(distinct) > 0
    if not summary.has_too_many_values:
        summary.values.update(distinct.slice(0, MAX_CATEGORIES + 1).to_pylist())
