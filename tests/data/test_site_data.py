"""From records to a node's rows: chunks do not matter, labels are scaled exactly, one unit adds no more than agreed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.data.binned import SiteData
from hedgerow.data.site_data import SiteRows, bound_sites, read_site_data, read_sites_data, site_data_from_records
from hedgerow.data.sources import read_records
from hedgerow.errors import DataError
from hedgerow.plan.plan import Label, Plan
from tests.builders import LABELS, bare_plan, coded


def two_columns(**privacy: Any) -> Plan:
    features = [
        {"name": "x", "type": "numeric", "min": 0, "max": 1},
        {"name": "c", "type": "categorical", "categories": ["a", "b"]},
    ]
    return bare_plan(LABELS["binary"], features, privacy=privacy)


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
    assert label.kind.encode(values, label).tolist() == [-65536, 0, 65536, 32768, -65536, 65536, 1]


def test_chunks_do_not_matter(table: Path) -> None:
    """Reading seven rows at a time gives the same codes and labels as reading all at once."""
    plan = two_columns()
    whole, _ = read_site_data(table, plan)
    pieces, _ = site_data_from_records(read_records(table, plan, chunk_rows=7), plan)
    assert whole.n_records == 60
    assert whole.codes.dtype == np.uint8
    assert np.array_equal(whole.codes, pieces.codes)
    assert np.array_equal(whole.labels, pieces.labels)


def test_the_unit_is_bounded_over_chunks(table: Path) -> None:
    """A person's rows are counted over the whole table, not per chunk, and the same ones are kept."""
    plan = two_columns(unit="person", max_rows_per_unit=2)
    whole, report = read_site_data(table, plan)
    pieces, _ = site_data_from_records(read_records(table, plan, chunk_rows=7), plan)
    assert whole.n_records == 20
    assert (report.n_units, report.n_dropped) == (10, 40)
    assert np.array_equal(whole.codes, pieces.codes)


def test_a_missing_identifier_or_label_is_refused(table: Path) -> None:
    """Records read without identifiers or labels cannot train, and there must be records."""
    plan = two_columns(unit="person", max_rows_per_unit=2)
    with pytest.raises(DataError, check=coded("data-unit-missing")):
        site_data_from_records([replace(next(read_records(table, plan)), unit=None)], plan)
    with pytest.raises(DataError, check=coded("data-label-missing")):
        site_data_from_records(read_records(table, plan, with_label=False), plan)
    with pytest.raises(DataError, check=coded("data-empty")):
        site_data_from_records([], plan)


def people(*names: str) -> SiteRows:
    """A table of these people's rows, in order; the label tells the rows of one table apart."""
    rows = np.arange(len(names))
    return SiteRows(SiteData(np.stack([rows, rows]).astype(np.uint8), rows.astype(np.int32)), np.array(names))


def rows_kept(plan: Plan, tables: dict[str, SiteRows]) -> list[tuple[str, str, int]]:
    """(person, site, row) of everything that stays."""
    return sorted(
        (str(tables[site].unit[row]), site, int(row))
        for site, (data, _) in bound_sites(tables, plan).items()
        for row in data.labels
    )


@settings(max_examples=60, deadline=None)
@given(
    tables=st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=12), min_size=1, max_size=4),
    rows=st.integers(1, 3),
    sites=st.integers(1, 3),
)
def test_a_person_is_bounded_over_all_tables_that_one_process_reads(
    tables: list[list[str]], rows: int, sites: int
) -> None:
    """At each site at most so many rows, over all sites that many times the declared sites; all of them where there are
    fewer; and who else is in the tables does not matter.
    """
    plan = two_columns(unit="person", max_rows_per_unit=rows, sites_per_unit=sites)
    named = {f"site {number}": people(*table) for number, table in enumerate(tables)}
    kept = rows_kept(plan, named)
    for person in "abcde":
        own = {site: [int(r) for r in np.flatnonzero(table.unit == person)] for site, table in named.items()}
        stay = [entry for entry in kept if entry[0] == person]
        at_sites = [sum(entry[1] == site for entry in stay) for site in own]
        assert all(found <= rows for found in at_sites)
        assert len(stay) == min(rows * sites, sum(min(rows, len(places)) for places in own.values()))
        # The same without everybody else: row numbers change, which rows of this person stay does not.
        alone = {site: people(*[person] * len(places)) for site, places in own.items() if places}
        if alone:
            again = [(person, site, own[site][row]) for _, site, row in rows_kept(plan, alone)]
            assert sorted(again) == stay


def test_what_was_left_out_over_all_tables_is_counted(table: Path) -> None:
    """The same person in two files counts once if the plan says one site; the operator sees how many rows went."""
    plan = two_columns(unit="person", max_rows_per_unit=2)
    both = read_sites_data({"one": table, "two": table}, plan)
    assert sum(data.n_records for data in both.values()) == 20
    rows = {name: SiteRows(people(*"aabbc").data, np.array(list("aabbc"))) for name in ("one", "two")}
    reports = [report for _, report in bound_sites(rows, two_columns(unit="person")).values()]
    assert sum(report.n_dropped for report in reports) == 7 and sum(report.n_rows for report in reports) == 10
    twice = two_columns(unit="person", max_rows_per_unit=2, sites_per_unit=2)
    assert sum(data.n_records for data in read_sites_data({"one": table, "two": table}, twice).values()) == 40
