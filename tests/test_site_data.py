"""From records to a node's rows: chunks do not matter, labels are scaled exactly, one unit adds no more than agreed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hedgerow.client.reading import read_records
from hedgerow.protocol.errors import DataError
from hedgerow.protocol.plan import Label, Plan
from hedgerow.site_data import read_site_data, scaled_label, site_data_from_records


def plan_of(**privacy: object) -> Plan:
    return Plan.from_dict(
        {
            "version": 1,
            "privacy": {"epsilon": 1, "delta": 1e-6, "n_records": 100, **privacy},
            "label": {"name": "y", "type": "binary", "classes": ["no", "yes"]},
            "features": [
                {"name": "x", "type": "numeric", "min": 0, "max": 1},
                {"name": "c", "type": "categorical", "categories": ["a", "b"]},
            ],
        }
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """60 rows, six of each of ten people."""
    rows = [f"p{i % 10},{i / 60},{'ab'[i % 2]},{('no', 'yes')[i % 3 == 0]}" for i in range(60)]
    path = tmp_path / "site.csv"
    path.write_text("person,x,c,y\n" + "\n".join(rows) + "\n")
    return path


def test_scaled_labels() -> None:
    """The public range becomes [-1, 1] in units of 2**-16, rounded; beyond it labels are clamped."""
    label = Label(name="y", type="regression", min=10.0, max=30.0)
    values = np.array([10.0, 20.0, 30.0, 25.0, -5.0, 1e9, 20.0 + 10 * 0.6 / 65536])
    assert scaled_label(values, label).tolist() == [-65536, 0, 65536, 32768, -65536, 65536, 1]


def test_chunks_do_not_matter(table: Path) -> None:
    """Reading seven rows at a time gives the same codes and labels as reading all at once."""
    plan = plan_of()
    whole, _ = read_site_data(table, plan)
    pieces, _ = site_data_from_records(read_records(table, plan, chunk_rows=7), plan)
    assert whole.n_records == 60
    assert whole.codes.dtype == np.uint8
    assert np.array_equal(whole.codes, pieces.codes)
    assert np.array_equal(whole.labels, pieces.labels)


def test_the_unit_is_bounded_over_chunks(table: Path) -> None:
    """A person's rows are counted over the whole table, not per chunk, and the same ones are kept."""
    plan = plan_of(unit="person", max_rows_per_unit=2)
    whole, report = read_site_data(table, plan)
    pieces, _ = site_data_from_records(read_records(table, plan, chunk_rows=7), plan)
    assert whole.n_records == 20
    assert (report.n_units, report.n_dropped) == (10, 40)
    assert np.array_equal(whole.codes, pieces.codes)


def test_a_missing_identifier_or_label_is_refused(table: Path) -> None:
    """Records read without identifiers or labels cannot train, and there must be records."""
    plan = plan_of(unit="person", max_rows_per_unit=2)
    with pytest.raises(DataError, match="no identifier"):
        site_data_from_records(read_records(table, plan, with_unit=False), plan)
    with pytest.raises(DataError, match="no label"):
        site_data_from_records(read_records(table, plan, with_label=False), plan)
    with pytest.raises(DataError, match="no data rows"):
        site_data_from_records([], plan)
