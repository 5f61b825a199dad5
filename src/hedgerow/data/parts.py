# SPDX-License-Identifier: Apache-2.0
"""Parts of a table that several processes hold: each row is in one part, and all rows of a person in the same.

A Parquet table whose rows are protected one by one is divided by files and row groups. Everything else is divided by
what a row is and never by where it stands, for a query may give its rows in another order each time, and a row in two
parts would count twice: by the identifier as it is read, of which two spellings are one, or by the row's codes where
there is none. Then each process reads the whole table; a query of whole numbers as identifiers is divided by the
database itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hedgerow.data.databases import TypedQuery
from hedgerow.data.tables import ParquetTable, Table
from hedgerow.data.units import mix_words


@dataclass(frozen=True)
class Part:
    """One of the parts of a table.

    Attributes:
        number: 0 to n_parts - 1.
        n_parts: of the table.
    """

    number: int
    n_parts: int

    def holds(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which rows, by the hashes of what they are, are in it: bool [n]."""
        return np.asarray(mix_words(hashes) % np.uint64(self.n_parts) == np.uint64(self.number))

    def divide(self, table: Table, unit: str) -> bool:
        """Have the table give this part alone; False where it gives all its rows, of which some are in the part."""
        if isinstance(table, ParquetTable) and unit == "record":
            table.keep_groups(self.number, self.n_parts)
            return True
        if isinstance(table, TypedQuery) and pa.types.is_integer(table.types().get(unit, pa.null())):
            table.keep_remainder(unit, self.number, self.n_parts)
            return True
        return False
