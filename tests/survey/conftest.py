"""Small tables for surveys, as sites hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from hedgerow.data.columns import Place
from hedgerow.data.raw_cells import RawColumn
from hedgerow.survey.queries import RawSite

MakeSite = Callable[[Sequence[Sequence[str]]], RawSite]


@pytest.fixture
def site_of() -> MakeSite:
    """A site of columns of texts, as a CSV file has them."""

    def make(columns: Sequence[Sequence[Any]]) -> RawSite:
        cells = [RawColumn([pa.array(own, pa.string())], Place("table", f"c{at}")) for at, own in enumerate(columns)]
        return RawSite(cells, n_all=len(columns[0]))

    return make
