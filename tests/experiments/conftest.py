"""A data set small enough to train on within milliseconds, in place of the four that the catalogue names."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from experiments import paper
from experiments.datasets import Table, number


def small_table(name: str = "small", n_records: int = 200) -> Table:
    """Six features, of which the first says nearly all about the class."""
    random = np.random.default_rng(1)
    columns = tuple(random.uniform(-1, 1, n_records).astype(np.float32) for _ in range(6))
    label = (columns[0] + random.normal(0, 0.2, n_records) > 0).astype(np.int64)
    features = tuple(number(f"x{index}", -1, 1) for index in range(6))
    return Table(name, features, columns, label, {"name": "y", "type": "binary", "classes": ["0", "1"]})


@pytest.fixture
def small() -> Table:
    """The data set itself."""
    return small_table()


@pytest.fixture
def small_data(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every name of a data set means the small one."""
    monkeypatch.setattr(paper, "load", lambda name, folder, preparation: small_table(name))
    paper._prepared.cache_clear()
    yield
    paper._prepared.cache_clear()


@pytest.fixture
def store(tmp_path: Path) -> Callable[..., Namespace]:
    """So many runs a cell, as a command line asks for them; the same folder at every call."""
    return lambda repeats=1, **changes: Namespace(
        **{"out": tmp_path, "data": None, "jobs": 1, "repeats": repeats, **changes}
    )
